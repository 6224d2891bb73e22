/* Proves the control plane end to end in one process: registration, lookup, fetch, leases, statistics, restart. */
#include "service_fixture.h"

Test(service, registered_blocks_are_found_and_fetched_byte_for_byte)
{
    sx_t sx;
    sx_start(&sx, 3);
    sx_source_t source = {0};
    vcache_error_t err = {0};
    vcache_register_stats_t rs;
    cr_assert_eq(sx_register_by(&sx, sx.client, 1, 0, 20, &source, &rs, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(rs.n_stored, 40);
    cr_assert_eq(rs.n_present, 0);
    cr_assert_eq(rs.path, VCACHE_PATH_GRPC);
    cr_assert_eq(source.calls, 40);

    vcache_lookup_info_t info;
    vcache_lease_t *lease = NULL;
    cr_assert_eq(sx_lookup(&sx, 1, 25, &info, &lease, &err), VC_OK, "%s", err.msg);
    cr_assert_not_null(lease);
    cr_assert_eq(info.generation, 1);
    for (uint32_t f = 0; f < 2; f++) {
        cr_assert_eq(info.n_blocks[f], 20);
        cr_assert_str_eq(info.miss_reason[f], "absent");
        sx_sink_t sink = {.fx = &sx.fx, .seed = 1, .fid = f};
        vcache_fetch_stats_t fs;
        cr_assert_eq(vcache_fetch(lease, f, 0, 20, sx_sink_record, &sink, &fs, &err), VC_OK, "%s", err.msg);
        cr_assert_eq(sink.right, 20);
        cr_assert_eq(sink.wrong, 0);
        cr_assert_eq(fs.bytes, info.n_bytes[f]);
        cr_assert_eq(fs.path, VCACHE_PATH_GRPC);
        cr_assert_eq(fs.steps_down, 0);
    }
    sx_sink_t part = {.fx = &sx.fx, .seed = 1, .fid = 1};
    cr_assert_eq(vcache_fetch(lease, 1, 7, 5, sx_sink_record, &part, NULL, &err), VC_OK);
    cr_assert_eq(part.right, 5);
    vcache_lease_release(lease);
    cr_assert_eq(sx_stat(&sx, "leases_open"), 0);
    sx_end(&sx);
}

Test(service, second_registration_sends_only_what_is_missing)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 5);
    sx_source_t source = {0};
    vcache_register_stats_t rs;
    cr_assert_eq(sx_register_by(&sx, sx.client, 1, 0, 8, &source, &rs, NULL), VC_OK);
    cr_assert_eq(rs.n_present, 10);
    cr_assert_eq(rs.n_stored, 6);
    cr_assert_eq(source.calls, 6);
    source.calls = 0;
    cr_assert_eq(sx_register_by(&sx, sx.client, 1, 0, 8, &source, &rs, NULL), VC_OK);
    cr_assert_eq(rs.n_stored, 0);
    cr_assert_eq(source.calls, 0);
    sx_end(&sx);
}

Test(service, statistics_equal_what_was_asked_and_found)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 10);
    uint64_t hit = 0, asked = 0, bytes = 0;
    for (uint32_t n = 1; n <= 15; n++) {
        vcache_lookup_info_t info;
        vcache_lease_t *lease = NULL;
        cr_assert_eq(sx_lookup(&sx, 1, n, &info, &lease, NULL), VC_OK);
        vcache_lease_release(lease);
        cr_assert_eq(info.n_blocks[0], n < 10 ? n : 10);
        hit += info.n_blocks[0];
        asked += n;
        bytes += info.n_bytes[0];
    }
    cr_assert_eq(sx_stat(&sx, "lookups_full"), 15);
    cr_assert_eq(sx_stat(&sx, "lookup_blocks_full"), (double)asked);
    cr_assert_eq(sx_stat(&sx, "hit_blocks_full"), (double)hit);
    cr_assert_eq(sx_stat(&sx, "hit_tokens_full"), (double)hit * FX_BLOCK_TOKENS);
    cr_assert_eq(sx_stat(&sx, "hit_bytes_full"), (double)bytes);
    cr_assert_float_eq(sx_stat(&sx, "hit_rate_blocks_full"), (double)hit / (double)asked, 1e-12);
    cr_assert_eq(sx_stat(&sx, "objects_compressed"), 10);
    cr_assert_eq(sx_stat(&sx, "commits"), 1);
    cr_assert_eq(sx_stat(&sx, "leases_open"), 0); /* none was wanted */
    cr_assert_gt(sx_stat(&sx, "used_bytes"), 0);
    sx_end(&sx);
}

