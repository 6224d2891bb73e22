/*
 * Learning a surrogate: pieces of text go through the engine one at a time, their targets and sums are shared out over
 * a team of the engine's size by layer and head, then every layer is solved. One row in twenty is held out: it chooses
 * alpha, gives R^2 and the quantiles, and is never learned from, so the weights that were judged are those that are
 * used.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compress/kvzap_int.h"
#include "kernels/team.h"
#include "vc/bytes.h"
#include "vc/mem.h"

/* Pieces of like length: the denominators of their softmax compare. */
#define PIECE_LEAST 750u
#define PIECE_USUAL 1000u
#define PIECE_MOST 1250u
#define HOLD_ONE_IN 20u
#define HOLD_MOST 2048u /* rows over all pieces */
#define ROWS_PER_INPUT 10u
#define R2_LEAST 0.2

static const double alphas[] = {1, 10, 100, 1000};

typedef struct span {
    const uint32_t *tokens;
    uint32_t n;
} span_t;

typedef struct layer_fit {
    node_kvzap_fit_t fit;
    double alpha, *r2; /* [n_kv_head] */
    vc_status_t status;
} layer_fit_t;

typedef struct trainer {
    const node_calib_job_t *job;
    const node_model_info_t *info;
    const node_kvzap_ops_t *ops;
    node_team_t *team;
    span_t *spans;
    uint32_t n_spans, n_threads;
    layer_fit_t *layers;
    double *r2;  /* [n_layer][n_kv_head] */
    float *gram; /* [n_layer][n_head][head_dim][head_dim] */
    uint32_t n_hold, cap_hold;
    float *hold_x, *hold_y, *hold_f; /* [n_layer][cap_hold][d_model]; [n_layer][cap_hold][n_kv_head], twice */
    float *trial;                    /* [n_threads][n_kv_head * (d_model + 1)] */
    uint8_t *payload;
    size_t bytes;
    /* the piece at hand */
    node_kvzap_piece_t piece;
    uint32_t hold_first, hold_end;
    float **scratch; /* [n_threads] */
} trainer_t;

static void note(const trainer_t *t, const char *line)
{
    if (t->job->note != NULL)
        t->job->note(t->job->note_arg, line);
}

/* ---- pieces ---- */

static uint32_t most_tokens(const trainer_t *t)
{
    const uint32_t prompt = t->job->replay.n_first + t->job->replay.n_suffix, context = t->info->context;
    return prompt < context ? VC_MIN(PIECE_MOST, (context - prompt) / 2) : 0;
}

static vc_status_t cut_texts(trainer_t *t, vc_err_t *err)
{
    const uint32_t most = most_tokens(t);
    size_t cap = 0;
    if (most < PIECE_LEAST)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "kvzap reads a text of %u tokens twice, more than a context of %u",
                          PIECE_LEAST, t->info->context);
    for (uint32_t i = 0; i < t->job->n_texts; i++)
        cap += t->job->n_tokens[i] / PIECE_LEAST;
    t->spans = vc_calloc(cap, sizeof(*t->spans));
    if (t->spans == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for %zu pieces of text", cap);
    for (uint32_t i = 0; i < t->job->n_texts; i++) {
        const uint32_t n = t->job->n_tokens[i], pieces = n < PIECE_LEAST ? 0 : VC_MAX(1, n / PIECE_USUAL);
        for (uint32_t k = 0; k < pieces; k++) {
            uint32_t at = (uint32_t)((uint64_t)n * k / pieces), end = (uint32_t)((uint64_t)n * (k + 1) / pieces);
            t->spans[t->n_spans++] = (span_t){t->job->texts[i] + at, VC_MIN(end - at, most)};
        }
    }
    if (t->n_spans == 0)
        return vc_err_set(err, VC_ERR_INVALID, "kvzap needs texts of at least %u tokens, got none", PIECE_LEAST);
    return VC_OK;
}

/* ---- memory ---- */

static float *floats(size_t a, size_t b, size_t c)
{
    size_t n;
    return vc_size_mul(a, b, &n) && vc_size_mul(n, c, &n) ? vc_calloc(n, sizeof(float)) : NULL;
}

