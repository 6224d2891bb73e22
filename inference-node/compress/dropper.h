/*
 * How a dropper's kept rows are written: f16, or rotated and quantised where the spec ends in "+rot:...". select.c
 * writes them, dropper.c reads them.
 */
#ifndef NODE_DROPPER_H
#define NODE_DROPPER_H

#include "compress/rot_int.h"

typedef struct node_dropper_rows {
    uint32_t dim;
    node_rot_rows_t coded;         /* bits 0: f16 */
    node_rot_quantise_fn quantise; /* of a writer */
} node_dropper_rows_t;

/* UNSUPPORTED: a head of dim channels cannot be coded so. writes: the rows will be encoded. */
vc_status_t node_dropper_rows_init(node_dropper_rows_t *rows, const node_spec_t *spec, uint32_t dim, bool writes,
                                   vc_err_t *err);
/* Bytes of one head with n kept rows, the bitmap among them. */
uint32_t node_dropper_rows_bytes(const node_dropper_rows_t *rows, uint32_t n);
/* Writes one head; kept: bit i = row i of the page. Returns the first byte after it. */
uint8_t *node_dropper_rows_encode(const node_dropper_rows_t *rows, uint8_t *at, node_page_t *page, uint32_t layer,
                                  uint32_t head, uint64_t kept);

#endif
