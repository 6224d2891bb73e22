/* The steps of a rebuild. See rebuild.h. */
#include "rebuild.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fault_file.h"
#include "keyspace_file.h"
#include "rebuild_int.h"
#include "vc/clock.h"
#include "vc/log.h"
#include "vc/mem.h"

#define ROW_BYTES 512u /* of one object in the new catalog, its share of everything included */
#define ROWS_PER_BATCH 1024u
#define DAMAGED_MAX 1000

static bool path_of(const char *data_dir, const char *name, char path[4096])
{
    return snprintf(path, 4096, "%s/%s", data_dir, name) < 4096;
}

bool rebuild_grow(void **items, uint32_t *cap, uint32_t n, size_t item_bytes)
{
    if (n < *cap)
        return true;
    uint32_t more = *cap ? (*cap > UINT32_MAX / 2 ? 0 : *cap * 2) : 64;
    void *bigger = more ? vc_realloc(*items, more, item_bytes) : NULL;
    if (!bigger)
        return false;
    *items = bigger;
    *cap = more;
    return true;
}

/* ---- what other files say ---- */

struct rebuild_ks *rebuild_find_keyspace(const rebuild_t *r, const vc_digest_t *id)
{
    for (uint32_t i = 0; i < r->n_keyspaces; i++) {
        if (memcmp(&r->keyspaces[i].id, id, sizeof(*id)) == 0)
            return &r->keyspaces[i];
    }
    return NULL;
}

void rebuild_add_keyspace(rebuild_t *r, const vc_digest_t *id, const vc_keyspace_t *ks)
{
    if (rebuild_find_keyspace(r, id))
        return;
    if (!rebuild_grow((void **)&r->keyspaces, &r->cap_keyspaces, r->n_keyspaces, sizeof(*r->keyspaces))) {
        r->status = VC_ERR_NOMEM;
        return;
    }
    r->keyspaces[r->n_keyspaces++] = (struct rebuild_ks){.id = *id, .ks = *ks};
}

static void on_keyspace(void *arg, const vc_digest_t *id, const vc_keyspace_t *ks)
{
    rebuild_add_keyspace(arg, id, ks);
}

static void on_object(void *arg, const cs_object_row_t *row) { (void)arg, (void)row; }
static void on_segment(void *arg, const cs_segment_row_t *row) { (void)arg, (void)row; }
static void on_prefix(void *arg, const cs_prefix_row_t *row) { (void)arg, (void)row; }

/* One whose object is not found again goes at the first start. */
static void on_pin(void *arg, const vc_object_key_t *key)
{
    rebuild_t *r = arg;
    if (!rebuild_grow((void **)&r->pins, &r->cap_pins, r->n_pins, sizeof(*r->pins)))
        r->status = VC_ERR_NOMEM;
    else
        r->pins[r->n_pins++] = *key;
}

/* What the damaged catalog still tells: keyspaces, which prove themselves by their ids, and what is pinned. Nothing is
 * taken on trust that says where bytes are. */
static void ask_old_catalog(rebuild_t *r, const char *data_dir)
{
    vc_err_t why;
    cs_catalog_t *old = NULL;
    cs_catalog_visitor_t visitor = {.object = on_object,
                                    .segment = on_segment,
                                    .keyspace = on_keyspace,
                                    .prefix = on_prefix,
                                    .arg = r,
                                    .pin = on_pin};
    if (cs_catalog_open_offline(data_dir, &old, &why) != VC_OK)
        return;
    r->generation = cs_catalog_generation(old);
    r->report.old_read = cs_catalog_scan(old, &visitor, &why) == VC_OK;
    cs_catalog_close(old);
}

static vc_status_t ask_keyspace_file(rebuild_t *r, const char *data_dir)
{
    vc_err_t why;
    uint32_t n_damaged = 0;
    if (cs_keyspace_file_load(data_dir, on_keyspace, r, &n_damaged, &why) != VC_OK)
        vc_log_warn("store", "keyspace file not read reason=\"%s\"", why.msg);
    if (n_damaged > 0)
        vc_log_warn("store", "keyspace file is damaged places=%u", n_damaged);
    return r->status;
}

/* ---- the segments ---- */

typedef struct numbers {
    uint32_t *items, n, cap;
    bool is_full;
} numbers_t;

