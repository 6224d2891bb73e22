/* Start and stop of the service, the method table, helpers for messages, and the calls about leases. */
#include "service.h"

#include <stdio.h>
#include <string.h>

#include "service_int.h"
#include "vc/mem.h"

/* ---- helpers ---- */

void cs_latch_init(cs_latch_t *l)
{
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->cond, NULL);
    l->pending = 0;
    l->first_bad = VC_OK;
}

void cs_latch_fini(cs_latch_t *l)
{
    pthread_cond_destroy(&l->cond);
    pthread_mutex_destroy(&l->lock);
}

void cs_latch_add(cs_latch_t *l)
{
    pthread_mutex_lock(&l->lock);
    l->pending++;
    pthread_mutex_unlock(&l->lock);
}

/* The broadcast is under the lock: the waiter may free the latch as soon as it can take it. */
void cs_latch_done(void *latch, vc_status_t status)
{
    cs_latch_t *l = latch;
    pthread_mutex_lock(&l->lock);
    if (l->first_bad == VC_OK)
        l->first_bad = status;
    l->pending--;
    pthread_cond_broadcast(&l->cond);
    pthread_mutex_unlock(&l->lock);
}

vc_status_t cs_latch_wait(cs_latch_t *l)
{
    pthread_mutex_lock(&l->lock);
    while (l->pending != 0)
        pthread_cond_wait(&l->cond, &l->lock);
    vc_status_t status = l->first_bad;
    pthread_mutex_unlock(&l->lock);
    return status;
}

