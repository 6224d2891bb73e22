/*
 * Gram matrices of the output projection, for methods that weigh a value by what it becomes after it: the norm of
 * W_h v costs head_dim^2 per vector with them instead of d_model * head_dim.
 */
#include "model/engine_int.h"
#include "vc/mem.h"

/* Products of floats are exact in double, so only the sums round, in the order of the outputs. Columns from the row's
 * own on: the rest is the same. */
static void add_output(const float *w, uint32_t n_head, uint32_t dim, double *sum)
{
    for (uint32_t h = 0; h < n_head; h++, w += dim)
        for (uint32_t i = 0; i < dim; i++, sum += dim)
            for (uint32_t j = i; j < dim; j++)
                sum[j] += (double)w[i] * (double)w[j];
}

vc_status_t node_engine_output_gram(const node_engine_t *eng, uint32_t layer, float *gram, vc_err_t *err)
{
    const uint32_t n_head = eng->info.n_head, dim = eng->info.head_dim;
    const node_matrix_t *o = &eng->w.layers[layer].o;
    const size_t n = (size_t)n_head * dim * dim;
    float *panel = vc_calloc((size_t)NODE_PANEL * o->n_in, sizeof *panel);
    double *sum = vc_calloc(n, sizeof *sum);
    vc_status_t st = VC_OK;
    if (panel == NULL || sum == NULL)
        st = vc_err_set(err, VC_ERR_NOMEM, "no memory for the output weights of %u heads", n_head);
    for (uint32_t p = 0; st == VC_OK && p < o->n_panels; p++) {
        node_matrix_unpack_panel(o, p, panel);
        for (uint32_t r = 0; r < NODE_PANEL; r++)
            add_output(panel + (size_t)r * o->n_in, n_head, dim, sum);
    }
    for (size_t i = 0; st == VC_OK && i < n; i++) {
        const size_t row = i / dim % dim, column = i % dim;
        gram[i] = (float)(column < row ? sum[i - row * dim - column + column * dim + row] : sum[i]);
    }
    vc_free(panel);
    vc_free(sum);
    return st;
}
