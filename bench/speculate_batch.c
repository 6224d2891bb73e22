/*
 * Four requests in a batch, one on each kind of text, full KV in memory: batched plain decoding against batched draft
 * and verify. Every run decodes the same tokens of each request from the same KV to the end, so a batch that thins out
 * at its end pays for that. Compressed copies and the prompts' KV are made before; a prompt's last rows and the first
 * token are outside the clock. Runs take turns; all texts are compared token by token.
 *   --batch-compressor SPEC (default rot:bits=4)
 */
#include <stdio.h>
#include <string.h>

#include "batch/batch.h"
#include "speculate_parts.h"
#include "vc/mem.h"

enum { PLAIN, FIXED, AUTOMATIC, N_WAYS, N_MANY = 4 };

typedef struct {
    const spec_bench_t *bench;
    spec_prompt_t prompts[N_MANY];
    node_body_t *bodies[N_MANY];
    spec_tokens_t answers[N_MANY]; /* of the first run */
    uint32_t at[N_MANY];           /* committed in this run */
    uint32_t n_ended;
    bool first;
} many_t;

typedef struct {
    const char *name;
    uint32_t x;
    bench_samples_t ms; /* a token */
    double drafts, verified, tokens;
} way_t;

static void committed(void *arg, void *user, const node_verdict_t *v)
{
    many_t *m = arg;
    uint32_t i = (uint32_t)(uintptr_t)user;
    spec_tokens_t *a = &m->answers[i];
    for (uint32_t t = 0; t < v->n_tokens; t++) {
        if (m->first)
            a->tokens[a->n++] = v->tokens[t];
        else if (m->at[i] >= a->n || a->tokens[m->at[i]] != v->tokens[t])
            bench_fail("%s: token %u differs from that of plain decoding", m->prompts[i].kind, m->at[i]);
        m->at[i]++;
    }
}

static void ended(void *arg, const node_batch_end_t *end)
{
    many_t *m = arg;
    if (end->status != VC_OK)
        bench_fail("%s", end->error);
    m->n_ended++;
}

static node_batch_t *open_batch(many_t *m, uint32_t x)
{
    node_batch_opts_t o;
    node_batch_t *b;
    node_batch_opts_default(&o);
    o.engine = m->bench->node->engine;
    o.max_running = N_MANY;
    o.draft_length = x;
    o.prompt_rows = NODE_TILE;
    o.committed = committed;
    o.ended = ended;
    o.arg = m;
    OK(node_batch_create(&o, &b, &speculate_err));
    for (uint32_t i = 0; i < N_MANY; i++) {
        const spec_prompt_t *p = &m->prompts[i];
        node_batch_request_t q = {.prompt = p->tokens,
                                  .n_prompt = p->n,
                                  .pages = p->pages,
                                  .n_pages = p->n_pages,
                                  .body = m->bodies[i],
                                  .user = (void *)(uintptr_t)i};
        node_verifier_opts_default(&q.verifier);
        q.verifier.sampling = m->bench->sampling;
        q.verifier.max_tokens = m->bench->n_new;
        q.verifier.digest = false;
        OK(node_batch_add(b, &q, NULL, &speculate_err));
    }
    return b;
}

static void run(many_t *m, way_t *w)
{
    node_batch_t *b = open_batch(m, w->x);
    node_batch_info_t a, z;
    bool busy = true;
    memset(m->at, 0, sizeof m->at);
    m->n_ended = 0;
    do {
        OK(node_batch_step(b, &busy, &speculate_err));
        node_batch_info(b, &a);
    } while (busy && a.n_running < N_MANY); /* a very short answer may end before the last one begins */
    double t0 = bench_now_s();
    while (busy)
        OK(node_batch_step(b, &busy, &speculate_err));
    double ms = (bench_now_s() - t0) * 1e3;
    node_batch_info(b, &z);
    double tokens = (double)(z.n_committed - a.n_committed);
    if (m->n_ended != N_MANY || tokens <= 0)
        bench_fail("only %u of %u requests came to their end", m->n_ended, N_MANY);
    bench_add(&w->ms, ms / tokens);
    w->tokens += tokens;
    w->verified += (double)(z.n_verified - a.n_verified);
    w->drafts += (double)(z.draft_rows - a.draft_rows);
    m->first = false;
    node_batch_destroy(b);
}

static void load(many_t *m, uint32_t n_tokens, const char *spec)
{
    for (uint32_t i = 0; i < N_MANY; i++) {
        spec_prompt_load(m->bench, &m->prompts[i], m->bench->kinds[i % m->bench->n_kinds], n_tokens);
        m->bodies[i] = spec_compress(m->bench, &m->prompts[i], spec);
        m->answers[i] = (spec_tokens_t){.tokens = vc_calloc(m->bench->n_new, sizeof(uint32_t))};
        if (m->answers[i].tokens == NULL)
            bench_fail("no memory for answers");
    }
}

void spec_batch(const spec_bench_t *bench, uint32_t n_tokens, const char *label)
{
    many_t m = {.bench = bench, .first = true};
    way_t ways[N_WAYS] = {
        {.name = "plain"}, {.name = "8 drafts", .x = SPEC_FIXED}, {.name = "automatic", .x = NODE_DRAFT_AUTO}};
    char name[100];
    load(&m, n_tokens, bench_option("batch-compressor", "rot:bits=4"));
    for (uint32_t r = 0; r < bench->reps; r++)
        for (int w = 0; w < N_WAYS; w++)
            run(&m, &ways[w]);
    double plain = bench_median(&ways[PLAIN].ms);
    for (int w = 0; w < N_WAYS; w++) {
        snprintf(name, sizeof name, "%s, batch of %u, %s: a token", label, N_MANY, ways[w].name);
        bench_row(name, "ms", &ways[w].ms);
        bench_note("%s: %.2f drafts and %.2f tokens a verification, %.3f times plain decoding", name,
                   ways[w].drafts / ways[w].verified, ways[w].tokens / ways[w].verified,
                   plain / bench_median(&ways[w].ms));
    }
    snprintf(name, sizeof name, "speculate_gain_%s_b4", label);
    bench_figure(name, plain / bench_median(&ways[AUTOMATIC].ms));
    for (uint32_t i = 0; i < N_MANY; i++) {
        node_body_put(m.bodies[i]);
        spec_prompt_free(&m.prompts[i]);
        vc_free(m.answers[i].tokens);
    }
    for (int w = 0; w < N_WAYS; w++)
        bench_samples_free(&ways[w].ms);
}
