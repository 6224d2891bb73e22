/*
 * KV record: reading and checking. Everything is validated before it is used; the bytes may come from a damaged disk
 * or a hostile peer. Pure functions over the caller's memory, any thread. Writing lives in kvrec_write.c.
 */
#include "vc/kvrec.h"

#include <string.h>

#include "kvrec_int.h"
#include "vc/bytes.h"
#include "vc/crc32c.h"
#include "vc/mem.h"

/* More than any shape of version 1 needs (24 KiB), so that a later version is told apart from damage. */
#define MAX_HEADER_BYTES (1u << 20)

uint32_t vc_kvrec_header_bytes(const vc_kv_shape_t *shape)
{
    uint64_t used = KVREC_TOKENS_AT + 4 * (uint64_t)shape->block_tokens + KVREC_LAYER_ENTRY * (uint64_t)shape->n_layer;
    return (uint32_t)vc_align_up(used, VC_KVREC_ALIGN);
}

uint64_t vc_kvrec_full_bytes(const vc_kv_shape_t *shape)
{
    return vc_kvrec_header_bytes(shape) + shape->n_layer * vc_align_up(vc_kv_layer_bytes(shape), VC_KVREC_ALIGN);
}

uint64_t vc_kvrec_bytes(const vc_kvrec_head_t *head)
{
    return vc_align_up(head->header_bytes + head->payload_bytes, VC_KVREC_ALIGN);
}

uint32_t kvrec_part_align(vc_kvrec_kind_t kind) { return kind == VC_KVREC_FULL ? VC_KVREC_ALIGN : VC_KVREC_PART_ALIGN; }

uint32_t kvrec_header_crc(const uint8_t *header, uint32_t header_bytes)
{
    static const uint8_t zero[4];
    uint32_t crc = vc_crc32c(0, header, KVREC_CRC_AT);
    crc = vc_crc32c(crc, zero, sizeof(zero));
    return vc_crc32c(crc, header + KVREC_CRC_AT + 4, header_bytes - KVREC_CRC_AT - 4);
}

/* Kind and fidelity agree, and full KV is named by its numerics alone. */
static vc_status_t check_fidelity(const vc_kvrec_head_t *head, vc_err_t *err)
{
    if (head->fidelity == VC_FIDELITY_COMPRESSED &&
        (head->kind == VC_KVREC_DROPPER || head->kind == VC_KVREC_QUANTISER))
        return VC_OK;
    if (head->fidelity != VC_FIDELITY_FULL || head->kind != VC_KVREC_FULL)
        return vc_err_set(err, VC_ERR_CORRUPT, "record has fidelity %d with payload kind %d", (int)head->fidelity,
                          (int)head->kind);
    char text[VC_SPEC_TEXT_MAX];
    vc_spec_id_t spec;
    vc_spec_full_text(head->numerics_id, text);
    vc_spec_id(text, NULL, &spec);
    if (memcmp(&spec, &head->spec, sizeof(spec)) != 0)
        return vc_err_set(err, VC_ERR_CORRUPT, "full record's spec id is not that of %s", text);
    return VC_OK;
}

/* Where the block stands in its prefix, and which registration chose its rows. */
static vc_status_t check_position(const vc_kvrec_head_t *head, vc_err_t *err)
{
    uint64_t first = (uint64_t)head->block_index * head->shape.block_tokens;
    uint64_t end = first + head->shape.block_tokens;
    if (end > UINT32_MAX)
        return vc_err_set(err, VC_ERR_CORRUPT, "record's block index %u is beyond any context", head->block_index);
    if (head->block_index == 0 && memcmp(&head->parent, &head->keyspace, sizeof(head->parent)) != 0)
        return vc_err_set(err, VC_ERR_CORRUPT, "first block's parent is not its keyspace");
    bool none = head->horizon_tokens == 0 && head->horizon_first == 0;
    bool around = head->horizon_first <= first && end <= head->horizon_tokens;
    if (head->kind == VC_KVREC_FULL ? !none : !none && !around)
        return vc_err_set(err, VC_ERR_CORRUPT, "record's horizon %u..%u does not fit block %u", head->horizon_first,
                          head->horizon_tokens, head->block_index);
    return VC_OK;
}

vc_status_t kvrec_check_fields(const vc_kvrec_head_t *head, vc_err_t *err)
{
    vc_err_t why;
    if (vc_kv_shape_check(&head->shape, &why) != VC_OK)
        return vc_err_set(err, VC_ERR_CORRUPT, "record's shape is wrong: %s", why.msg);
    vc_status_t st = check_fidelity(head, err);
    return st != VC_OK ? st : check_position(head, err);
}

