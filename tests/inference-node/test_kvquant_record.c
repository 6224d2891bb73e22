/*
 * KVQuant's records: what is in them and what they take, that a body is the arithmetic's own result, and that damage is
 * refused.
 */
#include <math.h>
#include <stdlib.h>

#include "codec_fixture.h"
#include "compress/prerope.h"

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Keys before RoPE of one layer, [channels][tokens], freed by the caller. */
static float *keys_of(const fx_t *f, uint32_t layer)
{
    const uint32_t n = f->kv.n_tokens, dim = f->model.head_dim;
    float *out = vc_calloc((size_t)f->model.n_kv_head * dim * n, sizeof(float)), pre[NODE_HEAD_DIM_MAX * NODE_TILE];
    node_prerope_t *p = node_prerope_create(&f->model);
    for (uint32_t b = 0; b < n / NODE_TILE; b++) {
        node_prerope_set_block(p, b);
        for (uint32_t h = 0; h < f->model.n_kv_head; h++) {
            node_prerope_undo(p, node_page_k(node_kv_page_at(&f->kv, b), layer, h), pre);
            for (uint32_t c = 0; c < dim; c++)
                memcpy(out + ((size_t)h * dim + c) * n + b * NODE_TILE, pre + c * NODE_TILE, NODE_TILE * sizeof(float));
        }
    }
    node_prerope_destroy(p);
    return out;
}

/* Thresholds that the text itself has. */
static node_calib_t learned_from(const fx_t *f, double share, float *upper, float *lower)
{
    node_calib_t calib = {.method = "kvquant"};
    const uint32_t n = f->kv.n_tokens;
    float *keys = keys_of(f, 0);
    for (uint32_t ch = 0; ch < f->model.n_kv_head * f->model.head_dim; ch++) {
        qsort(keys + (size_t)ch * n, n, sizeof(float), ascending);
        node_kvquant_thresholds(keys + (size_t)ch * n, n, share, &upper[ch], &lower[ch]);
    }
    vc_free(keys);
    calib.payload = kvq_payload(&f->model, share, upper, lower, 0, NULL, &calib.bytes);
    vc_blake2b(calib.payload, calib.bytes, &calib.digest);
    cr_assert_eq(node_kvquant_calib_check(&f->model, calib.payload, calib.bytes, NULL), VC_OK);
    return calib;
}

static node_spec_t bound_spec(const char *text, const node_calib_t *calib)
{
    node_spec_t spec;
    cr_assert_eq(node_spec_parse(text, &spec, NULL), VC_OK);
    node_spec_bind(&spec, calib);
    return spec;
}

static void compress(const node_spec_t *spec, const fx_t *f, fx_records_t *r)
{
    vc_err_t err = {0};
    cr_assert_eq(node_compress(spec, &f->in, fx_keep, r, &err), VC_OK, "%s", err.msg);
}

