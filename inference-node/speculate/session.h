/*
 * One request in one process: a verifier and a drafter side by side, drafts of a fixed or adaptive length.
 * After each verify the drafter's tail becomes the verifier's rows. One thread at a time.
 *
 * With a draft source in the drafter's options its proposals pass through the drafter where there is a body to draft
 * from; an automatic length lets the verifier check them straight away in rounds where drafting does not pay, and where
 * there is no body (prompt lookup decoding).
 */
#ifndef NODE_SESSION_H
#define NODE_SESSION_H

#include "speculate/costs.h"
#include "speculate/drafter.h"
#include "speculate/length.h"
#include "speculate/verifier.h"
#include "vc/clock.h"

#define NODE_DRAFT_AUTO UINT32_MAX

typedef struct node_session node_session_t;

typedef struct node_session_opts {
    uint32_t draft_length; /* fixed, 0: plain decoding, or NODE_DRAFT_AUTO */
    const vc_clock_t *clock;
    node_costs_t *costs; /* of the engine, the caller's, outlives the session: what an automatic length starts from and
                            adds to; NULL: the request learns by itself */
    const char *name;    /* the body's compressor as costs know it, outlives the session; NULL: nobody's */
} node_session_opts_t;
void node_session_opts_default(node_session_opts_t *opts);

/* v has been started (or resumed) and stays the caller's. The body may be NULL: then the drafter has the full KV, which
 * serves tests and is never worth drafting from, so with an automatic length it does not draft. */
vc_status_t node_session_create(const node_session_opts_t *opts, const node_drafter_opts_t *drafter_opts,
                                node_verifier_t *v, node_session_t **s_p, vc_err_t *err);
void node_session_destroy(node_session_t *s);
/* Draft, verify, commit. STALE after the end. */
vc_status_t node_session_round(node_session_t *s, node_verdict_t *verdict_p, vc_err_t *err);

typedef struct node_session_stats {
    uint64_t draft_us, verify_us;
    uint64_t n_plain_rounds;                   /* rounds without a draft */
    uint64_t n_source_rounds;                  /* rounds with proposals of the source, unseen by the drafter */
    uint64_t source_proposed, source_accepted; /* by drafter or verifier, whoever was asked */
} node_session_stats_t;
void node_session_stats(const node_session_t *s, node_session_stats_t *stats_p);

#endif
