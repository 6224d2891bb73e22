/* The kernels of bench_invariance that may add in any order. */
#ifndef BENCH_INVARIANCE_PARTS_H
#define BENCH_INVARIANCE_PARTS_H

#include "harness.h"
#include "kernels/ops.h"

/* Any n_q up to NODE_QUERY_MAX over n_tiles full tiles, one state for all of them. out: [n_q][head_dim]. */
typedef struct {
    uint32_t n_q, head_dim, n_tiles;
    const float *q;                      /* [n_q][head_dim], scaled */
    const uint16_t *const *k, *const *v; /* [n_tiles] */
    float *p;                            /* scratch [n_q][64] */
    float *o;                            /* scratch [n_q][head_dim] */
    float *out;
} invariance_attn_t;

/* invariance_avx512vnni.c */
void invariance_linear_free(const node_matrix_t *w, const uint8_t *ahead, const node_acts_t *a, uint32_t n_rows,
                            float *out, size_t out_stride); /* Q4_1, whole matrix, an even number of panels */
void invariance_attend_free(const invariance_attn_t *a);

#endif
