/* `vericache-node tokenize`: the tokens of a text, for people (one a line) and for scripts (--json). */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/tokenizer.h"
#include "role/cmd.h"
#include "vc/mem.h"

#define TEXT_MAX ((size_t)256 << 20)

typedef struct {
    const char *model, *file, *system;
    bool json, chat, special;
} options_t;

typedef struct {
    char *data;
    size_t bytes;
} text_t;

static vc_status_t read_stream(FILE *f, const char *name, text_t *text, vc_err_t *err)
{
    size_t cap = 0;
    for (;;) {
        if (text->bytes == cap) {
            cap = cap != 0 ? cap * 2 : 65536;
            if (cap > TEXT_MAX)
                return vc_err_set(err, VC_ERR_RANGE, "'%s' is longer than %zu bytes", name, TEXT_MAX);
            char *data = vc_realloc(text->data, cap, 1);
            if (data == NULL)
                return vc_err_set(err, VC_ERR_NOMEM, "out of memory for '%s'", name);
            text->data = data;
        }
        size_t n = fread(text->data + text->bytes, 1, cap - text->bytes, f);
        text->bytes += n;
        if (n == 0)
            break;
    }
    return ferror(f) ? vc_err_set(err, vc_status_from_path_errno(errno), "cannot read '%s': %s", name, strerror(errno))
                     : VC_OK;
}

/* The argument, --file, or standard input. */
static vc_status_t read_text(const options_t *o, const vc_config_t *config, text_t *text, vc_err_t *err)
{
    const int n_args = vc_config_n_args(config);
    if (n_args > 1)
        return vc_err_set(err, VC_ERR_INVALID, "one text is expected, %d were given (quote it)", n_args);
    if (n_args == 1 && o->file[0] != '\0')
        return vc_err_set(err, VC_ERR_INVALID, "both a text and --file were given");
    if (n_args == 1) {
        text->data = vc_strdup(vc_config_arg(config, 0));
        text->bytes = text->data != NULL ? strlen(text->data) : 0;
        return text->data != NULL ? VC_OK : vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    }
    if (o->file[0] == '\0' || strcmp(o->file, "-") == 0)
        return read_stream(stdin, "standard input", text, err);
    FILE *f = fopen(o->file, "rb");
    if (f == NULL)
        return vc_err_set(err, vc_status_from_path_errno(errno), "cannot open '%s': %s", o->file, strerror(errno));
    vc_status_t status = read_stream(f, o->file, text, err);
    fclose(f);
    return status;
}

/* Bytes in double quotes; what is not printable UTF-8 as \xNN, so that a line is a token and a terminal is safe. */
static void print_quoted(const char *s, size_t n)
{
    putchar('"');
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i];
        if (c == '\n')
            fputs("\\n", stdout);
        else if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c >= 0x20 && c < 0x7f)
            putchar(c);
        else
            printf("\\x%02x", c);
    }
    putchar('"');
}

static void print_lines(const node_tokenizer_t *tok, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        size_t len;
        const char *piece = node_tokenizer_piece(tok, ids[i], &len);
        printf("%6u  ", ids[i]);
        print_quoted(piece, len);
        printf("%s\n", node_tokenizer_is_special(tok, ids[i]) ? "  special" : "");
    }
    fprintf(stderr, "%u token%s\n", n, node_plural(n, "s"));
}

