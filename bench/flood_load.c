/* The flood: writers and readers on libvericache, one thread and one connection each; one more thread measures. */
#include "flood_load.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "vc/kvrec.h"
#include "vc/mem.h"
#include "vericache/vericache.h"

typedef struct flood {
    flood_opts_t opts;
    vc_keyspace_t ks;
    vc_digest_t ks_id;
    uint8_t enc[VC_KEYSPACE_ENC_MAX];
    size_t enc_len, layer_bytes;
    uint8_t *payload; /* of every layer, but for its first bytes */
    double start_s;
    _Atomic bool is_over;
    pthread_mutex_t lock; /* guards what follows */
    flood_result_t r;
    double last_accepted_s;
} flood_t;

typedef struct conn {
    pthread_t thread;
    flood_t *flood;
    vcache_client_t *client;
    uint32_t number;
    _Atomic uint32_t newest; /* writers: registrations tried */
    const struct conn *writers;
    uint64_t state;
} conn_t;

static const vcache_fidelity_t full = {0, "full@1", NULL};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static uint64_t du_at(int parent, const char *name)
{
    struct stat st;
    uint64_t bytes = 0;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
    if (!list) {
        if (fd >= 0)
            close(fd);
        return 0;
    }
    if (fstat(fd, &st) == 0)
        bytes = (uint64_t)st.st_blocks * 512;
    for (struct dirent *item; (item = readdir(list));) {
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0)
            continue;
        if (fstatat(fd, item->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) /* removed meanwhile */
            continue;
        bytes += S_ISDIR(st.st_mode) ? du_at(fd, item->d_name) : (uint64_t)st.st_blocks * 512;
    }
    closedir(list);
    return bytes;
}

uint64_t flood_du(const char *path) { return du_at(AT_FDCWD, path); }

/* ---- records ---- */

typedef struct chain {
    const flood_t *flood;
    uint32_t seed;
    uint32_t *tokens;
    vc_digest_t *hashes;
    uint8_t *want;
    uint64_t n_right, n_wrong;
} chain_t;

static bool chain_alloc(const flood_t *f, chain_t *chain)
{
    uint32_t n = f->opts.n_blocks;
    *chain = (chain_t){.flood = f,
                       .tokens = vc_calloc((size_t)n * f->opts.shape.block_tokens, sizeof(uint32_t)),
                       .hashes = vc_calloc(n, sizeof(vc_digest_t)),
                       .want = vc_alloc_aligned(4096, (size_t)vc_kvrec_full_bytes(&f->opts.shape))};
    return chain->tokens && chain->hashes && chain->want;
}

static void chain_free(chain_t *chain)
{
    vc_free(chain->tokens);
    vc_free(chain->hashes);
    vc_free(chain->want);
}

static void chain_set(chain_t *chain, uint32_t seed)
{
    const flood_t *f = chain->flood;
    uint32_t n = f->opts.n_blocks * f->opts.shape.block_tokens;
    chain->seed = seed;
    for (uint32_t i = 0; i < n; i++)
        chain->tokens[i] = seed * 2654435761u + i;
    vc_block_chain(&f->ks_id, chain->tokens, n, f->opts.shape.block_tokens, chain->hashes);
}

static int make_record(void *arg, uint32_t fid, uint32_t block, void *buf, size_t cap, size_t *len_p)
{
    const chain_t *chain = arg;
    const flood_t *f = chain->flood;
    vc_kvrec_writer_t w;
    vc_kvrec_head_t head = {.fidelity = VC_FIDELITY_FULL,
                            .kind = VC_KVREC_FULL,
                            .shape = f->opts.shape,
                            .block_index = block,
                            .numerics_id = 1,
                            .keyspace = f->ks_id,
                            .parent = block > 0 ? chain->hashes[block - 1] : f->ks_id};
    (void)fid;
    vc_spec_id(full.spec, NULL, &head.spec);
    vc_status_t st =
        vc_kvrec_write_begin(&w, buf, cap, &head, chain->tokens + (size_t)block * f->opts.shape.block_tokens, NULL);
    for (uint32_t l = 0; st == VC_OK && l < f->opts.shape.n_layer; l++) {
        void *part;
        uint32_t stamp[3] = {chain->seed, block, l};
        st = vc_kvrec_write_layer(&w, (uint32_t)f->layer_bytes, &part, NULL);
        if (st == VC_OK) {
            memcpy(part, f->payload, f->layer_bytes);
            memcpy(part, stamp, sizeof(stamp));
        }
    }
    return st == VC_OK && vc_kvrec_write_end(&w, len_p, NULL) == VC_OK ? 0 : 1;
}

