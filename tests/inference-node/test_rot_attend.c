/*
 * Attention over rot's codes: tiles hold what the record says, the integer kernels against plain double arithmetic, and
 * against each other bit for bit.
 */
#include "coded_fixture.h"

/* Saved = loaded: every code and parameter of the record is in the tile, none is changed. */
static void expect_tiles(const fx_t *f, const char *text)
{
    node_spec_t spec = fx_spec(text);
    fx_records_t r = {0};
    fx_compress(text, &f->in, &r);
    node_body_t *body = fx_body(text, &f->model, &r, r.n);
    const node_coded_form_t *form = &body->form;
    const uint32_t n_head = f->model.n_kv_head;
    cr_assert(form->bits == spec.bits && form->dim == f->model.head_dim);
    for (uint32_t b = 0; b < r.n; b++)
        for (uint32_t i = 0; i < f->model.n_layer * n_head; i++) {
            const node_tile_t *tile = &body->tiles[i][b];
            uint32_t length;
            const uint8_t *part = part_of(&r, b, i / n_head, &length);
            double mean[NODE_HEAD_DIM_MAX];
            part = mean_at(part + (size_t)(i % n_head) * ((length - 4) / n_head), &spec, form->dim, mean);
            for (uint32_t c = 0; c < form->dim; c++)
                cr_assert(tile_k_mean(form, tile->codes, c) == mean[c]);
            matrix_t k = matrix_at(part, form->dim, spec.group, spec.bits);
            matrix_t v = matrix_at(k.end, form->dim, spec.group, spec.bits);
            cr_assert(tile->n_rows == NODE_TILE && tile->codes != NULL && tile->k == NULL);
            for (uint32_t t = 0; t < NODE_TILE; t++)
                for (uint32_t c = 0; c < form->dim; c++) {
                    cr_assert_eq(tile_k(form, tile->codes, t, c), code_at(&k, t, c), "%s K %u %u", text, t, c);
                    cr_assert_eq(tile_v(form, tile->codes, t, c), code_at(&v, t, c), "%s V %u %u", text, t, c);
                    cr_assert(tile_param(tile->codes + form->k_scale, form, t, c) == param_at(k.scales, &k, t, c));
                    cr_assert(tile_param(tile->codes + form->k_min, form, t, c) == param_at(k.mins, &k, t, c));
                    cr_assert(tile_param(tile->codes + form->v_scale, form, t, c) == param_at(v.scales, &v, t, c));
                    cr_assert(tile_param(tile->codes + form->v_min, form, t, c) == param_at(v.mins, &v, t, c));
                }
        }
    cr_assert_eq(body->bytes, (uint64_t)r.n * f->model.n_layer * n_head * form->bytes);
    node_body_put(body);
    fx_records_free(&r);
}

Test(rot_attend, a_tile_holds_the_codes_of_the_record)
{
    static const uint32_t dims[] = {16, 32, 64, 80, 128};
    for (int d = 0; d < 5; d++)
        for (int b = 0; b < N_BITS; b++) {
            fx_t f;
            char text[64];
            fx_open(&f, fx_model(2, 4, 2, dims[d]), 2, 64, 50);
            for (int center = 0; center < 2; center++) {
                snprintf(text, sizeof(text), "rot:bits=%u,group=%u,center=%s", all_bits[b], dims[d] == 80 ? 16 : 32,
                         center ? "yes" : "no");
                expect_tiles(&f, text);
            }
            fx_close(&f);
        }
}

/* A body is its codes: no f16 copy of them anywhere. */
Test(rot_attend, a_body_takes_no_more_memory_than_its_record)
{
    fx_t f;
    fx_open(&f, fx_model(2, 4, 2, 64), 4, 64, 51);
    for (int b = 0; b < N_BITS; b++) {
        char text[64];
        snprintf(text, sizeof(text), "rot:bits=%u", all_bits[b]);
        node_spec_t spec = fx_spec(text);
        fx_records_t r = {0};
        fx_compress(text, &f.in, &r);
        node_body_t *body = fx_body(text, &f.model, &r, 4);
        double bits = 8.0 * (double)body->bytes / (4.0 * NODE_TILE * 2 * 2 * 64 * 2);
        cr_assert(fabs(bits - node_spec_bits_per_element(&spec, &f.model)) < 1e-9, "%s takes %g bits", text, bits);
        node_body_put(body);
        fx_records_free(&r);
    }
    fx_close(&f);
}

