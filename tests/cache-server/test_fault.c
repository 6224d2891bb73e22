/*
 * The fault layer itself: what may be armed, that each action does what fault.h says, and the outcome for a store on a
 * disk that lies: torn writes and lost syncs cost records, never a wrong byte.
 */
#include "support/vc_test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "fault_file.h"
#include "store_fixture.h"
#include "uring.h"
#include "uring_hold.h"

#ifdef VC_FAULTS
Test(fault, malformed_texts_are_refused_and_arm_nothing)
{
    static const char *const bad[] = {"x",         "x:1",       "x:0:eio",    ":1:eio",     "x:a:eio",     "x:1:dance",
                                      "x:1:eio,y", "x:1:torn=", "x:1:torn=a", "x:1:eio=2x", "x:1:eio:more"};
    for (size_t i = 0; i < VC_ARRAY_LEN(bad); i++) {
        cr_assert_eq(cs_fault_arm("x:1+:eio"), VC_OK);
        cr_assert_eq(cs_fault_arm(bad[i]), VC_ERR_INVALID, "%s", bad[i]);
    }
    unsigned long arg;
    cr_assert_eq(cs_fault_arm("x:2:torn=7,y:1+:erofs"), VC_OK);
    cr_assert_eq(cs_fault_hit_arg("x", &arg), CS_FAULT_NONE);
    cr_assert_eq(cs_fault_hit_arg("x", &arg), CS_FAULT_TORN);
    cr_assert_eq(arg, 7);
    cr_assert_eq(cs_fault_hit("x"), CS_FAULT_NONE);
    cr_assert_eq(cs_fault_status(cs_fault_hit("y")), VC_ERR_READONLY);
    cr_assert_eq(cs_fault_status(cs_fault_hit("y")), VC_ERR_READONLY);
    cr_assert_eq(cs_fault_arm(NULL), VC_OK);
    cr_assert_eq(cs_fault_hit("y"), CS_FAULT_NONE);
}

/* ---- file calls ---- */

static int temp_file(char path[32])
{
    memcpy(path, "/tmp/vc-fault-XXXXXX", 21);
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    return fd;
}

static uint8_t byte_at(int fd, off_t at)
{
    uint8_t byte = 0xee;
    cr_assert_eq(pread(fd, &byte, 1, at), 1);
    return byte;
}

Test(fault, file_calls_fail_are_short_flipped_or_torn)
{
    char path[32];
    static uint8_t data[4096], back[4096];
    int fd = temp_file(path);
    memset(data, 1, sizeof(data));
    cr_assert_eq(cs_file_pwrite("w", fd, data, sizeof(data), 0), 4096);
    cr_assert_eq(cs_fault_arm("w:1:eio,w:2:enospc,w:3:short,w:4:torn=2,r:1:eio,r:2:short,r:3:flip,s:1:eio"), VC_OK);
    memset(data, 2, sizeof(data));
    cr_assert_eq(cs_file_pwrite("w", fd, data, sizeof(data), 0), -1);
    cr_assert_eq(errno, EIO);
    cr_assert_eq(cs_file_pwrite("w", fd, data, sizeof(data), 0), -1);
    cr_assert_eq(errno, ENOSPC);
    cr_assert_eq(byte_at(fd, 0), 1);
    cr_assert_eq(cs_file_pwrite("w", fd, data, sizeof(data), 0), 2048);
    cr_assert_eq(byte_at(fd, 2047), 2);
    cr_assert_eq(byte_at(fd, 2048), 1);
    memset(data, 3, sizeof(data));
    cr_assert_eq(cs_file_pwrite("w", fd, data, sizeof(data), 0), 4096); /* torn, and says it is whole */
    cr_assert_eq(byte_at(fd, 1023), 3);
    cr_assert_eq(byte_at(fd, 1024), 2);
    cr_assert_eq(cs_file_pread("r", fd, back, sizeof(back), 0), -1);
    cr_assert_eq(cs_file_pread("r", fd, back, sizeof(back), 0), 2048);
    cr_assert_eq(cs_file_pread("r", fd, back, sizeof(back), 0), 4096);
    cr_assert_eq(back[2048], 1 ^ 1);
    cr_assert_eq(cs_file_fdatasync("s", fd), -1);
    cr_assert_eq(errno, EIO);
    cr_assert_eq(cs_file_fdatasync("s", fd), 0);
    cs_fault_arm(NULL);
    close(fd);
    unlink(path);
}

