/*
 * Rows of passes to the methods that watch. A watch counts what it saw per kind and layer, so that it is told every row
 * once and in order; a row that skips ahead spoils it until it is started over. Owner: the thread that runs the passes.
 */
#include "compress/watch.h"

#include "compress/passes.h"
#include "vc/mem.h"

enum { N_KINDS = 5 };

typedef struct watch {
    const node_spec_t *spec;
    node_watch_t w; /* kinds 0: nothing to see */
    uint32_t first_block;
    uint32_t *next; /* [n_layer][N_KINDS]: position that comes next */
    bool spoilt;
} watch_t;

struct node_watches {
    const node_model_info_t *model;
    uint32_t n_specs, n_blocks;
    bool again; /* passes over rows that some watches have seen */
    node_capture_t capture;
    watch_t watch[];
};

static int kind_index(node_capture_kind_t kind)
{
    switch (kind) {
    case NODE_CAP_Q: return 0;
    case NODE_CAP_K: return 1;
    case NODE_CAP_V: return 2;
    case NODE_CAP_X: return 3;
    case NODE_CAP_RESID: return 4;
    default: return -1;
    }
}

static void show_row(void *arg, node_capture_kind_t kind, uint32_t layer, uint32_t row, uint32_t position,
                     const float *values)
{
    (void)row;
    node_watches_t *all = arg;
    const int k = kind_index(kind);
    for (uint32_t i = 0; i < all->n_specs; i++) {
        watch_t *watch = &all->watch[i];
        if ((watch->w.kinds & (uint32_t)kind) == 0 || position < watch->w.first || position >= watch->w.end ||
            watch->spoilt)
            continue;
        uint32_t *next = &watch->next[layer * N_KINDS + (uint32_t)k];
        if (position == *next) {
            watch->spec->ops->watch_row(watch->w.state, kind, layer, position, values);
            ++*next;
        } else if (position > *next || !all->again) {
            watch->spoilt = true;
        }
    }
}

/* First position that a kind in a layer still lacks; w.end when all were seen. */
static uint32_t next_row(const watch_t *watch, const node_model_info_t *model)
{
    uint32_t least = watch->w.end;
    for (uint32_t l = 0; l < model->n_layer; l++)
        for (uint32_t k = 0; k < N_KINDS; k++)
            least = VC_MIN(least, watch->next[l * N_KINDS + k]);
    return least;
}

static void stop(watch_t *watch)
{
    if (watch->w.state != NULL)
        watch->spec->ops->watch_free(watch->w.state);
    watch->w = (node_watch_t){0};
}

static vc_status_t start(node_watches_t *all, watch_t *watch, vc_err_t *err)
{
    const node_codec_ops_t *ops = watch->spec->ops;
    watch->spoilt = false;
    if (ops->watch == NULL || watch->first_block >= all->n_blocks)
        return VC_OK;
    vc_status_t st =
        ops->watch(watch->spec, all->model, watch->first_block * NODE_TILE, all->n_blocks * NODE_TILE, &watch->w, err);
    if (st != VC_OK)
        return st;
    for (uint32_t l = 0; l < all->model->n_layer; l++)
        for (uint32_t bit = 1; bit <= NODE_CAP_RESID; bit <<= 1) {
            int k = kind_index((node_capture_kind_t)bit);
            bool wanted = (watch->w.kinds & bit) != 0;
            if (wanted && k < 0)
                return vc_err_set(err, VC_ERR_INTERNAL, "compressor %s cannot watch values of kind %u", ops->name, bit);
            if (k >= 0)
                watch->next[l * N_KINDS + (uint32_t)k] = wanted ? watch->w.first : watch->w.end;
        }
    return VC_OK;
}

