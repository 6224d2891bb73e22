/* A store, the service over it and a client of libvericache, in one process; records and tokens of store_fixture.h. */
#ifndef SERVICE_FIXTURE_H
#define SERVICE_FIXTURE_H

#include "service.h"
#include "store_fixture.h"
#include "support/vc_test.h"
#include "vericache/vericache.h"

typedef struct sx {
    fx_t fx;
    cs_service_t *service;
    cs_service_opts_t opts;
    int port; /* kept over a restart */
    char address[64];
    uint8_t keyspace[VC_KEYSPACE_ENC_MAX];
    size_t keyspace_len;
    vcache_fidelity_t fids[2];
    vcache_client_t *client;
} sx_t;

static inline void sx_serve(sx_t *sx)
{
    vc_err_t err = {0};
    snprintf(sx->address, sizeof(sx->address), "127.0.0.1:%d", sx->port);
    sx->opts.listen = sx->address;
    sx->opts.store = sx->fx.store;
    sx->opts.pool = sx->fx.pool;
    sx->opts.clock = &sx->fx.clock.clock;
    cr_assert_eq(cs_service_start(&sx->opts, &sx->service, &err), VC_OK, "%s", err.msg);
    sx->port = cs_service_port(sx->service);
    snprintf(sx->address, sizeof(sx->address), "127.0.0.1:%d", sx->port);
}

static inline vcache_client_t *sx_connect(sx_t *sx)
{
    vcache_options_t o;
    vcache_error_t err = {0};
    vcache_client_t *client = NULL;
    vcache_options_default(&o);
    o.server = sx->address;
    o.use_data_plane = 0;
    cr_assert_eq(vcache_connect(&o, &client, &err), VC_OK, "%s", err.msg);
    return client;
}

/* tune may change the options of the store (sx->fx.opts) and of the service (sx->opts); NULL: none. */
static inline void sx_start_with(sx_t *sx, uint32_t n_layer, void (*tune)(sx_t *sx))
{
    vc_err_t err = {0};
    memset(sx, 0, sizeof(*sx));
    fx_init(&sx->fx, n_layer);
    cs_service_opts_default(&sx->opts);
    sx->opts.idle_ms = 5000;
    if (tune != NULL)
        tune(sx);
    cr_assert_eq(fx_open(&sx->fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    sx_serve(sx);
    cr_assert_eq(vc_keyspace_encode(&sx->fx.ks, sx->keyspace, &sx->keyspace_len, &err), VC_OK);
    sx->fids[0] = (vcache_fidelity_t){0, "full@1", NULL};
    sx->fids[1] = (vcache_fidelity_t){1, "noise:eps=0.5", NULL};
    sx->client = sx_connect(sx);
}

static inline void sx_start(sx_t *sx, uint32_t n_layer) { sx_start_with(sx, n_layer, NULL); }

static inline void sx_end(sx_t *sx)
{
    vcache_disconnect(sx->client);
    cs_service_stop(sx->service, 2000);
    fx_fini(&sx->fx);
}

/* The same data directory, port and client; another start of the server. */
static inline void sx_restart(sx_t *sx)
{
    cs_service_stop(sx->service, 100);
    cr_assert_eq(fx_reopen(&sx->fx), VC_OK);
    sx_serve(sx);
}

typedef struct sx_source {
    const fx_t *fx;
    uint32_t seed;
    int fail_at;    /* number of the call that fails, from 1; 0: none */
    int damage_at;  /* flips a byte in the record of this call */
    uint32_t calls; /* records handed out */
} sx_source_t;

static inline int sx_source_record(void *arg, uint32_t fid, uint32_t block, void *buf, size_t cap, size_t *len_p)
{
    sx_source_t *s = arg;
    if ((int)++s->calls == s->fail_at)
        return 1;
    *len_p = fx_record(s->fx, s->seed, block, fid, buf, cap);
    if ((int)s->calls == s->damage_at)
        ((uint8_t *)buf)[*len_p - 4096] ^= 1;
    return 0;
}

static inline vcache_status_t sx_register_by(sx_t *sx, vcache_client_t *client, uint32_t seed, uint32_t first,
                                             uint32_t n_blocks, sx_source_t *source, vcache_register_stats_t *stats,
                                             vcache_error_t *err)
{
    uint32_t *tokens = vc_calloc((size_t)n_blocks * FX_BLOCK_TOKENS, sizeof(*tokens));
    fx_tokens(seed, n_blocks, tokens);
    source->fx = &sx->fx;
    source->seed = seed;
    vcache_status_t st = vcache_register(client, sx->keyspace, sx->keyspace_len, tokens, first, n_blocks, sx->fids, 2,
                                         sx_source_record, source, stats, err);
    vc_free(tokens);
    return st;
}

static inline void sx_register(sx_t *sx, uint32_t seed, uint32_t n_blocks)
{
    sx_source_t source = {0};
    vcache_error_t err = {0};
    vcache_register_stats_t stats;
    cr_assert_eq(sx_register_by(sx, sx->client, seed, 0, n_blocks, &source, &stats, &err), VC_OK, "%s", err.msg);
}

static inline vcache_status_t sx_lookup(sx_t *sx, uint32_t seed, uint32_t n_blocks, vcache_lookup_info_t *info,
                                        vcache_lease_t **lease, vcache_error_t *err)
{
    uint32_t *tokens = vc_calloc((size_t)n_blocks * FX_BLOCK_TOKENS + 1, sizeof(*tokens));
    fx_tokens(seed, n_blocks, tokens);
    vcache_status_t st = vcache_lookup(sx->client, sx->keyspace, sx->keyspace_len, tokens,
                                       n_blocks * FX_BLOCK_TOKENS + 1, sx->fids, 2, info, lease, err);
    vc_free(tokens);
    return st;
}

typedef struct sx_sink {
    const fx_t *fx;
    uint32_t seed, fid;
    uint32_t right, wrong; /* records that are or are not the registered bytes */
    int stop_at;           /* number of the call that ends the fetch; 0: none */
} sx_sink_t;

static inline int sx_sink_record(void *arg, uint32_t block, const void *record, size_t bytes)
{
    sx_sink_t *s = arg;
    size_t cap = (size_t)vc_kvrec_full_bytes(&s->fx->ks.shape);
    uint8_t *want = vc_alloc_aligned(4096, cap);
    uint32_t n = fx_record(s->fx, s->seed, block, s->fid, want, cap);
    bool same = n == bytes && memcmp(want, record, bytes) == 0;
    vc_free(want);
    s->right += same;
    s->wrong += !same;
    return s->stop_at != 0 && s->right + s->wrong == (uint32_t)s->stop_at;
}

static inline double sx_stat(sx_t *sx, const char *name)
{
    static vcache_stat_t stats[512];
    uint32_t n = 0;
    vcache_error_t err = {0};
    cr_assert_eq(vcache_stats(sx->client, stats, 512, &n, &err), VC_OK, "%s", err.msg);
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(stats[i].name, name) == 0)
            return stats[i].value;
    cr_assert(false, "no statistic named %s", name);
    return -1;
}

/* Waits until a gauge has come down to zero: what a call started may end a little after its answer. */
static inline bool sx_wait_zero(sx_t *sx, const char *name)
{
    for (int tries = 0; tries < 20000; tries++)
        if (sx_stat(sx, name) == 0)
            return true;
    return false;
}

#endif
