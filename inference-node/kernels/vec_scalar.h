/* Sixteen lanes as an array: the plain reference that the vector forms are held to. */
#ifndef NODE_VEC_SCALAR_H
#define NODE_VEC_SCALAR_H

#include <emmintrin.h>

#include "kernels/numerics.h"

typedef struct {
    float f[16];
} v16;

#define V16_EACH for (int i = 0; i < 16; i++)

static inline v16 v16_set1(float x)
{
    v16 r;
    V16_EACH r.f[i] = x;
    return r;
}
static inline v16 v16_load(const float *p)
{
    v16 r;
    memcpy(r.f, p, sizeof r.f);
    return r;
}
static inline void v16_store(float *p, v16 a) { memcpy(p, a.f, sizeof a.f); }
static inline v16 v16_load_n(const float *p, uint32_t n)
{
    v16 r = v16_set1(0.0f);
    memcpy(r.f, p, n * sizeof(float));
    return r;
}
static inline void v16_store_n(float *p, v16 a, uint32_t n) { memcpy(p, a.f, n * sizeof(float)); }
static inline v16 v16_add(v16 a, v16 b)
{
    V16_EACH a.f[i] += b.f[i];
    return a;
}
static inline v16 v16_sub(v16 a, v16 b)
{
    V16_EACH a.f[i] -= b.f[i];
    return a;
}
static inline v16 v16_mul(v16 a, v16 b)
{
    V16_EACH a.f[i] *= b.f[i];
    return a;
}
static inline v16 v16_div(v16 a, v16 b)
{
    V16_EACH a.f[i] /= b.f[i];
    return a;
}
static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
    V16_EACH c.f[i] = node_fma(a.f[i], b.f[i], c.f[i]);
    return c;
}
static inline v16 v16_neg(v16 a)
{
    V16_EACH a.f[i] = -a.f[i];
    return a;
}
static inline v16 v16_round(v16 x)
{
    V16_EACH x.f[i] = node_round(x.f[i]);
    return x;
}
/* a > b ? a : b, so a NaN in a never wins */
static inline v16 v16_max(v16 a, v16 b)
{
    V16_EACH a.f[i] = a.f[i] > b.f[i] ? a.f[i] : b.f[i];
    return a;
}
static inline v16 v16_abs(v16 a)
{
    V16_EACH a.f[i] = node_f32_from_bits(node_bits_from_f32(a.f[i]) & 0x7fffffffu);
    return a;
}
/* lanes i < n of a, the others of b */
static inline v16 v16_first(v16 a, v16 b, uint32_t n)
{
    V16_EACH a.f[i] = (uint32_t)i < n ? a.f[i] : b.f[i];
    return a;
}
static inline v16 v16_exp2(v16 a)
{
    V16_EACH a.f[i] = node_exp2(a.f[i]);
    return a;
}
static inline v16 v16_exp2_low(v16 a) { return v16_exp2(a); } /* of numbers that are not over 0 */
static inline v16 v16_exp(v16 a)
{
    V16_EACH a.f[i] = node_exp(a.f[i]);
    return a;
}
static inline float v16_sum(v16 a)
{
    for (int n = 8; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            a.f[i] += a.f[i + n];
    return a.f[0];
}
static inline float v16_hmax(v16 a)
{
    for (int n = 8; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            a.f[i] = a.f[i] > a.f[i + n] ? a.f[i] : a.f[i + n];
    return a.f[0];
}
/* The largest lane of each of n vectors, and the sum of its lanes; lanes past n are 0. */
static inline v16 v16_hmax_each(const v16 *x, int n)
{
    v16 y = v16_set1(0.0f);
    for (int i = 0; i < n; i++)
        y.f[i] = v16_hmax(x[i]);
    return y;
}
static inline v16 v16_sum_each(const v16 *x, int n)
{
    v16 y = v16_set1(0.0f);
    for (int i = 0; i < n; i++)
        y.f[i] = v16_sum(x[i]);
    return y;
}
static inline v16 v16_load_f16(const uint16_t *p)
{
    v16 r;
    V16_EACH r.f[i] = node_f32_from_f16(p[i]);
    return r;
}
/* Returns how many lanes saturated. */
static inline uint32_t v16_store_f16(uint16_t *p, v16 a)
{
    uint32_t n = 0;
    V16_EACH
    {
        p[i] = node_f16_from_f32(a.f[i]);
        n += __builtin_fabsf(a.f[i]) > 65504.0f;
    }
    return n;
}
/* Round to nearest even and saturate to 16 bits; *sum_p += the lanes. */
static inline void v16_store_i16(int16_t *p, v16 a, int32_t *sum_p)
{
    V16_EACH
    {
        int32_t v = _mm_cvtss_si32(_mm_set_ss(a.f[i])); /* a NaN gives the minimum, as in the vector forms */
        p[i] = (int16_t)(v > 32767 ? 32767 : v < -32768 ? -32768 : v);
        *sum_p += p[i];
    }
}

#endif
