/* RotateKV: see rotatekv_impl.h. */
#include "kernels/vec_scalar.h"

#define RKV_OPS node_rkv_scalar
#include "compress/rotatekv_impl.h"
