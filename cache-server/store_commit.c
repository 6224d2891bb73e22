/*
 * The commit thread: the only one that writes the catalog. One turn takes every waiting commit and makes it durable
 * with one fdatasync a segment and one synced batch (group commit); then it makes room for puts that wait.
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

enum { UNTOUCHED = 0, TOUCHED, SYNC_FAILED };

static uint32_t span(const cs_upload_t *upload) { return upload->n_blocks - upload->first_block; }

static uint32_t n_objects(const cs_upload_t *upload) { return upload->n_fid * span(upload); }

/* ---- step 1: the data ---- */

static void mark_touched(cs_upload_t *commits, uint8_t *touched)
{
    for (cs_upload_t *upload = commits; upload; upload = upload->next) {
        for (uint32_t i = 0; i < n_objects(upload); i++) {
            if (upload->objects[i].state == CS_OBJECT_WRITTEN)
                touched[upload->objects[i].segment] = TOUCHED;
        }
    }
}

/* The kernel reports a failed write-back once: a second fdatasync of the same file would say OK about bytes that the
 * first one lost. So a segment whose sync failed once fails every later commit of what was put before. */
static void sync_touched(cs_store_t *s, uint8_t *touched, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (touched[i] == UNTOUCHED)
            continue;
        cs_segment_t *segment = s->segments[i]; /* has writers: stays; only this thread changes the array */
        if (segment->sync_failed) {
            touched[i] = SYNC_FAILED;
            continue;
        }
        vc_status_t status = VC_OK;
        if (s->opts.rocksdb_sync && cs_health_sync(segment->fd) != 0)
            status = vc_status_from_errno(errno);
        if (status == VC_OK)
            continue;
        vc_log_error("store", "fdatasync failed segment=%u status=%s", i, vc_status_name(status));
        touched[i] = SYNC_FAILED;
        segment->sync_failed = true;
        cs_lock(s);
        segment->is_bad = true;
        cs_unlock(s);
    }
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
                        .used_s = cs_now_s(s),
                        .freq = CS_EVICT_FREQ_ONE,
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

static vc_status_t stage_upload(cs_store_t *s, cs_upload_t *upload, const uint8_t *touched)
{
    uint32_t n = n_objects(upload);
    for (uint32_t i = 0; i < n; i++) {
        if (upload->objects[i].state == CS_OBJECT_WRITTEN && touched[upload->objects[i].segment] == SYNC_FAILED)
            return VC_ERR_IO;
    }
    if (cs_index_reserve(s->pending, n) != VC_OK || cs_index_reserve(s->index, cs_index_count(s->pending) + n) != VC_OK)
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

static void stage_segments(cs_store_t *s, const uint8_t *touched, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (touched[i] == TOUCHED && s->segments[i]->is_dirty) {
            cs_segment_row_t row = {i, s->segments[i]->version, s->segments[i]->bytes};
            cs_catalog_put_segment(s->catalog, &row);
        }
    }
}

/* ---- step 3: visible (locked) ---- */

