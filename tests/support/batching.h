/*
 * Batches of a small or real model for tests: requests with what each gives alone by plain decoding, and one function
 * that runs some of them in a batch and compares. Header only, like generation.h. Whatever differs ends the test.
 */
#ifndef SUPPORT_BATCHING_H
#define SUPPORT_BATCHING_H

#include "batch/batch.h"
#include "support/generation.h"

enum { BATCHING_MAX = 8 };

/* Requests 0, 2, ... are greedy, the others sampled. */
typedef struct batching {
    gen_model_t model;
    node_engine_t *engine;
    gen_request_t requests[BATCHING_MAX];
    gen_result_t base[BATCHING_MAX];
} batching_t;

/* What a batch is run with. */
typedef struct batching_run {
    const batching_t *f;
    const char *spec;         /* compressor; NULL: no copy */
    const char *const *specs; /* one for each request instead */
    uint32_t n, x, max_running, prompt_rows;
    bool lock_step, source;
    const char *dir;  /* of the slow tier; NULL: full KV in memory */
    uint32_t n_pages; /* blocks of each request in memory */
    uint64_t delay_seed;
    const vc_clock_t *clock; /* NULL: the system's */
    uint32_t window;         /* 0: 32 */
    uint64_t seed;           /* of arrivals and cancellations; 0: all come at once, none is cancelled */
    bool no_cancels;         /* arrivals only */
    void (*before_step)(struct batching_run *r, uint32_t k); /* may be NULL */
    uint32_t max_steps;                                      /* iterations at most; 0: 5,000 */
    bool damage;                                             /* requests may end as damaged */
    /* what came out */
    uint64_t ids[BATCHING_MAX];
    uint32_t n_compressed, n_ended[BATCHING_MAX], n_cancelled, n_damaged;
    uint64_t n_source_rounds;
    gen_result_t got[BATCHING_MAX];
    node_batch_info_t info;
} batching_run_t;

static uint64_t batching_draw(uint64_t *s, uint64_t n)
{
    *s += 0x9e3779b97f4a7c15u;
    uint64_t z = *s;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
}

/* A few pages are enough for a pass of max_rows, and eight long drafts are not one. */
static void batching_engine(batching_t *f, uint32_t max_rows)
{
    node_engine_opts_t eo;
    node_engine_opts_default(&eo);
    eo.max_rows = max_rows;
    GEN_OK(node_engine_create(f->model.gguf, f->model.tok, &eo, &f->engine, &gen_err));
}

/* What the request gives alone. Prompt and pages stay the caller's. */
__attribute__((unused)) static void batching_request(batching_t *f, uint32_t i, const gen_request_t *request)
{
    f->requests[i] = *request;
    f->requests[i].engine = f->engine;
    f->requests[i].sampling = gen_sampled(i % 2, 20 + i);
    gen_run(&f->requests[i], &f->base[i]);
}

__attribute__((unused)) static void batching_close(batching_t *f)
{
    node_engine_destroy(f->engine);
    gen_model_close(&f->model);
}

/* ---- callbacks ---- */

static const char *batching_spec(const batching_run_t *r, uint32_t i) { return r->specs ? r->specs[i] : r->spec; }

/* Copies are made in the order in which prompts end; the tokens say whose it is. */
static vc_status_t batching_compress(void *arg, const node_kv_t *full, const uint32_t *tokens, uint32_t n_tokens,
                                     node_body_t **body_p, vc_err_t *err)
{
    batching_run_t *r = arg;
    node_spec_t spec;
    *body_p = NULL;
    for (uint32_t i = 0; i < r->n; i++) {
        const gen_request_t *q = &r->f->requests[i];
        if (q->n_prompt != n_tokens || memcmp(q->prompt, tokens, n_tokens * sizeof *tokens) != 0)
            continue;
        if (batching_spec(r, i) == NULL)
            return VC_OK;
        GEN_OK(node_spec_parse(batching_spec(r, i), &spec, &gen_err));
        r->n_compressed++;
        return node_local_body(r->f->engine, &spec, full, tokens, n_tokens / NODE_TILE, body_p, err);
    }
    return vc_err_set(err, VC_ERR_NOT_FOUND, "a prompt that nobody gave");
}

static vc_status_t batching_source(void *arg, node_source_t **source_p, vc_err_t *err)
{
    node_suffix_opts_t o;
    node_suffix_opts_default(&o);
    (void)arg;
    return node_suffix_create(&o, source_p, err);
}

