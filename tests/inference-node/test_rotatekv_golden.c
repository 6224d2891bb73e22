/*
 * RotateKV's arithmetic against reference numbers: order of channels, rotation, codes, scales, zero points, what they
 * decode to, attention over it, and sinks.
 */
#include <math.h>

#include "codec_fixture.h"
#include "compress/rotatekv_int.h"

static const node_rkv_ops_t *ops;

/* rows [n_tokens][width] of up to NODE_TILE tokens to [width][NODE_TILE]; the other lanes are zero. */
static void to_lanes(const float *rows, uint32_t first, uint32_t n_tokens, uint32_t width, float *x)
{
    memset(x, 0, (size_t)width * NODE_TILE * sizeof(*x));
    for (uint32_t t = 0; t < NODE_TILE && first + t < n_tokens; t++)
        for (uint32_t c = 0; c < width; c++)
            x[(size_t)c * NODE_TILE + t] = rows[(size_t)(first + t) * width + c];
}

static void from_lanes(const float *x, uint32_t first, uint32_t n_tokens, uint32_t width, float *rows)
{
    for (uint32_t t = 0; t < NODE_TILE && first + t < n_tokens; t++)
        for (uint32_t c = 0; c < width; c++)
            rows[(size_t)(first + t) * width + c] = x[(size_t)c * NODE_TILE + t];
}

/* A matrix of reference numbers: codes and parameters per token. */
typedef struct coded {
    uint32_t n_tokens, width, group, bits;
    uint8_t *codes; /* [token][width] */
    float *scales;  /* [token][group] */
    int16_t *zeros;
} coded_t;

static coded_t coded_of(uint32_t n_tokens, uint32_t width, uint32_t group, uint32_t bits)
{
    const size_t n = (size_t)n_tokens * width;
    return (coded_t){n_tokens,
                     width,
                     group,
                     bits,
                     vc_calloc(n, 1),
                     vc_calloc(n / group, sizeof(float)),
                     vc_calloc(n / group, sizeof(int16_t))};
}

static void coded_free(coded_t *q)
{
    vc_free(q->codes);
    vc_free(q->scales);
    vc_free(q->zeros);
}

/* The paper's arithmetic: float scales, clipping whatever the signs. */
static node_rkv_grid_t paper_grid(uint32_t bits, uint32_t group, double clip)
{
    const float levels = (float)((1u << bits) - 1u);
    return (node_rkv_grid_t){group, levels, levels, (float)clip, true};
}

/* rows: the quantiser's input, [token][width], already in its order. */
static void quantise(const node_rkv_grid_t *grid, const float *rows, coded_t *q)
{
    const uint32_t n_groups = q->width / q->group;
    float *x = vc_calloc((size_t)q->width * NODE_TILE, sizeof(*x));
    float *scales = vc_calloc((size_t)n_groups * NODE_TILE, sizeof(*scales));
    int16_t *zeros = vc_calloc((size_t)n_groups * NODE_TILE, sizeof(*zeros));
    uint8_t *codes = vc_calloc((size_t)q->width * NODE_TILE, 1);
    for (uint32_t first = 0; first < q->n_tokens; first += NODE_TILE) {
        to_lanes(rows, first, q->n_tokens, q->width, x);
        ops->quantise(grid, x, NULL, q->width, codes, scales, zeros);
        for (uint32_t t = 0; t < NODE_TILE && first + t < q->n_tokens; t++) {
            for (uint32_t c = 0; c < q->width; c++)
                q->codes[(size_t)(first + t) * q->width + c] = codes[(size_t)c * NODE_TILE + t];
            for (uint32_t g = 0; g < n_groups; g++) {
                q->scales[(size_t)(first + t) * n_groups + g] = scales[(size_t)g * NODE_TILE + t];
                q->zeros[(size_t)(first + t) * n_groups + g] = zeros[(size_t)g * NODE_TILE + t];
            }
        }
    }
    vc_free(x), vc_free(scales), vc_free(zeros), vc_free(codes);
}

