/*
 * The pass: all rows go through a layer together, phase by phase, the team meeting between phases. In a phase the team
 * shares either rows (norms, RoPE, gating) or panels of outputs (linear); neither split can be seen in the bits.
 *
 * Shapes: x, y [row][d_model]; q [row][n_head][head_dim]; k, v [row][n_kv_head][head_dim]; gate, up [row][d_ffn].
 */
#include "model/engine_int.h"

#include <string.h>

#include "kernels/numerics.h"
#include "vc/mem.h"

typedef void (*row_fn)(node_pass_t *pass, uint32_t layer, uint32_t row);

/* Runs fn over rows [first, end), in runs long enough that two threads rarely write one cache line of a page. */
static void each_row(node_pass_t *pass, uint32_t layer, uint32_t first, uint32_t end, row_fn fn)
{
    node_team_t *team = pass->eng->team;
    uint32_t threads = pass->eng->n_threads, n = end - first, run = (n + 4 * threads - 1) / (4 * threads), item;
    while (node_team_next(team, (n + run - 1) / run, &item))
        for (uint32_t r = item * run; r < n && r < (item + 1) * run; r++)
            fn(pass, layer, first + r);
    node_team_barrier(team);
}

static void quantise(const node_engine_t *eng, const node_acts_t *a, uint32_t row)
{
    if (a->q != NULL)
        eng->ops->quantise(a, row);
}

const node_row_block_t *node_block_of(const node_pass_t *pass, uint32_t row)
{
    const node_row_block_t *b = pass->eng->blocks;
    while (row >= b->first + b->n_rows)
        b++;
    return b;
}

void node_embed(const node_pass_t *pass, uint32_t row, float *x)
{
    const node_embedding_t *e = &pass->eng->w.embedding;
    node_matrix_unpack_row(e->type, e->rows + pass->rows[row].token * e->row_bytes, pass->eng->info.d_model, x);
}

void node_rope_row(node_pass_t *pass, uint32_t row)
{
    node_engine_t *eng = pass->eng;
    node_rope_table(eng->inv_freq, eng->info.rope_dims / 2, eng->info.rope_mscale,
                    node_row_position(node_block_of(pass, row), row), eng->cos + row * eng->rope_stride,
                    eng->sin + row * eng->rope_stride);
}

static void row_embed(node_pass_t *pass, uint32_t layer, uint32_t row)
{
    (void)layer;
    node_embed(pass, row, pass->eng->x + row * pass->eng->model_stride);
    node_rope_row(pass, row);
}

static void norm_into(node_engine_t *eng, const float *x, const float *w, uint32_t slot)
{
    eng->ops->rms_norm(x, w, eng->info.d_model, eng->info.rms_eps, eng->act_model.x + slot * eng->act_model.stride);
    quantise(eng, &eng->act_model, slot);
}

static void row_attn_norm(node_pass_t *pass, uint32_t layer, uint32_t row)
{
    node_engine_t *eng = pass->eng;
    float *x = eng->x + row * eng->model_stride;
    if (layer > 0)
        eng->ops->add(x, eng->y + row * eng->model_stride, eng->info.d_model);
    norm_into(eng, x, eng->w.layers[layer].attn_norm, row);
}

static void row_ffn_norm(node_pass_t *pass, uint32_t layer, uint32_t row)
{
    node_engine_t *eng = pass->eng;
    float *x = eng->x + row * eng->model_stride;
    eng->ops->add(x, eng->y + row * eng->model_stride, eng->info.d_model);
    norm_into(eng, x, eng->w.layers[layer].ffn_norm, row);
}

void node_rotate_heads(const node_engine_t *eng, uint32_t row, float *heads, uint32_t n, const float *norm)
{
    uint32_t d = eng->info.head_dim;
    for (uint32_t h = 0; h < n; h++) {
        float *head = heads + (size_t)h * d;
        if (norm != NULL)
            eng->ops->rms_norm(head, norm, d, eng->info.rms_eps, head);
        eng->ops->rope(head, eng->cos + row * eng->rope_stride, eng->sin + row * eng->rope_stride,
                       eng->info.rope_dims / 2);
    }
}

