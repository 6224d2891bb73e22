/*
 * The loop of `vericache-node batch`: lines become requests as long as there is room, iterations run, a line is written
 * as each request ends. One thread beside the engine's own.
 */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "batch/batch.h"
#include "compress/codec.h"
#include "node.h"
#include "role/batch.h"
#include "role/cmd.h"
#include "role/jobs.h"
#include "role/lines.h"
#include "role/local_body.h"
#include "role/prompt.h"
#include "speculate/suffix.h"
#include "vc/mem.h"

#define LINE_BYTES_MAX ((size_t)64 << 20)
#define MAX_DRAFT_AUTO 64u
#define MAX_END_TOKENS 16u
#define WAITING_PER_RUNNING 2u /* requests read ahead, so that the next one begins at once */

typedef struct {
    node_job_t job;
    uint64_t line, start_us, first_us;
    node_text_t *text;
    uint32_t n_prompt;
} item_t;

typedef struct {
    const node_batch_cmd_t *cmd;
    const volatile sig_atomic_t *stop_flag;
    node_t *node;
    node_spec_t spec;
    node_batch_t *batch;
    node_lines_t *lines;
    bool at_end, progress;
    uint32_t n_open;
    uint64_t n_done, n_failed, start_us, shown_us;
    vc_status_t status; /* of writing results, and of texts */
    vc_err_t err;
} batch_run_t;

static uint64_t now_us(void) { return vc_clock_now_us(vc_clock_system()); }

/* ---- results ---- */

static void write_line(batch_run_t *r, const char *id, json_t *object)
{
    json_error_t why;
    json_t *label = json_loads(id ? id : "null", JSON_DECODE_ANY, &why);
    vc_status_t st = VC_ERR_NOMEM;
    if (object != NULL && label != NULL && json_object_set(object, "id", label) == 0)
        st = json_dumpf(object, r->cmd->out, JSON_COMPACT) == 0 && fputc('\n', r->cmd->out) != EOF &&
                     fflush(r->cmd->out) == 0
                 ? VC_OK
                 : VC_ERR_IO;
    json_decref(label);
    json_decref(object);
    if (st != VC_OK && r->status == VC_OK)
        r->status = vc_err_set(&r->err, st, "cannot write the results");
}

/* A sentence that quotes a request may be cut within a character, which JSON does not take. */
static json_t *sentence_of(const char *text)
{
    char ascii[sizeof((vc_err_t *)0)->msg];
    json_t *s = json_string(text);
    if (s != NULL)
        return s;
    snprintf(ascii, sizeof ascii, "%s", text);
    for (char *c = ascii; *c; c++)
        *c = (unsigned char)*c < 0x80 ? *c : '?';
    return json_string(ascii);
}

static void write_error(batch_run_t *r, const char *id, uint64_t line, const char *sentence)
{
    write_line(r, id, json_pack("{s:n,s:I,s:o}", "id", "line", (json_int_t)line, "error", sentence_of(sentence)));
    r->n_failed++;
}

static json_t *result(const item_t *it, const node_batch_end_t *end, const char *text, size_t len)
{
    char digest[2 * VC_DIGEST_BYTES + 1];
    vc_digest_t d;
    uint32_t n;
    const uint32_t *tokens = node_verifier_tokens(end->v, &n);
    node_verifier_stats_t s;
    node_verifier_stats(end->v, &s);
    node_verifier_digest(end->v, &d);
    vc_hex(d.b, VC_DIGEST_BYTES, digest);
    json_t *list = json_array();
    for (uint32_t i = it->n_prompt; i < n; i++)
        json_array_append_new(list, json_integer(tokens[i]));
    return json_pack("{s:n,s:s%,s:s,s:I,s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:s}", "id", "text", text, len, "finish",
                     node_finish_name(node_verifier_finish(end->v)), "prompt_tokens", (json_int_t)it->n_prompt,
                     "tokens", list, "rounds", (json_int_t)(s.n_rounds - end->n_plain_rounds), "plain_rounds",
                     (json_int_t)end->n_plain_rounds, "drafted", (json_int_t)s.n_proposed, "accepted",
                     (json_int_t)s.n_accepted, "compressed_bytes", (json_int_t)end->compressed_bytes, "first_us",
                     (json_int_t)it->first_us, "total_us", (json_int_t)(now_us() - it->start_us), "logits_digest",
                     digest);
}

