/*
 * Who goes when room is needed: S3-FIFO over records of unequal size.
 *
 * A new record is on probation, in a queue that should hold a tenth of the memory. At its tail it is thrown out unless
 * it was used twice meanwhile; then it moves to the main queue. A scan therefore passes through the tenth and leaves
 * the rest alone. Who was thrown out leaves a ghost; a record that comes back while its ghost is there was thrown out
 * too early and goes straight to the main queue. At the tail of the main queue a use buys another round.
 *
 * Records that are viewed or being filled are passed over. When enough has gone but not in one piece, the neighbours of
 * the largest hole at hand go too, whatever their place in the queue, so that one large record never empties the tier.
 */
#include "ramtier_int.h"
#include "vc/mem.h"

#define PROBATION_SHARE 10u
#define GHOST_WAYS 4u
#define UNUSED_SEARCH 64u
#define MAIN_STEPS 1024u /* then the next one goes, used or not: the lock is held */

uint64_t rt_probation_pages(const cs_ramtier_t *ram) { return ram->n_pages / PROBATION_SHARE; }

/* ---- queues ---- */

static void push(rt_record_t *r, rt_queue_id_t id)
{
    rt_queue_t *q = &r->ram->queues[id];
    r->queue = (uint8_t)id;
    r->prev = NULL;
    r->next = q->head;
    if (q->head)
        q->head->prev = r;
    else
        q->tail = r;
    q->head = r;
    q->n++;
    q->pages += r->run->pages;
}

void rt_dequeue(rt_record_t *r)
{
    rt_queue_t *q = &r->ram->queues[r->queue];
    if (r->prev)
        r->prev->next = r->next;
    else
        q->head = r->next;
    if (r->next)
        r->next->prev = r->prev;
    else
        q->tail = r->prev;
    q->n--;
    q->pages -= r->run->pages;
    r->queue = RT_NO_QUEUE;
}

/* ---- ghosts ---- */

static rt_ghost_t *ghost_set(cs_ramtier_t *ram, uint64_t hash)
{
    return &ram->ghosts[(hash & (ram->n_buckets - 1)) * GHOST_WAYS];
}

/* Ghosts fade after as many later ones as the tier holds records. */
static uint32_t ghost_age(const cs_ramtier_t *ram, const rt_ghost_t *g)
{
    return g->fingerprint == 0 ? UINT32_MAX : ram->ghost_serial - g->serial;
}

static uint32_t fingerprint(uint64_t hash) { return (uint32_t)(hash >> 32) | 1; }

static void ghost_add(cs_ramtier_t *ram, uint64_t hash)
{
    rt_ghost_t *set = ghost_set(ram, hash), *oldest = set;
    for (uint32_t i = 1; i < GHOST_WAYS; i++) {
        if (ghost_age(ram, &set[i]) > ghost_age(ram, oldest))
            oldest = &set[i];
    }
    *oldest = (rt_ghost_t){fingerprint(hash), ram->ghost_serial++};
}

static bool ghost_take(cs_ramtier_t *ram, uint64_t hash)
{
    rt_ghost_t *set = ghost_set(ram, hash);
    uint32_t n = ram->queues[RT_PROBATION].n + ram->queues[RT_MAIN].n;
    for (uint32_t i = 0; i < GHOST_WAYS; i++) {
        if (set[i].fingerprint == fingerprint(hash) && ghost_age(ram, &set[i]) <= VC_MAX(n, 1)) {
            set[i].fingerprint = 0;
            return true;
        }
    }
    return false;
}

/* ---- victims ---- */

static cs_run_t *evict(rt_record_t *r)
{
    cs_ramtier_t *ram = r->ram;
    ram->stats.evicted++;
    if (r->is_ahead) {
        ram->stats.ahead_wasted++;
        ram->ahead_pages -= r->run->pages;
    } else if (r->queue == RT_PROBATION) {
        ghost_add(ram, r->hash);
    }
    rt_unlist(r);
    rt_dequeue(r);
    cs_run_t *hole = cs_pageruns_free(ram->area, r->run);
    r->run = NULL;
    rt_discard(r);
    return hole;
}

static void again(rt_record_t *r, rt_queue_id_t id)
{
    rt_dequeue(r);
    push(r, id);
}

