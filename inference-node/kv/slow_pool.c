/*
 * Buffers of the slow tier and the order of reads. The disk is given a deep queue, but no more than it needs: what is
 * asked for beyond that waits in the sessions' own counters, so that a pass overtakes what others read ahead, and a
 * wish that is dropped costs nothing.
 *
 * Who may take a buffer. A session in its pass: when enough stay free for the others in the pass to come to two each.
 * One that reads ahead: when the pass after this one could still give two to each of any n_streams sessions, those that
 * are yet to come included. So a pass never waits for a buffer that another session holds between passes.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "kernels/huge.h"
#include "kv/slow_int.h"
#include "vc/config.h"
#include "vc/mem.h"

#define CHUNK_BYTES (1u << 20)
enum {
    READ_DEPTH = 32,  /* reads at the disk: what it moves between two looks, some ten milliseconds */
    IO_DEPTH = 256,   /* and writes behind them */
    SMALL = 2 << 20,  /* buffers below one huge page */
    FIXED_MAX = 1024, /* buffers that a kernel registers */
    BUFFERS_MAX = 1 << 20
};

/* ---- lifecycle ---- */

size_t node_slow_part_bytes(const node_kv_dims_t *d)
{
    return (size_t)d->n_kv_head * 2 * NODE_TILE * d->head_dim * sizeof(uint16_t);
}

static size_t buffer_bytes(const node_kv_dims_t *dims, uint32_t blocks)
{
    return node_slow_part_bytes(dims) * VC_MAX(blocks, 1u);
}

uint64_t node_slow_pool_least(const node_kv_dims_t *dims, const node_slow_pool_opts_t *opts)
{
    return (uint64_t)buffer_bytes(dims, node_slow_blocks(opts->spilled_tokens)) * NODE_SLOW_IN_PASS * opts->n_streams;
}

static vc_status_t alloc_buffers(node_slow_pool_t *p, vc_err_t *err)
{
    p->buffers = vc_calloc(p->n_buffers, sizeof *p->buffers);
    for (uint32_t i = 0; p->buffers != NULL && i < p->n_buffers; i++) {
        node_slow_buffer_t *b = &p->buffers[i];
        b->data = p->buffer_bytes < SMALL ? vc_alloc_aligned(4096, p->buffer_bytes) : node_alloc_huge(p->buffer_bytes);
        if (b->data == NULL)
            break;
        b->next = p->free;
        p->free = b;
        p->n_free++;
    }
    if (p->n_free < p->n_buffers)
        return vc_err_set(err, VC_ERR_NOMEM, "slow tier: no memory for %u buffers of %zu bytes", p->n_buffers,
                          p->buffer_bytes);
    return VC_OK;
}

static void register_buffers(node_slow_pool_t *p)
{
    uint8_t **data = vc_calloc(p->n_buffers, sizeof *data);
    for (uint32_t i = 0; data != NULL && i < p->n_buffers; i++)
        data[i] = p->buffers[i].data;
    p->fixed =
        data != NULL && p->n_buffers <= FIXED_MAX && node_slow_io_register(p->io, data, p->n_buffers, p->buffer_bytes);
    vc_free(data);
}

vc_status_t node_slow_pool_make(const node_kv_dims_t *dims, const node_slow_pool_opts_t *opts, uint32_t blocks,
                                uint32_t n_buffers, node_slow_pool_t **pool_p, vc_err_t *err)
{
    node_slow_pool_t *p = vc_calloc(1, sizeof *p);
    if (p == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "slow tier: out of memory");
    pthread_mutex_init(&p->lock, NULL);
    p->dims = *dims;
    p->part_bytes = node_slow_part_bytes(dims);
    p->max_blocks = blocks;
    p->buffer_bytes = buffer_bytes(dims, blocks);
    p->chunk_bytes = VC_MAX(CHUNK_BYTES, vc_align_up(p->buffer_bytes / NODE_SLOW_CHUNKS + 1, 4096));
    p->n_buffers = n_buffers;
    p->n_streams = opts->n_streams;
    p->clock = opts->clock != NULL ? opts->clock : vc_clock_system();
    p->dir = vc_strdup(opts->dir);
    const node_slow_io_opts_t io = {
        .mode = opts->io, .depth = IO_DEPTH, .clock = p->clock, .delay_seed = opts->delay_seed};
    vc_status_t st = p->dir != NULL ? VC_OK : vc_err_set(err, VC_ERR_NOMEM, "slow tier: out of memory");
    if (st == VC_OK)
        st = alloc_buffers(p, err);
    if (st == VC_OK)
        st = node_slow_io_create(&io, &p->io, err);
    if (st != VC_OK) {
        node_slow_pool_destroy(p);
        return st;
    }
    register_buffers(p);
    *pool_p = p;
    return VC_OK;
}

