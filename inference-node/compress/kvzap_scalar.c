/* KVzap's arithmetic: see kvzap_impl.h. */
#include "kernels/vec_scalar.h"

#define KVZAP_OPS node_kvzap_scalar
#include "compress/kvzap_impl.h"
