/* KVQuant's arithmetic against reference numbers: thresholds, outliers, codes, numbers, attention, codebook fits. */
#include <math.h>
#include <stdlib.h>

#include "compress/kvquant_int.h"
#include "kernels/numerics.h"
#include "support/golden.h"
#include "support/vc_test.h"
#include "vc/mem.h"

typedef struct case_of {
    const golden_case_t *c;
    uint32_t n_k, n_v, channels, v_channels, bits, n_exact, v_exact; /* n_k, n_v: tokens */
    double share;
    golden_tensor_t k, v, upper, lower, levels;
    float *k_hat, *v_hat; /* [token][channels] */
} case_of_t;

static case_of_t open_case(const golden_case_t *c)
{
    case_of_t g = {.c = c, .bits = (uint32_t)golden_int(c, "b"), .share = golden_num(c, "s")};
    const bool smoke = golden_has(c, "v_rows");
    g.n_k = (uint32_t)golden_int(c, "T");
    g.channels = (uint32_t)golden_int(c, "C");
    g.n_exact = (uint32_t)golden_int(c, "first_exact");
    g.n_v = smoke ? (uint32_t)golden_int(c, "v_rows") : g.n_k;
    g.v_channels = smoke ? (uint32_t)golden_int(c, "v_C") : g.channels;
    g.v_exact = smoke ? 0 : g.n_exact;
    g.k = golden_in(c, "k");
    g.v = golden_in(c, "v");
    g.upper = golden_out(c, "upper");
    g.lower = golden_out(c, "lower");
    g.levels = golden_out(c, "levels");
    g.k_hat = vc_calloc((size_t)g.n_k * g.channels, sizeof(float));
    g.v_hat = vc_calloc((size_t)g.n_v * g.v_channels, sizeof(float));
    return g;
}

static void close_case(case_of_t *g)
{
    golden_tensor_free(&g->k);
    golden_tensor_free(&g->v);
    golden_tensor_free(&g->upper);
    golden_tensor_free(&g->lower);
    golden_tensor_free(&g->levels);
    vc_free(g->k_hat);
    vc_free(g->v_hat);
}

static void each_case(void (*fn)(case_of_t *g), size_t at_least)
{
    golden_t *golden = golden_open("kvquant");
    size_t n = 0;
    for (size_t i = 0; i < golden_n_cases(golden); i++) {
        golden_case_t c = golden_case_at(golden, i);
        if (!golden_has(&c, "C"))
            continue; /* a codebook fit */
        case_of_t g = open_case(&c);
        fn(&g);
        close_case(&g);
        n++;
    }
    golden_close(golden);
    cr_assert_geq(n, at_least);
}

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void check_thresholds(case_of_t *g)
{
    const bool own = !golden_in_has(g->c, "k_cal"); /* the smoke case learns from its own keys, the first one too */
    golden_tensor_t cal = golden_in(g->c, own ? "k" : "k_cal");
    const uint32_t first = own ? 0 : 1, n = (uint32_t)cal.shape[0] - first;
    float *sorted = vc_calloc(n, sizeof(float)), upper, lower;
    for (uint32_t ch = 0; ch < g->channels; ch++) {
        for (uint32_t i = 0; i < n; i++)
            sorted[i] = cal.f32[(size_t)(i + first) * g->channels + ch];
        qsort(sorted, n, sizeof(float), ascending);
        node_kvquant_thresholds(sorted, n, g->share, &upper, &lower);
        const float range = sorted[n - 1] - sorted[0];
        cr_assert(fabsf(upper - g->upper.f32[ch]) <= 2e-6f * range, "%s channel %u: %g", g->c->name, ch, (double)upper);
        cr_assert(fabsf(lower - g->lower.f32[ch]) <= 2e-6f * range, "%s channel %u: %g", g->c->name, ch, (double)lower);
    }
    vc_free(sorted);
    golden_tensor_free(&cal);
}

Test(kvquant, thresholds_are_the_quantiles_of_the_calibration_without_its_first_token)
{
    each_case(check_thresholds, 28);
}

