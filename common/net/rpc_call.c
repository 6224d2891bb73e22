/*
 * Server side of a streaming call: what a handler may do with it, and its end.
 *
 * The queue belongs to the slot's thread, but a handler may read on one thread and write on another. A send that the
 * peer does not accept within stall_ms cancels the call: a stalled client costs its call, not the slot.
 */
#include "rpc_int.h"
#include "vc/mem.h"

vc_status_t vc_rpc_call_begin(vc_rpc_call_t *c)
{
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER, .data.recv_close_on_server.cancelled = &c->cancelled};
    pthread_mutex_init(&c->close_lock, NULL);
    if (grpc_call_start_batch(c->call, &op, 1, &c->tag_close, NULL) == GRPC_CALL_OK)
        return VC_OK;
    c->close_done = true; /* nothing to collect */
    c->cancelled = 1;
    return VC_ERR_INTERNAL;
}

bool vc_rpc_call_is_cancelled(vc_rpc_call_t *c)
{
    if (!c->streaming)
        return false;
    pthread_mutex_lock(&c->close_lock);
    if (!c->close_done && vc_rpc_pluck(c->cq, &c->tag_close, gpr_time_0(GPR_CLOCK_MONOTONIC)) != VC_RPC_BATCH_PENDING)
        c->close_done = true;
    bool cancelled = c->close_done && c->cancelled != 0;
    pthread_mutex_unlock(&c->close_lock);
    return cancelled;
}

const char *vc_rpc_call_peer(vc_rpc_call_t *c)
{
    if (c->peer == NULL)
        c->peer = grpc_call_get_peer(c->call);
    return c->peer != NULL ? c->peer : "unknown";
}

static void peer_wait_begin(vc_rpc_call_t *c)
{
    atomic_store_explicit(&c->waits_since_ms, vc_rpc_now_ms(), memory_order_relaxed);
}

static void peer_wait_end(vc_rpc_call_t *c) { atomic_store_explicit(&c->waits_since_ms, 0, memory_order_relaxed); }

/* TIMEOUT where it was we who ended the call, because its peer stalled while others waited. */
static vc_status_t gone(const vc_rpc_call_t *c)
{
    return atomic_load_explicit(&c->is_reclaimed, memory_order_relaxed) ? VC_ERR_TIMEOUT : VC_ERR_CANCELLED;
}

vc_status_t vc_rpc_call_recv(vc_rpc_call_t *c, uint32_t timeout_ms, vc_bytes_t *msg_p)
{
    if (!c->recv_pending) {
        grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &c->recv_buf};
        if (grpc_call_start_batch(c->call, &op, 1, &c->tag_recv, NULL) != GRPC_CALL_OK)
            return VC_ERR_CANCELLED;
        c->recv_pending = true;
    }
    if (timeout_ms != VC_RPC_NO_WAIT)
        peer_wait_begin(c);
    vc_rpc_batch_t got = vc_rpc_pluck(c->cq, &c->tag_recv, vc_rpc_deadline(timeout_ms));
    peer_wait_end(c);
    if (got == VC_RPC_BATCH_PENDING)
        return VC_ERR_AGAIN;
    c->recv_pending = false;
    if (got == VC_RPC_BATCH_FAILED)
        return gone(c);
    if (c->recv_buf == NULL)
        return vc_rpc_call_is_cancelled(c) ? gone(c) : VC_ERR_NOT_FOUND;
    vc_status_t status = vc_rpc_buffer_read(c->recv_buf, msg_p);
    grpc_byte_buffer_destroy(c->recv_buf);
    c->recv_buf = NULL;
    return status;
}

/* Waits for a send batch; past the stall limit the call is cancelled, which completes the batch. */
static vc_rpc_batch_t wait_sent(vc_rpc_call_t *c, void *tag, bool *stalled_p)
{
    peer_wait_begin(c);
    vc_rpc_batch_t got = vc_rpc_pluck(c->cq, tag, vc_rpc_deadline(c->stall_ms));
    peer_wait_end(c);
    *stalled_p = got == VC_RPC_BATCH_PENDING;
    if (*stalled_p) {
        grpc_call_cancel(c->call, NULL);
        got = vc_rpc_pluck(c->cq, tag, gpr_inf_future(GPR_CLOCK_MONOTONIC));
    }
    return got;
}

vc_status_t vc_rpc_call_send(vc_rpc_call_t *c, const vc_rpc_msg_t *msg)
{
    if (msg->head_len + msg->body_len > c->max_message_bytes) {
        vc_rpc_msg_release(msg);
        return VC_ERR_RANGE;
    }
    grpc_byte_buffer *buffer = vc_rpc_buffer_make(msg);
    if (buffer == NULL)
        return VC_ERR_NOMEM;
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = buffer},
                      {.op = GRPC_OP_SEND_INITIAL_METADATA}};
    size_t n = c->sent_initial ? 1 : 2;
    bool stalled = false;
    vc_status_t status = VC_ERR_CANCELLED;
    if (grpc_call_start_batch(c->call, ops, n, &c->tag_send, NULL) == GRPC_CALL_OK) {
        c->sent_initial = true;
        if (wait_sent(c, &c->tag_send, &stalled) == VC_RPC_BATCH_OK)
            status = VC_OK;
        else
            status = stalled ? VC_ERR_TIMEOUT : gone(c);
    }
    grpc_byte_buffer_destroy(buffer);
    return status;
}

void vc_rpc_call_end(vc_rpc_call_t *c, vc_status_t status, const vc_err_t *err)
{
    bool stalled;
    gpr_timespec never = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    grpc_slice details = vc_rpc_details_make(status, err);
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_STATUS_FROM_SERVER,
                       .data.send_status_from_server = {.status = (grpc_status_code)vc_rpc_status_code(status),
                                                        .status_details = &details}},
                      {.op = GRPC_OP_SEND_INITIAL_METADATA}};
    if (grpc_call_start_batch(c->call, ops, c->sent_initial ? 1 : 2, &c->tag_status, NULL) == GRPC_CALL_OK)
        wait_sent(c, &c->tag_status, &stalled);
    grpc_slice_unref(details);
    pthread_mutex_lock(&c->close_lock);
    if (!c->close_done)
        vc_rpc_pluck(c->cq, &c->tag_close, never); /* comes once the status is out or the call is gone */
    c->close_done = true;
    pthread_mutex_unlock(&c->close_lock);
    if (c->recv_pending)
        vc_rpc_pluck(c->cq, &c->tag_recv, never);
    grpc_byte_buffer_destroy(c->recv_buf);
    if (c->peer != NULL)
        gpr_free(c->peer);
    pthread_mutex_destroy(&c->close_lock);
    grpc_call_unref(c->call);
}
