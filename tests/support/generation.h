/*
 * Generations of a small model for tests: one function that runs a request with any mix of draft length, compressor,
 * prefill cut, reloaded prefix and instruction set, and says what came out as tokens and digests. Header only, since it
 * uses the node's library and the other helpers here do not. Whatever fails ends the test.
 */
#ifndef SUPPORT_GENERATION_H
#define SUPPORT_GENERATION_H

#include <stdio.h>
#include <string.h>

#include "compress/codec.h"
#include "kv/slow.h"
#include "role/local_body.h"
#include "speculate/session.h"
#include "speculate/suffix.h"
#include "support/tiny_model.h"
#include "support/vc_test.h"
#include "vc/mem.h"

#define GEN_MAX 512u
#define GEN_BLOCKS 64u

#define GEN_OK(call)                                                                             \
    do {                                                                                         \
        vc_status_t gen_st_ = (call);                                                            \
        cr_assert(gen_st_ == VC_OK, "%s: %s (%s)", #call, vc_status_name(gen_st_), gen_err.msg); \
    } while (0)
static vc_err_t gen_err;

typedef struct gen_model {
    gguf_image_t image; /* empty for a file */
    node_gguf_t *gguf;
    node_tokenizer_t *tok;
} gen_model_t;

__attribute__((unused)) static void gen_model_open(gen_model_t *m, const tiny_model_opts_t *opts)
{
    m->image = tiny_model_build(opts);
    GEN_OK(node_gguf_open_memory(m->image.data, m->image.bytes, &m->gguf, &gen_err));
    GEN_OK(node_tokenizer_create(m->gguf, &m->tok, &gen_err));
}

__attribute__((unused)) static void gen_model_open_file(gen_model_t *m, const char *path)
{
    m->image = (gguf_image_t){0};
    GEN_OK(node_gguf_open(path, &m->gguf, &gen_err));
    GEN_OK(node_tokenizer_create(m->gguf, &m->tok, &gen_err));
}

static void gen_model_close(gen_model_t *m)
{
    node_tokenizer_destroy(m->tok);
    node_gguf_close(m->gguf);
    if (m->image.data)
        gguf_image_free(&m->image);
}

__attribute__((unused)) static node_engine_t *gen_engine(const gen_model_t *m, uint32_t threads, node_isa_t isa)
{
    node_engine_opts_t o;
    node_engine_t *e = NULL;
    node_engine_opts_default(&o);
    o.n_threads = threads;
    o.isa = isa;
    GEN_OK(node_engine_create(m->gguf, m->tok, &o, &e, &gen_err));
    return e;
}

/* One request. Zero-initialised but for engine, prompt and max_tokens it is greedy plain decoding. */
typedef struct gen_request {
    node_engine_t *engine;
    const node_tokenizer_t *tok; /* for stop strings */
    const uint32_t *prompt;
    uint32_t n_prompt;
    uint32_t max_tokens, context;
    node_sampling_t sampling; /* top_p 0 stands for the default options */
    const uint32_t *end_tokens;
    uint32_t n_end_tokens;
    const char *const *stops;
    uint32_t n_stops;
    uint32_t x;          /* draft length, or NODE_DRAFT_AUTO */
    const char *spec;    /* NULL: the drafter has the full KV */
    uint32_t cut;        /* rows per prefill pass; 0: all at once */
    node_page_t **pages; /* blocks of the prompt's full KV that are loaded */
    uint32_t n_pages;
    const uint32_t *resume; /* tokens that were committed before */
    uint32_t n_resume;
    node_source_t *source;   /* under the drafter; the caller's */
    const vc_clock_t *clock; /* of the session and its drafter; NULL: the system's */
} gen_request_t;

typedef struct gen_result {
    uint32_t tokens[GEN_MAX], n;
    node_finish_t finish;
    vc_digest_t logits, kv;
    node_verifier_stats_t stats;
    node_session_stats_t session;
    uint32_t last_drafts; /* drafts of the last round */
} gen_result_t;

/* Greedy, or with a bit of everything. */
__attribute__((unused)) static node_sampling_t gen_sampled(bool sampled, uint64_t seed)
{
    node_sampling_t s;
    node_sampling_default(&s);
    if (sampled) {
        s.temperature = 0.9;
        s.top_k = 60;
        s.top_p = 0.95;
        s.repeat_penalty = 1.1;
        s.frequency_penalty = 0.1;
        s.seed = seed;
    }
    return s;
}

static node_sampling_t gen_sampling(const gen_request_t *r)
{
    node_sampling_t s = r->sampling;
    if (s.top_p == 0)
        node_sampling_default(&s);
    return s;
}

static node_verifier_t *gen_verifier(const gen_request_t *r)
{
    node_verifier_opts_t o;
    node_verifier_t *v = NULL;
    node_verifier_opts_default(&o);
    o.engine = r->engine;
    o.tok = r->tok;
    o.sampling = gen_sampling(r);
    o.end_tokens = r->end_tokens;
    o.n_end_tokens = r->n_end_tokens;
    o.stops = r->stops;
    o.n_stops = r->n_stops;
    o.max_tokens = r->max_tokens;
    o.context = r->context;
    GEN_OK(node_verifier_create(&o, r->prompt, r->n_prompt, &v, &gen_err));
    for (uint32_t b = 0; b < r->n_pages; b++)
        GEN_OK(node_verifier_load_page(v, node_page_get(r->pages[b]), &gen_err));
    return v;
}

/* The prompt's whole blocks, compressed; NULL when there is none. */
static node_body_t *gen_body(const gen_request_t *r, node_verifier_t *v)
{
    node_spec_t spec;
    node_body_t *body = NULL;
    if (!r->spec || r->n_prompt < NODE_TILE)
        return NULL;
    GEN_OK(node_spec_parse(r->spec, &spec, &gen_err));
    GEN_OK(node_local_body(r->engine, &spec, node_verifier_kv(v), r->prompt, r->n_prompt / NODE_TILE, &body, &gen_err));
    return body;
}

__attribute__((unused)) static node_source_t *gen_suffix(void)
{
    node_suffix_opts_t o;
    node_source_t *s = NULL;
    node_suffix_opts_default(&o);
    GEN_OK(node_suffix_create(&o, &s, &gen_err));
    return s;
}

static node_session_t *gen_session(const gen_request_t *r, node_verifier_t *v, node_body_t *body)
{
    node_session_opts_t so;
    node_drafter_opts_t d;
    node_session_t *s = NULL;
    node_session_opts_default(&so);
    node_drafter_opts_default(&d);
    so.draft_length = r->x;
    d.engine = r->engine;
    d.body = body;
    d.sampling = gen_sampling(r);
    d.context = r->context;
    d.source = r->source;
    if (r->clock)
        so.clock = d.clock = r->clock;
    GEN_OK(node_session_create(&so, &d, v, &s, &gen_err));
    return s;
}

static void gen_collect(node_verifier_t *v, gen_result_t *out)
{
    uint32_t n, n_prompt = node_verifier_n_prompt(v);
    const uint32_t *tokens = node_verifier_tokens(v, &n);
    cr_assert(n - n_prompt <= GEN_MAX);
    out->n = n - n_prompt;
    memcpy(out->tokens, tokens + n_prompt, out->n * sizeof *tokens);
    out->finish = node_verifier_finish(v);
    node_verifier_digest(v, &out->logits);
    cr_assert_eq(node_verifier_kv(v)->n_tokens, n - 1, "KV holds all committed tokens but the last");
    node_kv_t view; /* a part may lie in the slow tier */
    GEN_OK(node_slow_view(node_verifier_kv(v), &view, &gen_err));
    node_kv_digest(&view, n - 1, &out->kv);
    node_kv_fini(&view);
    node_verifier_stats(v, &out->stats);
}

__attribute__((unused)) static void gen_run(const gen_request_t *r, gen_result_t *out)
{
    node_verdict_t verdict;
    memset(out, 0, sizeof *out);
    node_verifier_t *v = gen_verifier(r);
    if (r->n_resume)
        GEN_OK(node_verifier_resume(v, r->resume, r->n_resume, &verdict, &gen_err));
    else
        GEN_OK(node_verifier_start(v, r->cut, &verdict, &gen_err));
    node_body_t *body = r->x && verdict.finish == NODE_FINISH_NONE ? gen_body(r, v) : NULL;
    node_session_t *s = verdict.finish == NODE_FINISH_NONE ? gen_session(r, v, body) : NULL;
    while (verdict.finish == NODE_FINISH_NONE) {
        GEN_OK(node_session_round(s, &verdict, &gen_err));
        out->last_drafts = verdict.n_drafts;
    }
    gen_collect(v, out);
    if (s)
        node_session_stats(s, &out->session);
    node_session_destroy(s);
    node_body_put(body);
    node_verifier_destroy(v);
}

/* Full KV of the prompt's whole blocks, by way of full records: what a cache server would hand out. */
__attribute__((unused)) static uint32_t gen_reload(const gen_request_t *r, node_page_t **pages)
{
    const node_model_info_t *info = node_engine_info(r->engine);
    node_verdict_t verdict;
    gen_request_t plain = *r;
    plain.n_pages = plain.n_resume = 0;
    node_verifier_t *v = gen_verifier(&plain);
    GEN_OK(node_verifier_start(v, 0, &verdict, &gen_err));
    uint32_t n = r->n_prompt / NODE_TILE;
    size_t cap = vc_kvrec_full_bytes(&info->keyspace.shape), bytes;
    uint8_t *record = vc_alloc_aligned(4096, cap);
    cr_assert(n <= GEN_BLOCKS && record);
    for (uint32_t b = 0; b < n; b++) {
        memset(record, 0xa5, cap);
        GEN_OK(node_full_record(info, node_verifier_kv(v), r->prompt, b, record, cap, &bytes, &gen_err));
        GEN_OK(node_page_from_record(info, record, bytes, &pages[b], &gen_err));
    }
    vc_free(record);
    node_verifier_destroy(v);
    return n;
}

static bool gen_digest_equal(const vc_digest_t *a, const vc_digest_t *b) { return !memcmp(a, b, sizeof *a); }

/* Empty when equal in tokens, finish and both digests; else what differs first. */
__attribute__((unused)) static const char *gen_diff(const gen_result_t *a, const gen_result_t *b)
{
    static char text[200];
    for (uint32_t i = 0; i < VC_MIN(a->n, b->n); i++)
        if (a->tokens[i] != b->tokens[i]) {
            snprintf(text, sizeof text, "token %u: %u, expected %u", i, b->tokens[i], a->tokens[i]);
            return text;
        }
    if (a->n != b->n || a->finish != b->finish) {
        snprintf(text, sizeof text, "%u tokens (%s), expected %u (%s)", b->n, node_finish_name(b->finish), a->n,
                 node_finish_name(a->finish));
        return text;
    }
    if (!gen_digest_equal(&a->logits, &b->logits))
        return "committed logits";
    return gen_digest_equal(&a->kv, &b->kv) ? "" : "full KV";
}
#define GEN_EQUAL(a, b, ...)                                       \
    do {                                                           \
        const char *gen_d_ = gen_diff(a, b);                       \
        if (gen_d_[0]) {                                           \
            char gen_t_[200];                                      \
            snprintf(gen_t_, sizeof gen_t_, __VA_ARGS__);          \
            cr_assert(false, "%s: differs in %s", gen_t_, gen_d_); \
        }                                                          \
    } while (0)

/* Deterministic printable text as tokens of the tiny model. */
__attribute__((unused)) static void gen_prompt(uint32_t seed, uint32_t *tokens, uint32_t n)
{
    uint64_t s = seed;
    for (uint32_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = TINY_ID_FIRST_BYTE + 32 + (uint32_t)(s >> 33) % 95;
    }
}

#endif
