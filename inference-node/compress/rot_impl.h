/*
 * rot's quantiser over 16 lanes, compiled once per ISA: the including file has chosen the vectors (kernels/vec_*.h) and
 * defines ROT_QUANTISE, the name of its function. A lane is a token, so nothing is ever added across lanes and the bits
 * are the same everywhere.
 */
#include "compress/rot_int.h"

static inline void transform(v16 *x, uint32_t dim)
{
    const uint32_t block = node_rot_block(dim);
    for (uint32_t half = 1; half < block; half *= 2)
        for (uint32_t i = 0; i < dim; i += 2 * half)
            for (uint32_t c = i; c < i + half; c++) {
                v16 a = x[c], b = x[c + half];
                x[c] = v16_add(a, b);
                x[c + half] = v16_sub(a, b);
            }
    const v16 norm = v16_set1(node_rot_norm(block));
    for (uint32_t c = 0; c < dim; c++)
        x[c] = v16_mul(x[c], norm);
}

/* Codes belong to the stored parameters. A scale that rounds to zero divides as infinity: its codes are zero. */
static inline void group_codes(const v16 *x, uint32_t n, uint32_t bits, uint8_t *codes, uint16_t *scales,
                               uint16_t *mins)
{
    const float levels = (float)((1u << bits) - 1u);
    const v16 zero = v16_set1(0.0f), low = v16_set1(-levels);
    v16 top = x[0], bottom = v16_neg(x[0]);
    for (uint32_t c = 1; c < n; c++) {
        top = v16_max(x[c], top);
        bottom = v16_max(v16_neg(x[c]), bottom);
    }
    v16 min = v16_add(v16_neg(bottom), zero); /* never -0 */
    v16_store_f16(scales, v16_div(v16_sub(top, min), v16_set1(levels)));
    v16_store_f16(mins, min);
    float s[16];
    v16_store(s, v16_load_f16(scales));
    for (int i = 0; i < 16; i++)
        s[i] = s[i] == 0.0f ? __builtin_inff() : s[i];
    const v16 scale = v16_load(s);
    min = v16_load_f16(mins);
    for (uint32_t c = 0; c < n; c++) {
        v16 t = v16_max(v16_div(v16_sub(x[c], min), scale), zero);
        t = v16_neg(v16_max(v16_neg(t), low));
        int16_t wide[16];
        int32_t unused = 0;
        v16_store_i16(wide, t, &unused); /* rounds half to even */
        for (int i = 0; i < 16; i++)
            codes[(size_t)c * NODE_TILE + (size_t)i] = (uint8_t)wide[i];
    }
}

void ROT_QUANTISE(const uint16_t *x, uint32_t dim, uint32_t group, uint32_t bits, uint8_t *codes, uint16_t *scales,
                  uint16_t *mins)
{
    v16 lane[NODE_HEAD_DIM_MAX];
    for (uint32_t t = 0; t < NODE_TILE; t += 16) {
        for (uint32_t c = 0; c < dim; c++)
            lane[c] = v16_load_f16(x + (size_t)c * NODE_TILE + t);
        transform(lane, dim);
        for (uint32_t g = 0; g < dim / group; g++)
            group_codes(lane + g * group, group, bits, codes + (size_t)g * group * NODE_TILE + t,
                        scales + (size_t)g * NODE_TILE + t, mins + (size_t)g * NODE_TILE + t);
    }
}
