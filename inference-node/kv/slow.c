/*
 * Plan, spilling and passes. Invariants between two calls: blocks [0, n_spilled) have no page and are in the file;
 * [n_spilled, n_written) are being written or written, and have pages still; a buffer that was read ahead holds every
 * spilled block, since a block that leaves memory is copied into such buffers.
 */
#include "kv/slow.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kv/slow_int.h"
#include "vc/config.h"
#include "vc/crc32c.h"
#include "vc/mem.h"

/* ---- plan ---- */

bool node_slow_needed(const node_kv_dims_t *dims, const node_slow_opts_t *opts)
{
    uint64_t pages = opts->ram_bytes / (node_slow_part_bytes(dims) * dims->n_layer);
    return node_slow_blocks(opts->max_tokens) > pages;
}

/* Pages that a pass may write to, the one before them, and one that is on its way out. */
static uint32_t least_pages(const node_slow_opts_t *o) { return node_slow_blocks(o->pass_rows) + 3; }

static vc_status_t too_little(const node_slow_opts_t *o, uint64_t need, vc_err_t *err)
{
    const uint64_t n = o->share_option != NULL ? o->n_shares : 1;
    char share[80] = "";
    if (o->share_option != NULL)
        snprintf(share, sizeof share, "%s for each of %s %u", vc_bytes_text(o->ram_bytes).text, o->share_option,
                 o->n_shares);
    return vc_err_set(err, VC_ERR_RANGE,
                      "--kv-ram %s is %s; %u tokens of prompt, answer and drafts need %s: --kv-ram %s would do",
                      vc_bytes_text(o->ram_bytes * n).text, share[0] ? share : "too little", o->max_tokens,
                      vc_bytes_text(need).text, vc_bytes_text_at_least(need * n).text);
}

static void set_pages(node_slow_t *s, uint64_t n, uint64_t pages, uint32_t own_slots)
{
    s->max_pages = (uint32_t)pages;
    s->max_spilled = (uint32_t)(n - pages);
    s->file_blocks = (uint32_t)VC_MIN(n, (uint64_t)s->max_spilled + NODE_SLOW_AHEAD);
    s->stats.ram_bytes = (pages * s->dims.n_layer + own_slots * (n - pages)) * s->part_bytes;
}

/* With p pages resident, n - p blocks are spilled, and each buffer holds a part of all of them:
 * p * layers + slots * (n - p) parts in all. */
static bool plan_slots(node_slow_t *s, const node_slow_opts_t *o, uint32_t n_slots, uint64_t *need_p)
{
    uint64_t n = node_slow_blocks(o->max_tokens), layers = s->dims.n_layer, least = VC_MIN(least_pages(o), n);
    uint64_t parts = o->ram_bytes / s->part_bytes;
    *need_p = (least * layers + n_slots * (n - least)) * s->part_bytes;
    if (layers <= n_slots || *need_p > o->ram_bytes)
        return false;
    s->n_slots = n_slots;
    set_pages(s, n, VC_MIN((parts - n_slots * n) / (layers - n_slots), n), n_slots);
    return true;
}

static vc_status_t plan_alone(node_slow_t *s, const node_slow_opts_t *o, vc_err_t *err)
{
    uint64_t need = 0;
    for (uint32_t slots = NODE_SLOW_SLOTS_MAX; slots >= 2; slots--)
        if (plan_slots(s, o, slots, &need))
            return VC_OK;
    if (s->dims.n_layer <= 2)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "slow tier: a model of %u layers has nothing to stream",
                          s->dims.n_layer);
    return too_little(o, need, err);
}

/* Memory is for pages alone. */
static uint64_t pooled_pages(const node_kv_dims_t *dims, const node_slow_opts_t *o)
{
    return VC_MIN(o->ram_bytes / (node_slow_part_bytes(dims) * dims->n_layer), node_slow_blocks(o->max_tokens));
}

uint32_t node_slow_spilled_tokens(const node_kv_dims_t *dims, const node_slow_opts_t *opts)
{
    return (node_slow_blocks(opts->max_tokens) - (uint32_t)pooled_pages(dims, opts)) * NODE_TILE;
}

