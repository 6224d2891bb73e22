/*
 * KVzip on a small model: the replay against a plain computation of the same, what a registration keeps, what is said
 * to the model.
 */
#include <math.h>

#include "codec_fixture.h"
#include "compress/kvzip_int.h"
#include "compress/replay_ids.h"
#include "kvzip_fixture.h"
#include "role/local_body.h"

enum { N_BLOCKS = 5, TAIL = NODE_KVZIP_TAIL };

typedef struct model {
    gguf_image_t image;
    node_gguf_t *gguf;
    node_tokenizer_t *tok;
    node_engine_t *engine;
    const node_model_info_t *m;
    node_replay_ids_t ids;
    node_replay_t replay;
    node_kv_t kv;
    uint32_t tokens[N_BLOCKS * NODE_TILE];
    node_compress_in_t in;
} model_t;

static void open_model(model_t *t, uint32_t context, uint32_t max_rows)
{
    vc_err_t err = {0};
    tiny_model_opts_t opts;
    node_engine_opts_t eopts;
    node_kv_dims_t dims;
    memset(t, 0, sizeof(*t));
    tiny_model_opts_default(&opts);
    opts.context = context;
    t->image = tiny_model_build(&opts);
    node_engine_opts_default(&eopts);
    eopts.max_rows = max_rows;
    cr_assert_eq(node_gguf_open_memory(t->image.data, t->image.bytes, &t->gguf, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_tokenizer_create(t->gguf, &t->tok, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_engine_create(t->gguf, t->tok, &eopts, &t->engine, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_replay_ids_init(&t->ids, t->tok, &err), VC_OK, "%s", err.msg);
    t->m = node_engine_info(t->engine);
    t->replay = node_replay_of(&t->ids, t->engine);
    for (uint32_t i = 0; i < N_BLOCKS * NODE_TILE; i++)
        t->tokens[i] = TINY_ID_FIRST_BYTE + (i * 37 + i / 5 + i * i / 71) % 256;
    node_engine_kv_dims(t->engine, &dims);
    cr_assert_eq(node_kv_init(&t->kv, &dims, NULL), VC_OK);
    cr_assert_eq(node_prefill(t->engine, &t->kv, t->tokens, N_BLOCKS * NODE_TILE, NULL, NULL, &err), VC_OK, "%s",
                 err.msg);
    t->in = (node_compress_in_t){
        .model = t->m, .kv = &t->kv, .tokens = t->tokens, .n_blocks = N_BLOCKS, .replay = &t->replay};
}

static void close_model(model_t *t)
{
    node_kv_fini(&t->kv);
    node_replay_ids_fini(&t->ids);
    node_engine_destroy(t->engine);
    node_tokenizer_destroy(t->tok);
    node_gguf_close(t->gguf);
    gguf_image_free(&t->image);
}

/* ---- a plain computation ---- */

/* Lengths of the values of one head after the output projection. */
static void plain_norms(const model_t *t, uint32_t layer, const float *gram, uint32_t qh, double *norms)
{
    const uint32_t d = t->m->head_dim, group = t->m->n_head / t->m->n_kv_head;
    for (uint32_t i = 0; i < N_BLOCKS * NODE_TILE; i++) {
        const uint16_t *v =
            node_page_v(node_kv_page_at(&t->kv, i / NODE_TILE), layer, qh / group) + (size_t)(i % NODE_TILE) * d;
        double sum = 0;
        for (uint32_t a = 0; a < d; a++)
            for (uint32_t b = 0; b < d; b++)
                sum += (double)node_f32_from_f16(v[a]) * gram[((size_t)qh * d + a) * d + b] * node_f32_from_f16(v[b]);
        norms[i] = sqrt(sum);
    }
}

typedef struct plain {
    const model_t *t;
    const node_kv_t *kv; /* with the replay behind position base */
    const seen_t *seen;
    uint32_t base, start, end;
    bool plus;
} plain_t;

/* One row of one query head: raises scores[token]. */
static void plain_row(const plain_t *p, uint32_t layer, uint32_t qh, uint32_t j, const double *norms, double *z,
                      double *scores)
{
    const node_model_info_t *m = p->t->m;
    const uint32_t d = m->head_dim, kvh = qh / (m->n_head / m->n_kv_head), n = p->base + p->seen->n_rows;
    const float *q = p->seen->q + ((size_t)layer * p->seen->n_rows + j) * p->seen->q_width + (size_t)qh * d;
    const float *x = p->seen->x + ((size_t)layer * p->seen->n_rows + j) * p->seen->x_width;
    double top = -INFINITY, sum = 0, length = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool of_replay = i >= p->base && i - p->base <= j;
        z[i] = -INFINITY;
        if (i >= NODE_KVZIP_SINK && !(i >= p->start && i < p->end) && !of_replay)
            continue;
        z[i] = 0;
        for (uint32_t c = 0; c < d; c++)
            z[i] += q[c] * key_at(p->kv, layer, kvh, i, c);
        z[i] /= sqrt(d);
        top = fmax(top, z[i]);
    }
    for (uint32_t i = 0; i < n; i++)
        sum += exp(z[i] - top);
    for (uint32_t c = 0; c < m->d_model; c++)
        length += (double)x[c] * x[c];
    for (uint32_t i = p->start; i < p->end; i++) {
        double weight = exp(z[i] - top) / sum * (p->plus ? norms[i] / sqrt(length) : 1.0);
        scores[i] = fmax(scores[i], weight);
    }
}

/* The ids of a chunk's replay, written out once more. */
static uint32_t plain_ids(const model_t *t, uint32_t start, uint32_t end, uint32_t *ids)
{
    uint32_t n = 0;
    const bool first = start == NODE_KVZIP_SINK;
    for (uint32_t i = 0; i < (first ? t->replay.n_first : t->replay.n_next); i++)
        ids[n++] = first ? t->replay.first[i] : t->replay.next[i];
    for (uint32_t i = 0; !first && i < TAIL; i++)
        ids[n++] = t->tokens[start - TAIL + i];
    for (uint32_t i = 0; i < t->replay.n_suffix; i++)
        ids[n++] = t->replay.suffix[i];
    for (uint32_t i = start; i < end; i++)
        ids[n++] = t->tokens[i];
    return n;
}

/* scores [n_layer * n_kv_head][token]. With `blind`, the replay runs over an empty cache at the positions that follow
 * from that, as a reference once did. */
static void plain_chunk(const model_t *t, uint32_t start, uint32_t end, bool plus, bool blind, double *scores)
{
    enum { T = N_BLOCKS * NODE_TILE };
    uint32_t ids[T + 200];
    const node_model_info_t *m = t->m;
    const uint32_t n = plain_ids(t, start, end, ids), group = m->n_head / m->n_kv_head;
    seen_t seen = {.n_rows = n, .q_width = m->n_head * m->head_dim, .x_width = m->d_model, .first = blind ? 0 : T};
    seen.q = vc_calloc((size_t)m->n_layer * n * seen.q_width, sizeof(float));
    seen.x = vc_calloc((size_t)m->n_layer * n * seen.x_width, sizeof(float));
    node_kv_t full, empty;
    cr_assert_eq(node_kv_init(&full, &t->kv.dims, NULL), VC_OK);
    cr_assert_eq(node_kv_init(&empty, &t->kv.dims, NULL), VC_OK);
    for (uint32_t b = 0; b < N_BLOCKS; b++)
        cr_assert_eq(node_kv_append_page(&full, node_page_get(node_kv_page_at(&t->kv, b))), VC_OK);
    const node_capture_t capture = {NODE_CAP_Q | NODE_CAP_X, take, &seen};
    const node_capture_t none = {0};
    cr_assert_eq(node_prefill(t->engine, &full, ids, n, NULL, blind ? &none : &capture, NULL), VC_OK);
    if (blind)
        cr_assert_eq(node_prefill(t->engine, &empty, ids, n, NULL, &capture, NULL), VC_OK);
    float *gram = vc_calloc((size_t)m->n_head * m->head_dim * m->head_dim, sizeof(float));
    double norms[T], *z = vc_calloc(T + n, sizeof(double));
    const plain_t p = {t, &full, &seen, T, start, end, plus};
    for (uint32_t l = 0; l < m->n_layer; l++) {
        cr_assert_eq(node_engine_output_gram(t->engine, l, gram, NULL), VC_OK);
        for (uint32_t h = 0; h < m->n_head; h++) {
            plain_norms(t, l, gram, h, norms);
            for (uint32_t j = 0; j < n; j++)
                plain_row(&p, l, h, j, norms, z, scores + ((size_t)l * m->n_kv_head + h / group) * T);
        }
    }
    vc_free(gram);
    vc_free(z);
    vc_free(seen.q);
    vc_free(seen.x);
    node_kv_fini(&full);
    node_kv_fini(&empty);
}

static double *plain_scores(const model_t *t, uint32_t first_block, uint32_t chunk, bool plus, bool blind)
{
    enum { T = N_BLOCKS * NODE_TILE };
    double *scores = vc_calloc((size_t)t->m->n_layer * t->m->n_kv_head * T, sizeof(double));
    for (uint32_t at = first_block * NODE_TILE; at < T; at += chunk)
        plain_chunk(t, VC_MAX(at, NODE_KVZIP_SINK), VC_MIN(at + chunk, T), plus, blind, scores);
    return scores;
}

/* The largest difference, relative to the larger of the two. */
static double worst_gap(const model_t *t, uint32_t first_block, const float *got, const double *want, uint32_t layer)
{
    const uint32_t n_new = (N_BLOCKS - first_block) * NODE_TILE;
    double worst = 0;
    for (uint32_t h = layer * t->m->n_kv_head; h < (layer + 1) * t->m->n_kv_head; h++)
        for (uint32_t i = first_block ? 0 : NODE_KVZIP_SINK; i < n_new; i++) {
            double a = got[(size_t)h * n_new + i],
                   b = want[(size_t)h * N_BLOCKS * NODE_TILE + first_block * NODE_TILE + i];
            worst = fmax(worst, fabs(a - b) / (fmax(a, b) + 1e-12));
        }
    return worst;
}

static void check_plain(const model_t *t, const char *text, uint32_t first_block, uint32_t chunk)
{
    node_spec_t spec = fx_spec(text);
    node_compress_in_t in = t->in;
    vc_err_t err = {0};
    float *got;
    in.first_block = first_block;
    cr_assert_eq(node_kvzip_replay(&spec, &in, &got, &err), VC_OK, "%s", err.msg);
    double *want = plain_scores(t, first_block, chunk, spec.plus, false);
    for (uint32_t l = 0; l < t->m->n_layer; l++)
        cr_assert_lt(worst_gap(t, first_block, got, want, l), 2e-5, "%s from block %u, layer %u", text, first_block, l);
    for (uint32_t h = 0; first_block == 0 && h < t->m->n_layer * t->m->n_kv_head; h++)
        for (uint32_t i = 0; i < NODE_KVZIP_SINK; i++)
            cr_assert_eq(got[(size_t)h * N_BLOCKS * NODE_TILE + i], 0.0f);
    vc_free(got);
    vc_free(want);
}

Test(kvzip_engine, the_replay_gives_the_scores_of_a_plain_computation)
{
    model_t t;
    open_model(&t, 2048, 100); /* passes of 100 rows cut the replays anywhere */
    check_plain(&t, "kvzip:chunk=2048", 0, 2048);
    check_plain(&t, "kvzip:chunk=128,plus=no", 0, 128);
    check_plain(&t, "kvzip:chunk=128", 2, 128); /* new rows only, seen by a replay over the whole prefix */
    close_model(&t);
}

/* Scores of a replay over an empty cache look like scores too. */
Test(kvzip_engine, defect_5_the_replay_sees_every_token_of_the_context)
{
    model_t t;
    open_model(&t, 2048, 256);
    node_spec_t spec = fx_spec("kvzip");
    float *got;
    cr_assert_eq(node_kvzip_replay(&spec, &t.in, &got, NULL), VC_OK);
    double *blind = plain_scores(&t, 0, 2048, true, true);
    for (uint32_t l = 1; l < t.m->n_layer; l++) /* the queries of layer 0 have not looked back yet */
        cr_assert_gt(worst_gap(&t, 0, got, blind, l), 0.05, "layer %u", l);
    vc_free(got);
    vc_free(blind);
    node_compress_in_t in = t.in;
    cr_assert_eq(node_kv_truncate(&t.kv, 4 * NODE_TILE), VC_OK);
    fx_records_t r = {0};
    cr_assert_eq(node_compress(&spec, &in, fx_keep, &r, NULL), VC_ERR_INVALID, "a context that is not whole");
    close_model(&t);
}

Test(kvzip_engine, the_replay_leaves_the_full_kv_as_it_is)
{
    model_t t;
    open_model(&t, 2048, 256);
    vc_digest_t before, after;
    node_kv_digest(&t.kv, N_BLOCKS * NODE_TILE, &before);
    fx_records_t r = {0};
    fx_compress("kvzip", &t.in, &r);
    node_kv_digest(&t.kv, N_BLOCKS * NODE_TILE, &after);
    cr_assert_eq(memcmp(&before, &after, sizeof(before)), 0);
    cr_assert_eq(t.kv.n_tokens, N_BLOCKS * NODE_TILE);
    fx_records_free(&r);
    close_model(&t);
}

/* ---- what a registration keeps ---- */

static uint32_t count_kept(const fx_records_t *r, uint32_t first_block, uint32_t layer, uint32_t head)
{
    uint32_t n = 0;
    for (uint32_t b = first_block; b < N_BLOCKS; b++)
        n += (uint32_t)__builtin_popcountll(fx_kept(r, b, layer, head));
    return n;
}

/* The first rows of a chat template have no score of their own; ranking them by 0 would drop them first. */
Test(kvzip_engine, the_first_tokens_are_never_evicted_and_the_template_s_block_is_exact)
{
    static const char *const texts[] = {"kvzip:keep=0.001,budget=head", "kvzip:keep=0.02,budget=layer",
                                        "kvzip:keep=0.02,budget=global", "kvzip:keep=0.3"};
    model_t t;
    open_model(&t, 2048, 256);
    for (size_t i = 0; i < VC_ARRAY_LEN(texts); i++) {
        node_spec_t spec = fx_spec(texts[i]);
        cr_assert_eq(spec.ops->sink_blocks(&spec), 1);
        fx_records_t r = {0};
        fx_compress(texts[i], &t.in, &r);
        for (uint32_t l = 0; l < t.m->n_layer; l++)
            for (uint32_t h = 0; h < t.m->n_kv_head; h++)
                cr_assert_eq(fx_kept(&r, 0, l, h) & 15u, 15u, "%s layer %u head %u", texts[i], l, h);
        fx_records_free(&r);
    }
    close_model(&t);
}

Test(kvzip_engine, budgets_share_out_the_same_number_of_rows)
{
    static const char *const texts[] = {"kvzip:keep=0.25,budget=head", "kvzip:keep=0.25,budget=layer",
                                        "kvzip:keep=0.25,budget=global"};
    model_t t;
    open_model(&t, 2048, 256);
    for (uint32_t first = 0; first <= 2; first += 2)
        for (size_t i = 0; i < VC_ARRAY_LEN(texts); i++) {
            node_compress_in_t in = t.in;
            in.first_block = first;
            fx_records_t r = {0};
            fx_compress(texts[i], &in, &r);
            const uint32_t share = (N_BLOCKS - first) * NODE_TILE / 4;
            uint32_t sum = 0;
            for (uint32_t l = 0; l < t.m->n_layer; l++)
                for (uint32_t h = 0; h < t.m->n_kv_head; h++) {
                    uint32_t n = count_kept(&r, first, l, h), n0 = count_kept(&r, first, l, 0);
                    sum += n;
                    if (i == 0)
                        cr_assert_eq(n, share);
                    if (i == 1)
                        cr_assert(n == n0 || n + 1 == n0, "heads of a layer keep as many rows");
                }
            cr_assert_eq(sum, share * t.m->n_layer * t.m->n_kv_head, "%s", texts[i]);
            fx_records_free(&r);
        }
    close_model(&t);
}

Test(kvzip_engine, only_new_blocks_are_chosen_from_and_the_record_names_its_registration)
{
    model_t t;
    open_model(&t, 2048, 256);
    t.in.first_block = 3;
    fx_records_t r = {0};
    fx_compress("kvzip:keep=0.25,budget=head", &t.in, &r);
    for (uint32_t b = 0; b < 3; b++)
        cr_assert_null(r.data[b]);
    vc_kvrec_head_t head;
    cr_assert_eq(vc_kvrec_check(r.data[4], r.bytes[4], &head, NULL), VC_OK);
    cr_assert(head.horizon_first == 3 * NODE_TILE && head.horizon_tokens == N_BLOCKS * NODE_TILE);
    fx_records_free(&r);
    close_model(&t);
}

Test(kvzip_engine, defect_16_a_body_of_ragged_counts_says_how_many_rows_each_head_lacks)
{
    model_t t;
    open_model(&t, 2048, 256);
    fx_records_t r = {0};
    fx_compress("kvzip:keep=0.2,budget=global", &t.in, &r);
    node_body_t *body = fx_body("kvzip:keep=0.2,budget=global", t.m, &r, N_BLOCKS);
    bool ragged = false;
    for (uint32_t l = 0; l < t.m->n_layer; l++)
        for (uint32_t h = 0; h < t.m->n_kv_head; h++) {
            uint32_t n = count_kept(&r, 0, l, h), rows = 0, list = l * t.m->n_kv_head + h;
            for (uint32_t i = 0; i < body->n_tiles[list]; i++)
                rows += body->tiles[list][i].n_rows;
            cr_assert_eq(rows, n, "no padding row is attended");
            cr_assert_eq(node_body_n_dropped(body, l, h), N_BLOCKS * NODE_TILE - n);
            ragged |= n != count_kept(&r, 0, 0, 0);
        }
    cr_assert(ragged);
    node_body_put(body);
    fx_records_free(&r);
    close_model(&t);
}

/* ---- context and progress ---- */

typedef struct watcher {
    uint32_t n_enter, n_leave, n_progress, done, total;
} watcher_t;

static void on_enter(void *arg)
{
    watcher_t *w = arg;
    cr_assert_eq(w->n_enter, w->n_leave);
    w->n_enter++;
}

static void on_leave(void *arg)
{
    watcher_t *w = arg;
    w->n_leave++;
    cr_assert_eq(w->n_enter, w->n_leave);
}

static void on_progress(void *arg, uint32_t done, uint32_t total)
{
    watcher_t *w = arg;
    cr_assert(done > w->done && done <= total && (w->total == 0 || w->total == total));
    w->done = done;
    w->total = total;
    w->n_progress++;
}

static watcher_t watch_replay(model_t *t, const char *text)
{
    watcher_t w = {0};
    fx_records_t r = {0};
    t->replay.enter = on_enter;
    t->replay.leave = on_leave;
    t->replay.progress = on_progress;
    t->replay.arg = &w;
    fx_compress(text, &t->in, &r);
    fx_records_free(&r);
    return w;
}

Test(kvzip_engine, progress_ends_at_its_total_and_the_engine_is_free_between_passes)
{
    model_t t;
    open_model(&t, 2048, 64);
    t.in.first_block = 1;
    watcher_t w = watch_replay(&t, "kvzip:chunk=128");
    const uint32_t rows = 4 * NODE_TILE + 2 * (t.replay.n_next + TAIL + t.replay.n_suffix);
    cr_assert(w.done == w.total && w.total == rows, "%u of %u, not %u", w.done, w.total, rows);
    cr_assert_gt(w.n_progress, 4);
    cr_assert_eq(w.n_leave, w.n_progress + 1, "and once for the output weights");
    close_model(&t);
}

Test(kvzip_engine, a_replay_that_would_leave_the_context_uses_smaller_chunks)
{
    enum { T = N_BLOCKS * NODE_TILE };
    model_t t;
    open_model(&t, 512, 256);
    const uint32_t overhead = VC_MAX(t.replay.n_first, t.replay.n_next + TAIL) + t.replay.n_suffix;
    cr_assert(T + overhead + NODE_TILE <= 512 && T + overhead + 3 * NODE_TILE > 512, "%u words", overhead);
    const uint32_t chunk = (512 - T - overhead) / NODE_TILE * NODE_TILE, n_chunks = (T + chunk - 1) / chunk;
    watcher_t w = watch_replay(&t, "kvzip");
    cr_assert_eq(w.total, T - NODE_KVZIP_SINK + t.replay.n_first + t.replay.n_suffix +
                              (n_chunks - 1) * (t.replay.n_next + TAIL + t.replay.n_suffix));
    cr_assert_eq(w.done, w.total);
    close_model(&t);
}

Test(kvzip_engine, a_text_with_no_room_behind_it_is_refused_with_the_numbers)
{
    model_t t;
    open_model(&t, 384, 256);
    node_spec_t spec = fx_spec("kvzip");
    fx_records_t r = {0};
    vc_err_t err = {0};
    cr_assert_eq(node_compress(&spec, &t.in, fx_keep, &r, &err), VC_ERR_UNSUPPORTED);
    cr_assert(strstr(err.msg, "320 tokens") && strstr(err.msg, "context of 384"), "%s", err.msg);
    cr_assert_eq(r.n, 0);
    close_model(&t);
}

Test(kvzip_engine, without_a_replay_or_with_another_model_s_it_is_refused)
{
    model_t t;
    open_model(&t, 2048, 256);
    node_spec_t spec = fx_spec("kvzip");
    fx_records_t r = {0};
    vc_err_t err = {0};
    t.in.replay = NULL;
    cr_assert_eq(node_compress(&spec, &t.in, fx_keep, &r, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "read the text again"), "%s", err.msg);
    node_body_t *body;
    cr_assert_eq(node_local_body(t.engine, &spec, &t.kv, t.tokens, N_BLOCKS, &body, NULL), VC_ERR_INVALID);
    node_model_info_t other = *t.m;
    other.n_head *= 2;
    t.in.model = &other;
    t.in.replay = &t.replay;
    cr_assert_eq(node_compress(&spec, &t.in, fx_keep, &r, NULL), VC_ERR_MISMATCH);
    close_model(&t);
}

Test(kvzip_engine, a_chunk_is_whole_blocks)
{
    node_spec_t spec;
    vc_err_t err = {0};
    cr_assert_eq(node_spec_parse("kvzip:chunk=100", &spec, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "multiple of 64"), "%s", err.msg);
    cr_assert_eq(node_spec_parse("kvzip:plus=maybe", &spec, &err), VC_ERR_INVALID);
}

/* ---- what is said to the model ---- */

Test(kvzip_engine, the_suffix_closes_the_user_s_turn_and_opens_the_assistant_s)
{
    model_t t;
    open_model(&t, 2048, 256);
    const node_replay_ids_t *ids = &t.ids;
    cr_assert_gt(ids->n_suffix, 4);
    cr_assert_eq(ids->suffix[0], TINY_ID_IM_END);
    cr_assert_eq(ids->suffix[2], TINY_ID_IM_START);
    char text[64] = "";
    for (uint32_t i = 1; i < ids->n_suffix; i++) {
        size_t len;
        const char *piece = node_tokenizer_piece(t.tok, ids->suffix[i], &len);
        strncat(text, piece, len);
    }
    cr_assert_str_eq(text, "\n<|im_start|>assistant\n");
    close_model(&t);
}
