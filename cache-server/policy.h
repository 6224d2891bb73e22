/*
 * Which object goes first when room is needed, and what is remembered of those that went. Pure: no clock, no disk, no
 * lock and no randomness of its own, so equal calls give equal answers; the store drives it under its lock, the
 * simulator (vericachectl replay, bench_policy) drives the very same code without a disk.
 *
 * Items carry the caller's number (id): dense, stable from insert to remove, reused afterwards (the index's entry id).
 * Time is counted in bytes inserted, so that idle hours age nothing and no clock can jump; now_s, the caller's clock in
 * seconds, is there for a policy that goes by it.
 */
#ifndef CS_POLICY_H
#define CS_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vc/status.h"

#define CS_POLICY_NONE UINT32_MAX

typedef struct cs_policy cs_policy_t;

typedef struct cs_policy_item {
    uint64_t fp;          /* of the object's key, well mixed and the same after a restart; names it in the ghost list */
    uint32_t bytes;       /* what its going gives back */
    uint32_t block_index; /* position in its chain: deeper blocks cost more to compute and are worth nothing alone */
    bool is_full_copy;    /* goes before the compressed copy of the same use */
} cs_policy_item_t;

/* capacity_bytes: what the policy manages; sizes its queues and its memory of ghosts. May change later. */
vc_status_t cs_policy_create(uint64_t capacity_bytes, cs_policy_t **policy_p);
void cs_policy_destroy(cs_policy_t *policy);
void cs_policy_set_capacity(cs_policy_t *policy, uint64_t capacity_bytes);
/* Room for ids below limit, so that insert cannot fail. NOMEM changes nothing. */
vc_status_t cs_policy_reserve(cs_policy_t *policy, uint32_t limit);

void cs_policy_insert(cs_policy_t *policy, uint32_t id, const cs_policy_item_t *item, uint32_t now_s);
/* Used: found by a lookup that took it. */
void cs_policy_touch(cs_policy_t *policy, uint32_t id, uint32_t now_s);
/* A block whose parent is gone: first in line from now on. */
void cs_policy_demote(cs_policy_t *policy, uint32_t id);
/* evicted: it is remembered as a ghost; false: deleted or damaged, forgotten. */
void cs_policy_remove(cs_policy_t *policy, uint32_t id, bool evicted);
/* The next to go, still inside until removed. Those for which is_kept (may be NULL) answers true are passed over
 * without losing their place for good. CS_POLICY_NONE: nothing may go. Amortised O(log n) or better. */
uint32_t cs_policy_victim(cs_policy_t *policy, bool (*is_kept)(void *arg, uint32_t id), void *arg, uint32_t now_s);

/* Where it stands now: the lower goes first, equals by depth. For choosing among some of the items. */
uint32_t cs_policy_rank(const cs_policy_t *policy, uint32_t id);

/* What outlives a restart: one small number per item, written in batches by the caller, given back after insert. */
uint16_t cs_policy_state(const cs_policy_t *policy, uint32_t id, uint32_t now_s);
void cs_policy_restore(cs_policy_t *policy, uint32_t id, uint16_t state, uint32_t now_s);

uint32_t cs_policy_count(const cs_policy_t *policy);
size_t cs_policy_memory_bytes(const cs_policy_t *policy); /* at most 24 bytes per id, and the ghosts */

#endif
