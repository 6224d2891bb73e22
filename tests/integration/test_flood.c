/*
 * The flood of bench_flood for a moment: eight connections register more than twice what fits, readers fetch what was
 * just stored, over gRPC and the data plane. The directory stays under its capacity, the server neither stalls nor
 * rejects everything, every fetch succeeds, and nothing is left pinned.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "flood_load.h"
#include "support/server_proc.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"
#include "vericache/vericache.h"

#define WAIT_MS 60000

static vt_proc_t *start(const vt_tmpdir_t *dir, char *address, size_t cap)
{
    const char *args[] = {"--data-dir",
                          vt_tmpdir_path(dir, "data"),
                          "--listen",
                          "127.0.0.1:0",
                          "--capacity",
                          "160MiB",
                          "--ballast",
                          "16MiB",
                          "--max-record",
                          "1MiB",
                          "--log-level",
                          "info",
                          NULL};
    return server_proc_start(args, NULL, address, cap);
}

static double stat_of(const char *address, const char *name)
{
    static vcache_stat_t stats[512];
    vcache_options_t o;
    vcache_client_t *c = NULL;
    vcache_error_t err = {0};
    uint32_t n = 0;
    vcache_options_default(&o);
    o.server = address;
    cr_assert_eq(vcache_connect(&o, &c, NULL), VC_OK);
    cr_assert_eq(vcache_stats(c, stats, VC_ARRAY_LEN(stats), &n, &err), VC_OK, "%s", err.msg);
    vcache_disconnect(c);
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(stats[i].name, name) == 0)
            return stats[i].value;
    }
    cr_assert_fail("no %s", name);
    return -1;
}

Test(flood, eight_writers_neither_break_the_cap_nor_stall_nor_cost_a_reader_anything)
{
    vt_tmpdir_t dir;
    char address[128];
    flood_result_t r;
    vt_tmpdir_create(&dir);
    vt_proc_t *p = start(&dir, address, sizeof(address));
    flood_opts_t o = {.server = address,
                      .data_dir = vt_tmpdir_path(&dir, "data"),
                      .capacity_bytes = (uint64_t)160 << 20,
                      .n_writers = 8,
                      .n_readers = 2,
                      .n_blocks = 4,
                      .shape = {8, 3, 64, 64, VC_DTYPE_F16},
                      .n_registrations = 30};
    cr_assert(flood_run(&o, &r));
    cr_assert_eq(r.failed, 0, "%s", r.failure);
    cr_assert_eq(r.accepted + r.rejected, 240);
    cr_assert_gt(r.accepted, r.rejected);
    cr_assert_gt(r.bytes_accepted, 2 * (uint64_t)100 << 20);
    cr_assert_gt(r.du_samples, 0);
    cr_assert_eq(r.du_over, 0, "%llu bytes", (unsigned long long)r.du_peak);
    cr_assert_eq(r.fetch_failed, 0, "%s", r.failure);
    cr_assert_eq(r.wrong, 0);
    cr_assert_gt(r.fetched, 0);
    cr_assert_gt(stat_of(address, "evicted_objects_full"), 0);
    cr_assert_eq(stat_of(address, "leases_open"), 0);
    cr_assert_eq(stat_of(address, "uploads_open"), 0);
    cr_assert_eq(stat_of(address, "pinned_bytes"), 0);
    vt_proc_signal(p, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(p, WAIT_MS), 0, "%s", vt_proc_output(p));
    vt_proc_end(p);
    cr_assert_leq(flood_du(vt_tmpdir_path(&dir, "data")), o.capacity_bytes);
    vt_tmpdir_remove(&dir);
}
