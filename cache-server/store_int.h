/*
 * Inside of the store, shared by store_*.c. One mutex (mu) guards everything here but what a comment excepts; it is
 * never held over a system call that can block, nor over a callback.
 *
 *   store.c          open, close, tick, stats, operations in flight
 *   store_recover.c  from catalog rows and files to the state in memory
 *   store_names.c    keyspaces, columns, prefixes, ghosts, removing an entry from all of them
 *   store_lookup.c   lookup, leases, pins
 *   store_report.c   what is leased, for people
 *   store_read.c     reads and their checks
 *   store_get.c      views of whole records, read-ahead
 *   store_scrub.c    the background re-read
 *   store_upload.c   begin, put, abort, expiry
 *   store_health.c   is the data directory ours and writable; the way back from read-only
 *   store_keyspaces.c  the keyspace file
 *   store_commit.c   the commit thread: group commit, catalog deletes
 *   store_space.c    budget, ballast, low-water mark
 *   store_room.c     the space thread: free segments ahead of need, puts that wait
 *   store_evict.c    eviction of objects, choice of the segment to clean
 *   store_compact.c  cleaning: survivors move, the file is free again
 *   store_segments.c free and sealed segments, making and removing files
 *   store_pins.c     pins that last, deletes
 *   store_uses.c     use counts that outlive a restart
 *   store_tenants.c  what a tenant takes, and its quota
 */
#ifndef CS_STORE_INT_H
#define CS_STORE_INT_H

#include <pthread.h>

#include "catalog.h"
#include "index.h"
#include "policy.h"
#include "segment.h"
#include "steady.h"
#include "store.h"
#include "store_scrub.h"
#include "uring.h"

#define CS_MAX_FIDELITIES 8u
#define CS_MAX_KEYSPACES 4096u
#define CS_MAX_COLUMNS 4096u
#define CS_MAX_OPS 65536u
#define CS_GHOSTS 65536u    /* remembered removals; power of two */
#define CS_MAX_SUSPECTS 64u /* records waiting to be read again */
#define CS_META_FLOOR_BYTES ((uint64_t)16 << 20)
#define CS_MIN_SEGMENTS 4u         /* one open per class, one being filled, one to be evicted */
#define CS_COMPACT_MIN_SEGMENTS 8u /* with fewer, survivors would take too much of the whole: segments are emptied */
#define CS_LOW_WATER_BYTES CS_CATALOG_UNFLUSHED_BYTES
#define CS_MAX_SEGMENTS ((uint32_t)1 << 20)
#define CS_NO_NAME UINT16_MAX

typedef struct cs_keyspace_slot {
    vc_digest_t id;
    vc_keyspace_t ks;
    uint32_t objects, uploads; /* 0 and 0: the slot may be reused */
    uint16_t tenant;
    bool is_used, is_stored; /* stored: the catalog has it */
    bool is_saved;           /* the keyspace file has it */
    bool has_old;            /* the row of the slot's former keyspace is still there */
    vc_digest_t old_id;
} cs_keyspace_slot_t;

typedef struct cs_tenant { /* the keyspaces of one salt */
    vc_digest_t salt;
    uint32_t keyspaces;        /* slots that name it; 0: unused */
    uint32_t hand;             /* entry looked at last */
    uint64_t bytes, uploading; /* of committed objects; of extents that are not committed */
} cs_tenant_t;

typedef struct cs_column_slot {
    cs_fidelity_t fid;
    uint32_t objects, uploads;
    bool is_used;
} cs_column_slot_t;

typedef struct cs_prefix { /* one registration; blocks of later ones that go through its tip join it */
    uint32_t id;           /* never reused; 0 is "none" */
    vc_digest_t tip;
    uint16_t keyspace;
    uint32_t n_blocks, n_head_tokens;
    uint32_t head_tokens[CS_HEAD_TOKENS];
    uint64_t hits, bytes;
    uint32_t objects, uploads;
} cs_prefix_t;

typedef struct cs_hold { /* an object kept from eviction; the entry's number is valid until it is released */
    uint32_t entry, pages;
} cs_hold_t;

typedef struct cs_sequence { /* how a column of a lease is read */
    uint32_t next, run;      /* the block after the last one asked for; how many came in order up to there */
    uint32_t ahead;          /* blocks before this one were read ahead, or tried */
} cs_sequence_t;

