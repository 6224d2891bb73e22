/*
 * The store's life: open, close, the tick, stats, and the pool of running operations. See store_int.h for the map.
 */
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "store_health.h"
#include "store_int.h"
#include "store_rebuild.h"
#include "vc/log.h"
#include "vc/mem.h"

#define OPS_PER_CHUNK 64u
#define TABLE_SLOTS_MAX 65535u

/* ---- tables ---- */

vc_status_t cs_table_init(cs_table_t *table, uint32_t n)
{
    table->n = n;
    table->slots = vc_calloc(n, sizeof(*table->slots));
    return table->slots ? VC_OK : VC_ERR_NOMEM;
}

uint64_t cs_table_add(cs_table_t *table, void *item)
{
    for (uint32_t k = 0; k < table->n && table->used < table->n; k++) {
        /* From where the last one went: with few in use the first try is free. */
        uint32_t i = (uint32_t)((table->serial + k) % table->n);
        if (!table->slots[i]) {
            table->slots[i] = item;
            table->used++;
            return ++table->serial << 16 | i;
        }
    }
    return 0;
}

void *cs_table_get(const cs_table_t *table, uint64_t id)
{
    uint32_t i = (uint32_t)(id & 0xffff);
    void *item = i < table->n ? table->slots[i] : NULL;
    return item && *(const uint64_t *)item == id ? item : NULL;
}

void cs_table_remove(cs_table_t *table, uint64_t id)
{
    table->slots[id & 0xffff] = NULL;
    table->used--;
}

/* ---- operations ---- */

static bool add_ops(cs_store_t *s)
{
    if (s->n_ops + OPS_PER_CHUNK > CS_MAX_OPS)
        return false;
    void **chunks = vc_realloc(s->op_chunks, s->n_op_chunks + 1, sizeof(*chunks));
    if (!chunks)
        return false;
    s->op_chunks = chunks;
    cs_op_t *ops = vc_calloc(OPS_PER_CHUNK, sizeof(*ops));
    if (!ops)
        return false;
    s->op_chunks[s->n_op_chunks++] = ops;
    s->n_ops += OPS_PER_CHUNK;
    for (uint32_t i = 0; i < OPS_PER_CHUNK; i++) {
        ops[i].next = s->free_ops;
        s->free_ops = &ops[i];
    }
    return true;
}

cs_op_t *cs_op_get(cs_store_t *s)
{
    if (!s->free_ops && !add_ops(s))
        return NULL;
    cs_op_t *op = s->free_ops;
    s->free_ops = op->next;
    *op = (cs_op_t){.store = s};
    s->ops_running++;
    return op;
}

void cs_op_put(cs_store_t *s, cs_op_t *op)
{
    op->next = s->free_ops;
    s->free_ops = op;
    if (--s->ops_running == 0)
        pthread_cond_broadcast(&s->idle);
}

static void run_op(void *arg)
{
    cs_op_t *op = arg;
    cs_uring_submit(cs_worker_uring(op->worker), &op->io);
}

vc_status_t cs_op_start(cs_op_t *op)
{
    if (cs_worker_is_self(op->worker)) {
        run_op(op);
        return VC_OK;
    }
    return cs_worker_post(op->worker, run_op, op);
}

static void run_failure(void *arg)
{
    cs_op_t *op = arg;
    cs_store_t *s = op->store;
    op->done(op->arg, op->status);
    cs_lock(s);
    cs_op_put(s, op);
    cs_unlock(s);
}

void cs_op_fail(cs_op_t *op, vc_status_t status)
{
    struct timespec pause = {.tv_nsec = 1000000};
    op->status = status;
    /* The callback is owed. The worker empties its ring all the time; this thread may wait for it. */
    while (cs_worker_post(op->worker, run_failure, op) != VC_OK)
        nanosleep(&pause, NULL);
}

