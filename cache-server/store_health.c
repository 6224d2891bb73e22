/*
 * Health of the data directory. See store_health.h.
 *
 *   gone        the path leads nowhere, or to other files (removed, renamed, unmounted, covered by another mount):
 * reads go on through the descriptors that are open, writes are refused; when the same files are back under the path,
 * the catalog is reopened and writes go on read-only   remounted so, or started on a full or read-only disk: as above;
 * once there is room and a file can be opened for writing, segments and catalog are reopened for writing
 */
#include "store_health.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fault_file.h"
#include "store_int.h"
#include "vc/log.h"

/* ---- at the start ---- */

static bool means_readonly(int errnum)
{
    return errnum == EROFS || errnum == EACCES || errnum == EPERM || errnum == ENOSPC;
}

vc_status_t cs_dir_lock(cs_store_t *s, vc_err_t *err)
{
    char path[4096];
    if (snprintf(path, sizeof(path), "%s/LOCK", s->data_dir) >= (int)sizeof(path))
        return vc_err_set(err, VC_ERR_RANGE, "the path of the data directory is too long");
    int made = mkdir(s->data_dir, 0700) != 0 ? errno : 0;
    if (made != 0 && made != EEXIST && !(made == EROFS && access(s->data_dir, X_OK) == 0))
        return vc_err_set(err, vc_status_from_path_errno(made), "cannot make the data directory %s: %s", s->data_dir,
                          made == ENOENT ? "the folder that it is to be made in is not there" : strerror(made));
    if (s->lock_fd >= 0) /* held already */
        return VC_OK;
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock_fd < 0 && means_readonly(errno)) {
        int why = errno;
        s->readonly = true;
        s->lock_fd = open(path, O_RDONLY | O_CLOEXEC);
        if (s->lock_fd < 0)
            return vc_err_set(err, vc_status_from_errno(why),
                              "the data directory %s is not writable and holds no store: %s", s->data_dir,
                              strerror(why));
        vc_log_warn("store", "data directory is not writable, serving read-only dir=%s reason=\"%s\"", s->data_dir,
                    strerror(why));
    }
    if (s->lock_fd < 0)
        return vc_err_set(err, vc_status_from_path_errno(errno), "cannot open %s: %s", path, strerror(errno));
    if (flock(s->lock_fd, LOCK_EX | LOCK_NB) != 0)
        return vc_err_set(err, VC_ERR_BUSY, "another process holds the data directory %s", s->data_dir);
    return VC_OK;
}

/* New directories are durable only when the ones that name them are synced: before the first record is. */
static vc_status_t sync_directory(const char *path, vc_err_t *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int errnum = fd < 0 || fsync(fd) != 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    /* Some file systems sync no directories, and a mount point may lie in a read-only one: nothing of ours is in there.
     */
    if (errnum == 0 || errnum == EINVAL || errnum == EROFS)
        return VC_OK;
    return vc_err_set(err, vc_status_from_errno(errnum), "cannot sync the directory %s: %s", path, strerror(errnum));
}

vc_status_t cs_dir_sync(const cs_store_t *s, vc_err_t *err)
{
    char above[4096 + 4];
    snprintf(above, sizeof(above), "%.4095s/..", s->data_dir);
    vc_status_t status = sync_directory(s->data_dir, err);
    if (status == VC_OK &&
        access(above, R_OK) == 0) /* whoever made a directory that we may not read has to see to it */
        status = sync_directory(above, err);
    return status;
}

/* ---- while it runs ---- */

static bool is_same(const char *data_dir, const char *name, int fd)
{
    char path[4096 + 16];
    struct stat by_path, by_fd;
    snprintf(path, sizeof(path), "%.4095s/%s", data_dir, name);
    return stat(path, &by_path) == 0 && fstat(fd, &by_fd) == 0 && by_path.st_dev == by_fd.st_dev &&
           by_path.st_ino == by_fd.st_ino;
}

bool cs_health_is_ours(const cs_store_t *s)
{
    char current[4096 + 32];
    snprintf(current, sizeof(current), "%.4095s/catalog/CURRENT", s->data_dir);
    return is_same(s->data_dir, "LOCK", s->lock_fd) && is_same(s->data_dir, "segments", cs_segdir_fd(s->segdir)) &&
           access(current, F_OK) == 0;
}

