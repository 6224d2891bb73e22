/*
 * Cleaning: a segment's live records are copied to a segment of survivors, and its file is free again.
 *
 *   space thread    victim FILLING, its entries held -> records read, checked, written -> fdatasync of the survivors
 *   commit thread   one synced batch: the rows name the new places, the victim's version counts up -> the index follows
 *   space thread    once nobody reads the old places any more: header page of the next version -> FREE
 *
 * kill -9 before the batch leaves copies that nothing names; after it, a victim that nothing names. A reader's pin
 * keeps the old place until it is gone; a lease follows the entry. A batch that failed may be on disk or not, so
 * neither the old nor the new place is touched before it was written again.
 *
 * A damaged record is dropped and counted, never copied. One that the disk refuses to read stays where it is, and its
 * segment is left alone until its objects are gone.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fault_file.h"
#include "record.h"
#include "store_int.h"
#include "vc/log.h"
#include "vc/mem.h"

#define COPY_BYTES ((uint32_t)1 << 20) /* read and written at once, where records are smaller */
#define ROWS_MAX 8192u                 /* in one batch: RocksDB's log is small */

/* ---- the plan (locked) ---- */

static int by_page(const void *a, const void *b)
{
    const cs_move_t *x = a, *y = b;
    return x->page < y->page ? -1 : x->page > y->page;
}

static vc_status_t plan(cs_store_t *s, cs_clean_t *clean, cs_segment_t *victim)
{
    clean->victim = victim;
    clean->n_moves = clean->n_targets = clean->n_moved = clean->n_staged = 0;
    clean->moves = victim->live_objects > 0 ? vc_calloc(victim->live_objects, sizeof(*clean->moves)) : NULL;
    if (victim->live_objects > 0 && !clean->moves)
        return VC_ERR_NOMEM;
    for (uint32_t id = victim->first_entry; id != CS_INDEX_NONE;) {
        const cs_entry_t *entry = cs_index_entry(s->index, id);
        clean->moves[clean->n_moves++] =
            (cs_move_t){.entry = id, .page = (uint32_t)entry->page, .pages = (uint32_t)entry->pages};
        cs_index_hold(s->index, id); /* the number stays valid; also nobody evicts what is being copied */
        id = entry->seg_next;
    }
    return VC_OK;
}

static bool is_at(const cs_store_t *s, const cs_clean_t *clean, const cs_move_t *move)
{
    const cs_entry_t *entry = cs_index_entry(s->index, move->entry);
    return entry->pages > 0 && entry->segment == clean->victim->number && entry->page == move->page;
}

/* ---- copying (unlocked) ---- */

static bool get_pin(cs_store_t *s, const cs_clean_t *clean, const cs_move_t *move, cs_pin_t *pin_p)
{
    cs_lock(s);
    bool is_there = is_at(s, clean, move);
    if (is_there)
        cs_pin_entry(s, move->entry, pin_p);
    cs_unlock(s);
    return is_there;
}

/* Records of moves[0..n) lie one behind the other in buf. Takes out what is gone or damaged; returns how many stay. */
static uint32_t keep_sound(cs_store_t *s, const cs_clean_t *clean, cs_move_t *moves, uint32_t n, uint8_t *buf)
{
    uint32_t kept = 0;
    uint64_t from = 0, to = 0;
    for (uint32_t i = 0; i < n; i++) {
        vc_err_t why;
        cs_pin_t pin;
        uint64_t bytes = (uint64_t)moves[i].pages * 4096;
        bool is_there = get_pin(s, clean, &moves[i], &pin);
        bool is_sound = is_there && cs_record_check(buf + from, pin.bytes, &pin.key, pin.header_crc, &why) == VC_OK;
        if (is_there && !is_sound) {
            cs_log_corrupt(&pin, why.msg);
            (void)cs_drop_corrupt(s, &pin);
        }
        if (is_there)
            cs_store_unpin(s, &pin);
        if (is_sound) {
            memmove(buf + to, buf + from, from == to ? 0 : bytes);
            to += bytes;
            cs_move_t move = moves[i];
            moves[i] = moves[kept];
            moves[kept++] = move;
        }
        from += bytes;
    }
    return kept;
}

