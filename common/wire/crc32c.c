/*
 * CRC32C: the portable table path (eight bytes a step) and the choice of path. Any thread. The tables are built once,
 * from the polynomial; the hardware paths live in crc32c_*.c because they are compiled with other flags.
 */
#include "vc/crc32c.h"

#include <pthread.h>
#include <string.h>

#include "vc/bytes.h"

#define POLY 0x82F63B78u

static uint32_t tables[8][256]; /* [k][b]: effect of byte b followed by k zero bytes */
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void build_tables(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1) ? POLY : 0);
        tables[0][b] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t b = 0; b < 256; b++) {
            uint32_t before = tables[k - 1][b];
            tables[k][b] = (before >> 8) ^ tables[0][before & 0xff];
        }
}

uint32_t vc_crc32c_table(uint32_t crc, const void *data, size_t bytes)
{
    pthread_once(&tables_once, build_tables);
    const uint8_t *p = data;
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t v = vc_le64(p) ^ crc;
        crc = tables[7][v & 0xff] ^ tables[6][v >> 8 & 0xff] ^ tables[5][v >> 16 & 0xff] ^ tables[4][v >> 24 & 0xff] ^
              tables[3][v >> 32 & 0xff] ^ tables[2][v >> 40 & 0xff] ^ tables[1][v >> 48 & 0xff] ^ tables[0][v >> 56];
    }
    for (; bytes > 0; bytes--, p++)
        crc = (crc >> 8) ^ tables[0][(crc ^ *p) & 0xff];
    return ~crc;
}

int vc_crc32c_has_hw(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
#else
    return 0;
#endif
}

int vc_crc32c_has_wide(void)
{
#if defined(__x86_64__)
    return vc_crc32c_has_hw() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("vpclmulqdq");
#else
    return 0;
#endif
}

uint32_t vc_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    if (vc_crc32c_has_wide())
        return vc_crc32c_wide(crc, data, bytes);
    return vc_crc32c_has_hw() ? vc_crc32c_hw(crc, data, bytes) : vc_crc32c_table(crc, data, bytes);
}
