/*
 * A request's way: submit -> queue -> (flush) kernel or thread -> landed -> (poll, wait) done. Short transfers go on
 * where they stopped, at a 4 KiB boundary; one that moves nothing twice in a row has met the end of the file, or a full
 * disk. Only the owner marks a request done, so that nobody else has to look at a lock for it.
 *
 * With a delay_seed everything that was submitted lands before any of it is let go: which request is done when then
 * follows from the seed and the calls, not from the disk.
 */
#include "kv/slow_io.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "vc/log.h"
#include "vc/mem.h"

enum { N_THREADS = 4 };

typedef struct {
    node_slow_req_t *head, **end;
} queue_t;

struct node_slow_io {
    node_slow_io_mode_t mode;
    uint32_t depth, at_kernel;
    uint32_t n_open, n_landed, n_reads; /* submitted and not done; of those landed, and reads */
    queue_t waiting;                    /* not yet taken by kernel or thread */
    queue_t landed;                     /* completed and not yet done; the owner's */
    struct io_uring ring;
    uint64_t random; /* state of the delays, 0: none */
    const vc_clock_t *clock;
    uint64_t busy_since, busy_us;
    /* threads: waiting and finished under the lock */
    pthread_mutex_t lock;
    pthread_cond_t work, progress;
    queue_t finished;
    pthread_t threads[N_THREADS];
    uint32_t n_threads;
    bool stop;
};

static void queue_init(queue_t *q) { *q = (queue_t){.end = &q->head}; }

static void enqueue(queue_t *q, node_slow_req_t *req)
{
    req->next = NULL;
    *q->end = req;
    q->end = &req->next;
}

/* The i-th from the front. */
static node_slow_req_t *dequeue(queue_t *q, uint32_t i)
{
    node_slow_req_t **at = &q->head;
    while (i-- > 0)
        at = &(*at)->next;
    node_slow_req_t *req = *at;
    *at = req->next;
    if (q->end == &req->next)
        q->end = at;
    return req;
}

/* Takes in what a transfer returned (bytes or -errno). True: it goes on and has to be queued again. */
static bool goes_on(node_slow_req_t *req, long result)
{
    if (result == -EINTR || result == -EAGAIN)
        return true;
    req->status = VC_OK;
    if (result < 0) {
        req->error = (int)-result;
        req->status = vc_status_from_errno(req->error);
    } else if (result < (long)(req->bytes - req->moved)) {
        uint32_t whole = (uint32_t)result & ~4095u;
        req->moved += whole;
        req->idle = whole == 0 ? req->idle + 1 : 0;
        if (req->idle < 2)
            return true;
        req->status = req->write ? VC_ERR_NOSPACE : VC_ERR_RANGE;
    }
    return false;
}

/* ---- threads ---- */

static void *thread_main(void *arg)
{
    node_slow_io_t *io = arg;
    pthread_mutex_lock(&io->lock);
    for (;;) {
        while (io->waiting.head == NULL && !io->stop)
            pthread_cond_wait(&io->work, &io->lock);
        if (io->waiting.head == NULL)
            break;
        node_slow_req_t *req = dequeue(&io->waiting, 0);
        pthread_mutex_unlock(&io->lock);
        long n;
        do {
            uint8_t *data = req->data + req->moved;
            size_t bytes = req->bytes - req->moved;
            off_t offset = (off_t)(req->offset + req->moved);
            n = req->write ? pwrite(req->fd, data, bytes, offset) : pread(req->fd, data, bytes, offset);
            n = n < 0 ? -errno : n;
        } while (goes_on(req, n));
        pthread_mutex_lock(&io->lock);
        enqueue(&io->finished, req);
        pthread_cond_signal(&io->progress);
    }
    pthread_mutex_unlock(&io->lock);
    return NULL;
}

static vc_status_t open_threads(node_slow_io_t *io, vc_err_t *err)
{
    io->mode = NODE_SLOW_IO_THREADS;
    for (; io->n_threads < N_THREADS; io->n_threads++) {
        int rc = pthread_create(&io->threads[io->n_threads], NULL, thread_main, io);
        if (rc != 0)
            return vc_err_set(err, vc_status_from_errno(rc), "slow tier: cannot start an io thread: %s", strerror(rc));
    }
    return VC_OK;
}

