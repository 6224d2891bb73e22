/* The KV record: round trips, the fixed bytes of version 1, and that nothing damaged is ever taken for good. */
#include <stdio.h>
#include <string.h>

#include "support/file.h"
#include "support/vc_test.h"
#include "vc/bytes.h"
#include "vc/crc32c.h"
#include "vc/kvrec.h"
#include "vc/mem.h"

static uint32_t rnd(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 8;
}

static void fill_noise(uint8_t *p, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)rnd(&seed);
}

static vc_kvrec_head_t sample_head(vc_kvrec_kind_t kind, vc_kv_shape_t shape, uint32_t block)
{
    vc_kvrec_head_t head = {.kind = kind, .shape = shape, .block_index = block, .numerics_id = 1};
    head.fidelity = kind == VC_KVREC_FULL ? VC_FIDELITY_FULL : VC_FIDELITY_COMPRESSED;
    vc_spec_id(kind == VC_KVREC_FULL ? "full@1" : "snapkv:keep=0.25,window=64,kernel=5", NULL, &head.spec);
    memset(&head.keyspace, 0x11, sizeof(head.keyspace));
    memset(&head.parent, block == 0 ? 0x11 : 0x22, sizeof(head.parent));
    if (kind == VC_KVREC_DROPPER) {
        head.horizon_first = block * shape.block_tokens;
        head.horizon_tokens = (block + 2) * shape.block_tokens;
    }
    return head;
}

static const vc_kv_shape_t small = {2, 1, 4, 4, VC_DTYPE_F16};
static const uint32_t small_tokens[4] = {7, 0, UINT32_MAX, 49151};

/* Owned buffer of 64 KiB with the record; *n_p its length. */
static uint8_t *build(vc_kvrec_kind_t kind, vc_kv_shape_t shape, uint32_t block, const uint32_t *tokens, size_t *n_p)
{
    size_t cap = (64 << 10) + vc_kvrec_full_bytes(&shape);
    uint8_t *buf = vc_alloc(cap);
    memset(buf, 0xee, cap);
    vc_kvrec_head_t head = sample_head(kind, shape, block);
    vc_kvrec_writer_t w;
    cr_assert_eq(vc_kvrec_write_begin(&w, buf, cap, &head, tokens, NULL), VC_OK);
    for (uint32_t l = 0; l < shape.n_layer; l++) {
        void *part;
        uint32_t length = kind == VC_KVREC_FULL ? (uint32_t)vc_kv_layer_bytes(&shape) : 30 + l * 7;
        cr_assert_eq(vc_kvrec_write_layer(&w, length, &part, NULL), VC_OK);
        fill_noise(part, length, l);
    }
    cr_assert_eq(vc_kvrec_write_end(&w, n_p, NULL), VC_OK);
    return buf;
}

static void assert_same_head(const vc_kvrec_head_t *a, const vc_kvrec_head_t *b)
{
    cr_assert_eq(a->fidelity, b->fidelity);
    cr_assert_eq(a->kind, b->kind);
    cr_assert_arr_eq(&a->shape, &b->shape, sizeof(a->shape));
    cr_assert_eq(a->block_index, b->block_index);
    cr_assert_eq(a->numerics_id, b->numerics_id);
    cr_assert_eq(a->horizon_tokens, b->horizon_tokens);
    cr_assert_eq(a->horizon_first, b->horizon_first);
    cr_assert_arr_eq(&a->spec, &b->spec, sizeof(a->spec));
    cr_assert_arr_eq(&a->keyspace, &b->keyspace, sizeof(a->keyspace));
    cr_assert_arr_eq(&a->parent, &b->parent, sizeof(a->parent));
}

