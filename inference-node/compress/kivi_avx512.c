/* KIVI's quantiser: see kivi_impl.h. */
#include "kernels/vec_avx512.h"

#define KIVI_QUANTISE node_kivi_quantise_avx512
#include "compress/kivi_impl.h"