/* ---- ring ---- */

static vc_status_t open_ring(node_slow_io_t *io, vc_err_t *err)
{
    int rc = io_uring_queue_init(io->depth, &io->ring, 0);
    if (rc < 0)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "slow tier: the kernel refuses io_uring: %s", strerror(-rc));
    io->mode = NODE_SLOW_IO_RING;
    return VC_OK;
}

static void push(node_slow_io_t *io)
{
    while (io->waiting.head != NULL && io->at_kernel < io->depth) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);
        if (sqe == NULL)
            break;
        node_slow_req_t *req = dequeue(&io->waiting, 0);
        uint8_t *data = req->data + req->moved;
        uint32_t bytes = req->bytes - req->moved;
        uint64_t offset = req->offset + req->moved;
        if (req->write)
            io_uring_prep_write(sqe, req->fd, data, bytes, offset);
        else if (req->buffer >= 0)
            io_uring_prep_read_fixed(sqe, req->fd, data, bytes, offset, req->buffer);
        else
            io_uring_prep_read(sqe, req->fd, data, bytes, offset);
        io_uring_sqe_set_data(sqe, req);
        io->at_kernel++;
    }
}

static void reap(node_slow_io_t *io)
{
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&io->ring, &cqe) == 0) {
        node_slow_req_t *req = io_uring_cqe_get_data(cqe);
        int result = cqe->res;
        io_uring_cqe_seen(&io->ring, cqe);
        io->at_kernel--;
        if (goes_on(req, result)) {
            enqueue(&io->waiting, req);
            continue;
        }
        enqueue(&io->landed, req);
        io->n_landed++;
    }
}

/* ---- landed and done ---- */

/* Takes in what the kernel or the threads have finished; `wait`: at least one, while there is one under way. */
static void land(node_slow_io_t *io, bool wait)
{
    if (io->mode == NODE_SLOW_IO_RING) {
        reap(io);
        push(io);
        if (wait && io->n_landed == 0 && io->n_open > 0)
            io_uring_submit_and_wait(&io->ring, 1);
        else if (io_uring_sq_ready(&io->ring) > 0) /* what it refuses for now goes with the next call */
            io_uring_submit(&io->ring);
        reap(io);
        return;
    }
    pthread_mutex_lock(&io->lock);
    while (wait && io->n_landed == 0 && io->n_open > 0 && io->finished.head == NULL)
        pthread_cond_wait(&io->progress, &io->lock);
    for (; io->finished.head != NULL; io->n_landed++)
        enqueue(&io->landed, dequeue(&io->finished, 0));
    pthread_mutex_unlock(&io->lock);
}

