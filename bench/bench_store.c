/*
 * How close does the store come to the disk, and is it worth its own segment files?
 *
 * One run, peers in turn round after round (the order rotates), medians over the rounds:
 *   put    begin, put, commit of batches into fresh segments, all durable; against fio writing the same volume with a
 *          sync every batch (io_uring and libaio, the faster counts), and RocksDB BlobDB (two ways, the faster counts)
 *   read   whole records in random order, many in flight, checksums verified; against fio and BlobDB
 *   restart  a process fills the store and is killed; time from starting a new one to the first record read
 *
 * Cold: the store and fio read with O_DIRECT, BlobDB with direct reads and no blob cache, so no data comes from memory
 * of this machine, whatever its size. Two record sizes: full KV of SmolLM2-135M (1,478,656 B) and 480 KiB, as a
 * compressed copy has; a figure is the worse of the two.
 *   --dir DIR (where the files go, about 5 GB), --rounds N, --depth N in flight, --only disk|restart, --objects N
 * (restart)
 */
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"
#include "store.h"
#include "store_peers.h"
#include "uring.h"
#include "vc/log.h"
#include "vc/mem.h"

enum { BATCH = 16, MAX_PUT = 256, SMALL_CHAIN = 500 };
enum { FULL = 0, COMPRESSED = 1, N_CLASSES = 2 };

static vc_err_t err;
#define OK(call)                                                \
    do {                                                        \
        vc_status_t st_ = (call);                               \
        if (st_ != VC_OK)                                       \
            bench_fail("%s: %s", vc_status_name(st_), err.msg); \
    } while (0)

/* ---- one open store ---- */

typedef struct {
    cs_bufpool_t *pool;
    cs_workers_t *workers;
    cs_store_t *store;
    vc_keyspace_t ks;
    vc_digest_t ks_id;
    cs_fidelity_t fids[N_CLASSES];
    uint32_t part_bytes[N_CLASSES]; /* of one layer */
} target_t;

static uint32_t depth, n_put, n_rounds, n_read[N_CLASSES];
static const char *const class_names[N_CLASSES] = {"full, 1,478,656 B", "compressed, 491,520 B"};

static void make_names(target_t *t, vc_kv_shape_t shape, uint32_t compressed_part)
{
    char text[VC_SPEC_TEXT_MAX];
    *t = (target_t){.ks = {.shape = shape, .layout_version = VC_LAYOUT_VERSION}};
    memset(&t->ks.model, 0x51, sizeof(t->ks.model));
    memset(&t->ks.tokenizer, 0x52, sizeof(t->ks.tokenizer));
    snprintf(t->ks.rope, sizeof(t->ks.rope), "neox theta=100000 dims=%u", shape.head_dim);
    OK(vc_keyspace_id(&t->ks, &t->ks_id, &err));
    vc_spec_full_text(1, text);
    t->fids[FULL].fidelity = VC_FIDELITY_FULL;
    vc_spec_id(text, NULL, &t->fids[FULL].spec);
    t->fids[COMPRESSED].fidelity = VC_FIDELITY_COMPRESSED;
    vc_spec_id("kivi:bits=4", NULL, &t->fids[COMPRESSED].spec);
    t->part_bytes[FULL] = (uint32_t)vc_kv_layer_bytes(&shape);
    t->part_bytes[COMPRESSED] = compressed_part;
}

static void open_target(target_t *t, const char *dir, uint32_t n_bufs, uint64_t capacity)
{
    OK(cs_bufpool_create(n_bufs, (size_t)vc_kvrec_full_bytes(&t->ks.shape), &t->pool, &err));
    cs_workers_opts_t workers = {.n_workers = 1, .queue_depth = depth, .io_mode = CS_IO_AUTO, .pool = t->pool};
    OK(cs_workers_start(&workers, &t->workers, &err));
    cs_store_opts_t opts;
    cs_store_opts_default(&opts);
    opts.data_dir = dir;
    opts.capacity_bytes = capacity;
    opts.workers = t->workers;
    opts.pool = t->pool;
    OK(cs_store_open(&opts, &t->store, &err));
}

static void close_target(target_t *t)
{
    cs_store_close(t->store);
    cs_workers_stop(t->workers);
    cs_bufpool_destroy(t->pool);
}

/* ---- records ---- */

