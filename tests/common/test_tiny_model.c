/* The small models that other suites stand on: the same bytes from the same options, other bytes from other seeds, and
 * weights that come back from their quantised form within one step. */
#include <math.h>
#include <string.h>

#include "support/tiny_model.h"
#include "support/vc_test.h"

Test(tiny_model, options_decide_every_byte)
{
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    gguf_image_t a = tiny_model_build(&o), b = tiny_model_build(&o);
    cr_assert(a.bytes == b.bytes && memcmp(a.data, b.data, a.bytes) == 0);
    o.seed = 2;
    gguf_image_t c = tiny_model_build(&o);
    cr_assert(a.bytes == c.bytes && memcmp(a.data, c.data, a.bytes) != 0);
    gguf_image_free(&a);
    gguf_image_free(&b);
    gguf_image_free(&c);
}

Test(tiny_model, halves_round_to_even_and_saturate)
{
    const struct {
        float f;
        uint16_t h;
    } cases[] = {{0.0f, 0},          {-0.0f, 0x8000},   {1.0f, 0x3c00},    {-2.0f, 0xc000}, {65504.0f, 0x7bff},
                 {1e6f, 0x7bff},     {-1e6f, 0xfbff},   {0x1p-24f, 1},     {0x1p-25f, 0},   {0x1.8p-24f, 2},
                 {0x1p-14f, 0x0400}, {2049.0f, 0x6800}, {2051.0f, 0x6802}, {0.1f, 0x2e66},  {0x1.ff8p-15f, 0x03ff}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        cr_assert_eq(gguf_writer_half(cases[i].f), cases[i].h, "%g gives %04x", (double)cases[i].f,
                     gguf_writer_half(cases[i].f));
}

Test(tiny_model, quantised_blocks_hold_the_values_within_one_step)
{
    float x[32];
    golden_fill(5, 1.0, x, 32);
    gguf_writer_t *w = gguf_writer_create();
    gguf_writer_tensor(w, "q8", GGUF_W_Q8_0, 32, 0, x);
    gguf_writer_tensor(w, "q41", GGUF_W_Q4_1, 32, 0, x);
    gguf_image_t image = gguf_writer_finish(w);
    /* Two blocks at the end, each padded to 32: 34 bytes and 20. */
    const uint8_t *q41 = (const uint8_t *)image.data + image.bytes - 20, *q8 = q41 - 64;
    float hi = -1, lo = 1, amax = 0;
    for (int i = 0; i < 32; i++) {
        hi = fmaxf(hi, x[i]);
        lo = fminf(lo, x[i]);
        amax = fmaxf(amax, fabsf(x[i]));
    }
    for (int i = 0; i < 32; i++) {
        const int nibble = i < 16 ? q41[4 + i] & 15 : q41[4 + i - 16] >> 4;
        cr_assert_leq(fabsf(lo + (hi - lo) / 15 * (float)nibble - x[i]), (hi - lo) / 15 * 0.51f);
        cr_assert_leq(fabsf(amax / 127 * (float)(int8_t)q8[2 + i] - x[i]), amax / 127 * 0.6f);
    }
    gguf_image_free(&image);
}

Test(tiny_model, golden_models_carry_their_scaling_and_interleaved_rows)
{
    golden_t *g = golden_open("llama_tiny");
    golden_case_t c = golden_case(g, "llama");
    golden_tensor_t q = golden_in(&c, "model.layers.0.self_attn.q_proj.weight");
    gguf_image_t image = tiny_model_from_golden(&c);
    /* Row 1 of a head of 16 in the file is row 8 of the half-split form; the file holds both rows, one after the other,
     * only when the rows were interleaved. */
    float pair[128];
    memcpy(pair, q.f32, 64 * sizeof(float));
    memcpy(pair + 64, q.f32 + 8 * 64, 64 * sizeof(float));
    cr_assert_not_null(memmem(image.data, image.bytes, pair, sizeof(pair)));
    gguf_image_free(&image);
    golden_tensor_free(&q);
    c = golden_case(g, "llama3_rope");
    image = tiny_model_from_golden(&c);
    cr_assert_not_null(memmem(image.data, image.bytes, "rope_freqs.weight", 17));
    gguf_image_free(&image);
    c = golden_case(g, "qwen3_qknorm");
    image = tiny_model_from_golden(&c);
    cr_assert_not_null(memmem(image.data, image.bytes, "qwen3.rope.scaling.type", 23));
    gguf_image_free(&image);
    golden_close(g);
}
