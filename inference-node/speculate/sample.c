/*
 * The sampling rule. Everything is double arithmetic in a fixed order with our own log and exp, so two machines that
 * have the same logits choose the same token. Owner thread: the sampler's user.
 *
 * Noise costs two logarithms; a bound from the leading bits of u rules nearly every token out before that (see
 * noise_bound). The bound is never below the value, so pruning cannot change the choice.
 */
#include "speculate/sample.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/numerics.h"
#include "vc/mem.h"

#define GOLDEN 0x9e3779b97f4a7c15u /* 2^64 over the golden ratio: the step of SplitMix64 */
#define U_BITS 52                  /* u = (k + 1/2) / 2^52 is exact in double and never 0 or 1 */

struct node_sampler {
    node_sampling_t opt;
    uint32_t n_vocab;
    bool penalties;
    double min_p_log;
    uint32_t *count; /* [n_vocab] occurrences before the row */
    uint32_t *seen;  /* distinct ids that were ever pushed, in order */
    uint8_t *listed; /* [n_vocab] id is in seen */
    uint32_t n_seen;
    double *score;  /* [n_vocab] scratch: logit after penalties, over T */
    uint32_t *heap; /* [n_vocab] scratch: ids, best on top */
    uint32_t *kept; /* [n_vocab] scratch: survivors of the filters */
};

void node_sampling_default(node_sampling_t *s)
{
    *s = (node_sampling_t){.temperature = 0, .top_p = 1, .repeat_penalty = 1};
}

static vc_status_t check_bounds(const char *name, double v, double lo, double hi, vc_err_t *err)
{
    if (v >= lo && v <= hi)
        return VC_OK;
    return vc_err_set(err, VC_ERR_RANGE, "%s %g is outside [%g, %g]", name, v, lo, hi);
}

vc_status_t node_sampling_check(const node_sampling_t *s, vc_err_t *err)
{
    vc_status_t st = VC_OK;
    if (s->temperature != 0) /* a tiny temperature would overflow what it divides; 0 is the exact limit */
        st = check_bounds("temperature", s->temperature, 1e-3, 100, err);
    if (st == VC_OK && !(s->top_p >= DBL_MIN && s->top_p <= 1))
        st = vc_err_set(err, VC_ERR_RANGE, "top-p %g is not above 0, up to 1", s->top_p);
    if (st == VC_OK)
        st = check_bounds("min-p", s->min_p, 0, 1, err);
    if (st == VC_OK)
        st = check_bounds("repeat-penalty", s->repeat_penalty, 0.01, 100, err);
    if (st == VC_OK)
        st = check_bounds("presence-penalty", s->presence_penalty, -100, 100, err);
    if (st == VC_OK)
        st = check_bounds("frequency-penalty", s->frequency_penalty, -100, 100, err);
    return st;
}

static bool same_name(const char *given, const char *name)
{
    for (; *given && *name; given++, name++)
        if (*given != *name && !(*given == '_' && *name == '-'))
            return false;
    return *given == *name;
}

static vc_status_t parse_u64(const char *name, const char *text, uint64_t max, uint64_t *v_p, vc_err_t *err)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end)
        return vc_err_set(err, VC_ERR_INVALID, "%s: '%s' is no whole number", name, text);
    if (errno || v > max)
        return vc_err_set(err, VC_ERR_RANGE, "%s: %s is more than %llu", name, text, (unsigned long long)max);
    *v_p = v;
    return VC_OK;
}

