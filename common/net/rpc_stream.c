/*
 * Client side of a streaming call. One completion queue per stream, one tag per kind of operation, so that a reader
 * and a writer each pluck their own. Batches of sends and batches of receives are started by one thread each, which is
 * what gRPC asks for. The status arrives once; whoever needs it first collects it (status_lock).
 */
#include "rpc_int.h"
#include "vc/mem.h"

/* After a failed send the status usually follows at once; behind unread messages it waits for the reader. */
#define STATUS_WAIT_MS 1000

struct vc_rpc_stream {
    vc_rpc_channel_t *ch;
    grpc_call *call;
    grpc_completion_queue *cq;
    grpc_metadata_array initial, trailing;
    bool initial_pending, status_pending; /* batches that were started */
    bool recv_pending, recv_end;          /* the reader's */
    grpc_byte_buffer *recv_buf;
    pthread_mutex_t status_lock; /* guards status_done, code, details */
    bool status_done;
    grpc_status_code code;
    grpc_slice details;
    int tag_open, tag_initial, tag_status, tag_send, tag_recv; /* addresses only */
};

/* Starts what runs for the whole call: initial metadata out and in, and the status. */
static bool stream_start(vc_rpc_stream_t *s)
{
    grpc_metadata md;
    grpc_op open = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    grpc_op initial = {.op = GRPC_OP_RECV_INITIAL_METADATA,
                       .data.recv_initial_metadata.recv_initial_metadata = &s->initial};
    grpc_op end = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                   .data.recv_status_on_client = {
                       .trailing_metadata = &s->trailing, .status = &s->code, .status_details = &s->details}};
    open.data.send_initial_metadata.count = vc_rpc_channel_metadata(s->ch, &md);
    open.data.send_initial_metadata.metadata = &md;
    if (grpc_call_start_batch(s->call, &end, 1, &s->tag_status, NULL) != GRPC_CALL_OK)
        return false;
    s->status_pending = true;
    if (grpc_call_start_batch(s->call, &initial, 1, &s->tag_initial, NULL) != GRPC_CALL_OK)
        return false;
    s->initial_pending = true;
    if (grpc_call_start_batch(s->call, &open, 1, &s->tag_open, NULL) != GRPC_CALL_OK)
        return false;
    /* A failure here shows in the status, which send and recv report. */
    vc_rpc_pluck(s->cq, &s->tag_open, gpr_inf_future(GPR_CLOCK_MONOTONIC));
    return true;
}

