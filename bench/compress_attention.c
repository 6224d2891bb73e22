/*
 * One decoding step's attention of SmolLM2's shape on one thread, all layers: full f16 pages against bodies of the same
 * numbers, interleaved, walked as model/attend.c walks them. Quantisers are compressed and loaded for real. What a
 * dropper keeps is made up, since attention does not care which rows those are: f16 rows, or rows coded as rot codes
 * them ("keep" with "+rot"). No model is needed.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compress/pack.h"
#include "compress_parts.h"
#include "kernels/backend.h"
#include "kernels/numerics.h"
#include "vc/mem.h"

enum {
    N_QUERY = 3,
    N_LAYER = 30,
    N_KV_HEAD = 3,
    N_HEADS = N_LAYER * N_KV_HEAD,
    DIM = 64
}; /* SmolLM2's; one row's queries of a KV head */

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

static node_model_info_t made_up_model(void)
{
    node_model_info_t m = {.n_layer = N_LAYER, .n_head = N_QUERY * N_KV_HEAD, .n_kv_head = N_KV_HEAD, .head_dim = DIM};
    m.keyspace.shape = (vc_kv_shape_t){N_LAYER, N_KV_HEAD, DIM, NODE_TILE, VC_DTYPE_F16};
    return m;
}

static double full_bytes(uint32_t n_blocks) { return (double)n_blocks * NODE_TILE * N_HEADS * DIM * 4; }

static node_body_t *quantised_body(const node_kv_t *kv, const char *text, uint32_t n_blocks)
{
    const node_model_info_t m = made_up_model();
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
               sink.add_s, (double)body->bytes / full_bytes(n_blocks));
    vc_free(tokens);
    return body;
}

static void free_made_up(node_body_t *body)
{
    for (uint32_t i = 0; i < N_HEADS; i++) {
        const node_tile_t *first = body->tiles[i];
        vc_free(first->codes ? (void *)(uintptr_t)first->codes : (void *)(uintptr_t)first->k);
        vc_free(body->tiles[i]);
    }
    vc_free(body->tiles);
    vc_free(body->n_tiles);
    vc_free(body);
}

/* n of the rows of a block in f16, or coded with codes of no meaning, scale 1/8 and minimum -1. */
static node_kept_t made_up_rows(const node_kv_t *kv, uint32_t block, uint32_t head, uint64_t rows,
                                const node_coded_form_t *form, uint8_t *buf)
{
    node_page_t *page = node_kv_page_at(kv, block);
    const uint32_t n = (uint32_t)__builtin_popcountll(rows);
    (void)node_dropper_encode_head(buf, page, head / N_KV_HEAD, head % N_KV_HEAD, DIM, rows);
    node_kept_t kept = {rows, buf + NODE_BITMAP_BYTES, buf + NODE_BITMAP_BYTES + (size_t)n * DIM * 2};
    if (form->bits) {
        const size_t codes = (size_t)n * DIM * form->bits / 8, n_params = (size_t)n * (DIM / form->group);
        static const uint16_t scale = 0x3000, min = 0xbc00;
        for (int m = 0; m < 2; m++)
            for (size_t i = 0; i < n_params; i++) {
                uint8_t *at = buf + NODE_BITMAP_BYTES + (size_t)m * n * DIM * 2 + codes;
                memcpy(at + 2 * i, &scale, 2);
                memcpy(at + 2 * (n_params + i), &min, 2);
            }
    }
    return kept;
}

