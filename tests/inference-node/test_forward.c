/*
 * The forward pass on small models: against the golden tiny models, and the numerics contract - a row's logits, K and V
 * do not depend on how rows were grouped, on threads, sessions, the ISA, or where the KV came from.
 */
#include <math.h>
#include <string.h>

#include "kernels/backend.h"
#include "model/engine.h"
#include "support/golden.h"
#include "support/tiny_model.h"
#include "support/vc_test.h"
#include "vc/mem.h"

typedef struct {
    gguf_image_t image;
    node_gguf_t *gguf;
    node_engine_t *eng;
    const node_model_info_t *info;
    node_kv_dims_t dims;
} model_t;

static model_t open_model(gguf_image_t image, uint32_t threads, node_isa_t isa, uint32_t max_rows)
{
    model_t m = {.image = image};
    vc_err_t err = {0};
    node_engine_opts_t opts = {.n_threads = threads, .isa = isa, .max_rows = max_rows};
    cr_assert_eq(node_gguf_open_memory(image.data, image.bytes, &m.gguf, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_engine_create(m.gguf, NULL, &opts, &m.eng, &err), VC_OK, "%s", err.msg);
    m.info = node_engine_info(m.eng);
    node_engine_kv_dims(m.eng, &m.dims);
    return m;
}

static void close_model(model_t *m)
{
    node_engine_destroy(m->eng);
    node_gguf_close(m->gguf);
    gguf_image_free(&m->image);
}

static gguf_image_t tiny_image(void)
{
    tiny_model_opts_t opts;
    tiny_model_opts_default(&opts);
    return tiny_model_build(&opts);
}

static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* ---- golden tiny models ---- */

/*
 * What separates us from the float32 oracle on F32 weights: K and V are rounded to halves (2^-12 relative), the order
 * of sums, and own exp. Values before the first attention see only the last two and are held to the oracle's own
 * tolerance. After it, a hidden state of size 4 takes up 64 rounded values through the output projection: measured at
 * most 4.9e-3 (hidden, of about 3) and 1.0e-3 of the largest logit; allowed is about twice that.
 */
#define HIDDEN_ABS 6e-3
#define HIDDEN_REL 2e-3
#define LOGIT_REL 2e-3 /* of the largest logit */

typedef struct {
    const golden_case_t *c;
    const node_model_info_t *info;
    uint32_t seen;
    double worst;
} shown_t;

static void compare_shown(void *arg, node_capture_kind_t kind, uint32_t layer, uint32_t row, uint32_t position,
                          const float *values)
{
    cr_assert_eq(position, row);
    shown_t *s = arg;
    char name[32];
    uint32_t n = s->info->d_model;
    if (kind == NODE_CAP_Q)
        return;
    if (kind == NODE_CAP_K || kind == NODE_CAP_V)
        n = s->info->n_kv_head * s->info->head_dim;
    snprintf(name, sizeof name, kind == NODE_CAP_K ? "k_%u" : kind == NODE_CAP_V ? "v_%u" : "hidden_%u", layer);
    golden_tensor_t want = golden_out(s->c, kind == NODE_CAP_NORMED ? "normed" : name);
    golden_tol_t tol = {.abs = HIDDEN_ABS, .rel = HIDDEN_REL};
    if (layer == 0)
        cr_assert(golden_tol(s->c, "all", 1, &tol));
    cr_assert_eq(golden_first_off(values, want.f32 + (size_t)row * n, n, tol), n, "%s: %s row %u", s->c->name, name,
                 row);
    golden_tensor_free(&want);
    s->seen |= (uint32_t)kind;
}

static void check_golden_case(const golden_case_t *c, node_isa_t isa)
{
    model_t m = open_model(tiny_model_from_golden(c), 2, isa, 64);
    golden_tensor_t ids = golden_in(c, "ids"), logits = golden_out(c, "logits"), greedy = golden_out(c, "greedy");
    uint32_t n = (uint32_t)ids.n, v = m.info->n_vocab;
    node_kv_t kv;
    vc_err_t err = {0};
    node_row_t rows[64];
    float *got = vc_calloc((size_t)n * v, sizeof *got);
    cr_assert_eq(n, 64u);
    node_kv_init(&kv, &m.dims, NULL);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (node_row_t){&kv, ids.u32[i], true};
    shown_t shown = {.c = c, .info = m.info};
    node_capture_t capture = {.kinds = 31, .fn = compare_shown, .arg = &shown};
    cr_assert_eq(node_forward(m.eng, rows, n, got, &capture, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(shown.seen, 31u & ~(uint32_t)NODE_CAP_Q);
    double worst = 0, allowed = LOGIT_REL * json_number_value(json_object_get(c->scalars, "max_abs_logit"));
    for (size_t i = 0; i < (size_t)n * v; i++)
        worst = fmax(worst, fabs((double)got[i] - (double)logits.f32[i]));
    cr_assert_lt(worst, allowed, "%s: logits differ by %g", c->name, worst);
    memcpy(got, got + (size_t)(n - 1) * v, v * sizeof *got);
    for (size_t i = 0; i < greedy.n; i++) {
        uint32_t id = argmax(got, v);
        cr_assert_eq(id, greedy.u32[i], "%s: greedy step %zu", c->name, i);
        cr_assert_eq(node_prefill(m.eng, &kv, &id, 1, got, NULL, &err), VC_OK, "%s", err.msg);
    }
    node_kv_fini(&kv);
    vc_free(got);
    golden_tensor_free(&ids), golden_tensor_free(&logits), golden_tensor_free(&greedy);
    close_model(&m);
}

Test(forward, golden_tiny_models_of_all_three_architectures_match)
{
    golden_t *g = golden_open("llama_tiny");
    cr_assert_eq(golden_n_cases(g), 4u);
    for (size_t i = 0; i < 4; i++) {
        golden_case_t c = golden_case_at(g, i);
        check_golden_case(&c, NODE_ISA_AUTO);
    }
    golden_case_t c = golden_case(g, "llama");
    check_golden_case(&c, NODE_ISA_SCALAR);
    golden_close(g);
}

/* ---- the contract ---- */

enum { N = 333 }; /* tokens: crosses pages and a split, and is no multiple of anything */

static void make_tokens(uint32_t *t, uint32_t n, uint32_t seed, uint32_t vocab)
{
    for (uint32_t i = 0; i < n; i++)
        t[i] = (uint32_t)((golden_u(seed, i) + 1) / 2 * vocab);
}

typedef struct {
    float *logits; /* [N][n_vocab] */
    vc_digest_t kv;
} result_t;

/* All logits of tokens[0..N), rows grouped in passes of `chunk`, the first one of `first` rows. */
static result_t run(const model_t *m, const uint32_t *tokens, uint32_t first, uint32_t chunk)
{
    result_t r = {.logits = vc_calloc((size_t)N * m->info->n_vocab, sizeof(float))};
    node_kv_t kv;
    node_row_t rows[256];
    vc_err_t err = {0};
    node_kv_init(&kv, &m->dims, NULL);
    for (uint32_t at = 0; at < N;) {
        uint32_t n = VC_MIN(at == 0 ? first : chunk, N - at);
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (node_row_t){&kv, tokens[at + i], true};
        cr_assert_eq(node_forward(m->eng, rows, n, r.logits + (size_t)at * m->info->n_vocab, NULL, &err), VC_OK, "%s",
                     err.msg);
        at += n;
    }
    cr_assert_eq(kv.n_tokens, (uint32_t)N);
    node_kv_digest(&kv, N, &r.kv);
    node_kv_fini(&kv);
    return r;
}

static void expect_same(const model_t *m, const result_t *want, result_t got, const char *what)
{
    (void)what; /* the plain runner has no messages */
    cr_assert_eq(memcmp(&want->kv, &got.kv, sizeof got.kv), 0, "%s: KV differs", what);
    cr_assert_eq(memcmp(want->logits, got.logits, (size_t)N * m->info->n_vocab * sizeof(float)), 0, "%s: logits differ",
                 what);
    vc_free(got.logits);
}

/* v' G v is the length of W v squared, whatever v, head and layer. */
Test(forward, the_output_gram_gives_the_norm_of_a_head_after_the_projection)
{
    golden_t *golden = golden_open("llama_tiny");
    golden_case_t c = golden_case(golden, "llama");
    model_t m = open_model(tiny_model_from_golden(&c), 1, NODE_ISA_AUTO, 8);
    const uint32_t d = m.info->head_dim, n_head = m.info->n_head, n_in = n_head * d;
    float *gram = vc_calloc((size_t)n_in * d, sizeof *gram), v[64];
    for (uint32_t layer = 0; layer < m.info->n_layer; layer++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%u.self_attn.o_proj.weight", layer);
        golden_tensor_t w = golden_in(&c, name);
        cr_assert_eq(node_engine_output_gram(m.eng, layer, gram, NULL), VC_OK);
        golden_fill(layer + 5, 1.0, v, d);
        for (uint32_t h = 0; h < n_head; h++) {
            double want = 0, got = 0;
            for (uint32_t o = 0; o < m.info->d_model; o++) {
                double y = 0;
                for (uint32_t i = 0; i < d; i++)
                    y += (double)w.f32[(size_t)o * n_in + h * d + i] * v[i];
                want += y * y;
            }
            for (uint32_t i = 0; i < d * d; i++)
                got += (double)v[i / d] * gram[(size_t)h * d * d + i] * v[i % d];
            cr_assert(fabs(got - want) <= 1e-5 * want, "layer %u head %u: %g, not %g", layer, h, got, want);
        }
        golden_tensor_free(&w);
    }
    vc_free(gram);
    close_model(&m);
    golden_close(golden);
}

Test(forward, bits_do_not_depend_on_rows_threads_or_isa)
{
    uint32_t tokens[N];
    model_t base = open_model(tiny_image(), 1, NODE_ISA_SCALAR, 256);
    make_tokens(tokens, N, 7, base.info->n_vocab);
    result_t want = run(&base, tokens, 1, 1);
    for (node_isa_t isa = NODE_ISA_SCALAR; isa <= NODE_ISA_AVX512; isa++) {
        static const uint32_t cuts[][2] = {{256, 256}, {5, 7}, {200, 2}, {1, 25}, {1, 1}, {64, 64}};
        if (!node_isa_available(isa))
            continue;
        model_t m = open_model(tiny_image(), 2, isa, 256);
        for (size_t i = 0; i < (isa == NODE_ISA_SCALAR ? 2 : VC_ARRAY_LEN(cuts)); i++)
            expect_same(&m, &want, run(&m, tokens, cuts[i][0], cuts[i][1]), node_isa_name(isa));
        close_model(&m);
    }
    for (uint32_t threads = 1; threads <= 7; threads += 2) { /* passes of few rows cut work by thread */
        model_t m = open_model(tiny_image(), threads, NODE_ISA_AUTO, 256);
        expect_same(&m, &want, run(&m, tokens, 100, 50), "threads");
        expect_same(&m, &want, run(&m, tokens, 150, threads == 1 ? 4 : threads - 2), "threads, few rows");
        close_model(&m);
    }
    vc_free(want.logits);
    close_model(&base);
}

/* Where no logits are wanted the last layer stops after K and V: same KV, same logits of the rows that want them. */
Test(forward, rows_without_logits_change_nothing)
{
    uint32_t tokens[N];
    model_t m = open_model(tiny_image(), 2, NODE_ISA_AUTO, 100);
    uint32_t v = m.info->n_vocab;
    node_row_t rows[100];
    node_kv_t kv;
    vc_err_t err = {0};
    vc_digest_t digest;
    float *got = vc_calloc(3 * (size_t)v, sizeof *got);
    make_tokens(tokens, N, 11, v);
    result_t want = run(&m, tokens, 100, 90);
    node_kv_init(&kv, &m.dims, NULL);
    cr_assert_eq(node_prefill(m.eng, &kv, tokens, 240, got, NULL, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(memcmp(got, want.logits + 239 * (size_t)v, v * sizeof *got), 0);
    for (uint32_t i = 0; i < 93; i++)
        rows[i] = (node_row_t){&kv, tokens[240 + i], i == 13 || i == 50 || i == 92};
    cr_assert_eq(node_forward(m.eng, rows, 93, got, NULL, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(memcmp(got, want.logits + 253 * (size_t)v, v * sizeof *got), 0);
    cr_assert_eq(memcmp(got + v, want.logits + 290 * (size_t)v, v * sizeof *got), 0);
    cr_assert_eq(memcmp(got + 2 * v, want.logits + 332 * (size_t)v, v * sizeof *got), 0);
    node_kv_digest(&kv, N, &digest);
    cr_assert_eq(memcmp(&digest, &want.kv, sizeof digest), 0);
    node_kv_fini(&kv);
    vc_free(got), vc_free(want.logits);
    close_model(&m);
}

Test(forward, every_architecture_keeps_the_contract)
{
    golden_t *g = golden_open("llama_tiny");
    for (size_t i = 0; i < golden_n_cases(g); i++) {
        golden_case_t c = golden_case_at(g, i);
        uint32_t tokens[N];
        model_t a = open_model(tiny_model_from_golden(&c), 1, NODE_ISA_SCALAR, 256);
        model_t b = open_model(tiny_model_from_golden(&c), 2, NODE_ISA_AUTO, 256);
        make_tokens(tokens, N, 9, a.info->n_vocab);
        if (a.info->context >= N) {
            result_t want = run(&a, tokens, 1, 1);
            expect_same(&b, &want, run(&b, tokens, 100, 130), c.name);
            vc_free(want.logits);
        }
        close_model(&a), close_model(&b);
    }
    golden_close(g);
}

Test(forward, sessions_in_one_pass_do_not_see_each_other)
{
    uint32_t t[3][90];
    model_t m = open_model(tiny_image(), 2, NODE_ISA_AUTO, 256);
    uint32_t v = m.info->n_vocab, n[3] = {90, 70, 1}, at = 0;
    node_kv_t alone[3], together[3];
    float *want = vc_calloc(3 * (size_t)v, sizeof *want), *got = vc_calloc(3 * (size_t)v, sizeof *got);
    node_row_t rows[161];
    vc_err_t err = {0};
    for (uint32_t s = 0; s < 3; s++) {
        make_tokens(t[s], n[s], s, v);
        node_kv_init(&alone[s], &m.dims, NULL);
        node_kv_init(&together[s], &m.dims, NULL);
        cr_assert_eq(node_prefill(m.eng, &alone[s], t[s], n[s], want + s * v, NULL, &err), VC_OK, "%s", err.msg);
        for (uint32_t i = 0; i < n[s]; i++)
            rows[at++] = (node_row_t){&together[s], t[s][i], i + 1 == n[s]};
    }
    cr_assert_eq(node_forward(m.eng, rows, at, got, NULL, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(memcmp(want, got, 3 * v * sizeof *got), 0);
    for (uint32_t s = 0; s < 3; s++) {
        vc_digest_t a, b;
        node_kv_digest(&alone[s], n[s], &a);
        node_kv_digest(&together[s], n[s], &b);
        cr_assert_eq(memcmp(&a, &b, sizeof a), 0);
        node_kv_fini(&alone[s]), node_kv_fini(&together[s]);
    }
    vc_free(want), vc_free(got);
    close_model(&m);
}

/* Continues `kv` with tokens[from..N) and compares the last logits. */
static void continue_and_compare(const model_t *m, node_kv_t *kv, const uint32_t *tokens, uint32_t from,
                                 const float *want, const char *what)
{
    float *got = vc_calloc(m->info->n_vocab, sizeof *got);
    vc_err_t err = {0};
    (void)what;
    cr_assert_eq(node_prefill(m->eng, kv, tokens + from, N - from, got, NULL, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(memcmp(got, want, m->info->n_vocab * sizeof *got), 0, "%s", what);
    vc_free(got);
}

Test(forward, shared_pages_rollback_and_a_body_of_the_same_bits_change_nothing)
{
    uint32_t tokens[N], other[40];
    model_t m = open_model(tiny_image(), 2, NODE_ISA_AUTO, 64);
    uint32_t pairs = m.dims.n_layer * m.dims.n_kv_head;
    vc_err_t err = {0};
    make_tokens(tokens, N, 3, m.info->n_vocab);
    make_tokens(other, 40, 4, m.info->n_vocab);
    node_kv_t kv, fork, hit;
    float *want = vc_calloc(m.info->n_vocab, sizeof *want);
    node_kv_init(&kv, &m.dims, NULL);
    cr_assert_eq(node_prefill(m.eng, &kv, tokens, N, want, NULL, &err), VC_OK, "%s", err.msg);

    /* hit: the first four pages shared; drafts written and rolled back on the way */
    node_kv_init(&hit, &m.dims, NULL);
    for (uint32_t b = 0; b < 4; b++)
        cr_assert_eq(node_kv_append_page(&hit, node_page_get(kv.pages[b])), VC_OK);
    cr_assert_eq(node_prefill(m.eng, &hit, other, 40, NULL, NULL, &err), VC_OK);
    cr_assert_eq(node_kv_truncate(&hit, 4 * NODE_TILE), VC_OK);
    continue_and_compare(&m, &hit, tokens, 4 * NODE_TILE, want, "shared pages");
    cr_assert_eq(node_kv_truncate(&hit, 250), VC_OK); /* into a shared page */
    cr_assert_eq(node_prefill(m.eng, &hit, other, 40, NULL, NULL, &err), VC_OK);
    cr_assert_eq(node_kv_truncate(&hit, 250), VC_OK);
    continue_and_compare(&m, &hit, tokens, 250, want, "rolled back");

    /* a body whose tiles are the first five pages: same tiles, same splits, same bits */
    node_tile_t tiles[5 * 64], *lists[64];
    uint32_t counts[64];
    for (uint32_t i = 0; i < pairs; i++) {
        lists[i] = tiles + 5 * i;
        counts[i] = 5;
        for (uint32_t b = 0; b < 5; b++)
            lists[i][b] =
                (node_tile_t){node_page_k(kv.pages[b], i / m.dims.n_kv_head, i % m.dims.n_kv_head),
                              node_page_v(kv.pages[b], i / m.dims.n_kv_head, i % m.dims.n_kv_head), NODE_TILE, NULL};
    }
    node_body_t body = {.n_tokens = 5 * NODE_TILE, .dims = m.dims, .tiles = lists, .n_tiles = counts, .refs = 2};
    cr_assert_eq(node_kv_init(&fork, &m.dims, &body), VC_OK);
    continue_and_compare(&m, &fork, tokens, 5 * NODE_TILE, want, "body");
    node_kv_fini(&fork), node_kv_fini(&hit), node_kv_fini(&kv);
    vc_free(want);
    close_model(&m);
}

Test(forward, a_body_of_fewer_rows_attends_to_exactly_those)
{
    uint32_t tokens[3 * NODE_TILE];
    model_t m = open_model(tiny_image(), 2, NODE_ISA_AUTO, 64);
    uint32_t pairs = m.dims.n_layer * m.dims.n_kv_head, token = 5;
    vc_err_t err = {0};
    make_tokens(tokens, 3 * NODE_TILE, 3, m.info->n_vocab);
    node_kv_t kv, drafts[2];
    node_kv_init(&kv, &m.dims, NULL);
    cr_assert_eq(node_prefill(m.eng, &kv, tokens, 3 * NODE_TILE, NULL, NULL, &err), VC_OK, "%s", err.msg);
    float *logits[2];
    for (uint32_t variant = 0; variant < 2; variant++) { /* a tile cut at 20 rows, and a copy that holds only those */
        node_page_t *page = node_page_copy(kv.pages[1], variant == 0 ? NODE_TILE : 20);
        node_tile_t tiles[64], *lists[64];
        uint32_t counts[64];
        for (uint32_t i = 0; i < pairs; i++) {
            uint32_t l = i / m.dims.n_kv_head, h = i % m.dims.n_kv_head;
            tiles[i] = (node_tile_t){node_page_k(page, l, h), node_page_v(page, l, h), 20, NULL};
            lists[i] = &tiles[i];
            counts[i] = 1;
        }
        node_body_t body = {.n_tokens = 3 * NODE_TILE, .dims = m.dims, .tiles = lists, .n_tiles = counts, .refs = 2};
        node_kv_init(&drafts[variant], &m.dims, &body);
        logits[variant] = vc_calloc(m.info->n_vocab, sizeof(float));
        cr_assert_eq(node_prefill(m.eng, &drafts[variant], &token, 1, logits[variant], NULL, &err), VC_OK);
        cr_assert_eq(drafts[variant].n_tokens, 3 * NODE_TILE + 1);
        node_kv_fini(&drafts[variant]);
        node_page_put(page);
    }
    cr_assert_eq(memcmp(logits[0], logits[1], m.info->n_vocab * sizeof(float)), 0);
    vc_free(logits[0]), vc_free(logits[1]);
    node_kv_fini(&kv);
    close_model(&m);
}

Test(forward, what_cannot_run_is_refused_and_changes_nothing)
{
    tiny_model_opts_t opts;
    tiny_model_opts_default(&opts);
    opts.context = 70;
    model_t m = open_model(tiny_model_build(&opts), 2, NODE_ISA_AUTO, 16);
    node_kv_t kv, other, odd;
    node_kv_dims_t dims = m.dims;
    vc_err_t err = {0};
    uint32_t tokens[80] = {1, 2, 3}, v = m.info->n_vocab;
    node_kv_init(&kv, &m.dims, NULL), node_kv_init(&other, &m.dims, NULL);
    dims.n_layer++;
    node_kv_init(&odd, &dims, NULL);
    node_row_t bad_token[] = {{&kv, 1, false}, {&kv, v, false}};
    cr_assert_eq(node_forward(m.eng, bad_token, 2, NULL, NULL, &err), VC_ERR_RANGE);
    node_row_t mixed[] = {{&kv, 1, false}, {&other, 1, false}, {&kv, 1, false}};
    cr_assert_eq(node_forward(m.eng, mixed, 3, NULL, NULL, &err), VC_ERR_INVALID);
    node_row_t shape[] = {{&odd, 1, false}};
    cr_assert_eq(node_forward(m.eng, shape, 1, NULL, NULL, &err), VC_ERR_MISMATCH);
    node_row_t many[17];
    for (int i = 0; i < 17; i++)
        many[i] = (node_row_t){&kv, 1, false};
    cr_assert_eq(node_forward(m.eng, many, 17, NULL, NULL, &err), VC_ERR_RANGE);
    cr_assert_eq(node_prefill(m.eng, &kv, tokens, 71, NULL, NULL, &err), VC_ERR_RANGE);
    cr_assert(kv.n_tokens == 0 && kv.n_pages == 0 && other.n_pages == 0);
    cr_assert_eq(node_prefill(m.eng, &kv, tokens, 70, NULL, NULL, &err), VC_OK, "%s", err.msg);
    node_row_t over = {&kv, 1, false};
    cr_assert_eq(node_forward(m.eng, &over, 1, NULL, NULL, &err), VC_ERR_RANGE);
    cr_assert_eq(kv.n_tokens, 70u);
    cr_assert_eq(node_engine_saturations(m.eng), 0u);
    node_kv_fini(&kv), node_kv_fini(&other), node_kv_fini(&odd);
    close_model(&m);
}

Test(forward, options_out_of_range_are_refused)
{
    gguf_image_t image = tiny_image();
    node_gguf_t *gguf;
    node_engine_t *eng = NULL;
    vc_err_t err = {0};
    cr_assert_eq(node_gguf_open_memory(image.data, image.bytes, &gguf, &err), VC_OK);
    node_engine_opts_t opts = {.n_threads = 0, .max_rows = 1};
    cr_assert_eq(node_engine_create(gguf, NULL, &opts, &eng, &err), VC_ERR_RANGE);
    opts = (node_engine_opts_t){.n_threads = 1, .max_rows = 0};
    cr_assert_eq(node_engine_create(gguf, NULL, &opts, &eng, &err), VC_ERR_RANGE);
    cr_assert_null(eng);
    cr_assert(node_isa_available(NODE_ISA_SCALAR) && node_isa_available(NODE_ISA_AUTO));
    node_gguf_close(gguf);
    gguf_image_free(&image);
}

/* The flags' list of names, the enumeration and the tables behind it tell the same. */
Test(forward, instruction_sets_have_the_names_that_flags_offer)
{
    char names[] = NODE_ISA_CHOICES, *rest = names;
    node_isa_t got, isa = NODE_ISA_AUTO;
    for (char *name; (name = strsep(&rest, "|")) != NULL; isa++) {
        cr_assert(node_isa_parse(name, &got) && got == isa, "%s", name);
        cr_assert_str_eq(name, node_isa_name(isa));
    }
    cr_assert_eq(isa, NODE_ISA_AVX512 + 1);
    cr_assert(!node_isa_parse("avx", &got) && !node_isa_parse("unknown", &got));
    for (node_ops_level_t level = NODE_OPS_SCALAR; level <= NODE_OPS_AVX512; level++)
        cr_assert_eq(node_ops_plain(level) == NULL, node_ops_get(level) == NULL);
    cr_assert(node_ops_plain(NODE_OPS_AVX2) == NULL || node_ops_plain(NODE_OPS_AVX2) == &node_ops_avx2);
    cr_assert(node_ops_plain(NODE_OPS_AVX512) == NULL || node_ops_plain(NODE_OPS_AVX512) == &node_ops_avx512);
}

/* ---- damaged and unsupported models ---- */

static vc_status_t try_model(gguf_writer_t *w, vc_err_t *err)
{
    gguf_image_t image = gguf_writer_finish(w);
    node_gguf_t *gguf;
    node_engine_t *eng = NULL;
    vc_status_t st = node_gguf_open_memory(image.data, image.bytes, &gguf, err);
    cr_assert_eq(st, VC_OK, "%s", err->msg);
    st = node_engine_create(gguf, NULL, NULL, &eng, err);
    node_engine_destroy(eng);
    node_gguf_close(gguf);
    gguf_image_free(&image);
    return st;
}

/* One layer, 32 wide, one head of 32; what: the part that is wrong. */
static gguf_writer_t *small_model(const char *what)
{
    static float zeros[64 * 64];
    gguf_writer_t *w = gguf_writer_create();
    gguf_writer_str(w, "general.architecture", strcmp(what, "arch") == 0 ? "mamba" : "llama");
    gguf_writer_u32(w, "llama.block_count", 1);
    if (strcmp(what, "missing key") != 0)
        gguf_writer_u32(w, "llama.embedding_length", strcmp(what, "wide head") == 0 ? 320 : 32);
    gguf_writer_u32(w, "llama.feed_forward_length", 64);
    gguf_writer_u32(w, "llama.attention.head_count", strcmp(what, "heads") == 0 ? 4 : 1);
    if (strcmp(what, "experts") == 0)
        gguf_writer_u32(w, "llama.expert_count", 8);
    if (strcmp(what, "rope") == 0)
        gguf_writer_str(w, "llama.rope.scaling.type", "longrope");
    gguf_writer_tensor(w, "token_embd.weight", GGUF_W_F32, 32, 8, zeros);
    gguf_writer_tensor(w, "output_norm.weight", GGUF_W_F32, strcmp(what, "vector") == 0 ? 16 : 32, 0, zeros);
    const char *square[] = {"blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight",
                            "blk.0.attn_output.weight"};
    for (int i = 0; i < 4; i++)
        if (i != 1 || strcmp(what, "missing tensor") != 0)
            gguf_writer_tensor(w, square[i], GGUF_W_F32, 32, i == 2 && strcmp(what, "shape") == 0 ? 31 : 32, zeros);
    gguf_writer_tensor(w, "blk.0.attn_norm.weight", GGUF_W_F32, 32, 0, zeros);
    gguf_writer_tensor(w, "blk.0.ffn_norm.weight", GGUF_W_F32, 32, 0, zeros);
    gguf_writer_tensor(w, "blk.0.ffn_gate.weight", GGUF_W_Q4_0, 32, 64, zeros);
    gguf_writer_tensor(w, "blk.0.ffn_up.weight", GGUF_W_Q8_0, 32, 64, zeros);
    gguf_writer_tensor(w, "blk.0.ffn_down.weight", GGUF_W_F16, 64, 32, zeros);
    return w;
}

Test(forward, a_model_that_cannot_be_run_is_refused_by_a_sentence_that_names_the_cause)
{
    static const struct {
        const char *what, *named;
        vc_status_t status;
    } cases[] = {{"", "", VC_OK},
                 {"arch", "mamba", VC_ERR_UNSUPPORTED},
                 {"missing key", "llama.embedding_length", VC_ERR_INVALID},
                 {"heads", "head dimension 8", VC_ERR_UNSUPPORTED},
                 {"wide head", "head dimension 320", VC_ERR_UNSUPPORTED},
                 {"experts", "llama.expert_count", VC_ERR_UNSUPPORTED},
                 {"rope", "longrope", VC_ERR_UNSUPPORTED},
                 {"vector", "output_norm.weight", VC_ERR_INVALID},
                 {"missing tensor", "blk.0.attn_k.weight is missing", VC_ERR_INVALID},
                 {"shape", "blk.0.attn_v.weight is [32, 31]", VC_ERR_INVALID}};
    for (size_t i = 0; i < VC_ARRAY_LEN(cases); i++) {
        vc_err_t err = {0};
        vc_status_t st = try_model(small_model(cases[i].what), &err);
        cr_assert_eq(st, cases[i].status, "%s: %s", cases[i].what, err.msg);
        cr_assert_not_null(strstr(err.msg, cases[i].named), "%s: %s", cases[i].what, err.msg);
    }
}
