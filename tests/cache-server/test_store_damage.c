/* Damage on disk: found, counted, dropped, never served; everything else goes on. */
#include "support/vc_test.h"

#include "fault.h"
#include "store_fixture.h"
#include "support/logcap.h"
#include "verify.h"

static void open_with(fx_t *fx, uint32_t n_layer)
{
    vc_err_t err = {0};
    fx_init(fx, n_layer);
    cr_assert_eq(fx_open(fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
}

/* Every page of the record, and every region of the header, one flip at a time. */
static void flip_everywhere(uint32_t f)
{
    fx_t fx;
    cs_pin_t pin;
    cs_lookup_result_t r;
    open_with(&fx, 3);
    static const uint32_t in_header[] = {0,  5,   9,   13,  16,  20,  30,  40,  50,  64,
                                         80, 112, 144, 176, 192, 200, 210, 230, 255, 4095};
    uint32_t n = 0;
    cr_assert_eq(fx_register(&fx, 500, 0, 3, FX_BOTH), VC_OK);
    for (uint32_t seed = 0; seed < 60; seed++) {
        cr_assert_eq(fx_register(&fx, seed, 0, 3, FX_BOTH), VC_OK);
        cr_assert_eq(fx_pin(&fx, seed, 1, f, &pin), VC_OK);
        uint32_t at = seed < 20 ? in_header[seed] : 4096 + (seed - 20) * ((pin.bytes - 4096) / 40);
        fx_flip_byte(&fx, &pin, at);
        cs_store_unpin(fx.store, &pin);
        cr_assert_eq(fx_read(&fx, seed, 1, f), VC_ERR_CORRUPT, "byte %u", at);
        n++;
        cr_assert_eq(fx_stats(&fx).corrupt_disk, n);
        cr_assert_eq(fx_read(&fx, seed, 1, f), VC_ERR_NOT_FOUND);
        cr_assert_eq(fx_lookup(&fx, seed, 3, true, &r), VC_OK); /* without a lease it would be a probe, not counted */
        cr_assert_eq(r.n_blocks[f], 1);
        cr_assert_eq(r.miss[f], CS_MISS_CORRUPT);
        cr_assert_eq(r.n_blocks[1 - f], 3); /* the other copy is not touched */
        cr_assert_eq(fx_read(&fx, seed, 0, f), VC_OK);
        cr_assert_eq(fx_read(&fx, seed, 2, f), VC_OK);
    }
    cr_assert_eq(fx_stats(&fx).miss_corrupt, 60);
    cr_assert_eq(fx_readable(&fx, 500, 3, f), 3);
    cr_assert_eq(fx_register(&fx, 7, 0, 3, FX_BOTH), VC_OK); /* may come back */
    cr_assert_eq(fx_readable(&fx, 7, 3, f), 3);
    cr_assert_eq(fx_reopen(&fx), VC_OK); /* the drop is durable */
    cr_assert_eq(fx_read(&fx, 8, 1, f), VC_ERR_NOT_FOUND);
    cr_assert_eq(fx_readable(&fx, 7, 3, f), 3);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 0);
    fx_fini(&fx);
}

Test(store_damage, a_flip_in_any_part_of_a_full_record_is_found) { flip_everywhere(0); }
Test(store_damage, a_flip_in_any_part_of_a_compressed_record_is_found) { flip_everywhere(1); }

Test(store_damage, a_segment_file_that_grew_is_cut_and_pushes_nothing_out)
{
    fx_t fx;
    cs_pin_t pin;
    char path[512];
    struct stat before, after;
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 4, FX_FULL), VC_OK);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &pin), VC_OK);
    fx_segment_path(&fx, pin.segment, path, sizeof(path));
    cs_store_unpin(fx.store, &pin);
    uint64_t used = fx_stats(&fx).used_bytes;
    cr_assert_eq(stat(path, &before), 0);
    fx_close(&fx);
    cr_assert_eq(truncate(path, (off_t)1 << 32), 0); /* sparse */
    vc_err_t err = {0};
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(stat(path, &after), 0);
    cr_assert_eq(after.st_size, before.st_size);
    cr_assert_eq(fx_readable(&fx, 1, 4, 0), 4);
    cr_assert_leq(fx_stats(&fx).used_bytes, used + (16u << 20));
    cr_assert_eq(fx_register(&fx, 2, 0, 4, FX_FULL), VC_OK);
    fx_fini(&fx);
}

