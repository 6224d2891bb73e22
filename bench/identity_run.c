/*
 * One request, plain or in the way that a case says. Plain decoding: full KV in memory, a pass for the prompt as the
 * engine takes it, then one row a pass, no drafter anywhere.
 */
#include <string.h>

#include "identity_parts.h"
#include "role/local_body.h"

enum { MAX_DRAFT = 64 };

static vc_err_t err;
#define OK(call) BENCH_OK(call, err)
#define TRY(call)                     \
    do {                              \
        vc_status_t try_st_ = (call); \
        if (try_st_ != VC_OK)         \
            return try_st_;           \
    } while (0)

/* ---- parts of a run ---- */

void identity_verifier_opts(const identity_model_t *m, const identity_request_t *q, node_engine_t *engine,
                            node_verifier_opts_t *o)
{
    node_verifier_opts_default(o);
    o->engine = engine;
    o->tok = m->tok;
    o->sampling = q->sampling;
    o->end_tokens = q->ends;
    o->n_end_tokens = q->n_ends;
    o->stops = q->stops;
    o->n_stops = q->n_stops;
    o->max_tokens = q->max_tokens;
    o->context = q->context ? q->context : IDENTITY_CONTEXT;
    o->max_draft = MAX_DRAFT;
}

static vc_status_t make_verifier(identity_model_t *m, const identity_request_t *q, node_engine_t *engine,
                                 node_verifier_t **v_p, vc_err_t *error)
{
    node_verifier_opts_t o;
    identity_verifier_opts(m, q, engine, &o);
    return node_verifier_create(&o, q->prompt, q->n_prompt, v_p, error);
}

/* Blocks of the prompt by way of full records: what a cache server would hand out. */
static vc_status_t load_hit(const identity_model_t *m, const identity_request_t *q, uint32_t n_blocks,
                            node_verifier_t *plain, node_verifier_t *v, vc_err_t *error)
{
    size_t cap = vc_kvrec_full_bytes(&m->info.keyspace.shape), bytes;
    uint8_t *record = vc_alloc_aligned(4096, cap);
    vc_status_t st = record ? VC_OK : vc_err_set(error, VC_ERR_NOMEM, "no memory for a record");
    for (uint32_t b = 0; st == VC_OK && b < n_blocks; b++) {
        node_page_t *page;
        memset(record, 0xa5, cap);
        st = node_full_record(&m->info, node_verifier_kv(plain), q->prompt, b, record, cap, &bytes, error);
        if (st == VC_OK)
            st = node_page_from_record(&m->info, record, bytes, &page, error);
        if (st == VC_OK)
            st = node_verifier_load_page(v, page, error);
    }
    vc_free(record);
    return st;
}

static vc_status_t make_body(identity_model_t *m, const identity_request_t *q, const identity_run_t *v,
                             node_engine_t *engine, node_verifier_t *verifier, node_body_t **body_p, vc_err_t *error)
{
    node_spec_t spec;
    node_kv_t view;
    const node_replay_t replay = node_replay_of(&m->replay_ids, engine);
    TRY(identity_spec(m, v->spec, &spec, error));
    TRY(node_slow_view(node_verifier_kv(verifier), &view, error));
    vc_status_t st = node_local_body_replay(&replay, &spec, &view, q->prompt, v->body_blocks, body_p, error);
    node_kv_fini(&view);
    return st;
}

/* ---- rounds ---- */

