/* The order of the offline check, the directory around it, and the report. See verify.h. */
#include "verify.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "keyspace_file.h"
#include "vc/mem.h"
#include "verify_int.h"

static const struct {
    const char *name, *text;
} kinds[CS_VERIFY_N] = {
    [CS_VERIFY_CATALOG] = {"catalog", "the catalog cannot be read"},
    [CS_VERIFY_CATALOG_FILE] = {"catalog_file", "files of the catalog do not hold"},
    [CS_VERIFY_ROW] = {"row", "rows of the catalog make no sense"},
    [CS_VERIFY_REFERENCE] = {"reference", "rows name what is not there"},
    [CS_VERIFY_PLACE] = {"place", "rows name bytes that are not theirs"},
    [CS_VERIFY_SEGMENT_MISSING] = {"segment_missing", "segment files are missing"},
    [CS_VERIFY_SEGMENT_HEADER] = {"segment_header", "headers of segments do not hold"},
    [CS_VERIFY_SEGMENT_SIZE] = {"segment_size", "segment files are of another size"},
    [CS_VERIFY_RECORD] = {"record", "records are damaged"},
    [CS_VERIFY_MISMATCH] = {"mismatch", "records are not what their rows say"},
    [CS_VERIFY_UNREADABLE] = {"unreadable", "the disk refuses to read"},
    [CS_VERIFY_CAPACITY] = {"capacity", "more than the capacity is used"},
    [CS_VERIFY_SPARE_SEGMENT] = {"spare_segment", "segment files without objects that are not as the catalog has them"},
    [CS_VERIFY_STALE_ROW] = {"stale_row", "rows about objects that are gone"},
    [CS_VERIFY_STRAY_FILE] = {"stray_file", "files that are not the store's"},
    [CS_VERIFY_NO_BALLAST] = {"no_ballast", "there is no ballast"},
};

const char *cs_verify_kind_name(cs_verify_kind_t kind) { return kinds[kind].name; }
const char *cs_verify_kind_text(cs_verify_kind_t kind) { return kinds[kind].text; }

bool cs_verify_add(verify_t *v, verify_list_t *list, const void *item, size_t bytes)
{
    if (list->n == list->cap) {
        size_t cap = VC_MAX((size_t)64, list->cap * 2);
        void *items = vc_realloc(list->items, cap, bytes);
        if (!items) {
            v->status = VC_ERR_NOMEM;
            return false;
        }
        list->items = items;
        list->cap = cap;
    }
    memcpy((uint8_t *)list->items + list->n++ * bytes, item, bytes);
    return true;
}

void cs_verify_found(verify_t *v, cs_verify_kind_t kind, const char *fmt, ...)
{
    cs_verify_report_t *r = v->report;
    if (r->n[kind]++ >= v->opts->max_findings)
        return;
    cs_verify_finding_t *all = vc_realloc(r->findings, r->n_findings + 1, sizeof(*all));
    if (!all) {
        v->status = VC_ERR_NOMEM;
        return;
    }
    r->findings = all;
    cs_verify_finding_t *finding = &all[r->n_findings++];
    finding->kind = kind;
    va_list args;
    va_start(args, fmt);
    vsnprintf(finding->text, sizeof(finding->text), fmt, args);
    va_end(args);
}

/* ---- the directory ---- */

static void add_file(void *arg, uint32_t number, uint64_t bytes)
{
    verify_t *v = arg;
    verify_file_t file = {number, bytes};
    (void)cs_verify_add(v, &v->files, &file, sizeof(file));
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = ((const verify_file_t *)a)->number, y = ((const verify_file_t *)b)->number;
    return x < y ? -1 : x > y;
}

static bool is_segment_name(const char *name)
{
    return strlen(name) == 12 && strspn(name, "0123456789") == 8 && strcmp(name + 8, ".seg") == 0;
}

