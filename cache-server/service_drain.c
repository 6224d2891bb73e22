/*
 * Draining and what tells of it: the Drain call, the standard health service, and the calls that watch.
 *
 * A watcher sits on a streaming slot of its own and sleeps until something changed, its interval is over, its client is
 * gone or the service stops. One slot more than watchers are allowed refuses whoever comes too late.
 */
#include <string.h>
#include <time.h>

#include "service_int.h"
#include "vc/log.h"
#include "vc/mem.h"

#define WATCH_LOOK_MS 200u /* how soon a client that went away is noticed */

bool cs_service_is_draining(const cs_service_t *s) { return atomic_load_explicit(&s->draining, memory_order_relaxed); }

vc_status_t cs_refuse_draining(cs_service_t *s, vc_err_t *err)
{
    if (!cs_service_is_draining(s))
        return VC_OK;
    cs_count(&s->n.refused_draining, 1);
    return vc_err_set(err, VC_ERR_UNREACHABLE, "the server is draining");
}

static void changed(cs_service_t *s)
{
    pthread_mutex_lock(&s->watch_lock);
    s->watch_epoch++;
    pthread_cond_broadcast(&s->watch_changed);
    pthread_mutex_unlock(&s->watch_lock);
}

void cs_service_drain(cs_service_t *s, bool on)
{
    if (atomic_exchange_explicit(&s->draining, on, memory_order_relaxed) != on)
        changed(s);
}

void cs_watch_end(cs_service_t *s)
{
    atomic_store_explicit(&s->stopping, true, memory_order_relaxed);
    changed(s);
}

void cs_service_report(cs_service_t *s, cs_drain_report_t *r)
{
    cs_store_stats_t stats;
    cs_stat_t more[64];
    cs_store_get_stats(s->o.store, &stats);
    r->is_draining = cs_service_is_draining(s);
    cs_store_lease_report(s->o.store, &r->leases);
    r->uploads = (uint32_t)stats.uploads_open;
    r->commits = atomic_load_explicit(&s->n.commits_waiting, memory_order_relaxed);
    r->transfers = atomic_load_explicit(&s->n.fetch_streams, memory_order_relaxed) +
                   atomic_load_explicit(&s->n.put_streams, memory_order_relaxed);
    uint32_t n = s->o.more_stats != NULL ? s->o.more_stats(s->o.arg, more, VC_ARRAY_LEN(more)) : 0;
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(more[i].name, "data_ops_in_flight") == 0)
            r->transfers += (uint32_t)more[i].value;
}

bool cs_drain_is_done(const cs_drain_report_t *r)
{
    return r->leases.n_leases == 0 && r->uploads == 0 && r->commits == 0 && r->transfers == 0;
}

static vc_status_t drain_reply(const cs_drain_report_t *r, vc_bytes_t *resp, vc_err_t *err)
{
    Vericache__V1__DrainReply reply = VERICACHE__V1__DRAIN_REPLY__INIT;
    Vericache__V1__DrainReply__Age ages[CS_LEASE_AGES], *list[CS_LEASE_AGES];
    reply.draining = r->is_draining;
    reply.leases = r->leases.n_leases;
    reply.leased_bytes = r->leases.n_bytes;
    reply.uploads = r->uploads;
    reply.commits = r->commits;
    reply.transfers = r->transfers;
    reply.ages = list;
    for (uint32_t i = 0; i < CS_LEASE_AGES; i++) {
        if (r->leases.ages[i].n_leases == 0)
            continue;
        Vericache__V1__DrainReply__Age *age = &ages[reply.n_ages];
        *age = (Vericache__V1__DrainReply__Age)VERICACHE__V1__DRAIN_REPLY__AGE__INIT;
        age->below_s = r->leases.ages[i].below_s;
        age->leases = r->leases.ages[i].n_leases;
        age->bytes = r->leases.ages[i].n_bytes;
        list[reply.n_ages++] = age;
    }
    return cs_pack(&reply.base, resp, err);
}

vc_status_t cs_service_drain_call(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                                  vc_err_t *err)
{
    (void)call;
    cs_service_t *s = arg;
    cs_drain_report_t report;
    Vericache__V1__DrainRequest *m = vericache__v1__drain_request__unpack(NULL, len, req);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "request is not a DrainRequest");
    bool resume = m->resume != 0, query = m->query != 0;
    vericache__v1__drain_request__free_unpacked(m, NULL);
    if (resume && query)
        return vc_err_set(err, VC_ERR_INVALID, "a DrainRequest resumes or queries, not both");
    if (!query) {
        vc_log_info("service", "%s by request", resume ? "resume" : "drain");
        cs_service_drain(s, !resume);
    }
    cs_service_report(s, &report);
    return drain_reply(&report, resp, err);
}

/* ---- watching ---- */

vc_status_t cs_watch_begin(cs_service_t *s, _Atomic uint32_t *watchers, uint32_t most, uint64_t *epoch_p, vc_err_t *err)
{
    pthread_mutex_lock(&s->watch_lock);
    *epoch_p = s->watch_epoch;
    pthread_mutex_unlock(&s->watch_lock);
    if (atomic_fetch_add_explicit(watchers, 1, memory_order_relaxed) < most)
        return VC_OK;
    atomic_fetch_sub_explicit(watchers, 1, memory_order_relaxed);
    return vc_err_set(err, VC_ERR_BUSY, "%u clients watch already", most);
}

