/*
 * Codebooks: the weighted one-dimensional k-means problem over a histogram, solved exactly by dynamic programming. The
 * best cut of the first j bins into one more cluster moves up with j, so each step searches between the answers of its
 * neighbours. No randomness: equal histograms give equal levels.
 */
#include "compress/kvquant_int.h"
#include "vc/mem.h"

#define BINS NODE_KVQUANT_BINS
#define LEVELS NODE_KVQUANT_LEVELS_MAX

/* Quantiles of the normal distribution at even probabilities from (1/32 + 1/30) / 2 to a half, 2^(bits - 1) of them
 * scaled to -1 ... 0, and at one more from a half up, scaled to 0 ... 1; one of the two zeros dropped. */
static const float nf2[4] = {-1.0f, 0.0f, 0.337915093f, 1.0f};
static const float nf3[8] = {-1.0f, -0.478629023f, -0.217141733f, 0.0f, 0.160930127f, 0.337915093f, 0.562616825f, 1.0f};
static const float nf4[16] = {-1.0f,          -0.696192682f, -0.525072873f, -0.394917399f, -0.284441262f, -0.184773386f,
                              -0.0910499468f, 0.0f,          0.0795802623f, 0.160930127f,  0.246112183f,  0.337915093f,
                              0.440709621f,   0.562616825f,  0.722956538f,  1.0f};

const float *node_kvquant_nf(uint32_t bits) { return bits == 2 ? nf2 : bits == 3 ? nf3 : nf4; }

void node_kvquant_hist_add(node_kvquant_hist_t *h, double x, double weight)
{
    double at = (x + 1.0) * (BINS / 2);
    uint32_t bin = at <= 0 ? 0 : at >= BINS - 1 ? BINS - 1 : (uint32_t)at;
    h->w[bin] += weight;
    h->wx[bin] += weight * x;
    h->wxx[bin] += weight * x * x;
}

/* Sums over the bins that hold anything, before each of them. */
typedef struct prefix {
    uint32_t n;
    double w[BINS + 1], x[BINS + 1], xx[BINS + 1];
    double cost[2][BINS + 1];           /* of the best k clusters over the first j bins */
    uint16_t cut[LEVELS + 1][BINS + 1]; /* where the last of them begins */
} prefix_t;

/* Squared error of bins [i, j) around their mean. */
static double spread(const prefix_t *p, uint32_t i, uint32_t j)
{
    double w = p->w[j] - p->w[i], x = p->x[j] - p->x[i], e = p->xx[j] - p->xx[i];
    e -= w > 0 ? x * x / w : 0;
    return e > 0 ? e : 0; /* what rounding left of nothing */
}

static void fill_prefix(prefix_t *p, const node_kvquant_hist_t *h)
{
    p->n = 0;
    p->w[0] = p->x[0] = p->xx[0] = 0;
    for (uint32_t b = 0; b < BINS; b++) {
        if (!(h->w[b] > 0))
            continue;
        p->w[p->n + 1] = p->w[p->n] + h->w[b];
        p->x[p->n + 1] = p->x[p->n] + h->wx[b];
        p->xx[p->n + 1] = p->xx[p->n] + h->wxx[b];
        p->n++;
    }
}

/* One more cluster for j in [lo, hi], whose cuts lie in [from, to]. Depth log2(BINS). */
static void solve(prefix_t *p, uint32_t k, uint32_t lo, uint32_t hi, uint32_t from, uint32_t to)
{
    const double *before = p->cost[(k - 1) & 1u];
    const uint32_t j = lo + (hi - lo) / 2;
    double best = __builtin_inf();
    uint32_t at = from;
    for (uint32_t i = from; i <= to && i < j; i++) {
        double c = before[i] + spread(p, i, j);
        if (c < best) {
            best = c;
            at = i;
        }
    }
    p->cost[k & 1u][j] = best;
    p->cut[k][j] = (uint16_t)at;
    if (j > lo)
        solve(p, k, lo, j - 1, from, at);
    if (j < hi)
        solve(p, k, j + 1, hi, at, to);
}

/* Means of the n_clusters clusters, then the last of them again up to n levels. */
static void read_levels(const prefix_t *p, uint32_t n_clusters, uint32_t n, float *levels)
{
    uint32_t end = p->n;
    for (uint32_t k = n_clusters; k > 0; k--) {
        uint32_t begin = k == 1 ? 0 : p->cut[k][end];
        double mean = (p->x[end] - p->x[begin]) / (p->w[end] - p->w[begin]);
        levels[k - 1] = (float)(mean < -1 ? -1 : mean > 1 ? 1 : mean);
        end = begin;
    }
    for (uint32_t k = n_clusters; k < n; k++)
        levels[k] = levels[n_clusters - 1];
    for (uint32_t k = 1; k < n; k++) /* rounding cannot change the order of levels by more than their equality */
        levels[k] = levels[k] < levels[k - 1] ? levels[k - 1] : levels[k];
}

vc_status_t node_kvquant_fit(const node_kvquant_hist_t *h, const uint32_t *bits, uint32_t n_bits, float *const *levels,
                             vc_err_t *err)
{
    prefix_t *p = vc_alloc(sizeof(*p));
    if (p == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory to fit a codebook");
    fill_prefix(p, h);
    for (uint32_t j = 0; j <= p->n; j++)
        p->cost[1][j] = spread(p, 0, j);
    for (uint32_t k = 1; k <= VC_MIN(LEVELS, p->n); k++) {
        if (k > 1)
            solve(p, k, k, p->n, k - 1, p->n - 1);
        for (uint32_t i = 0; i < n_bits; i++)
            if (k == 1u << bits[i] || (k == p->n && k < 1u << bits[i]))
                read_levels(p, k, 1u << bits[i], levels[i]);
    }
    for (uint32_t i = 0; p->n == 0 && i < n_bits; i++)
        memcpy(levels[i], node_kvquant_nf(bits[i]), sizeof(float) << bits[i]);
    vc_free(p);
    return VC_OK;
}
