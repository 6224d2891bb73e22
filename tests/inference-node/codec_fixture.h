/*
 * What the compressor suites share: a made-up model without weights, full KV of hashed numbers, records kept in memory.
 * Static functions only; each suite is a program of its own. Not every suite uses every function.
 */
#ifndef CODEC_FIXTURE_H
#define CODEC_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compress/calib.h"
#include "compress/codec_int.h"
#include "compress/expatt_int.h"
#include "compress/kvzap_int.h"
#include "kernels/numerics.h"
#include "kvquant_fixture.h"
#include "model/rope.h"
#include "support/golden.h"
#include "support/tiny_model.h"
#include "support/vc_test.h"
#include "vc/mem.h"

#pragma GCC diagnostic ignored "-Wunused-function"

/* Frequencies of plain RoPE; one table per head size, never freed. */
static const float *fx_inv_freq(uint32_t head_dim)
{
    enum { N_TABLES = 16, DIM_MAX = 1024 };
    static float tables[N_TABLES][DIM_MAX / 2];
    static uint32_t dims[N_TABLES];
    cr_assert_leq(head_dim, DIM_MAX);
    for (int i = 0; i < N_TABLES; i++) {
        if (dims[i] == 0) {
            const node_rope_t rope = {.kind = NODE_ROPE_DEFAULT, .dims = head_dim, .theta = 10000.0};
            float mscale;
            dims[i] = head_dim;
            node_rope_inv_freq(&rope, tables[i], &mscale);
        }
        if (dims[i] == head_dim)
            return tables[i];
    }
    cr_assert(false, "more head sizes than tables");
    return NULL;
}

/* The model that specs of calibrated methods are bound for: the last one made or named. */
static node_model_info_t fx_bound_model;
static void fx_bind_to(const node_model_info_t *m) { fx_bound_model = *m; }

static node_model_info_t fx_model(uint32_t n_layer, uint32_t n_head, uint32_t n_kv_head, uint32_t head_dim)
{
    node_model_info_t m;
    memset(&m, 0, sizeof(m));
    snprintf(m.arch, sizeof(m.arch), "llama");
    m.n_layer = n_layer;
    m.n_head = n_head;
    m.n_kv_head = n_kv_head;
    m.head_dim = head_dim;
    m.d_model = n_head * head_dim;
    m.context = 8192;
    m.rope_dims = head_dim;
    m.rope_theta = 10000.0;
    m.rope_mscale = 1.0f;
    m.rope_inv_freq = fx_inv_freq(head_dim);
    m.keyspace.shape = (vc_kv_shape_t){n_layer, n_kv_head, head_dim, NODE_TILE, VC_DTYPE_F16};
    m.keyspace.layout_version = VC_LAYOUT_VERSION;
    snprintf(m.keyspace.rope, sizeof(m.keyspace.rope), "neox theta=10000 dims=%u", head_dim);
    cr_assert_eq(vc_keyspace_id(&m.keyspace, &m.keyspace_id, NULL), VC_OK);
    fx_bind_to(&m);
    return m;
}

/* Full KV of n_blocks blocks with numbers in [-2, 2). */
static node_kv_t fx_kv(const node_model_info_t *m, uint32_t n_blocks, uint32_t seed)
{
    const node_kv_dims_t dims = {m->n_layer, m->n_kv_head, m->head_dim};
    node_kv_t kv;
    cr_assert_eq(node_kv_init(&kv, &dims, NULL), VC_OK);
    const size_t half = (size_t)m->head_dim * NODE_TILE;
    uint64_t i = 0;
    for (uint32_t b = 0; b < n_blocks; b++) {
        node_page_t *page = node_page_create(&dims);
        cr_assert_not_null(page);
        for (uint32_t l = 0; l < m->n_layer; l++)
            for (uint32_t h = 0; h < m->n_kv_head; h++)
                for (size_t e = 0; e < half; e++) {
                    node_page_k(page, l, h)[e] = node_f16_from_f32((float)(2.0 * golden_u(seed, i++)));
                    node_page_v(page, l, h)[e] = node_f16_from_f32((float)(2.0 * golden_u(seed, i++)));
                }
        cr_assert_eq(node_kv_append_page(&kv, page), VC_OK);
    }
    return kv;
}

