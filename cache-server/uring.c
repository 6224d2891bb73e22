/*
 * A transfer's way: submit -> queue -> (flush) kernel or helper thread -> (reap) done.
 * Short transfers are continued at the next 4 KiB boundary, since O_DIRECT takes no other; a transfer that moves
 * nothing twice in a row has hit the end of the file.
 */
#include "uring.h"

#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fault_file.h"
#include "iothreads.h"
#include "uring_buffers.h"
#include "uring_hold.h"
#include "vc/log.h"
#include "vc/mem.h"

/* At the kernel while there is more than one. A device shares itself between all reads that it has: with more of them
 * than fill it, the first records arrive late and then all at once, and the wire idles meanwhile (fetches of 1.4 MB
 * records over tcp: 0.64 of the disk with 16 at a time, 0.95 with 6 MiB). */
#define READ_BYTES_MAX (6u << 20)
#define WRITE_BYTES_MAX (8u << 20)
#define REAP_MAX 4u  /* transfers between two looks at the network: each may take 0.1 ms to check */
#define MAX_TRIES 16 /* fruitless repeats of one transfer before it is given up */

/* What the kernel gets first when there is room for one. */
typedef enum { DEMAND = 0, AHEAD, WRITE, N_KINDS } kind_t;

typedef struct queue {
    cs_io_t *head, **end;
    uint32_t at_kernel;
} queue_t;

struct cs_uring {
    cs_io_mode_t mode;
    uint32_t depth, inflight, at_kernel;
    int event_fd;
    queue_t queues[N_KINDS];
    uint64_t read_bytes, write_bytes; /* at the kernel */
    struct io_uring ring;
    bool has_ring;
    cs_uring_buffers_t buffers; /* mode fixed */
    cs_iothreads_t *threads;    /* mode threads */
#ifdef VC_FAULTS
    cs_hold_list_t held; /* counted as being at the kernel */
    bool lets_go;        /* nothing is held any more */
#endif
};

const char *cs_io_mode_name(cs_io_mode_t mode)
{
    static const char *const names[] = {"auto", "fixed", "ring", "threads"};
    return (unsigned)mode < VC_ARRAY_LEN(names) ? names[mode] : "unknown";
}

/* Kernels before 6.0 know no SINGLE_ISSUER and before 5.19 no COOP_TASKRUN: plain flags work everywhere. */
static int open_ring(cs_uring_t *uring)
{
    int rc = io_uring_queue_init(uring->depth, &uring->ring,
                                 IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    if (rc == -EINVAL)
        rc = io_uring_queue_init(uring->depth, &uring->ring, 0);
    if (rc < 0)
        return rc;
    uring->has_ring = true;
    return io_uring_register_eventfd(&uring->ring, uring->event_fd);
}

static void close_ring(cs_uring_t *uring)
{
    if (uring->has_ring)
        io_uring_queue_exit(&uring->ring);
    uring->has_ring = false;
    cs_uring_buffers_fini(&uring->buffers);
}

static vc_status_t setup_ring(cs_uring_t *uring, cs_io_mode_t mode, cs_bufpool_t *pool, vc_err_t *err)
{
    int rc = open_ring(uring);
    if (rc < 0) {
        close_ring(uring);
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "the kernel refuses io_uring: %s", strerror(-rc));
    }
    if (mode == CS_IO_FIXED && (rc = cs_uring_buffers_init(&uring->buffers, &uring->ring, pool)) < 0) {
        close_ring(uring);
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "registering the buffers is refused: %s%s", strerror(-rc),
                          rc == -ENOMEM ? " (memlock limit)" : "");
    }
    uring->mode = mode;
    return VC_OK;
}

static vc_status_t setup_threads(cs_uring_t *uring, vc_err_t *err)
{
    uring->mode = CS_IO_THREADS;
    return cs_iothreads_create(uring->event_fd, &uring->threads, err);
}

