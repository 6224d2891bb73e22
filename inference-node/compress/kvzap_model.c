/* The surrogate of a blob: a checked view of its payload, predictions, and the share of rows that a threshold keeps. */
#include <math.h>

#include "compress/kvzap_int.h"
#include "vc/bytes.h"
#include "vc/mem.h"

#define HEAD_BYTES 16u

const node_kvzap_ops_t *node_kvzap_ops(node_ops_level_t level)
{
    static const node_kvzap_ops_t *const tables[] = {&node_kvzap_scalar, &node_kvzap_avx2, &node_kvzap_avx512};
    return node_ops_get(level) != NULL ? tables[level] : NULL;
}

const node_kvzap_ops_t *node_kvzap_ops_best(void) { return node_kvzap_ops(node_ops_best_level()); }

/* Floats of one layer; false when no size_t holds them. */
static bool layer_floats(node_kvzap_kind_t kind, uint32_t n_kv_head, uint32_t d_model, uint32_t hidden, size_t *n_p)
{
    if (kind == NODE_KVZAP_RIDGE)
        return vc_size_mul(n_kv_head, (size_t)d_model + 1, n_p);
    size_t first, second;
    return vc_size_mul(hidden, (size_t)d_model + 1, &first) && vc_size_mul(n_kv_head, (size_t)hidden + 1, &second) &&
           vc_size_add(first, second, n_p);
}

size_t node_kvzap_payload_bytes(node_kvzap_kind_t kind, uint32_t n_layer, uint32_t n_kv_head, uint32_t d_model,
                                uint32_t hidden)
{
    size_t n;
    if (!layer_floats(kind, n_kv_head, d_model, hidden, &n) || !vc_size_mul(n, n_layer, &n) ||
        !vc_size_add(n, NODE_KVZAP_QUANTILES, &n) || !vc_size_mul(n, sizeof(float), &n) ||
        !vc_size_add(n, HEAD_BYTES, &n))
        return 0;
    return n;
}

static vc_status_t check_numbers(const node_kvzap_model_t *m, vc_err_t *err)
{
    const size_t n = m->layer_floats * m->n_layer;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(m->layers[i]))
            return vc_err_set(err, VC_ERR_CORRUPT, "kvzap surrogate: a weight of layer %zu is not finite",
                              i / m->layer_floats);
    for (uint32_t i = 0; i < NODE_KVZAP_QUANTILES; i++)
        if (!isfinite(m->quantiles[i]) || (i > 0 && m->quantiles[i] < m->quantiles[i - 1]))
            return vc_err_set(err, VC_ERR_CORRUPT, "kvzap surrogate: its quantiles do not ascend at %u", i);
    return VC_OK;
}

vc_status_t node_kvzap_model_open(const node_model_info_t *info, const uint8_t *payload, size_t bytes,
                                  node_kvzap_model_t *model_p, vc_err_t *err)
{
    vc_reader_t r = vc_reader(payload, bytes);
    uint32_t kind = vc_read_u32(&r), hidden = vc_read_u32(&r), quantiles = vc_read_u32(&r), zero = vc_read_u32(&r);
    if (bytes < HEAD_BYTES || (kind != NODE_KVZAP_RIDGE && kind != NODE_KVZAP_MLP) || zero != 0)
        return vc_err_set(err, VC_ERR_CORRUPT, "kvzap surrogate: %zu bytes that start like none", bytes);
    if (kind == NODE_KVZAP_RIDGE ? hidden != 0 : hidden == 0 || hidden > info->d_model)
        return vc_err_set(err, VC_ERR_CORRUPT, "kvzap surrogate: %u hidden units do not fit a model of width %u",
                          hidden, info->d_model);
    size_t want =
        node_kvzap_payload_bytes((node_kvzap_kind_t)kind, info->n_layer, info->n_kv_head, info->d_model, hidden);
    if (quantiles != NODE_KVZAP_QUANTILES || want == 0 || bytes != want)
        return vc_err_set(err, VC_ERR_CORRUPT,
                          "kvzap surrogate: %zu bytes and %u quantiles, this model needs %zu and %u", bytes, quantiles,
                          want, NODE_KVZAP_QUANTILES);
    node_kvzap_model_t m = {.kind = (node_kvzap_kind_t)kind,
                            .n_layer = info->n_layer,
                            .n_kv_head = info->n_kv_head,
                            .d_model = info->d_model,
                            .hidden = hidden,
                            .layers = (const float *)(const void *)(payload + HEAD_BYTES)};
    layer_floats(m.kind, m.n_kv_head, m.d_model, m.hidden, &m.layer_floats); /* fits: the whole payload does */
    m.quantiles = m.layers + m.layer_floats * m.n_layer;
    vc_status_t st = check_numbers(&m, err);
    if (st == VC_OK)
        *model_p = m;
    return st;
}

void node_kvzap_predict(const node_kvzap_ops_t *ops, const node_kvzap_model_t *m, uint32_t layer, const float *x,
                        float *hidden, float *f)
{
    const float *at = m->layers + m->layer_floats * layer;
    if (m->kind == NODE_KVZAP_RIDGE) {
        ops->affine(at, at + (size_t)m->n_kv_head * m->d_model, m->d_model, m->n_kv_head, x, f);
        return;
    }
    const float *b1 = at + (size_t)m->hidden * m->d_model, *w2 = b1 + m->hidden;
    ops->affine(at, b1, m->d_model, m->hidden, x, hidden);
    ops->gelu(hidden, m->hidden);
    ops->affine(w2, w2 + (size_t)m->n_kv_head * m->hidden, m->hidden, m->n_kv_head, hidden, f);
}

double node_kvzap_share(const float *q, double tau)
{
    const uint32_t last = NODE_KVZAP_QUANTILES - 1;
    if (tau <= q[0])
        return 1.0;
    if (tau > q[last])
        return 0.0;
    uint32_t i = 0;
    while (q[i + 1] < tau)
        i++;
    /* q[i] < tau <= q[i + 1] */
    double part = (tau - q[i]) / ((double)q[i + 1] - q[i]);
    return 1.0 - (i + part) / last;
}

double node_kvzap_tau(const float *q, double share)
{
    const uint32_t last = NODE_KVZAP_QUANTILES - 1;
    double at = (1.0 - share) * last;
    uint32_t i = VC_MIN((uint32_t)at, last - 1);
    return q[i] + (at - i) * ((double)q[i + 1] - q[i]);
}

uint64_t node_kvzap_above(const float *f, double tau)
{
    uint64_t kept = 0;
    for (uint32_t i = 0; i < NODE_TILE; i++)
        kept |= (uint64_t)((double)f[i] >= tau) << i;
    return kept;
}
