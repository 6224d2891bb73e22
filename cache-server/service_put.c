/*
 * Registration: begin, the stream of records, commit, abort.
 *
 * PutRecord puts the frames of one record together in a pool buffer and hands it to the store; several records may be
 * on their way to the disk at once. The store validates every record; nothing here trusts a byte of it.
 */
#include <stdio.h>
#include <string.h>

#include "service_int.h"
#include "vc/mem.h"
#include "vc/recframe.h"

static vc_status_t begin_check(const Vericache__V1__BeginRegisterRequest *m, vc_keyspace_t *ks, cs_fidelity_t *fids,
                               vc_err_t *err)
{
    vc_status_t st = vc_keyspace_decode(m->keyspace.data, m->keyspace.len, ks, err);
    if (st == VC_OK)
        st = cs_take_fidelities(m->fidelities, m->n_fidelities, fids, err);
    if (st != VC_OK)
        return st;
    if (m->n_blocks == 0 || m->n_blocks > CS_SERVICE_BLOCKS || m->first_block >= m->n_blocks)
        return vc_err_set(err, VC_ERR_RANGE, "blocks %u to %u are not a range of at most %u", m->first_block,
                          m->n_blocks, CS_SERVICE_BLOCKS);
    if (m->n_tokens != (size_t)m->n_blocks * ks->shape.block_tokens)
        return vc_err_set(err, VC_ERR_INVALID, "%zu tokens are not %u blocks of %u", m->n_tokens, m->n_blocks,
                          ks->shape.block_tokens);
    return VC_OK;
}

static vc_status_t begin_reply(cs_service_t *s, cs_upload_info_t *info, const uint8_t *missing, size_t n,
                               vc_bytes_t *resp, vc_err_t *err)
{
    Vericache__V1__BeginRegisterReply reply = VERICACHE__V1__BEGIN_REGISTER_REPLY__INIT;
    uint8_t *bits = vc_calloc((n + 7) / 8, 1);
    if (bits == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++)
        bits[i / 8] = (uint8_t)(bits[i / 8] | (missing[i] != 0) << (i % 8));
    reply.upload_id = info->upload_id;
    reply.token = (ProtobufCBinaryData){sizeof(info->token.b), info->token.b};
    reply.deadline_ms = cs_ms_left(s, info->deadline_us);
    reply.n_missing = info->n_missing;
    reply.missing = (ProtobufCBinaryData){(n + 7) / 8, bits};
    reply.data_address = s->data_address;
    reply.shm_address = s->shm_address;
    reply.max_record_bytes = cs_bufpool_buf_bytes(s->o.pool);
    vc_status_t st = cs_pack(&reply.base, resp, err);
    vc_free(bits);
    return st;
}

vc_status_t cs_service_begin(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                             vc_err_t *err)
{
    (void)call;
    cs_service_t *s = arg;
    cs_count(&s->n.registers, 1);
    vc_status_t refused = cs_refuse_draining(s, err);
    if (refused != VC_OK)
        return refused;
    Vericache__V1__BeginRegisterRequest *m = vericache__v1__begin_register_request__unpack(NULL, len, req);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "request is not a BeginRegisterRequest");
    vc_keyspace_t ks;
    cs_fidelity_t fids[CS_SERVICE_COLUMNS];
    uint8_t *missing = NULL;
    vc_status_t st = begin_check(m, &ks, fids, err);
    if (st == VC_OK) {
        size_t n = m->n_fidelities * (m->n_blocks - m->first_block);
        cs_upload_info_t info = {0};
        missing = vc_calloc(n, 1);
        if (missing == NULL)
            st = vc_err_set(err, VC_ERR_NOMEM, "out of memory");
        if (st == VC_OK)
            st = cs_store_begin(s->o.store, &ks, m->tokens, m->first_block, m->n_blocks, fids,
                                (uint32_t)m->n_fidelities, &info, missing, err);
        if (st == VC_OK)
            st = begin_reply(s, &info, missing, n, resp, err);
    }
    vc_free(missing);
    vericache__v1__begin_register_request__free_unpacked(m, NULL);
    cs_store_count_refusal(s->o.store, st);
    return st;
}

