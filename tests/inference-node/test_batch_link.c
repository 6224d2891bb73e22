/*
 * Memory and link of a batch with full KV in files: what the schedule may plan with is never more than requests can
 * have on the way, and where everybody waits for buffers that others hold the batch goes on all the same.
 */
#include "batch/batch_int.h"
#include "schedule/schedule_int.h"
#include "support/batching.h"
#include "support/tmpdir.h"

enum { N = 3, N_LAYER = 6, PAGES = 5 };

/* Requests much smaller than the longest that the batch was made for (1,024 positions), and unlike each other. */
static const uint32_t lengths[N] = {705, 450, 577};
static uint32_t prompts[N][705];

typedef struct {
    batching_t f;
    batching_run_t run;
    vt_tmpdir_t dir;
    node_batch_t *b;
} fx_t;

static void step(fx_t *x)
{
    bool busy;
    GEN_OK(node_batch_step(x->b, &busy, &gen_err));
    cr_assert(busy);
}

/* All requests run when this returns. */
static void setup(fx_t *x)
{
    memset(x, 0, sizeof *x);
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    o.n_layer = N_LAYER;
    gen_model_open(&x->f.model, &o);
    batching_engine(&x->f, 72);
    vt_tmpdir_create(&x->dir);
    x->run = (batching_run_t){.f = &x->f,
                              .spec = "rot:bits=4",
                              .n = N,
                              .x = 4,
                              .max_running = N,
                              .dir = vt_tmpdir_path(&x->dir, ""),
                              .n_pages = PAGES};
    for (uint32_t i = 0; i < N; i++) {
        gen_prompt(40 + i, prompts[i], lengths[i]);
        x->f.requests[i] = (gen_request_t){.prompt = prompts[i], .n_prompt = lengths[i], .max_tokens = 100};
    }
    x->b = batching_create(&x->run);
    for (uint32_t i = 0; i < N; i++)
        batching_add(&x->run, x->b, i);
    do
        step(x);
    while (batch_collect(x->b, MEMBER_RUNNING) < N);
}

static void teardown(fx_t *x)
{
    node_batch_destroy(x->b);
    vt_tmpdir_remove(&x->dir);
    batching_close(&x->f);
}

/* Full KV that requests can have in memory between passes: buffers hold a layer each, of the smallest request too. */
static uint64_t can_hold(const fx_t *x)
{
    node_slow_pool_stats_t s;
    uint64_t least = UINT64_MAX;
    node_slow_pool_stats(x->b->pool, &s);
    for (uint32_t i = 0; i < x->b->opt.max_requests; i++)
        if (x->b->members[i].state == MEMBER_RUNNING)
            least = VC_MIN(least, node_slow_pass_bytes(node_verifier_kv(x->b->members[i].v)));
    cr_assert_gt(least, 0, "all of them have a part in their files");
    return (s.n_buffers - 2 * (N - 1)) * (least / N_LAYER); /* two for the pass of every other request are never lent */
}

Test(batch_link, what_is_planned_with_is_no_more_than_buffers_hold_of_the_smallest_request)
{
    fx_t x;
    setup(&x);
    for (int i = 0; i < 24; i++) {
        uint64_t bytes = can_hold(&x);
        batch_link_budgets(x.b, NULL);
        cr_assert_leq(x.b->hold_bytes, bytes, "%llu bytes planned, %llu can be held",
                      (unsigned long long)x.b->hold_bytes, (unsigned long long)bytes);
        cr_assert_gt(2 * x.b->hold_bytes, bytes, "and not much less");
        step(&x);
    }
    teardown(&x);
}

Test(batch_link, a_pass_keeps_its_two_buffers_where_a_much_smaller_request_joins)
{
    fx_t x;
    setup(&x);
    uint64_t most = 0;
    for (uint32_t i = 0; i < N; i++)
        most = VC_MAX(most, node_slow_pass_bytes(node_verifier_kv(x.b->members[i].v)));
    const node_schedule_request_t tiny = {.full_bytes = N_LAYER, .stream_bytes = 2};
    batch_link_budgets(x.b, &tiny);
    cr_assert_eq(x.b->hold_bytes, 2 * most / N_LAYER);
    teardown(&x);
}

Test(batch_link, bytes_that_prompts_stream_are_not_promised_to_others)
{
    fx_t x;
    setup(&x);
    member_t *m = &x.b->members[0];
    uint64_t streams = node_slow_pass_bytes(node_verifier_kv(m->v)), without;
    x.b->link_rate = 1e9; /* 1 GB/s for 10 ms: 10 MB */
    x.b->step_us = 10000;
    batch_link_budgets(x.b, NULL);
    without = x.b->schedule->next_link;
    cr_assert_eq(without, 10000000);
    m->state = MEMBER_PROMPT; /* as if it were still read */
    m->work = WORK_PROMPT;
    batch_link_budgets(x.b, NULL);
    cr_assert_gt(streams, 0);
    cr_assert_eq(x.b->schedule->next_link, without - streams);
    m->work = WORK_NONE; /* an older prompt has all the rows of the iteration */
    batch_link_budgets(x.b, NULL);
    cr_assert_eq(x.b->schedule->next_link, without);
    m->state = MEMBER_RUNNING;
    teardown(&x);
}

Test(batch_link, what_does_not_come_while_others_hold_the_buffers_is_told_as_come)
{
    fx_t x;
    setup(&x);
    member_t *last = NULL;
    for (uint32_t i = 0; i < N; i++) { /* nobody has rows; the first take all that is lent */
        last = &x.b->members[i];
        node_kv_t *kv = node_verifier_kv(last->v);
        node_slow_drop(kv);
        last->work = WORK_NONE;
        last->link_had = last->link_here = last->link_due = last->link_most = 0;
    }
    for (uint32_t i = 0; i < N; i++) {
        node_kv_t *kv = node_verifier_kv(x.b->members[i].v);
        GEN_OK(node_slow_prefetch(kv, node_slow_pass_bytes(kv)));
    }
    uint64_t all = node_slow_pass_bytes(node_verifier_kv(last->v));
    last->link_due = last->link_most = all;
    (void)batch_link_came(x.b, 1000, false);
    cr_assert_lt(node_slow_arrived(node_verifier_kv(last->v)), all, "buffers for all of it");
    cr_assert_eq(last->link_had, all);
    teardown(&x);
}
