/*
 * KIVI: the arithmetic against reference numbers, then the record: what is in it, that it is really small, and that a
 * body decoded from it is the arithmetic's own result.
 */
#include <math.h>

#include "codec_fixture.h"
#include "compress/kivi_int.h"

/* ---- against the reference ---- */

typedef struct golden_kivi {
    uint32_t n_tokens, n_head, n_group, dim, bits, group, n_k, n_v;
    bool f16_params;
    golden_tensor_t k, v; /* [token][head][dim] */
} golden_kivi_t;

static golden_kivi_t open_case(const golden_case_t *c)
{
    golden_kivi_t g = {.n_tokens = (uint32_t)golden_int(c, "T"),
                       .n_head = (uint32_t)golden_int(c, "H"),
                       .n_group = (uint32_t)golden_int(c, "G"),
                       .dim = (uint32_t)golden_int(c, "d"),
                       .bits = (uint32_t)golden_int(c, "b"),
                       .group = (uint32_t)golden_int(c, "g"),
                       .n_k = (uint32_t)golden_int(c, "nk"),
                       .n_v = (uint32_t)golden_int(c, "nv"),
                       .f16_params = strcmp(golden_str(c, "params"), "fp16") == 0};
    g.k = golden_in(c, "k");
    g.v = golden_in(c, "v");
    return g;
}

static void close_case(golden_kivi_t *g)
{
    golden_tensor_free(&g->k);
    golden_tensor_free(&g->v);
}

/* Quantised form of one matrix of groups, in the order of the reference's arrays. */
typedef struct quantised {
    uint32_t n_rows, n_cols; /* groups run along the columns */
    float *scale, *min;      /* [row][group] */
    uint8_t *codes;          /* [row][col] */
} quantised_t;

static float fit_stored(float x, bool f16) { return f16 ? node_f32_from_f16(node_f16_from_f32(x)) : x; }

/* rows[row][col]; with scale_in, min_in those are used instead of fitted ones. */
static quantised_t quantise(const float *rows, uint32_t n_rows, uint32_t n_cols, uint32_t group, uint32_t bits,
                            bool f16, const float *scale_in, const float *min_in)
{
    uint32_t n_groups = n_rows * (n_cols / group);
    quantised_t q = {n_rows, n_cols, vc_calloc(n_groups, 4), vc_calloc(n_groups, 4),
                     vc_calloc((size_t)n_rows * n_cols, 1)};
    for (uint32_t g = 0; g < n_groups; g++) {
        node_kivi_fit(rows + (size_t)g * group, group, bits, &q.scale[g], &q.min[g]);
        q.scale[g] = scale_in ? scale_in[g] : fit_stored(q.scale[g], f16);
        q.min[g] = min_in ? min_in[g] : fit_stored(q.min[g], f16);
        for (uint32_t i = 0; i < group; i++)
            q.codes[(size_t)g * group + i] =
                node_kivi_code(rows[(size_t)g * group + i], q.scale[g], q.min[g], node_kivi_levels(bits));
    }
    return q;
}

static void quantised_free(quantised_t *q)
{
    vc_free(q->scale);
    vc_free(q->min);
    vc_free(q->codes);
}

/* K of one head as [dim][token < n_k], V as [token < n_v][dim]. */
static float *k_rows(const golden_kivi_t *g, uint32_t head)
{
    float *out = vc_calloc((size_t)g->dim * g->n_k + 1, sizeof(float));
    for (uint32_t c = 0; c < g->dim; c++)
        for (uint32_t t = 0; t < g->n_k; t++)
            out[(size_t)c * g->n_k + t] = g->k.f32[((size_t)t * g->n_head + head) * g->dim + c];
    return out;
}

static float *v_rows(const golden_kivi_t *g, uint32_t head)
{
    float *out = vc_calloc((size_t)g->dim * g->n_v + 1, sizeof(float));
    for (uint32_t t = 0; t < g->n_v; t++)
        memcpy(out + (size_t)t * g->dim, g->v.f32 + ((size_t)t * g->n_head + head) * g->dim, g->dim * sizeof(float));
    return out;
}

