/*
 * Trouble with the data directory while the store runs: gone, replaced, unmounted, read-only, full at the start, a
 * clock that steps back. Good records stay readable, nothing is acknowledged that a restart would not find, and writes
 * come back without a restart where that is possible.
 */
#include "support/vc_test.h"

#include <errno.h>
#include <grp.h>
#include <sys/wait.h>

#include "disk_fixture.h"
#include "fault.h"
#include "steady.h"

static void open_on_disk(fx_t *fx, unsigned mib)
{
    vc_err_t err = {0};
    fx_init(fx, 6);
    if (!on_small_disk(fx, mib)) {
        fx_fini(fx);
        cr_skip_test("a small tmpfs cannot be mounted here");
    }
    cr_assert_eq(fx_open(fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(fx_register(fx, 1, 0, 20, FX_BOTH), VC_OK);
}

static void disk_of(const fx_t *fx, char disk[256])
{
    memcpy(disk, fx->dir, 256);
    disk[strlen(disk) - strlen("/data")] = '\0';
}

/* What was there and what was written since survives a restart, and the cap holds. */
static void expect_sound(fx_t *fx, uint32_t new_seed)
{
    cr_assert_eq(fx_readable(fx, 1, 20, 0), 20);
    cr_assert_eq(fx_readable(fx, 1, 20, 1), 20);
    cr_assert_eq(fx_readable(fx, new_seed, 1, 0), 1);
    uint64_t generation = cs_store_generation(fx->store);
    cr_assert_eq(fx_reopen(fx), VC_OK);
    cr_assert_eq(cs_store_generation(fx->store), generation + 1);
    cr_assert_not(cs_store_is_readonly(fx->store));
    cr_assert_eq(fx_readable(fx, 1, 20, 0), 20);
    cr_assert_eq(fx_readable(fx, 1, 20, 1), 20);
    cr_assert_eq(fx_readable(fx, new_seed, 1, 0), 1);
    cr_assert_eq(fx_stats(fx).corrupt_disk, 0);
    cr_assert_leq(fx_du(fx), fx->opts.capacity_bytes);
}

/* ---- read-only ---- */

Test(store_health, a_start_on_a_full_disk_takes_writes_without_a_restart_once_there_is_room)
{
    fx_t fx;
    char path[512];
    open_on_disk(&fx, 128);
    fx_close(&fx);
    snprintf(path, sizeof(path), "%s/ballast", fx.dir);
    cr_assert_eq(unlink(path), 0);
    fill_disk(fx.dir, 0);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert(cs_store_is_readonly(fx.store));
    cr_assert_eq(tick_until(&fx, VC_ERR_READONLY, 2), VC_ERR_READONLY);
    for (int i = 0; i < 10; i++) /* still full: it stays as it is */
        cs_store_tick(fx.store);
    cr_assert_eq(fx_register(&fx, 2, 0, 1, FX_FULL), VC_ERR_READONLY);
    cr_assert_eq(fx_readable(&fx, 1, 20, 0), 20);
    clear_disk(fx.dir);
    cr_assert_eq(tick_until(&fx, VC_OK, 2), VC_OK);
    cr_assert_not(cs_store_is_readonly(fx.store));
    cr_assert_not(fx_stats(&fx).readonly);
    cr_assert_eq(access(path, F_OK), 0);
    expect_sound(&fx, 2);
    leave_disk(&fx);
}

Test(store_health, a_record_found_damaged_while_read_only_is_gone_for_good_when_writes_are_back)
{
    fx_t fx;
    cs_pin_t pin;
    char path[512];
    open_on_disk(&fx, 128);
    cr_assert_eq(fx_pin(&fx, 1, 3, 0, &pin), VC_OK);
    fx_flip_byte(&fx, &pin, 5000);
    cs_store_unpin(fx.store, &pin);
    fx_close(&fx);
    snprintf(path, sizeof(path), "%s/ballast", fx.dir);
    cr_assert_eq(unlink(path), 0);
    fill_disk(fx.dir, 0);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_read(&fx, 1, 3, 0), VC_ERR_CORRUPT);
    clear_disk(fx.dir);
    cr_assert_eq(tick_until(&fx, VC_OK, 2), VC_OK);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(fx_read(&fx, 1, 3, 0), VC_ERR_NOT_FOUND);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 0);
    leave_disk(&fx);
}

