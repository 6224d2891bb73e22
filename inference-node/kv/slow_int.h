/* Inside of the slow tier, shared by slow.c (plan, spilling, passes), slow_pool.c (buffers, order of reads),
 * slow_file.c (the file) and slow_view.c. Everything here is called with the pool's lock held, unless said. */
#ifndef NODE_SLOW_INT_H
#define NODE_SLOW_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "kv/slow.h"

enum {
    NODE_SLOW_SLOTS_MAX = 3, /* buffers of a session alone */
    NODE_SLOW_CHUNKS = 64,   /* reads that a buffer is filled by, at most */
    NODE_SLOW_AHEAD = 4,     /* blocks written before they have to leave memory, at most */
    NODE_SLOW_IN_PASS = 2,   /* buffers that a session of a pool has at least in its pass */
    NODE_SLOW_WISHES = 4     /* of a session, that are not met; further ones extend the last */
};

typedef struct node_slow_buffer {
    struct node_slow_buffer *next; /* of the free ones, or of the draining ones */
    const node_slow_t *owner;      /* of one in use: its reads go into that session's file */
    uint8_t *data;                 /* [block]{part of the layer} */
    uint32_t n_reqs;
    node_slow_req_t reqs[NODE_SLOW_CHUNKS];
} node_slow_buffer_t;

/* A layer on its way; buffer NULL: nothing was asked for yet. */
typedef struct node_slow_slot {
    node_slow_buffer_t *buffer;
    uint32_t layer, n_blocks;
    size_t bytes, asked; /* to be read in all; asked for so far */
} node_slow_slot_t;

typedef struct node_slow_write {
    node_page_t *page;     /* a reference while it is written, else NULL */
    node_slow_req_t *reqs; /* [n_layer] */
} node_slow_write_t;

/* Read ahead up to so many bytes of the next pass; tickets say whose turn it is. */
typedef struct node_slow_wish {
    uint64_t bytes, ticket;
} node_slow_wish_t;

struct node_slow_pool {
    pthread_mutex_t lock;
    node_kv_dims_t dims;
    char *dir;
    size_t part_bytes; /* one layer of one page: a multiple of 4096 */
    size_t buffer_bytes, chunk_bytes;
    uint32_t max_blocks; /* of a buffer */
    uint32_t n_buffers, n_free, n_streams;
    node_slow_buffer_t *buffers;         /* [n_buffers] */
    node_slow_buffer_t *free, *draining; /* draining: given back while reads into them were under way */
    node_slow_io_t *io;
    bool fixed;
    node_slow_t *sessions;
    uint64_t last_ticket;
    const vc_clock_t *clock;
    uint64_t read_bytes, wait_us, peak_bytes;
    /* node_slow_pool_limit; 0: none. credit: bytes that may be asked for now, below 0 after a read that was larger. */
    double limit, credit;
    uint64_t credit_us;
};

struct node_slow {
    node_kv_dims_t dims;
    node_slow_pool_t *pool;
    bool own; /* the pool is the session's alone */
    node_slow_t *next;
    size_t part_bytes;
    uint32_t n_slots, max_pages, pass_rows, max_tokens;
    uint32_t max_spilled; /* blocks that a buffer has to have room for */
    uint32_t file_blocks; /* blocks that the file has room for */
    int fd;
    bool direct;
    uint32_t *sums; /* CRC32C, [layer][file_blocks] */
    uint32_t n_spilled, n_written;
    node_slow_write_t writes[NODE_SLOW_AHEAD]; /* of block b: b % NODE_SLOW_AHEAD */
    /* The sequence of layers: n is layer n % n_layer in slots[n % n_layer]. Alone it is endless, in a pool it starts
     * again at 0 after each pass. next_read: the first that has not been asked for in full. */
    node_slow_slot_t *slots; /* [n_layer] */
    uint64_t next_use, next_read;
    uint32_t n_held;                           /* buffers in use */
    bool active;                               /* in a pass of a pool */
    uint64_t asked;                            /* bytes of the next pass that were asked for so far */
    node_slow_wish_t wishes[NODE_SLOW_WISHES]; /* what shall be, oldest first, each beyond the one before */
    uint32_t n_wishes;
    vc_err_t failed; /* status OK: it has not */
    node_slow_stats_t stats;
};

/* The unlinked file, allocated to its full size. */
vc_status_t node_slow_file_open(const char *dir, uint64_t bytes, int *fd_p, bool *direct_p, vc_err_t *err);
static inline uint64_t node_slow_offset(const node_slow_t *s, uint32_t layer, uint32_t block)
{
    return ((uint64_t)layer * s->file_blocks + block) * s->part_bytes;
}
static inline uint32_t node_slow_blocks(uint32_t tokens) { return tokens / NODE_TILE + (tokens % NODE_TILE != 0); }
size_t node_slow_part_bytes(const node_kv_dims_t *dims);

/* ---- slow_pool.c ---- */

/* A pool of n_buffers for blocks each. No lock. */
vc_status_t node_slow_pool_make(const node_kv_dims_t *dims, const node_slow_pool_opts_t *opts, uint32_t blocks,
                                uint32_t n_buffers, node_slow_pool_t **pool_p, vc_err_t *err);
void node_slow_pool_join(node_slow_pool_t *pool, node_slow_t *s);
void node_slow_pool_leave(node_slow_t *s); /* waits for reads into its buffers */
/* Takes in what has come and hands the disk the reads that are due. */
void node_slow_pool_pump(node_slow_pool_t *pool);
/* Waits until the slot is complete. */
vc_status_t node_slow_pool_wait(node_slow_t *s, node_slow_slot_t *slot, vc_err_t *err);
void node_slow_pool_put(node_slow_t *s, node_slow_slot_t *slot); /* gives its buffer back */
/* Forgets what was read ahead; the sequence starts again at layer 0. */
void node_slow_restart(node_slow_t *s);
/* Ends the session, once: the first cause stays. */
vc_status_t node_slow_fail(node_slow_t *s, vc_status_t status, vc_err_t *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
