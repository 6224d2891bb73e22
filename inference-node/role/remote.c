/* One generation of a draft node: set-up, the committed tokens and their text, and the report at the end. */
#include "role/remote.h"

#include <errno.h>
#include <string.h>

#include "role/cmd.h"
#include "role/prompt.h"
#include "vc/log.h"
#include "vc/mem.h"

#define PROMPT_MAX_BYTES (64u << 20)

bool node_remote_stopped(const node_remote_t *r) { return r->stop_flag != NULL && *r->stop_flag != 0; }

static vc_status_t append(node_remote_t *r, uint32_t token, vc_err_t *err)
{
    if (r->n_tokens == r->cap_tokens) {
        uint32_t *more = vc_realloc(r->tokens, 2u * (size_t)r->cap_tokens, sizeof(*more));
        if (more == NULL)
            return vc_err_set(err, VC_ERR_NOMEM, "no memory for %u tokens", r->n_tokens);
        r->tokens = more;
        r->cap_tokens *= 2;
    }
    r->tokens[r->n_tokens++] = token;
    bool stopped;
    return node_text_push(r->text, token, &stopped, err);
}

static vc_status_t write_out(node_remote_t *r, const char *text, size_t len, vc_err_t *err)
{
    if (r->opts->json || len == 0)
        return VC_OK;
    if (fwrite(text, 1, len, r->out) != len || fflush(r->out) != 0)
        return vc_err_set(err, VC_ERR_IO, "cannot write the text: %s", strerror(errno));
    return VC_OK;
}

static vc_status_t print_text(node_remote_t *r, vc_err_t *err)
{
    size_t len;
    const char *text = node_text_take(r->text, &len);
    return write_out(r, text, len, err);
}

vc_status_t node_remote_commit(node_remote_t *r, uint32_t base, const uint32_t *tokens, uint32_t n,
                               node_finish_t finish, const vc_digest_t *digest, vc_err_t *err)
{
    uint32_t n_vocab = node_engine_info(r->node->engine)->n_vocab;
    if (base != r->n_tokens || (uint64_t)(r->n_tokens - r->n_prompt) + n > r->opts->max_tokens)
        return vc_err_set(err, VC_ERR_PROTOCOL, "the verifier committed %u tokens at position %u, expected position %u",
                          n, base, r->n_tokens);
    uint64_t now = vc_clock_now_us(r->clock) - r->start_us;
    for (uint32_t i = 0; i < n; i++) {
        if (tokens[i] >= n_vocab)
            return vc_err_set(err, VC_ERR_PROTOCOL, "the verifier committed token id %u, which does not exist",
                              tokens[i]);
        vc_status_t status = append(r, tokens[i], err);
        if (status != VC_OK)
            return status;
    }
    if (n > 0 && r->outcome.first_us == 0)
        r->outcome.first_us = now;
    r->outcome.total_us = now;
    r->outcome.digest = *digest;
    r->outcome.finish = finish;
    return print_text(r, err);
}

static vc_status_t read_prompt(node_remote_t *r, vc_err_t *err)
{
    const node_generate_opts_t *o = r->opts;
    char *file_text = NULL;
    node_prompt_t prompt = {.system = o->system, .raw = o->raw, .text = o->prompt};
    if (o->prompt_file[0] != '\0') {
        vc_status_t status = node_prompt_read_file(o->prompt_file, PROMPT_MAX_BYTES, &file_text, &prompt.bytes, err);
        if (status != VC_OK)
            return status;
        prompt.text = file_text;
    } else {
        prompt.bytes = strlen(o->prompt);
    }
    vc_status_t status = node_prompt_encode(r->node->tok, &prompt, false, node_context(r->node, o->context), &r->tokens,
                                            &r->n_prompt, err);
    vc_free(file_text);
    if (status != VC_OK)
        return status;
    r->n_tokens = r->cap_tokens = r->n_prompt;
    r->outcome.n_prompt = r->n_prompt;
    if (r->n_prompt == 0)
        return vc_err_set(err, VC_ERR_INVALID, "the prompt has no tokens");
    return VC_OK;
}

static vc_status_t open_parts(node_remote_t *r, vc_err_t *err)
{
    const node_generate_opts_t *o = r->opts;
    node_opts_t nopts;
    node_opts_default(&nopts);
    nopts.model_path = o->model;
    nopts.calib_dir = o->calibration;
    nopts.engine.n_threads = (uint32_t)o->threads;
    nopts.engine.isa = o->isa;
    vc_status_t status = VC_OK;
    const char *compressor =
        o->compressor[0] == '\0' && o->verifier[0] != '\0' ? NODE_DEFAULT_COMPRESSOR : o->compressor;
    if (compressor[0] != '\0') {
        status = node_spec_parse(compressor, &r->spec, err);
        r->has_spec = status == VC_OK;
    }
    if (status == VC_OK)
        status = node_open(&nopts, &r->node, err);
    if (status == VC_OK && r->has_spec)
        status = node_bind_spec(r->node, &r->spec, err);
    if (status == VC_OK)
        status = node_text_create(r->node->tok, o->stops, o->n_stops, &r->text, err);
    if (status == VC_OK && o->server != NULL && o->server[0] != '\0') {
        node_cache_opts_t copts;
        node_cache_opts_default(&copts);
        copts.server = o->server;
        copts.use_data_plane = o->data_plane;
        status = node_cache_open(&copts, node_engine_info(r->node->engine), &r->cache, err);
    }
    if (status != VC_OK)
        return status;
    if (!o->ignore_end)
        r->n_end_tokens = node_end_tokens(r->node->tok, r->end_tokens, VC_ARRAY_LEN(r->end_tokens));
    return read_prompt(r, err);
}

static vc_status_t finish_output(node_remote_t *r, vc_err_t *err)
{
    vc_status_t status = node_text_finish(r->text, err);
    if (status == VC_OK)
        status = print_text(r, err);
    if (status == VC_OK)
        status = write_out(r, "\n", 1, err);
    if (status != VC_OK)
        return status;
    r->outcome.tokens = r->tokens + r->n_prompt;
    r->outcome.n_tokens = r->n_tokens - r->n_prompt;
    return node_generate_report(r->opts, &r->outcome, r->text, r->out, err);
}

vc_status_t node_generate_remote(const node_generate_opts_t *opts, FILE *out, const volatile sig_atomic_t *stop_flag,
                                 vc_err_t *err)
{
    node_remote_t r = {.opts = opts, .out = out, .stop_flag = stop_flag, .clock = vc_clock_system()};
    bool drafts = opts->verifier != NULL && opts->verifier[0] != '\0';
    vc_status_t status = open_parts(&r, err);
    r.start_us = vc_clock_now_us(r.clock);
    r.outcome.mode = drafts ? "vericache" : r.cache != NULL ? "full" : "recompute";
    if (status == VC_OK)
        status = drafts ? node_remote_run_draft(&r, err) : node_remote_run_local(&r, err);
    if (status == VC_OK)
        status = finish_output(&r, err);
    else if (!opts->json && r.n_tokens > r.n_prompt)
        fputc('\n', out); /* what was printed is verified; the error follows on its own line */
    node_body_put(r.body);
    node_text_destroy(r.text);
    node_cache_close(r.cache);
    vc_free(r.tokens);
    node_close(r.node);
    return status;
}
