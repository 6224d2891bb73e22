/*
 * Bounded queue for many producers and many consumers (Vyukov's scheme): any thread may push or pop.
 *
 *     cells:  [seq|elem] [seq|elem] [seq|elem] [seq|elem]        position p lives in cell p & mask
 *               ^ tail: next position to pop    ^ head: next position to push
 *
 * Each cell's sequence number says whose turn it is: seq == p means free for the push of position p, seq == p + 1 means
 * filled and ready for the pop of position p, and that pop sets seq = p + capacity for the push one lap later. A thread
 * claims a position with a compare-and-swap on head or tail and then owns the cell until it advances seq; nobody else
 * touches the element meanwhile. A thread that sleeps between the two makes the ring look full or empty, never wrong.
 * Positions are unsigned and wrap around; differences are read as signed.
 */
#include "vc/ring.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "vc/mem.h"

#define CACHE_LINE 64
#define MAX_RING_BYTES ((size_t)1 << 32)

typedef struct ring_cell {
    _Atomic size_t seq;
    unsigned char elem[];
} ring_cell_t;

struct vc_ring {
    /* Producers write head, consumers write tail: on one line each push would stall the pops. */
    alignas(CACHE_LINE) _Atomic size_t head;
    alignas(CACHE_LINE) _Atomic size_t tail;
    alignas(CACHE_LINE) size_t mask; /* the rest never changes */
    size_t elem_bytes, stride;
    unsigned char *cells;
};

static ring_cell_t *cell_at(const vc_ring_t *ring, size_t pos)
{
    return (ring_cell_t *)(void *)(ring->cells + (pos & ring->mask) * ring->stride);
}

vc_status_t vc_ring_create(size_t capacity, size_t elem_bytes, vc_ring_t **ring_p)
{
    /* One cell would not do: "filled at position p" and "free for position p + 1" would be the same number. */
    size_t n = 2, stride, bytes;
    while (n < capacity && n <= SIZE_MAX / 4)
        n *= 2;
    if (elem_bytes == 0 || n < capacity || !vc_size_add(elem_bytes, sizeof(ring_cell_t) + 7, &stride))
        return VC_ERR_RANGE;
    stride &= ~(size_t)7;
    if (!vc_size_mul(n, stride, &bytes) || bytes > MAX_RING_BYTES)
        return VC_ERR_RANGE;
    vc_ring_t *ring = vc_alloc_aligned(CACHE_LINE, sizeof(*ring));
    if (ring == NULL)
        return VC_ERR_NOMEM;
    memset(ring, 0, sizeof(*ring));
    ring->cells = vc_alloc_aligned(CACHE_LINE, bytes);
    if (ring->cells == NULL) {
        vc_free(ring);
        return VC_ERR_NOMEM;
    }
    ring->mask = n - 1;
    ring->elem_bytes = elem_bytes;
    ring->stride = stride;
    /* No other thread has the ring yet; handing the pointer over orders these stores. */
    atomic_init(&ring->head, 0);
    atomic_init(&ring->tail, 0);
    for (size_t i = 0; i < n; i++)
        atomic_init(&cell_at(ring, i)->seq, i);
    *ring_p = ring;
    return VC_OK;
}

void vc_ring_destroy(vc_ring_t *ring)
{
    if (ring == NULL)
        return;
    vc_free(ring->cells);
    vc_free(ring);
}

/*
 * Claims the next position whose cell has seq == position + turn; NULL when that cell is not there yet.
 * Relaxed on the index: it only hands out positions, and a stale value makes the compare-and-swap fail or the sequence
 * check look again. Acquire on seq: it pairs with the release of the thread that had the cell before, so its reads or
 * writes of the element are over (push) or visible (pop) before ours begin.
 */
static ring_cell_t *claim(vc_ring_t *ring, _Atomic size_t *index, size_t turn, size_t *pos_p)
{
    size_t pos = atomic_load_explicit(index, memory_order_relaxed);
    for (;;) {
        ring_cell_t *cell = cell_at(ring, pos);
        size_t seq = atomic_load_explicit(&cell->seq, memory_order_acquire);
        ptrdiff_t ahead = (ptrdiff_t)(seq - (pos + turn));
        if (ahead < 0)
            return NULL;
        if (ahead > 0) { /* somebody took this position since we read the index */
            pos = atomic_load_explicit(index, memory_order_relaxed);
            continue;
        }
        if (atomic_compare_exchange_weak_explicit(index, &pos, pos + 1, memory_order_relaxed, memory_order_relaxed)) {
            *pos_p = pos;
            return cell;
        }
    }
}

vc_status_t vc_ring_push(vc_ring_t *ring, const void *elem)
{
    size_t pos;
    ring_cell_t *cell = claim(ring, &ring->head, 0, &pos);
    if (cell == NULL)
        return VC_ERR_AGAIN;
    memcpy(cell->elem, elem, ring->elem_bytes);
    /* Release: the element is written before a consumer can see that it is there. */
    atomic_store_explicit(&cell->seq, pos + 1, memory_order_release);
    return VC_OK;
}

vc_status_t vc_ring_pop(vc_ring_t *ring, void *elem_p)
{
    size_t pos;
    ring_cell_t *cell = claim(ring, &ring->tail, 1, &pos);
    if (cell == NULL)
        return VC_ERR_AGAIN;
    memcpy(elem_p, cell->elem, ring->elem_bytes);
    /* Release: the element is read before a producer can see that the cell is free. */
    atomic_store_explicit(&cell->seq, pos + ring->mask + 1, memory_order_release);
    return VC_OK;
}

size_t vc_ring_count(const vc_ring_t *ring)
{
    /* Relaxed: a snapshot for people and heuristics. The tail is read first, so it cannot be ahead of the head by
     * itself; reordering can still make the difference negative or too large, hence the clamp. */
    size_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    size_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    ptrdiff_t n = (ptrdiff_t)(head - tail);
    if (n < 0)
        return 0;
    return VC_MIN((size_t)n, ring->mask + 1);
}
