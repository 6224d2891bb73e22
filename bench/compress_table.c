/* What was measured, as a table, a CSV file and against figures measured before. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compress_parts.h"
#include "vc/mem.h"

static const compress_tally_t *at_longest(const compress_run_t *run, uint32_t i)
{
    return &run->specs[i].sum[run->n_prefixes - 1];
}

bool compress_on_front(const compress_run_t *run, uint32_t i)
{
    const compress_tally_t *mine = at_longest(run, i);
    double accepted = compress_accepted(mine, COMPRESS_LENGTHS - 1), wire = compress_wire(mine);
    for (uint32_t k = 0; k < run->n_specs; k++) {
        const compress_tally_t *other = at_longest(run, k);
        double a = compress_accepted(other, COMPRESS_LENGTHS - 1), w = compress_wire(other);
        if (k != i && a >= accepted && w <= wire && (a > accepted || w < wire))
            return false;
    }
    return true;
}

static void print_row(const compress_run_t *run, const compress_spec_t *s, uint32_t i)
{
    const compress_tally_t *t = &s->all, *l = at_longest(run, i);
    printf("%c %-36s %6.2f %7.4f %6.2f %6.2f %6.2f %6.2f %7.0f %7.0f", compress_on_front(run, i) ? '*' : ' ', s->asked,
           node_spec_bits_per_element(&s->spec, node_engine_info(run->node->engine)), compress_same(t),
           compress_accepted(t, 0), compress_accepted(t, 1), compress_accepted(t, 2), compress_accepted(t, 3),
           compress_wire(l), compress_memory(l));
    if (s->step_vs_full > 0)
        printf(" %7.3f %7.3f %6.3f", s->compress_s + s->watch_s, (s->compress_s + s->watch_s) / run->prefill_s,
               s->step_vs_full);
    putchar('\n');
}

static void print_texts(const compress_run_t *run)
{
    printf("\nmatch chance by text\n  %-36s", "compressor");
    for (uint32_t t = 0; t < run->n_texts; t++)
        for (uint32_t p = 0; p < run->n_prefixes; p++)
            printf(" %5.5s %4u", run->texts[t].name, run->prefixes[p]);
    putchar('\n');
    for (uint32_t i = 0; i < run->n_specs; i++) {
        printf("  %-36s", run->specs[i].asked);
        for (uint32_t t = 0; t < run->n_texts; t++)
            for (uint32_t p = 0; p < run->n_prefixes; p++)
                printf(" %10.4f", compress_same(&run->specs[i].at[t][p]));
        putchar('\n');
    }
}

void compress_print(const compress_run_t *run)
{
    uint32_t longest = run->prefixes[run->n_prefixes - 1];
    printf("\n%u texts, prefixes of up to %u tokens, %llu positions; bytes a token (full KV %llu) at %u tokens\n",
           run->n_texts, longest, (unsigned long long)run->specs[0].all.n,
           (unsigned long long)node_engine_info(run->node->engine)->n_layer * 4 *
               node_engine_info(run->node->engine)->n_kv_head * node_engine_info(run->node->engine)->head_dim,
           longest);
    printf("  %-36s %6s %7s %6s %6s %6s %6s %7s %7s", "compressor", "bits", "match", "of 4", "of 8", "of 16", "of 30",
           "wire", "memory");
    if (run->prefill_s > 0)
        printf(" %7s %7s %6s", "made s", "/prefil", "step");
    putchar('\n');
    for (uint32_t i = 0; i < run->n_specs; i++)
        print_row(run, &run->specs[i], i);
    bench_note("* no other accepts as many of 30 with as few bytes; made: watching and compressing; step: one draft "
               "step against one on full KV");
    print_texts(run);
}

/* ---- against figures measured before ---- */

/* A float32 prototype on the same model, other texts (copy, needle, code, prose of 2k tokens, turns of 4k), about 432
 * positions: share of equal choices with the true text forced. */
