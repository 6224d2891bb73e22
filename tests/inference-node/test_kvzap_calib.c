/*
 * What KVzap learns from, and what it learns: targets against the plain formula in double precision, then whole
 * calibrations of a small model.
 */
#include <math.h>

#include "codec_fixture.h"
#include "compress/watch.h"
#include "model/engine.h"
#include "node.h"
#include "support/tiny_model.h"
#include "support/tmpdir.h"

typedef struct small {
    gguf_image_t image;
    node_gguf_t *gguf;
    node_engine_t *engine;
    const node_model_info_t *m;
} small_t;

static small_t open_small(uint32_t n_head, uint32_t n_kv_head, uint32_t head_dim, uint32_t context, uint32_t n_threads)
{
    small_t s = {0};
    tiny_model_opts_t opts;
    vc_err_t err = {0};
    tiny_model_opts_default(&opts);
    opts.n_head = n_head;
    opts.n_kv_head = n_kv_head;
    opts.head_dim = head_dim;
    opts.context = context;
    s.image = tiny_model_build(&opts);
    node_engine_opts_t engine;
    node_engine_opts_default(&engine);
    engine.n_threads = n_threads;
    cr_assert_eq(node_gguf_open_memory(s.image.data, s.image.bytes, &s.gguf, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_engine_create(s.gguf, NULL, &engine, &s.engine, &err), VC_OK, "%s", err.msg);
    s.m = node_engine_info(s.engine);
    return s;
}

static void close_small(small_t *s)
{
    node_engine_destroy(s->engine);
    node_gguf_close(s->gguf);
    gguf_image_free(&s->image);
}

static uint32_t *make_text(uint32_t n, uint32_t seed)
{
    uint32_t *ids = vc_calloc(n, sizeof(*ids));
    for (uint32_t i = 0; i < n; i++)
        ids[i] = TINY_ID_FIRST_BYTE + (uint32_t)(127.9 * (1.0 + golden_u(seed, i)));
    return ids;
}

static const uint32_t say_again[] = {10, 77, 5, 9, 40, 66, 31}, then_answer[] = {2, 13, 1, 99};

static node_replay_t a_replay(const small_t *s)
{
    return (node_replay_t){.engine = s->engine,
                           .first = say_again,
                           .suffix = then_answer,
                           .n_first = VC_ARRAY_LEN(say_again),
                           .n_suffix = VC_ARRAY_LEN(then_answer)};
}

/* ---- targets ---- */

typedef struct seen {
    const node_model_info_t *m;
    uint32_t n;
    float *q, *x; /* [layer][position][...] */
} seen_t;

static void see(void *arg, node_capture_kind_t kind, uint32_t layer, uint32_t row, uint32_t at, const float *values)
{
    (void)row;
    seen_t *s = arg;
    const size_t width = kind == NODE_CAP_Q ? (size_t)s->m->n_head * s->m->head_dim : s->m->d_model;
    memcpy((kind == NODE_CAP_Q ? s->q : s->x) + ((size_t)layer * s->n + at) * width, values, width * sizeof(float));
}

static double norm_after_output(const float *gram, const uint16_t *v, uint32_t d)
{
    double sum = 0;
    for (uint32_t i = 0; i < d; i++)
        for (uint32_t j = 0; j < d; j++)
            sum += (double)node_f32_from_f16(v[i]) * (double)gram[i * d + j] * (double)node_f32_from_f16(v[j]);
    return sqrt(fmax(sum, 0));
}

/* Weight of key i for the query of head h at position p, as softmax over all keys up to p. */
static void attention(const seen_t *s, const node_kv_t *kv, uint32_t layer, uint32_t h, uint32_t p, double *a)
{
    const uint32_t d = s->m->head_dim, kv_head = h / (s->m->n_head / s->m->n_kv_head);
    const float *q = s->q + (((size_t)layer * s->n + p) * s->m->n_head + h) * d;
    double top = -INFINITY, sum = 0;
    for (uint32_t i = 0; i <= p; i++) {
        const uint16_t *k = node_page_k(node_kv_page_at(kv, i / NODE_TILE), layer, kv_head);
        a[i] = 0;
        for (uint32_t c = 0; c < d; c++)
            a[i] += (double)q[c] * (double)node_f32_from_f16(k[c * NODE_TILE + i % NODE_TILE]);
        a[i] /= sqrt(d);
        top = fmax(top, a[i]);
    }
    for (uint32_t i = 0; i <= p; i++)
        sum += a[i] = exp(a[i] - top);
    for (uint32_t i = 0; i <= p; i++)
        a[i] /= sum;
}

enum { N_TEXT = 70, N_WORDS = 11 };

/* What a row of the text is worth to a KV head: the target before its logarithm. */
static void best_attention(const seen_t *s, const node_kv_t *kv, uint32_t layer, uint32_t g, const float *gram,
                           double *best)
{
    const uint32_t d = s->m->head_dim, group = s->m->n_head / s->m->n_kv_head;
    double a[2 * N_TEXT + N_WORDS];
    for (uint32_t i = 0; i < N_TEXT; i++)
        best[i] = 0;
    for (uint32_t h = g * group; h < (g + 1) * group; h++)
        for (uint32_t p = N_TEXT + N_WORDS; p < s->n; p++) {
            double len = 0;
            const float *x = s->x + ((size_t)layer * s->n + p) * s->m->d_model;
            for (uint32_t i = 0; i < s->m->d_model; i++)
                len += (double)x[i] * (double)x[i];
            attention(s, kv, layer, h, p, a);
            for (uint32_t i = 0; i < N_TEXT; i++) {
                node_page_t *page = node_kv_page_at(kv, i / NODE_TILE);
                const uint16_t *v = node_page_v(page, layer, g) + i % NODE_TILE * d;
                best[i] = fmax(best[i], a[i] * norm_after_output(gram + (size_t)h * d * d, v, d) / sqrt(len));
            }
        }
}

static void check_targets(uint32_t n_head, uint32_t n_kv_head, uint32_t head_dim)
{
    enum { N = N_TEXT };
    small_t s = open_small(n_head, n_kv_head, head_dim, 512, 2);
    const node_model_info_t *m = s.m;
    const node_replay_t replay = a_replay(&s);
    uint32_t *text = make_text(N, 3), all[2 * N + 11];
    memcpy(all, text, N * 4);
    memcpy(all + N, say_again, sizeof(say_again));
    memcpy(all + N + 7, then_answer, sizeof(then_answer));
    memcpy(all + N + 11, text, N * 4);
    seen_t seen = {.m = m, .n = 2 * N + 11};
    seen.q = vc_calloc((size_t)m->n_layer * seen.n * n_head * head_dim, sizeof(float));
    seen.x = vc_calloc((size_t)m->n_layer * seen.n * m->d_model, sizeof(float));
    node_kv_dims_t dims;
    node_kv_t kv;
    node_engine_kv_dims(s.engine, &dims);
    cr_assert_eq(node_kv_init(&kv, &dims, NULL), VC_OK);
    const node_capture_t capture = {NODE_CAP_Q | NODE_CAP_X, see, &seen};
    cr_assert_eq(node_prefill(s.engine, &kv, all, seen.n, NULL, &capture, NULL), VC_OK);
    node_kvzap_piece_t piece;
    vc_err_t err = {0};
    cr_assert_eq(node_kvzap_piece_run(&piece, &replay, text, N, &err), VC_OK, "%s", err.msg);
    float *scratch = vc_calloc(node_kvzap_target_scratch(&piece), sizeof(float));
    float *gram = vc_calloc((size_t)n_head * head_dim * head_dim, sizeof(float));
    for (uint32_t l = 0; l < m->n_layer; l++) {
        cr_assert_eq(node_engine_output_gram(s.engine, l, gram, NULL), VC_OK);
        cr_assert(memcmp(piece.x + (size_t)l * N * m->d_model, seen.x + (size_t)l * seen.n * m->d_model,
                         (size_t)N * m->d_model * sizeof(float)) == 0);
        for (uint32_t g = 0; g < n_kv_head; g++) {
            double best[N_TEXT];
            best_attention(&seen, &kv, l, g, gram, best);
            node_kvzap_targets(node_kvzap_ops_best(), &piece, l, g, gram, scratch);
            const float *y = piece.y + ((size_t)l * n_kv_head + g) * N;
            for (uint32_t i = 0; i < N; i++)
                cr_assert(fabs((double)y[i] - log(best[i])) < 1e-4, "layer %u head %u row %u: %g, not %g", l, g, i,
                          (double)y[i], log(best[i]));
        }
    }
    node_kvzap_piece_free(&piece);
    node_kv_fini(&kv);
    void *used[] = {text, seen.q, seen.x, scratch, gram};
    for (size_t i = 0; i < VC_ARRAY_LEN(used); i++)
        vc_free(used[i]);
    close_small(&s);
}

Test(kvzap_calib, targets_are_the_greatest_attention_of_the_repetition) { check_targets(4, 2, 16); }

/* Query heads h read KV head h / G: a wrong map would take the maximum over the wrong seven. */
Test(kvzap_calib, defect_4_seven_query_heads_of_a_group_are_one_target) { check_targets(14, 2, 32); }

/* Attention that underflows to zero must not become the logarithm of zero. */
Test(kvzap_calib, a_row_that_nobody_attends_to_has_a_finite_target)
{
    small_t s = open_small(4, 2, 16, 512, 1);
    const node_replay_t replay = a_replay(&s);
    uint32_t *text = make_text(20, 4);
    node_kvzap_piece_t piece;
    cr_assert_eq(node_kvzap_piece_run(&piece, &replay, text, 20, NULL), VC_OK);
    float *scratch = vc_calloc(node_kvzap_target_scratch(&piece), sizeof(float)), *gram = vc_calloc(4 * 256, 4);
    node_kvzap_targets(node_kvzap_ops_best(), &piece, 0, 0, gram, scratch); /* outputs of no weight: scores of zero */
    for (uint32_t i = 0; i < 20; i++)
        cr_assert(fabs((double)piece.y[i] - log(1e-12)) < 1e-3);
    vc_free(scratch);
    vc_free(gram);
    vc_free(text);
    node_kvzap_piece_free(&piece);
    close_small(&s);
}

/* ---- whole calibrations ---- */

typedef struct notes {
    char text[8000];
    uint32_t steps, passes, open;
} notes_t;

static void on_note(void *arg, const char *line)
{
    notes_t *n = arg;
    size_t used = strlen(n->text);
    snprintf(n->text + used, sizeof(n->text) - used, "%s\n", line);
}

static void on_progress(void *arg, uint32_t done, uint32_t total)
{
    notes_t *n = arg;
    cr_assert(done == n->steps + 1 && done <= total);
    n->steps = done;
}

static void on_enter(void *arg)
{
    notes_t *n = arg;
    n->passes++;
    cr_assert_eq(n->open++, 0);
}

static void on_leave(void *arg) { cr_assert_eq(--((notes_t *)arg)->open, 0); }

/* Texts of 2100, 760 and 700 tokens: two pieces, one, and none. */
static vc_status_t calibrate(small_t *s, notes_t *notes, uint32_t n_texts, void **payload_p, size_t *bytes_p,
                             vc_err_t *err)
{
    static const uint32_t lengths[] = {700, 760, 2100};
    uint32_t *texts[3];
    for (uint32_t i = 0; i < 3; i++)
        texts[i] = make_text(lengths[i], 50 + i);
    node_spec_t spec;
    cr_assert_eq(node_spec_parse("kvzap", &spec, NULL), VC_OK);
    node_calib_job_t job = {.replay = a_replay(s),
                            .texts = (const uint32_t *const *)texts,
                            .n_tokens = lengths,
                            .n_texts = n_texts,
                            .note = on_note,
                            .note_arg = notes};
    job.replay.enter = on_enter;
    job.replay.leave = on_leave;
    job.replay.progress = on_progress;
    job.replay.arg = notes;
    vc_status_t st = spec.ops->calibrate(&spec, &job, payload_p, bytes_p, err);
    for (uint32_t i = 0; i < 3; i++)
        vc_free(texts[i]);
    return st;
}

Test(kvzap_calib, a_calibration_is_a_usable_surrogate_whatever_the_threads)
{
    void *payload[2];
    size_t bytes[2];
    for (uint32_t k = 0; k < 2; k++) {
        small_t s = open_small(4, 2, 16, 4096, 1 + 2 * k);
        notes_t *notes = vc_calloc(1, sizeof(*notes));
        vc_err_t err = {0};
        cr_assert_eq(calibrate(&s, notes, 3, &payload[k], &bytes[k], &err), VC_OK, "%s", err.msg);
        cr_assert_eq(node_codec_kvzap.calib_check(s.m, payload[k], bytes[k], NULL), VC_OK);
        cr_assert(notes->steps == 3 && notes->passes > 3 && notes->open == 0);
        static const char *const words[] = {"layer 0: alpha ", "layer 2: alpha ", "3 pieces of text, 2718 rows learned",
                                            "142 held out; mean R2 ", "keeps 1/2 of the rows"};
        for (size_t i = 0; i < VC_ARRAY_LEN(words); i++)
            cr_assert_not_null(strstr(notes->text, words[i]), "%s: %s", words[i], notes->text);
        cr_assert_null(strstr(notes->text, "rows or more")); /* more than ten rows for each of 64 inputs */
        vc_free(notes);
        close_small(&s);
    }
    cr_assert_eq(bytes[0], bytes[1]);
    cr_assert(memcmp(payload[0], payload[1], bytes[0]) == 0);
    vc_free(payload[0]);
    vc_free(payload[1]);
}

/* Predictions of what was learned, against targets of a text that was not: better than knowing only the mean. In layer
 * 0, whose inputs are the tokens: deeper, a model of random weights attends to nothing that can be told from them. */
Test(kvzap_calib, what_was_learned_holds_for_another_text)
{
    enum { N = 1000 };
    small_t s = open_small(4, 2, 16, 4096, 2);
    notes_t *notes = vc_calloc(1, sizeof(*notes));
    void *payload;
    size_t bytes;
    cr_assert_eq(calibrate(&s, notes, 3, &payload, &bytes, NULL), VC_OK);
    node_kvzap_model_t model;
    cr_assert_eq(node_kvzap_model_open(s.m, payload, bytes, &model, NULL), VC_OK);
    const node_replay_t replay = a_replay(&s);
    uint32_t *text = make_text(N, 99);
    node_kvzap_piece_t piece;
    cr_assert_eq(node_kvzap_piece_run(&piece, &replay, text, N, NULL), VC_OK);
    float *scratch = vc_calloc(node_kvzap_target_scratch(&piece), sizeof(float)), *gram = vc_calloc(4 * 256, 4), f[2];
    cr_assert_eq(node_engine_output_gram(s.engine, 0, gram, NULL), VC_OK);
    for (uint32_t h = 0; h < 2; h++) {
        double mean = 0, off = 0, spread = 0;
        node_kvzap_targets(node_kvzap_ops_best(), &piece, 0, h, gram, scratch);
        const float *y = piece.y + (size_t)h * N;
        for (uint32_t i = 0; i < N; i++)
            mean += (double)y[i] / N;
        for (uint32_t i = 0; i < N; i++) {
            node_kvzap_predict(node_kvzap_ops_best(), &model, 0, piece.x + (size_t)i * s.m->d_model, NULL, f);
            off += pow((double)f[h] - (double)y[i], 2);
            spread += pow((double)y[i] - mean, 2);
        }
        cr_assert(off < 0.9 * spread, "head %u: R2 is %g\n%s", h, 1.0 - off / spread, notes->text);
    }
    void *used[] = {notes, payload, text, scratch, gram};
    for (size_t i = 0; i < VC_ARRAY_LEN(used); i++)
        vc_free(used[i]);
    node_kvzap_piece_free(&piece);
    close_small(&s);
}

Test(kvzap_calib, texts_or_contexts_that_are_too_short_are_refused)
{
    void *payload = NULL;
    size_t bytes;
    vc_err_t err = {0};
    notes_t notes = {0};
    small_t s = open_small(4, 2, 16, 4096, 1);
    cr_assert_eq(calibrate(&s, &notes, 1, &payload, &bytes, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "at least 750 tokens"), "%s", err.msg);
    close_small(&s);
    s = open_small(4, 2, 16, 1510, 1); /* 749 tokens twice and an instruction of 11 */
    cr_assert_eq(calibrate(&s, &notes, 3, &payload, &bytes, &err), VC_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(err.msg, "context of 1510"), "%s", err.msg);
    close_small(&s);
    cr_assert(payload == NULL && notes.passes == 0);
}

/* One file serves thresholds and shares; without it the sentence says how it is made. */
Test(kvzap_calib, a_node_binds_every_spec_of_the_method_to_its_file)
{
    static const char *const texts[] = {"kvzap", "kvzap:keep=0.5", "kvzap:tau=-2+rot:bits=4,group=16"};
    tiny_model_opts_t tiny;
    tiny_model_opts_default(&tiny);
    gguf_image_t image = tiny_model_build(&tiny);
    vt_tmpdir_t dir;
    vt_tmpdir_create(&dir);
    char path[300], blob[400];
    snprintf(path, sizeof(path), "%s/small.gguf", dir.path);
    cr_assert(gguf_image_write(&image, path));
    gguf_image_free(&image);
    node_opts_t opts;
    node_t *node;
    vc_err_t err = {0};
    node_opts_default(&opts);
    opts.model_path = path;
    opts.engine.n_threads = 1;
    cr_assert_eq(node_open(&opts, &node, &err), VC_OK, "%s", err.msg);
    node_spec_t bound[3], plain[3];
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(node_spec_parse(texts[i], &plain[i], NULL), VC_OK, "%s", texts[i]);
        bound[i] = plain[i];
        cr_assert_eq(node_bind_spec(node, &bound[i], &err), VC_ERR_INVALID);
        cr_assert_not_null(strstr(err.msg, "--method kvzap"), "%s", err.msg);
    }
    size_t bytes;
    uint8_t *payload = fx_kvzap_payload(node_engine_info(node->engine), &bytes);
    cr_assert_eq(node_calib_file(node, "kvzap", blob, sizeof(blob), &err), VC_OK);
    cr_assert_eq(node_calib_save(blob, "kvzap", node_engine_info(node->engine), payload, bytes, &err), VC_OK);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(node_bind_spec(node, &bound[i], &err), VC_OK, "%s: %s", texts[i], err.msg);
        cr_assert_not_null(bound[i].calib);
        cr_assert(memcmp(&bound[i].id, &plain[i].id, sizeof(bound[i].id)) != 0);
    }
    vc_free(payload);
    node_close(node);
    vt_tmpdir_remove(&dir);
}

