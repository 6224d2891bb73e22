/* The life of requests in a batch and its iterations. Passes are in pass.c, what a round costs and tells in round.c. */
#include "batch/batch.h"

#include <string.h>

#include "batch_int.h"
#include "vc/mem.h"

void node_batch_opts_default(node_batch_opts_t *opts)
{
    *opts = (node_batch_opts_t){.clock = vc_clock_system(),
                                .max_requests = 64,
                                .max_running = 8,
                                .draft_length = NODE_DRAFT_AUTO,
                                .max_draft = 48,
                                .prompt_rows = 32,
                                .window = 128,
                                .resident_bytes = UINT64_MAX / 2};
}

static vc_status_t check_opts(const node_batch_opts_t *o, vc_err_t *err)
{
    uint32_t max_rows = node_engine_max_rows(o->engine);
    uint32_t x = o->draft_length == NODE_DRAFT_AUTO ? o->max_draft : o->draft_length;
    if (o->max_running < 1 || o->max_running > o->max_requests)
        return vc_err_set(err, VC_ERR_INVALID, "%u running requests are not in 1 to %u", o->max_running,
                          o->max_requests);
    if (x > NODE_LENGTH_MAX || x >= max_rows)
        return vc_err_set(err, VC_ERR_INVALID, "%u drafts do not fit a pass of %u rows and a round of %u", x, max_rows,
                          NODE_LENGTH_MAX);
    if (o->prompt_rows < 1)
        return vc_err_set(err, VC_ERR_INVALID, "prompts need a row of an iteration at least");
    if (o->ended == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "a batch without a callback for what has ended");
    return VC_OK;
}

static vc_status_t make_schedule(node_batch_t *b, vc_err_t *err)
{
    const node_batch_opts_t *o = &b->opt;
    node_schedule_options_t so = node_schedule_options_default();
    so.window = o->window;
    so.patience = o->window;
    so.max_requests = so.max_running = o->max_running;
    so.max_draft = batch_max_draft(b);
    so.resident_bytes = o->resident_bytes;
    so.lock_step = o->lock_step;
    return node_schedule_create(&so, &b->schedule, err);
}

vc_status_t node_batch_create(const node_batch_opts_t *opts, node_batch_t **batch_p, vc_err_t *err)
{
    vc_status_t st = check_opts(opts, err);
    if (st != VC_OK)
        return st;
    node_batch_t *b = vc_calloc(1, sizeof *b);
    if (b == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "batch: out of memory");
    b->opt = *opts;
    b->next_id = 1;
    b->max_rows = node_engine_max_rows(opts->engine);
    node_share_init(&b->share);
    node_gain_init(&b->gain);
    b->members = vc_calloc(opts->max_requests, sizeof *b->members);
    b->order = vc_calloc(opts->max_requests, sizeof *b->order);
    b->tasks = vc_calloc(opts->max_running, sizeof *b->tasks);
    b->rows = vc_calloc(b->max_rows, sizeof *b->rows);
    bool good = b->members && b->order && b->tasks && b->rows;
    for (uint32_t i = 0; good && i < opts->max_requests; i++)
        good = (b->members[i].picks = vc_calloc(batch_max_draft(b) + 1, sizeof(node_pick_t))) != NULL;
    st = good ? make_schedule(b, err) : vc_err_set(err, VC_ERR_NOMEM, "batch: out of memory");
    if (st == VC_OK)
        st = batch_link_open(b, err);
    if (st != VC_OK) {
        node_batch_destroy(b);
        return st;
    }
    *batch_p = b;
    return VC_OK;
}

void node_batch_destroy(node_batch_t *b)
{
    if (b == NULL)
        return;
    for (uint32_t i = 0; b->members && i < b->opt.max_requests; i++) {
        if (b->members[i].state != MEMBER_FREE)
            batch_end(b, &b->members[i], VC_ERR_CANCELLED, "cancelled");
        vc_free(b->members[i].picks);
    }
    node_slow_pool_destroy(b->pool);
    node_schedule_destroy(b->schedule);
    vc_free(b->members);
    vc_free(b->order);
    vc_free(b->tasks);
    vc_free(b->rows);
    vc_free(b->logits);
    vc_free(b);
}

/* ---- requests ---- */

