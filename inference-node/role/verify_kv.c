/* See verify_kv.h. */
#include "role/verify_kv.h"

#include "kv/slow.h"
#include "vc/config.h"
#include "vc/mem.h"

static uint64_t page_bytes(const node_model_info_t *info)
{
    return (uint64_t)info->n_layer * 2 * info->n_kv_head * info->head_dim * NODE_TILE * 2;
}

static uint64_t share_of(const node_verify_service_t *service) { return service->kv_ram_bytes / service->n_slots; }

vc_status_t node_verify_kv_reserve(node_verify_service_t *service, uint64_t tokens, node_verify_kv_t *kv, vc_err_t *err)
{
    uint64_t need = (tokens / NODE_TILE + 1) * page_bytes(node_engine_info(service->node->engine));
    if (service->kv_dir == NULL && need > service->kv_ram_bytes)
        return vc_err_set(err, VC_ERR_NOSPACE,
                          "full KV of this request needs %s, more than all of --kv-ram %s, and there is no --kv-dir",
                          vc_bytes_text(need).text, vc_bytes_text(service->kv_ram_bytes).text);
    kv->bytes = service->kv_dir != NULL ? VC_MIN(need, share_of(service)) : need;
    uint64_t used = atomic_fetch_add_explicit(&service->kv_bytes_used, kv->bytes, memory_order_relaxed) + kv->bytes;
    if (used > service->kv_ram_bytes)
        return vc_err_set(err, VC_ERR_BUSY, "full KV of this request needs %s, of --kv-ram %s too little is free",
                          vc_bytes_text(need).text, vc_bytes_text(service->kv_ram_bytes).text);
    return VC_OK;
}

vc_status_t node_verify_kv_attach(const node_verify_service_t *service, node_verifier_t *v, uint64_t tokens,
                                  uint32_t pass_rows, vc_err_t *err)
{
    node_kv_t *kv = node_verifier_kv(v);
    const node_slow_opts_t o = {.dir = service->kv_dir,
                                .ram_bytes = share_of(service),
                                .max_tokens = (uint32_t)tokens,
                                .pass_rows = pass_rows,
                                .share_option = "--streams",
                                .n_shares = service->n_slots};
    node_slow_t *slow;
    if (service->kv_dir == NULL || !node_slow_needed(&kv->dims, &o))
        return VC_OK;
    vc_status_t status = node_slow_create(&kv->dims, &o, &slow, err);
    if (status != VC_OK) { /* a share does not grow, but a disk may have room again */
        status = status == VC_ERR_RANGE ? VC_ERR_NOSPACE : VC_ERR_BUSY;
        if (err != NULL)
            err->status = status;
        return status;
    }
    status = node_kv_set_slow(kv, slow);
    if (status != VC_OK) {
        node_slow_destroy(slow);
        return vc_err_set(err, status, "the file for full KV does not fit the request");
    }
    return VC_OK;
}

vc_status_t node_verify_kv_page(node_verify_kv_t *kv, node_kv_t *full, uint32_t block, node_page_t **page_p,
                                vc_err_t *err)
{
    *page_p = node_kv_page_at(full, block);
    if (*page_p != NULL)
        return VC_OK;
    if (kv->loaded == NULL || kv->block != block) {
        node_page_put(kv->loaded);
        kv->loaded = NULL;
        vc_status_t status = node_slow_load_page(full->slow, block, &kv->loaded, err);
        if (status != VC_OK)
            return node_verify_kv_status(full, status);
        kv->block = block;
    }
    *page_p = kv->loaded;
    return VC_OK;
}

uint32_t node_verify_kv_spilled(const node_kv_t *full)
{
    return full->slow != NULL ? node_slow_n_spilled(full->slow) : 0;
}

vc_status_t node_verify_kv_status(const node_kv_t *full, vc_status_t status)
{
    if (status == VC_OK || node_slow_failed(full, NULL) == VC_OK)
        return status;
    return status == VC_ERR_CORRUPT ? status : VC_ERR_IO;
}

void node_verify_kv_release(node_verify_service_t *service, node_verify_kv_t *kv)
{
    node_page_put(kv->loaded);
    kv->loaded = NULL;
    atomic_fetch_sub_explicit(&service->kv_bytes_used, kv->bytes, memory_order_relaxed);
}
