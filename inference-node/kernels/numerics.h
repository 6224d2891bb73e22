/*
 * Scalar arithmetic of the numerics contract: own exp2, exp and log (polynomials, one rounding order, fmaf only), f16
 * conversions, and the double functions that RoPE tables are made with.
 *
 * The vector kernels repeat these steps lane by lane, so a value has the same bits from every ISA and compiler. A
 * change of any constant or order here is another numerics id. No libm but fmaf; the rounding mode is the default one.
 */
#ifndef NODE_NUMERICS_H
#define NODE_NUMERICS_H

#include <stdint.h>
#include <string.h>

static inline float node_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

static inline uint32_t node_bits_from_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float node_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Adding it moves the unit to the last bit: rounds half to even, for |x| < 2^22. */
#define NODE_ROUND_MAGIC 0x1.8p23f
static inline float node_round(float x) { return (x + NODE_ROUND_MAGIC) - NODE_ROUND_MAGIC; }

/* (2^r - 1) / r on [-0.5, 0.5]: Chebyshev interpolation, error 2e-9. */
#define NODE_EXP2_C0 0.693147188f
#define NODE_EXP2_C1 0.240226508f
#define NODE_EXP2_C2 0.0555035711f
#define NODE_EXP2_C3 0.00961808256f
#define NODE_EXP2_C4 0.00133908634f
#define NODE_EXP2_C5 0.000154531629f
/* (e^r - 1) / r on [-ln2/2, ln2/2]. */
#define NODE_EXP_C0 1.00000001f
#define NODE_EXP_C1 0.500000001f
#define NODE_EXP_C2 0.166665052f
#define NODE_EXP_C3 0.0416664649f
#define NODE_EXP_C4 0.00836915396f
#define NODE_EXP_C5 0.00139336479f
#define NODE_LOG2E 1.44269504088896341f
#define NODE_LN2_HI 0x1.62e4p-1f /* 15 bits: n * hi is exact */
#define NODE_LN2_LO 0x1.7f7d1cf79abcap-20f
/* Below the minimum the result is +0, at and over the maximum +infinity: no denormal is ever made. */
#define NODE_EXP2_MIN (-126.0f)
#define NODE_EXP2_MAX 128.0f
#define NODE_EXP_MIN (-87.25f)
#define NODE_EXP_MAX 88.75f

/* p * 2^n for n in [-126, 128], in two steps because 2^128 is not a float. */
static inline float node_scale2(float p, int32_t n)
{
    int32_t half = n >> 1;
    float a = node_f32_from_bits((uint32_t)(half + 127) << 23);
    float b = node_f32_from_bits((uint32_t)(n - half + 127) << 23);
    return p * a * b;
}

/* 2^x; at most 1 ulp off. */
static inline float node_exp2(float x)
{
    if (x < NODE_EXP2_MIN)
        return 0.0f;
    if (x >= NODE_EXP2_MAX)
        return __builtin_inff();
    if (x != x)
        return x;
    float n = node_round(x);
    float r = x - n;
    float q = node_fma(NODE_EXP2_C5, r, NODE_EXP2_C4);
    q = node_fma(q, r, NODE_EXP2_C3);
    q = node_fma(q, r, NODE_EXP2_C2);
    q = node_fma(q, r, NODE_EXP2_C1);
    q = node_fma(q, r, NODE_EXP2_C0);
    return node_scale2(node_fma(q, r, 1.0f), (int32_t)n);
}

/* e^x; at most 1 ulp off. */
static inline float node_exp(float x)
{
    if (x < NODE_EXP_MIN)
        return 0.0f;
    if (x >= NODE_EXP_MAX)
        return __builtin_inff();
    if (x != x)
        return x;
    float n = node_round(x * NODE_LOG2E);
    float r = node_fma(-n, NODE_LN2_HI, x);
    r = node_fma(-n, NODE_LN2_LO, r);
    float q = node_fma(NODE_EXP_C5, r, NODE_EXP_C4);
    q = node_fma(q, r, NODE_EXP_C3);
    q = node_fma(q, r, NODE_EXP_C2);
    q = node_fma(q, r, NODE_EXP_C1);
    q = node_fma(q, r, NODE_EXP_C0);
    return node_scale2(node_fma(q, r, 1.0f), (int32_t)n);
}

/* Natural logarithm: -infinity at 0, NaN below it. m in [sqrt(1/2), sqrt 2), log m = 2 s + s^3 P(s^2). */
static inline float node_log(float x)
{
    if (x != x || x == __builtin_inff())
        return x;
    if (x <= 0.0f)
        return x == 0.0f ? -__builtin_inff() : __builtin_nanf("");
    int32_t e = 0;
    if (x < 0x1p-126f) {
        x *= 0x1p24f;
        e = -24;
    }
    uint32_t u = node_bits_from_f32(x) - 0x3f3504f3u; /* bits of sqrt(1/2) */
    e += (int32_t)u >> 23;
    float m = node_f32_from_bits((u & 0x007fffffu) + 0x3f3504f3u);
    float f = m - 1.0f;
    float s = f / (2.0f + f);
    float z = s * s;
    float p = node_fma(0.233329128f, z, 0.285507308f);
    p = node_fma(p, z, 0.400001226f);
    p = node_fma(p, z, 0.666666666f);
    /* log m = f - s (f - s^2 P): keeps the leading term exact */
    float r = node_fma(-s, node_fma(-z, p, f), f);
    float n = (float)e;
    return node_fma(n, NODE_LN2_HI, node_fma(n, NODE_LN2_LO, r));
}

static inline float node_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mag = h & 0x7fffu;
    if (mag >= 0x7c00u) /* infinity; a NaN becomes quiet, as vcvtph2ps makes it */
        return node_f32_from_bits(sign | 0x7f800000u | (mag > 0x7c00u ? 0x00400000u : 0) | (mag & 0x3ffu) << 13);
    if (mag >= 0x0400u)
        return node_f32_from_bits(sign | ((mag << 13) + 0x38000000u));
    return node_f32_from_bits(sign | node_bits_from_f32((float)mag * 0x1p-24f));
}

/* Round to nearest even; magnitudes over 65504, infinity included, become 65504; NaN stays NaN. */
static inline uint16_t node_f16_from_f32(float x)
{
    uint32_t u = node_bits_from_f32(x), sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((mag >> 13) & 0x3ffu));
    if (mag > 0x477fe000u) /* 65504 */
        return (uint16_t)(sign | 0x7bffu);
    if (mag < 0x38800000u) { /* below 2^-14: the unit is 2^-24, and adding 0.5 puts it in the last bit */
        uint32_t d = node_bits_from_f32(node_f32_from_bits(mag) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | d);
    }
    mag += 0x0fffu + ((mag >> 13) & 1u);
    return (uint16_t)(sign | ((mag - 0x38000000u) >> 13));
}

/* Double precision, for tables made once. x in [0, 2^20]; error below 1e-15. */
void node_sincos(double x, double *sin_p, double *cos_p);
double node_exp_f64(double x);           /* |x| <= 700 */
double node_log_f64(double x);           /* normal x > 0 */
double node_pow_f64(double x, double y); /* x > 0 */

#endif
