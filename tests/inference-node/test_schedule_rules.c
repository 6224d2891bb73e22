/*
 * Single rules of the staggering policy on small cases worked out by hand: late and early data, retries, other budgets,
 * refusals, the baseline, and the planned draft length. Random loads: test_schedule.c.
 */
#include <string.h>

#include "schedule/schedule.h"
#include "support/vc_test.h"

static node_schedule_options_t options(uint32_t window, uint64_t link, uint64_t hold)
{
    node_schedule_options_t o = node_schedule_options_default();
    o.window = window;
    o.patience = window;
    o.max_requests = 64;
    o.max_running = 24;
    o.link_bytes = link;
    o.hold_bytes = hold;
    o.resident_bytes = 1000;
    return o;
}

static node_schedule_request_t request(uint64_t full, uint64_t stream, uint32_t remaining, uint32_t x)
{
    /* With certain acceptance and link_us = x + 1 steps the ideal is x: more drafts gain nothing beside a pass of one.
     */
    node_schedule_request_t r = {.full_bytes = full,
                                 .stream_bytes = stream,
                                 .compressed_bytes = 1,
                                 .remaining = remaining,
                                 .cost = {.draft_us = 1, .verify_us = 1, .link_us = x + 1.0, .chance = 1}};
    return r;
}

/* A request alone: 12 bytes over a link of 4, x = 5: bytes in iterations 3, 4 and 5, verified in 5. */
static node_schedule_t *alone(uint64_t *id)
{
    node_schedule_options_t o = options(16, 4, 100);
    node_schedule_t *s;
    node_schedule_request_t r = request(12, 1, 100, 5);
    cr_assert_eq(node_schedule_create(&o, &s, NULL), VC_OK);
    cr_assert_eq(node_schedule_add(s, &r, id, NULL), VC_OK);
    return s;
}

static node_schedule_task_t one(node_schedule_t *s)
{
    node_schedule_task_t t;
    cr_assert_eq(node_schedule_step(s, &t), 1);
    return t;
}

Test(schedule_rules, data_that_comes_late_lets_the_request_draft_on)
{
    uint64_t id;
    node_schedule_t *s = alone(&id);
    for (uint32_t i = 0; i < 3; i++) {
        node_schedule_task_t t = one(s);
        cr_assert_eq(t.action, NODE_SCHEDULE_DRAFT);
        cr_assert_eq(t.link_due, 0);
        node_schedule_end(s);
    }
    cr_assert_eq(one(s).link_due, 4);
    node_schedule_end(s); /* nothing came in iteration 3, so 12 bytes need 4, 5 and 6 */
    for (uint32_t i = 4; i < 6; i++) {
        node_schedule_task_t t = one(s);
        cr_assert_eq(t.action, NODE_SCHEDULE_DRAFT);
        cr_assert_eq(t.n_drafts, i);
        cr_assert_eq(node_schedule_moved(s, id, t.link_due), VC_OK);
        node_schedule_end(s);
    }
    node_schedule_task_t t = one(s);
    cr_assert_eq(t.action, NODE_SCHEDULE_VERIFY);
    cr_assert_eq(t.n_drafts, 6);
    node_schedule_destroy(s);
}

/* The data of `alone` come in its second iteration, four before they are due. */
static void bring_early(node_schedule_t *s, uint64_t id)
{
    (void)one(s);
    node_schedule_end(s);
    node_schedule_task_t t = one(s);
    cr_assert_eq(t.link_due, 0);
    cr_assert_eq(t.link_most, 12);
    cr_assert_eq(node_schedule_moved(s, id, 13), VC_ERR_RANGE);
    cr_assert_eq(node_schedule_moved(s, id, 12), VC_OK);
}

Test(schedule_rules, data_that_comes_early_lets_it_draft_to_the_ideal_length)
{
    uint64_t id;
    node_schedule_t *s = alone(&id);
    bring_early(s, id);
    node_schedule_end(s);
    for (uint32_t i = 2; i < 5; i++) {
        node_schedule_task_t t = one(s);
        cr_assert_eq(t.action, NODE_SCHEDULE_DRAFT);
        cr_assert_eq(t.link_most, 0);
        node_schedule_end(s);
    }
    node_schedule_task_t t = one(s);
    cr_assert_eq(t.action, NODE_SCHEDULE_VERIFY);
    cr_assert_eq(t.n_drafts, 5);
    node_schedule_destroy(s);
}

