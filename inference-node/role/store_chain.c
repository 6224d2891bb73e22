/* Storing a chain of blocks. */
#include "role/store_chain.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "compress/watch.h"
#include "vc/log.h"
#include "vc/mem.h"

#define PASS_TOKENS 256u /* the engine is free for others between passes of this size */

enum { N_COUNTS = 8 }; /* of a probe: full records and up to seven compressors */

vc_status_t node_chain_parse_specs(const char *text, node_spec_t *specs, uint32_t cap, uint32_t *n_p, vc_err_t *err)
{
    *n_p = 0;
    while (text != NULL && *text != '\0') {
        size_t len = strcspn(text, ";");
        char one[VC_SPEC_TEXT_MAX];
        if (len >= sizeof(one))
            return vc_err_set(err, VC_ERR_INVALID, "compressor spec is longer than %zu characters", sizeof(one) - 1);
        if (*n_p == cap)
            return vc_err_set(err, VC_ERR_INVALID, "at most %u compressors at once", cap);
        memcpy(one, text, len);
        one[len] = '\0';
        if (len > 0) {
            vc_status_t status = node_spec_parse(one, &specs[*n_p], err);
            if (status != VC_OK)
                return status;
            for (uint32_t i = 0; i < *n_p; i++)
                if (memcmp(&specs[i].id, &specs[*n_p].id, sizeof(specs[i].id)) == 0)
                    return vc_err_set(err, VC_ERR_INVALID, "compressor %s is given twice", specs[i].text);
            (*n_p)++;
        }
        text += len + (text[len] == ';');
    }
    return VC_OK;
}

static void pass_begin(void *node) { node_pass_begin(node); }
static void pass_end(void *node) { node_pass_end(node); }

/* The node's replay, which says on a terminal how far it is. */
static void show_replay(void *node, uint32_t done, uint32_t total)
{
    (void)node;
    fprintf(stderr, "\rreplay %u / %u tokens%s", done, total, done == total ? "\n" : "");
}

static node_replay_t replay_of(node_t *node)
{
    node_replay_t replay = node_replay(node);
    if (isatty(STDERR_FILENO))
        replay.progress = show_replay;
    return replay;
}

/* counts: of a probe just made. watches: begun with these counts, or NULL: the passes are run here. */
static vc_status_t store_counted(node_t *node, node_cache_t *cache, const node_compress_in_t *chain,
                                 const node_spec_t *specs, uint32_t n_specs, const uint32_t *counts,
                                 node_watches_t *watches, node_store_what_t what, node_cache_stored_t *stored_p,
                                 vc_err_t *err)
{
    const node_replay_t replay = replay_of(node);
    node_compress_in_t in = *chain;
    node_watches_t *own = NULL;
    vc_status_t status = VC_OK;
    in.replay = &replay;
    if (watches == NULL)
        status = node_watches_begin(specs, n_specs, in.model, counts + 1, in.n_blocks, &own, err);
    watches = watches != NULL ? watches : own;
    if (status == VC_OK)
        status = node_watches_complete(watches, node->engine, in.kv, in.tokens, pass_begin, pass_end, node, err);
    if (status == VC_OK)
        status = node_cache_store(cache, &in, specs, n_specs, counts, watches, what, stored_p, err);
    node_watches_free(own);
    return status;
}

vc_status_t node_chain_store(node_t *node, node_cache_t *cache, const node_kv_t *kv, const uint32_t *tokens,
                             uint32_t n_tokens, const node_spec_t *specs, uint32_t n_specs, node_store_what_t what,
                             node_cache_stored_t *stored_p, vc_err_t *err)
{
    uint32_t counts[N_COUNTS] = {0};
    *stored_p = (node_cache_stored_t){0};
    const node_compress_in_t in = {
        .model = node_engine_info(node->engine), .kv = kv, .tokens = tokens, .n_blocks = n_tokens / NODE_TILE};
    vc_status_t status = node_cache_probe(cache, specs, n_specs, tokens, in.n_blocks * NODE_TILE, counts, err);
    if (status == VC_OK)
        status = store_counted(node, cache, &in, specs, n_specs, counts, NULL, what, stored_p, err);
    return status;
}

