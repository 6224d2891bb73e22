/*
 * Per n an open-addressed table says where each n-gram stands last. An n-gram is named by the position behind it, its
 * key is a rolling hash over the prefix sums of the text, and prev[position] is the place before: the match of the
 * newest position is there at no cost, and setting back puts the former place into the table again. Only the newest
 * position is ever taken out, which leaves a table with linear probing as it was before that position came.
 * Equal hashes are proved by comparing tokens. Owner thread: the request's.
 */
#include "speculate/suffix.h"

#include <string.h>

#include "vc/mem.h"

#define N_LEVELS 5u
#define CAP_MIN 256u
#define MATCH_MAX 32u
#define BASE 0x9e3779b97f4a7c15u /* odd, so that powers of it never vanish */
#define KEEP 0.98                /* of a bin's history per observation */
#define PRIOR_WEIGHT 4.0

static const uint32_t level_n[N_LEVELS] = {16, 8, 5, 3, 2};
static const uint32_t bin_end[NODE_SUFFIX_BINS - 1] = {3, 4, 5, 7, 10, 16, 32};
/* What a text that is neither a loop nor a surprise does. */
static const double prior[NODE_SUFFIX_BINS] = {0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9};

typedef struct {
    uint64_t power;  /* BASE to the n */
    uint32_t *slots; /* [n_slots] position behind the n-gram, 0: empty */
    uint32_t *prev;  /* [cap + 1] by position: where the same n-gram stands before, 0: nowhere */
} level_t;

typedef struct {
    node_source_t base;
    node_suffix_opts_t opt;
    uint32_t n, cap, n_slots; /* n_slots: power of two, at least 2 * cap */
    uint32_t *tokens;         /* [cap] */
    uint64_t *sums;           /* [cap + 1] hash of the first i tokens */
    level_t level[N_LEVELS];
    double right[NODE_SUFFIX_BINS], seen[NODE_SUFFIX_BINS];
} suffix_t;

void node_suffix_opts_default(node_suffix_opts_t *opts)
{
    *opts = (node_suffix_opts_t){.max_tokens = 1u << 20, .min_match = 2};
}

static uint64_t mix(uint64_t z) /* the finaliser of SplitMix64 */
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t key_of(const suffix_t *s, uint32_t lv, uint32_t pos)
{
    return mix(s->sums[pos] - s->sums[pos - level_n[lv]] * s->level[lv].power);
}

/* The slot of the n-gram before pos: where it stands already, or the empty one where it belongs. */
static uint32_t *find(const suffix_t *s, uint32_t lv, uint32_t pos)
{
    uint64_t key = key_of(s, lv, pos);
    uint32_t mask = s->n_slots - 1, i = (uint32_t)key & mask;
    while (s->level[lv].slots[i] && key_of(s, lv, s->level[lv].slots[i]) != key)
        i = (i + 1) & mask;
    return &s->level[lv].slots[i];
}

static void insert(suffix_t *s, uint32_t pos)
{
    for (uint32_t lv = 0; lv < N_LEVELS; lv++) {
        s->level[lv].prev[pos] = 0;
        if (pos < level_n[lv])
            continue;
        uint32_t *slot = find(s, lv, pos);
        s->level[lv].prev[pos] = *slot;
        *slot = pos;
    }
}

/* p in a new size, or p as it is and *ok_p false. */
static void *regrow(void *p, size_t n, size_t size, bool *ok_p)
{
    void *q = vc_realloc(p, n, size);
    *ok_p &= q != NULL;
    return q != NULL ? q : p;
}

/* Room for one more token. */
static vc_status_t grow(suffix_t *s)
{
    if (s->n < s->cap)
        return VC_OK;
    if (s->n >= s->opt.max_tokens)
        return VC_ERR_RANGE;
    uint32_t cap = s->cap > s->opt.max_tokens / 2 ? s->opt.max_tokens : VC_MAX(2 * s->cap, CAP_MIN);
    cap = VC_MIN(cap, s->opt.max_tokens);
    uint32_t n_slots = 2 * CAP_MIN, *slots[N_LEVELS] = {0};
    while (n_slots < 2 * cap)
        n_slots *= 2;
    bool ok = true;
    s->tokens = regrow(s->tokens, cap, sizeof *s->tokens, &ok);
    s->sums = regrow(s->sums, (size_t)cap + 1, sizeof *s->sums, &ok);
    for (uint32_t lv = 0; lv < N_LEVELS; lv++) {
        s->level[lv].prev = regrow(s->level[lv].prev, (size_t)cap + 1, sizeof *s->level[lv].prev, &ok);
        slots[lv] = vc_calloc(n_slots, sizeof *slots[lv]);
        ok = ok && slots[lv] != NULL;
    }
    for (uint32_t lv = 0; lv < N_LEVELS; lv++) {
        vc_free(ok ? s->level[lv].slots : slots[lv]);
        if (ok)
            s->level[lv].slots = slots[lv];
    }
    if (!ok)
        return VC_ERR_NOMEM;
    s->cap = cap;
    s->n_slots = n_slots;
    s->sums[0] = 0;
    for (uint32_t pos = 1; pos <= s->n; pos++)
        insert(s, pos);
    return VC_OK;
}

