/*
 * The drafter. tokens[0 .. n_committed) are final, then n_pending drafts follow, then n_ready picks of the same pass as
 * the last of these that were not taken yet. The sampler has them all.
 * KV rows exist for a leading part of these; the row of the newest pick is only computed when a further one is wanted.
 * A rollback is node_kv_truncate: it touches the tail's last page only. Owner thread: the request's.
 */
#include "speculate/drafter_int.h"

#include <math.h>
#include <string.h>

#include "kv/slow.h"
#include "vc/mem.h"

void node_drafter_opts_default(node_drafter_opts_t *opts)
{
    *opts = (node_drafter_opts_t){.max_draft = 64, .clock = vc_clock_system()};
    node_sampling_default(&opts->sampling);
}

enum {
    PART_GROWS = 256, /* tokens that a part has room for beyond those of the beginning */
    PART_OUTSIDE = 2, /* as many committed tokens that it does not have are forgiven, */
    PART_RARE = 200   /* and one more in so many */
};

vc_status_t node_drafter_kv_error(vc_status_t st, vc_err_t *err)
{
    return st == VC_OK ? st : vc_err_set(err, st, "drafter: KV: %s", vc_status_name(st));
}

bool node_drafter_grow_tokens(node_drafter_t *d, uint32_t need)
{
    if (need <= d->cap)
        return true;
    uint32_t cap = need + need / 2 + 64;
    uint32_t *tokens = vc_realloc(d->tokens, cap, sizeof *tokens);
    if (!tokens)
        return false;
    d->tokens = tokens;
    d->cap = cap;
    return true;
}

static vc_status_t check_tokens(const node_drafter_t *d, const uint32_t *tokens, uint32_t n, vc_err_t *err)
{
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] >= d->n_vocab)
            return vc_err_set(err, VC_ERR_INVALID, "drafter: token %u is %u, the vocabulary has %u", i, tokens[i],
                              d->n_vocab);
    return VC_OK;
}

/* Among some tokens only, where these are few; without memory for it among all. */
static void choose_from_part(node_drafter_t *d, uint32_t n_common)
{
    uint32_t room = n_common + PART_GROWS;
    uint8_t *counted = vc_calloc(d->n_vocab, 1);
    for (uint32_t i = 0; counted && i < d->n_committed; i++)
        if (d->tokens[i] >= n_common && !counted[d->tokens[i]]) {
            counted[d->tokens[i]] = 1;
            room++;
        }
    bool few = counted && n_common < d->n_vocab && room <= d->n_vocab / 4;
    vc_free(counted);
    if (!few || node_vocab_part_create(d->engine, room, &d->part, NULL) != VC_OK)
        return;
    d->spread = vc_calloc(d->n_vocab, sizeof *d->spread);
    if (!d->spread) {
        node_drafter_choose_from_all(d);
        return;
    }
    for (uint32_t i = 0; i < d->n_vocab; i++)
        d->spread[i] = -HUGE_VALF;
    for (uint32_t i = 0; i < n_common; i++)
        node_vocab_part_add(d->part, i);
    for (uint32_t i = 0; i < d->n_committed; i++)
        node_vocab_part_add(d->part, d->tokens[i]);
    d->kv.part = d->part;
}

void node_drafter_choose_from_all(node_drafter_t *d)
{
    d->kv.part = NULL;
    node_vocab_part_destroy(d->part);
    d->part = NULL;
    vc_free(d->spread);
    d->spread = NULL;
}

/* A committed token that the part did not have could not be drafted: it joins, and where there are many of them the
 * text is none that a part is enough for. */
static void judge_part(node_drafter_t *d, uint32_t token)
{
    d->n_judged++;
    if (node_vocab_part_has(d->part, token))
        return;
    d->n_outside++;
    if (!node_vocab_part_add(d->part, token) || d->n_outside > PART_OUTSIDE + d->n_judged / PART_RARE)
        node_drafter_choose_from_all(d);
}

