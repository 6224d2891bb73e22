/*
 * Pins that last: kept through floods and restarts until somebody says otherwise, and never more than half of the
 * room. Deletes: gone at once, also for who held a lease, and gone after a restart. Use counts survive a restart.
 */
#include "support/vc_test.h"

#include <sys/mman.h>
#include <sys/wait.h>

#include "store_fixture.h"

static void start(fx_t *fx)
{
    fx_init(fx, 30); /* 124 KiB a record */
    fx->opts.capacity_bytes = (uint64_t)112 << 20;
    cr_assert_eq(fx_open(fx, CS_IO_AUTO, NULL), VC_OK);
}

typedef vc_status_t (*chain_fn)(cs_store_t *, const cs_chain_ref_t *, cs_chain_sum_t *, vc_err_t *);

static vc_status_t by_hashes(fx_t *fx, chain_fn fn, uint32_t seed, uint32_t n, cs_chain_sum_t *sum)
{
    vc_digest_t hashes[FX_MAX_BLOCKS];
    cs_chain_ref_t ref = {.keyspace = fx->ks_id, .hashes = hashes, .n_hashes = n};
    fx_hashes(fx, seed, n, hashes);
    return fn(fx->store, &ref, sum, NULL);
}

static vc_status_t by_tip(fx_t *fx, chain_fn fn, uint32_t seed, uint32_t n, const cs_fidelity_t *fid,
                          cs_chain_sum_t *sum)
{
    vc_digest_t hashes[FX_MAX_BLOCKS];
    fx_hashes(fx, seed, n, hashes);
    cs_chain_ref_t ref = {.keyspace = fx->ks_id, .tip = &hashes[n - 1], .fid = fid};
    return fn(fx->store, &ref, sum, NULL);
}

static void flood(fx_t *fx, uint32_t base)
{
    uint64_t before = fx_stats(fx).full.evicted_objects;
    for (uint32_t seed = base; fx_stats(fx).full.evicted_objects < before + 1500; seed++) {
        cr_assert_lt(seed, base + 1000);
        cr_assert_eq(fx_register(fx, seed, 0, 8, FX_FULL), VC_OK);
    }
}

/* Chains lose their last blocks first; what is listed under its tip is named by it all the same. */
Test(store_pins, a_chain_without_its_last_blocks_is_still_named_by_its_tip)
{
    fx_t fx;
    cs_chain_sum_t sum;
    vc_digest_t hashes[10];
    start(&fx);
    cr_assert_eq(fx_register(&fx, 1, 0, 10, FX_BOTH), VC_OK);
    cr_assert_eq(fx_register(&fx, 2, 0, 10, FX_BOTH), VC_OK);
    fx_hashes(&fx, 1, 10, hashes);
    cs_chain_ref_t ends = {.keyspace = fx.ks_id, .hashes = hashes + 8, .n_hashes = 2, .fid = &fx.fids[0]};
    cr_assert_eq(cs_store_delete(fx.store, &ends, &sum, NULL), VC_OK);
    cr_assert_eq(sum.n_objects, 2);
    cr_assert_eq(by_tip(&fx, cs_store_pin_prefix, 1, 10, NULL, &sum), VC_OK);
    cr_assert_eq(sum.n_objects, 18);
    cr_assert_eq(by_tip(&fx, cs_store_unpin_prefix, 1, 10, NULL, &sum), VC_OK);
    cr_assert_eq(by_tip(&fx, cs_store_delete, 1, 10, NULL, &sum), VC_OK);
    cr_assert_eq(sum.n_objects, 18);
    cr_assert_eq(by_tip(&fx, cs_store_delete, 1, 10, NULL, &sum), VC_ERR_NOT_FOUND);
    cr_assert_eq(fx_readable(&fx, 2, 10, 0), 10);
    fx_fini(&fx);
}

