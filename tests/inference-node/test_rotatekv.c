/*
 * RotateKV's records: what they decode to, what is exact in them, what is refused, and equal bits on every ISA. Its
 * arithmetic against reference numbers is test_rotatekv_golden's.
 */
#include <math.h>

#include "codec_fixture.h"
#include "compress/rotatekv_int.h"
#include "vc/bytes.h"

static const uint32_t all_bits[] = {2, 3, 4};

/* The layer part of a block's record. */
static uint8_t *part_of(const fx_records_t *r, uint32_t block, uint32_t layer, uint32_t *length_p)
{
    vc_kvrec_head_t h;
    vc_kvrec_layer_t part;
    cr_assert_eq(vc_kvrec_check(r->data[block], r->bytes[block], &h, NULL), VC_OK);
    vc_kvrec_layer(&h, layer, &part);
    *length_p = part.length;
    return r->data[block] + part.offset;
}

static node_body_t *body_of(const node_spec_t *spec, const node_model_info_t *m, const fx_records_t *r,
                            node_load_t load)
{
    node_body_builder_t *b;
    node_body_t *body = NULL;
    vc_err_t err = {0};
    cr_assert_eq(node_body_begin(spec, m, r->n, &b, &err), VC_OK, "%s", err.msg);
    node_body_set_load(b, load);
    for (uint32_t i = 0; i < r->n; i++)
        cr_assert_eq(node_body_add_record(b, r->data[i], r->bytes[i], &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_body_finish(b, &body, &err), VC_OK, "%s", err.msg);
    return body;
}

static double f16_at(const uint8_t *at) { return (double)node_f32_from_f16(vc_le16(at)); }
static double number(uint16_t x) { return (double)node_f32_from_f16(x); }

/* Sum of squares that half a level in every place of a token's row may amount to, from the scales of its groups. */
static double row_bound(const node_rkv_shape_t *s, const uint8_t *matrix, uint32_t t)
{
    double sum = 0;
    for (uint32_t g = 0; g < s->n_groups; g++) {
        double scale = f16_at(matrix + node_rkv_codes_bytes(s) + 2 * (size_t)(t * s->n_groups + g));
        sum += s->group * scale * scale / 4;
    }
    return sum;
}

static double row_error(const node_kv_t *kv, const node_body_t *body, uint32_t block, uint32_t layer, uint32_t t,
                        bool values)
{
    const uint32_t dim = kv->dims.head_dim;
    double sum = 0;
    for (uint32_t h = 0; h < kv->dims.n_kv_head; h++) {
        node_page_t *page = node_kv_page_at(kv, block);
        const node_tile_t *tile = &body->tiles[layer * kv->dims.n_kv_head + h][block];
        for (uint32_t c = 0; c < dim; c++) {
            double d =
                values ? number(node_page_v(page, layer, h)[t * dim + c]) - number(tile->v[t * dim + c])
                       : number(node_page_k(page, layer, h)[c * NODE_TILE + t]) - number(tile->k[c * NODE_TILE + t]);
            sum += d * d;
        }
    }
    return sum;
}

/* A rotation keeps lengths: what a row loses is what its codes lose, half a level in every place at most. */
static void expect_close(const fx_t *f, const char *text)
{
    node_spec_t spec = fx_spec(text);
    node_rkv_shape_t s;
    cr_assert_eq(node_rkv_shape(&spec, f->model.n_kv_head, f->model.head_dim, &s, NULL), VC_OK);
    fx_records_t r = {0};
    fx_compress(text, &f->in, &r);
    node_body_t *body = body_of(&spec, &f->model, &r, NODE_LOAD_PAGES);
    for (uint32_t b = 0; b < r.n; b++)
        for (uint32_t l = 0; l < f->model.n_layer; l++) {
            uint32_t length;
            const uint8_t *part = part_of(&r, b, l, &length);
            for (uint32_t i = 0; i < 2; i++)
                for (uint32_t t = 0; t < NODE_TILE; t++) {
                    double bound = 1.02 * row_bound(&s, part + i * node_rkv_matrix_bytes(&s), t) + 1e-4;
                    double off = row_error(&f->kv, body, b, l, t, i == 1);
                    cr_assert(off > 0 && off <= bound, "%s: block %u layer %u token %u %s: %g over %g", text, b, l, t,
                              i ? "V" : "K", off, bound);
                }
        }
    node_body_put(body);
    fx_records_free(&r);
}

Test(rotatekv, every_width_through_every_shape_decodes_to_half_a_level)
{
    static const struct {
        uint32_t heads, dim, group;
    } shapes[] = {{1, 16, 128}, {2, 64, 128}, {3, 64, 32}, {4, 32, 16}, {2, 80, 16}, {6, 96, 32}, {8, 128, 128}};
    for (size_t i = 0; i < VC_ARRAY_LEN(shapes); i++) {
        fx_t f;
        fx_open(&f, fx_model(1, shapes[i].heads, shapes[i].heads, shapes[i].dim), 2, 64, 30);
        for (size_t b = 0; b < VC_ARRAY_LEN(all_bits); b++) {
            char text[80];
            snprintf(text, sizeof(text), "rotatekv:bits=%u,group=%u,clip=1,sinks=0", all_bits[b], shapes[i].group);
            expect_close(&f, text);
        }
        fx_close(&f);
    }
}

/* Far more tokens than channels, and every one of them is there. */
Test(rotatekv, positions_beyond_the_head_size_are_kept)
{
    fx_t f;
    fx_open(&f, fx_model(2, 4, 2, 16), 20, 64, 31);
    expect_close(&f, "rotatekv:sinks=0");
    fx_close(&f);
}

Test(rotatekv, rotating_twice_gives_back_what_was_there)
{
    for (uint32_t block = 1; block <= NODE_RKV_BLOCK_MAX; block *= 2) {
        const uint32_t n = block < 16 ? 16 : block;
        float *x = vc_alloc_aligned(64, (size_t)n * NODE_TILE * sizeof(*x));
        float *y = vc_alloc_aligned(64, (size_t)n * NODE_TILE * sizeof(*y));
        golden_fill(block, 1000.0, x, (size_t)n * NODE_TILE);
        memcpy(y, x, (size_t)n * NODE_TILE * sizeof(*x));
        node_rkv_scalar.rotate(x, n, block);
        bool moved = memcmp(x, y, 64) != 0;
        cr_assert(moved == (block > 1), "%u", block);
        node_rkv_scalar.rotate(x, n, block);
        for (size_t i = 0; i < (size_t)n * NODE_TILE; i++)
            cr_assert(fabs((double)x[i] - (double)y[i]) < 2e-3, "block %u, number %zu", block, i);
        vc_free(x), vc_free(y);
    }
}

/* Plain attention of one query over rows; what an output that stays rotated would never pass. */
static void attend(const node_kv_t *kv, const node_body_t *body, const double *q, uint32_t head, double *out)
{
    const uint32_t dim = kv->dims.head_dim, n = kv->n_tokens;
    double *z = vc_calloc(n, sizeof(*z)), sum = 0;
    memset(out, 0, dim * sizeof(*out));
    for (uint32_t t = 0; t < n; t++) {
        node_page_t *page = node_kv_page_at(kv, t / NODE_TILE);
        const uint16_t *k = body ? body->tiles[head][t / NODE_TILE].k : node_page_k(page, 0, head);
        for (uint32_t c = 0; c < dim; c++)
            z[t] += q[c] * number(k[c * NODE_TILE + t % NODE_TILE]) / sqrt(dim);
        sum += z[t] = exp(z[t]);
    }
    for (uint32_t t = 0; t < n; t++) {
        node_page_t *page = node_kv_page_at(kv, t / NODE_TILE);
        const uint16_t *v = body ? body->tiles[head][t / NODE_TILE].v : node_page_v(page, 0, head);
        for (uint32_t c = 0; c < dim; c++)
            out[c] += z[t] / sum * number(v[t % NODE_TILE * dim + c]);
    }
    vc_free(z);
}

Test(rotatekv, attention_over_a_body_is_that_over_the_pages_and_not_a_rotated_one)
{
    fx_t f;
    fx_open(&f, fx_model(1, 4, 4, 64), 3, 64, 32);
    node_spec_t spec = fx_spec("rotatekv:sinks=0");
    fx_records_t r = {0};
    fx_compress("rotatekv:sinks=0", &f.in, &r);
    node_body_t *body = body_of(&spec, &f.model, &r, NODE_LOAD_PAGES);
    for (uint32_t h = 0; h < 4; h++) {
        double q[64], want[64], got[64], off = 0, size = 0;
        for (uint32_t c = 0; c < 64; c++)
            q[c] = 2.0 * golden_u(33 + h, c);
        attend(&f.kv, NULL, q, h, want);
        attend(&f.kv, body, q, h, got);
        for (uint32_t c = 0; c < 64; c++) {
            off += (want[c] - got[c]) * (want[c] - got[c]);
            size += want[c] * want[c];
        }
        cr_assert_lt(off, 0.2 * size, "head %u: %g of %g", h, off, size);
    }
    node_body_put(body);
    fx_records_free(&r);
    fx_close(&f);
}

/* One key at all positions: before RoPE it is one key, whose codes differ by the rounding of the page alone. */
static void expect_one_code(node_model_info_t model, uint32_t seed)
{
    fx_t f;
    fx_open(&f, model, 3, 64, seed);
    float pre[64], key[64], cos[32], sin[32];
    golden_fill(seed, 2.0, pre, 64);
    for (uint32_t t = 0; t < 3 * NODE_TILE; t++) {
        memcpy(key, pre, sizeof(key));
        node_rope_table(model.rope_inv_freq, 32, model.rope_mscale, t, cos, sin);
        node_ops_scalar.rope(key, cos, sin, 32);
        for (uint32_t c = 0; c < 64; c++)
            node_page_k(node_kv_page_at(&f.kv, t / NODE_TILE), 0, 0)[c * NODE_TILE + t % NODE_TILE] =
                node_f16_from_f32(key[c]);
    }
    fx_records_t r = {0};
    fx_compress("rotatekv:sinks=0", &f.in, &r);
    uint32_t length, off = 0;
    const uint8_t *first = part_of(&r, 0, 0, &length);
    const double scale = f16_at(first + NODE_TILE * 32);
    for (uint32_t t = 0; t < 3 * NODE_TILE; t++) {
        const uint8_t *part = part_of(&r, t / NODE_TILE, 0, &length), *codes = part + t % NODE_TILE * 32;
        cr_assert(fabs(f16_at(part + NODE_TILE * 32 + 2 * (t % NODE_TILE)) / scale - 1) < 0.01, "position %u", t);
        for (uint32_t c = 0; c < 64; c++) {
            int d = (codes[c / 2] >> c % 2 * 4 & 15) - (first[c / 2] >> c % 2 * 4 & 15);
            cr_assert(d >= -1 && d <= 1, "position %u channel %u", t, c);
            off += d != 0;
        }
    }
    cr_assert_lt(off, 3 * NODE_TILE * 64 / 50, "%u codes differ", off);
    fx_records_free(&r);
    fx_close(&f);
}

Test(rotatekv, a_key_has_one_code_at_every_position_under_plain_and_scaled_rope)
{
    static const node_rope_t kinds[] = {{.kind = NODE_ROPE_DEFAULT, .dims = 64, .theta = 10000, .factor = 1},
                                        {.kind = NODE_ROPE_LLAMA3,
                                         .dims = 64,
                                         .theta = 500000,
                                         .factor = 8,
                                         .low_freq_factor = 1,
                                         .high_freq_factor = 4,
                                         .original_context = 64},
                                        {.kind = NODE_ROPE_YARN,
                                         .dims = 64,
                                         .theta = 10000,
                                         .factor = 4,
                                         .attn_factor = 1,
                                         .beta_fast = 32,
                                         .beta_slow = 1,
                                         .original_context = 64}};
    for (size_t i = 0; i < VC_ARRAY_LEN(kinds); i++) {
        float freq[32];
        node_model_info_t model = fx_model(1, 1, 1, 64);
        node_rope_inv_freq(&kinds[i], freq, &model.rope_mscale);
        model.rope_inv_freq = freq;
        expect_one_code(model, 34 + (uint32_t)i);
    }
}

/* ---- biased keys, large numbers, constant groups ---- */

static double key_error(const fx_t *f, const node_spec_t *spec)
{
    fx_records_t r = {0};
    vc_err_t err = {0};
    cr_assert_eq(fx_try_compress(spec, &f->in, fx_keep, &r, &err), VC_OK, "%s", err.msg);
    node_body_t *body = body_of(spec, &f->model, &r, NODE_LOAD_PAGES);
    double sum = 0;
    for (uint32_t b = 0; b < r.n; b++)
        for (uint32_t t = 0; t < NODE_TILE; t++)
            sum += row_error(&f->kv, body, b, 0, t, false);
    sum /= (double)r.n * NODE_TILE * f->model.n_kv_head * f->model.head_dim;
    node_body_put(body);
    fx_records_free(&r);
    return sum;
}

/* Keys with large constant biases before RoPE: grouped by their means, they cost less than a third of what they cost in
 * the order of channels. */
Test(rotatekv, large_key_biases_are_absorbed_by_the_calibrated_order)
{
    fx_t f;
    fx_open(&f, fx_model(1, 4, 4, 64), 2, 64, 37);
    float pre[64], cos[32], sin[32];
    double *sums = vc_calloc(256, sizeof(*sums));
    float *x = vc_calloc((size_t)256 * NODE_TILE, sizeof(*x));
    node_prerope_t *p = node_prerope_create(&f.model);
    for (uint32_t t = 0; t < 2 * NODE_TILE; t++)
        for (uint32_t h = 0; h < 4; h++) {
            for (uint32_t c = 0; c < 64; c++)
                pre[c] = (float)(golden_u(38, (uint64_t)t * 256 + h * 64 + c) + 40.0 * golden_u(39, h * 64 + c));
            node_rope_table(f.model.rope_inv_freq, 32, 1.0f, t, cos, sin);
            node_ops_scalar.rope(pre, cos, sin, 32);
            for (uint32_t c = 0; c < 64; c++)
                node_page_k(node_kv_page_at(&f.kv, t / NODE_TILE), 0, h)[c * NODE_TILE + t % NODE_TILE] =
                    node_f16_from_f32(pre[c]);
        }
    for (uint32_t b = 0; b < 2; b++) {
        node_prerope_set_block(p, b);
        for (uint32_t h = 0; h < 4; h++)
            node_prerope_undo(p, node_page_k(node_kv_page_at(&f.kv, b), 0, h), x + h * 64 * NODE_TILE);
        node_rkv_scalar.rotate(x, 256, 256);
        node_rkv_sum(x, 256, sums);
    }
    uint16_t order[2][256];
    cr_assert(node_rkv_order(sums, 256, order[1]));
    double off[2];
    for (int i = 0; i < 2; i++) {
        uint8_t payload[512];
        for (uint32_t c = 0; c < 256; c++)
            vc_put_le16(payload + 2 * c, i ? order[1][c] : (uint16_t)c);
        const node_calib_t blob = {.method = "rotatekv", .payload = payload, .bytes = sizeof(payload)};
        node_spec_t spec;
        cr_assert_eq(node_spec_parse("rotatekv:sinks=0", &spec, NULL), VC_OK);
        node_spec_bind(&spec, &blob);
        off[i] = key_error(&f, &spec);
    }
    cr_assert_lt(off[1], 0.3 * off[0], "%g against %g", off[1], off[0]);
    node_prerope_destroy(p);
    vc_free(sums), vc_free(x);
    fx_close(&f);
}

Test(rotatekv, rows_of_any_norm_lose_the_same_share)
{
    double share[3];
    for (int i = 0; i < 3; i++) {
        fx_t f;
        fx_open(&f, fx_model(1, 2, 2, 64), 1, 64, 40);
        const float by = i == 0 ? 1.0f : i == 1 ? 1000.0f : 0.01f;
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t e = 0; e < 64 * NODE_TILE; e++) {
                uint16_t *k = node_page_k(node_kv_page_at(&f.kv, 0), 0, h);
                k[e] = node_f16_from_f32(by * node_f32_from_f16(k[e]));
            }
        node_spec_t spec = fx_spec("rotatekv:sinks=0");
        share[i] = key_error(&f, &spec) / (double)(by * by);
        fx_close(&f);
    }
    cr_assert(fabs(share[1] / share[0] - 1) < 0.02 && fabs(share[2] / share[0] - 1) < 0.02);
}