vc_status_t node_slow_pool_create(const node_kv_dims_t *dims, const node_slow_pool_opts_t *opts,
                                  node_slow_pool_t **pool_p, vc_err_t *err)
{
    uint32_t blocks = node_slow_blocks(opts->spilled_tokens);
    if (opts->n_streams == 0 || opts->n_streams > BUFFERS_MAX / NODE_SLOW_IN_PASS || blocks == 0)
        return vc_err_set(err, VC_ERR_INVALID, "slow tier: a pool for %u sessions of %u spilled tokens",
                          opts->n_streams, opts->spilled_tokens);
    if (dims->n_layer <= NODE_SLOW_IN_PASS)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "slow tier: a model of %u layers has nothing to stream",
                          dims->n_layer);
    uint64_t least = node_slow_pool_least(dims, opts);
    if (opts->hold_bytes < least)
        return vc_err_set(err, VC_ERR_RANGE,
                          "--hold %s is too little for %u requests that stream %u tokens in one pass: --hold %s would "
                          "do",
                          vc_bytes_text(opts->hold_bytes).text, opts->n_streams, opts->spilled_tokens,
                          vc_bytes_text_at_least(least).text);
    uint64_t n = opts->hold_bytes / buffer_bytes(dims, blocks);
    return node_slow_pool_make(dims, opts, blocks, (uint32_t)VC_MIN(n, (uint64_t)BUFFERS_MAX), pool_p, err);
}

void node_slow_pool_destroy(node_slow_pool_t *p)
{
    if (p == NULL)
        return;
    node_slow_io_destroy(p->io);
    for (uint32_t i = 0; p->buffers != NULL && i < p->n_buffers; i++)
        vc_free(p->buffers[i].data);
    vc_free(p->buffers);
    vc_free(p->dir);
    pthread_mutex_destroy(&p->lock);
    vc_free(p);
}

void node_slow_pool_join(node_slow_pool_t *p, node_slow_t *s)
{
    s->next = p->sessions;
    p->sessions = s;
    s->pool = p;
}

void node_slow_pool_stats(node_slow_pool_t *p, node_slow_pool_stats_t *stats_p)
{
    pthread_mutex_lock(&p->lock);
    *stats_p = (node_slow_pool_stats_t){.hold_bytes = (uint64_t)p->n_buffers * p->buffer_bytes,
                                        .held_bytes = (uint64_t)(p->n_buffers - p->n_free) * p->buffer_bytes,
                                        .peak_bytes = p->peak_bytes,
                                        .read_bytes = p->read_bytes,
                                        .wait_us = p->wait_us,
                                        .busy_us = node_slow_io_busy_us(p->io),
                                        .n_buffers = p->n_buffers,
                                        .ring = node_slow_io_mode(p->io) == NODE_SLOW_IO_RING,
                                        .fixed = p->fixed};
    for (const node_slow_t *s = p->sessions; s != NULL; s = s->next)
        stats_p->n_sessions++;
    pthread_mutex_unlock(&p->lock);
}

/* ---- buffers ---- */

static node_slow_req_t *undone(const node_slow_buffer_t *b)
{
    for (uint32_t i = 0; i < b->n_reqs; i++)
        if (!b->reqs[i].done)
            return (node_slow_req_t *)&b->reqs[i];
    return NULL;
}

static void to_free(node_slow_pool_t *p, node_slow_buffer_t *b)
{
    b->owner = NULL;
    b->next = p->free;
    p->free = b;
    p->n_free++;
}

