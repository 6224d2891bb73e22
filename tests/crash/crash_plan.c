/* Which cases are run: a sweep over the fault points, found by passing them once, and random lives. */
#include <time.h>

#include "crash.h"
#include "support/vc_test.h"

#define KILLS_PER_POINT 8u
#define EPOCH_LIVES 24u
#define TRIES 4u

double crash_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void crash_report(const crash_model_t *model, const char *title, double since_s)
{
    const crash_counts_t *n = &model->counts;
    fprintf(stderr,
            "crash: %s: kill points: %llu (in recovery: %llu, fault points: %llu), restarts: %llu, commits "
            "acknowledged: %llu, deletes: %llu, pins: %llu, rebuilds: %llu, aborts: %llu, abandoned: %llu, evictions: "
            "%llu, refused: "
            "%llu, leased "
            "reads: %llu, records checked: %llu, seconds: %.1f\n",
            title, (unsigned long long)n->kills, (unsigned long long)n->recoveries_killed,
            (unsigned long long)n->points, (unsigned long long)n->lives, (unsigned long long)n->commits,
            (unsigned long long)n->deletes, (unsigned long long)n->pins, (unsigned long long)n->rebuilds,
            (unsigned long long)n->aborts, (unsigned long long)n->abandoned, (unsigned long long)n->evictions,
            (unsigned long long)n->refused, (unsigned long long)n->reads, (unsigned long long)n->checked,
            crash_now_s() - since_s);
}

bool crash_replay(crash_model_t *model, const char *path)
{
    char line[CRASH_LINE_MAX];
    bool is_good = true;
    FILE *cases = fopen(path, "r");
    if (!cases) {
        fprintf(stderr, "crash: no cases at %s\n", path);
        return false;
    }
    while (is_good && fgets(line, sizeof(line), cases)) {
        line[strcspn(line, "\n")] = '\0';
        is_good = line[0] == '#' || line[0] == '\0' || crash_epoch(model, line);
    }
    fclose(cases);
    return is_good;
}

/* ---- the sweep ---- */

#ifdef VC_FAULTS

typedef struct target { /* one place to kill at */
    char name[48];
    unsigned long at, tries;
    bool is_often; /* passed several times in one life: it must be met again */
} target_t;

typedef struct plan {
    target_t targets[CS_FAULT_POINTS_MAX * KILLS_PER_POINT];
    size_t n;
    char killed[CS_FAULT_POINTS_MAX][48]; /* names with a kill */
    size_t n_killed;
} plan_t;

static void add_target(plan_t *plan, const char *name, unsigned long at, unsigned long passes)
{
    for (size_t i = 0; i < plan->n; i++) {
        if (plan->targets[i].at == at && strcmp(plan->targets[i].name, name) == 0)
            return;
    }
    if (at == 0 || plan->n == VC_ARRAY_LEN(plan->targets))
        return;
    target_t *target = &plan->targets[plan->n++];
    *target = (target_t){.at = at, .is_often = passes >= 4};
    memcpy(target->name, name, VC_MIN(strlen(name), sizeof(target->name) - 1)); /* ends in zeros */
}

static unsigned long passes_of(const cs_fault_passes_t *passes, const char *name)
{
    for (unsigned i = 0; i < passes->n; i++) {
        if (strcmp(passes->points[i].name, name) == 0)
            return passes->points[i].passes;
    }
    return 0;
}

/* The first passes of the recovery, the first after it, and some spread over the rest. */
static void add_point(plan_t *plan, const char *name, unsigned long at_open, unsigned long passes)
{
    for (unsigned long i = 1; i <= VC_MIN(at_open, 2ul); i += VT_EVERY)
        add_target(plan, name, i, passes);
    for (unsigned long i = 1; i <= 3; i += VT_EVERY)
        add_target(plan, name, at_open + i <= passes ? at_open + i : 0, passes);
    for (unsigned long i = 1; i <= 4; i += VT_EVERY)
        add_target(plan, name, at_open + (passes - at_open) * i / 6, passes);
}

