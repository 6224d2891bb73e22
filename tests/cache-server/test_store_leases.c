/* Leases: what was looked up stays readable until it is released or its time is over, and never longer. */
#include "support/vc_test.h"

#include "store_fixture.h"

/* Writes until the store has evicted n segments more. */
static void storm(fx_t *fx, uint64_t n)
{
    uint64_t until = fx_stats(fx).evictions + n;
    for (uint32_t seed = 1000; fx_stats(fx).evictions < until; seed++)
        cr_assert_eq(fx_register(fx, seed, 0, 30, FX_FULL), VC_OK);
}

Test(store_leases, leased_objects_survive_an_eviction_storm_and_go_after_release)
{
    fx_t fx;
    cs_lookup_result_t r;
    cs_pin_t pin;
    fx_init(&fx, 16);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 10, FX_FULL), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 10, true, &r), VC_OK);
    cr_assert_eq(r.n_blocks[0], 10);
    cr_assert_neq(r.lease_id, 0);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, r.n_bytes[0]);
    storm(&fx, 30);
    cs_buf_t *buf = cs_bufpool_get(fx.pool), *want = cs_bufpool_get(fx.pool);
    for (uint32_t b = 0; b < 10; b++) {
        cr_assert_eq(cs_store_pin_leased(fx.store, cs_store_boot_id(fx.store), r.lease_id, &r.token, 0, b, &pin),
                     VC_OK);
        cr_assert_eq(fx_read_pin(&fx, &pin, buf), VC_OK);
        fx_record(&fx, 1, b, 0, want->data, want->cap);
        cr_assert_arr_eq(buf->data, want->data, pin.bytes);
        cs_store_unpin(fx.store, &pin);
    }
    cs_bufpool_put(fx.pool, buf);
    cs_bufpool_put(fx.pool, want);
    cr_assert_eq(cs_store_lease_release(fx.store, cs_store_boot_id(fx.store), r.lease_id, &r.token), VC_OK);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, 0);
    cr_assert_eq(fx_stats(&fx).leases_open, 0);
    storm(&fx, 60);
    cr_assert_eq(fx_lookup(&fx, 1, 10, true, &r), VC_OK);
    cr_assert_eq(r.n_blocks[0], 0);
    cr_assert_eq(r.miss[0], CS_MISS_EVICTED);
    cr_assert_eq(fx_stats(&fx).miss_evicted, 1);
    fx_fini(&fx);
}

Test(store_leases, a_lease_ends_at_its_time_and_a_renewal_moves_it)
{
    fx_t fx;
    cs_lookup_result_t r;
    cs_pin_t pin;
    uint64_t expires = 0;
    fx_init(&fx, 6);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 3, FX_FULL), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 3, true, &r), VC_OK);
    uint64_t boot = cs_store_boot_id(fx.store), now = vc_clock_now_us(&fx.clock.clock);
    cr_assert_eq(r.lease_expires_us, now + (uint64_t)fx.opts.lease_ms * 1000);
    vc_fake_clock_advance(&fx.clock, r.lease_expires_us - now - 1);
    cs_store_tick(fx.store);
    cr_assert_eq(cs_store_pin_leased(fx.store, boot, r.lease_id, &r.token, 0, 0, &pin), VC_OK);
    cr_assert_eq(cs_store_lease_renew(fx.store, boot, r.lease_id, &r.token, 5000, &expires), VC_OK);
    cr_assert_eq(expires, r.lease_expires_us - 1 + 5000000);
    vc_fake_clock_advance(&fx.clock, 5000000);
    cs_pin_t second;
    cr_assert_eq(cs_store_pin_leased(fx.store, boot, r.lease_id, &r.token, 0, 0, &second), VC_ERR_STALE);
    cr_assert_eq(cs_store_lease_renew(fx.store, boot, r.lease_id, &r.token, 5000, &expires), VC_ERR_STALE);
    cs_store_tick(fx.store);
    cr_assert_eq(fx_stats(&fx).leases_open, 0);
    cr_assert_eq(fx_stats(&fx).leases_expired, 1);
    cr_assert_eq(fx_stats(&fx).stale_leases, 2);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, pin.bytes); /* the pin outlives the lease */
    cs_store_unpin(fx.store, &pin);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, 0);
    fx_fini(&fx);
}

Test(store_leases, a_lease_from_before_a_restart_is_stale)
{
    fx_t fx;
    cs_lookup_result_t r, again;
    cs_pin_t pin;
    fx_init(&fx, 6);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 3, FX_FULL), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 3, true, &r), VC_OK);
    uint64_t boot = cs_store_boot_id(fx.store);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 3, true, &again), VC_OK);
    cr_assert_eq(again.lease_id, r.lease_id); /* the same number; the boot id tells them apart */
    cr_assert_eq(cs_store_pin_leased(fx.store, boot, r.lease_id, &r.token, 0, 0, &pin), VC_ERR_STALE);
    cr_assert_eq(cs_store_lease_release(fx.store, boot, r.lease_id, &r.token), VC_ERR_STALE);
    cr_assert_eq(fx_stats(&fx).leases_open, 1);
    fx_fini(&fx);
}

