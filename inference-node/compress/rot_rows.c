/*
 * Rows that are rotated and quantised: written from a page, checked when they come from outside. A whole block of them
 * is rot's payload; the rows that a dropper keeps are a part of its own when its spec ends in "+rot:...". A row's bytes
 * depend on that row only, so both have the same.
 */
#include "compress/rot_int.h"
#include "vc/bytes.h"
#include "vc/mem.h"

vc_status_t node_rot_rows_init(node_rot_rows_t *s, const char *text, uint32_t bits, uint32_t group, bool fit,
                               uint32_t dim, vc_err_t *err)
{
    group = VC_MIN(group, dim);
    if (dim == 0 || dim % 16 != 0 || dim > NODE_HEAD_DIM_MAX || dim % group != 0)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "%s does not fit a head of %u channels", text, dim);
    *s = (node_rot_rows_t){dim, group, dim / group, bits, dim * bits / 8, fit, false};
    return VC_OK;
}

node_rot_quantise_fn node_rot_quantise(node_ops_level_t level)
{
    if (node_ops_get(level) == NULL)
        return NULL;
    switch (level) {
    case NODE_OPS_AVX512: return node_rot_quantise_avx512;
    case NODE_OPS_AVX2: return node_rot_quantise_avx2;
    case NODE_OPS_SCALAR: break;
    }
    return node_rot_quantise_scalar;
}

node_rot_quantise_fn node_rot_quantise_best(void) { return node_rot_quantise(node_ops_best_level()); }

/* Kept rows of one matrix, x [dim][NODE_TILE], behind its mean where that is asked for; returns the first byte after
 * them. */
static uint8_t *encode_matrix(const node_rot_rows_t *s, node_rot_quantise_fn quantise, const uint16_t *x, uint64_t kept,
                              bool center, uint8_t *at)
{
    uint8_t codes[NODE_HEAD_DIM_MAX * NODE_TILE], row[NODE_HEAD_DIM_MAX];
    uint16_t scales[NODE_HEAD_DIM_MAX / 16 * NODE_TILE], mins[NODE_HEAD_DIM_MAX / 16 * NODE_TILE];
    uint16_t means[NODE_HEAD_DIM_MAX];
    const uint32_t n = (uint32_t)__builtin_popcountll(kept);
    if (n == 0)
        return at;
    quantise(x, s->dim, s->group, s->bits, s->fit, center ? means : NULL, codes, scales, mins);
    for (uint32_t c = 0; center && c < s->dim; c++, at += 2)
        vc_put_le16(at, means[c]);
    uint8_t *scale_at = at + (size_t)n * s->row_bytes, *min_at = scale_at + 2 * (size_t)n * s->n_groups;
    for (uint64_t left = kept; left; left &= left - 1, at += s->row_bytes) {
        const uint32_t t = (uint32_t)__builtin_ctzll(left);
        for (uint32_t c = 0; c < s->dim; c++)
            row[c] = codes[(size_t)c * NODE_TILE + t];
        node_rot_pack(at, row, s->dim, s->bits);
        for (uint32_t g = 0; g < s->n_groups; g++, scale_at += 2, min_at += 2) {
            vc_put_le16(scale_at, scales[(size_t)g * NODE_TILE + t]);
            vc_put_le16(min_at, mins[(size_t)g * NODE_TILE + t]);
        }
    }
    return min_at;
}

uint8_t *node_rot_encode_head(const node_rot_rows_t *s, node_rot_quantise_fn quantise, node_page_t *page,
                              uint32_t layer, uint32_t head, uint64_t kept, uint8_t *at)
{
    uint16_t turned[NODE_HEAD_DIM_MAX * NODE_TILE];
    const uint16_t *v = node_page_v(page, layer, head);
    at = encode_matrix(s, quantise, node_page_k(page, layer, head), kept, s->center, at);
    for (uint32_t t = 0; t < NODE_TILE; t++)
        for (uint32_t c = 0; c < s->dim; c++)
            turned[(size_t)c * NODE_TILE + t] = v[(size_t)t * s->dim + c];
    return encode_matrix(s, quantise, turned, kept, false, at);
}

bool node_groups_valid(const uint8_t *codes, const uint8_t *scales, const uint8_t *mins, uint32_t n_groups,
                       uint32_t group_bytes)
{
    if (!node_f16_finite(scales, n_groups) || !node_f16_finite(mins, n_groups))
        return false;
    for (uint32_t g = 0; g < n_groups; g++) {
        uint16_t scale = vc_le16(scales + 2 * (size_t)g);
        if (scale & 0x8000u)
            return false;
        uint32_t any = 0;
        for (uint32_t i = 0; scale == 0 && i < group_bytes; i++)
            any |= codes[(size_t)g * group_bytes + i];
        if (any)
            return false;
    }
    return true;
}

bool node_rot_rows_valid(const node_rot_rows_t *s, const uint8_t *at, uint32_t n)
{
    const node_coded_rows_t rows = node_rot_rows_at(s, at, n);
    return node_groups_valid(at, rows.scales, rows.mins, n * s->n_groups, s->group * s->bits / 8);
}
