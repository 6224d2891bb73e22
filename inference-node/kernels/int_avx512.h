/* Sixteen lanes of four bytes as one AVX-512 register; DOT_VNNI chooses the instruction of the dot product. */
#ifndef NODE_INT_AVX512_H
#define NODE_INT_AVX512_H

#include "kernels/vec_avx512.h"

typedef __m512i b64;
typedef __m512i n16;

static inline b64 b64_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
/* The shift crosses bytes, the mask takes away what came from the next one. */
static inline b64 b64_field(b64 x, int shift, int mask)
{
    return _mm512_and_si512(_mm512_srli_epi16(x, (unsigned)shift), _mm512_set1_epi8((char)mask));
}
static inline b64 b64_four(b64 x, int at)
{
    if (at >= 2)
        return b64_field(x, at - 2, 4);
    return _mm512_and_si512(_mm512_slli_epi16(x, (unsigned)(2 - at)), _mm512_set1_epi8(4));
}
static inline b64 b64_or(b64 x, b64 y) { return _mm512_or_si512(x, y); }
static inline n16 n16_zero(void) { return _mm512_setzero_si512(); }
#ifndef DOT_VNNI
static inline n16 n16_dot_small(n16 acc, b64 codes, __m512i q)
{
    __m512i pairs = _mm512_maddubs_epi16(codes, q); /* 2 x 15 x 127 at most: no saturation */
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
#endif
static inline n16 n16_dot(n16 acc, b64 codes, const int8_t *q, int wide)
{
    int32_t four;
    memcpy(&four, q, 4);
    __m512i v = _mm512_set1_epi32(four);
#ifdef DOT_VNNI
    (void)wide;
    return _mm512_dpbusd_epi32(acc, codes, v);
#else
    if (!wide)
        return n16_dot_small(acc, codes, v);
    /* 255 x 127 x 2 would saturate: as 16 high + low it does not */
    __m512i high = n16_dot_small(_mm512_setzero_si512(), b64_field(codes, 4, 15), v);
    return _mm512_add_epi32(n16_dot_small(acc, b64_field(codes, 0, 15), v), _mm512_slli_epi32(high, 4));
#endif
}
static inline n16 n16_dot_unsigned(n16 acc, b64 codes, const uint8_t *w)
{
    int32_t four;
    memcpy(&four, w, 4);
    __m512i v = _mm512_set1_epi32(four);
#ifdef DOT_VNNI
    return _mm512_dpbusd_epi32(acc, v, codes);
#else
    return n16_dot_small(acc, v, codes); /* 2 x 255 x 15 at most: no saturation */
#endif
}
static inline n16 n16_high_low(n16 high, n16 low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 7), low); }
static inline v16 v16_from_n16(n16 x) { return _mm512_cvtepi32_ps(x); }
static inline int32_t v16_store_i8(int8_t *p, v16 x)
{
    __m512i n = _mm512_cvtps_epi32(x);
    _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(n));
    return _mm512_reduce_add_epi32(n);
}
static inline void v16_store_u8(uint8_t *p, v16 x)
{
    _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}
static inline void v16_store_high_low(int8_t *high, int8_t *low, v16 x)
{
    __m512i n = _mm512_cvtps_epi32(x);
    _mm_storeu_si128((void *)high, _mm512_cvtepi32_epi8(_mm512_srli_epi32(n, 7)));
    _mm_storeu_si128((void *)low, _mm512_cvtepi32_epi8(_mm512_and_si512(n, _mm512_set1_epi32(127))));
}
/* b + a where the lane's bit is clear, b - a where it is set: a is the lane, b its partner. */
static inline v16 v16_butterfly(v16 a, v16 b, __mmask16 set)
{
    return _mm512_mask_sub_ps(_mm512_add_ps(b, a), set, b, a);
}
static inline v16 v16_hadamard(v16 x)
{
    x = v16_butterfly(x, _mm512_permute_ps(x, 0xb1), 0xaaaa);
    x = v16_butterfly(x, _mm512_permute_ps(x, 0x4e), 0xcccc);
    x = v16_butterfly(x, _mm512_shuffle_f32x4(x, x, 0xb1), 0xf0f0);
    return v16_butterfly(x, _mm512_shuffle_f32x4(x, x, 0x4e), 0xff00);
}

#endif
