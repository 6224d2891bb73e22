/* Rows of the catalog: the first byte says which kind, the second how long the key is. What decodes encodes to the same
 * bytes again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "catalog_rows.h"
#include "vc/bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        abort();
}

static void use_object(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len)
{
    cs_object_row_t row;
    uint8_t again[CS_ROW_OBJECT_BYTES];
    if (!cs_row_decode_object(key, key_len, value, len, &row))
        return;
    must(memcmp(&row.key, key, key_len) == 0);
    cs_row_encode_object(&row, again);
    must(len == sizeof(again) && memcmp(again, value, len) == 0);
}

static void use_segment(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len)
{
    cs_segment_row_t row;
    uint8_t again[CS_ROW_SEGMENT_BYTES];
    if (!cs_row_decode_segment(key, key_len, value, len, &row))
        return;
    cs_row_encode_segment(&row, again);
    must(len == sizeof(again) && memcmp(again, value, len) == 0);
}

static void use_prefix(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len)
{
    cs_prefix_row_t row;
    uint8_t again[CS_ROW_PREFIX_MAX_BYTES];
    if (!cs_row_decode_prefix(key, key_len, value, len, &row))
        return;
    must(row.n_head_tokens <= CS_HEAD_TOKENS);
    must(cs_row_encode_prefix(&row, again) == len && memcmp(again, value, len) == 0);
}

static void use_keyspace(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len)
{
    vc_digest_t id;
    vc_keyspace_t ks;
    uint8_t own[VC_DIGEST_BYTES];
    vc_keyspace_t decoded;
    /* Nobody guesses a hash: the right one is tried too. */
    if (vc_keyspace_decode(value, len, &decoded, NULL) == VC_OK && vc_keyspace_id(&decoded, &id, NULL) == VC_OK) {
        memcpy(own, id.b, sizeof(own));
        must(cs_row_decode_keyspace(own, sizeof(own), value, len, &id, &ks));
        must(vc_keyspace_diff(&decoded, &ks) == NULL);
        own[0] ^= 1;
        must(!cs_row_decode_keyspace(own, sizeof(own), value, len, &id, &ks));
    }
    (void)cs_row_decode_keyspace(key, key_len, value, len, &id, &ks);
}

static void use_pin(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len)
{
    vc_object_key_t row;
    uint8_t again[CS_ROW_PIN_BYTES];
    if (!cs_row_decode_pin(key, key_len, value, len, &row))
        return;
    cs_row_encode_pin(vc_le32(value), again);
    must(memcmp(&row, key, key_len) == 0 && len == sizeof(again) && memcmp(again, value, len) == 0);
}

static void use_uses(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len)
{
    cs_uses_row_t row;
    if (!cs_row_decode_uses(key, key_len, value, len, &row))
        return;
    cs_use_t *uses = calloc(row.n + 1, sizeof(*uses));
    uint8_t *again = malloc(len);
    must(uses != NULL && again != NULL && len == CS_ROW_USES_HEAD_BYTES + (size_t)row.n * CS_ROW_USE_BYTES);
    for (uint32_t i = 0; i < row.n; i++)
        uses[i] = cs_uses_at(&row, i);
    cs_row_encode_uses(row.version, uses, row.n, again);
    must(memcmp(again, value, len) == 0);
    free(uses);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const uses[])(const uint8_t *, size_t, const uint8_t *,
                                size_t) = {use_object, use_segment, use_prefix, use_keyspace, use_pin, use_uses};
    if (size < 2)
        return 0;
    size_t key_len = data[1] < size - 2 ? data[1] : size - 2;
    uses[data[0] % 6](data + 2, key_len, data + 2 + key_len, size - 2 - key_len);
    return 0;
}
