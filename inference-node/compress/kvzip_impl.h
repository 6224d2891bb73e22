/*
 * KVzip's arithmetic over 16 lanes, compiled once per ISA: the including file has chosen the vectors (kernels/vec_*.h),
 * how many rows and vectors of keys its registers hold (KVZIP_NQ, KVZIP_NV), and KVZIP_OPS, the name of its table.
 * Products are one fma chain over the channels with keys as lanes, sums take lane i mod 16 and fold as the kernels do,
 * so the bits are the same everywhere.
 */
#include <math.h>

#include "compress/kvzip_int.h"

static inline v16 load_key(const float *p) { return v16_load(p); }
static inline v16 load_key_f16(const uint16_t *p) { return v16_load_f16(p); }

/* n_rows rows by NV vectors of one tile; n_rows is a constant at every call. */
#define DOTS_BLOCK(name, key_t, load)                                                                               \
    static inline __attribute__((always_inline)) void name(const float *q, size_t q_stride, const uint32_t n_rows,  \
                                                           uint32_t dim, const key_t *k, float *z, size_t z_stride) \
    {                                                                                                               \
        v16 acc[KVZIP_NQ][KVZIP_NV];                                                                                \
        for (uint32_t r = 0; r < n_rows; r++)                                                                       \
            for (uint32_t v = 0; v < KVZIP_NV; v++)                                                                 \
                acc[r][v] = v16_set1(0.0f);                                                                         \
        for (uint32_t c = 0; c < dim; c++) {                                                                        \
            v16 key[KVZIP_NV];                                                                                      \
            for (uint32_t v = 0; v < KVZIP_NV; v++)                                                                 \
                key[v] = load(k + (size_t)c * NODE_TILE + 16 * v);                                                  \
            for (uint32_t r = 0; r < n_rows; r++)                                                                   \
                for (uint32_t v = 0; v < KVZIP_NV; v++)                                                             \
                    acc[r][v] = v16_fma(v16_set1(q[r * q_stride + c]), key[v], acc[r][v]);                          \
        }                                                                                                           \
        for (uint32_t r = 0; r < n_rows; r++)                                                                       \
            for (uint32_t v = 0; v < KVZIP_NV; v++)                                                                 \
                v16_store(z + r * z_stride + 16 * v, acc[r][v]);                                                    \
    }
DOTS_BLOCK(block_f32, float, load_key)
DOTS_BLOCK(block_f16, uint16_t, load_key_f16)

#define DOTS(name, key_t, block)                                                                               \
    static void name(const float *q, size_t q_stride, uint32_t n_rows, uint32_t dim, const key_t *k, float *z, \
                     size_t z_stride)                                                                          \
    {                                                                                                          \
        for (uint32_t i = 0; i < NODE_TILE; i += 16 * KVZIP_NV) {                                              \
            uint32_t r = 0;                                                                                    \
            for (; r + KVZIP_NQ <= n_rows; r += KVZIP_NQ)                                                      \
                block(q + r * q_stride, q_stride, KVZIP_NQ, dim, k + i, z + r * z_stride + i, z_stride);       \
            for (; r < n_rows; r++)                                                                            \
                block(q + r * q_stride, q_stride, 1, dim, k + i, z + r * z_stride + i, z_stride);              \
        }                                                                                                      \
    }
DOTS(dots, float, block_f32)
DOTS(dots_f16, uint16_t, block_f16)

static bool raise(const float *z, uint32_t n, uint32_t first, uint32_t n_best, float scale, float log_norm, float *best)
{
    v16 top = v16_set1(-INFINITY), sum = v16_set1(0.0f), step = v16_set1(scale);
    for (uint32_t i = 0; i < n; i += 16)
        top = v16_max(v16_load(z + i), top);
    top = v16_set1(v16_hmax(top));
    for (uint32_t i = 0; i < n; i += 16)
        sum = v16_add(sum, v16_exp(v16_mul(v16_sub(v16_load(z + i), top), step)));
    const float total = v16_sum(sum);
    if (!(total >= 0.5f)) /* the largest alone gives 1 */
        return false;
    const v16 shift = v16_set1(-node_log(total) - log_norm);
    for (uint32_t i = 0; i < n_best; i += 16)
        v16_store(best + i, v16_max(v16_fma(v16_sub(v16_load(z + first + i), top), step, shift), v16_load(best + i)));
    return true;
}

static inline v16 load_some(const float *p, uint32_t n) { return n >= 16 ? v16_load(p) : v16_load_n(p, n); }

static float square_sum(const float *x, uint32_t n)
{
    v16 acc = v16_set1(0.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        const v16 v = load_some(x + i, n - i);
        acc = v16_fma(v, v, acc);
    }
    return v16_sum(acc);
}

static void widen(const uint16_t *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        v16_store(dst + i, v16_load_f16(src + i));
}

static float gram_norm(const float *g, uint32_t dim, const float *v)
{
    v16 acc = v16_set1(0.0f);
    for (uint32_t b = 0; b < dim; b += 16) {
        v16 t = v16_set1(0.0f);
        for (uint32_t a = 0; a < dim; a++)
            t = v16_fma(v16_set1(v[a]), load_some(g + (size_t)a * dim + b, dim - b), t);
        acc = v16_fma(t, load_some(v + b, dim - b), acc);
    }
    const float square = v16_sum(acc);
    return square > 0.0f ? sqrtf(square) : 0.0f; /* rounding may leave a tiny negative */
}

const node_kvzip_ops_t KVZIP_OPS = {dots, dots_f16, raise, square_sum, widen, gram_norm};