static vc_status_t compute_rest(node_t *node, node_kv_t *kv, const uint32_t *tokens, uint32_t n,
                                const node_capture_t *capture, vc_err_t *err)
{
    bool show = isatty(STDERR_FILENO) != 0;
    vc_status_t status = VC_OK;
    while (status == VC_OK && kv->n_tokens < n) {
        uint32_t m = VC_MIN(PASS_TOKENS, n - kv->n_tokens);
        node_pass_begin(node);
        status = node_prefill(node->engine, kv, tokens + kv->n_tokens, m, NULL, capture, err);
        node_pass_end(node);
        if (show)
            fprintf(stderr, "\rprefill %u / %u tokens", kv->n_tokens, n);
    }
    if (show)
        fputc('\n', stderr);
    return status;
}

/* Fetches, computes and stores the whole blocks that `in` covers; its kv is empty. counts: of a probe just made. */
static vc_status_t compute_and_store(node_t *node, node_cache_t *cache, const node_compress_in_t *in, node_kv_t *kv,
                                     const node_spec_t *specs, uint32_t n_specs, const uint32_t *counts,
                                     node_chain_stored_t *stored_p, vc_err_t *err)
{
    const uint32_t n = in->n_blocks * NODE_TILE;
    uint32_t now[N_COUNTS] = {0};
    node_watches_t *watches = NULL;
    vc_status_t status = node_watches_begin(specs, n_specs, in->model, counts + 1, in->n_blocks, &watches, err);
    if (status != VC_OK)
        return status;
    node_cache_result_t got;
    node_cache_fetch_full(cache, in->tokens, n + 1, kv, &got);
    if (got.status != VC_OK)
        vc_log_warn("register", "stored blocks not fetched, computing them reason=\"%s\"", got.note);
    stored_p->fetched_blocks = got.blocks;
    stored_p->computed_tokens = n - kv->n_tokens;
    status = node_watches_catch_up(watches, node->engine, kv, in->tokens, pass_begin, pass_end, node, err);
    if (status == VC_OK)
        status = compute_rest(node, kv, in->tokens, n, node_watches_capture(watches), err);
    if (status == VC_OK) /* it took a while: others may have stored, the server may have evicted */
        status = node_cache_probe(cache, specs, n_specs, in->tokens, n, now, err);
    if (status == VC_OK) {
        bool same = memcmp(counts + 1, now + 1, n_specs * sizeof(*now)) == 0;
        status = store_counted(node, cache, in, specs, n_specs, now, same ? watches : NULL, NODE_STORE_ALL,
                               &stored_p->cache, err);
    }
    node_watches_free(watches);
    return status;
}

vc_status_t node_chain_compute_and_store(node_t *node, node_cache_t *cache, const uint32_t *tokens, uint32_t n_tokens,
                                         const node_spec_t *specs, uint32_t n_specs, node_chain_stored_t *stored_p,
                                         vc_err_t *err)
{
    *stored_p = (node_chain_stored_t){0};
    uint32_t n = n_tokens / NODE_TILE * NODE_TILE, counts[N_COUNTS] = {0};
    vc_status_t status = node_cache_probe(cache, specs, n_specs, tokens, n, counts, err);
    if (status != VC_OK)
        return status;
    uint32_t least = counts[0];
    for (uint32_t i = 0; i < n_specs; i++)
        least = VC_MIN(least, counts[i + 1]);
    if (least == n / NODE_TILE) {
        stored_p->cache.n_present = least * (n_specs + 1);
        return VC_OK;
    }
    node_kv_dims_t dims;
    node_engine_kv_dims(node->engine, &dims);
    node_kv_t kv;
    status = node_kv_init(&kv, &dims, NULL);
    if (status != VC_OK)
        return vc_err_set(err, status, "no memory for the KV of %u tokens", n);
    const node_compress_in_t in = {
        .model = node_engine_info(node->engine), .kv = &kv, .tokens = tokens, .n_blocks = n / NODE_TILE};
    status = compute_and_store(node, cache, &in, &kv, specs, n_specs, counts, stored_p, err);
    node_kv_fini(&kv);
    return status;
}
