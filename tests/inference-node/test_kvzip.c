/*
 * KVzip: scores, kept sets and thresholds against reference numbers; the replay on a small model against a plain
 * computation of the same; then what a registration keeps.
 */
#include <math.h>

#include "codec_fixture.h"
#include "compress/kvzip_int.h"

/* ---- against the reference ---- */

typedef struct golden_keys {
    const float *context, *replay; /* [token][head][dim] */
    uint32_t n_context, n_replay, n_head, dim, head;
    float *tile;
} golden_keys_t;

static const void *keys_of_tensor(void *arg, bool of_replay, uint32_t block)
{
    const golden_keys_t *g = arg;
    const float *k = of_replay ? g->replay : g->context;
    const uint32_t n = of_replay ? g->n_replay : g->n_context;
    for (uint32_t c = 0; c < g->dim; c++)
        for (uint32_t i = 0; i < NODE_TILE; i++) {
            uint32_t t = block * NODE_TILE + i;
            g->tile[c * NODE_TILE + i] = t < n ? k[((size_t)t * g->n_head + g->head) * g->dim + c] : 0.0f;
        }
    return g->tile;
}

typedef struct golden_kvzip {
    uint32_t n_tokens, n_head, n_group, dim, n_sink, width;
    float *norms;  /* [query head][token]; NULL: plain */
    float *scores; /* [head][token] */
} golden_kvzip_t;

/* Lengths of W_h v through the Gram matrix of each query head, summed in double as the engine does. */
static void golden_norms(const golden_case_t *c, const node_kvzip_ops_t *ops, golden_kvzip_t *g)
{
    golden_tensor_t v = golden_in(c, "v"), w = golden_in(c, "w_o");
    const uint32_t d = g->dim, n_in = g->n_head * g->n_group * d;
    float *gram = vc_calloc((size_t)d * d, sizeof(float));
    g->norms = vc_calloc((size_t)g->n_head * g->n_group * g->n_tokens, sizeof(float));
    for (uint32_t h = 0; h < g->n_head * g->n_group; h++) {
        for (uint32_t i = 0; i < d * d; i++) {
            double sum = 0;
            for (uint32_t o = 0; o < w.shape[0]; o++)
                sum += (double)w.f32[(size_t)o * n_in + h * d + i / d] * w.f32[(size_t)o * n_in + h * d + i % d];
            gram[i] = (float)sum;
        }
        for (uint32_t t = 0; t < g->n_tokens; t++)
            g->norms[(size_t)h * g->n_tokens + t] =
                ops->gram_norm(gram, d, v.f32 + ((size_t)t * g->n_head + h / g->n_group) * d);
    }
    vc_free(gram);
    golden_tensor_free(&v);
    golden_tensor_free(&w);
}

static golden_tensor_t chunk_tensor(const golden_case_t *c, const char *name, uint32_t chunk)
{
    char text[16];
    snprintf(text, sizeof(text), "%s_%u", name, chunk);
    return golden_in(c, text);
}