static vc_status_t plan_pooled(node_slow_t *s, const node_slow_opts_t *o, vc_err_t *err)
{
    uint64_t n = node_slow_blocks(o->max_tokens), least = VC_MIN(least_pages(o), n);
    uint64_t pages = pooled_pages(&s->dims, o);
    if (memcmp(&s->dims, &o->pool->dims, sizeof s->dims) != 0)
        return vc_err_set(err, VC_ERR_MISMATCH, "slow tier: the pool is for another KV shape");
    if (pages < least)
        return too_little(o, least * s->dims.n_layer * s->part_bytes, err);
    s->n_slots = s->dims.n_layer;
    set_pages(s, n, pages, 0);
    if (s->max_spilled > o->pool->max_blocks)
        return vc_err_set(err, VC_ERR_RANGE,
                          "slow tier: %u tokens of the session would lie in its file, the pool's buffers hold %u",
                          s->max_spilled * NODE_TILE, o->pool->max_blocks * NODE_TILE);
    return VC_OK;
}

/* ---- lifecycle ---- */

static vc_status_t alloc_state(node_slow_t *s, vc_err_t *err)
{
    s->sums = vc_calloc((size_t)s->dims.n_layer * s->file_blocks, sizeof *s->sums);
    s->slots = vc_calloc(s->dims.n_layer, sizeof *s->slots);
    bool good = s->sums != NULL && s->slots != NULL;
    for (uint32_t i = 0; i < NODE_SLOW_AHEAD; i++) {
        s->writes[i].reqs = vc_calloc(s->dims.n_layer, sizeof(node_slow_req_t));
        good = good && s->writes[i].reqs != NULL;
    }
    return good ? VC_OK : vc_err_set(err, VC_ERR_NOMEM, "slow tier: out of memory");
}

/* Buffers of its own are a pool with one session. */
static vc_status_t own_pool(node_slow_t *s, const node_slow_opts_t *o, node_slow_pool_t **pool_p, vc_err_t *err)
{
    const node_slow_pool_opts_t po = {.dir = o->dir, .n_streams = 1, .io = o->io, .delay_seed = o->delay_seed};
    return node_slow_pool_make(&s->dims, &po, s->max_spilled, s->n_slots, pool_p, err);
}

vc_status_t node_slow_create(const node_kv_dims_t *dims, const node_slow_opts_t *opts, node_slow_t **slow_p,
                             vc_err_t *err)
{
    node_slow_t *s = vc_calloc(1, sizeof *s);
    if (s == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "slow tier: out of memory");
    s->dims = *dims;
    s->part_bytes = node_slow_part_bytes(dims);
    s->pass_rows = opts->pass_rows;
    s->max_tokens = opts->max_tokens;
    s->own = opts->pool == NULL;
    s->fd = -1;
    node_slow_pool_t *pool = opts->pool;
    vc_status_t st = s->own ? plan_alone(s, opts, err) : plan_pooled(s, opts, err);
    if (st == VC_OK)
        st = node_slow_file_open(s->own ? opts->dir : pool->dir, node_slow_offset(s, dims->n_layer, 0), &s->fd,
                                 &s->direct, err);
    if (st == VC_OK)
        st = alloc_state(s, err);
    if (st == VC_OK && s->own)
        st = own_pool(s, opts, &pool, err);
    if (st != VC_OK) {
        node_slow_destroy(s);
        return st;
    }
    pthread_mutex_lock(&pool->lock);
    node_slow_pool_join(pool, s);
    pthread_mutex_unlock(&pool->lock);
    *slow_p = s;
    return VC_OK;
}

static vc_status_t write_end(node_slow_t *s, uint32_t block, vc_err_t *err);

void node_slow_destroy(node_slow_t *s)
{
    if (s == NULL)
        return;
    if (s->pool != NULL) {
        pthread_mutex_lock(&s->pool->lock);
        for (uint32_t i = 0; i < NODE_SLOW_AHEAD; i++)
            (void)write_end(s, i, NULL); /* only what is under way still: nobody reads it any more */
        node_slow_pool_leave(s);
        pthread_mutex_unlock(&s->pool->lock);
    }
    if (s->own)
        node_slow_pool_destroy(s->pool);
    for (uint32_t i = 0; i < NODE_SLOW_AHEAD; i++)
        vc_free(s->writes[i].reqs);
    vc_free(s->slots);
    vc_free(s->sums);
    if (s->fd >= 0)
        close(s->fd);
    vc_free(s);
}

