/*
 * The sampling rule: exact order of ties and filters, noise that follows the distribution and depends on (seed,
 * position, token) only, penalties that count what was pushed, and refusals.
 */
#include <math.h>
#include <string.h>

#include "speculate/sample.h"
#include "support/vc_test.h"
#include "vc/mem.h"

static node_sampler_t *make(const node_sampling_t *s, uint32_t n_vocab)
{
    node_sampler_t *sm = NULL;
    vc_err_t err = {0};
    cr_assert_eq(node_sampler_create(s, n_vocab, &sm, &err), VC_OK, "%s", err.msg);
    return sm;
}

static uint32_t pick(node_sampler_t *sm, const float *logits, uint64_t position)
{
    node_pick_t p;
    vc_err_t err = {0};
    cr_assert_eq(node_sampler_pick(sm, logits, position, &p, &err), VC_OK, "%s", err.msg);
    return p.token;
}

static uint32_t pick_once(const node_sampling_t *s, const float *logits, uint32_t n, uint64_t position)
{
    node_sampler_t *sm = make(s, n);
    uint32_t token = pick(sm, logits, position);
    node_sampler_destroy(sm);
    return token;
}

/* Deterministic test data in [-1, 1). */
static float noise(uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (float)((double)(z >> 40) * 0x1p-23 - 1);
}

Test(sample, greedy_takes_the_highest_logit_and_the_lowest_id_of_a_tie)
{
    node_sampling_t s;
    node_sampling_default(&s);
    float l[6] = {1, 3, 3, -1, 3, 2};
    cr_assert_eq(pick_once(&s, l, 6, 0), 1);
    float zeros[2] = {-0.0f, 0.0f};
    cr_assert_eq(pick_once(&s, zeros, 2, 0), 0);
    /* a penalty that changes nothing here takes the general path: same answer */
    s.presence_penalty = 1;
    cr_assert_eq(pick_once(&s, l, 6, 0), 1);
    node_pick_t p;
    node_sampler_t *sm = make(&s, 6);
    cr_assert_eq(node_sampler_pick(sm, l, 0, &p, NULL), VC_OK);
    cr_assert_eq(p.margin, 0);
    node_sampler_destroy(sm);
}

Test(sample, margin_is_the_lead_over_the_second_best)
{
    node_sampling_t s;
    node_sampling_default(&s);
    float l[4] = {0.25f, 2, -INFINITY, 0.5f};
    node_pick_t p;
    node_sampler_t *sm = make(&s, 4);
    cr_assert_eq(node_sampler_pick(sm, l, 0, &p, NULL), VC_OK);
    cr_assert_eq(p.margin, 1.5);
    node_sampler_destroy(sm);
    sm = make(&s, 1);
    cr_assert_eq(node_sampler_pick(sm, l, 0, &p, NULL), VC_OK);
    cr_assert_eq(p.margin, HUGE_VAL);
    node_sampler_destroy(sm);
}

Test(sample, logits_without_an_order_are_refused)
{
    node_sampling_t s;
    node_sampling_default(&s);
    for (int sampled = 0; sampled < 2; sampled++) {
        s.temperature = sampled;
        node_sampler_t *sm = make(&s, 3);
        node_pick_t p;
        vc_err_t err = {0};
        float bad[3][3] = {{0, NAN, 1}, {INFINITY, 0, 1}, {-INFINITY, -INFINITY, -INFINITY}};
        for (int i = 0; i < 3; i++)
            cr_assert_eq(node_sampler_pick(sm, bad[i], 0, &p, &err), VC_ERR_INVALID);
        float masked[3] = {-INFINITY, -5, -INFINITY};
        cr_assert_eq(node_sampler_pick(sm, masked, 0, &p, &err), VC_OK);
        cr_assert_eq(p.token, 1);
        node_sampler_destroy(sm);
    }
}