/* As du counts; folders in folders in it, as a rebuild leaves them. */
static void add_sizes(verify_t *v, const char *path, int depth)
{
    char below[4096];
    struct dirent *item;
    struct stat st;
    DIR *list = opendir(path);
    while (list && (item = readdir(list))) {
        bool is_self = strcmp(item->d_name, ".") == 0;
        if (strcmp(item->d_name, "..") == 0 || fstatat(dirfd(list), item->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (is_self || !S_ISDIR(st.st_mode))
            v->report->disk_bytes += (uint64_t)st.st_blocks * 512u;
        else if (depth > 0 && snprintf(below, sizeof(below), "%s/%s", path, item->d_name) < (int)sizeof(below))
            add_sizes(v, below, depth - 1);
    }
    if (list)
        closedir(list);
}

static void check_names(verify_t *v, const char *folder, bool (*ours)(const char *name))
{
    char path[4096];
    struct dirent *item;
    snprintf(path, sizeof(path), "%s/%s", v->opts->data_dir, folder);
    DIR *list = opendir(path);
    while (list && (item = readdir(list))) {
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0 && !ours(item->d_name))
            cs_verify_found(v, CS_VERIFY_STRAY_FILE, "%s%s%s: not one of the store's", folder, *folder ? "/" : "",
                            item->d_name);
    }
    if (list)
        closedir(list);
}

static bool is_top_name(const char *name)
{
    /* The last ones are left by what was interrupted. */
    static const char *const names[] = {"LOCK",      "ballast",       "catalog", "segments",
                                        "keyspaces", "keyspaces.new", "rebuild"};
    if (strncmp(name, "catalog.damaged-", 16) == 0)
        return true;
    for (size_t i = 0; i < VC_ARRAY_LEN(names); i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

static void check_sizes(verify_t *v)
{
    char path[4096];
    add_sizes(v, v->opts->data_dir, 3);
    check_names(v, "", is_top_name);
    check_names(v, "segments", is_segment_name);
    snprintf(path, sizeof(path), "%s/ballast", v->opts->data_dir);
    if (access(path, F_OK) != 0)
        cs_verify_found(v, CS_VERIFY_NO_BALLAST, "ballast: not there; the next start makes it where the disk has room");
    if (v->opts->capacity_bytes && v->report->disk_bytes > v->opts->capacity_bytes)
        cs_verify_found(v, CS_VERIFY_CAPACITY, "%llu bytes are used, %llu are allowed",
                        (unsigned long long)v->report->disk_bytes, (unsigned long long)v->opts->capacity_bytes);
}

/* Shared, so that two checks may run at once, and none beside a server. Without a lock file nobody ever served it. */
static vc_status_t lock_dir(const char *data_dir, int *fd_p, vc_err_t *err)
{
    char path[4096];
    struct stat st;
    *fd_p = -1;
    if (snprintf(path, sizeof(path), "%s/LOCK", data_dir) >= (int)sizeof(path) - 16)
        return vc_err_set(err, VC_ERR_RANGE, "the path of the data directory is too long");
    if (stat(data_dir, &st) != 0 || !S_ISDIR(st.st_mode))
        return vc_err_set(err, VC_ERR_NOT_FOUND, "there is no data directory %s", data_dir);
    *fd_p = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe in its place is no reason to wait */
    if (*fd_p < 0)
        return errno == ENOENT
                   ? vc_err_set(err, VC_ERR_NOT_FOUND, "%s is no data directory: it has no LOCK", data_dir)
                   : vc_err_set(err, vc_status_from_errno(errno), "cannot open %s: %s", path, strerror(errno));
    if (flock(*fd_p, LOCK_SH | LOCK_NB) == 0)
        return VC_OK;
    close(*fd_p);
    *fd_p = -1;
    return vc_err_set(err, VC_ERR_BUSY, "a server holds the data directory %s: stop it first, or let it scrub",
                      data_dir);
}

/* ---- all of it ---- */

static void pass_over(void *arg, const vc_digest_t *id, const vc_keyspace_t *ks) { (void)arg, (void)id, (void)ks; }

static void check_keyspace_file(verify_t *v)
{
    vc_err_t why;
    uint32_t n_damaged = 0;
    vc_status_t status = cs_keyspace_file_load(v->opts->data_dir, pass_over, NULL, &n_damaged, &why);
    if (status != VC_OK)
        cs_verify_found(v, CS_VERIFY_UNREADABLE, "keyspaces: %s", why.msg);
    else if (n_damaged > 0)
        cs_verify_found(v, CS_VERIFY_CATALOG_FILE, "keyspaces: %u places hold no sound record", n_damaged);
}

static vc_status_t check_catalog(verify_t *v, vc_err_t *err)
{
    cs_catalog_t *catalog = NULL;
    vc_err_t why;
    vc_status_t status = cs_catalog_check_format(v->opts->data_dir, err);
    if (status != VC_OK)
        return status;
    status = cs_catalog_open_offline(v->opts->data_dir, &catalog, &why);
    cs_verify_catalog_files(v, catalog);
    check_keyspace_file(v);
    if (status != VC_OK) {
        cs_verify_found(v, CS_VERIFY_CATALOG, "%s", why.msg);
        return VC_OK;
    }
    v->report->format = cs_catalog_format(catalog);
    if (v->report->format == 0)
        cs_verify_found(v, CS_VERIFY_ROW, "catalog/default: the row of the format is missing");
    cs_verify_rows(v, catalog);
    cs_catalog_close(catalog);
    return v->status;
}

static vc_status_t check_all(verify_t *v, vc_err_t *err)
{
    cs_segdir_t *dir = NULL;
    vc_err_t why;
    vc_status_t status = check_catalog(v, err);
    if (status != VC_OK)
        return status;
    status = cs_segdir_open(v->opts->data_dir, true, &dir, &why);
    if (status == VC_OK)
        status = cs_segdir_list(dir, add_file, v, &why);
    if (status != VC_OK)
        cs_verify_found(v, CS_VERIFY_UNREADABLE, "%s", why.msg);
    if (v->files.n > 1)
        qsort(v->files.items, v->files.n, sizeof(verify_file_t), by_number);
    if (dir)
        cs_verify_segments(v, dir);
    cs_segdir_close(dir);
    check_sizes(v);
    return v->status;
}

vc_status_t cs_verify(const cs_verify_opts_t *opts, cs_verify_report_t **report_p, vc_err_t *err)
{
    verify_t v = {.opts = opts};
    int lock_fd;
    vc_status_t status = lock_dir(opts->data_dir, &lock_fd, err);
    if (status != VC_OK)
        return status;
    v.report = sodium_init() >= 0 ? vc_calloc(1, sizeof(*v.report)) : NULL;
    status = v.report ? check_all(&v, err) : VC_ERR_NOMEM;
    if (status == VC_ERR_NOMEM)
        vc_err_set(err, status, "no memory for the check of %s", opts->data_dir);
    close(lock_fd);
    verify_list_t *lists[] = {&v.files, &v.segments, &v.keyspaces, &v.prefixes, &v.objects, &v.pins};
    for (size_t i = 0; i < VC_ARRAY_LEN(lists); i++)
        vc_free(lists[i]->items);
    if (status == VC_OK)
        *report_p = v.report;
    else
        cs_verify_free(v.report);
    return status;
}

uint64_t cs_verify_n_damage(const cs_verify_report_t *report)
{
    uint64_t n = 0;
    for (int kind = 0; kind < CS_VERIFY_N_DAMAGE; kind++)
        n += report->n[kind];
    return n;
}

void cs_verify_free(cs_verify_report_t *report)
{
    if (!report)
        return;
    vc_free(report->findings);
    vc_free(report);
}