static void chain_tokens(const target_t *t, uint32_t seed, uint32_t n_blocks, uint32_t *tokens)
{
    for (uint32_t i = 0; i < n_blocks * t->ks.shape.block_tokens; i++)
        tokens[i] = seed * 1000003u + i;
}

static void fill(uint8_t *part, uint32_t bytes, uint64_t state)
{
    for (uint32_t i = 0; i + 8 <= bytes; i += 8) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        memcpy(part + i, &state, 8);
    }
}

/* Block b of a chain, whose hash is written to hash_p. */
static uint32_t make_record(const target_t *t, uint32_t class_id, const uint32_t *tokens, uint32_t b,
                            const vc_digest_t *parent, cs_buf_t *buf, vc_digest_t *hash_p)
{
    uint32_t block_tokens = t->ks.shape.block_tokens;
    vc_kvrec_head_t head = {.fidelity = t->fids[class_id].fidelity,
                            .kind = class_id == FULL ? VC_KVREC_FULL : VC_KVREC_QUANTISER,
                            .shape = t->ks.shape,
                            .block_index = b,
                            .numerics_id = 1,
                            .horizon_tokens = class_id == FULL ? 0 : (b + 1) * block_tokens,
                            .spec = t->fids[class_id].spec,
                            .keyspace = t->ks_id,
                            .parent = *parent};
    vc_kvrec_writer_t w;
    size_t bytes;
    OK(vc_kvrec_write_begin(&w, buf->data, buf->cap, &head, tokens + b * block_tokens, &err));
    for (uint32_t l = 0; l < t->ks.shape.n_layer; l++) {
        void *part;
        OK(vc_kvrec_write_layer(&w, t->part_bytes[class_id], &part, &err));
        memset(part, 0, t->part_bytes[class_id]);
        fill(part, t->part_bytes[class_id], ((uint64_t)tokens[0] << 32 | b << 8) + l);
    }
    OK(vc_kvrec_write_end(&w, &bytes, &err));
    vc_block_hash(parent, tokens + b * block_tokens, block_tokens, hash_p);
    return (uint32_t)bytes;
}

/* ---- waiting for callbacks ---- */

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n_done;
    vc_status_t failed;
} gate_t;

static void gate_init(gate_t *g)
{
    *g = (gate_t){.failed = VC_OK};
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
}