static node_body_t *pages_of(const node_spec_t *spec, const fx_t *f, const fx_records_t *r)
{
    node_body_builder_t *b;
    node_body_t *body;
    vc_err_t err = {0};
    cr_assert_eq(node_body_begin(spec, &f->model, r->n, &b, &err), VC_OK);
    node_body_set_load(b, NODE_LOAD_PAGES);
    for (uint32_t i = 0; i < r->n; i++)
        cr_assert_eq(node_body_add_record(b, r->data[i], r->bytes[i], &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_body_finish(b, &body, &err), VC_OK, "%s", err.msg);
    return body;
}

static uint64_t payload_bytes_of(const fx_records_t *r)
{
    uint64_t sum = 0;
    for (uint32_t b = 0; b < r->n; b++) {
        vc_kvrec_head_t head;
        cr_assert_eq(vc_kvrec_check(r->data[b], r->bytes[b], &head, NULL), VC_OK);
        for (uint32_t l = 0; l < head.shape.n_layer; l++) {
            vc_kvrec_layer_t part;
            vc_kvrec_layer(&head, l, &part);
            sum += part.length;
        }
    }
    return sum;
}

/* ---- what a body is ---- */

/* The numbers of one key channel and of one value row, by the rules alone. */
static void check_keys(const fx_t *f, const node_body_t *body, uint32_t bits, const float *upper, const float *lower)
{
    const uint32_t n = f->kv.n_tokens, dim = f->model.head_dim, n_levels = 1u << bits;
    const float *levels = node_kvquant_nf(bits);
    float *keys = keys_of(f, 0), mids[16], pre[NODE_HEAD_DIM_MAX * NODE_TILE];
    uint16_t k[NODE_HEAD_DIM_MAX * NODE_TILE];
    node_prerope_t *p = node_prerope_create(&f->model);
    node_kvquant_mids(levels, n_levels, mids);
    for (uint32_t h = 0; h < f->model.n_kv_head; h++)
        for (uint32_t b = 0; b < n / NODE_TILE; b++) {
            for (uint32_t c = 0; c < dim; c++)
                for (uint32_t t = 0; t < NODE_TILE; t++) {
                    const uint32_t ch = h * dim + c;
                    const float x = keys[(size_t)ch * n + b * NODE_TILE + t];
                    const float rho = (upper[ch] - lower[ch]) / 2, z = (upper[ch] + lower[ch]) / 2, y = (x - z) / rho;
                    uint32_t code = 0;
                    while (code + 1 < n_levels && y > mids[code])
                        code++;
                    pre[c * NODE_TILE + t] = x > upper[ch] || x < lower[ch] ? node_f32_from_f16(node_f16_from_f32(x))
                                                                            : rho * levels[code] + z;
                }
            node_prerope_set_block(p, b);
            node_prerope_apply(p, pre, k);
            for (uint32_t i = b == 0 ? 1 : 0; i < NODE_TILE; i++) /* the first token is exact */
                for (uint32_t c = 0; c < dim; c++)
                    cr_assert_eq(body->tiles[h][b].k[c * NODE_TILE + i], k[c * NODE_TILE + i],
                                 "%u bits, head %u block %u token %u channel %u", bits, h, b, i, c);
        }
    node_prerope_destroy(p);
    vc_free(keys);
}

static void check_values(const fx_t *f, const node_body_t *body, uint32_t bits)
{
    const uint32_t dim = f->model.head_dim, channels = f->model.n_kv_head * dim, n_levels = 1u << bits;
    const float *levels = node_kvquant_nf(bits);
    float x[256], scratch[256], mids[16], rho, z;
    uint16_t index[256];
    node_kvquant_mids(levels, n_levels, mids);
    for (uint32_t t = 1; t < f->kv.n_tokens; t++) {
        node_page_t *page = node_kv_page_at(&f->kv, t / NODE_TILE);
        const uint32_t row = t % NODE_TILE;
        for (uint32_t ch = 0; ch < channels; ch++)
            x[ch] = node_f32_from_f16(node_page_v(page, 0, ch / dim)[(size_t)row * dim + ch % dim]);
        uint32_t n_out = node_kvquant_value_row(x, channels, 0.01, &rho, &z, index, scratch), next = 0;
        rho = node_f32_from_f16(node_f16_from_f32(rho));
        z = node_f32_from_f16(node_f16_from_f32(z));
        cr_assert_geq(n_out, 2); /* more where the ends tie */
        for (uint32_t ch = 0; ch < channels; ch++) {
            uint32_t code = 0;
            float want = x[ch];
            while (code + 1 < n_levels && (x[ch] - z) / rho > mids[code])
                code++;
            if (next < n_out && index[next] == ch)
                next++;
            else
                want = rho * levels[code] + z;
            cr_assert_eq(body->tiles[ch / dim][t / NODE_TILE].v[(size_t)row * dim + ch % dim], node_f16_from_f32(want),
                         "%u bits, token %u channel %u", bits, t, ch);
        }
    }
}

/* Defect 23: three bits read with two bits' tables. */
Test(kvquant_record, every_bit_width_decodes_to_what_its_own_levels_say)
{
    fx_t f;
    float upper[64], lower[64], error[5] = {0};
    fx_open(&f, fx_model(1, 4, 2, 32), 3, 0, 301);
    node_calib_t calib = learned_from(&f, 0.01, upper, lower);
    for (uint32_t bits = 2; bits <= 4; bits++) {
        char text[64];
        fx_records_t r = {0};
        snprintf(text, sizeof(text), "kvquant:bits=%u", bits);
        node_spec_t spec = bound_spec(text, &calib);
        compress(&spec, &f, &r);
        node_body_t *body = pages_of(&spec, &f, &r);
        check_keys(&f, body, bits, upper, lower);
        check_values(&f, body, bits);
        for (uint32_t i = 0; i < 32 * NODE_TILE; i++)
            error[bits] += fabsf(node_f32_from_f16(body->tiles[1][2].v[i]) -
                                 node_f32_from_f16(node_page_v(node_kv_page_at(&f.kv, 2), 0, 1)[i]));
        node_body_put(body);
        fx_records_free(&r);
    }
    cr_assert(error[4] < 0.6f * error[3] && error[3] < 0.7f * error[2]);
    vc_free(calib.payload);
    fx_close(&f);
}

/* Defect 27: levels within [-1, 1] applied to numbers of any size without their ranges saturate every one of them. */
Test(kvquant_record, numbers_of_another_size_have_the_same_codes)
{
    fx_t small, large;
    float upper[64], lower[64];
    fx_open(&small, fx_model(1, 2, 2, 32), 2, 0, 311);
    fx_open(&large, fx_model(1, 2, 2, 32), 2, 0, 311);
    for (uint32_t i = 0; i < 2 * 2 * 32 * NODE_TILE; i++) {
        const uint32_t block = i / (2 * 32 * NODE_TILE), head = i / (32 * NODE_TILE) % 2, at = i % (32 * NODE_TILE);
        uint16_t *k = node_page_k(node_kv_page_at(&large.kv, block), 0, head) + at;
        uint16_t *v = node_page_v(node_kv_page_at(&large.kv, block), 0, head) + at;
        *k = node_f16_from_f32(64.0f * node_f32_from_f16(*k));
        *v = node_f16_from_f32(64.0f * node_f32_from_f16(*v));
    }
    node_calib_t calib[2] = {learned_from(&small, 0.01, upper, lower), learned_from(&large, 0.01, upper, lower)};
    node_spec_t spec[2] = {bound_spec("kvquant:bits=3", &calib[0]), bound_spec("kvquant:bits=3", &calib[1])};
    fx_records_t r[2] = {{0}};
    compress(&spec[0], &small, &r[0]);
    compress(&spec[1], &large, &r[1]);
    node_body_t *a = pages_of(&spec[0], &small, &r[0]), *b = pages_of(&spec[1], &large, &r[1]);
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t i = 0; i < 32 * NODE_TILE; i++) {
            const float k = 64.0f * node_f32_from_f16(a->tiles[h][1].k[i]);
            const float v = 64.0f * node_f32_from_f16(a->tiles[h][1].v[i]);
            cr_assert(fabsf(node_f32_from_f16(b->tiles[h][1].k[i]) - k) <= 0x1p-18f);
            cr_assert(fabsf(node_f32_from_f16(b->tiles[h][1].v[i]) - v) <= 0x1p-18f);
        }
    node_body_put(a);
    node_body_put(b);
    for (int i = 0; i < 2; i++) {
        fx_records_free(&r[i]);
        vc_free(calib[i].payload);
    }
    fx_close(&small);
    fx_close(&large);
}

