/*
 * ExpectedAttention's arithmetic over 16 lanes, compiled once per ISA: the including file has chosen the vectors
 * (kernels/vec_*.h) and defines EXPATT_OPS, the name of its table. Every number is one fma chain over rows or channels,
 * lanes are columns or tokens, so the bits are the same everywhere.
 */
#include <math.h>

#include "compress/expatt_int.h"

static void turn_back(float *x, uint32_t n_rows, uint32_t pad, const float *cos, const float *sin, uint32_t half,
                      float mscale)
{
    const v16 m = v16_set1(mscale);
    for (uint32_t r = 0; r < n_rows; r++, x += pad, cos += half, sin += half)
        for (uint32_t i = 0; i < half; i += 16) {
            uint32_t n = half - i;
            v16 a = v16_load_n(x + i, n < 16 ? n : 16), b = v16_load_n(x + half + i, n < 16 ? n : 16);
            v16 c = v16_load_n(cos + i, n < 16 ? n : 16), s = v16_load_n(sin + i, n < 16 ? n : 16);
            v16 p = v16_fma(a, c, v16_mul(b, s)), q = v16_fma(b, c, v16_neg(v16_mul(a, s)));
            if (mscale != 1.0f) {
                p = v16_div(p, m);
                q = v16_div(q, m);
            }
            v16_store_n(x + i, p, n < 16 ? n : 16);
            v16_store_n(x + half + i, q, n < 16 ? n : 16);
        }
}

static void subtract(float *x, uint32_t n_rows, uint32_t pad, const float *shift)
{
    for (uint32_t r = 0; r < n_rows; r++, x += pad)
        for (uint32_t i = 0; i < pad; i += 16)
            v16_store(x + i, v16_sub(v16_load(x + i), v16_load(shift + i)));
}

static void add_rows(const float *x, uint32_t n_rows, uint32_t pad, float *sum)
{
    for (uint32_t i = 0; i < pad; i += 16) {
        v16 acc = v16_set1(0.0f);
        for (uint32_t r = 0; r < n_rows; r++)
            acc = v16_add(acc, v16_load(x + (size_t)r * pad + i));
        v16_store(sum + i, v16_add(v16_load(sum + i), acc));
    }
}

#define EXPATT_ROWS 4u /* rows of a product that share one load */

static inline void square_tile(const float *x, uint32_t n_rows, uint32_t pad, uint32_t i, uint32_t j, uint32_t n_vec,
                               float *m2)
{
    v16 acc[EXPATT_ROWS][2];
    for (uint32_t q = 0; q < EXPATT_ROWS; q++)
        for (uint32_t v = 0; v < n_vec; v++)
            acc[q][v] = v16_set1(0.0f);
    for (uint32_t r = 0; r < n_rows; r++, x += pad)
        for (uint32_t v = 0; v < n_vec; v++) {
            v16 col = v16_load(x + j + 16 * v);
            for (uint32_t q = 0; q < EXPATT_ROWS; q++)
                acc[q][v] = v16_fma(v16_set1(x[i + q]), col, acc[q][v]);
        }
    for (uint32_t q = 0; q < EXPATT_ROWS; q++)
        for (uint32_t v = 0; v < n_vec; v++) {
            float *at = m2 + (size_t)(i + q) * pad + j + 16 * v;
            v16_store(at, v16_add(v16_load(at), acc[q][v]));
        }
}

static void add_squares(const float *x, uint32_t n_rows, uint32_t pad, float *m2)
{
    for (uint32_t i = 0; i < pad; i += EXPATT_ROWS) {
        uint32_t j = i & ~15u;
        for (; j + 32 <= pad; j += 32)
            square_tile(x, n_rows, pad, i, j, 2, m2);
        if (j < pad)
            square_tile(x, n_rows, pad, i, j, 1, m2);
    }
}

/* Channels c .. c + 3 of 32 tokens. */
static inline void logit_tile(const float *b, const float *m, uint32_t dim, const float *kt, uint32_t c, v16 z[2])
{
    v16 acc[EXPATT_ROWS][2];
    for (uint32_t q = 0; q < EXPATT_ROWS; q++)
        acc[q][0] = acc[q][1] = v16_set1(b[c + q]);
    for (uint32_t i = 0; m && i < c + EXPATT_ROWS; i++) {
        v16 k0 = v16_load(kt + (size_t)i * NODE_TILE), k1 = v16_load(kt + (size_t)i * NODE_TILE + 16);
        for (uint32_t q = 0; q < EXPATT_ROWS; q++) {
            v16 w = v16_set1(m[(size_t)(c + q) * dim + i]);
            acc[q][0] = v16_fma(w, k0, acc[q][0]);
            acc[q][1] = v16_fma(w, k1, acc[q][1]);
        }
    }
    for (uint32_t q = 0; q < EXPATT_ROWS; q++) {
        const float *k = kt + (size_t)(c + q) * NODE_TILE;
        z[0] = v16_fma(v16_load(k), acc[q][0], z[0]);
        z[1] = v16_fma(v16_load(k + 16), acc[q][1], z[1]);
    }
}

static void logits(const float *b, const float *m, uint32_t dim, const float *kt, float *z)
{
    for (uint32_t t = 0; t < NODE_TILE; t += 32) {
        v16 sum[2] = {v16_set1(0.0f), v16_set1(0.0f)};
        for (uint32_t c = 0; c < dim; c += EXPATT_ROWS)
            logit_tile(b, m, dim, kt + t, c, sum);
        v16_store(z + t, sum[0]);
        v16_store(z + t + 16, sum[1]);
    }
}

static void softmax_add(float *z, uint32_t n, float *acc)
{
    v16 top = v16_set1(-__builtin_inff()), sum = v16_set1(0.0f);
    for (uint32_t i = 0; i < n; i += 16)
        top = v16_max(v16_load(z + i), top);
    top = v16_set1(v16_hmax(top));
    for (uint32_t i = 0; i < n; i += 16) {
        v16 p = v16_exp(v16_sub(v16_load(z + i), top));
        sum = v16_add(sum, p);
        v16_store(z + i, p);
    }
    v16 inv = v16_set1(1.0f / v16_sum(sum));
    for (uint32_t i = 0; i < n; i += 16)
        v16_store(acc + i, v16_fma(v16_load(z + i), inv, v16_load(acc + i)));
}

static void norms(const float *rows, uint32_t dim, float *out)
{
    for (uint32_t r = 0; r < NODE_TILE; r++, rows += dim) {
        v16 sum = v16_set1(0.0f);
        for (uint32_t i = 0; i < dim; i += 16) {
            v16 x = v16_load_n(rows + i, dim - i < 16 ? dim - i : 16);
            sum = v16_fma(x, x, sum);
        }
        out[r] = sqrtf(v16_sum(sum));
    }
}

static void widen(const uint16_t *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        v16_store(dst + i, v16_load_f16(src + i));
}

const node_expatt_ops_t EXPATT_OPS = {turn_back, subtract, add_rows, add_squares, logits, softmax_add, norms, widen};
