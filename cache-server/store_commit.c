/*
 * The commit thread: the only one that writes the catalog. One turn takes every waiting commit and makes it durable
 * with one fdatasync a segment and one synced batch (group commit). Rows of evicted objects and of moved ones
 * (store_compact.c) go along; what is only evicted waits for the next batch, since its bytes stay whole until then.
 *
 * Order of a commit, and why a kill anywhere is harmless:
 *   record bytes in the segment -> fdatasync -> catalog batch, synced -> index -> callback
 * Before the batch nothing names the bytes; after it all of them are named and durable.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "fault_file.h"
#include "store_health.h"
#include "store_int.h"
#include "vc/log.h"
#include "vc/mem.h"

#define DROPS_MAX 4096u /* rows to delete that are not worth a batch of their own */

enum { UNTOUCHED = 0, TOUCHED, SYNC_FAILED }; /* cs_segment_t.touched */

typedef struct touched { /* segments of one batch */
    cs_segment_t **segments;
    uint32_t n;
} touched_t;

static uint32_t span(const cs_upload_t *upload) { return upload->n_blocks - upload->first_block; }

static uint32_t n_objects(const cs_upload_t *upload) { return upload->n_fid * span(upload); }

/* ---- step 1: the data ---- */

/* The segments have writers until their uploads end, so they stay. */
static vc_status_t mark_touched(cs_store_t *s, cs_upload_t *commits, touched_t *touched)
{
    cs_lock(s);
    touched->segments = vc_calloc(VC_MAX(s->n_segments, 1u), sizeof(*touched->segments));
    for (cs_upload_t *upload = commits; touched->segments && upload; upload = upload->next) {
        for (uint32_t i = 0; i < n_objects(upload); i++) {
            cs_segment_t *segment =
                upload->objects[i].state == CS_OBJECT_WRITTEN ? cs_object_segment(s, &upload->objects[i]) : NULL;
            if (segment && segment->touched == UNTOUCHED) {
                segment->touched = TOUCHED;
                touched->segments[touched->n++] = segment;
            }
        }
    }
    cs_unlock(s);
    return touched->segments ? VC_OK : VC_ERR_NOMEM;
}

/* The kernel reports a failed write-back once: a second fdatasync of the same file would say OK about bytes that the
 * first one lost. So a segment whose sync failed once fails every later commit of what was put before. */
static void sync_touched(cs_store_t *s, const touched_t *touched)
{
    for (uint32_t i = 0; i < touched->n; i++) {
        cs_segment_t *segment = touched->segments[i];
        if (segment->sync_failed) {
            segment->touched = SYNC_FAILED;
            continue;
        }
        if (!s->opts.rocksdb_sync || cs_health_sync(segment->fd) == 0)
            continue;
        vc_status_t status = vc_status_from_errno(errno);
        vc_log_error("store", "fdatasync failed segment=%u status=%s", segment->number, vc_status_name(status));
        segment->touched = SYNC_FAILED;
        segment->sync_failed = true;
        cs_lock(s);
        segment->is_bad = true;
        cs_unlock(s);
    }
}

static void forget_touched(touched_t *touched)
{
    for (uint32_t i = 0; i < touched->n; i++)
        touched->segments[i]->touched = UNTOUCHED;
    vc_free(touched->segments);
}

/* ---- step 2: the rows (locked) ---- */

static const cs_entry_t *find_in(const cs_store_t *s, uint16_t column, const vc_digest_t *hash)
{
    uint32_t id = cs_index_find(s->index, column, hash);
    if (id != CS_INDEX_NONE)
        return cs_index_entry(s->index, id);
    id = cs_index_find(s->pending, column, hash);
    return id != CS_INDEX_NONE ? cs_index_entry(s->pending, id) : NULL;
}

/* In any fidelity: a compressed copy joins the registration of its full one. Very many columns are not all searched;
 * the price is a second line in the list of prefixes. */
static const cs_entry_t *find_block(const cs_store_t *s, const cs_upload_t *upload, uint32_t b)
{
    const cs_entry_t *entry = NULL;
    for (uint32_t f = 0; f < upload->n_fid && !entry; f++)
        entry = find_in(s, upload->columns[f], &upload->hashes[b]);
    for (uint32_t c = 0; c < VC_MIN(s->n_columns, 64u) && !entry; c++)
        entry = s->columns[c].is_used ? find_in(s, (uint16_t)c, &upload->hashes[b]) : NULL;
    return entry;
}