/* An extent for as many of the records as fit behind the last survivor, at least one. NULL: no segment is free. */
static cs_segment_t *get_extent(cs_store_t *s, cs_clean_t *clean, const cs_move_t *moves, uint32_t n, uint32_t *n_fit_p,
                                uint32_t *bytes_p, uint64_t *offset_p)
{
    for (int turn = 0; turn < 2; turn++) {
        cs_segment_t *segment = s->open[CS_CLASS_SURVIVOR];
        uint64_t room = segment && !segment->is_bad ? segment->bytes - segment->tail : 0, bytes = 0;
        uint32_t fit = 0;
        while (fit < n && bytes + (uint64_t)moves[fit].pages * 4096 <= room)
            bytes += (uint64_t)moves[fit++].pages * 4096;
        if (fit > 0 && cs_segment_append(segment, (uint32_t)bytes, offset_p)) {
            if (clean->n_targets == 0 || clean->targets[clean->n_targets - 1].segment != segment)
                clean->targets[clean->n_targets++] = (cs_target_t){.segment = segment};
            clean->targets[clean->n_targets - 1].writers++;
            *n_fit_p = fit;
            *bytes_p = (uint32_t)bytes;
            return segment;
        }
        if (clean->n_targets == CS_CLEAN_TARGETS || !cs_segment_take(s, CS_CLASS_SURVIVOR))
            return NULL;
    }
    return NULL;
}

static vc_status_t write_all(int fd, const uint8_t *data, uint32_t bytes, uint64_t offset)
{
    while (bytes > 0) {
        ssize_t n = cs_file_pwrite("compact.write", fd, data, bytes, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || n % 4096 != 0)
            return n < 0 ? vc_status_from_errno(errno) : VC_ERR_IO;
        data += n;
        bytes -= (uint32_t)n;
        offset += (uint64_t)n;
    }
    return VC_OK;
}

static vc_status_t write_run(cs_store_t *s, cs_clean_t *clean, cs_move_t *moves, uint32_t n, const uint8_t *buf)
{
    while (n > 0) {
        uint32_t fit = 0, bytes = 0;
        uint64_t offset = 0;
        cs_lock(s);
        cs_segment_t *segment = get_extent(s, clean, moves, n, &fit, &bytes, &offset);
        cs_unlock(s);
        if (!segment)
            return VC_ERR_NOSPACE;
        vc_status_t status = write_all(segment->fd, buf, bytes, offset);
        cs_lock(s);
        s->stats.segment_written += bytes;
        segment->is_bad = segment->is_bad || status != VC_OK; /* sealed by the next append */
        cs_unlock(s);
        if (status != VC_OK) {
            vc_log_error("store", "survivors not written status=%s segment=%u", vc_status_name(status),
                         segment->number);
            return status;
        }
        for (uint32_t i = 0; i < fit; i++) {
            moves[i].to = segment;
            moves[i].to_page = (uint32_t)(offset / 4096);
            offset += (uint64_t)moves[i].pages * 4096;
        }
        moves += fit;
        n -= fit;
        buf += bytes;
    }
    return VC_OK;
}

static bool get_buffer(cs_store_t *s, uint32_t bytes)
{
    if (s->copy_cap >= bytes)
        return true;
    vc_free(s->copy_buf);
    s->copy_buf = vc_alloc_aligned(4096, bytes);
    s->copy_cap = s->copy_buf ? bytes : 0;
    return s->copy_buf != NULL;
}

/* Records that follow each other on disk are read together. */
static vc_status_t copy_run(cs_store_t *s, cs_clean_t *clean, uint32_t first, uint32_t *n_p)
{
    cs_move_t *moves = &clean->moves[first];
    uint32_t n = 1, pages = moves[0].pages;
    vc_err_t why;
    while (first + n < clean->n_moves && moves[n].page == moves[n - 1].page + moves[n - 1].pages &&
           (pages + moves[n].pages) * 4096 <= COPY_BYTES)
        pages += moves[n++].pages;
    *n_p = n;
    if (!get_buffer(s, pages * 4096))
        return VC_ERR_NOMEM;
    vc_status_t status =
        cs_record_read(clean->victim->fd, (uint64_t)moves[0].page * 4096, pages * 4096, s->copy_buf, &why);
    if (status == VC_ERR_CORRUPT) { /* the file is shorter than it was: whoever lies behind its end fails its check */
        memset(s->copy_buf, 0, pages * 4096);
    } else if (status != VC_OK) {
        vc_log_error("store", "segment cannot be cleaned number=%u reason=\"%s\"", clean->victim->number, why.msg);
        clean->victim->is_stuck = true;
        return status;
    }
    uint32_t kept = keep_sound(s, clean, moves, n, s->copy_buf);
    return write_run(s, clean, moves, kept, s->copy_buf);
}

