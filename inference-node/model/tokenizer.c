/*
 * The tokenizer's lifecycle, special tokens and encode. Immutable after create: an encode call owns its scratch, so
 * threads share a tokenizer freely. No normalisation and no BOS: the caller's bytes are what is encoded.
 */
#include "model/tokenizer.h"

#include <string.h>

#include "model/vocab.h"
#include "vc/mem.h"

static bool str_is(node_gguf_str_t s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, (size_t)s.len) == 0;
}

static vc_status_t choose_pretok(node_tokenizer_t *tok, node_gguf_str_t pre, vc_err_t *err)
{
    static const struct {
        const char *name;
        node_pretok_kind_t kind;
        bool whole_words;
    } known[] = {{"smollm", NODE_PRETOK_SMOLLM, false},   {"gpt-2", NODE_PRETOK_GPT2, false},
                 {"gpt2", NODE_PRETOK_GPT2, false},       {"default", NODE_PRETOK_GPT2, false},
                 {"llama-bpe", NODE_PRETOK_LLAMA3, true}, {"llama3", NODE_PRETOK_LLAMA3, true},
                 {"llama-v3", NODE_PRETOK_LLAMA3, true},  {"qwen2", NODE_PRETOK_QWEN2, false}};
    for (size_t i = 0; i < VC_ARRAY_LEN(known); i++)
        if (str_is(pre, known[i].name)) {
            tok->pretok = known[i].kind;
            tok->whole_words = known[i].whole_words;
            return node_pretok_compile(tok->pretok, &tok->regex, err);
        }
    return vc_err_set(err, VC_ERR_UNSUPPORTED,
                      "pre-tokenizer '%.*s' is not supported (smollm, gpt-2, llama-bpe, qwen2)",
                      (int)VC_MIN(pre.len, 40u), pre.data);
}

/* An id from the metadata; -1 when absent or no token. */
static int32_t id_of(const node_tokenizer_t *tok, const node_gguf_t *gguf, const char *key)
{
    uint64_t v;
    return node_gguf_u64(gguf, key, &v) == VC_OK && v < tok->n_vocab ? (int32_t)v : -1;
}

static void add_end(node_tokenizer_t *tok, int64_t id)
{
    for (uint32_t i = 0; i < tok->n_ends; i++)
        if (tok->ends[i] == (uint32_t)id)
            return;
    if (id >= 0 && tok->n_ends < VC_ARRAY_LEN(tok->ends))
        tok->ends[tok->n_ends++] = (uint32_t)id;
}

static void find_ends(node_tokenizer_t *tok, const node_gguf_t *gguf)
{
    static const char *const names[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>"};
    tok->bos = id_of(tok, gguf, "tokenizer.ggml.bos_token_id");
    tok->eos = id_of(tok, gguf, "tokenizer.ggml.eos_token_id");
    add_end(tok, tok->eos);
    add_end(tok, id_of(tok, gguf, "tokenizer.ggml.eot_token_id"));
    for (uint32_t i = 0; i < tok->n_specials; i++) {
        const tok_piece_t *p = &tok->pieces[tok->specials[i]];
        for (size_t k = 0; k < VC_ARRAY_LEN(names); k++)
            if (p->len == strlen(names[k]) && memcmp(tok->pool + p->offset, names[k], p->len) == 0)
                add_end(tok, tok->specials[i]);
    }
}

static vc_status_t load(node_tokenizer_t *tok, const node_gguf_t *gguf, vc_err_t *err)
{
    node_gguf_str_t model, pre = {"default", 7};
    if (node_gguf_str(gguf, "tokenizer.ggml.model", &model) != VC_OK)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "the model file has no tokenizer");
    if (!str_is(model, "gpt2"))
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "tokenizer model '%.*s' is not supported (gpt2, byte-level BPE, is)",
                          (int)VC_MIN(model.len, 40u), model.data);
    if (node_gguf_str(gguf, "tokenizer.ggml.pre", &pre) == VC_ERR_INVALID)
        return vc_err_set(err, VC_ERR_CORRUPT, "metadata 'tokenizer.ggml.pre' is not a string");
    vc_status_t status = choose_pretok(tok, pre, err);
    if (status == VC_OK)
        status = node_vocab_load_tokens(tok, gguf, err);
    if (status == VC_OK)
        status = node_vocab_load_merges(tok, gguf, err);
    if (status == VC_OK)
        status = node_vocab_digest(tok, gguf, pre, err);
    if (status != VC_OK)
        return status;
    find_ends(tok, gguf);
    return node_chat_load(tok, gguf, err);
}

