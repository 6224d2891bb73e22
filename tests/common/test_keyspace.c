/* Identity: the encoding's bytes are fixed, decode accepts only them, and every difference has a name. */
#include <stdio.h>
#include <string.h>

#include "support/vc_test.h"
#include "vc/bytes.h"
#include "vc/keyspace.h"
#include "vc/mem.h"

static vc_keyspace_t sample(void)
{
    vc_keyspace_t ks = {.shape = {30, 3, 64, 64, VC_DTYPE_F16},
                        .layout_version = VC_LAYOUT_VERSION,
                        .rope = "neox theta=100000 dims=64",
                        .tenant_salt = "acme"};
    memset(&ks.model, 1, sizeof(ks.model));
    memset(&ks.tokenizer, 2, sizeof(ks.tokenizer));
    return ks;
}

static void assert_hex(const void *data, size_t n, const char *want)
{
    char hex[2 * VC_KEYSPACE_ENC_MAX + 1];
    vc_hex(data, n, hex);
    cr_assert_str_eq(hex, want);
}

/* Worked out from the definition with another BLAKE2b implementation. A change here orphans every stored object. */
Test(keyspace, encoding_and_id_of_a_fixed_keyspace_never_change)
{
    vc_keyspace_t ks = sample();
    uint8_t buf[VC_KEYSPACE_ENC_MAX];
    size_t len = 0;
    vc_digest_t id;
    cr_assert_eq(vc_keyspace_encode(&ks, buf, &len, NULL), VC_OK);
    assert_hex(buf, len,
               "0100200000000101010101010101010101010101010101010101010101010101010101010101"
               "0200200000000202020202020202020202020202020202020202020202020202020202020202"
               "0300000000000400040000001e000000050004000000030000000600040000004000000007000400000040000000"
               "080004000000010000000900040000000100000"
               "00a00190000006e656f782074686574613d3130303030302064696d733d36340b000400000061636d65");
    cr_assert_eq(vc_keyspace_id(&ks, &id, NULL), VC_OK);
    assert_hex(&id, sizeof(id), "3d208d118848549fddbea1a92a733a05082366a8e7b80d342e94c0810ce1b97a");
}

Test(keyspace, chain_and_spec_ids_never_change)
{
    vc_keyspace_t ks = sample();
    vc_digest_t id, calib, hashes[2];
    uint32_t tokens[11];
    for (uint32_t i = 0; i < 11; i++)
        tokens[i] = i;
    cr_assert_eq(vc_keyspace_id(&ks, &id, NULL), VC_OK);
    cr_assert_eq(vc_block_chain(&id, tokens, 11, 4, hashes), 2u); /* the third block is not full */
    assert_hex(&hashes[0], 32, "4931947971fee010fc17ecd9525122d78d1e5735777caea42fa7cf7a0a1de345");
    assert_hex(&hashes[1], 32, "e099d66e5016ad5f85ad844d3f39a1ca73d0d46ce956f9b400861c2d7cc74517");
    vc_digest_t step;
    vc_block_hash(&hashes[0], tokens + 4, 4, &step);
    cr_assert_arr_eq(step.b, hashes[1].b, 32);
    char text[VC_SPEC_TEXT_MAX];
    vc_spec_id_t spec;
    vc_spec_full_text(1, text);
    cr_assert_str_eq(text, "full@1");
    vc_spec_id(text, NULL, &spec);
    assert_hex(&spec, sizeof(spec), "2dbace71ad2343ce198e4535816e195f");
    memset(&calib, 9, sizeof(calib));
    vc_spec_id("rot:bits=4", &calib, &spec);
    assert_hex(&spec, sizeof(spec), "b1c5914e4423560ee37f31876f0cbe34");
}

Test(keyspace, chain_of_less_than_a_block_is_empty)
{
    vc_digest_t id = {{0}}, hash = {{0}};
    uint32_t token = 1;
    cr_assert_eq(vc_block_chain(&id, &token, 1, 2, &hash), 0u);
    cr_assert_eq(vc_block_chain(&id, &token, 1, 0, &hash), 0u);
    cr_assert_eq(vc_block_chain(&id, NULL, 0, 64, &hash), 0u);
}

Test(keyspace, decode_returns_what_was_encoded)
{
    vc_keyspace_t ks = sample(), back;
    uint8_t buf[VC_KEYSPACE_ENC_MAX];
    size_t len;
    for (int with_adapter = 0; with_adapter < 2; with_adapter++) {
        ks.has_adapter = with_adapter;
        memset(&ks.adapter, with_adapter ? 3 : 0, sizeof(ks.adapter));
        cr_assert_eq(vc_keyspace_encode(&ks, buf, &len, NULL), VC_OK);
        memset(&back, 0xee, sizeof(back));
        cr_assert_eq(vc_keyspace_decode(buf, len, &back, NULL), VC_OK);
        cr_assert_null(vc_keyspace_diff(&ks, &back));
        cr_assert_eq(back.has_adapter, ks.has_adapter);
    }
}

