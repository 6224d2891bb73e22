/* The store's main path: what was committed is found, read back bit for bit, and survives a restart. */
#include "support/vc_test.h"

#include "store_fixture.h"

static void round_trip(cs_io_mode_t mode)
{
    fx_t fx;
    vc_err_t err = {0};
    cs_lookup_result_t r;
    fx_init(&fx, 6);
    cr_assert_eq(fx_open(&fx, mode, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(cs_workers_io_mode(fx.workers), mode);
    cr_assert_eq(fx_register(&fx, 1, 0, 12, FX_BOTH), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 20, false, &r), VC_OK);
    cr_assert_eq(r.n_blocks[0], 12);
    cr_assert_eq(r.n_blocks[1], 12);
    cr_assert_eq(r.miss[0], CS_MISS_ABSENT);
    cr_assert_eq(fx_readable(&fx, 1, 12, 0), 12);
    cr_assert_eq(fx_readable(&fx, 1, 12, 1), 12);
    uint64_t generation = cs_store_generation(fx.store), boot = cs_store_boot_id(fx.store);
    fx_close(&fx);
    cr_assert_eq(fx_open(&fx, mode, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(cs_store_generation(fx.store), generation + 1);
    cr_assert_neq(cs_store_boot_id(fx.store), boot);
    cr_assert_eq(fx_lookup(&fx, 1, 12, false, &r), VC_OK);
    cr_assert_eq(r.n_blocks[0], 12);
    cr_assert_eq(r.miss[0], CS_MISS_NONE);
    cr_assert_eq(fx_readable(&fx, 1, 12, 0), 12);
    cr_assert_eq(fx_readable(&fx, 1, 12, 1), 12);
    fx_fini(&fx);
}

Test(store, committed_records_read_back_and_survive_a_restart_in_mode_fixed) { round_trip(CS_IO_FIXED); }
Test(store, committed_records_read_back_and_survive_a_restart_in_mode_ring) { round_trip(CS_IO_RING); }
Test(store, committed_records_read_back_and_survive_a_restart_in_mode_threads) { round_trip(CS_IO_THREADS); }