vc_status_t node_watches_begin(const node_spec_t *specs, uint32_t n_specs, const node_model_info_t *model,
                               const uint32_t *first_blocks, uint32_t n_blocks, node_watches_t **w_p, vc_err_t *err)
{
    node_watches_t *all = vc_calloc(1, sizeof(*all) + n_specs * sizeof(watch_t));
    if (all == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory to watch for %u compressors", n_specs);
    all->model = model;
    all->n_specs = n_specs;
    all->n_blocks = n_blocks;
    all->capture = (node_capture_t){.fn = show_row, .arg = all};
    vc_status_t st = VC_OK;
    for (uint32_t i = 0; st == VC_OK && i < n_specs; i++) {
        watch_t *watch = &all->watch[i];
        watch->spec = &specs[i];
        watch->first_block = first_blocks[i];
        watch->next = vc_calloc((size_t)model->n_layer * N_KINDS, sizeof(*watch->next));
        st = watch->next != NULL ? start(all, watch, err)
                                 : vc_err_set(err, VC_ERR_NOMEM, "no memory to watch %u layers", model->n_layer);
        all->capture.kinds |= watch->w.kinds;
    }
    if (st != VC_OK) {
        node_watches_free(all);
        return st;
    }
    *w_p = all;
    return VC_OK;
}

const node_capture_t *node_watches_capture(node_watches_t *w)
{
    return w != NULL && w->capture.kinds != 0 ? &w->capture : NULL;
}

/* Shows every watch its rows below end, on top of the pages of kv before the first row that one lacks. */
static vc_status_t catch_up(node_watches_t *all, const node_replay_t *passes, const node_kv_t *kv,
                            const uint32_t *tokens, uint32_t end, vc_err_t *err)
{
    uint32_t from = end;
    for (uint32_t i = 0; i < all->n_specs; i++) {
        watch_t *watch = &all->watch[i];
        if (watch->spoilt) {
            stop(watch);
            vc_status_t st = start(all, watch, err);
            if (st != VC_OK)
                return st;
        }
        if (watch->w.kinds != 0)
            from = VC_MIN(from, next_row(watch, all->model));
    }
    if (from >= end)
        return VC_OK;
    if (kv->body != NULL || kv->n_tokens < end)
        return vc_err_set(err, VC_ERR_INVALID, "rows up to %u can only be watched on full KV that covers them", end);
    node_kv_t copy;
    vc_status_t st = node_passes_share(kv, from / NODE_TILE, &copy, err);
    if (st != VC_OK)
        return st;
    all->again = true;
    st = node_passes_run(passes, &copy, tokens + copy.n_tokens, end - copy.n_tokens, &all->capture, err);
    all->again = false;
    node_kv_fini(&copy);
    return st;
}

vc_status_t node_watches_catch_up(node_watches_t *w, node_engine_t *engine, const node_kv_t *kv, const uint32_t *tokens,
                                  void (*enter)(void *arg), void (*leave)(void *arg), void *arg, vc_err_t *err)
{
    const node_replay_t passes = {.engine = engine, .enter = enter, .leave = leave, .arg = arg};
    return catch_up(w, &passes, kv, tokens, VC_MIN(kv->n_tokens, w->n_blocks * NODE_TILE), err);
}

vc_status_t node_watches_complete(node_watches_t *w, node_engine_t *engine, const node_kv_t *kv, const uint32_t *tokens,
                                  void (*enter)(void *arg), void (*leave)(void *arg), void *arg, vc_err_t *err)
{
    const node_replay_t passes = {.engine = engine, .enter = enter, .leave = leave, .arg = arg};
    return catch_up(w, &passes, kv, tokens, w->n_blocks * NODE_TILE, err);
}

void *node_watches_state(node_watches_t *w, uint32_t i) { return w->watch[i].w.state; }

void node_watches_free(node_watches_t *w)
{
    if (w == NULL)
        return;
    for (uint32_t i = 0; i < w->n_specs; i++) {
        if (w->watch[i].spec != NULL)
            stop(&w->watch[i]);
        vc_free(w->watch[i].next);
    }
    vc_free(w);
}
