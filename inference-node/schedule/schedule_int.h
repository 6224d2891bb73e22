/* Shared by the files of schedule/. Offsets count iterations from now, rings turn with the window. */
#ifndef NODE_SCHEDULE_INT_H
#define NODE_SCHEDULE_INT_H

#include "schedule/schedule.h"

typedef enum { SLOT_FREE, SLOT_QUEUED, SLOT_RUNNING } slot_state_t;

typedef struct slot {
    slot_state_t state;
    uint64_t id; /* order of arrival, from 1; never used twice */
    node_schedule_request_t request;
    uint64_t since;   /* iteration at which it began to wait for a placement */
    uint64_t arrived; /* bytes of full KV that are here, up to the last end */
    uint64_t moved;   /* more of them in this iteration */
    uint64_t due;     /* promised for this iteration */
    uint64_t most;    /* allowed in this iteration */
    uint32_t n_drafts;
    bool placed;
    uint64_t verify_at; /* iteration, when placed */
    bool drafting, verifying;
    bool enough;        /* no further draft in this round */
    uint32_t n_drafted; /* in this iteration */
    bool pending;       /* while reservations are laid anew */
    uint64_t *share;    /* ring [window]: link bytes promised */
} slot_t;

struct node_schedule {
    node_schedule_options_t opt;
    uint64_t now, next_id, n_dropped;
    bool in_iteration, dirty;      /* between step and end; reservations must be laid anew at the end */
    uint64_t next_link, next_hold; /* budgets from the end of this iteration on */
    uint64_t resident;             /* compressed bytes of running requests */
    uint32_t n_running, n_queued;
    uint32_t base;   /* ring index of offset 0 */
    uint64_t *link;  /* ring [window]: promised */
    uint64_t *hold;  /* ring [window]: held at the end, or in the middle of a verify pass */
    slot_t *slots;   /* [max_requests] */
    uint32_t *order; /* [max_requests] scratch: slots sorted for the purpose at hand */
};

static inline uint32_t schedule_ring(const node_schedule_t *s, uint32_t offset)
{
    return (s->base + offset) % s->opt.window;
}

/* Could it run alone in an empty window? */
bool schedule_fits_alone(const node_schedule_t *s, const node_schedule_request_t *r, uint64_t link, uint64_t hold);
/* Reserves for a verification at this offset, or leaves everything as it is. The slot is not placed. */
bool schedule_reserve(node_schedule_t *s, slot_t *slot, uint32_t offset);
/* The feasible offset nearest the target, later before earlier. */
bool schedule_reserve_near(node_schedule_t *s, slot_t *slot, uint32_t target);
void schedule_release(node_schedule_t *s, slot_t *slot);
/* Lays all reservations anew, in the order in which they were to be verified, from the bytes that are here. */
void schedule_relay(node_schedule_t *s);

#endif
