/*
 * ExpectedAttention: keep the tokens that queries still to come are expected to attend to.
 *
 * Queries before RoPE are taken to be normal: their mean and covariance per query head, turned to the mean angle of the
 * `future` positions after the text, give every key an expected logit. The statistics are those of the rows that are
 * registered (watched while they are computed, at least the last WATCH_MIN of the text), or of any text, made once
 * (stats=offline), where the passes are not to be run again. Keys are all of the prefix, the choice is made among the
 * newly registered blocks only; its header names the registration.
 *
 * The first `sinks` tokens are in neither the statistics nor the softmax and are always kept. Recent tokens are not
 * protected: that is the method.
 */
#include "compress/calib.h"
#include "compress/expatt_int.h"
#include "compress/select.h"
#include "vc/mem.h"

enum { WATCH_MIN = 256, EXPATT_ONLINE = 0, EXPATT_OFFLINE = 1 };

static const node_param_t expatt_params[] = {
    {"keep", NODE_PARAM_REAL, offsetof(node_spec_t, keep), 0, 1, 0.5, NULL},
    {"sinks", NODE_PARAM_UINT, offsetof(node_spec_t, sinks), 0, 256, 4, NULL},
    {"future", NODE_PARAM_UINT, offsetof(node_spec_t, future), 1, 65536, 512, NULL},
    {"eps", NODE_PARAM_REAL, offsetof(node_spec_t, eps), NODE_PARAM_FROM_ZERO, 1, 0, NULL},
    {"vnorm", NODE_PARAM_UINT, offsetof(node_spec_t, vnorm), 0, 1, 1, NULL},
    {"cov", NODE_PARAM_UINT, offsetof(node_spec_t, cov), 0, 1, 1, NULL},
    {"stats", NODE_PARAM_CHOICE, offsetof(node_spec_t, stats), 0, 0, EXPATT_ONLINE, "online,offline"},
    {"budget", NODE_PARAM_CHOICE, offsetof(node_spec_t, budget), 0, 0, NODE_BUDGET_HEAD, "head,layer,global"},
};

static vc_status_t expatt_parse(node_spec_t *spec, const char *params, vc_err_t *err)
{
    return node_params_parse(spec, "expected_attention", params, expatt_params, VC_ARRAY_LEN(expatt_params), err);
}

static uint32_t expatt_needs(const node_spec_t *spec) { return spec->stats == EXPATT_OFFLINE ? NODE_NEED_CALIB : 0; }

static uint32_t expatt_window(const node_spec_t *spec)
{
    (void)spec;
    return 0;
}

static uint32_t expatt_sinks(const node_spec_t *spec) { return (spec->sinks + NODE_TILE - 1) / NODE_TILE; }

/* ---- the watch ---- */

typedef struct expatt_watch {
    const node_expatt_ops_t *ops; /* chosen once: asking the CPU is slow under a hypervisor */
    node_expatt_stats_t *stats;
} expatt_watch_t;

static uint32_t first_watched(const node_spec_t *spec, uint32_t first_token, uint32_t end_token)
{
    uint32_t first = VC_MIN(first_token, end_token - VC_MIN(end_token, WATCH_MIN));
    return VC_MAX(first, spec->sinks);
}

static vc_status_t expatt_watch(const node_spec_t *spec, const node_model_info_t *model, uint32_t first_token,
                                uint32_t end_token, node_watch_t *watch_p, vc_err_t *err)
{
    const uint32_t first = first_watched(spec, first_token, end_token);
    *watch_p = (node_watch_t){0};
    if (spec->stats == EXPATT_OFFLINE || first >= end_token)
        return VC_OK;
    expatt_watch_t *w = vc_calloc(1, sizeof(*w));
    if (w == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the query statistics");
    vc_status_t st = node_expatt_stats_create(model, first, end_token, &w->stats, err);
    if (st != VC_OK) {
        vc_free(w);
        return st;
    }
    w->ops = node_expatt_ops_best();
    *watch_p = (node_watch_t){.kinds = NODE_CAP_Q, .first = first, .end = end_token, .state = w};
    return VC_OK;
}

static void expatt_watch_row(void *state, node_capture_kind_t kind, uint32_t layer, uint32_t position,
                             const float *values)
{
    (void)kind;
    const expatt_watch_t *w = state;
    node_expatt_stats_row(w->stats, w->ops, layer, position, values);
}

static void expatt_watch_free(void *state)
{
    expatt_watch_t *w = state;
    vc_free(w->stats);
    vc_free(w);
}

const node_expatt_stats_t *node_expatt_watched(const void *state)
{
    const expatt_watch_t *w = state;
    return w->stats;
}

/* ---- scores ---- */

/* Everything that the heads of one plan share, and scratch for the head at hand. */
typedef struct scorer {
    const node_spec_t *spec;
    const node_compress_in_t *in;
    const node_expatt_ops_t *ops;
    const node_expatt_stats_t *stats; /* NULL: the blob's */
    double *cos, *sin, *work;         /* [half], [half], [dim][dim] */
    float *mean, *cov;                /* [dim], [dim][dim]: as they are, then turned */
    float *b, *m;                     /* [n_group][dim], [n_group][dim][dim] */
} scorer_t;

static void free_scorer(scorer_t *s)
{
    void *all[] = {s->cos, s->sin, s->work, s->mean, s->cov, s->b, s->m};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++)
        vc_free(all[i]);
}

