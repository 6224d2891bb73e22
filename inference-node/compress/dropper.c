/*
 * Payload of the methods that drop tokens: per kv_head {kept bitmap, bit i of byte i/8 = row i; kept K rows; kept V
 * rows}, in ascending position. Rows are [head_dim] f16; with "+rot:..." the rows of K, and of V, are what rot writes:
 * {codes, scales, minima}. Heads may keep different numbers of rows, down to none.
 */
#include "compress/dropper.h"
#include "vc/bytes.h"
#include "vc/mem.h"

double node_dropper_bits(const node_spec_t *spec, uint32_t head_dim)
{
    /* The bitmap's one bit per token covers 2 x head_dim numbers. */
    double row = spec->row_bits ? node_rot_bits(spec->row_bits, spec->row_group, head_dim) : 16.0;
    return row * spec->keep + 1.0 / (2.0 * head_dim);
}

vc_status_t node_dropper_rows_init(node_dropper_rows_t *rows, const node_spec_t *spec, uint32_t dim, bool writes,
                                   vc_err_t *err)
{
    node_dropper_rows_t r = {.dim = dim};
    if (spec->row_bits) {
        vc_status_t st =
            node_rot_rows_init(&r.coded, spec->text, spec->row_bits, spec->row_group, spec->row_fit != 0, dim, err);
        if (st != VC_OK)
            return st;
        r.quantise = writes ? node_rot_quantise_best() : NULL;
    }
    *rows = r;
    return VC_OK;
}

/* Of K and V. */
static size_t rows_bytes(const node_dropper_rows_t *rows, uint32_t n)
{
    return 2 * (rows->coded.bits ? (size_t)node_rot_rows_bytes(&rows->coded, n) : (size_t)n * rows->dim * 2);
}

uint32_t node_dropper_rows_bytes(const node_dropper_rows_t *rows, uint32_t n)
{
    return NODE_BITMAP_BYTES + (uint32_t)rows_bytes(rows, n);
}

uint8_t *node_dropper_rows_encode(const node_dropper_rows_t *rows, uint8_t *at, node_page_t *page, uint32_t layer,
                                  uint32_t head, uint64_t kept)
{
    if (rows->coded.bits == 0)
        return node_dropper_encode_head(at, page, layer, head, rows->dim, kept);
    vc_put_le64(at, kept);
    return node_rot_encode_head(&rows->coded, rows->quantise, page, layer, head, kept, at + NODE_BITMAP_BYTES);
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

/* n rows of K, then of V: every number means something. */
static bool rows_valid(const node_dropper_rows_t *rows, const uint8_t *at, uint32_t n)
{
    if (rows->coded.bits == 0)
        return node_f16_finite(at, (size_t)n * rows->dim * 2); /* an infinity would spread through every softmax */
    return node_rot_rows_valid(&rows->coded, at, n) &&
           node_rot_rows_valid(&rows->coded, at + node_rot_rows_bytes(&rows->coded, n), n);
}

/* Every count against the length and every number, so that a bad part changes nothing. */
static vc_status_t check_part(const node_spec_t *spec, const node_dropper_rows_t *rows, const vc_kvrec_head_t *head,
                              uint32_t layer, const void *part, uint32_t length, vc_err_t *err)
{
    vc_reader_t r = vc_reader(part, length);
    for (uint32_t h = 0; h < head->shape.n_kv_head; h++) {
        const uint32_t n = (uint32_t)__builtin_popcountll(vc_read_u64(&r));
        const uint8_t *at = vc_read_bytes(&r, rows_bytes(rows, n));
        if (at == NULL)
            return vc_err_set(err, VC_ERR_CORRUPT, "%s block %u layer %u: head %u does not fit into %u bytes",
                              spec->ops->name, head->block_index, layer, h, length);
        if (!rows_valid(rows, at, n))
            return vc_err_set(err, VC_ERR_CORRUPT, "%s block %u layer %u: head %u holds %s", spec->ops->name,
                              head->block_index, layer, h,
                              rows->coded.bits ? "a scale or minimum that cannot be" : "a number that is not finite");
    }
    if (vc_reader_left(&r) != 0)
        return vc_err_set(err, VC_ERR_CORRUPT, "%s block %u layer %u: %zu bytes too many", spec->ops->name,
                          head->block_index, layer, vc_reader_left(&r));
    return VC_OK;
}

vc_status_t node_dropper_decode(const node_spec_t *spec, const vc_kvrec_head_t *head, uint32_t layer, const void *part,
                                uint32_t length, node_body_builder_t *builder, vc_err_t *err)
{
    node_dropper_rows_t rows;
    node_coded_form_t form;
    vc_status_t st = node_dropper_rows_init(&rows, spec, head->shape.head_dim, false, err);
    if (st == VC_OK)
        st = check_part(spec, &rows, head, layer, part, length, err);
    if (st == VC_OK && rows.coded.bits)
        node_coded_form_init(&form, rows.coded.bits, rows.dim, rows.coded.group);
    vc_reader_t r = vc_reader(part, length);
    for (uint32_t h = 0; st == VC_OK && h < head->shape.n_kv_head; h++) {
        const uint64_t kept = vc_read_u64(&r);
        const uint32_t n = (uint32_t)__builtin_popcountll(kept);
        const uint8_t *k = vc_read_bytes(&r, rows_bytes(&rows, n) / 2),
                      *v = vc_read_bytes(&r, rows_bytes(&rows, n) / 2);
        if (rows.coded.bits == 0) {
            st = node_body_put_rows(builder, head->block_index, layer, h, kept, k, v, err);
            continue;
        }
        const node_coded_rows_t k_rows = node_rot_rows_at(&rows.coded, k, n);
        const node_coded_rows_t v_rows = node_rot_rows_at(&rows.coded, v, n);
        st = node_body_put_coded_rows(builder, head->block_index, layer, h, kept, &form, &k_rows, &v_rows, err);
    }
    return st;
}
