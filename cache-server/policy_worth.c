/*
 * What an item is worth, learnt from what happens. See policy_int.h.
 *
 * Every item waits for its next use. For each kind of item and each age of the wait we count how many waits got that
 * far and how many ended there with a use; evicted items count too, as long as their ghosts are remembered. That gives
 * the chance h(age) that a wait of this age ends in this bucket (the product-limit estimate: waits too young to have
 * got there are not counted as if they had).
 *
 * What keeping an item brings, per time that it takes room, depends on how long one is ready to keep it. The best of
 * these ratios over all horizons is the worth of (kind, age):
 *
 *     worth = max over b of  sum(a..b) P(ends in x) / sum(a..b) P(gets to x) * width(x)
 *
 * It is the index that is optimal for items that are independent of each other, and it has no constant: recency,
 * frequency, scans (never used again) and loops (the older, the nearer the next use) are different shapes of h.
 * Where nothing has been seen yet, a weak prior says that chances fall with age and grow with uses.
 */
#include <stdlib.h>
#include <string.h>

#include "policy_int.h"
#include "vc/mem.h"

#define RANK_EVERY 2048u
#define PRIOR_WAITS 1.0
#define COMPRESSED_GAIN \
    4.0 /* 16-bit values against 4-bit codes: a use saves the same time for a quarter of the bytes */

/* The first tick of a quarter of a doubling: 2^(log + quarter / 4), rounded up. */
static uint32_t quarter_start(uint32_t log, uint32_t quarter)
{
    static const uint32_t powers[4] = {65536, 77936, 92682, 110218}; /* 2^(16 + quarter / 4), rounded up */
    return (uint32_t)((((uint64_t)powers[quarter] << log) + 65535) >> 16);
}

uint32_t cs_worth_age(uint32_t ticks)
{
    if (ticks == 0)
        return 0;
    uint32_t log = 31u - (uint32_t)__builtin_clz(ticks), quarter = 3;
    while (ticks < quarter_start(log, quarter))
        quarter--;
    return VC_MIN(1 + 4 * log + quarter, CS_WORTH_AGES - 1);
}

uint32_t cs_worth_age_start(uint32_t bucket)
{
    return bucket == 0 ? 0 : quarter_start((bucket - 1) / 4, (bucket - 1) % 4);
}

uint32_t cs_worth_kind(uint32_t uses, bool is_tip)
{
    static const uint8_t least[CS_WORTH_KINDS] = {0, 0, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96};
    uint32_t k = CS_WORTH_KINDS - 1;
    while (uses < least[k])
        k--;
    return k == 1 && is_tip ? 0 : k;
}

void cs_worth_wait(cs_worth_t *worth, uint32_t kind)
{
    worth->waits[kind]++;
    worth->n++;
    worth->n_unranked++;
}

void cs_worth_unwait(cs_worth_t *worth, uint32_t kind) { worth->waits[kind] = VC_MAX(worth->waits[kind] - 1, 0); }

void cs_worth_use(cs_worth_t *worth, uint32_t kind, uint32_t age) { worth->used_again[kind][age]++; }

bool cs_worth_is_due(const cs_worth_t *worth) { return worth->n_unranked >= RANK_EVERY; }

static void halve(cs_worth_t *w)
{
    w->n /= 2;
    for (uint32_t k = 0; k < CS_WORTH_KINDS; k++) {
        w->waits[k] /= 2;
        for (uint32_t a = 0; a < CS_WORTH_AGES; a++)
            w->used_again[k][a] /= 2;
        for (uint32_t s = 0; s < w->n_snapshots; s++)
            w->snapshots[s][k] /= 2;
    }
}

static void take_snapshot(cs_worth_t *w, uint64_t now)
{
    if (w->n_snapshots == CS_WORTH_SNAPSHOTS) { /* every other one goes; the distance between them doubles */
        w->n_snapshots /= 2;
        for (uint32_t s = 0; s < w->n_snapshots; s++) {
            memcpy(w->snapshots[s], w->snapshots[2 * s], sizeof(w->snapshots[s]));
            w->snapshot_at[s] = w->snapshot_at[2 * s];
        }
    }
    memcpy(w->snapshots[w->n_snapshots], w->waits, sizeof(w->waits));
    w->snapshot_at[w->n_snapshots++] = now;
}

/* How many waits of this kind have had the time to get to each age; between two snapshots, their straight line. */
static void old_enough_waits(const cs_worth_t *w, uint32_t kind, uint64_t now, double *out)
{
    uint32_t s = w->n_snapshots - 1; /* the last one is of now */
    for (uint32_t a = 0; a < CS_WORTH_AGES; a++) {
        uint64_t start = cs_worth_age_start(a), at = now > start ? now - start : 0;
        while (s > 0 && w->snapshot_at[s] > at)
            s--;
        out[a] = w->snapshots[s][kind];
        if (w->snapshot_at[s] < at && s + 1 < w->n_snapshots)
            out[a] += (w->snapshots[s + 1][kind] - out[a]) * (double)(at - w->snapshot_at[s]) /
                      (double)(w->snapshot_at[s + 1] - w->snapshot_at[s]);
    }
}

