/*
 * Plan, spilling and streaming. Invariants between two calls: blocks [0, n_spilled) have no page and are in the file;
 * [n_spilled, n_written) are being written or written, and have pages still; a slot that was read ahead holds every
 * spilled block, since a block that leaves memory is copied into such slots.
 */
#include "kv/slow.h"

#include <string.h>
#include <unistd.h>

#include "kv/slow_int.h"
#include "vc/clock.h"
#include "vc/crc32c.h"
#include "vc/mem.h"

#define CHUNK_BYTES (1u << 20)

/* ---- plan ---- */

static uint32_t blocks_of(uint32_t tokens) { return tokens / NODE_TILE + (tokens % NODE_TILE != 0); }

static size_t part_bytes_of(const node_kv_dims_t *d)
{
    return (size_t)d->n_kv_head * 2 * NODE_TILE * d->head_dim * sizeof(uint16_t);
}

bool node_slow_needed(const node_kv_dims_t *dims, const node_slow_opts_t *opts)
{
    uint64_t pages = opts->ram_bytes / (part_bytes_of(dims) * dims->n_layer);
    return blocks_of(opts->max_tokens) > pages;
}

/* Pages that a pass may write to, the one before them, and one that is on its way out. */
static uint32_t least_pages(const node_slow_opts_t *o) { return blocks_of(o->pass_rows) + 3; }

/* With p pages resident, n - p blocks are spilled, and each buffer holds a part of all of them:
 * p * layers + slots * (n - p) parts in all. */
static bool plan_slots(node_slow_t *s, const node_slow_opts_t *o, uint32_t n_slots, uint64_t *need_p)
{
    uint64_t n = blocks_of(o->max_tokens), layers = s->dims.n_layer, least = VC_MIN(least_pages(o), n);
    uint64_t parts = o->ram_bytes / s->part_bytes;
    *need_p = (least * layers + n_slots * (n - least)) * s->part_bytes;
    if (layers <= n_slots || *need_p > o->ram_bytes)
        return false;
    uint64_t pages = VC_MIN((parts - n_slots * n) / (layers - n_slots), n);
    s->n_slots = n_slots;
    s->max_pages = (uint32_t)pages;
    s->max_spilled = (uint32_t)(n - pages);
    s->file_blocks = (uint32_t)VC_MIN(n, (uint64_t)s->max_spilled + NODE_SLOW_AHEAD);
    s->stats.ram_bytes = (pages * layers + n_slots * (n - pages)) * s->part_bytes;
    return true;
}

static vc_status_t plan(node_slow_t *s, const node_slow_opts_t *o, vc_err_t *err)
{
    uint64_t need = 0;
    for (uint32_t slots = NODE_SLOW_SLOTS_MAX; slots >= 2; slots--)
        if (plan_slots(s, o, slots, &need))
            return VC_OK;
    if (s->dims.n_layer <= 2)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "slow tier: a model of %u layers has nothing to stream",
                          s->dims.n_layer);
    return vc_err_set(err, VC_ERR_RANGE,
                      "slow tier: %.1f MB of memory for full KV are too little for %u tokens, %.1f MB would do",
                      (double)o->ram_bytes / 1e6, o->max_tokens, (double)need / 1e6 + 0.1);
}

/* ---- lifecycle ---- */

static vc_status_t alloc_state(node_slow_t *s, vc_err_t *err)
{
    s->sums = vc_calloc((size_t)s->dims.n_layer * s->file_blocks, sizeof *s->sums);
    bool good = s->sums != NULL;
    for (uint32_t i = 0; i < NODE_SLOW_AHEAD; i++) {
        s->writes[i].reqs = vc_calloc(s->dims.n_layer, sizeof(node_slow_req_t));
        good = good && s->writes[i].reqs != NULL;
    }
    size_t bytes;
    if (!vc_size_mul(s->part_bytes, VC_MAX(s->max_spilled, 1u), &bytes))
        good = false;
    for (uint32_t i = 0; good && i < s->n_slots; i++)
        good = (s->slots[i].data = vc_alloc_aligned(4096, bytes)) != NULL;
    return good ? VC_OK : vc_err_set(err, VC_ERR_NOMEM, "slow tier: no memory for its buffers");
}

