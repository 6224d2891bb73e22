/*
 * The server: one table of methods, a few control threads, one thread per streaming slot.
 *
 * Unary calls are in rpc_unary.c, streaming slots in rpc_slots.c. Methods that are not in the table are answered
 * UNIMPLEMENTED by the control threads.
 *
 * Memory is bounded by what the peers can make gRPC hold: streams per connection, one window per stream, and over all
 * connections a quota, beyond which gRPC ends idle connections and then streams.
 *
 * Stop, the order that ends clean with a stalled client: no new requests are posted; shutdown_and_notify on a queue of
 * its own; the grace period; cancel_all_calls, which fails every pending send and receive; deferred calls are answered;
 * its tag; slots join; server_destroy; the queues shut down, drain and go; control threads join; library fini.
 */
#include <errno.h>
#include <grpc/grpc_security.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc_server_int.h"
#include "vc/addr.h"
#include "vc/log.h"
#include "vc/mem.h"

void vc_rpc_server_opts_default(vc_rpc_server_opts_t *opts)
{
    *opts = (vc_rpc_server_opts_t){.n_unary_threads = 1,
                                   .max_message_bytes = VC_RPC_MAX_MESSAGE,
                                   .stall_ms = 30000,
                                   .dead_peer_ms = 10000,
                                   .max_calls = 4096,
                                   .memory_bytes = 512u << 20,
                                   .idle_connection_ms = 3600000};
}

/* ---- start ---- */

static vc_status_t methods_copy(vc_rpc_server_t *s, const vc_rpc_server_opts_t *opts, vc_err_t *err)
{
    s->methods = vc_calloc(opts->n_methods, sizeof(*s->methods));
    if (s->methods == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < opts->n_methods; i++) {
        vc_rpc_entry_t *m = &s->methods[i];
        m->m = opts->methods[i];
        if ((m->m.unary == NULL) == (m->m.stream == NULL))
            return vc_err_set(err, VC_ERR_INVALID, "method %s is neither unary nor streaming", m->m.name);
        m->name = vc_strdup(m->m.name);
        if (m->name == NULL)
            return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
        s->n_methods = i + 1;
        if (m->m.stream != NULL) {
            m->n_serve = m->m.slots != 0 ? m->m.slots : 1;
            m->n_slots = m->n_serve + (s->reclaim_ms != 0); /* one to wait, and to look for a stream to end */
            s->n_slots += m->n_slots;
        }
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

static grpc_server *create_core_server(const vc_rpc_server_t *s, const vc_rpc_server_opts_t *opts)
{
    grpc_resource_quota *quota = grpc_resource_quota_create("vericache");
    grpc_resource_quota_resize(quota, opts->memory_bytes);
    grpc_arg args[] = {
        {.type = GRPC_ARG_POINTER,
         .key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA,
         .value.pointer = {.p = quota, .vtable = grpc_resource_quota_arg_vtable()}},
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)s->max_message_bytes),
        int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, (int)s->max_message_bytes),
        int_arg(GRPC_ARG_MAX_METADATA_SIZE, VC_RPC_METADATA_BYTES),
        int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0), /* else a second server would share the port without a word */
        int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, VC_RPC_STREAMS),
        int_arg(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, VC_RPC_LOOKAHEAD),
        int_arg(GRPC_ARG_MAX_CONNECTION_IDLE_MS, (int)opts->idle_connection_ms),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 15000),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, (int)s->dead_peer_ms),
        int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000),
        int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000),
    };
    grpc_channel_args list = {VC_ARRAY_LEN(args), args};
    grpc_server *server = grpc_server_create(&list, NULL);
    grpc_resource_quota_unref(quota);
    return server;
}

