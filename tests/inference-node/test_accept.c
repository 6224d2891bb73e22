/*
 * The acceptance rule: the matching prefix plus one token of the verifier, cut where the generation ends, at every
 * position of the draft.
 */
#include <math.h>
#include <string.h>

#include "speculate/accept.h"
#include "speculate/sample.h"
#include "support/vc_test.h"

enum { END = 99 };
static const uint32_t end_tokens[] = {98, END};

static node_accept_out_t accept_all(const uint32_t *drafts, uint32_t n_drafts, const uint32_t *chosen,
                                    uint32_t n_chosen, uint32_t stop_after, uint32_t budget, uint32_t context)
{
    node_accept_out_t out;
    node_accept(&(node_accept_in_t){drafts, n_drafts, chosen, n_chosen, end_tokens, 2, stop_after, budget, context},
                &out);
    return out;
}

static void fill(uint32_t *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        t[i] = i;
}

Test(accept, a_refusal_at_each_position_keeps_what_is_before_it_and_the_correction)
{
    const uint32_t widths[] = {1, 2, 3, 4, 5, 7, 8, 16, 30, 64};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        uint32_t x = widths[w], drafts[64], chosen[65];
        for (uint32_t bad = 0; bad <= x; bad++) { /* bad == x: all accepted */
            fill(drafts, x);
            fill(chosen, x + 1);
            chosen[bad] = 70;
            node_accept_out_t out = accept_all(drafts, x, chosen, bad + 1, 0, 1000, 1000);
            cr_assert_eq(out.n_accepted, bad);
            cr_assert_eq(out.n_committed, bad + 1);
            cr_assert_eq(out.finish, NODE_FINISH_NONE);
            /* later rows, where someone computed them, change nothing */
            node_accept_out_t more = accept_all(drafts, x, chosen, x + 1, 0, 1000, 1000);
            cr_assert_eq(memcmp(&out, &more, sizeof out), 0);
        }
    }
}

Test(accept, plain_decoding_commits_the_verifiers_token)
{
    uint32_t chosen[1] = {5};
    node_accept_out_t out = accept_all(NULL, 0, chosen, 1, 0, 10, 10);
    cr_assert_eq(out.n_accepted, 0);
    cr_assert_eq(out.n_committed, 1);
}

Test(accept, an_end_token_ends_as_draft_as_correction_and_as_bonus)
{
    uint32_t drafts[4] = {1, 2, END, 4}, chosen[5] = {1, 2, END, 4, 5};
    node_accept_out_t out = accept_all(drafts, 4, chosen, 5, 0, 100, 100);
    cr_assert(out.n_accepted == 3 && out.n_committed == 3 && out.finish == NODE_FINISH_END);
    chosen[1] = 98;
    out = accept_all(drafts, 4, chosen, 2, 0, 100, 100);
    cr_assert(out.n_accepted == 1 && out.n_committed == 2 && out.finish == NODE_FINISH_END);
    uint32_t all[5] = {1, 2, 3, 4, END};
    out = accept_all(all, 4, all, 5, 0, 100, 100);
    cr_assert(out.n_accepted == 4 && out.n_committed == 5 && out.finish == NODE_FINISH_END);
    /* a drafted end token that the verifier refuses ends nothing */
    uint32_t other[2] = {7, 8};
    out = accept_all(&drafts[2], 1, other, 1, 0, 100, 100);
    cr_assert(out.n_accepted == 0 && out.n_committed == 1 && out.finish == NODE_FINISH_NONE);
}

Test(accept, budget_and_context_cut_inside_a_draft)
{
    uint32_t t[9];
    fill(t, 9);
    for (uint32_t room = 1; room <= 9; room++) {
        node_accept_out_t out = accept_all(t, 8, t, 9, 0, room, 100);
        cr_assert(out.n_committed == room && out.finish == NODE_FINISH_LENGTH);
        cr_assert_eq(out.n_accepted, room > 8 ? 8 : room);
        out = accept_all(t, 8, t, 9, 0, 100, room);
        cr_assert(out.n_committed == room && out.finish == NODE_FINISH_CONTEXT);
        out = accept_all(t, 8, t, 9, 0, room, room);
        cr_assert_eq(out.finish, NODE_FINISH_LENGTH);
    }
}

