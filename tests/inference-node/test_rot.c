/*
 * rot: the transform and the quantiser against plain double arithmetic, every width through every table of operations,
 * and what a record may and may not hold. Attention over its codes is test_rot_attend's.
 */
#include "rot_fixture.h"

/* x [token][dim], not rotated: every code is the nearest one of its group's levels. */
static void expect_matrix(const matrix_t *m, const double *x)
{
    const double levels = (1u << m->bits) - 1;
    for (uint32_t t = 0; t < NODE_TILE; t++) {
        double row[NODE_HEAD_DIM_MAX];
        memcpy(row, x + (size_t)t * m->dim, m->dim * sizeof(*row));
        hadamard(row, m->dim);
        for (uint32_t c = 0; c < m->dim; c++) {
            double scale = param_at(m->scales, m, t, c), min = param_at(m->mins, m, t, c);
            double got = code_at(m, t, c) * scale + min;
            /* half a level, and what rounding both ends to f16 may cut off */
            double bound = scale / 2 + 0x1p-10 * (fabs(min) + levels * scale) + 1e-6;
            cr_assert(fabs(got - row[c]) <= bound, "%u bits: token %u channel %u is %g, not %g", m->bits, t, c, got,
                      row[c]);
        }
    }
}

/* x [token][dim] */
static void expect_mean(const double *x, uint32_t dim, const double *mean)
{
    for (uint32_t c = 0; c < dim; c++) {
        double sum = 0, size = 0;
        for (uint32_t t = 0; t < NODE_TILE; t++) {
            sum += x[t * dim + c] / NODE_TILE;
            size += fabs(x[t * dim + c]) / NODE_TILE;
        }
        cr_assert(fabs(sum - mean[c]) <= 0x1p-11 * fabs(sum) + 0x1p-20 * size + 0x1p-25, "channel %u: %g, not %g", c,
                  mean[c], sum);
    }
}

static void expect_record(const fx_t *f, const char *text)
{
    node_spec_t spec = fx_spec(text);
    const uint32_t dim = f->model.head_dim;
    double *x = vc_calloc((size_t)NODE_TILE * dim, sizeof(*x)), mean[NODE_HEAD_DIM_MAX];
    fx_records_t r = {0};
    fx_compress(text, &f->in, &r);
    for (uint32_t b = 0; b < r.n; b++)
        for (uint32_t l = 0; l < f->model.n_layer; l++) {
            uint32_t length;
            const uint8_t *part = part_of(&r, b, l, &length), *at = part;
            for (uint32_t i = 0; i < 2 * f->model.n_kv_head; i++) {
                page_rows(node_kv_page_at(&f->kv, b), l, i / 2, dim, i % 2, x);
                if (i % 2 == 0) {
                    at = mean_at(at, &spec, dim, mean);
                    if (spec.center)
                        expect_mean(x, dim, mean);
                    take_mean(x, dim, mean);
                }
                matrix_t m = matrix_at(at, dim, spec.group, spec.bits);
                expect_matrix(&m, x);
                at = m.end;
            }
            cr_assert_eq(vc_le32(at), 0);
            cr_assert_eq(at + 4 - part, length);
        }
    fx_records_free(&r);
    vc_free(x);
}

Test(rot, every_width_and_group_is_the_nearest_level_of_the_rotated_rows)
{
    static const uint32_t groups[] = {16, 32, 64, 128}, dims[] = {16, 64, 80, 96, 128};
    for (int d = 0; d < 5; d++) {
        fx_t f;
        fx_open(&f, fx_model(1, 4, 2, dims[d]), 1, 64, 40);
        for (int b = 0; b < N_BITS; b++)
            for (int g = 0; g < 4; g++) {
                char text[64];
                if (dims[d] % VC_MIN(groups[g], dims[d]) != 0)
                    continue; /* refused: see a_head_that_groups_do_not_divide_is_refused */
                for (int center = 0; center < 2; center++) {
                    snprintf(text, sizeof(text), "rot:bits=%u,group=%u,fit=range,center=%s", all_bits[b], groups[g],
                             center ? "yes" : "no");
                    expect_record(&f, text);
                }
            }
        fx_close(&f);
    }
}

