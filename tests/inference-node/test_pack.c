/*
 * Kept rows in coded tiles: what was packed is what was kept, in order, and attention over partly filled tiles sees the
 * rows that there are and no other. The rows are rot's, handed over by a decoder of this suite that keeps some of them.
 */
#include "coded_fixture.h"

/* Any choice will do; heads and blocks differ, some keep nothing, some everything. */
static uint64_t kept_of(uint32_t block, uint32_t i)
{
    uint64_t x = (block * 37ull + i + 1) * 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    if (x % 7 == 0)
        return x % 2 ? 0 : UINT64_MAX;
    return x & (x >> 17 | x << 47);
}

/* Rows `kept` of one matrix of rot's payload, as node_body_put_coded_rows takes them. */
static void take_rows(const matrix_t *m, uint64_t kept, uint8_t *buf, node_coded_rows_t *rows)
{
    const uint32_t n = (uint32_t)__builtin_popcountll(kept), code_bytes = m->dim * m->bits / 8,
                   param_bytes = m->dim / m->group * 2;
    uint8_t *codes = buf, *scales = codes + (size_t)n * code_bytes, *mins = scales + (size_t)n * param_bytes;
    *rows = (node_coded_rows_t){codes, scales, mins};
    for (uint64_t left = kept; left; left &= left - 1) {
        const size_t r = (size_t)__builtin_ctzll(left);
        memcpy(codes, m->codes + r * code_bytes, code_bytes);
        memcpy(scales, m->scales + r * param_bytes, param_bytes);
        memcpy(mins, m->mins + r * param_bytes, param_bytes);
        codes += code_bytes;
        scales += param_bytes;
        mins += param_bytes;
    }
}

static vc_status_t decode_some(const node_spec_t *spec, const vc_kvrec_head_t *head, uint32_t layer, const void *part,
                               uint32_t length, node_body_builder_t *builder, vc_err_t *err)
{
    static uint8_t buf[2][NODE_TILE * (128 + 128 / 16 * 4)];
    const uint32_t n_head = head->shape.n_kv_head, dim = head->shape.head_dim;
    vc_status_t st = VC_OK;
    for (uint32_t h = 0; st == VC_OK && h < n_head; h++) {
        const uint8_t *at = (const uint8_t *)part + (size_t)h * ((length - 4) / n_head);
        matrix_t k = matrix_at(at, dim, spec->group, spec->bits), v = matrix_at(k.end, dim, spec->group, spec->bits);
        uint64_t kept = kept_of(head->block_index, layer * n_head + h);
        node_coded_rows_t rows[2];
        node_coded_form_t form;
        node_coded_form_init(&form, spec->bits, dim, k.group);
        take_rows(&k, kept, buf[0], &rows[0]);
        take_rows(&v, kept, buf[1], &rows[1]);
        st = node_body_put_coded_rows(builder, head->block_index, layer, h, kept, &form, &rows[0], &rows[1], err);
    }
    return st;
}

/* The records of `text`, of which decode_some keeps a part; block `exact` is a full page, UINT32_MAX for none. */
static node_body_t *packed_body(const fx_t *f, const char *text, const fx_records_t *r, uint32_t exact)
{
    node_spec_t spec = fx_spec(text);
    node_codec_ops_t ops = *spec.ops;
    node_body_builder_t *b;
    node_body_t *body = NULL;
    vc_err_t err = {0};
    ops.decode = decode_some;
    spec.ops = &ops;
    cr_assert_eq(node_body_begin(&spec, &f->model, r->n, &b, &err), VC_OK, "%s", err.msg);
    for (uint32_t i = 0; i < r->n; i++)
        cr_assert_eq(node_body_add_record(b, r->data[i], r->bytes[i], &err), VC_OK, "%s", err.msg);
    if (exact < r->n)
        cr_assert_eq(node_body_add_page(b, exact, node_kv_page_at(&f->kv, exact)), VC_OK);
    cr_assert_eq(node_body_finish(b, &body, &err), VC_OK, "%s", err.msg);
    return body;
}