vc_status_t node_drafter_create(const node_drafter_opts_t *o, const uint32_t *tokens, uint32_t n_tokens,
                                node_drafter_t **d_p, vc_err_t *err)
{
    const node_model_info_t *info = node_engine_info(o->engine);
    if (!n_tokens || (o->body && o->body->n_tokens >= n_tokens))
        return vc_err_set(err, VC_ERR_INVALID, "drafter: %u tokens are not more than the %u of the compressed prefix",
                          n_tokens, o->body ? o->body->n_tokens : 0);
    node_drafter_t *d = vc_calloc(1, sizeof *d);
    if (!d)
        return vc_err_set(err, VC_ERR_NOMEM, "drafter: out of memory");
    d->engine = o->engine;
    d->n_vocab = info->n_vocab;
    d->context = o->context && o->context < info->context ? o->context : info->context;
    d->max_draft = o->max_draft;
    d->source = o->source;
    d->clock = o->clock;
    d->d_model = info->d_model;
    node_cascade_init(&d->cascade, o->clock != NULL);
    if (d->source)
        node_source_truncate(d->source, 0); /* it may have served another drafter */
    node_kv_dims_t dims;
    node_engine_kv_dims(o->engine, &dims);
    d->margins = vc_calloc(VC_MAX(d->max_draft, 1u), sizeof *d->margins);
    vc_status_t st = d->margins && node_drafter_grow_tokens(d, n_tokens)
                         ? VC_OK
                         : vc_err_set(err, VC_ERR_NOMEM, "drafter: out of memory");
    if (st == VC_OK)
        st = check_tokens(d, tokens, n_tokens, err);
    if (st == VC_OK)
        st = node_sampler_create(&o->sampling, d->n_vocab, &d->sampler, err);
    if (st == VC_OK)
        st = node_drafter_kv_error(node_kv_init(&d->kv, &dims, o->body), err);
    if (st != VC_OK) {
        node_drafter_destroy(d);
        return st;
    }
    memcpy(d->tokens, tokens, n_tokens * sizeof *tokens);
    d->n_committed = n_tokens;
    if (o->n_common && o->sampling.temperature == 0)
        choose_from_part(d, o->n_common);
    for (uint32_t i = 0; i < n_tokens; i++)
        node_sampler_push(d->sampler, tokens[i]);
    *d_p = d;
    return VC_OK;
}

void node_drafter_destroy(node_drafter_t *d)
{
    if (!d)
        return;
    node_kv_fini(&d->kv);
    node_drafter_choose_from_all(d);
    node_sampler_destroy(d->sampler);
    vc_free(d->tokens);
    vc_free(d->margins);
    vc_free(d->rows);
    vc_free(d->logits);
    vc_free(d->seen_rows);
    vc_free(d);
}

vc_status_t node_drafter_load_page(node_drafter_t *d, node_page_t *page, vc_err_t *err)
{
    uint32_t n = d->kv.n_tokens;
    if (d->planned || d->n_pending || n % NODE_TILE || n + NODE_TILE > d->n_committed) {
        node_page_put(page);
        return vc_err_set(err, VC_ERR_INVALID, "drafter: block %u cannot be loaded here", n / NODE_TILE);
    }
    vc_status_t st = node_kv_append_page(&d->kv, page);
    if (st != VC_OK)
        node_page_put(page);
    return node_drafter_kv_error(st, err);
}

vc_status_t node_drafter_check_unplanned(const node_drafter_t *d, vc_err_t *err)
{
    return d->planned ? vc_err_set(err, VC_ERR_INVALID, "drafter: a step is planned already") : VC_OK;
}

vc_status_t node_drafter_prefill(node_drafter_t *d, uint32_t max_rows, bool *done_p, vc_err_t *err)
{
    vc_status_t st = node_drafter_check_unplanned(d, err);
    uint32_t n = d->kv.n_tokens;
    if (st == VC_OK && n + 1 < d->n_committed) {
        uint32_t left = d->n_committed - 1 - n;
        uint32_t rows = max_rows ? VC_MIN(left, max_rows) : left;
        st = node_prefill(d->engine, &d->kv, d->tokens + n, rows, NULL, NULL, err);
    }
    if (done_p)
        *done_p = d->kv.n_tokens + 1 >= d->n_committed;
    return st;
}

