/* KVQuant's rules for thresholds and for a row of values, and the choice of the ISA. Pure. */
#include <stdlib.h>

#include "compress/kvquant_int.h"

const node_kvquant_ops_t *node_kvquant_ops(node_ops_level_t level)
{
    if (node_ops_get(level) == NULL)
        return NULL;
    switch (level) {
    case NODE_OPS_AVX512: return &node_kvquant_avx512;
    case NODE_OPS_AVX2: return &node_kvquant_avx2;
    case NODE_OPS_SCALAR: break;
    }
    return &node_kvquant_scalar;
}

const node_kvquant_ops_t *node_kvquant_ops_best(void) { return node_kvquant_ops(node_ops_best_level()); }

void node_kvquant_mids(const float *levels, uint32_t n, float *mids)
{
    for (uint32_t i = 0; i + 1 < n; i++)
        mids[i] = (levels[i] + levels[i + 1]) / 2;
}

static float between(const float *sorted, uint32_t n, double share)
{
    double at = (double)(n - 1) * share;
    uint32_t i = (uint32_t)at;
    if (i + 1 >= n)
        return sorted[n - 1];
    return (float)(sorted[i] + ((double)sorted[i + 1] - sorted[i]) * (at - i));
}

void node_kvquant_thresholds(const float *sorted, uint32_t n, double outliers, float *upper_p, float *lower_p)
{
    *upper_p = between(sorted, n, 1.0 - outliers / 2);
    *lower_p = between(sorted, n, outliers / 2);
}

/* The k-th largest of sign * x, k = 0 the largest: few are ever moved, since few beat the best so far. best: k + 1. */
static float kth(const float *x, uint32_t n, uint32_t k, float sign, float *best)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < n; i++) {
        float v = sign * x[i];
        if (have == k + 1 && v <= best[k])
            continue;
        uint32_t at = have == k + 1 ? k : have++;
        for (; at > 0 && best[at - 1] < v; at--)
            best[at] = best[at - 1];
        best[at] = v;
    }
    return sign * best[k];
}

int node_kvquant_ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

uint32_t node_kvquant_value_row(const float *x, uint32_t n, double outliers, float *rho_p, float *z_p, uint16_t *out,
                                float *scratch)
{
    float top = -__builtin_inff(), bottom = __builtin_inff(), high = __builtin_inff(), low = -__builtin_inff();
    uint32_t n_out = 0, n_high = 0, n_low = 0;
    if (outliers > 0) { /* a quantile between two neighbours flags what the outer one does */
        uint32_t k = (uint32_t)((double)(n - 1) * (outliers / 2));
        high = kth(x, n, k, 1.0f, scratch);
        low = kth(x, n, k, -1.0f, scratch);
    }
    for (uint32_t i = 0; i < n; i++) {
        bool is_high = x[i] >= high, is_low = x[i] <= low;
        if (is_high || is_low) {
            out[n_out++] = (uint16_t)i;
            n_high += is_high;
            n_low += is_low;
            continue;
        }
        top = x[i] > top ? x[i] : top;
        bottom = x[i] < bottom ? x[i] : bottom;
    }
    const uint32_t middle = (n - 1) / 2;
    if (n_low > middle || n_high >= n - middle) { /* the median is an outlier, and counts all the same */
        memcpy(scratch, x, n * sizeof(*x));
        qsort(scratch, n, sizeof(*scratch), node_kvquant_ascending);
        top = scratch[middle] > top ? scratch[middle] : top;
        bottom = scratch[middle] < bottom ? scratch[middle] : bottom;
    }
    *rho_p = (top - bottom) / 2;
    *z_p = (top + bottom) / 2 + 0.0f; /* never -0 */
    return n_out;
}
