/*
 * generate in one process: prefill the prompt, compress what is to be compressed, then rounds of draft and verify.
 * One thread beside the engine's own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compress/codec.h"
#include "kv/slow.h"
#include "node.h"
#include "role/generate.h"
#include "role/local_body.h"
#include "role/outcome.h"
#include "role/prompt.h"
#include "vc/clock.h"
#include "vc/log.h"
#include "vc/mem.h"

#define PREFILL_ROWS 128u /* per pass: how long an interrupt may wait */
/* Measuring step costs takes half a second behind the first token: only long prompts and answers earn it. */
#define COSTS_PROMPT 1024u
#define COSTS_ANSWER 512u
#define MAX_DRAFT_AUTO 64u
#define MAX_END_TOKENS 16u
#define PROMPT_BYTES_MAX ((size_t)64 << 20)

typedef struct {
    const node_generate_opts_t *opts;
    FILE *out;
    const volatile sig_atomic_t *stop_flag;
    node_t *node;
    uint32_t *prompt, n_prompt;
    node_verifier_t *verifier;
    node_body_t *body;
    node_source_t *source;
    node_session_t *session;
    node_text_t *text;
    node_spec_t spec;
    bool progress; /* stderr is a terminal and nothing else is shown there */
    uint64_t start_us;
    node_outcome_t outcome;
} solo_t;

static uint64_t now_us(void) { return vc_clock_now_us(vc_clock_system()); }
static bool interrupted(const solo_t *s) { return s->stop_flag && *s->stop_flag; }
static uint32_t max_draft(const node_generate_opts_t *o)
{
    return o->draft_length == NODE_DRAFT_AUTO ? MAX_DRAFT_AUTO : VC_MAX(o->draft_length, 1u);
}

static vc_status_t encode_prompt(solo_t *s, vc_err_t *err)
{
    const node_generate_opts_t *o = s->opts;
    node_prompt_t prompt = {.system = o->system, .text = o->prompt, .bytes = strlen(o->prompt), .raw = o->raw};
    char *text = NULL;
    vc_status_t st = VC_OK;
    if (o->prompt_file[0]) {
        st = node_prompt_read_file(o->prompt_file, PROMPT_BYTES_MAX, &text, &prompt.bytes, err);
        prompt.text = text;
    }
    if (st == VC_OK)
        st = node_prompt_encode(s->node->tok, &prompt, false, node_context(s->node, o->context), &s->prompt,
                                &s->n_prompt, err);
    vc_free(text);
    return st;
}

static vc_status_t open_model(solo_t *s, vc_err_t *err)
{
    node_opts_t no;
    node_opts_default(&no);
    no.model_path = s->opts->model;
    no.calib_dir = s->opts->calibration;
    no.engine.n_threads = (uint32_t)s->opts->threads;
    no.engine.isa = s->opts->isa;
    no.engine.max_rows = VC_MAX(no.engine.max_rows, max_draft(s->opts) + 1);
    vc_status_t st = node_open(&no, &s->node, err);
    if (st == VC_OK && s->spec.ops != NULL)
        st = node_bind_spec(s->node, &s->spec, err);
    return st == VC_OK ? encode_prompt(s, err) : st;
}

static vc_status_t make_verifier(solo_t *s, vc_err_t *err)
{
    uint32_t ends[MAX_END_TOKENS];
    node_verifier_opts_t vo;
    node_verifier_opts_default(&vo);
    vo.engine = s->node->engine;
    vo.tok = s->node->tok;
    vo.sampling = s->opts->sampling;
    vo.end_tokens = ends;
    vo.n_end_tokens = s->opts->ignore_end ? 0 : node_end_tokens(s->node->tok, ends, MAX_END_TOKENS);
    vo.stops = s->opts->stops;
    vo.n_stops = s->opts->n_stops;
    vo.max_tokens = (uint32_t)s->opts->max_tokens;
    vo.context = (uint32_t)s->opts->context;
    vo.max_draft = max_draft(s->opts);
    vo.digest = s->opts->json || s->opts->stats || s->opts->result_file[0] != '\0';
    vc_status_t st = node_verifier_create(&vo, s->prompt, s->n_prompt, &s->verifier, err);
    return st == VC_OK ? node_text_create(s->node->tok, s->opts->stops, s->opts->n_stops, &s->text, err) : st;
}

/* With --kv-ram, where the request may need more: its full KV goes to a file as it comes. */
static vc_status_t make_slow(solo_t *s, vc_err_t *err)
{
    const node_generate_opts_t *o = s->opts;
    uint64_t most = VC_MIN((uint64_t)node_context(s->node, o->context), s->n_prompt + o->max_tokens + max_draft(o));
    node_slow_opts_t so = {.dir = o->kv_dir,
                           .ram_bytes = o->kv_ram,
                           .max_tokens = (uint32_t)most,
                           .pass_rows = VC_MAX(PREFILL_ROWS, max_draft(o) + 1)};
    node_kv_t *kv = node_verifier_kv(s->verifier);
    node_slow_t *slow;
    if (!o->kv_ram || !node_slow_needed(&kv->dims, &so))
        return VC_OK;
    vc_status_t st = node_slow_create(&kv->dims, &so, &slow, err);
    if (st != VC_OK)
        return st;
    st = node_kv_set_slow(kv, slow);
    if (st != VC_OK)
        node_slow_destroy(slow);
    return st == VC_OK ? st : vc_err_set(err, st, "slow tier: it does not fit the session");
}

