/*
 * Arithmetic of KIVI, one group of numbers at a time. A group is `n` neighbours of one row: tokens of one channel for
 * keys, channels of one token for values. x is decoded as code * scale + min.
 */
#ifndef NODE_KIVI_INT_H
#define NODE_KIVI_INT_H

#include "kernels/numerics.h"

static inline float node_kivi_levels(uint32_t bits) { return (float)((1u << bits) - 1u); }

static inline void node_kivi_fit(const float *x, uint32_t n, uint32_t bits, float *scale_p, float *min_p)
{
    float lo = x[0], hi = x[0];
    for (uint32_t i = 1; i < n; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    *scale_p = (hi - lo) / node_kivi_levels(bits);
    *min_p = lo;
}

/* Clamp, then round half to even. A division: multiplying by the reciprocal moves codes at the half points. */
static inline uint8_t node_kivi_code(float x, float scale, float min, float levels)
{
    if (scale == 0.0f)
        return 0;
    float t = (x - min) / scale;
    t = t > 0.0f ? t : 0.0f;
    t = t < levels ? t : levels;
    return (uint8_t)(int32_t)node_round(t);
}

static inline float node_kivi_value(uint32_t code, float scale, float min)
{
    float scaled = (float)code * scale; /* two roundings on every machine: never contracted */
    return scaled + min;
}

/* n codes of 2, 4 or 8 bits, the first in the low bits; n * bits is a multiple of 8. */
static inline void node_kivi_pack(uint8_t *dst, const uint8_t *codes, uint32_t n, uint32_t bits)
{
    const uint32_t per_byte = 8 / bits;
    for (uint32_t i = 0; i < n; i += per_byte) {
        uint32_t byte = 0;
        for (uint32_t j = 0; j < per_byte; j++)
            byte |= (uint32_t)codes[i + j] << (j * bits);
        *dst++ = (uint8_t)byte;
    }
}

static inline uint32_t node_kivi_unpack(const uint8_t *src, uint32_t i, uint32_t bits)
{
    uint32_t at = i * bits;
    return (src[at / 8] >> (at % 8)) & ((1u << bits) - 1u);
}

#endif
