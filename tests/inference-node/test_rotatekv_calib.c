/* RotateKV's blob: the order of channels, what a payload has to be, and that nothing is compressed without one. */
#include "codec_fixture.h"
#include "compress/rotatekv_int.h"
#include "support/tiny_model.h"
#include "vc/bytes.h"

Test(rotatekv_calib, a_blob_is_needed_and_has_to_name_every_channel_once)
{
    fx_t f;
    fx_open(&f, fx_model(2, 4, 2, 16), 1, 64, 46);
    node_spec_t bare;
    fx_records_t r = {0};
    vc_err_t err = {0};
    cr_assert_eq(node_spec_parse("rotatekv:sinks=0", &bare, NULL), VC_OK);
    cr_assert_eq(node_compress(&bare, &f.in, fx_keep, &r, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "calibration"));
    uint8_t payload[130];
    for (uint32_t i = 0; i < 65; i++)
        vc_put_le16(payload + 2 * i, (uint16_t)(i % 32));
    const node_codec_ops_t *ops = bare.ops;
    cr_assert_eq(ops->calib_check(&f.model, payload, 128, &err), VC_OK);
    cr_assert_eq(ops->calib_check(&f.model, payload, 126, &err), VC_ERR_CORRUPT);
    cr_assert_eq(ops->calib_check(&f.model, payload, 130, &err), VC_ERR_CORRUPT);
    vc_put_le16(payload + 2 * 40, 9); /* twice in the second layer */
    cr_assert_eq(ops->calib_check(&f.model, payload, 128, &err), VC_ERR_CORRUPT);
    cr_assert_not_null(strstr(err.msg, "layer 1"));
    vc_put_le16(payload + 2 * 40, 32);
    cr_assert_eq(ops->calib_check(&f.model, payload, 128, &err), VC_ERR_CORRUPT);
    fx_close(&f);
}

/* A payload made of 150 tokens by an engine of one ISA and number of threads. */
static vc_status_t calibrated(const gguf_image_t *image, node_isa_t isa, uint32_t n_threads, uint32_t n,
                              void **payload_p, size_t *bytes_p)
{
    vc_err_t err = {0};
    node_gguf_t *gguf;
    node_engine_t *engine;
    node_engine_opts_t opts;
    node_spec_t spec;
    uint32_t tokens[150];
    cr_assert_eq(node_gguf_open_memory(image->data, image->bytes, &gguf, &err), VC_OK, "%s", err.msg);
    node_engine_opts_default(&opts);
    opts.isa = isa;
    opts.n_threads = n_threads;
    cr_assert_eq(node_engine_create(gguf, NULL, &opts, &engine, &err), VC_OK, "%s", err.msg);
    for (uint32_t i = 0; i < 150; i++)
        tokens[i] = TINY_ID_FIRST_BYTE + (i * 29 + i / 3) % 256;
    const uint32_t *texts[] = {tokens};
    cr_assert_eq(node_spec_parse("rotatekv", &spec, NULL), VC_OK);
    const node_calib_job_t job = {.replay = {.engine = engine}, .texts = texts, .n_tokens = &n, .n_texts = 1};
    vc_status_t st = spec.ops->calibrate(&spec, &job, payload_p, bytes_p, &err);
    if (st == VC_OK)
        cr_assert_eq(spec.ops->calib_check(node_engine_info(engine), *payload_p, *bytes_p, &err), VC_OK, "%s", err.msg);
    node_engine_destroy(engine);
    node_gguf_close(gguf);
    return st;
}

Test(rotatekv_calib, calibration_gives_one_payload_from_any_isa_and_number_of_threads)
{
    tiny_model_opts_t opts;
    tiny_model_opts_default(&opts);
    gguf_image_t image = tiny_model_build(&opts);
    void *first, *other;
    size_t bytes, other_bytes;
    cr_assert_eq(calibrated(&image, NODE_ISA_SCALAR, 1, 150, &first, &bytes), VC_OK);
    cr_assert_eq(calibrated(&image, NODE_ISA_AUTO, 2, 150, &other, &other_bytes), VC_OK);
    cr_assert(bytes == other_bytes && memcmp(first, other, bytes) == 0);
    cr_assert_eq(calibrated(&image, NODE_ISA_AUTO, 1, 0, &other, &other_bytes), VC_ERR_INVALID);
    vc_free(first), vc_free(other);
    gguf_image_free(&image);
}

Test(rotatekv_calib, two_bits_are_clipped_to_four_fifths_unless_the_text_says_otherwise)
{
    static const char *const texts[][2] = {
        {"rotatekv", "rotatekv:bits=4,group=128,clip=1,sinks=20,residual=64"},
        {"rotatekv:bits=3", "rotatekv:bits=3,group=128,clip=1,sinks=20,residual=64"},
        {"rotatekv:bits=2", "rotatekv:bits=2,group=128,clip=0.8,sinks=20,residual=64"},
        {"rotatekv:clip=1,bits=2,sinks=0", "rotatekv:bits=2,group=128,clip=1,sinks=0,residual=64"}};
    for (size_t i = 0; i < VC_ARRAY_LEN(texts); i++) {
        node_spec_t spec;
        cr_assert_eq(node_spec_parse(texts[i][0], &spec, NULL), VC_OK);
        cr_assert_str_eq(spec.text, texts[i][1]);
    }
    node_spec_t spec;
    cr_assert_eq(node_spec_parse("rotatekv:bits=8", &spec, NULL), VC_ERR_INVALID);
    cr_assert_eq(node_spec_parse("rotatekv:clip=0", &spec, NULL), VC_ERR_INVALID);
}
