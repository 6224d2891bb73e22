/*
 * cs_store_get: concurrent readers of one record share one read, and each gets a view of its own; what is in the memory
 * tier is not read again; blocks asked for in order are read ahead.
 */
#include <semaphore.h>

#include "store_fixture.h"
#include "support/vc_test.h"

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

/* Starts a get; what is there at once counts as got. g->view belongs to on_got, which may have run already. */
static vc_status_t get(fx_t *fx, const cs_pin_t *pin, got_t *g)
{
    cs_view_t *view;
    fx_wait_init(&g->wait);
    g->view = NULL;
    vc_status_t status = cs_store_get(fx->store, NULL, pin, &view, on_got, g);
    if (status == VC_OK && view)
        on_got(g, VC_OK, view);
    return status;
}

static bool holds(fx_t *fx, const cs_view_t *view, uint32_t seed, uint32_t block)
{
    size_t cap = cs_bufpool_buf_bytes(fx->pool);
    uint8_t *want = vc_alloc_aligned(4096, cap);
    uint32_t bytes = fx_record(fx, seed, block, 0, want, cap);
    bool same = bytes == view->bytes && memcmp(want, view->data, bytes) == 0;
    vc_free(want);
    return same;
}

static uint32_t free_buffers(fx_t *fx)
{
    cs_buf_t *bufs[64];
    uint32_t n = 0;
    while (n < 64 && (bufs[n] = cs_bufpool_get(fx->pool)))
        n++;
    for (uint32_t i = 0; i < n; i++)
        cs_bufpool_put(fx->pool, bufs[i]);
    return n;
}

static void open_with(fx_t *fx, uint32_t n_blocks)
{
    vc_err_t err = {0};
    fx_init(fx, 6);
    cr_assert_eq(fx_open(fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(fx_register(fx, 1, 0, n_blocks, FX_FULL), VC_OK);
}

/* The one worker stands still, so that all that follows comes before any read is done. */
typedef struct stop {
    sem_t here, go;
} stop_t;

static void stand(void *arg)
{
    stop_t *s = arg;
    sem_post(&s->here);
    sem_wait(&s->go);
}

static void stop_worker(fx_t *fx, stop_t *s)
{
    sem_init(&s->here, 0, 0);
    sem_init(&s->go, 0, 0);
    cr_assert_eq(cs_worker_post(cs_workers_get(fx->workers, 0), stand, s), VC_OK);
    sem_wait(&s->here);
}

static void pass(void *arg) { sem_post(arg); }

/* One turn of the worker's loop has gone by. */
static void turn_worker(fx_t *fx)
{
    sem_t done;
    sem_init(&done, 0, 0);
    cr_assert_eq(cs_worker_post(cs_workers_get(fx->workers, 0), pass, &done), VC_OK);
    sem_wait(&done);
}

static cs_ramtier_stats_t stats_of(fx_t *fx)
{
    cs_ramtier_stats_t stats;
    cs_ramtier_get_stats(cs_store_ramtier(fx->store), &stats);
    return stats;
}

Test(store_get, concurrent_readers_share_one_read)
{
    enum { N = 12 };
    fx_t fx;
    cs_pin_t pin;
    got_t got[N];
    stop_t stop;
    open_with(&fx, 1);
    uint32_t n_free = free_buffers(&fx);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &pin), VC_OK);
    stop_worker(&fx, &stop);
    for (uint32_t i = 0; i < N; i++) {
        cr_assert_eq(get(&fx, &pin, &got[i]), VC_OK);
        cr_assert_null(got[i].view);
    }
    cr_assert_eq(free_buffers(&fx), n_free - 1);
    sem_post(&stop.go);
    for (uint32_t i = 0; i < N; i++) {
        cr_assert_eq(fx_wait_end(&got[i].wait), VC_OK);
        cr_assert_eq(got[i].view, got[0].view);
    }
    cr_assert(holds(&fx, got[0].view, 1, 0));
    cr_assert_eq(stats_of(&fx).misses, 1);
    cr_assert_eq(stats_of(&fx).coalesced, N - 1);
    cr_assert_eq(stats_of(&fx).views, N);
    cs_store_unpin(fx.store, &pin); /* a view outlives its pin */
    for (uint32_t i = 0; i < N; i++) {
        cr_assert_eq(free_buffers(&fx), n_free - 1);
        cs_view_release(got[i].view);
    }
    cr_assert_eq(free_buffers(&fx), n_free);
    cr_assert_eq(stats_of(&fx).views, 0);
    fx_fini(&fx);
}

