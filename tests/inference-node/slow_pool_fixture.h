/*
 * What the suites of the shared pool of the slow tier have in common: a small model, sessions of a pool, and beside
 * each a twin in memory.
 */
#ifndef SLOW_POOL_FIXTURE_H
#define SLOW_POOL_FIXTURE_H

#include "kv/slow_int.h"
#include "support/generation.h"
#include "support/tmpdir.h"

enum { N_LAYER = 6, N_MAX = 900, PASS_ROWS = 128, N_SESSIONS = 4, PAGES = 6, ROWS_MAX = 256 };

static vt_tmpdir_t dir;
static gen_model_t model;
static node_engine_t *engine;
static node_kv_dims_t dims;

static void setup(void)
{
    vt_tmpdir_create(&dir);
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    o.n_layer = N_LAYER;
    o.context = 2048;
    gen_model_open(&model, &o);
    engine = gen_engine(&model, 2, NODE_ISA_AUTO);
    node_engine_kv_dims(engine, &dims);
}

static void teardown(void)
{
    node_engine_destroy(engine);
    gen_model_close(&model);
    vt_tmpdir_remove(&dir);
}

static uint64_t part_bytes(void) { return node_slow_part_bytes(&dims); }

static node_slow_opts_t session_opts(node_slow_pool_t *pool)
{
    return (node_slow_opts_t){
        .ram_bytes = PAGES * part_bytes() * N_LAYER, .max_tokens = N_MAX, .pass_rows = PASS_ROWS, .pool = pool};
}

/* Room for `buffers` layers; n_streams sessions may stream at once. */
static node_slow_pool_opts_t pool_opts(uint32_t buffers, uint32_t n_streams)
{
    node_slow_opts_t so = session_opts(NULL);
    uint32_t spilled = node_slow_spilled_tokens(&dims, &so);
    return (node_slow_pool_opts_t){.dir = dir.path,
                                   .hold_bytes = buffers * part_bytes() * (spilled / NODE_TILE),
                                   .spilled_tokens = spilled,
                                   .n_streams = n_streams};
}

static node_slow_pool_t *open_pool(const node_slow_pool_opts_t *o)
{
    node_slow_pool_t *pool = NULL;
    GEN_OK(node_slow_pool_create(&dims, o, &pool, &gen_err));
    return pool;
}

static void open_session(node_slow_pool_t *pool, node_kv_t *kv)
{
    node_slow_t *slow = NULL;
    node_slow_opts_t o = session_opts(pool);
    GEN_OK(node_kv_init(kv, &dims, NULL));
    GEN_OK(node_slow_create(&dims, &o, &slow, &gen_err));
    GEN_OK(node_kv_set_slow(kv, slow));
}

/* ---- a session and its twin in memory ---- */

typedef struct {
    node_kv_t slow, memory;
    uint32_t text[N_MAX];
} pair_t;

static void open_pair(pair_t *p, node_slow_pool_t *pool, uint32_t seed)
{
    open_session(pool, &p->slow);
    GEN_OK(node_kv_init(&p->memory, &dims, NULL));
    gen_prompt(seed, p->text, N_MAX);
}

/* So many rows more of each session, in one pass over all; logits of the last row of each. */
static vc_status_t pass(pair_t *const *pairs, uint32_t n, const uint32_t *n_rows, bool slow, float *logits,
                        vc_err_t *err)
{
    node_row_t rows[ROWS_MAX];
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        node_kv_t *kv = slow ? &pairs[i]->slow : &pairs[i]->memory;
        for (uint32_t j = 0; j < n_rows[i]; j++)
            rows[at++] = (node_row_t){kv, pairs[i]->text[kv->n_tokens + j], j + 1 == n_rows[i]};
    }
    return node_forward(engine, rows, at, logits, NULL, err);
}

static void same_pass(pair_t *const *pairs, uint32_t n, const uint32_t *n_rows)
{
    static float a[N_SESSIONS][TINY_N_VOCAB], b[N_SESSIONS][TINY_N_VOCAB];
    GEN_OK(pass(pairs, n, n_rows, true, a[0], &gen_err));
    GEN_OK(pass(pairs, n, n_rows, false, b[0], &gen_err));
    cr_assert(memcmp(a, b, n * sizeof a[0]) == 0, "logits differ");
}

static void check_digests(pair_t *pairs, uint32_t n)
{
    for (pair_t *p = pairs; p < pairs + n; p++) {
        node_kv_t view;
        vc_digest_t a, b;
        GEN_OK(node_slow_view(&p->slow, &view, &gen_err));
        node_kv_digest(&view, view.n_tokens, &a);
        node_kv_digest(&p->memory, p->memory.n_tokens, &b);
        node_kv_fini(&view);
        cr_assert(gen_digest_equal(&a, &b), "KV differs");
    }
}

/* All sessions filled to n tokens. */
static void fill(pair_t *pairs, uint32_t n, uint32_t tokens)
{
    for (uint32_t i = 0; i < n; i++) {
        pair_t *p = &pairs[i];
        while (p->slow.n_tokens < tokens) {
            uint32_t rows = VC_MIN((uint32_t)PASS_ROWS, tokens - p->slow.n_tokens);
            same_pass(&p, 1, &rows);
        }
        cr_assert_gt(node_slow_n_spilled(p->slow.slow), 2);
    }
}

/* n sessions of the pool, filled to so many tokens. */
static pair_t *open_pairs(node_slow_pool_t *pool, uint32_t n, uint32_t seed, uint32_t tokens)
{
    pair_t *pairs = vc_calloc(n, sizeof *pairs);
    cr_assert_not_null(pairs);
    for (uint32_t i = 0; i < n; i++)
        open_pair(&pairs[i], pool, seed + i);
    fill(pairs, n, tokens);
    return pairs;
}

/* pool: theirs, when they are its last ones, else NULL. */
static void close_pairs(pair_t *pairs, uint32_t n, node_slow_pool_t *pool)
{
    for (uint32_t i = 0; i < n; i++) {
        node_kv_fini(&pairs[i].slow);
        node_kv_fini(&pairs[i].memory);
    }
    node_slow_pool_destroy(pool);
    vc_free(pairs);
}

#endif
