/*
 * Inside of ExpectedAttention: statistics of the queries before RoPE, the query that is to be expected after the text,
 * and the score of one KV head. Apart from the plan so that each can be held to reference numbers by itself.
 */
#ifndef NODE_EXPATT_INT_H
#define NODE_EXPATT_INT_H

#include "compress/codec_int.h"
#include "kernels/backend.h"

/* Bitwise equal on every ISA (expatt_impl.h). pad: the head size on 16; rows and matrices have that stride, zero
 * filled.
 */
typedef struct node_expatt_ops {
    /* Turns n_rows rows back by their own tables cos, sin [row][half] and divides what was turned by mscale. */
    void (*turn_back)(float *x, uint32_t n_rows, uint32_t pad, const float *cos, const float *sin, uint32_t half,
                      float mscale);
    void (*subtract)(float *x, uint32_t n_rows, uint32_t pad, const float *shift);
    void (*add_rows)(const float *x, uint32_t n_rows, uint32_t pad, float *sum);
    /* m2[i][j] += sum over rows of x[i] x[j], for j >= i at least */
    void (*add_squares)(const float *x, uint32_t n_rows, uint32_t pad, float *m2);
    /* z[t] = sum over c of k_c (b_c + sum over i <= c of m[c][i] k_i), k_c = kt[c * NODE_TILE + t]; m NULL: none.
     * dim: a multiple of 4. m: [dim][dim], zero above the diagonal. */
    void (*logits)(const float *b, const float *m, uint32_t dim, const float *kt, float *z);
    /* acc[i] += softmax(z)[i]; n a multiple of 16, masked places hold -infinity; z is scratch afterwards */
    void (*softmax_add)(float *z, uint32_t n, float *acc);
    void (*norms)(const float *rows, uint32_t dim, float *out); /* of NODE_TILE rows */
    void (*widen)(const uint16_t *src, float *dst, size_t n);   /* f16 to f32; n a multiple of 16 */
} node_expatt_ops_t;

extern const node_expatt_ops_t node_expatt_scalar, node_expatt_avx2, node_expatt_avx512;
/* NULL when the CPU lacks it. */
const node_expatt_ops_t *node_expatt_ops(node_ops_level_t level);
const node_expatt_ops_t *node_expatt_ops_best(void);

/*
 * Means and second moments of queries before RoPE, per layer and query head, of the rows [first, end). Rows are taken
 * as the engine has them, after RoPE, turned back, and added a block of positions at a time, so that what comes out
 * does not depend on how passes were cut. Moments are taken about the mean of the first block: no cancellation where
 * queries have a large mean. One thread. The bytes of the whole (bytes long) are the state.
 */
typedef struct node_expatt_stats {
    size_t bytes;
    uint32_t n_layer, n_head, dim, pad, half;
    float mscale;
    uint32_t first, end;                        /* positions; of the text at hand */
    uint32_t base;                              /* first position with tables: on a block */
    size_t cos, sin, rows, head_floats, counts; /* places in `data` */
    float data[];
} node_expatt_stats_t;

vc_status_t node_expatt_stats_create(const node_model_info_t *model, uint32_t first, uint32_t end,
                                     node_expatt_stats_t **s_p, vc_err_t *err);
/* Another text, [first, end) within the positions of the first one; what was added stays. */
void node_expatt_stats_next(node_expatt_stats_t *s, uint32_t first, uint32_t end);
/* q: [n_head][dim] after RoPE. Rows of a layer in ascending position. */
void node_expatt_stats_row(node_expatt_stats_t *s, const node_expatt_ops_t *ops, uint32_t layer, uint32_t position,
                           const float *q);
uint32_t node_expatt_stats_count(const node_expatt_stats_t *s, uint32_t layer); /* rows added */
/* mean[dim], cov[dim][dim] (divided by the number of rows, or one less). */
void node_expatt_stats_get(const node_expatt_stats_t *s, uint32_t layer, uint32_t head, bool unbiased, float *mean,
                           float *cov);

/* The rotation to be expected over the positions [from, from + n): mean cosine and sine of every pair, times mscale. */
void node_expatt_turns(const node_model_info_t *model, uint32_t from, uint32_t n, double *cos, double *sin);
/* mean_bar = R mean, cov_bar = R cov R^T for the averaged rotation R, half pairs of it; cov NULL: the mean alone. work:
 * [dim][dim]. */
void node_expatt_turn(const double *cos, const double *sin, uint32_t half, uint32_t dim, const float *mean,
                      const float *cov, double *work, float *mean_bar, float *cov_bar);
/* What `logits` takes: the expected logit of a key is k.b + k^T m k, softmax scale 1/sqrt(dim). */
void node_expatt_form(uint32_t dim, const float *mean_bar, const float *cov_bar, float *b, float *m);

typedef struct node_expatt_head {
    uint32_t n_tokens, sinks; /* tokens below sinks are not scored: 0 there; sinks < n_tokens */
    uint32_t first;           /* of the tokens whose scores are wanted */
    uint32_t dim, n_group;    /* query heads that share this KV head */
    const float *b, *m;       /* [n_group][dim], [n_group][dim][dim] or NULL */
    float eps;
    bool by_value;                                         /* (p + eps) |v|, else p */
    void (*keys)(void *arg, uint32_t tile, float *kt);     /* fills [dim][NODE_TILE], zero beyond n_tokens */
    void (*values)(void *arg, uint32_t tile, float *rows); /* fills [NODE_TILE][dim] */
    void *arg;
} node_expatt_head_t;

/* scores[0 .. n_tokens - first). A score that is not a number stays one. */
vc_status_t node_expatt_scores(const node_expatt_ops_t *ops, const node_expatt_head_t *in, float *scores,
                               vc_err_t *err);

/* ---- expatt.c, expatt_calib.c ---- */

const node_expatt_stats_t *node_expatt_watched(const void *state); /* of the method's watch */
/* mean[dim], cov[dim][dim] of a blob that calib_check accepted. */
const float *node_expatt_blob_head(const node_model_info_t *model, const uint8_t *payload, uint32_t layer,
                                   uint32_t head);
vc_status_t node_expatt_calibrate(const node_spec_t *spec, const node_calib_job_t *job, void **payload_p,
                                  size_t *bytes_p, vc_err_t *err);
vc_status_t node_expatt_calib_check(const node_model_info_t *model, const uint8_t *payload, size_t bytes,
                                    vc_err_t *err);

#endif
