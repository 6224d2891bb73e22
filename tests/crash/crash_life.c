/* One life: opens, checks, then writers and readers at random from the seed until something kills it. */
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include "crash.h"
#include "vc/log.h"

#define LEASES_KEPT 2u /* per thread and life: a lease keeps what it names from eviction */

typedef struct worker {
    pthread_t thread;
    crash_model_t *model;
    const crash_scenario_t *scenario;
    fx_t *fx;
    uint64_t state;
    uint32_t number;
    uint32_t kill_at_step;
    uint32_t n_leases;
} worker_t;

uint32_t crash_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64: neighbouring seeds go different ways at once */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

static uint32_t below(worker_t *w, uint32_t n) { return crash_random(&w->state) % n; }

/* ---- what the model is told ---- */

static void flag(crash_model_t *model, const crash_unit_t *unit, uint8_t set, uint8_t clear)
{
    for (uint32_t f = 0; f < 2; f++) {
        for (uint32_t b = unit->first; (unit->what & (1u << f)) && b < unit->n_blocks; b++) {
            _Atomic uint8_t *flags = &model->objects[f][unit->chain][b];
            atomic_fetch_or(flags, set);
            atomic_fetch_and(flags, (uint8_t)~clear);
        }
    }
    model->touched[unit->chain] = model->life;
}

/* Without an injected failure only a tight store may refuse, and only for room. */
static bool is_fine(worker_t *w, vc_status_t status, const char *what)
{
    if (status == VC_OK)
        return true;
    bool is_refusal = status == VC_ERR_NOSPACE || status == VC_ERR_BUSY;
    if (w->model->tolerates_errors || (w->scenario->is_tight && is_refusal))
        w->model->counts.refused++;
    else
        crash_fail(w->model, "%s: %s", what, vc_status_name(status));
    return false;
}

/* ---- writers ---- */

typedef uint8_t flags_t[2][CRASH_BLOCKS];

static void copy_flags(const crash_model_t *model, uint32_t chain, flags_t flags)
{
    for (uint32_t f = 0; f < 2; f++) {
        for (uint32_t b = 0; b < CRASH_BLOCKS; b++)
            flags[f][b] = model->objects[f][chain][b];
    }
}

/* What was acknowledged before begin is found by it; what it finds had been announced when it returned. */
static void check_missing(worker_t *w, const crash_unit_t *unit, flags_t before, const uint8_t *missing)
{
    uint32_t n = unit->n_blocks - unit->first;
    for (uint32_t f = 0; f < 2; f++) {
        uint32_t row = unit->what == FX_BOTH ? f : 0;
        for (uint32_t b = unit->first; (unit->what & (1u << f)) && b < unit->n_blocks; b++) {
            uint8_t after = w->model->objects[f][unit->chain][b];
            bool is_missing = missing[row * n + b - unit->first];
            if (!is_missing && !(after & CRASH_MAY))
                crash_fail(w->model, "begin finds chain %u block %u copy %u, which was never committed", unit->chain, b,
                           f);
            if (is_missing && (before[f][b] & CRASH_MUST) && !w->scenario->is_tight)
                crash_fail(w->model, "begin misses chain %u block %u copy %u, which was acknowledged", unit->chain, b,
                           f);
        }
    }
}

static void commit_unit(worker_t *w, crash_unit_t *unit, const cs_upload_info_t *info)
{
    flag(w->model, unit, CRASH_MAY, 0);
    unit->step = CRASH_COMMITTING;
    vc_status_t status = fx_commit(w->fx, info);
    if (is_fine(w, status, "commit")) {
        flag(w->model, unit, CRASH_MUST, 0);
        w->model->counts.commits++;
    } else {
        (void)cs_store_abort(w->fx->store, info->upload_id, &info->token);
    }
    w->model->uploads[w->number].is_set = false;
}

static void end_unit(worker_t *w, const cs_upload_info_t *info)
{
    uint32_t choice = below(w, 12);
    if (choice == 0) {
        w->model->uploads[w->number].is_set = false;
        (void)is_fine(w, cs_store_abort(w->fx->store, info->upload_id, &info->token), "abort");
        w->model->counts.aborts++;
    } else if (choice == 1) { /* its client is gone; nobody ends it but the next start */
        w->model->counts.abandoned++;
    } else {
        commit_unit(w, &w->model->units[w->number], info);
    }
}

