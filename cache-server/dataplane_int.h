/*
 * Inside of dataplane*.c. Everything here belongs to worker 0's thread, except the counters (atomic, read by stats) and
 * the start and stop handshake (its own lock).
 *
 * An operation (dp_op_t) is one record or one control message on its way. Callbacks of UCX and of the store only note
 * the result and put the operation on dp->finished; the progress loop takes it from there, so no callback recurses or
 * closes anything under UCX's feet.
 *
 *   fetch: READING (store) -> SENDING (UCX) -> free           put: WAITING (buffer) -> RECEIVING (UCX) -> STORING
 * (store) control, and a fetch without bytes: SENDING -> free            -> SENDING (acknowledgement, buffer back) ->
 * free
 */
#ifndef CS_DATAPLANE_INT_H
#define CS_DATAPLANE_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "dataplane.h"
#include "vc/frame.h"
#include "vc/ucx.h"
#include "vc/ucx_meet.h"

#define DP_MAX_FETCHES 8u             /* at once, per peer */
#define DP_MAX_CONTROL 16u            /* unsent control messages per peer; more means that it does not read */
#define DP_SHM_RNDV_BYTES (64u << 10) /* over shared memory reading is cheap, copying twice is not */
#define DP_TICK_US 50000u             /* how often peers are looked at for timeouts */
#define DP_LAST_WORDS_US 250000u /* between an ERROR that ends a connection and its close, so that it can be read */

typedef struct dp_peer dp_peer_t;
typedef struct dp_fetch dp_fetch_t;
typedef struct dp_op dp_op_t;

#define DP_PIECE_BYTES (1u << 20) /* of a layer-major fetch, unless one part is larger */

typedef struct dp_parts dp_parts_t;

typedef enum { DP_READING, DP_READY, DP_SENDING, DP_WAITING, DP_RECEIVING, DP_STORING } dp_stage_t;
typedef enum { DP_CONTROL, DP_FETCH, DP_PUT } dp_kind_t;

struct dp_op {
    cs_dataplane_t *dp;
    dp_peer_t *peer;
    dp_fetch_t *fetch; /* kind DP_FETCH */
    dp_op_t *next;     /* free, finished or waiting list */
    dp_kind_t kind;
    dp_stage_t stage;
    vc_status_t status; /* of the stage that finished */
    uint64_t request;
    cs_buf_t *buf;   /* of a put; NULL when none is held */
    cs_view_t *view; /* of a fetch; NULL when none is held */
    bool has_pin;
    cs_pin_t pin;
    uint32_t block, bytes;
    dp_parts_t *parts; /* of a piece of a layer-major fetch, in buf; NULL for a record */
    dp_op_t *after;    /* the piece that is to be sent after this one */
    void *desc;        /* DP_WAITING: the payload that UCX keeps for us */
    uint64_t upload_id;
    cs_token_t token;
    vc_ucx_op_t ucx;
    size_t header_bytes;
    uint8_t header[VC_FRAME_MAX];
};

struct dp_fetch {
    dp_fetch_t *next;
    uint64_t request, boot_id, lease_id;
    cs_token_t token;
    uint32_t fid, next_block, end, credits;
    uint32_t head_bytes, part_bytes, n_layer; /* layer-major; n_layer 0: block-major */
    uint32_t first, slice, group;             /* layer-major: where a slice begins, which is next, blocks of a piece */
    dp_op_t *pieces, **pieces_tail;           /* being read, or read before an earlier one: sent in order */
    uint32_t in_flight, n_sent;
    bool stopping; /* no further block: cancelled or failed with status */
    vc_status_t status;
};

struct dp_peer {
    cs_dataplane_t *dp;
    dp_peer_t *next;
    vc_ucx_t *ucx;     /* the data plane's, or its own: NULL before it has one and after it was closed */
    vc_ucx_t *own_ucx; /* over shared memory */
    vc_ucx_ep_t *ep;   /* NULL once its close has begun */
    int meet_fd;       /* -1: it came over the network */
    uint64_t id;
    dp_fetch_t *fetches;
    uint32_t n_fetches, n_records, n_puts, n_control; /* running; records: fetch operations */
    uint32_t n_ops;                                   /* all operations that name this peer */
    uint32_t on_wire;                                 /* of those in UCX's hands */
    uint32_t max_record_bytes;
    uint64_t progress_us; /* last completion, or start of the oldest silence */
    uint64_t condemned_us;
    bool introduced; /* has sent its worker address */
    bool greeted, doomed, ep_closed;
    bool condemned; /* got its last words; whatever it sends is ignored */
};

typedef struct dp_counters {
    _Atomic uint64_t peers_open, peers_total, peers_refused, peers_lost, peers_stalled;
    _Atomic uint64_t fetches, puts, records_sent, bytes_sent, records_received, bytes_received;
    _Atomic uint64_t bad_frames, unauthenticated, stale, wire_corrupt, ops_in_flight, pins_held;
    _Atomic uint64_t shm_peers, shm_peers_total, shm_refused, step_downs, pieces_sent;
} dp_counters_t;

/* Counters are for people; nothing is ordered by them. */
#define DP_COUNT(dp, name, n) \
    ((void)atomic_fetch_add_explicit(&(dp)->counters.name, (uint64_t)(n), memory_order_relaxed))

/* A request for a call when a buffer comes back. It may outlive the data plane, so it is counted apart from it. */
typedef struct dp_wakeup {
    pthread_mutex_t lock;
    cs_dataplane_t *dp; /* NULL: nobody waits any more */
    bool lost;          /* the call came, but the worker's ring was full */
} dp_wakeup_t;

