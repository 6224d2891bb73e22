/* The offline check: clean is clean, every class of damage is found and named, and nothing is changed. */
#include "support/vc_test.h"

#include <dirent.h>
#include <rocksdb/c.h>
#include <sys/file.h>

#include "catalog_rows.h"
#include "store_fixture.h"
#include "support/datadir.h"
#include "support/file.h"
#include "vc/bytes.h"
#include "vc/crc32c.h"
#include "verify.h"
#include "verify_int.h"

#define OBJECTS 58u /* in the directory of format 1 */

static cs_verify_report_t *check(const char *data_dir, uint64_t capacity)
{
    cs_verify_opts_t opts = {.data_dir = data_dir, .capacity_bytes = capacity, .max_findings = 3};
    cs_verify_report_t *report = NULL;
    vc_err_t err = {0};
    cr_assert_eq(cs_verify(&opts, &report, &err), VC_OK, "%s", err.msg);
    return report;
}

static uint64_t damage(const char *data_dir)
{
    cs_verify_report_t *r = check(data_dir, 0);
    uint64_t n = cs_verify_n_damage(r);
    cs_verify_free(r);
    return n;
}

static bool is_named(const cs_verify_report_t *r, cs_verify_kind_t kind, const char *text)
{
    for (uint32_t i = 0; i < r->n_findings; i++) {
        if (r->findings[i].kind == kind && strstr(r->findings[i].text, text))
            return true;
    }
    return false;
}

/* n findings of a kind, one of them with the text, and no other damage. */
static void expect(const char *data_dir, cs_verify_kind_t kind, uint64_t n, const char *text)
{
    cs_verify_report_t *r = check(data_dir, 0);
    cr_assert_eq(r->n[kind], n, "%s: %llu findings", cs_verify_kind_name(kind), (unsigned long long)r->n[kind]);
    cr_assert(is_named(r, kind, text), "%s: nothing named %s", cs_verify_kind_name(kind), text);
    cr_assert_eq(cs_verify_n_damage(r), kind < CS_VERIFY_N_DAMAGE ? n : 0);
    cs_verify_free(r);
}

/* What every file is: its name, size, time of change and sum, folded. */
static uint32_t state_of(const char *dir)
{
    char path[1024];
    uint32_t sum = 0;
    DIR *list = opendir(dir);
    for (struct dirent *e; list && (e = readdir(list));) {
        struct stat st;
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        if (e->d_name[0] == '.' || lstat(path, &st) != 0)
            continue;
        uint32_t one = vc_crc32c(0, e->d_name, strlen(e->d_name));
        one = vc_crc32c(one, &st.st_mtim, sizeof(st.st_mtim));
        if (S_ISDIR(st.st_mode)) {
            one += state_of(path);
        } else {
            size_t n;
            uint8_t *data = vt_file_read(path, &n);
            one = vc_crc32c(one, data, n);
            vc_free(data);
        }
        sum += one; /* whatever the order */
    }
    if (list)
        closedir(list);
    return sum;
}

static vt_tmpdir_t tmp;
static const char *unpacked_format(const char *name)
{
    static char path[512];
    vt_tmpdir_create(&tmp);
    vt_datadir_unpack(&tmp, name);
    snprintf(path, sizeof(path), "%s/data", tmp.path);
    return path;
}

static const char *unpacked(void) { return unpacked_format("datadir-format1"); }

Test(verify, a_clean_directory_is_clean_and_is_left_as_it_was)
{
    const char *dir = unpacked();
    uint32_t before = state_of(dir);
    cs_verify_report_t *r = check(dir, 0);
    cr_assert_eq(cs_verify_n_damage(r), 0);
    cr_assert_eq(r->format, 1);
    cr_assert_eq(r->generation, 2);
    cr_assert_eq(r->objects, OBJECTS);
    cr_assert_eq(r->sound_objects, OBJECTS);
    cr_assert_eq(r->bytes_read, r->object_bytes);
    cr_assert_eq(r->segments, 2);
    cr_assert_eq(r->keyspaces, 2);
    cr_assert_eq(r->prefixes, 3);
    cr_assert_eq(r->n[CS_VERIFY_NO_BALLAST], 1);
    cr_assert_eq(r->n_findings, 1);
    cs_verify_free(r);
    cr_assert_eq(state_of(dir), before);
    vt_tmpdir_remove(&tmp);
}

