/*
 * A flood of registrations from many connections, with readers among them, against a running server; meanwhile the
 * data directory is measured as du does. Used by bench_flood for a minute and by an integration test for seconds, so it
 * prints nothing and judges nothing.
 */
#ifndef FLOOD_LOAD_H
#define FLOOD_LOAD_H

#include <stdint.h>

#include "vc/keyspace.h"

typedef struct flood_opts {
    const char *server;   /* HOST:PORT of the control plane */
    const char *data_dir; /* of the server, measured */
    uint64_t capacity_bytes;
    uint32_t n_writers, n_readers; /* each a connection of its own; every other one uses the data plane */
    uint32_t n_blocks;             /* of one registration, full records */
    vc_kv_shape_t shape;
    double seconds;           /* when it ends ... */
    uint32_t n_registrations; /* ... or, not 0, once every writer has tried that many */
} flood_opts_t;

typedef struct flood_result {
    uint64_t accepted, rejected, failed; /* registrations; rejected: no space or busy */
    uint64_t bytes_accepted;
    uint64_t lookups, hits, fetched, fetch_failed, wrong; /* records for the last three */
    uint64_t du_peak, du_samples, du_over;                /* bytes; measurements; those above the capacity */
    double seconds;
    double longest_stall_s; /* in which no connection had a registration accepted */
    double silent_s;        /* from the last one that was to the end */
    double longest_call_s;  /* of one registration, whatever came of it */
    char failure[256];      /* the last failure */
} flood_result_t;

/* Blocks until it is over. False: no memory or no thread. */
int flood_run(const flood_opts_t *opts, flood_result_t *result_p);
/* Bytes of every file and directory below path, as du counts them. Any thread. */
uint64_t flood_du(const char *path);

#endif
