/* Sixteen lanes of four bytes, and of one sum, as arrays: the plain reference of the integer vectors. */
#ifndef NODE_INT_SCALAR_H
#define NODE_INT_SCALAR_H

#include "kernels/vec_scalar.h"

typedef struct {
    uint8_t b[64];
} b64;
typedef struct {
    int32_t i[16];
} n16;

static inline b64 b64_load(const uint8_t *p)
{
    b64 r;
    memcpy(r.b, p, sizeof r.b);
    return r;
}
/* (x >> shift) & mask of every byte */
static inline b64 b64_field(b64 x, int shift, int mask)
{
    for (int i = 0; i < 64; i++)
        x.b[i] = (uint8_t)(x.b[i] >> shift & mask);
    return x;
}
/* bit `at` of every byte, at the place of 4 */
static inline b64 b64_four(b64 x, int at)
{
    for (int i = 0; i < 64; i++)
        x.b[i] = (uint8_t)((x.b[i] >> at & 1) << 2);
    return x;
}
static inline b64 b64_or(b64 x, b64 y)
{
    for (int i = 0; i < 64; i++)
        x.b[i] |= y.b[i];
    return x;
}
static inline n16 n16_zero(void)
{
    n16 r = {{0}};
    return r;
}
/* Every lane += its four codes times the four signed bytes at q; wide: codes over 15. Exact. */
static inline n16 n16_dot(n16 acc, b64 codes, const int8_t *q, int wide)
{
    (void)wide;
    V16_EACH for (int j = 0; j < 4; j++) acc.i[i] += codes.b[4 * i + j] * q[j];
    return acc;
}
/* The same with unsigned bytes at w, up to 255; codes up to 15. */
static inline n16 n16_dot_unsigned(n16 acc, b64 codes, const uint8_t *w)
{
    V16_EACH for (int j = 0; j < 4; j++) acc.i[i] += codes.b[4 * i + j] * w[j];
    return acc;
}
static inline n16 n16_high_low(n16 high, n16 low) /* 128 high + low */
{
    V16_EACH high.i[i] = high.i[i] * 128 + low.i[i];
    return high;
}
static inline v16 v16_from_n16(n16 x)
{
    v16 r;
    V16_EACH r.f[i] = (float)x.i[i];
    return r;
}
/* Rounds half to even; |x| <= 127. Returns the sum. */
static inline int32_t v16_store_i8(int8_t *p, v16 x)
{
    int32_t sum = 0;
    V16_EACH
    {
        p[i] = (int8_t)_mm_cvtss_si32(_mm_set_ss(x.f[i]));
        sum += p[i];
    }
    return sum;
}
/* Rounds half to even; 0 <= x <= 255. */
static inline void v16_store_u8(uint8_t *p, v16 x) { V16_EACH p[i] = (uint8_t)_mm_cvtss_si32(_mm_set_ss(x.f[i])); }
/* Rounds half to even; |x| <= 16383. The low seven bits, and the signed rest. */
static inline void v16_store_high_low(int8_t *high, int8_t *low, v16 x)
{
    V16_EACH
    {
        int32_t n = _mm_cvtss_si32(_mm_set_ss(x.f[i]));
        high[i] = (int8_t)(n >> 7);
        low[i] = (int8_t)(n & 127);
    }
}
/* Walsh-Hadamard transform of the sixteen lanes. */
static inline v16 v16_hadamard(v16 x)
{
    for (int half = 1; half < 16; half *= 2)
        for (int i = 0; i < 16; i++)
            if (!(i & half)) {
                float a = x.f[i], b = x.f[i + half];
                x.f[i] = a + b;
                x.f[i + half] = a - b;
            }
    return x;
}

#endif