/* The registration that new blocks join: the one whose tip they extend, else a new one. 0 without memory. */
static uint32_t choose_prefix(cs_store_t *s, const cs_upload_t *upload)
{
    const vc_digest_t *tip = &upload->hashes[upload->n_blocks - 1];
    const cs_entry_t *entry = NULL;
    uint32_t b = upload->n_blocks;
    while (b > 0 && !(entry = find_block(s, upload, b - 1)))
        b--;
    cs_prefix_t *prefix = entry ? cs_prefix_find(s, entry->prefix) : NULL;
    bool is_extended = prefix && memcmp(&prefix->tip, &upload->hashes[b - 1], sizeof(prefix->tip)) == 0;
    if (prefix && (is_extended || b == upload->n_blocks)) {
        if (is_extended) {
            prefix->tip = *tip;
            prefix->n_blocks = upload->n_blocks;
        }
        return prefix->id;
    }
    prefix = cs_prefix_add(s, s->next_prefix_id);
    if (!prefix)
        return 0;
    prefix->tip = *tip;
    prefix->keyspace = upload->keyspace;
    prefix->n_blocks = upload->n_blocks;
    prefix->n_head_tokens = upload->n_head_tokens;
    memcpy(prefix->head_tokens, upload->head_tokens, sizeof(prefix->head_tokens));
    return prefix->id;
}

static void stage_prefix(cs_store_t *s, cs_upload_t *upload)
{
    upload->prefix = choose_prefix(s, upload);
    cs_prefix_t *prefix = cs_prefix_find(s, upload->prefix);
    if (!prefix)
        return;
    prefix->uploads++; /* keeps it until the objects are there */
    cs_prefix_row_t row = {.id = prefix->id,
                           .keyspace = s->keyspaces[prefix->keyspace].id,
                           .tip = prefix->tip,
                           .n_blocks = prefix->n_blocks,
                           .n_head_tokens = prefix->n_head_tokens};
    memcpy(row.head_tokens, prefix->head_tokens, sizeof(row.head_tokens));
    cs_catalog_put_prefix(s->catalog, &row);
}

static void stage_object(cs_store_t *s, const cs_upload_t *upload, uint32_t i)
{
    const cs_upload_object_t *object = &upload->objects[i];
    uint32_t b = upload->first_block + i % span(upload);
    const vc_digest_t *ks = &s->keyspaces[upload->keyspace].id;
    cs_entry_t entry = {.hash = upload->hashes[b],
                        .header_crc = object->header_crc,
                        .prefix = upload->prefix,
                        .block_index = (uint16_t)b};
    cs_entry_set_place(&entry, object->segment, object->page, object->pages);
    cs_entry_set_names(&entry, upload->columns[i / span(upload)], upload->keyspace);
    memcpy(entry.link, b > 0 ? upload->hashes[b - 1].b : ks->b, sizeof(entry.link));
    cs_index_insert(s->pending, &entry);
    cs_object_row_t row = {.keyspace = *ks,
                           .segment = object->segment,
                           .version = s->segments[object->segment]->version,
                           .offset = (uint64_t)object->page * 4096,
                           .bytes = object->pages * 4096,
                           .header_crc = object->header_crc,
                           .block_index = b,
                           .prefix = upload->prefix,
                           .stored_s = (uint32_t)(vc_clock_wall_us(s->opts.clock) / 1000000u)};
    memcpy(row.parent_fp, entry.link, sizeof(row.parent_fp));
    cs_entry_key(s, &entry, &row.key);
    cs_catalog_put_object(s->catalog, &row);
}

static vc_status_t stage_upload(cs_store_t *s, cs_upload_t *upload)
{
    uint32_t n = n_objects(upload);
    for (uint32_t i = 0; i < n; i++) {
        if (upload->objects[i].state == CS_OBJECT_WRITTEN &&
            cs_object_segment(s, &upload->objects[i])->touched == SYNC_FAILED)
            return VC_ERR_IO;
    }
    if (cs_index_reserve(s->pending, n) != VC_OK || cs_entries_reserve(s, cs_index_count(s->pending) + n) != VC_OK)
        return VC_ERR_NOMEM;
    cs_keyspace_slot_t *ks = &s->keyspaces[upload->keyspace];
    if (!ks->is_stored && cs_catalog_put_keyspace(s->catalog, &ks->id, &ks->ks) != VC_OK)
        return VC_ERR_INTERNAL;
    if (ks->has_old && cs_keyspace_find(s, &ks->old_id) == CS_NO_NAME) /* it may have come back in another slot */
        cs_catalog_delete_keyspace(s->catalog, &ks->old_id);
    stage_prefix(s, upload);
    for (uint32_t i = 0; i < n; i++) {
        const vc_digest_t *hash = &upload->hashes[upload->first_block + i % span(upload)];
        uint16_t column = upload->columns[i / span(upload)];
        /* Somebody else's copy came first, in an earlier batch or in this one: ours is dead weight in its segment. */
        if (upload->objects[i].state == CS_OBJECT_WRITTEN && cs_index_find(s->index, column, hash) == CS_INDEX_NONE &&
            cs_index_find(s->pending, column, hash) == CS_INDEX_NONE)
            stage_object(s, upload, i);
    }
    return VC_OK;
}

