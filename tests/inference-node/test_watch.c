/*
 * Watching: a method sees every row of its range once and in order, and ends with the same state whether it looked on
 * during prefill, afterwards, or half and half; whatever the cut of the passes and the number of threads.
 */
#include "codec_fixture.h"
#include "compress/expatt_int.h"
#include "compress/snapkv_int.h"
#include "compress/watch.h"
#include "model/engine.h"
#include "support/tiny_model.h"

enum { N_BLOCKS = 5, N_TOKENS = N_BLOCKS * NODE_TILE, N_LAYER_MAX = 8 };

/* ---- a method that only counts ---- */

typedef struct counter {
    uint32_t first, end, n_layer, kinds;
    uint32_t next[N_LAYER_MAX][8]; /* by bit of the kind */
    uint32_t hash;
    bool wrong;
} counter_t;

static uint32_t counter_kinds = NODE_CAP_X | NODE_CAP_RESID | NODE_CAP_Q | NODE_CAP_K | NODE_CAP_V;
static uint32_t counter_back; /* tokens before the new ones that it wants to see */
static uint32_t n_started, n_freed;

static vc_status_t counter_watch(const node_spec_t *spec, const node_model_info_t *model, uint32_t first_token,
                                 uint32_t end_token, node_watch_t *watch_p, vc_err_t *err)
{
    (void)spec, (void)err;
    counter_t *c = vc_calloc(1, sizeof(*c));
    cr_assert_not_null(c);
    cr_assert_leq(model->n_layer, N_LAYER_MAX);
    *c = (counter_t){.first = first_token - VC_MIN(first_token, counter_back), .end = end_token};
    c->n_layer = model->n_layer;
    c->kinds = counter_kinds;
    for (uint32_t l = 0; l < N_LAYER_MAX; l++)
        for (int k = 0; k < 8; k++)
            c->next[l][k] = c->first;
    n_started++;
    *watch_p = (node_watch_t){.kinds = counter_kinds, .first = c->first, .end = end_token, .state = c};
    return VC_OK;
}

static void counter_row(void *state, node_capture_kind_t kind, uint32_t layer, uint32_t position, const float *values)
{
    counter_t *c = state;
    uint32_t *next = &c->next[layer][__builtin_ctz(kind)];
    c->wrong |= (kind & c->kinds) == 0 || *next != position || position >= c->end;
    ++*next;
    c->hash ^= node_bits_from_f32(values[position % 16]) * (2 * position + 1) * (2 * layer + 3) * ((uint32_t)kind + 1);
}

static void counter_free(void *state)
{
    n_freed++;
    vc_free(state);
}

static const node_codec_ops_t counter_ops = {
    .name = "counter", .watch = counter_watch, .watch_row = counter_row, .watch_free = counter_free};
static const node_codec_ops_t blind_ops = {.name = "blind"};

static bool saw_all(const counter_t *c)
{
    bool all = !c->wrong;
    for (uint32_t l = 0; l < c->n_layer; l++)
        for (uint32_t bits = c->kinds; bits != 0; bits &= bits - 1)
            all &= c->next[l][__builtin_ctz(bits)] == c->end;
    return all;
}

/* ---- an engine ---- */

typedef struct run {
    gguf_image_t image;
    node_gguf_t *gguf;
    node_engine_t *engine;
    const node_model_info_t *model;
    node_kv_dims_t dims;
    node_kv_t kv;
    uint32_t tokens[N_TOKENS];
} run_t;

static vc_err_t err;
#define OK(call) cr_assert_eq(call, VC_OK, "%s", err.msg)

static void open_run(run_t *r, uint32_t n_threads)
{
    tiny_model_opts_t mopts;
    tiny_model_opts_default(&mopts);
    r->image = tiny_model_build(&mopts);
    OK(node_gguf_open_memory(r->image.data, r->image.bytes, &r->gguf, &err));
    node_engine_opts_t opts;
    node_engine_opts_default(&opts);
    opts.n_threads = n_threads;
    OK(node_engine_create(r->gguf, NULL, &opts, &r->engine, &err));
    r->model = node_engine_info(r->engine);
    node_engine_kv_dims(r->engine, &r->dims);
    OK(node_kv_init(&r->kv, &r->dims, NULL));
    for (uint32_t i = 0; i < N_TOKENS; i++)
        r->tokens[i] = TINY_ID_FIRST_BYTE + (i * 37 + i / 5) % 256;
    n_started = n_freed = 0;
}

static void close_run(run_t *r)
{
    node_kv_fini(&r->kv);
    node_engine_destroy(r->engine);
    node_gguf_close(r->gguf);
    gguf_image_free(&r->image);
}

