/*
 * The engine: immutable model plus a team of threads that runs forward passes under the numerics contract.
 *
 * Contract: every row's bits depend on the row's token, its absolute position and the KV before it, and on nothing
 * else: not on the other rows of the pass, the number of threads, where prefill was cut, what came from the cache, or
 * the ISA. One pass at a time per engine (the caller serialises); sessions (node_kv_t) are the caller's.
 */
#ifndef NODE_ENGINE_H
#define NODE_ENGINE_H

#include "kv/pages.h"
#include "model/gguf.h"
#include "model/tokenizer.h"

#define NODE_NUMERICS_ID 1u

/* In rising order. AVX2 and AVX512: with VNNI where the CPU has it; the plain ones: never. */
typedef enum {
    NODE_ISA_AUTO = 0,
    NODE_ISA_SCALAR,
    NODE_ISA_AVX2_PLAIN,
    NODE_ISA_AVX2,
    NODE_ISA_AVX512_PLAIN,
    NODE_ISA_AVX512
} node_isa_t;
#define NODE_ISA_CHOICES "auto|scalar|avx2-plain|avx2|avx512-plain|avx512" /* names, in the order of node_isa_t */

typedef struct node_model_info {
    char arch[32]; /* llama, qwen2, qwen3 */
    uint32_t n_layer, n_head, n_kv_head, head_dim, d_model, d_ffn, n_vocab, context;
    uint32_t rope_dims;
    float rms_eps;
    double rope_theta;
    const float *rope_inv_freq; /* [rope_dims / 2], after scaling */
    float rope_mscale;          /* factor on cos and sin (YaRN), else 1 */
    vc_keyspace_t keyspace;     /* tenant salt empty */
    vc_digest_t keyspace_id;
    uint64_t weight_bytes;
} node_model_info_t;

typedef struct node_engine node_engine_t;

typedef struct node_engine_opts {
    uint32_t n_threads; /* default 2 */
    node_isa_t isa;     /* AUTO: best of the CPU. One that the CPU lacks: UNSUPPORTED */
    uint32_t max_rows;  /* rows per pass at most (scratch memory), default 256 */
} node_engine_opts_t;
void node_engine_opts_default(node_engine_opts_t *opts);
bool node_isa_available(node_isa_t isa);
const char *node_isa_name(node_isa_t isa);
bool node_isa_parse(const char *name, node_isa_t *isa_p); /* false: no such name */

/* gguf is read here only and need not outlive the engine. tok: for the tokenizer digest; NULL gives a zero digest
 * (tests on models without vocabulary). Weights of types Q4_0, Q4_1, Q8_0, F16, F32; half-split RoPE rows are
 * un-permuted at load where the file interleaves them (arch llama). */
vc_status_t node_engine_create(node_gguf_t *gguf, const node_tokenizer_t *tok, const node_engine_opts_t *opts,
                               node_engine_t **eng_p, vc_err_t *err);
void node_engine_destroy(node_engine_t *eng);
const node_model_info_t *node_engine_info(const node_engine_t *eng);
node_isa_t node_engine_isa(const node_engine_t *eng);
void node_engine_kv_dims(const node_engine_t *eng, node_kv_dims_t *dims_p);

/* One input row. Rows of one kv are consecutive in the array and in position, starting at kv->n_tokens. */
typedef struct node_row {
    node_kv_t *kv;
    uint32_t token;
    bool want_logits;
} node_row_t;

/* What a pass can show of its inside, for compressors and tests. Called on the thread of node_forward, between the
 * phases of a layer, while the other threads go on with the next one. */
typedef enum {
    NODE_CAP_HIDDEN = 1, /* residual stream entering `layer` [d_model]; layer == n_layer: after the last */
    NODE_CAP_NORMED = 2, /* after the final norm [d_model] (rows with want_logits) */
    NODE_CAP_Q = 4,      /* queries after RoPE [n_head][head_dim], before any scaling */
    NODE_CAP_K = 8,      /* keys after RoPE [n_kv_head][head_dim], before rounding to f16 */
    NODE_CAP_V = 16,
    NODE_CAP_X = 32,    /* attention input of `layer`: after its input norm [d_model] */
    NODE_CAP_RESID = 64 /* residual stream entering `layer` [d_model]; never after the last */
} node_capture_kind_t;
typedef struct node_capture {
    uint32_t kinds; /* OR of kinds wanted */
    /* row: of the pass; position: of the row in its session. Rows of one kind and layer come in ascending order. */
    void (*fn)(void *arg, node_capture_kind_t kind, uint32_t layer, uint32_t row, uint32_t position,
               const float *values);
    void *arg;
} node_capture_t;

/*
 * Runs n_rows <= max_rows rows: writes their K, V into the sessions (n_tokens advances) and the logits of the rows that
 * want them to logits[i * n_vocab], i counting those rows (where a session has a part of the vocabulary, kv->part, the
 * part's tokens in its order, from there on). capture may be NULL. RANGE: position at or over the context
 * limit, or token id >= n_vocab; nothing is changed then.
 */
vc_status_t node_forward(node_engine_t *eng, const node_row_t *rows, uint32_t n_rows, float *logits,
                         const node_capture_t *capture, vc_err_t *err);
/* tokens[0..n) appended to kv in passes of at most max_rows; logits (may be NULL) of the last one. */
vc_status_t node_prefill(node_engine_t *eng, node_kv_t *kv, const uint32_t *tokens, uint32_t n, float *logits,
                         const node_capture_t *capture, vc_err_t *err);
/* From now on fn(arg) is called on the thread of node_forward before each layer of every pass: short work that cannot
 * wait for the end of a pass. NULL: no more. Not during a pass. */
void node_engine_between(node_engine_t *eng, void (*fn)(void *arg), void *arg);
/* Threads of a pass, and rows of one at most. */
uint32_t node_engine_n_threads(const node_engine_t *eng);
uint32_t node_engine_max_rows(const node_engine_t *eng);
/* Runs fn for every item in [0, n) on the engine's threads, thread < n_threads, for work between passes; it counts as a
 * pass (one at a time). What an item gives must not depend on who runs it. */
void node_engine_each(node_engine_t *eng, uint32_t n, void (*fn)(void *arg, uint32_t item, uint32_t thread), void *arg);
/*
 * How much a head's output weighs after the layer's output projection: |W_h v|^2 = v' G v, G = W_h' W_h, W_h the
 * [d_model][head_dim] part of query head h. gram: [n_head][head_dim][head_dim], symmetric, sums in double. NOMEM only.
 */
vc_status_t node_engine_output_gram(const node_engine_t *eng, uint32_t layer, float *gram, vc_err_t *err);
/* f16 stores that saturated so far: a warning sign about the model. */
uint64_t node_engine_saturations(const node_engine_t *eng);

#endif
