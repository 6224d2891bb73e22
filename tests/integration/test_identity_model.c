/*
 * The identity suite's diagonal on the real model (VERICACHE_MODEL), and how well a drafter does whose KV differs from
 * the verifier's by relative noise of 1e-6: the arithmetic must not turn such a difference into other tokens.
 */
#include <stdlib.h>

#include "support/batching.h"
#include "support/file.h"
#include "support/tmpdir.h"

#define TEXT_TOKENS 1200u

typedef struct {
    gen_model_t model;
    uint32_t *ids, n;
} fx_t;

static bool setup(fx_t *f)
{
    const char *path = getenv("VERICACHE_MODEL");
    if (!path || !path[0]) {
        printf("skipped: VERICACHE_MODEL names no model\n");
        return false;
    }
    gen_model_open_file(&f->model, path);
    size_t bytes;
    char *text = (char *)vt_vector_read("text/mixed.txt", &bytes);
    GEN_OK(node_tokenizer_encode(f->model.tok, text, bytes, false, &f->ids, &f->n, &gen_err));
    vc_free(text);
    cr_assert_geq(f->n, TEXT_TOKENS);
    return true;
}

static void teardown(fx_t *f)
{
    vc_free(f->ids);
    gen_model_close(&f->model);
}

typedef struct {
    uint32_t x;
    const char *spec;
    uint32_t threads, cut, hit;
    node_isa_t isa;
    bool sampled;
} diagonal_t;

static void run_diagonal(const fx_t *f, uint32_t n_prompt, uint32_t n_new, const diagonal_t *runs, size_t n_runs)
{
    gen_result_t base[2], got;
    node_page_t *pages[GEN_BLOCKS];
    uint32_t n_pages = 0;
    for (size_t i = 0; i < n_runs; i++) {
        const diagonal_t *d = &runs[i];
        if (!node_isa_available(d->isa)) {
            printf("not on this CPU: %s\n", node_isa_name(d->isa));
            continue;
        }
        gen_request_t r = {.engine = gen_engine(&f->model, d->threads, d->isa),
                           .prompt = f->ids,
                           .n_prompt = n_prompt,
                           .max_tokens = n_new,
                           .sampling = gen_sampled(d->sampled, 77)};
        if (i < 2) /* the first two are the bases: plain, greedy then sampled */
            gen_run(&r, &base[i]);
        if (i == 0)
            n_pages = gen_reload(&r, pages);
        r.x = d->x;
        r.spec = d->spec;
        r.cut = d->cut;
        r.pages = pages;
        r.n_pages = VC_MIN(d->hit, n_pages);
        gen_run(&r, &got);
        GEN_EQUAL(&base[d->sampled], &got, "run %zu: x %u, %s, %u threads, cut %u, hit %u, %s", i, d->x, d->spec,
                  d->threads, d->cut, r.n_pages, node_isa_name(d->isa));
        if (d->spec && !strcmp(d->spec, "none"))
            cr_assert_eq(got.stats.n_accepted, got.stats.n_proposed);
        node_engine_destroy(r.engine);
    }
    for (uint32_t i = 0; i < n_pages; i++)
        node_page_put(pages[i]);
}

Test(identity_model, a_diagonal_of_the_axes_gives_the_bits_of_the_base)
{
    fx_t f;
    if (VT_EVERY > 1) {
        cr_skip_test("of the release build: test_identity and test_smollm2 run everywhere");
        return;
    }
    if (!setup(&f)) {
        cr_skip_test("VERICACHE_MODEL names no model");
        return;
    }
    const node_isa_t best = NODE_ISA_AUTO;
    const diagonal_t runs[] = {
        {1, "none", 2, 0, 0, best, false},
        {4, "kivi:bits=4", 2, 65, 1, best, true},
        {2, "noise:eps=0.2,seed=1", 1, 64, 2, best, false},
        {7, "snapkv:keep=0.25,window=64", 2, 63, 0, best, false},
        {16, "kivi:bits=2,residual=64", 1, 128, 3, NODE_ISA_AVX2_PLAIN, false},
        {30, "none", 2, 1, 3, best, true},
        {64, "noise:eps=0.05,seed=2", 2, 0, 4, NODE_ISA_AVX2, true},
        {NODE_DRAFT_AUTO, "kivi:bits=4", 2, 100, 2, best, false},
        {8, "rot:bits=4", 2, 64, 2, best, false},
    };
    run_diagonal(&f, 270, 24, runs, VC_ARRAY_LEN(runs));
    teardown(&f);
}

