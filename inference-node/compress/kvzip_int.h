/*
 * Inside of KVzip: the arithmetic that has one version per ISA, the scores of one KV head, and the replay. Apart from
 * each other so that the scores can be held to reference numbers without a model.
 */
#ifndef NODE_KVZIP_INT_H
#define NODE_KVZIP_INT_H

#include "compress/select.h"
#include "kernels/backend.h"

#define NODE_KVZIP_SINK 4u  /* leading tokens that are always kept and always among the keys */
#define NODE_KVZIP_TAIL 8u  /* last tokens before a chunk that its instruction names */
#define NODE_KVZIP_ROWS 16u /* rows whose products are in memory together */

/* Bitwise equal on every ISA (kvzip_impl.h). */
typedef struct node_kvzip_ops {
    /* One tile: z[row * z_stride + i] = sum over c of q[row * q_stride + c] * k[c * NODE_TILE + i]. */
    void (*dots)(const float *q, size_t q_stride, uint32_t n_rows, uint32_t dim, const float *k, float *z,
                 size_t z_stride);
    void (*dots_f16)(const float *q, size_t q_stride, uint32_t n_rows, uint32_t dim, const uint16_t *k, float *z,
                     size_t z_stride);
    /* best[i] = max(best[i], log of softmax(scale * z)[first + i] - log_norm), i in [0, n_best). Masked places of z
     * hold -infinity; n, first and n_best are multiples of 16. False when a product is not a number. */
    bool (*raise)(const float *z, uint32_t n, uint32_t first, uint32_t n_best, float scale, float log_norm,
                  float *best);
    float (*square_sum)(const float *x, uint32_t n);
    void (*widen)(const uint16_t *src, float *dst, size_t n);            /* f16 to f32; n a multiple of 16 */
    float (*gram_norm)(const float *gram, uint32_t dim, const float *v); /* sqrt(v' gram v), gram [dim][dim] */
} node_kvzip_ops_t;

extern const node_kvzip_ops_t node_kvzip_scalar, node_kvzip_avx2, node_kvzip_avx512;
/* NULL when the CPU lacks it. */
const node_kvzip_ops_t *node_kvzip_ops(node_ops_level_t level);
const node_kvzip_ops_t *node_kvzip_ops_best(void);

/*
 * One KV head against some rows of a replay. Row j of the replay attends to the context's tokens [0, n_sink) and
 * [start, end) and to the replay's own tokens up to j: a softmax of its own, over fewer keys than the model's.
 */
typedef struct node_kvzip_head {
    uint32_t dim, n_group;
    uint32_t n_sink, start, end; /* n_sink <= start < end */
    uint32_t first_row, n_rows;  /* rows of the replay at hand */
    const float *q;              /* row j of these, head g of the group: q + j * q_stride + g * dim */
    size_t q_stride;
    const float *log_norm; /* [n_rows] log of the row's attention input's length; NULL: plain KVzip */
    /* Keys [dim][NODE_TILE] of a block of the context or of the replay (which begins a block), f16 where the flag says
     * so, else f32; valid until the next call. */
    const void *(*keys)(void *arg, bool of_replay, uint32_t block);
    void *keys_arg;
    bool f16;
} node_kvzip_head_t;

/* Columns of whole blocks that [start, end) lies in: the width of best. */
static inline uint32_t node_kvzip_columns(uint32_t start, uint32_t end)
{
    return ((end + NODE_TILE - 1) / NODE_TILE - start / NODE_TILE) * NODE_TILE;
}
/* Floats of z for a replay of n_replay rows. */
size_t node_kvzip_scratch(uint32_t n_sink, uint32_t start, uint32_t end, uint32_t n_replay);

/* best: [n_group][columns], -infinity before the first rows. False when a query or a key is not a number. */
bool node_kvzip_raise(const node_kvzip_ops_t *ops, const node_kvzip_head_t *in, float *z, float *best);

/* scores[i] of token start + i = max over the group of exp(best), times the head's norm where norms is not NULL:
 * [n_group][norm_stride], of token start + i at i. */
void node_kvzip_finish(uint32_t start, uint32_t end, uint32_t n_group, const float *best, const float *norms,
                       size_t norm_stride, float *scores);

/* Replays the new rows of in and gives their scores, [n_layer * n_kv_head][new rows]; the sinks' are 0. Freed with
 * vc_free. */
vc_status_t node_kvzip_replay(const node_spec_t *spec, const node_compress_in_t *in, float **scores_p, vc_err_t *err);

#endif
