/*
 * Client channel and unary calls.
 *
 * Every call first makes sure that the channel is connected, waiting at most connect_ms. gRPC's own reconnect keeps a
 * failed channel in backoff and answers from memory; a caller that fell back wants the truth of now. So a channel found
 * in failure is replaced by a fresh one: a call makes one real connection attempt, and one refused attempt is the
 * answer UNREACHABLE. Replaced channels live until the last call that looks at them is gone (conn.refs).
 */
#include <grpc/grpc_security.h>
#include <stdio.h>
#include <string.h>

#include "rpc_int.h"
#include "vc/addr.h"
#include "vc/mem.h"

struct vc_rpc_conn {
    grpc_channel *channel;
    unsigned refs; /* under the channel's lock */
};

struct vc_rpc_channel {
    char *target;
    grpc_slice bearer; /* "Bearer TOKEN", or empty */
    uint32_t connect_ms;
    size_t max_message_bytes;
    pthread_mutex_t lock; /* guards conn and every conn's refs */
    vc_rpc_conn_t *conn;  /* holds one reference */
};

void vc_rpc_channel_opts_default(vc_rpc_channel_opts_t *opts)
{
    *opts = (vc_rpc_channel_opts_t){.connect_ms = 2000, .max_message_bytes = VC_RPC_MAX_MESSAGE};
}

static grpc_arg int_arg(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

static vc_rpc_conn_t *conn_create(const vc_rpc_channel_t *ch)
{
    vc_rpc_conn_t *conn = vc_calloc(1, sizeof(*conn));
    if (conn == NULL)
        return NULL;
    grpc_arg args[] = {
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)ch->max_message_bytes),
        int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, (int)ch->max_message_bytes),
        int_arg(GRPC_ARG_MAX_METADATA_SIZE, VC_RPC_METADATA_BYTES), int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
        /* In spite of its name this bounds an attempt from below: a far or busy server needs all of connect_ms. */
        int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, (int)ch->connect_ms),
        int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000), int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 15000),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000),
        int_arg(GRPC_ARG_ENABLE_RETRIES, 0), /* a retry buffer would hold on to borrowed bodies */
        int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1), /* else a new channel inherits the old one's backoff */
    };
    grpc_channel_args list = {VC_ARRAY_LEN(args), args};
    grpc_channel_credentials *creds = grpc_insecure_credentials_create();
    conn->channel = grpc_channel_create(ch->target, creds, &list);
    grpc_channel_credentials_release(creds);
    conn->refs = 1;
    if (conn->channel == NULL) {
        vc_free(conn);
        return NULL;
    }
    return conn;
}

static void conn_put(vc_rpc_channel_t *ch, vc_rpc_conn_t *conn)
{
    pthread_mutex_lock(&ch->lock);
    bool last = --conn->refs == 0;
    pthread_mutex_unlock(&ch->lock);
    if (last) {
        grpc_channel_destroy(conn->channel);
        vc_free(conn);
    }
}

static vc_rpc_conn_t *conn_get(vc_rpc_channel_t *ch)
{
    pthread_mutex_lock(&ch->lock);
    vc_rpc_conn_t *conn = ch->conn;
    conn->refs++;
    pthread_mutex_unlock(&ch->lock);
    return conn;
}

/* Gives `old` back and returns the current connection, a new one when nobody has replaced it yet. */
static vc_rpc_conn_t *conn_replace(vc_rpc_channel_t *ch, vc_rpc_conn_t *old)
{
    vc_rpc_conn_t *fresh = conn_create(ch), *drop = fresh;
    pthread_mutex_lock(&ch->lock);
    if (ch->conn == old && fresh != NULL) {
        drop = ch->conn;
        ch->conn = fresh;
    }
    vc_rpc_conn_t *now = ch->conn;
    now->refs++;
    pthread_mutex_unlock(&ch->lock);
    if (drop != NULL)
        conn_put(ch, drop);
    conn_put(ch, old);
    return now;
}

