/*
 * Get, fill, view and forget: the hash table of what is in memory, and who waits for which. See ramtier_int.h.
 */
#include "ramtier.h"

#include <string.h>

#include "ramtier_int.h"

/* ---- the table ---- */

/* Block hashes are uniform already; copies of one block differ in the spec id. */
static uint64_t hash_object(const vc_object_key_t *object)
{
    uint64_t a, b;
    memcpy(&a, object->hash.b, sizeof(a));
    memcpy(&b, object->spec.b, sizeof(b));
    return a ^ b * 0x9e3779b97f4a7c15u ^ object->fidelity;
}

static rt_record_t **bucket(cs_ramtier_t *ram, uint64_t hash) { return &ram->buckets[hash & (ram->n_buckets - 1)]; }

static bool same_object(const vc_object_key_t *a, const vc_object_key_t *b)
{
    return memcmp(a, b, sizeof(*a)) == 0; /* no padding */
}

static rt_record_t *find(cs_ramtier_t *ram, const cs_ram_key_t *key)
{
    for (rt_record_t *r = *bucket(ram, hash_object(&key->object)); r; r = r->chain) {
        if (r->key.header_crc == key->header_crc && r->key.bytes == key->bytes &&
            same_object(&r->key.object, &key->object))
            return r;
    }
    return NULL;
}

static void list_record(rt_record_t *r)
{
    rt_record_t **head = bucket(r->ram, r->hash);
    r->chain = *head;
    *head = r;
    r->listed = true;
}

void rt_unlist(rt_record_t *r)
{
    if (!r->listed)
        return;
    rt_record_t **at = bucket(r->ram, r->hash);
    while (*at != r)
        at = &(*at)->chain;
    *at = r->chain;
    r->listed = false;
}

/* ---- references ---- */

static void no_longer_ahead(rt_record_t *r)
{
    r->is_ahead = false;
    r->ram->ahead_pages -= r->run->pages;
}

void rt_discard(rt_record_t *r)
{
    cs_ramtier_t *ram = r->ram;
    if (r->run) {
        rt_dequeue(r);
        cs_pageruns_free(ram->area, r->run);
    }
    r->chain = ram->free_records;
    ram->free_records = r;
}

/* One reference less. Returns the pool buffer that is to go home, outside the lock; NULL: none. */
static cs_buf_t *unref(rt_record_t *r)
{
    if (--r->refs > 0 || (r->run && r->listed))
        return NULL;
    cs_buf_t *buf = r->buf;
    if (r->is_ahead) /* its read failed */
        no_longer_ahead(r);
    rt_unlist(r);
    rt_discard(r);
    return buf;
}

void cs_view_release(cs_view_t *view)
{
    if (!view)
        return;
    rt_record_t *r = (rt_record_t *)view;
    cs_ramtier_t *ram = r->ram;
    pthread_mutex_lock(&ram->lock);
    ram->stats.views--;
    cs_buf_t *buf = unref(r);
    pthread_mutex_unlock(&ram->lock);
    cs_bufpool_put(ram->opts.pool, buf);
}

/* ---- get ---- */

static void use(rt_record_t *r)
{
    if (r->is_ahead) {
        no_longer_ahead(r);
        r->freq = 0;
        r->ram->stats.ahead_used++;
    } else if (r->freq < RT_FREQ_MAX) {
        r->freq++;
    }
}

static cs_view_t *view_of(rt_record_t *r, bool is_use)
{
    if (is_use) {
        use(r);
        r->ram->stats.hits++;
    }
    r->refs++;
    r->ram->stats.views++;
    return &r->view;
}

static bool wait_for(rt_record_t *r, cs_get_done_fn done, void *arg)
{
    rt_waiter_t *w = rt_waiter_get(r->ram);
    if (!w)
        return false;
    *w = (rt_waiter_t){done, arg, NULL};
    *r->waiters_end = w;
    r->waiters_end = &w->next;
    return true;
}

/* A record without memory becomes one that is being filled. False: no memory. */
static bool start_fill(rt_record_t *r, bool ahead, cs_ram_fill_t *fill_p)
{
    cs_ramtier_t *ram = r->ram;
    r->is_ahead = ahead;
    fill_p->view = &r->view;
    if (rt_take_room(ram, r)) {
        fill_p->data = ram->base + (size_t)r->run->page * RT_PAGE;
        fill_p->buf_index = cs_bufpool_count(ram->opts.pool) + r->run->page / ram->slab_pages;
    } else {
        r->buf = ahead || r->key.bytes > cs_bufpool_buf_bytes(ram->opts.pool) ? NULL : cs_bufpool_get(ram->opts.pool);
        if (!r->buf)
            return false;
        fill_p->data = r->buf->data;
        fill_p->buf_index = r->buf->index;
    }
    r->view = (cs_view_t){fill_p->data, r->key.bytes};
    r->refs = 1;
    list_record(r);
    return true;
}

static rt_record_t *make_record(cs_ramtier_t *ram, const cs_ram_key_t *key)
{
    rt_record_t *r = rt_record_get(ram);
    if (r) {
        r->key = *key;
        r->hash = hash_object(&key->object);
    }
    return r;
}

