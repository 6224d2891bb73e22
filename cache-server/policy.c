/*
 * The policy: items and the order in which they go. See policy.h, policy_int.h.
 *
 * Items of one kind (times used, fidelity) and one age lie in one list, a *cell*; what has been learnt orders the cells
 * (policy_worth.c), and the victim is the oldest item of the first cell that is not empty. As time goes by items move
 * to the cells of higher age, each at most CS_WORTH_AGES times between two uses.
 *
 *  - Time is bytes inserted, in ticks of 1/256 of the capacity: how fast things age follows from how fast the cache
 *    turns over. It stands still within a run, that is, while blocks of rising depth are used one after the other, and
 * a run lies in its list backwards: the deepest block of a chain goes first.
 *  - New items, and those that come back, lie in the *window*, a small share of the capacity, and are no victims there
 *    unless nothing else is left: what was registered can be found, whatever the rest is worth.
 *  - *Orphans* go before all others.
 *  - Items that the caller keeps are *parked* in a list of their own when their turn comes, and looked at again in
 * turn, a few per call.
 *  - Compressed copies are worth four full ones of the same use, and no more: old ones go, too.
 */
#include "policy.h"

#include <string.h>

#include "policy_int.h"
#include "vc/mem.h"

#define WINDOW_SHARE 32u   /* one part in so many */
#define GHOSTS_MIN 262144u /* 2 MiB */
#define GHOSTS_PER_ID 2u
#define MEMORY_PER_GHOST 4.0 /* uses that the figures span, against the span of the ghosts that bring them */
#define AGE_MOVES 128u       /* items per call that move to a higher age; an insert needs some 32 of them, all told */
#define RECHECKS 4u          /* parked items looked at per call */
#define DEPTH_MASK 0x3ffu

enum { LIST_WINDOW = CS_WORTH_CELLS, LIST_PARKED, LIST_ORPHANS, N_LISTS, LIST_NONE = 2047 };
_Static_assert(N_LISTS < LIST_NONE, "a list has 11 bits");

typedef struct item {
    uint32_t fp, bytes;
    uint32_t next, prev;
    uint32_t used; /* ticks at the last use, modulo 2^32 */
    uint32_t list : 11;
    uint32_t uses : 7;
    uint32_t is_tip : 1; /* came as the last block of its run */
    uint32_t is_full : 1;
    uint32_t is_orphan : 1;
    uint32_t is_uncounted : 1; /* its wait began before a restart and is not in the figures */
    uint32_t depth : 10;       /* modulo 2^10: tells whether a run goes on */
} item_t;
_Static_assert(sizeof(item_t) <= 24, "memory per id is a promise");

typedef struct list {
    uint32_t head, tail; /* the head goes first */
    uint32_t head_used;  /* of the head, so that looking at its age costs no cache miss */
} list_t;

struct cs_policy {
    item_t *items;
    uint32_t limit, count;
    uint32_t run_last;     /* id used last; CS_POLICY_NONE: none */
    uint32_t run_inserted; /* by the last run that inserted */
    bool run_goes_on;
    bool run_inserts; /* run_last was inserted, and is the tip unless the run goes on */
    uint64_t ticks, capacity_bytes, window_bytes;
    uint64_t pass_at;     /* age_cells: ticks when the running pass began */
    uint32_t pass_cell;   /* and the cell that it is at */
    uint64_t fresh_bytes; /* inserted and not yet in ticks */
    cs_ghosts_t ghosts;
    uint64_t filled[(CS_WORTH_CELLS + 63) / 64]; /* by rank: the cell is not empty */
    list_t lists[N_LISTS];
    cs_worth_t worth;
};

static uint32_t now(const cs_policy_t *p) { return (uint32_t)p->ticks; }

/* ---- lists ---- */

static bool is_cell(uint32_t list) { return list < CS_WORTH_CELLS; }