/* Prefill up to `end` in passes of `cut`, watched by w (may be NULL). */
static void prefill(run_t *r, uint32_t end, uint32_t cut, node_watches_t *w)
{
    while (r->kv.n_tokens < end)
        OK(node_prefill(r->engine, &r->kv, r->tokens + r->kv.n_tokens, VC_MIN(cut, end - r->kv.n_tokens), NULL,
                        node_watches_capture(w), &err));
}

static node_watches_t *begin(const run_t *r, const node_spec_t *specs, uint32_t n, const uint32_t *first_blocks)
{
    node_watches_t *w = NULL;
    OK(node_watches_begin(specs, n, r->model, first_blocks, N_BLOCKS, &w, &err));
    return w;
}

static void complete(run_t *r, node_watches_t *w)
{
    OK(node_watches_complete(w, r->engine, &r->kv, r->tokens, NULL, NULL, NULL, &err));
}

/* ---- live ---- */

Test(watch, every_row_is_seen_once_and_in_order_during_prefill)
{
    static const struct {
        uint32_t n_threads, cut;
    } runs[] = {{1, N_TOKENS}, {1, 1}, {2, 63}, {2, 64}, {3, 100}};
    const node_spec_t spec = {.ops = &counter_ops};
    const uint32_t first = 0;
    uint32_t hash = 0;
    for (size_t i = 0; i < VC_ARRAY_LEN(runs); i++) {
        run_t r;
        open_run(&r, runs[i].n_threads);
        node_watches_t *w = begin(&r, &spec, 1, &first);
        prefill(&r, N_TOKENS, runs[i].cut, w);
        const counter_t *c = node_watches_state(w, 0);
        cr_assert(saw_all(c), "%u threads, passes of %u", runs[i].n_threads, runs[i].cut);
        hash = i == 0 ? c->hash : hash;
        cr_assert_eq(c->hash, hash, "%u threads, passes of %u", runs[i].n_threads, runs[i].cut);
        complete(&r, w);
        cr_assert_eq(n_started, 1, "nothing was missing");
        node_watches_free(w);
        cr_assert_eq(n_freed, 1);
        close_run(&r);
    }
}

static uint32_t hash_of_live(uint32_t first_block)
{
    const node_spec_t spec = {.ops = &counter_ops};
    run_t r;
    open_run(&r, 2);
    node_watches_t *w = begin(&r, &spec, 1, &first_block);
    prefill(&r, N_TOKENS, 200, w);
    const counter_t *c = node_watches_state(w, 0);
    uint32_t hash = c->hash;
    cr_assert(saw_all(c));
    node_watches_free(w);
    close_run(&r);
    return hash;
}

Test(watch, what_is_seen_afterwards_is_what_is_seen_live)
{
    const node_spec_t spec = {.ops = &counter_ops};
    for (uint32_t first = 0; first < N_BLOCKS; first += 2) {
        uint32_t want = hash_of_live(first);
        run_t r;
        open_run(&r, 2);
        prefill(&r, N_TOKENS, 128, NULL);
        node_watches_t *w = begin(&r, &spec, 1, &first);
        complete(&r, w);
        const counter_t *c = node_watches_state(w, 0);
        cr_assert(saw_all(c));
        cr_assert_eq(c->hash, want, "from block %u", first);
        cr_assert_eq(r.kv.n_tokens, N_TOKENS);
        node_watches_free(w);
        close_run(&r);
    }
}

/* ---- rows that came from a cache ---- */

Test(watch, a_session_whose_first_blocks_came_from_a_cache_catches_up_and_goes_on_live)
{
    const node_spec_t spec = {.ops = &counter_ops};
    const uint32_t first = 0;
    uint32_t want = hash_of_live(0);
    run_t r;
    open_run(&r, 2);
    prefill(&r, 3 * NODE_TILE, 128, NULL);
    node_watches_t *w = begin(&r, &spec, 1, &first);
    OK(node_watches_catch_up(w, r.engine, &r.kv, r.tokens, NULL, NULL, NULL, &err));
    prefill(&r, N_TOKENS, 50, w);
    complete(&r, w);
    const counter_t *c = node_watches_state(w, 0);
    cr_assert(saw_all(c));
    cr_assert_eq(c->hash, want);
    cr_assert_eq(n_started, 1);
    node_watches_free(w);
    close_run(&r);
}

Test(watch, rows_missed_in_between_start_the_method_over)
{
    const node_spec_t spec = {.ops = &counter_ops};
    const uint32_t first = 0;
    uint32_t want = hash_of_live(0);
    run_t r;
    open_run(&r, 2);
    node_watches_t *w = begin(&r, &spec, 1, &first);
    prefill(&r, 70, 64, w);
    prefill(&r, 150, 64, NULL);
    prefill(&r, N_TOKENS, 64, w);
    complete(&r, w);
    const counter_t *c = node_watches_state(w, 0);
    cr_assert(saw_all(c));
    cr_assert_eq(c->hash, want);
    cr_assert_eq(n_started, 2);
    node_watches_free(w);
    cr_assert_eq(n_freed, 2);
    close_run(&r);
}