vc_status_t vc_rpc_stream_open(vc_rpc_channel_t *ch, const char *method, uint32_t deadline_ms, vc_rpc_stream_t **s_p,
                               vc_err_t *err)
{
    vc_rpc_stream_t *s = vc_calloc(1, sizeof(*s));
    if (s == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    s->ch = ch;
    s->details = grpc_empty_slice();
    s->code = GRPC_STATUS_UNKNOWN;
    pthread_mutex_init(&s->status_lock, NULL);
    grpc_metadata_array_init(&s->initial);
    grpc_metadata_array_init(&s->trailing);
    s->cq = grpc_completion_queue_create_for_pluck(NULL);
    vc_status_t status = vc_rpc_channel_call(ch, method, deadline_ms, s->cq, &s->call, err);
    if (status == VC_OK && !stream_start(s))
        status = vc_err_set(err, VC_ERR_INTERNAL, "cannot start %s", method);
    if (status != VC_OK) {
        vc_rpc_stream_destroy(s);
        return status;
    }
    *s_p = s;
    return VC_OK;
}

/* The call's final status. False when it has not arrived by the deadline. */
static bool take_status(vc_rpc_stream_t *s, gpr_timespec deadline, vc_status_t *status_p, vc_err_t *err)
{
    pthread_mutex_lock(&s->status_lock);
    if (!s->status_done && vc_rpc_pluck(s->cq, &s->tag_status, deadline) != VC_RPC_BATCH_PENDING)
        s->status_done = true;
    bool done = s->status_done;
    if (done)
        *status_p = vc_rpc_status_take(s->code, s->details, err);
    pthread_mutex_unlock(&s->status_lock);
    return done;
}

vc_status_t vc_rpc_stream_send(vc_rpc_stream_t *s, const vc_rpc_msg_t *msg, vc_err_t *err)
{
    size_t bytes = msg->head_len + msg->body_len, limit = vc_rpc_channel_max_message(s->ch);
    if (bytes > limit) {
        vc_rpc_msg_release(msg);
        return vc_err_set(err, VC_ERR_RANGE, "message of %zu bytes is larger than the limit of %zu", bytes, limit);
    }
    grpc_byte_buffer *buffer = vc_rpc_buffer_make(msg);
    if (buffer == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = buffer};
    bool sent = grpc_call_start_batch(s->call, &op, 1, &s->tag_send, NULL) == GRPC_CALL_OK &&
                vc_rpc_pluck(s->cq, &s->tag_send, gpr_inf_future(GPR_CLOCK_MONOTONIC)) == VC_RPC_BATCH_OK;
    grpc_byte_buffer_destroy(buffer);
    if (sent)
        return VC_OK;
    vc_status_t status;
    if (take_status(s, vc_rpc_deadline(STATUS_WAIT_MS), &status, err) && status != VC_OK)
        return status;
    return vc_err_set(err, VC_ERR_CANCELLED, "the peer ended the stream");
}

vc_status_t vc_rpc_stream_half_close(vc_rpc_stream_t *s)
{
    grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    if (grpc_call_start_batch(s->call, &op, 1, &s->tag_send, NULL) != GRPC_CALL_OK)
        return VC_ERR_INVALID;
    if (vc_rpc_pluck(s->cq, &s->tag_send, gpr_inf_future(GPR_CLOCK_MONOTONIC)) != VC_RPC_BATCH_OK)
        return VC_ERR_CANCELLED;
    return VC_OK;
}

static vc_status_t end_of_stream(vc_rpc_stream_t *s, vc_err_t *err)
{
    vc_status_t status = VC_ERR_INTERNAL;
    if (err != NULL)
        *err = (vc_err_t){0};
    take_status(s, gpr_inf_future(GPR_CLOCK_MONOTONIC), &status, err);
    return status == VC_OK ? VC_ERR_NOT_FOUND : status;
}

vc_status_t vc_rpc_stream_recv(vc_rpc_stream_t *s, uint32_t timeout_ms, vc_bytes_t *msg_p, vc_err_t *err)
{
    if (s->recv_end)
        return end_of_stream(s, err);
    if (!s->recv_pending) {
        grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &s->recv_buf};
        if (grpc_call_start_batch(s->call, &op, 1, &s->tag_recv, NULL) != GRPC_CALL_OK)
            return vc_err_set(err, VC_ERR_INTERNAL, "cannot receive");
        s->recv_pending = true;
    }
    vc_rpc_batch_t got = vc_rpc_pluck(s->cq, &s->tag_recv, vc_rpc_deadline(timeout_ms));
    if (got == VC_RPC_BATCH_PENDING)
        return VC_ERR_AGAIN;
    s->recv_pending = false;
    if (got != VC_RPC_BATCH_OK || s->recv_buf == NULL) {
        s->recv_end = true;
        return end_of_stream(s, err);
    }
    vc_status_t status = vc_rpc_buffer_read(s->recv_buf, msg_p);
    grpc_byte_buffer_destroy(s->recv_buf);
    s->recv_buf = NULL;
    return status == VC_OK ? VC_OK : vc_err_set(err, status, "cannot read a message");
}

void vc_rpc_stream_cancel(vc_rpc_stream_t *s) { grpc_call_cancel(s->call, NULL); }

void vc_rpc_stream_destroy(vc_rpc_stream_t *s)
{
    if (s == NULL)
        return;
    gpr_timespec never = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (s->call != NULL && !s->status_done)
        grpc_call_cancel(s->call, NULL);
    if (s->recv_pending)
        vc_rpc_pluck(s->cq, &s->tag_recv, never);
    if (s->initial_pending)
        vc_rpc_pluck(s->cq, &s->tag_initial, never);
    if (s->status_pending && !s->status_done)
        vc_rpc_pluck(s->cq, &s->tag_status, never);
    if (s->call != NULL)
        grpc_call_unref(s->call);
    vc_rpc_cq_destroy(s->cq);
    grpc_byte_buffer_destroy(s->recv_buf);
    grpc_metadata_array_destroy(&s->initial);
    grpc_metadata_array_destroy(&s->trailing);
    grpc_slice_unref(s->details);
    pthread_mutex_destroy(&s->status_lock);
    vc_free(s);
}
