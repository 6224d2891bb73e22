/* Reads and encodes prompts. No state. */
#include "role/prompt.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "vc/mem.h"

static vc_status_t read_all(FILE *f, size_t max_bytes, char **text_p, size_t *bytes_p)
{
    size_t cap = 64u << 10, used = 0;
    char *buf = vc_alloc(cap);
    if (buf == NULL)
        return VC_ERR_NOMEM;
    for (size_t n; (n = fread(buf + used, 1, cap - used, f)) > 0;) {
        used += n;
        char *more = buf;
        if (used == cap)
            more = vc_realloc(buf, 2, cap);
        if (used > max_bytes || more == NULL) {
            vc_free(buf);
            return more == NULL ? VC_ERR_NOMEM : VC_ERR_RANGE;
        }
        cap = used == cap ? 2 * cap : cap;
        buf = more;
    }
    *text_p = buf;
    *bytes_p = used;
    return VC_OK;
}

vc_status_t node_prompt_read_file(const char *path, size_t max_bytes, char **text_p, size_t *bytes_p, vc_err_t *err)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (f == NULL)
        return vc_err_set(err, vc_status_from_path_errno(errno), "cannot open %s: %s", path, strerror(errno));
    errno = 0;
    vc_status_t status = read_all(f, max_bytes, text_p, bytes_p);
    int why = errno;
    bool bad = status == VC_OK && ferror(f) != 0;
    if (f != stdin)
        fclose(f);
    if (bad) {
        vc_free(*text_p);
        *text_p = NULL; /* callers free it whatever the outcome */
        status = vc_status_from_path_errno(why);
    }
    if (status != VC_OK)
        vc_err_set(err, status, "cannot read %s: %s", path,
                   bad                      ? strerror(why)
                   : status == VC_ERR_RANGE ? "it is too large"
                                            : vc_status_name(status));
    return status;
}

static vc_status_t encode(const node_tokenizer_t *tok, const node_prompt_t *prompt, bool open_ended, uint32_t most,
                          uint32_t **ids_p, uint32_t *n_p, vc_err_t *err)
{
    if (prompt->raw)
        return node_tokenizer_encode_most(tok, prompt->text, prompt->bytes, true, most, ids_p, n_p, err);
    node_chat_msg_t msgs[2];
    uint32_t n = 0;
    if (prompt->system != NULL && prompt->system[0] != '\0')
        msgs[n++] = (node_chat_msg_t){"system", prompt->system, strlen(prompt->system)};
    msgs[n++] = (node_chat_msg_t){"user", prompt->text, prompt->bytes};
    vc_status_t status = node_chat_encode(tok, msgs, n, !open_ended, most, ids_p, n_p, err);
    if (status != VC_OK || !open_ended)
        return status;
    uint32_t len = *n_p; /* cut at the special token that closes the turn, and what follows it */
    while (len > 0 && !node_tokenizer_is_special(tok, (*ids_p)[len - 1]))
        len--;
    *n_p = len > 0 ? len - 1 : 0;
    return VC_OK;
}

vc_status_t node_prompt_encode(const node_tokenizer_t *tok, const node_prompt_t *prompt, bool open_ended,
                               uint32_t context, uint32_t **ids_p, uint32_t *n_p, vc_err_t *err)
{
    vc_err_t why = {0};
    const uint32_t most = context > 0 ? context - 1 : UINT32_MAX;
    vc_status_t status = encode(tok, prompt, open_ended, most, ids_p, n_p, &why);
    if (status == VC_ERR_RANGE && context > 0)
        return vc_err_set(err, status, "the prompt has more than %u tokens, which leaves no room in a context of %u",
                          most, context);
    return status == VC_OK ? status : vc_err_set(err, status, "%s", why.msg);
}
