/*
 * The data plane: a UCX listener whose peers fetch leased records and put records of open uploads.
 *
 * Runs wholly on one data worker (worker 0), inside its progress hook; start, stop and stats may be called from any
 * other thread. Records are received into pool buffers and sent from views of the store; both lie in memory that is
 * registered with UCX once. A buffer or a view, and a pin, belong to one operation and always come back: when the send
 * or receive completes, or when the peer's endpoint has been closed by force because the peer died or made no progress
 * for peer_timeout_ms. No bytes without the lease's or the upload's token. A peer that sends malformed, repeated,
 * oversized or unauthenticated messages is counted, answered with an ERROR frame where that is possible, and closed.
 */
#ifndef CS_DATAPLANE_H
#define CS_DATAPLANE_H

#include "store.h"

typedef struct cs_dataplane cs_dataplane_t;

/* Test only: sees a copy of every record just before it is sent and may damage it. Runs on the worker. */
typedef void (*cs_dataplane_fault_fn)(void *arg, uint8_t *record, uint32_t bytes);

typedef struct cs_dataplane_opts {
    const char *listen;       /* HOST:PORT, port 0 = any free one; default "127.0.0.1:0" */
    const char *data_ports;   /* port range "LOW-HIGH" of the connections behind the listener; NULL = any */
    bool trust_data_network;  /* without it only a loopback address is accepted */
    uint32_t peer_timeout_ms; /* default 5000 */
    uint32_t max_peers;       /* default 64 */
    bool shm;                 /* offer shared memory to this user's processes on this machine; default true */
    uint32_t max_shm_peers;   /* of max_peers, default 8: each has a UCX worker; more are told to use the network */
    uint32_t window;          /* records in flight to one peer, default 16 */
    uint32_t put_window;      /* records a peer may send ahead of the acknowledgements, default 4 */
    uint32_t rndv_threshold;  /* default 512 KiB */
    const vc_clock_t *clock;  /* of peer_timeout_ms; default the system's */
    cs_store_t *store;        /* not owned, like the next two */
    cs_workers_t *workers;
    cs_bufpool_t *pool;
    cs_dataplane_fault_fn fault; /* NULL outside tests */
    void *fault_arg;
} cs_dataplane_opts_t;
void cs_dataplane_opts_default(cs_dataplane_opts_t *opts);

/* A busy port or an address that is not ours is UNREACHABLE with a sentence naming it; a non-loopback address without
 * trust_data_network is PERM. */
vc_status_t cs_dataplane_start(const cs_dataplane_opts_t *opts, cs_dataplane_t **dp_p, vc_err_t *err);
/* Closes every peer, waits until each buffer and pin is back, then frees. The workers and the store still run. Not on a
 * worker thread. */
void cs_dataplane_stop(cs_dataplane_t *dp);
/* "HOST:PORT" with the real port; lives as long as dp. */
const char *cs_dataplane_address(const cs_dataplane_t *dp);
/* Where clients on this machine find shared memory ("shm:NAME"); empty: it is not offered. Lives as long as dp. */
const char *cs_dataplane_shm_address(const cs_dataplane_t *dp);

typedef struct cs_dataplane_stats {
    uint64_t peers_open, peers_total, peers_refused;
    uint64_t peers_lost;    /* the other side died or closed in the middle of a transfer */
    uint64_t peers_stalled; /* closed by force after peer_timeout_ms */
    uint64_t fetches, puts; /* FETCH frames taken, records put */
    uint64_t records_sent, bytes_sent, records_received, bytes_received;
    uint64_t bad_frames;                 /* malformed, repeated, oversized, out of credit */
    uint64_t unauthenticated;            /* wrong token */
    uint64_t stale;                      /* lease of another start, or expired */
    uint64_t wire_corrupt;               /* reported by receivers, or found in a put */
    uint64_t ops_in_flight;              /* now: each holds a buffer or a view of a record */
    uint64_t pins_held;                  /* now */
    uint64_t shm_peers, shm_peers_total; /* of peers_open and peers_total: those over shared memory */
    uint64_t shm_refused;                /* asked for shared memory and did not get it */
    uint64_t step_downs;                 /* fetches of clients whose better path had failed */
    uint64_t pieces_sent;                /* of layer-major fetches */
} cs_dataplane_stats_t;
void cs_dataplane_get_stats(const cs_dataplane_t *dp, cs_dataplane_stats_t *stats_p);

#endif
