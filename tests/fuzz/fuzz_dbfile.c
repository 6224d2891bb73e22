/* The offline check's readers of RocksDB files: the first byte chooses log or table, the rest is the file. */
#include <stdint.h>
#include <stdlib.h>

#include "verify_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t at = 0;
    if (size == 0)
        return 0;
    const char *why =
        data[0] & 1 ? cs_verify_table_footer(data + 1, size - 1) : cs_verify_log_bytes(data + 1, size - 1, &at);
    if ((why && why[0] == '\0') || at > size - 1)
        abort();
    return 0;
}
