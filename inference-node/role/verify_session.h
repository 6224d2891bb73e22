/*
 * The verify node's side of one Verify stream: fetch the full KV from the cache server, compute the rest, then verify
 * what comes, decode on where nothing comes, and at the end store what is new. Runs on the stream's slot thread;
 * streams share the engine through the node's pass lock, pass by pass.
 */
#ifndef NODE_VERIFY_SESSION_H
#define NODE_VERIFY_SESSION_H

#include <stdatomic.h>

#include "cache.h"
#include "node.h"
#include "vc/clock.h"
#include "vc/rpc.h"

typedef struct node_verify_service {
    node_t *node;
    const node_cache_opts_t *cache_opts; /* NULL: no cache server, everything is computed */
    bool store_at_end;                   /* store new blocks when a request ends */
    uint64_t kv_ram_bytes;               /* full KV of all streams together */
    const char *kv_dir;                  /* files for what is beyond a stream's share of it; NULL: none */
    uint32_t n_slots;                    /* streams at a time */
    uint32_t max_draft;                  /* drafts per pass */
    const vc_clock_t *clock;
    /* Relaxed: a budget and counters; nothing is published through them. */
    _Atomic uint64_t kv_bytes_used;
    _Atomic uint64_t n_running; /* streams between their first and their last round */
    _Atomic uint64_t n_streams, n_committed, n_drafted, n_accepted;
} node_verify_service_t;

/* Handler of the Verify method; arg is a node_verify_service_t. */
vc_status_t node_verify_stream(void *arg, vc_rpc_call_t *call, vc_err_t *err);

#endif
