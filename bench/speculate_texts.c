/* Prompts of the tree's texts, and their full KV, computed once for all runs behind them. */
#include <stdio.h>
#include <string.h>

#include "role/local_body.h"
#include "role/prompt.h"
#include "speculate_parts.h"
#include "vc/mem.h"

static const char *const all_kinds[SPEC_TEXTS] = {"prose", "chat", "code", "retrieval"};

/* Tokens of one text; the last quarter is left out where the prompt ends with it, so that it ends in the middle. */
static uint32_t append(const spec_bench_t *b, const char *name, bool is_last, uint32_t *ids, uint32_t n, uint32_t cap)
{
    char path[400], *data;
    size_t bytes;
    uint32_t *own, n_own;
    snprintf(path, sizeof path, "%s/%s.txt", bench_option("text-dir", "bench/texts"), name);
    OK(node_prompt_read_file(path, (size_t)4 << 20, &data, &bytes, &speculate_err));
    OK(node_tokenizer_encode(b->node->tok, data, bytes, strcmp(name, "chat") == 0, &own, &n_own, &speculate_err));
    uint32_t take = VC_MIN(is_last ? n_own - n_own / 4 : n_own, cap - n);
    memcpy(ids + n, own, take * sizeof *own);
    vc_free(own);
    vc_free(data);
    return n + take;
}

static void fill_pages(const spec_bench_t *b, spec_prompt_t *p)
{
    node_kv_dims_t dims;
    node_kv_t kv;
    node_engine_kv_dims(b->node->engine, &dims);
    OK(node_kv_init(&kv, &dims, NULL));
    p->n_pages = p->n / NODE_TILE;
    double t0 = bench_now_s();
    OK(node_prefill(b->node->engine, &kv, p->tokens, p->n_pages * NODE_TILE, NULL, NULL, &speculate_err));
    bench_note("%s: %u tokens prefilled in %.1f s", p->kind, p->n_pages * NODE_TILE, bench_now_s() - t0);
    for (uint32_t i = 0; i < p->n_pages; i++)
        p->pages[i] = node_page_get(node_kv_page_at(&kv, i));
    node_kv_fini(&kv);
}

void spec_prompt_load(const spec_bench_t *b, spec_prompt_t *p, const char *kind, uint32_t n)
{
    uint32_t cap = 65536, have = 0;
    uint32_t *ids = vc_calloc(cap, sizeof *ids);
    *p = (spec_prompt_t){.kind = kind, .n = n, .tokens = vc_calloc(n, sizeof *p->tokens)};
    if (ids == NULL || p->tokens == NULL || n / NODE_TILE > SPEC_PAGES)
        bench_fail("no memory for a prompt of %u tokens", n);
    for (uint32_t i = 0; i < SPEC_TEXTS; i++)
        if (strcmp(all_kinds[i], kind) != 0)
            have = append(b, all_kinds[i], false, ids, have, cap);
    have = append(b, kind, true, ids, have, cap);
    if (have < n)
        bench_fail("the texts have %u tokens, fewer than %u", have, n);
    memcpy(p->tokens, ids + have - n, n * sizeof *ids);
    vc_free(ids);
    fill_pages(b, p);
}

void spec_prompt_free(spec_prompt_t *p)
{
    for (uint32_t i = 0; i < p->n_pages; i++)
        node_page_put(p->pages[i]);
    vc_free(p->tokens);
}

node_verifier_t *spec_start(const spec_bench_t *b, const spec_prompt_t *p, uint32_t n_new)
{
    node_verifier_opts_t o;
    node_verifier_t *v;
    node_verdict_t verdict;
    node_verifier_opts_default(&o);
    o.engine = b->node->engine;
    o.sampling = b->sampling;
    o.max_tokens = n_new + 1;
    o.digest = false;
    OK(node_verifier_create(&o, p->tokens, p->n, &v, &speculate_err));
    for (uint32_t i = 0; i < p->n_pages; i++)
        OK(node_verifier_load_page(v, node_page_get(p->pages[i]), &speculate_err));
    OK(node_verifier_start(v, 0, &verdict, &speculate_err));
    return v;
}

node_body_t *spec_compress(const spec_bench_t *b, const spec_prompt_t *p, const char *text)
{
    node_spec_t spec;
    node_body_t *body;
    OK(node_spec_parse(text, &spec, &speculate_err));
    OK(node_bind_spec(b->node, &spec, &speculate_err));
    node_verifier_t *v = spec_start(b, p, 1);
    const node_replay_t replay = node_replay(b->node);
    OK(node_local_body_replay(&replay, &spec, node_verifier_kv(v), p->tokens, p->n_pages, &body, &speculate_err));
    node_verifier_destroy(v);
    return body;
}
