/*
 * The verifier by itself, with drafts made up by the test: a refusal at every position, everything accepted, ends of
 * every kind inside a draft, resuming after any token, cancelled passes, wrong use. A small random model; the reference
 * is always plain decoding (one row per pass).
 */
#include "support/generation.h"

enum { N_PROMPT = 90, N_NEW = 24 };

typedef struct {
    gen_model_t model;
    node_engine_t *engine;
    uint32_t prompt[N_PROMPT];
    gen_request_t plain;
    gen_result_t base; /* N_NEW tokens of plain decoding */
} fx_t;

static void setup(fx_t *f)
{
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    gen_model_open(&f->model, &o);
    f->engine = gen_engine(&f->model, 1, NODE_ISA_AUTO);
    gen_prompt(3, f->prompt, N_PROMPT);
    f->plain = (gen_request_t){
        .engine = f->engine, .tok = f->model.tok, .prompt = f->prompt, .n_prompt = N_PROMPT, .max_tokens = N_NEW};
    gen_run(&f->plain, &f->base);
    cr_assert(f->base.n == N_NEW && f->base.finish == NODE_FINISH_LENGTH);
}

static void teardown(fx_t *f)
{
    node_engine_destroy(f->engine);
    gen_model_close(&f->model);
}

static node_verifier_t *started(const gen_request_t *r)
{
    node_verdict_t verdict;
    node_verifier_t *v = gen_verifier(r);
    GEN_OK(node_verifier_start(v, r->cut, &verdict, &gen_err));
    cr_assert(verdict.n_tokens == 1 && verdict.base == r->n_prompt && verdict.n_drafts == 0);
    return v;
}

/* Rounds of x drafts that are right but for the one at `bad` (x: none is wrong) until the end. */
static void run_forced(const fx_t *f, const gen_request_t *r, uint32_t x, uint32_t bad, gen_result_t *out)
{
    node_verifier_t *v = started(r);
    while (node_verifier_finish(v) == NODE_FINISH_NONE) {
        uint32_t n, drafts[GEN_MAX];
        node_verifier_tokens(v, &n);
        uint32_t have = n - r->n_prompt;
        for (uint32_t i = 0; i < x; i++) {
            drafts[i] = have + i < f->base.n ? f->base.tokens[have + i] : 5;
            if (i == bad)
                drafts[i] = (drafts[i] + 1) % TINY_N_VOCAB;
        }
        node_verdict_t verdict;
        GEN_OK(node_verifier_step(v, drafts, x, &verdict, &gen_err));
        cr_assert_leq(verdict.n_accepted, bad);
        if (verdict.finish == NODE_FINISH_NONE) {
            cr_assert_eq(verdict.n_accepted, VC_MIN(bad, verdict.n_drafts));
            cr_assert_eq(verdict.n_tokens, verdict.n_accepted + 1);
        }
        cr_assert_eq(verdict.base, n);
    }
    gen_collect(v, out);
    node_verifier_destroy(v);
}

Test(verifier, a_refusal_at_each_position_and_full_acceptance_give_the_plain_bits)
{
    fx_t f;
    setup(&f);
    const uint32_t widths[] = {1, 2, 3, 4, 5, 7, 8, 16, 30, 64};
    for (size_t w = 0; w < VC_ARRAY_LEN(widths); w++)
        for (uint32_t bad = 0; bad <= widths[w] && bad < N_NEW; bad += VT_EVERY) {
            gen_result_t got;
            run_forced(&f, &f.plain, widths[w], bad, &got);
            GEN_EQUAL(&f.base, &got, "x %u, wrong at %u", widths[w], bad);
        }
    teardown(&f);
}