static vc_status_t open_scorer(scorer_t *s, vc_err_t *err)
{
    const node_model_info_t *m = s->in->model;
    const size_t dim = m->head_dim, half = m->rope_dims / 2, group = m->n_head / m->n_kv_head;
    s->ops = node_expatt_ops_best();
    s->cos = vc_calloc(half, sizeof(double));
    s->sin = vc_calloc(half, sizeof(double));
    s->work = vc_calloc(dim * dim, sizeof(double));
    s->mean = vc_calloc(dim, sizeof(float));
    s->cov = vc_calloc(dim * dim, sizeof(float));
    s->b = vc_calloc(group * dim, sizeof(float));
    s->m = vc_calloc(group * dim * dim, sizeof(float));
    if (!s->cos || !s->sin || !s->work || !s->mean || !s->cov || !s->b || !s->m)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the expected queries");
    node_expatt_turns(m, s->in->n_blocks * NODE_TILE, s->spec->future, s->cos, s->sin);
    return VC_OK;
}

/* The logit form of query head `head` of a layer, as the g-th of its group. */
static void form_query(scorer_t *s, uint32_t layer, uint32_t head, uint32_t g)
{
    const node_model_info_t *m = s->in->model;
    const uint32_t dim = m->head_dim;
    const size_t square = (size_t)dim * dim;
    if (s->stats != NULL) {
        node_expatt_stats_get(s->stats, layer, head, false, s->mean, s->cov);
    } else {
        const float *blob = node_expatt_blob_head(m, s->spec->calib->payload, layer, head);
        memcpy(s->mean, blob, dim * sizeof(float));
        memcpy(s->cov, blob + dim, square * sizeof(float));
    }
    float *cov = s->spec->cov ? s->cov : NULL;
    node_expatt_turn(s->cos, s->sin, m->rope_dims / 2, dim, s->mean, cov, s->work, s->mean, cov);
    node_expatt_form(dim, s->mean, cov, s->b + (size_t)g * dim, cov != NULL ? s->m + g * square : NULL);
}

typedef struct page_rows {
    const scorer_t *s;
    uint32_t layer, head;
} page_rows_t;

static void keys_of_page(void *arg, uint32_t tile, float *kt)
{
    const page_rows_t *p = arg;
    const node_compress_in_t *in = p->s->in;
    node_page_t *page = node_kv_page_at(in->kv, tile);
    p->s->ops->widen(node_page_k(page, p->layer, p->head), kt, (size_t)in->model->head_dim * NODE_TILE);
}

static void values_of_page(void *arg, uint32_t tile, float *rows)
{
    const page_rows_t *p = arg;
    const node_compress_in_t *in = p->s->in;
    node_page_t *page = node_kv_page_at(in->kv, tile);
    p->s->ops->widen(node_page_v(page, p->layer, p->head), rows, (size_t)in->model->head_dim * NODE_TILE);
}

/* Scores of the new rows of one KV head. */
static vc_status_t score_head(scorer_t *s, uint32_t layer, uint32_t head, float *scores, vc_err_t *err)
{
    const node_model_info_t *m = s->in->model;
    const uint32_t group = m->n_head / m->n_kv_head;
    for (uint32_t g = 0; g < group; g++)
        form_query(s, layer, head * group + g, g);
    page_rows_t rows = {s, layer, head};
    const node_expatt_head_t in = {.n_tokens = s->in->n_blocks * NODE_TILE,
                                   .sinks = s->spec->sinks,
                                   .first = s->in->first_block * NODE_TILE,
                                   .dim = m->head_dim,
                                   .n_group = group,
                                   .b = s->b,
                                   .m = s->spec->cov ? s->m : NULL,
                                   .eps = (float)s->spec->eps,
                                   .by_value = s->spec->vnorm != 0,
                                   .keys = keys_of_page,
                                   .values = values_of_page,
                                   .arg = &rows};
    return node_expatt_scores(s->ops, &in, scores, err);
}

