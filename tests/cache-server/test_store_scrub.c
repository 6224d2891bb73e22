/* The scrubber: finds damage that no reader has met, keeps to its rate, and is in nobody's way. */
#include "support/vc_test.h"

#include <sched.h>

#include "fault.h"
#include "store_fixture.h"
#include "store_int.h"
#include "store_scrub.h"

#define RECORD 16384u /* of full KV with three layers */
#define SECOND 1000000u

static cs_scrub_info_t info_of(fx_t *fx)
{
    cs_scrub_info_t info;
    cs_store_scrub_info(fx->store, &info);
    return info;
}

static void open_with(fx_t *fx, uint64_t rate)
{
    vc_err_t err = {0};
    fx_init(fx, 3);
    fx->opts.scrub_bytes = rate;
    cr_assert_eq(fx_open(fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
}

static void tick(fx_t *fx, uint64_t us)
{
    vc_fake_clock_advance(&fx->clock, us);
    cs_store_tick(fx->store);
}

/* Until the n-th pass has ended. */
static void run_pass(fx_t *fx, uint64_t n)
{
    for (int i = 0; i < 10000 && info_of(fx).passes < n; i++)
        tick(fx, SECOND);
    cr_assert_eq(info_of(fx).passes, n);
}

Test(store_scrub, a_pass_reads_every_record_at_its_rate)
{
    fx_t fx;
    open_with(&fx, 0);
    cr_assert_eq(fx_register(&fx, 1, 0, 50, FX_FULL), VC_OK);
    cr_assert_eq(cs_store_scrub_start(fx.store, 2 * RECORD, NULL), VC_OK);
    uint64_t seconds = 0;
    for (; info_of(&fx).running; seconds++) {
        tick(&fx, SECOND);
        cr_assert_leq(info_of(&fx).pass_bytes, (seconds + 2) * 2 * RECORD);
        cr_assert_lt(seconds, 100);
    }
    cs_scrub_info_t info = info_of(&fx);
    cr_assert_geq(seconds, 24);
    cr_assert_leq(seconds, 27);
    cr_assert_eq(info.passes, 1);
    cr_assert_eq(info.pass_objects, 50);
    cr_assert_eq(info.pass_objects_total, 50);
    cr_assert_eq(info.pass_bytes, 50 * RECORD);
    cr_assert_eq(info.pass_bytes_total, 50 * RECORD);
    cr_assert_eq(info.bytes, 50 * RECORD);
    cr_assert_eq(info.corrupt, 0);
    cr_assert_geq(info.last_pass_ms, 24000);
    cr_assert_eq(info.last_pass_s, vc_clock_wall_us(&fx.clock.clock) / SECOND);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, 0);
    fx_fini(&fx);
}

Test(store_scrub, damage_is_dropped_and_counted_before_a_reader_meets_it)
{
    fx_t fx;
    cs_pin_t pin;
    cs_lookup_result_t r;
    open_with(&fx, 0);
    cr_assert_eq(fx_register(&fx, 1, 0, 20, FX_BOTH), VC_OK);
    static const uint32_t where[][3] = {{3, 0, 5000}, {7, 1, 9000}, {7, 0, 113}, {15, 1, 20}}; /* block, column, byte */
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert_eq(fx_pin(&fx, 1, where[i][0], where[i][1], &pin), VC_OK);
        fx_flip_byte(&fx, &pin, where[i][2]);
        cs_store_unpin(fx.store, &pin);
    }
    cr_assert_eq(cs_store_scrub_start(fx.store, 0, NULL), VC_OK);
    run_pass(&fx, 1);
    cr_assert_eq(info_of(&fx).pass_corrupt, 4);
    cr_assert_eq(info_of(&fx).corrupt, 4);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 4);
    for (uint32_t i = 0; i < 4; i++)
        cr_assert_eq(fx_read(&fx, 1, where[i][0], where[i][1]), VC_ERR_NOT_FOUND);
    cr_assert_eq(fx_lookup(&fx, 1, 20, false, &r), VC_OK);
    cr_assert_eq(r.n_blocks[0], 3);
    cr_assert_eq(r.miss[0], CS_MISS_CORRUPT);
    cr_assert_eq(r.n_blocks[1], 7);
    cr_assert_eq(cs_store_scrub_start(fx.store, 0, NULL), VC_OK); /* what is left is sound */
    run_pass(&fx, 2);
    cr_assert_eq(info_of(&fx).pass_corrupt, 0);
    cr_assert_eq(info_of(&fx).pass_objects, 36);
    cr_assert_eq(fx_reopen(&fx), VC_OK); /* the drop is durable */
    cr_assert_eq(fx_read(&fx, 1, 3, 0), VC_ERR_NOT_FOUND);
    cr_assert_eq(fx_read(&fx, 1, 4, 0), VC_OK);
    fx_fini(&fx);
}

