/*
 * The memory tier: whole checked records in registered memory, shared by all who read them at once.
 *
 * A record is asked for by object key and header sum, so a move on disk keeps it and other bytes under the same key are
 * another record. Whoever finds nothing gets a *fill*: memory to read the record into; whoever asks meanwhile waits for
 * that fill instead of reading again. A record that somebody views is never moved, reused or evicted.
 *
 * Memory comes from the tier's own slabs (opts.bytes, one mapping) or, where those have no room or the tier has none,
 * from a pool buffer, which goes home with the last view. What is in the slabs stays until the room is needed: a
 * probation queue, a main queue and ghosts of those that left too early (S3-FIFO) decide who goes.
 *
 * Threads: everything may be called from any thread; one mutex, held for a few list operations, never over a callback.
 * It nests inside the store's lock; below it is only the pool's.
 */
#ifndef CS_RAMTIER_H
#define CS_RAMTIER_H

#include <stdbool.h>
#include <stdint.h>

#include "bufpool.h"
#include "vc/kvrec.h"

typedef struct cs_ramtier cs_ramtier_t;

/* One checked record in registered memory, shared by all who read it at once: immutable, counted, valid until released.
 * A view may outlive its pin, its lease, the object and the store; not the tier. */
typedef struct cs_view {
    const uint8_t *data; /* 4 KiB aligned */
    uint32_t bytes;      /* whole record */
} cs_view_t;
typedef void (*cs_get_done_fn)(void *arg, vc_status_t status, cs_view_t *view); /* view NULL unless OK */
void cs_view_release(cs_view_t *view);                                          /* any thread; NULL is fine */

typedef struct cs_ramtier_opts {
    uint64_t bytes;      /* never more than this is touched; 0: no slabs, reads are shared in pool buffers only */
    uint64_t slab_bytes; /* 0: by the size of the pool's buffers. A record lies in one slab. */
    cs_bufpool_t *pool;  /* not owned */
} cs_ramtier_opts_t;

/* Reserves addresses, and attaches them to the pool for registration; memory is touched when it is used. Before workers
 * and data plane start. NOMEM with a sentence that names --ram. */
vc_status_t cs_ramtier_create(const cs_ramtier_opts_t *opts, cs_ramtier_t **ram_p, vc_err_t *err);
/* No view and no fill may be out; workers and data plane have stopped. */
void cs_ramtier_destroy(cs_ramtier_t *ram);
typedef struct cs_ram_key {
    vc_object_key_t object;
    uint32_t header_crc, bytes;
} cs_ram_key_t;

typedef struct cs_ram_fill { /* a record on its way into memory; ended exactly once */
    cs_view_t *view;
    uint8_t *data;      /* key.bytes long */
    uint32_t buf_index; /* as cs_io_t's */
} cs_ram_fill_t;

typedef enum {
    CS_RAM_HIT,    /* *view_p is the caller's */
    CS_RAM_JOINED, /* done runs when another's fill ends */
    CS_RAM_FILL,   /* *fill_p is the caller's to end; done runs then */
    CS_RAM_NO_ROOM /* no memory now: all of it is viewed */
} cs_ram_answer_t;
/* done may run before this returns, when the answer is JOINED. */
cs_ram_answer_t cs_ramtier_get(cs_ramtier_t *ram, const cs_ram_key_t *key, cs_get_done_fn done, void *arg,
                               cs_view_t **view_p, cs_ram_fill_t *fill_p);
/* What is there now, or NULL. is_use false: one more look of a reader whose first one was counted. */
cs_view_t *cs_ramtier_peek(cs_ramtier_t *ram, const cs_ram_key_t *key, bool is_use);
/* A fill for a record that nobody asked for yet: only into slabs, and only over what is free or on probation and
 * unused. False: it is there or on its way, or there is no such room. Its first use does not count as a second one. */
bool cs_ramtier_ahead(cs_ramtier_t *ram, const cs_ram_key_t *key, cs_ram_fill_t *fill_p);
/* Ends a fill: the record was read and checked (OK), or not. Runs done of all that wait, on this thread. */
void cs_ramtier_filled(cs_view_t *view, vc_status_t status);
/* Ends a fill of cs_ramtier_get whose read could not be started: as filled, but its own done does not run. */
void cs_ramtier_cancel(cs_view_t *view, vc_status_t status);
/* The object left the index, or its copy in memory is in doubt: the next who asks reads it again. */
void cs_ramtier_forget(cs_ramtier_t *ram, const vc_object_key_t *object);

typedef struct cs_ramtier_stats {
    uint64_t capacity_bytes, used_bytes; /* of the slabs, now */
    uint64_t records, views;             /* in slabs; held */
    uint64_t hits, misses;               /* asked for and there; asked for and read from disk */
    uint64_t evicted;
    uint64_t coalesced;    /* asked for while it was being read */
    uint64_t ahead;        /* fills that nobody had asked for */
    uint64_t ahead_used;   /* of those: asked for later */
    uint64_t ahead_wasted; /* of those: evicted unused */
} cs_ramtier_stats_t;
void cs_ramtier_get_stats(cs_ramtier_t *ram, cs_ramtier_stats_t *stats_p);

#endif
