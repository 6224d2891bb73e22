/*
 * Hit rates of the last minute, ten minutes and hour: a ring of buckets of ten seconds. Time is a parameter; one that
 * jumps back is counted at the latest moment seen. Any thread.
 */
#ifndef CS_HITS_H
#define CS_HITS_H

#include <pthread.h>
#include <stdint.h>

#define CS_HITS_STEP_US ((uint64_t)10 * 1000000)
#define CS_HITS_STEPS 360u

typedef struct cs_hits_sum {
    uint64_t asked_blocks, hit_blocks, asked_tokens, hit_tokens;
} cs_hits_sum_t;

typedef struct cs_hits {
    pthread_mutex_t lock;
    uint64_t newest; /* number of the newest step */
    cs_hits_sum_t steps[CS_HITS_STEPS];
} cs_hits_t;

void cs_hits_init(cs_hits_t *hits, uint64_t now_us);
void cs_hits_fini(cs_hits_t *hits);
void cs_hits_add(cs_hits_t *hits, uint64_t now_us, const cs_hits_sum_t *sum);
/* What was counted in the last n_steps steps, the running one included; at most CS_HITS_STEPS. */
void cs_hits_read(cs_hits_t *hits, uint64_t now_us, uint32_t n_steps, cs_hits_sum_t *sum_p);

#endif