Test(verify, what_the_store_leaves_is_clean_after_evictions_drops_and_aborts)
{
    fx_t fx;
    cs_upload_info_t info;
    uint8_t missing[8];
    cs_pin_t pin;
    vc_err_t err = {0};
    fx_init(&fx, 3);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    for (uint32_t seed = 0; seed < 60; seed++)
        cr_assert_eq(fx_register(&fx, seed, 0, 60, seed % 3 ? FX_FULL : FX_BOTH), VC_OK);
    cr_assert_eq(fx_begin(&fx, 900, 0, 4, FX_FULL, &info, missing), VC_OK);
    cr_assert_eq(fx_put(&fx, &info, 900, 1, 0), VC_OK);
    cr_assert_eq(fx_pin(&fx, 59, 7, 0, &pin), VC_OK);
    fx_flip_byte(&fx, &pin, 6000);
    cs_store_unpin(fx.store, &pin);
    cr_assert_eq(fx_read(&fx, 59, 7, 0), VC_ERR_CORRUPT);
    cr_assert_eq(fx_register(&fx, 59, 0, 60, FX_FULL), VC_OK); /* its row goes, and comes back */
    fx_close(&fx);
    cs_verify_report_t *r = check(fx.dir, fx.opts.capacity_bytes);
    for (uint32_t i = 0; i < r->n_findings; i++)
        cr_assert_geq(r->findings[i].kind, CS_VERIFY_N_DAMAGE, "%s", r->findings[i].text);
    cr_assert_eq(r->n[CS_VERIFY_NO_BALLAST], 0);
    cr_assert_gt(r->sound_objects, 1000);
    cr_assert_eq(r->sound_objects, r->objects);
    cs_verify_free(r);
    r = check(fx.dir, 20 << 20);
    cr_assert_eq(r->n[CS_VERIFY_CAPACITY], 1);
    cs_verify_free(r);
    fx_fini(&fx);
}

Test(verify, a_flip_anywhere_in_a_segment_is_named)
{
    static const struct {
        uint64_t at;
        cs_verify_kind_t kind;
        const char *text;
    } flips[] = {{0, CS_VERIFY_SEGMENT_HEADER, "00000000.seg"},    /* magic */
                 {5, CS_VERIFY_SEGMENT_HEADER, "00000000.seg"},    /* format */
                 {17, CS_VERIFY_SEGMENT_HEADER, "00000000.seg"},   /* version */
                 {4000, CS_VERIFY_SEGMENT_HEADER, "00000000.seg"}, /* zeros */
                 {4096, CS_VERIFY_RECORD, "at 4096"},              /* a record: magic */
                 {4096 + 13, CS_VERIFY_RECORD, "at 4096"},         /* its sum */
                 {4096 + 115, CS_VERIFY_RECORD, "at 4096"},        /* block hash */
                 {4096 + 200, CS_VERIFY_RECORD, "at 4096"},        /* tokens */
                 {4096 + 4095, CS_VERIFY_RECORD, "at 4096"},       /* the header's zeros */
                 {4096 + 4096, CS_VERIFY_RECORD, "layer 0"},       /* payload */
                 {4096 + 8192 + 4095, CS_VERIFY_RECORD, "layer 1"}};
    const char *dir = unpacked();
    for (size_t i = 0; i < VC_ARRAY_LEN(flips); i++) {
        const char *path = vt_tmpdir_path(&tmp, "data/segments/00000000.seg");
        vt_flip_byte(path, flips[i].at, 0x04);
        expect(dir, flips[i].kind, 1, flips[i].text);
        vt_flip_byte(path, flips[i].at, 0x04);
    }
    /* Compressed records end in padding, and have some between their layers. */
    const char *path = vt_tmpdir_path(&tmp, "data/segments/00000001.seg");
    vt_flip_byte(path, 4096 + 8191, 0x80);
    expect(dir, CS_VERIFY_RECORD, 1, "after the last layer");
    vt_flip_byte(path, 4096 + 8191, 0x80);
    vt_flip_byte(path, 4096 + 4096 + 930, 0x80);
    expect(dir, CS_VERIFY_RECORD, 1, "compressed");
    vt_flip_byte(path, 4096 + 4096 + 930, 0x80);
    vt_flip_byte(path, 3 << 20, 1); /* where nothing is, nothing is damaged */
    cr_assert_eq(damage(dir), 0);
    vt_tmpdir_remove(&tmp);
}