/* Two that share a link of 4 and their turn: the second's place is later than its ideal length. */
Test(schedule_rules, data_that_comes_early_is_verified_before_its_time_once_there_are_drafts_enough)
{
    uint64_t id, other, link, hold;
    uint32_t offset;
    node_schedule_t *s = alone(&id);
    node_schedule_task_t tasks[2];
    node_schedule_request_t r = request(24, 1, 100, 2); /* six iterations of the link, two drafts would do */
    (void)one(s);
    cr_assert_eq(node_schedule_add(s, &r, &other, NULL), VC_OK);
    node_schedule_end(s);
    cr_assert_eq(node_schedule_step(s, tasks), 2);
    cr_assert(node_schedule_placement(s, other, &offset));
    cr_assert_gt(offset, 4);
    cr_assert_geq(tasks[1].link_most, 24);
    cr_assert_eq(node_schedule_moved(s, other, 24), VC_OK);
    node_schedule_end(s);
    cr_assert_eq(node_schedule_step(s, tasks), 2);
    cr_assert_eq(tasks[1].action, NODE_SCHEDULE_DRAFT);
    node_schedule_end(s);
    cr_assert_eq(node_schedule_step(s, tasks), 2);
    cr_assert_eq(tasks[1].action, NODE_SCHEDULE_VERIFY);
    cr_assert_eq(tasks[1].n_drafts, 2);
    cr_assert_eq(node_schedule_verified(s, other, 3, true, NULL), VC_OK);
    cr_assert_eq(node_schedule_cancel(s, id), VC_OK);
    node_schedule_end(s);
    for (uint32_t o = 0; o < 16; o++) {
        node_schedule_reserved(s, o, &link, &hold);
        cr_assert_eq(link + hold, 0);
    }
    node_schedule_destroy(s);
}

Test(schedule_rules, a_verification_that_is_not_reported_is_tried_again)
{
    uint64_t id;
    node_schedule_t *s = alone(&id);
    node_schedule_task_t t = one(s);
    while (t.action != NODE_SCHEDULE_VERIFY) {
        cr_assert_eq(node_schedule_verified(s, id, 1, false, NULL), VC_ERR_NOT_FOUND);
        cr_assert_eq(node_schedule_moved(s, id, t.link_due), VC_OK);
        node_schedule_end(s);
        t = one(s);
    }
    cr_assert_eq(node_schedule_moved(s, id, t.link_due), VC_OK);
    node_schedule_end(s);
    t = one(s);
    cr_assert_eq(t.action, NODE_SCHEDULE_VERIFY);
    cr_assert_eq(t.n_drafts, 5);
    cr_assert_eq(t.link_due, 0);
    cr_assert_eq(node_schedule_verified(s, id, 7, false, NULL), VC_OK);
    node_schedule_destroy(s);
}

Test(schedule_rules, a_slower_link_moves_reservations_and_is_refused_where_a_request_could_never_run)
{
    uint64_t id, link, hold;
    uint32_t before, after;
    vc_err_t err = {0};
    node_schedule_t *s = alone(&id);
    (void)one(s);
    node_schedule_end(s);
    cr_assert(node_schedule_placement(s, id, &before));
    cr_assert_eq(node_schedule_set_budgets(s, 1, 100, NULL), VC_OK);
    cr_assert(node_schedule_placement(s, id, &after));
    cr_assert_gt(after, before);
    for (uint32_t o = 0; o < 16; o++) {
        node_schedule_reserved(s, o, &link, &hold);
        cr_assert_leq(link, 1);
    }
    cr_assert_eq(node_schedule_set_budgets(s, 4, 3, &err), VC_ERR_RANGE);
    cr_assert_not_null(strstr(err.msg, "could never be verified"));
    node_schedule_destroy(s);
}

