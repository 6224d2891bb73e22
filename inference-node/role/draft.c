/*
 * The draft node: opens a Verify stream, fetches the compressed copy meanwhile, drafts from it, and prints what the
 * verifier commits, nothing else.
 *
 *   this thread          events of the stream, drafting, printing; the only user of the engine
 *   body thread          lookup, fetch and decode of the compressed copy; ends when that is there or has failed
 *   reader thread        inside verify_client
 *
 * A lost verifier is replaced by the next one of the list, which is given the committed tokens; when none is left the
 * node goes on with full KV of its own (role/local.c). Every path commits the same bits.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "role/remote.h"
#include "role/verify_client.h"
#include "speculate/drafter.h"
#include "vc/log.h"
#include "vc/mem.h"

#define PREFILL_SLICE 32u /* rows between looks at the stream */
#define POLL_MS 20u       /* while the body is on its way */
#define IDLE_POLL_MS 200u /* while there is nothing to do but wait; a signal is seen this late at most */
#define CHUNK_FIRST 8u
#define CHUNK_MAX 32u
#define LENGTH_MAX (2 * CHUNK_MAX)   /* of a draft length that was asked for */
#define PENDING_MAX (2 * LENGTH_MAX) /* one message with the verifier, the next in the making */
#define VERIFIERS_MAX 16u
#define ROUNDS_OF_TRIES 2u

typedef struct body_job {
    node_remote_t *r;
    pthread_t thread;
    bool started;
    uint32_t *prompt; /* a copy: r->tokens moves while tokens are committed */
    uint32_t n_prompt;
    node_body_t *body;
    node_cache_result_t result;
    /* Release after body and result are written, acquire before they are read. */
    _Atomic bool done;
} body_job_t;

typedef struct draft {
    node_remote_t *r;
    char *names; /* copy of the list, cut into targets */
    const char *targets[VERIFIERS_MAX];
    bool refused[VERIFIERS_MAX]; /* it never has room for this request */
    uint32_t n_targets, n_tries;
    node_verify_client_t *client;
    body_job_t job;
    node_drafter_t *drafter;
    node_source_t *source; /* under the drafter; NULL: none */
    bool drafter_off;      /* no body, or it failed: text still comes from the verifier */
    bool rows_ready;       /* every committed token but the last has rows in the drafter */
    uint32_t epoch;
    uint32_t n_sent;    /* of the pending drafts */
    uint32_t chunk;     /* drafts per message */
    double run;         /* accepted per round, decayed mean */
    bool send_failed;   /* the stream ends: what it said before that is still to be read */
    bool rows_asked;    /* on this stream, for the verifier's rows */
    uint32_t rows_here; /* its rows before this position came; at first the end of the body */
    uint64_t row_bytes;
    bool is_over;     /* nobody will draft any more */
    bool failed_here; /* no memory, or the output takes nothing: no other verifier helps */
} draft_t;

/* ---- the compressed copy ---- */

static void *fetch_body(void *arg)
{
    body_job_t *job = arg;
    node_remote_t *r = job->r;
    node_cache_fetch_body(r->cache, &r->spec, job->prompt, job->n_prompt, &job->body, &job->result);
    atomic_store_explicit(&job->done, true, memory_order_release);
    return NULL;
}

static void start_body(draft_t *d)
{
    node_remote_t *r = d->r;
    if (d->drafter_off)
        return;
    d->job.r = r;
    d->job.n_prompt = r->n_prompt;
    d->job.prompt = vc_memdup(r->tokens, r->n_prompt * sizeof(*r->tokens));
    d->job.started = d->job.prompt != NULL && pthread_create(&d->job.thread, NULL, fetch_body, &d->job) == 0;
    if (!d->job.started) {
        vc_free(d->job.prompt);
        d->drafter_off = true;
        node_outcome_note(&r->outcome, "no drafting: cannot start a thread");
    }
}