vc_status_t node_kv_set_slow(node_kv_t *kv, node_slow_t *slow)
{
    if (kv->body != NULL || kv->n_tokens != 0 || kv->slow != NULL ||
        memcmp(&kv->dims, &slow->dims, sizeof kv->dims) != 0)
        return VC_ERR_INVALID;
    kv->slow = slow;
    return VC_OK;
}

uint32_t node_slow_n_spilled(const node_slow_t *s) { return s->n_spilled; }

void node_slow_stats(const node_slow_t *s, node_slow_stats_t *stats_p)
{
    pthread_mutex_lock(&s->pool->lock);
    *stats_p = s->stats;
    stats_p->n_spilled = s->n_spilled;
    stats_p->n_slots = s->n_slots;
    stats_p->max_pages = s->max_pages;
    stats_p->direct = s->direct;
    stats_p->ring = node_slow_io_mode(s->pool->io) == NODE_SLOW_IO_RING;
    pthread_mutex_unlock(&s->pool->lock);
}

vc_status_t node_slow_failed(const node_kv_t *kv, vc_err_t *err)
{
    if (kv->slow == NULL || kv->slow->failed.status == VC_OK)
        return VC_OK;
    if (err != NULL)
        *err = kv->slow->failed;
    return kv->slow->failed.status;
}

/* ---- writing ---- */

static uint8_t *part_of(node_page_t *page, uint32_t layer) { return (uint8_t *)node_page_k(page, layer, 0); }

static void write_begin(node_slow_t *s, node_page_t *page, uint32_t block)
{
    node_slow_write_t *w = &s->writes[block % NODE_SLOW_AHEAD];
    w->page = node_page_get(page);
    for (uint32_t l = 0; l < s->dims.n_layer; l++) {
        uint8_t *part = part_of(page, l);
        s->sums[(size_t)l * s->file_blocks + block] = vc_crc32c(0, part, s->part_bytes);
        w->reqs[l] = (node_slow_req_t){.fd = s->fd,
                                       .data = part,
                                       .offset = node_slow_offset(s, l, block),
                                       .bytes = (uint32_t)s->part_bytes,
                                       .write = true,
                                       .buffer = -1};
        node_slow_io_submit(s->pool->io, &w->reqs[l]);
    }
    s->stats.written_bytes += s->part_bytes * s->dims.n_layer;
}

static const char *reason(const node_slow_req_t *req)
{
    return req->error ? strerror(req->error) : vc_status_text(req->status);
}

static vc_status_t write_end(node_slow_t *s, uint32_t block, vc_err_t *err)
{
    node_slow_write_t *w = &s->writes[block % NODE_SLOW_AHEAD];
    vc_status_t st = VC_OK;
    for (uint32_t l = 0; w->page != NULL && l < s->dims.n_layer; l++) {
        node_slow_io_wait(s->pool->io, &w->reqs[l]);
        if (st == VC_OK && w->reqs[l].status != VC_OK)
            st = node_slow_fail(s, w->reqs[l].status, err, "slow tier: block %u cannot be written: %s", block,
                                reason(&w->reqs[l]));
    }
    node_page_put(w->page);
    w->page = NULL;
    return st;
}

/* Takes the oldest page out of memory. *moved_p: false when somebody else holds it. */
static vc_status_t spill(node_kv_t *kv, bool *moved_p, vc_err_t *err)
{
    node_slow_t *s = kv->slow;
    uint32_t block = s->n_spilled;
    *moved_p = false;
    if (s->n_written > block) {
        vc_status_t st = write_end(s, block, err);
        if (st != VC_OK)
            return st;
    }
    if (node_page_is_shared(kv->pages[block]))
        return VC_OK;
    if (s->n_written <= block) {
        write_begin(s, kv->pages[block], block);
        s->n_written = block + 1;
        node_slow_io_flush(s->pool->io);
        vc_status_t st = write_end(s, block, err);
        if (st != VC_OK)
            return st;
    }
    for (uint32_t l = 0; l < s->dims.n_layer; l++) {
        node_slow_slot_t *slot = &s->slots[l];
        if (slot->buffer == NULL)
            continue;
        memcpy(slot->buffer->data + block * s->part_bytes, part_of(kv->pages[block], l), s->part_bytes);
        slot->n_blocks = block + 1;
    }
    node_page_put(kv->pages[block]);
    kv->pages[block] = NULL;
    s->n_spilled++;
    *moved_p = true;
    return VC_OK;
}

