/* Private to the tokenizer: loading a vocabulary from GGUF metadata into node_tokenizer_t. */
#ifndef NODE_VOCAB_H
#define NODE_VOCAB_H

#include "model/tokenizer_int.h"

/* Token types of the file format. */
enum { NODE_TOKTYPE_NORMAL = 1, NODE_TOKTYPE_UNKNOWN, NODE_TOKTYPE_CONTROL, NODE_TOKTYPE_USER_DEFINED };

/* Pieces, words, bytes, specials. */
vc_status_t node_vocab_load_tokens(node_tokenizer_t *tok, const node_gguf_t *gguf, vc_err_t *err);
/* After the tokens. */
vc_status_t node_vocab_load_merges(node_tokenizer_t *tok, const node_gguf_t *gguf, vc_err_t *err);
/* Over vocabulary, merges, types and pre-tokenizer name, each length-prefixed. */
vc_status_t node_vocab_digest(node_tokenizer_t *tok, const node_gguf_t *gguf, node_gguf_str_t pre, vc_err_t *err);
/* Frees what the loaders allocated. */
void node_vocab_free(node_tokenizer_t *tok);

#endif
