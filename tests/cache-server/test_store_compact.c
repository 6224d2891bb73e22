/*
 * Cleaning: what is used stays when its neighbours go, wherever it has to move for that; leases and readers see nothing
 * of it, damage is not copied, and the extra writes are bounded. A record is 124 KiB, a segment 4 MiB.
 */
#include "support/vc_test.h"

#include "fault.h"
#include "store_fixture.h"

enum { HOT = 40 }; /* chains of one block, each with seven cold blocks behind it in the segment */

static cs_store_stats_t stats_of(fx_t *fx)
{
    cs_store_stats_t stats;
    cs_store_get_stats(fx->store, &stats);
    return stats;
}

static void start(fx_t *fx)
{
    fx_init(fx, 30);
    fx->opts.capacity_bytes = (uint64_t)112 << 20; /* 19 segments */
    cr_assert_eq(fx_open(fx, CS_IO_AUTO, NULL), VC_OK);
}

static void release(fx_t *fx, const cs_lookup_result_t *r)
{
    cr_assert_eq(cs_store_lease_release(fx->store, cs_store_boot_id(fx->store), r->lease_id, &r->token), VC_OK);
}

static void use_hot(fx_t *fx)
{
    for (uint32_t i = 0; i < HOT; i++) {
        cs_lookup_result_t r;
        cr_assert_eq(fx_lookup(fx, 1 + i, 1, true, &r), VC_OK);
        if (r.n_blocks[0] > 0)
            release(fx, &r);
    }
}

static void store_hot(fx_t *fx)
{
    for (uint32_t i = 0; i < HOT; i++) {
        cr_assert_eq(fx_register(fx, 1 + i, 0, 1, FX_FULL), VC_OK);
        cr_assert_eq(fx_register(fx, 1000 + i, 0, 7, FX_FULL), VC_OK);
    }
    for (int i = 0; i < 4; i++)
        use_hot(fx);
}

/* Cold chains, until the hot ones have been moved. */
static void flood(fx_t *fx, uint64_t moved_bytes)
{
    for (uint32_t seed = 2000; stats_of(fx).moved_bytes < moved_bytes; seed++) {
        cr_assert_lt(seed, 4000);
        cr_assert_eq(fx_register(fx, seed, 0, 8, FX_FULL), VC_OK);
        if (seed % 8 == 0)
            use_hot(fx);
    }
}

static uint32_t n_hot_right(fx_t *fx)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < HOT; i++) {
        int right = fx_readable(fx, 1 + i, 1, 0);
        cr_assert_geq(right, 0, "wrong bytes");
        n += (uint32_t)right;
    }
    return n;
}

Test(store_compact, what_is_used_outlives_its_segment_and_is_right_after_a_restart)
{
    fx_t fx;
    start(&fx);
    store_hot(&fx);
    flood(&fx, HOT * 124 * 1024);
    cr_assert_eq(n_hot_right(&fx), HOT);
    cs_store_stats_t stats = stats_of(&fx);
    cr_assert_gt(stats.compactions, 0);
    cr_assert_leq(stats.write_amplification, 2.0);
    cr_assert_gt(stats.write_amplification, 1.0);
    cr_assert_eq(stats.put_rejected, 0);
    cr_assert_eq(stats.corrupt_disk, 0);
    cr_assert_eq(stats.pinned_bytes, 0);
    cr_assert_leq(fx_du(&fx), fx.opts.capacity_bytes);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(n_hot_right(&fx), HOT);
    cr_assert_eq(stats_of(&fx).corrupt_disk, 0);
    fx_fini(&fx);
}

Test(store_compact, a_lease_follows_what_moves)
{
    fx_t fx;
    cs_pin_t before, after;
    cs_lookup_result_t r;
    start(&fx);
    store_hot(&fx);
    cr_assert_eq(fx_lookup(&fx, 1, 1, true, &r), VC_OK);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &before), VC_OK);
    cs_store_unpin(fx.store, &before);
    flood(&fx, HOT * 124 * 1024);
    cr_assert_eq(cs_store_pin_leased(fx.store, cs_store_boot_id(fx.store), r.lease_id, &r.token, 0, 0, &after), VC_OK);
    cr_assert(after.segment != before.segment || after.offset != before.offset);
    cs_store_unpin(fx.store, &after);
    cr_assert_eq(fx_read(&fx, 1, 0, 0), VC_OK);
    cr_assert_gt(stats_of(&fx).pinned_bytes, 0);
    release(&fx, &r);
    cr_assert_eq(stats_of(&fx).pinned_bytes, 0);
    fx_fini(&fx);
}

Test(store_compact, a_reader_keeps_the_old_place_until_it_is_done)
{
    fx_t fx;
    cs_pin_t old, now;
    start(&fx);
    store_hot(&fx);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &old), VC_OK);
    flood(&fx, 2 * HOT * 124 * 1024);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &now), VC_OK);
    cr_assert(now.segment != old.segment || now.offset != old.offset);
    cs_store_unpin(fx.store, &now);
    uint8_t *want = vc_alloc_aligned(4096, old.bytes);
    cs_buf_t *buf = cs_bufpool_wait(fx.pool, 60000);
    cr_assert_eq(fx_record(&fx, 1, 0, 0, want, old.bytes), old.bytes);
    cr_assert_eq(fx_read_pin(&fx, &old, buf), VC_OK);
    cr_assert_eq(memcmp(buf->data, want, old.bytes), 0);
    cs_bufpool_put(fx.pool, buf);
    vc_free(want);
    cs_store_unpin(fx.store, &old);
    flood(&fx, 3 * HOT * 124 * 1024); /* the segment comes back */
    cr_assert_eq(n_hot_right(&fx), HOT);
    fx_fini(&fx);
}

