/* Ghosts: a table of buckets, each one cache line. An overwritten ghost is an item that comes back as new, no more. */
#include <string.h>

#include "policy_int.h"
#include "vc/mem.h"

#define WAYS 8u
#define TIME_BITS 24u /* sixteen thousand turnovers; nothing stays that long */
#define TIME_MASK ((1u << TIME_BITS) - 1)

typedef struct cs_ghost_slot {
    uint32_t fp;
    uint32_t used : TIME_BITS;
    uint32_t uses : 7; /* 0: unused slot */
    uint32_t is_tip : 1;
} slot_t;
_Static_assert(sizeof(slot_t) * WAYS == 64, "a bucket is a cache line");
_Static_assert(CS_POLICY_USES_MAX < 1u << 7, "uses has 7 bits");

static slot_t *bucket_of(const cs_ghosts_t *g, uint32_t fp)
{
    return g->slots + (((uint64_t)fp * g->n_buckets) >> 32) * WAYS;
}

static void put(const cs_ghosts_t *g, slot_t ghost, uint32_t now)
{
    slot_t *bucket = bucket_of(g, ghost.fp), *out = bucket;
    for (uint32_t i = 0; i < WAYS && out->uses; i++)
        if (!bucket[i].uses || ((now - bucket[i].used) & TIME_MASK) > ((now - out->used) & TIME_MASK))
            out = &bucket[i];
    *out = ghost;
}

vc_status_t cs_ghosts_grow(cs_ghosts_t *ghosts, uint64_t n, uint32_t now)
{
    uint64_t buckets = (n + WAYS - 1) / WAYS;
    if (buckets <= ghosts->n_buckets || buckets > UINT32_MAX / WAYS)
        return VC_OK;
    size_t bytes = (size_t)buckets * WAYS * sizeof(slot_t), old = cs_ghosts_count(ghosts);
    cs_ghosts_t grown = {vc_alloc_aligned(WAYS * sizeof(slot_t), bytes), (uint32_t)buckets};
    if (!grown.slots)
        return VC_ERR_NOMEM;
    memset(grown.slots, 0, bytes);
    for (size_t i = 0; i < old; i++)
        if (ghosts->slots[i].uses)
            put(&grown, ghosts->slots[i], now);
    vc_free(ghosts->slots);
    *ghosts = grown;
    return VC_OK;
}

void cs_ghosts_fini(cs_ghosts_t *ghosts) { vc_free(ghosts->slots); }

void cs_ghosts_put(cs_ghosts_t *ghosts, uint32_t fp, const cs_ghost_t *ghost, uint32_t now)
{
    put(ghosts,
        (slot_t){.fp = fp, .used = ghost->used & TIME_MASK, .uses = ghost->uses & 127u, .is_tip = ghost->is_tip}, now);
}

cs_ghost_t cs_ghosts_take(cs_ghosts_t *ghosts, uint32_t fp, uint32_t now)
{
    slot_t *bucket = bucket_of(ghosts, fp);
    for (uint32_t i = 0; i < WAYS; i++) {
        slot_t slot = bucket[i];
        if (slot.uses && slot.fp == fp) {
            bucket[i].uses = 0;
            return (cs_ghost_t){slot.uses, slot.is_tip, now - ((now - slot.used) & TIME_MASK)};
        }
    }
    return (cs_ghost_t){0};
}

size_t cs_ghosts_count(const cs_ghosts_t *ghosts) { return (size_t)ghosts->n_buckets * WAYS; }

size_t cs_ghosts_memory_bytes(const cs_ghosts_t *ghosts) { return cs_ghosts_count(ghosts) * sizeof(slot_t); }
