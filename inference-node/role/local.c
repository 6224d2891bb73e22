/*
 * Generation with full KV on this node: the whole job of a node without a verifier, and the last resort of one that
 * lost it. Prefill, then rounds; drafts only where a compressed body is at hand.
 */
#include <string.h>

#include "role/remote.h"
#include "speculate/session.h"
#include "vc/log.h"
#include "vc/mem.h"

#define LOCAL_PASS_ROWS 128u

static vc_status_t create_verifier(node_remote_t *r, node_verifier_t **v_p, vc_err_t *err)
{
    node_verifier_opts_t opts;
    node_verifier_opts_default(&opts);
    opts.engine = r->node->engine;
    opts.tok = r->node->tok;
    opts.sampling = r->opts->sampling;
    opts.end_tokens = r->end_tokens;
    opts.n_end_tokens = r->n_end_tokens;
    opts.stops = r->opts->stops;
    opts.n_stops = r->opts->n_stops;
    opts.max_tokens = (uint32_t)r->opts->max_tokens;
    opts.context = (uint32_t)r->opts->context;
    opts.digest = true;
    return node_verifier_create(&opts, r->tokens, r->n_prompt, v_p, err);
}

static vc_status_t load_full(node_remote_t *r, node_verifier_t *v, vc_err_t *err)
{
    if (r->cache == NULL)
        return VC_OK;
    node_kv_dims_t dims;
    node_kv_t kv;
    node_engine_kv_dims(r->node->engine, &dims);
    vc_status_t status = node_kv_init(&kv, &dims, NULL);
    if (status != VC_OK)
        return vc_err_set(err, status, "no memory for fetched KV");
    node_cache_result_t got;
    node_cache_fetch_full(r->cache, r->tokens, r->n_prompt, &kv, &got);
    for (uint32_t b = 0; status == VC_OK && b < got.blocks; b++)
        status = node_verifier_load_page(v, node_page_get(node_kv_page_at(&kv, b)), err);
    node_kv_fini(&kv);
    r->outcome.slow_bytes += got.bytes;
    r->outcome.fetch_us += got.us;
    r->outcome.prefix_blocks = VC_MAX(r->outcome.prefix_blocks, got.blocks);
    r->outcome.computed_tokens = r->n_prompt - got.blocks * NODE_TILE;
    if (got.status != VC_OK || got.blocks < got.blocks_found)
        node_outcome_note(&r->outcome, "full KV: %u of %u blocks usable, the rest computed: %.120s", got.blocks,
                          got.blocks_found, got.note);
    vc_log_info("local", "full kv blocks=%u bytes=%llu ms=%llu", got.blocks, (unsigned long long)got.bytes,
                (unsigned long long)(got.us / 1000));
    return status;
}

static vc_status_t commit_verdict(node_remote_t *r, node_verifier_t *v, const node_verdict_t *verdict, vc_err_t *err)
{
    vc_digest_t digest;
    node_verifier_digest(v, &digest);
    if (verdict->n_drafts > 0) {
        r->outcome.rounds++;
        r->outcome.drafted += verdict->n_drafts;
        r->outcome.accepted += verdict->n_accepted;
    }
    uint32_t base = verdict->n_tokens > 0 ? verdict->base : r->n_tokens;
    return node_remote_commit(r, base, verdict->tokens, verdict->n_tokens, verdict->finish, &digest, err);
}

static vc_status_t rounds(node_remote_t *r, node_verifier_t *v, node_session_t *session, vc_err_t *err)
{
    vc_status_t status = VC_OK;
    while (status == VC_OK && node_verifier_finish(v) == NODE_FINISH_NONE) {
        if (node_remote_stopped(r))
            return vc_err_set(err, VC_ERR_CANCELLED, "stopped");
        node_verdict_t verdict;
        status = session != NULL ? node_session_round(session, &verdict, err)
                                 : node_verifier_step(v, NULL, 0, &verdict, err);
        if (status == VC_OK)
            status = commit_verdict(r, v, &verdict, err);
    }
    return status;
}

/* Without a body only an automatic length has anything to draft from, and only with a source. */
static vc_status_t make_session(node_remote_t *r, node_verifier_t *v, node_source_t *source, node_session_t **session_p,
                                vc_err_t *err)
{
    *session_p = NULL;
    bool alone = source != NULL && r->opts->draft_length == NODE_DRAFT_AUTO;
    if (r->opts->draft_length == 0 || (r->body == NULL && !alone))
        return VC_OK;
    node_session_opts_t sopts;
    node_drafter_opts_t dopts;
    node_session_opts_default(&sopts);
    node_drafter_opts_default(&dopts);
    sopts.draft_length = r->opts->draft_length;
    dopts.engine = r->node->engine;
    dopts.body = r->body;
    dopts.source = source;
    dopts.sampling = r->opts->sampling;
    dopts.context = (uint32_t)r->opts->context;
    dopts.n_common = NODE_DRAFTER_COMMON;
    return node_session_create(&sopts, &dopts, v, session_p, err);
}

static void count_source(node_remote_t *r, const node_session_t *session)
{
    node_session_stats_t stats;
    if (session == NULL)
        return;
    node_session_stats(session, &stats);
    r->outcome.source_proposed += stats.source_proposed;
    r->outcome.source_accepted += stats.source_accepted;
}

vc_status_t node_remote_run_local(node_remote_t *r, vc_err_t *err)
{
    node_verifier_t *v = NULL;
    node_session_t *session = NULL;
    node_source_t *source = NULL;
    r->outcome.computed_tokens = r->n_prompt;
    vc_status_t status = create_verifier(r, &v, err);
    if (status == VC_OK)
        status = load_full(r, v, err);
    node_verdict_t verdict = {0};
    if (status == VC_OK && r->n_tokens > r->n_prompt)
        status = node_verifier_resume(v, r->tokens + r->n_prompt, r->n_tokens - r->n_prompt, &verdict, err);
    else if (status == VC_OK)
        status = node_verifier_start(v, LOCAL_PASS_ROWS, &verdict, err);
    if (status == VC_OK)
        status = commit_verdict(r, v, &verdict, err);
    if (status == VC_OK && node_verifier_finish(v) == NODE_FINISH_NONE)
        status = node_generate_source(r->opts, &source, err);
    if (status == VC_OK && node_verifier_finish(v) == NODE_FINISH_NONE)
        status = make_session(r, v, source, &session, err);
    if (status == VC_OK)
        status = rounds(r, v, session, err);
    count_source(r, session);
    node_session_destroy(session);
    node_source_destroy(source);
    node_verifier_destroy(v);
    return status;
}
