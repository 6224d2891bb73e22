/*
 * Many requests, full KV on disk: what does it gain to spread their verifications over iterations?
 *
 * Two batches of the same requests (a long document that all share as text, each with a question of its own and full KV
 * of its own on disk) run by turns: staggered, and in lock-step, where all draft together and are verified in one pass.
 * Both draft from the same compressed copy, have the same memory for full KV on its way (--hold-percent of one
 * request's) and the same rule for draft lengths. A third batch has its full KV in memory: what the passes cost alone.
 *   link       the bytes of one verification by themselves, through the same buffers
 *   compute    passes of the staggered batch less the time that they stood still for the link
 *   bound      whichever is longer for the same tokens
 * Staggering gains most where link and engine take equally long. Where the device is faster than that, the same batches
 * run again with the link held at that rate (figures *_balanced), which is said. Prefill, compression and writing are
 * outside the clock. At the end all texts are compared token by token.
 * Answers are sampled at temperature 0.8, and then greedy (figures *_greedy): greedy answers of a small model behind
 * 8k tokens fall into a loop, where every draft is right and lock-step makes up for its idle link by longer drafts.
 *   --batch N (default 4), --draft-length N|auto, --temperature T (one of the two only), --hold-percent N (default 50),
 *   --link-rate BYTES/S for the second run, --reps N, --compressor SPEC; figures of another N than 4 end in _bN
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch/batch.h"
#include "kv/slow.h"
#include "schedule_parts.h"
#include "vc/mem.h"

enum { MAX_B = 16, QUESTION = 40, STAGGER = 0, LOCK_STEP = 1, MEMORY = 2, N_WAYS = 3 };

static vc_err_t err;
#define OK(call) BENCH_OK(call, err)

typedef struct {
    uint32_t *tokens, n;
} answer_t;

typedef struct {
    const char *name;
    node_batch_t *b;
    answer_t answers[MAX_B];
    bench_samples_t ms; /* a token */
    /* sums over repetitions */
    double us, tokens, link_bytes, link_busy_us, compute_us, verified, drafts;
} way_t;

static const schedule_load_t *load;
static uint32_t n_requests, n_new, draft_length;
static double temperature;
static double rate_alone; /* bytes/s */

static void committed(void *arg, void *user, const node_verdict_t *v)
{
    way_t *w = arg;
    answer_t *a = &w->answers[(uintptr_t)user];
    for (uint32_t i = 0; i < v->n_tokens && a->n < n_new; i++)
        a->tokens[a->n++] = v->tokens[i];
}

static void ended(void *arg, const node_batch_end_t *end)
{
    if (end->status != VC_OK && end->status != VC_ERR_CANCELLED)
        bench_fail("%s: %s", ((way_t *)arg)->name, end->error);
}

/* The document, and as a question a piece of it from another place for each. */
static void ask(way_t *w, uint32_t i)
{
    uint32_t n_doc = load->full.n_tokens, n = n_doc + QUESTION;
    uint32_t *prompt = vc_calloc(n, sizeof *prompt);
    w->answers[i].tokens = vc_calloc(n_new, sizeof *prompt);
    if (!prompt || !w->answers[i].tokens)
        bench_fail("no memory for prompts");
    memcpy(prompt, load->prompt, n_doc * sizeof *prompt);
    memcpy(prompt + n_doc, load->prompt + n_doc / n_requests * i, QUESTION * sizeof *prompt);
    node_batch_request_t q = {.prompt = prompt,
                              .n_prompt = n,
                              .pages = load->full.pages,
                              .n_pages = load->full.n_pages,
                              .body = load->body,
                              .user = (void *)(uintptr_t)i};
    node_verifier_opts_default(&q.verifier);
    q.verifier.max_tokens = n_new;
    q.verifier.sampling.temperature = temperature;
    q.verifier.sampling.seed = i;
    q.verifier.digest = false;
    OK(node_batch_add(w->b, &q, NULL, &err));
    vc_free(prompt);
}

static uint64_t token_bytes(void)
{
    return node_engine_info(load->node->engine)->n_layer *
           vc_kv_layer_bytes(&node_engine_info(load->node->engine)->keyspace.shape) / NODE_TILE;
}

static void start(way_t *w, bool slow, bool lock_step)
{
    node_batch_opts_t o;
    node_batch_info_t info;
    bool busy;
    node_batch_opts_default(&o);
    o.engine = load->node->engine;
    o.max_running = n_requests;
    o.draft_length = draft_length;
    o.lock_step = lock_step;
    o.committed = committed;
    o.ended = ended;
    o.arg = w;
    o.max_tokens = load->full.n_tokens + QUESTION + n_new;
    if (slow) {
        uint64_t full = token_bytes() * o.max_tokens, streamed = full * (100 - load->kv_percent) / 100;
        uint32_t hold = (uint32_t)atoi(bench_option("hold-percent", "50"));
        o.kv_dir = bench_tmpdir();
        o.kv_ram = n_requests * (full - streamed);
        /* two buffers of a layer for each request are the floor, that of lock-step */
        o.hold_bytes =
            streamed * hold / 100 + 2 * n_requests * streamed / node_engine_info(load->node->engine)->n_layer;
    }
    OK(node_batch_create(&o, &w->b, &err));
    for (uint32_t i = 0; i < n_requests; i++)
        ask(w, i);
    do {
        OK(node_batch_step(w->b, &busy, &err));
        node_batch_info(w->b, &info);
    } while (info.n_running < n_requests);
}

