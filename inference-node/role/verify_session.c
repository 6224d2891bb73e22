/*
 * One Verify stream. State machine: Open -> fetch -> prefill -> rounds -> store.
 *
 * A round takes the drafts that are there. With none it waits for some while that pays (role/patience.h), else it
 * decodes one token without a draft. So a slow or silent drafter does not hold a request up, and one that is on its way
 * is waited for.
 */
#include "role/verify_session.h"

#include <string.h>

#include "kv/slow.h"
#include "role/patience.h"
#include "role/store_chain.h"
#include "role/verify_kv.h"
#include "role/verify_queue.h"
#include "speculate/verifier.h"
#include "vc/log.h"
#include "vc/mem.h"

#define OPEN_TIMEOUT_MS 10000u
#define PREFILL_ROWS 128u /* the engine is free for other streams between passes */
#define ROWS_MESSAGE_BYTES (3u << 20)
#define SIGN_OF_LIFE_US 1000000u
#define WAIT_MAX_US 2000000u

typedef struct stream {
    node_verify_service_t *service;
    vc_rpc_call_t *call;
    node_wire_open_t *open;
    node_verifier_t *verifier;
    node_cache_t *cache;
    node_spec_t spec;
    bool has_spec;
    node_verify_queue_t queue;
    float *logits;    /* [max_draft + 1][n_vocab] */
    node_row_t *rows; /* [PREFILL_ROWS or max_draft + 1] */
    uint32_t rows_cap;
    node_verify_kv_t kv;
    double step_us; /* a pass without drafts, decayed mean */
    node_patience_t patience;
    bool wants_rows;    /* the drafter asked for rows of verified tokens */
    uint32_t rows_sent; /* those before this position are with it */
    bool half_closed;
    vc_err_t *err; /* the sentence of what ends the stream */
} stream_t;

static vc_status_t check_open(const node_model_info_t *info, const node_wire_open_t *open, vc_err_t *err)
{
    if (memcmp(open->keyspace_id.b, info->keyspace_id.b, VC_DIGEST_BYTES) != 0)
        return vc_err_set(err, VC_ERR_MISMATCH,
                          "the draft node runs another model, tokenizer or KV layout than this verify node");
    if (open->max_tokens == 0 || open->n_committed > open->max_tokens)
        return vc_err_set(err, VC_ERR_INVALID, "a budget of %u tokens with %u committed", open->max_tokens,
                          open->n_committed);
    if ((uint64_t)open->n_prompt >= info->context)
        return vc_err_set(err, VC_ERR_RANGE, "the prompt has %u tokens, the model's context %u", open->n_prompt,
                          info->context);
    for (uint32_t i = 0; i < open->n_prompt + open->n_committed; i++) {
        uint32_t id = i < open->n_prompt ? open->prompt[i] : open->committed[i - open->n_prompt];
        if (id >= info->n_vocab)
            return vc_err_set(err, VC_ERR_INVALID, "token id %u is not in the vocabulary of %u", id, info->n_vocab);
    }
    return node_sampling_check(&open->sampling, err);
}

/* Positions that the request may come to hold. */
static uint64_t most_tokens(const stream_t *s, uint32_t drafts)
{
    uint64_t context = node_engine_info(s->service->node->engine)->context;
    return VC_MIN((uint64_t)s->open->n_prompt + s->open->max_tokens + drafts, context);
}

static vc_status_t make_verifier(stream_t *s, vc_err_t *err)
{
    node_t *node = s->service->node;
    uint32_t ends[16];
    node_verifier_opts_t opts;
    node_verifier_opts_default(&opts);
    opts.engine = node->engine;
    opts.tok = node->tok;
    opts.sampling = s->open->sampling;
    opts.end_tokens = ends;
    opts.n_end_tokens = s->open->ignore_end ? 0 : node_end_tokens(node->tok, ends, VC_ARRAY_LEN(ends));
    opts.stops = (const char *const *)s->open->stops;
    opts.n_stops = s->open->n_stops;
    opts.max_tokens = s->open->max_tokens;
    opts.context = s->open->context;
    opts.max_draft = s->service->max_draft;
    opts.digest = true;
    vc_status_t status = node_verifier_create(&opts, s->open->prompt, s->open->n_prompt, &s->verifier, err);
    return status == VC_OK
               ? node_verify_kv_attach(s->service, s->verifier, most_tokens(s, s->service->max_draft), s->rows_cap, err)
               : status;
}

