/* The slow tier of a run: with buffers of its own or in a pool, as little memory as works or more, transfers held back.
 */
#include "identity_parts.h"

enum { ENGINE_ROWS = 256, MAX_DRAFT = 64 };

#define TRY(call)                     \
    do {                              \
        vc_status_t try_st_ = (call); \
        if (try_st_ != VC_OK)         \
            return try_st_;           \
    } while (0)

/* A part of the way from the least to all. */
static uint64_t between(uint64_t low, uint64_t high, double part)
{
    return low + (uint64_t)(part * (double)(high > low ? high - low : 0));
}

static vc_status_t make_pool(const identity_run_t *v, const node_kv_dims_t *d, node_slow_opts_t *o,
                             node_slow_pool_t **pool_p, vc_err_t *err)
{
    node_slow_pool_opts_t p = {.dir = bench_tmpdir(),
                               .spilled_tokens = node_slow_spilled_tokens(d, o),
                               .n_streams = 1,
                               .delay_seed = v->delay_seed};
    uint64_t least = node_slow_pool_least(d, &p);
    p.hold_bytes = between(least, least * d->n_layer / 2, v->hold_part);
    TRY(node_slow_pool_create(d, &p, pool_p, err));
    o->pool = *pool_p;
    return VC_OK;
}

vc_status_t identity_add_tier(const identity_run_t *v, const identity_request_t *q, node_kv_t *kv,
                              node_slow_pool_t **pool_p, vc_err_t *err)
{
    node_slow_opts_t o = {.dir = bench_tmpdir(),
                          .max_tokens = q->n_prompt + q->max_tokens + MAX_DRAFT,
                          .pass_rows = VC_MAX(v->cut && !v->n_resume ? v->cut : ENGINE_ROWS, MAX_DRAFT + 1u),
                          .io = v->slow_threads ? NODE_SLOW_IO_THREADS : NODE_SLOW_IO_AUTO,
                          .delay_seed = v->delay_seed};
    const node_kv_dims_t *d = &kv->dims;
    uint64_t part = (uint64_t)d->n_kv_head * 2 * NODE_TILE * d->head_dim * sizeof(uint16_t), layers = d->n_layer;
    uint64_t n = o.max_tokens / NODE_TILE + 1, least = (o.pass_rows + NODE_TILE - 1) / NODE_TILE + 3;
    uint64_t buffers = v->tier == IDENTITY_POOL ? 0 : 2 * (n - VC_MIN(n, least));
    node_slow_t *slow;
    *pool_p = NULL;
    if (v->tier == IDENTITY_IN_RAM || n <= least)
        return VC_OK;
    o.ram_bytes = part * between(least * layers + buffers, n * layers, v->slow_part);
    if (!node_slow_needed(d, &o))
        return VC_OK;
    if (v->tier == IDENTITY_POOL)
        TRY(make_pool(v, d, &o, pool_p, err));
    TRY(node_slow_create(d, &o, &slow, err));
    vc_status_t st = node_kv_set_slow(kv, slow);
    if (st != VC_OK)
        node_slow_destroy(slow);
    return st;
}

vc_status_t identity_poke_tier(identity_rng_t *r, node_kv_t *kv)
{
    if (kv->slow == NULL)
        return VC_OK;
    uint32_t what = identity_below(r, 5);
    if (what < 3)
        TRY(node_slow_prefetch(kv, (uint64_t)(identity_unit(r) * 1.2 * (double)node_slow_pass_bytes(kv))));
    if (what == 1)
        (void)node_slow_arrived(kv);
    if (what == 2)
        node_slow_drop(kv);
    return VC_OK;
}
