/*
 * KVzap: what specs say, which blobs are refused, and what a registration keeps.
 */
#include <math.h>

#include "codec_fixture.h"

/* ---- specs ---- */

Test(kvzap, a_spec_has_a_threshold_or_a_share_and_one_canonical_text)
{
    static const char *const texts[][2] = {{"kvzap", "kvzap:tau=-4"},
                                           {"kvzap:tau=-4.50", "kvzap:tau=-4.5"},
                                           {"kvzap:tau=0", "kvzap:tau=0"},
                                           {"kvzap:keep=0.125", "kvzap:keep=0.125"}};
    for (size_t i = 0; i < VC_ARRAY_LEN(texts); i++) {
        node_spec_t spec, again;
        cr_assert_eq(node_spec_parse(texts[i][0], &spec, NULL), VC_OK, "%s", texts[i][0]);
        cr_assert_str_eq(spec.text, texts[i][1]);
        cr_assert_eq(node_spec_parse(spec.text, &again, NULL), VC_OK);
        cr_assert(memcmp(&spec.id, &again.id, sizeof(spec.id)) == 0);
        cr_assert_eq(spec.ops->chooses, spec.keep > 0);
        cr_assert_str_eq(spec.ops->name, "kvzap");
    }
}

Test(kvzap, a_spec_with_both_or_with_nonsense_is_refused_by_name)
{
    static const char *const texts[][2] = {{"kvzap:tau=-4,keep=0.5", "tau or keep, not both"},
                                           {"kvzap:keep=0.5,tau=-4", "tau or keep, not both"},
                                           {"kvzap:keep=0", "keep=0"},
                                           {"kvzap:keep=1.01", "keep=1.01"},
                                           {"kvzap:tau=-100", "tau=-100"},
                                           {"kvzap:tau=nan", "tau=nan"},
                                           {"kvzap:window=64", "there are: tau, keep"}};
    for (size_t i = 0; i < VC_ARRAY_LEN(texts); i++) {
        node_spec_t spec;
        vc_err_t err = {0};
        cr_assert_eq(node_spec_parse(texts[i][0], &spec, &err), VC_ERR_INVALID, "%s", texts[i][0]);
        cr_assert_not_null(strstr(err.msg, texts[i][1]), "%s: %s", texts[i][0], err.msg);
    }
}

/* ---- blobs ---- */

static void refused(const node_model_info_t *m, const uint8_t *payload, size_t bytes, const char *words)
{
    vc_err_t err = {0};
    cr_assert_eq(node_codec_kvzap.calib_check(m, payload, bytes, &err), VC_ERR_CORRUPT, "%s", words);
    cr_assert_not_null(strstr(err.msg, words), "\"%s\" does not say \"%s\"", err.msg, words);
}

Test(kvzap, a_surrogate_that_cannot_be_is_refused)
{
    node_model_info_t m = fx_model(2, 4, 2, 16);
    size_t n;
    uint8_t *p = fx_kvzap_payload(&m, &n);
    cr_assert_eq(node_codec_kvzap.calib_check(&m, p, n, NULL), VC_OK);
    for (size_t cut = 0; cut < n; cut += 4)
        cr_assert_eq(node_codec_kvzap.calib_check(&m, p, cut, NULL), VC_ERR_CORRUPT);
    p[0] = 3;
    refused(&m, p, n, "start like none");
    p[0] = NODE_KVZAP_MLP;
    refused(&m, p, n, "0 hidden units");
    p[4] = 8;
    refused(&m, p, n, "this model needs");
    p[0] = NODE_KVZAP_RIDGE;
    refused(&m, p, n, "8 hidden units");
    p[4] = 0;
    p[12] = 1;
    refused(&m, p, n, "start like none");
    p[12] = 0;
    float *w = (float *)(void *)(p + 16), *q = (float *)(void *)(p + n) - NODE_KVZAP_QUANTILES;
    w[200] = NAN;
    refused(&m, p, n, "a weight of layer 1");
    w[200] = 0;
    q[7] = q[6] - 1;
    refused(&m, p, n, "do not ascend at 7");
    q[7] = INFINITY;
    refused(&m, p, n, "do not ascend at 7");
    node_model_info_t other = fx_model(2, 4, 1, 32);
    q[7] = q[6];
    refused(&other, p, n, "this model needs");
    vc_free(p);
}

