/* One request from its first token to its last, and single steps by themselves. */
#include <stdio.h>
#include <string.h>

#include "speculate/suffix.h"
#include "speculate_parts.h"
#include "vc/mem.h"

static void compare(const spec_prompt_t *p, const uint32_t *tokens, uint32_t n, uint32_t x, spec_tokens_t *first)
{
    char way[40] = "drafts of an automatic length";
    if (x != NODE_DRAFT_AUTO)
        snprintf(way, sizeof way, "%u drafts", x);
    if (first->tokens == NULL) {
        first->tokens = vc_memdup(tokens, n * sizeof *tokens);
        first->n = n;
    }
    if (first->tokens == NULL || first->n != n || memcmp(first->tokens, tokens, n * sizeof *tokens) != 0)
        bench_fail("%s: %s give other tokens than plain decoding", p->kind, way);
}

static node_source_t *make_source(void)
{
    node_suffix_opts_t o;
    node_source_t *source;
    node_suffix_opts_default(&o);
    OK(node_suffix_create(&o, &source, &speculate_err));
    return source;
}

spec_run_t spec_run(const spec_bench_t *b, const spec_prompt_t *p, const spec_way_t *way, spec_tokens_t *first)
{
    node_source_t *source = way->source ? make_source() : NULL;
    node_verifier_t *v = spec_start(b, p, b->n_new);
    node_session_opts_t so;
    node_drafter_opts_t d;
    node_session_t *s;
    node_verdict_t verdict = {0};
    node_session_opts_default(&so);
    node_drafter_opts_default(&d);
    so.draft_length = way->x;
    so.costs = node_step_costs(b->node);
    so.name = way->name;
    d.engine = b->node->engine;
    d.body = way->body;
    d.source = source;
    d.sampling = b->sampling;
    d.n_common = b->n_common;
    OK(node_session_create(&so, &d, v, &s, &speculate_err));
    double t0 = bench_now_s();
    while (verdict.finish == NODE_FINISH_NONE)
        OK(node_session_round(s, &verdict, &speculate_err));
    spec_run_t r = {.us = (bench_now_s() - t0) * 1e6};
    node_verifier_stats_t vs;
    node_session_stats_t ss;
    node_verifier_stats(v, &vs);
    node_session_stats(s, &ss);
    uint32_t n;
    const uint32_t *tokens = node_verifier_tokens(v, &n);
    compare(p, tokens, n, way->x, first);
    r.n_tokens = n - p->n - 1;
    r.accepted = vs.n_accepted;
    r.looked_at = vs.n_drafted;
    r.rounds = vs.n_rounds;
    r.plain_rounds = ss.n_plain_rounds;
    node_session_destroy(s);
    node_source_destroy(source);
    node_verifier_destroy(v);
    return r;
}

void spec_add(spec_run_t *sum, const spec_run_t *r)
{
    sum->us += r->us;
    sum->n_tokens += r->n_tokens;
    sum->accepted += r->accepted;
    sum->looked_at += r->looked_at;
    sum->rounds += r->rounds;
    sum->plain_rounds += r->plain_rounds;
}

double spec_us_per_token(const spec_run_t *r) { return r->us / (double)VC_MAX(r->n_tokens, 1u); }

double spec_chance(const spec_run_t *r) { return r->looked_at ? (double)r->accepted / (double)r->looked_at : 0; }

double spec_pass_us(const spec_bench_t *b, const spec_prompt_t *p, uint32_t n_rows)
{
    node_verifier_t *v = spec_start(b, p, 64);
    node_row_t rows[64];
    uint32_t n, n_logits;
    float *logits = vc_alloc_aligned(64, 64 * sizeof(float) * node_engine_info(b->node->engine)->n_vocab);
    if (!logits)
        bench_fail("no memory for logits");
    memset(logits, 0, 64 * sizeof(float) * node_engine_info(b->node->engine)->n_vocab); /* a verifier's are warm */
    OK(node_verifier_plan(v, p->tokens, n_rows - 1, rows, 64, &n, &n_logits, &speculate_err));
    double t0 = bench_now_s();
    OK(node_forward(b->node->engine, rows, n, logits, NULL, &speculate_err));
    double us = (bench_now_s() - t0) * 1e6;
    vc_free(logits);
    node_verifier_destroy(v);
    return us;
}

double spec_draft_us(const spec_bench_t *b, const spec_prompt_t *p, node_body_t *body)
{
    node_verifier_t *v = spec_start(b, p, 64);
    node_drafter_opts_t o;
    node_drafter_t *d;
    uint32_t n, n_drafts, drafts[SPEC_FIXED];
    const uint32_t *tokens = node_verifier_tokens(v, &n);
    node_drafter_opts_default(&o);
    o.engine = b->node->engine;
    o.body = body;
    o.sampling = b->sampling;
    o.n_common = b->n_common;
    OK(node_drafter_create(&o, tokens, n, &d, &speculate_err));
    OK(node_drafter_share(d, node_verifier_kv(v), &speculate_err));
    double t0 = bench_now_s();
    OK(node_drafter_draft(d, SPEC_FIXED, drafts, NULL, &n_drafts, &speculate_err));
    double us = (bench_now_s() - t0) * 1e6 / n_drafts;
    node_drafter_destroy(d);
    node_verifier_destroy(v);
    return us;
}

static double pass_at(const uint32_t *widths, const double *us, uint32_t n, uint32_t rows)
{
    uint32_t i = 1;
    while (i + 1 < n && rows > widths[i])
        i++;
    double share = ((double)rows - widths[i - 1]) / (double)(widths[i] - widths[i - 1]);
    return us[i - 1] + share * (us[i] - us[i - 1]);
}

double spec_promise(double plain_us, double draft_us, const uint32_t *widths, const double *pass_us, uint32_t n,
                    double chance, uint32_t *x_p)
{
    double tokens = 1, p = 1, best = 1;
    *x_p = 0;
    for (uint32_t x = 1; x <= 63; x++) {
        tokens += p *= chance;
        double gain = tokens * plain_us / (x * draft_us + pass_at(widths, pass_us, n, x + 1));
        if (gain > best) {
            best = gain;
            *x_p = x;
        }
    }
    return best;
}

uint32_t spec_pays_from(const spec_bench_t *b, const node_body_t *body, const char *name, double chance)
{
    static const uint32_t widths[] = {1, 2, 4, 8, 16, 32, 64, 128};
    for (uint32_t n = 256; n <= node_engine_info(b->node->engine)->context; n += 128) {
        node_body_t like = {.n_tokens = n, .dims = body->dims, .bytes = body->bytes * n / body->n_tokens};
        node_length_costs_t c;
        uint32_t x;
        node_costs_at(node_step_costs(b->node), n, &like, name, &c);
        if (c.draft_us > 0 && spec_promise(c.verify_us[0], c.draft_us, widths, c.verify_us, 8, chance, &x) > 1.03)
            return n;
    }
    return 0;
}
