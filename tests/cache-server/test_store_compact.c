/*
 * Cleaning: what is used stays when its neighbours go, wherever it has to move for that; leases and readers see nothing
 * of it, damage is not copied, and the extra writes are bounded. A record is 124 KiB, a segment 4 MiB.
 */
#include "support/vc_test.h"

#include "catalog.h"
#include "fault.h"
#include "store_fixture.h"

enum { HOT = 40 }; /* chains of one block, each with seven cold blocks behind it in the segment */

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
    for (uint32_t seed = 2000; fx_stats(fx).moved_bytes < moved_bytes; seed++) {
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
    cs_store_stats_t stats = fx_stats(&fx);
    cr_assert_gt(stats.compactions, 0);
    cr_assert_leq(stats.write_amplification, 2.0);
    cr_assert_gt(stats.write_amplification, 1.0);
    cr_assert_eq(stats.put_rejected, 0);
    cr_assert_eq(stats.corrupt_disk, 0);
    cr_assert_eq(stats.pinned_bytes, 0);
    cr_assert_leq(fx_du(&fx), fx.opts.capacity_bytes);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(n_hot_right(&fx), HOT);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 0);
    fx_fini(&fx);
}

static void see_nothing(void *arg, const vc_digest_t *id, const vc_keyspace_t *ks) { (void)arg, (void)id, (void)ks; }
static void see_no_prefix(void *arg, const cs_prefix_row_t *row) { (void)arg, (void)row; }

static void see_segment(void *arg, const cs_segment_row_t *row)
{
    cs_segment_row_t *rows = arg;
    cr_assert_lt(row->number, 64);
    rows[row->number] = *row;
}

typedef struct hot_rows {
    cs_segment_row_t segments[64]; /* first: the rows before */
    vc_digest_t hashes[HOT];
    uint32_t n_moved;
} hot_rows_t;

static void see_object(void *arg, const cs_object_row_t *row)
{
    hot_rows_t *hot = arg;
    for (uint32_t i = 0; i < HOT; i++) {
        if (memcmp(&hot->hashes[i], &row->key.hash, sizeof(row->key.hash)) != 0 || row->version == 1)
            continue;
        cr_assert(hot->segments[row->segment].is_survivors, "segment %u", row->segment);
        hot->n_moved++;
    }
}

/* A segment that is used again had objects of another class before. */
Test(store_compact, the_catalog_says_of_segments_that_survivors_lie_in_them)
{
    fx_t fx;
    cs_catalog_t *catalog;
    static hot_rows_t hot;
    start(&fx);
    store_hot(&fx);
    flood(&fx, 4 * HOT * 124 * 1024);
    for (uint32_t i = 0; i < HOT; i++)
        fx_hashes(&fx, 1 + i, 1, &hot.hashes[i]);
    fx_close(&fx);
    cs_catalog_visitor_t visitor = {
        .object = see_object, .segment = see_segment, .keyspace = see_nothing, .prefix = see_no_prefix, .arg = &hot};
    cr_assert_eq(cs_catalog_open(fx.dir, true, &catalog, NULL), VC_OK);
    cr_assert_eq(cs_catalog_scan(catalog, &visitor, NULL), VC_OK);
    cs_catalog_close(catalog);
    cr_assert_gt(hot.n_moved, 0);
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
    cr_assert_gt(fx_stats(&fx).pinned_bytes, 0);
    release(&fx, &r);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, 0);
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
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 1);
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
    cr_assert_gt(fx_stats(&fx).full.evicted_objects, 0);
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
    cr_assert_eq(fx_stats(&fx).put_rejected, 0);
    cr_assert_geq(fx_stats(&fx).objects, 400);
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
    for (uint32_t seed = 5000; fx_stats(&fx).evictions < 12; seed++) {
        cr_assert_lt(seed, 6000);
        cr_assert_eq(fx_register(&fx, seed, 0, 8, FX_FULL), VC_OK);
        cr_assert_eq(fx_readable(&fx, seed, 8, 0), 8);
    }
    cr_assert_eq(fx_stats(&fx).moved_bytes, 0);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 0);
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
    vc_status_t status = fx_tick_until(&fx, VC_OK, 7050, 8, FX_FULL); /* it was opened again */
    cr_assert_eq(status, VC_OK, "%s", vc_status_name(status));
    for (uint32_t seed = 7100; seed < 7300; seed++) {
        cr_assert_eq(fx_register(&fx, seed, 0, 8, FX_FULL), VC_OK);
        if (seed % 8 == 0)
            use_hot(&fx);
    }
    cr_assert_geq(n_hot_right(&fx), left / 2);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    (void)n_hot_right(&fx);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 0);
    fx_fini(&fx);
}

/* Which of two copies the catalog names is not known then: reading it again tells. */
Test(store_compact, a_start_that_cannot_write_what_it_moved_is_refused_and_the_next_one_has_all)
{
    fx_t fx;
    vc_err_t err = {0};
    start(&fx);
    store_hot(&fx);
    flood(&fx, HOT * 124 * 1024);
    fx_close(&fx);
    fx.opts.capacity_bytes = (uint64_t)84 << 20;
    cr_assert_eq(cs_fault_arm("catalog.write:2+:eio"), VC_OK); /* the first one counts the start */
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_ERR_IO, "%s", err.msg);
    cr_assert_not_null(strstr(err.msg, "cannot be written"), "%s", err.msg);
    cr_assert_eq(cs_fault_arm(NULL), VC_OK);
    fx.opts.capacity_bytes = (uint64_t)112 << 20;
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(n_hot_right(&fx), HOT);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 0);
    fx_fini(&fx);
}
#endif