static vc_status_t sync_targets(cs_store_t *s, cs_clean_t *clean)
{
    for (uint32_t i = 0; i < clean->n_targets && s->opts.rocksdb_sync; i++) {
        cs_segment_t *segment = clean->targets[i].segment;
        if (!segment->sync_failed && cs_file_fdatasync("compact.sync", segment->fd) == 0)
            continue;
        vc_log_error("store", "survivors not synced segment=%u reason=\"%s\"", segment->number, strerror(errno));
        cs_lock(s);
        segment->is_bad = segment->sync_failed = true; /* see sync_touched in store_commit.c */
        cs_unlock(s);
        return VC_ERR_IO;
    }
    return VC_OK;
}

static vc_status_t copy_all(cs_store_t *s, cs_clean_t *clean)
{
    vc_status_t status = VC_OK;
    if (clean->n_moves == 0)
        return VC_OK;
    qsort(clean->moves, clean->n_moves, sizeof(*clean->moves), by_page);
    (void)cs_fault_hit("compact.before_copy");
    for (uint32_t i = 0, n = 0; i < clean->n_moves && status == VC_OK; i += n)
        status = copy_run(s, clean, i, &n);
    (void)cs_fault_hit("compact.after_copy");
    if (status == VC_OK)
        status = sync_targets(s, clean);
    (void)cs_fault_hit("compact.after_sync");
    return status;
}

/* ---- the commit thread's part (locked) ---- */

static void stage_segment(cs_store_t *s, const cs_segment_t *segment, uint32_t version)
{
    cs_segment_row_t row = {.number = segment->number,
                            .version = version,
                            .bytes = segment->bytes,
                            .is_survivors = segment->class_id == CS_CLASS_SURVIVOR && version == segment->version};
    cs_catalog_put_segment(s->catalog, &row);
}

static void stage_move(cs_store_t *s, const cs_move_t *move)
{
    const cs_entry_t *entry = cs_index_entry(s->index, move->entry);
    cs_object_row_t row = {.keyspace = s->keyspaces[entry->keyspace].id,
                           .segment = move->to->number,
                           .version = move->to->version,
                           .offset = (uint64_t)move->to_page * 4096,
                           .bytes = move->pages * 4096,
                           .header_crc = entry->header_crc,
                           .block_index = (uint32_t)entry->block_index,
                           .prefix = entry->prefix,
                           .stored_s = (uint32_t)(vc_clock_wall_us(s->opts.clock) / 1000000u)};
    cs_index_parent_fp(s->index, move->entry, row.parent_fp);
    cs_entry_key(s, entry, &row.key);
    cs_catalog_put_object(s->catalog, &row);
}

bool cs_clean_stage(cs_store_t *s)
{
    cs_clean_t *clean = &s->clean;
    if (clean->state != CS_CLEAN_READY)
        return false;
    clean->state = CS_CLEAN_WRITING;
    for (uint32_t i = 0; i < clean->n_targets; i++) /* also one that has a row: it may be of another class */
        stage_segment(s, clean->targets[i].segment, clean->targets[i].segment->version);
    clean->n_staged = VC_MIN(clean->n_moves - clean->n_moved, ROWS_MAX);
    for (uint32_t i = clean->n_moved; i < clean->n_moved + clean->n_staged; i++) {
        if (clean->moves[i].to && is_at(s, clean, &clean->moves[i]))
            stage_move(s, &clean->moves[i]);
    }
    if (clean->n_moved + clean->n_staged < clean->n_moves)
        return true; /* the victim goes with the last of its rows */
    if (clean->remove)
        cs_catalog_delete_segment(s->catalog, clean->victim->number);
    else
        stage_segment(s, clean->victim, clean->victim->version + 1);
    return true;
}

static void follow(cs_store_t *s, const cs_clean_t *clean, const cs_move_t *move)
{
    cs_entry_t *entry = cs_index_entry(s->index, move->entry);
    uint64_t bytes = (uint64_t)move->pages * 4096;
    if (!move->to || !is_at(s, clean, move)) /* dropped meanwhile: its row was queued for deletion behind ours */
        return;
    cs_index_unlink(s->index, move->entry, &clean->victim->first_entry);
    cs_index_link(s->index, move->entry, &move->to->first_entry);
    cs_entry_set_place(entry, move->to->number, move->to_page, move->pages);
    clean->victim->live_bytes -= bytes;
    clean->victim->live_objects--;
    move->to->live_bytes += bytes;
    move->to->live_objects++;
    cs_uses_mark(s, move->to); /* its counts go along */
    s->stats.moved_bytes += bytes;
}