Test(identity_model, scalar_code_gives_the_bits_of_the_vector_code)
{
    fx_t f;
    if (VT_EVERY > 1) {
        cr_skip_test("of the release build: test_smollm2 runs scalar code on this model everywhere");
        return;
    }
    if (!setup(&f)) {
        cr_skip_test("VERICACHE_MODEL names no model");
        return;
    }
    const diagonal_t runs[] = {
        {3, "none", 2, 0, 0, NODE_ISA_AUTO, false},
        {5, "none", 2, 0, 0, NODE_ISA_AUTO, true},
        {2, "noise:eps=0.2,seed=1", 2, 33, 0, NODE_ISA_SCALAR, false},
    };
    run_diagonal(&f, 68, 6, runs, VC_ARRAY_LEN(runs));
    teardown(&f);
}

/* ---- batches ---- */

static const char *const batch_specs[BATCHING_MAX] = {
    "rot:bits=4", "snapkv:keep=0.25,window=32", "none", NULL, "kivi:bits=2,residual=64", "noise:eps=0.3,seed=5", NULL,
    "rot:bits=3",
};

/* Prompts of n_blocks that all have and a piece of text of their own, every second one with an end that says its
 * beginning again, which an n-gram source knows. */
static bool open_batches(fx_t *f, batching_t *b, uint32_t n_blocks, const uint32_t *lengths, node_page_t **pages)
{
    static uint32_t prompts[BATCHING_MAX][640];
    if (VT_EVERY > 1 || !setup(f))
        return false;
    b->model = f->model;
    batching_engine(b, 72);
    const gen_request_t shared = {
        .engine = b->engine, .prompt = f->ids, .n_prompt = n_blocks * NODE_TILE, .max_tokens = 1};
    if (n_blocks > 0)
        gen_reload(&shared, pages);
    for (uint32_t i = 0; i < BATCHING_MAX; i++) {
        uint32_t again = i % 2 && lengths[i] > 64 ? 20 : 0, *own = prompts[i] + shared.n_prompt;
        memcpy(prompts[i], f->ids, shared.n_prompt * sizeof *own);
        memcpy(own, f->ids + 500 + 60 * i, lengths[i] * sizeof *own);
        memcpy(own + lengths[i] - again, own, again * sizeof *own);
        batching_request(b, i,
                         &(gen_request_t){.prompt = prompts[i],
                                          .n_prompt = shared.n_prompt + lengths[i],
                                          .max_tokens = 6 + 3 * (i % 4),
                                          .pages = pages,
                                          .n_pages = n_blocks});
    }
    return true;
}

static void close_batches(fx_t *f, batching_t *b)
{
    node_engine_destroy(b->engine);
    teardown(f);
}

typedef struct {
    uint32_t n, x, prompt_rows, max_running;
    bool lock_step, source, arrive;
} batch_case_t;

/* dir: of the slow tier, with transfers held back; NULL: all full KV is in memory. */
static void run_batches(const batching_t *b, const batch_case_t *cases, size_t n, const char *dir)
{
    uint64_t proposed = 0;
    for (size_t k = 0; k < n; k++) {
        batching_run_t r = {.f = b,
                            .specs = batch_specs,
                            .n = cases[k].n,
                            .x = cases[k].x,
                            .prompt_rows = cases[k].prompt_rows,
                            .max_running = cases[k].max_running,
                            .lock_step = cases[k].lock_step,
                            .source = cases[k].source,
                            .dir = dir,
                            .n_pages = 5,
                            .delay_seed = dir ? 11 + k : 0,
                            .seed = cases[k].arrive ? 7 + k : 0,
                            .no_cancels = true};
        batching_go(&r);
        cr_assert_gt(r.n_compressed, 0);
        cr_assert(dir == NULL || r.info.link_bytes > 0);
        proposed += r.info.source_proposed;
    }
    cr_assert_gt(proposed, 0);
}

Test(identity_model, batches_of_2_4_and_8_in_memory_commit_what_each_request_commits_alone)
{
    static const uint32_t lengths[BATCHING_MAX] = {70, 99, 33, 66, 64, 129, 5, 81};
    static const batch_case_t cases[] = {
        {2, 4, 32, 0, false, true, false},
        {4, NODE_DRAFT_AUTO, 50, 0, true, true, true},
        {8, NODE_DRAFT_AUTO, 24, 0, false, true, true},
        {8, 3, 128, 0, true, false, false},
    };
    fx_t f;
    batching_t b;
    if (!open_batches(&f, &b, 0, lengths, NULL)) {
        cr_skip_test("of the release build with VERICACHE_MODEL: test_identity_batch runs everywhere");
        return;
    }
    run_batches(&b, cases, VC_ARRAY_LEN(cases), NULL);
    close_batches(&f, &b);
}

