/*
 * ExpectedAttention: averaged statistics, scores and kept sets against reference numbers, from queries as the engine
 * shows them.
 */
#include <math.h>

#include "codec_fixture.h"
#include "compress/expatt_int.h"
#include "compress/select.h"

/* ---- against the reference ---- */

typedef struct golden_ea {
    uint32_t n_tokens, n_head, n_group, dim, sinks, future;
    golden_tensor_t q_pre, k, v, inv_freq;
    node_model_info_t model;   /* one layer */
    float *mean_bar, *cov_bar; /* [n_head * n_group][dim], [..][dim][dim] */
    float *scores;             /* [n_head][n_tokens - sinks] */
} golden_ea_t;

/* Queries of one token as the engine shows them: turned by the token's angle, in float. */
static void turned(const golden_ea_t *g, uint32_t token, float *q)
{
    const uint32_t n_q = g->n_head * g->n_group, half = g->dim / 2;
    float cos[NODE_TILE * 2], sin[NODE_TILE * 2];
    node_rope_table(g->inv_freq.f32, half, g->model.rope_mscale, token, cos, sin);
    for (uint32_t h = 0; h < n_q; h++) {
        const float *x = g->q_pre.f32 + ((size_t)token * n_q + h) * g->dim;
        for (uint32_t i = 0; i < half; i++) {
            q[h * g->dim + i] = fmaf(x[i], cos[i], -(x[i + half] * sin[i]));
            q[h * g->dim + i + half] = fmaf(x[i + half], cos[i], x[i] * sin[i]);
        }
    }
}

typedef struct golden_rows {
    const golden_ea_t *g;
    uint32_t head;
} golden_rows_t;

static void keys_of_tensor(void *arg, uint32_t tile, float *kt)
{
    const golden_rows_t *r = arg;
    const golden_ea_t *g = r->g;
    for (uint32_t c = 0; c < g->dim; c++)
        for (uint32_t i = 0; i < NODE_TILE; i++) {
            uint32_t t = tile * NODE_TILE + i;
            kt[c * NODE_TILE + i] = t < g->n_tokens ? g->k.f32[((size_t)t * g->n_head + r->head) * g->dim + c] : 0.0f;
        }
}

static void values_of_tensor(void *arg, uint32_t tile, float *rows)
{
    const golden_rows_t *r = arg;
    const golden_ea_t *g = r->g;
    for (uint32_t i = 0; i < NODE_TILE; i++) {
        uint32_t t = tile * NODE_TILE + i;
        for (uint32_t c = 0; c < g->dim; c++)
            rows[i * g->dim + c] = t < g->n_tokens ? g->v.f32[((size_t)t * g->n_head + r->head) * g->dim + c] : 0.0f;
    }
}

static void score_case(golden_ea_t *g, const node_expatt_ops_t *ops, bool cov, bool by_value, float eps, float *scores)
{
    const size_t square = (size_t)g->dim * g->dim;
    float *b = vc_calloc((size_t)g->n_group * g->dim, sizeof(float)),
          *m = vc_calloc(g->n_group * square, sizeof(float));
    for (uint32_t h = 0; h < g->n_head; h++) {
        for (uint32_t i = 0; i < g->n_group; i++) {
            size_t q = (size_t)h * g->n_group + i;
            node_expatt_form(g->dim, g->mean_bar + q * g->dim, g->cov_bar + q * square, b + (size_t)i * g->dim,
                             m + i * square);
        }
        golden_rows_t rows = {g, h};
        const node_expatt_head_t in = {.n_tokens = g->n_tokens,
                                       .sinks = g->sinks,
                                       .first = g->sinks,
                                       .dim = g->dim,
                                       .n_group = g->n_group,
                                       .b = b,
                                       .m = cov ? m : NULL,
                                       .eps = eps,
                                       .by_value = by_value,
                                       .keys = keys_of_tensor,
                                       .values = values_of_tensor,
                                       .arg = &rows};
        cr_assert_eq(node_expatt_scores(ops, &in, scores + (size_t)h * (g->n_tokens - g->sinks), NULL), VC_OK);
    }
    vc_free(b);
    vc_free(m);
}

