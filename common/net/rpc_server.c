/*
 * The server: one table of methods, a few control threads, one thread per streaming slot.
 *
 * Control threads share one completion queue. Each method has as many requests posted as there are control threads; a
 * request taken is posted again before its handler runs, unless too many answers are still on their way to slow
 * clients. Every streaming slot owns a queue and serves one call after the other. Methods that are not in the table
 * are answered UNIMPLEMENTED by the control threads.
 *
 * Stop, the order that ends clean with a stalled client: no new requests are posted; shutdown_and_notify on a queue of
 * its own; the grace period; cancel_all_calls, which fails every pending send and receive; its tag; slots join;
 * server_destroy; the queues shut down, drain and go; control threads join; library fini.
 */
#include <errno.h>
#include <grpc/grpc_security.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc_int.h"
#include "vc/addr.h"
#include "vc/log.h"
#include "vc/mem.h"

#define MAX_ANSWERS_PENDING 1024 /* unary answers not yet taken by their clients */

struct vc_rpc_server;

typedef struct {
    vc_rpc_method_t m;
    char *name;
    void *registered;
} method_t;

typedef struct {
    struct vc_rpc_server *server;
    method_t *method;
    grpc_completion_queue *cq;
    pthread_t thread;
    bool running;
} slot_t;

struct vc_rpc_server {
    grpc_server *server;
    grpc_completion_queue *control_cq, *shutdown_cq;
    method_t *methods;
    uint32_t n_methods;
    slot_t *slots;
    uint32_t n_slots;
    pthread_t *control;
    uint32_t n_control, n_control_running;
    void *arg;
    size_t max_message_bytes;
    uint32_t stall_ms, dead_peer_ms;
    int port;
    /* Relaxed: a request posted after the flag was set fails by itself, since gRPC refuses it after shutdown. */
    _Atomic bool stopping;
    _Atomic uint32_t answers; /* relaxed counter; the limit may be passed by a few */
};

/* One unary request: posted, then taken and answered. */
typedef struct {
    vc_rpc_server_t *server;
    method_t *method; /* NULL: any method that is not in the table */
    bool answering;
    bool owes_post; /* was not replaced when taken: too many answers were pending */
    grpc_call *call;
    grpc_call_details details; /* of an unknown method */
    grpc_metadata_array metadata;
    gpr_timespec deadline;
    grpc_byte_buffer *payload, *response;
    int cancelled;
} request_t;

void vc_rpc_server_opts_default(vc_rpc_server_opts_t *opts)
{
    *opts = (vc_rpc_server_opts_t){
        .n_unary_threads = 1, .max_message_bytes = VC_RPC_MAX_MESSAGE, .stall_ms = 30000, .dead_peer_ms = 10000};
}

/* ---- unary ---- */

static void request_free(request_t *r)
{
    if (r->call != NULL)
        grpc_call_unref(r->call);
    grpc_byte_buffer_destroy(r->payload);
    grpc_byte_buffer_destroy(r->response);
    grpc_call_details_destroy(&r->details);
    grpc_metadata_array_destroy(&r->metadata);
    vc_free(r);
}

static void request_post(vc_rpc_server_t *s, method_t *method)
{
    if (atomic_load_explicit(&s->stopping, memory_order_relaxed))
        return;
    request_t *r = vc_calloc(1, sizeof(*r));
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

static vc_status_t request_handle(request_t *r, vc_bytes_t *response, vc_err_t *err)
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
    vc_rpc_call_t call = {.call = r->call, .cq = r->server->control_cq};
    status = r->method->m.unary(r->server->arg, &call, request.data, request.len, response, err);
    if (call.peer != NULL)
        gpr_free(call.peer);
    vc_bytes_free(&request);
    return status;
}

static void free_answer(void *arg) { vc_free(arg); }

static void request_event(request_t *r, bool success);