Test(verifier, every_row_of_a_pass_has_the_bits_of_a_single_row)
{
    fx_t f;
    setup(&f);
    float *single = vc_calloc((size_t)N_NEW * TINY_N_VOCAB, sizeof *single);
    float *wide = vc_calloc((size_t)(N_NEW + 1) * TINY_N_VOCAB, sizeof *wide);
    node_verifier_t *v = started(&f.plain);
    node_row_t rows[N_NEW + 1];
    uint32_t n_rows, n_logits;
    for (uint32_t i = 0; i + 1 < N_NEW; i++) {
        node_verdict_t verdict;
        GEN_OK(node_verifier_plan(v, NULL, 0, rows, 1, &n_rows, &n_logits, &gen_err));
        cr_assert(n_rows == 1 && n_logits == 1);
        GEN_OK(node_forward(f.engine, rows, 1, single + (size_t)i * TINY_N_VOCAB, NULL, &gen_err));
        GEN_OK(node_verifier_judge(v, single + (size_t)i * TINY_N_VOCAB, &verdict, &gen_err));
    }
    node_verifier_destroy(v);
    for (uint32_t x = 1; x <= 12; x++) {
        v = started(&f.plain);
        GEN_OK(node_verifier_plan(v, f.base.tokens + 1, x, rows, N_NEW, &n_rows, &n_logits, &gen_err));
        cr_assert(n_rows == x + 1 && n_logits == x + 1);
        GEN_OK(node_forward(f.engine, rows, n_rows, wide, NULL, &gen_err));
        cr_assert_eq(memcmp(single, wide, (size_t)n_rows * TINY_N_VOCAB * sizeof *wide), 0, "%u drafts", x);
        node_verifier_destroy(v);
    }
    vc_free(single);
    vc_free(wide);
    teardown(&f);
}

/* Index of a token of the base that did not occur before it. */
static uint32_t first_occurrence(const gen_result_t *base, uint32_t from)
{
    for (uint32_t i = from; i < base->n; i++) {
        uint32_t j = 0;
        while (j < i && base->tokens[j] != base->tokens[i])
            j++;
        if (j == i)
            return i;
    }
    cr_assert_fail("every token repeats an earlier one");
    return 0;
}

Test(verifier, an_end_token_ends_as_first_token_as_draft_as_correction_and_as_bonus)
{
    fx_t f;
    setup(&f);
    for (uint32_t from = 0; from < 12; from += VT_EVERY * VT_EVERY) {
        uint32_t at = first_occurrence(&f.base, from), end = f.base.tokens[at];
        gen_request_t r = f.plain;
        r.end_tokens = &end;
        r.n_end_tokens = 1;
        gen_result_t base, got;
        gen_run(&r, &base);
        cr_assert(base.n == at + 1 && base.finish == NODE_FINISH_END && base.tokens[at] == end);
        for (uint32_t x = 1; x <= 9 && at > 0; x++)
            for (uint32_t bad = 0; bad <= x; bad++) {
                run_forced(&f, &r, x, bad, &got);
                GEN_EQUAL(&base, &got, "end at %u, x %u, wrong at %u", at, x, bad);
            }
    }
    teardown(&f);
}

Test(verifier, budget_and_context_end_inside_a_draft)
{
    fx_t f;
    setup(&f);
    for (uint32_t room = 2; room <= 12; room++) {
        gen_request_t budget = f.plain, context = f.plain;
        budget.max_tokens = room;
        context.context = N_PROMPT + room;
        gen_result_t base, got;
        gen_run(&budget, &base);
        cr_assert(base.n == room && base.finish == NODE_FINISH_LENGTH);
        const uint32_t widths[] = {1, 2, 3, 8, 30};
        for (size_t w = 0; w < VC_ARRAY_LEN(widths); w++)
            for (uint32_t bad = 0; bad <= VC_MIN(widths[w], 9); bad += 3) {
                run_forced(&f, &budget, widths[w], bad, &got);
                GEN_EQUAL(&base, &got, "budget %u, x %u, wrong at %u", room, widths[w], bad);
                run_forced(&f, &context, widths[w], bad, &got);
                cr_assert_eq(got.finish, NODE_FINISH_CONTEXT);
                got.finish = NODE_FINISH_LENGTH;
                GEN_EQUAL(&base, &got, "context %u, x %u, wrong at %u", room, widths[w], bad);
            }
    }
    teardown(&f);
}