static void register_slots(node_slow_t *s)
{
    uint8_t *buffers[NODE_SLOW_SLOTS_MAX];
    for (uint32_t i = 0; i < s->n_slots; i++)
        buffers[i] = s->slots[i].data;
    bool fixed = node_slow_io_register(s->io, buffers, s->n_slots, s->part_bytes * s->max_spilled);
    for (uint32_t i = 0; i < s->n_slots; i++)
        for (uint32_t j = 0; j < NODE_SLOW_CHUNKS; j++)
            s->slots[i].reqs[j].buffer = fixed ? (int)i : -1;
}

vc_status_t node_slow_create(const node_kv_dims_t *dims, const node_slow_opts_t *opts, node_slow_t **slow_p,
                             vc_err_t *err)
{
    node_slow_t *s = vc_calloc(1, sizeof *s);
    if (s == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "slow tier: out of memory");
    s->dims = *dims;
    s->part_bytes = part_bytes_of(dims);
    s->pass_rows = opts->pass_rows;
    s->max_tokens = opts->max_tokens;
    s->fd = -1;
    vc_status_t st = plan(s, opts, err);
    if (st == VC_OK)
        st = node_slow_file_open(opts->dir, node_slow_offset(s, dims->n_layer, 0), &s->fd, &s->direct, err);
    if (st == VC_OK)
        st = alloc_state(s, err);
    if (st == VC_OK)
        st = node_slow_io_create(opts->io, s->fd, NODE_SLOW_SLOTS_MAX * NODE_SLOW_CHUNKS, &s->io, err);
    if (st != VC_OK) {
        node_slow_destroy(s);
        return st;
    }
    register_slots(s);
    *slow_p = s;
    return VC_OK;
}

void node_slow_destroy(node_slow_t *s)
{
    if (s == NULL)
        return;
    node_slow_io_destroy(s->io);
    for (uint32_t i = 0; i < NODE_SLOW_AHEAD; i++) {
        node_page_put(s->writes[i].page);
        vc_free(s->writes[i].reqs);
    }
    for (uint32_t i = 0; i < NODE_SLOW_SLOTS_MAX; i++)
        vc_free(s->slots[i].data);
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
    *stats_p = s->stats;
    stats_p->n_spilled = s->n_spilled;
    stats_p->n_slots = s->n_slots;
    stats_p->max_pages = s->max_pages;
    stats_p->direct = s->direct;
    stats_p->ring = node_slow_io_mode(s->io) == NODE_SLOW_IO_RING;
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
        w->reqs[l] = (node_slow_req_t){.data = part,
                                       .offset = node_slow_offset(s, l, block),
                                       .bytes = (uint32_t)s->part_bytes,
                                       .write = true,
                                       .buffer = -1};
        node_slow_io_submit(s->io, &w->reqs[l]);
    }
    s->stats.written_bytes += s->part_bytes * s->dims.n_layer;
}

static vc_status_t write_end(node_slow_t *s, uint32_t block, vc_err_t *err)
{
    node_slow_write_t *w = &s->writes[block % NODE_SLOW_AHEAD];
    vc_status_t st = VC_OK;
    for (uint32_t l = 0; w->page != NULL && l < s->dims.n_layer; l++) {
        node_slow_io_wait(s->io, &w->reqs[l]);
        if (st == VC_OK && w->reqs[l].status != VC_OK)
            st = vc_err_set(err, w->reqs[l].status, "slow tier: block %u cannot be written: %s", block,
                            w->reqs[l].error ? strerror(w->reqs[l].error) : vc_status_text(w->reqs[l].status));
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
        node_slow_io_flush(s->io);
        vc_status_t st = write_end(s, block, err);
        if (st != VC_OK)
            return st;
    }
    for (uint64_t n = s->next_use; n < s->next_read; n++) {
        node_slow_slot_t *slot = &s->slots[n % s->n_slots];
        memcpy(slot->data + block * s->part_bytes, part_of(kv->pages[block], slot->layer), s->part_bytes);
        slot->n_blocks = block + 1;
    }
    node_page_put(kv->pages[block]);
    kv->pages[block] = NULL;
    s->n_spilled++;
    *moved_p = true;
    return VC_OK;
}

