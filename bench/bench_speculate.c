/*
 * What does draft and verify gain over plain decoding of the same request on the same engine, and does it ever lose?
 *
 * Everything of one table is measured in one run, interleaved, medians over repetitions. A repetition decodes the same
 * tokens from the same KV (the prompt's pages are shared, not computed again); prefill, compression and loading are
 * outside the clock. Texts: GPL-3 of the system (regular prose) and a mixed document (log, table, C, JSON).
 * Run from the top of the repository.
 *   --model FILE (else VERICACHE_MODEL), --text FILE and --mixed FILE for the texts, --threads N, --reps N
 *   --compressors LIST, separated by ';', for the 8k table
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "node.h"
#include "role/local_body.h"
#include "role/prompt.h"
#include "speculate/session.h"
#include "vc/log.h"
#include "vc/mem.h"

enum { MAX_PAGES = 128, MAX_SPECS = 6, MODEL_X = 8 };

static vc_err_t err;
#define OK(call) BENCH_OK(call, err)

typedef struct {
    const char *name;
    uint32_t *tokens, n; /* the prompt: whole blocks and a few more */
    node_page_t *pages[MAX_PAGES];
    uint32_t n_pages;
} text_t;

typedef struct {
    double us;
    uint64_t n_tokens, accepted, looked_at, plain_rounds;
} run_t;

static node_t *node;
static uint32_t n_new, reps;

/* ---- set-up ---- */

static void open_node(void)
{
    node_opts_t o;
    node_opts_default(&o);
    o.model_path = bench_model();
    o.engine.n_threads = (uint32_t)atoi(bench_option("threads", "2"));
    OK(node_open(&o, &node, &err));
}

/* Prompt of n tokens from the file, repeated where it is shorter, and its full KV. */
static void load_text(text_t *t, const char *name, const char *path, uint32_t n)
{
    char *data;
    size_t bytes;
    uint32_t *ids, n_ids;
    *t = (text_t){.name = name, .n = n};
    OK(node_prompt_read_file(path, (size_t)4 << 20, &data, &bytes, &err));
    OK(node_tokenizer_encode(node->tok, data, bytes, false, &ids, &n_ids, &err));
    t->tokens = vc_calloc(n, sizeof *t->tokens);
    if (!t->tokens || !n_ids)
        bench_fail("no tokens from %s", path);
    for (uint32_t i = 0; i < n; i++)
        t->tokens[i] = ids[i % n_ids];
    if (n > n_ids)
        bench_note("%s has %u tokens and is repeated to %u", path, n_ids, n);
    node_kv_dims_t dims;
    node_kv_t kv;
    node_engine_kv_dims(node->engine, &dims);
    OK(node_kv_init(&kv, &dims, NULL));
    t->n_pages = n / NODE_TILE;
    double t0 = bench_now_s();
    OK(node_prefill(node->engine, &kv, t->tokens, t->n_pages * NODE_TILE, NULL, NULL, &err));
    bench_note("%s: %u tokens prefilled in %.1f s", name, t->n_pages * NODE_TILE, bench_now_s() - t0);
    for (uint32_t i = 0; i < t->n_pages; i++)
        t->pages[i] = node_page_get(node_kv_page_at(&kv, i));
    node_kv_fini(&kv);
    vc_free(ids);
    vc_free(data);
}

static void free_text(text_t *t)
{
    for (uint32_t i = 0; i < t->n_pages; i++)
        node_page_put(t->pages[i]);
    vc_free(t->tokens);
}

static node_verifier_t *start(const text_t *t)
{
    node_verifier_opts_t o;
    node_verifier_t *v;
    node_verdict_t verdict;
    node_verifier_opts_default(&o);
    o.engine = node->engine;
    o.max_tokens = n_new + 1;
    o.digest = false;
    OK(node_verifier_create(&o, t->tokens, t->n, &v, &err));
    for (uint32_t i = 0; i < t->n_pages; i++)
        OK(node_verifier_load_page(v, node_page_get(t->pages[i]), &err));
    OK(node_verifier_start(v, 0, &verdict, &err));
    return v;
}

static node_body_t *compress(const text_t *t, const char *text)
{
    node_spec_t spec;
    node_body_t *body;
    OK(node_spec_parse(text, &spec, &err));
    node_verifier_t *v = start(t);
    const node_replay_t replay = node_replay(node);
    OK(node_local_body_replay(&replay, &spec, node_verifier_kv(v), t->tokens, t->n_pages, &body, &err));
    node_verifier_destroy(v);
    return body;
}

/* ---- one measurement ---- */