static void gate_signal(void *arg, vc_status_t status)
{
    gate_t *g = arg;
    pthread_mutex_lock(&g->lock);
    g->n_done++;
    if (status != VC_OK)
        g->failed = status;
    pthread_cond_signal(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void gate_wait(gate_t *g, uint32_t n)
{
    pthread_mutex_lock(&g->lock);
    while (g->n_done < n)
        pthread_cond_wait(&g->changed, &g->lock);
    vc_status_t failed = g->failed;
    pthread_mutex_unlock(&g->lock);
    if (failed != VC_OK)
        bench_fail("a store operation failed: %s", vc_status_name(failed));
}

static void gate_fini(gate_t *g)
{
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
}

/* ---- the store: put ---- */

typedef struct { /* what a round of puts writes: n_put records in the pool's buffers, in chains of BATCH */
    vc_object_key_t keys[MAX_PUT];
    cs_buf_t *bufs[MAX_PUT];
    uint32_t tokens[MAX_PUT / BATCH][BATCH * 64];
    const uint8_t *data[MAX_PUT];
    uint32_t bytes; /* of one record */
} load_t;

static void make_load(target_t *t, load_t *load, uint32_t class_id, uint32_t seed)
{
    vc_digest_t parent;
    for (uint32_t i = 0; i < n_put; i++) {
        uint32_t *tokens = load->tokens[i / BATCH];
        if (i % BATCH == 0) {
            chain_tokens(t, seed + i / BATCH, BATCH, tokens);
            parent = t->ks_id;
        }
        load->bufs[i] = cs_bufpool_at(t->pool, i);
        load->data[i] = load->bufs[i]->data;
        vc_object_key_t *key = &load->keys[i];
        key->fidelity = t->fids[class_id].fidelity;
        key->spec = t->fids[class_id].spec;
        load->bytes = make_record(t, class_id, tokens, i % BATCH, &parent, load->bufs[i], &key->hash);
        parent = key->hash;
    }
}

/* The next batch is handed over before the one before it is committed, as with several clients; the worker keeps no
 * more than `depth` writes in flight. A commit runs and one waits: each has its own sync, as many syncs as batches. */
static double put_store(target_t *t, load_t *load, uint32_t class_id)
{
    gate_t puts[MAX_PUT / BATCH], commits;
    cs_upload_info_t info[MAX_PUT / BATCH];
    uint8_t missing[BATCH];
    uint32_t n = n_put / BATCH;
    gate_init(&commits);
    double t0 = bench_now_s();
    for (uint32_t b = 0; b <= n; b++) {
        if (b < n) {
            gate_init(&puts[b]);
            OK(cs_store_begin(t->store, &t->ks, load->tokens[b], 0, BATCH, &t->fids[class_id], 1, &info[b], missing,
                              &err));
            for (uint32_t i = b * BATCH; i < (b + 1) * BATCH; i++)
                OK(cs_store_put(t->store, NULL, info[b].upload_id, &info[b].token, load->bufs[i], load->bytes,
                                gate_signal, &puts[b], &err));
        }
        if (b == 0)
            continue;
        gate_wait(&puts[b - 1], BATCH);
        gate_wait(&commits, b < 2 ? 0 : b - 2);
        OK(cs_store_commit(t->store, info[b - 1].upload_id, &info[b - 1].token, gate_signal, &commits, &err));
    }
    gate_wait(&commits, n);
    double s = bench_now_s() - t0;
    for (uint32_t b = 0; b < n; b++)
        gate_fini(&puts[b]);
    gate_fini(&commits);
    return (double)n_put * load->bytes / s / 1e6;
}

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
    for (uint32_t i = 0; i < depth; i++) {
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
    bench_add(&d->put[BLOB], put_blob(&d->blob, d->load.keys, d->load.data, d->load.bytes, n_put, BATCH, false));
    blob_open(&wal, bench_tmpdir(), "blob-wal");
    bench_add(&d->put_wal, put_blob(&wal, d->load.keys, d->load.data, d->load.bytes, n_put, BATCH, true));
    blob_close(&wal, true);
}

static void put_round(disk_t *d, uint32_t class_id, uint32_t round)
{
    make_load(&d->t, &d->load, class_id, 1 + (class_id * n_rounds + round) * (n_put / BATCH));
    d->bytes[class_id] = d->load.bytes;
    for (uint32_t i = 0; i < N_PEERS; i++) {
        uint32_t peer = (i + round) % N_PEERS;
        if (peer == STORE) {
            bench_add(&d->put[STORE], put_store(&d->t, &d->load, class_id));
        } else if (peer == BLOB) {
            put_round_blob(d);
        } else {
            fio_job_t job = {bench_tmpdir(), "write", "io_uring", d->load.bytes, n_put, depth, BATCH, false};
            bench_add(&d->put[FIO], fio_run(&job));
            job.engine = "libaio";
            bench_add(&d->put_libaio, fio_run(&job));
        }
    }
    memcpy(d->keys[class_id] + d->n_keys[class_id], d->load.keys, n_put * sizeof(vc_object_key_t));
    d->n_keys[class_id] += n_put;
}

static void shuffle(vc_object_key_t *keys, uint32_t n)
{
    static uint64_t state = 88172645463325252u;
    for (uint32_t i = n; i > 1; i--) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        uint32_t j = (uint32_t)(state % i);
        vc_object_key_t swap = keys[i - 1];
        keys[i - 1] = keys[j];
        keys[j] = swap;
    }
}

static void read_round(disk_t *d, uint32_t class_id, uint32_t round)
{
    shuffle(d->keys[class_id], d->n_keys[class_id]);
    uint32_t n = VC_MIN(n_read[class_id], d->n_keys[class_id]), bytes = d->bytes[class_id];
    for (uint32_t i = 0; i < N_PEERS; i++) {
        uint32_t peer = (i + round) % N_PEERS;
        fio_job_t job = {bench_tmpdir(), "randread", "io_uring", bytes, n, depth, 0, true};
        bench_add(&d->read[peer], peer == STORE  ? read_store(&d->t, d->keys[class_id], n, bytes)
                                  : peer == BLOB ? read_blob(&d->blob, d->keys[class_id], n, bytes, depth)
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
    uint32_t n = n_rounds * n_put;
    d->keys[class_id] = vc_calloc(n, sizeof(vc_object_key_t));
    if (!d->keys[class_id])
        bench_fail("no memory for %u keys", n);
    for (uint32_t round = 0; round < n_rounds; round++)
        put_round(d, class_id, round);
    blob_settle(&d->blob);
    fio_job_t lay_out = {bench_tmpdir(), "write", "io_uring", d->bytes[class_id], VC_MIN(n_read[class_id], n),
                         depth,          0,       true};
    fio_run(&lay_out);
    for (uint32_t round = 0; round < n_rounds; round++)
        read_round(d, class_id, round);
    report_class(d, class_id, worst);
    fio_remove(&lay_out);
    vc_free(d->keys[class_id]);
}

static void measure_disk(void)
{
    static disk_t d; /* large */
    char dir[4200];
    double worst[4] = {1e9, 1e9, 1e9, 1e9};
    if (!bench_have("fio"))
        bench_fail("fio is not installed");
    snprintf(dir, sizeof(dir), "%s/store", bench_tmpdir());
    if (mkdir(dir, 0700) != 0)
        bench_fail("cannot make %s", dir);
    make_names(&d.t, (vc_kv_shape_t){30, 3, 64, 64, VC_DTYPE_F16}, 16192);
    uint64_t needed = (uint64_t)n_rounds * n_put * 1970176u * 3 / 2; /* nothing is evicted */
    open_target(&d.t, dir, VC_MAX(n_put, depth), VC_MAX(needed, (uint64_t)10 << 30) /* the default */);
    blob_open(&d.blob, bench_tmpdir(), "blob");
    bench_note("store io mode %s, %u in flight, %u records a put round in batches of %u, fresh segments",
               cs_io_mode_name(cs_workers_io_mode(d.t.workers)), depth, n_put, BATCH);
    for (uint32_t class_id = 0; class_id < N_CLASSES; class_id++)
        measure_class(&d, class_id, worst);
    bench_figure("store_read_cold_vs_fio", worst[0]);
    bench_figure("store_put_durable_vs_fio", worst[1]);
    bench_figure("store_read_vs_blobdb", worst[2]);
    bench_figure("store_put_vs_blobdb", worst[3]);
    blob_close(&d.blob, true);
    close_target(&d.t);
}

/* ---- restart ---- */

static void open_small(target_t *t, const char *dir)
{
    make_names(t, (vc_kv_shape_t){1, 1, 16, 4, VC_DTYPE_F16}, 64); /* a record is 8 KiB */
    open_target(t, dir, SMALL_CHAIN, (uint64_t)2 << 30);
}

static void fill_chain(target_t *t, uint32_t seed, bool is_committed)
{
    static uint32_t tokens[SMALL_CHAIN * 4];
    static uint8_t missing[SMALL_CHAIN];
    cs_upload_info_t info;
    gate_t gate;
    vc_digest_t hash, parent = t->ks_id;
    gate_init(&gate);
    chain_tokens(t, seed, SMALL_CHAIN, tokens);
    OK(cs_store_begin(t->store, &t->ks, tokens, 0, SMALL_CHAIN, &t->fids[FULL], 1, &info, missing, &err));
    for (uint32_t i = 0; i < SMALL_CHAIN; i++) {
        cs_buf_t *buf = cs_bufpool_at(t->pool, i);
        uint32_t bytes = make_record(t, FULL, tokens, i, &parent, buf, &hash);
        OK(cs_store_put(t->store, NULL, info.upload_id, &info.token, buf, bytes, gate_signal, &gate, &err));
        parent = hash;
    }
    gate_wait(&gate, SMALL_CHAIN);
    if (is_committed) {
        OK(cs_store_commit(t->store, info.upload_id, &info.token, gate_signal, &gate, &err));
        gate_wait(&gate, SMALL_CHAIN + 1);
    }
    gate_fini(&gate);
}

/* In a process of its own: fills the store and dies by SIGKILL in the middle of one more upload. */
static void child_fill(const char *dir, uint32_t n_objects)
{
    target_t t;
    open_small(&t, dir);
    for (uint32_t seed = 0; seed < n_objects / SMALL_CHAIN; seed++)
        fill_chain(&t, seed, true);
    fill_chain(&t, n_objects, false);
    printf("filled\n");
    fflush(stdout);
    raise(SIGKILL);
}

/* In a process of its own: open, look up a chain, read its first record, die by SIGKILL again. */
static void child_hit(const char *dir, uint32_t seed)
{
    static uint32_t tokens[SMALL_CHAIN * 4];
    static vc_digest_t hashes[SMALL_CHAIN];
    target_t t;
    cs_lookup_result_t found;
    cs_pin_t pin;
    gate_t gate;
    open_small(&t, dir);
    gate_init(&gate);
    chain_tokens(&t, seed, SMALL_CHAIN, tokens);
    vc_block_chain(&t.ks_id, tokens, SMALL_CHAIN * 4, 4, hashes);
    OK(cs_store_lookup(t.store, &t.ks_id, hashes, SMALL_CHAIN, &t.fids[FULL], 1, true, &found, &err));
    if (found.n_blocks[0] != SMALL_CHAIN)
        bench_fail("%u of %u blocks found after the restart", found.n_blocks[0], SMALL_CHAIN);
    OK(cs_store_pin_leased(t.store, cs_store_boot_id(t.store), found.lease_id, &found.token, 0, 0, &pin));
    OK(cs_store_read(t.store, NULL, &pin, cs_bufpool_at(t.pool, 0), gate_signal, &gate));
    gate_wait(&gate, 1);
    printf("hit\n");
    fflush(stdout);
    raise(SIGKILL);
}

static double run_child(const char *what, const char *dir, uint32_t number, const char *expected)
{
    char out[16384], n[16];
    snprintf(n, sizeof(n), "%u", number);
    char *argv[] = {"/proc/self/exe", "--child", (char *)what, "--data", (char *)dir, "--number", n, NULL};
    double t0 = bench_now_s();
    (void)bench_run(argv, out, sizeof(out)); /* it kills itself */
    double s = bench_now_s() - t0;
    if (!strstr(out, expected))
        bench_fail("the process that was to %s did not: %.300s", what, out);
    return s;
}

static int drop_cache(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)at;
    int fd = type == FTW_F ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    return 0;
}

static void measure_restart(uint32_t n_objects)
{
    char dir[4200];
    bench_samples_t hit = {0};
    snprintf(dir, sizeof(dir), "%s/restart", bench_tmpdir());
    if (mkdir(dir, 0700) != 0)
        bench_fail("cannot make %s", dir);
    double s = run_child("fill", dir, n_objects, "filled");
    bench_note("%u objects of 8 KiB registered in %.1f s, then SIGKILL in the middle of an upload", n_objects, s);
    for (uint32_t round = 0; round < n_rounds; round++) {
        sync();
        (void)nftw(dir, drop_cache, 16, FTW_PHYS);
        bench_add(&hit, run_child("hit", dir, round % (n_objects / SMALL_CHAIN), "hit\n"));
    }
    bench_note("from exec to the first record read and checked; page cache dropped for the store's files");
    bench_row("first hit after SIGKILL", "s", &hit);
    bench_figure("store_restart_first_hit_s", bench_median(&hit));
    bench_samples_free(&hit);
}

int main(int argc, char **argv)
{
    bench_init("store", argc, argv);
    vc_log_set_level(VC_LOG_WARN);
    depth = (uint32_t)atoi(bench_option("depth", "16"));
    n_rounds = (uint32_t)atoi(bench_option("rounds", bench_quick() ? "2" : "7"));
    uint32_t n_objects = (uint32_t)atoi(bench_option("objects", bench_quick() ? "2000" : "100000"));
    n_put = bench_quick() ? 2 * BATCH : 8 * BATCH;
    n_read[FULL] = bench_quick() ? 16 : 256;
    n_read[COMPRESSED] = bench_quick() ? 32 : 768;
    if (depth < 1 || depth > PEER_MAX_DEPTH || n_rounds < 1 || n_objects < SMALL_CHAIN)
        bench_fail("--depth is 1 to %d, --rounds at least 1, --objects at least %d", PEER_MAX_DEPTH, SMALL_CHAIN);
    const char *child = bench_option("child", ""), *data = bench_option("data", "");
    uint32_t number = (uint32_t)atoi(bench_option("number", "0"));
    if (strcmp(child, "fill") == 0)
        child_fill(data, number);
    else if (strcmp(child, "hit") == 0)
        child_hit(data, number);
    const char *only = bench_option("only", "");
    if (strcmp(only, "restart") != 0)
        measure_disk();
    if (strcmp(only, "disk") != 0)
        measure_restart(n_objects);
    return 0;
}
