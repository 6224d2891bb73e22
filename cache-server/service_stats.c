/* Statistics by name, once or again and again, and the list of prefixes. The names are documented in OPERATING.md. */
#include <stdio.h>
#include <string.h>

#include "service_int.h"
#include "store_scrub.h"
#include "vc/mem.h"

#define STATS_MAX CS_STATS_MAX
#define PREFIXES_MAX 1000

typedef struct {
    cs_stat_t list[STATS_MAX];
    uint32_t n;
} stats_t;

static void add(stats_t *st, const char *name, const char *suffix, double value)
{
    if (st->n == STATS_MAX)
        return;
    cs_stat_t *s = &st->list[st->n++];
    snprintf(s->name, sizeof(s->name), "%s%s", name, suffix);
    s->value = value;
}

static double share(uint64_t part, uint64_t whole) { return whole == 0 ? 0 : (double)part / (double)whole; }

static void add_fidelity(stats_t *st, const char *suffix, const cs_fid_stats_t *f)
{
    add(st, "lookups", suffix, (double)f->lookups);
    add(st, "lookup_hits", suffix, (double)f->lookup_hits);
    add(st, "lookup_blocks", suffix, (double)f->lookup_blocks);
    add(st, "hit_blocks", suffix, (double)f->hit_blocks);
    add(st, "lookup_tokens", suffix, (double)f->lookup_tokens);
    add(st, "hit_tokens", suffix, (double)f->hit_tokens);
    add(st, "hit_bytes", suffix, (double)f->hit_bytes);
    add(st, "hit_rate_blocks", suffix, share(f->hit_blocks, f->lookup_blocks));
    add(st, "hit_rate_tokens", suffix, share(f->hit_tokens, f->lookup_tokens));
    add(st, "hit_rate_lookups", suffix, share(f->lookup_hits, f->lookups));
    add(st, "objects", suffix, (double)f->objects);
    add(st, "bytes", suffix, (double)f->bytes);
    add(st, "read_bytes", suffix, (double)f->read_bytes);
    add(st, "put_bytes", suffix, (double)f->put_bytes);
    add(st, "evicted_objects", suffix, (double)f->evicted_objects);
}

static void add_store(stats_t *st, const cs_store_stats_t *s)
{
    add_fidelity(st, "_full", &s->full);
    add_fidelity(st, "_compressed", &s->compressed);
    add(st, "miss_absent", "", (double)s->miss_absent);
    add(st, "miss_evicted", "", (double)s->miss_evicted);
    add(st, "miss_corrupt", "", (double)s->miss_corrupt);
    add(st, "miss_keyspace", "", (double)s->miss_keyspace);
    add(st, "corrupt_disk", "", (double)s->corrupt_disk);
    add(st, "corrupt_wire", "", (double)s->corrupt_wire);
    add(st, "corrupt_total", "", (double)(s->corrupt_disk + s->corrupt_wire));
    add(st, "commits", "", (double)s->commits);
    add(st, "commit_batches", "", (double)s->commit_batches);
    add(st, "aborts", "", (double)s->aborts);
    add(st, "uploads_open", "", (double)s->uploads_open);
    add(st, "uploads_expired", "", (double)s->uploads_expired);
    add(st, "put_rejected", "", (double)s->put_rejected);
    add(st, "leases_open", "", (double)s->leases_open);
    add(st, "leases_expired", "", (double)s->leases_expired);
    add(st, "leases_stale", "", (double)s->stale_leases);
    add(st, "pinned_bytes", "", (double)s->pinned_bytes);
    add(st, "capacity_bytes", "", (double)s->capacity_bytes);
    add(st, "used_bytes", "", (double)s->used_bytes);
    add(st, "segments", "", (double)s->n_segments);
    add(st, "evictions", "", (double)s->evictions);
    add(st, "evicted_bytes", "", (double)s->evicted_bytes);
    add(st, "compactions", "", (double)s->compactions);
    add(st, "moved_bytes", "", (double)s->moved_bytes);
    add(st, "segment_written_bytes", "", (double)s->segment_written);
    add(st, "write_amplification", "", s->write_amplification);
    add(st, "dead_bytes", "", (double)s->dead_bytes);
    add(st, "kept_objects", "", (double)s->kept_objects);
    add(st, "kept_bytes", "", (double)s->kept_bytes);
    add(st, "index_bytes", "", (double)s->index_bytes);
    add(st, "tenants", "", (double)s->tenants);
    add(st, "tenant_largest_bytes", "", (double)s->tenant_largest_bytes);
    add(st, "tenant_quota_bytes", "", (double)s->tenant_quota_bytes);
    add(st, "quota_rejected", "", (double)s->quota_rejected);
    add(st, "quota_evicted", "", (double)s->quota_evicted);
    add(st, "rebuilt_objects", "", (double)s->rebuilt_objects);
    add(st, "readonly", "", s->readonly ? 1 : 0);
}

