/*
 * What does a draft source add? Three tables over four texts (bench/texts) behind a prompt of --prompt tokens:
 *
 *   rows     what further rows of a draft pass on the compressed KV cost, in passes of one row
 *   draft    draft tokens per second with and without the n-gram source. The true text is forced, in rounds of --round
 *            drafts that start on the full rows, so that loops of greedy decoding do not occur; both make the same
 *            drafts, which is checked. The clock runs while they draft.
 *   session  whole requests, greedy (or --temperature): plain decoding, the source straight under the verifier without
 * a compressed copy, drafting from the copy without and with the source, all with automatic lengths and the same
 * tokens, which is checked
 *
 * Everything is interleaved; prefill, compression and loading are outside the clock. Run from the top of the
 * repository.
 *   --part rows|draft|session (all), --texts LIST, --compressor SPEC, --prompt N, --forced N, --round N, --tokens N,
 *   --reps N, --temperature T, --threads N, --model FILE
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "node.h"
#include "role/local_body.h"
#include "role/prompt.h"
#include "speculate/session.h"
#include "speculate/suffix.h"
#include "vc/log.h"
#include "vc/mem.h"

enum { N_TEXTS = 4, ROUND_MAX = 64, WIDEST = 16 };

static vc_err_t err;
#define OK(call) BENCH_OK(call, err)

typedef struct {
    const char *name;
    uint32_t *tokens, n; /* prompt, then what is forced behind it */
    node_kv_t kv;        /* full, of the prompt but its last row */
    node_body_t *body;   /* of the prompt's whole blocks */
} text_t;

static node_t *node;
static uint32_t n_prompt, n_forced, n_round, n_new, reps;
static const char *compressor;

/* ---- set-up ---- */

static bool wants(const char *part)
{
    const char *only = bench_option("part", "");
    return !only[0] || strcmp(only, part) == 0;
}

static void read_tokens(text_t *t, const char *path)
{
    char *data;
    size_t bytes;
    OK(node_prompt_read_file(path, (size_t)4 << 20, &data, &bytes, &err));
    OK(node_tokenizer_encode(node->tok, data, bytes, true, &t->tokens, &t->n, &err));
    vc_free(data);
    if (t->n < n_prompt + n_forced)
        bench_fail("%s has %u tokens, %u are wanted", path, t->n, n_prompt + n_forced);
}

static void load_text(text_t *t, const char *name)
{
    char path[100];
    node_spec_t spec;
    node_kv_dims_t dims;
    *t = (text_t){.name = name};
    snprintf(path, sizeof path, "bench/texts/%s.txt", name);
    read_tokens(t, path);
    node_engine_kv_dims(node->engine, &dims);
    OK(node_kv_init(&t->kv, &dims, NULL));
    OK(node_prefill(node->engine, &t->kv, t->tokens, n_prompt - 1, NULL, NULL, &err));
    OK(node_spec_parse(compressor, &spec, &err));
    OK(node_bind_spec(node, &spec, &err));
    const node_replay_t replay = node_replay(node);
    OK(node_local_body_replay(&replay, &spec, &t->kv, t->tokens, (n_prompt - 1) / NODE_TILE, &t->body, &err));
}

static void free_text(text_t *t)
{
    node_body_put(t->body);
    node_kv_fini(&t->kv);
    vc_free(t->tokens);
}

static node_source_t *make_source(void)
{
    node_suffix_opts_t o;
    node_source_t *s;
    node_suffix_opts_default(&o);
    OK(node_suffix_create(&o, &s, &err));
    return s;
}

static node_drafter_opts_t drafter_opts(node_body_t *body, node_source_t *source)
{
    node_drafter_opts_t o;
    node_drafter_opts_default(&o);
    o.engine = node->engine;
    o.body = body;
    o.source = source;
    o.sampling.temperature = atof(bench_option("temperature", "0"));
    return o;
}

/* The full KV of the first n tokens as one that may grow: its whole blocks are shared. */
static void copy_kv(const text_t *t, node_kv_t *kv)
{
    OK(node_kv_init(kv, &t->kv.dims, NULL));
    for (uint32_t b = 0; b < t->kv.n_tokens / NODE_TILE; b++)
        OK(node_kv_append_page(kv, node_page_get(node_kv_page_at(&t->kv, b))));
}

/* ---- rows ---- */

