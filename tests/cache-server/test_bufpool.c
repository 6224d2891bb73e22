/* The buffer pool hands each buffer to one owner at a time, aligned, and tells waiters when one is back. */
#include "support/vc_test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "bufpool.h"

Test(bufpool, buffers_are_aligned_distinct_and_inside_the_mapping)
{
    cs_bufpool_t *pool;
    cr_assert_eq(cs_bufpool_create(3, 8192, &pool, NULL), VC_OK);
    size_t bytes;
    uint8_t *base = cs_bufpool_base(pool, &bytes);
    cr_assert_eq(bytes, 3 * 8192);
    cs_buf_t *bufs[3];
    for (int i = 0; i < 3; i++) {
        bufs[i] = cs_bufpool_get(pool);
        cr_assert_not_null(bufs[i]);
        cr_assert_eq((uintptr_t)bufs[i]->data % 4096, 0);
        cr_assert_eq(bufs[i]->data, base + bufs[i]->index * 8192);
        cr_assert_eq(cs_bufpool_at(pool, bufs[i]->index), bufs[i]);
        for (int k = 0; k < i; k++)
            cr_assert_neq(bufs[i], bufs[k]);
    }
    cr_assert_null(cs_bufpool_get(pool));
    cs_bufpool_put(pool, bufs[1]);
    cr_assert_eq(cs_bufpool_get(pool), bufs[1]);
    cr_assert_null(cs_bufpool_at(pool, 3));
    cs_bufpool_destroy(pool);
}

Test(bufpool, a_buffer_put_twice_is_still_one_buffer)
{
    cs_bufpool_t *pool;
    cr_assert_eq(cs_bufpool_create(2, 4096, &pool, NULL), VC_OK);
    cs_buf_t *a = cs_bufpool_get(pool), *b = cs_bufpool_get(pool);
    cs_bufpool_put(pool, a);
    cs_bufpool_put(pool, a);
    cr_assert_eq(cs_bufpool_get(pool), a);
    cr_assert_null(cs_bufpool_get(pool));
    cs_bufpool_put(pool, b);
    cs_bufpool_destroy(pool);
}

Test(bufpool, impossible_sizes_are_refused)
{
    cs_bufpool_t *pool;
    vc_err_t err;
    cr_assert_eq(cs_bufpool_create(0, 4096, &pool, &err), VC_ERR_INVALID);
    cr_assert_eq(cs_bufpool_create(1, 4095, &pool, &err), VC_ERR_INVALID);
    cr_assert_eq(cs_bufpool_create(1, 0, &pool, &err), VC_ERR_INVALID);
    cs_bufpool_destroy(NULL);
}

static cs_bufpool_t *shared;
static cs_buf_t *taken;
static void take_it(void *arg)
{
    (*(int *)arg)++;
    taken = cs_bufpool_get(shared);
}

Test(bufpool, a_notice_runs_once_when_a_buffer_is_back)
{
    int calls = 0;
    cr_assert_eq(cs_bufpool_create(1, 4096, &shared, NULL), VC_OK);
    cs_buf_t *buf = cs_bufpool_get(shared);
    cs_bufpool_notify(shared, take_it, &calls);
    cr_assert_eq(calls, 0);
    cs_bufpool_put(shared, buf);
    cr_assert_eq(calls, 1);
    cr_assert_eq(taken, buf);
    cs_bufpool_put(shared, taken);
    cr_assert_eq(calls, 1);
    cs_bufpool_notify(shared, take_it, &calls); /* one is free: at once */
    cr_assert_eq(calls, 2);
    cs_bufpool_put(shared, taken);
    cs_bufpool_destroy(shared);
}

static void *wait_for_one(void *arg)
{
    cs_buf_t **buf = arg;
    *buf = cs_bufpool_wait(shared, 60000);
    return NULL;
}

Test(bufpool, a_waiting_thread_gets_the_buffer_that_comes_back)
{
    pthread_t thread;
    cs_buf_t *got = NULL;
    cr_assert_eq(cs_bufpool_create(1, 4096, &shared, NULL), VC_OK);
    cs_buf_t *buf = cs_bufpool_get(shared);
    cr_assert_null(cs_bufpool_wait(shared, 0));
    pthread_create(&thread, NULL, wait_for_one, &got);
    cs_bufpool_put(shared, buf);
    pthread_join(thread, NULL);
    cr_assert_eq(got, buf);
    cs_bufpool_put(shared, got);
    cs_bufpool_destroy(shared);
}

static _Atomic int owners[4];
static _Atomic int collisions;
static void *churn(void *arg)
{
    (void)arg;
    for (int i = 0; i < 20000; i++) {
        cs_buf_t *buf = cs_bufpool_wait(shared, 60000);
        if (atomic_fetch_add(&owners[buf->index], 1) != 0)
            atomic_fetch_add(&collisions, 1);
        atomic_fetch_sub(&owners[buf->index], 1);
        cs_bufpool_put(shared, buf);
    }
    return NULL;
}

Test(bufpool, many_threads_never_share_a_buffer)
{
    pthread_t threads[6];
    cr_assert_eq(cs_bufpool_create(4, 4096, &shared, NULL), VC_OK);
    for (int i = 0; i < 6; i++)
        pthread_create(&threads[i], NULL, churn, NULL);
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(atomic_load(&collisions), 0);
    cs_bufpool_destroy(shared);
}
