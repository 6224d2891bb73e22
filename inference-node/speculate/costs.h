/*
 * What an engine's steps cost, measured once: passes of several widths behind two lengths of KV, so that a pass of any
 * width behind any context is known before the first request drafts (a part for the weights, a part per token attended
 * to). Requests correct that. It also remembers how each compressor's drafters did, so that a request begins with their
 * mean chance and step.
 *
 * Used by one thread at a time, the one that runs the engine's passes. Times decide draft lengths, never bits.
 */
#ifndef NODE_COSTS_H
#define NODE_COSTS_H

#include "model/engine.h"
#include "speculate/length.h"
#include "vc/clock.h"

#define NODE_COSTS_NAMES 16u

typedef struct node_costs_drafter {
    char name[VC_SPEC_TEXT_MAX];
    double chance, weight; /* of its drafts to be accepted; requests that it was seen in, decayed */
    double step;           /* a draft step over what the body's bytes promise; 0: not seen */
    uint64_t used;
} node_costs_drafter_t;

typedef struct node_costs {
    bool known;
    double weights_us[NODE_LENGTH_COSTS], token_us[NODE_LENGTH_COSTS]; /* passes of 1, 2, 4, ... rows */
    double scale[NODE_LENGTH_COSTS]; /* what requests found since, over that: the machine may have been busy */
    bool scaled;
    node_costs_drafter_t drafters[NODE_COSTS_NAMES];
    uint64_t n_used;
} node_costs_t;

/* Fractions of a second; takes memory for 2,048 tokens of KV meanwhile. After a failure (NOMEM) nothing is known and
 * requests learn their costs by themselves. */
vc_status_t node_costs_measure(node_costs_t *costs, node_engine_t *engine, const vc_clock_t *clock, vc_err_t *err);

/* For a request behind n_tokens with a drafter on a body: all zero where nothing is known. name (may be NULL): the
 * compressor's canonical text. */
void node_costs_at(const node_costs_t *costs, uint32_t n_tokens, const node_body_t *body, const char *name,
                   node_length_costs_t *costs_p);
/* At the beginning of a request: its compressor's mean chance, where it is known. */
void node_costs_expect_chance(const node_costs_t *costs, const char *name, node_length_t *length);
/* At its end: what it found. Passes that waited for a link say nothing about the engine. */
void node_costs_learn(node_costs_t *costs, uint32_t n_tokens, const node_body_t *body, const char *name,
                      const node_length_t *length);

#endif
