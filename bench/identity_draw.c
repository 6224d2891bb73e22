/*
 * Requests and ways to run them, at random: a function of (seed, request, run), so that one that failed can be drawn
 * again. Lengths near the edges of tiles, splits and contexts come more often than chance would have them.
 */
#include <math.h>
#include <string.h>

#include "identity_parts.h"

/* ---- random numbers ---- */

uint64_t identity_next(identity_rng_t *r)
{
    uint64_t x = r->state += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

identity_rng_t identity_rng(uint64_t seed, uint64_t request, uint64_t purpose)
{
    identity_rng_t r = {seed};
    r.state = identity_next(&r) + request;
    r.state = identity_next(&r) + purpose;
    return r;
}

uint32_t identity_below(identity_rng_t *r, uint32_t n) { return (uint32_t)((identity_next(r) >> 32) * n >> 32); }
bool identity_chance(identity_rng_t *r, uint32_t of_1000) { return identity_below(r, 1000) < of_1000; }
double identity_unit(identity_rng_t *r) { return (double)(identity_next(r) >> 11) * 0x1p-53; }

uint32_t identity_log(identity_rng_t *r, uint32_t low, uint32_t high)
{
    double x = (double)low * pow(((double)high + 1) / (double)low, identity_unit(r));
    return VC_MIN((uint32_t)x, high);
}

#define PICK(r, list) ((list)[identity_below((r), (uint32_t)VC_ARRAY_LEN(list))])

/* ---- the request ---- */

static uint32_t near_a_multiple(identity_rng_t *r, uint32_t of, uint32_t most)
{
    return of * (1 + identity_below(r, most / of)) + identity_below(r, 3) - 1;
}

static uint32_t draw_length(identity_rng_t *r)
{
    /* Many short ones show more than few long ones, so one prompt in eight is long. */
    uint32_t most = !identity_chance(r, 125) ? 700 : IDENTITY_CONTEXT - 200, n;
    switch (identity_below(r, 8)) {
    case 0: n = near_a_multiple(r, NODE_TILE, most); break;
    case 1: n = near_a_multiple(r, NODE_TILE * NODE_SPLIT_TILES, most); break;
    case 2: n = 1 + identity_below(r, 8); break;
    case 3: n = most - identity_below(r, most / 4); break;
    default: n = identity_log(r, 24, most);
    }
    return VC_MIN(n, most);
}

static void draw_prompt(const identity_model_t *m, identity_rng_t *r, identity_request_t *q)
{
    uint32_t n_vocab = m->info.n_vocab, word[5], period = 1 + identity_below(r, 5);
    q->n_prompt = draw_length(r);
    for (uint32_t i = 0; i < period; i++)
        word[i] = identity_below(r, n_vocab);
    switch (identity_below(r, 5)) {
    case 0:
        q->source = "random tokens";
        for (uint32_t i = 0; i < q->n_prompt; i++)
            q->prompt[i] = identity_below(r, n_vocab);
        break;
    case 1:
        q->source = "one word again and again";
        for (uint32_t i = 0; i < q->n_prompt; i++)
            q->prompt[i] = word[i % period];
        break;
    default: q->source = "text"; identity_text(m, r, q->prompt, q->n_prompt);
    }
}

static void draw_sampling(identity_rng_t *r, node_sampling_t *s)
{
    static const double temperatures[] = {0, 0, 0.2, 0.7, 1, 2}, top_ps[] = {1, 1, 0.95, 0.5},
                        min_ps[] = {0, 0, 0.05, 0.3}, repeats[] = {1, 1, 1.1, 1.5}, extras[] = {0, 0, 0.3, 1, -0.2};
    static const uint32_t top_ks[] = {0, 0, 1, 5, 40};
    node_sampling_default(s);
    s->temperature = PICK(r, temperatures);
    if (identity_chance(r, 600)) {
        s->top_p = PICK(r, top_ps);
        s->min_p = PICK(r, min_ps);
        s->top_k = PICK(r, top_ks);
    }
    if (identity_chance(r, 500)) {
        s->repeat_penalty = PICK(r, repeats);
        s->presence_penalty = PICK(r, extras);
        s->frequency_penalty = PICK(r, extras);
    }
    s->seed = identity_next(r);
}

static void draw_ends(const identity_model_t *m, identity_rng_t *r, identity_request_t *q)
{
    static const char *const stops[] = {"the", ". ", "\n\n", "e", "a ", ",", "ing", " of", "x", "qu", "\n", "er t"};
    uint32_t kind = identity_below(r, 4);
    q->n_ends = kind == 1 ? 1 : kind == 2 ? IDENTITY_ENDS : 0;
    for (uint32_t i = 0; i < q->n_ends; i++)
        q->ends[i] = identity_below(r, VC_MIN(m->info.n_vocab, 400u)); /* low ids are letters and endings */
    q->n_stops = identity_chance(r, 400) ? 1 + identity_below(r, IDENTITY_STOPS) : 0;
    for (uint32_t i = 0; i < q->n_stops; i++)
        q->stops[i] = PICK(r, stops);
    uint32_t most = m->is_file ? 48 : 120;
    q->max_tokens = identity_chance(r, 300) ? identity_log(r, 1, most) : most / 3 + identity_below(r, most * 2 / 3);
    q->context = identity_chance(r, 250) ? q->n_prompt + 1 + identity_below(r, 60) : 0;
}

void identity_draw_request(identity_model_t *m, uint64_t seed, uint32_t index, identity_request_t *q)
{
    identity_rng_t r = identity_rng(seed, index, 1);
    memset(q, 0, sizeof *q);
    q->seed = seed;
    q->index = index;
    q->of_file = m->is_file;
    draw_prompt(m, &r, q);
    draw_sampling(&r, &q->sampling);
    draw_ends(m, &r, q);
}

/* ---- the run ---- */

/* Every method, and droppers whose kept rows are coded. head: of at least that size. */
static const struct {
    const char *text;
    uint32_t head;
} specs[] = {
    {"none", 16},
    {"none+rot:bits=8,group=16", 16},
    {"noise:eps=0.3,seed=5", 16},
    {"noise:eps=1", 16},
    {"snapkv:keep=0.5,window=32", 16},
    {"snapkv:keep=0.125,window=64,pool=max", 16},
    {"snapkv:keep=0.5,window=32+rot:bits=2,group=16", 16},
    {"expected_attention:keep=0.25", 16},
    {"expected_attention:keep=0.5,budget=layer,stats=offline", 16},
    {"expected_attention:keep=0.5+rot:bits=4,group=32", 32},
    {"kvzip:keep=0.25", 16},
    {"kvzip:keep=0.5,plus=no,budget=head", 16},
    {"kvzip:keep=0.5+rot:bits=4,group=16", 16},
    {"kvzap:keep=0.25", 16},
    {"kvzap:tau=-3", 16},
    {"kvzap:keep=0.5+rot:bits=3,group=32", 32},
    {"kivi:bits=2,group=16,residual=64", 16},
    {"kivi:bits=4,group=32,residual=128", 32},
    {"kivi:bits=8,group=16,residual=0", 16},
    {"kvquant:bits=2,levels=nf", 16},
    {"kvquant:bits=4", 16},
    {"rotatekv:bits=2,group=16", 16},
    {"rotatekv:bits=4,group=64,sinks=0", 64},
    {"rot:bits=2,group=16", 16},
    {"rot:bits=3,group=32,fit=range", 32},
    {"rot:bits=4,group=16,residual=0,center=no", 16},
    {"rot:bits=4", 64},
    {"rot:bits=8,group=16", 16},
};

static const char *draw_spec(const identity_model_t *m, identity_rng_t *r)
{
    uint32_t i;
    do
        i = identity_below(r, (uint32_t)VC_ARRAY_LEN(specs));
    while (specs[i].head > m->info.head_dim);
    return specs[i].text;
}

static void draw_drafts(const identity_model_t *m, const identity_request_t *q, identity_rng_t *r, identity_run_t *v)
{
    static const uint32_t rights[] = {0, 500, 900, 980, 1000};
    uint32_t n_blocks = q->n_prompt / NODE_TILE;
    v->x = identity_chance(r, 100) ? 0 : identity_chance(r, 200) ? NODE_DRAFT_AUTO : identity_log(r, 1, 64);
    v->drafts = identity_chance(r, 250) ? IDENTITY_GUESSES : IDENTITY_DRAFTER;
    v->right = PICK(r, rights);
    v->spec = n_blocks && v->drafts == IDENTITY_DRAFTER && identity_chance(r, 920) ? draw_spec(m, r) : NULL;
    v->body_blocks = n_blocks;
    if (n_blocks && identity_chance(r, 300))
        v->body_blocks = 1 + identity_below(r, n_blocks);
    if (v->drafts == IDENTITY_GUESSES && (v->x == NODE_DRAFT_AUTO || v->x == 0))
        v->x = 64;
    v->source = (identity_source_t)identity_below(r, IDENTITY_N_SOURCES);
    v->costs = identity_chance(r, 300);
    v->n_common = identity_chance(r, 500) ? 0 : identity_log(r, 1, m->info.n_vocab / 4);
}

static node_isa_t draw_isa(const identity_model_t *m, const identity_request_t *q, identity_rng_t *r)
{
    node_isa_t isa = (node_isa_t)(NODE_ISA_SCALAR + identity_below(r, NODE_ISA_AVX512));
    /* Plain code is slow: only where it takes no more than a second or two. */
    bool small = m->is_file ? q->n_prompt + q->max_tokens <= 24 : q->n_prompt <= 500;
    return node_isa_available(isa) && (isa != NODE_ISA_SCALAR || small) ? isa : NODE_ISA_AUTO;
}

void identity_draw_run(const identity_model_t *m, const identity_request_t *q, uint32_t run, identity_run_t *v)
{
    identity_rng_t r = identity_rng(q->seed, q->index, 100 + run);
    uint32_t n_blocks = q->n_prompt / NODE_TILE;
    memset(v, 0, sizeof *v);
    v->index = run;
    draw_drafts(m, q, &r, v);
    v->threads = 1 + identity_below(&r, 2);
    if (identity_chance(&r, 60) && q->n_prompt <= 400)
        v->threads = IDENTITY_THREADS; /* more than processors, often: they wait for each other for long */
    v->isa = draw_isa(m, q, &r);
    v->cut = identity_chance(&r, 300) ? 0 : identity_log(&r, q->n_prompt > 100 ? 16 : 1, 256);
    if (identity_chance(&r, 500))
        v->hit_blocks = identity_chance(&r, 400) ? n_blocks : identity_below(&r, n_blocks + 1);
    v->n_resume = identity_chance(&r, 120) ? 1 + identity_below(&r, 100) : 0;
    v->tier = identity_chance(&r, 300) ? IDENTITY_IN_RAM : (identity_tier_t)(1 + identity_below(&r, 2));
    if (v->tier != IDENTITY_IN_RAM && identity_chance(&r, 700))
        v->cut = 16 + identity_below(&r, 49); /* narrow passes need little memory: more is in the file */
    v->slow_part = identity_chance(&r, 400) ? 0 : identity_unit(&r);
    v->hold_part = identity_chance(&r, 400) ? 0 : identity_unit(&r);
    v->slow_threads = identity_chance(&r, 300);
    v->delay_seed = identity_chance(&r, 600) ? 1 + identity_below(&r, 1u << 30) : 0;
    if (m->info.n_layer < 3 || q->n_prompt < 5 * NODE_TILE)
        v->tier = IDENTITY_IN_RAM;
}
