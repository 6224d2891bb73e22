/* Layout of coded tiles: bytes in, strips out. No arithmetic. */
#include "kernels/coded.h"

#include <string.h>

#include "kernels/ops.h"

enum { VECTOR = 64, VECTORS = 8 };

void node_coded_form_init(node_coded_form_t *f, uint32_t bits, uint32_t dim, uint32_t group)
{
    const uint32_t params = dim / group * NODE_ATTN_TILE * 2;
    *f = (node_coded_form_t){.bits = bits, .dim = dim, .group = group};
    f->k_scale = (dim + 31) / 32 * (NODE_ATTN_TILE / 16) * bits * VECTOR;
    f->k_min = f->k_scale + params;
    f->v_codes = f->k_min + params;
    f->v_scale = f->v_codes + dim / 16 * (NODE_ATTN_TILE / 32) * bits * VECTOR;
    f->v_min = f->v_scale + params;
    f->bytes = f->v_min + params;
}

/* Lane of a strip: w[i] holds the four codes of vector i. */
static void put_lane(uint8_t *strip, uint32_t lane, const uint32_t *w, uint32_t bits)
{
    uint32_t unit[VECTORS] = {0};
    for (uint32_t i = 0; i < VECTORS; i++)
        switch (bits) {
        case 8: unit[i] = w[i]; break;
        case 4: unit[i / 2] |= w[i] << (i % 2 * 4); break;
        case 3: unit[2] |= (w[i] >> 2 & 0x01010101u) << i; /* fall through */
        default: unit[i / 4] |= (w[i] & 0x03030303u) << (i % 4 * 2);
        }
    for (uint32_t u = 0; u < bits; u++)
        memcpy(strip + u * VECTOR + lane * 4, &unit[u], 4);
}

void node_coded_put_k(const node_coded_form_t *f, uint8_t *tile, const uint8_t *codes)
{
    for (uint32_t c = 0; c < f->dim; c += 32)
        for (uint32_t t = 0; t < NODE_ATTN_TILE; t++) {
            uint32_t w[VECTORS] = {0};
            memcpy(w, codes + (size_t)t * f->dim + c, f->dim - c < 32 ? f->dim - c : 32);
            put_lane(tile + (size_t)(c / 32 * 4 + t / 16) * f->bits * VECTOR, t % 16, w, f->bits);
        }
}

void node_coded_put_v(const node_coded_form_t *f, uint8_t *tile, const uint8_t *codes)
{
    for (uint32_t c = 0; c < f->dim; c++)
        for (uint32_t t = 0; t < NODE_ATTN_TILE; t += 32) {
            uint32_t w[VECTORS];
            const uint8_t *at = codes + (size_t)t * f->dim + c;
            for (uint32_t i = 0; i < VECTORS; i++, at += 4 * (size_t)f->dim)
                w[i] = (uint32_t)at[0] | (uint32_t)at[f->dim] << 8 | (uint32_t)at[2 * f->dim] << 16 |
                       (uint32_t)at[3 * f->dim] << 24;
            put_lane(tile + f->v_codes + (size_t)(c / 16 * 2 + t / 32) * f->bits * VECTOR, c % 16, w, f->bits);
        }
}
