/*
 * KIVI attended on its codes: tiles hold what the record says, the integer kernels against plain double arithmetic and
 * against each other bit for bit. What its pages decode to is in test_kivi.c.
 */
#include "coded_fixture.h"
#include "compress/kivi_int.h"

static const uint32_t kivi_bits[] = {2, 4, 8}, kivi_groups[] = {16, 32, 64};

/* Every number of a tile, rounded as the page is, is the page's. */
static void expect_pages(const fx_t *f, const char *text)
{
    fx_records_t r = {0};
    fx_compress(text, &f->in, &r);
    node_body_t *codes = fx_body(text, &f->model, &r, r.n);
    node_body_t *pages = fx_body_loaded(text, &f->model, &r, r.n, NODE_LOAD_PAGES);
    const node_coded_form_t *form = &codes->form;
    cr_assert(form->bits != 0 && form->key_tokens != 0 && pages->form.bits == 0);
    for (uint32_t b = 0; b < r.n; b++)
        for (uint32_t i = 0; i < f->model.n_layer * f->model.n_kv_head; i++) {
            const node_tile_t *tile = &codes->tiles[i][b], *page = &pages->tiles[i][b];
            cr_assert(tile->n_rows == NODE_TILE && tile->codes != NULL && tile->k == NULL && page->codes == NULL);
            for (uint32_t t = 0; t < NODE_TILE; t++)
                for (uint32_t c = 0; c < form->dim; c++) {
                    uint32_t at = t / form->key_tokens * form->dim + c;
                    float k = node_kivi_value(tile_k(form, tile->codes, t, c),
                                              node_f32_from_f16(vc_le16(tile->codes + form->k_scale + 2 * at)),
                                              node_f32_from_f16(vc_le16(tile->codes + form->k_min + 2 * at)));
                    float v = node_kivi_value(tile_v(form, tile->codes, t, c),
                                              tile_param(tile->codes + form->v_scale, form, t, c),
                                              tile_param(tile->codes + form->v_min, form, t, c));
                    cr_assert_eq(page->k[c * NODE_TILE + t], node_f16_from_f32(k), "%s K %u %u", text, t, c);
                    cr_assert_eq(page->v[t * form->dim + c], node_f16_from_f32(v), "%s V %u %u", text, t, c);
                }
        }
    cr_assert_eq(codes->bytes, (uint64_t)r.n * f->model.n_layer * f->model.n_kv_head * form->bytes);
    node_body_put(codes);
    node_body_put(pages);
    fx_records_free(&r);
}

static bool fits(uint32_t dim, uint32_t group) { return dim % VC_MIN(group, dim) == 0; }

Test(kivi_attend, a_tile_holds_the_codes_of_the_record)
{
    static const uint32_t dims[] = {16, 48, 64, 80, 128};
    for (int d = 0; d < 5; d++)
        for (int b = 0; b < 3; b++)
            for (int g = 0; g < 3; g++) {
                fx_t f;
                char text[64];
                if (!fits(dims[d], kivi_groups[g]))
                    continue;
                fx_open(&f, fx_model(2, 2, 2, dims[d]), 2, 64, 150);
                snprintf(text, sizeof(text), "kivi:bits=%u,group=%u", kivi_bits[b], kivi_groups[g]);
                expect_pages(&f, text);
                fx_close(&f);
            }
}

/* The geometry that coded tiles lack is attended as pages. */
Test(kivi_attend, a_head_too_narrow_for_codes_is_loaded_as_pages)
{
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 8), 2, 64, 151);
    fx_records_t r = {0};
    fx_compress("kivi:bits=4", &f.in, &r);
    node_body_t *body = fx_body("kivi:bits=4", &f.model, &r, 2);
    cr_assert(body->form.bits == 0 && body->n_tiles[0] == 2 && body->tiles[0][1].k != NULL);
    node_body_put(body);
    fx_records_free(&r);
    fx_close(&f);
}

/* 1,280 tokens over heads of 16 to 128: positions beyond the head size count like the others. Rounding the folded query
 * and the weights costs little beside what the codes have lost already. */
Test(kivi_attend, attention_over_codes_is_attention_over_what_they_stand_for)
{
    static const uint32_t dims[] = {16, 64, 80, 128};
    for (int d = 0; d < 4; d++) {
        fx_t f;
        fx_open(&f, fx_model(1, 2, 2, dims[d]), 20, 64, 152);
        for (int g = 0; g < 3; g++) {
            errors_t last = {1e9, 0};
            for (int b = 0; b < 3 && fits(dims[d], kivi_groups[g]); b++) {
                char text[64];
                snprintf(text, sizeof(text), "kivi:bits=%u,group=%u", kivi_bits[b], kivi_groups[g]);
                errors_t e = errors_of(&f, text, 16.0);
                cr_assert(e.coded < (kivi_bits[b] == 8 ? 0.002 : 0.04), "%s, head of %u: error %g", text, dims[d],
                          e.coded);
                cr_assert(e.full < last.full, "%s, head of %u: error %g", text, dims[d], e.full);
                last = e;
            }
        }
        fx_close(&f);
    }
}