Test(schedule_rules, what_could_never_run_is_refused_with_a_sentence)
{
    node_schedule_options_t o = options(8, 4, 20);
    node_schedule_t *s;
    uint64_t id;
    vc_err_t err = {0};
    o.max_requests = o.max_running = 1;
    cr_assert_eq(node_schedule_create(&o, &s, NULL), VC_OK);
    node_schedule_request_t r = request(33, 0, 5, 3); /* 7 x 4 bytes at most */
    cr_assert_eq(node_schedule_add(s, &r, &id, &err), VC_ERR_RANGE);
    cr_assert_not_null(strstr(err.msg, "33 bytes of full KV"));
    r = request(24, 1, 5, 3); /* 20 held before the pass, and 1 in it */
    cr_assert_eq(node_schedule_add(s, &r, &id, &err), VC_ERR_RANGE);
    r = request(23, 1, 5, 3);
    r.compressed_bytes = 1001;
    cr_assert_eq(node_schedule_add(s, &r, &id, &err), VC_ERR_RANGE);
    r = request(23, 1, 0, 3);
    cr_assert_eq(node_schedule_add(s, &r, &id, &err), VC_ERR_RANGE);
    r = request(23, 1, 5, 3);
    r.cost.chance = 1.5;
    cr_assert_eq(node_schedule_add(s, &r, &id, &err), VC_ERR_RANGE);
    r.cost.chance = 1;
    cr_assert_eq(node_schedule_add(s, &r, &id, &err), VC_OK);
    cr_assert_eq(node_schedule_add(s, &r, &id, &err), VC_ERR_BUSY);
    node_schedule_destroy(s);
    o.window = 1;
    cr_assert_eq(node_schedule_create(&o, &s, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "window"));
}

/* Share of the link that twelve requests of 20 bytes use, once the first round is over. */
static double link_use(uint64_t link, uint32_t x, bool *all_at_x)
{
    node_schedule_options_t o = options(32, link, 40);
    node_schedule_task_t tasks[64];
    node_schedule_t *s;
    uint64_t id, moved = 0;
    enum { BEGIN = 40, END = 240 };
    *all_at_x = true;
    cr_assert_eq(node_schedule_create(&o, &s, NULL), VC_OK);
    node_schedule_request_t r = request(20, 2, 1000000, x);
    for (int i = 0; i < 12; i++)
        cr_assert_eq(node_schedule_add(s, &r, &id, NULL), VC_OK);
    for (uint32_t i = 0; i < END; i++) {
        uint32_t n = node_schedule_step(s, tasks);
        for (uint32_t k = 0; k < n; k++) {
            moved += i >= BEGIN ? tasks[k].link_due : 0;
            cr_assert_eq(node_schedule_moved(s, tasks[k].id, tasks[k].link_due), VC_OK);
            if (tasks[k].action != NODE_SCHEDULE_VERIFY)
                continue;
            *all_at_x = *all_at_x && (i < BEGIN || tasks[k].n_drafts == x);
            cr_assert_eq(node_schedule_verified(s, tasks[k].id, 1 + tasks[k].n_drafts / 2, false, NULL), VC_OK);
        }
        node_schedule_end(s);
    }
    node_schedule_destroy(s);
    return (double)moved / (double)(link * (END - BEGIN));
}

Test(schedule_rules, a_scarce_link_is_never_idle_and_an_ample_one_gives_everybody_the_ideal_length)
{
    bool all_at_x;
    cr_assert_geq(link_use(10, 11, &all_at_x), 0.99); /* 12 x 20 bytes in a round of 12: twice what it moves */
    cr_assert_not(all_at_x);
    cr_assert_float_eq(link_use(40, 11, &all_at_x), 0.5, 0.01);
    cr_assert(all_at_x);
}

