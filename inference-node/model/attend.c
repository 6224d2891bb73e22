/*
 * Attention of one layer. A block of rows and one KV head are `rows x group` queries that share every tile. Tiles are
 * walked in ascending position, four to a split; each split starts a fresh (m, l, o), and splits are folded in
 * ascending order. Who computes a split, and when, leaves no trace: with many blocks a thread takes whole blocks, with
 * few the splits of one block are spread over the team, and both fold the same states in the same order.
 */
#include <string.h>

#include "model/engine_int.h"
#include "vc/mem.h"

_Static_assert(NODE_ATTN_TILE == NODE_TILE, "kernels and pages agree on the tile");

/* log2(e): scores are exponents of two */
#define LOG2E 1.44269504088896341f
/* More rows would leave one thread with a block that the others wait for. */
#define BLOCK_ROWS 10u

typedef struct {
    const node_row_block_t *block;
    uint32_t layer, head;     /* KV head */
    uint32_t n_body, n_tiles; /* tiles of the body, tiles in all up to the block's last row */
    bool once;                /* no other block walks over these tiles */
} walk_t;

uint32_t node_attend_block_rows(const node_engine_t *eng, uint32_t run)
{
    uint32_t group = eng->info.n_head / eng->info.n_kv_head, most = VC_MIN(NODE_QUERY_MAX / group, BLOCK_ROWS);
    uint32_t blocks = (run + most - 1) / most;
    return (run + blocks - 1) / blocks;
}

static walk_t walk_of(const node_pass_t *pass, const node_row_block_t *b, uint32_t layer, uint32_t head)
{
    const node_engine_t *eng = pass->eng;
    const node_row_block_t *end = eng->blocks + pass->n_blocks;
    walk_t w = {.block = b, .layer = layer, .head = head};
    w.once = (b == eng->blocks || b[-1].kv != b->kv) && (b + 1 == end || b[1].kv != b->kv);
    if (b->kv->body != NULL)
        w.n_body = b->kv->body->n_tiles[layer * eng->info.n_kv_head + head];
    uint32_t last = b->position + b->n_rows - 1;
    w.n_tiles = w.n_body + (last / NODE_TILE - b->kv->first_block) + 1;
    return w;
}

static bool form_is_rotated(const node_coded_form_t *f) { return f->bits != 0 && f->key_tokens == 0; }

/* The KV heads' queries of a block, scaled, as [row][head of the group][dim]; for rotated coded tiles in 8 bits as
 * well. fresh: RoPE comes first. */
static void gather_queries(const node_engine_t *eng, const walk_t *w, bool fresh, node_thread_scratch_t *t)
{
    uint32_t d = eng->info.head_dim, group = eng->info.n_head / eng->info.n_kv_head;
    float s = LOG2E / __builtin_sqrtf((float)d);
    for (uint32_t r = 0; r < w->block->n_rows; r++) {
        uint32_t row = w->block->first + r;
        const float *from = eng->q + row * eng->q_stride + (size_t)w->head * group * d;
        float *q = t->q + (size_t)r * group * d;
        if (fresh) {
            memcpy(q, from, (size_t)group * d * sizeof *q);
            node_rotate_heads(eng, row, q, group, eng->w.layers[w->layer].q_norm);
            from = q;
        }
        eng->ops->scale(from, s, group * d, q);
    }
    const node_body_t *body = w->block->kv->body;
    for (uint32_t i = 0; body != NULL && form_is_rotated(&body->form) && i < w->block->n_rows * group; i++)
        eng->ops->code_query(&body->form, t->q + (size_t)i * d, &t->coded[i]);
}

static void states_reset(node_states_t *s, uint32_t n_q, uint32_t d)
{
    for (uint32_t i = 0; i < n_q; i++) {
        s->m[i] = -__builtin_inff();
        s->l[i] = 0.0f;
    }
    memset(s->o, 0, (size_t)n_q * d * sizeof *s->o);
}

/* Outputs so far, to or from the rotated space of coded tiles. */
static void rotate_outputs(const node_engine_t *eng, const node_attn_t *a)
{
    for (uint32_t i = 0; i < a->n_q; i++)
        eng->ops->hadamard(a->o + (size_t)i * a->head_dim, a->head_dim);
}

