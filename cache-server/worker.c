/*
 * Data workers. One turn of the loop: posted messages, finished transfers, the hook; then what they queued goes to the
 * kernel in one call. Without work for 50 us the worker sleeps on one epoll.
 *
 * Going to sleep: the worker sets `asleep`, then looks at its ring once more; a poster pushes, then looks at `asleep`.
 * Both touch `asleep` with a read-modify-write: whichever comes second in its order sees what the other did before the
 * first, the flag or the message. No wake-up is lost.
 */
#include "worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "uring.h"
#include "vc/log.h"
#include "vc/mem.h"
#include "vc/ring.h"

#define SPIN_NS 50000u
#define RING_MESSAGES 4096

typedef struct message {
    void (*fn)(void *arg);
    void *arg;
} message_t;

struct cs_worker {
    pthread_t thread;
    vc_ring_t *ring;
    int event_fd, epoll_fd;
    _Atomic int asleep;
    _Atomic bool stop;
    cs_uring_t *uring; /* the worker's thread only */
    cs_worker_hook_t hook;
    bool has_hook, is_running;
    /* start-up handshake */
    pthread_mutex_t lock;
    pthread_cond_t ready;
    bool is_ready;
    vc_status_t status;
    vc_err_t err;
    const cs_workers_opts_t *opts;
};

struct cs_workers {
    uint32_t n;
    cs_worker_t *workers;
    _Atomic uint32_t next;
    cs_io_mode_t io_mode;
};

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static unsigned run_messages(cs_worker_t *worker)
{
    unsigned n = 0;
    message_t message;
    /* Bounded, so that a message that posts another cannot starve the disk. */
    while (n < 256 && vc_ring_pop(worker->ring, &message) == VC_OK) {
        message.fn(message.arg);
        n++;
    }
    return n;
}

static unsigned turn(cs_worker_t *worker)
{
    unsigned n = run_messages(worker);
    cs_uring_flush(worker->uring);
    n += cs_uring_reap(worker->uring);
    if (worker->has_hook)
        n += worker->hook.progress(worker->hook.arg);
    cs_uring_flush(worker->uring);
    return n;
}

static void sleep_until_work(cs_worker_t *worker)
{
    struct epoll_event events[4];
    if (worker->has_hook && worker->hook.arm && !worker->hook.arm(worker->hook.arg))
        return;
    (void)atomic_exchange_explicit(&worker->asleep, 1, memory_order_seq_cst);
    if (vc_ring_count(worker->ring) == 0 && !atomic_load_explicit(&worker->stop, memory_order_relaxed)) {
        /* A hook without a descriptor, and transfers that the kernel did not take, must be tried again: after 1 ms. An
         * interrupted wait is a wake-up. */
        bool polls = (worker->has_hook && worker->hook.event_fd < 0) || cs_uring_has_backlog(worker->uring);
        int timeout_ms = polls ? 1 : -1;
        (void)epoll_wait(worker->epoll_fd, events, 4, timeout_ms);
    }
    atomic_store_explicit(&worker->asleep, 0, memory_order_relaxed);
    uint64_t ticks;
    (void)!read(worker->event_fd, &ticks, sizeof(ticks));
    cs_uring_clear_event(worker->uring);
}

static void loop(cs_worker_t *worker)
{
    uint64_t idle_since = 0;
    for (;;) {
        if (turn(worker) > 0) {
            idle_since = 0;
            continue;
        }
        if (atomic_load_explicit(&worker->stop, memory_order_acquire) && vc_ring_count(worker->ring) == 0 &&
            cs_uring_inflight(worker->uring) == 0)
            return;
        uint64_t now = now_ns();
        if (idle_since == 0)
            idle_since = now;
        if (now - idle_since >= SPIN_NS) {
            sleep_until_work(worker);
            idle_since = 0;
        }
    }
}

static vc_status_t watch(cs_worker_t *worker, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? VC_OK : vc_status_from_errno(errno);
}

static void *thread_main(void *arg)
{
    cs_worker_t *worker = arg;
    const cs_workers_opts_t *opts = worker->opts;
    /* The ring belongs to the thread that submits, so it is made here. */
    vc_status_t status = cs_uring_create(opts->io_mode, opts->queue_depth, opts->pool, &worker->uring, &worker->err);
    if (status == VC_OK && (status = watch(worker, cs_uring_event_fd(worker->uring))) != VC_OK)
        vc_err_set(&worker->err, status, "epoll refuses the io ring");
    pthread_mutex_lock(&worker->lock);
    worker->status = status;
    worker->is_ready = true;
    pthread_cond_signal(&worker->ready);
    pthread_mutex_unlock(&worker->lock);
    if (status == VC_OK)
        loop(worker);
    cs_uring_destroy(worker->uring);
    return NULL;
}