Test(store_health, a_disk_mounted_read_only_at_the_start_takes_writes_when_it_is_remounted)
{
    fx_t fx;
    char disk[256];
    open_on_disk(&fx, 128);
    disk_of(&fx, disk);
    fx_close(&fx);
    cr_assert_eq(mount(NULL, disk, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(tick_until(&fx, VC_ERR_READONLY, 2), VC_ERR_READONLY);
    cr_assert_eq(mount(NULL, disk, NULL, MS_REMOUNT, NULL), 0);
    cr_assert_eq(tick_until(&fx, VC_OK, 2), VC_OK);
    expect_sound(&fx, 2);
    leave_disk(&fx);
}

Test(store_health, a_disk_that_turns_read_only_stops_writes_only_until_it_turns_back)
{
    fx_t fx;
    char disk[256];
    cs_lookup_result_t r;
    open_on_disk(&fx, 128);
    disk_of(&fx, disk);
    /* Of a disk with files open for writing the kernel refuses it; a mount over the path does the same to us. */
    cr_assert_neq(mount(NULL, disk, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    cr_assert_eq(errno, EBUSY);
    cr_assert_eq(mount(disk, disk, NULL, MS_BIND, NULL), 0);
    cr_assert_eq(mount(NULL, disk, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL), 0);
    cr_assert_eq(tick_until(&fx, VC_ERR_READONLY, 2), VC_ERR_READONLY);
    cr_assert(fx_stats(&fx).readonly);
    cr_assert_eq(fx_readable(&fx, 1, 20, 0), 20);
    cr_assert_eq(fx_lookup(&fx, 1, 20, true, &r), VC_OK);
    cr_assert_eq(r.n_blocks[1], 20);
    cr_assert_eq(umount2(disk, 0), 0);
    cr_assert_eq(tick_until(&fx, VC_OK, 3), VC_OK);
    expect_sound(&fx, 3);
    leave_disk(&fx);
}

#ifdef VC_FAULTS
Test(store_health, a_write_refused_as_read_only_is_answered_so_and_may_be_tried_again)
{
    fx_t fx;
    cs_upload_info_t info;
    uint8_t missing[2];
    fx_init(&fx, 3);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_begin(&fx, 1, 0, 1, FX_FULL, &info, missing), VC_OK);
    cr_assert_eq(cs_fault_arm("io.write:1:erofs"), VC_OK);
    cr_assert_eq(fx_put(&fx, &info, 1, 0, 0), VC_ERR_READONLY);
    cr_assert_eq(fx_put(&fx, &info, 1, 0, 0), VC_OK);
    cr_assert_eq(cs_fault_arm("health.statvfs:1:erofs"), VC_OK);
    cr_assert_eq(fx_commit(&fx, &info), VC_ERR_READONLY);
    cr_assert_eq(fx_readable(&fx, 1, 1, 0), 0);
    cr_assert_eq(tick_until(&fx, VC_OK, 2), VC_OK); /* the next look finds it writable */
    cr_assert_eq(fx_commit(&fx, &info), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 1, 0), 1);
    cs_fault_arm(NULL);
    fx_fini(&fx);
}
#endif

/* ---- the directory goes away ---- */

static void move_dir(fx_t *fx, char away[300])
{
    snprintf(away, 300, "%s-away", fx->dir);
    cr_assert_eq(rename(fx->dir, away), 0);
}

Test(store_health, a_directory_that_was_moved_away_is_readable_and_writable_again_when_it_is_back)
{
    fx_t fx;
    cs_upload_info_t info;
    uint8_t missing[2];
    char away[300];
    fx_init(&fx, 6);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 20, FX_BOTH), VC_OK);
    cr_assert_eq(fx_begin(&fx, 2, 0, 1, FX_FULL, &info, missing), VC_OK);
    move_dir(&fx, away);
    cr_assert_eq(fx_put(&fx, &info, 2, 0, 0), VC_OK);
    cr_assert_eq(fx_commit(&fx, &info), VC_ERR_READONLY); /* a restart would not find it */
    cr_assert_eq(fx_readable(&fx, 2, 1, 0), 0);
    cr_assert(fx_stats(&fx).readonly);
    cr_assert_eq(fx_register(&fx, 3, 0, 1, FX_FULL), VC_ERR_READONLY);
    cr_assert_eq(fx_readable(&fx, 1, 20, 0), 20);
    cr_assert_eq(mkdir(fx.dir, 0700), 0); /* another directory in its place is none of ours */
    for (int i = 0; i < 10; i++)
        cs_store_tick(fx.store);
    cr_assert_eq(fx_register(&fx, 3, 0, 1, FX_FULL), VC_ERR_READONLY);
    cr_assert_eq(rmdir(fx.dir), 0); /* nothing of ours was written there */
    cr_assert_eq(rename(away, fx.dir), 0);
    cr_assert_eq(tick_until(&fx, VC_OK, 3), VC_OK);
    cr_assert_eq(fx_commit(&fx, &info), VC_OK);
    cr_assert_eq(fx_readable(&fx, 2, 1, 0), 1);
    expect_sound(&fx, 2);
    fx_fini(&fx);
}