Test(store_get, a_record_that_is_viewed_is_there_at_once)
{
    fx_t fx;
    cs_pin_t pin;
    got_t first, second;
    open_with(&fx, 1);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &pin), VC_OK);
    cr_assert_eq(get(&fx, &pin, &first), VC_OK);
    cr_assert_eq(fx_wait_end(&first.wait), VC_OK);
    cr_assert_eq(get(&fx, &pin, &second), VC_OK);
    cr_assert_eq(fx_wait_end(&second.wait), VC_OK);
    cr_assert_eq(first.view, second.view);
    cr_assert_eq(stats_of(&fx).hits, 1);
    cs_view_release(first.view);
    cs_view_release(second.view);
    cs_store_unpin(fx.store, &pin);
    fx_fini(&fx);
}

Test(store_get, a_damaged_record_is_told_to_all_who_wait_and_kept_by_none)
{
    enum { N = 3 };
    fx_t fx;
    cs_pin_t pin;
    got_t got[N];
    stop_t stop;
    open_with(&fx, 2);
    uint32_t n_free = free_buffers(&fx);
    cr_assert_eq(fx_pin(&fx, 1, 1, 0, &pin), VC_OK);
    fx_flip_byte(&fx, &pin, 4096 + 77);
    stop_worker(&fx, &stop);
    for (uint32_t i = 0; i < N; i++)
        cr_assert_eq(get(&fx, &pin, &got[i]), VC_OK);
    sem_post(&stop.go);
    for (uint32_t i = 0; i < N; i++) {
        cr_assert_eq(fx_wait_end(&got[i].wait), VC_ERR_CORRUPT);
        cr_assert_null(got[i].view);
    }
    cs_store_unpin(fx.store, &pin);
    cr_assert_eq(free_buffers(&fx), n_free);
    cr_assert_eq(fx_pin(&fx, 1, 1, 0, &pin), VC_ERR_NOT_FOUND);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &pin), VC_OK); /* its neighbour is served */
    cr_assert_eq(get(&fx, &pin, &got[0]), VC_OK);
    cr_assert_eq(fx_wait_end(&got[0].wait), VC_OK);
    cr_assert(holds(&fx, got[0].view, 1, 0));
    cs_view_release(got[0].view);
    cs_store_unpin(fx.store, &pin);
    fx_fini(&fx);
}

Test(store_get, without_a_buffer_the_answer_is_again_and_one_that_comes_back_is_enough)
{
    fx_t fx;
    cs_pin_t pin;
    got_t got;
    cs_buf_t *bufs[64];
    uint32_t n = 0;
    open_with(&fx, 1);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &pin), VC_OK);
    while (n < 64 && (bufs[n] = cs_bufpool_get(fx.pool)))
        n++;
    cr_assert_eq(get(&fx, &pin, &got), VC_ERR_AGAIN);
    cs_bufpool_put(fx.pool, bufs[--n]);
    cr_assert_eq(get(&fx, &pin, &got), VC_OK);
    cr_assert_eq(fx_wait_end(&got.wait), VC_OK);
    cr_assert(holds(&fx, got.view, 1, 0));
    cs_view_release(got.view);
    while (n > 0)
        cs_bufpool_put(fx.pool, bufs[--n]);
    cs_store_unpin(fx.store, &pin);
    fx_fini(&fx);
}

