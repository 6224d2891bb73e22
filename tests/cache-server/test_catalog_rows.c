/* Rows as bytes: what was written comes back, and bytes that no writer makes are refused. */
#include "support/vc_test.h"

#include <string.h>

#include "catalog_rows.h"

static cs_object_row_t sample_object(void)
{
    cs_object_row_t row = {.segment = 3,
                           .version = 7,
                           .offset = 1 << 20,
                           .bytes = 16384,
                           .header_crc = 0xdeadbeef,
                           .block_index = 12,
                           .prefix = 5,
                           .stored_s = 1700000000};
    row.key.fidelity = VC_FIDELITY_COMPRESSED;
    memset(&row.key.hash, 0x61, sizeof(row.key.hash));
    memset(&row.keyspace, 0x62, sizeof(row.keyspace));
    memset(row.parent_fp, 0x63, sizeof(row.parent_fp));
    return row;
}

Test(catalog_rows, an_object_comes_back_and_another_length_or_a_used_reserve_is_refused)
{
    cs_object_row_t row = sample_object(), got;
    uint8_t value[CS_ROW_OBJECT_BYTES + 1] = {0};
    cs_row_encode_object(&row, value);
    const uint8_t *key = (const uint8_t *)&row.key;
    cr_assert(cs_row_decode_object(key, CS_ROW_OBJECT_KEY_BYTES, value, CS_ROW_OBJECT_BYTES, &got));
    cr_assert_eq(memcmp(&got.key, &row.key, sizeof(row.key)), 0);
    cr_assert_eq(got.segment, 3);
    cr_assert_eq(got.version, 7);
    cr_assert_eq(got.offset, 1 << 20);
    cr_assert_eq(got.bytes, 16384);
    cr_assert_eq(got.header_crc, 0xdeadbeef);
    cr_assert_eq(got.block_index, 12);
    cr_assert_eq(got.prefix, 5);
    cr_assert_eq(got.stored_s, 1700000000);
    cr_assert_eq(memcmp(got.parent_fp, row.parent_fp, 8), 0);
    cr_assert_eq(memcmp(&got.keyspace, &row.keyspace, 32), 0);
    cr_assert_not(cs_row_decode_object(key, CS_ROW_OBJECT_KEY_BYTES - 1, value, CS_ROW_OBJECT_BYTES, &got));
    cr_assert_not(cs_row_decode_object(key, CS_ROW_OBJECT_KEY_BYTES, value, CS_ROW_OBJECT_BYTES - 1, &got));
    cr_assert_not(cs_row_decode_object(key, CS_ROW_OBJECT_KEY_BYTES, value, CS_ROW_OBJECT_BYTES + 1, &got));
    value[36] = 1;
    cr_assert_not(cs_row_decode_object(key, CS_ROW_OBJECT_KEY_BYTES, value, CS_ROW_OBJECT_BYTES, &got));
    value[36] = 0;
    row.key.fidelity = 3;
    cr_assert_not(cs_row_decode_object(key, CS_ROW_OBJECT_KEY_BYTES, value, CS_ROW_OBJECT_BYTES, &got));
}

Test(catalog_rows, a_segment_comes_back)
{
    cs_segment_row_t row = {.version = 9, .bytes = 4198400}, got;
    const uint8_t key[4] = {1, 2, 0, 0};
    uint8_t value[CS_ROW_SEGMENT_BYTES];
    cs_row_encode_segment(&row, value);
    cr_assert(cs_row_decode_segment(key, 4, value, sizeof(value), &got));
    cr_assert_eq(got.number, 513);
    cr_assert_eq(got.version, 9);
    cr_assert_eq(got.bytes, 4198400);
    cr_assert_not(cs_row_decode_segment(key, 3, value, sizeof(value), &got));
    cr_assert_not(cs_row_decode_segment(key, 4, value, sizeof(value) - 1, &got));
    value[5] = 1;
    cr_assert_not(cs_row_decode_segment(key, 4, value, sizeof(value), &got));
}

Test(catalog_rows, a_prefix_comes_back_with_none_and_with_all_of_its_tokens)
{
    const uint8_t key[4] = {77, 0, 0, 0};
    uint8_t value[CS_ROW_PREFIX_MAX_BYTES];
    for (uint32_t n = 0; n <= CS_HEAD_TOKENS; n += CS_HEAD_TOKENS) {
        cs_prefix_row_t row = {.n_blocks = 40, .n_head_tokens = n}, got;
        memset(&row.tip, 5, sizeof(row.tip));
        for (uint32_t i = 0; i < n; i++)
            row.head_tokens[i] = i * i;
        size_t len = cs_row_encode_prefix(&row, value);
        cr_assert_eq(len, 72 + 4 * n);
        cr_assert(cs_row_decode_prefix(key, 4, value, len, &got));
        cr_assert_eq(got.id, 77);
        cr_assert_eq(got.n_blocks, 40);
        cr_assert_eq(memcmp(got.head_tokens, row.head_tokens, sizeof(row.head_tokens)), 0);
        cr_assert_not(cs_row_decode_prefix(key, 4, value, len - 1, &got));
        cr_assert_not(cs_row_decode_prefix(key, 2, value, len, &got));
    }
    value[68] = CS_HEAD_TOKENS + 1;
    cr_assert_not(cs_row_decode_prefix(key, 4, value, sizeof(value), &(cs_prefix_row_t){0}));
}

Test(catalog_rows, a_keyspace_must_have_its_own_hash_for_a_key)
{
    vc_keyspace_t ks = {.shape = {2, 2, 128, 4, VC_DTYPE_F16}, .layout_version = VC_LAYOUT_VERSION}, got;
    vc_digest_t id, got_id;
    uint8_t value[VC_KEYSPACE_ENC_MAX];
    size_t len;
    strcpy(ks.rope, "neox theta=10000 dims=128");
    cr_assert_eq(vc_keyspace_encode(&ks, value, &len, NULL), VC_OK);
    cr_assert_eq(vc_keyspace_id(&ks, &id, NULL), VC_OK);
    cr_assert(cs_row_decode_keyspace(id.b, 32, value, len, &got_id, &got));
    cr_assert_eq(vc_keyspace_diff(&ks, &got), NULL);
    cr_assert_eq(memcmp(&id, &got_id, sizeof(id)), 0);
    id.b[31] ^= 1;
    cr_assert_not(cs_row_decode_keyspace(id.b, 32, value, len, &got_id, &got));
    id.b[31] ^= 1;
    cr_assert_not(cs_row_decode_keyspace(id.b, 32, value, len - 1, &got_id, &got));
    cr_assert_not(cs_row_decode_keyspace(id.b, 31, value, len, &got_id, &got));
}