Test(kvzap, the_share_above_a_threshold_is_read_between_quantiles)
{
    float q[NODE_KVZAP_QUANTILES];
    for (uint32_t i = 0; i < NODE_KVZAP_QUANTILES; i++)
        q[i] = (float)i * 0.5f - 100.0f;
    cr_assert(node_kvzap_share(q, -1000) == 1.0 && node_kvzap_share(q, -100) == 1.0);
    cr_assert(node_kvzap_share(q, 1000) == 0.0);
    cr_assert(node_kvzap_share(q, 28) == 0.0);
    for (double share = 0; share <= 1.0; share += 1.0 / 64)
        cr_assert(fabs(node_kvzap_share(q, node_kvzap_tau(q, share)) - share) < 1e-9, "%g", share);
    for (uint32_t i = 10; i < 200; i++)
        q[i] = -90.0f; /* many equal scores: all of them pass */
    double share = node_kvzap_share(q, -90);
    cr_assert(share > 1.0 - 11.0 / 256 && share < 1.0 - 9.0 / 256, "%g", share);
}

/* ---- what a registration keeps ---- */

typedef struct kept_share {
    double bits, share;
    uint32_t least, most; /* rows of a head of a block */
} kept_share_t;

static kept_share_t measure(const fx_t *f, const fx_records_t *r)
{
    const node_model_info_t *m = &f->model;
    kept_share_t s = {.least = NODE_TILE};
    uint32_t n_heads = m->n_layer * m->n_kv_head;
    for (uint32_t b = 0; b < r->n; b++)
        for (uint32_t i = 0; i < n_heads; i++) {
            uint32_t n = (uint32_t)__builtin_popcountll(fx_kept(r, b, i / m->n_kv_head, i % m->n_kv_head));
            s.share += n;
            s.least = VC_MIN(s.least, n);
            s.most = VC_MAX(s.most, n);
        }
    s.share /= (double)r->n * n_heads * NODE_TILE;
    for (uint32_t b = 0; b < r->n; b++) {
        vc_kvrec_head_t head;
        cr_assert_eq(vc_kvrec_check(r->data[b], r->bytes[b], &head, NULL), VC_OK);
        for (uint32_t l = 0; l < m->n_layer; l++) {
            vc_kvrec_layer_t part;
            vc_kvrec_layer(&head, l, &part);
            s.bits += 8.0 * part.length;
        }
    }
    s.bits /= (double)r->n * NODE_TILE * 2 * n_heads * m->head_dim;
    return s;
}

/* Defect guarded (real bytes, not nominal ones): what the scheduler hears is what records of such text hold. */
Test(kvzap, bits_of_a_threshold_are_those_of_the_texts_of_its_calibration)
{
    fx_t f;
    fx_open(&f, fx_model(2, 8, 4, 64), 8, 64, 120);
    node_spec_t unbound, spec = fx_spec("kvzap:tau=-4.5");
    fx_records_t r = {0};
    fx_compress(spec.text, &f.in, &r);
    kept_share_t s = measure(&f, &r);
    cr_assert(s.share > 0.3 && s.share < 0.8, "%g", s.share);
    node_calib_t blob = *spec.calib; /* the same surrogate, calibrated on this very text */
    blob.payload = vc_alloc_aligned(64, vc_align_up(blob.bytes, 64));
    memcpy(blob.payload, spec.calib->payload, blob.bytes);
    float *q = (float *)(void *)(blob.payload + blob.bytes) - NODE_KVZAP_QUANTILES;
    for (uint32_t i = 0; i < NODE_KVZAP_QUANTILES; i++)
        q[i] = (double)i < 256.0 * (1.0 - s.share) ? -5.0f : -4.0f;
    spec.calib = &blob;
    cr_assert(fabs(node_spec_bits_per_element(&spec, &f.model) - s.bits) <= 0.01 * s.bits, "%g bits, said %g", s.bits,
              node_spec_bits_per_element(&spec, &f.model));
    cr_assert_eq(node_spec_parse("kvzap:tau=-4.5", &unbound, NULL), VC_OK);
    cr_assert(node_spec_bits_per_element(&unbound, &f.model) >= 16.0); /* not known: never too few */
    vc_free(blob.payload);
    fx_records_free(&r);
    fx_close(&f);
}