/* One head's parameters out of the reference arrays, as [row][group]: keys are stored [group][channel]. */
static float *k_params(const golden_kivi_t *g, const golden_tensor_t *t, uint32_t head)
{
    uint32_t n = g->n_k / g->group;
    float *out = vc_calloc((size_t)g->dim * n + 1, sizeof(float));
    for (uint32_t c = 0; c < g->dim; c++)
        for (uint32_t i = 0; i < n; i++)
            out[(size_t)c * n + i] = t->f32[((size_t)head * n + i) * g->dim + c];
    return out;
}

static uint32_t word_code(const golden_tensor_t *words, size_t word, uint32_t slot, uint32_t bits)
{
    return words->u32[word] >> (slot * bits) & ((1u << bits) - 1u);
}

static uint32_t k_code(const golden_kivi_t *g, const golden_tensor_t *words, uint32_t head, uint32_t c, uint32_t t)
{
    uint32_t per = 32 / g->bits, n_words = g->n_k / per;
    return word_code(words, ((size_t)head * n_words + t / per) * g->dim + c, t % per, g->bits);
}

static uint32_t v_code(const golden_kivi_t *g, const golden_tensor_t *words, uint32_t head, uint32_t t, uint32_t c)
{
    uint32_t per = 32 / g->bits, n_words = g->dim / per;
    return word_code(words, ((size_t)head * g->n_v + t) * n_words + c / per, c % per, g->bits);
}

typedef struct tally {
    uint64_t n, off_fed, off_own;
} tally_t;

static void check_params(const char *name, const quantised_t *own, const float *scale, const float *min, uint32_t group,
                         bool f16)
{
    (void)name; /* the plain runner drops messages */
    for (uint32_t g = 0; g < own->n_rows * (own->n_cols / group); g++) {
        cr_assert(own->min[g] == min[g], "%s: minimum of group %u is %.9g, not %.9g", name, g, own->min[g], min[g]);
        /* one f16 step where float32 rounding lands on the other side of a half */
        double rel = f16 ? 0x1p-10 : 1e-6;
        cr_assert(fabs(own->scale[g] - scale[g]) <= rel * fabs(scale[g]), "%s: scale of group %u is %.9g, not %.9g",
                  name, g, own->scale[g], scale[g]);
    }
}

static void check_case(const golden_case_t *c, tally_t *tally)
{
    golden_kivi_t g = open_case(c);
    golden_tensor_t kw = golden_out(c, "k_words"), ks = golden_out(c, "k_scale"), km = golden_out(c, "k_min");
    golden_tensor_t vw = golden_out(c, "v_words"), vs = golden_out(c, "v_scale"), vm = golden_out(c, "v_min");
    for (uint32_t h = 0; h < g.n_head; h++) {
        float *rows[2] = {k_rows(&g, h), v_rows(&g, h)};
        float *scale[2] = {k_params(&g, &ks, h), vs.f32 + (size_t)h * g.n_v * (g.dim / g.group)};
        float *min[2] = {k_params(&g, &km, h), vm.f32 + (size_t)h * g.n_v * (g.dim / g.group)};
        for (int m = 0; m < 2; m++) {
            uint32_t n_rows = m ? g.n_v : g.dim, n_cols = m ? g.dim : g.n_k;
            quantised_t own = quantise(rows[m], n_rows, n_cols, g.group, g.bits, g.f16_params, NULL, NULL);
            quantised_t fed = quantise(rows[m], n_rows, n_cols, g.group, g.bits, g.f16_params, scale[m], min[m]);
            check_params(c->name, &own, scale[m], min[m], g.group, g.f16_params);
            for (uint32_t r = 0; r < n_rows; r++)
                for (uint32_t i = 0; i < n_cols; i++, tally->n++) {
                    uint32_t want = m ? v_code(&g, &vw, h, r, i) : k_code(&g, &kw, h, r, i);
                    tally->off_fed += fed.codes[(size_t)r * n_cols + i] != want;
                    uint32_t got = own.codes[(size_t)r * n_cols + i];
                    cr_assert_leq(got > want ? got - want : want - got, 1, "%s: code", c->name);
                    tally->off_own += got != want;
                }
            quantised_free(&own);
            quantised_free(&fed);
            vc_free(rows[m]);
        }
        vc_free(scale[0]);
        vc_free(min[0]);
    }
    golden_tensor_t *all[] = {&kw, &ks, &km, &vw, &vs, &vm};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++)
        golden_tensor_free(all[i]);
    close_case(&g);
}