/* Lives without a kill show the points: of the first start, of a full store, of a later start, of a rebuild. */
static bool learn(crash_model_t *model, const char *scenario, uint64_t seed, plan_t *plan)
{
    char line[128];
    model->most.n = model->most_at_open.n = 0;
    snprintf(line, sizeof(line), "%s %llu -;-;!-;-;-", scenario, (unsigned long long)seed);
    if (!crash_epoch(model, line))
        return false;
    for (unsigned i = 0; i < model->most.n; i++) {
        const char *name = model->most.points[i].name;
        add_point(plan, name, passes_of(&model->most_at_open, name), model->most.points[i].passes);
    }
    return true;
}

static bool is_killed_at(const plan_t *plan, const char *name)
{
    for (size_t i = 0; i < plan->n_killed; i++) {
        if (strcmp(plan->killed[i], name) == 0)
            return true;
    }
    return false;
}

static void note_kill(plan_t *plan, const char *name)
{
    if (!is_killed_at(plan, name) && plan->n_killed < CS_FAULT_POINTS_MAX)
        memcpy(plan->killed[plan->n_killed++], name, strlen(name) + 1);
}

/* One epoch over the first of what is left; every other one over a store that is full already. What was not reached
 * goes to the end of the plan, at a pass that comes sooner. */
static bool sweep_some(crash_model_t *model, const char *scenario, uint64_t seed, plan_t *plan)
{
    /* The process dies; the power goes with everything that was not synced, or with a random half of it. */
    static const char *const ends[] = {"kill", "crash", "kill", "crash=7"};
    char line[CRASH_LINE_MAX];
    target_t now[EPOCH_LIVES];
    size_t n = VC_MIN(plan->n, (size_t)EPOCH_LIVES), fill = seed % 2 ? 2 : 0;
    size_t length =
        (size_t)snprintf(line, sizeof(line), "%s %llu %s", scenario, (unsigned long long)seed, fill ? "-;-;" : "");
    for (size_t i = 0; i < n; i++) {
        now[i] = plan->targets[i];
        length += (size_t)snprintf(line + length, sizeof(line) - length, "%s%s%s:%lu:%s", i ? ";" : "",
                                   strncmp(now[i].name, "rebuild.", 8) == 0 ? "!" : "", now[i].name, now[i].at,
                                   ends[(i + seed) % VC_ARRAY_LEN(ends)]);
    }
    if (!crash_epoch(model, line))
        return false;
    memmove(plan->targets, plan->targets + n, (plan->n - n) * sizeof(plan->targets[0]));
    plan->n -= n;
    for (size_t i = 0; i < n; i++) {
        target_t *again = &plan->targets[plan->n];
        if (model->is_killed[fill + i]) {
            note_kill(plan, now[i].name);
        } else if (now[i].tries < TRIES) {
            *again = now[i];
            again->tries++;
            again->at -= again->at / 3;
            plan->n++;
        }
    }
    return true;
}

static void shuffle(plan_t *plan, uint64_t seed)
{
    for (size_t i = plan->n; i > 1; i--) {
        size_t j = crash_random(&seed) % i;
        target_t swap = plan->targets[i - 1];
        plan->targets[i - 1] = plan->targets[j];
        plan->targets[j] = swap;
    }
}

/* How often a life comes by depends on how its threads interleave; that one comes by once, in a new store, in one with
 * something in it or in a rebuild, does not. */
static bool meet(crash_model_t *model, const char *scenario, uint64_t seed, plan_t *plan, const char *name)
{
    char line[CRASH_LINE_MAX];
    for (uint64_t try = 0; try < TRIES && !is_killed_at(plan, name); try++) {
        snprintf(line, sizeof(line), "%s %llu %s:1:kill;-;%s:1:kill;!%s:1:kill", scenario,
                 (unsigned long long)(seed + try), name, name, name);
        if (!crash_epoch(model, line))
            return false;
        if (model->is_killed[0] || model->is_killed[2] || model->is_killed[3])
            note_kill(plan, name);
    }
    if (!is_killed_at(plan, name))
        fprintf(stderr, "crash: no life could be killed at %s\n", name);
    return is_killed_at(plan, name);
}