/* Pages go straight from the fetch into the verifier; whatever is missing is computed. */
static vc_status_t load_prefix(stream_t *s, node_wire_opened_t *opened, vc_err_t *err)
{
    if (s->service->cache_opts == NULL)
        return VC_OK;
    const node_model_info_t *info = node_engine_info(s->service->node->engine);
    vc_status_t status = node_cache_open(s->service->cache_opts, info, &s->cache, err);
    if (status != VC_OK)
        return status;
    node_kv_dims_t dims;
    node_kv_t kv;
    node_engine_kv_dims(s->service->node->engine, &dims);
    status = node_kv_init(&kv, &dims, NULL);
    if (status != VC_OK)
        return vc_err_set(err, status, "no memory for fetched KV");
    node_cache_result_t got;
    node_cache_fetch_full(s->cache, s->open->prompt, s->open->n_prompt, &kv, &got);
    for (uint32_t b = 0; status == VC_OK && b < got.blocks; b++)
        status = node_verifier_load_page(s->verifier, node_page_get(node_kv_page_at(&kv, b)), err);
    node_kv_fini(&kv);
    opened->blocks_fetched = got.blocks;
    opened->bytes_fetched = got.bytes;
    opened->path = got.path;
    opened->fetch_us = (uint32_t)VC_MIN(got.us, UINT32_MAX);
    memcpy(opened->note, got.note, sizeof(opened->note));
    if (got.status != VC_OK)
        vc_log_warn("verify", "full KV came short found=%u usable=%u reason=\"%s\"", got.blocks_found, got.blocks,
                    got.note);
    return status;
}

/* One pass: plan, run, judge. *verdict_p is empty in the middle of a prompt. */
static vc_status_t run_pass(stream_t *s, const uint32_t *drafts, uint32_t n_drafts, node_verdict_t *verdict_p,
                            vc_err_t *err)
{
    uint32_t n_rows = 0, n_logits = 0;
    *verdict_p = (node_verdict_t){0};
    vc_status_t status =
        node_verifier_plan(s->verifier, drafts, n_drafts, s->rows, s->rows_cap, &n_rows, &n_logits, err);
    if (status != VC_OK)
        return status;
    node_pass_begin(s->service->node);
    status = node_forward(s->service->node->engine, s->rows, n_rows, s->logits, NULL, err);
    node_pass_end(s->service->node);
    if (status != VC_OK) {
        (void)node_verifier_cancel(s->verifier, NULL);
        return node_verify_kv_status(node_verifier_kv(s->verifier), status);
    }
    return node_verifier_judge(s->verifier, s->logits, verdict_p, err);
}

static vc_status_t send_bytes(stream_t *s, vc_bytes_t *bytes)
{
    const vc_rpc_msg_t msg = {.head = bytes->data, .head_len = bytes->len};
    vc_status_t status = vc_rpc_call_send(s->call, &msg);
    vc_bytes_free(bytes);
    return status;
}

static vc_status_t send_verdict_msg(stream_t *s, const node_wire_verdict_t *wire)
{
    vc_bytes_t bytes;
    vc_status_t status = node_wire_pack_verdict(wire, &bytes);
    return status == VC_OK ? send_bytes(s, &bytes) : status;
}

/* Rows of verified positions that the drafter has not got: after the verdict, so that no token waits for them. */
static vc_status_t send_tail_rows(stream_t *s)
{
    node_kv_t *kv = node_verifier_kv(s->verifier);
    const node_kv_dims_t *d = &kv->dims;
    size_t row_bytes = (size_t)d->n_layer * 2 * d->n_kv_head * d->head_dim * 2;
    uint32_t per_message = (uint32_t)VC_MAX(1u, ROWS_MESSAGE_BYTES / row_bytes);
    vc_status_t status = VC_OK;
    while (status == VC_OK && s->wants_rows && s->rows_sent < kv->n_tokens) {
        uint32_t n = VC_MIN(per_message, kv->n_tokens - s->rows_sent);
        uint16_t *rows = vc_alloc(n * row_bytes);
        if (rows == NULL)
            return VC_ERR_NOMEM;
        node_page_t *page = NULL;
        for (uint32_t i = 0, at = s->rows_sent; status == VC_OK && i < n; i++, at++) {
            status = node_verify_kv_page(&s->kv, kv, at / NODE_TILE, &page, s->err);
            if (status == VC_OK)
                node_page_store_row(page, at % NODE_TILE, rows + i * (row_bytes / 2));
        }
        node_wire_verdict_t *wire = status == VC_OK ? vc_calloc(1, sizeof(*wire)) : NULL;
        if (wire != NULL) {
            node_verifier_tokens(s->verifier, &wire->first);
            node_verifier_digest(s->verifier, &wire->digest);
            wire->epoch = s->queue.epoch;
            wire->tail_first = s->rows_sent;
            wire->tail_rows = (const uint8_t *)rows;
            wire->tail_bytes = n * row_bytes;
            status = send_verdict_msg(s, wire);
        } else if (status == VC_OK) {
            status = VC_ERR_NOMEM;
        }
        vc_free(wire);
        vc_free(rows);
        s->rows_sent += n;
    }
    return status;
}

