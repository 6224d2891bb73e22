/*
 * Lookup, then fetch, while writers flood a store that is much too small: what a lookup found can be fetched, byte for
 * byte, for as long as its lease lives, and not one byte is kept for anybody after that.
 */
#include "support/vc_test.h"

#include <stdatomic.h>

#include "store_fixture.h"

enum { WRITERS = 3, READERS = 3, BLOCKS = 6 };

typedef struct storm {
    fx_t fx;
    _Atomic uint32_t newest[WRITERS]; /* registrations of each writer that were acknowledged */
    _Atomic bool is_over;
    uint32_t n_chains; /* of each writer */
} storm_t;

typedef struct writer {
    pthread_t thread;
    storm_t *storm;
    uint32_t number, ok, refused, failed;
} writer_t;

typedef struct reader {
    pthread_t thread;
    storm_t *storm;
    uint64_t state;
    bool forgets; /* every other lease is never released */
    uint64_t lookups, hits, fetched, failed, wrong;
    char why[160];
} reader_t;

static cs_store_stats_t stats_of(storm_t *st)
{
    cs_store_stats_t stats;
    cs_store_get_stats(st->fx.store, &stats);
    return stats;
}

static void open_storm(storm_t *st, uint64_t capacity_mib, uint32_t n_chains)
{
    memset(st, 0, sizeof(*st));
    fx_init(&st->fx, 15); /* full records of 64 KiB */
    st->fx.opts.capacity_bytes = capacity_mib << 20;
    st->n_chains = n_chains;
    cr_assert_eq(fx_open(&st->fx, CS_IO_AUTO, NULL), VC_OK);
}

static uint32_t seed_of(uint32_t writer, uint32_t i) { return 1 + i * WRITERS + writer; }

static void *write_all(void *arg)
{
    writer_t *w = arg;
    for (uint32_t i = 0; i < w->storm->n_chains; i++) {
        vc_status_t status = fx_register(&w->storm->fx, seed_of(w->number, i), 0, BLOCKS, i % 3 ? FX_FULL : FX_BOTH);
        w->ok += status == VC_OK;
        w->refused += status == VC_ERR_NOSPACE || status == VC_ERR_BUSY;
        w->failed += status != VC_OK && status != VC_ERR_NOSPACE && status != VC_ERR_BUSY;
        w->storm->newest[w->number] = i;
    }
    return NULL;
}

static uint32_t random_below(reader_t *r, uint32_t n)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->state >> 33) % n;
}

typedef struct got {
    fx_wait_t wait;
    cs_view_t *view;
} got_t;

static void on_got(void *arg, vc_status_t status, cs_view_t *view)
{
    got_t *g = arg;
    g->view = view;
    fx_signal(&g->wait, status);
}

static bool is_right(fx_t *fx, uint32_t seed, uint32_t b, uint32_t f, const uint8_t *data, uint32_t bytes)
{
    size_t cap = cs_bufpool_buf_bytes(fx->pool);
    uint8_t *want = vc_alloc_aligned(4096, cap);
    bool same = fx_record(fx, seed, b, f, want, cap) == bytes && memcmp(want, data, bytes) == 0;
    vc_free(want);
    return same;
}

/* Into a buffer of ours, or a view that readers share; AGAIN (all buffers are out) is no failure. */
static vc_status_t fetch_pin(reader_t *r, const cs_pin_t *pin, uint32_t seed, uint32_t b, uint32_t f)
{
    fx_t *fx = &r->storm->fx;
    vc_status_t status = VC_ERR_AGAIN;
    if (random_below(r, 2)) {
        got_t g; /* on_got's: it may have run already when the get returns */
        cs_view_t *view;
        fx_wait_init(&g.wait);
        status = cs_store_get(fx->store, NULL, pin, &view, on_got, &g);
        if (status == VC_OK && view)
            on_got(&g, VC_OK, view);
        vc_status_t done = status == VC_OK ? fx_wait_end(&g.wait) : status;
        if (done == VC_OK) {
            r->wrong += !is_right(fx, seed, b, f, g.view->data, g.view->bytes);
            cs_view_release(g.view);
        }
        status = done;
    }
    if (status == VC_ERR_AGAIN) {
        cs_buf_t *buf = cs_bufpool_wait(fx->pool, 60000);
        memset(buf->data, 0xee, buf->cap);
        status = fx_read_pin(fx, pin, buf);
        r->wrong += status == VC_OK && !is_right(fx, seed, b, f, buf->data, pin->bytes);
        cs_bufpool_put(fx->pool, buf);
    }
    return status;
}

