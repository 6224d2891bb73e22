/*
 * How many tokens to draft. Pure: costs and outcomes are given, no clock inside.
 *
 * Draft on while P(all drafts so far and the next are accepted) >= rate x (draft step + marginal verify cost), where
 * rate is the tokens per microsecond that the request makes now, and at least that of plain decoding. P is a product of
 * calibrated chances: the margin by which the drafter's pick won is put in a bin, each bin learns how often its tokens
 * were accepted; a token that is not drafted yet has the mean chance. Where the first draft already does not pay the
 * length is 0, and a probe of two tokens follows as soon as a hundredth of the plain decoding time since the last one
 * covers its cost. The very first probe is one token.
 */
#ifndef NODE_LENGTH_H
#define NODE_LENGTH_H

#include <stdbool.h>
#include <stdint.h>

#define NODE_LENGTH_MAX 255u
#define NODE_LENGTH_BINS 12u
#define NODE_LENGTH_COSTS 8u /* verify passes of 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64 and more rows */

typedef struct node_length {
    uint32_t max_draft;
    double accepted[NODE_LENGTH_BINS], seen[NODE_LENGTH_BINS];       /* decayed counts over a prior */
    double all_accepted, all_seen;                                   /* the same over all bins */
    double draft_us;                                                 /* one draft step; 0: not measured yet */
    double cost_rows[NODE_LENGTH_COSTS], cost_us[NODE_LENGTH_COSTS]; /* decayed means; 0: not measured yet */
    double sum_tokens, sum_us;                                       /* decayed totals: the rate now */
    double probe_credit_us;
    /* the round that is being drafted */
    uint32_t n_round, n_probe; /* n_probe: drafts of a probe, 0 when this round is none */
    double p_all;
    uint8_t bin[NODE_LENGTH_MAX];
} node_length_t;

void node_length_init(node_length_t *l, uint32_t max_draft /* at most NODE_LENGTH_MAX count */);
/* Starts a round: true when a first token should be drafted. The very first round is plain, to measure it. */
bool node_length_begin(node_length_t *l);
/* A token was drafted, its pick won by this margin: true when one more should be drafted after it. */
bool node_length_more(node_length_t *l, double margin);

typedef struct node_length_round {
    uint32_t n_drafts, n_accepted, n_tokens; /* verified, accepted, committed */
    double draft_us, verify_us;              /* whole times */
} node_length_round_t;
void node_length_end(node_length_t *l, const node_length_round_t *round);

/* Estimates, for logs and tests. */
double node_length_verify_us(const node_length_t *l, uint32_t n_rows); /* 0: nothing measured */
double node_length_chance(const node_length_t *l, double margin);
double node_length_mean_chance(const node_length_t *l);

#endif
