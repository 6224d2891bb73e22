/*
 * Calibration blobs: what was saved comes back with the same digest, and what is damaged, cut, or belongs to another
 * method, model or version is refused with a sentence that says which. The digest is part of the spec id, so a record
 * made with one blob is never read with another.
 */
#include <sodium.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "codec_fixture.h"
#include "compress/calib.h"
#include "support/tmpdir.h"
#include "vc/bytes.h"

static vc_status_t check_payload(const node_model_info_t *model, const uint8_t *payload, size_t bytes, vc_err_t *err)
{
    if (bytes < 4 || payload[0] != (uint8_t)model->n_layer)
        return vc_err_set(err, VC_ERR_CORRUPT, "learned from %u layers", bytes ? payload[0] : 0);
    return VC_OK;
}

static uint32_t needs_calib(const node_spec_t *spec)
{
    (void)spec;
    return NODE_NEED_CALIB;
}

/* `rot` that claims to have learned something. */
static node_codec_ops_t learned_ops(void)
{
    node_codec_ops_t ops = node_codec_rot;
    ops.name = "learned";
    ops.needs = needs_calib;
    ops.calib_check = check_payload;
    return ops;
}

static node_model_info_t a_model(void)
{
    node_model_info_t m = fx_model(2, 4, 2, 64);
    m.d_model = 256;
    m.keyspace.model.b[0] = 7;
    return m;
}

static const uint8_t payload[] = {2, 1, 4, 1, 5, 9, 2, 6, 5};

/* A blob's bytes as save writes them. */
static size_t blob_bytes(const node_model_info_t *m, uint8_t *out, size_t cap)
{
    vt_tmpdir_t dir;
    vc_err_t err = {0};
    vt_tmpdir_create(&dir);
    const char *path = vt_tmpdir_path(&dir, "a.vcal");
    cr_assert_eq(node_calib_save(path, "learned", m, payload, sizeof(payload), &err), VC_OK, "%s", err.msg);
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f);
    size_t n = fread(out, 1, cap, f);
    fclose(f);
    vt_tmpdir_remove(&dir);
    cr_assert_eq(n, 88 + sizeof(payload) + 32);
    return n;
}

static void refused(const uint8_t *blob, size_t n, const node_codec_ops_t *ops, const node_model_info_t *m,
                    vc_status_t status, const char *words)
{
    node_calib_t *calib = NULL;
    vc_err_t err = {0};
    cr_assert_eq(node_calib_parse(blob, n, ops, m, &calib, &err), status, "%s: %s", words, err.msg);
    cr_assert_not_null(strstr(err.msg, words), "\"%s\" does not say \"%s\"", err.msg, words);
    cr_assert_null(calib);
}