/* Runs the handler and starts the answer; the request comes back through the queue when it is out. */
static void request_answer(request_t *r)
{
    vc_bytes_t response = {0};
    vc_err_t err = {0};
    vc_status_t status = request_handle(r, &response, &err);
    if (status == VC_OK && response.len > r->server->max_message_bytes)
        status = vc_err_set(&err, VC_ERR_RANGE, "answer of %zu bytes is larger than the limit", response.len);
    if (status == VC_OK) {
        vc_rpc_msg_t msg = {.body = response.data, .body_len = response.len, .release = free_answer};
        msg.arg = response.data;
        r->response = vc_rpc_buffer_make(&msg);
        if (r->response == NULL)
            status = vc_err_set(&err, VC_ERR_NOMEM, "out of memory");
    } else {
        vc_bytes_free(&response);
    }
    grpc_slice details = vc_rpc_details_make(status, &err);
    grpc_op ops[4] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_RECV_CLOSE_ON_SERVER, .data.recv_close_on_server.cancelled = &r->cancelled},
        {.op = GRPC_OP_SEND_STATUS_FROM_SERVER,
         .data.send_status_from_server = {.status = (grpc_status_code)vc_rpc_status_code(status),
                                          .status_details = &details}},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = r->response},
    };
    r->answering = true;
    atomic_fetch_add_explicit(&r->server->answers, 1, memory_order_relaxed);
    if (grpc_call_start_batch(r->call, ops, r->response != NULL ? 4 : 3, r, NULL) != GRPC_CALL_OK) {
        vc_log_error("rpc", "cannot answer method=%s", r->method != NULL ? r->method->name : "unknown");
        request_event(r, false);
    }
    grpc_slice_unref(details);
}

static void request_event(request_t *r, bool success)
{
    vc_rpc_server_t *s = r->server;
    method_t *method = r->method;
    bool full = atomic_load_explicit(&s->answers, memory_order_relaxed) >= MAX_ANSWERS_PENDING;
    if (r->answering) { /* the answer is out, or its call is gone */
        atomic_fetch_sub_explicit(&s->answers, 1, memory_order_relaxed);
        bool post = r->owes_post;
        request_free(r);
        if (post)
            request_post(s, method);
        return;
    }
    if (!success) { /* the server is shutting down */
        request_free(r);
        return;
    }
    r->owes_post = full;
    if (!full)
        request_post(s, method);
    request_answer(r);
}

static void *control_main(void *arg)
{
    vc_rpc_server_t *s = arg;
    for (;;) {
        grpc_event ev = grpc_completion_queue_next(s->control_cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (ev.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        if (ev.type == GRPC_OP_COMPLETE)
            request_event(ev.tag, ev.success != 0);
    }
}

/* ---- streaming slots ---- */

static void slot_serve(slot_t *slot, grpc_call *call)
{
    vc_rpc_call_t c = {.call = call,
                       .cq = slot->cq,
                       .streaming = true,
                       .max_message_bytes = slot->server->max_message_bytes,
                       .stall_ms = slot->server->stall_ms};
    vc_err_t err = {0};
    vc_status_t status = vc_rpc_call_begin(&c);
    if (status == VC_OK)
        status = slot->method->m.stream(slot->server->arg, &c, &err);
    vc_rpc_call_end(&c, status, &err);
}

static void *slot_main(void *arg)
{
    slot_t *slot = arg;
    vc_rpc_server_t *s = slot->server;
    while (!atomic_load_explicit(&s->stopping, memory_order_relaxed)) {
        grpc_call *call = NULL;
        grpc_metadata_array metadata;
        gpr_timespec deadline;
        grpc_metadata_array_init(&metadata);
        bool taken = grpc_server_request_registered_call(s->server, slot->method->registered, &call, &deadline,
                                                         &metadata, NULL, slot->cq, slot->cq, slot) == GRPC_CALL_OK &&
                     vc_rpc_pluck(slot->cq, slot, gpr_inf_future(GPR_CLOCK_MONOTONIC)) == VC_RPC_BATCH_OK;
        if (taken)
            slot_serve(slot, call);
        grpc_metadata_array_destroy(&metadata);
        if (!taken)
            break; /* only shutdown fails a request */
    }
    return NULL;
}

/* ---- start ---- */

static vc_status_t methods_copy(vc_rpc_server_t *s, const vc_rpc_server_opts_t *opts, vc_err_t *err)
{
    s->methods = vc_calloc(opts->n_methods, sizeof(*s->methods));
    if (s->methods == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < opts->n_methods; i++) {
        method_t *m = &s->methods[i];
        m->m = opts->methods[i];
        if ((m->m.unary == NULL) == (m->m.stream == NULL))
            return vc_err_set(err, VC_ERR_INVALID, "method %s is neither unary nor streaming", m->m.name);
        m->name = vc_strdup(m->m.name);
        if (m->name == NULL)
            return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
        s->n_methods = i + 1;
        if (m->m.stream != NULL)
            s->n_slots += m->m.slots != 0 ? m->m.slots : 1;
    }
    s->n_control = opts->n_unary_threads != 0 ? opts->n_unary_threads : 1;
    s->control = vc_calloc(s->n_control, sizeof(*s->control));
    s->slots = vc_calloc(s->n_slots, sizeof(*s->slots));
    return s->control != NULL && s->slots != NULL ? VC_OK : vc_err_set(err, VC_ERR_NOMEM, "out of memory");
}

static grpc_arg int_arg(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

static grpc_server *create_core_server(const vc_rpc_server_t *s)
{
    grpc_arg args[] = {
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)s->max_message_bytes),
        int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, (int)s->max_message_bytes),
        int_arg(GRPC_ARG_MAX_METADATA_SIZE, VC_RPC_METADATA_BYTES),
        int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0), /* else a second server would share the port without a word */
        int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1024),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 15000),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, (int)s->dead_peer_ms),
        int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000),
        int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000),
    };
    grpc_channel_args list = {VC_ARRAY_LEN(args), args};
    return grpc_server_create(&list, NULL);
}

