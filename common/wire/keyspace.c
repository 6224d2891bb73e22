/*
 * Identity: keyspace encoding and its id, the block-hash chain, spec ids, and the digest helpers behind them. Pure
 * functions, any thread. Decoding accepts exactly what encoding produces, so equal keyspaces have equal bytes.
 */
#include "vc/keyspace.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "vc/bytes.h"
#include "vc/kvrec.h"
#include "vc/mem.h"

_Static_assert(crypto_generichash_BYTES == VC_DIGEST_BYTES, "BLAKE2b-256");

/* Tags are part of the format: never renumbered, never reused. */
enum {
    TAG_MODEL = 1,
    TAG_TOKENIZER = 2,
    TAG_ADAPTER = 3,
    TAG_N_LAYER = 4,
    TAG_N_KV_HEAD = 5,
    TAG_HEAD_DIM = 6,
    TAG_BLOCK_TOKENS = 7,
    TAG_DTYPE = 8,
    TAG_LAYOUT = 9,
    TAG_ROPE = 10,
    TAG_SALT = 11,
    TAG_LAST = TAG_SALT
};

static const char *const field_names[TAG_LAST + 1] = {
    NULL,       "model",        "tokenizer", "adapter",        "n_layer", "n_kv_head",
    "head_dim", "block_tokens", "dtype",     "layout_version", "rope",    "tenant",
};

static vc_status_t bound(const char *name, uint32_t value, vc_err_t *err)
{
    if (value < 1 || value > 1024)
        return vc_err_set(err, VC_ERR_RANGE, "%s is %u, must be 1 to 1024", name, value);
    return VC_OK;
}

vc_status_t vc_kv_shape_check(const vc_kv_shape_t *shape, vc_err_t *err)
{
    vc_status_t st = bound("n_layer", shape->n_layer, err);
    if (st == VC_OK)
        st = bound("n_kv_head", shape->n_kv_head, err);
    if (st == VC_OK)
        st = bound("head_dim", shape->head_dim, err);
    if (st == VC_OK)
        st = bound("block_tokens", shape->block_tokens, err);
    if (st != VC_OK)
        return st;
    if (shape->dtype != VC_DTYPE_F16 && shape->dtype != VC_DTYPE_BF16)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "KV dtype %u is neither f16 (1) nor bf16 (2)", shape->dtype);
    /* With every factor at most 2^10 the product stays below 2^43: no overflow in 64 bits. */
    uint64_t record = vc_kvrec_full_bytes(shape);
    if (record > VC_KVREC_MAX_BYTES)
        return vc_err_set(err, VC_ERR_RANGE, "a full block takes %llu bytes, the limit is %u",
                          (unsigned long long)record, VC_KVREC_MAX_BYTES);
    return VC_OK;
}

uint64_t vc_kv_layer_bytes(const vc_kv_shape_t *shape)
{
    return (uint64_t)2 * shape->n_kv_head * shape->block_tokens * shape->head_dim * 2;
}

/* A text field: ended inside its array, and printable, since it appears in messages and logs. */
static vc_status_t check_text(const char *name, const char *text, size_t cap, size_t *len_p, vc_err_t *err)
{
    size_t len = strnlen(text, cap);
    if (len == cap)
        return vc_err_set(err, VC_ERR_INVALID, "keyspace field %s is longer than %zu bytes", name, cap - 1);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < 0x20 || (unsigned char)text[i] > 0x7e)
            return vc_err_set(err, VC_ERR_INVALID, "keyspace field %s holds a byte that is not printable ASCII", name);
    *len_p = len;
    return VC_OK;
}

/* What encode demands of its input and decode of its output. */
static vc_status_t check_keyspace(const vc_keyspace_t *ks, size_t *rope_len, size_t *salt_len, vc_err_t *err)
{
    vc_status_t st = vc_kv_shape_check(&ks->shape, err);
    if (st != VC_OK)
        return st;
    if (ks->layout_version != VC_LAYOUT_VERSION)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "KV layout version %u is not supported, this build has %u",
                          ks->layout_version, VC_LAYOUT_VERSION);
    st = check_text("rope", ks->rope, sizeof(ks->rope), rope_len, err);
    if (st != VC_OK)
        return st;
    if (*rope_len == 0)
        return vc_err_set(err, VC_ERR_INVALID, "keyspace field rope is empty");
    return check_text("tenant", ks->tenant_salt, sizeof(ks->tenant_salt), salt_len, err);
}

