/* Adaptive draft length: estimates and one stopping rule. Owner thread: the session's. */
#include "speculate/length.h"

#include <string.h>

/* Upper ends of the margin bins, in units of the sampling rule (logits over T). */
static const double bin_end[NODE_LENGTH_BINS - 1] = {0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.2, 3.2, 5.0};
/* What a drafter that is neither perfect nor bad does; worth PRIOR_WEIGHT observations. */
static const double prior[NODE_LENGTH_BINS] = {0.55, 0.6, 0.65, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99};
#define PRIOR_MEAN 0.9
#define PRIOR_WEIGHT 4.0
#define KEEP_CHANCE 0.98  /* of a bin's history per observation */
#define KEEP_COST 0.8     /* of a mean cost per measurement */
#define KEEP_RATE 0.9     /* of the rate's totals per round */
#define SLOPE_UNKNOWN 0.3 /* a further row over the first one, until two widths are measured */
#define PROBE_TOKENS 2u
#define CAUTION 1.05 /* a draft at the break-even point gains nothing and may lose */
#define PROBE_SHARE 0.01

void node_length_init(node_length_t *l, uint32_t max_draft)
{
    memset(l, 0, sizeof *l);
    l->max_draft = max_draft < NODE_LENGTH_MAX ? max_draft : NODE_LENGTH_MAX;
    for (uint32_t i = 0; i < NODE_LENGTH_BINS; i++) {
        l->seen[i] = PRIOR_WEIGHT;
        l->accepted[i] = PRIOR_WEIGHT * prior[i];
    }
    l->all_seen = PRIOR_WEIGHT;
    l->all_accepted = PRIOR_WEIGHT * PRIOR_MEAN;
}

static uint32_t bin_of(double margin)
{
    uint32_t i = 0;
    while (i < NODE_LENGTH_BINS - 1 && margin >= bin_end[i])
        i++;
    return i;
}

double node_length_chance(const node_length_t *l, double margin)
{
    uint32_t i = bin_of(margin);
    return l->accepted[i] / l->seen[i];
}

double node_length_mean_chance(const node_length_t *l) { return l->all_accepted / l->all_seen; }

static uint32_t cost_bucket(uint32_t n_rows)
{
    uint32_t i = 0;
    while (i < NODE_LENGTH_COSTS - 1 && n_rows > 1u << i)
        i++;
    return i;
}

/* Linear between the measured widths; outside them along the last measured piece, or SLOPE_UNKNOWN per row. */
double node_length_verify_us(const node_length_t *l, uint32_t n_rows)
{
    double n = n_rows ? n_rows : 1;
    double r0 = 0, c0 = 0, r1 = 0, c1 = 0; /* the two measured points nearest from below, then the first above */
    for (uint32_t i = 0; i < NODE_LENGTH_COSTS; i++) {
        if (l->cost_us[i] <= 0)
            continue;
        if (c1 > 0 && r1 >= n)
            break;
        r0 = r1;
        c0 = c1;
        r1 = l->cost_rows[i];
        c1 = l->cost_us[i];
    }
    if (c1 <= 0)
        return 0;
    if (c0 <= 0 || r1 <= r0) { /* one point */
        double base = c1 / (1 + SLOPE_UNKNOWN * (r1 - 1));
        return base * (1 + SLOPE_UNKNOWN * (n - 1));
    }
    double slope = (c1 - c0) / (r1 - r0);
    return c1 + (slope > 0 ? slope : 0) * (n - r1);
}

static double rate_now(const node_length_t *l)
{
    double plain_us = node_length_verify_us(l, 1);
    double plain = plain_us > 0 ? 1 / plain_us : 0;
    double recent = l->sum_us > 0 ? l->sum_tokens / l->sum_us : 0;
    return plain > recent ? plain : recent;
}

/* Does the next draft pay, when `n` are there and all of them and it are accepted with chance p? */
static bool pays(const node_length_t *l, uint32_t n, double p)
{
    double marginal = node_length_verify_us(l, n + 2) - node_length_verify_us(l, n + 1);
    return p >= CAUTION * rate_now(l) * (l->draft_us + (marginal > 0 ? marginal : 0));
}

bool node_length_begin(node_length_t *l)
{
    l->n_round = 0;
    l->p_all = 1;
    l->n_probe = 0;
    if (!l->max_draft || l->cost_us[0] <= 0)
        return false;
    if (l->draft_us > 0 && pays(l, 0, node_length_mean_chance(l)))
        return true;
    double extra = node_length_verify_us(l, 1 + PROBE_TOKENS) - node_length_verify_us(l, 1);
    if (l->draft_us <= 0)
        l->n_probe = 1; /* nothing is known: one draft tells both costs, and costs little in a short answer */
    else if (l->probe_credit_us >= PROBE_TOKENS * l->draft_us + extra)
        l->n_probe = PROBE_TOKENS;
    if (l->n_probe)
        l->probe_credit_us = 0;
    return l->n_probe > 0;
}

bool node_length_more(node_length_t *l, double margin)
{
    if (l->n_round >= l->max_draft)
        return false;
    l->bin[l->n_round++] = (uint8_t)bin_of(margin);
    l->p_all *= node_length_chance(l, margin);
    if (l->n_round >= l->max_draft)
        return false;
    if (l->n_probe)
        return l->n_round < l->n_probe;
    return pays(l, l->n_round, l->p_all * node_length_mean_chance(l));
}

static void blend(double *mean, double value, bool first)
{
    *mean = first ? value : *mean + (1 - KEEP_COST) * (value - *mean);
}

void node_length_end(node_length_t *l, const node_length_round_t *r)
{
    uint32_t n = r->n_drafts < l->n_round ? r->n_drafts : l->n_round;
    for (uint32_t i = 0; i < n && i <= r->n_accepted; i++) { /* drafts behind the first refused one tell nothing */
        uint32_t b = l->bin[i];
        double hit = i < r->n_accepted;
        l->seen[b] = l->seen[b] * KEEP_CHANCE + 1;
        l->accepted[b] = l->accepted[b] * KEEP_CHANCE + hit;
        l->all_seen = l->all_seen * KEEP_CHANCE + 1;
        l->all_accepted = l->all_accepted * KEEP_CHANCE + hit;
    }
    if (r->n_drafts && r->draft_us > 0)
        blend(&l->draft_us, r->draft_us / r->n_drafts, l->draft_us <= 0);
    if (r->verify_us > 0) {
        uint32_t b = cost_bucket(r->n_drafts + 1);
        bool first = l->cost_us[b] <= 0;
        blend(&l->cost_rows[b], r->n_drafts + 1.0, first);
        blend(&l->cost_us[b], r->verify_us, first);
    }
    l->sum_tokens = l->sum_tokens * KEEP_RATE + r->n_tokens;
    l->sum_us = l->sum_us * KEEP_RATE + r->draft_us + r->verify_us;
    if (!r->n_drafts)
        l->probe_credit_us += PROBE_SHARE * r->verify_us;
    l->n_round = 0;
}
