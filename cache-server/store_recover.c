/*
 * From the catalog and the files to the state in memory. Nothing is replayed but RocksDB's own log: a row that is there
 * names bytes that were synced before it. What a segment holds behind its last row was never committed; the next
 * append writes over it. Damaged rows and rows without a file are dropped and counted.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "store_int.h"
#include "vc/log.h"
#include "vc/mem.h"

/* Why a row is dropped. */
typedef enum {
    DROP_KEYSPACE = 0,
    DROP_NO_SEGMENT,
    DROP_OLD_LIFE,
    DROP_OUTSIDE,
    DROP_TOO_MANY,
    DROP_UNDECODED,
    N_DROPS,
    KEPT
} drop_t;
static const char *const drop_texts[N_DROPS] = {
    [DROP_KEYSPACE] = "their keyspace is not in the catalog",
    [DROP_NO_SEGMENT] = "their segment file is missing",
    [DROP_OLD_LIFE] = "their segment has been used again since",
    [DROP_OUTSIDE] = "their place is outside of the segment file",
    [DROP_TOO_MANY] = "there are too many kinds of copies",
    [DROP_UNDECODED] = "they do not decode",
};

typedef struct recovery {
    cs_store_t *s;
    vc_status_t status;
    vc_err_t *err;
    bool is_told;                   /* err has the sentence of status */
    uint32_t n_bad, n_why[N_DROPS]; /* n_bad: all of them */
} recovery_t;

static void open_file(void *arg, uint32_t number, uint64_t bytes)
{
    recovery_t *r = arg;
    cs_segment_t segment;
    (void)bytes;
    if (r->status != VC_OK)
        return;
    if (number >= CS_MAX_SEGMENTS) {
        vc_log_warn("store", "segment file ignored number=%u", number);
        return;
    }
    vc_status_t status = cs_segment_open(r->s->segdir, number, &segment, r->err);
    if (status == VC_ERR_NOT_FOUND) /* just removed */
        return;
    if (status != VC_OK) { /* taken for a missing one it would cost all of its objects, and may be there next time */
        r->status = status;
        r->is_told = true;
        return;
    }
    segment.is_dirty = true; /* until a row is found */
    r->status = cs_segments_put(r->s, &segment, NULL);
    if (r->status != VC_OK)
        cs_segment_close(&segment);
}

static cs_segment_t *segment_at(const cs_store_t *s, uint32_t number)
{
    return number < s->cap_segments ? s->segments[number] : NULL;
}

/* Nothing of ours is behind the end; counted in, those bytes would push sound objects out of the capacity. */
static void cut_to_size(cs_store_t *s, cs_segment_t *segment, uint64_t bytes)
{
    vc_log_warn("store", "segment file is too long, cut number=%u bytes=%llu was=%llu", segment->number,
                (unsigned long long)bytes, (unsigned long long)segment->bytes);
    if (ftruncate(segment->fd, (off_t)bytes) != 0) {
        vc_log_warn("store", "segment file not cut number=%u reason=\"%s\"", segment->number, strerror(errno));
        return;
    }
    s->segments_total_bytes -= segment->bytes - bytes;
    segment->bytes = bytes;
}

static void on_segment(void *arg, const cs_segment_row_t *row)
{
    recovery_t *r = arg;
    cs_segment_t *segment = segment_at(r->s, row->number);
    if (!segment) {
        vc_log_warn("store", "segment file is missing number=%u", row->number);
        if (!r->s->readonly) /* written with the generation; kept, it is damage until the number is used again */
            cs_catalog_delete_segment(r->s->catalog, row->number);
        return;
    }
    segment->version = row->version;
    segment->is_dirty = false;
    if (segment->bytes > row->bytes && row->bytes >= CS_SEGMENT_HEADER_BYTES && !r->s->readonly)
        cut_to_size(r->s, segment, row->bytes);
    segment->class_id = row->is_survivors ? CS_CLASS_SURVIVOR : CS_CLASS_FULL; /* or as its objects say */
}

static void on_keyspace(void *arg, const vc_digest_t *id, const vc_keyspace_t *ks)
{
    recovery_t *r = arg;
    uint16_t i = cs_keyspace_add(r->s, id, ks);
    if (i != CS_NO_NAME) {
        r->s->keyspaces[i].is_stored = true;
        r->s->keyspaces[i].uploads = 1; /* kept until its objects are counted */
    }
}