cs_fid_stats_t *cs_fid_stats(cs_store_t *s, uint8_t fidelity)
{
    return fidelity == VC_FIDELITY_FULL ? &s->stats.full : &s->stats.compressed;
}

vc_status_t cs_writable(const cs_store_t *s, vc_err_t *err)
{
    if (s->readonly)
        return vc_err_set(err, VC_ERR_READONLY, "the store is open read-only");
    if (s->is_lost)
        return vc_err_set(err, VC_ERR_READONLY, "the data directory %s is gone or was replaced", s->data_dir);
    if (s->no_space)
        return vc_err_set(err, VC_ERR_NOSPACE, "the disk of %s is full", s->data_dir);
    if (s->is_degraded)
        return vc_err_set(err, VC_ERR_IO, "the catalog of %s takes no writes", s->data_dir);
    return VC_OK;
}

/* ---- open ---- */

void cs_store_opts_default(cs_store_opts_t *opts)
{
    *opts = (cs_store_opts_t){.capacity_bytes = (uint64_t)10 << 30,
                              .ballast_bytes = (uint64_t)64 << 20,
                              .lease_ms = 30000,
                              .upload_ms = 60000,
                              .max_uploads = 64,
                              .max_leases = 4096,
                              .scrub_interval_s = 24 * 3600,
                              .rocksdb_sync = true,
                              .clock = vc_clock_system()};
}

static vc_status_t check_opts(const cs_store_opts_t *opts, vc_err_t *err)
{
    if (!opts->data_dir || !*opts->data_dir || !opts->clock || !opts->workers || !opts->pool)
        return vc_err_set(err, VC_ERR_INVALID, "the store needs a data directory, a clock, workers and a buffer pool");
    if (opts->max_uploads == 0 || opts->max_uploads > TABLE_SLOTS_MAX || opts->max_leases == 0 ||
        opts->max_leases > TABLE_SLOTS_MAX)
        return vc_err_set(err, VC_ERR_RANGE, "open uploads and leases are limited to 1..%u each", TABLE_SLOTS_MAX);
    if (opts->ballast_bytes < 2 * CS_CATALOG_UNFLUSHED_BYTES)
        return vc_err_set(err, VC_ERR_RANGE, "a ballast of %llu bytes is too small, the least is %llu",
                          (unsigned long long)opts->ballast_bytes,
                          (unsigned long long)(2 * CS_CATALOG_UNFLUSHED_BYTES));
    if (opts->capacity_bytes < cs_smallest_capacity(opts))
        return vc_err_set(err, VC_ERR_RANGE, "a capacity of %llu bytes is too small, the least that works is %llu",
                          (unsigned long long)opts->capacity_bytes, (unsigned long long)cs_smallest_capacity(opts));
    return VC_OK;
}

/* Segments are a share of the capacity: of one that the disk can never hold, not even one might fit. */
static void cap_at_disk(cs_store_t *s)
{
    uint64_t total = cs_disk_total(s), least = cs_smallest_capacity(&s->opts);
    if (total == 0 || s->opts.capacity_bytes <= total)
        return;
    uint64_t capacity = VC_MAX(total, least);
    vc_log_warn("store", "capacity is larger than the disk, using less dir=%s capacity_bytes=%llu used_as_bytes=%llu",
                s->data_dir, (unsigned long long)s->opts.capacity_bytes, (unsigned long long)capacity);
    s->opts.capacity_bytes = capacity;
}

static void check_disk(cs_store_t *s)
{
    if (s->readonly || cs_disk_free(s) >= CS_CATALOG_UNFLUSHED_BYTES)
        return;
    cs_ballast_release(s);
    if (cs_disk_free(s) >= CS_CATALOG_UNFLUSHED_BYTES) {
        vc_log_warn("store", "disk is full, ballast released dir=%s", s->data_dir);
        s->no_space = true;
        return;
    }
    s->is_disk_full = true;
    vc_log_warn("store", "disk is full, serving read-only dir=%s free_bytes=%llu", s->data_dir,
                (unsigned long long)cs_disk_free(s));
    s->readonly = true;
}