Test(schedule_rules, lock_step_drafts_and_verifies_all_at_once)
{
    enum { N = 6, X = 7 };
    node_schedule_options_t o = options(16, 4, 100);
    node_schedule_task_t tasks[64];
    node_schedule_t *s;
    uint64_t id[N];
    o.lock_step = true;
    cr_assert_eq(node_schedule_create(&o, &s, NULL), VC_OK);
    node_schedule_request_t r = request(50, 2, 3 * (X + 1), X);
    for (int i = 0; i < N; i++)
        cr_assert_eq(node_schedule_add(s, &r, &id[i], NULL), VC_OK);
    for (uint32_t i = 0; i < 3 * (X + 1); i++) {
        uint32_t n = node_schedule_step(s, tasks);
        uint64_t due = 0;
        cr_assert_eq(n, N);
        for (uint32_t k = 0; k < n; k++) {
            bool last = i % (X + 1) == X;
            cr_assert_eq(tasks[k].action, last ? NODE_SCHEDULE_VERIFY : NODE_SCHEDULE_DRAFT);
            cr_assert_eq(tasks[k].n_drafts, i % (X + 1));
            due += tasks[k].link_due;
            cr_assert_eq(node_schedule_moved(s, tasks[k].id, tasks[k].link_due), VC_OK);
            if (last)
                cr_assert_eq(node_schedule_verified(s, tasks[k].id, X + 1, false, NULL), VC_OK);
        }
        cr_assert_eq(due, i % (X + 1) == X ? N * 50 - X * 4 : 4, "the link in every iteration, the rest in the pass");
        node_schedule_end(s);
    }
    cr_assert_eq(node_schedule_info(s).n_running, 0);
    node_schedule_destroy(s);
}

Test(schedule_rules, the_ideal_length_is_where_tokens_per_time_are_most)
{
    static const double chances[] = {0, 0.3, 0.7, 0.9, 0.97, 1};
    for (uint32_t i = 0; i < 6; i++)
        for (uint32_t k = 0; k < 8; k++) {
            node_schedule_cost_t c = {
                .draft_us = 1, .verify_us = 2 + k, .verify_row_us = 0.1 * k, .link_us = 5.0 * k, .chance = chances[i]};
            uint32_t best = 0;
            double most = 0;
            for (uint32_t x = 0; x <= 40; x++) {
                double us = x + 2 + k + 0.1 * k * x, rate;
                us = us > 5.0 * k ? us : 5.0 * k;
                rate = node_schedule_tokens(chances[i], x) / us;
                if (rate > most * (1 + 1e-12)) {
                    most = rate;
                    best = x;
                }
            }
            cr_assert_eq(node_schedule_ideal(&c, 40), best);
        }
    node_schedule_cost_t dear = {.draft_us = 1, .verify_us = 1, .chance = 0.9};
    cr_assert_eq(node_schedule_ideal(&dear, 40), 0, "a draft as dear as a verified token does not pay");
}

Test(schedule_rules, costs_come_from_a_session_that_measured_them)
{
    node_length_t l;
    node_length_init(&l, 60);
    (void)node_length_begin(&l);
    node_length_end(&l, &(node_length_round_t){.n_tokens = 1, .verify_us = 1000});
    cr_assert_float_eq(node_schedule_cost_of(&l, 0).draft_us, 1000, 1e-9);
    (void)node_length_begin(&l);
    for (int i = 0; i < 16; i++)
        (void)node_length_more(&l, 9);
    node_length_end(&l, &(node_length_round_t){16, 16, 17, 16 * 300, 1000 + 16 * 50});
    node_schedule_cost_t c = node_schedule_cost_of(&l, 7);
    cr_assert_float_eq(c.draft_us, 300, 1e-6);
    cr_assert_float_eq(c.verify_us, 1000, 1e-6);
    cr_assert_float_eq(c.verify_row_us, 50, 1e-6);
    cr_assert_float_eq(c.link_us, 7, 0);
    cr_assert_gt(node_schedule_ideal(&c, 60), 1);
}

Test(schedule_rules, a_queued_request_is_not_overtaken_by_a_younger_one_that_would_fit)
{
    node_schedule_options_t o = options(16, 4, 100);
    node_schedule_task_t tasks[64];
    node_schedule_t *s;
    uint64_t id;
    cr_assert_eq(node_schedule_create(&o, &s, NULL), VC_OK);
    node_schedule_request_t busy = request(40, 1, 100, 15), large = request(40, 1, 100, 15),
                            small = request(4, 1, 100, 15);
    cr_assert_eq(node_schedule_add(s, &busy, &id, NULL), VC_OK);
    (void)node_schedule_step(s, tasks);
    node_schedule_end(s);
    cr_assert_eq(node_schedule_add(s, &large, &id, NULL), VC_OK);
    cr_assert_eq(node_schedule_add(s, &small, &id, NULL), VC_OK);
    cr_assert_eq(node_schedule_step(s, tasks), 1, "the large one has no place yet, the small one waits behind it");
    cr_assert_eq(node_schedule_info(s).n_queued, 2);
    node_schedule_destroy(s);
}

