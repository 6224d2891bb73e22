/*
 * The life of requests: queued, running and drafting, verified, gone. Placing is in reserve.c, the planned draft length
 * in ideal.c. Every call costs at most (requests x window), a step (requests x window^2) when nothing fits.
 */
#include "schedule/schedule.h"

#include <inttypes.h>
#include <string.h>

#include "schedule_int.h"
#include "vc/mem.h"

node_schedule_options_t node_schedule_options_default(void)
{
    return (node_schedule_options_t){
        .window = 64, .max_requests = 64, .max_running = 16, .max_draft = 48, .patience = 64};
}

static vc_status_t check_options(const node_schedule_options_t *o, vc_err_t *err)
{
    if (o->window < 2 || o->window > NODE_SCHEDULE_WINDOW_MAX)
        return vc_err_set(err, VC_ERR_INVALID, "a window of %" PRIu32 " iterations is not in 2 to %u", o->window,
                          NODE_SCHEDULE_WINDOW_MAX);
    if (o->max_requests < 1 || o->max_requests > NODE_SCHEDULE_REQUESTS_MAX)
        return vc_err_set(err, VC_ERR_INVALID, "room for %" PRIu32 " requests is not in 1 to %u", o->max_requests,
                          NODE_SCHEDULE_REQUESTS_MAX);
    if (o->max_running < 1 || o->max_running > o->max_requests)
        return vc_err_set(err, VC_ERR_INVALID, "%" PRIu32 " running requests are not in 1 to %" PRIu32, o->max_running,
                          o->max_requests);
    return VC_OK;
}

vc_status_t node_schedule_create(const node_schedule_options_t *o, node_schedule_t **schedule_p, vc_err_t *err)
{
    vc_status_t status = check_options(o, err);
    if (status != VC_OK)
        return status;
    size_t n = o->max_requests, w = o->window;
    node_schedule_t *s = vc_calloc(1, sizeof *s);
    uint64_t *rings = vc_calloc((n + 2) * w, sizeof *rings);
    slot_t *slots = vc_calloc(n, sizeof *slots);
    uint32_t *order = vc_calloc(n, sizeof *order);
    if (!s || !rings || !slots || !order) {
        vc_free(s);
        vc_free(rings);
        vc_free(slots);
        vc_free(order);
        return vc_err_set(err, VC_ERR_NOMEM, "no memory to schedule %zu requests over %zu iterations", n, w);
    }
    s->opt = *o;
    s->next_id = 1;
    s->next_link = o->link_bytes;
    s->next_hold = o->hold_bytes;
    s->link = rings;
    s->hold = rings + w;
    s->slots = slots;
    s->order = order;
    for (size_t i = 0; i < n; i++)
        slots[i].share = rings + (2 + i) * w;
    *schedule_p = s;
    return VC_OK;
}

void node_schedule_destroy(node_schedule_t *s)
{
    if (!s)
        return;
    vc_free(s->link);
    vc_free(s->slots);
    vc_free(s->order);
    vc_free(s);
}

static slot_t *find(const node_schedule_t *s, uint64_t id)
{
    for (uint32_t i = 0; id && i < s->opt.max_requests; i++)
        if (s->slots[i].state != SLOT_FREE && s->slots[i].id == id)
            return &s->slots[i];
    return NULL;
}

static vc_status_t check_request(const node_schedule_t *s, const node_schedule_request_t *r, vc_err_t *err)
{
    if (!r->remaining)
        return vc_err_set(err, VC_ERR_RANGE, "a request without tokens to commit");
    if (!(r->cost.chance >= 0 && r->cost.chance <= 1))
        return vc_err_set(err, VC_ERR_RANGE, "a chance of acceptance that is not in 0 to 1");
    if (r->compressed_bytes > s->opt.resident_bytes)
        return vc_err_set(err, VC_ERR_RANGE, "%" PRIu64 " bytes of compressed KV do not fit into %" PRIu64,
                          r->compressed_bytes, s->opt.resident_bytes);
    if (!s->opt.lock_step && !schedule_fits_alone(s, r, s->next_link, s->next_hold))
        return vc_err_set(err, VC_ERR_RANGE,
                          "%" PRIu64 " bytes of full KV cannot be verified within %" PRIu32 " iterations of %" PRIu64
                          " bytes, %" PRIu64 " held",
                          r->full_bytes, s->opt.window, s->next_link, s->next_hold);
    return VC_OK;
}