vc_status_t node_sampling_set(node_sampling_t *s, const char *name, const char *value, vc_err_t *err)
{
    const struct {
        const char *name;
        double *v;
    } reals[] = {
        {"temperature", &s->temperature},
        {"top-p", &s->top_p},
        {"min-p", &s->min_p},
        {"repeat-penalty", &s->repeat_penalty},
        {"presence-penalty", &s->presence_penalty},
        {"frequency-penalty", &s->frequency_penalty},
    };
    uint64_t n;
    if (same_name(name, "seed"))
        return parse_u64("seed", value, UINT64_MAX, &s->seed, err);
    if (same_name(name, "top-k")) {
        vc_status_t st = parse_u64("top-k", value, UINT32_MAX, &n, err);
        if (st == VC_OK)
            s->top_k = (uint32_t)n;
        return st;
    }
    for (size_t i = 0; i < VC_ARRAY_LEN(reals); i++) {
        if (!same_name(name, reals[i].name))
            continue;
        char *end;
        double v = strtod(value, &end);
        if (end == value || *end || !isfinite(v))
            return vc_err_set(err, VC_ERR_INVALID, "%s: '%s' is no number", reals[i].name, value);
        *reals[i].v = v;
        return VC_OK;
    }
    return vc_err_set(err, VC_ERR_UNSUPPORTED, "sampling option '%s' is not supported", name);
}

vc_status_t node_sampler_create(const node_sampling_t *s, uint32_t n_vocab, node_sampler_t **sampler_p, vc_err_t *err)
{
    vc_status_t st = node_sampling_check(s, err);
    if (st != VC_OK)
        return st;
    if (!n_vocab)
        return vc_err_set(err, VC_ERR_INVALID, "sampler: empty vocabulary");
    node_sampler_t *sm = vc_calloc(1, sizeof *sm);
    if (!sm)
        return vc_err_set(err, VC_ERR_NOMEM, "sampler: out of memory");
    sm->opt = *s;
    sm->n_vocab = n_vocab;
    sm->penalties = s->repeat_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0;
    sm->min_p_log = s->min_p > 0 ? node_log_f64(s->min_p) : -HUGE_VAL;
    sm->count = vc_calloc(n_vocab, sizeof *sm->count);
    sm->seen = vc_calloc(n_vocab, sizeof *sm->seen);
    sm->listed = vc_calloc(n_vocab, sizeof *sm->listed);
    sm->score = vc_calloc(n_vocab, sizeof *sm->score);
    sm->heap = vc_calloc(n_vocab, sizeof *sm->heap);
    sm->kept = vc_calloc(n_vocab, sizeof *sm->kept);
    if (!sm->count || !sm->seen || !sm->listed || !sm->score || !sm->heap || !sm->kept) {
        node_sampler_destroy(sm);
        return vc_err_set(err, VC_ERR_NOMEM, "sampler: out of memory");
    }
    *sampler_p = sm;
    return VC_OK;
}

void node_sampler_destroy(node_sampler_t *sm)
{
    if (!sm)
        return;
    vc_free(sm->count);
    vc_free(sm->seen);
    vc_free(sm->listed);
    vc_free(sm->score);
    vc_free(sm->heap);
    vc_free(sm->kept);
    vc_free(sm);
}

void node_sampler_push(node_sampler_t *sm, uint32_t token)
{
    sm->count[token]++;
    if (!sm->listed[token]) {
        sm->listed[token] = 1;
        sm->seen[sm->n_seen++] = token;
    }
}

void node_sampler_pop(node_sampler_t *sm, uint32_t token)
{
    if (sm->count[token])
        sm->count[token]--;
}

static uint64_t mix(uint64_t z) /* the finaliser of SplitMix64 */
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t noise_key(uint64_t seed, uint64_t position)
{
    return mix(mix(seed + GOLDEN) + GOLDEN * (position + 1));
}

/* k of u = (k + 1/2) / 2^52 */
static uint64_t noise_bits(uint64_t key, uint32_t token)
{
    return mix(key + GOLDEN * ((uint64_t)token + 1)) >> (64 - U_BITS);
}

static double noise_value(uint64_t k)
{
    double u = ((double)k + 0.5) * 0x1p-52;
    return -node_log_f64(-node_log_f64(u));
}

/* At least noise_value(k): -log u >= 1 - u, and 1 - u >= 2^-n with n from the leading bit. 0.6932 is over ln 2 by more
 * than any rounding in the scores. */
static double noise_bound(uint64_t k)
{
    uint64_t w = (((uint64_t)1 << U_BITS) - 1) - k; /* 1 - u = (w + 1/2) / 2^52 */
    int n = w ? U_BITS - (63 - __builtin_clzll(w)) : U_BITS + 1;
    return n * 0.6932;
}

