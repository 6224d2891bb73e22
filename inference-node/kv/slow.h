/*
 * The slow tier of one session: its oldest full blocks lie in a file instead of memory and are streamed through a ring
 * of buffers, layer by layer, under every pass.
 *
 *   file    [layer][block]{page part of the layer}: the blocks of a layer are one run of bytes
 *   memory  pages of the newest blocks, and n_slots buffers that hold the spilled blocks of one layer each
 *
 *   layer:    0   1   2   3 ... L-1   0   1 ...      one endless sequence over all passes
 *             used|in buffers | next read             a buffer is refilled as soon as its layer has been attended
 *
 * The first layers of the next pass are thus in memory before it begins. Blocks are spilled from the oldest on, so that
 * [0, n_spilled) is the part in the file; they are written behind, a few blocks ahead of the need. What comes back is
 * checked against CRC32C sums that never leave memory, right before its use: damage ends the request, and never shows
 * in a token. The file has no name and goes with the session. Bits are those of pages in memory: the bytes are the
 * same.
 *
 * Pages that somebody else holds too (a drafter behind its compressed body) are not spilled: that would free nothing.
 * Owner: the session's thread; node_slow_check_block: any thread of the running pass.
 */
#ifndef NODE_SLOW_H
#define NODE_SLOW_H

#include "kv/pages.h"
#include "kv/slow_io.h"

typedef struct node_slow node_slow_t;

typedef struct node_slow_opts {
    const char *dir;     /* of the file; a file system that takes O_DIRECT, or else the page cache is used */
    uint64_t ram_bytes;  /* full pages and streaming buffers at most */
    uint32_t max_tokens; /* positions that the session may come to hold, drafts included */
    uint32_t pass_rows;  /* rows of the session in one pass at most */
    node_slow_io_mode_t io;
} node_slow_opts_t;

/* Whether max_tokens positions need more than ram_bytes. */
bool node_slow_needed(const node_kv_dims_t *dims, const node_slow_opts_t *opts);
/* Makes the file in its full size, so that a full disk is told here (NOSPACE) and not in the middle of a text. RANGE:
 * ram_bytes is less than the smallest that works, which the sentence tells. */
vc_status_t node_slow_create(const node_kv_dims_t *dims, const node_slow_opts_t *opts, node_slow_t **slow_p,
                             vc_err_t *err);
void node_slow_destroy(node_slow_t *slow);
/* Takes over the tier; kv is empty and has no body. node_kv_fini destroys it. */
vc_status_t node_kv_set_slow(node_kv_t *kv, node_slow_t *slow);

/* ---- the engine's side ---- */

/* Before a pass of n_rows: spills what has no place beside the pass's pages, and keeps the reads going. */
vc_status_t node_slow_begin(node_kv_t *kv, uint32_t n_rows, vc_err_t *err);
/* Blocks in the file: those whose page pointer is NULL. */
uint32_t node_slow_n_spilled(const node_slow_t *slow);
/* Waits for the layer's spilled blocks; kv->stream is where they are. Layers come in order, each once a pass. */
vc_status_t node_slow_acquire(node_kv_t *kv, uint32_t layer, vc_err_t *err);
/* Whether the block's part of the acquired layer is what was written. */
bool node_slow_check_block(const node_slow_t *slow, uint32_t block);
vc_status_t node_slow_damaged(node_slow_t *slow, uint32_t layer, vc_err_t *err); /* the sentence for it */
/* The layer has been attended: its buffer is read into again. */
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
    uint64_t ram_bytes; /* resident pages and buffers at most, as planned */
    uint64_t written_bytes, read_bytes;
    uint64_t wait_us;   /* passes stood still for a layer */
    uint32_t n_spilled; /* blocks in the file now */
    uint32_t n_slots;   /* layers in buffers */
    uint32_t max_pages; /* resident blocks */
    bool direct, ring;  /* O_DIRECT; io_uring */
} node_slow_stats_t;
void node_slow_stats(const node_slow_t *slow, node_slow_stats_t *stats_p);

#endif