static void fetch_leased(reader_t *r, const cs_lookup_result_t *found, uint32_t seed)
{
    cs_store_t *store = r->storm->fx.store;
    for (uint32_t f = 0; f < 2; f++) {
        for (uint32_t b = 0; b < found->n_blocks[f]; b++) {
            cs_pin_t pin;
            vc_status_t status =
                cs_store_pin_leased(store, cs_store_boot_id(store), found->lease_id, &found->token, f, b, &pin);
            if (status == VC_OK) {
                status = fetch_pin(r, &pin, seed, b, f);
                cs_store_unpin(store, &pin);
            }
            r->fetched += status == VC_OK;
            r->failed += status != VC_OK;
            if (status != VC_OK)
                snprintf(r->why, sizeof(r->why), "chain %u block %u copy %u: %s", seed, b, f, vc_status_name(status));
        }
    }
}

/* Chains of the last few registrations: there, about to go, or just gone. */
static void *read_all(void *arg)
{
    reader_t *r = arg;
    storm_t *st = r->storm;
    while (!st->is_over) {
        cs_lookup_result_t found;
        uint32_t writer = random_below(r, WRITERS), newest = st->newest[writer], back = random_below(r, 80);
        uint32_t seed = seed_of(writer, newest > back ? newest - back : 0);
        vc_status_t status = fx_lookup(&st->fx, seed, BLOCKS, true, &found);
        r->lookups++;
        if (status == VC_ERR_BUSY)
            continue;
        r->failed += status != VC_OK;
        if (status != VC_OK || found.lease_id == 0)
            continue;
        r->hits++;
        fetch_leased(r, &found, seed);
        if (r->forgets && r->hits % 2)
            continue;
        status = cs_store_lease_release(st->fx.store, cs_store_boot_id(st->fx.store), found.lease_id, &found.token);
        r->failed += status != VC_OK;
    }
    return NULL;
}

static void run_storm(storm_t *st, writer_t *writers, reader_t *readers, bool forgets)
{
    for (uint32_t i = 0; i < READERS; i++) {
        readers[i] = (reader_t){.storm = st, .state = i + 1, .forgets = forgets};
        pthread_create(&readers[i].thread, NULL, read_all, &readers[i]);
    }
    for (uint32_t i = 0; i < WRITERS; i++) {
        writers[i] = (writer_t){.storm = st, .number = i};
        pthread_create(&writers[i].thread, NULL, write_all, &writers[i]);
    }
    for (uint32_t i = 0; i < WRITERS; i++)
        pthread_join(writers[i].thread, NULL);
    st->is_over = true;
    for (uint32_t i = 0; i < READERS; i++)
        pthread_join(readers[i].thread, NULL);
}

static void check_readers(const reader_t *readers)
{
    uint64_t fetched = 0;
    for (uint32_t i = 0; i < READERS; i++) {
        cr_assert_eq(readers[i].failed, 0, "%llu of %llu fetches failed, the last: %s",
                     (unsigned long long)readers[i].failed, (unsigned long long)readers[i].fetched, readers[i].why);
        cr_assert_eq(readers[i].wrong, 0);
        fetched += readers[i].fetched;
    }
    cr_assert_gt(fetched, 100);
}