/* Where the text went on as it did at the end: the position behind the match, 0: nowhere. */
static uint32_t match(const suffix_t *s, uint32_t *length_p)
{
    *length_p = 0;
    for (uint32_t lv = 0; s->n && lv < N_LEVELS && level_n[lv] >= s->opt.min_match; lv++) {
        uint32_t at = s->level[lv].prev[s->n], length = 0;
        if (!at)
            continue;
        while (length < VC_MIN(at, MATCH_MAX) && s->tokens[at - 1 - length] == s->tokens[s->n - 1 - length])
            length++;
        if (length < level_n[lv]) /* two n-grams with one hash */
            continue;
        *length_p = length;
        return at;
    }
    return 0;
}

static uint32_t bin_of(uint32_t length)
{
    uint32_t i = 0;
    while (i < NODE_SUFFIX_BINS - 1 && length >= bin_end[i])
        i++;
    return i;
}

static vc_status_t push(node_source_t *base, const uint32_t *tokens, uint32_t n, const float *rows)
{
    suffix_t *s = (suffix_t *)base;
    (void)rows;
    for (uint32_t i = 0; i < n; i++) {
        vc_status_t st = grow(s);
        if (st != VC_OK)
            return st;
        uint32_t length, at = match(s, &length);
        if (at) {
            uint32_t b = bin_of(length);
            s->seen[b] = s->seen[b] * KEEP + 1;
            s->right[b] = s->right[b] * KEEP + (s->tokens[at] == tokens[i]);
        }
        s->tokens[s->n] = tokens[i];
        s->sums[s->n + 1] = s->sums[s->n] * BASE + mix(tokens[i] + BASE);
        insert(s, ++s->n);
    }
    return VC_OK;
}

static void truncate_to(node_source_t *base, uint32_t n_tokens)
{
    suffix_t *s = (suffix_t *)base;
    for (; s->n > n_tokens; s->n--)
        for (uint32_t lv = 0; lv < N_LEVELS; lv++)
            if (s->n >= level_n[lv])
                *find(s, lv, s->n) = s->level[lv].prev[s->n];
}

static uint32_t propose(node_source_t *base, uint32_t k, node_proposal_t *out)
{
    const suffix_t *s = (const suffix_t *)base;
    uint32_t length, at = match(s, &length);
    for (uint32_t j = 0; at && j < k; j++) {
        uint32_t from = at + j;
        out[j].token = from < s->n ? s->tokens[from] : out[from - s->n].token;
        out[j].chance = node_suffix_chance(base, length + j);
    }
    return at ? k : 0;
}

static void destroy(node_source_t *base)
{
    suffix_t *s = (suffix_t *)base;
    for (uint32_t lv = 0; lv < N_LEVELS; lv++) {
        vc_free(s->level[lv].slots);
        vc_free(s->level[lv].prev);
    }
    vc_free(s->tokens);
    vc_free(s->sums);
    vc_free(s);
}

vc_status_t node_suffix_create(const node_suffix_opts_t *opts, node_source_t **s_p, vc_err_t *err)
{
    static const node_source_ops_t ops = {
        .name = "suffix", .push = push, .truncate = truncate_to, .propose = propose, .destroy = destroy};
    if (opts->min_match < 2 || opts->min_match > level_n[0] || !opts->max_tokens || opts->max_tokens > 1u << 30)
        return vc_err_set(err, VC_ERR_RANGE, "suffix source: matches from %u tokens, texts up to %u", opts->min_match,
                          opts->max_tokens);
    suffix_t *s = vc_calloc(1, sizeof *s);
    if (!s)
        return vc_err_set(err, VC_ERR_NOMEM, "suffix source: out of memory");
    s->base.ops = &ops;
    s->opt = *opts;
    for (uint32_t lv = 0; lv < N_LEVELS; lv++) {
        s->level[lv].power = 1;
        for (uint32_t i = 0; i < level_n[lv]; i++)
            s->level[lv].power *= BASE;
    }
    for (uint32_t b = 0; b < NODE_SUFFIX_BINS; b++) {
        s->seen[b] = PRIOR_WEIGHT;
        s->right[b] = PRIOR_WEIGHT * prior[b];
    }
    *s_p = &s->base;
    return VC_OK;
}

uint32_t node_suffix_match(const node_source_t *base)
{
    uint32_t length;
    match((const suffix_t *)base, &length);
    return length;
}

double node_suffix_chance(const node_source_t *base, uint32_t length)
{
    const suffix_t *s = (const suffix_t *)base;
    uint32_t b = bin_of(length);
    return s->right[b] / s->seen[b];
}

uint64_t node_suffix_bytes(const node_source_t *base)
{
    const suffix_t *s = (const suffix_t *)base;
    uint64_t per_level = (uint64_t)s->n_slots * sizeof(uint32_t) + ((uint64_t)s->cap + 1) * sizeof(uint32_t);
    return sizeof *s + s->cap * sizeof *s->tokens + ((uint64_t)s->cap + 1) * sizeof *s->sums + N_LEVELS * per_level;
}
