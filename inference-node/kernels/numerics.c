/* Double-precision functions behind the RoPE tables. Plain series in a fixed order, so that no libm decides a bit. */
#include "kernels/numerics.h"

/* pi/2 in parts of 33 bits: n * part is exact for n < 2^20. */
#define PIO2_1 0x1.921fb544p+0
#define PIO2_2 0x1.0b4611a6p-34
#define PIO2_3 0x1.3198a2e037073p-69
#define LN2_1 0x1.62e42fefp-1
#define LN2_2 0x1.473de6af278edp-34
#define ROUND_MAGIC_F64 0x1.8p52

static double from_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Taylor on [-pi/4, pi/4]: the terms left out are below 1e-18. */
static double sin_series(double r)
{
    static const double c[] = {-1.0 / 6,
                               1.0 / 120,
                               -1.0 / 5040,
                               1.0 / 362880,
                               -1.0 / 39916800.0,
                               1.0 / 6227020800.0,
                               -1.0 / 1307674368000.0,
                               1.0 / 355687428096000.0};
    double z = r * r, p = c[7];
    for (int i = 6; i >= 0; i--)
        p = p * z + c[i];
    return r + r * z * p;
}

static double cos_series(double r)
{
    static const double c[] = {-0.5,
                               1.0 / 24,
                               -1.0 / 720,
                               1.0 / 40320,
                               -1.0 / 3628800.0,
                               1.0 / 479001600.0,
                               -1.0 / 87178291200.0,
                               1.0 / 20922789888000.0,
                               -1.0 / 6402373705728000.0};
    double z = r * r, p = c[8];
    for (int i = 7; i >= 0; i--)
        p = p * z + c[i];
    return 1.0 + z * p;
}

void node_sincos(double x, double *sin_p, double *cos_p)
{
    double n = (x * 0x1.45f306dc9c883p-1 + ROUND_MAGIC_F64) - ROUND_MAGIC_F64; /* 2/pi */
    double r = ((x - n * PIO2_1) - n * PIO2_2) - n * PIO2_3;
    double s = sin_series(r), c = cos_series(r);
    switch ((int64_t)n & 3) {
    case 0: *sin_p = s, *cos_p = c; break;
    case 1: *sin_p = c, *cos_p = -s; break;
    case 2: *sin_p = -s, *cos_p = -c; break;
    default: *sin_p = -c, *cos_p = s; break;
    }
}

double node_exp_f64(double x)
{
    double n = (x * 0x1.71547652b82fep+0 + ROUND_MAGIC_F64) - ROUND_MAGIC_F64;
    double r = (x - n * LN2_1) - n * LN2_2;
    double p = 1.0, term = 1.0;
    for (int i = 1; i <= 16; i++) {
        term *= r / i;
        p += term;
    }
    return p * from_bits((uint64_t)((int64_t)n + 1023) << 52);
}

double node_log_f64(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    uint64_t base = 0x3fe6a09e667f3bcdull; /* sqrt(1/2) */
    int64_t e = (int64_t)(u - base) >> 52;
    double m = from_bits(u - ((uint64_t)e << 52));
    double s = (m - 1.0) / (m + 1.0), z = s * s, sum = 0.0;
    for (int k = 12; k >= 0; k--)
        sum = sum * z + 1.0 / (2 * k + 1);
    return (double)e * LN2_1 + ((double)e * LN2_2 + 2.0 * s * sum);
}

double node_pow_f64(double x, double y) { return node_exp_f64(y * node_log_f64(x)); }