static void check_round_trip(vc_kvrec_kind_t kind, vc_kv_shape_t shape, uint32_t block)
{
    uint32_t tokens[64];
    size_t n;
    for (uint32_t i = 0; i < 64; i++)
        tokens[i] = i * 1000003u;
    uint8_t *buf = build(kind, shape, block, tokens, &n);
    vc_kvrec_head_t head, want = sample_head(kind, shape, block);
    vc_err_t err = {0};
    cr_assert_eq(vc_kvrec_check(buf, n, &head, &err), VC_OK, "%s", err.msg);
    assert_same_head(&head, &want);
    cr_assert_eq(vc_kvrec_bytes(&head), n);
    cr_assert_eq(n % VC_KVREC_ALIGN, 0u);
    for (uint32_t i = 0; i < shape.block_tokens; i++)
        cr_assert_eq(vc_kvrec_token(&head, i), tokens[i]);
    vc_digest_t hash;
    vc_block_hash(&want.parent, tokens, shape.block_tokens, &hash);
    cr_assert_arr_eq(&hash, &head.hash, sizeof(hash));
    for (uint32_t l = 0; l < shape.n_layer; l++) {
        vc_kvrec_layer_t layer;
        uint8_t part[64 << 10];
        vc_kvrec_layer(&head, l, &layer);
        fill_noise(part, layer.length, l);
        cr_assert_arr_eq(buf + layer.offset, part, layer.length);
        cr_assert_eq(layer.offset % (kind == VC_KVREC_FULL ? 4096u : 64u), 0u);
    }
    vc_object_key_t key;
    vc_kvrec_key(&head, &key);
    cr_assert_eq(key.fidelity, head.fidelity);
    cr_assert_arr_eq(&key.spec, &head.spec, sizeof(key.spec));
    cr_assert_arr_eq(&key.hash, &head.hash, sizeof(key.hash));
    vc_free(buf);
}

Test(kvrec, every_kind_reads_back_as_written)
{
    const vc_kv_shape_t smol = {30, 3, 64, 64, VC_DTYPE_F16}, odd = {5, 3, 7, 9, VC_DTYPE_BF16};
    for (int kind = VC_KVREC_FULL; kind <= VC_KVREC_QUANTISER; kind++)
        for (uint32_t block = 0; block < 3; block++) {
            check_round_trip((vc_kvrec_kind_t)kind, smol, block);
            check_round_trip((vc_kvrec_kind_t)kind, odd, block);
            check_round_trip((vc_kvrec_kind_t)kind, small, block);
        }
}

Test(kvrec, sizes_of_smollm2_are_as_documented)
{
    const vc_kv_shape_t smol = {30, 3, 64, 64, VC_DTYPE_F16}, widest = {1024, 1, 1, 1024, VC_DTYPE_F16};
    cr_assert_eq(vc_kvrec_header_bytes(&smol), 4096u);
    cr_assert_eq(vc_kvrec_full_bytes(&smol), 1478656u);
    cr_assert_eq(vc_kvrec_header_bytes(&widest), 24576u);
}

/* The fixtures were made from the format table by a program that shares no code with this one. */
static void check_fixture(const char *name, vc_kvrec_head_t *head_p, uint8_t **buf_p)
{
    size_t n, again_n;
    char path[64];
    vc_err_t err = {0};
    snprintf(path, sizeof(path), "kvrec/%s.bin", name);
    uint8_t *buf = *buf_p = vt_vector_read(path, &n);
    cr_assert_eq(vc_kvrec_check(buf, n, head_p, &err), VC_OK, "%s: %s", name, err.msg);
    /* Written again from what was read, the bytes are the same. */
    uint8_t *again = vc_alloc(n);
    uint32_t tokens[4];
    for (uint32_t i = 0; i < 4; i++)
        tokens[i] = vc_kvrec_token(head_p, i);
    vc_kvrec_head_t head = *head_p;
    vc_kvrec_writer_t w;
    cr_assert_eq(vc_kvrec_write_begin(&w, again, n, &head, tokens, &err), VC_OK, "%s: %s", name, err.msg);
    for (uint32_t l = 0; l < head.shape.n_layer; l++) {
        vc_kvrec_layer_t layer;
        void *part;
        vc_kvrec_layer(head_p, l, &layer);
        cr_assert_eq(vc_kvrec_write_layer(&w, layer.length, &part, &err), VC_OK, "%s: %s", name, err.msg);
        memcpy(part, buf + layer.offset, layer.length);
    }
    cr_assert_eq(vc_kvrec_write_end(&w, &again_n, &err), VC_OK, "%s: %s", name, err.msg);
    cr_assert_eq(again_n, n);
    cr_assert_arr_eq(again, buf, n);
    vc_free(again);
}

