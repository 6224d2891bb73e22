/* The drafter's state, for drafter.c (lifecycle, tail, commit) and drafter_step.c (drafting). */
#ifndef NODE_DRAFTER_INT_H
#define NODE_DRAFTER_INT_H

#include "speculate/cascade.h"
#include "speculate/drafter.h"

#include "model/vocab_part.h"

struct node_drafter {
    node_engine_t *engine;
    uint32_t n_vocab, context, max_draft;
    node_sampler_t *sampler; /* holds committed and pending tokens */
    node_kv_t kv;
    node_vocab_part_t *part;      /* what drafts choose from, NULL: all tokens */
    float *spread;                /* with a part: a row of logits, those of all other tokens -infinity */
    uint32_t n_outside, n_judged; /* committed tokens behind the first ones; those that the part did not have */
    uint32_t *tokens;             /* [cap] */
    uint32_t n_committed, n_pending, n_ready, cap;
    uint32_t n_shared;     /* blocks before this one are the verifier's, and final */
    double *margins;       /* [max_draft] of the n_ready picks */
    node_source_t *source; /* the caller's, or NULL */
    node_cascade_t cascade;
    const vc_clock_t *clock;
    node_drafter_stats_t stats;
    /* the planned step */
    bool planned;
    uint32_t kv_before, n_planned, n_logits;
    node_proposal_t proposals[NODE_SOURCE_MAX];
    uint32_t n_proposals;
    const float *normed; /* [n_logits][d_model] given for the source, or NULL */
    /* for node_drafter_next */
    node_row_t *rows;
    uint32_t cap_rows;
    float *logits;
    size_t cap_logits;
    float *seen_rows; /* [1 + NODE_SOURCE_MAX][d_model] for a source that wants them */
    uint32_t d_model;
};

vc_status_t node_drafter_kv_error(vc_status_t st, vc_err_t *err);
/* Drafts choose among all tokens from now on. No step is planned. */
void node_drafter_choose_from_all(node_drafter_t *d);
bool node_drafter_grow_tokens(node_drafter_t *d, uint32_t need);
vc_status_t node_drafter_check_unplanned(const node_drafter_t *d, vc_err_t *err);
/* Pending and ready tokens from the i-th on are forgotten, with their rows. */
vc_status_t node_drafter_drop_from(node_drafter_t *d, uint32_t i, vc_err_t *err);

#endif
