/*
 * Every request of the control plane, from bytes to the store and back, without gRPC: this file takes the place of the
 * rpc server, so that calls, streams and deferred answers are made of the input alone.
 *
 *   byte 0   the method
 *   byte 1   bit 0: a lease and an upload that are open now are written into the message, since their tokens cannot be
 *            guessed; bit 1: the client is gone after the first message sent to it
 *   rest     the message; of streams: {u16 length, message} again and again
 *
 * A store in a temporary directory holds one chain. Time passes between inputs, so that uploads and leases go away.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cache-server/store_fixture.h"
#include "service_int.h"
#include "vc/bytes.h"
#include "vc/log.h"
#include "vc/recframe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        abort();
}

/* ---- in place of the rpc server ---- */

struct vc_rpc_later {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_done;
};

struct vc_rpc_call {
    const uint8_t *at, *end; /* messages to be received */
    bool leaves_early, is_gone;
    bool takes_nothing; /* a watcher, which would wait for its interval after the first message */
    bool is_deferred;
    bool wants_ids, is_first;
    vc_rpc_later_t later;
};

static struct vc_rpc_server {
    int unused;
} the_server;

static void check_answer(vc_status_t status, const vc_err_t *err)
{
    must(status == VC_OK || (err->status == status && err->msg[0] != '\0'));
}

void vc_rpc_server_opts_default(vc_rpc_server_opts_t *opts) { *opts = (vc_rpc_server_opts_t){0}; }

vc_status_t vc_rpc_server_start(const vc_rpc_server_opts_t *opts, vc_rpc_server_t **server_p, vc_err_t *err)
{
    (void)opts, (void)err;
    *server_p = &the_server;
    return VC_OK;
}

int vc_rpc_server_port(const vc_rpc_server_t *server) { return server == &the_server; }
void vc_rpc_server_stop(vc_rpc_server_t *server, uint32_t grace_ms) { (void)server, (void)grace_ms; }
void vc_rpc_server_get_stats(const vc_rpc_server_t *server, vc_rpc_server_stats_t *stats_p)
{
    (void)server;
    *stats_p = (vc_rpc_server_stats_t){0};
}

vc_rpc_later_t *vc_rpc_call_defer(vc_rpc_call_t *call)
{
    call->is_deferred = true;
    return &call->later;
}

void vc_rpc_later_finish(vc_rpc_later_t *later, vc_status_t status, vc_bytes_t *resp, const vc_err_t *err)
{
    check_answer(status, err);
    if (resp)
        vc_bytes_free(resp);
    pthread_mutex_lock(&later->lock);
    must(!later->is_done);
    later->is_done = true;
    pthread_cond_signal(&later->changed);
    pthread_mutex_unlock(&later->lock);
}

static void fix_message(vc_rpc_call_t *call, vc_bytes_t *msg);

vc_status_t vc_rpc_call_recv(vc_rpc_call_t *call, uint32_t timeout_ms, vc_bytes_t *msg_p)
{
    (void)timeout_ms;
    if (call->is_gone)
        return VC_ERR_CANCELLED;
    if (call->end - call->at < 2)
        return VC_ERR_NOT_FOUND;
    size_t len = (size_t)(call->at[0] | call->at[1] << 8);
    call->at += 2;
    len = VC_MIN(len, (size_t)(call->end - call->at));
    msg_p->data = vc_alloc(len ? len : 1);
    must(msg_p->data != NULL);
    if (len)
        memcpy(msg_p->data, call->at, len);
    msg_p->len = len;
    call->at += len;
    if (call->wants_ids && call->is_first)
        fix_message(call, msg_p);
    call->is_first = false;
    return VC_OK;
}

vc_status_t vc_rpc_call_send(vc_rpc_call_t *call, const vc_rpc_msg_t *msg)
{
    volatile uint8_t sink = 0;
    if (msg->head_len)
        sink ^= ((const uint8_t *)msg->head)[msg->head_len - 1];
    if (msg->body_len)
        sink ^= ((const uint8_t *)msg->body)[msg->body_len - 1];
    (void)sink;
    if (msg->release)
        msg->release(msg->arg);
    if (call->is_gone || call->takes_nothing)
        return VC_ERR_CANCELLED;
    call->is_gone = call->leaves_early;
    return VC_OK;
}