Test(store_damage, a_segment_that_is_gone_is_forgotten_by_the_start)
{
    fx_t fx;
    cs_pin_t pin;
    char path[512];
    cs_verify_report_t *report;
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 4, FX_FULL), VC_OK);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &pin), VC_OK);
    fx_segment_path(&fx, pin.segment, path, sizeof(path));
    cs_store_unpin(fx.store, &pin);
    fx_close(&fx);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(mkfifo(path, 0600), 0); /* and its number cannot be used again */
    vc_err_t err = {0};
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(fx_register(&fx, 1, 0, 4, FX_FULL), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 4, 0), 4);
    fx_close(&fx);
    cs_verify_opts_t opts = {.data_dir = fx.dir, .max_findings = 3};
    cr_assert_eq(cs_verify(&opts, &report, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(cs_verify_n_damage(report), 0, "%s", report->n_findings > 0 ? report->findings[0].text : "");
    cs_verify_free(report);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    fx_fini(&fx);
}

Test(store_damage, names_that_are_taken_do_not_keep_segments_from_being_made)
{
    fx_t fx;
    vc_err_t err = {0};
    char path[512];
    fx_init(&fx, 3);
    mkdir(fx.dir, 0700);
    snprintf(path, sizeof(path), "%s/segments", fx.dir);
    cr_assert_eq(mkdir(path, 0700), 0);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/segments/0000000%d.seg", fx.dir, i);
        cr_assert_eq(i == 1 ? symlink("/nowhere", path) : mkdir(path, 0700), 0);
    }
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(fx_register(&fx, 1, 0, 4, FX_FULL), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 4, 0), 4);
    cr_assert_eq(rmdir(path), 0); /* left alone */
    fx_fini(&fx);
}

Test(store_damage, a_sound_record_in_the_wrong_place_is_not_served)
{
    fx_t fx;
    cs_pin_t a, b;
    char path[512];
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_FULL), VC_OK);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &a), VC_OK);
    cr_assert_eq(fx_pin(&fx, 1, 1, 0, &b), VC_OK);
    fx_segment_path(&fx, a.segment, path, sizeof(path));
    int fd = open(path, O_RDWR);
    uint8_t *data = malloc(a.bytes);
    cr_assert_eq(pread(fd, data, a.bytes, (off_t)a.offset), (ssize_t)a.bytes);
    cr_assert_eq(pwrite(fd, data, a.bytes, (off_t)b.offset), (ssize_t)a.bytes);
    cr_assert_eq(fsync(fd), 0);
    close(fd);
    free(data);
    cs_store_unpin(fx.store, &a);
    cs_store_unpin(fx.store, &b);
    cr_assert_eq(fx_read(&fx, 1, 1, 0), VC_ERR_CORRUPT);
    cr_assert_eq(fx_read(&fx, 1, 0, 0), VC_OK);
    fx_fini(&fx);
}

Test(store_damage, a_leased_record_that_turns_out_damaged_is_not_found_any_more)
{
    fx_t fx;
    cs_pin_t pin;
    cs_lookup_result_t r;
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 3, FX_FULL), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 3, true, &r), VC_OK);
    uint64_t boot = cs_store_boot_id(fx.store);
    cr_assert_eq(cs_store_pin_leased(fx.store, boot, r.lease_id, &r.token, 0, 1, &pin), VC_OK);
    fx_flip_byte(&fx, &pin, 5000);
    cs_buf_t *buf = cs_bufpool_get(fx.pool);
    cr_assert_eq(fx_read_pin(&fx, &pin, buf), VC_ERR_CORRUPT);
    cr_assert_eq(fx_read_pin(&fx, &pin, buf), VC_ERR_CORRUPT); /* the pin still reads; counted once */
    cs_bufpool_put(fx.pool, buf);
    cs_store_unpin(fx.store, &pin);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 1);
    cr_assert_eq(cs_store_pin_leased(fx.store, boot, r.lease_id, &r.token, 0, 1, &pin), VC_ERR_NOT_FOUND);
    /* Its entry is used again for another object: the lease must not take that one for its own. */
    cr_assert_eq(fx_register(&fx, 9, 0, 3, FX_FULL), VC_OK);
    cr_assert_eq(cs_store_pin_leased(fx.store, boot, r.lease_id, &r.token, 0, 1, &pin), VC_ERR_NOT_FOUND);
    cr_assert_eq(cs_store_pin_leased(fx.store, boot, r.lease_id, &r.token, 0, 2, &pin), VC_OK);
    cs_store_unpin(fx.store, &pin);
    cr_assert_eq(cs_store_lease_release(fx.store, boot, r.lease_id, &r.token), VC_OK);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, 0);
    fx_fini(&fx);
}