/* The next moment to look up, at most WATCH_LOOK_MS away. */
static struct timespec look_at(uint64_t left_ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_nsec + VC_MIN(left_ms, WATCH_LOOK_MS) * 1000000;
    t.tv_sec += (time_t)(ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    return t;
}

vc_status_t cs_watch_wait(cs_service_t *s, vc_rpc_call_t *call, uint64_t *epoch, uint64_t interval_ms, vc_err_t *err)
{
    uint64_t until_us = vc_clock_now_us(vc_clock_system()) + interval_ms * 1000;
    for (;;) {
        uint64_t now_us = vc_clock_now_us(vc_clock_system());
        pthread_mutex_lock(&s->watch_lock);
        if (s->watch_epoch == *epoch && now_us < until_us) {
            struct timespec at = look_at((until_us - now_us + 999) / 1000);
            pthread_cond_timedwait(&s->watch_changed, &s->watch_lock, &at);
        }
        bool is_new = s->watch_epoch != *epoch;
        *epoch = s->watch_epoch;
        pthread_mutex_unlock(&s->watch_lock);
        if (atomic_load_explicit(&s->stopping, memory_order_relaxed))
            return vc_err_set(err, VC_ERR_UNREACHABLE, "the server is stopping");
        if (vc_rpc_call_is_cancelled(call))
            return vc_err_set(err, VC_ERR_CANCELLED, "the client is gone");
        if (is_new || vc_clock_now_us(vc_clock_system()) >= until_us)
            return VC_OK;
    }
}

vc_status_t cs_watch_send(vc_rpc_call_t *call, const ProtobufCMessage *message, vc_err_t *err)
{
    vc_bytes_t bytes = {0};
    vc_status_t st = cs_pack(message, &bytes, err);
    if (st == VC_OK) {
        vc_rpc_msg_t out = {.head = bytes.data, .head_len = bytes.len};
        st = vc_rpc_call_send(call, &out);
    }
    vc_bytes_free(&bytes);
    return st;
}

vc_status_t cs_watch_request(cs_service_t *s, vc_rpc_call_t *call, vc_bytes_t *req_p, vc_err_t *err)
{
    vc_status_t st = vc_rpc_call_recv(call, s->o.idle_ms, req_p);
    if (st == VC_ERR_NOT_FOUND)
        return vc_err_set(err, VC_ERR_INVALID, "the call came without a request");
    return st == VC_ERR_AGAIN ? vc_err_set(err, VC_ERR_TIMEOUT, "no request for %u ms", s->o.idle_ms) : st;
}

/* ---- health ---- */

#define HEALTH(name) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##name

static vc_status_t health_request(const uint8_t *req, size_t len, bool *is_known_p, vc_err_t *err)
{
    Grpc__Health__V1__HealthCheckRequest *m = grpc__health__v1__health_check_request__unpack(NULL, len, req);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "request is not a HealthCheckRequest");
    *is_known_p = m->service[0] == '\0' || strcmp(m->service, "vericache.v1.Cache") == 0;
    if (!*is_known_p)
        vc_err_set(err, VC_ERR_NOT_FOUND, "service \"%.100s\" is unknown", m->service);
    grpc__health__v1__health_check_request__free_unpacked(m, NULL);
    return VC_OK;
}

vc_status_t cs_service_health(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                              vc_err_t *err)
{
    (void)call;
    bool is_known;
    vc_status_t st = health_request(req, len, &is_known, err);
    if (st != VC_OK || !is_known)
        return st != VC_OK ? st : VC_ERR_NOT_FOUND;
    Grpc__Health__V1__HealthCheckResponse reply = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    reply.status = cs_service_is_draining(arg) ? HEALTH(NOT_SERVING) : HEALTH(SERVING);
    return cs_pack(&reply.base, resp, err);
}

vc_status_t cs_service_health_watch(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    cs_service_t *s = arg;
    vc_bytes_t req = {0};
    bool is_known = false;
    uint64_t epoch;
    vc_err_t unused;
    vc_status_t st = cs_watch_request(s, call, &req, err);
    if (st == VC_OK)
        st = health_request(req.data, req.len, &is_known, &unused);
    if (st == VC_ERR_INVALID && err->msg[0] == '\0')
        vc_err_set(err, st, "request is not a HealthCheckRequest");
    vc_bytes_free(&req);
    if (st == VC_OK)
        st = cs_watch_begin(s, &s->n.health_watchers, CS_SERVICE_WATCHERS, &epoch, err);
    if (st != VC_OK)
        return st;
    Grpc__Health__V1__HealthCheckResponse reply = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    do {
        int now = !is_known                   ? HEALTH(SERVICE_UNKNOWN)
                  : cs_service_is_draining(s) ? HEALTH(NOT_SERVING)
                                              : HEALTH(SERVING);
        if ((int)reply.status != now) {
            reply.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)now;
            st = cs_watch_send(call, &reply.base, err);
        }
        if (st == VC_OK)
            st = cs_watch_wait(s, call, &epoch, 3600000, err);
    } while (st == VC_OK);
    atomic_fetch_sub_explicit(&s->n.health_watchers, 1, memory_order_relaxed);
    return st;
}
