/* A job beside others takes its share of the time and no more. */
#include "role/duty.h"
#include "support/vc_test.h"

typedef struct {
    vc_fake_clock_t clock;
    uint64_t waited_us, least_us; /* a wait returns after least_us at most, when that is set */
} fx_t;

static void wait_us(void *arg, uint64_t us)
{
    fx_t *f = arg;
    if (f->least_us != 0 && us > f->least_us)
        us = f->least_us;
    f->waited_us += us;
    vc_fake_clock_advance(&f->clock, us);
}

static node_duty_t begin(fx_t *f, uint32_t percent)
{
    *f = (fx_t){0};
    vc_fake_clock_init(&f->clock, 1000);
    node_duty_t duty = {.clock = &f->clock.clock, .wait = wait_us, .arg = f, .percent = percent};
    node_duty_begin(&duty);
    return duty;
}

Test(duty, a_quarter_of_the_time_rests_three_times_as_long_as_it_works)
{
    fx_t f;
    node_duty_t duty = begin(&f, 25);
    for (uint64_t i = 1; i <= 10; i++) {
        vc_fake_clock_advance(&f.clock, 700);
        node_duty_rest(&duty);
        cr_assert_eq(f.waited_us, i * 2100);
    }
}

Test(duty, all_of_the_time_never_waits)
{
    fx_t f;
    node_duty_t duty = begin(&f, 100);
    vc_fake_clock_advance(&f.clock, 1000000);
    node_duty_rest(&duty);
    node_duty_rest(&duty);
    cr_assert_eq(f.waited_us, 0);
}

Test(duty, what_a_wait_cut_short_still_owes_is_waited_next_time)
{
    fx_t f;
    node_duty_t duty = begin(&f, 50);
    f.least_us = 100;
    vc_fake_clock_advance(&f.clock, 1000);
    node_duty_rest(&duty);
    cr_assert_eq(f.waited_us, 100);
    f.least_us = 0;
    node_duty_rest(&duty);
    cr_assert_eq(f.waited_us, 1000);
}

Test(duty, a_new_begin_owes_nothing)
{
    fx_t f;
    node_duty_t duty = begin(&f, 1);
    vc_fake_clock_advance(&f.clock, 50000);
    node_duty_begin(&duty);
    node_duty_rest(&duty);
    cr_assert_eq(f.waited_us, 0);
    vc_fake_clock_advance(&f.clock, 10);
    node_duty_rest(&duty);
    cr_assert_eq(f.waited_us, 990);
}
