/* Storing a chain of blocks. */
#include "role/store_chain.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "compress/qwindow.h"
#include "vc/log.h"
#include "vc/mem.h"

#define PASS_TOKENS 256u /* the engine is free for others between passes of this size */

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
            (*n_p)++;
        }
        text += len + (text[len] == ';');
    }
    return VC_OK;
}

/* One window serves every spec: the widest that any asks for; each takes its own last rows from it. */
static vc_status_t make_window(node_t *node, const node_kv_t *kv, const uint32_t *tokens, uint32_t n, uint32_t window,
                               node_compress_in_t *in, float **q_p, vc_err_t *err)
{
    *q_p = NULL;
    if (window == 0)
        return VC_OK;
    node_pass_begin(node);
    vc_status_t status = node_q_window(node->engine, kv, tokens, n, window, q_p, &in->q_rows, err);
    node_pass_end(node);
    in->q_window = *q_p;
    return status;
}

vc_status_t node_chain_store(node_t *node, node_cache_t *cache, const node_kv_t *kv, const uint32_t *tokens,
                             uint32_t n_tokens, const node_spec_t *specs, uint32_t n_specs,
                             node_cache_stored_t *stored_p, vc_err_t *err)
{
    uint32_t n_blocks = n_tokens / NODE_TILE, window = 0, counts[8] = {0};
    *stored_p = (node_cache_stored_t){0};
    vc_status_t status = node_cache_probe(cache, specs, n_specs, tokens, n_blocks * NODE_TILE, counts, err);
    for (uint32_t i = 0; status == VC_OK && i < n_specs; i++)
        if (counts[i + 1] < n_blocks && (specs[i].ops->needs(&specs[i]) & NODE_NEED_Q_WINDOW))
            window = VC_MAX(window, specs[i].window);
    node_compress_in_t in = {.model = node_engine_info(node->engine), .kv = kv, .tokens = tokens, .n_blocks = n_blocks};
    float *q = NULL;
    if (status == VC_OK)
        status = make_window(node, kv, tokens, n_blocks * NODE_TILE, window, &in, &q, err);
    if (status == VC_OK)
        status = node_cache_store(cache, &in, specs, n_specs, counts, stored_p, err);
    vc_free(q);
    return status;
}

static vc_status_t compute_rest(node_t *node, node_kv_t *kv, const uint32_t *tokens, uint32_t n, vc_err_t *err)
{
    bool show = isatty(STDERR_FILENO) != 0;
    vc_status_t status = VC_OK;
    while (status == VC_OK && kv->n_tokens < n) {
        uint32_t m = VC_MIN(PASS_TOKENS, n - kv->n_tokens);
        node_pass_begin(node);
        status = node_prefill(node->engine, kv, tokens + kv->n_tokens, m, NULL, NULL, err);
        node_pass_end(node);
        if (show)
            fprintf(stderr, "\rprefill %u / %u tokens", kv->n_tokens, n);
    }
    if (show)
        fputc('\n', stderr);
    return status;
}

vc_status_t node_chain_compute_and_store(node_t *node, node_cache_t *cache, const uint32_t *tokens, uint32_t n_tokens,
                                         const node_spec_t *specs, uint32_t n_specs, node_chain_stored_t *stored_p,
                                         vc_err_t *err)
{
    *stored_p = (node_chain_stored_t){0};
    uint32_t n = n_tokens / NODE_TILE * NODE_TILE, counts[8] = {0};
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
    node_cache_result_t got;
    node_cache_fetch_full(cache, tokens, n + 1, &kv, &got);
    if (got.status != VC_OK)
        vc_log_warn("register", "stored blocks not fetched, computing them reason=\"%s\"", got.note);
    stored_p->fetched_blocks = got.blocks;
    stored_p->computed_tokens = n - kv.n_tokens;
    status = compute_rest(node, &kv, tokens, n, err);
    if (status == VC_OK)
        status = node_chain_store(node, cache, &kv, tokens, n, specs, n_specs, &stored_p->cache, err);
    node_kv_fini(&kv);
    return status;
}
