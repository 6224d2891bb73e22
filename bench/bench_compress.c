/*
 * What does a compressed body cost in acceptance, and how long does attention over it take?
 *
 * Acceptance: the true text behind a prefix is forced, and the next token that the drafter would choose is compared
 * with the choice of full KV at every position. From the runs of equal choices follows how many of x drafts are
 * accepted. A position inside a loop of greedy decoding does not occur, since the text is real. Several texts, every
 * compressor in the same run, prefill and compression outside of any clock.
 * Attention: one decoding step of SmolLM2's shape on one thread, all layers, full f16 pages against coded tiles of the
 * same numbers, interleaved.
 *   --model FILE (else VERICACHE_MODEL), --compressors LIST separated by ';', --texts LIST of files separated by ';'
 *   --part attention|acceptance|all
 *   --prefix N tokens, --forced N tokens, --threads N
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "kernels/backend.h"
#include "kernels/numerics.h"
#include "node.h"
#include "role/local_body.h"
#include "role/prompt.h"
#include "vc/log.h"
#include "vc/mem.h"

enum { MAX_SPECS = 24, MAX_TEXTS = 8, N_X = 3 };
static const uint32_t lengths[N_X] = {8, 16, 30};

static vc_err_t err;
#define OK(call)                                                \
    do {                                                        \
        vc_status_t st_ = (call);                               \
        if (st_ != VC_OK)                                       \
            bench_fail("%s: %s", vc_status_name(st_), err.msg); \
    } while (0)

typedef struct {
    char text[VC_SPEC_TEXT_MAX];
    uint64_t n, same, runs;
    uint64_t accepted[N_X];
    uint64_t bytes, numbers; /* of the bodies in memory */
} spec_t;

static node_t *node;

static void open_node(void)
{
    node_opts_t o;
    node_opts_default(&o);
    o.model_path = bench_option("model", getenv("VERICACHE_MODEL"));
    if (!o.model_path || !o.model_path[0])
        bench_fail("no model: give --model FILE or set VERICACHE_MODEL");
    o.engine.n_threads = (uint32_t)atoi(bench_option("threads", "2"));
    OK(node_open(&o, &node, &err));
}

/* tokens[0..n) of a file from an offset on; false when it is too short. */
static bool read_tokens(const char *path, uint32_t n, uint32_t *tokens)
{
    char *data;
    size_t bytes;
    uint32_t *ids, n_ids;
    OK(node_prompt_read_file(path, (size_t)4 << 20, &data, &bytes, &err));
    OK(node_tokenizer_encode(node->tok, data, bytes, false, &ids, &n_ids, &err));
    bool enough = n_ids >= n;
    if (enough)
        memcpy(tokens, ids, n * sizeof *tokens);
    vc_free(ids);
    vc_free(data);
    return enough;
}

/* The most likely next token at each forced position. Takes kv over. */
static void choices(node_kv_t *kv, const uint32_t *forced, uint32_t n, uint32_t *out)
{
    enum { ROWS = 64 };
    const uint32_t n_vocab = node_engine_info(node->engine)->n_vocab;
    float *logits = vc_alloc_aligned(64, (size_t)ROWS * n_vocab * sizeof *logits);
    if (!logits)
        bench_fail("no memory for logits");
    for (uint32_t done = 0; done < n; done += ROWS) {
        node_row_t rows[ROWS];
        uint32_t m = VC_MIN(n - done, (uint32_t)ROWS);
        for (uint32_t i = 0; i < m; i++)
            rows[i] = (node_row_t){kv, forced[done + i], true};
        OK(node_forward(node->engine, rows, m, logits, NULL, &err));
        for (uint32_t i = 0; i < m; i++) {
            const float *l = logits + (size_t)i * n_vocab;
            uint32_t best = 0;
            for (uint32_t v = 1; v < n_vocab; v++)
                best = l[v] > l[best] ? v : best;
            out[done + i] = best;
        }
    }
    vc_free(logits);
    node_kv_fini(kv);
}

static void tally(spec_t *s, const uint32_t *want, const uint32_t *got, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        s->same += want[i] == got[i];
    s->n += n;
    for (uint32_t i = 0; i + lengths[N_X - 1] <= n; i++, s->runs++) {
        uint32_t run = 0;
        while (run < lengths[N_X - 1] && want[i + run] == got[i + run])
            run++;
        for (int x = 0; x < N_X; x++)
            s->accepted[x] += VC_MIN(run, lengths[x]);
    }
}

