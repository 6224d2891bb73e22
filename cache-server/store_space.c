/*
 * Limits: what may be used.
 *
 *   capacity = ballast + reserve for the catalog + segments
 *
 * The reserve follows the catalog's files: twice their size, since a compaction writes the new ones before the old ones
 * go, plus what may be unflushed. Segments are preallocated, so their sum never grows by itself. Two limits hold: the
 * budget above, and the disk: a file is made only where it leaves the low-water mark free.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fault_file.h"
#include "store_int.h"
#include "vc/log.h"
#include "vc/mem.h"

#define SMALL_FILES_BYTES ((uint64_t)768 << 10) /* directories, lock file, keyspace file and its next version */

uint64_t cs_smallest_capacity(const cs_store_opts_t *opts)
{
    uint64_t segment = cs_segment_file_bytes(0, cs_bufpool_buf_bytes(opts->pool));
    return opts->ballast_bytes + CS_META_FLOOR_BYTES + SMALL_FILES_BYTES + CS_MIN_SEGMENTS * segment;
}

uint64_t cs_segments_budget(const cs_store_t *s)
{
    uint64_t meta = VC_MAX(CS_META_FLOOR_BYTES, 2 * s->catalog_bytes + CS_CATALOG_UNFLUSHED_BYTES);
    uint64_t other = s->opts.ballast_bytes + meta + SMALL_FILES_BYTES;
    return s->opts.capacity_bytes > other ? s->opts.capacity_bytes - other : 0;
}

uint64_t cs_disk_free(const cs_store_t *s)
{
    struct statvfs fs;
    if (fstatvfs(s->lock_fd, &fs) != 0) /* the disk that holds our files, wherever the path leads meanwhile */
        return 0;
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

uint64_t cs_disk_total(const cs_store_t *s)
{
    struct statvfs fs;
    if (statvfs(s->data_dir, &fs) != 0)
        return 0;
    return (uint64_t)fs.f_blocks * fs.f_frsize;
}

/* ---- ballast and the low-water mark ---- */

static bool ballast_path(const cs_store_t *s, char path[4096])
{
    return snprintf(path, 4096, "%s/ballast", s->data_dir) < 4096;
}

static void set_ballast(cs_store_t *s, uint64_t bytes)
{
    cs_lock(s);
    s->ballast_bytes = bytes;
    cs_unlock(s);
}

vc_status_t cs_ballast_make(cs_store_t *s, vc_err_t *err)
{
    char path[4096];
    if (!ballast_path(s, path))
        return vc_err_set(err, VC_ERR_RANGE, "the path of the data directory is too long");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return vc_err_set(err, vc_status_from_errno(errno), "cannot create %s: %s", path, strerror(errno));
    int rc = cs_file_may("ballast.make") != 0 || ftruncate(fd, (off_t)s->opts.ballast_bytes) != 0 ? errno : 0;
    if (rc == 0 && fallocate(fd, 0, 0, (off_t)s->opts.ballast_bytes) != 0)
        rc = errno == EOPNOTSUPP ? posix_fallocate(fd, 0, (off_t)s->opts.ballast_bytes) : errno;
    close(fd);
    if (rc != 0) {
        unlink(path);
        return vc_err_set(err, vc_status_from_errno(rc), "cannot allocate the ballast of %llu bytes: %s",
                          (unsigned long long)s->opts.ballast_bytes, strerror(rc));
    }
    set_ballast(s, s->opts.ballast_bytes);
    return VC_OK;
}

void cs_ballast_release(cs_store_t *s)
{
    char path[4096];
    if (ballast_path(s, path))
        unlink(path);
    set_ballast(s, 0);
}

void cs_degrade(cs_store_t *s, const vc_err_t *why)
{
    cs_lock(s);
    bool was = s->is_degraded;
    s->is_degraded = true;
    cs_unlock(s);
    if (!was)
        vc_log_error("store", "catalog write failed, writes stop until it is reopened reason=\"%s\"", why->msg);
}

/* Only the commit thread touches the catalog, so it can close and reopen it under everybody else's feet. */
static void reopen_catalog(cs_store_t *s)
{
    vc_err_t err;
    cs_catalog_close(s->catalog);
    s->catalog = NULL;
    if (cs_catalog_open(s->data_dir, false, &s->catalog, &err) != VC_OK) {
        vc_log_error("store", "catalog cannot be reopened reason=\"%s\"", err.msg);
        return;
    }
    cs_lock(s);
    s->is_degraded = false;
    cs_unlock(s);
    vc_log_info("store", "catalog reopened, writes go on");
}

vc_status_t cs_space_check(cs_store_t *s)
{
    vc_err_t err;
    uint64_t free_bytes = cs_disk_free(s);
    cs_lock(s);
    bool was = s->no_space, degraded = s->is_degraded;
    bool now = was ? free_bytes < CS_LOW_WATER_BYTES + s->opts.ballast_bytes : free_bytes < CS_LOW_WATER_BYTES;
    if (!now)
        s->no_space = false;
    cs_unlock(s);
    if (now && !was) {
        cs_ballast_release(s); /* before anyone hears of it: whoever is refused finds the room already made */
        cs_lock(s);
        s->no_space = true;
        cs_unlock(s);
        vc_log_error("store", "disk below the low-water mark, writes are refused free_bytes=%llu low_water_bytes=%llu",
                     (unsigned long long)free_bytes, (unsigned long long)CS_LOW_WATER_BYTES);
        if (!degraded && cs_catalog_flush(s->catalog, &err) != VC_OK)
            cs_degrade(s, &err);
    } else if (was && !now) {
        if (cs_ballast_make(s, &err) != VC_OK) {
            cs_lock(s);
            s->no_space = now = true;
            cs_unlock(s);
        } else {
            vc_log_info("store", "disk has room again, writes go on free_bytes=%llu", (unsigned long long)free_bytes);
        }
    }
    if (!now && degraded)
        reopen_catalog(s);
    cs_lock(s);
    vc_status_t status = s->no_space ? VC_ERR_NOSPACE : s->is_degraded ? VC_ERR_IO : VC_OK;
    cs_unlock(s);
    return status;
}