vc_status_t vc_rpc_channel_create(const vc_rpc_channel_opts_t *opts, vc_rpc_channel_t **ch_p, vc_err_t *err)
{
    vc_status_t status = vc_addr_check(opts->target, err);
    if (status != VC_OK)
        return status;
    if (opts->max_message_bytes > INT32_MAX || opts->connect_ms > INT32_MAX)
        return vc_err_set(err, VC_ERR_RANGE, "message limit or connect_ms is too large");
    vc_rpc_channel_t *ch = vc_calloc(1, sizeof(*ch));
    if (ch == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    vc_rpc_init();
    pthread_mutex_init(&ch->lock, NULL);
    ch->connect_ms = opts->connect_ms != 0 ? opts->connect_ms : 2000;
    ch->max_message_bytes = opts->max_message_bytes != 0 ? opts->max_message_bytes : VC_RPC_MAX_MESSAGE;
    ch->target = vc_strdup(opts->target);
    ch->bearer = grpc_empty_slice();
    if (opts->bearer != NULL && opts->bearer[0] != '\0') {
        char text[4096];
        int n = snprintf(text, sizeof(text), "Bearer %s", opts->bearer);
        ch->bearer = grpc_slice_from_copied_string(text);
        if (n >= (int)sizeof(text) || !grpc_header_nonbin_value_is_legal(ch->bearer)) {
            vc_rpc_channel_destroy(ch);
            return vc_err_set(err, VC_ERR_INVALID,
                              "bearer token is too long or has characters that no header may carry");
        }
    }
    ch->conn = ch->target == NULL ? NULL : conn_create(ch);
    if (ch->conn == NULL) {
        vc_rpc_channel_destroy(ch);
        return vc_err_set(err, VC_ERR_NOMEM, "cannot create a channel to %s", opts->target);
    }
    *ch_p = ch;
    return VC_OK;
}

void vc_rpc_channel_destroy(vc_rpc_channel_t *ch)
{
    if (ch == NULL)
        return;
    if (ch->conn != NULL)
        conn_put(ch, ch->conn);
    grpc_slice_unref(ch->bearer);
    pthread_mutex_destroy(&ch->lock);
    vc_free(ch->target);
    vc_free(ch);
    vc_rpc_fini();
}

size_t vc_rpc_channel_max_message(const vc_rpc_channel_t *ch) { return ch->max_message_bytes; }

size_t vc_rpc_channel_metadata(vc_rpc_channel_t *ch, grpc_metadata *md)
{
    if (GRPC_SLICE_LENGTH(ch->bearer) == 0)
        return 0;
    memset(md, 0, sizeof(*md));
    md->key = grpc_slice_from_static_string("authorization");
    md->value = ch->bearer;
    return 1;
}

/* Waits for another state than `state`, at most until the deadline. */
static void watch_state(grpc_channel *channel, grpc_connectivity_state state, gpr_timespec deadline,
                        grpc_completion_queue *cq)
{
    int tag;
    grpc_channel_watch_connectivity_state(channel, state, deadline, cq, &tag);
    vc_rpc_pluck(cq, &tag, gpr_inf_future(GPR_CLOCK_MONOTONIC));
}

/* *conn_p: a referenced connection in state READY. */
static vc_status_t connect_ready(vc_rpc_channel_t *ch, grpc_completion_queue *cq, vc_rpc_conn_t **conn_p, vc_err_t *err)
{
    int nothing;
    gpr_timespec deadline = vc_rpc_deadline(ch->connect_ms);
    bool attempted = false;
    /* Nobody polls an idle client's socket; one turn lets gRPC see that the server hung up meanwhile. */
    vc_rpc_pluck(cq, &nothing, gpr_time_0(GPR_CLOCK_MONOTONIC));
    vc_rpc_conn_t *conn = conn_get(ch);
    for (;;) {
        grpc_connectivity_state state = grpc_channel_check_connectivity_state(conn->channel, 1);
        if (state == GRPC_CHANNEL_READY) {
            *conn_p = conn;
            return VC_OK;
        }
        if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) {
            if (attempted)
                break;
            conn = conn_replace(ch, conn);
            attempted = true;
            continue;
        }
        attempted = true; /* an attempt is under way: its outcome is ours */
        if (gpr_time_cmp(gpr_now(GPR_CLOCK_MONOTONIC), deadline) >= 0)
            break;
        watch_state(conn->channel, state, deadline, cq);
    }
    conn_put(ch, conn);
    return vc_err_set(err, VC_ERR_UNREACHABLE, "cannot connect to %s", ch->target);
}