/* Codes of a row: 32 / b in a word, the first in the low bits; 3 bits as a row of 2 bits, then a row of one. */
static uint32_t word_code(const golden_tensor_t *words, uint32_t row, uint32_t ch, uint32_t bits, uint32_t channels)
{
    const uint32_t *w = words->u32 + (size_t)row * channels * bits / 32;
    if (bits != 3)
        return w[ch * bits / 32] >> ch * bits % 32 & ((1u << bits) - 1u);
    uint32_t low = w[ch / 16] >> 2 * (ch % 16) & 3u;
    return low | (w[channels / 16 + ch / 32] >> ch % 32 & 1u) << 2;
}

/* The list of (token, channel) must be exactly the marked places. */
static void check_list(const case_of_t *g, const char *name, const uint8_t *marks, uint32_t n_rows, uint32_t channels)
{
    golden_tensor_t want = golden_out(g->c, name);
    size_t at = 0;
    for (uint32_t t = 0; t < n_rows; t++)
        for (uint32_t ch = 0; ch < channels; ch++) {
            if (!marks[(size_t)t * channels + ch])
                continue;
            cr_assert_lt(at, want.shape[0], "%s %s: one too many, %u %u", g->c->name, name, t, ch);
            cr_assert(want.u32[2 * at] == t && want.u32[2 * at + 1] == ch, "%s %s: %u %u in place of %u %u", g->c->name,
                      name, t, ch, want.u32[2 * at], want.u32[2 * at + 1]);
            at++;
        }
    cr_assert_eq(at, want.shape[0], "%s %s: %zu of %zu", g->c->name, name, at, want.shape[0]);
    golden_tensor_free(&want);
}

/* no_range: a channel whose range is zero, or none. Its codes mean nothing: the reference has the level nearest to
 * zero there, a record has 0. */
static void check_codes(const case_of_t *g, const char *name, const uint8_t *codes, uint32_t n_rows, uint32_t channels,
                        uint32_t no_range)
{
    if (!golden_out_has(g->c, name))
        return;
    golden_tensor_t words = golden_out(g->c, name);
    for (uint32_t t = 0; t < n_rows; t++)
        for (uint32_t ch = 0; ch < channels; ch++) {
            uint32_t want = ch == no_range ? 0 : word_code(&words, t, ch, g->bits, channels);
            cr_assert_eq(codes[(size_t)t * channels + ch], want, "%s %s: token %u channel %u", g->c->name, name, t, ch);
        }
    golden_tensor_free(&words);
}

/* Keys with the stored thresholds, on one ISA: outliers, codes, and into g->k_hat the numbers. */
static void code_keys(case_of_t *g, const node_kvquant_ops_t *ops)
{
    const uint32_t pad = (g->n_k + NODE_TILE - 1) / NODE_TILE * NODE_TILE, n = 1u << g->bits;
    uint8_t *marks = vc_calloc((size_t)g->n_k * g->channels, 1), *codes = vc_calloc((size_t)g->n_k * g->channels, 1);
    float *x = vc_calloc(pad, sizeof(float)), mids[16];
    uint32_t no_range = UINT32_MAX;
    uint8_t *column = vc_calloc(pad, 1);
    node_kvquant_mids(g->levels.f32, n, mids);
    for (uint32_t ch = 0; ch < g->channels; ch++) {
        const float high = g->upper.f32[ch], low = g->lower.f32[ch], rho = (high - low) / 2, z = (high + low) / 2;
        no_range = rho == 0.0f ? ch : no_range;
        for (uint32_t t = 0; t < g->n_k; t++)
            x[t] = g->k.f32[(size_t)t * g->channels + ch];
        ops->codes(x, pad, rho, z, mids, n - 1, column);
        for (uint32_t t = 0; t < g->n_k; t++) {
            const size_t at = (size_t)t * g->channels + ch;
            const bool exact = t < g->n_exact;
            marks[at] = !exact && (ops->outside(x + t / NODE_TILE * NODE_TILE, low, high) >> t % NODE_TILE & 1u);
            codes[at] = marks[at] || exact ? 0 : column[t];
            g->k_hat[at] = marks[at] || exact ? x[t] : rho * g->levels.f32[codes[at]] + z;
            if (rho == 0.0f && !marks[at] && !exact)
                g->k_hat[at] = z;
        }
    }
    check_list(g, "k_out", marks, g->n_k, g->channels);
    check_codes(g, "k_words", codes, g->n_k, g->channels, no_range);
    vc_free(marks);
    vc_free(codes);
    vc_free(x);
    vc_free(column);
}