Test(store_health, a_directory_that_was_removed_is_served_from_open_files_and_takes_nothing)
{
    fx_t fx;
    vc_err_t err = {0};
    cs_upload_info_t info;
    uint8_t missing[2];
    fx_init(&fx, 6);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 20, FX_BOTH), VC_OK);
    cr_assert_eq(nftw(fx.dir, fx_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    cr_assert_eq(tick_until(&fx, VC_ERR_READONLY, 2), VC_ERR_READONLY);
    cr_assert_eq(
        cs_store_begin(fx.store, &fx.ks, (uint32_t[4 * FX_BLOCK_TOKENS]){0}, 0, 1, fx.fids, 1, &info, missing, &err),
        VC_ERR_READONLY);
    cr_assert_not_null(strstr(err.msg, "gone or was replaced"), "%s", err.msg);
    cr_assert_eq(fx_readable(&fx, 1, 20, 0), 20);
    cr_assert_eq(fx_readable(&fx, 1, 20, 1), 20);
    cr_assert_eq(fx_reopen(&fx), VC_OK); /* empty, as the directory is */
    cr_assert_eq(fx_readable(&fx, 1, 20, 0), 0);
    cr_assert_eq(fx_stats(&fx).full.objects, 0);
    cr_assert_eq(fx_register(&fx, 1, 0, 20, FX_BOTH), VC_OK);
    fx_fini(&fx);
}

Test(store_health, a_disk_unmounted_under_the_store_is_served_and_writable_again_when_it_is_mounted)
{
    fx_t fx;
    char disk[256], keep[300];
    open_on_disk(&fx, 128);
    disk_of(&fx, disk);
    snprintf(keep, sizeof(keep), "%s/data", disk);
    char elsewhere[] = "/tmp/vc-mount-XXXXXX";
    cr_assert_not_null(mkdtemp(elsewhere));
    cr_assert_eq(mount(disk, elsewhere, NULL, MS_BIND, NULL), 0); /* the disk itself outlives its mount */
    cr_assert_neq(umount2(disk, 0), 0);
    cr_assert_eq(errno, EBUSY);
    cr_assert_eq(umount2(disk, MNT_DETACH), 0);
    cr_assert_eq(tick_until(&fx, VC_ERR_READONLY, 2), VC_ERR_READONLY);
    cr_assert_eq(fx_readable(&fx, 1, 20, 0), 20);
    cr_assert_eq(mount(elsewhere, disk, NULL, MS_BIND, NULL), 0);
    cr_assert_eq(tick_until(&fx, VC_OK, 2), VC_OK);
    expect_sound(&fx, 2);
    umount2(elsewhere, MNT_DETACH);
    rmdir(elsewhere);
    leave_disk(&fx);
}

Test(store_health, a_segment_file_removed_under_the_store_takes_no_more_commits)
{
    fx_t fx;
    cs_pin_t pin;
    char path[512];
    fx_init(&fx, 6);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 5, FX_FULL), VC_OK);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &pin), VC_OK);
    fx_segment_path(&fx, pin.segment, path, sizeof(path));
    cs_store_unpin(fx.store, &pin);
    cr_assert_eq(unlink(path), 0);
    cr_assert_neq(fx_register(&fx, 2, 0, 1, FX_FULL), VC_OK); /* its bytes would end with us */
    cr_assert_eq(fx_readable(&fx, 2, 1, 0), 0);
    cr_assert_eq(fx_register(&fx, 2, 0, 1, FX_FULL), VC_OK); /* into another segment */
    cr_assert_eq(fx_readable(&fx, 1, 5, 0), 5);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 5, 0), 0);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 5);
    cr_assert_eq(fx_readable(&fx, 2, 1, 0), 1);
    fx_fini(&fx);
}

/* ---- whose directory it is ---- */

Test(store_health, a_second_store_on_the_directory_is_refused_with_one_sentence)
{
    fx_t fx;
    vc_err_t err = {0};
    cs_store_t *second = NULL;
    fx_init(&fx, 3);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(cs_store_open(&fx.opts, &second, &err), VC_ERR_BUSY);
    cr_assert_null(second);
    cr_assert_not_null(strstr(err.msg, "another process holds the data directory"), "%s", err.msg);
    cr_assert_not_null(strstr(err.msg, fx.dir));
    cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_FULL), VC_OK); /* the first is not disturbed */
    cr_assert_eq(fx_readable(&fx, 1, 2, 0), 2);
    fx_fini(&fx);
}

static int let_all_read(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)ftw;
    return chmod(path, flag == FTW_D ? 0755 : 0644);
}

/* Exit code of a child that opens the directory as nobody and writes: the status, negated; 100: the sentence does not
 * name the directory. */
