/* Sixteen lanes as one AVX-512 register. */
#ifndef NODE_VEC_AVX512_H
#define NODE_VEC_AVX512_H

#include <immintrin.h>

#include "kernels/numerics.h"

typedef __m512 v16;

static inline __mmask16 v16_mask(uint32_t n) { return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1u); }
static inline v16 v16_set1(float x) { return _mm512_set1_ps(x); }
static inline v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v16_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
static inline v16 v16_load_n(const float *p, uint32_t n) { return _mm512_maskz_loadu_ps(v16_mask(n), p); }
static inline void v16_store_n(float *p, v16 a, uint32_t n) { _mm512_mask_storeu_ps(p, v16_mask(n), a); }
static inline v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
static inline v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
static inline v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
static inline v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
static inline v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
static inline v16 v16_neg(v16 a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
static inline v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
static inline v16 v16_abs(v16 a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
static inline v16 v16_first(v16 a, v16 b, uint32_t n) { return _mm512_mask_blend_ps(v16_mask(n), b, a); }
static inline v16 v16_round(v16 x)
{
    v16 magic = _mm512_set1_ps(NODE_ROUND_MAGIC);
    return _mm512_sub_ps(_mm512_add_ps(x, magic), magic);
}
static inline v16 v16_scale2(v16 p, v16 n)
{
    __m512i e = _mm512_cvttps_epi32(n), half = _mm512_srai_epi32(e, 1), bias = _mm512_set1_epi32(127);
    __m512i a = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
    __m512i b = _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(e, half), bias), 23);
    return _mm512_mul_ps(_mm512_mul_ps(p, _mm512_castsi512_ps(a)), _mm512_castsi512_ps(b));
}
/* y, but +0 where x < min, +infinity where x >= max, x where x is NaN */
static inline v16 v16_range(v16 x, float min, float max, v16 y)
{
    y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, _mm512_set1_ps(min), _CMP_LT_OQ), _mm512_setzero_ps());
    y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, _mm512_set1_ps(max), _CMP_GE_OQ), _mm512_set1_ps(__builtin_inff()));
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}
/* 2^x, the bits of v16_exp2, for x <= 0 or NaN: there the result is normal or +0. */
static inline v16 v16_exp2_low(v16 x)
{
    v16 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = _mm512_sub_ps(x, n);
    v16 q = _mm512_fmadd_ps(_mm512_set1_ps(NODE_EXP2_C5), r, _mm512_set1_ps(NODE_EXP2_C4));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(NODE_EXP2_C3));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(NODE_EXP2_C2));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(NODE_EXP2_C1));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(NODE_EXP2_C0));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(NODE_EXP2_MIN), _CMP_NLT_UQ), q, n);
}
static inline float v16_sum(v16 a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
static inline float v16_hmax(v16 a)
{
    __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
/*
 * Reductions of n <= 16 vectors together: each step folds two vectors into one, in the order of v16_sum and v16_hmax.
 * Lane i of the result is vector i, those past n are of no meaning; a vector that is missing in a pair stands for
 * itself. n is a constant where it counts.
 */
#define V16_FOLD_STEP(name, OP, SHUFFLE, first, second) \
    static inline v16 name(v16 x, v16 y) { return OP(SHUFFLE(x, y, first), SHUFFLE(x, y, second)); }
#define V16_FOLD_EACH(name, OP)                                                                           \
    V16_FOLD_STEP(name##_8, OP, _mm512_shuffle_f32x4, 0x44, 0xee)                                         \
    V16_FOLD_STEP(name##_4, OP, _mm512_shuffle_f32x4, 0x88, 0xdd)                                         \
    V16_FOLD_STEP(name##_2, OP, _mm512_shuffle_ps, 0x44, 0xee)                                            \
    V16_FOLD_STEP(name##_1, OP, _mm512_shuffle_ps, 0x88, 0xdd)                                            \
    static inline v16 name##_of_4(const v16 *x, int n)                                                    \
    {                                                                                                     \
        v16 a = name##_8(x[0], x[n > 1 ? 1 : 0]), b = n > 2 ? name##_8(x[2], x[n > 3 ? 3 : 2]) : a;       \
        a = name##_4(a, b);                                                                               \
        a = name##_2(a, a);                                                                               \
        return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),  \
                                     name##_1(a, a));                                                     \
    }                                                                                                     \
    static inline v16 name##_of_8(const v16 *x, int n)                                                    \
    {                                                                                                     \
        v16 a[4];                                                                                         \
        for (int i = 0; i < 4; i++)                                                                       \
            a[i] = name##_8(x[i], x[i + 4 < n ? i + 4 : i]);                                              \
        v16 b = name##_2(name##_4(a[0], a[1]), name##_4(a[2], a[3]));                                     \
        return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 8, 1, 9, 4, 12, 5, 13, 0, 0, 0, 0, 0, 0, 0, 0), \
                                     name##_1(b, b));                                                     \
    }                                                                                                     \
    static inline v16 name(const v16 *x, int n)                                                           \
    {                                                                                                     \
        if (n <= 4)                                                                                       \
            return name##_of_4(x, n);                                                                     \
        if (n <= 8)                                                                                       \
            return name##_of_8(x, n);                                                                     \
        v16 four[4];                                                                                      \
        for (int l = 0; l < 4; l++) { /* vectors l, l + 4, l + 8, l + 12: a part of four lanes each */    \
            const int third = l + 8 < n ? l + 8 : l, fourth = l + 12 < n ? l + 12 : third;                \
            four[l] = name##_4(name##_8(x[l], x[l + 4]), name##_8(x[third], x[fourth]));                  \
        }                                                                                                 \
        return name##_1(name##_2(four[0], four[1]), name##_2(four[2], four[3]));                          \
    }
V16_FOLD_EACH(v16_hmax_each, _mm512_max_ps)
V16_FOLD_EACH(v16_sum_each, _mm512_add_ps)
static inline v16 v16_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }
static inline uint32_t v16_store_f16(uint16_t *p, v16 a)
{
    v16 top = _mm512_set1_ps(65504.0f);
    __mmask16 over = _mm512_cmp_ps_mask(v16_abs(a), top, _CMP_GT_OQ);
    /* the second operand wins against a NaN, so a NaN stays one */
    a = _mm512_max_ps(_mm512_set1_ps(-65504.0f), _mm512_min_ps(top, a));
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return (uint32_t)__builtin_popcount(over);
}
static inline void v16_store_i16(int16_t *p, v16 a, int32_t *sum_p)
{
    __m256i h = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a));
    _mm256_storeu_si256((void *)p, h);
    *sum_p += _mm512_reduce_add_epi32(_mm512_cvtepi16_epi32(h));
}

#include "kernels/vec_exp.h"

#endif
