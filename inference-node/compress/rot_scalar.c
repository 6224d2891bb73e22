/* rot's quantiser: see rot_impl.h. */
#include "kernels/vec_scalar.h"

#define ROT_QUANTISE node_rot_quantise_scalar
#include "compress/rot_impl.h"
