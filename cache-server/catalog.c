/*
 * RocksDB behind catalog.h. Column families: default (format, generation), objects, segments, keyspaces, prefixes.
 * Values are little-endian and fixed in size; README.md has them byte by byte. Errors of the C API are turned into our
 * status here and freed.
 */
#include "catalog.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <rocksdb/c.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault.h"
#include "vc/bytes.h"
#include "vc/log.h"
#include "vc/mem.h"

enum { CF_META, CF_OBJECTS, CF_SEGMENTS, CF_KEYSPACES, CF_PREFIXES, N_CF };
static const char *const cf_names[N_CF] = {"default", "objects", "segments", "keyspaces", "prefixes"};

#define OBJECT_KEY_BYTES 49u
#define OBJECT_VALUE_BYTES 80u
#define SEGMENT_VALUE_BYTES 16u
#define PREFIX_VALUE_BYTES (72u + 4 * CS_HEAD_TOKENS)

struct cs_catalog {
    rocksdb_t *db;
    rocksdb_column_family_handle_t *cf[N_CF];
    rocksdb_options_t *options;
    rocksdb_writebatch_t *batch;
    rocksdb_writeoptions_t *write_sync, *write_async;
    rocksdb_readoptions_t *read;
    rocksdb_flushoptions_t *flush;
    uint64_t generation;
    bool readonly;
};

/* Frees RocksDB's message. Its text names the cause; the code is guessed from it, since the C API has no other. */
static vc_status_t take_error(char *message, const char *what, vc_err_t *err)
{
    if (!message)
        return VC_OK;
    vc_status_t status = strstr(message, "No space left")          ? VC_ERR_NOSPACE
                         : strstr(message, "Read-only file")       ? VC_ERR_READONLY
                         : strncmp(message, "Corruption", 10) == 0 ? VC_ERR_CORRUPT
                         : strstr(message, "No such file")         ? VC_ERR_NOT_FOUND
                         : strstr(message, "/LOCK")                ? VC_ERR_BUSY
                         : strstr(message, "does not exist")       ? VC_ERR_NOT_FOUND
                                                                   : VC_ERR_IO;
    vc_err_set(err, status, "catalog %s: %s", what, message);
    rocksdb_free(message);
    return status;
}

/* Small everywhere: the catalog is a few hundred bytes an object, and its files count against the capacity. */
static rocksdb_options_t *make_options(bool readonly, vc_err_t *err)
{
    static const char text[] = "write_buffer_size=1048576;max_write_buffer_number=2;target_file_size_base=4194304;"
                               "max_bytes_for_level_base=16777216;level0_file_num_compaction_trigger=4;"
                               "compression=kNoCompression;max_total_wal_size=4194304;db_write_buffer_size=4194304;"
                               "max_manifest_file_size=1048576;manifest_preallocation_size=65536;"
                               "keep_log_file_num=2;max_log_file_size=262144;max_open_files=64;max_background_jobs=2;"
                               "allow_fallocate=false;paranoid_checks=true;stats_dump_period_sec=0;"
                               "stats_persist_period_sec=0;max_compaction_bytes=33554432;"
                               "wal_recovery_mode=kPointInTimeRecovery";
    rocksdb_options_t *base = rocksdb_options_create();
    rocksdb_options_t *options = rocksdb_options_create();
    char *message = NULL;
    rocksdb_get_options_from_string(base, text, options, &message);
    rocksdb_options_destroy(base);
    if (take_error(message, "options", err) != VC_OK) {
        rocksdb_options_destroy(options);
        return NULL;
    }
    rocksdb_options_set_create_if_missing(options, !readonly);
    rocksdb_options_set_create_missing_column_families(options, !readonly);
    rocksdb_options_set_info_log_level(options, 2); /* warnings */
    return options;
}

