/*
 * The slow tier of a batch: one pool of buffers for all requests, bytes ordered as the schedule says, and the link's
 * rate as it shows. An iteration's bytes are rate x compute time of an iteration; waits are left out, or a slow link
 * would be planned as a fast one. The rate goes up with any faster iteration, and down only with iterations in which a
 * pass stood still: a link that had nothing to do is not a slow one.
 */
#include <time.h>

#include "batch_int.h"
#include "vc/mem.h"

#define KEEP 0.8           /* of a mean per iteration */
#define BUDGETS_EVERY 8u   /* iterations */
#define STOOD_STILL 0.1    /* of an iteration: the link was the limit */
#define SLICE_US 200u      /* between looks at a link that is waited for */
#define WAIT_MOST_US 50000 /* the schedule thinks again then */

vc_status_t batch_link_open(node_batch_t *b, vc_err_t *err)
{
    const node_batch_opts_t *o = &b->opt;
    node_kv_dims_t dims;
    node_engine_kv_dims(o->engine, &dims);
    uint32_t context = node_engine_info(o->engine)->context, tokens = o->max_tokens ? o->max_tokens : context;
    b->tier = (node_slow_opts_t){.dir = o->kv_dir,
                                 .ram_bytes = o->kv_ram / o->max_running,
                                 .max_tokens = VC_MIN(tokens, context),
                                 .pass_rows = b->max_rows,
                                 .share_option = "--max-running",
                                 .n_shares = o->max_running};
    if (o->kv_ram == 0 || !node_slow_needed(&dims, &b->tier))
        return VC_OK;
    node_slow_pool_opts_t p = {.dir = o->kv_dir,
                               .hold_bytes = o->hold_bytes,
                               .spilled_tokens = node_slow_spilled_tokens(&dims, &b->tier),
                               .n_streams = o->max_running,
                               .io = o->io,
                               .clock = o->clock,
                               .delay_seed = o->delay_seed};
    uint64_t least = node_slow_pool_least(&dims, &p), layers = least / p.n_streams / 2; /* bytes of one buffer */
    if (p.hold_bytes == 0)
        p.hold_bytes = least + layers * dims.n_layer;
    p.hold_bytes = VC_MIN(p.hold_bytes, VC_MAX(least, layers * dims.n_layer * p.n_streams)); /* all layers of all */
    vc_status_t st = node_slow_pool_create(&dims, &p, &b->pool, err);
    if (st != VC_OK)
        return st;
    b->tier.pool = b->pool;
    b->n_lent = p.hold_bytes / layers - 2 * (p.n_streams - 1); /* two of every other request are never lent out */
    b->hold_bytes = b->n_lent * layers;
    b->link_rate = o->link_rate > 0 ? o->link_rate : 1e9;
    b->step_us = 10e3;
    return VC_OK;
}

vc_status_t batch_link_join(node_batch_t *b, member_t *m, vc_err_t *err)
{
    node_kv_t *kv = node_verifier_kv(m->v);
    node_slow_opts_t o = b->tier;
    uint32_t most = m->end + batch_max_draft(b);
    node_slow_t *slow;
    o.max_tokens = VC_MIN(most, b->tier.max_tokens);
    if (b->pool == NULL)
        return VC_OK;
    if (m->end > b->tier.max_tokens)
        return vc_err_set(err, VC_ERR_RANGE, "prompt and answer of %u tokens, the batch was made for %u", m->end,
                          b->tier.max_tokens);
    if (!node_slow_needed(&kv->dims, &o))
        return VC_OK;
    vc_status_t st = node_slow_create(&kv->dims, &o, &slow, err);
    if (st == VC_OK && (st = node_kv_set_slow(kv, slow)) != VC_OK)
        node_slow_destroy(slow);
    return st;
}

void batch_link_full(node_batch_t *b, const member_t *m, node_schedule_request_t *r)
{
    const node_kv_t *kv = node_verifier_kv(m->v);
    if (b->pool == NULL)
        return;
    r->full_bytes = node_slow_pass_bytes(kv);
    r->stream_bytes = VC_MIN(r->full_bytes, 2 * r->full_bytes / kv->dims.n_layer);
}