static void code_values(case_of_t *g, const node_kvquant_ops_t *ops)
{
    const uint32_t n = 1u << g->bits, channels = g->v_channels;
    uint8_t *marks = vc_calloc((size_t)g->n_v * channels, 1), *codes = vc_calloc((size_t)g->n_v * channels, 1);
    float *scratch = vc_calloc(channels, sizeof(float)), mids[16];
    uint16_t *index = vc_calloc(channels, sizeof(*index));
    const bool stored = golden_out_has(g->c, "v_rho");
    golden_tensor_t rhos = {0}, zs = {0};
    if (stored) {
        rhos = golden_out(g->c, "v_rho");
        zs = golden_out(g->c, "v_z");
    }
    node_kvquant_mids(g->levels.f32, n, mids);
    for (uint32_t t = 0; t < g->n_v; t++) {
        const float *x = g->v.f32 + (size_t)t * channels;
        float rho, z, *hat = g->v_hat + (size_t)t * channels;
        memcpy(hat, x, channels * sizeof(float));
        if (t < g->v_exact)
            continue;
        uint32_t n_out = node_kvquant_value_row(x, channels, g->share, &rho, &z, index, scratch);
        if (stored) {
            cr_assert(fabsf(rho - rhos.f32[t]) <= 1e-6f * fabsf(rhos.f32[t]), "%s: range of token %u", g->c->name, t);
            cr_assert(fabsf(z - zs.f32[t]) <= 1e-6f * fmaxf(fabsf(zs.f32[t]), rho), "%s: zero of token %u", g->c->name,
                      t);
            rho = rhos.f32[t];
            z = zs.f32[t];
        }
        ops->codes(x, channels, rho, z, mids, n - 1, codes + (size_t)t * channels);
        for (uint32_t i = 0; i < n_out; i++) {
            marks[(size_t)t * channels + index[i]] = 1;
            codes[(size_t)t * channels + index[i]] = 0;
        }
        for (uint32_t ch = 0; ch < channels; ch++)
            if (!marks[(size_t)t * channels + ch])
                hat[ch] = rho == 0.0f ? z : rho * g->levels.f32[codes[(size_t)t * channels + ch]] + z;
    }
    check_list(g, "v_out", marks, g->n_v, channels);
    check_codes(g, "v_words", codes, g->n_v, channels, UINT32_MAX);
    vc_free(marks);
    vc_free(codes);
    vc_free(scratch);
    vc_free(index);
    if (stored) {
        golden_tensor_free(&rhos);
        golden_tensor_free(&zs);
    }
}

static void check_hat(const case_of_t *g, const char *name, const float *got, const float *x, size_t n)
{
    if (!golden_out_has(g->c, name))
        return;
    golden_tensor_t want = golden_out(g->c, name);
    float top = 0;
    for (size_t i = 0; i < n; i++)
        top = fmaxf(top, fabsf(x[i]));
    cr_assert_eq(golden_first_off(got, want.f32, n, (golden_tol_t){1e-6 * (double)top, 0}), n, "%s %s", g->c->name,
                 name);
    golden_tensor_free(&want);
}

static double mean_square(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sum / (double)n;
}

static void check_numbers(case_of_t *g)
{
    const size_t n_k = (size_t)g->n_k * g->channels, n_v = (size_t)g->n_v * g->v_channels;
    for (node_ops_level_t level = NODE_OPS_SCALAR; level <= NODE_OPS_AVX512; level++) {
        const node_kvquant_ops_t *ops = node_kvquant_ops(level);
        if (ops == NULL)
            continue;
        code_keys(g, ops);
        code_values(g, ops);
        check_hat(g, "k_hat", g->k_hat, g->k.f32, n_k);
        check_hat(g, "v_hat", g->v_hat, g->v.f32, n_v);
        double k_mse = json_number_value(json_object_get(g->c->scalars, "k_mse"));
        double v_mse = json_number_value(json_object_get(g->c->scalars, "v_mse"));
        cr_assert(fabs(mean_square(g->k_hat, g->k.f32, n_k) - k_mse) <= 1e-5 * k_mse, "%s", g->c->name);
        cr_assert(fabs(mean_square(g->v_hat, g->v.f32, n_v) - v_mse) <= 1e-5 * v_mse, "%s", g->c->name);
    }
}

