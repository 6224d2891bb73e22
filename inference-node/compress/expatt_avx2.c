/* ExpectedAttention's arithmetic: see expatt_impl.h. */
#include "kernels/vec_avx2.h"

#define EXPATT_OPS node_expatt_avx2
#include "compress/expatt_impl.h"
