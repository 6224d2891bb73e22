/*
 * The GGUF reader: answers of a good file, and damaged files. Damage of every kind must end in one sentence and a
 * status, never in a crash; the sanitizer builds are what makes the sweeps below sharp.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/gguf.h"
#include "model/tokenizer.h"
#include "support/tiny_model.h"
#include "support/vc_test.h"
#include "vc/bytes.h"
#include "vc/mem.h"

static gguf_image_t tiny(void)
{
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    o.n_layer = 1;
    return tiny_model_build(&o);
}

/* A copy of exactly n bytes, so that a sanitizer sees the first byte read past them. */
static vc_status_t open_copy(const void *data, size_t n, vc_err_t *err)
{
    void *copy = NULL;
    cr_assert_eq(posix_memalign(&copy, 64, n != 0 ? n : 1), 0);
    memcpy(copy, data, n);
    node_gguf_t *g = NULL;
    vc_status_t status = node_gguf_open_memory(copy, n, &g, err);
    if (status == VC_OK) {
        node_tokenizer_t *tok;
        uint64_t sum = 0;
        for (uint64_t i = 0; i < node_gguf_n_tensors(g); i++) { /* every tensor lies inside */
            const node_gguf_tensor_t *t = node_gguf_tensor_at(g, i);
            cr_assert(node_gguf_tensor(g, t->name) == t);
            if (t->bytes != 0)
                sum += ((const uint8_t *)t->data)[0] + (uint64_t)((const uint8_t *)t->data)[t->bytes - 1];
        }
        cr_assert(sum < UINT64_MAX);
        if (node_tokenizer_create(g, &tok, err) == VC_OK)
            node_tokenizer_destroy(tok);
        node_gguf_close(g);
    }
    free(copy);
    return status;
}

Test(gguf, answers_metadata_and_tensors_of_a_good_file)
{
    gguf_image_t image = tiny();
    node_gguf_t *g;
    vc_err_t err = {0};
    cr_assert_eq(node_gguf_open_memory(image.data, image.bytes, &g, &err), VC_OK, "%s", err.msg);
    uint64_t u, n;
    double d;
    bool b;
    int64_t i;
    node_gguf_str_t s;
    cr_assert(node_gguf_u64(g, "llama.block_count", &u) == VC_OK && u == 1);
    cr_assert(node_gguf_f64(g, "llama.rope.freq_base", &d) == VC_OK && d == 10000.0);
    cr_assert(node_gguf_f64(g, "llama.block_count", &d) == VC_OK && d == 1.0);
    cr_assert(node_gguf_bool(g, "tokenizer.ggml.add_bos_token", &b) == VC_OK && !b);
    cr_assert(node_gguf_str(g, "general.architecture", &s) == VC_OK && s.len == 5 && memcmp(s.data, "llama", 5) == 0);
    cr_assert(node_gguf_arr_len(g, "tokenizer.ggml.tokens", &n) == VC_OK && n == TINY_N_VOCAB);
    cr_assert(node_gguf_arr_str(g, "tokenizer.ggml.tokens", 1, &s) == VC_OK &&
              memcmp(s.data, "<|im_start|>", s.len) == 0);
    cr_assert(node_gguf_arr_i64(g, "tokenizer.ggml.token_type", 0, &i) == VC_OK && i == 3);
    cr_assert(node_gguf_arr_f64(g, "tokenizer.ggml.token_type", 4, &d) == VC_OK && d == 1.0);
    cr_assert_eq(node_gguf_u64(g, "absent", &u), VC_ERR_NOT_FOUND);
    cr_assert_eq(node_gguf_u64(g, "general.architecture", &u), VC_ERR_INVALID);
    cr_assert_eq(node_gguf_u64(g, "llama.rope.freq_base", &u), VC_ERR_INVALID);
    cr_assert_eq(node_gguf_bool(g, "llama.block_count", &b), VC_ERR_INVALID);
    cr_assert_eq(node_gguf_str(g, "llama.block_count", &s), VC_ERR_INVALID);
    cr_assert_eq(node_gguf_arr_len(g, "llama.block_count", &n), VC_ERR_INVALID);
    cr_assert_eq(node_gguf_arr_str(g, "tokenizer.ggml.tokens", TINY_N_VOCAB, &s), VC_ERR_RANGE);
    cr_assert_eq(node_gguf_arr_i64(g, "tokenizer.ggml.tokens", 0, &i), VC_ERR_INVALID);
    cr_assert_eq(node_gguf_arr_str(g, "tokenizer.ggml.token_type", 0, &s), VC_ERR_INVALID);
    const node_gguf_tensor_t *t = node_gguf_tensor(g, "blk.0.attn_k.weight");
    cr_assert(t != NULL && t->type == NODE_GGML_Q4_1 && t->n_dims == 2 && t->ne[0] == 64 && t->ne[1] == 32);
    cr_assert_eq(t->bytes, 64u * 32u / 32u * 20u);
    cr_assert_null(node_gguf_tensor(g, "blk.0.attn_k.weigh"));
    cr_assert_null(node_gguf_tensor_at(g, node_gguf_n_tensors(g)));
    node_gguf_close(g);
    gguf_image_free(&image);
}

