/*
 * Room: what may be used, and how more of it is made.
 *
 *   capacity = ballast + reserve for the catalog + segments
 *
 * The reserve follows the catalog's files: twice their size, since a compaction writes the new ones before the old ones
 * go, plus what may be unflushed. Segments are preallocated, so their sum never grows by itself. Two limits hold: the
 * budget above, and the disk: a file is made only where it leaves the low-water mark free.
 *
 * A victim's way: entries leave the index (under the lock, nobody can pin them any more) -> one synced batch deletes
 * their rows and writes the segment's next version -> the header page is written -> FREE. A crash anywhere in between
 * leaves rows that name untouched bytes, or no rows.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fault_file.h"
#include "store_int.h"
#include "vc/log.h"
#include "vc/mem.h"

#define LOW_WATER_BYTES CS_CATALOG_UNFLUSHED_BYTES
#define SMALL_FILES_BYTES ((uint64_t)256 << 10) /* directories, lock file */

uint64_t cs_smallest_capacity(const cs_store_opts_t *opts)
{
    uint64_t segment = cs_segment_file_bytes(0, cs_bufpool_buf_bytes(opts->pool));
    return opts->ballast_bytes + CS_META_FLOOR_BYTES + SMALL_FILES_BYTES + CS_MIN_SEGMENTS * segment;
}

uint64_t cs_segments_budget(const cs_store_t *s)
{
    uint64_t meta = VC_MAX(CS_META_FLOOR_BYTES, 2 * s->catalog_bytes + CS_CATALOG_UNFLUSHED_BYTES);
    uint64_t other = s->opts.ballast_bytes + meta + SMALL_FILES_BYTES;
    return s->opts.capacity_bytes > other ? s->opts.capacity_bytes - other : 0;
}

