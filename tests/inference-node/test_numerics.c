/* Scalar numerics: accuracy against libm, the edges, and a pin on the bits, which may only change with the numerics id.
 */
#include <math.h>
#include <string.h>

#include "kernels/numerics.h"
#include "support/vc_test.h"

#define ULP 5.9604645e-08 /* half a unit of 1.0 in float */

static double worst(float (*f)(float), double (*ref)(double), float from, float to, float step)
{
    double bad = 0;
    for (float x = from; x < to; x += step) {
        double r = ref((double)x), e = fabs((double)f(x) - r) / fabs(r);
        if (e > bad)
            bad = e;
    }
    return bad;
}

Test(numerics, exp2_exp_and_log_are_within_two_half_units_of_libm)
{
    cr_assert_lt(worst(node_exp2, exp2, -125.9f, 127.9f, 0.0137f), 2 * ULP);
    cr_assert_lt(worst(node_exp, exp, -87.0f, 88.0f, 0.0137f), 2 * ULP);
    double bad = 0;
    for (uint32_t u = 1; u < 0x7f800000u; u += 9973) {
        float x = node_f32_from_bits(u);
        double r = log((double)x), e = fabs((double)node_log(x) - r) / fmax(fabs(r), 1e-30);
        bad = e > bad ? e : bad;
    }
    cr_assert_lt(bad, 2 * ULP);
}

Test(numerics, edges_are_exact)
{
    cr_assert_eq(node_exp2(0.0f), 1.0f);
    cr_assert_eq(node_exp(0.0f), 1.0f);
    cr_assert_eq(node_log(1.0f), 0.0f);
    for (int n = -126; n < 128; n++)
        cr_assert_eq(node_exp2((float)n), ldexpf(1.0f, n), "2^%d", n);
    cr_assert_eq(node_bits_from_f32(node_exp2(-126.5f)), 0u);
    cr_assert_eq(node_bits_from_f32(node_exp2(-INFINITY)), 0u);
    cr_assert_eq(node_bits_from_f32(node_exp(-1000.0f)), 0u);
    cr_assert(isinf(node_exp2(128.0f)) && isinf(node_exp(89.0f)) && isinf(node_exp2(INFINITY)));
    cr_assert(isnan(node_exp2(NAN)) && isnan(node_exp(NAN)) && isnan(node_log(NAN)) && isnan(node_log(-1.0f)));
    cr_assert(isinf(node_log(0.0f)) && node_log(0.0f) < 0);
    cr_assert(isinf(node_log(INFINITY)));
    cr_assert(isfinite(node_exp2(127.9999f)) && node_exp(-87.2f) > 0.0f);
}

Test(numerics, every_half_survives_the_way_through_float)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = node_f32_from_f16((uint16_t)h);
        if ((h & 0x7fff) > 0x7c00)
            cr_assert(isnan(f) && (node_f16_from_f32(f) & 0x7fff) > 0x7c00, "NaN %x", h);
        else if ((h & 0x7fff) == 0x7c00)
            cr_assert(isinf(f) && node_f16_from_f32(f) == ((h & 0x8000) | 0x7bff), "infinity saturates");
        else
            cr_assert_eq(node_f16_from_f32(f), h, "half %x came back as %x", h, node_f16_from_f32(f));
    }
}

Test(numerics, halves_round_to_even_and_saturate)
{
    cr_assert_eq(node_f16_from_f32(1.0f + 0x1p-11f), 0x3c00);            /* tie to even, down */
    cr_assert_eq(node_f16_from_f32(1.0f + 3 * 0x1p-11f), 0x3c02);        /* tie to even, up */
    cr_assert_eq(node_f16_from_f32(1.0f + 0x1p-11f + 0x1p-20f), 0x3c01); /* just above the tie */
    cr_assert_eq(node_f16_from_f32(0x1p-25f), 0x0000);                   /* half of the smallest: to even */
    cr_assert_eq(node_f16_from_f32(0x1.8p-25f), 0x0001);
    cr_assert_eq(node_f16_from_f32(-0x1.8p-24f), 0x8002);
    cr_assert_eq(node_f16_from_f32(65504.0f), 0x7bff);
    cr_assert_eq(node_f16_from_f32(65520.0f), 0x7bff);
    cr_assert_eq(node_f16_from_f32(-1e30f), 0xfbff);
    cr_assert_eq(node_f16_from_f32(-0.0f), 0x8000);
}

Test(numerics, double_functions_match_libm)
{
    for (double x = 0; x < 1048576; x += 7.13) {
        double s, c;
        node_sincos(x, &s, &c);
        cr_assert(fabs(s - sin(x)) < 1e-15 && fabs(c - cos(x)) < 1e-15, "angle %g", x);
    }
    for (double x = -600; x < 600; x += 0.37)
        cr_assert(fabs(node_exp_f64(x) / exp(x) - 1) < 2e-15, "exp %g", x);
    for (double x = 1e-3; x < 1e9; x *= 1.01)
        cr_assert(fabs(node_log_f64(x) - log(x)) < 4e-15 * fmax(1, fabs(log(x))), "log %g", x);
    cr_assert(fabs(node_pow_f64(100000.0, -0.75) / pow(100000.0, -0.75) - 1) < 1e-14);
}

static uint64_t mix(uint64_t h, float v) { return (h ^ node_bits_from_f32(v)) * 0x100000001b3ull; }

/* The outputs below are part of numerics id 1: whoever changes them changes every stored KV. */
Test(numerics, bits_are_those_of_numerics_id_1)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (int i = 0; i < 4096; i++) {
        float x = (float)(i - 2048) * 0.03125f + (float)(i % 7) * 0.001f;
        h = mix(mix(mix(h, node_exp2(x)), node_exp(x)), node_log(fabsf(x) + 1e-3f));
        double s, c;
        node_sincos(i * 13.37, &s, &c);
        h = mix(mix(h, (float)s), (float)c);
    }
    cr_assert_eq(h, 0xea966d4d28165431ull, "digest of the bits is 0x%llx", (unsigned long long)h);
}
