/* RecordFrame decoding on hostile bytes: what is accepted lies inside the message, keeps its bounds, and survives being
 * written and read again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vc/recframe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    vc_recframe_t f, again;
    if (vc_recframe_decode(data, size, &f) != VC_OK)
        return 0;
    must(f.data_len == 0 || (f.data >= data && f.data + f.data_len <= data + size));
    must(f.token == NULL || (f.token >= data && f.token + 16 <= data + size));
    must(f.offset <= f.record_bytes && f.data_len <= f.record_bytes - f.offset);
    uint8_t *copy = malloc(VC_RECFRAME_HEAD_MAX + f.data_len);
    must(copy != NULL);
    size_t head = vc_recframe_encode_head(&f, copy);
    must(head <= VC_RECFRAME_HEAD_MAX);
    if (f.data_len != 0)
        memcpy(copy + head, f.data, f.data_len);
    must(vc_recframe_decode(copy, head + f.data_len, &again) == VC_OK);
    must(again.block == f.block && again.offset == f.offset && again.record_bytes == f.record_bytes);
    must(again.status == f.status && again.upload_id == f.upload_id && again.data_len == f.data_len);
    free(copy);
    return 0;
}