static vc_status_t make_room(trainer_t *t, vc_err_t *err)
{
    const node_model_info_t *m = t->info;
    t->cap_hold = VC_MAX(HOLD_MOST, t->n_spans);
    t->cap_hold = VC_MIN(t->cap_hold, t->n_spans * (PIECE_MOST / HOLD_ONE_IN));
    t->bytes = node_kvzap_payload_bytes(NODE_KVZAP_RIDGE, m->n_layer, m->n_kv_head, m->d_model, 0);
    t->payload = t->bytes != 0 ? vc_alloc_aligned(64, t->bytes) : NULL;
    t->layers = vc_calloc(m->n_layer, sizeof(*t->layers));
    t->r2 = vc_calloc((size_t)m->n_layer * m->n_kv_head, sizeof(*t->r2));
    t->gram = floats((size_t)m->n_layer * m->n_head, m->head_dim, m->head_dim);
    t->hold_x = floats(m->n_layer, t->cap_hold, m->d_model);
    t->hold_y = floats(m->n_layer, t->cap_hold, m->n_kv_head);
    t->hold_f = floats(m->n_layer, t->cap_hold, m->n_kv_head);
    t->trial = floats(t->n_threads, m->n_kv_head, (size_t)m->d_model + 1);
    t->scratch = vc_calloc(t->n_threads, sizeof(*t->scratch));
    if (t->payload == NULL || t->layers == NULL || t->r2 == NULL || t->gram == NULL || t->hold_x == NULL ||
        t->hold_y == NULL || t->hold_f == NULL || t->trial == NULL || t->scratch == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory to calibrate kvzap on %u pieces of text", t->n_spans);
    vc_status_t st = VC_OK;
    for (uint32_t l = 0; st == VC_OK && l < m->n_layer; l++) {
        t->layers[l].r2 = t->r2 + (size_t)l * m->n_kv_head;
        st = node_kvzap_fit_init(&t->layers[l].fit, t->ops, m->d_model, m->n_kv_head, err);
        if (st == VC_OK)
            st = node_engine_output_gram(t->job->replay.engine, l,
                                         t->gram + (size_t)l * m->n_head * m->head_dim * m->head_dim, err);
    }
    return st;
}

static void give_back(trainer_t *t)
{
    for (uint32_t l = 0; t->layers != NULL && l < t->info->n_layer; l++)
        node_kvzap_fit_fini(&t->layers[l].fit);
    for (uint32_t i = 0; t->scratch != NULL && i < t->n_threads; i++)
        vc_free(t->scratch[i]);
    void *all[] = {t->layers, t->r2,    t->gram,    t->hold_x, t->hold_y,
                   t->hold_f, t->trial, t->scratch, t->spans,  t->payload};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++)
        vc_free(all[i]);
    node_kvzap_piece_free(&t->piece);
    node_team_destroy(t->team);
}

/* ---- one piece ---- */

static void learn_layer(trainer_t *t, uint32_t layer)
{
    const node_kvzap_piece_t *p = &t->piece;
    const uint32_t d = p->info->d_model, n_head = p->info->n_kv_head;
    float y[NODE_KVZAP_HEADS_MAX];
    for (uint32_t i = 0; i < p->n; i++) {
        const float *x = p->x + ((size_t)layer * p->n + i) * d;
        for (uint32_t h = 0; h < n_head; h++)
            y[h] = p->y[((size_t)layer * n_head + h) * p->n + i];
        if (i < t->hold_first || i >= t->hold_end) {
            node_kvzap_fit_add(&t->layers[layer].fit, x, y);
            continue;
        }
        size_t at = (size_t)layer * t->cap_hold + t->n_hold + (i - t->hold_first);
        memcpy(t->hold_x + at * d, x, d * sizeof(float));
        memcpy(t->hold_y + at * n_head, y, n_head * sizeof(float));
    }
}

static void piece_worker(void *arg, uint32_t thread)
{
    trainer_t *t = arg;
    const node_model_info_t *m = t->info;
    float *scratch = t->scratch[thread];
    uint32_t item;
    while (node_team_next(t->team, m->n_layer * m->n_kv_head, &item)) {
        uint32_t layer = item / m->n_kv_head;
        node_kvzap_targets(t->ops, &t->piece, layer, item % m->n_kv_head,
                           t->gram + (size_t)layer * m->n_head * m->head_dim * m->head_dim, scratch);
    }
    node_team_barrier(t->team);
    while (node_team_next(t->team, m->n_layer, &item))
        learn_layer(t, item);
    node_team_barrier(t->team);
}