static vc_status_t read_meta(cs_catalog_t *catalog, vc_err_t *err)
{
    char *message = NULL;
    size_t len;
    char *value = rocksdb_get_cf(catalog->db, catalog->read, catalog->cf[CF_META], "format", 6, &len, &message);
    vc_status_t status = take_error(message, "read", err);
    if (status != VC_OK)
        return status;
    uint32_t format = value && len == 4 ? vc_le32(value) : 0;
    bool is_new = !value;
    rocksdb_free(value);
    if (!is_new && format != CS_CATALOG_FORMAT)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "the data directory has format %u, this program reads format %u",
                          format, CS_CATALOG_FORMAT);
    message = NULL;
    value = rocksdb_get_cf(catalog->db, catalog->read, catalog->cf[CF_META], "generation", 10, &len, &message);
    status = take_error(message, "read", err);
    catalog->generation = status == VC_OK && value && len == 8 ? vc_le64(value) : 0;
    rocksdb_free(value);
    return status;
}

static vc_status_t open_db(cs_catalog_t *catalog, const char *path, vc_err_t *err)
{
    const rocksdb_options_t *cf_options[N_CF];
    char *message = NULL;
    for (int i = 0; i < N_CF; i++)
        cf_options[i] = catalog->options;
    vc_status_t fault = cs_fault_status(cs_fault_hit("catalog.open"));
    if (fault != VC_OK)
        return vc_err_set(err, fault, "catalog open: injected failure");
    if (catalog->readonly)
        catalog->db = rocksdb_open_for_read_only_column_families(catalog->options, path, N_CF, cf_names, cf_options,
                                                                 catalog->cf, 0, &message);
    else
        catalog->db =
            rocksdb_open_column_families(catalog->options, path, N_CF, cf_names, cf_options, catalog->cf, &message);
    vc_status_t status = take_error(message, "open", err);
    if (status != VC_OK)
        catalog->db = NULL;
    /* The directory is made where it is missing, so it is one of the catalog's own files that is gone. */
    return status == VC_ERR_NOT_FOUND ? VC_ERR_CORRUPT : status;
}

vc_status_t cs_catalog_open(const char *data_dir, bool readonly, cs_catalog_t **catalog_p, vc_err_t *err)
{
    char path[4096];
    if (snprintf(path, sizeof(path), "%s/catalog", data_dir) >= (int)sizeof(path))
        return vc_err_set(err, VC_ERR_RANGE, "the path of the data directory is too long");
    if (readonly && access(path, R_OK | X_OK) != 0)
        return vc_err_set(err, VC_ERR_NOT_FOUND, "no catalog at %s: %s", path, strerror(errno));
    cs_catalog_t *catalog = vc_calloc(1, sizeof(*catalog));
    if (!catalog)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the catalog");
    catalog->readonly = readonly;
    catalog->options = make_options(readonly, err);
    catalog->batch = rocksdb_writebatch_create();
    catalog->write_sync = rocksdb_writeoptions_create();
    catalog->write_async = rocksdb_writeoptions_create();
    catalog->read = rocksdb_readoptions_create();
    catalog->flush = rocksdb_flushoptions_create();
    rocksdb_writeoptions_set_sync(catalog->write_sync, 1);
    rocksdb_flushoptions_set_wait(catalog->flush, 1);
    vc_status_t status = catalog->options ? open_db(catalog, path, err) : VC_ERR_INTERNAL;
    if (status == VC_OK)
        status = read_meta(catalog, err);
    if (status != VC_OK) {
        cs_catalog_close(catalog);
        return status;
    }
    *catalog_p = catalog;
    return VC_OK;
}

void cs_catalog_close(cs_catalog_t *catalog)
{
    if (!catalog)
        return;
    for (int i = 0; i < N_CF; i++) {
        if (catalog->cf[i])
            rocksdb_column_family_handle_destroy(catalog->cf[i]);
    }
    if (catalog->db)
        rocksdb_close(catalog->db);
    if (catalog->options)
        rocksdb_options_destroy(catalog->options);
    rocksdb_writebatch_destroy(catalog->batch);
    rocksdb_writeoptions_destroy(catalog->write_sync);
    rocksdb_writeoptions_destroy(catalog->write_async);
    rocksdb_readoptions_destroy(catalog->read);
    rocksdb_flushoptions_destroy(catalog->flush);
    vc_free(catalog);
}

