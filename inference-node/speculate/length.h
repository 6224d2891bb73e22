/*
 * How many tokens to draft. Pure: costs and outcomes are given, no clock inside.
 *
 * Draft on while P(all drafts so far and the next are accepted) >= rate x (draft step + marginal verify cost), where
 * rate is the tokens per microsecond that the request makes now, and at least that of plain decoding. P is a product of
 * calibrated chances: the margin by which the drafter's pick won is put in a bin, each bin learns how often its tokens
 * were accepted. Where the first draft already does not pay the length is 0, and a probe follows as soon as a hundredth
 * of the time spent since the last one covers its cost.
 */
#ifndef NODE_LENGTH_H
#define NODE_LENGTH_H

#include <stdbool.h>
#include <stdint.h>

#define NODE_LENGTH_BINS 12u
#define NODE_LENGTH_COSTS 8u /* verify costs by rows: 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64, more */

typedef struct node_length {
    uint32_t max_draft;
    double accepted[NODE_LENGTH_BINS], seen[NODE_LENGTH_BINS]; /* decayed counts, with a prior */
    double draft_us;                                           /* one draft step; 0: not measured */
    double verify_us[NODE_LENGTH_COSTS];                       /* one verify pass by number of rows; 0: not measured */
    double rate;                                               /* tokens per microsecond, decayed */
    double probe_credit_us;                                    /* time that may be spent on the next probe */
    /* the round that is being drafted */
    uint32_t n_round;
    bool probing;
    double p_all;
    uint8_t bin[256];
} node_length_t;

void node_length_init(node_length_t *l, uint32_t max_draft /* <= 255 */);
/* Starts a round: true when drafting should begin at all. */
bool node_length_begin(node_length_t *l);
/* The drafter's next pick and its margin: true when it should be sent and drafting go on after it. */
bool node_length_more(node_length_t *l, double margin);
/* The round is over: n_drafts were verified, n_accepted of them accepted, n_tokens committed; what it cost. draft_us
 * and verify_us are whole times of the round. */
typedef struct node_length_round {
    uint32_t n_drafts, n_accepted, n_tokens;
    double draft_us, verify_us;
} node_length_round_t;
void node_length_end(node_length_t *l, const node_length_round_t *round);

/* Estimates, for logs and tests. */
double node_length_verify_us(const node_length_t *l, uint32_t n_rows);
double node_length_chance(const node_length_t *l, double margin);

#endif