typedef struct cs_lease {
    uint64_t id, expires_us, created_us, bytes;
    cs_token_t token;
    uint32_t first[CS_MAX_FIDELITIES], n[CS_MAX_FIDELITIES]; /* into holds */
    uint16_t columns[CS_MAX_FIDELITIES];
    cs_sequence_t sequence[CS_MAX_FIDELITIES];
    uint32_t n_holds;
    cs_hold_t holds[];
} cs_lease_t;

typedef enum {
    CS_OBJECT_MISSING = 0,
    CS_OBJECT_WRITING, /* extent taken, bytes on their way */
    CS_OBJECT_WRITTEN, /* in the segment, not yet visible */
    CS_OBJECT_PRESENT  /* was or became visible by another upload; held */
} cs_object_state_t;

typedef struct cs_upload_object {
    uint8_t state;                             /* cs_object_state_t */
    uint32_t segment, page, pages, header_crc; /* the extent, while WRITING or WRITTEN */
    cs_hold_t hold;                            /* while PRESENT */
} cs_upload_object_t;

typedef enum { CS_UPLOAD_OPEN = 0, CS_UPLOAD_COMMITTING, CS_UPLOAD_DEAD } cs_upload_state_t;

typedef struct cs_upload {
    uint64_t id, deadline_us;
    cs_token_t token;
    uint8_t state; /* DEAD: aborted or expired, waits for its last write */
    uint32_t writing;
    uint32_t prefix; /* while it is being committed */
    uint16_t keyspace, n_fid;
    uint16_t columns[CS_MAX_FIDELITIES];
    uint32_t first_block, n_blocks;
    uint32_t n_head_tokens, head_tokens[CS_HEAD_TOKENS];
    vc_digest_t *hashes;         /* [n_blocks] */
    cs_upload_object_t *objects; /* [n_fid][n_blocks - first_block] */
    cs_io_done_fn done;          /* of the commit */
    void *done_arg;
    vc_status_t status;
    struct cs_upload *next; /* commit queue */
} cs_upload_t;

typedef struct cs_op { /* one asynchronous read or put */
    cs_io_t io;
    cs_store_t *store;
    cs_worker_t *worker;
    cs_io_done_fn done;
    void *arg;
    cs_pin_t pin;
    bool is_ahead; /* the pin is the operation's own */
    cs_upload_t *upload;
    uint32_t object;
    cs_class_t class_id;
    vc_status_t status;
    struct cs_op *next; /* free list, or the queue of puts that wait for room */
} cs_op_t;

typedef struct cs_scrub { /* info.running guards the rest of a pass */
    cs_scrub_info_t info;
    uint32_t cursor;     /* next entry id */
    uint32_t yields;     /* in a row, to other transfers */
    uint64_t started_us; /* of the pass */
    uint64_t next_us;    /* when the next automatic pass is due */
    double level;        /* bytes that may be read; negative = debt */
    uint64_t filled_us;
    uint8_t *data; /* whoever runs the steps; one record */
    uint32_t cap;
} cs_scrub_t;

typedef struct cs_move {         /* one record of a segment that is cleaned */
    uint32_t entry, page, pages; /* where it was */
    cs_segment_t *to;            /* NULL: dropped, not copied */
    uint32_t to_page;
} cs_move_t;

typedef struct cs_target { /* survivors' segment written to; its writers are ours */
    cs_segment_t *segment;
    uint32_t writers;
} cs_target_t;

#define CS_CLEAN_TARGETS 4u
typedef enum {
    CS_CLEAN_IDLE = 0, /* the space thread's alone */
    CS_CLEAN_READY,    /* copied and synced: the commit thread may write the rows */
    CS_CLEAN_WRITING,
    CS_CLEAN_DONE
} cs_clean_state_t;

typedef struct cs_clean { /* the segment being cleaned */
    uint8_t state;        /* cs_clean_state_t; under mu */
    bool remove;          /* the file goes, too */
    cs_segment_t *victim;
    cs_move_t *moves;
    uint32_t n_moves, n_moved, n_staged; /* moved: in the index, too; staged: in the batch being written */
    cs_target_t targets[CS_CLEAN_TARGETS];
    uint32_t n_targets;
} cs_clean_t;