/* ---- the choice ---- */

static vc_status_t choose(node_selection_t *sel, vc_err_t *err)
{
    const node_spec_t *spec = sel->spec;
    const node_model_info_t *m = sel->in->model;
    const uint32_t n = sel->n_new * NODE_TILE, first = sel->in->first_block * NODE_TILE;
    scorer_t s = {.spec = spec, .in = sel->in};
    s.stats = spec->stats == EXPATT_ONLINE ? node_expatt_watched(sel->in->watched) : NULL;
    size_t n_scores;
    float *scores = vc_size_mul(sel->n_heads, n, &n_scores) ? vc_calloc(n_scores, sizeof(*scores)) : NULL;
    vc_status_t st = scores != NULL ? open_scorer(&s, err)
                                    : vc_err_set(err, VC_ERR_NOMEM, "no memory for the scores of %u tokens", n);
    for (uint32_t i = 0; st == VC_OK && i < sel->n_heads; i++)
        st = score_head(&s, i / m->n_kv_head, i % m->n_kv_head, scores + (size_t)i * n, err);
    if (st == VC_OK)
        st = node_selection_fill(sel, scores, spec->sinks - VC_MIN(spec->sinks, first), node_keep_count(spec->keep, n),
                                 (node_budget_t)spec->budget, err);
    free_scorer(&s);
    vc_free(scores);
    return st;
}

/* Whether the statistics that the spec asks for are there, of this text. */
static vc_status_t check_stats(const node_spec_t *spec, const node_compress_in_t *in, vc_err_t *err)
{
    const uint32_t end = in->n_blocks * NODE_TILE, first = first_watched(spec, in->first_block * NODE_TILE, end);
    if (spec->stats == EXPATT_OFFLINE)
        return spec->calib != NULL ? VC_OK
                                   : vc_err_set(err, VC_ERR_INVALID, "%s needs its calibration blob", spec->text);
    const node_expatt_stats_t *s = in->watched != NULL ? node_expatt_watched(in->watched) : NULL;
    bool whole = s != NULL && s->first == first && s->end == end && s->n_layer == in->model->n_layer;
    for (uint32_t l = 0; whole && l < s->n_layer; l++)
        whole = node_expatt_stats_count(s, l) == end - first;
    return whole ? VC_OK
                 : vc_err_set(err, VC_ERR_INVALID,
                              "expected_attention needs the query statistics of the tokens from %u to %u", first, end);
}

static vc_status_t expatt_plan(const node_spec_t *spec, const node_compress_in_t *in, void **plan_p, vc_err_t *err)
{
    const node_model_info_t *m = in->model;
    const bool too_short = in->n_blocks * NODE_TILE <= spec->sinks; /* nothing to choose from */
    vc_status_t st = too_short ? VC_OK : check_stats(spec, in, err);
    if (st == VC_OK && (m->n_kv_head == 0 || m->n_head % m->n_kv_head != 0))
        st = vc_err_set(err, VC_ERR_UNSUPPORTED, "%u query heads do not share %u KV heads evenly", m->n_head,
                        m->n_kv_head);
    if (st != VC_OK)
        return st;
    node_selection_t *s = node_selection_create(spec, in, err);
    if (s == NULL)
        return VC_ERR_NOMEM;
    if (too_short)
        node_selection_keep_all(s);
    else
        st = choose(s, err);
    if (st != VC_OK) {
        node_selection_free(s);
        return st;
    }
    *plan_p = s;
    return VC_OK;
}

const node_codec_ops_t node_codec_expected_attention = {
    .name = "expected_attention",
    .params_help = "keep=0.5 sinks=4 future=512 eps=0 vnorm=1 cov=1 stats=online (online, offline) budget=head (head, "
                   "layer, global)",
    .kind = VC_KVREC_DROPPER,
    .parse = expatt_parse,
    .bits = node_dropper_bits,
    .needs = expatt_needs,
    .window_tokens = expatt_window,
    .sink_blocks = expatt_sinks,
    .chooses = true,
    .watch = expatt_watch,
    .watch_row = expatt_watch_row,
    .watch_free = expatt_watch_free,
    .calibrate = node_expatt_calibrate,
    .calib_check = node_expatt_calib_check,
    .plan = expatt_plan,
    .layer_bytes = node_selection_layer_bytes,
    .encode = node_selection_encode,
    .plan_free = node_selection_free,
    .decode = node_dropper_decode,
};