Test(watch, rows_missing_at_the_end_are_added_to_what_was_seen)
{
    const node_spec_t spec = {.ops = &counter_ops};
    const uint32_t first = 0;
    uint32_t want = hash_of_live(0);
    run_t r;
    open_run(&r, 2);
    node_watches_t *w = begin(&r, &spec, 1, &first);
    prefill(&r, 100, 64, w); /* ends inside a block */
    prefill(&r, N_TOKENS, 64, NULL);
    complete(&r, w);
    const counter_t *c = node_watches_state(w, 0);
    cr_assert(saw_all(c));
    cr_assert_eq(c->hash, want);
    cr_assert_eq(n_started, 1);
    node_watches_free(w);
    close_run(&r);
}

/* A text that was rolled back and written anew is not the text that was seen. */
Test(watch, a_session_that_was_cut_back_is_watched_again)
{
    const node_spec_t spec = {.ops = &counter_ops};
    const uint32_t first = 0;
    uint32_t want = hash_of_live(0), other[20];
    run_t r;
    open_run(&r, 2);
    for (int i = 0; i < 20; i++)
        other[i] = TINY_ID_FIRST_BYTE + (uint32_t)i;
    node_watches_t *w = begin(&r, &spec, 1, &first);
    prefill(&r, 100, 64, w);
    OK(node_prefill(r.engine, &r.kv, other, 20, NULL, node_watches_capture(w), &err));
    cr_assert_eq(node_kv_truncate(&r.kv, 100), VC_OK);
    prefill(&r, N_TOKENS, 64, w);
    complete(&r, w);
    const counter_t *c = node_watches_state(w, 0);
    cr_assert(saw_all(c));
    cr_assert_eq(c->hash, want);
    node_watches_free(w);
    close_run(&r);
}

/* ---- several methods ---- */

static uint32_t n_entered, n_left;
static void enter(void *arg)
{
    cr_assert_eq(arg, &n_entered);
    cr_assert_eq(n_entered++, n_left);
}
static void leave(void *arg)
{
    (void)arg;
    n_left++;
}

Test(watch, methods_with_other_ranges_share_the_passes)
{
    const node_spec_t specs[] = {
        {.ops = &blind_ops}, fx_spec("snapkv:window=100"), {.ops = &counter_ops}, {.ops = &counter_ops}};
    const uint32_t first_blocks[] = {0, 1, 3, N_BLOCKS};
    run_t r;
    open_run(&r, 2);
    counter_back = 70;
    prefill(&r, N_TOKENS, 256, NULL);
    node_watches_t *w = begin(&r, specs, 4, first_blocks);
    n_entered = n_left = 0;
    OK(node_watches_complete(w, r.engine, &r.kv, r.tokens, enter, leave, &n_entered, &err));
    cr_assert_eq(n_entered, 1, "the missing rows fit one pass");
    cr_assert_eq(n_left, 1);
    cr_assert_null(node_watches_state(w, 0), "watches nothing");
    cr_assert_null(node_watches_state(w, 3), "has nothing to compress");
    const counter_t *c = node_watches_state(w, 2);
    cr_assert_eq(c->first, 3 * NODE_TILE - 70);
    cr_assert(saw_all(c));
    const node_snapkv_window_t *q = node_watches_state(w, 1);
    cr_assert_eq(q->first, N_TOKENS - 100);
    node_watches_free(w);
    counter_back = 0;
    close_run(&r);
}

Test(watch, nobody_watching_costs_no_capture)
{
    const node_spec_t specs[] = {{.ops = &blind_ops}, fx_spec("rot")};
    const uint32_t first_blocks[] = {0, 0};
    run_t r;
    open_run(&r, 1);
    node_watches_t *w = begin(&r, specs, 2, first_blocks);
    cr_assert_null(node_watches_capture(w));
    cr_assert_null(node_watches_capture(NULL));
    complete(&r, w); /* on an empty session: there is nothing to complete */
    node_watches_free(w);
    node_watches_free(NULL);
    close_run(&r);
}