static void free_item(item_t *it)
{
    if (it == NULL)
        return;
    node_text_destroy(it->text);
    node_job_free(&it->job);
    vc_free(it);
}

static void ended(void *arg, const node_batch_end_t *end)
{
    batch_run_t *r = arg;
    item_t *it = end->user;
    size_t len;
    vc_err_t err = {0};
    vc_status_t st = end->status == VC_OK ? node_text_finish(it->text, &err) : VC_OK;
    r->n_open--;
    if (end->status != VC_OK || st != VC_OK) {
        write_error(r, it->job.id, it->line, st != VC_OK ? err.msg : end->error);
    } else {
        const char *text = node_text_all(it->text, &len);
        write_line(r, it->job.id, result(it, end, text, len));
        r->n_done++;
    }
    free_item(it);
}

static void committed(void *arg, void *user, const node_verdict_t *verdict)
{
    batch_run_t *r = arg;
    item_t *it = user;
    bool stopped;
    if (!it->first_us)
        it->first_us = now_us() - it->start_us;
    for (uint32_t i = 0; r->status == VC_OK && i < verdict->n_tokens; i++)
        r->status = node_text_push(it->text, verdict->tokens[i], &stopped, &r->err);
}

/* ---- requests ---- */

static vc_status_t compress(void *arg, const node_kv_t *full, const uint32_t *tokens, uint32_t n_tokens,
                            node_body_t **body_p, vc_err_t *err)
{
    batch_run_t *r = arg;
    const node_replay_t replay = node_replay(r->node);
    return node_local_body_replay(&replay, &r->spec, full, tokens, n_tokens / NODE_TILE, body_p, err);
}

static vc_status_t source(void *arg, node_source_t **source_p, vc_err_t *err)
{
    node_suffix_opts_t o;
    (void)arg;
    node_suffix_opts_default(&o);
    return node_suffix_create(&o, source_p, err);
}

static vc_status_t add(batch_run_t *r, item_t *it, vc_err_t *err)
{
    const node_job_t *j = &it->job;
    const char *const *stops = (const char *const *)j->stops;
    uint32_t *ids = NULL, ends[MAX_END_TOKENS];
    const node_prompt_t prompt = {.system = j->system, .text = j->prompt, .bytes = strlen(j->prompt), .raw = j->raw};
    vc_status_t st = node_prompt_encode(r->node->tok, &prompt, false, node_context(r->node, r->cmd->context), &ids,
                                        &it->n_prompt, err);
    if (st == VC_OK)
        st = node_text_create(r->node->tok, stops, j->n_stops, &it->text, err);
    if (st == VC_OK) {
        node_batch_request_t q = {.prompt = ids, .n_prompt = it->n_prompt, .no_source = !j->source, .user = it};
        node_verifier_opts_default(&q.verifier);
        q.verifier.tok = r->node->tok;
        q.verifier.sampling = j->sampling;
        q.verifier.end_tokens = ends;
        q.verifier.n_end_tokens = j->ignore_end ? 0 : node_end_tokens(r->node->tok, ends, MAX_END_TOKENS);
        q.verifier.stops = stops;
        q.verifier.n_stops = j->n_stops;
        q.verifier.max_tokens = j->max_tokens;
        q.verifier.context = (uint32_t)r->cmd->context;
        it->start_us = now_us();
        st = node_batch_add(r->batch, &q, NULL, err);
    }
    vc_free(ids);
    return st;
}