/* Flips every step-th byte of a file of the catalog, the last ones all. */
static void flip_through(const char *dir, const char *name, uint64_t step)
{
    char path[600];
    struct stat st;
    snprintf(path, sizeof(path), "%s/catalog/%s", dir, name);
    cr_assert_eq(stat(path, &st), 0);
    for (uint64_t at = 0; at < (uint64_t)st.st_size; at += at + 8 >= (uint64_t)st.st_size ? 1 : step) {
        vt_flip_byte(path, at, 0x20);
        cr_assert_gt(damage(dir), 0, "%s at %llu", name, (unsigned long long)at);
        vt_flip_byte(path, at, 0x20);
    }
}

Test(verify, a_flip_anywhere_in_the_catalogs_files_is_found)
{
    const char *dir = unpacked();
    flip_through(dir, "CURRENT", 1);
    flip_through(dir, "MANIFEST-000025", 29);
    flip_through(dir, "000024.log", 97);
    flip_through(dir, "000018.sst", 211);
    flip_through(dir, "000020.sst", 101);
    vt_flip_byte(vt_tmpdir_path(&tmp, "data/catalog/000024.log"), 3000, 1);
    cs_verify_report_t *r = check(dir, 0);
    cr_assert(is_named(r, CS_VERIFY_CATALOG_FILE, "catalog/000024.log"));
    cs_verify_free(r);
    vt_flip_byte(vt_tmpdir_path(&tmp, "data/catalog/000024.log"), 3000, 1);
    vt_flip_byte(vt_tmpdir_path(&tmp, "data/catalog/000018.sst"), 100, 1);
    r = check(dir, 0);
    cr_assert(is_named(r, CS_VERIFY_CATALOG, "000018.sst"));
    cs_verify_free(r);
    vt_flip_byte(vt_tmpdir_path(&tmp, "data/catalog/000018.sst"), 100, 1);
    cr_assert_eq(damage(dir), 0);
    cr_assert_eq(unlink(vt_tmpdir_path(&tmp, "data/catalog/000018.sst")), 0);
    cr_assert_gt(damage(dir), 0);
    cr_assert_eq(unlink(vt_tmpdir_path(&tmp, "data/catalog/CURRENT")), 0);
    cr_assert_gt(damage(dir), 0);
    vt_tmpdir_remove(&tmp);
}

/* ---- rows whose sums are right and whose contents are not ---- */

typedef struct raw {
    rocksdb_t *db;
    rocksdb_options_t *options;
    rocksdb_column_family_handle_t *cf[7];
    int n;
    rocksdb_writeoptions_t *write;
    rocksdb_readoptions_t *read;
} raw_t;
enum { META, OBJECTS_CF, SEGMENTS_CF, KEYSPACES_CF, PREFIXES_CF, PINS_CF, USES_CF };

/* n families: 5 in format 1, 7 in format 2. */
static void raw_open_families(raw_t *r, const char *dir, int n)
{
    static const char *const names[] = {"default", "objects", "segments", "keyspaces", "prefixes", "pins", "uses"};
    const rocksdb_options_t *options[7];
    char path[600], *message = NULL;
    snprintf(path, sizeof(path), "%s/catalog", dir);
    r->n = n;
    r->options = rocksdb_options_create();
    for (int i = 0; i < n; i++)
        options[i] = r->options;
    r->db = rocksdb_open_column_families(r->options, path, n, names, options, r->cf, &message);
    cr_assert_null(message, "%s", message);
    r->write = rocksdb_writeoptions_create();
    r->read = rocksdb_readoptions_create();
}

