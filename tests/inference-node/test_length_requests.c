/*
 * Adaptive draft length over whole simulated requests, each of which starts with nothing learned: step costs like those
 * of real machines (in memory, from a slow tier, where drafting never pays) against texts that are easy, hard, or both
 * in stretches. What it may not fall behind is the best fixed length for just that text and those costs.
 */
#include <math.h>
#include <string.h>

#include "speculate/length.h"
#include "support/vc_test.h"

typedef struct {
    const char *name;
    double draft_us, first_us, second_us, row_us, link_us; /* pass: the longer of link and first + second + row x n */
} machine_t;

static const machine_t machines[] = {
    {"in memory, arithmetic-bound", 6300, 8700, 0, 2000, 0},
    {"in memory", 4500, 8700, 1500, 450, 0},
    {"a step to two rows", 3000, 8700, 3000, 300, 0},
    {"slow tier", 6300, 9000, 0, 600, 90000},
    {"slow tier, dear rows", 6300, 9000, 0, 2000, 90000},
    {"short context", 4200, 5200, 500, 600, 0},
    {"cheap drafts", 1000, 5000, 0, 100, 0},
};

typedef struct {
    const char *name;
    double easy, hard, stay; /* chances in easy and hard stretches, chance to stay in one */
    bool margins_tell;
} text_t;

static const text_t texts[] = {
    {"0.02", .02, .02, 1, false},        {"0.5", .5, .5, 1, false},
    {"0.8", .8, .8, 1, false},           {"0.9", .9, .9, 1, false},
    {"0.98", .98, .98, 1, false},        {"0.995", .995, .995, 1, false},
    {"bursts", .995, .7, .95, true},     {"silent bursts", .99, .5, .97, false},
    {"short bursts", .98, .3, .9, true},
};

enum { AHEAD = 260 };

typedef struct {
    const text_t *text;
    uint64_t rng;
    bool hard;
    uint32_t n; /* tokens looked at that are not committed */
    bool hit[AHEAD + 1];
    double margin[AHEAD + 1];
} stream_t;

