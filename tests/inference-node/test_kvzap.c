/*
 * KVzap: the ridge fit, predictions, kept sets and dropped rows against reference numbers; its arithmetic on every ISA;
 * then what specs say and what a registration keeps.
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

Test(kvzap, weights_and_predictions_agree_with_the_reference) { cr_assert_eq(for_each_case(check_numbers), 12); }

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

Test(kvzap, kept_sets_agree_with_the_reference) { cr_assert_eq(for_each_case(check_kept), 12); }

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

Test(kvzap, what_a_threshold_drops_in_prefill_and_decode_agrees_with_the_reference)
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

Test(kvzap, every_isa_gives_the_same_bits)
{
    if (node_kvzap_ops(NODE_OPS_AVX2) == NULL)
        cr_skip_test("this CPU has no vector version to compare");
    cr_assert_eq(for_each_case(check_isas), 12);
    for (node_ops_level_t level = NODE_OPS_AVX2; level <= NODE_OPS_AVX512; level++)
        if (node_kvzap_ops(level) != NULL)
            check_softmax(node_kvzap_ops(level));
}

Test(kvzap, gelu_is_the_exact_form_at_any_size)
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

Test(kvzap, softmax_max_is_the_formula)
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
Test(kvzap, a_fit_finds_the_map_that_made_its_targets)
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

Test(kvzap, a_fit_of_nothing_or_of_infinities_is_refused)
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

/* ---- specs ---- */

Test(kvzap, a_spec_has_a_threshold_or_a_share_and_one_canonical_text)
{
    static const char *const texts[][2] = {{"kvzap", "kvzap:tau=-4"},
                                           {"kvzap:tau=-4.50", "kvzap:tau=-4.5"},
                                           {"kvzap:tau=0", "kvzap:tau=0"},
                                           {"kvzap:keep=0.125", "kvzap:keep=0.125"}};
    for (size_t i = 0; i < VC_ARRAY_LEN(texts); i++) {
        node_spec_t spec, again;
        cr_assert_eq(node_spec_parse(texts[i][0], &spec, NULL), VC_OK, "%s", texts[i][0]);
        cr_assert_str_eq(spec.text, texts[i][1]);
        cr_assert_eq(node_spec_parse(spec.text, &again, NULL), VC_OK);
        cr_assert(memcmp(&spec.id, &again.id, sizeof(spec.id)) == 0);
        cr_assert_eq(spec.ops->chooses, spec.keep > 0);
        cr_assert_str_eq(spec.ops->name, "kvzap");
    }
}

Test(kvzap, a_spec_with_both_or_with_nonsense_is_refused_by_name)
{
    static const char *const texts[][2] = {{"kvzap:tau=-4,keep=0.5", "tau or keep, not both"},
                                           {"kvzap:keep=0.5,tau=-4", "tau or keep, not both"},
                                           {"kvzap:keep=0", "keep=0"},
                                           {"kvzap:keep=1.01", "keep=1.01"},
                                           {"kvzap:tau=-100", "tau=-100"},
                                           {"kvzap:tau=nan", "tau=nan"},
                                           {"kvzap:window=64", "there are: tau, keep"}};
    for (size_t i = 0; i < VC_ARRAY_LEN(texts); i++) {
        node_spec_t spec;
        vc_err_t err = {0};
        cr_assert_eq(node_spec_parse(texts[i][0], &spec, &err), VC_ERR_INVALID, "%s", texts[i][0]);
        cr_assert_not_null(strstr(err.msg, texts[i][1]), "%s: %s", texts[i][0], err.msg);
    }
}

/* ---- blobs ---- */

static void refused(const node_model_info_t *m, const uint8_t *payload, size_t bytes, const char *words)
{
    vc_err_t err = {0};
    cr_assert_eq(node_codec_kvzap.calib_check(m, payload, bytes, &err), VC_ERR_CORRUPT, "%s", words);
    cr_assert_not_null(strstr(err.msg, words), "\"%s\" does not say \"%s\"", err.msg, words);
}

