/* The store against the disk itself and against RocksDB: puts and cold reads, in rounds. Part of bench_store. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "store_peers.h"
#include "store_target.h"
#include "uring.h"

/* ---- the store: read ---- */

typedef struct {
    target_t *t;
    const vc_object_key_t *keys; /* already shuffled */
    uint32_t n;
    _Atomic uint32_t next;
    gate_t done;
} reading_t;

typedef struct {
    reading_t *r;
    cs_buf_t *buf;
    cs_pin_t pin;
} slot_t;

static void slot_next(slot_t *slot);

static void slot_done(void *arg, vc_status_t status)
{
    slot_t *slot = arg;
    reading_t *r = slot->r;
    cs_store_unpin(r->t->store, &slot->pin);
    slot_next(slot);
    gate_signal(&r->done, status); /* last: after the last one r is gone */
}

static void slot_next(slot_t *slot)
{
    reading_t *r = slot->r;
    /* Relaxed: each number is taken once; the keys were written before any slot started. */
    uint32_t i = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
    if (i >= r->n)
        return;
    vc_status_t status = cs_store_pin_key(r->t->store, &r->keys[i], &slot->pin);
    if (status == VC_OK)
        status = cs_store_read(r->t->store, NULL, &slot->pin, slot->buf, slot_done, slot);
    if (status != VC_OK)
        bench_fail("cannot read record %u: %s", i, vc_status_name(status));
}

static double read_store(target_t *t, const vc_object_key_t *keys, uint32_t n, uint32_t bytes)
{
    reading_t r = {.t = t, .keys = keys, .n = n};
    slot_t slots[PEER_MAX_DEPTH];
    gate_init(&r.done);
    double t0 = bench_now_s();
    for (uint32_t i = 0; i < sb.depth; i++) {
        slots[i] = (slot_t){.r = &r, .buf = cs_bufpool_at(t->pool, i)};
        slot_next(&slots[i]);
    }
    gate_wait(&r.done, n);
    double s = bench_now_s() - t0;
    gate_fini(&r.done);
    return (double)n * bytes / s / 1e6;
}

/* ---- rounds ---- */

enum { STORE = 0, FIO, BLOB, N_PEERS };

typedef struct {
    target_t t;
    blob_t blob;
    load_t load;
    vc_object_key_t *keys[N_CLASSES];
    uint32_t n_keys[N_CLASSES], bytes[N_CLASSES];
    bench_samples_t read[N_PEERS], put[N_PEERS], put_libaio, put_wal; /* MB/s; emptied for each class */
} disk_t;

static void put_round_blob(disk_t *d)
{
    blob_t wal;
    bench_add(&d->put[BLOB], put_blob(&d->blob, d->load.keys, d->load.data, d->load.bytes, sb.n_put, BATCH, false));
    blob_open(&wal, bench_tmpdir(), "blob-wal");
    bench_add(&d->put_wal, put_blob(&wal, d->load.keys, d->load.data, d->load.bytes, sb.n_put, BATCH, true));
    blob_close(&wal, true);
}

static void put_round(disk_t *d, uint32_t class_id, uint32_t round)
{
    make_load(&d->t, &d->load, class_id, 1 + (class_id * sb.n_rounds + round) * (sb.n_put / BATCH));
    d->bytes[class_id] = d->load.bytes;
    for (uint32_t i = 0; i < N_PEERS; i++) {
        uint32_t peer = (i + round) % N_PEERS;
        if (peer == STORE) {
            bench_add(&d->put[STORE], put_store(&d->t, &d->load, class_id));
        } else if (peer == BLOB) {
            put_round_blob(d);
        } else {
            fio_job_t job = {bench_tmpdir(), "write", "io_uring", d->load.bytes, sb.n_put, sb.depth, BATCH, false};
            bench_add(&d->put[FIO], fio_run(&job));
            job.engine = "libaio";
            bench_add(&d->put_libaio, fio_run(&job));
        }
    }
    memcpy(d->keys[class_id] + d->n_keys[class_id], d->load.keys, sb.n_put * sizeof(vc_object_key_t));
    d->n_keys[class_id] += sb.n_put;
}

static void read_round(disk_t *d, uint32_t class_id, uint32_t round)
{
    shuffle_keys(d->keys[class_id], d->n_keys[class_id]);
    uint32_t n = VC_MIN(sb.n_read[class_id], d->n_keys[class_id]), bytes = d->bytes[class_id];
    for (uint32_t i = 0; i < N_PEERS; i++) {
        uint32_t peer = (i + round) % N_PEERS;
        fio_job_t job = {bench_tmpdir(), "randread", "io_uring", bytes, n, sb.depth, 0, true};
        bench_add(&d->read[peer], peer == STORE  ? read_store(&d->t, d->keys[class_id], n, bytes)
                                  : peer == BLOB ? read_blob(&d->blob, d->keys[class_id], n, bytes, sb.depth)
                                                 : fio_run(&job));
    }
}