/* ---- in the engine ---- */

/* A block whose rows are all dropped leaves nothing to attend to but the tail: still numbers, in every head. */
Test(kvzap_calib, defect_2_drafting_behind_blocks_that_kept_nothing_gives_numbers)
{
    enum { N_BLOCKS = 3 };
    small_t s = open_small(4, 2, 16, 512, 2);
    fx_bind_to(s.m);
    node_spec_t spec = fx_spec("kvzap:tau=99");
    uint32_t *text = make_text(N_BLOCKS * NODE_TILE, 7), first = 0;
    node_kv_dims_t dims;
    node_kv_t full, kv;
    node_watches_t *watches;
    vc_err_t err = {0};
    node_engine_kv_dims(s.engine, &dims);
    cr_assert_eq(node_kv_init(&full, &dims, NULL), VC_OK);
    cr_assert_eq(node_watches_begin(&spec, 1, s.m, &first, N_BLOCKS, &watches, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_prefill(s.engine, &full, text, N_BLOCKS * NODE_TILE, NULL, node_watches_capture(watches), &err),
                 VC_OK);
    node_compress_in_t in = {
        .model = s.m, .kv = &full, .tokens = text, .n_blocks = N_BLOCKS, .watched = node_watches_state(watches, 0)};
    fx_records_t r = {0};
    cr_assert_eq(node_compress(&spec, &in, fx_keep, &r, &err), VC_OK, "%s", err.msg);
    node_body_t *body = fx_body(spec.text, s.m, &r, N_BLOCKS);
    cr_assert_eq(node_body_n_dropped(body, 1, 1), N_BLOCKS * NODE_TILE);
    cr_assert_eq(node_kv_init(&kv, &dims, body), VC_OK);
    node_body_put(body);
    float *logits = vc_alloc_aligned(64, s.m->n_vocab * sizeof(float));
    cr_assert_eq(node_prefill(s.engine, &kv, text, 5, logits, NULL, &err), VC_OK, "%s", err.msg);
    for (uint32_t i = 0; i < s.m->n_vocab; i++)
        cr_assert(isfinite(logits[i]));
    vc_free(logits);
    node_kv_fini(&kv);
    node_kv_fini(&full);
    node_watches_free(watches);
    fx_records_free(&r);
    vc_free(text);
    close_small(&s);
}

/* A compressor that watches prefill must not be seen in it. */
Test(kvzap_calib, defect_17_prefill_has_the_same_bits_with_and_without_a_watch)
{
    enum { N_BLOCKS = 2 };
    small_t s = open_small(4, 2, 16, 512, 2);
    fx_bind_to(s.m);
    node_spec_t spec = fx_spec("kvzap:keep=0.5");
    uint32_t *text = make_text(N_BLOCKS * NODE_TILE, 8), first = 0;
    node_kv_dims_t dims;
    node_engine_kv_dims(s.engine, &dims);
    vc_digest_t digest[2];
    float *logits[2];
    for (int watched = 0; watched < 2; watched++) {
        node_kv_t kv;
        node_watches_t *watches = NULL;
        cr_assert_eq(node_kv_init(&kv, &dims, NULL), VC_OK);
        if (watched)
            cr_assert_eq(node_watches_begin(&spec, 1, s.m, &first, N_BLOCKS, &watches, NULL), VC_OK);
        logits[watched] = vc_alloc_aligned(64, s.m->n_vocab * sizeof(float));
        cr_assert_eq(node_prefill(s.engine, &kv, text, N_BLOCKS * NODE_TILE, logits[watched],
                                  node_watches_capture(watches), NULL),
                     VC_OK);
        node_kv_digest(&kv, N_BLOCKS * NODE_TILE, &digest[watched]);
        node_watches_free(watches);
        node_kv_fini(&kv);
    }
    cr_assert(memcmp(&digest[0], &digest[1], sizeof(digest[0])) == 0);
    cr_assert(memcmp(logits[0], logits[1], s.m->n_vocab * sizeof(float)) == 0);
    vc_free(logits[0]);
    vc_free(logits[1]);
    vc_free(text);
    close_small(&s);
}
