/* Keys before RoPE: see prerope_impl.h. */
#include "kernels/vec_avx2.h"

#define PREROPE_OPS node_prerope_avx2
#include "compress/prerope_impl.h"
