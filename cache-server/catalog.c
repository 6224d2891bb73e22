/*
 * RocksDB behind catalog.h. Column families: default (format, generation), objects, segments, keyspaces, prefixes,
 * pins, uses. Values are little-endian and fixed in size; README.md has them byte by byte. Errors of the C API are
 * turned into our status here and freed.
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

#include "catalog_rows.h"
#include "fault.h"
#include "vc/bytes.h"
#include "vc/log.h"
#include "vc/mem.h"

enum { CF_META, CF_OBJECTS, CF_SEGMENTS, CF_KEYSPACES, CF_PREFIXES, CF_PINS, CF_USES, N_CF };
static const char *const cf_names[N_CF] = {"default", "objects", "segments", "keyspaces", "prefixes", "pins", "uses"};

struct cs_catalog {
    rocksdb_t *db;
    rocksdb_column_family_handle_t *cf[N_CF];
    rocksdb_options_t *options;
    rocksdb_writebatch_t *batch;
    rocksdb_writeoptions_t *write_sync, *write_async;
    rocksdb_readoptions_t *read;
    rocksdb_flushoptions_t *flush;
    uint64_t generation;
    uint32_t format; /* 0: a new one */
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

typedef enum { OPEN_WRITE, OPEN_READ, OPEN_READ_SOME, OPEN_OFFLINE } open_mode_t;

/* Small everywhere: the catalog is a few hundred bytes an object, and its files count against the capacity. */
static rocksdb_options_t *make_options(open_mode_t mode, vc_err_t *err)
{
    static const char text[] = "write_buffer_size=1048576;max_write_buffer_number=2;target_file_size_base=4194304;"
                               "max_bytes_for_level_base=16777216;level0_file_num_compaction_trigger=4;"
                               "compression=kNoCompression;max_total_wal_size=4194304;db_write_buffer_size=4194304;"
                               "max_manifest_file_size=1048576;manifest_preallocation_size=65536;"
                               "keep_log_file_num=2;max_log_file_size=262144;max_open_files=64;max_background_jobs=2;"
                               "allow_fallocate=false;paranoid_checks=true;stats_dump_period_sec=0;"
                               "stats_persist_period_sec=0;max_compaction_bytes=33554432";
    rocksdb_options_t *base = rocksdb_options_create();
    rocksdb_options_t *options = rocksdb_options_create();
    char *message = NULL;
    rocksdb_get_options_from_string(base, text, options, &message);
    rocksdb_options_destroy(base);
    if (take_error(message, "options", err) != VC_OK) {
        rocksdb_options_destroy(options);
        return NULL;
    }
    /* A log that ends inside a record is what a kill leaves. Damage further up would cost all rows behind it without a
     * word: then the catalog is not opened, and made anew by who can; who can only read takes what is before it. */
    rocksdb_options_set_wal_recovery_mode(options, mode == OPEN_WRITE || mode == OPEN_READ
                                                       ? rocksdb_tolerate_corrupted_tail_records_recovery
                                                       : rocksdb_point_in_time_recovery);
    rocksdb_options_set_create_if_missing(options, mode == OPEN_WRITE);
    rocksdb_options_set_create_missing_column_families(options, mode == OPEN_WRITE);
    if (mode == OPEN_OFFLINE) /* its LOG can be made nowhere, so it makes none */
        rocksdb_options_set_db_log_dir(options, "/dev/null/none");
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
    catalog->format = format;
    rocksdb_free(value);
    if (!is_new && (format < CS_CATALOG_FORMAT_OLDEST || format > CS_CATALOG_FORMAT))
        return vc_err_set(err, VC_ERR_UNSUPPORTED,
                          "the data directory has format %u, this program reads format %u to format %u", format,
                          CS_CATALOG_FORMAT_OLDEST, CS_CATALOG_FORMAT);
    message = NULL;
    value = rocksdb_get_cf(catalog->db, catalog->read, catalog->cf[CF_META], "generation", 10, &len, &message);
    status = take_error(message, "read", err);
    catalog->generation = status == VC_OK && value && len == 8 ? vc_le64(value) : 0;
    rocksdb_free(value);
    return status;
}