Test(kvrec, bytes_of_version_1_stay_readable_and_are_what_the_writer_makes)
{
    vc_kvrec_head_t head;
    uint8_t *buf;
    check_fixture("full", &head, &buf);
    cr_assert_eq(head.block_index, 0u);
    cr_assert_eq(vc_kvrec_token(&head, 2), UINT32_MAX);
    vc_free(buf);
    check_fixture("later", &head, &buf);
    cr_assert_eq(head.block_index, 9u);
    cr_assert_eq(head.numerics_id, 3u);
    cr_assert_eq(head.shape.dtype, (uint32_t)VC_DTYPE_BF16);
    vc_free(buf);
    check_fixture("dropper", &head, &buf);
    cr_assert_eq(head.horizon_first, 8u);
    cr_assert_eq(head.horizon_tokens, 16u);
    vc_free(buf);
    check_fixture("quantiser", &head, &buf);
    cr_assert_eq(head.kind, VC_KVREC_QUANTISER);
    vc_free(buf);
}

Test(kvrec, every_flipped_bit_of_a_record_is_detected)
{
    for (int kind = VC_KVREC_FULL; kind <= VC_KVREC_QUANTISER; kind++) {
        size_t n;
        vc_kvrec_head_t head;
        uint8_t *buf = build((vc_kvrec_kind_t)kind, small, 1, small_tokens, &n);
        for (size_t i = 0; i < n; i++)
            for (int bit = 0; bit < 8; bit += i < 320 || i % 61 == 0 ? 1 : 7) { /* all bits where the fields are */
                buf[i] ^= (uint8_t)(1 << bit);
                cr_assert_neq(vc_kvrec_check(buf, n, &head, NULL), VC_OK, "kind %d byte %zu bit %d", kind, i, bit);
                buf[i] ^= (uint8_t)(1 << bit);
            }
        cr_assert_eq(vc_kvrec_check(buf, n, &head, NULL), VC_OK);
        vc_free(buf);
    }
}

Test(kvrec, every_truncation_and_any_extra_byte_is_detected)
{
    size_t n;
    vc_kvrec_head_t head = {.block_index = 77};
    uint8_t *buf = build(VC_KVREC_DROPPER, small, 1, small_tokens, &n);
    for (size_t len = 0; len < n; len++) {
        uint8_t *exact = vc_memdup(buf, len); /* exact size: a sanitizer sees a read past the end */
        vc_err_t err = {0};
        vc_status_t st = vc_kvrec_check(exact, len, &head, &err);
        cr_assert_eq(st, len < 4096 ? VC_ERR_INVALID : VC_ERR_CORRUPT, "%zu bytes", len);
        cr_assert(err.msg[0] != '\0' && err.status == st);
        vc_free(exact);
    }
    cr_assert_eq(vc_kvrec_check(buf, n + 4096, &head, NULL), VC_ERR_CORRUPT);
    cr_assert_eq(head.block_index, 77u, "written only on success");
    vc_free(buf);
}

/* A hostile writer sums its lies correctly: every rule must hold without help from the checksum. */
static void reseal(uint8_t *buf)
{
    vc_put_le32(buf + 12, 0);
    vc_put_le32(buf + 12, vc_crc32c(0, buf, vc_le32(buf + 8)));
}

static void expect_refused(uint8_t *good, size_t n, size_t at, size_t width, uint64_t value, vc_status_t want)
{
    uint8_t *bad = vc_memdup(good, n), bytes[8];
    vc_kvrec_head_t head;
    vc_err_t err = {0};
    vc_put_le64(bytes, value);
    memcpy(bad + at, bytes, width);
    reseal(bad);
    cr_assert_eq(vc_kvrec_decode(bad, n, &head, &err), want, "byte %zu value %llu: %s", at, (unsigned long long)value,
                 err.msg);
    vc_free(bad);
}