Test(store_leases, a_wrong_token_or_place_is_refused)
{
    fx_t fx;
    cs_lookup_result_t r;
    cs_pin_t pin;
    fx_init(&fx, 6);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 3, FX_FULL), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 5, true, &r), VC_OK);
    uint64_t boot = cs_store_boot_id(fx.store);
    for (int i = 0; i < 16; i++) {
        cs_token_t wrong = r.token;
        wrong.b[i] ^= 0x80;
        cr_assert_eq(cs_store_pin_leased(fx.store, boot, r.lease_id, &wrong, 0, 0, &pin), VC_ERR_PERM);
        cr_assert_eq(cs_store_lease_release(fx.store, boot, r.lease_id, &wrong), VC_ERR_PERM);
    }
    cr_assert_eq(cs_store_pin_leased(fx.store, boot, r.lease_id, &r.token, 0, 3, &pin), VC_ERR_RANGE);
    cr_assert_eq(cs_store_pin_leased(fx.store, boot, r.lease_id, &r.token, 1, 0, &pin), VC_ERR_RANGE);
    cr_assert_eq(cs_store_pin_leased(fx.store, boot, r.lease_id, &r.token, 200, 0, &pin), VC_ERR_RANGE);
    cr_assert_eq(cs_store_pin_leased(fx.store, boot, r.lease_id + 1, &r.token, 0, 0, &pin), VC_ERR_STALE);
    cr_assert_eq(cs_store_pin_leased(fx.store, boot, 0, &r.token, 0, 0, &pin), VC_ERR_STALE);
    cr_assert_eq(cs_store_pin_leased(fx.store, boot, UINT64_MAX, &r.token, 0, 0, &pin), VC_ERR_STALE);
    fx_fini(&fx);
}

Test(store_leases, leases_are_bounded_and_a_miss_takes_none)
{
    fx_t fx;
    cs_lookup_result_t r;
    fx_init(&fx, 6);
    fx.opts.max_leases = 3;
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 3, FX_FULL), VC_OK);
    for (int i = 0; i < 10; i++)
        cr_assert_eq(fx_lookup(&fx, 7, 3, true, &r), VC_OK); /* misses */
    for (int i = 0; i < 3; i++)
        cr_assert_eq(fx_lookup(&fx, 1, 3, true, &r), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 3, false, &r), VC_OK); /* none wanted */
    cs_store_stats_t before = fx_stats(&fx);
    cr_assert_eq(fx_lookup(&fx, 1, 3, true, &r), VC_ERR_BUSY);
    cr_assert_eq(fx_stats(&fx).full.lookups, before.full.lookups); /* refused, not counted */
    vc_fake_clock_advance(&fx.clock, (uint64_t)fx.opts.lease_ms * 1000);
    cs_store_tick(fx.store);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, 0);
    cr_assert_eq(fx_lookup(&fx, 1, 3, true, &r), VC_OK);
    fx_fini(&fx);
}

/* A transfer over a slow link takes longer than a lease lasts; whoever still reads must not lose it in the middle. */
Test(store_leases, a_lease_in_use_lives_on_and_an_idle_one_does_not)
{
    fx_t fx;
    cs_lookup_result_t r;
    cs_pin_t pin;
    fx_init(&fx, 6);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 3, FX_FULL), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 3, true, &r), VC_OK);
    uint64_t boot = cs_store_boot_id(fx.store), two_thirds_us = (uint64_t)fx.opts.lease_ms * 1000 / 3 * 2;
    for (uint32_t b = 0; b < 3; b++) {
        vc_fake_clock_advance(&fx.clock, two_thirds_us);
        cs_store_tick(fx.store);
        cr_assert_eq(cs_store_pin_leased(fx.store, boot, r.lease_id, &r.token, 0, b, &pin), VC_OK);
        cs_store_unpin(fx.store, &pin);
    }
    vc_fake_clock_advance(&fx.clock, 2 * two_thirds_us);
    cr_assert_eq(cs_store_pin_leased(fx.store, boot, r.lease_id, &r.token, 0, 0, &pin), VC_ERR_STALE);
    fx_fini(&fx);
}

