/*
 * The acceptance rule: which of the drafted tokens and which token of the verifier become final. Pure.
 */
#ifndef NODE_ACCEPT_H
#define NODE_ACCEPT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    NODE_FINISH_NONE = 0,
    NODE_FINISH_END,    /* an end token, which is the last committed token */
    NODE_FINISH_STOP,   /* a stop string; the last committed token completed it */
    NODE_FINISH_LENGTH, /* the token budget */
    NODE_FINISH_CONTEXT /* the context is full */
} node_finish_t;
const char *node_finish_name(node_finish_t finish); /* "none", "end", "stop", "length", "context" */

typedef struct node_accept_in {
    const uint32_t *drafts; /* [n_drafts] proposed */
    uint32_t n_drafts;
    const uint32_t *chosen; /* [n_chosen] by the verifier, row by row, up to and with the first that is no match:
                               1 <= n_chosen <= n_drafts + 1 */
    uint32_t n_chosen;
    const uint32_t *end_tokens;
    uint32_t n_end_tokens;
    uint32_t stop_after;   /* a stop string is complete after this many chosen tokens; 0: none is */
    uint32_t budget_left;  /* tokens that may still be committed, >= 1 */
    uint32_t context_left; /* positions that are still free, >= 1 */
} node_accept_in_t;

typedef struct node_accept_out {
    uint32_t n_accepted;  /* drafts that became final */
    uint32_t n_committed; /* n_accepted, plus one when the verifier's own token follows; the tokens are chosen[0..) */
    node_finish_t finish; /* where several rules end at the same token: end, stop, length, context */
} node_accept_out_t;

void node_accept(const node_accept_in_t *in, node_accept_out_t *out);

/* Drafts worth verifying: more could never be committed beside the verifier's own token. */
uint32_t node_accept_useful(uint32_t n_drafts, uint32_t budget_left, uint32_t context_left);

#endif
