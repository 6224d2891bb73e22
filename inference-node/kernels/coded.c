/* Layout of coded tiles: bytes in, strips out. No arithmetic. */
#include "kernels/coded.h"

#include <string.h>

#include "kernels/ops.h"

enum { VECTOR = 64, VECTORS = 8 };

static void form_init(node_coded_form_t *f, uint32_t k_params, uint32_t v_params)
{
    f->k_scale = (f->dim + 31) / 32 * (NODE_ATTN_TILE / 16) * f->bits * VECTOR;
    f->k_min = f->k_scale + k_params;
    f->v_codes = f->k_min + k_params;
    f->v_scale = f->v_codes + f->dim / 16 * (NODE_ATTN_TILE / 32) * f->bits * VECTOR;
    f->v_min = f->v_scale + v_params;
    f->bytes = f->v_min + v_params;
}

void node_coded_form_init(node_coded_form_t *f, uint32_t bits, uint32_t dim, uint32_t group)
{
    const uint32_t params = dim / group * NODE_ATTN_TILE * 2;
    *f = (node_coded_form_t){.bits = bits, .dim = dim, .group = group};
    form_init(f, params, params);
}

void node_coded_form_add_mean(node_coded_form_t *f)
{
    f->k_mean = f->bytes;
    f->bytes += (2 * f->dim + VECTOR - 1) / VECTOR * VECTOR;
}

void node_coded_form_init_channels(node_coded_form_t *f, uint32_t bits, uint32_t dim, uint32_t group,
                                   uint32_t key_tokens)
{
    *f = (node_coded_form_t){.bits = bits, .dim = dim, .group = group, .key_tokens = key_tokens};
    form_init(f, NODE_ATTN_TILE / key_tokens * dim * 2, dim / group * NODE_ATTN_TILE * 2);
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

/* A strip whose vectors are four rows each; at: [n_rows][stride]. */
static void put_rows(uint8_t *strip, const uint8_t *at, size_t stride, uint32_t n_rows, uint32_t bits)
{
    for (uint32_t lane = 0; lane < 16; lane++, at++) {
        uint32_t w[VECTORS] = {0};
        for (uint32_t i = 0; i < n_rows / 4; i++) {
            const uint8_t *row = at + 4 * i * stride;
            w[i] = (uint32_t)row[0] | (uint32_t)row[stride] << 8 | (uint32_t)row[2 * stride] << 16 |
                   (uint32_t)row[3 * stride] << 24;
        }
        put_lane(strip, lane, w, bits);
    }
}

void node_coded_put_v(const node_coded_form_t *f, uint8_t *tile, const uint8_t *codes)
{
    for (uint32_t c = 0; c < f->dim; c += 16)
        for (uint32_t t = 0; t < NODE_ATTN_TILE; t += 32)
            put_rows(tile + f->v_codes + (size_t)(c / 16 * 2 + t / 32) * f->bits * VECTOR,
                     codes + (size_t)t * f->dim + c, f->dim, 32, f->bits);
}

void node_coded_put_k_channels(const node_coded_form_t *f, uint8_t *tile, const uint8_t *codes)
{
    for (uint32_t c = 0; c < f->dim; c += 32)
        for (uint32_t t = 0; t < NODE_ATTN_TILE; t += 16)
            put_rows(tile + (size_t)(c / 32 * 4 + t / 16) * f->bits * VECTOR, codes + (size_t)c * NODE_ATTN_TILE + t,
                     NODE_ATTN_TILE, f->dim - c < 32 ? f->dim - c : 32, f->bits);
}
