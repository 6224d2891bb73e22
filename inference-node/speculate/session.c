/* Draft, verify, commit in one process. Timing decides how many tokens are drafted and never what is committed. */
#include "speculate/session.h"

#include "speculate/choice.h"
#include "vc/mem.h"

struct node_session {
    node_session_opts_t opt;
    node_verifier_t *v; /* the caller's */
    node_drafter_t *d;
    node_length_t length;
    node_choice_t choice;
    node_choice_kind_t kind;      /* of this round, with an automatic length */
    node_body_t *body;            /* one reference; NULL: no compressed body */
    uint32_t *drafts;             /* [max_draft] */
    uint32_t max_draft, n_tokens; /* tokens: when a round was last begun */
    node_session_stats_t stats;
};

void node_session_opts_default(node_session_opts_t *opts)
{
    *opts = (node_session_opts_t){.draft_length = NODE_DRAFT_AUTO, .clock = vc_clock_system()};
}

vc_status_t node_session_create(const node_session_opts_t *opts, const node_drafter_opts_t *drafter_opts,
                                node_verifier_t *v, node_session_t **s_p, vc_err_t *err)
{
    node_session_t *s = vc_calloc(1, sizeof *s);
    if (!s)
        return vc_err_set(err, VC_ERR_NOMEM, "session: out of memory");
    s->opt = *opts;
    node_choice_init(&s->choice);
    s->v = v;
    s->max_draft = drafter_opts->max_draft;
    node_length_init(&s->length, s->max_draft);
    if (opts->costs)
        node_costs_expect_chance(opts->costs, opts->name, &s->length);
    if (drafter_opts->body)
        s->body = node_body_get(drafter_opts->body);
    s->drafts = vc_calloc(s->max_draft, sizeof *s->drafts);
    uint32_t n;
    const uint32_t *tokens = node_verifier_tokens(v, &n);
    vc_status_t st = s->drafts ? node_drafter_create(drafter_opts, tokens, n, &s->d, err)
                               : vc_err_set(err, VC_ERR_NOMEM, "session: out of memory");
    if (st != VC_OK) {
        node_session_destroy(s);
        return st;
    }
    *s_p = s;
    return VC_OK;
}

void node_session_destroy(node_session_t *s)
{
    if (!s)
        return;
    if (s->opt.costs && s->opt.draft_length == NODE_DRAFT_AUTO)
        node_costs_learn(s->opt.costs, s->n_tokens, s->body, s->opt.name, &s->length);
    node_drafter_destroy(s->d);
    if (s->body)
        node_body_put(s->body);
    vc_free(s->drafts);
    vc_free(s);
}

/* What this round is; with NODE_CHOICE_SOURCE the proposals are its drafts. */
static vc_status_t choose(node_session_t *s, uint32_t useful, uint32_t *n_p, vc_err_t *err)
{
    node_proposal_t proposals[NODE_SOURCE_MAX];
    node_verifier_tokens(s->v, &s->n_tokens);
    if (s->opt.costs) {
        node_length_costs_t costs;
        node_costs_at(s->opt.costs, s->n_tokens, s->body, s->opt.name, &costs);
        node_length_expect(&s->length, &costs);
    }
    vc_status_t st = node_drafter_drop(s->d, err); /* the source goes on behind what is committed */
    if (st != VC_OK)
        return st;
    uint32_t n = node_drafter_propose(s->d, VC_MIN(useful, NODE_SOURCE_MAX), proposals);
    s->kind = node_choice_begin(&s->choice, &s->length, s->body != NULL, proposals, n, n_p);
    for (uint32_t i = 0; i < *n_p; i++)
        s->drafts[i] = proposals[i].token;
    return VC_OK;
}

static vc_status_t draft_with_margins(node_session_t *s, uint32_t useful, uint32_t *n_p, vc_err_t *err)
{
    node_pick_t pick;
    do {
        vc_status_t st = node_drafter_next(s->d, &pick, err);
        if (st != VC_OK)
            return st;
        s->drafts[(*n_p)++] = pick.token;
    } while (node_length_more_ready(&s->length, pick.margin, node_drafter_n_ready(s->d)) && *n_p < useful);
    return VC_OK;
}

/* Drafts into s->drafts: a fixed number, or as many as pay. */
static vc_status_t draft(node_session_t *s, uint32_t *n_p, vc_err_t *err)
{
    uint32_t useful = VC_MIN(node_verifier_max_useful(s->v), s->max_draft);
    bool adaptive = s->opt.draft_length == NODE_DRAFT_AUTO;
    *n_p = 0;
    s->kind = NODE_CHOICE_COPY;
    if (!useful || !s->opt.draft_length)
        return VC_OK;
    if (adaptive) {
        vc_status_t st = choose(s, useful, n_p, err);
        if (st != VC_OK || s->kind != NODE_CHOICE_COPY)
            return st;
    }
    vc_status_t st = node_drafter_share(s->d, node_verifier_kv(s->v), err);
    if (st != VC_OK)
        return st;
    return adaptive ? draft_with_margins(s, useful, n_p, err)
                    : node_drafter_draft(s->d, VC_MIN(s->opt.draft_length, useful), s->drafts, NULL, n_p, err);
}

static void learn(node_session_t *s, const node_verdict_t *v, double draft_us, double verify_us)
{
    node_choice_end(&s->choice, v->tokens, v->n_tokens);
    if (!v->n_drafts || s->kind != NODE_CHOICE_SOURCE) {
        node_length_end(&s->length, &(node_length_round_t){.n_drafts = v->n_drafts,
                                                           .n_accepted = v->n_accepted,
                                                           .n_tokens = v->n_tokens,
                                                           .draft_us = draft_us,
                                                           .verify_us = verify_us});
        return;
    }
    node_length_end_elsewhere(&s->length, v->n_drafts + 1, verify_us);
    s->stats.n_source_rounds++;
    s->stats.source_proposed += v->n_drafts;
    s->stats.source_accepted += v->n_accepted;
}

vc_status_t node_session_round(node_session_t *s, node_verdict_t *verdict_p, vc_err_t *err)
{
    uint64_t t0 = vc_clock_now_us(s->opt.clock);
    uint32_t n;
    vc_status_t st = draft(s, &n, err);
    uint64_t t1 = vc_clock_now_us(s->opt.clock);
    if (st == VC_OK)
        st = node_verifier_step(s->v, s->drafts, n, verdict_p, err);
    if (st == VC_OK)
        st = node_drafter_commit(s->d, verdict_p->tokens, verdict_p->n_tokens, NULL, err);
    if (st != VC_OK)
        return st;
    uint64_t t2 = vc_clock_now_us(s->opt.clock);
    s->stats.draft_us += t1 - t0;
    s->stats.verify_us += t2 - t1;
    s->stats.n_plain_rounds += !n;
    learn(s, verdict_p, (double)(t1 - t0), (double)(t2 - t1));
    return VC_OK;
}

void node_session_stats(const node_session_t *s, node_session_stats_t *stats_p)
{
    node_drafter_stats_t d;
    node_drafter_stats(s->d, &d);
    *stats_p = s->stats;
    stats_p->source_proposed += d.n_proposed;
    stats_p->source_accepted += d.n_accepted;
}