static void put_field(vc_writer_t *w, uint16_t tag, const void *bytes, size_t len)
{
    vc_write_u16(w, tag);
    vc_write_u32(w, (uint32_t)len);
    vc_write_bytes(w, bytes, len);
}

static void put_field_u32(vc_writer_t *w, uint16_t tag, uint32_t value)
{
    uint8_t bytes[4];
    vc_put_le32(bytes, value);
    put_field(w, tag, bytes, sizeof(bytes));
}

vc_status_t vc_keyspace_encode(const vc_keyspace_t *ks, uint8_t *buf, size_t *len_p, vc_err_t *err)
{
    size_t rope_len, salt_len;
    vc_status_t st = check_keyspace(ks, &rope_len, &salt_len, err);
    if (st != VC_OK)
        return st;
    vc_writer_t w = vc_writer(buf, VC_KEYSPACE_ENC_MAX);
    put_field(&w, TAG_MODEL, ks->model.b, VC_DIGEST_BYTES);
    put_field(&w, TAG_TOKENIZER, ks->tokenizer.b, VC_DIGEST_BYTES);
    put_field(&w, TAG_ADAPTER, ks->adapter.b, ks->has_adapter ? VC_DIGEST_BYTES : 0);
    put_field_u32(&w, TAG_N_LAYER, ks->shape.n_layer);
    put_field_u32(&w, TAG_N_KV_HEAD, ks->shape.n_kv_head);
    put_field_u32(&w, TAG_HEAD_DIM, ks->shape.head_dim);
    put_field_u32(&w, TAG_BLOCK_TOKENS, ks->shape.block_tokens);
    put_field_u32(&w, TAG_DTYPE, ks->shape.dtype);
    put_field_u32(&w, TAG_LAYOUT, ks->layout_version);
    put_field(&w, TAG_ROPE, ks->rope, rope_len);
    put_field(&w, TAG_SALT, ks->tenant_salt, salt_len);
    if (w.failed)
        return vc_err_set(err, VC_ERR_INTERNAL, "keyspace encoding exceeds %d bytes", VC_KEYSPACE_ENC_MAX);
    *len_p = (size_t)(w.p - buf);
    return VC_OK;
}

/* Next field, which must carry this tag and min..max bytes; copied to out, which has room for max. */
static vc_status_t get_field(vc_reader_t *r, uint16_t tag, size_t min, size_t max, void *out, size_t *len_p,
                             vc_err_t *err)
{
    const char *name = field_names[tag];
    uint16_t got = vc_read_u16(r);
    uint32_t len = vc_read_u32(r);
    if (r->failed)
        return vc_err_set(err, VC_ERR_INVALID, "keyspace ends before field %s", name);
    if (got != tag)
        return vc_err_set(err, VC_ERR_INVALID, "keyspace has tag %u where field %s (tag %u) belongs", got, name, tag);
    if (len < min || len > max)
        return vc_err_set(err, VC_ERR_INVALID, "keyspace field %s has a length of %u bytes", name, len);
    const uint8_t *bytes = vc_read_bytes(r, len);
    if (bytes == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "keyspace ends inside field %s", name);
    if (len != 0)
        memcpy(out, bytes, len);
    *len_p = len;
    return VC_OK;
}

static vc_status_t get_u32(vc_reader_t *r, uint16_t tag, uint32_t *out, vc_err_t *err)
{
    uint8_t bytes[4] = {0};
    size_t len;
    vc_status_t st = get_field(r, tag, 4, 4, bytes, &len, err);
    if (st == VC_OK)
        *out = vc_le32(bytes);
    return st;
}

static vc_status_t get_digests(vc_reader_t *r, vc_keyspace_t *ks, vc_err_t *err)
{
    size_t len;
    vc_status_t st = get_field(r, TAG_MODEL, VC_DIGEST_BYTES, VC_DIGEST_BYTES, ks->model.b, &len, err);
    if (st == VC_OK)
        st = get_field(r, TAG_TOKENIZER, VC_DIGEST_BYTES, VC_DIGEST_BYTES, ks->tokenizer.b, &len, err);
    if (st == VC_OK)
        st = get_field(r, TAG_ADAPTER, 0, VC_DIGEST_BYTES, ks->adapter.b, &len, err);
    if (st != VC_OK)
        return st;
    if (len != 0 && len != VC_DIGEST_BYTES)
        return vc_err_set(err, VC_ERR_INVALID, "keyspace field adapter has a length of %zu bytes", len);
    ks->has_adapter = len != 0;
    return VC_OK;
}

