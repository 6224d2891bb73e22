/* Adaptive draft length: estimates and one stopping rule. Owner thread: the session's. */
#include "speculate/length.h"

#include <string.h>

/* Upper ends of the margin bins, in units of the sampling rule (logits over T). */
static const double bin_end[NODE_LENGTH_BINS - 1] = {0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.2, 3.2, 5.0};
/* What a drafter that is neither perfect nor bad does; worth PRIOR_WEIGHT observations. */
static const double prior[NODE_LENGTH_BINS] = {0.55, 0.6, 0.65, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99};
#define PRIOR_MEAN 0.9
#define PRIOR_WEIGHT 4.0
#define KEEP_CHANCE 0.997 /* of the history per observation: long runs need chances near 1 told apart */
#define KEEP_UNSEEN 0.998 /* of it per round without drafts: what was learned grows old */
#define KEEP_TRUST 0.95   /* of hoped and real times per round that drafts */
#define FADE_TRUST 0.99   /* of them per other round: a second chance comes */
#define TRUST_PASSES 8.0  /* plain passes in which all was as hoped, to begin with */
#define KEEP_COST 0.8     /* of a mean cost per measurement */
#define COST_AGE 32u      /* rounds that told nothing of a width: */
#define FADE_COST 0.01    /* of the way to what the other widths say per further one */
#define LINK_BOUND 0.5    /* over expectation by this share */
#define COST_OUTLIER 2.0  /* a measurement counts as at most this many times the mean so far */
#define KEEP_RATE 0.98    /* of the rate's totals per round */
#define SLOPE_UNKNOWN 0.3 /* a further row over the first one, until two widths are known */
#define PROBE_TOKENS 8u
#define PROBE_CREDIT 4.0 /* plain steps; luck with probes is not saved up for bad times */
#define CAUTION 1.03     /* drafts at the break-even point gain nothing and may lose */
#define PROBE_SHARE 0.01
#define PROBE_SHARE_HOPELESS 0.002

/* ---- chances ---- */

/* A greater margin has no smaller chance: neighbours that disagree are pooled. */
static void smooth(node_length_t *l)
{
    double hit[NODE_LENGTH_BINS], all[NODE_LENGTH_BINS];
    uint32_t n_in[NODE_LENGTH_BINS], n = 0;
    for (uint32_t i = 0; i < NODE_LENGTH_BINS; i++) {
        hit[n] = l->accepted[i];
        all[n] = l->seen[i];
        n_in[n++] = 1;
        for (; n > 1 && hit[n - 2] * all[n - 1] > hit[n - 1] * all[n - 2]; n--) {
            hit[n - 2] += hit[n - 1];
            all[n - 2] += all[n - 1];
            n_in[n - 2] += n_in[n - 1];
        }
    }
    for (uint32_t g = 0, i = 0; g < n; g++)
        for (uint32_t k = 0; k < n_in[g]; k++)
            l->chance[i++] = hit[g] / all[g];
}

void node_length_init(node_length_t *l, uint32_t max_draft)
{
    memset(l, 0, sizeof *l);
    l->max_draft = max_draft < NODE_LENGTH_MAX ? max_draft : NODE_LENGTH_MAX;
    node_length_expect_chance(l, PRIOR_MEAN, PRIOR_WEIGHT);
}

void node_length_expect_chance(node_length_t *l, double chance, double weight)
{
    chance = chance < 0 ? 0 : chance > 1 ? 1 : chance;
    weight = weight < 1 ? 1 : weight;
    for (uint32_t i = 0; i < NODE_LENGTH_BINS; i++) { /* the known shape, with as many misses in all as are expected */
        double miss = (1 - prior[i]) * (1 - chance) / (1 - PRIOR_MEAN);
        l->seen[i] = PRIOR_WEIGHT;
        l->accepted[i] = PRIOR_WEIGHT * (miss < 1 ? 1 - miss : 0);
    }
    l->all_seen = weight;
    l->all_accepted = weight * chance;
    smooth(l);
}

static uint32_t bin_of(double margin)
{
    uint32_t i = 0;
    while (i < NODE_LENGTH_BINS - 1 && margin >= bin_end[i])
        i++;
    return i;
}

double node_length_chance(const node_length_t *l, double margin) { return l->chance[bin_of(margin)]; }

double node_length_mean_chance(const node_length_t *l) { return l->all_accepted / l->all_seen; }

static void learn_chances(node_length_t *l, const node_length_round_t *r)
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
    if (n != 0)
        smooth(l);
}