static void lie_about_numbers(uint8_t *buf, size_t n)
{
    static const struct {
        uint8_t at, width;
        uint64_t value;
    } lies[] = {
        {16, 1, 0},           {16, 1, 3},          {16, 1, 2},  {17, 1, 0},          {17, 1, 9},  {18, 1, 0},
        {18, 1, 4},           {18, 1, 3},          {19, 1, 1},  {20, 4, UINT32_MAX}, {24, 4, 0},  {24, 4, 1},
        {24, 4, 3},           {24, 4, 1024},       {28, 4, 0},  {28, 4, 1024},       {32, 4, 0},  {32, 4, 5},
        {32, 4, UINT32_MAX},  {36, 4, 0},          {36, 4, 3},  {36, 4, 1024},       {40, 8, 0},  {40, 8, UINT64_MAX},
        {40, 8, 1ull << 32},  {48, 4, 2},          {52, 4, 1},  {56, 4, 1},          {60, 4, 1},  {64, 1, 0},
        {112, 8, 0},          {144, 8, 5},         {176, 1, 1}, {191, 1, 1},         {192, 4, 8}, {208, 8, 0},
        {208, 8, UINT64_MAX}, {208, 8, 4096 + 64}, {216, 4, 0}, {216, 4, 65},        {224, 8, 0}, {232, 4, UINT32_MAX},
    };
    for (size_t i = 0; i < VC_ARRAY_LEN(lies); i++)
        expect_refused(buf, n, lies[i].at, lies[i].width, lies[i].value, VC_ERR_CORRUPT);
    expect_refused(buf, n, 240, 4, 1, VC_ERR_CORRUPT);  /* after the layer table */
    expect_refused(buf, n, 4095, 1, 1, VC_ERR_CORRUPT); /* last byte of the header */
    expect_refused(buf, n, 4, 4, 2, VC_ERR_UNSUPPORTED);
    expect_refused(buf, n, 8, 4, 8192, VC_ERR_CORRUPT);
}

Test(kvrec, fields_that_lie_are_refused_even_with_a_right_checksum)
{
    size_t n;
    uint8_t *buf = build(VC_KVREC_FULL, small, 1, small_tokens, &n);
    lie_about_numbers(buf, n);
    vc_free(buf);
    buf = build(VC_KVREC_FULL, small, 0, small_tokens, &n);
    expect_refused(buf, n, 80, 1, 0x99, VC_ERR_CORRUPT); /* keyspace is no longer the first block's parent */
    vc_free(buf);
}

Test(kvrec, oversized_layers_and_wrong_horizons_of_compressed_records_are_refused)
{
    size_t n;
    uint8_t *buf = build(VC_KVREC_DROPPER, small, 1, small_tokens, &n);
    expect_refused(buf, n, 216, 4, UINT32_MAX, VC_ERR_CORRUPT);
    expect_refused(buf, n, 232, 4, UINT32_MAX, VC_ERR_CORRUPT);
    expect_refused(buf, n, 232, 4, VC_KVREC_MAX_BYTES, VC_ERR_CORRUPT);
    expect_refused(buf, n, 224, 8, 4096, VC_ERR_CORRUPT); /* overlaps layer 0 */
    expect_refused(buf, n, 52, 4, 7, VC_ERR_CORRUPT);     /* ends inside the block */
    expect_refused(buf, n, 56, 4, 5, VC_ERR_CORRUPT);     /* begins inside the block */
    expect_refused(buf, n, 52, 4, 0, VC_ERR_CORRUPT);
    vc_free(buf);
}

Test(kvrec, header_size_that_lies_is_never_followed)
{
    size_t n;
    uint8_t *buf = build(VC_KVREC_FULL, small, 1, small_tokens, &n);
    static const uint32_t sizes[] = {0, 1, 4095, 4097, 2u << 20, 0xfffff000u, UINT32_MAX};
    vc_kvrec_head_t head;
    for (size_t i = 0; i < VC_ARRAY_LEN(sizes); i++) {
        vc_put_le32(buf + 8, sizes[i]);
        cr_assert_eq(vc_kvrec_decode(buf, n, &head, NULL), VC_ERR_CORRUPT);
    }
    vc_put_le32(buf + 8, 16384); /* plausible, but not all there */
    cr_assert_eq(vc_kvrec_decode(buf, n, &head, NULL), VC_ERR_INVALID);
    vc_free(buf);
}

Test(kvrec, damaged_layer_is_named_and_the_others_stay_good)
{
    size_t n;
    vc_kvrec_head_t head;
    vc_kvrec_layer_t layer;
    vc_err_t err = {0};
    uint8_t *buf = build(VC_KVREC_FULL, small, 1, small_tokens, &n);
    cr_assert_eq(vc_kvrec_decode(buf, n, &head, NULL), VC_OK);
    vc_kvrec_layer(&head, 1, &layer);
    buf[layer.offset + 5] ^= 4;
    cr_assert_eq(vc_kvrec_check_layer(&head, 1, buf + layer.offset, &err), VC_ERR_CORRUPT);
    cr_assert_not_null(strstr(err.msg, "layer 1"));
    vc_kvrec_layer(&head, 0, &layer);
    cr_assert_eq(vc_kvrec_check_layer(&head, 0, buf + layer.offset, NULL), VC_OK);
    cr_assert_eq(vc_kvrec_check_layer(&head, 2, buf, NULL), VC_ERR_INVALID);
    vc_free(buf);
}

