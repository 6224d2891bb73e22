/*
 * Drafting behind a compressed body: what is drafted next depends on the committed text alone, however it was
 * committed. A drafter that went through drafts, refusals and rollbacks is compared with a fresh one over the same
 * text, for every kind of body. Names say which known defect of other systems a test guards (tests/DEFECTS.md).
 */
#include "support/generation.h"

enum { N_BLOCKS = 4, N_PROMPT = N_BLOCKS * NODE_TILE + 5, N_DRAFT = 6, N_TEXT = 200, N_BODIES = 6 };

static const char *const bodies[N_BODIES] = {
    NULL,         "snapkv:keep=0.25,window=32",  "kivi:bits=2,group=16,residual=64",
    "rot:bits=3", "expected_attention:keep=0.3", "snapkv:keep=0.5,window=32+rot:bits=4"};

typedef struct {
    gen_model_t model;
    node_engine_t *engine;
    node_body_t *bodies[N_BODIES];
    uint32_t text[N_PROMPT + N_TEXT]; /* prompt, then what the verifier commits */
} fx_t;

static void setup(fx_t *f)
{
    tiny_model_opts_t o;
    node_kv_dims_t dims;
    node_kv_t kv;
    memset(f, 0, sizeof *f);
    tiny_model_opts_default(&o);
    gen_model_open(&f->model, &o);
    f->engine = gen_engine(&f->model, 2, NODE_ISA_AUTO);
    gen_prompt(7, f->text, N_PROMPT + N_TEXT);
    node_engine_kv_dims(f->engine, &dims);
    GEN_OK(node_kv_init(&kv, &dims, NULL));
    GEN_OK(node_prefill(f->engine, &kv, f->text, N_BLOCKS * NODE_TILE, NULL, NULL, &gen_err));
    for (int i = 0; i < N_BODIES; i++) {
        node_spec_t spec;
        if (!bodies[i])
            continue;
        GEN_OK(node_spec_parse(bodies[i], &spec, &gen_err));
        GEN_OK(node_local_body(f->engine, &spec, &kv, f->text, N_BLOCKS, &f->bodies[i], &gen_err));
    }
    node_kv_fini(&kv);
}

static void teardown(fx_t *f)
{
    for (int i = 0; i < N_BODIES; i++)
        node_body_put(f->bodies[i]);
    node_engine_destroy(f->engine);
    gen_model_close(&f->model);
}

static node_drafter_t *drafter(const fx_t *f, int body, uint32_t n_tokens)
{
    node_drafter_opts_t o;
    node_drafter_t *d = NULL;
    node_drafter_opts_default(&o);
    o.engine = f->engine;
    o.body = f->bodies[body];
    GEN_OK(node_drafter_create(&o, f->text, n_tokens, &d, &gen_err));
    return d;
}

static void draft(node_drafter_t *d, uint32_t x, uint32_t *tokens)
{
    uint32_t n = 0;
    GEN_OK(node_drafter_draft(d, x, tokens, NULL, &n, &gen_err));
    cr_assert_eq(n, x);
}

/* d has committed text[0 .. n): it drafts what a drafter does that never saw anything else. */
static void check_fresh(const fx_t *f, int body, node_drafter_t *d, uint32_t n, const char *what)
{
    uint32_t ours[N_DRAFT], theirs[N_DRAFT];
    cr_assert_eq(node_drafter_n_committed(d), n, "%s: %u tokens are committed, not %u", what,
                 node_drafter_n_committed(d), n);
    GEN_OK(node_drafter_drop(d, &gen_err));
    draft(d, N_DRAFT, ours);
    node_drafter_t *fresh = drafter(f, body, n);
    draft(fresh, N_DRAFT, theirs);
    cr_assert(memcmp(ours, theirs, sizeof ours) == 0, "%s, %s: other drafts at %u tokens", what,
              bodies[body] ? bodies[body] : "no body", n);
    cr_assert_eq(node_drafter_kv(d)->n_tokens, node_drafter_kv(fresh)->n_tokens);
    node_drafter_destroy(fresh);
    GEN_OK(node_drafter_drop(d, &gen_err));
}

