/*
 * KVzip on SmolLM2: what is said to the model, and scores of three layers against reference numbers.
 */
#include <math.h>

#include "codec_fixture.h"
#include "compress/kvzip_int.h"
#include "compress/replay_ids.h"
#include "kvzip_fixture.h"

typedef struct real {
    node_gguf_t *gguf;
    node_tokenizer_t *tok;
    node_engine_t *engine;
} real_t;

static bool open_real(real_t *t)
{
    const char *path = getenv("VERICACHE_MODEL");
    vc_err_t err = {0};
    node_engine_opts_t opts;
    if (path == NULL)
        return false;
    node_engine_opts_default(&opts);
    cr_assert_eq(node_gguf_open(path, &t->gguf, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_tokenizer_create(t->gguf, &t->tok, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_engine_create(t->gguf, t->tok, &opts, &t->engine, &err), VC_OK, "%s", err.msg);
    return true;
}

static void close_real(real_t *t)
{
    node_engine_destroy(t->engine);
    node_tokenizer_destroy(t->tok);
    node_gguf_close(t->gguf);
}

static void check_ids(json_t *want, const uint32_t *ids, uint32_t n)
{
    cr_assert_eq(json_array_size(want), n);
    for (uint32_t i = 0; i < n; i++)
        cr_assert_eq(json_integer_value(json_array_get(want, i)), ids[i]);
}

Test(kvzip_model, the_real_model_s_words_are_the_reference_s)
{
    real_t t;
    if (!open_real(&t))
        cr_skip_test("VERICACHE_MODEL does not name SmolLM2-135M-Instruct.Q4_1.gguf");
    json_t *want = json_load_file(VC_TEST_VECTORS "/smollm2/extra_ids.json", 0, NULL);
    cr_assert_not_null(want);
    node_replay_ids_t ids;
    cr_assert_eq(node_replay_ids_init(&ids, t.tok, NULL), VC_OK);
    check_ids(json_object_get(want, "repeat_first"), ids.first, ids.n_first);
    check_ids(json_object_get(want, "repeat_next"), ids.next, ids.n_next);
    check_ids(json_object_get(want, "suffix"), ids.suffix, ids.n_suffix);
    node_replay_ids_fini(&ids);
    json_decref(want);
    close_real(&t);
}

/* ---- the real model's scores ---- */

typedef struct real_keys {
    const node_kv_t *kv;
    uint32_t layer, head, dim, base;
    float *tile;
} real_keys_t;

/* The reference's replay begins inside a block: columns are gathered token by token. */
static const void *keys_of_kv(void *arg, bool of_replay, uint32_t block)
{
    const real_keys_t *k = arg;
    for (uint32_t i = 0; i < NODE_TILE; i++) {
        const uint32_t t = (of_replay ? k->base : 0) + block * NODE_TILE + i;
        for (uint32_t c = 0; c < k->dim; c++)
            k->tile[c * NODE_TILE + i] = t < k->kv->n_tokens ? (float)key_at(k->kv, k->layer, k->head, t, c) : 0.0f;
    }
    return k->tile;
}

static void real_scores(const real_t *t, const node_kv_t *kv, const seen_t *seen, uint32_t layer, uint32_t head,
                        uint32_t base, uint32_t start, uint32_t end, bool plus, float *scores)
{
    const node_kvzip_ops_t *ops = node_kvzip_ops_best();
    const node_model_info_t *m = node_engine_info(t->engine);
    const uint32_t d = m->head_dim, group = m->n_head / m->n_kv_head, columns = node_kvzip_columns(start, end);
    float *z = vc_alloc_aligned(64, node_kvzip_scratch(start, start, end, seen->n_rows) * sizeof(float));
    float *best = vc_alloc_aligned(64, (size_t)group * columns * sizeof(float));
    float *norms = vc_calloc((size_t)group * (end - start), sizeof(float)), v[256];
    float *gram = vc_calloc((size_t)m->n_head * d * d, sizeof(float)),
          *log_norm = vc_calloc(seen->n_rows, sizeof(float));
    real_keys_t keys = {kv, layer, head, d, base, vc_alloc_aligned(64, (size_t)d * NODE_TILE * sizeof(float))};
    cr_assert_eq(node_engine_output_gram(t->engine, layer, gram, NULL), VC_OK);
    for (uint32_t g = 0; g < group; g++)
        for (uint32_t i = start; i < end; i++) {
            const uint16_t *half =
                node_page_v(node_kv_page_at(kv, i / NODE_TILE), layer, head) + (size_t)(i % NODE_TILE) * d;
            ops->widen(half, v, d);
            norms[g * (end - start) + i - start] = ops->gram_norm(gram + (size_t)(head * group + g) * d * d, d, v);
        }
    for (uint32_t j = 0; j < seen->n_rows; j++)
        log_norm[j] = 0.5f * node_log(ops->square_sum(seen->x + ((size_t)layer * seen->n_rows + j) * seen->x_width,
                                                      seen->x_width));
    for (uint32_t i = 0; i < group * columns; i++)
        best[i] = -INFINITY;
    const node_kvzip_head_t in = {.dim = d,
                                  .n_group = group,
                                  .n_sink = start,
                                  .start = start,
                                  .end = end,
                                  .n_rows = seen->n_rows,
                                  .q =
                                      seen->q + (size_t)layer * seen->n_rows * seen->q_width + (size_t)head * group * d,
                                  .q_stride = seen->q_width,
                                  .log_norm = plus ? log_norm : NULL,
                                  .keys = keys_of_kv,
                                  .keys_arg = &keys};
    cr_assert(node_kvzip_raise(ops, &in, z, best));
    node_kvzip_finish(start, end, group, best, plus ? norms : NULL, end - start, scores);
    float *all[] = {z, best, norms, gram, log_norm, keys.tile};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++)
        vc_free(all[i]);
}

/*
 * The reference ran in float32 with float KV; here activations have 16 bits and KV is f16. The worst score of a head
 * and the share of the weight that moved are bounded as for SnapKV.
 */
static void check_real(const golden_case_t *c, const char *name, uint32_t layer, uint32_t head, const float *got,
                       uint32_t start, uint32_t end)
{
    char full[32];
    snprintf(full, sizeof(full), "%s_%u", name, layer);
    golden_tensor_t want = golden_out(c, full);
    const float *w = want.f32 + (size_t)head * want.shape[1];
    double off = 0, sum = 0, worst = 0;
    for (uint32_t i = 0; i < start; i++)
        cr_assert_eq(w[i], 0.0f);
    for (uint32_t i = start; i < end; i++) {
        off += fabs(got[i - start] - w[i]);
        sum += w[i];
        worst = fmax(worst, fabs(got[i - start] - w[i]) / (w[i] + 1e-6));
    }
    cr_log_info("%s head %u: %g of the weight moved, worst %g", full, head, off / sum, worst);
    cr_assert_leq(off, 2e-3 * sum, "%s head %u: %g of the weight moved", full, head, off / sum);
    cr_assert_leq(worst, 2e-2, "%s head %u: a score is %g off", full, head, worst);
    golden_tensor_free(&want);
}

Test(kvzip_model, scores_of_the_real_model_agree_with_the_reference)
{
    real_t t;
    if (VT_EVERY > 1)
        cr_skip_test("numbers are of the release build: test_kvzip_engine runs replays everywhere");
    if (!open_real(&t))
        cr_skip_test("VERICACHE_MODEL does not name SmolLM2-135M-Instruct.Q4_1.gguf");
    static const uint32_t layers[3] = {0, 14, 29};
    golden_t *golden = golden_open("smollm2_kv");
    golden_case_t c = golden_case(golden, "long_chat");
    golden_tensor_t ids = golden_in(&c, "ids"), replay = golden_in(&c, "replay_ids");
    json_t *p = json_object_get(c.params, "kvzip");
    const uint32_t start = (uint32_t)json_integer_value(json_object_get(p, "start")),
                   end = (uint32_t)json_integer_value(json_object_get(p, "end"));
    const node_model_info_t *m = node_engine_info(t.engine);
    seen_t seen = {.n_rows = (uint32_t)replay.n,
                   .q_width = m->n_head * m->head_dim,
                   .x_width = m->d_model,
                   .first = (uint32_t)ids.n};
    seen.q = vc_calloc((size_t)m->n_layer * seen.n_rows * seen.q_width, sizeof(float));
    seen.x = vc_calloc((size_t)m->n_layer * seen.n_rows * seen.x_width, sizeof(float));
    node_kv_dims_t dims;
    node_kv_t kv;
    node_engine_kv_dims(t.engine, &dims);
    cr_assert_eq(node_kv_init(&kv, &dims, NULL), VC_OK);
    const node_capture_t capture = {NODE_CAP_Q | NODE_CAP_X, take, &seen};
    cr_assert_eq(node_prefill(t.engine, &kv, ids.u32, (uint32_t)ids.n, NULL, NULL, NULL), VC_OK);
    cr_assert_eq(node_prefill(t.engine, &kv, replay.u32, seen.n_rows, NULL, &capture, NULL), VC_OK);
    float scores[512];
    for (int i = 0; i < 3; i++)
        for (uint32_t h = 0; h < m->n_kv_head; h++)
            for (int plus = 0; plus < 2; plus++) {
                real_scores(&t, &kv, &seen, layers[i], h, (uint32_t)ids.n, start, end, plus, scores);
                check_real(&c, plus ? "kvzip_plus" : "kvzip", layers[i], h, scores, start, end);
            }
    vc_free(seen.q);
    vc_free(seen.x);
    node_kv_fini(&kv);
    golden_tensor_free(&ids);
    golden_tensor_free(&replay);
    golden_close(golden);
    close_real(&t);
}
