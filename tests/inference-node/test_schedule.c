/*
 * The staggering policy under made-up loads. A world outside moves the bytes and checks from the tasks alone that no
 * budget is exceeded; placements are compared with an exhaustive search; the stated bound on waiting is held.
 */
#include <string.h>

#include "schedule/schedule.h"
#include "support/vc_test.h"

#define MAX_IDS 4096

/* What the outside knows of each request. */
typedef struct {
    bool live;
    node_schedule_request_t r;
    uint64_t arrived;
    uint32_t drafts;
    uint64_t waits_since; /* iteration; UINT64_MAX: placed */
    uint32_t n_older;
} seen_t;

typedef struct {
    node_schedule_t *s;
    node_schedule_options_t o;
    seen_t seen[MAX_IDS];
    uint64_t n_ids, now, rng, hash, n_committed, n_verified, n_late, n_early;
    uint32_t late_percent, early_percent, vary_percent;
    bool check_wait;
} world_t;

static uint64_t draw(world_t *w, uint64_t n)
{
    w->rng += 0x9e3779b97f4a7c15u;
    uint64_t z = w->rng;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static void begin(world_t *w, node_schedule_options_t o, uint64_t seed)
{
    memset(w, 0, sizeof *w);
    w->o = o;
    w->rng = seed;
    cr_assert_eq(node_schedule_create(&o, &w->s, NULL), VC_OK);
}

static uint32_t waiting_now(const world_t *w)
{
    uint32_t n = 0;
    for (uint64_t i = 1; i <= w->n_ids; i++)
        n += w->seen[i].live && w->seen[i].waits_since != UINT64_MAX;
    return n;
}

static uint64_t add(world_t *w, node_schedule_request_t r)
{
    uint64_t id = 0;
    if (node_schedule_add(w->s, &r, &id, NULL) != VC_OK)
        return 0;
    cr_assert_lt(id, MAX_IDS);
    w->n_ids = id;
    w->seen[id] = (seen_t){.live = true, .r = r, .waits_since = w->now, .n_older = waiting_now(w)};
    return id;
}

static node_schedule_request_t request(uint64_t full, uint64_t stream, uint32_t remaining, uint32_t x)
{
    /* With certain acceptance and link_us = x + 1 steps the ideal is x: more drafts gain nothing beside a pass of one.
     */
    node_schedule_request_t r = {.full_bytes = full,
                                 .stream_bytes = stream,
                                 .compressed_bytes = 1,
                                 .remaining = remaining,
                                 .cost = {.draft_us = 1, .verify_us = 1, .link_us = x + 1.0, .chance = 1}};
    return r;
}

/* Late and early transfers by the drawn percentage; never beyond what the task allows. */
static uint64_t bytes_moved(world_t *w, const node_schedule_task_t *t)
{
    if (t->action == NODE_SCHEDULE_VERIFY) /* the pass waits for its layers */
        return t->link_due;
    if (t->link_due && draw(w, 100) < w->late_percent) {
        w->n_late++;
        return draw(w, t->link_due);
    }
    if (t->link_most > t->link_due && draw(w, 100) < w->early_percent) {
        w->n_early++;
        return t->link_due + draw(w, t->link_most - t->link_due + 1);
    }
    return t->link_due;
}

static void verify(world_t *w, const node_schedule_task_t *t)
{
    seen_t *e = &w->seen[t->id];
    uint32_t n = 1 + (uint32_t)draw(w, t->n_drafts + 1);
    cr_assert_eq(e->arrived, e->r.full_bytes, "verified with all of its KV");
    n = (uint32_t)least(n, e->r.remaining);
    cr_assert_eq(node_schedule_verified(w->s, t->id, n, false, NULL), VC_OK);
    w->n_committed += n;
    w->n_verified++;
    e->r.remaining -= n;
    e->live = e->r.remaining > 0;
    e->arrived = e->drafts = 0;
    e->waits_since = w->now + 1;
    e->n_older = waiting_now(w) - 1 * (e->live);
}

/* One iteration, checked. */
static void turn(world_t *w)
{
    static node_schedule_task_t tasks[256];
    uint32_t n = node_schedule_step(w->s, tasks);
    uint64_t due = 0, held = 0, resident = 0;
    cr_assert_leq(n, w->o.max_running);
    for (uint32_t i = 0; i < n; i++) {
        const node_schedule_task_t *t = &tasks[i];
        seen_t *e = &w->seen[t->id];
        uint32_t offset;
        cr_assert(e->live);
        cr_assert_eq(t->n_drafts, e->drafts);
        cr_assert_lt(t->n_drafts, e->r.remaining, "no draft that could never be committed");
        if (t->action == NODE_SCHEDULE_VERIFY || node_schedule_placement(w->s, t->id, &offset)) {
            uint64_t bound = w->o.patience + (uint64_t)(e->n_older + 1) * w->o.window;
            if (w->check_wait && e->waits_since != UINT64_MAX)
                cr_assert_leq(w->now - e->waits_since, bound);
            e->waits_since = UINT64_MAX;
        }
        if (t->link_here < e->arrived) { /* thrown away for an older one: it starts again */
            cr_assert_eq(t->link_here, 0);
            e->arrived = 0;
        }
        cr_assert_eq(t->link_here, e->arrived);
        uint64_t bytes = bytes_moved(w, t), before = e->arrived;
        cr_assert_eq(node_schedule_moved(w->s, t->id, bytes), VC_OK);
        due += t->link_due;
        resident += e->r.compressed_bytes;
        e->arrived += bytes;
        held += t->action == NODE_SCHEDULE_VERIFY ? before + least(e->r.full_bytes - before, e->r.stream_bytes)
                                                  : e->arrived;
        e->drafts += t->action == NODE_SCHEDULE_DRAFT;
        w->hash = (w->hash ^ (t->id * 31 + (uint64_t)t->action * 7 + bytes)) * 0x100000001b3u;
    }
    cr_assert_leq(due, w->o.link_bytes, "the link");
    cr_assert_leq(held, w->o.hold_bytes, "the transient memory");
    cr_assert_leq(resident, w->o.resident_bytes, "the compressed KV");
    for (uint32_t i = 0; i < n; i++)
        if (tasks[i].action == NODE_SCHEDULE_VERIFY)
            verify(w, &tasks[i]);
    node_schedule_end(w->s);
    w->now++;
}

static node_schedule_options_t options(uint32_t window, uint64_t link, uint64_t hold)
{
    node_schedule_options_t o = node_schedule_options_default();
    o.window = window;
    o.patience = window;
    o.max_requests = 64;
    o.max_running = 24;
    o.link_bytes = link;
    o.hold_bytes = hold;
    o.resident_bytes = 1000;
    return o;
}

static node_schedule_request_t random_request(world_t *w)
{
    uint64_t full = 1 + draw(w, 60);
    node_schedule_request_t r =
        request(full, draw(w, 3) ? 1 + draw(w, full) : 0, 1 + (uint32_t)draw(w, 80), (uint32_t)draw(w, 20));
    r.compressed_bytes = 1 + draw(w, 80);
    return r;
}

/* Requests come, end and are cancelled; nothing left behind at the end. */
static void live_through(world_t *w, uint32_t n_turns, uint32_t come_percent, uint32_t cancel_percent)
{
    for (uint32_t i = 0; i < n_turns; i++) {
        if (draw(w, 100) < come_percent)
            (void)add(w, random_request(w));
        if (w->n_ids && draw(w, 100) < cancel_percent) {
            uint64_t id = 1 + draw(w, w->n_ids);
            cr_assert_eq(node_schedule_cancel(w->s, id), w->seen[id].live ? VC_OK : VC_ERR_NOT_FOUND);
            w->seen[id].live = false;
        }
        if (draw(w, 100) < w->vary_percent) {
            w->o.link_bytes = 6 + draw(w, 6);
            w->o.hold_bytes = 70 + draw(w, 30);
            cr_assert_eq(node_schedule_set_budgets(w->s, w->o.link_bytes, w->o.hold_bytes, NULL), VC_OK);
        }
        turn(w);
    }
    for (uint64_t id = 1; id <= w->n_ids; id++)
        if (w->seen[id].live)
            cr_assert_eq(node_schedule_cancel(w->s, id), VC_OK);
    for (uint32_t o = 0; o < w->o.window; o++) {
        uint64_t link, hold;
        node_schedule_reserved(w->s, o, &link, &hold);
        cr_assert_eq(link, 0);
        cr_assert_eq(hold, 0);
    }
    node_schedule_info_t info = node_schedule_info(w->s);
    cr_assert_eq(info.n_running + info.n_queued + info.resident_bytes, 0);
}

Test(schedule, no_budget_is_exceeded_when_transfers_are_on_time)
{
    static world_t w;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        begin(&w, options(16 + (uint32_t)(seed % 5) * 8, 8, 90), seed);
        w.check_wait = true;
        live_through(&w, 600, 25, 3);
        cr_assert_gt(w.n_verified, 50);
        cr_assert_eq(node_schedule_info(w.s).n_dropped, 0);
        node_schedule_destroy(w.s);
    }
}