Test(kivi, codes_scales_and_minima_agree_with_the_reference)
{
    golden_t *golden = golden_open("kivi");
    tally_t tally = {0};
    uint32_t n_cases = 0;
    for (size_t i = 0; i < golden_n_cases(golden); i++) {
        golden_case_t c = golden_case_at(golden, i);
        if (!golden_out_has(&c, "k_words") || !golden_out_has(&c, "v_words"))
            continue; /* nothing is quantised in it, or it is the flush schedule */
        check_case(&c, &tally);
        n_cases++;
    }
    golden_close(golden);
    cr_assert_geq(n_cases, 30);
    cr_assert_eq(tally.off_fed, 0, "%llu of %llu codes differ with the reference's parameters",
                 (unsigned long long)tally.off_fed, (unsigned long long)tally.n);
    cr_assert(tally.off_own * 2000 <= tally.n, "%llu of %llu codes are off by one", (unsigned long long)tally.off_own,
              (unsigned long long)tally.n);
}

/* Body with the reference's parameters, then what is left exact. Keys and values have residuals of their own length. */
static void decode_all(const golden_case_t *c, const golden_kivi_t *g, float *k_hat, float *v_hat)
{
    size_t n = (size_t)g->n_tokens * g->n_head * g->dim;
    memcpy(k_hat, g->k.f32, n * sizeof(float));
    memcpy(v_hat, g->v.f32, n * sizeof(float));
    if (g->n_k == 0)
        return;
    golden_tensor_t kw = golden_out(c, "k_words"), ks = golden_out(c, "k_scale"), km = golden_out(c, "k_min");
    for (uint32_t h = 0; h < g->n_head; h++)
        for (uint32_t t = 0; t < g->n_k; t++)
            for (uint32_t i = 0; i < g->dim; i++) {
                size_t p = ((size_t)h * (g->n_k / g->group) + t / g->group) * g->dim + i;
                k_hat[((size_t)t * g->n_head + h) * g->dim + i] =
                    node_kivi_value(k_code(g, &kw, h, i, t), ks.f32[p], km.f32[p]);
            }
    golden_tensor_free(&kw);
    golden_tensor_free(&ks);
    golden_tensor_free(&km);
    if (g->n_v == 0)
        return;
    golden_tensor_t vw = golden_out(c, "v_words"), vs = golden_out(c, "v_scale"), vm = golden_out(c, "v_min");
    for (uint32_t h = 0; h < g->n_head; h++)
        for (uint32_t t = 0; t < g->n_v; t++)
            for (uint32_t i = 0; i < g->dim; i++) {
                size_t p = ((size_t)h * g->n_v + t) * (g->dim / g->group) + i / g->group;
                v_hat[((size_t)t * g->n_head + h) * g->dim + i] =
                    node_kivi_value(v_code(g, &vw, h, t, i), vs.f32[p], vm.f32[p]);
            }
    golden_tensor_free(&vw);
    golden_tensor_free(&vs);
    golden_tensor_free(&vm);
}