static void sweep(node_slow_pool_t *p)
{
    for (node_slow_buffer_t **at = &p->draining, *b; (b = *at) != NULL;) {
        if (undone(b) != NULL) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        to_free(p, b);
    }
}

void node_slow_pool_put(node_slow_t *s, node_slow_slot_t *slot)
{
    node_slow_buffer_t *b = slot->buffer;
    if (b == NULL)
        return;
    slot->buffer = NULL;
    s->n_held--;
    if (undone(b) == NULL) {
        to_free(s->pool, b);
        return;
    }
    b->next = s->pool->draining;
    s->pool->draining = b;
}

void node_slow_restart(node_slow_t *s)
{
    for (uint32_t i = 0; i < s->dims.n_layer; i++)
        node_slow_pool_put(s, &s->slots[i]);
    s->next_use = s->next_read = 0;
    s->asked = s->n_wishes = 0;
}

void node_slow_pool_leave(node_slow_t *s)
{
    node_slow_pool_t *p = s->pool;
    node_slow_restart(s);
    for (node_slow_buffer_t *b = p->draining; b != NULL; b = b->next)
        for (node_slow_req_t *req; b->owner == s && (req = undone(b)) != NULL;)
            node_slow_io_wait(p->io, req);
    sweep(p);
    node_slow_t **at = &p->sessions;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
}

static uint32_t shortfall(uint32_t held) { return held < NODE_SLOW_IN_PASS ? NODE_SLOW_IN_PASS - held : 0; }

/* Whether the running pass would still have a place for all its sessions. */
static bool pass_has_room(const node_slow_pool_t *p, const node_slow_t *taker)
{
    uint32_t reserve = 0;
    for (const node_slow_t *s = p->sessions; s != NULL; s = s->next)
        if (s->active)
            reserve += shortfall(s->n_held + (s == taker));
    return p->n_free > reserve;
}

/* The same for the pass after it, when the buffers of those that are in a pass now are free again. */
static bool next_has_room(const node_slow_pool_t *p, const node_slow_t *taker)
{
    uint32_t held = 1, n = 0, short_by[NODE_SLOW_IN_PASS + 1] = {0};
    for (const node_slow_t *s = p->sessions; s != NULL; s = s->next, n++) {
        uint32_t keeps = s->active ? 0 : s->n_held;
        held += keeps;
        short_by[shortfall(keeps + (s == taker))]++;
    }
    short_by[NODE_SLOW_IN_PASS] += n < p->n_streams ? p->n_streams - n : 0; /* may join before that pass */
    uint32_t reserve = 0, left = p->n_streams;
    for (n = NODE_SLOW_IN_PASS; n > 0; n--) {
        uint32_t some = VC_MIN(left, short_by[n]);
        reserve += some * n;
        left -= some;
    }
    return held + reserve <= p->n_buffers;
}

static bool may_take(const node_slow_t *s)
{
    const node_slow_pool_t *p = s->pool;
    if (p->n_free == 0 || s->own)
        return p->n_free > 0;
    return pass_has_room(p, s) && (s->active || next_has_room(p, s));
}

static node_slow_buffer_t *take(node_slow_t *s)
{
    node_slow_pool_t *p = s->pool;
    node_slow_buffer_t *b = p->free;
    p->free = b->next;
    p->n_free--;
    p->peak_bytes = VC_MAX(p->peak_bytes, (uint64_t)(p->n_buffers - p->n_free) * p->buffer_bytes);
    b->owner = s;
    b->n_reqs = 0;
    s->n_held++;
    return b;
}

/* ---- the order of reads ---- */

/* The first wish that is not met, or NULL. */
static const node_slow_wish_t *open_wish(const node_slow_t *s)
{
    for (uint32_t i = 0; i < s->n_wishes; i++)
        if (s->wishes[i].bytes > s->asked)
            return &s->wishes[i];
    return NULL;
}

/* Whether something is due for it, and there is a place where to put it. */
static bool can_read(const node_slow_t *s)
{
    if (s->n_spilled == 0 || s->failed.status != VC_OK)
        return false;
    uint64_t end = s->own ? s->next_use + s->n_slots : s->dims.n_layer;
    if (s->next_read >= end || (!s->own && !s->active && open_wish(s) == NULL))
        return false;
    return s->slots[s->next_read % s->dims.n_layer].buffer != NULL || may_take(s);
}