/* The names of those that the directory has, in our order; a read-only open takes no others. */
static int known_families(const cs_catalog_t *catalog, const char *path, const char *names[N_CF], int which[N_CF])
{
    size_t n_there = 0;
    char *message = NULL;
    char **there = rocksdb_list_column_families(catalog->options, path, &n_there, &message);
    int n = 0;
    for (int i = 0; i < N_CF; i++) {
        bool is_there = message != NULL; /* the open will say what is wrong */
        for (size_t k = 0; !message && k < n_there; k++)
            is_there = is_there || strcmp(there[k], cf_names[i]) == 0;
        if (is_there) {
            names[n] = cf_names[i];
            which[n++] = i;
        }
    }
    if (there)
        rocksdb_list_column_families_destroy(there, n_there);
    rocksdb_free(message);
    return n;
}

static void open_readonly(cs_catalog_t *catalog, const char *path, const rocksdb_options_t *const *cf_options,
                          char **message)
{
    const char *names[N_CF];
    int which[N_CF];
    rocksdb_column_family_handle_t *handles[N_CF] = {0};
    int n = known_families(catalog, path, names, which);
    catalog->db =
        rocksdb_open_for_read_only_column_families(catalog->options, path, n, names, cf_options, handles, 0, message);
    for (int i = 0; i < n && !*message; i++)
        catalog->cf[which[i]] = handles[i];
}

static vc_status_t open_db(cs_catalog_t *catalog, const char *path, open_mode_t mode, vc_err_t *err)
{
    const rocksdb_options_t *cf_options[N_CF];
    char *message = NULL;
    for (int i = 0; i < N_CF; i++)
        cf_options[i] = catalog->options;
    vc_status_t fault = mode == OPEN_OFFLINE ? VC_OK : cs_fault_status(cs_fault_hit("catalog.open"));
    if (fault != VC_OK)
        return vc_err_set(err, fault, "catalog open: injected failure");
    if (catalog->readonly)
        open_readonly(catalog, path, cf_options, &message);
    else
        catalog->db =
            rocksdb_open_column_families(catalog->options, path, N_CF, cf_names, cf_options, catalog->cf, &message);
    vc_status_t status = take_error(message, "open", err);
    if (status != VC_OK)
        catalog->db = NULL;
    /* The directory is made where it is missing, so it is one of the catalog's own files that is gone. */
    return status == VC_ERR_NOT_FOUND ? VC_ERR_CORRUPT : status;
}

