/* Data plane: start, stop, the progress loop on the worker, operations and their buffers. See dataplane_int.h. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "dataplane_int.h"
#include "vc/log.h"
#include "vc/mem.h"

void cs_dataplane_opts_default(cs_dataplane_opts_t *opts)
{
    *opts = (cs_dataplane_opts_t){
        .listen = "127.0.0.1:0",
        .peer_timeout_ms = 5000,
        .max_peers = 64,
        .shm = true,
        .max_shm_peers = 8,
        .window = 16,
        .put_window = 4,
        .rndv_threshold = 512u << 10,
        .clock = vc_clock_system(),
    };
}

uint64_t dp_now(const cs_dataplane_t *dp) { return vc_clock_now_us(dp->opts.clock); }

/* ---- operations ---- */

dp_op_t *dp_op_get(dp_peer_t *peer, dp_kind_t kind, uint64_t request)
{
    cs_dataplane_t *dp = peer->dp;
    dp_op_t *op = dp->free_ops;
    if (op == NULL)
        return NULL;
    dp->free_ops = op->next;
    *op = (dp_op_t){.dp = dp, .peer = peer, .kind = kind, .request = request};
    peer->n_ops++;
    if (kind == DP_CONTROL)
        peer->n_control++;
    else if (kind == DP_FETCH)
        peer->n_records++, dp->n_records++;
    else
        peer->n_puts++;
    return op;
}

void dp_op_drop_buffer(dp_op_t *op)
{
    if (op->has_pin) {
        cs_store_unpin(op->dp->opts.store, &op->pin);
        op->has_pin = false;
        DP_COUNT(op->dp, pins_held, -1);
    }
    if (op->buf != NULL) {
        cs_bufpool_put(op->dp->opts.pool, op->buf);
        op->buf = NULL;
        DP_COUNT(op->dp, ops_in_flight, -1);
    }
    if (op->view != NULL) {
        cs_view_release(op->view);
        op->view = NULL;
        DP_COUNT(op->dp, ops_in_flight, -1);
    }
}

void dp_op_free(dp_op_t *op)
{
    dp_peer_t *peer = op->peer;
    dp_layers_drop(op);
    dp_op_drop_buffer(op);
    peer->n_ops--;
    if (op->kind == DP_CONTROL)
        peer->n_control--;
    else if (op->kind == DP_FETCH)
        peer->n_records--, peer->dp->n_records--;
    else
        peer->n_puts--;
    op->next = op->dp->free_ops;
    op->dp->free_ops = op;
}

void dp_op_finished(dp_op_t *op, vc_status_t status)
{
    cs_dataplane_t *dp = op->dp;
    op->status = status;
    op->next = NULL;
    *dp->finished_tail = op;
    dp->finished_tail = &op->next;
}

static void finished_elsewhere(void *arg)
{
    dp_op_t *op = arg;
    dp_op_finished(op, op->status);
}

/* The store runs this on a data worker; with several of them it may be another one than ours. */
void dp_op_store_done(void *arg, vc_status_t status)
{
    dp_op_t *op = arg;
    if (cs_worker_is_self(op->dp->worker)) {
        dp_op_finished(op, status);
        return;
    }
    op->status = status;
    while (cs_worker_post(op->dp->worker, finished_elsewhere, op) != VC_OK)
        sched_yield(); /* our worker empties its ring without waiting for anybody */
}

void dp_op_got_view(void *arg, vc_status_t status, cs_view_t *view)
{
    dp_op_t *op = arg;
    op->view = view;
    if (view != NULL)
        DP_COUNT(op->dp, ops_in_flight, 1);
    dp_op_store_done(op, status);
}

/* ---- buffers ---- */

static void wakeup_free(dp_wakeup_t *wakeup)
{
    pthread_mutex_destroy(&wakeup->lock);
    vc_free(wakeup);
}

static void resume(void *arg)
{
    dp_wakeup_t *wakeup = arg;
    pthread_mutex_lock(&wakeup->lock); /* whoever posted this may still be inside */
    pthread_mutex_unlock(&wakeup->lock);
    if (wakeup->dp != NULL) { /* only this thread clears it */
        wakeup->dp->wakeup = NULL;
        wakeup->dp->dirty = true;
    }
    wakeup_free(wakeup);
}

/* Any thread: a buffer came back. If the worker's ring is full the next tick finds out. */
static void on_buffer(void *arg)
{
    dp_wakeup_t *wakeup = arg;
    pthread_mutex_lock(&wakeup->lock);
    bool orphan = wakeup->dp == NULL;
    if (!orphan)
        wakeup->lost = cs_worker_post(wakeup->dp->worker, resume, wakeup) != VC_OK;
    pthread_mutex_unlock(&wakeup->lock);
    if (orphan)
        wakeup_free(wakeup);
}