Test(store_damage, a_readers_report_is_checked_against_the_disk)
{
    fx_t fx;
    cs_pin_t pin;
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_FULL), VC_OK);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &pin), VC_OK);
    cs_store_report_corrupt(fx.store, &pin); /* the wire was at fault: the disk is sound */
    cs_store_tick(fx.store);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 0);
    cr_assert_eq(fx_read(&fx, 1, 0, 0), VC_OK);
    fx_flip_byte(&fx, &pin, 9000);
    cs_store_report_corrupt(fx.store, &pin);
    cs_store_unpin(fx.store, &pin);
    cs_store_tick(fx.store);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 1);
    cr_assert_eq(fx_read(&fx, 1, 0, 0), VC_ERR_NOT_FOUND);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, 0);
    cs_store_count_wire_corrupt(fx.store);
    cr_assert_eq(fx_stats(&fx).corrupt_wire, 1);
    fx_fini(&fx);
}

Test(store_damage, a_segment_file_cut_short_loses_only_what_was_behind_the_cut)
{
    fx_t fx;
    cs_pin_t pin;
    char path[512];
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 10, FX_FULL), VC_OK);
    cr_assert_eq(fx_pin(&fx, 1, 6, 0, &pin), VC_OK);
    fx_segment_path(&fx, pin.segment, path, sizeof(path));
    cs_store_unpin(fx.store, &pin);
    cr_assert_eq(truncate(path, (off_t)(pin.offset + pin.bytes / 2)), 0);
    cr_assert_eq(fx_read(&fx, 1, 7, 0), VC_ERR_CORRUPT); /* while running: the read runs into the end */
    cr_assert_eq(fx_readable(&fx, 1, 6, 0), 6);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 3); /* 6, 8, 9; 7 was dropped before */
    cr_assert_eq(fx_readable(&fx, 1, 10, 0), 6);
    cr_assert_eq(fx_register(&fx, 1, 0, 10, FX_FULL), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 10, 0), 10);
    fx_fini(&fx);
}

Test(store_damage, a_missing_segment_file_costs_its_objects_only)
{
    fx_t fx;
    cs_pin_t pin;
    char path[512];
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 5, FX_BOTH), VC_OK);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &pin), VC_OK);
    fx_segment_path(&fx, pin.segment, path, sizeof(path));
    cs_store_unpin(fx.store, &pin);
    fx_close(&fx);
    cr_assert_eq(unlink(path), 0);
    vt_logcap_start(VC_LOG_INFO);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert(vt_logcap_has("rows dropped at start n=5 reason=\"their segment file is missing\""), "%s",
              vt_logcap_text());
    vt_logcap_stop();
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 5);
    cr_assert_eq(fx_readable(&fx, 1, 5, 0), 0);
    cr_assert_eq(fx_readable(&fx, 1, 5, 1), 5);
    cr_assert_eq(fx_register(&fx, 1, 0, 5, FX_FULL), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 5, 0), 5);
    fx_fini(&fx);
}

Test(store_damage, a_segment_file_without_a_row_is_reused_and_junk_is_no_object)
{
    fx_t fx;
    char path[512];
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_FULL), VC_OK);
    fx_close(&fx);
    fx_segment_path(&fx, 40, path, sizeof(path)); /* as after a crash between creation and the first commit */
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    cr_assert_eq(ftruncate(fd, 12345), 0);
    close(fd);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_neq(access(path, F_OK), 0);
    cr_assert_eq(fx_readable(&fx, 1, 2, 0), 2);
    fx_fini(&fx);
}

