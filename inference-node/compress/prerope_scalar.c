/* Keys before RoPE: see prerope_impl.h. */
#include "kernels/vec_scalar.h"

#define PREROPE_OPS node_prerope_scalar
#include "compress/prerope_impl.h"
