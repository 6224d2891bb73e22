/* ExpectedAttention's arithmetic: see expatt_impl.h. */
#include "kernels/vec_avx512.h"

#define EXPATT_OPS node_expatt_avx512
#include "compress/expatt_impl.h"
