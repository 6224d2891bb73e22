/* The operations of AVX2 with attention that adds in any order: the product's own text but for invariance_attn_order.h.
 */
#define ATTN_ORDER "invariance_attn_order.h"
#define FREE_CHAINS(nq, ns) ((nq) * (ns) < 4 ? 4 : 1)
#define node_ops_avx2 invariance_ops_avx2 /* the same table under a name of its own */
#include "kernels/ops_avx2.c"

#include "invariance_parts.h"

float invariance_sum_avx2(const float *l) { return v16_sum(v16_load(l)); }