/* Iterations until at least so many tokens more are committed. */
static void advance(way_t *w, uint32_t tokens, bool count)
{
    node_batch_info_t a, z;
    bool busy = true;
    node_batch_info(w->b, &a);
    double t0 = bench_now_s();
    do {
        OK(node_batch_step(w->b, &busy, &err));
        node_batch_info(w->b, &z);
    } while (z.n_committed - a.n_committed < tokens && busy);
    double us = (bench_now_s() - t0) * 1e6, n = (double)(z.n_committed - a.n_committed);
    if (z.n_running < n_requests)
        bench_fail("%s came to its end: fewer --reps", w->name);
    if (!count)
        return;
    bench_add(&w->ms, us / 1e3 / n);
    w->us += us;
    w->tokens += n;
    w->link_bytes += (double)(z.link_bytes - a.link_bytes);
    w->link_busy_us += (double)(z.link_busy_us - a.link_busy_us);
    w->compute_us += (double)(z.pass_us - a.pass_us) - (double)(z.link_wait_us - a.link_wait_us);
    w->verified += (double)(z.n_verified - a.n_verified);
    w->drafts += (double)(z.verify_rows - a.verify_rows) - (double)(z.n_verified - a.n_verified);
}

static void reset(way_t *w)
{
    w->ms.n = 0;
    w->us = w->tokens = w->link_bytes = w->link_busy_us = w->compute_us = w->verified = w->drafts = 0;
}

/* Full KV of one request through a pool of its own, nothing computed: bytes/s, median. */
static double measure_link(uint32_t reps)
{
    node_slow_pool_opts_t po = {.dir = bench_tmpdir(), .n_streams = 1};
    node_kv_dims_t dims = load->full.dims;
    node_slow_opts_t so = {.max_tokens = load->full.n_tokens + NODE_TILE, .pass_rows = 1};
    uint64_t full = token_bytes() * so.max_tokens;
    bench_samples_t rate = {0};
    node_slow_pool_t *pool;
    node_kv_t kv;
    so.ram_bytes = full * load->kv_percent / 100;
    po.spilled_tokens = node_slow_spilled_tokens(&dims, &so);
    po.hold_bytes = node_slow_pool_least(&dims, &po) * dims.n_layer;
    OK(node_slow_pool_create(&dims, &po, &pool, &err));
    so.pool = pool;
    OK(node_kv_init(&kv, &dims, NULL));
    OK(node_slow_create(&dims, &so, &kv.slow, &err));
    for (uint32_t i = 0; i < load->full.n_pages; i++) {
        node_page_t *page = node_page_copy(load->full.pages[i], NODE_TILE);
        if (page == NULL || node_kv_append_page(&kv, page) != VC_OK)
            bench_fail("no memory for the KV");
    }
    for (uint32_t r = 0; r <= reps; r++) { /* the first one writes */
        double t0 = bench_now_s();
        OK(node_slow_begin(&kv, 1, &err));
        node_slow_pump(&kv);
        for (uint32_t l = 0; l < dims.n_layer; l++) {
            OK(node_slow_acquire(&kv, l, &err));
            node_slow_release(&kv);
        }
        if (r > 0)
            bench_add(&rate, (double)node_slow_pass_bytes(&kv) / (bench_now_s() - t0));
    }
    double median = bench_median(&rate);
    bench_note("link alone: %.1f MB of one verification at %.2f GB/s", (double)node_slow_pass_bytes(&kv) / 1e6,
               median / 1e9);
    node_kv_fini(&kv);
    node_slow_pool_destroy(pool);
    bench_samples_free(&rate);
    return median;
}

static void describe(const way_t *w, const char *suffix)
{
    char name[100];
    snprintf(name, sizeof name, "%s%s, a token of %u requests", w->name, suffix, n_requests);
    bench_row(name, "ms", &w->ms);
    bench_note("%s: %.1f drafts and %.2f tokens a verification, engine busy %.2f, link busy %.2f, %.2f GB/s", w->name,
               w->drafts / w->verified, w->tokens / w->verified, w->compute_us / w->us, w->link_busy_us / w->us,
               w->link_bytes / w->us / 1e3);
}