Test(rot, a_head_that_groups_do_not_divide_is_refused)
{
    static const uint32_t dims[] = {80, 24, 512};
    for (int d = 0; d < 3; d++) {
        fx_t f;
        fx_open(&f, fx_model(1, 1, 1, dims[d]), 1, 64, 41);
        node_spec_t spec = fx_spec("rot:group=32");
        fx_records_t r = {0};
        vc_err_t err = {0};
        char dim[12];
        snprintf(dim, sizeof(dim), "%u", dims[d]);
        cr_assert_eq(node_compress(&spec, &f.in, fx_keep, &r, &err), VC_ERR_UNSUPPORTED);
        cr_assert_not_null(strstr(err.msg, dim));
        cr_assert_eq(r.n, 0);
        fx_close(&f);
    }
}

/* The row (c, 0, 0, ...) rotates to a constant, zeros to zeros: scale zero, codes zero, and the value itself. */
Test(rot, a_constant_group_has_scale_zero_and_decodes_to_its_value)
{
    for (int b = 0; b < N_BITS; b++) {
        fx_t f;
        fx_open(&f, fx_model(1, 1, 1, 64), 1, 64, 42);
        uint16_t *k = node_page_k(node_kv_page_at(&f.kv, 0), 0, 0), *v = node_page_v(node_kv_page_at(&f.kv, 0), 0, 0);
        memset(k, 0, 64 * NODE_TILE * 2);
        memset(v, 0, 64 * NODE_TILE * 2);
        for (uint32_t t = 0; t < NODE_TILE; t += 2)
            k[t] = node_f16_from_f32(3.0f);
        char text[64];
        snprintf(text, sizeof(text), "rot:bits=%u,center=no", all_bits[b]);
        fx_records_t r = {0};
        fx_compress(text, &f.in, &r);
        uint32_t length;
        matrix_t m = matrix_at(part_of(&r, 0, 0, &length), 64, 64, all_bits[b]);
        for (uint32_t t = 0; t < NODE_TILE; t++) {
            cr_assert_eq(param_at(m.scales, &m, t, 0), 0.0);
            cr_assert_eq(param_at(m.mins, &m, t, 0), t % 2 ? 0.0 : 0.375);
            for (uint32_t c = 0; c < 64; c++)
                cr_assert_eq(code_at(&m, t, c), 0);
        }
        node_body_put(fx_body(text, &f.model, &r, 1));
        fx_records_free(&r);
        fx_close(&f);
    }
}

/* Sums of a head of large numbers leave f16: parameters saturate, and the record is still one that a loader takes. */
Test(rot, the_largest_numbers_saturate_and_are_loaded)
{
    for (int i = 0; i < 2 * N_BITS; i++) {
        const uint32_t bits = all_bits[i / 2];
        fx_t f;
        fx_open(&f, fx_model(1, 1, 1, 64), 1, 64, 43);
        uint16_t *k = node_page_k(node_kv_page_at(&f.kv, 0), 0, 0);
        for (uint32_t n = 0; n < 64 * NODE_TILE; n++)
            k[n] = n % 3 ? 0x7bff : 0xfbff;
        char text[64];
        snprintf(text, sizeof(text), "rot:bits=%u,center=%s", bits, i % 2 ? "yes" : "no");
        fx_records_t r = {0};
        fx_compress(text, &f.in, &r);
        node_body_put(fx_body(text, &f.model, &r, 1));
        fx_records_free(&r);
        fx_close(&f);
    }
}

/* Sum of squared errors of all rows of a copy, in the rotated space. */
static double total_error(const fx_t *f, const char *text)
{
    node_spec_t spec = fx_spec(text);
    const uint32_t dim = f->model.head_dim;
    double *x = vc_calloc((size_t)NODE_TILE * dim, sizeof(*x)), mean[NODE_HEAD_DIM_MAX], sum = 0;
    fx_records_t r = {0};
    fx_compress(text, &f->in, &r);
    uint32_t length;
    const uint8_t *at = part_of(&r, 0, 0, &length);
    for (uint32_t i = 0; i < 2 * f->model.n_kv_head; i++) {
        page_rows(node_kv_page_at(&f->kv, 0), 0, i / 2, dim, i % 2, x);
        if (i % 2 == 0) {
            at = mean_at(at, &spec, dim, mean);
            take_mean(x, dim, mean);
        }
        matrix_t m = matrix_at(at, dim, spec.group, spec.bits);
        for (uint32_t t = 0; t < NODE_TILE; t++) {
            hadamard(x + t * dim, dim);
            for (uint32_t c = 0; c < dim; c++) {
                double got = code_at(&m, t, c) * param_at(m.scales, &m, t, c) + param_at(m.mins, &m, t, c);
                sum += (got - x[t * dim + c]) * (got - x[t * dim + c]);
            }
        }
        at = m.end;
    }
    fx_records_free(&r);
    vc_free(x);
    return sum;
}

