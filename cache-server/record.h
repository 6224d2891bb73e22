/*
 * Records on disk, read and judged without the store: shared by readers, the scrubber and the offline check.
 * Stateless; any thread.
 */
#ifndef CS_RECORD_H
#define CS_RECORD_H

#include "vc/kvrec.h"

/* OK when data is, whole and sound, the record that was committed under the key with this header sum; else CORRUPT and
 * err says what does not hold. */
vc_status_t cs_record_check(const void *data, uint32_t bytes, const vc_object_key_t *key, uint32_t header_crc,
                            vc_err_t *err);
/* Plain read of a whole range; offset, bytes and data are 4 KiB aligned (the descriptor may be O_DIRECT). CORRUPT when
 * the file ends before the range does, IO when the disk refuses. */
vc_status_t cs_record_read(int fd, uint64_t offset, uint32_t bytes, void *data, vc_err_t *err);

#endif