static run_t run(const text_t *t, node_body_t *body, uint32_t x)
{
    node_verifier_t *v = start(t);
    node_session_opts_t so;
    node_drafter_opts_t d;
    node_session_t *s;
    node_verdict_t verdict = {0};
    node_session_opts_default(&so);
    node_drafter_opts_default(&d);
    so.draft_length = x;
    d.engine = node->engine;
    d.body = body;
    OK(node_session_create(&so, &d, v, &s, &err));
    double t0 = bench_now_s();
    while (verdict.finish == NODE_FINISH_NONE)
        OK(node_session_round(s, &verdict, &err));
    run_t r = {.us = (bench_now_s() - t0) * 1e6};
    node_verifier_stats_t vs;
    node_session_stats_t ss;
    node_verifier_stats(v, &vs);
    node_session_stats(s, &ss);
    uint32_t n;
    node_verifier_tokens(v, &n);
    r.n_tokens = n - t->n - 1;
    r.accepted = vs.n_accepted;
    r.looked_at = vs.n_drafted;
    r.plain_rounds = ss.n_plain_rounds;
    node_session_destroy(s);
    node_verifier_destroy(v);
    return r;
}

/* One pass of x + 1 rows behind the prompt, x drafts that do not matter. */
static double pass_us(const text_t *t, uint32_t x)
{
    node_verifier_t *v = start(t);
    node_row_t rows[64];
    uint32_t n_rows, n_logits;
    float *logits = vc_alloc_aligned(64, 64 * sizeof(float) * node_engine_info(node->engine)->n_vocab);
    if (!logits)
        bench_fail("no memory for logits");
    OK(node_verifier_plan(v, t->tokens, x, rows, 64, &n_rows, &n_logits, &err));
    double t0 = bench_now_s();
    OK(node_forward(node->engine, rows, n_rows, logits, NULL, &err));
    double us = (bench_now_s() - t0) * 1e6;
    vc_free(logits);
    node_verifier_destroy(v);
    return us;
}

/* One draft step behind the prompt on a body: mean of x. */
static double draft_us(const text_t *t, node_body_t *body, uint32_t x)
{
    node_verifier_t *v = start(t);
    node_drafter_opts_t o;
    node_drafter_t *d;
    uint32_t n, n_drafts, drafts[64];
    const uint32_t *tokens = node_verifier_tokens(v, &n);
    node_drafter_opts_default(&o);
    o.engine = node->engine;
    o.body = body;
    OK(node_drafter_create(&o, tokens, n, &d, &err));
    OK(node_drafter_share(d, node_verifier_kv(v), &err));
    double t0 = bench_now_s();
    OK(node_drafter_draft(d, x, drafts, NULL, &n_drafts, &err));
    double us = (bench_now_s() - t0) * 1e6 / n_drafts;
    node_drafter_destroy(d);
    node_verifier_destroy(v);
    return us;
}

/* ---- 8k: gain, and the gain that step costs and match chance promise ---- */

typedef struct {
    char spec[VC_SPEC_TEXT_MAX];
    node_body_t *body;
    bench_samples_t fixed, adaptive, step; /* gain at MODEL_X, gain with automatic length, draft step */
    uint64_t accepted, looked_at;
} row_t;

static uint32_t make_rows(const text_t *t, row_t *rows)
{
    char list[512];
    uint32_t n = 0;
    snprintf(list, sizeof list, "%s", bench_option("compressors", "kivi:bits=4;snapkv:keep=0.25;snapkv:keep=0.5"));
    for (char *save = NULL, *spec = strtok_r(list, ";", &save); spec && n < MAX_SPECS;
         spec = strtok_r(NULL, ";", &save)) {
        rows[n] = (row_t){.body = compress(t, spec)};
        snprintf(rows[n].spec, sizeof rows[n].spec, "%s", spec);
        n++;
    }
    return n;
}

/* Tokens per round when each draft is accepted with chance a: 1 + a + ... + a^x. */
static double tokens_per_round(double a, uint32_t x)
{
    double sum = 1, p = 1;
    for (uint32_t i = 0; i < x; i++)
        sum += p *= a;
    return sum;
}

static void report_row(row_t *r, double plain_us, double wide_us, double *gain, double *vs_model)
{
    char name[200];
    double a = r->looked_at ? (double)r->accepted / (double)r->looked_at : 0;
    double step = bench_median(&r->step);
    double promised = tokens_per_round(a, MODEL_X) * plain_us / (MODEL_X * step + wide_us);
    double fixed = bench_median(&r->fixed), best = VC_MAX(fixed, bench_median(&r->adaptive));
    snprintf(name, sizeof name, "%.120s draft step", r->spec);
    bench_row(name, "us", &r->step);
    snprintf(name, sizeof name, "%.120s gain, %u drafts", r->spec, MODEL_X);
    bench_row(name, "x", &r->fixed);
    snprintf(name, sizeof name, "%.120s gain, automatic", r->spec);
    bench_row(name, "x", &r->adaptive);
    bench_note("%s: match chance %.3f, promised gain %.3f at %u drafts, measured %.3f", r->spec, a, promised, MODEL_X,
               fixed);
    if (best > *gain) {
        *gain = best;
        *vs_model = fixed / promised;
    }
}

