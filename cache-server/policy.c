/*
 * The policy. See policy.h.
 *
 * A story of one number. Every use adds one to an item's worth, and all worth halves once per half-life. Written as a
 * logarithm against a clock that counts half-lives, that number stands still between uses: level = clock + log2(worth).
 * So the order of the items never changes by itself, a heap keeps it, and the victim is its top.
 *
 *  - The clock counts bytes inserted, in multiples of the capacity: how fast things age follows from how fast the cache
 *    turns over, not from the time of day. It stands still within one run of a chain, so that the blocks of a request
 *    are used at one time and the deepest of them goes first: a block that is used has all its parents used too, so no
 *    child outranks its parent.
 *  - New items live in a window, a small share of the capacity, and are not victims there unless nothing else is left:
 *    what was registered can be found, whatever the rest is worth. Who leaves the window unused competes by its level.
 *  - Evicted items leave their level in the ghost table. Who comes back goes on where it was, plus one use.
 *  - Compressed copies stand CLASS_BONUS half-lives higher than full copies of the same use: they give back as much
 *    time for fewer bytes. Not more than that, so that old ones go, too.
 *  - Items that the caller keeps (pinned, leased) are parked outside the heap when they come to its top, and looked at
 *    again in turn, a few per call.
 *
 * Memory: one array of numbers holds three regions, `heap` from the left, `parked` behind it, `window` (a heap, too)
 * from the right; an item's pos says where it is.
 */
#include "policy.h"

#include <math.h>
#include <string.h>

#include "vc/mem.h"

#define ONE 4096u /* fixed point of levels: one half-life, one doubling */
#define CLOCK_START (64u * ONE)
#define CLOCK_REBASE 0xe0000000u
#define REBASE_BY 0x80000000u
#define HALF_LIFE_TURNOVERS 2u
#define WINDOW_SHARE 16u /* one part in so many */
#define CLASS_BONUS (2u * ONE) /* 16-bit values against 4-bit codes: a quarter of the bytes */
#define GHOST_WAYS 8u
#define GHOSTS_MIN 65536u
#define GHOSTS_PER_ID 2u
#define RECHECKS 4u /* parked items looked at per call */
#define SOFT_STEPS 16u
#define SOFT_MAX 12u /* beyond, adding one changes nothing */
#define NO_POS UINT32_MAX

enum { FLAG_FULL = 1u, FLAG_ORPHAN = 2u };

typedef struct item {
    uint32_t level; /* clock + log2(worth) + bonus */
    uint32_t fp;
    uint32_t bytes;
    uint32_t pos; /* in slots; NO_POS: not inside */
    uint16_t depth;
    uint16_t flags;
} item_t;
_Static_assert(sizeof(item_t) + sizeof(uint32_t) <= 24, "memory per id is a promise");

typedef struct ghost {
    uint32_t fp, level; /* level without bonus; 0: unused */
} ghost_t;

struct cs_policy {
    item_t *items;
    uint32_t *slots; /* [0, n_heap) heap, [n_heap, n_heap + n_parked) parked, [limit - n_window, limit) window */
    ghost_t *ghosts;
    uint32_t limit, n_heap, n_parked, n_window;
    uint32_t n_ghost_buckets;
    uint32_t clock, last_depth, parked_cursor;
    uint64_t capacity_bytes, window_bytes, fresh_bytes; /* fresh: inserted and not yet on the clock */
    uint16_t soft[SOFT_MAX * SOFT_STEPS + 2];           /* log2(1 + 2^-x) at x = i / SOFT_STEPS */
};

/* ---- levels ---- */

/* log2(2^a + 2^b): worth a and worth b together. */
static uint32_t level_add(const cs_policy_t *p, uint32_t a, uint32_t b)
{
    uint32_t hi = VC_MAX(a, b), x = hi - VC_MIN(a, b);
    if (x >= SOFT_MAX * ONE)
        return hi;
    uint32_t step = ONE / SOFT_STEPS, i = x / step, rest = x % step;
    uint32_t left = p->soft[i], right = p->soft[i + 1];
    return hi + left - (left - right) * rest / step;
}

static uint32_t bonus(const item_t *item) { return item->flags & FLAG_FULL ? 0 : CLASS_BONUS; }

