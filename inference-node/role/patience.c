/* The patience of a verify node. */
#include "role/patience.h"

#define MISSES_MAX 2u

void node_patience_draft(node_patience_t *p, uint32_t n, uint32_t n_useful)
{
    /* The first draft of all is late by nature: the verifier went on while the drafter got ready. */
    if (p->usual == 0 || 2 * n_useful >= n)
        p->missed = 0;
    p->usual = n;
}

void node_patience_missed(node_patience_t *p)
{
    if (p->missed < MISSES_MAX)
        p->missed++;
}

uint32_t node_patience_steps(const node_patience_t *p)
{
    /* Two steps more than the draft has tokens: for the way here. */
    return p->usual == 0 || p->missed == MISSES_MAX ? NODE_PATIENCE_LEAST : p->usual + 2;
}
