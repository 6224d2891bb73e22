/* Lifecycle of the engine: weights, RoPE frequencies, identity, and all scratch memory of a pass in one block. */
#include <stdio.h>
#include <string.h>

#include "model/engine_int.h"
#include "vc/mem.h"

void node_engine_opts_default(node_engine_opts_t *opts)
{
    *opts = (node_engine_opts_t){.n_threads = 2, .isa = NODE_ISA_AUTO, .max_rows = 256};
}

static const node_ops_t *ops_of(node_isa_t isa)
{
    switch (isa) {
    case NODE_ISA_SCALAR: return node_ops_get(NODE_OPS_SCALAR);
    case NODE_ISA_AVX2_PLAIN: return node_ops_plain(NODE_OPS_AVX2);
    case NODE_ISA_AVX2: return node_ops_get(NODE_OPS_AVX2);
    case NODE_ISA_AVX512_PLAIN: return node_ops_plain(NODE_OPS_AVX512);
    case NODE_ISA_AVX512: return node_ops_get(NODE_OPS_AVX512);
    default: return NULL;
    }
}

static node_isa_t best_isa(void)
{
    node_isa_t isa = NODE_ISA_AVX512;
    while (ops_of(isa) == NULL)
        isa--;
    return isa;
}

bool node_isa_available(node_isa_t isa) { return isa == NODE_ISA_AUTO || ops_of(isa) != NULL; }

const char *node_isa_name(node_isa_t isa)
{
    static const char *const names[] = {"auto", "scalar", "avx2-plain", "avx2", "avx512-plain", "avx512"};
    return (size_t)isa < VC_ARRAY_LEN(names) ? names[isa] : "unknown";
}

bool node_isa_parse(const char *name, node_isa_t *isa_p)
{
    for (node_isa_t isa = NODE_ISA_AUTO; isa <= NODE_ISA_AVX512; isa++)
        if (strcmp(name, node_isa_name(isa)) == 0) {
            *isa_p = isa;
            return true;
        }
    return false;
}

/* ---- scratch ---- */

/* Cuts one block into aligned parts; with base NULL it only adds up the size. */
typedef struct {
    uint8_t *base;
    size_t at;
    bool overflow;
} cutter_t;

static void *cut(cutter_t *c, size_t n, size_t size)
{
    size_t bytes, at = c->at;
    if (!vc_size_mul(n, size, &bytes) || bytes > SIZE_MAX / 4 || !vc_size_add(at, vc_align_up(bytes, 64), &c->at))
        c->overflow = true;
    return c->base != NULL ? c->base + at : NULL;
}

/* Rows padded to 16 floats; a stride of whole pages would put all rows into the same cache sets. */
static size_t stride_of(uint32_t n)
{
    size_t stride = vc_align_up(n, 32);
    return stride % 1024 == 0 ? stride + 32 : stride;
}

static node_acts_t cut_acts(cutter_t *c, uint32_t n_in, uint32_t rows)
{
    node_acts_t a = {.n_in = n_in, .stride = stride_of(n_in), .group_stride = vc_align_up(n_in / NODE_GROUP + 1, 16)};
    if (a.stride % 2048 == 0)
        a.stride += 32;
    a.x = cut(c, rows * a.stride, sizeof *a.x);
    int16_t *q = cut(c, rows * a.stride, sizeof *q);
    a.q = n_in % NODE_GROUP == 0 ? q : NULL;
    a.scale = cut(c, rows * a.group_stride, sizeof *a.scale);
    a.sum = cut(c, rows * a.group_stride, sizeof *a.sum);
    a.isum = cut(c, rows * a.group_stride, sizeof *a.isum);
    return a;
}

static node_states_t cut_states(cutter_t *c, uint32_t head_dim)
{
    node_states_t s;
    s.m = cut(c, NODE_QUERY_MAX, sizeof *s.m);
    s.l = cut(c, NODE_QUERY_MAX, sizeof *s.l);
    s.o = cut(c, (size_t)NODE_QUERY_MAX * head_dim, sizeof *s.o);
    return s;
}