static void table_8k(const text_t *t)
{
    row_t rows[MAX_SPECS];
    uint32_t n = make_rows(t, rows);
    bench_samples_t plain = {0}, one = {0}, wide = {0};
    for (uint32_t rep = 0; rep < reps; rep++) {
        run_t base = run(t, NULL, 0);
        bench_add(&plain, base.us / (double)base.n_tokens);
        bench_add(&one, pass_us(t, 0));
        bench_add(&wide, pass_us(t, MODEL_X));
        for (uint32_t i = 0; i < n; i++) {
            run_t fixed = run(t, rows[i].body, MODEL_X), adaptive = run(t, rows[i].body, NODE_DRAFT_AUTO);
            double base_us = base.us / (double)base.n_tokens;
            bench_add(&rows[i].fixed, base_us / (fixed.us / (double)fixed.n_tokens));
            bench_add(&rows[i].adaptive, base_us / (adaptive.us / (double)adaptive.n_tokens));
            bench_add(&rows[i].step, draft_us(t, rows[i].body, MODEL_X));
            rows[i].accepted += fixed.accepted;
            rows[i].looked_at += fixed.looked_at;
        }
    }
    bench_row("plain decoding, a token", "us", &plain);
    bench_row("pass of 1 row", "us", &one);
    bench_row("pass of 9 rows", "us", &wide);
    double gain = 0, vs_model = 0;
    for (uint32_t i = 0; i < n; i++) {
        report_row(&rows[i], bench_median(&plain), bench_median(&wide), &gain, &vs_model);
        node_body_put(rows[i].body);
        bench_samples_free(&rows[i].fixed);
        bench_samples_free(&rows[i].adaptive);
        bench_samples_free(&rows[i].step);
    }
    bench_note("figures: the best compressor of the table");
    bench_figure("speculate_gain_8k_b1", gain);
    bench_figure("speculate_vs_model", vs_model);
    bench_samples_free(&plain);
    bench_samples_free(&one);
    bench_samples_free(&wide);
}

/* ---- 2k: never slower, and the automatic length against fixed ones ---- */

static const uint32_t fixed_lengths[] = {0, 2, 4, 8, 16};
enum { N_FIXED = 5 };

typedef struct {
    double us[N_FIXED + 1], tokens[N_FIXED + 1]; /* sums over loads and repetitions; the last: automatic */
    double worst;
} mix_t;

static void load_2k(const text_t *t, const char *spec, mix_t *mix)
{
    node_body_t *body = compress(t, spec);
    bench_samples_t ratio = {0};
    char name[200];
    uint64_t drafted = 0;
    for (uint32_t rep = 0; rep < reps; rep++) {
        double plain = 0;
        for (uint32_t i = 0; i <= N_FIXED; i++) {
            run_t r = run(t, body, i < N_FIXED ? fixed_lengths[i] : NODE_DRAFT_AUTO);
            mix->us[i] += r.us;
            mix->tokens[i] += (double)r.n_tokens;
            if (i == 0)
                plain = r.us;
            if (i == N_FIXED) {
                bench_add(&ratio, plain / r.us);
                drafted += r.looked_at;
            }
        }
    }
    snprintf(name, sizeof name, "%s, %s: automatic over plain", t->name, spec);
    bench_row(name, "x", &ratio);
    bench_note("%s: %llu drafts looked at", name, (unsigned long long)drafted);
    mix->worst = VC_MIN(mix->worst, bench_median(&ratio));
    bench_samples_free(&ratio);
    node_body_put(body);
}

static void table_2k(text_t *texts, uint32_t n_texts)
{
    mix_t mix = {.worst = 1e9};
    for (uint32_t i = 0; i < n_texts; i++) {
        load_2k(&texts[i], "kivi:bits=4", &mix);
        load_2k(&texts[i], "snapkv:keep=0.25", &mix);
    }
    load_2k(&texts[0], "noise:eps=1", &mix); /* the worst drafter there is */
    double best = 0;
    uint32_t at = 0;
    for (uint32_t i = 0; i < N_FIXED; i++)
        if (mix.tokens[i] / mix.us[i] > best) {
            best = mix.tokens[i] / mix.us[i];
            at = fixed_lengths[i];
        }
    bench_note("best fixed length over the mixed load: %u", at);
    bench_figure("speculate_min_2k_b1", mix.worst);
    bench_figure("adaptive_vs_best_static", mix.tokens[N_FIXED] / mix.us[N_FIXED] / best);
}

int main(int argc, char **argv)
{
    bench_init("speculate", argc, argv);
    vc_log_set_level(VC_LOG_WARN);
    reps = (uint32_t)atoi(bench_option("reps", bench_quick() ? "1" : "5"));
    n_new = bench_quick() ? 12 : 96;
    open_node();
    const char *prose = bench_option("text", "/usr/share/common-licenses/GPL-3");
    const char *mixed = bench_option("mixed", "tests/vectors/text/mixed.txt");
    text_t long_text, texts[2];
    load_text(&long_text, "prose 8k", prose, bench_quick() ? 330 : 7700);
    table_8k(&long_text);
    free_text(&long_text);
    load_text(&texts[0], "prose 2k", prose, bench_quick() ? 200 : 2060);
    load_text(&texts[1], "mixed 2k", mixed, bench_quick() ? 200 : 2060);
    table_2k(texts, 2);
    free_text(&texts[0]);
    free_text(&texts[1]);
    node_close(node);
    return 0;
}