/* Among the cases: biased keys, a constant channel, constant rows of values, ties, an outlier in the last token, no
 * outliers, five exact tokens, one token. */
Test(kvquant, outliers_codes_and_numbers_are_the_reference_s_on_every_isa) { each_case(check_numbers, 28); }

Test(kvquant, without_calibration_the_levels_are_normal_float)
{
    golden_t *golden = golden_open("kvquant");
    static const char *const names[] = {"nf_b2", "nf_b3", "nf_b4"};
    for (uint32_t i = 0; i < 3; i++) {
        golden_case_t c = golden_case(golden, names[i]);
        golden_tensor_t levels = golden_out(&c, "levels");
        cr_assert_eq(levels.n, 1u << (i + 2));
        cr_assert_arr_eq(node_kvquant_nf(i + 2), levels.f32, levels.n * sizeof(float));
        golden_tensor_free(&levels);
    }
    golden_close(golden);
}

/* ---- attention ---- */

/* Row t of one head after RoPE, in double. */
static void rotate(const case_of_t *g, const golden_tensor_t *inv_freq, double m, uint32_t t, uint32_t head,
                   uint32_t dim, double *out)
{
    const float *x = g->k_hat + (size_t)t * g->channels + head * dim;
    for (uint32_t c = 0; c < dim / 2; c++) {
        double angle = (double)t * (double)inv_freq->f32[c], cosine = m * cos(angle), sine = m * sin(angle);
        out[c] = x[c] * cosine - x[c + dim / 2] * sine;
        out[c + dim / 2] = x[c + dim / 2] * cosine + x[c] * sine;
    }
}

static void check_head(const case_of_t *g, uint32_t q_head, const golden_tensor_t *q, const golden_tensor_t *inv_freq)
{
    const uint32_t dim = (uint32_t)golden_int(g->c, "d"), head = q_head / (uint32_t)golden_int(g->c, "G");
    double z[512], row[256], out[256] = {0}, top = -1e300, sum = 0, v_max = 1;
    for (uint32_t t = 0; t < g->n_k; t++) {
        rotate(g, inv_freq, golden_num(g->c, "m"), t, head, dim, row);
        z[t] = 0;
        for (uint32_t c = 0; c < dim; c++)
            z[t] += row[c] * (double)q->f32[(size_t)q_head * dim + c];
        z[t] /= sqrt((double)dim);
        top = fmax(top, z[t]);
    }
    for (uint32_t t = 0; t < g->n_k; t++)
        sum += exp(z[t] - top);
    for (uint32_t t = 0; t < g->n_k; t++)
        for (uint32_t c = 0; c < dim; c++) {
            double v = (double)g->v_hat[(size_t)t * g->channels + head * dim + c];
            out[c] += exp(z[t] - top) / sum * v;
            v_max = fmax(v_max, fabs(v));
        }
    golden_tensor_t want = golden_out(g->c, "att_out"), lse = golden_out(g->c, "att_lse");
    cr_assert(fabs(top + log(sum) - (double)lse.f32[q_head]) <= 5e-6 * fmax(1, fabs(top)), "%s: head %u", g->c->name,
              q_head);
    for (uint32_t c = 0; c < dim; c++)
        cr_assert(fabs(out[c] - (double)want.f32[(size_t)q_head * dim + c]) <= 5e-6 * v_max, "%s: head %u channel %u",
                  g->c->name, q_head, c);
    golden_tensor_free(&want);
    golden_tensor_free(&lse);
}

static void check_attention(case_of_t *g)
{
    if (!golden_out_has(g->c, "att_out"))
        return;
    golden_tensor_t q = golden_in(g->c, "q"), inv_freq = golden_in(g->c, "inv_freq");
    code_keys(g, &node_kvquant_scalar);
    code_values(g, &node_kvquant_scalar);
    for (uint32_t h = 0; h < q.shape[0]; h++)
        check_head(g, h, &q, &inv_freq);
    golden_tensor_free(&q);
    golden_tensor_free(&inv_freq);
}