Test(store_pins, pinned_chains_outlive_floods_and_restarts)
{
    fx_t fx;
    cs_chain_sum_t sum;
    start(&fx);
    cr_assert_eq(fx_register(&fx, 1, 0, 10, FX_BOTH), VC_OK);
    cr_assert_eq(fx_register(&fx, 2, 0, 10, FX_FULL), VC_OK);
    cr_assert_eq(by_tip(&fx, cs_store_pin_prefix, 1, 10, NULL, &sum), VC_OK);
    cr_assert_eq(sum.n_objects, 20);
    cr_assert_eq(fx_stats(&fx).kept_objects, 20);
    cr_assert_eq(fx_stats(&fx).kept_bytes, sum.n_bytes);
    flood(&fx, 1000);
    cr_assert_eq(fx_readable(&fx, 1, 10, 0), 10);
    cr_assert_eq(fx_readable(&fx, 1, 10, 1), 10);
    cr_assert_eq(fx_readable(&fx, 2, 10, 0), 0);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(fx_stats(&fx).kept_objects, 20);
    flood(&fx, 3000);
    cr_assert_eq(fx_readable(&fx, 1, 10, 0), 10);
    cr_assert_eq(by_tip(&fx, cs_store_unpin_prefix, 1, 10, NULL, &sum), VC_OK);
    cr_assert_eq(sum.n_objects, 20);
    cr_assert_eq(fx_stats(&fx).kept_bytes, 0);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(fx_stats(&fx).kept_objects, 0);
    flood(&fx, 5000);
    cr_assert_eq(fx_readable(&fx, 1, 10, 0), 0);
    fx_fini(&fx);
}

Test(store_pins, a_pin_is_of_one_column_where_one_is_named_and_counts_once)
{
    fx_t fx;
    cs_chain_sum_t sum;
    start(&fx);
    cr_assert_eq(fx_register(&fx, 1, 0, 6, FX_BOTH), VC_OK);
    cr_assert_eq(by_tip(&fx, cs_store_pin_prefix, 1, 4, &fx.fids[1], &sum), VC_OK);
    cr_assert_eq(sum.n_objects, 4);
    cr_assert_eq(by_hashes(&fx, cs_store_pin_prefix, 1, 6, &sum), VC_OK);
    cr_assert_eq(sum.n_objects, 12);
    cr_assert_eq(fx_stats(&fx).kept_objects, 12);
    cr_assert_eq(by_hashes(&fx, cs_store_pin_prefix, 1, 6, &sum), VC_OK);
    cr_assert_eq(fx_stats(&fx).kept_objects, 12);
    cr_assert_eq(by_tip(&fx, cs_store_pin_prefix, 9, 4, NULL, &sum), VC_ERR_NOT_FOUND);
    cr_assert_eq(by_hashes(&fx, cs_store_delete, 9, 4, &sum), VC_ERR_NOT_FOUND);
    cs_chain_ref_t other = {.keyspace = {{1}}};
    vc_digest_t hashes[6];
    fx_hashes(&fx, 1, 6, hashes);
    other.hashes = hashes;
    other.n_hashes = 6;
    cr_assert_eq(cs_store_unpin_prefix(fx.store, &other, &sum, NULL), VC_ERR_NOT_FOUND); /* another keyspace */
    fx_fini(&fx);
}

Test(store_pins, more_than_half_of_the_room_is_not_pinned)
{
    fx_t fx;
    cs_chain_sum_t sum;
    vc_err_t err = {0};
    start(&fx); /* 78 MiB for objects */
    for (uint32_t seed = 1; seed <= 4; seed++)
        cr_assert_eq(fx_register(&fx, seed, 0, 100, FX_FULL), VC_OK); /* 12 MiB each */
    for (uint32_t seed = 1; seed <= 3; seed++)
        cr_assert_eq(by_tip(&fx, cs_store_pin_prefix, seed, 100, NULL, &sum), VC_OK);
    vc_digest_t hashes[100];
    fx_hashes(&fx, 4, 100, hashes);
    cs_chain_ref_t ref = {.keyspace = fx.ks_id, .tip = &hashes[99]};
    cr_assert_eq(cs_store_pin_prefix(fx.store, &ref, &sum, &err), VC_ERR_NOSPACE);
    cr_assert_not_null(strstr(err.msg, "half"));
    cr_assert_eq(fx_stats(&fx).kept_objects, 300);
    flood(&fx, 1000); /* there is room for writers still */
    cr_assert_eq(fx_stats(&fx).put_rejected, 0);
    for (uint32_t seed = 1; seed <= 3; seed++)
        cr_assert_eq(fx_readable(&fx, seed, 100, 0), 100);
    fx_fini(&fx);
}

