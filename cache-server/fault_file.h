/*
 * The file calls of the store that no ring makes, each with the name of its fault point, and what the power-cut model
 * of fault.h has to know about writes. Without VC_FAULTS they are the system calls and nothing else.
 */
#ifndef CS_FAULT_FILE_H
#define CS_FAULT_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

#include "fault.h"

#ifdef VC_FAULTS
/* As the system calls: a count, or -1 with errno. */
ssize_t cs_file_pread(const char *point, int fd, void *data, size_t bytes, uint64_t offset);
ssize_t cs_file_pwrite(const char *point, int fd, const void *data, size_t bytes, uint64_t offset);
int cs_file_fdatasync(const char *point, int fd);
int cs_file_fsync(const char *point, int fd);
/* 0, or -1 with errno set by the armed fault: in front of calls that have no wrapper here. */
int cs_file_may(const char *point);

/* ---- for fault.c and the ring ---- */
/* Remembers what is on disk there, as long as a fault is armed that may undo the write. Before it is submitted. */
void cs_fault_write_begins(int fd, uint64_t offset, size_t bytes);
/* The write was reported as done: a sync that starts from now on covers it. */
void cs_fault_write_ended(int fd, uint64_t offset);
/* Puts the old bytes back behind the first sectors of the write that began there. */
void cs_fault_tear(int fd, uint64_t offset, unsigned long sectors);
void cs_fault_remember_writes(int on);
/* Undoes unsynced writes: the whole of them, or a random half of the sectors. Never returns the lock. */
void cs_fault_undo_unsynced(unsigned long seed);
#else
static inline ssize_t cs_file_pread(const char *point, int fd, void *data, size_t bytes, uint64_t offset)
{
    (void)point;
    return pread(fd, data, bytes, (off_t)offset);
}
static inline ssize_t cs_file_pwrite(const char *point, int fd, const void *data, size_t bytes, uint64_t offset)
{
    (void)point;
    return pwrite(fd, data, bytes, (off_t)offset);
}
static inline int cs_file_fdatasync(const char *point, int fd)
{
    (void)point;
    return fdatasync(fd);
}
static inline int cs_file_fsync(const char *point, int fd)
{
    (void)point;
    return fsync(fd);
}
static inline int cs_file_may(const char *point)
{
    (void)point;
    return 0;
}
#endif

#endif
