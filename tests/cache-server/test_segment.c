/* Segment files: sizes, headers, appends, reuse under a new version, and what the directory holds afterwards. */
#include "support/vc_test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "segment.h"
#include "vc/bytes.h"

static char dir_path[64];
static cs_segdir_t *open_dir(void)
{
    cs_segdir_t *dir;
    strcpy(dir_path, "/tmp/vc-segment-XXXXXX");
    cr_assert_not_null(mkdtemp(dir_path));
    cr_assert_eq(cs_segdir_open(dir_path, false, &dir, NULL), VC_OK);
    return dir;
}

static void close_dir(cs_segdir_t *dir)
{
    char path[128];
    cs_segdir_close(dir);
    snprintf(path, sizeof(path), "rm -rf %s", dir_path);
    cr_assert_eq(system(path), 0);
}

Test(segment, file_size_follows_the_capacity_within_its_bounds)
{
    const uint64_t mib = (uint64_t)1 << 20;
    cr_assert_eq(cs_segment_file_bytes(0, 4096), 4 * mib);
    cr_assert_eq(cs_segment_file_bytes(64 * 10 * mib, 4096), 10 * mib);
    cr_assert_eq(cs_segment_file_bytes((uint64_t)1 << 50, 4096), 256 * mib);
    cr_assert_eq(cs_segment_file_bytes(0, 8 * mib), 8 * mib + 4096); /* one record and the header always fit */
    cr_assert_eq(cs_segment_file_bytes(64 * 10 * mib + 64, 4096) % 4096, 0);
}

Test(segment, a_new_file_is_allocated_whole_and_carries_its_header)
{
    cs_segdir_t *dir = open_dir();
    cs_segment_t a, b;
    struct stat st;
    uint32_t version = 0;
    cr_assert_eq(cs_segment_create(dir, 7, 1, 1 << 20, &a, NULL), VC_OK);
    cr_assert_eq(fstat(a.fd, &st), 0);
    cr_assert_eq(st.st_size, 1 << 20);
    cr_assert_geq(st.st_blocks * 512, 1 << 20);
    cr_assert_eq(cs_segment_create(dir, 7, 1, 1 << 20, &b, NULL), VC_ERR_BUSY); /* EEXIST: never over another file */
    cs_segment_close(&a);
    cr_assert_eq(cs_segment_open(dir, 7, &b, NULL), VC_OK);
    cr_assert_eq(b.bytes, 1 << 20);
    cr_assert_eq(cs_segment_read_header(&b, &version, NULL), VC_OK);
    cr_assert_eq(version, 1);
    cr_assert_eq(cs_segment_recycle(&b, 5, NULL), VC_OK);
    cr_assert_eq(cs_segment_read_header(&b, &version, NULL), VC_OK);
    cr_assert_eq(version, 5);
    cr_assert_eq(cs_segment_remove(dir, &b, NULL), VC_OK);
    cr_assert_eq(cs_segment_open(dir, 7, &b, NULL), VC_ERR_NOT_FOUND);
    close_dir(dir);
}

Test(segment, the_header_page_has_the_documented_bytes)
{
    cs_segdir_t *dir = open_dir();
    cs_segment_t segment;
    char path[128];
    uint8_t page[4096];
    cr_assert_eq(cs_segment_create(dir, 3, 9, 1 << 20, &segment, NULL), VC_OK);
    cs_segment_close(&segment);
    snprintf(path, sizeof(path), "%s/segments/00000003.seg", dir_path);
    int fd = open(path, O_RDWR);
    cr_assert_eq(pread(fd, page, sizeof(page), 0), (ssize_t)sizeof(page));
    cr_assert_eq(memcmp(page, "VCSG", 4), 0);
    cr_assert_eq(vc_le32(page + 4), 1);
    cr_assert_eq(vc_le32(page + 12), 3);
    cr_assert_eq(vc_le32(page + 16), 9);
    cr_assert_eq(vc_le64(page + 24), 1 << 20);
    for (int i = 32; i < 4096; i++)
        cr_assert_eq(page[i], 0);
    /* A flipped bit anywhere in the page is noticed. */
    for (int at = 0; at < 4096; at += 31) {
        uint32_t version;
        uint8_t flipped = page[at] ^ 4;
        cr_assert_eq(pwrite(fd, &flipped, 1, at), 1);
        cr_assert_eq(cs_segment_open(dir, 3, &segment, NULL), VC_OK);
        cr_assert_eq(cs_segment_read_header(&segment, &version, NULL), VC_ERR_CORRUPT, "byte %d", at);
        cs_segment_close(&segment);
        cr_assert_eq(pwrite(fd, &page[at], 1, at), 1);
    }
    close(fd);
    close_dir(dir);
}

