/*
 * Arithmetic of `rot`, one tile of one head at a time. Channels are rotated by a Walsh-Hadamard transform in natural
 * order over blocks of the largest power of two that divides the head, then every token's row is cut into groups of
 * neighbouring channels: x = code * scale + min, scale and min in f16.
 */
#ifndef NODE_ROT_INT_H
#define NODE_ROT_INT_H

#include "compress/codec_int.h"
#include "kernels/backend.h"
#include "kernels/numerics.h"
#include "kv/pages.h"

static inline uint32_t node_rot_block(uint32_t dim) { return dim & (0u - dim); }

/* Exact where the block is a power of four, else one rounding. The transform times this is its own inverse. */
static inline float node_rot_norm(uint32_t block) { return 1.0f / __builtin_sqrtf((float)block); }

/* Eight codes are `bits` bytes, the first code in the low bits; n is a multiple of 8. Neighbours move together, in
 * steps of twice the distance. */
static inline void node_rot_pack(uint8_t *dst, const uint8_t *codes, uint32_t n, uint32_t bits)
{
    const uint64_t two = 0x0000ffff0000ffffull, four = 0x00000000ffffffffull, one = 0x00ff00ff00ff00ffull;
    for (uint32_t i = 0; i < n; i += 8, dst += bits) {
        uint64_t w;
        memcpy(&w, codes + i, 8);
        w = (w & one) | (w >> 8 & one) << bits;
        w = (w & two) | (w >> 16 & two) << 2 * bits;
        w = (w & four) | (w >> 32) << 4 * bits;
        memcpy(dst, &w, bits);
    }
}

static inline void node_rot_unpack(uint8_t *codes, const uint8_t *src, uint32_t n, uint32_t bits)
{
    const uint64_t m4 = (1ull << 4 * bits) - 1, m2 = ((1ull << 2 * bits) - 1) * 0x0000000100000001ull;
    const uint64_t m1 = ((1ull << bits) - 1) * 0x0001000100010001ull;
    for (uint32_t i = 0; i < n; i += 8, src += bits) {
        uint64_t w = 0;
        memcpy(&w, src, bits);
        w = (w & m4) | (w >> 4 * bits & m4) << 32;
        w = (w & m2) | (w >> 2 * bits & m2) << 16;
        w = (w & m1) | (w >> bits & m1) << 8;
        memcpy(codes + i, &w, 8);
    }
}

/*
 * x [dim][NODE_TILE] f16, all finite, lanes are tokens; dim is a multiple of 16 and of group, at most
 * NODE_HEAD_DIM_MAX. fit: a group's range is the one of least squared error, else from its least to its greatest
 * number. means, unless NULL: receives the mean of every channel of x over the tile, [dim] f16, and what is rotated and
 * coded is x less it. codes [dim][NODE_TILE], scales and mins [dim / group][NODE_TILE] f16. Bitwise equal on every ISA.
 */
typedef void (*node_rot_quantise_fn)(const uint16_t *x, uint32_t dim, uint32_t group, uint32_t bits, bool fit,
                                     uint16_t *means, uint8_t *codes, uint16_t *scales, uint16_t *mins);
void node_rot_quantise_scalar(const uint16_t *x, uint32_t dim, uint32_t group, uint32_t bits, bool fit, uint16_t *means,
                              uint8_t *codes, uint16_t *scales, uint16_t *mins);
void node_rot_quantise_avx2(const uint16_t *x, uint32_t dim, uint32_t group, uint32_t bits, bool fit, uint16_t *means,
                            uint8_t *codes, uint16_t *scales, uint16_t *mins);
void node_rot_quantise_avx512(const uint16_t *x, uint32_t dim, uint32_t group, uint32_t bits, bool fit, uint16_t *means,
                              uint8_t *codes, uint16_t *scales, uint16_t *mins);
/* NULL when the CPU lacks it. */
node_rot_quantise_fn node_rot_quantise(node_ops_level_t level);
/* To be asked once: asking the CPU is slow under a hypervisor. */
node_rot_quantise_fn node_rot_quantise_best(void);
/* The builder's answer (body.c). */
node_rot_quantise_fn node_body_quantiser(node_body_builder_t *b);

/* ---- rot_rows.c: rows of a payload, all of a block or the kept ones of a dropper ---- */

/* Rows of K, or of V, of one head: codes [n][dim] of b bits, the first in the low bits; scales, then minima
 * [n][dim / group] f16. */
typedef struct node_rot_rows {
    uint32_t dim, group, n_groups, bits, row_bytes; /* row_bytes: codes of one row */
    bool fit;                                       /* of a writer */
    bool center; /* codes of K are of keys less their mean, which comes first; whole blocks only */
} node_rot_rows_t;

/* group: the parameter; a head smaller than it is one group. UNSUPPORTED: the groups do not fit the head. text: of the
 * spec, for the sentence. */
vc_status_t node_rot_rows_init(node_rot_rows_t *s, const char *text, uint32_t bits, uint32_t group, bool fit,
                               uint32_t dim, vc_err_t *err);
/* Bits per number. */
static inline double node_rot_bits(uint32_t bits, uint32_t group, uint32_t dim)
{
    return bits + 32.0 / (group < dim ? group : dim);
}
static inline uint32_t node_rot_rows_bytes(const node_rot_rows_t *s, uint32_t n)
{
    return n * (s->row_bytes + 4 * s->n_groups);
}
/* Of the mean of K, [dim] f16. */
static inline uint32_t node_rot_mean_bytes(const node_rot_rows_t *s) { return s->center ? 2 * s->dim : 0; }
/* Writes the kept rows of one head of a page, its mean, K and then V; returns the first byte after them. Their bytes do
 * not depend on which other rows are kept. */
uint8_t *node_rot_encode_head(const node_rot_rows_t *s, node_rot_quantise_fn quantise, node_page_t *page,
                              uint32_t layer, uint32_t head, uint64_t kept, uint8_t *at);
/* Groups from outside, codes and f16 parameters in the same order: parameters are finite, scales not negative, and a
 * zero scale has zero codes, as encoders write them. */
bool node_groups_valid(const uint8_t *codes, const uint8_t *scales, const uint8_t *mins, uint32_t n_groups,
                       uint32_t group_bytes);
/* n rows from outside. */
bool node_rot_rows_valid(const node_rot_rows_t *s, const uint8_t *at, uint32_t n);
static inline node_coded_rows_t node_rot_rows_at(const node_rot_rows_t *s, const uint8_t *at, uint32_t n)
{
    const uint8_t *scales = at + (size_t)n * s->row_bytes;
    return (node_coded_rows_t){at, scales, scales + 2 * (size_t)n * s->n_groups};
}

#endif
