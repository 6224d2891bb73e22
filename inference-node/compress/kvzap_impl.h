/*
 * KVzap's arithmetic over 16 lanes, compiled once per ISA: the including file has chosen the vectors (kernels/vec_*.h)
 * and defines KVZAP_OPS, the name of its table. Sums take lane i mod 16 and fold as the kernels do, so the bits are the
 * same everywhere.
 */
#include "compress/kvzap_int.h"

static inline float dot(const float *w, const float *x, uint32_t n)
{
    v16 acc = v16_set1(0.0f);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        acc = v16_fma(v16_load(w + i), v16_load(x + i), acc);
    if (i < n)
        acc = v16_fma(v16_load_n(w + i, n - i), v16_load_n(x + i, n - i), acc);
    return v16_sum(acc);
}

static void affine(const float *w, const float *bias, uint32_t n_in, uint32_t n_out, const float *x, float *y)
{
    for (uint32_t o = 0; o < n_out; o++)
        y[o] = dot(w + (size_t)o * n_in, x, n_in) + bias[o];
}

/*
 * erfc(a) = t exp(P(t) - a^2), t = 1 / (1 + a / 2), a >= 0; P interpolates at Chebyshev nodes over a in [0, 9.5], where
 * x Phi(x) is 2.6e-8 off at most; beyond, the exponential is zero.
 */
static v16 erfc16(v16 a)
{
    static const float p[] = {-1.26512455f, 0.99172955f, 0.44876519f,  -0.27532663f, 0.94849125f,
                              -1.92578059f, 1.60431952f, -0.61906955f, 0.091995719f};
    v16 one = v16_set1(1.0f), t = v16_div(one, v16_fma(a, v16_set1(0.5f), one)), sum = v16_set1(p[8]);
    for (int i = 7; i >= 0; i--)
        sum = v16_fma(sum, t, v16_set1(p[i]));
    return v16_mul(t, v16_exp(v16_fma(v16_neg(a), a, sum)));
}

/* x Phi(x) = max(x, 0) - |x| / 2 erfc(|x| / sqrt 2): no cancellation on either side. */
static inline v16 gelu16(v16 x)
{
    v16 size = v16_abs(x), tail = v16_mul(v16_mul(size, v16_set1(0.5f)), erfc16(v16_mul(size, v16_set1(0.70710678f))));
    return v16_sub(v16_max(x, v16_set1(0.0f)), tail);
}

static void gelu(float *x, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store(x + i, gelu16(v16_load(x + i)));
    if (i < n)
        v16_store_n(x + i, gelu16(v16_load_n(x + i, n - i)), n - i);
}

static void softmax_max(float *z, uint32_t n, uint32_t n_acc, float scale, float factor, float *acc)
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
    v16 by = v16_set1(factor / v16_sum(sum));
    for (uint32_t i = 0; i < n_acc; i += 16)
        v16_store(acc + i, v16_max(v16_mul(v16_load(z + i), by), v16_load(acc + i)));
}

static void products(const float *a, size_t stride, uint32_t n_rows, uint32_t row, uint32_t at, float *out)
{
    v16 acc[4][2];
    for (int r = 0; r < 4; r++)
        acc[r][0] = acc[r][1] = v16_set1(0.0f);
    for (uint32_t k = 0; k < n_rows; k++, a += stride) {
        v16 lo = v16_load(a + at), hi = v16_load(a + at + 16);
        for (int r = 0; r < 4; r++) {
            v16 left = v16_set1(a[row + (uint32_t)r]);
            acc[r][0] = v16_fma(left, lo, acc[r][0]);
            acc[r][1] = v16_fma(left, hi, acc[r][1]);
        }
    }
    for (int r = 0; r < 4; r++) {
        v16_store(out + 32 * r, acc[r][0]);
        v16_store(out + 32 * r + 16, acc[r][1]);
    }
}

const node_kvzap_ops_t KVZAP_OPS = {affine, gelu, softmax_max, products};