static bool goes_before(const cs_policy_t *p, uint32_t a, uint32_t b)
{
    const item_t *x = &p->items[a], *y = &p->items[b];
    if (x->level != y->level)
        return x->level < y->level;
    return x->depth > y->depth;
}

/* ---- the three regions ---- */

static void place(cs_policy_t *p, uint32_t slot, uint32_t id)
{
    p->slots[slot] = id;
    p->items[id].pos = slot;
}

typedef struct side { /* how a heap lies in slots: position i is at base + i * step */
    uint32_t base, n;
    bool reversed;
} side_t;

static side_t heap_side(const cs_policy_t *p) { return (side_t){0, p->n_heap, false}; }
static side_t window_side(const cs_policy_t *p) { return (side_t){p->limit - 1, p->n_window, true}; }
static uint32_t side_slot(const side_t *s, uint32_t i) { return s->reversed ? s->base - i : s->base + i; }

static uint32_t sift_up(cs_policy_t *p, const side_t *s, uint32_t i, uint32_t id)
{
    while (i > 0) {
        uint32_t up = (i - 1) / 2, other = p->slots[side_slot(s, up)];
        if (!goes_before(p, id, other))
            break;
        place(p, side_slot(s, i), other);
        i = up;
    }
    place(p, side_slot(s, i), id);
    return i;
}

static void sift_down(cs_policy_t *p, const side_t *s, uint32_t i, uint32_t id)
{
    for (uint32_t child; (child = 2 * i + 1) < s->n; i = child) {
        if (child + 1 < s->n && goes_before(p, p->slots[side_slot(s, child + 1)], p->slots[side_slot(s, child)]))
            child++;
        uint32_t other = p->slots[side_slot(s, child)];
        if (!goes_before(p, other, id))
            break;
        place(p, side_slot(s, i), other);
    }
    place(p, side_slot(s, i), id);
}

static void side_fix(cs_policy_t *p, const side_t *s, uint32_t i, uint32_t id)
{
    if (sift_up(p, s, i, id) == i)
        sift_down(p, s, i, id);
}

static void heap_push(cs_policy_t *p, uint32_t id)
{
    if (p->n_parked > 0) /* the first parked one makes room, behind the last */
        place(p, p->n_heap + p->n_parked, p->slots[p->n_heap]);
    p->n_heap++;
    side_t s = heap_side(p);
    sift_up(p, &s, p->n_heap - 1, id);
}

static void heap_remove(cs_policy_t *p, uint32_t id)
{
    uint32_t i = p->items[id].pos, last = p->slots[--p->n_heap];
    side_t s = heap_side(p);
    if (last != id)
        side_fix(p, &s, i, last);
    if (p->n_parked > 0)
        place(p, p->n_heap, p->slots[p->n_heap + p->n_parked]);
}

static void park(cs_policy_t *p, uint32_t id)
{
    heap_remove(p, id);
    place(p, p->n_heap + p->n_parked, id);
    p->n_parked++;
}

static void unpark(cs_policy_t *p, uint32_t id)
{
    uint32_t last = p->slots[p->n_heap + --p->n_parked];
    if (last != id)
        place(p, p->items[id].pos, last);
}

static void window_push(cs_policy_t *p, uint32_t id)
{
    p->n_window++;
    p->window_bytes += p->items[id].bytes;
    side_t s = window_side(p);
    sift_up(p, &s, p->n_window - 1, id);
}

static void window_remove(cs_policy_t *p, uint32_t id)
{
    side_t s = window_side(p);
    uint32_t i = s.base - p->items[id].pos, last = p->slots[side_slot(&s, --p->n_window)];
    s.n = p->n_window;
    p->window_bytes -= p->items[id].bytes;
    if (last != id)
        side_fix(p, &s, i, last);
}

static bool is_inside(const cs_policy_t *p, uint32_t id) { return id < p->limit && p->items[id].pos != NO_POS; }
static bool in_heap(const cs_policy_t *p, uint32_t id) { return p->items[id].pos < p->n_heap; }
static bool is_parked(const cs_policy_t *p, uint32_t id)
{
    return !in_heap(p, id) && p->items[id].pos < p->n_heap + p->n_parked;
}

/* ---- ghosts: buckets of one cache line; the least worth of a bucket is forgotten ---- */