Test(rotatekv, the_quantiser_takes_groups_that_are_constant_of_one_sign_tiny_or_huge)
{
    const node_rkv_grid_t grid = {16, 15.0f, 15.0f, 0.8f, false};
    static const struct {
        float low, high, bound;
    } rows[] = {
        {0, 0, 0},          {3, 3, 1e-3f},       {-7, -7, 1e-3f},   {1e-7f, 1e-7f, 3e-8f},  {-4e-4f, -4e-4f, 3e-8f},
        {10, 10.5f, 0.02f}, {-200, -199, 0.04f}, {60000, 60001, 4}, {-3e-5f, 5e-5f, 6e-6f}, {-1e6f, 1e6f, 1e6f}};
    static float x[16 * NODE_TILE], y[16 * NODE_TILE], scales[NODE_TILE];
    static uint8_t codes[16 * NODE_TILE];
    static int16_t zeros[NODE_TILE];
    for (uint32_t t = 0; t < VC_ARRAY_LEN(rows); t++)
        for (uint32_t c = 0; c < 16; c++)
            x[c * NODE_TILE + t] = rows[t].low + (rows[t].high - rows[t].low) * (float)c / 15.0f;
    node_rkv_scalar.quantise(&grid, x, NULL, 16, codes, scales, zeros);
    node_rkv_scalar.restore(codes, scales, zeros, NULL, 16, 16, y);
    for (uint32_t t = 0; t < VC_ARRAY_LEN(rows); t++) {
        cr_assert_eq(scales[t], node_f32_from_f16(node_f16_from_f32(scales[t])), "row %u: a scale that f16 has", t);
        const float clipped = rows[t].low < 0 && rows[t].high > 0 ? 0.2f * fmaxf(-rows[t].low, rows[t].high) : 0;
        for (uint32_t c = 0; c < 16; c++)
            cr_assert(fabsf(y[c * NODE_TILE + t] - x[c * NODE_TILE + t]) <= rows[t].bound + clipped,
                      "row %u channel %u: %g, not %g", t, c, (double)y[c * NODE_TILE + t],
                      (double)x[c * NODE_TILE + t]);
    }
    cr_assert(scales[0] == 0.0f && zeros[0] == 0 && codes[0] == 0);
}

