/*
 * Dividing iteration times: a line that is there is found, parts always add up to the whole by the caller's scaling,
 * and loads that never varied or never came do no harm.
 */
#include <stdbool.h>

#include "batch/share.h"
#include "support/vc_test.h"

static node_share_load_t load(double drafts, double kilotokens, double verify, double prompt)
{
    return (node_share_load_t){.n = {1, drafts, kilotokens, verify, prompt}};
}

static bool near(double a, double b, double share) { return a > b * (1 - share) && a < b * (1 + share); }

Test(share, a_line_through_iterations_of_every_kind_is_found)
{
    node_share_t s;
    node_share_init(&s);
    node_share_load_t one = load(1, 0, 0, 0);
    cr_assert_eq(node_share_us(&s, &one), 0, "nothing was learnt");
    for (uint32_t i = 0; i < 400; i++) {
        node_share_load_t l = load(i % 5, i % 3 ? 0 : 8, i % 3 ? 0 : 1 + i % 17, i % 7 ? 0 : 32);
        node_share_learn(&s, &l, 5000 + 900 * l.n[1] + 1500 * l.n[2] + 300 * l.n[3] + 250 * l.n[4]);
    }
    cr_assert(near(s.us[NODE_SHARE_FIXED], 5000, 0.05), "%f", s.us[0]);
    cr_assert(near(s.us[NODE_SHARE_DRAFTS], 900, 0.05), "%f", s.us[1]);
    cr_assert(near(s.us[NODE_SHARE_KILOTOKENS], 1500, 0.05), "%f", s.us[2]);
    cr_assert(near(s.us[NODE_SHARE_VERIFY], 300, 0.05), "%f", s.us[3]);
    cr_assert(near(s.us[NODE_SHARE_PROMPT], 250, 0.05), "%f", s.us[4]);
}

Test(share, a_load_that_never_varies_is_explained_as_a_whole)
{
    node_share_t s;
    node_share_init(&s);
    node_share_load_t l = load(4, 0, 0, 0);
    for (uint32_t i = 0; i < 50; i++)
        node_share_learn(&s, &l, 8000);
    cr_assert(near(node_share_us(&s, &l), 8000, 0.01), "%f", node_share_us(&s, &l));
    node_share_load_t other = load(0, 0, 9, 0);
    cr_assert(node_share_us(&s, &other) <= 8000, "rows that never came have no cost of their own");
}

Test(share, costs_that_change_are_followed_and_none_is_below_zero)
{
    node_share_t s;
    node_share_init(&s);
    for (uint32_t i = 0; i < 300; i++) {
        node_share_load_t l = load(1 + i % 4, 0, 0, 0);
        node_share_learn(&s, &l, i < 100 ? 9000 - 1000 * l.n[1] : 1000 + 2000 * l.n[1]);
        for (int k = 0; k < NODE_SHARE_N; k++)
            cr_assert_geq(s.us[k], 0);
    }
    cr_assert(near(s.us[NODE_SHARE_DRAFTS], 2000, 0.1), "%f", s.us[1]);
}
