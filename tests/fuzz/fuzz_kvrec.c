/*
 * Record decoding on hostile bytes. Each input is tried as it is, and once more with the sums and the block hash made
 * right, since a fuzzer cannot guess them and would never get past the header.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vc/bytes.h"
#include "vc/crc32c.h"
#include "vc/kvrec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        abort();
}

/* Everything that a decoded head offers must lie inside the record. */
static void use(const uint8_t *data, size_t size)
{
    vc_kvrec_head_t head;
    vc_err_t err = {0};
    vc_status_t st = vc_kvrec_decode(data, size, &head, &err);
    if (st != VC_OK) {
        must(err.status == st && err.msg[0] != '\0');
        return;
    }
    must(head.header_bytes <= size && vc_kvrec_bytes(&head) <= VC_KVREC_MAX_BYTES + VC_KVREC_ALIGN);
    volatile uint32_t sink = 0;
    for (uint32_t i = 0; i < head.shape.block_tokens; i++)
        sink += vc_kvrec_token(&head, i);
    (void)sink;
    for (uint32_t l = 0; l < head.shape.n_layer; l++) {
        vc_kvrec_layer_t layer;
        vc_kvrec_layer(&head, l, &layer);
        must(layer.offset >= head.header_bytes && layer.offset + layer.length <= vc_kvrec_bytes(&head));
        if (layer.offset + layer.length <= size)
            (void)vc_kvrec_check_layer(&head, l, data + layer.offset, NULL);
    }
    if (vc_kvrec_check(data, size, &head, NULL) == VC_OK)
        must(size == vc_kvrec_bytes(&head));
}

static void make_sums_right(uint8_t *p, size_t size)
{
    if (size < VC_KVREC_ALIGN)
        return;
    uint32_t n_layer = vc_le32(p + 24), block_tokens = vc_le32(p + 36), header_bytes = vc_le32(p + 8);
    if (block_tokens <= 512 && n_layer <= 64 && header_bytes <= size && header_bytes >= VC_KVREC_ALIGN) {
        uint32_t tokens[512];
        vc_digest_t parent, hash;
        memcpy(tokens, p + 192, 4 * (size_t)block_tokens);
        memcpy(&parent, p + 144, sizeof(parent));
        vc_block_hash(&parent, tokens, block_tokens, &hash);
        memcpy(p + 112, &hash, sizeof(hash));
        uint8_t *entry = p + 192 + 4 * (size_t)block_tokens;
        for (uint32_t l = 0; l < n_layer; l++, entry += 16) {
            uint64_t offset = vc_le64(entry);
            uint32_t length = vc_le32(entry + 8);
            if (offset <= size && length <= size - offset)
                vc_put_le32(entry + 12, vc_crc32c(0, p + offset, length));
        }
    }
    if (header_bytes < 16 || header_bytes > size)
        return;
    vc_put_le32(p + 12, 0);
    vc_put_le32(p + 12, vc_crc32c(0, p, header_bytes));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    use(data, size);
    uint8_t *copy = malloc(size ? size : 1);
    if (copy == NULL)
        return 0;
    if (size)
        memcpy(copy, data, size);
    make_sums_right(copy, size);
    use(copy, size);
    free(copy);
    return 0;
}
