/*
 * A request's way: submit -> queue -> (flush) kernel or thread -> done. Short transfers go on where they stopped, at a
 * 4 KiB boundary; one that moves nothing twice in a row has met the end of the file, or a full disk.
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

struct node_slow_io {
    node_slow_io_mode_t mode;
    int fd;
    uint32_t depth, at_kernel, n_open; /* open: submitted and not done */
    node_slow_req_t *head, **end;      /* not yet taken by kernel or thread */
    struct io_uring ring;
    /* threads: everything above under the lock */
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    pthread_t threads[N_THREADS];
    uint32_t n_threads;
    bool stop;
};

static void enqueue(node_slow_io_t *io, node_slow_req_t *req)
{
    req->next = NULL;
    *io->end = req;
    io->end = &req->next;
}

static node_slow_req_t *dequeue(node_slow_io_t *io)
{
    node_slow_req_t *req = io->head;
    io->head = req->next;
    if (io->head == NULL)
        io->end = &io->head;
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
        while (io->head == NULL && !io->stop)
            pthread_cond_wait(&io->work, &io->lock);
        if (io->head == NULL)
            break;
        node_slow_req_t *req = dequeue(io);
        pthread_mutex_unlock(&io->lock);
        long n;
        do {
            uint8_t *data = req->data + req->moved;
            size_t bytes = req->bytes - req->moved;
            off_t offset = (off_t)(req->offset + req->moved);
            n = req->write ? pwrite(io->fd, data, bytes, offset) : pread(io->fd, data, bytes, offset);
            n = n < 0 ? -errno : n;
        } while (goes_on(req, n));
        pthread_mutex_lock(&io->lock);
        req->done = true;
        io->n_open--;
        pthread_cond_broadcast(&io->finished);
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
    while (io->head != NULL && io->at_kernel < io->depth) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);
        if (sqe == NULL)
            break;
        node_slow_req_t *req = dequeue(io);
        uint8_t *data = req->data + req->moved;
        uint32_t bytes = req->bytes - req->moved;
        uint64_t offset = req->offset + req->moved;
        if (req->write)
            io_uring_prep_write(sqe, io->fd, data, bytes, offset);
        else if (req->buffer >= 0)
            io_uring_prep_read_fixed(sqe, io->fd, data, bytes, offset, req->buffer);
        else
            io_uring_prep_read(sqe, io->fd, data, bytes, offset);
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
            enqueue(io, req);
            continue;
        }
        req->done = true;
        io->n_open--;
    }
}

/* ---- the calls ---- */

vc_status_t node_slow_io_create(node_slow_io_mode_t mode, int fd, uint32_t depth, node_slow_io_t **io_p, vc_err_t *err)
{
    if (depth == 0 || depth > 4096)
        return vc_err_set(err, VC_ERR_RANGE, "slow tier: queue depth %u is not within 1..4096", depth);
    node_slow_io_t *io = vc_calloc(1, sizeof *io);
    if (io == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "slow tier: no memory for its io");
    io->fd = fd;
    io->depth = depth;
    io->end = &io->head;
    pthread_mutex_init(&io->lock, NULL);
    pthread_cond_init(&io->work, NULL);
    pthread_cond_init(&io->finished, NULL);
    vc_err_t why;
    vc_status_t st = VC_OK;
    if (mode == NODE_SLOW_IO_THREADS)
        st = open_threads(io, err);
    else if ((st = open_ring(io, mode == NODE_SLOW_IO_AUTO ? &why : err)) != VC_OK && mode == NODE_SLOW_IO_AUTO) {
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
    while (io->mode == NODE_SLOW_IO_RING && io->n_open > 0) {
        push(io);
        io_uring_submit_and_wait(&io->ring, 1);
        reap(io);
    }
    if (io->mode == NODE_SLOW_IO_RING)
        io_uring_queue_exit(&io->ring);
    pthread_mutex_lock(&io->lock);
    io->stop = true; /* threads end when the queue is empty */
    pthread_cond_broadcast(&io->work);
    pthread_mutex_unlock(&io->lock);
    for (uint32_t i = 0; i < io->n_threads; i++)
        pthread_join(io->threads[i], NULL);
    pthread_cond_destroy(&io->finished);
    pthread_cond_destroy(&io->work);
    pthread_mutex_destroy(&io->lock);
    vc_free(io);
}

node_slow_io_mode_t node_slow_io_mode(const node_slow_io_t *io) { return io->mode; }

bool node_slow_io_register(node_slow_io_t *io, uint8_t *const *buffers, uint32_t n, size_t bytes)
{
    struct iovec iov[16];
    if (io->mode != NODE_SLOW_IO_RING || n > VC_ARRAY_LEN(iov))
        return false;
    for (uint32_t i = 0; i < n; i++)
        iov[i] = (struct iovec){buffers[i], bytes};
    return io_uring_register_buffers(&io->ring, iov, n) == 0;
}

void node_slow_io_submit(node_slow_io_t *io, node_slow_req_t *req)
{
    req->done = false;
    req->status = VC_OK;
    req->error = 0;
    req->moved = req->idle = 0;
    bool threads = io->mode == NODE_SLOW_IO_THREADS;
    if (threads)
        pthread_mutex_lock(&io->lock);
    io->n_open++;
    enqueue(io, req);
    if (threads) {
        pthread_cond_signal(&io->work);
        pthread_mutex_unlock(&io->lock);
    }
}

void node_slow_io_flush(node_slow_io_t *io)
{
    if (io->mode != NODE_SLOW_IO_RING)
        return;
    reap(io);
    push(io);
    if (io_uring_sq_ready(&io->ring) > 0) /* what it refuses for now goes with the next call */
        io_uring_submit(&io->ring);
}

void node_slow_io_wait(node_slow_io_t *io, node_slow_req_t *req)
{
    if (io->mode == NODE_SLOW_IO_THREADS) {
        pthread_mutex_lock(&io->lock);
        while (!req->done)
            pthread_cond_wait(&io->finished, &io->lock);
        pthread_mutex_unlock(&io->lock);
        return;
    }
    reap(io);
    while (!req->done) {
        push(io);
        io_uring_submit_and_wait(&io->ring, 1);
        reap(io);
    }
}
