/* Page runs: no page belongs to two runs, what is freed becomes one run again, no run crosses a slab. */
#include <string.h>

#include "pageruns.h"
#include "support/vc_test.h"
#include "vc/mem.h"

static int owner; /* stands for any */

Test(pageruns, an_area_can_be_taken_whole_and_not_one_page_more)
{
    cs_pageruns_t *area;
    cr_assert_eq(cs_pageruns_create(10, 4, &area), VC_OK);
    cr_assert_null(cs_pageruns_take(area, 5, &owner)); /* longer than a slab */
    cs_run_t *a = cs_pageruns_take(area, 4, &owner);
    cs_run_t *b = cs_pageruns_take(area, 4, &owner);
    cr_assert(a && b);
    cr_assert_eq(a->page, 0); /* from the start */
    cr_assert_eq(b->page, 4);
    cr_assert_null(cs_pageruns_take(area, 3, &owner)); /* the last slab has two */
    cs_run_t *c = cs_pageruns_take(area, 2, &owner);
    cr_assert(c && c->page == 8);
    cr_assert_null(cs_pageruns_take(area, 1, &owner));
    cr_assert_eq(cs_pageruns_taken(area), 10);
    cr_assert_null(cs_pageruns_take(area, 0, &owner));
    cs_pageruns_destroy(area);
}

Test(pageruns, free_neighbours_become_one_run_whatever_the_order)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int o = 0; o < 6; o++) {
        cs_pageruns_t *area;
        cs_run_t *runs[3], *last = NULL;
        cr_assert_eq(cs_pageruns_create(12, 12, &area), VC_OK);
        for (int i = 0; i < 3; i++)
            cr_assert((runs[i] = cs_pageruns_take(area, 4, &owner)) != NULL);
        for (int i = 0; i < 3; i++)
            last = cs_pageruns_free(area, runs[orders[o][i]]);
        cr_assert_eq(last->page, 0);
        cr_assert_eq(last->pages, 12);
        cr_assert_null(last->prev);
        cr_assert_null(last->next);
        cr_assert_not_null(cs_pageruns_take(area, 12, &owner));
        cs_pageruns_destroy(area);
    }
}

Test(pageruns, numbers_that_make_no_area_are_refused)
{
    cs_pageruns_t *area = NULL;
    cr_assert_eq(cs_pageruns_create(0, 4, &area), VC_ERR_RANGE);
    cr_assert_eq(cs_pageruns_create(4, 0, &area), VC_ERR_RANGE);
    cr_assert_null(area);
    cs_pageruns_destroy(NULL);
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

Test(pageruns, a_long_random_life_keeps_the_books)
{
    enum { PAGES = 3000, SLAB = 700, RUNS = 256 };
    static uint8_t used[PAGES];
    cs_run_t *runs[RUNS] = {0};
    cs_pageruns_t *area;
    uint64_t state = 1;
    uint32_t taken = 0, refused = 0;
    cr_assert_eq(cs_pageruns_create(PAGES, SLAB, &area), VC_OK);
    for (int step = 0; step < 20000; step++) {
        uint32_t i = next_random(&state) % RUNS;
        if (runs[i]) {
            memset(used + runs[i]->page, 0, runs[i]->pages);
            taken -= runs[i]->pages;
            cs_pageruns_free(area, runs[i]);
            runs[i] = NULL;
        } else {
            uint32_t pages = 1 + next_random(&state) % (step % 3 ? 12 : 90);
            runs[i] = cs_pageruns_take(area, pages, &owner);
            refused += !runs[i];
            if (!runs[i])
                continue;
            cr_assert_eq(runs[i]->pages, pages);
            cr_assert(runs[i]->page + pages <= PAGES);
            cr_assert_eq(runs[i]->page / SLAB, (runs[i]->page + pages - 1) / SLAB);
            for (uint32_t p = 0; p < pages; p++)
                cr_assert(!used[runs[i]->page + p]++);
            taken += pages;
        }
        cr_assert_eq(cs_pageruns_taken(area), taken);
    }
    cr_assert_gt(refused, 0); /* it was full at times */
    for (int i = 0; i < RUNS; i++)
        if (runs[i])
            cs_pageruns_free(area, runs[i]);
    for (int i = 0; i < PAGES / SLAB; i++)
        cr_assert_not_null(cs_pageruns_take(area, SLAB, &owner));
    cr_assert_not_null(cs_pageruns_take(area, PAGES % SLAB, &owner));
    cs_pageruns_destroy(area);
}
