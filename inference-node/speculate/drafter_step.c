/*
 * A draft step: plan rows, pass, pick. With a draft source its proposals follow on the row that the next token is
 * picked from, as drafts do in a verifier's pass; a proposal that the pick before it confirms is a row that need not be
 * computed again, and the rows behind the first other one are cut off. Owner thread: the request's.
 */
#include <string.h>

#include "speculate/drafter_int.h"
#include "vc/mem.h"

static vc_status_t check_room(const node_drafter_t *d, vc_err_t *err)
{
    if (d->n_pending < d->max_draft && d->n_committed + d->n_pending < d->context)
        return VC_OK;
    return vc_err_set(err, VC_ERR_RANGE, "no room for a further draft token after %u", d->n_pending);
}

/* The source hears of everything that it was not told yet. */
static void tell(node_drafter_t *d)
{
    uint32_t known = d->n_committed + d->n_pending + d->n_ready, told = d->source->n_tokens;
    if (told < known)
        node_source_push(d->source, d->tokens + told, known - told, NULL);
}

uint32_t node_drafter_propose(node_drafter_t *d, uint32_t k, node_proposal_t *out)
{
    if (!d->source)
        return 0;
    tell(d);
    return node_source_propose(d->source, d->n_vocab, k, out);
}

/* Proposals that pay in a pass of n_rows without them, when at most `want` picks can be used. */
static void plan_proposals(node_drafter_t *d, uint32_t n_rows, uint32_t cap, uint32_t want)
{
    uint32_t n = d->n_committed + d->n_pending;
    uint32_t k = VC_MIN(VC_MIN(cap - n_rows, want - 1), VC_MIN(d->max_draft - d->n_pending, d->context - n) - 1);
    k = node_drafter_propose(d, k, d->proposals);
    d->n_proposals = node_cascade_choose(&d->cascade, d->proposals, k);
}

/* As node_drafter_plan, for at most want (>= 1) picks. */
static vc_status_t plan_step(node_drafter_t *d, node_row_t *rows, uint32_t cap, uint32_t want, vc_err_t *err)
{
    uint32_t n = d->n_committed + d->n_pending;
    vc_status_t st = node_drafter_check_unplanned(d, err);
    if (st == VC_OK)
        st = check_room(d, err);
    if (st == VC_OK && !cap)
        st = vc_err_set(err, VC_ERR_INVALID, "drafter: a pass of 0 rows");
    /* A block may have been loaded whole: the last row is there, its logits are not. */
    if (st == VC_OK && !d->n_ready && d->kv.n_tokens >= n)
        st = node_drafter_kv_error(node_kv_truncate(&d->kv, n - 1), err);
    if (st != VC_OK)
        return st;
    uint32_t first = d->kv.n_tokens, n_rows = d->n_ready ? 0 : VC_MIN(cap, n - first);
    d->n_logits = d->n_proposals = 0;
    if (n_rows && first + n_rows == n) {
        plan_proposals(d, n_rows, cap, want);
        d->n_logits = 1 + d->n_proposals;
    }
    for (uint32_t i = 0; i < n_rows; i++)
        rows[i] = (node_row_t){&d->kv, d->tokens[first + i], first + i + 1 == n};
    for (uint32_t i = 0; i < d->n_proposals; i++)
        rows[n_rows + i] = (node_row_t){&d->kv, d->proposals[i].token, true};
    d->planned = true;
    d->normed = NULL;
    d->kv_before = first;
    d->n_planned = n_rows + d->n_proposals;
    return VC_OK;
}

vc_status_t node_drafter_plan(node_drafter_t *d, node_row_t *rows, uint32_t cap, uint32_t *n_rows_p,
                              uint32_t *n_logits_p, vc_err_t *err)
{
    vc_status_t st = plan_step(d, rows, cap, UINT32_MAX, err);
    if (st != VC_OK)
        return st;
    *n_rows_p = d->n_planned;
    *n_logits_p = d->n_logits;
    return VC_OK;
}

vc_status_t node_drafter_cancel(node_drafter_t *d, vc_err_t *err)
{
    if (!d->planned)
        return VC_OK;
    d->planned = false;
    return node_drafter_kv_error(node_kv_truncate(&d->kv, d->kv_before), err);
}

