/*
 * What methods that drop tokens share: the choice of rows as bitmaps, ranking, budgets, and the payload that follows
 * from the choice. A method's plan is a node_selection_t that its scores filled; the other slots are the ones below.
 * Pure but for allocation; one selection is one call's.
 */
#ifndef NODE_SELECT_H
#define NODE_SELECT_H

#include "compress/dropper.h"

typedef struct node_selection {
    const node_spec_t *spec;
    const node_compress_in_t *in;
    uint32_t n_heads; /* n_layer * n_kv_head */
    uint32_t n_new;   /* blocks */
    uint64_t *kept;   /* [head][block - first_block], bit = row of the block; nothing kept at the start */
    node_dropper_rows_t rows;
} node_selection_t;

node_selection_t *node_selection_create(const node_spec_t *spec, const node_compress_in_t *in, vc_err_t *err);
void node_selection_keep_all(node_selection_t *s);

/* Slots of node_codec_ops_t for every dropper (with coded rows where the spec says "+rot:..."). */
uint32_t node_selection_layer_bytes(const void *plan, uint32_t block, uint32_t layer);
void node_selection_encode(const void *plan, uint32_t block, uint32_t layer, void *part);
void node_selection_free(void *plan);

/* How the rows that keep leaves are shared out. HEAD: every head its own best; LAYER: a layer's share is its count
 * under one ranking of everything, its heads get equal parts; GLOBAL: one ranking of all layers, heads and rows. */
typedef enum { NODE_BUDGET_HEAD = 0, NODE_BUDGET_LAYER, NODE_BUDGET_GLOBAL } node_budget_t;

/*
 * scores: [head][n_new * NODE_TILE], of the new rows. The first n_protected new rows are kept in every head whatever
 * their score, and count towards the budget. take = rows per head (mean over heads for LAYER and GLOBAL), clamped to
 * [max(1, n_protected), n_new * NODE_TILE]. Rank: higher first, then lower layer, head, position. A score that is not a
 * number: INVALID, naming layer, head and position.
 */
vc_status_t node_selection_fill(node_selection_t *s, const float *scores, uint32_t n_protected, uint32_t take,
                                node_budget_t budget, vc_err_t *err);
/* Rows that a share of n keeps: nearest, at least 1, at most n. */
uint32_t node_keep_count(double keep, uint32_t n);

/* Sets bit (base + i) of kept for the `take` best of scores[0..n): higher first, then lower i; NaN last. keys: n words
 * of scratch. */
void node_select_top(const float *scores, uint32_t n, uint32_t take, uint64_t *kept, uint32_t base, uint64_t *keys);

#endif
