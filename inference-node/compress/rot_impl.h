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

/* Numbers of a group in steps of its range, not rounded. */
static inline v16 steps_of(v16 x, v16 scale, v16 min, v16 low)
{
    v16 t = v16_max(v16_div(v16_sub(x, min), scale), v16_set1(0.0f));
    return v16_neg(v16_max(v16_neg(t), low));
}

/* Codes belong to the stored parameters. A scale that rounds to zero divides as infinity: its codes are zero. */
static inline v16 divisor(const uint16_t *scales)
{
    float s[16];
    v16_store(s, v16_load_f16(scales));
    for (int i = 0; i < 16; i++)
        s[i] = s[i] == 0.0f ? __builtin_inff() : s[i];
    return v16_load(s);
}

static inline void store_range(v16 bottom, v16 top, float levels, uint16_t *scales, uint16_t *mins)
{
    v16 min = v16_add(bottom, v16_set1(0.0f)); /* never -0 */
    v16_store_f16(scales, v16_div(v16_sub(top, min), v16_set1(levels)));
    v16_store_f16(mins, min);
}

/* Sum of squares of what the range's codes lose, per token. */
static inline void range_errors(const v16 *x, uint32_t n, float levels, const uint16_t *scales, const uint16_t *mins,
                                float *errors)
{
    const v16 by = divisor(scales), scale = v16_load_f16(scales), min = v16_load_f16(mins), low = v16_set1(-levels);
    const v16 magic = v16_set1(0x1.8p23f); /* rounds half to even */
    v16 sum = v16_set1(0.0f);
    for (uint32_t c = 0; c < n; c++) {
        v16 code = v16_sub(v16_add(steps_of(x[c], by, min, low), magic), magic);
        v16 off = v16_sub(x[c], v16_fma(code, scale, min));
        sum = v16_fma(off, off, sum);
    }
    v16_store(errors, sum);
}

/* Narrower ranges cut the few outermost numbers and bring the levels of all others closer: the least error wins, the
 * wider range at a tie. */
static inline void fit_range(const v16 *x, uint32_t n, uint32_t bits, v16 bottom, v16 top, uint16_t *scales,
                             uint16_t *mins)
{
    enum { N = 7 };
    const float levels = (float)((1u << bits) - 1u), step = bits == 2 ? 0.08f : bits == 3 ? 0.05f : 0.03f;
    const v16 half = v16_mul(v16_sub(top, bottom), v16_set1(0.5f)), middle = v16_add(bottom, half);
    float best[16], errors[16];
    range_errors(x, n, levels, scales, mins, best);
    for (int i = 1; i < N; i++) {
        uint16_t scale[16], min[16];
        const v16 r = v16_mul(half, v16_set1(1.0f - step * (float)i));
        store_range(v16_sub(middle, r), v16_add(middle, r), levels, scale, min);
        range_errors(x, n, levels, scale, min, errors);
        for (int t = 0; t < 16; t++)
            if (errors[t] < best[t]) {
                best[t] = errors[t];
                scales[t] = scale[t];
                mins[t] = min[t];
            }
    }
}

static inline void group_codes(const v16 *x, uint32_t n, uint32_t bits, bool fit, uint8_t *codes, uint16_t *scales,
                               uint16_t *mins)
{
    const float levels = (float)((1u << bits) - 1u);
    v16 top = x[0], bottom = v16_neg(x[0]);
    for (uint32_t c = 1; c < n; c++) {
        top = v16_max(x[c], top);
        bottom = v16_max(v16_neg(x[c]), bottom);
    }
    bottom = v16_neg(bottom);
    store_range(bottom, top, levels, scales, mins);
    if (fit && bits < 8) /* 256 levels lose nothing that is worth the search */
        fit_range(x, n, bits, bottom, top, scales, mins);
    const v16 scale = divisor(scales), min = v16_load_f16(mins), low = v16_set1(-levels);
    for (uint32_t c = 0; c < n; c++) {
        int16_t wide[16];
        int32_t unused = 0;
        v16_store_i16(wide, steps_of(x[c], scale, min, low), &unused); /* rounds half to even */
        for (int i = 0; i < 16; i++)
            codes[(size_t)c * NODE_TILE + (size_t)i] = (uint8_t)wide[i];
    }
}

/* Means of the channels over all tokens, as f16 and as the floats that those are. */
static inline void means_of(const uint16_t *x, uint32_t dim, uint16_t *means, float *wide)
{
    for (uint32_t c = 0; c < dim; c++, x += NODE_TILE) {
        v16 sum = v16_load_f16(x);
        for (uint32_t t = 16; t < NODE_TILE; t += 16)
            sum = v16_add(sum, v16_load_f16(x + t));
        wide[c] = v16_sum(sum) * (1.0f / NODE_TILE);
    }
    for (uint32_t c = 0; c < dim; c += 16) {
        v16_store_f16(means + c, v16_load(wide + c));
        v16_store(wide + c, v16_load_f16(means + c));
    }
}

void ROT_QUANTISE(const uint16_t *x, uint32_t dim, uint32_t group, uint32_t bits, bool fit, uint16_t *means,
                  uint8_t *codes, uint16_t *scales, uint16_t *mins)
{
    v16 lane[NODE_HEAD_DIM_MAX];
    float mean[NODE_HEAD_DIM_MAX];
    if (means)
        means_of(x, dim, means, mean);
    for (uint32_t t = 0; t < NODE_TILE; t += 16) {
        for (uint32_t c = 0; c < dim; c++)
            lane[c] = v16_load_f16(x + (size_t)c * NODE_TILE + t);
        for (uint32_t c = 0; means && c < dim; c++)
            lane[c] = v16_sub(lane[c], v16_set1(mean[c]));
        transform(lane, dim);
        for (uint32_t g = 0; g < dim / group; g++)
            group_codes(lane + g * group, group, bits, fit, codes + (size_t)g * group * NODE_TILE + t,
                        scales + (size_t)g * NODE_TILE + t, mins + (size_t)g * NODE_TILE + t);
    }
}
