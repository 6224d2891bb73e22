/*
 * Arithmetic of `rot`, one tile of one head at a time. Channels are rotated by a Walsh-Hadamard transform in natural
 * order over blocks of the largest power of two that divides the head, then every token's row is cut into groups of
 * neighbouring channels: x = code * scale + min, scale and min in f16.
 */
#ifndef NODE_ROT_INT_H
#define NODE_ROT_INT_H

#include "kernels/backend.h"
#include "kernels/numerics.h"
#include "kv/pages.h"

static inline uint32_t node_rot_block(uint32_t dim) { return dim & (0u - dim); }

/* Exact where the block is a power of four, else one rounding. The transform times this is its own inverse. */
static inline float node_rot_norm(uint32_t block) { return 1.0f / __builtin_sqrtf((float)block); }

/* Eight codes are `bits` bytes, the first code in the low bits; n is a multiple of 8. */
static inline void node_rot_pack(uint8_t *dst, const uint8_t *codes, uint32_t n, uint32_t bits)
{
    for (uint32_t i = 0; i < n; i += 8, dst += bits) {
        uint64_t w = 0;
        for (uint32_t j = 0; j < 8; j++)
            w |= (uint64_t)codes[i + j] << (j * bits);
        memcpy(dst, &w, bits);
    }
}

static inline void node_rot_unpack(uint8_t *codes, const uint8_t *src, uint32_t n, uint32_t bits)
{
    const uint64_t mask = (1u << bits) - 1u;
    for (uint32_t i = 0; i < n; i += 8, src += bits) {
        uint64_t w = 0;
        memcpy(&w, src, bits);
        for (uint32_t j = 0; j < 8; j++)
            codes[i + j] = (uint8_t)(w >> (j * bits) & mask);
    }
}

/*
 * x [dim][NODE_TILE] f16, all finite, lanes are tokens; dim is a multiple of 16 and of group, at most
 * NODE_HEAD_DIM_MAX. codes [dim][NODE_TILE], scales and mins [dim / group][NODE_TILE] f16. Bitwise equal on every ISA.
 */
typedef void (*node_rot_quantise_fn)(const uint16_t *x, uint32_t dim, uint32_t group, uint32_t bits, uint8_t *codes,
                                     uint16_t *scales, uint16_t *mins);
void node_rot_quantise_scalar(const uint16_t *x, uint32_t dim, uint32_t group, uint32_t bits, uint8_t *codes,
                              uint16_t *scales, uint16_t *mins);
void node_rot_quantise_avx2(const uint16_t *x, uint32_t dim, uint32_t group, uint32_t bits, uint8_t *codes,
                            uint16_t *scales, uint16_t *mins);
void node_rot_quantise_avx512(const uint16_t *x, uint32_t dim, uint32_t group, uint32_t bits, uint8_t *codes,
                              uint16_t *scales, uint16_t *mins);
/* NULL when the CPU lacks it. */
node_rot_quantise_fn node_rot_quantise(node_ops_level_t level);

#endif
