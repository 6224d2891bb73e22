/*
 * What row invariance costs: our kernels, whose sums have one order whatever else is in the pass, against what one
 * would write without that rule, on the same data and instruction set, interleaved, medians of pairs.
 *
 * linear     1 to 32 rows on Q4_1 matrices of a model's size, one after the other
 * attention  1 to 30 queries over 4,096 tokens of f16 KV, which come from memory as a pass over a long context has them
 *
 * invariance_linear, invariance_attention: our time over the free one's, the geometric mean over the sizes. The free
 * kernels (invariance_avx512vnni.c says how they differ) are in this bench only and need AVX-512 VNNI. One thread.
 * --rounds N.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "invariance_parts.h"
#include "kernels/backend.h"
#include "vc/mem.h"

enum { DIM = 64, TILES = 64, SETS = 96, SPLIT = 4, MATRICES = 12, N_IN = 576, N_OUT = 1536, MAX_ROWS = 32 };

static const uint32_t linear_rows[] = {1, 2, 4, 8, 16, 32}, attention_queries[] = {1, 3, 6, 12, 24, 30};

/* Called by turns. */
typedef struct {
    void (*ours)(void *arg);
    void (*free_order)(void *arg);
    void *arg;
} pair_t;

static double timed(void (*fn)(void *arg), void *arg)
{
    double start = bench_now_s();
    fn(arg);
    return bench_now_s() - start;
}

/* Median of ours / free over the rounds. */
static double compare(const char *what, uint32_t size, const pair_t *p, uint32_t rounds)
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
    snprintf(name, sizeof name, "%s %u ours", what, size);
    bench_row(name, "us", &ours);
    snprintf(name, sizeof name, "%s %u free order", what, size);
    bench_row(name, "us", &theirs);
    double median = bench_median(&ratio);
    bench_samples_free(&ours);
    bench_samples_free(&theirs);
    bench_samples_free(&ratio);
    return median;
}

/* The two must agree but for rounding, or one of them computes something else. */
static void expect_close(const char *what, const float *x, const float *y, size_t n)
{
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        off += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        all += (double)x[i] * x[i];
    }
    if (!(off <= all * 1e-8))
        bench_fail("%s: the two kernels differ by more than rounding", what);
}

static float noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 24) - 0.5f;
}

static void *room(size_t n, size_t size)
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
    uint8_t *file = room(N_OUT, bytes);
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
    l.a = (node_acts_t){.n_in = N_IN, .stride = N_IN, .group_stride = 32, .x = room((size_t)MAX_ROWS * N_IN, 4)};
    l.a.q = room((size_t)MAX_ROWS * N_IN, 2);
    l.a.scale = room((size_t)MAX_ROWS * 32, 4);
    l.a.sum = room((size_t)MAX_ROWS * 32, 4);
    l.a.isum = room((size_t)MAX_ROWS * 32, 4);
    l.out = room((size_t)MAX_ROWS * N_OUT, 4);
    l.free_out = room((size_t)MAX_ROWS * N_OUT, 4);
    for (size_t i = 0; i < (size_t)MAX_ROWS * N_IN; i++)
        l.a.x[i] = noise(&s);
    for (uint32_t r = 0; r < MAX_ROWS; r++)
        ops->quantise(&l.a, r);
    for (size_t i = 0; i < VC_ARRAY_LEN(linear_rows); i++) {
        l.rows = linear_rows[i];
        double ratio = compare("linear rows", l.rows, &(pair_t){linear_ours, linear_free_order, &l}, rounds);
        expect_close("linear", l.out, l.free_out, (size_t)l.rows * N_OUT);
        bench_note("linear, %u rows: %.3f of the free order's time", l.rows, ratio);
        product *= ratio;
    }
    void *all[] = {l.a.x, l.a.q, l.a.scale, l.a.sum, l.a.isum, l.out, l.free_out};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++)
        vc_free(all[i]);
    node_huge_pool_free(&pool);
    return pow(product, 1.0 / (double)VC_ARRAY_LEN(linear_rows));
}

/* ---- attention ---- */

typedef struct {
    const node_ops_t *ops;
    invariance_attn_t free_order;
    const uint16_t *kv; /* [SETS][TILES]{K, V}: every call takes the next set, so that none is in a cache */
    uint32_t set;
    const uint16_t *k[TILES], *v[TILES]; /* of the set at hand */
    float m[NODE_QUERY_MAX], l[NODE_QUERY_MAX], all_m[NODE_QUERY_MAX], all_l[NODE_QUERY_MAX];
    float *o, *all_o, *out; /* [NODE_QUERY_MAX][DIM] */
} attention_t;

static void reset(float *m, float *l, float *o, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        m[i] = -__builtin_inff();
        l[i] = 0.0f;
    }
    memset(o, 0, (size_t)n * DIM * sizeof *o);
}

