/*
 * Disk faults under RocksDB, which has no hook of its own in its C interface: a library for LD_PRELOAD
 * (preload/rocksdb_shim.c) that fails calls on files below .../catalog/, on command of a test through a shared file.
 *
 * The test maps the file (shim_map) and names it to the program by VC_SHIM_CONTROL; shim_env fills in the rest.
 */
#ifndef SUPPORT_ROCKSDB_SHIM_H
#define SUPPORT_ROCKSDB_SHIM_H

#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SHIM_WRITE = 1, SHIM_SYNC = 2, SHIM_CREATE = 4 };

typedef struct shim_control {
    _Atomic uint32_t calls;  /* which kinds fail; 0: none */
    _Atomic int32_t errnum;  /* with what */
    _Atomic uint32_t passes; /* calls of these kinds that still go through */
    _Atomic uint32_t failed; /* calls that failed so far */
    _Atomic uint32_t seen;   /* calls of any kind on these files, so that a test knows that the library is there */
    char name[32];           /* only files whose path holds this; empty: all of the catalog */
} shim_control_t;

static inline shim_control_t *shim_map(const char *path, int create)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0), 0600);
    if (fd < 0 || (create && ftruncate(fd, sizeof(shim_control_t)) != 0))
        return NULL;
    void *p = mmap(NULL, sizeof(shim_control_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? NULL : p;
}

#endif
