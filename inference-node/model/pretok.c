/*
 * The pre-tokenizer: cuts text into the words that merges may not cross, by one PCRE2 pattern per model family.
 *
 * Input is cut into runs of valid UTF-8 first; every byte outside them is a word of its own, so any bytes can be
 * encoded. Without JIT: the interpreter gives the same cuts, needs no executable memory, and the patterns have no
 * backtracking that grows faster than the text. White space is what Unicode calls White_Space, which PCRE2's \s
 * misses by U+0085.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "model/tokenizer_int.h"

#define SPACE "[\\s\\x{85}]"
#define NOT_SPACE_LETTER_DIGIT "[^\\s\\x{85}\\p{L}\\p{N}]"
#define REST_OF_SPACE "|" SPACE "+(?![^\\s\\x{85}])|" SPACE "+"
#define WORD_TAIL "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SYMBOL_TAIL "| ?" NOT_SPACE_LETTER_DIGIT "+[\\r\\n]*|" SPACE "*[\\r\\n]+" REST_OF_SPACE

static const char *pattern_of(node_pretok_kind_t kind)
{
    switch (kind) {
    case NODE_PRETOK_GPT2:
        return "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?" NOT_SPACE_LETTER_DIGIT "+" REST_OF_SPACE;
    case NODE_PRETOK_SMOLLM:
        /* Digits are split off first and the GPT-2 pattern runs on what is between them. In one pattern: a digit is a
         * word, and white space before a digit counts as white space at the end of the text. */
        return "\\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?" NOT_SPACE_LETTER_DIGIT "+|" SPACE
               "+(?![^\\s\\x{85}\\p{N}])|" SPACE "+";
    case NODE_PRETOK_LLAMA3: return "(?i:'s|'t|'re|'ve|'m|'ll|'d)" WORD_TAIL "|\\p{N}{1,3}" SYMBOL_TAIL;
    case NODE_PRETOK_QWEN2: return "(?i:'s|'t|'re|'ve|'m|'ll|'d)" WORD_TAIL "|\\p{N}" SYMBOL_TAIL;
    }
    return "";
}

vc_status_t node_pretok_compile(node_pretok_kind_t kind, void **regex_p, vc_err_t *err)
{
    int code;
    PCRE2_SIZE at;
    pcre2_code *regex = pcre2_compile((PCRE2_SPTR)pattern_of(kind), PCRE2_ZERO_TERMINATED,
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &code, &at, NULL);
    if (regex == NULL) {
        PCRE2_UCHAR text[120] = {0};
        pcre2_get_error_message(code, text, sizeof(text));
        return vc_err_set(err, VC_ERR_INTERNAL, "the pre-tokenizer pattern does not compile at %zu: %s", at,
                          (char *)text);
    }
    *regex_p = regex;
    return VC_OK;
}

void node_pretok_free(void *regex) { pcre2_code_free(regex); }

/* Length of the valid UTF-8 sequence at s (no overlong forms, no surrogates, at most U+10FFFF), or 0. */
static size_t utf8_len(const unsigned char *s, size_t left)
{
    const unsigned char c = s[0];
    if (c < 0x80)
        return 1;
    size_t n = c >= 0xc2 && c <= 0xdf ? 2 : c >= 0xe0 && c <= 0xef ? 3 : c >= 0xf0 && c <= 0xf4 ? 4 : 0;
    if (n == 0 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((c == 0xe0 && s[1] < 0xa0) || (c == 0xed && s[1] > 0x9f) || (c == 0xf0 && s[1] < 0x90) ||
        (c == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

static vc_status_t split_valid(const pcre2_code *regex, pcre2_match_data *match, pcre2_match_context *context,
                               const char *text, size_t bytes, node_pretok_emit_fn emit, void *arg, vc_err_t *err)
{
    for (size_t at = 0; at < bytes;) {
        int rc = pcre2_match(regex, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK, match, context);
        size_t end = rc > 0 ? pcre2_get_ovector_pointer(match)[1] : at;
        if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
            return vc_err_set(err, rc == PCRE2_ERROR_NOMEMORY ? VC_ERR_NOMEM : VC_ERR_INTERNAL,
                              "the pre-tokenizer failed with PCRE2 error %d", rc);
        if (end <= at) /* the patterns cover every character; should one not, it is a word */
            end = at + utf8_len((const unsigned char *)text + at, bytes - at);
        vc_status_t status = emit(arg, text + at, end - at);
        if (status != VC_OK)
            return status;
        at = end;
    }
    return VC_OK;
}

vc_status_t node_pretok_split(const node_tokenizer_t *tok, const char *text, size_t bytes, node_pretok_emit_fn emit,
                              void *arg, vc_err_t *err)
{
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    vc_status_t status = VC_OK;
    if (match == NULL || context == NULL)
        status = vc_err_set(err, VC_ERR_NOMEM, "out of memory in the pre-tokenizer");
    else /* a run of white space is given back one by one: linear, but more steps than the default allows */
        pcre2_set_match_limit(context, UINT32_MAX);
    for (size_t at = 0; status == VC_OK && at < bytes;) {
        size_t end = at, n;
        while (end < bytes && (n = utf8_len((const unsigned char *)text + end, bytes - end)) != 0)
            end += n;
        if (end > at)
            status = split_valid(tok->regex, match, context, text + at, end - at, emit, arg, err);
        if (status == VC_OK && end < bytes)
            status = emit(arg, text + end, 1);
        at = end + 1;
    }
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
    return status;
}
