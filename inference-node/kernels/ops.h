/*
 * The table of operations that the model code calls: one table per ISA, all giving the same bits.
 *
 * Vectors are 16 lanes everywhere (one AVX-512 register, two AVX2 registers, an array), so sums over a row run in the
 * same order: lane j takes elements j, j + 16, ..., lengths are padded with +0, and the lanes fold as i + (i + 8), + 4,
 * + 2, + 1. Weights are repacked into panels of 16 outputs (matrix.h), so a lane is an output and its chain of fma over
 * the inputs never depends on how many rows or panels are handled together.
 *
 * Rows of a buffer start on 64 bytes and their strides are multiples of 16 floats. All functions are pure; any thread.
 */
#ifndef NODE_OPS_H
#define NODE_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/coded.h"
#include "kernels/huge.h"
#include "kernels/matrix.h"

#define NODE_GROUP 32u /* inputs that share an activation scale */
#define NODE_ATTN_TILE 64u
#define NODE_QUERY_MAX 32 /* queries of one attention block */
#define NODE_HEAD_DIM_MAX 256

/* Rows of activations, in float and quantised. */
typedef struct node_acts {
    uint32_t n_in;
    size_t stride;       /* of x and q, in elements */
    size_t group_stride; /* of scale, sum and isum */
    float *x;            /* [row][n_in] */
    int16_t *q;          /* [row][n_in] round(x / scale) */
    float *scale;        /* [row][group] amax / 32767, 0 for a group without signal */
    float *sum;          /* [row][group] scale * sum of q */
    int32_t *isum;       /* [row][group] sum of q */
} node_acts_t;

/* One block of queries over one kv head: the rows of m, l and o are online-softmax states. */
typedef struct node_attn {
    uint32_t n_q, head_dim;
    const float *q;                   /* [n_q][head_dim], scaled by log2(e) / sqrt(d) */
    uint32_t n_valid[NODE_QUERY_MAX]; /* tokens of the tile that query i sees; 0: it skips the tile */
    float *m, *l;                     /* [n_q]; -infinity and 0 at the start */
    float *o;                         /* [n_q][head_dim] */
    float *p;                         /* scratch [n_q][NODE_ATTN_TILE] */
    /* What comes next, asked for from memory meanwhile: an f16 tile, or bytes of a coded one; or NULL. */
    const uint16_t *next_k, *next_v;
    const uint8_t *next_codes;
    bool once; /* no other block of the pass reads these tiles: they need not stay in the caches */
} node_attn_t;

typedef struct node_ops {
    const char *name;
    uint32_t row_tile;    /* rows that share one unpacking of the weights */
    uint32_t stream_rows; /* up to so many, linear reads a run of panels once, from one end to the other */
    /* y = x / sqrt(mean(x^2) + eps) * w */
    void (*rms_norm)(const float *x, const float *w, uint32_t n, float eps, float *y);
    /* Fills q, scale, sum, isum of one row from its x. n_in is a multiple of NODE_GROUP. */
    void (*quantise)(const node_acts_t *a, uint32_t row);
    /* out[row][o] for the 16 outputs of every panel in [panel, panel_end), bias added. Writes outputs below n_out only.
     * ahead: weights that come next, of the same layout, asked for from memory meanwhile; or NULL. */
    void (*linear)(const node_matrix_t *w, uint32_t panel, uint32_t panel_end, const uint8_t *ahead,
                   const node_acts_t *a, uint32_t row, uint32_t n_rows, float *out, size_t out_stride);
    void (*add)(float *x, const float *y, uint32_t n);                            /* x += y */
    void (*swiglu)(const float *gate, const float *up, uint32_t n, float *y);     /* gate * sigmoid(gate) * up */
    void (*rope)(float *head, const float *cos, const float *sin, uint32_t half); /* pairs (i, i + half) */
    void (*scale)(const float *x, float s, uint32_t n, float *y);
    /* Returns how many saturated. n is a multiple of 16. */
    uint32_t (*to_f16)(const float *x, uint32_t n, uint16_t *y);
    /* One tile of 64 tokens: k [head_dim][64], v [64][head_dim], f16. */
    void (*attend)(const node_attn_t *a, const uint16_t *k, const uint16_t *v);
    /* The Hadamard transform of a head in place: from and to the space that coded tiles are in. Its own inverse. */
    void (*hadamard)(float *head, uint32_t dim);
    /* One query of a->q for rotated coded tiles. */
    void (*code_query)(const node_coded_form_t *f, const float *q, node_coded_query_t *coded);
    /* One coded tile. Rotated: a->o is rotated too, and a->q read for the mean of keys only; by channel: q is not read.
     * Parameters of tokens that a query does not see are finite. */
    void (*attend_coded)(const node_attn_t *a, const node_coded_form_t *f, const node_coded_query_t *q,
                         const uint8_t *tile);
    /* Folds state b of n_q queries into a, b being the later split. */
    void (*fold)(uint32_t n_q, uint32_t head_dim, float *am, float *al, float *ao, const float *bm, const float *bl,
                 const float *bo);
    void (*finish)(float l, const float *o, uint32_t head_dim, float *y); /* y = o / l */
} node_ops_t;

extern const node_ops_t node_ops_scalar, node_ops_avx2, node_ops_avx2vnni, node_ops_avx512, node_ops_avx512vnni;

#endif