uint64_t cs_catalog_generation(const cs_catalog_t *catalog) { return catalog->generation; }

/* ---- rows ---- */

static void encode_object(const cs_object_row_t *row, uint8_t value[OBJECT_VALUE_BYTES])
{
    vc_writer_t w = vc_writer(value, OBJECT_VALUE_BYTES);
    vc_write_u32(&w, row->segment);
    vc_write_u32(&w, row->version);
    vc_write_u64(&w, row->offset);
    vc_write_u32(&w, row->bytes);
    vc_write_u32(&w, row->header_crc);
    vc_write_u32(&w, row->block_index);
    vc_write_u32(&w, row->prefix);
    vc_write_u32(&w, row->stored_s);
    vc_write_u32(&w, 0);
    vc_write_bytes(&w, row->parent_fp, 8);
    vc_write_bytes(&w, row->keyspace.b, VC_DIGEST_BYTES);
}

static bool decode_object(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len, cs_object_row_t *row)
{
    if (key_len != OBJECT_KEY_BYTES || len != OBJECT_VALUE_BYTES)
        return false;
    vc_reader_t r = vc_reader(value, len);
    memcpy(&row->key, key, OBJECT_KEY_BYTES);
    row->segment = vc_read_u32(&r);
    row->version = vc_read_u32(&r);
    row->offset = vc_read_u64(&r);
    row->bytes = vc_read_u32(&r);
    row->header_crc = vc_read_u32(&r);
    row->block_index = vc_read_u32(&r);
    row->prefix = vc_read_u32(&r);
    row->stored_s = vc_read_u32(&r);
    (void)vc_read_u32(&r);
    memcpy(row->parent_fp, vc_read_bytes(&r, 8), 8);
    memcpy(row->keyspace.b, vc_read_bytes(&r, VC_DIGEST_BYTES), VC_DIGEST_BYTES);
    return row->key.fidelity == VC_FIDELITY_FULL || row->key.fidelity == VC_FIDELITY_COMPRESSED;
}

static bool decode_segment(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len, cs_segment_row_t *row)
{
    if (key_len != 4 || len != SEGMENT_VALUE_BYTES)
        return false;
    row->number = vc_le32(key);
    row->version = vc_le32(value);
    row->bytes = vc_le64(value + 8);
    return true;
}

static bool decode_prefix(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len, cs_prefix_row_t *row)
{
    if (key_len != 4 || len < 72)
        return false;
    vc_reader_t r = vc_reader(value, len);
    row->id = vc_le32(key);
    memcpy(row->keyspace.b, vc_read_bytes(&r, VC_DIGEST_BYTES), VC_DIGEST_BYTES);
    memcpy(row->tip.b, vc_read_bytes(&r, VC_DIGEST_BYTES), VC_DIGEST_BYTES);
    row->n_blocks = vc_read_u32(&r);
    row->n_head_tokens = vc_read_u32(&r);
    if (row->n_head_tokens > CS_HEAD_TOKENS || vc_reader_left(&r) != 4 * (size_t)row->n_head_tokens)
        return false;
    for (uint32_t i = 0; i < row->n_head_tokens; i++)
        row->head_tokens[i] = vc_read_u32(&r);
    return true;
}