static vc_status_t open_files(cs_store_t *s, vc_err_t *err)
{
    if (!s->readonly && cs_rebuild_is_needed(s->data_dir)) /* RocksDB would begin with an empty one */
        return vc_err_set(err, VC_ERR_CORRUPT, "there are segments and no catalog");
    vc_status_t status = cs_catalog_open(s->data_dir, s->readonly, &s->catalog, err);
    if (!s->readonly && (status == VC_ERR_NOSPACE || status == VC_ERR_READONLY)) {
        vc_log_warn("store", "catalog opens read-only reason=\"%s\"", err ? err->msg : vc_status_name(status));
        s->readonly = true;
        status = cs_catalog_open(s->data_dir, true, &s->catalog, err);
    }
    if (status == VC_ERR_NOT_FOUND && s->is_disk_full)
        return vc_err_set(err, VC_ERR_NOSPACE, "the disk of %s is full, and no store is there yet", s->data_dir);
    if (status != VC_OK)
        return s->readonly ? vc_err_prefix(err, "%s is read-only or full and cannot be served", s->data_dir) : status;
    status = cs_segdir_open(s->data_dir, s->readonly, &s->segdir, err);
    return status == VC_OK && !s->readonly ? cs_dir_sync(s, err) : status;
}

/* The new generation is durable before anything is answered. */
static vc_status_t start_generation(cs_store_t *s, vc_err_t *err)
{
    s->generation = cs_catalog_generation(s->catalog) + 1;
    do
        randombytes_buf(&s->boot_id, sizeof(s->boot_id));
    while (s->boot_id == 0);
    if (s->readonly)
        return VC_OK;
    cs_catalog_put_generation(s->catalog, s->generation);
    return cs_catalog_write(s->catalog, true, err);
}

static vc_status_t make_room_at_start(cs_store_t *s, vc_err_t *err)
{
    s->catalog_bytes = cs_catalog_disk_bytes(s->data_dir);
    if (s->readonly)
        return VC_OK;
    cs_rebuild_clean(s->data_dir);
    if (!s->no_space) {
        cs_keyspaces_save(s);
        cs_space_shrink(s);
        /* The rows of what was moved may be there or not: only a start that reads them again knows which copy to keep.
         */
        if (s->is_degraded)
            return vc_err_set(err, VC_ERR_IO, "the catalog of %s cannot be written", s->data_dir);
        vc_status_t status = cs_ballast_make(s, err);
        if (status == VC_ERR_NOSPACE) {
            vc_log_warn("store", "no room for the ballast, writes are refused reason=\"%s\"", err ? err->msg : "");
            s->no_space = true;
        } else if (status != VC_OK) {
            return status;
        }
    }
    return VC_OK;
}

static vc_status_t alloc_tables(cs_store_t *s)
{
    s->keyspaces = vc_calloc(CS_MAX_KEYSPACES, sizeof(*s->keyspaces));
    s->tenants = vc_calloc(CS_MAX_KEYSPACES, sizeof(*s->tenants));
    s->columns = vc_calloc(CS_MAX_COLUMNS, sizeof(*s->columns));
    s->ghosts = vc_calloc(CS_GHOSTS, sizeof(*s->ghosts));
    s->next_prefix_id = 1;
    s->uses_us = cs_now_us(s);
    s->waiting_end = &s->waiting;
    s->commits_end = &s->commits;
    if (!s->keyspaces || !s->tenants || !s->columns || !s->ghosts || !s->data_dir ||
        cs_table_init(&s->leases, s->opts.max_leases) != VC_OK ||
        cs_table_init(&s->uploads, s->opts.max_uploads) != VC_OK || cs_index_create(&s->index) != VC_OK ||
        cs_index_create(&s->pending) != VC_OK || cs_policy_create(s->opts.capacity_bytes, &s->policy) != VC_OK)
        return VC_ERR_NOMEM;
    return VC_OK;
}

