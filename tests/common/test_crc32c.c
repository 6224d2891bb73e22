/* CRC32C: the published vectors, and the hardware path equal to the table on every length and alignment. */
#include <string.h>

#include "support/vc_test.h"
#include "vc/crc32c.h"
#include "vc/mem.h"

/* RFC 3720, B.4. */
static void check_rfc3720(uint32_t (*fn)(uint32_t, const void *, size_t))
{
    uint8_t data[48];
    memset(data, 0, 32);
    cr_assert_eq(fn(0, data, 32), 0x8a9136aau);
    memset(data, 0xff, 32);
    cr_assert_eq(fn(0, data, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++)
        data[i] = (uint8_t)i;
    cr_assert_eq(fn(0, data, 32), 0x46dd794eu);
    for (int i = 0; i < 32; i++)
        data[i] = (uint8_t)(31 - i);
    cr_assert_eq(fn(0, data, 32), 0x113fdb5cu);
    static const uint8_t read_pdu[48] = {
        0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18,
        0x28, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    };
    cr_assert_eq(fn(0, read_pdu, sizeof(read_pdu)), 0xd9963a56u);
    cr_assert_eq(fn(0, "123456789", 9), 0xe3069283u);
    cr_assert_eq(fn(0, data, 0), 0u);
}

Test(crc32c, table_gives_the_rfc3720_vectors) { check_rfc3720(vc_crc32c_table); }

Test(crc32c, dispatch_gives_the_rfc3720_vectors) { check_rfc3720(vc_crc32c); }

static uint8_t *noise(size_t n)
{
    uint8_t *data = vc_alloc(n);
    cr_assert_not_null(data);
    uint32_t x = 12345;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        data[i] = (uint8_t)(x >> 24);
    }
    return data;
}

typedef uint32_t (*crc_fn)(uint32_t crc, const void *data, size_t bytes);

/* Lengths around every step of either path, at every alignment that matters. */
static void check_against_table(crc_fn fn)
{
    uint8_t *data = noise(64 << 10);
    cr_assert_eq(fn(0, data, 48), vc_crc32c_table(0, data, 48));
    for (size_t at = 0; at < 16; at++) /* covers the head, both three-stream loops and the tail */
        for (size_t n = 0; n < 1200; n++)
            cr_assert_eq(fn(7, data + at, n), vc_crc32c_table(7, data + at, n), "at %zu, %zu bytes", at, n);
    for (size_t at = 0; at < 9; at++)
        for (size_t n = 6100; n < 6300; n++)
            cr_assert_eq(fn(0, data + at, n), vc_crc32c_table(0, data + at, n), "at %zu, %zu bytes", at, n);
    for (size_t n = 1; n < 64 << 10; n += 997)
        cr_assert_eq(fn(~0u, data, n), vc_crc32c_table(~0u, data, n), "%zu bytes", n);
    memset(data, 0, 4096); /* a remainder that stays zero */
    cr_assert_eq(fn(~0u, data, 4096), vc_crc32c_table(~0u, data, 4096));
    vc_free(data);
}

Test(crc32c, hardware_equals_table_at_every_alignment_and_length)
{
    if (!vc_crc32c_has_hw())
        cr_skip_test("no SSE4.2 and PCLMULQDQ on this machine");
    check_against_table(vc_crc32c_hw);
}

Test(crc32c, wide_registers_equal_table_at_every_alignment_and_length)
{
    if (!vc_crc32c_has_wide())
        cr_skip_test("no AVX-512 and VPCLMULQDQ on this machine");
    check_against_table(vc_crc32c_wide);
}

Test(crc32c, sum_in_pieces_equals_sum_at_once)
{
    uint8_t *data = noise(8192);
    uint32_t whole = vc_crc32c(0, data, 8192);
    for (size_t cut = 0; cut <= 8192; cut += 61)
        cr_assert_eq(vc_crc32c(vc_crc32c(0, data, cut), data + cut, 8192 - cut), whole);
    vc_free(data);
}