Test(watch, values_that_no_row_has_cannot_be_watched)
{
    const node_spec_t spec = {.ops = &counter_ops};
    const uint32_t first = 0;
    run_t r;
    node_watches_t *w = NULL;
    open_run(&r, 1);
    uint32_t kinds = counter_kinds;
    counter_kinds = NODE_CAP_X | NODE_CAP_HIDDEN;
    cr_assert_eq(node_watches_begin(&spec, 1, r.model, &first, N_BLOCKS, &w, &err), VC_ERR_INTERNAL);
    counter_kinds = kinds;
    cr_assert_eq(n_freed, n_started);
    close_run(&r);
}

Test(watch, completing_needs_full_kv_that_covers_the_rows)
{
    const node_spec_t spec = {.ops = &counter_ops};
    const uint32_t first = 0;
    run_t r;
    open_run(&r, 1);
    node_watches_t *w = begin(&r, &spec, 1, &first);
    prefill(&r, N_TOKENS - 1, 256, NULL);
    cr_assert_eq(node_watches_complete(w, r.engine, &r.kv, r.tokens, NULL, NULL, NULL, &err), VC_ERR_INVALID);
    node_watches_free(w);
    close_run(&r);
}

/* ---- real methods ---- */

/* The state of every method that watches, as bytes; a method joins by its spec and where they are. */
typedef const void *(*state_fn)(const node_model_info_t *m, const void *state, size_t *bytes_p);

static const void *snapkv_state(const node_model_info_t *m, const void *state, size_t *bytes_p)
{
    const node_snapkv_window_t *q = state;
    *bytes_p = sizeof(*q) + m->n_layer * q->rows * q->row_floats * sizeof(float);
    return q;
}

static const void *expatt_state(const node_model_info_t *m, const void *state, size_t *bytes_p)
{
    (void)m;
    const node_expatt_stats_t *s = node_expatt_watched(state);
    *bytes_p = s->bytes;
    return s;
}

static const struct {
    const char *spec;
    state_fn bytes;
} methods[] = {{"snapkv:window=100", snapkv_state},
               {"expected_attention", expatt_state},
               {"expected_attention:sinks=100", expatt_state}};

Test(watch, state_bytes_do_not_depend_on_when_and_how_the_rows_were_seen)
{
    for (size_t i = 0; i < VC_ARRAY_LEN(methods); i++) {
        const node_spec_t spec = fx_spec(methods[i].spec);
        const uint32_t first = 0;
        void *base = NULL;
        size_t bytes = 0;
        for (uint32_t way = 0; way < 6; way++) {
            run_t r;
            open_run(&r, 1 + way % 3);
            if (way == 1 || way == 2) /* seen afterwards, or after a start from a cache */
                prefill(&r, way == 1 ? N_TOKENS : 2 * NODE_TILE, 128, NULL);
            node_watches_t *w = begin(&r, &spec, 1, &first);
            if (way == 2)
                OK(node_watches_catch_up(w, r.engine, &r.kv, r.tokens, NULL, NULL, NULL, &err));
            prefill(&r, N_TOKENS, 31 + 40 * way, w);
            complete(&r, w);
            size_t n;
            const void *state = methods[i].bytes(r.model, node_watches_state(w, 0), &n);
            if (base == NULL) {
                bytes = n;
                base = vc_memdup(state, n);
            }
            cr_assert_eq(n, bytes);
            cr_assert_eq(memcmp(state, base, n), 0, "%s, way %u", methods[i].spec, way);
            node_watches_free(w);
            close_run(&r);
        }
        vc_free(base);
    }
}

/* A method that dropped tokens before the prefill's own attention had seen them would show here. */
Test(watch, prefill_has_the_same_bits_whoever_watches_it)
{
    vc_digest_t digest[2];
    float *logits[2];
    uint32_t n_vocab = 0;
    for (int watched = 0; watched < 2; watched++) {
        const node_spec_t specs[] = {
            fx_spec("snapkv:window=100"), fx_spec("expected_attention"), {.ops = &counter_ops}};
        const uint32_t first_blocks[] = {0, 0, 0};
        run_t r;
        open_run(&r, 2);
        n_vocab = r.model->n_vocab;
        logits[watched] = vc_calloc(n_vocab, sizeof(float));
        node_watches_t *w = begin(&r, specs, 3, first_blocks);
        prefill(&r, N_TOKENS - 1, 100, watched ? w : NULL);
        OK(node_prefill(r.engine, &r.kv, r.tokens + N_TOKENS - 1, 1, logits[watched],
                        watched ? node_watches_capture(w) : NULL, &err));
        node_kv_digest(&r.kv, N_TOKENS, &digest[watched]);
        node_watches_free(w);
        close_run(&r);
    }
    cr_assert_eq(memcmp(&digest[0], &digest[1], sizeof(digest[0])), 0);
    cr_assert_eq(memcmp(logits[0], logits[1], n_vocab * sizeof(float)), 0);
    vc_free(logits[0]);
    vc_free(logits[1]);
}
