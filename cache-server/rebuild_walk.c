/*
 * The walk through one segment file: page by page until one begins a record; a record whose every sum holds is taken
 * and stepped over as a whole, anything else is passed over by one page, so that what lies behind a damaged record is
 * found too. Where the file was used before, whole records of its earlier lives lie behind the last new one.
 */
#include <string.h>

#include "rebuild_int.h"
#include "record.h"
#include "vc/bytes.h"
#include "vc/kvrec.h"
#include "vc/log.h"
#include "vc/mem.h"

#define PAGE 4096u
#define WINDOW_BYTES (4u << 20)

typedef struct window { /* bytes [at, at + have) of the file */
    const cs_segment_t *segment;
    uint8_t *data;
    uint32_t cap, have;
    uint64_t at;
} window_t;

static bool make_room(window_t *w, uint32_t bytes)
{
    if (bytes <= w->cap)
        return true;
    vc_free(w->data);
    w->have = 0;
    w->cap = (uint32_t)vc_align_up(VC_MAX(bytes, WINDOW_BYTES), PAGE);
    w->data = vc_alloc_aligned(PAGE, w->cap);
    if (!w->data)
        w->cap = 0;
    return w->data != NULL;
}

/* The bytes at offset, inside the file; read as far ahead as the window reaches. OK, IO, NOMEM. */
static vc_status_t see(window_t *w, uint64_t offset, uint32_t bytes, const uint8_t **data_p)
{
    if (offset < w->at || offset + bytes > w->at + w->have) {
        if (!make_room(w, bytes))
            return VC_ERR_NOMEM;
        uint64_t left = w->segment->bytes - offset;
        uint32_t ahead = left < w->cap ? (uint32_t)left & ~(PAGE - 1) : w->cap;
        w->at = offset;
        w->have = 0;
        vc_status_t status = cs_record_read(w->segment->fd, offset, VC_MAX(ahead, bytes), w->data, NULL);
        if (status != VC_OK && ahead > bytes) /* a bad page further on is no reason to lose this one */
            status = cs_record_read(w->segment->fd, offset, ahead = bytes, w->data, NULL);
        if (status != VC_OK)
            return VC_ERR_IO;
        w->have = VC_MAX(ahead, bytes);
    }
    *data_p = w->data + (offset - w->at);
    return VC_OK;
}

/* OK: a whole record is at offset. CORRUPT: something that began like one. NOT_FOUND: nothing. */
static vc_status_t record_at(window_t *w, uint64_t offset, vc_kvrec_head_t *head, const uint8_t **data_p)
{
    uint64_t left = w->segment->bytes - offset;
    vc_status_t status = see(w, offset, PAGE, data_p);
    if (status != VC_OK)
        return status;
    if (memcmp(*data_p, "VCKV", 4) != 0)
        return VC_ERR_NOT_FOUND;
    uint64_t header_bytes = vc_le32(*data_p + 8);
    if (header_bytes == 0 || header_bytes % PAGE != 0 || header_bytes > VC_MIN(left, (uint64_t)VC_KVREC_MAX_BYTES))
        return VC_ERR_CORRUPT;
    if ((status = see(w, offset, (uint32_t)header_bytes, data_p)) != VC_OK)
        return status;
    if (vc_kvrec_decode(*data_p, (size_t)header_bytes, head, NULL) != VC_OK)
        return VC_ERR_CORRUPT;
    uint64_t bytes = vc_kvrec_bytes(head);
    if (bytes > VC_MIN(left, (uint64_t)VC_KVREC_MAX_BYTES))
        return VC_ERR_CORRUPT;
    if ((status = see(w, offset, (uint32_t)bytes, data_p)) != VC_OK)
        return status;
    return vc_kvrec_check(*data_p, (size_t)bytes, head, NULL) == VC_OK ? VC_OK : VC_ERR_CORRUPT;
}

static uint32_t add_head(rebuild_t *r, const vc_kvrec_head_t *head)
{
    if (!rebuild_grow((void **)&r->heads, &r->cap_heads, r->n_heads, sizeof(*r->heads))) {
        r->status = VC_ERR_NOMEM;
        return 0;
    }
    rebuild_head_t *tokens = &r->heads[r->n_heads++];
    tokens->n = VC_MIN(head->shape.block_tokens, CS_HEAD_TOKENS);
    for (uint32_t i = 0; i < tokens->n; i++)
        tokens->tokens[i] = vc_kvrec_token(head, i);
    return r->n_heads;
}

static void add_row(rebuild_t *r, const cs_segment_t *segment, uint32_t version, uint64_t offset,
                    const vc_kvrec_head_t *head, const uint8_t *data)
{
    uint32_t cap = r->cap_rows;
    if (!rebuild_grow((void **)&r->rows, &cap, r->n_rows, sizeof(*r->rows)) ||
        !rebuild_grow((void **)&r->parents, &r->cap_rows, r->n_rows, sizeof(*r->parents))) {
        r->status = VC_ERR_NOMEM;
        return;
    }
    cs_object_row_t row = {.keyspace = head->keyspace,
                           .segment = segment->number,
                           .version = version,
                           .offset = offset,
                           .bytes = (uint32_t)vc_kvrec_bytes(head),
                           .header_crc = vc_le32(data + 12),
                           .block_index = head->block_index,
                           .stored_s = r->stored_s};
    vc_kvrec_key(head, &row.key);
    memcpy(row.parent_fp, head->parent.b, sizeof(row.parent_fp));
    row.prefix = head->block_index == 0 ? add_head(r, head) : 0;
    r->parents[r->n_rows] = head->parent;
    r->rows[r->n_rows++] = row;
    r->report.bytes += row.bytes;
}

static void take_record(rebuild_t *r, const cs_segment_t *segment, uint32_t version, uint64_t offset,
                        const vc_kvrec_head_t *head, const uint8_t *data)
{
    struct rebuild_ks *ks = rebuild_find_keyspace(r, &head->keyspace);
    if (!ks || memcmp(&ks->ks.shape, &head->shape, sizeof(head->shape)) != 0) {
        r->report.unknown++;
        return;
    }
    ks->objects++;
    add_row(r, segment, version, offset, head, data);
}

void rebuild_walk(rebuild_t *r, const cs_segment_t *segment, uint32_t version)
{
    window_t w = {.segment = segment};
    uint64_t offset = CS_SEGMENT_HEADER_BYTES;
    uint32_t n_before = r->n_rows;
    while (r->status == VC_OK && segment->bytes >= PAGE && offset <= segment->bytes - PAGE) {
        vc_kvrec_head_t head;
        const uint8_t *data;
        vc_status_t status = record_at(&w, offset, &head, &data);
        if (status == VC_OK)
            take_record(r, segment, version, offset, &head, data);
        else if (status == VC_ERR_NOMEM)
            r->status = status;
        r->report.damaged += status == VC_ERR_CORRUPT;
        r->report.unreadable += status == VC_ERR_IO;
        offset += status == VC_OK ? vc_kvrec_bytes(&head) : PAGE;
    }
    vc_free(w.data);
    vc_log_debug("store", "segment walked number=%u records=%u", segment->number, r->n_rows - n_before);
}