Test(sample, noise_is_finite_everywhere_and_depends_on_each_of_its_keys)
{
    double sum = 0, sum2 = 0;
    const int n = 200000;
    for (int i = 0; i < n; i++) {
        double g = node_sample_gumbel(7, (uint64_t)(i / 500), (uint32_t)(i % 500));
        cr_assert(isfinite(g) && g > -3.7 && g < 36.8);
        sum += g;
        sum2 += g * g;
    }
    double mean = sum / n, var = sum2 / n - mean * mean;
    cr_assert(fabs(mean - 0.5772156649) < 0.012, "mean %g", mean); /* 4 standard errors: 4 x 1.2825 / sqrt n */
    cr_assert(fabs(var - 1.6449340668) < 0.04, "variance %g", var);
    double g = node_sample_gumbel(1, 2, 3);
    cr_assert_eq(g, node_sample_gumbel(1, 2, 3));
    cr_assert_neq(g, node_sample_gumbel(2, 2, 3));
    cr_assert_neq(g, node_sample_gumbel(1, 3, 3));
    cr_assert_neq(g, node_sample_gumbel(1, 2, 4));
}

/* The exact value of one noise sample: another one would be another numerics id for sampled text. */
Test(sample, noise_is_pinned)
{
    cr_assert_float_eq(node_sample_gumbel(0, 0, 0), -0.6807578025137786, 1e-15);
    cr_assert_float_eq(node_sample_gumbel(42, 1000, 49151), -0.5508840693338793, 1e-15);
}

Test(sample, pruned_choice_equals_the_full_argmax)
{
    enum { N = 700 };
    float l[N];
    node_sampling_t s;
    node_sampling_default(&s);
    for (int round = 0; round < 400; round++) {
        s.temperature = 0.05 + 0.01 * round;
        s.seed = (uint64_t)round * 977;
        for (int i = 0; i < N; i++)
            l[i] = 6 * noise((uint64_t)(round * N + i));
        double best = -HUGE_VAL, second = -HUGE_VAL;
        uint32_t want = 0;
        for (uint32_t i = 0; i < N; i++) {
            double v = (double)l[i] / s.temperature + node_sample_gumbel(s.seed, 9, i);
            if (v > best) {
                second = best;
                best = v;
                want = i;
            } else if (v > second) {
                second = v;
            }
        }
        node_sampler_t *sm = make(&s, N);
        node_pick_t p;
        cr_assert_eq(node_sampler_pick(sm, l, 9, &p, NULL), VC_OK);
        cr_assert_eq(p.token, want);
        cr_assert_eq(p.margin, best - second);
        node_sampler_destroy(sm);
    }
}

/* 10^5 draws against the exact distribution, one position after another, as a generation makes them. */
static double chi_square(const node_sampling_t *s, const float *l, uint32_t n, const double *p)
{
    enum { DRAWS = 100000 };
    uint32_t count[64] = {0};
    node_sampler_t *sm = make(s, n);
    for (uint64_t pos = 0; pos < DRAWS; pos++)
        count[pick(sm, l, pos)]++;
    node_sampler_destroy(sm);
    double x = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (p[i] == 0) {
            cr_assert_eq(count[i], 0);
            continue;
        }
        double want = p[i] * DRAWS;
        x += (count[i] - want) * (count[i] - want) / want;
    }
    return x;
}

static void softmax(const float *l, uint32_t n, double t, double *p)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += p[i] = exp((double)l[i] / t);
    for (uint32_t i = 0; i < n; i++)
        p[i] /= sum;
}

Test(sample, draws_follow_the_exact_distribution)
{
    enum { N = 20 };
    float l[N];
    double p[N];
    for (uint32_t i = 0; i < N; i++)
        l[i] = 2 * noise(i + 5);
    node_sampling_t s;
    node_sampling_default(&s);
    const double temperatures[] = {0.7, 1, 1.6};
    for (int i = 0; i < 3; i++) {
        s.temperature = temperatures[i];
        s.seed = 11 + (uint64_t)i;
        softmax(l, N, s.temperature, p);
        double x = chi_square(&s, l, N, p);
        cr_assert(x < 43.8, "chi-square %g at 19 degrees of freedom", x); /* the 0.1 % point */
    }
}