static int open_as_nobody(fx_t *fx)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        vc_err_t err = {0};
        if (setgroups(0, NULL) != 0 || setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0)
            _exit(101);
        vc_status_t opened = fx_open(fx, CS_IO_THREADS, &err);
        if (opened != VC_OK && !strstr(err.msg, fx->dir))
            _exit(100);
        if (opened == VC_OK && cs_store_is_readonly(fx->store) && fx_readable(fx, 1, 2, 0) == 2)
            opened = fx_register(fx, 2, 0, 1, FX_FULL);
        _exit(-(int)opened);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 102;
}

Test(store_health, a_directory_of_another_user_is_refused_with_one_sentence)
{
    if (getuid() != 0)
        cr_skip_test("only root can become another user");
    fx_t fx;
    fx_init(&fx, 3);
    cr_assert_eq(open_as_nobody(&fx), -VC_ERR_PERM); /* empty, and closed to others */
    fx_t made = fx;
    cr_assert_eq(fx_open(&made, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&made, 1, 0, 2, FX_FULL), VC_OK);
    fx_close(&made);
    cr_assert_eq(chmod(fx.dir, 0755), 0);
    cr_assert_eq(open_as_nobody(&fx), -VC_ERR_PERM); /* it can be entered, but its files are not for others */
    cr_assert_eq(nftw(fx.dir, let_all_read, 16, FTW_PHYS), 0);
    cr_assert_eq(open_as_nobody(&fx), -VC_ERR_READONLY); /* whose files may be read is served */
    cr_assert_eq(fx_open(&made, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_readable(&made, 1, 2, 0), 2);
    fx_fini(&made);
}

/* ---- the clock ---- */

Test(store_health, a_clock_that_steps_back_is_steady_from_where_it_was)
{
    cs_steady_t steady;
    vc_fake_clock_t fake;
    vc_fake_clock_init(&fake, 5000);
    cs_steady_init(&steady, &fake.clock);
    cr_assert_eq(vc_clock_now_us(&steady.clock), 5000);
    vc_fake_clock_advance(&fake, 100);
    cr_assert_eq(vc_clock_now_us(&steady.clock), 5100);
    fake.now_us = 10;
    cr_assert_eq(vc_clock_now_us(&steady.clock), 5100);
    vc_fake_clock_advance(&fake, 7);
    cr_assert_eq(vc_clock_now_us(&steady.clock), 5107);
    fake.now_us = 0;
    cr_assert_eq(vc_clock_now_us(&steady.clock), 5107);
    fake.now_us = UINT32_MAX;
    cr_assert_eq(vc_clock_now_us(&steady.clock), 5107 + (uint64_t)UINT32_MAX);
    cs_steady_fini(&steady);
}

Test(store_health, leases_and_uploads_end_in_time_though_the_clock_stepped_back)
{
    fx_t fx;
    cs_lookup_result_t r;
    cs_upload_info_t info;
    uint8_t missing[2];
    fx_init(&fx, 3);
    fx.opts.capacity_bytes = (uint64_t)64 << 20;
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_FULL), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 2, true, &r), VC_OK);
    cr_assert_eq(fx_begin(&fx, 2, 0, 1, FX_FULL, &info, missing), VC_OK);
    uint64_t start_us = fx.clock.now_us, step_us = (uint64_t)fx.opts.lease_ms * 500;
    fx.clock.now_us = start_us - 900000000; /* a quarter of an hour */
    cs_store_tick(fx.store);
    cr_assert_eq(fx_stats(&fx).leases_open, 1);
    cr_assert_eq(cs_store_lease_renew(fx.store, cs_store_boot_id(fx.store), r.lease_id, &r.token, 0, &start_us), VC_OK);
    vc_fake_clock_advance(&fx.clock, step_us);
    cs_store_tick(fx.store);
    cr_assert_eq(fx_stats(&fx).leases_open, 1);
    vc_fake_clock_advance(&fx.clock, step_us + 1000000);
    cs_store_tick(fx.store);
    cr_assert_eq(fx_stats(&fx).leases_open, 0);
    cr_assert_eq(fx_stats(&fx).leases_expired, 1);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, 0);
    vc_fake_clock_advance(&fx.clock, (uint64_t)fx.opts.upload_ms * 1000);
    cs_store_tick(fx.store);
    cr_assert_eq(fx_stats(&fx).uploads_open, 0);
    /* Eviction compares ages: it goes on choosing. */
    fx.clock.now_us -= 600000000;
    for (uint32_t seed = 100; fx_stats(&fx).evictions < 20 && seed < 2000; seed++)
        cr_assert_eq(fx_register(&fx, seed, 0, 100, FX_FULL), VC_OK);
    cr_assert_geq(fx_stats(&fx).evictions, 20);
    fx_fini(&fx);
}