member_t *batch_of_schedule(node_batch_t *b, uint64_t schedule_id)
{
    for (uint32_t i = 0; i < b->opt.max_requests; i++)
        if (b->members[i].state == MEMBER_RUNNING && b->members[i].schedule_id == schedule_id)
            return &b->members[i];
    return NULL;
}

uint32_t batch_collect(node_batch_t *b, member_state_t state)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->opt.max_requests; i++) {
        member_t *m = &b->members[i];
        if (m->state != state)
            continue;
        uint32_t j = n++;
        for (; j > 0 && b->order[j - 1]->id > m->id; j--)
            b->order[j] = b->order[j - 1];
        b->order[j] = m;
    }
    return n;
}

static void release(member_t *m)
{
    node_pick_t *picks = m->picks;
    for (uint32_t i = 0; i < m->n_pages; i++)
        node_page_put(m->pages[i]);
    vc_free(m->pages);
    node_drafter_destroy(m->d);
    node_source_destroy(m->source);
    node_body_put(m->body);
    node_verifier_destroy(m->v);
    *m = (member_t){.picks = picks};
}

static void count_source(node_batch_t *b, const member_t *m)
{
    node_drafter_stats_t s = {0};
    if (m->d != NULL)
        node_drafter_stats(m->d, &s);
    b->info.source_proposed += m->direct_proposed + s.n_proposed;
    b->info.source_accepted += m->direct_accepted + s.n_accepted;
}

void batch_end(node_batch_t *b, member_t *m, vc_status_t status, const char *error)
{
    if (m->state == MEMBER_RUNNING)
        (void)node_schedule_cancel(b->schedule, m->schedule_id); /* not found: it ended there */
    const node_batch_end_t end = {.id = m->id,
                                  .user = m->user,
                                  .status = status,
                                  .error = error,
                                  .v = m->v,
                                  .compressed_bytes = m->body ? m->body->bytes : 0,
                                  .n_plain_rounds = m->n_plain_rounds,
                                  .n_source_rounds = m->n_source_rounds,
                                  .draft_us = m->draft_us,
                                  .verify_us = m->verify_us};
    count_source(b, m);
    b->opt.ended(b->opt.arg, &end);
    release(m);
}

static vc_status_t keep_pages(member_t *m, const node_batch_request_t *r, vc_err_t *err)
{
    if (r->n_pages == 0)
        return VC_OK;
    m->pages = vc_calloc(r->n_pages, sizeof(node_page_t *));
    if (m->pages == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "batch: out of memory");
    for (; m->n_pages < r->n_pages; m->n_pages++)
        m->pages[m->n_pages] = node_page_get(r->pages[m->n_pages]);
    return VC_OK;
}

static uint32_t position_end(const node_batch_t *b, const node_verifier_opts_t *o, uint32_t n_prompt)
{
    uint32_t context = node_engine_info(b->opt.engine)->context;
    context = o->context ? VC_MIN(o->context, context) : context;
    return o->max_tokens < context - n_prompt ? n_prompt + o->max_tokens : context;
}

vc_status_t node_batch_add(node_batch_t *b, const node_batch_request_t *r, uint64_t *id_p, vc_err_t *err)
{
    member_t *m = NULL;
    for (uint32_t i = 0; m == NULL && i < b->opt.max_requests; i++)
        if (b->members[i].state == MEMBER_FREE)
            m = &b->members[i];
    if (m == NULL)
        return vc_err_set(err, VC_ERR_BUSY, "%u requests are there already", b->opt.max_requests);
    if (r->n_pages > r->n_prompt / NODE_TILE || (r->body && r->body->n_tokens > r->n_prompt))
        return vc_err_set(err, VC_ERR_INVALID, "%u blocks of KV, a body of %u tokens: the prompt has %u", r->n_pages,
                          r->body ? r->body->n_tokens : 0, r->n_prompt);
    node_verifier_opts_t vo = r->verifier;
    vo.engine = b->opt.engine;
    vo.max_draft = VC_MAX(batch_max_draft(b), 1u);
    vc_status_t st = node_verifier_create(&vo, r->prompt, r->n_prompt, &m->v, err);
    if (st == VC_OK)
        st = keep_pages(m, r, err);
    if (st != VC_OK) {
        release(m);
        return st;
    }
    m->state = MEMBER_WAITING;
    m->id = b->next_id++;
    m->user = r->user;
    m->no_source = r->no_source;
    m->sampling = vo.sampling;
    m->end = position_end(b, &vo, r->n_prompt);
    m->body = r->body ? node_body_get(r->body) : NULL;
    node_length_init(&m->length, batch_max_draft(b));
    node_choice_init(&m->choice);
    if (id_p)
        *id_p = m->id;
    return VC_OK;
}