static void *tick_main(void *arg)
{
    cs_store_t *s = arg;
    for (;;) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += 1;
        cs_lock(s);
        if (!s->stopping && s->n_suspects == 0)
            pthread_cond_timedwait(&s->tick_work, &s->mu, &until);
        bool stop = s->stopping;
        cs_unlock(s);
        if (stop)
            return NULL;
        cs_store_tick(s);
    }
}

static vc_status_t start_threads(cs_store_t *s, vc_err_t *err)
{
    int rc = 0;
    rc = pthread_create(&s->commit_thread, NULL, cs_commit_main, s); /* of a read-only store too: it may come back */
    s->has_commit_thread = rc == 0;
    if (rc == 0) {
        rc = pthread_create(&s->space_thread, NULL, cs_space_main, s);
        s->has_space_thread = rc == 0;
    }
    if (rc == 0 && !s->opts.no_maintenance_thread) {
        rc = pthread_create(&s->scrub_thread, NULL, cs_scrub_main, s);
        s->has_scrub_thread = rc == 0;
    }
    if (rc == 0 && !s->opts.no_maintenance_thread) {
        rc = pthread_create(&s->tick_thread, NULL, tick_main, s);
        s->has_tick_thread = rc == 0;
    }
    return rc == 0 ? VC_OK : vc_err_set(err, VC_ERR_NOMEM, "cannot start a store thread: %s", strerror(rc));
}

static void init_sync(cs_store_t *s)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->mu, NULL);
    pthread_mutex_init(&s->files, NULL);
    pthread_cond_init(&s->commit_work, NULL);
    pthread_cond_init(&s->tick_work, &attr);
    pthread_cond_init(&s->scrub_work, &attr);
    pthread_cond_init(&s->space_work, NULL);
    pthread_cond_init(&s->rows_written, NULL);
    pthread_cond_init(&s->idle, NULL);
    pthread_condattr_destroy(&attr);
}

static vc_status_t open_steps(cs_store_t *s, vc_err_t *err)
{
    vc_status_t status = alloc_tables(s);
    if (status != VC_OK)
        return vc_err_set(err, status, "no memory for the store");
    if (!s->opts.ram) {
        cs_ramtier_opts_t ram = {.pool = s->opts.pool};
        if ((status = cs_ramtier_create(&ram, &s->own_ram, err)) != VC_OK)
            return status;
        s->opts.ram = s->own_ram;
    }
    cs_ramtier_stats_t ram_stats;
    cs_ramtier_get_stats(s->opts.ram, &ram_stats);
    s->reads_ahead = ram_stats.capacity_bytes > 0;
    if ((status = cs_dir_lock(s, err)) != VC_OK)
        return status;
    if ((status = cs_catalog_check_format(s->data_dir, err)) != VC_OK)
        return status;
    check_disk(s);
    cap_at_disk(s);
    s->segment_bytes = cs_segment_file_bytes(s->opts.capacity_bytes, cs_bufpool_buf_bytes(s->opts.pool));
    if ((status = open_files(s, err)) != VC_OK || (status = cs_recover(s, err)) != VC_OK ||
        (status = start_generation(s, err)) != VC_OK || (status = make_room_at_start(s, err)) != VC_OK)
        return status;
    return start_threads(s, err);
}

static cs_store_t *new_store(const cs_store_opts_t *opts, int lock_fd)
{
    cs_store_t *s = sodium_init() >= 0 ? vc_calloc(1, sizeof(*s)) : NULL;
    if (!s)
        return NULL;
    s->opts = *opts;
    s->lock_fd = lock_fd;
    cs_steady_init(&s->steady, opts->clock);
    s->opts.clock = &s->steady.clock;
    s->data_dir = vc_strdup(opts->data_dir);
    init_sync(s);
    return s;
}

