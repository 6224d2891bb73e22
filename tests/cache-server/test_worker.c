/* Workers run what is posted, in order, on their own thread; sleep and wake without losing a message; serve a hook. */
#include "support/vc_test.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "uring.h"
#include "worker.h"

typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool is_open;
} gate_t;
#define GATE                                                       \
    {                                                              \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false \
    }

static void gate_open(void *arg)
{
    gate_t *gate = arg;
    pthread_mutex_lock(&gate->lock);
    gate->is_open = true;
    pthread_cond_broadcast(&gate->opened);
    pthread_mutex_unlock(&gate->lock);
}

static void gate_wait(void *arg)
{
    gate_t *gate = arg;
    pthread_mutex_lock(&gate->lock);
    while (!gate->is_open)
        pthread_cond_wait(&gate->opened, &gate->lock);
    gate->is_open = false;
    pthread_mutex_unlock(&gate->lock);
}

static cs_workers_t *start(uint32_t n, cs_io_mode_t mode)
{
    cs_workers_t *workers;
    vc_err_t err = {0};
    cs_workers_opts_t opts = {.n_workers = n, .queue_depth = 8, .io_mode = mode};
    cr_assert_eq(cs_workers_start(&opts, &workers, &err), VC_OK, "%s", err.msg);
    return workers;
}

static cs_worker_t *the_worker;
static int sequence[3000], n_sequence, on_own_thread;
static void append(void *arg)
{
    on_own_thread += cs_worker_is_self(the_worker);
    sequence[n_sequence++] = (int)(intptr_t)arg;
}

Test(worker, messages_run_in_order_on_the_workers_thread)
{
    gate_t gate = GATE;
    cs_workers_t *workers = start(1, CS_IO_RING);
    the_worker = cs_workers_get(workers, 0);
    n_sequence = on_own_thread = 0;
    cr_assert_not(cs_worker_is_self(the_worker));
    for (int i = 0; i < 3000; i++) {
        while (cs_worker_post(the_worker, append, (void *)(intptr_t)i) != VC_OK)
            ;
    }
    cs_worker_post(the_worker, gate_open, &gate);
    gate_wait(&gate);
    cr_assert_eq(n_sequence, 3000);
    cr_assert_eq(on_own_thread, 3000);
    for (int i = 0; i < 3000; i++)
        cr_assert_eq(sequence[i], i);
    cs_workers_stop(workers);
}

Test(worker, a_sleeping_worker_wakes_for_every_single_message)
{
    gate_t gate = GATE;
    cs_workers_t *workers = start(1, CS_IO_RING);
    /* Each round trip lets it run dry; a lost wake-up would hang here and the test time out. */
    for (int i = 0; i < 5000; i++) {
        cr_assert_eq(cs_worker_post(cs_workers_get(workers, 0), gate_open, &gate), VC_OK);
        gate_wait(&gate);
    }
    cs_workers_stop(workers);
}

Test(worker, a_full_ring_is_busy_and_nothing_is_lost)
{
    gate_t gate = GATE, entered = GATE;
    cs_workers_t *workers = start(1, CS_IO_THREADS);
    cs_worker_t *worker = cs_workers_get(workers, 0);
    the_worker = worker;
    n_sequence = 0;
    cs_worker_post(worker, gate_open, &entered);
    cs_worker_post(worker, gate_wait, &gate); /* holds the worker */
    gate_wait(&entered);
    int posted = 0;
    while (posted < 3000 && cs_worker_post(worker, append, (void *)(intptr_t)posted) == VC_OK)
        posted++;
    vc_status_t status = VC_OK;
    for (int i = 0; i < 10000 && status == VC_OK; i++)
        status = cs_worker_post(worker, gate_open, &entered);
    cr_assert_eq(status, VC_ERR_BUSY);
    gate_open(&gate);
    cs_workers_stop(workers); /* runs what is queued */
    cr_assert_eq(n_sequence, posted);
}

static _Atomic int ran;
static void count(void *arg)
{
    (void)arg;
    atomic_fetch_add(&ran, 1);
}
static void *post_many(void *arg)
{
    cs_workers_t *workers = arg;
    for (int i = 0; i < 20000; i++) {
        while (cs_worker_post(cs_workers_any(workers), count, NULL) != VC_OK)
            ;
    }
    return NULL;
}

Test(worker, stop_runs_everything_that_many_threads_posted)
{
    pthread_t threads[3];
    cs_workers_t *workers = start(2, CS_IO_RING);
    cr_assert_eq(cs_workers_count(workers), 2);
    cr_assert_null(cs_workers_get(workers, 2));
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, post_many, workers);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    cs_workers_stop(workers);
    cr_assert_eq(atomic_load(&ran), 60000);
}

