/*
 * How many proposals of a draft source go into one pass. Pure: costs and outcomes are given, no clock inside.
 *
 * A pass over rows that must be computed and k proposals costs less than k + 1 passes and gives one token, and one more
 * for each proposal that is right. The next proposal goes in while
 *   P(it and all before it are right) >= rate x cost of a further row
 * where rate is the tokens per cost that this request makes now, at least those of one row at a time. Costs are in
 * passes of one row. A further row costs NODE_CASCADE_ROW until passes were measured, then a decayed mean (passes of a
 * few rows are close to a straight line, and one number recovers from odd measurements sooner than a table does). Where
 * passes are measured the first one, and one of NODE_CASCADE_RENEW after it, has no proposals: the others are held to
 * it.
 */
#ifndef NODE_CASCADE_H
#define NODE_CASCADE_H

#include "speculate/source.h"

#define NODE_CASCADE_ROWS 32u /* wider passes are prompts, and tell nothing */
#define NODE_CASCADE_RENEW 64u
#define NODE_CASCADE_ROW 0.25

typedef struct node_cascade {
    bool measured;               /* passes are */
    uint32_t n_wide;             /* passes with proposals since one without was measured */
    double one_us;               /* a pass of one row; 0: not measured yet */
    double row;                  /* a further row over one_us */
    double sum_tokens, sum_cost; /* decayed totals: the rate now */
} node_cascade_t;

void node_cascade_init(node_cascade_t *c, bool measured);
/* How many of the n proposals are worth a row. */
uint32_t node_cascade_choose(const node_cascade_t *c, const node_proposal_t *proposals, uint32_t n);
/* A pass of n_rows in all, n_proposals of them proposals, gave n_tokens; us: its time, 0 where it was not measured. */
void node_cascade_end(node_cascade_t *c, uint32_t n_rows, uint32_t n_proposals, uint32_t n_tokens, double us);

#endif