static vc_status_t upload_error(vc_status_t st, uint64_t id, vc_err_t *err)
{
    unsigned long long n = (unsigned long long)id;
    if (st == VC_OK || (err->status == st && err->msg[0] != '\0'))
        return st;
    if (st == VC_ERR_NOT_FOUND || st == VC_ERR_STALE)
        return vc_err_set(err, st, "upload %llu is unknown or has expired", n);
    if (st == VC_ERR_PERM)
        return vc_err_set(err, st, "wrong token for upload %llu", n);
    return vc_err_set(err, st, "upload %llu: %s", n, vc_status_text(st));
}

/* ---- commit: the call is answered from the store's callback, no control thread waits for the disk ---- */

typedef struct {
    cs_service_t *s;
    vc_rpc_later_t *later;
    uint64_t upload_id, start_us;
} commit_t;

static void commit_finish(commit_t *c, vc_status_t st, vc_err_t *err)
{
    cs_service_t *s = c->s;
    vc_bytes_t reply_bytes = {0};
    st = upload_error(st, c->upload_id, err);
    cs_store_count_refusal(s->o.store, st);
    cs_hist_add(&s->commit_time, vc_clock_now_us(s->o.clock) - c->start_us);
    if (st == VC_OK) {
        Vericache__V1__CommitReply reply = VERICACHE__V1__COMMIT_REPLY__INIT;
        st = cs_pack(&reply.base, &reply_bytes, err);
    }
    vc_rpc_later_t *later = c->later;
    vc_free(c);
    atomic_fetch_sub_explicit(&s->n.commits_waiting, 1, memory_order_relaxed);
    vc_rpc_later_finish(later, st, &reply_bytes, err); /* s may be gone after it */
}

static void commit_done(void *arg, vc_status_t status)
{
    vc_err_t err = {0};
    commit_finish(arg, status, &err);
}

static vc_status_t commit_start(cs_service_t *s, vc_rpc_call_t *call, uint64_t upload_id, const cs_token_t *token,
                                vc_err_t *err)
{
    if (atomic_fetch_add_explicit(&s->n.commits_waiting, 1, memory_order_relaxed) >= CS_SERVICE_COMMITS) {
        atomic_fetch_sub_explicit(&s->n.commits_waiting, 1, memory_order_relaxed);
        return vc_err_set(err, VC_ERR_BUSY, "%d commits wait for the disk already; try again", CS_SERVICE_COMMITS);
    }
    commit_t *c = vc_alloc(sizeof(*c));
    if (c == NULL) {
        atomic_fetch_sub_explicit(&s->n.commits_waiting, 1, memory_order_relaxed);
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    }
    *c = (commit_t){.s = s, .later = vc_rpc_call_defer(call), .upload_id = upload_id};
    c->start_us = vc_clock_now_us(s->o.clock);
    vc_status_t st = cs_store_commit(s->o.store, upload_id, token, commit_done, c, err);
    if (st != VC_OK) /* the callback never runs */
        commit_finish(c, st, err);
    return VC_OK;
}

vc_status_t cs_service_commit(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                              vc_err_t *err)
{
    (void)resp;
    cs_service_t *s = arg;
    cs_count(&s->n.commits, 1);
    Vericache__V1__UploadRef *m = vericache__v1__upload_ref__unpack(NULL, len, req);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "request is not an UploadRef");
    cs_token_t token;
    vc_status_t st = cs_take_token(&m->token, &token, err);
    if (st == VC_OK)
        st = commit_start(s, call, m->upload_id, &token, err);
    vericache__v1__upload_ref__free_unpacked(m, NULL);
    cs_store_count_refusal(s->o.store, st); /* deferred: OK so far */
    return st;
}

