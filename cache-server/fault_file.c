/*
 * File calls with faults, and a disk whose cache can be lost: every write to a segment is remembered with the bytes
 * that were there before, until a real sync of its file that started after it ended. A power cut puts them back, newest
 * first. Tests only: it reads before each write, and keeps descriptors of its own so that a file that was closed or
 * unlinked meanwhile can still be told apart by its inode.
 */
#include "fault_file.h"

#ifdef VC_FAULTS
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "vc/mem.h"

#define SECTOR 512u

typedef struct write_note { /* one write, newest first in the list */
    struct write_note *next;
    dev_t dev;
    ino_t ino;
    int fd;                 /* ours */
    uint64_t offset, ended; /* ended: when it was reported as done, 0: not yet */
    size_t bytes;
    uint8_t *old;
} write_note_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static write_note_t *notes;
static uint64_t tick;
static _Atomic bool remembers;

static void free_note(write_note_t *note)
{
    close(note->fd);
    vc_free(note->old);
    vc_free(note);
}

void cs_fault_remember_writes(int on)
{
    pthread_mutex_lock(&lock);
    /* Relaxed: a write that races with arming may be remembered or not. */
    atomic_store_explicit(&remembers, on != 0, memory_order_relaxed);
    while (!on && notes) {
        write_note_t *note = notes;
        notes = note->next;
        free_note(note);
    }
    pthread_mutex_unlock(&lock);
}

void cs_fault_write_begins(int fd, uint64_t offset, size_t bytes)
{
    struct stat st;
    if (!atomic_load_explicit(&remembers, memory_order_relaxed) || fstat(fd, &st) != 0)
        return;
    write_note_t *note = vc_calloc(1, sizeof(*note));
    uint8_t *old = vc_alloc_aligned(4096, bytes);
    if (!note || !old)
        abort();
    memset(old, 0, bytes);
    (void)!pread(fd, old, bytes, (off_t)offset); /* what lies behind the end of the file reads as zeros */
    *note =
        (write_note_t){.dev = st.st_dev, .ino = st.st_ino, .fd = dup(fd), .offset = offset, .bytes = bytes, .old = old};
    pthread_mutex_lock(&lock);
    note->next = notes;
    notes = note;
    pthread_mutex_unlock(&lock);
}

static write_note_t *find_locked(int fd, uint64_t offset)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return NULL;
    write_note_t *note = notes;
    while (note && !(note->ino == st.st_ino && note->dev == st.st_dev && note->offset == offset && note->ended == 0))
        note = note->next;
    return note;
}

void cs_fault_write_ended(int fd, uint64_t offset)
{
    if (!atomic_load_explicit(&remembers, memory_order_relaxed))
        return;
    pthread_mutex_lock(&lock);
    write_note_t *note = find_locked(fd, offset);
    if (note)
        note->ended = ++tick;
    pthread_mutex_unlock(&lock);
}

void cs_fault_tear(int fd, uint64_t offset, unsigned long sectors)
{
    pthread_mutex_lock(&lock);
    write_note_t *note = find_locked(fd, offset);
    uint8_t *mixed = note ? vc_alloc_aligned(4096, note->bytes) : NULL;
    if (mixed && sectors * SECTOR < note->bytes) {
        (void)!pread(fd, mixed, note->bytes, (off_t)offset);
        memcpy(mixed + sectors * SECTOR, note->old + sectors * SECTOR, note->bytes - sectors * SECTOR);
        (void)!pwrite(fd, mixed, note->bytes, (off_t)offset);
    }
    vc_free(mixed);
    pthread_mutex_unlock(&lock);
}

static bool is_kept(unsigned long *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 63;
}

void cs_fault_undo_unsynced(unsigned long seed)
{
    pthread_mutex_lock(&lock); /* for good: the process ends, and nobody may be told of a sync any more */
    bool is_partial = seed != 0;
    for (write_note_t *note = notes; note; note = note->next) {
        uint8_t *now = is_partial ? vc_alloc_aligned(4096, note->bytes) : NULL;
        if (now && pread(note->fd, now, note->bytes, (off_t)note->offset) == (ssize_t)note->bytes) {
            for (size_t at = 0; at < note->bytes; at += SECTOR) {
                if (is_kept(&seed))
                    memcpy(note->old + at, now + at, SECTOR);
            }
        }
        (void)!pwrite(note->fd, note->old, note->bytes, (off_t)note->offset);
        vc_free(now);
    }
}

static int errno_of(cs_fault_t fault)
{
    return fault == CS_FAULT_EIO ? EIO : fault == CS_FAULT_ENOSPC ? ENOSPC : fault == CS_FAULT_EROFS ? EROFS : 0;
}

int cs_file_may(const char *point)
{
    int errnum = errno_of(cs_fault_hit(point));
    if (errnum == 0)
        return 0;
    errno = errnum;
    return -1;
}

ssize_t cs_file_pread(const char *point, int fd, void *data, size_t bytes, uint64_t offset)
{
    cs_fault_t fault = cs_fault_hit(point);
    if (errno_of(fault)) {
        errno = errno_of(fault);
        return -1;
    }
    ssize_t n = pread(fd, data, fault == CS_FAULT_SHORT ? bytes / 2 : bytes, (off_t)offset);
    if (fault == CS_FAULT_FLIP && n > 0)
        ((uint8_t *)data)[n / 2] ^= 1;
    return n;
}

ssize_t cs_file_pwrite(const char *point, int fd, const void *data, size_t bytes, uint64_t offset)
{
    unsigned long sectors = 0;
    cs_fault_t fault = cs_fault_hit_arg(point, &sectors);
    if (errno_of(fault)) {
        errno = errno_of(fault);
        return -1;
    }
    if (fault == CS_FAULT_SHORT)
        bytes /= 2;
    cs_fault_write_begins(fd, offset, bytes);
    ssize_t n = pwrite(fd, data, bytes, (off_t)offset);
    if (fault == CS_FAULT_TORN)
        cs_fault_tear(fd, offset, sectors);
    cs_fault_write_ended(fd, offset);
    return n;
}

static int sync_file(const char *point, int fd, int (*sync)(int))
{
    struct stat st;
    cs_fault_t fault = cs_fault_hit(point);
    if (errno_of(fault)) {
        errno = errno_of(fault);
        return -1;
    }
    if (fault == CS_FAULT_LOSTSYNC)
        return 0;
    pthread_mutex_lock(&lock);
    uint64_t before = tick;
    pthread_mutex_unlock(&lock);
    if (sync(fd) != 0 || fstat(fd, &st) != 0)
        return -1;
    pthread_mutex_lock(&lock);
    for (write_note_t **at = &notes; *at;) {
        write_note_t *note = *at;
        if (note->dev == st.st_dev && note->ino == st.st_ino && note->ended != 0 && note->ended <= before) {
            *at = note->next;
            free_note(note);
        } else {
            at = &note->next;
        }
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

int cs_file_fdatasync(const char *point, int fd) { return sync_file(point, fd, fdatasync); }

int cs_file_fsync(const char *point, int fd) { return sync_file(point, fd, fsync); }
#else
typedef int cs_fault_file_unused_t; /* ISO C wants a declaration */
#endif