Test(schedule, no_budget_is_exceeded_when_transfers_are_late_or_early_and_budgets_change)
{
    static world_t w;
    uint64_t late = 0, early = 0;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        begin(&w, options(32, 8, 90), seed);
        w.late_percent = 10 + 10 * (uint32_t)(seed % 4);
        w.early_percent = 10;
        w.vary_percent = seed % 2 ? 5 : 0;
        live_through(&w, 600, 20, 3);
        cr_assert_gt(w.n_verified, 30);
        late += w.n_late;
        early += w.n_early;
        node_schedule_destroy(w.s);
    }
    cr_assert_gt(late, 1000);
    cr_assert_gt(early, 200);
}

Test(schedule, the_same_calls_give_the_same_plan)
{
    static world_t w;
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        begin(&w, options(32, 8, 90), 7);
        w.late_percent = w.early_percent = 10;
        live_through(&w, 500, 25, 3);
        hash[i] = w.hash;
        node_schedule_destroy(w.s);
    }
    cr_assert_eq(hash[0], hash[1]);
    cr_assert_neq(hash[0], 0);
}

/* Can what is left be spread over offsets o..v such that both budgets hold? Every way is tried. */
static bool search(const uint64_t *link, const uint64_t *hold, uint64_t cap_hold, uint32_t o, uint32_t v, uint64_t left,
                   uint64_t here, uint64_t stream)
{
    if (o == v) {
        uint64_t here_then = here + least(left, stream);
        return left <= link[o] && (stream || !left) && here_then <= cap_hold - hold[o];
    }
    for (uint64_t a = 0; a <= least(left, link[o]); a++)
        if (here + a <= cap_hold - hold[o] && search(link, hold, cap_hold, o + 1, v, left - a, here + a, stream))
            return true;
    return false;
}