vc_status_t cs_service_abort(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                             vc_err_t *err)
{
    (void)call;
    cs_service_t *s = arg;
    Vericache__V1__UploadRef *m = vericache__v1__upload_ref__unpack(NULL, len, req);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "request is not an UploadRef");
    cs_token_t token;
    vc_status_t st = cs_take_token(&m->token, &token, err);
    if (st == VC_OK)
        st = upload_error(cs_store_abort(s->o.store, m->upload_id, &token), m->upload_id, err);
    if (st == VC_OK) {
        Vericache__V1__AbortReply reply = VERICACHE__V1__ABORT_REPLY__INIT;
        st = cs_pack(&reply.base, resp, err);
    }
    vericache__v1__upload_ref__free_unpacked(m, NULL);
    return st;
}

/* ---- the stream of records ---- */

#define PUTS_IN_FLIGHT 4

typedef struct {
    cs_service_t *s;
    uint64_t upload_id;
    cs_token_t token;
    bool has_token;
    cs_buf_t *buf; /* the record that is being put together */
    uint64_t record_bytes, filled;
    cs_latch_t latch; /* of records on their way to the disk */
    uint32_t in_flight;
    _Atomic uint32_t stored, present; /* relaxed: read after the latch */
    _Atomic uint64_t bytes;
} put_t;

typedef struct {
    put_t *put;
    cs_buf_t *buf;
    uint32_t bytes;
    uint64_t start_us;
} put_op_t;

static void put_done(void *arg, vc_status_t status)
{
    put_op_t *op = arg;
    put_t *p = op->put;
    if (status == VC_OK) {
        atomic_fetch_add_explicit(&p->stored, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&p->bytes, op->bytes, memory_order_relaxed);
    } else if (status == VC_ERR_EXISTS) {
        atomic_fetch_add_explicit(&p->present, 1, memory_order_relaxed);
        status = VC_OK;
    }
    cs_hist_add(&p->s->put_time, vc_clock_now_us(p->s->o.clock) - op->start_us);
    cs_store_count_refusal(p->s->o.store, status);
    cs_bufpool_put(p->s->o.pool, op->buf);
    vc_free(op);
    cs_latch_done(&p->latch, status);
}

/* Waits for the records in flight, so that a fast client cannot take every buffer. */
static vc_status_t put_settle(put_t *p)
{
    p->in_flight = 0;
    return cs_latch_wait(&p->latch);
}