Test(sample, filtered_draws_follow_the_renormalised_distribution)
{
    enum { N = 20 };
    float l[N];
    double p[N], q[N];
    for (uint32_t i = 0; i < N; i++)
        l[i] = 0.25f * (float)((i * 7) % N); /* distinct, ids shuffled against ranks */
    node_sampling_t s;
    node_sampling_default(&s);
    s.temperature = 1;
    s.top_k = 6;
    s.seed = 3;
    softmax(l, N, 1, p);
    double kept = 0;
    for (uint32_t i = 0; i < N; i++)
        kept += q[i] = l[i] >= 0.25f * 14 ? p[i] : 0;
    for (uint32_t i = 0; i < N; i++)
        q[i] /= kept;
    double x = chi_square(&s, l, N, q);
    cr_assert(x < 20.5, "chi-square %g at 5 degrees of freedom", x);
}

/* Which tokens can come out: draws at many positions. */
static uint64_t reachable(const node_sampling_t *s, const float *l, uint32_t n)
{
    uint64_t set = 0;
    node_sampler_t *sm = make(s, n);
    for (uint64_t pos = 0; pos < 4000; pos++)
        set |= (uint64_t)1 << pick(sm, l, pos);
    node_sampler_destroy(sm);
    return set;
}

Test(sample, filters_keep_exactly_the_survivors)
{
    /* probabilities 0.4, 0.3, 0.1, 0.1, 0.1 */
    float l[5] = {logf(0.1f), logf(0.4f), logf(0.1f), logf(0.3f), logf(0.1f)};
    node_sampling_t s, base;
    node_sampling_default(&base);
    base.temperature = 1;
    s = base;
    cr_assert_eq(reachable(&s, l, 5), 0x1f);
    s.top_k = 1;
    cr_assert_eq(reachable(&s, l, 5), 0x02);
    s.top_k = 3; /* of three equal logits the lowest id ranks first */
    cr_assert_eq(reachable(&s, l, 5), 0x0b);
    s.top_k = 99;
    cr_assert_eq(reachable(&s, l, 5), 0x1f);
    s = base;
    s.top_p = 0.39;
    cr_assert_eq(reachable(&s, l, 5), 0x02);
    s.top_p = 0.65;
    cr_assert_eq(reachable(&s, l, 5), 0x0a);
    s.top_p = 0.75;
    cr_assert_eq(reachable(&s, l, 5), 0x0b);
    s.top_p = 0.85;
    cr_assert_eq(reachable(&s, l, 5), 0x0f);
    s.top_p = 1e-9;
    cr_assert_eq(reachable(&s, l, 5), 0x02);
    s.top_k = 2;
    s.top_p = 0.5; /* of the renormalised 4/7, 3/7 */
    cr_assert_eq(reachable(&s, l, 5), 0x02);
    s.top_p = 0.6;
    cr_assert_eq(reachable(&s, l, 5), 0x0a);
    s = base;
    s.min_p = 0.5;
    cr_assert_eq(reachable(&s, l, 5), 0x0a);
    s.min_p = 0.2;
    cr_assert_eq(reachable(&s, l, 5), 0x1f);
}

Test(sample, penalties_follow_pushes_and_pops)
{
    node_sampling_t s;
    node_sampling_default(&s);
    s.repeat_penalty = 2;
    float l[4] = {4, 3, -1, -1.5f};
    node_sampler_t *sm = make(&s, 4);
    cr_assert_eq(pick(sm, l, 0), 0);
    node_sampler_push(sm, 0);
    cr_assert_eq(pick(sm, l, 0), 1); /* 4 / 2 < 3 */
    node_sampler_push(sm, 0);
    cr_assert_eq(pick(sm, l, 0), 1); /* a repeat counts once */
    node_sampler_push(sm, 1);
    cr_assert_eq(pick(sm, l, 0), 0); /* 2 against 1.5 */
    node_sampler_pop(sm, 0);
    cr_assert_eq(pick(sm, l, 0), 0); /* one of two occurrences is left */
    node_sampler_pop(sm, 0);
    node_sampler_pop(sm, 1);
    float negative[4] = {-4, -1, -1, -1.5f};
    node_sampler_push(sm, 1);
    cr_assert_eq(pick(sm, negative, 0), 2); /* -1 x 2 */
    node_sampler_destroy(sm);

    node_sampling_default(&s);
    s.presence_penalty = 0.75;
    s.frequency_penalty = 0.5;
    sm = make(&s, 4);
    float m[4] = {2, 1, 0.5f, -9};
    node_sampler_push(sm, 0); /* 2 - 0.75 - 0.5 = 0.75 */
    cr_assert_eq(pick(sm, m, 0), 1);
    node_sampler_push(sm, 1); /* -0.25 */
    cr_assert_eq(pick(sm, m, 0), 0);
    node_sampler_push(sm, 0); /* 0.25 */
    cr_assert_eq(pick(sm, m, 0), 2);
    node_sampler_destroy(sm);
}

