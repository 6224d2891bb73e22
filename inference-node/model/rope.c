/* Frequencies from own double functions, so that they are the same everywhere. */
#include "model/rope.h"

#include <stdio.h>

#include "kernels/numerics.h"

#define PI 0x1.921fb54442d18p+1

static double scale_llama3(const node_rope_t *rope, double f)
{
    double wavelength = 2.0 * PI / f, old = rope->original_context;
    if (wavelength > old / rope->low_freq_factor)
        return f / rope->factor;
    if (wavelength < old / rope->high_freq_factor)
        return f;
    double smooth = (old / wavelength - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
    return (1.0 - smooth) * f / rope->factor + smooth * f;
}

/* Channel whose wave turns `turns` times over the original context. */
static double yarn_channel(const node_rope_t *rope, double turns)
{
    return rope->dims * node_log_f64(rope->original_context / (turns * 2.0 * PI)) / (2.0 * node_log_f64(rope->theta));
}

static double floor_f64(double x)
{
    double n = (double)(int64_t)x;
    return n > x ? n - 1.0 : n;
}

/* Weight of the unscaled frequency at channel i: 1 for fast waves, 0 for slow ones, a ramp between. */
static double yarn_mix(const node_rope_t *rope, uint32_t i)
{
    double low = floor_f64(yarn_channel(rope, rope->beta_fast)), last = rope->dims - 1.0;
    double high = -floor_f64(-yarn_channel(rope, rope->beta_slow));
    low = low < 0.0 ? 0.0 : low;
    high = high > last ? last : high;
    double width = high - low < 0.001 ? 0.001 : high - low;
    double ramp = (i - low) / width;
    return 1.0 - (ramp < 0.0 ? 0.0 : ramp > 1.0 ? 1.0 : ramp);
}

void node_rope_inv_freq(const node_rope_t *rope, float *inv_freq, float *mscale_p)
{
    for (uint32_t i = 0; i < rope->dims / 2; i++) {
        /* float steps, as in what models are trained with; only the scaling is in double */
        float wave = (float)node_pow_f64(rope->theta, (double)((float)(2 * i) / (float)rope->dims));
        double f = (double)(1.0f / wave);
        if (rope->kind == NODE_ROPE_LINEAR)
            f /= rope->factor;
        if (rope->kind == NODE_ROPE_LLAMA3 && rope->divisors == NULL)
            f = scale_llama3(rope, f);
        if (rope->kind == NODE_ROPE_YARN) {
            double mix = yarn_mix(rope, i);
            f = f / rope->factor * (1.0 - mix) + f * mix;
        }
        if (rope->divisors != NULL)
            f /= (double)rope->divisors[i];
        inv_freq[i] = (float)f;
    }
    *mscale_p = 1.0f;
    if (rope->kind == NODE_ROPE_YARN)
        *mscale_p = (float)(rope->attn_factor * (rope->factor > 1.0 ? 0.1 * node_log_f64(rope->factor) + 1.0 : 1.0));
}

void node_rope_table(const float *inv_freq, uint32_t half, float mscale, uint32_t position, float *cos, float *sin)
{
    for (uint32_t i = 0; i < half; i++) {
        double s, c;
        node_sincos((double)position * (double)inv_freq[i], &s, &c);
        cos[i] = (float)(c * (double)mscale);
        sin[i] = (float)(s * (double)mscale);
    }
}

void node_rope_text(const node_rope_t *rope, char *text, size_t size)
{
    int n = snprintf(text, size, "neox theta=%.17g dims=%u", rope->theta, rope->dims);
    size_t at = n < 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1;
    switch (rope->kind) {
    case NODE_ROPE_LINEAR: snprintf(text + at, size - at, " linear factor=%.17g", rope->factor); break;
    case NODE_ROPE_YARN:
        snprintf(text + at, size - at, " yarn factor=%.17g original=%u attn=%.17g fast=%.17g slow=%.17g%s",
                 rope->factor, rope->original_context, rope->attn_factor, rope->beta_fast, rope->beta_slow,
                 rope->divisors != NULL ? " divisors" : "");
        break;
    case NODE_ROPE_LLAMA3:
        if (rope->divisors != NULL) /* the tensor is part of the weights digest */
            snprintf(text + at, size - at, " divisors");
        else
            snprintf(text + at, size - at, " llama3 factor=%.17g low=%.17g high=%.17g original=%u", rope->factor,
                     rope->low_freq_factor, rope->high_freq_factor, rope->original_context);
        break;
    default: break;
    }
}
