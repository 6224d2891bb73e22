/* Kept rows to dense tiles: see pack.h. */
#include "compress/pack.h"
#include "compress/rot_int.h"
#include "vc/bytes.h"

size_t node_pack_tile_bytes(const node_coded_form_t *form, uint32_t dim)
{
    return form->bits ? form->bytes : 2u * NODE_TILE * dim * sizeof(uint16_t);
}

static size_t codes_bytes(const node_coded_form_t *f) { return (size_t)f->dim * f->bits / 8; }
static size_t params_bytes(const node_coded_form_t *f) { return (size_t)f->dim / f->group * 2; }

size_t node_pack_coded_bytes(const node_coded_form_t *form, uint32_t n)
{
    return n * (codes_bytes(form) + 2 * params_bytes(form));
}

static uint8_t *open_tile(node_packer_t *p)
{
    const size_t bytes = node_pack_tile_bytes(p->form, p->dim);
    if (p->open_rows == 0) {
        node_tile_t *tile = &p->tiles[p->n_tiles++];
        if (p->form->bits) {
            memset(p->k_codes, 0, (size_t)NODE_TILE * p->dim);
            memset(p->v_codes, 0, (size_t)NODE_TILE * p->dim);
            *tile = (node_tile_t){.codes = p->slab};
        } else {
            *tile = (node_tile_t){.k = (const uint16_t *)(const void *)p->slab,
                                  .v = (const uint16_t *)(const void *)(p->slab + bytes / 2)};
        }
        p->slab += bytes;
    }
    return p->slab - bytes;
}

static void take_row(node_packer_t *p)
{
    p->tiles[p->n_tiles - 1].n_rows = ++p->open_rows;
    if (p->open_rows == NODE_TILE)
        node_pack_close(p);
}

static void pack_plain(node_packer_t *p, const node_kept_t *kept, uint32_t r)
{
    uint8_t *k = open_tile(p), *v = k + (size_t)NODE_TILE * p->dim * 2;
    for (uint32_t c = 0; c < p->dim; c++)
        memcpy(k + 2 * ((size_t)c * NODE_TILE + p->open_rows), kept->k + 2 * ((size_t)r * p->dim + c), 2);
    memcpy(v + 2 * (size_t)p->open_rows * p->dim, kept->v + 2 * (size_t)r * p->dim, 2u * p->dim);
    take_row(p);
}

/* One row of K or of V: codes to scratch, parameters to their place in the tile. */
static void pack_matrix_row(const node_packer_t *p, const uint8_t *rows, uint32_t n, uint32_t r, uint8_t *codes,
                            uint8_t *scales, uint8_t *mins)
{
    const node_coded_form_t *f = p->form;
    const uint8_t *scale_at = rows + n * codes_bytes(f) + r * params_bytes(f), *min_at = scale_at + n * params_bytes(f);
    node_rot_unpack(codes + (size_t)p->open_rows * f->dim, rows + r * codes_bytes(f), f->dim, f->bits);
    for (uint32_t g = 0; g < f->dim / f->group; g++) {
        uint16_t scale = vc_le16(scale_at + 2 * g), min = vc_le16(min_at + 2 * g); /* a tile has the machine's order */
        memcpy(scales + 2 * ((size_t)g * NODE_TILE + p->open_rows), &scale, 2);
        memcpy(mins + 2 * ((size_t)g * NODE_TILE + p->open_rows), &min, 2);
    }
}

static void pack_coded(node_packer_t *p, const node_kept_t *kept, uint32_t n, uint32_t r)
{
    uint8_t *tile = open_tile(p);
    const node_coded_form_t *f = p->form;
    pack_matrix_row(p, kept->k, n, r, p->k_codes, tile + f->k_scale, tile + f->k_min);
    pack_matrix_row(p, kept->v, n, r, p->v_codes, tile + f->v_scale, tile + f->v_min);
    take_row(p);
}

void node_pack_rows(node_packer_t *p, const node_kept_t *kept)
{
    const uint32_t n = (uint32_t)__builtin_popcountll(kept->rows);
    for (uint32_t r = 0; r < n; r++)
        if (p->form->bits)
            pack_coded(p, kept, n, r);
        else
            pack_plain(p, kept, r);
}

void node_pack_close(node_packer_t *p)
{
    if (p->form->bits && p->open_rows) {
        uint8_t *tile = p->slab - p->form->bytes;
        node_coded_put_k(p->form, tile, p->k_codes);
        node_coded_put_v(p->form, tile, p->v_codes);
    }
    p->open_rows = 0;
}