static ghost_t *ghost_bucket(ghost_t *ghosts, uint32_t n_buckets, uint32_t fp)
{
    return ghosts + (((uint64_t)fp * n_buckets) >> 32) * GHOST_WAYS;
}

static void ghost_put(ghost_t *ghosts, uint32_t n_buckets, uint32_t fp, uint32_t level)
{
    ghost_t *bucket = ghost_bucket(ghosts, n_buckets, fp), *least = bucket;
    for (uint32_t i = 1; i < GHOST_WAYS; i++)
        if (bucket[i].level < least->level)
            least = &bucket[i];
    if (level > least->level)
        *least = (ghost_t){fp, level};
}

/* Its level, or 0; it is a ghost no longer. */
static uint32_t ghost_take(cs_policy_t *p, uint32_t fp)
{
    ghost_t *bucket = ghost_bucket(p->ghosts, p->n_ghost_buckets, fp);
    for (uint32_t i = 0; i < GHOST_WAYS; i++) {
        if (bucket[i].fp == fp && bucket[i].level != 0) {
            uint32_t level = bucket[i].level;
            bucket[i].level = 0;
            return level;
        }
    }
    return 0;
}

static vc_status_t ghosts_grow(cs_policy_t *p, uint32_t limit)
{
    uint64_t wanted = VC_MAX((uint64_t)limit * GHOSTS_PER_ID, (uint64_t)GHOSTS_MIN) / GHOST_WAYS;
    if (wanted <= p->n_ghost_buckets || wanted > UINT32_MAX)
        return VC_OK;
    size_t bytes = (size_t)wanted * GHOST_WAYS * sizeof(ghost_t);
    ghost_t *ghosts = vc_alloc_aligned(GHOST_WAYS * sizeof(ghost_t), bytes);
    if (!ghosts)
        return VC_ERR_NOMEM;
    memset(ghosts, 0, bytes);
    for (size_t i = 0; i < (size_t)p->n_ghost_buckets * GHOST_WAYS; i++)
        if (p->ghosts[i].level)
            ghost_put(ghosts, (uint32_t)wanted, p->ghosts[i].fp, p->ghosts[i].level);
    vc_free(p->ghosts);
    p->ghosts = ghosts;
    p->n_ghost_buckets = (uint32_t)wanted;
    return VC_OK;
}

/* ---- the clock ---- */

static void lower(uint32_t *level) { *level = *level > REBASE_BY ? *level - REBASE_BY : *level != 0; }

/* Once in half a million half-lives. What is older than half of them is equally old from then on. */
static void rebase(cs_policy_t *p)
{
    p->clock -= REBASE_BY;
    for (uint32_t i = 0; i < p->limit; i++)
        lower(&p->items[i].level);
    for (size_t i = 0; i < (size_t)p->n_ghost_buckets * GHOST_WAYS; i++)
        lower(&p->ghosts[i].level);
    uint32_t n = p->n_heap; /* equal now, where they were not: order them again */
    side_t s = heap_side(p);
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(p, &s, i, p->slots[i]);
}

/* A use at depth: a run of a chain goes on, or a new one starts and sees the time. */
static void clock_at(cs_policy_t *p, uint32_t depth)
{
    bool goes_on = depth == p->last_depth + 1;
    p->last_depth = depth;
    if (goes_on || p->fresh_bytes == 0)
        return;
    double half_lives = (double)p->fresh_bytes / ((double)p->capacity_bytes * HALF_LIFE_TURNOVERS);
    uint32_t ticks = half_lives >= 1024 ? 1024 * ONE : (uint32_t)(half_lives * ONE);
    if (ticks == 0)
        return; /* stays fresh until it counts */
    p->clock += ticks;
    p->fresh_bytes = 0;
    if (p->clock >= CLOCK_REBASE)
        rebase(p);
}

/* ---- the interface ---- */

vc_status_t cs_policy_create(uint64_t capacity_bytes, cs_policy_t **policy_p)
{
    cs_policy_t *p = vc_calloc(1, sizeof(*p));
    if (!p)
        return VC_ERR_NOMEM;
    p->clock = CLOCK_START;
    p->last_depth = UINT32_MAX - 1;
    cs_policy_set_capacity(p, capacity_bytes);
    for (uint32_t i = 0; i < VC_ARRAY_LEN(p->soft); i++)
        p->soft[i] = (uint16_t)(log2(1 + exp2(-(double)i / SOFT_STEPS)) * ONE + 0.5);
    vc_status_t status = ghosts_grow(p, 0);
    if (status != VC_OK) {
        cs_policy_destroy(p);
        return status;
    }
    *policy_p = p;
    return VC_OK;
}