vc_status_t node_batch_cancel(node_batch_t *b, uint64_t id)
{
    for (uint32_t i = 0; id && i < b->opt.max_requests; i++) {
        if (b->members[i].state == MEMBER_FREE || b->members[i].id != id)
            continue;
        batch_end(b, &b->members[i], VC_ERR_CANCELLED, "cancelled");
        return VC_OK;
    }
    return VC_ERR_NOT_FOUND;
}

/* ---- from waiting to running ---- */

static void fail(node_batch_t *b, member_t *m, vc_status_t st, const vc_err_t *err)
{
    batch_end(b, m, st, err->msg[0] ? err->msg : vc_status_text(st));
}

/* What of the prompt's KV is there already. A page that others hold too could never leave memory for the tier. */
static vc_status_t load_pages(member_t *m, vc_err_t *err)
{
    bool own = node_verifier_kv(m->v)->slow != NULL;
    vc_status_t st = VC_OK;
    for (uint32_t i = 0; st == VC_OK && i < m->n_pages; i++) {
        node_page_t *page = own ? node_page_copy(m->pages[i], NODE_TILE) : node_page_get(m->pages[i]);
        st = page ? node_verifier_load_page(m->v, page, err) /* takes over the reference */
                  : vc_err_set(err, VC_ERR_NOMEM, "batch: no memory for block %u", i);
    }
    for (uint32_t i = 0; i < m->n_pages; i++)
        node_page_put(m->pages[i]);
    vc_free(m->pages);
    m->pages = NULL;
    m->n_pages = 0;
    return st;
}

static void begin_prompts(node_batch_t *b)
{
    uint32_t n_free = b->opt.max_running - VC_MIN(b->opt.max_running, b->info.n_prompts + b->info.n_running);
    uint32_t n = batch_collect(b, MEMBER_WAITING);
    for (uint32_t i = 0; i < VC_MIN(n, n_free); i++) {
        vc_err_t err = {0};
        member_t *m = b->order[i];
        vc_status_t st = batch_link_join(b, m, &err);
        if (st == VC_OK)
            st = load_pages(m, &err);
        if (st == VC_OK)
            m->state = MEMBER_PROMPT;
        else
            fail(b, m, st, &err);
    }
}

static vc_status_t make_drafter(node_batch_t *b, member_t *m, vc_err_t *err)
{
    uint32_t n, n_prompt = node_verifier_n_prompt(m->v);
    const uint32_t *tokens = node_verifier_tokens(m->v, &n);
    vc_status_t st = VC_OK;
    if (batch_max_draft(b) == 0)
        return VC_OK;
    if (m->body == NULL && b->opt.compress != NULL && n_prompt >= NODE_TILE) {
        node_kv_t view;
        st = node_slow_view(node_verifier_kv(m->v), &view, err);
        if (st != VC_OK)
            return st;
        st = b->opt.compress(b->opt.arg, &view, tokens, n_prompt, &m->body, err);
        node_kv_fini(&view);
    }
    /* a step on the full KV is a decoding step; and behind no body the drafter would hold in memory all of what the
     * slow tier is there to keep out of it */
    bool automatic = b->opt.draft_length == NODE_DRAFT_AUTO;
    m->drafts = m->body != NULL || (!automatic && node_verifier_kv(m->v)->slow == NULL);
    if (st == VC_OK && b->opt.source != NULL && !m->no_source && (m->drafts || automatic))
        st = b->opt.source(b->opt.arg, &m->source, err);
    if (st != VC_OK || (!m->drafts && m->source == NULL))
        return st;
    node_drafter_opts_t o;
    node_drafter_opts_default(&o);
    o.engine = b->opt.engine;
    o.body = m->body;
    o.sampling = m->sampling;
    o.context = m->end;
    o.n_common = NODE_DRAFTER_COMMON;
    o.max_draft = batch_max_draft(b);
    o.source = m->source;
    o.clock = NULL; /* its passes are those of others too */
    return node_drafter_create(&o, tokens, n, &m->d, err);
}