/* Rows are judged by themselves: heads and blocks keep what they keep. */
Test(kvzap, a_threshold_keeps_exactly_the_rows_that_score_above_it)
{
    fx_t f;
    fx_open(&f, fx_model(2, 4, 2, 32), 4, 64, 121);
    node_spec_t spec = fx_spec("kvzap:tau=-4");
    node_kvzap_model_t model;
    cr_assert_eq(node_kvzap_model_open(&f.model, spec.calib->payload, spec.calib->bytes, &model, NULL), VC_OK);
    fx_records_t r = {0};
    fx_compress(spec.text, &f.in, &r);
    node_body_t *body = fx_body(spec.text, &f.model, &r, 4);
    float x[128], row[2];
    for (uint32_t l = 0; l < 2; l++) {
        uint32_t dropped[2] = {0};
        for (uint32_t t = 0; t < 4 * NODE_TILE; t++) {
            for (uint32_t i = 0; i < 128; i++) /* as fx_watch makes them up */
                x[i] = (float)(2.0 * golden_u(f.seed + 3, (((uint64_t)l * 5 + 1) * 65536 + t) * 4096 + i));
            node_kvzap_predict(&node_kvzap_scalar, &model, l, x, NULL, row);
            for (uint32_t h = 0; h < 2; h++) {
                bool kept = fx_kept(&r, t / NODE_TILE, l, h) >> t % NODE_TILE & 1;
                cr_assert_eq(kept, row[h] >= -4.0f, "layer %u head %u position %u scores %g", l, h, t, (double)row[h]);
                dropped[h] += !kept;
            }
        }
        for (uint32_t h = 0; h < 2; h++) {
            cr_assert(dropped[h] > 32 && dropped[h] < 224, "%u", dropped[h]);
            cr_assert_eq(node_body_n_dropped(body, l, h), dropped[h]);
        }
    }
    node_body_put(body);
    fx_records_free(&r);
    fx_close(&f);
}

Test(kvzap, a_share_is_kept_by_every_head_and_only_among_the_new_rows)
{
    fx_t f;
    fx_open(&f, fx_model(2, 4, 2, 32), 6, 64, 122);
    fx_records_t old = {0}, whole = {0};
    node_compress_in_t in = f.in;
    in.n_blocks = 3;
    fx_compress("kvzap:keep=0.25", &in, &old);
    in.first_block = 3;
    in.n_blocks = 6;
    fx_compress("kvzap:keep=0.25", &in, &old);
    fx_compress("kvzap:keep=0.25", &f.in, &whole);
    for (uint32_t i = 0; i < 4; i++)
        for (int half = 0; half < 2; half++) {
            uint32_t n = 0, n_whole = 0;
            for (uint32_t b = 0; b < 6; b++) {
                n += b / 3 == (uint32_t)half ? (uint32_t)__builtin_popcountll(fx_kept(&old, b, i / 2, i % 2)) : 0;
                n_whole += (uint32_t)__builtin_popcountll(fx_kept(&whole, b, i / 2, i % 2));
            }
            cr_assert_eq(n, 3 * NODE_TILE / 4);
            cr_assert_eq(n_whole, 6 * NODE_TILE / 4);
        }
    fx_records_free(&old);
    fx_records_free(&whole);
    fx_close(&f);
}

/* A budget that truncates to nothing left an empty cache, and attention over nothing is not a number. */
Test(kvzap, defect_2_the_smallest_share_of_the_shortest_text_keeps_a_row)
{
    for (uint32_t n = 1; n <= 3; n++) {
        fx_t f;
        fx_open(&f, fx_model(1, 2, 1, 32), n, 64, 123);
        fx_records_t r = {0};
        fx_compress("kvzap:keep=1e-9", &f.in, &r);
        uint32_t kept = 0;
        for (uint32_t b = 0; b < n; b++)
            kept += (uint32_t)__builtin_popcountll(fx_kept(&r, b, 0, 0));
        cr_assert_eq(kept, n <= 2 ? n * NODE_TILE : 1);
        node_body_t *body = fx_body("kvzap:keep=1e-9", &f.model, &r, n);
        cr_assert_geq(body->n_tiles[0], 1);
        node_body_put(body);
        fx_records_free(&r);
        fx_close(&f);
    }
}

