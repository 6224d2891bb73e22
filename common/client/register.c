/*
 * Registration: begin, put what is missing, commit. UCX first where it is wanted and offered, then gRPC for whatever it
 * did not take; the server knows which records it has. Nothing is visible before the commit; a failure aborts.
 */
#include <string.h>

#include "client_int.h"
#include "vc/mem.h"
#include "vc/recframe.h"

typedef struct {
    vcache_client_t *c;
    uint32_t first, n_blocks, n_fid; /* blocks [first, first + n_blocks) */
    vcache_source_fn source;
    void *arg;
    vcache_register_stats_t stats;
    vc_err_t *err;
    uint64_t upload_id, max_record;
    uint8_t token[16];
    uint8_t *missing; /* one byte per object */
    vcache_addresses_t at;
    uint32_t n_missing, next; /* next object to look at */
    bool stopped;             /* by the source */
} reg_t;

/* Next missing object from r->next on; false at the end. */
static bool next_missing(reg_t *r, uint32_t *fid_p, uint32_t *block_p)
{
    uint32_t total = r->n_fid * r->n_blocks;
    while (r->next < total && r->missing[r->next] == 0)
        r->next++;
    if (r->next == total)
        return false;
    *fid_p = r->next / r->n_blocks;
    *block_p = r->first + r->next % r->n_blocks;
    r->next++;
    return true;
}

static vc_status_t ask_source(reg_t *r, uint32_t fid, uint32_t block, void *buf, size_t cap, size_t *len_p)
{
    *len_p = 0;
    if (r->source(r->arg, fid, block, buf, cap, len_p) != 0) {
        r->stopped = true;
        return vc_err_set(r->err, VC_ERR_CANCELLED, "no record for block %u of column %u", block, fid);
    }
    if (*len_p == 0 || *len_p > cap || *len_p % VC_KVREC_ALIGN != 0) {
        r->stopped = true;
        return vc_err_set(r->err, VC_ERR_INVALID, "block %u of column %u: a record of %zu bytes is impossible", block,
                          fid, *len_p);
    }
    return VC_OK;
}

/* ---- begin, commit, abort ---- */

static vc_status_t take_begin(reg_t *r, const Vericache__V1__BeginRegisterReply *reply)
{
    uint32_t total = r->n_fid * r->n_blocks;
    if (reply->token.len != sizeof(r->token) || reply->missing.len != (total + 7) / 8 || reply->max_record_bytes == 0 ||
        reply->max_record_bytes > VC_KVREC_MAX_BYTES)
        return vcache_bad_reply(r->c, "BeginRegister", r->err);
    r->upload_id = reply->upload_id;
    r->max_record = reply->max_record_bytes;
    memcpy(r->token, reply->token.data, sizeof(r->token));
    bool have = vcache_addresses_set(&r->at, reply->shm_address, reply->data_address);
    r->missing = vc_calloc(total, 1);
    if (r->missing == NULL || !have)
        return vc_err_set(r->err, VC_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < total; i++) {
        r->missing[i] = reply->missing.data[i / 8] >> (i % 8) & 1;
        r->n_missing += r->missing[i];
    }
    r->stats.n_present = total - r->n_missing;
    return VC_OK;
}

static vc_status_t reg_begin(reg_t *r, const Vericache__V1__BeginRegisterRequest *req)
{
    vc_bytes_t bytes = {0};
    vc_status_t st = vcache_call(r->c, VCACHE_METHOD("BeginRegister"), &req->base, r->c->o.call_ms, &bytes, r->err);
    if (st != VC_OK)
        return st;
    Vericache__V1__BeginRegisterReply *reply = vericache__v1__begin_register_reply__unpack(NULL, bytes.len, bytes.data);
    vc_bytes_free(&bytes);
    if (reply == NULL)
        return vcache_bad_reply(r->c, "BeginRegister", r->err);
    st = take_begin(r, reply);
    vericache__v1__begin_register_reply__free_unpacked(reply, NULL);
    return st;
}

static vc_status_t reg_finish(reg_t *r, const char *method, vc_err_t *err)
{
    vc_bytes_t reply = {0};
    Vericache__V1__UploadRef ref = VERICACHE__V1__UPLOAD_REF__INIT;
    ref.upload_id = r->upload_id;
    ref.token = (ProtobufCBinaryData){sizeof(r->token), r->token};
    uint32_t deadline_ms = VC_MAX(r->c->o.call_ms, r->c->o.stream_idle_ms); /* a commit waits for the disk */
    vc_status_t st = vcache_call(r->c, method, &ref.base, deadline_ms, &reply, err);
    vc_bytes_free(&reply);
    return st;
}

/* ---- UCX ---- */

static int data_source(void *arg, void *buf, size_t cap, size_t *len_p)
{
    reg_t *r = arg;
    uint32_t fid, block;
    *len_p = 0;
    if (!next_missing(r, &fid, &block))
        return 0;
    return ask_source(r, fid, block, buf, cap, len_p) != VC_OK;
}