Test(store_leases, a_store_full_of_leased_objects_refuses_puts_and_recovers)
{
    fx_t fx;
    cs_lookup_result_t r;
    uint32_t n = 0;
    fx_init(&fx, 16);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    vc_status_t status = VC_OK;
    for (; n < 1000 && (status = fx_register(&fx, n, 0, 30, FX_FULL)) == VC_OK; n++)
        cr_assert_eq(fx_lookup(&fx, n, 30, true, &r), VC_OK);
    cr_assert_eq(status, VC_ERR_NOSPACE);
    cr_assert_gt(fx_stats(&fx).put_rejected, 0);
    for (uint32_t seed = 0; seed < n; seed++)
        cr_assert_eq(fx_readable(&fx, seed, 30, 0), 30);
    vc_fake_clock_advance(&fx.clock, (uint64_t)fx.opts.lease_ms * 1000);
    cs_store_tick(fx.store);
    cr_assert_eq(fx_register(&fx, 5000, 0, 30, FX_FULL), VC_OK);
    fx_fini(&fx);
}

Test(store_leases, report_tells_what_is_leased_by_age)
{
    fx_t fx;
    cs_lookup_result_t r;
    cs_lease_report_t report;
    fx_init(&fx, 2);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 4, FX_FULL), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 4, true, &r), VC_OK);
    vc_fake_clock_advance(&fx.clock, 12000000);
    cr_assert_eq(fx_lookup(&fx, 1, 2, true, &r), VC_OK);
    vc_fake_clock_advance(&fx.clock, 500000);
    cs_store_lease_report(fx.store, &report);
    cr_assert_eq(report.n_leases, 2);
    cr_assert_eq(report.n_bytes, 6 * 3 * 4096);
    cr_assert_eq(report.oldest_ms, 12500);
    cr_assert_eq(report.ages[0].below_s, 1);
    cr_assert_eq(report.ages[0].n_leases, 1);
    cr_assert_eq(report.ages[0].n_bytes, 2 * 3 * 4096);
    cr_assert_eq(report.ages[2].below_s, 60);
    cr_assert_eq(report.ages[2].n_leases, 1);
    vc_fake_clock_advance(&fx.clock, 29000000); /* the older one has expired, whether or not a tick saw it */
    cs_store_lease_report(fx.store, &report);
    cr_assert_eq(report.n_leases, 1);
    fx_fini(&fx);
}

Test(store_leases, refusals_are_counted_by_reason)
{
    fx_t fx;
    cs_refusals_t r;
    fx_init(&fx, 2);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    const vc_status_t all[] = {VC_OK,          VC_ERR_EXISTS,   VC_ERR_CANCELLED, VC_ERR_NOSPACE, VC_ERR_READONLY,
                               VC_ERR_BUSY,    VC_ERR_STALE,    VC_ERR_PERM,      VC_ERR_IO,      VC_ERR_NOMEM,
                               VC_ERR_CORRUPT, VC_ERR_MISMATCH, VC_ERR_INVALID};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++)
        cs_store_count_refusal(fx.store, all[i]);
    cs_store_get_refusals(fx.store, &r);
    cr_assert_eq(r.space, 1);
    cr_assert_eq(r.readonly, 1);
    cr_assert_eq(r.limit, 1);
    cr_assert_eq(r.expired, 2);
    cr_assert_eq(r.disk, 2);
    cr_assert_eq(r.invalid, 3);
    fx_fini(&fx);
}

Test(store_leases, prefixes_are_listed_in_order_up_to_the_limit)
{
    enum { MANY = 20 };
    fx_t fx;
    cs_lookup_result_t r;
    cs_prefix_info_t list[MANY + 1];
    uint32_t n = 0;
    fx_init(&fx, 2);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    for (uint32_t i = 0; i < MANY; i++) { /* sizes and hits in orders of their own */
        cr_assert_eq(fx_register(&fx, i, 0, 1 + i * 7 % MANY, FX_FULL), VC_OK);
        for (uint32_t k = 0; k < i * 13 % MANY; k++) {
            cr_assert_eq(fx_lookup(&fx, i, 1, true, &r), VC_OK);
            cr_assert_eq(cs_store_lease_release(fx.store, cs_store_boot_id(fx.store), r.lease_id, &r.token), VC_OK);
        }
    }
    for (uint32_t limit = 0; limit <= MANY + 1; limit++) {
        cr_assert_eq(cs_store_list_prefixes(fx.store, true, limit, list, &n), VC_OK);
        cr_assert_eq(n, VC_MIN(limit, MANY));
        for (uint32_t i = 0; i < n; i++)
            cr_assert_eq(list[i].n_blocks, MANY - i);
        cr_assert_eq(cs_store_list_prefixes(fx.store, false, limit, list, &n), VC_OK);
        for (uint32_t i = 0; i < n; i++)
            cr_assert_eq(list[i].hits, MANY - 1 - i);
    }
    fx_fini(&fx);
}
