/*
 * The connection under vc_data_fetch and vc_data_put: UCX context, endpoint, registered slots, and the message handler.
 * A connection that broke is torn down whole, its memory last, so that no late transfer can land in freed slots.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data_int.h"
#include "vc/clock.h"
#include "vc/mem.h"

void vc_data_opts_default(vc_data_opts_t *opts)
{
    *opts = (vc_data_opts_t){.connect_ms = 2000, .idle_ms = 10000, .n_slots = 16, .max_record_bytes = 64u << 20};
}

uint64_t data_now_us(void) { return vc_clock_now_us(vc_clock_system()); }

void data_break(vc_data_t *d, vc_status_t status, const char *fmt, ...)
{
    if (d->broken != VC_OK)
        return; /* the first cause is the one to tell */
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    d->broken = vc_err_set(&d->why, status, "data plane %s: %s", d->address, text);
}

data_slot_t *data_take_slot(vc_data_t *d)
{
    for (uint32_t i = 0; i < d->opts.n_slots; i++)
        if (d->slots[i].state == SLOT_FREE)
            return &d->slots[i];
    return NULL;
}

/* ---- messages ---- */

static void on_welcome(vc_data_t *d, const vc_frame_t *frame)
{
    if (d->welcome) {
        data_break(d, VC_ERR_PROTOCOL, "a second welcome");
        return;
    }
    d->welcome = true;
    d->boot_id = frame->boot_id;
    d->put_window = frame->put_window;
    d->slot_bytes = VC_MIN((size_t)frame->max_record_bytes, d->opts.max_record_bytes);
}

static void on_error_message(vc_data_t *d, const vc_frame_t *frame)
{
    bool ours = d->fetch_request != 0 && frame->request == d->fetch_request;
    ours = ours || (frame->request >= d->put_first && frame->request <= d->put_last);
    if (ours)
        d->refused = vc_err_set(&d->refusal, frame->status, "data plane %s: %s", d->address, frame->text);
    else if (frame->request == 0)
        data_break(d, VC_ERR_PROTOCOL, "the server closes: %s", frame->text);
}

static bool on_message(void *arg, const vc_ucx_msg_t *msg)
{
    vc_data_t *d = arg;
    vc_frame_t frame;
    vc_err_t err;
    d->progress_us = data_now_us();
    if (vc_frame_decode(msg->header, msg->header_bytes, msg->bytes, &frame, &err) != VC_OK) {
        data_break(d, VC_ERR_PROTOCOL, "%s", err.msg);
        return false;
    }
    switch (frame.type) {
    case VC_FRAME_WELCOME: on_welcome(d, &frame); return false;
    case VC_FRAME_ERROR: on_error_message(d, &frame); return false;
    case VC_FRAME_FETCH_DATA:
    case VC_FRAME_PIECE:
    case VC_FRAME_FETCH_END: return data_fetch_message(d, &frame, msg->desc);
    case VC_FRAME_PUT_ACK: data_put_message(d, &frame); return false;
    default:
        data_break(d, VC_ERR_PROTOCOL, "a message of type %s from a server", vc_frame_type_name(frame.type));
        return false;
    }
}

static void on_lost(void *arg, vc_ucx_ep_t *ep, vc_status_t status)
{
    (void)ep;
    vc_data_t *d = arg;
    data_break(d, VC_ERR_UNREACHABLE, d->welcome ? "the server is gone (%s)" : "nobody answers there (%s)",
               vc_status_name(status));
}

static void on_control_sent(void *arg, vc_status_t status)
{
    data_control_t *c = arg;
    c->busy = false;
    if (status != VC_OK)
        data_break(c->data, VC_ERR_UNREACHABLE, "a message was not sent (%s)", vc_status_name(status));
}

vc_status_t data_send_control(vc_data_t *d, const vc_frame_t *frame, uint32_t idle_ms, vc_err_t *err)
{
    for (;;) {
        data_control_t *c = NULL;
        for (uint32_t i = 0; i < DATA_N_CONTROL && c == NULL; i++)
            if (!d->control[i].busy)
                c = &d->control[i];
        if (c == NULL) {
            vc_status_t st = data_wait(d, idle_ms, err);
            if (st != VC_OK)
                return st;
            continue;
        }
        c->busy = true;
        c->data = d;
        c->op = (vc_ucx_op_t){.done = on_control_sent, .arg = c};
        size_t len = vc_frame_encode(frame, c->header);
        vc_status_t st = vc_ucx_send(d->ep, c->header, len, NULL, 0, &c->op);
        if (st == VC_OK)
            return VC_OK;
        c->busy = false;
        data_break(d, VC_ERR_UNREACHABLE, "a message was not sent (%s)", vc_status_name(st));
        if (err != NULL)
            *err = d->why;
        return d->broken;
    }
}

