/* KVzip's arithmetic: see kvzip_impl.h. */
#include "kernels/vec_scalar.h"

#define KVZIP_OPS node_kvzip_scalar
#define KVZIP_NQ 1u
#define KVZIP_NV 1u
#include "compress/kvzip_impl.h"
