/* KVzip's arithmetic: see kvzip_impl.h. */
#include "kernels/vec_avx512.h"

#define KVZIP_OPS node_kvzip_avx512
#define KVZIP_NQ 8u
#define KVZIP_NV 2u
#include "compress/kvzip_impl.h"
