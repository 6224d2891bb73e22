/*
 * Bounded lock-free queue of fixed-size elements; many producers, many consumers. The only way between threads.
 * Never blocks: a full or empty ring answers AGAIN, and the caller decides (sleep on an eventfd, back-pressure).
 */
#ifndef VC_RING_H
#define VC_RING_H

#include <stddef.h>

#include "vc/status.h"

typedef struct vc_ring vc_ring_t;

/* capacity is rounded up to a power of two. */
vc_status_t vc_ring_create(size_t capacity, size_t elem_bytes, vc_ring_t **ring_p);
void vc_ring_destroy(vc_ring_t *ring);
vc_status_t vc_ring_push(vc_ring_t *ring, const void *elem); /* OK or AGAIN (full) */
vc_status_t vc_ring_pop(vc_ring_t *ring, void *elem_p);      /* OK or AGAIN (empty) */
size_t vc_ring_count(const vc_ring_t *ring);                 /* a snapshot */

#endif
