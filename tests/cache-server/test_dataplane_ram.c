/* The data plane over the memory tier: records are sent from the slabs they were read into, once for all who ask. */
#include <stdatomic.h>

#include "dataplane_fixture.h"

static cs_ramtier_stats_t ram_stats(const world_t *w)
{
    cs_ramtier_stats_t s;
    cs_ramtier_get_stats(w->ram, &s);
    return s;
}

static uint64_t read_bytes(const world_t *w)
{
    cs_store_stats_t s;
    cs_store_get_stats(w->store, &s);
    return s.full.read_bytes;
}

static void fetch_all(world_t *w, vc_data_t *data, const vc_data_lease_t *lease, uint32_t n_good)
{
    catcher_t c;
    vc_err_t err = {0};
    catcher_init(&c, w);
    cr_assert(vc_data_fetch(data, lease, 0, 0, w->n_blocks, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cr_assert(c.n_good == n_good, "%u of %u records", c.n_good, n_good);
    vc_free(c.want);
}

static void open_filled(world_t *w, const vc_kv_shape_t *shape, uint32_t n_blocks, uint32_t ram_records)
{
    world_open(w, shape, n_blocks);
    w->ram_bytes = ram_records * w->record_bytes;
    world_start_server(w);
    world_fill(w);
}

Test(dataplane_ram, what_was_fetched_once_is_fetched_again_without_the_disk)
{
    enum { N = 10 };
    world_t w;
    open_filled(&w, &world_real_shape, N, 40);
    vc_data_lease_t lease = world_lease(&w);
    vc_data_t *data = world_connect(&w);
    fetch_all(&w, data, &lease, N);
    cr_assert(read_bytes(&w) == N * w.record_bytes); /* ahead or asked for: each once */
    uint64_t hits = ram_stats(&w).hits;
    fetch_all(&w, data, &lease, N);
    cr_assert(read_bytes(&w) == N * w.record_bytes);
    cr_assert(ram_stats(&w).hits == hits + N);
    cr_assert(ram_stats(&w).misses + ram_stats(&w).ahead == N);
    vc_data_close(data);
    world_close(&w);
}

typedef struct fetcher {
    world_t *w;
    vc_data_lease_t lease;
    pthread_barrier_t *start;
} fetcher_t;

static void *fetcher_main(void *arg)
{
    fetcher_t *f = arg;
    vc_data_t *data = world_connect(f->w);
    pthread_barrier_wait(f->start);
    fetch_all(f->w, data, &f->lease, f->w->n_blocks);
    vc_data_close(data);
    return NULL;
}

Test(dataplane_ram, clients_of_one_chain_read_it_from_disk_once)
{
    enum { N = 20, CLIENTS = 4 };
    world_t w;
    pthread_t threads[CLIENTS];
    fetcher_t fetchers[CLIENTS];
    pthread_barrier_t start;
    open_filled(&w, &world_small_shape, N, 400);
    pthread_barrier_init(&start, NULL, CLIENTS);
    for (int i = 0; i < CLIENTS; i++) {
        fetchers[i] = (fetcher_t){&w, world_lease(&w), &start};
        cr_assert(pthread_create(&threads[i], NULL, fetcher_main, &fetchers[i]) == 0);
    }
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&start);
    cr_assert(read_bytes(&w) == N * w.record_bytes);
    cs_ramtier_stats_t s = ram_stats(&w);
    cr_assert(s.misses + s.hits + s.coalesced == N * CLIENTS);
    world_close(&w);
    cr_assert(s.records == N);
}

Test(dataplane_ram, a_tier_smaller_than_the_chain_serves_all_of_it)
{
    enum { N = 60 };
    world_t w;
    open_filled(&w, &world_small_shape, N, 12);
    vc_data_lease_t lease = world_lease(&w);
    vc_data_t *data = world_connect(&w);
    for (int i = 0; i < 3; i++)
        fetch_all(&w, data, &lease, N);
    cr_assert(ram_stats(&w).evicted > 0);
    cr_assert(ram_stats(&w).used_bytes <= w.ram_bytes);
    vc_data_close(data);
    world_close(&w);
}

typedef struct flip {
    _Atomic uint32_t n_seen;
    uint32_t hit;
} flip_t;

static void flip_byte(void *arg, uint8_t *record, uint32_t bytes)
{
    flip_t *f = arg;
    if (atomic_fetch_add(&f->n_seen, 1) == f->hit)
        record[bytes / 2] ^= 4;
}

Test(dataplane_ram, a_record_reported_damaged_is_read_from_disk_again)
{
    enum { N = 4 };
    world_t w;
    flip_t flip = {.hit = N + 1}; /* in the second fetch */
    world_open(&w, &world_real_shape, N);
    w.ram_bytes = 20 * w.record_bytes;
    w.opts.fault = flip_byte;
    w.opts.fault_arg = &flip;
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w);
    vc_data_t *data = world_connect(&w);
    fetch_all(&w, data, &lease, N);
    fetch_all(&w, data, &lease, N - 1);
    WORLD_WAIT_EXACTLY(&w, wire_corrupt, 1);
    fetch_all(&w, data, &lease, N);
    cr_assert(read_bytes(&w) == (N + 1) * w.record_bytes);
    vc_data_close(data);
    world_close(&w);
}