static vc_status_t do_piece(trainer_t *t, uint32_t index, vc_err_t *err)
{
    const span_t *span = &t->spans[index];
    vc_status_t st = node_kvzap_piece_run(&t->piece, &t->job->replay, span->tokens, span->n, err);
    for (uint32_t i = 0; st == VC_OK && i < t->n_threads; i++) {
        t->scratch[i] = vc_calloc(node_kvzap_target_scratch(&t->piece), sizeof(float));
        if (t->scratch[i] == NULL)
            st = vc_err_set(err, VC_ERR_NOMEM, "no memory to score a text of %u tokens", span->n);
    }
    if (st == VC_OK) {
        /* a run of neighbours, elsewhere in every piece: rows between two learned ones would flatter the fit */
        uint32_t n_hold = VC_MAX(1, VC_MIN(span->n / HOLD_ONE_IN, t->cap_hold / t->n_spans));
        t->hold_first = (uint32_t)((uint64_t)(index * 7u % HOLD_ONE_IN) * span->n / HOLD_ONE_IN);
        t->hold_end = t->hold_first + n_hold;
        node_team_run(t->team, piece_worker, t);
        t->n_hold += n_hold;
    }
    for (uint32_t i = 0; i < t->n_threads; i++) {
        vc_free(t->scratch[i]);
        t->scratch[i] = NULL;
    }
    node_kvzap_piece_free(&t->piece);
    if (st == VC_OK && t->job->replay.progress != NULL)
        t->job->replay.progress(t->job->replay.arg, index + 1, t->n_spans);
    return st;
}

/* ---- the solution ---- */

/* Squared error of w, b [n_kv_head] on the rows held out; f gets the predictions. */
static double judge(const trainer_t *t, uint32_t layer, const float *w, const float *b, float *f, double *by_head)
{
    const uint32_t d = t->info->d_model, n_head = t->info->n_kv_head;
    double all = 0;
    memset(by_head, 0, n_head * sizeof(*by_head));
    for (uint32_t i = 0; i < t->n_hold; i++) {
        size_t at = (size_t)layer * t->cap_hold + i;
        float *row = f + (size_t)i * n_head;
        t->ops->affine(w, b, d, n_head, t->hold_x + at * d, row);
        for (uint32_t h = 0; h < n_head; h++) {
            double off = (double)row[h] - (double)t->hold_y[at * n_head + h];
            by_head[h] += off * off;
        }
    }
    for (uint32_t h = 0; h < n_head; h++)
        all += by_head[h];
    return all;
}

static double spread(const trainer_t *t, uint32_t layer, uint32_t h)
{
    double sum = 0, square = 0;
    for (uint32_t i = 0; i < t->n_hold; i++) {
        double y = t->hold_y[((size_t)layer * t->cap_hold + i) * t->info->n_kv_head + h];
        sum += y;
        square += y * y;
    }
    return square - sum * sum / t->n_hold;
}

static void solve_layer(trainer_t *t, uint32_t layer, float *trial)
{
    const uint32_t d = t->info->d_model, n_head = t->info->n_kv_head;
    const size_t n = (size_t)n_head * (d + 1);
    layer_fit_t *l = &t->layers[layer];
    float *best_w = (float *)(void *)(t->payload + 16) + n * layer;
    double best = INFINITY, by_head[NODE_KVZAP_HEADS_MAX];
    float *f = t->hold_f + (size_t)layer * t->cap_hold * n_head;
    l->status = VC_ERR_INVALID; /* until one alpha gives finite errors */
    for (size_t a = 0; a < VC_ARRAY_LEN(alphas); a++) {
        vc_status_t st = node_kvzap_fit_solve(&l->fit, alphas[a], trial, trial + (size_t)n_head * d, NULL);
        if (st == VC_ERR_NOMEM)
            l->status = st;
        if (st != VC_OK)
            continue;
        double error = judge(t, layer, trial, trial + (size_t)n_head * d, f, by_head);
        if (!(error < best))
            continue;
        best = error;
        l->alpha = alphas[a];
        l->status = VC_OK;
        memcpy(best_w, trial, n * sizeof(float));
    }
    if (l->status != VC_OK)
        return;
    judge(t, layer, best_w, best_w + (size_t)n_head * d, f, by_head);
    for (uint32_t h = 0; h < n_head; h++) {
        double var = spread(t, layer, h);
        l->r2[h] = var > 0 ? 1.0 - by_head[h] / var : 0.0;
    }
}

static void solve_worker(void *arg, uint32_t thread)
{
    trainer_t *t = arg;
    float *trial = t->trial + (size_t)thread * t->info->n_kv_head * ((size_t)t->info->d_model + 1);
    uint32_t item;
    while (node_team_next(t->team, t->info->n_layer, &item))
        solve_layer(t, item, trial);
    node_team_barrier(t->team);
}

