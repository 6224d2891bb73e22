/*
 * Who an iteration's time is for. The time of an iteration is measured as a whole; it is explained by what the passes
 * carried (a line through decayed sums: fixed part, draft rows, thousand tokens of full KV that were read, verify rows,
 * prompt rows), and each request's part of the explanation is its part of the time. Parts always add up to the whole,
 * however badly the line fits. Pure; one owner.
 */
#ifndef NODE_BATCH_SHARE_H
#define NODE_BATCH_SHARE_H

#include <stdint.h>

enum { NODE_SHARE_FIXED, NODE_SHARE_DRAFTS, NODE_SHARE_KILOTOKENS, NODE_SHARE_VERIFY, NODE_SHARE_PROMPT, NODE_SHARE_N };

typedef struct node_share_load {
    double n[NODE_SHARE_N]; /* n[NODE_SHARE_FIXED] is 1 for an iteration, and a request's part of it */
} node_share_load_t;

typedef struct node_share {
    double a[NODE_SHARE_N][NODE_SHARE_N], y[NODE_SHARE_N]; /* decayed sums: n n', n us */
    double us[NODE_SHARE_N];                               /* the line */
} node_share_t;

void node_share_init(node_share_t *s);
/* An iteration took so long. */
void node_share_learn(node_share_t *s, const node_share_load_t *whole, double us);
/* What the load takes by the line; 0 before anything was learnt. */
double node_share_us(const node_share_t *s, const node_share_load_t *load);

#endif
