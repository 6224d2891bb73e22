/* Which table of operations this CPU can run. */
#ifndef NODE_BACKEND_H
#define NODE_BACKEND_H

#include "kernels/ops.h"

typedef enum { NODE_OPS_SCALAR, NODE_OPS_AVX2, NODE_OPS_AVX512 } node_ops_level_t;

/* NULL when the CPU lacks it. The VNNI form where there is VNNI of that width, same bits. */
const node_ops_t *node_ops_get(node_ops_level_t level);
/* The same, never the VNNI form: to run what other CPUs run. */
const node_ops_t *node_ops_plain(node_ops_level_t level);

/* The highest level that the CPU has. To be asked once per job: asking the CPU is slow under a hypervisor. */
node_ops_level_t node_ops_best_level(void);

/* Sets the default floating-point mode (nearest even, no flush to zero) of this thread and returns the one before. */
uint32_t node_fp_mode_set_default(void);
void node_fp_mode_restore(uint32_t mode);

#endif
