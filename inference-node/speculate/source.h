/*
 * A draft source: something cheap that guesses the next tokens of a request, under the compressed-KV drafter (which
 * checks its guesses in one pass of several rows) or under the verifier alone. An n-gram index is one
 * (speculate/suffix.h); the interface is made so that a trained head (EAGLE, MTP) fits too.
 *
 * A source is told every token of the request in order, prompt, committed and drafted alike, and may be set back when
 * drafts are refused. What it proposes is never more than a guess: no bit of any output depends on it, so it may use
 * statistics, clocks and luck. A source that fails is not asked any more, which is no error of the request.
 *
 * An implementation has a node_source_t as its first member and fills in ops. Callers use the functions below, never
 * ops. One request and one thread at a time.
 */
#ifndef NODE_SOURCE_H
#define NODE_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "vc/status.h"

#define NODE_SOURCE_MAX 15u /* proposals at most: with the row before them a pass of 16 */

typedef struct node_source node_source_t;

typedef struct node_proposal {
    uint32_t token;
    double chance; /* that it is right if all before it are, by the source's own estimate; in [0, 1] */
} node_proposal_t;

typedef struct node_source_ops {
    const char *name;
    /* Tokens are told with the rows that they were picked from, where these are at hand: the hidden state after the
     * final norm (NODE_CAP_NORMED of model/engine.h), which is what EAGLE and MTP heads continue from. */
    bool wants_rows;
    /* n further tokens. rows: [n][d_model], or NULL where the rows are not known (the prompt, a verifier's token) or
     * not wanted. Any error: the source is switched off. */
    vc_status_t (*push)(node_source_t *s, const uint32_t *tokens, uint32_t n, const float *rows);
    /* Only the first n_tokens were told, n_tokens < s->n_tokens: cheap, called after every refused draft. */
    void (*truncate)(node_source_t *s, uint32_t n_tokens);
    /* Up to k <= NODE_SOURCE_MAX tokens behind all that was told; returns how many. */
    uint32_t (*propose)(node_source_t *s, uint32_t k, node_proposal_t *out);
    void (*destroy)(node_source_t *s);
} node_source_ops_t;

struct node_source {
    const node_source_ops_t *ops;
    uint32_t n_tokens; /* told so far; kept by the functions below */
    bool off;          /* it failed: told nothing, asked nothing */
};

void node_source_destroy(node_source_t *s); /* NULL is fine */
bool node_source_wants_rows(const node_source_t *s);
void node_source_push(node_source_t *s, const uint32_t *tokens, uint32_t n, const float *rows);
/* Does nothing where no more than n_tokens were told. */
void node_source_truncate(node_source_t *s, uint32_t n_tokens);
/* Proposals end before the first that is no token of the vocabulary; chances are brought into [0, 1]. */
uint32_t node_source_propose(node_source_t *s, uint32_t n_vocab, uint32_t k, node_proposal_t *out);

#endif