/* One way from *plane_p on. *done_p: everything was taken. OK and not done: the next one. UNREACHABLE: no way left. */
static vc_status_t put_plane(reg_t *r, unsigned *plane_p, bool *done_p)
{
    vc_data_t *data;
    vc_data_stats_t ds = {0};
    uint32_t steps = 0;
    if (vcache_data_begin(r->c, &r->at, plane_p, &steps, &data, r->err) != VC_OK)
        return VC_ERR_UNREACHABLE;
    r->next = 0;
    vc_status_t st = vc_data_put(data, r->upload_id, r->token, data_source, r, r->c->o.stream_idle_ms, &ds, r->err);
    bool down = !r->stopped && vcache_data_steps_down(st);
    vcache_data_end(r->c, *plane_p, down);
    if (st == VC_OK) {
        r->stats.path = vcache_plane_path(*plane_p);
        r->stats.bytes = ds.bytes;
        *done_p = true;
    }
    return down ? VC_OK : r->stopped ? r->err->status : st;
}

/* OK and not done: gRPC's turn. */
static vc_status_t put_planes(reg_t *r, bool *done_p)
{
    vc_status_t st = VC_OK;
    for (unsigned plane = 0; st == VC_OK && !*done_p && plane < VCACHE_N_PLANES; plane++) {
        st = put_plane(r, &plane, done_p);
        if (st == VC_ERR_UNREACHABLE && !r->stopped)
            return VC_OK;
    }
    return st;
}

/* ---- gRPC ---- */

/* A record on its way out: gRPC sends from it after the send call returned, so it is reused when all frames are back.
 */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t back;
    uint32_t frames_out;
    uint8_t *data;
} outbuf_t;

static vc_status_t outbuf_init(outbuf_t *b, size_t bytes)
{
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->back, NULL);
    b->frames_out = 0;
    b->data = vc_alloc_aligned(VC_KVREC_ALIGN, bytes);
    return b->data != NULL ? VC_OK : VC_ERR_NOMEM;
}

