/*
 * Inside of KVzap: the surrogate that a blob holds, its arithmetic with one version per ISA, and the ridge fit. Apart
 * from the method so that each can be held to reference numbers by itself.
 *
 * Payload of a blob, little-endian, H = n_kv_head, D = d_model:
 *   4 x u32       kind (node_kvzap_kind_t); M, hidden units (0 unless MLP); NODE_KVZAP_QUANTILES; 0
 *   layers, f32   RIDGE: W [H][D], b [H]; MLP: W1 [M][D], b1 [M], W2 [H][M], b2 [H]
 *   f32           quantiles of f over texts, layers and heads, ascending: the first is the least f seen
 */
#ifndef NODE_KVZAP_INT_H
#define NODE_KVZAP_INT_H

#include "compress/calib.h"
#include "compress/codec_int.h"
#include "kernels/backend.h"

#define NODE_KVZAP_WINDOW 128u    /* last tokens that a drafter takes exact: without them the method fails */
#define NODE_KVZAP_QUANTILES 257u /* steps of 1/256 of the rows */
#define NODE_KVZAP_HEADS_MAX 256u

/* Bitwise equal on every ISA (kvzap_impl.h). Lengths are free; strides are the caller's. */
typedef struct node_kvzap_ops {
    /* y[o] = bias[o] + sum over i of w[o * n_in + i] * x[i] */
    void (*affine)(const float *w, const float *bias, uint32_t n_in, uint32_t n_out, const float *x, float *y);
    void (*gelu)(float *x, uint32_t n); /* x * Phi(x), exact form */
    /* acc[i] = max(acc[i], softmax(scale * z)[i] * factor) for i < n_acc <= n; both multiples of 16, masked places hold
     * -infinity; z is scratch afterwards */
    void (*softmax_max)(float *z, uint32_t n, uint32_t n_acc, float scale, float factor, float *acc);
    /* out[r][c] = sum over k < n_rows of a[k * stride + r] * a[k * stride + at + c], r < 4, c < 32 */
    void (*products)(const float *a, size_t stride, uint32_t n_rows, uint32_t row, uint32_t at, float *out);
} node_kvzap_ops_t;

extern const node_kvzap_ops_t node_kvzap_scalar, node_kvzap_avx2, node_kvzap_avx512;
/* NULL when the CPU lacks it. */
const node_kvzap_ops_t *node_kvzap_ops(node_ops_level_t level);
const node_kvzap_ops_t *node_kvzap_ops_best(void);

/* ---- kvzap_model.c: what a blob says ---- */

typedef enum { NODE_KVZAP_RIDGE = 1, NODE_KVZAP_MLP = 2 } node_kvzap_kind_t;

typedef struct node_kvzap_model {
    node_kvzap_kind_t kind;
    uint32_t n_layer, n_kv_head, d_model, hidden;
    const float *layers; /* [n_layer][layer_floats] */
    size_t layer_floats;
    const float *quantiles;
} node_kvzap_model_t;

/* Bytes of a payload, 0 when no size_t holds them. */
size_t node_kvzap_payload_bytes(node_kvzap_kind_t kind, uint32_t n_layer, uint32_t n_kv_head, uint32_t d_model,
                                uint32_t hidden);
/* A checked view: payload (on 4 bytes) must outlive it. CORRUPT: not a surrogate of this model, the sentence says why.
 */
vc_status_t node_kvzap_model_open(const node_model_info_t *info, const uint8_t *payload, size_t bytes,
                                  node_kvzap_model_t *model_p, vc_err_t *err);
/* f[n_kv_head] of one attention input; hidden: model->hidden floats of scratch. */
void node_kvzap_predict(const node_kvzap_ops_t *ops, const node_kvzap_model_t *model, uint32_t layer, const float *x,
                        float *hidden, float *f);
/* The share of rows with f >= tau, between quantiles in proportion; and the tau that keeps a share. */
double node_kvzap_share(const float *quantiles, double tau);
double node_kvzap_tau(const float *quantiles, double share);
/* Bit i: f[i] >= tau, of NODE_TILE rows. */
uint64_t node_kvzap_above(const float *f, double tau);

/* ---- kvzap_fit.c: ridge regression from sums ---- */

typedef struct node_kvzap_fit {
    const node_kvzap_ops_t *ops;
    uint32_t d, h, width; /* inputs, targets; columns [x y 1 0...] */
    uint64_t n;
    uint32_t n_block;
    float *block;  /* [64][width], rows that wait; origin not yet taken off */
    float *origin; /* [width]: means of the first rows, so that sums of squares stay near the variance */
    double *sums;  /* lower triangle of the columns' products, rows padded (kvzap_fit.c) */
} node_kvzap_fit_t;

vc_status_t node_kvzap_fit_init(node_kvzap_fit_t *fit, const node_kvzap_ops_t *ops, uint32_t d, uint32_t h,
                                vc_err_t *err);
void node_kvzap_fit_fini(node_kvzap_fit_t *fit);
void node_kvzap_fit_add(node_kvzap_fit_t *fit, const float *x, const float *y); /* one row: x [d], y [h] */
/* Least squares with alpha |W|^2, intercept free: W [h][d], b [h]. INVALID: no rows, or sums that are not finite. */
vc_status_t node_kvzap_fit_solve(node_kvzap_fit_t *fit, double alpha, float *w, float *b, vc_err_t *err);

/* ---- kvzap_targets.c: one text and its repetition through the engine ---- */

typedef struct node_kvzap_piece {
    const node_model_info_t *info;
    uint32_t n;       /* tokens of the text */
    uint32_t n_tiles; /* of the whole sequence */
    uint32_t second;  /* position of the repetition */
    node_kv_t kv;
    float *x;       /* [n_layer][n][d_model], of the text */
    float *q;       /* [n_layer][n][n_head * head_dim], of the repetition */
    float *inv_len; /* [n_layer][n]: 1 / |x| of the repetition */
    float *y;       /* [n_layer][n_kv_head][n]: targets, filled by node_kvzap_targets */
} node_kvzap_piece_t;

/* Runs text, instruction and text again. */
vc_status_t node_kvzap_piece_run(node_kvzap_piece_t *piece, const node_replay_t *replay, const uint32_t *text,
                                 uint32_t n, vc_err_t *err);
void node_kvzap_piece_free(node_kvzap_piece_t *piece); /* zeroed or run, also where that failed */
/* Targets of one KV head. gram: of this layer (node_engine_output_gram); scratch: node_kvzap_target_scratch floats. */
void node_kvzap_targets(const node_kvzap_ops_t *ops, node_kvzap_piece_t *piece, uint32_t layer, uint32_t kv_head,
                        const float *gram, float *scratch);
size_t node_kvzap_target_scratch(const node_kvzap_piece_t *piece);

/* ---- kvzap_calib.c: the slots ---- */
vc_status_t node_kvzap_calibrate(const node_spec_t *spec, const node_calib_job_t *job, void **payload_p,
                                 size_t *bytes_p, vc_err_t *err);
vc_status_t node_kvzap_calib_check(const node_model_info_t *model, const uint8_t *payload, size_t bytes, vc_err_t *err);

#endif