static void on_prefix(void *arg, const cs_prefix_row_t *row)
{
    recovery_t *r = arg;
    uint16_t keyspace = cs_keyspace_find(r->s, &row->keyspace);
    if (row->id == 0 || keyspace == CS_NO_NAME || cs_prefix_find(r->s, row->id))
        return;
    cs_prefix_t *prefix = cs_prefix_add(r->s, row->id);
    if (!prefix) {
        r->status = VC_ERR_NOMEM;
        return;
    }
    prefix->tip = row->tip;
    prefix->keyspace = keyspace;
    prefix->n_blocks = row->n_blocks;
    prefix->n_head_tokens = row->n_head_tokens;
    memcpy(prefix->head_tokens, row->head_tokens, sizeof(prefix->head_tokens));
}

static drop_t judge_place(const cs_store_t *s, const cs_object_row_t *row)
{
    const cs_segment_t *segment = segment_at(s, row->segment);
    if (!segment)
        return DROP_NO_SEGMENT;
    if (segment->is_dirty || segment->version != row->version)
        return DROP_OLD_LIFE;
    bool holds = row->offset % 4096 == 0 && row->offset >= CS_SEGMENT_HEADER_BYTES && row->bytes > 0 &&
                 row->bytes % 4096 == 0 && row->offset <= segment->bytes &&
                 row->bytes <= segment->bytes - row->offset && (row->offset + row->bytes) / 4096 < CS_INDEX_MAX_PAGES &&
                 row->block_index < CS_INDEX_MAX_BLOCKS;
    return holds ? KEPT : DROP_OUTSIDE;
}

static void on_object(void *arg, const cs_object_row_t *row)
{
    recovery_t *r = arg;
    cs_store_t *s = r->s;
    uint16_t keyspace = cs_keyspace_find(s, &row->keyspace);
    uint16_t column = cs_column_add(s, row->key.fidelity, &row->key.spec);
    drop_t why = keyspace == CS_NO_NAME ? DROP_KEYSPACE : column == CS_NO_NAME ? DROP_TOO_MANY : judge_place(s, row);
    if (why != KEPT) {
        r->n_bad++;
        r->n_why[why]++;
        if (column != CS_NO_NAME)
            cs_ghost_add(s, column, &row->key.hash, CS_MISS_CORRUPT);
        cs_queue_drop(s, &row->key);
        return;
    }
    if (r->status != VC_OK || (r->status = cs_entries_reserve(s, 1)) != VC_OK)
        return;
    cs_segment_t *segment = s->segments[row->segment];
    cs_entry_t entry = {.hash = row->key.hash,
                        .header_crc = row->header_crc,
                        .prefix = row->prefix,
                        .block_index = (uint16_t)row->block_index};
    cs_entry_set_place(&entry, row->segment, (uint32_t)(row->offset / 4096), row->bytes / 4096);
    cs_entry_set_names(&entry, column, keyspace);
    memcpy(entry.link, row->parent_fp, sizeof(entry.link));
    cs_entry_publish(s, &entry);
    if (segment->class_id != CS_CLASS_SURVIVOR)
        segment->class_id = row->key.fidelity == VC_FIDELITY_FULL ? CS_CLASS_FULL : CS_CLASS_COMPRESSED;
    segment->tail = VC_MAX(segment->tail, row->offset + row->bytes);
}

/* A pin whose object is gone goes, too. */
static void on_pin(void *arg, const vc_object_key_t *key)
{
    recovery_t *r = arg;
    cs_store_t *s = r->s;
    uint16_t column = cs_column_find(s, key->fidelity, &key->spec);
    uint32_t id = column == CS_NO_NAME ? CS_INDEX_NONE : cs_index_find(s->index, column, &key->hash);
    if (id != CS_INDEX_NONE)
        cs_pin_set(s, id, true);
    else if (!s->readonly)
        cs_pin_queue(s, key, false);
}

static void on_uses(void *arg, const cs_uses_row_t *row)
{
    recovery_t *r = arg;
    const cs_segment_t *segment = segment_at(r->s, row->number);
    if (segment && !segment->is_dirty && segment->version == row->version)
        cs_uses_restore(r->s, segment, row);
}