/* What the index names has its bytes, and what has lost them is not named: after a restart too. */
static void check_all_that_is_left(storm_t *st)
{
    uint64_t n[2] = {0, 0};
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t seed = 1; seed < seed_of(0, st->n_chains); seed++) {
            for (uint32_t f = 0; f < 2; f++) {
                for (uint32_t b = 0; b < BLOCKS; b++) {
                    vc_status_t status = fx_read(&st->fx, seed, b, f);
                    cr_assert(status == VC_OK || status == VC_ERR_NOT_FOUND, "chain %u block %u copy %u: %s", seed, b,
                              f, vc_status_name(status));
                    n[pass] += status == VC_OK;
                }
            }
        }
        cs_store_stats_t stats = stats_of(st);
        cr_assert_eq(stats.full.objects + stats.compressed.objects, n[pass]);
        cr_assert_eq(stats.corrupt_disk, 0);
        cr_assert_eq(fx_reopen(&st->fx), VC_OK);
    }
    cr_assert_gt(n[0], 0);
    cr_assert_eq(n[0], n[1]);
}

Test(store_storm, what_was_looked_up_can_be_fetched_whatever_is_evicted_meanwhile)
{
    static storm_t st;
    writer_t writers[WRITERS];
    reader_t readers[READERS];
    open_storm(&st, 80, 160);
    run_storm(&st, writers, readers, false);
    check_readers(readers);
    for (uint32_t i = 0; i < WRITERS; i++) {
        cr_assert_eq(writers[i].failed, 0);
        cr_assert_gt(writers[i].ok, writers[i].refused); /* leases that come and go stop nobody for long */
    }
    cs_store_stats_t stats = stats_of(&st);
    cr_assert_gt(stats.evictions, 10);
    cr_assert_eq(stats.leases_open, 0);
    cr_assert_eq(stats.pinned_bytes, 0);
    cr_assert_leq(fx_du(&st.fx), st.fx.opts.capacity_bytes);
    check_all_that_is_left(&st);
    fx_fini(&st.fx);
}

Test(store_storm, leases_that_nobody_releases_end_with_their_time_and_pin_nothing)
{
    static storm_t st;
    writer_t writers[WRITERS];
    reader_t readers[READERS];
    open_storm(&st, 80, 60);
    run_storm(&st, writers, readers, true); /* the clock stands: every forgotten lease is alive at the end */
    check_readers(readers);
    cs_store_stats_t stats = stats_of(&st);
    cr_assert_gt(stats.leases_open, 0);
    cr_assert_gt(stats.pinned_bytes, 0);
    vc_fake_clock_advance(&st.fx.clock, (uint64_t)st.fx.opts.lease_ms * 1000 - 1);
    cs_store_tick(st.fx.store);
    cr_assert_eq(stats_of(&st).leases_open, stats.leases_open);
    vc_fake_clock_advance(&st.fx.clock, 1);
    cs_store_tick(st.fx.store);
    cr_assert_eq(stats_of(&st).leases_open, 0);
    cr_assert_eq(stats_of(&st).leases_expired, stats.leases_open);
    cr_assert_eq(stats_of(&st).pinned_bytes, 0);
    /* Nothing is kept any more: the whole store can be written over. */
    uint64_t evicted = stats_of(&st).full.evicted_objects, there = stats_of(&st).full.objects;
    for (uint32_t seed = 100000; stats_of(&st).full.evicted_objects < evicted + there && seed < 101000; seed++)
        cr_assert_eq(fx_register(&st.fx, seed, 0, BLOCKS, FX_FULL), VC_OK);
    cr_assert_geq(stats_of(&st).full.evicted_objects, evicted + there);
    fx_fini(&st.fx);
}

