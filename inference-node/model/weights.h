/*
 * The weights of a model: every tensor validated against the metadata, matrices repacked for the kernels (so the file
 * is read once, at load), vectors and the embedding copied: nothing here refers to the file. Immutable after load.
 */
#ifndef NODE_WEIGHTS_H
#define NODE_WEIGHTS_H

#include "kernels/matrix.h"
#include "model/gguf.h"
#include "model/rope.h"

typedef struct node_layer {
    float *attn_norm, *ffn_norm; /* [d_model] */
    float *q_norm, *k_norm;      /* [head_dim] or NULL */
    node_matrix_t q, k, v, o, gate, up, down;
} node_layer_t;

/* Rows of the token embedding as the file has them, one token each: a copy, because a panel of 16 rows that would have
 * to be unpacked for each token costs more than the memory (a tied model has them repacked for the logits as well). */
typedef struct node_embedding {
    uint32_t type;
    size_t row_bytes;
    uint8_t *rows;
} node_embedding_t;

typedef struct node_weights {
    char arch[32];
    uint32_t n_layer, n_head, n_kv_head, head_dim, d_model, d_ffn, n_vocab, context;
    float rms_eps;
    node_rope_t rope; /* rope.divisors points into rope_divisors */
    float *rope_divisors;
    node_layer_t *layers;
    float *out_norm;
    node_huge_pool_t pool; /* of all matrices */
    node_matrix_t logits;
    node_embedding_t embedding;
    uint64_t bytes; /* of the file's tensors in use */
} node_weights_t;

/* UNSUPPORTED: an architecture, tensor type or shape that the kernels do not have; INVALID: the file contradicts
 * itself. The sentence names the key or the tensor. On failure *w holds nothing. */
vc_status_t node_weights_load(node_weights_t *w, const node_gguf_t *gguf, vc_err_t *err);
void node_weights_free(node_weights_t *w);

#endif