Test(kvquant_record, the_first_tokens_of_a_text_are_exact_and_no_others)
{
    static const uint32_t sinks[] = {0, 1, 5, 64};
    fx_t f;
    fx_open(&f, fx_model(2, 4, 2, 32), 2, 0, 302);
    for (size_t s = 0; s < VC_ARRAY_LEN(sinks); s++) {
        char text[64];
        fx_records_t r = {0};
        snprintf(text, sizeof(text), "kvquant:bits=2,levels=nf,sinks=%u", sinks[s]);
        node_spec_t spec = fx_spec(text);
        cr_assert_eq(spec.ops->sink_blocks(&spec), sinks[s] ? 1 : 0);
        compress(&spec, &f, &r);
        node_body_t *body = pages_of(&spec, &f, &r);
        for (uint32_t t = 0; t < 2 * NODE_TILE; t++) {
            const uint16_t *v = node_page_v(node_kv_page_at(&f.kv, t / NODE_TILE), 1, 1) + t % NODE_TILE * 32;
            const uint16_t *k = node_page_k(node_kv_page_at(&f.kv, t / NODE_TILE), 1, 1) + t % NODE_TILE;
            const node_tile_t *tile = &body->tiles[3][t / NODE_TILE];
            bool same = memcmp(tile->v + t % NODE_TILE * 32, v, 64) == 0;
            for (uint32_t c = 0; c < 32; c++)
                same = same && tile->k[c * NODE_TILE + t % NODE_TILE] == k[c * NODE_TILE];
            cr_assert_eq(same, t < sinks[s], "%s: token %u", text, t);
        }
        node_body_put(body);
        fx_records_free(&r);
    }
    fx_close(&f);
}