vc_status_t cs_pack(const ProtobufCMessage *message, vc_bytes_t *resp, vc_err_t *err)
{
    size_t len = protobuf_c_message_get_packed_size(message);
    resp->data = vc_alloc(len);
    if (resp->data == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    resp->len = protobuf_c_message_pack(message, resp->data);
    return VC_OK;
}

vc_status_t cs_take_token(const ProtobufCBinaryData *data, cs_token_t *token_p, vc_err_t *err)
{
    if (data->len != sizeof(token_p->b))
        return vc_err_set(err, VC_ERR_INVALID, "token has %zu bytes, not 16", data->len);
    memcpy(token_p->b, data->data, sizeof(token_p->b));
    return VC_OK;
}

vc_status_t cs_take_fidelities(Vericache__V1__Fidelity *const *list, size_t n, cs_fidelity_t *fids, vc_err_t *err)
{
    if (n == 0 || n > CS_SERVICE_COLUMNS)
        return vc_err_set(err, VC_ERR_INVALID, "%zu fidelities, not 1 to %d", n, CS_SERVICE_COLUMNS);
    for (size_t i = 0; i < n; i++) {
        const Vericache__V1__Fidelity *f = list[i];
        size_t len = strlen(f->spec);
        vc_digest_t calib;
        if (len == 0 || len >= VC_SPEC_TEXT_MAX)
            return vc_err_set(err, VC_ERR_INVALID, "fidelity %zu: spec has %zu bytes, not 1 to %d", i, len,
                              VC_SPEC_TEXT_MAX - 1);
        if (f->calib_digest.len != 0 && f->calib_digest.len != sizeof(calib))
            return vc_err_set(err, VC_ERR_INVALID, "fidelity %zu: calibration digest has %zu bytes, not 32", i,
                              f->calib_digest.len);
        if (f->calib_digest.len != 0)
            memcpy(&calib, f->calib_digest.data, sizeof(calib));
        fids[i].fidelity = f->compressed ? VC_FIDELITY_COMPRESSED : VC_FIDELITY_FULL;
        vc_spec_id(f->spec, f->calib_digest.len != 0 ? &calib : NULL, &fids[i].spec);
    }
    return VC_OK;
}

vc_status_t cs_take_lease(const Vericache__V1__LeaseRef *lease, cs_token_t *token_p, vc_err_t *err)
{
    if (lease == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "the request names no lease");
    return cs_take_token(&lease->token, token_p, err);
}

uint32_t cs_ms_left(const cs_service_t *s, uint64_t until_us)
{
    uint64_t now = vc_clock_now_us(s->o.clock);
    return until_us <= now ? 0 : (uint32_t)VC_MIN((until_us - now) / 1000, UINT32_MAX);
}

/* ---- lookup and leases ---- */

static const char *const miss_names[] = {"", "absent", "evicted", "corrupt", "absent"};

typedef struct { /* one lookup on its way through the steps */
    vc_keyspace_t ks;
    vc_digest_t ks_id;
    cs_fidelity_t fids[CS_SERVICE_COLUMNS];
    vc_digest_t *hashes;
    uint32_t n_hashes;
    cs_lookup_result_t result;
    char miss[CS_SERVICE_COLUMNS][64];
} lookup_t;

static vc_status_t lookup_prepare(const Vericache__V1__LookupRequest *m, lookup_t *l, vc_err_t *err)
{
    vc_status_t st = vc_keyspace_decode(m->keyspace.data, m->keyspace.len, &l->ks, err);
    if (st == VC_OK)
        st = cs_take_fidelities(m->fidelities, m->n_fidelities, l->fids, err);
    if (st == VC_OK)
        st = vc_keyspace_id(&l->ks, &l->ks_id, err);
    if (st != VC_OK)
        return st;
    if (m->tip.len != 0 && (m->tip.len != sizeof(vc_digest_t) || m->n_tokens != 0))
        return vc_err_set(err, VC_ERR_INVALID, "a lookup by tip names 32 bytes and no tokens, not %zu and %zu",
                          m->tip.len, m->n_tokens);
    if (m->tip.len != 0)
        return VC_OK; /* the store knows the hashes */
    size_t n_blocks = m->n_tokens / l->ks.shape.block_tokens;
    if (n_blocks > CS_SERVICE_BLOCKS)
        return vc_err_set(err, VC_ERR_RANGE, "prompt of %zu blocks is longer than %u", n_blocks, CS_SERVICE_BLOCKS);
    l->hashes = vc_calloc(n_blocks, sizeof(*l->hashes));
    if (l->hashes == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    l->n_hashes = vc_block_chain(&l->ks_id, m->tokens, (uint32_t)m->n_tokens, l->ks.shape.block_tokens, l->hashes);
    return VC_OK;
}

/* A miss at the first block may be a keyspace that differs in one field: the reply names it. */
static void lookup_miss_reasons(cs_service_t *s, lookup_t *l, size_t n_fid)
{
    for (size_t i = 0; i < n_fid; i++) {
        cs_miss_t miss = l->result.miss[i];
        const char *field = NULL;
        if (l->result.n_blocks[i] == 0 && (miss == CS_MISS_KEYSPACE || miss == CS_MISS_ABSENT))
            field = cs_store_near_miss(s->o.store, &l->ks);
        if (field != NULL)
            snprintf(l->miss[i], sizeof(l->miss[i]), "keyspace:%s", field);
        else
            snprintf(l->miss[i], sizeof(l->miss[i]), "%s", miss <= CS_MISS_KEYSPACE ? miss_names[miss] : "absent");
    }
}

static vc_status_t lookup_run(cs_service_t *s, const Vericache__V1__LookupRequest *m, lookup_t *l, vc_err_t *err)
{
    uint32_t n_fid = (uint32_t)m->n_fidelities;
    if (m->tip.len == 0)
        return cs_store_lookup(s->o.store, &l->ks_id, l->hashes, l->n_hashes, l->fids, n_fid, m->want_lease, &l->result,
                               err);
    vc_digest_t tip;
    memcpy(&tip, m->tip.data, sizeof(tip));
    return cs_store_lookup_tip(s->o.store, &l->ks_id, &tip, CS_SERVICE_BLOCKS, l->fids, n_fid, m->want_lease,
                               &l->hashes, &l->n_hashes, &l->result, err);
}

static vc_status_t lookup_reply(cs_service_t *s, lookup_t *l, const Vericache__V1__LookupRequest *m, vc_bytes_t *resp,
                                vc_err_t *err)
{
    const size_t n_fid = m->n_fidelities;
    Vericache__V1__LookupReply reply = VERICACHE__V1__LOOKUP_REPLY__INIT;
    Vericache__V1__LookupReply__Column columns[CS_SERVICE_COLUMNS], *list[CS_SERVICE_COLUMNS];
    Vericache__V1__LeaseRef lease = VERICACHE__V1__LEASE_REF__INIT;
    for (size_t i = 0; i < n_fid; i++) {
        columns[i] = (Vericache__V1__LookupReply__Column)VERICACHE__V1__LOOKUP_REPLY__COLUMN__INIT;
        columns[i].blocks = l->result.n_blocks[i];
        columns[i].bytes = l->result.n_bytes[i];
        columns[i].miss_reason = l->miss[i];
        list[i] = &columns[i];
    }
    reply.n_columns = n_fid;
    reply.columns = list;
    reply.boot_id = cs_store_boot_id(s->o.store);
    reply.generation = cs_store_generation(s->o.store);
    reply.data_address = s->data_address;
    reply.shm_address = s->shm_address;
    if (m->tip.len != 0)
        reply.chain = (ProtobufCBinaryData){l->n_hashes * sizeof(vc_digest_t), (uint8_t *)l->hashes};
    lease.boot_id = reply.boot_id;
    lease.lease_id = l->result.lease_id;
    if (lease.lease_id != 0) {
        lease.token = (ProtobufCBinaryData){sizeof(l->result.token.b), l->result.token.b};
        reply.lease_ms = cs_ms_left(s, l->result.lease_expires_us);
    }
    reply.lease = &lease;
    return cs_pack(&reply.base, resp, err);
}

/* What the windows of the hit rate are made of; the store keeps the totals. */
static void lookup_count(cs_service_t *s, const lookup_t *l, size_t n_fid, uint64_t now_us)
{
    for (size_t i = 0; i < n_fid; i++) {
        cs_hits_sum_t sum = {.asked_blocks = l->n_hashes,
                             .hit_blocks = l->result.n_blocks[i],
                             .asked_tokens = (uint64_t)l->n_hashes * l->ks.shape.block_tokens,
                             .hit_tokens = (uint64_t)l->result.n_blocks[i] * l->ks.shape.block_tokens};
        cs_hits_add(l->fids[i].fidelity == VC_FIDELITY_FULL ? &s->hits_full : &s->hits_compressed, now_us, &sum);
    }
}

vc_status_t cs_service_lookup(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                              vc_err_t *err)
{
    (void)call;
    cs_service_t *s = arg;
    uint64_t start_us = vc_clock_now_us(s->o.clock);
    cs_count(&s->n.lookups, 1);
    vc_status_t refused = cs_refuse_draining(s, err);
    if (refused != VC_OK)
        return refused;
    Vericache__V1__LookupRequest *m = vericache__v1__lookup_request__unpack(NULL, len, req);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "request is not a LookupRequest");
    lookup_t l = {0};
    vc_status_t st = lookup_prepare(m, &l, err);
    if (st == VC_OK)
        st = lookup_run(s, m, &l, err);
    if (st == VC_OK) {
        lookup_miss_reasons(s, &l, m->n_fidelities);
        if (m->want_lease && m->tip.len == 0)
            lookup_count(s, &l, m->n_fidelities, start_us);
        st = lookup_reply(s, &l, m, resp, err);
    }
    vc_free(l.hashes);
    vericache__v1__lookup_request__free_unpacked(m, NULL);
    cs_hist_add(&s->lookup_time, vc_clock_now_us(s->o.clock) - start_us);
    return st;
}

static vc_status_t lease_error(vc_status_t st, uint64_t lease_id, vc_err_t *err)
{
    if (st == VC_ERR_STALE)
        return vc_err_set(err, st, "lease %llu has expired or is from before a restart", (unsigned long long)lease_id);
    if (st == VC_ERR_PERM)
        return vc_err_set(err, st, "wrong token for lease %llu", (unsigned long long)lease_id);
    return st == VC_OK ? st : vc_err_set(err, st, "lease %llu: %s", (unsigned long long)lease_id, vc_status_name(st));
}

vc_status_t cs_service_renew(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                             vc_err_t *err)
{
    (void)call;
    cs_service_t *s = arg;
    Vericache__V1__RenewLeaseRequest *m = vericache__v1__renew_lease_request__unpack(NULL, len, req);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "request is not a RenewLeaseRequest");
    cs_token_t token;
    uint64_t expires_us = 0;
    vc_status_t st = cs_take_lease(m->lease, &token, err);
    if (st == VC_OK)
        st = lease_error(
            cs_store_lease_renew(s->o.store, m->lease->boot_id, m->lease->lease_id, &token, m->lease_ms, &expires_us),
            m->lease->lease_id, err);
    if (st == VC_OK) {
        Vericache__V1__RenewLeaseReply reply = VERICACHE__V1__RENEW_LEASE_REPLY__INIT;
        reply.lease_ms = cs_ms_left(s, expires_us);
        st = cs_pack(&reply.base, resp, err);
    }
    vericache__v1__renew_lease_request__free_unpacked(m, NULL);
    return st;
}

