/* What the files of vericachectl share: ctl.c (arguments, table of commands), ctl_show.c (what is asked), ctl_act.c
 * (what is done), ctl_replay.c (traces). */
#ifndef CS_CTL_INT_H
#define CS_CTL_INT_H

#include <jansson.h>

#include "ctl.h"
#include "vc/config.h"
#include "vericache/vericache.h"

typedef struct ctl {
    const char *server, *fidelity, *keyspace, *trace;
    bool json, watch, wait, query, resume, stop;
    int by, policy;
    uint64_t limit, timeout_ms, interval_ms, count, wait_ms, rate_bytes, capacity_blocks, block_bytes;
    const vc_config_t *config; /* its arguments: the command, then what the command takes */
    FILE *out;
    vcache_client_t *client; /* NULL for a command that asks no server */
    vcache_error_t error;
} ctl_t;

/* Prints value and gives it up. */
int ctl_print_json(ctl_t *c, json_t *value);
/* One object per line, for streams. */
int ctl_print_json_line(ctl_t *c, json_t *value);
void ctl_print_number(FILE *out, double v);
vcache_status_t ctl_fail(ctl_t *c, vc_status_t status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ctl_show.c */
vcache_status_t ctl_stats(ctl_t *c);
vcache_status_t ctl_prefixes(ctl_t *c);
vcache_status_t ctl_health(ctl_t *c);
vcache_status_t ctl_options(ctl_t *c);
vcache_status_t ctl_compressors(ctl_t *c);
/* ctl_act.c */
vcache_status_t ctl_pin(ctl_t *c);
vcache_status_t ctl_unpin(ctl_t *c);
vcache_status_t ctl_delete(ctl_t *c);
vcache_status_t ctl_drain(ctl_t *c);
vcache_status_t ctl_leases(ctl_t *c);
vcache_status_t ctl_scrub(ctl_t *c);
/* ctl_replay.c */
vcache_status_t ctl_replay(ctl_t *c);

#endif