bool vc_rpc_call_is_cancelled(vc_rpc_call_t *call) { return call->is_gone; }
const char *vc_rpc_call_peer(vc_rpc_call_t *call) { return call ? "fuzz" : ""; }

/* ---- the service under it ---- */

enum { STORED_SEED = 1, UPLOAD_SEED = 2, N_BLOCKS = 6 };

static fx_t fx;
static cs_service_t *service;
static Vericache__V1__LeaseRef lease_now;
static Vericache__V1__UploadRef upload_now;
static cs_token_t lease_token, upload_token;

static void stop_service(void)
{
    cs_service_stop(service, 0);
    fx_fini(&fx);
}

static void start_service(void)
{
    cs_service_opts_t opts;
    vc_err_t err = {0};
    vc_log_set_level(VC_LOG_ERROR);
    fx_init(&fx, 3);
    fx.opts.rocksdb_sync = false;
    must(fx_open(&fx, CS_IO_THREADS, &err) == VC_OK);
    must(fx_register(&fx, STORED_SEED, 0, N_BLOCKS, FX_BOTH) == VC_OK);
    cs_service_opts_default(&opts);
    opts.store = fx.store;
    opts.pool = fx.pool;
    opts.clock = &fx.clock.clock;
    opts.idle_ms = 20;
    must(cs_service_start(&opts, &service, &err) == VC_OK);
    atexit(stop_service);
}

static void take_ids(void)
{
    cs_lookup_result_t found;
    cs_upload_info_t info = {0};
    uint8_t missing[2 * N_BLOCKS];
    lease_now = (Vericache__V1__LeaseRef)VERICACHE__V1__LEASE_REF__INIT;
    upload_now = (Vericache__V1__UploadRef)VERICACHE__V1__UPLOAD_REF__INIT;
    if (fx_lookup(&fx, STORED_SEED, N_BLOCKS, true, &found) == VC_OK) {
        lease_token = found.token;
        lease_now.boot_id = cs_store_boot_id(fx.store);
        lease_now.lease_id = found.lease_id;
        lease_now.token = (ProtobufCBinaryData){16, lease_token.b};
    }
    if (fx_begin(&fx, UPLOAD_SEED, 0, N_BLOCKS, FX_BOTH, &info, missing) == VC_OK) {
        upload_token = info.token;
        upload_now.upload_id = info.upload_id;
        upload_now.token = (ProtobufCBinaryData){16, upload_token.b};
    }
}

static void repack(const ProtobufCMessage *m, vc_bytes_t *msg)
{
    vc_bytes_free(msg);
    msg->len = protobuf_c_message_get_packed_size(m);
    msg->data = vc_alloc(msg->len ? msg->len : 1);
    must(msg->data != NULL);
    protobuf_c_message_pack(m, msg->data);
}

static void fix_fetch(vc_bytes_t *msg)
{
    Vericache__V1__FetchRequest *m = vericache__v1__fetch_request__unpack(NULL, msg->len, msg->data);
    if (!m)
        return;
    Vericache__V1__LeaseRef *own = m->lease;
    m->lease = &lease_now;
    repack(&m->base, msg);
    m->lease = own;
    vericache__v1__fetch_request__free_unpacked(m, NULL);
}

static void fix_frame(vc_bytes_t *msg)
{
    vc_recframe_t frame;
    if (vc_recframe_decode(msg->data, msg->len, &frame) != VC_OK)
        return;
    frame.upload_id = upload_now.upload_id;
    frame.token = upload_token.b;
    uint8_t *data = vc_alloc(VC_RECFRAME_HEAD_MAX + frame.data_len);
    must(data != NULL);
    size_t head = vc_recframe_encode_head(&frame, data);
    if (frame.data_len)
        memcpy(data + head, frame.data, frame.data_len);
    vc_bytes_free(msg);
    *msg = (vc_bytes_t){data, head + frame.data_len};
}

