/*
 * A server's data side in this process - pool, workers, store on a temporary directory, data plane - and a chain of
 * records to move. For the suites of the data plane.
 */
#ifndef TEST_DATAPLANE_FIXTURE_H
#define TEST_DATAPLANE_FIXTURE_H

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "client/data.h"
#include "dataplane.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"

#define WORLD_LIMIT_US 30000000u /* only a broken build waits this long */

typedef struct world {
    vt_tmpdir_t dir;
    cs_bufpool_t *pool;
    uint64_t ram_bytes; /* set after world_open; 0: no memory tier */
    cs_ramtier_t *ram;
    cs_workers_t *workers;
    cs_store_t *store;
    cs_dataplane_t *dp;
    vc_keyspace_t ks;
    vc_digest_t ks_id;
    uint32_t n_blocks;
    uint32_t *tokens;
    vc_digest_t *hashes;
    size_t record_bytes;
    cs_fidelity_t fid;
    vc_spec_id_t spec;
    cs_dataplane_opts_t opts;
    uint64_t pinned_by_leases; /* and uploads, with the newest of them */
} world_t;

static const vc_kv_shape_t world_real_shape = {30, 3, 64, 64, VC_DTYPE_F16}; /* SmolLM2-135M: 1,478,656 B */
static const vc_kv_shape_t world_small_shape = {1, 1, 16, 64, VC_DTYPE_F16}; /* 8 KiB */

static inline void world_make_chain(world_t *w, const vc_kv_shape_t *shape, uint32_t n_blocks)
{
    char text[VC_SPEC_TEXT_MAX];
    w->ks = (vc_keyspace_t){.shape = *shape, .layout_version = VC_LAYOUT_VERSION};
    memset(w->ks.model.b, 0x5a, sizeof(w->ks.model.b));
    snprintf(w->ks.rope, sizeof(w->ks.rope), "none");
    cr_assert(vc_keyspace_id(&w->ks, &w->ks_id, NULL) == VC_OK);
    w->n_blocks = n_blocks;
    w->tokens = vc_calloc((size_t)n_blocks * shape->block_tokens, sizeof(uint32_t));
    w->hashes = vc_calloc(n_blocks, sizeof(*w->hashes));
    for (uint32_t i = 0; i < n_blocks * shape->block_tokens; i++)
        w->tokens[i] = i * 7 + 1;
    vc_block_chain(&w->ks_id, w->tokens, n_blocks * shape->block_tokens, shape->block_tokens, w->hashes);
    vc_spec_full_text(1, text);
    vc_spec_id(text, NULL, &w->spec);
    w->fid = (cs_fidelity_t){VC_FIDELITY_FULL, w->spec};
    w->record_bytes = (size_t)vc_kvrec_full_bytes(shape);
}

static inline void world_start_server(world_t *w)
{
    vc_err_t err = {0};
    size_t buf_bytes = vc_align_up(w->record_bytes, 4096);
    cr_assert(cs_bufpool_create(12, buf_bytes, &w->pool, &err) == VC_OK, "%s", err.msg);
    cs_ramtier_opts_t ro = {.bytes = w->ram_bytes, .pool = w->pool};
    if (w->ram_bytes > 0)
        cr_assert(cs_ramtier_create(&ro, &w->ram, &err) == VC_OK, "%s", err.msg);
    cs_workers_opts_t wo = {.n_workers = 1, .queue_depth = 32, .io_mode = CS_IO_AUTO, .pool = w->pool};
    cr_assert(cs_workers_start(&wo, &w->workers, &err) == VC_OK, "%s", err.msg);
    cs_store_opts_t so;
    cs_store_opts_default(&so);
    so.data_dir = w->dir.path;
    so.capacity_bytes = 512u << 20;
    so.ballast_bytes = 16u << 20;
    so.rocksdb_sync = false;
    so.workers = w->workers;
    so.pool = w->pool;
    so.ram = w->ram;
    cr_assert(cs_store_open(&so, &w->store, &err) == VC_OK, "%s", err.msg);
    w->opts.store = w->store;
    w->opts.workers = w->workers;
    w->opts.pool = w->pool;
    cr_assert(cs_dataplane_start(&w->opts, &w->dp, &err) == VC_OK, "%s", err.msg);
}

static inline void world_open(world_t *w, const vc_kv_shape_t *shape, uint32_t n_blocks)
{
    memset(w, 0, sizeof(*w));
    vt_tmpdir_create(&w->dir);
    world_make_chain(w, shape, n_blocks);
    cs_dataplane_opts_default(&w->opts);
}

static inline cs_dataplane_stats_t world_stats(const world_t *w)
{
    cs_dataplane_stats_t s;
    cs_dataplane_get_stats(w->dp, &s);
    return s;
}