vc_status_t node_schedule_add(node_schedule_t *s, const node_schedule_request_t *request, uint64_t *id_p, vc_err_t *err)
{
    vc_status_t status = check_request(s, request, err);
    if (status != VC_OK)
        return status;
    for (uint32_t i = 0; i < s->opt.max_requests; i++) {
        slot_t *slot = &s->slots[i];
        if (slot->state != SLOT_FREE)
            continue;
        uint64_t *share = slot->share; /* all zero: a free slot has no reservation */
        *slot = (slot_t){.state = SLOT_QUEUED, .id = s->next_id++, .request = *request, .share = share};
        slot->since = s->now + s->in_iteration;
        s->n_queued++;
        *id_p = slot->id;
        return VC_OK;
    }
    return vc_err_set(err, VC_ERR_BUSY, "%" PRIu32 " requests are there already", s->opt.max_requests);
}

static void forget(node_schedule_t *s, slot_t *slot)
{
    if (slot->state == SLOT_QUEUED) {
        s->n_queued--;
    } else {
        if (!s->opt.lock_step)
            schedule_release(s, slot);
        s->resident -= slot->request.compressed_bytes;
        s->n_running--;
    }
    slot->placed = false;
    slot->state = SLOT_FREE;
}

vc_status_t node_schedule_cancel(node_schedule_t *s, uint64_t id)
{
    slot_t *slot = find(s, id);
    if (!slot)
        return VC_ERR_NOT_FOUND;
    forget(s, slot);
    return VC_OK;
}

static void apply_budgets(node_schedule_t *s)
{
    s->opt.link_bytes = s->next_link;
    s->opt.hold_bytes = s->next_hold;
    if (!s->opt.lock_step)
        schedule_relay(s);
}

vc_status_t node_schedule_set_budgets(node_schedule_t *s, uint64_t link_bytes, uint64_t hold_bytes, vc_err_t *err)
{
    for (uint32_t i = 0; i < s->opt.max_requests && !s->opt.lock_step; i++) {
        const slot_t *slot = &s->slots[i];
        if (slot->state != SLOT_FREE && !schedule_fits_alone(s, &slot->request, link_bytes, hold_bytes))
            return vc_err_set(err, VC_ERR_RANGE, "request %" PRIu64 " of %" PRIu64 " bytes could never be verified",
                              slot->id, slot->request.full_bytes);
    }
    s->next_link = link_bytes;
    s->next_hold = hold_bytes;
    if (s->in_iteration)
        s->dirty = true;
    else
        apply_budgets(s);
    return VC_OK;
}

/* Drafts worth making: the verifier adds a token of its own. */
static uint32_t draft_limit(const node_schedule_t *s, const slot_t *slot)
{
    return VC_MIN(s->opt.max_draft, slot->request.remaining - 1);
}

static bool has_room(const node_schedule_t *s, const slot_t *slot)
{
    return s->n_running < s->opt.max_running && slot->request.compressed_bytes <= s->opt.resident_bytes - s->resident;
}

static void admit(node_schedule_t *s, slot_t *slot)
{
    slot->state = SLOT_RUNNING;
    slot->n_drafts = 0;
    slot->enough = false;
    s->n_queued--;
    s->n_running++;
    s->resident += slot->request.compressed_bytes;
}

static bool older(const slot_t *a, const slot_t *b)
{
    return a->since != b->since ? a->since < b->since : a->id < b->id;
}