double node_sample_gumbel(uint64_t seed, uint64_t position, uint32_t token)
{
    return noise_value(noise_bits(noise_key(seed, position), token));
}

/* score[i] = logit after penalties, over T. Refuses what has no order. */
static vc_status_t make_scores(node_sampler_t *sm, const float *logits, vc_err_t *err)
{
    bool any = false;
    for (uint32_t i = 0; i < sm->n_vocab; i++) {
        if (!(logits[i] <= FLT_MAX)) /* NaN or +inf */
            return vc_err_set(err, VC_ERR_INVALID, "logit of token %u is %s", i, isnan(logits[i]) ? "NaN" : "infinite");
        any |= logits[i] >= -FLT_MAX;
        sm->score[i] = logits[i];
    }
    if (!any)
        return vc_err_set(err, VC_ERR_INVALID, "every logit is -infinity");
    for (uint32_t j = 0; sm->penalties && j < sm->n_seen; j++) {
        uint32_t id = sm->seen[j], n = sm->count[id];
        if (!n)
            continue;
        double l = sm->score[id];
        l = l > 0 ? l / sm->opt.repeat_penalty : l * sm->opt.repeat_penalty;
        sm->score[id] = l - sm->opt.presence_penalty - sm->opt.frequency_penalty * (double)n;
    }
    if (sm->opt.temperature > 0)
        for (uint32_t i = 0; i < sm->n_vocab; i++)
            sm->score[i] /= sm->opt.temperature;
    return VC_OK;
}

/* Order of the filters: score descending, id ascending. */
static bool before(const double *score, uint32_t a, uint32_t b)
{
    return score[a] != score[b] ? score[a] > score[b] : a < b;
}

/* Heaps of ids with the first of that order on top, or the last one. */
static bool above(const double *score, bool first_on_top, uint32_t a, uint32_t b)
{
    return first_on_top ? before(score, a, b) : before(score, b, a);
}

static void sift_down(const double *score, bool first_on_top, uint32_t *heap, uint32_t n, uint32_t i)
{
    uint32_t id = heap[i];
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && above(score, first_on_top, heap[child + 1], heap[child]))
            child++;
        if (!above(score, first_on_top, heap[child], id))
            break;
        heap[i] = heap[child];
    }
    heap[i] = id;
}

static void heap_make(const double *score, bool first_on_top, uint32_t *heap, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        heap[i] = i;
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(score, first_on_top, heap, n, i);
}

static uint32_t heap_pop(const double *score, bool first_on_top, uint32_t *heap, uint32_t *n)
{
    uint32_t top = heap[0];
    heap[0] = heap[--*n];
    if (*n)
        sift_down(score, first_on_top, heap, *n, 0);
    return top;
}

/* kept[0..k) = the first k in order, ranked. The heap holds the k best so far, the last of them on top. */
static void take_best(node_sampler_t *sm, uint32_t k)
{
    heap_make(sm->score, false, sm->heap, k);
    for (uint32_t i = k; i < sm->n_vocab; i++)
        if (before(sm->score, i, sm->heap[0])) {
            sm->heap[0] = i;
            sift_down(sm->score, false, sm->heap, k, 0);
        }
    for (uint32_t n = k; n;) {
        uint32_t last = heap_pop(sm->score, false, sm->heap, &n);
        sm->kept[n] = last;
    }
}

static double weight(double score, double best) { return node_exp((float)(score - best)); }

static double best_score(const node_sampler_t *sm)
{
    double best = sm->score[0];
    for (uint32_t i = 1; i < sm->n_vocab; i++)
        best = sm->score[i] > best ? sm->score[i] : best;
    return best;
}

/* Ranked tokens until their mass reaches top_p of the total; of the n in kept (by top-k), or of all when n is 0. The
 * total is summed in rank order after a top-k, else in id order. */
