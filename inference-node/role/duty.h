/*
 * A share of time: work that runs beside others rests after every piece, so that over the whole it takes no more than
 * its share. One thread.
 */
#ifndef NODE_ROLE_DUTY_H
#define NODE_ROLE_DUTY_H

#include "vc/clock.h"

typedef struct node_duty {
    const vc_clock_t *clock;
    void (*wait)(void *arg, uint64_t us); /* may return early: what is still owed is waited for next time */
    void *arg;
    uint32_t percent; /* 1 to 100 */
    uint64_t began_us, rested_us;
} node_duty_t;

void node_duty_begin(node_duty_t *duty); /* work starts now; nothing is owed from before */
void node_duty_rest(node_duty_t *duty);  /* a piece has ended: waits for as long as the share asks */

#endif
