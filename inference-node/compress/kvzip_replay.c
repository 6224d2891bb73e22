/*
 * The replay behind KVzip: the text is given to the model again as its own answer, one chunk after the other, each on a
 * session that shares the pages of the full KV and begins at the position behind it. Logits are off.
 *
 * A pass of some rows runs on the whole team and leaves their queries (and the lengths of their attention inputs); then
 * the team scores layers and heads against the chunk's keys. Keys of the replay itself come from the session's pages,
 * so every key that is scored against has the same precision.
 */
#include <math.h>

#include "compress/kvzip_int.h"
#include "compress/passes.h"
#include "kernels/numerics.h"
#include "vc/mem.h"

#define PASS_ROWS 256u

typedef struct replay {
    const node_kvzip_ops_t *ops; /* chosen once: asking the CPU is slow under a hypervisor */
    const node_spec_t *spec;
    const node_compress_in_t *in;
    const node_replay_t *job;
    const node_model_info_t *m;      /* the engine's */
    uint32_t n_tokens, first, group; /* of the context; first scored token; query heads of a KV head */
    uint32_t n_scored;               /* tokens from first on */
    node_kv_t kv;                    /* session of the chunk at hand */
    uint32_t *ids;                   /* of the chunk's replay */
    uint32_t start, end, n_ids;      /* chunk */
    uint32_t first_row, n_rows;      /* pass, in rows of the replay */
    float *q;                        /* [n_layer][PASS_ROWS][n_head * head_dim] */
    float *log_norm;                 /* [n_layer][PASS_ROWS] */
    float *best;                     /* [n_layer * n_kv_head][group][columns] */
    float *norms;                    /* [n_layer * n_head][n_scored]; NULL: plain KVzip */
    float *z, *gram, *v;             /* scratch of each thread */
    size_t z_floats, gram_floats, v_floats;
    size_t best_floats;   /* of one KV head */
    float *scores;        /* [n_layer * n_kv_head][new rows] */
    vc_status_t *failed;  /* [n_layer * n_kv_head] */
    uint32_t done, total; /* rows of all replays */
} replay_t;

/* ---- KVzip+: how much a value weighs after the output projection ---- */

static void norms_of_layer(void *arg, uint32_t layer, uint32_t thread)
{
    replay_t *r = arg;
    const node_model_info_t *m = r->m;
    float *gram = r->gram + thread * r->gram_floats, *v = r->v + thread * r->v_floats;
    r->failed[layer * m->n_kv_head] = node_engine_output_gram(r->job->engine, layer, gram, NULL);
    if (r->failed[layer * m->n_kv_head] != VC_OK)
        return;
    for (uint32_t b = r->first / NODE_TILE; b < r->n_tokens / NODE_TILE; b++)
        for (uint32_t h = 0; h < m->n_head; h++) {
            if (h % r->group == 0)
                r->ops->widen(node_page_v(node_kv_page_at(r->in->kv, b), layer, h / r->group), v, r->v_floats);
            float *out = r->norms + ((size_t)layer * m->n_head + h) * r->n_scored;
            for (uint32_t t = VC_MAX(r->first, b * NODE_TILE); t < (b + 1) * NODE_TILE; t++)
                out[t - r->first] = r->ops->gram_norm(gram + (size_t)h * m->head_dim * m->head_dim, m->head_dim,
                                                      v + (size_t)(t % NODE_TILE) * m->head_dim);
        }
}

/* ---- one pass ---- */

static void take_row(void *arg, node_capture_kind_t kind, uint32_t layer, uint32_t row, uint32_t position,
                     const float *values)
{
    (void)position;
    replay_t *r = arg;
    const size_t at = (size_t)layer * PASS_ROWS + row, width = (size_t)r->m->n_head * r->m->head_dim;
    if (kind == NODE_CAP_Q)
        memcpy(r->q + at * width, values, width * sizeof(float));
    else if (kind == NODE_CAP_X) /* an input of nothing but zeros has no direction to weigh against */
        r->log_norm[at] = 0.5f * node_log(VC_MAX(r->ops->square_sum(values, r->m->d_model), 1e-30f));
}

typedef struct head_keys {
    const replay_t *r;
    uint32_t layer, head;
} head_keys_t;

