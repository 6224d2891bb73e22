/*
 * How long things take: counts in fixed buckets, eight to each power of two from 1 us to 67 s. Nothing is allocated,
 * any thread may add, and a percentile is at most an eighth too high.
 */
#ifndef CS_HIST_H
#define CS_HIST_H

#include <stdatomic.h>
#include <stdint.h>

#define CS_HIST_BUCKETS 200u

typedef struct cs_hist {
    _Atomic uint64_t n[CS_HIST_BUCKETS]; /* relaxed: a reader may miss what is being added */
    _Atomic uint64_t max_us;
} cs_hist_t;

typedef struct cs_hist_sum {
    uint64_t count, p50_us, p90_us, p99_us, p999_us, max_us; /* 0 without samples */
} cs_hist_sum_t;

void cs_hist_add(cs_hist_t *hist, uint64_t us);
void cs_hist_read(const cs_hist_t *hist, cs_hist_sum_t *sum_p);

#endif