/* A lookup that nobody follows up with a fetch, again and again: its object is in use, not kept for ever. */
Test(store_storm, looked_up_and_never_fetched_is_evictable_once_the_lease_is_over)
{
    static storm_t st;
    cs_lookup_result_t found;
    open_storm(&st, 80, 0);
    cr_assert_eq(fx_register(&st.fx, 1, 0, BLOCKS, FX_FULL), VC_OK);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(fx_lookup(&st.fx, 1, BLOCKS, true, &found), VC_OK);
        cr_assert_eq(found.n_blocks[0], BLOCKS);
        vc_fake_clock_advance(&st.fx.clock, (uint64_t)st.fx.opts.lease_ms * 1000);
        cs_store_tick(st.fx.store);
        cr_assert_eq(stats_of(&st).pinned_bytes, 0);
    }
    uint32_t seed = 10;
    do { /* nobody asks for it again: decades of its use count go by */
        vc_fake_clock_advance(&st.fx.clock, (uint64_t)24 * 3600 * 1000000);
        cr_assert_eq(fx_register(&st.fx, seed, 0, BLOCKS, FX_FULL), VC_OK);
        cr_assert_eq(fx_lookup(&st.fx, 1, BLOCKS, false, &found), VC_OK);
    } while (found.n_blocks[0] == BLOCKS && ++seed < 2000);
    cr_assert_lt(found.n_blocks[0], BLOCKS);
    fx_fini(&st.fx);
}

/* Saving what is old must not cost what is about to be loaded. */
Test(store_storm, a_prefix_that_is_about_to_be_loaded_outlives_the_saving_of_others)
{
    static storm_t st;
    cs_lookup_result_t found;
    reader_t r = {.storm = &st, .state = 1};
    open_storm(&st, 80, 0);
    cr_assert_eq(fx_register(&st.fx, 1, 0, BLOCKS, FX_BOTH), VC_OK);
    cr_assert_eq(fx_lookup(&st.fx, 1, BLOCKS, true, &found), VC_OK);
    for (uint32_t seed = 10; stats_of(&st).full.evicted_objects < 2000; seed++)
        cr_assert_eq(fx_register(&st.fx, seed, 0, BLOCKS, FX_FULL), VC_OK);
    fetch_leased(&r, &found, 1);
    cr_assert_eq(r.fetched, 2 * BLOCKS, "%s", r.why);
    cr_assert_eq(r.wrong, 0);
    fx_fini(&st.fx);
}

/* Objects of the chain that are there; each of them reads back right. */
static uint32_t count_right(storm_t *st, uint32_t seed)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        vc_status_t status = fx_read(&st->fx, seed, b, 0);
        cr_assert(status == VC_OK || status == VC_ERR_NOT_FOUND, "block %u: %s", b, vc_status_name(status));
        n += status == VC_OK;
    }
    return n;
}

/* Stored, evicted, stored again: each time it is either there and right, or known to be missing. What comes back often
 * may be worth keeping; the first time around it is not. */
Test(store_storm, an_object_stored_and_evicted_in_a_loop_is_right_each_time)
{
    static storm_t st;
    uint32_t seed = 10, n_evicted = 0;
    open_storm(&st, 80, 0);
    for (int round = 0; round < 5; round++) {
        cs_upload_info_t info;
        uint8_t missing[2 * FX_MAX_BLOCKS];
        uint32_t there = count_right(&st, 1);
        cr_assert_eq(fx_begin(&st.fx, 1, 0, BLOCKS, FX_FULL, &info, missing), VC_OK);
        cr_assert_eq(info.n_missing, BLOCKS - there);
        cr_assert_eq(fx_put_missing(&st.fx, &info, 1, 0, BLOCKS, FX_FULL, missing), VC_OK);
        cr_assert_eq(count_right(&st, 1), there); /* no hit before the commit */
        cr_assert_eq(fx_commit(&st.fx, &info), VC_OK);
        cr_assert_eq(count_right(&st, 1), BLOCKS);
        for (uint32_t last = seed + 150; seed < last; seed++)
            cr_assert_eq(fx_register(&st.fx, seed, 0, BLOCKS, FX_FULL), VC_OK);
        n_evicted += BLOCKS - count_right(&st, 1);
    }
    cr_assert_geq(n_evicted, BLOCKS);
    cr_assert_eq(stats_of(&st).corrupt_disk, 0);
    fx_fini(&st.fx);
}