/* Cutting the outermost numbers pays where levels are few, and is left alone where it does not pay. */
Test(rot, a_fitted_range_has_less_error_the_fewer_the_bits)
{
    static const double at_most[N_BITS] = {0.75, 0.90, 0.97, 1.0}; /* of the whole range's */
    fx_t f;
    fx_open(&f, fx_model(1, 4, 2, 64), 1, 64, 44);
    for (int b = 0; b < N_BITS; b++) {
        char text[2][64];
        for (int i = 0; i < 2; i++)
            snprintf(text[i], sizeof(text[i]), "rot:bits=%u,fit=%s", all_bits[b], i ? "error" : "range");
        double range = total_error(&f, text[0]), fitted = total_error(&f, text[1]);
        cr_assert(fitted <= at_most[b] * range, "%u bits: %g of the error", all_bits[b], fitted / range);
        cr_assert_gt(fitted, 0);
    }
    fx_close(&f);
}

/* Every channel with a constant of its own, as keys of real models have: the codes are of the rest alone. */
Test(rot, keys_around_a_constant_lose_no_more_than_keys_around_zero)
{
    fx_t f;
    fx_open(&f, fx_model(1, 4, 2, 64), 1, 64, 45);
    double around_zero = total_error(&f, "rot:bits=4");
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t c = 0; c < 64; c++)
            for (uint32_t t = 0; t < NODE_TILE; t++) {
                uint16_t *k = node_page_k(node_kv_page_at(&f.kv, 0), 0, h) + c * NODE_TILE + t;
                *k = node_f16_from_f32(node_f32_from_f16(*k) + (float)(8.0 * golden_u(11, c)));
            }
    cr_assert_lt(total_error(&f, "rot:bits=4"), 1.05 * around_zero);
    cr_assert_gt(total_error(&f, "rot:bits=4,center=no"), 4.0 * around_zero);
    fx_close(&f);
}

/* ---- the vector versions ---- */

typedef struct quantised {
    uint16_t means[128];
    uint8_t codes[128 * NODE_TILE];
    uint16_t scales[8 * NODE_TILE], mins[8 * NODE_TILE];
} quantised_t;

static void same_on_every_isa(const uint16_t *x, const char *what)
{
    (void)what; /* the plain runner drops messages */
    static const uint32_t dims[] = {16, 64, 80, 128}, groups[] = {16, 32, 64, 128};
    static quantised_t want, got;
    for (int i = 0; i < 16; i++)
        for (int g = 0; g < 4; g++)
            for (int b = 0; b < N_BITS && dims[i / 4] % groups[g] == 0; b++) {
                const uint32_t dim = dims[i / 4];
                const bool fit = i % 2, center = i / 2 % 2;
                memset(&want, 0xa5, sizeof(want));
                node_rot_quantise_scalar(x, dim, groups[g], all_bits[b], fit, center ? want.means : NULL, want.codes,
                                         want.scales, want.mins);
                for (node_ops_level_t level = NODE_OPS_AVX2; level <= NODE_OPS_AVX512; level++) {
                    node_rot_quantise_fn fn = node_rot_quantise(level);
                    if (fn == NULL)
                        continue;
                    memset(&got, 0xa5, sizeof(got));
                    fn(x, dim, groups[g], all_bits[b], fit, center ? got.means : NULL, got.codes, got.scales, got.mins);
                    cr_assert(memcmp(&want, &got, sizeof(want)) == 0, "%s: level %d, %u bits, %u channels by %u", what,
                              (int)level, all_bits[b], dim, groups[g]);
                }
            }
}

Test(rot, every_isa_quantises_to_the_same_bits)
{
    static uint16_t x[128 * NODE_TILE];
    static const uint16_t hard[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x7bff, 0xfbff, 0x3c00, 0xbc00, 0x03ff, 0x0400};
    for (uint32_t seed = 0; seed < 8; seed++) {
        for (uint32_t i = 0; i < 128 * NODE_TILE; i++) {
            x[i] = (uint16_t)((i + seed * 8192u) * 40503u);
            x[i] = (x[i] & 0x7c00) == 0x7c00 ? 0x8000 : x[i];
        }
        same_on_every_isa(x, "every pattern");
    }
    for (uint32_t i = 0; i < 128 * NODE_TILE; i++)
        x[i] = node_f16_from_f32((float)golden_u(5, i));
    same_on_every_isa(x, "one magnitude");
    for (uint32_t i = 0; i < 128 * NODE_TILE; i++)
        x[i] = golden_u(6, i) < 0 ? 0x8000 : 0x0000;
    same_on_every_isa(x, "zeros");
    for (uint32_t i = 0; i < 128 * NODE_TILE; i++)
        x[i] = hard[(uint32_t)(5.0 + 5.0 * golden_u(7, i))];
    same_on_every_isa(x, "extremes");
}

