/*
 * The drafter by itself: what stays pending after a commit, whose rows its tail holds, and that none of it can be seen
 * in a verifier's KV. A drafter with the full KV and own rows proposes exactly the plain continuation.
 */
#include <math.h>

#include "support/generation.h"

enum { N_PROMPT = 150, N_NEW = 40 };

typedef struct {
    gen_model_t model;
    node_engine_t *engine;
    uint32_t prompt[N_PROMPT];
    gen_request_t plain;
    gen_result_t base;
    node_verifier_t *v; /* started */
} fx_t;

static void setup(fx_t *f)
{
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    gen_model_open(&f->model, &o);
    f->engine = gen_engine(&f->model, 1, NODE_ISA_AUTO);
    gen_prompt(8, f->prompt, N_PROMPT);
    f->plain = (gen_request_t){.engine = f->engine, .prompt = f->prompt, .n_prompt = N_PROMPT, .max_tokens = N_NEW};
    gen_run(&f->plain, &f->base);
    node_verdict_t verdict;
    f->v = gen_verifier(&f->plain);
    GEN_OK(node_verifier_start(f->v, 0, &verdict, &gen_err));
}

static void teardown(fx_t *f)
{
    node_verifier_destroy(f->v);
    node_engine_destroy(f->engine);
    gen_model_close(&f->model);
}

static node_drafter_t *make(const fx_t *f, node_body_t *body, uint32_t max_draft)
{
    node_drafter_opts_t o;
    node_drafter_t *d = NULL;
    node_drafter_opts_default(&o);
    o.engine = f->engine;
    o.body = body;
    o.max_draft = max_draft;
    uint32_t n;
    const uint32_t *tokens = node_verifier_tokens(f->v, &n);
    GEN_OK(node_drafter_create(&o, tokens, n, &d, &gen_err));
    return d;
}

static void expect_drafts(const fx_t *f, node_drafter_t *d, uint32_t x)
{
    uint32_t drafts[64], n, at = node_drafter_n_committed(d) + node_drafter_n_pending(d) - N_PROMPT;
    GEN_OK(node_drafter_draft(d, x, drafts, NULL, &n, &gen_err));
    cr_assert_eq(n, x);
    cr_assert_eq(memcmp(drafts, f->base.tokens + at, n * sizeof *drafts), 0, "drafts from token %u", at);
}

Test(drafter, with_own_rows_of_the_full_kv_it_proposes_the_plain_text)
{
    fx_t f;
    setup(&f);
    node_drafter_t *d = make(&f, NULL, 16);
    bool done = false;
    uint32_t slices = 0;
    for (; !done; slices++)
        GEN_OK(node_drafter_prefill(d, 32, &done, &gen_err));
    cr_assert_eq(slices, (N_PROMPT + 31) / 32);
    cr_assert_eq(node_drafter_n_rows(d), N_PROMPT);
    expect_drafts(&f, d, 5);
    expect_drafts(&f, d, 3); /* further ones behind those */
    cr_assert_eq(node_drafter_n_pending(d), 8);
    vc_digest_t got, want;
    GEN_OK(node_drafter_drop(d, &gen_err));
    cr_assert_eq(node_drafter_n_pending(d), 0);
    node_kv_digest(node_drafter_kv(d), N_PROMPT, &got);
    node_kv_digest(node_verifier_kv(f.v), N_PROMPT, &want);
    cr_assert(gen_digest_equal(&got, &want));
    expect_drafts(&f, d, 8);
    node_drafter_destroy(d);
    teardown(&f);
}

