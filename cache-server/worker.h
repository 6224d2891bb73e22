/*
 * Data workers: threads that each own one io_uring (uring.h) and, when the data plane runs, one UCX worker.
 * A worker's loop: messages from other threads (a ring), completions of its io_uring, then the progress hook; after at
 * most 50 us without work it sleeps on one epoll of its eventfd, the ring's eventfd and the hook's descriptor.
 */
#ifndef CS_WORKER_H
#define CS_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "vc/status.h"

typedef struct cs_workers cs_workers_t;
typedef struct cs_worker cs_worker_t;
struct cs_uring;
struct cs_bufpool;

typedef enum { CS_IO_AUTO = 0, CS_IO_FIXED, CS_IO_RING, CS_IO_THREADS } cs_io_mode_t;

typedef struct cs_workers_opts {
    uint32_t n_workers;   /* default 1 */
    uint32_t queue_depth; /* ring entries per worker, default 64 */
    cs_io_mode_t io_mode;
    struct cs_bufpool *pool; /* registered with each ring in mode fixed */
} cs_workers_opts_t;

vc_status_t cs_workers_start(const cs_workers_opts_t *opts, cs_workers_t **workers_p, vc_err_t *err);
/* Runs what is queued, then joins. */
void cs_workers_stop(cs_workers_t *workers);
uint32_t cs_workers_count(const cs_workers_t *workers);
cs_worker_t *cs_workers_get(cs_workers_t *workers, uint32_t i);
cs_worker_t *cs_workers_any(cs_workers_t *workers);           /* round robin */
cs_io_mode_t cs_workers_io_mode(const cs_workers_t *workers); /* what auto came to */

/* Runs fn(arg) on the worker's thread, in order of posting. BUSY when its ring is full. Any thread. */
vc_status_t cs_worker_post(cs_worker_t *worker, void (*fn)(void *arg), void *arg);
bool cs_worker_is_self(const cs_worker_t *worker);
struct cs_uring *cs_worker_uring(cs_worker_t *worker); /* worker thread only */

/* Progress hook, for the data plane; set from the worker's own thread (through cs_worker_post). progress returns the
 * number of events handled; event_fd: readable when progress has work (-1: poll only). arm is called before sleeping
 * and returns false when events are pending already. */
typedef struct cs_worker_hook {
    unsigned (*progress)(void *arg);
    bool (*arm)(void *arg);
    int event_fd;
    void *arg;
} cs_worker_hook_t;
vc_status_t cs_worker_set_hook(cs_worker_t *worker, const cs_worker_hook_t *hook); /* NULL: none */

#endif