static void join_body(draft_t *d)
{
    if (!d->job.started)
        return;
    pthread_join(d->job.thread, NULL);
    vc_free(d->job.prompt);
    d->job.started = false;
    d->r->body = d->job.body;
    d->r->outcome.slow_bytes += d->job.result.bytes;
    d->r->outcome.fetch_us += d->job.result.us;
    d->r->outcome.prefix_blocks = d->job.result.blocks;
    if (d->is_over)
        node_outcome_note(&d->r->outcome, "no drafting: the answer was over before the compressed copy came");
    else if (d->job.result.status != VC_OK || d->job.body == NULL)
        node_outcome_note(&d->r->outcome, "no drafting, no whole copy of %s: %s", d->r->spec.text, d->job.result.note);
    vc_log_info("draft", "compressed copy blocks=%u of=%u bytes=%llu exact_bytes=%llu ms=%llu note=\"%s\"",
                d->job.result.blocks, d->job.result.blocks_found, (unsigned long long)d->job.result.bytes,
                (unsigned long long)d->job.result.full_bytes, (unsigned long long)(d->job.result.us / 1000),
                d->job.result.note);
}

static void destroy_drafter(draft_t *d)
{
    node_drafter_stats_t stats;
    if (d->drafter == NULL)
        return;
    node_drafter_stats(d->drafter, &stats);
    d->r->outcome.source_proposed += stats.n_proposed;
    d->r->outcome.source_accepted += stats.n_accepted;
    node_drafter_destroy(d->drafter);
    d->drafter = NULL;
}

static void stop_drafting(draft_t *d, const vc_err_t *err)
{
    destroy_drafter(d);
    d->drafter_off = true;
    node_outcome_note(&d->r->outcome, "drafting ended: %.150s", err->msg);
    vc_log_warn("draft", "drafting ended reason=\"%s\"", err->msg);
}

/* The body has come (or not): from here on this thread drafts, or only waits. */
static void make_drafter(draft_t *d)
{
    join_body(d);
    if (d->r->body == NULL) {
        d->drafter_off = true;
        return;
    }
    node_drafter_opts_t opts;
    node_drafter_opts_default(&opts);
    opts.engine = d->r->node->engine;
    opts.body = d->r->body;
    opts.sampling = d->r->opts->sampling;
    opts.context = (uint32_t)d->r->opts->context;
    opts.max_draft = PENDING_MAX;
    opts.n_common = NODE_DRAFTER_COMMON;
    d->rows_here = d->r->body->n_tokens;
    opts.source = d->source;
    vc_err_t err = {0};
    if (node_drafter_create(&opts, d->r->tokens, d->r->n_tokens, &d->drafter, &err) != VC_OK)
        stop_drafting(d, &err);
}

/* ---- drafting ---- */

static uint32_t chunk_length(const draft_t *d)
{
    if (d->r->opts->draft_length != NODE_DRAFT_AUTO)
        return VC_MIN(d->r->opts->draft_length, LENGTH_MAX);
    return d->chunk;
}

static bool can_draft(const draft_t *d)
{
    if (d->drafter == NULL || d->send_failed)
        return false;
    return !d->rows_ready || node_drafter_n_pending(d->drafter) < 2 * chunk_length(d);
}

/* A stream that takes nothing more may have ended well: its last verdict is still to be read, and so is the reason if
 * it did not. */
static void send_chunk(draft_t *d)
{
    vc_err_t err;
    uint32_t pending = node_drafter_n_pending(d->drafter);
    node_wire_draft_t msg = {.epoch = d->epoch, .first = d->r->n_tokens + d->n_sent};
    msg.n_tokens = VC_MIN(pending - d->n_sent, NODE_WIRE_DRAFTS_MAX);
    memcpy(msg.tokens, node_drafter_pending(d->drafter) + d->n_sent, msg.n_tokens * sizeof(msg.tokens[0]));
    if (node_verify_client_send(d->client, &msg, &err) == VC_OK)
        d->n_sent += msg.n_tokens;
    else
        d->send_failed = true;
}