Test(store_compact, a_damaged_record_is_dropped_and_counted_not_copied)
{
    fx_t fx;
    cs_pin_t pin;
    cs_lookup_result_t r;
    start(&fx);
    store_hot(&fx);
    cr_assert_eq(fx_pin(&fx, 5, 0, 0, &pin), VC_OK);
    cs_store_unpin(fx.store, &pin);
    fx_flip_byte(&fx, &pin, pin.bytes / 2);
    flood(&fx, HOT * 124 * 1024);
    cr_assert_eq(stats_of(&fx).corrupt_disk, 1);
    cr_assert_eq(fx_lookup(&fx, 5, 1, false, &r), VC_OK);
    cr_assert_eq(r.n_blocks[0], 0);
    cr_assert_eq(r.miss[0], CS_MISS_CORRUPT);
    cr_assert_eq(n_hot_right(&fx), HOT - 1);
    fx_fini(&fx);
}

/* Store, evict, store again: what was just acknowledged is there, however full the store is. */
Test(store_compact, what_was_just_committed_is_not_the_next_to_go)
{
    fx_t fx;
    start(&fx);
    for (uint32_t seed = 0; seed < 150; seed++) {
        cr_assert_eq(fx_register(&fx, seed, 0, 8, FX_FULL), VC_OK);
        cr_assert_eq(fx_readable(&fx, seed, 8, 0), 8, "seed %u", seed);
        if (seed > 0)
            cr_assert_eq(fx_readable(&fx, seed - 1, 8, 0), 8, "seed %u", seed);
    }
    cr_assert_gt(stats_of(&fx).full.evicted_objects, 0);
    fx_fini(&fx);
}

/* A server that comes back with less than it had, and still counts as full. */
Test(store_compact, a_store_that_lost_its_catalog_has_room)
{
    fx_t fx;
    char path[512];
    start(&fx);
    for (uint32_t seed = 0; seed < 100; seed++)
        cr_assert_eq(fx_register(&fx, seed, 0, 8, FX_FULL), VC_OK);
    fx_close(&fx);
    snprintf(path, sizeof(path), "%s/catalog", fx.dir);
    nftw(path, fx_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    for (uint32_t seed = 0; seed < 200; seed++)
        cr_assert_eq(fx_register(&fx, seed, 0, 8, FX_FULL), VC_OK);
    cr_assert_eq(stats_of(&fx).put_rejected, 0);
    cr_assert_geq(stats_of(&fx).objects, 400);
    cr_assert_eq(fx_readable(&fx, 199, 8, 0), 8);
    cr_assert_leq(fx_du(&fx), fx.opts.capacity_bytes);
    fx_fini(&fx);
}

#ifdef VC_FAULTS
/* Without copies segments are emptied instead; when the disk takes them again, survivors move again. */
static void copies_fail(const char *fault)
{
    fx_t fx;
    start(&fx);
    store_hot(&fx);
    cr_assert_eq(cs_fault_arm(fault), VC_OK);
    for (uint32_t seed = 5000; stats_of(&fx).evictions < 12; seed++) {
        cr_assert_lt(seed, 6000);
        cr_assert_eq(fx_register(&fx, seed, 0, 8, FX_FULL), VC_OK);
        cr_assert_eq(fx_readable(&fx, seed, 8, 0), 8);
    }
    cr_assert_eq(stats_of(&fx).moved_bytes, 0);
    cr_assert_eq(stats_of(&fx).corrupt_disk, 0);
    cr_assert_eq(cs_fault_arm(NULL), VC_OK);
    (void)n_hot_right(&fx); /* whatever is left is right */
    store_hot(&fx);
    flood(&fx, HOT * 124 * 1024);
    uint32_t n = n_hot_right(&fx);
    cr_assert_geq(n, HOT / 2);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(n_hot_right(&fx), n);
    fx_fini(&fx);
}

Test(store_compact, copies_that_cannot_be_written_lose_nothing_but_objects_that_may_go)
{
    copies_fail("compact.write:1+:eio");
}

Test(store_compact, copies_that_cannot_be_synced_are_not_relied_on) { copies_fail("compact.sync:1+:eio"); }

Test(store_compact, a_batch_that_fails_leaves_what_moves_readable)
{
    fx_t fx;
    start(&fx);
    store_hot(&fx);
    flood(&fx, 8 * 124 * 1024);
    cr_assert_eq(cs_fault_arm("catalog.write:1:eio"), VC_OK);
    for (uint32_t seed = 7000; seed < 7040; seed++)
        (void)fx_register(&fx, seed, 0, 8, FX_FULL); /* refused until the catalog was opened again */
    cr_assert_eq(cs_fault_arm(NULL), VC_OK);
    cs_store_tick(fx.store);
    uint32_t left = n_hot_right(&fx);
    vc_status_t status = VC_ERR_INTERNAL;
    for (int i = 0; i < 1000000 && status != VC_OK; i++) { /* until it was opened again */
        cs_store_tick(fx.store);
        status = fx_register(&fx, 7050, 0, 8, FX_FULL);
    }
    cr_assert_eq(status, VC_OK, "%s", vc_status_name(status));
    for (uint32_t seed = 7100; seed < 7300; seed++) {
        cr_assert_eq(fx_register(&fx, seed, 0, 8, FX_FULL), VC_OK);
        if (seed % 8 == 0)
            use_hot(&fx);
    }
    cr_assert_geq(n_hot_right(&fx), left / 2);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    (void)n_hot_right(&fx);
    cr_assert_eq(stats_of(&fx).corrupt_disk, 0);
    fx_fini(&fx);
}
#endif
