/*
 * Inside of the policy.
 *
 *   policy.c        items and their lists, the interface
 *   policy_worth.c  what is learnt: how soon each kind of item is used again, and so which kind goes first
 *   policy_ghost.c  what is remembered of evicted items
 */
#ifndef CS_POLICY_INT_H
#define CS_POLICY_INT_H

#include "policy.h"

#define CS_POLICY_USES_MAX 127u /* counted that far */

/* Age: ticks since the last use; a tick is 1/256 of the capacity inserted. Bucket 0 is below one tick, then come four
 * buckets a doubling; the last, from 200 turnovers, is open. */
#define CS_TICKS_PER_TURNOVER 256u
#define CS_WORTH_AGES 64u
/* By uses: 1 and came as the tip of its chain, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96 or more. */
#define CS_WORTH_KINDS 14u
#define CS_WORTH_CELLS (2u * CS_WORTH_KINDS * CS_WORTH_AGES) /* of compressed and of full copies */
#define CS_WORTH_SNAPSHOTS 128u

uint32_t cs_worth_age(uint32_t ticks);        /* bucket */
uint32_t cs_worth_age_start(uint32_t bucket); /* its first tick */
uint32_t cs_worth_kind(uint32_t uses, bool is_tip);
static inline uint32_t cs_worth_cell(bool is_full, uint32_t kind, uint32_t age)
{
    return ((is_full ? CS_WORTH_KINDS : 0) + kind) * CS_WORTH_AGES + age;
}

typedef struct cs_worth {
    double used_again[CS_WORTH_KINDS][CS_WORTH_AGES];     /* waits ended by a use at this age */
    double waits[CS_WORTH_KINDS];                         /* waits begun */
    double snapshots[CS_WORTH_SNAPSHOTS][CS_WORTH_KINDS]; /* waits begun until snapshot_at */
    uint64_t snapshot_at[CS_WORTH_SNAPSHOTS];
    uint32_t n_snapshots, n_unranked; /* uses since the last ranking */
    double n;                         /* waits in the figures */
    uint16_t rank[CS_WORTH_CELLS];    /* of a cell; 0 goes first */
    uint16_t order[CS_WORTH_CELLS];   /* cells by rank */
} cs_worth_t;

void cs_worth_init(cs_worth_t *worth);
/* A wait of this kind began, or ended at this age. */
void cs_worth_wait(cs_worth_t *worth, uint32_t kind);
/* A wait that began just now is not to be counted. */
void cs_worth_unwait(cs_worth_t *worth, uint32_t kind);
void cs_worth_use(cs_worth_t *worth, uint32_t kind, uint32_t age);
/* Time to rank again? */
bool cs_worth_is_due(const cs_worth_t *worth);
/* Orders the cells by what has been learnt; memory: waits after which old figures count half. */
void cs_worth_rank(cs_worth_t *worth, uint64_t now_ticks, double memory);

typedef struct cs_ghost {
    uint32_t uses; /* 0: none */
    bool is_tip;
    uint32_t used; /* ticks at the last use, modulo 2^32 */
} cs_ghost_t;

typedef struct cs_ghosts {
    struct cs_ghost_slot *slots;
    uint32_t n_buckets;
} cs_ghosts_t;

/* Room for n or more. NOMEM changes nothing. */
vc_status_t cs_ghosts_grow(cs_ghosts_t *ghosts, uint64_t n, uint32_t now);
void cs_ghosts_fini(cs_ghosts_t *ghosts);
/* The longest unused of its bucket is forgotten for it. */
void cs_ghosts_put(cs_ghosts_t *ghosts, uint32_t fp, const cs_ghost_t *ghost, uint32_t now);
/* What is remembered; it is a ghost no longer. */
cs_ghost_t cs_ghosts_take(cs_ghosts_t *ghosts, uint32_t fp, uint32_t now);
size_t cs_ghosts_count(const cs_ghosts_t *ghosts);
size_t cs_ghosts_memory_bytes(const cs_ghosts_t *ghosts);

#endif
