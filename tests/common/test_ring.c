/* The ring between threads: order, bounds, wrap-around, and that many threads lose and duplicate nothing. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "support/vc_test.h"
#include "vc/mem.h"
#include "vc/ring.h"

Test(ring, pops_in_the_order_of_pushes_over_many_laps)
{
    vc_ring_t *ring = NULL;
    cr_assert_eq(vc_ring_create(4, sizeof(uint32_t), &ring), VC_OK);
    uint32_t out, pushed = 0, popped = 0;
    for (int round = 0; round < 1000; round++) {
        for (int i = 0; i < 1 + round % 4; i++, pushed++)
            cr_assert_eq(vc_ring_push(ring, &pushed), VC_OK);
        cr_assert_eq(vc_ring_count(ring), pushed - popped);
        for (; popped < pushed; popped++) {
            cr_assert_eq(vc_ring_pop(ring, &out), VC_OK);
            cr_assert_eq(out, popped);
        }
    }
    vc_ring_destroy(ring);
}

Test(ring, full_and_empty_answer_again_and_change_nothing)
{
    vc_ring_t *ring = NULL;
    cr_assert_eq(vc_ring_create(3, sizeof(int), &ring), VC_OK); /* becomes 4 */
    int out = 99;
    cr_assert_eq(vc_ring_pop(ring, &out), VC_ERR_AGAIN);
    cr_assert_eq(out, 99);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(vc_ring_push(ring, &i), VC_OK);
    cr_assert_eq(vc_ring_push(ring, &out), VC_ERR_AGAIN);
    cr_assert_eq(vc_ring_count(ring), 4u);
    cr_assert_eq(vc_ring_pop(ring, &out), VC_OK);
    cr_assert_eq(out, 0);
    vc_ring_destroy(ring);
}

Test(ring, one_and_zero_capacity_still_hold_elements)
{
    for (size_t capacity = 0; capacity <= 1; capacity++) {
        vc_ring_t *ring = NULL;
        cr_assert_eq(vc_ring_create(capacity, 1, &ring), VC_OK);
        char a = 'a', b = 'b', out;
        cr_assert_eq(vc_ring_push(ring, &a), VC_OK);
        cr_assert_eq(vc_ring_push(ring, &b), VC_OK);
        cr_assert_eq(vc_ring_push(ring, &b), VC_ERR_AGAIN);
        cr_assert_eq(vc_ring_pop(ring, &out), VC_OK);
        cr_assert_eq(out, 'a');
        vc_ring_destroy(ring);
    }
}

Test(ring, keeps_elements_of_odd_sizes_whole)
{
    vc_ring_t *ring = NULL;
    struct odd {
        char b[37];
    } in, out;
    cr_assert_eq(vc_ring_create(8, sizeof(in), &ring), VC_OK);
    for (int i = 0; i < 50; i++) {
        memset(&in, i, sizeof(in));
        cr_assert_eq(vc_ring_push(ring, &in), VC_OK);
        cr_assert_eq(vc_ring_pop(ring, &out), VC_OK);
        cr_assert_arr_eq(in.b, out.b, sizeof(in.b));
    }
    vc_ring_destroy(ring);
}

Test(ring, refuses_sizes_that_cannot_be)
{
    vc_ring_t *ring = NULL;
    cr_assert_eq(vc_ring_create(8, 0, &ring), VC_ERR_RANGE);
    cr_assert_eq(vc_ring_create(SIZE_MAX, 8, &ring), VC_ERR_RANGE);
    cr_assert_eq(vc_ring_create(8, SIZE_MAX - 3, &ring), VC_ERR_RANGE);
    cr_assert_eq(vc_ring_create((size_t)1 << 30, 1 << 20, &ring), VC_ERR_RANGE);
    cr_assert_null(ring);
    vc_ring_destroy(NULL);
}

enum { N_SIDE = 3, N_EACH = 20000 };
typedef struct {
    uint32_t producer, number;
    uint64_t check; /* of the two above: a torn element would not match */
} item_t;
static vc_ring_t *shared;
static _Atomic uint32_t n_popped;
static _Atomic uint8_t seen[N_SIDE][N_EACH];
static _Atomic uint32_t n_torn, n_disorder;

static void *produce(void *arg)
{
    item_t item = {.producer = (uint32_t)(uintptr_t)arg};
    for (item.number = 0; item.number < N_EACH; item.number++) {
        item.check = ((uint64_t)item.producer << 32 | item.number) * 0x9e3779b97f4a7c15u;
        while (vc_ring_push(shared, &item) != VC_OK)
            sched_yield();
    }
    return NULL;
}

static void *consume(void *arg)
{
    (void)arg;
    int64_t last[N_SIDE] = {-1, -1, -1};
    item_t item;
    while (atomic_load(&n_popped) < N_SIDE * N_EACH) {
        if (vc_ring_pop(shared, &item) != VC_OK) {
            sched_yield();
            continue;
        }
        atomic_fetch_add(&n_popped, 1);
        if (item.check != ((uint64_t)item.producer << 32 | item.number) * 0x9e3779b97f4a7c15u) {
            atomic_fetch_add(&n_torn, 1);
            continue;
        }
        if (item.number <= last[item.producer]) /* one consumer sees one producer's items in order */
            atomic_fetch_add(&n_disorder, 1);
        last[item.producer] = item.number;
        atomic_fetch_add(&seen[item.producer][item.number], 1);
    }
    return NULL;
}

Test(ring, many_producers_and_consumers_lose_and_duplicate_nothing)
{
    pthread_t threads[2 * N_SIDE];
    cr_assert_eq(vc_ring_create(16, sizeof(item_t), &shared), VC_OK);
    for (uintptr_t i = 0; i < N_SIDE; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, produce, (void *)i), 0);
        cr_assert_eq(pthread_create(&threads[N_SIDE + i], NULL, consume, NULL), 0);
    }
    for (int i = 0; i < 2 * N_SIDE; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(atomic_load(&n_torn), 0u);
    cr_assert_eq(atomic_load(&n_disorder), 0u);
    for (int p = 0; p < N_SIDE; p++)
        for (int i = 0; i < N_EACH; i++)
            cr_assert_eq(atomic_load(&seen[p][i]), 1);
    cr_assert_eq(vc_ring_count(shared), 0u);
    vc_ring_destroy(shared);
}