/* Plain softmax attention of one query head over [token][head][dim], in double. */
static double attend(const golden_kivi_t *g, const float *q, uint32_t head, const float *k, const float *v, double *out)
{
    double *z = calloc(g->n_tokens, sizeof(double)), max = -INFINITY, sum = 0;
    for (uint32_t t = 0; t < g->n_tokens; t++) {
        for (uint32_t i = 0; i < g->dim; i++)
            z[t] += (double)q[i] * k[((size_t)t * g->n_head + head) * g->dim + i];
        z[t] /= sqrt(g->dim);
        max = fmax(max, z[t]);
    }
    memset(out, 0, g->dim * sizeof(double));
    for (uint32_t t = 0; t < g->n_tokens; t++) {
        double p = exp(z[t] - max);
        sum += p;
        for (uint32_t i = 0; i < g->dim; i++)
            out[i] += p * v[((size_t)t * g->n_head + head) * g->dim + i];
    }
    for (uint32_t i = 0; i < g->dim; i++)
        out[i] /= sum;
    free(z);
    return max + log(sum);
}

static void check_attention(const golden_case_t *c)
{
    golden_kivi_t g = open_case(c);
    size_t n = (size_t)g.n_tokens * g.n_head * g.dim;
    float *k_hat = vc_calloc(n, 4), *v_hat = vc_calloc(n, 4), v_max = 1;
    decode_all(c, &g, k_hat, v_hat);
    for (size_t i = 0; i < n; i++)
        v_max = fmaxf(v_max, fabsf(v_hat[i]));
    golden_tensor_t q = golden_in(c, "q"), out = golden_out(c, "att_out"), lse = golden_out(c, "att_lse");
    for (uint32_t h = 0; h < g.n_head * g.n_group; h++) {
        double got[1024];
        double got_lse = attend(&g, q.f32 + (size_t)h * g.dim, h / g.n_group, k_hat, v_hat, got);
        cr_assert(fabs(got_lse - lse.f32[h]) <= 5e-6 * fmax(1.0, fabs(lse.f32[h])), "%s: lse of head %u", c->name, h);
        for (uint32_t i = 0; i < g.dim; i++)
            cr_assert(fabs(got[i] - out.f32[(size_t)h * g.dim + i]) <= 5e-6 * v_max, "%s: head %u channel %u", c->name,
                      h, i);
    }
    golden_tensor_free(&q);
    golden_tensor_free(&out);
    golden_tensor_free(&lse);
    vc_free(k_hat);
    vc_free(v_hat);
    close_case(&g);
}

Test(kivi, attention_over_decoded_codes_agrees_with_the_reference)
{
    golden_t *golden = golden_open("kivi");
    uint32_t n_cases = 0;
    for (size_t i = 0; i < golden_n_cases(golden); i++) {
        golden_case_t c = golden_case_at(golden, i);
        if (!golden_out_has(&c, "att_out"))
            continue;
        check_attention(&c);
        n_cases++;
    }
    golden_close(golden);
    cr_assert_geq(n_cases, 30);
}

Test(kivi, the_flush_schedule_of_the_method_is_not_a_record_s_business)
{
    cr_skip_test("a record holds no residual: see the_residual_is_an_exact_window_and_never_in_the_record");
}

/* ---- the vector versions ---- */

static void same_as_plain(const uint16_t *x, uint32_t group, uint32_t bits, const char *what)
{
    (void)what;      /* the plain runner drops messages */
    enum { N = 64 }; /* groups */
    uint8_t want[N * 64 + 4 * N], got[N * 64 + 4 * N];
    const uint32_t n_codes = N * group * bits / 8;
    memset(want, 0xa5, sizeof(want));
    node_kivi_quantise_plain(x, N, group, bits, want, want + n_codes, want + n_codes + 2 * N);
    for (node_ops_level_t level = NODE_OPS_SCALAR; level <= NODE_OPS_AVX512; level++) {
        node_kivi_quantise_fn fn = node_kivi_quantise(level);
        if (fn == NULL)
            continue;
        memset(got, 0xa5, sizeof(got));
        fn(x, N, group, bits, got, got + n_codes, got + n_codes + 2 * N);
        cr_assert(memcmp(want, got, sizeof(want)) == 0, "%s: level %d, %u bits, groups of %u", what, (int)level, bits,
                  group);
    }
}

