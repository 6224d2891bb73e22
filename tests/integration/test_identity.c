/*
 * Identity: what is committed is the same bit for bit however it was made. Tokens, a digest of all committed logit rows
 * and a digest of the full KV are compared over
 *   draft length x compressor x threads x prefill cut x prefix hit (KV reloaded from full records) x ISA x
 *   draft source x greedy/sampled on a small random model: every value of each axis against the base, and a set of runs
 * in which every pair of values of two axes occurs. Methods that need a replay or a calibration are in test_methods.
 * VC_IDENTITY_LONG=1 runs the full product. Then the cases that broke other systems, and a diagonal on the real model
 * where VERICACHE_MODEL names it.
 */
#include <stdlib.h>
#include <time.h>

#include "support/generation.h"

enum { N_PROMPT = 276, N_NEW = 40, N_AXES = 8, MAX_VALUES = 11 };
typedef enum { AX_X, AX_SPEC, AX_THREADS, AX_CUT, AX_HIT, AX_ISA, AX_SOURCE, AX_SAMPLED } axis_t;

static const uint32_t lengths[] = {0, 1, 2, 3, 4, 5, 7, 8, 16, 30, 64};
static const char *const specs[] = {"none",
                                    "noise:eps=0.5,seed=3",
                                    "snapkv:keep=0.25,window=32",
                                    "kivi:bits=2,group=16,residual=64",
                                    "rot:bits=3,group=16",
                                    "rot:bits=4",
                                    "kivi:bits=8,group=16,residual=64",
                                    "expected_attention:keep=0.25",
                                    "snapkv:keep=0.5,window=32+rot:bits=2"};
static const uint32_t cuts[] = {0, 1, 63, 64, 65, 128};
enum { HIT_NONE, HIT_ONE, HIT_HALF, HIT_ALL, N_HITS };

typedef struct {
    gen_model_t model;
    uint32_t n_values[N_AXES];
    node_isa_t isas[3];
    node_engine_t *engines[2][3]; /* [threads - 1][isa] */
    uint32_t prompt[N_PROMPT];
    node_page_t *pages[GEN_BLOCKS];
    uint32_t n_blocks;
    gen_result_t base[2]; /* greedy, sampled */
    /* what the runs showed */
    uint64_t n_runs, none_proposed, none_accepted, noise_proposed, noise_accepted, source_proposed, source_accepted;
} fx_t;

static void run_case(fx_t *f, const uint32_t *v, gen_result_t *out)
{
    const uint32_t hits[N_HITS] = {0, 1, f->n_blocks / 2, f->n_blocks};
    gen_request_t r = {.engine = f->engines[v[AX_THREADS]][v[AX_ISA]],
                       .prompt = f->prompt,
                       .n_prompt = N_PROMPT,
                       .max_tokens = N_NEW,
                       .sampling = gen_sampled(v[AX_SAMPLED], 20),
                       .x = lengths[v[AX_X]],
                       .spec = specs[v[AX_SPEC]],
                       .cut = cuts[v[AX_CUT]],
                       .pages = f->pages,
                       .n_pages = hits[v[AX_HIT]],
                       .source = v[AX_SOURCE] ? gen_suffix() : NULL};
    gen_run(&r, out);
    f->source_proposed += out->session.source_proposed;
    f->source_accepted += out->session.source_accepted;
    node_source_destroy(r.source);
    f->n_runs++;
    if (v[AX_SPEC] == 0) {
        f->none_proposed += out->stats.n_proposed;
        f->none_accepted += out->stats.n_accepted;
    } else if (v[AX_SPEC] == 1) {
        f->noise_proposed += out->stats.n_proposed;
        f->noise_accepted += out->stats.n_accepted;
    }
}

static void check_case(fx_t *f, const uint32_t *v)
{
    gen_result_t got;
    run_case(f, v, &got);
    GEN_EQUAL(&f->base[v[AX_SAMPLED]], &got, "x %u, %s, %u threads, cut %u, hit %u, %s, %s, %s", lengths[v[AX_X]],
              specs[v[AX_SPEC]], v[AX_THREADS] + 1, cuts[v[AX_CUT]], v[AX_HIT], node_isa_name(f->isas[v[AX_ISA]]),
              v[AX_SOURCE] ? "suffix source" : "no source", v[AX_SAMPLED] ? "sampled" : "greedy");
}