static void cut_rows(node_engine_t *e, cutter_t *c)
{
    const node_model_info_t *i = &e->info;
    size_t n = e->max_rows;
    e->model_stride = stride_of(i->d_model);
    e->q_stride = stride_of(i->n_head * i->head_dim);
    e->kv_stride = stride_of(i->n_kv_head * i->head_dim);
    e->ffn_stride = stride_of(i->d_ffn);
    e->rope_stride = vc_align_up(i->rope_dims / 2, 16);
    e->x = cut(c, n * e->model_stride, sizeof(float));
    e->y = cut(c, n * e->model_stride, sizeof(float));
    e->act_model = cut_acts(c, i->d_model, e->max_rows);
    e->act_attn = cut_acts(c, i->n_head * i->head_dim, e->max_rows);
    e->act_ffn = cut_acts(c, i->d_ffn, e->max_rows);
    e->q = cut(c, n * e->q_stride, sizeof(float));
    e->k = cut(c, n * e->kv_stride, sizeof(float));
    e->v = cut(c, n * e->kv_stride, sizeof(float));
    e->gate = cut(c, n * e->ffn_stride, sizeof(float));
    e->up = cut(c, n * e->ffn_stride, sizeof(float));
    e->cos = cut(c, n * e->rope_stride, sizeof(float));
    e->sin = cut(c, n * e->rope_stride, sizeof(float));
    e->want = cut(c, n, sizeof *e->want);
    e->blocks = cut(c, n, sizeof *e->blocks);
}

static void cut_attention(node_engine_t *e, cutter_t *c)
{
    uint32_t d = e->info.head_dim;
    e->threads = cut(c, e->n_threads, sizeof *e->threads);
    e->splits = cut(c, NODE_SPLIT_BLOCKS * NODE_SPLIT_WINDOW, sizeof *e->splits);
    e->totals = cut(c, NODE_SPLIT_BLOCKS, sizeof *e->totals);
    for (uint32_t t = 0; t < e->n_threads; t++) {
        node_thread_scratch_t s;
        s.q = cut(c, (size_t)NODE_QUERY_MAX * d, sizeof(float));
        s.p = cut(c, (size_t)NODE_QUERY_MAX * NODE_TILE, sizeof(float));
        s.coded = cut(c, NODE_QUERY_MAX, sizeof *s.coded);
        s.split = cut_states(c, d);
        s.total = cut_states(c, d);
        s.x = cut(c, NODE_FEW_ROWS * e->model_stride, sizeof(float));
        s.normed = cut_acts(c, e->info.d_model, NODE_FEW_ROWS);
        s.attn = cut_acts(c, e->act_attn.n_in, NODE_FEW_ROWS);
        s.attn.x = e->act_attn.x;
        if (c->base != NULL)
            e->threads[t] = s;
    }
    for (uint32_t i = 0; i < NODE_SPLIT_BLOCKS * (NODE_SPLIT_WINDOW + 1); i++) {
        node_states_t s = cut_states(c, d);
        if (c->base != NULL)
            *(i < NODE_SPLIT_BLOCKS ? &e->totals[i] : &e->splits[i - NODE_SPLIT_BLOCKS]) = s;
    }
}

