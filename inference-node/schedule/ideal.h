/*
 * The draft length that a verification is planned for. Drafting decides token by token (speculate/length); a plan needs
 * the number before the first draft, so this takes the mean chance for every draft: the x where committed tokens per
 * microsecond are most, which is where the rule of speculate/length stops when its chances are as expected.
 */
#ifndef NODE_SCHEDULE_IDEAL_H
#define NODE_SCHEDULE_IDEAL_H

#include <stdint.h>

#include "speculate/length.h"

/* Shares of one request: what its step adds to an iteration of the batch, plus its part of what all share. */
typedef struct node_schedule_cost {
    double draft_us;      /* one draft */
    double verify_us;     /* a verify pass of one row */
    double verify_row_us; /* each further row */
    double link_us;       /* its full KV on the link; with others drafting meanwhile, a round cannot be shorter */
    double chance;        /* of a draft to be accepted, 0 to 1 */
    uint32_t min_draft;   /* drafts of the next round at least: a probe, or a fixed length */
} node_schedule_cost_t;

/* Tokens that a round of x drafts commits, expected: 1 + p + ... + p^x. */
double node_schedule_tokens(double chance, uint32_t x);
/* argmax over x = min_draft..max of tokens / max(x drafts + verify pass, link); the smallest of equals. */
uint32_t node_schedule_ideal(const node_schedule_cost_t *cost, uint32_t max_draft);
/* Costs as a session measured them. Without a measured draft, draft_us is the verify pass's: it does not pay yet. */
node_schedule_cost_t node_schedule_cost_of(const node_length_t *length, double link_us);

#endif