static void setup(fx_t *f)
{
    memset(f, 0, sizeof *f);
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    gen_model_open(&f->model, &o);
    const node_isa_t all[] = {NODE_ISA_SCALAR, NODE_ISA_AVX2, NODE_ISA_AVX512};
    for (int i = 0; i < 3; i++) {
        if (!node_isa_available(all[i])) {
            printf("not on this CPU: %s\n", node_isa_name(all[i]));
            continue;
        }
        uint32_t n = f->n_values[AX_ISA]++;
        f->isas[n] = all[i];
        for (uint32_t t = 0; t < 2; t++)
            f->engines[t][n] = gen_engine(&f->model, t + 1, all[i]);
    }
    f->n_values[AX_X] = VC_ARRAY_LEN(lengths);
    f->n_values[AX_SPEC] = VC_ARRAY_LEN(specs);
    f->n_values[AX_THREADS] = f->n_values[AX_SOURCE] = f->n_values[AX_SAMPLED] = 2;
    f->n_values[AX_CUT] = VC_ARRAY_LEN(cuts);
    f->n_values[AX_HIT] = N_HITS;
    gen_prompt(1, f->prompt, N_PROMPT);
    gen_request_t r = {.engine = f->engines[0][0], .prompt = f->prompt, .n_prompt = N_PROMPT, .max_tokens = 1};
    f->n_blocks = gen_reload(&r, f->pages);
    for (uint32_t s = 0; s < 2; s++) {
        uint32_t v[N_AXES] = {0};
        v[AX_SAMPLED] = s;
        run_case(f, v, &f->base[s]);
        cr_assert_eq(f->base[s].n, N_NEW);
    }
    cr_assert_neq(f->base[0].tokens[N_NEW - 1] == f->base[1].tokens[N_NEW - 1] &&
                      gen_digest_equal(&f->base[0].logits, &f->base[1].logits),
                  true, "sampling changed nothing");
}

static void teardown(fx_t *f)
{
    for (uint32_t b = 0; b < f->n_blocks; b++)
        node_page_put(f->pages[b]);
    for (uint32_t t = 0; t < 2; t++)
        for (uint32_t i = 0; i < f->n_values[AX_ISA]; i++)
            node_engine_destroy(f->engines[t][i]);
    gen_model_close(&f->model);
}

static void check_acceptance(const fx_t *f)
{
    printf("%llu runs; none accepted %llu of %llu drafts, noise %llu of %llu; of the source %llu of %llu\n",
           (unsigned long long)f->n_runs, (unsigned long long)f->none_accepted, (unsigned long long)f->none_proposed,
           (unsigned long long)f->noise_accepted, (unsigned long long)f->noise_proposed,
           (unsigned long long)f->source_accepted, (unsigned long long)f->source_proposed);
    cr_assert_gt(f->none_proposed, 0);
    cr_assert_eq(f->none_accepted, f->none_proposed);
    cr_assert_gt(f->noise_proposed, f->noise_accepted);
}

Test(identity, every_value_of_every_axis_gives_the_bits_of_the_base)
{
    fx_t f;
    if (VT_EVERY > 1) {
        cr_skip_test("of the release build: the pairs of values have every value");
        return;
    }
    setup(&f);
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t axis = 0; axis < AX_SAMPLED; axis++)
            for (uint32_t value = 0; value < f.n_values[axis]; value++) {
                uint32_t v[N_AXES] = {[AX_SAMPLED] = s};
                if (axis != AX_X)
                    v[AX_X] = 4; /* a compressor or a hit without drafts would show little */
                v[axis] = value;
                check_case(&f, v);
            }
    /* drafts of every length from every compressor: the heart of it */
    for (uint32_t x = 0; x < f.n_values[AX_X]; x++)
        for (uint32_t spec = 0; spec < f.n_values[AX_SPEC]; spec++) {
            uint32_t v[N_AXES] = {[AX_X] = x, [AX_SPEC] = spec, [AX_ISA] = f.n_values[AX_ISA] - 1};
            check_case(&f, v);
        }
    check_acceptance(&f);
    teardown(&f);
}

/* ---- pairwise covering set ---- */

typedef struct {
    bool seen[N_AXES][N_AXES][MAX_VALUES][MAX_VALUES];
    uint32_t left;
} pairs_t;