static void head_changed(cs_policy_t *p, uint32_t number)
{
    list_t *list = &p->lists[number];
    if (list->head != CS_POLICY_NONE)
        list->head_used = p->items[list->head].used;
    if (!is_cell(number))
        return;
    uint32_t rank = p->worth.rank[number];
    if (list->head == CS_POLICY_NONE)
        p->filled[rank / 64] &= ~(UINT64_C(1) << rank % 64);
    else
        p->filled[rank / 64] |= UINT64_C(1) << rank % 64;
}

/* Before another item of the list, or at its end (CS_POLICY_NONE). */
static void link_before(cs_policy_t *p, uint32_t number, uint32_t id, uint32_t next)
{
    list_t *list = &p->lists[number];
    item_t *item = &p->items[id];
    item->list = number & 0x7ffu;
    item->next = next;
    item->prev = next == CS_POLICY_NONE ? list->tail : p->items[next].prev;
    if (next == CS_POLICY_NONE)
        list->tail = id;
    else
        p->items[next].prev = id;
    if (item->prev != CS_POLICY_NONE) {
        p->items[item->prev].next = id;
    } else {
        list->head = id;
        head_changed(p, number);
    }
    if (number == LIST_WINDOW)
        p->window_bytes += item->bytes;
}

static void append(cs_policy_t *p, uint32_t number, uint32_t id) { link_before(p, number, id, CS_POLICY_NONE); }

/* Behind all that were used before, but before the blocks of the same run: those are its parents. */
static void append_run(cs_policy_t *p, uint32_t number, uint32_t id)
{
    bool joins = p->run_goes_on && p->run_last != CS_POLICY_NONE && p->items[p->run_last].list == number;
    link_before(p, number, id, joins ? p->run_last : CS_POLICY_NONE);
}

static void unlink_item(cs_policy_t *p, uint32_t id)
{
    item_t *item = &p->items[id];
    list_t *list = &p->lists[item->list];
    uint32_t number = item->list;
    if (item->next != CS_POLICY_NONE)
        p->items[item->next].prev = item->prev;
    else
        list->tail = item->prev;
    if (item->prev != CS_POLICY_NONE) {
        p->items[item->prev].next = item->next;
    } else {
        list->head = item->next;
        head_changed(p, number);
    }
    if (number == LIST_WINDOW)
        p->window_bytes -= item->bytes;
    item->list = LIST_NONE;
}

static bool is_inside(const cs_policy_t *p, uint32_t id) { return id < p->limit && p->items[id].list != LIST_NONE; }

static uint32_t kind_of(const item_t *item) { return cs_worth_kind(item->uses, item->is_tip); }
static uint32_t age_of(const cs_policy_t *p, const item_t *item) { return cs_worth_age(now(p) - item->used); }

static uint32_t home_of(const cs_policy_t *p, uint32_t id)
{
    const item_t *item = &p->items[id];
    return item->is_orphan ? (uint32_t)LIST_ORPHANS : cs_worth_cell(item->is_full, kind_of(item), age_of(p, item));
}

/* ---- time ---- */

/* Up to n items that have had their time in the window go to their cells. */
static void drain_window(cs_policy_t *p, uint32_t n)
{
    for (; n > 0 && p->window_bytes > p->capacity_bytes / WINDOW_SHARE; n--) {
        uint32_t id = p->lists[LIST_WINDOW].head;
        unlink_item(p, id);
        append(p, home_of(p, id), id);
    }
}

static void rank_again(cs_policy_t *p)
{
    cs_worth_rank(&p->worth, p->ticks, MEMORY_PER_GHOST * (double)cs_ghosts_count(&p->ghosts));
    memset(p->filled, 0, sizeof(p->filled));
    for (uint32_t cell = 0; cell < CS_WORTH_CELLS; cell++)
        if (p->lists[cell].head != CS_POLICY_NONE)
            head_changed(p, cell);
}

/* Items into the cells of their age, oldest cells first so that none is moved twice; a part of the work per call, since
 * all that was used at one time comes of age at one time. */