/* {"n", "ids", "pieces"}; a piece that is no UTF-8 by itself (part of a character) stands as {"hex"}. */
static vc_status_t print_json(const node_tokenizer_t *tok, const uint32_t *ids, uint32_t n, vc_err_t *err)
{
    json_t *id_list = json_array(), *pieces = json_array();
    for (uint32_t i = 0; i < n; i++) {
        size_t len;
        const char *piece = node_tokenizer_piece(tok, ids[i], &len);
        json_t *text = json_stringn(piece, len);
        if (text == NULL && len <= 65536) {
            char *hex = vc_alloc(2 * len + 1);
            if (hex != NULL)
                vc_hex(piece, len, hex);
            text = hex != NULL ? json_pack("{s:s}", "hex", hex) : NULL;
            vc_free(hex);
        }
        json_array_append_new(id_list, json_integer(ids[i]));
        json_array_append_new(pieces, text != NULL ? text : json_null());
    }
    json_t *root = json_pack("{s:i,s:o,s:o}", "n", (int)n, "ids", id_list, "pieces", pieces);
    const bool good = root != NULL && json_array_size(pieces) == n && json_dumpf(root, stdout, JSON_COMPACT) == 0;
    json_decref(root);
    putchar('\n');
    return good ? VC_OK : vc_err_set(err, VC_ERR_IO, "cannot write the result");
}

static vc_status_t encode(const options_t *o, const node_tokenizer_t *tok, const text_t *text, uint32_t **ids_p,
                          uint32_t *n_p, vc_err_t *err)
{
    if (!o->chat)
        return node_tokenizer_encode(tok, text->data, text->bytes, o->special, ids_p, n_p, err);
    const node_chat_msg_t msgs[] = {{"system", o->system, strlen(o->system)}, {"user", text->data, text->bytes}};
    const uint32_t skip = o->system[0] == '\0';
    return node_chat_encode(tok, msgs + skip, 2 - skip, true, UINT32_MAX, ids_p, n_p, err);
}

static vc_status_t run(const options_t *o, const vc_config_t *config, vc_err_t *err)
{
    node_gguf_t *gguf = NULL;
    node_tokenizer_t *tok = NULL;
    text_t text = {0};
    uint32_t *ids = NULL, n = 0;
    vc_status_t status = VC_OK;
    if (o->model[0] == '\0')
        status = vc_err_set(err, VC_ERR_INVALID, "--model FILE is needed");
    if (status == VC_OK)
        status = node_gguf_open(o->model, &gguf, err);
    if (status == VC_OK)
        status = node_tokenizer_create(gguf, &tok, err);
    node_gguf_close(gguf); /* the text may take its time to come */
    if (status == VC_OK)
        status = read_text(o, config, &text, err);
    if (status == VC_OK)
        status = encode(o, tok, &text, &ids, &n, err);
    if (status == VC_OK && o->json)
        status = print_json(tok, ids, n, err);
    else if (status == VC_OK)
        print_lines(tok, ids, n);
    if (status == VC_OK && fflush(stdout) != 0)
        status = vc_err_set(err, VC_ERR_IO, "cannot write the result: %s", strerror(errno));
    vc_free(ids);
    vc_free(text.data);
    node_tokenizer_destroy(tok);
    return status;
}

int node_cmd_tokenize(int argc, char **argv)
{
    options_t o = {0};
    const vc_opt_t table[] = {
        {.name = "model", .type = VC_OPT_STRING, .value = &o.model, .help = "GGUF file with the vocabulary"},
        {.name = "file", .type = VC_OPT_STRING, .value = &o.file, .help = "read the text from this file, - for stdin"},
        {.name = "special",
         .type = VC_OPT_BOOL,
         .value = &o.special,
         .help = "read <|im_start|> and the like as one token"},
        {.name = "chat", .type = VC_OPT_BOOL, .value = &o.chat, .help = "the text as a user turn of the chat template"},
        {.name = "system", .type = VC_OPT_TEXT, .value = &o.system, .help = "system turn for --chat"},
        {.name = "json", .type = VC_OPT_BOOL, .value = &o.json, .help = "one JSON object: n, ids, pieces"},
        {0},
    };
    vc_config_t *config;
    int rc;
    if (!node_cmd_begin(table, "[TEXT]", false, argc, argv, &config, &rc))
        return rc;
    vc_err_t err = {0};
    vc_status_t status = run(&o, config, &err);
    vc_config_free(config);
    return status == VC_OK ? 0 : node_cmd_fail(argv[0], status, &err);
}