void node_drafter_give_rows(node_drafter_t *d, const float *rows)
{
    if (d->planned)
        d->normed = rows;
}

/* Logits of a part where the sampler looks for them. */
static const float *spread(node_drafter_t *d, const float *logits)
{
    uint32_t n;
    const uint32_t *tokens = node_vocab_part_tokens(d->part, &n);
    for (uint32_t i = 0; i < n; i++)
        d->spread[tokens[i]] = logits[i];
    return d->spread;
}

/* One pick behind all that is known becomes ready. row: what the source may want to know of where it comes from. */
static vc_status_t pick_next(node_drafter_t *d, const float *logits, const float *row, vc_err_t *err)
{
    uint32_t n = d->n_committed + d->n_pending + d->n_ready;
    node_pick_t pick;
    if (!node_drafter_grow_tokens(d, n + 1))
        return vc_err_set(err, VC_ERR_NOMEM, "drafter: out of memory");
    if (d->part)
        logits = spread(d, logits);
    vc_status_t st = node_sampler_pick(d->sampler, logits, n, &pick, err);
    if (st != VC_OK)
        return st;
    node_sampler_push(d->sampler, pick.token);
    d->tokens[n] = pick.token;
    d->margins[d->n_ready++] = pick.margin;
    if (d->source && d->source->n_tokens == n)
        node_source_push(d->source, &pick.token, 1, row);
    return VC_OK;
}

/* Picks row by row, up to and with the first that is no proposal; rows behind it are dropped. */
static vc_status_t pick_all(node_drafter_t *d, const float *logits, vc_err_t *err)
{
    uint32_t base = d->n_committed + d->n_pending;
    vc_status_t st;
    bool more;
    do {
        uint32_t i = d->n_ready;
        st = pick_next(d, logits + (size_t)i * d->n_vocab, d->normed ? d->normed + (size_t)i * d->d_model : NULL, err);
        more = st == VC_OK && i < d->n_proposals && d->tokens[base + i] == d->proposals[i].token;
    } while (more);
    if (st != VC_OK) {
        node_drafter_drop_from(d, d->n_pending, NULL);
        return st;
    }
    uint32_t accepted = d->n_ready - 1;
    d->stats.n_passes++;
    d->stats.n_wide += d->n_proposals > 0;
    d->stats.n_proposed += d->n_proposals;
    d->stats.n_accepted += accepted;
    return accepted < d->n_proposals ? node_drafter_kv_error(node_kv_truncate(&d->kv, base + accepted), err) : VC_OK;
}

static vc_status_t take_step(node_drafter_t *d, const float *logits, double us, node_pick_t *picks, uint32_t cap,
                             uint32_t *n_picks_p, vc_err_t *err)
{
    if (!d->planned || d->kv.n_tokens != d->kv_before + d->n_planned)
        return vc_err_set(err, VC_ERR_INVALID, "drafter: picks without the planned pass");
    d->planned = false;
    *n_picks_p = 0;
    if (d->n_logits) {
        vc_status_t st = pick_all(d, logits, err);
        if (st != VC_OK)
            return st;
        node_cascade_end(&d->cascade, d->n_planned, d->n_proposals, d->n_ready, us);
    }
    uint32_t n = VC_MIN(cap, d->n_ready);
    for (uint32_t i = 0; i < n; i++)
        picks[i] = (node_pick_t){d->tokens[d->n_committed + d->n_pending + i], d->margins[i]};
    d->n_pending += n;
    d->n_ready -= n;
    memmove(d->margins, d->margins + n, d->n_ready * sizeof *d->margins);
    *n_picks_p = n;
    return VC_OK;
}

vc_status_t node_drafter_take(node_drafter_t *d, const float *logits, node_pick_t *picks, uint32_t cap,
                              uint32_t *n_picks_p, vc_err_t *err)
{
    return take_step(d, logits, 0, picks, cap, n_picks_p, err);
}

/* ---- steps in passes of their own ---- */

static vc_status_t need_rows(node_drafter_t *d, uint32_t n, vc_err_t *err)
{
    if (n <= d->cap_rows)
        return VC_OK;
    node_row_t *rows = vc_realloc(d->rows, n, sizeof *rows);
    if (!rows)
        return vc_err_set(err, VC_ERR_NOMEM, "drafter: no memory for %u rows", n);
    d->rows = rows;
    d->cap_rows = n;
    return VC_OK;
}