/* Makes room for the pass's pages, and writes a few more behind. */
static vc_status_t spill_for(node_kv_t *kv, uint32_t n_rows, vc_err_t *err)
{
    node_slow_t *s = kv->slow;
    uint32_t full = kv->n_tokens / NODE_TILE, end = node_slow_blocks(kv->n_tokens + n_rows);
    vc_status_t st = VC_OK;
    bool moved = true;
    while (st == VC_OK && moved && s->n_spilled < full && end - s->n_spilled > s->max_pages)
        st = spill(kv, &moved, err);
    if (st != VC_OK)
        return st;
    uint32_t stop = VC_MIN(full, VC_MIN(s->n_spilled + NODE_SLOW_AHEAD, s->file_blocks));
    for (; s->n_written < stop && !node_page_is_shared(kv->pages[s->n_written]); s->n_written++)
        write_begin(s, kv->pages[s->n_written], s->n_written);
    node_slow_io_flush(s->pool->io);
    return VC_OK;
}

/* ---- a pass ---- */

/* Counts the session in, once its blocks have to be streamed. */
static vc_status_t enter(node_slow_t *s, vc_err_t *err)
{
    uint32_t n = 0;
    for (const node_slow_t *o = s->pool->sessions; o != NULL; o = o->next)
        n += o->active && o != s;
    if (s->n_spilled > 0 && n >= s->pool->n_streams)
        return vc_err_set(err, VC_ERR_RANGE, "slow tier: the pool was made for %u sessions that stream in one pass",
                          s->pool->n_streams);
    s->active = s->n_spilled > 0;
    return VC_OK;
}

vc_status_t node_slow_begin(node_kv_t *kv, uint32_t n_rows, vc_err_t *err)
{
    node_slow_t *s = kv->slow;
    if (s->failed.status != VC_OK)
        return vc_err_set(err, VC_ERR_STALE, "slow tier: the session has failed before");
    if (n_rows > s->pass_rows || n_rows > s->max_tokens || kv->n_tokens > s->max_tokens - n_rows)
        return vc_err_set(err, VC_ERR_RANGE,
                          "slow tier: %u rows after %u tokens, it was made for %u a pass and %u in all", n_rows,
                          kv->n_tokens, s->pass_rows, s->max_tokens);
    pthread_mutex_lock(&s->pool->lock);
    vc_status_t st = spill_for(kv, n_rows, err);
    if (st == VC_OK && !s->own)
        st = enter(s, err);
    pthread_mutex_unlock(&s->pool->lock);
    return st;
}

void node_slow_pump(node_kv_t *kv)
{
    pthread_mutex_lock(&kv->slow->pool->lock);
    node_slow_pool_pump(kv->slow->pool);
    pthread_mutex_unlock(&kv->slow->pool->lock);
}

vc_status_t node_slow_acquire(node_kv_t *kv, uint32_t layer, vc_err_t *err)
{
    node_slow_t *s = kv->slow;
    node_slow_slot_t *slot = &s->slots[layer];
    pthread_mutex_lock(&s->pool->lock);
    vc_status_t st = VC_OK;
    if (s->next_use % s->dims.n_layer == layer)
        st = node_slow_pool_wait(s, slot, err);
    if (st == VC_OK &&
        (slot->buffer == NULL || s->next_use % s->dims.n_layer != layer || slot->n_blocks != s->n_spilled))
        st = node_slow_fail(s, VC_ERR_INTERNAL, err, "slow tier: layer %u is out of turn", layer);
    kv->stream = st == VC_OK ? (const uint16_t *)(const void *)slot->buffer->data : NULL;
    pthread_mutex_unlock(&s->pool->lock);
    return st;
}

bool node_slow_check_block(const node_slow_t *s, uint32_t block)
{
    const node_slow_slot_t *slot = &s->slots[s->next_use % s->dims.n_layer];
    return vc_crc32c(0, slot->buffer->data + block * s->part_bytes, s->part_bytes) ==
           s->sums[(size_t)slot->layer * s->file_blocks + block];
}

static vc_status_t damaged(node_slow_t *s, uint32_t layer, vc_err_t *err)
{
    return node_slow_fail(s, VC_ERR_CORRUPT, err,
                          "slow tier: layer %u of the full KV came back from the disk damaged (wrong checksum)", layer);
}

vc_status_t node_slow_damaged(node_slow_t *s, uint32_t layer, vc_err_t *err)
{
    pthread_mutex_lock(&s->pool->lock);
    vc_status_t st = damaged(s, layer, err);
    pthread_mutex_unlock(&s->pool->lock);
    return st;
}

