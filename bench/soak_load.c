/* The data of the soak, and its good clients. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "soak_parts.h"
#include "vc/mem.h"

#define CHAINS 60u /* prompts that are asked for; together a multiple of the capacity */
#define PART_BYTES 49152u

const vcache_fidelity_t soak_fids[2] = {{0, "full@1", NULL}, {1, "noise:eps=0.5", NULL}};

static vc_keyspace_t ks;
static vc_digest_t ks_id;
static uint8_t ks_enc[VC_KEYSPACE_ENC_MAX];
static size_t ks_len;

/* ---- data ---- */

void soak_space_init(void)
{
    ks = (vc_keyspace_t){.shape = {30, 3, 64, 64, VC_DTYPE_F16}, .layout_version = VC_LAYOUT_VERSION};
    snprintf(ks.rope, sizeof(ks.rope), "neox theta=100000 dims=64");
    if (vc_keyspace_id(&ks, &ks_id, NULL) != VC_OK || vc_keyspace_encode(&ks, ks_enc, &ks_len, NULL) != VC_OK)
        _exit(70);
}

const uint8_t *soak_keyspace(size_t *len_p)
{
    *len_p = ks_len;
    return ks_enc;
}

void soak_chain_make(soak_chain_t *c, uint32_t seed)
{
    c->seed = seed;
    c->n_blocks = SOAK_BLOCKS;
    for (uint32_t i = 0; i < VC_ARRAY_LEN(c->tokens); i++)
        c->tokens[i] = (seed * 2654435761u + i) % 49152;
    c->tokens[0] = seed; /* no two chains share a block */
    vc_block_chain(&ks_id, c->tokens, VC_ARRAY_LEN(c->tokens), ks.shape.block_tokens, c->hashes);
}

static uint8_t layer_byte(const soak_chain_t *c, uint32_t fid, uint32_t block, uint32_t layer)
{
    return (uint8_t)(c->seed * 31 + block * 7 + layer * 3 + fid * 101 + 1);
}

static uint32_t layer_bytes(uint32_t fid, uint32_t layer) { return fid == 0 ? PART_BYTES : 6000 + layer; }

int soak_record(void *arg, uint32_t fid, uint32_t block, void *buf, size_t cap, size_t *len_p)
{
    const soak_chain_t *c = arg;
    vc_kvrec_writer_t w;
    vc_kvrec_head_t head = {.fidelity = fid == 0 ? VC_FIDELITY_FULL : VC_FIDELITY_COMPRESSED,
                            .kind = fid == 0 ? VC_KVREC_FULL : VC_KVREC_QUANTISER,
                            .shape = ks.shape,
                            .block_index = block,
                            .numerics_id = 1,
                            .keyspace = ks_id,
                            .parent = block > 0 ? c->hashes[block - 1] : ks_id};
    vc_spec_id(soak_fids[fid].spec, NULL, &head.spec);
    vc_status_t st = vc_kvrec_write_begin(&w, buf, cap, &head, c->tokens + (size_t)block * ks.shape.block_tokens, NULL);
    for (uint32_t l = 0; st == VC_OK && l < ks.shape.n_layer; l++) {
        void *part;
        st = vc_kvrec_write_layer(&w, layer_bytes(fid, l), &part, NULL);
        if (st == VC_OK)
            memset(part, layer_byte(c, fid, block, l), layer_bytes(fid, l));
    }
    return st == VC_OK && vc_kvrec_write_end(&w, len_p, NULL) == VC_OK ? 0 : 1;
}

/* Each layer is one byte over and over: compared with itself, a byte further. */
bool soak_record_is_right(const soak_chain_t *c, uint32_t fid, uint32_t block, const void *record, size_t bytes)
{
    vc_kvrec_head_t head;
    if (vc_kvrec_decode(record, bytes, &head, NULL) != VC_OK || head.block_index != block ||
        memcmp(&head.hash, &c->hashes[block], sizeof(head.hash)) != 0)
        return false;
    for (uint32_t l = 0; l < ks.shape.n_layer; l++) {
        vc_kvrec_layer_t layer;
        vc_kvrec_layer(&head, l, &layer);
        const uint8_t *part = (const uint8_t *)record + layer.offset;
        if (layer.length != layer_bytes(fid, l) || part[0] != layer_byte(c, fid, block, l) ||
            memcmp(part, part + 1, layer.length - 1) != 0)
            return false;
    }
    return true;
}

vcache_client_t *soak_connect(const soak_shared_t *s, bool data_plane)
{
    vcache_options_t o;
    vcache_client_t *c = NULL;
    vcache_options_default(&o);
    o.server = s->address;
    o.call_ms = 30000;
    o.stream_idle_ms = 30000;
    o.use_data_plane = data_plane;
    return vcache_connect(&o, &c, NULL) == 0 ? c : NULL;
}

