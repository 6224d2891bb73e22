/* ExpectedAttention's arithmetic: see expatt_impl.h. */
#include "kernels/vec_scalar.h"

#define EXPATT_OPS node_expatt_scalar
#include "compress/expatt_impl.h"