/* ---- bytes ---- */

/* Defect 14, accounting: what is said is what the payload takes, outliers, indices and rows' ends counted. */
Test(kvquant_record, bits_are_those_of_the_payload_and_not_nominal)
{
    static const char *const texts[] = {"kvquant:bits=2", "kvquant:bits=3", "kvquant:bits=4"};
    fx_t f;
    float upper[256], lower[256];
    fx_open(&f, fx_model(1, 8, 4, 64), 25, 0, 303); /* a hundredth of 1,600 tokens is a whole number */
    node_calib_t calib = learned_from(&f, 0.01, upper, lower);
    for (size_t i = 0; i < VC_ARRAY_LEN(texts); i++) {
        fx_records_t r = {0};
        node_spec_t spec = bound_spec(texts[i], &calib);
        compress(&spec, &f, &r);
        double bits = 8.0 * (double)payload_bytes_of(&r) / (25.0 * NODE_TILE * 4 * 64 * 2);
        double said = node_spec_bits_per_element(&spec, &f.model);
        cr_assert(fabs(bits - said) <= 0.01 * bits, "%s: %g bits, said %g", texts[i], bits, said);
        cr_assert_gt(said, spec.bits + 0.3);
        fx_records_free(&r);
    }
    vc_free(calib.payload);
    fx_close(&f);
}

/* Defect 15: query heads cost nothing. */
Test(kvquant_record, bytes_follow_the_kv_heads_and_not_the_query_heads)
{
    uint64_t bytes[2];
    for (uint32_t i = 0; i < 2; i++) {
        fx_t f;
        fx_records_t r = {0};
        fx_open(&f, fx_model(1, i ? 28 : 4, 4, 32), 2, 0, 304);
        fx_compress("kvquant", &f.in, &r);
        bytes[i] = payload_bytes_of(&r);
        fx_records_free(&r);
        fx_close(&f);
    }
    cr_assert_eq(bytes[0], bytes[1]);
}

