/*
 * ExpectedAttention over a small model: statistics made once, from texts, and drafts behind what was kept.
 */
#include <math.h>

#include "codec_fixture.h"
#include "role/local_body.h"

/* ---- statistics made once ---- */

static uint32_t n_kept(const fx_records_t *r, uint32_t first, uint32_t end, uint32_t layer, uint32_t head)
{
    uint32_t n = 0;
    for (uint32_t b = first; b < end; b++)
        n += (uint32_t)__builtin_popcountll(fx_kept(r, b, layer, head));
    return n;
}

Test(expected_attention_engine, offline_statistics_watch_nothing_and_need_the_blob)
{
    fx_t f;
    fx_open(&f, fx_model(2, 4, 2, 32), 4, 64, 120);
    node_spec_t spec;
    node_watch_t w = {.kinds = 99};
    vc_err_t err = {0};
    fx_records_t r = {0}, again = {0};
    cr_assert_eq(node_spec_parse("expected_attention:stats=offline", &spec, NULL), VC_OK);
    cr_assert_eq(spec.ops->watch(&spec, &f.model, 0, 4 * NODE_TILE, &w, NULL), VC_OK);
    cr_assert(w.kinds == 0 && w.state == NULL);
    cr_assert_eq(node_compress(&spec, &f.in, fx_keep, &r, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "calibration"));
    fx_compress("expected_attention:stats=offline", &f.in, &r);
    for (uint32_t i = 0; i < 4; i++)
        cr_assert_eq(n_kept(&r, 0, 4, i / 2, i % 2), 128);
    memset(f.q, 0, 2ull * 4 * NODE_TILE * 4 * 32 * sizeof(float)); /* queries of the text do not matter */
    fx_compress("expected_attention:stats=offline", &f.in, &again);
    cr_assert(fx_records_equal(&r, &again));
    fx_records_free(&r);
    fx_records_free(&again);
    fx_close(&f);
}

Test(expected_attention_engine, statistics_that_are_none_are_refused)
{
    node_model_info_t m = fx_model(2, 4, 2, 16);
    const node_codec_ops_t *ops = fx_spec("expected_attention").ops;
    size_t bytes;
    uint8_t *payload = fx_expatt_payload(&m, &bytes);
    cr_assert_eq(ops->calib_check(&m, payload, bytes, NULL), VC_OK);
    cr_assert_eq(ops->calib_check(&m, payload, bytes - 4, NULL), VC_ERR_CORRUPT);
    float *mean = (float *)(uintptr_t)node_expatt_blob_head(&m, payload, 1, 2), *cov = mean + 16;
    struct {
        float *at, value;
    } wrong[] = {{mean + 3, NAN}, {cov + 17, -1.0f}, {cov + 5, 3.0f}, {cov + 34, INFINITY}};
    for (size_t i = 0; i < VC_ARRAY_LEN(wrong); i++) {
        vc_err_t err = {0};
        float was = *wrong[i].at;
        *wrong[i].at = wrong[i].value;
        cr_assert_eq(ops->calib_check(&m, payload, bytes, &err), VC_ERR_CORRUPT, "%zu", i);
        cr_assert_not_null(strstr(err.msg, "layer 1, head 2"), "%s", err.msg);
        *wrong[i].at = was;
    }
    payload[63] = 1;
    cr_assert_eq(ops->calib_check(&m, payload, bytes, NULL), VC_ERR_CORRUPT);
    payload[63] = payload[1] = 0;
    cr_assert_eq(ops->calib_check(&m, payload, bytes, NULL), VC_ERR_CORRUPT, "of no tokens");
    vc_free(payload);
}

typedef struct take_queries {
    float *q; /* [layer][position][n_head * head_dim] */
    const node_model_info_t *m;
    uint32_t n;
    uint32_t last_position;
} take_queries_t;

static void take_query(void *arg, node_capture_kind_t kind, uint32_t layer, uint32_t row, uint32_t position,
                       const float *values)
{
    (void)kind, (void)row;
    take_queries_t *t = arg;
    const size_t width = (size_t)t->m->n_head * t->m->head_dim;
    if (position < t->n)
        memcpy(t->q + ((size_t)layer * t->n + position) * width, values, width * sizeof(float));
    t->last_position = position;
}

typedef struct small {
    gguf_image_t image;
    node_gguf_t *gguf;
    node_engine_t *engine;
    const node_model_info_t *m;
    node_kv_dims_t dims;
} small_t;

