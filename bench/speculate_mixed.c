/*
 * A mixed load: texts x lengths x good and bad drafters, each request once with every fixed length and once with the
 * automatic one. A fixed length is one for the whole load, as a server's option would be.
 */
#include <stdio.h>
#include <string.h>

#include "speculate_parts.h"
#include "vc/mem.h"

enum { N_FIXED = 5 };
static const uint32_t fixed_lengths[N_FIXED] = {0, 2, 4, 8, 16};

typedef struct {
    const spec_bench_t *b;
    spec_run_t sum[N_FIXED + 1]; /* the last: automatic */
    bench_samples_t gain;        /* of the automatic length over plain decoding, by request */
    uint32_t n_requests;
} mixed_t;

static void request(mixed_t *m, const spec_prompt_t *p, const char *text)
{
    node_spec_t spec;
    spec_tokens_t first = {0};
    node_body_t *body = spec_compress(m->b, p, text);
    spec_run_t plain = {0}, automatic = {0};
    OK(node_spec_parse(text, &spec, &speculate_err));
    for (uint32_t rep = 0; rep < m->b->reps; rep++)
        for (uint32_t i = 0; i <= N_FIXED; i++) {
            uint32_t x = i < N_FIXED ? fixed_lengths[i] : NODE_DRAFT_AUTO;
            spec_run_t r = spec_run(m->b, p, &(spec_way_t){.body = body, .name = spec.text, .x = x}, &first);
            spec_add(&m->sum[i], &r);
            if (i == 0)
                spec_add(&plain, &r);
            if (i == N_FIXED)
                spec_add(&automatic, &r);
        }
    double gain = plain.us / automatic.us;
    bench_add(&m->gain, gain);
    bench_note("%u tokens of %s, %s: automatic %.3f of plain decoding, %llu drafts looked at, chance %.3f", p->n,
               p->kind, text, gain, (unsigned long long)automatic.looked_at, spec_chance(&automatic));
    m->n_requests++;
    vc_free(first.tokens);
    node_body_put(body);
}

static void report(mixed_t *m)
{
    double best = 0;
    uint32_t at = 0;
    for (uint32_t i = 0; i < N_FIXED; i++) {
        double rate = 1 / spec_us_per_token(&m->sum[i]);
        bench_note("mixed load, %2u drafts: %.0f us a token", fixed_lengths[i], spec_us_per_token(&m->sum[i]));
        if (rate > best) {
            best = rate;
            at = fixed_lengths[i];
        }
    }
    double automatic = 1 / spec_us_per_token(&m->sum[N_FIXED]);
    bench_note("mixed load, automatic: %.0f us a token; best fixed length %u, over %u requests", 1 / automatic, at,
               m->n_requests);
    bench_row("mixed load, automatic over plain", "x", &m->gain);
    bench_figure("adaptive_vs_best_static", automatic / best);
    bench_figure("speculate_mixed_gain", automatic * spec_us_per_token(&m->sum[0]));
}

void spec_mixed(const spec_bench_t *b)
{
    static const struct {
        uint32_t tokens, quick_tokens;
        const char *kinds; /* long prompts of fewer texts: their KV takes most of the time */
    } loads[] = {{2080, 200, "prose chat code retrieval"}, {4128, 264, "prose"}, {7712, 328, "code chat"}};
    static const char *const drafters[] = {"rot:bits=4", "snapkv:keep=0.25", "noise:eps=1"};
    mixed_t m = {.b = b};
    for (uint32_t l = 0; l < VC_ARRAY_LEN(loads); l++)
        for (uint32_t k = 0; k < b->n_kinds; k++) {
            spec_prompt_t p;
            if (strstr(loads[l].kinds, b->kinds[k]) == NULL)
                continue;
            spec_prompt_load(b, &p, b->kinds[k], bench_quick() ? loads[l].quick_tokens : loads[l].tokens);
            for (uint32_t d = 0; d < VC_ARRAY_LEN(drafters); d++)
                request(&m, &p, drafters[d]);
            spec_prompt_free(&p);
        }
    report(&m);
    bench_samples_free(&m.gain);
}
