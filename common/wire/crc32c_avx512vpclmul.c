/*
 * CRC32C with AVX-512 and VPCLMULQDQ: sixteen 128-bit remainders are folded forward over the data, then into one, whose
 * sum is that of all the bytes. Called only after vc_crc32c_has_wide(). Any thread, no state.
 *
 * A bit-reflected 64-bit word times a constant below x^32, both read as polynomials with the lowest bit first, comes
 * out of a carry-less product as their product times x. So a remainder (first word a, second word b) moves d bits
 * forward as a * x^(d+63) + b * x^(d-1), modulo the polynomial; a constant lies in the upper half of its word.
 */
#include "vc/crc32c.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "vc/bytes.h"

#define STEP 256u /* bytes of one round: four registers */

/* x^(d+63) and x^(d-1) mod P, bit-reflected, for steps of d bits. */
#define K2048_FIRST 0xe9a5d8beu
#define K2048_SECOND 0x1426a815u
#define K512_FIRST 0x1c19243bu
#define K512_SECOND 0x75bba45bu
#define K128_FIRST 0x3743f7bdu
#define K128_SECOND 0x3171d430u
#define UPPER(k) ((int64_t)((uint64_t)(k) << 32))

static inline __m512i constants512(int64_t first, int64_t second)
{
    return _mm512_set_epi64(second, first, second, first, second, first, second, first);
}

static inline __m512i fold512(__m512i r, __m512i k, __m512i next)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(r, k, 0x00), _mm512_clmulepi64_epi128(r, k, 0x11), next,
                                     0x96);
}

static inline __m128i fold128(__m128i r, __m128i next)
{
    __m128i k = _mm_set_epi64x(UPPER(K128_SECOND), UPPER(K128_FIRST));
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(r, k, 0x00), _mm_clmulepi64_si128(r, k, 0x11)), next);
}

static inline __m512i load(const uint8_t *p) { return _mm512_loadu_si512(p); }

uint32_t vc_crc32c_wide(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    if (bytes < 2 * STEP)
        return vc_crc32c_hw(crc, data, bytes);
    __m512i k = constants512(UPPER(K2048_FIRST), UPPER(K2048_SECOND));
    __m512i r0 = _mm512_xor_si512(load(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    __m512i r1 = load(p + 64), r2 = load(p + 128), r3 = load(p + 192);
    for (p += STEP, bytes -= STEP; bytes >= STEP; p += STEP, bytes -= STEP) {
        r0 = fold512(r0, k, load(p));
        r1 = fold512(r1, k, load(p + 64));
        r2 = fold512(r2, k, load(p + 128));
        r3 = fold512(r3, k, load(p + 192));
    }
    k = constants512(UPPER(K512_FIRST), UPPER(K512_SECOND));
    r3 = fold512(fold512(fold512(r0, k, r1), k, r2), k, r3);
    __m128i r = _mm512_castsi512_si128(r3);
    r = fold128(r, _mm512_extracti32x4_epi32(r3, 1));
    r = fold128(r, _mm512_extracti32x4_epi32(r3, 2));
    r = fold128(r, _mm512_extracti32x4_epi32(r3, 3));
    uint64_t sum = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(r));
    sum = _mm_crc32_u64(sum, (uint64_t)_mm_extract_epi64(r, 1));
    return vc_crc32c_hw(~(uint32_t)sum, p, bytes);
}
#else
uint32_t vc_crc32c_wide(uint32_t crc, const void *data, size_t bytes) { return vc_crc32c_table(crc, data, bytes); }
#endif
