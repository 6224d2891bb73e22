/* Passes over a text, and sessions that go on behind pages which others hold. No state. */
#include "compress/passes.h"

#include "vc/mem.h"

#define PASS_ROWS 256u

vc_status_t node_passes_run(const node_replay_t *replay, node_kv_t *kv, const uint32_t *tokens, uint32_t n,
                            const node_capture_t *capture, vc_err_t *err)
{
    vc_status_t st = VC_OK;
    for (uint32_t at = 0; st == VC_OK && at < n; at += PASS_ROWS) {
        if (replay->enter != NULL)
            replay->enter(replay->arg);
        st = node_prefill(replay->engine, kv, tokens + at, VC_MIN(PASS_ROWS, n - at), NULL, capture, err);
        if (replay->leave != NULL)
            replay->leave(replay->arg);
    }
    return st;
}

vc_status_t node_passes_share(const node_kv_t *kv, uint32_t n_blocks, node_kv_t *copy_p, vc_err_t *err)
{
    node_kv_t copy = {0};
    vc_status_t st = node_kv_init(&copy, &kv->dims, NULL);
    for (uint32_t b = 0; st == VC_OK && b < n_blocks; b++) {
        node_page_t *page = node_page_get(node_kv_page_at(kv, b));
        st = node_kv_append_page(&copy, page);
        if (st != VC_OK)
            node_page_put(page);
    }
    if (st != VC_OK) {
        node_kv_fini(&copy);
        return vc_err_set(err, st, "no memory for a session that shares %u pages", n_blocks);
    }
    *copy_p = copy;
    return VC_OK;
}
