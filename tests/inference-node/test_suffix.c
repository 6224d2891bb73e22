/*
 * The n-gram source against a naive search: on texts of few different tokens, which repeat in every way, with tokens
 * taken back at random. Proposals, match lengths and what is left after setting back must be those of the search;
 * memory stays in its bound.
 */
#include <string.h>

#include "speculate/suffix.h"
#include "support/vc_test.h"
#include "vc/mem.h"

enum { TEXT_MAX = 4000 };

static vc_err_t err;

static uint32_t next_random(uint64_t *s, uint32_t n)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33) % n;
}

static node_source_t *make(uint32_t max_tokens, uint32_t min_match)
{
    node_suffix_opts_t o;
    node_source_t *s = NULL;
    node_suffix_opts_default(&o);
    o.max_tokens = max_tokens;
    o.min_match = min_match;
    cr_assert_eq(node_suffix_create(&o, &s, &err), VC_OK);
    return s;
}

/* Position behind the last earlier place of the last 16, 8, 5, 3 or 2 tokens, and how many tokens agree there. */
static uint32_t search(const uint32_t *t, uint32_t n, uint32_t min_match, uint32_t *length_p)
{
    const uint32_t tried[] = {16, 8, 5, 3, 2};
    for (uint32_t i = 0; i < 5 && tried[i] >= min_match; i++)
        for (uint32_t at = n; tried[i] < n && --at >= tried[i];) {
            if (memcmp(t + at - tried[i], t + n - tried[i], tried[i] * sizeof *t) != 0)
                continue;
            uint32_t length = 0;
            while (length < 32 && length < at && t[at - 1 - length] == t[n - 1 - length])
                length++;
            *length_p = length;
            return at;
        }
    *length_p = 0;
    return 0;
}

static void check(node_source_t *s, const uint32_t *t, uint32_t n, uint32_t min_match)
{
    node_proposal_t got[NODE_SOURCE_MAX];
    uint32_t length, at = search(t, n, min_match, &length), text[TEXT_MAX + NODE_SOURCE_MAX];
    cr_assert_eq(node_suffix_match(s), length, "match of %u tokens behind %u, expected %u", node_suffix_match(s), n,
                 length);
    uint32_t k = node_source_propose(s, UINT32_MAX, NODE_SOURCE_MAX, got);
    cr_assert_eq(k, at ? NODE_SOURCE_MAX : 0);
    memcpy(text, t, n * sizeof *t);
    for (uint32_t j = 0; j < k; j++) {
        text[n + j] = text[at + j];
        cr_assert_eq(got[j].token, text[n + j], "proposal %u behind %u tokens", j, n);
        cr_assert_eq(got[j].chance, node_suffix_chance(s, length + j));
    }
}

Test(suffix, proposals_are_those_of_a_naive_search_through_pushes_and_set_backs)
{
    const uint32_t alphabets[] = {1, 2, 3, 7, 40, 49152};
    for (uint32_t a = 0; a < VC_ARRAY_LEN(alphabets); a++) {
        uint32_t min_match = a % 2 ? 2 : 4, text[TEXT_MAX], n = 0;
        node_source_t *s = make(TEXT_MAX, min_match);
        uint64_t rng = 7 + a;
        for (uint32_t step = 0; step < 400; step++) {
            uint32_t add = next_random(&rng, 12);
            if (n + add > TEXT_MAX)
                break;
            for (uint32_t i = 0; i < add; i++) /* new tokens, or a piece of the text again */
                text[n + i] = next_random(&rng, 3) && n > 60 ? text[n + i - 60] : next_random(&rng, alphabets[a]);
            node_source_push(s, text + n, add, NULL);
            n += add;
            cr_assert_eq(s->n_tokens, n);
            check(s, text, n, min_match);
            if (next_random(&rng, 3) == 0) {
                n -= next_random(&rng, n < 40 ? n + 1 : 40);
                node_source_truncate(s, n);
                check(s, text, n, min_match);
            }
        }
        node_source_truncate(s, 0);
        check(s, text, 0, min_match);
        node_source_push(s, text, n, NULL);
        check(s, text, n, min_match);
        cr_assert(!s->off);
        node_source_destroy(s);
    }
}