/* Slots that pass the test, sorted, in s->order: insertion sort, since there are few and most are in order. */
static uint32_t collect(node_schedule_t *s, bool (*want)(const slot_t *),
                        bool (*before)(const slot_t *, const slot_t *))
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->opt.max_requests; i++) {
        if (!want(&s->slots[i]))
            continue;
        uint32_t j = n++;
        for (; j > 0 && before(&s->slots[i], &s->slots[s->order[j - 1]]); j--)
            s->order[j] = s->order[j - 1];
        s->order[j] = i;
    }
    return n;
}

static bool is_waiting(const slot_t *c) { return c->state != SLOT_FREE && !c->placed; }
static bool is_running(const slot_t *c) { return c->state == SLOT_RUNNING; }
static bool lower_id(const slot_t *a, const slot_t *b) { return a->id < b->id; }

/* Iterations from now to the verification that the draft length asks for. */
static uint32_t target(const node_schedule_t *s, const slot_t *slot)
{
    uint32_t x = node_schedule_ideal(&slot->request.cost, draft_limit(s, slot));
    return x > slot->n_drafts && !slot->enough ? x - slot->n_drafts : 0;
}

static void place_waiting(node_schedule_t *s)
{
    bool queue_stands = false; /* a request that found no slot or memory: none behind it in the queue is admitted */
    uint32_t n = collect(s, is_waiting, older);
    for (uint32_t i = 0; i < n; i++) {
        slot_t *slot = &s->slots[s->order[i]];
        bool queued = slot->state == SLOT_QUEUED;
        if (queued && (queue_stands || !has_room(s, slot))) {
            queue_stands = true;
            continue;
        }
        if (schedule_reserve_near(s, slot, target(s, slot))) {
            if (queued)
                admit(s, slot);
        } else {
            if (s->now - slot->since >= s->opt.patience)
                return; /* younger ones stand back until it is placed */
            queue_stands = queue_stands || queued;
        }
    }
}

/* The baseline: when all running requests were verified, admit, and verify all after the same number of drafts. */
static void place_lock_step(node_schedule_t *s)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->opt.max_requests; i++)
        if (s->slots[i].state == SLOT_RUNNING && s->slots[i].placed)
            return;
    uint32_t n = collect(s, is_waiting, older);
    bool queue_stands = false;
    for (uint32_t i = 0; i < n; i++) {
        slot_t *slot = &s->slots[s->order[i]];
        if (slot->state == SLOT_QUEUED) {
            queue_stands = queue_stands || !has_room(s, slot);
            if (queue_stands)
                continue;
            admit(s, slot);
        }
        sum += target(s, slot);
    }
    for (uint32_t i = 0; i < n; i++) {
        slot_t *slot = &s->slots[s->order[i]];
        slot->placed = slot->state == SLOT_RUNNING;
        slot->verify_at = s->now + (s->n_running ? (sum + s->n_running / 2) / s->n_running : 0);
    }
}

/* Lock-step: load ahead as memory allows while drafting, the rest during the common pass. */
static void dues_lock_step(node_schedule_t *s, uint32_t n)
{
    uint64_t link = s->opt.link_bytes, hold = s->opt.hold_bytes;
    for (uint32_t i = 0; i < n; i++)
        hold -= VC_MIN(hold, s->slots[s->order[i]].arrived);
    for (uint32_t i = 0; i < n; i++) {
        slot_t *slot = &s->slots[s->order[i]];
        uint64_t rest = slot->request.full_bytes - slot->arrived;
        slot->most = slot->verifying ? rest : VC_MIN(rest, hold);
        slot->due = slot->verifying ? rest : VC_MIN(slot->most, link);
        if (!slot->verifying) {
            link -= slot->due;
            hold -= slot->most;
        }
    }
}

/* All is here, and further drafts are not worth the wait. Data that comes early says that the link has time to spare:
 * a round that is cut short for it costs a verify pass and gains nothing. Full KV in memory is never early. */