Test(rot, packed_codes_come_back_at_every_width)
{
    for (int b = 0; b < N_BITS; b++) {
        uint8_t codes[128], packed[128], back[128];
        for (uint32_t i = 0; i < 128; i++)
            codes[i] = (uint8_t)((i * 89u + 7u) & ((1u << all_bits[b]) - 1u));
        node_rot_pack(packed, codes, 128, all_bits[b]);
        node_rot_unpack(back, packed, 128, all_bits[b]);
        cr_assert(memcmp(codes, back, sizeof(codes)) == 0, "%u bits", all_bits[b]);
        const matrix_t m = {128, 128, all_bits[b], packed, NULL, NULL, NULL};
        for (uint32_t i = 0; i < 128; i++)
            cr_assert_eq(code_at(&m, 0, i), codes[i]);
    }
}

/* ---- damage ---- */

static void expect_refused(const fx_t *f, const fx_records_t *r, uint32_t at, uint16_t value, const char *what)
{
    (void)what; /* the plain runner drops messages */
    vc_kvrec_head_t head;
    uint32_t length;
    node_spec_t spec = fx_spec("rot:bits=4,group=32");
    const uint8_t *whole = part_of(r, 0, 0, &length);
    cr_assert_eq(vc_kvrec_check(r->data[0], r->bytes[0], &head, NULL), VC_OK);
    uint8_t *part = vc_memdup(whole, length);
    part[at] = (uint8_t)value;
    part[at + 1] = (uint8_t)(value >> 8);
    node_body_builder_t *b;
    cr_assert_eq(node_body_begin(&spec, &f->model, 1, &b, NULL), VC_OK);
    cr_assert_eq(spec.ops->decode(&spec, &head, 0, part, length, b, NULL), VC_ERR_CORRUPT, "%s", what);
    node_body_abort(b);
    vc_free(part);
}

Test(rot, parameters_that_cannot_be_are_refused)
{
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 64), 1, 64, 84);
    fx_records_t r = {0};
    fx_compress("rot:bits=4,group=32", &f.in, &r);
    uint32_t length;
    const uint8_t *part = part_of(&r, 0, 0, &length);
    matrix_t k = matrix_at(part + 2 * 64, 64, 32, 4), v = matrix_at(k.end, 64, 32, 4);
    expect_refused(&f, &r, 0, 0x7c00, "infinite mean");
    expect_refused(&f, &r, 2 * 63, 0xfe00, "last mean not a number");
    expect_refused(&f, &r, (uint32_t)(k.scales - part), 0x7c00, "infinite scale");
    expect_refused(&f, &r, (uint32_t)(k.scales - part) + 2, 0x7e00, "scale not a number");
    expect_refused(&f, &r, (uint32_t)(k.scales - part) + 254, 0xbc00, "negative scale");
    expect_refused(&f, &r, (uint32_t)(k.scales - part), 0x8000, "scale of minus zero");
    expect_refused(&f, &r, (uint32_t)(k.scales - part), 0x0000, "zero scale with codes");
    expect_refused(&f, &r, (uint32_t)(k.mins - part), 0xfc00, "infinite minimum");
    expect_refused(&f, &r, (uint32_t)(v.scales - part), 0x7c00, "infinite scale of V");
    expect_refused(&f, &r, (uint32_t)(v.mins - part) + 254, 0x7fff, "last minimum of V not a number");
    expect_refused(&f, &r, length - 4, 1, "exact rows that are not there");
    fx_records_free(&r);
    fx_close(&f);
}

/* What a drafter takes in full: the block of the sinks and the last 64 tokens, unless it is told none. */
Test(rot, sinks_and_the_last_tokens_are_full_records_business)
{
    node_spec_t spec = fx_spec("rot:bits=4");
    cr_assert_eq(spec.ops->sink_blocks(&spec), 1);
    cr_assert_eq(spec.ops->window_tokens(&spec), NODE_TILE);
    spec = fx_spec("rot:bits=4,residual=0");
    cr_assert_eq(spec.ops->sink_blocks(&spec), 0);
    cr_assert_eq(spec.ops->window_tokens(&spec), 0);
}
