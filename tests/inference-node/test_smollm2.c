/*
 * The real model (VERICACHE_MODEL: SmolLM2-135M-Instruct.Q4_1.gguf) against the golden run, which dequantised the
 * weights to float32 and kept float32 activations and KV. Ours differ by int16 activations and half KV.
 */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "model/engine.h"
#include "support/golden.h"
#include "support/vc_test.h"
#include "vc/mem.h"

typedef struct {
    node_gguf_t *gguf;
    node_engine_t *eng;
    node_kv_dims_t dims;
    uint32_t n_vocab;
} model_t;

/* False: no model; the reason is printed. */
static bool open_real(model_t *m, uint32_t threads, node_isa_t isa)
{
    const char *path = getenv("VERICACHE_MODEL");
    vc_err_t err = {0};
    if (path == NULL) {
        printf("skipped: VERICACHE_MODEL does not name SmolLM2-135M-Instruct.Q4_1.gguf\n");
        return false;
    }
    node_engine_opts_t opts = {.n_threads = threads, .isa = isa, .max_rows = 256};
    cr_assert_eq(node_gguf_open(path, &m->gguf, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_engine_create(m->gguf, NULL, &opts, &m->eng, &err), VC_OK, "%s", err.msg);
    node_engine_kv_dims(m->eng, &m->dims);
    m->n_vocab = node_engine_info(m->eng)->n_vocab;
    return true;
}

static void close_real(model_t *m)
{
    node_engine_destroy(m->eng);
    node_gguf_close(m->gguf);
}

static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static double log_sum_exp(const float *x, uint32_t n)
{
    double top = (double)x[argmax(x, n)], sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    return top + log(sum);
}

static uint32_t ids_of(const json_t *prompt, const char *key, uint32_t *ids, uint32_t cap)
{
    const json_t *list = json_object_get(prompt, key);
    uint32_t n = (uint32_t)json_array_size(list);
    cr_assert(n > 0 && n <= cap);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return n;
}

/*
 * The golden file keeps the five largest logits and the log-sum-exp: KL of the distribution over {those five tokens,
 * all others} from ours, a lower bound of the full one that sees where the mass is.
 */
static double coarse_kl(const json_t *prompt, const float *logits, uint32_t n)
{
    const json_t *ids = json_object_get(prompt, "top5_ids"), *top = json_object_get(prompt, "top5_logits");
    double golden_lse = json_number_value(json_object_get(prompt, "logsumexp")), lse = log_sum_exp(logits, n);
    double kl = 0, rest_p = 1, rest_q = 1;
    for (size_t i = 0; i < 5; i++) {
        double g = json_number_value(json_array_get(top, i));
        double o = (double)logits[json_integer_value(json_array_get(ids, i))];
        double p = exp(g - golden_lse), q = exp(o - lse);
        /* int16 activations: measured at most 0.005 off on logits of 20 to 30; a wrong layout is off by units */
        cr_assert(fabs(g - o) < 0.02, "logit %zu: %g, not %g", i, o, g);
        kl += p * log(p / q);
        rest_p -= p;
        rest_q -= q;
    }
    return kl + (rest_p > 1e-9 ? rest_p * log(rest_p / rest_q) : 0);
}

static void check_order(const json_t *prompt, const float *logits, uint32_t n)
{
    float *copy = vc_memdup(logits, n * sizeof *copy);
    for (size_t i = 0; i < 5; i++) {
        uint32_t id = argmax(copy, n);
        cr_assert_eq(id, (uint32_t)json_integer_value(json_array_get(json_object_get(prompt, "top5_ids"), i)));
        copy[id] = -INFINITY;
    }
    vc_free(copy);
}

/* Mean negative log-likelihood of the prompt, and the argmax at every position. */
static void check_positions(const model_t *m, const json_t *prompt, const uint32_t *ids, uint32_t n)
{
    uint32_t want[256], wrong = 0, at = 0;
    float *logits = vc_calloc(64 * (size_t)m->n_vocab, sizeof *logits);
    double nll = 0;
    node_kv_t kv;
    node_row_t rows[64];
    vc_err_t err = {0};
    cr_assert_eq(ids_of(prompt, "argmax_every_position", want, 256), n);
    node_kv_init(&kv, &m->dims, NULL);
    for (uint32_t count; at < n; at += count) {
        count = VC_MIN(64u, n - at);
        for (uint32_t i = 0; i < count; i++)
            rows[i] = (node_row_t){&kv, ids[at + i], true};
        cr_assert_eq(node_forward(m->eng, rows, count, logits, NULL, &err), VC_OK, "%s", err.msg);
        for (uint32_t i = 0; i < count; i++) {
            const float *row = logits + (size_t)i * m->n_vocab;
            wrong += argmax(row, m->n_vocab) != want[at + i];
            if (at + i + 1 < n)
                nll += log_sum_exp(row, m->n_vocab) - (double)row[ids[at + i + 1]];
        }
    }
    cr_assert(fabs(nll / (n - 1) - json_number_value(json_object_get(prompt, "mean_nll"))) < 2e-3, "mean nll %g",
              nll / (n - 1));
    /* prompt positions may be near ties, which the file gives no margins for */
    cr_assert_leq(wrong, n / 50, "%u of %u positions have another argmax", wrong, n);
    node_kv_fini(&kv);
    vc_free(logits);
}

static double check_prompt(const model_t *m, const json_t *prompt)
{
    uint32_t ids[256], greedy[32], n = ids_of(prompt, "ids", ids, 256);
    float *logits = vc_calloc(m->n_vocab, sizeof *logits);
    node_kv_t kv;
    vc_err_t err = {0};
    cr_assert_eq(ids_of(prompt, "greedy_32", greedy, 32), 32u);
    node_kv_init(&kv, &m->dims, NULL);
    cr_assert_eq(node_prefill(m->eng, &kv, ids, n, logits, NULL, &err), VC_OK, "%s", err.msg);
    double kl = coarse_kl(prompt, logits, m->n_vocab);
    check_order(prompt, logits, m->n_vocab);
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t id = argmax(logits, m->n_vocab);
        cr_assert_eq(id, greedy[i], "%s: step %u", json_string_value(json_object_get(prompt, "name")), i);
        cr_assert_eq(node_prefill(m->eng, &kv, &id, 1, logits, NULL, &err), VC_OK, "%s", err.msg);
    }
    check_positions(m, prompt, ids, n);
    node_kv_fini(&kv);
    vc_free(logits);
    return kl;
}

