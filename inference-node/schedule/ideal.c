/* The planned draft length; see ideal.h. Pure. */
#include "schedule/ideal.h"

double node_schedule_tokens(double chance, uint32_t x)
{
    double sum = 1, p = 1;
    for (uint32_t i = 0; i < x; i++) {
        p *= chance;
        sum += p;
    }
    return sum;
}

uint32_t node_schedule_ideal(const node_schedule_cost_t *c, uint32_t max_draft)
{
    double sum = 0, p = 1, best_rate = 0;
    uint32_t least = c->min_draft < max_draft ? c->min_draft : max_draft, best = least;
    for (uint32_t x = 0; x <= max_draft; x++) {
        sum += p;
        p *= c->chance;
        double us = x * c->draft_us + c->verify_us + x * c->verify_row_us;
        if (us < c->link_us)
            us = c->link_us;
        double rate = us > 0 ? sum / us : 0;
        if (rate > best_rate && x >= least) {
            best_rate = rate;
            best = x;
        }
    }
    return best;
}

node_schedule_cost_t node_schedule_cost_of(const node_length_t *length, double link_us)
{
    double one = node_length_verify_us(length, 1), draft = node_length_draft_us(length);
    /* The slope over the widths that drafting reaches; two points, since a plan needs a line. */
    double wide = node_length_verify_us(length, 17);
    node_schedule_cost_t c = {.draft_us = draft > 0 ? draft : one,
                              .verify_us = one,
                              .verify_row_us = wide > one ? (wide - one) / 16 : 0,
                              .link_us = link_us,
                              .chance = node_length_mean_chance(length)};
    return c;
}