Test(kvzap, a_surrogate_that_cannot_be_is_refused)
{
    node_model_info_t m = fx_model(2, 4, 2, 16);
    size_t n;
    uint8_t *p = fx_kvzap_payload(&m, &n);
    cr_assert_eq(node_codec_kvzap.calib_check(&m, p, n, NULL), VC_OK);
    for (size_t cut = 0; cut < n; cut += 4)
        cr_assert_eq(node_codec_kvzap.calib_check(&m, p, cut, NULL), VC_ERR_CORRUPT);
    p[0] = 3;
    refused(&m, p, n, "start like none");
    p[0] = NODE_KVZAP_MLP;
    refused(&m, p, n, "0 hidden units");
    p[4] = 8;
    refused(&m, p, n, "this model needs");
    p[0] = NODE_KVZAP_RIDGE;
    refused(&m, p, n, "8 hidden units");
    p[4] = 0;
    p[12] = 1;
    refused(&m, p, n, "start like none");
    p[12] = 0;
    float *w = (float *)(void *)(p + 16), *q = (float *)(void *)(p + n) - NODE_KVZAP_QUANTILES;
    w[200] = NAN;
    refused(&m, p, n, "a weight of layer 1");
    w[200] = 0;
    q[7] = q[6] - 1;
    refused(&m, p, n, "do not ascend at 7");
    q[7] = INFINITY;
    refused(&m, p, n, "do not ascend at 7");
    node_model_info_t other = fx_model(2, 4, 1, 32);
    q[7] = q[6];
    refused(&other, p, n, "this model needs");
    vc_free(p);
}

Test(kvzap, the_share_above_a_threshold_is_read_between_quantiles)
{
    float q[NODE_KVZAP_QUANTILES];
    for (uint32_t i = 0; i < NODE_KVZAP_QUANTILES; i++)
        q[i] = (float)i * 0.5f - 100.0f;
    cr_assert(node_kvzap_share(q, -1000) == 1.0 && node_kvzap_share(q, -100) == 1.0);
    cr_assert(node_kvzap_share(q, 1000) == 0.0);
    cr_assert(node_kvzap_share(q, 28) == 0.0);
    for (double share = 0; share <= 1.0; share += 1.0 / 64)
        cr_assert(fabs(node_kvzap_share(q, node_kvzap_tau(q, share)) - share) < 1e-9, "%g", share);
    for (uint32_t i = 10; i < 200; i++)
        q[i] = -90.0f; /* many equal scores: all of them pass */
    double share = node_kvzap_share(q, -90);
    cr_assert(share > 1.0 - 11.0 / 256 && share < 1.0 - 9.0 / 256, "%g", share);
}

/* ---- what a registration keeps ---- */

typedef struct kept_share {
    double bits, share;
    uint32_t least, most; /* rows of a head of a block */
} kept_share_t;

static kept_share_t measure(const fx_t *f, const fx_records_t *r)
{
    const node_model_info_t *m = &f->model;
    kept_share_t s = {.least = NODE_TILE};
    uint32_t n_heads = m->n_layer * m->n_kv_head;
    for (uint32_t b = 0; b < r->n; b++)
        for (uint32_t i = 0; i < n_heads; i++) {
            uint32_t n = (uint32_t)__builtin_popcountll(fx_kept(r, b, i / m->n_kv_head, i % m->n_kv_head));
            s.share += n;
            s.least = VC_MIN(s.least, n);
            s.most = VC_MAX(s.most, n);
        }
    s.share /= (double)r->n * n_heads * NODE_TILE;
    for (uint32_t b = 0; b < r->n; b++) {
        vc_kvrec_head_t head;
        cr_assert_eq(vc_kvrec_check(r->data[b], r->bytes[b], &head, NULL), VC_OK);
        for (uint32_t l = 0; l < m->n_layer; l++) {
            vc_kvrec_layer_t part;
            vc_kvrec_layer(&head, l, &part);
            s.bits += 8.0 * part.length;
        }
    }
    s.bits /= (double)r->n * NODE_TILE * 2 * n_heads * m->head_dim;
    return s;
}

/* Defect guarded (real bytes, not nominal ones): what the scheduler hears is what records of such text hold. */
Test(kvzap, bits_of_a_threshold_are_those_of_the_texts_of_its_calibration)
{
    fx_t f;
    fx_open(&f, fx_model(2, 8, 4, 64), 8, 64, 120);
    node_spec_t unbound, spec = fx_spec("kvzap:tau=-4.5");
    fx_records_t r = {0};
    fx_compress(spec.text, &f.in, &r);
    kept_share_t s = measure(&f, &r);
    cr_assert(s.share > 0.3 && s.share < 0.8, "%g", s.share);
    node_calib_t blob = *spec.calib; /* the same surrogate, calibrated on this very text */
    blob.payload = vc_alloc_aligned(64, vc_align_up(blob.bytes, 64));
    memcpy(blob.payload, spec.calib->payload, blob.bytes);
    float *q = (float *)(void *)(blob.payload + blob.bytes) - NODE_KVZAP_QUANTILES;
    for (uint32_t i = 0; i < NODE_KVZAP_QUANTILES; i++)
        q[i] = (double)i < 256.0 * (1.0 - s.share) ? -5.0f : -4.0f;
    spec.calib = &blob;
    cr_assert(fabs(node_spec_bits_per_element(&spec, &f.model) - s.bits) <= 0.01 * s.bits, "%g bits, said %g", s.bits,
              node_spec_bits_per_element(&spec, &f.model));
    cr_assert_eq(node_spec_parse("kvzap:tau=-4.5", &unbound, NULL), VC_OK);
    cr_assert(node_spec_bits_per_element(&unbound, &f.model) >= 16.0); /* not known: never too few */
    vc_free(blob.payload);
    fx_records_free(&r);
    fx_close(&f);
}