void cs_policy_destroy(cs_policy_t *policy)
{
    if (!policy)
        return;
    vc_free(policy->items);
    vc_free(policy->slots);
    vc_free(policy->ghosts);
    vc_free(policy);
}

void cs_policy_set_capacity(cs_policy_t *policy, uint64_t capacity_bytes)
{
    policy->capacity_bytes = capacity_bytes ? capacity_bytes : 1;
}

vc_status_t cs_policy_reserve(cs_policy_t *policy, uint32_t limit)
{
    if (limit <= policy->limit)
        return VC_OK;
    uint64_t grown = VC_MAX((uint64_t)limit, VC_MIN((uint64_t)policy->limit * 3 / 2, (uint64_t)CS_POLICY_NONE));
    uint32_t old = policy->limit, n = (uint32_t)grown;
    item_t *items = vc_realloc(policy->items, n, sizeof(*items));
    if (!items)
        return VC_ERR_NOMEM;
    policy->items = items;
    uint32_t *slots = vc_realloc(policy->slots, n, sizeof(*slots));
    if (!slots)
        return VC_ERR_NOMEM;
    policy->slots = slots;
    if (ghosts_grow(policy, n) != VC_OK)
        return VC_ERR_NOMEM;
    memset(items + old, 0, (size_t)(n - old) * sizeof(*items));
    for (uint32_t i = old; i < n; i++)
        items[i].pos = NO_POS;
    memmove(slots + (n - policy->n_window), slots + (old - policy->n_window), policy->n_window * sizeof(*slots));
    for (uint32_t i = n - policy->n_window; i < n; i++)
        items[slots[i]].pos = i;
    policy->limit = n;
    return VC_OK;
}

void cs_policy_insert(cs_policy_t *policy, uint32_t id, const cs_policy_item_t *value, uint32_t now_s)
{
    (void)now_s;
    if (id >= policy->limit || is_inside(policy, id))
        return;
    item_t *item = &policy->items[id];
    clock_at(policy, value->block_index);
    *item = (item_t){.fp = (uint32_t)(value->fp >> 32),
                     .bytes = value->bytes,
                     .pos = NO_POS,
                     .depth = (uint16_t)VC_MIN(value->block_index, UINT16_MAX),
                     .flags = value->is_full_copy ? FLAG_FULL : 0};
    uint32_t ghost = ghost_take(policy, item->fp);
    item->level = (ghost ? level_add(policy, ghost, policy->clock) : policy->clock) + bonus(item);
    policy->fresh_bytes += value->bytes;
    if (ghost)
        heap_push(policy, id);
    else
        window_push(policy, id);
}

void cs_policy_touch(cs_policy_t *policy, uint32_t id, uint32_t now_s)
{
    (void)now_s;
    if (!is_inside(policy, id))
        return;
    item_t *item = &policy->items[id];
    clock_at(policy, item->depth);
    bool was_orphan = item->flags & FLAG_ORPHAN;
    item->flags &= (uint16_t)~FLAG_ORPHAN;
    uint32_t level =
        (was_orphan ? policy->clock : level_add(policy, item->level - bonus(item), policy->clock)) + bonus(item);
    if (in_heap(policy, id)) {
        item->level = level;
        side_t s = heap_side(policy);
        side_fix(policy, &s, item->pos, id);
    } else if (is_parked(policy, id)) {
        item->level = level;
    } else {
        window_remove(policy, id);
        item->level = level;
        heap_push(policy, id);
    }
}

void cs_policy_demote(cs_policy_t *policy, uint32_t id)
{
    if (!is_inside(policy, id))
        return;
    item_t *item = &policy->items[id];
    bool heap = in_heap(policy, id);
    if (!heap && !is_parked(policy, id)) {
        window_remove(policy, id);
        heap_push(policy, id);
        heap = true;
    }
    item->flags |= FLAG_ORPHAN;
    item->level = 0;
    side_t s = heap_side(policy);
    if (heap)
        side_fix(policy, &s, item->pos, id);
}