/* The ratios stay, their weight falls to that of a prior. */
static void forget(node_length_t *l)
{
    double keep = l->all_seen > PRIOR_WEIGHT ? KEEP_UNSEEN : 1;
    l->all_seen *= keep;
    l->all_accepted *= keep;
    for (uint32_t i = 0; i < NODE_LENGTH_BINS; i++) {
        keep = l->seen[i] > PRIOR_WEIGHT ? KEEP_UNSEEN : 1;
        l->seen[i] *= keep;
        l->accepted[i] *= keep;
    }
}

/* ---- costs ---- */

static uint32_t cost_bucket(uint32_t n_rows)
{
    uint32_t i = 0;
    while (i < NODE_LENGTH_COSTS - 1 && n_rows > 1u << i)
        i++;
    return i;
}

static bool expects(const node_length_t *l) { return l->expected.verify_us[0] > 0; }

static double expected_us(const node_length_costs_t *c, double n_rows)
{
    uint32_t i = 1;
    while (i < NODE_LENGTH_COSTS - 1 && n_rows > 1u << i)
        i++;
    double r0 = 1u << (i - 1), r1 = 1u << i, slope = (c->verify_us[i] - c->verify_us[i - 1]) / (r1 - r0);
    return c->verify_us[i] + slope * (n_rows - r1);
}

void node_length_expect(node_length_t *l, const node_length_costs_t *costs)
{
    bool shift = expects(l) && costs->verify_us[0] > 0;
    for (uint32_t i = 0; shift && i < NODE_LENGTH_COSTS; i++)
        if (l->cost_us[i] > 0) {
            double by = expected_us(costs, l->cost_rows[i]) - expected_us(&l->expected, l->cost_rows[i]);
            l->cost_us[i] = l->cost_us[i] + by > 0 ? l->cost_us[i] + by : expected_us(costs, l->cost_rows[i]);
        }
    if (l->draft_us > 0 && costs->draft_us > 0 && l->expected.draft_us > 0)
        l->draft_us *= costs->draft_us / l->expected.draft_us;
    l->expected = *costs;
}

typedef struct {
    double rows[NODE_LENGTH_COSTS], us[NODE_LENGTH_COSTS];
    uint32_t n;
} curve_t;

/* What a pass of so many rows, of bucket i, should take by the measured bucket nearest to it: as much more than
 * expected; one that is far over waits for a link, and then the longer of link and expectation counts. */
static double by_nearest(const node_length_t *l, uint32_t i, double n_rows)
{
    double expected = expected_us(&l->expected, n_rows);
    for (uint32_t d = 1; d < NODE_LENGTH_COSTS; d++)
        for (int side = 0; side < 2; side++) {
            uint32_t j = side ? i + d : i - d; /* below 0: wraps, and is too great */
            if (j >= NODE_LENGTH_COSTS || l->cost_us[j] <= 0)
                continue;
            double us = l->cost_us[j], over = us - expected_us(&l->expected, l->cost_rows[j]);
            if (over > LINK_BOUND * (us - over))
                return us > expected ? us : expected;
            return over > 0 ? expected + over
                            : expected * us / (us - over); /* the machine was busy when it was timed */
        }
    return expected;
}

static void make_curve(const node_length_t *l, curve_t *c)
{
    c->n = 0;
    for (uint32_t i = 0; i < NODE_LENGTH_COSTS; i++) {
        double rows = l->cost_rows[i], us = l->cost_us[i];
        if (us <= 0 && expects(l)) {
            rows = 1u << i;
            us = by_nearest(l, i, rows);
        }
        if (us <= 0)
            continue;
        if (c->n && us < c->us[c->n - 1])
            us = c->us[c->n - 1]; /* more rows are never cheaper */
        c->rows[c->n] = rows;
        c->us[c->n++] = us;
    }
}

static double by_narrowest(const curve_t *c, double n)
{
    return c->us[0] / (1 + SLOPE_UNKNOWN * (c->rows[0] - 1)) * (1 + SLOPE_UNKNOWN * (n - 1));
}

/* Linear between the known widths; outside them along the nearest piece, as far as that leaves a pass some time, or
 * SLOPE_UNKNOWN per row. */
static double curve_at(const curve_t *c, double n)
{
    if (c->n == 0)
        return 0;
    if (c->n == 1)
        return by_narrowest(c, n);
    uint32_t i = 1;
    while (i + 1 < c->n && c->rows[i] < n)
        i++;
    double slope = (c->us[i] - c->us[i - 1]) / (c->rows[i] - c->rows[i - 1]);
    double us = c->us[i] + slope * (n - c->rows[i]);
    return us > 0 ? us : by_narrowest(c, n);
}