static vc_status_t with_drafter(identity_model_t *m, const identity_request_t *q, const identity_run_t *v,
                                node_engine_t *engine, node_verifier_t *verifier, const identity_result_t *base,
                                vc_err_t *error)
{
    identity_rng_t r = identity_rng(q->seed, q->index, 2000 + v->index);
    node_body_t *body = NULL;
    node_session_t *s = NULL;
    node_session_opts_t so;
    node_drafter_opts_t d;
    node_verdict_t verdict = {0};
    node_session_opts_default(&so);
    node_drafter_opts_default(&d);
    if (v->spec)
        TRY(make_body(m, q, v, engine, verifier, &body, error));
    so.draft_length = v->x;
    so.costs = v->costs ? identity_costs(m) : NULL;
    so.name = v->spec;
    d.engine = engine;
    d.body = body;
    d.sampling = q->sampling;
    d.context = q->context ? q->context : IDENTITY_CONTEXT;
    d.max_draft = MAX_DRAFT;
    d.n_common = v->n_common;
    d.source = identity_make_source(m, q, v, base);
    vc_status_t st = node_session_create(&so, &d, verifier, &s, error);
    while (st == VC_OK && verdict.finish == NODE_FINISH_NONE) {
        st = v->tier == IDENTITY_POOL ? identity_poke_tier(&r, node_verifier_kv(verifier)) : VC_OK;
        if (st == VC_OK)
            st = node_session_round(s, &verdict, error);
    }
    node_session_destroy(s);
    node_source_destroy(d.source);
    node_body_put(body);
    return st;
}

/* A plan that comes to nothing: given back before its pass, or after one that is then held to have failed. */
static vc_status_t abandon(node_engine_t *engine, node_verifier_t *verifier, const uint32_t *drafts, uint32_t n,
                           bool run_pass, vc_err_t *error)
{
    node_row_t rows[MAX_DRAFT + 1];
    uint32_t n_rows, n_logits;
    vc_status_t st = VC_OK;
    TRY(node_verifier_plan(verifier, drafts, n, rows, MAX_DRAFT + 1, &n_rows, &n_logits, error));
    if (run_pass) {
        float *logits = vc_alloc_aligned(64, (size_t)n_logits * node_engine_info(engine)->n_vocab * sizeof *logits);
        st = logits ? node_forward(engine, rows, n_rows, logits, NULL, error)
                    : vc_err_set(error, VC_ERR_NOMEM, "no memory for logits");
        vc_free(logits);
    }
    vc_status_t cancelled = node_verifier_cancel(verifier, error);
    return st != VC_OK ? st : cancelled;
}

/* Drafts out of nowhere: right ones, wrong ones, more than are useful, none. */
static vc_status_t with_guesses(const identity_model_t *m, const identity_request_t *q, const identity_run_t *v,
                                node_engine_t *engine, node_verifier_t *verifier, const identity_result_t *base,
                                vc_err_t *error)
{
    identity_rng_t r = identity_rng(q->seed, q->index, 1000 + v->index);
    node_verdict_t verdict = {0};
    while (verdict.finish == NODE_FINISH_NONE) {
        uint32_t drafts[MAX_DRAFT], n = identity_below(&r, v->x + 1), at;
        node_verifier_tokens(verifier, &at);
        at -= q->n_prompt;
        for (uint32_t i = 0; i < n; i++) {
            bool right = at + i < base->n && identity_chance(&r, v->right);
            drafts[i] = right ? base->tokens[at + i] : identity_below(&r, m->info.n_vocab);
        }
        if (v->tier == IDENTITY_POOL)
            TRY(identity_poke_tier(&r, node_verifier_kv(verifier)));
        if (identity_chance(&r, 80))
            TRY(abandon(engine, verifier, drafts, n, identity_chance(&r, 500), error));
        TRY(node_verifier_step(verifier, drafts, n, &verdict, error));
    }
    return VC_OK;
}

/* ---- results ---- */

