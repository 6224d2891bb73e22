/* Reference operations: sixteen-element arrays, integer loops. Every other table must give these bits. */
#include "kernels/int_scalar.h"

#include "kernels/ops.h"

#define CODED_NS 1
#define ATTN_NQ 3
#define ATTN_SUMS 1
#define ROW_TILE 1
#define STREAM_ROWS 0
#define OPS_NAME "scalar"
#define OPS_TABLE node_ops_scalar

static inline void store_outputs(const node_matrix_t *w, uint32_t panel, float *out, v16 y);

/* Code of input i (0..31) and lane o in a packed group. */
static int32_t code_at(const node_matrix_t *w, const uint8_t *group, uint32_t i, uint32_t o)
{
    if (w->type == NODE_W_Q8_0) {
        static const uint8_t byte_of[4] = {0, 2, 1, 3};
        return (int8_t)group[i / 4 * 64 + o * 4 + byte_of[i % 4]];
    }
    uint32_t word, j = i % 8;
    memcpy(&word, group + i / 8 * 64 + o * 4, 4);
    return (int32_t)((word >> (4 * (j / 2) + 16 * (j % 2))) & 15u);
}

static void linear_quantised(const node_matrix_t *w, uint32_t panel, uint32_t panel_end, const uint8_t *ahead,
                             const node_acts_t *a, uint32_t row, uint32_t n_rows, float *out, size_t out_stride)
{
    (void)ahead;
    uint32_t halves = w->type == NODE_W_Q8_0 ? 512 : 256;
    for (; panel < panel_end; panel++)
        for (uint32_t r = 0; r < n_rows; r++) {
            v16 acc = v16_set1(0.0f);
            const int16_t *q = a->q + (row + r) * a->stride;
            size_t at = (row + r) * a->group_stride;
            for (uint32_t g = 0; g < w->n_in / NODE_GROUP; g++) {
                const uint8_t *group = w->data + panel * w->panel_bytes + g * w->group_bytes;
                v16 dot;
                for (uint32_t o = 0; o < 16; o++) {
                    int32_t s = w->type == NODE_W_Q4_0 ? -8 * a->isum[at + g] : 0;
                    for (uint32_t i = 0; i < NODE_GROUP; i++)
                        s += code_at(w, group, i, o) * q[g * NODE_GROUP + i];
                    dot.f[o] = (float)s;
                }
                const uint16_t *d = (const uint16_t *)(const void *)(group + halves);
                acc = v16_fma(v16_load_f16(d), v16_mul(dot, v16_set1(a->scale[at + g])), acc);
                if (w->type == NODE_W_Q4_1)
                    acc = v16_fma(v16_load_f16(d + 16), v16_set1(a->sum[at + g]), acc);
            }
            store_outputs(w, panel, out + r * out_stride, acc);
        }
}

#include "kernels/ops_impl.h"
