/* Inside of the slow tier, shared by slow.c (plan, spilling, streaming), slow_file.c (the file) and slow_view.c. */
#ifndef NODE_SLOW_INT_H
#define NODE_SLOW_INT_H

#include "kv/slow.h"

enum {
    NODE_SLOW_SLOTS_MAX = 3,
    NODE_SLOW_CHUNKS = 64, /* reads that a buffer is filled by, at most */
    NODE_SLOW_AHEAD = 4    /* blocks written before they have to leave memory, at most */
};

typedef struct node_slow_slot {
    uint8_t *data; /* [block]{part of the layer} */
    uint32_t layer, n_blocks, n_reqs;
    node_slow_req_t reqs[NODE_SLOW_CHUNKS];
} node_slow_slot_t;

typedef struct node_slow_write {
    node_page_t *page;     /* a reference while it is written, else NULL */
    node_slow_req_t *reqs; /* [n_layer] */
} node_slow_write_t;

struct node_slow {
    node_kv_dims_t dims;
    size_t part_bytes; /* one layer of one page: a multiple of 4096 */
    uint32_t n_slots, max_pages, pass_rows, max_tokens;
    uint32_t max_spilled; /* blocks that a buffer has room for */
    uint32_t file_blocks; /* blocks that the file has room for */
    int fd;
    bool direct;
    node_slow_io_t *io;
    uint32_t *sums; /* CRC32C, [layer][file_blocks] */
    uint32_t n_spilled, n_written;
    node_slow_write_t writes[NODE_SLOW_AHEAD]; /* of block b: b % NODE_SLOW_AHEAD */
    node_slow_slot_t slots[NODE_SLOW_SLOTS_MAX];
    uint64_t next_use, next_read; /* of the endless sequence of layers: n is layer n % n_layer in slot n % n_slots */
    bool failed;
    node_slow_stats_t stats;
};

/* The unlinked file, allocated to its full size. */
vc_status_t node_slow_file_open(const char *dir, uint64_t bytes, int *fd_p, bool *direct_p, vc_err_t *err);
static inline uint64_t node_slow_offset(const node_slow_t *s, uint32_t layer, uint32_t block)
{
    return ((uint64_t)layer * s->file_blocks + block) * s->part_bytes;
}

#endif