vc_status_t cs_service_release(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                               vc_err_t *err)
{
    (void)call;
    cs_service_t *s = arg;
    Vericache__V1__LeaseRef *m = vericache__v1__lease_ref__unpack(NULL, len, req);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "request is not a LeaseRef");
    cs_token_t token;
    vc_status_t st = cs_take_lease(m, &token, err);
    if (st == VC_OK)
        st = lease_error(cs_store_lease_release(s->o.store, m->boot_id, m->lease_id, &token), m->lease_id, err);
    if (st == VC_OK) {
        Vericache__V1__ReleaseLeaseReply reply = VERICACHE__V1__RELEASE_LEASE_REPLY__INIT;
        st = cs_pack(&reply.base, resp, err);
    }
    vericache__v1__lease_ref__free_unpacked(m, NULL);
    return st;
}

/* ---- start and stop ---- */

void cs_service_opts_default(cs_service_opts_t *opts)
{
    *opts = (cs_service_opts_t){.listen = "127.0.0.1:0",
                                .n_control = 2,
                                .max_fetch_streams = 8,
                                .max_put_streams = 4,
                                .idle_ms = 30000,
                                .clock = vc_clock_system()};
}

#define RECLAIM_MS 5000u /* 1 MiB frames at 1.7 Mbit/s: what is slower is as good as stalled when others wait */

