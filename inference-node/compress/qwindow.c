/* Recomputes the last queries of a span. Runs forward passes: the caller holds the engine. */
#include "compress/qwindow.h"

#include <string.h>

#include "vc/mem.h"

typedef struct q_sink {
    const node_model_info_t *model;
    float *q;
    uint32_t rows;  /* of the window */
    uint32_t skip;  /* rows computed only to start at a block boundary */
    uint32_t first; /* row number of row 0 of the running pass */
} q_sink_t;

size_t node_q_window_floats(const node_model_info_t *model, uint32_t rows)
{
    return (size_t)model->n_layer * rows * model->n_head * model->head_dim;
}

static void take_q(void *arg, node_capture_kind_t kind, uint32_t layer, uint32_t row, const float *values)
{
    q_sink_t *sink = arg;
    uint32_t at = sink->first + row;
    if (kind != NODE_CAP_Q || at < sink->skip)
        return;
    size_t width = (size_t)sink->model->n_head * sink->model->head_dim;
    memcpy(sink->q + ((size_t)layer * sink->rows + (at - sink->skip)) * width, values, width * sizeof(float));
}

/* Passes of one block each keep `first` in step with the row numbers that the engine reports. */
static vc_status_t run_passes(node_engine_t *engine, node_kv_t *kv, const uint32_t *tokens, uint32_t n, q_sink_t *sink,
                              vc_err_t *err)
{
    const node_capture_t capture = {NODE_CAP_Q, take_q, sink};
    for (uint32_t done = 0; done < n; done += NODE_TILE) {
        node_row_t rows[NODE_TILE];
        uint32_t m = VC_MIN(NODE_TILE, n - done);
        for (uint32_t i = 0; i < m; i++)
            rows[i] = (node_row_t){kv, tokens[done + i], false};
        sink->first = done;
        vc_status_t status = node_forward(engine, rows, m, NULL, &capture, err);
        if (status != VC_OK)
            return status;
    }
    return VC_OK;
}

vc_status_t node_q_window(node_engine_t *engine, const node_kv_t *kv, const uint32_t *tokens, uint32_t n_tokens,
                          uint32_t window, float **q_p, uint32_t *rows_p, vc_err_t *err)
{
    const node_model_info_t *model = node_engine_info(engine);
    uint32_t rows = VC_MIN(window, n_tokens);
    uint32_t start = (n_tokens - rows) / NODE_TILE * NODE_TILE;
    if (rows == 0 || n_tokens > kv->n_tokens || kv->body != NULL)
        return vc_err_set(err, VC_ERR_INVALID, "a query window of %u tokens needs full KV of %u tokens", window,
                          n_tokens);
    node_kv_t tmp;
    vc_status_t status = node_kv_init(&tmp, &kv->dims, NULL);
    if (status != VC_OK)
        return vc_err_set(err, status, "no memory for a query window");
    q_sink_t sink = {.model = model, .rows = rows, .skip = n_tokens - rows - start};
    sink.q = vc_calloc(node_q_window_floats(model, rows), sizeof(float));
    if (sink.q == NULL)
        status = VC_ERR_NOMEM;
    for (uint32_t b = 0; status == VC_OK && b < start / NODE_TILE; b++) {
        node_page_t *page = node_page_get(node_kv_page_at(kv, b));
        status = node_kv_append_page(&tmp, page);
        if (status != VC_OK)
            node_page_put(page);
    }
    if (status != VC_OK)
        vc_err_set(err, status, "no memory for a query window");
    else
        status = run_passes(engine, &tmp, tokens + start, n_tokens - start, &sink, err);
    node_kv_fini(&tmp);
    if (status != VC_OK) {
        vc_free(sink.q);
        return status;
    }
    *q_p = sink.q;
    *rows_p = rows;
    return VC_OK;
}