/* Lets go of the outstanding wakeup: it frees itself when its call comes, unless that came and was lost. */
static void abandon_wakeup(cs_dataplane_t *dp, bool only_lost)
{
    dp_wakeup_t *wakeup = dp->wakeup;
    if (wakeup == NULL)
        return;
    pthread_mutex_lock(&wakeup->lock);
    bool lost = wakeup->lost;
    if (lost || !only_lost) {
        wakeup->dp = NULL;
        dp->wakeup = NULL;
    }
    pthread_mutex_unlock(&wakeup->lock);
    if (lost)
        wakeup_free(wakeup);
}

void dp_want_buffer(cs_dataplane_t *dp)
{
    dp->starving = true;
    if (dp->wakeup != NULL)
        return;
    dp_wakeup_t *wakeup = vc_calloc(1, sizeof(*wakeup));
    if (wakeup == NULL)
        return; /* the tick tries again */
    pthread_mutex_init(&wakeup->lock, NULL);
    wakeup->dp = dp;
    dp->wakeup = wakeup;
    cs_bufpool_notify(dp->opts.pool, on_buffer, wakeup);
}

cs_buf_t *dp_take_buffer(cs_dataplane_t *dp)
{
    cs_buf_t *buf = cs_bufpool_get(dp->opts.pool);
    if (buf == NULL)
        dp_want_buffer(dp);
    else
        DP_COUNT(dp, ops_in_flight, 1);
    return buf;
}

/* ---- the loop ---- */

static void set_timer(cs_dataplane_t *dp, bool on)
{
    if (dp->timer_on == on)
        return;
    dp->timer_on = on;
    struct timespec period = {0, on ? (long)DP_TICK_US * 1000 : 0};
    struct itimerspec spec = {period, period};
    timerfd_settime(dp->timer_fd, 0, &spec, NULL);
}

static void advance(dp_op_t *op)
{
    if (op->stage == DP_SENDING || op->stage == DP_RECEIVING) {
        op->peer->on_wire--;
        op->peer->progress_us = dp_now(op->dp);
    }
    switch (op->kind) {
    case DP_FETCH: dp_fetch_advance(op); break;
    case DP_PUT: dp_put_advance(op); break;
    case DP_CONTROL: dp_op_free(op); break;
    }
}

static unsigned take_finished(cs_dataplane_t *dp)
{
    unsigned n = 0;
    while (dp->finished != NULL) {
        dp_op_t *op = dp->finished;
        dp->finished = op->next;
        if (dp->finished == NULL)
            dp->finished_tail = &dp->finished;
        advance(op);
        n++;
    }
    return n;
}

static void pump(cs_dataplane_t *dp)
{
    dp->starving = false;
    dp_put_pump(dp); /* puts first: each holds a sender up, and gives its buffer back soon */
    for (dp_peer_t *peer = dp->peers; peer != NULL; peer = peer->next)
        dp_fetch_pump(peer);
}

static void tick(cs_dataplane_t *dp)
{
    uint64_t expirations;
    if (read(dp->timer_fd, &expirations, sizeof(expirations)) < 0 && errno != EAGAIN)
        vc_log_warn("dataplane", "timer unreadable errno=%d", errno);
    dp->next_tick_us = vc_clock_now_us(vc_clock_system()) + DP_TICK_US;
    dp->look_at_meet = true; /* a worker that never sleeps looks now and then */
    dp_peers_tick(dp);
    abandon_wakeup(dp, true);
    if (dp->starving)
        dp->dirty = true;
}

static void note_drained(cs_dataplane_t *dp)
{
    pthread_mutex_lock(&dp->lock);
    dp->drained = true;
    pthread_cond_broadcast(&dp->cond);
    pthread_mutex_unlock(&dp->lock);
}

static unsigned progress(void *arg)
{
    cs_dataplane_t *dp = arg;
    unsigned n = vc_ucx_progress(dp->ucx) + dp_shm_progress(dp);
    if (dp->look_at_meet) {
        dp->look_at_meet = false;
        dp_shm_poll(dp);
    }
    unsigned m = take_finished(dp);
    if (dp->timer_on && vc_clock_now_us(vc_clock_system()) >= dp->next_tick_us)
        tick(dp);
    if (n + m > 0 || dp->dirty) {
        dp->dirty = false;
        pump(dp);
        dp_peers_close_doomed(dp);
        set_timer(dp, dp->n_peers > 0);
    }
    if (dp->stopping && dp->n_peers == 0)
        note_drained(dp);
    return n + m;
}