static vc_status_t setup(cs_uring_t *uring, cs_io_mode_t mode, cs_bufpool_t *pool, vc_err_t *err)
{
    if (mode == CS_IO_THREADS)
        return setup_threads(uring, err);
    if (mode == CS_IO_FIXED || mode == CS_IO_RING)
        return setup_ring(uring, mode, pool, err);
    vc_err_t why;
    if (setup_ring(uring, CS_IO_FIXED, pool, &why) == VC_OK)
        return VC_OK;
    vc_log_warn("uring", "io mode steps down from=fixed to=ring reason=\"%s\"", why.msg);
    if (setup_ring(uring, CS_IO_RING, pool, &why) == VC_OK)
        return VC_OK;
    vc_log_warn("uring", "io mode steps down from=ring to=threads reason=\"%s\"", why.msg);
    return setup_threads(uring, err);
}

vc_status_t cs_uring_create(cs_io_mode_t mode, uint32_t depth, cs_bufpool_t *pool, cs_uring_t **uring_p, vc_err_t *err)
{
    if (depth == 0 || depth > 4096)
        return vc_err_set(err, VC_ERR_RANGE, "queue depth %u is not within 1..4096", depth);
    cs_uring_t *uring = vc_calloc(1, sizeof(*uring));
    if (!uring)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the io ring");
    uring->depth = depth;
    for (int k = 0; k < N_KINDS; k++)
        uring->queues[k].end = &uring->queues[k].head;
    uring->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    vc_status_t status = uring->event_fd < 0
                             ? vc_err_set(err, vc_status_from_errno(errno), "eventfd: %s", strerror(errno))
                             : setup(uring, mode, pool, err);
    if (status != VC_OK) {
        if (uring->event_fd >= 0)
            close(uring->event_fd);
        vc_free(uring);
        return status;
    }
#ifdef VC_FAULTS
    cs_hold_open(uring->event_fd);
#endif
    *uring_p = uring;
    return VC_OK;
}

void cs_uring_destroy(cs_uring_t *uring)
{
    if (!uring)
        return;
#ifdef VC_FAULTS
    uring->lets_go = true;
    cs_hold_close(uring->event_fd);
    cs_uring_reap(uring);
#endif
    while (uring->inflight > 0) {
        cs_uring_flush(uring);
        if (uring->at_kernel > 0 && uring->has_ring) {
            struct io_uring_cqe *cqe;
            io_uring_wait_cqe(&uring->ring, &cqe);
        } else if (uring->at_kernel > 0) {
            cs_iothreads_wait(uring->threads);
        }
        cs_uring_reap(uring);
    }
    cs_iothreads_destroy(uring->threads);
    close_ring(uring);
    close(uring->event_fd);
    vc_free(uring);
}

cs_io_mode_t cs_uring_mode(const cs_uring_t *uring) { return uring->mode; }

uint32_t cs_uring_inflight(const cs_uring_t *uring) { return uring->inflight; }

uint32_t cs_uring_at_kernel(const cs_uring_t *uring, bool write)
{
    uint32_t writes = uring->queues[WRITE].at_kernel;
    return write ? writes : uring->at_kernel - writes;
}

int cs_uring_event_fd(const cs_uring_t *uring) { return uring->event_fd; }

static queue_t *queue_of(cs_uring_t *uring, const cs_io_t *io)
{
    return &uring->queues[io->write ? WRITE : io->ahead ? AHEAD : DEMAND];
}

static void enqueue(cs_uring_t *uring, cs_io_t *io)
{
    queue_t *queue = queue_of(uring, io);
    io->next = NULL;
    *queue->end = io;
    queue->end = &io->next;
}

