/* Sixteen lanes of four bytes as two AVX2 registers; DOT_VNNI chooses the instruction of the dot product. */
#ifndef NODE_INT_AVX2_H
#define NODE_INT_AVX2_H

#include "kernels/vec_avx2.h"

typedef struct {
    __m256i a, b;
} b64;
typedef struct {
    __m256i a, b;
} n16;

static inline b64 b64_load(const uint8_t *p)
{
    return (b64){_mm256_loadu_si256((const void *)p), _mm256_loadu_si256((const void *)(p + 32))};
}
/* The shift crosses bytes, the mask takes away what came from the next one. */
static inline b64 b64_field(b64 x, int shift, int mask)
{
    __m256i m = _mm256_set1_epi8((char)mask);
    return (b64){_mm256_and_si256(_mm256_srli_epi16(x.a, shift), m),
                 _mm256_and_si256(_mm256_srli_epi16(x.b, shift), m)};
}
static inline b64 b64_four(b64 x, int at)
{
    if (at >= 2)
        return b64_field(x, at - 2, 4);
    __m256i m = _mm256_set1_epi8(4);
    return (b64){_mm256_and_si256(_mm256_slli_epi16(x.a, 2 - at), m),
                 _mm256_and_si256(_mm256_slli_epi16(x.b, 2 - at), m)};
}
static inline b64 b64_or(b64 x, b64 y) { return (b64){_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
static inline n16 n16_zero(void) { return (n16){_mm256_setzero_si256(), _mm256_setzero_si256()}; }
static inline __m256i n8_dot(__m256i acc, __m256i codes, __m256i q)
{
#ifdef DOT_VNNI
    return _mm256_dpbusd_avx_epi32(acc, codes, q);
#else
    __m256i pairs = _mm256_maddubs_epi16(codes, q); /* 2 x 15 x 127 at most: no saturation */
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}
/* Codes of 8 bits would saturate: 255 x 127 x 2 > 32767. As 16 high + low they do not. */
static inline __m256i n8_dot_wide(__m256i acc, __m256i codes, __m256i q)
{
#ifdef DOT_VNNI
    return _mm256_dpbusd_avx_epi32(acc, codes, q);
#else
    __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i l = _mm256_maddubs_epi16(_mm256_and_si256(codes, low), q);
    __m256i h = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(codes, 4), low), q);
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(l, ones));
    return _mm256_add_epi32(acc, _mm256_slli_epi32(_mm256_madd_epi16(h, ones), 4));
#endif
}
static inline n16 n16_dot(n16 acc, b64 codes, const int8_t *q, int wide)
{
    int32_t four;
    memcpy(&four, q, 4);
    __m256i v = _mm256_set1_epi32(four);
    if (wide)
        return (n16){n8_dot_wide(acc.a, codes.a, v), n8_dot_wide(acc.b, codes.b, v)};
    return (n16){n8_dot(acc.a, codes.a, v), n8_dot(acc.b, codes.b, v)};
}
static inline n16 n16_dot_unsigned(n16 acc, b64 codes, const uint8_t *w)
{
    int32_t four;
    memcpy(&four, w, 4);
    __m256i v = _mm256_set1_epi32(four); /* 2 x 255 x 15 at most: no saturation */
    return (n16){n8_dot(acc.a, v, codes.a), n8_dot(acc.b, v, codes.b)};
}
static inline n16 n16_high_low(n16 high, n16 low)
{
    return (n16){_mm256_add_epi32(_mm256_slli_epi32(high.a, 7), low.a),
                 _mm256_add_epi32(_mm256_slli_epi32(high.b, 7), low.b)};
}
static inline v16 v16_from_n16(n16 x) { return (v16){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
static inline __m256i i16_from_v16(v16 x)
{
    __m256i h = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    return _mm256_permute4x64_epi64(h, 0xd8);
}
static inline int32_t v16_store_i8(int8_t *p, v16 x)
{
    __m256i h = i16_from_v16(x);
    _mm_storeu_si128((void *)p, _mm_packs_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
    __m256i s = _mm256_madd_epi16(h, _mm256_set1_epi16(1));
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}
static inline void v16_store_u8(uint8_t *p, v16 x)
{
    __m256i h = i16_from_v16(x);
    _mm_storeu_si128((void *)p, _mm_packus_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}
static inline void v16_store_high_low(int8_t *high, int8_t *low, v16 x)
{
    __m256i n = i16_from_v16(x), h = _mm256_srai_epi16(n, 7), l = _mm256_and_si256(n, _mm256_set1_epi16(127));
    _mm_storeu_si128((void *)high, _mm_packs_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
    _mm_storeu_si128((void *)low, _mm_packs_epi16(_mm256_castsi256_si128(l), _mm256_extracti128_si256(l, 1)));
}
/* b + a where the lane's bit is clear, b - a where it is set: a is the lane, b its partner. */
static inline __m256 v8_butterfly(__m256 a, __m256 b, __m256 sign) { return _mm256_add_ps(b, _mm256_xor_ps(a, sign)); }
static inline __m256 v8_hadamard(__m256 x)
{
    const float z = 0.0f, m = -0.0f;
    x = v8_butterfly(x, _mm256_permute_ps(x, 0xb1), _mm256_setr_ps(z, m, z, m, z, m, z, m));
    x = v8_butterfly(x, _mm256_permute_ps(x, 0x4e), _mm256_setr_ps(z, z, m, m, z, z, m, m));
    return v8_butterfly(x, _mm256_permute2f128_ps(x, x, 1), _mm256_setr_ps(z, z, z, z, m, m, m, m));
}
static inline v16 v16_hadamard(v16 x)
{
    __m256 a = v8_hadamard(x.a), b = v8_hadamard(x.b);
    return (v16){_mm256_add_ps(a, b), _mm256_sub_ps(a, b)};
}

#endif