/* Channels with a large constant and channels a hundred times the others share one step of the query. */
Test(kivi_attend, loud_and_biased_channels_do_not_drown_the_others)
{
    fx_t f;
    fx_open(&f, fx_model(1, 2, 2, 64), 6, 64, 153);
    errors_t plain = errors_of(&f, "kivi:bits=4", 16.0);
    for (uint32_t b = 0; b < 6; b++)
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t t = 0; t < NODE_TILE; t++) {
                uint16_t *k = node_page_k(node_kv_page_at(&f.kv, b), 0, h);
                k[7 * NODE_TILE + t] = node_f16_from_f32(node_f32_from_f16(k[7 * NODE_TILE + t]) + 24.0f);
                k[40 * NODE_TILE + t] = node_f16_from_f32(node_f32_from_f16(k[40 * NODE_TILE + t]) * 4.0f);
            }
    errors_t loud = errors_of(&f, "kivi:bits=4", 16.0);
    cr_assert(plain.coded < 0.02, "%g", plain.coded);
    cr_assert(loud.coded < 0.06, "%g", loud.coded);
    cr_assert(loud.full < 6 * plain.full, "%g after, %g before", loud.full, plain.full);
    fx_close(&f);
}

/* Every width, head size, group and number of queries; all four tables where the CPU has them. */
Test(kivi_attend, every_isa_attends_to_the_same_bits)
{
    static const uint32_t dims[] = {16, 48, 64, 80, 128};
    static _Alignas(64) float q[NODE_QUERY_MAX * 128];
    for (int d = 0; d < 5; d++) {
        fx_t f;
        fx_open(&f, fx_model(1, 1, 1, dims[d]), 3, 64, 154);
        made_up_queries(q, NODE_QUERY_MAX, dims[d], 6.0);
        for (int b = 0; b < 3; b++)
            for (int g = 0; g < 3 && fits(dims[d], kivi_groups[g]); g++) {
                char text[64];
                snprintf(text, sizeof(text), "kivi:bits=%u,group=%u", kivi_bits[b], kivi_groups[g]);
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

/* Groups without a scale stand for their minimum: everything is attended alike, and the answer is a number. */
Test(kivi_attend, nothing_to_scale_is_no_division_by_zero)
{
    static _Alignas(64) float q[2 * 64];
    static attended_t got;
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 64), 1, 64, 155);
    for (uint32_t i = 0; i < 64 * NODE_TILE; i++) {
        node_page_k(node_kv_page_at(&f.kv, 0), 0, 0)[i] = 0x3c00; /* 1 */
        node_page_v(node_kv_page_at(&f.kv, 0), 0, 0)[i] = 0x4000; /* 2 */
    }
    for (uint32_t c = 0; c < 64; c++)
        q[64 + c] = 0.125f;
    for (int b = 0; b < 3; b++) {
        char text[64];
        snprintf(text, sizeof(text), "kivi:bits=%u", kivi_bits[b]);
        fx_records_t r = {0};
        fx_compress(text, &f.in, &r);
        node_body_t *body = fx_body(text, &f.model, &r, 1);
        attend_codes(&node_ops_scalar, body, 0, 2, q, &got);
        cr_assert(got.m[0] == 0.0f && got.m[1] == 8.0f && got.l[0] == 64.0f && got.l[1] == 64.0f);
        for (uint32_t c = 0; c < 128; c++)
            cr_assert_eq(got.o[c], 128.0f);
        node_body_put(body);
        fx_records_free(&r);
    }
    fx_close(&f);
}

/* Exact first and last pages around codes: one walk over both forms. */
Test(kivi_attend, exact_pages_and_codes_are_attended_together)
{
    static _Alignas(64) float q[3 * 64];
    static attended_t got, other;
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 64), 5, 64, 156);
    node_spec_t spec = fx_spec("kivi:bits=4,residual=64");
    fx_records_t r = {0};
    fx_compress(spec.text, &f.in, &r);
    node_body_builder_t *b;
    node_body_t *body;
    cr_assert_eq(node_body_begin(&spec, &f.model, 5, &b, NULL), VC_OK);
    for (uint32_t i = 0; i < 5; i++)
        cr_assert_eq(node_body_add_record(b, r.data[i], r.bytes[i], NULL), VC_OK);
    for (uint32_t i = 0; i < 5; i += 4)
        cr_assert_eq(node_body_add_page(b, i, node_kv_page_at(&f.kv, i)), VC_OK);
    cr_assert_eq(node_body_finish(b, &body, NULL), VC_OK);
    cr_assert(body->tiles[0][0].codes == NULL && body->tiles[0][1].codes != NULL && body->tiles[0][4].codes == NULL);
    made_up_queries(q, 3, 64, 16.0);
    attend_tiles(&node_ops_scalar, body, 0, 3, q, NULL, &got);
    double *k = calloc(5 * NODE_TILE * 64, sizeof(*k)), *v = calloc(5 * NODE_TILE * 64, sizeof(*v)), want[64];
    cr_assert_eq(body_rows(body, 0, k, v), 5 * NODE_TILE);
    for (uint32_t i = 0; i < 3; i++) {
        attend_rows(k, v, 5 * NODE_TILE, 64, q + i * 64, want);
        for (uint32_t c = 0; c < 64; c++)
            cr_assert(fabs(got.o[i * 64 + c] / got.l[i] - want[c]) < 0.02, "query %u channel %u", i, c);
    }
    for (node_ops_level_t level = NODE_OPS_AVX2; level <= NODE_OPS_AVX512 && node_ops_get(level); level++) {
        attend_tiles(node_ops_get(level), body, 0, 3, q, NULL, &other);
        cr_assert(memcmp(&got, &other, sizeof(got)) == 0);
    }
    free(k);
    free(v);
    node_body_put(body);
    fx_records_free(&r);
    fx_close(&f);
}
