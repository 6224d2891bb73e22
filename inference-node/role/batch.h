/*
 * `vericache-node batch`: many requests of a file through one engine, batched. Options are in batch.c, the loop in
 * batch_run.c.
 */
#ifndef NODE_ROLE_BATCH_H
#define NODE_ROLE_BATCH_H

#include <signal.h>
#include <stdio.h>

#include "model/engine.h"

typedef struct node_batch_cmd {
    const char *model, *requests, *compressor, *calibration;
    FILE *out;
    bool stats;
    bool raw, source;    /* of requests that do not say */
    uint64_t max_tokens; /* the same */
    uint32_t draft_length;
    uint64_t max_running, prompt_rows, threads, context;
    node_isa_t isa;
    bool lock_step;
    uint64_t kv_ram, hold; /* 0: all full KV in memory; 0: one request's */
    const char *kv_dir;    /* with kv_ram */
} node_batch_cmd_t;

/* *stop_flag != 0 ends it between two passes: CANCELLED, after the lines of what was under way. *n_failed_p: requests
 * that were wrong or failed; the others went on. */
vc_status_t node_batch_cmd_run(const node_batch_cmd_t *cmd, const volatile sig_atomic_t *stop_flag,
                               uint64_t *n_failed_p, vc_err_t *err);

#endif
