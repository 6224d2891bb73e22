/*
 * Sessions whose oldest blocks are in the slow tier (kv/slow.h): before the attention of a layer their blocks of that
 * layer have to be there, and whole. Thread 0 waits for the bytes, the team checks their sums.
 */
#include "model/engine_int.h"

/* Parts that a thread checks at a time: some ten microseconds. */
enum { CHECK_RUN = 4 };

/* The i-th session of the pass that streams, or NULL; *row_p: where to look for the next one, 0 at first. */
static node_kv_t *next_session(const node_pass_t *pass, uint32_t *row_p)
{
    for (uint32_t i = *row_p; i < pass->n_rows; i++) {
        node_kv_t *kv = pass->rows[i].kv;
        if ((i > 0 && pass->rows[i - 1].kv == kv) || kv->slow == NULL || node_slow_n_spilled(kv->slow) == 0)
            continue;
        *row_p = i + 1;
        return kv;
    }
    return NULL;
}

vc_status_t node_stream_begin(node_pass_t *pass, vc_err_t *err)
{
    vc_status_t st = VC_OK;
    for (uint32_t i = 0, end; st == VC_OK && i < pass->n_rows; i = end) {
        node_kv_t *kv = pass->rows[i].kv;
        for (end = i + 1; end < pass->n_rows && pass->rows[end].kv == kv; end++)
            ;
        if (kv->slow == NULL)
            continue;
        st = node_slow_begin(kv, end - i, err);
        pass->streams = pass->streams || node_slow_n_spilled(kv->slow) > 0;
    }
    if (st != VC_OK) {
        node_stream_abort(pass);
        return st;
    }
    /* only now, when all are known: layer by layer over all of them */
    uint32_t row = 0;
    for (node_kv_t *kv; (kv = next_session(pass, &row)) != NULL;)
        node_slow_pump(kv);
    return VC_OK;
}

static void check_blocks(node_pass_t *pass)
{
    uint32_t row = 0, base = 0, item, total = 0;
    node_kv_t *kv;
    while ((kv = next_session(pass, &row)) != NULL)
        total += (node_slow_n_spilled(kv->slow) + CHECK_RUN - 1) / CHECK_RUN;
    row = 0;
    kv = next_session(pass, &row);
    while (node_team_next(pass->eng->team, total, &item)) {
        uint32_t n = node_slow_n_spilled(kv->slow);
        while (item - base >= (n + CHECK_RUN - 1) / CHECK_RUN) { /* a thread's items come in ascending order */
            base += (n + CHECK_RUN - 1) / CHECK_RUN;
            kv = next_session(pass, &row);
            n = node_slow_n_spilled(kv->slow);
        }
        for (uint32_t b = (item - base) * CHECK_RUN; b < n && b < (item - base + 1) * CHECK_RUN; b++)
            if (!node_slow_check_block(kv->slow, b)) /* relaxed: the barrier publishes it */
                atomic_store_explicit(&pass->damaged, true, memory_order_relaxed);
    }
}

/* Each session that is damaged is told of it, so that others can go on without it. */
static vc_status_t blame(node_pass_t *pass, uint32_t layer)
{
    uint32_t row = 0;
    vc_status_t st = VC_OK;
    for (node_kv_t *kv; (kv = next_session(pass, &row)) != NULL;)
        for (uint32_t b = 0; b < node_slow_n_spilled(kv->slow); b++)
            if (!node_slow_check_block(kv->slow, b)) {
                st = node_slow_damaged(kv->slow, layer, pass->err);
                break;
            }
    return st;
}

bool node_stream_layer(node_pass_t *pass, uint32_t layer, uint32_t thread)
{
    uint32_t row = 0;
    node_kv_t *kv;
    /* the status and kv->stream are written before a barrier and read after it */
    while (thread == 0 && pass->status == VC_OK && (kv = next_session(pass, &row)) != NULL)
        pass->status = node_slow_acquire(kv, layer, pass->err);
    node_team_barrier(pass->eng->team);
    if (pass->status != VC_OK)
        return false;
    check_blocks(pass);
    node_team_barrier(pass->eng->team);
    if (!atomic_load_explicit(&pass->damaged, memory_order_relaxed))
        return true;
    if (thread == 0)
        pass->status = blame(pass, layer);
    return false;
}

void node_stream_release(node_pass_t *pass, uint32_t thread)
{
    uint32_t row = 0;
    node_kv_t *kv;
    while (thread == 0 && (kv = next_session(pass, &row)) != NULL)
        node_slow_release(kv);
}

void node_stream_abort(node_pass_t *pass)
{
    uint32_t row = 0;
    node_kv_t *kv;
    while ((kv = next_session(pass, &row)) != NULL)
        node_slow_abort(kv);
}
