/* The peers of bench_store: see store_peers.h. */
#include "store_peers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

/* ---- fio ---- */

/* Field i (from 1) of fio's terse line, version 3. */
static double terse_field(const char *out, int i)
{
    const char *line = strncmp(out, "3;fio", 5) == 0 ? out : strstr(out, "\n3;fio");
    if (!line)
        bench_fail("fio did not answer as expected: %.200s", out);
    if (*line == '\n')
        line++;
    for (; i > 1 && line; i--) {
        line = strchr(line, ';');
        line = line ? line + 1 : NULL;
    }
    return line ? atof(line) : 0;
}

static void file_of(const fio_job_t *job, char *path, size_t cap)
{
    snprintf(path, cap, "%s/fio.%u", job->dir, job->bytes);
}

double fio_run(const fio_job_t *job)
{
    char path[4200], file[4300], how[64], bs[64], size[64], io[64], qd[64], every[64], out[16384];
    bool is_read = strstr(job->rw, "read") != NULL;
    file_of(job, path, sizeof(path));
    snprintf(file, sizeof(file), "--filename=%s", path);
    snprintf(how, sizeof(how), "--rw=%s", job->rw);
    snprintf(bs, sizeof(bs), "--bs=%u", job->bytes);
    snprintf(size, sizeof(size), "--size=%llu", (unsigned long long)job->bytes * job->n);
    snprintf(io, sizeof(io), "--ioengine=%s", job->engine);
    snprintf(qd, sizeof(qd), "--iodepth=%u", job->depth);
    snprintf(every, sizeof(every), "--fdatasync=%u", job->sync);
    char *argv[] = {"fio",
                    "--name=peer",
                    "--direct=1",
                    "--minimal",
                    "--randrepeat=0",
                    file,
                    how,
                    bs,
                    size,
                    io,
                    qd,
                    every,
                    job->keep ? "--unlink=0" : "--unlink=1",
                    is_read ? "--end_fsync=0" : "--end_fsync=1",
                    strcmp(job->engine, "io_uring") == 0 ? "--fixedbufs=1" : NULL,
                    NULL};
    /* Its buffers in huge pages as the store's are: the C library asks for them, fio by itself does not. */
    setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1);
    int rc = bench_run(argv, out, sizeof(out));
    unsetenv("GLIBC_TUNABLES");
    if (rc != 0 || terse_field(out, 5) != 0)
        bench_fail("fio failed: %.300s", out);
    double kib = terse_field(out, is_read ? 6 : 47), ms = terse_field(out, is_read ? 9 : 50);
    if (ms <= 0)
        bench_fail("fio measured no time");
    return kib * 1.024 / ms;
}

void fio_remove(const fio_job_t *job)
{
    char path[4200];
    file_of(job, path, sizeof(path));
    unlink(path);
}

/* ---- RocksDB BlobDB ---- */

#define ROCKS_OK(e)                                      \
    do {                                                 \
        if ((e) != NULL)                                 \
            bench_fail("BlobDB: %s", (const char *)(e)); \
    } while (0)

void blob_open(blob_t *b, const char *dir, const char *name)
{
    char *e = NULL;
    snprintf(b->path, sizeof(b->path), "%s/%s", dir, name);
    b->options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(b->options, 1);
    rocksdb_options_set_enable_blob_files(b->options, 1);
    rocksdb_options_set_min_blob_size(b->options, 4096);
    rocksdb_options_set_blob_compression_type(b->options, rocksdb_no_compression);
    rocksdb_options_set_compression(b->options, rocksdb_no_compression);
    rocksdb_options_set_use_direct_reads(b->options, 1);
    rocksdb_options_set_use_direct_io_for_flush_and_compaction(b->options, 1);
    rocksdb_options_set_write_buffer_size(b->options, (size_t)512 << 20);
    rocksdb_options_set_max_write_buffer_number(b->options, 3);
    /* No compaction nor back pressure inside the clock: to the peer's advantage. */
    rocksdb_options_set_disable_auto_compactions(b->options, 1);
    rocksdb_options_set_level0_slowdown_writes_trigger(b->options, 100000);
    rocksdb_options_set_level0_stop_writes_trigger(b->options, 100000);
    b->db = rocksdb_open(b->options, b->path, &e);
    ROCKS_OK(e);
}

