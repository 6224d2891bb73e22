/* rot's quantiser: see rot_impl.h. */
#include "kernels/vec_avx2.h"

#define ROT_QUANTISE node_rot_quantise_avx2
#include "compress/rot_impl.h"