/* ---- streaming ---- */

static void read_slot(node_slow_t *s, uint64_t n)
{
    node_slow_slot_t *slot = &s->slots[n % s->n_slots];
    slot->layer = (uint32_t)(n % s->dims.n_layer);
    slot->n_blocks = s->n_spilled;
    size_t bytes = (size_t)s->n_spilled * s->part_bytes, chunk = CHUNK_BYTES, at = 0;
    if (bytes > chunk * NODE_SLOW_CHUNKS)
        chunk = vc_align_up(bytes / NODE_SLOW_CHUNKS + 1, 4096);
    for (slot->n_reqs = 0; at < bytes; at += chunk) {
        node_slow_req_t *req = &slot->reqs[slot->n_reqs++];
        req->data = slot->data + at;
        req->offset = node_slow_offset(s, slot->layer, 0) + at;
        req->bytes = (uint32_t)VC_MIN(chunk, bytes - at);
        node_slow_io_submit(s->io, req);
    }
    s->stats.read_bytes += bytes;
}

static void read_ahead(node_slow_t *s)
{
    if (s->n_spilled == 0 || s->next_read == s->next_use + s->n_slots)
        return;
    while (s->next_read < s->next_use + s->n_slots)
        read_slot(s, s->next_read++);
    node_slow_io_flush(s->io);
}

static vc_status_t slot_wait(node_slow_t *s, node_slow_slot_t *slot, vc_err_t *err)
{
    vc_status_t st = VC_OK;
    for (uint32_t i = 0; i < slot->n_reqs; i++) {
        node_slow_io_wait(s->io, &slot->reqs[i]);
        if (st == VC_OK && slot->reqs[i].status != VC_OK)
            st = vc_err_set(err, slot->reqs[i].status, "slow tier: layer %u cannot be read: %s", slot->layer,
                            slot->reqs[i].error                    ? strerror(slot->reqs[i].error)
                            : slot->reqs[i].status == VC_ERR_RANGE ? "the file ends before"
                                                                   : vc_status_text(slot->reqs[i].status));
    }
    slot->n_reqs = 0;
    return st;
}

/* Forgets what was read ahead; the sequence starts again at layer 0. */
static void restart(node_slow_t *s)
{
    for (; s->next_use < s->next_read; s->next_use++)
        slot_wait(s, &s->slots[s->next_use % s->n_slots], NULL);
    s->next_use = s->next_read = 0;
}

vc_status_t node_slow_begin(node_kv_t *kv, uint32_t n_rows, vc_err_t *err)
{
    node_slow_t *s = kv->slow;
    if (s->failed)
        return vc_err_set(err, VC_ERR_STALE, "slow tier: the session has failed before");
    if (n_rows > s->pass_rows || n_rows > s->max_tokens || kv->n_tokens > s->max_tokens - n_rows)
        return vc_err_set(err, VC_ERR_RANGE,
                          "slow tier: %u rows after %u tokens, it was made for %u a pass and %u in all", n_rows,
                          kv->n_tokens, s->pass_rows, s->max_tokens);
    uint32_t full = kv->n_tokens / NODE_TILE, end = blocks_of(kv->n_tokens + n_rows);
    vc_status_t st = VC_OK;
    bool moved = true;
    while (st == VC_OK && moved && s->n_spilled < full && end - s->n_spilled > s->max_pages)
        st = spill(kv, &moved, err);
    if (st != VC_OK) {
        s->failed = true;
        return st;
    }
    uint32_t stop = VC_MIN(full, VC_MIN(s->n_spilled + NODE_SLOW_AHEAD, s->file_blocks));
    for (; s->n_written < stop && !node_page_is_shared(kv->pages[s->n_written]); s->n_written++)
        write_begin(s, kv->pages[s->n_written], s->n_written);
    node_slow_io_flush(s->io);
    read_ahead(s);
    return VC_OK;
}

