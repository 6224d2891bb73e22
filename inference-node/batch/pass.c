/*
 * Rows of all requests go through as few passes as the engine's row limit allows, usually one. Prompts come first and
 * drafts last, so that rows that want logits stand together. A pass fails as a whole; then its requests are passed one
 * by one, and those that fail again end with their sentence.
 */
#include <stdio.h>
#include <string.h>

#include "batch_int.h"
#include "vc/mem.h"

static vc_status_t need_logits(node_batch_t *b, uint32_t n, vc_err_t *err)
{
    size_t need = (size_t)n * node_engine_info(b->opt.engine)->n_vocab;
    if (need <= b->cap_logits)
        return VC_OK;
    vc_free(b->logits);
    b->cap_logits = 0;
    b->logits = vc_alloc_aligned(64, vc_align_up(need * sizeof *b->logits, 64));
    if (b->logits == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "batch: no memory for %u rows of logits", n);
    b->cap_logits = need;
    return VC_OK;
}

static void fail(node_batch_t *b, member_t *m, vc_status_t st, const vc_err_t *err)
{
    batch_end(b, m, st, err->msg[0] ? err->msg : vc_status_text(st));
}

/* What is to be verified. */
static const uint32_t *drafts_of(const member_t *m, uint32_t *n_p)
{
    *n_p = m->n_proposals > 0 ? m->n_proposals : m->drafts ? node_drafter_n_pending(m->d) : 0;
    return m->n_proposals > 0 ? m->proposals : m->drafts ? node_drafter_pending(m->d) : NULL;
}

/* Rows that the work needs in one pass. */
static uint32_t rows_needed(const member_t *m)
{
    uint32_t n;
    (void)drafts_of(m, &n);
    return m->work == WORK_VERIFY ? 1 + VC_MIN(n, node_verifier_max_useful(m->v)) : 1;
}

/* After a verification the drafter goes on behind the verifier's rows. */
static vc_status_t share_rows(member_t *m, vc_err_t *err)
{
    if (m->shared)
        return VC_OK;
    vc_status_t st = node_drafter_share(m->d, node_verifier_kv(m->v), err);
    m->shared = st == VC_OK;
    return st;
}

static vc_status_t plan(node_batch_t *b, member_t *m, node_row_t *rows, uint32_t cap, vc_err_t *err)
{
    (void)b;
    m->n_rows = m->n_logits = 0;
    switch (m->work) {
    case WORK_PROMPT:
        return node_verifier_plan(m->v, NULL, 0, rows, VC_MIN(cap, m->cap), &m->n_rows, &m->n_logits, err);
    case WORK_VERIFY: {
        uint32_t n;
        const uint32_t *drafts = drafts_of(m, &n);
        return node_verifier_plan(m->v, drafts, n, rows, cap, &m->n_rows, &m->n_logits, err);
    }
    case WORK_DRAFT: {
        vc_status_t st = share_rows(m, err);
        if (st == VC_OK)
            st = node_drafter_plan(m->d, rows, cap, &m->n_rows, &m->n_logits, err);
        m->enough = st == VC_ERR_RANGE; /* no room for a further one */
        return st;
    }
    case WORK_NONE: break;
    }
    return VC_OK;
}

static void cancel_plan(member_t *m)
{
    if (m->work == WORK_DRAFT)
        (void)node_drafter_cancel(m->d, NULL); /* a request that is left broken says so at its next call */
    else
        (void)node_verifier_cancel(m->v, NULL);
}

static vc_status_t take(node_batch_t *b, member_t *m, const float *logits, vc_err_t *err)
{
    if (m->work != WORK_DRAFT)
        return node_verifier_judge(m->v, logits, &m->verdict, err);
    return node_drafter_take(m->d, logits, m->picks, batch_max_draft(b) + 1, &m->n_picks, err);
}

/* One pass over the planned rows of members[0 .. n). */
static vc_status_t forward(node_batch_t *b, member_t *const *members, uint32_t n, vc_err_t *err)
{
    uint32_t n_rows = 0, n_logits = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_rows += members[i]->n_rows;
        n_logits += members[i]->n_logits;
    }
    vc_status_t st = need_logits(b, n_logits, err);
    b->info.n_passes += n_rows > 0;
    b->info.n_rows += n_rows;
    if (st == VC_OK && n_rows > 0)
        st = node_forward(b->opt.engine, b->rows, n_rows, b->logits, NULL, err);
    if (st != VC_OK) {
        for (uint32_t i = 0; i < n; i++)
            cancel_plan(members[i]);
        return st;
    }
    const float *at = b->logits;
    for (uint32_t i = 0; i < n; i++) {
        member_t *m = members[i];
        vc_err_t own = {0};
        st = take(b, m, at, &own);
        at += (size_t)m->n_logits * node_engine_info(b->opt.engine)->n_vocab;
        m->done = st == VC_OK;
        if (st != VC_OK)
            fail(b, m, st, &own);
    }
    return VC_OK;
}

static void flush(node_batch_t *b, member_t **members, uint32_t n);

/* Ends those whose tier has failed, and passes the others again: together where the culprits are known, else each in a
 * pass of its own. */
static void again(node_batch_t *b, member_t **members, uint32_t n, const vc_err_t *first)
{
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < n; i++) {
        vc_err_t own = *first;
        vc_status_t st = n == 1 ? first->status : node_slow_failed(node_verifier_kv(members[i]->v), &own);
        if (st != VC_OK)
            fail(b, members[i], st, &own);
        else
            members[n_left++] = members[i];
    }
    uint32_t step = n_left < n ? n_left : 1;
    for (uint32_t i = 0; i < n_left; i += step) {
        uint32_t n_rows = 0, n_good = 0;
        for (uint32_t j = i; j < i + step; j++) {
            vc_err_t own = {0};
            vc_status_t st = plan(b, members[j], b->rows + n_rows, b->max_rows - n_rows, &own);
            n_rows += members[j]->n_rows;
            if (st == VC_OK)
                members[i + n_good++] = members[j];
            else
                fail(b, members[j], st, &own);
        }
        flush(b, members + i, n_good);
    }
}

static void flush(node_batch_t *b, member_t **members, uint32_t n)
{
    vc_err_t err = {0};
    vc_status_t st = n ? forward(b, members, n, &err) : VC_OK;
    if (st == VC_OK)
        return;
    err.status = st;
    again(b, members, n, &err);
}

void batch_run(node_batch_t *b)
{
    uint32_t n_rows = 0, n = 0;
    for (int work = WORK_PROMPT; work <= WORK_DRAFT; work++)
        for (uint32_t i = 0; i < b->opt.max_requests; i++) {
            member_t *m = &b->members[i];
            vc_err_t own = {0};
            if (m->state == MEMBER_FREE || (int)m->work != work)
                continue;
            m->done = m->enough = false;
            m->n_picks = 0;
            if (n_rows + rows_needed(m) > b->max_rows) {
                flush(b, b->order, n);
                n = n_rows = 0;
            }
            vc_status_t st = plan(b, m, b->rows + n_rows, b->max_rows - n_rows, &own);
            if (st == VC_OK) {
                b->order[n++] = m;
                n_rows += m->n_rows;
            } else if (!m->enough)
                fail(b, m, st, &own);
        }
    flush(b, b->order, n);
}
