/*
 * Linear layers of a pass: several matrices over the same input are one list of panels, which the team shares. With
 * many rows, or many panels, whoever asks next gets the next few; where a phase takes microseconds each thread has its
 * own run of panels, known beforehand. Either way a thread knows what it works on next, and has that fetched meanwhile.
 */
#include "model/engine_int.h"
#include "vc/mem.h"

enum { PAIR = 2 /* kernels like pairs of panels */ };

static uint32_t n_panels(const node_target_t *targets, uint32_t n)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += targets[i].m->n_panels;
    return total;
}

const uint8_t *node_panel_data(const node_target_t *targets, uint32_t n, uint32_t panel)
{
    for (uint32_t i = 0; i < n; panel -= targets[i++].m->n_panels)
        if (panel < targets[i].m->n_panels)
            return targets[i].m->data + panel * targets[i].m->panel_bytes;
    return NULL;
}

/* Panels [p, end) of the list for n_rows rows; ahead: what comes after them. */
static void run_panels(const node_engine_t *eng, const node_target_t *targets, uint32_t n, uint32_t p, uint32_t end,
                       const uint8_t *ahead, const node_acts_t *a, uint32_t first, uint32_t n_rows)
{
    for (uint32_t i = 0, base = 0; i < n && p < end; base += targets[i++].m->n_panels) {
        const node_target_t *t = &targets[i];
        uint32_t stop = VC_MIN(end, base + t->m->n_panels);
        if (p >= stop)
            continue;
        eng->ops->linear(t->m, p - base, stop - base, stop < end ? t[1].m->data : ahead, a, first, n_rows, t->out,
                         t->stride);
        p = stop;
    }
}

/* A thread takes its next item before it works on the one at hand, so that it can ask for its weights in time. Items of
 * a few panels stay in L1 while the rows run over them, and there are enough of them for an even end. */
void node_linear(node_pass_t *pass, const node_acts_t *a, uint32_t first, uint32_t rows_end,
                 const node_target_t *targets, uint32_t n)
{
    node_engine_t *eng = pass->eng;
    const uint32_t total = n_panels(targets, n), chunk = total / (eng->n_threads * 16) < 4 ? PAIR : 2 * PAIR;
    uint32_t n_items = (total + chunk - 1) / chunk, item, next;
    for (bool more = node_team_next(eng->team, n_items, &item); more; item = next) {
        more = node_team_next(eng->team, n_items, &next);
        run_panels(eng, targets, n, item * chunk, VC_MIN((item + 1) * chunk, total),
                   more ? node_panel_data(targets, n, next * chunk) : NULL, a, first, rows_end - first);
    }
    node_team_barrier(eng->team);
}

node_range_t node_own_panels(const node_engine_t *eng, const node_target_t *targets, uint32_t n, uint32_t thread)
{
    const uint32_t total = n_panels(targets, n), pairs = (total + PAIR - 1) / PAIR;
    return (node_range_t){(uint32_t)((uint64_t)pairs * thread / eng->n_threads) * PAIR,
                          VC_MIN((uint32_t)((uint64_t)pairs * (thread + 1) / eng->n_threads) * PAIR, total)};
}

void node_linear_own(const node_pass_t *pass, uint32_t thread, const node_acts_t *a, uint32_t first, uint32_t rows_end,
                     const node_target_t *targets, uint32_t n, const uint8_t *ahead)
{
    const node_engine_t *eng = pass->eng;
    const node_range_t own = node_own_panels(eng, targets, n, thread);
    for (uint32_t p = own.from, end; p < own.end; p = end) {
        end = rows_end - first <= eng->ops->stream_rows ? own.end : VC_MIN(p + PAIR, own.end);
        run_panels(eng, targets, n, p, end, end < own.end ? node_panel_data(targets, n, end) : ahead, a, first,
                   rows_end - first);
    }
}

static const node_matrix_t *logits_of(const node_pass_t *pass, uint32_t want)
{
    const node_kv_t *kv = pass->rows[pass->eng->want[want]].kv;
    return kv->part != NULL ? &kv->part->m : &pass->eng->w.logits;
}

/* Runs of rows that want the logits of the same tokens go together. */
void node_project(node_pass_t *pass, const node_acts_t *a)
{
    for (uint32_t i = 0, end; i < pass->n_want; i = end) {
        const node_target_t logits = {logits_of(pass, i), pass->logits, pass->eng->info.n_vocab};
        for (end = i + 1; end < pass->n_want && logits_of(pass, end) == logits.m; end++)
            ;
        node_linear(pass, a, i, end, &logits, 1);
    }
}