Test(schedule_rules, full_kv_in_memory_is_verified_at_the_ideal_length_or_when_drafts_are_enough)
{
    node_schedule_options_t o = options(16, 0, 0);
    node_schedule_request_t r = request(0, 0, 100, 5);
    node_schedule_t *s;
    uint64_t id;
    cr_assert_eq(node_schedule_create(&o, &s, NULL), VC_OK);
    cr_assert_eq(node_schedule_add(s, &r, &id, NULL), VC_OK);
    node_schedule_task_t t;
    for (uint32_t i = 0; i < 5; i++) {
        t = one(s);
        cr_assert_eq(t.action, NODE_SCHEDULE_DRAFT);
        node_schedule_end(s);
    }
    t = one(s);
    cr_assert_eq(t.action, NODE_SCHEDULE_VERIFY);
    cr_assert_eq(t.n_drafts, 5);
    cr_assert_eq(node_schedule_drafted(s, id, 1, false), VC_ERR_RANGE, "it does not draft now");
    cr_assert_eq(node_schedule_verified(s, id, 6, false, NULL), VC_OK);
    node_schedule_end(s);
    t = one(s);
    cr_assert_eq(t.action, NODE_SCHEDULE_DRAFT);
    cr_assert_eq(node_schedule_drafted(s, id, 3, true), VC_OK, "three in one pass, a fourth does not pay");
    node_schedule_end(s);
    t = one(s);
    cr_assert_eq(t.action, NODE_SCHEDULE_VERIFY);
    cr_assert_eq(t.n_drafts, 3);
    node_schedule_destroy(s);
}

Test(schedule_rules, enough_drafts_wait_for_their_data_and_are_verified_when_it_came)
{
    uint64_t id;
    node_schedule_t *s = alone(&id);
    (void)one(s);
    cr_assert_eq(node_schedule_drafted(s, id, 1, true), VC_OK);
    node_schedule_end(s);
    node_schedule_task_t t = one(s);
    cr_assert_eq(t.action, NODE_SCHEDULE_WAIT);
    cr_assert_eq(t.link_most, 12);
    cr_assert_eq(node_schedule_moved(s, id, 12), VC_OK);
    node_schedule_end(s);
    t = one(s);
    cr_assert_eq(t.action, NODE_SCHEDULE_VERIFY);
    cr_assert_eq(t.n_drafts, 1);
    node_schedule_destroy(s);
}

Test(schedule_rules, full_kv_that_has_grown_takes_the_link_longer)
{
    uint64_t id;
    node_schedule_t *s = alone(&id);
    node_schedule_task_t t = one(s);
    cr_assert_eq(node_schedule_resize(s, id, 16, 1), VC_ERR_NOT_FOUND, "a verification is reserved for what it was");
    for (; t.action != NODE_SCHEDULE_VERIFY; t = one(s)) {
        cr_assert_eq(node_schedule_moved(s, id, t.link_due), VC_OK);
        node_schedule_end(s);
    }
    cr_assert_eq(node_schedule_moved(s, id, t.link_due), VC_OK);
    cr_assert_eq(node_schedule_verified(s, id, 1, false, NULL), VC_OK);
    cr_assert_eq(node_schedule_resize(s, id, 4000, 1), VC_ERR_RANGE);
    cr_assert_eq(node_schedule_resize(s, id, 20, 1), VC_OK);
    node_schedule_end(s);
    uint64_t moved = 0;
    for (t = one(s); t.action != NODE_SCHEDULE_VERIFY; t = one(s)) {
        cr_assert_eq(node_schedule_moved(s, id, t.link_due), VC_OK);
        moved += t.link_due;
        node_schedule_end(s);
    }
    cr_assert_eq(moved + t.link_due, 20);
    node_schedule_destroy(s);
}

Test(schedule_rules, a_wanted_length_stands_whatever_the_rates_say)
{
    node_schedule_cost_t c = {.verify_us = 1, .min_draft = 7};
    cr_assert_eq(node_schedule_ideal(&c, 20), 7);
    cr_assert_eq(node_schedule_ideal(&c, 5), 5);
    c.chance = 1;
    cr_assert_eq(node_schedule_ideal(&c, 20), 20, "more where more are better");
}