/* Runs in a child that ends by the armed crash. */
static void write_three(const char *path, const char *spec)
{
    static uint8_t data[8192];
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(path, O_RDWR);
        cs_fault_arm(spec);
        for (int i = 0; i < 3; i++) {
            memset(data, 'a' + i, sizeof(data));
            if (cs_file_pwrite("w", fd, data, sizeof(data), (uint64_t)i * 8192) != 8192 || cs_file_fdatasync("s", fd))
                _exit(1);
        }
        cs_fault_hit("end");
        _exit(2);
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "%d", status);
}

Test(fault, a_crash_takes_what_no_real_sync_covered_and_nothing_else)
{
    char path[32];
    int fd = temp_file(path);
    cr_assert_eq(ftruncate(fd, 3 * 8192), 0);
    write_three(path, "s:3:lostsync,end:1:crash");
    cr_assert_eq(byte_at(fd, 0), 'a');
    cr_assert_eq(byte_at(fd, 8192), 'b');
    cr_assert_eq(byte_at(fd, 16384), 0);
    cr_assert_eq(byte_at(fd, 24575), 0);
    cr_assert_eq(ftruncate(fd, 0), 0);
    cr_assert_eq(ftruncate(fd, 3 * 8192), 0);
    write_three(path, "s:1:lostsync,end:1:crash"); /* a later sync that is real covers it */
    cr_assert_eq(byte_at(fd, 0), 'a');
    cr_assert_eq(byte_at(fd, 16384), 'c');
    write_three(path, "s:1+:lostsync,end:1:kill"); /* without a power cut nothing is lost */
    cr_assert_eq(byte_at(fd, 16384), 'c');
    cr_assert_eq(ftruncate(fd, 0), 0);
    cr_assert_eq(ftruncate(fd, 3 * 8192), 0);
    write_three(path, "s:1+:lostsync,end:1:crash=5");
    uint32_t kept = 0;
    for (int i = 0; i < 48; i++)
        kept += byte_at(fd, i * 512) != 0;
    cr_assert(kept > 0 && kept < 48, "%u of 48 sectors", kept);
    close(fd);
    unlink(path);
}

/* ---- transfers ---- */

typedef struct order {
    int names[8], n;
} order_t;

static order_t order;

static void note(cs_io_t *io, vc_status_t status)
{
    order.names[order.n++] = status == VC_OK ? (int)(intptr_t)io->arg : -1;
}

static void submit_reads(cs_uring_t *uring, int fd, cs_io_t *ios, uint8_t *data, int n)
{
    for (int i = 0; i < n; i++) {
        ios[i] = (cs_io_t){.fd = fd,
                           .buf_index = CS_IO_NO_BUF,
                           .data = data + 4096 * i,
                           .bytes = 4096,
                           .offset = (uint64_t)i * 4096,
                           .done = note,
                           .arg = (void *)(intptr_t)i};
        cs_uring_submit(uring, &ios[i]);
    }
    cs_uring_flush(uring);
}