static void pairs_init(const fx_t *f, pairs_t *p)
{
    memset(p, 0, sizeof *p);
    for (uint32_t a = 0; a < N_AXES; a++)
        for (uint32_t b = a + 1; b < N_AXES; b++)
            p->left += f->n_values[a] * f->n_values[b];
}

static uint32_t pairs_new(pairs_t *p, const uint32_t *v, bool mark)
{
    uint32_t n = 0;
    for (uint32_t a = 0; a < N_AXES; a++)
        for (uint32_t b = a + 1; b < N_AXES; b++)
            if (!p->seen[a][b][v[a]][v[b]]) {
                n++;
                p->seen[a][b][v[a]][v[b]] = mark;
            }
    return n;
}

static uint32_t next_random(uint64_t *s, uint32_t n)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33) % n;
}

/* A pair that is still missing, the rest at random; of forty such candidates the one that covers most. */
static void pick_case(const fx_t *f, pairs_t *p, uint64_t *rng, uint32_t *best)
{
    uint32_t best_new = 0;
    for (int candidate = 0; candidate < 40; candidate++) {
        uint32_t v[N_AXES], a, b;
        for (uint32_t i = 0; i < N_AXES; i++)
            v[i] = next_random(rng, f->n_values[i]);
        for (uint32_t start = next_random(rng, N_AXES * N_AXES), k = 0; k < N_AXES * N_AXES; k++) {
            a = (start + k) % (N_AXES * N_AXES) / N_AXES;
            b = (start + k) % N_AXES;
            bool found = false;
            for (uint32_t i = 0; a < b && !found && i < f->n_values[a]; i++)
                for (uint32_t j = 0; !found && j < f->n_values[b]; j++)
                    if (!p->seen[a][b][i][j]) {
                        v[a] = i;
                        v[b] = j;
                        found = true;
                    }
            if (found)
                break;
        }
        uint32_t n = pairs_new(p, v, false);
        if (n > best_new) {
            best_new = n;
            memcpy(best, v, sizeof v);
        }
    }
    cr_assert_gt(best_new, 0);
    p->left -= pairs_new(p, best, true);
}

Test(identity, every_pair_of_values_of_two_axes_gives_the_bits_of_the_base)
{
    fx_t f;
    setup(&f);
    pairs_t *p = vc_calloc(1, sizeof *p);
    uint64_t rng = 1;
    for (pairs_init(&f, p); p->left;) {
        uint32_t v[N_AXES];
        pick_case(&f, p, &rng, v);
        check_case(&f, v);
    }
    vc_free(p);
    check_acceptance(&f);
    teardown(&f);
}

#define STRIDE 7919u /* a prime that divides no product of the axes */

Test(identity, the_full_product_gives_the_bits_of_the_base)
{
    const char *wanted = getenv("VC_IDENTITY_LONG");
    if (!wanted || strcmp(wanted, "1") != 0) {
        printf("skipped: the full product takes minutes, VC_IDENTITY_LONG=1 runs it\n");
        cr_skip_test("VC_IDENTITY_LONG=1 runs it");
        return;
    }
    fx_t f;
    setup(&f);
    uint64_t total = 1;
    for (uint32_t a = 0; a < N_AXES; a++)
        total *= f.n_values[a];
    for (uint64_t i = 0; i < total; i++) {
        uint32_t v[N_AXES];
        uint64_t rest = i * STRIDE % total; /* a run that is cut short has seen a bit of everything */
        for (uint32_t a = 0; a < N_AXES; rest /= f.n_values[a], a++)
            v[a] = (uint32_t)(rest % f.n_values[a]);
        check_case(&f, v);
        if (i % 500 == 0) {
            printf("%llu of %llu\n", (unsigned long long)i, (unsigned long long)total);
            fflush(stdout);
        }
    }
    check_acceptance(&f);
    teardown(&f);
}

/* ---- cases that broke other systems ---- */

enum { STEP = VT_EVERY * VT_EVERY }; /* sanitized builds take every length and every compressor, not their product */

