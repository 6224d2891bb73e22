/* Server side of bench_dataplane, and its disk by itself. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dataplane_parts.h"
#include "vc/mem.h"

#define CYCLE_BYTES (64u << 20)
#define POOL_BUFS 32u
#define RAM_RECORDS 3u

static const vc_kv_shape_t shape = {30, 3, 64, 64, VC_DTYPE_F16};

static void make_chain(server_t *s)
{
    char text[VC_SPEC_TEXT_MAX];
    vc_err_t err = {0};
    s->record_bytes = (size_t)vc_kvrec_full_bytes(&shape);
    s->n_blocks = (uint32_t)(CYCLE_BYTES / s->record_bytes);
    s->ks = (vc_keyspace_t){.shape = shape, .layout_version = VC_LAYOUT_VERSION, .rope = "none"};
    must(vc_keyspace_id(&s->ks, &s->ks_id, &err), &err, "keyspace");
    s->tokens = vc_calloc((size_t)s->n_blocks * shape.block_tokens, sizeof(*s->tokens));
    s->hashes = vc_calloc(s->n_blocks, sizeof(*s->hashes));
    s->hot = vc_alloc_aligned(4096, s->record_bytes);
    if (s->tokens == NULL || s->hashes == NULL || s->hot == NULL)
        bench_fail("out of memory");
    for (uint32_t i = 0; i < s->n_blocks * shape.block_tokens; i++)
        s->tokens[i] = i;
    vc_block_chain(&s->ks_id, s->tokens, s->n_blocks * shape.block_tokens, shape.block_tokens, s->hashes);
    vc_spec_full_text(1, text);
    vc_spec_id(text, NULL, &s->spec);
}

static uint32_t make_record(const server_t *s, uint32_t block, uint8_t *buf, size_t cap)
{
    vc_kvrec_head_t head = {.fidelity = VC_FIDELITY_FULL,
                            .kind = VC_KVREC_FULL,
                            .shape = shape,
                            .block_index = block,
                            .numerics_id = 1,
                            .spec = s->spec,
                            .keyspace = s->ks_id,
                            .parent = block == 0 ? s->ks_id : s->hashes[block - 1]};
    vc_kvrec_writer_t w;
    vc_err_t err = {0};
    size_t bytes = 0;
    must(vc_kvrec_write_begin(&w, buf, cap, &head, s->tokens + (size_t)block * shape.block_tokens, &err), &err,
         "record");
    for (uint32_t l = 0; l < shape.n_layer; l++) {
        void *part;
        uint32_t len = (uint32_t)vc_kv_layer_bytes(&shape);
        must(vc_kvrec_write_layer(&w, len, &part, &err), &err, "record");
        for (uint32_t i = 0; i < len; i += 4) {
            uint32_t v = (i + l * 7919 + block * 104729) * 2654435761u;
            memcpy((uint8_t *)part + i, &v, 4);
        }
    }
    must(vc_kvrec_write_end(&w, &bytes, &err), &err, "record");
    return (uint32_t)bytes;
}

static void on_done(void *arg, vc_status_t status)
{
    _Atomic int *done = arg;
    *done = status == VC_OK ? 1 : -1;
}

static void await(_Atomic int *done, const char *what)
{
    while (*done == 0)
        usleep(100);
    if (*done < 0)
        bench_fail("%s failed", what);
}

static void fill_store(server_t *s)
{
    vc_err_t err = {0};
    cs_fidelity_t fid = {VC_FIDELITY_FULL, s->spec};
    cs_upload_info_t up;
    uint8_t *missing = vc_calloc(s->n_blocks, 1);
    must(cs_store_begin(s->store, &s->ks, s->tokens, 0, s->n_blocks, &fid, 1, &up, missing, &err), &err, "begin");
    vc_free(missing);
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        _Atomic int done = 0;
        cs_buf_t *buf = cs_bufpool_wait(s->pool, 10000);
        if (buf == NULL)
            bench_fail("no buffer");
        uint32_t bytes = make_record(s, b, buf->data, buf->cap);
        if (b == 0)
            memcpy(s->hot, buf->data, bytes);
        must(cs_store_put(s->store, NULL, up.upload_id, &up.token, buf, bytes, on_done, (void *)&done, &err), &err,
             "put");
        await(&done, "put");
        cs_bufpool_put(s->pool, buf);
    }
    _Atomic int done = 0;
    must(cs_store_commit(s->store, up.upload_id, &up.token, on_done, (void *)&done, &err), &err, "commit");
    await(&done, "commit");
}

void start_server(server_t *s)
{
    vc_err_t err = {0};
    make_chain(s);
    must(cs_bufpool_create(POOL_BUFS, s->record_bytes, &s->pool, &err), &err, "buffers");
    cs_ramtier_opts_t ro = {.bytes = RAM_RECORDS * s->record_bytes, .pool = s->pool};
    must(cs_ramtier_create(&ro, &s->ram, &err), &err, "memory tier");
    cs_workers_opts_t wo = {.n_workers = 1, .queue_depth = 64, .io_mode = CS_IO_AUTO, .pool = s->pool};
    bench_pin(0); /* the worker and UCX's threads inherit it */
    must(cs_workers_start(&wo, &s->workers, &err), &err, "workers");
    cs_store_opts_t so;
    cs_store_opts_default(&so);
    so.data_dir = bench_tmpdir();
    so.capacity_bytes = 1u << 30;
    so.workers = s->workers;
    so.pool = s->pool;
    so.ram = s->ram;
    must(cs_store_open(&so, &s->store, &err), &err, "store");
    fill_store(s);
    cs_dataplane_opts_t opts;
    cs_dataplane_opts_default(&opts);
    opts.store = s->store;
    opts.workers = s->workers;
    opts.pool = s->pool;
    opts.peer_timeout_ms = 60000;
    must(cs_dataplane_start(&opts, &s->dp, &err), &err, "data plane");
    bench_pin(1);
}