Test(segment, appends_are_adjacent_and_end_at_the_file)
{
    cs_segment_t s = {.state = CS_SEGMENT_OPEN, .bytes = 5 * 4096, .tail = CS_SEGMENT_HEADER_BYTES};
    uint64_t a, b, c;
    cr_assert(cs_segment_append(&s, 8192, &a));
    cr_assert(cs_segment_append(&s, 4096, &b));
    cr_assert_eq(a, 4096);
    cr_assert_eq(b, 12288);
    cr_assert_not(cs_segment_append(&s, 8192, &c));
    cr_assert_eq(s.writers, 2);
    cs_segment_unappend(&s, a, 8192); /* not the last: stays as a hole */
    cr_assert_eq(s.tail, 16384);
    cs_segment_unappend(&s, b, 4096); /* the last: given back */
    cr_assert_eq(s.tail, 12288);
    cr_assert_eq(s.writers, 0);
    s.is_bad = true;
    cr_assert_not(cs_segment_append(&s, 4096, &c));
    s.is_bad = false;
    s.state = CS_SEGMENT_SEALED;
    cr_assert_not(cs_segment_append(&s, 4096, &c));
}

static unsigned n_listed;
static uint32_t sum_listed;
static void on_file(void *arg, uint32_t number, uint64_t bytes)
{
    (void)arg;
    n_listed++;
    sum_listed += number;
    cr_assert_eq(bytes, 1 << 20);
}

Test(segment, other_files_in_the_directory_are_left_alone)
{
    cs_segdir_t *dir = open_dir();
    cs_segment_t segment;
    char path[128];
    for (uint32_t i = 1; i <= 3; i++) {
        cr_assert_eq(cs_segment_create(dir, i, 1, 1 << 20, &segment, NULL), VC_OK);
        cs_segment_close(&segment);
    }
    static const char *const names[] = {"x.seg", "0000000a.seg", "00000004.seg.bak", "00000005", "note"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/segments/%s", dir_path, names[i]);
        close(open(path, O_CREAT | O_WRONLY, 0600));
    }
    snprintf(path, sizeof(path), "%s/segments/00000009.seg", dir_path);
    cr_assert_eq(symlink("/etc/passwd", path), 0); /* no regular file: not ours */
    n_listed = sum_listed = 0;
    cr_assert_eq(cs_segdir_list(dir, on_file, NULL, NULL), VC_OK);
    cr_assert_eq(n_listed, 3);
    cr_assert_eq(sum_listed, 6);
    close_dir(dir);
}

Test(segment, a_file_that_does_not_fit_on_the_disk_leaves_nothing_behind)
{
    cs_segdir_t *dir = open_dir();
    cs_segment_t segment;
    vc_err_t err = {0};
    vc_status_t status = cs_segment_create(dir, 1, 1, (uint64_t)1 << 55, &segment, &err);
    cr_assert(status == VC_ERR_NOSPACE || status == VC_ERR_IO, "%s", vc_status_name(status)); /* ENOSPC or EFBIG */
    cr_assert_not_null(strstr(err.msg, "00000001.seg"));
    n_listed = 0;
    cr_assert_eq(cs_segdir_list(dir, on_file, NULL, NULL), VC_OK);
    cr_assert_eq(n_listed, 0);
    close_dir(dir);
}

Test(segment, a_file_system_without_direct_io_is_used_through_the_page_cache)
{
    /* tmpfs refuses O_DIRECT on older kernels and takes it on newer ones: create must work on both. */
    cs_segdir_t *dir;
    cs_segment_t segment;
    char path[] = "/dev/shm/vc-segment-XXXXXX", command[64];
    if (!mkdtemp(path))
        cr_skip_test("no /dev/shm");
    cr_assert_eq(cs_segdir_open(path, false, &dir, NULL), VC_OK);
    cr_assert_eq(cs_segment_create(dir, 0, 1, 1 << 20, &segment, NULL), VC_OK);
    uint32_t version;
    cr_assert_eq(cs_segment_read_header(&segment, &version, NULL), VC_OK);
    cr_assert_eq(cs_segment_remove(dir, &segment, NULL), VC_OK);
    cs_segdir_close(dir);
    snprintf(command, sizeof(command), "rm -rf %s", path);
    cr_assert_eq(system(command), 0);
}