Test(keyspace, longest_texts_fit_and_longer_ones_are_refused)
{
    vc_keyspace_t ks = sample(), back;
    uint8_t buf[VC_KEYSPACE_ENC_MAX];
    size_t len;
    vc_err_t err = {0};
    memset(ks.rope, 'r', sizeof(ks.rope) - 1);
    ks.rope[sizeof(ks.rope) - 1] = '\0';
    memset(ks.tenant_salt, 's', sizeof(ks.tenant_salt) - 1);
    ks.tenant_salt[sizeof(ks.tenant_salt) - 1] = '\0';
    ks.has_adapter = true;
    cr_assert_eq(vc_keyspace_encode(&ks, buf, &len, NULL), VC_OK);
    cr_assert_eq(vc_keyspace_decode(buf, len, &back, NULL), VC_OK);
    cr_assert_null(vc_keyspace_diff(&ks, &back));
    ks.rope[sizeof(ks.rope) - 1] = 'r'; /* no terminator left */
    cr_assert_eq(vc_keyspace_encode(&ks, buf, &len, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "rope"));
}

Test(keyspace, decode_refuses_every_truncation_and_any_extra_byte)
{
    vc_keyspace_t ks = sample(), back = {.layout_version = 77};
    uint8_t buf[VC_KEYSPACE_ENC_MAX + 1];
    size_t len;
    cr_assert_eq(vc_keyspace_encode(&ks, buf, &len, NULL), VC_OK);
    for (size_t n = 0; n < len; n++) {
        uint8_t *exact = vc_memdup(buf, n); /* exact size: a sanitizer sees a read past the end */
        vc_err_t err = {0};
        cr_assert_eq(vc_keyspace_decode(exact, n, &back, &err), VC_ERR_INVALID, "%zu bytes", n);
        cr_assert(err.msg[0] != '\0');
        vc_free(exact);
    }
    buf[len] = 0;
    cr_assert_eq(vc_keyspace_decode(buf, len + 1, &back, NULL), VC_ERR_INVALID);
    cr_assert_eq(back.layout_version, 77u, "written only on success");
}

Test(keyspace, decode_refuses_wrong_tags_lengths_and_zero_bytes)
{
    vc_keyspace_t ks = sample(), back;
    uint8_t buf[VC_KEYSPACE_ENC_MAX], bad[VC_KEYSPACE_ENC_MAX];
    size_t len, at = 0;
    cr_assert_eq(vc_keyspace_encode(&ks, buf, &len, NULL), VC_OK);
    while (at < len) { /* every field in turn */
        uint32_t field = vc_le32(buf + at + 2);
        memcpy(bad, buf, len);
        vc_put_le16(bad + at, (uint16_t)(vc_le16(buf + at) + 1));
        cr_assert_eq(vc_keyspace_decode(bad, len, &back, NULL), VC_ERR_INVALID);
        memcpy(bad, buf, len);
        vc_put_le32(bad + at + 2, 0xffffffffu);
        cr_assert_eq(vc_keyspace_decode(bad, len, &back, NULL), VC_ERR_INVALID);
        memcpy(bad, buf, len);
        vc_put_le32(bad + at + 2, field + 1);
        cr_assert_neq(vc_keyspace_decode(bad, len, &back, NULL), VC_OK);
        at += 6 + field;
    }
    memcpy(bad, buf, len);
    bad[len - 2] = 0; /* inside the tenant salt */
    cr_assert_eq(vc_keyspace_decode(bad, len, &back, NULL), VC_ERR_INVALID);
    memcpy(bad, buf, len);
    bad[len - 2] = '\n';
    cr_assert_eq(vc_keyspace_decode(bad, len, &back, NULL), VC_ERR_INVALID);
}

