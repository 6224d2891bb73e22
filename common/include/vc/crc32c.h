/* CRC32C (Castagnoli, reflected 0x82F63B78, as iSCSI and RFC 3720 use it). */
#ifndef VC_CRC32C_H
#define VC_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* crc is 0 for a new sum, or the result of the bytes before. Chooses the fastest path at run time. */
uint32_t vc_crc32c(uint32_t crc, const void *data, size_t bytes);
/* The paths by themselves, for tests: equal on every input. SSE4.2 and PCLMULQDQ need vc_crc32c_has_hw(), AVX-512 and
 * VPCLMULQDQ vc_crc32c_has_wide(). */
uint32_t vc_crc32c_table(uint32_t crc, const void *data, size_t bytes);
uint32_t vc_crc32c_hw(uint32_t crc, const void *data, size_t bytes);
uint32_t vc_crc32c_wide(uint32_t crc, const void *data, size_t bytes);
int vc_crc32c_has_hw(void);
int vc_crc32c_has_wide(void);

#endif
