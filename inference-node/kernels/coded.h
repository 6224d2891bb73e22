/*
 * A tile of quantised rows in the form that attention reads: 64 tokens of one head; a number is code * scale + min.
 * Codes are never widened to f16 in memory. Two forms:
 *   rotated     K and V turned by the Hadamard transform of the head (natural order, blocks of the largest power of two
 *               that divides it, times 1/sqrt(block)) and cut per token into groups of channels
 *   by channel  as the model made them: keys cut per channel into groups of tokens, values per token into groups of
 *               channels
 *
 * Codes lie in strips. A strip is eight vectors of 64 bytes, sixteen lanes of four codes, stored as `bits` units of 64
 * bytes; vector i of the eight is
 *   8 bits  unit i                    2 bits  bits 2 (i % 4) of unit i / 4
 *   4 bits  nibble i % 2 of unit i/2  3 bits  as 2 bits, and bit i of unit 2 above them
 * K: strips [32 channels][16 tokens], lane = token, vector i = channels 4 i ...; the last strip of a head that 32 does
 *    not divide is half empty. Then scales and minima, f16: rotated [group][64 tokens], by channel
 *    [64 / key_tokens][channel].
 * V: strips [16 channels][32 tokens], lane = channel, vector i = tokens 4 i ...; then scales and minima, f16, [group]
 *    [64 tokens].
 * A tile of fewer rows has zeros in the places of the others.
 * A rotated tile may hold keys less their mean, which then comes last: [dim] f16, not rotated itself.
 */
#ifndef NODE_CODED_H
#define NODE_CODED_H

#include <stddef.h>
#include <stdint.h>

typedef struct node_coded_form {
    uint32_t bits;                                           /* 2, 3, 4 or 8; 0: no coded tiles */
    uint32_t dim;                                            /* multiple of 16 and of group */
    uint32_t group;                                          /* channels; multiple of 16 */
    uint32_t key_tokens;                                     /* that share a channel's scale; 0: the rotated form */
    uint32_t k_scale, k_min, v_codes, v_scale, v_min, bytes; /* offsets in a tile; K codes come first */
    uint32_t k_mean;                                         /* offset of the mean of keys; 0: there is none */
} node_coded_form_t;

/* dim / group must be whole, both multiples of 16 and at most NODE_HEAD_DIM_MAX. */
void node_coded_form_init(node_coded_form_t *f, uint32_t bits, uint32_t dim, uint32_t group);
/* The keys of a rotated form are less their mean. */
void node_coded_form_add_mean(node_coded_form_t *f);
/* By channel: group is that of values; key_tokens 16, 32 or 64; bits 2, 4 or 8. */
void node_coded_form_init_channels(node_coded_form_t *f, uint32_t bits, uint32_t dim, uint32_t group,
                                   uint32_t key_tokens);

/* codes [64 tokens][dim], one a byte, into the strips of K or of V; tile starts on 64 bytes. */
void node_coded_put_k(const node_coded_form_t *f, uint8_t *tile, const uint8_t *codes);
void node_coded_put_v(const node_coded_form_t *f, uint8_t *tile, const uint8_t *codes);
/* K as codes [dim][64 tokens]. */
void node_coded_put_k_channels(const node_coded_form_t *f, uint8_t *tile, const uint8_t *codes);

#define NODE_CODED_GROUPS_MAX 16u /* NODE_HEAD_DIM_MAX / 16 */

/* One query, rotated and rounded to 8 bits per group: q = code * scale. */
typedef struct node_coded_query {
    int8_t code[256]; /* NODE_HEAD_DIM_MAX */
    float scale[NODE_CODED_GROUPS_MAX];
    float sum[NODE_CODED_GROUPS_MAX];    /* of the group's numbers before rounding */
    float middle[NODE_CODED_GROUPS_MAX]; /* (sum - scale * sum of codes) * half the levels: what rounding takes away
                                            from a key in the middle of its range */
} node_coded_query_t;

#endif
