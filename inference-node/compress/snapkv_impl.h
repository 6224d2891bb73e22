/*
 * SnapKV's arithmetic over 16 lanes, compiled once per ISA: the including file has chosen the vectors (kernels/vec_*.h)
 * and defines SNAPKV_OPS, the name of its table. Products are one fma chain over the channels with keys as lanes, sums
 * take lane i mod 16 and fold as the kernels do, so the bits are the same everywhere.
 */
#include "compress/snapkv_int.h"

static void widen(const uint16_t *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        v16_store(dst + i, v16_load_f16(src + i));
}

#define SNAPKV_ROWS 4u /* queries that share one load of the keys */

static inline void dots_rows(const float *q, size_t q_stride, uint32_t n_rows, uint32_t dim, const float *kt, float *z,
                             size_t z_stride)
{
    for (uint32_t i = 0; i < NODE_TILE; i += 16) {
        v16 acc[SNAPKV_ROWS];
        for (uint32_t r = 0; r < n_rows; r++)
            acc[r] = v16_set1(0.0f);
        for (uint32_t c = 0; c < dim; c++) {
            v16 k = v16_load(kt + (size_t)c * NODE_TILE + i);
            for (uint32_t r = 0; r < n_rows; r++)
                acc[r] = v16_fma(v16_set1(q[r * q_stride + c]), k, acc[r]);
        }
        for (uint32_t r = 0; r < n_rows; r++)
            v16_store(z + r * z_stride + i, acc[r]);
    }
}

static void dots(const float *q, size_t q_stride, uint32_t n_rows, uint32_t dim, const float *kt, float *z,
                 size_t z_stride)
{
    uint32_t r = 0;
    for (; r + SNAPKV_ROWS <= n_rows; r += SNAPKV_ROWS)
        dots_rows(q + r * q_stride, q_stride, SNAPKV_ROWS, dim, kt, z + r * z_stride, z_stride);
    for (; r < n_rows; r++)
        dots_rows(q + r * q_stride, q_stride, 1, dim, kt, z + r * z_stride, z_stride);
}

static void softmax_add(float *z, uint32_t n, float scale, float *acc)
{
    v16 top = v16_set1(-__builtin_inff()), sum = v16_set1(0.0f), step = v16_set1(scale);
    for (uint32_t i = 0; i < n; i += 16)
        top = v16_max(v16_load(z + i), top);
    top = v16_set1(v16_hmax(top));
    for (uint32_t i = 0; i < n; i += 16) {
        v16 p = v16_exp(v16_mul(v16_sub(v16_load(z + i), top), step));
        sum = v16_add(sum, p);
        v16_store(z + i, p);
    }
    v16 inv = v16_set1(1.0f / v16_sum(sum));
    for (uint32_t i = 0; i < n; i += 16)
        v16_store(acc + i, v16_fma(v16_load(z + i), inv, v16_load(acc + i)));
}

const node_snapkv_ops_t SNAPKV_OPS = {widen, dots, softmax_add};