/* The catalog cannot be used: once more, with a new one. The lock is never let go of. */
static vc_status_t open_rebuilt(const cs_store_opts_t *opts, cs_store_t **store_p, vc_err_t *err)
{
    char why[sizeof(err->msg)];
    cs_rebuild_report_t report;
    cs_store_t *s = *store_p;
    int lock_fd = fcntl(s->lock_fd, F_DUPFD_CLOEXEC, 0);
    memcpy(why, err->msg, sizeof(why));
    s->is_degraded = true; /* nothing more is written to the old one */
    cs_store_close(s);
    *store_p = NULL;
    if (lock_fd < 0)
        return vc_err_set(err, VC_ERR_CORRUPT, "%s", why);
    vc_status_t status = cs_store_rebuild(opts->data_dir, why, &report, err);
    if (status == VC_OK && !(*store_p = s = new_store(opts, lock_fd)))
        status = vc_err_set(err, VC_ERR_NOMEM, "no memory for the store");
    if (status != VC_OK) {
        close(lock_fd);
        return status;
    }
    s->stats.rebuilt_objects = report.objects;
    return open_steps(s, err);
}

vc_status_t cs_store_open(const cs_store_opts_t *opts, cs_store_t **store_p, vc_err_t *err)
{
    vc_err_t local;
    uint64_t start_us = vc_clock_now_us(vc_clock_system());
    err = err ? err : &local;
    vc_status_t status = check_opts(opts, err);
    if (status != VC_OK)
        return status;
    cs_store_t *s = new_store(opts, -1);
    if (!s)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the store");
    status = open_steps(s, err);
    if (status == VC_ERR_CORRUPT && !s->readonly)
        status = open_rebuilt(opts, &s, err);
    if (status != VC_OK || !s) {
        cs_store_close(s);
        return status;
    }
    vc_log_info("store", "store open dir=%s objects=%u segments=%u generation=%llu readonly=%d ms=%llu", s->data_dir,
                cs_index_count(s->index), s->n_segments, (unsigned long long)s->generation, s->readonly,
                (unsigned long long)((vc_clock_now_us(vc_clock_system()) - start_us) / 1000));
    *store_p = s;
    return VC_OK;
}

/* ---- close ---- */

static void wait_until_idle(cs_store_t *s)
{
    cs_lock(s);
    s->closing = true;
    cs_room_wanted(s); /* waiting puts are cancelled by the space thread */
    while (s->ops_running > 0)
        pthread_cond_wait(&s->idle, &s->mu);
    s->stopping = true;
    pthread_cond_signal(&s->commit_work);
    pthread_cond_signal(&s->tick_work);
    pthread_cond_signal(&s->scrub_work);
    pthread_cond_signal(&s->space_work);
    cs_unlock(s);
    if (s->has_scrub_thread)
        pthread_join(s->scrub_thread, NULL);
    if (s->has_space_thread) /* before the commit thread, which may be writing rows for it */
        pthread_join(s->space_thread, NULL);
    if (s->has_commit_thread)
        pthread_join(s->commit_thread, NULL);
    if (s->has_tick_thread)
        pthread_join(s->tick_thread, NULL);
}

static void end_clients(cs_store_t *s)
{
    for (uint32_t i = 0; s->leases.slots && i < s->leases.n; i++) {
        if (s->leases.slots[i])
            cs_lease_free(s, s->leases.slots[i]);
    }
    for (uint32_t i = 0; s->uploads.slots && i < s->uploads.n; i++) {
        if (s->uploads.slots[i])
            cs_upload_end(s, s->uploads.slots[i]);
    }
}

