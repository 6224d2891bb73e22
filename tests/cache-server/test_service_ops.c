/* Proves what operators and engines ask a server: draining, watching, the scrubber, pins and deletes, configuration,
 * and the statistics about time and refusals. */
#include <unistd.h>

#include "health.pb-c.h"
#include "service_fixture.h"
#include "vc/rpc.h"
#include "vericache.pb-c.h"

#define CACHE "/vericache.v1.Cache/"

/* ---- drain ---- */

Test(service_ops, draining_refuses_new_work_and_lets_old_work_end)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 6);
    vcache_error_t err = {0};
    vcache_lease_t *lease = NULL, *none = NULL;
    vcache_drain_report_t r;
    sx_sink_t sink = {.fx = &sx.fx, .seed = 1};
    sx_source_t source = {0};
    cs_upload_info_t info;
    uint8_t missing[2];
    cr_assert_eq(sx_lookup(&sx, 1, 6, NULL, &lease, &err), VC_OK);
    cr_assert_eq(fx_begin(&sx.fx, 2, 0, 1, FX_FULL, &info, missing), VC_OK);
    cr_assert_eq(vcache_drain(sx.client, VCACHE_DRAIN_QUERY, &r, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(r.draining, 0);
    cr_assert_eq(vcache_drain(sx.client, VCACHE_DRAIN_START, &r, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(r.draining, 1);
    cr_assert_eq(r.leases, 1);
    cr_assert_eq(r.leased_bytes, 6 * (3 + 2) * 4096);
    cr_assert_eq(r.uploads, 1);
    cr_assert_eq(r.n_ages, 1);
    cr_assert_eq(r.ages[0].leases, 1);
    cr_assert_eq(r.ages[0].bytes, r.leased_bytes);
    cr_assert_eq(vcache_health(sx.client, &err), VC_ERR_BUSY);
    cr_assert_eq(sx_lookup(&sx, 1, 6, NULL, &none, &err), VC_ERR_UNREACHABLE);
    cr_assert_str_eq(err.msg, "the server is draining");
    cr_assert_eq(sx_register_by(&sx, sx.client, 3, 0, 2, &source, NULL, &err), VC_ERR_UNREACHABLE);
    cr_assert_eq(sx_stat(&sx, "refused_draining"), 2);
    cr_assert_eq(sx_stat(&sx, "draining"), 1);
    cr_assert_eq(vcache_fetch(lease, 0, 0, 6, sx_sink_record, &sink, NULL, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(sink.right, 6);
    vcache_lease_release(lease);
    cr_assert_eq(fx_put(&sx.fx, &info, 2, 0, 0), VC_OK);
    cr_assert_eq(fx_commit(&sx.fx, &info), VC_OK);
    do
        cr_assert_eq(vcache_drain(sx.client, VCACHE_DRAIN_START, &r, &err), VC_OK);
    while (r.transfers != 0);
    cr_assert_eq(r.leases + r.uploads + r.commits + r.n_ages, 0);
    cr_assert_eq(vcache_drain(sx.client, VCACHE_DRAIN_RESUME, &r, &err), VC_OK);
    cr_assert_eq(r.draining, 0);
    cr_assert_eq(vcache_health(sx.client, &err), VC_OK);
    sx_register(&sx, 3, 2);
    sx_end(&sx);
}

/* ---- watching ---- */

typedef struct {
    sx_t *sx;
    vcache_client_t *client;
    uint32_t stop_at;
    _Atomic uint32_t seen;
    _Atomic bool saw_draining;
    vcache_status_t status;
    vcache_error_t err;
    pthread_t thread;
} watcher_t;

static int on_stats(void *arg, const vcache_stat_t *stats, uint32_t n)
{
    watcher_t *w = arg;
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(stats[i].name, "draining") == 0 && stats[i].value == 1)
            w->saw_draining = true;
    return ++w->seen == w->stop_at;
}

static void *watch(void *arg)
{
    watcher_t *w = arg;
    w->status = vcache_watch_stats(w->client, 3600000, on_stats, w, &w->err);
    return NULL;
}

static void start_watcher(watcher_t *w, sx_t *sx, uint32_t stop_at)
{
    *w = (watcher_t){.sx = sx, .client = sx_connect(sx), .stop_at = stop_at};
    cr_assert_eq(pthread_create(&w->thread, NULL, watch, w), 0);
    while (w->seen == 0)
        usleep(200);
}

Test(service_ops, watched_statistics_come_at_once_and_at_every_change_for_a_few_clients)
{
    enum { MOST = 4 };
    static watcher_t w[MOST];
    sx_t sx;
    vcache_error_t err = {0};
    sx_start(&sx, 2);
    for (uint32_t i = 0; i < MOST; i++)
        start_watcher(&w[i], &sx, i == 0 ? 2 : 0);
    cr_assert_eq(sx_stat(&sx, "rpc_watchers"), MOST);
    cr_assert_eq(vcache_watch_stats(sx.client, 1000, on_stats, &w[0], &err), VC_ERR_BUSY);
    cr_assert_str_eq(err.msg, "4 clients watch already");
    cr_assert_eq(vcache_watch_stats(sx.client, 99, on_stats, &w[0], &err), VC_ERR_RANGE);
    cr_assert_eq(vcache_drain(sx.client, VCACHE_DRAIN_START, NULL, &err), VC_OK); /* long before an interval is over */
    pthread_join(w[0].thread, NULL);
    cr_assert_eq(w[0].status, VC_OK);
    cr_assert(w[0].saw_draining);
    while (sx_stat(&sx, "rpc_watchers") != MOST - 1)
        ;
    cs_service_stop(sx.service, 60000); /* does not wait for them */
    sx.service = NULL;
    for (uint32_t i = 0; i < MOST; i++) {
        if (i > 0)
            pthread_join(w[i].thread, NULL);
        cr_assert(i == 0 || w[i].status == VC_ERR_UNREACHABLE, "%s", w[i].err.msg);
        vcache_disconnect(w[i].client);
    }
    sx_end(&sx);
}

static int health_of(vc_rpc_stream_t *s)
{
    vc_bytes_t m = {0};
    vc_err_t err = {0};
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_OK, "%s", err.msg);
    Grpc__Health__V1__HealthCheckResponse *r = grpc__health__v1__health_check_response__unpack(NULL, m.len, m.data);
    cr_assert_not_null(r);
    int status = (int)r->status;
    grpc__health__v1__health_check_response__free_unpacked(r, NULL);
    vc_bytes_free(&m);
    return status;
}

static vc_rpc_stream_t *watch_health(vc_rpc_channel_t *ch, const char *service)
{
    uint8_t bytes[64];
    vc_rpc_stream_t *s = NULL;
    Grpc__Health__V1__HealthCheckRequest req = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    req.service = (char *)(uintptr_t)service;
    vc_rpc_msg_t m = {.head = bytes, .head_len = grpc__health__v1__health_check_request__pack(&req, bytes)};
    cr_assert_eq(vc_rpc_stream_open(ch, "/grpc.health.v1.Health/Watch", 0, &s, NULL), VC_OK);
    cr_assert_eq(vc_rpc_stream_send(s, &m, NULL), VC_OK);
    vc_rpc_stream_half_close(s);
    return s;
}

Test(service_ops, health_can_be_watched)
{
    sx_t sx;
    sx_start(&sx, 2);
    vc_rpc_channel_t *ch = NULL;
    vc_rpc_channel_opts_t o;
    vc_rpc_channel_opts_default(&o);
    o.target = sx.address;
    cr_assert_eq(vc_rpc_channel_create(&o, &ch, NULL), VC_OK);
    vc_rpc_stream_t *ours = watch_health(ch, "vericache.v1.Cache"), *other = watch_health(ch, "some.other");
    cr_assert_eq(health_of(ours), GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING);
    cr_assert_eq(health_of(other), GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN);
    cs_service_drain(sx.service, true);
    cr_assert_eq(health_of(ours), GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING);
    cs_service_drain(sx.service, false);
    cr_assert_eq(health_of(ours), GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING);
    vc_rpc_stream_destroy(ours);
    vc_rpc_stream_destroy(other);
    vc_rpc_channel_destroy(ch);
    cr_assert(sx_wait_zero(&sx, "rpc_watchers")); /* clients that went away are noticed */
    sx_end(&sx);
}

/* ---- scrub ---- */

Test(service_ops, scrub_can_be_started_watched_and_stopped)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 6);
    cs_pin_t pin;
    vcache_error_t err = {0};
    vcache_scrub_info_t i;
    cr_assert_eq(fx_pin(&sx.fx, 1, 4, 0, &pin), VC_OK);
    fx_flip_byte(&sx.fx, &pin, 5000);
    cs_store_unpin(sx.fx.store, &pin);
    cr_assert_eq(vcache_scrub(sx.client, VCACHE_SCRUB_QUERY, 0, &i, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(i.running + i.passes + i.last_pass_s, 0);
    cr_assert_eq(vcache_scrub(sx.client, VCACHE_SCRUB_STOP, 0, &i, &err), VC_ERR_NOT_FOUND);
    cr_assert_neq(err.msg[0], '\0');
    cr_assert_eq(vcache_scrub(sx.client, VCACHE_SCRUB_START, (uint64_t)1 << 30, &i, &err), VC_OK, "%s", err.msg);
    while (i.passes == 0) {
        vc_fake_clock_advance(&sx.fx.clock, 1000000); /* the pass keeps its rate by this clock */
        cs_store_tick(sx.fx.store);
        cr_assert_eq(vcache_scrub(sx.client, VCACHE_SCRUB_QUERY, 0, &i, &err), VC_OK);
    }
    cr_assert_eq(i.corrupt, 1);
    cr_assert_eq(i.pass_corrupt, 1);
    cr_assert_eq(i.pass_objects, 12);
    cr_assert_eq(sx_stat(&sx, "scrub_passes"), 1);
    cr_assert_eq(sx_stat(&sx, "corrupt_disk"), 1);
    sx_end(&sx);
}

/* ---- pins and deletes ---- */

static vcache_chain_t by_prompt(const sx_t *sx, uint32_t seed, uint32_t n_blocks, uint32_t *tokens)
{
    fx_tokens(seed, n_blocks, tokens);
    return (vcache_chain_t){.keyspace = sx->keyspace,
                            .keyspace_len = sx->keyspace_len,
                            .tokens = tokens,
                            .n_tokens = n_blocks * FX_BLOCK_TOKENS};
}

Test(service_ops, prompts_are_pinned_unpinned_and_deleted_by_column_and_range)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 6);
    vcache_error_t err = {0};
    vcache_chain_sum_t sum = {0};
    vcache_lookup_info_t info;
    uint32_t tokens[10 * FX_BLOCK_TOKENS];
    vcache_chain_t c = by_prompt(&sx, 1, 10, tokens);
    cr_assert_eq(vcache_pin(sx.client, &c, &sum, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(sum.n_objects, 12); /* both copies of the six that are there */
    cr_assert_eq(sum.n_bytes, 6 * (3 + 2) * 4096);
    cr_assert_eq(sx_stat(&sx, "kept_objects"), 12);
    cr_assert_eq(sx_stat(&sx, "kept_bytes"), (double)sum.n_bytes);
    cr_assert_eq(vcache_pin(sx.client, &c, &sum, &err), VC_OK); /* twice is once */
    cr_assert_eq(sx_stat(&sx, "kept_objects"), 12);
    sx_restart(&sx);
    cr_assert_eq(sx_stat(&sx, "kept_objects"), 12);
    c.fidelity = &sx.fids[1];
    c.first_block = 4;
    cr_assert_eq(vcache_unpin(sx.client, &c, &sum, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(sum.n_objects, 2);
    cr_assert_eq(sx_stat(&sx, "kept_objects"), 10);
    c.fidelity = &sx.fids[0];
    cr_assert_eq(vcache_delete(sx.client, &c, &sum, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(sum.n_objects, 2);
    cr_assert_eq(sx_lookup(&sx, 1, 6, &info, NULL, &err), VC_OK);
    cr_assert_eq(info.n_blocks[0], 4);
    cr_assert_eq(info.n_blocks[1], 6);
    c = by_prompt(&sx, 2, 3, tokens);
    cr_assert_eq(vcache_pin(sx.client, &c, &sum, &err), VC_ERR_NOT_FOUND);
    cr_assert_neq(err.msg[0], '\0');
    sx_end(&sx);
}

Test(service_ops, listed_prefixes_are_deleted_by_their_tip)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 6);
    sx_register(&sx, 2, 3);
    vcache_error_t err = {0};
    vcache_prefix_t list[10];
    vcache_chain_sum_t sum = {0};
    vcache_lookup_info_t info;
    uint32_t n = 0;
    cr_assert_eq(vcache_prefixes(sx.client, 1, 10, list, &n, &err), VC_OK);
    cr_assert_eq(n, 2);
    vcache_chain_t c = {.keyspace_id = list[0].keyspace, .tip = list[0].tip};
    cr_assert_eq(vcache_delete(sx.client, &c, &sum, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(sum.n_objects, 12);
    cr_assert_eq(sx_lookup(&sx, 1, 6, &info, NULL, &err), VC_OK);
    cr_assert_eq(info.n_blocks[0] + info.n_blocks[1], 0);
    cr_assert_eq(sx_lookup(&sx, 2, 3, &info, NULL, &err), VC_OK);
    cr_assert_eq(info.n_blocks[0], 3);
    cr_assert_eq(vcache_delete(sx.client, &c, &sum, &err), VC_ERR_NOT_FOUND);
    uint8_t other[32] = {9};
    c.keyspace_id = other;
    c.tip = list[1].tip;
    cr_assert_eq(vcache_delete(sx.client, &c, &sum, &err), VC_ERR_NOT_FOUND); /* not in that keyspace */
    sx_end(&sx);
}

/* Who makes another copy of what is stored knows its tip alone. */
Test(service_ops, a_chain_is_looked_up_by_its_tip_and_nobody_counts_it)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 6);
    vcache_error_t err = {0};
    vcache_prefix_t p;
    vcache_lookup_info_t info;
    vcache_lease_t *lease = NULL;
    uint32_t n = 0;
    uint8_t other[32] = {9};
    cr_assert_eq(vcache_prefixes(sx.client, 1, 1, &p, &n, &err), VC_OK);
    double lookups = sx_stat(&sx, "lookups_full"), hits = sx_stat(&sx, "hit_blocks_full");
    cr_assert_eq(vcache_lookup_tip(sx.client, sx.keyspace, sx.keyspace_len, p.tip, sx.fids, 2, &info, &lease, &err),
                 VC_OK, "%s", err.msg);
    cr_assert_eq(info.n_blocks[0], 6);
    cr_assert_eq(info.n_blocks[1], 6);
    for (uint32_t column = 0; column < 2; column++) {
        sx_sink_t sink = {.fx = &sx.fx, .seed = 1, .fid = column};
        cr_assert_eq(vcache_fetch(lease, column, 0, 6, sx_sink_record, &sink, NULL, &err), VC_OK, "%s", err.msg);
        cr_assert_eq(sink.right, 6);
    }
    vcache_lease_release(lease);
    cr_assert_eq(sx_stat(&sx, "lookups_full"), lookups);
    cr_assert_eq(sx_stat(&sx, "hit_blocks_full"), hits);
    cr_assert_eq(vcache_prefixes(sx.client, 1, 1, &p, &n, &err), VC_OK);
    cr_assert_eq(p.hits, 0);
    /* A tip that is not there, and a chain with a block missing before it. */
    lease = NULL;
    cr_assert_eq(vcache_lookup_tip(sx.client, sx.keyspace, sx.keyspace_len, other, sx.fids, 2, &info, &lease, &err),
                 VC_OK);
    cr_assert_eq(info.n_blocks[0] + info.n_blocks[1], 0);
    cr_assert_null(lease);
    uint32_t tokens[8 * FX_BLOCK_TOKENS];
    vcache_chain_t third = by_prompt(&sx, 1, 3, tokens);
    third.first_block = 2;
    third.fidelity = &sx.fids[0];
    cr_assert_eq(vcache_delete(sx.client, &third, NULL, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(vcache_lookup_tip(sx.client, sx.keyspace, sx.keyspace_len, p.tip, sx.fids, 2, &info, NULL, &err),
                 VC_OK);
    cr_assert_eq(info.n_blocks[0] + info.n_blocks[1], 0);
    sx_end(&sx);
}

Test(service_ops, delete_under_a_lease_lets_nobody_read_wrong_bytes)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 6);
    vcache_error_t err = {0};
    vcache_lease_t *lease = NULL;
    uint32_t tokens[6 * FX_BLOCK_TOKENS];
    sx_sink_t sink = {.fx = &sx.fx, .seed = 1};
    vcache_chain_t c = by_prompt(&sx, 1, 6, tokens);
    cr_assert_eq(sx_lookup(&sx, 1, 6, NULL, &lease, &err), VC_OK);
    cr_assert_eq(vcache_delete(sx.client, &c, NULL, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(vcache_fetch(lease, 0, 0, 6, sx_sink_record, &sink, NULL, &err), VC_ERR_NOT_FOUND);
    cr_assert_eq(sink.right + sink.wrong, 0);
    vcache_lease_release(lease);
    sx_register(&sx, 1, 6); /* and it may come back */
    cr_assert_eq(fx_readable(&sx.fx, 1, 6, 0), 6);
    sx_end(&sx);
}

static vcache_status_t none_stored(sx_t *sx, const vcache_chain_t *chain, vcache_error_t *err)
{
    return vcache_pin(sx->client, chain, NULL, err);
}

Test(service_ops, chains_are_checked_before_anything_is_done)
{
    sx_t sx;
    sx_start(&sx, 2);
    vcache_error_t err = {0};
    uint32_t tokens[2 * FX_BLOCK_TOKENS];
    uint8_t id[32] = {0};
    fx_tokens(7, 2, tokens);
    vcache_chain_t good = {.keyspace = sx.keyspace, .keyspace_len = sx.keyspace_len, .tokens = tokens, .n_tokens = 8};
    vcache_chain_t c = good;
    c.tip = id;
    cr_assert_eq(none_stored(&sx, &c, &err), VC_ERR_INVALID);
    c.keyspace_id = id;
    cr_assert_eq(none_stored(&sx, &c, &err), VC_ERR_INVALID);
    cr_assert_str_eq(err.msg, "a chain is named by its tip or by tokens, not by both");
    c = good;
    c.first_block = 2;
    cr_assert_eq(none_stored(&sx, &c, &err), VC_ERR_RANGE);
    c = good;
    c.n_tokens = 3; /* no full block */
    cr_assert_eq(none_stored(&sx, &c, &err), VC_ERR_RANGE);
    c = good;
    c.keyspace_len--;
    cr_assert_neq(none_stored(&sx, &c, &err), VC_OK);
    vcache_fidelity_t bad = {0, "", NULL};
    c = good;
    c.fidelity = &bad;
    cr_assert_eq(none_stored(&sx, &c, &err), VC_ERR_INVALID);
    sx_end(&sx);
}

/* ---- configuration ---- */

static void two_options(void *arg, vc_config_fn each, void *each_arg)
{
    (void)arg;
    each(each_arg, "capacity", "1073741824", "flag");
    each(each_arg, "listen", "127.0.0.1:0", "default");
}

static void with_options(sx_t *sx) { sx->opts.each_option = two_options; }

static void join_option(void *arg, const char *name, const char *value, const char *source)
{
    char *text = arg;
    size_t n = strlen(text);
    snprintf(text + n, 200 - n, "%s=%s(%s) ", name, value, source);
}

Test(service_ops, configuration_is_told_with_its_sources)
{
    sx_t sx;
    char text[200] = "";
    vcache_error_t err = {0};
    sx_start_with(&sx, 2, with_options);
    cr_assert_eq(vcache_config(sx.client, join_option, text, &err), VC_OK, "%s", err.msg);
    cr_assert_str_eq(text, "capacity=1073741824(flag) listen=127.0.0.1:0(default) ");
    sx_end(&sx);
}

Test(service_ops, server_without_a_table_says_so)
{
    sx_t sx;
    vcache_error_t err = {0};
    sx_start(&sx, 2);
    cr_assert_eq(vcache_config(sx.client, join_option, NULL, &err), VC_ERR_UNSUPPORTED);
    sx_end(&sx);
}

/* ---- statistics ---- */

Test(service_ops, hit_rates_of_windows_forget_with_the_clock)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 4);
    vcache_lease_t *lease = NULL;
    cr_assert_eq(sx_lookup(&sx, 1, 8, NULL, &lease, NULL), VC_OK);
    vcache_lease_release(lease);
    cr_assert_eq(sx_lookup(&sx, 1, 8, NULL, NULL, NULL), VC_OK); /* a probe counts nowhere */
    cr_assert_eq(sx_stat(&sx, "lookup_blocks_1m_full"), 8);
    cr_assert_eq(sx_stat(&sx, "hit_rate_blocks_1m_full"), 0.5);
    cr_assert_eq(sx_stat(&sx, "hit_rate_tokens_1h_compressed"), 0.5);
    vc_fake_clock_advance(&sx.fx.clock, 61000000);
    cr_assert_eq(sx_lookup(&sx, 1, 4, NULL, &lease, NULL), VC_OK);
    vcache_lease_release(lease);
    cr_assert_eq(sx_stat(&sx, "hit_rate_blocks_1m_full"), 1);
    cr_assert_float_eq(sx_stat(&sx, "hit_rate_blocks_10m_full"), 8.0 / 12, 1e-12);
    cr_assert_float_eq(sx_stat(&sx, "hit_rate_blocks_full"), 8.0 / 12, 1e-12); /* the total, from the store */
    vc_fake_clock_advance(&sx.fx.clock, 3700u * 1000000ull);
    cr_assert_eq(sx_stat(&sx, "lookup_blocks_1h_full"), 0);
    sx_end(&sx);
}

static void one_upload(sx_t *sx) { sx->fx.opts.max_uploads = 1; }

Test(service_ops, times_and_refusals_are_counted)
{
    sx_t sx;
    vcache_error_t err = {0};
    vcache_lease_t *lease = NULL;
    sx_sink_t sink = {.fx = &sx.fx, .seed = 1};
    sx_source_t source = {0}, damaged = {.damage_at = 1};
    cs_upload_info_t info;
    uint8_t missing[2];
    sx_start_with(&sx, 2, one_upload);
    sx_register(&sx, 1, 4);
    cr_assert_eq(sx_lookup(&sx, 1, 4, NULL, &lease, &err), VC_OK);
    cr_assert_eq(vcache_fetch(lease, 0, 0, 4, sx_sink_record, &sink, NULL, &err), VC_OK);
    vcache_lease_release(lease);
    cr_assert_eq(sx_stat(&sx, "time_lookup_count"), 1);
    cr_assert_eq(sx_stat(&sx, "time_put_count"), 8);
    cr_assert_eq(sx_stat(&sx, "time_commit_count"), 1);
    cr_assert_eq(sx_stat(&sx, "time_fetch_first_count"), 1);
    cr_assert_eq(sx_register_by(&sx, sx.client, 2, 0, 1, &damaged, NULL, &err), VC_ERR_CORRUPT);
    cr_assert_eq(sx_stat(&sx, "refused_invalid"), 1);
    cr_assert(sx_wait_zero(&sx, "uploads_open"));
    cr_assert_eq(fx_begin(&sx.fx, 3, 0, 1, FX_FULL, &info, missing), VC_OK);
    cr_assert_eq(sx_register_by(&sx, sx.client, 4, 0, 1, &source, NULL, &err), VC_ERR_BUSY);
    cr_assert_eq(sx_stat(&sx, "refused_limit"), 1);
    sx_end(&sx);
}
