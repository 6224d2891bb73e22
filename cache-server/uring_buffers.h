/*
 * Registered buffers of one io_uring: the pool's, all at once, and the slabs attached to the pool, each when (nearly)
 * all of it has been in use: registering it touches all of it, which would hold up the worker. Inside of uring*.c.
 */
#ifndef CS_URING_BUFFERS_H
#define CS_URING_BUFFERS_H

#include <liburing.h>
#include <stdbool.h>

#include "bufpool.h"

typedef struct cs_uring_buffers {
    cs_bufpool_t *pool;
    uint32_t n_pool, n_slabs;
    uint8_t *slab_states; /* [n_slabs]; NULL: the kernel cannot add buffers later */
} cs_uring_buffers_t;

/* 0 or a negative errno; then nothing is registered. */
int cs_uring_buffers_init(cs_uring_buffers_t *buffers, struct io_uring *ring, cs_bufpool_t *pool);
void cs_uring_buffers_fini(cs_uring_buffers_t *buffers);
/* May buffer index be used for a fixed transfer? Registers a slab whose time has come. */
bool cs_uring_buffers_ready(cs_uring_buffers_t *buffers, struct io_uring *ring, uint32_t index);

#endif
