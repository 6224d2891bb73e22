/* Sixteen lanes as two AVX2 registers. */
#ifndef NODE_VEC_AVX2_H
#define NODE_VEC_AVX2_H

#include <immintrin.h>

#include "kernels/numerics.h"

typedef struct {
    __m256 a, b; /* lanes 0..7, 8..15 */
} v16;

#define V16_BOTH(op, x, y) ((v16){op((x).a, (y).a), op((x).b, (y).b)})

static inline v16 v16_set1(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline v16 v16_load(const float *p) { return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void v16_store(float *p, v16 x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
static inline __m256i v8_mask(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline v16 v16_load_n(const float *p, uint32_t n)
{
    return (v16){_mm256_maskload_ps(p, v8_mask(n)),
                 n > 8 ? _mm256_maskload_ps(p + 8, v8_mask(n - 8)) : _mm256_setzero_ps()};
}
static inline void v16_store_n(float *p, v16 x, uint32_t n)
{
    float t[16];
    v16_store(t, x);
    memcpy(p, t, n * sizeof(float));
}
static inline v16 v16_add(v16 x, v16 y) { return V16_BOTH(_mm256_add_ps, x, y); }
static inline v16 v16_sub(v16 x, v16 y) { return V16_BOTH(_mm256_sub_ps, x, y); }
static inline v16 v16_mul(v16 x, v16 y) { return V16_BOTH(_mm256_mul_ps, x, y); }
static inline v16 v16_div(v16 x, v16 y) { return V16_BOTH(_mm256_div_ps, x, y); }
static inline v16 v16_fma(v16 x, v16 y, v16 z)
{
    return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline v16 v16_neg(v16 x) { return V16_BOTH(_mm256_xor_ps, x, v16_set1(-0.0f)); }
static inline v16 v16_max(v16 x, v16 y) { return V16_BOTH(_mm256_max_ps, x, y); }
static inline v16 v16_abs(v16 x) { return V16_BOTH(_mm256_andnot_ps, v16_set1(-0.0f), x); }
static inline v16 v16_first(v16 x, v16 y, uint32_t n)
{
    __m256i k = _mm256_set1_epi32((int32_t)n), i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256 lo = _mm256_castsi256_ps(_mm256_cmpgt_epi32(k, i));
    __m256 hi = _mm256_castsi256_ps(_mm256_cmpgt_epi32(k, _mm256_add_epi32(i, _mm256_set1_epi32(8))));
    return (v16){_mm256_blendv_ps(y.a, x.a, lo), _mm256_blendv_ps(y.b, x.b, hi)};
}
static inline v16 v16_round(v16 x)
{
    v16 magic = v16_set1(NODE_ROUND_MAGIC);
    return v16_sub(v16_add(x, magic), magic);
}
static inline __m256 v8_scale2(__m256 p, __m256 n)
{
    __m256i e = _mm256_cvttps_epi32(n), half = _mm256_srai_epi32(e, 1), bias = _mm256_set1_epi32(127);
    __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(e, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}
static inline v16 v16_scale2(v16 p, v16 n) { return V16_BOTH(v8_scale2, p, n); }
static inline __m256 v8_range(__m256 x, float min, float max, __m256 y)
{
    __m256 inf = _mm256_set1_ps(__builtin_inff());
    y = _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(min), _CMP_LT_OQ), y);
    y = _mm256_blendv_ps(y, inf, _mm256_cmp_ps(x, _mm256_set1_ps(max), _CMP_GE_OQ));
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
static inline v16 v16_range(v16 x, float min, float max, v16 y)
{
    return (v16){v8_range(x.a, min, max, y.a), v8_range(x.b, min, max, y.b)};
}
/* 2^x, the bits of v16_exp2, for x <= 0 or NaN: there the result is normal or +0, so that its exponent can be added. */
static inline __m256 v8_exp2_low(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(NODE_ROUND_MAGIC), t = _mm256_add_ps(x, magic);
    const __m256 r = _mm256_sub_ps(x, _mm256_sub_ps(t, magic));
    __m256 q = _mm256_fmadd_ps(_mm256_set1_ps(NODE_EXP2_C5), r, _mm256_set1_ps(NODE_EXP2_C4));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(NODE_EXP2_C3));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(NODE_EXP2_C2));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(NODE_EXP2_C1));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(NODE_EXP2_C0));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(1.0f));
    /* the whole number is in the low bits of t */
    __m256 y =
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(q), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
    y = _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(NODE_EXP2_MIN), _CMP_LT_OQ), y);
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
static inline v16 v16_exp2_low(v16 x) { return (v16){v8_exp2_low(x.a), v8_exp2_low(x.b)}; }
static inline float v16_sum(v16 x)
{
    __m256 b = _mm256_add_ps(x.a, x.b);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
static inline float v16_hmax(v16 x)
{
    __m256 b = _mm256_max_ps(x.a, x.b);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
/*
 * Reductions of n <= 16 vectors together: each step folds two vectors into one, in the order of v16_sum and v16_hmax.
 * Lane i of the result is vector i, those past n are of no meaning; a vector that is missing in a pair stands for
 * itself. n is a constant where it counts.
 */
#define V16_FOLD_EACH(name, OP, OP4)                                                                   \
    static inline __m128 name##_of_4(const v16 *x, int n)                                              \
    {                                                                                                  \
        __m128 a[4];                                                                                   \
        for (int i = 0; i < 4; i++) {                                                                  \
            const __m256 h = OP(x[i < n ? i : 0].a, x[i < n ? i : 0].b);                               \
            a[i] = OP4(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));                        \
        }                                                                                              \
        const __m128 b = OP4(_mm_shuffle_ps(a[0], a[1], 0x44), _mm_shuffle_ps(a[0], a[1], 0xee));      \
        const __m128 c = OP4(_mm_shuffle_ps(a[2], a[3], 0x44), _mm_shuffle_ps(a[2], a[3], 0xee));      \
        return OP4(_mm_shuffle_ps(b, c, 0x88), _mm_shuffle_ps(b, c, 0xdd));                            \
    }                                                                                                  \
    static inline __m256 name##_of_8(const v16 *x, int n)                                              \
    {                                                                                                  \
        __m256 a[4];                                                                                   \
        for (int i = 0; i < 4; i++) {                                                                  \
            const int j = i + 4 < n ? i + 4 : i;                                                       \
            const __m256 h = OP(x[i].a, x[i].b), g = OP(x[j].a, x[j].b);                               \
            a[i] = OP(_mm256_permute2f128_ps(h, g, 0x20), _mm256_permute2f128_ps(h, g, 0x31));         \
        }                                                                                              \
        const __m256 b = OP(_mm256_shuffle_ps(a[0], a[1], 0x44), _mm256_shuffle_ps(a[0], a[1], 0xee)); \
        const __m256 c = OP(_mm256_shuffle_ps(a[2], a[3], 0x44), _mm256_shuffle_ps(a[2], a[3], 0xee)); \
        return OP(_mm256_shuffle_ps(b, c, 0x88), _mm256_shuffle_ps(b, c, 0xdd));                       \
    }                                                                                                  \
    static inline __m256 name##_half(const v16 *x, int n)                                              \
    {                                                                                                  \
        return n <= 4 ? _mm256_castps128_ps256(name##_of_4(x, n)) : name##_of_8(x, n);                 \
    }                                                                                                  \
    static inline v16 name(const v16 *x, int n)                                                        \
    {                                                                                                  \
        const __m256 low = name##_half(x, n);                                                          \
        return (v16){low, n > 8 ? name##_half(x + 8, n - 8) : low};                                    \
    }
V16_FOLD_EACH(v16_hmax_each, _mm256_max_ps, _mm_max_ps)
V16_FOLD_EACH(v16_sum_each, _mm256_add_ps, _mm_add_ps)
static inline v16 v16_load_f16(const uint16_t *p)
{
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8)))};
}
static inline uint32_t v8_store_f16(uint16_t *p, __m256 x)
{
    __m256 top = _mm256_set1_ps(65504.0f);
    __m256 over = _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x), top, _CMP_GT_OQ);
    /* the second operand wins against a NaN, so a NaN stays one */
    x = _mm256_max_ps(_mm256_set1_ps(-65504.0f), _mm256_min_ps(top, x));
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return (uint32_t)__builtin_popcount((unsigned)_mm256_movemask_ps(over));
}
static inline uint32_t v16_store_f16(uint16_t *p, v16 x) { return v8_store_f16(p, x.a) + v8_store_f16(p + 8, x.b); }
static inline void v16_store_i16(int16_t *p, v16 x, int32_t *sum_p)
{
    __m256i h = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    h = _mm256_permute4x64_epi64(h, 0xd8);
    _mm256_storeu_si256((void *)p, h);
    __m256i s = _mm256_madd_epi16(h, _mm256_set1_epi16(1));
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    *sum_p += _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}

#include "kernels/vec_exp.h"

#endif