Test(accept, a_stop_string_cuts_where_it_is_complete)
{
    uint32_t t[5] = {1, 2, 3, 4, END};
    for (uint32_t at = 1; at <= 4; at++) {
        node_accept_out_t out = accept_all(t, 4, t, 5, at, 100, 100);
        cr_assert(out.n_committed == at && out.n_accepted == at && out.finish == NODE_FINISH_STOP);
    }
    node_accept_out_t out = accept_all(t, 4, t, 5, 5, 5, 5); /* all rules at one token: the end token names it */
    cr_assert(out.n_committed == 5 && out.finish == NODE_FINISH_END);
    out = accept_all(t, 4, t, 5, 3, 3, 3);
    cr_assert(out.n_committed == 3 && out.finish == NODE_FINISH_STOP);
}

Test(accept, drafts_that_could_never_be_committed_are_not_useful)
{
    cr_assert_eq(node_accept_useful(8, 100, 100), 8);
    cr_assert_eq(node_accept_useful(8, 9, 100), 8);
    cr_assert_eq(node_accept_useful(8, 8, 100), 7);
    cr_assert_eq(node_accept_useful(8, 100, 3), 2);
    cr_assert_eq(node_accept_useful(8, 1, 1), 0);
    cr_assert_eq(node_accept_useful(8, 0, 5), 0);
}

Test(accept, finishes_have_names)
{
    cr_assert_str_eq(node_finish_name(NODE_FINISH_NONE), "none");
    cr_assert_str_eq(node_finish_name(NODE_FINISH_END), "end");
    cr_assert_str_eq(node_finish_name(NODE_FINISH_STOP), "stop");
    cr_assert_str_eq(node_finish_name(NODE_FINISH_LENGTH), "length");
    cr_assert_str_eq(node_finish_name(NODE_FINISH_CONTEXT), "context");
}

/* A drafter with other logits and the same noise: what is committed follows the verifier's distribution exactly, and
 * independent of what was drafted. A recovery that reused the noise of a refused draft would not. */
Test(accept, committed_tokens_follow_the_verifiers_distribution)
{
    enum { N = 6, DRAWS = 100000 };
    const float verifier[N] = {1.2f, 0.3f, -0.5f, 0.9f, 0, -1.5f}, drafter[N] = {-0.5f, 1.1f, 0.4f, 0.2f, 0, 0.7f};
    node_sampling_t s;
    node_sampling_default(&s);
    s.temperature = 0.8;
    s.seed = 99;
    node_sampler_t *v, *d;
    cr_assert_eq(node_sampler_create(&s, N, &v, NULL), VC_OK);
    cr_assert_eq(node_sampler_create(&s, N, &d, NULL), VC_OK);
    uint32_t count[N] = {0}, n_accepted = 0;
    for (uint64_t pos = 0; pos < DRAWS; pos++) {
        node_pick_t draft, chosen;
        cr_assert_eq(node_sampler_pick(d, drafter, pos, &draft, NULL), VC_OK);
        cr_assert_eq(node_sampler_pick(v, verifier, pos, &chosen, NULL), VC_OK);
        node_accept_out_t out = accept_all(&draft.token, 1, &chosen.token, 1, 0, 10, 10);
        cr_assert_eq(out.n_committed, 1);
        n_accepted += out.n_accepted;
        count[chosen.token]++;
    }
    double sum = 0, x = 0;
    for (int i = 0; i < N; i++)
        sum += exp((double)verifier[i] / s.temperature);
    for (int i = 0; i < N; i++) {
        double want = DRAWS * exp((double)verifier[i] / s.temperature) / sum;
        x += (count[i] - want) * (count[i] - want) / want;
    }
    cr_assert(x < 20.5, "chi-square %g at 5 degrees of freedom", x); /* the 0.1 % point */
    cr_assert(n_accepted > DRAWS / 10 && n_accepted < DRAWS * 9 / 10);
    node_sampler_destroy(v);
    node_sampler_destroy(d);
}