static void batching_ended(void *arg, const node_batch_end_t *end)
{
    batching_run_t *r = arg;
    uint32_t i = (uint32_t)(uintptr_t)end->user;
    cr_assert_eq(end->id, r->ids[i]);
    r->n_ended[i]++;
    r->n_source_rounds += end->n_source_rounds;
    if (end->status == VC_ERR_CANCELLED) {
        r->n_cancelled++;
        return;
    }
    if (r->damage && end->status == VC_ERR_CORRUPT) {
        cr_assert_neq(strstr(end->error, "damaged"), NULL, "%s", end->error);
        r->n_damaged++;
        return;
    }
    cr_assert_eq(end->status, VC_OK, "request %u: %s", i, end->error);
    gen_collect(end->v, &r->got[i]);
    GEN_EQUAL(&r->f->base[i], &r->got[i], "request %u of %u, x %u, %s, %s", i, r->n, r->x,
              batching_spec(r, i) ? batching_spec(r, i) : "full KV", r->lock_step ? "lock-step" : "staggered");
}

/* ---- the run ---- */

static void batching_add(batching_run_t *r, node_batch_t *b, uint32_t i)
{
    const gen_request_t *g = &r->f->requests[i];
    node_batch_request_t q = {.prompt = g->prompt,
                              .n_prompt = g->n_prompt,
                              .pages = g->pages,
                              .n_pages = g->n_pages,
                              .user = (void *)(uintptr_t)i};
    node_verifier_opts_default(&q.verifier);
    q.verifier.sampling = gen_sampling(g);
    q.verifier.max_tokens = g->max_tokens;
    GEN_OK(node_batch_add(b, &q, &r->ids[i], &gen_err));
}

static node_batch_t *batching_create(batching_run_t *r)
{
    node_batch_opts_t o;
    node_batch_t *b;
    node_batch_opts_default(&o);
    o.engine = r->f->engine;
    o.max_running = r->max_running ? r->max_running : BATCHING_MAX;
    o.draft_length = r->x;
    o.prompt_rows = r->prompt_rows ? r->prompt_rows : 32;
    o.lock_step = r->lock_step;
    o.ended = batching_ended;
    o.arg = r;
    o.compress = r->spec || r->specs ? batching_compress : NULL;
    o.source = r->source ? batching_source : NULL;
    o.clock = r->clock ? r->clock : o.clock;
    if (r->dir) {
        node_kv_dims_t d;
        node_engine_kv_dims(r->f->engine, &d);
        o.kv_ram = (uint64_t)o.max_running * r->n_pages * d.n_layer * d.n_kv_head * 2 * NODE_TILE * d.head_dim * 2;
        o.kv_dir = r->dir;
        o.max_tokens = 1024;
        o.window = r->window ? r->window : 32;
        o.link_rate = 1e8 * (double)(1 + r->delay_seed % 5);
        o.delay_seed = r->delay_seed;
    }
    GEN_OK(node_batch_create(&o, &b, &gen_err));
    return b;
}

/* Requests come one by one and some are cancelled at a moment of the generator's choice. */
__attribute__((unused)) static void batching_go(batching_run_t *r)
{
    node_batch_t *b = batching_create(r);
    uint64_t rng = r->seed;
    uint32_t added = 0;
    bool busy = true;
    for (uint32_t k = 0; busy || added < r->n; k++) {
        while (added < r->n && (!r->seed || !busy || batching_draw(&rng, 6) == 0))
            batching_add(r, b, added++);
        if (r->seed && !r->no_cancels && added && batching_draw(&rng, 25) == 0) {
            uint32_t i = (uint32_t)batching_draw(&rng, added);
            vc_status_t expected = r->n_ended[i] ? VC_ERR_NOT_FOUND : VC_OK;
            cr_assert_eq(node_batch_cancel(b, r->ids[i]), expected);
        }
        if (r->before_step)
            r->before_step(r, k);
        GEN_OK(node_batch_step(b, &busy, &gen_err));
        cr_assert_lt(k, r->max_steps ? r->max_steps : 5000, "no end in sight");
    }
    node_batch_info(b, &r->info);
    node_batch_destroy(b);
    for (uint32_t i = 0; i < r->n; i++)
        cr_assert_eq(r->n_ended[i], 1);
}

#endif