static void average_case(golden_ea_t *g, const node_expatt_ops_t *ops)
{
    const uint32_t n_q = g->n_head * g->n_group;
    const size_t square = (size_t)g->dim * g->dim;
    node_expatt_stats_t *stats;
    cr_assert_eq(node_expatt_stats_create(&g->model, g->sinks, g->n_tokens, &stats, NULL), VC_OK);
    float *q = vc_calloc((size_t)n_q * g->dim, sizeof(float)), *mean = vc_calloc(g->dim, sizeof(float));
    float *cov = vc_calloc(square, sizeof(float));
    double *work = vc_calloc(square, sizeof(double)), cos[64], sin[64];
    for (uint32_t t = g->sinks; t < g->n_tokens; t++) {
        turned(g, t, q);
        node_expatt_stats_row(stats, ops, 0, t, q);
    }
    cr_assert_eq(node_expatt_stats_count(stats, 0), g->n_tokens - g->sinks);
    node_expatt_turns(&g->model, g->n_tokens, g->future, cos, sin);
    g->mean_bar = vc_calloc((size_t)n_q * g->dim, sizeof(float));
    g->cov_bar = vc_calloc(n_q * square, sizeof(float));
    for (uint32_t h = 0; h < n_q; h++) {
        node_expatt_stats_get(stats, 0, h, false, mean, cov);
        node_expatt_turn(cos, sin, g->dim / 2, g->dim, mean, cov, work, g->mean_bar + (size_t)h * g->dim,
                         g->cov_bar + h * square);
    }
    vc_free(work);
    vc_free(cov);
    vc_free(mean);
    vc_free(q);
    vc_free(stats);
}

static golden_ea_t open_case(const golden_case_t *c, const node_expatt_ops_t *ops)
{
    golden_ea_t g = {.n_tokens = (uint32_t)golden_int(c, "T"),
                     .n_head = (uint32_t)golden_int(c, "H"),
                     .n_group = (uint32_t)golden_int(c, "G"),
                     .dim = (uint32_t)golden_int(c, "d"),
                     .sinks = (uint32_t)golden_int(c, "n_sink"),
                     .future = (uint32_t)golden_int(c, "n_future"),
                     .q_pre = golden_in(c, "q_pre"),
                     .k = golden_in(c, "k"),
                     .v = golden_in(c, "v"),
                     .inv_freq = golden_in(c, "inv_freq")};
    g.model = (node_model_info_t){.n_layer = 1,
                                  .n_head = g.n_head * g.n_group,
                                  .n_kv_head = g.n_head,
                                  .head_dim = g.dim,
                                  .rope_dims = g.dim,
                                  .rope_inv_freq = g.inv_freq.f32,
                                  .rope_mscale = (float)golden_num(c, "m")};
    average_case(&g, ops);
    g.scores = vc_calloc((size_t)g.n_head * (g.n_tokens - g.sinks), sizeof(float));
    score_case(&g, ops, json_is_true(json_object_get(c->params, "covariance")),
               json_is_true(json_object_get(c->params, "value_norm")), (float)golden_num(c, "epsilon"), g.scores);
    return g;
}

static void close_case(golden_ea_t *g)
{
    golden_tensor_t *all[] = {&g->q_pre, &g->k, &g->v, &g->inv_freq};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++)
        golden_tensor_free(all[i]);
    vc_free(g->mean_bar);
    vc_free(g->cov_bar);
    vc_free(g->scores);
}

static uint32_t for_each_scored_case(void (*fn)(const golden_case_t *c))
{
    golden_t *golden = golden_open("expected_attention");
    uint32_t n = 0;
    for (size_t i = 0; i < golden_n_cases(golden); i++) {
        golden_case_t c = golden_case_at(golden, i);
        if (!golden_out_has(&c, "scores"))
            continue; /* rule cases: see a_context_no_longer_than_the_sinks_keeps_everything */
        fn(&c);
        n++;
    }
    golden_close(golden);
    return n;
}

static double largest(const float *x, size_t n)
{
    double top = 0;
    for (size_t i = 0; i < n; i++)
        top = fmax(top, fabs((double)x[i]));
    return top;
}

static void check_near(const golden_case_t *c, const char *name, const float *got, size_t stride, golden_tol_t tol)
{
    golden_tensor_t want = golden_out(c, name);
    for (size_t i = 0; i < want.n; i++)
        cr_assert(fabs((double)got[i * stride] - (double)want.f32[i]) <= tol.abs, "%s: %s[%zu] is %.9g, not %.9g",
                  c->name, name, i, got[i * stride], want.f32[i]);
    golden_tensor_free(&want);
}