typedef struct cs_pin_op { /* a row of the pins family to write or delete */
    vc_object_key_t key;
    bool is_pinned;
} cs_pin_op_t;

typedef struct cs_table { /* slots with ids that are never reused: id = serial << 16 | slot */
    void **slots;
    uint32_t n, used;
    uint64_t serial;
} cs_table_t;

struct cs_store {
    cs_store_opts_t opts;
    cs_ramtier_t *own_ram; /* where the options name none */
    bool reads_ahead;      /* the tier has room of its own */
    char *data_dir;
    int lock_fd;
    uint64_t boot_id, generation;
    /* Changed by the commit thread only, under mu; whoever reads it without learns it a moment later. */
    _Atomic bool readonly;
    bool is_disk_full;  /* at start, even without the ballast */
    bool is_lost;       /* the path does not lead to our files any more; commit thread, under mu */
    cs_steady_t steady; /* opts.clock */
    pthread_mutex_t mu;
    pthread_mutex_t files; /* file work of the space thread against reopening; outside mu */
    pthread_cond_t commit_work, tick_work, scrub_work, space_work, idle;
    pthread_t commit_thread, tick_thread, scrub_thread, space_thread;
    bool has_space_thread, has_commit_thread, has_tick_thread, has_scrub_thread, stopping, closing;

    cs_index_t *index;
    cs_policy_t *policy;   /* which object goes next; ids are the index's */
    cs_index_t *pending;   /* commit thread: entries of the batch being written */
    cs_catalog_t *catalog; /* commit thread only, after open */
    cs_segdir_t *segdir;
    cs_segment_t **segments;            /* by number; NULL: no such file */
    uint32_t cap_segments;              /* length of the array */
    uint32_t n_segments, lowest_unused; /* lowest_unused: no smaller number is */
    cs_segment_t **ranked;              /* heap of the sealed ones by live bytes; as long as segments */
    uint32_t n_ranked;
    uint64_t ranked_bytes, ranked_live;    /* sums over it */
    cs_segment_t *free_segments, *retired; /* through next; retired: emptied, maybe still read */
    uint32_t n_free_segments, n_retired;
    cs_clean_t clean;
    uint8_t *copy_buf; /* space thread */
    uint32_t copy_cap;
    bool no_copies;         /* space thread, under mu: cleaning failed, this turn empties segments instead */
    uint64_t segment_bytes; /* of new files */
    uint64_t segments_total_bytes;
    cs_segment_t *open[CS_N_CLASSES];

    cs_tenant_t *tenants;
    uint32_t n_tenants; /* slots ever used */
    cs_keyspace_slot_t *keyspaces;
    cs_column_slot_t *columns;
    uint32_t n_keyspaces, n_columns; /* slots ever used */
    cs_prefix_t *prefixes;           /* unordered */
    uint32_t n_prefixes, cap_prefixes, next_prefix_id;
    uint32_t *prefix_slots; /* id % n -> position + 1; open addressing by id */
    uint32_t n_prefix_slots;
    uint64_t *ghosts; /* hash prefix with the reason in the low bits */

    cs_table_t leases, uploads;
    cs_op_t *free_ops, *waiting, **waiting_end;
    void **op_chunks;
    uint32_t n_op_chunks, n_ops, ops_running;

    cs_upload_t *commits, **commits_end;
    vc_object_key_t *drops; /* catalog rows to delete: damaged records, and batches that failed */
    uint32_t n_drops, cap_drops;
    cs_pin_op_t *pin_ops;
    uint32_t n_pin_ops, cap_pin_ops;
    /* Who waits for rows to be durable takes the next ticket; the commit thread counts up to it. */
    uint64_t rows_ticket, rows_seen, rows_durable, rows_failed;
    pthread_cond_t rows_written;
    cs_segment_t *used;       /* segments with uses that are not stored, through next_used */
    uint64_t n_uses, uses_us; /* not stored, of all; when they were last */
    uint32_t *dead_prefixes;
    uint32_t n_dead_prefixes, cap_dead_prefixes;
    cs_pin_t suspects[CS_MAX_SUSPECTS];
    uint32_t n_suspects;
    cs_scrub_t scrub;

