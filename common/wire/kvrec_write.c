/* KV record: writing. The header is laid down last, when every part has its length and sum. One thread per writer. */
#include "vc/kvrec.h"

#include <string.h>

#include "kvrec_int.h"
#include "vc/bytes.h"
#include "vc/crc32c.h"
#include "vc/mem.h"

vc_status_t vc_kvrec_write_begin(vc_kvrec_writer_t *w, void *buf, size_t cap, vc_kvrec_head_t *head,
                                 const uint32_t *tokens, vc_err_t *err)
{
    if (kvrec_check_fields(head, err) != VC_OK) {
        if (err != NULL)
            err->status = VC_ERR_INVALID;
        return VC_ERR_INVALID;
    }
    uint32_t header_bytes = vc_kvrec_header_bytes(&head->shape);
    if (cap < header_bytes)
        return vc_err_set(err, VC_ERR_RANGE, "record buffer of %zu bytes has no room for a header of %u", cap,
                          header_bytes);
    *w = (vc_kvrec_writer_t){.buf = buf, .cap = cap, .used = header_bytes};
    memset(buf, 0, header_bytes);
    memcpy(w->buf + KVREC_TOKENS_AT, tokens, 4 * (size_t)head->shape.block_tokens);
    vc_block_hash(&head->parent, tokens, head->shape.block_tokens, &head->hash);
    head->header_bytes = header_bytes;
    head->payload_bytes = 0;
    head->tokens_le = w->buf + KVREC_TOKENS_AT;
    head->layers_le = head->tokens_le + 4 * (size_t)head->shape.block_tokens;
    w->head = *head;
    return VC_OK;
}

vc_status_t vc_kvrec_write_layer(vc_kvrec_writer_t *w, uint32_t length, void **part_p, vc_err_t *err)
{
    const vc_kv_shape_t *shape = &w->head.shape;
    if (w->next_layer >= shape->n_layer)
        return vc_err_set(err, VC_ERR_INVALID, "record has %u layers, one more was written", shape->n_layer);
    if (w->head.kind == VC_KVREC_FULL && length != vc_kv_layer_bytes(shape))
        return vc_err_set(err, VC_ERR_INVALID, "layer %u has %u bytes, full KV has %llu", w->next_layer, length,
                          (unsigned long long)vc_kv_layer_bytes(shape));
    /* used stays at or below the limit of 256 MiB, length below 4 GiB: no overflow. */
    size_t offset = vc_align_up(w->used, kvrec_part_align(w->head.kind));
    size_t end = offset + length;
    if (end > VC_KVREC_MAX_BYTES || end > w->cap)
        return vc_err_set(err, VC_ERR_RANGE, "layer %u ends at byte %zu of a record buffer of %zu", w->next_layer, end,
                          w->cap);
    memset(w->buf + w->used, 0, offset - w->used);
    uint8_t *entry = w->buf + (w->head.layers_le - w->buf) + KVREC_LAYER_ENTRY * (size_t)w->next_layer;
    vc_put_le64(entry, offset);
    vc_put_le32(entry + 8, length);
    w->used = end;
    w->next_layer++;
    *part_p = w->buf + offset;
    return VC_OK;
}

static void write_fields(uint8_t *p, const vc_kvrec_head_t *head)
{
    memcpy(p, KVREC_MAGIC, 4);
    vc_put_le32(p + KVREC_VERSION_AT, VC_KVREC_VERSION);
    vc_put_le32(p + KVREC_HEADER_BYTES_AT, head->header_bytes);
    p[KVREC_FIDELITY_AT] = (uint8_t)head->fidelity;
    p[KVREC_DTYPE_AT] = (uint8_t)head->shape.dtype;
    p[KVREC_KIND_AT] = (uint8_t)head->kind;
    vc_put_le32(p + KVREC_BLOCK_INDEX_AT, head->block_index);
    vc_put_le32(p + KVREC_N_LAYER_AT, head->shape.n_layer);
    vc_put_le32(p + KVREC_N_KV_HEAD_AT, head->shape.n_kv_head);
    vc_put_le32(p + KVREC_HEAD_DIM_AT, head->shape.head_dim);
    vc_put_le32(p + KVREC_BLOCK_TOKENS_AT, head->shape.block_tokens);
    vc_put_le64(p + KVREC_PAYLOAD_BYTES_AT, head->payload_bytes);
    vc_put_le32(p + KVREC_NUMERICS_AT, head->numerics_id);
    vc_put_le32(p + KVREC_HORIZON_TOKENS_AT, head->horizon_tokens);
    vc_put_le32(p + KVREC_HORIZON_FIRST_AT, head->horizon_first);
    memcpy(p + KVREC_SPEC_AT, head->spec.b, VC_SPEC_ID_BYTES);
    memcpy(p + KVREC_KEYSPACE_AT, head->keyspace.b, VC_DIGEST_BYTES);
    memcpy(p + KVREC_HASH_AT, head->hash.b, VC_DIGEST_BYTES);
    memcpy(p + KVREC_PARENT_AT, head->parent.b, VC_DIGEST_BYTES);
}

vc_status_t vc_kvrec_write_end(vc_kvrec_writer_t *w, size_t *bytes_p, vc_err_t *err)
{
    if (w->next_layer != w->head.shape.n_layer)
        return vc_err_set(err, VC_ERR_INVALID, "record has %u layers, only %u were written", w->head.shape.n_layer,
                          w->next_layer);
    size_t bytes = vc_align_up(w->used, VC_KVREC_ALIGN);
    if (bytes > w->cap)
        return vc_err_set(err, VC_ERR_RANGE, "record buffer of %zu bytes has no room for %zu with padding", w->cap,
                          bytes);
    memset(w->buf + w->used, 0, bytes - w->used);
    w->head.payload_bytes = w->used - w->head.header_bytes;
    for (uint32_t l = 0; l < w->head.shape.n_layer; l++) {
        vc_kvrec_layer_t layer;
        vc_kvrec_layer(&w->head, l, &layer);
        uint8_t *entry = w->buf + (w->head.layers_le - w->buf) + KVREC_LAYER_ENTRY * (size_t)l;
        vc_put_le32(entry + 12, vc_crc32c(0, w->buf + layer.offset, layer.length));
    }
    write_fields(w->buf, &w->head);
    vc_put_le32(w->buf + KVREC_CRC_AT, kvrec_header_crc(w->buf, w->head.header_bytes));
    *bytes_p = bytes;
    return VC_OK;
}
