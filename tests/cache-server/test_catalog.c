/* The catalog: rows come back as they were written, later operations win, other formats are refused. */
#include "support/vc_test.h"

#include <ftw.h>
#include <rocksdb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "catalog.h"
#include "vc/bytes.h"

static char dir[64];
static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}
static void make_dir(void)
{
    strcpy(dir, "/tmp/vc-catalog-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}
static void remove_dir(void) { nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static cs_catalog_t *open_catalog(bool readonly)
{
    cs_catalog_t *catalog;
    vc_err_t err = {0};
    cr_assert_eq(cs_catalog_open(dir, readonly, &catalog, &err), VC_OK, "%s", err.msg);
    return catalog;
}

typedef struct seen {
    cs_object_row_t objects[4];
    cs_segment_row_t segments[4];
    cs_prefix_row_t prefixes[4];
    vc_keyspace_t keyspaces[4];
    unsigned n_objects, n_segments, n_prefixes, n_keyspaces, n_bad;
} seen_t;

static void on_object(void *arg, const cs_object_row_t *row)
{
    seen_t *s = arg;
    s->objects[s->n_objects++ % 4] = *row;
}
static void on_segment(void *arg, const cs_segment_row_t *row)
{
    seen_t *s = arg;
    s->segments[s->n_segments++ % 4] = *row;
}
static void on_keyspace(void *arg, const vc_digest_t *id, const vc_keyspace_t *ks)
{
    seen_t *s = arg;
    vc_digest_t want;
    cr_assert_eq(vc_keyspace_id(ks, &want, NULL), VC_OK);
    cr_assert_arr_eq(id, &want, sizeof(want));
    s->keyspaces[s->n_keyspaces++ % 4] = *ks;
}
static void on_prefix(void *arg, const cs_prefix_row_t *row)
{
    seen_t *s = arg;
    s->prefixes[s->n_prefixes++ % 4] = *row;
}
static void on_bad(void *arg, const char *kind)
{
    seen_t *s = arg;
    (void)kind;
    s->n_bad++;
}

static void scan(cs_catalog_t *catalog, seen_t *seen)
{
    memset(seen, 0, sizeof(*seen));
    cs_catalog_visitor_t visitor = {.object = on_object,
                                    .segment = on_segment,
                                    .keyspace = on_keyspace,
                                    .prefix = on_prefix,
                                    .bad = on_bad,
                                    .arg = seen};
    cr_assert_eq(cs_catalog_scan(catalog, &visitor, NULL), VC_OK);
}

static cs_object_row_t an_object(uint8_t seed)
{
    cs_object_row_t row;
    memset(&row, seed, sizeof(row));
    row.key.fidelity = VC_FIDELITY_COMPRESSED;
    return row;
}

static vc_keyspace_t a_keyspace(void)
{
    vc_keyspace_t ks = {.shape = {2, 1, 8, 4, VC_DTYPE_F16}, .layout_version = VC_LAYOUT_VERSION};
    strcpy(ks.rope, "neox theta=10000 dims=8");
    return ks;
}

static void write_rows(cs_catalog_t *catalog)
{
    cs_object_row_t a = an_object(1), b = an_object(2);
    cs_segment_row_t segment = {.number = 7, .version = 3, .bytes = 1 << 22};
    cs_prefix_row_t prefix = {.id = 9, .n_blocks = 5, .n_head_tokens = 2, .head_tokens = {11, 12}};
    vc_keyspace_t ks = a_keyspace();
    vc_digest_t id;
    cr_assert_eq(vc_keyspace_id(&ks, &id, NULL), VC_OK);
    cs_catalog_delete_object(catalog, &a.key); /* a later put of the same key wins */
    cs_catalog_put_object(catalog, &a);
    cs_catalog_put_object(catalog, &b);
    cs_catalog_delete_object(catalog, &b.key); /* and so does a later delete */
    cs_catalog_put_segment(catalog, &segment);
    cs_catalog_put_prefix(catalog, &prefix);
    cr_assert_eq(cs_catalog_put_keyspace(catalog, &id, &ks), VC_OK);
    cs_catalog_put_generation(catalog, 42);
    cr_assert_eq(cs_catalog_write(catalog, true, NULL), VC_OK);
}

static void check_rows(cs_catalog_t *catalog, unsigned n_bad)
{
    seen_t seen;
    cs_object_row_t want = an_object(1);
    vc_keyspace_t ks = a_keyspace();
    scan(catalog, &seen);
    cr_assert_eq(cs_catalog_generation(catalog), 42);
    cr_assert_eq(seen.n_objects, 1);
    cr_assert_arr_eq(&seen.objects[0].key, &want.key, sizeof(want.key));
    cr_assert_arr_eq(&seen.objects[0].keyspace, &want.keyspace, sizeof(want.keyspace));
    cr_assert_eq(seen.objects[0].segment, want.segment);
    cr_assert_eq(seen.objects[0].version, want.version);
    cr_assert_eq(seen.objects[0].offset, want.offset);
    cr_assert_eq(seen.objects[0].bytes, want.bytes);
    cr_assert_eq(seen.objects[0].header_crc, want.header_crc);
    cr_assert_eq(seen.objects[0].block_index, want.block_index);
    cr_assert_eq(seen.objects[0].prefix, want.prefix);
    cr_assert_arr_eq(seen.objects[0].parent_fp, want.parent_fp, 8);
    cr_assert_eq(seen.n_segments, 1);
    cr_assert(seen.segments[0].number == 7 && seen.segments[0].version == 3 && seen.segments[0].bytes == 1 << 22);
    cr_assert_eq(seen.n_prefixes, 1);
    cr_assert(seen.prefixes[0].id == 9 && seen.prefixes[0].n_head_tokens == 2 && seen.prefixes[0].head_tokens[1] == 12);
    cr_assert_eq(seen.n_keyspaces, 1);
    cr_assert_null(vc_keyspace_diff(&seen.keyspaces[0], &ks));
    cr_assert_eq(seen.n_bad, n_bad);
}

Test(catalog, rows_come_back_as_they_were_written_also_read_only)
{
    make_dir();
    cs_catalog_t *catalog = open_catalog(false);
    cr_assert_eq(cs_catalog_generation(catalog), 0);
    write_rows(catalog);
    cs_catalog_close(catalog);
    for (int readonly = 0; readonly < 2; readonly++) {
        catalog = open_catalog(readonly);
        check_rows(catalog, 0);
        cs_catalog_close(catalog);
    }
    catalog = open_catalog(true);
    cs_catalog_put_generation(catalog, 1);
    cr_assert_eq(cs_catalog_write(catalog, true, NULL), VC_ERR_READONLY);
    cs_catalog_close(catalog);
    cr_assert_gt(cs_catalog_disk_bytes(dir), 4096);
    remove_dir();
}

Test(catalog, a_dropped_batch_leaves_nothing)
{
    make_dir();
    seen_t seen;
    cs_catalog_t *catalog = open_catalog(false);
    cs_object_row_t row = an_object(3);
    cs_catalog_put_object(catalog, &row);
    cs_catalog_drop_batch(catalog);
    cr_assert_eq(cs_catalog_write(catalog, true, NULL), VC_OK);
    scan(catalog, &seen);
    cr_assert_eq(seen.n_objects, 0);
    cs_catalog_close(catalog);
    remove_dir();
}

/* Writes one raw row behind the catalog's back. */
static void write_raw(const char *family, const void *key, size_t key_len, const void *value, size_t len)
{
    static const char *const names[] = {"default", "objects", "segments", "keyspaces", "prefixes", "pins", "uses"};
    char path[80], *message = NULL;
    rocksdb_options_t *options = rocksdb_options_create();
    const rocksdb_options_t *all[7] = {options, options, options, options, options, options, options};
    rocksdb_column_family_handle_t *cf[7];
    snprintf(path, sizeof(path), "%s/catalog", dir);
    rocksdb_t *db = rocksdb_open_column_families(options, path, 7, names, all, cf, &message);
    cr_assert_null(message, "%s", message);
    rocksdb_writeoptions_t *write = rocksdb_writeoptions_create();
    for (int i = 0; i < 7; i++) {
        if (strcmp(names[i], family) == 0)
            rocksdb_put_cf(db, write, cf[i], key, key_len, value, len, &message);
        rocksdb_column_family_handle_destroy(cf[i]);
    }
    cr_assert_null(message);
    rocksdb_writeoptions_destroy(write);
    rocksdb_close(db);
    rocksdb_options_destroy(options);
}

Test(catalog, rows_that_do_not_decode_are_reported_and_skipped)
{
    make_dir();
    uint8_t junk[512], prefix[72 + 8] = {0};
    cs_catalog_t *catalog = open_catalog(false);
    write_rows(catalog);
    cs_catalog_close(catalog);
    memset(junk, 0x55, sizeof(junk));
    write_raw("objects", junk, 49, junk, 80); /* fidelity 0x55 */
    write_raw("objects", junk, 48, junk, 80);
    memset(junk, 1, 1);
    write_raw("objects", junk, 49, junk, 79);
    write_raw("segments", junk, 5, junk, 16);
    write_raw("keyspaces", junk, 32, junk, 200);
    vc_put_le32(prefix + 68, 3); /* three tokens announced, two there */
    write_raw("prefixes", junk, 4, prefix, sizeof(prefix));
    vc_put_le32(prefix + 68, UINT32_MAX);
    write_raw("prefixes", junk + 1, 4, prefix, sizeof(prefix));
    catalog = open_catalog(false);
    check_rows(catalog, 7);
    cs_catalog_close(catalog);
    remove_dir();
}

Test(catalog, another_format_is_refused_with_its_number)
{
    make_dir();
    vc_err_t err = {0};
    uint8_t format[4];
    cs_catalog_t *catalog = open_catalog(false);
    write_rows(catalog);
    cs_catalog_close(catalog);
    vc_put_le32(format, 3);
    write_raw("default", "format", 6, format, sizeof(format));
    cr_assert_eq(cs_catalog_open(dir, false, &catalog, &err), VC_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(err.msg, "format 3"));
    cr_assert_eq(cs_catalog_open(dir, true, &catalog, &err), VC_ERR_UNSUPPORTED);
    remove_dir();
}

Test(catalog, read_only_without_a_catalog_is_not_found)
{
    make_dir();
    cs_catalog_t *catalog;
    vc_err_t err = {0};
    cr_assert_eq(cs_catalog_open(dir, true, &catalog, &err), VC_ERR_NOT_FOUND);
    cr_assert_not_null(strstr(err.msg, dir));
    cs_catalog_close(NULL);
    remove_dir();
}
