/* Transfers in every io mode: all bytes or a status, many more than the queue is deep, ends of files, refused modes. */
#include "support/vc_test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fault.h"
#include "uring.h"
#include "vc/log.h"
#include "vc/mem.h"

static int temp_file(void)
{
    char path[] = "/tmp/vc-uring-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    unlink(path);
    return fd;
}

typedef struct result {
    int calls;
    vc_status_t status;
} result_t;

static void note(cs_io_t *io, vc_status_t status)
{
    result_t *r = io->arg;
    r->calls++;
    r->status = status;
}

static void drain(cs_uring_t *uring)
{
    while (cs_uring_inflight(uring) > 0) {
        cs_uring_flush(uring);
        cs_uring_reap(uring);
    }
}

static vc_status_t transfer(cs_uring_t *uring, int fd, bool write, cs_buf_t *buf, uint32_t bytes, uint64_t offset)
{
    result_t r = {0};
    cs_io_t io = {.fd = fd,
                  .write = write,
                  .buf_index = buf->index,
                  .data = buf->data,
                  .bytes = bytes,
                  .offset = offset,
                  .done = note,
                  .arg = &r};
    cs_uring_submit(uring, &io);
    drain(uring);
    cr_assert_eq(r.calls, 1);
    return r.status;
}

static void many_transfers(cs_io_mode_t mode)
{
    enum { N = 40 };
    cs_bufpool_t *pool;
    cs_uring_t *uring;
    vc_err_t err = {0};
    cr_assert_eq(cs_bufpool_create(N, 16384, &pool, NULL), VC_OK);
    cr_assert_eq(cs_uring_create(mode, 8, pool, &uring, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(cs_uring_mode(uring), mode);
    int fd = temp_file();
    static cs_io_t ios[N];
    static result_t results[N];
    for (int pass = 0; pass < 2; pass++) {
        memset(results, 0, sizeof(results));
        for (int i = 0; i < N; i++) {
            cs_buf_t *buf = cs_bufpool_at(pool, (uint32_t)i);
            memset(buf->data, pass == 0 ? i + 1 : 0xee, 16384);
            ios[i] = (cs_io_t){.fd = fd,
                               .write = pass == 0,
                               .buf_index = (uint32_t)i,
                               .data = buf->data,
                               .bytes = 16384,
                               .offset = (uint64_t)i * 16384,
                               .done = note,
                               .arg = &results[i]};
            cs_uring_submit(uring, &ios[i]);
        }
        cr_assert_eq(cs_uring_inflight(uring), N);
        drain(uring);
        for (int i = 0; i < N; i++) {
            cr_assert_eq(results[i].calls, 1);
            cr_assert_eq(results[i].status, VC_OK);
            const uint8_t *data = cs_bufpool_at(pool, (uint32_t)i)->data;
            cr_assert(data[0] == i + 1 && memcmp(data, data + 1, 16383) == 0);
        }
    }
    cs_uring_destroy(uring);
    cs_bufpool_destroy(pool);
    close(fd);
}

Test(uring, more_transfers_than_the_queue_is_deep_all_end_in_mode_fixed) { many_transfers(CS_IO_FIXED); }
Test(uring, more_transfers_than_the_queue_is_deep_all_end_in_mode_ring) { many_transfers(CS_IO_RING); }
Test(uring, more_transfers_than_the_queue_is_deep_all_end_in_mode_threads) { many_transfers(CS_IO_THREADS); }

static void ends_of_files(cs_io_mode_t mode)
{
    cs_bufpool_t *pool;
    cs_uring_t *uring;
    cr_assert_eq(cs_bufpool_create(1, 16384, &pool, NULL), VC_OK);
    cr_assert_eq(cs_uring_create(mode, 4, pool, &uring, NULL), VC_OK);
    cs_buf_t *buf = cs_bufpool_get(pool);
    int fd = temp_file();
    cr_assert_eq(ftruncate(fd, 10000), 0);
    cr_assert_eq(transfer(uring, fd, false, buf, 8192, 0), VC_OK);
    cr_assert_eq(transfer(uring, fd, false, buf, 12288, 0), VC_ERR_RANGE); /* ends inside a page */
    cr_assert_eq(transfer(uring, fd, false, buf, 4096, 40960), VC_ERR_RANGE);
    cr_assert_eq(transfer(uring, -1, false, buf, 4096, 0), VC_ERR_IO);
    int readonly = open("/dev/null", O_RDONLY);
    cr_assert_eq(transfer(uring, readonly, true, buf, 4096, 0), VC_ERR_IO); /* EBADF: not open for writing */
    int full = open("/dev/full", O_WRONLY);
    if (full >= 0)
        cr_assert_eq(transfer(uring, full, true, buf, 4096, 0), VC_ERR_NOSPACE);
    close(full);
    close(readonly);
    close(fd);
    cs_uring_destroy(uring);
    cs_bufpool_destroy(pool);
}

Test(uring, the_end_of_a_file_and_refusals_have_their_own_status_in_mode_fixed) { ends_of_files(CS_IO_FIXED); }
Test(uring, the_end_of_a_file_and_refusals_have_their_own_status_in_mode_ring) { ends_of_files(CS_IO_RING); }
Test(uring, the_end_of_a_file_and_refusals_have_their_own_status_in_mode_threads) { ends_of_files(CS_IO_THREADS); }

Test(uring, destroy_waits_for_what_is_in_flight)
{
    cs_bufpool_t *pool;
    cs_uring_t *uring;
    result_t r = {0};
    cr_assert_eq(cs_bufpool_create(1, 16384, &pool, NULL), VC_OK);
    for (cs_io_mode_t mode = CS_IO_FIXED; mode <= CS_IO_THREADS; mode++) {
        int fd = temp_file();
        cs_buf_t *buf = cs_bufpool_at(pool, 0);
        cr_assert_eq(cs_uring_create(mode, 4, pool, &uring, NULL), VC_OK);
        cs_io_t io = {
            .fd = fd, .write = true, .buf_index = 0, .data = buf->data, .bytes = 16384, .done = note, .arg = &r};
        cs_uring_submit(uring, &io);
        cs_uring_destroy(uring);
        cr_assert_eq(r.calls, (int)mode);
        cr_assert_eq(r.status, VC_OK);
        cr_assert_eq(lseek(fd, 0, SEEK_END), 16384);
        close(fd);
    }
    cs_bufpool_destroy(pool);
}

Test(uring, a_queue_depth_of_zero_is_refused)
{
    cs_uring_t *uring;
    cr_assert_eq(cs_uring_create(CS_IO_THREADS, 0, NULL, &uring, NULL), VC_ERR_RANGE);
}

static int warnings;
static char last_line[512];

static void count_warning(void *arg, vc_log_level_t level, const char *line)
{
    (void)arg;
    if (level == VC_LOG_WARN) {
        warnings++;
        snprintf(last_line, sizeof(last_line), "%s", line);
    }
}

/* An ordinary user with little memlock: registration of 16 MiB must be refused, and auto must go on without. */
static int as_ordinary_user(void)
{
    cs_bufpool_t *pool;
    cs_uring_t *uring;
    vc_err_t err = {0};
    struct rlimit limit = {1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (getuid() == 0 && setuid(65534) != 0))
        return 77;
    vc_log_set_sink(count_warning, NULL);
    if (cs_bufpool_create(4, 4 << 20, &pool, NULL) != VC_OK)
        return 2;
    if (cs_uring_create(CS_IO_FIXED, 8, pool, &uring, &err) != VC_ERR_UNSUPPORTED || !strstr(err.msg, "register"))
        return 3;
    if (cs_uring_create(CS_IO_AUTO, 8, pool, &uring, &err) != VC_OK || cs_uring_mode(uring) != CS_IO_RING)
        return 4;
    if (warnings != 1 || !strstr(last_line, "to=ring") || !strstr(last_line, "memlock"))
        return 5;
    int fd = temp_file();
    cs_buf_t *buf = cs_bufpool_get(pool);
    memset(buf->data, 7, 8192);
    if (transfer(uring, fd, true, buf, 8192, 0) != VC_OK)
        return 6;
    memset(buf->data, 0, 8192);
    if (transfer(uring, fd, false, buf, 8192, 0) != VC_OK || buf->data[8191] != 7)
        return 7;
    cs_uring_destroy(uring);
    cs_bufpool_destroy(pool);
    close(fd);
    return 0;
}

Test(uring, auto_steps_down_to_plain_reads_for_an_ordinary_user_and_says_why)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(as_ordinary_user());
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        cr_skip_test("cannot become an ordinary user here");
    cr_assert_eq(WEXITSTATUS(status), 0, "step %d failed", WEXITSTATUS(status));
}

#ifdef VC_FAULTS
Test(uring, short_transfers_are_continued_and_failures_reported)
{
    cs_bufpool_t *pool;
    cs_uring_t *uring;
    cr_assert_eq(cs_bufpool_create(2, 65536, &pool, NULL), VC_OK);
    for (cs_io_mode_t mode = CS_IO_FIXED; mode <= CS_IO_THREADS; mode++) {
        cr_assert_eq(cs_uring_create(mode, 4, pool, &uring, NULL), VC_OK);
        cs_buf_t *a = cs_bufpool_at(pool, 0), *b = cs_bufpool_at(pool, 1);
        int fd = temp_file();
        for (int i = 0; i < 65536; i++)
            a->data[i] = (uint8_t)(i * 7 + i / 4096);
        cr_assert_eq(cs_fault_arm("io.write:1:short,io.write:2:short,io.read:1:short,io.read:3:short"), VC_OK);
        cr_assert_eq(transfer(uring, fd, true, a, 65536, 0), VC_OK);
        memset(b->data, 0, 65536);
        cr_assert_eq(transfer(uring, fd, false, b, 65536, 0), VC_OK);
        cr_assert_arr_eq(a->data, b->data, 65536);
        cr_assert_eq(cs_fault_arm("io.read:1:eio,io.write:1:enospc"), VC_OK);
        cr_assert_eq(transfer(uring, fd, false, b, 65536, 0), VC_ERR_IO);
        cr_assert_eq(transfer(uring, fd, true, a, 65536, 0), VC_ERR_NOSPACE);
        cr_assert_eq(transfer(uring, fd, false, b, 65536, 0), VC_OK);
        cr_assert_eq(cs_fault_arm(NULL), VC_OK);
        cs_uring_destroy(uring);
        close(fd);
    }
    cs_bufpool_destroy(pool);
}

Test(uring, malformed_fault_texts_arm_nothing)
{
    cr_assert_eq(cs_fault_arm("x"), VC_ERR_INVALID);
    cr_assert_eq(cs_fault_arm("x:1"), VC_ERR_INVALID);
    cr_assert_eq(cs_fault_arm("x:0:eio"), VC_ERR_INVALID);
    cr_assert_eq(cs_fault_arm("x:1:explode"), VC_ERR_INVALID);
    cr_assert_eq(cs_fault_arm("x:2+:eio"), VC_OK);
    cr_assert_eq(cs_fault_hit("x"), CS_FAULT_NONE);
    cr_assert_eq(cs_fault_hit("y"), CS_FAULT_NONE);
    cr_assert_eq(cs_fault_hit("x"), CS_FAULT_EIO);
    cr_assert_eq(cs_fault_hit("x"), CS_FAULT_EIO);
    cr_assert_eq(cs_fault_arm(""), VC_OK);
    cr_assert_eq(cs_fault_hit("x"), CS_FAULT_NONE);
}
#endif

/* ---- who goes first ---- */

#define FLOOD_MAX 32 /* each transfer has a buffer of its own */

typedef struct flood {
    cs_bufpool_t *pool;
    cs_uring_t *uring;
    int fd;
    cs_io_t ios[FLOOD_MAX];
    result_t results[FLOOD_MAX];
    uint32_t n;
} flood_t;

static void flood_open(flood_t *f, uint32_t depth, uint32_t buf_bytes)
{
    memset(f, 0, sizeof(*f));
    cr_assert_eq(cs_bufpool_create(FLOOD_MAX, buf_bytes, &f->pool, NULL), VC_OK);
    cr_assert_eq(cs_uring_create(CS_IO_THREADS, depth, f->pool, &f->uring, NULL), VC_OK);
    f->fd = temp_file();
    cr_assert_eq(ftruncate(f->fd, FLOOD_MAX * (off_t)buf_bytes), 0);
}

static void flood_add(flood_t *f, bool write, bool is_ahead)
{
    cr_assert_lt(f->n, FLOOD_MAX);
    cs_buf_t *buf = cs_bufpool_at(f->pool, f->n);
    f->ios[f->n] = (cs_io_t){.fd = f->fd,
                             .write = write,
                             .ahead = is_ahead,
                             .buf_index = buf->index,
                             .data = buf->data,
                             .bytes = (uint32_t)buf->cap,
                             .offset = (uint64_t)buf->index * buf->cap,
                             .done = note,
                             .arg = &f->results[f->n]};
    cs_uring_submit(f->uring, &f->ios[f->n++]);
}

static void flood_close(flood_t *f)
{
    drain(f->uring);
    for (uint32_t i = 0; i < f->n; i++)
        cr_assert(f->results[i].calls == 1 && f->results[i].status == VC_OK);
    cs_uring_destroy(f->uring);
    cs_bufpool_destroy(f->pool);
    close(f->fd);
}

Test(uring, a_read_waits_for_no_more_than_a_few_megabytes_of_writes)
{
    flood_t f;
    flood_open(&f, 32, 1 << 20);
    for (int i = 0; i < 20; i++)
        flood_add(&f, true, false);
    cs_uring_flush(f.uring);
    cr_assert_eq(cs_uring_at_kernel(f.uring, true), 8);
    flood_add(&f, false, false);
    cs_uring_flush(f.uring);
    cr_assert_eq(cs_uring_at_kernel(f.uring, false), 1); /* at once, past twelve writes */
    cr_assert_eq(cs_uring_at_kernel(f.uring, true), 8);
    flood_close(&f);
}

/* So that the first of them arrives before the last: the device shares itself between all that it has. */
Test(uring, a_few_megabytes_of_reads_are_at_the_kernel_at_a_time)
{
    flood_t f;
    flood_open(&f, 32, 1 << 20);
    for (int i = 0; i < 20; i++)
        flood_add(&f, false, false);
    cs_uring_flush(f.uring);
    cr_assert_eq(cs_uring_at_kernel(f.uring, false), 6);
    flood_add(&f, true, false);
    cs_uring_flush(f.uring);
    cr_assert_eq(cs_uring_at_kernel(f.uring, true), 1);
    flood_close(&f);
}

Test(uring, one_large_read_goes_on_by_itself)
{
    flood_t f;
    flood_open(&f, 8, 9 << 20);
    flood_add(&f, false, false);
    flood_add(&f, false, false);
    cs_uring_flush(f.uring);
    cr_assert_eq(cs_uring_at_kernel(f.uring, false), 1);
    flood_close(&f);
}

Test(uring, one_large_write_goes_on_by_itself)
{
    flood_t f;
    flood_open(&f, 8, 9 << 20);
    flood_add(&f, true, false);
    flood_add(&f, true, false);
    cs_uring_flush(f.uring);
    cr_assert_eq(cs_uring_at_kernel(f.uring, true), 1);
    flood_close(&f);
}

Test(uring, many_reads_leave_places_for_writes)
{
    flood_t f;
    flood_open(&f, 16, 4096);
    for (int i = 0; i < 30; i++)
        flood_add(&f, false, false);
    flood_add(&f, true, false);
    cs_uring_flush(f.uring);
    cr_assert_eq(cs_uring_at_kernel(f.uring, false), 14);
    cr_assert_eq(cs_uring_at_kernel(f.uring, true), 1);
    flood_close(&f);
}

Test(uring, reads_ahead_take_a_quarter_and_none_while_a_read_waits)
{
    flood_t f;
    flood_open(&f, 16, 4096);
    for (int i = 0; i < 10; i++)
        flood_add(&f, false, true);
    cs_uring_flush(f.uring);
    cr_assert_eq(cs_uring_at_kernel(f.uring, false), 4);
    for (int i = 0; i < 20; i++)
        flood_add(&f, false, false);
    cs_uring_flush(f.uring);
    cr_assert_eq(cs_uring_at_kernel(f.uring, false), 14); /* ten of those, past six reads ahead */
    flood_close(&f);
}

/* ---- slabs ---- */

static void reads_into_slabs(cs_io_mode_t mode)
{
    enum { SLAB = 16384 };
    cs_bufpool_t *pool;
    cs_uring_t *uring;
    vc_err_t err = {0};
    uint8_t *slabs = vc_alloc_aligned(4096, 2 * SLAB + 4096);
    cr_assert_eq(cs_bufpool_create(2, SLAB, &pool, NULL), VC_OK);
    cs_bufpool_attach(pool, slabs, 2 * SLAB + 4096, SLAB); /* the third is short */
    cr_assert_eq(cs_uring_create(mode, 4, pool, &uring, &err), VC_OK, "%s", err.msg);
    int fd = temp_file();
    cs_buf_t *buf = cs_bufpool_at(pool, 1);
    for (int i = 0; i < SLAB; i++)
        buf->data[i] = (uint8_t)(i / 4096 + 1);
    cr_assert_eq(transfer(uring, fd, true, buf, SLAB, 0), VC_OK);
    for (uint32_t pass = 0; pass < 3; pass++) { /* not used before; registered now; found so */
        cs_bufpool_note_used(pool, pass * SLAB * 2);
        memset(slabs, 0, 2 * SLAB + 4096);
        for (uint32_t slab = 0; slab < 3; slab++) {
            uint32_t bytes = slab < 2 ? 8192 : 4096;
            cs_buf_t into = {.data = slabs + slab * SLAB, .index = 2 + slab};
            cr_assert_eq(transfer(uring, fd, false, &into, bytes, 4096), VC_OK);
            cr_assert(into.data[0] == 2 && into.data[bytes - 1] == (slab < 2 ? 3 : 2));
        }
    }
    cs_uring_destroy(uring);
    cs_bufpool_destroy(pool);
    vc_free(slabs);
    close(fd);
}

Test(uring, slabs_are_read_into_in_mode_fixed) { reads_into_slabs(CS_IO_FIXED); }
Test(uring, slabs_are_read_into_in_mode_ring) { reads_into_slabs(CS_IO_RING); }
Test(uring, slabs_are_read_into_in_mode_threads) { reads_into_slabs(CS_IO_THREADS); }