/* One chunk, its replay in passes of `cut` rows. */
static void score_chunk(const golden_case_t *c, const node_kvzip_ops_t *ops, golden_kvzip_t *g, uint32_t chunk,
                        uint32_t cut)
{
    json_t *spec = json_array_get(json_object_get(c->params, "chunks"), chunk);
    const uint32_t start = (uint32_t)json_integer_value(json_array_get(spec, 0)),
                   end = (uint32_t)json_integer_value(json_array_get(spec, 1)),
                   n_rows = (uint32_t)json_integer_value(json_array_get(spec, 2));
    golden_tensor_t k = golden_in(c, "k"), q = chunk_tensor(c, "q", chunk), own = chunk_tensor(c, "k", chunk), x = {0};
    float *log_norm = vc_calloc(n_rows, sizeof(float)), *tile = vc_alloc_aligned(64, (size_t)g->dim * NODE_TILE * 4);
    if (g->norms) {
        x = chunk_tensor(c, "x", chunk);
        for (uint32_t j = 0; j < n_rows; j++)
            log_norm[j] = 0.5f * node_log(ops->square_sum(x.f32 + (size_t)j * x.shape[1], (uint32_t)x.shape[1]));
    }
    const uint32_t columns = node_kvzip_columns(start, end);
    float *z = vc_alloc_aligned(64, node_kvzip_scratch(g->n_sink, start, end, n_rows) * sizeof(float));
    float *best = vc_alloc_aligned(64, (size_t)g->n_group * columns * sizeof(float));
    for (uint32_t h = 0; h < g->n_head; h++) {
        golden_keys_t keys = {k.f32, own.f32, g->n_tokens, n_rows, g->n_head, g->dim, h, tile};
        for (uint32_t i = 0; i < g->n_group * columns; i++)
            best[i] = -INFINITY;
        for (uint32_t j = 0; j < n_rows; j += cut) {
            const size_t stride = (size_t)g->n_head * g->n_group * g->dim;
            node_kvzip_head_t in = {.dim = g->dim,
                                    .n_group = g->n_group,
                                    .n_sink = VC_MIN(g->n_sink, start),
                                    .start = start,
                                    .end = end,
                                    .first_row = j,
                                    .n_rows = VC_MIN(cut, n_rows - j),
                                    .q = q.f32 + j * stride + (size_t)h * g->n_group * g->dim,
                                    .q_stride = stride,
                                    .log_norm = g->norms ? log_norm + j : NULL,
                                    .keys = keys_of_tensor,
                                    .keys_arg = &keys};
            cr_assert(node_kvzip_raise(ops, &in, z, best), "%s", c->name);
        }
        node_kvzip_finish(start, end, g->n_group, best,
                          g->norms ? g->norms + (size_t)h * g->n_group * g->n_tokens + start : NULL, g->n_tokens,
                          g->scores + (size_t)h * g->n_tokens + start);
    }
    vc_free(z);
    vc_free(best);
    vc_free(tile);
    vc_free(log_norm);
    golden_tensor_t *all[] = {&k, &q, &own, &x};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++)
        golden_tensor_free(all[i]);
}

static golden_kvzip_t open_case(const golden_case_t *c, const node_kvzip_ops_t *ops, bool plus, uint32_t cut)
{
    golden_kvzip_t g = {.n_tokens = (uint32_t)golden_int(c, "T"),
                        .n_head = (uint32_t)golden_int(c, "H"),
                        .n_group = (uint32_t)golden_int(c, "G"),
                        .dim = (uint32_t)golden_int(c, "d"),
                        .n_sink = (uint32_t)golden_int(c, "P")};
    g.scores = vc_calloc((size_t)g.n_head * g.n_tokens, sizeof(float));
    if (plus)
        golden_norms(c, ops, &g);
    for (uint32_t i = 0; i < json_array_size(json_object_get(c->params, "chunks")); i++)
        score_chunk(c, ops, &g, i, cut);
    return g;
}

static void close_case(golden_kvzip_t *g)
{
    vc_free(g->scores);
    vc_free(g->norms);
}

static void check_scores(const golden_case_t *c, const golden_kvzip_t *g, const char *name)
{
    golden_tensor_t want = golden_out(c, name);
    golden_tol_t tol;
    cr_assert(golden_tol(c, "score", 1.0, &tol));
    const size_t n = (size_t)g->n_head * g->n_tokens;
    size_t off = golden_first_off(g->scores, want.f32, n, tol);
    cr_assert_eq(off, n, "%s %s head %zu token %zu: %.9g, not %.9g", c->name, name, off / g->n_tokens,
                 off % g->n_tokens, g->scores[off], want.f32[off]);
    golden_tensor_free(&want);
}