static void stage_segments(cs_store_t *s, const touched_t *touched)
{
    for (uint32_t i = 0; i < touched->n; i++) {
        const cs_segment_t *segment = touched->segments[i];
        cs_segment_row_t row = {.number = segment->number, .version = segment->version, .bytes = segment->bytes};
        if (segment->touched == TOUCHED && segment->is_dirty)
            cs_catalog_put_segment(s->catalog, &row);
    }
}

/* ---- step 3: visible (locked) ---- */

static void publish(cs_store_t *s, const touched_t *touched)
{
    for (uint32_t id = 0; id < cs_index_limit(s->pending); id++) {
        cs_entry_t entry = *cs_index_entry(s->pending, id);
        if (!entry.pages)
            continue;
        cs_index_parent_fp(s->pending, id, entry.link);
        cs_entry_publish(s, &entry);
    }
    for (uint32_t i = 0; i < touched->n; i++) {
        if (touched->segments[i]->touched == TOUCHED)
            touched->segments[i]->is_dirty = false;
    }
    s->stats.commit_batches++;
}

/* The batch may be there after a restart or not: the rows are deleted again before anything else is written. */
static void take_back(cs_store_t *s)
{
    for (uint32_t id = 0; id < cs_index_limit(s->pending); id++) {
        const cs_entry_t *entry = cs_index_entry(s->pending, id);
        vc_object_key_t key;
        if (!entry->pages)
            continue;
        cs_entry_key(s, entry, &key);
        cs_queue_drop(s, &key);
    }
}

static void settle_upload(cs_store_t *s, cs_upload_t *upload)
{
    cs_prefix_t *prefix = cs_prefix_find(s, upload->prefix);
    if (prefix)
        prefix->uploads--;
    cs_prefix_release(s, upload->prefix);
    if (upload->status == VC_OK) {
        s->keyspaces[upload->keyspace].is_stored = true;
        s->keyspaces[upload->keyspace].has_old = false;
        s->stats.commits++;
    }
    upload->prefix = 0;
    /* The data is still there, and the client may try again when there is room, memory or a writable disk. */
    if (upload->status == VC_ERR_NOSPACE || upload->status == VC_ERR_NOMEM || upload->status == VC_ERR_READONLY) {
        upload->state = CS_UPLOAD_OPEN;
    } else {
        upload->state = CS_UPLOAD_DEAD;
        cs_upload_detach(s, upload);
    }
}

static void call_back(cs_store_t *s, cs_upload_t *commits)
{
    while (commits) {
        cs_upload_t *upload = commits, *next = upload->next;
        cs_io_done_fn done = upload->done;
        void *arg = upload->done_arg;
        vc_status_t status = upload->status;
        cs_lock(s);
        settle_upload(s, upload);
        bool is_over = upload->state == CS_UPLOAD_DEAD;
        cs_unlock(s);
        if (is_over)
            vc_free(upload);
        done(arg, status);
        commits = next;
    }
}

static void set_status(cs_upload_t *commits, vc_status_t status)
{
    for (; commits; commits = commits->next)
        commits->status = status;
}

static vc_status_t write_batch(cs_store_t *s, bool has_clean, vc_err_t *err)
{
    bool has_moves = has_clean && s->clean.n_moves > 0; /* no fault point is passed but by what it is named after */
    (void)(has_moves ? cs_fault_hit("compact.before_write") : CS_FAULT_NONE);
    (void)(has_clean && !has_moves ? cs_fault_hit("evict.before_write") : CS_FAULT_NONE);
    (void)cs_fault_hit("commit.before_write");
    vc_status_t status = cs_catalog_write(s->catalog, s->opts.rocksdb_sync, err);
    (void)cs_fault_hit("commit.after_write");
    (void)(has_clean && !has_moves ? cs_fault_hit("evict.after_write") : CS_FAULT_NONE);
    (void)(has_moves ? cs_fault_hit("compact.after_write") : CS_FAULT_NONE);
    /* RocksDB goes on writing to files that were unlinked or moved away: what a restart would not find is no commit. */
    if (status == VC_OK && !cs_health_is_ours(s))
        status = vc_err_set(err, VC_ERR_IO, "the data directory %s is gone or was replaced", s->data_dir);
    return status;
}