/* Shared memory itself never tells that the other side is gone. */
static void look_at_server(vc_data_t *d)
{
    if (d->broken == VC_OK && d->meet_fd >= 0 && vc_meet_is_over(d->meet_fd))
        data_break(d, VC_ERR_UNREACHABLE, "the server is gone or has ended the connection");
}

vc_status_t data_wait(vc_data_t *d, uint32_t idle_ms, vc_err_t *err)
{
    uint64_t limit = (uint64_t)idle_ms * 1000, quiet = data_now_us() - d->progress_us;
    if (d->broken == VC_OK && quiet < limit)
        vc_ucx_wait(d->ucx, (uint32_t)((limit - quiet + 999) / 1000));
    look_at_server(d);
    if (d->broken == VC_OK && data_now_us() - d->progress_us >= limit)
        data_break(d, VC_ERR_TIMEOUT, "no progress for %u ms", idle_ms);
    if (d->broken != VC_OK && err != NULL)
        *err = d->why;
    return d->broken;
}

/* ---- connection ---- */

void data_drop(vc_data_t *d)
{
    vc_ucx_close(d->ucx); /* every transfer has ended when this returns */
    vc_ucx_shm_close(d->shm);
    if (d->meet_fd >= 0)
        close(d->meet_fd);
    d->shm = NULL;
    d->meet_fd = -1;
    vc_free(d->region);
    d->ucx = NULL;
    d->ep = NULL;
    d->region = NULL;
    d->welcome = false;
    d->broken = VC_OK;
    d->ready = NULL;
    d->ready_tail = &d->ready;
    d->n_unfinished = 0;
    memset(d->slots, 0, sizeof(d->slots));
    memset(d->control, 0, sizeof(d->control));
}

static vc_status_t make_slots(vc_data_t *d, vc_err_t *err)
{
    size_t bytes;
    d->slot_bytes = vc_align_up(d->slot_bytes, VC_KVREC_ALIGN);
    if (vc_size_mul(d->slot_bytes, d->opts.n_slots, &bytes))
        d->region = vc_alloc_aligned(VC_KVREC_ALIGN, bytes);
    if (d->region == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "data plane: no memory for %u slots of %zu bytes", d->opts.n_slots,
                          d->slot_bytes);
    for (uint32_t i = 0; i < d->opts.n_slots; i++) {
        d->slots[i].data = d;
        d->slots[i].buf = d->region + i * d->slot_bytes;
    }
    return vc_ucx_register(d->ucx, d->region, bytes, err);
}

static vc_status_t greet(vc_data_t *d, vc_err_t *err)
{
    vc_frame_t hello = {.type = VC_FRAME_HELLO, .max_record_bytes = (uint32_t)d->opts.max_record_bytes};
    vc_status_t st = data_send_control(d, &hello, d->opts.connect_ms, err);
    while (st == VC_OK && !d->welcome)
        st = data_wait(d, d->opts.connect_ms, err);
    if (st == VC_ERR_TIMEOUT) /* a host that drops everything, or something else at that port */
        st = vc_err_set(err, VC_ERR_UNREACHABLE, "data plane %s: no answer within %u ms", d->address,
                        d->opts.connect_ms);
    return st;
}

static vc_status_t connect_net(vc_data_t *d, vc_err_t *err)
{
    vc_ucx_opts_t opts = {.address = d->address, .rndv_threshold = DATA_RNDV_BYTES};
    vc_status_t st = vc_ucx_open(&opts, &d->ucx, err);
    if (st != VC_OK)
        return st;
    vc_ucx_set_handler(d->ucx, on_message, d);
    d->progress_us = data_now_us();
    return vc_ucx_connect(d->ucx, on_lost, d, &d->ep, err);
}

/* Both sides say where their worker is. The socket stays open: its end is the other side's. */
static vc_status_t introduce(vc_data_t *d, vc_err_t *err)
{
    vc_meet_msg_t msg = {.status = VC_OK};
    vc_status_t st = vc_ucx_shm_address(d->ucx, msg.address, &msg.address_bytes, err);
    if (st != VC_OK)
        return st;
    st = vc_meet_send(d->meet_fd, &msg);
    if (st == VC_OK)
        st = vc_meet_recv(d->meet_fd, d->opts.connect_ms, &msg);
    if (st == VC_OK)
        st = msg.status;
    if (st == VC_ERR_AGAIN || st == VC_ERR_UNREACHABLE)
        return vc_err_set(err, VC_ERR_UNREACHABLE, "data plane %s: no answer within %u ms", d->address,
                          d->opts.connect_ms);
    if (st != VC_OK)
        return vc_err_set(err, st, "data plane %s: the server does not share memory: %s", d->address,
                          vc_status_text(st));
    return vc_ucx_shm_attach(d->ucx, msg.address, msg.address_bytes, d, &d->ep, err);
}