static bool all_zero(const uint8_t *p, size_t n)
{
    /* Compared with itself one byte further on: memcmp is vectorised, a byte loop is not. */
    return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

/* Size and sum of the header: after this its bytes are what the writer wrote. */
static vc_status_t check_envelope(const uint8_t *p, size_t bytes, uint32_t *header_bytes_p, vc_err_t *err)
{
    if (bytes < VC_KVREC_ALIGN)
        return vc_err_set(err, VC_ERR_INVALID, "record of %zu bytes is shorter than its header", bytes);
    if (memcmp(p, KVREC_MAGIC, 4) != 0)
        return vc_err_set(err, VC_ERR_CORRUPT, "record does not start with VCKV");
    uint32_t header_bytes = vc_le32(p + KVREC_HEADER_BYTES_AT);
    if (header_bytes == 0 || header_bytes % VC_KVREC_ALIGN != 0 || header_bytes > MAX_HEADER_BYTES)
        return vc_err_set(err, VC_ERR_CORRUPT, "record has an impossible header size of %u bytes", header_bytes);
    if (bytes < header_bytes)
        return vc_err_set(err, VC_ERR_INVALID, "record of %zu bytes is shorter than its header of %u", bytes,
                          header_bytes);
    if (kvrec_header_crc(p, header_bytes) != vc_le32(p + KVREC_CRC_AT))
        return vc_err_set(err, VC_ERR_CORRUPT, "record's header checksum does not match");
    uint32_t version = vc_le32(p + KVREC_VERSION_AT);
    if (version != VC_KVREC_VERSION)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "record format version %u is not supported, this build has %d",
                          version, VC_KVREC_VERSION);
    *header_bytes_p = header_bytes;
    return VC_OK;
}

static void read_fields(const uint8_t *p, vc_kvrec_head_t *head)
{
    head->fidelity = (vc_fidelity_t)p[KVREC_FIDELITY_AT];
    head->kind = (vc_kvrec_kind_t)p[KVREC_KIND_AT];
    head->shape.dtype = p[KVREC_DTYPE_AT];
    head->block_index = vc_le32(p + KVREC_BLOCK_INDEX_AT);
    head->shape.n_layer = vc_le32(p + KVREC_N_LAYER_AT);
    head->shape.n_kv_head = vc_le32(p + KVREC_N_KV_HEAD_AT);
    head->shape.head_dim = vc_le32(p + KVREC_HEAD_DIM_AT);
    head->shape.block_tokens = vc_le32(p + KVREC_BLOCK_TOKENS_AT);
    head->payload_bytes = vc_le64(p + KVREC_PAYLOAD_BYTES_AT);
    head->numerics_id = vc_le32(p + KVREC_NUMERICS_AT);
    head->horizon_tokens = vc_le32(p + KVREC_HORIZON_TOKENS_AT);
    head->horizon_first = vc_le32(p + KVREC_HORIZON_FIRST_AT);
    memcpy(head->spec.b, p + KVREC_SPEC_AT, VC_SPEC_ID_BYTES);
    memcpy(head->keyspace.b, p + KVREC_KEYSPACE_AT, VC_DIGEST_BYTES);
    memcpy(head->hash.b, p + KVREC_HASH_AT, VC_DIGEST_BYTES);
    memcpy(head->parent.b, p + KVREC_PARENT_AT, VC_DIGEST_BYTES);
}

/* Reserved bytes are zero, so that a later version may give them a meaning. */
static vc_status_t check_reserved(const uint8_t *p, const vc_kvrec_head_t *head, vc_err_t *err)
{
    size_t used =
        KVREC_TOKENS_AT + 4 * (size_t)head->shape.block_tokens + KVREC_LAYER_ENTRY * (size_t)head->shape.n_layer;
    if (p[KVREC_ZERO1_AT] != 0 || !all_zero(p + KVREC_ZERO2_AT, 4) || !all_zero(p + KVREC_ZERO3_AT, 16) ||
        !all_zero(p + used, head->header_bytes - used))
        return vc_err_set(err, VC_ERR_CORRUPT, "record's reserved header bytes are not zero");
    return VC_OK;
}

/* The table is canonical: each part starts at the first boundary after the one before it, so equal parts give equal
 * records and no byte of the payload can hide outside a part or a gap. */
static vc_status_t check_layers(const vc_kvrec_head_t *head, vc_err_t *err)
{
    uint64_t align = kvrec_part_align(head->kind), end = head->header_bytes;
    for (uint32_t l = 0; l < head->shape.n_layer; l++) {
        vc_kvrec_layer_t layer;
        vc_kvrec_layer(head, l, &layer);
        if (layer.offset != vc_align_up(end, align))
            return vc_err_set(err, VC_ERR_CORRUPT, "record's layer %u starts at byte %llu, not at %llu", l,
                              (unsigned long long)layer.offset, (unsigned long long)vc_align_up(end, align));
        if (head->kind == VC_KVREC_FULL && layer.length != vc_kv_layer_bytes(&head->shape))
            return vc_err_set(err, VC_ERR_CORRUPT, "record's layer %u has %u bytes, full KV has %llu", l, layer.length,
                              (unsigned long long)vc_kv_layer_bytes(&head->shape));
        end = layer.offset + layer.length;
        if (end > VC_KVREC_MAX_BYTES)
            return vc_err_set(err, VC_ERR_CORRUPT, "record's layer %u ends beyond the limit of %u bytes", l,
                              VC_KVREC_MAX_BYTES);
    }
    if (head->payload_bytes != end - head->header_bytes)
        return vc_err_set(err, VC_ERR_CORRUPT, "record's payload is %llu bytes, its layers take %llu",
                          (unsigned long long)head->payload_bytes, (unsigned long long)(end - head->header_bytes));
    return VC_OK;
}

