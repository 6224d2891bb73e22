/* SnapKV's arithmetic: see snapkv_impl.h. */
#include "kernels/vec_scalar.h"

#define SNAPKV_OPS node_snapkv_scalar
#include "compress/snapkv_impl.h"