static cs_entry_t *copy_entries(fx_t *fx, uint32_t *n_p)
{
    cs_store_t *s = fx->store;
    cs_lock(s);
    *n_p = cs_index_limit(s->index);
    cs_entry_t *copy = malloc(*n_p * sizeof(*copy));
    for (uint32_t i = 0; i < *n_p; i++)
        copy[i] = *cs_index_entry(s->index, i);
    cs_unlock(s);
    return copy;
}

Test(store_scrub, leaves_no_mark_on_what_eviction_goes_by)
{
    fx_t fx;
    uint32_t n, n_after;
    open_with(&fx, 0);
    cr_assert_eq(fx_register(&fx, 1, 0, 30, FX_BOTH), VC_OK);
    cs_entry_t *before = copy_entries(&fx, &n);
    vc_fake_clock_advance(&fx.clock, 3600ull * SECOND);
    cr_assert_eq(cs_store_scrub_start(fx.store, 0, NULL), VC_OK);
    run_pass(&fx, 1);
    cs_entry_t *after = copy_entries(&fx, &n_after);
    cr_assert_eq(n, n_after);
    cr_assert_eq(memcmp(before, after, n * sizeof(*before)), 0);
    cr_assert_eq(fx_stats(&fx).full.read_bytes, 0);
    cr_assert_eq(fx_stats(&fx).full.hit_blocks, 0);
    free(before);
    free(after);
    fx_fini(&fx);
}

Test(store_scrub, objects_that_come_and_go_meanwhile_do_no_harm)
{
    fx_t fx;
    open_with(&fx, 0);
    for (uint32_t seed = 0; seed < 20; seed++)
        cr_assert_eq(fx_register(&fx, seed, 0, 60, FX_FULL), VC_OK);
    cr_assert_eq(cs_store_scrub_start(fx.store, 64 * RECORD, NULL), VC_OK);
    /* Far more than the capacity goes through while the pass is under way. */
    for (uint32_t seed = 100; seed < 200; seed++) {
        tick(&fx, SECOND / 4);
        cr_assert_eq(fx_register(&fx, seed, 0, 60, FX_FULL), VC_OK);
    }
    cr_assert_gt(fx_stats(&fx).full.evicted_objects, 1000);
    cr_assert_gt(fx_stats(&fx).evictions, 0); /* segments were emptied or cleaned under it */
    run_pass(&fx, 1);
    cr_assert_eq(info_of(&fx).corrupt, 0);
    cr_assert_eq(info_of(&fx).errors, 0);
    cr_assert_gt(info_of(&fx).pass_objects, 1000);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, 0);
    cr_assert_eq(fx_readable(&fx, 199, 60, 0), 60);
    fx_fini(&fx);
}

/* Cleaning moves survivors while the pass is under way: what moved is read in its new place or was read in its old
 * one, and neither is taken for damage. */
Test(store_scrub, objects_that_are_moved_meanwhile_are_not_taken_for_damage)
{
    fx_t fx;
    cs_lookup_result_t r;
    open_with(&fx, 0);
    cr_assert_eq(cs_store_scrub_start(fx.store, 32 * RECORD, NULL), VC_OK);
    for (uint32_t round = 0; round < 200 && fx_stats(&fx).moved_bytes == 0; round++) {
        /* Some are asked for again and again, so that their segments hold survivors among what is given up. */
        for (uint32_t seed = 0; seed < 8; seed++) {
            cr_assert_eq(fx_register(&fx, seed, 0, 4, FX_FULL), VC_OK);
            cr_assert_eq(fx_register(&fx, 1000 + round * 8 + seed, 0, 40, FX_FULL), VC_OK);
            cr_assert_eq(fx_lookup(&fx, seed, 4, true, &r), VC_OK);
            if (r.lease_id)
                (void)cs_store_lease_release(fx.store, cs_store_boot_id(fx.store), r.lease_id, &r.token);
        }
        tick(&fx, SECOND);
    }
    cr_assert_gt(fx_stats(&fx).moved_bytes, 0);
    run_pass(&fx, 1);
    cr_assert_eq(cs_store_scrub_start(fx.store, 0, NULL), VC_OK);
    run_pass(&fx, 2);
    cr_assert_eq(info_of(&fx).pass_objects, info_of(&fx).pass_objects_total);
    cr_assert_eq(info_of(&fx).corrupt, 0);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 0);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, 0);
    fx_fini(&fx);
}