static void age_cells(cs_policy_t *p)
{
    uint32_t budget = AGE_MOVES;
    if (p->pass_at == p->ticks && p->pass_cell == CS_WORTH_CELLS)
        return;
    if (p->pass_cell == CS_WORTH_CELLS) {
        p->pass_cell = 0;
        p->pass_at = p->ticks;
    }
    for (; p->pass_cell < CS_WORTH_CELLS; p->pass_cell++) {
        uint32_t first = p->pass_cell / CS_WORTH_AGES * CS_WORTH_AGES; /* of this kind */
        uint32_t age = CS_WORTH_AGES - 1 - p->pass_cell % CS_WORTH_AGES;
        list_t *list = &p->lists[first + age];
        while (age + 1 < CS_WORTH_AGES && list->head != CS_POLICY_NONE &&
               now(p) - list->head_used >= cs_worth_age_start(age + 1)) {
            uint32_t id = list->head;
            if (budget-- == 0)
                return;
            unlink_item(p, id);
            append(p, first + age_of(p, &p->items[id]), id);
        }
    }
}

/* A use at depth, before it is written down: does a run go on, or does a new one start and see the time? */
static void run_at(cs_policy_t *p, uint32_t depth)
{
    const item_t *last = p->run_last == CS_POLICY_NONE ? NULL : &p->items[p->run_last];
    p->run_goes_on = last && ((last->depth + 1u) & DEPTH_MASK) == (depth & DEPTH_MASK);
    if (p->run_goes_on)
        return;
    uint64_t share = p->capacity_bytes / CS_TICKS_PER_TURNOVER;
    if (share == 0)
        share = 1;
    p->ticks += VC_MIN(p->fresh_bytes / share, UINT64_C(1) << 20); /* a jump has no meaning beyond the last age */
    p->fresh_bytes %= share;
    if (cs_worth_is_due(&p->worth))
        rank_again(p);
    age_cells(p);
}

/* One more use, and a new wait. */
static void count_use(cs_policy_t *p, item_t *item, uint32_t age)
{
    if (!item->is_uncounted)
        cs_worth_use(&p->worth, kind_of(item), age);
    item->is_uncounted = 0;
    item->uses = VC_MIN(item->uses + 1u, CS_POLICY_USES_MAX) & 0x7fu;
    item->used = now(p);
    cs_worth_wait(&p->worth, kind_of(item));
}

/* ---- the interface ---- */

vc_status_t cs_policy_create(uint64_t capacity_bytes, cs_policy_t **policy_p)
{
    cs_policy_t *p = vc_calloc(1, sizeof(*p));
    if (!p)
        return VC_ERR_NOMEM;
    if (cs_ghosts_grow(&p->ghosts, GHOSTS_MIN, 0) != VC_OK) {
        vc_free(p);
        return VC_ERR_NOMEM;
    }
    p->run_last = CS_POLICY_NONE;
    p->pass_cell = CS_WORTH_CELLS;
    for (uint32_t i = 0; i < N_LISTS; i++)
        p->lists[i].head = p->lists[i].tail = CS_POLICY_NONE;
    cs_worth_init(&p->worth);
    cs_policy_set_capacity(p, capacity_bytes);
    *policy_p = p;
    return VC_OK;
}

void cs_policy_destroy(cs_policy_t *policy)
{
    if (!policy)
        return;
    cs_ghosts_fini(&policy->ghosts);
    vc_free(policy->items);
    vc_free(policy);
}

void cs_policy_set_capacity(cs_policy_t *policy, uint64_t capacity_bytes) { policy->capacity_bytes = capacity_bytes; }

vc_status_t cs_policy_reserve(cs_policy_t *policy, uint32_t limit)
{
    if (limit <= policy->limit)
        return VC_OK;
    uint64_t grown = VC_MAX((uint64_t)limit, VC_MIN((uint64_t)policy->limit * 3 / 2, (uint64_t)CS_POLICY_NONE));
    if (cs_ghosts_grow(&policy->ghosts, grown * GHOSTS_PER_ID, now(policy)) != VC_OK)
        return VC_ERR_NOMEM;
    item_t *items = vc_realloc(policy->items, grown, sizeof(*items));
    if (!items)
        return VC_ERR_NOMEM;
    for (uint64_t i = policy->limit; i < grown; i++)
        items[i] = (item_t){.list = LIST_NONE};
    policy->items = items;
    policy->limit = (uint32_t)grown;
    return VC_OK;
}