Test(suffix, a_text_set_back_and_told_again_gives_what_a_fresh_source_gives)
{
    uint32_t text[1500], other[400];
    uint64_t rng = 3;
    for (uint32_t i = 0; i < 1500; i++)
        text[i] = next_random(&rng, 4);
    for (uint32_t i = 0; i < 400; i++)
        other[i] = next_random(&rng, 4);
    node_source_t *s = make(2000, 2);
    node_source_push(s, text, 700, NULL);
    node_source_push(s, other, 400, NULL); /* tables have grown meanwhile */
    node_source_truncate(s, 700);
    node_source_truncate(s, 900); /* more than there is: nothing */
    cr_assert_eq(s->n_tokens, 700);
    node_source_push(s, text + 700, 800, NULL);
    check(s, text, 1500, 2);
    for (uint32_t n = 1500; n-- > 1400;) {
        node_source_truncate(s, n);
        check(s, text, n, 2);
    }
    node_source_destroy(s);
}

Test(suffix, a_loop_is_continued_around)
{
    const uint32_t loop[3] = {11, 22, 33};
    node_source_t *s = make(100, 2);
    node_proposal_t got[NODE_SOURCE_MAX];
    for (uint32_t i = 0; i < 10; i++)
        node_source_push(s, &loop[i % 3], 1, NULL);
    cr_assert_eq(node_source_propose(s, 100, 7, got), 7);
    for (uint32_t j = 0; j < 7; j++)
        cr_assert_eq(got[j].token, loop[(10 + j) % 3]);
    cr_assert_eq(node_source_propose(s, 30, 7, got), 1); /* 33 is no token of this vocabulary */
    node_source_destroy(s);
}

Test(suffix, the_chance_follows_what_proposals_come_to)
{
    enum { ROUND = 40, SHORT = 2, LONG = 16 };
    node_source_t *s = make(1u << 16, 2);
    double before = node_suffix_chance(s, LONG);
    uint32_t text[ROUND];
    uint64_t rng = 9;
    for (uint32_t i = 0; i < ROUND; i++)
        text[i] = 1000 + i;
    for (uint32_t r = 0; r < 40; r++) /* the same again and again: long matches are always right */
        node_source_push(s, text, ROUND, NULL);
    cr_assert_gt(node_suffix_chance(s, 32), 0.97);
    node_source_truncate(s, 0);
    for (uint32_t r = 0; r < 2000; r++) { /* a pair that is never followed by the same token: short ones are wrong */
        uint32_t pair[3] = {5, 6, 2000 + next_random(&rng, 40000)};
        node_source_push(s, pair, 3, NULL);
    }
    cr_assert_lt(node_suffix_chance(s, SHORT), 0.05);
    cr_assert_lt(node_suffix_chance(s, SHORT), before);
    node_source_destroy(s);
}

Test(suffix, memory_is_bounded_and_a_text_that_is_too_long_switches_it_off)
{
    const uint32_t limits[] = {100, 1000, 1024, 1025, 5000};
    for (uint32_t i = 0; i < VC_ARRAY_LEN(limits); i++) {
        uint64_t rng = i, most = (uint64_t)NODE_SUFFIX_TOKEN_BYTES * VC_MAX(limits[i], 256u);
        node_source_t *s = make(limits[i], 2);
        node_proposal_t got[2];
        for (uint32_t n = 0; n < limits[i]; n++) {
            uint32_t token = next_random(&rng, 50);
            node_source_push(s, &token, 1, NULL);
            cr_assert(!s->off);
            cr_assert_leq(node_suffix_bytes(s), most, "%llu bytes after %u of %u tokens",
                          (unsigned long long)node_suffix_bytes(s), n + 1, limits[i]);
        }
        node_source_push(s, (uint32_t[]){1}, 1, NULL);
        cr_assert(s->off);
        cr_assert_eq(node_source_propose(s, 50, 2, got), 0);
        node_source_push(s, (uint32_t[]){1}, 1, NULL); /* from now on nothing is done */
        node_source_truncate(s, 0);
        node_source_destroy(s);
    }
    node_suffix_opts_t o = {.max_tokens = 10, .min_match = 1};
    node_source_t *none = NULL;
    cr_assert_eq(node_suffix_create(&o, &none, &err), VC_ERR_RANGE);
    o = (node_suffix_opts_t){.max_tokens = 0, .min_match = 2};
    cr_assert_eq(node_suffix_create(&o, &none, &err), VC_ERR_RANGE);
    cr_assert_null(none);
    node_source_destroy(NULL);
}
