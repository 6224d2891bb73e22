/* Three rates and the greatest of them; the source's chances held to what came true. Owner thread: the request's. */
#include "speculate/choice.h"

#include <string.h>

#define KEEP 0.96    /* of a bin's counts per proposal that was looked at */
#define PRIOR 3.0    /* proposals that did as they were said to, to begin with */
#define CAUTION 1.03 /* proposals at the break-even point gain nothing and may lose */

static const double bin_end[NODE_CHOICE_BINS - 1] = {0.3, 0.5, 0.7, 0.85, 0.95};

void node_choice_init(node_choice_t *c) { memset(c, 0, sizeof *c); }

static uint32_t bin_of(double chance)
{
    uint32_t i = 0;
    while (i < NODE_CHOICE_BINS - 1 && chance >= bin_end[i])
        i++;
    return i;
}

double node_choice_chance(const node_choice_t *c, double chance)
{
    uint32_t b = bin_of(chance);
    chance += c->beyond[b] / (c->seen[b] + PRIOR);
    return chance < 0 ? 0 : chance > 1 ? 1 : chance;
}

/* The best rate of the first k proposals over k. */
static double source_rate(const node_choice_t *c, const node_length_t *l, uint32_t *k_p)
{
    double tokens = 1, p = 1, best = 0;
    *k_p = 0;
    for (uint32_t k = 1; k <= c->n_proposals && k <= l->max_draft; k++) {
        p *= node_choice_chance(c, c->proposals[k - 1].chance);
        tokens += p;
        if (tokens > best * l->pass_us[k + 1]) {
            best = tokens / l->pass_us[k + 1];
            *k_p = k;
        }
    }
    return best;
}

node_choice_kind_t node_choice_begin(node_choice_t *c, node_length_t *l, bool has_copy,
                                     const node_proposal_t *proposals, uint32_t n, uint32_t *n_p)
{
    *n_p = 0;
    c->n_proposals = n < NODE_SOURCE_MAX ? n : NODE_SOURCE_MAX;
    if (c->n_proposals)
        memcpy(c->proposals, proposals, c->n_proposals * sizeof *proposals);
    if (!node_length_prepare(l))
        return NODE_CHOICE_PLAIN;
    uint32_t k;
    double rate = source_rate(c, l, &k);
    if (rate < CAUTION * l->beside_rate)
        rate = k = 0;
    if (has_copy && node_length_begin_beside(l, rate))
        return NODE_CHOICE_COPY;
    if (!k)
        return NODE_CHOICE_PLAIN;
    l->beside_rate = rate > l->beside_rate ? rate : l->beside_rate;
    *n_p = k;
    return NODE_CHOICE_SOURCE;
}

void node_choice_end(node_choice_t *c, const uint32_t *tokens, uint32_t n_tokens)
{
    bool right = true;
    for (uint32_t i = 0; right && i < n_tokens && i < c->n_proposals; i++) {
        uint32_t b = bin_of(c->proposals[i].chance);
        right = c->proposals[i].token == tokens[i];
        c->seen[b] = KEEP * c->seen[b] + 1;
        c->beyond[b] = KEEP * c->beyond[b] + right - c->proposals[i].chance;
    }
    c->n_proposals = 0;
}