Test(gguf, opens_a_file_and_names_it_in_errors)
{
    gguf_image_t image = tiny();
    char path[] = "/tmp/vc_gguf_XXXXXX";
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    node_gguf_t *g;
    vc_err_t err = {0};
    cr_assert_eq(node_gguf_open(path, &g, &err), VC_ERR_CORRUPT); /* empty */
    cr_assert(gguf_image_write(&image, path));
    cr_assert_eq(node_gguf_open(path, &g, &err), VC_OK, "%s", err.msg);
    vc_digest_t a, b, want;
    node_gguf_digest(g, &a);
    node_gguf_digest(g, &b);
    vc_blake2b(image.data, image.bytes, &want);
    cr_assert(memcmp(&a, &want, sizeof(a)) == 0 && memcmp(&b, &want, sizeof(b)) == 0);
    node_gguf_close(g);
    cr_assert_eq(truncate(path, 1000), 0);
    cr_assert_eq(node_gguf_open(path, &g, &err), VC_ERR_CORRUPT);
    cr_assert_not_null(strstr(err.msg, path));
    unlink(path);
    cr_assert_eq(node_gguf_open(path, &g, &err), VC_ERR_INVALID); /* a wrong argument, not a lost object */
    cr_assert_not_null(strstr(err.msg, path));
    cr_assert_eq(node_gguf_open("/tmp", &g, &err), VC_ERR_CORRUPT);
    gguf_image_free(&image);
}

Test(gguf, refuses_a_file_cut_anywhere)
{
    gguf_image_t image = tiny();
    for (size_t n = 0; n < image.bytes; n += n < 20000 ? 7 : 997) {
        vc_err_t err = {0};
        cr_assert_eq(open_copy(image.data, n, &err), VC_ERR_CORRUPT, "cut at %zu", n);
        cr_assert(err.msg[0] != '\0');
    }
    cr_assert_eq(open_copy(image.data, image.bytes - 1, NULL), VC_ERR_CORRUPT);
    cr_assert_eq(open_copy(image.data, image.bytes, NULL), VC_OK);
    gguf_image_free(&image);
}

Test(gguf, survives_flipped_bytes)
{
    gguf_image_t image = tiny();
    uint8_t *bytes = image.data;
    for (uint32_t round = 0; round < 3000; round++) { /* the head, where the structure is; several flips in some */
        size_t at[3];
        uint8_t old[3];
        const uint32_t n = 1 + round % 3;
        for (uint32_t k = 0; k < n; k++) {
            at[k] = (size_t)((golden_u(round, k) + 1) / 2 * 16000);
            old[k] = bytes[at[k]];
            bytes[at[k]] ^= (uint8_t)(1u << (round + k) % 8);
        }
        vc_err_t err = {0};
        cr_assert(open_copy(image.data, image.bytes, &err) == VC_OK || err.msg[0] != '\0');
        for (uint32_t k = n; k-- > 0;)
            bytes[at[k]] = old[k];
    }
    cr_assert_eq(open_copy(image.data, image.bytes, NULL), VC_OK);
    gguf_image_free(&image);
}

/* One KV pair and one tensor, every field at a known place: magic 0, version 4, tensors 8, pairs 16; pair: key length
 * 24, key "k" 32, type 33, value 37; tensor: name length 41, name "t" 49, dims 50, ne0 54, ne1 62, type 70, offset 74;
 * data from 96. */
static gguf_image_t minimal(void)
{
    static const float values[32] = {1};
    gguf_writer_t *w = gguf_writer_create();
    gguf_writer_u32(w, "k", 7);
    gguf_writer_tensor(w, "t", GGUF_W_F32, 4, 8, values);
    gguf_image_t image = gguf_writer_finish(w);
    cr_assert_eq(image.bytes, 96u + 128u);
    return image;
}