struct cs_dataplane {
    cs_dataplane_opts_t opts;
    cs_worker_t *worker;
    vc_ucx_t *ucx;
    vc_ucx_shm_t *shm; /* NULL: not offered, like the next three */
    int meet_fd, meet_epoll_fd;
    char shm_address[VC_MEET_NAME_MAX];
    bool look_at_meet;
    char address[128];
    int epoll_fd, timer_fd;
    dp_peer_t *peers;
    uint32_t n_peers;
    uint64_t next_peer_id, next_tick_us;
    uint32_t n_bufs;    /* of the pool */
    uint32_t n_records; /* of all peers */
    dp_op_t *ops, *free_ops;
    dp_op_t *finished, **finished_tail;
    dp_op_t *waiting, **waiting_tail; /* puts without a buffer */
    dp_wakeup_t *wakeup;              /* outstanding, or NULL */
    bool starving, dirty, stopping, timer_on;
    dp_counters_t counters;
    pthread_mutex_t lock; /* of the next three; waited on by start and stop */
    pthread_cond_t cond;
    bool attached, drained;
};

/* dataplane.c */
dp_op_t *dp_op_get(dp_peer_t *peer, dp_kind_t kind, uint64_t request); /* NULL when all are out */
void dp_op_free(dp_op_t *op);                                          /* gives back pin and buffer */
void dp_op_finished(dp_op_t *op, vc_status_t status);
void dp_op_store_done(void *arg, vc_status_t status);                /* cs_io_done_fn */
void dp_op_got_view(void *arg, vc_status_t status, cs_view_t *view); /* cs_get_done_fn */
void dp_op_drop_buffer(dp_op_t *op);                                 /* or view, and pin */
cs_buf_t *dp_take_buffer(cs_dataplane_t *dp);                        /* NULL: the loop runs again when one is back */
void dp_want_buffer(cs_dataplane_t *dp);                             /* the loop runs again when one is back */
uint64_t dp_now(const cs_dataplane_t *dp);

/* dataplane_shm.c */
vc_status_t dp_shm_open(cs_dataplane_t *dp, vc_err_t *err);
void dp_shm_stop(cs_dataplane_t *dp); /* nobody new */
void dp_shm_close(cs_dataplane_t *dp);
void dp_shm_poll(cs_dataplane_t *dp); /* who came, who is gone */
unsigned dp_shm_progress(cs_dataplane_t *dp);
bool dp_shm_arm(cs_dataplane_t *dp);
void dp_shm_close_peer(dp_peer_t *peer);

/* dataplane_peer.c */
dp_peer_t *dp_peer_create(cs_dataplane_t *dp); /* NULL: too many, or no memory */
void dp_peer_lost(dp_peer_t *peer);
void dp_peer_request(void *arg, void *request);
bool dp_peer_message(void *arg, const vc_ucx_msg_t *msg);
/* Sends op->header (encoded from frame) and op's payload, if any. False: op was freed, peer is doomed. */
bool dp_peer_send(dp_op_t *op, const vc_frame_t *frame, const void *data, uint32_t bytes);
void dp_peer_reply(dp_peer_t *peer, const vc_frame_t *frame);
void dp_peer_error(dp_peer_t *peer, uint64_t request, vc_status_t status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void dp_peer_condemn(dp_peer_t *peer);
void dp_peer_note_start(dp_peer_t *peer);
void dp_peers_close_doomed(cs_dataplane_t *dp);
void dp_peers_tick(cs_dataplane_t *dp);

/* dataplane_fetch.c */
void dp_fetch_begin(dp_peer_t *peer, const vc_frame_t *frame);
void dp_fetch_credit(dp_peer_t *peer, const vc_frame_t *frame);
void dp_fetch_cancel(dp_peer_t *peer, const vc_frame_t *frame);
void dp_fetch_damaged(dp_peer_t *peer, const vc_frame_t *frame);
void dp_fetch_advance(dp_op_t *op);
void dp_fetch_pump(dp_peer_t *peer);
void dp_fetch_stop_all(dp_peer_t *peer); /* without a farewell */
void dp_fetch_free_all(dp_peer_t *peer); /* no operation may name one any more */
dp_fetch_t *dp_fetch_find(const dp_peer_t *peer, uint64_t request);

bool dp_fetch_has_more(const dp_fetch_t *fetch);
void dp_fetch_stop(dp_fetch_t *fetch, vc_status_t status);
/* The token's judge: counts, tells, condemns. */
void dp_fetch_refused(dp_peer_t *peer, uint64_t request, uint64_t lease_id, vc_status_t status);

/* dataplane_layers.c */
bool dp_layers_begin(dp_peer_t *peer, dp_fetch_t *fetch, const vc_frame_t *frame); /* false: a piece does not fit */
bool dp_layers_start(dp_peer_t *peer, dp_fetch_t *fetch); /* the next piece; false: nothing can be started now */
void dp_layers_read(dp_op_t *op);                         /* its parts have been read */
void dp_layers_drop(dp_op_t *op);

/* dataplane_put.c */
bool dp_put_begin(dp_peer_t *peer, const vc_frame_t *frame, void *desc);
void dp_put_advance(dp_op_t *op);
void dp_put_pump(cs_dataplane_t *dp);
void dp_put_drop_waiting(dp_peer_t *peer);

#endif