/* Back to rows of numbers; block 0: not rotated. */
static void restore(const coded_t *q, const uint16_t *order, uint32_t block, float *rows)
{
    const uint32_t n_groups = q->width / q->group;
    float *x = vc_calloc((size_t)q->width * NODE_TILE, sizeof(*x));
    float *scales = vc_calloc((size_t)n_groups * NODE_TILE, sizeof(*scales));
    int16_t *zeros = vc_calloc((size_t)n_groups * NODE_TILE, sizeof(*zeros));
    uint8_t *codes = vc_calloc((size_t)q->width * NODE_TILE, 1);
    for (uint32_t first = 0; first < q->n_tokens; first += NODE_TILE) {
        for (uint32_t t = 0; t < NODE_TILE && first + t < q->n_tokens; t++) {
            for (uint32_t c = 0; c < q->width; c++)
                codes[(size_t)c * NODE_TILE + t] = q->codes[(size_t)(first + t) * q->width + c];
            for (uint32_t g = 0; g < n_groups; g++) {
                scales[(size_t)g * NODE_TILE + t] = q->scales[(size_t)(first + t) * n_groups + g];
                zeros[(size_t)g * NODE_TILE + t] = q->zeros[(size_t)(first + t) * n_groups + g];
            }
        }
        ops->restore(codes, scales, zeros, order, q->width, q->group, x);
        if (block)
            ops->rotate(x, q->width, block);
        from_lanes(x, first, q->n_tokens, q->width, rows);
    }
    vc_free(x), vc_free(scales), vc_free(zeros), vc_free(codes);
}

/* Rotated rows; order NULL: not permuted. */
static void rotate_rows(const float *rows, uint32_t n_tokens, uint32_t width, uint32_t block, const uint16_t *order,
                        float *out)
{
    float *x = vc_calloc((size_t)width * NODE_TILE, sizeof(*x)), *row = vc_calloc(width, sizeof(*row));
    for (uint32_t first = 0; first < n_tokens; first += NODE_TILE) {
        to_lanes(rows, first, n_tokens, width, x);
        ops->rotate(x, width, block);
        from_lanes(x, first, n_tokens, width, out);
    }
    for (uint32_t t = 0; order != NULL && t < n_tokens; t++) {
        memcpy(row, out + (size_t)t * width, width * sizeof(*row));
        for (uint32_t c = 0; c < width; c++)
            out[(size_t)t * width + c] = row[order[c]];
    }
    vc_free(x), vc_free(row);
}

static void order_of(const float *rows, uint32_t n_tokens, uint32_t width, uint32_t block, uint16_t *order)
{
    double *sums = vc_calloc(width, sizeof(*sums));
    float *x = vc_calloc((size_t)width * NODE_TILE, sizeof(*x));
    for (uint32_t first = 0; first < n_tokens; first += NODE_TILE) {
        to_lanes(rows, first, n_tokens, width, x);
        ops->rotate(x, width, block);
        node_rkv_sum(x, width, sums);
    }
    cr_assert(node_rkv_order(sums, width, order));
    vc_free(sums), vc_free(x);
}

static double largest(const float *x, size_t n)
{
    double top = 0;
    for (size_t i = 0; i < n; i++)
        top = fmax(top, fabs((double)x[i]));
    return top;
}

static void expect_close(const float *got, const golden_tensor_t *want, double bound, const char *name,
                         const char *what)
{
    for (size_t i = 0; i < want->n; i++)
        cr_assert(fabs((double)got[i] - (double)want->f32[i]) <= bound, "%s: %s %zu is %g, not %g", name, what, i,
                  (double)got[i], (double)want->f32[i]);
}

/* Code of a packed row; 3 bits are a plane of two bits and one of the third. */
static uint32_t word_code(const coded_t *q, const golden_tensor_t *words, uint32_t t, uint32_t c)
{
    const uint32_t *row = words->u32 + t * words->shape[1];
    if (q->bits == 3)
        return (row[c / 16] >> c % 16 * 2 & 3u) | (row[q->width / 16 + c / 32] >> c % 32 & 1u) << 2;
    const uint32_t per = 32 / q->bits;
    return row[c / per] >> c % per * q->bits & ((1u << q->bits) - 1);
}