static bool arm(void *arg)
{
    cs_dataplane_t *dp = arg;
    if (dp->finished != NULL || dp->dirty)
        return false;
    return vc_ucx_arm(dp->ucx) && dp_shm_arm(dp);
}

/* ---- start and stop ---- */

static void post(cs_dataplane_t *dp, void (*fn)(void *arg))
{
    while (cs_worker_post(dp->worker, fn, dp) != VC_OK)
        sched_yield();
}

static void attach(void *arg)
{
    cs_dataplane_t *dp = arg;
    cs_worker_hook_t hook = {progress, arm, dp->epoll_fd, dp};
    cs_worker_set_hook(dp->worker, &hook);
    pthread_mutex_lock(&dp->lock);
    dp->attached = true;
    pthread_cond_broadcast(&dp->cond);
    pthread_mutex_unlock(&dp->lock);
}

static void detach(void *arg)
{
    cs_dataplane_t *dp = arg;
    cs_worker_set_hook(dp->worker, NULL);
    abandon_wakeup(dp, false);
    pthread_mutex_lock(&dp->lock);
    dp->attached = false;
    pthread_cond_broadcast(&dp->cond);
    pthread_mutex_unlock(&dp->lock);
}

static void begin_stop(void *arg)
{
    cs_dataplane_t *dp = arg;
    vc_ucx_listen_stop(dp->ucx);
    dp_shm_stop(dp);
    for (dp_peer_t *peer = dp->peers; peer != NULL; peer = peer->next)
        peer->doomed = true;
    dp->stopping = dp->dirty = true;
}

static void wait_for(cs_dataplane_t *dp, const bool *flag, bool value)
{
    pthread_mutex_lock(&dp->lock);
    while (*flag != value)
        pthread_cond_wait(&dp->cond, &dp->lock);
    pthread_mutex_unlock(&dp->lock);
}

static void destroy(cs_dataplane_t *dp)
{
    dp_shm_close(dp);
    vc_ucx_close(dp->ucx);
    if (dp->timer_fd >= 0)
        close(dp->timer_fd);
    if (dp->epoll_fd >= 0)
        close(dp->epoll_fd);
    pthread_cond_destroy(&dp->cond);
    pthread_mutex_destroy(&dp->lock);
    vc_free(dp->ops);
    vc_free(dp);
}

static vc_status_t make_ops(cs_dataplane_t *dp)
{
    uint32_t per_peer = dp->opts.window + dp->opts.put_window + DP_MAX_CONTROL;
    size_t n = (size_t)dp->opts.max_peers * per_peer;
    dp->ops = vc_calloc(n, sizeof(*dp->ops));
    if (dp->ops == NULL)
        return VC_ERR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        dp->ops[i].next = dp->free_ops;
        dp->free_ops = &dp->ops[i];
    }
    return VC_OK;
}

static vc_status_t make_events(cs_dataplane_t *dp, vc_err_t *err)
{
    struct epoll_event ev = {.events = EPOLLIN};
    dp->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    dp->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (dp->epoll_fd < 0 || dp->timer_fd < 0 || epoll_ctl(dp->epoll_fd, EPOLL_CTL_ADD, dp->timer_fd, &ev) != 0 ||
        epoll_ctl(dp->epoll_fd, EPOLL_CTL_ADD, vc_ucx_fd(dp->ucx), &ev) != 0)
        return vc_err_set(err, vc_status_from_errno(errno), "data plane: no event descriptors: %s", strerror(errno));
    return VC_OK;
}

/* The pool's buffers, and the slabs of the memory tier. */
static vc_status_t register_memory(cs_dataplane_t *dp, vc_err_t *err)
{
    size_t bytes = 0, slab_bytes;
    void *base = cs_bufpool_base(dp->opts.pool, &bytes);
    vc_status_t st = vc_ucx_register(dp->ucx, base, bytes, err);
    void *slabs = cs_bufpool_attached(dp->opts.pool, &bytes, &slab_bytes);
    if (st == VC_OK && slabs != NULL)
        st = vc_ucx_register(dp->ucx, slabs, bytes, err);
    return st;
}