static uint32_t draw(node_slow_io_t *io, uint32_t below)
{
    uint64_t z = (io->random += 0x9e3779b97f4a7c15u); /* SplitMix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) % below);
}

static void finish(node_slow_io_t *io, uint32_t index)
{
    node_slow_req_t *req = dequeue(&io->landed, index);
    req->done = true;
    io->n_landed--;
    io->n_open--;
    if (!req->write && --io->n_reads == 0)
        io->busy_us += vc_clock_now_us(io->clock) - io->busy_since;
}

/* Lets landed requests go: all of them, or some by chance, at least `least`. */
static void let_go(node_slow_io_t *io, uint32_t least)
{
    uint32_t n = io->n_landed;
    if (io->random != 0) {
        while (io->n_landed < io->n_open) { /* one at a time is waited for: land wants none landed */
            uint32_t had = io->n_landed;
            io->n_landed = 0;
            land(io, true);
            io->n_landed += had;
        }
        n = io->n_landed == 0 ? 0 : VC_MAX(draw(io, io->n_landed + 1), least);
    }
    for (uint32_t i = 0; i < n; i++)
        finish(io, io->random != 0 ? draw(io, io->n_landed) : 0);
}

/* ---- the calls ---- */

vc_status_t node_slow_io_create(const node_slow_io_opts_t *opts, node_slow_io_t **io_p, vc_err_t *err)
{
    if (opts->depth == 0 || opts->depth > 4096)
        return vc_err_set(err, VC_ERR_RANGE, "slow tier: queue depth %u is not within 1..4096", opts->depth);
    node_slow_io_t *io = vc_calloc(1, sizeof *io);
    if (io == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "slow tier: no memory for its io");
    io->depth = opts->depth;
    io->random = opts->delay_seed;
    io->clock = opts->clock != NULL ? opts->clock : vc_clock_system();
    queue_init(&io->waiting);
    queue_init(&io->landed);
    queue_init(&io->finished);
    pthread_mutex_init(&io->lock, NULL);
    pthread_cond_init(&io->work, NULL);
    pthread_cond_init(&io->progress, NULL);
    vc_err_t why;
    vc_status_t st = VC_OK;
    if (opts->mode == NODE_SLOW_IO_THREADS)
        st = open_threads(io, err);
    else if ((st = open_ring(io, opts->mode == NODE_SLOW_IO_AUTO ? &why : err)) != VC_OK &&
             opts->mode == NODE_SLOW_IO_AUTO) {
        vc_log_warn("slow", "io steps down to threads reason=\"%s\"", why.msg);
        st = open_threads(io, err);
    }
    if (st != VC_OK) {
        node_slow_io_destroy(io);
        return st;
    }
    *io_p = io;
    return VC_OK;
}

void node_slow_io_destroy(node_slow_io_t *io)
{
    if (io == NULL)
        return;
    while (io->n_open > 0 && io->mode != NODE_SLOW_IO_AUTO) {
        land(io, true);
        let_go(io, 1);
    }
    if (io->mode == NODE_SLOW_IO_RING)
        io_uring_queue_exit(&io->ring);
    pthread_mutex_lock(&io->lock);
    io->stop = true;
    pthread_cond_broadcast(&io->work);
    pthread_mutex_unlock(&io->lock);
    for (uint32_t i = 0; i < io->n_threads; i++)
        pthread_join(io->threads[i], NULL);
    pthread_cond_destroy(&io->progress);
    pthread_cond_destroy(&io->work);
    pthread_mutex_destroy(&io->lock);
    vc_free(io);
}

node_slow_io_mode_t node_slow_io_mode(const node_slow_io_t *io) { return io->mode; }

bool node_slow_io_register(node_slow_io_t *io, uint8_t *const *buffers, uint32_t n, size_t bytes)
{
    if (io->mode != NODE_SLOW_IO_RING)
        return false;
    struct iovec *iov = vc_calloc(n, sizeof *iov);
    for (uint32_t i = 0; iov != NULL && i < n; i++)
        iov[i] = (struct iovec){buffers[i], bytes};
    bool fixed = iov != NULL && io_uring_register_buffers(&io->ring, iov, n) == 0;
    vc_free(iov);
    return fixed;
}

void node_slow_io_submit(node_slow_io_t *io, node_slow_req_t *req)
{
    req->done = false;
    req->status = VC_OK;
    req->error = 0;
    req->moved = req->idle = 0;
    io->n_open++;
    if (!req->write && io->n_reads++ == 0)
        io->busy_since = vc_clock_now_us(io->clock);
    if (io->mode == NODE_SLOW_IO_RING) {
        enqueue(&io->waiting, req);
        return;
    }
    pthread_mutex_lock(&io->lock);
    enqueue(&io->waiting, req);
    pthread_cond_signal(&io->work);
    pthread_mutex_unlock(&io->lock);
}

void node_slow_io_flush(node_slow_io_t *io)
{
    if (io->mode == NODE_SLOW_IO_RING)
        land(io, false);
}

void node_slow_io_poll(node_slow_io_t *io)
{
    land(io, false);
    let_go(io, 0);
}

void node_slow_io_wait(node_slow_io_t *io, node_slow_req_t *req)
{
    while (!req->done) {
        land(io, true);
        let_go(io, 1);
    }
}

uint32_t node_slow_io_reads(const node_slow_io_t *io) { return io->n_reads; }

uint64_t node_slow_io_busy_us(const node_slow_io_t *io)
{
    return io->busy_us + (io->n_reads > 0 ? vc_clock_now_us(io->clock) - io->busy_since : 0);
}