Test(drafter, pending_drafts_survive_a_matching_commit_and_fall_at_a_mismatch)
{
    fx_t f;
    setup(&f);
    node_drafter_t *d = make(&f, NULL, 16);
    bool kept;
    expect_drafts(&f, d, 6);
    GEN_OK(node_drafter_commit(d, f.base.tokens + 1, 2, &kept, &gen_err));
    cr_assert(kept && node_drafter_n_pending(d) == 4);
    cr_assert_eq(memcmp(node_drafter_pending(d), f.base.tokens + 3, 4 * sizeof(uint32_t)), 0);
    expect_drafts(&f, d, 3);
    GEN_OK(node_drafter_commit(d, f.base.tokens + 3, 7, &kept, &gen_err)); /* exactly what is pending */
    cr_assert(kept && node_drafter_n_pending(d) == 0);
    expect_drafts(&f, d, 2);
    GEN_OK(node_drafter_commit(d, f.base.tokens + 10, 3, &kept, &gen_err)); /* and the bonus token */
    cr_assert(kept && node_drafter_n_pending(d) == 0);
    expect_drafts(&f, d, 4);
    uint32_t other[3] = {f.base.tokens[13], (f.base.tokens[14] + 1) % TINY_N_VOCAB};
    GEN_OK(node_drafter_commit(d, other, 2, &kept, &gen_err));
    cr_assert(!kept && node_drafter_n_pending(d) == 0);
    cr_assert_eq(node_drafter_n_committed(d), N_PROMPT + 15);
    cr_assert_eq(node_drafter_n_rows(d), N_PROMPT + 14); /* up to the last token that was drafted right */
    /* what it drafts now is the continuation of the other text */
    gen_request_t r = f.plain;
    uint32_t prompt[N_PROMPT + 15];
    memcpy(prompt, f.prompt, sizeof f.prompt);
    memcpy(prompt + N_PROMPT, f.base.tokens, 13 * sizeof(uint32_t));
    memcpy(prompt + N_PROMPT + 13, other, 2 * sizeof(uint32_t));
    r.prompt = prompt;
    r.n_prompt = N_PROMPT + 15;
    r.max_tokens = 5;
    gen_result_t want;
    gen_run(&r, &want);
    uint32_t drafts[5], n;
    GEN_OK(node_drafter_draft(d, 5, drafts, NULL, &n, &gen_err));
    cr_assert_eq(memcmp(drafts, want.tokens, sizeof drafts), 0);
    node_drafter_destroy(d);
    teardown(&f);
}

Test(drafter, rows_from_a_distant_verifier_equal_shared_pages)
{
    fx_t f;
    setup(&f);
    node_spec_t spec;
    node_body_t *body = NULL;
    GEN_OK(node_spec_parse("none", &spec, &gen_err));
    GEN_OK(node_local_body(f.engine, &spec, node_verifier_kv(f.v), f.prompt, 1, &body, &gen_err));
    node_drafter_t *remote = make(&f, body, 16), *local = make(&f, body, 16);
    node_kv_t *full = node_verifier_kv(f.v);
    size_t row = (size_t)full->dims.n_layer * 2 * full->dims.n_kv_head * full->dims.head_dim;
    uint16_t *rows = vc_calloc(N_PROMPT * row, sizeof *rows);
    for (uint32_t t = 64; t < N_PROMPT; t++)
        node_page_store_row(node_kv_page_at(full, t / NODE_TILE), t % NODE_TILE, rows + (t - 64) * row);
    GEN_OK(node_drafter_put_rows(remote, 64, 40, rows, &gen_err)); /* in two messages, across a page */
    cr_assert_eq(node_drafter_put_rows(remote, 110, 2, rows, &gen_err), VC_ERR_RANGE); /* a hole */
    cr_assert_eq(node_drafter_put_rows(remote, 10, 2, rows, &gen_err), VC_ERR_RANGE);  /* inside the body */
    cr_assert_eq(node_drafter_put_rows(remote, 100, 1000, rows, &gen_err), VC_ERR_RANGE);
    GEN_OK(node_drafter_put_rows(remote, 104, N_PROMPT - 104, rows + 40 * row, &gen_err));
    GEN_OK(node_drafter_share(local, full, &gen_err));
    cr_assert_eq(node_drafter_n_rows(remote), N_PROMPT);
    cr_assert_eq(node_drafter_n_rows(local), N_PROMPT);
    for (uint32_t b = 1; b <= 2; b++)
        for (uint32_t l = 0; l < full->dims.n_layer; l++)
            for (uint32_t h = 0; h < full->dims.n_kv_head; h++) {
                size_t bytes = (size_t)full->dims.head_dim * NODE_TILE * 2;
                node_page_t *a = node_kv_page_at(node_drafter_kv(remote), b);
                node_page_t *c = node_kv_page_at(node_drafter_kv(local), b);
                cr_assert_eq(memcmp(node_page_k(a, l, h), node_page_k(c, l, h), bytes), 0);
                cr_assert_eq(memcmp(node_page_v(a, l, h), node_page_v(c, l, h), bytes), 0);
            }
    expect_drafts(&f, remote, 6);
    expect_drafts(&f, local, 6);
    /* rows that come late, for positions that have own rows and drafts behind them, leave the drafts alone */
    GEN_OK(node_drafter_put_rows(remote, 64, N_PROMPT - 64, rows, &gen_err));
    cr_assert_eq(node_drafter_n_pending(remote), 6);
    expect_drafts(&f, remote, 4);
    vc_free(rows);
    node_drafter_destroy(remote);
    node_drafter_destroy(local);
    node_body_put(body);
    teardown(&f);
}