static double uniform(uint64_t *rng)
{
    *rng += 0x9e3779b97f4a7c15u;
    uint64_t z = *rng;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return ((double)((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
}

static void look(stream_t *s, uint32_t i)
{
    for (; s->n <= i; s->n++) {
        s->hard ^= uniform(&s->rng) > s->text->stay;
        s->hit[s->n] = uniform(&s->rng) < (s->hard ? s->text->hard : s->text->easy);
        double u = -log(uniform(&s->rng));
        s->margin[s->n] = !s->text->margins_tell ? 1.2 : s->hard ? 0.6 * u : 0.5 + 4 * u;
    }
}

static double pass_us(const machine_t *m, uint32_t rows)
{
    return fmax(m->link_us, m->first_us + (rows > 1 ? m->second_us : 0) + m->row_us * (rows - 1));
}

typedef struct {
    double us, tokens;
} total_t;

/* One request of a number of tokens, with the automatic length or x drafts in every round. */
static void request(const machine_t *m, const text_t *text, node_length_t *l, uint32_t x, double tokens, uint64_t seed,
                    total_t *t)
{
    stream_t s = {.text = text, .rng = seed};
    for (double done = 0; done < tokens;) {
        uint32_t n = 0, hits = 0;
        if (l != NULL ? node_length_begin(l) : x > 0)
            do
                look(&s, n++);
            while (l != NULL ? node_length_more(l, s.margin[n - 1]) : n < x);
        while (hits < n && s.hit[hits])
            hits++;
        double noise = 0.95 + 0.1 * uniform(&s.rng); /* measured times are never the same twice */
        node_length_round_t r = {n, hits, hits + 1, n * m->draft_us * noise, pass_us(m, n + 1) * noise};
        if (l != NULL)
            node_length_end(l, &r);
        t->us += r.draft_us + r.verify_us;
        t->tokens += r.n_tokens;
        done += r.n_tokens;
        look(&s, hits);
        s.n -= hits + 1;
        memmove(s.hit, s.hit + hits + 1, s.n * sizeof *s.hit);
        memmove(s.margin, s.margin + hits + 1, s.n * sizeof *s.margin);
    }
}

static double rate_of(const total_t *t) { return t->tokens / t->us; }

/* Exact where every token has the same chance. */
static double static_rate(const machine_t *m, const text_t *text, uint32_t x)
{
    total_t t = {0};
    if (text->stay < 1) {
        request(m, text, NULL, x, 20000, 1, &t);
        return rate_of(&t);
    }
    double tokens = 1, p = 1;
    for (uint32_t i = 0; i < x; i++)
        tokens += p *= text->easy;
    return tokens / (x * m->draft_us + pass_us(m, x + 1));
}

static double best_static(const machine_t *m, const text_t *text, double *plain_p)
{
    double best = 0;
    for (uint32_t x = 0; x <= 64; x += x < 8 ? 1 : x < 24 ? 2 : 8)
        best = fmax(best, static_rate(m, text, x));
    *plain_p = static_rate(m, text, 0);
    return best;
}

static node_length_costs_t expected(const machine_t *m, double factor)
{
    machine_t memory = *m;
    memory.link_us = 0; /* nobody told about the slow tier */
    node_length_costs_t c = {.draft_us = m->draft_us * factor};
    for (uint32_t i = 0; i < NODE_LENGTH_COSTS; i++)
        c.verify_us[i] = factor * pass_us(&memory, 1u << i);
    return c;
}

/* The worst of all machines and texts, over the better of best static length and plain decoding. */
static void compare(double factor, double floor, double plain_floor)
{
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        for (size_t j = 0; j < sizeof texts / sizeof *texts; j++) {
            double plain, best = best_static(&machines[i], &texts[j], &plain);
            total_t t = {0};
            for (uint64_t seed = 1; seed <= 6; seed++) {
                node_length_t l;
                node_length_init(&l, 64);
                if (factor > 0) {
                    node_length_costs_t c = expected(&machines[i], factor);
                    node_length_expect(&l, &c);
                }
                request(&machines[i], &texts[j], &l, 0, 3000, seed, &t);
            }
            cr_assert_gt(rate_of(&t), floor * best, "%s, %s: %g of the best", machines[i].name, texts[j].name,
                         rate_of(&t) / best);
            cr_assert_gt(rate_of(&t), plain_floor * plain, "%s, %s: %g of plain", machines[i].name, texts[j].name,
                         rate_of(&t) / plain);
        }
}

Test(length_requests, within_five_percent_of_the_best_static_length_with_expected_costs) { compare(1, 0.95, 0.98); }

Test(length_requests, within_ten_percent_with_costs_expected_a_third_too_high) { compare(1.33, 0.9, 0.98); }

Test(length_requests, within_ten_percent_with_costs_expected_a_quarter_too_low) { compare(0.75, 0.9, 0.98); }

Test(length_requests, never_far_behind_with_costs_measured_on_a_busy_machine) { compare(6, 0.75, 0.97); }

Test(length_requests, within_five_percent_of_it_without_expected_costs) { compare(0, 0.95, 0.98); }

/* Short answers with a drafter that never pays: what learning that costs. */
Test(length_requests, short_answers_lose_at_most_three_percent_where_drafting_never_pays)
{
    const machine_t *m = &machines[5];
    for (size_t j = 0; j < sizeof texts / sizeof *texts; j++) {
        node_length_costs_t c = expected(m, 1);
        total_t automatic = {0}, plain = {0};
        for (uint64_t seed = 1; seed <= 20; seed++) {
            node_length_t l;
            node_length_init(&l, 64);
            node_length_expect(&l, &c);
            request(m, &texts[j], &l, 0, 96, seed, &automatic);
            request(m, &texts[j], NULL, 0, 96, seed, &plain);
        }
        cr_assert_gt(rate_of(&automatic), 0.97 * rate_of(&plain), "%s: %g", texts[j].name,
                     rate_of(&automatic) / rate_of(&plain));
    }
}

Test(length_requests, a_mixed_load_is_served_better_than_by_any_one_length)
{
    total_t automatic = {0};
    double best = 0;
    for (uint32_t x = 0; x <= 32; x++) {
        total_t t = {0};
        for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
            for (size_t j = 0; j < sizeof texts / sizeof *texts; j++)
                request(&machines[i], &texts[j], NULL, x, 500, i + j, &t);
        best = fmax(best, rate_of(&t));
    }
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        for (size_t j = 0; j < sizeof texts / sizeof *texts; j++) {
            node_length_costs_t c = expected(&machines[i], 1);
            node_length_t l;
            node_length_init(&l, 64);
            node_length_expect(&l, &c);
            request(&machines[i], &texts[j], &l, 0, 500, i + j, &automatic);
        }
    cr_assert_gt(rate_of(&automatic), 1.1 * best, "%g of the best static length", rate_of(&automatic) / best);
}