static void expect_codes(const coded_t *q, const golden_tensor_t *words, bool exact, const char *name)
{
    const size_t n = (size_t)q->n_tokens * q->width;
    size_t off = 0;
    for (uint32_t t = 0; t < q->n_tokens; t++)
        for (uint32_t c = 0; c < q->width; c++) {
            int d = (int)q->codes[(size_t)t * q->width + c] - (int)word_code(q, words, t, c);
            cr_assert(d >= -1 && d <= 1, "%s: token %u channel %u is %d off", name, t, c, d);
            off += d != 0;
        }
    cr_assert(off <= (exact ? 0 : (size_t)ceil(0.0005 * (double)n)), "%s: %zu of %zu codes differ", name, off, n);
}

static void expect_params(const coded_t *q, const float *rows, const golden_tensor_t *scale,
                          const golden_tensor_t *zero, const char *name)
{
    for (size_t i = 0; i < scale->n; i++) {
        double bound = 1e-6 * largest(rows + i * q->group, q->group);
        cr_assert(fabs((double)q->scales[i] - (double)scale->f32[i]) <= bound, "%s: scale %zu", name, i);
        cr_assert_eq(q->zeros[i], zero->i32[i], "%s: zero point %zu is %d, not %d", name, i, q->zeros[i], zero->i32[i]);
    }
}

static void take_reference(coded_t *q, const golden_tensor_t *words, const golden_tensor_t *scale,
                           const golden_tensor_t *zero)
{
    for (uint32_t t = 0; t < q->n_tokens; t++)
        for (uint32_t c = 0; c < q->width; c++)
            q->codes[(size_t)t * q->width + c] = (uint8_t)word_code(q, words, t, c);
    for (size_t i = 0; i < scale->n; i++) {
        q->scales[i] = scale->f32[i];
        q->zeros[i] = (int16_t)zero->i32[i];
    }
}

/* One matrix of a case, K or V, all the way; hat [token][width] is what it decodes to. */
static void check_matrix(const golden_case_t *c, const char *which, const uint16_t *order, uint32_t block, float *hat)
{
    char name[8];
    snprintf(name, sizeof(name), "%s", which);
    golden_tensor_t in = golden_in(c, name);
    const uint32_t n_tokens = (uint32_t)golden_int(c, "T");
    const uint32_t width = (uint32_t)(golden_int(c, "H") * golden_int(c, "d"));
    coded_t q = coded_of(n_tokens, width, (uint32_t)golden_int(c, "g"), (uint32_t)golden_int(c, "b"));
    const node_rkv_grid_t grid = paper_grid(q.bits, q.group, golden_num(c, "kappa"));
    golden_tensor_t scale = golden_out(c, (snprintf(name, sizeof(name), "%s_scale", which), name));
    golden_tensor_t zero = golden_out(c, (snprintf(name, sizeof(name), "%s_zero", which), name));
    golden_tensor_t words = golden_out(c, *which == 'k' ? "k_words" : "v_words");
    float *rot = vc_calloc((size_t)n_tokens * width, sizeof(*rot));
    rotate_rows(in.f32, n_tokens, width, block, order, rot);
    const double size = fmax(1.0, largest(in.f32, in.n));
    snprintf(name, sizeof(name), "%s_rot", which);
    if (golden_out_has(c, name)) {
        golden_tensor_t want = golden_out(c, name);
        expect_close(rot, &want, 1e-6 * size, c->name, "rotated");
        quantise(&grid, want.f32, &q);
        expect_codes(&q, &words, true, c->name);
        expect_params(&q, want.f32, &scale, &zero, c->name);
        golden_tensor_free(&want);
    }
    quantise(&grid, rot, &q);
    expect_codes(&q, &words, false, c->name);
    take_reference(&q, &words, &scale, &zero);
    restore(&q, order, block, hat);
    snprintf(name, sizeof(name), "%s_hat", which);
    if (golden_out_has(c, name)) {
        golden_tensor_t want = golden_out(c, name);
        expect_close(hat, &want, 2e-6 * size, c->name, "decoded");
        golden_tensor_free(&want);
    }
    golden_tensor_free(&in), golden_tensor_free(&scale), golden_tensor_free(&zero), golden_tensor_free(&words);
    vc_free(rot);
    coded_free(&q);
}

