/* cs_store_get: concurrent readers of one record share one read, and each gets a view of its own. */
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

/* Starts a get; what is there at once counts as got. */
static vc_status_t get(fx_t *fx, const cs_pin_t *pin, got_t *g)
{
    fx_wait_init(&g->wait);
    vc_status_t status = cs_store_get(fx->store, NULL, pin, &g->view, on_got, g);
    if (status == VC_OK && g->view)
        fx_signal(&g->wait, VC_OK);
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