Test(drafter, drafting_never_touches_the_verifiers_kv)
{
    fx_t f;
    setup(&f);
    vc_digest_t before, after;
    node_kv_t *full = node_verifier_kv(f.v);
    node_kv_digest(full, full->n_tokens, &before);
    node_drafter_t *d = make(&f, NULL, 64);
    for (int i = 0; i < 3; i++) {
        uint32_t drafts[64], n;
        GEN_OK(node_drafter_share(d, full, &gen_err));
        cr_assert_eq(node_kv_page_at(node_drafter_kv(d), 0), node_kv_page_at(full, 0)); /* shared, not copied */
        cr_assert_neq(node_kv_page_at(node_drafter_kv(d), 2), node_kv_page_at(full, 2));
        GEN_OK(node_drafter_draft(d, 50, drafts, NULL, &n, &gen_err));
        node_kv_digest(full, full->n_tokens, &after);
        cr_assert(gen_digest_equal(&before, &after));
    }
    node_drafter_destroy(d);
    node_kv_digest(full, full->n_tokens, &after);
    cr_assert(gen_digest_equal(&before, &after));
    teardown(&f);
}

/* ---- steps that share a pass ---- */

enum { STEP_ROWS = 64 };

/* One pass for the rows of both drafters, at most cap rows each; picks[i] and n_picks[i] of each. */
static void step_together(const fx_t *f, node_drafter_t *const *d, uint32_t cap, node_pick_t *picks, uint32_t *n_picks)
{
    node_row_t rows[2 * STEP_ROWS];
    uint32_t n_rows[2], n_logits[2];
    float *logits = vc_calloc(2 * TINY_N_VOCAB, sizeof *logits);
    GEN_OK(node_drafter_plan(d[0], rows, cap, &n_rows[0], &n_logits[0], &gen_err));
    GEN_OK(node_drafter_plan(d[1], rows + n_rows[0], cap, &n_rows[1], &n_logits[1], &gen_err));
    GEN_OK(node_forward(f->engine, rows, n_rows[0] + n_rows[1], logits, NULL, &gen_err));
    for (uint32_t i = 0; i < 2; i++) {
        const float *mine = logits + (i ? n_logits[0] * TINY_N_VOCAB : 0);
        GEN_OK(node_drafter_take(d[i], mine, &picks[i], 1, &n_picks[i], &gen_err));
        cr_assert_eq(n_picks[i], n_logits[i]);
    }
    vc_free(logits);
}