/* Every f16 pattern that is finite, numbers of one magnitude, both zeros, the largest, the smallest. */
Test(kivi, every_isa_quantises_to_the_same_bits)
{
    static const uint32_t bits[] = {2, 4, 8}, groups[] = {16, 32, 64};
    static uint16_t x[64 * 64];
    static const uint16_t hard[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x7bff, 0xfbff, 0x3c00, 0xbc00, 0x03ff, 0x0400};
    for (int b = 0; b < 3; b++)
        for (int g = 0; g < 3; g++) {
            for (uint32_t seed = 0; seed < 16; seed++) {
                for (uint32_t i = 0; i < 64 * 64; i++) {
                    x[i] = (uint16_t)((i + seed * 4096u) * 40503u);
                    x[i] = (x[i] & 0x7c00) == 0x7c00 ? 0x8000 : x[i];
                }
                same_as_plain(x, groups[g], bits[b], "every pattern");
            }
            for (uint32_t i = 0; i < 64 * 64; i++)
                x[i] = node_f16_from_f32((float)golden_u(5, i));
            same_as_plain(x, groups[g], bits[b], "one magnitude");
            for (uint32_t i = 0; i < 64 * 64; i++)
                x[i] = golden_u(6, i) < 0 ? 0x8000 : 0x0000;
            same_as_plain(x, groups[g], bits[b], "zeros");
            for (uint32_t i = 0; i < 64 * 64; i++)
                x[i] = hard[(uint32_t)(5.0 + 5.0 * golden_u(7, i))];
            same_as_plain(x, groups[g], bits[b], "extremes");
        }
}

/* ---- the record ---- */

/* The numbers that a body must hold for one page: the reference arithmetic over f16 input with f16 parameters. */
static void expect_decoded(const uint16_t *x, const uint16_t *got, uint32_t n_rows, uint32_t n_cols, uint32_t group,
                           uint32_t bits, const char *what)
{
    (void)what; /* the plain runner drops messages */
    float *rows = vc_calloc((size_t)n_rows * n_cols, sizeof(float));
    for (uint32_t i = 0; i < n_rows * n_cols; i++)
        rows[i] = node_f32_from_f16(x[i]);
    quantised_t q = quantise(rows, n_rows, n_cols, group, bits, true, NULL, NULL);
    for (uint32_t i = 0; i < n_rows * n_cols; i++) {
        float want = node_kivi_value(q.codes[i], q.scale[i / group], q.min[i / group]);
        cr_assert_eq(got[i], node_f16_from_f32(want), "%s: number %u of %u-bit groups of %u", what, i, bits, group);
    }
    quantised_free(&q);
    vc_free(rows);
}

Test(kivi, every_width_and_group_goes_through_the_record_unchanged)
{
    static const uint32_t bits[] = {2, 4, 8}, groups[] = {16, 32, 64}, dims[] = {16, 64, 80, 128};
    for (int d = 0; d < 4; d++) {
        fx_t f;
        fx_open(&f, fx_model(2, 4, 2, dims[d]), 2, 64, 40);
        for (int b = 0; b < 3; b++)
            for (int g = 0; g < 3; g++) {
                if (dims[d] == 80 && groups[g] != 16)
                    continue; /* refused: see a_head_that_groups_do_not_divide_is_refused */
                char text[64];
                snprintf(text, sizeof(text), "kivi:bits=%u,group=%u,residual=64", bits[b], groups[g]);
                fx_records_t r = {0};
                fx_compress(text, &f.in, &r);
                node_body_t *body = fx_body_loaded(text, &f.model, &r, 2, NODE_LOAD_PAGES);
                for (uint32_t i = 0; i < 4; i++)
                    for (uint32_t t = 0; t < 2; t++) {
                        node_page_t *page = node_kv_page_at(&f.kv, t);
                        cr_assert_eq(body->tiles[i][t].n_rows, NODE_TILE);
                        expect_decoded(node_page_k(page, i / 2, i % 2), body->tiles[i][t].k, dims[d], NODE_TILE,
                                       groups[g], bits[b], "K");
                        expect_decoded(node_page_v(page, i / 2, i % 2), body->tiles[i][t].v, NODE_TILE, dims[d],
                                       VC_MIN(groups[g], dims[d]), bits[b], "V");
                    }
                node_body_put(body);
                fx_records_free(&r);
            }
        fx_close(&f);
    }
}

