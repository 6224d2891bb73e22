/*
 * The offline job behind `vericache-node compress`: prefixes that a server holds in full get the compressed copies that
 * they lack. One unit of work is one copy of one prefix; a unit is stored whole or not at all, so a job that is killed
 * goes on where it was. Blocking; one thread.
 */
#ifndef NODE_ROLE_COMPRESS_JOB_H
#define NODE_ROLE_COMPRESS_JOB_H

#include <signal.h>

#include "cache.h"
#include "node.h"
#include "role/duty.h"

#define NODE_JOB_PREFIXES 1000u /* that a pass looks at; a server lists no more, most hits first */
#define NODE_JOB_SPECS 7u

typedef struct node_job_unit {                     /* one copy that was made, or was not */
    uint32_t prefix, n_prefixes, n_blocks, stored; /* stored: records */
    const uint8_t *tip;
    const node_spec_t *spec; /* NULL: the prefix could not be had at all */
    uint64_t bytes, us;
    vc_status_t status;
    const char *reason; /* a sentence where status says so */
} node_job_unit_t;

typedef struct node_job {
    node_t *node;
    node_cache_t *cache;
    const node_spec_t *specs;
    uint32_t n_specs; /* to NODE_JOB_SPECS */
    node_duty_t *duty;
    const volatile sig_atomic_t *stop;                      /* non-zero: ends before the next unit */
    void (*begins)(void *arg, const node_job_unit_t *unit); /* before it is worked on */
    void (*ended)(void *arg, const node_job_unit_t *unit);
    void *arg;
    /* what failed in this process is not tried again: the reason stays the same until somebody does something */
    struct {
        uint8_t tip[32];
        vc_spec_id_t spec;
    } failed[64];
    uint32_t n_failed;
} node_job_t;

typedef struct node_job_sum {
    uint32_t prefixes, made, present, without_full, failed; /* copies, but for the first and the last but one */
} node_job_sum_t;

/* One pass over all prefixes. OK also where units failed (sum_p->failed). UNREACHABLE and the like: the server is gone.
 * CANCELLED: *stop. */
vc_status_t node_job_pass(node_job_t *job, node_job_sum_t *sum_p, vc_err_t *err);

#endif
