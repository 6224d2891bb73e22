/* What cache.c (prompts) and cache_tip.c (prefixes known by their tip) share. */
#ifndef NODE_CACHE_INT_H
#define NODE_CACHE_INT_H

#include <stdatomic.h>

#include "cache.h"
#include "vc/clock.h"
#include "vericache/vericache.h"

struct node_cache {
    const node_model_info_t *model;
    vcache_client_t *client;
    uint8_t keyspace[VC_KEYSPACE_ENC_MAX];
    size_t keyspace_len;
    char full_text[VC_SPEC_TEXT_MAX];
    const vc_clock_t *clock;
    _Atomic bool given_up; /* relaxed: a record more or less does not matter, and nothing else hangs on it */
};

/* Pages out of full records, by block. */
typedef struct node_full_sink {
    node_cache_t *cache;
    node_page_t **pages; /* [n] by block */
    uint32_t n;
    vc_err_t err;
} node_full_sink_t;
/* A vcache_record_fn; arg: a node_full_sink_t. */
int node_cache_take_full(void *arg, uint32_t block, const void *record, size_t bytes);
/* fids[8]: full, then the specs. INVALID: too many. */
vc_status_t node_cache_name_columns(const node_cache_t *cache, const node_spec_t *specs, uint32_t n_specs,
                                    vcache_fidelity_t *fids, vc_err_t *err);
vc_status_t node_cache_copy_err(vc_err_t *err, const vcache_error_t *from, vcache_status_t status);

#endif
