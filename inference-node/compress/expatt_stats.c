/* Statistics of queries before RoPE, and what is to be expected of a query after the text. */
#include "compress/expatt_int.h"
#include "kernels/numerics.h"
#include "model/rope.h"
#include "vc/mem.h"

const node_expatt_ops_t *node_expatt_ops(node_ops_level_t level)
{
    if (node_ops_get(level) == NULL)
        return NULL;
    switch (level) {
    case NODE_OPS_AVX512: return &node_expatt_avx512;
    case NODE_OPS_AVX2: return &node_expatt_avx2;
    case NODE_OPS_SCALAR: break;
    }
    return &node_expatt_scalar;
}

const node_expatt_ops_t *node_expatt_ops_best(void) { return node_expatt_ops(node_ops_best_level()); }

/* ---- the state ---- */

/* Of one head: rows of the block at hand [NODE_TILE][pad], then shift[pad], sum[pad], m2[pad][pad]. */
static float *head_at(const node_expatt_stats_t *s, uint32_t layer, uint32_t head)
{
    return (float *)(uintptr_t)s->data + s->rows + ((size_t)layer * s->n_head + head) * s->head_floats;
}

static uint32_t *count_at(const node_expatt_stats_t *s, uint32_t layer)
{
    return (uint32_t *)(void *)((float *)(uintptr_t)s->data + s->counts) + layer;
}

/* Places of the parts; false when they are too large to count. */
static bool lay_out(node_expatt_stats_t *s, uint32_t end)
{
    size_t n_tables, n_heads, n;
    s->head_floats = ((size_t)NODE_TILE + 2 + s->pad) * s->pad;
    if (!vc_size_mul(vc_align_up(end, NODE_TILE) - s->base, s->half, &n_tables) ||
        !vc_size_mul((size_t)s->n_layer * s->n_head, s->head_floats, &n_heads) || n_tables > SIZE_MAX / 16 ||
        n_heads > SIZE_MAX / 16)
        return false;
    s->cos = 0;
    s->sin = n_tables;
    s->rows = vc_align_up(2 * n_tables, 16);
    s->counts = s->rows + n_heads;
    n = s->counts + s->n_layer;
    s->bytes = sizeof(*s) + n * sizeof(float);
    return true;
}