/* K goes into its page transposed: one half per dim, a tile apart. */
void node_store_kv(node_engine_t *eng, uint32_t layer, uint32_t row, const node_row_block_t *b, uint32_t head)
{
    uint32_t d = eng->info.head_dim, position = node_row_position(b, row), slot = position % NODE_TILE;
    node_page_t *page = b->kv->pages[position / NODE_TILE - b->kv->first_block];
    uint16_t half[NODE_HEAD_DIM_MAX], *k = node_page_k(page, layer, head) + slot;
    float *key = eng->k + row * eng->kv_stride + (size_t)head * d;
    node_rotate_heads(eng, row, key, 1, eng->w.layers[layer].k_norm);
    uint32_t over = eng->ops->to_f16(key, d, half);
    for (uint32_t i = 0; i < d; i++)
        k[(size_t)i * NODE_TILE] = half[i];
    over += eng->ops->to_f16(eng->v + row * eng->kv_stride + (size_t)head * d, d,
                             node_page_v(page, layer, head) + (size_t)slot * d);
    if (over != 0) /* relaxed: a statistic */
        atomic_fetch_add_explicit(&eng->saturations, over, memory_order_relaxed);
}

void node_rope_store(node_pass_t *pass, uint32_t layer, uint32_t row)
{
    node_engine_t *eng = pass->eng;
    node_rotate_heads(eng, row, eng->q + row * eng->q_stride, eng->info.n_head, eng->w.layers[layer].q_norm);
    for (uint32_t h = 0; h < eng->info.n_kv_head; h++)
        node_store_kv(eng, layer, row, node_block_of(pass, row), h);
}

static void row_attn_out(node_pass_t *pass, uint32_t layer, uint32_t row)
{
    (void)layer;
    quantise(pass->eng, &pass->eng->act_attn, row);
}

static void row_gate(node_pass_t *pass, uint32_t layer, uint32_t row)
{
    (void)layer;
    node_engine_t *eng = pass->eng;
    eng->ops->swiglu(eng->gate + row * eng->ffn_stride, eng->up + row * eng->ffn_stride, eng->info.d_ffn,
                     eng->act_ffn.x + row * eng->act_ffn.stride);
    quantise(eng, &eng->act_ffn, row);
}

static void row_last(node_pass_t *pass, uint32_t layer, uint32_t row)
{
    (void)layer;
    node_engine_t *eng = pass->eng;
    eng->ops->add(eng->x + row * eng->model_stride, eng->y + row * eng->model_stride, eng->info.d_model);
}

static void row_final_norm(node_pass_t *pass, uint32_t layer, uint32_t slot)
{
    (void)layer;
    node_engine_t *eng = pass->eng;
    norm_into(eng, eng->x + eng->want[slot] * eng->model_stride, eng->w.out_norm, slot);
}

/* Shows n rows of a buffer to the capture; row_of maps them to rows of the pass (NULL: the same). Caller's thread. */
static void show(const node_pass_t *pass, uint32_t thread, node_capture_kind_t kind, uint32_t layer,
                 const float *values, size_t stride, uint32_t n, const uint32_t *row_of)
{
    if (thread != 0 || pass->capture == NULL || (pass->capture->kinds & (uint32_t)kind) == 0)
        return;
    const node_row_block_t *b = pass->eng->blocks;
    for (uint32_t r = 0; r < n; r++) {
        uint32_t row = row_of != NULL ? row_of[r] : r;
        while (row >= b->first + b->n_rows)
            b++;
        pass->capture->fn(pass->capture->arg, kind, layer, row, node_row_position(b, row), values + r * stride);
    }
}

/* Up to the layer's K and V, which every row needs. */
static void kv_part(node_pass_t *pass, uint32_t layer, uint32_t thread)
{
    node_engine_t *eng = pass->eng;
    const node_layer_t *w = &eng->w.layers[layer];
    uint32_t n = pass->n_rows;
    each_row(pass, layer, 0, n, row_attn_norm);
    show(pass, thread, NODE_CAP_HIDDEN, layer, eng->x, eng->model_stride, n, NULL);
    show(pass, thread, NODE_CAP_RESID, layer, eng->x, eng->model_stride, n, NULL);
    show(pass, thread, NODE_CAP_X, layer, eng->act_model.x, eng->act_model.stride, n, NULL);
    const node_target_t qkv[] = {
        {&w->q, eng->q, eng->q_stride}, {&w->k, eng->k, eng->kv_stride}, {&w->v, eng->v, eng->kv_stride}};
    node_linear(pass, &eng->act_model, 0, n, qkv, 3);
    each_row(pass, layer, 0, n, node_rope_store);
    show(pass, thread, NODE_CAP_Q, layer, eng->q, eng->q_stride, n, NULL);
    show(pass, thread, NODE_CAP_K, layer, eng->k, eng->kv_stride, n, NULL);
    show(pass, thread, NODE_CAP_V, layer, eng->v, eng->kv_stride, n, NULL);
}