static void raw_open(raw_t *r, const char *dir) { raw_open_families(r, dir, 5); }

static void raw_close(raw_t *r)
{
    for (int i = 0; i < r->n; i++)
        rocksdb_column_family_handle_destroy(r->cf[i]);
    rocksdb_close(r->db);
    rocksdb_options_destroy(r->options);
    rocksdb_writeoptions_destroy(r->write);
    rocksdb_readoptions_destroy(r->read);
}

Test(verify, a_table_that_a_kill_left_half_written_is_no_damage)
{
    const char *dir = unpacked();
    char path[600];
    static const size_t sizes[] = {0, 40, 5000};
    for (size_t i = 0; i < VC_ARRAY_LEN(sizes); i++) {
        uint8_t *part = vc_calloc(1, sizes[i] + 1);
        snprintf(path, sizeof(path), "%s/catalog/00099%zu.sst", dir, i);
        vt_file_write(path, part, sizes[i]);
        vc_free(part);
        cr_assert_eq(damage(dir), 0, "of %zu bytes", sizes[i]);
    }
    vt_tmpdir_remove(&tmp);
}

typedef struct row {
    uint8_t key[64], value[512];
    size_t key_len, len;
} row_t;

static row_t raw_row(raw_t *r, int cf, int n)
{
    row_t row;
    rocksdb_iterator_t *it = rocksdb_create_iterator_cf(r->db, r->read, r->cf[cf]);
    rocksdb_iter_seek_to_first(it);
    for (int i = 0; i < n; i++)
        rocksdb_iter_next(it);
    cr_assert(rocksdb_iter_valid(it));
    const char *key = rocksdb_iter_key(it, &row.key_len), *value;
    memcpy(row.key, key, row.key_len);
    value = rocksdb_iter_value(it, &row.len);
    cr_assert_leq(row.len, sizeof(row.value));
    memcpy(row.value, value, row.len);
    rocksdb_iter_destroy(it);
    return row;
}

static void raw_put(raw_t *r, int cf, const row_t *row)
{
    char *message = NULL;
    rocksdb_put_cf(r->db, r->write, r->cf[cf], (const char *)row->key, row->key_len, (const char *)row->value, row->len,
                   &message);
    cr_assert_null(message);
}

static void raw_delete(raw_t *r, int cf, const row_t *row)
{
    char *message = NULL;
    rocksdb_delete_cf(r->db, r->write, r->cf[cf], (const char *)row->key, row->key_len, &message);
    cr_assert_null(message);
}

Test(verify, a_flip_in_any_byte_of_a_row_is_found)
{
    const char *dir = unpacked();
    raw_t raw;
    raw_open(&raw, dir); /* the check reads beside it: what was put is in the log at once */
    for (int cf = OBJECTS_CF; cf <= PREFIXES_CF; cf++) {
        row_t row = raw_row(&raw, cf, 1);
        const size_t step = VT_EVERY > 1 ? 7 : cf == KEYSPACES_CF ? 3 : 1; /* each is a whole check */
        for (size_t at = 0; at < row.key_len + row.len; at += step) {
            row_t bad = row;
            if (at < row.key_len)
                bad.key[at] ^= 0x10;
            else
                bad.value[at - row.key_len] ^= 0x10;
            bool is_time = cf == OBJECTS_CF && at >= row.key_len + 32 && at < row.key_len + 36; /* shown to people */
            raw_delete(&raw, cf, &row);
            raw_put(&raw, cf, &bad);
            uint64_t n = damage(dir);
            cr_assert(is_time ? n == 0 : n > 0, "family %d byte %zu, key of %zu", cf, at, row.key_len);
            raw_delete(&raw, cf, &bad);
            raw_put(&raw, cf, &row);
        }
        cr_assert_eq(damage(dir), 0);
    }
    raw_close(&raw);
    vt_tmpdir_remove(&tmp);
}

