/*
 * What do the paper's machines promise, by their published numbers and our scheduling policy? Prints predicted
 * speed-ups beside the published ones. No clock: the figures are the same on every machine.
 *   --out DIR   for sim-runs.csv and sim-speedups.svg (bench/results; a temporary one with --quick)
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "harness.h"
#include "sim_parts.h"
#include "vc/mem.h"

/* Sources: bench/README.md, "Simulator". */
static const sim_machine_t h100 = {"2x H100 NVL", 2 * 94e9, 2 * 3.9e12, 2 * 835e12, 2 * 63e9};
static const sim_machine_t pro6000 = {"RTX PRO 6000", 96e9, 1.792e12, 500e12, 63e9};
static const sim_model_t llama = {"Llama-3.3-70B", 70.6e9, 80, 64, 8, 128, 23};
static const sim_model_t mistral = {"Mistral-24B", 23.6e9, 40, 32, 8, 128, 21};
static const sim_model_t qwen = {"Qwen-32B", 32.8e9, 64, 40, 8, 128, 19};

typedef struct {
    const sim_machine_t *machine;
    const sim_model_t *model;
    double published_long, published_remote;
    const char *tag;
} setting_t;
static const setting_t settings[] = {{&h100, &llama, 2.73, 2.11, "llama70b"},
                                     {&pro6000, &mistral, 2.41, 1.75, "mistral24b"},
                                     {&pro6000, &qwen, 1.92, 1.33, "qwen32b"}};

#define HEADLINE 32768u /* prefix tokens: what all three models read without stretched positions */
#define ANSWER 256u
#define KEPT_LONG 0.2          /* KVzip at 0.2 */
#define KEPT_REMOTE (5.0 / 16) /* KIVI, 4 bits, and an f16 scale and zero for every 32 */
#define CHANCE_REMOTE 0.982
#define FAST 40e9
#define SLOW 1.2e9

static const sim_assumed_t usual = {.mem_share = 0.80,
                                    .flop_share = 0.60,
                                    .link_share = 0.85,
                                    .fill = 0.90,
                                    .step_s = 0.001,
                                    .hold = 1.25,
                                    .kept = 0.2, /* KVzip */
                                    .answer = 256};

static FILE *csv;
static sim_bar_t bars[2 * VC_ARRAY_LEN(settings)]; /* long context, then remote */

static void write_csv(const char *pipeline, const sim_case_t *c, const char *way, const sim_result_t *r)
{
    if (csv == NULL || !r->fits)
        return;
    fprintf(csv, "%s,%s,%s,%u,%u,%.4f,%.4f,%u,%s,%.4f,%.5f,%.2f,%.2f,%.2f,%.3f,%.3f,%.3f\n", pipeline, c->machine->name,
            c->model->name, c->prefix, c->assumed.answer, c->kept, c->chance, c->outstanding, way, r->tokens_s,
            r->requests_s, r->running, r->drafts, r->committed, r->link_use, r->slow_use, r->compute_use);
}

static void result_path(char *path, size_t cap, const char *name)
{
    const char *out = bench_option("out", bench_quick() ? bench_tmpdir() : "bench/results");
    (void)mkdir(out, 0777);
    snprintf(path, cap, "%s/%s", out, name);
}

/* What was predicted for this setting so far spans a little more. */
static void note_bar(uint32_t i, const char *pipeline, const char *model, double predicted, double published)
{
    sim_bar_t *b = &bars[i];
    snprintf(b->label, sizeof b->label, "%s, %s", model, pipeline);
    b->low = b->high > 0 && b->low < predicted ? b->low : predicted;
    b->high = b->high > predicted ? b->high : predicted;
    b->published = published;
}

static void open_results(void)
{
    char path[512];
    result_path(path, sizeof path, "sim-runs.csv");
    csv = fopen(path, "w");
    if (csv == NULL)
        bench_fail("cannot write %s", path);
    fprintf(csv, "pipeline,machine,model,prefix,answer,kept,chance,outstanding,way,tokens_s,requests_s,running,drafts,"
                 "committed,link_use,slow_use,compute_use\n");
}

static sim_case_t case_of(const setting_t *s, uint32_t prefix, const sim_assumed_t *a)
{
    return (sim_case_t){.machine = s->machine,
                        .model = s->model,
                        .prefix = prefix,
                        .assumed = *a,
                        .kept = a->kept,
                        .chance = sim_chance_of_run(s->model->mean_run + a->run_more, 30),
                        .link_rate = a->link_share * s->machine->link_rate,
                        .outstanding = 64,
                        .n_requests = bench_quick() ? 40 : 400};
}