vc_status_t node_tokenizer_create(const node_gguf_t *gguf, node_tokenizer_t **tok_p, vc_err_t *err)
{
    node_tokenizer_t *tok = vc_calloc(1, sizeof(*tok));
    if (tok == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for a tokenizer");
    vc_status_t status = load(tok, gguf, err);
    if (status != VC_OK)
        node_tokenizer_destroy(tok);
    else
        *tok_p = tok;
    return status;
}

void node_tokenizer_destroy(node_tokenizer_t *tok)
{
    if (tok == NULL)
        return;
    node_pretok_free(tok->regex);
    node_chat_free(tok);
    node_vocab_free(tok);
    vc_free(tok);
}

uint32_t node_tokenizer_n_vocab(const node_tokenizer_t *tok) { return tok->n_vocab; }
int32_t node_tokenizer_bos(const node_tokenizer_t *tok) { return tok->bos; }
int32_t node_tokenizer_eos(const node_tokenizer_t *tok) { return tok->eos; }
void node_tokenizer_digest(const node_tokenizer_t *tok, vc_digest_t *digest_p) { *digest_p = tok->digest; }

bool node_tokenizer_is_end(const node_tokenizer_t *tok, uint32_t id)
{
    for (uint32_t i = 0; i < tok->n_ends; i++)
        if (tok->ends[i] == id)
            return true;
    return false;
}

const char *node_tokenizer_piece(const node_tokenizer_t *tok, uint32_t id, size_t *len_p)
{
    if (id >= tok->n_vocab) {
        *len_p = 0;
        return "";
    }
    *len_p = tok->pieces[id].len;
    return tok->pool + tok->pieces[id].offset;
}

bool node_tokenizer_is_special(const node_tokenizer_t *tok, uint32_t id)
{
    return id < tok->n_vocab && tok->pieces[id].special;
}

typedef struct {
    const node_tokenizer_t *tok;
    bpe_scratch_t *scratch;
    tok_ids_t *out;
} emit_t;

/* A word whose bytes alone need more tokens than there is room for is not merged at all: it may be all of a text. Bytes
 * that the vocabulary cannot spell give none. */
static bool too_long(const node_tokenizer_t *tok, const char *word, size_t len, const tok_ids_t *out)
{
    const size_t room = out->n < out->most ? out->most - out->n : 0;
    if (len / tok->longest <= room)
        return false;
    size_t spelled = 0;
    for (size_t i = 0; i < len; i++)
        spelled += tok->byte_ids[(unsigned char)word[i]] != NODE_TOK_NONE;
    return spelled / tok->longest > room;
}

static vc_status_t emit_word(void *arg, const char *word, size_t len)
{
    const emit_t *e = arg;
    if (too_long(e->tok, word, len, e->out))
        return VC_ERR_RANGE;
    vc_status_t status = node_bpe_encode(e->tok, e->scratch, word, len, e->out);
    return status == VC_OK && e->out->n > e->out->most ? VC_ERR_RANGE : status;
}

static vc_status_t too_many(const tok_ids_t *out, vc_err_t *err)
{
    return vc_err_set(err, VC_ERR_RANGE, "the text has more than %zu tokens", out->most);
}

vc_status_t node_tok_ids_check(const tok_ids_t *out, vc_err_t *err)
{
    return out->n > out->most ? too_many(out, err) : VC_OK;
}

vc_status_t node_tok_encode_plain(const node_tokenizer_t *tok, bpe_scratch_t *scratch, const char *text, size_t bytes,
                                  tok_ids_t *out, vc_err_t *err)
{
    emit_t e = {tok, scratch, out};
    vc_status_t status = node_pretok_split(tok, text, bytes, emit_word, &e, err);
    if (status == VC_ERR_RANGE)
        return too_many(out, err);
    return status == VC_ERR_NOMEM ? vc_err_set(err, status, "out of memory while encoding %zu bytes", bytes) : status;
}

/* The longest special token at text, or NODE_TOK_NONE. */
static uint32_t special_at(const node_tokenizer_t *tok, const char *text, size_t left)
{
    const unsigned char first = (unsigned char)text[0];
    for (uint32_t i = tok->special_first[first]; i < tok->special_first[first + 1]; i++) {
        const tok_piece_t *p = &tok->pieces[tok->specials[i]];
        if (p->len <= left && memcmp(tok->pool + p->offset, text, p->len) == 0)
            return tok->specials[i];
    }
    return NODE_TOK_NONE;
}

static vc_status_t encode_with_specials(const node_tokenizer_t *tok, bpe_scratch_t *scratch, const char *text,
                                        size_t bytes, tok_ids_t *out, vc_err_t *err)
{
    size_t start = 0;
    for (size_t at = 0; at < bytes;) {
        const uint32_t id = special_at(tok, text + at, bytes - at);
        if (id == NODE_TOK_NONE) {
            at++;
            continue;
        }
        vc_status_t status = node_tok_encode_plain(tok, scratch, text + start, at - start, out, err);
        if (status != VC_OK)
            return status;
        if (!node_tok_ids_push(out, id))
            return vc_err_set(err, VC_ERR_NOMEM, "out of memory while encoding %zu bytes", bytes);
        at += tok->pieces[id].len;
        start = at;
    }
    return node_tok_encode_plain(tok, scratch, text + start, bytes - start, out, err);
}

vc_status_t node_tokenizer_encode(const node_tokenizer_t *tok, const char *text, size_t bytes, bool parse_special,
                                  uint32_t **ids_p, uint32_t *n_p, vc_err_t *err)
{
    return node_tokenizer_encode_most(tok, text, bytes, parse_special, UINT32_MAX, ids_p, n_p, err);
}

vc_status_t node_tokenizer_encode_most(const node_tokenizer_t *tok, const char *text, size_t bytes, bool parse_special,
                                       uint32_t most, uint32_t **ids_p, uint32_t *n_p, vc_err_t *err)
{
    if (bytes > NODE_TOK_TEXT_MAX)
        return vc_err_set(err, VC_ERR_RANGE, "a text of %zu bytes is longer than %zu", bytes, NODE_TOK_TEXT_MAX);
    bpe_scratch_t *scratch = node_bpe_scratch_create();
    tok_ids_t out = {.most = most};
    /* A first block even for no tokens, so that *ids_p is never NULL. */
    if (scratch == NULL || (out.ids = vc_calloc(16, sizeof(*out.ids))) == NULL) {
        node_bpe_scratch_destroy(scratch);
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for an encoder");
    }
    out.cap = 16;
    vc_status_t status = parse_special ? encode_with_specials(tok, scratch, text, bytes, &out, err)
                                       : node_tok_encode_plain(tok, scratch, text, bytes, &out, err);
    if (status == VC_OK)
        status = node_tok_ids_check(&out, err);
    node_bpe_scratch_destroy(scratch);
    if (status != VC_OK) {
        vc_free(out.ids);
        return status;
    }
    *ids_p = out.ids;
    *n_p = (uint32_t)out.n;
    return VC_OK;
}
