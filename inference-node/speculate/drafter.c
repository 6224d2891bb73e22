/*
 * The drafter. tokens[0 .. n_committed) are final, tokens[n_committed .. n_committed + n_pending) are its drafts.
 * KV rows exist for a leading part of these; the row of the newest draft is only computed when a further one is wanted.
 * A rollback is node_kv_truncate: it touches the tail's last page only. Owner thread: the request's.
 */
#include "speculate/drafter.h"

#include <string.h>

#include "kv/slow.h"
#include "vc/mem.h"

struct node_drafter {
    node_engine_t *engine;
    uint32_t n_vocab, context, max_draft;
    node_sampler_t *sampler; /* holds committed and pending tokens */
    node_kv_t kv;
    uint32_t *tokens; /* [cap] */
    uint32_t n_committed, n_pending, cap;
    uint32_t n_shared; /* blocks before this one are the verifier's, and final */
    float *logits;     /* one row */
};

void node_drafter_opts_default(node_drafter_opts_t *opts)
{
    *opts = (node_drafter_opts_t){.max_draft = 64};
    node_sampling_default(&opts->sampling);
}

static vc_status_t kv_error(vc_status_t st, vc_err_t *err)
{
    return st == VC_OK ? st : vc_err_set(err, st, "drafter: KV: %s", vc_status_name(st));
}

static bool grow_tokens(node_drafter_t *d, uint32_t need)
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
    node_kv_dims_t dims;
    node_engine_kv_dims(o->engine, &dims);
    d->logits = vc_alloc_aligned(64, vc_align_up((size_t)d->n_vocab * sizeof *d->logits, 64));
    vc_status_t st =
        d->logits && grow_tokens(d, n_tokens) ? VC_OK : vc_err_set(err, VC_ERR_NOMEM, "drafter: out of memory");
    if (st == VC_OK)
        st = check_tokens(d, tokens, n_tokens, err);
    if (st == VC_OK)
        st = node_sampler_create(&o->sampling, d->n_vocab, &d->sampler, err);
    if (st == VC_OK)
        st = kv_error(node_kv_init(&d->kv, &dims, o->body), err);
    if (st != VC_OK) {
        node_drafter_destroy(d);
        return st;
    }
    memcpy(d->tokens, tokens, n_tokens * sizeof *tokens);
    d->n_committed = n_tokens;
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
    node_sampler_destroy(d->sampler);
    vc_free(d->tokens);
    vc_free(d->logits);
    vc_free(d);
}

vc_status_t node_drafter_load_page(node_drafter_t *d, node_page_t *page, vc_err_t *err)
{
    uint32_t n = d->kv.n_tokens;
    if (d->n_pending || n % NODE_TILE || n + NODE_TILE > d->n_committed) {
        node_page_put(page);
        return vc_err_set(err, VC_ERR_INVALID, "drafter: block %u cannot be loaded here", n / NODE_TILE);
    }
    vc_status_t st = node_kv_append_page(&d->kv, page);
    if (st != VC_OK)
        node_page_put(page);
    return kv_error(st, err);
}

vc_status_t node_drafter_prefill(node_drafter_t *d, uint32_t max_rows, bool *done_p, vc_err_t *err)
{
    vc_status_t st = VC_OK;
    uint32_t n = d->kv.n_tokens;
    if (n + 1 < d->n_committed) {
        uint32_t left = d->n_committed - 1 - n;
        uint32_t rows = max_rows ? VC_MIN(left, max_rows) : left;
        st = node_prefill(d->engine, &d->kv, d->tokens + n, rows, NULL, NULL, err);
    }
    if (done_p)
        *done_p = d->kv.n_tokens + 1 >= d->n_committed;
    return st;
}

vc_status_t node_drafter_next(node_drafter_t *d, node_pick_t *pick_p, vc_err_t *err)
{
    uint32_t n = d->n_committed + d->n_pending;
    if (d->n_pending >= d->max_draft || n >= d->context)
        return vc_err_set(err, VC_ERR_RANGE, "no room for a further draft token after %u", d->n_pending);
    if (!grow_tokens(d, n + 1))
        return vc_err_set(err, VC_ERR_NOMEM, "drafter: out of memory");
    vc_status_t st = VC_OK;
    if (d->kv.n_tokens >= n) /* every row is there (a block boundary was loaded whole): the last one's logits are not */
        st = kv_error(node_kv_truncate(&d->kv, n - 1), err);
    if (st == VC_OK)
        st = node_prefill(d->engine, &d->kv, d->tokens + d->kv.n_tokens, n - d->kv.n_tokens, d->logits, NULL, err);
    node_pick_t pick;
    if (st == VC_OK)
        st = node_sampler_pick(d->sampler, d->logits, n, &pick, err);
    if (st != VC_OK)
        return st;
    node_sampler_push(d->sampler, pick.token);
    d->tokens[n] = pick.token;
    d->n_pending++;
    *pick_p = pick;
    return VC_OK;
}