static vc_status_t get_numbers(vc_reader_t *r, vc_keyspace_t *ks, vc_err_t *err)
{
    const struct {
        uint16_t tag;
        uint32_t *out;
    } fields[] = {
        {TAG_N_LAYER, &ks->shape.n_layer},   {TAG_N_KV_HEAD, &ks->shape.n_kv_head},
        {TAG_HEAD_DIM, &ks->shape.head_dim}, {TAG_BLOCK_TOKENS, &ks->shape.block_tokens},
        {TAG_DTYPE, &ks->shape.dtype},       {TAG_LAYOUT, &ks->layout_version},
    };
    for (size_t i = 0; i < VC_ARRAY_LEN(fields); i++) {
        vc_status_t st = get_u32(r, fields[i].tag, fields[i].out, err);
        if (st != VC_OK)
            return st;
    }
    return VC_OK;
}

vc_status_t vc_keyspace_decode(const uint8_t *buf, size_t len, vc_keyspace_t *ks, vc_err_t *err)
{
    vc_keyspace_t out = {0};
    size_t rope_len, salt_len;
    vc_reader_t r = vc_reader(buf, len);
    vc_status_t st = get_digests(&r, &out, err);
    if (st == VC_OK)
        st = get_numbers(&r, &out, err);
    if (st == VC_OK)
        st = get_field(&r, TAG_ROPE, 1, sizeof(out.rope) - 1, out.rope, &rope_len, err);
    if (st == VC_OK)
        st = get_field(&r, TAG_SALT, 0, sizeof(out.tenant_salt) - 1, out.tenant_salt, &salt_len, err);
    if (st != VC_OK)
        return st;
    if (vc_reader_left(&r) != 0)
        return vc_err_set(err, VC_ERR_INVALID, "keyspace has %zu bytes after its last field", vc_reader_left(&r));
    size_t rope_text, salt_text;
    st = check_keyspace(&out, &rope_text, &salt_text, err);
    if (st != VC_OK)
        return st;
    if (rope_text != rope_len || salt_text != salt_len)
        return vc_err_set(err, VC_ERR_INVALID, "keyspace field %s holds a zero byte",
                          rope_text != rope_len ? "rope" : "tenant");
    *ks = out;
    return VC_OK;
}

vc_status_t vc_keyspace_id(const vc_keyspace_t *ks, vc_digest_t *id_p, vc_err_t *err)
{
    uint8_t buf[VC_KEYSPACE_ENC_MAX];
    size_t len;
    vc_status_t st = vc_keyspace_encode(ks, buf, &len, err);
    if (st == VC_OK)
        vc_blake2b(buf, len, id_p);
    return st;
}

static bool digest_equal(const vc_digest_t *a, const vc_digest_t *b) { return memcmp(a, b, sizeof(*a)) == 0; }

/* Tag of the first field from `tag` on that differs, or TAG_LAST + 1. */
static int next_diff(const vc_keyspace_t *a, const vc_keyspace_t *b, int tag)
{
    for (; tag <= TAG_LAST; tag++) {
        bool same = true;
        switch (tag) {
        case TAG_MODEL: same = digest_equal(&a->model, &b->model); break;
        case TAG_TOKENIZER: same = digest_equal(&a->tokenizer, &b->tokenizer); break;
        case TAG_ADAPTER:
            same = a->has_adapter == b->has_adapter && (!a->has_adapter || digest_equal(&a->adapter, &b->adapter));
            break;
        case TAG_N_LAYER: same = a->shape.n_layer == b->shape.n_layer; break;
        case TAG_N_KV_HEAD: same = a->shape.n_kv_head == b->shape.n_kv_head; break;
        case TAG_HEAD_DIM: same = a->shape.head_dim == b->shape.head_dim; break;
        case TAG_BLOCK_TOKENS: same = a->shape.block_tokens == b->shape.block_tokens; break;
        case TAG_DTYPE: same = a->shape.dtype == b->shape.dtype; break;
        case TAG_LAYOUT: same = a->layout_version == b->layout_version; break;
        case TAG_ROPE: same = strncmp(a->rope, b->rope, sizeof(a->rope)) == 0; break;
        case TAG_SALT: same = strncmp(a->tenant_salt, b->tenant_salt, sizeof(a->tenant_salt)) == 0; break;
        default: break;
        }
        if (!same)
            break;
    }
    return tag;
}

