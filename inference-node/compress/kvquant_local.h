/*
 * The texts of a calibration with their KV and some of their queries, and the weights of the codebook fit: how much an
 * error of one number of K or V changes the layer's attention output after its projection, to first order, summed over
 * the queries that were kept. For one call of calibrate; one thread.
 *   v, channel c:   sum over heads and queries j of a_ji^2 |W_h e_c|^2
 *   k before RoPE:  sum over heads and queries j of a_ji^2 |W_h (v_i - o_j)|^2 ((R_i' q_j)_c)^2 / d
 */
#ifndef NODE_KVQUANT_LOCAL_H
#define NODE_KVQUANT_LOCAL_H

#include "compress/kvquant_int.h"

typedef struct node_kvquant_texts {
    const node_model_info_t *model;
    uint32_t sinks; /* first tokens of a text, which count for nothing */
    uint32_t n, n_rows;
    node_kv_t *kv;       /* [n] */
    float **queries;     /* [n] -> [n_layer][n_queries][n_head][head_dim], after RoPE */
    uint32_t *n_queries; /* [n]; one query in 16 tokens, the last token's among them */
    uint32_t longest;    /* tokens */
    float *cos, *sin;    /* [longest][rope_dims / 2] */
} node_kvquant_texts_t;

vc_status_t node_kvquant_texts_init(node_kvquant_texts_t *t, const node_model_info_t *model, uint32_t n_texts,
                                    uint32_t sinks, vc_err_t *err);
/* Reads one text through the model; more than `sinks` tokens. */
vc_status_t node_kvquant_texts_add(node_kvquant_texts_t *t, const node_replay_t *replay, const uint32_t *tokens,
                                   uint32_t n_tokens, vc_err_t *err);
void node_kvquant_texts_free(node_kvquant_texts_t *t);

/* k_weights [channels][n_rows], v_weights [n_rows][channels]; rows: all texts, sinks left out. */
vc_status_t node_kvquant_local_weights(node_kvquant_texts_t *t, const node_engine_t *engine, uint32_t layer,
                                       float *k_weights, float *v_weights, vc_err_t *err);

#endif
