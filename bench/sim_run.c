/*
 * Plays a case through the scheduling policy, one iteration after the other: the tasks of a step say who drafts, who is
 * verified and which bytes move; the roofline and the links say how long that takes; a counted random generator says
 * how many drafts were right. Long context: one engine drafts and verifies in one pass. Remote: the draft node and the
 * verify node step together, a request begins once its compressed copy came over the slow link.
 */
#include <math.h>
#include <string.h>

#include "harness.h"
#include "schedule/schedule.h"
#include "sim_parts.h"
#include "vc/mem.h"

#define MAX_LIVE 128
#define WINDOW 128
#define MAX_DRAFT 64
#define BUDGET_EVERY 32 /* iterations between looks at what an iteration takes */

typedef struct {
    uint64_t id; /* 0: not at the scheduler yet */
    double ready_s;
    uint32_t tail, remaining; /* tokens */
    bool used;
} live_t;

typedef struct {
    const sim_case_t *c;
    bool lock_step;
    node_schedule_t *schedule;
    live_t live[MAX_LIVE];
    double full, kv, now_s, slow_free_s, step_s;   /* step_s: mean of the iterations' compute */
    uint64_t link_bytes, hold_bytes, rng, lengths; /* two generators: every way of scheduling has the same answers */
    node_schedule_cost_t cost;
    /* totals since the warm-up */
    double from_s, committed, drafts, verified, ended, running_s, link_s, slow_s, compute_s;
} sim_t;

static double draw(uint64_t *rng)
{
    *rng += 0x9e3779b97f4a7c15u;
    uint64_t z = *rng;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static bool is_remote(const sim_t *s) { return s->c->slow_rate > 0; }

static uint64_t stream_bytes(const sim_t *s) { return (uint64_t)(2 * s->full / s->c->model->n_layer); }

/* Link bytes of one iteration. Where a full KV is larger than the transient memory, at least what must come during its
 * verify pass: that iteration then lasts longer. */
static uint64_t link_budget(const sim_t *s, double step_s)
{
    uint64_t bytes = (uint64_t)(s->c->link_rate * step_s), full = (uint64_t)s->full;
    uint64_t must = full + stream_bytes(s) > s->hold_bytes ? full + stream_bytes(s) - s->hold_bytes : 0;
    return VC_MAX(bytes, must);
}

/* What one request adds, and its part of what all share, with so many running. */
static void estimate(sim_t *s, double running)
{
    const sim_case_t *c = s->c;
    double draft_kv = c->kept * s->full, n = fmax(1, running);
    double step_s = sim_pass_s(c, (sim_rows_t){n, n * draft_kv});
    double extra = is_remote(s) ? 0 : sim_pass_s(c, (sim_rows_t){n, n * draft_kv + s->full - draft_kv}) - step_s;
    double rows16 = sim_pass_s(c, (sim_rows_t){n + 16, n * draft_kv}) - step_s;
    s->cost = (node_schedule_cost_t){.draft_us = step_s / n * 1e6,
                                     .verify_us = (step_s / n + extra) * 1e6,
                                     .verify_row_us = is_remote(s) ? 0 : rows16 / 16 * 1e6,
                                     .link_us = s->full / c->link_rate * 1e6,
                                     .chance = c->chance};
    s->step_s = step_s;
}

static bool open_schedule(sim_t *s)
{
    const sim_case_t *c = s->c;
    node_schedule_options_t o = node_schedule_options_default();
    double room = c->assumed.fill * c->machine->mem_bytes - 2 * c->model->n_params;
    double hold = fmin(c->assumed.hold * s->full, room / 2), each = c->kept * s->full + s->kv * c->assumed.answer * 1.5;
    double resident = is_remote(s) ? room : room - hold; /* a verify node holds full KV in a memory of its own */
    double running = fmin(floor(resident / each), c->outstanding);
    if (running < 1)
        return false;
    s->hold_bytes = (uint64_t)hold;
    estimate(s, running);
    s->link_bytes = link_budget(s, s->step_s);
    o.window = WINDOW;
    o.patience = WINDOW;
    o.max_draft = MAX_DRAFT;
    o.max_requests = o.max_running = MAX_LIVE;
    o.link_bytes = s->link_bytes;
    o.hold_bytes = s->hold_bytes;
    o.resident_bytes = (uint64_t)resident;
    o.lock_step = s->lock_step;
    if (node_schedule_create(&o, &s->schedule, NULL) != VC_OK)
        bench_fail("no memory for the schedule");
    return true;
}

/* Replaces requests that ended; hands over those whose compressed copy is there. The next arrival's time, or 0. */
static double arrive(sim_t *s)
{
    double next = 0;
    for (uint32_t i = 0; i < s->c->outstanding; i++) {
        live_t *l = &s->live[i];
        if (!l->used) {
            *l = (live_t){.used = true, .remaining = (uint32_t)(s->c->assumed.answer * (0.5 + draw(&s->lengths)))};
            if (is_remote(s)) { /* K and V of verified tokens come the same way later; counted here */
                double bytes = s->c->kept * s->full + s->kv * l->remaining;
                s->slow_free_s = fmax(s->slow_free_s, s->now_s) + bytes / s->c->slow_rate;
                s->slow_s += bytes / s->c->slow_rate;
                l->ready_s = s->slow_free_s;
            }
        }
        if (!l->id && l->ready_s <= s->now_s) {
            node_schedule_request_t r = {.full_bytes = (uint64_t)s->full,
                                         .stream_bytes = stream_bytes(s),
                                         .compressed_bytes = (uint64_t)(s->c->kept * s->full + s->kv * l->remaining),
                                         .remaining = l->remaining,
                                         .cost = s->cost};
            vc_err_t err = {0};
            if (node_schedule_add(s->schedule, &r, &l->id, &err) != VC_OK)
                bench_fail("%s", err.msg);
        } else if (!l->id && (next == 0 || l->ready_s < next))
            next = l->ready_s;
    }
    return next;
}

static live_t *of_id(sim_t *s, uint64_t id)
{
    for (uint32_t i = 0; i < s->c->outstanding; i++)
        if (s->live[i].id == id)
            return &s->live[i];
    bench_fail("a task for a request that is not there");
}

static void verify(sim_t *s, const node_schedule_task_t *t, live_t *l)
{
    uint32_t n = 0;
    while (n < t->n_drafts && draw(&s->rng) < s->c->chance)
        n++;
    n = VC_MIN(n + 1, l->remaining);
    if (node_schedule_verified(s->schedule, t->id, n, false, &s->cost) != VC_OK)
        bench_fail("the schedule does not know what it asked for");
    l->remaining -= n;
    l->tail += n;
    s->committed += n;
    s->drafts += t->n_drafts;
    s->verified++;
    if (!l->remaining) {
        l->used = false;
        l->id = 0;
        s->ended++;
    }
}

/* One iteration: moves its bytes, then ends its verify passes. False when nobody had anything to do. */
static bool turn(sim_t *s)
{
    static node_schedule_task_t tasks[MAX_LIVE];
    uint32_t n = node_schedule_step(s->schedule, tasks);
    sim_rows_t draft = {0}, check = {0};
    double bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        live_t *l = of_id(s, tasks[i].id);
        if (tasks[i].action == NODE_SCHEDULE_DRAFT) {
            draft.n++;
            draft.kv_bytes += s->c->kept * s->full + s->kv * (l->tail + tasks[i].n_drafts);
        } else if (tasks[i].action == NODE_SCHEDULE_VERIFY) {
            check.n += tasks[i].n_drafts + 1;
            check.kv_bytes += s->full + s->kv * l->tail;
        }
        bytes += (double)tasks[i].link_due;
        if (node_schedule_moved(s->schedule, tasks[i].id, tasks[i].link_due) != VC_OK)
            bench_fail("the schedule does not take the bytes it asked for");
    }
    double compute_s = is_remote(s)
                           ? fmax(sim_pass_s(s->c, draft), sim_pass_s(s->c, check))
                           : sim_pass_s(s->c, (sim_rows_t){draft.n + check.n, draft.kv_bytes + check.kv_bytes});
    double link_s = bytes / s->c->link_rate, took_s = fmax(s->c->assumed.step_s, fmax(compute_s, link_s));
    if (n) {
        s->now_s += took_s;
        s->running_s += n * took_s;
        s->link_s += link_s;
        s->compute_s += compute_s;
        if (compute_s > 0)
            s->step_s += 0.02 * (compute_s - s->step_s);
    }
    for (uint32_t i = 0; i < n; i++)
        if (tasks[i].action == NODE_SCHEDULE_VERIFY)
            verify(s, &tasks[i], of_id(s, tasks[i].id));
    node_schedule_end(s->schedule);
    return n > 0;
}

