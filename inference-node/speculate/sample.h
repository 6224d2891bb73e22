/*
 * Choosing a token from a row of logits: one rule for greedy and sampled decoding, drafter and verifier alike.
 *
 *   token = argmax(logit / T + Gumbel(seed, position, token)), T = 0: argmax(logit), no noise. Ties go to the lowest
 * id.
 *
 * The noise depends on (seed, absolute position of the new token, id) only, so whoever computes the same logits chooses
 * the same token, at any draft length and after any resume. Order: penalties, temperature, top-k, top-p, min-p, then
 * noise for the survivors. Penalties count prompt, committed tokens and the drafts before the row: the caller pushes
 * every one of them. One thread at a time per sampler.
 */
#ifndef NODE_SAMPLE_H
#define NODE_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "vc/status.h"

typedef struct node_sampling {
    double temperature;       /* 0: greedy */
    uint32_t top_k;           /* 0: all */
    double top_p;             /* 1: all. Survivors: the shortest run in the order (logit descending, id ascending) whose
                                 probability at this temperature, among the top-k, reaches top_p */
    double min_p;             /* 0: all. Drops tokens less likely than min_p x the likeliest */
    double repeat_penalty;    /* 1: none. A logit > 0 of a token seen before is divided by it, another multiplied */
    double presence_penalty;  /* 0: none. Subtracted once for a token seen before */
    double frequency_penalty; /* 0: none. Subtracted once per time it was seen */
    uint64_t seed;
} node_sampling_t;

void node_sampling_default(node_sampling_t *s);
/* RANGE names the option and its bounds. */
vc_status_t node_sampling_check(const node_sampling_t *s, vc_err_t *err);
/* By name ("temperature", "top-p", ..., "seed"; '_' is as good as '-'), from text. UNSUPPORTED names an option that we
 * do not have, INVALID a value that is no number. Bounds are node_sampling_check's business. */
vc_status_t node_sampling_set(node_sampling_t *s, const char *name, const char *value, vc_err_t *err);

typedef struct node_sampler node_sampler_t;

vc_status_t node_sampler_create(const node_sampling_t *s, uint32_t n_vocab, node_sampler_t **sampler_p, vc_err_t *err);
void node_sampler_destroy(node_sampler_t *sampler);
/* One more / one less occurrence of a token before the row that is picked next. id < n_vocab. */
void node_sampler_push(node_sampler_t *sampler, uint32_t token);
void node_sampler_pop(node_sampler_t *sampler, uint32_t token);

typedef struct node_pick {
    uint32_t token;
    double margin; /* by how much it won over the second best, in the rule's own units; HUGE_VAL when it is alone */
} node_pick_t;
/* position: absolute position that the new token will have. INVALID: a NaN or +inf logit, or nothing but -inf. */
vc_status_t node_sampler_pick(node_sampler_t *sampler, const float *logits, uint64_t position, node_pick_t *pick_p,
                              vc_err_t *err);

/* The noise itself, for tests: -log(-log(u)), u in (0, 1). */
double node_sample_gumbel(uint64_t seed, uint64_t position, uint32_t token);

#endif
