/*
 * Chat templates. The only one we have is chatml, and a model's Jinja text is recognised rather than run, once, with
 * the file still there: the turn it builds must be '<|im_start|>' + role + '\n' + content + '<|im_end|>'. The default
 * system turn is the literal that follows '<|im_start|>system\n' in the same text.
 *
 * Contents are encoded without special tokens and the markers are put in as ids, so no text can open or close a turn.
 */
#include <string.h>

#include "model/tokenizer_int.h"
#include "vc/mem.h"

#define TEMPLATE_MAX (1u << 20)
static const char turn_form[] = "'<|im_start|>'+message.role+''+message.content+'<|im_end|>'";
static const char system_open[] = "<|im_start|>system";
static const char turn_close[] = "<|im_end|>";

/* Template text without spaces and line ends (raw or escaped), with message['x'] as message.x and one kind of quote. */
static size_t simplify(const char *s, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == ' ' || s[i] == '\n' || s[i] == '\r' || s[i] == '\t')
            continue;
        if (s[i] == '\\' && i + 1 < n && s[i + 1] == 'n') {
            i++;
            continue;
        }
        out[k++] = s[i] == '"' ? '\'' : s[i];
        static const char open[] = "message['";
        const size_t open_len = sizeof(open) - 1;
        if (k >= open_len && memcmp(out + k - open_len, open, open_len) == 0) {
            out[k - 2] = '.';
            k--;
            while (i + 1 < n && s[i + 1] != '\'' && s[i + 1] != '"')
                out[k++] = s[++i];
            i += 2; /* quote and bracket */
        }
    }
    return k;
}

static vc_status_t check_form(node_gguf_str_t text, vc_err_t *err)
{
    if (text.len > TEMPLATE_MAX)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "the chat template is longer than %u bytes", TEMPLATE_MAX);
    char *simple = vc_alloc((size_t)text.len);
    if (simple == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for the chat template");
    const size_t n = simplify(text.data, (size_t)text.len, simple);
    const bool found = memmem(simple, n, turn_form, sizeof(turn_form) - 1) != NULL;
    vc_free(simple);
    return found ? VC_OK : vc_err_set(err, VC_ERR_UNSUPPORTED, "the model's chat template is not chatml");
}

/* Text between '<|im_start|>system\n' and '<|im_end|>', when both stand in one literal. */
static bool find_default_system(node_gguf_str_t text, node_gguf_str_t *out)
{
    const char *end = text.data + text.len, *p = text.data;
    while ((p = memmem(p, (size_t)(end - p), system_open, sizeof(system_open) - 1)) != NULL) {
        p += sizeof(system_open) - 1;
        if (end - p > 2 && p[0] == '\\' && p[1] == 'n')
            p += 2;
        else if (end - p > 1 && p[0] == '\n')
            p++;
        else
            continue;
        const char *close = memmem(p, (size_t)(end - p), turn_close, sizeof(turn_close) - 1);
        if (close == NULL)
            return false;
        if (memchr(p, '\'', (size_t)(close - p)) != NULL || memchr(p, '"', (size_t)(close - p)) != NULL)
            continue; /* the literal ends before the turn does: this is another branch of the template */
        *out = (node_gguf_str_t){p, (uint64_t)(close - p)};
        return true;
    }
    return false;
}

static bool find_special(const node_tokenizer_t *tok, const char *text, uint32_t *id_p)
{
    for (uint32_t i = 0; i < tok->n_specials; i++) {
        const tok_piece_t *p = &tok->pieces[tok->specials[i]];
        if (p->len == strlen(text) && memcmp(tok->pool + p->offset, text, p->len) == 0) {
            *id_p = tok->specials[i];
            return true;
        }
    }
    return false;
}

static vc_status_t recognise(const node_tokenizer_t *tok, const node_gguf_t *gguf, tok_chat_t *c, vc_err_t *err)
{
    node_gguf_str_t text, system;
    if (node_gguf_str(gguf, "tokenizer.chat_template", &text) != VC_OK)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "the model has no chat template");
    vc_status_t status = check_form(text, err);
    if (status != VC_OK)
        return status;
    if (!find_special(tok, "<|im_start|>", &c->start) || !find_special(tok, turn_close, &c->end))
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "the vocabulary lacks the tokens of its chat template");
    if (!find_default_system(text, &system))
        return VC_OK;
    c->default_system = vc_alloc((size_t)system.len);
    if (c->default_system == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for the chat template");
    memcpy(c->default_system, system.data, (size_t)system.len);
    c->default_bytes = (size_t)system.len;
    return VC_OK;
}