void node_slow_release(node_kv_t *kv)
{
    node_slow_t *s = kv->slow;
    pthread_mutex_lock(&s->pool->lock);
    kv->stream = NULL;
    node_slow_pool_put(s, &s->slots[s->next_use % s->dims.n_layer]);
    s->next_use++;
    if (!s->own && s->next_use == s->dims.n_layer) {
        node_slow_restart(s);
        s->active = false;
    }
    node_slow_pool_pump(s->pool);
    pthread_mutex_unlock(&s->pool->lock);
}

void node_slow_abort(node_kv_t *kv)
{
    node_slow_t *s = kv->slow;
    pthread_mutex_lock(&s->pool->lock);
    kv->stream = NULL;
    s->active = false;
    node_slow_restart(s);
    node_slow_pool_pump(s->pool);
    pthread_mutex_unlock(&s->pool->lock);
}

/* ---- back to memory ---- */

static vc_status_t read_page(node_slow_t *s, uint32_t block, node_page_t *page, node_slow_req_t *reqs, vc_err_t *err)
{
    for (uint32_t l = 0; l < s->dims.n_layer; l++) {
        reqs[l] = (node_slow_req_t){.fd = s->fd,
                                    .data = part_of(page, l),
                                    .offset = node_slow_offset(s, l, block),
                                    .bytes = (uint32_t)s->part_bytes,
                                    .buffer = -1};
        node_slow_io_submit(s->pool->io, &reqs[l]);
        s->stats.read_bytes += s->part_bytes;
    }
    node_slow_io_flush(s->pool->io);
    vc_status_t st = VC_OK;
    for (uint32_t l = 0; l < s->dims.n_layer; l++) {
        node_slow_io_wait(s->pool->io, &reqs[l]);
        if (st == VC_OK && reqs[l].status != VC_OK)
            st = node_slow_fail(s, reqs[l].status, err, "slow tier: block %u cannot be read: %s", block,
                                reason(&reqs[l]));
        if (st == VC_OK && vc_crc32c(0, reqs[l].data, s->part_bytes) != s->sums[(size_t)l * s->file_blocks + block])
            st = damaged(s, l, err);
    }
    return st;
}

static vc_status_t load_page(node_slow_t *s, uint32_t block, node_page_t **page_p, vc_err_t *err)
{
    node_page_t *page = node_page_create(&s->dims);
    node_slow_req_t *reqs = vc_calloc(s->dims.n_layer, sizeof *reqs);
    vc_status_t st = page != NULL && reqs != NULL
                         ? read_page(s, block, page, reqs, err)
                         : vc_err_set(err, VC_ERR_NOMEM, "slow tier: no memory for block %u", block);
    vc_free(reqs);
    if (st != VC_OK)
        node_page_put(page);
    else
        *page_p = page;
    return st;
}

vc_status_t node_slow_load_page(node_slow_t *s, uint32_t block, node_page_t **page_p, vc_err_t *err)
{
    pthread_mutex_lock(&s->pool->lock);
    vc_status_t st = load_page(s, block, page_p, err);
    pthread_mutex_unlock(&s->pool->lock);
    return st;
}

static vc_status_t truncate_locked(node_kv_t *kv, uint32_t n_tokens)
{
    node_slow_t *s = kv->slow;
    uint32_t block = n_tokens / NODE_TILE;
    for (; s->n_written > VC_MAX(block, s->n_spilled); s->n_written--) { /* its page may be written to again */
        vc_status_t st = write_end(s, s->n_written - 1, NULL);
        if (st != VC_OK)
            return st;
    }
    if (block >= s->n_spilled)
        return VC_OK;
    if (n_tokens % NODE_TILE != 0) {
        node_page_t *page;
        vc_status_t st = load_page(s, block, &page, NULL);
        if (st != VC_OK)
            return st;
        kv->pages[block] = page;
    }
    s->n_spilled = s->n_written = block;
    node_slow_restart(s);
    return VC_OK;
}

vc_status_t node_slow_truncate(node_kv_t *kv, uint32_t n_tokens)
{
    pthread_mutex_lock(&kv->slow->pool->lock);
    vc_status_t st = truncate_locked(kv, n_tokens);
    pthread_mutex_unlock(&kv->slow->pool->lock);
    return st;
}