static void note_number(void *arg, uint32_t number, uint64_t bytes)
{
    numbers_t *numbers = arg;
    (void)bytes;
    if (!rebuild_grow((void **)&numbers->items, &numbers->cap, numbers->n, sizeof(*numbers->items)))
        numbers->is_full = true;
    else
        numbers->items[numbers->n++] = number;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* A file that cannot be opened now may be sound: without its rows the next start would write over it. */
static vc_status_t walk_one(rebuild_t *r, cs_segdir_t *dir, uint32_t number, vc_err_t *err)
{
    vc_err_t why;
    cs_segment_t segment;
    uint32_t version = 0, n_before = r->n_rows;
    vc_status_t status = cs_segment_open(dir, number, &segment, err);
    if (status != VC_OK)
        return status == VC_ERR_NOT_FOUND ? VC_OK : status;
    bool has_header = cs_segment_read_header(&segment, &version, &why) == VC_OK;
    if (!has_header)
        version = 1; /* there are no older rows that it could be taken for */
    rebuild_walk(r, &segment, version);
    bool is_used = r->n_rows > n_before;
    if (is_used && !has_header && cs_segment_recycle(&segment, version, &why) != VC_OK)
        vc_log_warn("store", "segment header not written reason=\"%s\"", why.msg);
    cs_segment_close(&segment);
    r->report.segments++;
    if (!is_used)
        return VC_OK;
    if (!rebuild_grow((void **)&r->segments, &r->cap_segments, r->n_segments, sizeof(*r->segments)))
        r->status = VC_ERR_NOMEM;
    else
        r->segments[r->n_segments++] = (cs_segment_row_t){.number = number, .version = version, .bytes = segment.bytes};
    return VC_OK;
}

static vc_status_t walk_all(rebuild_t *r, const char *data_dir, vc_err_t *err)
{
    cs_segdir_t *dir;
    numbers_t numbers = {0};
    vc_status_t status = cs_segdir_open(data_dir, false, &dir, err);
    if (status != VC_OK)
        return status;
    status = cs_segdir_list(dir, note_number, &numbers, err);
    if (status == VC_OK && numbers.is_full)
        r->status = VC_ERR_NOMEM;
    if (numbers.n > 0) /* of two copies of an object the same one is taken every time */
        qsort(numbers.items, numbers.n, sizeof(*numbers.items), by_number);
    for (uint32_t i = 0; i < numbers.n && status == VC_OK && r->status == VC_OK; i++)
        status = walk_one(r, dir, numbers.items[i], err);
    vc_free(numbers.items);
    cs_segdir_close(dir);
    if (status == VC_OK && r->status == VC_OK)
        r->status = rebuild_chains(r);
    return status == VC_OK && r->status != VC_OK ? vc_err_set(err, r->status, "no memory for the rebuild") : status;
}

/* ---- the new catalog ---- */

static vc_status_t write_full_batch(cs_catalog_t *catalog, uint32_t *n_p, bool last, vc_err_t *err)
{
    if (!last && ++*n_p < ROWS_PER_BATCH)
        return VC_OK;
    *n_p = 0;
    (void)cs_fault_hit("rebuild.write");
    return cs_catalog_write(catalog, last, err);
}

static vc_status_t write_rows(const rebuild_t *r, cs_catalog_t *catalog, vc_err_t *err)
{
    vc_status_t status = VC_OK;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_segments && status == VC_OK; i++) {
        cs_catalog_put_segment(catalog, &r->segments[i]);
        status = write_full_batch(catalog, &n, false, err);
    }
    for (uint32_t i = 0; i < r->n_keyspaces && status == VC_OK; i++) {
        if (r->keyspaces[i].objects == 0)
            continue;
        status = cs_catalog_put_keyspace(catalog, &r->keyspaces[i].id, &r->keyspaces[i].ks);
        if (status == VC_OK)
            status = write_full_batch(catalog, &n, false, err);
    }
    for (uint32_t i = 0; i < r->n_prefixes && status == VC_OK; i++) {
        cs_catalog_put_prefix(catalog, &r->prefixes[i]);
        status = write_full_batch(catalog, &n, false, err);
    }
    for (uint32_t i = 0; i < r->n_rows && status == VC_OK; i++) {
        cs_catalog_put_object(catalog, &r->rows[i]);
        status = write_full_batch(catalog, &n, false, err);
    }
    for (uint32_t i = 0; i < r->n_pins && status == VC_OK; i++) {
        cs_catalog_put_pin(catalog, &r->pins[i], r->stored_s);
        status = write_full_batch(catalog, &n, false, err);
    }
    if (status != VC_OK)
        return status;
    cs_catalog_put_generation(catalog, r->generation);
    return write_full_batch(catalog, &n, true, err);
}

static vc_status_t fill_new(const rebuild_t *r, const char *staging, vc_err_t *err)
{
    cs_catalog_t *catalog;
    if (mkdir(staging, 0700) != 0 && errno != EEXIST)
        return vc_err_set(err, vc_status_from_errno(errno), "cannot make %s: %s", staging, strerror(errno));
    vc_status_t status = cs_catalog_open(staging, false, &catalog, err);
    if (status != VC_OK)
        return status;
    status = write_rows(r, catalog, err);
    if (status == VC_OK)
        status = cs_catalog_flush(catalog, err);
    cs_catalog_close(catalog);
    return status;
}

/* RocksDB aborts where a log record finds no room: better not to begin. The ballast is there for such days. */
static vc_status_t find_room(const rebuild_t *r, const char *data_dir, vc_err_t *err)
{
    struct statvfs fs;
    char ballast[4096];
    uint64_t wanted = (uint64_t)r->n_rows * ROW_BYTES + CS_CATALOG_UNFLUSHED_BYTES, free_bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass > 0 && path_of(data_dir, "ballast", ballast))
            unlink(ballast);
        if (statvfs(data_dir, &fs) == 0)
            free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
        if (free_bytes >= wanted)
            return VC_OK;
    }
    return vc_err_set(err, VC_ERR_NOSPACE, "a new catalog for %s needs %llu bytes, %llu are free", data_dir,
                      (unsigned long long)wanted, (unsigned long long)free_bytes);
}

