/* One life: opens, checks, then writers and readers at random from the seed until something kills it. */
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include "crash.h"
#include "vc/log.h"

#define LIVES_MS (24u * 3600 * 1000) /* of leases and uploads: longer than the clock is advanced in a life */

uint32_t crash_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64: neighbouring seeds go different ways at once */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

static void *work(void *arg)
{
    crash_worker_t *w = arg;
    for (uint32_t i = 0; i < w->scenario->n_ops && !w->model->has_failed; i++) {
        uint32_t step = 1 + atomic_fetch_add(&w->model->steps, 1), kind = crash_random(&w->state) % 16;
        if (w->kill_at_step == step)
            raise(SIGKILL);
        if (kind == 0) {
            vc_fake_clock_advance(&w->fx->clock, 40000000); /* use counts are written once a minute */
            cs_store_tick(w->fx->store);
        } else if (w->number >= CRASH_WRITERS || kind < 5) {
            crash_read_something(w);
        } else if (kind < 7) {
            crash_rule_something(w);
        } else {
            crash_write_something(w);
        }
    }
    return NULL;
}

static void run_threads(crash_model_t *model, const crash_scenario_t *scenario, fx_t *fx, uint64_t seed,
                        uint32_t kill_at_step)
{
    crash_worker_t workers[CRASH_THREADS];
    for (uint32_t i = 0; i < CRASH_THREADS; i++) {
        workers[i] = (crash_worker_t){.model = model,
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
    vc_fake_clock_advance(&fx->clock, (uint64_t)LIVES_MS * 1000);
    cs_store_tick(fx->store);
    cs_store_get_stats(fx->store, &stats);
    if (stats.pinned_bytes || stats.leases_open || stats.uploads_open)
        crash_fail(model, "when all leases are over %llu bytes are pinned, %llu leases and %llu uploads are open",
                   (unsigned long long)stats.pinned_bytes, (unsigned long long)stats.leases_open,
                   (unsigned long long)stats.uploads_open);
    model->counts.evictions += stats.evictions;
}

static void log_nothing(void *arg, vc_log_level_t level, const char *line) { (void)arg, (void)level, (void)line; }

void crash_life(crash_model_t *model, const crash_scenario_t *scenario, fx_t *fx, uint64_t seed, const char *how,
                bool check_all)
{
    vc_err_t err = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(120); /* one that hangs has failed; none takes a second */
    if (!getenv("VC_CRASH_LOG"))
        vc_log_set_sink(log_nothing, NULL); /* what is injected is logged, rightly */
    model->phase = CRASH_OPENING;
    arm(model, how);
    vc_fake_clock_init(&fx->clock, (1 + (uint64_t)model->life) * 48 * 3600 * 1000000);
    fx->opts.lease_ms = fx->opts.upload_ms = LIVES_MS;
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