static uint32_t *fx_tokens(uint32_t n_blocks, uint32_t seed)
{
    uint32_t *tokens = vc_calloc((size_t)n_blocks * NODE_TILE, sizeof(*tokens));
    cr_assert_not_null(tokens);
    for (uint32_t i = 0; i < n_blocks * NODE_TILE; i++)
        tokens[i] = (uint32_t)(500.0 * (1.0 + golden_u(seed, i)));
    return tokens;
}

/* Everything that a compression takes, owned together. What methods watch: queries from q, the rest made up. */
typedef struct fx {
    node_model_info_t model;
    node_kv_t kv;
    uint32_t *tokens;
    float *q; /* [n_layer][n_tokens][n_head][head_dim] */
    uint32_t seed;
    node_compress_in_t in; /* model, kv and tokens above */
} fx_t;

/* Queries of a token in a layer. */
static float *fx_q(const fx_t *f, uint32_t layer, uint32_t position)
{
    size_t n_tokens = (size_t)f->kv.n_tokens;
    return f->q + ((size_t)layer * n_tokens + position) * f->model.n_head * f->model.head_dim;
}

/* Queries of the last `window` tokens are numbered for themselves, so that they do not depend on the text's length. */
static void fx_fill_queries(fx_t *f, uint32_t window, uint32_t seed)
{
    const size_t width = (size_t)f->model.n_head * f->model.head_dim, n_tokens = f->kv.n_tokens;
    const size_t rest = n_tokens - window;
    f->q = vc_calloc(f->model.n_layer * n_tokens * width, sizeof(*f->q));
    cr_assert_not_null(f->q);
    for (uint32_t l = 0; l < f->model.n_layer; l++)
        for (size_t t = 0; t < n_tokens; t++)
            for (size_t i = 0; i < width; i++) {
                bool in = t >= rest;
                uint64_t number = in ? (l * window + (t - rest)) * width + i : (l * rest + t) * width + i;
                fx_q(f, l, (uint32_t)t)[i] = (float)(2.0 * golden_u(in ? seed : seed + 50, number));
            }
}

/* Fills in place: in.model and in.kv point into f. */
static void fx_open(fx_t *f, node_model_info_t model, uint32_t n_blocks, uint32_t window, uint32_t seed)
{
    memset(f, 0, sizeof(*f));
    f->model = model;
    f->seed = seed;
    f->kv = fx_kv(&f->model, n_blocks, seed);
    f->tokens = fx_tokens(n_blocks, seed + 1);
    fx_fill_queries(f, VC_MIN(window, n_blocks * NODE_TILE), seed + 2);
    f->in = (node_compress_in_t){.model = &f->model, .kv = &f->kv, .tokens = f->tokens, .n_blocks = n_blocks};
}

static void fx_close(fx_t *f)
{
    node_kv_fini(&f->kv);
    vc_free(f->tokens);
    vc_free(f->q);
}

/* What a method that watches [in->first_block, in->n_blocks) has seen of f in the end; kinds 0: nothing. */
static node_watch_t fx_watch(const node_spec_t *spec, const fx_t *f, const node_compress_in_t *in)
{
    static const node_capture_kind_t kinds[] = {NODE_CAP_RESID, NODE_CAP_X, NODE_CAP_Q, NODE_CAP_K, NODE_CAP_V};
    const node_model_info_t *m = in->model;
    node_watch_t w = {0};
    vc_err_t err = {0};
    if (spec->ops->watch == NULL)
        return w;
    cr_assert_eq(spec->ops->watch(spec, m, in->first_block * NODE_TILE, in->n_blocks * NODE_TILE, &w, &err), VC_OK,
                 "%s", err.msg);
    size_t width = VC_MAX(m->d_model, m->n_kv_head * m->head_dim);
    float *made_up = vc_calloc(width, sizeof(*made_up));
    for (uint32_t l = 0; l < m->n_layer; l++)
        for (size_t k = 0; k < VC_ARRAY_LEN(kinds); k++)
            for (uint32_t t = w.first; (w.kinds & kinds[k]) != 0 && t < w.end; t++) {
                for (size_t i = 0; kinds[k] != NODE_CAP_Q && i < width; i++)
                    made_up[i] = (float)(2.0 * golden_u(f->seed + 3, (((uint64_t)l * 5 + k) * 65536 + t) * 4096 + i));
                spec->ops->watch_row(w.state, kinds[k], l, t, kinds[k] == NODE_CAP_Q ? fx_q(f, l, t) : made_up);
            }
    vc_free(made_up);
    return w;
}