static void expect_field(size_t at, size_t width, uint64_t value, vc_status_t want, const char *word)
{
    gguf_image_t image = minimal();
    vc_err_t err = {0};
    memcpy((uint8_t *)image.data + at, &value, width);
    cr_assert_eq(open_copy(image.data, image.bytes, &err), want, "field at %zu = %llu: %s", at,
                 (unsigned long long)value, err.msg);
    if (want != VC_OK)
        cr_assert_not_null(strstr(err.msg, word), "'%s' does not say '%s'", err.msg, word);
    gguf_image_free(&image);
}

Test(gguf, refuses_each_header_field_out_of_bounds)
{
    expect_field(0, 4, 0x46554748, VC_ERR_CORRUPT, "magic");
    expect_field(4, 4, 1, VC_ERR_UNSUPPORTED, "version 1");
    expect_field(4, 4, 4, VC_ERR_UNSUPPORTED, "version 4");
    expect_field(4, 4, 0x03000000, VC_ERR_UNSUPPORTED, "big-endian");
    expect_field(4, 4, 2, VC_OK, "");
    static const uint64_t huge[] = {1u << 20, UINT32_MAX, INT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < VC_ARRAY_LEN(huge); i++) {
        expect_field(8, 8, huge[i], VC_ERR_CORRUPT, "tensors");
        expect_field(16, 8, huge[i], VC_ERR_CORRUPT, "metadata pairs");
        expect_field(24, 8, huge[i], VC_ERR_CORRUPT, "key");
        expect_field(41, 8, huge[i], VC_ERR_CORRUPT, "tensor name");
        expect_field(54, 8, huge[i], VC_ERR_CORRUPT, "'t'");
        expect_field(62, 8, huge[i], VC_ERR_CORRUPT, "'t'");
        expect_field(74, 8, huge[i], VC_ERR_CORRUPT, "'t'");
    }
    expect_field(24, 8, 0, VC_ERR_CORRUPT, "empty");
    expect_field(32, 1, 0, VC_ERR_CORRUPT, "zero byte");
    expect_field(33, 4, 13, VC_ERR_CORRUPT, "unknown type 13");
    expect_field(41, 8, 0, VC_ERR_CORRUPT, "empty");
    expect_field(50, 4, 0, VC_ERR_CORRUPT, "0 dimensions");
    expect_field(50, 4, 5, VC_ERR_CORRUPT, "5 dimensions");
    expect_field(54, 8, 0, VC_ERR_CORRUPT, "dimension 0");
    expect_field(70, 4, NODE_GGML_Q4_1, VC_ERR_CORRUPT, "multiple of 32");
    expect_field(74, 8, 8, VC_ERR_CORRUPT, "multiple of 32");
    expect_field(74, 8, 32, VC_ERR_CORRUPT, "past the end");
}

Test(gguf, keeps_tensors_of_unknown_types_without_bytes)
{
    gguf_image_t image = minimal();
    vc_put_le32((uint8_t *)image.data + 70, 12);
    node_gguf_t *g;
    cr_assert_eq(node_gguf_open_memory(image.data, image.bytes, &g, NULL), VC_OK);
    const node_gguf_tensor_t *t = node_gguf_tensor(g, "t");
    cr_assert(t->type == 12 && t->bytes == 0 && t->ne[0] == 4);
    node_gguf_close(g);
    gguf_image_free(&image);
}

static void expect_pair(uint32_t type, const void *payload, size_t bytes, vc_status_t want, const char *word)
{
    gguf_writer_t *w = gguf_writer_create();
    gguf_writer_raw(w, "general.alignment", type, payload, bytes);
    gguf_image_t image = gguf_writer_finish(w);
    vc_err_t err = {0};
    cr_assert_eq(open_copy(image.data, image.bytes, &err), want, "%s", err.msg);
    if (want != VC_OK)
        cr_assert_not_null(strstr(err.msg, word), "%s", err.msg);
    gguf_image_free(&image);
}