/* ---- a good client ---- */

typedef struct good {
    soak_shared_t *s;
    vcache_client_t *client;
    soak_chain_t chain;
    uint32_t fid;
    uint64_t random;
    bool gives_up; /* the registration that runs is broken off half-way */
} good_t;

static uint32_t rnd(good_t *g, uint32_t below)
{
    g->random = g->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((g->random >> 33) % below);
}

static void count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void note(good_t *g, vcache_status_t st, const vcache_error_t *err)
{
    if (st == 0)
        return;
    uint64_t n = atomic_fetch_add_explicit(&g->s->refused[-st < SOAK_STATUSES ? -st : 0], 1, memory_order_relaxed);
    if (n == 0) /* the first of each kind is worth a line */
        fprintf(stderr, "soak: first %s: %s\n", vcache_status_name(st), err->msg);
}

static int on_record(void *arg, uint32_t block, const void *record, size_t bytes)
{
    good_t *g = arg;
    if (!soak_record_is_right(&g->chain, g->fid, block, record, bytes))
        count(&g->s->wrong, 1);
    count(&g->s->good_bytes, bytes);
    count(&g->s->records, 1);
    return 0;
}

static int source(void *arg, uint32_t fid, uint32_t block, void *buf, size_t cap, size_t *len_p)
{
    good_t *g = arg;
    if (g->gives_up && block > SOAK_BLOCKS / 2)
        return 1;
    return soak_record(&g->chain, fid, block, buf, cap, len_p);
}

static void register_chain(good_t *g)
{
    vcache_error_t err = {0};
    vcache_register_stats_t stats = {0};
    size_t len;
    const uint8_t *enc = soak_keyspace(&len);
    g->gives_up = rnd(g, 20) == 0;
    vcache_status_t st = vcache_register(g->client, enc, len, g->chain.tokens, 0, g->chain.n_blocks, soak_fids, 2,
                                         source, g, &stats, &err);
    if (g->gives_up && st != 0)
        count(&g->s->aborts, 1);
    else
        note(g, st, &err);
    count(&g->s->registrations, st == 0);
    count(&g->s->good_bytes, stats.bytes);
}

static void lookup_and_fetch(good_t *g)
{
    vcache_lookup_info_t info = {0};
    vcache_lease_t *lease = NULL;
    vcache_error_t err = {0};
    size_t len;
    const uint8_t *enc = soak_keyspace(&len);
    vcache_status_t st = vcache_lookup(g->client, enc, len, g->chain.tokens, VC_ARRAY_LEN(g->chain.tokens), soak_fids,
                                       2, &info, &lease, &err);
    note(g, st, &err);
    for (g->fid = 0; st == 0 && g->fid < 2; g->fid++) {
        if (info.n_blocks[g->fid] == 0)
            continue;
        st = vcache_fetch(lease, g->fid, 0, info.n_blocks[g->fid], on_record, g, NULL, &err);
        note(g, st, &err);
        count(&g->s->fetches, 1);
    }
    vcache_lease_release(lease);
    if (st == 0 && (info.n_blocks[0] < g->chain.n_blocks || info.n_blocks[1] < g->chain.n_blocks)) {
        count(&g->s->misses, 1);
        register_chain(g);
    }
}

/* Pins and deletes, where the server has them. */
static void manage(good_t *g)
{
    vcache_error_t err = {0};
    size_t len;
    vcache_chain_t chain = {.keyspace = soak_keyspace(&len), .tokens = g->chain.tokens};
    chain.keyspace_len = len;
    chain.n_tokens = VC_ARRAY_LEN(g->chain.tokens);
    bool is_delete = rnd(g, 2) == 0;
    vcache_status_t st =
        is_delete ? vcache_delete(g->client, &chain, NULL, &err) : vcache_pin(g->client, &chain, NULL, &err);
    if (st == 0)
        count(is_delete ? &g->s->deletes : &g->s->pins, 1);
    if (st == 0 && !is_delete)
        st = vcache_unpin(g->client, &chain, NULL, &err);
    if (st != VC_ERR_UNSUPPORTED && st != VC_ERR_NOT_FOUND) /* others evict and delete meanwhile */
        note(g, st, &err);
}

/* Small numbers much more often than large ones. */
static uint32_t choose(good_t *g) { return rnd(g, 1 + rnd(g, CHAINS)); }

void soak_good_client(soak_shared_t *s, uint32_t number, bool data_plane)
{
    good_t g = {.s = s, .random = number + 1};
    g.client = soak_connect(s, data_plane);
    while (g.client && !atomic_load_explicit(&s->stop, memory_order_relaxed)) {
        soak_chain_make(&g.chain, choose(&g));
        if (rnd(&g, 50) == 0)
            manage(&g);
        else
            lookup_and_fetch(&g);
    }
    vcache_disconnect(g.client);
}