bool crash_sweep(crash_model_t *model, const char *scenario, uint64_t seed)
{
    static plan_t plan;
    static target_t wanted[VC_ARRAY_LEN(plan.targets)];
    plan.n = plan.n_killed = 0;
    if (!learn(model, scenario, seed, &plan))
        return false;
    shuffle(&plan, seed);
    size_t n = plan.n;
    memcpy(wanted, plan.targets, n * sizeof(wanted[0]));
    while (plan.n > 0) {
        if (!sweep_some(model, scenario, ++seed, &plan))
            return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (wanted[i].is_often && !meet(model, scenario, ++seed, &plan, wanted[i].name))
            return false;
    }
    model->counts.points += plan.n_killed;
    return true;
}
#else
bool crash_sweep(crash_model_t *model, const char *scenario, uint64_t seed)
{
    (void)model, (void)scenario, (void)seed;
    return true;
}
#endif

/* ---- at random ---- */

static size_t random_fault(char *text, size_t cap, uint64_t *state)
{
#ifdef VC_FAULTS
    static const char *const faults[] = {"io.write:%u:eio",       "io.write:%u:enospc",      "io.write:%u:short",
                                         "io.write:%u:hold=3",    "io.write:%u:reorder",     "io.read:%u:eio",
                                         "io.read:%u:reorder",    "commit.sync:%u:eio",      "catalog.write:%u:eio",
                                         "segment.header:%u:eio", "segment.create:%u:enospc"};
    char fault[64];
    const char *format = faults[crash_random(state) % VC_ARRAY_LEN(faults)];
    snprintf(fault, sizeof(fault), format, 1 + crash_random(state) % (format[0] == 'i' ? 60 : 10));
    /* It goes on for a while after the fault, and ends somewhere. */
    if (crash_random(state) % 4 == 0) /* while the catalog is reopened after a fault, if it is */
        return (size_t)snprintf(text, cap, "%s,catalog.open:2:kill", fault);
    return (size_t)snprintf(text, cap, "%s,io.write:%u:%s", fault, 20 + crash_random(state) % 60,
                            crash_random(state) % 2 ? "kill" : "crash=3");
#else
    return (size_t)snprintf(text, cap, "#%u", crash_random(state) % 100);
#endif
}

static size_t random_life(char *text, size_t cap, uint64_t *state)
{
    uint32_t kind = crash_random(state) % 21;
    if (kind == 20)
        return (size_t)snprintf(text, cap, "!@%u", crash_random(state) % 100000);
    if (kind < 5) /* about as long as a recovery takes */
        return (size_t)snprintf(text, cap, "@%u", crash_random(state) % 30000);
    if (kind < 14)
        return (size_t)snprintf(text, cap, "+%u", crash_random(state) % 32000);
    if (kind < 15)
        return (size_t)snprintf(text, cap, "#%u", 1 + crash_random(state) % 100);
#ifdef VC_FAULTS
    if (kind < 17)
        return (size_t)snprintf(text, cap, "put.done:%u:crash=%u", 1 + crash_random(state) % 100,
                                crash_random(state) % 9);
#endif
    if (kind < 19)
        return random_fault(text, cap, state);
    return (size_t)snprintf(text, cap, "-");
}

bool crash_storm(crash_model_t *model, const char *scenario, uint64_t seed, uint64_t n_kills, double deadline_s)
{
    char line[CRASH_LINE_MAX];
    uint64_t state = seed;
    while (model->counts.kills < n_kills && (deadline_s <= 0 || crash_now_s() < deadline_s)) {
        size_t length = (size_t)snprintf(line, sizeof(line), "%s %u ", scenario, crash_random(&state) % 1000000);
        for (uint32_t i = 0; i < EPOCH_LIVES; i++) {
            length += (size_t)snprintf(line + length, sizeof(line) - length, "%s", i ? ";" : "");
            length += random_life(line + length, sizeof(line) - length, &state);
        }
        if (!crash_epoch(model, line))
            return false;
    }
    return true;
}
