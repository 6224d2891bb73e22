/*
 * A part of the vocabulary for drafting: the output matrix's rows of some tokens, packed for the kernels. A session
 * that has one (node_kv_t.part) gets logits of these tokens only, with the bits that the whole matrix gives, in the
 * order in which they were added. The projection onto the vocabulary is a large part of a small model's step, and a
 * draft is only a draft. One thread at a time; not changed while a pass of its sessions runs.
 */
#ifndef NODE_VOCAB_PART_H
#define NODE_VOCAB_PART_H

#include "model/engine.h"

typedef struct node_vocab_part node_vocab_part_t;

/* Room for cap tokens; the engine outlives it. */
vc_status_t node_vocab_part_create(const node_engine_t *eng, uint32_t cap, node_vocab_part_t **part_p, vc_err_t *err);
void node_vocab_part_destroy(node_vocab_part_t *part);
/* Nothing happens where it is in already. False: there is no room, or no such token. */
bool node_vocab_part_add(node_vocab_part_t *part, uint32_t token);
bool node_vocab_part_has(const node_vocab_part_t *part, uint32_t token);
const uint32_t *node_vocab_part_tokens(const node_vocab_part_t *part, uint32_t *n_p);

#endif