static void next_set(attention_t *t)
{
    const size_t half = (size_t)NODE_ATTN_TILE * DIM;
    const uint16_t *at = t->kv + (size_t)t->set * TILES * 2 * half;
    t->set = (t->set + 1) % SETS;
    for (uint32_t i = 0; i < TILES; i++) {
        t->k[i] = at + 2 * i * half;
        t->v[i] = t->k[i] + half;
    }
}

/* As the engine does it: splits of four tiles with states of their own, folded in ascending order. */
static void attention_ours(void *arg)
{
    attention_t *t = arg;
    const uint32_t n = t->free_order.n_q;
    next_set(t);
    node_attn_t a = {.n_q = n, .head_dim = DIM, .q = t->free_order.q, .m = t->m, .l = t->l, .o = t->o, .once = true};
    a.p = t->free_order.p;
    for (uint32_t i = 0; i < n; i++)
        a.n_valid[i] = NODE_ATTN_TILE;
    reset(t->all_m, t->all_l, t->all_o, n);
    for (uint32_t tile = 0; tile < TILES; tile++) {
        if (tile % SPLIT == 0)
            reset(t->m, t->l, t->o, n);
        a.next_k = tile + 1 < TILES ? t->k[tile + 1] : NULL;
        a.next_v = tile + 1 < TILES ? t->v[tile + 1] : NULL;
        t->ops->attend(&a, t->k[tile], t->v[tile]);
        if (tile % SPLIT == SPLIT - 1)
            t->ops->fold(n, DIM, t->all_m, t->all_l, t->all_o, t->m, t->l, t->o);
    }
    for (uint32_t i = 0; i < n; i++)
        t->ops->finish(t->all_l[i], t->all_o + (size_t)i * DIM, DIM, t->out + (size_t)i * DIM);
}

static void attention_free_order(void *arg)
{
    attention_t *t = arg;
    next_set(t);
    invariance_attend_free(&t->free_order);
}

/* The last set for both, so that their results can be compared. */
static void attend_same(attention_t *t)
{
    const uint32_t set = t->set;
    attention_ours(t);
    t->set = set;
    attention_free_order(t);
}

static double bench_attention(const node_ops_t *ops, uint32_t rounds)
{
    static attention_t t;
    const size_t half = (size_t)NODE_ATTN_TILE * DIM, states = (size_t)NODE_QUERY_MAX * DIM;
    uint16_t *kv = node_alloc_huge(SETS * TILES * 2 * half * sizeof *kv);
    if (kv == NULL)
        bench_fail("no memory for KV");
    float *x = room(half, 4), *q = room(states, 4), *p = room((size_t)NODE_QUERY_MAX * NODE_ATTN_TILE, 4);
    float *free_o = room(states, 4), *free_out = room(states, 4);
    uint32_t s = 5;
    double product = 1;
    t.ops = ops;
    t.o = room(states, 4);
    t.all_o = room(states, 4);
    t.out = room(states, 4);
    for (uint32_t i = 0; i < SETS * TILES * 2; i++) {
        for (size_t j = 0; j < half && i < 2 * TILES; j++) /* other sets repeat the first: only their place matters */
            x[j] = noise(&s);
        if (i < 2 * TILES)
            (void)ops->to_f16(x, (uint32_t)half, kv + i * half);
        else
            memcpy(kv + i * half, kv + i % (2 * TILES) * half, half * sizeof *kv);
    }
    t.kv = kv;
    for (size_t i = 0; i < states; i++)
        q[i] = noise(&s);
    for (size_t i = 0; i < VC_ARRAY_LEN(attention_queries); i++) {
        const uint32_t n = attention_queries[i];
        t.free_order = (invariance_attn_t){n, DIM, TILES, q, t.k, t.v, p, free_o, free_out};
        double ratio = compare("attention queries", n, &(pair_t){attention_ours, attention_free_order, &t}, rounds);
        attend_same(&t);
        expect_close("attention", t.out, free_out, (size_t)n * DIM);
        bench_note("attention, %u queries: %.3f of the free order's time", n, ratio);
        product *= ratio;
    }
    void *all[] = {kv, x, q, p, free_o, free_out, t.o, t.all_o, t.out};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++)
        vc_free(all[i]);
    return pow(product, 1.0 / (double)VC_ARRAY_LEN(attention_queries));
}

int main(int argc, char **argv)
{
    bench_init("invariance", argc, argv);
    bench_options("rounds");
    const uint32_t rounds = (uint32_t)strtoul(bench_option("rounds", bench_quick() ? "5" : "401"), NULL, 10);
    if (rounds < 1 || rounds > 100000)
        bench_fail("--rounds must be 1 to 100000");
    if (node_ops_get(NODE_OPS_AVX512) != &node_ops_avx512vnni) {
        bench_note("skipped: the free kernels are written for AVX-512 VNNI, which this CPU lacks");
        return 0;
    }
    (void)bench_pin(bench_n_cpus() - 1);
    bench_figure("invariance_linear", bench_linear(&node_ops_avx512vnni, rounds));
    bench_figure("invariance_attention", bench_attention(&node_ops_avx512vnni, rounds));
    return 0;
}