double batch_link_us(const node_batch_t *b, const member_t *m)
{
    return b->pool ? (double)node_slow_pass_bytes(node_verifier_kv(m->v)) / b->link_rate * 1e6 : 0;
}

void node_batch_limit_link(node_batch_t *b, uint64_t bytes_per_s)
{
    if (b->pool != NULL)
        node_slow_pool_limit(b->pool, bytes_per_s);
}

/* The least link bytes of an iteration at which such full KV can be verified at all: what does not fit into memory
 * comes in the pass, which lasts longer then. */
static uint64_t must(const node_batch_t *b, uint64_t full, uint64_t stream)
{
    uint64_t in_pass = full + stream > b->hold_bytes ? full + stream - b->hold_bytes : 0;
    return VC_MAX(in_pass, full / (b->opt.window - 1) + 1);
}

/* A buffer holds a layer, of whatever size: bytes are planned as if all were those of the smallest request. */
static void plan_memory(node_batch_t *b, const node_schedule_request_t *also)
{
    uint32_t n_layer = node_engine_info(b->opt.engine)->n_layer;
    uint64_t full = also != NULL && also->full_bytes > 0 ? also->full_bytes : UINT64_MAX;
    uint64_t most = also != NULL ? also->full_bytes : 0; /* a pass has its two buffers in any case */
    for (uint32_t i = 0; i < b->opt.max_requests; i++) {
        const member_t *m = &b->members[i];
        uint64_t bytes = m->state == MEMBER_RUNNING ? node_slow_pass_bytes(node_verifier_kv(m->v)) : 0;
        full = bytes > 0 ? VC_MIN(full, bytes) : full;
        most = VC_MAX(most, bytes);
    }
    if (full != UINT64_MAX)
        b->hold_bytes = VC_MAX(b->n_lent * (full / n_layer), 2 * most / n_layer);
}

/* Prompts beyond their share of memory stream in every piece, which nobody planned: it is not there for others. */
static uint64_t prompt_bytes(const node_batch_t *b)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < b->opt.max_requests; i++)
        if (b->members[i].state == MEMBER_PROMPT && b->members[i].work == WORK_PROMPT)
            sum += node_slow_pass_bytes(node_verifier_kv(b->members[i].v));
    return sum;
}

void batch_link_budgets(node_batch_t *b, const node_schedule_request_t *also)
{
    if (b->pool == NULL)
        return;
    uint64_t bytes = (uint64_t)(b->link_rate * b->step_us * 1e-6), prompts = prompt_bytes(b);
    bytes -= VC_MIN(bytes, prompts);
    plan_memory(b, also);
    for (uint32_t i = 0; i < b->opt.max_requests; i++) {
        const member_t *m = &b->members[i];
        node_schedule_request_t r = {0};
        if (m->state != MEMBER_RUNNING)
            continue;
        batch_link_full(b, m, &r);
        bytes = VC_MAX(bytes, must(b, r.full_bytes, r.stream_bytes));
    }
    if (also != NULL)
        bytes = VC_MAX(bytes, must(b, also->full_bytes, also->stream_bytes));
    /* out of range: one that is verified just now is larger than it was; the budgets stay, it is told by its resize */
    (void)node_schedule_set_budgets(b->schedule, bytes, b->hold_bytes, NULL);
}

/* Due bytes first, in the order in which they are due; then what memory allows beyond them. */
void batch_link_order(node_batch_t *b)
{
    uint32_t n = 0;
    if (b->pool == NULL)
        return;
    for (uint32_t i = 0; i < b->opt.max_requests; i++) {
        member_t *m = &b->members[i];
        if (m->state != MEMBER_RUNNING || m->work == WORK_VERIFY)
            continue;
        if (m->link_here < m->link_had) /* thrown away for an older one */
            node_slow_drop(node_verifier_kv(m->v));
        m->link_had = m->link_here;
        uint32_t j = n++;
        uint32_t at = UINT32_MAX, other;
        (void)node_schedule_placement(b->schedule, m->schedule_id, &at);
        for (; j > 0; j--) {
            other = UINT32_MAX;
            (void)node_schedule_placement(b->schedule, b->order[j - 1]->schedule_id, &other);
            if (other <= at)
                break;
            b->order[j] = b->order[j - 1];
        }
        b->order[j] = m;
    }
    for (int more = 0; more < 2; more++)
        for (uint32_t i = 0; i < n; i++) { /* a session that has failed says so in its pass */
            member_t *m = b->order[i];
            (void)node_slow_prefetch(node_verifier_kv(m->v), m->link_here + (more ? m->link_most : m->link_due));
        }
}

