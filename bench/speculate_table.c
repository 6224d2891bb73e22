/*
 * One prompt length: the texts x the compressors, plain decoding, fixed lengths and the automatic one in turn, and the
 * gain that step costs and match chance of the same run promise.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "speculate_parts.h"
#include "vc/mem.h"

enum { FEWER, FIXED, MORE, AUTOMATIC, BOTH, MODES };
static const struct {
    uint32_t x;
    bool source;
    const char *name;
} modes[MODES] = {{SPEC_FIXED / 2, false, "4 drafts"},
                  {SPEC_FIXED, false, "8 drafts"},
                  {2 * SPEC_FIXED, false, "16 drafts"},
                  {NODE_DRAFT_AUTO, false, "automatic"},
                  {NODE_DRAFT_AUTO, true, "automatic with n-gram source"}};

/* One compressor on one text. */
typedef struct {
    node_body_t *body;
    char name[VC_SPEC_TEXT_MAX]; /* canonical */
    bench_samples_t gain[MODES], draft_us;
    spec_run_t sum[MODES];
} cell_t;

/* One compressor over the texts: geometric means. */
typedef struct {
    double log_gain, log_both, log_vs_model, worst, worst_both; /* worst_both: over the better of copy and source */
    bench_samples_t gains;
    spec_run_t fixed;
    uint32_t n;
} total_t;

typedef struct {
    const spec_bench_t *b;
    const char *label;
    spec_prompt_t prompt;
    bench_samples_t plain, alone, pass[SPEC_WIDTHS]; /* alone: gain of the source without a copy */
    double log_alone;
    cell_t cells[SPEC_COMPRESSORS];
    total_t totals[SPEC_COMPRESSORS];
    uint32_t pays_from[SPEC_COMPRESSORS];
} table_t;

/* --fixed no leaves out the two lengths beside SPEC_FIXED. */
static bool wanted(uint32_t mode)
{
    return (mode != FEWER && mode != MORE) || strcmp(bench_option("fixed", "no"), "no") != 0;
}

static void make_cell(table_t *t, uint32_t i)
{
    node_spec_t spec;
    cell_t *c = &t->cells[i];
    *c = (cell_t){.body = spec_compress(t->b, &t->prompt, t->b->specs[i])};
    OK(node_spec_parse(t->b->specs[i], &spec, &speculate_err));
    memcpy(c->name, spec.text, sizeof c->name);
}

static void measure(table_t *t)
{
    spec_tokens_t first = {0};
    for (uint32_t rep = 0; rep < t->b->reps; rep++) {
        spec_run_t plain = spec_run(t->b, &t->prompt, &(spec_way_t){.x = 0}, &first);
        spec_run_t alone = spec_run(t->b, &t->prompt, &(spec_way_t){.x = NODE_DRAFT_AUTO, .source = true}, &first);
        bench_add(&t->plain, spec_us_per_token(&plain));
        bench_add(&t->alone, spec_us_per_token(&plain) / spec_us_per_token(&alone));
        for (uint32_t w = 0; w < SPEC_WIDTHS; w++)
            bench_add(&t->pass[w], spec_pass_us(t->b, &t->prompt, spec_widths[w]));
        for (uint32_t i = 0; i < t->b->n_specs; i++) {
            cell_t *c = &t->cells[i];
            bench_add(&c->draft_us, spec_draft_us(t->b, &t->prompt, c->body));
            for (uint32_t m = 0; m < MODES; m++) {
                if (!wanted(m))
                    continue;
                const spec_way_t way = {.body = c->body, .name = c->name, .x = modes[m].x, .source = modes[m].source};
                spec_run_t r = spec_run(t->b, &t->prompt, &way, &first);
                spec_add(&c->sum[m], &r);
                bench_add(&c->gain[m], spec_us_per_token(&plain) / spec_us_per_token(&r));
            }
        }
    }
    vc_free(first.tokens);
}

static void report_cell(table_t *t, uint32_t i, const double *pass_us)
{
    char name[300];
    uint32_t x;
    cell_t *c = &t->cells[i];
    total_t *total = &t->totals[i];
    const spec_run_t *automatic = &c->sum[AUTOMATIC];
    double chance = spec_chance(&c->sum[FIXED]), gain = bench_median(&c->gain[AUTOMATIC]);
    double both = bench_median(&c->gain[BOTH]), part = VC_MAX(gain, bench_median(&t->alone));
    double promise = spec_promise(bench_median(&t->plain), bench_median(&c->draft_us), spec_widths, pass_us,
                                  SPEC_WIDTHS, chance, &x);
    snprintf(name, sizeof name, "%s %s %.200s draft step", t->prompt.kind, t->label, t->b->specs[i]);
    bench_row(name, "us", &c->draft_us);
    for (uint32_t m = 0; m < MODES; m++) {
        if (!wanted(m))
            continue;
        snprintf(name, sizeof name, "%s %s %.200s gain, %s", t->prompt.kind, t->label, t->b->specs[i], modes[m].name);
        bench_row(name, "x", &c->gain[m]);
    }
    bench_note("  match chance %.3f, promised %.3f with %u drafts; automatic %.3f: %.1f accepted in each of %.0f %% of "
               "rounds, chance %.3f",
               chance, promise, x, gain,
               (double)automatic->accepted / (double)VC_MAX(automatic->rounds - automatic->plain_rounds, 1u),
               100 - 100.0 * (double)automatic->plain_rounds / (double)VC_MAX(automatic->rounds, 1u),
               spec_chance(automatic));
    bench_add(&total->gains, gain);
    total->log_gain += log(gain);
    total->log_both += log(both);
    total->worst_both = total->n == 0 ? both / part : VC_MIN(total->worst_both, both / part);
    total->log_vs_model += log(gain / promise);
    total->worst = total->n++ == 0 ? gain : VC_MIN(total->worst, gain);
    spec_add(&total->fixed, &c->sum[FIXED]);
    t->pays_from[i] = spec_pays_from(t->b, c->body, c->name, spec_chance(&total->fixed));
}