static void measure_text(const char *path, uint32_t prefix, uint32_t n_forced, spec_t *specs, uint32_t n_specs)
{
    uint32_t *tokens = vc_calloc((size_t)prefix + 3 * (size_t)n_forced, sizeof *tokens);
    if (!tokens)
        bench_fail("no memory for tokens");
    if (!read_tokens(path, prefix + n_forced, tokens)) {
        bench_note("%s has fewer than %u tokens: left out", path, prefix + n_forced);
        vc_free(tokens);
        return;
    }
    uint32_t *want = tokens + prefix + n_forced, *got = want + n_forced;
    node_kv_dims_t dims;
    node_kv_t full, kv;
    node_engine_kv_dims(node->engine, &dims);
    OK(node_kv_init(&full, &dims, NULL));
    OK(node_prefill(node->engine, &full, tokens, prefix, NULL, NULL, &err));
    OK(node_kv_init(&kv, &dims, NULL));
    for (uint32_t b = 0; b < prefix / NODE_TILE; b++)
        OK(node_kv_append_page(&kv, node_page_get(node_kv_page_at(&full, b))));
    choices(&kv, tokens + prefix, n_forced, want);
    for (uint32_t i = 0; i < n_specs; i++) {
        node_spec_t spec;
        node_body_t *body;
        OK(node_spec_parse(specs[i].text, &spec, &err));
        OK(node_local_body(node->engine, &spec, &full, tokens, prefix / NODE_TILE, &body, &err));
        specs[i].bytes += body->bytes;
        specs[i].numbers += (uint64_t)prefix * dims.n_layer * dims.n_kv_head * dims.head_dim * 2;
        OK(node_kv_init(&kv, &dims, body));
        node_body_put(body);
        choices(&kv, tokens + prefix, n_forced, got);
        tally(&specs[i], want, got, n_forced);
    }
    node_kv_fini(&full);
    vc_free(tokens);
}

static uint32_t split(const char *list, char (*out)[VC_SPEC_TEXT_MAX], uint32_t max)
{
    uint32_t n = 0;
    for (; *list && n < max; list += *list == ';') {
        size_t length = strcspn(list, ";");
        if (length >= VC_SPEC_TEXT_MAX)
            bench_fail("an entry of a list has at most %d bytes", VC_SPEC_TEXT_MAX - 1);
        if (length)
            snprintf(out[n++], VC_SPEC_TEXT_MAX, "%.*s", (int)length, list);
        list += length;
    }
    return n;
}

static void acceptance(void)
{
    static char texts[MAX_TEXTS][VC_SPEC_TEXT_MAX], names[MAX_SPECS][VC_SPEC_TEXT_MAX];
    static spec_t specs[MAX_SPECS];
    uint32_t n_texts =
        split(bench_option("texts", "/usr/share/common-licenses/GPL-3;tests/vectors/text/mixed.txt"), texts, MAX_TEXTS);
    uint32_t n_specs =
        split(bench_option("compressors", "rot:bits=4;kivi:bits=4;rot:bits=3;rot:bits=2;rot:bits=8"), names, MAX_SPECS);
    uint32_t prefix = (uint32_t)atoi(bench_option("prefix", bench_quick() ? "256" : "2048")) / NODE_TILE * NODE_TILE;
    uint32_t forced = (uint32_t)atoi(bench_option("forced", bench_quick() ? "64" : "256"));
    for (uint32_t i = 0; i < n_specs; i++)
        memcpy(specs[i].text, names[i], sizeof specs[i].text);
    for (uint32_t t = 0; t < n_texts; t++)
        measure_text(texts[t], prefix, forced, specs, n_specs);
    printf("%-36s %8s %8s %24s %8s\n", "compressor", "bits", "same", "accepted at 8/16/30", "memory");
    for (uint32_t i = 0; i < n_specs && specs[i].n; i++) {
        const spec_t *s = &specs[i];
        node_spec_t spec;
        OK(node_spec_parse(s->text, &spec, &err));
        double runs = (double)VC_MAX(s->runs, 1u);
        printf("%-36s %8.2f %8.4f %8.2f%8.2f%8.2f %8.3f\n", s->text,
               node_spec_bits_per_element(&spec, node_engine_info(node->engine)), (double)s->same / (double)s->n,
               (double)s->accepted[0] / runs, (double)s->accepted[1] / runs, (double)s->accepted[2] / runs,
               (double)s->bytes / (2.0 * (double)s->numbers));
    }
}

