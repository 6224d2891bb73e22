/* Whether a batch drafts: simulated batches in which drafting gains or loses, and what finding that out costs. */
#include "batch/gain.h"
#include "support/vc_test.h"

enum { N = 4 };

typedef struct {
    double plain_us; /* a plain iteration of all */
    double gain;     /* of drafting over it */
    double us, tokens, plain_tokens;
} world_t;

/* Rounds of three tokens by turns while drafting is on; plain iterations while it is off. */
static void play(node_gain_t *g, world_t *w, uint32_t n_tokens)
{
    uint32_t luck = 0;
    for (double end = w->tokens + n_tokens; w->tokens < end;) {
        if (node_gain_may_draft(g, N)) {
            uint32_t tokens = 2 + luck++ % 3;
            double us = 3 * w->plain_us / N / w->gain;
            node_gain_round(g, N, 8, tokens, us);
            w->us += us;
            w->tokens += tokens;
        } else {
            node_gain_plain(g, N, 8, w->plain_us);
            for (int i = 0; i < N; i++)
                node_gain_round(g, N, 8, 1, w->plain_us / N);
            w->us += w->plain_us;
            w->tokens += N;
            w->plain_tokens += N;
        }
    }
}

Test(gain, drafting_goes_on_where_it_gains)
{
    node_gain_t g;
    world_t w = {.plain_us = 10000, .gain = 1.2};
    node_gain_init(&g);
    play(&g, &w, 4000);
    cr_assert(node_gain_may_draft(&g, N));
    cr_assert_lt(w.plain_tokens, 0.03 * w.tokens);
    cr_assert_gt(w.plain_tokens, 0); /* it looked */
}

Test(gain, a_loss_ends_it_and_trials_cost_a_hundredth)
{
    const double gains[] = {0.96, 0.8, 0.4};
    for (int i = 0; i < 3; i++) {
        node_gain_t g;
        world_t w = {.plain_us = 10000, .gain = gains[i]};
        node_gain_init(&g);
        play(&g, &w, 400); /* the first trial is not paid for yet */
        cr_assert_gt(w.plain_tokens, 0.5 * w.tokens, "gain %g: %g plain of %g", gains[i], w.plain_tokens, w.tokens);
        w.us = w.tokens = 0;
        play(&g, &w, 8000);
        double plain = w.tokens * w.plain_us / N;
        cr_assert_lt(w.us, 1.03 * plain, "gain %g: %g of plain decoding", gains[i], plain / w.us);
    }
}

Test(gain, what_begins_to_pay_is_found)
{
    node_gain_t g;
    world_t w = {.plain_us = 10000, .gain = 0.9};
    node_gain_init(&g);
    play(&g, &w, 1000);
    w.gain = 1.3;
    play(&g, &w, 4000);
    w.plain_tokens = 0;
    play(&g, &w, 1000);
    cr_assert_lt(w.plain_tokens, 50);
}

Test(gain, other_numbers_of_requests_have_answers_of_their_own)
{
    node_gain_t g;
    world_t w = {.plain_us = 10000, .gain = 0.7};
    node_gain_init(&g);
    while (node_gain_may_draft(&g, N) || w.plain_tokens == 0)
        play(&g, &w, 4);
    cr_assert(node_gain_may_draft(&g, 1));
    cr_assert(node_gain_may_draft(&g, 8));
    cr_assert_not(node_gain_may_draft(&g, 3));
}

Test(gain, trials_come_where_a_source_keeps_all_iterations_from_being_plain)
{
    node_gain_t g;
    world_t w = {.plain_us = 10000, .gain = 0.7};
    node_gain_init(&g);
    while (node_gain_may_draft(&g, N) || node_gain_looks(&g, N))
        play(&g, &w, 4);
    uint32_t rounds = 0;
    for (; !node_gain_may_draft(&g, N) && rounds < 100000; rounds++) {
        cr_assert_not(node_gain_looks(&g, N));
        node_gain_elsewhere(&g, N, w.plain_us / N);
    }
    cr_assert_gt(rounds, 100); /* it was paid for */
    cr_assert_lt(rounds, 100000);
    for (uint32_t i = 0; i < 1000; i++)
        node_gain_elsewhere(&g, N, 1e9);
    cr_assert(node_gain_may_draft(&g, N), "a source's rounds tell nothing of drafting");
}

Test(gain, a_look_ends_where_no_iteration_is_plain)
{
    node_gain_t g;
    uint32_t rounds = 0;
    node_gain_init(&g);
    for (; node_gain_may_draft(&g, N); rounds++)
        node_gain_round(&g, N, 8, 1, 1000);
    cr_assert_lt(rounds, 20);
    cr_assert(node_gain_looks(&g, N));
    for (rounds = 0; !node_gain_may_draft(&g, N); rounds++)
        if (rounds % 2)
            node_gain_round(&g, N, 8, 1, 1000);
        else
            node_gain_elsewhere(&g, N, 1000);
    cr_assert_lt(rounds, 100);
}

/* Prompts of others, say, share every iteration. */
Test(gain, looks_that_see_nothing_take_little_of_the_drafting)
{
    for (int seen = 0; seen < 2; seen++) {
        node_gain_t g;
        uint32_t n_drafted = 0, n_looks = 0;
        const uint32_t n = 20000;
        node_gain_init(&g);
        for (int i = 0; seen && i < 10; i++)
            node_gain_plain(&g, N, 8, 10000);
        for (uint32_t i = 0; i < n; i++) {
            bool drafts = node_gain_may_draft(&g, N);
            n_drafted += drafts;
            node_gain_round(&g, N, 8, drafts ? 3 : 1, 10000.0 / N);
            n_looks += drafts && node_gain_looks(&g, N);
        }
        cr_assert_gt(n_drafted, 0.9 * n, "%u of %u rounds", n_drafted, n);
        cr_assert_gt(n_looks, 10); /* it may have become possible */
    }
}