Test(calib, what_was_saved_comes_back_with_its_digest)
{
    const node_codec_ops_t ops = learned_ops();
    node_model_info_t m = a_model();
    vt_tmpdir_t dir;
    vc_err_t err = {0};
    node_calib_t *a, *b;
    vt_tmpdir_create(&dir);
    const char *path = vt_tmpdir_path(&dir, "m.learned.vcal");
    cr_assert_eq(node_calib_save(path, "learned", &m, "old!", 4, &err), VC_OK);
    cr_assert_eq(node_calib_save(path, "learned", &m, payload, sizeof(payload), &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_calib_load(path, &ops, &m, &a, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(a->bytes, sizeof(payload));
    cr_assert_arr_eq(a->payload, payload, sizeof(payload));
    cr_assert_eq((uintptr_t)a->payload % 64, 0);
    cr_assert_str_eq(a->method, "learned");
    uint8_t blob[256];
    size_t n = blob_bytes(&m, blob, sizeof(blob));
    cr_assert_eq(node_calib_parse(blob, n, &ops, &m, &b, &err), VC_OK, "%s", err.msg);
    cr_assert_arr_eq(&a->digest, &b->digest, sizeof(a->digest));
    cr_assert_arr_eq(&a->digest, blob + n - 32, sizeof(a->digest));
    node_calib_free(a);
    node_calib_free(b);
    node_calib_free(NULL);
    vt_tmpdir_remove(&dir);
}

Test(calib, every_damaged_byte_is_refused)
{
    const node_codec_ops_t ops = learned_ops();
    node_model_info_t m = a_model();
    uint8_t blob[256];
    size_t n = blob_bytes(&m, blob, sizeof(blob));
    for (size_t i = 0; i < n; i++) {
        node_calib_t *calib = NULL;
        vc_err_t err = {0};
        blob[i] ^= 4;
        vc_status_t st = node_calib_parse(blob, n, &ops, &m, &calib, &err);
        cr_assert(st == VC_ERR_CORRUPT || st == VC_ERR_MISMATCH, "byte %zu: %s", i, err.msg);
        cr_assert_gt(strlen(err.msg), 10);
        blob[i] ^= 4;
    }
    blob[80] ^= 1;
    refused(blob, n, &ops, &m, VC_ERR_CORRUPT, "promises");
    blob[80] ^= 1;
    blob[90] ^= 1;
    refused(blob, n, &ops, &m, VC_ERR_CORRUPT, "damaged");
}

Test(calib, every_truncated_length_is_refused)
{
    const node_codec_ops_t ops = learned_ops();
    node_model_info_t m = a_model();
    uint8_t blob[256];
    size_t n = blob_bytes(&m, blob, sizeof(blob));
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *exact = vc_memdup(blob, cut); /* a byte past the end is the sanitizer's to see */
        refused(exact, cut, &ops, &m, VC_ERR_CORRUPT, cut < 120 ? "beginning" : "promises");
        vc_free(exact);
    }
    blob[n] = 0;
    refused(blob, n + 1, &ops, &m, VC_ERR_CORRUPT, "promises");
}

Test(calib, another_model_is_named_by_what_differs)
{
    const node_codec_ops_t ops = learned_ops();
    const node_model_info_t m = a_model();
    uint8_t blob[256];
    size_t n = blob_bytes(&m, blob, sizeof(blob));
    node_model_info_t other = m;
    other.n_layer = 3;
    refused(blob, n, &ops, &other, VC_ERR_MISMATCH, "has 2 layers, this one 3");
    other = m;
    other.n_head = 8;
    refused(blob, n, &ops, &other, VC_ERR_MISMATCH, "query heads");
    other = m;
    other.n_kv_head = 1;
    refused(blob, n, &ops, &other, VC_ERR_MISMATCH, "KV heads");
    other = m;
    other.head_dim = 80;
    refused(blob, n, &ops, &other, VC_ERR_MISMATCH, "channels a head");
    other = m;
    other.d_model = 512;
    refused(blob, n, &ops, &other, VC_ERR_MISMATCH, "of width");
    other = m;
    other.keyspace.model.b[31] = 1;
    refused(blob, n, &ops, &other, VC_ERR_MISMATCH, "other weights");
}

/* A true digest around a changed head: what another program could have written. */
static void seal(uint8_t *blob, size_t n) { crypto_generichash(blob + n - 32, 32, blob, n - 32, NULL, 0); }

Test(calib, another_method_or_version_is_refused_by_name)
{
    const node_codec_ops_t ops = learned_ops();
    node_model_info_t m = a_model();
    uint8_t blob[256];
    size_t n = blob_bytes(&m, blob, sizeof(blob));
    memcpy(blob + 8, "guessed", 7);
    seal(blob, n);
    refused(blob, n, &ops, &m, VC_ERR_MISMATCH, "of method guessed, not of learned");
    memcpy(blob + 8, "learned\033", 8);
    seal(blob, n);
    refused(blob, n, &ops, &m, VC_ERR_MISMATCH, "learned?");
    blob[15] = 0;
    vc_put_le32(blob + 24, 2);
    seal(blob, n);
    refused(blob, n, &ops, &m, VC_ERR_MISMATCH, "version 2");
    vc_put_le32(blob + 24, 1);
    blob[88] = 9;
    seal(blob, n);
    refused(blob, n, &ops, &m, VC_ERR_CORRUPT, "learned from 9 layers");
    refused(blob, n, &node_codec_none, &m, VC_ERR_MISMATCH, "not of none");
}

Test(calib, files_that_cannot_be_read_or_written_name_their_path)
{
    const node_codec_ops_t ops = learned_ops();
    node_model_info_t m = a_model();
    vt_tmpdir_t dir;
    vc_err_t err = {0};
    node_calib_t *calib = NULL;
    vt_tmpdir_create(&dir);
    cr_assert_eq(node_calib_load(vt_tmpdir_path(&dir, "absent"), &ops, &m, &calib, &err), VC_ERR_NOT_FOUND);
    cr_assert_not_null(strstr(err.msg, "/absent"));
    cr_assert_eq(node_calib_load(dir.path, &ops, &m, &calib, &err), VC_ERR_INVALID);
    cr_assert_neq(node_calib_save(vt_tmpdir_path(&dir, "no/where"), "learned", &m, payload, 4, &err), VC_OK);
    cr_assert_not_null(strstr(err.msg, "no/where"));
    vt_tmpdir_remove(&dir);
}

Test(calib, a_pipe_in_a_blobs_place_is_refused_not_waited_for)
{
    const node_codec_ops_t ops = learned_ops();
    node_model_info_t m = a_model();
    vt_tmpdir_t dir;
    vc_err_t err = {0};
    node_calib_t *calib = NULL;
    vt_tmpdir_create(&dir);
    const char *path = vt_tmpdir_path(&dir, "pipe.vcal");
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(node_calib_load(path, &ops, &m, &calib, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "not a regular file"), "%s", err.msg);
    vt_tmpdir_remove(&dir);
}

Test(calib, a_place_that_cannot_be_written_is_told_before_the_work)
{
    node_model_info_t m = a_model();
    vt_tmpdir_t dir;
    vc_err_t early = {0}, late = {0};
    vt_tmpdir_create(&dir);
    const char *places[] = {"no/where", "taken.vcal"};
    cr_assert_eq(mkdir(vt_tmpdir_path(&dir, "taken.vcal"), 0700), 0);
    for (int i = 0; i < 2; i++) {
        const char *path = vt_tmpdir_path(&dir, places[i]);
        cr_assert_neq(node_calib_can_save(path, &early), VC_OK);
        cr_assert_neq(node_calib_save(path, "learned", &m, payload, 4, &late), VC_OK);
        cr_assert_str_eq(early.msg, late.msg);
    }
    const char *path = vt_tmpdir_path(&dir, "good.vcal");
    cr_assert_eq(node_calib_can_save(path, &early), VC_OK);
    cr_expect_eq(access(path, F_OK), -1, "asking makes no file");
    vt_tmpdir_remove(&dir);
}

/* The file has room for 16 bytes of the name. */
Test(calib, a_long_method_name_is_known_by_its_beginning)
{
    vt_tmpdir_t dir;
    vt_tmpdir_create(&dir);
    const node_codec_ops_t ops = learned_ops();
    node_codec_ops_t long_name = ops;
    node_model_info_t m = a_model();
    node_calib_t *calib = NULL;
    vc_err_t err = {0};
    long_name.name = "a_name_of_17_byte";
    const char *path = vt_tmpdir_path(&dir, "x");
    cr_assert_eq(node_calib_save(path, long_name.name, &m, payload, sizeof(payload), &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_calib_load(path, &long_name, &m, &calib, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(memcmp(calib->payload, payload, sizeof(payload)), 0);
    node_calib_free(calib);
    cr_assert_eq(node_calib_load(path, &ops, &m, &calib, &err), VC_ERR_MISMATCH);
    cr_assert_not_null(strstr(err.msg, "a_name_of_17_byt"));
    vt_tmpdir_remove(&dir);
}

Test(calib, a_blob_lies_beside_the_model_or_in_the_directory_given)
{
    char path[64];
    cr_assert_eq(node_calib_path(NULL, "/m/a.b.gguf", "kvzap", path, sizeof(path), NULL), VC_OK);
    cr_assert_str_eq(path, "/m/a.b.kvzap.vcal");
    cr_assert_eq(node_calib_path("", "a.gguf", "kvzap", path, sizeof(path), NULL), VC_OK);
    cr_assert_str_eq(path, "a.kvzap.vcal");
    cr_assert_eq(node_calib_path("d", "/m/a", "kvzap", path, sizeof(path), NULL), VC_OK);
    cr_assert_str_eq(path, "d/a.kvzap.vcal");
    cr_assert_eq(node_calib_path("d", "/m/a", "kvzap", path, 8, NULL), VC_ERR_INVALID);
}

static node_calib_t *blob_with(const node_codec_ops_t *ops, const node_model_info_t *m, uint8_t byte)
{
    uint8_t blob[256];
    vc_err_t err = {0};
    node_calib_t *calib = NULL;
    size_t n = blob_bytes(m, blob, sizeof(blob));
    blob[90] = byte;
    seal(blob, n);
    cr_assert_eq(node_calib_parse(blob, n, ops, m, &calib, &err), VC_OK, "%s", err.msg);
    return calib;
}

Test(calib, a_record_made_with_one_blob_is_not_read_with_another)
{
    const node_codec_ops_t ops = learned_ops();
    fx_t f;
    fx_open(&f, a_model(), 1, 0, 3);
    node_calib_t *mine = blob_with(&ops, &f.model, 1), *theirs = blob_with(&ops, &f.model, 2);
    node_spec_t plain = fx_spec("rot"), with_mine, with_theirs;
    plain.ops = &ops;
    with_mine = with_theirs = plain;
    node_spec_bind(&with_mine, mine);
    node_spec_bind(&with_theirs, theirs);
    cr_assert(memcmp(&with_mine.id, &plain.id, sizeof(plain.id)) != 0);
    cr_assert(memcmp(&with_mine.id, &with_theirs.id, sizeof(plain.id)) != 0);
    fx_records_t r = {0};
    vc_err_t err = {0};
    cr_assert_eq(node_compress(&with_mine, &f.in, fx_keep, &r, &err), VC_OK, "%s", err.msg);
    const node_spec_t *readers[] = {&with_mine, &with_theirs, &plain};
    for (uint32_t i = 0; i < VC_ARRAY_LEN(readers); i++) {
        node_body_builder_t *b;
        cr_assert_eq(node_body_begin(readers[i], &f.model, 1, &b, &err), VC_OK);
        cr_assert_eq(node_body_add_record(b, r.data[0], r.bytes[0], &err), i == 0 ? VC_OK : VC_ERR_MISMATCH);
        node_body_abort(b);
    }
    fx_records_free(&r);
    node_calib_free(mine);
    node_calib_free(theirs);
    fx_close(&f);
}