Test(drafter, steps_of_two_drafters_in_one_pass_give_the_picks_and_rows_of_single_ones)
{
    fx_t f;
    setup(&f);
    node_spec_t spec;
    node_body_t *body = NULL;
    GEN_OK(node_spec_parse("kivi:bits=2,group=16,residual=64", &spec, &gen_err));
    GEN_OK(node_local_body(f.engine, &spec, node_verifier_kv(f.v), f.prompt, 2, &body, &gen_err));
    node_drafter_t *single[2] = {make(&f, NULL, 16), make(&f, body, 16)};
    node_drafter_t *shared[2] = {make(&f, NULL, 16), make(&f, body, 16)};
    uint32_t n_taken[2] = {0};
    while (n_taken[0] < 8) { /* the second one has less to compute and is ahead by the passes that the first needs */
        node_pick_t want, got[2];
        uint32_t n_picks[2];
        step_together(&f, shared, 40, got, n_picks);
        for (uint32_t i = 0; i < 2; i++) {
            if (!n_picks[i])
                continue;
            GEN_OK(node_drafter_next(single[i], &want, &gen_err));
            cr_assert_eq(got[i].token, want.token);
            cr_assert_eq(got[i].margin, want.margin);
            n_taken[i]++;
        }
    }
    cr_assert_eq(n_taken[1], 8 + 3); /* 151 rows in passes of 40 give no pick three times */
    vc_digest_t a, b;
    uint32_t n = node_drafter_kv(single[0])->n_tokens;
    cr_assert_eq(n, node_drafter_kv(shared[0])->n_tokens);
    node_kv_digest(node_drafter_kv(single[0]), n, &a);
    node_kv_digest(node_drafter_kv(shared[0]), n, &b);
    cr_assert(gen_digest_equal(&a, &b));
    for (uint32_t i = 0; i < 2; i++) {
        node_drafter_destroy(single[i]);
        node_drafter_destroy(shared[i]);
    }
    node_body_put(body);
    teardown(&f);
}

Test(drafter, a_cancelled_or_failed_step_leaves_no_trace)
{
    fx_t f;
    setup(&f);
    node_drafter_t *d = make(&f, NULL, 8);
    node_row_t rows[256];
    node_pick_t pick;
    uint32_t n_rows, n_logits, n_picks;
    float *logits = vc_calloc(TINY_N_VOCAB, sizeof *logits);
    vc_digest_t before, after;
    expect_drafts(&f, d, 2);
    uint32_t n = node_drafter_kv(d)->n_tokens;
    node_kv_digest(node_drafter_kv(d), n, &before);
    GEN_OK(node_drafter_plan(d, rows, 256, &n_rows, &n_logits, &gen_err)); /* the pass never ran */
    cr_assert(n_rows == 1 && n_logits == 1);
    cr_assert_eq(node_drafter_take(d, logits, &pick, 1, &n_picks, &gen_err), VC_ERR_INVALID);
    GEN_OK(node_drafter_cancel(d, &gen_err));
    GEN_OK(node_drafter_plan(d, rows, 256, &n_rows, &n_logits, &gen_err)); /* it ran and is not wanted */
    GEN_OK(node_forward(f.engine, rows, n_rows, logits, NULL, &gen_err));
    GEN_OK(node_drafter_cancel(d, &gen_err));
    GEN_OK(node_drafter_cancel(d, &gen_err)); /* nothing is planned: nothing to do */
    cr_assert_eq(node_drafter_take(d, logits, &pick, 1, &n_picks, &gen_err), VC_ERR_INVALID);
    GEN_OK(node_drafter_plan(d, rows, 256, &n_rows, &n_logits, &gen_err)); /* it gave no logits to choose from */
    GEN_OK(node_forward(f.engine, rows, n_rows, logits, NULL, &gen_err));
    logits[3] = NAN;
    cr_assert_eq(node_drafter_take(d, logits, &pick, 1, &n_picks, &gen_err), VC_ERR_INVALID);
    cr_assert_eq(node_drafter_n_pending(d), 2);
    GEN_OK(node_drafter_plan(d, rows, 256, &n_rows, &n_logits, &gen_err));
    GEN_OK(node_drafter_cancel(d, &gen_err));
    node_kv_digest(node_drafter_kv(d), n, &after);
    cr_assert(gen_digest_equal(&before, &after));
    expect_drafts(&f, d, 6);
    vc_free(logits);
    node_drafter_destroy(d);
    teardown(&f);
}

