/* AVX2 with FMA and F16C. */
#include "kernels/int_avx2.h"

#include "kernels/ops.h"

#define CODED_NS 1
#define ATTN_NQ 6
#define ATTN_SUMS 6
#define ROW_TILE 4
#define OPS_NAME "avx2"
#define OPS_TABLE node_ops_avx2

static inline void store_outputs(const node_matrix_t *w, uint32_t panel, float *out, v16 y);
#include "kernels/linear_avx2.h"

#include "kernels/ops_impl.h"
