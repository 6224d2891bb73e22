/*
 * What the next round of a request is: plain decoding, proposals of its draft source straight to the verifier, or
 * drafting on the compressed copy, with the source's proposals under it. Pure: costs and outcomes are given, no clock
 * inside.
 *
 * Each has an expected rate, tokens that it commits over its time, and the greatest is taken. Not a gain over the mean
 * rate of the request: a text has easy stretches and hard ones, and what counts in a hard one is what is had there
 * otherwise.
 *   plain    one token for a pass of one row
 *   source   1 + p1 + p1 p2 + ... for a pass of one row more than proposals, at the number where that is best
 *   copy     as speculate/length hopes, held down by how its hopes came true; it alone probes, and pays for a probe
 *            what it loses against the better of the other two
 * Passes cost what speculate/length knows of each width. The source's chances are its own, corrected by how often it
 * was wrong of late over how often it said it would be; each committed token tells that, in whatever way it came.
 *
 * Where the source's run ends and more is likely right, drafting goes on behind it: that is drafting on the copy, whose
 * first pass carries the proposals and checks them on the way, and costs no more than one that takes them unseen.
 */
#ifndef NODE_CHOICE_H
#define NODE_CHOICE_H

#include "speculate/length.h"
#include "speculate/source.h"

typedef enum node_choice_kind { NODE_CHOICE_PLAIN, NODE_CHOICE_SOURCE, NODE_CHOICE_COPY } node_choice_kind_t;

#define NODE_CHOICE_BINS 6u

typedef struct node_choice {
    double seen[NODE_CHOICE_BINS], beyond[NODE_CHOICE_BINS]; /* decayed: proposals; right ones less those meant to be */
    /* this round */
    node_proposal_t proposals[NODE_SOURCE_MAX];
    uint32_t n_proposals;
} node_choice_t;

void node_choice_init(node_choice_t *c);
/* Starts a round. l: prepared or not; the costs, and where has_copy the rule of drafting, whose round begins with
 * NODE_CHOICE_COPY. *n_p: with NODE_CHOICE_SOURCE how many of the n proposals go into the pass, else 0. */
node_choice_kind_t node_choice_begin(node_choice_t *c, node_length_t *l, bool has_copy,
                                     const node_proposal_t *proposals, uint32_t n, uint32_t *n_p);
/* The round committed these tokens. The length is told by the caller. */
void node_choice_end(node_choice_t *c, const uint32_t *tokens, uint32_t n_tokens);

/* The source's chance as it is believed here. */
double node_choice_chance(const node_choice_t *c, double chance);

#endif
