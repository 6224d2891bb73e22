/*
 * What the surrogate learns from: a text, "repeat the previous context exactly", and the text once more, in one
 * sequence. A row of the first text is worth the greatest attention that any row of the second pays to it, in any query
 * head of the group, over all keys of the sequence, times how long its value is after the output projection and over
 * how long the attending row's input is. The instruction's own rows do not count.
 */
#include <string.h>

#include "compress/kvzap_int.h"
#include "compress/passes.h"
#include "compress/snapkv_int.h"
#include "kernels/numerics.h"
#include "vc/mem.h"

#define QUERY_ROWS 8u
#define LEAST_TARGET 1e-12f /* attention can underflow, and the logarithm of zero would ruin the fit */

/* ---- the passes ---- */

static float length_of(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return __builtin_sqrtf((float)sum);
}

static void on_row(void *arg, node_capture_kind_t kind, uint32_t layer, uint32_t row, uint32_t at, const float *values)
{
    (void)row;
    node_kvzap_piece_t *p = arg;
    const uint32_t d = p->info->d_model, width = p->info->n_head * p->info->head_dim;
    if (kind == NODE_CAP_X && at < p->n)
        memcpy(p->x + ((size_t)layer * p->n + at) * d, values, d * sizeof(float));
    if (at < p->second)
        return;
    size_t index = (size_t)layer * p->n + (at - p->second);
    if (kind == NODE_CAP_Q)
        memcpy(p->q + index * width, values, width * sizeof(float));
    else if (kind == NODE_CAP_X) {
        float len = length_of(values, d);
        p->inv_len[index] = len > 0 ? 1.0f / len : 0.0f;
    }
}

static float *floats(size_t a, size_t b, size_t c)
{
    size_t n;
    return vc_size_mul(a, b, &n) && vc_size_mul(n, c, &n) ? vc_calloc(n, sizeof(float)) : NULL;
}