/* In passes the lowest layer, then the oldest wish. */
static bool goes_before(const node_slow_t *a, const node_slow_t *b)
{
    if (a->active != b->active)
        return a->active;
    return a->active ? a->next_read < b->next_read : open_wish(a)->ticket < open_wish(b)->ticket;
}

static node_slow_t *next_reader(const node_slow_pool_t *p)
{
    node_slow_t *best = NULL;
    for (node_slow_t *s = p->sessions; s != NULL; s = s->next)
        if (can_read(s) && (best == NULL || goes_before(s, best)))
            best = s;
    return best;
}

/* One read of the first layer that is not complete. */
static void read_chunk(node_slow_t *s)
{
    node_slow_pool_t *p = s->pool;
    uint32_t layer = (uint32_t)(s->next_read % s->dims.n_layer);
    node_slow_slot_t *slot = &s->slots[layer];
    if (slot->buffer == NULL)
        *slot = (node_slow_slot_t){
            .buffer = take(s), .layer = layer, .n_blocks = s->n_spilled, .bytes = (size_t)s->n_spilled * s->part_bytes};
    size_t bytes = VC_MIN(p->chunk_bytes, slot->bytes - slot->asked);
    node_slow_req_t *req = &slot->buffer->reqs[slot->buffer->n_reqs++];
    *req = (node_slow_req_t){.fd = s->fd,
                             .data = slot->buffer->data + slot->asked,
                             .offset = node_slow_offset(s, layer, 0) + slot->asked,
                             .bytes = (uint32_t)bytes,
                             .buffer = p->fixed ? (int)(slot->buffer - p->buffers) : -1};
    node_slow_io_submit(p->io, req);
    slot->asked += bytes;
    s->asked += bytes;
    s->stats.read_bytes += bytes;
    p->read_bytes += bytes;
    p->credit -= p->limit > 0 ? (double)bytes : 0;
    if (slot->asked == slot->bytes)
        s->next_read++;
}

void node_slow_pool_limit(node_slow_pool_t *p, uint64_t bytes_per_s)
{
    pthread_mutex_lock(&p->lock);
    p->limit = (double)bytes_per_s;
    p->credit = 0;
    p->credit_us = vc_clock_now_us(p->clock);
    pthread_mutex_unlock(&p->lock);
}

/* A bucket of what the link moves in some ten milliseconds, the time between two looks. */
static bool may_ask(node_slow_pool_t *p)
{
    if (p->limit <= 0)
        return true;
    uint64_t now = vc_clock_now_us(p->clock);
    double most = VC_MAX(p->limit * 0.03, 2.0 * (double)p->chunk_bytes);
    p->credit = VC_MIN(most, p->credit + (double)(now - p->credit_us) * p->limit * 1e-6);
    p->credit_us = now;
    return p->credit >= 0;
}

void node_slow_pool_pump(node_slow_pool_t *p)
{
    node_slow_io_poll(p->io);
    sweep(p);
    for (node_slow_t *s; node_slow_io_reads(p->io) < READ_DEPTH && may_ask(p) && (s = next_reader(p)) != NULL;)
        read_chunk(s);
    node_slow_io_flush(p->io);
}

vc_status_t node_slow_fail(node_slow_t *s, vc_status_t status, vc_err_t *err, const char *fmt, ...)
{
    vc_err_t why = {.status = status};
    va_list args;
    va_start(args, fmt);
    vsnprintf(why.msg, sizeof why.msg, fmt, args);
    va_end(args);
    if (s->failed.status == VC_OK)
        s->failed = why;
    if (err != NULL)
        *err = why;
    return status;
}

static vc_status_t outcome(node_slow_t *s, const node_slow_slot_t *slot, vc_err_t *err)
{
    for (uint32_t i = 0; i < slot->buffer->n_reqs; i++) {
        const node_slow_req_t *req = &slot->buffer->reqs[i];
        if (req->status != VC_OK)
            return node_slow_fail(s, req->status, err, "slow tier: layer %u cannot be read: %s", slot->layer,
                                  req->error                    ? strerror(req->error)
                                  : req->status == VC_ERR_RANGE ? "the file ends before"
                                                                : vc_status_text(req->status));
    }
    return VC_OK;
}