static void row(const char *what, uint32_t class_id, bench_samples_t *s)
{
    char name[160];
    snprintf(name, sizeof(name), "%s, %s", what, class_names[class_id]);
    bench_row(name, "MB/s", s);
}

static double over_best(const bench_samples_t *ours, const bench_samples_t *a, const bench_samples_t *b)
{
    double peer = bench_median(a);
    if (b)
        peer = VC_MAX(peer, bench_median(b));
    return bench_median(ours) / peer;
}

static void report_class(disk_t *d, uint32_t class_id, double worst[4])
{
    row("read, store", class_id, &d->read[STORE]);
    row("read, fio", class_id, &d->read[FIO]);
    row("read, BlobDB", class_id, &d->read[BLOB]);
    row("put, store", class_id, &d->put[STORE]);
    row("put, fio io_uring", class_id, &d->put[FIO]);
    row("put, fio libaio", class_id, &d->put_libaio);
    row("put, BlobDB without WAL, flush a batch", class_id, &d->put[BLOB]);
    row("put, BlobDB with synced WAL", class_id, &d->put_wal);
    const double now[4] = {
        over_best(&d->read[STORE], &d->read[FIO], NULL), over_best(&d->put[STORE], &d->put[FIO], &d->put_libaio),
        over_best(&d->read[STORE], &d->read[BLOB], NULL), over_best(&d->put[STORE], &d->put[BLOB], &d->put_wal)};
    bench_note("%s: read over fio %.3f, put over fio %.3f, read over BlobDB %.3f, put over BlobDB %.3f",
               class_names[class_id], now[0], now[1], now[2], now[3]);
    for (int i = 0; i < 4; i++)
        worst[i] = VC_MIN(worst[i], now[i]);
    for (int i = 0; i < N_PEERS; i++) {
        bench_samples_free(&d->read[i]);
        bench_samples_free(&d->put[i]);
    }
    bench_samples_free(&d->put_libaio);
    bench_samples_free(&d->put_wal);
}

static void measure_class(disk_t *d, uint32_t class_id, double worst[4])
{
    uint32_t n = sb.n_rounds * sb.n_put;
    d->keys[class_id] = vc_calloc(n, sizeof(vc_object_key_t));
    if (!d->keys[class_id])
        bench_fail("no memory for %u keys", n);
    for (uint32_t round = 0; round < sb.n_rounds; round++)
        put_round(d, class_id, round);
    blob_settle(&d->blob);
    fio_job_t lay_out = {bench_tmpdir(), "write", "io_uring", d->bytes[class_id], VC_MIN(sb.n_read[class_id], n),
                         sb.depth,       0,       true};
    fio_run(&lay_out);
    for (uint32_t round = 0; round < sb.n_rounds; round++)
        read_round(d, class_id, round);
    report_class(d, class_id, worst);
    fio_remove(&lay_out);
    vc_free(d->keys[class_id]);
}

void measure_disk(void)
{
    static disk_t d; /* large */
    char dir[4200];
    double worst[4] = {1e9, 1e9, 1e9, 1e9};
    if (!bench_have("fio"))
        bench_fail("fio is not installed");
    make_bench_dir("store", dir, sizeof(dir));
    make_model_names(&d.t);
    uint64_t needed = (uint64_t)sb.n_rounds * sb.n_put * 1970176u * 3 / 2; /* nothing is evicted */
    open_target(&d.t, dir, VC_MAX(sb.n_put, sb.depth), VC_MAX(needed, (uint64_t)10 << 30) /* the default */, 0);
    blob_open(&d.blob, bench_tmpdir(), "blob");
    bench_note("store io mode %s, %u in flight, %u records a put round in batches of %u, fresh segments",
               cs_io_mode_name(cs_workers_io_mode(d.t.workers)), sb.depth, sb.n_put, BATCH);
    for (uint32_t class_id = 0; class_id < N_CLASSES; class_id++)
        measure_class(&d, class_id, worst);
    bench_figure("store_read_cold_vs_fio", worst[0]);
    bench_figure("store_put_durable_vs_fio", worst[1]);
    bench_figure("store_read_vs_blobdb", worst[2]);
    bench_figure("store_put_vs_blobdb", worst[3]);
    blob_close(&d.blob, true);
    close_target(&d.t);
}
