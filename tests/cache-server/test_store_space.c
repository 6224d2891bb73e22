/* Room: the capacity holds whatever is written, a full disk stops writes and nothing else, read-only is served. */
#include "support/vc_test.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "disk_fixture.h"
#include "vc/log.h"

Test(store_space, the_directory_never_exceeds_the_capacity)
{
    fx_t fx;
    fx_init(&fx, 30);
    fx.opts.capacity_bytes = (uint64_t)64 << 20;
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    uint64_t written = 0, peak = 0;
    for (uint32_t seed = 0; written < 5 * fx.opts.capacity_bytes; seed++) {
        cr_assert_eq(fx_register(&fx, seed, 0, 25, seed % 3 ? FX_BOTH : FX_COMPRESSED), VC_OK);
        cs_store_stats_t stats = fx_stats(&fx);
        written = stats.full.put_bytes + stats.compressed.put_bytes;
        uint64_t now = fx_du(&fx);
        peak = now > peak ? now : peak;
        cr_assert_leq(now, fx.opts.capacity_bytes);
        cr_assert_leq(stats.used_bytes, fx.opts.capacity_bytes);
    }
    cs_store_stats_t stats = fx_stats(&fx);
    cr_assert_gt(stats.evictions, 0);
    cr_assert_gt(stats.full.evicted_objects, 0);
    cr_assert_eq(stats.put_rejected, 0);
    cr_assert_gt(peak, fx.opts.capacity_bytes / 2); /* and it is used */
    /* What is left is right, before and after a restart, under a smaller capacity too. */
    for (int pass = 0; pass < 2; pass++) {
        uint32_t right = 0;
        for (uint32_t seed = 0; seed < 1000; seed++) {
            int n = fx_readable(&fx, seed, 25, 1);
            cr_assert_geq(n, 0);
            right += (uint32_t)n;
        }
        cr_assert_gt(right, 0);
        fx_close(&fx);
        fx.opts.capacity_bytes = (uint64_t)52 << 20;
        cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
        cr_assert_leq(fx_du(&fx), fx.opts.capacity_bytes);
    }
    fx_fini(&fx);
}

Test(store_space, full_copies_go_before_compressed_ones)
{
    fx_t fx;
    fx_init(&fx, 30);
    fx.opts.capacity_bytes = (uint64_t)64 << 20;
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 100, FX_COMPRESSED), VC_OK);
    /* Not for ever: a compressed copy that nobody asked for while the store turned over goes, too. */
    for (uint32_t seed = 100; fx_stats(&fx).full.evicted_objects < 60; seed++)
        cr_assert_eq(fx_register(&fx, seed, 0, 25, FX_FULL), VC_OK);
    cr_assert_eq(fx_stats(&fx).compressed.evicted_objects, 0);
    cr_assert_eq(fx_readable(&fx, 1, 100, 1), 100);
    fx_fini(&fx);
}

Test(store_space, the_chain_in_use_outlives_those_nobody_asks_for)
{
    fx_t fx;
    cs_lookup_result_t r;
    fx_init(&fx, 30);
    fx.opts.capacity_bytes = (uint64_t)80 << 20;
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 33, FX_FULL), VC_OK); /* about one segment */
    for (uint32_t seed = 100; fx_stats(&fx).evictions < 20; seed++) {
        cr_assert_eq(fx_register(&fx, seed, 0, 33, FX_FULL), VC_OK);
        cr_assert_eq(fx_lookup(&fx, 1, 33, true, &r), VC_OK); /* a probe would be no use */
        cr_assert_eq(cs_store_lease_release(fx.store, cs_store_boot_id(fx.store), r.lease_id, &r.token), VC_OK);
    }
    cr_assert_eq(r.n_blocks[0], 33);
    cr_assert_eq(fx_readable(&fx, 1, 33, 0), 33);
    fx_fini(&fx);
}