uint64_t cs_disk_free(const cs_store_t *s)
{
    struct statvfs fs;
    if (fstatvfs(s->lock_fd, &fs) != 0) /* the disk that holds our files, wherever the path leads meanwhile */
        return 0;
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

uint64_t cs_disk_total(const cs_store_t *s)
{
    struct statvfs fs;
    if (statvfs(s->data_dir, &fs) != 0)
        return 0;
    return (uint64_t)fs.f_blocks * fs.f_frsize;
}

/* ---- ballast and the low-water mark ---- */

static bool ballast_path(const cs_store_t *s, char path[4096])
{
    return snprintf(path, 4096, "%s/ballast", s->data_dir) < 4096;
}

static void set_ballast(cs_store_t *s, uint64_t bytes)
{
    cs_lock(s);
    s->ballast_bytes = bytes;
    cs_unlock(s);
}

vc_status_t cs_ballast_make(cs_store_t *s, vc_err_t *err)
{
    char path[4096];
    if (!ballast_path(s, path))
        return vc_err_set(err, VC_ERR_RANGE, "the path of the data directory is too long");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return vc_err_set(err, vc_status_from_errno(errno), "cannot create %s: %s", path, strerror(errno));
    int rc = cs_file_may("ballast.make") != 0 || ftruncate(fd, (off_t)s->opts.ballast_bytes) != 0 ? errno : 0;
    if (rc == 0 && fallocate(fd, 0, 0, (off_t)s->opts.ballast_bytes) != 0)
        rc = errno == EOPNOTSUPP ? posix_fallocate(fd, 0, (off_t)s->opts.ballast_bytes) : errno;
    close(fd);
    if (rc != 0) {
        unlink(path);
        return vc_err_set(err, vc_status_from_errno(rc), "cannot allocate the ballast of %llu bytes: %s",
                          (unsigned long long)s->opts.ballast_bytes, strerror(rc));
    }
    set_ballast(s, s->opts.ballast_bytes);
    return VC_OK;
}

void cs_ballast_release(cs_store_t *s)
{
    char path[4096];
    if (ballast_path(s, path))
        unlink(path);
    set_ballast(s, 0);
}

void cs_degrade(cs_store_t *s, const vc_err_t *why)
{
    cs_lock(s);
    bool was = s->is_degraded;
    s->is_degraded = true;
    cs_unlock(s);
    if (!was)
        vc_log_error("store", "catalog write failed, writes stop until it is reopened reason=\"%s\"", why->msg);
}

/* Only the commit thread touches the catalog, so it can close and reopen it under everybody else's feet. */
static void reopen_catalog(cs_store_t *s)
{
    vc_err_t err;
    cs_catalog_close(s->catalog);
    s->catalog = NULL;
    if (cs_catalog_open(s->data_dir, false, &s->catalog, &err) != VC_OK) {
        vc_log_error("store", "catalog cannot be reopened reason=\"%s\"", err.msg);
        return;
    }
    cs_lock(s);
    s->is_degraded = false;
    cs_unlock(s);
    vc_log_info("store", "catalog reopened, writes go on");
}

vc_status_t cs_space_check(cs_store_t *s)
{
    vc_err_t err;
    uint64_t free_bytes = cs_disk_free(s);
    cs_lock(s);
    bool was = s->no_space, degraded = s->is_degraded;
    bool now = was ? free_bytes < LOW_WATER_BYTES + s->opts.ballast_bytes : free_bytes < LOW_WATER_BYTES;
    if (!now)
        s->no_space = false;
    cs_unlock(s);
    if (now && !was) {
        cs_ballast_release(s); /* before anyone hears of it: whoever is refused finds the room already made */
        cs_lock(s);
        s->no_space = true;
        cs_unlock(s);
        vc_log_error("store", "disk below the low-water mark, writes are refused free_bytes=%llu low_water_bytes=%llu",
                     (unsigned long long)free_bytes, (unsigned long long)LOW_WATER_BYTES);
        if (!degraded && cs_catalog_flush(s->catalog, &err) != VC_OK)
            cs_degrade(s, &err);
    } else if (was && !now) {
        if (cs_ballast_make(s, &err) != VC_OK) {
            cs_lock(s);
            s->no_space = now = true;
            cs_unlock(s);
        } else {
            vc_log_info("store", "disk has room again, writes go on free_bytes=%llu", (unsigned long long)free_bytes);
        }
    }
    if (!now && degraded)
        reopen_catalog(s);
    cs_lock(s);
    vc_status_t status = s->no_space ? VC_ERR_NOSPACE : s->is_degraded ? VC_ERR_IO : VC_OK;
    cs_unlock(s);
    return status;
}

/* ---- segments ---- */

vc_status_t cs_segments_put(cs_store_t *s, const cs_segment_t *segment)
{
    if (segment->number >= CS_MAX_SEGMENTS)
        return VC_ERR_RANGE;
    if (segment->number >= s->cap_segments) {
        uint32_t cap = VC_MAX(64u, s->cap_segments);
        while (cap <= segment->number)
            cap *= 2;
        cs_segment_t **segments = vc_realloc(s->segments, cap, sizeof(*segments));
        if (!segments)
            return VC_ERR_NOMEM;
        memset(segments + s->cap_segments, 0, (cap - s->cap_segments) * sizeof(*segments));
        s->segments = segments;
        s->cap_segments = cap;
    }
    cs_segment_t *copy = vc_memdup(segment, sizeof(*segment));
    if (!copy)
        return VC_ERR_NOMEM;
    s->segments[segment->number] = copy;
    s->n_segments++;
    s->segments_total_bytes += segment->bytes;
    return VC_OK;
}

static cs_segment_t *find_free(const cs_store_t *s, uint64_t bytes, uint32_t *n_free_p)
{
    cs_segment_t *found = NULL;
    *n_free_p = 0;
    for (uint32_t i = 0; i < s->cap_segments; i++) {
        cs_segment_t *segment = s->segments[i];
        if (segment && segment->state == CS_SEGMENT_FREE && segment->bytes >= bytes + CS_SEGMENT_HEADER_BYTES) {
            (*n_free_p)++;
            found = found ? found : segment;
        }
    }
    return found;
}

bool cs_segment_take(cs_store_t *s, cs_class_t class_id, uint32_t bytes)
{
    uint32_t n_free;
    cs_segment_t *segment = find_free(s, bytes, &n_free);
    if (!segment)
        return false;
    if (s->open[class_id])
        s->open[class_id]->state = CS_SEGMENT_SEALED;
    segment->state = CS_SEGMENT_OPEN;
    segment->class_id = (uint8_t)class_id;
    s->open[class_id] = segment;
    if (n_free == 1) {
        s->want_spare = true;
        pthread_cond_signal(&s->commit_work);
    }
    return true;
}

/* Unlinks a segment that the caller has set FILLING and that nothing refers to. */
static void remove_segment(cs_store_t *s, cs_segment_t *segment)
{
    vc_err_t err;
    uint64_t bytes = segment->bytes;
    vc_status_t status = cs_segment_remove(s->segdir, segment, &err);
    if (status != VC_OK)
        vc_log_warn("store", "segment not removed reason=\"%s\"", err.msg);
    cs_lock(s);
    s->segments[segment->number] = NULL;
    s->n_segments--;
    s->segments_total_bytes -= bytes;
    cs_unlock(s);
    vc_free(segment);
}

static vc_status_t create_segment(cs_store_t *s, uint32_t number)
{
    vc_err_t err;
    cs_segment_t segment;
    vc_status_t status = cs_segment_create(s->segdir, number, 1, s->segment_bytes, &segment, &err);
    if (status != VC_OK) {
        vc_log_warn("store", "no new segment status=%s reason=\"%s\"", vc_status_name(status), err.msg);
        return status;
    }
    cs_lock(s);
    status = cs_segments_put(s, &segment);
    cs_unlock(s);
    if (status != VC_OK)
        (void)cs_segment_remove(s->segdir, &segment, &err);
    return status;
}

/* ---- eviction ---- */

void cs_drops_stage(cs_store_t *s, uint32_t *n_drops_p, uint32_t *n_dead_p)
{
    for (uint32_t i = 0; i < s->n_drops; i++)
        cs_catalog_delete_object(s->catalog, &s->drops[i]);
    for (uint32_t i = 0; i < s->n_dead_prefixes; i++)
        cs_catalog_delete_prefix(s->catalog, s->dead_prefixes[i]);
    *n_drops_p = s->n_drops;
    *n_dead_p = s->n_dead_prefixes;
}

/* Later ones may have been queued meanwhile, behind those that were staged. */
void cs_drops_forget(cs_store_t *s, uint32_t n_drops, uint32_t n_dead)
{
    if (n_drops > 0)
        memmove(s->drops, s->drops + n_drops, (s->n_drops - n_drops) * sizeof(*s->drops));
    s->n_drops -= n_drops;
    if (n_dead > 0)
        memmove(s->dead_prefixes, s->dead_prefixes + n_dead, (s->n_dead_prefixes - n_dead) * sizeof(*s->dead_prefixes));
    s->n_dead_prefixes -= n_dead;
}

static double segment_worth(const cs_store_t *s, const cs_segment_t *segment, uint32_t now_s, bool *is_held_p)
{
    double worth = 0;
    for (uint32_t id = segment->first_entry; id != CS_INDEX_NONE;) {
        const cs_entry_t *entry = cs_index_entry(s->index, id);
        bool is_orphan = entry->block_index > 0 && entry->parent == CS_INDEX_NONE;
        worth += cs_evict_object_worth(entry->freq, entry->used_s, (uint32_t)entry->block_index, is_orphan, now_s);
        *is_held_p = *is_held_p || entry->holds > 0;
        id = entry->seg_next;
    }
    return worth;
}

static cs_segment_t *pick_victim(cs_store_t *s)
{
    uint32_t n = 0, now_s = cs_now_s(s);
    cs_evict_segment_t *candidates = vc_calloc(s->cap_segments, sizeof(*candidates));
    if (!candidates)
        return NULL;
    for (uint32_t i = 0; i < s->cap_segments; i++) {
        const cs_segment_t *segment = s->segments[i];
        if (!segment || segment->state != CS_SEGMENT_SEALED)
            continue;
        bool is_kept = segment->pins > 0 || segment->writers > 0;
        double worth = segment_worth(s, segment, now_s, &is_kept);
        candidates[n++] = (cs_evict_segment_t){.id = i,
                                               .is_full_copy = segment->class_id == CS_CLASS_FULL,
                                               .is_kept = is_kept,
                                               .bytes = segment->bytes,
                                               .worth = worth};
    }
    size_t victim = cs_evict_pick(candidates, n);
    cs_segment_t *segment = victim < n ? s->segments[candidates[victim].id] : NULL;
    vc_free(candidates);
    return segment;
}

/* Takes the objects out of the index; their rows and those queued before go with the next write. Locked. */
static uint32_t empty_segment(cs_store_t *s, cs_segment_t *segment)
{
    uint32_t n = 0;
    segment->state = CS_SEGMENT_FILLING;
    while (segment->first_entry != CS_INDEX_NONE) {
        uint32_t id = segment->first_entry;
        const cs_entry_t *entry = cs_index_entry(s->index, id);
        vc_object_key_t key;
        cs_entry_key(s, entry, &key);
        cs_queue_drop(s, &key);
        cs_fid_stats(s, key.fidelity)->evicted_objects++;
        cs_entry_drop(s, id, CS_MISS_EVICTED);
        n++;
    }
    s->stats.evictions++;
    return n;
}

/* Evicts one segment; remove: gives its file back instead of keeping it. NOSPACE: every segment is in use. */
static vc_status_t evict_one(cs_store_t *s, bool remove)
{
    vc_err_t err;
    uint32_t n_drops, n_dead;
    cs_lock(s);
    cs_segment_t *segment = pick_victim(s);
    if (!segment) {
        cs_unlock(s);
        return VC_ERR_NOSPACE;
    }
    uint32_t n = empty_segment(s, segment);
    remove = remove || segment->bytes != s->segment_bytes;
    cs_drops_stage(s, &n_drops, &n_dead);
    cs_segment_row_t row = {segment->number, segment->version + 1, segment->bytes};
    if (remove)
        cs_catalog_delete_segment(s->catalog, segment->number);
    else
        cs_catalog_put_segment(s->catalog, &row);
    cs_unlock(s);
    (void)cs_fault_hit("evict.before_write");
    vc_status_t status = cs_catalog_write(s->catalog, s->opts.rocksdb_sync, &err);
    (void)cs_fault_hit("evict.after_write");
    if (status == VC_OK && !remove && (status = cs_segment_recycle(segment, row.version, &err)) != VC_OK) {
        vc_log_error("store", "segment is given up status=%s reason=\"%s\"", vc_status_name(status), err.msg);
        remove = true;
        status = VC_OK;
    } else if (status != VC_OK) {
        cs_degrade(s, &err);
    }
    cs_lock(s);
    if (status == VC_OK) {
        cs_drops_forget(s, n_drops, n_dead);
        segment->is_dirty = false;
    }
    /* After a failed write the rows are still queued; SEALED and empty it is the first victim of the next try. */
    segment->state = status != VC_OK ? CS_SEGMENT_SEALED : remove ? CS_SEGMENT_FILLING : CS_SEGMENT_FREE;
    cs_unlock(s);
    if (status == VC_OK && remove)
        remove_segment(s, segment);
    vc_log_debug("store", "segment evicted number=%u objects=%u", row.number, n);
    return status;
}

static bool take_for_removal(cs_store_t *s, uint64_t smaller_than, cs_segment_t **segment_p)
{
    for (uint32_t i = 0; i < s->cap_segments; i++) {
        cs_segment_t *segment = s->segments[i];
        if (segment && segment->state == CS_SEGMENT_FREE && segment->bytes < smaller_than) {
            segment->state = CS_SEGMENT_FILLING;
            *segment_p = segment;
            return true;
        }
    }
    return false;
}

vc_status_t cs_space_make(cs_store_t *s, uint64_t bytes)
{
    /* Every turn makes a file, frees a segment or ends; there are no more turns than segments. */
    for (;;) {
        uint32_t n_free, number = 0;
        cs_segment_t *misfit = NULL;
        cs_lock(s);
        bool is_ready = find_free(s, bytes, &n_free) != NULL;
        bool has_misfit = !is_ready && take_for_removal(s, bytes + CS_SEGMENT_HEADER_BYTES, &misfit);
        bool fits = s->segments_total_bytes + s->segment_bytes <= cs_segments_budget(s);
        while (number < s->cap_segments && s->segments[number])
            number++;
        cs_unlock(s);
        if (is_ready)
            return VC_OK;
        if (has_misfit) {
            remove_segment(s, misfit);
            continue;
        }
        if (s->segment_bytes < bytes + CS_SEGMENT_HEADER_BYTES)
            return VC_ERR_NOSPACE;
        if (fits && cs_disk_free(s) >= s->segment_bytes + 2 * LOW_WATER_BYTES && create_segment(s, number) == VC_OK)
            continue;
        vc_status_t status = evict_one(s, false);
        if (status != VC_OK)
            return status;
    }
}

void cs_space_shrink(cs_store_t *s)
{
    for (;;) {
        cs_segment_t *segment = NULL;
        cs_lock(s);
        bool is_over = s->segments_total_bytes > cs_segments_budget(s);
        bool has_free = is_over && take_for_removal(s, UINT64_MAX, &segment);
        cs_unlock(s);
        if (!is_over)
            return;
        if (has_free)
            remove_segment(s, segment);
        else if (evict_one(s, true) != VC_OK)
            return;
    }
}
