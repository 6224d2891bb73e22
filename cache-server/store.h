/*
 * The store: the only place where an object key meets a location on disk.
 *
 * Threads: every function may be called from any thread unless it says otherwise. Asynchronous functions run their
 * callback on a data worker's thread (worker.h), or report an error by their return value, in which case the callback
 * never runs. Callbacks must not block.
 *
 * Life of an object: begin (which are missing?) -> put (bytes into a segment) -> commit (fdatasync, one synced RocksDB
 * batch, then the in-memory index). Visible entirely or not at all. Readers hold pins; a pinned range of a segment is
 * never reused, whatever happens to the object.
 */
#ifndef CS_STORE_H
#define CS_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "bufpool.h"
#include "ramtier.h"
#include "vc/clock.h"
#include "vc/kvrec.h"
#include "worker.h"

typedef struct cs_store cs_store_t;

typedef struct cs_store_opts {
    const char *data_dir;
    uint64_t capacity_bytes; /* hard cap over every file in data_dir */
    uint64_t ballast_bytes;  /* released when the disk runs full; inside the capacity */
    uint32_t lease_ms;       /* default life of a lease */
    uint32_t upload_ms;      /* an upload that gets no record and no commit for this long is freed */
    uint32_t max_uploads;    /* open at once; more are answered BUSY */
    uint32_t max_leases;
    uint64_t scrub_bytes;        /* per second, of the automatic passes (store_scrub.h); 0: none, the default */
    uint32_t scrub_interval_s;   /* from the start of one to the start of the next, at least */
    uint64_t tenant_quota_bytes; /* what the objects of one tenant salt may take; 0: no limit */
    bool rocksdb_sync;           /* false only in benches and tests that say so */
    bool no_maintenance_thread;  /* tests with a fake clock call cs_store_tick themselves */
    const vc_clock_t *clock;
    cs_workers_t *workers; /* not owned; outlives the store */
    cs_bufpool_t *pool;    /* not owned */
    cs_ramtier_t *ram;     /* not owned, outlives the store; NULL: reads are shared, but nothing is kept in memory */
} cs_store_opts_t;
void cs_store_opts_default(cs_store_opts_t *opts);

/* Recovers from what is there; logs what it found and how long it took. A read-only or full file system opens
 * read-only and says so. A directory that another process holds is refused (BUSY). */
vc_status_t cs_store_open(const cs_store_opts_t *opts, cs_store_t **store_p, vc_err_t *err);
/* Waits for running operations, flushes. Leases and uploads end. */
void cs_store_close(cs_store_t *store);
bool cs_store_is_readonly(const cs_store_t *store);
uint64_t cs_store_boot_id(const cs_store_t *store);    /* random per start */
uint64_t cs_store_generation(const cs_store_t *store); /* +1 per start, from RocksDB */

/* ---- lookup and leases ---- */

typedef struct cs_token {
    uint8_t b[16];
} cs_token_t; /* random 128 bits; whoever shows it may fetch or put */

typedef struct cs_fidelity { /* one wanted column of a lookup */
    uint8_t fidelity;        /* vc_fidelity_t */
    vc_spec_id_t spec;
} cs_fidelity_t;

typedef enum { CS_MISS_NONE = 0, CS_MISS_ABSENT, CS_MISS_EVICTED, CS_MISS_CORRUPT, CS_MISS_KEYSPACE } cs_miss_t;

typedef struct cs_lookup_result {
    uint32_t n_blocks[8]; /* per wanted fidelity: leading blocks present without a hole */
    uint64_t n_bytes[8];  /* record bytes of those */
    cs_miss_t miss[8];    /* why the first absent block is absent */
    uint64_t lease_id;    /* 0 when nothing was found or no lease was wanted */
    cs_token_t token;
    uint64_t lease_expires_us; /* on the store's clock */
} cs_lookup_result_t;

/* hashes[n_hashes] is a chain prefix; n_fid <= 8. want_lease: the found objects are kept until released or expired.
 * BUSY when max_leases are out. Counts hits and misses (blocks, tokens, bytes) per fidelity in the stats; without a
 * lease it is a probe, which counts nothing. */