#define CACHE "/vericache.v1.Cache/"
static vc_status_t start_rpc(cs_service_t *s, vc_err_t *err)
{
    const vc_rpc_method_t methods[] = {
        {CACHE "Lookup", cs_service_lookup, NULL, 0},
        {CACHE "BeginRegister", cs_service_begin, NULL, 0},
        {CACHE "PutRecord", NULL, cs_service_put, s->o.max_put_streams},
        {CACHE "Commit", cs_service_commit, NULL, 0},
        {CACHE "Abort", cs_service_abort, NULL, 0},
        {CACHE "Fetch", NULL, cs_service_fetch, s->o.max_fetch_streams},
        {CACHE "RenewLease", cs_service_renew, NULL, 0},
        {CACHE "ReleaseLease", cs_service_release, NULL, 0},
        {CACHE "Pin", cs_service_pin, NULL, 0},
        {CACHE "Unpin", cs_service_unpin, NULL, 0},
        {CACHE "Delete", cs_service_delete, NULL, 0},
        {CACHE "GetStats", cs_service_stats, NULL, 0},
        {CACHE "WatchStats", NULL, cs_service_stats_watch, CS_SERVICE_WATCHERS + 1},
        {CACHE "ListPrefixes", cs_service_prefixes, NULL, 0},
        {CACHE "Drain", cs_service_drain_call, NULL, 0},
        {CACHE "Scrub", cs_service_scrub, NULL, 0},
        {CACHE "GetConfig", cs_service_config, NULL, 0},
        {"/grpc.health.v1.Health/Check", cs_service_health, NULL, 0},
        {"/grpc.health.v1.Health/Watch", NULL, cs_service_health_watch, CS_SERVICE_WATCHERS + 1},
    };
    vc_rpc_server_opts_t o;
    vc_rpc_server_opts_default(&o);
    o.listen = s->o.listen;
    o.methods = methods;
    o.n_methods = VC_ARRAY_LEN(methods);
    o.arg = s;
    o.n_unary_threads = s->o.n_control;
    o.stall_ms = s->o.idle_ms;
    o.reclaim_ms = VC_MIN(RECLAIM_MS, s->o.idle_ms);
    return vc_rpc_server_start(&o, &s->rpc, err);
}