static bool visit(const cs_catalog_visitor_t *v, int cf, const uint8_t *key, size_t key_len, const uint8_t *value,
                  size_t len)
{
    union {
        cs_object_row_t object;
        cs_segment_row_t segment;
        cs_prefix_row_t prefix;
        vc_keyspace_t keyspace;
    } row;
    memset(&row, 0, sizeof(row));
    if (cf == CF_OBJECTS && decode_object(key, key_len, value, len, &row.object)) {
        v->object(v->arg, &row.object);
    } else if (cf == CF_SEGMENTS && decode_segment(key, key_len, value, len, &row.segment)) {
        v->segment(v->arg, &row.segment);
    } else if (cf == CF_PREFIXES && decode_prefix(key, key_len, value, len, &row.prefix)) {
        v->prefix(v->arg, &row.prefix);
    } else if (cf == CF_KEYSPACES && key_len == VC_DIGEST_BYTES &&
               vc_keyspace_decode(value, len, &row.keyspace, NULL) == VC_OK) {
        vc_digest_t id;
        memcpy(id.b, key, VC_DIGEST_BYTES);
        v->keyspace(v->arg, &id, &row.keyspace);
    } else {
        return false;
    }
    return true;
}

vc_status_t cs_catalog_scan(cs_catalog_t *catalog, const cs_catalog_visitor_t *visitor, vc_err_t *err)
{
    /* Objects last: they are checked against the other kinds. */
    static const int order[] = {CF_SEGMENTS, CF_KEYSPACES, CF_PREFIXES, CF_OBJECTS};
    for (size_t k = 0; k < VC_ARRAY_LEN(order); k++) {
        int cf = order[k];
        rocksdb_iterator_t *it = rocksdb_create_iterator_cf(catalog->db, catalog->read, catalog->cf[cf]);
        for (rocksdb_iter_seek_to_first(it); rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
            size_t key_len, len;
            const char *key = rocksdb_iter_key(it, &key_len);
            const char *value = rocksdb_iter_value(it, &len);
            if (!visit(visitor, cf, (const uint8_t *)key, key_len, (const uint8_t *)value, len) && visitor->bad)
                visitor->bad(visitor->arg, cf_names[cf]);
        }
        char *message = NULL;
        rocksdb_iter_get_error(it, &message);
        rocksdb_iter_destroy(it);
        vc_status_t status = take_error(message, "scan", err);
        if (status != VC_OK)
            return status;
    }
    return VC_OK;
}

/* ---- the batch ---- */

static void put(cs_catalog_t *catalog, int cf, const void *key, size_t key_len, const void *value, size_t len)
{
    rocksdb_writebatch_put_cf(catalog->batch, catalog->cf[cf], key, key_len, value, len);
}

static void del(cs_catalog_t *catalog, int cf, const void *key, size_t key_len)
{
    rocksdb_writebatch_delete_cf(catalog->batch, catalog->cf[cf], key, key_len);
}

void cs_catalog_put_object(cs_catalog_t *catalog, const cs_object_row_t *row)
{
    uint8_t value[OBJECT_VALUE_BYTES];
    encode_object(row, value);
    put(catalog, CF_OBJECTS, &row->key, OBJECT_KEY_BYTES, value, sizeof(value));
}

void cs_catalog_delete_object(cs_catalog_t *catalog, const vc_object_key_t *key)
{
    del(catalog, CF_OBJECTS, key, OBJECT_KEY_BYTES);
}

void cs_catalog_put_segment(cs_catalog_t *catalog, const cs_segment_row_t *row)
{
    uint8_t key[4], value[SEGMENT_VALUE_BYTES] = {0};
    vc_put_le32(key, row->number);
    vc_put_le32(value, row->version);
    vc_put_le64(value + 8, row->bytes);
    put(catalog, CF_SEGMENTS, key, sizeof(key), value, sizeof(value));
}

void cs_catalog_delete_segment(cs_catalog_t *catalog, uint32_t number)
{
    uint8_t key[4];
    vc_put_le32(key, number);
    del(catalog, CF_SEGMENTS, key, sizeof(key));
}

vc_status_t cs_catalog_put_keyspace(cs_catalog_t *catalog, const vc_digest_t *id, const vc_keyspace_t *ks)
{
    uint8_t value[VC_KEYSPACE_ENC_MAX];
    size_t len;
    vc_status_t status = vc_keyspace_encode(ks, value, &len, NULL);
    if (status == VC_OK)
        put(catalog, CF_KEYSPACES, id->b, VC_DIGEST_BYTES, value, len);
    return status;
}