/* ---- attention over codes ---- */

/* 1,280 tokens over heads of 16 to 128: positions beyond the head size count like the others. Rounding the query and
 * the weights to 8 bits costs little beside what the codes have lost already. */
Test(rot_attend, attention_over_codes_is_attention_over_what_they_stand_for)
{
    static const uint32_t dims[] = {16, 64, 80, 128};
    for (int d = 0; d < 4; d++) {
        fx_t f;
        fx_open(&f, fx_model(1, 2, 2, dims[d]), 20, 64, 60);
        errors_t last = {1e9, 0};
        for (int b = 0; b < N_BITS; b++) {
            char text[64];
            snprintf(text, sizeof(text), "rot:bits=%u,group=16", all_bits[b]);
            errors_t e = errors_of(&f, text, 16.0);
            cr_assert(e.coded < 0.04, "%u bits, head of %u: error %g", all_bits[b], dims[d], e.coded);
            cr_assert(e.full < last.full, "%u bits, head of %u: error %g", all_bits[b], dims[d], e.full);
            last = e;
        }
        cr_assert(last.full < 0.04, "8 bits, head of %u: error %g", dims[d], last.full);
        fx_close(&f);
    }
}

/* A group as wide as a head of 48 or 80 channels is counted in full. */
Test(rot_attend, a_group_may_be_a_whole_head_that_is_no_power_of_two)
{
    static const uint32_t dims[] = {48, 80};
    for (int d = 0; d < 2; d++) {
        fx_t f;
        fx_open(&f, fx_model(1, 2, 2, dims[d]), 4, 64, 65);
        errors_t e = errors_of(&f, "rot:bits=4,group=128", 16.0);
        cr_assert(e.coded < 0.06 && e.full < 0.6, "head of %u: %g, %g", dims[d], e.coded, e.full);
        fx_close(&f);
    }
}

/* Keys of some models carry a large constant per channel. It must not eat the levels of what lies around it. */
Test(rot_attend, keys_with_a_large_bias_are_attended_as_keys_without)
{
    fx_t f;
    fx_open(&f, fx_model(1, 2, 2, 64), 6, 64, 61);
    errors_t without = errors_of(&f, "rot:bits=4,center=no", 16.0);
    for (uint32_t b = 0; b < 6; b++)
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t c = 5; c < 64; c += 29)
                for (uint32_t t = 0; t < NODE_TILE; t++) {
                    uint16_t *k = node_page_k(node_kv_page_at(&f.kv, b), 0, h) + c * NODE_TILE + t;
                    *k = node_f16_from_f32(node_f32_from_f16(*k) + 24.0f);
                }
    errors_t with = errors_of(&f, "rot:bits=4,center=no", 16.0), with8 = errors_of(&f, "rot:bits=8,center=no", 16.0);
    cr_assert(with.coded < 0.05, "4 bits: %g", with.coded);
    cr_assert(with8.full < 0.1, "8 bits: %g", with8.full);
    cr_assert(with.full < 4 * without.full, "%g with the bias, %g without", with.full, without.full);
    fx_close(&f);
}

/* A block's keys less their mean, and blocks with means of their own: softmax runs over all of them, so what a block's
 * scores get from its mean must be there, as large as it is. */
Test(rot_attend, every_block_adds_the_product_with_its_own_mean)
{
    fx_t f;
    fx_open(&f, fx_model(1, 2, 2, 64), 6, 64, 66);
    errors_t without = errors_of(&f, "rot:bits=4", 16.0);
    for (uint32_t b = 0; b < 6; b++)
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t c = 0; c < 64; c++)
                for (uint32_t t = 0; t < NODE_TILE; t++) {
                    uint16_t *k = node_page_k(node_kv_page_at(&f.kv, b), 0, h) + c * NODE_TILE + t;
                    *k = node_f16_from_f32(node_f32_from_f16(*k) + (float)golden_u(12 + b % 3, c));
                }
    errors_t with = errors_of(&f, "rot:bits=4", 16.0);
    cr_assert(with.coded < 0.05, "%g", with.coded);
    cr_assert(with.full < 2 * without.full, "%g with means, %g without", with.full, without.full);
    fx_close(&f);
}