#ifdef VC_FAULTS
Test(store_damage, a_read_error_is_no_corruption)
{
    fx_t fx;
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_FULL), VC_OK);
    cr_assert_eq(cs_fault_arm("io.read:1:eio"), VC_OK);
    cr_assert_eq(fx_read(&fx, 1, 0, 0), VC_ERR_IO);
    cr_assert_eq(fx_read(&fx, 1, 0, 0), VC_OK);
    cr_assert_eq(cs_fault_arm("io.read:1:flip"), VC_OK);
    cr_assert_eq(fx_read(&fx, 1, 1, 0), VC_ERR_CORRUPT);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 1);
    cs_fault_arm(NULL);
    fx_fini(&fx);
}

Test(store_damage, a_failed_write_fails_its_put_and_a_second_try_works)
{
    static const char *const faults[] = {"io.write:1:eio", "io.write:1:enospc"};
    static const vc_status_t want[] = {VC_ERR_IO, VC_ERR_NOSPACE};
    for (int i = 0; i < 2; i++) {
        fx_t fx;
        cs_upload_info_t info;
        uint8_t missing[8];
        open_with(&fx, 3);
        cr_assert_eq(fx_begin(&fx, 1, 0, 2, FX_FULL, &info, missing), VC_OK);
        cr_assert_eq(cs_fault_arm(faults[i]), VC_OK);
        cr_assert_eq(fx_put(&fx, &info, 1, 0, 0), want[i]);
        cr_assert_eq(fx_commit(&fx, &info), VC_ERR_INVALID);
        cr_assert_eq(fx_put(&fx, &info, 1, 0, 0), VC_OK);
        cr_assert_eq(fx_put(&fx, &info, 1, 1, 0), VC_OK);
        cr_assert_eq(fx_commit(&fx, &info), VC_OK);
        cr_assert_eq(fx_readable(&fx, 1, 2, 0), 2);
        cs_fault_arm(NULL);
        fx_fini(&fx);
    }
}

Test(store_damage, a_segment_that_cannot_be_opened_at_the_start_is_not_taken_for_a_missing_one)
{
    fx_t fx;
    vc_err_t err = {0};
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_BOTH), VC_OK);
    fx_close(&fx);
    cr_assert_eq(cs_fault_arm("segment.open:1:eio"), VC_OK);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_ERR_IO);
    cr_assert_not_null(strstr(err.msg, ".seg"), "%s", err.msg);
    cs_fault_arm(NULL);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(fx_readable(&fx, 1, 2, 0), 2);
    cr_assert_eq(fx_readable(&fx, 1, 2, 1), 2);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 0);
    fx_fini(&fx);
}

Test(store_damage, a_failed_sync_fails_the_commit_and_nothing_becomes_visible)
{
    fx_t fx;
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_FULL), VC_OK);
    cr_assert_eq(cs_fault_arm("commit.sync:1:eio"), VC_OK);
    cr_assert_eq(fx_register(&fx, 2, 0, 2, FX_FULL), VC_ERR_IO);
    cr_assert_eq(fx_readable(&fx, 2, 2, 0), 0);
    cr_assert_eq(fx_register(&fx, 2, 0, 2, FX_FULL), VC_OK); /* into another segment */
    cr_assert_eq(fx_readable(&fx, 1, 2, 0), 2);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(fx_readable(&fx, 2, 2, 0), 2);
    cs_fault_arm(NULL);
    fx_fini(&fx);
}

/* The kernel tells of a lost write once. A second sync says OK, and must not be believed. */
Test(store_damage, after_a_failed_sync_what_others_put_into_the_segment_before_is_not_committed_either)
{
    fx_t fx;
    cs_upload_info_t a, b;
    uint8_t missing[2];
    open_with(&fx, 3);
    cr_assert_eq(fx_begin(&fx, 1, 0, 1, FX_FULL, &a, missing), VC_OK);
    cr_assert_eq(fx_begin(&fx, 2, 0, 1, FX_FULL, &b, missing), VC_OK);
    cr_assert_eq(fx_put(&fx, &a, 1, 0, 0), VC_OK);
    cr_assert_eq(fx_put(&fx, &b, 2, 0, 0), VC_OK); /* into the same segment */
    cr_assert_eq(cs_fault_arm("commit.sync:1:eio"), VC_OK);
    cr_assert_eq(fx_commit(&fx, &a), VC_ERR_IO);
    cr_assert_eq(fx_commit(&fx, &b), VC_ERR_IO);
    cs_fault_arm(NULL);
    cr_assert_eq(fx_readable(&fx, 2, 1, 0), 0);
    cr_assert_eq(fx_register(&fx, 2, 0, 1, FX_FULL), VC_OK); /* into another segment */
    cr_assert_eq(fx_readable(&fx, 2, 1, 0), 1);
    fx_fini(&fx);
}

