/* The draft queue of one Verify stream. */
#include "role/verify_queue.h"

#include <string.h>

void node_verify_queue_init(node_verify_queue_t *q) { *q = (node_verify_queue_t){.void_epoch = -1}; }

static void void_epoch(node_verify_queue_t *q, uint32_t epoch)
{
    q->void_epoch = epoch;
    q->n = 0;
}

vc_status_t node_verify_queue_push(node_verify_queue_t *q, const node_wire_draft_t *draft, const uint32_t *committed,
                                   uint32_t n_committed, uint32_t n_prompt, vc_err_t *err)
{
    if ((int64_t)draft->epoch <= q->void_epoch || draft->epoch < q->epoch)
        return VC_OK;
    if (draft->first < n_prompt)
        return vc_err_set(err, VC_ERR_PROTOCOL, "draft at position %u lies inside the prompt of %u tokens",
                          draft->first, n_prompt);
    if (draft->epoch > q->epoch) {
        q->epoch = draft->epoch;
        q->n = 0;
    }
    if (draft->first > n_committed + q->n)
        return vc_err_set(err, VC_ERR_PROTOCOL, "draft at position %u leaves a gap after position %u", draft->first,
                          n_committed + q->n);
    for (uint32_t i = 0; i < draft->n_tokens; i++) {
        uint32_t at = draft->first + i;
        if (at < n_committed ? draft->tokens[i] != committed[at]
                             : at < n_committed + q->n && draft->tokens[i] != q->tokens[at - n_committed]) {
            void_epoch(q, draft->epoch);
            return VC_OK;
        }
        if (at < n_committed + q->n)
            continue;
        if (q->n == NODE_QUEUE_CAP)
            return vc_err_set(err, VC_ERR_PROTOCOL, "more than %u drafts are waiting", NODE_QUEUE_CAP);
        q->tokens[q->n++] = draft->tokens[i];
    }
    return VC_OK;
}

void node_verify_queue_commit(node_verify_queue_t *q, const uint32_t *tokens, uint32_t n)
{
    uint32_t same = 0;
    while (same < n && same < q->n && q->tokens[same] == tokens[same])
        same++;
    if (same < n && same < q->n) {
        void_epoch(q, q->epoch);
        return;
    }
    memmove(q->tokens, q->tokens + same, (q->n - same) * sizeof(q->tokens[0]));
    q->n -= same;
}
