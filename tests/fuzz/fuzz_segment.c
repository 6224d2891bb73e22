/* Segment header pages. Each input is tried as it is and once more with its sum made right, since a fuzzer cannot guess
 * it: what is accepted names the number and size that were asked for. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "segment.h"
#include "vc/bytes.h"
#include "vc/crc32c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const uint8_t *page)
{
    uint32_t version = 0, number = vc_le32(page + 12);
    uint64_t bytes = vc_le64(page + 24);
    if (!cs_segment_parse_header(page, number, bytes, &version))
        return;
    if (version != vc_le32(page + 16) || memcmp(page, "VCSG", 4) != 0 || vc_le32(page + 4) != CS_SEGMENT_FORMAT)
        abort();
    if (cs_segment_parse_header(page, number + 1, bytes, &version) ||
        cs_segment_parse_header(page, number, bytes + 4096, &version))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t page[CS_SEGMENT_HEADER_BYTES];
    memset(page, 0, sizeof(page));
    memcpy(page, data, size < sizeof(page) ? size : sizeof(page));
    use(page);
    vc_put_le32(page + 8, 0);
    vc_put_le32(page + 8, vc_crc32c(0, page, sizeof(page)));
    use(page);
    return 0;
}