static void expect_row(const node_coded_form_t *form, const uint8_t *got, uint32_t row, const uint8_t *want, uint32_t t)
{
    for (uint32_t c = 0; c < form->dim; c++) {
        cr_assert_eq(tile_k(form, got, row, c), tile_k(form, want, t, c));
        cr_assert_eq(tile_v(form, got, row, c), tile_v(form, want, t, c));
        cr_assert(tile_k_value(form, got, row, c) == tile_k_value(form, want, t, c));
        cr_assert(tile_v_value(form, got, row, c) == tile_v_value(form, want, t, c));
    }
}

static void expect_empty(const node_coded_form_t *form, const uint8_t *tile, uint32_t row)
{
    for (uint32_t c = 0; c < form->dim; c++) {
        cr_assert(tile_k(form, tile, row, c) == 0 && tile_v(form, tile, row, c) == 0, "a pad is not zero");
        cr_assert(tile_k_value(form, tile, row, c) == 0 && tile_v_value(form, tile, row, c) == 0);
    }
}

/* One run of blocks: dense tiles that hold the rows of `whole` which were kept, and zeros behind them. */
static void expect_run(const node_body_t *body, const node_body_t *whole, uint32_t i, uint32_t *tile_p, uint32_t first,
                       uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t b = first; b < end; b++)
        for (uint64_t left = kept_of(b, i); left; left &= left - 1, n++)
            expect_row(&body->form, body->tiles[i][*tile_p + n / NODE_TILE].codes, n % NODE_TILE,
                       whole->tiles[i][b].codes, (uint32_t)__builtin_ctzll(left));
    for (uint32_t done = 0; done < n; done += NODE_TILE, ++*tile_p) {
        const node_tile_t *tile = &body->tiles[i][*tile_p];
        cr_assert_eq(tile->n_rows, VC_MIN(NODE_TILE, n - done));
        for (uint32_t row = tile->n_rows; row < NODE_TILE; row++)
            expect_empty(&body->form, tile->codes, row);
    }
}

Test(pack, coded_rows_are_packed_densely_in_ascending_position)
{
    enum { N = 9, EXACT = 4 };
    for (int b = 0; b < N_BITS; b++)
        for (int pass = 0; pass < 2; pass++) {
            fx_t f;
            char text[64];
            fx_open(&f, fx_model(2, 4, 2, b % 2 ? 80 : 64), N, 64, 160);
            snprintf(text, sizeof(text), "rot:bits=%u,group=16,center=no", all_bits[b]);
            fx_records_t r = {0};
            fx_compress(text, &f.in, &r);
            node_body_t *whole = fx_body(text, &f.model, &r, N);
            node_body_t *body = packed_body(&f, text, &r, pass ? EXACT : UINT32_MAX);
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t tile = 0;
                expect_run(body, whole, i, &tile, 0, pass ? EXACT : N);
                if (pass) {
                    cr_assert(body->tiles[i][tile++].k == node_page_k(node_kv_page_at(&f.kv, EXACT), i / 2, i % 2));
                    expect_run(body, whole, i, &tile, EXACT + 1, N);
                }
                cr_assert_eq(body->n_tiles[i], tile);
            }
            node_body_put(whole);
            node_body_put(body);
            fx_records_free(&r);
            fx_close(&f);
        }
}

/* What a query of a draft may see of a tile, down to nothing. */
static uint32_t some_rows(uint32_t query, uint32_t tile) { return (query * 29 + tile * 13) % (NODE_TILE + 1); }