/* Waits until the counter at this offset of the stats reaches want. */
static inline void world_wait(const world_t *w, size_t offset, uint64_t want, bool exactly)
{
    uint64_t limit = vc_clock_now_us(vc_clock_system()) + WORLD_LIMIT_US, value;
    do {
        cs_dataplane_stats_t s = world_stats(w);
        memcpy(&value, (const char *)&s + offset, sizeof(value));
        sched_yield();
    } while ((exactly ? value != want : value < want) && vc_clock_now_us(vc_clock_system()) < limit);
    cr_assert(exactly ? value == want : value >= want, "counter is %llu, not %llu", (unsigned long long)value,
              (unsigned long long)want);
}
#define WORLD_WAIT_AT_LEAST(w, field, n) world_wait((w), offsetof(cs_dataplane_stats_t, field), (n), false)
#define WORLD_WAIT_EXACTLY(w, field, n) world_wait((w), offsetof(cs_dataplane_stats_t, field), (n), true)

/* Every buffer and pin is back, in the pool's and the store's books as well. */
static inline void world_assert_idle(const world_t *w)
{
    WORLD_WAIT_EXACTLY(w, ops_in_flight, 0);
    WORLD_WAIT_EXACTLY(w, pins_held, 0);
    cs_store_stats_t s;
    uint64_t limit = vc_clock_now_us(vc_clock_system()) + WORLD_LIMIT_US;
    do { /* the store pins reported records until it has read them again */
        cs_store_get_stats(w->store, &s);
        sched_yield();
    } while (s.pinned_bytes > w->pinned_by_leases && vc_clock_now_us(vc_clock_system()) < limit);
    cr_assert(s.pinned_bytes <= w->pinned_by_leases);
    cs_buf_t *bufs[12];
    for (int i = 0; i < 12; i++) {
        bufs[i] = cs_bufpool_get(w->pool);
        cr_assert(bufs[i] != NULL, "buffer %d is missing", i);
    }
    for (int i = 0; i < 12; i++)
        cs_bufpool_put(w->pool, bufs[i]);
}

static inline void world_stop_server(world_t *w)
{
    cs_dataplane_stop(w->dp);
    cs_store_close(w->store);
    cs_workers_stop(w->workers);
    cs_ramtier_destroy(w->ram);
    w->ram = NULL;
    cs_bufpool_destroy(w->pool);
}

static inline void world_close(world_t *w)
{
    world_assert_idle(w);
    world_stop_server(w);
    vt_tmpdir_remove(&w->dir);
    vc_free(w->tokens);
    vc_free(w->hashes);
}

/* The record of a block, the same at every call. */
static inline size_t world_record(const world_t *w, uint32_t block, void *buf, size_t cap)
{
    const vc_kv_shape_t *shape = &w->ks.shape;
    vc_kvrec_head_t head = {
        .fidelity = VC_FIDELITY_FULL,
        .kind = VC_KVREC_FULL,
        .shape = *shape,
        .block_index = block,
        .numerics_id = 1,
        .spec = w->spec,
        .keyspace = w->ks_id,
        .parent = block == 0 ? w->ks_id : w->hashes[block - 1],
    };
    vc_kvrec_writer_t writer;
    vc_err_t err = {0};
    size_t bytes = 0;
    const uint32_t *tokens = w->tokens + (size_t)block * shape->block_tokens;
    cr_assert(vc_kvrec_write_begin(&writer, buf, cap, &head, tokens, &err) == VC_OK, "%s", err.msg);
    for (uint32_t l = 0; l < shape->n_layer; l++) {
        void *part;
        uint32_t len = (uint32_t)vc_kv_layer_bytes(shape);
        cr_assert(vc_kvrec_write_layer(&writer, len, &part, &err) == VC_OK, "%s", err.msg);
        for (uint32_t i = 0; i < len; i += 4) {
            uint32_t v = (i + l * 977 + block * 31337) * 2654435761u;
            memcpy((uint8_t *)part + i, &v, 4);
        }
    }
    cr_assert(vc_kvrec_write_end(&writer, &bytes, &err) == VC_OK, "%s", err.msg);
    return bytes;
}

typedef struct waiter { /* for the store's callbacks */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool done;
    vc_status_t status;
} waiter_t;

static inline void waiter_init(waiter_t *x)
{
    memset(x, 0, sizeof(*x));
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->cond, NULL);
}

static inline void waiter_done(void *arg, vc_status_t status)
{
    waiter_t *x = arg;
    pthread_mutex_lock(&x->lock);
    x->done = true;
    x->status = status;
    pthread_cond_signal(&x->cond);
    pthread_mutex_unlock(&x->lock);
}