static void outbuf_wait(outbuf_t *b)
{
    pthread_mutex_lock(&b->lock);
    while (b->frames_out != 0)
        pthread_cond_wait(&b->back, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

static void outbuf_fini(outbuf_t *b)
{
    outbuf_wait(b);
    pthread_cond_destroy(&b->back);
    pthread_mutex_destroy(&b->lock);
    vc_free(b->data);
}

static void frame_back(void *arg)
{
    outbuf_t *b = arg;
    pthread_mutex_lock(&b->lock);
    b->frames_out--;
    pthread_cond_broadcast(&b->back);
    pthread_mutex_unlock(&b->lock);
}

static vc_status_t send_record(reg_t *r, vc_rpc_stream_t *s, outbuf_t *b, size_t len, bool first)
{
    vc_status_t st = VC_OK;
    for (size_t at = 0; st == VC_OK && at < len; at += VC_RECFRAME_DATA_MAX) {
        uint8_t head[VC_RECFRAME_HEAD_MAX];
        vc_recframe_t f = {.offset = at, .record_bytes = len, .data = b->data + at};
        f.data_len = VC_MIN(len - at, VC_RECFRAME_DATA_MAX);
        if (first && at == 0) {
            f.upload_id = r->upload_id;
            f.token = r->token;
        }
        vc_rpc_msg_t msg = {.head = head, .body = f.data, .body_len = f.data_len, .release = frame_back, .arg = b};
        msg.head_len = vc_recframe_encode_head(&f, head);
        pthread_mutex_lock(&b->lock);
        b->frames_out++;
        pthread_mutex_unlock(&b->lock);
        st = vc_rpc_stream_send(s, &msg, r->err);
    }
    return st;
}

static vc_status_t take_put_reply(reg_t *r, vc_rpc_stream_t *s)
{
    vc_bytes_t bytes = {0};
    if (vc_rpc_stream_half_close(s) == VC_ERR_INVALID)
        return vc_err_set(r->err, VC_ERR_INTERNAL, "cannot end the stream");
    vc_status_t st = vc_rpc_stream_recv(s, r->c->o.stream_idle_ms, &bytes, r->err);
    if (st == VC_ERR_AGAIN)
        return vc_err_set(r->err, VC_ERR_TIMEOUT, "%s: PutRecord: no answer for %u ms", r->c->server,
                          r->c->o.stream_idle_ms);
    if (st == VC_ERR_NOT_FOUND && r->err->msg[0] == '\0')
        return vcache_bad_reply(r->c, "PutRecord", r->err);
    if (st != VC_OK)
        return st;
    Vericache__V1__PutRecordReply *reply = vericache__v1__put_record_reply__unpack(NULL, bytes.len, bytes.data);
    vc_bytes_free(&bytes);
    if (reply == NULL)
        return vcache_bad_reply(r->c, "PutRecord", r->err);
    r->stats.bytes = reply->bytes;
    vericache__v1__put_record_reply__free_unpacked(reply, NULL);
    return VC_OK;
}

static vc_status_t send_all(reg_t *r, vc_rpc_stream_t *s, outbuf_t bufs[2])
{
    uint32_t fid, block, k = 0;
    r->next = 0;
    while (next_missing(r, &fid, &block)) {
        size_t len;
        outbuf_t *b = &bufs[k % 2];
        outbuf_wait(b);
        vc_status_t st = ask_source(r, fid, block, b->data, (size_t)r->max_record, &len);
        if (st == VC_OK)
            st = send_record(r, s, b, len, k == 0);
        if (st != VC_OK)
            return st;
        k++;
    }
    return take_put_reply(r, s);
}

static vc_status_t put_grpc(reg_t *r)
{
    vc_rpc_stream_t *s = NULL;
    outbuf_t bufs[2];
    vc_status_t st = outbuf_init(&bufs[0], (size_t)r->max_record);
    if (outbuf_init(&bufs[1], (size_t)r->max_record) != VC_OK || st != VC_OK)
        st = vc_err_set(r->err, VC_ERR_NOMEM, "out of memory");
    if (st == VC_OK)
        st = vc_rpc_stream_open(r->c->channel, VCACHE_METHOD("PutRecord"), 0, &s, r->err);
    if (st == VC_OK) {
        r->stats.path = VCACHE_PATH_GRPC;
        st = send_all(r, s, bufs);
        vc_err_t kept = *r->err;
        if (st != VC_OK && r->stopped)
            vc_rpc_stream_cancel(s);
        vc_rpc_stream_destroy(s);
        *r->err = kept;
    }
    outbuf_fini(&bufs[0]);
    outbuf_fini(&bufs[1]);
    return st;
}

/* ---- the whole ---- */

static vc_status_t reg_run(reg_t *r)
{
    bool done = r->n_missing == 0;
    vc_status_t st = VC_OK;
    if (!done)
        st = put_planes(r, &done);
    if (st == VC_OK && !done)
        st = put_grpc(r);
    if (st == VC_OK)
        st = reg_finish(r, VCACHE_METHOD("Commit"), r->err);
    if (st == VC_OK)
        r->stats.n_stored = r->n_missing;
    else if (st != VC_ERR_UNREACHABLE)
        reg_finish(r, VCACHE_METHOD("Abort"), NULL); /* best effort: the deadline frees it too */
    return st;
}

static vc_status_t reg_check(reg_t *r, const uint8_t *keyspace, size_t keyspace_len, uint32_t n_blocks,
                             vc_keyspace_t *ks)
{
    vc_status_t st = vc_keyspace_decode(keyspace, keyspace_len, ks, r->err);
    if (st == VC_OK && (r->first >= n_blocks || n_blocks > UINT32_MAX / ks->shape.block_tokens / 8))
        st = vc_err_set(r->err, VC_ERR_RANGE, "blocks %u to %u are no range", r->first, n_blocks);
    return st;
}

vcache_status_t vcache_register(vcache_client_t *client, const uint8_t *keyspace, size_t keyspace_len,
                                const uint32_t *tokens, uint32_t first_block, uint32_t n_blocks,
                                const vcache_fidelity_t *fids, uint32_t n_fid, vcache_source_fn source, void *arg,
                                vcache_register_stats_t *stats_p, vcache_error_t *err)
{
    vc_err_t e = {0};
    vc_keyspace_t ks;
    Vericache__V1__Fidelity m[VCACHE_MAX_FIDELITIES], *list[VCACHE_MAX_FIDELITIES];
    vc_object_key_t keys[VCACHE_MAX_FIDELITIES];
    reg_t r = {.c = client, .first = first_block, .n_fid = n_fid, .source = source, .arg = arg, .err = &e};
    vc_status_t st = reg_check(&r, keyspace, keyspace_len, n_blocks, &ks);
    if (st == VC_OK)
        st = vcache_fidelities(fids, n_fid, m, list, keys, &e);
    if (st == VC_OK) {
        Vericache__V1__BeginRegisterRequest req = VERICACHE__V1__BEGIN_REGISTER_REQUEST__INIT;
        r.n_blocks = n_blocks - first_block;
        req.keyspace = (ProtobufCBinaryData){keyspace_len, (uint8_t *)(uintptr_t)keyspace};
        req.tokens = (uint32_t *)(uintptr_t)tokens;
        req.n_tokens = (size_t)n_blocks * ks.shape.block_tokens;
        req.first_block = first_block;
        req.n_blocks = n_blocks;
        req.fidelities = list;
        req.n_fidelities = n_fid;
        st = reg_begin(&r, &req);
        if (st == VC_OK)
            st = reg_run(&r);
    }
    vc_free(r.missing);
    vcache_addresses_free(&r.at);
    if (stats_p != NULL)
        *stats_p = r.stats;
    return vcache_give(st, &e, err);
}
