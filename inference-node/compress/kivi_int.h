/*
 * Arithmetic of KIVI, one group of numbers at a time. A group is `n` neighbours of one row: tokens of one channel for
 * keys, channels of one token for values. x is decoded as code * scale + min.
 */
#ifndef NODE_KIVI_INT_H
#define NODE_KIVI_INT_H

#include "kernels/backend.h"
#include "kernels/numerics.h"

#define NODE_KIVI_GROUP_MAX 64u

static inline float node_kivi_levels(uint32_t bits) { return (float)((1u << bits) - 1u); }

/* Both ends are +0 where they are zero, whichever zero came first: the same bits from any order of comparing. */
static inline void node_kivi_fit(const float *x, uint32_t n, uint32_t bits, float *scale_p, float *min_p)
{
    float lo = x[0], hi = x[0];
    for (uint32_t i = 1; i < n; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    lo += 0.0f;
    hi += 0.0f;
    *scale_p = (hi - lo) / node_kivi_levels(bits);
    *min_p = lo;
}

/* What a record stores of a group with these ends. Codes belong to these, not to the unrounded ones. */
typedef struct node_kivi_params {
    uint16_t scale16, min16;
} node_kivi_params_t;

static inline node_kivi_params_t node_kivi_params(float lo, float hi, uint32_t bits)
{
    return (node_kivi_params_t){node_f16_from_f32((hi - lo) / node_kivi_levels(bits)), node_f16_from_f32(lo)};
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

/* Eight codes, one a byte, moved together: neighbours join into ever wider fields. */
static inline uint64_t node_kivi_squeeze(uint64_t w, uint32_t bits)
{
    if (bits == 4) {
        w = (w | w >> 4) & 0x00ff00ff00ff00ffull;
        w = (w | w >> 8) & 0x0000ffff0000ffffull;
        return (w | w >> 16) & 0xffffffffull;
    }
    w = (w | w >> 6) & 0x000f000f000f000full;
    w = (w | w >> 12) & 0x000000ff000000ffull;
    return (w | w >> 24) & 0xffffull;
}

/* n codes of 2, 4 or 8 bits, the first in the low bits; n * bits is a multiple of 8. */
static inline void node_kivi_pack(uint8_t *dst, const uint8_t *codes, uint32_t n, uint32_t bits)
{
    if (bits == 8) {
        memcpy(dst, codes, n);
        return;
    }
    for (; n >= 8; n -= 8, codes += 8, dst += bits) {
        uint64_t w;
        memcpy(&w, codes, 8);
        w = node_kivi_squeeze(w, bits);
        memcpy(dst, &w, bits);
    }
    for (uint32_t i = 0, at = 0; i < n; i++, at += bits) {
        if (at % 8 == 0)
            dst[at / 8] = 0;
        dst[at / 8] = (uint8_t)(dst[at / 8] | codes[i] << (at % 8));
    }
}

static inline uint32_t node_kivi_unpack(const uint8_t *src, uint32_t i, uint32_t bits)
{
    uint32_t at = i * bits;
    return (src[at / 8] >> (at % 8)) & ((1u << bits) - 1u);
}

/*
 * n_groups neighbours of `group` f16 numbers (a multiple of 16, at most NODE_KIVI_GROUP_MAX; all finite) to packed
 * codes and their f16 parameters. Bitwise equal on every ISA, and equal to the functions above one number at a time.
 */
typedef void (*node_kivi_quantise_fn)(const uint16_t *x, uint32_t n_groups, uint32_t group, uint32_t bits,
                                      uint8_t *codes, uint8_t *scales, uint8_t *mins);
void node_kivi_quantise_scalar(const uint16_t *x, uint32_t n_groups, uint32_t group, uint32_t bits, uint8_t *codes,
                               uint8_t *scales, uint8_t *mins);
void node_kivi_quantise_avx2(const uint16_t *x, uint32_t n_groups, uint32_t group, uint32_t bits, uint8_t *codes,
                             uint8_t *scales, uint8_t *mins);
void node_kivi_quantise_avx512(const uint16_t *x, uint32_t n_groups, uint32_t group, uint32_t bits, uint8_t *codes,
                               uint8_t *scales, uint8_t *mins);
/* NULL when the CPU lacks it. */
node_kivi_quantise_fn node_kivi_quantise(node_ops_level_t level);
/* One number at a time: any group size that packs into bytes. */
void node_kivi_quantise_plain(const uint16_t *x, uint32_t n_groups, uint32_t group, uint32_t bits, uint8_t *codes,
                              uint8_t *scales, uint8_t *mins);

#endif