Test(verify, rows_that_contradict_each_other_or_the_files_are_named)
{
    const char *dir = unpacked();
    raw_t raw;
    raw_open(&raw, dir);
    row_t a = raw_row(&raw, OBJECTS_CF, 0), b = raw_row(&raw, OBJECTS_CF, 1), bad = a;
    memcpy(bad.value, b.value, 16); /* segment, version, offset of another one */
    raw_put(&raw, OBJECTS_CF, &bad);
    cs_verify_report_t *r = check(dir, 0);
    cr_assert_eq(r->n[CS_VERIFY_PLACE], 1);
    cr_assert(is_named(r, CS_VERIFY_PLACE, "overlaps"));
    cs_verify_free(r);
    bad = a;
    vc_put_le32(bad.value, 77);
    raw_put(&raw, OBJECTS_CF, &bad);
    expect(dir, CS_VERIFY_REFERENCE, 1, "segment 77");
    bad = a;
    bad.value[4]++;
    raw_put(&raw, OBJECTS_CF, &bad);
    expect(dir, CS_VERIFY_PLACE, 1, "another version");
    bad = a;
    vc_put_le64(bad.value + 8, 4198400 - 4096);
    raw_put(&raw, OBJECTS_CF, &bad);
    expect(dir, CS_VERIFY_PLACE, 1, "behind the end");
    bad = a;
    vc_put_le32(bad.value + 28, 4000);
    raw_put(&raw, OBJECTS_CF, &bad);
    expect(dir, CS_VERIFY_REFERENCE, 1, "prefix");
    bad = a;
    bad.value[24]++;
    raw_put(&raw, OBJECTS_CF, &bad);
    r = check(dir, 0);
    cr_assert(is_named(r, CS_VERIFY_MISMATCH, "place in the chain"));
    cs_verify_free(r);
    bad = a;
    bad.len--;
    raw_put(&raw, OBJECTS_CF, &bad);
    expect(dir, CS_VERIFY_ROW, 1, "objects");
    raw_put(&raw, OBJECTS_CF, &a);
    row_t segment = raw_row(&raw, SEGMENTS_CF, 0), other = segment;
    vc_put_le64(other.value + 8, 8 << 20);
    raw_put(&raw, SEGMENTS_CF, &other);
    r = check(dir, 0);
    cr_assert_eq(r->n[CS_VERIFY_SEGMENT_SIZE], 1);
    cs_verify_free(r);
    raw_put(&raw, SEGMENTS_CF, &segment);
    other.key[0] = 9;
    raw_put(&raw, SEGMENTS_CF, &other);
    expect(dir, CS_VERIFY_SEGMENT_MISSING, 1, "00000009.seg");
    raw_close(&raw);
    vt_tmpdir_remove(&tmp);
}

Test(verify, pins_use_counts_and_the_file_of_keyspaces_are_looked_at)
{
    const char *dir = unpacked_format("datadir-format2");
    raw_t raw;
    cs_verify_report_t *r = check(dir, 0);
    cr_assert_eq(cs_verify_n_damage(r), 0);
    cr_assert_eq(r->n[CS_VERIFY_STALE_ROW], 0);
    cr_assert_eq(r->format, 2);
    cs_verify_free(r);
    raw_open_families(&raw, dir, 7);
    row_t pin = raw_row(&raw, PINS_CF, 2), other = pin;
    other.key[30] ^= 1;
    raw_put(&raw, PINS_CF, &other);
    expect(dir, CS_VERIFY_STALE_ROW, 1, "pin of block");
    other.len--;
    raw_put(&raw, PINS_CF, &other);
    expect(dir, CS_VERIFY_ROW, 1, "pins");
    raw_delete(&raw, PINS_CF, &other);
    row_t uses = raw_row(&raw, USES_CF, 0), bad = uses;
    bad.value[bad.len - 3] = 0x7f; /* the last page, far behind the end of the segment */
    raw_put(&raw, USES_CF, &bad);
    expect(dir, CS_VERIFY_ROW, 1, "uses of segment");
    raw_put(&raw, USES_CF, &uses);
    raw_close(&raw);
    cr_assert_eq(damage(dir), 0);
    vt_flip_byte(vt_tmpdir_path(&tmp, "data/keyspaces"), 60, 1);
    expect(dir, CS_VERIFY_CATALOG_FILE, 1, "keyspaces");
    vt_tmpdir_remove(&tmp);
}