vc_status_t cs_store_lookup(cs_store_t *store, const vc_digest_t *keyspace, const vc_digest_t *hashes,
                            uint32_t n_hashes, const cs_fidelity_t *fids, uint32_t n_fid, bool want_lease,
                            cs_lookup_result_t *result_p, vc_err_t *err);
/* The same of the chain that ends in a block of fids[0]; *hashes_p, freed with vc_free, names its blocks. None where
 * the tip or a block before it is absent from that column. RANGE: more than most_blocks. Counted neither as a use nor
 * as hit or miss: it is maintenance that asks so, no reader. */
vc_status_t cs_store_lookup_tip(cs_store_t *store, const vc_digest_t *keyspace, const vc_digest_t *tip,
                                uint32_t most_blocks, const cs_fidelity_t *fids, uint32_t n_fid, bool want_lease,
                                vc_digest_t **hashes_p, uint32_t *n_hashes_p, cs_lookup_result_t *result_p,
                                vc_err_t *err);
/* Names a registered keyspace that differs from ks in one field, for miss replies. NULL when none. Static storage. */
const char *cs_store_near_miss(cs_store_t *store, const vc_keyspace_t *ks);
vc_status_t cs_store_lease_renew(cs_store_t *store, uint64_t boot_id, uint64_t lease_id, const cs_token_t *token,
                                 uint32_t lease_ms, uint64_t *expires_us_p); /* OK, STALE, PERM */
vc_status_t cs_store_lease_release(cs_store_t *store, uint64_t boot_id, uint64_t lease_id, const cs_token_t *token);

/* ---- reading ---- */

typedef struct cs_pin { /* a located object that cannot move; copyable, unpin exactly once */
    uint32_t segment, version;
    uint64_t offset;
    uint32_t bytes; /* whole record, multiple of 4096 */
    uint32_t header_crc;
    vc_object_key_t key;
    uint64_t cookie;
    uint64_t lease_id;   /* 0: not of a lease */
    uint32_t fid, block; /* of the lease */
} cs_pin_t;

/* The i-th block of column `fid` of a lease. Constant-time token compare. OK, STALE (expired, or another boot), PERM,
 * RANGE, NOT_FOUND (dropped as corrupt since). The pin outlives the lease, and gives it lease_ms more from now. */
vc_status_t cs_store_pin_leased(cs_store_t *store, uint64_t boot_id, uint64_t lease_id, const cs_token_t *token,
                                uint32_t fid, uint32_t block, cs_pin_t *pin_p);
vc_status_t cs_store_pin_key(cs_store_t *store, const vc_object_key_t *key, cs_pin_t *pin_p);
void cs_store_unpin(cs_store_t *store, const cs_pin_t *pin);

/* status, then the bytes in the buffer given. Runs on a worker thread. */
typedef void (*cs_io_done_fn)(void *arg, vc_status_t status);

/* Reads the whole record into buf (>= pin->bytes) and checks header CRC, key and every layer CRC. A damaged record is
 * dropped from the index, counted, and answered CORRUPT. Asynchronous; the pin stays the caller's. worker: NULL = any.
 */
vc_status_t cs_store_read(cs_store_t *store, cs_worker_t *worker, const cs_pin_t *pin, cs_buf_t *buf,
                          cs_io_done_fn done, void *arg);
/* The record from memory (ramtier.h) where it is there, else by one disk read that all concurrent readers of it share.
 * OK with *view_p set: it was there, done never runs. OK with *view_p NULL: done runs later, or has run, on a worker
 * thread (another's read may end on another worker). Other: done never runs; AGAIN: no buffer is free now
 * (cs_bufpool_notify tells when). Checks and answers as cs_store_read. Blocks of a lease that are asked for in order
 * let the next ones be read into the memory tier ahead. Every view is back before the tier or, without one in the
 * options, the store is closed. */
vc_status_t cs_store_get(cs_store_t *store, cs_worker_t *worker, const cs_pin_t *pin, cs_view_t **view_p,
                         cs_get_done_fn done, void *arg);
/* The record if it is in memory now, else NULL: for those who want parts. again: not the first part they want. */
cs_view_t *cs_store_peek(cs_store_t *store, const cs_pin_t *pin, bool again);
cs_ramtier_t *cs_store_ramtier(cs_store_t *store);
/* A part of the record (offset and length multiples of 4096), unchecked; for layer-major streaming. */
vc_status_t cs_store_read_part(cs_store_t *store, cs_worker_t *worker, const cs_pin_t *pin, uint32_t offset,
                               uint32_t length, cs_buf_t *buf, uint32_t buf_offset, cs_io_done_fn done, void *arg);
