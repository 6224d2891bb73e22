/*
 * Rotary position embedding: inverse frequencies of every scaling that GGUF names, and the table of one position.
 * theta_i is kept as a float (what models are trained and stored with), the angle position * theta_i is formed in
 * double; everything from own double functions, so a table has the same bits on every machine. Channels i and i + dims
 * / 2 pair.
 */
#ifndef NODE_ROPE_H
#define NODE_ROPE_H

#include <stddef.h>
#include <stdint.h>

typedef enum { NODE_ROPE_DEFAULT, NODE_ROPE_LINEAR, NODE_ROPE_LLAMA3, NODE_ROPE_YARN } node_rope_kind_t;

typedef struct node_rope {
    node_rope_kind_t kind;
    uint32_t dims; /* even */
    double theta;
    double factor;                            /* linear, llama3, yarn */
    double low_freq_factor, high_freq_factor; /* llama3 by parameters */
    double attn_factor, beta_fast, beta_slow; /* yarn */
    uint32_t original_context;                /* llama3, yarn */
    const float *divisors; /* [dims / 2] or NULL: what each frequency is divided by (llama3 in GGUF) */
} node_rope_t;

/* inv_freq[dims / 2]; *mscale_p is the factor on cos and sin. */
void node_rope_inv_freq(const node_rope_t *rope, float *inv_freq, float *mscale_p);
void node_rope_table(const float *inv_freq, uint32_t half, float mscale, uint32_t position, float *cos, float *sin);
/* Canonical text of the kind with all its parameters, for the keyspace. */
void node_rope_text(const node_rope_t *rope, char *text, size_t size);

#endif