static void add_scrub(stats_t *st, const cs_scrub_info_t *i)
{
    add(st, "scrub_running", "", i->running ? 1 : 0);
    add(st, "scrub_rate_bytes", "", (double)i->rate_bytes);
    add(st, "scrub_passes", "", (double)i->passes);
    add(st, "scrub_bytes", "", (double)i->bytes);
    add(st, "scrub_corrupt", "", (double)i->corrupt);
    add(st, "scrub_errors", "", (double)i->errors);
    add(st, "scrub_last_pass_s", "", (double)i->last_pass_s);
    add(st, "scrub_last_pass_ms", "", (double)i->last_pass_ms);
    add(st, "scrub_pass_objects", "", (double)i->pass_objects);
    add(st, "scrub_pass_bytes", "", (double)i->pass_bytes);
}

static void add_ram(stats_t *st, cs_ramtier_t *ram)
{
    cs_ramtier_stats_t r;
    cs_ramtier_get_stats(ram, &r);
    add(st, "ram_capacity_bytes", "", (double)r.capacity_bytes);
    add(st, "ram_bytes", "", (double)r.used_bytes);
    add(st, "ram_records", "", (double)r.records);
    add(st, "ram_hits", "", (double)r.hits);
    add(st, "ram_misses", "", (double)r.misses);
    add(st, "ram_evicted", "", (double)r.evicted);
    add(st, "read_views", "", (double)r.views);
    add(st, "read_coalesced", "", (double)r.coalesced);
    add(st, "read_ahead_records", "", (double)r.ahead);
    add(st, "read_ahead_used", "", (double)r.ahead_used);
    add(st, "read_ahead_wasted", "", (double)r.ahead_wasted);
}

static double load(_Atomic uint64_t *counter) { return (double)atomic_load_explicit(counter, memory_order_relaxed); }

static void add_service(stats_t *st, cs_service_t *s)
{
    vc_rpc_server_stats_t rpc;
    vc_rpc_server_get_stats(s->rpc, &rpc);
    add(st, "rpc_calls", "", rpc.calls);
    add(st, "rpc_calls_total", "", (double)rpc.total);
    add(st, "rpc_refused", "", (double)rpc.refused);
    add(st, "rpc_reclaimed", "", (double)rpc.reclaimed);
    add(st, "rpc_stalled", "", (double)rpc.stalled);
    add(st, "rpc_lookups", "", load(&s->n.lookups));
    add(st, "rpc_registers", "", load(&s->n.registers));
    add(st, "rpc_commits", "", load(&s->n.commits));
    add(st, "rpc_commits_waiting", "", atomic_load_explicit(&s->n.commits_waiting, memory_order_relaxed));
    add(st, "rpc_watchers", "",
        atomic_load_explicit(&s->n.stats_watchers, memory_order_relaxed) +
            atomic_load_explicit(&s->n.health_watchers, memory_order_relaxed));
    add(st, "draining", "", atomic_load_explicit(&s->draining, memory_order_relaxed) ? 1 : 0);
    add(st, "rpc_fetches", "", load(&s->n.fetches));
    add(st, "rpc_fetch_records", "", load(&s->n.fetch_records));
    add(st, "rpc_fetch_bytes", "", load(&s->n.fetch_bytes));
    add(st, "rpc_fetch_streams", "", atomic_load_explicit(&s->n.fetch_streams, memory_order_relaxed));
    add(st, "rpc_puts", "", load(&s->n.puts));
    add(st, "rpc_put_records", "", load(&s->n.put_records));
    add(st, "rpc_put_bytes", "", load(&s->n.put_bytes));
    add(st, "rpc_put_streams", "", atomic_load_explicit(&s->n.put_streams, memory_order_relaxed));
    add(st, "step_downs", "", load(&s->n.step_downs));
    add(st, "damaged_reports", "", load(&s->n.damaged_reports));
    add(st, "generation", "", (double)cs_store_generation(s->o.store));
}

static void add_time(stats_t *st, const char *name, const cs_hist_t *hist)
{
    cs_hist_sum_t sum;
    cs_hist_read(hist, &sum);
    add(st, name, "_count", (double)sum.count);
    add(st, name, "_p50_ms", (double)sum.p50_us / 1e3);
    add(st, name, "_p90_ms", (double)sum.p90_us / 1e3);
    add(st, name, "_p99_ms", (double)sum.p99_us / 1e3);
    add(st, name, "_p999_ms", (double)sum.p999_us / 1e3);
    add(st, name, "_max_ms", (double)sum.max_us / 1e3);
}