Test(keyspace, diff_names_the_first_field_that_differs)
{
    vc_keyspace_t a = sample();
    cr_assert_null(vc_keyspace_diff(&a, &a));
    vc_keyspace_t b = sample();
    strcpy(b.tenant_salt, "other");
    cr_assert_str_eq(vc_keyspace_diff(&a, &b), "tenant");
    strcpy(b.rope, "neox theta=10000 dims=64");
    cr_assert_str_eq(vc_keyspace_diff(&a, &b), "rope");
    b.layout_version = 2;
    cr_assert_str_eq(vc_keyspace_diff(&a, &b), "layout_version");
    b.shape.dtype = VC_DTYPE_BF16;
    cr_assert_str_eq(vc_keyspace_diff(&a, &b), "dtype");
    b.shape.block_tokens = 32;
    cr_assert_str_eq(vc_keyspace_diff(&a, &b), "block_tokens");
    b.shape.head_dim = 128;
    cr_assert_str_eq(vc_keyspace_diff(&a, &b), "head_dim");
    b.shape.n_kv_head = 4;
    cr_assert_str_eq(vc_keyspace_diff(&a, &b), "n_kv_head");
    b.shape.n_layer = 31;
    cr_assert_str_eq(vc_keyspace_diff(&a, &b), "n_layer");
    b.has_adapter = true;
    cr_assert_str_eq(vc_keyspace_diff(&a, &b), "adapter");
    b.tokenizer.b[31] ^= 1;
    cr_assert_str_eq(vc_keyspace_diff(&a, &b), "tokenizer");
    b.model.b[0] ^= 1;
    cr_assert_str_eq(vc_keyspace_diff(&a, &b), "model");
}

/* An adapter digest and a tenant salt of the same bytes must not meet in the same id. */
Test(keyspace, moving_bytes_between_fields_changes_the_id)
{
    vc_keyspace_t a = sample(), b = sample();
    vc_digest_t ida, idb;
    strcpy(a.rope, "ab");
    strcpy(a.tenant_salt, "c");
    strcpy(b.rope, "a");
    strcpy(b.tenant_salt, "bc");
    cr_assert_eq(vc_keyspace_id(&a, &ida, NULL), VC_OK);
    cr_assert_eq(vc_keyspace_id(&b, &idb, NULL), VC_OK);
    cr_assert(memcmp(&ida, &idb, sizeof(ida)) != 0);
}

Test(keyspace, shape_check_holds_every_bound)
{
    vc_kv_shape_t good = sample().shape;
    vc_err_t err = {0};
    cr_assert_eq(vc_kv_shape_check(&good, NULL), VC_OK);
    cr_assert_eq(vc_kv_layer_bytes(&good), 49152u);
    uint32_t *fields[] = {&good.n_layer, &good.n_kv_head, &good.head_dim, &good.block_tokens};
    static const char *const names[] = {"n_layer", "n_kv_head", "head_dim", "block_tokens"};
    for (size_t i = 0; i < VC_ARRAY_LEN(fields); i++) {
        uint32_t keep = *fields[i];
        const uint32_t bad[] = {0, 1025, UINT32_MAX};
        for (size_t j = 0; j < VC_ARRAY_LEN(bad); j++) {
            *fields[i] = bad[j];
            cr_assert_eq(vc_kv_shape_check(&good, &err), VC_ERR_RANGE);
            cr_assert_not_null(strstr(err.msg, names[i]));
        }
        *fields[i] = keep;
    }
    good.dtype = 3;
    cr_assert_eq(vc_kv_shape_check(&good, NULL), VC_ERR_UNSUPPORTED);
    vc_kv_shape_t huge = {1024, 1024, 1024, 1024, VC_DTYPE_F16};
    cr_assert_eq(vc_kv_shape_check(&huge, NULL), VC_ERR_RANGE);
}

Test(keyspace, hex_round_trips_and_refuses_what_is_not_hex)
{
    uint8_t data[3] = {0x00, 0xaf, 0xff}, back[3] = {1, 1, 1};
    char hex[7];
    vc_hex(data, 3, hex);
    cr_assert_str_eq(hex, "00afff");
    cr_assert_eq(vc_unhex("00AFff", back, 3), 0);
    cr_assert_arr_eq(data, back, 3);
    cr_assert_eq(vc_unhex("00aff", back, 3), -1);
    cr_assert_eq(vc_unhex("00afff0", back, 3), -1);
    cr_assert_eq(vc_unhex("0g0000", back, 3), -1);
    cr_assert_arr_eq(data, back, 3, "nothing is written on failure");
}

Test(keyspace, near_names_the_only_field_that_differs)
{
    vc_keyspace_t a = {.shape = {30, 3, 64, 64, VC_DTYPE_F16}, .layout_version = VC_LAYOUT_VERSION}, b = a;
    cr_assert_null(vc_keyspace_near(&a, &b));
    b.rope[0] = 'x';
    cr_assert_str_eq(vc_keyspace_near(&a, &b), "rope");
    b.shape.n_layer = 31;
    cr_assert_null(vc_keyspace_near(&a, &b)); /* two */
    cr_assert_str_eq(vc_keyspace_diff(&a, &b), "n_layer");
    b = a;
    b.tenant_salt[0] = 's';
    cr_assert_null(vc_keyspace_near(&a, &b)); /* another tenant's */
    b = a;
    b.has_adapter = true;
    cr_assert_str_eq(vc_keyspace_near(&a, &b), "adapter");
}