Test(smollm2, golden_logits_and_greedy_runs_hold)
{
    model_t m;
    json_error_t error;
    if (!open_real(&m, 2, NODE_ISA_AUTO))
        cr_skip_test();
    json_t *j = json_load_file(VC_TEST_VECTORS "/smollm2/generation.json", 0, &error);
    cr_assert_not_null(j, "%s", error.text);
    const json_t *prompts = json_object_get(j, "prompts");
    double kl = 0;
    cr_assert_eq(json_array_size(prompts), 6u);
    const size_t n = VT_EVERY > 1 ? 1 : 6; /* another prompt runs no other code */
    for (size_t i = 0; i < n; i++)
        kl += check_prompt(&m, json_array_get(prompts, i)) / (double)n;
    cr_assert_lt(kl, 1e-4, "mean KL %g", kl);
    cr_assert_eq(node_engine_saturations(m.eng), 0u);
    json_decref(j);
    close_real(&m);
}

/* ---- K, V of the golden run ---- */

typedef struct {
    golden_tensor_t k[30], v[30], norm[30];
    uint32_t compared;
} golden_kv_t;

static void compare_kv(void *arg, node_capture_kind_t kind, uint32_t layer, uint32_t row, uint32_t position,
                       const float *values)
{
    cr_assert_eq(position, row);
    golden_kv_t *g = arg;
    const golden_tensor_t *t = kind == NODE_CAP_K ? &g->k[layer] : &g->v[layer];
    if (t->data == NULL || row >= 8)
        return;
    /* float noise of the oracle is 1e-3 relative; int16 activations add about as much */
    golden_tol_t tol = {.abs = 5e-3, .rel = 3e-3};
    cr_assert_eq(golden_first_off(values, t->f32 + (size_t)row * 192, 192, tol), 192u, "%s of layer %u row %u",
                 kind == NODE_CAP_K ? "K" : "V", layer, row);
    g->compared++;
}