Test(rotatekv, all_isas_give_the_same_bits)
{
    enum { N = 192 };
    static float x[3][N * NODE_TILE], y[3][N * NODE_TILE], scales[3][N / 16 * NODE_TILE];
    static uint8_t codes[3][N * NODE_TILE];
    static int16_t zeros[3][N / 16 * NODE_TILE];
    static uint16_t half[3][N * NODE_TILE], order[N];
    for (uint32_t i = 0; i < N; i++)
        order[i] = (uint16_t)(i * 5 % N);
    for (uint32_t round = 0; round < 12; round++)
        for (int l = NODE_OPS_SCALAR; l <= NODE_OPS_AVX512; l++) {
            if (node_ops_get((node_ops_level_t)l) == NULL)
                continue;
            const node_rkv_ops_t *ops = node_rkv_ops((node_ops_level_t)l);
            const float levels = (float)((1u << all_bits[round % 3]) - 1);
            const node_rkv_grid_t grid = {round % 2 ? 16 : 64, levels, levels, round % 4 ? 1.0f : 0.8f, round > 8};
            golden_fill(round, round % 5 ? 3.0 : 5e4, x[l], N * NODE_TILE);
            for (uint32_t t = 0; t < N; t++) /* one token of zeros, one of one sign */
                x[l][t * NODE_TILE + 5] = 0, x[l][t * NODE_TILE + 6] = fabsf(x[l][t * NODE_TILE + 6]) + 2.0f;
            ops->rotate(x[l], N, round % 2 ? 64 : 1);
            ops->quantise(&grid, x[l], round % 3 ? order : NULL, N, codes[l], scales[l], zeros[l]);
            ops->restore(codes[l], scales[l], zeros[l], order, N, grid.group, y[l]);
            ops->narrow(y[l], N, half[l]);
            ops->widen(half[l], N, y[l]);
            cr_assert(memcmp(x[l], x[0], sizeof(x[0])) == 0, "rotate %u %d", round, l);
            cr_assert(memcmp(codes[l], codes[0], sizeof(codes[0])) == 0, "codes %u %d", round, l);
            cr_assert(memcmp(scales[l], scales[0], sizeof(scales[0])) == 0, "scales %u %d", round, l);
            cr_assert(memcmp(zeros[l], zeros[0], sizeof(zeros[0])) == 0, "zeros %u %d", round, l);
            cr_assert(memcmp(y[l], y[0], sizeof(y[0])) == 0, "numbers %u %d", round, l);
        }
}

