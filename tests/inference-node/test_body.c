/*
 * Bodies: what attention walks over is exactly what the records and pages hold, in order, and nothing else is in it.
 */
#include "codec_fixture.h"

static bool tile_is_page(const node_tile_t *tile, node_page_t *page, uint32_t layer, uint32_t head, uint32_t dim)
{
    size_t bytes = (size_t)dim * NODE_TILE * 2;
    return tile->n_rows == NODE_TILE && memcmp(tile->k, node_page_k(page, layer, head), bytes) == 0 &&
           memcmp(tile->v, node_page_v(page, layer, head), bytes) == 0;
}

Test(body, keeping_everything_gives_the_pages_bit_for_bit)
{
    static const char *const texts[] = {"none",
                                        "snapkv:keep=1",
                                        "kvzap:keep=1",
                                        "kvzap:tau=-99",
                                        "kvzip:keep=1",
                                        "expected_attention:keep=1",
                                        "expected_attention:keep=1,budget=global"};
    for (size_t s = 0; s < VC_ARRAY_LEN(texts); s++) {
        fx_t f;
        fx_open(&f, fx_model(2, 4, 2, 32), 4, 64, 90);
        fx_records_t r = {0};
        fx_compress(texts[s], &f.in, &r);
        node_body_t *body = fx_body(texts[s], &f.model, &r, 4);
        for (uint32_t i = 0; i < 4; i++) {
            cr_assert_eq(body->n_tiles[i], 4);
            for (uint32_t t = 0; t < 4; t++)
                cr_assert(tile_is_page(&body->tiles[i][t], node_kv_page_at(&f.kv, t), i / 2, i % 2, 32));
            cr_assert_eq(node_body_n_dropped(body, i / 2, i % 2), 0);
        }
        node_body_put(body);
        fx_records_free(&r);
        fx_close(&f);
    }
}

/* Row by row: tile rows are the kept rows of the records in ascending position, and every other place is zero. */
static void expect_packed(const fx_t *f, const node_body_t *body, const fx_records_t *r, uint32_t n_blocks,
                          uint32_t layer, uint32_t head)
{
    const uint32_t dim = f->model.head_dim, i = layer * f->model.n_kv_head + head;
    uint32_t n = 0;
    for (uint32_t t = 0; t < n_blocks * NODE_TILE; t++) {
        if (!(fx_kept(r, t / 64, layer, head) >> t % 64 & 1))
            continue;
        const node_tile_t *tile = &body->tiles[i][n / NODE_TILE];
        node_page_t *page = node_kv_page_at(&f->kv, t / 64);
        for (uint32_t c = 0; c < dim; c++)
            cr_assert_eq(tile->k[c * NODE_TILE + n % NODE_TILE],
                         node_page_k(page, layer, head)[c * NODE_TILE + t % 64]);
        cr_assert(memcmp(tile->v + (n % NODE_TILE) * dim, node_page_v(page, layer, head) + (t % 64) * dim, dim * 2) ==
                  0);
        n++;
    }
    cr_assert_eq(body->n_tiles[i], (n + NODE_TILE - 1) / NODE_TILE);
    cr_assert_eq(node_body_n_dropped(body, layer, head), n_blocks * NODE_TILE - n);
    for (uint32_t t = 0; t < body->n_tiles[i]; t++) {
        const node_tile_t *tile = &body->tiles[i][t];
        cr_assert_eq(tile->n_rows, VC_MIN(NODE_TILE, n - t * NODE_TILE));
        for (uint32_t row = tile->n_rows; row < NODE_TILE; row++)
            for (uint32_t c = 0; c < dim; c++)
                cr_assert(tile->k[c * NODE_TILE + row] == 0 && tile->v[row * dim + c] == 0, "a pad is not zero");
    }
}

Test(body, kept_rows_are_packed_densely_in_ascending_position)
{
    fx_t f;
    fx_open(&f, fx_model(2, 6, 3, 32), 7, 64, 91);
    fx_records_t r = {0};
    fx_compress("snapkv:keep=0.3,window=32", &f.in, &r);
    node_body_t *body = fx_body("snapkv:keep=0.3,window=32", &f.model, &r, 7);
    for (uint32_t i = 0; i < 6; i++)
        expect_packed(&f, body, &r, 7, i / 3, i % 3);
    node_body_put(body);
    fx_records_free(&r);
    fx_close(&f);
}