vc_status_t node_slow_pool_wait(node_slow_t *s, node_slow_slot_t *slot, vc_err_t *err)
{
    node_slow_pool_t *p = s->pool;
    uint64_t t0 = vc_clock_now_us(p->clock);
    for (;;) {
        node_slow_pool_pump(p);
        node_slow_req_t *req = slot->buffer != NULL ? undone(slot->buffer) : NULL;
        if (req == NULL && slot->buffer != NULL && slot->asked == slot->bytes)
            break;
        for (node_slow_buffer_t *b = p->draining; req == NULL && b != NULL; b = b->next)
            req = undone(b);
        if (req == NULL) /* the disk is busy with reads of others, or nobody reads for this slot */
            for (node_slow_t *o = p->sessions; req == NULL && o != NULL; o = o->next)
                for (uint32_t i = 0; req == NULL && i < o->dims.n_layer; i++)
                    req = o->slots[i].buffer != NULL ? undone(o->slots[i].buffer) : NULL;
        if (req == NULL && p->limit > 0 && p->credit < 0) {
            nanosleep(&(struct timespec){0, 50000}, NULL);
            continue;
        }
        if (req == NULL)
            return node_slow_fail(s, VC_ERR_INTERNAL, err, "slow tier: nothing is read for a layer that is waited for");
        node_slow_io_wait(p->io, req);
    }
    uint64_t us = vc_clock_now_us(p->clock) - t0;
    s->stats.wait_us += us;
    p->wait_us += us;
    return outcome(s, slot, err);
}

/* ---- reading ahead ---- */

static void wish(node_slow_t *s, uint64_t bytes)
{
    if (open_wish(s) == NULL || bytes <= s->wishes[s->n_wishes - 1].bytes)
        s->n_wishes = 0; /* met, or taken back: this one stands alone */
    if (s->n_wishes < NODE_SLOW_WISHES)
        s->wishes[s->n_wishes++].ticket = ++s->pool->last_ticket;
    s->wishes[s->n_wishes - 1].bytes = bytes;
}

vc_status_t node_slow_prefetch(node_kv_t *kv, uint64_t bytes)
{
    node_slow_t *s = kv->slow;
    if (s == NULL)
        return VC_OK;
    if (s->own)
        return VC_ERR_INVALID;
    node_slow_pool_t *p = s->pool;
    pthread_mutex_lock(&p->lock);
    vc_status_t st = s->failed.status == VC_OK ? VC_OK : VC_ERR_STALE;
    wish(s, bytes);
    node_slow_pool_pump(p);
    pthread_mutex_unlock(&p->lock);
    return st;
}

void node_slow_pool_poll(node_slow_pool_t *p)
{
    pthread_mutex_lock(&p->lock);
    node_slow_pool_pump(p);
    pthread_mutex_unlock(&p->lock);
}

uint64_t node_slow_arrived(node_kv_t *kv)
{
    node_slow_t *s = kv->slow;
    uint64_t bytes = 0;
    if (s == NULL)
        return 0;
    pthread_mutex_lock(&s->pool->lock);
    node_slow_pool_pump(s->pool);
    for (uint32_t i = 0; i < s->dims.n_layer; i++) {
        const node_slow_buffer_t *b = s->slots[i].buffer;
        for (uint32_t j = 0; b != NULL && j < b->n_reqs; j++)
            bytes += b->reqs[j].done ? b->reqs[j].bytes : 0;
    }
    pthread_mutex_unlock(&s->pool->lock);
    return bytes;
}

uint64_t node_slow_pass_bytes(const node_kv_t *kv)
{
    return kv->slow == NULL ? 0 : (uint64_t)kv->slow->n_spilled * kv->slow->part_bytes * kv->slow->dims.n_layer;
}

void node_slow_drop(node_kv_t *kv)
{
    node_slow_t *s = kv->slow;
    if (s == NULL || s->own)
        return;
    pthread_mutex_lock(&s->pool->lock);
    node_slow_restart(s);
    node_slow_pool_pump(s->pool);
    pthread_mutex_unlock(&s->pool->lock);
}
