/*
 * Logits of a part of the vocabulary: the bits that the whole matrix gives, whatever else is in the pass; and a drafter
 * that chooses among a part, whose drafts are as good as any and which gives the part up where the text is not for it.
 */
#include <string.h>

#include "model/vocab_part.h"
#include "support/generation.h"

enum { N_PROMPT = 90, N_VOCAB = 1600, N_NEW = 30 };

typedef struct {
    gen_model_t model;
    node_engine_t *engine;
    node_kv_dims_t dims;
    uint32_t prompt[N_PROMPT];
} fx_t;

static void setup(fx_t *f, bool f32, node_isa_t isa)
{
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    o.n_vocab = N_VOCAB;
    o.f32 = f32;
    gen_model_open(&f->model, &o);
    f->engine = gen_engine(&f->model, 2, isa);
    node_engine_kv_dims(f->engine, &f->dims);
    gen_prompt(8, f->prompt, N_PROMPT);
}

static void teardown(fx_t *f)
{
    node_engine_destroy(f->engine);
    gen_model_close(&f->model);
}

static void compare_bits(bool f32, node_isa_t isa)
{
    fx_t f;
    node_kv_t whole, some[2];
    node_vocab_part_t *parts[2];
    float *logits = vc_calloc(4 * N_VOCAB, sizeof *logits);
    setup(&f, f32, isa);
    GEN_OK(node_kv_init(&whole, &f.dims, NULL));
    for (uint32_t p = 0; p < 2; p++) {
        GEN_OK(node_kv_init(&some[p], &f.dims, NULL));
        GEN_OK(node_vocab_part_create(f.engine, 50, &parts[p], &gen_err));
        for (uint32_t i = 0; i < 37 + p; i++)
            cr_assert(node_vocab_part_add(parts[p], (i * 331 + 5 * p) % N_VOCAB));
        some[p].part = parts[p];
    }
    /* a row for each, and one more of the whole behind them: three runs of unlike rows */
    const node_row_t rows[4] = {
        {&some[0], f.prompt[0], true}, {&some[1], f.prompt[0], true}, {&whole, f.prompt[0], true}, {&whole, 7, true}};
    GEN_OK(node_forward(f.engine, rows, 4, logits, NULL, &gen_err));
    for (uint32_t p = 0; p < 2; p++) {
        uint32_t n;
        const uint32_t *tokens = node_vocab_part_tokens(parts[p], &n);
        cr_assert_eq(n, 37 + p);
        for (uint32_t i = 0; i < n; i++)
            cr_assert_eq(memcmp(&logits[p * N_VOCAB + i], &logits[2 * N_VOCAB + tokens[i]], sizeof *logits), 0,
                         "part %u, token %u", p, tokens[i]);
        node_kv_fini(&some[p]);
        node_vocab_part_destroy(parts[p]);
    }
    node_kv_fini(&whole);
    vc_free(logits);
    teardown(&f);
}

Test(vocab_part, has_the_bits_of_the_whole_matrix_on_every_instruction_set)
{
    for (node_isa_t isa = NODE_ISA_SCALAR; isa <= NODE_ISA_AVX512; isa++)
        if (node_isa_available(isa)) {
            compare_bits(false, isa);
            compare_bits(true, isa);
        }
}

Test(vocab_part, refuses_what_does_not_fit_and_takes_a_token_once)
{
    fx_t f;
    node_vocab_part_t *part;
    uint32_t n;
    setup(&f, false, NODE_ISA_AUTO);
    GEN_OK(node_vocab_part_create(f.engine, 2, &part, &gen_err));
    cr_assert(node_vocab_part_add(part, 9));
    cr_assert(node_vocab_part_add(part, 9));
    cr_assert_not(node_vocab_part_add(part, N_VOCAB));
    cr_assert_not(node_vocab_part_has(part, N_VOCAB));
    cr_assert_not(node_vocab_part_has(part, 8));
    cr_assert(node_vocab_part_add(part, 8));
    cr_assert_not(node_vocab_part_add(part, 7), "no room");
    cr_assert(node_vocab_part_has(part, 8));
    node_vocab_part_tokens(part, &n);
    cr_assert_eq(n, 2);
    node_vocab_part_destroy(part);
    teardown(&f);
}

/* Drafts of a request with the full KV, which are right wherever they can be; returns how many were. */
static uint32_t right_drafts(const fx_t *f, uint32_t n_common, uint32_t *n_p)
{
    gen_request_t r = {.engine = f->engine, .prompt = f->prompt, .n_prompt = N_PROMPT, .max_tokens = N_NEW};
    node_verifier_t *v = gen_verifier(&r);
    node_verdict_t verdict;
    node_drafter_opts_t o;
    node_drafter_t *d;
    uint32_t n, right = 0;
    GEN_OK(node_verifier_start(v, 0, &verdict, &gen_err));
    const uint32_t *tokens = node_verifier_tokens(v, &n);
    node_drafter_opts_default(&o);
    o.engine = f->engine;
    o.n_common = n_common;
    GEN_OK(node_drafter_create(&o, tokens, n, &d, &gen_err));
    for (*n_p = 0; verdict.finish == NODE_FINISH_NONE; ++*n_p) {
        node_pick_t pick;
        GEN_OK(node_drafter_next(d, &pick, &gen_err));
        GEN_OK(node_verifier_step(v, NULL, 0, &verdict, &gen_err));
        right += pick.token == verdict.tokens[0];
        GEN_OK(node_drafter_commit(d, verdict.tokens, verdict.n_tokens, NULL, &gen_err));
    }
    node_drafter_destroy(d);
    node_verifier_destroy(v);
    return right;
}

Test(vocab_part, a_drafter_gives_the_part_up_where_the_text_leaves_it)
{
    fx_t f;
    uint32_t n;
    setup(&f, false, NODE_ISA_AUTO);
    cr_assert_eq(right_drafts(&f, 0, &n), n);
    cr_assert_eq(right_drafts(&f, N_VOCAB / 2, &n), n, "not few: all tokens");
    /* the tiny model's text has new tokens all the time: some drafts miss, then all tokens are there again */
    uint32_t right = right_drafts(&f, 1, &n);
    cr_assert_lt(right, n);
    cr_assert_geq(right, n - 6, "%u of %u", right, n);
    teardown(&f);
}