Test(verifier, a_prompt_that_leaves_one_position_gets_one_token)
{
    fx_t f;
    setup(&f);
    gen_request_t r = f.plain;
    r.context = N_PROMPT + 1;
    gen_result_t got;
    gen_run(&r, &got);
    cr_assert(got.n == 1 && got.finish == NODE_FINISH_CONTEXT && got.tokens[0] == f.base.tokens[0]);
    r = f.plain;
    r.max_tokens = 1;
    gen_run(&r, &got);
    cr_assert(got.n == 1 && got.finish == NODE_FINISH_LENGTH);
    teardown(&f);
}

Test(verifier, the_models_own_context_limit_ends_a_generation)
{
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    o.context = 128;
    gen_model_t m;
    gen_model_open(&m, &o);
    node_engine_t *engine = gen_engine(&m, 1, NODE_ISA_AUTO);
    uint32_t prompt[100];
    gen_prompt(9, prompt, 100);
    gen_request_t r = {.engine = engine, .prompt = prompt, .n_prompt = 100, .max_tokens = 400};
    gen_result_t base, got;
    gen_run(&r, &base);
    cr_assert(base.n == 28 && base.finish == NODE_FINISH_CONTEXT);
    const uint32_t widths[] = {1, 4, 7, 30, 64, NODE_DRAFT_AUTO};
    for (size_t w = 0; w < VC_ARRAY_LEN(widths); w++) {
        r.x = widths[w];
        gen_run(&r, &got);
        GEN_EQUAL(&base, &got, "x %u", r.x);
    }
    node_engine_destroy(engine);
    gen_model_close(&m);
}

Test(verifier, a_stop_string_ends_the_request_wherever_it_falls_in_a_draft)
{
    fx_t f;
    setup(&f);
    for (uint32_t at = 1; at < 10; at += VT_EVERY * VT_EVERY) {
        /* the text of two neighbouring tokens: it is complete at the second one, or earlier by chance */
        char stop[64] = {0};
        for (uint32_t i = at - 1; i <= at; i++) {
            size_t len;
            const char *piece = node_tokenizer_piece(f.model.tok, f.base.tokens[i], &len);
            memcpy(stop + strlen(stop), piece, len);
        }
        const char *stops[] = {"never there", stop};
        gen_request_t r = f.plain;
        r.stops = stops;
        r.n_stops = 2;
        gen_result_t base, got;
        gen_run(&r, &base);
        cr_assert(base.finish == NODE_FINISH_STOP && base.n <= at + 1, "at %u: %u tokens", at, base.n);
        for (uint32_t x = 1; x <= 8; x++)
            for (uint32_t bad = 0; bad <= x && base.n > 1; bad++) {
                run_forced(&f, &r, x, bad, &got);
                GEN_EQUAL(&base, &got, "stop at %u, x %u, wrong at %u", at, x, bad);
            }
    }
    teardown(&f);
}

Test(verifier, resuming_after_any_token_gives_the_same_bits)
{
    fx_t f;
    setup(&f);
    for (int sampled = 0; sampled < 2; sampled++) {
        gen_request_t r = f.plain;
        node_sampling_default(&r.sampling);
        r.sampling.temperature = sampled * 0.8;
        r.sampling.repeat_penalty = 1.2;
        r.sampling.seed = 5;
        gen_result_t base, got;
        gen_run(&r, &base);
        for (uint32_t n = 1; n <= base.n; n++) {
            gen_request_t again = r;
            again.resume = base.tokens;
            again.n_resume = n;
            again.x = n % 4;
            gen_run(&again, &got);
            GEN_EQUAL(&base, &got, "resumed after %u", n);
        }
    }
    teardown(&f);
}