static const void *keys_of(void *arg, bool of_replay, uint32_t block)
{
    const head_keys_t *k = arg;
    const uint32_t at = of_replay ? k->r->n_tokens / NODE_TILE + block : block;
    return node_page_k(node_kv_page_at(&k->r->kv, at), k->layer, k->head);
}

static void raise_head(void *arg, uint32_t index, uint32_t thread)
{
    replay_t *r = arg;
    const node_model_info_t *m = r->m;
    const uint32_t layer = index / m->n_kv_head, head = index % m->n_kv_head;
    head_keys_t keys = {r, layer, head};
    const node_kvzip_head_t in = {
        .dim = m->head_dim,
        .n_group = r->group,
        .n_sink = VC_MIN(NODE_KVZIP_SINK, r->start),
        .start = r->start,
        .end = r->end,
        .first_row = r->first_row,
        .n_rows = r->n_rows,
        .q = r->q + (size_t)layer * PASS_ROWS * m->n_head * m->head_dim + (size_t)head * r->group * m->head_dim,
        .q_stride = (size_t)m->n_head * m->head_dim,
        .log_norm = r->norms ? r->log_norm + (size_t)layer * PASS_ROWS : NULL,
        .keys = keys_of,
        .keys_arg = &keys,
        .f16 = true,
    };
    if (!node_kvzip_raise(r->ops, &in, r->z + thread * r->z_floats, r->best + index * r->best_floats))
        r->failed[index] = VC_ERR_INVALID;
}

static vc_status_t first_failure(const replay_t *r, vc_err_t *err)
{
    for (uint32_t i = 0; i < r->m->n_layer * r->m->n_kv_head; i++)
        if (r->failed[i] == VC_ERR_INVALID)
            return vc_err_set(err, VC_ERR_INVALID, "kvzip: an attention weight of layer %u, head %u is not a number",
                              i / r->m->n_kv_head, i % r->m->n_kv_head);
        else if (r->failed[i] != VC_OK)
            return vc_err_set(err, r->failed[i], "no memory for the output weights of layer %u", i / r->m->n_kv_head);
    return VC_OK;
}

static vc_status_t run_pass(replay_t *r, vc_err_t *err)
{
    const node_capture_t capture = {NODE_CAP_Q | (r->norms ? NODE_CAP_X : 0u), take_row, r};
    node_row_t rows[PASS_ROWS];
    for (uint32_t i = 0; i < r->n_rows; i++)
        rows[i] = (node_row_t){&r->kv, r->ids[r->first_row + i], false};
    if (r->job->enter)
        r->job->enter(r->job->arg);
    vc_status_t st = node_forward(r->job->engine, rows, r->n_rows, NULL, &capture, err);
    if (st == VC_OK)
        node_engine_each(r->job->engine, r->m->n_layer * r->m->n_kv_head, raise_head, r);
    if (r->job->leave)
        r->job->leave(r->job->arg);
    return st == VC_OK ? first_failure(r, err) : st;
}

/* ---- one chunk ---- */

static vc_status_t open_session(replay_t *r, vc_err_t *err)
{
    vc_status_t st = node_passes_share(r->in->kv, r->n_tokens / NODE_TILE, &r->kv, err);
    if (st != VC_OK)
        return st;
    if (r->kv.n_tokens != r->n_tokens) /* a replay over an empty cache gives scores too, and they mean nothing */
        return vc_err_set(err, VC_ERR_INVALID, "kvzip: the replay sees %u tokens of a context of %u", r->kv.n_tokens,
                          r->n_tokens);
    return VC_OK;
}

static void add_ids(replay_t *r, const uint32_t *ids, uint32_t n)
{
    if (n != 0)
        memcpy(r->ids + r->n_ids, ids, n * sizeof(*ids));
    r->n_ids += n;
}

/* Instruction, the end of the previous chunk, the turn to the assistant, then the chunk as its answer. */
static void fill_ids(replay_t *r)
{
    const node_replay_t *job = r->job;
    r->n_ids = 0;
    if (r->start < NODE_TILE) {
        add_ids(r, job->first, job->n_first);
    } else {
        add_ids(r, job->next, job->n_next);
        add_ids(r, r->in->tokens + r->start - NODE_KVZIP_TAIL, NODE_KVZIP_TAIL);
    }
    add_ids(r, job->suffix, job->n_suffix);
    add_ids(r, r->in->tokens + r->start, r->end - r->start);
}

