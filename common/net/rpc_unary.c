/*
 * The unary calls of a server.
 *
 * Control threads share one completion queue. Each method has as many requests posted as there are control threads; one
 * that is taken is posted again before its handler runs. A handler answers by returning, or defers its call and lets
 * another thread answer it later; the control thread goes on meanwhile.
 *
 * What bounds it: a call counts from the moment it is taken until its answer is out. Beyond max_calls a call is
 * answered RESOURCE_EXHAUSTED at once, in trailers, which no flow control of the peer can hold up; beyond twice as many
 * no more are taken. An answer that its client does not accept within stall_ms is cancelled, so unread answers cannot
 * pile up.
 */
#include <string.h>

#include "rpc_server_int.h"
#include "vc/log.h"
#include "vc/mem.h"

#define SWEEP_MS 500u

struct vc_rpc_later {
    vc_rpc_server_t *server;
    vc_rpc_entry_t *method; /* NULL: any method that is not in the table */
    bool is_answering;
    bool owes_post; /* was not replaced when taken: too many calls were there */
    grpc_call *call;
    grpc_call_details details; /* of an unknown method */
    grpc_metadata_array metadata;
    gpr_timespec deadline;
    grpc_byte_buffer *payload, *response;
    int cancelled;
    uint64_t answered_ms; /* start of the answer */
    bool is_stalled;
    struct vc_rpc_later *older, *newer;
};

/* ---- answers on their way ---- */

static void list_add(vc_rpc_request_t *r)
{
    vc_rpc_server_t *s = r->server;
    r->answered_ms = vc_rpc_now_ms();
    pthread_mutex_lock(&s->lock);
    r->older = s->newest;
    r->newer = NULL;
    *(s->newest != NULL ? &s->newest->newer : &s->oldest) = r;
    s->newest = r;
    pthread_mutex_unlock(&s->lock);
}

static void list_remove(vc_rpc_request_t *r)
{
    vc_rpc_server_t *s = r->server;
    pthread_mutex_lock(&s->lock);
    *(r->older != NULL ? &r->older->newer : &s->oldest) = r->newer;
    *(r->newer != NULL ? &r->newer->older : &s->newest) = r->older;
    pthread_mutex_unlock(&s->lock);
}

/* A request is freed only after it left the list, so the call is there as long as the lock is held. One that was added
 * since now_ms was read is younger than that: no difference is taken. */
static void cancel_stalled(vc_rpc_server_t *s, uint64_t now_ms)
{
    pthread_mutex_lock(&s->lock);
    for (vc_rpc_request_t *r = s->oldest; r != NULL && r->answered_ms + s->stall_ms <= now_ms; r = r->newer) {
        if (r->is_stalled)
            continue;
        r->is_stalled = true;
        atomic_fetch_add_explicit(&s->stalled, 1, memory_order_relaxed);
        grpc_call_cancel(r->call, NULL);
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- requests ---- */

static void request_free(vc_rpc_request_t *r)
{
    if (r->call != NULL)
        grpc_call_unref(r->call);
    grpc_byte_buffer_destroy(r->payload);
    grpc_byte_buffer_destroy(r->response);
    grpc_call_details_destroy(&r->details);
    grpc_metadata_array_destroy(&r->metadata);
    vc_free(r);
}

static void request_post(vc_rpc_server_t *s, vc_rpc_entry_t *method)
{
    if (atomic_load_explicit(&s->stopping, memory_order_relaxed))
        return;
    vc_rpc_request_t *r = vc_calloc(1, sizeof(*r));
    if (r == NULL) {
        vc_log_error("rpc", "out of memory, one request slot less");
        return;
    }
    r->server = s;
    r->method = method;
    grpc_call_details_init(&r->details);
    grpc_metadata_array_init(&r->metadata);
    grpc_call_error e =
        method == NULL
            ? grpc_server_request_call(s->server, &r->call, &r->details, &r->metadata, s->control_cq, s->control_cq, r)
            : grpc_server_request_registered_call(s->server, method->registered, &r->call, &r->deadline, &r->metadata,
                                                  &r->payload, s->control_cq, s->control_cq, r);
    if (e != GRPC_CALL_OK)
        request_free(r);
}

void vc_rpc_unary_start(vc_rpc_server_t *s)
{
    for (uint32_t i = 0; i < s->n_methods; i++)
        for (uint32_t k = 0; s->methods[i].m.unary != NULL && k < s->n_control; k++)
            request_post(s, &s->methods[i]);
    request_post(s, NULL);
}

/* The answer is out, or its call is gone. */
static void request_over(vc_rpc_request_t *r)
{
    vc_rpc_server_t *s = r->server;
    vc_rpc_entry_t *method = r->method;
    bool post = r->owes_post;
    list_remove(r);
    atomic_fetch_sub_explicit(&s->calls, 1, memory_order_relaxed);
    request_free(r);
    if (post)
        request_post(s, method);
}

static void free_answer(void *arg) { vc_free(arg); }

/* Takes what response holds. The request comes back through the queue when the answer is out. */
static void request_answer(vc_rpc_request_t *r, vc_status_t status, vc_bytes_t *response, vc_err_t *err)
{
    grpc_byte_buffer_destroy(r->payload);
    r->payload = NULL;
    if (status == VC_OK && response->len > r->server->max_message_bytes)
        status = vc_err_set(err, VC_ERR_RANGE, "answer of %zu bytes is larger than the limit", response->len);
    if (status == VC_OK) {
        vc_rpc_msg_t msg = {.body = response->data, .body_len = response->len, .release = free_answer};
        msg.arg = response->data;
        r->response = vc_rpc_buffer_make(&msg);
        if (r->response == NULL)
            status = vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    } else {
        vc_bytes_free(response);
    }
    grpc_slice details = vc_rpc_details_make(status, err);
    grpc_op ops[4] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_RECV_CLOSE_ON_SERVER, .data.recv_close_on_server.cancelled = &r->cancelled},
        {.op = GRPC_OP_SEND_STATUS_FROM_SERVER,
         .data.send_status_from_server = {.status = (grpc_status_code)vc_rpc_status_code(status),
                                          .status_details = &details}},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = r->response},
    };
    const char *name = r->method != NULL ? r->method->name : "unknown";
    r->is_answering = true;
    list_add(r);
    /* From a successful start on r belongs to whoever takes its event. */
    if (grpc_call_start_batch(r->call, ops, r->response != NULL ? 4 : 3, r, NULL) != GRPC_CALL_OK) {
        vc_log_error("rpc", "cannot answer method=%s", name);
        request_over(r);
    }
    grpc_slice_unref(details);
}

