/*
 * Reads and writes of one worker: an io_uring with registered buffers, the same ring with plain reads and writes, or
 * pread/pwrite threads where the kernel refuses io_uring. Knows descriptors and buffers, no cache words.
 *
 * Reads come first, and few bytes of them at a time, so that one arrives after the other. Writes in flight are limited
 * in bytes, and reads that nobody waits for in number, so that a read never queues behind much of either in the device.
 * Some places are kept for writes, so that they go on.
 *
 * Files are not registered: recovery puts another file under a descriptor that is in use, where a ring would go on with
 * the old one, and fio with and without registered files reads alike here (8 KiB and 1.4 MB, 16 in flight).
 *
 * Owner: the thread that created it; every function runs there. Only that thread submits (single issuer).
 */
#ifndef CS_URING_H
#define CS_URING_H

#include <stdbool.h>
#include <stdint.h>

#include "bufpool.h"
#include "worker.h"

typedef struct cs_uring cs_uring_t;

#define CS_IO_NO_BUF UINT32_MAX

/* One transfer. The caller owns it and keeps it, and the data, until done ran. */
typedef struct cs_io {
    int fd;
    bool write;
    bool ahead;         /* a read that nobody waits for yet */
    uint32_t buf_index; /* registered buffer that holds [data, data + bytes): see bufpool.h; or CS_IO_NO_BUF */
    uint32_t bytes;
    uint8_t *data;
    uint64_t offset;
    /* Runs inside cs_uring_reap. OK: all bytes moved. RANGE: the file ended before (reads). NOSPACE, IO: as errno says.
     * May submit again. */
    void (*done)(struct cs_io *io, vc_status_t status);
    void *arg;
    /* private */
    uint32_t moved, tries;
    int32_t result;
#ifdef VC_FAULTS
    uint32_t hold_left, hold_release;
#endif
    struct cs_io *next;
} cs_io_t;

/* AUTO tries fixed, ring, threads in this order and logs each step down with its reason; a mode asked for by name that
 * is refused is UNSUPPORTED with the reason. depth: transfers in flight at the kernel; more wait inside. */
vc_status_t cs_uring_create(cs_io_mode_t mode, uint32_t depth, cs_bufpool_t *pool, cs_uring_t **uring_p, vc_err_t *err);
/* Waits for what is in flight; done runs for each. */
void cs_uring_destroy(cs_uring_t *uring);
cs_io_mode_t cs_uring_mode(const cs_uring_t *uring);
/* Queues. Never fails: a refusal by the kernel arrives through done. */
void cs_uring_submit(cs_uring_t *uring, cs_io_t *io);
/* Hands what is queued to the kernel in one call. */
void cs_uring_flush(cs_uring_t *uring);
/* The kernel refused some of what was flushed for now: flush again soon, no event will tell. */
bool cs_uring_has_backlog(const cs_uring_t *uring);
/* Runs done for finished transfers; returns how many finished. */
unsigned cs_uring_reap(cs_uring_t *uring);
uint32_t cs_uring_inflight(const cs_uring_t *uring); /* submitted and not yet done */
/* Of those, the writes, or the reads, that the kernel has. */
uint32_t cs_uring_at_kernel(const cs_uring_t *uring, bool write);
int cs_uring_event_fd(const cs_uring_t *uring); /* readable when reap has work */
/* Makes event_fd quiet. Call it before reap, never after: a transfer that ends in between ticks again. */
void cs_uring_clear_event(cs_uring_t *uring);
const char *cs_io_mode_name(cs_io_mode_t mode);

#endif