static void with_memory_tier(sx_t *sx) { sx->fx.ram_bytes = 4 << 20; }

Test(service, the_memory_tier_shows_in_the_statistics_and_serves_the_second_fetch)
{
    enum { N = 12 };
    sx_t sx;
    sx_start_with(&sx, 4, with_memory_tier);
    sx_register(&sx, 1, N);
    for (int round = 0; round < 2; round++) {
        vcache_lookup_info_t info;
        vcache_lease_t *lease = NULL;
        vcache_fetch_stats_t fetched;
        vcache_error_t err = {0};
        sx_sink_t sink = {.fx = &sx.fx, .seed = 1};
        cr_assert_eq(sx_lookup(&sx, 1, N, &info, &lease, &err), VC_OK, "%s", err.msg);
        cr_assert_eq(vcache_fetch(lease, 0, 0, N, sx_sink_record, &sink, &fetched, &err), VC_OK, "%s", err.msg);
        cr_assert(sink.right == N && sink.wrong == 0);
        vcache_lease_release(lease);
        cr_assert_eq(sx_stat(&sx, "ram_misses") + sx_stat(&sx, "read_ahead_records"), N); /* read once each */
        cr_assert_geq(sx_stat(&sx, "ram_hits"), N * round);
    }
    cr_assert_eq(sx_stat(&sx, "ram_capacity_bytes"), 4 << 20);
    cr_assert_eq(sx_stat(&sx, "ram_records"), N);
    cr_assert_eq(sx_stat(&sx, "ram_bytes"), N * (double)vc_kvrec_full_bytes(&sx.fx.ks.shape));
    cr_assert(sx_wait_zero(&sx, "read_views"));
    cr_assert(sx_wait_zero(&sx, "pinned_bytes"));
    sx_end(&sx);
}

Test(service, near_miss_names_the_keyspace_field)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 3);
    vc_keyspace_t other = sx.fx.ks;
    vcache_lookup_info_t info;
    vcache_lease_t *lease = NULL;
    snprintf(other.rope, sizeof(other.rope), "neox theta=500000 dims=128");
    cr_assert_eq(vc_keyspace_encode(&other, sx.keyspace, &sx.keyspace_len, NULL), VC_OK);
    cr_assert_eq(sx_lookup(&sx, 1, 3, &info, &lease, NULL), VC_OK);
    cr_assert_null(lease);
    cr_assert_eq(info.n_blocks[0], 0);
    cr_assert_str_eq(info.miss_reason[0], "keyspace:rope");
    sx_end(&sx);
}

Test(service, expired_and_released_leases_are_stale)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 3);
    vcache_error_t err = {0};
    vcache_lease_t *lease = NULL;
    sx_sink_t sink = {.fx = &sx.fx, .seed = 1};
    cr_assert_eq(sx_lookup(&sx, 1, 3, NULL, &lease, &err), VC_OK, "%s", err.msg);
    vc_fake_clock_advance(&sx.fx.clock, 20000000);
    cr_assert_eq(vcache_lease_renew(lease, &err), VC_OK, "%s", err.msg);
    vc_fake_clock_advance(&sx.fx.clock, 20000000);
    cr_assert_eq(vcache_fetch(lease, 0, 0, 3, sx_sink_record, &sink, NULL, &err), VC_OK, "%s", err.msg);
    vc_fake_clock_advance(&sx.fx.clock, 31000000);
    cr_assert_eq(vcache_fetch(lease, 0, 0, 3, sx_sink_record, &sink, NULL, &err), VC_ERR_STALE);
    cr_assert_not_null(strstr(err.msg, "lease"));
    cr_assert_eq(vcache_lease_renew(lease, &err), VC_ERR_STALE);
    cr_assert_eq(vcache_fetch(lease, 0, 1, 3, sx_sink_record, &sink, NULL, &err), VC_ERR_RANGE);
    cr_assert_eq(vcache_fetch(lease, 2, 0, 1, sx_sink_record, &sink, NULL, &err), VC_ERR_RANGE);
    vcache_lease_release(lease);
    sx_end(&sx);
}

Test(service, receiver_may_end_a_fetch)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 10);
    vcache_error_t err = {0};
    vcache_lease_t *lease = NULL;
    sx_sink_t sink = {.fx = &sx.fx, .seed = 1, .stop_at = 3};
    cr_assert_eq(sx_lookup(&sx, 1, 10, NULL, &lease, &err), VC_OK);
    cr_assert_eq(vcache_fetch(lease, 0, 0, 10, sx_sink_record, &sink, NULL, &err), VC_ERR_CANCELLED);
    cr_assert_eq(sink.right, 3);
    vcache_lease_release(lease);
    sx_end(&sx);
}