Test(sample, options_are_set_by_name_and_unknown_ones_refused_by_name)
{
    node_sampling_t s;
    vc_err_t err;
    node_sampling_default(&s);
    cr_assert_eq(node_sampling_set(&s, "temperature", "0.5", &err), VC_OK);
    cr_assert_eq(node_sampling_set(&s, "top_p", "0.9", &err), VC_OK);
    cr_assert_eq(node_sampling_set(&s, "top-k", "40", &err), VC_OK);
    cr_assert_eq(node_sampling_set(&s, "min-p", "0.05", &err), VC_OK);
    cr_assert_eq(node_sampling_set(&s, "repeat-penalty", "1.1", &err), VC_OK);
    cr_assert_eq(node_sampling_set(&s, "presence_penalty", "-1", &err), VC_OK);
    cr_assert_eq(node_sampling_set(&s, "frequency-penalty", "2", &err), VC_OK);
    cr_assert_eq(node_sampling_set(&s, "seed", "18446744073709551615", &err), VC_OK);
    cr_assert(s.temperature == 0.5 && s.top_p == 0.9 && s.top_k == 40 && s.min_p == 0.05 && s.repeat_penalty == 1.1 &&
              s.presence_penalty == -1 && s.frequency_penalty == 2 && s.seed == UINT64_MAX);
    cr_assert_eq(node_sampling_check(&s, &err), VC_OK);
    cr_assert_eq(node_sampling_set(&s, "mirostat", "2", &err), VC_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(err.msg, "mirostat"));
    cr_assert_eq(node_sampling_set(&s, "top", "2", &err), VC_ERR_UNSUPPORTED);
    cr_assert_eq(node_sampling_set(&s, "temperature", "warm", &err), VC_ERR_INVALID);
    cr_assert_eq(node_sampling_set(&s, "temperature", "nan", &err), VC_ERR_INVALID);
    cr_assert_eq(node_sampling_set(&s, "temperature", "", &err), VC_ERR_INVALID);
    cr_assert_eq(node_sampling_set(&s, "top-k", "-1", &err), VC_ERR_INVALID);
    cr_assert_eq(node_sampling_set(&s, "top-k", "4294967296", &err), VC_ERR_RANGE);
    cr_assert_eq(node_sampling_set(&s, "seed", "18446744073709551616", &err), VC_ERR_RANGE);
}

Test(sample, values_out_of_bounds_are_refused_by_name)
{
    const struct {
        const char *name, *value;
    } bad[] = {{"temperature", "-1"},
               {"temperature", "1e-9"},
               {"temperature", "101"},
               {"top-p", "0"},
               {"top-p", "1.01"},
               {"min-p", "-0.1"},
               {"min-p", "2"},
               {"repeat-penalty", "0"},
               {"presence-penalty", "1000"},
               {"frequency-penalty", "-1000"}};
    for (size_t i = 0; i < VC_ARRAY_LEN(bad); i++) {
        node_sampling_t s;
        vc_err_t err = {0};
        node_sampler_t *sm = NULL;
        node_sampling_default(&s);
        cr_assert_eq(node_sampling_set(&s, bad[i].name, bad[i].value, &err), VC_OK);
        cr_assert_eq(node_sampler_create(&s, 10, &sm, &err), VC_ERR_RANGE, "%s %s", bad[i].name, bad[i].value);
        cr_assert_not_null(strstr(err.msg, bad[i].name));
        cr_assert_null(sm);
    }
}