vc_status_t node_drafter_drop_from(node_drafter_t *d, uint32_t i, vc_err_t *err)
{
    uint32_t keep = d->n_committed + i, known = d->n_pending + d->n_ready;
    for (uint32_t j = i; j < known; j++)
        node_sampler_pop(d->sampler, d->tokens[d->n_committed + j]);
    d->n_pending = VC_MIN(d->n_pending, i);
    d->n_ready = i - d->n_pending;
    if (d->source)
        node_source_truncate(d->source, keep);
    if (d->kv.n_tokens <= keep)
        return VC_OK;
    return node_drafter_kv_error(node_kv_truncate(&d->kv, keep), err);
}

vc_status_t node_drafter_drop(node_drafter_t *d, vc_err_t *err)
{
    vc_status_t st = node_drafter_check_unplanned(d, err);
    return st == VC_OK ? node_drafter_drop_from(d, 0, err) : st;
}

/* The first n of pending and ready tokens are final: tokens, rows and the sampler have them already. */
static void commit_known(node_drafter_t *d, uint32_t n)
{
    uint32_t pending = VC_MIN(n, d->n_pending), ready = n - pending;
    d->n_committed += n;
    d->n_pending -= pending;
    d->n_ready -= ready;
    memmove(d->margins, d->margins + ready, d->n_ready * sizeof *d->margins);
}

vc_status_t node_drafter_commit(node_drafter_t *d, const uint32_t *tokens, uint32_t n, bool *kept_p, vc_err_t *err)
{
    vc_status_t st = node_drafter_check_unplanned(d, err);
    if (st == VC_OK)
        st = check_tokens(d, tokens, n, err);
    if (st != VC_OK)
        return st;
    uint32_t same = 0, known = d->n_pending + d->n_ready;
    while (same < n && same < known && d->tokens[d->n_committed + same] == tokens[same])
        same++;
    bool kept = same == n || same >= d->n_pending;
    if (same < n && same < known && (st = node_drafter_drop_from(d, same, err)) != VC_OK)
        return st;
    commit_known(d, same);
    if (!node_drafter_grow_tokens(d, d->n_committed + n - same + d->n_pending + d->n_ready))
        return vc_err_set(err, VC_ERR_NOMEM, "drafter: out of memory");
    for (uint32_t i = 0; d->part && i < n; i++)
        judge_part(d, tokens[i]);
    for (uint32_t i = same; i < n; i++) { /* here nothing is pending or ready */
        d->tokens[d->n_committed++] = tokens[i];
        node_sampler_push(d->sampler, tokens[i]);
    }
    if (kept_p)
        *kept_p = kept;
    return VC_OK;
}

vc_status_t node_drafter_put_rows(node_drafter_t *d, uint32_t first, uint32_t n, const uint16_t *rows, vc_err_t *err)
{
    uint32_t body = d->kv.first_block * NODE_TILE;
    vc_status_t st = node_drafter_check_unplanned(d, err);
    if (st != VC_OK)
        return st;
    if (first < body || first > d->kv.n_tokens || n > d->n_committed || first > d->n_committed - n)
        return vc_err_set(err, VC_ERR_RANGE, "rows [%u, +%u) do not follow on the drafter's %u of %u committed", first,
                          n, d->kv.n_tokens, d->n_committed);
    uint32_t end = first + n, had = d->kv.n_tokens;
    if (end > had)
        st = node_drafter_kv_error(node_kv_reserve(&d->kv, end - had), err);
    size_t row_len = (size_t)d->kv.dims.n_layer * 2 * d->kv.dims.n_kv_head * d->kv.dims.head_dim;
    for (uint32_t pos = first; st == VC_OK && pos < end; pos++) {
        uint32_t i = pos / NODE_TILE - d->kv.first_block;
        if (pos < had && (pos == first || pos % NODE_TILE == 0)) { /* overwriting: never in a page that others see */
            uint32_t valid = VC_MIN(had - pos / NODE_TILE * NODE_TILE, NODE_TILE);
            node_page_t *copy = node_page_copy(d->kv.pages[i], valid);
            if (!copy)
                return vc_err_set(err, VC_ERR_NOMEM, "drafter: out of memory");
            node_page_put(d->kv.pages[i]);
            d->kv.pages[i] = copy;
        }
        node_page_load_row(d->kv.pages[i], pos % NODE_TILE, rows + (size_t)(pos - first) * row_len);
    }
    if (st == VC_OK)
        d->kv.n_tokens = VC_MAX(had, end);
    return st;
}