static void on_bad_row(void *arg, const char *kind)
{
    recovery_t *r = arg;
    r->n_bad++;
    r->n_why[DROP_UNDECODED]++;
    vc_log_warn("store", "catalog row does not decode kind=%s", kind);
}

/* Segments with objects are sealed; the one with the most room left in each class goes on taking appends. */
static void settle_live(cs_store_t *s, cs_segment_t *segment)
{
    uint32_t version;
    vc_err_t err;
    segment->state = CS_SEGMENT_SEALED;
    /* Only a warning: every record inside is checked by its own sums. */
    if (cs_segment_read_header(segment, &version, &err) != VC_OK)
        vc_log_warn("store", "segment header not usable reason=\"%s\"", err.msg);
    else if (version != segment->version)
        vc_log_warn("store", "segment header is of another version number=%u header=%u catalog=%u", segment->number,
                    version, segment->version);
    if (s->readonly || segment->bytes != s->segment_bytes || segment->tail >= segment->bytes)
        return;
    const cs_segment_t *open = s->open[segment->class_id];
    if (!open || open->tail > segment->tail) {
        cs_segment_seal(s, segment->class_id);
        segment->state = CS_SEGMENT_OPEN;
        s->open[segment->class_id] = segment;
    }
}

static void settle_empty(cs_store_t *s, cs_segment_t *segment)
{
    vc_err_t err;
    vc_status_t status = VC_ERR_RANGE;
    segment->state = CS_SEGMENT_SEALED; /* empty: should the store become writable, the first to be cleaned */
    if (s->readonly)
        return;
    if (segment->bytes == s->segment_bytes && s->segments_total_bytes <= cs_segments_budget(s)) {
        status = cs_segment_recycle(segment, segment->version + 1, &err);
        segment->is_dirty = true;
        if (status == VC_OK)
            cs_segment_set_free(s, segment);
        else
            vc_log_warn("store", "segment not reused reason=\"%s\"", err.msg);
    }
    if (status == VC_OK)
        return;
    /* Of another size (the capacity changed, or a crash while it was made), or more than the capacity has room for. */
    cs_segment_remove_file(s, segment);
}

static void settle(cs_store_t *s)
{
    for (uint32_t i = 0; i < s->cap_segments; i++) {
        cs_segment_t *segment = s->segments[i];
        if (segment && segment->live_objects > 0)
            settle_live(s, segment);
        else if (segment)
            settle_empty(s, segment);
    }
    for (uint32_t i = 0; i < s->cap_segments; i++) {
        if (s->segments[i])
            cs_segment_rank(s, s->segments[i]);
    }
    /* Rows come in the order of their hashes: half of the children before their parents. */
    for (uint32_t id = 0; id < cs_index_limit(s->index); id++) {
        if (cs_index_entry(s->index, id)->pages > 0)
            (void)cs_index_parent(s->index, id);
    }
    for (uint32_t i = 0; i < s->n_keyspaces; i++)
        s->keyspaces[i].uploads = 0;
    for (uint32_t i = s->n_prefixes; i-- > 0;)
        cs_prefix_release(s, s->prefixes[i].id); /* those without objects */
}

vc_status_t cs_recover(cs_store_t *s, vc_err_t *err)
{
    recovery_t r = {.s = s, .err = err};
    cs_catalog_visitor_t visitor = {.object = on_object,
                                    .segment = on_segment,
                                    .keyspace = on_keyspace,
                                    .prefix = on_prefix,
                                    .bad = on_bad_row,
                                    .arg = &r,
                                    .pin = on_pin,
                                    .uses = on_uses};
    vc_status_t status = cs_segdir_list(s->segdir, open_file, &r, err);
    if (r.is_told)
        return r.status;
    if (status == VC_OK)
        status = cs_catalog_scan(s->catalog, &visitor, err);
    if (status != VC_OK)
        return status;
    if (r.status != VC_OK)
        return vc_err_set(err, r.status, "no memory for the index of %u objects", cs_index_count(s->index));
    settle(s);
    s->stats.corrupt_disk += r.n_bad;
    for (int i = 0; i < N_DROPS; i++) {
        if (r.n_why[i] > 0)
            vc_log_warn("store", "rows dropped at start n=%u reason=\"%s\"", r.n_why[i], drop_texts[i]);
    }
    return VC_OK;
}
