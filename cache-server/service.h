/*
 * The methods of the control plane: protobuf-c messages to store calls and back. The server's only user of generated
 * code. Handlers run on the rpc module's threads: unary ones on control threads, Fetch and PutRecord on their slots,
 * where they may block on the pool, the disk and the pace.
 */
#ifndef CS_SERVICE_H
#define CS_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "store.h"
#include "vc/clock.h"
#include "vc/config.h"

typedef struct cs_service cs_service_t;

#define CS_STAT_NAME_MAX 64
typedef struct cs_stat {
    char name[CS_STAT_NAME_MAX];
    double value;
} cs_stat_t;

typedef struct cs_service_opts {
    const char *listen;         /* HOST:PORT, port 0 = any */
    uint32_t n_control;         /* threads for small calls, default 2; none of them waits for the disk */
    uint32_t max_fetch_streams; /* default 8; more wait for a free one */
    uint32_t max_put_streams;   /* default 4 */
    uint64_t egress_bits_per_s; /* 0: no limit */
    uint32_t idle_ms;           /* a stream whose client sends or takes nothing for this long ends; default 30000 */
    const vc_clock_t *clock;    /* default: the system's */
    cs_store_t *store;          /* not owned, like the next two */
    cs_bufpool_t *pool;
    const char *data_address; /* handed to clients; empty or NULL = none */
    const char *shm_address;  /* the same */
    /* More statistics, e.g. of the data plane: writes at most cap, returns how many. May be NULL. */
    uint32_t (*more_stats)(void *arg, cs_stat_t *stats, uint32_t cap);
    /* Calls each(each_arg, name, value, source) for every option in force, for GetConfig. May be NULL. */
    void (*each_option)(void *arg, vc_config_fn each, void *each_arg);
    void *arg; /* of both */
} cs_service_opts_t;
void cs_service_opts_default(cs_service_opts_t *opts);

vc_status_t cs_service_start(const cs_service_opts_t *opts, cs_service_t **service_p, vc_err_t *err);
int cs_service_port(const cs_service_t *service);
/* Health answers NOT_SERVING from now on, lookups and registrations are refused; leases and uploads that are out go on.
 * false: back into use. */
void cs_service_drain(cs_service_t *service, bool on);
typedef struct cs_drain_report {
    bool is_draining;
    cs_lease_report_t leases;
    uint32_t uploads, commits, transfers; /* open; waiting for the disk; gRPC streams and data-plane operations */
} cs_drain_report_t;
bool cs_service_is_draining(const cs_service_t *service);
/* Every statistic, as GetStats has them; writes at most cap, returns how many. */
#define CS_STATS_MAX 400u
uint32_t cs_service_list_stats(cs_service_t *service, cs_stat_t *stats, uint32_t cap);
void cs_service_report(cs_service_t *service, cs_drain_report_t *report_p);
bool cs_drain_is_done(const cs_drain_report_t *report); /* nothing is out any more */
/* Stops the rpc server within grace_ms plus the time a dead connection takes, then waits for every buffer. */
void cs_service_stop(cs_service_t *service, uint32_t grace_ms);

#endif