static void table_rows(const text_t *t)
{
    static const uint32_t widths[] = {1, 2, 3, 4, 8, WIDEST};
    bench_samples_t us[VC_ARRAY_LEN(widths)] = {0};
    float *logits = vc_alloc_aligned(64, WIDEST * sizeof(float) * node_engine_info(node->engine)->n_vocab);
    node_kv_t kv;
    if (!logits)
        bench_fail("no memory for logits");
    OK(node_kv_init(&kv, &t->kv.dims, t->body));
    uint32_t n = kv.n_tokens, n_reps = bench_quick() ? 2 : 15;
    for (uint32_t rep = 0; rep < n_reps; rep++)
        for (uint32_t w = 0; w < VC_ARRAY_LEN(widths); w++) {
            node_row_t rows[WIDEST];
            for (uint32_t i = 0; i < widths[w]; i++)
                rows[i] = (node_row_t){&kv, t->tokens[n + i], true};
            double t0 = bench_now_s();
            OK(node_forward(node->engine, rows, widths[w], logits, NULL, &err));
            bench_add(&us[w], (bench_now_s() - t0) * 1e6);
            OK(node_kv_truncate(&kv, n));
        }
    double one = bench_median(&us[0]);
    for (uint32_t w = 0; w < VC_ARRAY_LEN(widths); w++) {
        char name[64];
        snprintf(name, sizeof name, "draft pass of %u rows", widths[w]);
        bench_row(name, "us", &us[w]);
        snprintf(name, sizeof name, "source_pass_%u_rows", widths[w]);
        if (w)
            bench_figure(name, bench_median(&us[w]) / one);
        bench_samples_free(&us[w]);
    }
    node_kv_fini(&kv);
    vc_free(logits);
}

/* ---- draft ---- */

typedef struct {
    node_drafter_t *d;
    node_source_t *source; /* NULL for the one without */
    uint32_t drafts[ROUND_MAX];
    double us;
} side_t;

static void draft_round(side_t *s, const node_kv_t *full)
{
    uint32_t n;
    OK(node_drafter_share(s->d, full, &err));
    double t0 = bench_now_s();
    OK(node_drafter_draft(s->d, n_round, s->drafts, NULL, &n, &err));
    s->us += (bench_now_s() - t0) * 1e6;
    if (n != n_round)
        bench_fail("%u drafts in place of %u", n, n_round);
}

static void draft_text(const text_t *t)
{
    side_t side[2] = {{0}, {.source = make_source()}};
    node_kv_t full;
    uint32_t n = n_prompt, n_rounds = 0;
    copy_kv(t, &full);
    for (uint32_t i = 0; i < 2; i++) {
        node_drafter_opts_t o = drafter_opts(t->body, side[i].source);
        OK(node_drafter_create(&o, t->tokens, n, &side[i].d, &err));
    }
    node_drafter_propose(side[1].d, 0, NULL); /* the prompt is read outside the clock, as prefill is */
    for (; n + n_round <= n_prompt + n_forced; n += n_round, n_rounds++) {
        OK(node_prefill(node->engine, &full, t->tokens + full.n_tokens, n - 1 - full.n_tokens, NULL, NULL, &err));
        draft_round(&side[n_rounds % 2], &full);
        draft_round(&side[1 - n_rounds % 2], &full);
        if (memcmp(side[0].drafts, side[1].drafts, n_round * sizeof(uint32_t)) != 0)
            bench_fail("%s: drafts with and without the source differ", t->name);
        for (uint32_t i = 0; i < 2; i++)
            OK(node_drafter_commit(side[i].d, t->tokens + n, n_round, NULL, &err));
    }
    node_drafter_stats_t stats;
    char name[64];
    node_drafter_stats(side[1].d, &stats);
    bench_note("%s: %.0f draft tokens/s without, %.0f with the source; %llu of %llu proposals right, %llu passes for "
               "%u drafts",
               t->name, n_rounds * n_round * 1e6 / side[0].us, n_rounds * n_round * 1e6 / side[1].us,
               (unsigned long long)stats.n_accepted, (unsigned long long)stats.n_proposed,
               (unsigned long long)stats.n_passes, n_rounds * n_round);
    snprintf(name, sizeof name, "source_gain_%s", t->name);
    bench_figure(name, side[0].us / side[1].us);
    for (uint32_t i = 0; i < 2; i++)
        node_drafter_destroy(side[i].d);
    node_source_destroy(side[1].source);
    node_kv_fini(&full);
}

/* ---- session ---- */

typedef struct {
    const char *name;
    bool body, source, drafts;
} kind_t;
static const kind_t kinds[] = {{"plain", false, false, false},
                               {"lookup", false, true, true},
                               {"copy", true, false, true},
                               {"copy_source", true, true, true}};
enum { N_KINDS = 4 };

static node_verifier_t *start(const text_t *t)
{
    node_verifier_opts_t o;
    node_verifier_t *v;
    node_verdict_t verdict;
    node_verifier_opts_default(&o);
    o.engine = node->engine;
    o.max_tokens = n_new + 1;
    o.sampling.temperature = atof(bench_option("temperature", "0"));
    o.digest = false;
    OK(node_verifier_create(&o, t->tokens, n_prompt, &v, &err));
    for (uint32_t b = 0; b < t->kv.n_tokens / NODE_TILE; b++)
        OK(node_verifier_load_page(v, node_page_get(node_kv_page_at(&t->kv, b)), &err));
    OK(node_verifier_start(v, 0, &verdict, &err));
    return v;
}