static vc_status_t send_verdict(stream_t *s, const node_verdict_t *verdict)
{
    if (verdict->n_tokens > VC_ARRAY_LEN(((node_wire_verdict_t *)0)->tokens))
        return VC_ERR_INTERNAL;
    node_wire_verdict_t *wire = vc_calloc(1, sizeof(*wire));
    if (wire == NULL)
        return VC_ERR_NOMEM;
    wire->first = verdict->base;
    wire->n_tokens = verdict->n_tokens;
    if (verdict->n_tokens > 0)
        memcpy(wire->tokens, verdict->tokens, verdict->n_tokens * sizeof(wire->tokens[0]));
    wire->accepted = verdict->n_accepted;
    wire->drafted = verdict->n_drafts;
    wire->epoch = s->queue.epoch;
    wire->finish = verdict->finish;
    node_verifier_digest(s->verifier, &wire->digest);
    vc_status_t status = send_verdict_msg(s, wire);
    vc_free(wire);
    node_verify_service_t *service = s->service;
    atomic_fetch_add_explicit(&service->n_committed, verdict->n_tokens, memory_order_relaxed);
    atomic_fetch_add_explicit(&service->n_drafted, verdict->n_drafts, memory_order_relaxed);
    atomic_fetch_add_explicit(&service->n_accepted, verdict->n_accepted, memory_order_relaxed);
    if (status == VC_OK && verdict->finish == NODE_FINISH_NONE && verdict->n_tokens > 0)
        status = send_tail_rows(s);
    return status;
}

static vc_status_t take_draft(stream_t *s, const node_wire_draft_t *draft, vc_err_t *err)
{
    uint32_t n = 0, had = s->queue.n;
    const uint32_t *committed = node_verifier_tokens(s->verifier, &n);
    vc_status_t status = node_verify_queue_push(&s->queue, draft, committed, n, s->open->n_prompt, err);
    if (status == VC_OK)
        node_patience_draft(&s->patience, draft->n_tokens, s->queue.n > had ? s->queue.n - had : 0);
    return status;
}

static vc_status_t take_tail(stream_t *s, uint32_t first)
{
    s->wants_rows = true;
    s->rows_sent = first; /* beyond what is verified: rows from there on, once they are */
    return send_tail_rows(s);
}

/* Takes one message; AGAIN when none came in time. */
static vc_status_t receive_message(stream_t *s, uint32_t timeout_ms, vc_err_t *err)
{
    if (s->half_closed)
        return VC_ERR_CANCELLED;
    vc_bytes_t bytes;
    vc_status_t status = vc_rpc_call_recv(s->call, timeout_ms, &bytes);
    if (status == VC_ERR_NOT_FOUND) {
        s->half_closed = true;
        return VC_ERR_CANCELLED;
    }
    if (status != VC_OK)
        return status;
    node_wire_request_t request;
    status = node_wire_unpack_request(bytes.data, bytes.len, &request, err);
    vc_bytes_free(&bytes);
    if (status == VC_OK && request.kind == NODE_WIRE_OPEN)
        status = vc_err_set(err, VC_ERR_PROTOCOL, "a second Open on one stream");
    else if (status == VC_OK && request.kind == NODE_WIRE_TAIL)
        status = take_tail(s, request.tail_first);
    else if (status == VC_OK)
        status = take_draft(s, &request.draft, err);
    node_wire_request_free(&request);
    return status;
}