Test(service, failed_source_leaves_nothing_behind)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_source_t source = {.fail_at = 5};
    vcache_error_t err = {0};
    vcache_lookup_info_t info;
    cr_assert_eq(sx_register_by(&sx, sx.client, 1, 0, 8, &source, NULL, &err), VC_ERR_CANCELLED);
    cr_assert_eq(sx_lookup(&sx, 1, 8, &info, NULL, NULL), VC_OK);
    cr_assert_eq(info.n_blocks[0], 0);
    cr_assert(sx_wait_zero(&sx, "uploads_open"));
    cr_assert_eq(sx_stat(&sx, "aborts"), 1);
    sx_register(&sx, 1, 8);
    sx_end(&sx);
}

Test(service, damaged_record_is_refused_at_the_door)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_source_t source = {.damage_at = 3};
    vcache_error_t err = {0};
    cr_assert_eq(sx_register_by(&sx, sx.client, 1, 0, 4, &source, NULL, &err), VC_ERR_CORRUPT, "%s", err.msg);
    cr_assert_neq(err.msg[0], '\0');
    cr_assert_eq(sx_stat(&sx, "corrupt_wire"), 1);
    cr_assert_eq(sx_stat(&sx, "objects_full"), 0);
    sx_end(&sx);
}

Test(service, byte_flipped_on_disk_is_corrupt_counted_and_healed_by_registration)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 6);
    cs_pin_t pin;
    cr_assert_eq(fx_pin(&sx.fx, 1, 2, 0, &pin), VC_OK);
    fx_flip_byte(&sx.fx, &pin, 5000);
    cs_store_unpin(sx.fx.store, &pin);
    vcache_error_t err = {0};
    vcache_lease_t *lease = NULL;
    sx_sink_t sink = {.fx = &sx.fx, .seed = 1};
    cr_assert_eq(sx_lookup(&sx, 1, 6, NULL, &lease, &err), VC_OK);
    vcache_status_t st = vcache_fetch(lease, 0, 0, 6, sx_sink_record, &sink, NULL, &err);
    cr_assert(st == VC_ERR_CORRUPT || st == VC_ERR_NOT_FOUND, "%s", err.msg);
    cr_assert_eq(sink.right, 5); /* the others came */
    cr_assert_eq(sink.wrong, 0);
    vcache_lease_release(lease);
    cr_assert_eq(sx_stat(&sx, "corrupt_disk"), 1);
    vcache_lookup_info_t info;
    cr_assert_eq(sx_lookup(&sx, 1, 6, &info, NULL, &err), VC_OK);
    cr_assert_eq(info.n_blocks[0], 2);
    cr_assert_str_eq(info.miss_reason[0], "corrupt");
    sx_register(&sx, 1, 6);
    cr_assert_eq(sx_lookup(&sx, 1, 6, &info, NULL, &err), VC_OK);
    cr_assert_eq(info.n_blocks[0], 6);
    sx_end(&sx);
}