/* ---- sinks ---- */

Test(rotatekv, the_first_of_equal_residuals_stays_and_rows_before_the_span_do_not_count)
{
    node_rkv_sinks_t *s = node_rkv_sinks_create(2, 16, 3);
    float r[16] = {0};
    r[3] = -9.0f;
    node_rkv_sinks_row(s, 1, 100, r);
    for (uint32_t t = 0; t < 5; t++) {
        r[3] = t % 2 ? 8.0f : -8.0f;
        node_rkv_sinks_row(s, 0, 128 + 70 * t, r);
        node_rkv_sinks_row(s, 1, 128 + 70 * t, r);
    }
    uint64_t rows[8] = {0}, none[8] = {0};
    node_rkv_sinks_rows(s, 0, 128, 8, rows);
    cr_assert(rows[0] == 1 && rows[1] == 1ull << 6 && rows[2] == 1ull << 12 && rows[3] == 0 && rows[4] == 0);
    node_rkv_sinks_rows(s, 1, 128, 2, none);
    cr_assert(none[0] == 1 && none[1] == 1ull << 6 && none[2] == 0, "position 100 is not in the span");
    node_rkv_sinks_free(s);
}

/* Rows that the watch found are the pages' own bits, their count is in the part, and nothing else is longer. */
Test(rotatekv, sinks_are_exact_rows_and_cost_what_they_say)
{
    fx_t f;
    fx_open(&f, fx_model(2, 4, 2, 32), 3, 64, 41);
    node_spec_t spec = fx_spec("rotatekv:sinks=7");
    node_watch_t w = fx_watch(&spec, &f, &f.in);
    cr_assert(w.kinds == NODE_CAP_RESID && w.first == 0 && w.end == 3 * NODE_TILE);
    node_compress_in_t in = f.in;
    in.watched = w.state;
    fx_records_t r = {0}, plain = {0};
    fx_compress("rotatekv:sinks=7", &in, &r);
    fx_compress("rotatekv:sinks=0", &f.in, &plain);
    node_body_t *body = body_of(&spec, &f.model, &r, NODE_LOAD_PAGES);
    for (uint32_t l = 0; l < 2; l++) {
        uint64_t rows[3] = {0};
        uint32_t total = 0;
        node_rkv_sinks_rows(w.state, l, 0, 3, rows);
        for (uint32_t b = 0; b < 3; b++) {
            uint32_t length, without;
            const uint8_t *part = part_of(&r, b, l, &length), *bare = part_of(&plain, b, l, &without);
            const uint32_t n = (uint32_t)__builtin_popcountll(rows[b]);
            cr_assert_eq(length, without + n * (1 + 2 * 2 * 32 * 2));
            cr_assert(memcmp(part, bare, without - 4) == 0, "the codes do not depend on the choice");
            cr_assert(vc_le32(part + without - 4) == n && vc_le32(bare + without - 4) == 0);
            for (uint32_t t = 0; t < NODE_TILE; t++)
                for (uint32_t v = 0; v < 2; v++)
                    cr_assert((row_error(&f.kv, body, b, l, t, v) == 0) == (rows[b] >> t & 1), "block %u token %u", b,
                              t);
            total += n;
        }
        cr_assert(total >= 1 && total <= 7);
    }
    const node_spec_t many = fx_spec("rotatekv:sinks=20"), none = fx_spec("rotatekv:sinks=0");
    const double more = node_spec_bits_per_element(&many, &f.model) - node_spec_bits_per_element(&none, &f.model);
    cr_assert(fabs(more - 12 * 16.0 / 2048) < 1e-9, "twelve rows of 2,048, in 16 bits a number: %g", more);
    spec.ops->watch_free(w.state);
    node_body_put(body);
    fx_records_free(&r), fx_records_free(&plain);
    fx_close(&f);
}

