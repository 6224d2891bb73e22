/* Keyspace decoding on hostile bytes: whatever is accepted must encode to the very same bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vc/keyspace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    vc_keyspace_t ks;
    vc_err_t err = {0};
    uint8_t buf[VC_KEYSPACE_ENC_MAX];
    size_t len;
    vc_status_t st = vc_keyspace_decode(data, size, &ks, &err);
    if (st != VC_OK) {
        if (err.status != st || err.msg[0] == '\0')
            abort();
        return 0;
    }
    if (vc_keyspace_encode(&ks, buf, &len, NULL) != VC_OK || len != size || memcmp(buf, data, size) != 0)
        abort();
    if (vc_keyspace_diff(&ks, &ks) != NULL)
        abort();
    return 0;
}
