/* AVX-512 without VNNI. */
#include "kernels/int_avx512.h"

#include "kernels/ops.h"

#define CODED_NS 4
#define ATTN_NQ 12
#define ATTN_SUMS 24
#define ROW_TILE 8
#define OPS_NAME "avx512"
#define OPS_TABLE node_ops_avx512

static inline void store_outputs(const node_matrix_t *w, uint32_t panel, float *out, v16 y);
#include "kernels/linear_avx512.h"

#include "kernels/ops_impl.h"