void cs_policy_remove(cs_policy_t *policy, uint32_t id, bool evicted)
{
    if (!is_inside(policy, id))
        return;
    item_t *item = &policy->items[id];
    if (in_heap(policy, id))
        heap_remove(policy, id);
    else if (is_parked(policy, id))
        unpark(policy, id);
    else
        window_remove(policy, id);
    item->pos = NO_POS;
    if (evicted && item->level > bonus(item))
        ghost_put(policy->ghosts, policy->n_ghost_buckets, item->fp, item->level - bonus(item));
}

static void recheck_parked(cs_policy_t *p, bool (*is_kept)(void *arg, uint32_t id), void *arg, uint32_t n)
{
    for (uint32_t i = 0; i < n && p->n_parked > 0; i++) {
        if (p->parked_cursor >= p->n_parked)
            p->parked_cursor = 0;
        uint32_t id = p->slots[p->n_heap + p->parked_cursor];
        if (is_kept && is_kept(arg, id)) {
            p->parked_cursor++;
        } else {
            unpark(p, id);
            heap_push(p, id);
        }
    }
}

/* Who has had its time in the window goes to the heap; all of it, when that is all there is. */
static void window_drain(cs_policy_t *p, uint64_t limit_bytes)
{
    while (p->n_window > 0 && p->window_bytes > limit_bytes) {
        uint32_t id = p->slots[p->limit - 1];
        window_remove(p, id);
        heap_push(p, id);
    }
}

uint32_t cs_policy_victim(cs_policy_t *policy, bool (*is_kept)(void *arg, uint32_t id), void *arg, uint32_t now_s)
{
    (void)now_s;
    recheck_parked(policy, is_kept, arg, RECHECKS);
    window_drain(policy, policy->capacity_bytes / WINDOW_SHARE);
    for (;;) {
        if (policy->n_heap == 0 && policy->n_window > 0) { /* oldest of the window, whatever its bytes */
            uint32_t id = policy->slots[policy->limit - 1];
            window_remove(policy, id);
            heap_push(policy, id);
        }
        if (policy->n_heap == 0)
            recheck_parked(policy, is_kept, arg, policy->n_parked);
        if (policy->n_heap == 0)
            return CS_POLICY_NONE;
        uint32_t id = policy->slots[0];
        if (!is_kept || !is_kept(arg, id))
            return id;
        park(policy, id);
    }
}

/* The decayed worth, in 1/256 doublings around 2^-127; 0: orphan. */
uint16_t cs_policy_state(const cs_policy_t *policy, uint32_t id, uint32_t now_s)
{
    (void)now_s;
    if (!is_inside(policy, id) || policy->items[id].flags & FLAG_ORPHAN)
        return 0;
    const item_t *item = &policy->items[id];
    int64_t worth = ((int64_t)item->level - bonus(item) - policy->clock) / (int64_t)(ONE / 256) + 32768;
    return (uint16_t)(worth < 1 ? 1 : worth > UINT16_MAX ? UINT16_MAX : worth);
}

void cs_policy_restore(cs_policy_t *policy, uint32_t id, uint16_t state, uint32_t now_s)
{
    (void)now_s;
    if (!is_inside(policy, id))
        return;
    if (state == 0) {
        cs_policy_demote(policy, id);
        return;
    }
    item_t *item = &policy->items[id];
    int64_t level = (int64_t)policy->clock + bonus(item) + ((int64_t)state - 32768) * (int64_t)(ONE / 256);
    bool window = !in_heap(policy, id) && !is_parked(policy, id);
    if (window)
        window_remove(policy, id);
    item->flags &= (uint16_t)~FLAG_ORPHAN;
    item->level = (uint32_t)(level < 1 ? 1 : level);
    if (window) {
        heap_push(policy, id); /* it had its time in the window before the restart */
    } else if (in_heap(policy, id)) {
        side_t s = heap_side(policy);
        side_fix(policy, &s, item->pos, id);
    }
}

uint32_t cs_policy_count(const cs_policy_t *policy) { return policy->n_heap + policy->n_parked + policy->n_window; }

size_t cs_policy_memory_bytes(const cs_policy_t *policy)
{
    return sizeof(*policy) + policy->limit * (sizeof(item_t) + sizeof(uint32_t)) +
           (size_t)policy->n_ghost_buckets * GHOST_WAYS * sizeof(ghost_t);
}