/* Keys turned to their positions, then plain attention in double. */
static void check_attention(const golden_case_t *c, float *k_hat, const float *v_hat)
{
    golden_tensor_t q = golden_in(c, "q"), freq = golden_in(c, "inv_freq");
    golden_tensor_t out = golden_out(c, "att_out"), lse = golden_out(c, "att_lse");
    const uint32_t n = (uint32_t)golden_int(c, "T"), heads = (uint32_t)golden_int(c, "H");
    const uint32_t d = (uint32_t)golden_int(c, "d"), group = (uint32_t)golden_int(c, "G"), width = heads * d;
    float cos[NODE_HEAD_DIM_MAX], sin[NODE_HEAD_DIM_MAX];
    for (uint32_t t = 0; t < n; t++) {
        node_rope_table(freq.f32, d / 2, (float)golden_num(c, "m"), t, cos, sin);
        for (uint32_t h = 0; h < heads; h++)
            node_ops_scalar.rope(k_hat + (size_t)t * width + (size_t)h * d, cos, sin, d / 2);
    }
    double *z = vc_calloc(n, sizeof(*z));
    const double bound = 5e-6 * fmax(1.0, largest(v_hat, (size_t)n * width));
    for (uint32_t i = 0; i < heads * group; i++) {
        const float *k = k_hat + (size_t)(i / group) * d, *v = v_hat + (size_t)(i / group) * d;
        double top = -INFINITY, sum = 0;
        for (uint32_t t = 0; t < n; t++) {
            z[t] = 0;
            for (uint32_t e = 0; e < d; e++)
                z[t] += (double)q.f32[i * d + e] * (double)k[(size_t)t * width + e] / sqrt(d);
            top = fmax(top, z[t]);
        }
        for (uint32_t t = 0; t < n; t++)
            sum += z[t] = exp(z[t] - top);
        cr_assert(fabs(top + log(sum) - (double)lse.f32[i]) <= fmax(5e-6, 2e-6 * fabs(top)), "%s: lse %u", c->name, i);
        for (uint32_t e = 0; e < d; e++) {
            double o = 0;
            for (uint32_t t = 0; t < n; t++)
                o += z[t] / sum * (double)v[(size_t)t * width + e];
            cr_assert(fabs(o - (double)out.f32[i * d + e]) <= bound, "%s: query head %u channel %u", c->name, i, e);
        }
    }
    vc_free(z);
    golden_tensor_free(&q), golden_tensor_free(&freq), golden_tensor_free(&out), golden_tensor_free(&lse);
}

static void check_case(const golden_case_t *c)
{
    const uint32_t heads = (uint32_t)golden_int(c, "H"), d = (uint32_t)golden_int(c, "d"), width = heads * d;
    const uint32_t block = node_rkv_key_block(heads, d);
    cr_assert_eq(block, golden_int(c, "key_block"), "%s", c->name);
    uint16_t *order = vc_calloc(width, sizeof(*order));
    golden_tensor_t pi = golden_out(c, "pi");
    for (uint32_t i = 0; i < width; i++)
        order[i] = (uint16_t)i;
    if (golden_in_has(c, "k_cal")) {
        golden_tensor_t cal = golden_in(c, "k_cal");
        order_of(cal.f32, (uint32_t)cal.shape[0], width, block, order);
        golden_tensor_free(&cal);
    }
    for (uint32_t i = 0; i < width; i++)
        cr_assert_eq(order[i], pi.u32[i], "%s: place %u is channel %u, not %u", c->name, i, order[i], pi.u32[i]);
    const size_t n = (size_t)golden_int(c, "T") * width;
    float *k_hat = vc_calloc(n, sizeof(*k_hat)), *v_hat = vc_calloc(n, sizeof(*v_hat));
    check_matrix(c, "k", order, block, k_hat);
    check_matrix(c, "v", NULL, (uint32_t)golden_int(c, "value_block"), v_hat);
    check_attention(c, k_hat, v_hat);
    golden_tensor_free(&pi);
    vc_free(order), vc_free(k_hat), vc_free(v_hat);
}

