/*
 * Completions that a fault holds back (fault.h: hold, reorder): a slow disk, or one that answers out of order. Between
 * a ring's reap and its callbacks. Owner: the ring's thread. Without VC_FAULTS nothing of it is left.
 */
#ifndef CS_URING_HOLD_H
#define CS_URING_HOLD_H

#include <stdbool.h>
#include <stdint.h>

#include "fault.h"

struct cs_io;

#ifdef VC_FAULTS
typedef struct cs_hold_list {
    struct cs_io *first;
    uint32_t n;
} cs_hold_list_t;

/* The ring's event descriptor is ticked by cs_fault_release. */
void cs_hold_open(int event_fd);
void cs_hold_close(int event_fd);
/* Takes a completion over. deliveries: how many later ones let it go; 0: only cs_fault_release. */
void cs_hold_add(cs_hold_list_t *list, struct cs_io *io, int32_t result, unsigned long deliveries);
/* Another completion was delivered. */
void cs_hold_count(cs_hold_list_t *list);
/* The oldest one that may go, or NULL. all: every one; idle: also those that wait for others, since none will come. */
struct cs_io *cs_hold_take(cs_hold_list_t *list, bool all, bool idle, int32_t *result_p);

/* Tests, any thread: lets go of everything that is held at this moment; waits until n completions are held. */
void cs_fault_release(void);
void cs_fault_wait_held(uint32_t n);
#endif

#endif
