/*
 * The operators' HTTP port: /healthz (the process runs), /readyz (200, or 503 with the reason), /metrics (every
 * statistic as Prometheus text). GET and HEAD only, a few connections, small requests, no state.
 *
 * One thread of libmicrohttpd; the callbacks run on it and must not block.
 */
#ifndef CS_OPSHTTP_H
#define CS_OPSHTTP_H

#include <stdint.h>

#include "service.h"

typedef struct cs_opshttp cs_opshttp_t;

typedef struct cs_opshttp_opts {
    const char *listen; /* HOST:PORT; port 0 = any */
    /* NULL: ready; else why not, static storage. */
    const char *(*why_not_ready)(void *arg);
    /* Writes at most cap, returns how many. */
    uint32_t (*stats)(void *arg, cs_stat_t *stats, uint32_t cap);
    void *arg;
} cs_opshttp_opts_t;

/* A busy port is UNREACHABLE with a sentence naming it. */
vc_status_t cs_opshttp_start(const cs_opshttp_opts_t *opts, cs_opshttp_t **ops_p, vc_err_t *err);
int cs_opshttp_port(const cs_opshttp_t *ops);
void cs_opshttp_stop(cs_opshttp_t *ops); /* NULL is fine */

#endif