Test(rotatekv_golden, order_rotation_codes_and_attention_are_the_reference_s)
{
    for (int level = NODE_OPS_SCALAR; level <= NODE_OPS_AVX512; level++) {
        if (node_ops_get((node_ops_level_t)level) == NULL)
            continue;
        ops = node_rkv_ops((node_ops_level_t)level);
        golden_t *g = golden_open("rotatekv");
        uint32_t n = 0;
        for (size_t i = 0; i < golden_n_cases(g); i++) {
            golden_case_t c = golden_case_at(g, i);
            if (golden_has(&c, "key_block") && golden_has(&c, "b")) {
                check_case(&c);
                n++;
            }
        }
        cr_assert_eq(n, 22u);
        golden_close(g);
    }
}

static double mse(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sum / (double)n;
}

static double scalar(const golden_case_t *c, const char *name)
{
    return json_number_value(json_object_get(c->scalars, name));
}

/* x coded and decoded with a grid, against a tensor and its error. */
static void check_fake(const golden_case_t *c, const node_rkv_grid_t *grid, uint32_t bits, const char *hat_name,
                       const char *mse_name)
{
    golden_tensor_t x = golden_in(c, "x"), want = golden_out(c, hat_name);
    coded_t q = coded_of((uint32_t)x.shape[0], (uint32_t)x.shape[1], grid->group, bits);
    float *hat = vc_calloc(x.n, sizeof(*hat));
    quantise(grid, x.f32, &q);
    restore(&q, NULL, 0, hat);
    expect_close(hat, &want, 2e-6, c->name, hat_name);
    cr_assert(fabs(mse(hat, x.f32, x.n) / scalar(c, mse_name) - 1) < 1e-5, "%s", mse_name);
    golden_tensor_free(&x), golden_tensor_free(&want);
    vc_free(hat);
    coded_free(&q);
}

/* The reference divides the range by b^2 - 1: eight at three bits, where there are seven steps. Ours is the better one.
 */
Test(rotatekv_golden, levels_are_two_to_the_bits_less_one_and_not_the_reference_s_square)
{
    ops = &node_rkv_scalar;
    golden_t *g = golden_open("rotatekv");
    golden_case_t c = golden_case(g, "smoke");
    node_rkv_grid_t grid = paper_grid(2, 128, 0.8);
    check_fake(&c, &grid, 2, "hat_b2", "mse_b2");
    grid = paper_grid(4, 128, 1.0);
    check_fake(&c, &grid, 4, "hat_b4", "mse_b4");
    grid = paper_grid(3, 128, 1.0);
    check_fake(&c, &grid, 3, "hat_b3", "mse_b3");
    grid.levels = 8.0f;
    check_fake(&c, &grid, 3, "hat_b3_parity", "mse_b3_parity");
    cr_assert_lt(scalar(&c, "mse_b3"), 0.95 * scalar(&c, "mse_b3_parity"));
    for (uint32_t bits = 2; bits <= 4; bits++) { /* what a spec gets */
        char text[32];
        snprintf(text, sizeof(text), "rotatekv:bits=%u", bits);
        node_spec_t spec;
        cr_assert_eq(node_spec_parse(text, &spec, NULL), VC_OK);
        node_rkv_grid_t own = node_rkv_grid(&spec, 64);
        cr_assert(own.levels == (float)((1 << bits) - 1) && own.top == own.levels && !own.wide);
    }
    golden_close(g);
}