vc_status_t node_drafter_draft(node_drafter_t *d, uint32_t x, uint32_t *tokens, double *margins, uint32_t *n_p,
                               vc_err_t *err)
{
    uint32_t room = VC_MIN(d->max_draft - d->n_pending, d->context - VC_MIN(d->context, d->n_committed + d->n_pending));
    *n_p = 0;
    for (uint32_t i = 0; i < VC_MIN(x, room); i++) {
        node_pick_t pick;
        vc_status_t st = node_drafter_next(d, &pick, err);
        if (st != VC_OK)
            return st;
        tokens[i] = pick.token;
        if (margins)
            margins[i] = pick.margin;
        *n_p = i + 1;
    }
    return VC_OK;
}

/* Pending drafts from the i-th on are forgotten, with their rows. */
static vc_status_t drop_from(node_drafter_t *d, uint32_t i, vc_err_t *err)
{
    uint32_t keep = d->n_committed + i;
    for (uint32_t j = i; j < d->n_pending; j++)
        node_sampler_pop(d->sampler, d->tokens[d->n_committed + j]);
    d->n_pending = i;
    if (d->kv.n_tokens <= keep)
        return VC_OK;
    return kv_error(node_kv_truncate(&d->kv, keep), err);
}

vc_status_t node_drafter_drop(node_drafter_t *d, vc_err_t *err) { return drop_from(d, 0, err); }

vc_status_t node_drafter_commit(node_drafter_t *d, const uint32_t *tokens, uint32_t n, bool *kept_p, vc_err_t *err)
{
    vc_status_t st = check_tokens(d, tokens, n, err);
    if (st != VC_OK)
        return st;
    uint32_t same = 0;
    while (same < n && same < d->n_pending && d->tokens[d->n_committed + same] == tokens[same])
        same++;
    bool kept = same == n || same == d->n_pending;
    if (!kept && (st = drop_from(d, same, err)) != VC_OK)
        return st;
    d->n_committed += same; /* tokens, rows and the sampler have them already */
    d->n_pending -= same;
    if (!grow_tokens(d, d->n_committed + n - same + d->n_pending))
        return vc_err_set(err, VC_ERR_NOMEM, "drafter: out of memory");
    for (uint32_t i = same; i < n; i++) { /* here nothing is pending */
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
    if (first < body || first > d->kv.n_tokens || n > d->n_committed || first > d->n_committed - n)
        return vc_err_set(err, VC_ERR_RANGE, "rows [%u, +%u) do not follow on the drafter's %u of %u committed", first,
                          n, d->kv.n_tokens, d->n_committed);
    uint32_t end = first + n, had = d->kv.n_tokens;
    vc_status_t st = VC_OK;
    if (end > had)
        st = kv_error(node_kv_reserve(&d->kv, end - had), err);
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
    vc_status_t st = drop_from(d, 0, err);
    /* Full pages that are shared already stay. Everything behind them goes, and comes again from the verifier. */
    uint32_t block = d->kv.first_block;
    while (st == VC_OK && block < full->n_tokens / NODE_TILE && is_shared(d, full, block))
        block++;
    if (st == VC_OK && d->kv.n_tokens > block * NODE_TILE)
        st = kv_error(node_kv_truncate(&d->kv, block * NODE_TILE), err);
    for (; st == VC_OK && block * NODE_TILE < full->n_tokens; block++) {
        uint32_t rows = VC_MIN(full->n_tokens - block * NODE_TILE, NODE_TILE);
        node_page_t *page;
        st = page_to_keep(full, block, rows, &page, err);
        if (st != VC_OK)
            return st;
        st = kv_error(node_kv_append_page(&d->kv, page), err);
        if (st == VC_OK)
            d->kv.n_tokens -= NODE_TILE - rows; /* a page is appended as if it were full */
        else
            node_page_put(page);
    }
    d->n_shared = st == VC_OK ? full->n_tokens / NODE_TILE : 0;
    return st;
}

uint32_t node_drafter_n_pending(const node_drafter_t *d) { return d->n_pending; }
const uint32_t *node_drafter_pending(const node_drafter_t *d) { return d->tokens + d->n_committed; }
uint32_t node_drafter_n_committed(const node_drafter_t *d) { return d->n_committed; }
uint32_t node_drafter_n_rows(const node_drafter_t *d) { return VC_MIN(d->kv.n_tokens, d->n_committed); }
const node_kv_t *node_drafter_kv(const node_drafter_t *d) { return &d->kv; }