static vc_status_t connect_shm(vc_data_t *d, vc_err_t *err)
{
    vc_status_t st = vc_meet_dial(d->address, &d->meet_fd, err);
    if (st == VC_OK)
        st = vc_ucx_shm_open(DATA_SHM_RNDV_BYTES, &d->shm, err);
    if (st == VC_OK)
        st = vc_ucx_shm_worker(d->shm, &d->ucx, err);
    if (st == VC_OK)
        st = introduce(d, err);
    if (st != VC_OK) {
        data_drop(d);
        return st;
    }
    vc_ucx_set_handler(d->ucx, on_message, d);
    vc_ucx_watch(d->ucx, d->meet_fd);
    d->progress_us = data_now_us();
    return VC_OK;
}

vc_status_t data_ensure(vc_data_t *d, vc_err_t *err)
{
    if (d->ucx != NULL) /* what happened since the last call shows now */
        for (int i = 0; i < 8 && vc_ucx_progress(d->ucx) != 0; i++)
            ;
    if (d->ucx != NULL)
        look_at_server(d);
    if (d->ucx != NULL && d->broken == VC_OK)
        return VC_OK;
    data_drop(d);
    bool shm = strncmp(d->address, VC_MEET_PREFIX, strlen(VC_MEET_PREFIX)) == 0;
    vc_status_t st = shm ? connect_shm(d, err) : connect_net(d, err);
    if (st == VC_OK)
        st = greet(d, err);
    if (st == VC_OK)
        st = make_slots(d, err);
    if (st != VC_OK)
        data_drop(d);
    return st;
}

/* For a connection that was there: that its server's name is gone, or another's now, is no answer about blocks. */
vc_status_t data_reconnect(vc_data_t *d, vc_err_t *err)
{
    vc_status_t st = data_ensure(d, err);
    if (st != VC_ERR_NOT_FOUND && st != VC_ERR_PERM && st != VC_ERR_BUSY)
        return st;
    if (err != NULL)
        err->status = VC_ERR_UNREACHABLE;
    return VC_ERR_UNREACHABLE;
}

vc_status_t vc_data_connect(const char *address, const vc_data_opts_t *opts, vc_data_t **data_p, vc_err_t *err)
{
    vc_data_opts_t deflt;
    vc_data_opts_default(&deflt);
    if (opts == NULL)
        opts = &deflt;
    if (opts->n_slots == 0 || opts->n_slots > DATA_MAX_SLOTS || opts->max_record_bytes < VC_KVREC_ALIGN ||
        opts->max_record_bytes > VC_KVREC_MAX_BYTES || opts->connect_ms == 0 || opts->idle_ms == 0)
        return vc_err_set(err, VC_ERR_RANGE, "data plane: slots 1..%u, records of 4 KiB..256 MiB, times above 0",
                          DATA_MAX_SLOTS);
    if (address == NULL || strlen(address) >= sizeof((*data_p)->address))
        return vc_err_set(err, VC_ERR_INVALID, "data-plane address is missing or too long");
    vc_data_t *d = vc_calloc(1, sizeof(*d));
    if (d == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for a data-plane connection");
    d->opts = *opts;
    d->opts.max_record_bytes &= ~(size_t)(VC_KVREC_ALIGN - 1);
    d->meet_fd = -1;
    d->put_first = 1; /* no put: an empty range */
    memcpy(d->address, address, strlen(address) + 1);
    pthread_mutex_init(&d->lock, NULL);
    vc_status_t st = data_ensure(d, err);
    if (st != VC_OK) {
        vc_data_close(d);
        return st;
    }
    *data_p = d;
    return VC_OK;
}

void vc_data_close(vc_data_t *d)
{
    if (d == NULL)
        return;
    data_drop(d);
    pthread_mutex_destroy(&d->lock);
    vc_free(d);
}

const char *vc_data_address(const vc_data_t *d) { return d->address; }

void vc_data_note_step_down(vc_data_t *d)
{
    pthread_mutex_lock(&d->lock);
    d->stepped_down = true;
    pthread_mutex_unlock(&d->lock);
}
