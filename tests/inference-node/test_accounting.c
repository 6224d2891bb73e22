/*
 * Bits and bytes are the real ones, for every method of the table and every combination: a payload takes what its spec
 * says, a body in memory takes less than f16, and what is billed as few bits has lost something. Defects of other
 * caches that this guards against: nominal instead of real bytes, quantisation that saves no memory, groups of one
 * token that are stored whole and billed as two bits.
 */
#include <math.h>

#include "codec_fixture.h"
#include "role/local_body.h"
#include "support/tiny_model.h"
#include "vc/compressors.h"

typedef struct specs {
    uint32_t n;
    char text[96][VC_SPEC_TEXT_MAX];
} specs_t;

static void add(specs_t *s, const char *text, const char *more)
{
    cr_assert_lt(s->n, VC_ARRAY_LEN(s->text));
    snprintf(s->text[s->n++], VC_SPEC_TEXT_MAX, "%s%s", text, more);
}

static const vc_compressor_param_t *param(const vc_compressor_t *c, const char *name)
{
    for (uint32_t i = 0; i < c->n_params; i++)
        if (strcmp(c->params[i].name, name) == 0)
            return &c->params[i];
    return NULL;
}

/* Needs a model that reads the text again, which made-up KV has not. */
static bool replays(const char *text)
{
    node_spec_t spec = fx_spec(text);
    return (spec.ops->needs(&spec) & NODE_NEED_REPLAY) != 0;
}

/* Every method with every number of bits, and every share kept, plain and coded. How many rows are exact and, with
 * thresholds that were calibrated on another text, how many numbers lie outside of them is the data's affair: the
 * suites of those methods count them. */
static void all_specs(specs_t *s)
{
    static const char *const keeps[] = {":keep=0.5", ":keep=0.25", ":keep=0.125"};
    static const char *const coded[] = {"", "+rot:bits=2", "+rot:bits=3,group=32", "+rot:bits=4", "+rot:bits=8"};
    uint32_t n;
    const vc_compressor_t *list = vc_compressors(&n);
    for (uint32_t i = 0; i < n; i++) {
        const vc_compressor_param_t *bits = param(&list[i], "bits");
        char text[64], value[40];
        if (replays(list[i].name))
            continue;
        if (param(&list[i], "keep")) {
            for (size_t k = 0; k < VC_ARRAY_LEN(keeps); k++)
                for (size_t r = 0; r < VC_ARRAY_LEN(coded); r++) {
                    snprintf(text, sizeof(text), "%s%s", list[i].name, keeps[k]);
                    add(s, text, coded[r]);
                }
            continue;
        }
        if (bits == NULL)
            add(s, list[i].name, "");
        for (const char *at = bits ? bits->values : ""; *at; at += *at == ',') {
            size_t length = strcspn(at, ",");
            snprintf(value, sizeof(value), "%.*s%s%s", (int)length, at, param(&list[i], "sinks") ? ",sinks=0" : "",
                     param(&list[i], "levels") ? ",levels=nf" : "");
            snprintf(text, sizeof(text), "%s:bits=", list[i].name);
            add(s, text, value);
            at += length;
        }
    }
    for (size_t r = 1; r < VC_ARRAY_LEN(coded); r++)
        add(s, "none", coded[r]);
}

static uint64_t payload_bytes(const fx_records_t *r, const node_model_info_t *m)
{
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < r->n; b++) {
        vc_kvrec_head_t head;
        cr_assert_eq(vc_kvrec_check(r->data[b], r->bytes[b], &head, NULL), VC_OK);
        for (uint32_t l = 0; l < m->n_layer; l++) {
            vc_kvrec_layer_t part;
            vc_kvrec_layer(&head, l, &part);
            bytes += part.length;
        }
    }
    return bytes;
}

