/*
 * Records in memory: a hash table of them, who waits for which, and how often each is viewed. See ramtier.h.
 *
 * A record's life: fill (one reference, its filler's) -> ready (one reference per view) -> gone. `listed` says that the
 * table has it: a forgotten record lives on, unlisted, until its last view is back.
 */
#include "ramtier.h"

#include <pthread.h>
#include <string.h>

#include "vc/mem.h"

#define BUCKETS 1024u /* power of two */
#define CHUNK 64u

typedef struct waiter {
    cs_get_done_fn done;
    void *arg;
    struct waiter *next;
} waiter_t;

typedef struct record {
    cs_view_t view; /* first: a view is its record */
    cs_ramtier_t *ram;
    cs_ram_key_t key;
    struct record *chain; /* of its bucket, or the free list */
    cs_buf_t *buf;
    uint32_t refs;
    bool is_ready, listed;
    waiter_t *waiters, **waiters_end;
} record_t;

struct cs_ramtier {
    cs_ramtier_opts_t opts;
    pthread_mutex_t lock;
    record_t *buckets[BUCKETS];
    record_t *free_records;
    waiter_t *free_waiters;
    void **chunks;
    uint32_t n_chunks;
    cs_ramtier_stats_t stats;
};

/* ---- nodes ---- */

static void *new_chunk(cs_ramtier_t *ram, size_t node_bytes)
{
    void **chunks = vc_realloc(ram->chunks, ram->n_chunks + 1, sizeof(*chunks));
    if (!chunks)
        return NULL;
    ram->chunks = chunks;
    void *chunk = vc_calloc(CHUNK, node_bytes);
    if (chunk)
        ram->chunks[ram->n_chunks++] = chunk;
    return chunk;
}

static record_t *take_record(cs_ramtier_t *ram)
{
    if (!ram->free_records) {
        record_t *chunk = new_chunk(ram, sizeof(*chunk));
        for (uint32_t i = 0; chunk && i < CHUNK; i++) {
            chunk[i].chain = ram->free_records;
            ram->free_records = &chunk[i];
        }
    }
    record_t *r = ram->free_records;
    if (r)
        ram->free_records = r->chain;
    return r;
}

static waiter_t *take_waiter(cs_ramtier_t *ram)
{
    if (!ram->free_waiters) {
        waiter_t *chunk = new_chunk(ram, sizeof(*chunk));
        for (uint32_t i = 0; chunk && i < CHUNK; i++) {
            chunk[i].next = ram->free_waiters;
            ram->free_waiters = &chunk[i];
        }
    }
    waiter_t *w = ram->free_waiters;
    if (w)
        ram->free_waiters = w->next;
    return w;
}

/* ---- the table ---- */

/* Block hashes are uniform already; copies of one block differ in the spec id. */
static record_t **bucket(cs_ramtier_t *ram, const vc_object_key_t *object)
{
    uint64_t a, b;
    memcpy(&a, object->hash.b, sizeof(a));
    memcpy(&b, object->spec.b, sizeof(b));
    return &ram->buckets[(a ^ b * 0x9e3779b97f4a7c15u) % BUCKETS];
}

static bool same_object(const vc_object_key_t *a, const vc_object_key_t *b)
{
    return a->fidelity == b->fidelity && memcmp(&a->spec, &b->spec, sizeof(a->spec)) == 0 &&
           memcmp(&a->hash, &b->hash, sizeof(a->hash)) == 0;
}

static record_t *find(cs_ramtier_t *ram, const cs_ram_key_t *key)
{
    for (record_t *r = *bucket(ram, &key->object); r; r = r->chain) {
        if (r->key.header_crc == key->header_crc && r->key.bytes == key->bytes &&
            same_object(&r->key.object, &key->object))
            return r;
    }
    return NULL;
}

static void list_record(cs_ramtier_t *ram, record_t *r)
{
    record_t **head = bucket(ram, &r->key.object);
    r->chain = *head;
    *head = r;
    r->listed = true;
}

static void unlist(record_t *r)
{
    if (!r->listed)
        return;
    record_t **at = bucket(r->ram, &r->key.object);
    while (*at != r)
        at = &(*at)->chain;
    *at = r->chain;
    r->listed = false;
}

/* One reference less. The buffer that is to go home, outside the lock; NULL: none. */
static cs_buf_t *unref(record_t *r)
{
    if (--r->refs > 0)
        return NULL;
    cs_ramtier_t *ram = r->ram;
    cs_buf_t *buf = r->buf;
    unlist(r);
    r->chain = ram->free_records;
    ram->free_records = r;
    return buf;
}

void cs_view_release(cs_view_t *view)
{
    if (!view)
        return;
    record_t *r = (record_t *)view;
    cs_ramtier_t *ram = r->ram;
    pthread_mutex_lock(&ram->lock);
    ram->stats.views--;
    cs_buf_t *buf = unref(r);
    pthread_mutex_unlock(&ram->lock);
    cs_bufpool_put(ram->opts.pool, buf);
}

/* ---- get ---- */

static bool wait_for(cs_ramtier_t *ram, record_t *r, cs_get_done_fn done, void *arg)
{
    waiter_t *w = take_waiter(ram);
    if (!w)
        return false;
    *w = (waiter_t){done, arg, NULL};
    *r->waiters_end = w;
    r->waiters_end = &w->next;
    return true;
}