static void check_cov(const golden_case_t *c, const golden_ea_t *g)
{
    const uint32_t n_q = g->n_head * g->n_group;
    const size_t square = (size_t)g->dim * g->dim;
    golden_tol_t tol;
    cr_assert(golden_tol(c, "cov", largest(g->cov_bar, n_q * square), &tol));
    if (golden_out_has(c, "cov_bar"))
        check_near(c, "cov_bar", g->cov_bar, 1, tol);
    if (!golden_out_has(c, "cov_bar_diag"))
        return;
    float *diag = vc_calloc((size_t)n_q * g->dim, sizeof(float)), *fro = vc_calloc(n_q, sizeof(float));
    for (uint32_t h = 0; h < n_q; h++) {
        double sum = 0;
        for (size_t i = 0; i < square; i++)
            sum += (double)g->cov_bar[h * square + i] * (double)g->cov_bar[h * square + i];
        fro[h] = (float)sqrt(sum);
        for (uint32_t i = 0; i < g->dim; i++)
            diag[(size_t)h * g->dim + i] = g->cov_bar[h * square + (size_t)i * g->dim + i];
    }
    check_near(c, "cov_bar_diag", diag, 1, tol);
    cr_assert(golden_tol(c, "cov", largest(fro, n_q), &tol));
    check_near(c, "cov_bar_fro", fro, 1, tol);
    vc_free(diag);
    vc_free(fro);
}

static void check_averages(const golden_case_t *c)
{
    golden_ea_t g = open_case(c, node_expatt_ops_best());
    golden_tensor_t want = golden_out(c, "mu_bar");
    golden_tol_t tol;
    cr_assert(golden_tol(c, "mu_bar", largest(want.f32, want.n), &tol));
    check_near(c, "mu_bar", g.mean_bar, 1, tol);
    check_cov(c, &g);
    golden_tensor_free(&want);
    close_case(&g);
}

Test(expected_attention, averaged_mean_and_covariance_agree_with_the_reference)
{
    cr_assert_eq(for_each_scored_case(check_averages), 21);
}

/* The kept set of the method: the sinks and the best of the rest. */
static void check_kept(const golden_case_t *c, const golden_ea_t *g, const char *name, const float *scores)
{
    golden_tensor_t want = golden_out(c, name);
    const uint32_t n_keep = (uint32_t)(want.n / g->n_head), rest = g->n_tokens - g->sinks;
    uint64_t *keys = vc_calloc(rest, sizeof(*keys));
    for (uint32_t h = 0; h < g->n_head; h++) {
        uint64_t kept[80] = {0};
        for (uint32_t t = 0; t < g->sinks; t++)
            kept[0] |= 1ull << t;
        node_select_top(scores + (size_t)h * rest, rest, n_keep - VC_MIN(n_keep, g->sinks), kept, g->sinks, keys);
        uint32_t at = 0;
        for (uint32_t t = 0; t < g->n_tokens; t++)
            if (kept[t / 64] >> t % 64 & 1) {
                cr_assert_lt(at, n_keep, "%s %s head %u", c->name, name, h);
                cr_assert_eq(t, want.u32[(size_t)h * n_keep + at++], "%s %s head %u", c->name, name, h);
            }
        cr_assert_eq(at, n_keep);
    }
    vc_free(keys);
    golden_tensor_free(&want);
}

static void check_scores(const golden_case_t *c)
{
    golden_ea_t g = open_case(c, node_expatt_ops_best());
    golden_tensor_t want = golden_out(c, "scores");
    golden_tol_t tol;
    cr_assert(golden_tol(c, "scores", 1.0, &tol));
    size_t off = golden_first_off(g.scores, want.f32, want.n, tol);
    cr_assert_eq(off, want.n, "%s score %zu: %.9g, not %.9g", c->name, off, g.scores[off], want.f32[off]);
    json_t *list = json_object_get(c->params, "n_keep");
    for (size_t i = 0; i < json_array_size(list); i++) {
        char name[32];
        snprintf(name, sizeof(name), "kept_%d", (int)json_integer_value(json_array_get(list, i)));
        check_kept(c, &g, name, g.scores);
    }
    if (golden_out_has(c, "scores_eps02")) {
        golden_tensor_t with = golden_out(c, "scores_eps02");
        score_case(&g, node_expatt_ops_best(), true, true, 0.02f, g.scores);
        cr_assert_eq(golden_first_off(g.scores, with.f32, with.n, tol), with.n);
        check_kept(c, &g, "kept_20_eps02", g.scores);
        golden_tensor_free(&with);
    }
    golden_tensor_free(&want);
    close_case(&g);
}

Test(expected_attention, scores_and_kept_sets_agree_with_the_reference)
{
    cr_assert_eq(for_each_scored_case(check_scores), 21);
}

