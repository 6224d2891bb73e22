/*
 * Small models for tests, as GGUF images.
 *
 * tiny_model_from_golden: a case of vectors/llama_tiny with F32 weights under their GGUF names; architecture by what
 * the case holds (biases: qwen2, QK-norm: qwen3, else llama, whose q and k rows are interleaved as GGUF files have
 * them); llama3 scaling as the tensor rope_freqs.weight, yarn and linear as rope.scaling.*.
 *
 * tiny_model_build: a random model that can chat: byte-level BPE of TINY_N_VOCAB tokens, chatml template, logits that
 * are peaked and change from token to token. Deterministic from the options, bit for bit.
 */
#ifndef SUPPORT_TINY_MODEL_H
#define SUPPORT_TINY_MODEL_H

#include "support/gguf_writer.h"
#include "support/golden.h"

gguf_image_t tiny_model_from_golden(const golden_case_t *c);

#define TINY_N_VOCAB 304u
enum { TINY_ID_ENDOFTEXT = 0, TINY_ID_IM_START = 1, TINY_ID_IM_END = 2, TINY_ID_FIRST_BYTE = 3 };

typedef struct tiny_model_opts {
    uint32_t seed;
    uint32_t n_layer, d_model, n_head, n_kv_head, head_dim, d_ffn,
        context;      /* d_model, d_ffn, n_head * head_dim: of 32 */
    uint32_t n_vocab; /* with ids that the tokenizer lacks; default TINY_N_VOCAB */
    bool f32;         /* every weight F32; default false: Q4_1, Q8_0 and F16 mixed, norms F32 */
    float end_weight; /* size of the <|im_end|> logit against the others: 0 never ends by itself (default), 1 does */
} tiny_model_opts_t;
void tiny_model_opts_default(tiny_model_opts_t *opts); /* seed 1, 3 layers, 64 wide, 4 heads, 2 KV heads of 16 */
gguf_image_t tiny_model_build(const tiny_model_opts_t *opts);
/* Only the tokenizer's metadata (and the chat template), for tests without weights. */
void tiny_model_add_tokenizer(gguf_writer_t *w);
/* The two ids that token id was merged from; false for tokens that are no merge. Its rank is id - 259. */
bool tiny_model_merge(uint32_t id, uint32_t *left_p, uint32_t *right_p);

#endif