static node_tile_t tile_at(const node_engine_t *eng, const walk_t *w, uint32_t index)
{
    const node_kv_t *kv = w->block->kv;
    if (index < w->n_body)
        return kv->body->tiles[w->layer * eng->info.n_kv_head + w->head][index];
    node_page_t *page = kv->pages[index - w->n_body];
    if (page == NULL) { /* in the slow tier, which never has a body before it */
        size_t half = (size_t)NODE_TILE * eng->info.head_dim;
        const uint16_t *k = kv->stream + ((size_t)index * eng->info.n_kv_head + w->head) * 2 * half;
        return (node_tile_t){k, k + half, NODE_TILE, NULL};
    }
    return (node_tile_t){node_page_k(page, w->layer, w->head), node_page_v(page, w->layer, w->head), NODE_TILE, NULL};
}

/* One tile: how many of its tokens each row sees, then the kernel. Returns whether a->o is rotated now. */
static bool attend_tile(const node_engine_t *eng, const walk_t *w, uint32_t index, const node_coded_query_t *coded,
                        bool rotated, node_attn_t *a)
{
    const node_row_block_t *b = w->block;
    uint32_t group = eng->info.n_head / eng->info.n_kv_head;
    const node_tile_t tile = tile_at(eng, w, index);
    if (index < w->n_body) {
        for (uint32_t i = 0; i < a->n_q; i++)
            a->n_valid[i] = tile.n_rows;
        bool turned = tile.codes != NULL && form_is_rotated(&b->kv->body->form);
        if (rotated != turned)
            rotate_outputs(eng, a);
        if (tile.codes != NULL)
            eng->ops->attend_coded(a, &b->kv->body->form, coded, tile.codes);
        else
            eng->ops->attend(a, tile.k, tile.v);
        return turned;
    }
    if (rotated)
        rotate_outputs(eng, a);
    uint32_t page = index - w->n_body, start = (b->kv->first_block + page) * NODE_TILE;
    for (uint32_t i = 0; i < a->n_q; i++) {
        uint32_t seen = b->position + i / group + 1; /* positions that the row sees */
        a->n_valid[i] = seen <= start ? 0 : seen - start < NODE_TILE ? seen - start : NODE_TILE;
    }
    eng->ops->attend(a, tile.k, tile.v);
    return false;
}

/* next: the tile that this thread goes to after the split; empty where it does not know. */
static void attend_split(const node_engine_t *eng, const walk_t *w, uint32_t split, node_tile_t next,
                         const node_thread_scratch_t *t, node_states_t *s)
{
    uint32_t group = eng->info.n_head / eng->info.n_kv_head;
    node_attn_t a = {.n_q = w->block->n_rows * group, .head_dim = eng->info.head_dim, .q = t->q, .p = t->p};
    a.m = s->m;
    a.l = s->l;
    a.o = s->o;
    a.once = w->once;
    states_reset(s, a.n_q, a.head_dim);
    uint32_t end = VC_MIN((split + 1) * NODE_SPLIT_TILES, w->n_tiles);
    bool rotated = false; /* splits are folded in the model's own space */
    for (uint32_t i = split * NODE_SPLIT_TILES; i < end; i++) {
        const node_tile_t after = i + 1 < end ? tile_at(eng, w, i + 1) : next;
        a.next_k = after.k;
        a.next_v = after.v;
        a.next_codes = after.codes;
        rotated = attend_tile(eng, w, i, t->coded, rotated, &a);
    }
    if (rotated)
        rotate_outputs(eng, &a);
}

static void fold_states(const node_engine_t *eng, const walk_t *w, node_states_t *total, const node_states_t *split)
{
    uint32_t n_q = w->block->n_rows * (eng->info.n_head / eng->info.n_kv_head);
    eng->ops->fold(n_q, eng->info.head_dim, total->m, total->l, total->o, split->m, split->l, split->o);
}

static void write_output(node_engine_t *eng, const walk_t *w, const node_states_t *s)
{
    uint32_t d = eng->info.head_dim, group = eng->info.n_head / eng->info.n_kv_head;
    for (uint32_t i = 0; i < w->block->n_rows * group; i++) {
        float *out = eng->act_attn.x + (w->block->first + i / group) * eng->act_attn.stride;
        eng->ops->finish(s->l[i], s->o + (size_t)i * d, d, out + ((size_t)w->head * group + i % group) * d);
    }
}