static void free_memory(cs_store_t *s)
{
    for (uint32_t i = 0; i < s->n_op_chunks; i++)
        vc_free(s->op_chunks[i]);
    for (uint32_t i = 0; i < s->cap_segments; i++) {
        if (s->segments[i])
            cs_segment_close(s->segments[i]);
        vc_free(s->segments[i]);
    }
    void *blocks[] = {s->op_chunks,  s->segments,     s->keyspaces,     s->columns, s->prefixes,      s->prefix_slots,
                      s->ghosts,     s->leases.slots, s->uploads.slots, s->drops,   s->dead_prefixes, s->data_dir,
                      s->scrub.data, s->ranked,       s->copy_buf,      s->pin_ops, s->tenants};
    for (size_t i = 0; i < VC_ARRAY_LEN(blocks); i++)
        vc_free(blocks[i]);
    cs_index_destroy(s->index);
    cs_index_destroy(s->pending);
    cs_policy_destroy(s->policy);
    cs_ramtier_destroy(s->own_ram);
}

void cs_store_close(cs_store_t *s)
{
    if (!s)
        return;
    wait_until_idle(s);
    end_clients(s);
    if (s->catalog && !s->readonly && !s->no_space && !s->is_degraded && !s->is_lost) {
        vc_err_t err;
        if (cs_catalog_flush(s->catalog, &err) != VC_OK)
            vc_log_warn("store", "flush at close failed reason=\"%s\"", err.msg);
    }
    cs_catalog_close(s->catalog);
    cs_segdir_close(s->segdir);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    free_memory(s);
    pthread_cond_destroy(&s->commit_work);
    pthread_cond_destroy(&s->tick_work);
    pthread_cond_destroy(&s->scrub_work);
    pthread_cond_destroy(&s->space_work);
    pthread_cond_destroy(&s->rows_written);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->files);
    pthread_mutex_destroy(&s->mu);
    cs_steady_fini(&s->steady);
    vc_free(s);
}

/* ---- the rest ---- */

bool cs_store_is_readonly(const cs_store_t *s) { return s->readonly; }

cs_ramtier_t *cs_store_ramtier(cs_store_t *s) { return s->opts.ram; }

uint64_t cs_store_boot_id(const cs_store_t *s) { return s->boot_id; }

uint64_t cs_store_generation(const cs_store_t *s) { return s->generation; }

void cs_store_tick(cs_store_t *s)
{
    cs_check_suspects(s);
    cs_lock(s);
    uint64_t now_us = cs_now_us(s);
    cs_leases_expire(s, now_us);
    cs_uploads_expire(s, now_us);
    /* The disk may have filled up, or have room again. */
    s->recheck = s->has_commit_thread;
    s->drops_due = true;
    cs_room_wanted(s);
    pthread_cond_signal(&s->commit_work);
    cs_unlock(s);
    if (!s->has_scrub_thread)
        cs_scrub_tick(s);
}

void cs_store_get_stats(cs_store_t *s, cs_store_stats_t *stats_p)
{
    cs_lock(s);
    *stats_p = s->stats;
    stats_p->uploads_open = s->uploads.used;
    stats_p->leases_open = s->leases.used;
    stats_p->pinned_bytes = s->pinned_bytes;
    stats_p->capacity_bytes = s->opts.capacity_bytes;
    stats_p->used_bytes = s->segments_total_bytes + s->ballast_bytes + s->catalog_bytes;
    stats_p->n_segments = s->n_segments;
    stats_p->objects = cs_index_count(s->index);
    cs_tenant_stats(s, stats_p);
    stats_p->index_bytes = cs_index_memory_bytes(s->index) + cs_policy_memory_bytes(s->policy);
    uint64_t put = s->stats.full.put_bytes + s->stats.compressed.put_bytes;
    stats_p->write_amplification = put > 0 ? (double)s->stats.segment_written / (double)put : 0;
    stats_p->dead_bytes = s->ranked_bytes - s->ranked_live;
    stats_p->readonly = s->readonly || s->no_space || s->is_degraded || s->is_lost;
    cs_unlock(s);
}
