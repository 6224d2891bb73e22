/* The policy. See evict.h. */
#include "evict.h"

/* Halving by shifts, linear within a half-life: exact enough for a policy, and the same on every machine. */
uint16_t cs_evict_decay(uint16_t freq, uint32_t used_s, uint32_t now_s)
{
    uint32_t age_s = now_s > used_s ? now_s - used_s : 0; /* a clock that jumped back ages nothing */
    uint32_t halvings = age_s / CS_EVICT_HALF_LIFE_S;
    if (halvings >= 16)
        return 0;
    uint32_t value = (uint32_t)freq >> halvings;
    uint32_t part = age_s % CS_EVICT_HALF_LIFE_S;
    return (uint16_t)(value - value * part / (2 * CS_EVICT_HALF_LIFE_S));
}

uint16_t cs_evict_touch(uint16_t freq, uint32_t used_s, uint32_t now_s)
{
    uint32_t value = cs_evict_decay(freq, used_s, now_s) + CS_EVICT_FREQ_ONE;
    return value > UINT16_MAX ? UINT16_MAX : (uint16_t)value;
}

double cs_evict_object_worth(uint16_t freq, uint32_t used_s, uint32_t block_index, bool is_orphan, uint32_t now_s)
{
    if (is_orphan)
        return 0;
    /* Prefill of a block costs its linear part plus attention over all blocks before it; at 64 tokens a block the two
     * are equal after some 128 blocks. An object long unused still costs what it costs: never quite zero. */
    double cost = 1.0 + block_index / 128.0;
    return (cs_evict_decay(freq, used_s, now_s) + 1.0) * cost;
}

static bool goes_before(const cs_evict_segment_t *a, const cs_evict_segment_t *b)
{
    /* Nothing alive inside: free room, whatever the class. */
    if ((a->worth <= 0) != (b->worth <= 0))
        return a->worth <= 0;
    if (a->is_full_copy != b->is_full_copy)
        return a->is_full_copy;
    return a->worth * (double)b->bytes < b->worth * (double)a->bytes;
}

size_t cs_evict_pick(const cs_evict_segment_t *segments, size_t n)
{
    size_t victim = n;
    for (size_t i = 0; i < n; i++) {
        if (!segments[i].is_kept && (victim == n || goes_before(&segments[i], &segments[victim])))
            victim = i;
    }
    return victim;
}