static void forget_warm_up(sim_t *s)
{
    s->from_s = s->now_s;
    s->committed = s->drafts = s->verified = s->ended = s->running_s = s->link_s = s->compute_s = 0;
    s->slow_s = fmax(0, s->slow_free_s - s->now_s); /* promised before, still to come */
}

sim_result_t sim_schedule(const sim_case_t *c, bool lock_step)
{
    static sim_t s;
    memset(&s, 0, sizeof s);
    s.c = c;
    s.lock_step = lock_step;
    s.kv = sim_kv_token_bytes(c->model);
    s.full = s.kv * c->prefix;
    s.rng = 1;
    s.lengths = 2;
    if (!open_schedule(&s))
        return (sim_result_t){0};
    bool warm = false;
    double ended = 0;
    for (uint64_t k = 1; ended < c->n_requests; k++) {
        double next = arrive(&s), before = s.ended;
        if (!turn(&s))
            s.now_s = fmax(s.now_s, next);
        ended += s.ended - before;
        if (!warm && ended >= c->n_requests / 4.0) {
            warm = true;
            forget_warm_up(&s);
        }
        if (k % BUDGET_EVERY == 0) {
            s.link_bytes = link_budget(&s, s.step_s);
            if (node_schedule_set_budgets(s.schedule, s.link_bytes, s.hold_bytes, NULL) != VC_OK)
                bench_fail("the link became too slow for a request that is there");
        }
    }
    double took_s = s.now_s - s.from_s;
    s.slow_s -= fmax(0, s.slow_free_s - s.now_s);
    node_schedule_destroy(s.schedule);
    return (sim_result_t){.fits = true,
                          .tokens_s = s.committed / took_s,
                          .requests_s = s.ended / took_s,
                          .running = s.running_s / took_s,
                          .drafts = s.drafts / s.verified,
                          .committed = s.committed / s.verified,
                          .link_use = s.link_s / took_s,
                          .slow_use = s.slow_s / took_s,
                          .compute_use = s.compute_s / took_s};
}