Test(store_space, objects_of_open_uploads_are_not_evicted)
{
    fx_t fx;
    cs_upload_info_t info;
    uint8_t missing[64];
    fx_init(&fx, 30);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 3, FX_FULL), VC_OK);
    cr_assert_eq(fx_begin(&fx, 1, 0, 10, FX_FULL, &info, missing), VC_OK);
    cr_assert_eq(info.n_missing, 7);
    cr_assert_eq(fx_put_missing(&fx, &info, 1, 0, 10, FX_FULL, missing), VC_OK);
    for (uint32_t seed = 100; fx_stats(&fx).evictions < 20; seed++)
        cr_assert_eq(fx_register(&fx, seed, 0, 25, FX_FULL), VC_OK);
    cr_assert_eq(fx_commit(&fx, &info), VC_OK); /* with the blocks that were there at begin */
    cr_assert_eq(fx_readable(&fx, 1, 10, 0), 10);
    fx_fini(&fx);
}

Test(store_space, a_registration_larger_than_the_capacity_is_refused_at_once)
{
    fx_t fx;
    cs_upload_info_t info;
    static uint8_t missing[FX_MAX_BLOCKS];
    fx_init(&fx, 30);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_begin(&fx, 1, 0, 400, FX_FULL, &info, missing), VC_ERR_NOSPACE); /* 50 MiB into 48 */
    cr_assert_eq(fx_stats(&fx).uploads_open, 0);
    cr_assert_eq(fx_stats(&fx).put_rejected, 1);
    cr_assert_eq(fx_begin(&fx, 1, 0, 300, FX_FULL, &info, missing), VC_OK);
    fx_fini(&fx);
}

typedef struct writer {
    pthread_t thread;
    fx_t *fx;
    uint32_t base, ok, refused, other;
} writer_t;

static void *flood(void *arg)
{
    writer_t *w = arg;
    while (w->ok < 25 &&
           w->other == 0) { /* one is refused while all room is held by uploads; then it is its turn again */
        vc_status_t status = fx_register(w->fx, w->base + w->ok, 0, 20, FX_BOTH);
        w->ok += status == VC_OK;
        w->refused += status == VC_ERR_NOSPACE;
        w->other += status != VC_OK && status != VC_ERR_NOSPACE;
    }
    return NULL;
}

Test(store_space, a_flood_of_writers_neither_stalls_nor_breaks_the_cap)
{
    fx_t fx;
    writer_t writers[4];
    fx_init(&fx, 30);
    fx.opts.capacity_bytes = (uint64_t)72 << 20;
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    for (uint32_t i = 0; i < 4; i++) {
        writers[i] = (writer_t){.fx = &fx, .base = i * 1000};
        pthread_create(&writers[i].thread, NULL, flood, &writers[i]);
    }
    uint32_t ok = 0, other = 0;
    for (int i = 0; i < 50; i++)
        cr_assert_leq(fx_du(&fx), fx.opts.capacity_bytes);
    for (uint32_t i = 0; i < 4; i++) {
        pthread_join(writers[i].thread, NULL);
        ok += writers[i].ok;
        other += writers[i].other;
    }
    cr_assert_eq(other, 0);
    cr_assert_eq(ok, 100);
    cr_assert_leq(fx_du(&fx), fx.opts.capacity_bytes);
    cr_assert_eq(fx_stats(&fx).uploads_open, 0);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, 0);
    fx_fini(&fx);
}

/* ---- full disks and read-only directories, in a mount namespace of their own ---- */

Test(store_space, a_full_disk_stops_writes_only_and_room_brings_them_back)
{
    fx_t fx;
    cs_lookup_result_t r;
    fx_init(&fx, 6);
    if (!on_small_disk(&fx, 128)) {
        fx_fini(&fx);
        cr_skip_test("a small tmpfs cannot be mounted here");
    }
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 20, FX_BOTH), VC_OK);
    fill_disk(fx.dir, 1 << 20);
    cr_assert_eq(tick_until(&fx, VC_ERR_NOSPACE, 2), VC_ERR_NOSPACE);
    cr_assert(fx_stats(&fx).readonly);
    char ballast[512];
    snprintf(ballast, sizeof(ballast), "%s/ballast", fx.dir);
    cr_assert_neq(access(ballast, F_OK), 0); /* released */
    cr_assert_eq(fx_readable(&fx, 1, 20, 0), 20);
    cr_assert_eq(fx_lookup(&fx, 1, 20, true, &r), VC_OK);
    cr_assert_eq(r.n_blocks[1], 20);
    clear_disk(fx.dir);
    cr_assert_eq(tick_until(&fx, VC_OK, 3), VC_OK);
    cr_assert_eq(access(ballast, F_OK), 0);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 20, 0), 20);
    cr_assert_eq(fx_readable(&fx, 3, 1, 0), 1);
    leave_disk(&fx);
}

