/*
 * A TCP relay that adds what a long link adds: a fixed delay in each direction and, if asked, a rate that all its
 * connections share. It stands in for the kernel's netem where that is missing. One thread (whoever calls relay_run)
 * owns everything; only relay_wake may be called from elsewhere, signal handlers included.
 */
#ifndef RELAY_H
#define RELAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vc/status.h"

typedef struct relay relay_t;

typedef struct relay_opts {
    const char *listen;       /* HOST:PORT; port 0: any */
    const char *target;       /* HOST:PORT */
    uint64_t delay_us;        /* one way */
    uint64_t rate_bits_per_s; /* per direction, 0: unlimited */
    size_t buffer_bytes;      /* per connection and direction; at least rate x delay, or it becomes the limit */
    uint32_t max_connections; /* more are refused */
} relay_opts_t;
void relay_opts_default(relay_opts_t *opts);

typedef struct relay_stats {
    uint64_t connections, refused, failed;     /* failed: the target did not answer */
    uint64_t bytes_to_target, bytes_to_client; /* delivered */
} relay_stats_t;

/* Listens from here on. INVALID: a malformed address; UNREACHABLE: it cannot be bound. */
vc_status_t relay_create(const relay_opts_t *opts, relay_t **relay_p, vc_err_t *err);
void relay_destroy(relay_t *relay); /* not while relay_run runs; open connections are cut */
uint16_t relay_port(const relay_t *relay);

/* Relays until on_wake returns false. on_wake runs on this thread after each relay_wake. */
vc_status_t relay_run(relay_t *relay, bool (*on_wake)(void *arg), void *arg, vc_err_t *err);
void relay_wake(relay_t *relay);                 /* from any thread or signal handler */
relay_stats_t relay_stats(const relay_t *relay); /* on the thread of relay_run, or when it has returned */

#endif
