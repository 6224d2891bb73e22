/*
 * Inside of SnapKV: the arithmetic that has one version per ISA, the score of one KV head, and the budget. Apart from
 * the plan so that each can be held to reference numbers by itself.
 */
#ifndef NODE_SNAPKV_INT_H
#define NODE_SNAPKV_INT_H

#include "compress/codec_int.h"
#include "kernels/backend.h"

/* Bitwise equal on every ISA (snapkv_impl.h). */
typedef struct node_snapkv_ops {
    void (*widen)(const uint16_t *src, float *dst, size_t n); /* f16 to f32; n a multiple of 16 */
    /* z[row * z_stride + i] = sum over c of q[row * q_stride + c] * kt[c * NODE_TILE + i], i in [0, NODE_TILE) */
    void (*dots)(const float *q, size_t q_stride, uint32_t n_rows, uint32_t dim, const float *kt, float *z,
                 size_t z_stride);
    /* acc[i] += softmax(scale * z)[i]; n a multiple of 16, masked places hold -infinity; z is scratch afterwards */
    void (*softmax_add)(float *z, uint32_t n, float scale, float *acc);
} node_snapkv_ops_t;

extern const node_snapkv_ops_t node_snapkv_scalar, node_snapkv_avx2, node_snapkv_avx512;
/* NULL when the CPU lacks it. */
const node_snapkv_ops_t *node_snapkv_ops(node_ops_level_t level);
const node_snapkv_ops_t *node_snapkv_ops_best(void);

/* What the watch saw: queries after RoPE of the last `rows` tokens. */
typedef struct node_snapkv_window {
    uint32_t first, rows; /* positions */
    size_t row_floats;    /* n_head * head_dim */
    float q[];            /* [layer][row][row_floats] */
} node_snapkv_window_t;

typedef struct node_snapkv_head {
    uint32_t n_tokens, window, kernel; /* window <= n_tokens */
    bool max_pool;
    uint32_t dim, n_group; /* query heads that share this KV head */
    const float *q;        /* row j, head g of the group: q + j * q_stride + g * dim */
    size_t q_stride;
    void (*keys)(void *arg, uint32_t tile, float *kt); /* fills [dim][NODE_TILE], zero beyond n_tokens */
    void *keys_arg;
} node_snapkv_head_t;

/*
 * scores[0 .. n_tokens): mean over the window's queries of the attention weight, smoothed along the positions, mean
 * over the group. The window itself is smoothed apart from the rest, so that the rest is what the method defines.
 * INVALID when a score is not a number.
 */
vc_status_t node_snapkv_scores(const node_snapkv_ops_t *ops, const node_snapkv_head_t *in, float *scores,
                               vc_err_t *err);

/* How many of the `rest` tokens before the window and of the `window` tokens in it a span keeps. */
void node_snapkv_budget(double keep, uint32_t rest, uint32_t window, uint32_t *take_rest_p, uint32_t *take_window_p);

#endif
