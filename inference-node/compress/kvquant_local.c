/* Texts with their KV and queries; local sensitivity, a tile of keys at a time against the kept queries of a head. */
#include "compress/kvquant_local.h"

#include "compress/passes.h"
#include "compress/snapkv_int.h"
#include "model/rope.h"
#include "vc/mem.h"

#define QUERY_STRIDE 16u /* one query in so many tokens speaks for all: errors average over keys and texts */

static uint32_t query_at(uint32_t j, uint32_t n_tokens)
{
    return VC_MIN(j * QUERY_STRIDE + QUERY_STRIDE - 1, n_tokens - 1);
}

vc_status_t node_kvquant_texts_init(node_kvquant_texts_t *t, const node_model_info_t *model, uint32_t n_texts,
                                    uint32_t sinks, vc_err_t *err)
{
    *t = (node_kvquant_texts_t){.model = model, .sinks = sinks};
    t->kv = vc_calloc(n_texts, sizeof(*t->kv));
    t->queries = vc_calloc(n_texts, sizeof(*t->queries));
    t->n_queries = vc_calloc(n_texts, sizeof(*t->n_queries));
    if (t->kv == NULL || t->queries == NULL || t->n_queries == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for %u texts", n_texts);
    return VC_OK;
}

void node_kvquant_texts_free(node_kvquant_texts_t *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        node_kv_fini(&t->kv[i]);
        vc_free(t->queries[i]);
    }
    vc_free(t->kv);
    vc_free(t->queries);
    vc_free(t->n_queries);
    vc_free(t->cos);
    vc_free(t->sin);
}

/* Where the queries of the text being read go. */
typedef struct keeper {
    const node_model_info_t *model;
    float *queries;
    uint32_t n_queries, n_tokens;
} keeper_t;

static void keep_query(void *arg, node_capture_kind_t kind, uint32_t layer, uint32_t row, uint32_t position,
                       const float *values)
{
    const keeper_t *k = arg;
    const uint32_t j = position / QUERY_STRIDE;
    const size_t width = (size_t)k->model->n_head * k->model->head_dim;
    (void)row;
    if (kind == NODE_CAP_Q && j < k->n_queries && position == query_at(j, k->n_tokens))
        memcpy(k->queries + ((size_t)layer * k->n_queries + j) * width, values, width * sizeof(float));
}

/* Angles of positions [0, n); kept while they reach. */
static vc_status_t make_angles(node_kvquant_texts_t *t, uint32_t n, vc_err_t *err)
{
    const uint32_t half = t->model->rope_dims / 2;
    if (n <= t->longest)
        return VC_OK;
    vc_free(t->cos);
    vc_free(t->sin);
    t->cos = vc_calloc((size_t)n * half + 1, sizeof(float));
    t->sin = vc_calloc((size_t)n * half + 1, sizeof(float));
    if (t->cos == NULL || t->sin == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the angles of %u tokens", n);
    for (uint32_t i = 0; i < n; i++)
        node_rope_table(t->model->rope_inv_freq, half, 1.0f, i, t->cos + (size_t)i * half, t->sin + (size_t)i * half);
    t->longest = n;
    return VC_OK;
}

vc_status_t node_kvquant_texts_add(node_kvquant_texts_t *t, const node_replay_t *replay, const uint32_t *tokens,
                                   uint32_t n_tokens, vc_err_t *err)
{
    const node_model_info_t *m = t->model;
    const uint32_t n_queries = (n_tokens + QUERY_STRIDE - 1) / QUERY_STRIDE;
    node_kv_dims_t dims;
    keeper_t keeper = {.model = m, .n_queries = n_queries, .n_tokens = n_tokens};
    vc_status_t st = make_angles(t, n_tokens, err);
    if (st != VC_OK)
        return st;
    keeper.queries = vc_calloc((size_t)m->n_layer * n_queries, (size_t)m->n_head * m->head_dim * sizeof(float));
    node_engine_kv_dims(replay->engine, &dims);
    if (keeper.queries == NULL || node_kv_init(&t->kv[t->n], &dims, NULL) != VC_OK) {
        vc_free(keeper.queries);
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a text of %u tokens", n_tokens);
    }
    t->queries[t->n] = keeper.queries;
    t->n_queries[t->n] = n_queries;
    t->n++; /* from here on freed with the rest */
    t->n_rows += n_tokens - t->sinks;
    const node_capture_t capture = {.kinds = NODE_CAP_Q, .fn = keep_query, .arg = &keeper};
    return node_passes_run(replay, &t->kv[t->n - 1], tokens, n_tokens, &capture, err);
}

/* ---- sensitivity ---- */

/* One query head over one text. */
typedef struct head_work {
    const node_snapkv_ops_t *ops;
    const node_model_info_t *model;
    const node_kv_t *kv;
    const float *gram; /* [dim][dim] of this head */
    const float *q;    /* query j at q + j * q_stride */
    size_t q_stride;
    uint32_t layer, kv_head, n_queries, n_tiles;
    const float *cos, *sin;
    float *a;                  /* [n_queries][n_tiles * NODE_TILE] attention weights */
    float *o, *go, *og;        /* [n_queries][dim] output, G o; [n_queries] o' G o */
    float *moments;            /* [3 half + rest][n_queries] products of the query's pairs */
    float *kt, *vt, *vc;       /* tile of keys, of values turned, of values in 64 channels */
    float *w, *cross, *m, *gv; /* [n_queries][NODE_TILE] twice, [moments][NODE_TILE], [dim][NODE_TILE] */
} head_work_t;

static uint32_t n_moments(const node_model_info_t *m) { return m->rope_dims / 2 * 3 + (m->head_dim - m->rope_dims); }

static void free_work(head_work_t *w)
{
    float *all[] = {w->a, w->o, w->go, w->og, w->moments, w->kt, w->vt, w->vc, w->w, w->cross, w->m, w->gv};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++)
        vc_free(all[i]);
}

