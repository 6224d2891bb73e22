/*
 * SnapKV: keep the tokens that the last queries of the registered text attend to.
 *
 * Queries are those of the last `window` tokens, keys all of the prefix; the choice is made among the newly registered
 * blocks only. Rows of stored blocks are never scored again, so what a record keeps is fixed by {T, first position} of
 * its registration, which its header names.
 *
 * The window is exact for a drafter because it takes those blocks as full pages, not because the record holds them. So
 * the window's own rows and the rest have budgets of their own, in proportion: when the prefix grows later, the old
 * window is an ordinary block with as many kept rows as any.
 */
#include <string.h>

#include "compress/select.h"
#include "compress/snapkv_int.h"
#include "vc/mem.h"

static const node_param_t snapkv_params[] = {
    {"keep", NODE_PARAM_REAL, offsetof(node_spec_t, keep), 0, 1, 0.25, NULL},
    {"window", NODE_PARAM_UINT, offsetof(node_spec_t, window), 1, 1024, 64, NULL},
    {"kernel", NODE_PARAM_UINT, offsetof(node_spec_t, kernel), 1, 63, 5, NULL},
    {"pool", NODE_PARAM_CHOICE, offsetof(node_spec_t, max_pool), 0, 0, 0, "avg,max"},
};

static vc_status_t snapkv_parse(node_spec_t *spec, const char *params, vc_err_t *err)
{
    vc_status_t st = node_params_parse(spec, "snapkv", params, snapkv_params, VC_ARRAY_LEN(snapkv_params), err);
    if (st == VC_OK && spec->kernel % 2 == 0)
        return vc_err_set(err, VC_ERR_INVALID, "compressor snapkv: kernel=%u is not odd", spec->kernel);
    return st;
}

static uint32_t snapkv_window(const node_spec_t *spec) { return spec->window; }

static uint32_t snapkv_sinks(const node_spec_t *spec)
{
    (void)spec;
    return 1;
}

/* ---- the watch: queries of the last tokens ---- */

