/* Proves that latency percentiles are right within an eighth, and that hit rates forget with their window. */
#include "hist.h"
#include "hits.h"
#include "support/vc_test.h"

Test(hist, percentiles_are_at_most_an_eighth_too_high)
{
    static cs_hist_t h;
    cs_hist_sum_t s;
    cs_hist_read(&h, &s);
    cr_assert_eq(s.count, 0);
    cr_assert_eq(s.p99_us, 0);
    for (uint64_t us = 1; us <= 100000; us++)
        cs_hist_add(&h, us);
    cs_hist_read(&h, &s);
    cr_assert_eq(s.count, 100000);
    cr_assert_geq(s.p50_us, 50000);
    cr_assert_leq(s.p50_us, 50000 + 50000 / 8);
    cr_assert_geq(s.p99_us, 99000);
    cr_assert_leq(s.p99_us, 100000); /* never above the largest */
    cr_assert_eq(s.max_us, 100000);
}

Test(hist, small_and_huge_values_have_a_bucket)
{
    static cs_hist_t h;
    cs_hist_sum_t s;
    cs_hist_add(&h, 0);
    cs_hist_read(&h, &s);
    cr_assert_eq(s.p50_us, 0);
    for (uint64_t us = 0; us < 64; us++) {
        static cs_hist_t one;
        one = (cs_hist_t){0};
        cs_hist_add(&one, 1ull << us);
        cs_hist_read(&one, &s);
        cr_assert_eq(s.count, 1);
        cr_assert_eq(s.max_us, 1ull << us);
        cr_assert_leq(s.p50_us, 1ull << us);
        cr_assert(us >= 27 || s.p50_us == 1ull << us, "%llu", (unsigned long long)s.p50_us);
    }
    cs_hist_add(&h, UINT64_MAX);
    cs_hist_read(&h, &s);
    cr_assert_eq(s.count, 2);
}

static uint64_t asked(cs_hits_t *h, uint64_t now_us, uint32_t n_steps)
{
    cs_hits_sum_t s;
    cs_hits_read(h, now_us, n_steps, &s);
    return s.asked_blocks;
}

Test(hist, windows_count_what_is_inside_and_forget_the_rest)
{
    static cs_hits_t h;
    uint64_t t = 5000 * CS_HITS_STEP_US;
    cs_hits_init(&h, t);
    cs_hits_add(&h, t, &(cs_hits_sum_t){.asked_blocks = 100, .hit_blocks = 40});
    cs_hits_add(&h, t + 1, &(cs_hits_sum_t){.asked_blocks = 1});
    cr_assert_eq(asked(&h, t + CS_HITS_STEP_US - 1, 1), 101);
    cr_assert_eq(asked(&h, t + CS_HITS_STEP_US, 1), 0);
    cr_assert_eq(asked(&h, t + CS_HITS_STEP_US, 6), 101);
    cr_assert_eq(asked(&h, t + 6 * CS_HITS_STEP_US, 6), 0);
    cr_assert_eq(asked(&h, t + 59 * CS_HITS_STEP_US, 60), 101);
    cs_hits_add(&h, t + 59 * CS_HITS_STEP_US, &(cs_hits_sum_t){.asked_blocks = 7});
    cr_assert_eq(asked(&h, t + 60 * CS_HITS_STEP_US, 60), 7);
    cr_assert_eq(asked(&h, t + 60 * CS_HITS_STEP_US, CS_HITS_STEPS), 108);
    cr_assert_eq(asked(&h, t + 359 * CS_HITS_STEP_US, CS_HITS_STEPS), 108);
    cr_assert_eq(asked(&h, t + 360 * CS_HITS_STEP_US, CS_HITS_STEPS), 7);
    cr_assert_eq(asked(&h, t + 100000 * CS_HITS_STEP_US, CS_HITS_STEPS), 0);
    cs_hits_add(&h, t, &(cs_hits_sum_t){.asked_blocks = 3}); /* a clock that went back */
    cr_assert_eq(asked(&h, t, 1), 3);
    cs_hits_fini(&h);
}
