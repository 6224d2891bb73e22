/* The weights of KVQuant's fit against their plain formula in double, on a small model with random weights. */
#include <math.h>

#include "compress/kvquant_local.h"
#include "support/tiny_model.h"
#include "support/vc_test.h"
#include "vc/mem.h"

enum { N_TEXTS = 2, LAYER = 1, SINKS = 2 };
static const uint32_t lengths[N_TEXTS] = {75, 130};

typedef struct world {
    gguf_image_t image;
    node_gguf_t *gguf;
    node_engine_t *engine;
    const node_model_info_t *m;
    node_kvquant_texts_t texts;
    float *gram, *k_weights, *v_weights;
} world_t;

static void world_open(world_t *w)
{
    tiny_model_opts_t opts;
    node_engine_opts_t eopts;
    uint32_t tokens[130];
    vc_err_t err = {0};
    tiny_model_opts_default(&opts);
    w->image = tiny_model_build(&opts);
    node_engine_opts_default(&eopts);
    eopts.n_threads = 1;
    cr_assert_eq(node_gguf_open_memory(w->image.data, w->image.bytes, &w->gguf, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_engine_create(w->gguf, NULL, &eopts, &w->engine, &err), VC_OK, "%s", err.msg);
    w->m = node_engine_info(w->engine);
    cr_assert_eq(node_kvquant_texts_init(&w->texts, w->m, N_TEXTS, SINKS, &err), VC_OK);
    const node_replay_t replay = {.engine = w->engine};
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        for (uint32_t t = 0; t < lengths[i]; t++)
            tokens[t] = TINY_ID_FIRST_BYTE + (t * (37 + i) + t / 5) % 256;
        cr_assert_eq(node_kvquant_texts_add(&w->texts, &replay, tokens, lengths[i], &err), VC_OK, "%s", err.msg);
    }
    const size_t n = (size_t)w->texts.n_rows * w->m->n_kv_head * w->m->head_dim;
    cr_assert_eq(w->texts.n_rows, lengths[0] + lengths[1] - 2 * SINKS);
    w->gram = vc_calloc((size_t)w->m->n_head * w->m->head_dim * w->m->head_dim, sizeof(float));
    w->k_weights = vc_calloc(n, sizeof(float));
    w->v_weights = vc_calloc(n, sizeof(float));
    cr_assert_eq(node_engine_output_gram(w->engine, LAYER, w->gram, NULL), VC_OK);
    cr_assert_eq(node_kvquant_local_weights(&w->texts, w->engine, LAYER, w->k_weights, w->v_weights, &err), VC_OK, "%s",
                 err.msg);
}

static void world_close(world_t *w)
{
    vc_free(w->gram);
    vc_free(w->k_weights);
    vc_free(w->v_weights);
    node_kvquant_texts_free(&w->texts);
    node_engine_destroy(w->engine);
    node_gguf_close(w->gguf);
    gguf_image_free(&w->image);
}

static double k_at(const world_t *w, uint32_t text, uint32_t t, uint32_t head, uint32_t c)
{
    node_page_t *page = node_kv_page_at(&w->texts.kv[text], t / NODE_TILE);
    return (double)node_f32_from_f16(node_page_k(page, LAYER, head)[c * NODE_TILE + t % NODE_TILE]);
}

static double v_at(const world_t *w, uint32_t text, uint32_t t, uint32_t head, uint32_t c)
{
    node_page_t *page = node_kv_page_at(&w->texts.kv[text], t / NODE_TILE);
    return (double)node_f32_from_f16(node_page_v(page, LAYER, head)[t % NODE_TILE * w->m->head_dim + c]);
}

