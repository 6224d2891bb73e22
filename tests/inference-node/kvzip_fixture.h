/* What the suites of KVzip share: rows captured from a pass, and a key of a page as a number. */
#ifndef KVZIP_FIXTURE_H
#define KVZIP_FIXTURE_H

#include <string.h>

#include "kernels/numerics.h"
#include "kv/pages.h"
#include "model/engine.h"

typedef struct seen {
    uint32_t n_rows, q_width, x_width;
    float *q, *x; /* [n_layer][n_rows][width] */
    uint32_t first;
} seen_t;

static void take(void *arg, node_capture_kind_t kind, uint32_t layer, uint32_t row, uint32_t position,
                 const float *values)
{
    seen_t *s = arg;
    (void)row;
    const size_t at = (size_t)layer * s->n_rows + (position - s->first);
    if (kind == NODE_CAP_Q)
        memcpy(s->q + at * s->q_width, values, s->q_width * sizeof(float));
    else
        memcpy(s->x + at * s->x_width, values, s->x_width * sizeof(float));
}

static double key_at(const node_kv_t *kv, uint32_t layer, uint32_t head, uint32_t t, uint32_t c)
{
    return node_f32_from_f16(
        node_page_k(node_kv_page_at(kv, t / NODE_TILE), layer, head)[c * NODE_TILE + t % NODE_TILE]);
}

#endif