static void register_methods(vc_rpc_server_t *s)
{
    uint32_t slot = 0;
    s->control_cq = grpc_completion_queue_create_for_next(NULL);
    s->shutdown_cq = grpc_completion_queue_create_for_pluck(NULL);
    grpc_server_register_completion_queue(s->server, s->control_cq, NULL);
    grpc_server_register_completion_queue(s->server, s->shutdown_cq, NULL);
    for (uint32_t i = 0; i < s->n_methods; i++) {
        method_t *m = &s->methods[i];
        m->registered = grpc_server_register_method(
            s->server, m->name, NULL,
            m->m.unary != NULL ? GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER : GRPC_SRM_PAYLOAD_NONE, 0);
        uint32_t n = m->m.stream == NULL ? 0 : m->m.slots != 0 ? m->m.slots : 1;
        for (uint32_t k = 0; k < n; k++, slot++) {
            s->slots[slot] = (slot_t){.server = s, .method = m};
            s->slots[slot].cq = grpc_completion_queue_create_for_pluck(NULL);
            grpc_server_register_completion_queue(s->server, s->slots[slot].cq, NULL);
        }
    }
}

/* gRPC says only that binding failed; a bind of our own says why. */
static vc_status_t why_not_bound(const char *listen_addr, vc_err_t *err)
{
    char host[256];
    const char *colon = strrchr(listen_addr, ':');
    size_t n = (size_t)(colon - listen_addr);
    bool bracketed = n >= 2 && listen_addr[0] == '[' && listen_addr[n - 1] == ']';
    snprintf(host, sizeof(host), "%.*s", (int)(bracketed ? n - 2 : n), listen_addr + (bracketed ? 1 : 0));
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *info = NULL;
    int rc = getaddrinfo(host, colon + 1, &hints, &info), errnum = 0, on = 1;
    if (rc != 0)
        return vc_err_set(err, VC_ERR_INVALID, "cannot listen on %s: %s", listen_addr, gai_strerror(rc));
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(fd, info->ai_addr, info->ai_addrlen) != 0 || listen(fd, 1) != 0)
        errnum = errno;
    if (fd >= 0)
        close(fd);
    freeaddrinfo(info);
    if (errnum == EACCES || errnum == EPERM)
        return vc_err_set(err, VC_ERR_PERM, "cannot listen on %s: permission denied", listen_addr);
    return vc_err_set(err, VC_ERR_UNREACHABLE, "cannot listen on %s: %s", listen_addr,
                      errnum == EADDRINUSE ? "the port is in use"
                      : errnum != 0        ? strerror(errnum)
                                           : "unknown cause");
}

static vc_status_t start_threads(vc_rpc_server_t *s, vc_err_t *err)
{
    for (uint32_t i = 0; i < s->n_methods; i++)
        for (uint32_t k = 0; s->methods[i].m.unary != NULL && k < s->n_control; k++)
            request_post(s, &s->methods[i]);
    request_post(s, NULL);
    for (uint32_t i = 0; i < s->n_control; i++) {
        if (pthread_create(&s->control[i], NULL, control_main, s) != 0)
            return vc_err_set(err, VC_ERR_NOMEM, "cannot start a control thread");
        s->n_control_running++;
        pthread_setname_np(s->control[i], "rpc-control");
    }
    for (uint32_t i = 0; i < s->n_slots; i++) {
        if (pthread_create(&s->slots[i].thread, NULL, slot_main, &s->slots[i]) != 0)
            return vc_err_set(err, VC_ERR_NOMEM, "cannot start a thread for %s", s->slots[i].method->name);
        s->slots[i].running = true;
        pthread_setname_np(s->slots[i].thread, "rpc-stream");
    }
    return VC_OK;
}