static void keep_scores(replay_t *r)
{
    const node_model_info_t *m = r->m;
    const uint32_t new_first = r->in->first_block * NODE_TILE, n_new = r->n_tokens - new_first;
    for (uint32_t i = 0; i < m->n_layer * m->n_kv_head; i++) {
        const float *norms = r->norms ? r->norms + (size_t)i * r->group * r->n_scored + (r->start - r->first) : NULL;
        node_kvzip_finish(r->start, r->end, r->group, r->best + i * r->best_floats, norms, r->n_scored,
                          r->scores + (size_t)i * n_new + (r->start - new_first));
    }
}

static vc_status_t run_chunk(replay_t *r, vc_err_t *err)
{
    fill_ids(r);
    for (size_t i = 0; i < (size_t)r->m->n_layer * r->m->n_kv_head * r->best_floats; i++)
        r->best[i] = -INFINITY;
    vc_status_t st = open_session(r, err);
    const uint32_t most = VC_MIN(PASS_ROWS, node_engine_max_rows(r->job->engine));
    for (r->first_row = 0; st == VC_OK && r->first_row < r->n_ids; r->first_row += r->n_rows) {
        r->n_rows = VC_MIN(most, r->n_ids - r->first_row);
        st = run_pass(r, err);
        r->done += r->n_rows;
        if (st == VC_OK && r->job->progress)
            r->job->progress(r->job->arg, r->done, r->total);
    }
    if (st == VC_OK)
        keep_scores(r);
    node_kv_fini(&r->kv);
    return st;
}

/* ---- the whole ---- */

static uint32_t chunk_overhead(const node_replay_t *job)
{
    return VC_MAX(job->n_first, job->n_next + NODE_KVZIP_TAIL) + job->n_suffix;
}

/* Tokens of a chunk: what the spec says, or less where the replay would leave the model's context. */
static vc_status_t chunk_tokens(const replay_t *r, uint32_t *chunk_p, vc_err_t *err)
{
    const uint32_t n_new = r->n_tokens - r->in->first_block * NODE_TILE, chunk = VC_MIN(r->spec->chunk, n_new);
    const uint64_t before = (uint64_t)r->n_tokens + chunk_overhead(r->job);
    if (before + NODE_TILE > r->m->context)
        return vc_err_set(err, VC_ERR_UNSUPPORTED,
                          "kvzip repeats the text behind itself, and %u tokens leave no room for that in the model's "
                          "context of %u: register fewer than %u tokens",
                          r->n_tokens, r->m->context, r->n_tokens);
    *chunk_p = VC_MIN(chunk, (r->m->context - (uint32_t)before) / NODE_TILE * NODE_TILE);
    return VC_OK;
}

static vc_status_t check(const replay_t *r, vc_err_t *err)
{
    const node_model_info_t *m = r->m, *other = r->in->model;
    if (m->n_layer != other->n_layer || m->n_head != other->n_head || m->n_kv_head != other->n_kv_head ||
        m->head_dim != other->head_dim)
        return vc_err_set(err, VC_ERR_MISMATCH, "kvzip: the engine of the replay has another model than the KV");
    if (m->n_kv_head == 0 || m->n_head % m->n_kv_head != 0)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "%u query heads do not share %u KV heads evenly", m->n_head,
                          m->n_kv_head);
    return VC_OK;
}

static bool alloc_floats(float **p, size_t a, size_t b)
{
    size_t n, bytes;
    *p = vc_size_mul(a, b, &n) && vc_size_mul(n, sizeof(float), &bytes) ? vc_alloc_aligned(64, VC_MAX(bytes, 64u))
                                                                        : NULL;
    return *p != NULL;
}

