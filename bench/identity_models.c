/* Small random models, one of a file, their engines by threads and instruction set, blobs of calibrated methods. */
#include <stdlib.h>
#include <string.h>

#include "identity_parts.h"
#include "role/prompt.h"

static vc_err_t err;
#define OK(call) BENCH_OK(call, err)

enum { CALIBRATION_TEXTS = 2, CALIBRATION_TOKENS = 1024 };

static void open_rest(identity_model_t *m)
{
    OK(node_tokenizer_create(m->gguf, &m->tok, &err));
    OK(node_replay_ids_init(&m->replay_ids, m->tok, &err));
    node_codecs(&m->n_codecs);
    m->calibs = vc_calloc(m->n_codecs, sizeof *m->calibs);
    if (!m->calibs)
        bench_fail("out of memory");
    m->info = *node_engine_info(identity_plain_engine(m));
}

void identity_model_file(identity_model_t *m, const char *path)
{
    *m = (identity_model_t){.is_file = true};
    const char *slash = strrchr(path, '/');
    snprintf(m->name, sizeof m->name, "%s", slash ? slash + 1 : path);
    OK(node_gguf_open(path, &m->gguf, &err));
    open_rest(m);
}

void identity_model_small(identity_model_t *m, uint64_t seed, uint64_t request)
{
    static const uint32_t heads[] = {16, 16, 32, 64}, widths[] = {32, 64, 96, 128};
    identity_rng_t r = identity_rng(seed, request / IDENTITY_SAME, 2);
    tiny_model_opts_t o;
    *m = (identity_model_t){0};
    tiny_model_opts_default(&o);
    o.seed = identity_below(&r, 1u << 20);
    o.n_layer = 1 + identity_below(&r, 5);
    o.d_model = widths[identity_below(&r, 4)];
    o.d_ffn = widths[identity_below(&r, 4)];
    o.head_dim = heads[identity_below(&r, 4)];
    o.n_kv_head = 1 + identity_below(&r, 3);
    o.n_head = o.n_kv_head * (1 + identity_below(&r, 4));
    while (o.n_head * o.head_dim % 32 != 0)
        o.n_head += o.n_kv_head;
    o.context = IDENTITY_CONTEXT;
    o.n_vocab = TINY_N_VOCAB + identity_below(&r, 2) * 37;
    o.f32 = identity_chance(&r, 200);
    o.end_weight = identity_chance(&r, 500) ? 1 : 0;
    snprintf(m->name, sizeof m->name, "random %u: %u layers of %u, %u over %u heads of %u, ffn %u, vocabulary %u%s",
             o.seed, o.n_layer, o.d_model, o.n_head, o.n_kv_head, o.head_dim, o.d_ffn, o.n_vocab, o.f32 ? ", f32" : "");
    m->image = tiny_model_build(&o);
    OK(node_gguf_open_memory(m->image.data, m->image.bytes, &m->gguf, &err));
    open_rest(m);
}

void identity_model_close(identity_model_t *m)
{
    for (uint32_t t = 0; t < IDENTITY_THREADS; t++)
        for (uint32_t i = 0; i <= NODE_ISA_AVX512; i++)
            node_engine_destroy(m->engines[t][i]);
    for (uint32_t i = 0; i < m->n_codecs; i++)
        node_calib_free(m->calibs[i]);
    vc_free(m->calibs);
    node_replay_ids_fini(&m->replay_ids);
    node_tokenizer_destroy(m->tok);
    node_gguf_close(m->gguf);
    if (m->image.data)
        gguf_image_free(&m->image);
    *m = (identity_model_t){0};
}

/* ---- engines ---- */

node_engine_t *identity_engine(identity_model_t *m, uint32_t threads, node_isa_t isa)
{
    node_engine_t **slot = &m->engines[threads - 1][isa];
    if (!*slot) {
        node_engine_opts_t o;
        node_engine_opts_default(&o);
        o.n_threads = threads;
        o.isa = isa;
        OK(node_engine_create(m->gguf, m->tok, &o, slot, &err));
    }
    return *slot;
}

node_engine_t *identity_plain_engine(identity_model_t *m)
{
    return identity_engine(m, m->is_file ? 2 : 1, NODE_ISA_AUTO);
}

node_costs_t *identity_costs(identity_model_t *m)
{
    if (!m->costs.known)
        OK(node_costs_measure(&m->costs, identity_plain_engine(m), vc_clock_system(), &err));
    return &m->costs;
}

