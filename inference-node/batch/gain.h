/*
 * Does drafting pay for a batch as a whole? A row of a plain pass beside few others is nearly free, and no request sees
 * that in its own costs: drafts of one make the passes of all longer. So the batch holds what its tokens took against
 * what passes without any draft would have taken for them, a line through the iterations that had none, and lets nobody
 * draft where that was less. Pure: costs are given, no clock inside. One owner.
 *
 *   on    rounds are held to plain ones; after some that lost together: off. Now and then, and at the beginning, off
 *         for a few plain iterations where there were none to hold them to; where these do not come, as beside prompts,
 *         that look is over soon and is not repeated for long
 *   off   nobody drafts; on again once a hundredth of the time covers what the last trial lost
 *
 * Rounds with proposals of a source (speculate/choice.h) are no drafting and no plain decoding: they are part of the
 * time that a trial is paid from, and say nothing else.
 *
 * By the number of requests that run: one alone may gain by what four do not.
 */
#ifndef NODE_BATCH_GAIN_H
#define NODE_BATCH_GAIN_H

#include <stdbool.h>

#include "batch/share.h"

#define NODE_GAIN_WIDTHS 6u /* 1, 2, 3-4, 5-8, 9-16 and more requests */

typedef struct node_gain {
    node_share_t plain;
    struct {
        bool off, looks;            /* off only to see plain iterations */
        uint32_t n_rounds, n_plain; /* since it went on; plain iterations since it went off, or before the first */
        uint32_t since, look_after; /* rounds since a plain iteration or a vain look; how many bring the next look */
        double took_us, worth_us;   /* decayed: rounds, and their tokens made plainly */
        double credit_us, lost_us;  /* for the next trial; what the last one lost */
    } at[NODE_GAIN_WIDTHS];
} node_gain_t;

void node_gain_init(node_gain_t *g);
/* Whether requests that begin a round now may draft in it. */
bool node_gain_may_draft(const node_gain_t *g, uint32_t n_requests);
/* An iteration of nothing but plain rounds of n_requests, whose full KV has so many tokens together; told before these
 * rounds are. */
void node_gain_plain(node_gain_t *g, uint32_t n_requests, double kilotokens, double us);
/* Whether it is off only for a few iterations that should be plain: then without proposals of sources too. */
bool node_gain_looks(const node_gain_t *g, uint32_t n_requests);
/* A round of one of n_requests ended, drafted or plain: its tokens, and its share of the time since its last one. */
void node_gain_round(node_gain_t *g, uint32_t n_requests, double kilotokens, uint32_t n_tokens, double us);
/* The same of a round with proposals of a source. */
void node_gain_elsewhere(node_gain_t *g, uint32_t n_requests, double us);

#endif
