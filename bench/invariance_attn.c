/*
 * The attention part of bench_invariance. Ours as the engine does it: splits of four tiles with states of their own,
 * folded in ascending order. The free one has a single state over all tiles and sums in whichever order is fastest
 * (invariance_attn_order.h); masks, rescaling, conversions, tiling and prefetching are the same text. Both walk over
 *
 *   from memory    4,096 tokens, other ones in each call, as a pass over a long context has them
 *   in the caches  1,024 tokens, the same in each call, four walks a sample
 *
 * and of the last tile each row sees one token more than the one before, as the rows of a verify pass do.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "invariance_parts.h"
#include "kernels/backend.h"
#include "vc/mem.h"

enum { DIM = 64, GROUP = 3, TILES = 64, SETS = 96, HOT_TILES = 16, HOT_WALKS = 4, SPLIT = 4, LANES = 16 };

static const uint32_t query_counts[] = {1, 3, 6, 12, 24, 30};

typedef struct {
    const char *name, *suffix; /* in rows, of figures */
    const node_ops_t *ours, *free_order;
    float (*sum)(const float *l);
} isa_t;

/* Of one kernel: states of a split and of all, or one only with l as vectors. */
typedef struct {
    float *m, *l, *o, *all_m, *all_l, *all_o;
    float *p, *out; /* [NODE_QUERY_MAX][tile], [NODE_QUERY_MAX][DIM] */
} states_t;

typedef struct {
    const isa_t *isa;
    bool hot;
    uint32_t n_q, set;
    const uint16_t *kv; /* [SETS][TILES]{K, V} */
    const float *q;     /* [NODE_QUERY_MAX][DIM] */
    states_t ours, free_order;
} attention_t;

static const uint16_t *tile_at(const attention_t *t, uint32_t tile)
{
    return t->kv + ((size_t)t->set * TILES + tile) * 2 * NODE_ATTN_TILE * DIM;
}

static void reset(float *m, float *l, float *o, uint32_t n, uint32_t lanes)
{
    for (uint32_t i = 0; i < n; i++)
        m[i] = -__builtin_inff();
    memset(l, 0, (size_t)n * lanes * sizeof *l);
    memset(o, 0, (size_t)n * DIM * sizeof *o);
}

static void attend_tile(const attention_t *t, const node_ops_t *ops, uint32_t tile, uint32_t n_tiles, node_attn_t *a)
{
    const uint16_t *k = tile_at(t, tile);
    const bool last = tile + 1 == n_tiles;
    for (uint32_t i = 0; i < t->n_q; i++)
        a->n_valid[i] = last ? NODE_ATTN_TILE / 2 + i / GROUP : NODE_ATTN_TILE;
    a->next_k = last ? NULL : tile_at(t, tile + 1);
    a->next_v = last ? NULL : a->next_k + NODE_ATTN_TILE * DIM;
    ops->attend(a, k, k + NODE_ATTN_TILE * DIM);
}

static node_attn_t attn_of(const attention_t *t, const states_t *s)
{
    return (node_attn_t){
        .n_q = t->n_q, .head_dim = DIM, .q = t->q, .m = s->m, .l = s->l, .o = s->o, .p = s->p, .once = !t->hot};
}

static void walk_ours(const attention_t *t, uint32_t n_tiles)
{
    const states_t *s = &t->ours;
    const node_ops_t *ops = t->isa->ours;
    node_attn_t a = attn_of(t, s);
    reset(s->all_m, s->all_l, s->all_o, t->n_q, 1);
    for (uint32_t tile = 0; tile < n_tiles; tile++) {
        if (tile % SPLIT == 0)
            reset(s->m, s->l, s->o, t->n_q, 1);
        attend_tile(t, ops, tile, n_tiles, &a);
        if (tile % SPLIT == SPLIT - 1)
            ops->fold(t->n_q, DIM, s->all_m, s->all_l, s->all_o, s->m, s->l, s->o);
    }
    for (uint32_t i = 0; i < t->n_q; i++)
        ops->finish(s->all_l[i], s->all_o + (size_t)i * DIM, DIM, s->out + (size_t)i * DIM);
}

static void walk_free_order(const attention_t *t, uint32_t n_tiles)
{
    const states_t *s = &t->free_order;
    const node_ops_t *ops = t->isa->free_order;
    node_attn_t a = attn_of(t, s);
    reset(s->m, s->l, s->o, t->n_q, LANES);
    for (uint32_t tile = 0; tile < n_tiles; tile++)
        attend_tile(t, ops, tile, n_tiles, &a);
    for (uint32_t i = 0; i < t->n_q; i++)
        ops->finish(t->isa->sum(s->l + (size_t)i * LANES), s->o + (size_t)i * DIM, DIM, s->out + (size_t)i * DIM);
}