/* ---- made-up calibrations ---- */

/* Half of the rows that fx_watch makes up score above -4. */
static uint8_t *fx_kvzap_payload(const node_model_info_t *m, size_t *bytes_p)
{
    const size_t n = node_kvzap_payload_bytes(NODE_KVZAP_RIDGE, m->n_layer, m->n_kv_head, m->d_model, 0);
    uint8_t *payload = vc_alloc_aligned(64, vc_align_up(n, 64));
    cr_assert_not_null(payload);
    const uint32_t head[4] = {NODE_KVZAP_RIDGE, 0, NODE_KVZAP_QUANTILES, 0};
    float *w = (float *)(void *)(payload + sizeof(head)), *end = (float *)(void *)(payload + n);
    memcpy(payload, head, sizeof(head));
    golden_fill(9, 0.5, w, (size_t)(end - w));
    for (uint32_t l = 0; l < m->n_layer; l++, w += m->n_kv_head) {
        w += (size_t)m->n_kv_head * m->d_model;
        for (uint32_t h = 0; h < m->n_kv_head; h++)
            w[h] = -4.0f + 0.1f * (float)h;
    }
    for (uint32_t i = 0; i < NODE_KVZAP_QUANTILES; i++)
        w[i] = -10.0f + 12.0f * (float)i / (NODE_KVZAP_QUANTILES - 1);
    *bytes_p = n;
    return payload;
}

/* Every channel once, in an order of its own per layer. */
static uint8_t *fx_rotatekv_payload(const node_model_info_t *m, size_t *bytes_p)
{
    const uint32_t width = m->n_kv_head * m->head_dim, step = width % 11 ? 11 : 13;
    *bytes_p = (size_t)m->n_layer * width * 2;
    uint8_t *payload = vc_alloc_aligned(64, vc_align_up(*bytes_p, 64));
    cr_assert_not_null(payload);
    for (uint32_t i = 0; i < m->n_layer * width; i++) {
        const uint32_t channel = (i % width * step + i / width) % width;
        payload[2 * (size_t)i] = (uint8_t)channel;
        payload[2 * (size_t)i + 1] = (uint8_t)(channel >> 8);
    }
    return payload;
}

/* Queries with a mean of their own and a covariance that is not diagonal. */
static uint8_t *fx_expatt_payload(const node_model_info_t *m, size_t *bytes_p)
{
    const uint32_t d = m->head_dim, n_heads = m->n_layer * m->n_head;
    const size_t n = 64 + (size_t)n_heads * (d + 1) * d * sizeof(float);
    uint8_t *payload = vc_alloc_aligned(64, vc_align_up(n, 64));
    cr_assert_not_null(payload);
    memset(payload, 0, n);
    payload[1] = 1; /* 256 tokens */
    for (uint32_t h = 0; h < n_heads; h++) {
        float *mean = (float *)(uintptr_t)node_expatt_blob_head(m, payload, h / m->n_head, h % m->n_head);
        float *cov = mean + d, axis[NODE_HEAD_DIM_MAX];
        golden_fill(31 + h, 1.0, mean, d);
        golden_fill(77 + h, 1.0, axis, d);
        for (uint32_t i = 0; i < d; i++)
            for (uint32_t j = 0; j < d; j++)
                cov[i * d + j] = (i == j ? 0.5f : 0.0f) + axis[i] * axis[j];
    }
    *bytes_p = n;
    return payload;
}

/* Payload of a blob that a method can use for the model; a calibrated method adds its line. */
static uint8_t *fx_payload(const node_codec_ops_t *ops, const node_model_info_t *m, size_t *bytes_p)
{
    if (strcmp(ops->name, "kvzap") == 0)
        return fx_kvzap_payload(m, bytes_p);
    if (strcmp(ops->name, "rotatekv") == 0)
        return fx_rotatekv_payload(m, bytes_p);
    if (strcmp(ops->name, "kvquant") == 0)
        return kvq_plain_payload(m, bytes_p);
    if (strcmp(ops->name, "expected_attention") == 0)
        return fx_expatt_payload(m, bytes_p);
    cr_assert(false, "no made-up calibration for %s", ops->name);
    return NULL;
}

