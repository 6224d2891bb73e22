/*
 * When each request is verified. Requests draft on their compressed KV, one token per iteration of the engine; to be
 * verified, a request needs its full KV, which crosses a link and is held in transient memory until the verify pass is
 * over. Verifying all requests at once leaves the link idle while they draft and the engine idle while it loads; so
 * verifications are spread over iterations such that the link is busy all the time.
 *
 * Two budgets run over the next W iterations: bytes promised to the link in each of them, and bytes of full KV held at
 * the end of each. On admission and after each verification the feasible verify iteration nearest the ideal draft
 * length x (x, x + 1, x - 1, ...) is reserved in both, or the request waits its turn. Transfers are laid as late as
 * they can be, which holds the least: when that does not fit, nothing does.
 *
 * Pure: no clock, no threads, no I/O; time is the iteration number, the same calls give the same plan. Memory is taken
 * by create only. One owner thread. bench/bench_sim.c plays the paper's machines through this code.
 *
 *     node_schedule_step -> tasks -> (moved, verified, cancel, add in any order) -> node_schedule_end -> step -> ...
 *
 * Fairness. Waiting requests are tried oldest first. Once the oldest that has a place in memory has waited `patience`
 * iterations, no younger one is placed before it; all reservations end within W iterations and every request fits
 * into an empty window, so with data on time a waiter with k older ones before it is placed within
 * patience + (k + 1) W iterations, and verified within W more. Each verification commits a token at least, so every
 * running request ends, and queued requests get the free slots in order of arrival.
 */
#ifndef NODE_SCHEDULE_H
#define NODE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "schedule/ideal.h"
#include "vc/status.h"

#define NODE_SCHEDULE_WINDOW_MAX 1024u
#define NODE_SCHEDULE_REQUESTS_MAX 4096u

typedef struct node_schedule node_schedule_t;

typedef struct node_schedule_options {
    uint32_t window;         /* W in iterations, 2 to NODE_SCHEDULE_WINDOW_MAX */
    uint32_t max_requests;   /* running and queued together */
    uint32_t max_running;    /* rows of one batch */
    uint32_t max_draft;      /* drafts of a round at most */
    uint32_t patience;       /* iterations of waiting after which younger requests stand back */
    uint64_t link_bytes;     /* what the link moves in one iteration */
    uint64_t hold_bytes;     /* transient memory for full KV */
    uint64_t resident_bytes; /* memory for the compressed KV of running requests */
    bool lock_step; /* the baseline: all draft together, all are verified in one iteration, whatever it takes */
} node_schedule_options_t;
node_schedule_options_t node_schedule_options_default(void); /* budgets are 0 and must be set */

typedef struct node_schedule_request {
    uint64_t full_bytes;       /* over the link for each verification; 0: it is in memory, no link */
    uint64_t stream_bytes;     /* held of what arrives during the verify pass itself, say two layers; 0: no layer
                                  streaming, all of it must be there before */
    uint64_t compressed_bytes; /* resident while it runs */
    uint32_t remaining;        /* tokens to commit at most, at least 1 */
    node_schedule_cost_t cost;
} node_schedule_request_t;

/* VC_ERR_INVALID with a sentence, VC_ERR_NOMEM. */
vc_status_t node_schedule_create(const node_schedule_options_t *options, node_schedule_t **schedule_p, vc_err_t *err);
void node_schedule_destroy(node_schedule_t *s);

/* Queues a request. VC_ERR_BUSY when max_requests are there, VC_ERR_RANGE with a sentence when it could never run. */
vc_status_t node_schedule_add(node_schedule_t *s, const node_schedule_request_t *request, uint64_t *id_p,
                              vc_err_t *err);
/* Gives back all that it reserved. VC_ERR_NOT_FOUND for an unknown or ended request. */
vc_status_t node_schedule_cancel(node_schedule_t *s, uint64_t id);
/* The link or the memory is another than thought; reservations are laid anew. VC_ERR_RANGE when a request that is there
 * could never run any more: nothing is changed then. */
vc_status_t node_schedule_set_budgets(node_schedule_t *s, uint64_t link_bytes, uint64_t hold_bytes, vc_err_t *err);

typedef enum {
    NODE_SCHEDULE_DRAFT,  /* one more token on the compressed KV */
    NODE_SCHEDULE_VERIFY, /* n_drafts + 1 rows on the full KV */
    NODE_SCHEDULE_WAIT    /* enough drafts; the full KV is not here */
} node_schedule_action_t;

typedef struct node_schedule_task {
    uint64_t id;
    node_schedule_action_t action;
    uint32_t n_drafts;  /* that are there before this iteration */
    uint64_t link_here; /* bytes that came before; back to 0: thrown away for an older one, and sent again later */
    uint64_t link_due;  /* bytes of full KV to move during this iteration */
    uint64_t link_most; /* bytes that memory allows; more than due comes early */
} node_schedule_task_t;

/* Begins an iteration: places who waits, then one task for each running request, in the order of ids. tasks has room
 * for max_running. */
uint32_t node_schedule_step(node_schedule_t *s, node_schedule_task_t *tasks);
/* Bytes that came for it during this iteration, at most link_most together. Less than due is late: it drafts on and its
 * verification moves. All of it early: it is verified as soon as it has the ideal length, before its time where that
 * was later; until its time nobody else was promised what it holds. */
vc_status_t node_schedule_moved(node_schedule_t *s, uint64_t id, uint64_t bytes);
/* What a DRAFT task came to, without this call one draft. n_drafts: new ones. enough: further ones do not pay, so it is
 * verified as soon as its full KV is here and the link allows; also after verified, for a round without any draft. */
vc_status_t node_schedule_drafted(node_schedule_t *s, uint64_t id, uint32_t n_drafts, bool enough);
/* After verified: its full KV has grown. VC_ERR_RANGE when it could never be verified any more; nothing is changed. */
vc_status_t node_schedule_resize(node_schedule_t *s, uint64_t id, uint64_t full_bytes, uint64_t stream_bytes);
/* The verify pass of this iteration committed so many tokens, at least 1; cost: new estimates, or NULL. With none
 * remaining, or `ended`, the request is gone. A verification that is not reported is tried again. */
vc_status_t node_schedule_verified(node_schedule_t *s, uint64_t id, uint32_t n_committed, bool ended,
                                   const node_schedule_cost_t *cost);
/* Ends the iteration. */
void node_schedule_end(node_schedule_t *s);

/* To look at, between end and step. */
typedef struct node_schedule_info {
    uint64_t now;                            /* iterations that ended */
    uint32_t n_running, n_queued, n_waiting; /* waiting: running without a reservation */
    uint64_t resident_bytes;
    uint64_t n_dropped; /* transfers that were thrown away to make room for an older one that came late */
} node_schedule_info_t;
node_schedule_info_t node_schedule_info(const node_schedule_t *s);
/* Promised link bytes and held bytes of the iteration `offset` from now, below the window. */
void node_schedule_reserved(const node_schedule_t *s, uint32_t offset, uint64_t *link_p, uint64_t *hold_p);
/* True when a verify iteration is reserved; *offset_p from now. */
bool node_schedule_placement(const node_schedule_t *s, uint64_t id, uint32_t *offset_p);

#endif