static void init_sync(cs_service_t *s)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->returned, NULL);
    pthread_mutex_init(&s->watch_lock, NULL);
    pthread_cond_init(&s->watch_changed, &attr);
    pthread_mutex_init(&s->slow_lock, NULL);
    pthread_cond_init(&s->slow_work, NULL);
    pthread_condattr_destroy(&attr);
    cs_hits_init(&s->hits_full, vc_clock_now_us(s->o.clock));
    cs_hits_init(&s->hits_compressed, vc_clock_now_us(s->o.clock));
}

static void fini_sync(cs_service_t *s)
{
    cs_hits_fini(&s->hits_full);
    cs_hits_fini(&s->hits_compressed);
    pthread_cond_destroy(&s->slow_work);
    pthread_mutex_destroy(&s->slow_lock);
    pthread_cond_destroy(&s->watch_changed);
    pthread_mutex_destroy(&s->watch_lock);
    pthread_cond_destroy(&s->returned);
    pthread_mutex_destroy(&s->lock);
}

vc_status_t cs_service_start(const cs_service_opts_t *opts, cs_service_t **service_p, vc_err_t *err)
{
    cs_service_t *s = vc_calloc(1, sizeof(*s));
    if (s == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    s->o = *opts;
    init_sync(s);
    s->data_address = vc_strdup(opts->data_address != NULL ? opts->data_address : "");
    s->shm_address = vc_strdup(opts->shm_address != NULL ? opts->shm_address : "");
    vc_status_t st =
        s->data_address == NULL || s->shm_address == NULL ? vc_err_set(err, VC_ERR_NOMEM, "out of memory") : VC_OK;
    if (st == VC_OK)
        st = cs_pace_create(s->o.egress_bits_per_s, vc_clock_now_us(s->o.clock), &s->pace);
    if (st == VC_OK)
        st = cs_slow_start(s, err);
    if (st == VC_OK)
        st = start_rpc(s, err);
    if (st != VC_OK) {
        cs_service_stop(s, 0);
        return st;
    }
    *service_p = s;
    return VC_OK;
}

int cs_service_port(const cs_service_t *service) { return vc_rpc_server_port(service->rpc); }

void cs_service_stop(cs_service_t *s, uint32_t grace_ms)
{
    if (s == NULL)
        return;
    cs_watch_end(s);
    vc_rpc_server_stop(s->rpc, grace_ms);
    cs_slow_stop(s);
    pthread_mutex_lock(&s->lock);
    while (s->buffers_out != 0)
        pthread_cond_wait(&s->returned, &s->lock);
    pthread_mutex_unlock(&s->lock);
    cs_pace_destroy(s->pace);
    fini_sync(s);
    vc_free(s->data_address);
    vc_free(s->shm_address);
    vc_free(s);
}