void identity_model_trim(identity_model_t *m)
{
    node_engine_t *plain = identity_plain_engine(m);
    for (uint32_t t = 0; t < IDENTITY_THREADS; t++)
        for (uint32_t i = 0; i <= NODE_ISA_AVX512; i++)
            if (m->engines[t][i] != plain) {
                node_engine_destroy(m->engines[t][i]);
                m->engines[t][i] = NULL;
            }
}

/* ---- texts ---- */

static const char *const files[] = {"prose", "chat", "code", "retrieval"};
static char *texts[VC_ARRAY_LEN(files)];
static size_t text_bytes[VC_ARRAY_LEN(files)];

static void read_texts(void)
{
    const char *dir = bench_option("text-dir", "bench/texts");
    char path[4096];
    for (size_t i = 0; i < VC_ARRAY_LEN(files) && !texts[i]; i++) {
        snprintf(path, sizeof path, "%s/%s.txt", dir, files[i]);
        OK(node_prompt_read_file(path, (size_t)4 << 20, &texts[i], &text_bytes[i], &err));
        if (text_bytes[i] < 64)
            bench_fail("%s is too short", path);
    }
}

void identity_texts_free(void)
{
    for (size_t i = 0; i < VC_ARRAY_LEN(files); i++) {
        vc_free(texts[i]);
        texts[i] = NULL;
    }
}

void identity_text(const identity_model_t *m, identity_rng_t *r, uint32_t *tokens, uint32_t n)
{
    read_texts();
    uint32_t i = identity_below(r, VC_ARRAY_LEN(files)), *ids, n_ids;
    size_t at = identity_below(r, (uint32_t)text_bytes[i] - 64);
    while (at > 0 && (texts[i][at] & 0xc0) == 0x80) /* the middle of a character */
        at--;
    size_t bytes = VC_MIN(text_bytes[i] - at, (size_t)n * 8 + 64);
    OK(node_tokenizer_encode(m->tok, texts[i] + at, bytes, identity_chance(r, 500), &ids, &n_ids, &err));
    for (uint32_t k = 0; k < n; k++)
        tokens[k] = ids[k % n_ids];
    vc_free(ids);
}

/* ---- calibrations ---- */

/* What the blob knows hardly matters here: little text does, the same for everybody. */
static void calibrate(identity_model_t *m, const node_spec_t *spec, node_calib_t **calib_p)
{
    static uint32_t tokens[CALIBRATION_TEXTS][CALIBRATION_TOKENS];
    const uint32_t *pieces[CALIBRATION_TEXTS], n_tokens[CALIBRATION_TEXTS] = {CALIBRATION_TOKENS, CALIBRATION_TOKENS};
    identity_rng_t r = identity_rng(0, 0, 3);
    char path[4200];
    void *payload;
    size_t bytes;
    for (int i = 0; i < CALIBRATION_TEXTS; i++) {
        identity_text(m, &r, tokens[i], CALIBRATION_TOKENS);
        pieces[i] = tokens[i];
    }
    const node_calib_job_t job = {.replay = node_replay_of(&m->replay_ids, identity_plain_engine(m)),
                                  .texts = pieces,
                                  .n_tokens = n_tokens,
                                  .n_texts = CALIBRATION_TEXTS};
    OK(spec->ops->calibrate(spec, &job, &payload, &bytes, &err));
    snprintf(path, sizeof path, "%s/%s.vcal", bench_tmpdir(), spec->ops->name);
    OK(node_calib_save(path, spec->ops->name, &m->info, payload, bytes, &err));
    OK(node_calib_load(path, spec->ops, &m->info, calib_p, &err));
    vc_free(payload);
}

vc_status_t identity_spec(identity_model_t *m, const char *text, node_spec_t *spec_p, vc_err_t *error)
{
    uint32_t n, i = 0;
    const node_codec_ops_t *const *codecs = node_codecs(&n);
    vc_status_t st = node_spec_parse(text, spec_p, error);
    if (st != VC_OK || !(spec_p->ops->needs(spec_p) & NODE_NEED_CALIB))
        return st;
    while (i < n && strcmp(codecs[i]->name, spec_p->ops->name) != 0)
        i++;
    if (i == n || i >= m->n_codecs)
        bench_fail("%s is not in the table", spec_p->ops->name);
    if (!m->calibs[i])
        calibrate(m, spec_p, &m->calibs[i]);
    node_spec_bind(spec_p, m->calibs[i]);
    return VC_OK;
}