static void add_windows(stats_t *st, cs_service_t *s, cs_hits_t *hits, const char *fidelity)
{
    static const struct {
        const char *name;
        uint32_t steps;
    } windows[] = {{"1m", 6}, {"10m", 60}, {"1h", 360}};
    uint64_t now_us = vc_clock_now_us(s->o.clock);
    for (size_t i = 0; i < VC_ARRAY_LEN(windows); i++) {
        cs_hits_sum_t sum;
        char suffix[32];
        snprintf(suffix, sizeof(suffix), "_%s%s", windows[i].name, fidelity);
        cs_hits_read(hits, now_us, windows[i].steps, &sum);
        add(st, "lookup_blocks", suffix, (double)sum.asked_blocks);
        add(st, "hit_rate_blocks", suffix, share(sum.hit_blocks, sum.asked_blocks));
        add(st, "hit_rate_tokens", suffix, share(sum.hit_tokens, sum.asked_tokens));
    }
}

static void add_refusals(stats_t *st, cs_service_t *s)
{
    cs_refusals_t r;
    cs_store_get_refusals(s->o.store, &r);
    add(st, "refused_draining", "", load(&s->n.refused_draining));
    add(st, "refused_space", "", (double)r.space);
    add(st, "refused_readonly", "", (double)r.readonly);
    add(st, "refused_limit", "", (double)r.limit);
    add(st, "refused_disk", "", (double)r.disk);
    add(st, "refused_expired", "", (double)r.expired);
    add(st, "refused_invalid", "", (double)r.invalid);
}

static void collect(cs_service_t *s, stats_t *st)
{
    cs_store_stats_t store;
    cs_scrub_info_t scrub;
    cs_store_get_stats(s->o.store, &store);
    cs_store_scrub_info(s->o.store, &scrub);
    add_store(st, &store);
    add_windows(st, s, &s->hits_full, "_full");
    add_windows(st, s, &s->hits_compressed, "_compressed");
    add_ram(st, cs_store_ramtier(s->o.store));
    add_scrub(st, &scrub);
    add_refusals(st, s);
    add_time(st, "time_lookup", &s->lookup_time);
    add_time(st, "time_fetch_first", &s->fetch_time);
    add_time(st, "time_put", &s->put_time);
    add_time(st, "time_commit", &s->commit_time);
    add_service(st, s);
    if (s->o.more_stats != NULL)
        st->n += s->o.more_stats(s->o.arg, st->list + st->n, STATS_MAX - st->n);
}

uint32_t cs_service_list_stats(cs_service_t *s, cs_stat_t *stats, uint32_t cap)
{
    stats_t *st = vc_calloc(1, sizeof(*st));
    if (st == NULL)
        return 0;
    collect(s, st);
    uint32_t n = VC_MIN(st->n, cap);
    memcpy(stats, st->list, n * sizeof(*stats));
    vc_free(st);
    return n;
}

/* A reply over the numbers of st, built once and refilled by whoever sends it again. */
typedef struct {
    stats_t st;
    Vericache__V1__GetStatsReply reply;
    Vericache__V1__GetStatsReply__Stat items[STATS_MAX], *list[STATS_MAX];
} answer_t;

static void fill_answer(cs_service_t *s, answer_t *a)
{
    a->st.n = 0;
    collect(s, &a->st);
    a->reply = (Vericache__V1__GetStatsReply)VERICACHE__V1__GET_STATS_REPLY__INIT;
    for (uint32_t i = 0; i < a->st.n; i++) {
        a->items[i] = (Vericache__V1__GetStatsReply__Stat)VERICACHE__V1__GET_STATS_REPLY__STAT__INIT;
        a->items[i].name = a->st.list[i].name;
        a->items[i].value = a->st.list[i].value;
        a->list[i] = &a->items[i];
    }
    a->reply.n_stats = a->st.n;
    a->reply.stats = a->list;
}

vc_status_t cs_service_stats(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                             vc_err_t *err)
{
    (void)call;
    Vericache__V1__GetStatsRequest *m = vericache__v1__get_stats_request__unpack(NULL, len, req);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "request is not a GetStatsRequest");
    vericache__v1__get_stats_request__free_unpacked(m, NULL);
    answer_t *a = vc_alloc(sizeof(*a));
    if (a == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    fill_answer(arg, a);
    vc_status_t status = cs_pack(&a->reply.base, resp, err);
    vc_free(a);
    return status;
}

