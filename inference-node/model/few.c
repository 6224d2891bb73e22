/*
 * The pass of a few rows. Its phases take microseconds, so that what counts is how rarely the team meets and that
 * memory never idles: every thread keeps its own copy of what is small (residual stream, norms, quantised inputs), each
 * has its own run of panels, known beforehand, and asks for the first weights of the next phase in the last panels of
 * this one. A layer is five phases: q, k, v; attention with RoPE; o; gate and up with the gating; down. It is the
 * arithmetic of forward.c, so it has its bits.
 */
#include "model/engine_int.h"
#include "vc/mem.h"

enum { PAIR_OUTPUTS = 2 * NODE_PANEL };
_Static_assert(PAIR_OUTPUTS == NODE_GROUP, "a pair of panels of gate and up is a group of inputs of down");

typedef struct {
    node_pass_t *pass;
    node_engine_t *eng;
    node_thread_scratch_t *own;
    uint32_t thread;
} few_t;

bool node_few_fits(const node_pass_t *pass)
{
    return pass->eng->few && pass->n_rows <= NODE_FEW_ROWS && pass->capture == NULL && !pass->streams;
}

/* The phases of a layer as lists of matrices. */
typedef struct {
    node_target_t qkv[3], o, gate, up, down;
} targets_t;

static targets_t targets_of(const node_engine_t *eng, uint32_t layer)
{
    const node_layer_t *w = &eng->w.layers[layer];
    return (targets_t){
        .qkv = {{&w->q, eng->q, eng->q_stride}, {&w->k, eng->k, eng->kv_stride}, {&w->v, eng->v, eng->kv_stride}},
        .o = {&w->o, eng->y, eng->model_stride},
        .gate = {&w->gate, eng->gate, eng->ffn_stride},
        .up = {&w->up, eng->up, eng->ffn_stride},
        .down = {&w->down, eng->y, eng->model_stride}};
}

/* Where this thread begins in a list. */
static const uint8_t *begin_of(const few_t *f, const node_target_t *targets, uint32_t n)
{
    return node_panel_data(targets, n, node_own_panels(f->eng, targets, n, f->thread).from);
}

static const uint8_t *begin_of_layer(const few_t *f, uint32_t layer)
{
    if (layer >= f->eng->info.n_layer)
        return NULL;
    const targets_t t = targets_of(f->eng, layer);
    return begin_of(f, t.qkv, 3);
}

static void norm_row(const few_t *f, const float *x, const float *w, uint32_t slot)
{
    node_acts_t *a = &f->own->normed;
    f->eng->ops->rms_norm(x, w, f->eng->info.d_model, f->eng->info.rms_eps, a->x + slot * a->stride);
    f->eng->ops->quantise(a, slot);
}

/* The residual stream of rows [first, n_rows) with the last linear's output added, and normed. */
static void add_norm(const few_t *f, uint32_t first, bool add, const float *w)
{
    node_engine_t *eng = f->eng;
    for (uint32_t r = first; r < f->pass->n_rows; r++) {
        float *x = f->own->x + r * eng->model_stride;
        if (add)
            eng->ops->add(x, eng->y + r * eng->model_stride, eng->info.d_model);
        norm_row(f, x, w, r);
    }
}

/* Gated inputs of down [from, from + PAIR_OUTPUTS) of a row, quantised as one group of it. */
static void gate_group(node_engine_t *eng, uint32_t row, uint32_t from)
{
    node_acts_t *a = &eng->act_ffn;
    const size_t at = row * a->stride + from, group = row * a->group_stride + from / NODE_GROUP;
    eng->ops->swiglu(eng->gate + row * eng->ffn_stride + from, eng->up + row * eng->ffn_stride + from, PAIR_OUTPUTS,
                     a->x + at);
    const node_acts_t part = {.n_in = NODE_GROUP,
                              .x = a->x + at,
                              .q = a->q + at,
                              .scale = a->scale + group,
                              .sum = a->sum + group,
                              .isum = a->isum + group};
    eng->ops->quantise(&part, 0);
}

