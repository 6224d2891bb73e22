/*
 * How many tokens to draft. Pure: costs and outcomes are given, no clock inside.
 *
 * A round is worth it by the tokens that it commits for its time, so over many rounds the best policy drafts on while
 *     E[tokens that further drafts commit] >= best rate x (their draft steps + what they add to the verify pass)
 * where the best rate is tokens per microsecond of the best length for this request's own costs and chances, found anew
 * each round (its fixed point), and at least what the request makes now. Not the rate now alone: a request that drafts
 * too little makes few tokens and would never know. All numbers of further drafts are tried, since a pass of two rows
 * may cost much more than one and a pass of eight little more than two.
 *
 * Chances: the margin by which the drafter's pick won is put in a bin; each bin learns how often its tokens were
 * accepted, over a prior, and a greater margin never has the smaller chance. A token that is not drafted yet has the
 * mean chance.
 *
 * Costs: expected ones (measured once per engine, speculate/costs.h) until this request has measured its own; a pass
 * that takes longer than expected waits for something, a link perhaps, and a pass of another width is expected to wait
 * as long. The first round is plain, to measure that; without expected costs the first draft is a probe of one token.
 *
 * Trust: what rounds with drafts came to of late over what was hoped for, at most 1. Hopes are held down by it.
 *
 * Where drafting does not pay the length is 0. What was learned grows old then, and is probed again as soon as a
 * hundredth of the time covers what the probe is expected to lose against plain decoding (a five-hundredth where not
 * even a drafter that is always right would gain). A probe that gains is paid back.
 *
 * A request may have something better beside it than plain decoding, proposals of a source in the verify pass
 * (speculate/choice.h). Then drafting has to beat that, and rounds of the other kind tell of passes only.
 */
#ifndef NODE_LENGTH_H
#define NODE_LENGTH_H

#include <stdbool.h>
#include <stdint.h>

#define NODE_LENGTH_MAX 255u
#define NODE_LENGTH_BINS 12u
#define NODE_LENGTH_COSTS 8u /* verify passes of 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64 and more rows */

/* What steps are expected to cost; 0: not known. */
typedef struct node_length_costs {
    double draft_us;                     /* one draft step */
    double verify_us[NODE_LENGTH_COSTS]; /* passes of 1, 2, 4, ... 128 rows; all or none */
} node_length_costs_t;

typedef struct node_length {
    uint32_t max_draft;
    /* chances: decayed counts over a prior */
    double accepted[NODE_LENGTH_BINS], seen[NODE_LENGTH_BINS], chance[NODE_LENGTH_BINS];
    double all_accepted, all_seen;
    /* costs: decayed means of what was measured, 0: nothing; with costs to expect, moved along with these */
    node_length_costs_t expected;
    double draft_us;
    double cost_rows[NODE_LENGTH_COSTS], cost_us[NODE_LENGTH_COSTS];
    uint32_t cost_age[NODE_LENGTH_COSTS]; /* rounds since */
    double sum_tokens, sum_us;            /* decayed totals: the rate now */
    double hoped_us, real_us;             /* decayed, of rounds with drafts: what their tokens were to take, and took */
    double probe_credit_us;
    /* the round that is being drafted */
    uint32_t n_round, n_probe; /* n_probe: drafts of a probe, 0 when this round is none */
    double p_all, best_rate;
    double beside_rate, hoped_rate; /* without drafts; of this round, where it drafts */
    uint8_t bin[NODE_LENGTH_MAX];
    double pass_us[NODE_LENGTH_MAX + 2]; /* by rows */
} node_length_t;

void node_length_init(node_length_t *l, uint32_t max_draft /* at most NODE_LENGTH_MAX count */);
/* Costs to expect from now on, between rounds, as often as they change (the context grows). */
void node_length_expect(node_length_t *l, const node_length_costs_t *costs);
/* Before the first round: the mean chance that this kind of drafter had before, worth `weight` observations. */
void node_length_expect_chance(node_length_t *l, double chance, double weight);

/* Starts a round: true when a first token should be drafted. */
bool node_length_begin(node_length_t *l);
/* The same in two steps, for a round that could commit tokens at other_rate (per microsecond; 0: plain decoding is all
 * there is) without drafting. prepare: passes of 1 to max_draft + 1 rows are in pass_us; false: nothing is known yet
 * and the round is plain. */
bool node_length_prepare(node_length_t *l);
bool node_length_begin_beside(node_length_t *l, double other_rate);
/* A token was drafted, its pick won by this margin, and the next n_ready come without a step: true when one more should
 * be drafted after it. */
bool node_length_more_ready(node_length_t *l, double margin, uint32_t n_ready);
bool node_length_more(node_length_t *l, double margin);

typedef struct node_length_round {
    uint32_t n_drafts, n_accepted, n_tokens; /* verified, accepted, committed */
    double draft_us, verify_us;              /* whole times */
} node_length_round_t;
void node_length_end(node_length_t *l, const node_length_round_t *round);
/* The round's drafts came from elsewhere: it tells of its pass alone. */
void node_length_end_elsewhere(node_length_t *l, uint32_t n_rows, double verify_us);

/* Estimates, for plans, logs and tests. */
double node_length_verify_us(const node_length_t *l, uint32_t n_rows); /* 0: nothing known */
double node_length_expected_us(const node_length_t *l, double n_rows); /* without what was measured */
double node_length_draft_us(const node_length_t *l);                   /* 0: nothing known */
double node_length_chance(const node_length_t *l, double margin);
double node_length_mean_chance(const node_length_t *l);
double node_length_trust(const node_length_t *l); /* in (0, 1] */

#endif
