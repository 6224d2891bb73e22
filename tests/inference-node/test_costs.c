/*
 * Step costs of an engine: what is measured separates weights and attention, requests correct it, and a compressor's
 * drafters are remembered. Times of this machine are not looked at.
 */
#include <math.h>
#include <string.h>

#include "speculate/costs.h"
#include "support/generation.h"

/* 1, 2, 4, ... rows: 4, 8, 16, ... ms and as many us a token. */
static node_costs_t known_costs(void)
{
    node_costs_t c = {.known = true};
    for (uint32_t i = 0; i < NODE_LENGTH_COSTS; i++) {
        c.weights_us[i] = 4000.0 * (1u << i);
        c.token_us[i] = 1.0 * (1u << i);
        c.scale[i] = 1;
    }
    return c;
}

static node_body_t body_of(uint32_t n_tokens, double share)
{
    node_body_t b = {.n_tokens = n_tokens, .dims = {30, 3, 64}};
    b.bytes = (uint64_t)(share * 4 * 30 * 3 * 64 * n_tokens);
    return b;
}

Test(costs, nothing_known_expects_nothing)
{
    node_costs_t c = {0};
    node_length_costs_t out;
    node_body_t body = body_of(1024, 0.5);
    node_costs_at(&c, 2000, &body, "rot", &out);
    cr_assert_eq(out.verify_us[0], 0);
    cr_assert_eq(out.draft_us, 0);
}

Test(costs, a_pass_grows_with_the_context_and_a_draft_step_by_the_bytes_of_its_body)
{
    node_costs_t c = known_costs();
    node_length_costs_t out;
    node_body_t body = body_of(1024, 0.25);
    node_costs_at(&c, 1100, NULL, NULL, &out);
    cr_assert_float_eq(out.verify_us[0], 4000 + 1100, 1e-6);
    cr_assert_float_eq(out.verify_us[3], 8 * (4000 + 1100), 1e-6);
    cr_assert_eq(out.draft_us, 0);
    node_costs_at(&c, 1100, &body, "rot", &out);
    cr_assert_float_eq(out.draft_us, 4000 + 256 + (1100 - 1024), 1);
}

/* A request that measured plain passes and passes of 8 drafts, all of them accepted or none. */
static node_length_t request(const node_costs_t *c, const node_body_t *body, double one, double nine, double step,
                             bool good)
{
    node_length_t l;
    node_length_costs_t expected;
    node_length_init(&l, 64);
    node_costs_expect_chance(c, "rot", &l);
    node_costs_at(c, 1100, body, "rot", &expected);
    node_length_expect(&l, &expected);
    for (int i = 0; i < 20; i++) {
        node_length_end(&l, &(node_length_round_t){0, 0, 1, 0, one});
        node_length_begin(&l);
        for (int k = 0; k < 8; k++)
            node_length_more(&l, 1.2);
        l.n_round = 8;
        node_length_end(&l, &(node_length_round_t){8, good ? 8 : 0, good ? 9 : 1, 8 * step, nine});
    }
    return l;
}

Test(costs, a_calibration_beside_other_work_is_put_right_by_the_first_request)
{
    node_costs_t c = known_costs();
    node_length_costs_t out;
    node_body_t body = body_of(1024, 0.25);
    node_length_t l = request(&c, &body, 1020, 3000, 800, true);
    node_costs_learn(&c, 1100, &body, "rot", &l);
    node_costs_at(&c, 1100, &body, "rot", &out);
    cr_assert_float_eq(out.verify_us[0], 1020, 1);
    cr_assert_lt(out.verify_us[4], 7000);
    cr_assert_float_eq(out.draft_us, 800, 60);
}

Test(costs, passes_that_waited_for_a_link_change_nothing)
{
    node_costs_t c = known_costs();
    node_length_costs_t out;
    node_body_t body = body_of(1024, 0.25);
    node_length_t l = request(&c, &body, 90000, 95000, 4000, true);
    node_costs_learn(&c, 1100, &body, "rot", &l);
    node_costs_at(&c, 1100, &body, "rot", &out);
    cr_assert_float_eq(out.verify_us[0], 5100, 1e-6);
    cr_assert_float_eq(out.draft_us, 4000, 60, "but the draft step is one");
}

Test(costs, a_compressor_is_remembered_by_name_and_the_least_used_one_forgotten)
{
    node_costs_t c = known_costs();
    node_body_t body = body_of(1024, 0.25);
    node_length_t bad = request(&c, &body, 5000, 20000, 4000, false),
                  good = request(&c, &body, 5000, 20000, 4000, true);
    node_length_t next;
    node_costs_learn(&c, 1100, &body, "rot", &bad);
    node_costs_learn(&c, 1100, &body, "kivi", &good);
    node_length_init(&next, 64);
    node_costs_expect_chance(&c, "rot", &next);
    cr_assert_lt(node_length_mean_chance(&next), 0.3);
    node_length_init(&next, 64);
    node_costs_expect_chance(&c, "kivi", &next);
    cr_assert_gt(node_length_mean_chance(&next), 0.95);
    for (uint32_t i = 0; i < NODE_COSTS_NAMES - 1; i++) { /* takes the place of all but the newest */
        char name[20];
        snprintf(name, sizeof name, "other%u", i);
        node_costs_learn(&c, 1100, &body, name, &good);
    }
    node_length_t fresh;
    node_length_init(&fresh, 64);
    node_length_init(&next, 64);
    node_costs_expect_chance(&c, "rot", &next);
    cr_assert_eq(node_length_mean_chance(&next), node_length_mean_chance(&fresh));
    node_costs_expect_chance(&c, "kivi", &next);
    cr_assert_gt(node_length_mean_chance(&next), 0.95);
}

Test(costs, of_an_engine_are_finite_and_grow_with_the_rows)
{
    gen_model_t model;
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    gen_model_open(&model, &o);
    node_engine_t *engine = gen_engine(&model, 2, NODE_ISA_AUTO);
    node_costs_t c = {0};
    GEN_OK(node_costs_measure(&c, engine, vc_clock_system(), &gen_err));
    cr_assert(c.known);
    for (uint32_t i = 0; i < NODE_LENGTH_COSTS; i++) {
        cr_assert(isfinite(c.weights_us[i]) && isfinite(c.token_us[i]) && c.token_us[i] >= 0);
        if (i > 0)
            cr_assert(c.weights_us[i] >= c.weights_us[i - 1] && c.token_us[i] >= c.token_us[i - 1]);
    }
    node_engine_destroy(engine);
    gen_model_close(&model);
}