/* Defect 14, ties: a constant key channel has no outliers; equal values at an end are all exact, and nothing else. */
Test(kvquant_record, a_constant_channel_flags_nothing_and_ties_of_values_stay_exact)
{
    fx_t f;
    float upper[64], lower[64];
    fx_open(&f, fx_model(1, 2, 2, 32), 1, 0, 305);
    f.model.rope_dims = 0; /* keys as they are, so that a channel can be constant */
    node_page_t *page = node_kv_page_at(&f.kv, 0);
    for (uint32_t t = 0; t < NODE_TILE; t++) {
        node_page_k(page, 0, 0)[7 * NODE_TILE + t] = node_f16_from_f32(3.0f);
        for (uint32_t c = 0; t >= 10 && c < 20; c++)
            node_page_v(page, 0, 1)[t * 32 + c] = node_f16_from_f32(2.5f);
        for (uint32_t c = 0; t == 9 && c < 32; c++)
            node_page_v(page, 0, 0)[t * 32 + c] = node_page_v(page, 0, 1)[t * 32 + c] = node_f16_from_f32(-0.5f);
    }
    node_calib_t calib = learned_from(&f, 0.01, upper, lower);
    node_spec_t spec = bound_spec("kvquant:bits=3", &calib);
    fx_records_t r = {0};
    compress(&spec, &f, &r);
    vc_kvrec_head_t head;
    vc_kvrec_layer_t part;
    node_kvquant_form_t form;
    cr_assert_eq(vc_kvrec_check(r.data[0], r.bytes[0], &head, NULL), VC_OK);
    vc_kvrec_layer(&head, 0, &part);
    cr_assert_eq(node_kvquant_form(&spec, &head.shape, 0, &form, NULL), VC_OK);
    const node_kvquant_place_t at = node_kvquant_places(&form);
    const uint8_t *p = r.data[0] + part.offset, *list = p + at.lists;
    for (uint32_t t = 0; t < NODE_TILE; t++) {
        for (uint32_t i = 0; i < vc_le16(p + at.k_counts + 2 * t); i++, list += 2)
            cr_assert_neq(vc_le16(list), 7);
        cr_assert_eq(vc_le16(p + at.v_counts + 2 * t), t == 0 ? 0 : t == 9 ? 64 : t >= 10 ? 21 : 2, "token %u", t);
    }
    node_body_t *body = pages_of(&spec, &f, &r);
    for (uint32_t t = 0; t < NODE_TILE; t++) {
        cr_assert_eq(body->tiles[0][0].k[7 * NODE_TILE + t], node_f16_from_f32(3.0f));
        for (uint32_t c = 0; t >= 10 && c < 20; c++)
            cr_assert_eq(body->tiles[1][0].v[t * 32 + c], node_f16_from_f32(2.5f));
    }
    cr_assert(memcmp(body->tiles[1][0].v + 9 * 32, node_page_v(page, 0, 1) + 9 * 32, 64) == 0);
    node_body_put(body);
    fx_records_free(&r);
    vc_free(calib.payload);
    fx_close(&f);
}

/* Defect 14, decode: the thresholds protect every block, the last token of a text too. */
Test(kvquant_record, an_outlier_in_the_last_token_is_exact)
{
    fx_t f;
    float upper[64], lower[64];
    fx_open(&f, fx_model(1, 2, 2, 32), 3, 0, 306);
    f.model.rope_dims = 0;
    node_calib_t calib = learned_from(&f, 0.01, upper, lower);
    node_page_t *page = node_kv_page_at(&f.kv, 2);
    node_page_k(page, 0, 1)[5 * NODE_TILE + 63] = node_f16_from_f32(-437.5f);
    node_page_v(page, 0, 0)[63 * 32 + 9] = node_f16_from_f32(1234.0f);
    for (uint32_t bits = 2; bits <= 4; bits++) {
        char text[64];
        fx_records_t r = {0};
        snprintf(text, sizeof(text), "kvquant:bits=%u", bits);
        node_spec_t spec = bound_spec(text, &calib);
        compress(&spec, &f, &r);
        node_body_t *body = pages_of(&spec, &f, &r);
        cr_assert_eq(body->tiles[1][2].k[5 * NODE_TILE + 63], node_f16_from_f32(-437.5f));
        cr_assert_eq(body->tiles[0][2].v[63 * 32 + 9], node_f16_from_f32(1234.0f));
        for (uint32_t c = 0; c < 32; c++) /* and its row keeps its resolution */
            cr_assert(fabsf(node_f32_from_f16(body->tiles[1][2].v[63 * 32 + c])) < 2.01f);
        node_body_put(body);
        fx_records_free(&r);
    }
    vc_free(calib.payload);
    fx_close(&f);
}

