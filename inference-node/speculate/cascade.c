/* The number of proposals in a pass: two measured costs and a rule. No state beside the caller's. */
#include "speculate/cascade.h"

#define KEEP_COST 0.9 /* of a mean per measurement */
#define KEEP_RATE 0.9 /* of the rate's totals per pass */
#define ODD 2.0       /* a measurement counts as this many times the mean at most */
#define ROW_MIN 0.01  /* a row is never taken to be free: it would always pay */
#define CAUTION 1.05  /* a proposal at the break-even point gains nothing and may lose */
#define FADE 0.002    /* of the way back to the default per plain pass: what is too dear is never measured again */

void node_cascade_init(node_cascade_t *c, bool measured)
{
    *c = (node_cascade_t){.measured = measured, .row = NODE_CASCADE_ROW};
}

static double cost_of(const node_cascade_t *c, uint32_t n_rows) { return 1 + c->row * ((double)n_rows - 1); }

uint32_t node_cascade_choose(const node_cascade_t *c, const node_proposal_t *proposals, uint32_t n)
{
    if (c->measured && (c->one_us <= 0 || c->n_wide >= NODE_CASCADE_RENEW))
        return 0;
    double recent = c->sum_cost > 0 ? c->sum_tokens / c->sum_cost : 0;
    double price = CAUTION * (recent > 1 ? recent : 1) * c->row, p = 1;
    uint32_t k = 0;
    while (k < n && (p *= proposals[k].chance) >= price)
        k++;
    return k;
}

/* Towards a new mean, of which one measurement moves no more than ODD times. */
static double blend(double mean, double value)
{
    value = value < ODD * mean ? value : ODD * mean;
    return mean + (1 - KEEP_COST) * (value - mean);
}

static void measure(node_cascade_t *c, uint32_t n_rows, uint32_t n_proposals, double us)
{
    if (!n_proposals) {
        double one = us / cost_of(c, n_rows);
        c->one_us = c->one_us > 0 ? blend(c->one_us, one) : one;
        c->row += FADE * (NODE_CASCADE_ROW - c->row);
        c->n_wide = 0;
    } else if (c->one_us > 0) {
        double row = blend(c->row, (us / c->one_us - 1) / ((double)n_rows - 1));
        c->row = row > ROW_MIN ? row : ROW_MIN;
        c->n_wide++;
    }
}

void node_cascade_end(node_cascade_t *c, uint32_t n_rows, uint32_t n_proposals, uint32_t n_tokens, double us)
{
    if (!n_rows || n_rows > NODE_CASCADE_ROWS)
        return;
    if (us > 0)
        measure(c, n_rows, n_proposals, us);
    c->sum_tokens = c->sum_tokens * KEEP_RATE + n_tokens;
    c->sum_cost = c->sum_cost * KEEP_RATE + cost_of(c, n_rows);
}
