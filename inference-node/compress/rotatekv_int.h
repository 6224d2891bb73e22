/*
 * Inside of RotateKV: shapes, the payload of a layer, and the arithmetic that has one version per ISA. Matrices here
 * are [channel][NODE_TILE] floats, lanes are tokens, so nothing is ever added across lanes and the bits are the same
 * everywhere.
 */
#ifndef NODE_ROTATEKV_INT_H
#define NODE_ROTATEKV_INT_H

#include "compress/codec_int.h"
#include "kernels/backend.h"

#define NODE_RKV_BLOCK_MAX (4u * NODE_HEAD_DIM_MAX) /* channels that one Hadamard transform spans at most */
#define NODE_RKV_ZERO_MAX 16384.0f                  /* a scale is at least the largest number of its group over this */

/* One matrix, K or V, of one layer of a block. */
typedef struct node_rkv_shape {
    uint32_t n_head, dim, width; /* width = n_head * dim channels */
    uint32_t key_block, value_block;
    uint32_t group, n_groups; /* n_groups in the whole width; groups never cross a head's worth of channels */
    uint32_t bits, row_bytes;
} node_rkv_shape_t;

/* UNSUPPORTED when the model's heads do not fit. */
vc_status_t node_rkv_shape(const node_spec_t *spec, uint32_t n_head, uint32_t dim, node_rkv_shape_t *s_p,
                           vc_err_t *err);
/* Keys are rotated over the largest power of two of heads that divides their number, four at most; where a head is no
 * power of two, inside it. */
uint32_t node_rkv_key_block(uint32_t n_head, uint32_t dim);

static inline uint32_t node_rkv_codes_bytes(const node_rkv_shape_t *s) { return NODE_TILE * s->row_bytes; }
static inline uint32_t node_rkv_params_bytes(const node_rkv_shape_t *s) { return NODE_TILE * s->n_groups * 2u; }
static inline uint32_t node_rkv_matrix_bytes(const node_rkv_shape_t *s)
{
    return node_rkv_codes_bytes(s) + 2u * node_rkv_params_bytes(s); /* scales, zero points */
}
static inline uint32_t node_rkv_exact_bytes(const node_rkv_shape_t *s) { return 1u + 4u * s->width; } /* one row */

/* How numbers become codes. */
typedef struct node_rkv_grid {
    uint32_t group;
    float levels; /* what a group's range is divided by: 2^bits - 1 */
    float top;    /* the largest code */
    float clip;   /* of both ends, in groups that hold both signs */
    bool wide;    /* scales stay floats, and neither one-sign groups nor far zero points are treated apart: the paper's
                     arithmetic, for tests against its numbers */
} node_rkv_grid_t;

static inline node_rkv_grid_t node_rkv_grid(const node_spec_t *spec, uint32_t group)
{
    const float levels = (float)((1u << spec->bits) - 1u);
    return (node_rkv_grid_t){group, levels, levels, (float)spec->clip, false};
}

/* order NULL: channels in their own order; else place j of a matrix is channel order[j]. n: channels. Codes
 * [n][NODE_TILE], scales and zeros [n / group][NODE_TILE]. */
typedef struct node_rkv_ops {
    void (*widen)(const uint16_t *x, uint32_t n, float *y);  /* n * NODE_TILE numbers */
    void (*narrow)(const float *x, uint32_t n, uint16_t *y); /* saturating */
    void (*rotate)(float *x, uint32_t n, uint32_t block);    /* in place, its own inverse */
    void (*quantise)(const node_rkv_grid_t *grid, const float *x, const uint16_t *order, uint32_t n, uint8_t *codes,
                     float *scales, int16_t *zeros);
    void (*restore)(const uint8_t *codes, const float *scales, const int16_t *zeros, const uint16_t *order, uint32_t n,
                    uint32_t group, float *x);
} node_rkv_ops_t;

extern const node_rkv_ops_t node_rkv_scalar, node_rkv_avx2, node_rkv_avx512;
const node_rkv_ops_t *node_rkv_ops(node_ops_level_t level); /* one that the CPU has */

/* Room for one layer of a block, reused. */
typedef struct node_rkv_scratch {
    float *x;        /* [width][NODE_TILE] */
    float *scales;   /* [n_groups][NODE_TILE] */
    int16_t *zeros;  /* [n_groups][NODE_TILE] */
    uint16_t *k, *v; /* [width][NODE_TILE], head by head in page layout; v: [n_head][NODE_TILE][dim] */
    uint8_t *codes;  /* [width][NODE_TILE] */
    uint8_t *rows;   /* [NODE_TILE][width] */
} node_rkv_scratch_t;
bool node_rkv_scratch_init(node_rkv_scratch_t *t, const node_rkv_shape_t *s); /* false: out of memory, nothing kept */
void node_rkv_scratch_fini(node_rkv_scratch_t *t);

/* ---- rotatekv_watch.c: rows that hold the largest numbers of the residual stream ---- */

typedef struct node_rkv_sinks node_rkv_sinks_t;
node_rkv_sinks_t *node_rkv_sinks_create(uint32_t n_layer, uint32_t d_model, uint32_t n_entries); /* NULL: no memory */
void node_rkv_sinks_free(void *sinks);
void node_rkv_sinks_row(node_rkv_sinks_t *s, uint32_t layer, uint32_t position, const float *values);
/* Bit t of rows[b]: position first + 64 b + t holds one of the layer's entries. rows: n_blocks words, zeroed. */
void node_rkv_sinks_rows(const node_rkv_sinks_t *s, uint32_t layer, uint32_t first, uint32_t n_blocks, uint64_t *rows);

/* ---- rotatekv_calib.c: the order of rotated channels ---- */

/* order[i] = channel with the i-th smallest sum; equal ones by number. False: out of memory. */
bool node_rkv_order(const double *sums, uint32_t n, uint16_t *order);
/* sums[c] += the tile's numbers of channel c, token after token. */
void node_rkv_sum(const float *x, uint32_t n, double *sums);
vc_status_t node_rkv_calibrate(const node_spec_t *spec, const node_calib_job_t *job, void **payload_p, size_t *bytes_p,
                               vc_err_t *err);
vc_status_t node_rkv_calib_check(const node_model_info_t *model, const uint8_t *payload, size_t bytes, vc_err_t *err);

#endif
