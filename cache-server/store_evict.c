/*
 * Eviction of single objects. The policy (policy.h) says which; here they leave the index, their rows are queued for
 * deletion, and their bytes in the segment are dead until it is cleaned (store_compact.c).
 *
 * A victim for cleaning is the segment with the least live bytes. Objects are evicted by the policy until that one is
 * at most half alive: cleaning it then copies no more than it gives back, which bounds the extra writes to one byte for
 * each byte put. When a quarter of all sealed bytes is dead and no segment is that empty yet, the dead are spread too
 * evenly; then objects of the emptiest segment go, whatever their rank.
 */
#include <string.h>

#include "fault.h"
#include "store_int.h"
#include "vc/mem.h"

#define STEP_OBJECTS 32u /* under one hold of the lock */

/* ---- rows to delete (locked) ---- */

void cs_drops_stage(cs_store_t *s, uint32_t *n_drops_p, uint32_t *n_dead_p)
{
    for (uint32_t i = 0; i < s->n_drops; i++)
        cs_catalog_delete_object(s->catalog, &s->drops[i]);
    for (uint32_t i = 0; i < s->n_dead_prefixes; i++)
        cs_catalog_delete_prefix(s->catalog, s->dead_prefixes[i]);
    *n_drops_p = s->n_drops;
    *n_dead_p = s->n_dead_prefixes;
}

/* Later ones may have been queued meanwhile, behind those that were staged. */
void cs_drops_forget(cs_store_t *s, uint32_t n_drops, uint32_t n_dead)
{
    if (n_drops > 0)
        memmove(s->drops, s->drops + n_drops, (s->n_drops - n_drops) * sizeof(*s->drops));
    s->n_drops -= n_drops;
    if (n_dead > 0)
        memmove(s->dead_prefixes, s->dead_prefixes + n_dead, (s->n_dead_prefixes - n_dead) * sizeof(*s->dead_prefixes));
    s->n_dead_prefixes -= n_dead;
}

/* ---- objects (locked) ---- */

bool cs_entry_is_kept(const cs_entry_t *entry) { return entry->holds > 0 || entry->is_kept; }

static bool is_kept(void *arg, uint32_t id)
{
    const cs_store_t *s = arg;
    return cs_entry_is_kept(cs_index_entry(s->index, id));
}

void cs_evict_entry(cs_store_t *s, uint32_t id)
{
    const cs_entry_t *entry = cs_index_entry(s->index, id);
    vc_object_key_t key;
    (void)cs_fault_hit("evict.object");
    cs_entry_key(s, entry, &key);
    s->stats.evicted_bytes += (uint64_t)entry->pages * 4096;
    cs_fid_stats(s, key.fidelity)->evicted_objects++;
    cs_drop_later(s, &key);
    cs_entry_drop(s, id, CS_MISS_EVICTED);
}

/* ---- victims for cleaning (locked) ---- */

static uint64_t live_allowed(const cs_store_t *s, const cs_segment_t *segment)
{
    return s->no_copies || !cs_segments_can_compact(s) ? 0 : segment->bytes / 2;
}

static cs_segment_t *ready_victim(const cs_store_t *s)
{
    cs_segment_t *segment = s->n_ranked > 0 ? s->ranked[0] : NULL;
    return segment && segment->live_bytes <= live_allowed(s, segment) ? segment : NULL;
}

/* Some object of the segment that nobody keeps. */
static uint32_t loose_entry(const cs_store_t *s, const cs_segment_t *segment)
{
    uint32_t id = segment->first_entry;
    while (id != CS_INDEX_NONE && cs_entry_is_kept(cs_index_entry(s->index, id)))
        id = cs_index_entry(s->index, id)->seg_next;
    return id;
}

/* Where nothing is copied, a segment with a kept object cannot be emptied: another of the first few is. */
static uint32_t from_emptiest(const cs_store_t *s)
{
    uint32_t n = live_allowed(s, s->ranked[0]) > 0 ? 1 : VC_MIN(s->n_ranked, 2 * CS_COMPACT_MIN_SEGMENTS);
    uint32_t found = CS_INDEX_NONE;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        const cs_segment_t *segment = s->ranked[i];
        uint32_t id = segment->live_bytes < least ? loose_entry(s, segment) : CS_INDEX_NONE;
        if (id != CS_INDEX_NONE) {
            found = id;
            least = segment->live_bytes;
        }
    }
    return found;
}

/* gone: bytes evicted on this occasion. Many without a victim means that they lay in segments that cannot be one. */
static uint32_t next_to_go(cs_store_t *s, uint64_t gone)
{
    bool is_spread = s->ranked_bytes - s->ranked_live > s->ranked_bytes / 4 || gone > 2 * s->segment_bytes;
    uint32_t id = is_spread ? from_emptiest(s) : CS_INDEX_NONE;
    if (id == CS_INDEX_NONE)
        id = cs_policy_victim(s->policy, is_kept, s, cs_now_s(s));
    return id;
}

vc_status_t cs_evict_for_victim(cs_store_t *s, cs_segment_t **victim_p)
{
    uint64_t gone = 0;
    for (;;) {
        cs_lock(s);
        for (uint32_t n = 0; n < STEP_OBJECTS; n++) {
            cs_segment_t *victim = ready_victim(s);
            uint32_t id = victim || s->n_ranked == 0 ? CS_INDEX_NONE : next_to_go(s, gone);
            if (victim || id == CS_POLICY_NONE) {
                if (victim) { /* nobody writes to it; who reads it goes on */
                    victim->state = CS_SEGMENT_FILLING;
                    cs_segment_rank(s, victim);
                }
                cs_unlock(s);
                *victim_p = victim;
                return victim ? VC_OK : VC_ERR_NOSPACE;
            }
            gone += (uint64_t)cs_index_entry(s->index, id)->pages * 4096;
            cs_evict_entry(s, id);
        }
        cs_unlock(s);
    }
}