static void held_in(cs_io_mode_t mode)
{
    char path[32];
    cs_uring_t *uring;
    cs_io_t ios[4];
    static uint8_t data[4 * 4096];
    int fd = temp_file(path);
    cr_assert_eq(ftruncate(fd, sizeof(data)), 0);
    cr_assert_eq(cs_uring_create(mode, 8, NULL, &uring, NULL), VC_OK);
    cr_assert_eq(cs_fault_arm("io.read:1:hold"), VC_OK);
    order.n = 0;
    submit_reads(uring, fd, ios, data, 3);
    while (order.n < 2)
        cs_uring_reap(uring);
    for (int i = 0; i < 100; i++)
        cs_uring_reap(uring);
    cs_fault_wait_held(1);
    cr_assert_eq(order.n, 2); /* the others passed it */
    cr_assert_eq(cs_uring_inflight(uring), 1);
    cs_fault_release();
    cs_uring_reap(uring);
    cr_assert_eq(order.n, 3);
    cr_assert_eq(cs_uring_inflight(uring), 0);
    order.n = 0;
    cr_assert_eq(cs_fault_arm("io.read:1:reorder"), VC_OK);
    submit_reads(uring, fd, ios, data, 1); /* nothing comes that could overtake it: it is not held for ever */
    while (order.n < 1)
        cs_uring_reap(uring);
    cr_assert_eq(cs_fault_arm("io.read:1:hold"), VC_OK);
    submit_reads(uring, fd, ios, data, 2);
    while (order.n < 2)
        cs_uring_reap(uring);
    cs_uring_destroy(uring); /* lets go of what is held */
    cr_assert_eq(order.n, 3);
    cs_fault_arm(NULL);
    close(fd);
    unlink(path);
}

Test(fault, a_held_transfer_ends_when_it_is_released_in_a_ring) { held_in(CS_IO_RING); }
Test(fault, a_held_transfer_ends_when_it_is_released_with_threads) { held_in(CS_IO_THREADS); }

static void reordered_in(cs_io_mode_t mode)
{
    char path[32];
    cs_uring_t *uring;
    cs_io_t ios[4];
    static uint8_t data[4 * 4096];
    int fd = temp_file(path);
    cr_assert_eq(ftruncate(fd, sizeof(data)), 0);
    cr_assert_eq(cs_uring_create(mode, 8, NULL, &uring, NULL), VC_OK);
    order.n = 0;
    cr_assert_eq(cs_fault_arm("io.write:1:hold=3"), VC_OK);
    ios[3] = (cs_io_t){.fd = fd,
                       .write = true,
                       .buf_index = CS_IO_NO_BUF,
                       .data = data + 3 * 4096,
                       .bytes = 4096,
                       .offset = 3 * 4096,
                       .done = note,
                       .arg = (void *)(intptr_t)3};
    cs_uring_submit(uring, &ios[3]);
    submit_reads(uring, fd, ios, data, 3);
    while (order.n < 4)
        cs_uring_reap(uring);
    cr_assert_eq(order.names[3], 3); /* begun first, told last */
    cs_uring_destroy(uring);
    cs_fault_arm(NULL);
    close(fd);
    unlink(path);
}

Test(fault, later_transfers_overtake_a_held_one_in_a_ring) { reordered_in(CS_IO_RING); }
Test(fault, later_transfers_overtake_a_held_one_with_threads) { reordered_in(CS_IO_THREADS); }

/* ---- a store on a disk that lies ---- */

Test(fault, a_torn_write_costs_its_record_and_is_counted)
{
    static const char *const torn[] = {"io.write:1:torn=0", "io.write:1:torn=3", "io.write:1:torn=8",
                                       "io.write:1:torn=9", "io.write:1:torn=31"};
    for (size_t i = 0; i < VC_ARRAY_LEN(torn); i++) {
        fx_t fx;
        cs_store_stats_t stats;
        fx_init(&fx, 3);
        cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
        cr_assert_eq(cs_fault_arm(torn[i]), VC_OK);
        cr_assert_eq(fx_register(&fx, 1, 0, 3, FX_FULL), VC_OK);
        cs_fault_arm(NULL);
        cr_assert_eq(fx_read(&fx, 1, 0, 0), VC_ERR_CORRUPT, "%s", torn[i]);
        cr_assert_eq(fx_read(&fx, 1, 0, 0), VC_ERR_NOT_FOUND);
        cr_assert_eq(fx_read(&fx, 1, 1, 0), VC_OK);
        cr_assert_eq(fx_read(&fx, 1, 2, 0), VC_OK);
        cs_store_get_stats(fx.store, &stats);
        cr_assert_eq(stats.corrupt_disk, 1);
        cr_assert_eq(fx_register(&fx, 1, 0, 3, FX_FULL), VC_OK); /* may come back */
        cr_assert_eq(fx_readable(&fx, 1, 3, 0), 3);
        fx_fini(&fx);
    }
}