static bool came_early(const node_schedule_t *s, const slot_t *slot)
{
    if (slot->arrived < slot->request.full_bytes)
        return false;
    return slot->enough || (slot->request.full_bytes > 0 && target(s, slot) == 0);
}

/* Complete before its time: verify now, give the rest of the reservation back. It was held until then anyway. */
static void verify_early(node_schedule_t *s, slot_t *slot)
{
    schedule_release(s, slot);
    if (!schedule_reserve(s, slot, 0)) { /* not reached: what is here is accounted at every offset up to the old one */
        slot->arrived = 0;
        slot->since = s->now;
        s->n_dropped++;
    }
}

/* What memory leaves to a transfer beyond its shares, up to and in its verify pass. */
static uint64_t spare(const node_schedule_t *s, const slot_t *slot)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t o = 0; o <= slot->verify_at - s->now; o++)
        least = VC_MIN(least, s->opt.hold_bytes - s->hold[schedule_ring(s, o)]);
    return least;
}

static void dues(node_schedule_t *s, uint32_t n)
{
    uint64_t given = 0; /* of spare memory, to requests before this one */
    for (uint32_t i = 0; i < n; i++) {
        slot_t *slot = &s->slots[s->order[i]];
        if (!slot->placed)
            continue;
        uint64_t rest = slot->request.full_bytes - slot->arrived;
        slot->due = slot->share[schedule_ring(s, 0)];
        slot->most = slot->due;
        if (slot->verifying)
            continue;
        uint64_t room = spare(s, slot), extra = VC_MIN(rest - slot->due, room - VC_MIN(room, given));
        slot->most += extra;
        given += extra;
    }
}

uint32_t node_schedule_step(node_schedule_t *s, node_schedule_task_t *tasks)
{
    if (s->opt.lock_step)
        place_lock_step(s);
    else
        place_waiting(s);
    uint32_t n = collect(s, is_running, lower_id);
    for (uint32_t i = 0; i < n; i++) {
        slot_t *slot = &s->slots[s->order[i]];
        slot->due = slot->most = slot->moved = 0;
        if (!s->opt.lock_step && slot->placed && slot->verify_at > s->now && came_early(s, slot))
            verify_early(s, slot);
        slot->verifying = slot->placed && slot->verify_at <= s->now;
        slot->drafting = !slot->verifying && !slot->enough && slot->n_drafts < draft_limit(s, slot);
        slot->n_drafted = slot->drafting;
    }
    if (s->opt.lock_step)
        dues_lock_step(s, n);
    else
        dues(s, n);
    for (uint32_t i = 0; i < n; i++) {
        const slot_t *slot = &s->slots[s->order[i]];
        tasks[i] = (node_schedule_task_t){.id = slot->id,
                                          .action = slot->verifying  ? NODE_SCHEDULE_VERIFY
                                                    : slot->drafting ? NODE_SCHEDULE_DRAFT
                                                                     : NODE_SCHEDULE_WAIT,
                                          .n_drafts = slot->n_drafts,
                                          .link_here = slot->arrived,
                                          .link_due = slot->due,
                                          .link_most = slot->most};
    }
    s->in_iteration = true;
    return n;
}

vc_status_t node_schedule_moved(node_schedule_t *s, uint64_t id, uint64_t bytes)
{
    slot_t *slot = find(s, id);
    if (!slot || !s->in_iteration)
        return VC_ERR_NOT_FOUND;
    if (bytes > slot->most - slot->moved)
        return VC_ERR_RANGE;
    slot->moved += bytes;
    return VC_OK;
}

vc_status_t node_schedule_drafted(node_schedule_t *s, uint64_t id, uint32_t n_drafts, bool enough)
{
    slot_t *slot = find(s, id);
    if (!slot || !s->in_iteration || slot->state != SLOT_RUNNING)
        return VC_ERR_NOT_FOUND;
    if (n_drafts > 0 && !slot->drafting)
        return VC_ERR_RANGE;
    slot->n_drafted = n_drafts;
    slot->enough = enough;
    return VC_OK;
}