Test(accounting, every_payload_takes_the_bits_that_its_spec_says_within_a_hundredth)
{
    enum { N = 8 };
    static specs_t specs;
    fx_t f;
    fx_open(&f, fx_model(2, 8, 4, 64), N, 64, 76);
    const double numbers = (double)N * NODE_TILE * 2 * 4 * 64 * 2;
    all_specs(&specs);
    for (uint32_t i = 0; i < specs.n; i++) {
        node_spec_t spec = fx_spec(specs.text[i]);
        fx_records_t r = {0};
        fx_compress(specs.text[i], &f.in, &r);
        const double bits = 8.0 * (double)payload_bytes(&r, &f.model) / numbers;
        const double said = node_spec_bits_per_element(&spec, &f.model);
        cr_expect(fabs(bits - said) <= 0.01 * bits, "%s: %g bits, said %g", specs.text[i], bits, said);
        fx_records_free(&r);
    }
    fx_close(&f);
}

/* The whole of a record, header and padding too, stays near its payload at a real model's size. */
Test(accounting, a_coded_row_costs_what_its_bits_say_on_the_wire)
{
    fx_t f;
    fx_open(&f, fx_model(2, 8, 4, 64), 8, 64, 77);
    fx_records_t plain = {0}, coded = {0};
    fx_compress("snapkv:keep=0.5", &f.in, &plain);
    fx_compress("snapkv:keep=0.5+rot:bits=4,group=64", &f.in, &coded);
    const uint64_t bitmaps = 8u * 2 * 4 * NODE_BITMAP_BYTES;
    const uint64_t a = payload_bytes(&plain, &f.model) - bitmaps, b = payload_bytes(&coded, &f.model) - bitmaps;
    cr_assert_eq(a * 9, b * 32, "4 bits and 2 x 16 per 64 are 4.5 of 16"); /* 4.5 / 16 = 9 / 32 */
    fx_records_free(&plain);
    fx_records_free(&coded);
    fx_close(&f);
}

/* Quantised and dropped rows take their share of memory, not only of the wire: the last tile of a head is rounded up.
 */
Test(accounting, dropped_and_coded_rows_save_memory)
{
    enum { N = 12 };
    static specs_t specs;
    fx_t f;
    fx_open(&f, fx_model(2, 8, 4, 64), N, 64, 78);
    all_specs(&specs);
    for (uint32_t i = 0; i < specs.n; i++) {
        node_spec_t spec = fx_spec(specs.text[i]);
        if (spec.ops->kind != VC_KVREC_DROPPER) /* some are attended as 8-bit codes: their own suites say so */
            continue;
        fx_records_t r = {0};
        fx_compress(specs.text[i], &f.in, &r);
        node_body_t *body = fx_body(specs.text[i], &f.model, &r, N);
        const double tile = NODE_TILE * (spec.row_bits ? spec.row_bits + 32.0 / VC_MIN(spec.row_group, 64u) : 16.0);
        const double bits = 8.0 * (double)body->bytes / (2.0 * 2 * 4 * 64);
        const double rows = spec.keep * N * NODE_TILE + NODE_TILE; /* one tile begun */
        cr_expect(bits <= rows / NODE_TILE * tile, "%s: %g bits where %g are due", specs.text[i], bits,
                  rows / NODE_TILE * tile);
        cr_expect(bits >= spec.keep * N * tile);
        node_body_put(body);
        fx_records_free(&r);
    }
    fx_close(&f);
}

/* ---- through the engine ---- */

enum { N_BLOCKS = 6, N_TAIL = 8 };

typedef struct rig {
    gguf_image_t image;
    node_gguf_t *gguf;
    node_engine_t *engine;
    node_kv_t full;
    node_kv_dims_t dims;
    uint32_t tokens[N_BLOCKS * NODE_TILE + N_TAIL], n_vocab;
    float *exact; /* logits of the tail over full KV */
} rig_t;

static float *tail_logits(rig_t *r, node_kv_t *kv)
{
    node_row_t rows[N_TAIL];
    float *logits = vc_alloc_aligned(64, (size_t)N_TAIL * r->n_vocab * sizeof(*logits));
    cr_assert_not_null(logits);
    for (uint32_t i = 0; i < N_TAIL; i++)
        rows[i] = (node_row_t){kv, r->tokens[N_BLOCKS * NODE_TILE + i], true};
    cr_assert_eq(node_forward(r->engine, rows, N_TAIL, logits, NULL, NULL), VC_OK);
    return logits;
}