static vc_status_t put_record(put_t *p, vc_err_t *err)
{
    put_op_t *op = vc_alloc(sizeof(*op));
    if (op == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    *op = (put_op_t){p, p->buf, (uint32_t)p->record_bytes, vc_clock_now_us(p->s->o.clock)};
    cs_latch_add(&p->latch);
    vc_status_t st = cs_store_put(p->s->o.store, NULL, p->upload_id, &p->token, op->buf, op->bytes, put_done, op, err);
    p->buf = NULL;
    p->filled = 0;
    if (st == VC_ERR_CORRUPT) /* damaged at the client or on its way */
        cs_store_count_wire_corrupt(p->s->o.store);
    if (st != VC_OK) /* the callback never runs; EXISTS may come either way */
        put_done(op, st);
    if (st != VC_OK && st != VC_ERR_EXISTS)
        return st;
    return ++p->in_flight >= PUTS_IN_FLIGHT ? put_settle(p) : VC_OK;
}

static vc_status_t put_start_record(put_t *p, const vc_recframe_t *f, vc_err_t *err)
{
    if (!p->has_token) {
        if (f->token == NULL || f->upload_id == 0)
            return vc_err_set(err, VC_ERR_PERM, "the first frame shows no upload token");
        p->upload_id = f->upload_id;
        memcpy(p->token.b, f->token, sizeof(p->token.b));
        p->has_token = true;
    }
    if (f->record_bytes == 0 || f->record_bytes % VC_KVREC_ALIGN != 0 ||
        f->record_bytes > cs_bufpool_buf_bytes(p->s->o.pool))
        return vc_err_set(err, VC_ERR_RANGE, "record of %llu bytes: not a multiple of %u up to %zu",
                          (unsigned long long)f->record_bytes, VC_KVREC_ALIGN, cs_bufpool_buf_bytes(p->s->o.pool));
    p->buf = cs_bufpool_get(p->s->o.pool);
    if (p->buf == NULL) {
        vc_status_t st = put_settle(p); /* our own may be the ones that are missing */
        if (st != VC_OK)
            return st;
        p->buf = cs_bufpool_wait(p->s->o.pool, p->s->o.idle_ms);
    }
    if (p->buf == NULL)
        return vc_err_set(err, VC_ERR_BUSY, "no free buffer within %u ms", p->s->o.idle_ms);
    p->record_bytes = f->record_bytes;
    return VC_OK;
}

static vc_status_t put_frame(put_t *p, const vc_bytes_t *message, vc_err_t *err)
{
    vc_recframe_t f;
    if (vc_recframe_decode(message->data, message->len, &f) != VC_OK)
        return vc_err_set(err, VC_ERR_INVALID, "message is not a RecordFrame");
    if (p->buf == NULL) {
        vc_status_t st = put_start_record(p, &f, err);
        if (st != VC_OK)
            return st;
    }
    if (f.record_bytes != p->record_bytes || f.offset != p->filled || f.data_len == 0)
        return vc_err_set(err, VC_ERR_INVALID, "frame at %llu of a %llu byte record does not follow byte %llu of %llu",
                          (unsigned long long)f.offset, (unsigned long long)f.record_bytes,
                          (unsigned long long)p->filled, (unsigned long long)p->record_bytes);
    memcpy(p->buf->data + p->filled, f.data, f.data_len);
    p->filled += f.data_len;
    return p->filled == p->record_bytes ? put_record(p, err) : VC_OK;
}

static vc_status_t put_receive(put_t *p, vc_rpc_call_t *call, vc_err_t *err)
{
    for (;;) {
        vc_bytes_t message = {0};
        vc_status_t st = vc_rpc_call_recv(call, p->s->o.idle_ms, &message);
        if (st == VC_ERR_NOT_FOUND)
            break;
        if (st == VC_ERR_AGAIN)
            return vc_err_set(err, VC_ERR_TIMEOUT, "no frame for %u ms", p->s->o.idle_ms);
        if (st == VC_OK)
            st = put_frame(p, &message, err);
        vc_bytes_free(&message);
        if (st != VC_OK)
            return st;
    }
    if (p->buf != NULL)
        return vc_err_set(err, VC_ERR_INVALID, "the stream ended inside a record");
    return VC_OK;
}

vc_status_t cs_service_put(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    cs_service_t *s = arg;
    put_t p = {.s = s};
    cs_count(&s->n.puts, 1);
    atomic_fetch_add_explicit(&s->n.put_streams, 1, memory_order_relaxed);
    cs_latch_init(&p.latch);
    vc_status_t st = put_receive(&p, call, err), settled = put_settle(&p);
    if (st == VC_OK)
        st = settled;
    if (p.buf != NULL)
        cs_bufpool_put(s->o.pool, p.buf);
    cs_latch_fini(&p.latch);
    cs_count(&s->n.put_bytes, p.bytes);
    cs_count(&s->n.put_records, p.stored);
    if (st == VC_ERR_NOSPACE && err->msg[0] == '\0') /* it waited for room in vain; a full disk says so by itself */
        vc_err_set(err, st,
                   "upload %llu: no room can be made now, what is stored is leased, pinned or being uploaded, or the "
                   "tenant's quota is used up",
                   (unsigned long long)p.upload_id);
    st = upload_error(st, p.upload_id, err);
    vc_bytes_t reply_bytes = {0};
    if (st == VC_OK) {
        Vericache__V1__PutRecordReply reply = VERICACHE__V1__PUT_RECORD_REPLY__INIT;
        reply.stored = p.stored;
        reply.present = p.present;
        reply.bytes = p.bytes;
        st = cs_pack(&reply.base, &reply_bytes, err);
    }
    if (st == VC_OK) {
        vc_rpc_msg_t out = {.head = reply_bytes.data, .head_len = reply_bytes.len};
        st = vc_rpc_call_send(call, &out);
    }
    vc_bytes_free(&reply_bytes);
    atomic_fetch_sub_explicit(&s->n.put_streams, 1, memory_order_relaxed);
    return st;
}
