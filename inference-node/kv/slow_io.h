/*
 * Transfers between memory and files of the slow tier: an io_uring, or a few pread/pwrite threads where the kernel or a
 * sandbox refuses io_uring. Knows descriptors and buffers, nothing of pages.
 *
 * Owner: one thread at a time calls it (not always the same one). Memory of a request is the caller's until it is done.
 */
#ifndef NODE_SLOW_IO_H
#define NODE_SLOW_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vc/clock.h"
#include "vc/status.h"

typedef enum { NODE_SLOW_IO_AUTO = 0, NODE_SLOW_IO_RING, NODE_SLOW_IO_THREADS } node_slow_io_mode_t;
typedef struct node_slow_io node_slow_io_t;

typedef struct node_slow_req {
    int fd;
    uint8_t *data; /* data, offset, bytes: multiples of 4096, for O_DIRECT */
    uint64_t offset;
    uint32_t bytes;
    bool write;
    int buffer; /* index of the registered buffer that holds data, or -1 */
    /* OK, RANGE: the file ended before, NOSPACE, or as errno says; valid once it is done */
    vc_status_t status;
    int error; /* errno behind it, or 0 */
    bool done; /* set by poll and wait only */
    /* private */
    uint32_t moved, idle;
    struct node_slow_req *next;
} node_slow_req_t;

typedef struct node_slow_io_opts {
    node_slow_io_mode_t mode;
    uint32_t depth;          /* requests at the kernel at once; more wait inside, in order */
    const vc_clock_t *clock; /* NULL: the system's */
    uint64_t delay_seed;     /* not 0 (tests): completions are held back, and let go by poll and wait in an order that
                                this number and the calls decide alone */
} node_slow_io_opts_t;

/* AUTO logs a step down to threads; RING is UNSUPPORTED where io_uring is refused. */
vc_status_t node_slow_io_create(const node_slow_io_opts_t *opts, node_slow_io_t **io_p, vc_err_t *err);
/* Waits for everything first. */
void node_slow_io_destroy(node_slow_io_t *io);
node_slow_io_mode_t node_slow_io_mode(const node_slow_io_t *io); /* RING or THREADS */
/* Registers n buffers of the same size, which spares their pages being pinned for each read. False where the memlock
 * limit refuses it, or without a ring: then requests carry buffer -1. */
bool node_slow_io_register(node_slow_io_t *io, uint8_t *const *buffers, uint32_t n, size_t bytes);
void node_slow_io_submit(node_slow_io_t *io, node_slow_req_t *req);
/* Hands what was submitted to the kernel. */
void node_slow_io_flush(node_slow_io_t *io);
/* Takes in what has been completed. Never waits (but to keep delay_seed's order). */
void node_slow_io_poll(node_slow_io_t *io);
/* Returns when the request is done; one that was never submitted counts as done when it was zeroed with done = true. */
void node_slow_io_wait(node_slow_io_t *io, node_slow_req_t *req);
uint32_t node_slow_io_reads(const node_slow_io_t *io);   /* submitted and not done */
uint64_t node_slow_io_busy_us(const node_slow_io_t *io); /* time with a read submitted and not done */

#endif