static vc_status_t need_logits(node_drafter_t *d, uint32_t n_rows, vc_err_t *err)
{
    size_t need = (size_t)n_rows * d->n_vocab;
    if (need <= d->cap_logits)
        return VC_OK;
    vc_free(d->logits);
    d->cap_logits = 0;
    d->logits = vc_alloc_aligned(64, vc_align_up(need * sizeof *d->logits, 64));
    if (!d->logits)
        return vc_err_set(err, VC_ERR_NOMEM, "drafter: no memory for %u rows of logits", n_rows);
    d->cap_logits = need;
    return VC_OK;
}

static void see_row(void *arg, node_capture_kind_t kind, uint32_t layer, uint32_t row, uint32_t position,
                    const float *values)
{
    node_drafter_t *d = arg;
    (void)kind, (void)layer, (void)position;
    memcpy(d->seen_rows + (size_t)(row + d->n_logits - d->n_planned) * d->d_model, values, d->d_model * sizeof *values);
}

/* The planned pass, with the rows that a source wants to see. */
static vc_status_t run_pass(node_drafter_t *d, double *us_p, vc_err_t *err)
{
    bool wanted = d->n_logits && node_source_wants_rows(d->source);
    if (wanted && !d->seen_rows)
        d->seen_rows = vc_calloc((size_t)(1 + NODE_SOURCE_MAX) * d->d_model, sizeof *d->seen_rows);
    if (wanted && !d->seen_rows)
        return vc_err_set(err, VC_ERR_NOMEM, "drafter: no memory for rows of a draft source");
    vc_status_t st = need_logits(d, d->n_logits, err);
    if (st != VC_OK)
        return st;
    const node_capture_t capture = {.kinds = NODE_CAP_NORMED, .fn = see_row, .arg = d};
    uint64_t t0 = d->clock ? vc_clock_now_us(d->clock) : 0;
    st = node_forward(d->engine, d->rows, d->n_planned, d->logits, wanted ? &capture : NULL, err);
    *us_p = d->clock ? (double)(vc_clock_now_us(d->clock) - t0) : 0;
    if (st == VC_OK && wanted)
        node_drafter_give_rows(d, d->seen_rows);
    return st;
}

/* One pick, of at most want (>= 1) that are of use to the caller. */
static vc_status_t step(node_drafter_t *d, uint32_t want, node_pick_t *pick_p, vc_err_t *err)
{
    uint32_t n_picks = 0;
    while (!n_picks) {
        uint32_t n = d->n_committed + d->n_pending; /* the last row may be there and has to be computed again */
        uint32_t missing = n - VC_MIN(d->kv.n_tokens, n - 1);
        uint32_t cap = VC_MIN(node_engine_max_rows(d->engine), missing + (d->source ? NODE_SOURCE_MAX : 0));
        vc_status_t st = need_rows(d, cap, err);
        if (st == VC_OK)
            st = plan_step(d, d->rows, cap, want, err);
        if (st != VC_OK)
            return st;
        double us = 0;
        st = run_pass(d, &us, err);
        if (st == VC_OK)
            st = take_step(d, d->logits, us, pick_p, 1, &n_picks, err);
        else
            node_drafter_cancel(d, NULL);
        if (st != VC_OK)
            return st;
    }
    return VC_OK;
}

vc_status_t node_drafter_next(node_drafter_t *d, node_pick_t *pick_p, vc_err_t *err)
{
    return step(d, UINT32_MAX, pick_p, err);
}

vc_status_t node_drafter_draft(node_drafter_t *d, uint32_t x, uint32_t *tokens, double *margins, uint32_t *n_p,
                               vc_err_t *err)
{
    uint32_t room = VC_MIN(d->max_draft - d->n_pending, d->context - VC_MIN(d->context, d->n_committed + d->n_pending));
    *n_p = 0;
    for (uint32_t i = 0, n = VC_MIN(x, room); i < n; i++) {
        node_pick_t pick;
        vc_status_t st = step(d, n - i, &pick, err);
        if (st != VC_OK)
            return st;
        tokens[i] = pick.token;
        if (margins)
            margins[i] = pick.margin;
        *n_p = i + 1;
    }
    return VC_OK;
}
