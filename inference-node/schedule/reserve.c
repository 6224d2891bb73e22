/*
 * Reservations in the two budgets. A transfer is laid backward from its verify iteration, each iteration filled to its
 * budget: no other way to lay it holds fewer bytes at the end of any iteration, so feasibility is exact.
 *
 *     offset        0    1    2    3=v            held at the end of o < v: what came until then;
 *     link room     5    2    5    3              during v: what came before and stream_bytes, since layers that
 *     share of 9    0    1    5    3              arrive in the pass are used and dropped as it goes.
 */
#include "schedule_int.h"

#include <string.h>

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Held during the verify pass, when `before` bytes came before it. */
static uint64_t held_in_pass(const node_schedule_request_t *r, uint64_t before)
{
    uint64_t rest = r->full_bytes - before;
    return before + min_u64(rest, r->stream_bytes);
}

bool schedule_fits_alone(const node_schedule_t *s, const node_schedule_request_t *r, uint64_t link, uint64_t hold)
{
    /* The last offset has the most room on the link; before it, all but what the pass itself can take is held. */
    uint64_t in_pass = r->stream_bytes ? min_u64(r->full_bytes, link) : 0;
    uint64_t before = r->full_bytes - in_pass;
    uint64_t n = s->opt.window - 1;
    return (link > 0 || before == 0) && (before == 0 || (before - 1) / (link ? link : 1) < n) &&
           held_in_pass(r, before) <= hold;
}

/* Writes the shares; false when the link has no room for all of them. */
static bool lay(node_schedule_t *s, slot_t *slot, uint32_t offset)
{
    uint64_t left = slot->request.full_bytes - slot->arrived;
    for (uint32_t n = offset + 1; n-- > 0;) {
        uint32_t i = schedule_ring(s, n);
        bool open = n < offset || slot->request.stream_bytes > 0;
        slot->share[i] = open ? min_u64(s->opt.link_bytes - s->link[i], left) : 0;
        left -= slot->share[i];
    }
    return left == 0;
}

/* Adds (or takes back) what the shares promise and hold; false, without adding, where too much would be held. */
static bool account(node_schedule_t *s, slot_t *slot, uint32_t offset, bool take_back)
{
    for (int apply = take_back; apply < 2; apply++) {
        uint64_t here = slot->arrived;
        for (uint32_t o = 0; o <= offset; o++) {
            uint32_t i = schedule_ring(s, o);
            uint64_t held = o < offset ? here + slot->share[i] : held_in_pass(&slot->request, here);
            here += slot->share[i];
            if (!apply && (s->hold[i] > s->opt.hold_bytes || held > s->opt.hold_bytes - s->hold[i]))
                return false;
            if (!apply)
                continue;
            s->link[i] += take_back ? 0 - slot->share[i] : slot->share[i];
            s->hold[i] += take_back ? 0 - held : held;
        }
    }
    return true;
}

static void clear_shares(node_schedule_t *s, slot_t *slot)
{
    memset(slot->share, 0, s->opt.window * sizeof *slot->share);
}

bool schedule_reserve(node_schedule_t *s, slot_t *slot, uint32_t offset)
{
    if (!lay(s, slot, offset) || !account(s, slot, offset, false)) {
        clear_shares(s, slot);
        return false;
    }
    slot->placed = true;
    slot->verify_at = s->now + offset;
    return true;
}

bool schedule_reserve_near(node_schedule_t *s, slot_t *slot, uint32_t target)
{
    uint32_t last = s->opt.window - 1;
    if (target > last)
        target = last;
    bool room = lay(s, slot, last); /* the whole window has the most room on the link */
    clear_shares(s, slot);
    for (uint32_t d = 0; room && d <= last; d++) {
        if (d <= last - target && schedule_reserve(s, slot, target + d))
            return true;
        if (d > 0 && d <= target && schedule_reserve(s, slot, target - d))
            return true;
    }
    return false;
}

void schedule_release(node_schedule_t *s, slot_t *slot)
{
    if (!slot->placed)
        return;
    account(s, slot, (uint32_t)(slot->verify_at - s->now), true);
    clear_shares(s, slot);
    slot->placed = false;
}

/* What is here stays held to the end of the window, until its request is laid again. */
static void hold_all(node_schedule_t *s, uint64_t bytes, bool take_back)
{
    for (uint32_t i = 0; i < s->opt.window; i++)
        s->hold[i] += take_back ? 0 - bytes : bytes;
}

/* Of those still to be laid: the first by (verify iteration, id), or the last that has bytes here. */
static slot_t *pick_pending(node_schedule_t *s, bool last_with_bytes)
{
    slot_t *best = NULL;
    for (uint32_t i = 0; i < s->opt.max_requests; i++) {
        slot_t *c = &s->slots[i];
        if (!c->pending || (last_with_bytes && !c->arrived))
            continue;
        bool before = !best || c->verify_at < best->verify_at || (c->verify_at == best->verify_at && c->id < best->id);
        if (!best || before != last_with_bytes)
            best = c;
    }
    return best;
}

static void drop(node_schedule_t *s, slot_t *slot)
{
    slot->arrived = 0;
    s->n_dropped++;
}

void schedule_relay(node_schedule_t *s)
{
    memset(s->link, 0, s->opt.window * sizeof *s->link);
    memset(s->hold, 0, s->opt.window * sizeof *s->hold);
    for (uint32_t i = 0; i < s->opt.max_requests; i++) {
        slot_t *slot = &s->slots[i];
        slot->pending = slot->state == SLOT_RUNNING && slot->placed;
        if (!slot->pending)
            continue;
        clear_shares(s, slot);
        slot->placed = false;
        hold_all(s, slot->arrived, false);
    }
    for (slot_t *slot; (slot = pick_pending(s, false)) != NULL;) {
        slot->pending = false;
        hold_all(s, slot->arrived, true);
        uint32_t target = slot->verify_at > s->now ? (uint32_t)(slot->verify_at - s->now) : 0;
        while (!schedule_reserve_near(s, slot, target)) {
            slot_t *other = pick_pending(s, true);
            if (other) { /* half-arrived requests must not lock each other out of the memory */
                hold_all(s, other->arrived, true);
                drop(s, other);
            } else { /* fits alone, so only those laid before it are in the way: it waits behind them */
                if (slot->arrived)
                    drop(s, slot);
                slot->since = s->now;
                break;
            }
        }
    }
}
