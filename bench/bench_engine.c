/*
 * Decode and prefill speed of the engine on the real model, against llama.cpp's llama-bench on the same file: one row
 * of decode at several depths, and a prompt of 2048 tokens. Both use the same number of threads and f16 KV; llama.cpp
 * runs without flash attention, which is its faster setting on a CPU. Runs are interleaved, figures are ratios of
 * medians.
 *
 * VERICACHE_MODEL names the model. --peer PATH: llama-bench (default: what bench/peers/engine.sh built). Without it the
 * table has our side only and no figure is printed. --isa NAME, --threads N, --reps N, --depths 512,2048.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "model/engine.h"
#include "vc/mem.h"

enum { STEPS = 32, PROMPT = 2048, MAX_DEPTHS = 8 };

typedef struct {
    const char *model, *peer; /* peer NULL: none */
    uint32_t threads, reps, steps, prompt;
    uint32_t depths[MAX_DEPTHS], n_depths;
    node_gguf_t *gguf;
    node_engine_t *eng;
    const node_model_info_t *info;
    float *logits;
} bench_t;

static void check(vc_status_t st, const vc_err_t *err)
{
    if (st != VC_OK)
        bench_fail("%s", err->msg[0] != 0 ? err->msg : vc_status_name(st));
}

static node_isa_t isa_option(void)
{
    const char *name = bench_option("isa", "auto");
    for (node_isa_t isa = NODE_ISA_AUTO; isa <= NODE_ISA_AVX512; isa++)
        if (strcmp(name, node_isa_name(isa)) == 0)
            return isa;
    bench_fail("--isa %s: not one of auto, scalar, avx2, avx512", name);
}

static void parse_depths(bench_t *b)
{
    const char *at = bench_option("depths", bench_quick() ? "64" : "512,2048,4096,8192");
    while (*at != 0 && b->n_depths < MAX_DEPTHS) {
        char *end;
        unsigned long v = strtoul(at, &end, 10);
        if (end == at || v == 0 || v > b->info->context)
            bench_fail("--depths: %s is not a list of depths of at most %u", at, b->info->context);
        /* the deepest run still needs room for its steps */
        b->depths[b->n_depths++] = (uint32_t)VC_MIN(v, b->info->context - b->steps);
        at = *end == ',' ? end + 1 : end;
    }
}

static const char *find_peer(void)
{
    static char path[4096];
    const char *cache = getenv("VERICACHE_CACHE"), *home = getenv("HOME"), *option = bench_option("peer", NULL);
    if (option != NULL)
        snprintf(path, sizeof path, "%s", option);
    else if (cache != NULL)
        snprintf(path, sizeof path, "%s/peers/llama-bench-11434.0.0", cache);
    else
        snprintf(path, sizeof path, "%s/.cache/vericache/peers/llama-bench-11434.0.0", home != NULL ? home : "");
    if (access(path, X_OK) == 0)
        return path;
    bench_note("no llama-bench at %s (bench/peers/engine.sh builds it): our side only", path);
    return NULL;
}

static void fill_tokens(uint32_t *tokens, uint32_t n, uint32_t n_vocab)
{
    uint32_t s = 12345;
    for (uint32_t i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        tokens[i] = (s >> 8) % n_vocab;
    }
}

/* Tokens per second of llama-bench with these arguments. */
static double peer_rate(const bench_t *b, const char *prompt, const char *gen, const char *depth)
{
    char threads[16];
    static char out[1 << 16];
    snprintf(threads, sizeof threads, "%u", b->threads);
    char *argv[] = {(char *)b->peer, (char *)"-m",  (char *)b->model, (char *)"-p",   (char *)prompt,
                    (char *)"-n",    (char *)gen,   (char *)"-d",     (char *)depth,  (char *)"-t",
                    threads,         (char *)"-fa", (char *)"0",      (char *)"-ctk", (char *)"f16",
                    (char *)"-ctv",  (char *)"f16", (char *)"-r",     (char *)"1",    (char *)"-o",
                    (char *)"json",  NULL};
    int rc = bench_run(argv, out, sizeof out);
    if (rc != 0)
        bench_fail("llama-bench ended with %d", rc);
    json_error_t error;
    json_t *j = json_loads(out, 0, &error);
    double rate = json_number_value(json_object_get(json_array_get(j, 0), "avg_ts"));
    json_decref(j);
    if (!(rate > 0))
        bench_fail("llama-bench printed no avg_ts");
    return rate;
}

