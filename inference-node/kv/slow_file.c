/* The slow tier's file: without a name, of its full size from the start, past the page cache where that is possible. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kv/slow_int.h"
#include "vc/log.h"

/* File systems without O_TMPFILE get a name that is taken away at once. */
static int open_unnamed(const char *dir, int flags)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return fd;
    char path[4096];
    if (snprintf(path, sizeof path, "%s/vericache-kv-XXXXXX", dir) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC | flags);
    if (fd >= 0)
        unlink(path);
    return fd;
}

static vc_status_t no_file(const char *dir, vc_err_t *err)
{
    return vc_err_set(err, vc_status_from_path_errno(errno), "cannot make a file for full KV in %s: %s", dir,
                      strerror(errno));
}

vc_status_t node_slow_check_dir(const char *dir, vc_err_t *err)
{
    int fd = open_unnamed(dir, 0);
    if (fd < 0)
        return no_file(dir, err);
    close(fd);
    return VC_OK;
}

vc_status_t node_slow_file_open(const char *dir, uint64_t bytes, int *fd_p, bool *direct_p, vc_err_t *err)
{
    bool direct = true;
    int fd = open_unnamed(dir, O_DIRECT);
    if (fd < 0 && errno == EINVAL) {
        direct = false;
        fd = open_unnamed(dir, 0);
        if (fd >= 0)
            vc_log_warn("slow", "file system takes no direct io dir=%s: streamed KV goes through the page cache", dir);
    }
    if (fd < 0)
        return no_file(dir, err);
    /* where space cannot be taken beforehand, a write may meet the full disk */
    if (fallocate(fd, 0, 0, (off_t)bytes) != 0 && (errno != EOPNOTSUPP || ftruncate(fd, (off_t)bytes) != 0)) {
        int e = errno;
        close(fd);
        return vc_err_set(err, vc_status_from_errno(e == EFBIG ? ENOSPC : e),
                          "slow tier: no room for %.1f MB of full KV in %s: %s", (double)bytes / 1e6, dir, strerror(e));
    }
    *fd_p = fd;
    *direct_p = direct;
    return VC_OK;
}
