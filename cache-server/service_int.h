/* What the files of the service share; nobody else includes it. */
#ifndef CS_SERVICE_INT_H
#define CS_SERVICE_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "health.pb-c.h"
#include "hist.h"
#include "hits.h"
#include "pace.h"
#include "service.h"
#include "vc/rpc.h"
#include "vericache.pb-c.h"

#define CS_SERVICE_COLUMNS 8         /* fidelities of one lookup or upload */
#define CS_SERVICE_BLOCKS (1u << 16) /* blocks of one request */
#define CS_SERVICE_LAYERED 4096      /* of a layer-major Fetch, which holds a header of each */
#define CS_SERVICE_COMMITS 2048      /* commits waiting for the disk */
#define CS_SERVICE_SLOW 64           /* administrative calls waiting for their thread */
#define CS_SERVICE_WATCHERS 4        /* of statistics, and as many of health */

/* Relaxed counters: read for statistics only. */
typedef struct {
    _Atomic uint64_t lookups, registers, commits, fetches, puts;
    _Atomic uint64_t fetch_bytes, fetch_records, put_bytes, put_records, step_downs, damaged_reports;
    _Atomic uint32_t fetch_streams, put_streams, commits_waiting, stats_watchers, health_watchers;
    _Atomic uint64_t refused_draining;
} cs_service_counters_t;

struct cs_service {
    cs_service_opts_t o;
    char *data_address, *shm_address;
    vc_rpc_server_t *rpc;
    cs_pace_t *pace;
    cs_service_counters_t n;
    cs_hist_t lookup_time, fetch_time, put_time, commit_time;
    cs_hits_t hits_full, hits_compressed;
    _Atomic bool draining; /* relaxed: an answer may be one call late */
    _Atomic bool stopping; /* relaxed: watchers look at it after watch_lock */
    pthread_mutex_t watch_lock;
    pthread_cond_t watch_changed; /* monotonic */
    uint64_t watch_epoch;         /* counts the changes of draining and stopping */
    pthread_mutex_t slow_lock;
    pthread_cond_t slow_work;
    pthread_t slow_thread;
    bool has_slow_thread, slow_ends;
    struct cs_slow_call *slow; /* in the order of their arrival */
    uint32_t n_slow;
    /* Buffers that gRPC still sends from: they come back on its threads, after the handler returned. */
    pthread_mutex_t lock;
    pthread_cond_t returned;
    uint32_t buffers_out;
};

static inline void cs_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Waits for a number of asynchronous operations; keeps the first bad status. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    uint32_t pending;
    vc_status_t first_bad;
} cs_latch_t;
void cs_latch_init(cs_latch_t *l);
void cs_latch_fini(cs_latch_t *l);
void cs_latch_add(cs_latch_t *l);
void cs_latch_done(void *latch, vc_status_t status); /* a cs_io_done_fn */
vc_status_t cs_latch_wait(cs_latch_t *l);

/* Packs a message into a response. */
vc_status_t cs_pack(const ProtobufCMessage *message, vc_bytes_t *resp, vc_err_t *err);
/* 16 bytes or INVALID. */
vc_status_t cs_take_token(const ProtobufCBinaryData *data, cs_token_t *token_p, vc_err_t *err);
vc_status_t cs_take_fidelities(Vericache__V1__Fidelity *const *list, size_t n, cs_fidelity_t *fids, vc_err_t *err);
vc_status_t cs_take_lease(const Vericache__V1__LeaseRef *lease, cs_token_t *token_p, vc_err_t *err);
uint32_t cs_ms_left(const cs_service_t *s, uint64_t until_us);

/* service.c */
vc_status_t cs_service_lookup(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                              vc_err_t *err);
vc_status_t cs_service_renew(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                             vc_err_t *err);
vc_status_t cs_service_release(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                               vc_err_t *err);
/* service_put.c */
vc_status_t cs_service_begin(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                             vc_err_t *err);
vc_status_t cs_service_commit(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                              vc_err_t *err);
vc_status_t cs_service_abort(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                             vc_err_t *err);
vc_status_t cs_service_put(void *arg, vc_rpc_call_t *call, vc_err_t *err);
/* service_fetch.c */
vc_status_t cs_service_fetch(void *arg, vc_rpc_call_t *call, vc_err_t *err);
/* service_stats.c */
vc_status_t cs_service_stats(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                             vc_err_t *err);
vc_status_t cs_service_stats_watch(void *arg, vc_rpc_call_t *call, vc_err_t *err);
vc_status_t cs_service_prefixes_now(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                                    vc_err_t *err);
/* service_ops.c */
vc_status_t cs_slow_start(cs_service_t *s, vc_err_t *err);
void cs_slow_stop(cs_service_t *s); /* after the rpc server: every call has been answered */
vc_status_t cs_service_pin(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                           vc_err_t *err);
vc_status_t cs_service_unpin(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                             vc_err_t *err);
vc_status_t cs_service_delete(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                              vc_err_t *err);
vc_status_t cs_service_scrub(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                             vc_err_t *err);
vc_status_t cs_service_prefixes(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                                vc_err_t *err);
vc_status_t cs_service_config(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                              vc_err_t *err);
/* service_drain.c */
vc_status_t cs_refuse_draining(cs_service_t *s, vc_err_t *err); /* OK, or UNREACHABLE and counted */
vc_status_t cs_service_drain_call(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                                  vc_err_t *err);
vc_status_t cs_service_health(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                              vc_err_t *err);
vc_status_t cs_service_health_watch(void *arg, vc_rpc_call_t *call, vc_err_t *err);
/* The one message of a client that watches. */
vc_status_t cs_watch_request(cs_service_t *s, vc_rpc_call_t *call, vc_bytes_t *req_p, vc_err_t *err);
/* Counts one more watcher, BUSY when `most` are there. The caller takes it back at the end. */
vc_status_t cs_watch_begin(cs_service_t *s, _Atomic uint32_t *watchers, uint32_t most, uint64_t *epoch_p,
                           vc_err_t *err);
/* OK when something changed or the interval is over; CANCELLED: the client is gone; UNREACHABLE: the service stops. */
vc_status_t cs_watch_wait(cs_service_t *s, vc_rpc_call_t *call, uint64_t *epoch, uint64_t interval_ms, vc_err_t *err);
vc_status_t cs_watch_send(vc_rpc_call_t *call, const ProtobufCMessage *message, vc_err_t *err);
void cs_watch_end(cs_service_t *s); /* watchers end; before the rpc server stops */

#endif
