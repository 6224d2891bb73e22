/* ExpectedAttention: what a registration keeps, and what it refuses. */
#include <math.h>

#include "codec_fixture.h"

static uint32_t n_kept(const fx_records_t *r, uint32_t first, uint32_t end, uint32_t layer, uint32_t head)
{
    uint32_t n = 0;
    for (uint32_t b = first; b < end; b++)
        n += (uint32_t)__builtin_popcountll(fx_kept(r, b, layer, head));
    return n;
}

Test(expected_attention_choice, the_budget_is_each_head_s_and_the_sinks_are_in_it)
{
    fx_t f;
    fx_open(&f, fx_model(2, 4, 2, 32), 5, 64, 110);
    fx_records_t r = {0};
    fx_compress("expected_attention:keep=0.25", &f.in, &r);
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert_eq(n_kept(&r, 0, 5, i / 2, i % 2), 80);
        cr_assert_eq(fx_kept(&r, 0, i / 2, i % 2) & 15u, 15u);
    }
    fx_records_free(&r);
    fx_close(&f);
}

/* Values of zero make every score zero: the sinks must not be what loses the ties, the rest goes to the first rows. */
Test(expected_attention_choice, ties_do_not_evict_the_sinks)
{
    fx_t f;
    fx_open(&f, fx_model(1, 2, 1, 16), 4, 64, 111);
    for (uint32_t b = 0; b < 4; b++)
        memset(node_page_v(node_kv_page_at(&f.kv, b), 0, 0), 0, 16u * NODE_TILE * 2);
    fx_records_t r = {0};
    fx_compress("expected_attention:keep=0.25,sinks=16", &f.in, &r);
    cr_assert_eq(fx_kept(&r, 0, 0, 0), UINT64_MAX);
    cr_assert_eq(n_kept(&r, 1, 4, 0, 0), 0);
    fx_records_free(&r);
    fx_close(&f);
}

Test(expected_attention_choice, a_context_no_longer_than_the_sinks_keeps_everything)
{
    fx_t f;
    fx_open(&f, fx_model(1, 2, 1, 16), 1, 64, 112);
    fx_records_t r = {0};
    fx_compress("expected_attention:keep=0.01,sinks=64", &f.in, &r);
    cr_assert_eq(fx_kept(&r, 0, 0, 0), UINT64_MAX);
    fx_records_free(&r);
    fx_close(&f);
}

/* 64 * (1 - 0.999) truncates to 0 where the share removed is the parameter: an empty cache, and NaN from then on. */
Test(expected_attention_choice, the_smallest_share_of_the_shortest_context_keeps_something)
{
    fx_t f;
    fx_open(&f, fx_model(1, 2, 1, 16), 1, 64, 113);
    fx_records_t none = {0}, sinks = {0};
    fx_compress("expected_attention:keep=1e-6,sinks=0", &f.in, &none);
    cr_assert_eq(n_kept(&none, 0, 1, 0, 0), 1);
    fx_compress("expected_attention:keep=1e-6", &f.in, &sinks);
    cr_assert_eq(fx_kept(&sinks, 0, 0, 0), 15u, "the sinks, whatever the share");
    fx_records_free(&none);
    fx_records_free(&sinks);
    fx_close(&f);
}

/* 28 query heads on 4 KV heads: the record has 4 heads, not 28. */
Test(expected_attention_choice, bytes_follow_the_kv_heads_not_the_query_heads)
{
    size_t bytes = fx_layer_bytes("expected_attention", 28, 114);
    cr_assert_eq(bytes, fx_layer_bytes("expected_attention", 4, 114));
    cr_assert_eq(bytes, 4u * (4 * 8 + 128 * 32 * 2 * 2));
}