vc_status_t node_expatt_stats_create(const node_model_info_t *model, uint32_t first, uint32_t end,
                                     node_expatt_stats_t **s_p, vc_err_t *err)
{
    node_expatt_stats_t head = {.n_layer = model->n_layer,
                                .n_head = model->n_head,
                                .dim = model->head_dim,
                                .pad = (uint32_t)vc_align_up(model->head_dim, 16),
                                .half = model->rope_dims / 2,
                                .mscale = model->rope_mscale,
                                .first = first,
                                .end = end,
                                .base = first / NODE_TILE * NODE_TILE};
    node_expatt_stats_t *s = lay_out(&head, end) ? vc_calloc(1, head.bytes) : NULL;
    if (s == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the query statistics of %u tokens", end - first);
    memcpy(s, &head, sizeof(head));
    for (uint32_t t = s->base; t < end; t++)
        node_rope_table(model->rope_inv_freq, s->half, 1.0f, t, s->data + s->cos + (size_t)(t - s->base) * s->half,
                        s->data + s->sin + (size_t)(t - s->base) * s->half);
    *s_p = s;
    return VC_OK;
}

void node_expatt_stats_next(node_expatt_stats_t *s, uint32_t first, uint32_t end)
{
    s->first = first;
    s->end = end;
}

/* Adds the rows of the block of positions from `block` on. */
static void add_block(node_expatt_stats_t *s, const node_expatt_ops_t *ops, uint32_t layer, uint32_t block)
{
    const uint32_t from = VC_MAX(s->first, block), n = VC_MIN(s->end, block + NODE_TILE) - from;
    const size_t table = (size_t)(from - s->base) * s->half;
    const bool starts = *count_at(s, layer) == 0;
    for (uint32_t h = 0; h < s->n_head; h++) {
        float *head = head_at(s, layer, h), *x = head + (size_t)(from - block) * s->pad;
        float *shift = head + (size_t)NODE_TILE * s->pad, *sum = shift + s->pad, *m2 = sum + s->pad;
        ops->turn_back(x, n, s->pad, s->data + s->cos + table, s->data + s->sin + table, s->half, s->mscale);
        if (starts) {
            ops->add_rows(x, n, s->pad, shift);
            for (uint32_t i = 0; i < s->pad; i++)
                shift[i] /= (float)n;
        }
        ops->subtract(x, n, s->pad, shift);
        ops->add_rows(x, n, s->pad, sum);
        ops->add_squares(x, n, s->pad, m2);
    }
    *count_at(s, layer) += n;
}

void node_expatt_stats_row(node_expatt_stats_t *s, const node_expatt_ops_t *ops, uint32_t layer, uint32_t position,
                           const float *q)
{
    const uint32_t row = position % NODE_TILE;
    for (uint32_t h = 0; h < s->n_head; h++)
        memcpy(head_at(s, layer, h) + (size_t)row * s->pad, q + (size_t)h * s->dim, s->dim * sizeof(*q));
    if (row + 1 == NODE_TILE || position + 1 == s->end)
        add_block(s, ops, layer, position - row);
}

uint32_t node_expatt_stats_count(const node_expatt_stats_t *s, uint32_t layer) { return *count_at(s, layer); }

void node_expatt_stats_get(const node_expatt_stats_t *s, uint32_t layer, uint32_t head, bool unbiased, float *mean,
                           float *cov)
{
    const float *shift = head_at(s, layer, head) + (size_t)NODE_TILE * s->pad, *sum = shift + s->pad;
    const float *m2 = sum + s->pad;
    const double n = *count_at(s, layer), by = unbiased ? n - 1.0 : n;
    for (uint32_t i = 0; i < s->dim; i++)
        mean[i] = (float)((double)shift[i] + (double)sum[i] / n);
    for (uint32_t i = 0; i < s->dim; i++)
        for (uint32_t j = i; j < s->dim; j++) {
            double c = (double)m2[(size_t)i * s->pad + j] - (double)sum[i] * (double)sum[j] / n;
            cov[(size_t)i * s->dim + j] = cov[(size_t)j * s->dim + i] = (float)(c / by);
        }
}

/* ---- the expected query ---- */

void node_expatt_turns(const node_model_info_t *model, uint32_t from, uint32_t n, double *cos, double *sin)
{
    for (uint32_t i = 0; i < model->rope_dims / 2; i++) {
        double c_sum = 0, s_sum = 0, c, s;
        for (uint32_t t = 0; t < n; t++) {
            node_sincos((double)(from + t) * (double)model->rope_inv_freq[i], &s, &c);
            c_sum += c;
            s_sum += s;
        }
        cos[i] = c_sum / n * (double)model->rope_mscale;
        sin[i] = s_sum / n * (double)model->rope_mscale;
    }
}

/* One vector with the given distance between its numbers, in double. */
static void turn_vector(const double *cos, const double *sin, uint32_t half, double *x, size_t stride)
{
    for (uint32_t i = 0; i < half; i++) {
        double a = x[i * stride], b = x[(i + half) * stride];
        x[i * stride] = a * cos[i] - b * sin[i];
        x[(i + half) * stride] = b * cos[i] + a * sin[i];
    }
}

void node_expatt_turn(const double *cos, const double *sin, uint32_t half, uint32_t dim, const float *mean,
                      const float *cov, double *work, float *mean_bar, float *cov_bar)
{
    for (uint32_t i = 0; i < dim; i++)
        work[i] = (double)mean[i];
    turn_vector(cos, sin, half, work, 1);
    for (uint32_t i = 0; i < dim; i++)
        mean_bar[i] = (float)work[i];
    if (cov == NULL)
        return;
    for (size_t i = 0; i < (size_t)dim * dim; i++)
        work[i] = (double)cov[i];
    for (uint32_t i = 0; i < dim; i++)
        turn_vector(cos, sin, half, work + (size_t)i * dim, 1);
    for (uint32_t j = 0; j < dim; j++)
        turn_vector(cos, sin, half, work + j, dim);
    for (size_t i = 0; i < (size_t)dim * dim; i++)
        cov_bar[i] = (float)work[i];
}

void node_expatt_form(uint32_t dim, const float *mean_bar, const float *cov_bar, float *b, float *m)
{
    const double root = __builtin_sqrt((double)dim);
    for (uint32_t i = 0; i < dim; i++) {
        b[i] = (float)((double)mean_bar[i] / root);
        for (uint32_t j = 0; m != NULL && j < dim; j++) {
            double c = (double)cov_bar[(size_t)i * dim + j] / dim; /* k^T C k / 2d, both halves in one */
            m[(size_t)i * dim + j] = j < i ? (float)c : j == i ? (float)(0.5 * c) : 0.0f;
        }
    }
}