/* ---- attention ---- */

enum { N_QUERY = 3, N_LAYER = 30, N_KV_HEAD = 3, DIM = 64 }; /* SmolLM2's; one row's queries of a KV head */

typedef struct {
    node_body_builder_t *builder;
    double add_s;
} body_sink_t;

static int add_record(void *arg, uint32_t block, const void *record, size_t bytes)
{
    body_sink_t *sink = arg;
    (void)block;
    double t0 = bench_now_s();
    OK(node_body_add_record(sink->builder, record, bytes, &err));
    sink->add_s += bench_now_s() - t0;
    return 0;
}

/* Full KV of hashed numbers between -1 and 1; attention takes no shortcut that depends on them. */
static void made_up_kv(node_kv_t *kv, uint32_t n_blocks)
{
    const node_kv_dims_t dims = {N_LAYER, N_KV_HEAD, DIM};
    OK(node_kv_init(kv, &dims, NULL));
    uint32_t x = 1;
    for (uint32_t b = 0; b < n_blocks; b++) {
        node_page_t *page = node_page_create(&dims);
        if (!page)
            bench_fail("no memory for pages");
        for (uint32_t l = 0; l < N_LAYER; l++)
            for (uint32_t h = 0; h < N_KV_HEAD; h++)
                for (uint32_t i = 0; i < DIM * NODE_TILE; i++) {
                    x = x * 1664525u + 1013904223u;
                    node_page_k(page, l, h)[i] = node_f16_from_f32((float)(x >> 8) * 0x1p-23f - 1.0f);
                    x = x * 1664525u + 1013904223u;
                    node_page_v(page, l, h)[i] = node_f16_from_f32((float)(x >> 8) * 0x1p-23f - 1.0f);
                }
        OK(node_kv_append_page(kv, page));
    }
}

static node_body_t *made_up_body(const node_kv_t *kv, const char *text, uint32_t n_blocks)
{
    node_model_info_t m = {.n_layer = N_LAYER, .n_head = N_QUERY * N_KV_HEAD, .n_kv_head = N_KV_HEAD, .head_dim = DIM};
    m.keyspace.shape = (vc_kv_shape_t){N_LAYER, N_KV_HEAD, DIM, NODE_TILE, VC_DTYPE_F16};
    uint32_t *tokens = vc_calloc((size_t)n_blocks * NODE_TILE, sizeof *tokens);
    node_compress_in_t in = {.model = &m, .kv = kv, .tokens = tokens, .n_blocks = n_blocks};
    node_spec_t spec;
    node_body_t *body;
    body_sink_t sink;
    if (!tokens)
        bench_fail("no memory for tokens");
    OK(node_spec_parse(text, &spec, &err));
    OK(node_body_begin(&spec, &m, n_blocks, &sink.builder, &err));
    double t0 = bench_now_s();
    sink.add_s = 0;
    OK(node_compress(&spec, &in, add_record, &sink, &err));
    double all = bench_now_s() - t0;
    OK(node_body_finish(sink.builder, &body, &err));
    bench_note("%s, %u tokens: compress %.3f s, load %.3f s, %.3f of f16", text, n_blocks * NODE_TILE, all - sink.add_s,
               sink.add_s, (double)body->bytes / ((double)n_blocks * NODE_TILE * N_LAYER * N_KV_HEAD * DIM * 4));
    vc_free(tokens);
    return body;
}

typedef struct {
    _Alignas(64) float q[N_QUERY * DIM], m[N_QUERY], l[N_QUERY], o[N_QUERY * DIM], p[N_QUERY * NODE_TILE];
    node_coded_query_t coded[N_QUERY];
} scratch_t;