Test(store_space, a_start_on_a_full_disk_serves_what_is_there)
{
    fx_t fx;
    fx_init(&fx, 6);
    if (!on_small_disk(&fx, 128)) {
        fx_fini(&fx);
        cr_skip_test("a small tmpfs cannot be mounted here");
    }
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 20, FX_BOTH), VC_OK);
    fx_close(&fx);
    fill_disk(fx.dir, 0);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK); /* the ballast makes room to open */
    cr_assert_not(cs_store_is_readonly(fx.store));
    cr_assert_eq(fx_register(&fx, 2, 0, 1, FX_FULL), VC_ERR_NOSPACE);
    cr_assert_eq(fx_readable(&fx, 1, 20, 0), 20);
    fx_close(&fx);
    clear_disk(fx.dir);
    fill_disk(fx.dir, 0);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK); /* no ballast any more: read-only */
    cr_assert(cs_store_is_readonly(fx.store));
    cr_assert_eq(fx_register(&fx, 2, 0, 1, FX_FULL), VC_ERR_READONLY);
    cr_assert_eq(fx_readable(&fx, 1, 20, 1), 20);
    clear_disk(fx.dir);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(fx_register(&fx, 2, 0, 1, FX_FULL), VC_OK);
    leave_disk(&fx);
}

Test(store_space, a_disk_smaller_than_the_capacity_is_used_as_a_cache)
{
    fx_t fx;
    fx_init(&fx, 30);
    if (!on_small_disk(&fx, 80)) {
        fx_fini(&fx);
        cr_skip_test("a small tmpfs cannot be mounted here");
    }
    fx.opts.capacity_bytes = (uint64_t)1 << 30; /* 16 MiB segments */
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    for (uint32_t seed = 0; seed < 30; seed++)
        cr_assert_eq(fx_register(&fx, seed, 0, 20, FX_FULL), VC_OK, "seed %u", seed);
    cr_assert_gt(fx_stats(&fx).evictions, 0);
    cr_assert_eq(fx_readable(&fx, 29, 20, 0), 20);
    leave_disk(&fx);
}

Test(store_space, a_read_only_directory_is_served_and_an_empty_one_is_a_clear_error)
{
    fx_t fx;
    vc_err_t err = {0};
    fx_init(&fx, 6);
    if (!on_small_disk(&fx, 128)) {
        fx_fini(&fx);
        cr_skip_test("a small tmpfs cannot be mounted here");
    }
    char disk[256];
    snprintf(disk, sizeof(disk), "%s", fx.dir);
    disk[strlen(disk) - strlen("/data")] = '\0';
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 20, FX_BOTH), VC_OK);
    uint64_t generation = cs_store_generation(fx.store);
    fx_close(&fx);
    cr_assert_eq(mount(NULL, disk, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    cr_assert(cs_store_is_readonly(fx.store));
    cr_assert_eq(cs_store_generation(fx.store), generation + 1);
    cr_assert_eq(fx_readable(&fx, 1, 20, 0), 20);
    cr_assert_eq(fx_readable(&fx, 1, 20, 1), 20);
    cr_assert_eq(fx_register(&fx, 2, 0, 1, FX_FULL), VC_ERR_READONLY);
    fx_close(&fx);
    fx.opts.data_dir = "unused";
    char kept[256];
    memcpy(kept, fx.dir, sizeof(kept));
    snprintf(fx.dir, sizeof(fx.dir), "%.200s/nothing-here", disk);
    cr_assert_neq(fx_open(&fx, CS_IO_AUTO, &err), VC_OK);
    cr_assert_not_null(strstr(err.msg, "nothing-here"));
    cr_assert_null(fx.store);
    memcpy(fx.dir, kept, sizeof(kept));
    cr_assert_eq(mount(NULL, disk, NULL, MS_REMOUNT, NULL), 0);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 2, 0, 1, FX_FULL), VC_OK);
    leave_disk(&fx);
}