    bool recheck;                        /* the tick asks the commit thread to look at the disk again */
    bool room_due;                       /* the space thread has to look */
    uint64_t refused_upload, refused_us; /* the last one that found no room, and when */
    bool drops_due;                      /* rows to delete do not wait for the next batch */
    bool no_space;                       /* below the low-water mark: commits and new uploads are refused */
    bool is_degraded;                    /* a catalog write failed: refused until it was reopened */
    uint64_t ballast_bytes, catalog_bytes;
    uint64_t pinned_bytes;
    cs_refusals_t refusals;
    cs_store_stats_t stats; /* counters; gauges are filled in by get_stats */
};

static inline void cs_lock(cs_store_t *s) { pthread_mutex_lock(&s->mu); }
static inline void cs_unlock(cs_store_t *s) { pthread_mutex_unlock(&s->mu); }
static inline uint64_t cs_now_us(const cs_store_t *s) { return vc_clock_now_us(s->opts.clock); }
static inline uint32_t cs_now_s(const cs_store_t *s) { return (uint32_t)(cs_now_us(s) / 1000000u); }

/* ---- store.c ---- */
vc_status_t cs_table_init(cs_table_t *table, uint32_t n);
/* 0 when full. */
uint64_t cs_table_add(cs_table_t *table, void *item);
void *cs_table_get(const cs_table_t *table, uint64_t id); /* items begin with their id */
void cs_table_remove(cs_table_t *table, uint64_t id);
cs_op_t *cs_op_get(cs_store_t *s); /* locked; counts as running; NULL: too many or no memory */
void cs_op_put(cs_store_t *s, cs_op_t *op);
/* Hands the op's transfer to its worker. BUSY: the worker's ring is full and nothing happened. */
vc_status_t cs_op_start(cs_op_t *op);
/* As done on its worker with status; used by threads that are no workers. */
void cs_op_fail(cs_op_t *op, vc_status_t status);
cs_fid_stats_t *cs_fid_stats(cs_store_t *s, uint8_t fidelity);
vc_status_t cs_writable(const cs_store_t *s, vc_err_t *err); /* locked; OK, READONLY, NOSPACE, IO */

/* ---- store_recover.c ---- */
vc_status_t cs_recover(cs_store_t *s, vc_err_t *err);

/* ---- store_names.c (locked) ---- */
uint16_t cs_keyspace_find(const cs_store_t *s, const vc_digest_t *id); /* CS_NO_NAME when unknown */
uint16_t cs_keyspace_add(cs_store_t *s, const vc_digest_t *id, const vc_keyspace_t *ks);
uint16_t cs_column_find(const cs_store_t *s, uint8_t fidelity, const vc_spec_id_t *spec);
uint16_t cs_column_add(cs_store_t *s, uint8_t fidelity, const vc_spec_id_t *spec);
cs_prefix_t *cs_prefix_find(const cs_store_t *s, uint32_t id);
cs_prefix_t *cs_prefix_add(cs_store_t *s, uint32_t id); /* NULL: no memory. Pointers move. */
void cs_prefix_release(cs_store_t *s, uint32_t id);     /* removes it when nothing is left of it */
void cs_ghost_add(cs_store_t *s, uint16_t column, const vc_digest_t *hash, cs_miss_t why);
cs_miss_t cs_ghost_find(const cs_store_t *s, uint16_t column, const vc_digest_t *hash);
void cs_entry_key(const cs_store_t *s, const cs_entry_t *entry, vc_object_key_t *key_p);
vc_status_t cs_entries_reserve(cs_store_t *s, uint32_t n); /* room for n more in index and policy */
/* Inserts (room reserved) and counts it everywhere; the segment must exist. */
uint32_t cs_entry_publish(cs_store_t *s, const cs_entry_t *entry);
/* Removes from index, segment list, counters; leaves a ghost. */
void cs_entry_drop(cs_store_t *s, uint32_t id, cs_miss_t why);
/* The row is deleted soon, or (later) with the next batch that is written anyway. */
void cs_queue_drop(cs_store_t *s, const vc_object_key_t *key);
void cs_drop_later(cs_store_t *s, const vc_object_key_t *key);

