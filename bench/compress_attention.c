/*
 * One decoding step of SmolLM2's shape on one thread, all layers: full f16 pages against bodies of the same numbers,
 * interleaved. No model is needed.
 */
#include <stdio.h>
#include <string.h>

#include "compress/codec.h"
#include "compress_parts.h"
#include "kernels/backend.h"
#include "kernels/numerics.h"
#include "vc/mem.h"

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
    OK(node_body_add_record(sink->builder, record, bytes, &compress_err));
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
    OK(node_spec_parse(text, &spec, &compress_err));
    OK(node_body_begin(&spec, &m, n_blocks, &sink.builder, &compress_err));
    double t0 = bench_now_s();
    sink.add_s = 0;
    OK(node_compress(&spec, &in, add_record, &sink, &compress_err));
    double all = bench_now_s() - t0;
    OK(node_body_finish(sink.builder, &body, &compress_err));
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
void compress_attention(uint32_t n_tokens)
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