vc_status_t node_schedule_resize(node_schedule_t *s, uint64_t id, uint64_t full_bytes, uint64_t stream_bytes)
{
    slot_t *slot = find(s, id);
    if (!slot || slot->placed || slot->arrived || slot->moved)
        return VC_ERR_NOT_FOUND;
    node_schedule_request_t grown = slot->request;
    grown.full_bytes = full_bytes;
    grown.stream_bytes = stream_bytes;
    if (!s->opt.lock_step && !schedule_fits_alone(s, &grown, s->next_link, s->next_hold))
        return VC_ERR_RANGE;
    slot->request = grown;
    return VC_OK;
}

vc_status_t node_schedule_verified(node_schedule_t *s, uint64_t id, uint32_t n_committed, bool ended,
                                   const node_schedule_cost_t *cost)
{
    slot_t *slot = find(s, id);
    if (!slot || !s->in_iteration || !slot->verifying)
        return VC_ERR_NOT_FOUND;
    if (!n_committed || n_committed > slot->request.remaining || (cost && !(cost->chance >= 0 && cost->chance <= 1)))
        return VC_ERR_RANGE;
    slot->request.remaining -= n_committed;
    if (ended || !slot->request.remaining) {
        forget(s, slot);
        return VC_OK;
    }
    if (cost)
        slot->request.cost = *cost;
    if (!s->opt.lock_step)
        schedule_release(s, slot);
    slot->placed = slot->verifying = slot->enough = false;
    slot->n_drafts = slot->n_drafted = 0;
    slot->arrived = slot->moved = slot->due = slot->most = 0;
    slot->since = s->now + 1;
    return VC_OK;
}

void node_schedule_end(node_schedule_t *s)
{
    bool dirty = s->dirty;
    for (uint32_t i = 0; i < s->opt.max_requests; i++) {
        slot_t *slot = &s->slots[i];
        if (slot->state != SLOT_RUNNING || !s->in_iteration)
            continue;
        slot->n_drafts = VC_MIN(slot->n_drafts + slot->n_drafted, draft_limit(s, slot));
        slot->n_drafted = 0;
        slot->drafting = false;
        if (slot->placed) {
            dirty = dirty || slot->moved != slot->due || slot->verifying;
            slot->arrived += slot->moved;
            slot->share[s->base] = 0;
        }
        slot->moved = slot->due = slot->most = 0;
        slot->verifying = false;
    }
    s->link[s->base] = s->hold[s->base] = 0;
    s->base = (s->base + 1) % s->opt.window;
    s->now++;
    s->in_iteration = s->dirty = false;
    if (dirty)
        apply_budgets(s);
}

node_schedule_info_t node_schedule_info(const node_schedule_t *s)
{
    node_schedule_info_t info = {.now = s->now,
                                 .n_running = s->n_running,
                                 .n_queued = s->n_queued,
                                 .resident_bytes = s->resident,
                                 .n_dropped = s->n_dropped};
    for (uint32_t i = 0; i < s->opt.max_requests; i++)
        info.n_waiting += s->slots[i].state == SLOT_RUNNING && !s->slots[i].placed;
    return info;
}

void node_schedule_reserved(const node_schedule_t *s, uint32_t offset, uint64_t *link_p, uint64_t *hold_p)
{
    *link_p = s->link[schedule_ring(s, offset)];
    *hold_p = s->hold[schedule_ring(s, offset)];
}

bool node_schedule_placement(const node_schedule_t *s, uint64_t id, uint32_t *offset_p)
{
    const slot_t *slot = find(s, id);
    if (!slot || !slot->placed)
        return false;
    *offset_p = slot->verify_at > s->now ? (uint32_t)(slot->verify_at - s->now) : 0;
    return true;
}
