/*
 * The slow tier of a session: its oldest full blocks lie in a file instead of memory and are streamed through buffers,
 * layer by layer, under every pass.
 *
 *   file    [layer][block]{page part of the layer}: the blocks of a layer are one run of bytes
 *   memory  pages of the newest blocks, and buffers that hold the spilled blocks of one layer each
 *
 * A session alone has 3 (or 2) buffers of its own and reads round and round:
 *   layer:    0   1   2   3 ... L-1   0   1 ...      one endless sequence over all passes
 *             used|in buffers | next read             a buffer is refilled as soon as its layer has been attended
 * so that the first layers of the next pass are in memory before it begins.
 *
 * Many sessions share a pool of buffers, up to one for each layer of a session. Between passes a session of a pool
 * reads ahead what it is told (node_slow_prefetch) and nothing else; in its pass it reads on until the last layer. Who
 * calls thus steers the link: reads go to the disk in the order in which they were asked for, those of the running pass
 * before all others and, where several sessions stream in it, layer by layer over all of them. A session in a pass
 * always gets two buffers, whatever others have read ahead.
 *
 * Blocks are spilled from the oldest on, so that [0, n_spilled) is the part in the file; they are written behind, a few
 * blocks ahead of the need. What comes back is checked against CRC32C sums that never leave memory, right before its
 * use: damage ends the session, and never shows in a token. The file has no name and goes with the session. Bits are
 * those of pages in memory: the bytes are the same.
 *
 * Pages that somebody else holds too (a drafter behind its compressed body) are not spilled: that would free nothing.
 * A session has one thread at a time; sessions of one pool may have different ones. node_slow_check_block: any thread
 * of the running pass.
 */
#ifndef NODE_SLOW_H
#define NODE_SLOW_H

#include "kv/pages.h"
#include "kv/slow_io.h"

typedef struct node_slow node_slow_t;
typedef struct node_slow_pool node_slow_pool_t;

/* ---- buffers that many sessions share ---- */

typedef struct node_slow_pool_opts {
    const char *dir;         /* of the sessions' files; one that takes O_DIRECT, or else the page cache is used */
    uint64_t hold_bytes;     /* all buffers together at most */
    uint32_t spilled_tokens; /* positions that a session may have in its file at most: the size of a buffer */
    uint32_t n_streams;      /* sessions that may stream in one pass: two buffers each are the least */
    node_slow_io_mode_t io;
    const vc_clock_t *clock; /* of the statistics; NULL: the system's */
    uint64_t delay_seed;     /* tests: not 0 holds completions back, and lets them go in an order drawn from it */
} node_slow_pool_opts_t;

/* The least hold_bytes that works. */
uint64_t node_slow_pool_least(const node_kv_dims_t *dims, const node_slow_pool_opts_t *opts);
/* Takes all its memory. RANGE: hold_bytes are too few, and the sentence says how many would do. */
vc_status_t node_slow_pool_create(const node_kv_dims_t *dims, const node_slow_pool_opts_t *opts,
                                  node_slow_pool_t **pool_p, vc_err_t *err);
void node_slow_pool_destroy(node_slow_pool_t *pool); /* after its sessions; NULL is fine */

typedef struct node_slow_pool_stats {
    uint64_t hold_bytes;             /* of all buffers */
    uint64_t held_bytes, peak_bytes; /* of buffers in use, now and at most */
    uint64_t read_bytes;
    uint64_t wait_us; /* passes stood still for a layer */
    uint64_t busy_us; /* time with a read under way; its end is seen when somebody looks */
    uint32_t n_buffers, n_sessions;
    bool ring, fixed; /* io_uring; with registered buffers */
} node_slow_pool_stats_t;
/* Keeps the reads going: the disk has work for some ten milliseconds, so to be called more often than that while others
 * compute (node_engine_between). Costs next to nothing while nothing has come. */
void node_slow_pool_poll(node_slow_pool_t *pool);
void node_slow_pool_stats(node_slow_pool_t *pool, node_slow_pool_stats_t *stats_p);
/* For measurements: reads are asked for no faster than that. 0: as fast as the device takes them. */
void node_slow_pool_limit(node_slow_pool_t *pool, uint64_t bytes_per_s);

/* ---- one session ---- */

typedef struct node_slow_opts {
    const char *dir;        /* of the file, as above; not looked at in a pool */
    uint64_t ram_bytes;     /* full pages at most, and without a pool the buffers too */
    uint32_t max_tokens;    /* positions that the session may come to hold, drafts included */
    uint32_t pass_rows;     /* rows of the session in one pass at most */
    node_slow_io_mode_t io; /* not looked at in a pool, nor is delay_seed */
    uint64_t delay_seed;
    node_slow_pool_t *pool; /* outlives the session; NULL: buffers of its own */
    /* For the sentence that ram_bytes are too little: they are one of n_shares shares of --kv-ram, as share_option
     * says. NULL: they are all of it. */
    const char *share_option;
    uint32_t n_shares;
} node_slow_opts_t;