/* The queue whose head may go to the kernel now, or NULL. */
static queue_t *next_queue(cs_uring_t *uring)
{
    queue_t *demand = &uring->queues[DEMAND], *ahead = &uring->queues[AHEAD], *write = &uring->queues[WRITE];
    uint32_t for_reads = uring->depth - uring->depth / 8;
    if (uring->at_kernel >= uring->depth)
        return NULL;
    if (demand->head && demand->at_kernel + ahead->at_kernel < for_reads &&
        (uring->read_bytes == 0 || uring->read_bytes + demand->head->bytes <= READ_BYTES_MAX))
        return demand;
    if (write->head && (write->at_kernel == 0 || uring->write_bytes + write->head->bytes <= WRITE_BYTES_MAX))
        return write;
    if (ahead->head && !demand->head && ahead->at_kernel < VC_MAX(uring->depth / 4, 1))
        return ahead;
    return NULL;
}

static void count_kernel(cs_uring_t *uring, const cs_io_t *io, int n)
{
    uring->at_kernel += (uint32_t)n;
    queue_of(uring, io)->at_kernel += (uint32_t)n;
    uint64_t *bytes = io->write ? &uring->write_bytes : &uring->read_bytes;
    *bytes += n > 0 ? io->bytes : -(uint64_t)io->bytes;
}

void cs_uring_submit(cs_uring_t *uring, cs_io_t *io)
{
    io->moved = 0;
    io->tries = 0;
    uring->inflight++;
    enqueue(uring, io);
}

static void prepare(cs_uring_t *uring, struct io_uring_sqe *sqe, cs_io_t *io)
{
    uint8_t *data = io->data + io->moved;
    uint32_t bytes = io->bytes - io->moved;
    uint64_t offset = io->offset + io->moved;
    bool fixed = uring->mode == CS_IO_FIXED && io->buf_index != CS_IO_NO_BUF &&
                 cs_uring_buffers_ready(&uring->buffers, &uring->ring, io->buf_index);
    if (io->write && fixed)
        io_uring_prep_write_fixed(sqe, io->fd, data, bytes, offset, (int)io->buf_index);
    else if (io->write)
        io_uring_prep_write(sqe, io->fd, data, bytes, offset);
    else if (fixed)
        io_uring_prep_read_fixed(sqe, io->fd, data, bytes, offset, (int)io->buf_index);
    else
        io_uring_prep_read(sqe, io->fd, data, bytes, offset);
    io_uring_sqe_set_data(sqe, io);
}

void cs_uring_flush(cs_uring_t *uring)
{
    queue_t *queue;
    while ((queue = next_queue(uring))) {
        cs_io_t *io = queue->head;
        struct io_uring_sqe *sqe = NULL;
        if (uring->has_ring && !(sqe = io_uring_get_sqe(&uring->ring)))
            break;
        queue->head = io->next;
        if (!queue->head)
            queue->end = &queue->head;
        count_kernel(uring, io, 1);
#ifdef VC_FAULTS
        if (io->write)
            cs_fault_write_begins(io->fd, io->offset + io->moved, io->bytes - io->moved);
#endif
        if (sqe)
            prepare(uring, sqe, io);
        else
            cs_iothreads_push(uring->threads, io);
    }
    /* EAGAIN and EBUSY leave the entries in the queue: the next turn submits them again. */
    if (uring->has_ring && io_uring_sq_ready(&uring->ring) > 0)
        (void)io_uring_submit(&uring->ring);
}

bool cs_uring_has_backlog(const cs_uring_t *uring) { return uring->has_ring && io_uring_sq_ready(&uring->ring) > 0; }

/* True: the transfer goes on and was queued again. */
static bool continues(cs_uring_t *uring, cs_io_t *io, int32_t result, vc_status_t *status_p)
{
    if (result == -EINTR || result == -EAGAIN) {
        *status_p = VC_ERR_IO;
    } else if (result < 0) {
        *status_p = vc_status_from_errno(-result);
        return false;
    } else if ((uint32_t)result >= io->bytes - io->moved) {
        *status_p = VC_OK;
        return false;
    } else {
        uint32_t aligned = (uint32_t)result & ~4095u;
        if (aligned > 0)
            io->tries = 0;
        io->moved += aligned;
        *status_p = io->write ? VC_ERR_NOSPACE : VC_ERR_RANGE;
        if (aligned == 0 && io->tries > 0)
            return false;
    }
    if (++io->tries > MAX_TRIES)
        return false;
    enqueue(uring, io);
    return true;
}