static vc_status_t snapkv_watch(const node_spec_t *spec, const node_model_info_t *model, uint32_t first_token,
                                uint32_t end_token, node_watch_t *watch_p, vc_err_t *err)
{
    (void)first_token; /* the window may reach into stored blocks */
    const uint32_t rows = VC_MIN(spec->window, end_token);
    const size_t row_floats = (size_t)model->n_head * model->head_dim;
    size_t n, bytes;
    node_snapkv_window_t *w = NULL;
    if (vc_size_mul((size_t)model->n_layer * rows, row_floats, &n) && vc_size_mul(n, sizeof(float), &bytes) &&
        vc_size_add(bytes, sizeof(*w), &bytes))
        w = vc_calloc(1, bytes);
    if (w == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the queries of %u tokens", rows);
    w->first = end_token - rows;
    w->rows = rows;
    w->row_floats = row_floats;
    *watch_p = (node_watch_t){.kinds = NODE_CAP_Q, .first = w->first, .end = end_token, .state = w};
    return VC_OK;
}

static void snapkv_watch_row(void *state, node_capture_kind_t kind, uint32_t layer, uint32_t position,
                             const float *values)
{
    (void)kind;
    node_snapkv_window_t *w = state;
    memcpy(w->q + ((size_t)layer * w->rows + (position - w->first)) * w->row_floats, values,
           w->row_floats * sizeof(float));
}

/* ---- the choice ---- */

typedef struct page_keys {
    const node_snapkv_ops_t *ops;
    const node_kv_t *kv;
    uint32_t layer, head, dim;
} page_keys_t;

static void keys_of_page(void *arg, uint32_t tile, float *kt)
{
    const page_keys_t *keys = arg;
    node_page_t *page = node_kv_page_at(keys->kv, tile);
    keys->ops->widen(node_page_k(page, keys->layer, keys->head), kt, (size_t)keys->dim * NODE_TILE);
}

/* scores, keys: scratch of one word per token of the prefix. */
static vc_status_t select_head(const node_snapkv_ops_t *ops, node_selection_t *s, uint32_t index, float *scores,
                               uint64_t *keys, vc_err_t *err)
{
    const node_compress_in_t *in = s->in;
    const node_model_info_t *m = in->model;
    const uint32_t layer = index / m->n_kv_head, head = index % m->n_kv_head, group = m->n_head / m->n_kv_head;
    const uint32_t n_tokens = in->n_blocks * NODE_TILE, first = in->first_block * NODE_TILE;
    const node_snapkv_window_t *window = in->watched;
    page_keys_t page_keys = {ops, in->kv, layer, head, m->head_dim};
    node_snapkv_head_t score = {
        .n_tokens = n_tokens,
        .window = window->rows,
        .kernel = s->spec->kernel,
        .max_pool = s->spec->max_pool != 0,
        .dim = m->head_dim,
        .n_group = group,
        .q = window->q + (size_t)layer * window->rows * window->row_floats + (size_t)head * group * m->head_dim,
        .q_stride = window->row_floats,
        .keys = keys_of_page,
        .keys_arg = &page_keys,
    };
    vc_status_t st = node_snapkv_scores(ops, &score, scores, err);
    if (st != VC_OK)
        return vc_err_prefix(err, "snapkv layer %u head %u", layer, head);
    uint32_t edge = VC_MAX(first, n_tokens - window->rows); /* first new token inside the window */
    uint32_t take_rest, take_window;
    node_snapkv_budget(s->spec->keep, edge - first, n_tokens - edge, &take_rest, &take_window);
    uint64_t *kept = s->kept + (size_t)index * s->n_new;
    node_select_top(scores + first, edge - first, take_rest, kept, 0, keys);
    node_select_top(scores + edge, n_tokens - edge, take_window, kept, edge - first, keys);
    return VC_OK;
}

static vc_status_t select_all(node_selection_t *s, vc_err_t *err)
{
    const uint32_t n_tokens = s->in->n_blocks * NODE_TILE;
    const node_snapkv_ops_t *ops = node_snapkv_ops_best(); /* once: asking the CPU is slow under a hypervisor */
    float *scores = vc_calloc(n_tokens, sizeof(*scores));
    uint64_t *keys = vc_calloc(n_tokens, sizeof(*keys));
    vc_status_t st = VC_OK;
    if (scores == NULL || keys == NULL)
        st = vc_err_set(err, VC_ERR_NOMEM, "no memory to rank %u tokens", n_tokens);
    for (uint32_t i = 0; st == VC_OK && i < s->n_heads; i++)
        st = select_head(ops, s, i, scores, keys, err);
    vc_free(scores);
    vc_free(keys);
    return st;
}

static vc_status_t snapkv_plan(const node_spec_t *spec, const node_compress_in_t *in, void **plan_p, vc_err_t *err)
{
    const node_model_info_t *m = in->model;
    const uint32_t n_tokens = in->n_blocks * NODE_TILE;
    const node_snapkv_window_t *window = in->watched;
    const uint32_t rows = VC_MIN(spec->window, n_tokens);
    if (window == NULL || window->rows != rows || window->first != n_tokens - rows)
        return vc_err_set(err, VC_ERR_INVALID, "snapkv got the queries of %u tokens where it needs the last %u of %u",
                          window != NULL ? window->rows : 0, rows, n_tokens);
    if (m->n_kv_head == 0 || m->n_head % m->n_kv_head != 0)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "%u query heads do not share %u KV heads evenly", m->n_head,
                          m->n_kv_head);
    node_selection_t *s = node_selection_create(spec, in, err);
    if (s == NULL)
        return VC_ERR_NOMEM;
    vc_status_t st = VC_OK;
    if (n_tokens <= spec->window)
        node_selection_keep_all(s); /* too short to choose from */
    else
        st = select_all(s, err);
    if (st != VC_OK) {
        node_selection_free(s);
        return st;
    }
    *plan_p = s;
    return VC_OK;
}

const node_codec_ops_t node_codec_snapkv = {
    .name = "snapkv",
    .params_help = "keep=0.25 window=64 kernel=5 (odd) pool=avg (avg, max)",
    .kind = VC_KVREC_DROPPER,
    .parse = snapkv_parse,
    .bits = node_dropper_bits,
    .needs = node_codec_no_need,
    .window_tokens = snapkv_window,
    .sink_blocks = snapkv_sinks,
    .chooses = true,
    .watch = snapkv_watch,
    .watch_row = snapkv_watch_row,
    .watch_free = vc_free,
    .plan = snapkv_plan,
    .layer_bytes = node_selection_layer_bytes,
    .encode = node_selection_encode,
    .plan_free = node_selection_free,
    .decode = node_dropper_decode,
};