/* Microseconds per token; tokens[n_new + 1] are written, or compared with what another kind wrote. */
static double run(const text_t *t, const kind_t *kind, uint32_t *tokens, bool first, node_session_stats_t *stats)
{
    node_verifier_t *v = start(t);
    node_source_t *source = kind->source ? make_source() : NULL;
    node_drafter_opts_t d = drafter_opts(kind->body ? t->body : NULL, source);
    node_session_opts_t so;
    node_session_t *s;
    node_verdict_t verdict = {0};
    node_session_opts_default(&so);
    so.draft_length = kind->drafts ? NODE_DRAFT_AUTO : 0;
    so.costs = node_step_costs(node);
    OK(node_session_create(&so, &d, v, &s, &err));
    double t0 = bench_now_s();
    while (verdict.finish == NODE_FINISH_NONE)
        OK(node_session_round(s, &verdict, &err));
    double us = (bench_now_s() - t0) * 1e6;
    uint32_t n;
    const uint32_t *all = node_verifier_tokens(v, &n);
    if (first)
        memcpy(tokens, all + n_prompt, (n - n_prompt) * sizeof *tokens);
    else if (memcmp(tokens, all + n_prompt, (n - n_prompt) * sizeof *tokens) != 0)
        bench_fail("%s: %s commits other tokens than plain decoding", t->name, kind->name);
    node_session_stats(s, stats);
    node_session_destroy(s);
    node_source_destroy(source);
    node_verifier_destroy(v);
    return us / (n - n_prompt - 1);
}

static void session_text(const text_t *t)
{
    bench_samples_t gain[N_KINDS] = {0}, plain = {0};
    node_session_stats_t stats[N_KINDS];
    uint32_t *tokens = vc_calloc(n_new + 1, sizeof *tokens);
    if (!tokens)
        bench_fail("no memory for tokens");
    for (uint32_t rep = 0; rep < reps; rep++)
        for (uint32_t k = 0; k < N_KINDS; k++) {
            double us = run(t, &kinds[k], tokens, !rep && !k, &stats[k]);
            if (!k)
                bench_add(&plain, us);
            bench_add(&gain[k], plain.v[rep] / us);
        }
    bench_row(t->name, "us/token", &plain);
    for (uint32_t k = 1; k < N_KINDS; k++) {
        char name[64];
        snprintf(name, sizeof name, "%s: %s over plain", t->name, kinds[k].name);
        bench_row(name, "x", &gain[k]);
        bench_note("%s: %llu of %llu proposals right, %llu rounds of the source alone, %llu plain", name,
                   (unsigned long long)stats[k].source_accepted, (unsigned long long)stats[k].source_proposed,
                   (unsigned long long)stats[k].n_source_rounds, (unsigned long long)stats[k].n_plain_rounds);
        snprintf(name, sizeof name, "source_%s_%s", kinds[k].name, t->name);
        bench_figure(name, bench_median(&gain[k]));
    }
    for (uint32_t k = 0; k < N_KINDS; k++)
        bench_samples_free(&gain[k]);
    bench_samples_free(&plain);
    vc_free(tokens);
}

static uint32_t number(const char *name, const char *quick, const char *full, uint32_t most)
{
    int v = atoi(bench_option(name, bench_quick() ? quick : full));
    if (v < 1 || (uint32_t)v > most)
        bench_fail("--%s: a number from 1 to %u", name, most);
    return (uint32_t)v;
}

int main(int argc, char **argv)
{
    static const char *const names[N_TEXTS] = {"code", "chat", "prose", "retrieval"};
    bench_init("source", argc, argv);
    bench_options("part texts compressor prompt forced round tokens reps temperature threads model");
    vc_log_set_level(VC_LOG_WARN);
    n_prompt = number("prompt", "300", "4096", 1u << 20);
    n_forced = number("forced", "32", "176", 1u << 20);
    n_round = number("round", "8", "16", ROUND_MAX);
    n_new = number("tokens", "16", "128", 1u << 20);
    reps = number("reps", "1", "3", 1000);
    compressor = bench_option("compressor", "rot:bits=4");
    const char *texts = bench_option("texts", bench_quick() ? "code" : "code,chat,prose,retrieval");
    node_opts_t o;
    node_opts_default(&o);
    o.model_path = bench_model();
    o.engine.n_threads = number("threads", "2", "2", 256);
    OK(node_open(&o, &node, &err));
    bool is_first = true;
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        text_t t;
        if (!strstr(texts, names[i]))
            continue;
        load_text(&t, names[i]);
        if (is_first && wants("rows"))
            table_rows(&t);
        if (wants("draft"))
            draft_text(&t);
        if (wants("session"))
            session_text(&t);
        free_text(&t);
        is_first = false;
    }
    node_close(node);
    return 0;
}
