/*
 * What goes first when room is needed. Pure: values in, a choice out; no clock, no disk, no memory of its own.
 *
 * An object is worth (decayed uses) x (cost to compute it again); a segment is worth the sum of its live objects, and
 * gives back its whole file. So the victim is the segment with the least worth a byte; full copies go before
 * compressed ones, and a block whose chain has a hole is worth nothing.
 */
#ifndef CS_EVICT_H
#define CS_EVICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CS_EVICT_HALF_LIFE_S 3600u
#define CS_EVICT_FREQ_ONE 256u /* fixed point: one use */

/* Uses so far, halved for every half-life since the last one. */
uint16_t cs_evict_decay(uint16_t freq, uint32_t used_s, uint32_t now_s);
/* After one more use at now_s; saturates. */
uint16_t cs_evict_touch(uint16_t freq, uint32_t used_s, uint32_t now_s);
double cs_evict_object_worth(uint16_t freq, uint32_t used_s, uint32_t block_index, bool is_orphan, uint32_t now_s);

typedef struct cs_evict_segment {
    uint32_t id;       /* for the caller */
    bool is_full_copy; /* lifetime class */
    bool is_kept;      /* pinned, leased, written to: never a victim */
    uint64_t bytes;    /* what its reuse gives back */
    double worth;      /* sum over live objects */
} cs_evict_segment_t;

/* Index of the victim, or n when every segment is kept. The first of equals. */
size_t cs_evict_pick(const cs_evict_segment_t *segments, size_t n);

#endif
