/*
 * Drafts on their way to a verify pass: what arrived, at which positions, in which epoch. Pure; one thread.
 *
 * The drafter starts a new epoch whenever it rolls back, and it rolls back whenever a committed token differs from what
 * it drafted. So once a draft of epoch e has met a different committed token, everything else of epoch e is void.
 */
#ifndef NODE_VERIFY_QUEUE_H
#define NODE_VERIFY_QUEUE_H

#include "role/verify_wire.h"

#define NODE_QUEUE_CAP 1024u

typedef struct node_verify_queue {
    uint32_t tokens[NODE_QUEUE_CAP]; /* drafts for positions committed_end, committed_end + 1, ... */
    uint32_t n;
    uint32_t epoch;     /* of the queued drafts */
    int64_t void_epoch; /* drafts of this epoch or an older one are ignored; -1: none is */
} node_verify_queue_t;

void node_verify_queue_init(node_verify_queue_t *q);

/* A Draft message came in. committed[0..n_committed): every token so far, by absolute position. PROTOCOL: a gap between
 * positions, a draft of the prompt, more than the queue takes. A void or outdated draft is OK and ignored. */
vc_status_t node_verify_queue_push(node_verify_queue_t *q, const node_wire_draft_t *draft, const uint32_t *committed,
                                   uint32_t n_committed, uint32_t n_prompt, vc_err_t *err);

/* These tokens were committed: matching drafts leave the queue; at the first that differs all do. */
void node_verify_queue_commit(node_verify_queue_t *q, const uint32_t *tokens, uint32_t n);

#endif