Test(schedule, the_nearest_feasible_iteration_is_found_whenever_one_exists)
{
    static world_t w;
    enum { W = 6 };
    uint32_t n_placed = 0, n_refused = 0, n_moved = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        begin(&w, options(W, 3, 8), seed);
        w.late_percent = 20;
        for (uint32_t i = 0, n = (uint32_t)draw(&w, 6); i < n; i++)
            (void)add(&w, request(1 + draw(&w, 8), draw(&w, 3), 20, (uint32_t)draw(&w, W)));
        for (uint32_t i = 0, n = (uint32_t)draw(&w, 6); i < n; i++)
            turn(&w);
        node_schedule_info_t info = node_schedule_info(w.s);
        uint32_t x = (uint32_t)draw(&w, W);
        uint64_t full = 1 + draw(&w, 9), stream = draw(&w, 4), room[W], hold[W], promised;
        bool feasible[W], any = false;
        for (uint32_t o = 0; o < W; o++) {
            node_schedule_reserved(w.s, o, &promised, &hold[o]);
            room[o] = 3 - promised;
        }
        for (uint32_t v = 0; v < W; v++)
            any |= feasible[v] = search(room, hold, 8, 0, v, full, 0, stream);
        uint64_t id = info.n_waiting || info.n_queued ? 0 : add(&w, request(full, stream, 20, x));
        if (id) {
            node_schedule_task_t tasks[64];
            uint32_t at = 0, near = 0;
            (void)node_schedule_step(w.s, tasks);
            bool placed = node_schedule_placement(w.s, id, &at);
            cr_assert_eq(placed, any);
            while (any && !(x + near < W && feasible[x + near]) && !(near <= x && feasible[x - near]))
                near++;
            if (any)
                cr_assert_eq(at, x + near < W && feasible[x + near] ? x + near : x - near);
            n_placed += placed;
            n_refused += !placed;
            n_moved += placed && near > 0;
        }
        node_schedule_destroy(w.s);
    }
    cr_assert_gt(n_placed, 300);
    cr_assert_gt(n_moved, 100);
    cr_assert_gt(n_refused, 20);
}