/* Adds what one query says of every key and value: k and v [tokens][dim]. */
static void add_query(const world_t *w, uint32_t text, uint32_t q_head, const float *q, uint32_t position, double *k,
                      double *v)
{
    const uint32_t dim = w->m->head_dim, half = dim / 2, head = q_head / (w->m->n_head / w->m->n_kv_head);
    const float *gram = w->gram + (size_t)q_head * dim * dim;
    double a[130], sum = 0, o[64] = {0}, top = -1e300;
    for (uint32_t t = 0; t <= position; t++) {
        a[t] = 0;
        for (uint32_t c = 0; c < dim; c++)
            a[t] += (double)q[c] * k_at(w, text, t, head, c) / sqrt((double)dim);
        top = fmax(top, a[t]);
    }
    for (uint32_t t = 0; t <= position; t++)
        sum += a[t] = exp(a[t] - top);
    for (uint32_t t = 0; t <= position; t++)
        for (uint32_t c = 0; c < dim; c++)
            o[c] += (a[t] /= c == 0 ? sum : 1.0) * v_at(w, text, t, head, c);
    for (uint32_t t = 0; t <= position; t++) {
        double change = 0;
        for (uint32_t r = 0; r < dim; r++)
            for (uint32_t c = 0; c < dim; c++)
                change +=
                    (v_at(w, text, t, head, r) - o[r]) * (double)gram[r * dim + c] * (v_at(w, text, t, head, c) - o[c]);
        for (uint32_t c = 0; c < dim; c++) {
            const double angle = t * (double)w->m->rope_inv_freq[c % half], pair = (double)q[(c + half) % dim];
            const double turned = (double)q[c] * cos(angle) + (c < half ? pair : -pair) * sin(angle);
            k[t * dim + c] += a[t] * a[t] * change * turned * turned / dim;
            v[t * dim + c] += a[t] * a[t] * (double)gram[c * dim + c];
        }
    }
}

Test(kvquant_local, weights_are_what_an_error_changes_of_the_layer_s_output)
{
    world_t w;
    world_open(&w);
    const uint32_t dim = w.m->head_dim, channels = w.m->n_kv_head * dim, group = w.m->n_head / w.m->n_kv_head;
    uint32_t base = 0;
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        const uint32_t n_queries = (lengths[i] + 15) / 16;
        cr_assert_eq(w.texts.n_queries[i], n_queries);
        for (uint32_t h = 0; h < w.m->n_kv_head; h++) {
            static double k[130 * 64], v[130 * 64];
            double k_top = 0, v_top = 0;
            memset(k, 0, sizeof(k));
            memset(v, 0, sizeof(v));
            for (uint32_t j = 0; j < n_queries; j++)
                for (uint32_t g = h * group; g < (h + 1) * group; g++)
                    add_query(&w, i, g, w.texts.queries[i] + (((size_t)LAYER * n_queries + j) * w.m->n_head + g) * dim,
                              VC_MIN(16 * j + 15, lengths[i] - 1), k, v);
            for (uint32_t e = SINKS * dim; e < lengths[i] * dim; e++) {
                k_top = fmax(k_top, k[e]);
                v_top = fmax(v_top, v[e]);
            }
            cr_assert(k_top > 0 && v_top > 0);
            for (uint32_t t = SINKS; t < lengths[i]; t++)
                for (uint32_t c = 0; c < dim; c++) {
                    const size_t row = base + t - SINKS, ch = h * dim + c;
                    const double got_k = (double)w.k_weights[ch * w.texts.n_rows + row];
                    const double got_v = (double)w.v_weights[row * channels + ch];
                    cr_assert(fabs(got_k - k[t * dim + c]) <= 1e-4 * k[t * dim + c] + 1e-5 * k_top,
                              "text %u token %u head %u channel %u: %g in place of %g", i, t, h, c, got_k,
                              k[t * dim + c]);
                    cr_assert(fabs(got_v - v[t * dim + c]) <= 1e-4 * v[t * dim + c] + 1e-6 * v_top,
                              "text %u token %u head %u channel %u: %g in place of %g", i, t, h, c, got_v,
                              v[t * dim + c]);
                }
        }
        base += lengths[i] - SINKS;
    }
    world_close(&w);
}
