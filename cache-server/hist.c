/* Buckets of a histogram: 0 to 7 us one by one, then eight to a power of two. */
#include "hist.h"

#include "vc/mem.h"

static uint32_t bucket_of(uint64_t us)
{
    if (us < 8)
        return (uint32_t)us;
    uint32_t log = 63 - (uint32_t)__builtin_clzll(us);
    uint32_t bucket = (log - 2) * 8 + (uint32_t)(us >> (log - 3) & 7);
    return VC_MIN(bucket, CS_HIST_BUCKETS - 1);
}

/* The largest value that falls into the bucket. */
static uint64_t top_of(uint32_t bucket)
{
    if (bucket < 8)
        return bucket;
    uint32_t log = bucket / 8 + 2;
    return ((uint64_t)(8 + bucket % 8 + 1) << (log - 3)) - 1;
}

void cs_hist_add(cs_hist_t *hist, uint64_t us)
{
    atomic_fetch_add_explicit(&hist->n[bucket_of(us)], 1, memory_order_relaxed);
    uint64_t max = atomic_load_explicit(&hist->max_us, memory_order_relaxed);
    while (us > max &&
           !atomic_compare_exchange_weak_explicit(&hist->max_us, &max, us, memory_order_relaxed, memory_order_relaxed))
        ;
}

static uint64_t percentile(const uint64_t *n, uint64_t count, uint32_t per_mille, uint64_t max_us)
{
    uint64_t rank = (count * per_mille + 999) / 1000, seen = 0;
    for (uint32_t b = 0; b < CS_HIST_BUCKETS; b++) {
        seen += n[b];
        if (seen >= rank && seen > 0)
            return VC_MIN(top_of(b), max_us);
    }
    return max_us;
}

void cs_hist_read(const cs_hist_t *hist, cs_hist_sum_t *sum_p)
{
    uint64_t n[CS_HIST_BUCKETS], count = 0;
    for (uint32_t b = 0; b < CS_HIST_BUCKETS; b++) {
        n[b] = atomic_load_explicit(&hist->n[b], memory_order_relaxed);
        count += n[b];
    }
    uint64_t max_us = atomic_load_explicit(&hist->max_us, memory_order_relaxed);
    *sum_p = (cs_hist_sum_t){.count = count, .max_us = max_us};
    if (count == 0)
        return;
    sum_p->p50_us = percentile(n, count, 500, max_us);
    sum_p->p90_us = percentile(n, count, 900, max_us);
    sum_p->p99_us = percentile(n, count, 990, max_us);
    sum_p->p999_us = percentile(n, count, 999, max_us);
}