static vc_status_t write_out(solo_t *s, const char *text, size_t len, vc_err_t *err)
{
    if (s->opts->json || !len)
        return VC_OK;
    if (fwrite(text, 1, len, s->out) != len || fflush(s->out) != 0)
        return vc_err_set(err, VC_ERR_IO, "cannot write the text: %s", strerror(errno));
    return VC_OK;
}

static vc_status_t show(solo_t *s, const node_verdict_t *v, vc_err_t *err)
{
    vc_status_t st = VC_OK;
    bool stopped;
    for (uint32_t i = 0; st == VC_OK && i < v->n_tokens; i++)
        st = node_text_push(s->text, v->tokens[i], &stopped, err);
    if (st == VC_OK && v->finish != NODE_FINISH_NONE)
        st = node_text_finish(s->text, err);
    size_t len;
    const char *text = node_text_take(s->text, &len);
    return st == VC_OK ? write_out(s, text, len, err) : st;
}

/* The prompt but its last row in passes short enough to be interrupted between them; then the first token. */
static vc_status_t prefill(solo_t *s, node_verdict_t *verdict, vc_err_t *err)
{
    s->start_us = now_us();
    node_kv_t *kv = node_verifier_kv(s->verifier);
    vc_status_t st = VC_OK;
    while (st == VC_OK && kv->n_tokens + 1 < s->n_prompt) {
        if (interrupted(s))
            return vc_err_set(err, VC_ERR_CANCELLED, "interrupted");
        uint32_t n = VC_MIN(s->n_prompt - 1 - kv->n_tokens, PREFILL_ROWS);
        st = node_prefill(s->node->engine, kv, s->prompt + kv->n_tokens, n, NULL, NULL, err);
        if (s->progress && s->n_prompt > PREFILL_ROWS)
            fprintf(stderr, "\rprefill %u of %u tokens, %.0f tokens/s \033[K", kv->n_tokens, s->n_prompt,
                    kv->n_tokens * 1e6 / (double)(now_us() - s->start_us + 1));
    }
    if (s->progress && s->n_prompt > PREFILL_ROWS)
        fprintf(stderr, "\r\033[K");
    if (st == VC_OK)
        st = node_verifier_start(s->verifier, PREFILL_ROWS, verdict, err);
    s->outcome.prefill_us = s->outcome.first_us = s->outcome.total_us = now_us() - s->start_us;
    return st;
}

/* A compressor sees the whole full KV, wherever it is. */
static vc_status_t make_body(solo_t *s, uint32_t n_blocks, vc_err_t *err)
{
    const node_replay_t replay = node_replay(s->node);
    node_kv_t view;
    vc_status_t st = node_slow_view(node_verifier_kv(s->verifier), &view, err);
    if (st != VC_OK)
        return st;
    st = node_local_body_replay(&replay, &s->spec, &view, s->prompt, n_blocks, &s->body, err);
    node_kv_fini(&view);
    return st;
}

static vc_status_t make_session(solo_t *s, vc_err_t *err)
{
    vc_status_t st = VC_OK;
    uint32_t n_blocks = (uint32_t)VC_MIN(s->n_prompt, s->opts->compress_tokens) / NODE_TILE;
    uint64_t t0 = now_us();
    if (s->opts->compressor[0] && s->opts->draft_length && n_blocks) {
        st = make_body(s, n_blocks, err);
        if (st != VC_OK)
            return st;
        s->outcome.compressed_tokens = s->body->n_tokens;
        s->outcome.compressed_bytes = s->body->bytes;
        s->outcome.compress_us = now_us() - t0;
    }
    node_drafter_opts_t dopt;
    node_drafter_opts_default(&dopt);
    dopt.engine = s->node->engine;
    dopt.body = s->body;
    dopt.sampling = s->opts->sampling;
    dopt.context = (uint32_t)s->opts->context;
    dopt.n_common = NODE_DRAFTER_COMMON;
    dopt.max_draft = max_draft(s->opts);
    st = node_generate_source(s->opts, &s->source, err);
    if (st != VC_OK)
        return st;
    dopt.source = s->source;
    node_session_opts_t so;
    node_session_opts_default(&so);
    so.draft_length = s->opts->draft_length;
    if (s->n_prompt >= COSTS_PROMPT && s->opts->max_tokens >= COSTS_ANSWER && s->body != NULL &&
        so.draft_length == NODE_DRAFT_AUTO) {
        so.costs = node_step_costs(s->node);
        so.name = s->spec.text;
    }
    return node_session_create(&so, &dopt, s->verifier, &s->session, err);
}

