/*
 * Plain decoding, a source's proposals or drafts on the copy: over whole simulated requests the three together are not
 * behind the best of them alone, whatever the machine, the text and what the source claims. Then single rules.
 */
#include <math.h>
#include <string.h>

#include "speculate/choice.h"
#include "support/vc_test.h"

typedef struct {
    const char *name;
    double draft_us, first_us, row_us, free_rows,
        link_us; /* pass: the longer of link and first + row x those over free */
} machine_t;

static const machine_t machines[] = {
    {"8k in memory", 3100, 7500, 2000, 3, 0},  {"4k in memory", 2400, 5100, 1500, 3, 0},
    {"2k in memory", 2100, 3600, 1100, 3, 0},  {"rows dear at once", 3300, 8900, 2300, 0, 0},
    {"slow tier", 3100, 9000, 1900, 3, 90000}, {"drafts never pay", 9000, 8000, 2000, 3, 0},
};

/* Stretches in which the text repeats itself, and others. */
typedef struct {
    const char *name;
    double loops;                 /* share of the text */
    double right_in, right_out;   /* of a proposal */
    double match_out;             /* positions outside loops that have proposals */
    double copy_in, copy_out;     /* chance of the copy's draft */
    double claims_in, claims_out; /* what the source says of a proposal */
} text_t;

static const text_t texts[] = {
    {"loops", .9, .99, .3, .3, .98, .85, .95, .5},
    {"loops, modest source", .9, .99, .3, .3, .98, .85, .6, .3},
    {"half loops", .5, .97, .3, .3, .95, .8, .9, .4},
    {"no loops", 0, .9, .3, .4, .95, .9, .9, .4},
    {"no loops, boasting source", 0, .9, .2, .8, .95, .9, .9, .95},
    {"no loops, bad copy", 0, .9, .3, .4, .95, .3, .9, .4},
    {"nothing helps", 0, .9, .02, .9, .9, .05, .9, .9},
};

enum { TOKENS = 3000, AHEAD = 320 };

typedef struct {
    bool loop[TOKENS + AHEAD], match[TOKENS + AHEAD], right[TOKENS + AHEAD], hit[TOKENS + AHEAD];
    double margin[TOKENS + AHEAD];
} story_t;