/* ---- with a memory tier ---- */

static void open_with_ram(fx_t *fx, uint32_t n_blocks, uint32_t n_records)
{
    vc_err_t err = {0};
    fx_init(fx, 6);
    fx->ram_bytes = n_records * vc_kvrec_full_bytes(&fx->ks.shape);
    cr_assert_eq(fx_open(fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(fx_register(fx, 1, 0, n_blocks, FX_FULL), VC_OK);
}

static vc_status_t read_view(fx_t *fx, const cs_pin_t *pin, cs_view_t **view_p)
{
    got_t got;
    vc_status_t status = get(fx, pin, &got);
    if (status == VC_OK)
        status = fx_wait_end(&got.wait);
    *view_p = status == VC_OK ? got.view : NULL;
    return status;
}

Test(store_get, a_record_in_memory_is_not_read_again_and_not_summed_again)
{
    fx_t fx;
    cs_pin_t pin;
    cs_view_t *view;
    open_with_ram(&fx, 2, 16);
    uint32_t n_free = free_buffers(&fx);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &pin), VC_OK);
    cr_assert_eq(read_view(&fx, &pin, &view), VC_OK);
    cr_assert_eq(free_buffers(&fx), n_free); /* it lies in a slab */
    cs_view_release(view);
    fx_flip_byte(&fx, &pin, 4096 + 5); /* on disk only */
    cr_assert_eq(read_view(&fx, &pin, &view), VC_OK);
    cr_assert(holds(&fx, view, 1, 0));
    cs_view_release(view);
    cr_assert_eq(stats_of(&fx).misses, 1);
    cr_assert_eq(stats_of(&fx).hits, 1);
    cs_store_unpin(fx.store, &pin);
    fx_fini(&fx);
}

Test(store_get, a_reported_record_leaves_memory_and_a_dropped_one_too)
{
    fx_t fx;
    cs_pin_t pin;
    cs_view_t *view;
    open_with_ram(&fx, 2, 16);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &pin), VC_OK);
    cr_assert_eq(read_view(&fx, &pin, &view), VC_OK);
    cs_view_release(view);
    cr_assert_eq(stats_of(&fx).records, 1);
    cs_store_report_corrupt(fx.store, &pin); /* the disk is sound: read again, and kept again */
    cr_assert_eq(stats_of(&fx).records, 0);
    cs_store_tick(fx.store);
    cr_assert_eq(read_view(&fx, &pin, &view), VC_OK);
    cr_assert_eq(stats_of(&fx).misses, 2);
    fx_flip_byte(&fx, &pin, 4096 + 5);
    cs_store_report_corrupt(fx.store, &pin);
    cs_store_tick(fx.store);           /* dropped now */
    cr_assert(holds(&fx, view, 1, 0)); /* the view is not */
    cs_view_release(view);
    cr_assert_eq(stats_of(&fx).records, 0);
    cs_store_unpin(fx.store, &pin);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &pin), VC_ERR_NOT_FOUND);
    fx_fini(&fx);
}

static vc_status_t read_leased(fx_t *fx, const cs_lookup_result_t *r, uint32_t block)
{
    cs_pin_t pin;
    cs_view_t *view;
    vc_status_t status =
        cs_store_pin_leased(fx->store, cs_store_boot_id(fx->store), r->lease_id, &r->token, 0, block, &pin);
    if (status != VC_OK)
        return status;
    status = read_view(fx, &pin, &view);
    if (status == VC_OK && !holds(fx, view, 1, block))
        status = VC_ERR_INTERNAL;
    cs_view_release(view);
    cs_store_unpin(fx->store, &pin);
    return status;
}