static void all_widths(gen_request_t *r, const char *what)
{
    gen_result_t base, got;
    r->x = 0;
    gen_run(r, &base);
    for (size_t i = 1; i < VC_ARRAY_LEN(lengths); i++)
        for (size_t s = i % STEP; s <= VC_ARRAY_LEN(specs); s += STEP) {
            r->x = lengths[i];
            r->spec = s < VC_ARRAY_LEN(specs) ? specs[s] : NULL;
            gen_run(r, &got);
            GEN_EQUAL(&base, &got, "%s, x %u, %s", what, r->x, r->spec ? r->spec : "no body");
        }
}

static void with_tiny(gen_model_t *m, gen_request_t *r, uint32_t *prompt, uint32_t n_prompt)
{
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    gen_model_open(m, &o);
    *r = (gen_request_t){.engine = gen_engine(m, 1, NODE_ISA_AUTO),
                         .tok = m->tok,
                         .prompt = prompt,
                         .n_prompt = n_prompt,
                         .max_tokens = 40};
}

static void close_tiny(gen_model_t *m, gen_request_t *r)
{
    node_engine_destroy(r->engine);
    gen_model_close(m);
}

Test(identity, one_word_forty_eight_times)
{
    gen_model_t m;
    gen_request_t r;
    uint32_t prompt[48 * 3];
    with_tiny(&m, &r, prompt, VC_ARRAY_LEN(prompt));
    for (uint32_t i = 0; i < VC_ARRAY_LEN(prompt); i++) /* " fox": three tokens, the block boundary falls inside */
        prompt[i] = TINY_ID_FIRST_BYTE + (uint32_t) " fo"[i % 3];
    all_widths(&r, "three tokens a word");
    for (uint32_t i = 0; i < VC_ARRAY_LEN(prompt); i++)
        prompt[i] = TINY_ID_FIRST_BYTE + 'x';
    r.n_prompt = 48;
    all_widths(&r, "one token a word");
    close_tiny(&m, &r);
}

/* Rows of the output matrix in pairs of equal ones: every logit is exactly tied with another. */
Test(identity, exactly_tied_logits_go_to_the_lowest_id_on_every_path)
{
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    gen_model_t m;
    gen_model_open(&m, &o);
    const node_gguf_tensor_t *t = node_gguf_tensor(m.gguf, "output.weight");
    size_t row = t->bytes / TINY_N_VOCAB;
    uint8_t *data = (uint8_t *)m.image.data + ((const uint8_t *)t->data - (const uint8_t *)m.image.data);
    for (size_t i = 0; i + 1 < TINY_N_VOCAB; i += 2)
        memcpy(data + (i + 1) * row, data + i * row, row);
    uint32_t prompt[200];
    gen_prompt(4, prompt, 200);
    gen_request_t r = {.engine = gen_engine(&m, 1, NODE_ISA_AUTO), .prompt = prompt, .n_prompt = 200, .max_tokens = 40};
    gen_result_t base;
    gen_run(&r, &base);
    for (uint32_t i = 0; i < base.n; i++)
        cr_assert_eq(base.tokens[i] % 2, 0);
    all_widths(&r, "ties");
    close_tiny(&m, &r);
}

Test(identity, a_then_b_then_a_with_hits_of_every_length_and_drafts)
{
    gen_model_t m;
    gen_request_t r;
    uint32_t a[5 * 64], b[300];
    with_tiny(&m, &r, a, VC_ARRAY_LEN(a)); /* ends at a block boundary: a hit of all blocks leaves no row to compute */
    gen_prompt(31, a, VC_ARRAY_LEN(a));
    gen_prompt(32, b, VC_ARRAY_LEN(b));
    gen_result_t cold, other, warm;
    gen_run(&r, &cold);
    node_page_t *pages[GEN_BLOCKS];
    uint32_t n = gen_reload(&r, pages);
    cr_assert_eq(n, 5);
    for (uint32_t hit = 0; hit <= n; hit++)
        for (size_t s = hit % STEP; s < VC_ARRAY_LEN(specs); s += STEP) {
            gen_request_t rb = r;
            rb.prompt = b;
            rb.n_prompt = VC_ARRAY_LEN(b);
            rb.x = 5;
            rb.n_pages = 0;
            gen_run(&rb, &other);
            r.pages = pages;
            r.n_pages = hit;
            r.spec = specs[s];
            r.x = 3 + hit;
            gen_run(&r, &warm);
            GEN_EQUAL(&cold, &warm, "hit of %u blocks, %s", hit, specs[s]);
        }
    for (uint32_t i = 0; i < n; i++)
        node_page_put(pages[i]);
    close_tiny(&m, &r);
}