double node_length_verify_us(const node_length_t *l, uint32_t n_rows)
{
    curve_t c;
    make_curve(l, &c);
    return curve_at(&c, n_rows ? n_rows : 1);
}

double node_length_expected_us(const node_length_t *l, double n_rows)
{
    return expects(l) ? expected_us(&l->expected, n_rows) : 0;
}

/* Until one was measured: as much faster than expected as plain passes are. Slower ones may wait for a link. */
double node_length_draft_us(const node_length_t *l)
{
    double ratio = expects(l) && l->cost_us[0] > 0 ? l->cost_us[0] / l->expected.verify_us[0] : 1;
    return l->draft_us > 0 ? l->draft_us : l->expected.draft_us * (ratio < 1 ? ratio : 1);
}

/* Without an expected value the first one is all there is; with one it counts half. */
static void blend(double *mean, double value, double expected)
{
    if (*mean <= 0) {
        *mean = expected > 0 ? (value + expected) / 2 : value;
        return;
    }
    if (value > COST_OUTLIER * *mean)
        value = COST_OUTLIER * *mean;
    *mean += (1 - KEEP_COST) * (value - *mean);
}

static void learn_pass(node_length_t *l, double n_rows, double us)
{
    uint32_t b = cost_bucket((uint32_t)n_rows);
    if (us <= 0)
        return;
    if (l->cost_us[b] <= 0)
        l->cost_rows[b] = n_rows;
    else
        l->cost_rows[b] += (1 - KEEP_COST) * (n_rows - l->cost_rows[b]);
    blend(&l->cost_us[b], us, 0);
    l->cost_age[b] = 0;
    bool link = l->cost_us[0] > (1 + LINK_BOUND) * l->expected.verify_us[0];
    for (uint32_t i = 0; i < NODE_LENGTH_COSTS; i++) /* odd times are not held against a width for ever */
        if (l->cost_us[i] > 0 && l->cost_age[i]++ > COST_AGE && expects(l) && !link)
            l->cost_us[i] += FADE_COST * (by_nearest(l, i, l->cost_rows[i]) - l->cost_us[i]);
}

/* ---- trust ---- */

double node_length_trust(const node_length_t *l)
{
    double sure = TRUST_PASSES * (l->cost_us[0] > 0 ? l->cost_us[0] : 1);
    double trust = (sure + l->hoped_us) / (sure + l->real_us);
    return trust < 1 ? trust : 1;
}

static void learn_trust(node_length_t *l, const node_length_round_t *r)
{
    bool drafted = r->n_drafts && l->hoped_rate > 0;
    double keep = drafted ? KEEP_TRUST : FADE_TRUST;
    l->hoped_us = keep * l->hoped_us + (drafted ? r->n_tokens / l->hoped_rate : 0);
    l->real_us = keep * l->real_us + (drafted ? r->draft_us + r->verify_us : 0);
}

/* ---- the rule ---- */

/* Tokens per microsecond of the best length, every draft with the mean chance, or always right. */
static double best_rate(const node_length_t *l, bool always_right)
{
    double mean = node_length_mean_chance(l), draft_us = node_length_draft_us(l);
    double tokens = 1, p = 1, best = 1 / l->pass_us[1];
    for (uint32_t x = 1; x <= l->max_draft; x++) {
        p *= always_right ? 1 : mean;
        tokens += p;
        double rate = tokens / (x * draft_us + l->pass_us[x + 1]);
        best = rate > best ? rate : best;
    }
    return best;
}

/* Do further drafts pay, some number of them, when n are there and all of those are accepted with chance p? The first
 * n_ready of them take no time. */
static bool pays(const node_length_t *l, uint32_t n, double p, uint32_t n_ready)
{
    double mean = node_length_mean_chance(l), draft_us = node_length_draft_us(l), tokens = 0;
    for (uint32_t x = n + 1; x <= l->max_draft; x++) {
        uint32_t steps = x - n > n_ready ? x - n - n_ready : 0;
        p *= mean;
        tokens += p;
        if (tokens >= l->best_rate * (steps * draft_us + l->pass_us[x + 1] - l->pass_us[n + 1]))
            return true;
    }
    return false;
}

static double round_tokens(const node_length_t *l, uint32_t x)
{
    double mean = node_length_mean_chance(l), tokens = 1, p = 1;
    for (uint32_t i = 0; i < x; i++)
        tokens += p *= mean;
    return tokens;
}