Test(store_pins, what_was_deleted_is_gone_for_leases_and_after_a_restart)
{
    fx_t fx;
    cs_chain_sum_t sum;
    cs_lookup_result_t r;
    cs_pin_t pin, running;
    start(&fx);
    cr_assert_eq(fx_register(&fx, 1, 0, 10, FX_FULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 2, 0, 10, FX_FULL), VC_OK);
    cr_assert_eq(by_tip(&fx, cs_store_pin_prefix, 1, 10, NULL, &sum), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 10, true, &r), VC_OK);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &running), VC_OK);
    cr_assert_eq(by_hashes(&fx, cs_store_delete, 1, 10, &sum), VC_OK);
    cr_assert_eq(sum.n_objects, 10);
    cr_assert_eq(fx_stats(&fx).kept_objects, 0);
    cr_assert_eq(cs_store_pin_leased(fx.store, cs_store_boot_id(fx.store), r.lease_id, &r.token, 0, 0, &pin),
                 VC_ERR_NOT_FOUND);
    cs_buf_t *buf = cs_bufpool_wait(fx.pool, 60000);
    cr_assert_eq(fx_read_pin(&fx, &running, buf), VC_OK); /* what was being read is read to its end */
    cs_bufpool_put(fx.pool, buf);
    cs_store_unpin(fx.store, &running);
    cr_assert_eq(cs_store_lease_release(fx.store, cs_store_boot_id(fx.store), r.lease_id, &r.token), VC_OK);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, 0);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 10, 0), 0);
    cr_assert_eq(fx_readable(&fx, 2, 10, 0), 10);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 0);
    cr_assert_eq(fx_register(&fx, 1, 0, 10, FX_FULL), VC_OK); /* and may come back */
    cr_assert_eq(fx_readable(&fx, 1, 10, 0), 10);
    flood(&fx, 1000);
    fx_fini(&fx);
}

Test(store_pins, a_damaged_record_loses_its_pin)
{
    fx_t fx;
    cs_chain_sum_t sum;
    cs_pin_t pin;
    start(&fx);
    cr_assert_eq(fx_register(&fx, 1, 0, 3, FX_FULL), VC_OK);
    cr_assert_eq(by_tip(&fx, cs_store_pin_prefix, 1, 3, NULL, &sum), VC_OK);
    cr_assert_eq(fx_pin(&fx, 1, 2, 0, &pin), VC_OK);
    cs_store_unpin(fx.store, &pin);
    fx_flip_byte(&fx, &pin, 5000);
    cr_assert_eq(fx_read(&fx, 1, 2, 0), VC_ERR_CORRUPT);
    cr_assert_eq(fx_stats(&fx).kept_objects, 2);
    cr_assert_eq(fx_register(&fx, 1, 0, 3, FX_FULL), VC_OK);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(fx_stats(&fx).kept_objects, 2); /* the new copy was never pinned */
    cr_assert_eq(fx_readable(&fx, 1, 3, 0), 3);
    fx_fini(&fx);
}

Test(store_pins, deletes_orphan_the_blocks_behind_and_those_go_first)
{
    fx_t fx;
    cs_chain_sum_t sum;
    vc_digest_t hashes[40];
    start(&fx);
    for (uint32_t seed = 1; seed <= 12; seed++)
        cr_assert_eq(fx_register(&fx, seed, 0, 40, FX_FULL), VC_OK);
    fx_hashes(&fx, 12, 40, hashes);
    cs_chain_ref_t root = {.keyspace = fx.ks_id, .hashes = hashes, .n_hashes = 1};
    cr_assert_eq(cs_store_delete(fx.store, &root, &sum, NULL), VC_OK);
    for (uint32_t seed = 100; fx_stats(&fx).full.evicted_objects < 39; seed++)
        cr_assert_eq(fx_register(&fx, seed, 0, 8, FX_FULL), VC_OK);
    cs_pin_t pin;
    for (uint32_t b = 1; b < 40; b++)
        cr_assert_eq(fx_pin(&fx, 12, b, 0, &pin), VC_ERR_NOT_FOUND, "block %u", b);
    fx_fini(&fx);
}

