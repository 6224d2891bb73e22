/* KVQuant's arithmetic: see kvquant_impl.h. */
#include "kernels/vec_avx2.h"

#define KVQUANT_OPS node_kvquant_avx2
#include "compress/kvquant_impl.h"
