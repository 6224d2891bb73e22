/*
 * From tokens to stored copies: fetch what there is, compute the rest, compress, store. Used by `register` and, at the
 * end of a request, by the verify node. Blocking; takes the engine's pass lock only while passes run.
 */
#ifndef NODE_ROLE_STORE_CHAIN_H
#define NODE_ROLE_STORE_CHAIN_H

#include "cache.h"
#include "node.h"

typedef struct node_chain_stored {
    node_cache_stored_t cache;
    uint32_t computed_tokens, fetched_blocks;
} node_chain_stored_t;

/* "kivi:bits=4;snapkv:keep=0.25" -> specs; an empty text gives none. */
vc_status_t node_chain_parse_specs(const char *text, node_spec_t *specs, uint32_t cap, uint32_t *n_p, vc_err_t *err);

/* Stores the whole blocks of tokens. Shows progress on stderr when that is a terminal. */
vc_status_t node_chain_compute_and_store(node_t *node, node_cache_t *cache, const uint32_t *tokens, uint32_t n_tokens,
                                         const node_spec_t *specs, uint32_t n_specs, node_chain_stored_t *stored_p,
                                         vc_err_t *err);

/* kv: full KV of at least the whole blocks of tokens; shared, not changed. */
vc_status_t node_chain_store(node_t *node, node_cache_t *cache, const node_kv_t *kv, const uint32_t *tokens,
                             uint32_t n_tokens, const node_spec_t *specs, uint32_t n_specs, node_store_what_t what,
                             node_cache_stored_t *stored_p, vc_err_t *err);

#endif