/* So many reads ahead were started with a lease of 40 blocks out; waits until they have ended. */
static void await_ahead(fx_t *fx, uint64_t n)
{
    cr_assert_eq(stats_of(fx).ahead, n);
    uint64_t leased = 40 * vc_kvrec_full_bytes(&fx->ks.shape);
    cs_store_stats_t stats;
    do { /* a read ahead holds a pin until it has ended; each turn lets the worker go on */
        turn_worker(fx);
        cs_store_get_stats(fx->store, &stats);
    } while (stats.pinned_bytes != leased);
}

Test(store_get, blocks_asked_for_in_order_are_read_ahead_and_then_found)
{
    enum { N = 40 };
    fx_t fx;
    cs_lookup_result_t r;
    open_with_ram(&fx, N, 100);
    cr_assert_eq(fx_lookup(&fx, 1, N, true, &r), VC_OK);
    cr_assert_eq(r.n_blocks[0], N);
    cr_assert_eq(read_leased(&fx, &r, 0), VC_OK);
    cr_assert_eq(stats_of(&fx).ahead, 0); /* one is no order */
    cr_assert_eq(read_leased(&fx, &r, 1), VC_OK);
    await_ahead(&fx, 8);
    cr_assert_eq(stats_of(&fx).misses, 2);
    for (uint32_t b = 2; b < N; b++)
        cr_assert_eq(read_leased(&fx, &r, b), VC_OK);
    cs_ramtier_stats_t s = stats_of(&fx);
    cr_assert_eq(s.misses, 2);
    cr_assert_eq(s.hits + s.coalesced, N - 2);
    cr_assert_eq(s.ahead, N - 2); /* each once, and none beyond the end */
    cr_assert_eq(s.ahead_used, N - 2);
    cr_assert_eq(s.ahead_wasted, 0);
    cr_assert_eq(cs_store_lease_release(fx.store, cs_store_boot_id(fx.store), r.lease_id, &r.token), VC_OK);
    fx_fini(&fx);
}

Test(store_get, blocks_asked_for_in_another_order_are_not)
{
    enum { N = 40 };
    fx_t fx;
    cs_lookup_result_t r;
    open_with_ram(&fx, N, 100);
    cr_assert_eq(fx_lookup(&fx, 1, N, true, &r), VC_OK);
    for (uint32_t b = 0; b < N; b += 2)
        cr_assert_eq(read_leased(&fx, &r, b), VC_OK);
    for (uint32_t b = N; b-- > 0;)
        cr_assert_eq(read_leased(&fx, &r, b), VC_OK);
    cr_assert_eq(stats_of(&fx).ahead, 0);
    fx_fini(&fx);
}

Test(store_get, reading_ahead_stays_within_its_share_of_the_memory)
{
    enum { N = 40 };
    fx_t fx;
    cs_lookup_result_t r;
    open_with_ram(&fx, N, 30); /* a tenth: three records */
    cr_assert_eq(fx_lookup(&fx, 1, N, true, &r), VC_OK);
    cr_assert_eq(read_leased(&fx, &r, 0), VC_OK);
    cr_assert_eq(read_leased(&fx, &r, 1), VC_OK);
    await_ahead(&fx, 3);
    for (uint32_t b = 2; b < N; b++)
        cr_assert_eq(read_leased(&fx, &r, b), VC_OK);
    cr_assert_leq(stats_of(&fx).used_bytes, stats_of(&fx).capacity_bytes);
    cr_assert_gt(stats_of(&fx).ahead_used, 3);
    fx_fini(&fx);
}

Test(store_get, a_store_without_a_tier_reads_nothing_ahead)
{
    fx_t fx;
    cs_lookup_result_t r;
    open_with(&fx, 20);
    cr_assert_eq(fx_lookup(&fx, 1, 20, true, &r), VC_OK);
    for (uint32_t b = 0; b < 20; b++)
        cr_assert_eq(read_leased(&fx, &r, b), VC_OK);
    cr_assert_eq(stats_of(&fx).misses, 20);
    cr_assert_eq(stats_of(&fx).ahead, 0);
    fx_fini(&fx);
}