Test(identity, hits_and_cuts_at_every_offset_of_a_tile)
{
    gen_model_t m;
    gen_request_t r;
    uint32_t prompt[64 * 3];
    with_tiny(&m, &r, prompt, 0);
    gen_prompt(6, prompt, VC_ARRAY_LEN(prompt));
    r.max_tokens = 8;
    for (uint32_t n = 64 * 2; n < 64 * 3; n++) {
        gen_result_t base, got;
        r.n_prompt = n;
        r.x = r.n_pages = r.cut = 0;
        gen_run(&r, &base);
        node_page_t *pages[GEN_BLOCKS];
        uint32_t n_pages = gen_reload(&r, pages);
        r.pages = pages;
        r.n_pages = n_pages;
        r.cut = 1 + n % 70;
        r.x = 1 + n % 5;
        gen_run(&r, &got);
        GEN_EQUAL(&base, &got, "prompt of %u tokens", n);
        for (uint32_t i = 0; i < n_pages; i++)
            node_page_put(pages[i]);
    }
    close_tiny(&m, &r);
}

Test(identity, the_same_prompt_of_3339_tokens_three_times)
{
    enum { LONG = 3339 };
    gen_model_t m;
    gen_request_t r;
    static uint32_t prompt[LONG];
    with_tiny(&m, &r, prompt, LONG);
    gen_prompt(19, prompt, LONG);
    gen_result_t first, again;
    gen_run(&r, &first);
    node_page_t *pages[GEN_BLOCKS];
    uint32_t n = gen_reload(&r, pages);
    r.pages = pages;
    const uint32_t hits[] = {n, n - 1, 26}; /* one row, a batch of rows, half of it is computed */
    for (size_t i = 0; i < VC_ARRAY_LEN(hits); i++) {
        r.n_pages = hits[i];
        r.spec = specs[i + 1];
        r.x = 4;
        gen_run(&r, &again);
        GEN_EQUAL(&first, &again, "hit of %u blocks", hits[i]);
    }
    for (uint32_t b = 0; b < n; b++)
        node_page_put(pages[b]);
    close_tiny(&m, &r);
}

Test(identity, penalties_at_every_row_of_a_draft_equal_sequential_decoding)
{
    gen_model_t m;
    gen_request_t r;
    uint32_t prompt[150];
    with_tiny(&m, &r, prompt, VC_ARRAY_LEN(prompt));
    gen_prompt(12, prompt, VC_ARRAY_LEN(prompt));
    for (int sampled = 0; sampled < 2; sampled++) {
        node_sampling_default(&r.sampling);
        r.sampling.temperature = sampled;
        r.sampling.repeat_penalty = 1.3;
        r.sampling.presence_penalty = 0.4;
        r.sampling.frequency_penalty = 0.3;
        all_widths(&r, sampled ? "sampled with penalties" : "greedy with penalties");
    }
    close_tiny(&m, &r);
}

Test(identity, equal_seeds_repeat_and_different_seeds_differ)
{
    gen_model_t m;
    gen_request_t r;
    uint32_t prompt[100];
    with_tiny(&m, &r, prompt, VC_ARRAY_LEN(prompt));
    gen_prompt(13, prompt, VC_ARRAY_LEN(prompt));
    node_sampling_default(&r.sampling);
    r.sampling.temperature = 1;
    gen_result_t first, again, other;
    gen_run(&r, &first);
    r.x = 6;
    gen_run(&r, &again);
    GEN_EQUAL(&first, &again, "same seed");
    r.sampling.seed = 1;
    gen_run(&r, &other);
    cr_assert_neq(memcmp(first.tokens, other.tokens, first.n * sizeof *first.tokens), 0);
    close_tiny(&m, &r);
}