/* Rows are judged by themselves: heads and blocks keep what they keep. */
Test(kvzap, a_threshold_keeps_exactly_the_rows_that_score_above_it)
{
    fx_t f;
    fx_open(&f, fx_model(2, 4, 2, 32), 4, 64, 121);
    node_spec_t spec = fx_spec("kvzap:tau=-4");
    node_kvzap_model_t model;
    cr_assert_eq(node_kvzap_model_open(&f.model, spec.calib->payload, spec.calib->bytes, &model, NULL), VC_OK);
    fx_records_t r = {0};
    fx_compress(spec.text, &f.in, &r);
    node_body_t *body = fx_body(spec.text, &f.model, &r, 4);
    float x[128], row[2];
    for (uint32_t l = 0; l < 2; l++) {
        uint32_t dropped[2] = {0};
        for (uint32_t t = 0; t < 4 * NODE_TILE; t++) {
            for (uint32_t i = 0; i < 128; i++) /* as fx_watch makes them up */
                x[i] = (float)(2.0 * golden_u(f.seed + 3, (((uint64_t)l * 5 + 1) * 65536 + t) * 4096 + i));
            node_kvzap_predict(&node_kvzap_scalar, &model, l, x, NULL, row);
            for (uint32_t h = 0; h < 2; h++) {
                bool kept = fx_kept(&r, t / NODE_TILE, l, h) >> t % NODE_TILE & 1;
                cr_assert_eq(kept, row[h] >= -4.0f, "layer %u head %u position %u scores %g", l, h, t, (double)row[h]);
                dropped[h] += !kept;
            }
        }
        for (uint32_t h = 0; h < 2; h++) {
            cr_assert(dropped[h] > 32 && dropped[h] < 224, "%u", dropped[h]);
            cr_assert_eq(node_body_n_dropped(body, l, h), dropped[h]);
        }
    }
    node_body_put(body);
    fx_records_free(&r);
    fx_close(&f);
}

Test(kvzap, a_share_is_kept_by_every_head_and_only_among_the_new_rows)
{
    fx_t f;
    fx_open(&f, fx_model(2, 4, 2, 32), 6, 64, 122);
    fx_records_t old = {0}, whole = {0};
    node_compress_in_t in = f.in;
    in.n_blocks = 3;
    fx_compress("kvzap:keep=0.25", &in, &old);
    in.first_block = 3;
    in.n_blocks = 6;
    fx_compress("kvzap:keep=0.25", &in, &old);
    fx_compress("kvzap:keep=0.25", &f.in, &whole);
    for (uint32_t i = 0; i < 4; i++)
        for (int half = 0; half < 2; half++) {
            uint32_t n = 0, n_whole = 0;
            for (uint32_t b = 0; b < 6; b++) {
                n += b / 3 == (uint32_t)half ? (uint32_t)__builtin_popcountll(fx_kept(&old, b, i / 2, i % 2)) : 0;
                n_whole += (uint32_t)__builtin_popcountll(fx_kept(&whole, b, i / 2, i % 2));
            }
            cr_assert_eq(n, 3 * NODE_TILE / 4);
            cr_assert_eq(n_whole, 6 * NODE_TILE / 4);
        }
    fx_records_free(&old);
    fx_records_free(&whole);
    fx_close(&f);
}

