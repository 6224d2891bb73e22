/* See steady.h. */
#include "steady.h"

#include "vc/log.h"

#define WORTH_A_LINE_US 1000000u

static uint64_t mono_us(void *arg)
{
    cs_steady_t *steady = arg;
    pthread_mutex_lock(&steady->lock);
    /* Read inside the lock: two readers that changed places are no step back. */
    uint64_t now_us = vc_clock_now_us(steady->inner), back_us = 0;
    if (now_us < steady->last_us)
        back_us = steady->last_us - now_us;
    steady->skipped_us += back_us;
    steady->last_us = now_us;
    now_us += steady->skipped_us;
    pthread_mutex_unlock(&steady->lock);
    if (back_us >= WORTH_A_LINE_US)
        vc_log_warn("store", "the clock stepped back, time goes on from where it was step_ms=%llu",
                    (unsigned long long)(back_us / 1000));
    return now_us;
}

static uint64_t wall_us(void *arg)
{
    const cs_steady_t *steady = arg;
    return vc_clock_wall_us(steady->inner);
}

void cs_steady_init(cs_steady_t *steady, const vc_clock_t *inner)
{
    steady->clock = (vc_clock_t){mono_us, wall_us, steady};
    steady->inner = inner;
    steady->last_us = steady->skipped_us = 0;
    pthread_mutex_init(&steady->lock, NULL);
}

void cs_steady_fini(cs_steady_t *steady) { pthread_mutex_destroy(&steady->lock); }