Test(identity, adaptive_length_gives_the_plain_bits_and_the_last_round_drafts_no_more_than_fits)
{
    gen_model_t m;
    gen_request_t r;
    uint32_t prompt[200];
    with_tiny(&m, &r, prompt, VC_ARRAY_LEN(prompt));
    gen_prompt(14, prompt, VC_ARRAY_LEN(prompt));
    for (r.max_tokens = 30; r.max_tokens < 40; r.max_tokens++) {
        gen_result_t base, got;
        r.x = 0;
        gen_run(&r, &base);
        r.x = 8; /* rounds of 9 after the first token */
        r.spec = "none";
        gen_run(&r, &got);
        GEN_EQUAL(&base, &got, "budget %u", r.max_tokens);
        uint32_t rest = (r.max_tokens - 1) % 9;
        cr_assert_eq(got.last_drafts, rest ? rest - 1 : 8, "budget %u: last round of %u", r.max_tokens,
                     got.last_drafts);
        r.x = NODE_DRAFT_AUTO;
        gen_run(&r, &got);
        GEN_EQUAL(&base, &got, "adaptive, budget %u", r.max_tokens);
    }
    close_tiny(&m, &r);
}

/* ---- several requests ---- */

typedef struct {
    node_verifier_t *v;
    const gen_result_t *base;
    uint32_t at;
} member_t;

/* Rows of both requests in one pass, of other widths and other phases: one is in its prompt when the other decodes. */
static void run_together(node_engine_t *engine, member_t *m, uint32_t n, float *logits)
{
    bool open = true;
    for (uint32_t round = 0; open; round++) {
        node_row_t rows[200];
        uint32_t n_rows = 0, n_all[4] = {0}, n_logits[4] = {0}, offset = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (node_verifier_finish(m[i].v) != NODE_FINISH_NONE)
                continue;
            bool prompt = node_verifier_is_prefilling(m[i].v);
            uint32_t x = prompt ? 0 : VC_MIN((round + 3 * i) % 6, m[i].base->n - m[i].at), drafts[8];
            for (uint32_t j = 0; j < x; j++)
                drafts[j] = m[i].base->tokens[m[i].at + j] ^ (uint32_t)((round + j) % 5 == 4);
            GEN_OK(
                node_verifier_plan(m[i].v, drafts, x, rows + n_rows, 17 + 20 * i, &n_all[i], &n_logits[i], &gen_err));
            n_rows += n_all[i];
        }
        if (!(open = n_rows > 0))
            break;
        GEN_OK(node_forward(engine, rows, n_rows, logits, NULL, &gen_err));
        for (uint32_t i = 0; i < n; i++) {
            node_verdict_t verdict;
            if (!n_all[i])
                continue;
            GEN_OK(node_verifier_judge(m[i].v, logits + (size_t)offset * TINY_N_VOCAB, &verdict, &gen_err));
            offset += n_logits[i];
            m[i].at += verdict.n_tokens;
        }
    }
}

Test(identity, requests_that_share_passes_get_the_bits_of_single_ones)
{
    gen_model_t m;
    gen_request_t r;
    uint32_t prompts[3][130];
    with_tiny(&m, &r, prompts[0], 130);
    gen_request_t rs[3] = {r, r, r};
    gen_result_t base[3], got;
    member_t members[3];
    for (uint32_t i = 0; i < 3; i++) {
        gen_prompt(40 + i / 2, prompts[i], 130); /* the first two are equal */
        rs[i].prompt = prompts[i];
        rs[i].n_prompt = 70 + 30 * (i / 2);
        rs[i].max_tokens = 20 + 7 * i;
        rs[i].sampling = gen_sampled(i == 2, 20);
        gen_run(&rs[i], &base[i]);
        members[i] = (member_t){gen_verifier(&rs[i]), &base[i], 0};
    }
    float *logits = vc_calloc((size_t)200 * TINY_N_VOCAB, sizeof *logits);
    run_together(r.engine, members, 3, logits);
    for (uint32_t i = 0; i < 3; i++) {
        gen_collect(members[i].v, &got);
        GEN_EQUAL(&base[i], &got, "request %u", i);
        node_verifier_destroy(members[i].v);
    }
    vc_free(logits);
    close_tiny(&m, &r);
}

Test(identity, eight_equal_requests_give_one_text)
{
    gen_model_t m;
    gen_request_t r;
    uint32_t prompt[100];
    with_tiny(&m, &r, prompt, 100);
    gen_prompt(50, prompt, 100);
    gen_result_t base, got;
    gen_run(&r, &base);
    for (uint32_t i = 0; i < 8; i++) {
        r.x = i;
        gen_run(&r, &got);
        GEN_EQUAL(&base, &got, "request %u", i);
    }
    close_tiny(&m, &r);
}
