/* See record.h. */
#include "record.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "fault_file.h"
#include "vc/bytes.h"

vc_status_t cs_record_check(const void *data, uint32_t bytes, const vc_object_key_t *key, uint32_t header_crc,
                            vc_err_t *err)
{
    vc_kvrec_head_t head;
    vc_object_key_t found;
    if (vc_kvrec_check(data, bytes, &head, err) != VC_OK)
        return VC_ERR_CORRUPT;
    vc_kvrec_key(&head, &found);
    if (memcmp(&found, key, sizeof(found)) != 0)
        return vc_err_set(err, VC_ERR_CORRUPT, "another record is in its place");
    if (vc_le32((const uint8_t *)data + 12) != header_crc)
        return vc_err_set(err, VC_ERR_CORRUPT, "the header is not the one that was committed");
    return VC_OK;
}

vc_status_t cs_record_read(int fd, uint64_t offset, uint32_t bytes, void *data, vc_err_t *err)
{
    size_t have = 0;
    while (have < bytes) {
        ssize_t n = cs_file_pread("record.read", fd, (uint8_t *)data + have, bytes - have, offset + have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return vc_err_set(err, VC_ERR_IO, "cannot read %u bytes at %llu: %s", bytes, (unsigned long long)offset,
                              strerror(errno));
        /* A short read that ends inside a page is the end of the file; direct reads go on at whole pages only. */
        if (n < 4096 && have + (size_t)n < bytes)
            return vc_err_set(err, VC_ERR_CORRUPT, "the file ends before the record does");
        have += (size_t)n == bytes - have ? (size_t)n : (size_t)n & ~(size_t)4095;
    }
    return VC_OK;
}
