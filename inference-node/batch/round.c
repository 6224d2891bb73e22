/* A round of one request: what it is to cost, and what came of it. */
#include "batch_int.h"
#include "vc/mem.h"

#define FIRST_ON_LINK 8u  /* drafts of a first round that waits for the link anyway */
#define SEEN_ENOUGH 16.0  /* squared rows in the sums: the line knows such rows */
#define CHANCE_WEIGHT 8.0 /* observations that the others' chance is worth to a new request */
#define KEEP_CHANCE 0.995 /* of the history per draft */

/* What steps cost beside the others now, as far as the line through iterations knows. */
static void expect(node_batch_t *b, member_t *m)
{
    const node_share_t *s = &b->share;
    node_length_costs_t costs;
    if (s->a[NODE_SHARE_DRAFTS][NODE_SHARE_DRAFTS] < SEEN_ENOUGH ||
        s->a[NODE_SHARE_VERIFY][NODE_SHARE_VERIFY] < SEEN_ENOUGH)
        return;
    node_share_load_t load = {.n = {1.0 / VC_MAX(b->info.n_running, 1u), 1}};
    costs.draft_us = node_share_us(s, &load);
    load.n[NODE_SHARE_DRAFTS] = 0;
    load.n[NODE_SHARE_KILOTOKENS] = node_verifier_kv(m->v)->n_tokens / 1000.0;
    for (uint32_t i = 0; i < NODE_LENGTH_COSTS; i++) {
        load.n[NODE_SHARE_VERIFY] = 1u << i;
        costs.verify_us[i] = node_share_us(s, &load);
    }
    if (costs.draft_us > 0 && costs.verify_us[0] > 0)
        node_length_expect(&m->length, &costs);
}

static void learn_chance(node_batch_t *b, const node_verdict_t *v)
{
    for (uint32_t i = 0; i < v->n_drafts && i <= v->n_accepted; i++) {
        b->chance_seen = b->chance_seen * KEEP_CHANCE + 1;
        b->chance_hits = b->chance_hits * KEEP_CHANCE + (i < v->n_accepted);
    }
}

void batch_round_first(const node_batch_t *b, member_t *m)
{
    if (b->chance_seen >= CHANCE_WEIGHT)
        node_length_expect_chance(&m->length, b->chance_hits / b->chance_seen, CHANCE_WEIGHT);
}

/* Whether anybody who runs, m included, has a copy to draft from: without one there is nothing that plain passes are to
 * be held against, and a look at them would keep sources silent for nothing. */
static bool has_copies(const node_batch_t *b, const member_t *m)
{
    bool has = m->drafts;
    for (uint32_t i = 0; !has && i < b->opt.max_requests; i++)
        has = b->members[i].state == MEMBER_RUNNING && b->members[i].drafts;
    return has;
}

/* What speculate/choice makes of the round. On the link rounds are drafted in any case, and begin with what they are to
 * hold; a look at plain iterations (gain) is one without proposals too. */
static vc_status_t choose(node_batch_t *b, member_t *m, double link_us, node_choice_kind_t *kind_p, vc_err_t *err)
{
    node_proposal_t p[NODE_SOURCE_MAX];
    uint32_t n = 0, width = b->info.n_running;
    bool on_link = m->drafts && link_us > 0;
    bool may_draft = m->drafts && (b->pool != NULL || node_gain_may_draft(&b->gain, width));
    bool looks = b->pool == NULL && has_copies(b, m) && node_gain_looks(&b->gain, width);
    if (m->source != NULL && !on_link && !looks) {
        vc_status_t st = node_drafter_drop(m->d, err); /* the source goes on behind what is committed */
        if (st != VC_OK)
            return st;
        n = node_drafter_propose(m->d, VC_MIN(node_verifier_max_useful(m->v), NODE_SOURCE_MAX), p);
    }
    *kind_p = node_choice_begin(&m->choice, &m->length, may_draft, p, n, &m->n_proposals);
    for (uint32_t i = 0; i < m->n_proposals; i++)
        m->proposals[i] = p[i].token;
    if (on_link)
        *kind_p = NODE_CHOICE_COPY;
    return VC_OK;
}

