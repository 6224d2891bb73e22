/* Lives one after the other in one directory. This process opens no store and has no threads, so it may fork. */
#include <sys/prctl.h>
#include <sys/wait.h>

#include "crash.h"
#include "verify.h"

typedef struct epoch {
    crash_model_t *model;
    const crash_scenario_t *scenario;
    uint64_t seed;
    fx_t fx;
} epoch_t;

#ifdef VC_FAULTS
static bool is_of_rebuild(const char *name) { return strncmp(name, "rebuild.", 8) == 0; }

/* Lives that make their catalog anew pass other points more often than others do; only the ones of their own count. */
static void merge_passes(cs_fault_passes_t *most, const cs_fault_passes_t *passes, bool is_rebuilt)
{
    for (unsigned i = 0; i < passes->n; i++) {
        unsigned k = 0;
        while (k < most->n && strcmp(most->points[k].name, passes->points[i].name) != 0)
            k++;
        if (k == CS_FAULT_POINTS_MAX || (is_rebuilt && !is_of_rebuild(passes->points[i].name)))
            continue;
        if (k == most->n)
            most->points[most->n++] = passes->points[i];
        else
            most->points[k].passes = VC_MAX(most->points[k].passes, passes->points[i].passes);
    }
}
#endif

static void after_life(epoch_t *e, int status, const char *how, bool was_rebuilt)
{
    crash_model_t *m = e->model;
    bool is_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    m->counts.lives++;
    m->counts.kills += is_killed;
    m->is_killed[m->life - 1] = is_killed;
    m->counts.recoveries_killed += is_killed && m->phase == CRASH_OPENING;
#ifdef VC_FAULTS
    merge_passes(&m->most, &m->passes, was_rebuilt);
    if (m->phase > CRASH_OPENING)
        merge_passes(&m->most_at_open, &m->passes_at_open, was_rebuilt);
#else
    (void)was_rebuilt;
#endif
    if (!is_killed && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        crash_fail(m, "a life (%s) ended by itself with status 0x%x in phase %u", how, status, m->phase);
    if (fx_du(&e->fx) > e->scenario->capacity_bytes)
        crash_fail(m, "after the kill the directory has %llu bytes of %llu", (unsigned long long)fx_du_sum,
                   (unsigned long long)e->scenario->capacity_bytes);
}

/* As a disk that loses one directory: the pins in it are gone, the generation begins anew. */
static void lose_catalog(epoch_t *e)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/catalog", e->fx.dir);
    nftw(path, fx_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    for (uint32_t f = 0; f < 2; f++) {
        for (uint32_t chain = 0; chain < CRASH_CHAINS; chain++) {
            for (uint32_t b = 0; b < CRASH_BLOCKS; b++)
                atomic_fetch_and(&e->model->objects[f][chain][b], (uint8_t)~CRASH_PINNED);
        }
    }
    e->model->is_rebuilt = true;
}

static bool live(epoch_t *e, const char *how, bool check_all)
{
    crash_model_t *m = e->model;
    m->life++;
    m->attempts++;
    m->steps = 0;
    if (how[0] == '!') {
        lose_catalog(e);
        how++;
    }
    bool was_rebuilt = m->is_rebuilt;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        crash_life(m, e->scenario, &e->fx, e->seed, how, check_all);
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        crash_fail(m, "no process for a life");
    else
        after_life(e, status, how, was_rebuilt);
    return !m->has_failed;
}

static bool make_dir(epoch_t *e, const char *where)
{
    snprintf(e->fx.dir, sizeof(e->fx.dir), "%s/vc-crash-XXXXXX", where);
    return mkdtemp(e->fx.dir) != NULL;
}

/* The offline check finds nothing in what a kill leaves behind, or a clean end. In a process of its own: it opens the
 * catalog. */
static bool verify(epoch_t *e, const char *when)
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        cs_verify_report_t *report = NULL;
        vc_err_t err = {0};
        cs_verify_opts_t opts = {
            .data_dir = e->fx.dir, .capacity_bytes = e->scenario->capacity_bytes, .max_findings = 1};
        alarm(120);
        if (cs_verify(&opts, &report, &err) != VC_OK)
            crash_fail(e->model, "%s the directory cannot be verified: %s", when, err.msg);
        else if (cs_verify_n_damage(report) > 0)
            crash_fail(e->model, "%s verify finds: %s", when, report->findings[0].text);
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        crash_fail(e->model, "%s verify ended with status 0x%x", when, status);
    return !e->model->has_failed;
}

static void report(const epoch_t *e, const char *line, size_t length)
{
    fprintf(stderr, "crash: %s\ncrash: repeat with VC_CRASH_CASE='%.*s'\n", e->model->failure, (int)length, line);
}

static bool run_lives(epoch_t *e, const char *line, const char *lives)
{
    char how[CRASH_LIFE_MAX];
    while (*lives) {
        size_t length = strcspn(lives, ";");
        if (length == 0 || length >= sizeof(how) || e->model->life == CRASH_LIVES_MAX) {
            fprintf(stderr, "crash: no life, or too many: %s\n", lives);
            return false;
        }
        memcpy(how, lives, length);
        how[length] = '\0';
        lives += length;
        if (!live(e, how, false)) {
            report(e, line, (size_t)(lives - line));
            return false;
        }
        lives += *lives == ';';
    }
    /* The second life checks what the first has written. */
    bool is_whole = !e->model->is_rebuilt; /* else the next start has its catalog still to make */
    if ((!is_whole || verify(e, "after the last kill")) && live(e, "-", true) && live(e, "-", true) &&
        verify(e, "at the end"))
        return true;
    report(e, line, strlen(line));
    return false;
}

bool crash_epoch(crash_model_t *model, const char *line)
{
    epoch_t e = {.model = model};
    char name[32];
    const char *where = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    unsigned long long seed;
    int at = 0;
    if (sscanf(line, "%31s %llu %n", name, &seed, &at) != 2 || at == 0 || !crash_scenario(name)) {
        fprintf(stderr, "crash: no case: %s\n", line);
        return false;
    }
    e.scenario = crash_scenario(name);
    e.seed = seed;
    fx_init(&e.fx, e.scenario->n_layer);
    rmdir(e.fx.dir);
    e.fx.opts.capacity_bytes = e.scenario->capacity_bytes;
    vc_status_t status = vc_keyspace_id(&e.fx.ks, &e.fx.ks_id, NULL);
    if (status != VC_OK || !make_dir(&e, where)) {
        fprintf(stderr, "crash: no directory under %s\n", where);
        return false;
    }
    crash_model_begin_epoch(model, &e.fx);
    e.fx.own_dir = false;
    bool is_good = run_lives(&e, line, line + at);
    if (is_good || !getenv("VC_CRASH_KEEP"))
        nftw(e.fx.dir, fx_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    else
        fprintf(stderr, "crash: kept %s\n", e.fx.dir);
    return is_good;
}
