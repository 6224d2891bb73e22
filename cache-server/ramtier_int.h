/*
 * Inside of ramtier*.c; one mutex guards all of it.
 *   ramtier.c        get, fill, view, forget; the hash table
 *   ramtier_queue.c  the two queues and the ghosts: who goes when room is needed
 *   ramtier_life.c   create, destroy, stats; nodes
 */
#ifndef CS_RAMTIER_INT_H
#define CS_RAMTIER_INT_H

#include <pthread.h>

#include "pageruns.h"
#include "ramtier.h"

#define RT_PAGE 4096u
#define RT_FREQ_MAX 3u

typedef struct rt_waiter {
    cs_get_done_fn done;
    void *arg;
    struct rt_waiter *next;
} rt_waiter_t;

typedef enum { RT_NO_QUEUE = 0, RT_PROBATION, RT_MAIN } rt_queue_id_t;

/* A record's life: fill (one reference, its filler's) -> ready (one reference per view) -> gone. `listed` says that the
 * table has it: a forgotten record lives on, unlisted, until its last view is back. */
typedef struct rt_record {
    cs_view_t view; /* first: a view is its record */
    cs_ramtier_t *ram;
    cs_ram_key_t key;
    uint64_t hash;           /* of the key */
    struct rt_record *chain; /* of its bucket, or the free list */
    cs_buf_t *buf;           /* the memory is a pool buffer, */
    cs_run_t *run;           /* or a run of pages; then it is in a queue */
    struct rt_record *prev, *next;
    uint32_t refs;
    uint8_t queue, freq;
    bool is_ready, listed, is_ahead; /* ahead: nobody has asked for it yet */
    rt_waiter_t *waiters, **waiters_end;
} rt_record_t;

typedef struct rt_queue { /* new ones at the head, victims at the tail */
    rt_record_t *head, *tail;
    uint32_t n;
    uint64_t pages;
} rt_queue_t;

typedef struct rt_ghost { /* of a record that left probation without a second use */
    uint32_t fingerprint, serial;
} rt_ghost_t;

struct cs_ramtier {
    cs_ramtier_opts_t opts;
    pthread_mutex_t lock;
    rt_record_t **buckets;
    uint32_t n_buckets; /* power of two */
    rt_record_t *free_records;
    rt_waiter_t *free_waiters;
    void **chunks;
    uint32_t n_chunks;
    uint8_t *map, *base;
    size_t map_bytes;
    uint32_t n_pages, slab_pages;
    cs_pageruns_t *area; /* NULL: no slabs */
    rt_queue_t queues[3];
    rt_ghost_t *ghosts; /* [n_buckets] sets of four */
    uint32_t ghost_serial;
    uint64_t ahead_pages; /* read ahead, not yet asked for */
    cs_ramtier_stats_t stats;
};

/* ---- ramtier.c ---- */
void rt_unlist(rt_record_t *r);
/* Frees memory in a slab, and the node. No reference may be left. */
void rt_discard(rt_record_t *r);

/* ---- ramtier_queue.c ---- */
/* Memory for a record: r->run, and its place in a queue. False: no room without throwing out what is viewed; for a
 * record that is read ahead, also what has been used. */
bool rt_take_room(cs_ramtier_t *ram, rt_record_t *r);
void rt_dequeue(rt_record_t *r);
uint64_t rt_probation_pages(const cs_ramtier_t *ram); /* what the probation queue should have */

/* ---- ramtier_life.c ---- */
rt_record_t *rt_record_get(cs_ramtier_t *ram); /* zeroed; NULL: no memory */
rt_waiter_t *rt_waiter_get(cs_ramtier_t *ram);

#endif