vc_status_t batch_round_begin(node_batch_t *b, member_t *m, node_schedule_cost_t *cost_p, vc_err_t *err)
{
    bool automatic = b->opt.draft_length == NODE_DRAFT_AUTO;
    double link_us = batch_link_us(b, m);
    node_choice_kind_t kind = NODE_CHOICE_COPY;
    *cost_p = (node_schedule_cost_t){.verify_us = 1}; /* a chance of 0: no drafts */
    m->n_proposals = 0;
    if (m->d != NULL)
        expect(b, m);
    if (automatic && m->d != NULL) {
        vc_status_t st = choose(b, m, link_us, &kind, err);
        if (st != VC_OK)
            return st;
    }
    m->plain = !m->drafts || kind != NODE_CHOICE_COPY;
    if (m->plain)
        return VC_OK;
    if (!automatic) {
        cost_p->min_draft = b->opt.draft_length;
        return VC_OK;
    }
    *cost_p = node_schedule_cost_of(&m->length, link_us);
    cost_p->min_draft = link_us > 0 && node_length_draft_us(&m->length) <= 0 ? FIRST_ON_LINK : 1;
    return VC_OK;
}

static void set_load(member_t *m)
{
    m->load = (node_share_load_t){0};
    switch (m->work) {
    case WORK_DRAFT: m->load.n[NODE_SHARE_DRAFTS] = m->n_rows; break;
    case WORK_VERIFY:
        m->load.n[NODE_SHARE_KILOTOKENS] = node_verifier_kv(m->v)->n_tokens / 1000.0;
        m->load.n[NODE_SHARE_VERIFY] = m->n_rows;
        break;
    case WORK_PROMPT: m->load.n[NODE_SHARE_PROMPT] = m->n_rows; break;
    case WORK_NONE: break;
    }
}

static void count_rows(node_batch_t *b, const member_t *m)
{
    b->info.draft_rows += m->work == WORK_DRAFT ? m->n_rows : 0;
    b->info.verify_rows += m->work == WORK_VERIFY ? m->n_rows : 0;
    b->info.prompt_rows += m->work == WORK_PROMPT ? m->n_rows : 0;
    b->info.n_verified += m->work == WORK_VERIFY;
}

/* Drafts that came; asks whether one more would pay. */
static void drafted(node_batch_t *b, member_t *m, double us)
{
    m->round_us += us;
    m->draft_us += us;
    bool more = true;
    for (uint32_t i = 0; i < m->n_picks; i++)
        more = node_length_more(&m->length, m->picks[i].margin);
    bool rule = b->opt.draft_length == NODE_DRAFT_AUTO && batch_link_us(b, m) <= 0;
    bool stops = rule && m->n_picks > 0 && !more;
    (void)node_schedule_drafted(b->schedule, m->schedule_id, m->n_picks, stops || m->enough);
}

static void show(node_batch_t *b, member_t *m)
{
    b->info.n_committed += m->verdict.n_tokens;
    if (b->opt.committed != NULL && m->verdict.n_tokens > 0)
        b->opt.committed(b->opt.arg, m->user, &m->verdict);
}

/* Full KV of all that run. */
static double running_kilotokens(const node_batch_t *b)
{
    double sum = 0;
    for (uint32_t i = 0; i < b->opt.max_requests; i++)
        if (b->members[i].state == MEMBER_RUNNING)
            sum += node_verifier_kv(b->members[i].v)->n_tokens / 1000.0;
    return sum;
}

/* What a round tells of its request, of drafting and of the source. */
static void learn(node_batch_t *b, member_t *m, double us)
{
    const node_verdict_t *v = &m->verdict;
    node_choice_end(&m->choice, v->tokens, v->n_tokens);
    bool source = m->n_proposals > 0 && v->n_drafts > 0;
    if (source) {
        m->n_source_rounds++;
        m->direct_proposed += v->n_drafts;
        m->direct_accepted += v->n_accepted;
        node_length_end_elsewhere(&m->length, v->n_drafts + 1, us);
    } else {
        learn_chance(b, v);
        node_length_end(&m->length, &(node_length_round_t){.n_drafts = v->n_drafts,
                                                           .n_accepted = v->n_accepted,
                                                           .n_tokens = v->n_tokens,
                                                           .draft_us = m->round_us,
                                                           .verify_us = us});
    }
    if (!has_copies(b, m))
        return;
    if (source)
        node_gain_elsewhere(&b->gain, b->info.n_running, us);
    else
        node_gain_round(&b->gain, b->info.n_running, running_kilotokens(b), v->n_tokens, m->round_us + us);
}