Test(body, any_cut_of_a_stored_copy_is_a_body)
{
    static const char *const texts[] = {"none",
                                        "noise",
                                        "snapkv:keep=0.2",
                                        "kivi:bits=2",
                                        "rot:bits=3",
                                        "kvzap",
                                        "rotatekv",
                                        "snapkv:keep=0.2+rot",
                                        "kvzip:budget=global",
                                        "kvquant:bits=3",
                                        "expected_attention:keep=0.2,budget=layer",
                                        "rot:bits=2,center=no"};
    fx_t f;
    fx_open(&f, fx_model(1, 4, 2, 16), 9, 64, 92);
    for (size_t s = 0; s < VC_ARRAY_LEN(texts); s++) {
        fx_records_t r = {0};
        fx_compress(texts[s], &f.in, &r);
        for (uint32_t n = 1; n <= 9; n++) {
            node_body_t *body = fx_body(texts[s], &f.model, &r, n);
            cr_assert_eq(body->n_tokens, n * NODE_TILE);
            if (s == 2 || s == 5)
                expect_packed(&f, body, &r, n, 0, 1);
            node_body_put(body);
        }
        fx_records_free(&r);
    }
    fx_close(&f);
}

Test(body, records_may_come_in_any_order)
{
    fx_t f;
    fx_open(&f, fx_model(1, 2, 2, 16), 5, 64, 93);
    node_spec_t spec = fx_spec("snapkv:keep=0.4");
    fx_records_t r = {0};
    fx_compress(spec.text, &f.in, &r);
    static const uint32_t order[] = {3, 0, 4, 2, 1};
    node_body_builder_t *b;
    node_body_t *body;
    cr_assert_eq(node_body_begin(&spec, &f.model, 5, &b, NULL), VC_OK);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(node_body_add_record(b, r.data[order[i]], r.bytes[order[i]], NULL), VC_OK);
    cr_assert_eq(node_body_finish(b, &body, NULL), VC_OK);
    expect_packed(&f, body, &r, 5, 0, 0);
    expect_packed(&f, body, &r, 5, 0, 1);
    node_body_put(body);
    fx_records_free(&r);
    fx_close(&f);
}

/* Sink and window: first and last blocks in place of their compressed rows, before or after the record comes. */
Test(body, exact_pages_are_used_in_place)
{
    static const char *const texts[] = {"snapkv:keep=0.25", "kivi:bits=2", "rot:bits=4", "none+rot:bits=3,group=16"};
    for (int s = 0; s < 4; s++)
        for (int pages_first = 0; pages_first < 2; pages_first++) {
            fx_t f;
            fx_open(&f, fx_model(2, 4, 2, 32), 5, 64, 94);
            node_spec_t spec = fx_spec(texts[s]);
            fx_records_t r = {0};
            fx_compress(texts[s], &f.in, &r);
            node_body_builder_t *b;
            node_body_t *body;
            cr_assert_eq(node_body_begin(&spec, &f.model, 5, &b, NULL), VC_OK);
            for (int pass = 0; pass < 2; pass++) {
                if (pass == pages_first)
                    for (uint32_t i = 0; i < 5; i++)
                        cr_assert_eq(node_body_add_record(b, r.data[i], r.bytes[i], NULL), VC_OK);
                else
                    for (uint32_t i = 0; i < 5; i += 4)
                        cr_assert_eq(node_body_add_page(b, i, node_kv_page_at(&f.kv, i)), VC_OK);
            }
            cr_assert_eq(node_body_finish(b, &body, NULL), VC_OK);
            for (uint32_t i = 0; i < 4; i++) {
                const node_tile_t *first = &body->tiles[i][0], *last = &body->tiles[i][body->n_tiles[i] - 1];
                cr_assert(first->k == node_page_k(node_kv_page_at(&f.kv, 0), i / 2, i % 2));
                cr_assert(first->v == node_page_v(node_kv_page_at(&f.kv, 0), i / 2, i % 2));
                cr_assert(last->k == node_page_k(node_kv_page_at(&f.kv, 4), i / 2, i % 2));
                uint32_t kept = 0;
                for (uint32_t n = 1; s == 0 && n < 4; n++)
                    kept += (uint32_t)__builtin_popcountll(fx_kept(&r, n, i / 2, i % 2));
                cr_assert_eq(node_body_n_dropped(body, i / 2, i % 2), s == 0 ? 3 * NODE_TILE - kept : 0);
            }
            fx_close(&f); /* the body holds its pages by itself */
            cr_assert_eq(body->tiles[0][0].n_rows, NODE_TILE);
            cr_assert(body->tiles[0][0].k[0] != 0 || body->tiles[0][0].k[1] != 0);
            node_body_put(body);
            fx_records_free(&r);
        }
}