void stop_server(server_t *s)
{
    cs_dataplane_stop(s->dp);
    cs_store_close(s->store);
    cs_workers_stop(s->workers);
    cs_ramtier_destroy(s->ram);
    cs_bufpool_destroy(s->pool);
    vc_free(s->tokens);
    vc_free(s->hashes);
    vc_free(s->hot);
}

vc_data_lease_t take_lease(server_t *s)
{
    cs_lookup_result_t r;
    vc_err_t err = {0};
    cs_fidelity_t fid = {VC_FIDELITY_FULL, s->spec};
    must(cs_store_lookup(s->store, &s->ks_id, s->hashes, s->n_blocks, &fid, 1, true, &r, &err), &err, "lookup");
    if (r.n_blocks[0] != s->n_blocks)
        bench_fail("the store lost blocks");
    vc_data_lease_t lease = {.boot_id = cs_store_boot_id(s->store), .lease_id = r.lease_id};
    memcpy(lease.token, r.token.b, sizeof(lease.token));
    return lease;
}

void drop_lease(const server_t *s, const vc_data_lease_t *lease)
{
    cs_token_t token;
    memcpy(token.b, lease->token, sizeof(token.b));
    cs_store_lease_release(s->store, lease->boot_id, lease->lease_id, &token);
}

/* ---- the disk alone ---- */

typedef struct disk_read {
    cs_bufpool_t *pool;
    cs_store_t *store;
    cs_buf_t *buf;
    cs_pin_t pin;
    _Atomic int state; /* 0 free, 1 running, 2 done, -1 failed */
} disk_read_t;

static void on_disk_read(void *arg, vc_status_t status)
{
    disk_read_t *r = arg;
    atomic_store_explicit(&r->state, status == VC_OK ? 2 : -1, memory_order_release);
}

static void start_disk_read(server_t *s, const vc_data_lease_t *lease, disk_read_t *r, uint32_t block)
{
    cs_token_t token;
    memcpy(token.b, lease->token, sizeof(token.b));
    must(cs_store_pin_leased(s->store, lease->boot_id, lease->lease_id, &token, 0, block, &r->pin), NULL, "pin");
    atomic_store_explicit(&r->state, 1, memory_order_relaxed);
    must(cs_store_read_part(s->store, NULL, &r->pin, 0, r->pin.bytes, r->buf, 0, on_disk_read, r), NULL, "read");
}

double run_disk(server_t *s, uint32_t n)
{
    static disk_read_t reads[2 * OUTSTANDING];
    vc_data_lease_t lease = take_lease(s);
    for (size_t i = 0; i < VC_ARRAY_LEN(reads); i++)
        if ((reads[i].buf = cs_bufpool_get(s->pool)) == NULL)
            bench_fail("no buffer");
    uint32_t started = 0, ended = 0, total = n * s->n_blocks;
    double t = bench_now_s();
    while (ended < total) {
        for (size_t i = 0; i < VC_ARRAY_LEN(reads); i++) {
            int state = atomic_load_explicit(&reads[i].state, memory_order_acquire);
            if (state < 0)
                bench_fail("a read failed");
            if (state == 2) {
                cs_store_unpin(s->store, &reads[i].pin);
                ended++;
            }
            if (state == 1)
                continue;
            reads[i].state = 0;
            if (started < total)
                start_disk_read(s, &lease, &reads[i], started++ % s->n_blocks);
        }
    }
    t = bench_now_s() - t;
    for (size_t i = 0; i < VC_ARRAY_LEN(reads); i++)
        cs_bufpool_put(s->pool, reads[i].buf);
    drop_lease(s, &lease);
    return (double)total * (double)s->record_bytes / t / 1e6;
}