/* Whether max_tokens positions need more than ram_bytes. */
bool node_slow_needed(const node_kv_dims_t *dims, const node_slow_opts_t *opts);
/* The most positions that such a session of a pool has in its file: spilled_tokens of the pool. */
uint32_t node_slow_spilled_tokens(const node_kv_dims_t *dims, const node_slow_opts_t *opts);
/* Whether a session could make its file in this folder; with a sentence where not. */
vc_status_t node_slow_check_dir(const char *dir, vc_err_t *err);
/* Makes the file in its full size, so that a full disk is told here (NOSPACE) and not in the middle of a text. RANGE:
 * ram_bytes is less than the smallest that works, which the sentence tells, or the pool's buffers are too small. */
vc_status_t node_slow_create(const node_kv_dims_t *dims, const node_slow_opts_t *opts, node_slow_t **slow_p,
                             vc_err_t *err);
void node_slow_destroy(node_slow_t *slow);
/* Takes over the tier; kv is empty and has no body. node_kv_fini destroys it. */
vc_status_t node_kv_set_slow(node_kv_t *kv, node_slow_t *slow);

/* ---- between passes: reading ahead in a pool. A session without a tier has nothing to read. ---- */

/* Reads ahead until `bytes` of the next pass, in the order of layers, are in memory or under way, as far as the pool
 * has buffers. Never waits. Wishes are served in the order of the calls, and stand until they are met, the session's
 * pass is over, or node_slow_drop. A call for more than the last one adds a wish for the rest, which comes after those
 * that others have made meanwhile; a call for less replaces what is not met. INVALID: the session has buffers of its
 * own; STALE: it has failed. */
vc_status_t node_slow_prefetch(node_kv_t *kv, uint64_t bytes);
/* Bytes of the next pass that have come. Never waits. */
uint64_t node_slow_arrived(node_kv_t *kv);
/* Bytes that a pass streams now. */
uint64_t node_slow_pass_bytes(const node_kv_t *kv);
/* Gives the read-ahead back. */
void node_slow_drop(node_kv_t *kv);
/* OK, or why the session takes no further pass, with the sentence. A pass over several sessions that fails says by this
 * whose fault it was; rows of all are taken back, and the pass may be run again without those. */
vc_status_t node_slow_failed(const node_kv_t *kv, vc_err_t *err);

/* ---- the engine's side ---- */

/* Before a pass of n_rows: spills what has no place beside the pass's pages. RANGE: more sessions than n_streams. */
vc_status_t node_slow_begin(node_kv_t *kv, uint32_t n_rows, vc_err_t *err);
/* Keeps the reads going, after node_slow_begin of all sessions of the pass. */
void node_slow_pump(node_kv_t *kv);
/* Blocks in the file: those whose page pointer is NULL. */
uint32_t node_slow_n_spilled(const node_slow_t *slow);
/* Waits for the layer's spilled blocks; kv->stream is where they are. Layers come in order, each once a pass. */
vc_status_t node_slow_acquire(node_kv_t *kv, uint32_t layer, vc_err_t *err);
/* Whether the block's part of the acquired layer is what was written. */
bool node_slow_check_block(const node_slow_t *slow, uint32_t block);
vc_status_t node_slow_damaged(node_slow_t *slow, uint32_t layer, vc_err_t *err); /* the sentence for it */
/* The layer has been attended: its buffer is free for other reads. */
void node_slow_release(node_kv_t *kv);
/* The pass ended early: the next one starts with layer 0. */
void node_slow_abort(node_kv_t *kv);

/* ---- everybody else ---- */

/* A spilled block as a page of its own (one reference), read now. */
vc_status_t node_slow_load_page(node_slow_t *slow, uint32_t block, node_page_t **page_p, vc_err_t *err);
/* The whole session as one with all its pages, for readers that need them all (compressors, digests): spilled ones are
 * looked at through a mapping of the file, in the kernel's page cache. All sums are checked here. Read only; gone
 * (node_kv_fini) before the session changes. A page to keep is made one's own by node_page_own. */
vc_status_t node_slow_view(const node_kv_t *kv, node_kv_t *view, vc_err_t *err);
/* For node_kv_truncate: nothing at and behind the block counts as written; a block with rows below n_tokens comes back
 * to memory. */
vc_status_t node_slow_truncate(node_kv_t *kv, uint32_t n_tokens);

typedef struct node_slow_stats {
    uint64_t ram_bytes; /* resident pages and own buffers at most, as planned */
    uint64_t written_bytes, read_bytes;
    uint64_t wait_us;   /* passes stood still for a layer */
    uint32_t n_spilled; /* blocks in the file now */
    uint32_t n_slots;   /* layers in own buffers; of a pool: in buffers at most */
    uint32_t max_pages; /* resident blocks */
    bool direct, ring;  /* O_DIRECT; io_uring */
} node_slow_stats_t;
void node_slow_stats(const node_slow_t *slow, node_slow_stats_t *stats_p);

#endif