/* Defect 18: a second question over one body, after drafts of the first were rolled back. */
Test(kvquant_record, a_body_serves_a_second_question_after_a_rollback_unchanged)
{
    fx_t f;
    fx_records_t r = {0};
    fx_open(&f, fx_model(1, 2, 2, 32), 2, 0, 307);
    fx_compress("kvquant:bits=2", &f.in, &r);
    node_spec_t spec = fx_spec("kvquant:bits=2");
    node_body_t *body = pages_of(&spec, &f, &r), *again = pages_of(&spec, &f, &r);
    node_kv_t first, second;
    cr_assert_eq(node_kv_init(&first, &body->dims, body), VC_OK);
    cr_assert_eq(node_kv_reserve(&first, 9), VC_OK);
    first.n_tokens += 9;
    memset(node_page_k(node_kv_page_at(&first, 2), 0, 0), 0x3c, 32 * NODE_TILE * 2);
    cr_assert_eq(node_kv_truncate(&first, 2 * NODE_TILE + 1), VC_OK);
    cr_assert_eq(node_kv_init(&second, &body->dims, body), VC_OK);
    cr_assert(first.n_tokens == 2 * NODE_TILE + 1 && second.n_tokens == 2 * NODE_TILE);
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t t = 0; t < 2; t++) {
            cr_assert_eq(second.body->n_tiles[h], 2);
            cr_assert_eq(second.body->tiles[h][t].n_rows, NODE_TILE);
            cr_assert(memcmp(second.body->tiles[h][t].k, again->tiles[h][t].k, 32 * NODE_TILE * 2) == 0);
            cr_assert(memcmp(second.body->tiles[h][t].v, again->tiles[h][t].v, 32 * NODE_TILE * 2) == 0);
        }
    node_kv_fini(&first);
    node_kv_fini(&second);
    node_body_put(body);
    node_body_put(again);
    fx_records_free(&r);
    fx_close(&f);
}

/* ---- damage ---- */

typedef struct damage {
    fx_t f;
    node_spec_t spec;
    fx_records_t r;
    vc_kvrec_head_t head;
    uint32_t length;
    uint8_t *part;
    node_kvquant_place_t at;
    uint32_t n_k, n_v;
} damage_t;

static void damage_open(damage_t *d, const char *text)
{
    memset(d, 0, sizeof(*d));
    vc_kvrec_layer_t part;
    node_kvquant_form_t form;
    fx_open(&d->f, fx_model(1, 2, 2, 16), 1, 0, 308);
    d->spec = fx_spec(text);
    compress(&d->spec, &d->f, &d->r);
    cr_assert_eq(vc_kvrec_check(d->r.data[0], d->r.bytes[0], &d->head, NULL), VC_OK);
    vc_kvrec_layer(&d->head, 0, &part);
    d->length = part.length;
    d->part = vc_memdup(d->r.data[0] + part.offset, part.length);
    cr_assert_eq(node_kvquant_form(&d->spec, &d->head.shape, 0, &form, NULL), VC_OK);
    d->at = node_kvquant_places(&form);
    for (uint32_t t = 0; t < NODE_TILE; t++) {
        d->n_k += vc_le16(d->part + d->at.k_counts + 2 * t);
        d->n_v += vc_le16(d->part + d->at.v_counts + 2 * t);
    }
    cr_assert(d->n_k >= 2 && d->n_v >= 2 * 63);
}

static vc_status_t decode(const damage_t *d, vc_err_t *err)
{
    node_body_builder_t *b;
    cr_assert_eq(node_body_begin(&d->spec, &d->f.model, 1, &b, NULL), VC_OK);
    vc_status_t st = d->spec.ops->decode(&d->spec, &d->head, 0, d->part, d->length, b, err);
    node_body_abort(b);
    return st;
}