vc_status_t vc_rpc_channel_call(vc_rpc_channel_t *ch, const char *method, uint32_t deadline_ms,
                                grpc_completion_queue *cq, grpc_call **call_p, vc_err_t *err)
{
    vc_rpc_conn_t *conn = NULL;
    vc_status_t status = connect_ready(ch, cq, &conn, err);
    if (status != VC_OK)
        return status;
    grpc_slice name = grpc_slice_from_copied_string(method);
    *call_p = grpc_channel_create_call(conn->channel, NULL, GRPC_PROPAGATE_DEFAULTS, cq, name, NULL,
                                       vc_rpc_deadline(deadline_ms), NULL);
    grpc_slice_unref(name);
    conn_put(ch, conn); /* the call keeps its own reference to what it needs of the channel */
    if (*call_p == NULL)
        return vc_err_set(err, VC_ERR_INTERNAL, "cannot start %s", method);
    return VC_OK;
}

/* ---- unary ---- */

typedef struct {
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *response;
    grpc_status_code code;
    grpc_slice details;
} unary_t;

static vc_status_t unary_run(vc_rpc_channel_t *ch, grpc_call *call, grpc_completion_queue *cq,
                             grpc_byte_buffer *request, unary_t *u, vc_bytes_t *resp_p, vc_err_t *err)
{
    grpc_metadata md;
    grpc_op ops[6] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = request},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA, .data.recv_initial_metadata.recv_initial_metadata = &u->initial},
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &u->response},
        {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
         .data.recv_status_on_client = {.trailing_metadata = &u->trailing,
                                        .status = &u->code,
                                        .status_details = &u->details}},
    };
    ops[0].data.send_initial_metadata.count = vc_rpc_channel_metadata(ch, &md);
    ops[0].data.send_initial_metadata.metadata = &md;
    if (grpc_call_start_batch(call, ops, VC_ARRAY_LEN(ops), u, NULL) != GRPC_CALL_OK)
        return vc_err_set(err, VC_ERR_INTERNAL, "cannot send to %s", ch->target);
    vc_rpc_pluck(cq, u, gpr_inf_future(GPR_CLOCK_MONOTONIC)); /* ends by the call's deadline at the latest */
    vc_status_t status = vc_rpc_status_take(u->code, u->details, err);
    if (status != VC_OK)
        return status;
    if (u->response == NULL)
        return vc_err_set(err, VC_ERR_PROTOCOL, "%s answered without a message", ch->target);
    return vc_rpc_buffer_read(u->response, resp_p);
}

vc_status_t vc_rpc_unary(vc_rpc_channel_t *ch, const char *method, const void *req, size_t req_len,
                         uint32_t deadline_ms, vc_bytes_t *resp_p, vc_err_t *err)
{
    if (req_len > ch->max_message_bytes)
        return vc_err_set(err, VC_ERR_RANGE, "request of %zu bytes is larger than the limit of %zu", req_len,
                          ch->max_message_bytes);
    grpc_completion_queue *cq = grpc_completion_queue_create_for_pluck(NULL);
    grpc_call *call;
    vc_status_t status = vc_rpc_channel_call(ch, method, deadline_ms, cq, &call, err);
    if (status == VC_OK) {
        unary_t u = {.details = grpc_empty_slice(), .code = GRPC_STATUS_UNKNOWN};
        grpc_metadata_array_init(&u.initial);
        grpc_metadata_array_init(&u.trailing);
        vc_rpc_msg_t msg = {.head = req, .head_len = req_len};
        grpc_byte_buffer *request = vc_rpc_buffer_make(&msg);
        status = unary_run(ch, call, cq, request, &u, resp_p, err);
        grpc_byte_buffer_destroy(request);
        grpc_byte_buffer_destroy(u.response);
        grpc_metadata_array_destroy(&u.initial);
        grpc_metadata_array_destroy(&u.trailing);
        grpc_slice_unref(u.details);
        grpc_call_unref(call);
    }
    vc_rpc_cq_destroy(cq);
    return status;
}