/* What a round of x drafts is expected to cost beyond the tokens that it commits made in the other way. */
static double loss_us(const node_length_t *l, uint32_t x)
{
    return x * node_length_draft_us(l) + l->pass_us[x + 1] - round_tokens(l, x) / l->beside_rate;
}

/* The cheapest probe, once there is credit for what it will lose. */
static bool begin_probe(node_length_t *l)
{
    uint32_t best = 1;
    for (uint32_t x = 2; x <= PROBE_TOKENS && x <= l->max_draft; x++)
        if (loss_us(l, x) < loss_us(l, best))
            best = x;
    /* with nothing known of drafting one draft tells both costs, and costs little in a short answer */
    if (node_length_draft_us(l) <= 0)
        l->n_probe = 1;
    else if (l->probe_credit_us >= loss_us(l, best))
        l->n_probe = best;
    l->hoped_rate = round_tokens(l, best) / (best * node_length_draft_us(l) + l->pass_us[best + 1]);
    return l->n_probe > 0;
}

bool node_length_prepare(node_length_t *l)
{
    curve_t c;
    l->n_round = 0;
    l->p_all = 1;
    l->n_probe = 0;
    l->hoped_rate = 0;
    make_curve(l, &c);
    if (!l->max_draft || l->cost_us[0] <= 0)
        return false;
    for (uint32_t rows = 1; rows < l->max_draft + 2; rows++)
        l->pass_us[rows] = curve_at(&c, rows);
    l->beside_rate = 1 / l->pass_us[1];
    return true;
}

bool node_length_begin_beside(node_length_t *l, double other_rate)
{
    double now = l->sum_us > 0 ? l->sum_tokens / l->sum_us : 0;
    double best = best_rate(l, false);
    l->beside_rate = other_rate > l->beside_rate ? other_rate : l->beside_rate;
    l->best_rate = best > now ? best : now;
    l->hoped_rate = best;
    if (node_length_draft_us(l) > 0 && best * node_length_trust(l) >= CAUTION * l->beside_rate && pays(l, 0, 1, 0))
        return true;
    return begin_probe(l);
}

bool node_length_begin(node_length_t *l) { return node_length_prepare(l) && node_length_begin_beside(l, 0); }

bool node_length_more_ready(node_length_t *l, double margin, uint32_t n_ready)
{
    if (l->n_round >= l->max_draft)
        return false;
    uint32_t b = bin_of(margin);
    l->p_all *= l->chance[b];
    l->bin[l->n_round++] = (uint8_t)b;
    if (l->n_round >= l->max_draft)
        return false;
    if (l->n_probe)
        return l->n_round < l->n_probe;
    return pays(l, l->n_round, l->p_all, n_ready);
}

bool node_length_more(node_length_t *l, double margin) { return node_length_more_ready(l, margin, 0); }

/* Credit for probes, by a round without any drafts of its own. */
static void save_up(node_length_t *l, double us)
{
    double plain_us = node_length_verify_us(l, 1);
    bool hopeless = l->draft_us > 0 && best_rate(l, true) < CAUTION * l->beside_rate;
    l->probe_credit_us += us * (hopeless ? PROBE_SHARE_HOPELESS : PROBE_SHARE);
    if (l->probe_credit_us > PROBE_CREDIT * plain_us)
        l->probe_credit_us = PROBE_CREDIT * plain_us;
    forget(l);
}

void node_length_end(node_length_t *l, const node_length_round_t *r)
{
    learn_chances(l, r);
    learn_trust(l, r);
    if (r->n_drafts && r->draft_us > 0)
        blend(&l->draft_us, r->draft_us / r->n_drafts, l->expected.draft_us);
    learn_pass(l, r->n_drafts + 1.0, r->verify_us);
    l->sum_tokens = l->sum_tokens * KEEP_RATE + r->n_tokens;
    l->sum_us = l->sum_us * KEEP_RATE + r->draft_us + r->verify_us;
    if (!r->n_drafts)
        save_up(l, r->verify_us);
    else if (l->n_probe)
        l->probe_credit_us -= r->draft_us + r->verify_us - r->n_tokens / l->beside_rate;
    l->n_round = 0;
}

void node_length_end_elsewhere(node_length_t *l, uint32_t n_rows, double verify_us)
{
    learn_trust(l, &(node_length_round_t){0});
    learn_pass(l, n_rows, verify_us);
    save_up(l, verify_us);
    l->n_round = 0;
}