Test(body, a_block_can_be_an_exact_page_without_any_record)
{
    fx_t f;
    fx_open(&f, fx_model(1, 2, 2, 16), 3, 64, 95);
    node_spec_t spec = fx_spec("kivi");
    node_body_builder_t *b;
    node_body_t *body;
    cr_assert_eq(node_body_begin(&spec, &f.model, 3, &b, NULL), VC_OK);
    for (uint32_t i = 0; i < 3; i++)
        cr_assert_eq(node_body_add_page(b, i, node_kv_page_at(&f.kv, i)), VC_OK);
    cr_assert_eq(node_body_finish(b, &body, NULL), VC_OK);
    cr_assert_eq(body->n_tiles[0], 3);
    cr_assert_eq(body->bytes, 0, "pages that others share are not the body's memory");
    node_body_put(body);
    fx_close(&f);
}

static uint8_t *hand_made(const fx_t *f, const node_spec_t *spec, const uint64_t *kept, size_t *bytes_p)
{
    const node_model_info_t *m = &f->model;
    vc_kvrec_head_t head = {.fidelity = VC_FIDELITY_COMPRESSED,
                            .kind = VC_KVREC_DROPPER,
                            .shape = m->keyspace.shape,
                            .numerics_id = NODE_NUMERICS_ID,
                            .spec = spec->id,
                            .keyspace = m->keyspace_id,
                            .parent = m->keyspace_id};
    size_t cap = 1 << 20;
    uint8_t *buf = vc_alloc(cap);
    vc_kvrec_writer_t w;
    cr_assert_eq(vc_kvrec_write_begin(&w, buf, cap, &head, f->tokens, NULL), VC_OK);
    for (uint32_t l = 0; l < m->n_layer; l++) {
        uint32_t bytes = 0;
        for (uint32_t h = 0; h < m->n_kv_head; h++)
            bytes += node_dropper_head_bytes((uint32_t)__builtin_popcountll(kept[l * m->n_kv_head + h]), m->head_dim);
        void *part;
        cr_assert_eq(vc_kvrec_write_layer(&w, bytes, &part, NULL), VC_OK);
        uint8_t *at = part;
        for (uint32_t h = 0; h < m->n_kv_head; h++)
            at =
                node_dropper_encode_head(at, node_kv_page_at(&f->kv, 0), l, h, m->head_dim, kept[l * m->n_kv_head + h]);
    }
    cr_assert_eq(vc_kvrec_write_end(&w, bytes_p, NULL), VC_OK);
    return buf;
}

/* Heads and layers keep different numbers of rows, down to none: counts come from the bitmaps, no row is padding. */
Test(body, ragged_heads_have_their_own_counts_and_no_padding_row)
{
    fx_t f;
    fx_open(&f, fx_model(2, 2, 2, 16), 1, 64, 96);
    node_spec_t spec = fx_spec("snapkv");
    static const uint64_t kept[4] = {0, 1ull << 63 | 1, 0x5555555555555555ull, UINT64_MAX};
    fx_records_t r = {.n = 1};
    r.data[0] = hand_made(&f, &spec, kept, &r.bytes[0]);
    node_body_t *body = fx_body("snapkv", &f.model, &r, 1);
    static const uint32_t rows[4] = {0, 2, 32, 64};
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert_eq(body->n_tiles[i], rows[i] ? 1 : 0);
        cr_assert_eq(node_body_n_dropped(body, i / 2, i % 2), 64 - rows[i]);
        expect_packed(&f, body, &r, 1, i / 2, i % 2);
    }
    node_body_put(body);
    fx_records_free(&r);
    fx_close(&f);
}