/* chance[a] that a wait of age a ends in this bucket. chance comes in as what to believe without evidence; at an age
 * that hardly any wait has had the time to get to, what was learnt of the ages before it holds on. Else that an age is
 * unknown would be worth more than that a use is known to be rare, and what a lease kept for long would stay for good.
 */
static void learn_chances(const cs_worth_t *w, uint32_t kind, uint64_t now, double *chance)
{
    double old_enough[CS_WORTH_AGES], alive = 1, before = 1;
    old_enough_waits(w, kind, now, old_enough);
    for (uint32_t a = 0; a < CS_WORTH_AGES; a++) {
        double belief = VC_MIN(chance[a], before);
        double h = (w->used_again[kind][a] + PRIOR_WAITS * belief) / (old_enough[a] * alive + PRIOR_WAITS);
        chance[a] = before = VC_MIN(h, 1.0);
        alive *= 1 - chance[a];
    }
}

static void worth_of_chances(const double *chance, double *worth)
{
    double gets_to[CS_WORTH_AGES], ends[CS_WORTH_AGES], width[CS_WORTH_AGES], alive = 1;
    for (uint32_t a = 0; a < CS_WORTH_AGES; a++) {
        uint32_t start = cs_worth_age_start(a);
        width[a] = a + 1 < CS_WORTH_AGES ? cs_worth_age_start(a + 1) - start : start / 2.0;
        gets_to[a] = alive;
        ends[a] = alive * chance[a];
        alive = VC_MAX(alive - ends[a], 1e-12);
    }
    for (uint32_t a = 0; a < CS_WORTH_AGES; a++) {
        double uses = 0, time = 0;
        worth[a] = 0;
        for (uint32_t b = a; b < CS_WORTH_AGES; b++) {
            uses += ends[b];
            time += (gets_to[b] - ends[b] / 2) * width[b];
            if (time > 0 && uses > worth[a] * time)
                worth[a] = uses / time;
        }
    }
}

/* Kinds with little evidence borrow from those next to them: more uses from fewer, tips from other new blocks. */
static void learn(const cs_worth_t *w, uint64_t now, double worth[CS_WORTH_KINDS][CS_WORTH_AGES])
{
    double chance[CS_WORTH_AGES], tip_chance[CS_WORTH_AGES];
    for (uint32_t a = 0; a < CS_WORTH_AGES; a++)
        chance[a] = 0.5 / CS_WORTH_AGES; /* equal in every bucket: ever less per time */
    for (uint32_t k = 1; k < CS_WORTH_KINDS; k++) {
        learn_chances(w, k, now, chance);
        worth_of_chances(chance, worth[k]);
        if (k == 1)
            memcpy(tip_chance, chance, sizeof(chance));
        /* What is used has its parents used, too, so no child may be worth more than its parent. */
        for (uint32_t a = 0; k > 1 && a < CS_WORTH_AGES; a++)
            worth[k][a] = VC_MAX(worth[k][a], worth[k - 1][a]);
    }
    learn_chances(w, 0, now, tip_chance);
    worth_of_chances(tip_chance, worth[0]);
    for (uint32_t a = 0; a < CS_WORTH_AGES; a++)
        worth[0][a] = VC_MIN(worth[0][a], worth[1][a]);
}

typedef struct ranked {
    double worth;
    uint32_t cell;
} ranked_t;

static int by_worth(const void *a, const void *b)
{
    const ranked_t *x = a, *y = b;
    if (x->worth != y->worth)
        return x->worth < y->worth ? -1 : 1;
    if (x->cell / CS_WORTH_AGES != y->cell / CS_WORTH_AGES) { /* equals: full copies, then fewer uses */
        bool full_x = x->cell >= CS_WORTH_CELLS / 2, full_y = y->cell >= CS_WORTH_CELLS / 2;
        if (full_x != full_y)
            return full_x ? -1 : 1;
        return x->cell < y->cell ? -1 : 1;
    }
    return x->cell > y->cell ? -1 : 1; /* then the older */
}

void cs_worth_rank(cs_worth_t *w, uint64_t now_ticks, double memory)
{
    double worth[CS_WORTH_KINDS][CS_WORTH_AGES];
    ranked_t ranked[CS_WORTH_CELLS];
    w->n_unranked = 0;
    take_snapshot(w, now_ticks);
    if (w->n > memory)
        halve(w);
    learn(w, now_ticks, worth);
    for (uint32_t c = 0; c < CS_WORTH_CELLS; c++) {
        uint32_t kind = c / CS_WORTH_AGES % CS_WORTH_KINDS;
        double gain = c < CS_WORTH_CELLS / 2 ? COMPRESSED_GAIN : 1;
        ranked[c] = (ranked_t){gain * worth[kind][c % CS_WORTH_AGES], c};
    }
    qsort(ranked, CS_WORTH_CELLS, sizeof(ranked[0]), by_worth);
    for (uint32_t r = 0; r < CS_WORTH_CELLS; r++) {
        w->order[r] = (uint16_t)ranked[r].cell;
        w->rank[ranked[r].cell] = (uint16_t)r;
    }
}

void cs_worth_init(cs_worth_t *worth)
{
    memset(worth, 0, sizeof(*worth));
    cs_worth_rank(worth, 0, 1);
}