Test(store_scrub, automatic_passes_start_an_interval_apart)
{
    fx_t fx;
    fx_init(&fx, 3);
    fx.opts.scrub_bytes = 1 << 20;
    fx.opts.scrub_interval_s = 1000;
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 10, FX_FULL), VC_OK);
    run_pass(&fx, 1);
    uint64_t bytes = info_of(&fx).bytes;
    cr_assert_eq(bytes, 10 * RECORD);
    for (int i = 0; i < 990; i++)
        tick(&fx, SECOND);
    cr_assert_eq(info_of(&fx).bytes, bytes);
    for (int i = 0; i < 20; i++)
        tick(&fx, SECOND);
    cr_assert_eq(info_of(&fx).passes, 2);
    cr_assert_eq(info_of(&fx).bytes, 2 * bytes);
    fx_fini(&fx);
}

Test(store_scrub, is_off_by_rate_zero_but_runs_on_request_and_stops_on_request)
{
    fx_t fx;
    open_with(&fx, 0);
    cr_assert_eq(fx_register(&fx, 1, 0, 100, FX_FULL), VC_OK);
    for (int i = 0; i < 10; i++)
        tick(&fx, 100000ull * SECOND);
    cr_assert_eq(info_of(&fx).bytes, 0);
    cr_assert_eq(info_of(&fx).rate_bytes, 0);
    cr_assert_eq(cs_store_scrub_stop(fx.store, NULL), VC_ERR_NOT_FOUND);
    cr_assert_eq(cs_store_scrub_start(fx.store, RECORD, NULL), VC_OK);
    for (int i = 0; i < 10; i++)
        tick(&fx, SECOND);
    cs_scrub_info_t info = info_of(&fx);
    cr_assert(info.running);
    cr_assert_eq(info.rate_bytes, RECORD);
    cr_assert_geq(info.pass_objects, 9);
    cr_assert_leq(info.pass_objects, 12);
    cr_assert_eq(cs_store_scrub_start(fx.store, 0, NULL), VC_ERR_EXISTS);
    cr_assert_eq(info_of(&fx).rate_bytes, RECORD);
    cr_assert_eq(cs_store_scrub_start(fx.store, 20 * RECORD, NULL), VC_ERR_EXISTS);
    cr_assert_eq(info_of(&fx).rate_bytes, 20 * RECORD);
    tick(&fx, SECOND);
    cr_assert_geq(info_of(&fx).pass_objects, info.pass_objects + 19);
    cr_assert_eq(cs_store_scrub_stop(fx.store, NULL), VC_OK);
    uint64_t bytes = info_of(&fx).bytes;
    tick(&fx, 10ull * SECOND);
    cr_assert_eq(info_of(&fx).bytes, bytes);
    cr_assert_not(info_of(&fx).running);
    cr_assert_eq(info_of(&fx).passes, 0); /* one that was stopped does not count */
    cr_assert_eq(info_of(&fx).last_pass_s, 0);
    cr_assert_eq(cs_store_scrub_start(fx.store, 0, NULL), VC_OK);
    run_pass(&fx, 1);
    cr_assert_eq(info_of(&fx).pass_objects, 100); /* from the start again */
    fx_fini(&fx);
}

typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool entered, open;
} gate_t;

