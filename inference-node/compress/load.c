/*
 * How rows that are stored before RoPE come into a body: their decoders hand over dequantised tiles after RoPE, which
 * become f16 pages, or 8-bit codes as `rot` has them, quantised once here. Codes are what integer attention reads;
 * eight bits add less than a tenth of what four-bit records have lost already.
 */
#include "compress/codec_int.h"
#include "compress/rot_int.h"

#define RECODE_BITS 8u
#define RECODE_GROUP 64u

/* Neighbouring channels that share a scale: a power of two that divides the head. */
static uint32_t recode_group(uint32_t dim)
{
    const uint32_t block = node_rot_block(dim);
    return block < RECODE_GROUP ? block : RECODE_GROUP;
}

/* x [dim][NODE_TILE] to codes [NODE_TILE][dim], scales and minima to their places in the tile. */
static void quantise(node_rot_quantise_fn fn, const node_coded_form_t *f, const uint16_t *x, uint8_t *codes,
                     uint8_t *scales, uint8_t *mins)
{
    uint8_t turned[NODE_HEAD_DIM_MAX * NODE_TILE];
    fn(x, f->dim, f->group, f->bits, false, NULL, turned, (uint16_t *)(void *)scales, (uint16_t *)(void *)mins);
    for (uint32_t t = 0; t < NODE_TILE; t++)
        for (uint32_t c = 0; c < f->dim; c++)
            codes[(size_t)t * f->dim + c] = turned[(size_t)c * NODE_TILE + t];
}

static void put_codes(node_rot_quantise_fn fn, const node_coded_form_t *f, const uint16_t *k, const uint16_t *v,
                      uint8_t *tile)
{
    uint8_t codes[NODE_HEAD_DIM_MAX * NODE_TILE];
    uint16_t vt[NODE_HEAD_DIM_MAX * NODE_TILE];
    quantise(fn, f, k, codes, tile + f->k_scale, tile + f->k_min);
    node_coded_put_k(f, tile, codes);
    for (uint32_t t = 0; t < NODE_TILE; t++)
        for (uint32_t c = 0; c < f->dim; c++)
            vt[(size_t)c * NODE_TILE + t] = v[(size_t)t * f->dim + c];
    quantise(fn, f, vt, codes, tile + f->v_scale, tile + f->v_min);
    node_coded_put_v(f, tile, codes);
}

static vc_status_t put_page(node_body_builder_t *b, uint32_t block, uint32_t layer, uint32_t head, const uint16_t *k,
                            const uint16_t *v, vc_err_t *err)
{
    const size_t bytes = (size_t)node_body_model(b)->head_dim * NODE_TILE * sizeof(uint16_t);
    node_page_t *page;
    vc_status_t st = node_body_own_page(b, block, &page, err);
    if (st == VC_OK && page != NULL) {
        memcpy(node_page_k(page, layer, head), k, bytes);
        memcpy(node_page_v(page, layer, head), v, bytes);
    }
    return st;
}

vc_status_t node_body_put_tile(node_body_builder_t *b, uint32_t block, uint32_t layer, uint32_t head, const uint16_t *k,
                               const uint16_t *v, vc_err_t *err)
{
    const uint32_t dim = node_body_model(b)->head_dim, group = recode_group(dim);
    if (node_body_load(b) == NODE_LOAD_PAGES || group < 16) /* no code is made for so uneven a head */
        return put_page(b, block, layer, head, k, v, err);
    node_coded_form_t form;
    uint8_t *tile;
    node_coded_form_init(&form, RECODE_BITS, dim, group);
    vc_status_t st = node_body_own_tile(b, block, layer, head, &form, &tile, err);
    if (st == VC_OK && tile != NULL)
        put_codes(node_body_quantiser(b), &form, k, v, tile);
    return st;
}