/* A reader found wrong bytes at its end: re-read, and drop the record when the disk is at fault. */
void cs_store_report_corrupt(cs_store_t *store, const cs_pin_t *pin);
/* A receiver found damaged bytes on the wire (FETCH), or cs_store_put answered CORRUPT (PUT): whoever carried the bytes
 * counts it, once. */
void cs_store_count_wire_corrupt(cs_store_t *store);

/* ---- registration ---- */

typedef struct cs_upload_info {
    uint64_t upload_id;
    cs_token_t token;
    uint64_t deadline_us;
    uint32_t n_missing; /* objects that must be put before commit */
} cs_upload_info_t;

/* tokens[n_blocks * block_tokens] fix the chain. first_block: blocks before it are not part of this upload but must be
 * present or uploaded for the objects to be of use; any value is taken. keys: for each of n_fid fidelities, blocks
 * first_block..n_blocks-1. missing[f * (n_blocks-first_block) + b] is set to 1 where bytes are wanted (dedupe; objects
 * another upload is writing count as missing). BUSY, READONLY, NOSPACE (larger than the capacity). */
vc_status_t cs_store_begin(cs_store_t *store, const vc_keyspace_t *ks, const uint32_t *tokens, uint32_t first_block,
                           uint32_t n_blocks, const cs_fidelity_t *fids, uint32_t n_fid, cs_upload_info_t *info_p,
                           uint8_t *missing, vc_err_t *err);
/* Whether a put under this id and token would be taken at all, before any memory is spent on it: OK, STALE, PERM, or
 * BUSY while it is being committed. Constant-time compare. */
vc_status_t cs_store_upload_check(cs_store_t *store, uint64_t upload_id, const cs_token_t *token);
/* One whole record in buf (bytes long). Fully validated (vc_kvrec_check, keyspace, shape, hash belongs to the upload)
 * before anything is written. buf is the caller's until done ran. done: OK once the bytes are in the segment file.
 * EXISTS when it is already there (not an error for the caller). NOSPACE when eviction cannot make room. */
vc_status_t cs_store_put(cs_store_t *store, cs_worker_t *worker, uint64_t upload_id, const cs_token_t *token,
                         cs_buf_t *buf, uint32_t bytes, cs_io_done_fn done, void *arg, vc_err_t *err);
/* Group commit: all put objects become visible at once, durable. done runs on the commit thread. Missing objects:
 * INVALID, the upload stays open. */
vc_status_t cs_store_commit(cs_store_t *store, uint64_t upload_id, const cs_token_t *token, cs_io_done_fn done,
                            void *arg, vc_err_t *err);
vc_status_t cs_store_abort(cs_store_t *store, uint64_t upload_id, const cs_token_t *token);

/* ---- pins that last, and deletes ---- */

/* Which objects. tip: the chain that ends there, or what is left of it when its last blocks are gone (tip of a listed
 * prefix), up to its first block or the first hole; else the blocks named, those that are absent left out. Every copy,
 * or those of one column. */
typedef struct cs_chain_ref {
    vc_digest_t keyspace;
    const vc_digest_t *tip;    /* NULL: hashes */
    const vc_digest_t *hashes; /* [n_hashes] */
    uint32_t n_hashes;
    const cs_fidelity_t *fid; /* NULL: every fidelity and spec */
} cs_chain_ref_t;

typedef struct cs_chain_sum { /* what a call found and dealt with */
    uint32_t n_objects;
    uint64_t n_bytes;
} cs_chain_sum_t;

/* These three block until what they did is durable: not for data workers, nor for callbacks of the store. OK, NOT_FOUND
 * (nothing of it is there), NOSPACE (what is pinned would exceed half of the room for objects), READONLY, IO, RANGE.
 *
 * Pinned objects are never evicted, also after a restart, until they are unpinned or deleted. Pinning twice is pinning
 * once. All or nothing. */
