/* Keys before RoPE: see prerope_impl.h. */
#include "kernels/vec_avx512.h"

#define PREROPE_OPS node_prerope_avx512
#include "compress/prerope_impl.h"