vc_status_t node_kvzap_piece_run(node_kvzap_piece_t *piece, const node_replay_t *replay, const uint32_t *text,
                                 uint32_t n, vc_err_t *err)
{
    const node_model_info_t *m = node_engine_info(replay->engine);
    node_kv_dims_t dims;
    node_engine_kv_dims(replay->engine, &dims);
    *piece = (node_kvzap_piece_t){.info = m, .n = n, .second = n + replay->n_first + replay->n_suffix};
    piece->n_tiles = (piece->second + n + NODE_TILE - 1) / NODE_TILE;
    piece->x = floats(m->n_layer, n, m->d_model);
    piece->q = floats(m->n_layer, n, (size_t)m->n_head * m->head_dim);
    piece->inv_len = floats(m->n_layer, n, 1);
    piece->y = floats(m->n_layer, n, m->n_kv_head);
    vc_status_t st = node_kv_init(&piece->kv, &dims, NULL);
    if (st != VC_OK || piece->x == NULL || piece->q == NULL || piece->inv_len == NULL || piece->y == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory to calibrate on a text of %u tokens", n);
    const node_capture_t capture = {NODE_CAP_X | NODE_CAP_Q, on_row, piece};
    st = node_passes_run(replay, &piece->kv, text, n, &capture, err);
    if (st == VC_OK)
        st = node_passes_run(replay, &piece->kv, replay->first, replay->n_first, &capture, err);
    if (st == VC_OK)
        st = node_passes_run(replay, &piece->kv, replay->suffix, replay->n_suffix, &capture, err);
    return st == VC_OK ? node_passes_run(replay, &piece->kv, text, n, &capture, err) : st;
}

void node_kvzap_piece_free(node_kvzap_piece_t *piece)
{
    vc_free(piece->x);
    vc_free(piece->q);
    vc_free(piece->inv_len);
    vc_free(piece->y);
    node_kv_fini(&piece->kv);
    *piece = (node_kvzap_piece_t){0};
}

/* ---- the targets ---- */

static uint32_t pad_rows(const node_kvzap_piece_t *p) { return (uint32_t)vc_align_up(p->n, NODE_TILE); }

size_t node_kvzap_target_scratch(const node_kvzap_piece_t *p)
{
    const size_t keys = (size_t)p->n_tiles * NODE_TILE;
    /* keys of the head, logits of a few queries, best of one query head, best of the group */
    return keys * p->info->head_dim + QUERY_ROWS * keys + 2u * pad_rows(p);
}

/* best[i] = the most that a row of the repetition attends to row i with query head h, over the row's length. */
static void attend_head(const node_kvzap_ops_t *ops, const node_snapkv_ops_t *base, const node_kvzap_piece_t *p,
                        uint32_t layer, uint32_t h, const float *kt, float *z, float *best)
{
    const uint32_t dim = p->info->head_dim, width = p->info->n_head * dim, n_keys = p->n_tiles * NODE_TILE;
    const float *q = p->q + (size_t)layer * p->n * width + (size_t)h * dim;
    const float scale = 1.0f / __builtin_sqrtf((float)dim);
    memset(best, 0, pad_rows(p) * sizeof(float));
    for (uint32_t j = 0; j < p->n; j += QUERY_ROWS) {
        const uint32_t rows = VC_MIN(QUERY_ROWS, p->n - j), tiles = (p->second + j + rows - 1) / NODE_TILE + 1;
        for (uint32_t t = 0; t < tiles; t++)
            base->dots(q + (size_t)j * width, width, rows, dim, kt + (size_t)t * dim * NODE_TILE, z + t * NODE_TILE,
                       n_keys);
        for (uint32_t r = 0; r < rows; r++) {
            float *row = z + (size_t)r * n_keys;
            for (uint32_t i = p->second + j + r + 1; i < tiles * NODE_TILE; i++)
                row[i] = -__builtin_inff();
            ops->softmax_max(row, tiles * NODE_TILE, pad_rows(p), scale, p->inv_len[(size_t)layer * p->n + j + r],
                             best);
        }
    }
}

/* |W_h v| of one value from the Gram matrix of its head. */
static float weight_of(const float *gram, const uint16_t *v, uint32_t dim)
{
    float x[NODE_HEAD_DIM_MAX];
    double sum = 0;
    for (uint32_t i = 0; i < dim; i++)
        x[i] = node_f32_from_f16(v[i]);
    for (uint32_t i = 0; i < dim; i++) {
        double s[4] = {0};
        for (uint32_t j = 0; j < dim; j += 4)
            for (uint32_t k = 0; k < 4; k++)
                s[k] += (double)gram[(size_t)i * dim + j + k] * (double)x[j + k];
        sum += (double)x[i] * ((s[0] + s[2]) + (s[1] + s[3]));
    }
    return sum > 0 ? __builtin_sqrtf((float)sum) : 0.0f;
}

void node_kvzap_targets(const node_kvzap_ops_t *ops, node_kvzap_piece_t *p, uint32_t layer, uint32_t kv_head,
                        const float *gram, float *scratch)
{
    const node_snapkv_ops_t *base = node_snapkv_ops_best();
    const uint32_t dim = p->info->head_dim, group = p->info->n_head / p->info->n_kv_head;
    const size_t keys = (size_t)p->n_tiles * NODE_TILE;
    float *kt = scratch, *z = kt + keys * dim, *best = z + QUERY_ROWS * keys, *top = best + pad_rows(p);
    for (uint32_t t = 0; t < p->n_tiles; t++)
        base->widen(node_page_k(node_kv_page_at(&p->kv, t), layer, kv_head), kt + (size_t)t * dim * NODE_TILE,
                    (size_t)dim * NODE_TILE);
    memset(top, 0, pad_rows(p) * sizeof(float));
    for (uint32_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
        attend_head(ops, base, p, layer, h, kt, z, best);
        for (uint32_t i = 0; i < p->n; i++) {
            node_page_t *page = node_kv_page_at(&p->kv, i / NODE_TILE);
            const uint16_t *v = node_page_v(page, layer, kv_head) + (size_t)(i % NODE_TILE) * dim;
            float s = best[i] * weight_of(gram + (size_t)h * dim * dim, v, dim);
            top[i] = s > top[i] ? s : top[i];
        }
    }
    float *y = p->y + ((size_t)layer * p->info->n_kv_head + kv_head) * p->n;
    for (uint32_t i = 0; i < p->n; i++)
        y[i] = node_log(top[i] > LEAST_TARGET ? top[i] : LEAST_TARGET);
}