static void hold_at_gate(void *arg, vc_status_t status)
{
    gate_t *g = arg;
    (void)status;
    pthread_mutex_lock(&g->lock);
    g->entered = true;
    pthread_cond_signal(&g->changed);
    while (!g->open)
        pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

Test(store_scrub, gives_way_to_transfers_but_never_for_good)
{
    fx_t fx;
    cs_pin_t pin;
    gate_t g = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    open_with(&fx, 0);
    cr_assert_eq(fx_register(&fx, 1, 0, 40, FX_FULL), VC_OK);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &pin), VC_OK);
    cs_buf_t *buf = cs_bufpool_get(fx.pool);
    cr_assert_eq(cs_store_read(fx.store, NULL, &pin, buf, hold_at_gate, &g), VC_OK);
    pthread_mutex_lock(&g.lock);
    while (!g.entered)
        pthread_cond_wait(&g.changed, &g.lock);
    pthread_mutex_unlock(&g.lock);
    cr_assert_eq(cs_store_scrub_start(fx.store, 1 << 30, NULL), VC_OK);
    for (int i = 0; i < 110; i++)
        tick(&fx, SECOND / 10);
    cr_assert_eq(info_of(&fx).pass_objects, 10); /* one in eleven looks */
    pthread_mutex_lock(&g.lock);
    g.open = true;
    pthread_cond_signal(&g.changed);
    pthread_mutex_unlock(&g.lock);
    run_pass(&fx, 1);
    cr_assert_eq(info_of(&fx).pass_objects, 40);
    cs_bufpool_put(fx.pool, buf);
    cs_store_unpin(fx.store, &pin);
    fx_fini(&fx);
}

Test(store_scrub, a_clock_that_steps_back_neither_stops_it_nor_lets_it_run_free)
{
    fx_t fx;
    open_with(&fx, 0);
    cr_assert_eq(fx_register(&fx, 1, 0, 60, FX_FULL), VC_OK);
    vc_fake_clock_advance(&fx.clock, 1000ull * SECOND);
    cr_assert_eq(cs_store_scrub_start(fx.store, 10 * RECORD, NULL), VC_OK);
    tick(&fx, SECOND);
    uint64_t before = info_of(&fx).pass_objects;
    vc_fake_clock_advance(&fx.clock, (uint64_t)0 - 900ull * SECOND);
    cs_store_tick(fx.store);
    cr_assert_leq(info_of(&fx).pass_objects, before + 1);
    tick(&fx, SECOND);
    cr_assert_leq(info_of(&fx).pass_objects, before + 12);
    cr_assert_gt(info_of(&fx).pass_objects, before);
    run_pass(&fx, 1);
    fx_fini(&fx);
}

Test(store_scrub, the_thread_works_by_itself)
{
    fx_t fx;
    cs_pin_t pin;
    fx_init(&fx, 3);
    fx.opts.no_maintenance_thread = false;
    fx.opts.clock = vc_clock_system();
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 40, FX_FULL), VC_OK);
    cr_assert_eq(fx_pin(&fx, 1, 11, 0, &pin), VC_OK);
    fx_flip_byte(&fx, &pin, 4097);
    cs_store_unpin(fx.store, &pin);
    cr_assert_eq(cs_store_scrub_start(fx.store, 1 << 30, NULL), VC_OK);
    while (info_of(&fx).running)
        sched_yield();
    cr_assert_eq(info_of(&fx).passes, 1);
    cr_assert_eq(info_of(&fx).corrupt, 1);
    cr_assert_eq(fx_read(&fx, 1, 11, 0), VC_ERR_NOT_FOUND);
    cr_assert_eq(cs_store_scrub_start(fx.store, 4096, NULL), VC_OK);
    fx_fini(&fx); /* closing in the middle of a slow pass does not wait for its end */
}

#ifdef VC_FAULTS
Test(store_scrub, a_read_that_the_disk_refuses_is_counted_and_costs_no_record)
{
    fx_t fx;
    open_with(&fx, 0);
    cr_assert_eq(fx_register(&fx, 1, 0, 20, FX_FULL), VC_OK);
    cr_assert_eq(cs_fault_arm("scrub.read:3+:eio"), VC_OK);
    cr_assert_eq(cs_store_scrub_start(fx.store, 0, NULL), VC_OK);
    run_pass(&fx, 1);
    cr_assert_eq(info_of(&fx).pass_errors, 18);
    cr_assert_eq(info_of(&fx).corrupt, 0);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 0);
    cr_assert_eq(fx_readable(&fx, 1, 20, 0), 20);
    cr_assert_eq(cs_fault_arm("scrub.read:1:flip"), VC_OK);
    cr_assert_eq(cs_store_scrub_start(fx.store, 0, NULL), VC_OK);
    run_pass(&fx, 2);
    cr_assert_eq(info_of(&fx).pass_corrupt, 1);
    cs_fault_arm(NULL);
    fx_fini(&fx);
}
#endif