static unsigned deliver(cs_uring_t *uring, cs_io_t *io, int32_t result)
{
    vc_status_t status;
    count_kernel(uring, io, -1);
    if (continues(uring, io, result, &status))
        return 0;
    uring->inflight--;
    io->done(io, status);
    return 1;
}

#ifdef VC_FAULTS
static int32_t with_fault(cs_io_t *io, int32_t result, cs_fault_t fault, unsigned long arg)
{
    if (fault == CS_FAULT_TORN && io->write)
        cs_fault_tear(io->fd, io->offset + io->moved, arg);
    if (io->write)
        cs_fault_write_ended(io->fd, io->offset + io->moved);
    if (fault == CS_FAULT_EIO)
        return -EIO;
    if (fault == CS_FAULT_ENOSPC)
        return -ENOSPC;
    if (fault == CS_FAULT_EROFS)
        return -EROFS;
    if (fault == CS_FAULT_SHORT && result > 4096)
        return result / 2;
    if (fault == CS_FAULT_FLIP && result > 0 && !io->write)
        io->data[io->moved + (uint32_t)result / 2] ^= 1;
    return result;
}

static unsigned deliver_held(cs_uring_t *uring)
{
    unsigned n = 0;
    cs_io_t *io;
    int32_t result;
    while ((io = cs_hold_take(&uring->held, uring->lets_go, uring->at_kernel == uring->held.n, &result)))
        n += deliver(uring, io, result);
    return n;
}

static unsigned finish(cs_uring_t *uring, cs_io_t *io, int32_t result)
{
    unsigned long arg;
    cs_fault_t fault = cs_fault_hit_arg(io->write ? "io.write" : "io.read", &arg);
    result = with_fault(io, result, fault, arg);
    if ((fault == CS_FAULT_HOLD || fault == CS_FAULT_REORDER) && !uring->lets_go) {
        cs_hold_add(&uring->held, io, result, fault == CS_FAULT_REORDER ? 1 : arg);
        return 0;
    }
    unsigned n = deliver(uring, io, result);
    cs_hold_count(&uring->held);
    return n + deliver_held(uring);
}
#else
static unsigned deliver_held(cs_uring_t *uring)
{
    (void)uring;
    return 0;
}

static unsigned finish(cs_uring_t *uring, cs_io_t *io, int32_t result) { return deliver(uring, io, result); }
#endif

void cs_uring_clear_event(cs_uring_t *uring)
{
    uint64_t ticks;
    (void)!read(uring->event_fd, &ticks, sizeof(ticks));
}

unsigned cs_uring_reap(cs_uring_t *uring)
{
    unsigned n = 0;
    if (uring->at_kernel == 0)
        return 0;
    if (uring->has_ring) {
        struct io_uring_cqe *cqe;
        /* Bounded by what is there now, or a fast disk would keep the loop here for ever. */
        for (uint32_t left = VC_MIN(uring->at_kernel, REAP_MAX); left > 0 && io_uring_peek_cqe(&uring->ring, &cqe) == 0;
             left--) {
            cs_io_t *io = io_uring_cqe_get_data(cqe);
            int32_t result = cqe->res;
            io_uring_cqe_seen(&uring->ring, cqe);
            n += finish(uring, io, result);
            /* done may take as long as a transfer (it sums records): the disk must not run dry meanwhile. */
            if (next_queue(uring))
                cs_uring_flush(uring);
        }
    } else {
        cs_io_t *io = cs_iothreads_take(uring->threads);
        while (io) {
            cs_io_t *next = io->next;
            n += finish(uring, io, io->result);
            io = next;
        }
    }
    return n + deliver_held(uring);
}