/* RocksDB would wait for ever for somebody to write into a pipe that has the name of one of its files. */
static vc_status_t refuse_pipes(const char *path, vc_err_t *err)
{
    DIR *list = opendir(path);
    struct dirent *item;
    struct stat st;
    vc_status_t status = VC_OK;
    while (list && status == VC_OK && (item = readdir(list))) {
        if (fstatat(dirfd(list), item->d_name, &st, 0) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
            status = vc_err_set(err, VC_ERR_CORRUPT, "catalog open: %s/%s is no regular file", path, item->d_name);
    }
    if (list)
        closedir(list);
    return status;
}

static vc_status_t catalog_open(const char *data_dir, open_mode_t mode, cs_catalog_t **catalog_p, vc_err_t *err)
{
    char path[4096];
    if (snprintf(path, sizeof(path), "%s/catalog", data_dir) >= (int)sizeof(path))
        return vc_err_set(err, VC_ERR_RANGE, "the path of the data directory is too long");
    if (mode != OPEN_WRITE && access(path, R_OK | X_OK) != 0)
        return vc_err_set(err, VC_ERR_NOT_FOUND, "no catalog at %s: %s", path, strerror(errno));
    vc_status_t status = refuse_pipes(path, err);
    if (status != VC_OK)
        return status;
    cs_catalog_t *catalog = vc_calloc(1, sizeof(*catalog));
    if (!catalog)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the catalog");
    catalog->readonly = mode != OPEN_WRITE;
    catalog->options = make_options(mode, err);
    catalog->batch = rocksdb_writebatch_create();
    catalog->write_sync = rocksdb_writeoptions_create();
    catalog->write_async = rocksdb_writeoptions_create();
    catalog->read = rocksdb_readoptions_create();
    catalog->flush = rocksdb_flushoptions_create();
    rocksdb_writeoptions_set_sync(catalog->write_sync, 1);
    rocksdb_flushoptions_set_wait(catalog->flush, 1);
    status = catalog->options ? open_db(catalog, path, mode, err) : VC_ERR_INTERNAL;
    if (status == VC_OK)
        status = read_meta(catalog, err);
    if (status != VC_OK) {
        cs_catalog_close(catalog);
        return status;
    }
    *catalog_p = catalog;
    return VC_OK;
}

vc_status_t cs_catalog_open(const char *data_dir, bool readonly, cs_catalog_t **catalog_p, vc_err_t *err)
{
    if (!readonly)
        return catalog_open(data_dir, OPEN_WRITE, catalog_p, err);
    vc_err_t why;
    vc_status_t status = catalog_open(data_dir, OPEN_READ, catalog_p, &why);
    if (status != VC_ERR_CORRUPT)
        return status == VC_OK ? VC_OK : vc_err_set(err, status, "%s", why.msg);
    status = catalog_open(data_dir, OPEN_READ_SOME, catalog_p, err);
    if (status == VC_OK)
        vc_log_warn("catalog", "what was committed behind the damage is not served reason=\"%s\"", why.msg);
    return status;
}

vc_status_t cs_catalog_open_offline(const char *data_dir, cs_catalog_t **catalog_p, vc_err_t *err)
{
    return catalog_open(data_dir, OPEN_OFFLINE, catalog_p, err);
}

vc_status_t cs_catalog_check_format(const char *data_dir, vc_err_t *err)
{
    cs_catalog_t *catalog;
    vc_err_t why;
    vc_status_t status = catalog_open(data_dir, OPEN_OFFLINE, &catalog, &why);
    if (status == VC_OK)
        cs_catalog_close(catalog);
    if (status != VC_ERR_UNSUPPORTED)
        return VC_OK;
    return vc_err_set(err, status, "%s: %s and leaves it as it is", data_dir, why.msg);
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

uint32_t cs_catalog_format(const cs_catalog_t *catalog) { return catalog->format; }

void cs_catalog_each_table(const cs_catalog_t *catalog, cs_catalog_table_fn fn, void *arg)
{
    const rocksdb_livefiles_t *live = rocksdb_livefiles(catalog->db);
    for (int i = 0; live && i < rocksdb_livefiles_count(live); i++) {
        const char *table = rocksdb_livefiles_name(live, i);
        fn(arg, table + (table[0] == '/'));
    }
    if (live)
        rocksdb_livefiles_destroy(live);
}

/* ---- rows ---- */

static bool visit(const cs_catalog_visitor_t *v, int cf, const uint8_t *key, size_t key_len, const uint8_t *value,
                  size_t len)
{
    union {
        cs_object_row_t object;
        cs_segment_row_t segment;
        cs_prefix_row_t prefix;
        vc_keyspace_t keyspace;
        vc_object_key_t pin;
        cs_uses_row_t uses;
    } row;
    vc_digest_t id;
    if (cf == CF_OBJECTS && cs_row_decode_object(key, key_len, value, len, &row.object))
        v->object(v->arg, &row.object);
    else if (cf == CF_SEGMENTS && cs_row_decode_segment(key, key_len, value, len, &row.segment))
        v->segment(v->arg, &row.segment);
    else if (cf == CF_PREFIXES && cs_row_decode_prefix(key, key_len, value, len, &row.prefix))
        v->prefix(v->arg, &row.prefix);
    else if (cf == CF_KEYSPACES && cs_row_decode_keyspace(key, key_len, value, len, &id, &row.keyspace))
        v->keyspace(v->arg, &id, &row.keyspace);
    else if (cf == CF_PINS && cs_row_decode_pin(key, key_len, value, len, &row.pin))
        v->pin(v->arg, &row.pin);
    else if (cf == CF_USES && cs_row_decode_uses(key, key_len, value, len, &row.uses))
        v->uses(v->arg, &row.uses);
    else
        return false;
    return true;
}

vc_status_t cs_catalog_scan(cs_catalog_t *catalog, const cs_catalog_visitor_t *visitor, vc_err_t *err)
{
    /* Objects are checked against the kinds before them; those behind are about objects. */
    static const int order[] = {CF_SEGMENTS, CF_KEYSPACES, CF_PREFIXES, CF_OBJECTS, CF_PINS, CF_USES};
    for (size_t k = 0; k < VC_ARRAY_LEN(order); k++) {
        int cf = order[k];
        if (!catalog->cf[cf] || (cf == CF_PINS && !visitor->pin) || (cf == CF_USES && !visitor->uses))
            continue; /* written before there was such a family, or not asked for */
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
    uint8_t value[CS_ROW_OBJECT_BYTES];
    cs_row_encode_object(row, value);
    put(catalog, CF_OBJECTS, &row->key, CS_ROW_OBJECT_KEY_BYTES, value, sizeof(value));
}

void cs_catalog_delete_object(cs_catalog_t *catalog, const vc_object_key_t *key)
{
    del(catalog, CF_OBJECTS, key, CS_ROW_OBJECT_KEY_BYTES);
}

void cs_catalog_put_segment(cs_catalog_t *catalog, const cs_segment_row_t *row)
{
    uint8_t key[4], value[CS_ROW_SEGMENT_BYTES];
    vc_put_le32(key, row->number);
    cs_row_encode_segment(row, value);
    put(catalog, CF_SEGMENTS, key, sizeof(key), value, sizeof(value));
}

void cs_catalog_delete_segment(cs_catalog_t *catalog, uint32_t number)
{
    uint8_t key[4];
    vc_put_le32(key, number);
    del(catalog, CF_SEGMENTS, key, sizeof(key));
    del(catalog, CF_USES, key, sizeof(key));
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
    uint8_t key[4], value[CS_ROW_PREFIX_MAX_BYTES];
    vc_put_le32(key, row->id);
    put(catalog, CF_PREFIXES, key, sizeof(key), value, cs_row_encode_prefix(row, value));
}

void cs_catalog_delete_prefix(cs_catalog_t *catalog, uint32_t id)
{
    uint8_t key[4];
    vc_put_le32(key, id);
    del(catalog, CF_PREFIXES, key, sizeof(key));
}

void cs_catalog_put_pin(cs_catalog_t *catalog, const vc_object_key_t *key, uint32_t pinned_s)
{
    uint8_t value[CS_ROW_PIN_BYTES];
    cs_row_encode_pin(pinned_s, value);
    put(catalog, CF_PINS, key, CS_ROW_OBJECT_KEY_BYTES, value, sizeof(value));
}

void cs_catalog_delete_pin(cs_catalog_t *catalog, const vc_object_key_t *key)
{
    del(catalog, CF_PINS, key, CS_ROW_OBJECT_KEY_BYTES);
}

vc_status_t cs_catalog_put_uses(cs_catalog_t *catalog, uint32_t number, uint32_t version, const cs_use_t *uses,
                                uint32_t n)
{
    uint8_t key[4];
    size_t len = CS_ROW_USES_HEAD_BYTES + (size_t)n * CS_ROW_USE_BYTES;
    uint8_t *value = vc_alloc(len);
    if (!value)
        return VC_ERR_NOMEM;
    vc_put_le32(key, number);
    cs_row_encode_uses(version, uses, n, value);
    put(catalog, CF_USES, key, sizeof(key), value, len);
    vc_free(value);
    return VC_OK;
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