/* The rest of the layer for rows from `first` on. Attention runs over whole blocks; rows of a block below `first` only
 * cost time. */
static void rest_part(node_pass_t *pass, uint32_t layer, uint32_t first, uint32_t thread)
{
    node_engine_t *eng = pass->eng;
    const node_layer_t *w = &eng->w.layers[layer];
    uint32_t end = pass->n_rows;
    node_attend_layer(pass, layer, (uint32_t)(node_block_of(pass, first) - eng->blocks), thread);
    if (pass->streams)
        node_stream_release(pass, thread);
    each_row(pass, layer, first, end, row_attn_out);
    const node_target_t o = {&w->o, eng->y, eng->model_stride};
    node_linear(pass, &eng->act_attn, first, end, &o, 1);
    each_row(pass, layer, first, end, row_ffn_norm);
    const node_target_t up[] = {{&w->gate, eng->gate, eng->ffn_stride}, {&w->up, eng->up, eng->ffn_stride}};
    node_linear(pass, &eng->act_model, first, end, up, 2);
    each_row(pass, layer, first, end, row_gate);
    const node_target_t down = {&w->down, eng->y, eng->model_stride};
    node_linear(pass, &eng->act_ffn, first, end, &down, 1);
}

void node_forward_worker(void *arg, uint32_t thread)
{
    node_pass_t *pass = arg;
    node_engine_t *eng = pass->eng;
    each_row(pass, 0, 0, pass->n_rows, row_embed);
    for (uint32_t layer = 0; layer < eng->info.n_layer; layer++) {
        uint32_t first = layer + 1 == eng->info.n_layer ? pass->tail : 0;
        if (thread == 0 && eng->between != NULL)
            eng->between(eng->between_arg);
        kv_part(pass, layer, thread);
        if (pass->streams && !node_stream_layer(pass, layer, thread))
            return;
        if (first < pass->n_rows)
            rest_part(pass, layer, first, thread);
        else if (pass->streams)
            node_stream_release(pass, thread);
    }
    if (pass->tail == pass->n_rows)
        return;
    each_row(pass, 0, pass->tail, pass->n_rows, row_last);
    show(pass, thread, NODE_CAP_HIDDEN, eng->info.n_layer, eng->x, eng->model_stride, pass->n_rows, NULL);
    if (pass->n_want == 0)
        return;
    each_row(pass, 0, 0, pass->n_want, row_final_norm);
    show(pass, thread, NODE_CAP_NORMED, eng->info.n_layer, eng->act_model.x, eng->act_model.stride, pass->n_want,
         eng->want);
    if (pass->logits != NULL)
        node_project(pass, &eng->act_model);
}

/* ---- the call ---- */

static vc_status_t check_row(const node_engine_t *eng, const node_row_t *row, uint32_t i, uint32_t position,
                             vc_err_t *err)
{
    if (row->token >= eng->info.n_vocab)
        return vc_err_set(err, VC_ERR_RANGE, "row %u: token %u is not below the vocabulary of %u", i, row->token,
                          eng->info.n_vocab);
    if (position >= eng->info.context)
        return vc_err_set(err, VC_ERR_RANGE, "row %u: position %u is not below the context of %u", i, position,
                          eng->info.context);
    return VC_OK;
}

/* A session may appear in one run of rows only, or its positions would be ambiguous. */
static vc_status_t check_session(const node_pass_t *pass, uint32_t i, vc_err_t *err)
{
    const node_kv_t *kv = pass->rows[i].kv;
    node_kv_dims_t dims;
    node_engine_kv_dims(pass->eng, &dims);
    if (memcmp(&dims, &kv->dims, sizeof dims) != 0)
        return vc_err_set(err, VC_ERR_MISMATCH, "row %u: the session has another KV shape than the model", i);
    for (uint32_t j = 0; j < i; j++)
        if (pass->rows[j].kv == kv)
            return vc_err_set(err, VC_ERR_INVALID, "row %u: rows of one session are not consecutive", i);
    return VC_OK;
}

/* Rows from i on that belong to the same session. */
static uint32_t run_length(const node_row_t *rows, uint32_t n, uint32_t i)
{
    uint32_t end = i + 1;
    while (end < n && rows[end].kv == rows[i].kv)
        end++;
    return end - i;
}

