/*
 * The requests of a group in one batch, added at any time in any order, some of them cancelled on the way: each gets
 * what plain decoding alone gives it.
 */
#include <string.h>

#include "identity_parts.h"
#include "role/local_body.h"

static vc_err_t err;
#define OK(call) BENCH_OK(call, err)

typedef struct {
    const identity_group_t *g;
    identity_rng_t rng;
    node_engine_t *engine;
    node_batch_opts_t opts;
    char how[400];
    uint32_t n, order[IDENTITY_GROUP]; /* members that take part */
    uint64_t ids[IDENTITY_GROUP];      /* [member] while it is there */
    uint32_t n_open;
    bool has_tier;
    void (*different)(void *arg, const identity_member_t *m, const char *how, const char *words);
    void *arg;
    identity_result_t *sum;
} batch_t;

static const char *const specs[] = {"none",
                                    "noise:eps=0.3,seed=5",
                                    "snapkv:keep=0.5,window=32",
                                    "kvzip:keep=0.5+rot:bits=4,group=16",
                                    "kivi:bits=2,group=16,residual=64",
                                    "rot:bits=3,group=16",
                                    "rot:bits=8,group=16"};

/* Any method at any time, or no copy. */
static vc_status_t compress(void *arg, const node_kv_t *full, const uint32_t *tokens, uint32_t n_tokens,
                            node_body_t **body_p, vc_err_t *error)
{
    batch_t *b = arg;
    node_spec_t spec;
    const node_replay_t replay = node_replay_of(&b->g->model->replay_ids, b->engine);
    *body_p = NULL;
    if (identity_chance(&b->rng, 150))
        return VC_OK;
    vc_status_t st = node_spec_parse(specs[identity_below(&b->rng, VC_ARRAY_LEN(specs))], &spec, error);
    if (st == VC_OK)
        st = node_local_body_replay(&replay, &spec, full, tokens, n_tokens / NODE_TILE, body_p, error);
    return st;
}

static void ended(void *arg, const node_batch_end_t *end)
{
    batch_t *b = arg;
    const identity_member_t *m = end->user;
    identity_result_t got = {0};
    vc_err_t error = {0};
    char words[200] = "";
    b->n_open--;
    for (uint32_t i = 0; i < b->g->n; i++)
        if (b->g->members[i] == m)
            b->ids[i] = 0;
    if (end->status == VC_ERR_CANCELLED)
        return;
    vc_status_t st = end->status == VC_OK ? identity_collect(end->v, &got, &error) : end->status;
    if (st == VC_OK)
        identity_compare(&m->base, &got, words, sizeof words);
    else
        snprintf(words, sizeof words, "%s: %.150s", vc_status_name(st), end->error[0] ? end->error : error.msg);
    b->sum->n++;
    b->sum->proposed += got.proposed;
    b->sum->accepted += got.accepted;
    char length[32];
    snprintf(length, sizeof length, "%u", b->opts.draft_length);
    identity_count_value("in a batch of", b->how, &got);
    identity_count_value("its full KV", got.spilled ? "in files" : "in memory", &got);
    if (got.spilled)
        identity_count_value("its transfers", b->opts.delay_seed ? "held back at random" : "as they come", &got);
    identity_count_value("its draft length", b->opts.draft_length == NODE_DRAFT_AUTO ? "automatic" : length, &got);
    if (words[0])
        b->different(b->arg, m, b->how, words);
}

static void draw(batch_t *b)
{
    static const uint32_t lengths[] = {0, 1, 3, 8, 30, NODE_DRAFT_AUTO, NODE_DRAFT_AUTO};
    identity_rng_t *r = &b->rng;
    const identity_group_t *g = b->g;
    b->n = 1 + identity_below(r, g->n);
    for (uint32_t i = 0; i < g->n; i++)
        b->order[i] = i;
    for (uint32_t i = 0; i < g->n; i++) {
        uint32_t k = i + identity_below(r, g->n - i), t = b->order[i];
        b->order[i] = b->order[k];
        b->order[k] = t;
    }
    node_isa_t isa = identity_chance(r, 500) ? NODE_ISA_AVX2 : NODE_ISA_AUTO;
    b->engine = identity_engine(g->model, 1 + identity_below(r, 2), node_isa_available(isa) ? isa : NODE_ISA_AUTO);
    node_batch_opts_default(&b->opts);
    b->opts.engine = b->engine;
    b->opts.max_requests = IDENTITY_GROUP;
    b->opts.max_running = 1 + identity_below(r, IDENTITY_GROUP);
    b->opts.draft_length = lengths[identity_below(r, VC_ARRAY_LEN(lengths))];
    b->opts.max_draft = 1 + identity_below(r, 40);
    b->opts.prompt_rows = 1 + identity_below(r, 128);
    b->opts.window = b->opts.window / 2 + identity_below(r, b->opts.window + 1);
    b->opts.lock_step = identity_chance(r, 300);
    b->opts.compress = compress;
    b->opts.ended = ended;
    b->opts.arg = b;
}

