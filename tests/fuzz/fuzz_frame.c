/* Data-plane header parser: first 4 bytes payload length, the rest a header. What decodes must encode to the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vc/bytes.h"
#include "vc/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4)
        return 0;
    vc_frame_t frame;
    vc_err_t err;
    if (vc_frame_decode(data + 4, size - 4, vc_le32(data), &frame, &err) != VC_OK) {
        if (err.msg[0] == '\0')
            abort();
        return 0;
    }
    uint8_t again[VC_FRAME_MAX];
    size_t len = vc_frame_encode(&frame, again);
    if (len != size - 4 || memcmp(again, data + 4, len) != 0)
        abort();
    return 0;
}