static void commit_batch(cs_store_t *s, cs_upload_t *commits)
{
    vc_err_t err;
    uint32_t n_drops, n_dead, n_pins;
    touched_t touched = {0};
    if (mark_touched(s, commits, &touched) != VC_OK) {
        set_status(commits, VC_ERR_NOMEM);
        return;
    }
    sync_touched(s, &touched);
    cs_keyspaces_save(s);
    cs_lock(s);
    cs_drops_stage(s, &n_drops, &n_dead); /* first: a later row of the same key must win */
    for (cs_upload_t *upload = commits; upload; upload = upload->next)
        upload->status = stage_upload(s, upload);
    stage_segments(s, &touched);
    bool has_clean = cs_clean_stage(s);
    n_pins = cs_pins_stage(s);
    if (cs_uses_due(s))
        cs_uses_stage(s);
    uint64_t ticket = s->rows_ticket;
    cs_unlock(s);
    vc_status_t status = write_batch(s, has_clean, &err);
    cs_lock(s);
    if (status == VC_OK) {
        cs_drops_forget(s, n_drops, n_dead);
        cs_pins_forget(s, n_pins);
        publish(s, &touched);
    } else {
        take_back(s);
    }
    cs_rows_settle(s, ticket, status == VC_OK);
    if (has_clean)
        cs_clean_finish(s, status);
    cs_index_clear(s->pending);
    cs_unlock(s);
    for (cs_upload_t *upload = commits; status != VC_OK && upload; upload = upload->next)
        upload->status = upload->status == VC_OK ? VC_ERR_IO : upload->status;
    if (status != VC_OK)
        cs_degrade(s, &err);
    forget_touched(&touched);
}

bool cs_commit_clean(cs_store_t *s)
{
    commit_batch(s, NULL);
    return !s->is_degraded;
}

/* ---- the thread ---- */

static bool has_queued(const cs_store_t *s) { return s->n_drops > 0 || s->n_pin_ops > 0 || s->n_dead_prefixes > 0; }

static bool has_work(const cs_store_t *s)
{
    bool can_write = !s->no_space && !s->is_degraded && !s->readonly && !s->is_lost;
    bool is_due = s->drops_due || s->n_drops >= DROPS_MAX || s->stopping;
    bool has_rows = (is_due && has_queued(s)) || cs_uses_due(s) || s->clean.state == CS_CLEAN_READY;
    return s->commits || s->recheck || s->rows_ticket > s->rows_seen || (can_write && has_rows);
}

static cs_upload_t *take_commits(cs_store_t *s)
{
    cs_upload_t *commits = s->commits;
    s->commits = NULL;
    s->commits_end = &s->commits;
    s->recheck = s->drops_due = false;
    s->rows_seen = s->rows_ticket;
    return commits;
}

static void turn(cs_store_t *s, cs_upload_t *commits, bool has_rows)
{
    vc_status_t status = cs_health_check(s);
    if (status == VC_OK)
        status = cs_space_check(s);
    if (status != VC_OK)
        set_status(commits, status == VC_ERR_IO ? VC_ERR_NOSPACE : status);
    else if (commits || has_rows)
        commit_batch(s, commits);
    call_back(s, commits);
    uint64_t bytes = status == VC_OK ? cs_catalog_disk_bytes(s->data_dir) : s->catalog_bytes;
    cs_lock(s);
    if (status != VC_OK || !(commits || has_rows))
        cs_rows_settle(s, s->rows_seen, status == VC_OK);
    s->catalog_bytes = bytes;
    if (s->waiting || s->segments_total_bytes > cs_segments_budget(s))
        cs_room_wanted(s);
    cs_unlock(s);
}

void *cs_commit_main(void *arg)
{
    cs_store_t *s = arg;
    cs_lock(s);
    for (;;) {
        while (!has_work(s) && !s->stopping)
            pthread_cond_wait(&s->commit_work, &s->mu);
        if (!has_work(s))
            break;
        cs_upload_t *commits = take_commits(s);
        bool has_rows = has_queued(s) || cs_uses_due(s) || s->clean.state == CS_CLEAN_READY;
        cs_unlock(s);
        turn(s, commits, has_rows);
        cs_lock(s);
    }
    cs_unlock(s);
    return NULL;
}