void cs_policy_insert(cs_policy_t *policy, uint32_t id, const cs_policy_item_t *value, uint32_t now_s)
{
    (void)now_s;
    if (id >= policy->limit || is_inside(policy, id))
        return;
    run_at(policy, value->block_index);
    item_t *item = &policy->items[id];
    *item = (item_t){.fp = (uint32_t)(value->fp >> 32),
                     .bytes = value->bytes,
                     .list = LIST_NONE,
                     .is_full = value->is_full_copy,
                     .depth = value->block_index & DEPTH_MASK};
    if (policy->run_goes_on && policy->run_inserts && is_inside(policy, policy->run_last)) {
        item_t *parent = &policy->items[policy->run_last]; /* no tip after all */
        cs_worth_unwait(&policy->worth, kind_of(parent));
        parent->is_tip = 0;
        cs_worth_wait(&policy->worth, kind_of(parent));
    }
    cs_ghost_t ghost = cs_ghosts_take(&policy->ghosts, item->fp, now(policy));
    item->uses = ghost.uses & 0x7fu;
    item->is_tip = ghost.uses ? ghost.is_tip : 1;
    if (ghost.uses) {
        count_use(policy, item, cs_worth_age(now(policy) - ghost.used));
    } else {
        item->uses = 1;
        item->used = now(policy);
        cs_worth_wait(&policy->worth, kind_of(item));
    }
    policy->fresh_bytes += value->bytes;
    policy->count++;
    if (!policy->run_goes_on) { /* between runs, which stay together, so that no victim waits for all of it */
        drain_window(policy, 2 * policy->run_inserted + 2);
        policy->run_inserted = 0;
    }
    policy->run_inserted++;
    append_run(policy, LIST_WINDOW, id);
    policy->run_last = id;
    policy->run_inserts = !ghost.uses;
}

void cs_policy_touch(cs_policy_t *policy, uint32_t id, uint32_t now_s)
{
    (void)now_s;
    if (!is_inside(policy, id))
        return;
    item_t *item = &policy->items[id];
    run_at(policy, item->depth);
    count_use(policy, item, age_of(policy, item));
    item->is_orphan = 0;
    if (item->list != LIST_WINDOW && item->list != LIST_PARKED) {
        unlink_item(policy, id);
        append_run(policy, home_of(policy, id), id);
    }
    policy->run_last = id;
    policy->run_inserts = false;
}

void cs_policy_demote(cs_policy_t *policy, uint32_t id)
{
    if (!is_inside(policy, id) || policy->items[id].is_orphan)
        return;
    item_t *item = &policy->items[id];
    item->is_orphan = 1;
    if (item->list != LIST_PARKED) {
        unlink_item(policy, id);
        append(policy, LIST_ORPHANS, id);
    }
}

void cs_policy_remove(cs_policy_t *policy, uint32_t id, bool evicted)
{
    if (!is_inside(policy, id))
        return;
    item_t *item = &policy->items[id];
    unlink_item(policy, id);
    policy->count--;
    if (policy->run_last == id)
        policy->run_last = CS_POLICY_NONE;
    if (evicted)
        cs_ghosts_put(&policy->ghosts, item->fp, &(cs_ghost_t){item->uses, item->is_tip, item->used}, now(policy));
}

typedef bool (*is_kept_fn)(void *arg, uint32_t id);

/* The first of a list that is not kept; those before it are parked. */
static uint32_t first_of(cs_policy_t *p, uint32_t number, is_kept_fn is_kept, void *arg)
{
    uint32_t id;
    while ((id = p->lists[number].head) != CS_POLICY_NONE && is_kept && is_kept(arg, id)) {
        unlink_item(p, id);
        append(p, LIST_PARKED, id);
    }
    return id;
}