/* The rotation alone changes nothing: twice is the identity, and products stay. */
Test(rot_attend, rotation_on_and_off_give_the_same_products)
{
    static const uint32_t dims[] = {16, 32, 64, 80, 96, 128, 256};
    for (node_ops_level_t level = NODE_OPS_SCALAR; level <= NODE_OPS_AVX512; level++)
        for (int d = 0; d < 7 && node_ops_get(level); d++) {
            _Alignas(64) float a[256], b[256], ra[256], rb[256];
            double plain = 0, rotated = 0, want[256], size = 0;
            golden_fill(70, 2.0, a, dims[d]);
            golden_fill(71, 2.0, b, dims[d]);
            memcpy(ra, a, sizeof(a));
            memcpy(rb, b, sizeof(b));
            node_ops_get(level)->hadamard(ra, dims[d]);
            node_ops_get(level)->hadamard(rb, dims[d]);
            for (uint32_t i = 0; i < dims[d]; i++) {
                plain += (double)a[i] * b[i];
                size += fabs((double)a[i] * b[i]);
                rotated += (double)ra[i] * rb[i];
                want[i] = a[i];
            }
            cr_assert(fabs(plain - rotated) < 1e-6 * size, "%u channels: %g and %g", dims[d], plain, rotated);
            hadamard(want, dims[d]);
            for (uint32_t i = 0; i < dims[d]; i++)
                cr_assert(fabs(want[i] - ra[i]) < 1e-5);
            node_ops_get(level)->hadamard(ra, dims[d]);
            for (uint32_t i = 0; i < dims[d]; i++)
                cr_assert(fabsf(ra[i] - a[i]) < 1e-5f);
        }
}

/* Every width, head size, group and number of queries; all four tables where the CPU has them. */
Test(rot_attend, every_isa_attends_to_the_same_bits)
{
    static const uint32_t dims[] = {16, 64, 80, 128}, groups[] = {16, 32, 64};
    static _Alignas(64) float q[NODE_QUERY_MAX * 128];
    for (int d = 0; d < 4; d++) {
        fx_t f;
        fx_open(&f, fx_model(1, 1, 1, dims[d]), 3, 64, 62);
        made_up_queries(q, NODE_QUERY_MAX, dims[d], 6.0);
        for (int b = 0; b < N_BITS; b++)
            for (int g = 0; g < 3; g++) {
                char text[64];
                if (dims[d] % VC_MIN(groups[g], dims[d]) != 0)
                    continue;
                snprintf(text, sizeof(text), "rot:bits=%u,group=%u,center=%s", all_bits[b], groups[g],
                         (d + g) % 2 ? "yes" : "no");
                fx_records_t r = {0};
                fx_compress(text, &f.in, &r);
                node_body_t *body = fx_body(text, &f.model, &r, 3);
                attend_alike_on_every_isa(body, dims[d], q, text);
                node_body_put(body);
                fx_records_free(&r);
            }
        fx_close(&f);
    }
}

/* A query of zeros and rows of zeros have no scale: everything is attended alike, and the answer is a number. */
Test(rot_attend, nothing_to_scale_is_no_division_by_zero)
{
    static _Alignas(64) float q[64];
    static attended_t got;
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 64), 1, 64, 63);
    memset(node_page_v(node_kv_page_at(&f.kv, 0), 0, 0), 0, 64 * NODE_TILE * 2);
    for (int b = 0; b < N_BITS; b++) {
        char text[64];
        snprintf(text, sizeof(text), "rot:bits=%u", all_bits[b]);
        fx_records_t r = {0};
        fx_compress(text, &f.in, &r);
        node_body_t *body = fx_body(text, &f.model, &r, 1);
        attend_codes(&node_ops_scalar, body, 0, 1, q, &got);
        cr_assert(got.m[0] == 0.0f && got.l[0] == 64.0f);
        for (uint32_t c = 0; c < 64; c++)
            cr_assert_eq(got.o[c], 0.0f);
        node_body_put(body);
        fx_records_free(&r);
    }
    fx_close(&f);
}
