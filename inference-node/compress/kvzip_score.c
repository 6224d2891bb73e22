/*
 * KVzip's scores of one KV head. Pure: any thread, one head per call.
 *
 * The score of a token is the largest weight that any row of any head of the group gives it. Weights are compared as
 * logarithms: a row's softmax is then its products plus one number, and KVzip+ is that number and one factor per token.
 */
#include <math.h>

#include "compress/kvzip_int.h"
#include "kernels/numerics.h"
#include "vc/mem.h"

const node_kvzip_ops_t *node_kvzip_ops(node_ops_level_t level)
{
    if (node_ops_get(level) == NULL)
        return NULL;
    switch (level) {
    case NODE_OPS_AVX512: return &node_kvzip_avx512;
    case NODE_OPS_AVX2: return &node_kvzip_avx2;
    case NODE_OPS_SCALAR: break;
    }
    return &node_kvzip_scalar;
}

const node_kvzip_ops_t *node_kvzip_ops_best(void) { return node_kvzip_ops(node_ops_best_level()); }

static uint32_t blocks_of(uint32_t n) { return n / NODE_TILE + (n % NODE_TILE != 0); }

size_t node_kvzip_scratch(uint32_t n_sink, uint32_t start, uint32_t end, uint32_t n_replay)
{
    size_t columns = (size_t)(blocks_of(n_sink) + blocks_of(n_replay)) * NODE_TILE + node_kvzip_columns(start, end);
    return NODE_KVZIP_ROWS * columns;
}

/* Places of one tile outside [lo, hi) get -infinity in every row. */
static void mask_tile(float *z, size_t z_stride, uint32_t n_rows, uint32_t lo, uint32_t hi)
{
    if (lo == 0 && hi >= NODE_TILE)
        return;
    for (uint32_t r = 0; r < n_rows; r++, z += z_stride) {
        for (uint32_t i = 0; i < lo; i++)
            z[i] = -INFINITY;
        for (uint32_t i = hi; i < NODE_TILE; i++)
            z[i] = -INFINITY;
    }
}

typedef struct rows {
    const node_kvzip_ops_t *ops;
    const node_kvzip_head_t *in;
    const float *q;
    uint32_t n;
    float *z;
    size_t z_stride;
    uint32_t column; /* of the next tile */
} rows_t;

static void add_tile(rows_t *r, bool of_replay, uint32_t block, uint32_t lo, uint32_t hi)
{
    const node_kvzip_head_t *in = r->in;
    const void *k = in->keys(in->keys_arg, of_replay, block);
    float *z = r->z + r->column;
    if (in->f16)
        r->ops->dots_f16(r->q, in->q_stride, r->n, in->dim, k, z, r->z_stride);
    else
        r->ops->dots(r->q, in->q_stride, r->n, in->dim, k, z, r->z_stride);
    mask_tile(z, r->z_stride, r->n, lo, hi);
    r->column += NODE_TILE;
}

/* The part of block b that lies in [start, end), as rows of the block. */
static uint32_t low_edge(uint32_t start, uint32_t b) { return start > b * NODE_TILE ? start - b * NODE_TILE : 0; }
static uint32_t high_edge(uint32_t end, uint32_t b) { return VC_MIN(end - b * NODE_TILE, NODE_TILE); }

bool node_kvzip_raise(const node_kvzip_ops_t *ops, const node_kvzip_head_t *in, float *z, float *best)
{
    const uint32_t columns = node_kvzip_columns(in->start, in->end), head_columns = blocks_of(in->n_sink) * NODE_TILE;
    const float scale = 1.0f / sqrtf((float)in->dim);
    bool good = true;
    for (uint32_t g = 0; g < in->n_group; g++)
        for (uint32_t j = 0; j < in->n_rows; j += NODE_KVZIP_ROWS) {
            const uint32_t n = VC_MIN(NODE_KVZIP_ROWS, in->n_rows - j), seen = in->first_row + j + n;
            const uint32_t width = head_columns + columns + blocks_of(seen) * NODE_TILE;
            rows_t r = {ops, in, in->q + j * in->q_stride + (size_t)g * in->dim, n, z, width, 0};
            for (uint32_t b = 0; b < blocks_of(in->n_sink); b++)
                add_tile(&r, false, b, 0, high_edge(in->n_sink, b));
            for (uint32_t b = in->start / NODE_TILE; b < blocks_of(in->end); b++)
                add_tile(&r, false, b, low_edge(in->start, b), high_edge(in->end, b));
            for (uint32_t b = 0; b < blocks_of(seen); b++)
                add_tile(&r, true, b, 0, NODE_TILE);
            for (uint32_t i = 0; i < n; i++) {
                float *row = z + (size_t)i * width;
                for (uint32_t c = head_columns + columns + seen - n + i + 1; c < width; c++)
                    row[c] = -INFINITY; /* the replay after the row itself */
                good &= ops->raise(row, width, head_columns, columns, scale, in->log_norm ? in->log_norm[j + i] : 0.0f,
                                   best + (size_t)g * columns);
            }
        }
    return good;
}

void node_kvzip_finish(uint32_t start, uint32_t end, uint32_t n_group, const float *best, const float *norms,
                       size_t norm_stride, float *scores)
{
    const uint32_t columns = node_kvzip_columns(start, end), skip = start % NODE_TILE;
    for (uint32_t i = 0; i < end - start; i++) {
        float score = 0.0f;
        for (uint32_t g = 0; g < n_group; g++) {
            float weight = node_exp(best[(size_t)g * columns + skip + i]);
            if (norms)
                weight *= norms[g * norm_stride + i];
            score = VC_MAX(score, weight);
        }
        scores[i] = score;
    }
}