void cs_catalog_delete_keyspace(cs_catalog_t *catalog, const vc_digest_t *id)
{
    del(catalog, CF_KEYSPACES, id->b, VC_DIGEST_BYTES);
}

void cs_catalog_put_prefix(cs_catalog_t *catalog, const cs_prefix_row_t *row)
{
    uint8_t key[4], value[PREFIX_VALUE_BYTES];
    vc_writer_t w = vc_writer(value, sizeof(value));
    vc_put_le32(key, row->id);
    vc_write_bytes(&w, row->keyspace.b, VC_DIGEST_BYTES);
    vc_write_bytes(&w, row->tip.b, VC_DIGEST_BYTES);
    vc_write_u32(&w, row->n_blocks);
    vc_write_u32(&w, row->n_head_tokens);
    for (uint32_t i = 0; i < row->n_head_tokens && i < CS_HEAD_TOKENS; i++)
        vc_write_u32(&w, row->head_tokens[i]);
    put(catalog, CF_PREFIXES, key, sizeof(key), value, (size_t)(w.p - value));
}

void cs_catalog_delete_prefix(cs_catalog_t *catalog, uint32_t id)
{
    uint8_t key[4];
    vc_put_le32(key, id);
    del(catalog, CF_PREFIXES, key, sizeof(key));
}

void cs_catalog_put_generation(cs_catalog_t *catalog, uint64_t generation)
{
    uint8_t format[4], value[8];
    vc_put_le32(format, CS_CATALOG_FORMAT);
    vc_put_le64(value, generation);
    put(catalog, CF_META, "format", 6, format, sizeof(format));
    put(catalog, CF_META, "generation", 10, value, sizeof(value));
}

vc_status_t cs_catalog_write(cs_catalog_t *catalog, bool sync, vc_err_t *err)
{
    char *message = NULL;
    vc_status_t status = cs_fault_status(cs_fault_hit("catalog.write"));
    if (status != VC_OK)
        vc_err_set(err, status, "catalog write: injected failure");
    else if (catalog->readonly)
        status = vc_err_set(err, VC_ERR_READONLY, "the catalog is open read-only");
    else
        rocksdb_write(catalog->db, sync ? catalog->write_sync : catalog->write_async, catalog->batch, &message);
    cs_catalog_drop_batch(catalog);
    return message ? take_error(message, "write", err) : status;
}

void cs_catalog_drop_batch(cs_catalog_t *catalog) { rocksdb_writebatch_clear(catalog->batch); }

vc_status_t cs_catalog_flush(cs_catalog_t *catalog, vc_err_t *err)
{
    vc_status_t fault = cs_fault_status(cs_fault_hit("catalog.flush"));
    if (fault != VC_OK)
        return vc_err_set(err, fault, "catalog flush: injected failure");
    for (int i = 0; i < N_CF && !catalog->readonly; i++) {
        char *message = NULL;
        rocksdb_flush_cf(catalog->db, catalog->flush, catalog->cf[i], &message);
        vc_status_t status = take_error(message, "flush", err);
        if (status != VC_OK)
            return status;
    }
    return VC_OK;
}

uint64_t cs_catalog_disk_bytes(const char *data_dir)
{
    char path[4096];
    uint64_t bytes = 0;
    struct dirent *item;
    struct stat st;
    if (snprintf(path, sizeof(path), "%s/catalog", data_dir) >= (int)sizeof(path))
        return 0;
    DIR *list = opendir(path);
    while (list && (item = readdir(list))) {
        if (fstatat(dirfd(list), item->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && strcmp(item->d_name, "..") != 0)
            bytes += VC_MAX((uint64_t)st.st_blocks * 512u, S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0);
    }
    if (list)
        closedir(list);
    return bytes;
}