static bool alloc_all(replay_t *r, uint32_t chunk)
{
    const node_model_info_t *m = r->m;
    const uint32_t n_kv = m->n_layer * m->n_kv_head, n_ids = chunk + chunk_overhead(r->job);
    const uint32_t n_threads = node_engine_n_threads(r->job->engine),
                   n_new = r->n_tokens - r->in->first_block * NODE_TILE;
    r->best_floats = (size_t)r->group * (chunk + NODE_TILE); /* a chunk may begin inside a block */
    r->z_floats = vc_align_up(node_kvzip_scratch(NODE_KVZIP_SINK, 0, chunk + NODE_TILE, n_ids), 16);
    r->gram_floats = vc_align_up((size_t)m->n_head * m->head_dim * m->head_dim, 16);
    r->v_floats = (size_t)m->head_dim * NODE_TILE;
    bool good = alloc_floats(&r->q, (size_t)m->n_layer * PASS_ROWS, (size_t)m->n_head * m->head_dim) &&
                alloc_floats(&r->log_norm, m->n_layer, PASS_ROWS) && alloc_floats(&r->best, n_kv, r->best_floats) &&
                alloc_floats(&r->z, n_threads, r->z_floats) && alloc_floats(&r->scores, n_kv, n_new);
    if (good && r->spec->plus)
        good = alloc_floats(&r->norms, (size_t)m->n_layer * m->n_head, r->n_scored) &&
               alloc_floats(&r->gram, n_threads, r->gram_floats) && alloc_floats(&r->v, n_threads, r->v_floats);
    r->ids = vc_calloc(n_ids, sizeof(*r->ids));
    r->failed = vc_calloc(n_kv, sizeof(*r->failed));
    if (!good || r->ids == NULL || r->failed == NULL)
        return false;
    memset(r->scores, 0, (size_t)n_kv * n_new * sizeof(float));
    return true;
}

static void free_all(replay_t *r)
{
    float *all[] = {r->q, r->log_norm, r->best, r->norms, r->z, r->gram, r->v, r->scores};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++)
        vc_free(all[i]);
    vc_free(r->ids);
    vc_free(r->failed);
}

static vc_status_t make_norms(replay_t *r, vc_err_t *err)
{
    if (r->job->enter)
        r->job->enter(r->job->arg);
    node_engine_each(r->job->engine, r->m->n_layer, norms_of_layer, r);
    if (r->job->leave)
        r->job->leave(r->job->arg);
    return first_failure(r, err);
}

/* Chunks begin where the new rows do and are whole blocks long, but the first one leaves out the sinks. */
static vc_status_t run_chunks(replay_t *r, uint32_t chunk, vc_err_t *err)
{
    const uint32_t new_first = r->in->first_block * NODE_TILE, n_chunks = (r->n_tokens - new_first + chunk - 1) / chunk;
    r->total = r->n_scored + n_chunks * (r->job->n_next + NODE_KVZIP_TAIL + r->job->n_suffix);
    if (r->first < NODE_TILE)
        r->total = r->total + r->job->n_first - r->job->n_next - NODE_KVZIP_TAIL;
    vc_status_t st = VC_OK;
    for (uint32_t at = new_first; st == VC_OK && at < r->n_tokens; at += chunk) {
        r->start = VC_MAX(at, r->first);
        r->end = VC_MIN(at + chunk, r->n_tokens);
        st = run_chunk(r, err);
    }
    return st;
}

vc_status_t node_kvzip_replay(const node_spec_t *spec, const node_compress_in_t *in, float **scores_p, vc_err_t *err)
{
    replay_t r = {.ops = node_kvzip_ops_best(),
                  .spec = spec,
                  .in = in,
                  .job = in->replay,
                  .m = node_engine_info(in->replay->engine),
                  .n_tokens = in->n_blocks * NODE_TILE};
    uint32_t chunk = 0;
    vc_status_t st = check(&r, err);
    if (st == VC_OK)
        st = chunk_tokens(&r, &chunk, err);
    if (st != VC_OK)
        return st;
    r.group = r.m->n_head / r.m->n_kv_head;
    r.first = VC_MAX(in->first_block * NODE_TILE, NODE_KVZIP_SINK);
    r.n_scored = r.n_tokens - r.first;
    if (!alloc_all(&r, chunk))
        st = vc_err_set(err, VC_ERR_NOMEM, "no memory for a replay of %u tokens", r.n_tokens);
    if (st == VC_OK && r.norms)
        st = make_norms(&r, err);
    if (st == VC_OK)
        st = run_chunks(&r, chunk, err);
    if (st == VC_OK) {
        *scores_p = r.scores;
        r.scores = NULL;
    }
    free_all(&r);
    return st;
}
