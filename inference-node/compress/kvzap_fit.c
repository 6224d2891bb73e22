/*
 * Ridge regression from sums of products: rows come one at a time and are forgotten. The columns [x, y, 1] multiply
 * each other in blocks of 64 rows, floats inside a block, doubles over blocks; only the lower triangle is kept.
 */
#include <math.h>
#include <string.h>

#include "compress/kvzap_int.h"
#include "vc/mem.h"

#define BLOCK_ROWS 64u
#define STEP 32u /* columns that one call multiplies; rows of the triangle are padded to it */

/* Doubles before row i of the triangle: row i has as many as end with i's step. */
static size_t row_at(uint32_t i)
{
    size_t b = i / STEP;
    return STEP * STEP * (b * (b + 1) / 2) + i % STEP * STEP * (b + 1);
}

vc_status_t node_kvzap_fit_init(node_kvzap_fit_t *fit, const node_kvzap_ops_t *ops, uint32_t d, uint32_t h,
                                vc_err_t *err)
{
    *fit = (node_kvzap_fit_t){.ops = ops, .d = d, .h = h, .width = (d + h + 1 + STEP - 1) / STEP * STEP};
    fit->block = vc_calloc((size_t)BLOCK_ROWS * fit->width, sizeof(float));
    fit->origin = vc_calloc(fit->width, sizeof(float));
    fit->sums = vc_calloc(row_at(fit->width), sizeof(double));
    if (fit->block != NULL && fit->origin != NULL && fit->sums != NULL)
        return VC_OK;
    node_kvzap_fit_fini(fit);
    return vc_err_set(err, VC_ERR_NOMEM, "no memory for a fit of %u inputs", d);
}

void node_kvzap_fit_fini(node_kvzap_fit_t *fit)
{
    vc_free(fit->block);
    vc_free(fit->origin);
    vc_free(fit->sums);
    *fit = (node_kvzap_fit_t){0};
}

static void take_origin(node_kvzap_fit_t *fit)
{
    for (uint32_t c = 0; c < fit->d + fit->h; c++) {
        double sum = 0;
        for (uint32_t r = 0; r < fit->n_block; r++)
            sum += fit->block[(size_t)r * fit->width + c];
        fit->origin[c] = (float)(sum / fit->n_block);
    }
}

static void flush(node_kvzap_fit_t *fit)
{
    if (fit->n_block == 0)
        return;
    if (fit->n == fit->n_block)
        take_origin(fit);
    for (uint32_t r = 0; r < fit->n_block; r++)
        for (uint32_t c = 0; c < fit->d + fit->h; c++)
            fit->block[(size_t)r * fit->width + c] -= fit->origin[c];
    float out[4 * STEP];
    for (uint32_t i = 0; i < fit->width; i += 4)
        for (uint32_t j = 0; j <= i; j += STEP) {
            fit->ops->products(fit->block, fit->width, fit->n_block, i, j, out);
            for (uint32_t r = 0; r < 4; r++) {
                double *sum = fit->sums + row_at(i + r) + j;
                for (uint32_t c = 0; c < STEP; c++)
                    sum[c] += (double)out[r * STEP + c];
            }
        }
    fit->n_block = 0;
}

void node_kvzap_fit_add(node_kvzap_fit_t *fit, const float *x, const float *y)
{
    float *row = fit->block + (size_t)fit->n_block * fit->width;
    memcpy(row, x, fit->d * sizeof(float));
    memcpy(row + fit->d, y, fit->h * sizeof(float));
    row[fit->d + fit->h] = 1.0f;
    fit->n++;
    if (++fit->n_block == BLOCK_ROWS)
        flush(fit);
}

/* Eight partial sums: one order whatever the compiler makes of it. */
static double dot(const double *a, const double *b, uint32_t n)
{
    double s[8] = {0};
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++)
            s[k] += a[i + (uint32_t)k] * b[i + (uint32_t)k];
    for (int k = 0; i < n; i++, k++)
        s[k] += a[i] * b[i];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* a [d][d] becomes its lower Cholesky factor; false when a pivot is not positive. */
static bool factor(double *a, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++) {
        double *row = a + (size_t)i * d;
        for (uint32_t j = 0; j < i; j++)
            row[j] = (row[j] - dot(row, a + (size_t)j * d, j)) / a[(size_t)j * d + j];
        double pivot = row[i] - dot(row, row, i);
        if (!(pivot > 0) || !isfinite(pivot))
            return false;
        row[i] = sqrt(pivot);
    }
    return true;
}

/* Solves L L' v = v. */
static void substitute(const double *l, uint32_t d, double *v)
{
    for (uint32_t i = 0; i < d; i++)
        v[i] = (v[i] - dot(l + (size_t)i * d, v, i)) / l[(size_t)i * d + i];
    for (uint32_t i = d; i-- > 0;) {
        v[i] /= l[(size_t)i * d + i];
        for (uint32_t j = 0; j < i; j++)
            v[j] -= l[(size_t)i * d + j] * v[i];
    }
}

vc_status_t node_kvzap_fit_solve(node_kvzap_fit_t *fit, double alpha, float *w, float *b, vc_err_t *err)
{
    flush(fit);
    const uint32_t d = fit->d, ones = d + fit->h;
    const double n = (double)fit->n, *total = fit->sums + row_at(ones); /* column sums */
    if (fit->n == 0)
        return vc_err_set(err, VC_ERR_INVALID, "a fit without rows");
    double *a = vc_calloc((size_t)d * d, sizeof(double)), *v = vc_calloc(d, sizeof(double));
    vc_status_t st = VC_OK;
    if (a == NULL || v == NULL)
        st = vc_err_set(err, VC_ERR_NOMEM, "no memory to solve for %u inputs", d);
    for (uint32_t i = 0; st == VC_OK && i < d; i++)
        for (uint32_t j = 0; j <= i; j++)
            a[(size_t)i * d + j] = fit->sums[row_at(i) + j] - total[i] * total[j] / n + (i == j ? alpha : 0.0);
    if (st == VC_OK && !factor(a, d))
        st = vc_err_set(err, VC_ERR_INVALID, "the sums of %u inputs cannot be solved for", d);
    for (uint32_t h = 0; st == VC_OK && h < fit->h; h++) {
        const double *sums = fit->sums + row_at(d + h);
        for (uint32_t i = 0; i < d; i++)
            v[i] = sums[i] - total[i] * total[d + h] / n;
        substitute(a, d, v);
        double at = fit->origin[d + h] + total[d + h] / n;
        for (uint32_t i = 0; i < d; i++) {
            w[(size_t)h * d + i] = (float)v[i];
            at -= v[i] * (fit->origin[i] + total[i] / n);
        }
        b[h] = (float)at;
    }
    vc_free(a);
    vc_free(v);
    return st;
}
