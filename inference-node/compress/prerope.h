/*
 * Keys before RoPE from a page and back, a tile of one head at a time, lanes are tokens. The one choice for every
 * method that stores keys before RoPE: the page's f16 keys turned back by their own angle in float, theta_i as the
 * model has it, divided by the model's factor on cos and sin. So a copy made later from stored full KV is byte-equal.
 * Channels beyond the rotated ones pass through. Per lane only: bitwise equal on every ISA.
 *
 * A node_prerope_t holds the tables of one block at a time; one thread.
 */
#ifndef NODE_PREROPE_H
#define NODE_PREROPE_H

#include "kernels/backend.h"
#include "kv/pages.h"
#include "model/engine.h"

typedef struct node_prerope node_prerope_t;

/* NULL: out of memory, or the CPU lacks the level. model is borrowed. */
node_prerope_t *node_prerope_create(const node_model_info_t *model);
node_prerope_t *node_prerope_create_level(const node_model_info_t *model, node_ops_level_t level);
node_ops_level_t node_prerope_level(const node_prerope_t *p); /* what it runs on: asking the CPU again is slow */
void node_prerope_destroy(node_prerope_t *p);                 /* NULL is fine */

/* What follows is about the tokens [block * NODE_TILE, + NODE_TILE). Free where the block is the one before. */
void node_prerope_set_block(node_prerope_t *p, uint32_t block);
/* k: page layout [head_dim][NODE_TILE] f16, after RoPE; pre: [head_dim][NODE_TILE]. */
void node_prerope_undo(const node_prerope_t *p, const uint16_t *k, float *pre);
/* The way back, rounded to f16 (saturating): k of a page. */
void node_prerope_apply(const node_prerope_t *p, const float *pre, uint16_t *k);

#endif
