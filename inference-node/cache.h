/*
 * The facade over libvericache that the roles use: full blocks into a session, a compressed copy into a body, new
 * blocks back to the server. A cache failure is never a failed request: every fetch says how far it came and why it
 * stopped, and the caller computes the rest. Blocking; one thread at a time per handle.
 */
#ifndef NODE_CACHE_H
#define NODE_CACHE_H

#include "compress/watch.h"
#include "model/engine.h"

typedef struct node_cache node_cache_t;

typedef struct node_cache_opts {
    const char *server;  /* HOST:PORT */
    const char *bearer;  /* or NULL */
    bool use_data_plane; /* UCX for full records where the server offers it */
    uint32_t connect_ms, stream_idle_ms;
} node_cache_opts_t;
void node_cache_opts_default(node_cache_opts_t *opts);

/* Does not need the server to be up: a call finds out. model must outlive the cache. */
vc_status_t node_cache_open(const node_cache_opts_t *opts, const node_model_info_t *model, node_cache_t **cache_p,
                            vc_err_t *err);
void node_cache_close(node_cache_t *cache);
/* From any thread, before closing: a fetch that runs ends at its next record. Every later fetch ends there too. */
void node_cache_give_up(node_cache_t *cache);

typedef struct node_cache_result {
    uint32_t blocks;       /* leading blocks that are usable now */
    uint32_t blocks_found; /* what the lookup promised */
    uint64_t bytes;        /* record bytes received */
    uint64_t full_bytes;   /* of those, full records (exact windows of a compressed copy) */
    uint32_t path;         /* vcache_path_t */
    uint32_t steps_down;
    uint64_t us;        /* lookup and transfer together */
    vc_status_t status; /* why it stopped short; OK when all that was found came */
    char note[512];     /* the reason in words; empty when there is none */
} node_cache_result_t;

/* Appends the leading full blocks of tokens to kv (empty, no body): at most (n_tokens - 1) / NODE_TILE, since the last
 * token must be computed for its logits. Always leaves kv valid with result->blocks pages. */
void node_cache_fetch_full(node_cache_t *cache, const uint32_t *tokens, uint32_t n_tokens, node_kv_t *kv,
                           node_cache_result_t *result);

/* The compressed copy with its exact windows as a body; NULL when nothing usable was found. */
void node_cache_fetch_body(node_cache_t *cache, const node_spec_t *spec, const uint32_t *tokens, uint32_t n_tokens,
                           node_body_t **body_p, node_cache_result_t *result);

/* ---- what is stored: for making further copies of it ---- */

typedef struct node_cache_prefix {
    uint8_t tip[32]; /* hash of the last block */
    uint32_t n_blocks;
    uint64_t hits;
} node_cache_prefix_t;
/* Stored prefixes of this model, most hits first, at most cap (and 1000). */
vc_status_t node_cache_prefixes(node_cache_t *cache, uint32_t cap, node_cache_prefix_t *out, uint32_t *n_p,
                                vc_err_t *err);
/* As node_cache_probe, of a prefix that is known by its tip; counts[0] is 0 unless its full copy is there whole. */
vc_status_t node_cache_probe_tip(node_cache_t *cache, const uint8_t *tip, const node_spec_t *specs, uint32_t n_specs,
                                 uint32_t *counts, vc_err_t *err);
/* Full KV of the whole prefix into kv (empty, no body) and its tokens, freed with vc_free: whole blocks, as many as kv
 * has pages. NOT_FOUND: the full copy is not (or no longer) there. kv stays valid on failure. */
vc_status_t node_cache_fetch_tip(node_cache_t *cache, const uint8_t *tip, node_kv_t *kv, uint32_t **tokens_p,
                                 vc_err_t *err);

typedef struct node_cache_stored {
    uint32_t n_stored, n_present;
    uint64_t bytes;
    uint32_t path;
} node_cache_stored_t;

/* How many leading blocks the server holds of (full, specs[0..n)): counts[0] is full. One round trip. */
vc_status_t node_cache_probe(node_cache_t *cache, const node_spec_t *specs, uint32_t n_specs, const uint32_t *tokens,
                             uint32_t n_tokens, uint32_t *counts, vc_err_t *err);

typedef enum {
    NODE_STORE_ALL = 0,
    NODE_STORE_BESIDE_FULL /* compressed copies of what is there in full; NOT_FOUND where it is not, and nothing stored
                            */
} node_store_what_t;

/*
 * Stores the full and compressed copies of blocks [0, n_blocks) that the server lacks; counts: the answer of a probe of
 * the same specs. in: full KV of the chain (first_block and watched are set here). watches: complete, begun with these
 * specs and the counts of their copies; NULL where no method watches. Compression runs once per spec, when the first of
 * its records is asked for.
 */
vc_status_t node_cache_store(node_cache_t *cache, const node_compress_in_t *in, const node_spec_t *specs,
                             uint32_t n_specs, const uint32_t *counts, node_watches_t *watches, node_store_what_t what,
                             node_cache_stored_t *stored_p, vc_err_t *err);

#endif
