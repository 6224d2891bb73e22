/*
 * Decode and prefill speed of the engine on the real model, against llama.cpp's llama-bench on the same file: one row
 * of decode at several depths, and a prompt of 2048 tokens. Both use the same number of threads and f16 KV; llama.cpp
 * runs with flash attention or without, whichever is faster there. Runs are interleaved, figures are ratios of
 * medians. Besides: decoding as a share of the memory bandwidth, measured between its runs on as many bytes as a step
 * reads, and passes of 2 to 64 rows as a share of the multiply-add peak (row_ratio: of the time of one row).
 *
 * --part decode|prefill|roofline|verify|all. VERICACHE_MODEL names the model. --peer PATH: llama-bench (default: what
 * bench/peers/engine.sh built; - for none). Without it the table has our side only and no figure is printed. --fa
 * auto|on|off, --isa NAME, --threads N, --reps N, --depths 512,2048.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_parts.h"
#include "isa_option.h"
#include "kernels/team.h"
#include "vc/mem.h"

enum { STEPS = 32, PROMPT = 2048, LOGIT_ROWS = 64 };

void engine_check(vc_status_t st, const vc_err_t *err)
{
    if (st != VC_OK)
        bench_fail("%s", err->msg[0] != 0 ? err->msg : vc_status_name(st));
}

static void parse_depths(bench_t *b)
{
    const char *at = bench_option("depths", bench_quick() ? "64" : "512,2048,4096,8192");
    while (*at != 0 && b->n_depths < ENGINE_MAX_DEPTHS) {
        char *end;
        unsigned long v = strtoul(at, &end, 10);
        if (end == at || v == 0 || v > b->info->context)
            bench_fail("--depths: %s is not a list of depths of at most %u", at, b->info->context);
        /* the deepest run still needs room for its steps */
        b->depths[b->n_depths++] = (uint32_t)VC_MIN(v, b->info->context - b->steps);
        at = *end == ',' ? end + 1 : end;
    }
}

void engine_fill_tokens(uint32_t *tokens, uint32_t n, uint32_t n_vocab)
{
    uint32_t s = 12345;
    for (uint32_t i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        tokens[i] = (s >> 8) % n_vocab;
    }
}

static double decode_rate(bench_t *b, node_kv_t *kv, const uint32_t *tokens)
{
    vc_err_t err = {0};
    uint32_t depth = kv->n_tokens;
    double start = bench_now_s();
    for (uint32_t i = 0; i < b->steps; i++) {
        node_row_t row = {kv, tokens[i], true};
        engine_check(node_forward(b->eng, &row, 1, b->logits, NULL, &err), &err);
    }
    double rate = b->steps / (bench_now_s() - start);
    engine_check(node_kv_truncate(kv, depth), &err);
    return rate;
}

/* One row "ours", one row "llama.cpp", one figure. */
static void report(const char *what, const bench_samples_t *ours, const bench_samples_t *theirs)
{
    char name[64];
    snprintf(name, sizeof name, "%s ours", what);
    bench_row(name, "tokens/s", ours);
    if (theirs->n == 0)
        return;
    snprintf(name, sizeof name, "%s llama.cpp", what);
    bench_row(name, "tokens/s", theirs);
    const char *cut = strchr(what, '_');
    snprintf(name, sizeof name, "%.*s_vs_llamacpp%s", (int)(cut - what), what, cut);
    bench_figure(name, bench_median(ours) / bench_median(theirs));
}

void engine_name(char *name, size_t size, const char *what, uint32_t asked)
{
    if (asked >= 1000)
        snprintf(name, size, "%s_%uk", what, (asked + 512) / 1024);
    else
        snprintf(name, size, "%s_%u", what, asked);
}

void engine_fill(bench_t *b, node_kv_t *kv, uint32_t depth)
{
    node_kv_dims_t dims;
    vc_err_t err = {0};
    uint32_t *tokens = vc_calloc(depth, sizeof *tokens);
    if (tokens == NULL)
        bench_fail("no memory for %u tokens", depth);
    engine_fill_tokens(tokens, depth, b->info->n_vocab);
    node_engine_kv_dims(b->eng, &dims);
    engine_check(node_kv_init(kv, &dims, NULL), &err);
    engine_check(node_prefill(b->eng, kv, tokens, depth, NULL, NULL, &err), &err);
    vc_free(tokens);
}

/* Bytes that a step reads: all weights, and the KV before it. */
static double step_bytes(const bench_t *b, uint32_t depth)
{
    const node_model_info_t *m = b->info;
    return (double)m->weight_bytes + (double)depth * m->n_layer * m->n_kv_head * m->head_dim * 2 * sizeof(uint16_t);
}