Test(verifier, resuming_tells_only_what_is_new_and_refuses_what_was_never_committed)
{
    fx_t f;
    setup(&f);
    node_verdict_t verdict;
    for (uint32_t n = 0; n < 5; n++) {
        node_verifier_t *v = gen_verifier(&f.plain);
        GEN_OK(node_verifier_resume(v, f.base.tokens, n, &verdict, &gen_err));
        cr_assert(verdict.base == N_PROMPT + n && verdict.n_tokens >= 1 && verdict.finish == NODE_FINISH_NONE);
        cr_assert_eq(memcmp(verdict.tokens, f.base.tokens + n, verdict.n_tokens * sizeof(uint32_t)), 0);
        node_verifier_destroy(v);
    }
    node_verifier_t *v = gen_verifier(&f.plain);
    GEN_OK(node_verifier_resume(v, f.base.tokens, N_NEW, &verdict, &gen_err));
    cr_assert(verdict.n_tokens == 0 && verdict.finish == NODE_FINISH_LENGTH);
    node_verifier_destroy(v);
    uint32_t wrong[N_NEW + 1];
    for (uint32_t bad = 0; bad < 6; bad++) {
        memcpy(wrong, f.base.tokens, sizeof f.base.tokens[0] * N_NEW);
        wrong[bad] ^= 1;
        v = gen_verifier(&f.plain);
        cr_assert_eq(node_verifier_resume(v, wrong, 8, &verdict, &gen_err), VC_ERR_MISMATCH);
        cr_assert_eq(node_verifier_step(v, NULL, 0, &verdict, &gen_err), VC_ERR_STALE);
        node_verifier_destroy(v);
    }
    memcpy(wrong, f.base.tokens, sizeof f.base.tokens[0] * N_NEW);
    wrong[N_NEW] = 7;
    v = gen_verifier(&f.plain);
    cr_assert_eq(node_verifier_resume(v, wrong, N_NEW + 1, &verdict, &gen_err), VC_ERR_MISMATCH);
    node_verifier_destroy(v);
    teardown(&f);
}