static cs_ram_answer_t get_locked(cs_ramtier_t *ram, const cs_ram_key_t *key, cs_get_done_fn done, void *arg,
                                  cs_view_t **view_p, cs_ram_fill_t *fill_p)
{
    rt_record_t *r = find(ram, key);
    if (r && r->is_ready) {
        *view_p = view_of(r, true);
        return CS_RAM_HIT;
    }
    if (r) {
        if (!wait_for(r, done, arg))
            return CS_RAM_NO_ROOM;
        if (r->is_ahead)
            use(r);
        ram->stats.coalesced++;
        return CS_RAM_JOINED;
    }
    r = make_record(ram, key);
    if (!r)
        return CS_RAM_NO_ROOM;
    if (!wait_for(r, done, arg) || !start_fill(r, false, fill_p)) {
        if (r->waiters) {
            r->waiters->next = ram->free_waiters;
            ram->free_waiters = r->waiters;
        }
        rt_discard(r);
        return CS_RAM_NO_ROOM;
    }
    ram->stats.misses++;
    return CS_RAM_FILL;
}

cs_ram_answer_t cs_ramtier_get(cs_ramtier_t *ram, const cs_ram_key_t *key, cs_get_done_fn done, void *arg,
                               cs_view_t **view_p, cs_ram_fill_t *fill_p)
{
    pthread_mutex_lock(&ram->lock);
    cs_ram_answer_t answer = get_locked(ram, key, done, arg, view_p, fill_p);
    pthread_mutex_unlock(&ram->lock);
    return answer;
}

cs_view_t *cs_ramtier_peek(cs_ramtier_t *ram, const cs_ram_key_t *key, bool is_use)
{
    pthread_mutex_lock(&ram->lock);
    rt_record_t *r = find(ram, key);
    cs_view_t *view = r && r->is_ready ? view_of(r, is_use) : NULL;
    pthread_mutex_unlock(&ram->lock);
    return view;
}

bool cs_ramtier_ahead(cs_ramtier_t *ram, const cs_ram_key_t *key, cs_ram_fill_t *fill_p)
{
    uint32_t pages = key->bytes / RT_PAGE;
    pthread_mutex_lock(&ram->lock);
    /* What nobody has asked for yet never takes more than the share of those on probation. */
    bool may = ram->area && ram->ahead_pages + pages <= rt_probation_pages(ram) && !find(ram, key);
    rt_record_t *r = may ? make_record(ram, key) : NULL;
    bool is_started = r && start_fill(r, true, fill_p);
    if (is_started) {
        ram->ahead_pages += pages;
        ram->stats.ahead++;
    } else if (r) {
        rt_discard(r);
    }
    pthread_mutex_unlock(&ram->lock);
    return is_started;
}

/* ---- the end of a fill ---- */

/* The waiters get their references before the filler gives up its own, and are called without the lock: a record may be
 * gone before the last of them runs, but not for one that has not released its view. */
static void end_fill(rt_record_t *r, vc_status_t status, bool skip_first)
{
    cs_ramtier_t *ram = r->ram;
    cs_view_t *view = status == VC_OK ? &r->view : NULL;
    pthread_mutex_lock(&ram->lock);
    rt_waiter_t *first = r->waiters, *last = NULL;
    r->waiters = NULL;
    r->is_ready = status == VC_OK;
    if (status != VC_OK)
        rt_unlist(r);
    if (skip_first && first) {
        rt_waiter_t *own = first;
        first = own->next;
        own->next = ram->free_waiters;
        ram->free_waiters = own;
    }
    for (rt_waiter_t *w = first; w; w = w->next) {
        r->refs += view != NULL;
        ram->stats.views += view != NULL;
        last = w;
    }
    cs_buf_t *buf = unref(r);
    pthread_mutex_unlock(&ram->lock);
    cs_bufpool_put(ram->opts.pool, buf);
    if (!last)
        return;
    for (rt_waiter_t *w = first; w; w = w->next)
        w->done(w->arg, status, view);
    pthread_mutex_lock(&ram->lock);
    last->next = ram->free_waiters;
    ram->free_waiters = first;
    pthread_mutex_unlock(&ram->lock);
}

void cs_ramtier_filled(cs_view_t *view, vc_status_t status) { end_fill((rt_record_t *)view, status, false); }

void cs_ramtier_cancel(cs_view_t *view, vc_status_t status) { end_fill((rt_record_t *)view, status, true); }

/* ---- forget ---- */

void cs_ramtier_forget(cs_ramtier_t *ram, const vc_object_key_t *object)
{
    pthread_mutex_lock(&ram->lock);
    rt_record_t *r = *bucket(ram, hash_object(object)), *next;
    for (; r; r = next) {
        next = r->chain;
        if (!same_object(&r->key.object, object))
            continue;
        rt_unlist(r);
        if (r->refs == 0) {
            if (r->is_ahead)
                no_longer_ahead(r);
            rt_discard(r);
        }
    }
    pthread_mutex_unlock(&ram->lock);
}
