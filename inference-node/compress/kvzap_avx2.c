/* KVzap's arithmetic: see kvzap_impl.h. */
#include "kernels/vec_avx2.h"

#define KVZAP_OPS node_kvzap_avx2
#include "compress/kvzap_impl.h"
