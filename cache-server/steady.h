/*
 * A clock that never goes back, over one that may: a step backwards is left out and time goes on from where it was, so
 * that a lease lives no longer than it was given and nothing subtracts a later time from an earlier one. A step forward
 * cannot be told from time that passed.
 */
#ifndef CS_STEADY_H
#define CS_STEADY_H

#include <pthread.h>

#include "vc/clock.h"

typedef struct cs_steady {
    vc_clock_t clock; /* hand this out; any thread */
    const vc_clock_t *inner;
    pthread_mutex_t lock;
    uint64_t last_us, skipped_us; /* last reading of inner; sum of its steps back */
} cs_steady_t;

void cs_steady_init(cs_steady_t *steady, const vc_clock_t *inner);
void cs_steady_fini(cs_steady_t *steady);

#endif