static void walks(attention_t *t, void (*walk)(const attention_t *t, uint32_t n_tiles))
{
    if (!t->hot)
        t->set = (t->set + 1) % SETS;
    for (uint32_t i = 0; i < (t->hot ? HOT_WALKS : 1u); i++)
        walk(t, t->hot ? HOT_TILES : TILES);
}

static void ours(void *arg) { walks(arg, walk_ours); }

static void free_order(void *arg) { walks(arg, walk_free_order); }

static states_t make_states(void)
{
    const size_t n = NODE_QUERY_MAX;
    return (states_t){.m = invariance_room(n, 4),
                      .l = invariance_room(n * LANES, 4),
                      .o = invariance_room(n * DIM, 4),
                      .all_m = invariance_room(n, 4),
                      .all_l = invariance_room(n, 4),
                      .all_o = invariance_room(n * DIM, 4),
                      .p = invariance_room(n * NODE_ATTN_TILE, 4),
                      .out = invariance_room(n * DIM, 4)};
}

static void free_states(const states_t *s)
{
    float *all[] = {s->m, s->l, s->o, s->all_m, s->all_l, s->all_o, s->p, s->out};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++)
        vc_free(all[i]);
}

/* Other sets than the first repeat it: only their place matters. */
static uint16_t *make_kv(void)
{
    enum { HALF = NODE_ATTN_TILE * DIM, SET = TILES * 2 * HALF };
    float x[HALF];
    uint32_t s = 5;
    uint16_t *kv = node_alloc_huge((size_t)SETS * SET * sizeof *kv);
    if (kv == NULL)
        bench_fail("no memory for KV");
    for (uint32_t i = 0; i < 2 * TILES; i++) {
        for (size_t j = 0; j < HALF; j++)
            x[j] = invariance_noise(&s);
        (void)node_ops_scalar.to_f16(x, HALF, kv + (size_t)i * HALF);
    }
    for (size_t set = 1; set < SETS; set++)
        memcpy(kv + set * SET, kv, SET * sizeof *kv);
    return kv;
}

/* Ours over the free order's, the product over all sizes; the largest in *worst_p. */
static double compare_sizes(attention_t *t, uint32_t rounds, double *worst_p)
{
    double product = 1;
    for (size_t i = 0; i < VC_ARRAY_LEN(query_counts); i++) {
        char what[64];
        t->n_q = query_counts[i];
        snprintf(what, sizeof what, "attention%s%s queries %u", t->isa->name, t->hot ? " cached" : "", t->n_q);
        double ratio = invariance_compare(what, &(invariance_pair_t){ours, free_order, t}, rounds);
        invariance_expect_close(what, t->ours.out, t->free_order.out, (size_t)t->n_q * DIM);
        bench_note("%s: %.3f of the free order's time", what, ratio);
        product *= ratio;
        *worst_p = fmax(*worst_p, ratio);
    }
    return product;
}

static void bench_isa(const isa_t *isa, attention_t *t, uint32_t rounds)
{
    char name[64];
    double product = 1, worst = 0;
    t->isa = isa;
    for (int hot = 0; hot < 2; hot++) {
        t->hot = hot == 1;
        product *= compare_sizes(t, rounds, &worst);
    }
    snprintf(name, sizeof name, "invariance_attention%s", isa->suffix);
    bench_figure(name, pow(product, 0.5 / (double)VC_ARRAY_LEN(query_counts)));
    snprintf(name, sizeof name, "invariance_attention%s_worst", isa->suffix);
    bench_figure(name, worst);
}

void invariance_bench_attention(uint32_t rounds)
{
    static const isa_t avx2 = {" avx2", "_avx2", &node_ops_avx2, &invariance_ops_avx2, invariance_sum_avx2};
    static const isa_t avx512 = {"", "", &node_ops_avx512vnni, &invariance_ops_avx512vnni, invariance_sum_avx512vnni};
    attention_t t = {.kv = make_kv(), .ours = make_states(), .free_order = make_states()};
    float *q = invariance_room((size_t)NODE_QUERY_MAX * DIM, 4);
    uint32_t s = 9;
    for (size_t i = 0; i < (size_t)NODE_QUERY_MAX * DIM; i++)
        q[i] = invariance_noise(&s);
    t.q = q;
    if (node_ops_get(NODE_OPS_AVX512) == &node_ops_avx512vnni)
        bench_isa(&avx512, &t, rounds);
    else
        bench_note("attention of AVX-512 VNNI skipped: this CPU lacks it");
    if (node_ops_get(NODE_OPS_AVX2) != NULL)
        bench_isa(&avx2, &t, rounds);
    else
        bench_note("attention of AVX2 skipped: this CPU lacks it");
    free_states(&t.ours);
    free_states(&t.free_order);
    vc_free(q);
    vc_free((void *)(uintptr_t)t.kv);
}