static double uniform(uint64_t *rng)
{
    *rng += 0x9e3779b97f4a7c15u;
    uint64_t z = *rng;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return ((double)((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
}

static void tell(story_t *s, const text_t *t, uint64_t rng)
{
    bool loop = false;
    for (uint32_t i = 0; i < TOKENS + AHEAD; i++) {
        if (uniform(&rng) < 0.02)
            loop = uniform(&rng) < t->loops;
        s->loop[i] = loop;
        s->match[i] = loop || uniform(&rng) < t->match_out;
        s->right[i] = uniform(&rng) < (loop ? t->right_in : t->right_out);
        s->hit[i] = uniform(&rng) < (loop ? t->copy_in : t->copy_out);
        s->margin[i] = s->hit[i] ? -2 * log(uniform(&rng)) : -0.5 * log(uniform(&rng));
    }
}

static double pass_us(const machine_t *m, uint32_t rows)
{
    return fmax(m->link_us, m->first_us + m->row_us * fmax(0, rows - 1 - m->free_rows));
}

static uint32_t propose(const story_t *s, const text_t *t, uint32_t at, node_proposal_t *p)
{
    for (uint32_t i = 0; s->match[at] && i < NODE_SOURCE_MAX; i++)
        p[i] = (node_proposal_t){s->right[at + i] ? at + i : UINT32_MAX, s->loop[at] ? t->claims_in : t->claims_out};
    return s->match[at] ? NODE_SOURCE_MAX : 0;
}

/* Drafts behind `at`; passes of the drafter carry three proposals where there is a source. */
static uint32_t draft(const story_t *s, const machine_t *m, bool source, uint32_t at, node_length_t *l, double *us)
{
    uint32_t n = 0, ready = 0;
    do {
        if (!ready) {
            uint32_t k = source && s->match[at + n] ? 3 : 0;
            *us += m->draft_us * (1 + 0.06 * k);
            ready = 1;
            while (ready <= k && s->right[at + n + ready - 1] && s->hit[at + n + ready - 1])
                ready++;
        }
        ready--;
        n++;
    } while (node_length_more_ready(l, s->margin[at + n - 1], ready));
    return n;
}

static double run(const story_t *s, const text_t *t, const machine_t *m, bool copy, bool source, uint32_t n_tokens)
{
    static node_length_t l;
    node_choice_t c;
    node_length_costs_t costs = {.draft_us = copy ? m->draft_us : 0};
    double us = 0;
    uint64_t rng = 3;
    for (uint32_t i = 0; i < NODE_LENGTH_COSTS; i++) {
        machine_t memory = *m;
        memory.link_us = 0;
        costs.verify_us[i] = pass_us(&memory, 1u << i);
    }
    node_length_init(&l, 64);
    node_length_expect(&l, &costs);
    node_choice_init(&c);
    for (uint32_t at = 0; at < n_tokens;) {
        node_proposal_t p[NODE_SOURCE_MAX];
        uint32_t tokens[AHEAD], n, k, good = 0, n_p = source ? propose(s, t, at, p) : 0;
        double draft_us = 0, noise = 0.95 + 0.1 * uniform(&rng);
        node_choice_kind_t kind = node_choice_begin(&c, &l, copy, p, n_p, &k);
        n = kind == NODE_CHOICE_COPY ? draft(s, m, source, at, &l, &draft_us) : k;
        while (good < n && (kind == NODE_CHOICE_COPY ? s->hit[at + good] : s->right[at + good]))
            good++;
        for (uint32_t i = 0; i <= good; i++)
            tokens[i] = at + i;
        double verify_us = pass_us(m, n + 1) * noise;
        node_choice_end(&c, tokens, good + 1);
        if (kind == NODE_CHOICE_SOURCE)
            node_length_end_elsewhere(&l, n + 1, verify_us);
        else
            node_length_end(&l, &(node_length_round_t){n, good, good + 1, draft_us * noise, verify_us});
        us += draft_us * noise + verify_us;
        at += good + 1;
    }
    return us;
}

/* Over all machines and texts, in requests of so many tokens. */
static void compare(uint32_t n_tokens, double floor, double plain_floor)
{
    static story_t s;
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        for (size_t j = 0; j < sizeof texts / sizeof *texts; j++) {
            double plain = 0, copy = 0, source = 0, both = 0;
            for (uint64_t seed = 1; seed <= 8; seed++) {
                tell(&s, &texts[j], seed * 77);
                plain += run(&s, &texts[j], &machines[i], false, false, n_tokens);
                copy += run(&s, &texts[j], &machines[i], true, false, n_tokens);
                source += run(&s, &texts[j], &machines[i], false, true, n_tokens);
                both += run(&s, &texts[j], &machines[i], true, true, n_tokens);
            }
            double best = fmin(copy, source);
            cr_assert_gt(best / both, floor, "%s, %s: %.3f of the better part", machines[i].name, texts[j].name,
                         best / both);
            cr_assert_gt(plain / both, plain_floor, "%s, %s: %.3f of plain decoding", machines[i].name, texts[j].name,
                         plain / both);
            cr_assert_gt(plain / source, plain_floor, "%s, %s: the source alone %.3f", machines[i].name, texts[j].name,
                         plain / source);
        }
}

Test(choice, both_are_not_behind_the_better_one_in_long_requests) { compare(TOKENS, 0.98, 0.98); }

Test(choice, nor_in_short_ones) { compare(128, 0.95, 0.97); }

static void fill(node_proposal_t *p, double chance)
{
    for (uint32_t i = 0; i < NODE_SOURCE_MAX; i++)
        p[i] = (node_proposal_t){i, chance};
}

static void prepared(node_length_t *l, double draft_us, double first_us, double row_us)
{
    node_length_costs_t costs = {.draft_us = draft_us};
    for (uint32_t i = 0; i < NODE_LENGTH_COSTS; i++)
        costs.verify_us[i] = first_us + row_us * ((1u << i) - 1);
    node_length_init(l, 64);
    node_length_expect(l, &costs);
    node_length_end(l, &(node_length_round_t){0, 0, 1, 0, first_us});
}

Test(choice, nothing_is_chosen_before_a_plain_pass_was_seen)
{
    node_choice_t c;
    node_length_t l;
    node_proposal_t p[NODE_SOURCE_MAX];
    uint32_t n;
    fill(p, 1);
    node_choice_init(&c);
    node_length_init(&l, 64);
    cr_assert_eq(node_choice_begin(&c, &l, true, p, NODE_SOURCE_MAX, &n), NODE_CHOICE_PLAIN);
    cr_assert_eq(n, 0);
}

Test(choice, takes_as_many_proposals_as_have_the_best_rate)
{
    node_choice_t c;
    node_length_t l;
    node_proposal_t p[NODE_SOURCE_MAX];
    uint32_t n;
    node_choice_init(&c);
    prepared(&l, 0, 1000, 100);
    fill(p, 0.5); /* 1.5 / 1.1, 1.75 / 1.2, 1.875 / 1.3 */
    cr_assert_eq(node_choice_begin(&c, &l, false, p, NODE_SOURCE_MAX, &n), NODE_CHOICE_SOURCE);
    cr_assert_eq(n, 2);
    fill(p, 1);
    cr_assert_eq(node_choice_begin(&c, &l, false, p, NODE_SOURCE_MAX, &n), NODE_CHOICE_SOURCE);
    cr_assert_eq(n, NODE_SOURCE_MAX);
    fill(p, 0.1);
    cr_assert_eq(node_choice_begin(&c, &l, false, p, NODE_SOURCE_MAX, &n), NODE_CHOICE_PLAIN);
    cr_assert_eq(node_choice_begin(&c, &l, false, p, 0, &n), NODE_CHOICE_PLAIN);
}

Test(choice, the_better_of_source_and_copy_is_taken)
{
    node_choice_t c;
    node_length_t l;
    node_proposal_t p[NODE_SOURCE_MAX];
    uint32_t n;
    node_choice_init(&c);
    prepared(&l, 300, 1000, 50);
    fill(p, 0.98);
    cr_assert_eq(node_choice_begin(&c, &l, true, p, NODE_SOURCE_MAX, &n), NODE_CHOICE_SOURCE);
    fill(p, 0.3);
    cr_assert_eq(node_choice_begin(&c, &l, true, p, NODE_SOURCE_MAX, &n), NODE_CHOICE_COPY);
    cr_assert_eq(n, 0);
    cr_assert_eq(l.n_probe, 0);
}

Test(choice, a_source_is_believed_as_far_as_it_was_right)
{
    node_choice_t c;
    node_length_t l;
    node_proposal_t p[NODE_SOURCE_MAX];
    uint32_t n, wrong = UINT32_MAX, right[4] = {0, 1, 2, 3};
    node_choice_init(&c);
    prepared(&l, 0, 1000, 200);
    fill(p, 0.9);
    cr_assert_float_eq(node_choice_chance(&c, 0.9), 0.9, 1e-12);
    for (int i = 0; i < 20; i++) {
        node_choice_begin(&c, &l, false, p, NODE_SOURCE_MAX, &n);
        node_choice_end(&c, &wrong, 1);
    }
    cr_assert_lt(node_choice_chance(&c, 0.9), 0.2);
    cr_assert_eq(node_choice_begin(&c, &l, false, p, NODE_SOURCE_MAX, &n), NODE_CHOICE_PLAIN);
    for (int i = 0; i < 60; i++) { /* plain rounds tell of it too */
        node_choice_begin(&c, &l, false, p, NODE_SOURCE_MAX, &n);
        node_choice_end(&c, right, 1 + (i % 4));
    }
    cr_assert_gt(node_choice_chance(&c, 0.9), 0.9);
    cr_assert_eq(node_choice_begin(&c, &l, false, p, NODE_SOURCE_MAX, &n), NODE_CHOICE_SOURCE);
    cr_assert_gt(node_choice_chance(&c, 1), 0.99);
}

Test(choice, probes_of_the_copy_cost_a_hundredth_beside_a_good_source)
{
    node_choice_t c;
    node_length_t l;
    node_proposal_t p[NODE_SOURCE_MAX];
    uint32_t n, tokens[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    double us = 0, lost = 0;
    node_choice_init(&c);
    prepared(&l, 900, 1000, 50);
    fill(p, 0.99);
    for (int i = 0; i < 3000; i++) {
        if (node_choice_begin(&c, &l, true, p, NODE_SOURCE_MAX, &n) == NODE_CHOICE_COPY) {
            cr_assert_gt(l.n_probe, 0);
            uint32_t x = 0;
            do
                x++;
            while (node_length_more(&l, 1.2));
            double rate = l.beside_rate, time = 900 * x + 1000 + 50 * x;
            lost += time - 1 / rate;
            us += time;
            node_choice_end(&c, &tokens[15], 1);
            node_length_end(&l, &(node_length_round_t){x, 0, 1, 900.0 * x, 1000 + 50.0 * x});
        } else {
            us += 1000 + 50 * n;
            node_choice_end(&c, tokens, n + 1);
            node_length_end_elsewhere(&l, n + 1, 1000 + 50 * n);
        }
    }
    cr_assert_gt(lost, 0);
    cr_assert_lt(lost, 0.015 * us, "%.4f of the time", lost / us);
}
