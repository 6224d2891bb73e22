/* Injected time: the system's clocks are sane, the fake one moves only when told. */
#include "support/vc_test.h"
#include "vc/clock.h"

Test(clock, system_clock_never_goes_back_and_wall_time_is_of_this_century)
{
    const vc_clock_t *clock = vc_clock_system();
    uint64_t last = vc_clock_now_us(clock);
    for (int i = 0; i < 1000; i++) {
        uint64_t now = vc_clock_now_us(clock);
        cr_assert_geq(now, last);
        last = now;
    }
    cr_assert_gt(vc_clock_wall_us(clock), 1600000000ull * 1000000);
    cr_assert_lt(vc_clock_wall_us(clock), 4200000000ull * 1000000);
}

Test(clock, fake_clock_moves_only_when_told)
{
    vc_fake_clock_t fake;
    vc_fake_clock_init(&fake, 100);
    cr_assert_eq(vc_clock_now_us(&fake.clock), 100u);
    cr_assert_eq(vc_clock_now_us(&fake.clock), 100u);
    vc_fake_clock_advance(&fake, 30000000);
    cr_assert_eq(vc_clock_now_us(&fake.clock), 30000100u);
    cr_assert_eq(vc_clock_wall_us(&fake.clock), 30000100u);
}