Test(smollm2, first_rows_of_k_and_v_match_the_golden_ones)
{
    model_t m;
    if (VT_EVERY > 1)
        cr_skip_test("numbers are of the release build: test_watch runs captures everywhere");
    if (!open_real(&m, 2, NODE_ISA_AUTO))
        cr_skip_test();
    golden_t *g = golden_open("smollm2_kv");
    golden_case_t c = golden_case(g, "long_chat");
    static golden_kv_t want;
    const uint32_t layers[] = {0, 14, 29};
    char name[32];
    for (size_t i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "k_first_%u", layers[i]);
        want.k[layers[i]] = golden_out(&c, name);
        snprintf(name, sizeof name, "v_first_%u", layers[i]);
        want.v[layers[i]] = golden_out(&c, name);
    }
    golden_tensor_t ids = golden_in(&c, "ids");
    node_kv_t kv;
    vc_err_t err = {0};
    node_kv_init(&kv, &m.dims, NULL);
    node_capture_t capture = {.kinds = NODE_CAP_K | NODE_CAP_V, .fn = compare_kv, .arg = &want};
    cr_assert_eq(node_prefill(m.eng, &kv, ids.u32, (uint32_t)ids.n, NULL, &capture, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(want.compared, 3u * 2 * 8);
    for (size_t i = 0; i < 3; i++)
        golden_tensor_free(&want.k[layers[i]]), golden_tensor_free(&want.v[layers[i]]);
    golden_tensor_free(&ids);
    node_kv_fini(&kv);
    golden_close(g);
    close_real(&m);
}

/* ---- the contract on the real model ---- */

enum { N = VT_EVERY > 1 ? 70 : 300 };

static void run(const model_t *m, const uint32_t *ids, uint32_t first, uint32_t chunk, float *logits, vc_digest_t *kv_p)
{
    node_kv_t kv;
    node_row_t rows[256];
    vc_err_t err = {0};
    node_kv_init(&kv, &m->dims, NULL);
    for (uint32_t at = 0, n; at < N; at += n) {
        n = VC_MIN(at == 0 ? first : chunk, N - at);
        for (uint32_t i = 0; i < n; i++) /* logits of the last 20 rows */
            rows[i] = (node_row_t){&kv, ids[at + i], at + i >= N - 20};
        cr_assert_eq(
            node_forward(m->eng, rows, n, logits + (size_t)(at > N - 20 ? at - (N - 20) : 0) * m->n_vocab, NULL, &err),
            VC_OK, "%s", err.msg);
    }
    node_kv_digest(&kv, N, kv_p);
    node_kv_fini(&kv);
}

Test(smollm2, bits_do_not_depend_on_rows_threads_or_isa)
{
    uint32_t ids[N];
    model_t m;
    float *want = NULL, *got = NULL;
    vc_digest_t want_kv, kv;
    static const struct {
        node_isa_t isa;
        uint32_t threads, first, chunk;
    } runs[] = {{NODE_ISA_AUTO, 2, 256, 256}, {NODE_ISA_AUTO, 1, 100, 256}, {NODE_ISA_AUTO, 2, 250, 1},
                {NODE_ISA_AVX2, 2, 77, 130},  {NODE_ISA_AVX2, 1, 256, 8},   {NODE_ISA_AVX512, 2, 31, 25}};
    for (size_t i = 0; i < VC_ARRAY_LEN(runs); i += VT_EVERY) {
        if (!node_isa_available(runs[i].isa))
            continue;
        if (!open_real(&m, runs[i].threads, runs[i].isa))
            cr_skip_test();
        size_t bytes = 20 * (size_t)m.n_vocab * sizeof(float);
        for (uint32_t t = 0; t < N; t++)
            ids[t] = (uint32_t)((golden_u(77, t) + 1) / 2 * m.n_vocab);
        got = vc_calloc(1, bytes);
        run(&m, ids, runs[i].first, runs[i].chunk, got, &kv);
        if (want == NULL) {
            want = got;
            want_kv = kv;
        } else {
            cr_assert_eq(memcmp(&kv, &want_kv, sizeof kv), 0, "run %zu: KV", i);
            cr_assert_eq(memcmp(got, want, bytes), 0, "run %zu: logits", i);
            vc_free(got);
        }
        close_real(&m);
    }
    vc_free(want);
}

Test(smollm2, scalar_gives_the_same_bits)
{
    uint32_t ids[6] = {1, 9690, 198, 2683, 359, 253};
    float *logits[2] = {NULL, NULL};
    vc_digest_t kv_digest[2];
    for (int i = 0; i < 2; i++) {
        model_t m;
        node_kv_t kv;
        vc_err_t err = {0};
        if (!open_real(&m, 2, i == 0 ? NODE_ISA_SCALAR : NODE_ISA_AUTO))
            cr_skip_test();
        logits[i] = vc_calloc(m.n_vocab, sizeof(float));
        node_kv_init(&kv, &m.dims, NULL);
        cr_assert_eq(node_prefill(m.eng, &kv, ids, 6, logits[i], NULL, &err), VC_OK, "%s", err.msg);
        node_kv_digest(&kv, 6, &kv_digest[i]);
        node_kv_fini(&kv);
        if (i == 1)
            cr_assert_eq(memcmp(logits[0], logits[1], m.n_vocab * sizeof(float)), 0);
        close_real(&m);
    }
    cr_assert_eq(memcmp(&kv_digest[0], &kv_digest[1], sizeof kv_digest[0]), 0);
    vc_free(logits[0]), vc_free(logits[1]);
}