static cs_ram_answer_t start_fill(cs_ramtier_t *ram, const cs_ram_key_t *key, cs_buf_t *buf, cs_get_done_fn done,
                                  void *arg, cs_ram_fill_t *fill_p)
{
    record_t *r = take_record(ram);
    if (!r)
        return CS_RAM_NO_ROOM;
    *r = (record_t){.view = {buf->data, key->bytes}, .ram = ram, .key = *key, .buf = buf, .refs = 1};
    r->waiters_end = &r->waiters;
    if (!wait_for(ram, r, done, arg)) {
        r->chain = ram->free_records;
        ram->free_records = r;
        return CS_RAM_NO_ROOM;
    }
    list_record(ram, r);
    ram->stats.misses++;
    *fill_p = (cs_ram_fill_t){&r->view, buf->data, buf->index};
    return CS_RAM_FILL;
}

/* What is there, or being read. NO_ROOM: neither. Locked. */
static cs_ram_answer_t join(cs_ramtier_t *ram, const cs_ram_key_t *key, cs_get_done_fn done, void *arg,
                            cs_view_t **view_p, bool *is_known)
{
    record_t *r = find(ram, key);
    *is_known = r != NULL;
    if (!r)
        return CS_RAM_NO_ROOM;
    if (!r->is_ready) {
        if (!wait_for(ram, r, done, arg))
            return CS_RAM_NO_ROOM;
        ram->stats.coalesced++;
        return CS_RAM_JOINED;
    }
    r->refs++;
    ram->stats.views++;
    ram->stats.hits++;
    *view_p = &r->view;
    return CS_RAM_HIT;
}

cs_ram_answer_t cs_ramtier_get(cs_ramtier_t *ram, const cs_ram_key_t *key, cs_get_done_fn done, void *arg,
                               cs_view_t **view_p, cs_ram_fill_t *fill_p)
{
    bool is_known;
    pthread_mutex_lock(&ram->lock);
    cs_ram_answer_t answer = join(ram, key, done, arg, view_p, &is_known);
    pthread_mutex_unlock(&ram->lock);
    if (is_known || key->bytes > cs_bufpool_buf_bytes(ram->opts.pool))
        return answer;
    cs_buf_t *buf = cs_bufpool_get(ram->opts.pool);
    if (!buf)
        return CS_RAM_NO_ROOM;
    pthread_mutex_lock(&ram->lock);
    answer = join(ram, key, done, arg, view_p, &is_known); /* another may have been faster */
    if (!is_known)
        answer = start_fill(ram, key, buf, done, arg, fill_p);
    pthread_mutex_unlock(&ram->lock);
    if (answer != CS_RAM_FILL)
        cs_bufpool_put(ram->opts.pool, buf);
    return answer;
}

/* ---- the end of a fill ---- */

/* The waiters get their references before the filler gives up its own, and are called without the lock: a record may be
 * gone before the last of them runs, but not for one that has not released its view. */
static void end_fill(record_t *r, vc_status_t status, bool skip_first)
{
    cs_ramtier_t *ram = r->ram;
    cs_view_t *view = status == VC_OK ? &r->view : NULL;
    pthread_mutex_lock(&ram->lock);
    waiter_t *first = r->waiters, *last = NULL;
    r->waiters = NULL;
    r->is_ready = status == VC_OK;
    if (status != VC_OK)
        unlist(r);
    if (skip_first) {
        waiter_t *own = first;
        first = own->next;
        own->next = ram->free_waiters;
        ram->free_waiters = own;
    }
    for (waiter_t *w = first; w; w = w->next) {
        r->refs += view != NULL;
        ram->stats.views += view != NULL;
        last = w;
    }
    cs_buf_t *buf = unref(r);
    pthread_mutex_unlock(&ram->lock);
    cs_bufpool_put(ram->opts.pool, buf);
    if (!last)
        return;
    for (waiter_t *w = first; w; w = w->next)
        w->done(w->arg, status, view);
    pthread_mutex_lock(&ram->lock);
    last->next = ram->free_waiters;
    ram->free_waiters = first;
    pthread_mutex_unlock(&ram->lock);
}

void cs_ramtier_filled(cs_view_t *view, vc_status_t status) { end_fill((record_t *)view, status, false); }

void cs_ramtier_cancel(cs_view_t *view, vc_status_t status) { end_fill((record_t *)view, status, true); }

void cs_ramtier_forget(cs_ramtier_t *ram, const vc_object_key_t *object)
{
    pthread_mutex_lock(&ram->lock);
    record_t *r = *bucket(ram, object), *next;
    for (; r; r = next) {
        next = r->chain;
        if (same_object(&r->key.object, object))
            unlist(r);
    }
    pthread_mutex_unlock(&ram->lock);
}

/* ---- life ---- */

vc_status_t cs_ramtier_create(const cs_ramtier_opts_t *opts, cs_ramtier_t **ram_p, vc_err_t *err)
{
    cs_ramtier_t *ram = vc_calloc(1, sizeof(*ram));
    if (!ram)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the memory tier");
    ram->opts = *opts;
    pthread_mutex_init(&ram->lock, NULL);
    *ram_p = ram;
    return VC_OK;
}

void cs_ramtier_destroy(cs_ramtier_t *ram)
{
    if (!ram)
        return;
    for (uint32_t i = 0; i < ram->n_chunks; i++)
        vc_free(ram->chunks[i]);
    vc_free(ram->chunks);
    pthread_mutex_destroy(&ram->lock);
    vc_free(ram);
}

void cs_ramtier_get_stats(cs_ramtier_t *ram, cs_ramtier_stats_t *stats_p)
{
    pthread_mutex_lock(&ram->lock);
    *stats_p = ram->stats;
    pthread_mutex_unlock(&ram->lock);
}
