/*
 * Every compressor as a copy on a server: registered, fetched and drafted on by the programs. The answer is that of
 * decoding without drafts, token by token and logit by logit, and the bytes that travel are what the spec says.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cache.h"
#include "node.h"
#include "role/prompt.h"
#include "support/file.h"
#include "support/remote_cluster.h"
#include "support/tiny_model.h"
#include "support/vc_test.h"
#include "vc/compressors.h"
#include "vc/log.h"
#include "vc/mem.h"

enum { RUN_MS = 120000, CALIB_BYTES = 24000, AT_ONCE = 7 };

/* Every method, every bit width, rows kept whole and coded. rows: exact rows a layer that a record may hold besides.
 * Sanitized builds take every fourth, which has every method among them, but none and noise. */
static const struct {
    const char *text;
    uint32_t rows;
} cases[] = {
    {"none", 0},
    {"noise:eps=0.3", 0},
    {"snapkv:keep=0.5,window=32", 0},
    {"snapkv:keep=0.25", 0},
    {"snapkv:keep=0.125,window=32,pool=max", 0},
    {"expected_attention:keep=0.5", 0},
    {"expected_attention:keep=0.25,stats=offline", 0},
    {"kvzip:keep=0.5", 0},
    {"kvzip:keep=0.25,plus=no,budget=head", 0},
    {"kvzip:keep=0.25,budget=global", 0},
    {"kvzap:keep=0.5", 0},
    {"kvzap:keep=0.25", 0},
    {"kivi:bits=8", 0},
    {"rot:bits=3,group=16", 0},
    {"kivi:bits=2,group=16,residual=64", 0},
    {"kvquant:bits=4", 1},
    {"kvquant:bits=3", 1},
    {"kvquant:bits=2", 1},
    {"rotatekv:bits=4", 20},
    {"rotatekv:bits=3", 20},
    {"rotatekv:bits=2", 20},
    {"rot:bits=8", 0},
    {"rot:bits=4", 0},
    {"kivi:bits=4,residual=64", 0},
    {"rot:bits=2", 0},
    {"kvzip:keep=0.5+rot:bits=4", 0},
    {"snapkv:keep=0.5+rot:bits=3", 0},
    {"expected_attention:keep=0.5+rot:bits=8", 0},
    {"kvzap:keep=0.5+rot:bits=2", 0},
};

enum { STEP = VT_EVERY * VT_EVERY, CALIB_TOKENS = STEP > 1 ? 2200 : 6000 };

#define NEED_PROGRAMS()                                                               \
    do {                                                                              \
        if (!vt_proc_exists("vericache-server") || !vt_proc_exists("vericache-node")) \
            cr_skip_test("the programs are not built");                               \
    } while (0)

/* Rows of the size of the real model's, so that headers and padding do not hide the payload. */
static void write_model(remote_cluster_t *c)
{
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    o.n_layer = 6;
    o.n_head = 6;
    o.n_kv_head = 3;
    o.head_dim = 64;
    o.context = 4096;
    gguf_image_t image = tiny_model_build(&o);
    cr_assert(gguf_image_write(&image, vt_tmpdir_path(&c->dir, "model.gguf")));
    gguf_image_free(&image);
}

static void calibrate(remote_cluster_t *c)
{
    char model[512], path[512], tokens[16], *text = vc_alloc(CALIB_BYTES), *out = NULL;
    cr_assert_not_null(text);
    for (uint32_t i = 0, x = 99; i < CALIB_BYTES; i++) {
        x = x * 1664525u + 1013904223u;
        text[i] = i % 7 == 6 ? ' ' : (char)('a' + (x >> 20) % 26);
    }
    snprintf(path, sizeof(path), "%s", vt_tmpdir_path(&c->dir, "calibration.txt"));
    snprintf(model, sizeof(model), "%s", vt_tmpdir_path(&c->dir, "model.gguf"));
    vt_file_write(path, text, CALIB_BYTES);
    vc_free(text);
    snprintf(tokens, sizeof(tokens), "%d", CALIB_TOKENS);
    const char *args[] = {"calibrate", "--model", model, "--threads", "1", "--limit-tokens", tokens, path, NULL};
    int rc = vt_proc_run("vericache-node", args, NULL, RUN_MS, &out);
    cr_assert_eq(rc, 0, "calibrate exits %d: %s", rc, out);
    vc_free(out);
}