static int check_record(void *arg, uint32_t block, const void *record, size_t bytes)
{
    chain_t *chain = arg;
    size_t n = 0;
    bool same =
        make_record(chain, 0, block, chain->want, (size_t)vc_kvrec_full_bytes(&chain->flood->opts.shape), &n) == 0 &&
        n == bytes && memcmp(chain->want, record, n) == 0;
    chain->n_right += same;
    chain->n_wrong += !same;
    return 0;
}

/* ---- connections ---- */

static void note_failure(flood_t *f, const char *what, const vcache_error_t *err)
{
    snprintf(f->r.failure, sizeof(f->r.failure), "%s: %.200s", what, err->msg);
}

static void note_registration(flood_t *f, vcache_status_t status, double began_s, uint64_t bytes,
                              const vcache_error_t *err)
{
    double end_s = now_s();
    pthread_mutex_lock(&f->lock);
    f->r.longest_call_s = VC_MAX(f->r.longest_call_s, end_s - began_s);
    if (status == VC_OK) {
        f->r.accepted++;
        f->r.bytes_accepted += bytes;
        f->r.longest_stall_s = VC_MAX(f->r.longest_stall_s, end_s - f->last_accepted_s);
        f->last_accepted_s = end_s;
    } else if (status == VC_ERR_NOSPACE || status == VC_ERR_BUSY) {
        f->r.rejected++;
    } else {
        f->r.failed++;
        note_failure(f, "register", err);
    }
    pthread_mutex_unlock(&f->lock);
}

static void *write_all(void *arg)
{
    conn_t *c = arg;
    flood_t *f = c->flood;
    chain_t chain;
    bool is_good = chain_alloc(f, &chain);
    for (uint32_t i = 0; is_good && !f->is_over && (!f->opts.n_registrations || i < f->opts.n_registrations); i++) {
        vcache_error_t err = {0};
        vcache_register_stats_t stats = {0};
        chain_set(&chain, i * f->opts.n_writers + c->number);
        double began_s = now_s();
        vcache_status_t status = vcache_register(c->client, f->enc, f->enc_len, chain.tokens, 0, f->opts.n_blocks,
                                                 &full, 1, make_record, &chain, &stats, &err);
        note_registration(f, status, began_s, stats.bytes, &err);
        c->newest = i;
    }
    chain_free(&chain);
    return NULL;
}

static uint32_t below(conn_t *c, uint32_t n)
{
    c->state = c->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(c->state >> 33) % n;
}

static void fetch_one(conn_t *c, chain_t *chain)
{
    flood_t *f = c->flood;
    vcache_error_t err = {0};
    vcache_lookup_info_t info;
    vcache_lease_t *lease = NULL;
    vcache_status_t status =
        vcache_lookup(c->client, f->enc, f->enc_len, chain->tokens, f->opts.n_blocks * f->opts.shape.block_tokens,
                      &full, 1, &info, &lease, &err);
    uint32_t n = status == VC_OK && lease ? info.n_blocks[0] : 0;
    chain->n_right = chain->n_wrong = 0;
    if (n > 0)
        status = vcache_fetch(lease, 0, 0, n, check_record, chain, NULL, &err);
    vcache_lease_release(lease);
    pthread_mutex_lock(&f->lock);
    f->r.lookups++;
    f->r.hits += n > 0;
    f->r.fetched += chain->n_right;
    f->r.wrong += chain->n_wrong;
    if (status != VC_OK || chain->n_right != n) {
        f->r.fetch_failed += n ? n - chain->n_right : 1;
        note_failure(f, n ? "fetch" : "lookup", &err);
    }
    pthread_mutex_unlock(&f->lock);
}