/* ---- files ---- */

Test(verify, missing_short_and_strange_files_are_named)
{
    const char *dir = unpacked();
    char path[600], aside[600];
    snprintf(path, sizeof(path), "%s/segments/00000001.seg", dir);
    snprintf(aside, sizeof(aside), "%s/segments/old", dir);
    vt_file_write(vt_tmpdir_path(&tmp, "data/notes.txt"), "hello", 5);
    expect(dir, CS_VERIFY_STRAY_FILE, 1, "notes.txt");
    cr_assert_eq(unlink(vt_tmpdir_path(&tmp, "data/notes.txt")), 0);
    vt_file_write(vt_tmpdir_path(&tmp, "data/segments/00000040.seg"), "hello", 5);
    cs_verify_report_t *r = check(dir, 0); /* as after a crash while it was made: no row, no header */
    cr_assert_eq(r->n[CS_VERIFY_SPARE_SEGMENT], 2);
    cr_assert_eq(cs_verify_n_damage(r), 0);
    cs_verify_free(r);
    cr_assert_eq(unlink(vt_tmpdir_path(&tmp, "data/segments/00000040.seg")), 0);
    cr_assert_eq(rename(path, aside), 0);
    r = check(dir, 0);
    cr_assert_eq(r->n[CS_VERIFY_SEGMENT_MISSING], 1);
    cr_assert(is_named(r, CS_VERIFY_REFERENCE, "segment 1"));
    cr_assert_eq(r->sound_objects, OBJECTS / 2);
    cs_verify_free(r);
    cr_assert_eq(rename(aside, path), 0);
    cr_assert_eq(truncate(path, 100 << 10), 0);
    r = check(dir, 0);
    cr_assert_eq(r->n[CS_VERIFY_SEGMENT_SIZE], 1);
    cr_assert_gt(r->n[CS_VERIFY_PLACE], 0);
    cr_assert_gt(r->sound_objects, OBJECTS / 2);
    cr_assert_lt(r->sound_objects, OBJECTS);
    cs_verify_free(r);
    vt_tmpdir_remove(&tmp);
}

