/*
 * Private to the tokenizer: the vocabulary (tokenizer.c), the pre-tokenizer (pretok.c) and the merges (bpe.c).
 *
 * Text is bytes throughout. GGUF vocabularies spell each byte as a printable character ("\u0120" is the space); that
 * spelling is undone once at load, so a token is the byte string it stands for.
 */
#ifndef NODE_TOKENIZER_INT_H
#define NODE_TOKENIZER_INT_H

#include "model/tokenizer.h"

#define NODE_TOK_NONE UINT32_MAX
#define NODE_TOK_TEXT_MAX ((size_t)1 << 30) /* so that a count of ids fits 32 bits with room to spare */

typedef enum { NODE_PRETOK_GPT2 = 0, NODE_PRETOK_SMOLLM, NODE_PRETOK_LLAMA3, NODE_PRETOK_QWEN2 } node_pretok_kind_t;

typedef struct tok_piece {
    uint64_t offset; /* into pool */
    uint32_t len;
    bool special;
} tok_piece_t;

/* Open addressing, power-of-two capacity, load at most one half. */
typedef struct tok_words {
    uint32_t *slots; /* token id, or NODE_TOK_NONE */
    size_t mask;
} tok_words_t;

typedef struct tok_merge {
    uint32_t left, right; /* left NODE_TOK_NONE: free */
    uint32_t rank, id;    /* id of the merged token */
} tok_merge_t;
typedef struct tok_merges {
    tok_merge_t *slots;
    size_t mask;
} tok_merges_t;

/* The chat template, recognised at create (chat.c). */
typedef struct tok_chat {
    vc_status_t status; /* not VC_OK: the model has none that we know, err says why */
    vc_err_t err;
    uint32_t start, end;  /* ids of the markers */
    char *default_system; /* default_bytes long; NULL: the template has no system turn of its own */
    size_t default_bytes;
} tok_chat_t;

struct node_tokenizer {
    uint32_t n_vocab;
    tok_piece_t *pieces;
    char *pool;
    uint32_t byte_ids[256]; /* NODE_TOK_NONE: the vocabulary lacks this byte */
    uint32_t longest;       /* bytes of the longest token that is not special, at least 1 */
    tok_words_t words;      /* bytes to id, without the special tokens */
    tok_merges_t merges;
    uint32_t *specials; /* sorted by first byte, then longest first */
    uint32_t n_specials;
    uint32_t special_first[257]; /* specials of first byte b: [special_first[b], special_first[b + 1]) */
    node_pretok_kind_t pretok;
    bool whole_words; /* a pre-token that is itself a token is taken as it is (llama-bpe) */
    void *regex;      /* pcre2_code */
    int32_t bos, eos;
    uint32_t ends[8];
    uint32_t n_ends;
    vc_digest_t digest;
    tok_chat_t chat;
};

/* chat.c. NOMEM only. */
vc_status_t node_chat_load(node_tokenizer_t *tok, const node_gguf_t *gguf, vc_err_t *err);
void node_chat_free(node_tokenizer_t *tok);

/* Growing list of ids. Encoding ends with RANGE once more than `most` are certain. */
typedef struct tok_ids {
    uint32_t *ids;
    size_t n, cap, most;
} tok_ids_t;
bool node_tok_ids_push(tok_ids_t *list, uint32_t id); /* false: out of memory */

uint32_t node_tok_word_find(const node_tokenizer_t *tok, const char *bytes, size_t len);
const tok_merge_t *node_tok_merge_find(const node_tokenizer_t *tok, uint32_t left, uint32_t right);

/* bpe.c: scratch of one encode call, reused from word to word. */
typedef struct bpe_scratch bpe_scratch_t;
bpe_scratch_t *node_bpe_scratch_create(void);
void node_bpe_scratch_destroy(bpe_scratch_t *scratch);
/* Appends the ids of one pre-token. NOMEM only. */
vc_status_t node_bpe_encode(const node_tokenizer_t *tok, bpe_scratch_t *scratch, const char *word, size_t len,
                            tok_ids_t *out);

/* pretok.c */
vc_status_t node_pretok_compile(node_pretok_kind_t kind, void **regex_p, vc_err_t *err);
void node_pretok_free(void *regex);
/* Calls emit for each pre-token of text in order, every byte in exactly one. Stops at the first status that is not OK.
 */
typedef vc_status_t (*node_pretok_emit_fn)(void *arg, const char *word, size_t len);
vc_status_t node_pretok_split(const node_tokenizer_t *tok, const char *text, size_t bytes, node_pretok_emit_fn emit,
                              void *arg, vc_err_t *err);

/* Text without special tokens, appended to out. RANGE: beyond out->most. */
vc_status_t node_tok_encode_plain(const node_tokenizer_t *tok, bpe_scratch_t *scratch, const char *text, size_t bytes,
                                  tok_ids_t *out, vc_err_t *err);
/* RANGE with a sentence when out holds more than it may. */
vc_status_t node_tok_ids_check(const tok_ids_t *out, vc_err_t *err);

#endif