void cs_clean_finish(cs_store_t *s, vc_status_t status)
{
    cs_clean_t *clean = &s->clean;
    clean->state = CS_CLEAN_READY; /* after a failure for the next try: the batch may be on disk */
    if (status == VC_OK) {
        for (uint32_t i = 0; i < clean->n_targets; i++)
            clean->targets[i].segment->is_dirty = false;
        for (uint32_t n = clean->n_staged; n > 0; n--)
            follow(s, clean, &clean->moves[clean->n_moved++]);
        if (clean->n_moved == clean->n_moves) {
            clean->victim->is_dirty = false;
            s->stats.evictions++;
            s->stats.compactions += clean->n_moves > 0;
            clean->state = CS_CLEAN_DONE;
        }
    }
    pthread_cond_signal(&s->space_work);
}

/* ---- the whole (unlocked) ---- */

static void give_up(cs_store_t *s, cs_clean_t *clean)
{
    for (uint32_t i = 0; i < clean->n_moves; i++)
        cs_index_unhold(s->index, clean->moves[i].entry);
    for (uint32_t i = 0; i < clean->n_targets; i++) {
        clean->targets[i].segment->writers -= clean->targets[i].writers - 1;
        cs_segment_writer_gone(s, clean->targets[i].segment);
    }
    vc_free(clean->moves);
    clean->moves = NULL;
    clean->n_moves = clean->n_targets = 0;
    clean->state = CS_CLEAN_IDLE;
}

/* False: the store stops, or the batch cannot be written before puts that wait were refused. */
static bool wait_for_batch(cs_store_t *s)
{
    pthread_mutex_unlock(&s->files); /* the commit thread may have to reopen them before it can write */
    cs_lock(s);
    s->clean.state = CS_CLEAN_READY;
    for (bool is_written = true; !s->has_commit_thread && is_written && s->clean.state == CS_CLEAN_READY;) {
        cs_unlock(s);
        is_written = cs_commit_clean(s);
        cs_lock(s);
    }
    pthread_cond_signal(&s->commit_work);
    while (s->has_commit_thread && s->clean.state != CS_CLEAN_DONE &&
           !(s->stopping && s->clean.state == CS_CLEAN_READY)) {
        if (s->waiting && (s->closing || cs_writable(s, NULL) != VC_OK)) {
            cs_unlock(s);
            cs_waiting_serve(s);
            cs_lock(s);
        } else {
            pthread_cond_wait(&s->space_work, &s->mu);
        }
    }
    bool is_done = s->clean.state == CS_CLEAN_DONE;
    if (!is_done)
        s->clean.state = CS_CLEAN_IDLE;
    cs_unlock(s);
    pthread_mutex_lock(&s->files);
    return is_done;
}

vc_status_t cs_clean_segment(cs_store_t *s, cs_segment_t *victim, bool remove)
{
    cs_clean_t *clean = &s->clean;
    cs_lock(s);
    vc_status_t status = plan(s, clean, victim);
    cs_unlock(s);
    clean->remove = remove || victim->bytes != s->segment_bytes;
    if (status == VC_OK)
        status = copy_all(s, clean);
    bool is_done = status == VC_OK && wait_for_batch(s);
    cs_lock(s);
    give_up(s, clean);
    victim->is_leaving = is_done && clean->remove;
    victim->state = is_done ? CS_SEGMENT_RETIRED : CS_SEGMENT_SEALED;
    if (is_done) {
        victim->next = s->retired;
        s->retired = victim;
        s->n_retired++;
    }
    cs_segment_rank(s, victim);
    cs_unlock(s);
    return is_done ? VC_OK : status != VC_OK ? status : VC_ERR_IO;
}

/* ---- the end of a victim ---- */

static cs_segment_t *take_unread(cs_store_t *s)
{
    for (cs_segment_t **at = &s->retired; *at; at = &(*at)->next) {
        cs_segment_t *segment = *at;
        if (segment->pins > 0)
            continue;
        *at = segment->next;
        segment->next = NULL;
        s->n_retired--;
        segment->state = CS_SEGMENT_FILLING;
        return segment;
    }
    return NULL;
}

void cs_retired_recycle(cs_store_t *s)
{
    for (;;) {
        vc_err_t err;
        cs_lock(s);
        cs_segment_t *segment = take_unread(s);
        cs_unlock(s);
        if (!segment)
            return;
        (void)cs_fault_hit("compact.before_recycle");
        vc_status_t status =
            segment->is_leaving ? VC_ERR_RANGE : cs_segment_recycle(segment, segment->version + 1, &err);
        if (status == VC_OK) {
            cs_lock(s);
            segment->is_stuck = false;
            cs_segment_set_free(s, segment);
            cs_unlock(s);
            continue;
        }
        if (!segment->is_leaving)
            vc_log_error("store", "segment is given up status=%s reason=\"%s\"", vc_status_name(status), err.msg);
        cs_segment_remove_file(s, segment);
    }
}