/* Every head keeps its own rows; bits 0: f16. */
static node_body_t *dropped_body(const node_kv_t *kv, double keep, uint32_t bits, uint32_t n_blocks)
{
    uint8_t codes[2][NODE_TILE * DIM], buf[NODE_BITMAP_BYTES + NODE_TILE * DIM * 4];
    node_body_t *body = vc_calloc(1, sizeof *body);
    body->dims = (node_kv_dims_t){N_LAYER, N_KV_HEAD, DIM};
    body->n_tokens = n_blocks * NODE_TILE;
    body->tiles = vc_calloc(N_HEADS, sizeof *body->tiles);
    body->n_tiles = vc_calloc(N_HEADS, sizeof *body->n_tiles);
    body->destroy = free_made_up;
    atomic_init(&body->refs, 1);
    if (bits)
        node_coded_form_init(&body->form, bits, DIM, DIM);
    const size_t slab_bytes = n_blocks * node_pack_tile_bytes(&body->form, DIM);
    uint64_t kept_rows = 0;
    uint32_t x = 7;
    for (uint32_t i = 0; i < N_HEADS; i++) {
        node_packer_t p = {.dim = DIM, .form = &body->form, .k_codes = codes[0], .v_codes = codes[1]};
        p.tiles = body->tiles[i] = vc_calloc(n_blocks, sizeof *p.tiles);
        p.slab = vc_alloc_aligned(64, slab_bytes);
        if (p.tiles == NULL || p.slab == NULL)
            bench_fail("no memory for a body");
        memset(p.slab, 0, slab_bytes);
        for (uint32_t b = 0; b < n_blocks; b++) {
            uint64_t rows = 0;
            for (uint32_t r = 0; r < NODE_TILE; r++) {
                x = x * 1664525u + 1013904223u;
                rows |= (uint64_t)((x >> 8) * 0x1p-24 < keep) << r;
            }
            node_kept_t kept = made_up_rows(kv, b, i, rows, &body->form, buf);
            node_pack_rows(&p, &kept);
            kept_rows += (uint64_t)__builtin_popcountll(rows);
        }
        node_pack_close(&p);
        body->n_tiles[i] = p.n_tiles;
    }
    body->bytes = kept_rows * (bits ? node_pack_coded_bytes(&body->form, 2) : DIM * 4u);
    return body;
}

typedef struct {
    _Alignas(64) float q[N_QUERY * DIM], m[2][N_QUERY], l[2][N_QUERY], o[2][N_QUERY * DIM], p[N_QUERY * NODE_TILE];
    node_coded_query_t coded[N_QUERY];
} scratch_t;

static void reset(scratch_t *s, int which)
{
    for (uint32_t n = 0; n < N_QUERY; n++) {
        s->m[which][n] = -__builtin_inff();
        s->l[which][n] = 0;
    }
    memset(s->o[which], 0, sizeof s->o[which]);
}

/* All tiles of one head; tiles as model/attend.c sees them. */
static void attend_head(const node_ops_t *ops, const node_tile_t *tiles, uint32_t n, const node_coded_form_t *form,
                        scratch_t *s)
{
    const bool rotated = form->bits != 0 && form->key_tokens == 0;
    node_attn_t a = {.n_q = N_QUERY, .head_dim = DIM, .q = s->q, .m = s->m[1], .l = s->l[1], .o = s->o[1], .p = s->p};
    for (uint32_t i = 0; i < N_QUERY && rotated; i++)
        ops->code_query(form, s->q + i * DIM, &s->coded[i]);
    reset(s, 0);
    for (uint32_t t = 0; t < n; t++) {
        if (t % NODE_SPLIT_TILES == 0)
            reset(s, 1);
        for (uint32_t i = 0; i < N_QUERY; i++)
            a.n_valid[i] = tiles[t].n_rows;
        const bool ask = t + 1 < n;
        a.next_k = ask ? tiles[t + 1].k : NULL;
        a.next_v = ask ? tiles[t + 1].v : NULL;
        if (tiles[t].codes)
            ops->attend_coded(&a, form, s->coded, tiles[t].codes);
        else
            ops->attend(&a, tiles[t].k, tiles[t].v);
        if (t + 1 < n && (t + 1) % NODE_SPLIT_TILES != 0)
            continue;
        for (uint32_t i = 0; i < N_QUERY && rotated; i++)
            ops->hadamard(s->o[1] + i * DIM, DIM);
        ops->fold(N_QUERY, DIM, s->m[0], s->l[0], s->o[0], s->m[1], s->l[1], s->o[1]);
    }
}

/* body NULL: the pages. */
static double attend_us(const node_ops_t *ops, const node_kv_t *kv, const node_body_t *body, uint32_t n_blocks)
{
    static scratch_t s;
    static const node_coded_form_t plain;
    node_tile_t *tiles = vc_calloc(n_blocks, sizeof *tiles);
    if (!tiles)
        bench_fail("no memory for tiles");
    for (uint32_t i = 0; i < N_QUERY * DIM; i++)
        s.q[i] = (float)(i % 13) * 0.05f - 0.3f;
    double t0 = bench_cpu_s();
    for (uint32_t i = 0; i < N_HEADS; i++) {
        if (body) {
            attend_head(ops, body->tiles[i], body->n_tiles[i], &body->form, &s);
            continue;
        }
        for (uint32_t b = 0; b < n_blocks; b++)
            tiles[b] = (node_tile_t){node_page_k(kv->pages[b], i / N_KV_HEAD, i % N_KV_HEAD),
                                     node_page_v(kv->pages[b], i / N_KV_HEAD, i % N_KV_HEAD), NODE_TILE, NULL};
        attend_head(ops, tiles, n_blocks, &plain, &s);
    }
    double us = (bench_cpu_s() - t0) * 1e6;
    vc_free(tiles);
    return us;
}

