/*
 * What does decoding cost when the full KV is on disk, and what does draft and verify gain there?
 *
 * One request, its full KV in the slow tier (kv/slow.h) but for --kv-ram-percent of it. Everything is measured in one
 * run, interleaved, medians over repetitions; prefill, compression and the writing of the file are outside the clock.
 * The requests go on from repetition to repetition, and at the end their texts are compared token by token.
 *   link       the bytes of one pass by themselves, nothing computed, pass after pass
 *   memory     plain decoding with the full KV in memory
 *   plain      plain decoding, the full KV streamed at every step: the baseline
 *   N drafts   draft on the compressed copy in memory, stream the full KV once a round; auto: adaptive length; n-gram:
 *              with a source under the drafter
 * Reads are direct, so the page cache does not help; a disk behind a hypervisor may have a cache of its own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv/slow.h"
#include "schedule_parts.h"
#include "speculate/session.h"
#include "speculate/suffix.h"
#include "vc/mem.h"

enum { N_MODES = 7, STEPS = 6 /* plain steps a repetition */ };

static vc_err_t err;
#define OK(call) BENCH_OK(call, err)

typedef struct {
    const char *name;
    bool slow;
    uint32_t x;  /* draft length */
    bool n_gram; /* a source under the drafter */
    node_source_t *source;
    node_verifier_t *v;
    node_session_t *s;
    bench_samples_t token_ms; /* a repetition's mean */
    bench_samples_t verify_ms;
} way_t;

static schedule_load_t *load;
static uint32_t n_new;

static void add_slow(node_verifier_t *v)
{
    node_kv_t *kv = node_verifier_kv(v);
    uint64_t block = node_engine_info(load->node->engine)->n_layer *
                     vc_kv_layer_bytes(&node_engine_info(load->node->engine)->keyspace.shape);
    uint32_t tokens = load->n_prompt + n_new + 128;
    node_slow_opts_t o = {.dir = bench_tmpdir(),
                          .ram_bytes = block * (tokens / NODE_TILE + 1) * load->kv_percent / 100,
                          .max_tokens = tokens,
                          .pass_rows = 128};
    node_slow_t *slow;
    OK(node_slow_create(&kv->dims, &o, &slow, &err));
    if (node_kv_set_slow(kv, slow) != VC_OK)
        bench_fail("the slow tier does not fit the session");
}

static void start(way_t *m)
{
    node_verifier_opts_t o;
    node_verdict_t verdict;
    node_verifier_opts_default(&o);
    o.engine = load->node->engine;
    o.max_tokens = n_new;
    o.digest = false;
    OK(node_verifier_create(&o, load->prompt, load->n_prompt, &m->v, &err));
    if (m->slow)
        add_slow(m->v);
    for (uint32_t b = 0; b < load->full.n_pages; b++) { /* a page that is held elsewhere would stay in memory */
        node_page_t *page =
            m->slow ? node_page_copy(load->full.pages[b], NODE_TILE) : node_page_get(load->full.pages[b]);
        if (page == NULL)
            bench_fail("no memory for the KV");
        OK(node_verifier_load_page(m->v, page, &err));
    }
    OK(node_verifier_start(m->v, 128, &verdict, &err));
    node_session_opts_t so;
    node_drafter_opts_t d;
    node_session_opts_default(&so);
    node_drafter_opts_default(&d);
    so.draft_length = m->x;
    d.engine = load->node->engine;
    d.body = m->x ? load->body : NULL;
    node_suffix_opts_t suffix;
    node_suffix_opts_default(&suffix);
    if (m->n_gram)
        OK(node_suffix_create(&suffix, &m->source, &err));
    d.source = m->source;
    OK(node_session_create(&so, &d, m->v, &m->s, &err));
}

/* Rounds until at least `tokens` more are committed; mean ms a token. */
static void advance(way_t *m, uint32_t tokens)
{
    uint32_t n = 0, rounds = 0;
    node_session_stats_t a, b;
    node_verdict_t verdict;
    node_session_stats(m->s, &a);
    double t0 = bench_now_s();
    while (n < tokens) {
        OK(node_session_round(m->s, &verdict, &err));
        n += verdict.n_tokens;
        rounds++;
        if (verdict.finish != NODE_FINISH_NONE && n < tokens)
            bench_fail("%s came to its end: fewer --reps", m->name);
    }
    double ms = (bench_now_s() - t0) * 1e3;
    node_session_stats(m->s, &b);
    bench_add(&m->token_ms, ms / n);
    bench_add(&m->verify_ms, (double)(b.verify_us - a.verify_us) / 1e3 / rounds);
}

/* The bytes of a pass by themselves: ms. What was read ahead before the first pass is made up for by what the last one
 * leaves behind. */