Test(rotatekv, sinks_without_a_watch_are_refused_and_no_sinks_need_none)
{
    fx_t f;
    fx_open(&f, fx_model(1, 2, 2, 32), 1, 64, 42);
    node_spec_t spec = fx_spec("rotatekv");
    fx_records_t r = {0};
    cr_assert_eq(node_compress(&spec, &f.in, fx_keep, &r, NULL), VC_ERR_INVALID);
    spec = fx_spec("rotatekv:sinks=0");
    cr_assert_eq(node_compress(&spec, &f.in, fx_keep, &r, NULL), VC_OK);
    fx_records_free(&r);
    fx_close(&f);
}

/* ---- loading ---- */

/* Codes are made of the same numbers that pages get: eight bits per number, exact rows among them. */
Test(rotatekv, tiles_of_codes_are_the_pages_in_eight_bits)
{
    fx_t f;
    fx_open(&f, fx_model(1, 4, 2, 64), 2, 64, 43);
    node_spec_t spec = fx_spec("rotatekv:bits=2");
    fx_records_t r = {0};
    fx_compress("rotatekv:bits=2", &f.in, &r);
    node_body_t *pages = body_of(&spec, &f.model, &r, NODE_LOAD_PAGES);
    node_body_t *codes = body_of(&spec, &f.model, &r, NODE_LOAD_CODES);
    cr_assert(pages->form.bits == 0 && codes->form.bits == 8 && codes->form.group == 64);
    _Alignas(64) float q[64], o[2][64], p[NODE_TILE], m[2], l[2];
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t b = 0; b < 2; b++) {
            node_coded_query_t coded;
            golden_fill(44 + h, 0.5, q, 64);
            for (int i = 0; i < 2; i++) {
                node_attn_t a = {.n_q = 1, .head_dim = 64, .q = q, .m = &m[i], .l = &l[i], .o = o[i], .p = p};
                a.n_valid[0] = NODE_TILE;
                m[i] = -INFINITY;
                l[i] = 0;
                memset(o[i], 0, sizeof(o[i]));
                const node_tile_t *tile = &(i ? codes : pages)->tiles[h][b];
                if (i == 0) {
                    node_ops_scalar.attend(&a, tile->k, tile->v);
                    continue;
                }
                cr_assert(tile->codes != NULL && tile->k == NULL && tile->n_rows == NODE_TILE);
                node_ops_scalar.code_query(&codes->form, q, &coded);
                node_ops_scalar.attend_coded(&a, &codes->form, &coded, tile->codes);
                node_ops_scalar.hadamard(o[i], 64);
            }
            for (uint32_t c = 0; c < 64; c++)
                cr_assert(fabsf(o[0][c] / l[0] - o[1][c] / l[1]) < 0.02f, "head %u block %u channel %u: %g, not %g", h,
                          b, c, (double)(o[1][c] / l[1]), (double)(o[0][c] / l[0]));
        }
    node_body_put(pages), node_body_put(codes);
    fx_records_free(&r);
    fx_close(&f);
}