static small_t open_small(void)
{
    small_t s = {0};
    tiny_model_opts_t opts;
    node_engine_opts_t engine;
    vc_err_t err = {0};
    tiny_model_opts_default(&opts);
    node_engine_opts_default(&engine);
    s.image = tiny_model_build(&opts);
    cr_assert_eq(node_gguf_open_memory(s.image.data, s.image.bytes, &s.gguf, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_engine_create(s.gguf, NULL, &engine, &s.engine, &err), VC_OK, "%s", err.msg);
    s.m = node_engine_info(s.engine);
    node_engine_kv_dims(s.engine, &s.dims);
    return s;
}

static void close_small(small_t *s)
{
    node_engine_destroy(s->engine);
    node_gguf_close(s->gguf);
    gguf_image_free(&s->image);
}

static void count_note(void *arg, const char *line)
{
    cr_assert_not_null(strstr(line, "tokens"));
    ++*(uint32_t *)arg;
}

/* Two texts, one of which ends inside a block: the statistics are those of all their rows but the sinks. */
Test(expected_attention_engine, calibration_takes_every_row_of_every_text)
{
    enum { N1 = 150, N2 = 64, D_MAX = 64 };
    small_t s = open_small();
    uint32_t text[N1], notes = 0;
    for (uint32_t i = 0; i < N1; i++)
        text[i] = TINY_ID_FIRST_BYTE + (i * 37 + i / 5) % 256;
    const uint32_t *texts[] = {text, text + 11, text}, sizes[] = {N1, N2, 3};
    const node_calib_job_t job = {.replay = {.engine = s.engine},
                                  .texts = texts,
                                  .n_tokens = sizes,
                                  .n_texts = 3,
                                  .note = count_note,
                                  .note_arg = &notes};
    node_spec_t spec;
    void *payload = NULL;
    size_t bytes;
    vc_err_t err = {0};
    cr_assert_eq(node_spec_parse("expected_attention:stats=offline", &spec, NULL), VC_OK);
    cr_assert_eq(spec.ops->calibrate(&spec, &job, &payload, &bytes, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(notes, 1);
    cr_assert_eq(spec.ops->calib_check(s.m, payload, bytes, &err), VC_OK, "%s", err.msg);
    const uint32_t d = s.m->head_dim, n = N1 - 4 + N2 - 4;
    const size_t width = (size_t)s.m->n_head * d;
    double *sum = calloc(s.m->n_layer * width, sizeof(double));
    cr_assert_leq(d, D_MAX);
    for (int t = 0; t < 2; t++) {
        take_queries_t take = {.m = s.m, .n = sizes[t]};
        take.q = vc_calloc(s.m->n_layer * sizes[t] * width, sizeof(float));
        const node_capture_t capture = {NODE_CAP_Q, take_query, &take};
        node_kv_t kv;
        node_kv_init(&kv, &s.dims, NULL);
        cr_assert_eq(node_prefill(s.engine, &kv, texts[t], sizes[t], NULL, &capture, &err), VC_OK);
        for (uint32_t l = 0; l < s.m->n_layer; l++)
            for (uint32_t p = 4; p < sizes[t]; p++)
                for (uint32_t h = 0; h < s.m->n_head; h++)
                    for (uint32_t i = 0; i < d / 2; i++) {
                        const float *q = take.q + ((size_t)l * sizes[t] + p) * width + h * d;
                        double a = p * (double)s.m->rope_inv_freq[i];
                        sum[l * width + h * d + i] += (double)q[i] * cos(a) + (double)q[i + d / 2] * sin(a);
                        sum[l * width + h * d + i + d / 2] += (double)q[i + d / 2] * cos(a) - (double)q[i] * sin(a);
                    }
        node_kv_fini(&kv);
        vc_free(take.q);
    }
    for (uint32_t l = 0; l < s.m->n_layer; l++)
        for (uint32_t h = 0; h < s.m->n_head; h++)
            for (uint32_t i = 0; i < d; i++) {
                double got = (double)node_expatt_blob_head(s.m, payload, l, h)[i],
                       want = sum[l * width + h * d + i] / n;
                cr_assert(fabs(got - want) < 1e-4, "layer %u head %u channel %u: %g, not %g", l, h, i, got, want);
            }
    free(sum);
    vc_free(payload);
    close_small(&s);
}

/* The position after a compressed text is the text's length, however few rows are left of it. */
Test(expected_attention_engine, drafts_go_on_at_the_length_of_the_text_not_of_what_was_kept)
{
    enum { N = 4 * NODE_TILE };
    static const char *const specs[] = {"expected_attention:keep=0.1", "snapkv:keep=0.1"};
    small_t s = open_small();
    uint32_t text[N + 1];
    for (uint32_t i = 0; i <= N; i++)
        text[i] = TINY_ID_FIRST_BYTE + (i * 37 + i / 5) % 256;
    for (size_t i = 0; i < VC_ARRAY_LEN(specs); i++) {
        node_spec_t spec = fx_spec(specs[i]);
        node_kv_t full, kv;
        node_body_t *body;
        vc_err_t err = {0};
        node_kv_init(&full, &s.dims, NULL);
        cr_assert_eq(node_prefill(s.engine, &full, text, N, NULL, NULL, &err), VC_OK);
        cr_assert_eq(node_local_body(s.engine, &spec, &full, text, 4, &body, &err), VC_OK, "%s", err.msg);
        cr_assert_gt(node_body_n_dropped(body, 0, 0), NODE_TILE);
        node_kv_init(&kv, &s.dims, body);
        node_body_put(body);
        take_queries_t take = {.m = s.m};
        const node_capture_t capture = {NODE_CAP_Q, take_query, &take};
        cr_assert_eq(node_prefill(s.engine, &kv, text + N, 1, NULL, &capture, &err), VC_OK);
        cr_assert_eq(take.last_position, N);
        node_kv_fini(&kv);
        node_kv_fini(&full);
    }
    close_small(&s);
}
