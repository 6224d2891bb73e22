/* KVzip's arithmetic: see kvzip_impl.h. */
#include "kernels/vec_avx2.h"

#define KVZIP_OPS node_kvzip_avx2
#define KVZIP_NQ 2u
#define KVZIP_NV 2u
#include "compress/kvzip_impl.h"
