/* Injected time. Code that needs "now" takes a vc_clock_t *, so tests step it by hand. */
#ifndef VC_CLOCK_H
#define VC_CLOCK_H

#include <stdint.h>

typedef struct vc_clock {
    uint64_t (*mono_us)(void *arg); /* monotonic microseconds: deadlines, leases, durations */
    uint64_t (*wall_us)(void *arg); /* microseconds since 1970 UTC: shown to people, never compared */
    void *arg;
} vc_clock_t;

/* The operating system's clocks. Static storage. */
const vc_clock_t *vc_clock_system(void);

static inline uint64_t vc_clock_now_us(const vc_clock_t *c) { return c->mono_us(c->arg); }
static inline uint64_t vc_clock_wall_us(const vc_clock_t *c) { return c->wall_us(c->arg); }

/* A clock that moves only when told. Thread-safe. */
typedef struct vc_fake_clock {
    vc_clock_t clock;
    _Atomic uint64_t now_us;
} vc_fake_clock_t;
void vc_fake_clock_init(vc_fake_clock_t *fake, uint64_t start_us);
void vc_fake_clock_advance(vc_fake_clock_t *fake, uint64_t us);

#endif