static bool alloc_work(head_work_t *w, uint32_t max_queries, uint32_t max_tiles)
{
    const size_t dim = w->model->head_dim, tile = NODE_TILE * sizeof(float), q = max_queries;
    struct {
        float **at;
        size_t bytes;
    } all[] = {{&w->a, q * max_tiles * tile},
               {&w->o, q * dim * sizeof(float)},
               {&w->go, q * dim * sizeof(float)},
               {&w->og, q * sizeof(float)},
               {&w->moments, q * n_moments(w->model) * sizeof(float)},
               {&w->kt, dim * tile},
               {&w->vt, dim * tile},
               {&w->vc, NODE_TILE * tile},
               {&w->w, q * tile},
               {&w->cross, q * tile},
               {&w->m, n_moments(w->model) * tile},
               {&w->gv, dim * tile}};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++) {
        *all[i].at = vc_alloc_aligned(64, vc_align_up(all[i].bytes, 64));
        if (*all[i].at == NULL)
            return false;
    }
    return true;
}

static node_page_t *page_of(const head_work_t *w, uint32_t tile) { return node_kv_page_at(w->kv, tile); }

/* Queries before this one do not see the tile. */
static uint32_t first_query(uint32_t tile) { return tile * (NODE_TILE / QUERY_STRIDE); }

static void attend(head_work_t *w)
{
    const uint32_t n = w->n_tiles * NODE_TILE, dim = w->model->head_dim;
    const float scale = 1.0f / __builtin_sqrtf((float)dim);
    for (uint32_t t = 0; t < w->n_tiles; t++) {
        w->ops->widen(node_page_k(page_of(w, t), w->layer, w->kv_head), w->kt, (size_t)dim * NODE_TILE);
        w->ops->dots(w->q, w->q_stride, w->n_queries, dim, w->kt, w->a + (size_t)t * NODE_TILE, n);
    }
    for (uint32_t j = 0; j < w->n_queries; j++) {
        float *z = w->a + (size_t)j * n, sum = 0, top;
        const uint32_t seen = query_at(j, w->kv->n_tokens) + 1;
        top = z[0];
        for (uint32_t i = 1; i < seen; i++)
            top = z[i] > top ? z[i] : top;
        for (uint32_t i = 0; i < seen; i++)
            sum += z[i] = node_exp((z[i] - top) * scale);
        for (uint32_t i = 0; i < n; i++)
            z[i] = i < seen ? z[i] / sum : 0;
    }
}

