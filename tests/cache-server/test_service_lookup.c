/*
 * Proves what a lookup costs: a miss is one call and leaves nothing behind, a hit takes the same few calls however long
 * it is, and counts are exact under load.
 */
#include <malloc.h>

#include "service_fixture.h"

#if defined(__SANITIZE_ADDRESS__)
#define COUNTS_MEMORY 0 /* its allocator has no mallinfo */
#else
#define COUNTS_MEMORY 1
#endif

static size_t allocated(void) { return COUNTS_MEMORY ? mallinfo2().uordblks + mallinfo2().hblkhd : 0; }

/* Chains of 30 blocks that nobody stored, some in keyspaces that nobody knows. */
static void miss(sx_t *sx, uint32_t from, uint32_t n)
{
    vc_keyspace_t other = sx->fx.ks;
    uint8_t known[VC_KEYSPACE_ENC_MAX];
    size_t known_len = sx->keyspace_len;
    memcpy(known, sx->keyspace, known_len);
    for (uint32_t i = from; i < from + n; i++) {
        vcache_lookup_info_t info;
        vcache_lease_t *lease = NULL;
        memcpy(other.model.b, &i, sizeof(i));
        if (i % 4 == 0)
            cr_assert_eq(vc_keyspace_encode(&other, sx->keyspace, &sx->keyspace_len, NULL), VC_OK);
        cr_assert_eq(sx_lookup(sx, 1000 + i, 30, &info, &lease, NULL), VC_OK);
        cr_assert_null(lease);
        cr_assert_eq(info.n_blocks[0], 0);
        cr_assert_str_eq(info.miss_reason[0], i % 4 == 0 ? "keyspace:model" : "absent");
        memcpy(sx->keyspace, known, known_len);
        sx->keyspace_len = known_len;
    }
}

Test(service_lookup, a_miss_is_one_call_and_leaves_nothing_behind)
{
    enum { MISSES = 3000 };
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 4);
    miss(&sx, 0, 500); /* gRPC's own pools fill up */
    double calls = sx_stat(&sx, "rpc_calls_total");
    size_t before = allocated();
    miss(&sx, 500, MISSES);
    size_t after = allocated();
    cr_assert(after < before + 16 * 1024, "%zu bytes", after - before); /* 5 bytes a miss: none of them stays */
    cr_assert_eq(sx_stat(&sx, "rpc_calls_total"), calls + MISSES + 1);  /* and this one */
    cr_assert_eq(sx_stat(&sx, "leases_open"), 0);
    cr_assert_eq(sx_stat(&sx, "objects_full"), 4);
    cr_assert_eq(sx_stat(&sx, "lookup_blocks_full"), 30.0 * (500 + MISSES));
    cr_assert_eq(sx_stat(&sx, "hit_blocks_full"), 0);
    cr_assert_eq(sx_stat(&sx, "miss_keyspace") + sx_stat(&sx, "miss_absent"), 2.0 * (500 + MISSES));
    sx_end(&sx);
}

#define CALLS_ASKED 3

/* Calls that were taken before this, which takes CALLS_ASKED itself. */
static double calls(sx_t *sx)
{
    return sx_stat(sx, "rpc_calls_total") + sx_stat(sx, "rpc_fetches") + sx_stat(sx, "rpc_puts");
}

static double calls_to_store(sx_t *sx, uint32_t seed, uint32_t n_blocks)
{
    double before = calls(sx);
    sx_register(sx, seed, n_blocks);
    return calls(sx) - before - CALLS_ASKED;
}

static double calls_to_fetch(sx_t *sx, uint32_t seed, uint32_t n_blocks)
{
    vcache_lookup_info_t info;
    vcache_lease_t *lease = NULL;
    vcache_error_t err = {0};
    sx_sink_t sink = {.fx = &sx->fx, .seed = seed};
    double before = calls(sx);
    cr_assert_eq(sx_lookup(sx, seed, n_blocks, &info, &lease, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(info.n_blocks[0], n_blocks);
    cr_assert_eq(vcache_fetch(lease, 0, 0, n_blocks, sx_sink_record, &sink, NULL, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(sink.right, n_blocks);
    vcache_lease_release(lease);
    return calls(sx) - before - CALLS_ASKED;
}

/* The latency of a link is paid as often as there are calls: never once a block. */
Test(service_lookup, many_blocks_take_as_many_calls_as_one)
{
    enum { MANY = 100 };
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 1);                     /* the connection has calls of its own */
    cr_assert_eq(calls_to_store(&sx, 2, 1), 3); /* begin, records, commit */
    cr_assert_eq(calls_to_store(&sx, 3, MANY), 3);
    cr_assert_eq(calls_to_fetch(&sx, 2, 1), 3); /* lookup, records, release */
    cr_assert_eq(calls_to_fetch(&sx, 3, MANY), 3);
    cr_assert_eq(sx_stat(&sx, "leases_open"), 0);
    sx_end(&sx);
}

typedef struct {
    sx_t *sx;
    vcache_client_t *client;
    uint32_t seed;
    uint64_t asked, hit;
    bool is_good;
    pthread_t thread;
} asker_t;

static void *ask(void *arg)
{
    asker_t *a = arg;
    sx_t mine = *a->sx;
    mine.client = a->client;
    a->is_good = true;
    for (uint32_t i = 0; a->is_good && i < 200; i++) {
        vcache_lookup_info_t info;
        vcache_lease_t *lease = NULL;
        uint32_t n = 1 + (a->seed * 7 + i) % 12;
        a->is_good = sx_lookup(&mine, 1 + i % 4, n, &info, &lease, NULL) == VC_OK;
        a->asked += n;
        a->hit += info.n_blocks[0];
        vcache_lease_release(lease);
    }
    return NULL;
}

Test(service_lookup, hits_are_counted_exactly_under_load)
{
    enum { CLIENTS = 4 };
    static asker_t a[CLIENTS];
    uint64_t asked = 0, hit = 0;
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 8);
    sx_register(&sx, 2, 3);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        a[i] = (asker_t){.sx = &sx, .client = sx_connect(&sx), .seed = i};
        cr_assert_eq(pthread_create(&a[i].thread, NULL, ask, &a[i]), 0);
    }
    for (uint32_t i = 0; i < CLIENTS; i++) {
        pthread_join(a[i].thread, NULL);
        cr_assert(a[i].is_good);
        asked += a[i].asked;
        hit += a[i].hit;
        vcache_disconnect(a[i].client);
    }
    cr_assert_gt(hit, 0);
    cr_assert_eq(sx_stat(&sx, "lookup_blocks_full"), (double)asked);
    cr_assert_eq(sx_stat(&sx, "hit_blocks_full"), (double)hit);
    cr_assert_eq(sx_stat(&sx, "lookup_blocks_1h_full"), (double)asked);
    cr_assert_eq(sx_stat(&sx, "time_lookup_count"), CLIENTS * 200);
    cr_assert_eq(sx_stat(&sx, "leases_open"), 0);
    sx_end(&sx);
}
