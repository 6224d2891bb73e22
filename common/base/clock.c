/* The operating system's clocks, and a clock for tests. */
#include "vc/clock.h"

#include <stdatomic.h>
#include <time.h>

static uint64_t read_us(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

static uint64_t system_mono(void *arg)
{
    (void)arg;
    return read_us(CLOCK_MONOTONIC);
}

static uint64_t system_wall(void *arg)
{
    (void)arg;
    return read_us(CLOCK_REALTIME);
}

const vc_clock_t *vc_clock_system(void)
{
    static const vc_clock_t clock = {system_mono, system_wall, NULL};
    return &clock;
}

/* Relaxed: tests order their steps by other means; the value alone matters. */
static uint64_t fake_now(void *arg)
{
    vc_fake_clock_t *fake = arg;
    return atomic_load_explicit(&fake->now_us, memory_order_relaxed);
}

void vc_fake_clock_init(vc_fake_clock_t *fake, uint64_t start_us)
{
    fake->clock = (vc_clock_t){fake_now, fake_now, fake};
    atomic_init(&fake->now_us, start_us);
}

void vc_fake_clock_advance(vc_fake_clock_t *fake, uint64_t us)
{
    atomic_fetch_add_explicit(&fake->now_us, us, memory_order_relaxed);
}