static void publish(cs_store_t *s, const uint8_t *touched, uint32_t n)
{
    for (uint32_t id = 0; id < cs_index_limit(s->pending); id++) {
        cs_entry_t entry = *cs_index_entry(s->pending, id);
        if (!entry.pages)
            continue;
        cs_index_parent_fp(s->pending, id, entry.link);
        cs_entry_publish(s, &entry);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (touched[i] == TOUCHED)
            s->segments[i]->is_dirty = false;
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

static vc_status_t write_batch(cs_store_t *s, vc_err_t *err)
{
    (void)cs_fault_hit("commit.before_write");
    vc_status_t status = cs_catalog_write(s->catalog, s->opts.rocksdb_sync, err);
    (void)cs_fault_hit("commit.after_write");
    /* RocksDB goes on writing to files that were unlinked or moved away: what a restart would not find is no commit. */
    if (status == VC_OK && !cs_health_is_ours(s))
        status = vc_err_set(err, VC_ERR_IO, "the data directory %s is gone or was replaced", s->data_dir);
    return status;
}

static void commit_batch(cs_store_t *s, cs_upload_t *commits)
{
    vc_err_t err;
    uint32_t n_drops, n_dead, n = s->cap_segments;
    uint8_t *touched = vc_calloc(n ? n : 1, 1);
    if (!touched) {
        set_status(commits, VC_ERR_NOMEM);
        return;
    }
    mark_touched(commits, touched);
    sync_touched(s, touched, n);
    cs_lock(s);
    cs_drops_stage(s, &n_drops, &n_dead); /* first: a later row of the same key must win */
    for (cs_upload_t *upload = commits; upload; upload = upload->next)
        upload->status = stage_upload(s, upload, touched);
    stage_segments(s, touched, n);
    cs_unlock(s);
    vc_status_t status = write_batch(s, &err);
    cs_lock(s);
    if (status == VC_OK) {
        cs_drops_forget(s, n_drops, n_dead);
        publish(s, touched, n);
    } else {
        take_back(s);
    }
    cs_index_clear(s->pending);
    cs_unlock(s);
    for (cs_upload_t *upload = commits; status != VC_OK && upload; upload = upload->next)
        upload->status = upload->status == VC_OK ? VC_ERR_IO : upload->status;
    if (status != VC_OK)
        cs_degrade(s, &err);
    vc_free(touched);
}

/* ---- room for puts that wait ---- */

static cs_op_t *pop_waiting(cs_store_t *s)
{
    cs_op_t *op = s->waiting;
    s->waiting = op->next;
    if (!s->waiting)
        s->waiting_end = &s->waiting;
    return op;
}

static void start_or_fail(cs_store_t *s, cs_op_t *op)
{
    if (cs_op_start(op) == VC_OK)
        return;
    cs_lock(s);
    cs_put_undo(s, op);
    cs_unlock(s);
    cs_op_fail(op, VC_ERR_BUSY);
}

static void serve_waiting(cs_store_t *s)
{
    for (;;) {
        cs_lock(s);
        cs_op_t *op = s->waiting;
        if (!op) {
            cs_unlock(s);
            return;
        }
        vc_status_t refused =
            s->closing || op->upload->state == CS_UPLOAD_DEAD ? VC_ERR_CANCELLED : cs_writable(s, NULL);
        vc_status_t status = refused != VC_OK ? refused : cs_put_allocate(s, op);
        if (status == VC_OK)
            pop_waiting(s);
        cs_unlock(s);
        if (status == VC_OK) {
            start_or_fail(s, op);
            continue;
        }
        if (refused == VC_OK)
            status = cs_space_make(s, op->io.bytes);
        if (status == VC_OK)
            continue;
        cs_lock(s);
        pop_waiting(s); /* only this thread takes from the queue: it is still the first */
        cs_put_undo(s, op);
        s->stats.put_rejected++;
        cs_unlock(s);
        cs_op_fail(op, status);
    }
}

static void make_spare(cs_store_t *s)
{
    cs_lock(s);
    bool wanted = s->want_spare && !s->closing && cs_writable(s, NULL) == VC_OK;
    /* A spare is worth having where it is a small part of the whole. */
    wanted = wanted && cs_segments_budget(s) / s->segment_bytes >= 16;
    s->want_spare = false;
    cs_unlock(s);
    if (wanted)
        (void)cs_space_make(s, s->segment_bytes - CS_SEGMENT_HEADER_BYTES);
}

/* ---- the thread ---- */

static bool has_work(const cs_store_t *s)
{
    bool can_write = !s->no_space && !s->is_degraded && !s->readonly && !s->is_lost;
    return s->commits || s->waiting || s->recheck || (can_write && (s->n_drops > 0 || s->want_spare));
}

static cs_upload_t *take_commits(cs_store_t *s)
{
    cs_upload_t *commits = s->commits;
    s->commits = NULL;
    s->commits_end = &s->commits;
    s->recheck = false;
    return commits;
}

static void turn(cs_store_t *s, cs_upload_t *commits, bool has_drops)
{
    vc_status_t status = cs_health_check(s);
    if (status == VC_OK)
        status = cs_space_check(s);
    if (status != VC_OK)
        set_status(commits, status == VC_ERR_IO ? VC_ERR_NOSPACE : status);
    else if (commits || has_drops)
        commit_batch(s, commits);
    call_back(s, commits);
    serve_waiting(s);
    if (status != VC_OK)
        return;
    uint64_t bytes = cs_catalog_disk_bytes(s->data_dir);
    cs_lock(s);
    s->catalog_bytes = bytes;
    cs_unlock(s);
    cs_space_shrink(s);
    make_spare(s);
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
        bool has_drops = s->n_drops > 0;
        cs_unlock(s);
        turn(s, commits, has_drops);
        cs_lock(s);
    }
    cs_unlock(s);
    return NULL;
}
