/*
 * How long a verify node waits for drafts, in decode steps of its own. Pure; one per stream.
 *
 * A drafter sends its drafts some tokens at a time. While they come in time, waiting for the next ones as long as
 * decoding that many tokens here would take costs nothing and saves passes for other streams. A drafter that is late
 * twice in a row is waited for two steps only, until drafts arrive of which at least half are still of use: so a slow
 * one costs at most two such waits, and a silent one nothing.
 */
#ifndef NODE_PATIENCE_H
#define NODE_PATIENCE_H

#include <stdint.h>

#define NODE_PATIENCE_LEAST 2u

typedef struct node_patience {
    uint32_t usual;  /* tokens of the last draft; 0: none has come yet */
    uint32_t missed; /* waits in a row that ended without one */
} node_patience_t;

/* A draft of n tokens arrived, of which n_useful were not committed already. */
void node_patience_draft(node_patience_t *p, uint32_t n, uint32_t n_useful);
/* A wait ended without a draft. */
void node_patience_missed(node_patience_t *p);
uint32_t node_patience_steps(const node_patience_t *p);

#endif
