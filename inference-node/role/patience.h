/*
 * How long a verify node waits for drafts, in decode steps of its own. Pure; one per stream.
 *
 * Waiting pays where a token of a round with drafts costs less than a plain decode step. So: no wait before the first
 * draft; then as long as decoding a draft of the usual length here would take, while rounds with drafts are at least as
 * cheap per token as plain ones. A drafter that is late twice in a row, or whose drafts do not pay, is not waited for
 * any more: the verifier decodes at its own pace and takes what happens to be there. From time to time, ever more
 * rarely, it waits once again to see whether that has changed.
 */
#ifndef NODE_PATIENCE_H
#define NODE_PATIENCE_H

#include <stdint.h>

#define NODE_PATIENCE_PAUSE 64u /* plain rounds before the first new try; doubled after each */

typedef struct node_patience {
    uint32_t usual;  /* tokens of the last draft; 0: none has come yet */
    uint32_t missed; /* waits in a row that ended without one */
    uint32_t plain;  /* plain rounds since waiting was given up */
    uint32_t pause;  /* plain rounds before the next try; 0: NODE_PATIENCE_PAUSE */
} node_patience_t;

/* A draft of n tokens arrived, of which n_useful were not committed already. */
void node_patience_draft(node_patience_t *p, uint32_t n, uint32_t n_useful);
/* A round with drafts committed n_tokens and cost cost_us (waiting included, unless others used the engine meanwhile);
 * a plain step costs step_us (0: not known). */
void node_patience_round(node_patience_t *p, uint32_t n_tokens, double cost_us, double step_us);
/* A round without drafts. */
void node_patience_plain(node_patience_t *p);
/* 0: do not wait. */
uint32_t node_patience_steps(const node_patience_t *p);

#endif