/* Drafts for the next round, or none when waiting longer does not pay. */
static vc_status_t collect_drafts(stream_t *s, vc_err_t *err)
{
    if (node_verifier_max_useful(s->verifier) == 0) /* the last token: no draft could be committed beside it */
        return VC_OK;
    double patience_us = s->step_us * node_patience_steps(&s->patience);
    uint64_t deadline = vc_clock_now_us(s->service->clock) + (uint64_t)VC_MIN(patience_us, (double)WAIT_MAX_US);
    while (s->queue.n < s->service->max_draft) {
        uint64_t now = vc_clock_now_us(s->service->clock);
        bool wait = s->queue.n == 0 && now < deadline;
        vc_status_t status = receive_message(s, wait ? (uint32_t)((deadline - now) / 1000) + 1 : VC_RPC_NO_WAIT, err);
        if (status == VC_ERR_AGAIN && !wait)
            return VC_OK;
        if (status != VC_OK && status != VC_ERR_AGAIN)
            return status;
    }
    return VC_OK;
}

static void learn(stream_t *s, const node_verdict_t *verdict, uint32_t n_drafts, double wait_us, double pass_us)
{
    if (n_drafts == 0) {
        s->step_us = s->step_us == 0 ? pass_us : 0.8 * s->step_us + 0.2 * pass_us;
        node_patience_plain(&s->patience);
        return;
    }
    /* While other streams use the engine, waiting costs nothing. */
    bool alone = atomic_load_explicit(&s->service->n_running, memory_order_relaxed) <= 1;
    node_patience_round(&s->patience, verdict->n_tokens, pass_us + (alone ? wait_us : 0), s->step_us);
}

static vc_status_t run_rounds(stream_t *s, vc_err_t *err)
{
    vc_status_t status = VC_OK;
    atomic_fetch_add_explicit(&s->service->n_running, 1, memory_order_relaxed);
    while (status == VC_OK && node_verifier_finish(s->verifier) == NODE_FINISH_NONE) {
        uint64_t start = vc_clock_now_us(s->service->clock);
        status = collect_drafts(s, err);
        if (status != VC_OK)
            break;
        uint32_t drafts[NODE_WIRE_DRAFTS_MAX];
        uint32_t n = VC_MIN(s->queue.n, VC_MIN(s->service->max_draft, VC_ARRAY_LEN(drafts)));
        memcpy(drafts, s->queue.tokens, n * sizeof(drafts[0]));
        uint64_t ready = vc_clock_now_us(s->service->clock);
        node_verdict_t verdict;
        status = run_pass(s, drafts, n, &verdict, err);
        if (status != VC_OK)
            break;
        learn(s, &verdict, n, (double)(ready - start), (double)(vc_clock_now_us(s->service->clock) - ready));
        node_verify_queue_commit(&s->queue, verdict.tokens, verdict.n_tokens);
        status = send_verdict(s, &verdict);
    }
    atomic_fetch_sub_explicit(&s->service->n_running, 1, memory_order_relaxed);
    return status;
}

/* An empty verdict now and then while the prompt is computed: the drafter's idle time starts again. */
static vc_status_t say_alive(stream_t *s, uint64_t *said_us)
{
    uint64_t now = vc_clock_now_us(s->service->clock);
    if (now - *said_us <= SIGN_OF_LIFE_US)
        return VC_OK;
    *said_us = now;
    const node_verdict_t nothing = {0};
    return send_verdict(s, &nothing);
}

/* The committed tokens as drafts, round by round: they must all be accepted. What the last round commits behind them is
 * new. */