static void cell(bool fits, const char *format, double value)
{
    if (fits)
        printf(format, value);
    else
        printf(" - |");
}

static double ratio(const sim_result_t *a, const sim_result_t *b)
{
    return a->fits && b->fits ? a->tokens_s / b->tokens_s : 0;
}

/* Which resource the staggered run exhausts, and what that says about the published figure. */
static void explain(const sim_case_t *c, const sim_result_t *r, double predicted, double published)
{
    const char *bound = r->link_use > 0.9      ? "the link"
                        : r->compute_use > 0.9 ? "the engine"
                                               : "neither link nor engine alone";
    double full_s = sim_kv_token_bytes(c->model) * c->prefix / c->link_rate;
    bench_note("%s: bound by %s; %.0f ms of link for a verification that commits %.1f tokens; predicted %.2f of the "
               "published figure",
               c->model->name, bound, 1e3 * full_s, r->committed, predicted / published);
}

static void long_context_row(const setting_t *s, uint32_t prefix, bool headline)
{
    sim_case_t c = case_of(s, prefix, &usual);
    sim_result_t plain = sim_plain(&c), streamed = sim_streamed(&c);
    sim_result_t lock = sim_schedule(&c, true), stag = sim_schedule(&c, false);
    char name[64];
    printf("| %s | %uk |", c.model->name, prefix / 1024);
    cell(plain.fits, " %.0f |", plain.running);
    cell(plain.fits, " %.1f |", plain.tokens_s);
    printf(" %.1f |", streamed.tokens_s);
    cell(lock.fits, " %.1f |", lock.tokens_s);
    cell(stag.fits, " %.1f |", stag.tokens_s);
    cell(stag.fits, " %.1f |", stag.running);
    cell(stag.fits, " %.1f |", stag.drafts);
    cell(stag.fits, " %.1f |", stag.committed);
    cell(stag.fits, " %.2f |", stag.link_use);
    cell(stag.fits && lock.fits, " %.2f |", ratio(&stag, &lock));
    cell(stag.fits, " %.1f |", ratio(&stag, &streamed));
    cell(stag.fits && plain.fits, " **%.2f** |", ratio(&stag, &plain));
    if (headline)
        printf(" %.2f |\n", s->published_long);
    else
        printf(" |\n");
    write_csv("long", &c, "full_in_memory", &plain);
    write_csv("long", &c, "full_streamed", &streamed);
    write_csv("long", &c, "lock_step", &lock);
    write_csv("long", &c, "staggered", &stag);
    if (!headline)
        return;
    note_bar((uint32_t)(s - settings), "long context", c.model->name, ratio(&stag, &plain), s->published_long);
    explain(&c, &stag, ratio(&stag, &plain), s->published_long);
    snprintf(name, sizeof name, "sim_long_%s", s->tag);
    bench_figure(name, ratio(&stag, &plain));
    snprintf(name, sizeof name, "sim_staggered_vs_lockstep_%s", s->tag);
    bench_figure(name, ratio(&stag, &lock));
}

static void remote_row(const setting_t *s, uint32_t outstanding)
{
    sim_case_t c = case_of(s, HEADLINE, &usual);
    c.kept = KEPT_REMOTE;
    c.chance = CHANCE_REMOTE;
    c.link_rate = FAST;
    c.slow_rate = SLOW;
    c.outstanding = outstanding;
    c.n_requests = outstanding == 1 ? c.n_requests / 2 : c.n_requests;
    sim_result_t plain = sim_plain(&c), lock = sim_schedule(&c, true), stag = sim_schedule(&c, false);
    char name[64];
    printf("| %s | %u |", c.model->name, outstanding);
    cell(plain.fits, " %.3f |", plain.requests_s);
    cell(lock.fits, " %.3f |", lock.requests_s);
    cell(stag.fits, " %.3f |", stag.requests_s);
    cell(stag.fits, " %.1f |", stag.running);
    cell(stag.fits, " %.1f |", stag.drafts);
    cell(stag.fits, " %.1f |", stag.committed);
    cell(stag.fits, " %.2f |", stag.link_use);
    cell(stag.fits, " %.2f |", stag.slow_use);
    cell(stag.fits && plain.fits, " **%.2f** |", stag.requests_s / plain.requests_s);
    printf(" %.2f |\n", s->published_remote);
    write_csv("remote", &c, "full_fetched", &plain);
    write_csv("remote", &c, "lock_step", &lock);
    write_csv("remote", &c, "staggered", &stag);
    note_bar((uint32_t)(VC_ARRAY_LEN(settings) + (size_t)(s - settings)), "remote", c.model->name,
             stag.requests_s / plain.requests_s, s->published_remote);
    bench_note(
        "%s, %u outstanding: the slow link is busy for %.2f of the time with the copy and verified rows, with full "
        "KV for %.2f",
        c.model->name, outstanding, stag.slow_use, plain.slow_use);
    snprintf(name, sizeof name, "sim_remote_%s_%u", s->tag, outstanding);
    bench_figure(name, stag.requests_s / plain.requests_s);
}