/* *deferred_p: the call may be answered, and r gone, already. */
static vc_status_t request_handle(vc_rpc_request_t *r, vc_bytes_t *response, bool *deferred_p, vc_err_t *err)
{
    if (r->method == NULL) {
        char name[200];
        size_t n = VC_MIN(GRPC_SLICE_LENGTH(r->details.method), sizeof(name) - 1);
        memcpy(name, GRPC_SLICE_START_PTR(r->details.method), n);
        name[n] = '\0';
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "unknown method %s", name);
    }
    if (r->payload == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "%s was called without a message", r->method->name);
    vc_bytes_t request = {0};
    vc_status_t status = vc_rpc_buffer_read(r->payload, &request);
    if (status != VC_OK)
        return vc_err_set(err, status, "cannot read the request");
    vc_rpc_call_t call = {.call = r->call, .cq = r->server->control_cq, .request = r};
    status = r->method->m.unary(r->server->arg, &call, request.data, request.len, response, err);
    *deferred_p = call.is_deferred;
    if (call.peer != NULL)
        gpr_free(call.peer);
    vc_bytes_free(&request);
    return status;
}

static void request_taken(vc_rpc_request_t *r)
{
    vc_rpc_server_t *s = r->server;
    uint32_t n = atomic_fetch_add_explicit(&s->calls, 1, memory_order_relaxed) + 1;
    atomic_fetch_add_explicit(&s->total, 1, memory_order_relaxed);
    vc_bytes_t response = {0};
    vc_err_t err = {0};
    vc_status_t status;
    bool is_deferred = false;
    r->owes_post = n >= 2 * s->max_calls;
    if (!r->owes_post)
        request_post(s, r->method);
    if (n > s->max_calls) {
        atomic_fetch_add_explicit(&s->refused, 1, memory_order_relaxed);
        status = vc_err_set(&err, VC_ERR_BUSY, "%u calls are in flight already; try again", s->max_calls);
    } else {
        status = request_handle(r, &response, &is_deferred, &err);
    }
    if (!is_deferred)
        request_answer(r, status, &response, &err);
}

void vc_rpc_unary_serve(vc_rpc_server_t *s)
{
    uint64_t swept_ms = vc_rpc_now_ms();
    for (;;) {
        grpc_event ev = grpc_completion_queue_next(s->control_cq, vc_rpc_deadline(SWEEP_MS), NULL);
        if (ev.type == GRPC_QUEUE_SHUTDOWN)
            return;
        uint64_t now_ms = vc_rpc_now_ms();
        if (now_ms - swept_ms >= SWEEP_MS) { /* by the clock: under load the queue is never empty for so long */
            cancel_stalled(s, now_ms);
            swept_ms = now_ms;
        }
        vc_rpc_request_t *r = ev.type == GRPC_OP_COMPLETE ? ev.tag : NULL;
        if (r == NULL)
            continue;
        if (r->is_answering)
            request_over(r);
        else if (ev.success)
            request_taken(r);
        else
            request_free(r); /* the server is shutting down */
    }
}

/* ---- deferred calls ---- */

vc_rpc_later_t *vc_rpc_call_defer(vc_rpc_call_t *call)
{
    vc_rpc_server_t *s = call->request->server;
    call->is_deferred = true;
    pthread_mutex_lock(&s->lock);
    s->n_deferred++;
    pthread_mutex_unlock(&s->lock);
    return call->request;
}

void vc_rpc_later_finish(vc_rpc_later_t *later, vc_status_t status, vc_bytes_t *response, const vc_err_t *err)
{
    vc_rpc_server_t *s = later->server;
    vc_err_t copy = {0};
    vc_bytes_t nothing = {0};
    if (err != NULL)
        copy = *err;
    request_answer(later, status, response != NULL ? response : &nothing, &copy);
    /* Only now: the queue must not go before the batch is in it. */
    pthread_mutex_lock(&s->lock);
    s->n_deferred--;
    pthread_cond_broadcast(&s->undeferred);
    pthread_mutex_unlock(&s->lock);
}

void vc_rpc_unary_settle(vc_rpc_server_t *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->n_deferred != 0)
        pthread_cond_wait(&s->undeferred, &s->lock);
    pthread_mutex_unlock(&s->lock);
}
