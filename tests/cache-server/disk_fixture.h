/*
 * A store on a disk of its own: a small tmpfs in a mount namespace that only the test sees, to be filled, covered,
 * unmounted. Tests that may not mount say so and are skipped.
 */
#ifndef DISK_FIXTURE_H
#define DISK_FIXTURE_H

#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include "store_fixture.h"

static inline void fill_disk(const char *dir, uint64_t leave_bytes)
{
    char path[512];
    struct statvfs fs;
    snprintf(path, sizeof(path), "%s/../junk", dir);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    cr_assert_eq(statvfs(dir, &fs), 0);
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (free_bytes > leave_bytes)
        cr_assert_eq(posix_fallocate(fd, 0, (off_t)(free_bytes - leave_bytes)), 0);
    close(fd);
}

static inline void clear_disk(const char *dir)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/../junk", dir);
    cr_assert_eq(unlink(path), 0);
}

/* False: not permitted here. Afterwards fx.dir is on a tmpfs of that size that nobody else sees. */
static inline bool on_small_disk(fx_t *fx, unsigned mib)
{
    char options[64], inner[256];
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return false;
    snprintf(options, sizeof(options), "size=%um", mib);
    if (mount("none", fx->dir, "tmpfs", 0, options) != 0)
        return false;
    snprintf(inner, sizeof(inner), "%.200s/data", fx->dir);
    memcpy(fx->dir, inner, sizeof(inner));
    return true;
}

static inline void leave_disk(fx_t *fx)
{
    fx_close(fx);
    fx->dir[strlen(fx->dir) - strlen("/data")] = '\0';
    umount2(fx->dir, MNT_DETACH);
    fx_fini(fx);
}

static inline vc_status_t tick_until(fx_t *fx, vc_status_t want, uint32_t seed)
{
    return fx_tick_until(fx, want, seed, 1, FX_FULL);
}

#endif