vc_status_t identity_collect(node_verifier_t *v, identity_result_t *out, vc_err_t *error)
{
    uint32_t n, n_prompt = node_verifier_n_prompt(v);
    const uint32_t *tokens = node_verifier_tokens(v, &n);
    node_kv_t *kv = node_verifier_kv(v), view;
    node_verifier_stats_t stats;
    if (n - n_prompt > IDENTITY_TOKENS || kv->n_tokens != n - 1)
        return vc_err_set(error, VC_ERR_INTERNAL, "%u tokens are committed, KV holds %u", n, kv->n_tokens);
    out->n = n - n_prompt;
    memcpy(out->tokens, tokens + n_prompt, out->n * sizeof *tokens);
    out->finish = node_verifier_finish(v);
    node_verifier_digest(v, &out->logits);
    node_verifier_stats(v, &stats);
    out->proposed = stats.n_proposed;
    out->accepted = stats.n_accepted;
    if (kv->slow)
        out->spilled = node_slow_n_spilled(kv->slow);
    TRY(node_slow_view(kv, &view, error));
    node_kv_digest(&view, view.n_tokens, &out->kv);
    node_kv_fini(&view);
    return VC_OK;
}

void identity_plain(identity_model_t *m, const identity_request_t *q, node_verifier_t **v_p, identity_result_t *out)
{
    node_verdict_t verdict;
    memset(out, 0, sizeof *out);
    OK(make_verifier(m, q, identity_plain_engine(m), v_p, &err));
    OK(node_verifier_start(*v_p, 0, &verdict, &err));
    while (verdict.finish == NODE_FINISH_NONE)
        OK(node_verifier_step(*v_p, NULL, 0, &verdict, &err));
    OK(identity_collect(*v_p, out, &err));
}

static vc_status_t run_in(identity_model_t *m, const identity_request_t *q, const identity_run_t *v,
                          node_verifier_t *plain, const identity_result_t *base, node_engine_t *engine,
                          node_verifier_t *verifier, vc_err_t *error)
{
    node_verdict_t verdict;
    uint32_t n_resume = (uint32_t)((uint64_t)base->n * v->n_resume / 100);
    TRY(load_hit(m, q, v->hit_blocks, plain, verifier, error));
    if (n_resume)
        TRY(node_verifier_resume(verifier, base->tokens, n_resume, &verdict, error));
    else
        TRY(node_verifier_start(verifier, v->cut, &verdict, error));
    if (verdict.finish != NODE_FINISH_NONE)
        return VC_OK;
    return v->drafts == IDENTITY_GUESSES ? with_guesses(m, q, v, engine, verifier, base, error)
                                         : with_drafter(m, q, v, engine, verifier, base, error);
}

vc_status_t identity_run(identity_model_t *m, const identity_request_t *q, const identity_run_t *v,
                         node_verifier_t *plain, const identity_result_t *base, identity_result_t *out, vc_err_t *error)
{
    node_engine_t *engine = identity_engine(m, v->threads, v->isa);
    node_verifier_t *verifier = NULL;
    node_slow_pool_t *pool = NULL;
    memset(out, 0, sizeof *out);
    vc_status_t st = make_verifier(m, q, engine, &verifier, error);
    if (st == VC_OK)
        st = identity_add_tier(v, q, node_verifier_kv(verifier), &pool, error);
    if (st == VC_OK)
        st = run_in(m, q, v, plain, base, engine, verifier, error);
    if (st == VC_OK)
        st = identity_collect(verifier, out, error);
    node_verifier_destroy(verifier);
    node_slow_pool_destroy(pool);
    return st;
}

void identity_compare(const identity_result_t *want, const identity_result_t *got, char *words, size_t cap)
{
    words[0] = '\0';
    for (uint32_t i = 0; i < VC_MIN(want->n, got->n); i++)
        if (want->tokens[i] != got->tokens[i]) {
            snprintf(words, cap, "token %u is %u instead of %u", i, got->tokens[i], want->tokens[i]);
            return;
        }
    if (want->n != got->n || want->finish != got->finish)
        snprintf(words, cap, "%u tokens (%s) instead of %u (%s)", got->n, node_finish_name(got->finish), want->n,
                 node_finish_name(want->finish));
    else if (memcmp(&want->logits, &got->logits, sizeof want->logits) != 0)
        snprintf(words, cap, "the committed logits differ");
    else if (memcmp(&want->kv, &got->kv, sizeof want->kv) != 0)
        snprintf(words, cap, "the full KV differs");
}
