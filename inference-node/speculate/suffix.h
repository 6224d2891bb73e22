/*
 * The n-gram draft source: what followed when the last tokens occurred before in this request will follow again.
 *
 * For n = 16, 8, 5, 3, 2 it looks for the last place before the end where the last n tokens stand; the first n that has
 * one decides, and the tokens behind that place are proposed. Where they run into the end of the text they go on with
 * the proposals themselves, so a loop is continued around.
 *
 * The chance of a proposal is learned by the length of the match it hangs on: with every token that is told, prompt
 * included, a decayed count says whether a proposal would have been right. Setting back does not undo these counts.
 *
 * A token costs a fixed number of steps on average (tables double as they fill), setting back as many per token. No
 * more than NODE_SUFFIX_TOKEN_BYTES x max(max_tokens, 256) is held between calls.
 */
#ifndef NODE_SUFFIX_H
#define NODE_SUFFIX_H

#include "speculate/source.h"

#define NODE_SUFFIX_TOKEN_BYTES 128u
#define NODE_SUFFIX_BINS 8u

typedef struct node_suffix_opts {
    uint32_t max_tokens; /* that it may be told; one more switches it off. Default 1 << 20 */
    uint32_t min_match;  /* shortest run of tokens that counts as a match, at least 2. Default 2 */
} node_suffix_opts_t;
void node_suffix_opts_default(node_suffix_opts_t *opts);

vc_status_t node_suffix_create(const node_suffix_opts_t *opts, node_source_t **s_p, vc_err_t *err);

/* For tests and logs. Length of the match that the next proposal hangs on (at most 32 are counted), 0: there is none.
 */
uint32_t node_suffix_match(const node_source_t *s);
double node_suffix_chance(const node_source_t *s, uint32_t match);
uint64_t node_suffix_bytes(const node_source_t *s);

#endif
