/*
 * Transfers between memory and one file of the slow tier: an io_uring, or a few pread/pwrite threads where the kernel
 * or a sandbox refuses io_uring. Knows a descriptor and buffers, nothing of pages.
 *
 * Owner: one thread at a time calls it (not always the same one). Memory of a request is the caller's until it is done.
 */
#ifndef NODE_SLOW_IO_H
#define NODE_SLOW_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vc/status.h"

typedef enum { NODE_SLOW_IO_AUTO = 0, NODE_SLOW_IO_RING, NODE_SLOW_IO_THREADS } node_slow_io_mode_t;
typedef struct node_slow_io node_slow_io_t;

typedef struct node_slow_req {
    uint8_t *data; /* data, offset, bytes: multiples of 4096, for O_DIRECT */
    uint64_t offset;
    uint32_t bytes;
    bool write;
    int buffer; /* index of the registered buffer that holds data, or -1 */
    /* OK, RANGE: the file ended before, NOSPACE, or as errno says; valid after wait */
    vc_status_t status;
    int error; /* errno behind it, or 0 */
    /* private */
    bool done;
    uint32_t moved, idle;
    struct node_slow_req *next;
} node_slow_req_t;

/* fd stays the caller's. depth: requests at the kernel at once; more wait inside. AUTO logs a step down to threads;
 * RING is UNSUPPORTED where io_uring is refused. */
vc_status_t node_slow_io_create(node_slow_io_mode_t mode, int fd, uint32_t depth, node_slow_io_t **io_p, vc_err_t *err);
/* Waits for everything first. */
void node_slow_io_destroy(node_slow_io_t *io);
node_slow_io_mode_t node_slow_io_mode(const node_slow_io_t *io); /* RING or THREADS */
/* Registers n buffers of the same size, which spares their pages being pinned for each read. False where the memlock
 * limit refuses it, or without a ring: then requests carry buffer -1. */
bool node_slow_io_register(node_slow_io_t *io, uint8_t *const *buffers, uint32_t n, size_t bytes);
void node_slow_io_submit(node_slow_io_t *io, node_slow_req_t *req);
/* Hands what was submitted to the kernel. */
void node_slow_io_flush(node_slow_io_t *io);
/* Returns when the request is done; one that was never submitted counts as done when it was zeroed with done = true. */
void node_slow_io_wait(node_slow_io_t *io, node_slow_req_t *req);

#endif