/* ---- what is refused ---- */

typedef struct refusal {
    fx_t f;
    node_spec_t spec;
    fx_records_t r;
    node_body_builder_t *b;
} refusal_t;

static void refusal_open(refusal_t *t, const char *spec_text, uint32_t n_blocks)
{
    memset(t, 0, sizeof(*t));
    fx_open(&t->f, fx_model(2, 2, 2, 16), 3, 64, 97);
    t->spec = fx_spec(spec_text);
    fx_compress(spec_text, &t->f.in, &t->r);
    cr_assert_eq(node_body_begin(&t->spec, &t->f.model, n_blocks, &t->b, NULL), VC_OK);
}

static vc_status_t add(refusal_t *t, uint32_t block, vc_err_t *err)
{
    return node_body_add_record(t->b, t->r.data[block], t->r.bytes[block], err);
}

static void refusal_close(refusal_t *t)
{
    fx_records_free(&t->r);
    fx_close(&t->f);
}

Test(body, a_missing_block_is_named)
{
    refusal_t t;
    refusal_open(&t, "kivi", 3);
    cr_assert_eq(add(&t, 0, NULL), VC_OK);
    cr_assert_eq(add(&t, 2, NULL), VC_OK);
    node_body_t *body = NULL;
    vc_err_t err = {0};
    cr_assert_eq(node_body_finish(t.b, &body, &err), VC_ERR_INVALID);
    cr_assert_null(body);
    cr_assert_not_null(strstr(err.msg, "block 1 of 3"));
    refusal_close(&t);
}

Test(body, a_block_twice_or_outside_is_refused)
{
    refusal_t t;
    refusal_open(&t, "none", 2);
    cr_assert_eq(add(&t, 0, NULL), VC_OK);
    cr_assert_eq(add(&t, 0, NULL), VC_ERR_EXISTS);
    cr_assert_eq(add(&t, 2, NULL), VC_ERR_RANGE);
    cr_assert_eq(node_body_add_page(t.b, 2, node_kv_page_at(&t.f.kv, 2)), VC_ERR_RANGE);
    cr_assert_eq(node_body_add_page(t.b, 1, node_kv_page_at(&t.f.kv, 1)), VC_OK);
    cr_assert_eq(node_body_add_page(t.b, 1, node_kv_page_at(&t.f.kv, 1)), VC_ERR_EXISTS);
    node_body_abort(t.b);
    refusal_close(&t);
}

Test(body, a_record_of_another_spec_or_keyspace_is_refused)
{
    refusal_t t;
    refusal_open(&t, "kivi:bits=4", 3);
    node_body_abort(t.b);
    node_spec_t other = fx_spec("kivi:bits=2");
    cr_assert_eq(node_body_begin(&other, &t.f.model, 3, &t.b, NULL), VC_OK);
    cr_assert_eq(add(&t, 0, NULL), VC_ERR_MISMATCH);
    node_body_abort(t.b);
    node_model_info_t model = t.f.model;
    model.keyspace_id.b[0] ^= 1;
    cr_assert_eq(node_body_begin(&t.spec, &model, 3, &t.b, NULL), VC_OK);
    cr_assert_eq(add(&t, 0, NULL), VC_ERR_MISMATCH);
    node_body_abort(t.b);
    model = fx_model(2, 2, 1, 32);
    cr_assert_eq(node_body_begin(&t.spec, &model, 3, &t.b, NULL), VC_OK);
    cr_assert_eq(add(&t, 0, NULL), VC_ERR_MISMATCH);
    node_body_abort(t.b);
    refusal_close(&t);
}