/* Checks all rows and cuts them into blocks; changes nothing outside the engine. */
static vc_status_t plan(node_pass_t *pass, vc_err_t *err)
{
    node_engine_t *eng = pass->eng;
    uint32_t per_block = 0, run = 0;
    for (uint32_t i = 0; i < pass->n_rows; i++) {
        const node_row_t *row = &pass->rows[i];
        vc_status_t st = VC_OK;
        bool starts = i == 0 || row->kv != pass->rows[i - 1].kv;
        if (starts) {
            per_block = node_attend_block_rows(eng, run_length(pass->rows, pass->n_rows, i));
            st = check_session(pass, i, err);
        }
        run = starts ? 0 : run + 1;
        if (st == VC_OK)
            st = check_row(eng, row, i, row->kv->n_tokens + run, err);
        if (st != VC_OK)
            return st;
        if (run % per_block == 0)
            eng->blocks[pass->n_blocks++] =
                (node_row_block_t){.kv = row->kv, .first = i, .position = row->kv->n_tokens + run};
        eng->blocks[pass->n_blocks - 1].n_rows++;
        if (row->want_logits)
            eng->want[pass->n_want++] = i;
    }
    return VC_OK;
}

/* A pass that failed: rows that it wrote are zeroed again. */
static vc_status_t undo(node_pass_t *pass)
{
    node_stream_abort(pass);
    for (uint32_t i = 0; i < pass->n_rows; i += run_length(pass->rows, pass->n_rows, i)) {
        node_kv_t *kv = pass->rows[i].kv;
        uint32_t before = kv->n_tokens;
        kv->n_tokens += run_length(pass->rows, pass->n_rows, i);
        if (node_kv_truncate(kv, before) != VC_OK)
            kv->n_tokens = before;
    }
    return pass->status;
}

vc_status_t node_forward(node_engine_t *eng, const node_row_t *rows, uint32_t n_rows, float *logits,
                         const node_capture_t *capture, vc_err_t *err)
{
    if (n_rows == 0)
        return VC_OK;
    if (n_rows > eng->max_rows)
        return vc_err_set(err, VC_ERR_RANGE, "%u rows in a pass, at most %u", n_rows, eng->max_rows);
    node_pass_t pass = {.eng = eng, .rows = rows, .n_rows = n_rows, .logits = logits, .capture = capture, .err = err};
    vc_status_t st = plan(&pass, err);
    if (st == VC_OK)
        st = node_stream_begin(&pass, err);
    if (st != VC_OK)
        return st;
    if (capture == NULL || (capture->kinds & NODE_CAP_HIDDEN) == 0)
        pass.tail = pass.n_want != 0 ? eng->want[0] : n_rows;
    for (uint32_t i = 0; i < n_rows; i += run_length(rows, n_rows, i))
        if (node_kv_reserve(rows[i].kv, run_length(rows, n_rows, i)) != VC_OK) {
            node_stream_abort(&pass);
            return vc_err_set(err, VC_ERR_NOMEM, "no memory for the KV of %u rows", run_length(rows, n_rows, i));
        }
    node_team_run(eng->team, node_few_fits(&pass) ? node_few_worker : node_forward_worker, &pass);
    if (pass.status != VC_OK)
        return undo(&pass);
    for (uint32_t i = 0; i < n_rows; i++)
        rows[i].kv->n_tokens++;
    return VC_OK;
}

vc_status_t node_prefill(node_engine_t *eng, node_kv_t *kv, const uint32_t *tokens, uint32_t n, float *logits,
                         const node_capture_t *capture, vc_err_t *err)
{
    if (n > eng->info.context || kv->n_tokens > eng->info.context - n)
        return vc_err_set(err, VC_ERR_RANGE, "%u tokens after %u leave the context of %u", n, kv->n_tokens,
                          eng->info.context);
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] >= eng->info.n_vocab)
            return vc_err_set(err, VC_ERR_RANGE, "token %u at %u is not below the vocabulary of %u", tokens[i], i,
                              eng->info.n_vocab);
    node_row_t *rows = vc_calloc(VC_MIN(n, eng->max_rows), sizeof *rows);
    if (rows == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for %u rows", VC_MIN(n, eng->max_rows));
    vc_status_t st = VC_OK;
    for (uint32_t at = 0; st == VC_OK && at < n;) {
        uint32_t m = VC_MIN(n - at, eng->max_rows);
        for (uint32_t i = 0; i < m; i++)
            rows[i] = (node_row_t){.kv = kv, .token = tokens[at + i], .want_logits = logits != NULL && at + i + 1 == n};
        st = node_forward(eng, rows, m, logits, capture, err);
        at += m;
    }
    vc_free(rows);
    return st;
}
