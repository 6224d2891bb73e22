/*
 * KVQuant's blobs: what cannot be is refused, and a calibration learns the same from the same texts everywhere.
 */
#include <math.h>

#include "codec_fixture.h"
#include "support/tiny_model.h"

static node_spec_t bound_spec(const char *text, const node_calib_t *calib)
{
    node_spec_t spec;
    cr_assert_eq(node_spec_parse(text, &spec, NULL), VC_OK);
    node_spec_bind(&spec, calib);
    return spec;
}

/* ---- blobs ---- */

Test(kvquant_calib, a_blob_that_cannot_be_is_refused)
{
    const node_model_info_t m = fx_model(2, 4, 2, 16);
    size_t n;
    vc_err_t err = {0};
    uint8_t *p = kvq_plain_payload(&m, &n);
    float *x = (float *)(void *)(p + 32);
    cr_assert_eq(node_kvquant_calib_check(&m, p, n, &err), VC_OK);
    for (size_t cut = 0; cut < n; cut += 3)
        cr_assert_eq(node_kvquant_calib_check(&m, p, cut, &err), VC_ERR_CORRUPT);
    static const struct {
        size_t at;
        float value;
    } bad[] = {{0, -3.0f}, {5, NAN}, {5, 1e9f}, {32, INFINITY}, {33, -1e6f}, {64, -1.5f}, {67, -0.5f}, {119, NAN}};
    for (size_t i = 0; i < VC_ARRAY_LEN(bad); i++) {
        float was = x[bad[i].at];
        x[bad[i].at] = bad[i].value;
        cr_assert_eq(node_kvquant_calib_check(&m, p, n, &err), VC_ERR_CORRUPT, "%zu", i);
        x[bad[i].at] = was;
    }
    p[4] = 9; /* how it was weighed */
    cr_assert_eq(node_kvquant_calib_check(&m, p, n, &err), VC_ERR_CORRUPT);
    vc_free(p);
}

Test(kvquant_calib, a_share_of_outliers_without_thresholds_names_the_command)
{
    fx_t f;
    fx_open(&f, fx_model(1, 2, 2, 16), 1, 0, 310);
    node_spec_t spec = fx_spec("kvquant:outliers=0.02"), unbound;
    vc_err_t err = {0};
    fx_records_t r = {0};
    cr_assert_eq(node_compress(&spec, &f.in, fx_keep, &r, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "calibrate --method kvquant:bits=4,outliers=0.02,"), "%s", err.msg);
    cr_assert_eq(node_spec_parse("kvquant", &unbound, NULL), VC_OK);
    cr_assert_eq(node_compress(&unbound, &f.in, fx_keep, &r, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "needs its calibration"), "%s", err.msg);
    fx_close(&f);
}

/* ---- calibration on a model ---- */

static void learn(node_isa_t isa, uint32_t n_threads, const char *text, uint8_t **payload_p, size_t *bytes_p,
                  vc_status_t want)
{
    enum { N = 400 };
    static uint32_t tokens[2][N];
    tiny_model_opts_t opts;
    node_gguf_t *gguf;
    node_engine_t *engine;
    node_engine_opts_t eopts;
    vc_err_t err = {0};
    tiny_model_opts_default(&opts);
    gguf_image_t image = tiny_model_build(&opts);
    for (uint32_t i = 0; i < N; i++) {
        tokens[0][i] = TINY_ID_FIRST_BYTE + (i * 37 + i / 5) % 256;
        tokens[1][i] = TINY_ID_FIRST_BYTE + (i * 11 + i / 3) % 256;
    }
    node_engine_opts_default(&eopts);
    eopts.isa = isa;
    eopts.n_threads = n_threads;
    cr_assert_eq(node_gguf_open_memory(image.data, image.bytes, &gguf, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_engine_create(gguf, NULL, &eopts, &engine, &err), VC_OK, "%s", err.msg);
    const uint32_t *texts[] = {tokens[0], tokens[1]}, lengths[] = {want == VC_OK ? N : 20, want == VC_OK ? 133 : 9};
    const node_calib_job_t job = {.replay = {.engine = engine}, .texts = texts, .n_tokens = lengths, .n_texts = 2};
    node_spec_t spec;
    void *payload = NULL;
    cr_assert_eq(node_spec_parse(text, &spec, NULL), VC_OK);
    cr_assert_eq(spec.ops->calibrate(&spec, &job, &payload, bytes_p, &err), want, "%s", err.msg);
    if (want == VC_OK)
        cr_assert_eq(spec.ops->calib_check(node_engine_info(engine), payload, *bytes_p, &err), VC_OK, "%s", err.msg);
    else
        cr_assert_not_null(strstr(err.msg, "learns nothing"), "%s", err.msg);
    *payload_p = payload;
    node_engine_destroy(engine);
    node_gguf_close(gguf);
    gguf_image_free(&image);
}

Test(kvquant_calib, equal_texts_give_equal_blobs_on_every_isa)
{
    static const struct {
        node_isa_t isa;
        uint32_t n_threads;
    } runs[] = {{NODE_ISA_SCALAR, 1}, {NODE_ISA_AVX2, 2}, {NODE_ISA_AVX512, 1}};
    uint8_t *base = NULL, *other;
    size_t n = 0, n_other;
    learn(NODE_ISA_AUTO, 2, "kvquant", &base, &n, VC_OK);
    for (size_t i = 0; i < VC_ARRAY_LEN(runs); i++) {
        if (!node_isa_available(runs[i].isa))
            continue;
        learn(runs[i].isa, runs[i].n_threads, "kvquant", &other, &n_other, VC_OK);
        cr_assert(n == n_other && memcmp(base, other, n) == 0, "isa %d", (int)runs[i].isa);
        vc_free(other);
    }
    vc_free(base);
}

Test(kvquant_calib, a_share_asked_for_joins_the_usual_ones)
{
    uint8_t *payload;
    size_t n;
    learn(NODE_ISA_AUTO, 1, "kvquant:outliers=0.05", &payload, &n, VC_OK);
    static const char *const texts[] = {"kvquant:outliers=0", "kvquant:outliers=0.001", "kvquant",
                                        "kvquant:outliers=0.05"};
    node_calib_t calib = {.payload = payload, .bytes = n};
    float width[4];
    for (size_t i = 0; i < VC_ARRAY_LEN(texts); i++) {
        node_spec_t spec = bound_spec(texts[i], &calib);
        node_kvquant_layer_t layer;
        cr_assert(node_kvquant_layer(&calib, &spec, 1, &layer));
        width[i] = layer.upper[3] - layer.lower[3];
        cr_assert(i == 0 || width[i] < width[i - 1], "fewer outliers, wider thresholds");
        cr_assert(layer.k_levels[0] < -0.5f && layer.k_levels[15] > 0.5f);
    }
    vc_free(payload);
}

Test(kvquant_calib, too_little_text_is_refused)
{
    uint8_t *payload;
    size_t n = 0;
    learn(NODE_ISA_AUTO, 1, "kvquant", &payload, &n, VC_ERR_INVALID);
    cr_assert_null(payload);
}
