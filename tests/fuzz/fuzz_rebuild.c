/*
 * The walk that makes a new catalog from a segment file. The input is the file, from its second page on; each is walked
 * as it is and once more with the sums of its records made right, since nobody guesses those. What becomes a row is a
 * whole record inside the file, and no two of them overlap.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rebuild_int.h"
#include "record.h"
#include "vc/bytes.h"
#include "vc/crc32c.h"
#include "vc/kvrec.h"
#include "vc/log.h"
#include "vc/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FILE_MAX ((size_t)1 << 20)

static void must(int ok)
{
    if (!ok)
        abort();
}

static void check_rows(const rebuild_t *r, const uint8_t *file, size_t bytes)
{
    uint64_t end = CS_SEGMENT_HEADER_BYTES;
    for (uint32_t i = 0; i < r->n_rows; i++) {
        const cs_object_row_t *row = &r->rows[i];
        must(row->offset >= end && row->offset % 4096 == 0 && row->bytes <= bytes - row->offset);
        end = row->offset + row->bytes;
        must(cs_record_check(file + row->offset, row->bytes, &row->key, row->header_crc, NULL) == VC_OK);
    }
}

/* Keyspaces that records name have to be known: each first mention is taken on. */
static void know_keyspaces(rebuild_t *r, const uint8_t *file, size_t bytes)
{
    for (size_t at = CS_SEGMENT_HEADER_BYTES; at + VC_KVREC_ALIGN <= bytes; at += VC_KVREC_ALIGN) {
        vc_kvrec_head_t head;
        if (vc_kvrec_decode(file + at, bytes - at, &head, NULL) != VC_OK)
            continue;
        vc_keyspace_t ks = {.shape = head.shape, .layout_version = VC_LAYOUT_VERSION};
        rebuild_add_keyspace(r, &head.keyspace, &ks);
    }
}

static void walk(const uint8_t *file, size_t bytes)
{
    rebuild_t r = {.status = VC_OK};
    int fd = memfd_create("segment", MFD_CLOEXEC);
    must(fd >= 0 && write(fd, file, bytes) == (ssize_t)bytes);
    cs_segment_t segment = {.number = 7, .version = 1, .bytes = bytes, .fd = fd};
    know_keyspaces(&r, file, bytes);
    rebuild_walk(&r, &segment, 1);
    must(r.status == VC_OK);
    check_rows(&r, file, bytes);
    must(rebuild_chains(&r) == VC_OK);
    for (uint32_t i = 0; i < r.n_rows; i++)
        must(r.rows[i].prefix >= 1 && r.rows[i].prefix <= r.n_prefixes);
    close(fd);
    void *blocks[] = {r.rows, r.parents, r.segments, r.keyspaces, r.prefixes, r.heads};
    for (size_t i = 0; i < VC_ARRAY_LEN(blocks); i++)
        vc_free(blocks[i]);
}

/* As in fuzz_kvrec.c: hash, sums of layers, sum of the header. */
static void make_sums_right(uint8_t *p, size_t size)
{
    uint32_t n_layer = vc_le32(p + 24), block_tokens = vc_le32(p + 36), header_bytes = vc_le32(p + 8);
    if (block_tokens > 512 || n_layer > 64 || header_bytes > size || header_bytes < VC_KVREC_ALIGN)
        return;
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
    vc_put_le32(p + 12, 0);
    vc_put_le32(p + 12, vc_crc32c(0, p, header_bytes));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > FILE_MAX)
        return 0;
    size_t bytes = CS_SEGMENT_HEADER_BYTES + vc_align_up(size, 4096);
    uint8_t *file = vc_alloc_aligned(4096, bytes);
    must(file != NULL);
    vc_log_set_level(VC_LOG_ERROR);
    memset(file, 0, bytes);
    if (size)
        memcpy(file + CS_SEGMENT_HEADER_BYTES, data, size);
    walk(file, bytes);
    for (size_t at = bytes - VC_KVREC_ALIGN; at >= CS_SEGMENT_HEADER_BYTES; at -= VC_KVREC_ALIGN) {
        if (memcmp(file + at, "VCKV", 4) == 0)
            make_sums_right(file + at, bytes - at);
    }
    walk(file, bytes);
    vc_free(file);
    return 0;
}