/* One blob per method and shape, kept for the life of the process. */
static const node_calib_t *fx_calib(const node_codec_ops_t *ops, const node_model_info_t *m)
{
    enum { N_BLOBS = 64 };
    static struct {
        const node_codec_ops_t *ops;
        uint32_t shape[5];
        node_calib_t blob;
    } made[N_BLOBS];
    const uint32_t shape[5] = {m->n_layer, m->n_head, m->n_kv_head, m->head_dim, m->d_model};
    for (int i = 0; i < N_BLOBS; i++) {
        node_calib_t *blob = &made[i].blob;
        if (blob->payload == NULL) {
            vc_err_t err = {0};
            made[i].ops = ops;
            memcpy(made[i].shape, shape, sizeof(shape));
            blob->payload = fx_payload(ops, m, &blob->bytes);
            vc_blake2b(blob->payload, blob->bytes, &blob->digest);
            cr_assert_eq(ops->calib_check(m, blob->payload, blob->bytes, &err), VC_OK, "%s", err.msg);
        }
        if (made[i].ops == ops && memcmp(made[i].shape, shape, sizeof(shape)) == 0)
            return blob;
    }
    cr_assert(false, "more made-up calibrations than room");
    return NULL;
}

/* A spec that needs a calibration is bound to one for the model at hand (fx_bind_to). */
static node_spec_t fx_spec(const char *text)
{
    node_spec_t spec;
    vc_err_t err = {0};
    cr_assert_eq(node_spec_parse(text, &spec, &err), VC_OK, "%s: %s", text, err.msg);
    if ((spec.ops->needs(&spec) & NODE_NEED_CALIB) != 0)
        node_spec_bind(&spec, fx_calib(spec.ops, &fx_bound_model));
    return spec;
}

#define FX_MAX_BLOCKS 80u
typedef struct fx_records {
    uint32_t n; /* highest block + 1 */
    uint8_t *data[FX_MAX_BLOCKS];
    size_t bytes[FX_MAX_BLOCKS];
} fx_records_t;

static int fx_keep(void *arg, uint32_t block, const void *record, size_t bytes)
{
    fx_records_t *r = arg;
    cr_assert_lt(block, FX_MAX_BLOCKS);
    cr_assert_null(r->data[block]);
    r->data[block] = vc_memdup(record, bytes);
    cr_assert_not_null(r->data[block]);
    r->bytes[block] = bytes;
    r->n = VC_MAX(r->n, block + 1);
    return 0;
}

/* A replay on an engine of the model's shape with random weights, kept for the life of the process: one for all. */
static const node_replay_t *fx_replay(const node_model_info_t *m)
{
    enum { N_ENGINES = 16 };
    static const uint32_t first[] = {7, 11, 13}, next[] = {17, 19}, suffix[] = {23};
    static node_replay_t made[N_ENGINES];
    static node_gguf_t *files[N_ENGINES]; /* outlive their engines, and are reachable for the leak checker */
    for (int i = 0; i < N_ENGINES; i++) {
        if (made[i].engine == NULL) {
            tiny_model_opts_t opts;
            vc_err_t err = {0};
            tiny_model_opts_default(&opts);
            opts.n_layer = m->n_layer;
            opts.n_head = m->n_head;
            opts.n_kv_head = m->n_kv_head;
            opts.head_dim = m->head_dim;
            opts.d_model = m->d_model;
            opts.n_vocab = 1000; /* what fx_tokens gives */
            opts.f32 = true;
            const gguf_image_t image = tiny_model_build(&opts);
            made[i] = (node_replay_t){.first = first,
                                      .next = next,
                                      .suffix = suffix,
                                      .n_first = VC_ARRAY_LEN(first),
                                      .n_next = VC_ARRAY_LEN(next),
                                      .n_suffix = VC_ARRAY_LEN(suffix)};
            node_engine_opts_t eopts;
            node_engine_opts_default(&eopts);
            eopts.n_threads = 1;
            cr_assert_eq(node_gguf_open_memory(image.data, image.bytes, &files[i], &err), VC_OK, "%s", err.msg);
            cr_assert_eq(node_engine_create(files[i], NULL, &eopts, &made[i].engine, &err), VC_OK, "%s", err.msg);
        }
        const node_model_info_t *have = node_engine_info(made[i].engine);
        if (have->n_layer == m->n_layer && have->n_head == m->n_head && have->n_kv_head == m->n_kv_head &&
            have->head_dim == m->head_dim)
            return &made[i];
    }
    cr_assert(false, "more shapes than room for engines");
    return NULL;
}