/* The method's own kept set: the prefix, and the best of the rest. */
static void check_kept(const golden_case_t *c, const golden_kvzip_t *g, uint32_t n_keep, const char *suffix)
{
    char name[32];
    snprintf(name, sizeof(name), "kept_%u%s", n_keep, suffix);
    golden_tensor_t want = golden_out(c, name);
    uint64_t keys[512], kept[8];
    for (uint32_t h = 0; h < g->n_head; h++) {
        if (h == 0 && strcmp(c->name, "zero_head") == 0)
            continue; /* its scores tie but for rounding */
        memset(kept, 0, sizeof(kept));
        for (uint32_t i = 0; i < g->n_sink; i++)
            kept[0] |= 1ull << i;
        node_select_top(g->scores + (size_t)h * g->n_tokens + g->n_sink, g->n_tokens - g->n_sink, n_keep - g->n_sink,
                        kept, g->n_sink, keys);
        uint32_t at = 0;
        for (uint32_t t = 0; t < g->n_tokens; t++)
            if (kept[t / 64] >> t % 64 & 1)
                cr_assert_eq(t, want.u32[(size_t)h * n_keep + at++], "%s %s head %u", c->name, name, h);
        cr_assert_eq(at, n_keep);
    }
    golden_tensor_free(&want);
}

/* Strictly above the threshold is what one ranking of all heads keeps. */
static void check_global(const golden_case_t *c, const golden_kvzip_t *g)
{
    if (!golden_out_has(c, "global_mask") || strcmp(c->name, "zero_head") == 0)
        return;
    golden_tensor_t want = golden_out(c, "global_mask");
    const uint32_t n = g->n_tokens - g->n_sink;
    uint32_t total = 0;
    for (size_t i = 0; i < want.n; i++)
        total += want.u32[i];
    float *rest = vc_calloc(want.n, sizeof(float));
    uint64_t *keys = vc_calloc(want.n, sizeof(*keys)), kept[16] = {0};
    cr_assert(want.n == (size_t)n * g->n_head && want.n <= 1024);
    for (uint32_t h = 0; h < g->n_head; h++)
        memcpy(rest + (size_t)h * n, g->scores + (size_t)h * g->n_tokens + g->n_sink, n * sizeof(float));
    node_select_top(rest, (uint32_t)want.n, total, kept, 0, keys);
    for (uint32_t i = 0; i < want.n; i++)
        cr_assert_eq(kept[i / 64] >> i % 64 & 1, want.u32[i], "%s head %u token %u", c->name, i / n, i % n);
    vc_free(rest);
    vc_free(keys);
    golden_tensor_free(&want);
}

static void check_case(const golden_case_t *c)
{
    const node_kvzip_ops_t *ops = node_kvzip_ops_best();
    const bool smoke = strcmp(c->name, "smoke") == 0, plus = json_is_true(json_object_get(c->params, "plus"));
    json_t *counts = json_object_get(c->params, "n_keep");
    for (int variant = 0; variant < (smoke ? 2 : 1); variant++) {
        golden_kvzip_t g = open_case(c, ops, smoke ? variant == 1 : plus, 64);
        const char *suffix = variant ? "_plus" : "";
        check_scores(c, &g, variant ? "score_plus" : "score");
        for (size_t i = 0; i < json_array_size(counts); i++)
            check_kept(c, &g, (uint32_t)json_integer_value(json_array_get(counts, i)), suffix);
        check_global(c, &g);
        close_case(&g);
    }
}

static uint32_t for_each_case(void (*fn)(const golden_case_t *c))
{
    golden_t *golden = golden_open("kvzip");
    uint32_t n = (uint32_t)golden_n_cases(golden);
    for (uint32_t i = 0; i < n; i++) {
        golden_case_t c = golden_case_at(golden, i);
        fn(&c);
    }
    golden_close(golden);
    return n;
}

Test(kvzip, scores_kept_sets_and_thresholds_agree_with_the_reference) { cr_assert_eq(for_each_case(check_case), 17); }

