/* SnapKV's arithmetic: see snapkv_impl.h. */
#include "kernels/vec_avx512.h"

#define SNAPKV_OPS node_snapkv_avx512
#include "compress/snapkv_impl.h"
