/* The file of keyspaces: damage costs the records that it hits, and what is handed out encodes to a record again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "keyspace_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void on_keyspace(void *arg, const vc_digest_t *id, const vc_keyspace_t *ks)
{
    uint8_t record[CS_KEYSPACE_RECORD_MAX];
    vc_digest_t own;
    size_t *n = arg;
    size_t bytes = cs_keyspace_file_encode(ks, record);
    if (bytes == 0 || vc_keyspace_id(ks, &own, NULL) != VC_OK || memcmp(&own, id, sizeof(own)) != 0)
        abort();
    *n += bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t n = 0;
    uint32_t n_damaged = cs_keyspace_file_parse(data, size, on_keyspace, &n);
    if (n > size || (n_damaged == 0 && n != size))
        abort();
    return 0;
}