vc_status_t node_chat_load(node_tokenizer_t *tok, const node_gguf_t *gguf, vc_err_t *err)
{
    tok->chat.status = recognise(tok, gguf, &tok->chat, &tok->chat.err);
    if (tok->chat.status != VC_ERR_NOMEM)
        return VC_OK; /* a model without a template still encodes texts */
    return vc_err_set(err, tok->chat.status, "%s", tok->chat.err.msg);
}

void node_chat_free(node_tokenizer_t *tok) { vc_free(tok->chat.default_system); }

typedef struct {
    const node_tokenizer_t *tok;
    bpe_scratch_t *scratch;
    tok_ids_t out;
} chat_t;

/* Role, line end and text are one stretch of text between two markers, and are cut into words as one. */
static vc_status_t add_turn(chat_t *c, const char *role, const char *text, size_t bytes, vc_err_t *err)
{
    const size_t role_len = strlen(role);
    char *joined = vc_alloc(role_len + 1 + bytes);
    if (joined == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for a turn of %zu bytes", bytes);
    memcpy(joined, role, role_len);
    joined[role_len] = '\n';
    if (bytes != 0)
        memcpy(joined + role_len + 1, text, bytes);
    vc_status_t status = VC_OK;
    if (!node_tok_ids_push(&c->out, c->tok->chat.start))
        status = vc_err_set(err, VC_ERR_NOMEM, "out of memory while encoding a chat");
    if (status == VC_OK)
        status = node_tok_encode_plain(c->tok, c->scratch, joined, role_len + 1 + bytes, &c->out, err);
    if (status == VC_OK && !node_tok_ids_push(&c->out, c->tok->chat.end))
        status = vc_err_set(err, VC_ERR_NOMEM, "out of memory while encoding a chat");
    vc_free(joined);
    return status == VC_OK ? node_tok_encode_plain(c->tok, c->scratch, "\n", 1, &c->out, err) : status;
}

static vc_status_t encode_turns(chat_t *c, const node_chat_msg_t *msgs, uint32_t n_msgs, bool add_generation,
                                vc_err_t *err)
{
    vc_status_t status = VC_OK;
    if (n_msgs != 0 && strcmp(msgs[0].role, "system") != 0 && c->tok->chat.default_system != NULL)
        status = add_turn(c, "system", c->tok->chat.default_system, c->tok->chat.default_bytes, err);
    for (uint32_t i = 0; i < n_msgs && status == VC_OK; i++)
        status = add_turn(c, msgs[i].role, msgs[i].text, msgs[i].bytes, err);
    if (status != VC_OK || !add_generation)
        return status;
    if (!node_tok_ids_push(&c->out, c->tok->chat.start))
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory while encoding a chat");
    return node_tok_encode_plain(c->tok, c->scratch, "assistant\n", 10, &c->out, err);
}

vc_status_t node_chat_encode(const node_tokenizer_t *tok, const node_chat_msg_t *msgs, uint32_t n_msgs,
                             bool add_generation, uint32_t most, uint32_t **ids_p, uint32_t *n_p, vc_err_t *err)
{
    chat_t c = {.tok = tok};
    size_t total = 0;
    for (uint32_t i = 0; i < n_msgs; i++) {
        if (strcmp(msgs[i].role, "system") != 0 && strcmp(msgs[i].role, "user") != 0 &&
            strcmp(msgs[i].role, "assistant") != 0)
            return vc_err_set(err, VC_ERR_INVALID, "chat role '%s' is not system, user or assistant", msgs[i].role);
        if (!vc_size_add(total, msgs[i].bytes, &total) || total > NODE_TOK_TEXT_MAX)
            return vc_err_set(err, VC_ERR_RANGE, "the chat is longer than %zu bytes", NODE_TOK_TEXT_MAX);
    }
    if (tok->chat.status != VC_OK)
        return vc_err_set(err, tok->chat.status, "%s", tok->chat.err.msg);
    vc_status_t status = VC_OK;
    c.scratch = node_bpe_scratch_create();
    c.out.ids = vc_calloc(16, sizeof(*c.out.ids));
    c.out.cap = 16;
    c.out.most = most;
    if (c.scratch == NULL || c.out.ids == NULL)
        status = vc_err_set(err, VC_ERR_NOMEM, "out of memory for an encoder");
    if (status == VC_OK)
        status = encode_turns(&c, msgs, n_msgs, add_generation, err);
    if (status == VC_OK)
        status = node_tok_ids_check(&c.out, err);
    node_bpe_scratch_destroy(c.scratch);
    if (status != VC_OK) {
        vc_free(c.out.ids);
        return status;
    }
    *ids_p = c.out.ids;
    *n_p = (uint32_t)c.out.n;
    return VC_OK;
}