/* Heads shared by 1, 2 and 7 queries, heads of 64, 80 and 128, YaRN. */
Test(kvquant, attention_over_decoded_rows_agrees_with_the_reference) { each_case(check_attention, 28); }

/* ---- codebooks ---- */

static double objective(const double *x, const double *w, size_t n, const float *levels, uint32_t n_levels)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double best = 1e300;
        for (uint32_t k = 0; k < n_levels; k++)
            best = fmin(best, (x[i] - (double)levels[k]) * (x[i] - (double)levels[k]));
        sum += w[i] * best;
    }
    return sum;
}

static void check_fit(const golden_case_t *c)
{
    golden_tensor_t root = golden_in(c, "x_root"), w_root = {0};
    const bool weighted = golden_in_has(c, "w_root");
    const uint32_t bits = (uint32_t)golden_int(c, "b");
    double *x = vc_calloc(root.n, sizeof(double)), *w = vc_calloc(root.n, sizeof(double));
    node_kvquant_hist_t *h = vc_calloc(1, sizeof(*h));
    float levels[16] = {0}, *at = levels;
    if (weighted)
        w_root = golden_in(c, "w_root");
    for (size_t i = 0; i < root.n; i++) {
        x[i] = pow((double)root.f32[i], 3);
        w[i] = weighted ? pow((double)w_root.f32[i] + 1, 4) + 1e-3 : 1;
        node_kvquant_hist_add(h, x[i], w[i]);
    }
    cr_assert_eq(node_kvquant_fit(h, &bits, 1, &at, NULL), VC_OK);
    double got = objective(x, w, root.n, levels, 1u << bits);
    double reference = json_number_value(json_object_get(c->scalars, "objective_reference"));
    double optimum = json_number_value(json_object_get(c->scalars, "objective_optimal"));
    cr_assert(got <= reference, "%s: %.9g, the reference %.9g, optimum %.9g", c->name, got, reference, optimum);
    cr_assert(got >= optimum * (1 - 1e-6), "%s: %.9g is below the optimum %.9g", c->name, got, optimum);
    for (uint32_t k = 1; k < 1u << bits; k++)
        cr_assert_geq(levels[k], levels[k - 1]);
    vc_free(x);
    vc_free(w);
    vc_free(h);
    golden_tensor_free(&root);
    if (weighted)
        golden_tensor_free(&w_root);
}

Test(kvquant, a_codebook_is_at_least_as_good_as_the_reference_s)
{
    golden_t *golden = golden_open("kvquant");
    static const char *const names[] = {"fit_b2", "fit_b3", "fit_b4", "fit_b3_w"};
    for (size_t i = 0; i < VC_ARRAY_LEN(names); i++) {
        golden_case_t c = golden_case(golden, names[i]);
        check_fit(&c);
    }
    golden_close(golden);
}

/* Fewer different numbers than levels: each gets its own, none is made up. Nothing at all: NormalFloat. */
Test(kvquant, a_codebook_of_few_numbers_or_none_is_whole)
{
    node_kvquant_hist_t *h = vc_calloc(1, sizeof(*h));
    const uint32_t bits[] = {2, 3, 4};
    float two[4], three[8], four[16], *levels[] = {two, three, four};
    cr_assert_eq(node_kvquant_fit(h, bits, 3, levels, NULL), VC_OK);
    cr_assert_arr_eq(four, node_kvquant_nf(4), sizeof(four));
    static const double x[] = {-0.75, -0.125, 0.5, 0.5, 0.25};
    for (uint32_t i = 0; i < 5; i++)
        node_kvquant_hist_add(h, x[i], 1e-9 * (i + 1));
    cr_assert_eq(node_kvquant_fit(h, bits, 3, levels, NULL), VC_OK);
    static const float want[] = {-0.75f, -0.125f, 0.25f, 0.5f};
    cr_assert_arr_eq(two, want, sizeof(two));
    for (uint32_t k = 0; k < 8; k++)
        cr_assert_eq(three[k], want[VC_MIN(k, 3u)]);
    vc_free(h);
}