/* Eight small requests that want more than the link has, and a large one. When is the large one first placed? */
static uint64_t placed_after(uint32_t patience, uint32_t n_turns)
{
    static world_t w;
    uint32_t at;
    node_schedule_options_t o = options(16, 4, 100);
    o.patience = patience;
    begin(&w, o, 1);
    for (int i = 0; i < 8; i++)
        (void)add(&w, request(9, 1, 100000, 15));
    for (int i = 0; i < 20; i++)
        turn(&w);
    uint64_t begun = w.now, id = add(&w, request(60, 1, 100, 15)), when = UINT64_MAX;
    for (uint32_t i = 0; i < n_turns && when == UINT64_MAX; i++) {
        turn(&w);
        if (node_schedule_placement(w.s, id, &at))
            when = w.now - 1 - begun;
    }
    node_schedule_destroy(w.s);
    return when;
}

Test(schedule, a_request_too_large_for_the_gaps_is_placed_within_the_stated_bound)
{
    cr_assert_leq(placed_after(24, 200), 24 + 16);
    cr_assert_leq(placed_after(0, 200), 16);
    cr_assert_eq(placed_after(UINT32_MAX, 2000), UINT64_MAX, "it is patience that makes room");
}

Test(schedule, queued_requests_are_admitted_in_order_of_arrival)
{
    static world_t w;
    node_schedule_options_t o = options(16, 4, 100);
    o.max_running = 3;
    begin(&w, o, 5);
    uint64_t last = 0;
    for (int i = 0; i < 20; i++)
        (void)add(&w, request(4 + draw(&w, 20), 1, 12, 4));
    for (uint32_t i = 0; i < 2000 && node_schedule_info(w.s).n_running + node_schedule_info(w.s).n_queued; i++) {
        node_schedule_task_t tasks[64];
        uint32_t n = node_schedule_step(w.s, tasks);
        for (uint32_t k = 0; k < n; k++) {
            cr_assert_leq(tasks[k].id, last + 1);
            last = tasks[k].id > last ? tasks[k].id : last;
            cr_assert_eq(node_schedule_moved(w.s, tasks[k].id, tasks[k].link_due), VC_OK);
            if (tasks[k].action == NODE_SCHEDULE_VERIFY)
                cr_assert_eq(node_schedule_verified(w.s, tasks[k].id, 1, false, NULL), VC_OK);
        }
        node_schedule_end(w.s);
    }
    cr_assert_eq(last, 20);
    cr_assert_eq(node_schedule_info(w.s).n_running + node_schedule_info(w.s).n_queued, 0, "every request ends");
    node_schedule_destroy(w.s);
}

static void reserved(const node_schedule_t *s, uint64_t *link, uint64_t *hold, uint32_t window)
{
    for (uint32_t o = 0; o < window; o++)
        node_schedule_reserved(s, o, &link[o], &hold[o]);
}

Test(schedule, a_cancelled_request_gives_back_exactly_what_it_reserved)
{
    enum { W = 32 };
    static world_t w;
    uint64_t link[W], hold[W], link_after[W], hold_after[W];
    begin(&w, options(W, 6, 60), 3);
    for (int i = 0; i < 5; i++)
        (void)add(&w, request(20, i % 2 ? 4 : 0, 1000, 10));
    for (int i = 0; i < 15; i++)
        turn(&w);
    node_schedule_task_t tasks[64];
    (void)node_schedule_step(w.s, tasks);
    reserved(w.s, link, hold, W);
    node_schedule_end(w.s); /* nothing moved: the plan is laid anew */
    reserved(w.s, link, hold, W);
    uint64_t id = 0;
    node_schedule_request_t r = request(12, 2, 50, 9);
    cr_assert_eq(node_schedule_add(w.s, &r, &id, NULL), VC_OK);
    (void)node_schedule_step(w.s, tasks);
    uint32_t at;
    cr_assert(node_schedule_placement(w.s, id, &at));
    reserved(w.s, link_after, hold_after, W);
    cr_assert(memcmp(link, link_after, sizeof link) != 0);
    cr_assert_eq(node_schedule_cancel(w.s, id), VC_OK);
    reserved(w.s, link_after, hold_after, W);
    cr_assert_arr_eq(link, link_after, sizeof link);
    cr_assert_arr_eq(hold, hold_after, sizeof hold);
    cr_assert_eq(node_schedule_cancel(w.s, id), VC_ERR_NOT_FOUND);
    node_schedule_destroy(w.s);
}