/* A frame is no FetchRequest with a lease, and the other way round; what is neither stays as it is. */
static void fix_message(vc_rpc_call_t *call, vc_bytes_t *msg)
{
    (void)call;
    vc_recframe_t frame;
    if (vc_recframe_decode(msg->data, msg->len, &frame) == VC_OK && frame.record_bytes != 0)
        fix_frame(msg);
    else
        fix_fetch(msg);
}

/* ---- calls ---- */

static const vc_rpc_unary_fn unary[] = {
    cs_service_lookup,   cs_service_begin,      cs_service_commit, cs_service_abort,  cs_service_renew,
    cs_service_release,  cs_service_pin,        cs_service_unpin,  cs_service_delete, cs_service_stats,
    cs_service_prefixes, cs_service_drain_call, cs_service_scrub,  cs_service_config, cs_service_health};
static const vc_rpc_stream_fn streams[] = {cs_service_put, cs_service_fetch, cs_service_stats_watch,
                                           cs_service_health_watch};
enum { COMMIT = 2, ABORT = 3, RENEW = 4, RELEASE = 5 };

static void fix_unary(size_t method, vc_bytes_t *msg)
{
    if (method == COMMIT || method == ABORT)
        repack(&upload_now.base, msg);
    else if (method == RELEASE)
        repack(&lease_now.base, msg);
    if (method != RENEW)
        return;
    Vericache__V1__RenewLeaseRequest *m = vericache__v1__renew_lease_request__unpack(NULL, msg->len, msg->data);
    if (!m)
        return;
    Vericache__V1__LeaseRef *own = m->lease;
    m->lease = &lease_now;
    repack(&m->base, msg);
    m->lease = own;
    vericache__v1__renew_lease_request__free_unpacked(m, NULL);
}

static void run_unary(vc_rpc_call_t *call, size_t method, const uint8_t *data, size_t size)
{
    vc_bytes_t msg = {vc_memdup(data, size ? size : 1), size}, resp = {0};
    vc_err_t err = {0};
    must(msg.data != NULL);
    if (call->wants_ids)
        fix_unary(method, &msg);
    vc_status_t status = unary[method](service, call, msg.data, msg.len, &resp, &err);
    vc_bytes_free(&msg); /* a deferred call has to have its own copy */
    if (call->is_deferred) {
        pthread_mutex_lock(&call->later.lock);
        while (!call->later.is_done)
            pthread_cond_wait(&call->later.changed, &call->later.lock);
        pthread_mutex_unlock(&call->later.lock);
    } else {
        check_answer(status, &err);
        must(status != VC_OK || resp.data != NULL);
    }
    vc_bytes_free(&resp);
}

static void pass_time(void)
{
    cs_service_drain(service, false);
    vc_fake_clock_advance(&fx.clock, 700ull * 1000000u); /* more than any lease or upload may live */
    cs_store_tick(fx.store);
    cs_store_stats_t stats;
    cs_store_get_stats(fx.store, &stats);
    must(stats.uploads_open == 0 && stats.leases_open == 0);
    must(stats.corrupt_disk == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t none[1];
    if (size < 2)
        return 0;
    if (!service)
        start_service();
    size_t method = data[0] % (VC_ARRAY_LEN(unary) + VC_ARRAY_LEN(streams));
    vc_rpc_call_t call = {.at = size > 2 ? data + 2 : none,
                          .wants_ids = data[1] & 1,
                          .is_first = true,
                          .leaves_early = data[1] & 2,
                          .takes_nothing = method >= VC_ARRAY_LEN(unary) + 2};
    call.end = call.at + (size - 2);
    pthread_mutex_init(&call.later.lock, NULL);
    pthread_cond_init(&call.later.changed, NULL);
    if (call.wants_ids)
        take_ids();
    if (method < VC_ARRAY_LEN(unary)) {
        run_unary(&call, method, call.at, size - 2);
    } else {
        vc_err_t err = {0};
        vc_status_t status = streams[method - VC_ARRAY_LEN(unary)](service, &call, &err);
        must(status == VC_OK || err.msg[0] == '\0' || err.status == status);
    }
    pthread_cond_destroy(&call.later.changed);
    pthread_mutex_destroy(&call.later.lock);
    pass_time();
    return 0;
}