static uint32_t take_mass(node_sampler_t *sm, uint32_t n, double best)
{
    double sum = 0, total = 0;
    uint32_t n_heap = n ? 0 : sm->n_vocab, r = 0;
    for (uint32_t i = 0; i < (n ? n : sm->n_vocab); i++)
        total += weight(sm->score[n ? sm->kept[i] : i], best);
    if (!n)
        heap_make(sm->score, true, sm->heap, n_heap);
    do {
        if (!n)
            sm->kept[r] = heap_pop(sm->score, true, sm->heap, &n_heap);
        sum += weight(sm->score[sm->kept[r++]], best);
    } while (sum < sm->opt.top_p * total && (n ? r < n : n_heap > 0));
    return r;
}

/* kept[0..n) = survivors. */
static uint32_t filter(node_sampler_t *sm)
{
    double best = best_score(sm);
    uint32_t n = 0, m = 0;
    if (sm->opt.top_k && sm->opt.top_k < sm->n_vocab)
        take_best(sm, n = sm->opt.top_k);
    if (sm->opt.top_p < 1)
        n = take_mass(sm, n, best);
    for (uint32_t i = 0; !n && i < sm->n_vocab; i++)
        sm->kept[i] = i;
    n = n ? n : sm->n_vocab;
    for (uint32_t i = 0; i < n; i++)
        if (sm->score[sm->kept[i]] - best >= sm->min_p_log)
            sm->kept[m++] = sm->kept[i];
    return m;
}

typedef struct {
    double best, second;
    uint32_t token;
    bool any;
} winner_t;

static void offer(winner_t *w, double value, uint32_t token)
{
    if (!w->any || value > w->best || (value == w->best && token < w->token)) {
        w->second = w->any ? w->best : -HUGE_VAL;
        w->best = value;
        w->token = token;
        w->any = true;
    } else if (value > w->second) {
        w->second = value;
    }
}

static void finish_pick(const winner_t *w, node_pick_t *pick_p)
{
    pick_p->token = w->token;
    pick_p->margin = w->second == -HUGE_VAL ? HUGE_VAL : w->best - w->second;
}

/* No noise, no penalties: only the order of the logits counts, and no filter can remove the first. */
static vc_status_t pick_greedy(const node_sampler_t *sm, const float *logits, node_pick_t *pick_p, vc_err_t *err)
{
    float best = -HUGE_VALF, second = -HUGE_VALF;
    uint32_t token = 0;
    for (uint32_t i = 0; i < sm->n_vocab; i++) {
        float l = logits[i];
        if (!(l <= FLT_MAX))
            return vc_err_set(err, VC_ERR_INVALID, "logit of token %u is %s", i, isnan(l) ? "NaN" : "infinite");
        if (l > best) {
            second = best;
            best = l;
            token = i;
        } else if (l > second) {
            second = l;
        }
    }
    if (best == -HUGE_VALF)
        return vc_err_set(err, VC_ERR_INVALID, "every logit is -infinity");
    finish_pick(&(winner_t){(double)best, (double)second, token, true}, pick_p);
    return VC_OK;
}

vc_status_t node_sampler_pick(node_sampler_t *sm, const float *logits, uint64_t position, node_pick_t *pick_p,
                              vc_err_t *err)
{
    if (sm->opt.temperature == 0 && !sm->penalties)
        return pick_greedy(sm, logits, pick_p, err);
    vc_status_t st = make_scores(sm, logits, err);
    if (st != VC_OK)
        return st;
    winner_t w = {-HUGE_VAL, -HUGE_VAL, 0, false};
    if (sm->opt.temperature == 0) {
        for (uint32_t i = 0; i < sm->n_vocab; i++)
            offer(&w, sm->score[i], i);
        finish_pick(&w, pick_p);
        return VC_OK;
    }
    uint32_t n = filter(sm);
    uint64_t key = noise_key(sm->opt.seed, position);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = sm->kept[i];
        uint64_t k = noise_bits(key, id);
        if (w.any && sm->score[id] + noise_bound(k) < w.second)
            continue;
        offer(&w, sm->score[id] + noise_value(k), id);
    }
    finish_pick(&w, pick_p);
    return VC_OK;
}