static void damage_close(damage_t *d)
{
    vc_free(d->part);
    fx_records_free(&d->r);
    fx_close(&d->f);
}

/* Puts a 16-bit number in a place, expects the refusal and its words, puts back what was there. */
static void refuses(damage_t *d, size_t at, uint16_t value, const char *words)
{
    vc_err_t err = {0};
    uint16_t was = vc_le16(d->part + at);
    vc_put_le16(d->part + at, value);
    cr_assert_eq(decode(d, &err), VC_ERR_CORRUPT, "%s: taken", words);
    cr_assert_not_null(strstr(err.msg, words), "\"%s\" does not say \"%s\"", err.msg, words);
    vc_put_le16(d->part + at, was);
    cr_assert_eq(decode(d, &err), VC_OK);
}

Test(kvquant_record, what_an_encoder_never_writes_is_refused)
{
    damage_t d;
    damage_open(&d, "kvquant:bits=4");
    const size_t k_list = d.at.lists, v_list = k_list + 4 * (size_t)d.n_k, exact = v_list + 4 * (size_t)d.n_v;
    refuses(&d, d.at.k_counts + 2 * 5, (uint16_t)(vc_le16(d.part + d.at.k_counts + 2 * 5) + 1), "counts");
    refuses(&d, d.at.v_counts + 2 * 5, 0xffff, "counts");
    refuses(&d, k_list, 32, "outlier");
    refuses(&d, v_list, 0xffff, "outlier");
    refuses(&d, v_list + 2, vc_le16(d.part + v_list), "outlier"); /* twice in one token */
    refuses(&d, v_list + 2 * (size_t)d.n_v, 0x7c00, "outlier");   /* infinity */
    refuses(&d, k_list + 2 * (size_t)d.n_k, 0xfe00, "outlier");   /* NaN */
    refuses(&d, d.at.v_rho + 2 * 9, 0x8000 | vc_le16(d.part + d.at.v_rho + 18), "range");
    refuses(&d, d.at.v_rho + 2 * 9, 0, "range"); /* a range of zero has zero codes */
    refuses(&d, d.at.v_z + 2 * 9, 0x7c00, "range");
    refuses(&d, d.at.v_z, 0x3c00, "exact"); /* of the exact token */
    refuses(&d, d.at.k_codes, 0x0100, "exact");
    refuses(&d, exact, 2, "exact");
    refuses(&d, exact + 4, 1, "exact"); /* its row */
    refuses(&d, exact + 5, 0x7c00, "exact");
    /* a code under an outlier: channel and token of the first one of V */
    const uint32_t ch = vc_le16(d.part + v_list);
    refuses(&d, d.at.v_codes + 16 + ch / 4 * 2, 0xffff, "outlier");
    damage_close(&d);
}

Test(kvquant_record, ranges_of_keys_without_a_blob_are_checked)
{
    damage_t d;
    memset(&d, 0, sizeof(d));
    fx_open(&d.f, fx_model(1, 2, 2, 16), 1, 0, 309);
    d.spec = fx_spec("kvquant:bits=3,levels=nf");
    compress(&d.spec, &d.f, &d.r);
    vc_kvrec_layer_t part;
    node_kvquant_form_t form;
    cr_assert_eq(vc_kvrec_check(d.r.data[0], d.r.bytes[0], &d.head, NULL), VC_OK);
    vc_kvrec_layer(&d.head, 0, &part);
    d.length = part.length;
    d.part = vc_memdup(d.r.data[0] + part.offset, part.length);
    cr_assert_eq(node_kvquant_form(&d.spec, &d.head.shape, 0, &form, NULL), VC_OK);
    d.at = node_kvquant_places(&form);
    refuses(&d, d.at.k_params, 0xbc00, "range");
    refuses(&d, d.at.k_params, 0, "range");
    refuses(&d, d.at.k_params + 2 * 32, 0x7c00, "range");
    damage_close(&d);
}