Test(service, restart_is_noticed_and_keeps_the_data)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 6);
    vcache_error_t err = {0};
    vcache_lookup_info_t before, after;
    vcache_lease_t *old = NULL, *lease = NULL;
    sx_sink_t sink = {.fx = &sx.fx, .seed = 1, .fid = 1};
    cr_assert_eq(sx_lookup(&sx, 1, 6, &before, &old, &err), VC_OK);
    sx_restart(&sx);
    cr_assert_eq(vcache_fetch(old, 1, 0, 6, sx_sink_record, &sink, NULL, &err), VC_ERR_STALE, "%s", err.msg);
    cr_assert_eq(sx_lookup(&sx, 1, 6, &after, &lease, &err), VC_OK, "%s", err.msg);
    cr_assert_neq(after.boot_id, before.boot_id);
    cr_assert_eq(after.generation, before.generation + 1);
    cr_assert_eq(vcache_fetch(lease, 1, 0, 6, sx_sink_record, &sink, NULL, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(sink.right, 6);
    vcache_lease_release(old);
    vcache_lease_release(lease);
    sx_end(&sx);
}

typedef struct {
    sx_t *sx;
    uint32_t seed;
    vcache_status_t status;
    vcache_error_t err;
} worker_t;

static void *register_and_fetch(void *arg)
{
    worker_t *w = arg;
    vcache_client_t *client = sx_connect(w->sx);
    sx_source_t source = {0};
    w->status = VC_OK;
    for (uint32_t round = 0; w->status == VC_OK && round < 3; round++) {
        uint32_t tokens[40 * FX_BLOCK_TOKENS], seed = w->seed + round * (w->seed != 7); /* both share seed 7 */
        vcache_lease_t *lease = NULL;
        sx_sink_t sink = {.fx = &w->sx->fx, .seed = seed};
        w->status = sx_register_by(w->sx, client, seed, 0, 40, &source, NULL, &w->err);
        fx_tokens(seed, 40, tokens);
        if (w->status == VC_OK)
            w->status = vcache_lookup(client, w->sx->keyspace, w->sx->keyspace_len, tokens, 40 * FX_BLOCK_TOKENS,
                                      w->sx->fids, 2, NULL, &lease, &w->err);
        if (w->status == VC_OK)
            w->status = vcache_fetch(lease, 0, 0, 40, sx_sink_record, &sink, NULL, &w->err);
        if (w->status == VC_OK && sink.right != 40)
            w->status = VC_ERR_CORRUPT;
        vcache_lease_release(lease);
    }
    vcache_disconnect(client);
    return NULL;
}

Test(service, clients_work_side_by_side)
{
    sx_t sx;
    sx_start(&sx, 2);
    worker_t w[4] = {
        {.sx = &sx, .seed = 100}, {.sx = &sx, .seed = 200}, {.sx = &sx, .seed = 7}, {.sx = &sx, .seed = 7}};
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&t[i], NULL, register_and_fetch, &w[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(w[i].status, VC_OK, "client %d: %s: %s", i, vcache_status_name(w[i].status), w[i].err.msg);
    cr_assert_eq(sx_stat(&sx, "objects_full"), 7 * 40);
    cr_assert_eq(sx_stat(&sx, "uploads_open"), 0);
    sx_end(&sx);
}

Test(service, prefixes_come_by_hits_and_by_bytes)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 3);
    sx_register(&sx, 2, 9);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(sx_lookup(&sx, 1, 3, NULL, NULL, NULL), VC_OK);
    vcache_prefix_t list[10];
    uint32_t n = 0;
    vcache_error_t err = {0};
    cr_assert_eq(vcache_prefixes(sx.client, 0, 10, list, &n, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(n, 2);
    cr_assert_eq(list[0].n_blocks, 3);
    cr_assert_eq(list[0].head_tokens[0], 1000003u);
    cr_assert_eq(memcmp(list[0].keyspace, sx.fx.ks_id.b, 32), 0);
    cr_assert_eq(vcache_prefixes(sx.client, 1, 1, list, &n, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(n, 1);
    cr_assert_eq(list[0].n_blocks, 9);
    cr_assert_eq(vcache_prefixes(sx.client, 1, 0, list, &n, &err), VC_ERR_RANGE);
    sx_end(&sx);
}

Test(service, health_says_no_while_draining)
{
    sx_t sx;
    sx_start(&sx, 2);
    vcache_error_t err = {0};
    cr_assert_eq(vcache_health(sx.client, &err), VC_OK, "%s", err.msg);
    cs_service_drain(sx.service, true);
    cr_assert_eq(vcache_health(sx.client, &err), VC_ERR_BUSY);
    sx_end(&sx);
}

Test(service, lost_server_is_unreachable_in_every_call)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 3);
    vcache_error_t err = {0};
    vcache_lease_t *lease = NULL;
    sx_sink_t sink = {.fx = &sx.fx, .seed = 1};
    sx_source_t source = {0};
    cr_assert_eq(sx_lookup(&sx, 1, 3, NULL, &lease, &err), VC_OK);
    cs_service_stop(sx.service, 100);
    sx.service = NULL;
    cr_assert_eq(sx_lookup(&sx, 1, 3, NULL, NULL, &err), VC_ERR_UNREACHABLE);
    cr_assert_eq(vcache_fetch(lease, 0, 0, 3, sx_sink_record, &sink, NULL, &err), VC_ERR_UNREACHABLE);
    cr_assert_eq(sx_register_by(&sx, sx.client, 2, 0, 3, &source, NULL, &err), VC_ERR_UNREACHABLE);
    cr_assert_eq(vcache_health(sx.client, &err), VC_ERR_UNREACHABLE);
    cr_assert_not_null(strstr(err.msg, sx.address), "%s", err.msg);
    vcache_lease_release(lease);
    sx_end(&sx);
}