static const struct {
    const char *text, *what;
    double same;
} reference[] = {
    {"rot:bits=8", "int8 per token", 0.998},
    {"rotatekv:bits=4", "RotateKV-4", 0.986},
    {"rotatekv:bits=3", "RotateKV-3", 0.963},
    {"rotatekv:bits=2", "RotateKV-2", 0.875},
    {"kivi:bits=4", "KIVI-4", 0.977},
    {"kivi:bits=2", "KIVI-2", 0.829},
    {"kvquant:bits=4", "KVQuant-4, 1 %", 0.981},
    {"kvquant:bits=3", "KVQuant-3, 1 %", 0.949},
    {"kvquant:bits=2", "KVQuant-2, 1 %", 0.822},
    {"rot:bits=4", "Hadamard + q4_0", 0.968},
    {"kvzip:keep=0.5,plus=no,budget=head", "KVzip .5", 0.931},
    {"kvzip:keep=0.25,plus=no,budget=head", "KVzip .25", 0.863},
    {"kvzip:keep=0.25,plus=yes,budget=head", "KVzip+ .25", 0.850},
    {"kvzip:keep=0.25,plus=yes,budget=layer", "KVzip+ .25, layers", 0.912},
    {"kvzap:keep=0.25", "KVzap .25", 0.806},
    {"expected_attention:keep=0.25", "ExpectedAttention .25", 0.801},
    {"snapkv:keep=0.25", "SnapKV .25", 0.745},
};
enum { REFERENCE_N = 432 };

/* Positions of one text depend on each other: the spread between texts decides where it is the larger one. */
static double error_of(const compress_run_t *run, const compress_spec_t *s)
{
    double p = compress_same(&s->all), n = (double)VC_MAX(s->all.n, 1u), sum = 0;
    uint32_t cases = run->n_texts * run->n_prefixes;
    for (uint32_t t = 0; t < run->n_texts; t++)
        for (uint32_t k = 0; k < run->n_prefixes; k++) {
            double d = compress_same(&s->at[t][k]) - p;
            sum += d * d;
        }
    double between = cases > 1 ? sqrt(sum / (cases - 1) / cases) : 0, within = sqrt(p * (1 - p) / n);
    return between > within ? between : within;
}

void compress_compare(const compress_run_t *run)
{
    uint32_t agree = 0, n = 0;
    printf("\n  %-36s %8s %8s %8s %8s\n", "true text forced: match chance", "here", "error", "before", "error");
    for (size_t r = 0; r < VC_ARRAY_LEN(reference); r++)
        for (uint32_t i = 0; i < run->n_specs; i++) {
            const compress_spec_t *s = &run->specs[i];
            if (strcmp(s->asked, reference[r].text) != 0)
                continue;
            double here = compress_same(&s->all), before = reference[r].same, e = error_of(run, s);
            double eb = sqrt(before * (1 - before) / REFERENCE_N);
            bool is_near = fabs(here - before) <= 2 * sqrt(e * e + eb * eb);
            printf("  %-36s %8.4f %8.4f %8.4f %8.4f %s (%s)\n", s->asked, here, e, before, eb,
                   is_near         ? "agrees"
                   : here > before ? "differs: higher"
                                   : "differs: lower",
                   reference[r].what);
            agree += is_near;
            n++;
        }
    bench_note("%u of %u within two standard errors of the difference", agree, n);
}

/* ---- CSV ---- */

static void csv_row(FILE *f, const compress_run_t *run, const compress_spec_t *s, const char *text, uint32_t prefix,
                    const compress_tally_t *t)
{
    fprintf(f, "\"%s\",%s,%u,%llu,%.5f,%.4f,%.4f,%.4f,%.4f,%.1f,%.1f,%.4f,%.4f,%.4f,%.4f\n", s->spec.text, text, prefix,
            (unsigned long long)t->n, compress_same(t), compress_accepted(t, 0), compress_accepted(t, 1),
            compress_accepted(t, 2), compress_accepted(t, 3), compress_wire(t), compress_memory(t), s->compress_s,
            s->watch_s, run->prefill_s > 0 ? (s->compress_s + s->watch_s) / run->prefill_s : 0, s->step_vs_full);
}

void compress_write_csv(const compress_run_t *run, const char *path)
{
    FILE *f = fopen(path, "w");
    if (!f)
        bench_fail("cannot write %s", path);
    fputs("compressor,text,prefix,positions,match,accepted_4,accepted_8,accepted_16,accepted_30,wire_bytes_per_token,"
          "memory_bytes_per_token,compress_s,watch_s,compress_vs_prefill,step_vs_full\n",
          f);
    for (uint32_t i = 0; i < run->n_specs; i++) {
        const compress_spec_t *s = &run->specs[i];
        for (uint32_t t = 0; t < run->n_texts; t++)
            for (uint32_t p = 0; p < run->n_prefixes; p++)
                csv_row(f, run, s, run->texts[t].name, run->prefixes[p], &s->at[t][p]);
        for (uint32_t p = 0; p < run->n_prefixes; p++)
            csv_row(f, run, s, "all", run->prefixes[p], &s->sum[p]);
    }
    if (ferror(f) || fclose(f) != 0)
        bench_fail("cannot write %s", path);
    bench_note("written: %s", path);
}