static vc_status_t open_ucx(cs_dataplane_t *dp, vc_err_t *err)
{
    vc_ucx_opts_t opts = {
        .address = dp->opts.listen,
        .listen = true,
        .ports = dp->opts.data_ports,
        .rndv_threshold = dp->opts.rndv_threshold,
    };
    vc_status_t st = vc_ucx_open(&opts, &dp->ucx, err);
    if (st == VC_OK)
        st = register_memory(dp, err);
    if (st != VC_OK)
        return st;
    vc_ucx_set_handler(dp->ucx, dp_peer_message, dp);
    st = vc_ucx_listen(dp->ucx, dp_peer_request, dp, err);
    if (st == VC_OK)
        snprintf(dp->address, sizeof(dp->address), "%s", vc_ucx_listen_address(dp->ucx));
    return st;
}

static vc_status_t check_opts(const cs_dataplane_opts_t *opts, vc_err_t *err)
{
    if (opts->max_peers == 0 || opts->max_shm_peers == 0 || opts->max_shm_peers > 64 || opts->max_peers > 4096 ||
        opts->window == 0 || opts->window > 1024 || opts->put_window == 0 || opts->put_window > 1024 ||
        opts->peer_timeout_ms == 0 || opts->rndv_threshold == 0)
        return vc_err_set(
            err, VC_ERR_RANGE,
            "data plane: peers 1..4096, of shared memory 1..64, windows 1..1024, timeout and threshold above 0");
    if (!opts->trust_data_network && !vc_ucx_address_is_loopback(opts->listen))
        return vc_err_set(err, VC_ERR_PERM,
                          "data plane: %s is not a loopback address; its traffic is neither encrypted nor "
                          "authenticated, so that needs --trust-data-network",
                          opts->listen);
    return VC_OK;
}

vc_status_t cs_dataplane_start(const cs_dataplane_opts_t *opts, cs_dataplane_t **dp_p, vc_err_t *err)
{
    vc_status_t st = check_opts(opts, err);
    if (st != VC_OK)
        return st;
    cs_dataplane_t *dp = vc_calloc(1, sizeof(*dp));
    if (dp == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for the data plane");
    dp->opts = *opts;
    dp->worker = cs_workers_get(opts->workers, 0);
    dp->epoll_fd = dp->timer_fd = dp->meet_fd = dp->meet_epoll_fd = -1;
    dp->n_bufs = cs_bufpool_count(opts->pool);
    dp->finished_tail = &dp->finished;
    dp->waiting_tail = &dp->waiting;
    pthread_mutex_init(&dp->lock, NULL);
    pthread_cond_init(&dp->cond, NULL);
    st = make_ops(dp);
    if (st != VC_OK)
        vc_err_set(err, st, "out of memory for the data plane");
    if (st == VC_OK)
        st = open_ucx(dp, err);
    if (st == VC_OK)
        st = make_events(dp, err);
    if (st != VC_OK) {
        destroy(dp);
        return st;
    }
    vc_err_t why = {0};
    if (opts->shm && dp_shm_open(dp, &why) != VC_OK)
        vc_log_warn("dataplane", "no shared memory, clients on this machine use the network reason=\"%s\"", why.msg);
    post(dp, attach);
    wait_for(dp, &dp->attached, true);
    vc_log_info("dataplane", "listening address=%s shm=%s rndv_threshold=%u window=%u", dp->address,
                dp->shm != NULL ? "on" : "off", opts->rndv_threshold, opts->window);
    *dp_p = dp;
    return VC_OK;
}

void cs_dataplane_stop(cs_dataplane_t *dp)
{
    if (dp == NULL)
        return;
    post(dp, begin_stop);
    wait_for(dp, &dp->drained, true);
    post(dp, detach);
    wait_for(dp, &dp->attached, false);
    destroy(dp);
}

const char *cs_dataplane_address(const cs_dataplane_t *dp) { return dp->address; }
const char *cs_dataplane_shm_address(const cs_dataplane_t *dp) { return dp->shm_address; }

void cs_dataplane_get_stats(const cs_dataplane_t *dp, cs_dataplane_stats_t *stats_p)
{
    const dp_counters_t *c = &dp->counters;
#define READ(name) .name = atomic_load_explicit(&c->name, memory_order_relaxed)
    *stats_p = (cs_dataplane_stats_t){
        READ(peers_open),     READ(peers_total), READ(peers_refused),   READ(peers_lost),      READ(peers_stalled),
        READ(fetches),        READ(puts),        READ(records_sent),    READ(bytes_sent),      READ(records_received),
        READ(bytes_received), READ(bad_frames),  READ(unauthenticated), READ(stale),           READ(wire_corrupt),
        READ(ops_in_flight),  READ(pins_held),   READ(shm_peers),       READ(shm_peers_total), READ(shm_refused),
        READ(step_downs),     READ(pieces_sent),
    };
#undef READ
}
