/*
 * What methods that read the text again say to the model, as ids of its tokenizer: the two instructions, and the
 * template between a user's turn and the assistant's answer. Immutable once made; any thread.
 */
#ifndef NODE_REPLAY_IDS_H
#define NODE_REPLAY_IDS_H

#include "compress/codec.h"

typedef struct node_replay_ids {
    uint32_t *first, *next, *suffix;
    uint32_t n_first, n_next, n_suffix; /* n_suffix 0: the model has no chat template that is known */
} node_replay_ids_t;

vc_status_t node_replay_ids_init(node_replay_ids_t *ids, const node_tokenizer_t *tok, vc_err_t *err);
void node_replay_ids_fini(node_replay_ids_t *ids); /* zeroed ones too */
/* Everything else of the replay is zero. ids are borrowed. */
node_replay_t node_replay_of(const node_replay_ids_t *ids, node_engine_t *engine);

#endif
