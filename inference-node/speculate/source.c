/* Calls into a draft source, with what comes out of it checked. No state beside the source's. */
#include "speculate/source.h"

#include <stddef.h>

void node_source_destroy(node_source_t *s)
{
    if (s)
        s->ops->destroy(s);
}

bool node_source_wants_rows(const node_source_t *s) { return s && !s->off && s->ops->wants_rows; }

void node_source_push(node_source_t *s, const uint32_t *tokens, uint32_t n, const float *rows)
{
    if (!n || s->off)
        return;
    s->off = s->ops->push(s, tokens, n, s->ops->wants_rows ? rows : NULL) != VC_OK;
    s->n_tokens += n;
}

void node_source_truncate(node_source_t *s, uint32_t n_tokens)
{
    if (s->off || n_tokens >= s->n_tokens)
        return;
    s->ops->truncate(s, n_tokens);
    s->n_tokens = n_tokens;
}

uint32_t node_source_propose(node_source_t *s, uint32_t n_vocab, uint32_t k, node_proposal_t *out)
{
    k = k < NODE_SOURCE_MAX ? k : NODE_SOURCE_MAX;
    if (!k || s->off)
        return 0;
    uint32_t n = s->ops->propose(s, k, out), i = 0;
    for (; i < n && i < k && out[i].token < n_vocab; i++) {
        out[i].chance = out[i].chance >= 0 ? out[i].chance : 0; /* NaN too */
        out[i].chance = out[i].chance <= 1 ? out[i].chance : 1;
    }
    return i;
}