static void report_text(table_t *t)
{
    char name[100];
    double pass_us[SPEC_WIDTHS];
    snprintf(name, sizeof name, "%s %s plain decoding, a token", t->prompt.kind, t->label);
    bench_row(name, "us", &t->plain);
    snprintf(name, sizeof name, "%s %s n-gram source alone, gain", t->prompt.kind, t->label);
    bench_row(name, "x", &t->alone);
    t->log_alone += log(bench_median(&t->alone));
    for (uint32_t w = 0; w < SPEC_WIDTHS; w++) {
        pass_us[w] = bench_median(&t->pass[w]);
        snprintf(name, sizeof name, "%s %s pass of %u rows", t->prompt.kind, t->label, spec_widths[w]);
        bench_row(name, "us", &t->pass[w]);
        bench_samples_free(&t->pass[w]);
    }
    for (uint32_t i = 0; i < t->b->n_specs; i++) {
        cell_t *c = &t->cells[i];
        report_cell(t, i, pass_us);
        node_body_put(c->body);
        bench_samples_free(&c->draft_us);
        for (uint32_t m = 0; m < MODES; m++)
            bench_samples_free(&c->gain[m]);
    }
    bench_samples_free(&t->plain);
    bench_samples_free(&t->alone);
}

static void report_spec(const table_t *t, uint32_t i)
{
    char name[300];
    const total_t *s = &t->totals[i];
    const char *isa = node_isa_name(node_engine_isa(t->b->node->engine));
    bench_note("%s, %s: gain %.3f over the texts, worst %.3f, %.3f of what is promised, match chance %.3f; with the "
               "n-gram source %.3f, at least %.3f of the better of the two",
               t->label, t->b->specs[i], exp(s->log_gain / s->n), s->worst, exp(s->log_vs_model / s->n),
               spec_chance(&s->fixed), exp(s->log_both / s->n), s->worst_both);
    if (t->pays_from[i] != 0)
        bench_note("%s on %s: pays from %u tokens", t->b->specs[i], isa, t->pays_from[i]);
    else
        bench_note("%s on %s: pays nowhere up to %u tokens", t->b->specs[i], isa,
                   node_engine_info(t->b->node->engine)->context);
    snprintf(name, sizeof name, "%s %.200s gain, automatic, over the texts", t->label, t->b->specs[i]);
    bench_row(name, "x", &s->gains);
}

static void figure(const table_t *t, const char *what, const char *of, double value)
{
    char name[100];
    snprintf(name, sizeof name, "speculate_%s_%s_b1%s", what, t->label, of);
    bench_figure(name, value);
}

/* Figures are those of the copy that gains most over the texts. */
static void report_totals(const table_t *t)
{
    const total_t *best = &t->totals[0];
    double worst = 1e9, n = best->n;
    uint32_t at = 0;
    for (uint32_t i = 0; i < t->b->n_specs; i++) {
        const total_t *s = &t->totals[i];
        report_spec(t, i);
        if (s->log_gain > best->log_gain) {
            best = s;
            at = i;
        }
        worst = VC_MIN(worst, s->worst);
    }
    bench_note("%s: the best copy is %s", t->label, t->b->specs[at]);
    figure(t, "gain", "", exp(best->log_gain / n));
    figure(t, "gain", "_source", exp(best->log_both / n));
    figure(t, "gain", "_source_alone", exp(t->log_alone / n));
    figure(t, "both_vs_part", "", best->worst_both);
    figure(t, "min", "", worst);
    if (strcmp(t->label, "8k") == 0)
        bench_figure("speculate_vs_model", exp(best->log_vs_model / n));
}

void spec_table(const spec_bench_t *b, uint32_t n_tokens, const char *label)
{
    table_t *t = vc_calloc(1, sizeof *t);
    if (t == NULL)
        bench_fail("no memory for the table");
    t->b = b;
    t->label = label;
    for (uint32_t k = 0; k < b->n_kinds; k++) {
        spec_prompt_load(b, &t->prompt, b->kinds[k], n_tokens);
        for (uint32_t i = 0; i < b->n_specs; i++)
            make_cell(t, i);
        measure(t);
        report_text(t);
        spec_prompt_free(&t->prompt);
    }
    report_totals(t);
    for (uint32_t i = 0; i < b->n_specs; i++)
        bench_samples_free(&t->totals[i].gains);
    vc_free(t);
}