static double link_ms(node_kv_t *kv)
{
    enum { PASSES = 3 };
    double t0 = 0;
    for (int i = 0; i < PASSES; i++) {
        if (i == 1)
            t0 = bench_now_s();
        OK(node_slow_begin(kv, 1, &err));
        for (uint32_t l = 0; l < kv->dims.n_layer; l++) {
            OK(node_slow_acquire(kv, l, &err));
            node_slow_release(kv);
        }
    }
    return (bench_now_s() - t0) * 1e3 / (PASSES - 1);
}

static void compare_texts(const way_t *modes)
{
    for (int i = 1; i < N_MODES; i++) {
        uint32_t n, m;
        const uint32_t *a = node_verifier_tokens(modes[0].v, &n), *b = node_verifier_tokens(modes[i].v, &m);
        if (memcmp(a, b, VC_MIN(n, m) * sizeof *a) != 0)
            bench_fail("%s wrote another text than %s", modes[i].name, modes[0].name);
    }
    bench_note("all texts are equal");
}

static void report(way_t *modes, const bench_samples_t *link)
{
    char name[100];
    node_slow_stats_t s;
    node_slow_stats(node_verifier_kv(modes[1].v)->slow, &s);
    double bytes = (double)s.n_spilled * node_engine_info(load->node->engine)->n_layer *
                   (double)vc_kv_layer_bytes(&node_engine_info(load->node->engine)->keyspace.shape);
    bench_row("link, bytes of one pass", "ms", link);
    double gain = 0, sourced = 0, plain = bench_median(&modes[1].token_ms), memory = bench_median(&modes[0].token_ms);
    for (int i = 0; i < N_MODES; i++) {
        snprintf(name, sizeof name, "%s, a token", modes[i].name);
        bench_row(name, "ms", &modes[i].token_ms);
        if (modes[i].x == 0)
            continue;
        snprintf(name, sizeof name, "%s, a verify pass", modes[i].name);
        bench_row(name, "ms", &modes[i].verify_ms);
        node_verifier_stats_t vs;
        node_verifier_stats(modes[i].v, &vs);
        bench_note("%s: %.1f accepted a round, gain %.2f", modes[i].name,
                   (double)vs.n_accepted / (double)VC_MAX(vs.n_rounds, 1u), plain / bench_median(&modes[i].token_ms));
        double *best = modes[i].n_gram ? &sourced : &gain;
        *best = VC_MAX(*best, plain / bench_median(&modes[i].token_ms));
    }
    bench_note("a pass streams %.1f MB (%u of %u blocks) at %.2f GB/s; %.1f MB of full KV in memory, %u layers in "
               "buffers, %s%s",
               bytes / 1e6, s.n_spilled, node_verifier_kv(modes[1].v)->n_pages, bytes / bench_median(link) / 1e6,
               (double)s.ram_bytes / 1e6, s.n_slots, s.ring ? "io_uring" : "threads",
               s.direct ? "" : ", through the page cache");
    bench_figure("slow_tier_gain_8k", gain);
    bench_figure("slow_tier_gain_ngram_8k", sourced);
    bench_figure("slow_tier_vs_link_8k", plain / bench_median(link));
    bench_figure("slow_tier_vs_bound_8k", plain / VC_MAX(bench_median(link), memory));
}

void schedule_single(schedule_load_t *shared)
{
    uint32_t reps = (uint32_t)atoi(bench_option("reps", bench_quick() ? "2" : "5"));
    uint32_t tokens = bench_quick() ? 12 : 48;
    load = shared;
    n_new = VC_MIN(reps * (tokens + 70), node_engine_info(load->node->engine)->context - load->n_prompt);
    way_t modes[N_MODES] = {{.name = "memory"},
                            {.name = "plain", .slow = true},
                            {.name = "16 drafts", .slow = true, .x = 16},
                            {.name = "32 drafts", .slow = true, .x = 32},
                            {.name = "64 drafts", .slow = true, .x = 64},
                            {.name = "32 drafts, n-gram", .slow = true, .x = 32, .n_gram = true},
                            {.name = "auto", .slow = true, .x = NODE_DRAFT_AUTO}};
    bench_samples_t link = {0};
    for (int i = 0; i < N_MODES; i++)
        start(&modes[i]);
    link_ms(node_verifier_kv(modes[1].v)); /* the first one writes */
    for (int i = 1; i < N_MODES; i++)
        advance(&modes[i], 1);
    for (int i = 0; i < N_MODES; i++) {
        modes[i].token_ms.n = modes[i].verify_ms.n = 0;
    }
    for (uint32_t r = 0; r < reps; r++) {
        bench_add(&link, link_ms(node_verifier_kv(modes[1].v)));
        for (int i = 0; i < N_MODES; i++)
            advance(&modes[i], modes[i].x ? tokens : STEPS);
    }
    compare_texts(modes);
    report(modes, &link);
    for (int i = 0; i < N_MODES; i++) {
        node_session_destroy(modes[i].s);
        node_source_destroy(modes[i].source);
        node_verifier_destroy(modes[i].v);
        bench_samples_free(&modes[i].token_ms);
        bench_samples_free(&modes[i].verify_ms);
    }
    bench_samples_free(&link);
}