/* Softmax and quadratic form in double precision, queries of KV head h's own group of seven. */
static void plain_scores(const fx_t *f, uint32_t layer, uint32_t head, uint32_t sinks, uint32_t future, double *scores)
{
    enum { D = 16, G = 7 };
    const uint32_t n = f->kv.n_tokens;
    double *e = calloc(n, sizeof(double));
    memset(scores, 0, n * sizeof(double));
    for (uint32_t g = 0; g < G; g++) {
        double mean[D] = {0}, cov[D][D] = {{0}}, turn[D][D] = {{0}}, top = -INFINITY, sum = 0;
        for (int pass = 0; pass < 2; pass++)
            for (uint32_t t = sinks; t < n; t++) {
                double x[D];
                const float *q = fx_q(f, layer, t) + (head * G + g) * D;
                for (uint32_t i = 0; i < D / 2; i++) {
                    double a = t * (double)f->model.rope_inv_freq[i];
                    x[i] = (double)q[i] * cos(a) + (double)q[i + D / 2] * sin(a);
                    x[i + D / 2] = (double)q[i + D / 2] * cos(a) - (double)q[i] * sin(a);
                }
                for (uint32_t i = 0; i < D; i++) {
                    if (pass == 0)
                        mean[i] += x[i] / (n - sinks);
                    for (uint32_t j = 0; pass == 1 && j < D; j++)
                        cov[i][j] += (x[i] - mean[i]) * (x[j] - mean[j]) / (n - sinks);
                }
            }
        for (uint32_t i = 0; i < D / 2; i++)
            for (uint32_t t = n; t < n + future; t++) {
                double a = t * (double)f->model.rope_inv_freq[i];
                turn[i][i] += cos(a) / future;
                turn[i + D / 2][i + D / 2] += cos(a) / future;
                turn[i][i + D / 2] -= sin(a) / future;
                turn[i + D / 2][i] += sin(a) / future;
            }
        for (uint32_t t = sinks; t < n; t++) {
            const uint16_t *page = node_page_k(node_kv_page_at(&f->kv, t / NODE_TILE), layer, head);
            double k[D] = {0}, z = 0; /* the key turned instead of the query */
            for (uint32_t i = 0; i < D; i++)
                for (uint32_t j = 0; j < D; j++)
                    k[i] += turn[j][i] * (double)node_f32_from_f16(page[j * NODE_TILE + t % NODE_TILE]);
            for (uint32_t i = 0; i < D; i++) {
                z += mean[i] * k[i] / sqrt(D);
                for (uint32_t j = 0; j < D; j++)
                    z += k[i] * cov[i][j] * k[j] / (2 * D);
            }
            e[t] = z;
            top = fmax(top, z);
        }
        for (uint32_t t = sinks; t < n; t++)
            sum += exp(e[t] - top);
        for (uint32_t t = sinks; t < n; t++)
            scores[t] += exp(e[t] - top) / sum / G;
    }
    for (uint32_t t = sinks; t < n; t++) {
        const uint16_t *v = node_page_v(node_kv_page_at(&f->kv, t / NODE_TILE), layer, head) + t % NODE_TILE * D;
        double norm = 0;
        for (uint32_t i = 0; i < D; i++)
            norm += (double)node_f32_from_f16(v[i]) * (double)node_f32_from_f16(v[i]);
        scores[t] *= sqrt(norm);
    }
    free(e);
}

Test(expected_attention_choice, the_kept_rows_are_the_best_scored_ones_of_seven_heads_a_group)
{
    enum { N = 5 * NODE_TILE };
    fx_t f;
    fx_open(&f, fx_model(2, 14, 2, 16), 5, 64, 115);
    fx_records_t r = {0};
    fx_compress("expected_attention:keep=0.25,future=100", &f.in, &r);
    double *scores = calloc(N, sizeof(double));
    for (uint32_t i = 0; i < 4; i++) {
        plain_scores(&f, i / 2, i % 2, 4, 100, scores);
        double worst_kept = INFINITY, best_dropped = 0;
        for (uint32_t t = 4; t < N; t++) {
            if (fx_kept(&r, t / NODE_TILE, i / 2, i % 2) >> t % NODE_TILE & 1)
                worst_kept = fmin(worst_kept, scores[t]);
            else
                best_dropped = fmax(best_dropped, scores[t]);
        }
        cr_assert(worst_kept > best_dropped * (1 - 1e-5), "layer %u head %u: %g kept, %g dropped", i / 2, i % 2,
                  worst_kept, best_dropped);
    }
    free(scores);
    fx_records_free(&r);
    fx_close(&f);
}