/* Registers four chains until the armed fault ends it. */
static void register_armed(fx_t *fx, const void *spec)
{
    if (cs_fault_arm(spec) != VC_OK || fx_open(fx, CS_IO_AUTO, NULL) != VC_OK)
        _exit(1);
    for (uint32_t seed = 1; seed <= 4; seed++) {
        if (fx_register(fx, seed, 0, 3, FX_FULL) != VC_OK)
            _exit(2);
    }
    cs_fault_hit("test.end");
}

Test(fault, a_sync_that_lied_costs_records_at_the_power_cut_and_never_a_byte)
{
    fx_t fx;
    cs_store_stats_t stats;
    fx_init(&fx, 3);
    int status = fx_in_child(&fx, register_armed, "commit.sync:3+:lostsync,test.end:1:crash");
    cr_assert(WIFSIGNALED(status), "%d", status);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 3, 0), 3); /* synced for real */
    cr_assert_eq(fx_readable(&fx, 2, 3, 0), 3);
    for (uint32_t seed = 3; seed <= 4; seed++) {
        for (uint32_t b = 0; b < 3; b++) {
            cr_assert_eq(fx_read(&fx, seed, b, 0), VC_ERR_CORRUPT); /* found, not served */
            cr_assert_eq(fx_read(&fx, seed, b, 0), VC_ERR_NOT_FOUND);
        }
    }
    cs_store_get_stats(fx.store, &stats);
    cr_assert_eq(stats.corrupt_disk, 6);
    cr_assert_eq(fx_register(&fx, 3, 0, 3, FX_FULL), VC_OK);
    cr_assert_eq(fx_readable(&fx, 3, 3, 0), 3);
    fx_fini(&fx);
}

/* One test each: RocksDB does not work in a child of a process that has used it. */
static void power_cut_at(const char *point)
{
    fx_t fx;
    cs_store_stats_t stats;
    fx_init(&fx, 3);
    int status = fx_in_child(&fx, register_armed, point);
    cr_assert(WIFSIGNALED(status), "%s: %d", point, status);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 3, 0), 3, "%s", point);
    cr_assert_eq(fx_readable(&fx, 2, 3, 0), 3, "%s", point);
    int third = fx_readable(&fx, 3, 3, 0);
    cr_assert(third == 0 || third == 3, "%s: %d", point, third);
    cs_store_get_stats(fx.store, &stats);
    cr_assert_eq(stats.corrupt_disk, 0, "%s", point);
    fx_fini(&fx);
}

Test(fault, a_power_cut_at_a_write_loses_nothing_committed) { power_cut_at("io.write:7:crash"); }
Test(fault, a_partial_loss_at_a_write_loses_nothing_committed) { power_cut_at("io.write:8:crash=1"); }
Test(fault, a_partial_loss_after_a_put_loses_nothing_committed) { power_cut_at("put.done:7:crash=2"); }
Test(fault, a_partial_loss_at_a_sync_loses_nothing_committed) { power_cut_at("commit.sync:3:crash=3"); }
Test(fault, a_power_cut_before_the_rows_loses_nothing_committed) { power_cut_at("commit.before_write:3:crash"); }
Test(fault, a_power_cut_behind_the_rows_loses_nothing_committed) { power_cut_at("commit.after_write:3:crash"); }
#else
Test(fault, points_are_constants_in_an_ordinary_build) { cr_assert_eq(cs_fault_hit("x"), CS_FAULT_NONE); }
#endif