static uint32_t n_splits(const walk_t *w) { return (w->n_tiles + NODE_SPLIT_TILES - 1) / NODE_SPLIT_TILES; }

static node_tile_t first_tile(const node_engine_t *eng, const walk_t *w, uint32_t split)
{
    return split < n_splits(w) ? tile_at(eng, w, split * NODE_SPLIT_TILES) : (node_tile_t){0};
}

/* Item = (block, KV head), all splits by one thread. */
static void attend_whole(node_pass_t *pass, uint32_t layer, uint32_t first_block, uint32_t thread)
{
    node_engine_t *eng = pass->eng;
    node_thread_scratch_t *t = &eng->threads[thread];
    uint32_t heads = eng->info.n_kv_head, item;
    while (node_team_next(eng->team, (pass->n_blocks - first_block) * heads, &item)) {
        /* the longest walks first, so that the team ends together */
        const node_row_block_t *b = &eng->blocks[pass->n_blocks - 1 - item / heads];
        walk_t w = walk_of(pass, b, layer, item % heads);
        gather_queries(eng, &w, false, t);
        states_reset(&t->total, b->n_rows * (eng->info.n_head / heads), eng->info.head_dim);
        for (uint32_t s = 0; s < n_splits(&w); s++) {
            attend_split(eng, &w, s, first_tile(eng, &w, s + 1), t, &t->split);
            fold_states(eng, &w, &t->total, &t->split);
        }
        write_output(eng, &w, &t->total);
    }
    node_team_barrier(eng->team);
}

/*
 * The splits [base, base + width) of n_pairs (block, KV head) as items of one loop. A thread's first item is the one of
 * its number, so that it is known beforehand; who ends the last split of a pair folds them.
 */
typedef struct {
    node_pass_t *pass;
    const node_row_block_t *blocks;
    uint32_t layer, n_pairs, base, width;
    bool fresh;           /* q and k are not rotated yet, the rows' K and V not stored */
    const uint8_t *ahead; /* what the thread reads afterwards */
} spread_t;

static walk_t pair_walk(const spread_t *s, uint32_t pair)
{
    uint32_t heads = s->pass->eng->info.n_kv_head;
    return walk_of(s->pass, &s->blocks[pair / heads], s->layer, pair % heads);
}

static uint32_t most_splits(const spread_t *s)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < s->n_pairs; i++) {
        walk_t w = pair_walk(s, i);
        most = VC_MAX(most, n_splits(&w));
    }
    return most;
}

/* From item *item_p on, the next one that is a split at all. */
static bool take_split(const spread_t *s, bool first, walk_t *w, uint32_t *item_p)
{
    node_engine_t *eng = s->pass->eng;
    for (uint32_t n_items = s->n_pairs * s->width;; first = false) {
        if (!first) {
            (void)node_team_next(eng->team, n_items, item_p);
            *item_p += eng->n_threads;
        }
        if (*item_p >= n_items)
            return false;
        *w = pair_walk(s, *item_p / s->width);
        if (s->base + *item_p % s->width < n_splits(w))
            return true;
    }
}

/* K and V of the block's rows that lie in a split: nobody reads them but who attends that split. */
static void store_rows(node_engine_t *eng, const walk_t *w, uint32_t split)
{
    const node_row_block_t *b = w->block;
    for (uint32_t r = 0; r < b->n_rows; r++) {
        uint32_t tile = w->n_body + (b->position + r) / NODE_TILE - b->kv->first_block;
        if (tile / NODE_SPLIT_TILES == split)
            node_store_kv(eng, w->layer, b->first + r, b, w->head);
    }
}

/* All splits of the pair in this window are done. */
static void fold_pair(const spread_t *s, const walk_t *w, uint32_t pair)
{
    node_engine_t *eng = s->pass->eng;
    uint32_t n = n_splits(w);
    if (s->base == 0)
        states_reset(&eng->totals[pair], w->block->n_rows * (eng->info.n_head / eng->info.n_kv_head),
                     eng->info.head_dim);
    for (uint32_t i = s->base; i < s->base + s->width && i < n; i++)
        fold_states(eng, w, &eng->totals[pair], &eng->splits[pair * NODE_SPLIT_WINDOW + i - s->base]);
    if (s->base + s->width >= n)
        write_output(eng, w, &eng->totals[pair]);
}

