/*
 * Payload of the methods that drop tokens: per kv_head {kept bitmap, bit i of byte i/8 = row i; kept K rows; kept V
 * rows}, rows [head_dim] f16 in ascending position. Heads may keep different numbers of rows, down to none.
 */
#include "compress/codec_int.h"
#include "vc/bytes.h"
#include "vc/mem.h"

double node_dropper_bits(const node_spec_t *spec, uint32_t head_dim)
{
    /* 16 bits per kept number; the bitmap's one bit per token covers 2 x head_dim numbers. */
    return 16.0 * spec->keep + 1.0 / (2.0 * head_dim);
}

uint8_t *node_dropper_encode_head(uint8_t *at, node_page_t *page, uint32_t layer, uint32_t head, uint32_t head_dim,
                                  uint64_t kept)
{
    const uint16_t *k = node_page_k(page, layer, head), *v = node_page_v(page, layer, head);
    vc_put_le64(at, kept);
    at += NODE_BITMAP_BYTES;
    for (uint64_t left = kept; left; left &= left - 1) {
        uint32_t row = (uint32_t)__builtin_ctzll(left);
        for (uint32_t c = 0; c < head_dim; c++, at += 2)
            vc_put_le16(at, k[(size_t)c * NODE_TILE + row]);
    }
    for (uint64_t left = kept; left; left &= left - 1) {
        uint32_t row = (uint32_t)__builtin_ctzll(left);
        memcpy(at, v + (size_t)row * head_dim, head_dim * 2u);
        at += head_dim * 2u;
    }
    return at;
}

vc_status_t node_dropper_decode(const node_spec_t *spec, const vc_kvrec_head_t *head, uint32_t layer, const void *part,
                                uint32_t length, node_body_builder_t *builder, vc_err_t *err)
{
    const uint32_t dim = head->shape.head_dim, n_head = head->shape.n_kv_head;
    /* First pass: every count against the length and every number, so that a bad part changes nothing. */
    vc_reader_t r = vc_reader(part, length);
    for (uint32_t h = 0; h < n_head; h++) {
        uint64_t kept = vc_read_u64(&r);
        size_t bytes = (size_t)__builtin_popcountll(kept) * dim * 4u;
        const uint8_t *rows = vc_read_bytes(&r, bytes);
        if (rows == NULL)
            return vc_err_set(err, VC_ERR_CORRUPT, "%s block %u layer %u: head %u does not fit into %u bytes",
                              spec->ops->name, head->block_index, layer, h, length);
        if (!node_f16_finite(rows, bytes / 2)) /* would spread through every softmax */
            return vc_err_set(err, VC_ERR_CORRUPT, "%s block %u layer %u: head %u holds a number that is not finite",
                              spec->ops->name, head->block_index, layer, h);
    }
    if (vc_reader_left(&r) != 0)
        return vc_err_set(err, VC_ERR_CORRUPT, "%s block %u layer %u: %zu bytes too many", spec->ops->name,
                          head->block_index, layer, vc_reader_left(&r));
    r = vc_reader(part, length);
    for (uint32_t h = 0; h < n_head; h++) {
        uint64_t kept = vc_read_u64(&r);
        size_t bytes = (size_t)__builtin_popcountll(kept) * dim * 2u;
        const uint8_t *k_rows = vc_read_bytes(&r, bytes);
        const uint8_t *v_rows = vc_read_bytes(&r, bytes);
        vc_status_t st = node_body_put_rows(builder, head->block_index, layer, h, kept, k_rows, v_rows, err);
        if (st != VC_OK)
            return st;
    }
    return VC_OK;
}
