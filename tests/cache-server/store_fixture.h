/*
 * A store in a temporary directory with its pool, workers and a fake clock, and blocking calls around the asynchronous
 * ones. Records are made from (seed, block): equal arguments, equal bytes. The clock stands unless a test steps it, and
 * no maintenance thread runs.
 */
#ifndef STORE_FIXTURE_H
#define STORE_FIXTURE_H

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store.h"
#include "vc/mem.h"

#define FX_BLOCK_TOKENS 4u
#define FX_MAX_BLOCKS 512u
enum { FX_FULL = 1, FX_COMPRESSED = 2, FX_BOTH = 3 };

typedef struct fx {
    char dir[256];
    bool own_dir;
    cs_bufpool_t *pool;
    uint64_t ram_bytes; /* set before fx_open; 0: no memory tier */
    cs_ramtier_t *ram;
    cs_workers_t *workers;
    cs_store_t *store;
    vc_fake_clock_t clock;
    cs_store_opts_t opts;
    vc_keyspace_t ks;
    vc_digest_t ks_id;
    cs_fidelity_t fids[2]; /* full, compressed */
} fx_t;

typedef struct fx_wait {
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done;
    vc_status_t status;
} fx_wait_t;

static inline void fx_wait_init(fx_wait_t *w)
{
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->done, NULL);
    w->is_done = false;
    w->status = VC_ERR_INTERNAL;
}

static inline void fx_signal(void *arg, vc_status_t status)
{
    fx_wait_t *w = arg;
    pthread_mutex_lock(&w->lock);
    w->status = status;
    w->is_done = true;
    pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->lock);
}

static inline vc_status_t fx_wait_end(fx_wait_t *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->is_done)
        pthread_cond_wait(&w->done, &w->lock);
    vc_status_t status = w->status;
    pthread_mutex_unlock(&w->lock);
    pthread_cond_destroy(&w->done);
    pthread_mutex_destroy(&w->lock);
    return status;
}

