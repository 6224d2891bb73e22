/* KVQuant's arithmetic: see kvquant_impl.h. */
#include "kernels/vec_scalar.h"

#define KVQUANT_OPS node_kvquant_scalar
#include "compress/kvquant_impl.h"