static void expect_attention(const fx_t *f, const char *text, const fx_records_t *r, uint32_t exact)
{
    enum { N_Q = 5 };
    static _Alignas(64) float q[N_Q * 128];
    static attended_t want, got;
    const uint32_t dim = f->model.head_dim;
    const node_ops_t *list[4] = {node_ops_get(NODE_OPS_AVX2), node_ops_get(NODE_OPS_AVX512),
                                 node_ops_get(NODE_OPS_AVX2) ? &node_ops_avx2 : NULL,
                                 node_ops_get(NODE_OPS_AVX512) ? &node_ops_avx512 : NULL};
    node_body_t *body = packed_body(f, text, r, exact);
    double *k = calloc((size_t)body->n_tokens * dim, sizeof(*k)), *v = calloc((size_t)body->n_tokens * dim, sizeof(*v));
    double off = 0, all = 0;
    made_up_queries(q, N_Q, dim, 16.0);
    for (uint32_t h = 0; h < f->model.n_layer * f->model.n_kv_head; h++) {
        attend_codes(&node_ops_scalar, body, h, N_Q, q, &want);
        const uint32_t n = body_rows(body, h, k, v);
        for (uint32_t i = 0; i < N_Q; i++) {
            double exactly[128];
            attend_rows(k, v, n, dim, q + (size_t)i * dim, exactly);
            for (uint32_t c = 0; c < dim; c++) {
                double d = want.o[i * dim + c] / want.l[i] - exactly[c];
                off += d * d;
                all += exactly[c] * exactly[c];
            }
        }
        for (int partial = 0; partial < 2; partial++) {
            attend_tiles(&node_ops_scalar, body, h, N_Q, q, partial ? some_rows : NULL, &want);
            for (int i = 0; i < 4; i++) {
                if (list[i] == NULL)
                    continue;
                attend_tiles(list[i], body, h, N_Q, q, partial ? some_rows : NULL, &got);
                cr_assert(memcmp(&want, &got, sizeof(want)) == 0, "%s on %s", text, list[i]->name);
            }
        }
    }
    cr_assert(sqrt(off / all) < 0.04, "%s, head of %u: error %g", text, dim, sqrt(off / all));
    free(k);
    free(v);
    node_body_put(body);
}

/* 1,280 tokens, half of them kept or fewer, alone and around an exact page; every table alike. */
Test(pack, attention_over_kept_codes_sees_the_kept_rows_and_no_other)
{
    static const uint32_t dims[] = {16, 64, 80, 128};
    for (int d = 0; d < 4; d++) {
        fx_t f;
        fx_open(&f, fx_model(1, 2, 2, dims[d]), 20, 64, 161);
        for (int b = 0; b < N_BITS; b++) {
            char text[64];
            snprintf(text, sizeof(text), "rot:bits=%u,group=16,center=no", all_bits[b]);
            fx_records_t r = {0};
            fx_compress(text, &f.in, &r);
            expect_attention(&f, text, &r, UINT32_MAX);
            expect_attention(&f, text, &r, 0);
            fx_records_free(&r);
        }
        fx_close(&f);
    }
}

/* A query that sees no row of a tile keeps its state, whatever the scores of the tile would be. */
Test(pack, a_tile_that_a_query_does_not_see_leaves_its_state)
{
    static _Alignas(64) float q[3 * 64], p[3 * NODE_TILE], m[3], l[3], o[3 * 64];
    static node_coded_query_t coded[3];
    static const char *const texts[] = {"rot:bits=4", "kivi:bits=4"};
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 64), 1, 64, 162);
    made_up_queries(q, 3, 64, 16.0);
    for (int s = 0; s < 2; s++) {
        fx_records_t r = {0};
        fx_compress(texts[s], &f.in, &r);
        node_body_t *body = fx_body(texts[s], &f.model, &r, 1);
        for (node_ops_level_t level = NODE_OPS_SCALAR; level <= NODE_OPS_AVX512 && node_ops_get(level); level++) {
            node_attn_t a = {.n_q = 3, .head_dim = 64, .q = q, .m = m, .l = l, .o = o, .p = p};
            for (uint32_t i = 0; i < 3; i++) {
                m[i] = 1.5f;
                l[i] = 2.5f;
                a.n_valid[i] = i == 1 ? NODE_TILE : 0;
                if (s == 0)
                    node_ops_get(level)->code_query(&body->form, q + i * 64, &coded[i]);
            }
            for (uint32_t c = 0; c < 3 * 64; c++)
                o[c] = 3.5f;
            node_ops_get(level)->attend_coded(&a, &body->form, coded, body->tiles[0][0].codes);
            for (uint32_t i = 0; i < 3; i += 2) {
                cr_assert(m[i] == 1.5f && l[i] == 2.5f);
                for (uint32_t c = 0; c < 64; c++)
                    cr_assert_eq(o[i * 64 + c], 3.5f);
            }
            cr_assert_neq(l[1], 2.5f);
        }
        node_body_put(body);
        fx_records_free(&r);
    }
    fx_close(&f);
}
