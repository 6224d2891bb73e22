/* See catalog_rows.h. Reserved fields are written as zero, and rows in which they are not are refused. */
#include "catalog_rows.h"

#include <string.h>

#include "vc/bytes.h"
#include "vc/mem.h"

void cs_row_encode_object(const cs_object_row_t *row, uint8_t value[CS_ROW_OBJECT_BYTES])
{
    vc_writer_t w = vc_writer(value, CS_ROW_OBJECT_BYTES);
    vc_write_u32(&w, row->segment);
    vc_write_u32(&w, row->version);
    vc_write_u64(&w, row->offset);
    vc_write_u32(&w, row->bytes);
    vc_write_u32(&w, row->header_crc);
    vc_write_u32(&w, row->block_index);
    vc_write_u32(&w, row->prefix);
    vc_write_u32(&w, row->stored_s);
    vc_write_u32(&w, 0);
    vc_write_bytes(&w, row->parent_fp, 8);
    vc_write_bytes(&w, row->keyspace.b, VC_DIGEST_BYTES);
}

bool cs_row_decode_object(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len, cs_object_row_t *row_p)
{
    cs_object_row_t row = {0};
    _Static_assert(sizeof(row.key) == CS_ROW_OBJECT_KEY_BYTES, "the key is stored as it is");
    if (key_len != CS_ROW_OBJECT_KEY_BYTES || len != CS_ROW_OBJECT_BYTES)
        return false;
    vc_reader_t r = vc_reader(value, len);
    memcpy(&row.key, key, CS_ROW_OBJECT_KEY_BYTES);
    row.segment = vc_read_u32(&r);
    row.version = vc_read_u32(&r);
    row.offset = vc_read_u64(&r);
    row.bytes = vc_read_u32(&r);
    row.header_crc = vc_read_u32(&r);
    row.block_index = vc_read_u32(&r);
    row.prefix = vc_read_u32(&r);
    row.stored_s = vc_read_u32(&r);
    uint32_t reserved = vc_read_u32(&r);
    memcpy(row.parent_fp, vc_read_bytes(&r, 8), 8);
    memcpy(row.keyspace.b, vc_read_bytes(&r, VC_DIGEST_BYTES), VC_DIGEST_BYTES);
    if (reserved != 0 || (row.key.fidelity != VC_FIDELITY_FULL && row.key.fidelity != VC_FIDELITY_COMPRESSED))
        return false;
    *row_p = row;
    return true;
}

void cs_row_encode_segment(const cs_segment_row_t *row, uint8_t value[CS_ROW_SEGMENT_BYTES])
{
    vc_put_le32(value, row->version);
    vc_put_le32(value + 4, row->is_survivors);
    vc_put_le64(value + 8, row->bytes);
}

bool cs_row_decode_segment(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len,
                           cs_segment_row_t *row_p)
{
    if (key_len != 4 || len != CS_ROW_SEGMENT_BYTES || vc_le32(value + 4) > 1)
        return false;
    *row_p = (cs_segment_row_t){.number = vc_le32(key),
                                .version = vc_le32(value),
                                .bytes = vc_le64(value + 8),
                                .is_survivors = vc_le32(value + 4) == 1};
    return true;
}

void cs_row_encode_pin(uint32_t pinned_s, uint8_t value[CS_ROW_PIN_BYTES])
{
    vc_put_le32(value, pinned_s);
    vc_put_le32(value + 4, 0);
}

bool cs_row_decode_pin(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len, vc_object_key_t *key_p)
{
    if (key_len != CS_ROW_OBJECT_KEY_BYTES || len != CS_ROW_PIN_BYTES || vc_le32(value + 4) != 0)
        return false;
    memcpy(key_p, key, CS_ROW_OBJECT_KEY_BYTES);
    return true;
}

void cs_row_encode_uses(uint32_t version, const cs_use_t *uses, uint32_t n, uint8_t *value)
{
    vc_put_le32(value, version);
    vc_put_le32(value + 4, n);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *at = value + CS_ROW_USES_HEAD_BYTES + (size_t)i * CS_ROW_USE_BYTES;
        vc_put_le32(at, uses[i].page);
        vc_put_le16(at + 4, uses[i].state);
    }
}

cs_use_t cs_uses_at(const cs_uses_row_t *row, uint32_t i)
{
    const uint8_t *at = row->uses + (size_t)i * CS_ROW_USE_BYTES;
    return (cs_use_t){vc_le32(at), vc_le16(at + 4)};
}

bool cs_row_decode_uses(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len, cs_uses_row_t *row_p)
{
    if (key_len != 4 || len < CS_ROW_USES_HEAD_BYTES || (len - CS_ROW_USES_HEAD_BYTES) % CS_ROW_USE_BYTES != 0 ||
        vc_le32(value + 4) != (len - CS_ROW_USES_HEAD_BYTES) / CS_ROW_USE_BYTES)
        return false;
    cs_uses_row_t row = {.number = vc_le32(key),
                         .version = vc_le32(value),
                         .n = vc_le32(value + 4),
                         .uses = value + CS_ROW_USES_HEAD_BYTES};
    for (uint32_t i = 1; i < row.n; i++) {
        if (cs_uses_at(&row, i).page <= cs_uses_at(&row, i - 1).page)
            return false;
    }
    *row_p = row;
    return true;
}

size_t cs_row_encode_prefix(const cs_prefix_row_t *row, uint8_t value[CS_ROW_PREFIX_MAX_BYTES])
{
    vc_writer_t w = vc_writer(value, CS_ROW_PREFIX_MAX_BYTES);
    vc_write_bytes(&w, row->keyspace.b, VC_DIGEST_BYTES);
    vc_write_bytes(&w, row->tip.b, VC_DIGEST_BYTES);
    vc_write_u32(&w, row->n_blocks);
    vc_write_u32(&w, row->n_head_tokens);
    for (uint32_t i = 0; i < row->n_head_tokens && i < CS_HEAD_TOKENS; i++)
        vc_write_u32(&w, row->head_tokens[i]);
    return (size_t)(w.p - value);
}

bool cs_row_decode_prefix(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len, cs_prefix_row_t *row_p)
{
    cs_prefix_row_t row = {0};
    if (key_len != 4 || len < 72)
        return false;
    vc_reader_t r = vc_reader(value, len);
    row.id = vc_le32(key);
    memcpy(row.keyspace.b, vc_read_bytes(&r, VC_DIGEST_BYTES), VC_DIGEST_BYTES);
    memcpy(row.tip.b, vc_read_bytes(&r, VC_DIGEST_BYTES), VC_DIGEST_BYTES);
    row.n_blocks = vc_read_u32(&r);
    row.n_head_tokens = vc_read_u32(&r);
    if (row.n_head_tokens > CS_HEAD_TOKENS || vc_reader_left(&r) != 4 * (size_t)row.n_head_tokens)
        return false;
    for (uint32_t i = 0; i < row.n_head_tokens; i++)
        row.head_tokens[i] = vc_read_u32(&r);
    *row_p = row;
    return true;
}

bool cs_row_decode_keyspace(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len, vc_digest_t *id_p,
                            vc_keyspace_t *ks_p)
{
    vc_keyspace_t ks;
    vc_digest_t id;
    if (key_len != VC_DIGEST_BYTES || vc_keyspace_decode(value, len, &ks, NULL) != VC_OK ||
        vc_keyspace_id(&ks, &id, NULL) != VC_OK || memcmp(id.b, key, VC_DIGEST_BYTES) != 0)
        return false;
    *id_p = id;
    *ks_p = ks;
    return true;
}