static vc_status_t server_check(const vc_rpc_server_opts_t *opts, vc_err_t *err)
{
    vc_status_t status = vc_addr_check(opts->listen, err);
    if (status != VC_OK) {
        (void)vc_err_prefix(err, "cannot listen");
        return status;
    }
    if (opts->n_methods == 0 || opts->max_message_bytes > INT32_MAX || opts->n_unary_threads > 64 ||
        opts->dead_peer_ms > INT32_MAX)
        return vc_err_set(err, VC_ERR_RANGE, "no methods, or a limit out of range");
    return VC_OK;
}

vc_status_t vc_rpc_server_start(const vc_rpc_server_opts_t *opts, vc_rpc_server_t **server_p, vc_err_t *err)
{
    vc_status_t status = server_check(opts, err);
    if (status != VC_OK)
        return status;
    vc_rpc_server_t *s = vc_calloc(1, sizeof(*s));
    if (s == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    vc_rpc_init();
    s->arg = opts->arg;
    s->max_message_bytes = opts->max_message_bytes != 0 ? opts->max_message_bytes : VC_RPC_MAX_MESSAGE;
    s->stall_ms = opts->stall_ms != 0 ? opts->stall_ms : 30000;
    s->dead_peer_ms = opts->dead_peer_ms != 0 ? opts->dead_peer_ms : 10000;
    status = methods_copy(s, opts, err);
    if (status == VC_OK) {
        s->server = create_core_server(s);
        register_methods(s);
        grpc_server_credentials *creds = grpc_insecure_server_credentials_create();
        s->port = grpc_server_add_http2_port(s->server, opts->listen, creds);
        grpc_server_credentials_release(creds);
        if (s->port == 0)
            status = why_not_bound(opts->listen, err);
    }
    if (status == VC_OK) {
        grpc_server_start(s->server);
        status = start_threads(s, err);
    }
    if (status != VC_OK) {
        vc_rpc_server_stop(s, 0);
        return status;
    }
    *server_p = s;
    return VC_OK;
}

int vc_rpc_server_port(const vc_rpc_server_t *server) { return server->port; }

/* ---- stop ---- */

static void stop_core_server(vc_rpc_server_t *s, uint32_t grace_ms)
{
    int tag;
    grpc_server_shutdown_and_notify(s->server, s->shutdown_cq, &tag);
    bool ended = grace_ms != 0 && vc_rpc_pluck(s->shutdown_cq, &tag, vc_rpc_deadline(grace_ms)) != VC_RPC_BATCH_PENDING;
    if (!ended) {
        grpc_server_cancel_all_calls(s->server);
        vc_rpc_pluck(s->shutdown_cq, &tag, gpr_inf_future(GPR_CLOCK_MONOTONIC));
    }
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slots[i].running)
            pthread_join(s->slots[i].thread, NULL);
    grpc_server_destroy(s->server);
    grpc_completion_queue_shutdown(s->control_cq);
    if (s->n_control_running == 0)
        control_main(s); /* nobody else drains it */
    for (uint32_t i = 0; i < s->n_control_running; i++)
        pthread_join(s->control[i], NULL);
    grpc_completion_queue_destroy(s->control_cq);
    for (uint32_t i = 0; i < s->n_slots; i++)
        vc_rpc_cq_destroy(s->slots[i].cq);
    vc_rpc_cq_destroy(s->shutdown_cq);
}

void vc_rpc_server_stop(vc_rpc_server_t *s, uint32_t grace_ms)
{
    if (s == NULL)
        return;
    atomic_store_explicit(&s->stopping, true, memory_order_relaxed);
    if (s->server != NULL)
        stop_core_server(s, grace_ms);
    for (uint32_t i = 0; i < s->n_methods; i++)
        vc_free(s->methods[i].name);
    vc_free(s->methods);
    vc_free(s->slots);
    vc_free(s->control);
    vc_free(s);
    vc_rpc_fini();
}