vc_status_t node_slow_acquire(node_kv_t *kv, uint32_t layer, vc_err_t *err)
{
    node_slow_t *s = kv->slow;
    node_slow_slot_t *slot = &s->slots[s->next_use % s->n_slots];
    if (s->next_use == s->next_read || slot->layer != layer || slot->n_blocks != s->n_spilled) {
        s->failed = true;
        return vc_err_set(err, VC_ERR_INTERNAL, "slow tier: layer %u is out of turn", layer);
    }
    uint64_t t0 = vc_clock_now_us(vc_clock_system());
    vc_status_t st = slot_wait(s, slot, err);
    s->stats.wait_us += vc_clock_now_us(vc_clock_system()) - t0;
    s->failed = st != VC_OK;
    kv->stream = (const uint16_t *)(const void *)slot->data;
    return st;
}

bool node_slow_check_block(const node_slow_t *s, uint32_t block)
{
    const node_slow_slot_t *slot = &s->slots[s->next_use % s->n_slots];
    return vc_crc32c(0, slot->data + block * s->part_bytes, s->part_bytes) ==
           s->sums[(size_t)slot->layer * s->file_blocks + block];
}

vc_status_t node_slow_damaged(node_slow_t *s, uint32_t layer, vc_err_t *err)
{
    s->failed = true;
    return vc_err_set(err, VC_ERR_CORRUPT,
                      "slow tier: layer %u of the full KV came back from the disk damaged (wrong checksum)", layer);
}

void node_slow_release(node_kv_t *kv)
{
    node_slow_t *s = kv->slow;
    kv->stream = NULL;
    s->next_use++;
    read_ahead(s);
}

void node_slow_abort(node_kv_t *kv)
{
    kv->stream = NULL;
    restart(kv->slow);
}

/* ---- back to memory ---- */

vc_status_t node_slow_load_page(node_slow_t *s, uint32_t block, node_page_t **page_p, vc_err_t *err)
{
    node_page_t *page = node_page_create(&s->dims);
    node_slow_req_t *reqs = vc_calloc(s->dims.n_layer, sizeof *reqs);
    vc_status_t st = VC_OK;
    if (page == NULL || reqs == NULL)
        st = vc_err_set(err, VC_ERR_NOMEM, "slow tier: no memory for block %u", block);
    for (uint32_t l = 0; st == VC_OK && l < s->dims.n_layer; l++) {
        reqs[l] = (node_slow_req_t){.data = part_of(page, l),
                                    .offset = node_slow_offset(s, l, block),
                                    .bytes = (uint32_t)s->part_bytes,
                                    .buffer = -1};
        node_slow_io_submit(s->io, &reqs[l]);
        s->stats.read_bytes += s->part_bytes;
    }
    if (st == VC_OK)
        node_slow_io_flush(s->io);
    bool submitted = st == VC_OK;
    for (uint32_t l = 0; submitted && l < s->dims.n_layer; l++) {
        node_slow_io_wait(s->io, &reqs[l]);
        if (st == VC_OK && reqs[l].status != VC_OK)
            st = vc_err_set(err, reqs[l].status, "slow tier: block %u cannot be read: %s", block,
                            reqs[l].error ? strerror(reqs[l].error) : vc_status_text(reqs[l].status));
        if (st == VC_OK && vc_crc32c(0, reqs[l].data, s->part_bytes) != s->sums[(size_t)l * s->file_blocks + block])
            st = node_slow_damaged(s, l, err);
    }
    vc_free(reqs);
    if (st != VC_OK)
        node_page_put(page);
    else
        *page_p = page;
    return st;
}

vc_status_t node_slow_truncate(node_kv_t *kv, uint32_t n_tokens)
{
    node_slow_t *s = kv->slow;
    uint32_t block = n_tokens / NODE_TILE;
    for (; s->n_written > VC_MAX(block, s->n_spilled); s->n_written--) { /* its page may be written to again */
        vc_status_t st = write_end(s, s->n_written - 1, NULL);
        if (st != VC_OK) {
            s->failed = true;
            return st;
        }
    }
    if (block >= s->n_spilled)
        return VC_OK;
    if (n_tokens % NODE_TILE != 0) {
        node_page_t *page;
        vc_status_t st = node_slow_load_page(s, block, &page, NULL);
        if (st != VC_OK)
            return st;
        kv->pages[block] = page;
    }
    s->n_spilled = s->n_written = block;
    restart(s);
    return VC_OK;
}