static vc_status_t make_scratch(node_engine_t *e, vc_err_t *err)
{
    cutter_t c = {0};
    cut_rows(e, &c);
    cut_attention(e, &c);
    e->scratch_bytes = c.at;
    e->scratch = c.overflow ? NULL : vc_alloc_aligned(4096, c.at);
    if (e->scratch == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for passes of %u rows: %zu bytes", e->max_rows, c.at);
    memset(e->scratch, 0, c.at);
    c = (cutter_t){.base = e->scratch};
    cut_rows(e, &c);
    cut_attention(e, &c);
    return VC_OK;
}

static bool layers_quantised(const node_weights_t *w)
{
    for (uint32_t l = 0; l < w->n_layer; l++) {
        const node_layer_t *y = &w->layers[l];
        const node_matrix_t *const all[] = {&y->q, &y->k, &y->v, &y->o, &y->gate, &y->up, &y->down};
        for (size_t i = 0; i < VC_ARRAY_LEN(all); i++)
            if (!node_matrix_quantised(all[i]->type))
                return false;
    }
    return true;
}

/* ---- identity ---- */

static vc_status_t make_info(node_engine_t *e, node_gguf_t *gguf, const node_tokenizer_t *tok, vc_err_t *err)
{
    const node_weights_t *w = &e->w;
    node_model_info_t *i = &e->info;
    memcpy(i->arch, w->arch, sizeof i->arch);
    i->n_layer = w->n_layer;
    i->n_head = w->n_head;
    i->n_kv_head = w->n_kv_head;
    i->head_dim = w->head_dim;
    i->d_model = w->d_model;
    i->d_ffn = w->d_ffn;
    i->n_vocab = w->n_vocab;
    i->context = w->context;
    i->rope_dims = w->rope.dims;
    i->rms_eps = w->rms_eps;
    i->rope_theta = w->rope.theta;
    i->weight_bytes = w->bytes;
    e->inv_freq = vc_calloc(w->rope.dims / 2, sizeof *e->inv_freq);
    if (e->inv_freq == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for RoPE frequencies");
    node_rope_inv_freq(&w->rope, e->inv_freq, &i->rope_mscale);
    i->rope_inv_freq = e->inv_freq;

    vc_keyspace_t *ks = &i->keyspace;
    node_gguf_digest(gguf, &ks->model);
    if (tok != NULL)
        node_tokenizer_digest(tok, &ks->tokenizer);
    ks->shape = (vc_kv_shape_t){w->n_layer, w->n_kv_head, w->head_dim, NODE_TILE, VC_DTYPE_F16};
    ks->layout_version = VC_LAYOUT_VERSION;
    node_rope_text(&w->rope, ks->rope, sizeof ks->rope);
    vc_status_t st = vc_kv_shape_check(&ks->shape, err);
    return st == VC_OK ? vc_keyspace_id(ks, &i->keyspace_id, err) : st;
}

/* ---- lifecycle ---- */

static vc_status_t engine_init(node_engine_t *e, node_gguf_t *gguf, const node_tokenizer_t *tok, vc_err_t *err)
{
    vc_status_t st = node_weights_load(&e->w, gguf, err);
    if (st == VC_OK && tok != NULL && node_tokenizer_n_vocab(tok) > e->w.n_vocab)
        st = vc_err_set(err, VC_ERR_INVALID, "the tokenizer has %u tokens, the model only %u",
                        node_tokenizer_n_vocab(tok), e->w.n_vocab);
    if (st == VC_OK)
        st = make_info(e, gguf, tok, err);
    if (st == VC_OK)
        st = make_scratch(e, err);
    e->few = layers_quantised(&e->w);
    if (st == VC_OK)
        st = node_team_create(e->n_threads, &e->team, err);
    return st;
}

vc_status_t node_engine_create(node_gguf_t *gguf, const node_tokenizer_t *tok, const node_engine_opts_t *opts,
                               node_engine_t **eng_p, vc_err_t *err)
{
    node_engine_opts_t o;
    node_engine_opts_default(&o);
    if (opts != NULL)
        o = *opts;
    if (o.n_threads < 1 || o.n_threads > NODE_TEAM_MAX)
        return vc_err_set(err, VC_ERR_RANGE, "thread count %u is not in 1..%u", o.n_threads, NODE_TEAM_MAX);
    if (o.max_rows < 1 || o.max_rows > 65536)
        return vc_err_set(err, VC_ERR_RANGE, "rows per pass %u is not in 1..65536", o.max_rows);
    node_isa_t isa = o.isa == NODE_ISA_AUTO ? best_isa() : o.isa;
    if (ops_of(isa) == NULL)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "this CPU has no %s", node_isa_name(isa));
    node_engine_t *e = vc_calloc(1, sizeof *e);
    if (e == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the engine");
    e->isa = isa;
    e->ops = ops_of(isa);
    e->n_threads = o.n_threads;
    e->max_rows = o.max_rows;
    vc_status_t st = engine_init(e, gguf, tok, err);
    if (st != VC_OK) {
        node_engine_destroy(e);
        return st;
    }
    *eng_p = e;
    return VC_OK;
}

void node_engine_destroy(node_engine_t *eng)
{
    if (eng == NULL)
        return;
    node_team_destroy(eng->team);
    vc_free(eng->scratch);
    vc_free(eng->inv_freq);
    node_weights_free(&eng->w);
    vc_free(eng);
}

const node_model_info_t *node_engine_info(const node_engine_t *eng) { return &eng->info; }
node_isa_t node_engine_isa(const node_engine_t *eng) { return eng->isa; }

void node_engine_kv_dims(const node_engine_t *eng, node_kv_dims_t *dims_p)
{
    *dims_p = (node_kv_dims_t){eng->info.n_layer, eng->info.n_kv_head, eng->info.head_dim};
}

uint64_t node_engine_saturations(const node_engine_t *eng)
{
    return atomic_load_explicit(&((node_engine_t *)eng)->saturations, memory_order_relaxed);
}

void node_engine_between(node_engine_t *eng, void (*fn)(void *arg), void *arg)
{
    eng->between = fn;
    eng->between_arg = arg;
}

uint32_t node_engine_n_threads(const node_engine_t *eng) { return eng->n_threads; }
uint32_t node_engine_max_rows(const node_engine_t *eng) { return eng->max_rows; }

typedef struct {
    node_team_t *team;
    uint32_t n;
    void (*fn)(void *arg, uint32_t item, uint32_t thread);
    void *arg;
} each_t;

static void each_worker(void *arg, uint32_t thread)
{
    each_t *each = arg;
    uint32_t item;
    while (node_team_next(each->team, each->n, &item))
        each->fn(each->arg, item, thread);
    node_team_barrier(each->team);
}

void node_engine_each(node_engine_t *eng, uint32_t n, void (*fn)(void *arg, uint32_t item, uint32_t thread), void *arg)
{
    each_t each = {eng->team, n, fn, arg};
    node_team_run(eng->team, each_worker, &each);
}