static vc_status_t move(const char *from, const char *to, vc_err_t *err)
{
    if (rename(from, to) == 0)
        return VC_OK;
    return vc_err_set(err, vc_status_from_errno(errno), "cannot rename %s: %s", from, strerror(errno));
}

/* In one step, where the file system can: a kill then leaves a whole catalog, and the pins with it. */
static vc_status_t exchange(const char *old, const char *aside, const char *fresh, vc_err_t *err)
{
    bool is_whole = renameat2(AT_FDCWD, fresh, AT_FDCWD, old, RENAME_EXCHANGE) == 0;
    vc_status_t status = is_whole ? VC_OK : move(old, aside, err);
    (void)cs_fault_hit("rebuild.swap");
    return status != VC_OK ? status : is_whole ? move(fresh, aside, err) : move(fresh, old, err);
}

static vc_status_t swap(const char *data_dir, vc_err_t *err)
{
    char old[4096], aside[4096 + 32], fresh[4096];
    struct stat st;
    int n = 1;
    if (!path_of(data_dir, "catalog", old) || !path_of(data_dir, "rebuild/catalog", fresh))
        return vc_err_set(err, VC_ERR_RANGE, "the path of the data directory is too long");
    do
        snprintf(aside, sizeof(aside), "%s.damaged-%d", old, n);
    while (lstat(aside, &st) == 0 && n++ < DAMAGED_MAX);
    bool has_old = lstat(old, &st) == 0;
    if (!has_old)
        (void)cs_fault_hit("rebuild.swap");
    vc_status_t status = has_old ? exchange(old, aside, fresh, err) : move(fresh, old, err);
    if (status != VC_OK)
        return status;
    int fd = open(data_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0)
        status = vc_err_set(err, vc_status_from_errno(errno), "cannot sync %s: %s", data_dir, strerror(errno));
    if (fd >= 0)
        close(fd);
    return status;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static void remove_tree(const char *path)
{
    struct stat st;
    if (lstat(path, &st) == 0 && nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) != 0)
        vc_log_warn("store", "left over and not removed path=%s reason=\"%s\"", path, strerror(errno));
}

void cs_rebuild_clean(const char *data_dir)
{
    char path[4096];
    if (path_of(data_dir, "rebuild", path))
        remove_tree(path);
    DIR *list = opendir(data_dir);
    struct dirent *item;
    while (list && (item = readdir(list))) {
        if (strncmp(item->d_name, "catalog.damaged-", 16) == 0 && path_of(data_dir, item->d_name, path))
            remove_tree(path);
    }
    if (list)
        closedir(list);
}

static void free_all(rebuild_t *r)
{
    vc_free(r->rows);
    vc_free(r->parents);
    vc_free(r->segments);
    vc_free(r->keyspaces);
    vc_free(r->prefixes);
    vc_free(r->heads);
    vc_free(r->pins);
}

vc_status_t cs_rebuild_catalog(const char *data_dir, cs_rebuild_report_t *report_p, vc_err_t *err)
{
    char staging[4096];
    rebuild_t r = {.stored_s = (uint32_t)(vc_clock_wall_us(vc_clock_system()) / 1000000u)};
    if (!path_of(data_dir, "rebuild", staging))
        return vc_err_set(err, VC_ERR_RANGE, "the path of the data directory is too long");
    remove_tree(staging);
    ask_old_catalog(&r, data_dir);
    vc_status_t status = ask_keyspace_file(&r, data_dir);
    if (status != VC_OK)
        vc_err_set(err, status, "no memory for the rebuild");
    if (status == VC_OK)
        status = walk_all(&r, data_dir, err);
    if (status == VC_OK)
        status = find_room(&r, data_dir, err);
    if (status == VC_OK)
        status = fill_new(&r, staging, err);
    if (status == VC_OK)
        status = swap(data_dir, err);
    r.report.objects = r.n_rows;
    r.report.prefixes = r.n_prefixes;
    r.report.pins = r.n_pins;
    for (uint32_t i = 0; i < r.n_keyspaces; i++)
        r.report.keyspaces += r.keyspaces[i].objects > 0;
    *report_p = r.report;
    free_all(&r);
    return status;
}

static void note_any(void *arg, uint32_t number, uint64_t bytes)
{
    (void)number;
    *(bool *)arg = *(bool *)arg || bytes > CS_SEGMENT_HEADER_BYTES;
}

bool cs_rebuild_is_needed(const char *data_dir)
{
    char path[4096];
    struct stat st;
    cs_segdir_t *dir;
    bool has_segments = false;
    if (!path_of(data_dir, "catalog/CURRENT", path) || lstat(path, &st) == 0 || errno != ENOENT)
        return false;
    if (cs_segdir_open(data_dir, true, &dir, NULL) != VC_OK)
        return false;
    (void)cs_segdir_list(dir, note_any, &has_segments, NULL);
    cs_segdir_close(dir);
    return has_segments;
}
