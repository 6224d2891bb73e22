/* SnapKV's arithmetic: see snapkv_impl.h. */
#include "kernels/vec_avx2.h"

#define SNAPKV_OPS node_snapkv_avx2
#include "compress/snapkv_impl.h"
