/*
 * Vocabulary loader. A GGUF vocabulary spells bytes as printable characters; the spelling is undone here, once, so the
 * rest of the tokenizer works on the bytes themselves. Special tokens are spelled as they are.
 */
#include "model/vocab.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "vc/bytes.h"
#include "vc/mem.h"

#define VOCAB_MAX (1u << 22)
#define TOKEN_BYTES_MAX (1u << 16)

/* FNV-1a, then a finaliser so that the low bits depend on all. */
static uint64_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}
static uint64_t hash_bytes(const char *bytes, size_t len)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    return mix(h);
}
static uint64_t hash_pair(uint32_t left, uint32_t right)
{
    return mix(((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u);
}

/* Power of two that keeps the load at one half or less. */
static size_t table_size(uint64_t n)
{
    size_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size;
}

static size_t word_slot(const node_tokenizer_t *tok, const char *bytes, size_t len)
{
    size_t i = hash_bytes(bytes, len) & tok->words.mask;
    for (;; i = (i + 1) & tok->words.mask) {
        const uint32_t id = tok->words.slots[i];
        if (id == NODE_TOK_NONE ||
            (tok->pieces[id].len == len && memcmp(tok->pool + tok->pieces[id].offset, bytes, len) == 0))
            return i;
    }
}

uint32_t node_tok_word_find(const node_tokenizer_t *tok, const char *bytes, size_t len)
{
    return tok->words.slots[word_slot(tok, bytes, len)];
}

static tok_merge_t *merge_slot(const node_tokenizer_t *tok, uint32_t left, uint32_t right)
{
    size_t i = hash_pair(left, right) & tok->merges.mask;
    for (;; i = (i + 1) & tok->merges.mask) {
        tok_merge_t *m = &tok->merges.slots[i];
        if (m->left == NODE_TOK_NONE || (m->left == left && m->right == right))
            return m;
    }
}

const tok_merge_t *node_tok_merge_find(const node_tokenizer_t *tok, uint32_t left, uint32_t right)
{
    const tok_merge_t *m = merge_slot(tok, left, right);
    return m->left == NODE_TOK_NONE ? NULL : m;
}

/* The byte that a code point stands for, or -1. Printable Latin-1 bytes stand for themselves, the others for 256,
 * 257... in order. */
static int byte_of(uint32_t code)
{
    if ((code >= 33 && code <= 126) || (code >= 161 && code <= 172) || (code >= 174 && code <= 255))
        return (int)code;
    if (code >= 256 && code < 256 + 33)
        return (int)(code - 256);
    if (code >= 289 && code < 289 + 34)
        return (int)(code - 289) + 127;
    return code == 323 ? 173 : -1;
}

/* Undoes the spelling of s into out (at least len bytes); characters outside it stay as they are. */
static size_t unspell(const char *s, size_t len, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        const unsigned char c = (unsigned char)s[i];
        const bool two = c >= 0xc2 && c <= 0xdf && i + 1 < len && ((unsigned char)s[i + 1] & 0xc0u) == 0x80u;
        const int byte = two ? byte_of((c & 31u) << 6 | ((unsigned char)s[i + 1] & 63u)) : c < 0x80 ? byte_of(c) : -1;
        if (byte >= 0) {
            out[n++] = (char)byte;
            i += two ? 2 : 1;
        } else {
            out[n++] = s[i++];
        }
    }
    return n;
}

static vc_status_t count_tokens(node_tokenizer_t *tok, const node_gguf_t *gguf, uint64_t *pool_p, vc_err_t *err)
{
    uint64_t n, n_types, total = 0;
    if (node_gguf_arr_len(gguf, "tokenizer.ggml.tokens", &n) != VC_OK || n == 0 || n > VOCAB_MAX)
        return vc_err_set(err, VC_ERR_CORRUPT, "the model has no vocabulary, or one of more than %u tokens", VOCAB_MAX);
    if (node_gguf_arr_len(gguf, "tokenizer.ggml.token_type", &n_types) == VC_OK && n_types != n)
        return vc_err_set(err, VC_ERR_CORRUPT, "%llu token types for %llu tokens", (unsigned long long)n_types,
                          (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++) {
        node_gguf_str_t s;
        if (node_gguf_arr_str(gguf, "tokenizer.ggml.tokens", i, &s) != VC_OK || s.len > TOKEN_BYTES_MAX)
            return vc_err_set(err, VC_ERR_CORRUPT, "token %llu is not a string or too long", (unsigned long long)i);
        total += s.len;
    }
    tok->n_vocab = (uint32_t)n;
    *pool_p = total;
    return VC_OK;
}

static int64_t token_type(const node_gguf_t *gguf, uint32_t id)
{
    int64_t type;
    return node_gguf_arr_i64(gguf, "tokenizer.ggml.token_type", id, &type) == VC_OK ? type : NODE_TOKTYPE_NORMAL;
}

static void load_pieces(node_tokenizer_t *tok, const node_gguf_t *gguf)
{
    uint64_t at = 0;
    for (uint32_t id = 0; id < tok->n_vocab; id++) {
        node_gguf_str_t s = {"", 0};
        (void)node_gguf_arr_str(gguf, "tokenizer.ggml.tokens", id, &s); /* checked by count_tokens */
        const int64_t type = token_type(gguf, id);
        tok_piece_t *p = &tok->pieces[id];
        p->special = type == NODE_TOKTYPE_CONTROL || type == NODE_TOKTYPE_USER_DEFINED;
        p->offset = at;
        if (p->special)
            memcpy(tok->pool + at, s.data, (size_t)s.len);
        p->len = p->special ? (uint32_t)s.len : (uint32_t)unspell(s.data, (size_t)s.len, tok->pool + at);
        at += p->len;
    }
}

/* Of two tokens with the same bytes the first one counts. */
static void index_words(node_tokenizer_t *tok)
{
    tok->longest = 1;
    for (uint32_t id = 0; id < tok->n_vocab; id++) {
        const tok_piece_t *p = &tok->pieces[id];
        if (p->special || p->len == 0)
            continue;
        tok->longest = VC_MAX(tok->longest, p->len);
        const size_t slot = word_slot(tok, tok->pool + p->offset, p->len);
        if (tok->words.slots[slot] == NODE_TOK_NONE)
            tok->words.slots[slot] = id;
    }
    for (unsigned b = 0; b < 256; b++) {
        const char byte = (char)b;
        tok->byte_ids[b] = node_tok_word_find(tok, &byte, 1);
    }
}

static int special_order(const void *a, const void *b, void *arg)
{
    const node_tokenizer_t *tok = arg;
    const tok_piece_t *x = &tok->pieces[*(const uint32_t *)a], *y = &tok->pieces[*(const uint32_t *)b];
    const unsigned char cx = (unsigned char)tok->pool[x->offset], cy = (unsigned char)tok->pool[y->offset];
    if (cx != cy)
        return cx < cy ? -1 : 1;
    return x->len != y->len ? (x->len > y->len ? -1 : 1) : 0;
}

static void index_specials(node_tokenizer_t *tok)
{
    for (uint32_t id = 0; id < tok->n_vocab; id++)
        if (tok->pieces[id].special && tok->pieces[id].len != 0)
            tok->specials[tok->n_specials++] = id;
    qsort_r(tok->specials, tok->n_specials, sizeof(*tok->specials), special_order, tok);
    uint32_t i = 0;
    for (unsigned b = 0; b < 256; b++) {
        tok->special_first[b] = i;
        while (i < tok->n_specials && (unsigned char)tok->pool[tok->pieces[tok->specials[i]].offset] == b)
            i++;
    }
    tok->special_first[256] = i;
}

vc_status_t node_vocab_load_tokens(node_tokenizer_t *tok, const node_gguf_t *gguf, vc_err_t *err)
{
    uint64_t pool_bytes = 0;
    vc_status_t status = count_tokens(tok, gguf, &pool_bytes, err);
    if (status != VC_OK)
        return status;
    const size_t n_slots = table_size(tok->n_vocab);
    tok->pieces = vc_calloc(tok->n_vocab, sizeof(*tok->pieces));
    tok->pool = vc_alloc((size_t)pool_bytes);
    tok->specials = vc_calloc(tok->n_vocab, sizeof(*tok->specials));
    tok->words.slots = vc_calloc(n_slots, sizeof(*tok->words.slots));
    if (tok->pieces == NULL || tok->pool == NULL || tok->specials == NULL || tok->words.slots == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for a vocabulary of %u tokens", tok->n_vocab);
    memset(tok->words.slots, 0xff, n_slots * sizeof(*tok->words.slots));
    tok->words.mask = n_slots - 1;
    load_pieces(tok, gguf);
    index_words(tok);
    index_specials(tok);
    return VC_OK;
}

/* The ids of both sides of "left right" and of their union. */
static bool parse_merge(const node_tokenizer_t *tok, node_gguf_str_t s, char *scratch, tok_merge_t *m)
{
    const char *space = s.len > 2 && s.len <= TOKEN_BYTES_MAX ? memchr(s.data + 1, ' ', (size_t)s.len - 1) : NULL;
    if (space == NULL)
        return false;
    const size_t left_len = (size_t)(space - s.data), right_len = (size_t)s.len - left_len - 1;
    const size_t n = unspell(s.data, left_len, scratch);
    const size_t all = n + unspell(space + 1, right_len, scratch + n);
    m->left = node_tok_word_find(tok, scratch, n);
    m->right = node_tok_word_find(tok, scratch + n, all - n);
    m->id = node_tok_word_find(tok, scratch, all);
    return m->left != NODE_TOK_NONE && m->right != NODE_TOK_NONE && m->id != NODE_TOK_NONE;
}

vc_status_t node_vocab_load_merges(node_tokenizer_t *tok, const node_gguf_t *gguf, vc_err_t *err)
{
    uint64_t n;
    if (node_gguf_arr_len(gguf, "tokenizer.ggml.merges", &n) != VC_OK || n > 4u * VOCAB_MAX)
        return vc_err_set(err, VC_ERR_CORRUPT, "the vocabulary has no list of merges, or too long a one");
    const size_t n_slots = table_size(n);
    tok->merges.slots = vc_alloc(n_slots * sizeof(*tok->merges.slots));
    char *scratch = vc_alloc(TOKEN_BYTES_MAX);
    if (tok->merges.slots == NULL || scratch == NULL) {
        vc_free(scratch);
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for %llu merges", (unsigned long long)n);
    }
    memset(tok->merges.slots, 0xff, n_slots * sizeof(*tok->merges.slots));
    tok->merges.mask = n_slots - 1;
    vc_status_t status = VC_OK;
    for (uint64_t i = 0; i < n && status == VC_OK; i++) {
        node_gguf_str_t s;
        tok_merge_t m = {.rank = (uint32_t)i};
        if (node_gguf_arr_str(gguf, "tokenizer.ggml.merges", i, &s) != VC_OK || !parse_merge(tok, s, scratch, &m)) {
            status = vc_err_set(err, VC_ERR_CORRUPT, "merge %llu is malformed or names a token that does not exist",
                                (unsigned long long)i);
            break;
        }
        tok_merge_t *slot = merge_slot(tok, m.left, m.right);
        if (slot->left == NODE_TOK_NONE) /* a repeated pair keeps its first, lower rank */
            *slot = m;
    }
    vc_free(scratch);
    return status;
}

static void digest_bytes(crypto_generichash_state *state, const void *data, uint64_t len)
{
    crypto_generichash_update(state, (const unsigned char *)&len, sizeof(len));
    if (len != 0)
        crypto_generichash_update(state, data, len);
}
static void digest_strings(crypto_generichash_state *state, const node_gguf_t *gguf, const char *key)
{
    uint64_t n = 0;
    (void)node_gguf_arr_len(gguf, key, &n);
    crypto_generichash_update(state, (const unsigned char *)&n, sizeof(n));
    for (uint64_t i = 0; i < n; i++) {
        node_gguf_str_t s = {"", 0};
        (void)node_gguf_arr_str(gguf, key, i, &s);
        digest_bytes(state, s.data, s.len);
    }
}

vc_status_t node_vocab_digest(node_tokenizer_t *tok, const node_gguf_t *gguf, node_gguf_str_t pre, vc_err_t *err)
{
    crypto_generichash_state state;
    if (sodium_init() < 0 || crypto_generichash_init(&state, NULL, 0, VC_DIGEST_BYTES) != 0)
        return vc_err_set(err, VC_ERR_INTERNAL, "libsodium does not start");
    digest_strings(&state, gguf, "tokenizer.ggml.tokens");
    digest_strings(&state, gguf, "tokenizer.ggml.merges");
    const uint64_t n = tok->n_vocab;
    crypto_generichash_update(&state, (const unsigned char *)&n, sizeof(n));
    for (uint32_t id = 0; id < tok->n_vocab; id++) {
        uint8_t type[4];
        vc_put_le32(type, (uint32_t)token_type(gguf, id));
        crypto_generichash_update(&state, type, sizeof(type));
    }
    digest_bytes(&state, pre.data, pre.len);
    crypto_generichash_final(&state, tok->digest.b, sizeof(tok->digest.b));
    return VC_OK;
}

void node_vocab_free(node_tokenizer_t *tok)
{
    vc_free(tok->pieces);
    vc_free(tok->pool);
    vc_free(tok->specials);
    vc_free(tok->words.slots);
    vc_free(tok->merges.slots);
}