/* o = sum a v, in pieces of 64 channels, then G o and o' G o. */
static void outputs(head_work_t *w)
{
    const uint32_t n = w->n_tiles * NODE_TILE, dim = w->model->head_dim;
    memset(w->o, 0, (size_t)w->n_queries * dim * sizeof(float));
    for (uint32_t t = 0; t < w->n_tiles; t++) {
        const uint16_t *v = node_page_v(page_of(w, t), w->layer, w->kv_head);
        const uint32_t j0 = VC_MIN(first_query(t), w->n_queries);
        w->ops->widen(v, w->vt, (size_t)dim * NODE_TILE);
        for (uint32_t c0 = 0; c0 < dim; c0 += NODE_TILE) {
            const uint32_t n_c = VC_MIN(NODE_TILE, dim - c0);
            memset(w->vc, 0, NODE_TILE * NODE_TILE * sizeof(float));
            for (uint32_t i = 0; i < NODE_TILE; i++)
                memcpy(w->vc + (size_t)i * NODE_TILE, w->vt + (size_t)i * dim + c0, n_c * sizeof(float));
            w->ops->dots(w->a + (size_t)j0 * n + (size_t)t * NODE_TILE, n, w->n_queries - j0, NODE_TILE, w->vc,
                         w->cross, NODE_TILE);
            for (uint32_t j = j0; j < w->n_queries; j++)
                for (uint32_t c = 0; c < n_c; c++)
                    w->o[(size_t)j * dim + c0 + c] += w->cross[(size_t)(j - j0) * NODE_TILE + c];
        }
    }
    for (uint32_t j = 0; j < w->n_queries; j++) {
        const float *o = w->o + (size_t)j * dim;
        w->og[j] = 0;
        for (uint32_t r = 0; r < dim; r++) {
            float sum = 0;
            for (uint32_t c = 0; c < dim; c++)
                sum = node_fma(w->gram[(size_t)r * dim + c], o[c], sum);
            w->go[(size_t)j * dim + r] = sum;
            w->og[j] = node_fma(sum, o[r], w->og[j]);
        }
    }
}

static void query_moments(head_work_t *w)
{
    const uint32_t half = w->model->rope_dims / 2, dim = w->model->head_dim, n = w->n_queries;
    for (uint32_t j = 0; j < n; j++) {
        const float *q = w->q + j * w->q_stride;
        float *at = w->moments + j;
        for (uint32_t c = 0; c < half; c++) {
            at[(size_t)c * n] = q[c] * q[c];
            at[(size_t)(half + c) * n] = q[c] * q[half + c];
            at[(size_t)(2 * half + c) * n] = q[half + c] * q[half + c];
        }
        for (uint32_t c = 2 * half; c < dim; c++)
            at[(size_t)(half + c) * n] = q[c] * q[c];
    }
}

/* w->w: every query's squared attention weight times how far another value in the token's place moves the output, for
 * the keys; squares[i] += the squared weights alone, for the values. */
static void tile_weights(head_work_t *w, uint32_t tile, uint32_t j0, float *squares)
{
    const uint32_t n = w->n_tiles * NODE_TILE, dim = w->model->head_dim, n_q = w->n_queries - j0;
    const uint16_t *v = node_page_v(page_of(w, tile), w->layer, w->kv_head);
    float own[NODE_TILE] = {0};
    for (uint32_t i = 0; i < NODE_TILE; i++)
        for (uint32_t c = 0; c < dim; c++)
            w->vt[(size_t)c * NODE_TILE + i] = node_f32_from_f16(v[(size_t)i * dim + c]);
    w->ops->dots(w->go + (size_t)j0 * dim, dim, n_q, dim, w->vt, w->cross, NODE_TILE);
    w->ops->dots(w->gram, dim, dim, dim, w->vt, w->gv, NODE_TILE);
    for (uint32_t c = 0; c < dim; c++)
        for (uint32_t i = 0; i < NODE_TILE; i++)
            own[i] = node_fma(w->gv[(size_t)c * NODE_TILE + i], w->vt[(size_t)c * NODE_TILE + i], own[i]);
    for (uint32_t j = 0; j < n_q; j++) {
        const float *a = w->a + (size_t)(j0 + j) * n + (size_t)tile * NODE_TILE;
        const float *cross = w->cross + (size_t)j * NODE_TILE, og = w->og[j0 + j];
        float *out = w->w + (size_t)j * NODE_TILE;
        for (uint32_t i = 0; i < NODE_TILE; i++) {
            float change = own[i] - 2 * cross[i] + og, a2 = a[i] * a[i];
            squares[i] += a2;
            out[i] = a2 * (change > 0 ? change : 0) / (float)dim;
        }
    }
}