Test(kivi, a_head_that_groups_do_not_divide_is_refused)
{
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 80), 1, 64, 41);
    node_spec_t spec = fx_spec("kivi:group=32");
    fx_records_t r = {0};
    vc_err_t err = {0};
    cr_assert_eq(node_compress(&spec, &f.in, fx_keep, &r, &err), VC_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(err.msg, "80"));
    cr_assert_eq(r.n, 0);
    fx_close(&f);
}

Test(kivi, the_record_is_as_small_as_its_bits)
{
    fx_t f;
    fx_open(&f, fx_model(3, 6, 2, 64), 2, 64, 42);
    static const uint32_t bits[] = {2, 4, 8};
    for (int b = 0; b < 3; b++) {
        char text[64];
        snprintf(text, sizeof(text), "kivi:bits=%u", bits[b]);
        fx_records_t r = {0};
        fx_compress(text, &f.in, &r);
        vc_kvrec_head_t head;
        cr_assert_eq(vc_kvrec_check(r.data[0], r.bytes[0], &head, NULL), VC_OK);
        uint64_t numbers = 3ull * 2 * 2 * 64 * 64; /* layers, heads, K and V, tokens, channels */
        uint64_t per_layer = numbers / 3 * bits[b] / 8 + numbers / 3 / 32 * 4 + 4;
        for (uint32_t l = 0; l < 3; l++) {
            vc_kvrec_layer_t part;
            vc_kvrec_layer(&head, l, &part);
            cr_assert_eq(part.length, per_layer);
        }
        fx_records_free(&r);
    }
    fx_close(&f);
}

Test(kivi, a_group_never_spans_two_blocks_or_two_requests)
{
    fx_t a, b;
    fx_open(&a, fx_model(2, 2, 2, 64), 3, 64, 43);
    fx_open(&b, a.model, 3, 64, 44);
    /* b's middle block becomes a's: its record must be a's although everything around it differs. */
    node_kv_t mixed;
    cr_assert_eq(node_kv_init(&mixed, &a.kv.dims, NULL), VC_OK);
    for (uint32_t i = 0; i < 3; i++)
        cr_assert_eq(node_kv_append_page(&mixed, node_page_get(node_kv_page_at(i == 1 ? &a.kv : &b.kv, i))), VC_OK);
    fx_records_t ra = {0}, rm = {0};
    fx_compress("kivi:group=64", &a.in, &ra);
    node_compress_in_t in = a.in;
    in.kv = &mixed;
    fx_compress("kivi:group=64", &in, &rm);
    cr_assert_eq(ra.bytes[1], rm.bytes[1]);
    cr_assert(memcmp(ra.data[1], rm.data[1], ra.bytes[1]) == 0);
    cr_assert(memcmp(ra.data[0], rm.data[0], ra.bytes[0]) != 0);
    fx_records_free(&ra);
    fx_records_free(&rm);
    node_kv_fini(&mixed);
    fx_close(&a);
    fx_close(&b);
}

