/*
 * Adaptive draft length in a world of given costs and acceptance: it finds about the best static length, goes to zero
 * where drafting does not pay, keeps probes cheap, and notices when the world changes.
 */
#include <math.h>

#include "speculate/length.h"
#include "support/vc_test.h"

typedef struct {
    double draft_us, verify_us, row_us; /* verify pass: verify_us + row_us x drafts */
    double chance;                      /* of each draft */
    double margin;
    uint64_t rng;
} world_t;

static double uniform(world_t *w)
{
    w->rng += 0x9e3779b97f4a7c15u;
    uint64_t z = w->rng;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

typedef struct {
    double us, tokens, drafts, rounds;
} total_t;

/* One round of x drafts; returns what it was for node_length_end. */
static node_length_round_t play(world_t *w, uint32_t x, total_t *t)
{
    uint32_t a = 0;
    while (a < x && uniform(w) < w->chance)
        a++;
    node_length_round_t r = {x, a, a + 1, x * w->draft_us, w->verify_us + x * w->row_us};
    t->us += r.draft_us + r.verify_us;
    t->tokens += a + 1;
    t->drafts += x;
    t->rounds++;
    return r;
}

static void run_adaptive(node_length_t *l, world_t *w, double tokens, total_t *t)
{
    for (double goal = t->tokens + tokens; t->tokens < goal;) {
        uint32_t x = 0;
        if (node_length_begin(l)) {
            do
                x++;
            while (node_length_more(l, w->margin));
        }
        node_length_round_t r = play(w, x, t);
        node_length_end(l, &r);
    }
}

static double static_rate(world_t w, uint32_t x)
{
    total_t t = {0};
    while (t.tokens < 20000)
        play(&w, x, &t);
    return t.tokens / t.us;
}

Test(length, is_within_five_percent_of_the_best_static_length)
{
    const double chances[] = {0.6, 0.8, 0.9, 0.97, 0.99};
    for (int i = 0; i < 5; i++) {
        world_t w = {4000, 9000, 900, chances[i], 1.2, 17};
        double best = 0;
        for (uint32_t x = 0; x <= 40; x++)
            best = fmax(best, static_rate(w, x));
        node_length_t l;
        node_length_init(&l, 40);
        total_t t = {0};
        run_adaptive(&l, &w, 500, &t); /* learns */
        t = (total_t){0};
        run_adaptive(&l, &w, 20000, &t);
        cr_assert(t.tokens / t.us > 0.95 * best, "chance %g: %g of the best", chances[i], t.tokens / t.us / best);
    }
}

Test(length, is_zero_where_drafting_cannot_pay_and_probes_cost_at_most_two_percent)
{
    const world_t worlds[] = {
        {9000, 9000, 900, 1.0, 9, 1},  /* a draft step as dear as decoding: even all accepted gains nothing */
        {4000, 9000, 900, 0.05, 1, 2}, /* a bad drafter */
        {9500, 9000, 2500, 0.9, 1, 3},
    };
    for (int i = 0; i < 3; i++) {
        world_t w = worlds[i];
        node_length_t l;
        node_length_init(&l, 64);
        total_t t = {0};
        run_adaptive(&l, &w, 2000, &t);
        cr_assert(t.us / t.tokens < 1.02 * w.verify_us, "world %d: %g of plain", i, t.us / t.tokens / w.verify_us);
        cr_assert_gt(t.drafts, 2);
    }
}

Test(length, the_first_round_is_plain_and_the_first_drafts_are_a_probe)
{
    node_length_t l;
    node_length_init(&l, 64);
    cr_assert_not(node_length_begin(&l));
    node_length_end(&l, &(node_length_round_t){0, 0, 1, 0, 8000});
    cr_assert(node_length_begin(&l));
    cr_assert_not(node_length_more(&l, 10)); /* one token, however sure */
    node_length_end(&l, &(node_length_round_t){1, 1, 2, 9000, 8500});
    uint32_t n_plain = 0; /* a draft step as dear as decoding: probes may lose a five-hundredth of the plain time */
    for (; !node_length_begin(&l); n_plain++)
        node_length_end(&l, &(node_length_round_t){0, 0, 1, 0, 8000});
    double lost = (9000 + 500 - 8000) + (9000 + 500 - 8000 * node_length_mean_chance(&l)); /* the first, and this one */
    cr_assert_float_eq(n_plain, lost / (0.002 * 8000), 10, "%u plain rounds before the next probe", n_plain);
    cr_assert_not(node_length_more(&l, 10));
}

Test(length, never_exceeds_its_maximum)
{
    for (uint32_t max = 0; max < 6; max++) {
        world_t w = {10, 9000, 1, 1.0, 9, 1};
        node_length_t l;
        node_length_init(&l, max);
        total_t t = {0};
        run_adaptive(&l, &w, 300, &t);
        cr_assert_leq(t.drafts, t.rounds * max);
        if (max)
            cr_assert_gt(t.drafts, t.rounds * max * 0.8);
    }
    node_length_t l;
    node_length_init(&l, 100000);
    cr_assert_eq(l.max_draft, NODE_LENGTH_MAX);
}

Test(length, recovers_when_a_bad_drafter_becomes_good)
{
    world_t w = {3000, 9000, 900, 0.02, 1, 5};
    node_length_t l;
    node_length_init(&l, 32);
    total_t t = {0};
    run_adaptive(&l, &w, 1000, &t);
    w.chance = 0.98;
    run_adaptive(&l, &w, 4000, &t); /* probes raise the estimate */
    t = (total_t){0};
    run_adaptive(&l, &w, 2000, &t);
    double best = 0;
    for (uint32_t x = 0; x <= 32; x++)
        best = fmax(best, static_rate(w, x));
    cr_assert(t.tokens / t.us > 0.9 * best, "%g of the best", t.tokens / t.us / best);
}

Test(length, sure_tokens_are_followed_by_more_drafts_than_doubtful_ones)
{
    node_length_t l;
    node_length_init(&l, 64);
    node_length_end(&l, &(node_length_round_t){0, 0, 1, 0, 9000});
    for (int i = 0; i < 200; i++) { /* margin 10 is always accepted, 0.01 half the time */
        l.n_round = 0;
        node_length_begin(&l);
        node_length_more(&l, 10);
        node_length_more(&l, 0.01);
        node_length_end(&l, &(node_length_round_t){2, i % 2 ? 2 : 1, i % 2 ? 3 : 2, 6000, 10000});
    }
    cr_assert_gt(node_length_chance(&l, 10), 0.99);
    cr_assert(fabs(node_length_chance(&l, 0.01) - 0.5) < 0.1);
    cr_assert_gt(node_length_mean_chance(&l), 0.6);
    uint32_t sure = 0, doubtful = 0;
    node_length_begin(&l);
    do
        sure++;
    while (node_length_more(&l, 10));
    node_length_begin(&l);
    do
        doubtful++;
    while (node_length_more(&l, 0.01));
    cr_assert_gt(sure, doubtful);
}

Test(length, a_greater_margin_never_has_the_smaller_chance)
{
    node_length_t l;
    node_length_init(&l, 64);
    node_length_end(&l, &(node_length_round_t){0, 0, 1, 0, 9000});
    for (int i = 0; i < 60; i++) { /* by luck the doubtful ones were right and the sure ones were not */
        double margin = i % 2 ? 2.5 : 0.3;
        node_length_begin(&l);
        node_length_more(&l, margin);
        node_length_end(&l, &(node_length_round_t){1, i % 2 ? 0 : 1, 1, 3000, 10000});
    }
    double before = 0;
    for (double margin = 0.01; margin < 8; margin *= 1.2) {
        cr_assert_geq(node_length_chance(&l, margin), before);
        before = node_length_chance(&l, margin);
    }
    cr_assert_float_eq(node_length_chance(&l, 2.5), node_length_chance(&l, 0.3), 1e-9);
}

static node_length_costs_t costs_of(double draft_us, double first, double row)
{
    node_length_costs_t c = {.draft_us = draft_us};
    for (uint32_t i = 0; i < NODE_LENGTH_COSTS; i++)
        c.verify_us[i] = first + row * ((1u << i) - 1);
    return c;
}

/* Begins the second round of a request: the first is plain. */
static bool begins(node_length_t *l, const node_length_costs_t *costs)
{
    node_length_expect(l, costs);
    cr_assert_not(node_length_begin(l));
    node_length_end(l, &(node_length_round_t){0, 0, 1, 0, 9000});
    return node_length_begin(l);
}

Test(length, with_expected_costs_the_second_round_drafts_where_that_pays)
{
    node_length_t l;
    node_length_costs_t good = costs_of(3000, 9000, 500), dear = costs_of(9000, 9000, 500);
    node_length_init(&l, 64);
    cr_assert(begins(&l, &good));
    cr_assert(node_length_more(&l, 10));
    node_length_init(&l, 64);
    cr_assert_not(begins(&l, &dear));
    node_length_init(&l, 64);
    node_length_expect_chance(&l, 0.2, 50);
    cr_assert_not(begins(&l, &good), "a drafter that was bad before");
}

Test(length, one_measured_width_tells_about_the_others)
{
    node_length_t l;
    node_length_init(&l, 64);
    node_length_costs_t c = costs_of(3000, 9000, 500);
    node_length_expect(&l, &c);
    cr_assert_float_eq(node_length_verify_us(&l, 9), 13000, 1e-6);
    cr_assert_float_eq(node_length_verify_us(&l, 200), 9000 + 199 * 500, 1e-6);
    node_length_end(&l, &(node_length_round_t){0, 0, 1, 0, 10000});
    cr_assert_float_eq(node_length_verify_us(&l, 1), 10000, 1e-6);
    cr_assert_float_eq(node_length_verify_us(&l, 9), 14000, 1e-6); /* as much longer */
    c = costs_of(3300, 9500, 600);                                 /* the context has grown */
    node_length_expect(&l, &c);
    cr_assert_float_eq(node_length_verify_us(&l, 1), 10500, 1e-6);
    node_length_init(&l, 64);
    node_length_expect(&l, &c);
    node_length_end(&l, &(node_length_round_t){0, 0, 1, 0, 30000}); /* waits for a link */
    cr_assert_float_eq(node_length_verify_us(&l, 16), 30000, 1e-6);
    cr_assert_float_eq(node_length_verify_us(&l, 64), 9500 + 63 * 600, 1e-6);
}

Test(length, a_step_between_one_row_and_two_is_looked_beyond)
{
    node_length_t l;
    node_length_init(&l, 64);
    node_length_costs_t c = costs_of(2000, 9000, 200);
    for (uint32_t i = 1; i < NODE_LENGTH_COSTS; i++)
        c.verify_us[i] += 7000; /* one further draft: 9.2 ms for less than a token of 9 ms; eight: 24 for seven */
    node_length_expect_chance(&l, 0.97, 100);
    uint32_t n = 0;
    cr_assert(begins(&l, &c));
    do
        n++;
    while (node_length_more(&l, 10));
    cr_assert_gt(n, 8);
}

Test(length, verify_costs_interpolate_between_measured_widths)
{
    node_length_t l;
    node_length_init(&l, 64);
    cr_assert_eq(node_length_verify_us(&l, 1), 0);
    node_length_end(&l, &(node_length_round_t){0, 0, 1, 0, 1000});
    cr_assert_float_eq(node_length_verify_us(&l, 1), 1000, 1e-9);
    cr_assert_gt(node_length_verify_us(&l, 9), 1000); /* one width: an assumed slope */
    node_length_end(&l, &(node_length_round_t){8, 8, 9, 1, 1800});
    cr_assert_float_eq(node_length_verify_us(&l, 5), 1400, 1e-9);
    cr_assert_float_eq(node_length_verify_us(&l, 17), 2600, 1e-9);
    cr_assert_float_eq(node_length_verify_us(&l, 1), 1000, 1e-9);
}

/* Rounds on a link draft before any plain pass was seen. */
Test(length, a_narrow_pass_that_was_never_seen_takes_some_time)
{
    node_length_t l;
    node_length_init(&l, 64);
    node_length_end(&l, &(node_length_round_t){8, 8, 9, 1, 1000});
    node_length_end(&l, &(node_length_round_t){40, 8, 9, 1, 9000}); /* along this line one row has less than none */
    cr_assert_gt(node_length_verify_us(&l, 1), 0);
    cr_assert_lt(node_length_verify_us(&l, 1), 1000);
    cr_assert_float_eq(node_length_verify_us(&l, 9), 1000, 1e-9);
}
