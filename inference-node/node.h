/*
 * What every role starts with: the model file, its tokenizer and the engine. Immutable after open, but for the engine's
 * pass lock: one forward pass runs at a time, so threads that share an engine bracket their passes with
 * node_pass_begin/end.
 */
#ifndef NODE_NODE_H
#define NODE_NODE_H

#include <pthread.h>

#include "model/engine.h"

typedef struct node {
    node_gguf_t *gguf;
    node_tokenizer_t *tok;
    node_engine_t *engine;
    pthread_mutex_t pass_lock;
} node_t;

typedef struct node_opts {
    const char *model_path;
    node_engine_opts_t engine;
    bool need_engine; /* false: gguf and tokenizer only */
} node_opts_t;
void node_opts_default(node_opts_t *opts);

vc_status_t node_open(const node_opts_t *opts, node_t **node_p, vc_err_t *err);
void node_close(node_t *node);
/* Ids that end a generation, ascending; at most cap. */
uint32_t node_end_tokens(const node_tokenizer_t *tok, uint32_t *ids, uint32_t cap);
/* One forward pass at a time. */
void node_pass_begin(node_t *node);
void node_pass_end(node_t *node);

#endif