static double decode_rate(bench_t *b, node_kv_t *kv, const uint32_t *tokens)
{
    vc_err_t err = {0};
    uint32_t depth = kv->n_tokens;
    double start = bench_now_s();
    for (uint32_t i = 0; i < b->steps; i++) {
        node_row_t row = {kv, tokens[i], true};
        check(node_forward(b->eng, &row, 1, b->logits, NULL, &err), &err);
    }
    double rate = b->steps / (bench_now_s() - start);
    check(node_kv_truncate(kv, depth), &err);
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

static void name_depth(char *name, size_t size, const char *what, uint32_t asked)
{
    if (asked >= 1000)
        snprintf(name, size, "%s_%uk", what, (asked + 512) / 1024);
    else
        snprintf(name, size, "%s_%u", what, asked);
}

static void bench_decode(bench_t *b, uint32_t depth)
{
    node_kv_dims_t dims;
    node_kv_t kv;
    vc_err_t err = {0};
    bench_samples_t ours = {0}, theirs = {0};
    char name[64], depth_text[16], steps_text[16];
    uint32_t *tokens = vc_calloc(depth + b->steps, sizeof *tokens);
    fill_tokens(tokens, depth + b->steps, b->info->n_vocab);
    node_engine_kv_dims(b->eng, &dims);
    check(node_kv_init(&kv, &dims, NULL), &err);
    check(node_prefill(b->eng, &kv, tokens, depth, NULL, NULL, &err), &err);
    decode_rate(b, &kv, tokens + depth); /* warm */
    snprintf(depth_text, sizeof depth_text, "%u", depth);
    snprintf(steps_text, sizeof steps_text, "%u", b->steps);
    for (uint32_t i = 0; i < b->reps; i++) {
        bench_add(&ours, decode_rate(b, &kv, tokens + depth));
        if (b->peer != NULL)
            bench_add(&theirs, peer_rate(b, "0", steps_text, depth_text));
    }
    name_depth(name, sizeof name, "decode", depth);
    report(name, &ours, &theirs);
    bench_samples_free(&ours);
    bench_samples_free(&theirs);
    node_kv_fini(&kv);
    vc_free(tokens);
}

static void bench_prefill(bench_t *b)
{
    node_kv_dims_t dims;
    vc_err_t err = {0};
    bench_samples_t ours = {0}, theirs = {0};
    char name[64], text[16];
    uint32_t *tokens = vc_calloc(b->prompt, sizeof *tokens);
    fill_tokens(tokens, b->prompt, b->info->n_vocab);
    node_engine_kv_dims(b->eng, &dims);
    snprintf(text, sizeof text, "%u", b->prompt);
    for (uint32_t i = 0; i < b->reps; i++) {
        node_kv_t kv;
        check(node_kv_init(&kv, &dims, NULL), &err);
        double start = bench_now_s();
        check(node_prefill(b->eng, &kv, tokens, b->prompt, b->logits, NULL, &err), &err);
        bench_add(&ours, b->prompt / (bench_now_s() - start));
        node_kv_fini(&kv);
        if (b->peer != NULL)
            bench_add(&theirs, peer_rate(b, text, "0", "0"));
    }
    name_depth(name, sizeof name, "prefill", b->prompt);
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
    opts.isa = isa_option();
    check(node_gguf_open(b->model, &b->gguf, &err), &err);
    double start = bench_now_s();
    check(node_engine_create(b->gguf, NULL, &opts, &b->eng, &err), &err);
    b->info = node_engine_info(b->eng);
    bench_note("isa %s, %u threads, load %.2f s", node_isa_name(node_engine_isa(b->eng)), b->threads,
               bench_now_s() - start);
    b->logits = vc_calloc(b->info->n_vocab, sizeof *b->logits);
    if (b->logits == NULL)
        bench_fail("no memory for logits");
}

int main(int argc, char **argv)
{
    bench_init("engine", argc, argv);
    bench_t b = {.model = getenv("VERICACHE_MODEL")};
    if (b.model == NULL) {
        bench_note("skipped: VERICACHE_MODEL does not name a model");
        return 0;
    }
    b.threads = (uint32_t)strtoul(bench_option("threads", "2"), NULL, 10);
    b.reps = (uint32_t)strtoul(bench_option("reps", bench_quick() ? "1" : "5"), NULL, 10);
    b.steps = bench_quick() ? 4 : STEPS;
    b.prompt = bench_quick() ? 64 : PROMPT;
    if (b.reps < 1 || b.reps > 1000)
        bench_fail("--reps must be 1 to 1000");
    b.peer = bench_quick() ? NULL : find_peer();
    open_engine(&b);
    parse_depths(&b);
    for (uint32_t i = 0; i < b.n_depths; i++)
        bench_decode(&b, b.depths[i]);
    bench_prefill(&b);
    vc_free(b.logits);
    node_engine_destroy(b.eng);
    node_gguf_close(b.gguf);
    return 0;
}
