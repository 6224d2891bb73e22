/* RotateKV: see rotatekv_impl.h. */
#include "kernels/vec_avx2.h"

#define RKV_OPS node_rkv_avx2
#include "compress/rotatekv_impl.h"