/* ---- io through a worker ---- */

typedef struct job {
    cs_io_t io;
    cs_worker_t *worker;
    gate_t gate;
    vc_status_t status;
} job_t;

static void job_done(cs_io_t *io, vc_status_t status)
{
    job_t *job = io->arg;
    job->status = status;
    gate_open(&job->gate);
}
static void job_start(void *arg)
{
    job_t *job = arg;
    cs_uring_submit(cs_worker_uring(job->worker), &job->io);
}

static void io_through_worker(cs_io_mode_t mode)
{
    cs_workers_t *workers = start(1, mode);
    char path[] = "/tmp/vc-worker-XXXXXX";
    int fd = mkstemp(path);
    unlink(path);
    uint8_t *data = aligned_alloc(4096, 8192);
    for (int i = 0; i < 200; i++) {
        job_t job = {.worker = cs_workers_get(workers, 0), .gate = GATE, .status = VC_ERR_INTERNAL};
        bool write = i % 2 == 0;
        memset(data, write ? i : 0xee, 8192);
        job.io = (cs_io_t){.fd = fd,
                           .write = write,
                           .buf_index = CS_IO_NO_BUF,
                           .data = data,
                           .bytes = 8192,
                           .offset = 8192u * (unsigned)(i / 2),
                           .done = job_done,
                           .arg = &job};
        cr_assert_eq(cs_worker_post(job.worker, job_start, &job), VC_OK);
        gate_wait(&job.gate);
        cr_assert_eq(job.status, VC_OK);
        cr_assert_eq(data[8191], write ? i : i - 1);
    }
    free(data);
    close(fd);
    cs_workers_stop(workers);
}

Test(worker, transfers_wake_a_sleeping_worker_in_mode_ring) { io_through_worker(CS_IO_RING); }
Test(worker, transfers_wake_a_sleeping_worker_in_mode_threads) { io_through_worker(CS_IO_THREADS); }

/* ---- the hook ---- */

typedef struct hooked {
    int fd;
    cs_worker_t *worker;
    _Atomic int events;
    gate_t gate;
    vc_status_t set_status;
    bool remove;
} hooked_t;

static unsigned hook_progress(void *arg)
{
    hooked_t *h = arg;
    uint64_t ticks;
    if (read(h->fd, &ticks, sizeof(ticks)) != sizeof(ticks))
        return 0;
    atomic_fetch_add(&h->events, (int)ticks);
    gate_open(&h->gate);
    return 1;
}
static bool hook_arm(void *arg)
{
    (void)arg;
    return true;
}
static void hook_set(void *arg)
{
    hooked_t *h = arg;
    cs_worker_hook_t hook = {hook_progress, hook_arm, h->fd, h};
    h->set_status = cs_worker_set_hook(h->worker, h->remove ? NULL : &hook);
    gate_open(&h->gate);
}

Test(worker, a_hook_is_driven_by_its_descriptor_while_the_worker_sleeps)
{
    cs_workers_t *workers = start(1, CS_IO_RING);
    hooked_t h = {.fd = eventfd(0, EFD_NONBLOCK), .worker = cs_workers_get(workers, 0), .gate = GATE};
    cs_worker_hook_t hook = {hook_progress, hook_arm, h.fd, &h};
    cr_assert_eq(cs_worker_set_hook(h.worker, &hook), VC_ERR_INVALID); /* not from another thread */
    cs_worker_post(h.worker, hook_set, &h);
    gate_wait(&h.gate);
    cr_assert_eq(h.set_status, VC_OK);
    for (int i = 1; i <= 100; i++) {
        uint64_t one = 1;
        cr_assert_eq(write(h.fd, &one, sizeof(one)), (ssize_t)sizeof(one));
        gate_wait(&h.gate);
        cr_assert_eq(atomic_load(&h.events), i);
    }
    h.remove = true;
    cs_worker_post(h.worker, hook_set, &h);
    gate_wait(&h.gate);
    cr_assert_eq(h.set_status, VC_OK);
    cs_workers_stop(workers);
    close(h.fd);
}

Test(worker, a_mode_that_is_refused_fails_the_start_with_its_reason)
{
    cs_workers_t *workers;
    vc_err_t err = {0};
    cs_workers_opts_t opts = {.n_workers = 1, .io_mode = CS_IO_FIXED}; /* no pool to register */
    cr_assert_eq(cs_workers_start(&opts, &workers, &err), VC_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(err.msg, "register"));
    opts.n_workers = 100000;
    cr_assert_eq(cs_workers_start(&opts, &workers, &err), VC_ERR_RANGE);
    cs_workers_stop(NULL);
}