static void submit(batch_run_t *r, const char *line, size_t bytes, uint64_t number)
{
    vc_err_t err = {0};
    if (strspn(line, " \t\r") == bytes)
        return; /* an empty line */
    item_t *it = vc_calloc(1, sizeof *it);
    if (it == NULL) {
        write_error(r, NULL, number, "out of memory");
        return;
    }
    it->line = number;
    it->job.raw = r->cmd->raw;
    it->job.source = r->cmd->source;
    it->job.no_drafts = r->cmd->draft_length == 0;
    it->job.max_tokens = (uint32_t)r->cmd->max_tokens;
    vc_status_t st = node_job_parse(&it->job, number, line, bytes, &err);
    if (st == VC_OK)
        st = add(r, it, &err);
    if (st == VC_OK) {
        r->n_open++;
        return;
    }
    write_error(r, it->job.id, number, err.msg[0] ? err.msg : vc_status_text(st));
    free_item(it);
}

static void refuse_line(batch_run_t *r, uint64_t number, const vc_err_t *err)
{
    char id[24];
    snprintf(id, sizeof id, "%" PRIu64, number);
    write_error(r, id, number, err->msg);
}

static vc_status_t fill(batch_run_t *r, vc_err_t *err)
{
    uint32_t room = (uint32_t)r->cmd->max_running * (1 + WAITING_PER_RUNNING);
    while (!r->at_end && r->n_open < room && r->status == VC_OK && !*r->stop_flag) {
        const char *line;
        size_t bytes;
        uint64_t number;
        vc_status_t st = node_lines_next(r->lines, r->n_open == 0, &line, &bytes, &number, err);
        if (st == VC_ERR_AGAIN && r->n_open > 0)
            return VC_OK;
        if (st == VC_OK)
            submit(r, line, bytes, number);
        else if (st == VC_ERR_RANGE) /* too long, and passed over */
            refuse_line(r, number, err);
        else if (st == VC_ERR_NOT_FOUND)
            r->at_end = true;
        else if (st != VC_ERR_AGAIN)
            return st;
    }
    return VC_OK;
}

/* ---- the run ---- */

static void show_progress(batch_run_t *r, bool last)
{
    uint64_t now = now_us();
    if (!r->progress || (!last && now - r->shown_us < 200000))
        return;
    r->shown_us = now;
    node_batch_info_t i;
    node_batch_info(r->batch, &i);
    fprintf(stderr, "\r\033[K");
    if (!last)
        fprintf(stderr, "%u running, %u reading, %u waiting, %" PRIu64 " done, %.1f tokens/s", i.n_running, i.n_prompts,
                i.n_waiting, r->n_done, (double)i.n_committed * 1e6 / (double)(now - r->start_us + 1));
}

static void print_stats(const batch_run_t *r)
{
    node_batch_info_t i;
    node_batch_info(r->batch, &i);
    double s = (double)(now_us() - r->start_us) / 1e6;
    const uint64_t n = r->n_done + r->n_failed;
    fprintf(stderr, "%" PRIu64 " request%s, %" PRIu64 " failed; %" PRIu64 " token%s in %.2f s, %.1f tokens/s\n", n,
            node_plural(n, "s"), r->n_failed, i.n_committed, node_plural(i.n_committed, "s"), s,
            (double)i.n_committed / s);
    fprintf(stderr,
            "%" PRIu64 " iteration%s, %" PRIu64 " verification%s; rows: %" PRIu64 " of prompts, %" PRIu64
            " of drafts, %" PRIu64 " verified\n",
            i.n_iterations, node_plural(i.n_iterations, "s"), i.n_verified, node_plural(i.n_verified, "s"),
            i.prompt_rows, i.draft_rows, i.verify_rows);
    if (i.source_proposed > 0)
        fprintf(stderr, "%" PRIu64 " of %" PRIu64 " proposals of the n-gram source accepted\n", i.source_accepted,
                i.source_proposed);
    if (i.link_bytes > 0) /* before, the rate is a guess */
        fprintf(stderr, "%.1f MB of full KV streamed at %.2f GB/s, passes waited %.2f s for it\n",
                (double)i.link_bytes / 1e6, i.link_rate / 1e9, (double)(i.link_wait_us + i.idle_us) / 1e6);
    else if (i.link_rate > 0)
        fprintf(stderr, "no full KV streamed\n");
}