const char *vc_keyspace_diff(const vc_keyspace_t *a, const vc_keyspace_t *b)
{
    int tag = next_diff(a, b, TAG_MODEL);
    return tag <= TAG_LAST ? field_names[tag] : NULL;
}

const char *vc_keyspace_near(const vc_keyspace_t *a, const vc_keyspace_t *b)
{
    int tag = next_diff(a, b, TAG_MODEL);
    bool is_near = tag <= TAG_LAST && tag != TAG_SALT && next_diff(a, b, tag + 1) > TAG_LAST;
    return is_near ? field_names[tag] : NULL;
}

void vc_blake2b(const void *data, size_t bytes, vc_digest_t *out)
{
    /* Cannot fail for this digest size without a key; needs no sodium_init (no randomness, portable fallback). */
    crypto_generichash(out->b, VC_DIGEST_BYTES, data, bytes, NULL, 0);
}

void vc_block_hash(const vc_digest_t *parent, const uint32_t *tokens, uint32_t n_tokens, vc_digest_t *hash_p)
{
    crypto_generichash_state state;
    uint8_t count[4];
    vc_put_le32(count, n_tokens);
    crypto_generichash_init(&state, NULL, 0, VC_DIGEST_BYTES);
    crypto_generichash_update(&state, parent->b, VC_DIGEST_BYTES);
    crypto_generichash_update(&state, count, sizeof(count));
    /* Tokens in memory are little-endian already (asserted in vc/bytes.h). */
    crypto_generichash_update(&state, (const uint8_t *)tokens, (uint64_t)n_tokens * sizeof(uint32_t));
    crypto_generichash_final(&state, hash_p->b, VC_DIGEST_BYTES);
}

uint32_t vc_block_chain(const vc_digest_t *keyspace_id, const uint32_t *tokens, uint32_t n_tokens,
                        uint32_t block_tokens, vc_digest_t *hashes)
{
    if (block_tokens == 0)
        return 0;
    uint32_t n = n_tokens / block_tokens;
    const vc_digest_t *parent = keyspace_id;
    for (uint32_t i = 0; i < n; i++) {
        vc_block_hash(parent, tokens + (size_t)i * block_tokens, block_tokens, &hashes[i]);
        parent = &hashes[i];
    }
    return n;
}

void vc_spec_full_text(uint32_t numerics_id, char text[VC_SPEC_TEXT_MAX])
{
    snprintf(text, VC_SPEC_TEXT_MAX, "full@%u", numerics_id);
}

void vc_spec_id(const char *canonical_text, const vc_digest_t *calib, vc_spec_id_t *id_p)
{
    crypto_generichash_state state;
    vc_digest_t digest;
    uint8_t len_bytes[4];
    size_t len = strlen(canonical_text);
    vc_put_le32(len_bytes, (uint32_t)len);
    crypto_generichash_init(&state, NULL, 0, VC_DIGEST_BYTES);
    crypto_generichash_update(&state, len_bytes, sizeof(len_bytes));
    crypto_generichash_update(&state, (const uint8_t *)canonical_text, len);
    if (calib != NULL)
        crypto_generichash_update(&state, calib->b, VC_DIGEST_BYTES);
    crypto_generichash_final(&state, digest.b, VC_DIGEST_BYTES);
    memcpy(id_p->b, digest.b, VC_SPEC_ID_BYTES);
}

void vc_hex(const void *data, size_t bytes, char *hex)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = data;
    for (size_t i = 0; i < bytes; i++) {
        hex[2 * i] = digits[p[i] >> 4];
        hex[2 * i + 1] = digits[p[i] & 15];
    }
    hex[2 * bytes] = '\0';
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int vc_unhex(const char *hex, void *data, size_t bytes)
{
    uint8_t *p = data;
    if (strlen(hex) != 2 * bytes)
        return -1;
    for (size_t i = 0; i < 2 * bytes; i++)
        if (hex_value(hex[i]) < 0)
            return -1;
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(hex_value(hex[2 * i]) * 16 + hex_value(hex[2 * i + 1]));
    return 0;
}