/* n_layer decides the record's size: (1 + n_layer) x 4 KiB. */
static inline void fx_init(fx_t *fx, uint32_t n_layer)
{
    memset(fx, 0, sizeof(*fx));
    const char *base = getenv("TMPDIR");
    snprintf(fx->dir, sizeof(fx->dir), "%s/vc-store-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(fx->dir))
        abort();
    fx->own_dir = true;
    vc_fake_clock_init(&fx->clock, 1000000000);
    memset(&fx->ks.model, 0x11, sizeof(fx->ks.model));
    memset(&fx->ks.tokenizer, 0x22, sizeof(fx->ks.tokenizer));
    fx->ks.shape = (vc_kv_shape_t){n_layer, 2, 128, FX_BLOCK_TOKENS, VC_DTYPE_F16};
    fx->ks.layout_version = VC_LAYOUT_VERSION;
    snprintf(fx->ks.rope, sizeof(fx->ks.rope), "neox theta=10000 dims=128");
    char text[VC_SPEC_TEXT_MAX];
    vc_spec_full_text(1, text);
    fx->fids[0].fidelity = VC_FIDELITY_FULL;
    vc_spec_id(text, NULL, &fx->fids[0].spec);
    fx->fids[1].fidelity = VC_FIDELITY_COMPRESSED;
    vc_spec_id("noise:eps=0.5", NULL, &fx->fids[1].spec);
    cs_store_opts_default(&fx->opts);
    fx->opts.capacity_bytes = (uint64_t)80 << 20;
    fx->opts.ballast_bytes = (uint64_t)16 << 20;
    fx->opts.no_maintenance_thread = true;
    fx->opts.clock = &fx->clock.clock;
}

static inline vc_status_t fx_open(fx_t *fx, cs_io_mode_t mode, vc_err_t *err)
{
    vc_status_t status = vc_keyspace_id(&fx->ks, &fx->ks_id, err);
    if (status == VC_OK && !fx->pool)
        status = cs_bufpool_create(16, (size_t)vc_kvrec_full_bytes(&fx->ks.shape), &fx->pool, err);
    cs_ramtier_opts_t ram = {.bytes = fx->ram_bytes, .pool = fx->pool};
    if (status == VC_OK && fx->ram_bytes > 0 && !fx->ram)
        status = cs_ramtier_create(&ram, &fx->ram, err);
    cs_workers_opts_t workers = {.n_workers = 1, .queue_depth = 16, .io_mode = mode, .pool = fx->pool};
    if (status == VC_OK && !fx->workers)
        status = cs_workers_start(&workers, &fx->workers, err);
    if (status != VC_OK)
        return status;
    fx->opts.data_dir = fx->dir;
    fx->opts.pool = fx->pool;
    fx->opts.ram = fx->ram;
    fx->opts.workers = fx->workers;
    return cs_store_open(&fx->opts, &fx->store, err);
}

static inline void fx_close(fx_t *fx)
{
    cs_store_close(fx->store);
    fx->store = NULL;
}

static inline vc_status_t fx_reopen(fx_t *fx)
{
    fx_close(fx);
    return fx_open(fx, CS_IO_AUTO, NULL);
}

static inline int fx_remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static inline void fx_fini(fx_t *fx)
{
    fx_close(fx);
    cs_workers_stop(fx->workers);
    cs_ramtier_destroy(fx->ram);
    cs_bufpool_destroy(fx->pool);
    if (fx->own_dir)
        nftw(fx->dir, fx_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Chains of one seed share every block before fork; those after it depend on the branch. */
static inline void fx_tokens(uint32_t seed, uint32_t n_blocks, uint32_t *tokens)
{
    for (uint32_t i = 0; i < n_blocks * FX_BLOCK_TOKENS; i++)
        tokens[i] = seed * 1000003u + i;
}

static inline void fx_hashes(const fx_t *fx, uint32_t seed, uint32_t n_blocks, vc_digest_t *hashes)
{
    uint32_t tokens[FX_MAX_BLOCKS * FX_BLOCK_TOKENS];
    fx_tokens(seed, n_blocks, tokens);
    vc_block_chain(&fx->ks_id, tokens, n_blocks * FX_BLOCK_TOKENS, FX_BLOCK_TOKENS, hashes);
}

static inline void fx_fill(uint8_t *part, uint32_t length, uint64_t state)
{
    for (uint32_t i = 0; i < length; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        part[i] = (uint8_t)(state >> 56);
    }
}

/* The record of one block; f: 0 full, 1 compressed. Returns its length. */
static inline uint32_t fx_record(const fx_t *fx, uint32_t seed, uint32_t block, uint32_t f, void *buf, size_t cap)
{
    uint32_t tokens[FX_MAX_BLOCKS * FX_BLOCK_TOKENS];
    vc_digest_t hashes[FX_MAX_BLOCKS];
    fx_tokens(seed, block + 1, tokens);
    vc_block_chain(&fx->ks_id, tokens, (block + 1) * FX_BLOCK_TOKENS, FX_BLOCK_TOKENS, hashes);
    vc_kvrec_head_t head = {.fidelity = f == 0 ? VC_FIDELITY_FULL : VC_FIDELITY_COMPRESSED,
                            .kind = f == 0 ? VC_KVREC_FULL : VC_KVREC_QUANTISER,
                            .shape = fx->ks.shape,
                            .block_index = block,
                            .numerics_id = 1,
                            .spec = fx->fids[f].spec,
                            .keyspace = fx->ks_id,
                            .parent = block > 0 ? hashes[block - 1] : fx->ks_id};
    if (f == 1)
        head.horizon_tokens = (block + 1) * FX_BLOCK_TOKENS;
    vc_kvrec_writer_t w;
    size_t bytes = 0;
    vc_err_t err;
    vc_status_t status = vc_kvrec_write_begin(&w, buf, cap, &head, tokens + block * FX_BLOCK_TOKENS, &err);
    for (uint32_t l = 0; status == VC_OK && l < fx->ks.shape.n_layer; l++) {
        void *part;
        uint32_t length = f == 0 ? (uint32_t)vc_kv_layer_bytes(&fx->ks.shape) : 1700 + block % 50;
        status = vc_kvrec_write_layer(&w, length, &part, &err);
        if (status == VC_OK)
            fx_fill(part, length, ((uint64_t)seed << 32 | block << 12 | f << 11) + l);
    }
    if (status == VC_OK)
        status = vc_kvrec_write_end(&w, &bytes, &err);
    if (status != VC_OK) {
        fprintf(stderr, "record: %s\n", err.msg);
        abort();
    }
    return (uint32_t)bytes;
}

static inline vc_status_t fx_begin(fx_t *fx, uint32_t seed, uint32_t first, uint32_t n_blocks, unsigned what,
                                   cs_upload_info_t *info, uint8_t *missing)
{
    uint32_t tokens[FX_MAX_BLOCKS * FX_BLOCK_TOKENS];
    fx_tokens(seed, n_blocks, tokens);
    return cs_store_begin(fx->store, &fx->ks, tokens, first, n_blocks, what == FX_COMPRESSED ? &fx->fids[1] : fx->fids,
                          what == FX_BOTH ? 2 : 1, info, missing, NULL);
}

static inline vc_status_t fx_put(fx_t *fx, const cs_upload_info_t *info, uint32_t seed, uint32_t block, uint32_t f)
{
    fx_wait_t w;
    cs_buf_t *buf = cs_bufpool_wait(fx->pool, 60000);
    uint32_t bytes = fx_record(fx, seed, block, f, buf->data, buf->cap);
    fx_wait_init(&w);
    vc_status_t status = cs_store_put(fx->store, NULL, info->upload_id, &info->token, buf, bytes, fx_signal, &w, NULL);
    if (status == VC_OK)
        status = fx_wait_end(&w);
    cs_bufpool_put(fx->pool, buf);
    return status;
}

static inline vc_status_t fx_commit(fx_t *fx, const cs_upload_info_t *info)
{
    fx_wait_t w;
    fx_wait_init(&w);
    vc_status_t status = cs_store_commit(fx->store, info->upload_id, &info->token, fx_signal, &w, NULL);
    return status == VC_OK ? fx_wait_end(&w) : status;
}

static inline vc_status_t fx_put_missing(fx_t *fx, const cs_upload_info_t *info, uint32_t seed, uint32_t first,
                                         uint32_t n_blocks, unsigned what, const uint8_t *missing)
{
    vc_status_t status = VC_OK;
    uint32_t n = n_blocks - first;
    for (uint32_t f = 0; f < 2; f++) {
        uint32_t row = what == FX_BOTH ? f : 0;
        for (uint32_t b = 0; (what & (1u << f)) && status == VC_OK && b < n; b++) {
            if (missing[row * n + b])
                status = fx_put(fx, info, seed, first + b, f);
            if (status == VC_ERR_EXISTS)
                status = VC_OK;
        }
    }
    return status;
}

/* The whole way; an upload that failed is aborted. */
static inline vc_status_t fx_register(fx_t *fx, uint32_t seed, uint32_t first, uint32_t n_blocks, unsigned what)
{
    cs_upload_info_t info;
    uint8_t missing[2 * FX_MAX_BLOCKS];
    vc_status_t status = fx_begin(fx, seed, first, n_blocks, what, &info, missing);
    if (status != VC_OK)
        return status;
    status = fx_put_missing(fx, &info, seed, first, n_blocks, what, missing);
    if (status == VC_OK)
        status = fx_commit(fx, &info);
    if (status != VC_OK)
        (void)cs_store_abort(fx->store, info.upload_id, &info.token);
    return status;
}

/* A life in a child with a fixture of its own in the parent's directory; returns how it ended. RocksDB does not work in
 * a child of a process that has used it: children first. */
static inline int fx_in_child(const fx_t *parent, void (*life)(fx_t *fx, const void *arg), const void *arg)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        fx_t fx;
        fx_init(&fx, parent->ks.shape.n_layer);
        rmdir(fx.dir);
        memcpy(fx.dir, parent->dir, sizeof(fx.dir));
        life(&fx, arg);
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        abort();
    return status;
}

/* Ticks and registers until that answers as wanted. It takes as long as the disk takes; a minute is a broken store. */
static inline vc_status_t fx_tick_until(fx_t *fx, vc_status_t want, uint32_t seed, uint32_t n_blocks, uint32_t what)
{
    vc_status_t status;
    uint64_t limit = vc_clock_now_us(vc_clock_system()) + 60000000;
    do {
        cs_store_tick(fx->store);
        status = fx_register(fx, seed, 0, n_blocks, what);
    } while (status != want && vc_clock_now_us(vc_clock_system()) < limit);
    return status;
}

static inline vc_status_t fx_lookup(fx_t *fx, uint32_t seed, uint32_t n_blocks, bool lease, cs_lookup_result_t *r)
{
    vc_digest_t hashes[FX_MAX_BLOCKS];
    fx_hashes(fx, seed, n_blocks, hashes);
    return cs_store_lookup(fx->store, &fx->ks_id, hashes, n_blocks, fx->fids, 2, lease, r, NULL);
}

static inline vc_status_t fx_pin(fx_t *fx, uint32_t seed, uint32_t block, uint32_t f, cs_pin_t *pin)
{
    vc_digest_t hashes[FX_MAX_BLOCKS];
    fx_hashes(fx, seed, block + 1, hashes);
    vc_object_key_t key = {.fidelity = fx->fids[f].fidelity, .spec = fx->fids[f].spec, .hash = hashes[block]};
    return cs_store_pin_key(fx->store, &key, pin);
}

static inline vc_status_t fx_read_pin(fx_t *fx, const cs_pin_t *pin, cs_buf_t *buf)
{
    fx_wait_t w;
    fx_wait_init(&w);
    vc_status_t status = cs_store_read(fx->store, NULL, pin, buf, fx_signal, &w);
    return status == VC_OK ? fx_wait_end(&w) : status;
}

/* OK only when every byte is the one that was registered; INTERNAL when the store said OK over other bytes. */
static inline vc_status_t fx_read(fx_t *fx, uint32_t seed, uint32_t block, uint32_t f)
{
    cs_pin_t pin;
    vc_status_t status = fx_pin(fx, seed, block, f, &pin);
    if (status != VC_OK)
        return status;
    cs_buf_t *buf = cs_bufpool_wait(fx->pool, 60000);
    memset(buf->data, 0xee, buf->cap); /* poisoned: nothing counts as read that was not */
    status = fx_read_pin(fx, &pin, buf);
    if (status == VC_OK) {
        uint8_t *want = vc_alloc_aligned(4096, buf->cap);
        uint32_t bytes = fx_record(fx, seed, block, f, want, buf->cap);
        if (bytes != pin.bytes || memcmp(want, buf->data, bytes) != 0)
            status = VC_ERR_INTERNAL;
        vc_free(want);
    }
    cs_bufpool_put(fx->pool, buf);
    cs_store_unpin(fx->store, &pin);
    return status;
}

/* Number of leading blocks that read back right; stops at the first that is not there. -1: wrong bytes. */
static inline int fx_readable(fx_t *fx, uint32_t seed, uint32_t n_blocks, uint32_t f)
{
    for (uint32_t b = 0; b < n_blocks; b++) {
        vc_status_t status = fx_read(fx, seed, b, f);
        if (status == VC_ERR_NOT_FOUND)
            return (int)b;
        if (status != VC_OK)
            return -1;
    }
    return (int)n_blocks;
}

/* Path of the segment file of a pin. */
static inline void fx_segment_path(const fx_t *fx, uint32_t number, char *path, size_t cap)
{
    snprintf(path, cap, "%s/segments/%08u.seg", fx->dir, number);
}

static inline void fx_flip_byte(const fx_t *fx, const cs_pin_t *pin, uint64_t at)
{
    char path[512];
    uint8_t byte;
    fx_segment_path(fx, pin->segment, path, sizeof(path));
    int fd = open(path, O_RDWR);
    if (fd < 0 || pread(fd, &byte, 1, (off_t)(pin->offset + at)) != 1)
        abort();
    byte ^= 0x10;
    if (pwrite(fd, &byte, 1, (off_t)(pin->offset + at)) != 1 || fsync(fd) != 0)
        abort();
    close(fd);
}

static uint64_t fx_du_sum;
static inline int fx_du_add(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)path, (void)flag, (void)ftw;
    fx_du_sum += (uint64_t)st->st_blocks * 512;
    return 0;
}

/* As du counts: every file and directory. Not for two threads at once. */
static inline uint64_t fx_du(const fx_t *fx)
{
    fx_du_sum = 0;
    nftw(fx->dir, fx_du_add, 16, FTW_PHYS);
    return fx_du_sum;
}

static inline cs_store_stats_t fx_stats(fx_t *fx)
{
    cs_store_stats_t stats;
    cs_store_get_stats(fx->store, &stats);
    return stats;
}

#endif