static vc_status_t decode(const node_spec_t *spec, const fx_t *f, const vc_kvrec_head_t *head, const uint8_t *part,
                          uint32_t length)
{
    node_body_builder_t *b;
    cr_assert_eq(node_body_begin(spec, &f->model, 1, &b, NULL), VC_OK);
    vc_status_t st = spec->ops->decode(spec, head, 0, part, length, b, NULL);
    node_body_abort(b);
    return st;
}

Test(rotatekv, parameters_and_exact_rows_that_cannot_be_are_refused)
{
    fx_t f;
    fx_open(&f, fx_model(1, 2, 2, 32), 1, 64, 45);
    node_spec_t spec = fx_spec("rotatekv:sinks=9");
    fx_records_t r = {0};
    fx_compress("rotatekv:sinks=9", &f.in, &r);
    uint32_t length;
    uint8_t *inside = part_of(&r, 0, 0, &length), *part = malloc(length); /* of exactly its size */
    vc_kvrec_head_t head;
    cr_assert_eq(vc_kvrec_check(r.data[0], r.bytes[0], &head, NULL), VC_OK);
    memcpy(part, inside, length);
    const uint32_t codes = 64 * 64 / 2, params = 64 * 2 * 2, matrix = codes + 2 * params, count = 2 * matrix;
    const uint32_t row = 1 + 4 * 64, n = vc_le32(part + count);
    cr_assert(n >= 2 && length == count + 4 + n * row);
    const struct {
        uint32_t at;
        uint16_t value;
    } bad[] = {{codes, 0x7c00},
               {codes, 0x7e01},
               {codes, 0x8001},
               {codes, 0xbc00},
               {codes, 0},
               {matrix + codes, 0x7c00},
               {matrix + codes, 0},
               {count, (uint16_t)(n + 1)},
               {count, (uint16_t)(n - 1)},
               {count, 0},
               {count + 2, 1},
               {count + 5, 0x7c00},
               {length - 2, 0xfc00}};
    cr_assert_eq(decode(&spec, &f, &head, part, length), VC_OK);
    for (size_t i = 0; i < VC_ARRAY_LEN(bad); i++) {
        uint16_t before = vc_le16(part + bad[i].at);
        vc_put_le16(part + bad[i].at, bad[i].value);
        cr_assert_eq(decode(&spec, &f, &head, part, length), VC_ERR_CORRUPT, "number %zu", i);
        vc_put_le16(part + bad[i].at, before);
    }
    const uint8_t first = part[count + 4];
    part[count + 4] = part[count + 4 + row]; /* the same row twice */
    cr_assert_eq(decode(&spec, &f, &head, part, length), VC_ERR_CORRUPT);
    part[count + 4] = 64; /* beyond the block */
    cr_assert_eq(decode(&spec, &f, &head, part, length), VC_ERR_CORRUPT);
    part[count + 4] = first;
    cr_assert_eq(decode(&spec, &f, &head, part, length), VC_OK);
    free(part);
    fx_records_free(&r);
    fx_close(&f);
}