static void bench_decode(bench_t *b, uint32_t depth)
{
    node_kv_t kv;
    bench_samples_t ours = {0}, theirs = {0}, reads = {0};
    char name[64], depth_text[16], steps_text[16];
    uint32_t tokens[STEPS];
    engine_fill_tokens(tokens, b->steps, b->info->n_vocab);
    engine_fill(b, &kv, depth);
    decode_rate(b, &kv, tokens); /* warm */
    engine_reader_t *reader = engine_reader_open(b, step_bytes(b, depth));
    snprintf(depth_text, sizeof depth_text, "%u", depth);
    snprintf(steps_text, sizeof steps_text, "%u", b->steps);
    bool flash = b->peer != NULL && engine_peer_flash(b, "0", steps_text, depth_text);
    for (uint32_t i = 0; i < b->reps; i++) {
        bench_add(&ours, decode_rate(b, &kv, tokens));
        if (reader != NULL)
            bench_add(&reads, engine_reader_rate(reader, b->steps));
        if (b->peer != NULL)
            bench_add(&theirs, engine_peer_rate(b, "0", steps_text, depth_text, flash));
    }
    engine_name(name, sizeof name, "decode", depth);
    report(name, &ours, &theirs);
    if (reader != NULL) {
        engine_name(name, sizeof name, "decode_bandwidth_share", depth);
        bench_note("%.1f GB/s of %.1f", bench_median(&ours) * step_bytes(b, depth) / 1e9, bench_median(&reads) / 1e9);
        bench_figure(name, bench_median(&ours) * step_bytes(b, depth) / bench_median(&reads));
    }
    engine_reader_close(reader);
    bench_samples_free(&ours);
    bench_samples_free(&theirs);
    bench_samples_free(&reads);
    node_kv_fini(&kv);
}

static void bench_prefill(bench_t *b)
{
    node_kv_dims_t dims;
    vc_err_t err = {0};
    bench_samples_t ours = {0}, theirs = {0};
    char name[64], text[16];
    uint32_t *tokens = vc_calloc(b->prompt, sizeof *tokens);
    engine_fill_tokens(tokens, b->prompt, b->info->n_vocab);
    node_engine_kv_dims(b->eng, &dims);
    snprintf(text, sizeof text, "%u", b->prompt);
    bool flash = b->peer != NULL && engine_peer_flash(b, text, "0", "0");
    for (uint32_t i = 0; i < b->reps; i++) {
        node_kv_t kv;
        engine_check(node_kv_init(&kv, &dims, NULL), &err);
        double start = bench_now_s();
        engine_check(node_prefill(b->eng, &kv, tokens, b->prompt, b->logits, NULL, &err), &err);
        bench_add(&ours, b->prompt / (bench_now_s() - start));
        node_kv_fini(&kv);
        if (b->peer != NULL)
            bench_add(&theirs, engine_peer_rate(b, text, "0", "0", flash));
    }
    engine_name(name, sizeof name, "prefill", b->prompt);
    report(name, &ours, &theirs);
    bench_samples_free(&ours);
    bench_samples_free(&theirs);
    vc_free(tokens);
}

static void open_engine(bench_t *b)
{
    vc_err_t err = {0};
    node_engine_opts_t opts;
    node_engine_opts_default(&opts);
    opts.n_threads = b->threads;
    opts.isa = bench_isa();
    engine_check(node_gguf_open(b->model, &b->gguf, &err), &err);
    double start = bench_now_s();
    engine_check(node_engine_create(b->gguf, NULL, &opts, &b->eng, &err), &err);
    b->info = node_engine_info(b->eng);
    bench_note("isa %s, %u threads, load %.2f s", node_isa_name(node_engine_isa(b->eng)), b->threads,
               bench_now_s() - start);
    b->logits = vc_calloc((size_t)LOGIT_ROWS * b->info->n_vocab, sizeof *b->logits);
    if (b->logits == NULL)
        bench_fail("no memory for logits");
}

static bool part(const char *name)
{
    static const char *const parts[] = {"all", "decode", "prefill", "roofline", "verify"};
    const char *asked = bench_option("part", "all");
    bool known = false;
    for (size_t i = 0; i < VC_ARRAY_LEN(parts); i++)
        known |= strcmp(asked, parts[i]) == 0;
    if (!known)
        bench_fail("--part %s: not one of all, decode, prefill, roofline, verify", asked);
    return strcmp(asked, "all") == 0 || strcmp(asked, name) == 0;
}

int main(int argc, char **argv)
{
    bench_init("engine", argc, argv);
    bench_options("part peer fa isa threads reps depths");
    bench_t b = {.model = getenv("VERICACHE_MODEL")};
    if (b.model == NULL) {
        bench_note("skipped: VERICACHE_MODEL does not name a model");
        return 0;
    }
    b.threads = (uint32_t)strtoul(bench_option("threads", "2"), NULL, 10);
    b.reps = (uint32_t)strtoul(bench_option("reps", bench_quick() ? "1" : "5"), NULL, 10);
    b.steps = bench_quick() ? 4 : STEPS;
    b.prompt = bench_quick() ? 64 : PROMPT;
    if (b.threads < 1 || b.threads > node_team_processors())
        bench_fail("--threads must be 1 to %u, the processors here", node_team_processors());
    if (b.reps < 1 || b.reps > 1000)
        bench_fail("--reps must be 1 to 1000");
    const bool decode = part("decode"), prefill = part("prefill"), verify = part("verify"), peak = part("roofline");
    b.peer =
        bench_quick() || !(decode || prefill) || strcmp(bench_option("peer", ""), "-") == 0 ? NULL : engine_find_peer();
    open_engine(&b);
    parse_depths(&b);
    if (verify || peak)
        b.roofline = engine_roofline(&b);
    for (uint32_t i = 0; i < b.n_depths && decode; i++)
        bench_decode(&b, b.depths[i]);
    if (prefill)
        bench_prefill(&b);
    if (verify && b.roofline.dot_per_s > 0)
        engine_verify(&b);
    vc_free(b.logits);
    node_engine_destroy(b.eng);
    node_gguf_close(b.gguf);
    return 0;
}