/* A group of one token would store it losslessly: at 2 bits a row of different numbers must lose something. */
Test(kivi, no_row_is_stored_losslessly_by_accident)
{
    fx_t f;
    fx_open(&f, fx_model(1, 2, 2, 64), 2, 64, 45);
    fx_records_t r = {0};
    fx_compress("kivi:bits=2", &f.in, &r);
    node_body_t *body = fx_body_loaded("kivi:bits=2", &f.model, &r, 2, NODE_LOAD_PAGES);
    for (uint32_t t = 0; t < 2; t++)
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t row = 0; row < NODE_TILE; row++) {
                const uint16_t *k = node_page_k(node_kv_page_at(&f.kv, t), 0, h);
                const uint16_t *v = node_page_v(node_kv_page_at(&f.kv, t), 0, h);
                uint32_t k_off = 0, v_off = 0;
                for (uint32_t c = 0; c < 64; c++) {
                    k_off += k[c * NODE_TILE + row] != body->tiles[h][t].k[c * NODE_TILE + row];
                    v_off += v[row * 64 + c] != body->tiles[h][t].v[row * 64 + c];
                }
                cr_assert_gt(k_off, 0);
                cr_assert_gt(v_off, 0);
            }
    node_body_put(body);
    fx_records_free(&r);
    fx_close(&f);
}

/* Keys of some models carry a large constant per channel: groups per channel keep the signal around it. */
Test(kivi, a_large_key_bias_does_not_drown_the_signal)
{
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 64), 1, 64, 46);
    uint16_t *k = node_page_k(node_kv_page_at(&f.kv, 0), 0, 0);
    for (uint32_t c = 0; c < 64; c++)
        for (uint32_t t = 0; t < NODE_TILE; t++) {
            float signal = (float)golden_u(47, c * NODE_TILE + t);
            k[c * NODE_TILE + t] = node_f16_from_f32(signal + (c & 1 ? 40.0f : -40.0f));
        }
    fx_records_t r = {0};
    fx_compress("kivi:bits=4", &f.in, &r);
    node_body_t *body = fx_body_loaded("kivi:bits=4", &f.model, &r, 1, NODE_LOAD_PAGES);
    for (uint32_t i = 0; i < 64 * NODE_TILE; i++) {
        float want = node_f32_from_f16(k[i]), got = node_f32_from_f16(body->tiles[0][0].k[i]);
        /* half a step of a range of 2, and f16 roundings around 40; a group across channels would be off by 2.7 */
        cr_assert(fabsf(got - want) <= 1.0f / 15.0f + 0.02f, "channel %u", i / NODE_TILE);
    }
    node_body_put(body);
    fx_records_free(&r);
    fx_close(&f);
}

Test(kivi, constant_groups_and_vanishing_scales_decode_to_their_minimum)
{
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 64), 1, 64, 48);
    uint16_t *k = node_page_k(node_kv_page_at(&f.kv, 0), 0, 0), *v = node_page_v(node_kv_page_at(&f.kv, 0), 0, 0);
    for (uint32_t i = 0; i < 64 * NODE_TILE; i++) {
        k[i] = 0x3c00;            /* 1.0 everywhere */
        v[i] = (uint16_t)(i & 1); /* 0 and the smallest f16: the scale rounds to zero */
    }
    fx_records_t r = {0};
    fx_compress("kivi:bits=8", &f.in, &r);
    node_body_t *body = fx_body_loaded("kivi:bits=8", &f.model, &r, 1, NODE_LOAD_PAGES);
    for (uint32_t i = 0; i < 64 * NODE_TILE; i++) {
        cr_assert_eq(body->tiles[0][0].k[i], 0x3c00);
        cr_assert_eq(body->tiles[0][0].v[i], 0);
    }
    node_body_put(body);
    fx_records_free(&r);
    fx_close(&f);
}