static vc_status_t open_node(batch_run_t *r, vc_err_t *err)
{
    const node_batch_cmd_t *c = r->cmd;
    uint32_t x = c->draft_length == NODE_DRAFT_AUTO ? MAX_DRAFT_AUTO : c->draft_length;
    node_opts_t o;
    node_opts_default(&o);
    o.model_path = c->model;
    o.calib_dir = c->calibration;
    o.engine.n_threads = (uint32_t)c->threads;
    o.engine.isa = c->isa;
    o.engine.max_rows = VC_MAX(o.engine.max_rows, x + 1);
    vc_status_t st = node_open(&o, &r->node, err);
    if (st == VC_OK && r->spec.ops != NULL)
        st = node_bind_spec(r->node, &r->spec, err);
    return st;
}

static vc_status_t open_batch(batch_run_t *r, vc_err_t *err)
{
    const node_batch_cmd_t *c = r->cmd;
    node_batch_opts_t o;
    node_batch_opts_default(&o);
    o.engine = r->node->engine;
    o.max_running = (uint32_t)c->max_running;
    o.max_requests = o.max_running * (1 + WAITING_PER_RUNNING);
    o.draft_length = c->draft_length;
    o.max_draft = MAX_DRAFT_AUTO;
    o.prompt_rows = (uint32_t)c->prompt_rows;
    o.lock_step = c->lock_step;
    o.kv_ram = c->kv_ram;
    o.kv_dir = c->kv_dir;
    o.hold_bytes = c->hold;
    o.max_tokens = (uint32_t)c->context;
    o.compress = r->spec.ops != NULL ? compress : NULL;
    o.source = source;
    o.committed = committed;
    o.ended = ended;
    o.arg = r;
    return node_batch_create(&o, &r->batch, err);
}

static vc_status_t loop(batch_run_t *r, vc_err_t *err)
{
    vc_status_t st = VC_OK;
    while (st == VC_OK && r->status == VC_OK && !*r->stop_flag) {
        bool busy = false;
        st = fill(r, err);
        if (st == VC_OK && r->n_open == 0 && r->at_end)
            break;
        if (st == VC_OK && r->n_open > 0)
            st = node_batch_step(r->batch, &busy, err);
        show_progress(r, false);
    }
    show_progress(r, true);
    if (st == VC_OK && r->status == VC_OK && *r->stop_flag)
        st = vc_err_set(err, VC_ERR_CANCELLED, "interrupted");
    return st;
}

vc_status_t node_batch_cmd_run(const node_batch_cmd_t *cmd, const volatile sig_atomic_t *stop_flag,
                               uint64_t *n_failed_p, vc_err_t *err)
{
    batch_run_t r = {.cmd = cmd, .stop_flag = stop_flag, .start_us = now_us()};
    r.progress = isatty(STDERR_FILENO) == 1 && isatty(fileno(cmd->out)) != 1;
    vc_status_t st = VC_OK;
    if (cmd->compressor[0] && cmd->draft_length) /* a wrong spec is told before the model is loaded */
        st = node_spec_parse(cmd->compressor, &r.spec, err);
    if (st == VC_OK)
        st = node_lines_open(cmd->requests, LINE_BYTES_MAX, &r.lines, err);
    if (st == VC_OK)
        st = open_node(&r, err);
    if (st == VC_OK)
        st = open_batch(&r, err);
    if (st == VC_OK)
        st = loop(&r, err);
    if (r.batch != NULL && cmd->stats)
        print_stats(&r);
    node_batch_destroy(r.batch);
    node_lines_close(r.lines);
    node_close(r.node);
    *n_failed_p = r.n_failed;
    if (r.status != VC_OK && err != NULL) /* what ended the loop */
        *err = r.err;
    return r.status != VC_OK ? r.status : st;
}