static void register_methods(vc_rpc_server_t *s)
{
    uint32_t slot = 0;
    s->control_cq = grpc_completion_queue_create_for_next(NULL);
    s->shutdown_cq = grpc_completion_queue_create_for_pluck(NULL);
    grpc_server_register_completion_queue(s->server, s->control_cq, NULL);
    grpc_server_register_completion_queue(s->server, s->shutdown_cq, NULL);
    for (uint32_t i = 0; i < s->n_methods; i++) {
        vc_rpc_entry_t *m = &s->methods[i];
        m->registered = grpc_server_register_method(
            s->server, m->name, NULL,
            m->m.unary != NULL ? GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER : GRPC_SRM_PAYLOAD_NONE, 0);
        for (uint32_t k = 0; k < m->n_slots; k++, slot++) {
            s->slots[slot] = (vc_rpc_slot_t){.server = s, .method = m};
            s->slots[slot].cq = grpc_completion_queue_create_for_pluck(NULL);
            grpc_server_register_completion_queue(s->server, s->slots[slot].cq, NULL);
            grpc_completion_queue_attributes quiet = {
                .version = 1, .cq_completion_type = GRPC_CQ_PLUCK, .cq_polling_type = GRPC_CQ_NON_POLLING};
            s->slots[slot].idle_cq =
                grpc_completion_queue_create(grpc_completion_queue_factory_lookup(&quiet), &quiet, NULL);
            grpc_server_register_completion_queue(s->server, s->slots[slot].idle_cq, NULL);
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

static void *control_main(void *arg)
{
    vc_rpc_unary_serve(arg);
    return NULL;
}

static vc_status_t start_threads(vc_rpc_server_t *s, vc_err_t *err)
{
    vc_rpc_unary_start(s);
    for (uint32_t i = 0; i < s->n_control; i++) {
        if (pthread_create(&s->control[i], NULL, control_main, s) != 0)
            return vc_err_set(err, VC_ERR_NOMEM, "cannot start a control thread");
        s->n_control_running++;
        pthread_setname_np(s->control[i], "rpc-control");
    }
    for (uint32_t i = 0; i < s->n_slots; i++) {
        if (pthread_create(&s->slots[i].thread, NULL, vc_rpc_slot_main, &s->slots[i]) != 0)
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
        opts->dead_peer_ms > INT32_MAX || opts->idle_connection_ms > INT32_MAX || opts->max_calls > INT32_MAX / 2)
        return vc_err_set(err, VC_ERR_RANGE, "no methods, or a limit out of range");
    return VC_OK;
}

static void init_conds(vc_rpc_server_t *s)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->undeferred, NULL);
    pthread_cond_init(&s->slot_freed, &attr);
    pthread_condattr_destroy(&attr);
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
    s->reclaim_ms = opts->reclaim_ms;
    s->max_calls = opts->max_calls != 0 ? opts->max_calls : 4096;
    pthread_mutex_init(&s->lock, NULL);
    init_conds(s);
    status = methods_copy(s, opts, err);
    if (status == VC_OK) {
        s->server = create_core_server(s, opts);
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

void vc_rpc_server_get_stats(const vc_rpc_server_t *server, vc_rpc_server_stats_t *stats_p)
{
    stats_p->calls = atomic_load_explicit(&server->calls, memory_order_relaxed);
    stats_p->total = atomic_load_explicit(&server->total, memory_order_relaxed);
    stats_p->refused = atomic_load_explicit(&server->refused, memory_order_relaxed);
    stats_p->reclaimed = atomic_load_explicit(&server->reclaimed, memory_order_relaxed);
    stats_p->stalled = atomic_load_explicit(&server->stalled, memory_order_relaxed);
}

/* ---- stop ---- */

static void stop_core_server(vc_rpc_server_t *s, uint32_t grace_ms)
{
    int tag;
    grpc_server_shutdown_and_notify(s->server, s->shutdown_cq, &tag);
    bool ended = grace_ms != 0 && vc_rpc_pluck(s->shutdown_cq, &tag, vc_rpc_deadline(grace_ms)) != VC_RPC_BATCH_PENDING;
    if (!ended) {
        grpc_server_cancel_all_calls(s->server);
        vc_rpc_unary_settle(s);
        vc_rpc_pluck(s->shutdown_cq, &tag, gpr_inf_future(GPR_CLOCK_MONOTONIC));
    }
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slots[i].running)
            pthread_join(s->slots[i].thread, NULL);
    vc_rpc_unary_settle(s);
    grpc_server_destroy(s->server);
    grpc_completion_queue_shutdown(s->control_cq);
    if (s->n_control_running == 0)
        vc_rpc_unary_serve(s); /* nobody else drains it */
    for (uint32_t i = 0; i < s->n_control_running; i++)
        pthread_join(s->control[i], NULL);
    grpc_completion_queue_destroy(s->control_cq);
    for (uint32_t i = 0; i < s->n_slots; i++) {
        vc_rpc_cq_destroy(s->slots[i].cq);
        vc_rpc_cq_destroy(s->slots[i].idle_cq);
    }
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
    pthread_cond_destroy(&s->slot_freed);
    pthread_cond_destroy(&s->undeferred);
    pthread_mutex_destroy(&s->lock);
    vc_free(s);
    vc_rpc_fini();
}
