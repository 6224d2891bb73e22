/*
 * A weight matrix repacked at load so that vector lanes are outputs.
 *
 * Panel = 16 outputs. Within a panel, per group of 32 inputs:
 *   Q4_0  256 B codes, 16 f16 scales           code word k of output o (32 bits at k * 64 + o * 4) holds inputs
 *   Q4_1  256 B codes, 16 f16 scales, 16 f16 minima   8k..8k+7: input 8k + 2j in nibble j, 8k + 2j + 1 in nibble j + 4,
 *                                                     so (word >> 4j) & 0x000F000F is a pair of 16-bit codes
 *   Q8_0  512 B codes, 16 f16 scales           word k holds inputs 4k..4k+3 in bytes 0, 2, 1, 3
 * and F16, F32 are [input][16]. Outputs past n_out are zero.
 *
 * Rule of the arithmetic: integer types: per group t = float(dot) * activation scale, acc = fma(d, t, acc), then for
 * Q4_1 acc = fma(m, activation sum, acc), groups ascending; Q4_0 codes count from -8 inside the integer dot. F16, F32:
 * acc = fma(w, x, acc), inputs ascending, activations in float. Then one addition of the bias where there is one.
 */
#ifndef NODE_MATRIX_H
#define NODE_MATRIX_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/huge.h"
#include "vc/status.h"

#define NODE_PANEL 16u

typedef enum { NODE_W_F32 = 0, NODE_W_F16 = 1, NODE_W_Q4_0 = 2, NODE_W_Q4_1 = 3, NODE_W_Q8_0 = 8 } node_wtype_t;

typedef struct node_matrix {
    uint32_t type; /* node_wtype_t */
    uint32_t n_in, n_out, n_panels;
    size_t group_bytes; /* of one group of 32 inputs (quantised types) */
    size_t panel_bytes;
    uint8_t *data;     /* 64-byte aligned */
    const float *bias; /* [n_panels * 16], zero padded, or NULL */
} node_matrix_t;

bool node_matrix_type_ok(uint32_t type);
bool node_matrix_quantised(uint32_t type);

/* Bytes of n_in weights of a row in the file's format; n_in is a multiple of 32 for quantised types. */
size_t node_matrix_row_bytes(uint32_t type, uint32_t n_in);

/* rows[o] points at the file's row of output o (this is where an order of rows is undone). The weights lie in the pool
 * and are freed with it. NOMEM only. */
vc_status_t node_matrix_pack(node_matrix_t *m, uint32_t type, uint32_t n_in, uint32_t n_out, const uint8_t *const *rows,
                             node_huge_pool_t *pool);
/* Output `from` of one matrix as output `to` of another with the same inputs and type, whose panels are there. */
void node_matrix_copy_row(node_matrix_t *m, uint32_t to, const node_matrix_t *source, uint32_t from);
/* The weights of one panel as floats, the bits that node_matrix_unpack_row gives; outputs past n_out are zero. */
void node_matrix_unpack_panel(const node_matrix_t *m, uint32_t panel, float *out /* [NODE_PANEL][n_in] */);

/* One row of the file's format as floats: d * code (+ m with one fma). */
void node_matrix_unpack_row(uint32_t type, const uint8_t *row, uint32_t n_in, float *out);

#endif
