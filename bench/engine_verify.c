/*
 * Passes of 2 to 64 rows at several depths, as shares of the multiply-add peak. A pass at a depth of 64 tokens is all
 * linear layers but for little; what a deeper one takes more is attention. Logits of all rows are made, as a verify
 * pass needs them.
 */
#include <stdio.h>

#include "engine_parts.h"
#include "vc/mem.h"

enum { SHALLOW = 64, MAX_ROWS = 64 };
static const uint32_t row_counts[] = {1, 2, 4, 8, 16, 32, 64};

/* Multiply-adds of the linear layers for one row, logits included. */
static double linear_ops(const node_model_info_t *m)
{
    double q = (double)m->n_head * m->head_dim, kv = (double)m->n_kv_head * m->head_dim, d = m->d_model;
    return m->n_layer * (d * (q + 2 * kv) + q * d + 3 * d * m->d_ffn) + d * m->n_vocab;
}

/* Of attention for rows at positions depth, depth + 1, ... */
static double attention_ops(const node_model_info_t *m, uint32_t depth, uint32_t rows)
{
    return 2.0 * m->n_layer * m->n_head * m->head_dim * rows * (depth + (rows + 1) / 2.0);
}

static double pass_seconds(bench_t *b, node_kv_t *kv, uint32_t rows)
{
    vc_err_t err = {0};
    node_row_t row[MAX_ROWS];
    uint32_t tokens[MAX_ROWS], depth = kv->n_tokens;
    bench_samples_t s = {0};
    engine_fill_tokens(tokens, rows, b->info->n_vocab);
    for (uint32_t i = 0; i < rows; i++)
        row[i] = (node_row_t){kv, tokens[i], true};
    for (uint32_t i = 0; i < b->reps * 2 + 1; i++) {
        double start = bench_now_s();
        engine_check(node_forward(b->eng, row, rows, b->logits, NULL, &err), &err);
        if (i > 0) /* the first one warms up */
            bench_add(&s, bench_now_s() - start);
        engine_check(node_kv_truncate(kv, depth), &err);
    }
    double median = bench_median(&s);
    bench_samples_free(&s);
    return median;
}

static void figure(const char *what, uint32_t rows, uint32_t depth, double value)
{
    char name[64], full[64];
    snprintf(name, sizeof name, "verify%u_%s", rows, what);
    engine_name(full, sizeof full, name, depth);
    bench_figure(full, value);
}

static void report(const bench_t *b, uint32_t rows, uint32_t depth, double one, double shallow, double deep)
{
    const roofline_t *r = &b->roofline;
    double linear = rows * linear_ops(b->info), attention = attention_ops(b->info, depth, rows);
    bench_note("%2u rows at %4u: %.2f ms, %.2f of a row alone; linear %.2f of int16 peak, attention %.2f of f32 peak",
               rows, depth, deep * 1e3, deep / one, linear / r->dot_per_s / shallow,
               (attention - attention_ops(b->info, SHALLOW, rows)) / r->fma_per_s / (deep - shallow));
    if (rows == 1)
        return;
    figure("peak_share", rows, depth, (linear / r->dot_per_s + attention / r->fma_per_s) / deep);
    figure("row_ratio", rows, depth, deep / one);
}

void engine_verify(bench_t *b)
{
    enum { N = sizeof row_counts / sizeof row_counts[0] };
    const uint32_t n = bench_quick() ? 3 : N;
    double shallow[N], one = 0;
    node_kv_t kv;
    engine_fill(b, &kv, SHALLOW);
    for (uint32_t i = 0; i < n; i++)
        shallow[i] = pass_seconds(b, &kv, row_counts[i]);
    node_kv_fini(&kv);
    for (uint32_t d = 0; d < b->n_depths; d++) {
        const uint32_t depth = VC_MIN(b->depths[d], b->info->context - MAX_ROWS);
        engine_fill(b, &kv, depth);
        for (uint32_t i = 0; i < n; i++) {
            double deep = pass_seconds(b, &kv, row_counts[i]);
            one = i == 0 ? deep : one;
            report(b, row_counts[i], depth, one, shallow[i], deep);
        }
        node_kv_fini(&kv);
    }
}