Test(store_pins, use_counts_outlive_a_restart_and_a_lookup_writes_nothing)
{
    fx_t fx;
    cs_lookup_result_t r;
    start(&fx);
    for (uint32_t seed = 1; seed <= 60; seed++)
        cr_assert_eq(fx_register(&fx, seed, 0, 8, FX_FULL), VC_OK);
    uint64_t batches = fx_stats(&fx).commit_batches;
    for (int i = 0; i < 20; i++) {
        for (uint32_t seed = 1; seed <= 60; seed += 6) {
            cr_assert_eq(fx_lookup(&fx, seed, 8, true, &r), VC_OK);
            cr_assert_eq(cs_store_lease_release(fx.store, cs_store_boot_id(fx.store), r.lease_id, &r.token), VC_OK);
        }
    }
    cr_assert_eq(fx_stats(&fx).commit_batches, batches);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    for (uint32_t seed = 100; fx_stats(&fx).full.evicted_objects < 380; seed++)
        cr_assert_eq(fx_register(&fx, seed, 0, 8, FX_FULL), VC_OK);
    uint32_t used = 0, others = 0;
    for (uint32_t seed = 1; seed <= 60; seed++) {
        int n = fx_readable(&fx, seed, 8, 0);
        cr_assert_geq(n, 0);
        *(seed % 6 == 1 ? &used : &others) += (uint32_t)n;
    }
    cr_assert_eq(used, 80, "%u used and %u other blocks are left", used, others);
    fx_fini(&fx);
}

/* ---- a delete of what was evicted a moment ago ---- */

enum { MAX_PAIRS = 64, HELD_BLOCKS = 40, LOOSE_BLOCKS = 20 };

/* Fills the store with held chains and loose ones between them, until the loose ones are evicted and no segment can be
 * cleaned; deletes those; ends without closing. Returns how many there are to notes. */
static void evict_then_delete(fx_t *fx, uint8_t *was_deleted)
{
    cs_lookup_result_t r;
    cs_chain_sum_t sum;
    uint32_t n = 0;
    vc_status_t status = fx_open(fx, CS_IO_AUTO, NULL);
    for (; status == VC_OK && n < MAX_PAIRS; n++) {
        status = fx_register(fx, 1000 + n, 0, HELD_BLOCKS, FX_FULL);
        if (status == VC_OK)
            status = fx_lookup(fx, 1000 + n, HELD_BLOCKS, true, &r);
        if (status == VC_OK)
            status = fx_register(fx, n, 0, LOOSE_BLOCKS, FX_FULL);
    }
    for (uint32_t seed = 0; seed < n; seed++) {
        vc_digest_t hashes[LOOSE_BLOCKS];
        fx_hashes(fx, seed, LOOSE_BLOCKS, hashes);
        cs_chain_ref_t ref = {.keyspace = fx->ks_id, .hashes = hashes, .n_hashes = LOOSE_BLOCKS};
        was_deleted[seed] = cs_store_delete(fx->store, &ref, &sum, NULL) == VC_ERR_NOT_FOUND;
    }
    _exit(status == VC_ERR_NOSPACE ? 0 : 1);
}

Test(store_pins, what_was_evicted_and_then_deleted_does_not_come_back)
{
    fx_t fx;
    int status = -1;
    uint32_t n_deleted = 0;
    uint8_t *was_deleted = mmap(NULL, MAX_PAIRS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(was_deleted, MAP_FAILED);
    fx_init(&fx, 15);
    pid_t pid = fork();
    if (pid == 0)
        evict_then_delete(&fx, was_deleted);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    for (uint32_t seed = 0; seed < MAX_PAIRS; seed++) {
        for (uint32_t b = 0; was_deleted[seed] && b < LOOSE_BLOCKS; b++)
            cr_assert_eq(fx_read(&fx, seed, b, 0), VC_ERR_NOT_FOUND, "chain %u block %u is back", seed, b);
        n_deleted += was_deleted[seed];
    }
    cr_assert_gt(n_deleted, 0);
    munmap(was_deleted, MAX_PAIRS);
    fx_fini(&fx);
}