/* One decoding step's attention of all layers on one thread; body NULL: the pages. */
static double attend_us(const node_ops_t *ops, const node_kv_t *kv, const node_body_t *body, uint32_t n_blocks)
{
    static scratch_t s;
    node_attn_t a = {.n_q = N_QUERY, .head_dim = DIM, .q = s.q, .m = s.m, .l = s.l, .o = s.o, .p = s.p};
    for (uint32_t i = 0; i < N_QUERY * DIM; i++)
        s.q[i] = (float)(i % 13) * 0.05f - 0.3f;
    double t0 = bench_now_s();
    for (uint32_t i = 0; i < N_LAYER * N_KV_HEAD; i++) {
        for (uint32_t n = 0; n < N_QUERY && body; n++)
            ops->code_query(&body->form, s.q + n * DIM, &s.coded[n]);
        for (uint32_t b = 0; b < n_blocks; b++) {
            if (b % NODE_SPLIT_TILES == 0)
                for (uint32_t n = 0; n < N_QUERY; n++) {
                    s.m[n] = -__builtin_inff();
                    s.l[n] = 0;
                    memset(s.o + n * DIM, 0, DIM * sizeof *s.o);
                    a.n_valid[n] = NODE_TILE;
                }
            if (body)
                ops->attend_coded(&a, &body->form, s.coded, body->tiles[i][b].codes);
            else
                ops->attend(&a, node_page_k(kv->pages[b], i / N_KV_HEAD, i % N_KV_HEAD),
                            node_page_v(kv->pages[b], i / N_KV_HEAD, i % N_KV_HEAD));
            for (uint32_t n = 0; n < N_QUERY && body && b % NODE_SPLIT_TILES == NODE_SPLIT_TILES - 1; n++)
                ops->hadamard(s.o + n * DIM, DIM);
        }
    }
    return (bench_now_s() - t0) * 1e6;
}

/* Every width against full f16, interleaved. */
static void attention(uint32_t n_tokens)
{
    static const char *const texts[] = {"rot:bits=4,residual=0", "rot:bits=4,group=32,residual=0",
                                        "rot:bits=2,residual=0", "rot:bits=3,residual=0", "rot:bits=8,residual=0"};
    enum { N = 5 };
    const uint32_t n_blocks = n_tokens / NODE_TILE, reps = bench_quick() ? 3 : 15;
    const node_ops_t *ops = node_ops_get(NODE_OPS_AVX512);
    if (!ops)
        ops = node_ops_get(NODE_OPS_AVX2);
    if (!ops)
        ops = &node_ops_scalar;
    node_kv_t kv;
    node_body_t *bodies[N];
    bench_samples_t full = {0}, coded[N] = {{0}}, ratio[N] = {{0}};
    made_up_kv(&kv, n_blocks);
    for (int i = 0; i < N; i++)
        bodies[i] = made_up_body(&kv, texts[i], n_blocks);
    for (uint32_t r = 0; r < reps; r++) {
        double base = attend_us(ops, &kv, NULL, n_blocks);
        bench_add(&full, base);
        for (int i = 0; i < N; i++) {
            double us = attend_us(ops, &kv, bodies[i], n_blocks);
            bench_add(&coded[i], us);
            bench_add(&ratio[i], us / base);
        }
    }
    char name[120];
    snprintf(name, sizeof name, "%u tokens, %s: full f16", n_tokens, ops->name);
    bench_row(name, "us", &full);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "%u tokens, %s", n_tokens, texts[i]);
        bench_row(name, "us", &coded[i]);
        snprintf(name, sizeof name, "%u tokens, %s / full", n_tokens, texts[i]);
        bench_row(name, "x", &ratio[i]);
    }
    snprintf(name, sizeof name, "quant4_attend_vs_full_%uk", n_tokens / 1024);
    bench_figure(name, bench_median(&ratio[0]));
    for (int i = 0; i < N; i++) {
        node_body_put(bodies[i]);
        bench_samples_free(&coded[i]);
        bench_samples_free(&ratio[i]);
    }
    bench_samples_free(&full);
    node_kv_fini(&kv);
}

int main(int argc, char **argv)
{
    bench_init("compress", argc, argv);
    vc_log_set_level(VC_LOG_WARN);
    const char *part = bench_option("part", "all");
    if (strcmp(part, "acceptance") != 0) {
        attention(bench_quick() ? 256 : 4096);
        if (!bench_quick())
            attention(8192);
    }
    if (strcmp(part, "attention") != 0) {
        open_node();
        acceptance();
        node_close(node);
    }
    return 0;
}