static vc_status_t verified(node_batch_t *b, member_t *m, double us, vc_err_t *err)
{
    const node_verdict_t *verdict = &m->verdict;
    m->verify_us += us;
    m->n_plain_rounds += verdict->n_drafts == 0;
    learn(b, m, us);
    m->round_us = 0;
    m->link_had = 0;
    m->shared = false;
    vc_status_t st = VC_OK;
    if (m->d != NULL)
        st = node_drafter_commit(m->d, verdict->tokens, verdict->n_tokens, NULL, err);
    show(b, m);
    if (st != VC_OK)
        return st;
    bool ended = verdict->finish != NODE_FINISH_NONE;
    node_schedule_cost_t cost = {0};
    if (!ended && (st = batch_round_begin(b, m, &cost, err)) != VC_OK)
        return st;
    st = node_schedule_verified(b->schedule, m->schedule_id, verdict->n_tokens, ended, ended ? NULL : &cost);
    node_schedule_request_t grown = {0};
    batch_link_full(b, m, &grown);
    if (st != VC_OK || ended || b->pool == NULL)
        return st;
    batch_link_budgets(b, &grown);
    st = node_schedule_resize(b->schedule, m->schedule_id, grown.full_bytes, grown.stream_bytes);
    return st == VC_OK ? st
                       : vc_err_set(err, st, "full KV of %llu bytes cannot be verified any more",
                                    (unsigned long long)grown.full_bytes);
}

static void prompted(node_batch_t *b, member_t *m)
{
    if (m->verdict.n_tokens == 0)
        return;
    m->state = MEMBER_STARTED;
    show(b, m);
    if (m->verdict.finish != NODE_FINISH_NONE)
        batch_end(b, m, VC_OK, "");
}

static void settle(node_batch_t *b, member_t *m, double us)
{
    vc_err_t err = {0};
    vc_status_t st = VC_OK;
    count_rows(b, m);
    if (m->work == WORK_DRAFT)
        drafted(b, m, us);
    else if (m->work == WORK_PROMPT)
        prompted(b, m);
    else
        st = verified(b, m, us, &err);
    if (st != VC_OK)
        batch_end(b, m, st, err.msg[0] ? err.msg : vc_status_text(st));
    else if (m->work == WORK_VERIFY && m->verdict.finish != NODE_FINISH_NONE)
        batch_end(b, m, VC_OK, "");
}

void batch_account(node_batch_t *b, double us)
{
    node_share_load_t whole = {.n = {1}};
    uint32_t n = 0;
    double sum = 0;
    for (uint32_t i = 0; i < b->opt.max_requests; i++) {
        member_t *m = &b->members[i];
        if (m->work == WORK_NONE || !m->done)
            continue;
        set_load(m);
        n++;
        for (int k = 1; k < NODE_SHARE_N; k++)
            whole.n[k] += m->load.n[k];
    }
    if (n > 0)
        node_share_learn(&b->share, &whole, us);
    if (n > 0 && n == b->info.n_running && whole.n[NODE_SHARE_VERIFY] == n && whole.n[NODE_SHARE_DRAFTS] == 0)
        node_gain_plain(&b->gain, n, whole.n[NODE_SHARE_KILOTOKENS], us);
    for (uint32_t i = 0; i < b->opt.max_requests; i++) {
        member_t *m = &b->members[i];
        if (m->work == WORK_NONE || !m->done)
            continue;
        m->load.n[NODE_SHARE_FIXED] = 1.0 / n;
        sum += node_share_us(&b->share, &m->load);
    }
    for (uint32_t i = 0; i < b->opt.max_requests; i++) {
        member_t *m = &b->members[i];
        if (m->work == WORK_NONE)
            continue;
        if (m->done)
            settle(b, m, sum > 0 ? us * node_share_us(&b->share, &m->load) / sum : us / n);
        else if (m->enough)
            (void)node_schedule_drafted(b->schedule, m->schedule_id, 0, true);
    }
}