/* NULL: everything in it is viewed, or moved on. */
static rt_record_t *probation_victim(cs_ramtier_t *ram)
{
    rt_queue_t *q = &ram->queues[RT_PROBATION];
    for (uint32_t left = q->n; left > 0 && q->tail; left--) {
        rt_record_t *r = q->tail;
        if (r->refs > 0) {
            again(r, RT_PROBATION);
        } else if (r->is_ahead && r->freq == 0) { /* its reader may be on the way: once more around, not for ever */
            r->freq = 1;
            again(r, RT_PROBATION);
        } else if (r->freq > 1) {
            r->freq = 0;
            again(r, RT_MAIN);
        } else {
            return r;
        }
    }
    return NULL;
}

/* For a record that is read ahead: only what nobody came back to, and nothing that was read ahead itself. Leaves the
 * order alone. */
static rt_record_t *unused_victim(const cs_ramtier_t *ram)
{
    rt_record_t *r = ram->queues[RT_PROBATION].tail;
    for (uint32_t n = 0; r && n < UNUSED_SEARCH; r = r->prev, n++) {
        if (r->refs == 0 && r->freq == 0 && !r->is_ahead)
            return r;
    }
    return NULL;
}

static rt_record_t *main_victim(cs_ramtier_t *ram)
{
    rt_queue_t *q = &ram->queues[RT_MAIN];
    uint32_t most = (uint32_t)VC_MIN((uint64_t)q->n * (RT_FREQ_MAX + 1), (uint64_t)MAIN_STEPS + q->n);
    for (uint32_t step = 0; step < most && q->tail; step++) {
        rt_record_t *r = q->tail;
        if (r->refs == 0 && (r->freq == 0 || step >= MAIN_STEPS))
            return r;
        if (r->refs == 0)
            r->freq--;
        again(r, RT_MAIN);
    }
    return NULL;
}

static rt_record_t *next_victim(cs_ramtier_t *ram, bool ahead)
{
    if (ahead)
        return unused_victim(ram);
    bool probation_first = ram->queues[RT_PROBATION].pages > rt_probation_pages(ram) || ram->queues[RT_MAIN].n == 0;
    rt_record_t *r = probation_first ? probation_victim(ram) : main_victim(ram);
    if (!r)
        r = probation_first ? main_victim(ram) : probation_victim(ram);
    return r;
}

/* ---- room ---- */

/* Pages of run when it is free or may be thrown out, else 0. */
static uint32_t yields(const cs_run_t *run, bool ahead)
{
    const rt_record_t *r = run ? run->user : NULL;
    if (!run)
        return 0;
    if (r && (r->refs > 0 || (ahead && (r->queue != RT_PROBATION || r->freq > 0 || r->is_ahead))))
        return 0;
    return run->pages;
}

static uint32_t worth(const cs_run_t *run)
{
    const rt_record_t *r = run->user;
    return r ? r->freq + (r->queue == RT_MAIN ? RT_FREQ_MAX + 1 : 1) : 0;
}

/* Could the hole grow to so many pages? */
static bool can_widen(const cs_run_t *hole, uint32_t pages, bool ahead)
{
    uint64_t sum = hole->pages;
    for (const cs_run_t *run = hole->prev; sum < pages && yields(run, ahead); run = run->prev)
        sum += run->pages;
    for (const cs_run_t *run = hole->next; sum < pages && yields(run, ahead); run = run->next)
        sum += run->pages;
    return sum >= pages;
}

static void widen(cs_run_t *hole, uint32_t pages, bool ahead)
{
    while (hole->pages < pages) {
        cs_run_t *left = yields(hole->prev, ahead) ? hole->prev : NULL;
        cs_run_t *right = yields(hole->next, ahead) ? hole->next : NULL;
        cs_run_t *side = left && (!right || worth(left) <= worth(right)) ? left : right;
        hole = evict(side->user);
    }
}

bool rt_take_room(cs_ramtier_t *ram, rt_record_t *r)
{
    uint32_t pages = r->key.bytes / RT_PAGE;
    uint64_t freed = 0;
    if (!ram->area || pages > ram->slab_pages || pages > ram->n_pages / 2)
        return false;
    while (!(r->run = cs_pageruns_take(ram->area, pages, r))) {
        rt_record_t *victim = next_victim(ram, r->is_ahead);
        if (!victim)
            return false;
        freed += victim->run->pages;
        cs_run_t *hole = evict(victim);
        if (freed >= pages && hole->pages < pages && can_widen(hole, pages, r->is_ahead))
            widen(hole, pages, r->is_ahead);
    }
    cs_bufpool_note_used(ram->opts.pool, ((size_t)r->run->page + pages) * RT_PAGE);
    push(r, !r->is_ahead && ghost_take(ram, r->hash) ? RT_MAIN : RT_PROBATION);
    return true;
}