static vc_status_t worker_start(cs_worker_t *worker, const cs_workers_opts_t *opts, vc_err_t *err)
{
    worker->opts = opts;
    worker->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    worker->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->ready, NULL);
    if (worker->event_fd < 0 || worker->epoll_fd < 0 || watch(worker, worker->event_fd) != VC_OK)
        return vc_err_set(err, vc_status_from_errno(errno), "worker descriptors: %s", strerror(errno));
    vc_status_t status = vc_ring_create(RING_MESSAGES, sizeof(message_t), &worker->ring);
    if (status != VC_OK)
        return vc_err_set(err, status, "no memory for a worker's ring");
    int rc = pthread_create(&worker->thread, NULL, thread_main, worker);
    if (rc != 0)
        return vc_err_set(err, VC_ERR_NOMEM, "cannot start a worker: %s", strerror(rc));
    worker->is_running = true;
    pthread_mutex_lock(&worker->lock);
    while (!worker->is_ready)
        pthread_cond_wait(&worker->ready, &worker->lock);
    pthread_mutex_unlock(&worker->lock);
    if (worker->status != VC_OK)
        return vc_err_set(err, worker->status, "%s", worker->err.msg);
    return VC_OK;
}

static void wake(cs_worker_t *worker)
{
    /* A read-modify-write that changes nothing: see the top of the file. */
    if (atomic_fetch_or_explicit(&worker->asleep, 0, memory_order_seq_cst)) {
        uint64_t one = 1;
        (void)!write(worker->event_fd, &one, sizeof(one));
    }
}

static void worker_stop(cs_worker_t *worker)
{
    if (worker->is_running) {
        atomic_store_explicit(&worker->stop, true, memory_order_release);
        uint64_t one = 1; /* always: stopping is rare and must not depend on the fence protocol */
        (void)!write(worker->event_fd, &one, sizeof(one));
        pthread_join(worker->thread, NULL);
    }
    vc_ring_destroy(worker->ring);
    if (worker->event_fd >= 0)
        close(worker->event_fd);
    if (worker->epoll_fd >= 0)
        close(worker->epoll_fd);
    pthread_cond_destroy(&worker->ready);
    pthread_mutex_destroy(&worker->lock);
}

vc_status_t cs_workers_start(const cs_workers_opts_t *opts, cs_workers_t **workers_p, vc_err_t *err)
{
    cs_workers_opts_t used = *opts;
    used.n_workers = opts->n_workers ? opts->n_workers : 1;
    used.queue_depth = opts->queue_depth ? opts->queue_depth : 64;
    if (used.n_workers > 256)
        return vc_err_set(err, VC_ERR_RANGE, "%u workers are too many (at most 256)", used.n_workers);
    cs_workers_t *workers = vc_calloc(1, sizeof(*workers));
    if (workers)
        workers->workers = vc_calloc(used.n_workers, sizeof(*workers->workers));
    if (!workers || !workers->workers) {
        vc_free(workers);
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for %u workers", used.n_workers);
    }
    for (uint32_t i = 0; i < used.n_workers; i++) {
        vc_status_t status = worker_start(&workers->workers[i], &used, err);
        workers->workers[i].opts = NULL; /* it is done with them; they live on this stack */
        workers->n++;
        if (status != VC_OK) {
            cs_workers_stop(workers);
            return status;
        }
    }
    workers->io_mode = cs_uring_mode(workers->workers[used.n_workers - 1].uring);
    vc_log_info("worker", "workers started n=%u io=%s queue_depth=%u", used.n_workers,
                cs_io_mode_name(workers->io_mode), used.queue_depth);
    *workers_p = workers;
    return VC_OK;
}

void cs_workers_stop(cs_workers_t *workers)
{
    if (!workers)
        return;
    for (uint32_t i = 0; i < workers->n; i++)
        worker_stop(&workers->workers[i]);
    vc_free(workers->workers);
    vc_free(workers);
}

uint32_t cs_workers_count(const cs_workers_t *workers) { return workers->n; }

cs_worker_t *cs_workers_get(cs_workers_t *workers, uint32_t i) { return i < workers->n ? &workers->workers[i] : NULL; }

cs_worker_t *cs_workers_any(cs_workers_t *workers)
{
    /* Relaxed: only the spread matters. */
    return &workers->workers[atomic_fetch_add_explicit(&workers->next, 1, memory_order_relaxed) % workers->n];
}

cs_io_mode_t cs_workers_io_mode(const cs_workers_t *workers) { return workers->io_mode; }

vc_status_t cs_worker_post(cs_worker_t *worker, void (*fn)(void *arg), void *arg)
{
    message_t message = {fn, arg};
    if (vc_ring_push(worker->ring, &message) != VC_OK)
        return VC_ERR_BUSY;
    wake(worker);
    return VC_OK;
}

bool cs_worker_is_self(const cs_worker_t *worker) { return pthread_equal(pthread_self(), worker->thread); }

struct cs_uring *cs_worker_uring(cs_worker_t *worker) { return worker->uring; }

vc_status_t cs_worker_set_hook(cs_worker_t *worker, const cs_worker_hook_t *hook)
{
    if (!cs_worker_is_self(worker))
        return VC_ERR_INVALID;
    if (worker->has_hook && worker->hook.event_fd >= 0)
        (void)epoll_ctl(worker->epoll_fd, EPOLL_CTL_DEL, worker->hook.event_fd, NULL);
    worker->has_hook = false;
    if (!hook)
        return VC_OK;
    if (hook->event_fd >= 0) {
        vc_status_t status = watch(worker, hook->event_fd);
        if (status != VC_OK)
            return status;
    }
    worker->hook = *hook;
    worker->has_hook = true;
    return VC_OK;
}
