/* What was covered: runs, drafts and accepted drafts by value of each axis; and a case in words. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "identity_parts.h"

enum { MOST_VALUES = 160 };

typedef struct {
    const char *axis;
    uint32_t order; /* of the axis: its first entry */
    char value[80];
    uint64_t runs, proposed, accepted;
} count_t;
static count_t counts[MOST_VALUES];
static uint32_t n_counts;

static void count(const char *axis, const char *value, const identity_result_t *got)
{
    uint32_t i = 0, order = n_counts;
    for (; i < n_counts && (strcmp(counts[i].axis, axis) != 0 || strcmp(counts[i].value, value) != 0); i++)
        if (strcmp(counts[i].axis, axis) == 0)
            order = counts[i].order;
    if (i == MOST_VALUES)
        return;
    if (i == n_counts) {
        counts[n_counts].axis = axis;
        counts[n_counts].order = order;
        snprintf(counts[n_counts++].value, sizeof counts[0].value, "%s", value);
    }
    counts[i].runs++;
    counts[i].proposed += got->proposed;
    counts[i].accepted += got->accepted;
}

/* "8-15": the octave of a number. */
static const char *octave(uint32_t n)
{
    static char text[32];
    uint32_t low = 1;
    if (n == 0)
        return "0";
    while (low * 2 <= n)
        low *= 2;
    snprintf(text, sizeof text, low == 1 ? "%u" : "%u-%u", low, 2 * low - 1);
    return text;
}

static const char *length_name(const identity_run_t *v) { return v->x == NODE_DRAFT_AUTO ? "automatic" : octave(v->x); }
static const char *isa_name(const identity_model_t *m, const identity_run_t *v)
{
    return node_isa_name(node_engine_isa(m->engines[v->threads - 1][v->isa]));
}
static const char *spec_name(const identity_run_t *v)
{
    return v->drafts == IDENTITY_GUESSES ? "guesses" : v->spec ? v->spec : "full KV";
}

static const char *const source_names[IDENTITY_N_SOURCES] = {"none", "n-grams", "wild guesses"};
static const char *const tier_names[IDENTITY_N_TIERS] = {"in memory", "in a file", "in a file, buffers of a pool"};

static void count_request(const identity_model_t *m, const identity_request_t *q, const identity_result_t *got)
{
    const node_sampling_t *s = &q->sampling;
    count("model", m->is_file ? m->name : "small random ones", got);
    count("prompt", q->source, got);
    count("prompt tokens", octave(q->n_prompt), got);
    count("committed", octave(got->n), got);
    count("ended by", node_finish_name(got->finish), got);
    count("choice", s->temperature > 0 ? "sampled" : "greedy", got);
    count("filters", s->temperature > 0 && (s->top_k || s->top_p < 1 || s->min_p > 0) ? "yes" : "no", got);
    count("penalties", s->repeat_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0 ? "yes" : "no",
          got);
    count("stop strings", q->n_stops ? "yes" : "no", got);
}

void identity_count_value(const char *axis, const char *value, const identity_result_t *got)
{
    count(axis, value, got);
}

void identity_count(const identity_model_t *m, const identity_request_t *q, const identity_run_t *v,
                    const identity_result_t *got)
{
    char text[32];
    count_request(m, q, got);
    count("drafts from", spec_name(v), got);
    count("draft length", length_name(v), got);
    snprintf(text, sizeof text, "%u", v->threads);
    count("threads", text, got);
    count("instructions", isa_name(m, v), got);
    count("prefill cut", v->cut ? octave(v->cut) : "none", got);
    count("prefix hit",
          !v->hit_blocks                             ? "none"
          : v->hit_blocks == q->n_prompt / NODE_TILE ? "all blocks"
                                                     : "a part",
          got);
    count("resumed", v->n_resume ? "yes" : "no", got);
    count("draft source", v->drafts == IDENTITY_GUESSES ? "no" : source_names[v->source], got);
    count("drafts among", v->drafts == IDENTITY_DRAFTER && v->n_common ? "the common tokens" : "all tokens", got);
    count("full KV", got->spilled ? tier_names[v->tier] : tier_names[IDENTITY_IN_RAM], got);
    if (got->spilled)
        count("transfers",
              v->delay_seed                                     ? "held back at random"
              : v->slow_threads && v->tier == IDENTITY_OWN_TIER ? "threads"
                                                                : "ring where there is one",
              got);
}

static int by_axis_and_value(const void *a, const void *b)
{
    const count_t *x = a, *y = b;
    long m = strtol(x->value, NULL, 10), n = strtol(y->value, NULL, 10);
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return m != n ? (m < n ? -1 : 1) : strcmp(x->value, y->value);
}

void identity_print_counts(void)
{
    qsort(counts, n_counts, sizeof counts[0], by_axis_and_value);
    printf("%-16s %-56s %8s %10s %10s\n", "axis", "value", "runs", "drafts", "accepted");
    for (uint32_t i = 0; i < n_counts; i++)
        printf("%-16s %-56s %8" PRIu64 " %10" PRIu64 " %10" PRIu64 "\n",
               i > 0 && counts[i - 1].order == counts[i].order ? "" : counts[i].axis, counts[i].value, counts[i].runs,
               counts[i].proposed, counts[i].accepted);
}

void identity_describe(FILE *f, const identity_model_t *m, const identity_request_t *q, const identity_run_t *v)
{
    const node_sampling_t *s = &q->sampling;
    fprintf(f, "  repeat with --seed %" PRIu64 " --only %u.%u\n  model: %s\n", q->seed, q->index, v->index, m->name);
    fprintf(f, "  prompt: %u tokens, %s; at most %u tokens, context %u\n", q->n_prompt, q->source, q->max_tokens,
            q->context);
    fprintf(f,
            "  temperature %g, top-k %u, top-p %g, min-p %g, repeat %g, presence %g, frequency %g, noise seed %" PRIu64
            "\n  end tokens:",
            s->temperature, s->top_k, s->top_p, s->min_p, s->repeat_penalty, s->presence_penalty, s->frequency_penalty,
            s->seed);
    for (uint32_t i = 0; i < q->n_ends; i++)
        fprintf(f, " %u", q->ends[i]);
    fprintf(f, "; stop strings:");
    for (uint32_t i = 0; i < q->n_stops; i++) {
        fputs(" \"", f);
        for (const char *c = q->stops[i]; *c; c++)
            fputs(*c == '\n' ? "\\n" : (char[]){*c, '\0'}, f);
        fputc('"', f);
    }
    fprintf(f, "\n  drafts: %s, length %s", spec_name(v), length_name(v));
    if (v->x != NODE_DRAFT_AUTO)
        fprintf(f, " (%u)", v->x);
    fprintf(f, ", %u blocks compressed, %u of 1000 guesses right, source: %s%s, %u common tokens\n", v->body_blocks,
            v->right, source_names[v->source], v->costs ? ", costs known" : "", v->n_common);
    fprintf(f, "  %u threads, %s, prefill cut %u, hit of %u blocks, resumed at %u %%, ", v->threads,
            node_isa_name(v->isa), v->cut, v->hit_blocks, v->n_resume);
    fprintf(f, "full KV %s", tier_names[v->tier]);
    if (v->tier != IDENTITY_IN_RAM)
        fprintf(f, ", memory %.0f %%, buffers %.0f %% above the least, by %s, delays from %" PRIu64, 100 * v->slow_part,
                100 * v->hold_part, v->slow_threads ? "threads" : "ring", v->delay_seed);
    fputc('\n', f);
}
