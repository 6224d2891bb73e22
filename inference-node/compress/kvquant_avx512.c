/* KVQuant's arithmetic: see kvquant_impl.h. */
#include "kernels/vec_avx512.h"

#define KVQUANT_OPS node_kvquant_avx512
#include "compress/kvquant_impl.h"