/* The long-context prediction with one assumption changed. */
static void vary(const char *what, sim_assumed_t a, uint32_t prefix)
{
    printf("| %s |", what);
    for (size_t i = 0; i < VC_ARRAY_LEN(settings); i++) {
        sim_case_t c = case_of(&settings[i], prefix, &a);
        sim_result_t plain = sim_plain(&c), stag = sim_schedule(&c, false);
        cell(plain.fits && stag.fits, " %.2f |", ratio(&stag, &plain));
    }
    printf("\n");
}

static void sensitivity(void)
{
    sim_assumed_t a = usual;
    printf("\nLong context, %uk, staggered / full, one assumption changed\n| |", HEADLINE / 1024);
    for (size_t i = 0; i < VC_ARRAY_LEN(settings); i++)
        printf(" %s |", settings[i].model->name);
    printf("\n|---|---|---|---|\n");
    vary("as above", usual, HEADLINE);
#define VARY(what, field, value) (a = usual, a.field = (value), vary(what, a, HEADLINE))
    VARY("memory reaches 0.7 of its rate", mem_share, 0.7);
    VARY("0.9", mem_share, 0.9);
    VARY("arithmetic reaches 0.3 of its peak", flop_share, 0.3);
    VARY("PCIe reaches 0.7 of its rate", link_share, 0.7);
    VARY("0.95", link_share, 0.95);
    VARY("an iteration costs 5 ms more", step_s, 0.006);
    VARY("transient memory of 2 full KVs", hold, 2);
    VARY("accepted run 4 tokens shorter", run_more, -4);
    VARY("4 longer", run_more, 4);
    VARY("a quarter of the KV kept", kept, 0.25);
    VARY("answers of 1,024 tokens", answer, 1024);
#undef VARY
    vary("prefix of 24k", usual, 24576);
    vary("48k", usual, 49152);
}

int main(int argc, char **argv)
{
    static const uint32_t outstanding[] = {1, 4, 64};
    static const uint32_t prefixes[] = {16384, HEADLINE, 65536, 131072};
    bench_init("sim", argc, argv);
    bench_options("out dir");
    open_results();
    printf("\nLong context, tokens/s: full KV in GPU memory; streamed at every step; lock-step; staggered\n");
    printf("| model | prefix | batch | full | streamed | lock-step | staggered | running | drafts | committed | link "
           "use | "
           "/ lock-step | / streamed | / full | published |\n");
    printf("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < VC_ARRAY_LEN(settings); i++)
        for (size_t p = 0; p < VC_ARRAY_LEN(prefixes); p++)
            long_context_row(&settings[i], prefixes[p], prefixes[p] == HEADLINE);
    printf("\nRemote prefix, requests/s: full KV over the slow link; lock-step; staggered\n");
    printf("| model | outstanding | full | lock-step | staggered | running | drafts | committed | fast link use | "
           "slow link use | / full | published |\n");
    printf("|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < VC_ARRAY_LEN(settings); i++)
        for (size_t k = 0; k < VC_ARRAY_LEN(outstanding); k++)
            remote_row(&settings[i], outstanding[k]);
    bench_note(
        "long context: prefixes, batches and the baseline's memory behind the published figures are not known; a "
        "larger baseline batch makes them smaller, longer accepted runs larger");
    bench_note(
        "remote: a busy slow link bounds the gain by %.1f, one over the bytes kept; one request at a time gains on "
        "its fetch only, since a draft step is hardly cheaper than a plain one. The published figures lie between "
        "these loads, or at their lower end",
        1 / KEPT_REMOTE);
    sensitivity();
    if (fclose(csv) != 0)
        bench_fail("the CSV file was not written");
    char path[512];
    result_path(path, sizeof path, "sim-speedups.svg");
    sim_plot(path, bars, VC_ARRAY_LEN(bars));
    return 0;
}