static void begin(remote_cluster_t *c)
{
    char model[512];
    memset(c, 0, sizeof(*c));
    vt_tmpdir_create(&c->dir);
    remote_cluster_write_files(c);
    write_model(c);
    calibrate(c);
    remote_cluster_start_server(c);
    snprintf(model, sizeof(model), "%s", vt_tmpdir_path(&c->dir, "model.gguf"));
    remote_cluster_start_verify(c, model);
    for (size_t i = STEP - 1; i < VC_ARRAY_LEN(cases); i += AT_ONCE * STEP) {
        char list[AT_ONCE * VC_SPEC_TEXT_MAX] = "";
        for (size_t k = i; k < VC_MIN(i + AT_ONCE * STEP, VC_ARRAY_LEN(cases)); k += STEP)
            snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s;", cases[k].text);
        remote_cluster_register(c, list);
    }
}

/* ---- bytes ---- */

typedef struct {
    node_t *node;
    node_cache_t *cache;
    uint32_t *tokens, n_tokens;
} reader_t;

static void reader_open(remote_cluster_t *c, reader_t *r)
{
    node_opts_t o;
    node_cache_opts_t co;
    vc_err_t err = {0};
    char *text;
    size_t bytes;
    vc_log_set_level(VC_LOG_WARN);
    node_opts_default(&o);
    o.model_path = vt_tmpdir_path(&c->dir, "model.gguf");
    o.engine.n_threads = 1;
    cr_assert_eq(node_open(&o, &r->node, &err), VC_OK, "%s", err.msg);
    node_cache_opts_default(&co);
    co.server = c->server_address;
    cr_assert_eq(node_cache_open(&co, node_engine_info(r->node->engine), &r->cache, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_prompt_read_file(vt_tmpdir_path(&c->dir, "prompt.txt"), 1u << 20, &text, &bytes, &err), VC_OK);
    const node_prompt_t prompt = {NULL, text, bytes, false};
    cr_assert_eq(node_prompt_encode(r->node->tok, &prompt, true, 0, &r->tokens, &r->n_tokens, &err), VC_OK, "%s",
                 err.msg);
    vc_free(text);
}

static void reader_close(reader_t *r)
{
    node_cache_close(r->cache);
    node_close(r->node);
    vc_free(r->tokens);
}

/* Fetches the copy as a drafter does and compares what came with header, payload by the spec's bits, half a page of
 * padding where it differs from record to record, and the full records of the first and last blocks. */
static void check_bytes(const reader_t *r, size_t i)
{
    const node_model_info_t *info = node_engine_info(r->node->engine);
    const vc_kv_shape_t *shape = &info->keyspace.shape;
    node_spec_t spec;
    node_body_t *body = NULL;
    node_cache_result_t got;
    vc_err_t err = {0};
    cr_assert_eq(node_spec_parse(cases[i].text, &spec, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_bind_spec(r->node, &spec, &err), VC_OK, "%s", err.msg);
    node_cache_fetch_body(r->cache, &spec, r->tokens, r->n_tokens, &body, &got);
    cr_assert(body != NULL && got.status == VC_OK, "%s: %s", cases[i].text, got.note);
    cr_assert_gt(got.blocks, 3);
    uint32_t last = VC_MIN((spec.ops->window_tokens(&spec) + NODE_TILE - 1) / NODE_TILE, got.blocks);
    uint32_t first = VC_MIN(spec.ops->sink_blocks(&spec), got.blocks - last);
    uint64_t numbers = 2ull * shape->n_layer * shape->n_kv_head * shape->head_dim * NODE_TILE;
    cr_expect_eq(got.full_bytes, (first + last) * vc_kvrec_full_bytes(shape), "%s", cases[i].text);
    double payload = node_spec_bits_per_element(&spec, info) / 8 * (double)numbers;
    double record = vc_kvrec_header_bytes(shape) + payload + VC_KVREC_ALIGN / 2.0;
    double said = record * got.blocks + (double)got.full_bytes;
    double exact = 4.0 * cases[i].rows * shape->n_layer * shape->n_kv_head * shape->head_dim;
    double slack = 0.02 * said + VC_KVREC_ALIGN / 2.0 * got.blocks * (spec.ops->chooses ? 0 : 1);
    cr_expect((double)got.bytes >= said - slack && (double)got.bytes <= said + exact + slack,
              "%s: %llu bytes came, %.0f to %.0f are what it says", cases[i].text, (unsigned long long)got.bytes, said,
              said + exact);
    node_body_put(body);
}

/* ---- answers ---- */

static void check_travel(remote_cluster_t *c)
{
    reader_t r;
    reader_open(c, &r);
    for (size_t i = STEP - 1; i < VC_ARRAY_LEN(cases); i += STEP)
        check_bytes(&r, i);
    reader_close(&r);
}

static void check_answers(remote_cluster_t *c)
{
    static const char *const alone[] = {"--draft-length", "0", "--max-tokens", "40", NULL};
    json_t *base = remote_cluster_generate(c, alone);
    long long drafted = 0; /* a short answer may be over before its copy has come */
    for (size_t i = STEP - 1; i < VC_ARRAY_LEN(cases); i += STEP) {
        const char *flags[] = {
            "--server",    c->server_address, "--verifier", c->verify_address, "--compressor",
            cases[i].text, "--max-tokens",    "40",         "--draft-length",  i / STEP % 2 ? "4" : "9",
            NULL};
        json_t *ours = remote_cluster_generate(c, flags);
        remote_cluster_assert_same(base, ours, cases[i].text);
        drafted += remote_int(ours, "drafted");
        cr_expect_eq(remote_int(ours, "recoveries"), 0, "%s", cases[i].text);
        json_decref(ours);
    }
    cr_expect_gt(drafted, 0);
    json_decref(base);
}

/* One cluster for both: to register every copy takes longer than to look at them. */
Test(methods, every_copy_travels_as_its_spec_says_is_drafted_on_and_changes_nothing)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    begin(&c);
    check_travel(&c);
    check_answers(&c);
    remote_cluster_stop(&c);
}

/* The same in one process, where the copy is made of the prompt and never stored. */
Test(methods, a_copy_of_the_prompt_is_drafted_on_and_changes_nothing)
{
    NEED_PROGRAMS();
    if (VT_EVERY > 1) {
        cr_skip_test("of the release build: the copies of the server's tests are made by the same code");
        return;
    }
    remote_cluster_t c;
    memset(&c, 0, sizeof(c));
    vt_tmpdir_create(&c.dir);
    remote_cluster_write_files(&c);
    write_model(&c);
    calibrate(&c);
    static const char *const alone[] = {"--draft-length", "0", "--max-tokens", "24", NULL};
    json_t *base = remote_cluster_generate(&c, alone);
    for (size_t i = STEP - 1; i < VC_ARRAY_LEN(cases); i += STEP) {
        const char *flags[] = {"--compressor",           cases[i].text, "--max-tokens", "24", "--draft-length",
                               i / STEP % 2 ? "9" : "4", NULL};
        json_t *ours = remote_cluster_generate(&c, flags);
        remote_cluster_assert_same(base, ours, cases[i].text);
        cr_expect_gt(remote_int(ours, "compressed_tokens"), 0, "%s", cases[i].text);
        json_decref(ours);
    }
    json_decref(base);
    vt_tmpdir_remove(&c.dir);
}

Test(methods, every_method_that_is_listed_is_among_these)
{
    uint32_t n;
    const vc_compressor_t *list = vc_compressors(&n);
    for (uint32_t m = 0; m < n; m++) {
        bool is_here = false;
        size_t len = strlen(list[m].name);
        for (size_t i = 0; i < VC_ARRAY_LEN(cases); i++)
            is_here |= strncmp(cases[i].text, list[m].name, len) == 0 && strchr(":+", cases[i].text[len]) != NULL;
        cr_expect(is_here, "%s is not tested here", list[m].name);
    }
}