/* node_compress after the watching; `in` is (a copy of) an fx_t's, or has its watched state already. */
static vc_status_t fx_try_compress(const node_spec_t *spec, const node_compress_in_t *in, node_record_fn on_record,
                                   void *arg, vc_err_t *err)
{
    node_compress_in_t shown = *in;
    node_watch_t w = {0};
    if (in->replay == NULL && (spec->ops->needs(spec) & NODE_NEED_REPLAY) != 0)
        shown.replay = fx_replay(in->model);
    if (in->watched == NULL && spec->ops->watch != NULL) {
        const fx_t *f = (const fx_t *)(const void *)((const char *)in->kv - offsetof(fx_t, kv));
        w = fx_watch(spec, f, in);
        shown.watched = w.state;
    }
    vc_status_t st = node_compress(spec, &shown, on_record, arg, err);
    if (w.state != NULL)
        spec->ops->watch_free(w.state);
    return st;
}

static void fx_compress(const char *spec_text, const node_compress_in_t *in, fx_records_t *out)
{
    node_spec_t spec = fx_spec(spec_text);
    vc_err_t err = {0};
    cr_assert_eq(fx_try_compress(&spec, in, fx_keep, out, &err), VC_OK, "%s: %s", spec_text, err.msg);
}

static void fx_records_free(fx_records_t *r)
{
    for (uint32_t b = 0; b < r->n; b++)
        vc_free(r->data[b]);
    memset(r, 0, sizeof(*r));
}

static bool fx_records_equal(const fx_records_t *a, const fx_records_t *b)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->bytes[i] != b->bytes[i] || memcmp(a->data[i], b->data[i], a->bytes[i]) != 0)
            return false;
    return true;
}

/* Body of the first n_blocks records. */
static node_body_t *fx_body_loaded(const char *spec_text, const node_model_info_t *m, const fx_records_t *r,
                                   uint32_t n_blocks, node_load_t load)
{
    node_spec_t spec = fx_spec(spec_text);
    node_body_builder_t *b;
    node_body_t *body = NULL;
    vc_err_t err = {0};
    cr_assert_eq(node_body_begin(&spec, m, n_blocks, &b, &err), VC_OK, "%s", err.msg);
    node_body_set_load(b, load);
    for (uint32_t i = 0; i < n_blocks; i++)
        cr_assert_eq(node_body_add_record(b, r->data[i], r->bytes[i], &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_body_finish(b, &body, &err), VC_OK, "%s", err.msg);
    return body;
}

static node_body_t *fx_body(const char *spec_text, const node_model_info_t *m, const fx_records_t *r, uint32_t n_blocks)
{
    return fx_body_loaded(spec_text, m, r, n_blocks, NODE_LOAD_CODES);
}

/* Kept rows of one head of one block, as the record's bytes say; droppers only. */
static uint64_t fx_kept(const fx_records_t *r, uint32_t block, uint32_t layer, uint32_t head)
{
    vc_kvrec_head_t h;
    vc_kvrec_layer_t part;
    cr_assert_eq(vc_kvrec_check(r->data[block], r->bytes[block], &h, NULL), VC_OK);
    vc_kvrec_layer(&h, layer, &part);
    const uint8_t *at = r->data[block] + part.offset;
    for (uint32_t i = 0;; i++) {
        uint64_t kept;
        memcpy(&kept, at, sizeof(kept));
        if (i == head)
            return kept;
        at += node_dropper_head_bytes((uint32_t)__builtin_popcountll(kept), h.shape.head_dim);
    }
}

/* Bytes of layer 0 of four blocks, with so many query heads on 4 KV heads of 32. */
static size_t fx_layer_bytes(const char *spec, uint32_t n_head, uint32_t seed)
{
    fx_t f;
    fx_open(&f, fx_model(1, n_head, 4, 32), 4, 64, seed);
    fx_records_t r = {0};
    fx_compress(spec, &f.in, &r);
    size_t bytes = 0;
    for (uint32_t b = 0; b < 4; b++) {
        vc_kvrec_head_t head;
        vc_kvrec_layer_t part;
        cr_assert_eq(vc_kvrec_check(r.data[b], r.bytes[b], &head, NULL), VC_OK);
        vc_kvrec_layer(&head, 0, &part);
        bytes += part.length;
    }
    fx_records_free(&r);
    fx_close(&f);
    return bytes;
}

#endif