static void run_unit(worker_t *w, uint32_t chain, uint32_t first, uint32_t n_blocks, uint32_t what)
{
    cs_upload_info_t info;
    uint8_t missing[2 * CRASH_BLOCKS];
    flags_t before;
    crash_unit_t *unit = &w->model->units[w->number];
    crash_ticket_t *ticket = &w->model->uploads[w->number];
    unit->chain = chain;
    unit->first = first;
    unit->n_blocks = n_blocks;
    unit->what = what;
    unit->step = CRASH_PUTTING;
    copy_flags(w->model, chain, before);
    vc_status_t status = fx_begin(w->fx, crash_seed(chain), first, n_blocks, what, &info, missing);
    if (!is_fine(w, status, "begin")) {
        unit->step = CRASH_IDLE;
        return;
    }
    ticket->id = info.upload_id;
    ticket->token = info.token;
    ticket->is_set = true;
    check_missing(w, unit, before, missing);
    status = fx_put_missing(w->fx, &info, crash_seed(chain), first, n_blocks, what, missing);
    w->model->bytes_written += (uint64_t)info.n_missing * (w->scenario->n_layer + 1) * 4096;
    if (is_fine(w, status, "put")) {
        end_unit(w, &info);
    } else {
        ticket->is_set = false;
        (void)cs_store_abort(w->fx->store, info.upload_id, &info.token);
    }
    unit->step = CRASH_IDLE;
}

/* A new chain, one of ours again, or one that all writers register at the same time. */
static void write_something(worker_t *w)
{
    uint32_t chain, kind = below(w, 10), *next = &w->model->next_chain[w->number];
    uint32_t first = below(w, 3) == 0 ? below(w, CRASH_BLOCKS) : 0;
    uint32_t n_blocks = first + 1 + below(w, CRASH_BLOCKS - first);
    if (kind < 2) {
        chain = below(w, CRASH_SHARED);
    } else if (kind < 5) {
        chain = CRASH_SHARED + below(w, *next - CRASH_SHARED + 1);
        chain = chain - chain % CRASH_WRITERS + w->number;
        chain = chain >= CRASH_SHARED && chain < CRASH_CHAINS ? chain : *next;
    } else {
        chain = *next;
        *next += CRASH_WRITERS;
        if (*next >= CRASH_CHAINS)
            *next = CRASH_SHARED + (w->number + CRASH_WRITERS - CRASH_SHARED % CRASH_WRITERS) % CRASH_WRITERS;
    }
    run_unit(w, chain, first, n_blocks, 1 + below(w, 3));
}

/* ---- readers ---- */

static void read_leased(worker_t *w, uint32_t chain, uint32_t f, uint32_t b, const cs_lookup_result_t *r)
{
    cs_pin_t pin;
    vc_status_t status =
        cs_store_pin_leased(w->fx->store, cs_store_boot_id(w->fx->store), r->lease_id, &r->token, f, b, &pin);
    if (status != VC_OK) {
        if (!w->model->tolerates_errors)
            crash_fail(w->model, "chain %u block %u copy %u was leased and cannot be pinned: %s", chain, b, f,
                       vc_status_name(status));
        return;
    }
    cs_buf_t *buf = cs_bufpool_wait(w->fx->pool, 60000);
    memset(buf->data, 0xee, buf->cap);
    status = fx_read_pin(w->fx, &pin, buf);
    if (status == VC_OK) {
        uint8_t *want = vc_alloc_aligned(4096, buf->cap);
        uint32_t bytes = fx_record(w->fx, crash_seed(chain), b, f, want, buf->cap);
        if (bytes != pin.bytes || memcmp(want, buf->data, bytes) != 0)
            crash_fail(w->model, "chain %u block %u copy %u was read as good and is not", chain, b, f);
        vc_free(want);
        w->model->counts.reads++;
    } else if (!w->model->tolerates_errors) {
        crash_fail(w->model, "chain %u block %u copy %u was leased and reads as %s", chain, b, f,
                   vc_status_name(status));
    }
    cs_bufpool_put(w->fx->pool, buf);
    cs_store_unpin(w->fx->store, &pin);
}

/* The flags are looked at after the lookup: who may be visible then was announced before it became so. */
static void read_something(worker_t *w)
{
    cs_lookup_result_t r;
    uint32_t most = 0;
    for (uint32_t i = 0; i < CRASH_WRITERS; i++)
        most = VC_MAX(most, w->model->next_chain[i]);
    uint32_t chain = below(w, VC_MIN(most + 1, CRASH_CHAINS));
    vc_status_t status = cs_store_lookup(w->fx->store, &w->fx->ks_id, w->model->hashes[chain], CRASH_BLOCKS,
                                         w->fx->fids, 2, true, &r, NULL);
    if (!is_fine(w, status, "lookup"))
        return;
    w->model->counts.lookups++;
    for (uint32_t f = 0; f < 2; f++) {
        for (uint32_t b = 0; b < r.n_blocks[f]; b++) {
            if (!(w->model->objects[f][chain][b] & CRASH_MAY))
                crash_fail(w->model, "a lookup finds chain %u block %u copy %u, which was never committed", chain, b,
                           f);
            read_leased(w, chain, f, b, &r);
        }
    }
    if (r.lease_id == 0)
        return;
    if (w->n_leases < LEASES_KEPT && below(w, 4) == 0) {
        crash_ticket_t *ticket = &w->model->leases[w->number];
        ticket->is_set = false;
        ticket->boot_id = cs_store_boot_id(w->fx->store);
        ticket->id = r.lease_id;
        ticket->token = r.token;
        ticket->is_set = true;
        w->n_leases++;
        return;
    }
    (void)is_fine(w, cs_store_lease_release(w->fx->store, cs_store_boot_id(w->fx->store), r.lease_id, &r.token),
                  "release");
}

