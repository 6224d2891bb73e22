/* How many proposals go into a pass, in a world of given costs and chances. */
#include <math.h>

#include "speculate/cascade.h"
#include "support/vc_test.h"

static double uniform(uint64_t *s)
{
    *s += 0x9e3779b97f4a7c15u;
    uint64_t z = *s;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static void fill(node_proposal_t *p, double chance)
{
    for (uint32_t i = 0; i < NODE_SOURCE_MAX; i++)
        p[i] = (node_proposal_t){i, chance};
}

typedef struct {
    double one_us, row_us, chance, noise;
    uint64_t rng;
} world_t;

/* Tokens per pass of one row over `passes`; fixed >= 0: that many proposals each time. */
static double play(const world_t *w, int fixed, uint32_t passes, node_cascade_t *c)
{
    node_proposal_t p[NODE_SOURCE_MAX];
    double us = 0, tokens = 0;
    uint64_t rng = w->rng;
    fill(p, w->chance);
    for (uint32_t i = 0; i < passes; i++) {
        uint32_t k = fixed >= 0 ? (uint32_t)fixed : node_cascade_choose(c, p, NODE_SOURCE_MAX), hits = 0;
        while (hits < k && uniform(&rng) < w->chance)
            hits++;
        double t = w->one_us + k * w->row_us;
        us += t;
        tokens += 1 + hits;
        if (fixed < 0)
            node_cascade_end(c, 1 + k, k, 1 + hits, t * (1 + w->noise * uniform(&rng)));
    }
    return tokens / us * w->one_us;
}

Test(cascade, finds_about_the_best_number_at_any_cost_and_chance)
{
    const double rows[] = {0.05, 0.1, 0.25, 0.5, 0.9}, chances[] = {0.05, 0.3, 0.6, 0.8, 0.95, 1};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 6; j++) {
            world_t w = {5000, 5000 * rows[i], chances[j], 0.2, 17};
            node_cascade_t c;
            node_cascade_init(&c, true);
            double best = 0, got = play(&w, -1, 3000, &c);
            for (int k = 0; k <= (int)NODE_SOURCE_MAX; k++)
                best = fmax(best, play(&w, k, 3000, NULL));
            cr_assert_gt(got, 0.92 * best, "row %.2f, chance %.2f: %.3f, best %.3f", rows[i], chances[j], got, best);
        }
}

Test(cascade, proposals_without_a_chance_and_none_at_all_take_no_row)
{
    node_cascade_t c;
    node_proposal_t p[NODE_SOURCE_MAX];
    node_cascade_init(&c, false);
    fill(p, 0);
    cr_assert_eq(node_cascade_choose(&c, p, NODE_SOURCE_MAX), 0);
    cr_assert_eq(node_cascade_choose(&c, p, 0), 0);
    fill(p, 1);
    cr_assert_eq(node_cascade_choose(&c, p, NODE_SOURCE_MAX), NODE_SOURCE_MAX);
    p[4].chance = 0.01;
    cr_assert_eq(node_cascade_choose(&c, p, NODE_SOURCE_MAX), 4);
}

Test(cascade, one_odd_measurement_does_not_end_it)
{
    node_cascade_t c;
    node_proposal_t p[NODE_SOURCE_MAX];
    node_cascade_init(&c, false);
    fill(p, 0.7);
    node_cascade_end(&c, 1, 0, 1, 1000);
    uint32_t before = node_cascade_choose(&c, p, NODE_SOURCE_MAX);
    cr_assert_gt(before, 0);
    for (uint32_t k = 1; k <= NODE_SOURCE_MAX; k++)
        node_cascade_end(&c, 1 + k, k, 1, 1e6); /* a thousand times what it should be: the machine was busy */
    cr_assert_lt(node_cascade_choose(&c, p, NODE_SOURCE_MAX), before);
    uint32_t passes = 0;
    for (uint32_t k = 0; passes < 500 && (k = node_cascade_choose(&c, p, NODE_SOURCE_MAX)) < before; passes++)
        node_cascade_end(&c, 1 + k, k, 1, 1000 * (1 + NODE_CASCADE_ROW * k));
    cr_assert_lt(passes, 500);
}

Test(cascade, measured_passes_begin_plain_and_are_plain_now_and_then)
{
    node_cascade_t c;
    node_proposal_t p[NODE_SOURCE_MAX];
    uint32_t plain = 0;
    node_cascade_init(&c, true);
    fill(p, 1);
    cr_assert_eq(node_cascade_choose(&c, p, NODE_SOURCE_MAX), 0);
    for (uint32_t i = 0; i < 10 * (NODE_CASCADE_RENEW + 1); i++) {
        uint32_t k = node_cascade_choose(&c, p, NODE_SOURCE_MAX);
        node_cascade_end(&c, 1 + k, k, 1 + k, 1000 + 100 * k);
        plain += !k;
    }
    cr_assert_eq(plain, 10);
}

Test(cascade, passes_that_are_no_steps_tell_nothing)
{
    node_cascade_t c, same;
    node_cascade_init(&c, true);
    node_cascade_end(&c, 1, 0, 1, 1000);
    same = c;
    node_cascade_end(&c, 0, 0, 0, 50);
    node_cascade_end(&c, NODE_CASCADE_ROWS + 1, 0, 1, 1e6);
    cr_assert_eq(c.row, same.row);
    cr_assert_eq(c.one_us, same.one_us);
    cr_assert_eq(c.sum_tokens, same.sum_tokens);
}
