/* Inside of prerope: the tables, and the arithmetic that has one version per ISA (prerope_impl.h). */
#ifndef NODE_PREROPE_INT_H
#define NODE_PREROPE_INT_H

#include "compress/prerope.h"

typedef struct node_prerope_shape {
    uint32_t head_dim, half; /* channels c and c + half pair, c < half; 2 * half of head_dim are rotated */
    float mscale;
    float *cos, *sin; /* [half][NODE_TILE], without mscale */
} node_prerope_shape_t;

typedef struct node_prerope_ops {
    void (*undo)(const node_prerope_shape_t *s, const uint16_t *k, float *pre);
    void (*apply)(const node_prerope_shape_t *s, const float *pre, uint16_t *k);
} node_prerope_ops_t;

extern const node_prerope_ops_t node_prerope_scalar, node_prerope_avx2, node_prerope_avx512;

#endif
