/* Draft sources under the drafter. The wild one says what plain decoding commits, or anything, with any chance. */
#include "identity_parts.h"

typedef struct {
    node_source_t base; /* first */
    const identity_request_t *q;
    const identity_result_t *plain;
    uint32_t n_vocab, right, fails_at; /* of 1000; 0: never */
    identity_rng_t rng;
} wild_t;

static vc_status_t wild_push(node_source_t *s, const uint32_t *tokens, uint32_t n, const float *rows)
{
    wild_t *w = (wild_t *)s;
    (void)tokens;
    (void)rows;
    return w->fails_at && s->n_tokens + n > w->fails_at ? VC_ERR_INTERNAL : VC_OK;
}

static void wild_truncate(node_source_t *s, uint32_t n_tokens)
{
    (void)s;
    (void)n_tokens;
}

static uint32_t wild_propose(node_source_t *s, uint32_t k, node_proposal_t *out)
{
    wild_t *w = (wild_t *)s;
    uint32_t n = identity_below(&w->rng, k + 1);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = s->n_tokens + i - w->q->n_prompt;
        bool right = s->n_tokens >= w->q->n_prompt && at < w->plain->n && identity_chance(&w->rng, w->right);
        out[i].token = right ? w->plain->tokens[at] : identity_below(&w->rng, w->n_vocab + 1); /* one too many */
        out[i].chance = identity_unit(&w->rng) * 1.2 - 0.1;
    }
    return n;
}

static void wild_destroy(node_source_t *s) { vc_free(s); }

static node_source_t *make_wild(const identity_model_t *m, const identity_request_t *q, const identity_run_t *v,
                                const identity_result_t *base)
{
    static const node_source_ops_t ops = {
        .name = "wild", .push = wild_push, .truncate = wild_truncate, .propose = wild_propose, .destroy = wild_destroy};
    wild_t *w = vc_calloc(1, sizeof *w);
    if (!w)
        bench_fail("out of memory");
    *w = (wild_t){.base = {.ops = &ops},
                  .q = q,
                  .plain = base,
                  .n_vocab = m->info.n_vocab,
                  .right = v->right,
                  .rng = identity_rng(q->seed, q->index, 3000 + v->index)};
    if (identity_chance(&w->rng, 200))
        w->fails_at = q->n_prompt + 1 + identity_below(&w->rng, 40);
    return &w->base;
}

node_source_t *identity_make_source(const identity_model_t *m, const identity_request_t *q, const identity_run_t *v,
                                    const identity_result_t *base)
{
    node_suffix_opts_t o;
    node_source_t *s = NULL;
    vc_err_t err;
    if (v->source == IDENTITY_WILD)
        return make_wild(m, q, v, base);
    if (v->source == IDENTITY_NO_SOURCE)
        return NULL;
    node_suffix_opts_default(&o);
    o.min_match = 2 + v->index % 3;
    BENCH_OK(node_suffix_create(&o, &s, &err), err);
    return s;
}