static void check_bits(const golden_case_t *c)
{
    const bool plus = golden_in_has(c, "w_o");
    golden_kvzip_t base = open_case(c, &node_kvzip_scalar, plus, 1000);
    const size_t bytes = (size_t)base.n_head * base.n_tokens * sizeof(float);
    for (node_ops_level_t level = NODE_OPS_SCALAR; level <= NODE_OPS_AVX512; level++) {
        const node_kvzip_ops_t *ops = node_kvzip_ops(level);
        if (ops == NULL || (VT_EVERY > 1 && level == NODE_OPS_SCALAR))
            continue; /* scalar code is the base of all */
        golden_kvzip_t g = open_case(c, ops, plus, 37);
        cr_assert(memcmp(base.scores, g.scores, bytes) == 0, "%s at level %d", c->name, (int)level);
        close_case(&g);
    }
    close_case(&base);
}

Test(kvzip, every_isa_and_any_cut_of_the_replay_give_the_same_bits) { cr_assert_gt(for_each_case(check_bits), 0); }

/* Keys of pages are f16: the same products as from the same numbers in float, on every ISA. */
Test(kvzip, products_with_f16_keys_are_those_with_the_same_numbers_in_float)
{
    enum { DIM = 80, ROWS = 13 };
    static uint16_t half[DIM * NODE_TILE];
    static _Alignas(64) float k[DIM * NODE_TILE], q[ROWS * DIM], want[ROWS * NODE_TILE], got[ROWS * NODE_TILE];
    golden_fill(31, 3.0, q, ROWS * DIM);
    for (uint32_t i = 0; i < DIM * NODE_TILE; i++)
        half[i] = node_f16_from_f32((float)golden_u(32, i));
    node_kvzip_scalar.widen(half, k, DIM * NODE_TILE);
    node_kvzip_scalar.dots(q, DIM, ROWS, DIM, k, want, NODE_TILE);
    for (node_ops_level_t level = NODE_OPS_SCALAR; level <= NODE_OPS_AVX512; level++) {
        const node_kvzip_ops_t *ops = node_kvzip_ops(level);
        if (ops == NULL)
            continue;
        ops->dots_f16(q, DIM, ROWS, DIM, half, got, NODE_TILE);
        cr_assert_eq(memcmp(want, got, sizeof(want)), 0, "level %d", (int)level);
    }
}

static const void *keys_of_ones(void *arg, bool of_replay, uint32_t block)
{
    (void)of_replay, (void)block;
    return arg;
}

Test(kvzip, a_query_that_is_not_a_number_is_told_and_never_a_score)
{
    enum { DIM = 16, ROWS = 3 };
    static float ones[DIM * NODE_TILE], q[ROWS * DIM], best[NODE_TILE];
    for (uint32_t i = 0; i < DIM * NODE_TILE; i++)
        ones[i] = 1.0f;
    float *z = vc_alloc_aligned(64, node_kvzip_scratch(0, 0, 64, ROWS) * sizeof(float));
    const node_kvzip_head_t in = {.dim = DIM,
                                  .n_group = 1,
                                  .end = NODE_TILE,
                                  .n_rows = ROWS,
                                  .q = q,
                                  .q_stride = DIM,
                                  .keys = keys_of_ones,
                                  .keys_arg = ones};
    for (node_ops_level_t level = NODE_OPS_SCALAR; level <= NODE_OPS_AVX512; level++) {
        const node_kvzip_ops_t *ops = node_kvzip_ops(level);
        if (ops == NULL)
            continue;
        for (int i = 0; i < 4; i++) {
            static const float bad[] = {0.0f, NAN, INFINITY, -INFINITY};
            for (uint32_t c = 0; c < NODE_TILE; c++)
                best[c] = -INFINITY;
            q[DIM + 5] = bad[i];
            cr_assert_eq(node_kvzip_raise(ops, &in, z, best), i == 0, "level %d, %g", (int)level, (double)bad[i]);
        }
        cr_assert_float_eq(node_exp(best[7]), 1.0f / 65, 1e-6, "equal weights of the chunk and the first row itself");
    }
    vc_free(z);
}
