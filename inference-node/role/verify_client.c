/*
 * Client of one Verify stream. The queue is bounded: the reader stops reading while it is full, so gRPC's own window
 * holds the verifier back.
 */
#include "role/verify_client.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "vc/mem.h"

#define QUEUE_CAP 64u

struct node_verify_client {
    vc_rpc_channel_t *channel;
    vc_rpc_stream_t *stream;
    uint32_t idle_ms;
    pthread_t reader;
    bool has_reader;
    pthread_mutex_t lock; /* everything below */
    pthread_cond_t changed;
    vc_bytes_t queue[QUEUE_CAP];
    uint32_t head, n;
    bool stopping;
    vc_status_t end; /* OK while the stream lives */
    vc_err_t end_err;
    uint64_t bytes;
};

void node_verify_client_opts_default(node_verify_client_opts_t *opts)
{
    *opts = (node_verify_client_opts_t){.connect_ms = 2000, .idle_ms = 15000};
}

/* Runs on the reader thread. False: stop reading. */
static bool queue_message(node_verify_client_t *c, vc_bytes_t *bytes)
{
    pthread_mutex_lock(&c->lock);
    while (c->n == QUEUE_CAP && !c->stopping)
        pthread_cond_wait(&c->changed, &c->lock);
    bool go_on = !c->stopping;
    if (go_on) {
        c->bytes += bytes->len;
        c->queue[(c->head + c->n++) % QUEUE_CAP] = *bytes;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    if (!go_on)
        vc_bytes_free(bytes);
    return go_on;
}

static void *read_replies(void *arg)
{
    node_verify_client_t *c = arg;
    for (;;) {
        vc_bytes_t bytes;
        vc_err_t err = {0};
        vc_status_t status = vc_rpc_stream_recv(c->stream, c->idle_ms, &bytes, &err);
        if (status == VC_OK) {
            if (queue_message(c, &bytes))
                continue;
            return NULL;
        }
        if (status == VC_ERR_AGAIN)
            status = vc_err_set(&err, VC_ERR_TIMEOUT, "the verify node said nothing for %u ms", c->idle_ms);
        else if (status == VC_ERR_NOT_FOUND)
            status = vc_err_set(&err, VC_ERR_UNREACHABLE, "the verify node ended the stream early");
        pthread_mutex_lock(&c->lock);
        c->end = status;
        c->end_err = err;
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->lock);
        return NULL;
    }
}

static vc_status_t send_packed(node_verify_client_t *c, vc_bytes_t *bytes, vc_err_t *err)
{
    const vc_rpc_msg_t msg = {.head = bytes->data, .head_len = bytes->len};
    vc_status_t status = vc_rpc_stream_send(c->stream, &msg, err);
    pthread_mutex_lock(&c->lock);
    c->bytes += bytes->len;
    pthread_mutex_unlock(&c->lock);
    vc_bytes_free(bytes);
    return status;
}

static void init_sync(node_verify_client_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&c->lock, NULL);
}

vc_status_t node_verify_client_open(const node_verify_client_opts_t *opts, const node_wire_open_t *open,
                                    node_verify_client_t **client_p, vc_err_t *err)
{
    node_verify_client_t *c = vc_calloc(1, sizeof(*c));
    if (c == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a verify stream");
    c->idle_ms = opts->idle_ms;
    init_sync(c);
    vc_rpc_channel_opts_t copts;
    vc_rpc_channel_opts_default(&copts);
    copts.target = opts->target;
    copts.bearer = opts->bearer;
    copts.connect_ms = opts->connect_ms;
    vc_bytes_t bytes;
    vc_status_t status = vc_rpc_channel_create(&copts, &c->channel, err);
    if (status == VC_OK)
        status = vc_rpc_stream_open(c->channel, NODE_VERIFY_METHOD, 0, &c->stream, err);
    if (status == VC_OK && (status = node_wire_pack_open(open, &bytes)) != VC_OK)
        vc_err_set(err, status, "no memory for a request of %u tokens", open->n_prompt);
    else if (status == VC_OK)
        status = send_packed(c, &bytes, err);
    if (status == VC_OK && pthread_create(&c->reader, NULL, read_replies, c) == 0)
        c->has_reader = true;
    else if (status == VC_OK)
        status = vc_err_set(err, VC_ERR_NOMEM, "cannot start the reader of a verify stream");
    if (status != VC_OK) {
        node_verify_client_close(c);
        return status;
    }
    *client_p = c;
    return VC_OK;
}

void node_verify_client_close(node_verify_client_t *c)
{
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    c->stopping = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (c->stream != NULL)
        vc_rpc_stream_cancel(c->stream);
    if (c->has_reader)
        pthread_join(c->reader, NULL);
    if (c->stream != NULL)
        vc_rpc_stream_destroy(c->stream);
    if (c->channel != NULL)
        vc_rpc_channel_destroy(c->channel);
    for (uint32_t i = 0; i < c->n; i++)
        vc_bytes_free(&c->queue[(c->head + i) % QUEUE_CAP]);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    vc_free(c);
}

vc_status_t node_verify_client_send(node_verify_client_t *c, const node_wire_draft_t *draft, vc_err_t *err)
{
    vc_bytes_t bytes;
    vc_status_t status = node_wire_pack_draft(draft, &bytes);
    if (status != VC_OK)
        return vc_err_set(err, status, "no memory for a draft message");
    return send_packed(c, &bytes, err);
}

vc_status_t node_verify_client_ask_rows(node_verify_client_t *c, uint32_t first, vc_err_t *err)
{
    vc_bytes_t bytes;
    vc_status_t status = node_wire_pack_tail(first, &bytes);
    if (status != VC_OK)
        return vc_err_set(err, status, "no memory for a message");
    return send_packed(c, &bytes, err);
}

static struct timespec deadline_after(uint32_t ms)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    ts.tv_sec += ms / 1000;
    ts.tv_nsec += (long)(ms % 1000) * 1000000;
    if (ts.tv_nsec >= 1000000000) {
        ts.tv_nsec -= 1000000000;
        ts.tv_sec++;
    }
    return ts;
}

vc_status_t node_verify_client_next(node_verify_client_t *c, uint32_t timeout_ms, node_wire_reply_t *reply_p,
                                    size_t *bytes_p, vc_err_t *err)
{
    struct timespec deadline = deadline_after(timeout_ms);
    vc_bytes_t bytes = {0};
    vc_status_t status = VC_ERR_AGAIN;
    pthread_mutex_lock(&c->lock);
    while (c->n == 0 && c->end == VC_OK && timeout_ms > 0)
        if (pthread_cond_timedwait(&c->changed, &c->lock, &deadline) != 0)
            break;
    if (c->n > 0) {
        bytes = c->queue[c->head];
        c->head = (c->head + 1) % QUEUE_CAP;
        c->n--;
        status = VC_OK;
        pthread_cond_broadcast(&c->changed);
    } else if (c->end != VC_OK) {
        status = vc_err_set(err, c->end, "%s", c->end_err.msg);
    }
    pthread_mutex_unlock(&c->lock);
    if (status != VC_OK)
        return status;
    if (bytes_p != NULL)
        *bytes_p = bytes.len;
    status = node_wire_unpack_reply(bytes.data, bytes.len, reply_p, err);
    vc_bytes_free(&bytes);
    if (status != VC_OK)
        node_wire_reply_free(reply_p);
    return status;
}

uint64_t node_verify_client_bytes(node_verify_client_t *c)
{
    pthread_mutex_lock(&c->lock);
    uint64_t bytes = c->bytes;
    pthread_mutex_unlock(&c->lock);
    return bytes;
}