/* Adds the tile's part to the weights of the head's channels; k_at: row 0 of the text in channel 0 of the head. */
static void add_tile(head_work_t *w, uint32_t tile, uint32_t sinks, float *k_at, size_t k_stride, float *v_at,
                     size_t v_stride)
{
    const uint32_t half = w->model->rope_dims / 2, dim = w->model->head_dim, j0 = first_query(tile);
    const uint32_t end = VC_MIN(NODE_TILE, w->kv->n_tokens - tile * NODE_TILE);
    float squares[NODE_TILE] = {0};
    if (j0 >= w->n_queries)
        return;
    tile_weights(w, tile, j0, squares);
    w->ops->dots(w->moments + j0, w->n_queries, n_moments(w->model), w->n_queries - j0, w->w, w->m, NODE_TILE);
    for (uint32_t i = 0; i < end; i++) {
        const uint32_t pos = tile * NODE_TILE + i;
        if (pos < sinks)
            continue;
        const float *cos = w->cos + (size_t)pos * half, *sin = w->sin + (size_t)pos * half, *m = w->m + i;
        float *k = k_at + (pos - sinks), *v = v_at + (size_t)(pos - sinks) * v_stride;
        for (uint32_t c = 0; c < half; c++) {
            float x = m[(size_t)c * NODE_TILE], y = m[(size_t)(2 * half + c) * NODE_TILE];
            float both = 2 * cos[c] * sin[c] * m[(size_t)(half + c) * NODE_TILE];
            float cc = cos[c] * cos[c], ss = sin[c] * sin[c], first = cc * x + both + ss * y;
            float second = ss * x - both + cc * y;
            k[c * k_stride] += first > 0 ? first : 0;
            k[(half + c) * k_stride] += second > 0 ? second : 0;
        }
        for (uint32_t c = 2 * half; c < dim; c++)
            k[c * k_stride] += m[(size_t)(half + c) * NODE_TILE];
        for (uint32_t c = 0; c < dim; c++)
            v[c] += squares[i] * w->gram[(size_t)c * dim + c];
    }
}

static uint32_t max_queries(const node_kvquant_texts_t *t)
{
    uint32_t max = 0;
    for (uint32_t i = 0; i < t->n; i++)
        max = VC_MAX(max, t->n_queries[i]);
    return max;
}

vc_status_t node_kvquant_local_weights(node_kvquant_texts_t *t, const node_engine_t *engine, uint32_t layer,
                                       float *k_weights, float *v_weights, vc_err_t *err)
{
    const node_model_info_t *m = t->model;
    const uint32_t dim = m->head_dim, group = m->n_head / m->n_kv_head, channels = m->n_kv_head * dim;
    head_work_t w = {.ops = node_snapkv_ops_best(), .model = m, .layer = layer, .cos = t->cos, .sin = t->sin};
    float *gram = vc_calloc((size_t)m->n_head * dim, dim * sizeof(float));
    vc_status_t st = VC_OK;
    if (gram == NULL || !alloc_work(&w, max_queries(t), (t->longest + NODE_TILE - 1) / NODE_TILE))
        st = vc_err_set(err, VC_ERR_NOMEM, "no memory for the sensitivity of a layer");
    if (st == VC_OK)
        st = node_engine_output_gram(engine, layer, gram, err);
    memset(k_weights, 0, (size_t)t->n_rows * channels * sizeof(float));
    memset(v_weights, 0, (size_t)t->n_rows * channels * sizeof(float));
    uint32_t base = 0;
    for (uint32_t i = 0; st == VC_OK && i < t->n; i++) {
        w.kv = &t->kv[i];
        w.n_queries = t->n_queries[i];
        w.n_tiles = (w.kv->n_tokens + NODE_TILE - 1) / NODE_TILE;
        w.q_stride = (size_t)m->n_head * dim;
        for (uint32_t h = 0; h < m->n_head; h++) {
            w.kv_head = h / group;
            w.gram = gram + (size_t)h * dim * dim;
            w.q = t->queries[i] + (size_t)layer * w.n_queries * w.q_stride + h * dim;
            attend(&w);
            outputs(&w);
            query_moments(&w);
            for (uint32_t tile = 0; tile < w.n_tiles; tile++)
                add_tile(&w, tile, t->sinks, k_weights + (size_t)w.kv_head * dim * t->n_rows + base, t->n_rows,
                         v_weights + (size_t)base * channels + w.kv_head * dim, channels);
        }
        base += w.kv->n_tokens - t->sinks;
    }
    free_work(&w);
    vc_free(gram);
    return st;
}
