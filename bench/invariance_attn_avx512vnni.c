/* The operations of AVX-512 VNNI with attention that adds in any order: the product's own text but for
 * invariance_attn_order.h. */
#define ATTN_ORDER "invariance_attn_order.h"
#define FREE_CHAINS(nq, ns) ((nq) * (ns) < 4 ? 4 : 1) /* a query by four vectors is slower with two */
#define node_ops_avx512vnni invariance_ops_avx512vnni /* the same table under a name of its own */
#include "kernels/ops_avx512vnni.c"

#include "invariance_parts.h"

float invariance_sum_avx512vnni(const float *l) { return v16_sum(v16_load(l)); }