void blob_close(blob_t *b, bool destroy)
{
    char *e = NULL;
    rocksdb_close(b->db);
    if (destroy)
        rocksdb_destroy_db(b->options, b->path, &e);
    rocksdb_options_destroy(b->options);
}

static void blob_flush(blob_t *b)
{
    char *e = NULL;
    rocksdb_flushoptions_t *flush = rocksdb_flushoptions_create();
    rocksdb_flushoptions_set_wait(flush, 1);
    rocksdb_flush(b->db, flush, &e);
    ROCKS_OK(e);
    rocksdb_flushoptions_destroy(flush);
}

void blob_settle(blob_t *b)
{
    blob_flush(b);
    rocksdb_compact_range(b->db, NULL, 0, NULL, 0);
}

double put_blob(blob_t *b, const vc_object_key_t *keys, const uint8_t *const *data, uint32_t bytes, uint32_t n,
                uint32_t batch_n, bool with_wal)
{
    rocksdb_writeoptions_t *opts = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(opts, with_wal);
    rocksdb_writeoptions_disable_WAL(opts, !with_wal);
    double t0 = bench_now_s();
    for (uint32_t at = 0; at < n; at += batch_n) {
        char *e = NULL;
        rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
        for (uint32_t i = at; i < at + batch_n && i < n; i++)
            rocksdb_writebatch_put(batch, (const char *)&keys[i], sizeof(keys[i]), (const char *)data[i], bytes);
        rocksdb_write(b->db, opts, batch, &e);
        ROCKS_OK(e);
        rocksdb_writebatch_destroy(batch);
        if (!with_wal)
            blob_flush(b);
    }
    if (with_wal)
        blob_flush(b);
    double s = bench_now_s() - t0;
    rocksdb_writeoptions_destroy(opts);
    return (double)n * bytes / s / 1e6;
}

typedef struct {
    rocksdb_t *db;
    const vc_object_key_t *keys;
    uint32_t n, bytes;
    _Atomic uint32_t next;
} blob_reading_t;

static void *blob_reader(void *arg)
{
    blob_reading_t *r = arg;
    rocksdb_readoptions_t *opts = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(opts, 1);
    rocksdb_readoptions_set_fill_cache(opts, 1);
    for (;;) {
        /* Relaxed: each number is taken once. */
        uint32_t i = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
        char *e = NULL;
        size_t len = 0;
        if (i >= r->n)
            break;
        rocksdb_pinnableslice_t *v = rocksdb_get_pinned(r->db, opts, (const char *)&r->keys[i], sizeof(r->keys[i]), &e);
        ROCKS_OK(e);
        if (!v || !rocksdb_pinnableslice_value(v, &len) || len != r->bytes)
            bench_fail("BlobDB lost record %u", i);
        rocksdb_pinnableslice_destroy(v);
    }
    rocksdb_readoptions_destroy(opts);
    return NULL;
}

double read_blob(blob_t *b, const vc_object_key_t *keys, uint32_t n, uint32_t bytes, uint32_t depth)
{
    pthread_t threads[PEER_MAX_DEPTH];
    blob_reading_t r = {.db = b->db, .keys = keys, .n = n, .bytes = bytes};
    double t0 = bench_now_s();
    for (uint32_t i = 0; i < depth; i++)
        if (pthread_create(&threads[i], NULL, blob_reader, &r) != 0)
            bench_fail("cannot start a reader");
    for (uint32_t i = 0; i < depth; i++)
        pthread_join(threads[i], NULL);
    return (double)n * bytes / (bench_now_s() - t0) / 1e6;
}
