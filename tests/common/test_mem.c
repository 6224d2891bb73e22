/* Checked allocation and the bounded byte codec. */
#include <stdint.h>
#include <string.h>

#include "support/vc_test.h"
#include "vc/bytes.h"
#include "vc/mem.h"

Test(mem, sizes_that_overflow_give_null_and_leave_the_block)
{
    cr_assert_null(vc_calloc(SIZE_MAX / 2, 3));
    int *block = vc_calloc(4, sizeof(int));
    cr_assert_not_null(block);
    block[3] = 42;
    cr_assert_null(vc_realloc(block, SIZE_MAX / 2, 4));
    cr_assert_eq(block[3], 42);
    block = vc_realloc(block, 8, sizeof(int));
    cr_assert_eq(block[3], 42);
    vc_free(block);
    size_t out = 5;
    cr_assert_not(vc_size_add(SIZE_MAX, 1, &out));
    cr_assert_not(vc_size_mul(SIZE_MAX, 2, &out));
    cr_assert(vc_size_add(3, 4, &out));
    cr_assert_eq(out, 7u);
}

Test(mem, calloc_zeroes_and_zero_sizes_are_blocks)
{
    unsigned char *a = vc_calloc(100, 1), *b = vc_calloc(0, 8), *c = vc_alloc(0);
    for (int i = 0; i < 100; i++)
        cr_assert_eq(a[i], 0);
    cr_assert_not_null(b);
    cr_assert_not_null(c);
    vc_free(a);
    vc_free(b);
    vc_free(c);
    vc_free(NULL);
}

Test(mem, aligned_blocks_are_aligned_and_copies_equal)
{
    for (size_t align = 16; align <= 2u << 20; align *= 2) {
        void *p = vc_alloc_aligned(align, 1000);
        cr_assert_eq((uintptr_t)p % align, 0u);
        vc_free(p);
    }
    char *s = vc_strdup("prefix");
    cr_assert_str_eq(s, "prefix");
    vc_free(s);
    cr_assert_eq(vc_align_up(0, 4096), 0u);
    cr_assert_eq(vc_align_up(1, 4096), 4096u);
    cr_assert_eq(vc_align_up(4096, 4096), 4096u);
}

Test(bytes, reader_stops_at_the_end_and_stays_failed)
{
    uint8_t data[7] = {1, 2, 0, 3, 0, 0, 0};
    vc_reader_t r = vc_reader(data, sizeof(data));
    cr_assert_eq(vc_read_u8(&r), 1);
    cr_assert_eq(vc_read_u16(&r), 2);
    cr_assert_eq(vc_read_u32(&r), 3u);
    cr_assert_not(r.failed);
    cr_assert_eq(vc_reader_left(&r), 0u);
    r = vc_reader(data, sizeof(data));
    cr_assert_eq(vc_read_u64(&r), 0u);
    cr_assert(r.failed);
    cr_assert_eq(vc_read_u8(&r), 0, "nothing after a failure");
}

Test(bytes, writer_never_writes_past_the_end)
{
    uint8_t buf[16];
    memset(buf, 0xaa, sizeof(buf));
    vc_writer_t w = vc_writer(buf, 8);
    vc_write_u32(&w, 0x04030201);
    vc_write_u16(&w, 0x0605);
    vc_write_u32(&w, 1);
    cr_assert(w.failed);
    vc_write_u8(&w, 7);
    cr_assert_eq(buf[0], 1);
    cr_assert_eq(buf[5], 6);
    for (int i = 6; i < 16; i++)
        cr_assert_eq(buf[i], 0xaa);
}
