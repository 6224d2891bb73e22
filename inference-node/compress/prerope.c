/* Tables of one block's angles, and the choice of the ISA. */
#include "compress/prerope_int.h"

#include "model/rope.h"
#include "vc/mem.h"

#define NO_BLOCK UINT32_MAX

struct node_prerope {
    const node_prerope_ops_t *ops;
    node_ops_level_t level;
    const node_model_info_t *model;
    node_prerope_shape_t shape;
    uint32_t block;
};

static const node_prerope_ops_t *ops_of(node_ops_level_t level)
{
    switch (level) {
    case NODE_OPS_AVX512: return &node_prerope_avx512;
    case NODE_OPS_AVX2: return &node_prerope_avx2;
    case NODE_OPS_SCALAR: break;
    }
    return &node_prerope_scalar;
}

node_prerope_t *node_prerope_create_level(const node_model_info_t *model, node_ops_level_t level)
{
    const uint32_t half = model->rope_dims / 2;
    const size_t table = (size_t)half * NODE_TILE * sizeof(float);
    node_prerope_t *p = node_ops_get(level) ? vc_calloc(1, sizeof(*p)) : NULL;
    if (p == NULL)
        return NULL;
    float *tables = vc_alloc_aligned(64, 2 * table + 64);
    if (tables == NULL) {
        vc_free(p);
        return NULL;
    }
    p->ops = ops_of(level);
    p->level = level;
    p->model = model;
    p->shape = (node_prerope_shape_t){model->head_dim, half, model->rope_mscale, tables, tables + half * NODE_TILE};
    p->block = NO_BLOCK;
    return p;
}

node_prerope_t *node_prerope_create(const node_model_info_t *model)
{
    return node_prerope_create_level(model, node_ops_best_level());
}

node_ops_level_t node_prerope_level(const node_prerope_t *p) { return p->level; }

void node_prerope_destroy(node_prerope_t *p)
{
    if (p == NULL)
        return;
    vc_free(p->shape.cos);
    vc_free(p);
}

void node_prerope_set_block(node_prerope_t *p, uint32_t block)
{
    float cos[NODE_HEAD_DIM_MAX / 2], sin[NODE_HEAD_DIM_MAX / 2];
    if (p->block == block)
        return;
    p->block = block;
    for (uint32_t t = 0; t < NODE_TILE; t++) {
        node_rope_table(p->model->rope_inv_freq, p->shape.half, 1.0f, block * NODE_TILE + t, cos, sin);
        for (uint32_t c = 0; c < p->shape.half; c++) {
            p->shape.cos[(size_t)c * NODE_TILE + t] = cos[c];
            p->shape.sin[(size_t)c * NODE_TILE + t] = sin[c];
        }
    }
}

void node_prerope_undo(const node_prerope_t *p, const uint16_t *k, float *pre) { p->ops->undo(&p->shape, k, pre); }
void node_prerope_apply(const node_prerope_t *p, const float *pre, uint16_t *k) { p->ops->apply(&p->shape, pre, k); }
