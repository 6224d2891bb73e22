/*
 * What every role starts with: tokenizer and engine of a model file, which is read at open and closed again: what
 * happens to it later is of no concern. Immutable after open, but for the engine's pass lock (one forward pass runs at
 * a time, so threads that share an engine bracket their passes with node_pass_begin/end) and for the calibration blobs,
 * loaded when first asked for.
 */
#ifndef NODE_NODE_H
#define NODE_NODE_H

#include <pthread.h>

#include "compress/calib.h"
#include "compress/replay_ids.h"
#include "model/engine.h"
#include "speculate/costs.h"

typedef struct node {
    node_tokenizer_t *tok;
    node_engine_t *engine;
    pthread_mutex_t pass_lock;
    node_replay_ids_t replay_ids; /* with an engine only */
    char *model_path, *calib_dir; /* calib_dir NULL: blobs lie beside the model file */
    pthread_mutex_t calib_lock;   /* guards the two below; never held together with pass_lock */
    node_calib_t **calibs;        /* [codec], NULL until it was needed */
    uint32_t n_calibs;
    bool costs_tried;
    node_costs_t costs;            /* node_step_costs */
    void (*pass_ended)(void *arg); /* node_pass_watch */
    void *pass_arg;
} node_t;

#define NODE_THREADS_UNASKED 16u /* of the engine, where nobody names a number */

typedef struct node_opts {
    const char *model_path;
    /* n_threads 0, the default: one for each processor that the process may run on, NODE_THREADS_UNASKED at most. More
     * than there are processors are left out, with a warning. */
    node_engine_opts_t engine;
    bool need_engine;      /* false: tokenizer only */
    const char *calib_dir; /* of calibration blobs; NULL or empty: the model file's own */
} node_opts_t;
void node_opts_default(node_opts_t *opts);

vc_status_t node_open(const node_opts_t *opts, node_t **node_p, vc_err_t *err);
void node_close(node_t *node);
/* Tokens of a context: the model's, or less where less was asked for (not 0). */
uint32_t node_context(const node_t *node, uint64_t asked);
/* Ids that end a generation, ascending; at most cap. */
uint32_t node_end_tokens(const node_tokenizer_t *tok, uint32_t *ids, uint32_t cap);
/*
 * Binds a spec to the calibration blob of its method, which the node loads once and keeps; specs must not outlive the
 * node. Nothing happens where the spec needs none. INVALID names the missing file and the command that makes it;
 * CORRUPT, MISMATCH as node_calib_load. Any thread; needs the engine.
 */
vc_status_t node_bind_spec(node_t *node, node_spec_t *spec, vc_err_t *err);
/* The file that holds the blob of a method for this node. */
vc_status_t node_calib_file(const node_t *node, const char *method, char *out, size_t cap, vc_err_t *err);
/* A replay on this node's engine, its pass lock taken around every pass; without progress. */
node_replay_t node_replay(node_t *node);
/* Step costs of this engine, measured at the first call, with a pass at a time: before the first request that drafts,
 * and for one thread at a time. Where they cannot be measured that is logged, and they are not known. */
node_costs_t *node_step_costs(node_t *node);
/* One forward pass at a time. */
void node_pass_begin(node_t *node);
void node_pass_end(node_t *node);
/* Before the first pass: ended is called after every pass, when the engine is free again, on the pass's thread. */
void node_pass_watch(node_t *node, void (*ended)(void *arg), void *arg);

#endif
