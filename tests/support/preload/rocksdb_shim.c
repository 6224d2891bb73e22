/* See rocksdb_shim.h. Every process that preloads it without VC_SHIM_CONTROL runs as if it were not there. */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "support/rocksdb_shim.h"

#define EXPORT __attribute__((visibility("default")))

static shim_control_t *control;

__attribute__((constructor)) static void attach(void)
{
    const char *path = getenv("VC_SHIM_CONTROL");
    control = path ? shim_map(path, 0) : NULL;
}

/* 0, or the errno that this call has to fail with. */
static int fault_of(uint32_t kind, const char *path)
{
    if (!control || !strstr(path, "/catalog/") || !strstr(path, control->name))
        return 0;
    control->seen++;
    if (!(control->calls & kind))
        return 0;
    for (uint32_t left = control->passes; left > 0;) {
        if (atomic_compare_exchange_weak(&control->passes, &left, left - 1))
            return 0;
    }
    control->failed++;
    return control->errnum;
}

static int fault_of_fd(uint32_t kind, int fd)
{
    char link[64], path[4096];
    if (!control)
        return 0;
    int saved = errno;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    errno = saved;
    if (n <= 0)
        return 0;
    path[n] = '\0';
    return fault_of(kind, path);
}

/* Defines the next function of this name in line, looked up once; a race looks it up twice. */
#define NEXT(name, type)          \
    static __typeof__(type) next; \
    if (!next)                    \
    next = (type)dlsym(RTLD_NEXT, name)

#define FAIL_IF(expr)        \
    do {                     \
        int errnum_ = expr;  \
        if (errnum_) {       \
            errno = errnum_; \
            return -1;       \
        }                    \
    } while (0)

EXPORT ssize_t write(int fd, const void *data, size_t bytes);
EXPORT ssize_t write(int fd, const void *data, size_t bytes)
{
    NEXT("write", ssize_t(*)(int, const void *, size_t));
    FAIL_IF(fault_of_fd(SHIM_WRITE, fd));
    return next(fd, data, bytes);
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset);
EXPORT ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    NEXT("pwrite", ssize_t(*)(int, const void *, size_t, off_t));
    FAIL_IF(fault_of_fd(SHIM_WRITE, fd));
    return next(fd, data, bytes, offset);
}

EXPORT ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset);
EXPORT ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset)
{
    NEXT("pwrite64", ssize_t(*)(int, const void *, size_t, off64_t));
    FAIL_IF(fault_of_fd(SHIM_WRITE, fd));
    return next(fd, data, bytes, offset);
}

EXPORT int fdatasync(int fd);
EXPORT int fdatasync(int fd)
{
    NEXT("fdatasync", int (*)(int));
    FAIL_IF(fault_of_fd(SHIM_SYNC, fd));
    return next(fd);
}

EXPORT int fsync(int fd);
EXPORT int fsync(int fd)
{
    NEXT("fsync", int (*)(int));
    FAIL_IF(fault_of_fd(SHIM_SYNC, fd));
    return next(fd);
}

static mode_t mode_of(int flags, va_list args) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0; }

EXPORT int open(const char *path, int flags, ...);
EXPORT int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    NEXT("open", int (*)(const char *, int, ...));
    FAIL_IF(flags & O_CREAT ? fault_of(SHIM_CREATE, path) : 0);
    return next(path, flags, mode);
}

EXPORT int open64(const char *path, int flags, ...);
EXPORT int open64(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    NEXT("open64", int (*)(const char *, int, ...));
    FAIL_IF(flags & O_CREAT ? fault_of(SHIM_CREATE, path) : 0);
    return next(path, flags, mode);
}
