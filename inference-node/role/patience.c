/* The patience of a verify node. */
#include "role/patience.h"

#define MISSES_MAX 2u
#define SLACK 1.03 /* costs are measured, and a draft spares passes for others */

static void give_up(node_patience_t *p)
{
    p->missed = MISSES_MAX;
    p->plain = 0;
    p->pause = p->pause == 0 ? NODE_PATIENCE_PAUSE : p->pause * 2;
}

void node_patience_draft(node_patience_t *p, uint32_t n, uint32_t n_useful)
{
    /* The first draft of all is late by nature: the verifier went on while the drafter got ready. */
    if (p->usual == 0)
        p->missed = 0;
    else if (2 * n_useful >= n && p->pause == 0)
        p->missed = 0;
    p->usual = n;
}

void node_patience_round(node_patience_t *p, uint32_t n_tokens, double cost_us, double step_us)
{
    if (step_us <= 0 || p->missed == MISSES_MAX)
        return;
    if (cost_us > SLACK * step_us * n_tokens)
        give_up(p);
    else
        p->missed = p->pause = 0;
}

void node_patience_plain(node_patience_t *p)
{
    if (p->usual == 0)
        return;
    if (p->missed < MISSES_MAX) {
        if (++p->missed == MISSES_MAX)
            give_up(p);
    } else if (++p->plain >= p->pause) {
        p->missed = MISSES_MAX - 1; /* one more try */
    }
}

uint32_t node_patience_steps(const node_patience_t *p)
{
    /* Two steps more than the draft has tokens: for the way here. */
    return p->usual == 0 || p->missed == MISSES_MAX ? 0 : p->usual + 2;
}