/* ---- store_lookup.c (locked) ---- */
void cs_pin_entry(cs_store_t *s, uint32_t id, cs_pin_t *pin_p);
cs_hold_t cs_hold_entry(cs_store_t *s, uint32_t id);
void cs_hold_release(cs_store_t *s, const cs_hold_t *hold);
void cs_lease_free(cs_store_t *s, cs_lease_t *lease);
void cs_leases_expire(cs_store_t *s, uint64_t now_us);

/* ---- store_read.c ---- */
typedef struct cs_transfer { /* what is read of a record, and where to */
    uint32_t offset, bytes;
    uint8_t *data;
    uint32_t buf_index;
    bool is_ahead;
} cs_transfer_t;
/* done: as of cs_store_read. BUSY: nothing was started. Takes the lock. */
vc_status_t cs_read_start(cs_store_t *s, cs_worker_t *worker, const cs_pin_t *pin, const cs_transfer_t *what,
                          cs_io_done_fn done, void *arg);
void cs_log_corrupt(const cs_pin_t *pin, const char *why);
/* Takes the lock. False: the copy that was read is no longer the one that the index names. */
bool cs_drop_corrupt(cs_store_t *s, const cs_pin_t *pin);
void cs_check_suspects(cs_store_t *s); /* takes the lock */

/* ---- store_scrub.c (take the lock) ---- */
void *cs_scrub_main(void *arg);
/* Without a thread: does what the clock allows. */
void cs_scrub_tick(cs_store_t *s);

/* ---- store_upload.c (locked) ---- */
cs_segment_t *cs_object_segment(cs_store_t *s, const cs_upload_object_t *object);
/* Gives back everything but the struct itself, which the caller frees. No write may be running. */
void cs_upload_detach(cs_store_t *s, cs_upload_t *upload);
void cs_upload_end(cs_store_t *s, cs_upload_t *upload); /* frees now, or after the last write */
void cs_uploads_expire(cs_store_t *s, uint64_t now_us);
/* Takes an extent for a waiting op. AGAIN: no room now. */
vc_status_t cs_put_allocate(cs_store_t *s, cs_op_t *op);
void cs_put_undo(cs_store_t *s, cs_op_t *op); /* gives the extent back, the object is missing again */

/* ---- store_keyspaces.c ---- */
/* Writes the keyspace file where it lacks one. Commit thread or open; takes the lock. A failure is logged only. */
void cs_keyspaces_save(cs_store_t *s);

/* ---- store_commit.c ---- */
void *cs_commit_main(void *arg);
/* Writes what a cleaning staged, where there is no commit thread yet. False: the write failed. Takes the lock. */
bool cs_commit_clean(cs_store_t *s);

/* ---- store_space.c ---- */
uint64_t cs_smallest_capacity(const cs_store_opts_t *opts);
uint64_t cs_segments_budget(const cs_store_t *s); /* locked */
uint64_t cs_disk_total(const cs_store_t *store);  /* size of the file system; 0: unknown */
uint64_t cs_disk_free(const cs_store_t *s);       /* statvfs; no lock */
vc_status_t cs_ballast_make(cs_store_t *s, vc_err_t *err);
void cs_ballast_release(cs_store_t *s);
/* Below the low-water mark: releases the ballast, flushes and stops writes. Back above it: undoes that. Commit thread
 * or open; takes the lock. */
vc_status_t cs_space_check(cs_store_t *s);
/* A catalog write failed: no more writes until it was reopened. Takes the lock. */
void cs_degrade(cs_store_t *s, const vc_err_t *why);

/* ---- store_room.c ---- */
void *cs_space_main(void *arg);
void cs_room_wanted(cs_store_t *s); /* locked; wakes the space thread */
/* Evicts and removes files until the budget holds. Open only; takes the lock. */
void cs_space_shrink(cs_store_t *s);
/* Starts or refuses puts that wait. False: the first one needs room. Space thread; takes the lock. */
bool cs_waiting_serve(cs_store_t *s);