/* ---- the life ---- */

static void *work(void *arg)
{
    worker_t *w = arg;
    for (uint32_t i = 0; i < w->scenario->n_ops && !w->model->has_failed; i++) {
        uint32_t step = 1 + atomic_fetch_add(&w->model->steps, 1), kind = below(w, 16);
        if (w->kill_at_step == step)
            raise(SIGKILL);
        if (kind == 0) {
            vc_fake_clock_advance(&w->fx->clock, 5000000);
            cs_store_tick(w->fx->store);
        } else if (w->number >= CRASH_WRITERS || kind < 5) {
            read_something(w);
        } else {
            write_something(w);
        }
    }
    return NULL;
}

static void run_threads(crash_model_t *model, const crash_scenario_t *scenario, fx_t *fx, uint64_t seed,
                        uint32_t kill_at_step)
{
    worker_t workers[CRASH_THREADS];
    for (uint32_t i = 0; i < CRASH_THREADS; i++) {
        workers[i] = (worker_t){.model = model,
                                .scenario = scenario,
                                .fx = fx,
                                .state = (seed * 1000 + model->life) * 16 + i,
                                .number = i,
                                .kill_at_step = kill_at_step};
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    for (uint32_t i = 0; i < CRASH_THREADS; i++)
        pthread_join(workers[i].thread, NULL);
}

/* The kernel delivers SIGKILL by itself: no thread of ours has to wake up for it. */
static void kill_in(uint64_t us)
{
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec when = {.it_value = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000 + 1}};
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &when, NULL) != 0)
        abort();
}

static uint64_t number_after(const char *how, char mark) { return how[0] == mark ? strtoull(how + 1, NULL, 10) : 0; }

/* A fault other than kill: operations may fail then, and what was acknowledged holds all the same. */
static bool injects_errors(const char *how)
{
    unsigned n = 0, n_kill = 0;
    for (const char *at = strchr(how, ':'); at; at = strchr(at + 1, ':'))
        n++;
    for (const char *at = strstr(how, ":kill"); at; at = strstr(at + 1, ":kill"))
        n_kill++;
    return n != 2 * n_kill;
}

static void arm(crash_model_t *model, const char *how)
{
#ifdef VC_FAULTS
    memset(&model->passes, 0, sizeof(model->passes));
    cs_fault_count(&model->passes);
    bool is_point = strchr("-@+#", how[0]) == NULL;
    if (cs_fault_arm(is_point ? how : "") != VC_OK)
        crash_fail(model, "%s is no fault", how);
#endif
    model->tolerates_errors = injects_errors(how);
    if (how[0] == '@')
        kill_in(number_after(how, '@'));
}

static void leave_nothing(crash_model_t *model, fx_t *fx)
{
    cs_store_stats_t stats;
    vc_fake_clock_advance(&fx->clock, (uint64_t)3600 * 1000000);
    cs_store_tick(fx->store);
    cs_store_get_stats(fx->store, &stats);
    if (stats.pinned_bytes || stats.leases_open || stats.uploads_open)
        crash_fail(model, "an hour later %llu bytes are pinned, %llu leases and %llu uploads are open",
                   (unsigned long long)stats.pinned_bytes, (unsigned long long)stats.leases_open,
                   (unsigned long long)stats.uploads_open);
    model->counts.evictions += stats.evictions;
}

void crash_life(crash_model_t *model, const crash_scenario_t *scenario, fx_t *fx, uint64_t seed, const char *how,
                bool check_all)
{
    vc_err_t err = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(120); /* one that hangs has failed; none takes a second */
    vc_log_set_level(VC_LOG_ERROR);
    model->phase = CRASH_OPENING;
    arm(model, how);
    vc_fake_clock_init(&fx->clock, (1 + (uint64_t)model->life) * 3600 * 1000000);
    if (fx_open(fx, CS_IO_AUTO, &err) != VC_OK) {
        if (!model->tolerates_errors)
            crash_fail(model, "the store does not open: %s", err.msg);
        _exit(model->tolerates_errors ? 0 : 1); /* a refusal with a sentence; the next life opens */
    }
#ifdef VC_FAULTS
    model->passes_at_open = model->passes;
#endif
    model->phase = CRASH_CHECKING;
    crash_model_check(model, scenario, fx, check_all);
    if (model->has_failed)
        _exit(1);
    model->phase = CRASH_RUNNING;
    if (how[0] == '+')
        kill_in(number_after(how, '+'));
    run_threads(model, scenario, fx, seed, (uint32_t)number_after(how, '#'));
    leave_nothing(model, fx);
    model->phase = CRASH_CLOSING;
    fx_fini(fx);
    model->phase = CRASH_OVER;
    _exit(model->has_failed ? 1 : 0);
}