/* The block's page as the drafter keeps it: a full one shared, or read back where the slow tier has it. */
static vc_status_t page_to_keep(const node_kv_t *full, uint32_t block, uint32_t rows, node_page_t **page_p,
                                vc_err_t *err)
{
    node_page_t *page = node_kv_page_at(full, block);
    if (page == NULL)
        return node_slow_load_page(full->slow, block, page_p, err);
    *page_p = rows == NODE_TILE ? node_page_get(page) : node_page_copy(page, rows);
    return *page_p != NULL ? VC_OK : vc_err_set(err, VC_ERR_NOMEM, "drafter: out of memory");
}

/* A block that went to the slow tier since it was shared is the same still. */
static bool is_shared(const node_drafter_t *d, const node_kv_t *full, uint32_t block)
{
    const node_page_t *mine = node_kv_page_at(&d->kv, block), *theirs = node_kv_page_at(full, block);
    return mine != NULL && (theirs != NULL ? mine == theirs : block < d->n_shared);
}

vc_status_t node_drafter_share(node_drafter_t *d, const node_kv_t *full, vc_err_t *err)
{
    uint32_t body = d->kv.first_block * NODE_TILE;
    if (full->body || full->n_tokens < body || full->n_tokens > d->n_committed)
        return vc_err_set(err, VC_ERR_INVALID,
                          "drafter: full KV of %u tokens does not fit %u committed and a body of %u", full->n_tokens,
                          d->n_committed, body);
    vc_status_t st = node_drafter_drop(d, err);
    /* Full pages that are shared already stay. Everything behind them goes, and comes again from the verifier. */
    uint32_t block = d->kv.first_block;
    while (st == VC_OK && block < full->n_tokens / NODE_TILE && is_shared(d, full, block))
        block++;
    if (st == VC_OK && d->kv.n_tokens > block * NODE_TILE)
        st = node_drafter_kv_error(node_kv_truncate(&d->kv, block * NODE_TILE), err);
    for (; st == VC_OK && block * NODE_TILE < full->n_tokens; block++) {
        uint32_t rows = VC_MIN(full->n_tokens - block * NODE_TILE, NODE_TILE);
        node_page_t *page;
        st = page_to_keep(full, block, rows, &page, err);
        if (st != VC_OK)
            return st;
        st = node_drafter_kv_error(node_kv_append_page(&d->kv, page), err);
        if (st == VC_OK)
            d->kv.n_tokens -= NODE_TILE - rows; /* a page is appended as if it were full */
        else
            node_page_put(page);
    }
    d->n_shared = st == VC_OK ? full->n_tokens / NODE_TILE : 0;
    return st;
}

uint32_t node_drafter_n_ready(const node_drafter_t *d) { return d->n_ready; }
void node_drafter_stats(const node_drafter_t *d, node_drafter_stats_t *stats_p) { *stats_p = d->stats; }
uint32_t node_drafter_n_pending(const node_drafter_t *d) { return d->n_pending; }
const uint32_t *node_drafter_pending(const node_drafter_t *d) { return d->tokens + d->n_committed; }
uint32_t node_drafter_n_committed(const node_drafter_t *d) { return d->n_committed; }
uint32_t node_drafter_n_rows(const node_drafter_t *d) { return VC_MIN(d->kv.n_tokens, d->n_committed); }
const node_kv_t *node_drafter_kv(const node_drafter_t *d) { return &d->kv; }