Test(verifier, a_cancelled_or_failed_pass_leaves_no_trace)
{
    fx_t f;
    setup(&f);
    node_row_t rows[16];
    uint32_t n_rows, n_logits;
    float *logits = vc_calloc((size_t)16 * TINY_N_VOCAB, sizeof *logits);
    node_verdict_t verdict;
    node_verifier_t *v = gen_verifier(&f.plain);
    GEN_OK(node_verifier_plan(v, NULL, 0, rows, 16, &n_rows, &n_logits, &gen_err));
    cr_assert(n_rows == 16 && n_logits == 0 && node_verifier_is_prefilling(v));
    cr_assert_eq(node_verifier_plan(v, NULL, 0, rows, 16, &n_rows, &n_logits, &gen_err), VC_ERR_INVALID);
    GEN_OK(node_forward(f.engine, rows, 16, NULL, NULL, &gen_err));
    GEN_OK(node_verifier_cancel(v, &gen_err)); /* after the pass */
    cr_assert_eq(node_verifier_kv(v)->n_tokens, 0);
    GEN_OK(node_verifier_plan(v, NULL, 0, rows, 16, &n_rows, &n_logits, &gen_err));
    cr_assert_eq(node_verifier_judge(v, logits, &verdict, &gen_err), VC_ERR_INVALID); /* without the pass */
    GEN_OK(node_verifier_cancel(v, &gen_err));
    GEN_OK(node_verifier_cancel(v, &gen_err)); /* nothing planned */
    GEN_OK(node_verifier_start(v, 0, &verdict, &gen_err));
    uint32_t junk[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    GEN_OK(node_verifier_plan(v, junk, 8, rows, 16, &n_rows, &n_logits, &gen_err));
    GEN_OK(node_forward(f.engine, rows, n_rows, logits, NULL, &gen_err));
    GEN_OK(node_verifier_cancel(v, &gen_err));
    while (verdict.finish == NODE_FINISH_NONE)
        GEN_OK(node_verifier_step(v, junk, 3, &verdict, &gen_err));
    gen_result_t got;
    gen_collect(v, &got);
    GEN_EQUAL(&f.base, &got, "after cancelled passes");
    node_verifier_destroy(v);
    vc_free(logits);
    teardown(&f);
}

Test(verifier, logits_that_are_no_numbers_end_the_request_with_an_error)
{
    fx_t f;
    setup(&f);
    node_verifier_t *v = started(&f.plain);
    node_row_t rows[4];
    uint32_t n_rows, n_logits;
    float *logits = vc_calloc((size_t)4 * TINY_N_VOCAB, sizeof *logits);
    node_verdict_t verdict;
    GEN_OK(node_verifier_plan(v, f.base.tokens + 1, 3, rows, 4, &n_rows, &n_logits, &gen_err));
    GEN_OK(node_forward(f.engine, rows, n_rows, logits, NULL, &gen_err));
    logits[TINY_N_VOCAB + 7] = __builtin_nanf("");
    cr_assert_eq(node_verifier_judge(v, logits, &verdict, &gen_err), VC_ERR_INVALID);
    cr_assert_eq(node_verifier_step(v, NULL, 0, &verdict, &gen_err), VC_ERR_STALE);
    node_verifier_destroy(v);
    vc_free(logits);
    teardown(&f);
}

Test(verifier, wrong_requests_are_refused_with_a_reason)
{
    fx_t f;
    setup(&f);
    node_verifier_opts_t o;
    node_verifier_t *v = NULL;
    vc_err_t err = {0};
    node_verifier_opts_default(&o);
    o.engine = f.engine;
    cr_assert_eq(node_verifier_create(&o, f.prompt, 0, &v, &err), VC_ERR_INVALID);
    o.context = N_PROMPT;
    cr_assert_eq(node_verifier_create(&o, f.prompt, N_PROMPT, &v, &err), VC_ERR_RANGE);
    o.context = 0;
    uint32_t bad[2] = {1, TINY_N_VOCAB};
    cr_assert_eq(node_verifier_create(&o, bad, 2, &v, &err), VC_ERR_INVALID);
    const char *stops[] = {"x"};
    o.stops = stops;
    o.n_stops = 1;
    cr_assert_eq(node_verifier_create(&o, f.prompt, N_PROMPT, &v, &err), VC_ERR_INVALID); /* no tokenizer */
    o.n_stops = 0;
    o.max_tokens = 0;
    cr_assert_eq(node_verifier_create(&o, f.prompt, N_PROMPT, &v, &err), VC_ERR_RANGE);
    o.max_tokens = 5;
    o.sampling.temperature = -1;
    cr_assert_eq(node_verifier_create(&o, f.prompt, N_PROMPT, &v, &err), VC_ERR_RANGE);
    cr_assert_null(v);
    o.sampling.temperature = 0;
    GEN_OK(node_verifier_create(&o, f.prompt, N_PROMPT, &v, &gen_err));
    node_kv_dims_t dims, other;
    node_engine_kv_dims(f.engine, &dims);
    other = dims;
    other.n_layer++;
    cr_assert_eq(node_verifier_load_page(v, node_page_create(&other), &err), VC_ERR_INVALID); /* and is freed */
    node_row_t rows[4];
    uint32_t n_rows, n_logits;
    cr_assert_eq(node_verifier_plan(v, bad, 1, rows, 4, &n_rows, &n_logits, &err), VC_ERR_INVALID); /* too early */
    node_verdict_t verdict;
    GEN_OK(node_verifier_start(v, 7, &verdict, &gen_err));
    cr_assert_eq(node_verifier_start(v, 7, &verdict, &err), VC_ERR_INVALID);
    cr_assert_eq(node_verifier_step(v, bad, 2, &verdict, &err), VC_ERR_INVALID); /* id outside the vocabulary */
    cr_assert_eq(node_verifier_load_page(v, node_page_create(&dims), &err), VC_ERR_INVALID);
    while (verdict.finish == NODE_FINISH_NONE)
        GEN_OK(node_verifier_step(v, NULL, 0, &verdict, &gen_err));
    cr_assert_eq(node_verifier_step(v, NULL, 0, &verdict, &err), VC_ERR_STALE);
    cr_assert_eq(node_verifier_max_useful(v), 0);
    node_verifier_destroy(v);
    node_verifier_destroy(NULL);
    teardown(&f);
}

Test(verifier, stats_count_what_was_looked_at)
{
    fx_t f;
    setup(&f);
    gen_result_t got;
    run_forced(&f, &f.plain, 4, 2, &got); /* 2 accepted, 1 refused, 1 not looked at; 3 tokens a round */
    cr_assert_eq(got.stats.n_rounds, (N_NEW - 1 + 2) / 3);
    run_forced(&f, &f.plain, 4, 4, &got);
    cr_assert_eq(got.stats.n_accepted, got.stats.n_drafted);
    cr_assert_eq(got.stats.n_accepted, got.stats.n_proposed);
    cr_assert_eq(got.stats.n_full, got.stats.n_rounds);
    teardown(&f);
}