static vc_status_t repeat_committed(stream_t *s, uint64_t *said_p, node_verdict_t *verdict_p, vc_err_t *err)
{
    const node_wire_open_t *open = s->open;
    uint32_t done = 0;
    vc_status_t status = VC_OK;
    while (status == VC_OK && done < open->n_committed) {
        if (node_verifier_finish(s->verifier) != NODE_FINISH_NONE)
            return vc_err_set(err, VC_ERR_MISMATCH, "this model ends after %u of %u committed tokens", done,
                              open->n_committed);
        bool prompt = node_verifier_is_prefilling(s->verifier);
        uint32_t n = prompt ? 0 : VC_MIN(open->n_committed - done, s->service->max_draft);
        status = run_pass(s, open->committed + done, n, verdict_p, err);
        uint32_t same = VC_MIN(verdict_p->n_tokens, open->n_committed - done);
        if (same == 0)
            continue; /* in the middle of the prompt */
        if (status == VC_OK && memcmp(verdict_p->tokens, open->committed + done, same * sizeof(uint32_t)) != 0)
            status =
                vc_err_set(err, VC_ERR_MISMATCH, "this model would not have committed the tokens of the answer so far");
        done += same;
        if (status == VC_OK && done < open->n_committed)
            status = say_alive(s, said_p);
        verdict_p->base += same;
        verdict_p->tokens += same;
        verdict_p->n_tokens -= same;
    }
    verdict_p->n_drafts = verdict_p->n_accepted = 0; /* they were no drafts of this stream */
    return status;
}

/* After a loss: the prompt's rows but the last in passes as short as ever, then the tokens committed before it. */
static vc_status_t resume_prompt(stream_t *s, node_verdict_t *verdict_p, vc_err_t *err)
{
    node_t *node = s->service->node;
    const node_wire_open_t *open = s->open;
    node_kv_t *kv = node_verifier_kv(s->verifier);
    vc_status_t status = VC_OK;
    uint64_t said = vc_clock_now_us(s->service->clock);
    while (status == VC_OK && kv->n_tokens + 1 < open->n_prompt) {
        if (vc_rpc_call_is_cancelled(s->call))
            return VC_ERR_CANCELLED;
        uint32_t n = VC_MIN(open->n_prompt - 1 - kv->n_tokens, PREFILL_ROWS);
        node_pass_begin(node);
        status = node_prefill(node->engine, kv, open->prompt + kv->n_tokens, n, NULL, NULL, err);
        node_pass_end(node);
        status = node_verify_kv_status(kv, status);
        if (status == VC_OK)
            status = say_alive(s, &said);
    }
    if (status != VC_OK)
        return status;
    return repeat_committed(s, &said, verdict_p, err);
}

static vc_status_t run_prompt(stream_t *s, node_verdict_t *verdict_p, vc_err_t *err)
{
    if (s->open->n_committed > 0)
        return resume_prompt(s, verdict_p, err);
    vc_status_t status = VC_OK;
    uint64_t said = vc_clock_now_us(s->service->clock);
    while (status == VC_OK && node_verifier_is_prefilling(s->verifier)) {
        if (vc_rpc_call_is_cancelled(s->call))
            return VC_ERR_CANCELLED;
        status = run_pass(s, NULL, 0, verdict_p, err);
        if (status == VC_OK && node_verifier_is_prefilling(s->verifier))
            status = say_alive(s, &said);
    }
    return status;
}