/* rate: of the link alone, or what it was held at. */
static void report(way_t *ways, double rate, const char *suffix)
{
    char name[100];
    const way_t *s = &ways[STAGGER];
    describe(s, suffix);
    describe(&ways[LOCK_STEP], suffix);
    double link_us = s->link_bytes / rate * 1e6, bound = VC_MAX(link_us, s->compute_us);
    bench_note("staggered: link %.2f, compute %.2f of the time; the %s is the bound", link_us / s->us,
               s->compute_us / s->us, link_us > s->compute_us ? "link" : "engine");
    snprintf(name, sizeof name, "staggered_vs_lockstep%s", suffix);
    bench_figure(name, ways[LOCK_STEP].us / ways[LOCK_STEP].tokens / (s->us / s->tokens));
    snprintf(name, sizeof name, "overlap_vs_bound%s", suffix);
    bench_figure(name, s->us / bound);
}

static void compare_texts(const way_t *ways)
{
    uint32_t compared = 0;
    for (uint32_t i = 0; i < n_requests; i++)
        for (int w = 1; w < N_WAYS; w++) {
            const answer_t *a = &ways[0].answers[i], *b = &ways[w].answers[i];
            uint32_t n = VC_MIN(a->n, b->n);
            if (memcmp(a->tokens, b->tokens, n * sizeof *a->tokens) != 0)
                bench_fail("request %u: %s wrote another text than %s", i, ways[w].name, ways[0].name);
            compared += n;
        }
    bench_note("all texts are equal: %u tokens compared", compared);
}

static void repeat(way_t *ways, int n_ways, uint32_t reps, uint32_t tokens)
{
    for (uint32_t r = 0; r < reps; r++)
        for (int w = 0; w < n_ways; w++)
            advance(&ways[w], tokens, true);
}

/* Where the device is faster than the engine takes full KV, or a rate is asked for: with the link held. */
static void hold_link(way_t *ways, uint32_t reps, uint32_t tokens, const char *suffix)
{
    const way_t *s = &ways[STAGGER];
    double balance = s->link_bytes / s->compute_us * 1e6, held = atof(bench_option("link-rate", "0"));
    char name[64];
    if (s->link_bytes <= 0) {
        bench_note("nothing was streamed: the requests fit into their memory");
        return;
    }
    if (held <= 0 && rate_alone <= 1.1 * balance) {
        bench_note("the device is slower than the engine takes full KV: %.2f GB/s would be even", balance / 1e9);
        return;
    }
    held = held > 0 ? held : balance;
    bench_note("the device is %.1f times as fast as the engine takes full KV: again with the link held at %.2f GB/s",
               rate_alone / balance, held / 1e9);
    for (int w = 0; w <= LOCK_STEP; w++) {
        reset(&ways[w]);
        node_batch_limit_link(ways[w].b, (uint64_t)held);
        advance(&ways[w], tokens, false);
    }
    repeat(ways, LOCK_STEP + 1, reps, tokens);
    snprintf(name, sizeof name, "%s_balanced", suffix);
    report(ways, held, name);
}

static void compare_ways(const char *suffix)
{
    way_t ways[N_WAYS] = {{.name = "staggered"}, {.name = "lock-step"}, {.name = "in memory"}};
    uint32_t reps = (uint32_t)atoi(bench_option("reps", bench_quick() ? "2" : "3"));
    uint32_t tokens = n_requests * (bench_quick() ? 8u : 32u);
    n_new = VC_MIN((2 * reps + 2) * 4 * tokens / n_requests,
                   node_engine_info(load->node->engine)->context - load->full.n_tokens - QUESTION - 70);
    for (int w = 0; w < N_WAYS; w++) {
        start(&ways[w], w != MEMORY, w == LOCK_STEP);
        advance(&ways[w], tokens, false); /* costs and rates are learnt */
    }
    repeat(ways, N_WAYS, reps, tokens);
    describe(&ways[MEMORY], suffix);
    report(ways, rate_alone, suffix);
    hold_link(ways, reps, tokens, suffix);
    compare_texts(ways);
    for (int w = 0; w < N_WAYS; w++) {
        node_batch_destroy(ways[w].b);
        bench_samples_free(&ways[w].ms);
        for (uint32_t i = 0; i < n_requests; i++)
            vc_free(ways[w].answers[i].tokens);
    }
}

void schedule_batch(schedule_load_t *l)
{
    const char *x = bench_option("draft-length", "auto"), *t = bench_option("temperature", NULL);
    load = l;
    n_requests = VC_MIN((uint32_t)atoi(bench_option("batch", "4")), (uint32_t)MAX_B);
    draft_length = strcmp(x, "auto") == 0 ? NODE_DRAFT_AUTO : (uint32_t)atoi(x);
    rate_alone = measure_link(3);
    temperature = t != NULL ? atof(t) : 0.8;
    char many[16] = "", suffix[32];
    if (n_requests != 4)
        snprintf(many, sizeof many, "_b%u", n_requests);
    snprintf(suffix, sizeof suffix, "%s%s", temperature > 0 ? "" : "_greedy", many);
    compare_ways(suffix);
    if (t != NULL || bench_quick())
        return;
    temperature = 0;
    snprintf(suffix, sizeof suffix, "_greedy%s", many);
    compare_ways(suffix);
}