/* Of a writer's last registrations, in the order in which they are about to go. */
static void *read_all(void *arg)
{
    conn_t *c = arg;
    chain_t chain;
    bool is_good = chain_alloc(c->flood, &chain);
    while (is_good && !c->flood->is_over) {
        const conn_t *writer = &c->writers[below(c, c->flood->opts.n_writers)];
        uint32_t newest = writer->newest, back = below(c, 64);
        chain_set(&chain, (newest > back ? newest - back : 0) * c->flood->opts.n_writers + writer->number);
        fetch_one(c, &chain);
    }
    chain_free(&chain);
    return NULL;
}

static void *measure(void *arg)
{
    flood_t *f = arg;
    struct timespec pause = {.tv_nsec = 5000000};
    while (!f->is_over) {
        uint64_t bytes = flood_du(f->opts.data_dir);
        pthread_mutex_lock(&f->lock);
        f->r.du_samples++;
        f->r.du_over += bytes > f->opts.capacity_bytes;
        f->r.du_peak = VC_MAX(f->r.du_peak, bytes);
        pthread_mutex_unlock(&f->lock);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* ---- the run ---- */

static bool prepare(flood_t *f)
{
    f->ks = (vc_keyspace_t){.shape = f->opts.shape, .layout_version = VC_LAYOUT_VERSION};
    snprintf(f->ks.rope, sizeof(f->ks.rope), "none");
    f->layer_bytes = (size_t)vc_kv_layer_bytes(&f->opts.shape);
    f->payload = vc_alloc(f->layer_bytes);
    uint64_t state = 1;
    for (size_t i = 0; f->payload && i < f->layer_bytes; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        f->payload[i] = (uint8_t)(state >> 56);
    }
    return f->payload && vc_keyspace_id(&f->ks, &f->ks_id, NULL) == VC_OK &&
           vc_keyspace_encode(&f->ks, f->enc, &f->enc_len, NULL) == VC_OK && pthread_mutex_init(&f->lock, NULL) == 0;
}

static bool start(flood_t *f, conn_t *conns, uint32_t i)
{
    conn_t *c = &conns[i];
    vcache_options_t o;
    vcache_options_default(&o);
    o.server = f->opts.server;
    o.use_data_plane = i % 2;
    o.call_ms = o.stream_idle_ms = 60000;
    c->flood = f;
    c->number = i;
    c->writers = conns;
    c->state = i + 1;
    return vcache_connect(&o, &c->client, NULL) == VC_OK &&
           pthread_create(&c->thread, NULL, i < f->opts.n_writers ? write_all : read_all, c) == 0;
}

static void wait_for_end(flood_t *f, conn_t *conns, uint32_t n_started)
{
    struct timespec pause = {.tv_nsec = 20000000};
    uint32_t n_writers = VC_MIN(n_started, f->opts.n_writers);
    while (!f->opts.n_registrations && now_s() < f->start_s + f->opts.seconds)
        nanosleep(&pause, NULL);
    for (uint32_t i = 0; f->opts.n_registrations && i < n_writers; i++)
        pthread_join(conns[i].thread, NULL);
    f->r.seconds = now_s() - f->start_s;
    f->is_over = true;
    for (uint32_t i = f->opts.n_registrations ? n_writers : 0; i < n_started; i++)
        pthread_join(conns[i].thread, NULL);
    f->r.silent_s = VC_MAX(0.0, f->start_s + f->r.seconds - f->last_accepted_s);
    f->r.longest_stall_s = VC_MAX(f->r.longest_stall_s, f->r.silent_s);
}

int flood_run(const flood_opts_t *opts, flood_result_t *result_p)
{
    flood_t f = {.opts = *opts};
    pthread_t meter;
    uint32_t n = opts->n_writers + opts->n_readers, n_started = 0;
    conn_t *conns = vc_calloc(n, sizeof(*conns));
    bool is_good = conns && prepare(&f);
    f.start_s = f.last_accepted_s = now_s();
    bool has_meter = is_good && pthread_create(&meter, NULL, measure, &f) == 0;
    is_good = has_meter;
    while (is_good && n_started < n && (is_good = start(&f, conns, n_started)))
        n_started++;
    if (!is_good)
        f.is_over = true;
    if (conns)
        wait_for_end(&f, conns, n_started);
    if (has_meter)
        pthread_join(meter, NULL);
    for (uint32_t i = 0; i < n && conns; i++) {
        if (conns[i].client)
            vcache_disconnect(conns[i].client);
    }
    vc_free(conns);
    vc_free(f.payload);
    *result_p = f.r;
    return is_good;
}
