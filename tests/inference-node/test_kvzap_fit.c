/*
 * KVzap's numbers: the ridge fit, predictions, kept sets and dropped rows against reference numbers, its arithmetic on
 * every ISA and against the formulas.
 */
#include <math.h>

#include "codec_fixture.h"
#include "compress/select.h"

/* ---- against the reference ---- */

typedef struct golden_kvzap {
    uint32_t d, h, n_tokens;
    golden_tensor_t x;
    float *w, *b; /* ridge: fitted here */
    float *f;     /* [head][token], tokens padded to whole blocks with -infinity */
    size_t padded;
} golden_kvzap_t;

static void fit_case(const golden_case_t *c, const node_kvzap_ops_t *ops, golden_kvzap_t *g)
{
    golden_tensor_t x = golden_in(c, "x_train"), y = golden_in(c, "y_train");
    node_kvzap_fit_t fit;
    vc_err_t err = {0};
    cr_assert_eq(node_kvzap_fit_init(&fit, ops, g->d, g->h, &err), VC_OK, "%s", err.msg);
    for (size_t i = 0; i < x.shape[0]; i++)
        node_kvzap_fit_add(&fit, x.f32 + i * g->d, y.f32 + i * g->h);
    cr_assert_eq(node_kvzap_fit_solve(&fit, golden_num(c, "alpha"), g->w, g->b, &err), VC_OK, "%s: %s", c->name,
                 err.msg);
    node_kvzap_fit_fini(&fit);
    golden_tensor_free(&x);
    golden_tensor_free(&y);
}

/* The same weights as a blob of one layer has them. */
static float *case_layer(const golden_case_t *c, const golden_kvzap_t *g, node_kvzap_model_t *model)
{
    const bool mlp = golden_in_has(c, "w1");
    const uint32_t hidden = mlp ? (uint32_t)golden_int(c, "M") : 0;
    *model = (node_kvzap_model_t){.kind = mlp ? NODE_KVZAP_MLP : NODE_KVZAP_RIDGE,
                                  .n_layer = 1,
                                  .n_kv_head = g->h,
                                  .d_model = g->d,
                                  .hidden = hidden};
    float *layer = vc_calloc((size_t)(g->h + hidden) * (g->d + 1) + (size_t)g->h * (hidden + 1), sizeof(*layer)),
          *at = layer;
    cr_assert_not_null(layer);
    static const char *const names[] = {"w1", "b1", "w2", "b2"};
    for (int i = 0; mlp && i < 4; i++) {
        golden_tensor_t t = golden_in(c, names[i]);
        memcpy(at, t.f32, t.n * sizeof(float));
        at += t.n;
        golden_tensor_free(&t);
    }
    if (!mlp) {
        memcpy(at, g->w, (size_t)g->h * g->d * sizeof(float));
        memcpy(at + (size_t)g->h * g->d, g->b, g->h * sizeof(float));
    }
    model->layers = layer;
    return layer;
}

static golden_kvzap_t open_case(const golden_case_t *c, const node_kvzap_ops_t *ops)
{
    golden_kvzap_t g = {
        .d = (uint32_t)golden_int(c, "D"), .h = (uint32_t)golden_int(c, "H"), .n_tokens = (uint32_t)golden_int(c, "T")};
    g.x = golden_in(c, "x");
    g.padded = vc_align_up(g.n_tokens, NODE_TILE);
    g.w = vc_calloc((size_t)g.h * g.d, sizeof(float));
    g.b = vc_calloc(g.h, sizeof(float));
    g.f = vc_calloc(g.h * g.padded, sizeof(float));
    if (golden_in_has(c, "x_train"))
        fit_case(c, ops, &g);
    node_kvzap_model_t model;
    float *layer = case_layer(c, &g, &model), hidden[64], row[16];
    for (uint32_t t = 0; t < g.padded; t++) {
        if (t < g.n_tokens)
            node_kvzap_predict(ops, &model, 0, g.x.f32 + (size_t)t * g.d, hidden, row);
        for (uint32_t h = 0; h < g.h; h++)
            g.f[h * g.padded + t] = t < g.n_tokens ? row[h] : -INFINITY;
    }
    vc_free(layer);
    return g;
}

static void close_case(golden_kvzap_t *g)
{
    golden_tensor_free(&g->x);
    vc_free(g->w);
    vc_free(g->b);
    vc_free(g->f);
}

static uint32_t for_each_case(void (*fn)(const golden_case_t *c))
{
    golden_t *golden = golden_open("kvzap");
    uint32_t n = (uint32_t)golden_n_cases(golden);
    for (size_t i = 0; i < n; i++) {
        golden_case_t c = golden_case_at(golden, i);
        fn(&c);
    }
    golden_close(golden);
    return n;
}

static double largest(const golden_tensor_t *t, double least)
{
    double top = least;
    for (size_t i = 0; i < t->n; i++)
        top = fmax(top, fabs((double)t->f32[i]));
    return top;
}