/* ---- store_segments.c (locked, but the last two) ---- */
/* Adds a copy to the array. */
vc_status_t cs_segments_put(cs_store_t *s, const cs_segment_t *segment, cs_segment_t **segment_p);
void cs_segments_forget(cs_store_t *s, cs_segment_t *segment); /* out of the array, freed */
/* After each change of its state, writers or live bytes. */
void cs_segment_rank(cs_store_t *s, cs_segment_t *segment);
void cs_segment_writer_gone(cs_store_t *s, cs_segment_t *segment);
void cs_segment_set_free(cs_store_t *s, cs_segment_t *segment);
cs_segment_t *cs_segment_pop_free(cs_store_t *s);
void cs_segment_seal(cs_store_t *s, cs_class_t class_id); /* the open one of the class, where there is one */
/* Takes a free segment for the class, sealing the one that was open. False: none is free. */
bool cs_segment_take(cs_store_t *s, cs_class_t class_id);
uint32_t cs_segments_allowed(const cs_store_t *s); /* how many the budget has room for */
bool cs_segments_can_compact(const cs_store_t *s);
uint32_t cs_segments_reserve(const cs_store_t *s);                 /* free ones that are kept for survivors */
void cs_segment_remove_file(cs_store_t *s, cs_segment_t *segment); /* and forgets it */
vc_status_t cs_segment_make_file(cs_store_t *s);                   /* one more free segment */

/* ---- store_pins.c (locked) ---- */
void cs_pin_set(cs_store_t *s, uint32_t id, bool is_kept); /* in memory */
void cs_pin_queue(cs_store_t *s, const vc_object_key_t *key, bool is_kept);
uint32_t cs_pins_stage(cs_store_t *s);
void cs_pins_forget(cs_store_t *s, uint32_t n);
void cs_rows_settle(cs_store_t *s, uint64_t ticket, bool is_durable); /* wakes who waits */

/* ---- store_uses.c (locked) ---- */
void cs_use(cs_store_t *s, uint32_t id, uint32_t now_s); /* the object was found by a lookup that took it */
void cs_uses_restore(cs_store_t *s, const cs_segment_t *segment, const cs_uses_row_t *row);
bool cs_uses_due(const cs_store_t *s);
void cs_uses_stage(cs_store_t *s); /* commit thread: puts some of what is not stored into the batch */
void cs_uses_mark(cs_store_t *s, cs_segment_t *segment);
void cs_uses_unmark(cs_store_t *s, cs_segment_t *segment);

/* ---- store_tenants.c (locked, but evict) ---- */
uint16_t cs_tenant_join(cs_store_t *s, const vc_keyspace_t *ks); /* one more keyspace of its salt */
void cs_tenant_leave(cs_store_t *s, uint16_t tenant);
void cs_tenant_count(cs_store_t *s, uint32_t keyspace, int64_t stored, int64_t uploading);
void cs_tenant_stats(const cs_store_t *s, cs_store_stats_t *stats);
bool cs_tenant_is_over(const cs_store_t *s, uint32_t keyspace);
/* NOSPACE: not even without its committed objects would the quota have room for bytes more. */
vc_status_t cs_tenant_check(cs_store_t *s, uint32_t keyspace, uint64_t bytes, vc_err_t *err);
/* Evicts its objects until it is within its quota. False: what is left is held. Takes the lock in short steps. */
bool cs_tenant_evict(cs_store_t *s, uint32_t keyspace);

/* ---- store_evict.c ---- */
/* Puts what waits for deletion into the catalog's batch; forget drops it once that was written. Locked. */
void cs_drops_stage(cs_store_t *s, uint32_t *n_drops_p, uint32_t *n_dead_p);
void cs_drops_forget(cs_store_t *s, uint32_t n_drops, uint32_t n_dead);
bool cs_entry_is_kept(const cs_entry_t *entry);
void cs_evict_entry(cs_store_t *s, uint32_t id); /* locked */
/* Evicts until a segment is worth cleaning; it is FILLING then. NOSPACE: what is left is held, or being written. Takes
 * the lock in short steps. */
vc_status_t cs_evict_for_victim(cs_store_t *s, cs_segment_t **victim_p);

/* ---- store_compact.c ---- */
/* Moves what lives in a FILLING segment, makes that durable, and retires it; SEALED again after a failure. Space thread
 * or open, with files locked; takes the lock. */
vc_status_t cs_clean_segment(cs_store_t *s, cs_segment_t *victim, bool remove);
/* Segments that nobody reads any more become free, or go. As above. */
void cs_retired_recycle(cs_store_t *s);
bool cs_clean_stage(cs_store_t *s); /* commit thread, locked; false: nothing to write */
void cs_clean_finish(cs_store_t *s, vc_status_t status);

#endif
