/* The kernels of bench_invariance that may add in any order. */
#ifndef BENCH_INVARIANCE_PARTS_H
#define BENCH_INVARIANCE_PARTS_H

#include "harness.h"
#include "kernels/ops.h"

/* invariance_avx512vnni.c: Q4_1, whole matrix, an even number of panels. */
void invariance_linear_free(const node_matrix_t *w, const uint8_t *ahead, const node_acts_t *a, uint32_t n_rows,
                            float *out, size_t out_stride);

/* invariance_attn_ISA.c: the attend of these tables keeps l as [n_q][16], the sum of whose lanes is what attend of the
 * product's tables has in l. */
extern const node_ops_t invariance_ops_avx2, invariance_ops_avx512vnni;
float invariance_sum_avx2(const float *l);
float invariance_sum_avx512vnni(const float *l);

/* invariance_attn.c: every size on every instruction set that the CPU has; rows, notes and figures. */
void invariance_bench_attention(uint32_t rounds);

/* bench_invariance.c. */

/* Called by turns. */
typedef struct {
    void (*ours)(void *arg);
    void (*free_order)(void *arg);
    void *arg;
} invariance_pair_t;

/* Median of ours / free over the rounds, with rows "WHAT ours" and "WHAT free order". */
double invariance_compare(const char *what, const invariance_pair_t *p, uint32_t rounds);
/* The two must agree but for rounding, or one of them computes something else: ends the bench. */
void invariance_expect_close(const char *what, const float *x, const float *y, size_t n);
float invariance_noise(uint32_t *state);      /* in [-0.5, 0.5) */
void *invariance_room(size_t n, size_t size); /* zeroed, starts on 64 bytes; ends the bench where there is no memory */

#endif