static void rig_open(rig_t *r)
{
    tiny_model_opts_t tiny;
    node_engine_opts_t opts;
    vc_err_t err = {0};
    tiny_model_opts_default(&tiny);
    r->image = tiny_model_build(&tiny);
    node_engine_opts_default(&opts);
    cr_assert_eq(node_gguf_open_memory(r->image.data, r->image.bytes, &r->gguf, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_engine_create(r->gguf, NULL, &opts, &r->engine, &err), VC_OK, "%s", err.msg);
    r->n_vocab = node_engine_info(r->engine)->n_vocab;
    node_engine_kv_dims(r->engine, &r->dims);
    for (uint32_t i = 0; i < VC_ARRAY_LEN(r->tokens); i++)
        r->tokens[i] = TINY_ID_FIRST_BYTE + (i * 41 + i / 7) % 256;
    cr_assert_eq(node_kv_init(&r->full, &r->dims, NULL), VC_OK);
    cr_assert_eq(node_prefill(r->engine, &r->full, r->tokens, N_BLOCKS * NODE_TILE, NULL, NULL, &err), VC_OK);
    fx_bind_to(node_engine_info(r->engine));
    node_kv_t copy;
    cr_assert_eq(node_kv_init(&copy, &r->dims, NULL), VC_OK);
    for (uint32_t b = 0; b < N_BLOCKS; b++)
        cr_assert_eq(node_kv_append_page(&copy, node_page_get(node_kv_page_at(&r->full, b))), VC_OK);
    r->exact = tail_logits(r, &copy);
    node_kv_fini(&copy);
}

static void rig_close(rig_t *r)
{
    vc_free(r->exact);
    node_kv_fini(&r->full);
    node_engine_destroy(r->engine);
    node_gguf_close(r->gguf);
    gguf_image_free(&r->image);
}

/* Mean square error of the logits behind the compressed prefix. */
static double error_of(rig_t *r, const char *text)
{
    node_spec_t spec = fx_spec(text);
    node_body_t *body;
    node_kv_t kv;
    vc_err_t err = {0};
    cr_assert_eq(node_local_body(r->engine, &spec, &r->full, r->tokens, N_BLOCKS, &body, &err), VC_OK, "%s: %s", text,
                 err.msg);
    cr_assert_eq(node_kv_init(&kv, &r->dims, body), VC_OK);
    node_body_put(body);
    float *logits = tail_logits(r, &kv);
    double sum = 0;
    for (size_t i = 0; i < (size_t)N_TAIL * r->n_vocab; i++)
        sum += ((double)logits[i] - r->exact[i]) * ((double)logits[i] - r->exact[i]);
    vc_free(logits);
    node_kv_fini(&kv);
    return sum / ((double)N_TAIL * r->n_vocab);
}

Test(accounting, few_bits_have_an_error_and_fewer_have_more)
{
    uint32_t n;
    const vc_compressor_t *list = vc_compressors(&n);
    rig_t r;
    rig_open(&r);
    cr_assert_eq(error_of(&r, "none"), 0.0);
    for (uint32_t i = 0; i <= n; i++) { /* the last: kept rows of a dropper that keeps all */
        const char *name = i < n ? list[i].name : "none+rot";
        const vc_compressor_param_t *bits = i < n ? param(&list[i], "bits") : NULL;
        double before = INFINITY;
        if (i < n && bits == NULL)
            continue;
        for (const char *at = bits ? bits->values : "2,3,4,8"; *at; at += *at == ',') {
            char text[64];
            size_t length = strcspn(at, ",");
            snprintf(text, sizeof(text), "%s:bits=%.*s", name, (int)length, at);
            double error = error_of(&r, text);
            cr_expect(error > 0, "%s is stored whole", text);
            cr_expect(error < before, "%s: error %g, with fewer bits %g", text, error, before);
            before = error;
            at += length;
        }
    }
    rig_close(&r);
}