Test(rotatekv_golden, the_smoke_keys_lose_what_the_reference_s_lose)
{
    ops = &node_rkv_scalar;
    golden_t *g = golden_open("rotatekv");
    golden_case_t c = golden_case(g, "smoke");
    golden_tensor_t k = golden_in(&c, "k"), rot = golden_out(&c, "k_rotated"), pi = golden_out(&c, "pi");
    golden_tensor_t hat = golden_out(&c, "k_hat"), plain = golden_out(&c, "k_hat_unrotated");
    float *x = vc_calloc(k.n, sizeof(*x));
    uint16_t order[512];
    const node_rkv_grid_t grid = paper_grid(2, 128, 0.8);
    coded_t q = coded_of(8, 512, 128, 2);
    rotate_rows(k.f32, 8, 512, 512, NULL, x);
    expect_close(x, &rot, 2e-5, c.name, "rotated"); /* keys of 20 */
    order_of(k.f32, 8, 512, 512, order);
    for (uint32_t i = 0; i < 512; i++)
        cr_assert_eq(order[i], pi.u32[i]);
    rotate_rows(k.f32, 8, 512, 512, order, x);
    quantise(&grid, x, &q);
    restore(&q, order, 512, x);
    expect_close(x, &hat, 4e-5, c.name, "decoded");
    quantise(&grid, k.f32, &q);
    restore(&q, NULL, 0, x);
    expect_close(x, &plain, 4e-5, c.name, "decoded without rotation");
    golden_tensor_free(&k), golden_tensor_free(&rot), golden_tensor_free(&pi);
    golden_tensor_free(&hat), golden_tensor_free(&plain);
    vc_free(x);
    coded_free(&q);
    golden_close(g);
}

/* Clipping both ends of a group of one sign moves them off its numbers: reproduced, and not done by ours. */
Test(rotatekv_golden, a_group_of_one_sign_is_not_clipped)
{
    ops = &node_rkv_scalar;
    golden_t *g = golden_open("rotatekv");
    golden_case_t c = golden_case(g, "one_sign_k08");
    golden_tensor_t x = golden_in(&c, "x"), hat = golden_out(&c, "x_hat"), scale = golden_out(&c, "scale");
    golden_tensor_t zero = golden_out(&c, "zero"), words = golden_out(&c, "words");
    coded_t q = coded_of(8, 128, 128, 2);
    float *got = vc_calloc(x.n, sizeof(*got));
    node_rkv_grid_t grid = paper_grid(2, 128, 0.8);
    quantise(&grid, x.f32, &q);
    expect_codes(&q, &words, false, c.name);
    expect_params(&q, x.f32, &scale, &zero, c.name);
    restore(&q, NULL, 0, got);
    expect_close(got, &hat, 2e-5, c.name, "decoded");
    grid.wide = false;
    quantise(&grid, x.f32, &q);
    restore(&q, NULL, 0, got);
    cr_assert_lt(mse(got, x.f32, x.n), 0.01, "%g", mse(got, x.f32, x.n));
    cr_assert_gt(scalar(&c, "mse"), 3.0);
    golden_tensor_free(&x), golden_tensor_free(&hat), golden_tensor_free(&scale);
    golden_tensor_free(&zero), golden_tensor_free(&words);
    vc_free(got);
    coded_free(&q);
    golden_close(g);
}

Test(rotatekv_golden, sinks_are_the_tokens_of_the_largest_residuals)
{
    golden_t *g = golden_open("rotatekv");
    for (int i = 0; i < 4; i++) {
        char name[20];
        snprintf(name, sizeof(name), "sinks_%d", i);
        golden_case_t c = golden_case(g, name);
        golden_tensor_t r = golden_in(&c, "r"), want = golden_out(&c, "sinks");
        const uint32_t n_tokens = (uint32_t)golden_int(&c, "T"), width = (uint32_t)golden_int(&c, "D");
        node_rkv_sinks_t *s = node_rkv_sinks_create(1, width, (uint32_t)golden_int(&c, "n"));
        cr_assert_not_null(s);
        for (uint32_t t = 0; t < n_tokens; t++)
            node_rkv_sinks_row(s, 0, 640 + t, r.f32 + (size_t)t * width);
        uint64_t rows[1] = {0}, expect = 0;
        node_rkv_sinks_rows(s, 0, 640, 1, rows);
        for (size_t k = 0; k < want.n; k++)
            expect |= 1ull << want.u32[k];
        cr_assert_eq(rows[0], expect, "%s", name);
        node_rkv_sinks_free(s);
        golden_tensor_free(&r), golden_tensor_free(&want);
    }
    golden_close(g);
}
