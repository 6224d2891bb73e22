/* What the files of the service share; nobody else includes it. */
#ifndef CS_SERVICE_INT_H
#define CS_SERVICE_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "health.pb-c.h"
#include "pace.h"
#include "service.h"
#include "vc/rpc.h"
#include "vericache.pb-c.h"

#define CS_SERVICE_COLUMNS 8         /* fidelities of one lookup or upload */
#define CS_SERVICE_BLOCKS (1u << 16) /* blocks of one request */
#define CS_SERVICE_COMMITS 2048      /* commits waiting for the disk */

/* Relaxed counters: read for statistics only. */
typedef struct {
    _Atomic uint64_t lookups, registers, commits, fetches, puts;
    _Atomic uint64_t fetch_bytes, fetch_records, put_bytes, put_records, step_downs, damaged_reports;
    _Atomic uint32_t fetch_streams, put_streams, commits_waiting;
} cs_service_counters_t;

struct cs_service {
    cs_service_opts_t o;
    char *data_address, *shm_address;
    vc_rpc_server_t *rpc;
    cs_pace_t *pace;
    cs_service_counters_t n;
    _Atomic bool draining; /* relaxed: a health answer may be one call late */
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
vc_status_t cs_service_prefixes(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                                vc_err_t *err);
vc_status_t cs_service_health(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                              vc_err_t *err);

#endif
