/* Time worked since the begin against time rested. */
#include "role/duty.h"

void node_duty_begin(node_duty_t *duty)
{
    duty->began_us = vc_clock_now_us(duty->clock);
    duty->rested_us = 0;
}

void node_duty_rest(node_duty_t *duty)
{
    uint64_t now = vc_clock_now_us(duty->clock), passed = now - duty->began_us;
    uint64_t worked = passed - (duty->rested_us < passed ? duty->rested_us : passed);
    uint64_t owed = worked * (100 - duty->percent) / duty->percent;
    if (owed <= duty->rested_us)
        return;
    duty->wait(duty->arg, owed - duty->rested_us);
    duty->rested_us += vc_clock_now_us(duty->clock) - now;
}