static void start_running(node_batch_t *b, member_t *m)
{
    vc_err_t err = {0};
    vc_status_t st = make_drafter(b, m, &err);
    node_schedule_request_t r = {.compressed_bytes = m->body ? m->body->bytes : 0};
    batch_round_first(b, m);
    if (st == VC_OK)
        st = batch_round_begin(b, m, &r.cost, &err);
    if (st == VC_OK) {
        uint32_t n;
        (void)node_verifier_tokens(m->v, &n);
        r.remaining = m->end - n;
        batch_link_full(b, m, &r);
        batch_link_budgets(b, &r);
        st = node_schedule_add(b->schedule, &r, &m->schedule_id, &err);
    }
    if (st == VC_OK)
        m->state = MEMBER_RUNNING;
    else
        fail(b, m, st, &err);
}

static void count_states(node_batch_t *b)
{
    b->info.n_waiting = b->info.n_prompts = b->info.n_running = 0;
    for (uint32_t i = 0; i < b->opt.max_requests; i++) {
        member_state_t state = b->members[i].state;
        b->info.n_waiting += state == MEMBER_WAITING;
        b->info.n_prompts += state == MEMBER_PROMPT;
        b->info.n_running += state == MEMBER_STARTED || state == MEMBER_RUNNING;
    }
}

/* ---- an iteration ---- */

/* The schedule's tasks, then prompts with the rows that are theirs: all of a pass when nobody else runs. */
static vc_status_t give_work(node_batch_t *b, vc_err_t *err)
{
    uint32_t n_tasks = node_schedule_step(b->schedule, b->tasks);
    for (uint32_t i = 0; i < b->opt.max_requests; i++) {
        member_t *m = &b->members[i];
        m->work = WORK_NONE;
        m->done = false;
        m->link_here = m->link_due = m->link_most = 0;
    }
    for (uint32_t i = 0; i < n_tasks; i++) {
        member_t *m = batch_of_schedule(b, b->tasks[i].id);
        if (m == NULL)
            return vc_err_set(err, VC_ERR_INTERNAL, "batch: the schedule has a request that is not there");
        m->link_here = b->tasks[i].link_here;
        m->link_due = b->tasks[i].link_due;
        m->link_most = b->tasks[i].link_most;
        if (b->tasks[i].action == NODE_SCHEDULE_VERIFY)
            m->work = WORK_VERIFY;
        else if (b->tasks[i].action == NODE_SCHEDULE_DRAFT && !m->plain)
            m->work = WORK_DRAFT;
        else if (b->tasks[i].action == NODE_SCHEDULE_DRAFT)
            (void)node_schedule_drafted(b->schedule, m->schedule_id, 0, true);
    }
    uint32_t n = batch_collect(b, MEMBER_PROMPT),
             rows = n_tasks ? VC_MIN(b->opt.prompt_rows, b->max_rows) : b->max_rows;
    for (uint32_t i = 0; i < n && rows > 0; i++) {
        member_t *m = b->order[i];
        uint32_t left = node_verifier_n_prompt(m->v) - node_verifier_kv(m->v)->n_tokens;
        m->work = WORK_PROMPT;
        m->cap = VC_MIN(rows, VC_MAX(left, 1u)); /* a prompt that was loaded whole has its last row computed again */
        rows -= m->cap;
    }
    return VC_OK;
}

vc_status_t node_batch_step(node_batch_t *b, bool *busy_p, vc_err_t *err)
{
    count_states(b);
    begin_prompts(b);
    vc_status_t st = give_work(b, err);
    if (st != VC_OK)
        return st;
    batch_link_order(b);
    uint64_t t0 = vc_clock_now_us(b->opt.clock), rows = b->info.n_rows;
    batch_link_between(b, true);
    batch_run(b);
    batch_link_between(b, false);
    uint64_t took = vc_clock_now_us(b->opt.clock) - t0;
    uint64_t waited = batch_link_came(b, took, b->info.n_rows > rows);
    batch_account(b, (double)(took - waited));
    b->info.pass_us += took;
    b->info.n_iterations++;
    node_schedule_end(b->schedule);
    uint32_t n = batch_collect(b, MEMBER_STARTED);
    for (uint32_t i = 0; i < n; i++)
        start_running(b, b->order[i]);
    count_states(b);
    *busy_p = b->info.n_waiting + b->info.n_prompts + b->info.n_running > 0;
    return VC_OK;
}

void node_batch_info(const node_batch_t *b, node_batch_info_t *info_p) { *info_p = b->info; }