static void poll_pool(void *arg) { node_slow_pool_poll(arg); }

void batch_link_between(node_batch_t *b, bool on)
{
    if (b->pool != NULL)
        node_engine_between(b->opt.engine, on ? poll_pool : NULL, b->pool);
}

/* Bytes that came for requests that are not being verified; *due_p: those that were due. */
static uint64_t came(node_batch_t *b, uint64_t *due_p)
{
    uint64_t sum = 0;
    *due_p = 0;
    for (uint32_t i = 0; i < b->opt.max_requests; i++) {
        const member_t *m = &b->members[i];
        if (m->state != MEMBER_RUNNING || m->work == WORK_VERIFY)
            continue;
        uint64_t here = node_slow_arrived(node_verifier_kv(m->v));
        sum += VC_MIN(here > m->link_here ? here - m->link_here : 0, m->link_due);
        *due_p += m->link_due;
    }
    return sum;
}

/* Nobody has rows: until what is due has come; false when it does not. */
static bool wait_for_link(node_batch_t *b)
{
    uint64_t t0 = vc_clock_now_us(b->opt.clock), due, waited = 0;
    while (came(b, &due) < due && waited < WAIT_MOST_US) {
        nanosleep(&(struct timespec){0, SLICE_US * 1000}, NULL);
        waited += SLICE_US; /* a clock of tests may stand still */
    }
    b->info.idle_us += vc_clock_now_us(b->opt.clock) - t0;
    return waited < WAIT_MOST_US;
}

/* stuck: nobody has rows and what is due does not come, since others hold the buffers. */
static void tell_moved(node_batch_t *b, bool stuck)
{
    for (uint32_t i = 0; i < b->opt.max_requests; i++) {
        member_t *m = &b->members[i];
        if (m->state != MEMBER_RUNNING || m->work == WORK_VERIFY || m->link_most == 0)
            continue;
        uint64_t here = node_slow_arrived(node_verifier_kv(m->v));
        uint64_t moved = VC_MIN(here > m->link_here ? here - m->link_here : 0, m->link_most);
        if (stuck) /* told as come: the pass waits for what is missing */
            moved = VC_MAX(moved, m->link_due);
        (void)node_schedule_moved(b->schedule, m->schedule_id, moved);
        m->link_had += moved;
    }
}

uint64_t batch_link_came(node_batch_t *b, uint64_t took_us, bool had_rows)
{
    if (b->pool == NULL)
        return 0;
    tell_moved(b, !had_rows && !wait_for_link(b));
    node_slow_pool_stats_t s;
    node_slow_pool_stats(b->pool, &s);
    uint64_t waited = VC_MIN(s.wait_us - b->wait_us, took_us);
    double rate = took_us ? (double)(s.read_bytes - b->read_bytes) / (double)took_us * 1e6 : 0;
    bool limit = (double)waited > STOOD_STILL * (double)took_us;
    if (had_rows && rate > 0 && (limit || rate > b->link_rate))
        b->link_rate += (1 - KEEP) * (rate - b->link_rate);
    if (had_rows)
        b->step_us += (1 - KEEP) * ((double)(took_us - waited) - b->step_us);
    b->wait_us = s.wait_us;
    b->read_bytes = s.read_bytes;
    b->info.link_wait_us = s.wait_us;
    b->info.link_bytes = s.read_bytes;
    b->info.link_busy_us = s.busy_us;
    b->info.link_rate = b->link_rate;
    if (b->info.n_iterations % BUDGETS_EVERY == 0)
        batch_link_budgets(b, NULL);
    return waited;
}