/* One small step of work, so that the stream is looked at often. A drafter that cannot go on is no error of the
 * request. */
static void draft_step(draft_t *d)
{
    vc_err_t derr = {0};
    vc_status_t status;
    if (!d->rows_ready) {
        status = node_drafter_prefill(d->drafter, PREFILL_SLICE, &d->rows_ready, &derr);
        if (status != VC_OK)
            stop_drafting(d, &derr);
        return;
    }
    node_pick_t pick;
    status = node_drafter_next(d->drafter, &pick, &derr);
    uint32_t pending = status == VC_OK || status == VC_ERR_RANGE ? node_drafter_n_pending(d->drafter) : 0;
    if (status == VC_ERR_RANGE && pending == d->n_sent) { /* the context is full: the verifier ends it */
        stop_drafting(d, &derr);
        return;
    }
    if (status != VC_OK && status != VC_ERR_RANGE) {
        stop_drafting(d, &derr);
        return;
    }
    if (status == VC_ERR_RANGE || pending - d->n_sent >= chunk_length(d))
        send_chunk(d);
}

/* ---- the stream ---- */

static void learn(draft_t *d, const node_wire_verdict_t *v)
{
    if (v->drafted == 0)
        return;
    d->r->outcome.rounds++;
    d->r->outcome.drafted += v->drafted;
    d->r->outcome.accepted += v->accepted;
    d->run = 0.7 * d->run + 0.3 * v->accepted;
    if (v->accepted == v->drafted && v->accepted >= d->chunk)
        d->chunk = VC_MIN(CHUNK_MAX, d->chunk + d->chunk / 2);
    else if (v->accepted < v->drafted)
        d->chunk = VC_MAX(2u, VC_MIN(d->chunk, (uint32_t)d->run + 2));
}

static void take_rows(draft_t *d, const node_wire_verdict_t *v)
{
    uint32_t n = (uint32_t)(v->tail_bytes / d->row_bytes);
    if (n == 0 || v->tail_bytes % d->row_bytes != 0 || d->drafter == NULL)
        return;
    uint16_t *rows = vc_memdup(v->tail_rows, v->tail_bytes); /* aligned, unlike the message */
    vc_err_t err;
    if (rows != NULL && node_drafter_put_rows(d->drafter, v->tail_first, n, rows, &err) == VC_OK)
        d->rows_here = v->tail_first + n; /* otherwise own rows serve as well */
    vc_free(rows);
}

static vc_status_t take_verdict(draft_t *d, const node_wire_verdict_t *v, vc_err_t *err)
{
    uint32_t base = v->n_tokens > 0 ? v->first : d->r->n_tokens;
    vc_status_t status = node_remote_commit(d->r, base, v->tokens, v->n_tokens, v->finish, &v->digest, err);
    d->failed_here = status != VC_OK && status != VC_ERR_PROTOCOL;
    if (status != VC_OK)
        return status;
    learn(d, v);
    if (d->drafter != NULL && v->n_tokens > 0) {
        bool kept = true;
        vc_err_t derr = {0};
        if (node_drafter_commit(d->drafter, v->tokens, v->n_tokens, &kept, &derr) != VC_OK) {
            stop_drafting(d, &derr);
            return VC_OK;
        }
        if (!kept)
            d->epoch++;
        d->n_sent = kept && d->n_sent > v->n_tokens ? d->n_sent - v->n_tokens : 0;
        d->rows_ready = false;
    }
    if (v->tail_bytes > 0)
        take_rows(d, v);
    return VC_OK;
}