static vc_status_t watch_interval(cs_service_t *s, vc_rpc_call_t *call, uint32_t *interval_ms_p, vc_err_t *err)
{
    vc_bytes_t req = {0};
    vc_status_t st = cs_watch_request(s, call, &req, err);
    if (st != VC_OK)
        return st;
    Vericache__V1__WatchStatsRequest *m = vericache__v1__watch_stats_request__unpack(NULL, req.len, req.data);
    vc_bytes_free(&req);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "request is not a WatchStatsRequest");
    *interval_ms_p = m->interval_ms != 0 ? m->interval_ms : 1000;
    vericache__v1__watch_stats_request__free_unpacked(m, NULL);
    if (*interval_ms_p < 100 || *interval_ms_p > 3600000)
        return vc_err_set(err, VC_ERR_RANGE, "an interval of %u ms is not 100 to 3600000", *interval_ms_p);
    return VC_OK;
}

vc_status_t cs_service_stats_watch(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    cs_service_t *s = arg;
    uint32_t interval_ms = 0;
    uint64_t epoch;
    vc_status_t st = watch_interval(s, call, &interval_ms, err);
    if (st == VC_OK)
        st = cs_watch_begin(s, &s->n.stats_watchers, CS_SERVICE_WATCHERS, &epoch, err);
    if (st != VC_OK)
        return st;
    answer_t *a = vc_alloc(sizeof(*a));
    if (a == NULL)
        st = vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    while (st == VC_OK) {
        fill_answer(s, a);
        st = cs_watch_send(call, &a->reply.base, err);
        if (st == VC_OK)
            st = cs_watch_wait(s, call, &epoch, interval_ms, err);
    }
    vc_free(a);
    atomic_fetch_sub_explicit(&s->n.stats_watchers, 1, memory_order_relaxed);
    return st;
}

/* ---- prefixes ---- */

static vc_status_t prefixes_reply(const cs_prefix_info_t *info, uint32_t n, vc_bytes_t *resp, vc_err_t *err)
{
    Vericache__V1__ListPrefixesReply reply = VERICACHE__V1__LIST_PREFIXES_REPLY__INIT;
    Vericache__V1__ListPrefixesReply__Prefix *items = vc_calloc(n, sizeof(*items));
    Vericache__V1__ListPrefixesReply__Prefix **list = vc_calloc(n, sizeof(*list));
    vc_status_t status = VC_ERR_NOMEM;
    if (items != NULL && list != NULL) {
        for (uint32_t i = 0; i < n; i++) {
            Vericache__V1__ListPrefixesReply__Prefix *p = &items[i];
            *p = (Vericache__V1__ListPrefixesReply__Prefix)VERICACHE__V1__LIST_PREFIXES_REPLY__PREFIX__INIT;
            p->tip = (ProtobufCBinaryData){sizeof(info[i].tip.b), (uint8_t *)(uintptr_t)info[i].tip.b};
            p->keyspace = (ProtobufCBinaryData){sizeof(info[i].keyspace.b), (uint8_t *)(uintptr_t)info[i].keyspace.b};
            p->blocks = info[i].n_blocks;
            p->hits = info[i].hits;
            p->bytes = info[i].bytes;
            p->n_head_tokens = VC_MIN(info[i].n_head_tokens, VC_ARRAY_LEN(info[i].head_tokens));
            p->head_tokens = (uint32_t *)(uintptr_t)info[i].head_tokens;
            list[i] = p;
        }
        reply.n_prefixes = n;
        reply.prefixes = list;
        status = cs_pack(&reply.base, resp, err);
    }
    vc_free(items);
    vc_free(list);
    return status == VC_OK ? status : vc_err_set(err, status, "out of memory");
}

vc_status_t cs_service_prefixes_now(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                                    vc_err_t *err)
{
    (void)call;
    cs_service_t *s = arg;
    Vericache__V1__ListPrefixesRequest *m = vericache__v1__list_prefixes_request__unpack(NULL, len, req);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "request is not a ListPrefixesRequest");
    uint32_t limit = m->limit, n = 0;
    bool by_bytes = m->by_bytes != 0;
    vericache__v1__list_prefixes_request__free_unpacked(m, NULL);
    if (limit == 0 || limit > PREFIXES_MAX)
        return vc_err_set(err, VC_ERR_RANGE, "limit %u is not 1 to %d", limit, PREFIXES_MAX);
    cs_prefix_info_t *info = vc_calloc(limit, sizeof(*info));
    if (info == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    vc_status_t st = cs_store_list_prefixes(s->o.store, by_bytes, limit, info, &n);
    if (st == VC_OK)
        st = prefixes_reply(info, n, resp, err);
    else
        vc_err_set(err, st, "cannot list prefixes: %s", vc_status_name(st));
    vc_free(info);
    return st;
}