static inline vc_status_t waiter_wait(waiter_t *x)
{
    pthread_mutex_lock(&x->lock);
    while (!x->done)
        pthread_cond_wait(&x->cond, &x->lock);
    pthread_mutex_unlock(&x->lock);
    return x->status;
}

/* Nothing is being moved now, so what is pinned is not the data plane's. */
static inline void world_note_pins(world_t *w)
{
    cs_store_stats_t s;
    cs_store_get_stats(w->store, &s);
    w->pinned_by_leases = s.pinned_bytes;
}

static inline cs_upload_info_t world_begin(world_t *w)
{
    cs_upload_info_t up;
    vc_err_t err = {0};
    uint8_t *missing = vc_calloc(w->n_blocks, 1);
    cr_assert(cs_store_begin(w->store, &w->ks, w->tokens, 0, w->n_blocks, &w->fid, 1, &up, missing, &err) == VC_OK,
              "%s", err.msg);
    vc_free(missing);
    world_note_pins(w);
    return up;
}

static inline vc_status_t world_commit(world_t *w, const cs_upload_info_t *up)
{
    waiter_t x;
    vc_err_t err = {0};
    waiter_init(&x);
    vc_status_t st = cs_store_commit(w->store, up->upload_id, &up->token, waiter_done, &x, &err);
    return st != VC_OK ? st : waiter_wait(&x);
}

/* Every block into the store, without the data plane. */
static inline void world_fill(world_t *w)
{
    cs_upload_info_t up = world_begin(w);
    for (uint32_t b = 0; b < w->n_blocks; b++) {
        waiter_t x;
        vc_err_t err = {0};
        cs_buf_t *buf = cs_bufpool_wait(w->pool, 10000);
        cr_assert(buf != NULL);
        uint32_t bytes = (uint32_t)world_record(w, b, buf->data, buf->cap);
        waiter_init(&x);
        cr_assert(cs_store_put(w->store, NULL, up.upload_id, &up.token, buf, bytes, waiter_done, &x, &err) == VC_OK,
                  "%s", err.msg);
        cr_assert(waiter_wait(&x) == VC_OK);
        cs_bufpool_put(w->pool, buf);
    }
    cr_assert(world_commit(w, &up) == VC_OK);
}

static inline vc_data_lease_t world_lease(world_t *w)
{
    cs_lookup_result_t r;
    vc_err_t err = {0};
    cr_assert(cs_store_lookup(w->store, &w->ks_id, w->hashes, w->n_blocks, &w->fid, 1, true, &r, &err) == VC_OK, "%s",
              err.msg);
    cr_assert(r.n_blocks[0] == w->n_blocks, "%u of %u blocks", r.n_blocks[0], w->n_blocks);
    vc_data_lease_t lease = {.boot_id = cs_store_boot_id(w->store), .lease_id = r.lease_id};
    memcpy(lease.token, r.token.b, sizeof(lease.token));
    world_note_pins(w);
    return lease;
}

static inline vc_data_t *world_connect(const world_t *w)
{
    vc_data_opts_t opts;
    vc_data_t *data = NULL;
    vc_err_t err = {0};
    vc_data_opts_default(&opts);
    cr_assert(vc_data_connect(cs_dataplane_address(w->dp), &opts, &data, &err) == VC_OK, "%s", err.msg);
    return data;
}

/* Receiver that compares every record with what was stored. */
typedef struct catcher {
    const world_t *w;
    uint8_t *want;
    uint32_t n_good, n_bad, stop_after; /* stop_after 0: never */
    vc_status_t last_bad;
} catcher_t;

static inline void catcher_init(catcher_t *c, const world_t *w)
{
    *c = (catcher_t){.w = w, .want = vc_alloc_aligned(4096, w->record_bytes)};
}

static inline int catch_record(void *arg, uint32_t block, vc_status_t status, const void *record, size_t bytes)
{
    catcher_t *c = arg;
    if (status != VC_OK) {
        cr_assert(record == NULL);
        c->last_bad = status;
        c->n_bad++;
        return 0;
    }
    cr_assert(bytes == c->w->record_bytes);
    cr_assert(world_record(c->w, block, c->want, bytes) == bytes);
    cr_assert(memcmp(record, c->want, bytes) == 0, "block %u differs", block);
    c->n_good++;
    return c->stop_after != 0 && c->n_good >= c->stop_after;
}

/* Source of every record of the chain. */
typedef struct feeder {
    const world_t *w;
    uint32_t next, end;
} feeder_t;

static inline int feed_record(void *arg, void *buf, size_t cap, size_t *len_p)
{
    feeder_t *f = arg;
    *len_p = f->next < f->end ? world_record(f->w, f->next++, buf, cap) : 0;
    return 0;
}

#endif