static vc_status_t take_reply(draft_t *d, const node_wire_reply_t *reply, vc_err_t *err)
{
    if (reply->kind == NODE_WIRE_VERDICT)
        return take_verdict(d, &reply->verdict, err);
    const node_wire_opened_t *o = &reply->opened;
    d->r->outcome.fast_bytes += o->bytes_fetched;
    d->r->outcome.verify_fetch_us += o->fetch_us;
    d->r->outcome.computed_tokens = o->tokens_computed;
    if (o->note[0] != '\0')
        node_outcome_note(&d->r->outcome, "verify node: %.150s", o->note);
    vc_log_info("draft", "verify node opened blocks=%u bytes=%llu fetch_ms=%u prefill_ms=%u computed=%u",
                o->blocks_fetched, (unsigned long long)o->bytes_fetched, o->fetch_us / 1000, o->prefill_us / 1000,
                o->tokens_computed);
    return VC_OK;
}

/* Once per stream, when the drafter is there: drafts follow on the verifier's rows as far as they come. */
static void ask_rows(draft_t *d)
{
    vc_err_t err;
    if (d->drafter == NULL || d->rows_asked || !d->r->opts->tail_verified)
        return;
    d->rows_asked = true;
    d->send_failed = node_verify_client_ask_rows(d->client, d->rows_here, &err) != VC_OK;
}

/* Until the generation is finished (OK), the stream is lost, or this node was told to stop. */
static vc_status_t run_stream(draft_t *d, vc_err_t *err)
{
    node_remote_t *r = d->r;
    while (r->outcome.finish == NODE_FINISH_NONE) {
        if (node_remote_stopped(r))
            return vc_err_set(err, VC_ERR_CANCELLED, "stopped");
        bool waiting_body = d->job.started;
        if (waiting_body && atomic_load_explicit(&d->job.done, memory_order_acquire))
            make_drafter(d);
        ask_rows(d);
        uint32_t wait_ms = can_draft(d) ? 0 : d->job.started ? POLL_MS : IDLE_POLL_MS;
        node_wire_reply_t reply = {0};
        vc_status_t status = node_verify_client_next(d->client, wait_ms, &reply, NULL, err);
        if (status == VC_OK) {
            status = take_reply(d, &reply, err);
            node_wire_reply_free(&reply);
        } else if (status == VC_ERR_AGAIN) {
            status = VC_OK;
            if (can_draft(d))
                draft_step(d);
        }
        if (status != VC_OK)
            return status;
    }
    return VC_OK;
}

static vc_status_t open_stream(draft_t *d, const char *target, vc_err_t *err)
{
    node_remote_t *r = d->r;
    const node_model_info_t *info = node_engine_info(r->node->engine);
    node_wire_open_t open = {
        .keyspace_id = info->keyspace_id,
        .prompt = r->tokens,
        .n_prompt = r->n_prompt,
        .committed = r->tokens + r->n_prompt,
        .n_committed = r->n_tokens - r->n_prompt,
        .sampling = r->opts->sampling,
        .max_tokens = (uint32_t)r->opts->max_tokens,
        .n_stops = r->opts->n_stops,
        .ignore_end = r->opts->ignore_end,
        .drafter_numerics = NODE_NUMERICS_ID,
        .context = (uint32_t)r->opts->context,
    };
    for (uint32_t i = 0; i < open.n_stops; i++)
        open.stops[i] = (char *)r->opts->stops[i];
    if (r->has_spec)
        memcpy(open.compressor, r->spec.text, sizeof(open.compressor));
    node_verify_client_opts_t copts;
    node_verify_client_opts_default(&copts);
    copts.target = target;
    return node_verify_client_open(&copts, &open, &d->client, err);
}

/* Errors of this node or of the request itself: another verifier would not help. */
static bool is_fatal(const draft_t *d, vc_status_t status)
{
    /* CANCELLED may also be the word of a verify node that stops: what counts is whether this node was told to. */
    return d->failed_here || node_remote_stopped(d->r) || status == VC_ERR_INVALID || status == VC_ERR_MISMATCH ||
           status == VC_ERR_RANGE || status == VC_ERR_PERM || status == VC_ERR_UNSUPPORTED;
}