/* Rounds that accept 0, 1, 2 ... of the drafts, over and over: each commits one token more than it accepts. */
Test(draft_accounting, defect_19_every_refusal_gives_back_exactly_its_drafts)
{
    fx_t f;
    setup(&f);
    for (int i = 0; i < N_BODIES; i++) {
        uint32_t n = N_PROMPT, drafts[N_DRAFT];
        node_drafter_t *d = drafter(&f, i, n);
        for (uint32_t accept = 0; accept <= N_DRAFT; accept++) {
            bool kept = true;
            draft(d, N_DRAFT, drafts);
            memcpy(f.text + n, drafts, accept * sizeof *drafts); /* the verifier agrees so far ... */
            if (accept < N_DRAFT)
                f.text[n + accept] = drafts[accept] ^ 1; /* ... and then does not */
            GEN_OK(node_drafter_commit(d, f.text + n, accept + 1, &kept, &gen_err));
            cr_assert(!kept || accept == N_DRAFT);
            n += accept + 1;
            check_fresh(&f, i, d, n, "after a refusal");
        }
        node_drafter_destroy(d);
    }
    teardown(&f);
}

/* The next position is the length of the text, not of what a dropper kept of it. */
Test(draft_accounting, defect_8_positions_go_on_at_the_true_length_of_the_text)
{
    fx_t f;
    setup(&f);
    for (int i = 0; i < N_BODIES; i++) {
        uint32_t drafts[N_DRAFT];
        node_drafter_t *d = drafter(&f, i, N_PROMPT);
        draft(d, N_DRAFT, drafts);
        cr_assert_eq(node_drafter_kv(d)->n_tokens, N_PROMPT + N_DRAFT - 1);
        cr_assert_eq(node_drafter_kv(d)->first_block, f.bodies[i] ? N_BLOCKS : 0);
        node_drafter_destroy(d);
    }
    teardown(&f);
}

/* Commits of many tokens at once, over the boundaries of blocks and residual windows, against one by one. */
Test(draft_accounting, defect_10_commits_of_any_size_across_a_boundary_are_commits_one_by_one)
{
    static const uint32_t sizes[] = {1, 57, 2, 64, 3, 70};
    fx_t f;
    setup(&f);
    for (int i = 0; i < N_BODIES; i++) {
        uint32_t n = N_PROMPT;
        node_drafter_t *d = drafter(&f, i, n);
        for (size_t s = 0; s < VC_ARRAY_LEN(sizes); n += sizes[s], s++)
            GEN_OK(node_drafter_commit(d, f.text + n, sizes[s], NULL, &gen_err));
        check_fresh(&f, i, d, n, "commits of any size");
        node_drafter_destroy(d);
    }
    teardown(&f);
}

Test(draft_accounting, defect_18_one_body_serves_question_after_question)
{
    fx_t f;
    setup(&f);
    for (int i = 1; i < N_BODIES; i++) {
        uint32_t first[N_DRAFT], again[N_DRAFT], bytes = (uint32_t)f.bodies[i]->bytes;
        node_drafter_t *d = drafter(&f, i, N_PROMPT);
        draft(d, N_DRAFT, first);
        GEN_OK(node_drafter_commit(d, f.text + N_PROMPT, 90, NULL, &gen_err));
        draft(d, N_DRAFT, again);
        node_drafter_destroy(d);
        d = drafter(&f, i, N_PROMPT); /* the next question about the same text */
        draft(d, N_DRAFT, again);
        cr_assert(memcmp(first, again, sizeof first) == 0, "%s: another answer the second time", bodies[i]);
        cr_assert_eq(f.bodies[i]->bytes, bytes);
        node_drafter_destroy(d);
    }
    teardown(&f);
}