static vc_status_t check_hash(const vc_kvrec_head_t *head, vc_err_t *err)
{
    uint32_t tokens[1024]; /* the bound of block_tokens; copied because the header may be unaligned */
    vc_digest_t hash;
    memcpy(tokens, head->tokens_le, 4 * (size_t)head->shape.block_tokens);
    vc_block_hash(&head->parent, tokens, head->shape.block_tokens, &hash);
    if (memcmp(&hash, &head->hash, sizeof(hash)) != 0)
        return vc_err_set(err, VC_ERR_CORRUPT, "record's block hash is not that of its tokens");
    return VC_OK;
}

vc_status_t vc_kvrec_decode(const void *data, size_t bytes, vc_kvrec_head_t *head_p, vc_err_t *err)
{
    const uint8_t *p = data;
    vc_kvrec_head_t head = {0};
    vc_status_t st = check_envelope(p, bytes, &head.header_bytes, err);
    if (st != VC_OK)
        return st;
    read_fields(p, &head);
    st = kvrec_check_fields(&head, err);
    if (st != VC_OK)
        return st;
    if (head.header_bytes != vc_kvrec_header_bytes(&head.shape))
        return vc_err_set(err, VC_ERR_CORRUPT, "record's header has %u bytes, its shape needs %u", head.header_bytes,
                          vc_kvrec_header_bytes(&head.shape));
    head.tokens_le = p + KVREC_TOKENS_AT;
    head.layers_le = head.tokens_le + 4 * (size_t)head.shape.block_tokens;
    st = check_reserved(p, &head, err);
    if (st == VC_OK)
        st = check_layers(&head, err);
    if (st == VC_OK)
        st = check_hash(&head, err);
    if (st == VC_OK)
        *head_p = head;
    return st;
}

void vc_kvrec_layer(const vc_kvrec_head_t *head, uint32_t layer, vc_kvrec_layer_t *layer_p)
{
    const uint8_t *entry = head->layers_le + KVREC_LAYER_ENTRY * (size_t)layer;
    layer_p->offset = vc_le64(entry);
    layer_p->length = vc_le32(entry + 8);
    layer_p->crc = vc_le32(entry + 12);
}

uint32_t vc_kvrec_token(const vc_kvrec_head_t *head, uint32_t i) { return vc_le32(head->tokens_le + 4 * (size_t)i); }

vc_status_t vc_kvrec_check_layer(const vc_kvrec_head_t *head, uint32_t layer, const void *part, vc_err_t *err)
{
    vc_kvrec_layer_t entry;
    if (layer >= head->shape.n_layer)
        return vc_err_set(err, VC_ERR_INVALID, "record has %u layers, layer %u was asked for", head->shape.n_layer,
                          layer);
    vc_kvrec_layer(head, layer, &entry);
    if (vc_crc32c(0, part, entry.length) != entry.crc)
        return vc_err_set(err, VC_ERR_CORRUPT, "block %u layer %u fails its checksum", head->block_index, layer);
    return VC_OK;
}

vc_status_t vc_kvrec_check(const void *record, size_t bytes, vc_kvrec_head_t *head_p, vc_err_t *err)
{
    const uint8_t *p = record;
    vc_kvrec_head_t head;
    vc_status_t st = vc_kvrec_decode(record, bytes, &head, err);
    if (st != VC_OK)
        return st;
    if (bytes != vc_kvrec_bytes(&head))
        return vc_err_set(err, VC_ERR_CORRUPT, "record has %zu bytes, its header says %llu", bytes,
                          (unsigned long long)vc_kvrec_bytes(&head));
    uint64_t end = head.header_bytes;
    for (uint32_t l = 0; l < head.shape.n_layer; l++) {
        vc_kvrec_layer_t layer;
        vc_kvrec_layer(&head, l, &layer);
        if (!all_zero(p + end, layer.offset - end))
            return vc_err_set(err, VC_ERR_CORRUPT, "bytes before layer %u are not zero", l);
        st = vc_kvrec_check_layer(&head, l, p + layer.offset, err);
        if (st != VC_OK)
            return st;
        end = layer.offset + layer.length;
    }
    if (!all_zero(p + end, bytes - end))
        return vc_err_set(err, VC_ERR_CORRUPT, "bytes after the last layer are not zero");
    *head_p = head;
    return VC_OK;
}

void vc_kvrec_key(const vc_kvrec_head_t *head, vc_object_key_t *key_p)
{
    key_p->fidelity = (uint8_t)head->fidelity;
    key_p->spec = head->spec;
    key_p->hash = head->hash;
}