static void end_split(const spread_t *s, const walk_t *w, uint32_t pair)
{
    _Atomic uint32_t *done = &s->pass->eng->n_done[pair];
    uint32_t n = VC_MIN(n_splits(w) - s->base, s->width);
    /* acq_rel: the last one sees the states that the others wrote */
    if (atomic_fetch_add_explicit(done, 1, memory_order_acq_rel) + 1 < n)
        return;
    atomic_store_explicit(done, 0, memory_order_relaxed); /* the barrier publishes it */
    fold_pair(s, w, pair);
}

/* A thread takes its next split before it works on the one at hand, so that it can ask for its first tile in time. */
static void spread_splits(const spread_t *s, uint32_t thread)
{
    node_engine_t *eng = s->pass->eng;
    node_thread_scratch_t *t = &eng->threads[thread];
    uint32_t item = thread, next, gathered = UINT32_MAX;
    walk_t w, next_w;
    for (bool more = take_split(s, true, &w, &item); more; item = next, w = next_w) {
        const uint32_t pair = item / s->width, split = s->base + item % s->width;
        node_tile_t after = {0};
        more = take_split(s, false, &next_w, &next);
        if (more)
            after = first_tile(eng, &next_w, s->base + next % s->width);
        else if (s->ahead != NULL) /* only asked for */
            after.k = (const uint16_t *)(const void *)s->ahead;
        if (gathered != pair) /* splits of one pair mostly come to a thread in a row */
            gather_queries(eng, &w, s->fresh, t);
        gathered = pair;
        if (s->fresh)
            store_rows(eng, &w, split);
        attend_split(eng, &w, split, after, t, &eng->splits[pair * NODE_SPLIT_WINDOW + split - s->base]);
        end_split(s, &w, pair);
    }
    node_team_barrier(eng->team);
}

void node_attend_layer(node_pass_t *pass, uint32_t layer, uint32_t first_block, uint32_t thread)
{
    spread_t sp = {.pass = pass, .blocks = pass->eng->blocks + first_block, .layer = layer};
    sp.n_pairs = (pass->n_blocks - first_block) * pass->eng->info.n_kv_head;
    if (sp.n_pairs > NODE_SPLIT_BLOCKS || pass->eng->n_threads == 1) {
        attend_whole(pass, layer, first_block, thread);
        return;
    }
    for (uint32_t most = most_splits(&sp); sp.base < most; sp.base += NODE_SPLIT_WINDOW) {
        sp.width = VC_MIN(most - sp.base, NODE_SPLIT_WINDOW);
        spread_splits(&sp, thread);
    }
}

bool node_attend_fresh_fits(const node_pass_t *pass, uint32_t layer)
{
    const node_engine_t *eng = pass->eng;
    const spread_t sp = {.pass = (node_pass_t *)pass,
                         .blocks = eng->blocks,
                         .layer = layer,
                         .n_pairs = pass->n_blocks * eng->info.n_kv_head};
    for (uint32_t i = 1; i < pass->n_blocks; i++)
        if (eng->blocks[i].kv == eng->blocks[i - 1].kv)
            return false;
    return sp.n_pairs <= NODE_SPLIT_BLOCKS && most_splits(&sp) <= NODE_SPLIT_WINDOW;
}

void node_attend_fresh(node_pass_t *pass, uint32_t layer, uint32_t thread, const uint8_t *ahead)
{
    const node_engine_t *eng = pass->eng;
    spread_t sp = {.pass = pass, .blocks = eng->blocks, .layer = layer, .fresh = true, .ahead = ahead};
    sp.n_pairs = pass->n_blocks * eng->info.n_kv_head;
    sp.width = most_splits(&sp);
    spread_splits(&sp, thread);
}

const uint8_t *node_attend_first(const node_pass_t *pass, uint32_t layer, uint32_t thread)
{
    const node_engine_t *eng = pass->eng;
    spread_t sp = {.pass = (node_pass_t *)pass, .blocks = eng->blocks, .layer = layer};
    sp.n_pairs = pass->n_blocks * eng->info.n_kv_head;
    sp.width = most_splits(&sp);
    if (thread >= sp.n_pairs * sp.width)
        return NULL;
    const walk_t w = pair_walk(&sp, thread / sp.width);
    const node_tile_t t = first_tile(eng, &w, thread % sp.width);
    return t.codes != NULL ? t.codes : (const uint8_t *)t.k;
}
