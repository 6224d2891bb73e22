/*
 * Byte-level BPE from a GGUF vocabulary: special tokens first, pre-tokenizer regex (PCRE2), merges by rank.
 * Immutable after create; any thread may encode with its own call. Input is bytes; invalid UTF-8 is encoded byte by
 * byte, never refused. A byte that the vocabulary lacks is left out, as the reference tokenizer does (SmolLM2 lacks 21:
 * six control characters and bytes that occur in no assigned character).
 */
#ifndef NODE_TOKENIZER_H
#define NODE_TOKENIZER_H

#include <stdbool.h>

#include "model/gguf.h"

typedef struct node_tokenizer node_tokenizer_t;

/* UNSUPPORTED names a tokenizer model or pre-tokenizer that we do not have. Supported pre: smollm, gpt-2 (default),
 * llama-bpe, qwen2. gguf is read here only and need not outlive the tokenizer. */
vc_status_t node_tokenizer_create(const node_gguf_t *gguf, node_tokenizer_t **tok_p, vc_err_t *err);
void node_tokenizer_destroy(node_tokenizer_t *tok);

uint32_t node_tokenizer_n_vocab(const node_tokenizer_t *tok);
int32_t node_tokenizer_bos(const node_tokenizer_t *tok);              /* -1: none */
int32_t node_tokenizer_eos(const node_tokenizer_t *tok);              /* -1: none */
bool node_tokenizer_is_end(const node_tokenizer_t *tok, uint32_t id); /* eos, eot, <|im_end|>, <|endoftext|> */
/* BLAKE2b over vocabulary, merges, token types and pre-tokenizer name, each length-prefixed. */
void node_tokenizer_digest(const node_tokenizer_t *tok, vc_digest_t *digest_p);

/* *ids_p is allocated (vc_free), *n_p its length. parse_special: text such as "<|im_start|>" becomes the special id. No
 * BOS is added. */
vc_status_t node_tokenizer_encode(const node_tokenizer_t *tok, const char *text, size_t bytes, bool parse_special,
                                  uint32_t **ids_p, uint32_t *n_p, vc_err_t *err);
/* The same for at most so many tokens: RANGE as soon as it is certain that there are more, however long the text is. */
vc_status_t node_tokenizer_encode_most(const node_tokenizer_t *tok, const char *text, size_t bytes, bool parse_special,
                                       uint32_t most, uint32_t **ids_p, uint32_t *n_p, vc_err_t *err);
/* Bytes of one token (may be part of a UTF-8 sequence). Special tokens give their text. *len_p 0 for an id out of
 * range. */
const char *node_tokenizer_piece(const node_tokenizer_t *tok, uint32_t id, size_t *len_p);
bool node_tokenizer_is_special(const node_tokenizer_t *tok, uint32_t id);

/* Chat template: "chatml" is recognised from tokenizer.chat_template (with its default system turn); others
 * UNSUPPORTED. */
typedef struct node_chat_msg {
    const char *role; /* system, user, assistant */
    const char *text;
    size_t bytes;
} node_chat_msg_t;
/* User text is never parsed for special tokens, so it cannot forge a turn. add_generation: ends with the start of an
 * assistant turn. RANGE as soon as there are certainly more than `most` tokens. */
vc_status_t node_chat_encode(const node_tokenizer_t *tok, const node_chat_msg_t *msgs, uint32_t n_msgs,
                             bool add_generation, uint32_t most, uint32_t **ids_p, uint32_t *n_p, vc_err_t *err);

#endif