static vc_status_t generate(solo_t *s, vc_err_t *err)
{
    node_verdict_t verdict;
    vc_status_t st = prefill(s, &verdict, err);
    if (st == VC_OK)
        st = show(s, &verdict, err);
    if (st == VC_OK && verdict.finish == NODE_FINISH_NONE)
        st = make_session(s, err);
    while (st == VC_OK && verdict.finish == NODE_FINISH_NONE) {
        if (interrupted(s))
            return node_text_finish(s->text, err);
        st = node_session_round(s->session, &verdict, err);
        s->outcome.total_us = now_us() - s->start_us;
        if (st == VC_OK)
            st = show(s, &verdict, err);
    }
    return st;
}

static vc_status_t fill_kv(solo_t *s, vc_err_t *err)
{
    node_outcome_t *o = &s->outcome;
    const node_kv_t *kv = node_verifier_kv(s->verifier);
    node_kv_t view;
    if (kv->slow != NULL) {
        node_slow_stats_t slow;
        node_slow_stats(kv->slow, &slow);
        o->kv_ram_bytes = slow.ram_bytes;
        o->kv_written_bytes = slow.written_bytes;
        o->kv_read_bytes = slow.read_bytes;
        o->kv_wait_us = slow.wait_us;
    }
    vc_status_t st = node_slow_view(kv, &view, err);
    if (st != VC_OK)
        return st;
    node_kv_digest(&view, view.n_tokens, &o->kv_digest);
    node_kv_fini(&view);
    return VC_OK;
}

static vc_status_t fill_outcome(solo_t *s, vc_err_t *err)
{
    node_outcome_t *o = &s->outcome;
    uint32_t n;
    const uint32_t *tokens = node_verifier_tokens(s->verifier, &n);
    node_verifier_stats_t vs;
    node_session_stats_t ss = {0};
    node_verifier_stats(s->verifier, &vs);
    if (s->session)
        node_session_stats(s->session, &ss);
    o->mode = "solo";
    o->tokens = tokens + s->n_prompt;
    o->n_tokens = n - s->n_prompt;
    o->n_prompt = o->computed_tokens = s->n_prompt;
    o->finish = node_verifier_finish(s->verifier);
    o->plain_rounds = (uint32_t)ss.n_plain_rounds;
    o->rounds = vs.n_rounds - ss.n_plain_rounds;
    o->drafted = vs.n_proposed;
    o->accepted = vs.n_accepted;
    o->source_proposed = ss.source_proposed;
    o->source_accepted = ss.source_accepted;
    o->draft_us = ss.draft_us;
    o->verify_us = ss.verify_us;
    o->compressor = s->spec.text;
    o->n_threads = node_engine_n_threads(s->node->engine);
    o->isa = node_isa_name(node_engine_isa(s->node->engine));
    node_verifier_digest(s->verifier, &o->digest);
    return fill_kv(s, err);
}

/* The rest of the text and what was asked for behind it. */
static vc_status_t finish_output(solo_t *s, vc_err_t *err)
{
    size_t len;
    const char *text = node_text_take(s->text, &len);
    vc_status_t st = write_out(s, text, len, err);
    if (st == VC_OK)
        st = write_out(s, "\n", 1, err);
    if (st != VC_OK)
        return st;
    st = fill_outcome(s, err);
    if (st != VC_OK)
        return st;
    return node_generate_report(s->opts, &s->outcome, s->text, s->out, err);
}

static void close_solo(solo_t *s)
{
    node_session_destroy(s->session);
    node_source_destroy(s->source);
    if (s->body)
        node_body_put(s->body);
    node_text_destroy(s->text);
    node_verifier_destroy(s->verifier);
    vc_free(s->prompt);
    node_close(s->node);
}

vc_status_t node_generate_solo(const node_generate_opts_t *opts, FILE *out, const volatile sig_atomic_t *stop_flag,
                               vc_err_t *err)
{
    solo_t s = {.opts = opts, .out = out, .stop_flag = stop_flag};
    s.progress = isatty(STDERR_FILENO) == 1 && !opts->json;
    vc_status_t st = VC_OK;
    if (opts->compressor[0]) /* a wrong spec is told before the model is loaded */
        st = node_spec_parse(opts->compressor, &s.spec, err);
    if (st == VC_OK)
        st = open_model(&s, err);
    if (st == VC_OK)
        st = make_verifier(&s, err);
    if (st == VC_OK)
        st = make_slow(&s, err);
    if (st == VC_OK)
        st = generate(&s, err);
    if (st == VC_OK)
        st = finish_output(&s, err);
    if (st == VC_OK && node_verifier_finish(s.verifier) == NODE_FINISH_NONE)
        st = vc_err_set(err, VC_ERR_CANCELLED, "interrupted");
    close_solo(&s);
    return st;
}
