/*
 * The drafting half of a request: proposes tokens from a compressed body (or none) and a full-precision tail.
 *
 *   positions   [0 .......... body) [body ........ committed) [committed .. committed + pending)
 *   KV          compressed body     tail pages                 draft rows, private pages
 *
 * The tail's full pages may be shared with a verifier in the same process; drafts are written to private copies only.
 * Under it there may be a draft source (speculate/source.h). Its proposals are rows of the same pass: those that equal
 * the drafter's own picks save a pass each, the others leave no trace. Picks, margins and KV are the same bit for bit
 * with any source and without one, as long as no rows or tokens come from outside between a pass and the taking of its
 * picks.
 *
 * Nothing here decides what is final: whatever the drafter's KV holds, the verifier's output is the same.
 * One thread at a time.
 */
#ifndef NODE_DRAFTER_H
#define NODE_DRAFTER_H

#include "model/engine.h"
#include "speculate/sample.h"
#include "speculate/source.h"
#include "vc/clock.h"

typedef struct node_drafter node_drafter_t;

#define NODE_DRAFTER_COMMON 4096u /* a usual n_common */

typedef struct node_drafter_opts {
    node_engine_t *engine; /* outlives the drafter */
    node_body_t *body;     /* takes a reference of its own; may be NULL */
    node_sampling_t sampling;
    uint32_t context;      /* as the verifier's; 0: the model's */
    uint32_t max_draft;    /* pending drafts at most; default 64 */
    node_source_t *source; /* may be NULL; outlives the drafter, which is its only user meanwhile */
    uint32_t n_common;     /* > 0: greedy drafts choose among the first n_common tokens of the vocabulary (in a BPE the
                              most frequent ones) and those of the text. 0, sampling, or more than a quarter of the
                              vocabulary in all: among all tokens. Default 0 */
    const vc_clock_t *clock; /* for the cost of wider passes; NULL: they are not measured. Default: the system's */
} node_drafter_opts_t;
void node_drafter_opts_default(node_drafter_opts_t *opts);

/* tokens: prompt and what is committed so far; the body covers a part of it. */
vc_status_t node_drafter_create(const node_drafter_opts_t *opts, const uint32_t *tokens, uint32_t n_tokens,
                                node_drafter_t **d_p, vc_err_t *err);
void node_drafter_destroy(node_drafter_t *d);

/* Before anything else: exact KV of the next block behind the body (takes over the reference, also on failure). */
vc_status_t node_drafter_load_page(node_drafter_t *d, node_page_t *page, vc_err_t *err);

/* Computes missing rows of committed tokens (all but the last), at most max_rows of them (0: all). Drafting does this
 * by itself; a caller that wants to use waiting time does it here. *done_p may be NULL. */
vc_status_t node_drafter_prefill(node_drafter_t *d, uint32_t max_rows, bool *done_p, vc_err_t *err);

/*
 * A draft step in three parts, so that rows of several requests share a pass: plan -> node_forward -> take.
 *
 * plan: rows of the next pass, at most cap (>= 1): first what is missing of committed and pending tokens, then the row
 * that the next token is picked from. Where the missing rows do not fit in cap, the pass brings them only as far as
 * they do (n_logits 0, take gives no pick; plan again). A plan may ask for several rows of logits, whose picks follow
 * on one another; picks that came with an earlier pass and were not taken yet need none: 0 rows then, and take gives
 * them. RANGE: no room (max_draft, context). INVALID: a step is planned already. Between plan and take (or cancel)
 * every other call that changes the drafter is refused with INVALID.
 */
vc_status_t node_drafter_plan(node_drafter_t *d, node_row_t *rows, uint32_t cap, uint32_t *n_rows_p,
                              uint32_t *n_logits_p, vc_err_t *err);
/* After a pass over exactly the planned rows; logits: those of this drafter's rows, in order (not looked at after a
 * plan without logits). Up to cap further picks, each pending from now on; those over cap wait for the next plan and
 * take. The margin of a pick is what draft-length estimates are made from. On an error nothing new is pending. */
vc_status_t node_drafter_take(node_drafter_t *d, const float *logits, node_pick_t *picks, uint32_t cap,
                              uint32_t *n_picks_p, vc_err_t *err);
/* The pass of a plan failed or never ran: back to the state before the plan. */
vc_status_t node_drafter_cancel(node_drafter_t *d, vc_err_t *err);
/* Picks that the next take gives without a pass. */
uint32_t node_drafter_n_ready(const node_drafter_t *d);
/* For sources that want rows (node_source_wants_rows), before take: what NODE_CAP_NORMED showed for the planned rows
 * with logits, [n_logits][d_model], the caller's until take. Where it is not called the source does without. */
void node_drafter_give_rows(node_drafter_t *d, const float *rows);

/* Plan, pass, take for one request and one token behind the committed and pending ones. RANGE as with plan. */
vc_status_t node_drafter_next(node_drafter_t *d, node_pick_t *pick_p, vc_err_t *err);
/* Up to x further tokens (fewer where there is no room); margins may be NULL. */
vc_status_t node_drafter_draft(node_drafter_t *d, uint32_t x, uint32_t *tokens, double *margins, uint32_t *n_p,
                               vc_err_t *err);

/* The verifier committed these tokens. Pending drafts that match stay pending behind them; at the first that does not,
 * all are dropped. *kept_p (may be NULL): false when pending drafts were dropped, so that a new epoch begins. */
vc_status_t node_drafter_commit(node_drafter_t *d, const uint32_t *tokens, uint32_t n, bool *kept_p, vc_err_t *err);
/* Forgets pending drafts. */
vc_status_t node_drafter_drop(node_drafter_t *d, vc_err_t *err);

/* The verifier's rows in place of our own, for committed positions [first, first + n) at or behind the body:
 * from a distance as bytes ([n][layer][k,v][kv_head][dim] f16; they must follow on rows that are there) ... */
vc_status_t node_drafter_put_rows(node_drafter_t *d, uint32_t first, uint32_t n, const uint16_t *rows, vc_err_t *err);
/* ... or in the same process: full pages shared, the last one copied. Drops pending drafts. full_kv: all committed
 * tokens but the last. */
vc_status_t node_drafter_share(node_drafter_t *d, const node_kv_t *full_kv, vc_err_t *err);

/* What the source proposes behind all that is committed, pending and ready: for whoever verifies without drafting.
 * 0 without a source. */
uint32_t node_drafter_propose(node_drafter_t *d, uint32_t k, node_proposal_t *out);

typedef struct node_drafter_stats {
    uint64_t n_passes; /* steps that ran a pass and gave a pick */
    uint64_t n_wide;   /* of these, with proposals */
    uint64_t n_proposed, n_accepted;
} node_drafter_stats_t;
void node_drafter_stats(const node_drafter_t *d, node_drafter_stats_t *stats_p);

uint32_t node_drafter_n_pending(const node_drafter_t *d);
const uint32_t *node_drafter_pending(const node_drafter_t *d);
uint32_t node_drafter_n_committed(const node_drafter_t *d);
/* Committed positions that have rows. */
uint32_t node_drafter_n_rows(const node_drafter_t *d);
const node_kv_t *node_drafter_kv(const node_drafter_t *d);

#endif
