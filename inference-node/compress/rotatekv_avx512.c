/* RotateKV: see rotatekv_impl.h. */
#include "kernels/vec_avx512.h"

#define RKV_OPS node_rkv_avx512
#include "compress/rotatekv_impl.h"
