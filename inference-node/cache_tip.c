/*
 * Prefixes as the server lists them: known by their last block's hash, their tokens in the records. For making further
 * copies of what is stored.
 */
#include <string.h>

#include "cache_int.h"
#include "vc/kvrec.h"
#include "vc/mem.h"

vc_status_t node_cache_prefixes(node_cache_t *cache, uint32_t cap, node_cache_prefix_t *out, uint32_t *n_p,
                                vc_err_t *err)
{
    enum { LIMIT = 1000 }; /* that a server lists */
    vc_digest_t keyspace;
    vc_status_t status = vc_keyspace_id(&cache->model->keyspace, &keyspace, err);
    if (status != VC_OK)
        return status;
    vcache_prefix_t *all = vc_calloc(LIMIT, sizeof(*all));
    uint32_t n_all = 0;
    vcache_error_t cerr = {0};
    if (all == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the list of prefixes");
    vcache_status_t cs = vcache_prefixes(cache->client, 0, LIMIT, all, &n_all, &cerr);
    *n_p = 0;
    for (uint32_t i = 0; i < n_all && cs == 0 && *n_p < cap; i++) {
        if (memcmp(all[i].keyspace, &keyspace, sizeof(keyspace)) != 0)
            continue;
        node_cache_prefix_t *p = &out[(*n_p)++];
        memcpy(p->tip, all[i].tip, sizeof(p->tip));
        p->n_blocks = all[i].n_blocks;
        p->hits = all[i].hits;
    }
    vc_free(all);
    return cs == 0 ? VC_OK : node_cache_copy_err(err, &cerr, cs);
}

vc_status_t node_cache_probe_tip(node_cache_t *cache, const uint8_t *tip, const node_spec_t *specs, uint32_t n_specs,
                                 uint32_t *counts, vc_err_t *err)
{
    vcache_fidelity_t fids[8];
    vcache_lookup_info_t info;
    vcache_error_t cerr = {0};
    vc_status_t status = node_cache_name_columns(cache, specs, n_specs, fids, err);
    if (status != VC_OK)
        return status;
    vcache_status_t cs = vcache_lookup_tip(cache->client, cache->keyspace, cache->keyspace_len, tip, fids, n_specs + 1,
                                           &info, NULL, &cerr);
    if (cs != 0)
        return node_cache_copy_err(err, &cerr, cs);
    memcpy(counts, info.n_blocks, (n_specs + 1) * sizeof(counts[0]));
    return VC_OK;
}

typedef struct chain_sink {
    node_full_sink_t full;
    uint32_t *tokens; /* [n][NODE_TILE] */
} chain_sink_t;

/* The library has checked the record against its hash, which the tokens are part of. */
static int take_chain(void *arg, uint32_t block, const void *record, size_t bytes)
{
    chain_sink_t *sink = arg;
    vc_kvrec_head_t head;
    if (block >= sink->full.n)
        return 0;
    if (vc_kvrec_decode(record, bytes, &head, &sink->full.err) != VC_OK)
        return 1;
    if (head.shape.block_tokens != NODE_TILE || head.block_index != block) {
        vc_err_set(&sink->full.err, VC_ERR_CORRUPT, "the record of block %u says that it is block %u", block,
                   head.block_index);
        return 1;
    }
    for (uint32_t i = 0; i < NODE_TILE; i++)
        sink->tokens[(size_t)block * NODE_TILE + i] = vc_kvrec_token(&head, i);
    return node_cache_take_full(&sink->full, block, record, bytes);
}

/* What came is the chain that was asked for: its tokens give the tip again. */
static vc_status_t take_over(node_cache_t *cache, chain_sink_t *sink, const uint8_t *tip, node_kv_t *kv, vc_err_t *err)
{
    const uint32_t n = sink->full.n;
    vc_digest_t keyspace, *hashes = vc_calloc(n, sizeof(*hashes));
    if (hashes == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the hashes of a prefix");
    vc_status_t status = vc_keyspace_id(&cache->model->keyspace, &keyspace, err);
    if (status == VC_OK) {
        vc_block_chain(&keyspace, sink->tokens, n * NODE_TILE, NODE_TILE, hashes);
        if (memcmp(&hashes[n - 1], tip, sizeof(hashes[0])) != 0)
            status = vc_err_set(err, VC_ERR_CORRUPT, "the blocks that came are not the prefix that was asked for");
    }
    vc_free(hashes);
    for (uint32_t b = 0; b < n && status == VC_OK; b++) {
        if (sink->full.pages[b] == NULL)
            status = vc_err_set(err, VC_ERR_CORRUPT, "block %u of the prefix did not come", b);
        else if (node_kv_append_page(kv, sink->full.pages[b]) != VC_OK)
            status = vc_err_set(err, VC_ERR_NOMEM, "no memory for fetched pages");
        else
            sink->full.pages[b] = NULL;
    }
    return status;
}

static vc_status_t fetch_chain(node_cache_t *cache, vcache_lease_t *lease, uint32_t n, const uint8_t *tip,
                               node_kv_t *kv, uint32_t **tokens_p, vc_err_t *err)
{
    chain_sink_t sink = {.full = {.cache = cache, .n = n}};
    sink.full.pages = vc_calloc(n, sizeof(*sink.full.pages));
    sink.tokens = vc_calloc((size_t)n * NODE_TILE, sizeof(*sink.tokens));
    vc_status_t status = VC_OK;
    if (sink.full.pages == NULL || sink.tokens == NULL)
        status = vc_err_set(err, VC_ERR_NOMEM, "no memory for fetched pages");
    if (status == VC_OK) {
        vcache_fetch_stats_t stats = {0};
        vcache_error_t cerr = {0};
        vcache_status_t cs = vcache_fetch(lease, 0, 0, n, take_chain, &sink, &stats, &cerr);
        if (cs != 0)
            status = sink.full.err.msg[0] != '\0' ? vc_err_set(err, sink.full.err.status, "%s", sink.full.err.msg)
                                                  : node_cache_copy_err(err, &cerr, cs);
    }
    if (status == VC_OK)
        status = take_over(cache, &sink, tip, kv, err);
    for (uint32_t b = 0; b < n && sink.full.pages != NULL; b++)
        node_page_put(sink.full.pages[b]);
    vc_free(sink.full.pages);
    if (status == VC_OK)
        *tokens_p = sink.tokens;
    else
        vc_free(sink.tokens);
    return status;
}

vc_status_t node_cache_fetch_tip(node_cache_t *cache, const uint8_t *tip, node_kv_t *kv, uint32_t **tokens_p,
                                 vc_err_t *err)
{
    vcache_fidelity_t fid = {.compressed = 0, .spec = cache->full_text};
    vcache_lookup_info_t info;
    vcache_lease_t *lease = NULL;
    vcache_error_t cerr = {0};
    vcache_status_t cs =
        vcache_lookup_tip(cache->client, cache->keyspace, cache->keyspace_len, tip, &fid, 1, &info, &lease, &cerr);
    if (cs != 0)
        return node_cache_copy_err(err, &cerr, cs);
    vc_status_t status = info.n_blocks[0] == 0
                             ? vc_err_set(err, VC_ERR_NOT_FOUND, "the full copy of the prefix is not there")
                             : fetch_chain(cache, lease, info.n_blocks[0], tip, kv, tokens_p, err);
    vcache_lease_release(lease);
    return status;
}
