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
