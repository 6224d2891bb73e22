/* KIVI's quantiser: see kivi_impl.h. */
#include "kernels/vec_scalar.h"

#define KIVI_QUANTISE node_kivi_quantise_scalar
#include "compress/kivi_impl.h"