typedef struct {
    const char *name;
    double keep; /* 0: name is the spec of a quantiser */
    uint32_t bits;
    const char *figure; /* or NULL */
    node_body_t *body;
    bench_samples_t us, ratio;
} attended_t;

static void report(attended_t *s, uint32_t n_tokens)
{
    char name[120];
    const double bytes = (double)s->body->bytes / full_bytes(n_tokens / NODE_TILE);
    snprintf(name, sizeof name, "%u tokens, %s", n_tokens, s->name);
    bench_row(name, "us", &s->us);
    snprintf(name, sizeof name, "%u tokens, %s / full", n_tokens, s->name);
    bench_row(name, "x", &s->ratio);
    bench_note("%s: %.3f of the bytes, %.2f of (bytes x full)", s->name, bytes, bench_median(&s->ratio) / bytes);
    if (s->figure) {
        snprintf(name, sizeof name, "%s_%uk", s->figure, n_tokens / 1024);
        bench_figure(name, bench_median(&s->ratio) / (s->keep > 0 && s->bits == 0 ? bytes : 1));
    }
    node_body_put(s->body);
    bench_samples_free(&s->us);
    bench_samples_free(&s->ratio);
    s->body = NULL;
}

void compress_attention(uint32_t n_tokens)
{
    static attended_t list[] = {
        {.name = "rot:bits=8,residual=0"},
        {.name = "rot:bits=4,residual=0", .figure = "rot4_attend_vs_full"},
        {.name = "rot:bits=4,residual=0,center=no"},
        {.name = "rot:bits=4,group=32,residual=0"},
        {.name = "rot:bits=3,residual=0"},
        {.name = "rot:bits=2,residual=0"},
        {.name = "kivi:bits=8,residual=0"},
        {.name = "kivi:bits=4,residual=0", .figure = "kivi4_attend_vs_full"},
        {.name = "kivi:bits=2,residual=0"},
        {.name = "keep=0.5", .keep = 0.5, .figure = "keep50_attend_vs_bytes"},
        {.name = "keep=0.25", .keep = 0.25, .figure = "keep25_attend_vs_bytes"},
        {.name = "keep=0.125", .keep = 0.125, .figure = "keep12_attend_vs_bytes"},
        {.name = "keep=0.5+rot:bits=4", .keep = 0.5, .bits = 4, .figure = "keep50_rot4_attend_vs_full"},
        {.name = "keep=0.25+rot:bits=4", .keep = 0.25, .bits = 4},
    };
    enum { N = sizeof list / sizeof *list };
    const uint32_t n_blocks = n_tokens / NODE_TILE,
                   reps = bench_quick() ? 3 : (uint32_t)atoi(bench_option("reps", "15"));
    const node_ops_t *ops = node_ops_get(NODE_OPS_AVX512);
    if (!ops)
        ops = node_ops_get(NODE_OPS_AVX2);
    if (!ops)
        ops = &node_ops_scalar;
    node_kv_t kv;
    bench_samples_t full = {0};
    made_up_kv(&kv, n_blocks);
    for (int i = 0; i < N; i++)
        list[i].body = list[i].keep > 0 ? dropped_body(&kv, list[i].keep, list[i].bits, n_blocks)
                                        : quantised_body(&kv, list[i].name, n_blocks);
    for (uint32_t r = 0; r < reps; r++)
        for (int i = 0; i < N; i++) {
            double before = attend_us(ops, &kv, NULL, n_blocks); /* next to its neighbour: the machine may be shared */
            double us = attend_us(ops, &kv, list[i].body, n_blocks);
            bench_add(&full, before);
            bench_add(&list[i].us, us);
            bench_add(&list[i].ratio, us / before);
        }
    char name[120];
    snprintf(name, sizeof name, "%u tokens, %s: full f16", n_tokens, ops->name);
    bench_row(name, "us", &full);
    for (int i = 0; i < N; i++)
        report(&list[i], n_tokens);
    bench_samples_free(&full);
    node_kv_fini(&kv);
}
