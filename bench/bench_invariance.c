/*
 * What row invariance costs: our kernels, whose sums have one order whatever else is in the pass, against what one
 * would write without that rule, on the same data and instruction set, interleaved, medians of pairs. One thread.
 *
 * linear     1 to 32 rows on Q4_1 matrices of a model's size, one after the other; needs AVX-512 VNNI
 *            (invariance_avx512vnni.c)
 * attention  1 to 30 queries over f16 KV, from memory and in the caches, AVX2 and AVX-512 VNNI (invariance_attn.c)
 *
 * invariance_linear, invariance_attention, invariance_attention_avx2: our time over the free one's, the geometric mean
 * over the sizes. The free kernels are in this bench only. --rounds N, --part linear|attention.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "invariance_parts.h"
#include "kernels/backend.h"
#include "vc/mem.h"

enum { MATRICES = 12, N_IN = 576, N_OUT = 1536, MAX_ROWS = 32 };

static const uint32_t linear_rows[] = {1, 2, 4, 8, 16, 32};

static double timed(void (*fn)(void *arg), void *arg)
{
    double start = bench_now_s();
    fn(arg);
    return bench_now_s() - start;
}

double invariance_compare(const char *what, const invariance_pair_t *p, uint32_t rounds)
{
    bench_samples_t ours = {0}, theirs = {0}, ratio = {0};
    char name[64];
    p->ours(p->arg);
    p->free_order(p->arg);
    for (uint32_t i = 0; i < rounds; i++) {
        double a, b;
        if (i % 2 == 0) {
            a = timed(p->ours, p->arg);
            b = timed(p->free_order, p->arg);
        } else {
            b = timed(p->free_order, p->arg);
            a = timed(p->ours, p->arg);
        }
        bench_add(&ours, a * 1e6);
        bench_add(&theirs, b * 1e6);
        bench_add(&ratio, a / b);
    }
    snprintf(name, sizeof name, "%s ours", what);
    bench_row(name, "us", &ours);
    snprintf(name, sizeof name, "%s free order", what);
    bench_row(name, "us", &theirs);
    double median = bench_median(&ratio);
    bench_samples_free(&ours);
    bench_samples_free(&theirs);
    bench_samples_free(&ratio);
    return median;
}

void invariance_expect_close(const char *what, const float *x, const float *y, size_t n)
{
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        off += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        all += (double)x[i] * x[i];
    }
    if (!(off <= all * 1e-8))
        bench_fail("%s: the two kernels differ by more than rounding", what);
}

float invariance_noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 24) - 0.5f;
}

void *invariance_room(size_t n, size_t size)
{
    void *p = vc_alloc_aligned(64, vc_align_up(n * size, 64));
    if (p == NULL)
        bench_fail("no memory");
    memset(p, 0, vc_align_up(n * size, 64));
    return p;
}

/* ---- linear ---- */

typedef struct {
    const node_ops_t *ops;
    node_matrix_t m[MATRICES];
    node_acts_t a;
    uint32_t rows;
    float *out, *free_out; /* [MAX_ROWS][N_OUT] */
} linear_t;

static const uint8_t *next_matrix(const linear_t *l, uint32_t i) { return l->m[(i + 1) % MATRICES].data; }

static void linear_ours(void *arg)
{
    linear_t *l = arg;
    for (uint32_t i = 0; i < MATRICES; i++)
        for (uint32_t p = 0; p < l->m[i].n_panels; p += 4)
            l->ops->linear(&l->m[i], p, p + 4, next_matrix(l, i) + p * l->m[i].panel_bytes, &l->a, 0, l->rows, l->out,
                           N_OUT);
}

static void linear_free_order(void *arg)
{
    linear_t *l = arg;
    for (uint32_t i = 0; i < MATRICES; i++)
        invariance_linear_free(&l->m[i], next_matrix(l, i), &l->a, l->rows, l->free_out, N_OUT);
}