Test(kvrec, writer_refuses_calls_out_of_order_and_small_buffers)
{
    uint8_t buf[12288];
    void *part;
    size_t n;
    vc_kvrec_writer_t w;
    vc_kvrec_head_t head = sample_head(VC_KVREC_FULL, small, 1);
    cr_assert_eq(vc_kvrec_write_begin(&w, buf, 4095, &head, small_tokens, NULL), VC_ERR_RANGE);
    cr_assert_eq(vc_kvrec_write_begin(&w, buf, sizeof(buf), &head, small_tokens, NULL), VC_OK);
    cr_assert_eq(vc_kvrec_write_end(&w, &n, NULL), VC_ERR_INVALID); /* layers are missing */
    cr_assert_eq(vc_kvrec_write_layer(&w, 63, &part, NULL), VC_ERR_INVALID);
    cr_assert_eq(vc_kvrec_write_layer(&w, 64, &part, NULL), VC_OK);
    cr_assert_eq(vc_kvrec_write_layer(&w, 64, &part, NULL), VC_OK);
    cr_assert_eq(vc_kvrec_write_layer(&w, 64, &part, NULL), VC_ERR_INVALID); /* one too many */
    memset(buf + 4096, 0, 8192);
    cr_assert_eq(vc_kvrec_write_end(&w, &n, NULL), VC_OK);
    cr_assert_eq(n, sizeof(buf));
    cr_assert_eq(vc_kvrec_write_begin(&w, buf, 8191, &head, small_tokens, NULL), VC_OK);
    cr_assert_eq(vc_kvrec_write_layer(&w, 64, &part, NULL), VC_OK);
    cr_assert_eq(vc_kvrec_write_layer(&w, 64, &part, NULL), VC_ERR_RANGE);
    head = sample_head(VC_KVREC_DROPPER, small, 1);
    cr_assert_eq(vc_kvrec_write_begin(&w, buf, 4096 + 1000, &head, small_tokens, NULL), VC_OK);
    cr_assert_eq(vc_kvrec_write_layer(&w, UINT32_MAX, &part, NULL), VC_ERR_RANGE);
    cr_assert_eq(vc_kvrec_write_layer(&w, 10, &part, NULL), VC_OK);
    cr_assert_eq(vc_kvrec_write_layer(&w, 0, &part, NULL), VC_OK);
    cr_assert_eq(vc_kvrec_write_end(&w, &n, NULL), VC_ERR_RANGE); /* no room for the padding */
}

Test(kvrec, writer_refuses_fields_that_decode_would_refuse)
{
    uint8_t buf[4096];
    vc_kvrec_writer_t w;
    vc_err_t err = {0};
    vc_kvrec_head_t head = sample_head(VC_KVREC_FULL, small, 0);
    memset(&head.parent, 1, sizeof(head.parent)); /* not the keyspace */
    cr_assert_eq(vc_kvrec_write_begin(&w, buf, sizeof(buf), &head, small_tokens, &err), VC_ERR_INVALID);
    cr_assert_eq(err.status, VC_ERR_INVALID);
    head = sample_head(VC_KVREC_FULL, small, 1);
    head.numerics_id = 2; /* the spec says 1 */
    cr_assert_eq(vc_kvrec_write_begin(&w, buf, sizeof(buf), &head, small_tokens, NULL), VC_ERR_INVALID);
    head = sample_head(VC_KVREC_DROPPER, small, 1);
    head.fidelity = VC_FIDELITY_FULL;
    cr_assert_eq(vc_kvrec_write_begin(&w, buf, sizeof(buf), &head, small_tokens, NULL), VC_ERR_INVALID);
    head = sample_head(VC_KVREC_FULL, small, 1);
    head.shape.n_layer = 0;
    cr_assert_eq(vc_kvrec_write_begin(&w, buf, sizeof(buf), &head, small_tokens, NULL), VC_ERR_INVALID);
}