Test(store_damage, a_failed_catalog_write_stops_writes_until_the_catalog_was_reopened)
{
    fx_t fx;
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_FULL), VC_OK);
    cr_assert_eq(cs_fault_arm("catalog.write:1:eio"), VC_OK);
    cr_assert_eq(fx_register(&fx, 2, 0, 2, FX_FULL), VC_ERR_IO);
    cs_fault_arm(NULL);
    cr_assert_eq(fx_readable(&fx, 1, 2, 0), 2); /* reads go on */
    cr_assert_eq(fx_readable(&fx, 2, 2, 0), 0);
    /* The tick makes the commit thread look again; it reopens the catalog, and writes go on without a restart. */
    cr_assert_eq(fx_tick_until(&fx, VC_OK, 3, 2, FX_FULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 2, 0, 2, FX_FULL), VC_OK);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    for (uint32_t seed = 1; seed <= 3; seed++)
        cr_assert_eq(fx_readable(&fx, seed, 2, 0), 2);
    fx_fini(&fx);
}

/* Every way to make, open or sync a file may fail: a put or commit is refused, and the next one works. */
static void survives(const char *fault)
{
    fx_t fx;
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_FULL), VC_OK);
    cr_assert_eq(cs_fault_arm(fault), VC_OK);
    (void)fx_register(&fx, 2, 0, 50, FX_BOTH);
    cr_assert_eq(fx_readable(&fx, 1, 2, 0), 2);
    cs_fault_arm(NULL);
    vc_status_t status = fx_tick_until(&fx, VC_OK, 3, 50, FX_BOTH);
    cr_assert_eq(status, VC_OK, "%s: %s", fault, vc_status_name(status));
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 2, 0), 2);
    cr_assert_eq(fx_readable(&fx, 3, 50, 0), 50);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 0, "%s", fault);
    fx_fini(&fx);
}

Test(store_damage, a_segment_that_cannot_be_made_is_survived) { survives("segment.create:1+:eio"); }
Test(store_damage, a_segment_header_that_cannot_be_written_is_survived) { survives("segment.header:1+:eio"); }
Test(store_damage, a_directory_that_cannot_be_synced_is_survived) { survives("segment.dirsync:1+:eio"); }
Test(store_damage, a_disk_that_refuses_every_sync_for_a_while_is_survived) { survives("commit.sync:1+:eio"); }
Test(store_damage, a_disk_that_refuses_every_write_for_a_while_is_survived) { survives("io.write:1+:eio"); }
Test(store_damage, a_catalog_that_takes_no_write_for_a_while_is_survived) { survives("catalog.write:1+:eio"); }
Test(store_damage, a_catalog_that_cannot_be_reopened_at_once_is_survived)
{
    survives("catalog.write:1+:eio,catalog.open:1:eio");
}

Test(store_damage, short_transfers_go_on_where_they_stopped)
{
    fx_t fx;
    open_with(&fx, 6);
    cr_assert_eq(cs_fault_arm("io.write:1+:short"), VC_OK);
    vc_status_t status = fx_register(&fx, 1, 0, 5, FX_BOTH);
    cr_assert(status == VC_OK || status == VC_ERR_NOSPACE); /* a write that moves nothing twice has no room */
    cr_assert_eq(cs_fault_arm("io.write:1:short,io.read:1:short"), VC_OK);
    cr_assert_eq(fx_register(&fx, 2, 0, 5, FX_BOTH), VC_OK);
    cr_assert_eq(fx_readable(&fx, 2, 5, 0), 5);
    cr_assert_eq(fx_readable(&fx, 2, 5, 1), 5);
    cr_assert_eq(fx_stats(&fx).corrupt_disk, 0);
    cs_fault_arm(NULL);
    fx_fini(&fx);
}
#endif