/* Rows that are cut are gone: counted, zeroed, and below the body it is refused rather than ignored. */
Test(draft_accounting, defect_20_a_rollback_happens_or_says_that_it_cannot)
{
    fx_t f;
    setup(&f);
    for (int i = 1; i < N_BODIES; i++) {
        node_kv_t kv;
        node_kv_dims_t dims;
        node_engine_kv_dims(f.engine, &dims);
        GEN_OK(node_kv_init(&kv, &dims, f.bodies[i]));
        GEN_OK(node_prefill(f.engine, &kv, f.text + N_BLOCKS * NODE_TILE, 20, NULL, NULL, &gen_err));
        GEN_OK(node_kv_truncate(&kv, N_BLOCKS * NODE_TILE + 7));
        cr_assert_eq(kv.n_tokens, N_BLOCKS * NODE_TILE + 7);
        for (uint32_t row = 7; row < NODE_TILE; row++)
            for (uint32_t c = 0; c < dims.head_dim; c++)
                cr_assert_eq(node_page_v(kv.pages[0], 0, 0)[row * dims.head_dim + c], 0, "row %u is still there", row);
        cr_assert_neq(node_kv_truncate(&kv, N_BLOCKS * NODE_TILE - 1), VC_OK);
        cr_assert_eq(kv.n_tokens, N_BLOCKS * NODE_TILE + 7);
        node_kv_fini(&kv);
    }
    teardown(&f);
}

/* Two requests whose rows share a pass, each over its own body, against the same alone. */
Test(draft_accounting, defect_9_two_requests_in_one_pass_are_two_alone)
{
    fx_t f;
    setup(&f);
    const uint32_t n_vocab = node_engine_info(f.engine)->n_vocab;
    node_kv_dims_t dims;
    node_engine_kv_dims(f.engine, &dims);
    float *both = vc_calloc(2 * (size_t)n_vocab, sizeof *both), *alone = vc_calloc(n_vocab, sizeof *alone);
    cr_assert(both && alone);
    for (int i = 1; i + 1 < N_BODIES; i++) {
        node_kv_t kv[2], single;
        for (int k = 0; k < 2; k++)
            GEN_OK(node_kv_init(&kv[k], &dims, f.bodies[i + k]));
        GEN_OK(node_prefill(f.engine, &kv[1], f.text + N_BLOCKS * NODE_TILE, 3, NULL, NULL, &gen_err)); /* longer */
        const node_row_t rows[2] = {{&kv[0], 11, true}, {&kv[1], 12, true}};
        GEN_OK(node_forward(f.engine, rows, 2, both, NULL, &gen_err));
        for (int k = 0; k < 2; k++) {
            GEN_OK(node_kv_init(&single, &dims, f.bodies[i + k]));
            if (k == 1)
                GEN_OK(node_prefill(f.engine, &single, f.text + N_BLOCKS * NODE_TILE, 3, NULL, NULL, &gen_err));
            const node_row_t row = {&single, 11 + (uint32_t)k, true};
            GEN_OK(node_forward(f.engine, &row, 1, alone, NULL, &gen_err));
            cr_assert(memcmp(alone, both + (size_t)k * n_vocab, n_vocab * sizeof *alone) == 0, "%s", bodies[i + k]);
            node_kv_fini(&single);
            node_kv_fini(&kv[k]);
        }
    }
    vc_free(both);
    vc_free(alone);
    teardown(&f);
}

/* The last round is shorter than the one before: what is left of the budget, down to nothing. */
Test(draft_accounting, defect_21_a_last_round_of_fewer_drafts_loses_no_token)
{
    fx_t f;
    setup(&f);
    for (int i = 0; i < N_BODIES; i++) {
        gen_request_t r = {.engine = f.engine, .prompt = f.text, .n_prompt = N_PROMPT, .spec = bodies[i]};
        for (uint32_t budget = 1 + (uint32_t)i % VT_EVERY; budget <= 14; budget += VT_EVERY) {
            gen_result_t plain, ours;
            r.max_tokens = budget;
            r.x = 0;
            gen_run(&r, &plain);
            r.x = 5;
            gen_run(&r, &ours);
            cr_assert_eq(ours.n, budget);
            GEN_EQUAL(&plain, &ours, "%s, budget %u", bodies[i] ? bodies[i] : "no body", budget);
        }
    }
    teardown(&f);
}