Test(body, blocks_of_two_chains_do_not_mix)
{
    refusal_t t;
    refusal_open(&t, "none", 2);
    fx_t g;
    fx_open(&g, t.f.model, 2, 64, 98);
    fx_records_t other = {0};
    fx_compress("none", &g.in, &other);
    cr_assert_eq(add(&t, 0, NULL), VC_OK);
    cr_assert_eq(node_body_add_record(t.b, other.data[1], other.bytes[1], NULL), VC_OK);
    node_body_t *body = NULL;
    cr_assert_eq(node_body_finish(t.b, &body, NULL), VC_ERR_MISMATCH);
    cr_assert_null(body);
    fx_records_free(&other);
    fx_close(&g);
    refusal_close(&t);
}

/* A flipped bit anywhere: the sum tells, nothing of the block stays, and an exact page can still take its place. */
Test(body, a_damaged_record_leaves_no_trace)
{
    static const char *const texts[] = {"none", "snapkv:keep=0.5", "kivi", "rot", "snapkv:keep=0.5+rot:bits=2",
                                        "kvzip"};
    for (size_t s = 0; s < VC_ARRAY_LEN(texts); s++) {
        refusal_t t;
        refusal_open(&t, texts[s], 2);
        cr_assert_eq(add(&t, 0, NULL), VC_OK);
        for (size_t at = 0; at < t.r.bytes[1]; at += 37) {
            t.r.data[1][at] ^= 0x10;
            cr_assert_neq(add(&t, 1, NULL), VC_OK, "%s byte %zu", texts[s], at);
            t.r.data[1][at] ^= 0x10;
        }
        cr_assert_neq(node_body_add_record(t.b, t.r.data[1], t.r.bytes[1] - 1, NULL), VC_OK);
        cr_assert_neq(node_body_add_record(t.b, t.r.data[1], 0, NULL), VC_OK);
        cr_assert_eq(node_body_add_page(t.b, 1, node_kv_page_at(&t.f.kv, 1)), VC_OK);
        node_body_t *body;
        cr_assert_eq(node_body_finish(t.b, &body, NULL), VC_OK);
        cr_assert(tile_is_page(&body->tiles[3][body->n_tiles[3] - 1], node_kv_page_at(&t.f.kv, 1), 1, 1, 16));
        node_body_put(body);
        refusal_close(&t);
    }
}

/* A part that breaks in the last layer, with sums that hold: the layers before it must not stay. */
Test(body, a_record_refused_in_its_last_layer_leaves_no_trace)
{
    fx_t f;
    fx_open(&f, fx_model(2, 2, 2, 16), 1, 64, 99);
    node_spec_t spec = fx_spec("snapkv");
    static const uint64_t kept[4] = {7, 7, 7, 7};
    size_t bytes;
    node_page_v(node_kv_page_at(&f.kv, 0), 1, 1)[0] = 0x7c00; /* writes an infinity into the record */
    uint8_t *bad = hand_made(&f, &spec, kept, &bytes);
    node_page_v(node_kv_page_at(&f.kv, 0), 1, 1)[0] = 0x3c00;
    fx_records_t r = {.n = 1};
    r.data[0] = hand_made(&f, &spec, kept, &r.bytes[0]);
    node_body_builder_t *b;
    node_body_t *body;
    cr_assert_eq(node_body_begin(&spec, &f.model, 1, &b, NULL), VC_OK);
    cr_assert_eq(node_body_add_record(b, bad, bytes, NULL), VC_ERR_CORRUPT);
    cr_assert_eq(node_body_add_record(b, r.data[0], r.bytes[0], NULL), VC_OK);
    cr_assert_eq(node_body_finish(b, &body, NULL), VC_OK);
    expect_packed(&f, body, &r, 1, 0, 0);
    expect_packed(&f, body, &r, 1, 1, 1);
    node_body_put(body);
    vc_free(bad);
    fx_records_free(&r);
    fx_close(&f);
}

Test(body, a_body_of_no_blocks_is_refused)
{
    node_model_info_t m = fx_model(1, 1, 1, 16);
    node_spec_t spec = fx_spec("none");
    node_body_builder_t *b;
    cr_assert_eq(node_body_begin(&spec, &m, 0, &b, NULL), VC_ERR_INVALID);
    node_body_abort(NULL);
}