static vc_status_t open_stream(stream_t *s, vc_err_t *err)
{
    node_wire_opened_t *opened = vc_calloc(1, sizeof(*opened));
    if (opened == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the stream");
    vc_status_t status = load_prefix(s, opened, err);
    uint64_t start = vc_clock_now_us(s->service->clock);
    node_verdict_t verdict = {0};
    if (status == VC_OK)
        status = run_prompt(s, &verdict, err);
    uint64_t us = vc_clock_now_us(s->service->clock) - start;
    opened->prefill_us = (uint32_t)VC_MIN(us, UINT32_MAX);
    opened->tokens_computed = s->open->n_prompt + s->open->n_committed - opened->blocks_fetched * NODE_TILE;
    vc_bytes_t bytes;
    if (status == VC_OK)
        status = node_wire_pack_opened(opened, &bytes);
    if (status == VC_OK)
        status = send_bytes(s, &bytes);
    vc_log_info("verify",
                "opened prompt=%u resumed=%u blocks_fetched=%u bytes=%llu fetch_ms=%u prefill_ms=%u blocks_in_file=%u "
                "drafter_numerics=%u",
                s->open->n_prompt, s->open->n_committed, opened->blocks_fetched,
                (unsigned long long)opened->bytes_fetched, opened->fetch_us / 1000, opened->prefill_us / 1000,
                node_verify_kv_spilled(node_verifier_kv(s->verifier)), s->open->drafter_numerics);
    vc_free(opened);
    if (status == VC_OK)
        status = send_verdict(s, &verdict);
    return status;
}

/* The answer has gone out: storing happens behind it, and a failure is only logged. */
static void store_new_blocks(stream_t *s)
{
    if (s->cache == NULL || !s->service->store_at_end)
        return;
    uint32_t n = 0;
    const uint32_t *tokens = node_verifier_tokens(s->verifier, &n);
    node_kv_t view;
    node_cache_stored_t stored = {0};
    vc_err_t err = {0};
    vc_status_t status = node_slow_view(node_verifier_kv(s->verifier), &view, &err);
    if (status == VC_OK) {
        status = node_chain_store(s->service->node, s->cache, &view, tokens, VC_MIN(n, view.n_tokens), &s->spec,
                                  s->has_spec ? 1 : 0, NODE_STORE_ALL, &stored, &err);
        node_kv_fini(&view);
    }
    if (status != VC_OK)
        vc_log_warn("verify", "new blocks not stored reason=\"%s\"", err.msg);
    else if (stored.n_stored > 0)
        vc_log_info("verify", "stored objects=%u bytes=%llu", stored.n_stored, (unsigned long long)stored.bytes);
}

/* A blob that is not here costs the compressed copy of new blocks, not the verdicts. */
static vc_status_t take_spec(stream_t *s, vc_err_t *err)
{
    if (s->open->compressor[0] == '\0')
        return VC_OK;
    vc_status_t status = node_spec_parse(s->open->compressor, &s->spec, err);
    if (status != VC_OK)
        return status;
    vc_err_t why = {0};
    s->has_spec = node_bind_spec(s->service->node, &s->spec, &why) == VC_OK;
    if (!s->has_spec)
        vc_log_warn("verify", "no compressed copies of new blocks reason=\"%s\"", why.msg);
    return VC_OK;
}

static vc_status_t serve_open(stream_t *s, vc_err_t *err)
{
    const node_model_info_t *info = node_engine_info(s->service->node->engine);
    s->rows_cap = VC_MAX(PREFILL_ROWS, s->service->max_draft + 1);
    s->rows = vc_calloc(s->rows_cap, sizeof(*s->rows));
    s->logits = vc_calloc((size_t)s->service->max_draft + 1, sizeof(float) * info->n_vocab);
    if (s->rows == NULL || s->logits == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the stream");
    vc_status_t status = check_open(info, s->open, err);
    if (status == VC_OK)
        status = take_spec(s, err);
    if (status == VC_OK)
        status = node_verify_kv_reserve(s->service, most_tokens(s, 0), &s->kv, err);
    if (status == VC_OK)
        status = make_verifier(s, err);
    if (status == VC_OK)
        status = open_stream(s, err);
    if (status == VC_OK)
        status = run_rounds(s, err);
    if (s->verifier != NULL && node_verifier_finish(s->verifier) != NODE_FINISH_NONE)
        store_new_blocks(s);
    return status;
}

vc_status_t node_verify_stream(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    stream_t s = {.service = arg, .call = call, .err = err};
    node_wire_request_t request = {0};
    vc_bytes_t bytes;
    atomic_fetch_add_explicit(&s.service->n_streams, 1, memory_order_relaxed);
    vc_status_t status = vc_rpc_call_recv(call, OPEN_TIMEOUT_MS, &bytes);
    if (status != VC_OK)
        return vc_err_set(err, status, "no Open message came");
    status = node_wire_unpack_request(bytes.data, bytes.len, &request, err);
    vc_bytes_free(&bytes);
    node_verify_queue_init(&s.queue);
    s.open = &request.open;
    if (status == VC_OK && request.kind != NODE_WIRE_OPEN)
        status = vc_err_set(err, VC_ERR_PROTOCOL, "the first message is not an Open");
    if (status == VC_OK)
        status = serve_open(&s, err);
    if (status == VC_ERR_CANCELLED) /* the draft node left: nothing to report to */
        vc_log_info("verify", "stream ended by the draft node peer=%s", vc_rpc_call_peer(call));
    else if (status != VC_OK)
        vc_log_warn("verify", "stream failed status=%s reason=\"%s\"", vc_status_name(status),
                    err != NULL ? err->msg : "");
    node_verifier_destroy(s.verifier);
    node_cache_close(s.cache);
    node_verify_kv_release(s.service, &s.kv);
    vc_free(s.rows);
    vc_free(s.logits);
    node_wire_request_free(&request);
    return status;
}