int cs_health_sync(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return -1;
    if (st.st_nlink == 0) {
        errno = ENOENT;
        return -1;
    }
    return cs_file_fdatasync("commit.sync", fd);
}

/* ---- read-only ---- */

static bool is_mounted_readonly(const cs_store_t *s)
{
    struct statvfs fs;
    if (cs_file_may("health.statvfs") != 0)
        return errno == EROFS;
    return statvfs(s->data_dir, &fs) == 0 && (fs.f_flag & ST_RDONLY) != 0;
}

static vc_status_t can_write_a_file(const cs_store_t *s, vc_err_t *err)
{
    char path[4096 + 16];
    snprintf(path, sizeof(path), "%.4095s/LOCK", s->data_dir);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return vc_err_set(err, vc_status_from_errno(errno), "cannot open %s for writing", path);
    close(fd);
    return VC_OK;
}

static vc_status_t reopen_segments(cs_store_t *s, vc_err_t *err)
{
    cs_segdir_set_writable(s->segdir);
    for (uint32_t i = 0; i < s->cap_segments; i++) {
        vc_status_t status = s->segments[i] ? cs_segment_reopen(s->segdir, s->segments[i], err) : VC_OK;
        if (status != VC_OK)
            return status;
    }
    return VC_OK;
}

static vc_status_t reopen_catalog(cs_store_t *s, vc_err_t *err)
{
    cs_catalog_close(s->catalog);
    s->catalog = NULL;
    vc_status_t status = cs_catalog_open(s->data_dir, false, &s->catalog, err);
    if (status != VC_OK || cs_catalog_generation(s->catalog) >= s->generation)
        return status;
    /* Leases of this start were given out under the next number already. */
    cs_catalog_put_generation(s->catalog, s->generation);
    return cs_catalog_write(s->catalog, true, err);
}

static vc_status_t make_writable(cs_store_t *s, vc_err_t *err)
{
    uint64_t wanted = CS_CATALOG_UNFLUSHED_BYTES + s->opts.ballast_bytes, free_bytes = cs_disk_free(s);
    if (free_bytes < wanted)
        return vc_err_set(err, VC_ERR_NOSPACE, "%llu bytes are free, %llu are needed", (unsigned long long)free_bytes,
                          (unsigned long long)wanted);
    vc_status_t status = can_write_a_file(s, err);
    if (status == VC_OK) {
        pthread_mutex_lock(&s->files);
        status = reopen_segments(s, err);
        pthread_mutex_unlock(&s->files);
    }
    if (status == VC_OK)
        status = reopen_catalog(s, err);
    if (status == VC_OK && s->ballast_bytes == 0)
        status = cs_ballast_make(s, err);
    return status;
}

static void set_readonly(cs_store_t *s, bool readonly)
{
    cs_lock(s);
    s->readonly = readonly;
    cs_unlock(s);
}

static vc_status_t check_readonly(cs_store_t *s)
{
    vc_err_t err;
    if (is_mounted_readonly(s)) {
        if (!s->readonly)
            vc_log_error("store", "the file system is read-only now, writes are refused dir=%s", s->data_dir);
        set_readonly(s, true);
        return VC_ERR_READONLY;
    }
    if (!s->readonly)
        return VC_OK;
    if (make_writable(s, &err) != VC_OK) {
        vc_log_debug("store", "still read-only reason=\"%s\"", err.msg);
        return VC_ERR_READONLY;
    }
    cs_lock(s);
    s->readonly = s->is_degraded = s->no_space = false;
    cs_room_wanted(s);
    cs_unlock(s);
    vc_log_info("store", "the data directory takes writes again dir=%s generation=%llu", s->data_dir,
                (unsigned long long)s->generation);
    return VC_OK;
}

vc_status_t cs_health_check(cs_store_t *s)
{
    bool is_ours = cs_health_is_ours(s);
    if (is_ours != s->is_lost) /* only this thread changes it */
        return is_ours ? check_readonly(s) : VC_ERR_READONLY;
    if (!is_ours)
        vc_log_error("store", "the data directory is gone or was replaced, writes are refused dir=%s", s->data_dir);
    else
        vc_log_info("store", "the data directory is back dir=%s", s->data_dir);
    cs_lock(s);
    s->is_lost = !is_ours;
    s->is_degraded = s->is_degraded || is_ours; /* what it missed meanwhile shows when the catalog is opened again */
    cs_unlock(s);
    return is_ours ? check_readonly(s) : VC_ERR_READONLY;
}