Test(kivi, the_largest_numbers_decode_without_infinity)
{
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 64), 1, 64, 49);
    uint16_t *v = node_page_v(node_kv_page_at(&f.kv, 0), 0, 0);
    for (uint32_t i = 0; i < 64 * NODE_TILE; i++)
        v[i] = i & 1 ? 0x7bff : 0xfbff; /* +-65504 */
    static const char *const texts[] = {"kivi:bits=2", "kivi:bits=4", "kivi:bits=8"};
    for (int s = 0; s < 3; s++) {
        fx_records_t r = {0};
        fx_compress(texts[s], &f.in, &r);
        node_body_t *body = fx_body_loaded(texts[s], &f.model, &r, 1, NODE_LOAD_PAGES);
        for (uint32_t i = 0; i < 64 * NODE_TILE; i++)
            cr_assert_neq(body->tiles[0][0].v[i] & 0x7c00, 0x7c00);
        node_body_put(body);
        fx_records_free(&r);
    }
    fx_close(&f);
}

/* Positions far beyond head_dim are decoded like the first ones. */
Test(kivi, a_long_context_has_every_position)
{
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 16), 40, 64, 50);
    fx_records_t r = {0};
    fx_compress("kivi:bits=8", &f.in, &r);
    node_body_t *body = fx_body_loaded("kivi:bits=8", &f.model, &r, 40, NODE_LOAD_PAGES);
    cr_assert_eq(body->n_tokens, 40 * NODE_TILE);
    cr_assert_eq(body->n_tiles[0], 40);
    cr_assert_eq(node_body_n_dropped(body, 0, 0), 0);
    for (uint32_t t = 0; t < 40; t++)
        expect_decoded(node_page_v(node_kv_page_at(&f.kv, t), 0, 0), body->tiles[0][t].v, NODE_TILE, 16, 16, 8, "V");
    node_body_put(body);
    fx_records_free(&r);
    fx_close(&f);
}

Test(kivi, the_residual_is_an_exact_window_and_never_in_the_record)
{
    fx_t f;
    fx_open(&f, fx_model(2, 2, 2, 32), 5, 64, 51);
    fx_records_t with = {0}, without = {0};
    fx_compress("kivi:bits=2,residual=128", &f.in, &with);
    fx_compress("kivi:bits=2,residual=0", &f.in, &without);
    node_spec_t spec = fx_spec("kivi:bits=2,residual=128");
    for (uint32_t b = 0; b < 5; b++) { /* same payload: only the spec id and the sums over it differ */
        vc_kvrec_head_t hw, ho;
        cr_assert_eq(vc_kvrec_check(with.data[b], with.bytes[b], &hw, NULL), VC_OK);
        cr_assert_eq(vc_kvrec_check(without.data[b], without.bytes[b], &ho, NULL), VC_OK);
        cr_assert_eq(hw.payload_bytes, ho.payload_bytes);
        cr_assert(memcmp(with.data[b] + hw.header_bytes, without.data[b] + ho.header_bytes, hw.payload_bytes) == 0);
    }
    cr_assert_eq(spec.ops->window_tokens(&spec), 128);
    /* A drafter replaces the last two blocks and the first by full pages: their rows are the exact ones. */
    node_body_builder_t *builder;
    node_body_t *body;
    cr_assert_eq(node_body_begin(&spec, &f.model, 5, &builder, NULL), VC_OK);
    for (uint32_t b = 0; b < 5; b++)
        cr_assert_eq(node_body_add_record(builder, with.data[b], with.bytes[b], NULL), VC_OK);
    static const uint32_t exact[] = {0, 3, 4};
    for (int i = 0; i < 3; i++)
        cr_assert_eq(node_body_add_page(builder, exact[i], node_kv_page_at(&f.kv, exact[i])), VC_OK);
    cr_assert_eq(node_body_finish(builder, &body, NULL), VC_OK);
    for (uint32_t h = 0; h < 4; h++)
        for (int i = 0; i < 3; i++)
            cr_assert(body->tiles[h][exact[i]].k == node_page_k(node_kv_page_at(&f.kv, exact[i]), h / 2, h % 2));
    node_body_put(body);
    fx_records_free(&with);
    fx_records_free(&without);
    fx_close(&f);
}