static void close_stream(draft_t *d)
{
    if (d->client == NULL)
        return;
    d->r->outcome.slow_bytes += node_verify_client_bytes(d->client);
    node_verify_client_close(d->client);
    d->client = NULL;
    d->rows_asked = d->send_failed = false;
    d->n_sent = 0;
    d->epoch++;
    vc_err_t err = {0};
    if (d->drafter != NULL && node_drafter_drop(d->drafter, &err) != VC_OK)
        stop_drafting(d, &err);
}

static void note_loss(draft_t *d, uint32_t target, vc_status_t status, const vc_err_t *err)
{
    const char *name = d->targets[target];
    const uint32_t committed = d->r->n_tokens - d->r->n_prompt;
    const bool said_no = status == VC_ERR_BUSY || status == VC_ERR_NOSPACE;
    d->refused[target] = status == VC_ERR_NOSPACE;
    d->r->outcome.recoveries++;
    node_outcome_note(&d->r->outcome, "verify node %.60s %s after %u tokens: %.100s", name,
                      said_no ? "refused" : "lost", committed, err->msg);
    vc_log_warn("draft", "verify node %s target=%s committed=%u reason=\"%s\"", said_no ? "refused" : "lost", name,
                committed, err->msg);
}

static vc_status_t run_verifiers(draft_t *d, vc_err_t *err)
{
    vc_status_t status = VC_ERR_UNREACHABLE;
    for (uint32_t i = 0; i < ROUNDS_OF_TRIES * d->n_targets; i++) {
        const uint32_t target = i % d->n_targets;
        if (d->refused[target])
            continue;
        status = open_stream(d, d->targets[target], err);
        if (i == 0)
            start_body(d);
        if (status == VC_OK)
            status = run_stream(d, err);
        close_stream(d);
        if (status == VC_OK || is_fatal(d, status))
            return status;
        note_loss(d, target, status, err);
    }
    return status;
}

static vc_status_t split_targets(draft_t *d, vc_err_t *err)
{
    d->names = vc_strdup(d->r->opts->verifier);
    if (d->names == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the list of verify nodes");
    char *save = NULL;
    for (char *name = strtok_r(d->names, ",", &save); name != NULL; name = strtok_r(NULL, ",", &save)) {
        if (d->n_targets == VERIFIERS_MAX)
            return vc_err_set(err, VC_ERR_INVALID, "at most %u verify nodes", VERIFIERS_MAX);
        d->targets[d->n_targets++] = name;
    }
    if (d->n_targets == 0)
        return vc_err_set(err, VC_ERR_INVALID, "--verifier names no verify node");
    return VC_OK;
}

vc_status_t node_remote_run_draft(node_remote_t *r, vc_err_t *err)
{
    node_kv_dims_t dims;
    node_engine_kv_dims(r->node->engine, &dims);
    draft_t d = {.r = r, .chunk = CHUNK_FIRST, .run = CHUNK_FIRST};
    d.row_bytes = (uint64_t)dims.n_layer * 2 * dims.n_kv_head * dims.head_dim * 2;
    d.drafter_off = r->cache == NULL || !r->has_spec || r->opts->draft_length == 0;
    vc_status_t status = split_targets(&d, err);
    if (status == VC_OK)
        status = node_generate_source(r->opts, &d.source, err);
    if (status == VC_OK)
        status = run_verifiers(&d, err);
    d.is_over = status == VC_OK || is_fatal(&d, status);
    if (d.is_over && d.job.started)
        node_cache_give_up(r->cache); /* a copy that nobody will use must not hold up the end */
    join_body(&d);
    destroy_drafter(&d);
    node_source_destroy(d.source);
    vc_free(d.names);
    if (d.is_over)
        return status;
    node_outcome_note(&r->outcome, "no verify node is left: going on with full KV here");
    vc_log_warn("draft", "no verify node left, going on here committed=%u", r->n_tokens - r->n_prompt);
    return node_remote_run_local(r, err);
}
