/*
 * CRC32C with the SSE4.2 instruction. It has a latency of three cycles and a throughput of one, so three streams run
 * side by side; PCLMULQDQ then shifts the first two past the bytes that followed them. Called only after
 * vc_crc32c_has_hw(). Any thread, no state.
 */
#include "vc/crc32c.h"

#include "vc/bytes.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>

/*
 * x^(8n - 33) mod P, bit-reflected. A carry-less product of two reflected 32-bit values reads as their product times
 * x, and crc32_u64(0, v) multiplies by x^32 and reduces, hence the 33: together they shift a sum past n zero bytes.
 */
#define SHIFT_128 0xd3b6092u
#define SHIFT_256 0xb9e02b86u
#define SHIFT_2048 0xa51b6135u
#define SHIFT_4096 0x82f89c77u

static inline uint64_t shift(uint64_t crc, uint32_t by)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi64_si128(by), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

/* Three neighbouring streams of n bytes (a multiple of 8) each. */
static inline uint64_t three_streams(uint64_t crc, const uint8_t *p, size_t n, uint32_t by_n, uint32_t by_2n)
{
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < n; i += 8) {
        a = _mm_crc32_u64(a, vc_le64(p + i));
        b = _mm_crc32_u64(b, vc_le64(p + n + i));
        c = _mm_crc32_u64(c, vc_le64(p + 2 * n + i));
    }
    return shift(a, by_2n) ^ shift(b, by_n) ^ c;
}

uint32_t vc_crc32c_hw(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint64_t sum = (uint32_t)~crc;
    for (; bytes > 0 && ((uintptr_t)p & 7) != 0; bytes--)
        sum = _mm_crc32_u8((uint32_t)sum, *p++);
    /* Long pieces amortise the two shifts, short ones keep small parts off the serial loop. */
    for (; bytes >= 3 * 2048; bytes -= 3 * 2048, p += 3 * 2048)
        sum = three_streams(sum, p, 2048, SHIFT_2048, SHIFT_4096);
    for (; bytes >= 3 * 128; bytes -= 3 * 128, p += 3 * 128)
        sum = three_streams(sum, p, 128, SHIFT_128, SHIFT_256);
    for (; bytes >= 8; bytes -= 8, p += 8)
        sum = _mm_crc32_u64(sum, vc_le64(p));
    for (; bytes > 0; bytes--)
        sum = _mm_crc32_u8((uint32_t)sum, *p++);
    return ~(uint32_t)sum;
}
#else
uint32_t vc_crc32c_hw(uint32_t crc, const void *data, size_t bytes) { return vc_crc32c_table(crc, data, bytes); }
#endif
