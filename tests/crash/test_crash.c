/*
 * kill -9 at any time, at every fault point, in recovery too: after each restart what is visible is a legal history,
 * and every byte of it is right (crash.h says what that means).
 *
 * VC_CRASH_CASE='SCENARIO SEED LIFE;...' repeats one case alone, as often as VC_CRASH_TIMES says; the threads of a life
 * interleave differently each time. VC_CRASH_LOG=1 shows what the store logs, VC_CRASH_KEEP=1 leaves a failed
 * directory. VC_CRASH_FOR=SECONDS goes on with new seeds for that long, which is what ./run test --long does.
 */
#include "support/vc_test.h"

#include <time.h>

#include "crash.h"

/* Fixed, so that each run kills at the same places; each scenario gets half of what is asked for. Sanitized lives are
 * slow and interleave less: they go by every fault point, and the bulk of the kills is for the others. */
#ifdef VC_FAULTS
enum { KILLS = VT_EVERY > 1 ? 80 : 252, SEED = 20000 };
#else
enum { KILLS = 40, SEED = 30000 };
#endif

static bool is_single(void) { return getenv("VC_CRASH_CASE") || getenv("VC_CRASH_FOR"); }

static void run_scenario(const char *scenario)
{
    if (is_single())
        return;
    double start = crash_now_s();
    crash_model_t *model = crash_model_create();
    cr_assert_not_null(model);
    cr_assert(crash_sweep(model, scenario, SEED));
    cr_assert(crash_storm(model, scenario, SEED, KILLS, 0));
    crash_report(model, scenario, start);
    cr_assert_geq(model->counts.kills, KILLS);
    cr_assert_geq(model->counts.recoveries_killed, KILLS / 20);
    cr_assert_geq(model->counts.commits, KILLS);
    crash_model_destroy(model);
}

Test(kill_points, without_pressure_every_acknowledged_commit_is_there_entirely) { run_scenario("roomy"); }

Test(kill_points, under_eviction_what_is_there_is_right_and_nothing_comes_back) { run_scenario("tight"); }

Test(kill_points, cases_that_failed_once_hold)
{
    crash_model_t *model = crash_model_create();
    cr_assert_not_null(model);
    const char *line = getenv("VC_CRASH_CASE"), *times = getenv("VC_CRASH_TIMES");
    for (int i = times ? atoi(times) : 1; i > 0 && line; i--)
        cr_assert(crash_epoch(model, line));
    cr_assert(is_single() || crash_replay(model, VC_CRASH_CASES));
    crash_model_destroy(model);
}

/* One test process for each scenario would halve the time; one shows a single row of figures. */
Test(kill_points, go_on_for_as_long_as_asked)
{
    const char *seconds = getenv("VC_CRASH_FOR");
    if (!seconds)
        return;
    double start = crash_now_s(), until = start + strtod(seconds, NULL);
    uint64_t seed = (uint64_t)time(NULL);
    crash_model_t *model = crash_model_create();
    cr_assert_not_null(model);
    for (; crash_now_s() < until; seed++) {
        const char *scenario = seed % 2 ? "roomy" : "tight";
        cr_assert(seed % 16 > 1 || crash_sweep(model, scenario, seed * 1000));
        cr_assert(crash_storm(model, scenario, seed, model->counts.kills + 100, until));
        crash_report(model, scenario, start);
    }
    crash_model_destroy(model);
}