/* Looks at n parked items; those that are kept no longer go back to where they belong. */
static bool unpark(cs_policy_t *p, is_kept_fn is_kept, void *arg, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0, id; i < n && (id = p->lists[LIST_PARKED].head) != CS_POLICY_NONE; i++) {
        bool kept = is_kept && is_kept(arg, id);
        unlink_item(p, id);
        append(p, kept ? (uint32_t)LIST_PARKED : home_of(p, id), id);
        any |= !kept;
    }
    return any;
}

static uint32_t first_of_cells(cs_policy_t *p, is_kept_fn is_kept, void *arg)
{
    for (uint32_t i = 0; i < VC_ARRAY_LEN(p->filled); i++) {
        while (p->filled[i]) {
            uint32_t rank = 64 * i + (uint32_t)__builtin_ctzll(p->filled[i]);
            uint32_t id = first_of(p, p->worth.order[rank], is_kept, arg);
            if (id != CS_POLICY_NONE)
                return id;
        }
    }
    return CS_POLICY_NONE;
}

static uint32_t first_of_all(cs_policy_t *p, is_kept_fn is_kept, void *arg)
{
    uint32_t id = first_of(p, LIST_ORPHANS, is_kept, arg);
    if (id == CS_POLICY_NONE)
        id = first_of_cells(p, is_kept, arg);
    if (id == CS_POLICY_NONE)
        id = first_of(p, LIST_WINDOW, is_kept, arg);
    return id;
}

uint32_t cs_policy_victim(cs_policy_t *policy, bool (*is_kept)(void *arg, uint32_t id), void *arg, uint32_t now_s)
{
    (void)now_s;
    unpark(policy, is_kept, arg, RECHECKS);
    drain_window(policy, UINT32_MAX);
    age_cells(policy);
    uint32_t id = first_of_all(policy, is_kept, arg);
    /* Everything is parked: now, and only now, each of them has to be looked at. */
    if (id == CS_POLICY_NONE && unpark(policy, is_kept, arg, policy->count))
        id = first_of_all(policy, is_kept, arg);
    return id;
}

uint32_t cs_policy_rank(const cs_policy_t *policy, uint32_t id)
{
    if (!is_inside(policy, id) || policy->items[id].is_orphan)
        return 0;
    return policy->items[id].list == LIST_WINDOW ? UINT32_MAX : 1u + policy->worth.rank[home_of(policy, id)];
}

/* Bits 0-6 age + 1 (0: orphan), 7-13 uses, 14 tip. */
uint16_t cs_policy_state(const cs_policy_t *policy, uint32_t id, uint32_t now_s)
{
    (void)now_s;
    if (!is_inside(policy, id) || policy->items[id].is_orphan)
        return 0;
    const item_t *item = &policy->items[id];
    return (uint16_t)((age_of(policy, item) + 1) | (uint32_t)item->uses << 7 | (uint32_t)item->is_tip << 14);
}

void cs_policy_restore(cs_policy_t *policy, uint32_t id, uint16_t state, uint32_t now_s)
{
    (void)now_s;
    if (!is_inside(policy, id))
        return;
    item_t *item = &policy->items[id];
    uint32_t age = VC_MIN(state & 0x7fu, CS_WORTH_AGES);
    if (!item->is_uncounted)
        cs_worth_unwait(&policy->worth, kind_of(item));
    item->is_uncounted = 1;
    if (age > 0) {
        item->used = now(policy) - cs_worth_age_start(age - 1);
        item->uses = VC_MAX((uint32_t)state >> 7 & 0x7fu, 1u) & 0x7fu;
        item->is_tip = (uint32_t)state >> 14 & 1u;
    }
    item->is_orphan = age == 0;
    if (item->list != LIST_PARKED) { /* out of the window, too: it had its time there before the restart */
        unlink_item(policy, id);
        append(policy, home_of(policy, id), id);
    }
}

uint32_t cs_policy_count(const cs_policy_t *policy) { return policy->count; }

size_t cs_policy_memory_bytes(const cs_policy_t *policy)
{
    return sizeof(*policy) + policy->limit * sizeof(item_t) + cs_ghosts_memory_bytes(&policy->ghosts);
}