Test(verify, refuses_what_it_cannot_or_must_not_check)
{
    const char *dir = unpacked();
    cs_verify_opts_t opts = {.data_dir = dir, .max_findings = 3};
    cs_verify_report_t *report = NULL;
    vc_err_t err = {0};
    int fd = open(vt_tmpdir_path(&tmp, "data/LOCK"), O_RDONLY);
    cr_assert_eq(flock(fd, LOCK_EX | LOCK_NB), 0);
    cr_assert_eq(cs_verify(&opts, &report, &err), VC_ERR_BUSY);
    cr_assert_not_null(strstr(err.msg, dir), "%s", err.msg);
    close(fd);
    cr_assert_eq(unlink(vt_tmpdir_path(&tmp, "data/LOCK")), 0);
    cr_assert_eq(mkfifo(vt_tmpdir_path(&tmp, "data/LOCK"), 0600), 0); /* nobody writes: must not be waited for */
    cs_verify_free(check(dir, 0));
    cr_assert_eq(unlink(vt_tmpdir_path(&tmp, "data/LOCK")), 0);
    vt_file_write(vt_tmpdir_path(&tmp, "data/LOCK"), "", 0);
    cr_assert_eq(rename(vt_tmpdir_path(&tmp, "data/catalog/CURRENT"), vt_tmpdir_path(&tmp, "aside")), 0);
    cr_assert_eq(mkfifo(vt_tmpdir_path(&tmp, "data/catalog/CURRENT"), 0600), 0);
    cs_verify_report_t *r = check(dir, 0);
    cr_assert(is_named(r, CS_VERIFY_CATALOG, "CURRENT is no regular file"));
    cs_verify_free(r);
    cr_assert_eq(rename(vt_tmpdir_path(&tmp, "aside"), vt_tmpdir_path(&tmp, "data/catalog/CURRENT")), 0);
    cr_assert_eq(mkfifo(vt_tmpdir_path(&tmp, "data/keyspaces"), 0600), 0);
    r = check(dir, 0);
    cr_assert(is_named(r, CS_VERIFY_UNREADABLE, "keyspaces") || is_named(r, CS_VERIFY_CATALOG_FILE, "keyspaces"));
    cs_verify_free(r);
    cr_assert_eq(unlink(vt_tmpdir_path(&tmp, "data/keyspaces")), 0); /* this format had none */
    opts.data_dir = vt_tmpdir_path(&tmp, "nowhere");
    cr_assert_eq(cs_verify(&opts, &report, &err), VC_ERR_NOT_FOUND);
    opts.data_dir = tmp.path;
    cr_assert_eq(cs_verify(&opts, &report, &err), VC_ERR_NOT_FOUND);
    raw_t raw;
    row_t row = {.key = "format", .key_len = 6, .value = {7}, .len = 4};
    raw_open(&raw, dir);
    raw_put(&raw, META, &row);
    raw_close(&raw);
    uint32_t before = state_of(dir);
    opts.data_dir = dir;
    cr_assert_eq(cs_verify(&opts, &report, &err), VC_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(err.msg, "format 7"), "%s", err.msg);
    cr_assert_not_null(strstr(err.msg, "format 1"), "%s", err.msg);
    cr_assert_null(report);
    /* The store refuses it likewise, before it touches anything. */
    fx_t fx;
    fx_init(&fx, 3);
    char own[256];
    memcpy(own, fx.dir, sizeof(own));
    snprintf(fx.dir, sizeof(fx.dir), "%.255s", dir);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(err.msg, "format 7"), "%s", err.msg);
    cr_assert_not_null(strstr(err.msg, "format 1"), "%s", err.msg);
    cr_assert_eq(state_of(dir), before);
    memcpy(fx.dir, own, sizeof(own));
    fx_fini(&fx);
    vt_tmpdir_remove(&tmp);
}

/* ---- the parsers of RocksDB's files by themselves ---- */

static size_t add_record(uint8_t *log, size_t at, uint8_t type, const void *data, uint16_t length)
{
    memcpy(log + at + 7, data, length);
    log[at + 4] = (uint8_t)length;
    log[at + 5] = (uint8_t)(length >> 8);
    log[at + 6] = type;
    uint32_t crc = vc_crc32c(0, log + at + 6, 1u + length);
    vc_put_le32(log + at, (crc >> 15 | crc << 17) + 0xa282ead8u);
    return at + 7 + length;
}

Test(verify, log_records_are_whole_in_order_and_within_their_blocks)
{
    static uint8_t log[3 * 32768], big[32768];
    size_t at, end;
    cr_assert_null(cs_verify_log_bytes(log, 0, &at));
    end = add_record(log, 0, 1, "hello", 5);
    end = add_record(log, end, 2, big, (uint16_t)(32768 - end - 7));
    cr_assert_eq(end, 32768);
    end = add_record(log, end, 4, big, 30000);
    cr_assert_null(cs_verify_log_bytes(log, end, &at));
    cr_assert_null(cs_verify_log_bytes(log, end + 2000, &at)); /* space taken in advance */
    cr_assert_not_null(cs_verify_log_bytes(log, end - 1, &at));
    cr_assert_eq(at, 32768);
    cr_assert_not_null(cs_verify_log_bytes(log, 32768, &at)); /* begun, not ended */
    size_t last = add_record(log, end, 3, "x", 1);            /* a middle without a start */
    cr_assert_not_null(cs_verify_log_bytes(log, last, &at));
    log[end + 6] = 9;
    cr_assert_not_null(cs_verify_log_bytes(log, last, &at));
    memset(log + end, 0, last - end);
    log[4] ^= 0x80; /* a length beyond the block, or the next record */
    cr_assert_not_null(cs_verify_log_bytes(log, end, &at));
    cr_assert_eq(at, 0);
}