/* Little memory for full KV: the rest in files that share buffers. */
static void draw_tier(batch_t *b)
{
    identity_rng_t *r = &b->rng;
    const identity_group_t *g = b->g;
    node_kv_dims_t d;
    uint32_t most = 0, rows = node_engine_max_rows(b->engine);
    node_engine_kv_dims(b->engine, &d);
    for (uint32_t i = 0; i < g->n; i++)
        most = VC_MAX(most, g->members[i]->q.n_prompt + g->members[i]->q.max_tokens);
    uint64_t page = (uint64_t)d.n_layer * d.n_kv_head * 2 * NODE_TILE * d.head_dim * sizeof(uint16_t);
    uint64_t least = rows / NODE_TILE + 4, n = (most + b->opts.max_draft) / NODE_TILE + 1;
    if (d.n_layer < 3 || n <= least || identity_chance(r, 300))
        return;
    uint64_t pages = least + (identity_chance(r, 500) ? 0 : identity_below(r, (uint32_t)(n - least)));
    b->opts.kv_ram = page * pages * b->opts.max_running;
    b->opts.kv_dir = bench_tmpdir();
    b->opts.max_tokens = most + 64;
    b->opts.link_rate = identity_chance(r, 500) ? 0 : 1e6 * identity_log(r, 1, 4000);
    b->opts.io = identity_chance(r, 300) ? NODE_SLOW_IO_THREADS : NODE_SLOW_IO_AUTO;
    b->opts.delay_seed = identity_chance(r, 600) ? 1 + identity_below(r, 1u << 30) : 0;
    b->has_tier = true;
}

static void add(batch_t *b, node_batch_t *batch, uint32_t i)
{
    identity_member_t *m = b->g->members[i];
    const node_kv_t *kv = node_verifier_kv(m->plain);
    uint32_t n_blocks = m->q.n_prompt / NODE_TILE;
    node_page_t *pages[IDENTITY_CONTEXT / NODE_TILE]; /* copies: shared ones would stay in memory */
    node_batch_request_t r = {.prompt = m->q.prompt, .n_prompt = m->q.n_prompt, .pages = pages, .user = m};
    identity_verifier_opts(b->g->model, &m->q, b->engine, &r.verifier);
    if (identity_chance(&b->rng, 500))
        r.n_pages = identity_below(&b->rng, n_blocks + 1);
    for (uint32_t k = 0; k < r.n_pages; k++)
        if ((pages[k] = node_page_copy(kv->pages[k], NODE_TILE)) == NULL)
            bench_fail("out of memory");
    OK(node_batch_add(batch, &r, &b->ids[i], &err));
    for (uint32_t k = 0; k < r.n_pages; k++)
        node_page_put(pages[k]);
    b->n_open++;
}

void identity_batch(const identity_group_t *g, uint32_t index,
                    void (*different)(void *arg, const identity_member_t *m, const char *how, const char *words),
                    void *arg, identity_result_t *sum)
{
    batch_t b = {.g = g,
                 .rng = identity_rng(g->seed, g->members[g->n - 1]->q.index, 4000 + index),
                 .different = different,
                 .arg = arg,
                 .sum = sum};
    node_batch_t *batch;
    bool busy = true;
    draw(&b);
    draw_tier(&b);
    snprintf(b.how, sizeof b.how, "%u%s", b.n, b.opts.lock_step ? ", in lock-step" : "");
    OK(node_batch_create(&b.opts, &batch, &err));
    for (uint32_t added = 0; added < b.n || busy;) {
        while (added < b.n && (!busy || b.n_open == 0 || identity_chance(&b.rng, 250)))
            add(&b, batch, b.order[added++]);
        uint32_t victim = identity_below(&b.rng, g->n);
        if (identity_chance(&b.rng, 4) && b.ids[victim])
            OK(node_batch_cancel(batch, b.ids[victim]));
        OK(node_batch_step(batch, &busy, &err));
    }
    node_batch_destroy(batch);
}
