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

enum { MODES = 4 };
static const uint32_t modes[MODES] = {SPEC_FIXED / 2, SPEC_FIXED, 2 * SPEC_FIXED, NODE_DRAFT_AUTO};

/* One compressor on one text. */
typedef struct {
    node_body_t *body;
    char name[VC_SPEC_TEXT_MAX]; /* canonical */
    bench_samples_t gain[MODES], draft_us;
    spec_run_t sum[MODES];
} cell_t;

/* One compressor over the texts: geometric means. */
typedef struct {
    double log_gain, log_vs_model, worst;
    spec_run_t fixed;
    uint32_t n;
} total_t;

typedef struct {
    const spec_bench_t *b;
    const char *label;
    spec_prompt_t prompt;
    bench_samples_t plain, pass[SPEC_WIDTHS];
    cell_t cells[SPEC_COMPRESSORS];
    total_t totals[SPEC_COMPRESSORS];
    uint32_t pays_from[SPEC_COMPRESSORS];
} table_t;

/* --fixed no leaves out the two lengths beside SPEC_FIXED. */
static bool wanted(uint32_t mode) { return mode == 1 || mode == 3 || strcmp(bench_option("fixed", "no"), "no") != 0; }

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
        spec_run_t plain = spec_run(t->b, &t->prompt, NULL, NULL, 0, &first);
        bench_add(&t->plain, spec_us_per_token(&plain));
        for (uint32_t w = 0; w < SPEC_WIDTHS; w++)
            bench_add(&t->pass[w], spec_pass_us(t->b, &t->prompt, spec_widths[w]));
        for (uint32_t i = 0; i < t->b->n_specs; i++) {
            cell_t *c = &t->cells[i];
            bench_add(&c->draft_us, spec_draft_us(t->b, &t->prompt, c->body));
            for (uint32_t m = 0; m < MODES; m++) {
                if (!wanted(m))
                    continue;
                spec_run_t r = spec_run(t->b, &t->prompt, c->body, c->name, modes[m], &first);
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
    double chance = spec_chance(&c->sum[1]), gain = bench_median(&c->gain[3]);
    double promise = spec_promise(bench_median(&t->plain), bench_median(&c->draft_us), spec_widths, pass_us,
                                  SPEC_WIDTHS, chance, &x);
    snprintf(name, sizeof name, "%s %s %.200s draft step", t->prompt.kind, t->label, t->b->specs[i]);
    bench_row(name, "us", &c->draft_us);
    for (uint32_t m = 0; m < MODES; m++) {
        char length[20] = "automatic";
        if (!wanted(m))
            continue;
        if (modes[m] != NODE_DRAFT_AUTO)
            snprintf(length, sizeof length, "%u drafts", modes[m]);
        snprintf(name, sizeof name, "%s %s %.200s gain, %s", t->prompt.kind, t->label, t->b->specs[i], length);
        bench_row(name, "x", &c->gain[m]);
    }
    bench_note("  match chance %.3f, promised %.3f with %u drafts; automatic %.3f: %.1f accepted in each of %.0f %% of "
               "rounds, chance %.3f",
               chance, promise, x, gain,
               (double)c->sum[3].accepted / (double)VC_MAX(c->sum[3].rounds - c->sum[3].plain_rounds, 1u),
               100 - 100.0 * (double)c->sum[3].plain_rounds / (double)VC_MAX(c->sum[3].rounds, 1u),
               spec_chance(&c->sum[3]));
    total->log_gain += log(gain);
    total->log_vs_model += log(gain / promise);
    total->worst = total->n++ == 0 ? gain : VC_MIN(total->worst, gain);
    spec_add(&total->fixed, &c->sum[1]);
    t->pays_from[i] = spec_pays_from(t->b, c->body, c->name, spec_chance(&total->fixed));
}

static void report_text(table_t *t)
{
    char name[100];
    double pass_us[SPEC_WIDTHS];
    snprintf(name, sizeof name, "%s %s plain decoding, a token", t->prompt.kind, t->label);
    bench_row(name, "us", &t->plain);
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
}

static void report_totals(const table_t *t)
{
    char name[100];
    double best = 0, vs_model = 0, worst = 1e9;
    for (uint32_t i = 0; i < t->b->n_specs; i++) {
        const total_t *s = &t->totals[i];
        double gain = exp(s->log_gain / s->n);
        bench_note("%s, %s: gain %.3f over the texts, worst %.3f, %.3f of what is promised, match chance %.3f",
                   t->label, t->b->specs[i], gain, s->worst, exp(s->log_vs_model / s->n), spec_chance(&s->fixed));
        if (t->pays_from[i] != 0)
            bench_note("%s on %s: pays from %u tokens", t->b->specs[i],
                       node_isa_name(node_engine_isa(t->b->node->engine)), t->pays_from[i]);
        else
            bench_note("%s on %s: pays nowhere up to %u tokens", t->b->specs[i],
                       node_isa_name(node_engine_isa(t->b->node->engine)),
                       node_engine_info(t->b->node->engine)->context);
        if (gain > best) {
            best = gain;
            vs_model = exp(s->log_vs_model / s->n);
        }
        worst = VC_MIN(worst, s->worst);
    }
    snprintf(name, sizeof name, "speculate_gain_%s_b1", t->label);
    bench_figure(name, best);
    snprintf(name, sizeof name, "speculate_min_%s_b1", t->label);
    bench_figure(name, worst);
    if (strcmp(t->label, "8k") == 0)
        bench_figure("speculate_vs_model", vs_model);
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
    vc_free(t);
}