static void check_isas(const golden_case_t *c)
{
    if (golden_int(c, "T") > 1000)
        return; /* the plain version takes a while */
    golden_ea_t base = open_case(c, &node_expatt_scalar);
    const size_t n_q = (size_t)base.n_head * base.n_group;
    for (node_ops_level_t level = NODE_OPS_AVX2; level <= NODE_OPS_AVX512; level++) {
        const node_expatt_ops_t *ops = node_expatt_ops(level);
        if (ops == NULL)
            continue;
        golden_ea_t g = open_case(c, ops);
        cr_assert_eq(memcmp(base.mean_bar, g.mean_bar, n_q * g.dim * sizeof(float)), 0, "%s", c->name);
        cr_assert_eq(memcmp(base.cov_bar, g.cov_bar, n_q * g.dim * g.dim * sizeof(float)), 0, "%s", c->name);
        cr_assert_eq(memcmp(base.scores, g.scores, (size_t)g.n_head * (g.n_tokens - g.sinks) * sizeof(float)), 0,
                     "%s at level %d", c->name, (int)level);
        close_case(&g);
    }
    close_case(&base);
}

Test(expected_attention, every_isa_gives_the_same_bits)
{
    if (node_expatt_ops(NODE_OPS_AVX2) == NULL)
        cr_skip_test("this CPU has no vector version to compare");
    cr_assert_gt(for_each_scored_case(check_isas), 0);
}

/* ---- statistics ---- */

/* The turn back must use the model's frequencies, scaled as they are, and its factor: with plain ones, or without the
 * factor, the mean of what was not turned at all does not come out. */
static void check_turned_back(const golden_case_t *c)
{
    const char *rope = golden_has(c, "rope") ? golden_str(c, "rope") : "";
    if (strncmp(rope, "yarn", 4) != 0 && strncmp(rope, "llama3", 6) != 0 && strncmp(rope, "linear", 6) != 0)
        return;
    golden_ea_t g = open_case(c, node_expatt_ops_best());
    const uint32_t n_q = g.n_head * g.n_group, n = g.n_tokens - g.sinks;
    node_expatt_stats_t *stats;
    cr_assert_eq(node_expatt_stats_create(&g.model, g.sinks, g.n_tokens, &stats, NULL), VC_OK);
    float q[4 * 64], mean[64], cov[64 * 64];
    cr_assert(n_q <= 4 && g.dim == 64);
    for (uint32_t t = g.sinks; t < g.n_tokens; t++) {
        turned(&g, t, q);
        node_expatt_stats_row(stats, node_expatt_ops_best(), 0, t, q);
    }
    for (uint32_t h = 0; h < n_q; h++) {
        node_expatt_stats_get(stats, 0, h, false, mean, cov);
        for (uint32_t i = 0; i < 64; i++) {
            double want = 0, square = 0;
            for (uint32_t t = g.sinks; t < g.n_tokens; t++) {
                double x = (double)g.q_pre.f32[((size_t)t * n_q + h) * 64 + i];
                want += x / n;
                square += x * x / n;
            }
            cr_assert(fabs((double)mean[i] - want) < 1e-5, "%s head %u channel %u", c->name, h, i);
            cr_assert(fabs((double)cov[i * 65] - (square - want * want)) < 1e-4, "%s head %u channel %u", c->name, h,
                      i);
        }
    }
    vc_free(stats);
    close_case(&g);
}

Test(expected_attention, queries_are_turned_back_with_scaled_frequencies_and_the_factor)
{
    cr_assert_eq(for_each_scored_case(check_turned_back), 21);
}

/* Queries with a mean of a hundred times their spread: squares minus the square of the mean would be noise. */
Test(expected_attention, a_large_mean_does_not_drown_the_covariance)
{
    enum { N = 512, D = 16 };
    node_model_info_t m = fx_model(1, 1, 1, D);
    m.rope_dims = 0;
    node_expatt_stats_t *stats;
    cr_assert_eq(node_expatt_stats_create(&m, 0, N, &stats, NULL), VC_OK);
    float q[D], mean[D], cov[D * D];
    double sum = 0, square = 0;
    for (uint32_t t = 0; t < N; t++) {
        for (uint32_t i = 0; i < D; i++)
            q[i] = 1000.0f + (float)golden_u(5, t * D + i);
        sum += (double)q[3] - 1000.0;
        square += ((double)q[3] - 1000.0) * ((double)q[3] - 1000.0);
        node_expatt_stats_row(stats, node_expatt_ops_best(), 0, t, q);
    }
    node_expatt_stats_get(stats, 0, 0, false, mean, cov);
    double want = square / N - sum / N * (sum / N);
    cr_assert(fabs((double)cov[3 * D + 3] - want) < 1e-3 * want, "%g, not %g", (double)cov[3 * D + 3], want);
    vc_free(stats);
}
