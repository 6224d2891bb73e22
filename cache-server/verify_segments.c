/* What the segments hold: files against rows, then every record, in the order in which they lie on disk. */
#include <stdlib.h>
#include <string.h>

#include "record.h"
#include "vc/bytes.h"
#include "vc/mem.h"
#include "verify_int.h"

#define RECORD_MAX ((uint32_t)VC_KVREC_MAX_BYTES)

typedef struct reader { /* of one segment */
    verify_t *v;
    cs_segment_t segment;
    const cs_segment_row_t *row;
    uint8_t *data;
    uint32_t cap;
    uint64_t end; /* of the record before */
} reader_t;

static const void *find(const verify_list_t *list, size_t bytes, uint32_t number)
{
    size_t low = 0, high = list->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const uint8_t *item = (const uint8_t *)list->items + mid * bytes;
        uint32_t at = *(const uint32_t *)(const void *)item;
        if (at == number)
            return item;
        if (at < number)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

static void name_block(const cs_object_row_t *row, char text[120])
{
    char hex[2 * VC_DIGEST_BYTES + 1];
    vc_hex(row->key.hash.b, VC_DIGEST_BYTES, hex);
    snprintf(text, 120, "segments/%08u.seg at %llu, block %.16s %s", row->segment, (unsigned long long)row->offset, hex,
             row->key.fidelity == VC_FIDELITY_FULL ? "full" : "compressed");
}

/* ---- one record ---- */

static const verify_keyspace_t *keyspace_of(const verify_t *v, const vc_digest_t *id)
{
    const verify_keyspace_t *all = v->keyspaces.items;
    for (size_t i = 0; i < v->keyspaces.n; i++) {
        if (memcmp(&all[i].id, id, sizeof(*id)) == 0)
            return &all[i];
    }
    return NULL;
}

/* The record is sound; is it the one that the row speaks of? NULL: yes. */
static const char *compare(const verify_t *v, const cs_object_row_t *row, const vc_kvrec_head_t *head)
{
    const verify_keyspace_t *ks = keyspace_of(v, &head->keyspace);
    if (memcmp(&head->keyspace, &row->keyspace, sizeof(row->keyspace)) != 0)
        return "the row names another keyspace than the record";
    if (head->block_index != row->block_index)
        return "the row names another place in the chain than the record";
    if (memcmp(head->parent.b, row->parent_fp, sizeof(row->parent_fp)) != 0)
        return "the row names another parent than the record";
    if (ks && memcmp(&head->shape, &ks->shape, sizeof(head->shape)) != 0)
        return "the record has another shape than its keyspace";
    return NULL;
}

static void check_record(reader_t *r, const cs_object_row_t *row)
{
    verify_t *v = r->v;
    char name[120];
    vc_err_t why;
    vc_kvrec_head_t head;
    const char *mismatch = NULL;
    vc_status_t status = cs_record_read(r->segment.fd, row->offset, row->bytes, r->data, &why);
    name_block(row, name);
    v->report->bytes_read += status == VC_OK ? row->bytes : 0;
    if (status == VC_ERR_IO) {
        cs_verify_found(v, CS_VERIFY_UNREADABLE, "%s: %s", name, why.msg);
        return;
    }
    if (status == VC_OK)
        status = cs_record_check(r->data, row->bytes, &row->key, row->header_crc, &why);
    if (status == VC_OK)
        status = vc_kvrec_decode(r->data, row->bytes, &head, &why);
    if (status != VC_OK) {
        cs_verify_found(v, CS_VERIFY_RECORD, "%s: %s", name, why.msg);
        return;
    }
    mismatch = compare(v, row, &head);
    if (mismatch)
        cs_verify_found(v, CS_VERIFY_MISMATCH, "%s: %s", name, mismatch);
    else
        v->report->sound_objects++;
}

/* ---- one segment ---- */

/* False: there are no bytes of its own to look at. */
static bool place_holds(reader_t *r, const cs_object_row_t *row)
{
    const char *why = NULL;
    char name[120];
    if (row->version != r->row->version)
        why = "the segment is of another version";
    else if (row->offset % 4096 != 0 || row->bytes == 0 || row->bytes % 4096 != 0 || row->bytes > RECORD_MAX ||
             row->offset < CS_SEGMENT_HEADER_BYTES)
        why = "no record can lie there";
    else if (row->offset > r->segment.bytes || row->bytes > r->segment.bytes - row->offset)
        why = "it ends behind the end of the file";
    else if (row->offset < r->end)
        why = "it overlaps the record before";
    if (!why) {
        r->end = row->offset + row->bytes;
        return true;
    }
    name_block(row, name);
    cs_verify_found(r->v, CS_VERIFY_PLACE, "%s, %u bytes: %s", name, row->bytes, why);
    return false;
}

static bool reserve(reader_t *r, uint32_t bytes)
{
    if (bytes <= r->cap)
        return true;
    vc_free(r->data);
    r->data = vc_alloc_aligned(4096, bytes);
    r->cap = r->data ? bytes : 0;
    if (!r->data)
        r->v->status = VC_ERR_NOMEM;
    return r->data != NULL;
}

static void check_header(reader_t *r, bool has_objects)
{
    uint32_t version = 0;
    vc_err_t why;
    cs_verify_kind_t kind = has_objects ? CS_VERIFY_SEGMENT_HEADER : CS_VERIFY_SPARE_SEGMENT;
    vc_status_t status = cs_segment_read_header(&r->segment, &version, &why);
    if (status == VC_ERR_IO)
        cs_verify_found(r->v, CS_VERIFY_UNREADABLE, "segments/%08u.seg: %s", r->segment.number, why.msg);
    else if (status != VC_OK)
        cs_verify_found(r->v, kind, "segments/%08u.seg: %s", r->segment.number, why.msg);
    else if (r->row && version != r->row->version)
        cs_verify_found(r->v, kind, "segments/%08u.seg: the header has version %u, the catalog has %u",
                        r->segment.number, version, r->row->version);
    if (!r->row && r->v->has_rows)
        cs_verify_found(r->v, has_objects ? CS_VERIFY_REFERENCE : CS_VERIFY_SPARE_SEGMENT,
                        "segments/%08u.seg: the catalog has no row of it", r->segment.number);
    else if (r->row && r->row->bytes != r->segment.bytes)
        cs_verify_found(r->v, CS_VERIFY_SEGMENT_SIZE, "segments/%08u.seg: %llu bytes long, the catalog has %llu",
                        r->segment.number, (unsigned long long)r->segment.bytes, (unsigned long long)r->row->bytes);
}

static void check_objects(reader_t *r, const cs_object_row_t *rows, size_t n)
{
    verify_t *v = r->v;
    for (size_t i = 0; i < n && v->status == VC_OK; i++) {
        if (place_holds(r, &rows[i]) && reserve(r, rows[i].bytes))
            check_record(r, &rows[i]);
        v->done_bytes += rows[i].bytes;
        if (v->opts->progress)
            v->opts->progress(v->opts->arg, v->done_bytes, v->total_bytes);
    }
}

static void check_segment(verify_t *v, cs_segdir_t *dir, const verify_file_t *file, const cs_object_row_t *rows,
                          size_t n)
{
    reader_t r = {.v = v, .row = find(&v->segments, sizeof(cs_segment_row_t), file->number)};
    vc_err_t err;
    if (cs_segment_open(dir, file->number, &r.segment, &err) != VC_OK) {
        cs_verify_found(v, CS_VERIFY_UNREADABLE, "%s", err.msg);
        return;
    }
    check_header(&r, n > 0);
    if (r.row)
        check_objects(&r, rows, n);
    cs_segment_close(&r.segment);
    vc_free(r.data);
}

/* ---- all of them ---- */

static void check_missing(verify_t *v)
{
    const cs_segment_row_t *rows = v->segments.items;
    for (size_t i = 0; i < v->segments.n; i++) {
        if (!find(&v->files, sizeof(verify_file_t), rows[i].number))
            cs_verify_found(v, CS_VERIFY_SEGMENT_MISSING,
                            "segments/%08u.seg: the catalog has it, the directory does not", rows[i].number);
    }
}

static void check_nowhere(verify_t *v)
{
    const cs_object_row_t *rows = v->objects.items;
    uint32_t told = UINT32_MAX;
    for (size_t i = 0; i < v->objects.n; i++) {
        if (find(&v->files, sizeof(verify_file_t), rows[i].segment))
            continue;
        v->done_bytes += rows[i].bytes;
        if (rows[i].segment != told) /* a line per segment, not per object */
            cs_verify_found(v, CS_VERIFY_REFERENCE, "objects in segment %u, which is not there", rows[i].segment);
        told = rows[i].segment;
    }
}

void cs_verify_segments(verify_t *v, cs_segdir_t *dir)
{
    const verify_file_t *files = v->files.items;
    const cs_object_row_t *rows = v->objects.items;
    size_t at = 0;
    check_missing(v);
    check_nowhere(v);
    for (size_t i = 0; i < v->files.n && v->status == VC_OK; i++) {
        while (at < v->objects.n && rows[at].segment < files[i].number)
            at++;
        size_t n = 0;
        while (at + n < v->objects.n && rows[at + n].segment == files[i].number)
            n++;
        check_segment(v, dir, &files[i], rows ? rows + at : NULL, n);
    }
}
