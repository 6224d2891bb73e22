/*
 * Queries of the last tokens of a span, for compressors that need them (NODE_NEED_Q_WINDOW). They are computed again on
 * top of the span's own KV: by the numerics contract that gives the bits of the first pass, wherever that ran, and
 * nothing has to be kept in between.
 */
#ifndef NODE_QWINDOW_H
#define NODE_QWINDOW_H

#include "compress/codec.h"

/* Floats in a window of `rows` rows: n_layer x rows x n_head x head_dim. */
size_t node_q_window_floats(const node_model_info_t *model, uint32_t rows);

/*
 * kv: full KV of at least n_tokens (a multiple of NODE_TILE); not changed, its pages are shared for the call.
 * *q_p: [n_layer][*rows_p][n_head][head_dim], freed with vc_free; *rows_p = min(window, n_tokens).
 */
vc_status_t node_q_window(node_engine_t *engine, const node_kv_t *kv, const uint32_t *tokens, uint32_t n_tokens,
                          uint32_t window, float **q_p, uint32_t *rows_p, vc_err_t *err);

#endif
