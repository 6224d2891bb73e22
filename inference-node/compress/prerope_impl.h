/*
 * Arithmetic of prerope over 16 lanes, compiled once per ISA: the including file has chosen the vectors
 * (kernels/vec_*.h) and defines PREROPE_OPS, the name of its table. The factor divides after the rotation and
 * multiplies after it, so that a model without one has no extra rounding.
 */
#include "compress/prerope_int.h"

static void undo(const node_prerope_shape_t *s, const uint16_t *k, float *pre)
{
    const uint32_t half = s->half, pair = half * NODE_TILE;
    const v16 m = v16_set1(s->mscale);
    for (uint32_t i = 0; i < pair; i += 16) {
        v16 a = v16_load_f16(k + i), b = v16_load_f16(k + pair + i);
        v16 c = v16_load(s->cos + i), w = v16_load(s->sin + i);
        v16 x = v16_fma(a, c, v16_mul(b, w)), y = v16_fma(b, c, v16_neg(v16_mul(a, w)));
        if (s->mscale != 1.0f) {
            x = v16_div(x, m);
            y = v16_div(y, m);
        }
        v16_store(pre + i, x);
        v16_store(pre + pair + i, y);
    }
    for (uint32_t i = 2 * pair; i < s->head_dim * NODE_TILE; i += 16)
        v16_store(pre + i, v16_load_f16(k + i));
}

static void apply(const node_prerope_shape_t *s, const float *pre, uint16_t *k)
{
    const uint32_t half = s->half, pair = half * NODE_TILE;
    const v16 m = v16_set1(s->mscale);
    for (uint32_t i = 0; i < pair; i += 16) {
        v16 a = v16_load(pre + i), b = v16_load(pre + pair + i);
        v16 c = v16_load(s->cos + i), w = v16_load(s->sin + i);
        v16 x = v16_fma(a, c, v16_neg(v16_mul(b, w))), y = v16_fma(b, c, v16_mul(a, w));
        if (s->mscale != 1.0f) {
            x = v16_mul(x, m);
            y = v16_mul(y, m);
        }
        v16_store_f16(k + i, x);
        v16_store_f16(k + pair + i, y);
    }
    for (uint32_t i = 2 * pair; i < s->head_dim * NODE_TILE; i += 16)
        v16_store_f16(k + i, v16_load(pre + i));
}

const node_prerope_ops_t PREROPE_OPS = {undo, apply};
