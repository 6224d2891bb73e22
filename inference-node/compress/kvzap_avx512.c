/* KVzap's arithmetic: see kvzap_impl.h. */
#include "kernels/vec_avx512.h"

#define KVZAP_OPS node_kvzap_avx512
#include "compress/kvzap_impl.h"