/* Stored blocks are in the softmax, not in the choice, and their sinks are not protected a second time. */
Test(expected_attention_choice, only_new_blocks_share_the_budget)
{
    fx_t f;
    fx_open(&f, fx_model(1, 2, 2, 16), 6, 64, 116);
    f.in.first_block = 4;
    fx_records_t r = {0};
    fx_compress("expected_attention:keep=0.25", &f.in, &r);
    for (uint32_t b = 0; b < 4; b++)
        cr_assert_null(r.data[b]);
    for (uint32_t h = 0; h < 2; h++)
        cr_assert_eq(n_kept(&r, 4, 6, 0, h), 32);
    vc_kvrec_head_t head;
    cr_assert_eq(vc_kvrec_check(r.data[4], r.bytes[4], &head, NULL), VC_OK);
    cr_assert(head.horizon_first == 4 * NODE_TILE && head.horizon_tokens == 6 * NODE_TILE);
    fx_records_free(&r);
    fx_close(&f);
}

/* A line or two that is added to a long text is no sample of its queries: some before are watched too. */
Test(expected_attention_choice, a_short_addition_is_judged_by_queries_before_it_too)
{
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 16), 8, 64, 117);
    node_spec_t spec = fx_spec("expected_attention");
    node_compress_in_t in = f.in;
    for (uint32_t first = 0; first < 8; first++) {
        in.first_block = first;
        node_watch_t w = fx_watch(&spec, &f, &in);
        cr_assert_eq(w.first, first == 0 ? 4 : VC_MIN(first, 4u) * NODE_TILE);
        cr_assert_eq(w.end, 8 * NODE_TILE);
        spec.ops->watch_free(w.state);
    }
    fx_close(&f);
}

Test(expected_attention_choice, a_query_that_is_not_finite_is_an_error)
{
    fx_t f;
    fx_open(&f, fx_model(1, 2, 2, 16), 3, 64, 118);
    fx_q(&f, 0, 100)[20] = NAN;
    node_spec_t spec = fx_spec("expected_attention");
    fx_records_t r = {0};
    vc_err_t err = {0};
    cr_assert_eq(fx_try_compress(&spec, &f.in, fx_keep, &r, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "layer 0, head 1"), "%s", err.msg);
    cr_assert_eq(r.n, 0);
    fx_close(&f);
}

Test(expected_attention_choice, statistics_of_another_text_are_an_error)
{
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 16), 8, 64, 119);
    node_spec_t spec = fx_spec("expected_attention"), other = fx_spec("expected_attention:sinks=5");
    fx_records_t r = {0};
    cr_assert_eq(node_compress(&spec, &f.in, fx_keep, &r, NULL), VC_ERR_INVALID, "none at all");
    node_watch_t w = fx_watch(&spec, &f, &f.in);
    f.in.watched = w.state;
    cr_assert_eq(node_compress(&other, &f.in, fx_keep, &r, NULL), VC_ERR_INVALID, "of other rows");
    f.in.n_blocks = 7;
    cr_assert_eq(node_compress(&spec, &f.in, fx_keep, &r, NULL), VC_ERR_INVALID, "of a longer text");
    spec.ops->watch_free(w.state);
    f.in.n_blocks = 8;
    cr_assert_eq(spec.ops->watch(&spec, &f.model, 0, 8 * NODE_TILE, &w, NULL), VC_OK);
    f.in.watched = w.state;
    cr_assert_eq(node_compress(&spec, &f.in, fx_keep, &r, NULL), VC_ERR_INVALID, "of no rows yet");
    spec.ops->watch_free(w.state);
    cr_assert_eq(r.n, 0);
    fx_close(&f);
}