/* A budget that truncates to nothing left an empty cache, and attention over nothing is not a number. */
Test(kvzap, defect_2_the_smallest_share_of_the_shortest_text_keeps_a_row)
{
    for (uint32_t n = 1; n <= 3; n++) {
        fx_t f;
        fx_open(&f, fx_model(1, 2, 1, 32), n, 64, 123);
        fx_records_t r = {0};
        fx_compress("kvzap:keep=1e-9", &f.in, &r);
        uint32_t kept = 0;
        for (uint32_t b = 0; b < n; b++)
            kept += (uint32_t)__builtin_popcountll(fx_kept(&r, b, 0, 0));
        cr_assert_eq(kept, n <= 2 ? n * NODE_TILE : 1);
        node_body_t *body = fx_body("kvzap:keep=1e-9", &f.model, &r, n);
        cr_assert_geq(body->n_tiles[0], 1);
        node_body_put(body);
        fx_records_free(&r);
        fx_close(&f);
    }
}

/* Texts no longer than the window gave nonsense when compressed: a drafter reads all of one exactly, whatever the
 * records keep, and a choice among so few rows keeps them all. */
Test(kvzap, defect_26_a_text_within_the_window_is_drafted_on_uncompressed)
{
    static const char *const texts[] = {"kvzap:tau=99", "kvzap:keep=0.01"};
    for (int s = 0; s < 2; s++) {
        fx_t f;
        fx_open(&f, fx_model(2, 4, 2, 32), 2, 64, 124);
        node_spec_t spec = fx_spec(texts[s]);
        fx_records_t r = {0};
        fx_compress(texts[s], &f.in, &r);
        const uint32_t window = spec.ops->window_tokens(&spec);
        cr_assert_eq(window, 128);
        node_body_builder_t *b;
        node_body_t *body;
        cr_assert_eq(node_body_begin(&spec, &f.model, 2, &b, NULL), VC_OK);
        for (uint32_t i = 0; i < 2; i++)
            cr_assert_eq(node_body_add_record(b, r.data[i], r.bytes[i], NULL), VC_OK);
        for (uint32_t i = 0; i < window / NODE_TILE; i++)
            cr_assert_eq(node_body_add_page(b, i, node_kv_page_at(&f.kv, i)), VC_OK);
        cr_assert_eq(node_body_finish(b, &body, NULL), VC_OK);
        for (uint32_t i = 0; i < 4; i++)
            cr_assert_eq(node_body_n_dropped(body, i / 2, i % 2), 0);
        cr_assert_eq(measure(&f, &r).share, s == 0 ? 0.0 : 1.0);
        node_body_put(body);
        fx_records_free(&r);
        fx_close(&f);
    }
}

Test(kvzap, rows_that_were_not_seen_or_not_scored_are_refused)
{
    static const char *const texts[] = {"kvzap:tau=-4", "kvzap:keep=0.5"};
    for (int s = 0; s < 2; s++) {
        fx_t f;
        fx_open(&f, fx_model(2, 4, 2, 32), 4, 64, 125);
        node_spec_t spec = fx_spec(texts[s]);
        fx_records_t r = {0};
        vc_err_t err = {0};
        cr_assert_eq(node_compress(&spec, &f.in, fx_keep, &r, &err), VC_ERR_INVALID);
        cr_assert_not_null(strstr(err.msg, "has not seen"), "%s", err.msg);
        node_watch_t w = fx_watch(&spec, &f, &f.in);
        node_compress_in_t in = f.in;
        in.watched = w.state;
        in.first_block = 1; /* of another span */
        cr_assert_eq(node_compress(&spec, &in, fx_keep, &r, &err), VC_ERR_INVALID);
        in.first_block = 0;
        float x[128] = {0};
        x[3] = INFINITY; /* times two weights of different sign, or of zero */
        x[4] = -INFINITY;
        for (int i = 5; i < 128; i++)
            x[i] = i % 2 ? INFINITY : -INFINITY;
        spec.ops->watch_row(w.state, NODE_CAP_X, 1, 70, x);
        cr_assert_eq(node_compress(&spec, &in, fx_keep, &r, &err), VC_ERR_INVALID);
        cr_assert_not_null(strstr(err.msg, "layer 1, head 0, position 70"), "%s", err.msg);
        spec.ops->watch_free(w.state);
        cr_assert_eq(r.n, 0);
        fx_close(&f);
    }
}

Test(kvzap, a_spec_without_its_calibration_watches_nothing)
{
    node_model_info_t m = fx_model(2, 4, 2, 32);
    node_spec_t spec;
    node_watch_t w = {0};
    vc_err_t err = {0};
    cr_assert_eq(node_spec_parse("kvzap", &spec, NULL), VC_OK);
    cr_assert_eq(spec.ops->needs(&spec), NODE_NEED_CALIB);
    cr_assert_eq(spec.ops->watch(&spec, &m, 0, 64, &w, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "vericache-node calibrate"), "%s", err.msg);
    cr_assert_null(w.state);
}