static void expect_close(const golden_case_t *c, const char *name, const float *got, size_t stride, double least)
{
    golden_tensor_t want = golden_out(c, name);
    golden_tol_t tol;
    cr_assert(golden_tol(c, name, largest(&want, least), &tol));
    const size_t width = want.n_dims == 1 ? want.n : want.shape[1];
    for (size_t r = 0; r < want.n / width; r++) {
        size_t off = golden_first_off(got + r * stride, want.f32 + r * width, width, tol);
        cr_assert_eq(off, width, "%s %s row %zu at %zu: %.9g, not %.9g", c->name, name, r, off, got[r * stride + off],
                     want.f32[r * width + off]);
    }
    golden_tensor_free(&want);
}

static void check_numbers(const golden_case_t *c)
{
    golden_kvzap_t g = open_case(c, node_kvzap_ops_best());
    if (golden_out_has(c, "W")) {
        expect_close(c, "W", g.w, g.d, 0);
        expect_close(c, "b", g.b, g.h, 1);
    }
    expect_close(c, "f", g.f, g.padded, 0);
    close_case(&g);
}

Test(kvzap_fit, weights_and_predictions_agree_with_the_reference) { cr_assert_eq(for_each_case(check_numbers), 12); }

/* Per head the best of what is older than the window, and the window. */
static void method_kept(const float *f, uint32_t n_tokens, uint32_t window, uint32_t n_keep, uint64_t *kept)
{
    const uint32_t rest = n_tokens > window ? n_tokens - window : 0;
    uint64_t keys[512];
    node_select_top(f, rest, n_keep > n_tokens - rest ? n_keep - (n_tokens - rest) : 0, kept, 0, keys);
    for (uint32_t i = rest; i < n_tokens; i++)
        kept[i / 64] |= 1ull << i % 64;
}

static void check_kept(const golden_case_t *c)
{
    if (!golden_has(c, "n_keep"))
        return;
    golden_kvzap_t g = open_case(c, node_kvzap_ops_best());
    json_t *list = json_object_get(c->params, "n_keep");
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint32_t n_keep = (uint32_t)json_integer_value(json_array_get(list, i));
        char name[32];
        snprintf(name, sizeof(name), "kept_%u", n_keep);
        golden_tensor_t want = golden_out(c, name);
        for (uint32_t h = 0; h < g.h; h++) {
            uint64_t kept[8] = {0};
            method_kept(g.f + h * g.padded, g.n_tokens, (uint32_t)golden_int(c, "window"), n_keep, kept);
            size_t at = 0;
            for (uint32_t t = 0; t < g.n_tokens; t++)
                if (kept[t / 64] >> t % 64 & 1)
                    cr_assert_eq(t, want.u32[h * want.shape[1] + at++], "%s %s head %u", c->name, name, h);
            cr_assert_eq(at, want.shape[1]);
        }
        golden_tensor_free(&want);
    }
    close_case(&g);
}

Test(kvzap_fit, kept_sets_agree_with_the_reference) { cr_assert_eq(for_each_case(check_kept), 12); }

/* A row is judged by itself, so it does not matter whether it left the window in prefill or while decoding. */
static void check_dropped(const golden_case_t *c)
{
    if (!golden_out_has(c, "dropped"))
        return;
    golden_kvzap_t g = open_case(c, node_kvzap_ops_best());
    golden_tensor_t want = golden_out(c, "dropped");
    const uint32_t window = (uint32_t)golden_int(c, "window");
    const double tau = golden_num(c, "tau");
    bool *drop = vc_calloc(g.h * g.padded, sizeof(*drop));
    size_t n = 0;
    for (uint32_t h = 0; h < g.h; h++)
        for (uint32_t t = 0; t + window < g.n_tokens; t++) {
            uint64_t kept = node_kvzap_above(g.f + h * g.padded + t / NODE_TILE * NODE_TILE, tau);
            drop[h * g.padded + t] = !(kept >> t % NODE_TILE & 1);
            n += drop[h * g.padded + t];
        }
    cr_assert_eq(n, want.shape[0], "%s: %zu rows dropped, not %zu", c->name, n, want.shape[0]);
    for (size_t i = 0; i < n; i++)
        cr_assert(drop[want.u32[2 * i] * g.padded + want.u32[2 * i + 1]], "%s: head %u keeps %u", c->name,
                  want.u32[2 * i], want.u32[2 * i + 1]);
    vc_free(drop);
    golden_tensor_free(&want);
    close_case(&g);
}

Test(kvzap_fit, what_a_threshold_drops_in_prefill_and_decode_agrees_with_the_reference)
{
    cr_assert_eq(for_each_case(check_dropped), 12);
}

/* ---- arithmetic ---- */

static void check_isas(const golden_case_t *c)
{
    golden_kvzap_t base = open_case(c, &node_kvzap_scalar);
    for (node_ops_level_t level = NODE_OPS_AVX2; level <= NODE_OPS_AVX512; level++) {
        const node_kvzap_ops_t *ops = node_kvzap_ops(level);
        if (ops == NULL)
            continue;
        golden_kvzap_t g = open_case(c, ops);
        cr_assert(memcmp(base.w, g.w, (size_t)g.h * g.d * sizeof(float)) == 0, "%s W at level %d", c->name, (int)level);
        cr_assert(memcmp(base.f, g.f, g.h * g.padded * sizeof(float)) == 0, "%s f at level %d", c->name, (int)level);
        close_case(&g);
    }
    close_case(&base);
}