Test(drafter, a_planned_step_refuses_every_other_change)
{
    fx_t f;
    setup(&f);
    node_drafter_t *d = make(&f, NULL, 4);
    node_row_t rows[256];
    node_pick_t pick;
    uint32_t n_rows, n_logits, drafts[4], n;
    uint16_t none = 0;
    cr_assert_eq(node_drafter_plan(d, rows, 0, &n_rows, &n_logits, &gen_err), VC_ERR_INVALID);
    GEN_OK(node_drafter_plan(d, rows, 256, &n_rows, &n_logits, &gen_err));
    cr_assert_eq(n_rows, N_PROMPT + 1);
    cr_assert_eq(node_drafter_plan(d, rows, 256, &n_rows, &n_logits, &gen_err), VC_ERR_INVALID);
    cr_assert_eq(node_drafter_next(d, &pick, &gen_err), VC_ERR_INVALID);
    cr_assert_eq(node_drafter_draft(d, 1, drafts, NULL, &n, &gen_err), VC_ERR_INVALID);
    cr_assert_eq(node_drafter_prefill(d, 0, NULL, &gen_err), VC_ERR_INVALID);
    cr_assert_eq(node_drafter_commit(d, f.base.tokens + 1, 1, NULL, &gen_err), VC_ERR_INVALID);
    cr_assert_eq(node_drafter_drop(d, &gen_err), VC_ERR_INVALID);
    cr_assert_eq(node_drafter_put_rows(d, 0, 0, &none, &gen_err), VC_ERR_INVALID);
    cr_assert_eq(node_drafter_share(d, node_verifier_kv(f.v), &gen_err), VC_ERR_INVALID);
    cr_assert_eq(node_drafter_load_page(d, node_page_create(&node_verifier_kv(f.v)->dims), &gen_err), VC_ERR_INVALID);
    GEN_OK(node_drafter_cancel(d, &gen_err));
    expect_drafts(&f, d, 4);
    cr_assert_eq(node_drafter_plan(d, rows, 256, &n_rows, &n_logits, &gen_err), VC_ERR_RANGE); /* no room */
    node_drafter_destroy(d);
    teardown(&f);
}

Test(drafter, limits_and_wrong_use_are_refused)
{
    fx_t f;
    setup(&f);
    uint32_t drafts[64], n, bad = TINY_N_VOCAB;
    node_drafter_t *d = make(&f, NULL, 4), *none = NULL;
    node_pick_t pick;
    GEN_OK(node_drafter_draft(d, 9, drafts, NULL, &n, &gen_err));
    cr_assert_eq(n, 4);
    cr_assert_eq(node_drafter_next(d, &pick, &gen_err), VC_ERR_RANGE);
    cr_assert_eq(node_drafter_commit(d, &bad, 1, NULL, &gen_err), VC_ERR_INVALID);
    cr_assert_eq(node_drafter_n_pending(d), 4);
    node_drafter_destroy(d);
    node_drafter_opts_t o;
    node_drafter_opts_default(&o);
    o.engine = f.engine;
    o.context = N_PROMPT + 3;
    cr_assert_eq(node_drafter_create(&o, f.prompt, 0, &none, &gen_err), VC_ERR_INVALID);
    GEN_OK(node_drafter_create(&o, f.prompt, N_PROMPT, &d, &gen_err));
    GEN_OK(node_drafter_draft(d, 9, drafts, NULL, &n, &gen_err));
    cr_assert_eq(n, 3); /* the context is full behind them */
    node_drafter_destroy(d);
    node_spec_t spec;
    GEN_OK(node_spec_parse("none", &spec, &gen_err));
    GEN_OK(node_local_body(f.engine, &spec, node_verifier_kv(f.v), f.prompt, 2, &o.body, &gen_err));
    cr_assert_eq(node_drafter_create(&o, f.prompt, 128, &none, &gen_err), VC_ERR_INVALID); /* body covers all of it */
    node_body_put(o.body);
    node_drafter_destroy(NULL);
    teardown(&f);
}