Test(gguf, refuses_alignments_and_arrays_that_make_no_sense)
{
    static const uint32_t bad[] = {0, 1, 4, 12, 33, 1u << 17, UINT32_MAX};
    for (size_t i = 0; i < VC_ARRAY_LEN(bad); i++)
        expect_pair(4, &bad[i], 4, VC_ERR_CORRUPT, "alignment");
    static const uint32_t good[] = {8, 32, 4096, 1u << 16};
    for (size_t i = 0; i < VC_ARRAY_LEN(good); i++)
        expect_pair(4, &good[i], 4, VC_OK, "");
    expect_pair(6, &(float){32}, 4, VC_ERR_CORRUPT, "whole number");
    struct __attribute__((packed)) {
        uint32_t elem;
        uint64_t n;
        uint8_t room[32];
    } array = {.elem = 9, .n = 1};
    expect_pair(9, &array, sizeof(array), VC_ERR_UNSUPPORTED, "array of arrays");
    array.elem = 77;
    expect_pair(9, &array, sizeof(array), VC_ERR_CORRUPT, "unknown type 77");
    array.elem = 10;
    array.n = UINT64_MAX / 8 + 2; /* times 8 wraps to 8 */
    expect_pair(9, &array, sizeof(array), VC_ERR_CORRUPT, "elements");
    array.elem = 8;
    array.n = 4;
    memset(array.room, 0xff, sizeof(array.room));
    expect_pair(9, &array, sizeof(array), VC_ERR_CORRUPT, "string 0");
}

Test(gguf, refuses_names_that_appear_twice)
{
    static const float values[32] = {1};
    for (int pair = 0; pair < 2; pair++) {
        gguf_writer_t *w = gguf_writer_create();
        gguf_writer_u32(w, "a", 7);
        gguf_writer_u32(w, pair ? "a" : "b", 7);
        gguf_writer_tensor(w, "x", GGUF_W_F32, 32, 0, values);
        gguf_writer_tensor(w, pair ? "y" : "x", GGUF_W_F32, 32, 0, values);
        gguf_image_t image = gguf_writer_finish(w);
        vc_err_t err = {0};
        cr_assert_eq(open_copy(image.data, image.bytes, &err), VC_ERR_CORRUPT);
        cr_assert_not_null(strstr(err.msg, "twice"));
        gguf_image_free(&image);
    }
}

Test(gguf, integers_convert_when_they_fit)
{
    static const int8_t minus = -1;
    static const uint64_t large = UINT64_MAX;
    gguf_writer_t *w = gguf_writer_create();
    gguf_writer_raw(w, "i8", 1, &minus, 1);
    gguf_writer_raw(w, "u64", 10, &large, 8);
    gguf_image_t image = gguf_writer_finish(w);
    node_gguf_t *g;
    uint64_t u = 5;
    double d;
    cr_assert_eq(node_gguf_open_memory(image.data, image.bytes, &g, NULL), VC_OK);
    cr_assert_eq(node_gguf_u64(g, "i8", &u), VC_ERR_INVALID);
    cr_assert_eq(u, 5u); /* written on success only */
    cr_assert(node_gguf_f64(g, "i8", &d) == VC_OK && d == -1.0);
    cr_assert(node_gguf_u64(g, "u64", &u) == VC_OK && u == UINT64_MAX);
    node_gguf_close(g);
    gguf_image_free(&image);
}

Test(gguf, real_model_opens_and_its_tensors_have_the_golden_shapes)
{
    const char *path = getenv("VERICACHE_MODEL");
    if (path == NULL) {
        printf("skipped: VERICACHE_MODEL does not name SmolLM2-135M-Instruct.Q4_1.gguf\n");
        cr_skip_test();
    }
    json_error_t error;
    json_t *j = json_load_file(VC_TEST_VECTORS "/smollm2/weights.json", 0, &error);
    node_gguf_t *g;
    vc_err_t err = {0};
    cr_assert_not_null(j, "%s", error.text);
    cr_assert_eq(node_gguf_open(path, &g, &err), VC_OK, "%s", err.msg);
    const json_t *tensors = json_object_get(j, "tensors");
    cr_assert_eq(json_array_size(tensors), node_gguf_n_tensors(g));
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *want = json_array_get(tensors, i), *ne = json_object_get(want, "ne");
        const node_gguf_tensor_t *t = node_gguf_tensor_at(g, i);
        cr_assert_str_eq(t->name, json_string_value(json_object_get(want, "name")));
        cr_assert_eq((size_t)t->n_dims, json_array_size(ne));
        for (uint32_t d = 0; d < t->n_dims; d++)
            cr_assert_eq((json_int_t)t->ne[d], json_integer_value(json_array_get(ne, d)));
        cr_assert(t->bytes != 0);
    }
    json_decref(j);
    node_gguf_close(g);
}
