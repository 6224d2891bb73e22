/*
 * The verifying half of a request: full KV, the committed tokens, the sampler, the rules that end a generation and the
 * running digest of the committed logits. Used beside a drafter (speculate/session.h) and alone on a verify node.
 *
 * State: the KV holds the rows of all committed tokens but the last, whose row the next round computes.
 * A round is plan -> node_forward -> judge, so that rows of several requests can share a pass; node_verifier_step does
 * the three for one request. The prompt comes first, in as many rounds as the caller likes to cut it into; the round
 * with its last row commits the first token without any draft.
 *
 * What is committed is a function of (model, numerics id, prompt, sampling, end rules) alone. Drafts, their number,
 * where the prompt was cut and which blocks were loaded never change a bit of it. One thread at a time.
 */
#ifndef NODE_VERIFIER_H
#define NODE_VERIFIER_H

#include "model/engine.h"
#include "speculate/accept.h"
#include "speculate/sample.h"

typedef struct node_verifier node_verifier_t;

typedef struct node_verifier_opts {
    node_engine_t *engine;       /* outlives the verifier */
    const node_tokenizer_t *tok; /* for stop strings; may be NULL without them */
    node_sampling_t sampling;
    const uint32_t *end_tokens; /* copied */
    uint32_t n_end_tokens;
    const char *const *stops; /* copied */
    uint32_t n_stops;
    uint32_t max_tokens; /* budget of committed tokens after the prompt, >= 1 */
    uint32_t context;    /* prompt and committed tokens together; 0 or more than the model's: the model's */
    uint32_t max_draft;  /* drafts per round at most (memory for logits); default 64 */
    bool digest;         /* keep the running digest of committed logits */
} node_verifier_opts_t;
void node_verifier_opts_default(node_verifier_opts_t *opts);

vc_status_t node_verifier_create(const node_verifier_opts_t *opts, const uint32_t *prompt, uint32_t n_prompt,
                                 node_verifier_t **v_p, vc_err_t *err);
void node_verifier_destroy(node_verifier_t *v);

/* Before the first round: full KV of the prompt's next block (takes over the reference, also on failure). */
vc_status_t node_verifier_load_page(node_verifier_t *v, node_page_t *page, vc_err_t *err);

/* What one round did. */
typedef struct node_verdict {
    uint32_t base; /* absolute position of tokens[0] */
    uint32_t n_drafts, n_accepted;
    uint32_t n_tokens; /* newly committed: n_accepted, or n_accepted + 1 with the verifier's own token at the end */
    const uint32_t *tokens; /* the verifier's memory, until its next call */
    node_finish_t finish;
} node_verdict_t;

/*
 * Rows of the next pass, at most cap (>= 1). While the prompt is not done: its next rows, drafts must be none. Then the
 * last committed token and the drafts (those that could never be committed, or do not fit in cap, are left out).
 * STALE after the end. *n_logits_p: rows that want logits, 0 in the middle of a prompt.
 */
vc_status_t node_verifier_plan(node_verifier_t *v, const uint32_t *drafts, uint32_t n_drafts, node_row_t *rows,
                               uint32_t cap, uint32_t *n_rows_p, uint32_t *n_logits_p, vc_err_t *err);
/* After a pass over exactly the planned rows; logits: those of this request's rows, in order. Afterwards the KV again
 * holds all committed tokens but the last. */
vc_status_t node_verifier_judge(node_verifier_t *v, const float *logits, node_verdict_t *verdict_p, vc_err_t *err);
/* The pass of a plan failed or never ran: back to the state before the plan. */
vc_status_t node_verifier_cancel(node_verifier_t *v, vc_err_t *err);

/* The rest of the prompt in passes of at most rows_per_pass (0: what the engine takes); commits the first token. */
vc_status_t node_verifier_start(node_verifier_t *v, uint32_t rows_per_pass, node_verdict_t *verdict_p, vc_err_t *err);
/* One round. n_drafts 0 is plain decoding. */
vc_status_t node_verifier_step(node_verifier_t *v, const uint32_t *drafts, uint32_t n_drafts, node_verdict_t *verdict_p,
                               vc_err_t *err);
/*
 * In place of start: the request had committed these n tokens when another verifier was lost. They are checked as
 * drafts are, so the state and every later bit equal those of an uninterrupted verifier. MISMATCH: this model would not
 * have committed them. The verdict tells only what is new behind them (n_tokens 0 when they end the generation).
 */
vc_status_t node_verifier_resume(node_verifier_t *v, const uint32_t *committed, uint32_t n, node_verdict_t *verdict_p,
                                 vc_err_t *err);

bool node_verifier_is_prefilling(const node_verifier_t *v);
node_finish_t node_verifier_finish(const node_verifier_t *v);
/* Prompt and committed tokens. */
const uint32_t *node_verifier_tokens(const node_verifier_t *v, uint32_t *n_p);
uint32_t node_verifier_n_prompt(const node_verifier_t *v);
/* Drafts that the next round can use at most (budget, context, max_draft). */
uint32_t node_verifier_max_useful(const node_verifier_t *v);
node_kv_t *node_verifier_kv(node_verifier_t *v);
/* Running BLAKE2b-256 over the logit rows (f32, little-endian) of all committed tokens so far, in order. */
void node_verifier_digest(const node_verifier_t *v, vc_digest_t *digest_p);

typedef struct node_verifier_stats {
    uint64_t n_rounds;   /* rounds with or without drafts, the prompt's apart */
    uint64_t n_drafted;  /* drafts looked at: up to and with the first that was refused */
    uint64_t n_proposed; /* drafts given */
    uint64_t n_accepted;
    uint64_t n_full; /* rounds with drafts, all of them accepted */
} node_verifier_stats_t;
void node_verifier_stats(const node_verifier_t *v, node_verifier_stats_t *stats_p);

#endif