vc_status_t cs_store_pin_prefix(cs_store_t *store, const cs_chain_ref_t *ref, cs_chain_sum_t *sum_p, vc_err_t *err);
vc_status_t cs_store_unpin_prefix(cs_store_t *store, const cs_chain_ref_t *ref, cs_chain_sum_t *sum_p, vc_err_t *err);
/* Pinned ones too. What is being read is read to its end; a lease on it finds nothing any more. */
vc_status_t cs_store_delete(cs_store_t *store, const cs_chain_ref_t *ref, cs_chain_sum_t *sum_p, vc_err_t *err);

/* ---- operations ---- */

typedef struct cs_fid_stats {
    uint64_t lookup_blocks, hit_blocks, hit_tokens, lookup_tokens, hit_bytes;
    uint64_t lookups, lookup_hits; /* lookups that found at least one block */
    uint64_t objects, bytes;       /* stored now */
    uint64_t read_bytes, put_bytes, evicted_objects;
} cs_fid_stats_t;

typedef struct cs_store_stats {
    cs_fid_stats_t full, compressed;
    uint64_t miss_absent, miss_evicted, miss_corrupt, miss_keyspace;
    uint64_t corrupt_disk, corrupt_wire;
    uint64_t commits, commit_batches, aborts, uploads_open, uploads_expired;
    uint64_t leases_open, leases_expired, stale_leases, pinned_bytes;
    uint64_t capacity_bytes, used_bytes, n_segments;
    uint64_t put_rejected, evictions;
    uint64_t rebuilt_objects; /* found in the segments by a start that had to make the catalog anew */
    uint64_t evicted_bytes;   /* evictions: segments that were emptied or compacted */
    uint64_t compactions, moved_bytes, segment_written; /* segment_written: puts and moves */
    double write_amplification;                         /* segment_written / bytes put; 0 before the first put */
    uint64_t dead_bytes;                                /* in segments, of objects that are gone */
    uint64_t kept_objects, kept_bytes;                  /* pinned by cs_store_pin_prefix */
    uint64_t objects, index_bytes;                      /* memory of the index and the policy together */
    uint64_t tenants, tenant_largest_bytes, tenant_quota_bytes;
    uint64_t quota_rejected, quota_evicted; /* puts and registrations; objects */
    bool readonly;
} cs_store_stats_t;
void cs_store_get_stats(cs_store_t *store, cs_store_stats_t *stats_p);

/* Most hit chains first. Called with the newest tip of each registered prefix. */
typedef struct cs_prefix_info {
    vc_digest_t tip; /* hash of the last block */
    vc_digest_t keyspace;
    uint32_t n_blocks; /* length of the chain */
    uint64_t hits, bytes;
    uint32_t head_tokens[64]; /* first tokens of the chain, for a readable head */
    uint32_t n_head_tokens;
} cs_prefix_info_t;
vc_status_t cs_store_list_prefixes(cs_store_t *store, bool by_bytes, uint32_t limit, cs_prefix_info_t *out,
                                   uint32_t *n_p);
/* Why registrations, records and commits were refused, by who answered them: control and data plane count here. */
typedef struct cs_refusals {
    uint64_t space, readonly, limit; /* no room, no writes, too many of something */
    uint64_t disk;                   /* the disk or the memory failed */
    uint64_t expired;                /* the upload is over or unknown, or the token is not its own */
    uint64_t invalid;                /* damaged, or not what was registered */
} cs_refusals_t;
void cs_store_count_refusal(cs_store_t *store, vc_status_t status); /* OK, EXISTS and CANCELLED are none */
void cs_store_get_refusals(cs_store_t *store, cs_refusals_t *refusals_p);

/* What is leased now, by the time since the lookup that gave the lease. */
#define CS_LEASE_AGES 6
typedef struct cs_lease_report {
    uint32_t n_leases;
    uint64_t n_bytes; /* of the records that they hold; one that several hold counts for each */
    uint64_t oldest_ms;
    struct {
        uint32_t below_s; /* 0: all older ones */
        uint32_t n_leases;
        uint64_t n_bytes;
    } ages[CS_LEASE_AGES];
} cs_lease_report_t;
void cs_store_lease_report(cs_store_t *store, cs_lease_report_t *report_p);
/* Expired leases and uploads; called by the maintenance thread, and by tests after stepping the clock. */
void cs_store_tick(cs_store_t *store);

#endif