static void gate_up(const few_t *f, const targets_t *t, uint32_t first, const uint8_t *ahead)
{
    node_engine_t *eng = f->eng;
    const node_range_t own = node_own_panels(eng, &t->gate, 1, f->thread);
    const uint32_t n = f->pass->n_rows - first;
    for (uint32_t p = own.from; p < own.end; p += 2) {
        const uint8_t *next = p + 2 < own.end ? node_panel_data(&t->gate, 1, p + 2) : ahead;
        eng->ops->linear(t->gate.m, p, p + 2, node_panel_data(&t->up, 1, p), &f->own->normed, first, n, t->gate.out,
                         t->gate.stride);
        eng->ops->linear(t->up.m, p, p + 2, next, &f->own->normed, first, n, t->up.out, t->up.stride);
        for (uint32_t r = first; r < f->pass->n_rows; r++)
            gate_group(eng, r, p * NODE_PANEL);
    }
    node_team_barrier(eng->team);
}

/* Attention where its phase cannot take RoPE in, or only the last rows go on. */
static void attend_apart(const few_t *f, uint32_t layer, uint32_t first)
{
    node_pass_t *pass = f->pass;
    for (uint32_t r = f->thread; r < pass->n_rows; r += f->eng->n_threads)
        node_rope_store(pass, layer, r);
    node_team_barrier(f->eng->team);
    if (first < pass->n_rows)
        node_attend_layer(pass, layer, (uint32_t)(node_block_of(pass, first) - f->eng->blocks), f->thread);
}

/* first: rows below it end with their K and V. */
static void layer_of(const few_t *f, uint32_t layer, uint32_t first)
{
    node_engine_t *eng = f->eng;
    node_pass_t *pass = f->pass;
    const node_layer_t *w = &eng->w.layers[layer];
    const targets_t t = targets_of(eng, layer);
    const uint32_t n = pass->n_rows;
    const bool fresh = first == 0 && node_attend_fresh_fits(pass, layer);
    add_norm(f, 0, layer > 0, w->attn_norm);
    node_linear_own(pass, f->thread, &f->own->normed, 0, n, t.qkv, 3,
                    fresh ? node_attend_first(pass, layer, f->thread) : NULL);
    node_team_barrier(eng->team);
    if (fresh)
        node_attend_fresh(pass, layer, f->thread, begin_of(f, &t.o, 1));
    else
        attend_apart(f, layer, first);
    if (first == n)
        return;
    for (uint32_t r = first; r < n; r++)
        eng->ops->quantise(&f->own->attn, r);
    node_linear_own(pass, f->thread, &f->own->attn, first, n, &t.o, 1, begin_of(f, &t.gate, 1));
    node_team_barrier(eng->team);
    add_norm(f, first, true, w->ffn_norm);
    gate_up(f, &t, first, begin_of(f, &t.down, 1));
    node_linear_own(pass, f->thread, &eng->act_ffn, first, n, &t.down, 1, begin_of_layer(f, layer + 1));
    node_team_barrier(eng->team);
}

static void logits(const few_t *f)
{
    node_engine_t *eng = f->eng;
    for (uint32_t i = 0; i < f->pass->n_want; i++) {
        float *x = f->own->x + eng->want[i] * eng->model_stride;
        eng->ops->add(x, eng->y + eng->want[i] * eng->model_stride, eng->info.d_model);
        norm_row(f, x, eng->w.out_norm, i);
    }
    node_project(f->pass, &f->own->normed);
}

void node_few_worker(void *arg, uint32_t thread)
{
    node_pass_t *pass = arg;
    node_engine_t *eng = pass->eng;
    const few_t f = {.pass = pass, .eng = eng, .own = &eng->threads[thread], .thread = thread};
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        node_embed(pass, r, f.own->x + r * eng->model_stride);
        if (r % eng->n_threads == thread) /* the barrier after q, k, v publishes it */
            node_rope_row(pass, r);
    }
    for (uint32_t layer = 0; layer < eng->info.n_layer; layer++) {
        if (thread == 0 && eng->between != NULL)
            eng->between(eng->between_arg);
        layer_of(&f, layer, layer + 1 == eng->info.n_layer ? pass->tail : 0);
    }
    if (pass->n_want != 0 && pass->logits != NULL)
        logits(&f);
}