static void check_softmax(const node_kvzap_ops_t *ops)
{
    float z[2][160], acc[2][96];
    golden_fill(21, 30.0, z[0], 160);
    golden_fill(22, 0.1, acc[0], 96);
    for (int i = 100; i < 160; i++)
        z[0][i] = -INFINITY;
    memcpy(z[1], z[0], sizeof(z[0]));
    memcpy(acc[1], acc[0], sizeof(acc[0]));
    node_kvzap_scalar.softmax_max(z[0], 160, 96, 0.25f, 3.0f, acc[0]);
    ops->softmax_max(z[1], 160, 96, 0.25f, 3.0f, acc[1]);
    cr_assert(memcmp(acc[0], acc[1], sizeof(acc[0])) == 0);
}

Test(kvzap_fit, every_isa_gives_the_same_bits)
{
    if (node_kvzap_ops(NODE_OPS_AVX2) == NULL)
        cr_skip_test("this CPU has no vector version to compare");
    cr_assert_eq(for_each_case(check_isas), 12);
    for (node_ops_level_t level = NODE_OPS_AVX2; level <= NODE_OPS_AVX512; level++)
        if (node_kvzap_ops(level) != NULL)
            check_softmax(node_kvzap_ops(level));
}

Test(kvzap_fit, gelu_is_the_exact_form_at_any_size)
{
    enum { N = 4003 };
    static float x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = y[i] = (float)(i - N / 2) * 0.01f;
    node_kvzap_ops_best()->gelu(y, N);
    for (int i = 0; i < N; i++) {
        double want = 0.5 * (double)x[i] * erfc(-(double)x[i] / sqrt(2.0));
        cr_assert(fabs((double)y[i] - want) <= 3e-7 * fmax(1.0, fabs(want)), "gelu(%g) = %g, not %g", (double)x[i],
                  (double)y[i], want);
    }
    float huge[2] = {1e30f, -1e30f};
    node_kvzap_ops_best()->gelu(huge, 2);
    cr_assert(huge[0] == 1e30f && huge[1] == 0.0f);
}

Test(kvzap_fit, softmax_max_is_the_formula)
{
    float z[48], acc[32] = {0};
    double e[48], sum = 0;
    golden_fill(31, 8.0, z, 48);
    acc[5] = 9.0f;
    for (int i = 0; i < 48; i++)
        sum += e[i] = exp(0.5 * (double)z[i]);
    node_kvzap_ops_best()->softmax_max(z, 48, 32, 0.5f, 2.0f, acc);
    for (int i = 0; i < 32; i++)
        cr_assert(fabs((double)acc[i] - (i == 5 ? 9.0 : 2.0 * e[i] / sum)) < 1e-6, "place %d", i);
}

/* ---- the fit ---- */

/* More rows than a block, a map that can be learned exactly, and inputs far from zero. */
Test(kvzap_fit, a_fit_finds_the_map_that_made_its_targets)
{
    enum { D = 37, H = 3, N = 500 };
    float w[H * D], b[H], got_w[H * D], got_b[H], x[D], y[H];
    golden_fill(41, 1.0, w, H * D);
    golden_fill(42, 3.0, b, H);
    node_kvzap_fit_t fit;
    cr_assert_eq(node_kvzap_fit_init(&fit, node_kvzap_ops_best(), D, H, NULL), VC_OK);
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t c = 0; c < D; c++)
            x[c] = (float)(golden_u(43, i * D + c) + 100.0);
        for (uint32_t h = 0; h < H; h++) {
            double sum = (double)b[h];
            for (uint32_t c = 0; c < D; c++)
                sum += (double)w[h * D + c] * (double)x[c];
            y[h] = (float)sum;
        }
        node_kvzap_fit_add(&fit, x, y);
    }
    cr_assert_eq(node_kvzap_fit_solve(&fit, 1e-9, got_w, got_b, NULL), VC_OK);
    for (uint32_t i = 0; i < H * D; i++)
        cr_assert(fabsf(got_w[i] - w[i]) < 1e-4f, "weight %u: %g, not %g", i, (double)got_w[i], (double)w[i]);
    node_kvzap_fit_fini(&fit);
}

Test(kvzap_fit, a_fit_of_nothing_or_of_infinities_is_refused)
{
    float x[4] = {1, 2, 3, 4}, y = 1, w[4], b;
    node_kvzap_fit_t fit;
    vc_err_t err = {0};
    cr_assert_eq(node_kvzap_fit_init(&fit, node_kvzap_ops_best(), 4, 1, NULL), VC_OK);
    cr_assert_eq(node_kvzap_fit_solve(&fit, 1, w, &b, &err), VC_ERR_INVALID);
    x[2] = INFINITY;
    node_kvzap_fit_add(&fit, x, &y);
    cr_assert_eq(node_kvzap_fit_solve(&fit, 1, w, &b, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "cannot be solved"));
    node_kvzap_fit_fini(&fit);
}