static int by_value(const void *a, const void *b)
{
    float x, y;
    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

/* Predictions of all layers and heads together; the rows of a layer are moved up where its room was not filled. */
static void fill_quantiles(trainer_t *t)
{
    const size_t per_layer = (size_t)t->n_hold * t->info->n_kv_head, n = per_layer * t->info->n_layer;
    const size_t room = (size_t)t->cap_hold * t->info->n_kv_head;
    for (uint32_t l = 1; l < t->info->n_layer; l++)
        memmove(t->hold_f + per_layer * l, t->hold_f + room * l, per_layer * sizeof(float));
    qsort(t->hold_f, n, sizeof(float), by_value);
    float *q = (float *)(void *)(t->payload + t->bytes) - NODE_KVZAP_QUANTILES;
    for (uint32_t i = 0; i < NODE_KVZAP_QUANTILES; i++)
        q[i] = t->hold_f[(n - 1) * i / (NODE_KVZAP_QUANTILES - 1)];
}

static vc_status_t solve(trainer_t *t, vc_err_t *err)
{
    vc_put_le32(t->payload, NODE_KVZAP_RIDGE);
    vc_put_le32(t->payload + 4, 0);
    vc_put_le32(t->payload + 8, NODE_KVZAP_QUANTILES);
    vc_put_le32(t->payload + 12, 0);
    node_team_run(t->team, solve_worker, t);
    for (uint32_t l = 0; l < t->info->n_layer; l++)
        if (t->layers[l].status != VC_OK)
            return vc_err_set(err, t->layers[l].status, "kvzap: layer %u cannot be fitted on these texts", l);
    fill_quantiles(t);
    return node_kvzap_calib_check(t->info, t->payload, t->bytes, err);
}

/* ---- what the operator reads ---- */

static void note_layer(const trainer_t *t, uint32_t layer)
{
    const layer_fit_t *l = &t->layers[layer];
    char line[400];
    int used = snprintf(line, sizeof(line), "layer %u: alpha %g, R2", layer, l->alpha);
    bool low = false;
    for (uint32_t h = 0; h < t->info->n_kv_head && used < 340; h++) {
        used += snprintf(line + used, sizeof(line) - (size_t)used, " %.3f", VC_MAX(l->r2[h], -99.0));
        low |= l->r2[h] < R2_LEAST;
    }
    if (low)
        snprintf(line + used, sizeof(line) - (size_t)used, "; warning: below %g, its choice is poor", R2_LEAST);
    note(t, line);
}

static void note_all(const trainer_t *t)
{
    char line[200];
    const uint64_t n = t->layers[0].fit.n, want = (uint64_t)ROWS_PER_INPUT * t->info->d_model;
    const uint32_t n_heads = t->info->n_layer * t->info->n_kv_head;
    const float *q = (const float *)(const void *)(t->payload + t->bytes) - NODE_KVZAP_QUANTILES;
    double mean = 0;
    for (uint32_t l = 0; l < t->info->n_layer; l++)
        note_layer(t, l);
    for (uint32_t i = 0; i < n_heads; i++)
        mean += t->r2[i] / n_heads;
    snprintf(line, sizeof(line), "%u pieces of text, %llu rows learned, %u held out; mean R2 %.3f", t->n_spans,
             (unsigned long long)n, t->n_hold, mean);
    note(t, line);
    if (n < want) {
        snprintf(line, sizeof(line), "warning: %llu rows or more would be better", (unsigned long long)want);
        note(t, line);
    }
    snprintf(line, sizeof(line), "tau=%.2f keeps 1/2 of the rows, %.2f 1/4, %.2f 1/8; tau=-4 keeps %.3f",
             node_kvzap_tau(q, 0.5), node_kvzap_tau(q, 0.25), node_kvzap_tau(q, 0.125), node_kvzap_share(q, -4));
    note(t, line);
}

vc_status_t node_kvzap_calibrate(const node_spec_t *spec, const node_calib_job_t *job, void **payload_p,
                                 size_t *bytes_p, vc_err_t *err)
{
    (void)spec;
    trainer_t t = {.job = job,
                   .info = node_engine_info(job->replay.engine),
                   .ops = node_kvzap_ops_best(),
                   .n_threads = node_engine_n_threads(job->replay.engine)};
    vc_status_t st = cut_texts(&t, err);
    if (st == VC_OK && t.info->n_kv_head > NODE_KVZAP_HEADS_MAX)
        st = vc_err_set(err, VC_ERR_UNSUPPORTED, "kvzap fits at most %u KV heads", NODE_KVZAP_HEADS_MAX);
    if (st == VC_OK)
        st = node_team_create(t.n_threads, &t.team, err);
    if (st == VC_OK)
        st = make_room(&t, err);
    for (uint32_t i = 0; st == VC_OK && i < t.n_spans; i++)
        st = do_piece(&t, i, err);
    if (st == VC_OK)
        st = solve(&t, err);
    if (st == VC_OK) {
        note_all(&t);
        *payload_p = t.payload;
        *bytes_p = t.bytes;
        t.payload = NULL;
    }
    give_back(&t);
    return st;
}

vc_status_t node_kvzap_calib_check(const node_model_info_t *model, const uint8_t *payload, size_t bytes, vc_err_t *err)
{
    node_kvzap_model_t view;
    return node_kvzap_model_open(model, payload, bytes, &view, err);
}
