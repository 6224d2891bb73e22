/* The acceptance rule, and nothing else. No state, no I/O. */
#include "speculate/accept.h"

const char *node_finish_name(node_finish_t finish)
{
    switch (finish) {
    case NODE_FINISH_NONE: return "none";
    case NODE_FINISH_END: return "end";
    case NODE_FINISH_STOP: return "stop";
    case NODE_FINISH_LENGTH: return "length";
    case NODE_FINISH_CONTEXT: return "context";
    }
    return "unknown";
}

static bool is_end(const node_accept_in_t *in, uint32_t token)
{
    for (uint32_t i = 0; i < in->n_end_tokens; i++)
        if (in->end_tokens[i] == token)
            return true;
    return false;
}

/* What ends the generation when n tokens are committed, chosen[n - 1] being the last. */
static node_finish_t finish_after(const node_accept_in_t *in, uint32_t n)
{
    if (is_end(in, in->chosen[n - 1]))
        return NODE_FINISH_END;
    if (in->stop_after && n >= in->stop_after)
        return NODE_FINISH_STOP;
    if (n >= in->budget_left)
        return NODE_FINISH_LENGTH;
    if (n >= in->context_left)
        return NODE_FINISH_CONTEXT;
    return NODE_FINISH_NONE;
}

void node_accept(const node_accept_in_t *in, node_accept_out_t *out)
{
    *out = (node_accept_out_t){0, 0, NODE_FINISH_NONE};
    for (uint32_t i = 0; i < in->n_chosen && out->finish == NODE_FINISH_NONE; i++) {
        bool match = i < in->n_drafts && in->drafts[i] == in->chosen[i];
        out->n_committed = i + 1;
        out->n_accepted += match;
        out->finish = finish_after(in, i + 1);
        if (!match) /* the correction, or the bonus token after the last draft */
            break;
    }
}

uint32_t node_accept_useful(uint32_t n_drafts, uint32_t budget_left, uint32_t context_left)
{
    uint32_t room = budget_left < context_left ? budget_left : context_left; /* tokens that can still be committed */
    uint32_t useful = room ? room - 1 : 0;
    return n_drafts < useful ? n_drafts : useful;
}
