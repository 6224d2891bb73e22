/*
 * Arithmetic of RotateKV over 16 lanes, compiled once per ISA: the including file has chosen the vectors
 * (kernels/vec_*.h) and defines RKV_OPS, the name of its table. A lane is a token.
 */
#include "compress/rotatekv_int.h"

static void widen(const uint16_t *x, uint32_t n, float *y)
{
    for (size_t i = 0; i < (size_t)n * NODE_TILE; i += 16)
        v16_store(y + i, v16_load_f16(x + i));
}

static void narrow(const float *x, uint32_t n, uint16_t *y)
{
    for (size_t i = 0; i < (size_t)n * NODE_TILE; i += 16)
        v16_store_f16(y + i, v16_load(x + i));
}

/* Two levels at a time: half the loads and stores of one by one. */
static inline void butterflies(v16 *x, uint32_t block)
{
    uint32_t half = 1;
    for (; 4 * half <= block; half *= 4)
        for (uint32_t i = 0; i < block; i += 4 * half)
            for (uint32_t c = i; c < i + half; c++) {
                v16 a = x[c], b = x[c + half], d = x[c + 2 * half], e = x[c + 3 * half];
                v16 p = v16_add(a, b), q = v16_sub(a, b), r = v16_add(d, e), s = v16_sub(d, e);
                x[c] = v16_add(p, r);
                x[c + half] = v16_add(q, s);
                x[c + 2 * half] = v16_sub(p, r);
                x[c + 3 * half] = v16_sub(q, s);
            }
    if (half < block)
        for (uint32_t c = 0; c < half; c++) {
            v16 a = x[c], b = x[c + half];
            x[c] = v16_add(a, b);
            x[c + half] = v16_sub(a, b);
        }
}

static void rotate(float *x, uint32_t n, uint32_t block)
{
    v16 lane[NODE_RKV_BLOCK_MAX]; /* close together: in place every row would want the same few sets of the cache */
    const v16 norm = v16_set1(1.0f / __builtin_sqrtf((float)block));
    for (uint32_t first = 0; first < n; first += block)
        for (uint32_t t = 0; t < NODE_TILE; t += 16) {
            float *at = x + (size_t)first * NODE_TILE + t;
            for (uint32_t c = 0; c < block; c++)
                lane[c] = v16_load(at + (size_t)c * NODE_TILE);
            butterflies(lane, block);
            for (uint32_t c = 0; c < block; c++)
                v16_store(at + (size_t)c * NODE_TILE, v16_mul(lane[c], norm));
        }
}

/* Scale of 16 tokens' groups between bottom and top, both already clipped. */
static inline void group_scale(const node_rkv_grid_t *g, v16 top, v16 bottom, float *scale)
{
    v16_store(scale, v16_div(v16_sub(top, bottom), v16_set1(g->levels)));
    if (g->wide)
        return;
    uint16_t half[16];
    float far[16];
    const v16 most = v16_max(v16_abs(top), v16_abs(bottom));
    v16_store(far, most);
    v16_store_f16(half, v16_max(v16_load(scale), v16_mul(most, v16_set1(1.0f / NODE_RKV_ZERO_MAX))));
    v16_store(scale, v16_load_f16(half));
    for (int i = 0; i < 16; i++) /* too small for f16: its smallest step reaches what is there */
        scale[i] = scale[i] == 0.0f && far[i] > 0.0f ? 0x1p-24f : scale[i];
}

/* Both ends of a group move towards zero by the clip ratio, unless that would leave a group of one sign. */
static inline void clip_ends(const node_rkv_grid_t *g, v16 *top, v16 *bottom)
{
    float hi[16], lo[16];
    v16_store(hi, *top);
    v16_store(lo, *bottom);
    for (int i = 0; i < 16; i++)
        if (g->wide || (hi[i] > 0.0f && lo[i] < 0.0f)) {
            hi[i] *= g->clip;
            lo[i] *= g->clip;
        }
    *top = v16_load(hi);
    *bottom = v16_load(lo);
}

/* Half to even; numbers beyond 2^22 may lose their last bits, and leave the codes' range anyway. */
static inline v16 to_whole(v16 x)
{
    const v16 magic = v16_set1(NODE_ROUND_MAGIC);
    return v16_sub(v16_add(x, magic), magic);
}

static inline v16 load_place(const float *x, const uint16_t *order, uint32_t place)
{
    return v16_load(x + (size_t)(order ? order[place] : place) * NODE_TILE);
}

static inline void quantise_group(const node_rkv_grid_t *g, const float *x, const uint16_t *order, uint32_t first,
                                  uint8_t *codes, float *scales, int16_t *zeros)
{
    const v16 none = v16_set1(0.0f), low = v16_set1(-g->top);
    v16 lane[NODE_HEAD_DIM_MAX], top = load_place(x, order, first), bottom = v16_neg(top);
    for (uint32_t c = 0; c < g->group; c++) {
        lane[c] = load_place(x, order, first + c);
        top = v16_max(lane[c], top);
        bottom = v16_max(v16_neg(lane[c]), bottom);
    }
    bottom = v16_neg(bottom);
    clip_ends(g, &top, &bottom);
    float s[16];
    int16_t wide[16];
    int32_t unused = 0;
    group_scale(g, top, bottom, s);
    v16_store(scales, v16_load(s));
    for (int i = 0; i < 16; i++) /* scale zero: nothing there; every code and the zero point are zero */
        s[i] = s[i] == 0.0f ? __builtin_inff() : s[i];
    const v16 scale = v16_load(s), zero = to_whole(v16_div(v16_neg(bottom), scale));
    v16_store_i16(zeros, zero, &unused);
    for (uint32_t c = 0; c < g->group; c++) {
        v16 t = v16_max(v16_add(to_whole(v16_div(lane[c], scale)), zero), none);
        v16_store_i16(wide, v16_neg(v16_max(v16_neg(t), low)), &unused);
        for (int i = 0; i < 16; i++)
            codes[(size_t)c * NODE_TILE + (size_t)i] = (uint8_t)wide[i];
    }
}

static void quantise(const node_rkv_grid_t *grid, const float *x, const uint16_t *order, uint32_t n, uint8_t *codes,
                     float *scales, int16_t *zeros)
{
    for (uint32_t first = 0, g = 0; first < n; first += grid->group, g++)
        for (uint32_t t = 0; t < NODE_TILE; t += 16)
            quantise_group(grid, x + t, order, first, codes + (size_t)first * NODE_TILE + t,
                           scales + (size_t)g * NODE_TILE + t, zeros + (size_t)g * NODE_TILE + t);
}

static void restore(const uint8_t *codes, const float *scales, const int16_t *zeros, const uint16_t *order, uint32_t n,
                    uint32_t group, float *x)
{
    float z[NODE_TILE], c[NODE_TILE];
    for (uint32_t j = 0; j < n; j++, codes += NODE_TILE) {
        const float *s = scales + (size_t)(j / group) * NODE_TILE;
        if (j % group == 0)
            for (uint32_t t = 0; t < NODE_TILE; t++)
                z[t] = (float)zeros[(size_t)(j / group) * NODE_TILE + t];
        for (uint32_t t = 0; t < NODE_TILE; t++)
            c[t] = (float)codes[t];
        float *y = x + (size_t)(order ? order[j] : j) * NODE_TILE;
        for (uint32_t t = 0; t < NODE_TILE; t += 16)
            v16_store(y + t, v16_mul(v16_load(s + t), v16_sub(v16_load(c + t), v16_load(z + t))));
    }
}

const node_rkv_ops_t RKV_OPS = {widen, narrow, rotate, quantise, restore};
