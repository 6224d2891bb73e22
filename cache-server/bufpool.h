/*
 * One pool of 4 KiB aligned buffers in a single mapping, registered once with every io_uring (fixed buffers) and with
 * UCX. Other memory that is to be registered with it (the memory tier's slabs) is attached. Two size classes would do;
 * one is enough here: every buffer holds the largest record. Thread-safe.
 */
#ifndef CS_BUFPOOL_H
#define CS_BUFPOOL_H

#include <stddef.h>
#include <stdint.h>

#include "vc/status.h"

typedef struct cs_bufpool cs_bufpool_t;

typedef struct cs_buf {
    uint8_t *data;
    size_t cap;
    uint32_t index; /* buffer number in the pool = io_uring fixed buffer index */
    uint32_t len;   /* free for the user */
    void *user;     /* free for the user */
} cs_buf_t;

/* buf_bytes: multiple of 4096. */
vc_status_t cs_bufpool_create(uint32_t n_bufs, size_t buf_bytes, cs_bufpool_t **pool_p, vc_err_t *err);
void cs_bufpool_destroy(cs_bufpool_t *pool);
/* NULL when all are out. */
cs_buf_t *cs_bufpool_get(cs_bufpool_t *pool);
void cs_bufpool_put(cs_bufpool_t *pool, cs_buf_t *buf);
/* Waits until one is free, at most timeout_ms. NULL on timeout. Not for worker threads. */
cs_buf_t *cs_bufpool_wait(cs_bufpool_t *pool, uint32_t timeout_ms);
/* Calls fn(arg) once, on the thread that returns a buffer, when one becomes free; for workers that found none.
 * fn may take it with cs_bufpool_get. */
void cs_bufpool_notify(cs_bufpool_t *pool, void (*fn)(void *arg), void *arg);
void *cs_bufpool_base(const cs_bufpool_t *pool, size_t *bytes_p);
uint32_t cs_bufpool_count(const cs_bufpool_t *pool);
size_t cs_bufpool_buf_bytes(const cs_bufpool_t *pool);
cs_buf_t *cs_bufpool_at(cs_bufpool_t *pool, uint32_t index);
/* One mapping in slabs of slab_bytes (the last may be shorter), for rings and UCX to register with the buffers; slab i
 * is fixed buffer count + i. Before workers and data plane start; it stays until they have stopped. Not owned. */
void cs_bufpool_attach(cs_bufpool_t *pool, void *base, size_t bytes, size_t slab_bytes);
void *cs_bufpool_attached(const cs_bufpool_t *pool, size_t *bytes_p, size_t *slab_bytes_p); /* NULL: none */
/* How much of it, from its start, has been in use: registering what nobody touched yet would touch it, and take long.
 * Any thread; what was said once is not taken back. */
void cs_bufpool_note_used(cs_bufpool_t *pool, size_t bytes);
size_t cs_bufpool_used(const cs_bufpool_t *pool);

#endif
