/* Scores and budget of SnapKV for one KV head. Pure: any thread, one head per call. */
#include <math.h>

#include "compress/select.h"
#include "compress/snapkv_int.h"
#include "vc/mem.h"

const node_snapkv_ops_t *node_snapkv_ops(node_ops_level_t level)
{
    if (node_ops_get(level) == NULL)
        return NULL;
    switch (level) {
    case NODE_OPS_AVX512: return &node_snapkv_avx512;
    case NODE_OPS_AVX2: return &node_snapkv_avx2;
    case NODE_OPS_SCALAR: break;
    }
    return &node_snapkv_scalar;
}

const node_snapkv_ops_t *node_snapkv_ops_best(void) { return node_snapkv_ops(node_ops_best_level()); }

/* out[i] += pooled in[i] for a run of n places with nothing beyond its ends: zeros for the average, which divides by
 * the kernel there too, and no candidates for the maximum. */
static void pool_add(const float *in, uint32_t n, uint32_t kernel, bool max_pool, float *out)
{
    const uint32_t half = kernel / 2;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t lo = i > half ? i - half : 0, hi = VC_MIN(i + half, n - 1);
        float v = in[lo];
        for (uint32_t k = lo + 1; k <= hi; k++)
            v = max_pool ? (in[k] > v || in[k] != in[k] ? in[k] : v) : v + in[k];
        out[i] += max_pool ? v : v / (float)kernel;
    }
}

typedef struct scratch {
    float *kt, *z, *acc;
    size_t n_pad;
} scratch_t;

static void free_scratch(scratch_t *s)
{
    vc_free(s->kt);
    vc_free(s->z);
    vc_free(s->acc);
}

static bool alloc_scratch(scratch_t *s, const node_snapkv_head_t *in)
{
    size_t rows = (size_t)in->n_group * in->window, n_z;
    s->n_pad = vc_align_up(in->n_tokens, NODE_TILE);
    s->kt = vc_alloc_aligned(64, (size_t)in->dim * NODE_TILE * sizeof(float));
    s->acc = vc_alloc_aligned(64, s->n_pad * sizeof(float));
    s->z = vc_size_mul(rows, s->n_pad * sizeof(float), &n_z) ? vc_alloc_aligned(64, n_z) : NULL;
    return s->kt && s->acc && s->z;
}

/* Row j of the window sees the keys up to its own. */
static void score_query_head(const node_snapkv_ops_t *ops, const node_snapkv_head_t *in, uint32_t g, scratch_t *s,
                             float *scores)
{
    const float scale = 1.0f / sqrtf((float)in->dim);
    memset(s->acc, 0, s->n_pad * sizeof(float));
    const uint32_t rest = in->n_tokens - in->window;
    for (uint32_t j = 0; j < in->window; j++) {
        float *z = s->z + ((size_t)g * in->window + j) * s->n_pad;
        for (size_t i = rest + j + 1; i < s->n_pad; i++)
            z[i] = -INFINITY;
        ops->softmax_add(z, (uint32_t)s->n_pad, scale, s->acc);
    }
    for (uint32_t i = 0; i < in->n_tokens; i++)
        s->acc[i] /= (float)in->window;
    pool_add(s->acc, rest, in->kernel, in->max_pool, scores);
    pool_add(s->acc + rest, in->window, in->kernel, in->max_pool, scores + rest);
}

vc_status_t node_snapkv_scores(const node_snapkv_ops_t *ops, const node_snapkv_head_t *in, float *scores, vc_err_t *err)
{
    scratch_t s = {0};
    if (!alloc_scratch(&s, in)) {
        free_scratch(&s);
        return vc_err_set(err, VC_ERR_NOMEM, "no memory to score %u tokens", in->n_tokens);
    }
    for (uint32_t t = 0; t < s.n_pad / NODE_TILE; t++) {
        in->keys(in->keys_arg, t, s.kt);
        for (uint32_t g = 0; g < in->n_group; g++)
            ops->dots(in->q + (size_t)g * in->dim, in->q_stride, in->window, in->dim, s.kt,
                      s.z + (size_t)g * in->window * s.n_pad + (size_t)t * NODE_TILE, s.n_pad);
    }
    memset(scores, 0, in->n_tokens * sizeof(float));
    for (uint32_t g = 0; g < in->n_group; g++)
        score_query_head(ops, in, g, &s, scores);
    uint32_t n_nan = 0;
    for (uint32_t i = 0; i < in->n_tokens; i++) {
        scores[i] /= (float)in->n_group;
        n_nan += scores[i] != scores[i];
    }
    free_scratch(&s);
    if (n_nan)
        return vc_err_set(err, VC_ERR_INVALID, "%u of %u scores are not numbers", n_nan, in->n_tokens);
    return VC_OK;
}

void node_snapkv_budget(double keep, uint32_t rest, uint32_t window, uint32_t *take_rest_p, uint32_t *take_window_p)
{
    uint32_t span = rest + window;
    uint32_t total = node_keep_count(keep, span), in_window = (uint32_t)(keep * window + 0.5);
    in_window = VC_MIN(VC_MIN(in_window, window), total);
    uint32_t before = VC_MIN(total - in_window, rest);
    *take_rest_p = before;
    *take_window_p = total - before; /* what does not fit before the window falls to it */
}