/* Texts no longer than the window gave nonsense when compressed: a drafter reads all of one exactly, whatever the
 * records keep, and a choice among so few rows keeps them all. */
Test(kvzap, defect_26_a_text_within_the_window_is_drafted_on_uncompressed)
{
    static const char *const texts[] = {"kvzap:tau=99", "kvzap:keep=0.01"};
    for (int s = 0; s < 2; s++) {
        fx_t f;
        fx_open(&f, fx_model(2, 4, 2, 32), 2, 64, 124);
        node_spec_t spec = fx_spec(texts[s]);
        fx_records_t r = {0};
        fx_compress(texts[s], &f.in, &r);
        const uint32_t window = spec.ops->window_tokens(&spec);
        cr_assert_eq(window, 128);
        node_body_builder_t *b;
        node_body_t *body;
        cr_assert_eq(node_body_begin(&spec, &f.model, 2, &b, NULL), VC_OK);
        for (uint32_t i = 0; i < 2; i++)
            cr_assert_eq(node_body_add_record(b, r.data[i], r.bytes[i], NULL), VC_OK);
        for (uint32_t i = 0; i < window / NODE_TILE; i++)
            cr_assert_eq(node_body_add_page(b, i, node_kv_page_at(&f.kv, i)), VC_OK);
        cr_assert_eq(node_body_finish(b, &body, NULL), VC_OK);
        for (uint32_t i = 0; i < 4; i++)
            cr_assert_eq(node_body_n_dropped(body, i / 2, i % 2), 0);
        cr_assert_eq(measure(&f, &r).share, s == 0 ? 0.0 : 1.0);
        node_body_put(body);
        fx_records_free(&r);
        fx_close(&f);
    }
}

Test(kvzap, rows_that_were_not_seen_or_not_scored_are_refused)
{
    static const char *const texts[] = {"kvzap:tau=-4", "kvzap:keep=0.5"};
    for (int s = 0; s < 2; s++) {
        fx_t f;
        fx_open(&f, fx_model(2, 4, 2, 32), 4, 64, 125);
        node_spec_t spec = fx_spec(texts[s]);
        fx_records_t r = {0};
        vc_err_t err = {0};
        cr_assert_eq(node_compress(&spec, &f.in, fx_keep, &r, &err), VC_ERR_INVALID);
        cr_assert_not_null(strstr(err.msg, "has not seen"), "%s", err.msg);
        node_watch_t w = fx_watch(&spec, &f, &f.in);
        node_compress_in_t in = f.in;
        in.watched = w.state;
        in.first_block = 1; /* of another span */
        cr_assert_eq(node_compress(&spec, &in, fx_keep, &r, &err), VC_ERR_INVALID);
        in.first_block = 0;
        float x[128] = {0};
        x[3] = INFINITY; /* times two weights of different sign, or of zero */
        x[4] = -INFINITY;
        for (int i = 5; i < 128; i++)
            x[i] = i % 2 ? INFINITY : -INFINITY;
        spec.ops->watch_row(w.state, NODE_CAP_X, 1, 70, x);
        cr_assert_eq(node_compress(&spec, &in, fx_keep, &r, &err), VC_ERR_INVALID);
        cr_assert_not_null(strstr(err.msg, "layer 1, head 0, position 70"), "%s", err.msg);
        spec.ops->watch_free(w.state);
        cr_assert_eq(r.n, 0);
        fx_close(&f);
    }
}

Test(kvzap, a_spec_without_its_calibration_watches_nothing)
{
    node_model_info_t m = fx_model(2, 4, 2, 32);
    node_spec_t spec;
    node_watch_t w = {0};
    vc_err_t err = {0};
    cr_assert_eq(node_spec_parse("kvzap", &spec, NULL), VC_OK);
    cr_assert_eq(spec.ops->needs(&spec), NODE_NEED_CALIB);
    cr_assert_eq(spec.ops->watch(&spec, &m, 0, 64, &w, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "vericache-node calibrate"), "%s", err.msg);
    cr_assert_null(w.state);
}