static void make_matrices(linear_t *l, node_huge_pool_t *pool)
{
    const size_t bytes = node_matrix_row_bytes(NODE_W_Q4_1, N_IN);
    uint8_t *file = invariance_room(N_OUT, bytes);
    const uint8_t *rows[N_OUT];
    uint32_t s = 7;
    for (uint32_t o = 0; o < N_OUT; o++) {
        rows[o] = file + o * bytes;
        for (size_t i = 0; i < bytes; i++)
            file[o * bytes + i] = (uint8_t)((s = s * 1664525u + 1013904223u) >> 24);
        for (size_t block = 0; block < bytes; block += 20) { /* scales and minima: small numbers of either sign */
            file[o * bytes + block + 1] = (uint8_t)(0x20 + (o & 3));
            file[o * bytes + block + 3] = (uint8_t)(0xa0 + (block & 3));
        }
    }
    for (uint32_t i = 0; i < MATRICES; i++)
        if (node_matrix_pack(&l->m[i], NODE_W_Q4_1, N_IN, N_OUT, rows, pool) != VC_OK)
            bench_fail("no memory for matrices");
    vc_free(file);
}

static double bench_linear(const node_ops_t *ops, uint32_t rounds)
{
    linear_t l = {.ops = ops};
    node_huge_pool_t pool = {0};
    uint32_t s = 3;
    double product = 1;
    make_matrices(&l, &pool);
    l.a = (node_acts_t){
        .n_in = N_IN, .stride = N_IN, .group_stride = 32, .x = invariance_room((size_t)MAX_ROWS * N_IN, 4)};
    l.a.q = invariance_room((size_t)MAX_ROWS * N_IN, 2);
    l.a.scale = invariance_room((size_t)MAX_ROWS * 32, 4);
    l.a.sum = invariance_room((size_t)MAX_ROWS * 32, 4);
    l.a.isum = invariance_room((size_t)MAX_ROWS * 32, 4);
    l.out = invariance_room((size_t)MAX_ROWS * N_OUT, 4);
    l.free_out = invariance_room((size_t)MAX_ROWS * N_OUT, 4);
    for (size_t i = 0; i < (size_t)MAX_ROWS * N_IN; i++)
        l.a.x[i] = invariance_noise(&s);
    for (uint32_t r = 0; r < MAX_ROWS; r++)
        ops->quantise(&l.a, r);
    for (size_t i = 0; i < VC_ARRAY_LEN(linear_rows); i++) {
        l.rows = linear_rows[i];
        char what[64];
        snprintf(what, sizeof what, "linear rows %u", l.rows);
        double ratio = invariance_compare(what, &(invariance_pair_t){linear_ours, linear_free_order, &l}, rounds);
        invariance_expect_close("linear", l.out, l.free_out, (size_t)l.rows * N_OUT);
        bench_note("linear, %u rows: %.3f of the free order's time", l.rows, ratio);
        product *= ratio;
    }
    void *all[] = {l.a.x, l.a.q, l.a.scale, l.a.sum, l.a.isum, l.out, l.free_out};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++)
        vc_free(all[i]);
    node_huge_pool_free(&pool);
    return pow(product, 1.0 / (double)VC_ARRAY_LEN(linear_rows));
}

int main(int argc, char **argv)
{
    bench_init("invariance", argc, argv);
    bench_options("rounds part");
    const uint32_t rounds = (uint32_t)bench_number("rounds", bench_quick() ? "5" : "401", 1, 100000);
    const char *part = bench_option("part", "all");
    const bool all = strcmp(part, "all") == 0;
    if (!all && strcmp(part, "linear") != 0 && strcmp(part, "attention") != 0)
        bench_fail("--part must be linear or attention");
    (void)bench_pin(bench_n_cpus() - 1);
    if (all || strcmp(part, "linear") == 0) {
        if (node_ops_get(NODE_OPS_AVX512) == &node_ops_avx512vnni)
            bench_figure("invariance_linear", bench_linear(&node_ops_avx512vnni, rounds));
        else
            bench_note("linear skipped: its free kernels are written for AVX-512 VNNI, which this CPU lacks");
    }
    if (all || strcmp(part, "attention") == 0)
        invariance_bench_attention(rounds);
    return 0;
}