Test(identity_model, batches_with_full_kv_on_disk_and_transfers_held_back_commit_what_each_request_commits_alone)
{
    enum { N_BLOCKS = 6 };
    static const uint32_t lengths[BATCHING_MAX] = {20, 66, 11, 30, 70, 25, 9, 40};
    static const batch_case_t cases[] = {
        {2, 5, 0, 0, false, true, false},
        {4, NODE_DRAFT_AUTO, 0, 0, true, true, false},
        {8, NODE_DRAFT_AUTO, 0, 0, false, true, true},
        {8, 4, 0, 3, true, false, false},
    };
    fx_t f;
    batching_t b;
    vt_tmpdir_t dir;
    node_page_t *pages[N_BLOCKS];
    if (!open_batches(&f, &b, N_BLOCKS, lengths, pages)) {
        cr_skip_test("of the release build with VERICACHE_MODEL: test_identity_batch runs everywhere");
        return;
    }
    vt_tmpdir_create(&dir);
    run_batches(&b, cases, VC_ARRAY_LEN(cases), vt_tmpdir_path(&dir, ""));
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        node_page_put(pages[i]);
    vt_tmpdir_remove(&dir);
    close_batches(&f, &b);
}

/* ---- match chance at 1e-6 ---- */

static uint32_t argmax(const float *l, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (l[i] > l[best])
            best = i;
    return best;
}

/* Argmax behind every token of ids[first, end), appended to kv. */
static void predict(node_engine_t *e, node_kv_t *kv, const uint32_t *ids, uint32_t first, uint32_t end, uint32_t *out)
{
    enum { ROWS = 64 };
    uint32_t n_vocab = node_engine_info(e)->n_vocab;
    float *logits = vc_alloc_aligned(64, (size_t)ROWS * n_vocab * sizeof *logits);
    node_row_t rows[ROWS];
    cr_assert_not_null(logits);
    for (uint32_t at = first; at < end; at += ROWS) {
        uint32_t n = VC_MIN(ROWS, end - at);
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (node_row_t){kv, ids[at + i], true};
        GEN_OK(node_forward(e, rows, n, logits, NULL, &gen_err));
        for (uint32_t i = 0; i < n; i++)
            out[at - first + i] = argmax(logits + (size_t)i * n_vocab, n_vocab);
    }
    vc_free(logits);
}

/*
 * Two measures. Forced: the text's own tokens behind 256 compressed ones, the share of positions where drafter and
 * verifier would choose alike; its tail rows are computed on the noisy body, which is harder than drafting, where the
 * tail is the verifier's. Drafted: accepted over looked at in generations from several places of the text.
 */
Test(identity_model, a_drafter_with_relative_noise_of_1e_6_matches_at_least_998_in_1000)
{
    fx_t f;
    if (VT_EVERY > 1) {
        cr_skip_test("chances are of the release build");
        return;
    }
    if (!setup(&f)) {
        cr_skip_test("VERICACHE_MODEL names no model");
        return;
    }
    enum { BODY = 256 };
    node_engine_t *e = gen_engine(&f.model, 2, NODE_ISA_AUTO);
    node_kv_dims_t dims;
    node_kv_t full, noisy;
    node_spec_t spec;
    node_body_t *body = NULL;
    node_engine_kv_dims(e, &dims);
    GEN_OK(node_kv_init(&full, &dims, NULL));
    GEN_OK(node_prefill(e, &full, f.ids, BODY, NULL, NULL, &gen_err));
    GEN_OK(node_spec_parse("noise:eps=1e-6,seed=1", &spec, &gen_err));
    GEN_OK(node_local_body(e, &spec, &full, f.ids, BODY / NODE_TILE, &body, &gen_err));
    GEN_OK(node_kv_init(&noisy, &dims, body));
    static uint32_t want[TEXT_TOKENS], got[TEXT_TOKENS];
    predict(e, &full, f.ids, BODY, TEXT_TOKENS, want);
    predict(e, &noisy, f.ids, BODY, TEXT_TOKENS, got);
    uint32_t same = 0, n = TEXT_TOKENS - BODY;
    for (uint32_t i = 0; i < n; i++)
        same += want[i] == got[i];
    uint64_t accepted = 0, looked_at = 0;
    for (uint32_t start = 300; start <= 1100; start += 200) {
        gen_request_t r = {.engine = e, .prompt = f.ids, .n_prompt = start, .max_tokens = 50};
        gen_result_t out;
        r.x = 16;
        r.spec = "noise:eps=1e-6,seed=1";
        gen_run(&r, &out);
        accepted += out.stats.n_accepted;
        looked_at += out.stats.n_drafted;
    }
    printf("forced: %u of %u alike; drafted: %llu of %llu accepted\n", same, n, (unsigned long long)accepted,
           (unsigned long long)looked_at);
    cr_assert_geq(same * 1000, n * 998);
    cr_assert_geq(accepted * 1000, looked_at * 998);
    node_kv_fini(&noisy);
    node_kv_fini(&full);
    node_body_put(body);
    node_engine_destroy(e);
    teardown(&f);
}
