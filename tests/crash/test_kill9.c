/*
 * kill -9 while objects are registered, at random points and at every fault point. After each restart: what was
 * committed reads back bit for bit; what was never committed is not there; a commit in flight is there entirely or not
 * at all, and stays the way it was found.
 *
 * Each run prints its seed; VERICACHE_CRASH_SEED repeats the units and the kill points (not the interleaving).
 */
#include "support/vc_test.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "crash_units.h"

enum { MAX_UNITS = 60000, KEEP_ROUNDS = 2 };
typedef enum { UNSEEN = 0, PUT, ABORTED, TRIED, COMMITTED, VANISHED } fate_t;

typedef struct unit {
    uint32_t chain, first, n_blocks;
    unsigned what;
    fate_t fate;
    int round;
} unit_t;

static unit_t units[MAX_UNITS];
static uint32_t next_id;
static char dir[256];
static uint64_t capacity, state;
static unsigned long long seed;
static bool evicts; /* committed objects may have been evicted */

static void note_line(const char *line, int round)
{
    uint32_t id, chain, first, n_blocks;
    unsigned what;
    char step;
    if (sscanf(line, "P %u %u %u %u %u", &id, &chain, &first, &n_blocks, &what) == 5) {
        cr_assert_lt(id, (uint32_t)MAX_UNITS);
        units[id] = (unit_t){chain, first, n_blocks, what, PUT, round};
        next_id = id >= next_id ? id + 1 : next_id;
    } else if (sscanf(line, "%c %u", &step, &id) == 2 && id < MAX_UNITS) {
        units[id].fate = step == 'A' ? ABORTED : step == 'T' ? TRIED : step == 'C' ? COMMITTED : units[id].fate;
    }
}

static pid_t start_writer(const char *fault, uint32_t n_units, FILE **lines_p)
{
    int pipe_fd[2];
    char program[512], cap[32], first[16], n[16], with[32];
    snprintf(program, sizeof(program), "%s/tests/crash_writer", VC_BIN_DIR);
    snprintf(cap, sizeof(cap), "%llu", (unsigned long long)capacity);
    snprintf(first, sizeof(first), "%u", next_id);
    snprintf(n, sizeof(n), "%u", n_units);
    snprintf(with, sizeof(with), "%llu", seed + next_id);
    cr_assert_eq(pipe(pipe_fd), 0);
    if (fault)
        setenv("VERICACHE_FAULT", fault, 1);
    else
        unsetenv("VERICACHE_FAULT");
    fflush(NULL);
    pid_t pid = fork(); /* straight to exec: what other threads of this process held does not matter */
    if (pid == 0) {
        dup2(pipe_fd[1], STDOUT_FILENO);
        close(pipe_fd[0]);
        close(pipe_fd[1]);
        execl(program, program, dir, cap, first, n, with, (char *)NULL);
        _exit(127);
    }
    cr_assert_gt(pid, 0);
    unsetenv("VERICACHE_FAULT");
    close(pipe_fd[1]);
    *lines_p = fdopen(pipe_fd[0], "r");
    return pid;
}

/* Reads everything the writer said; after kill_after lines (0: never) and a random moment more it is killed. */
static int run_writer(const char *fault, uint32_t n_units, uint32_t kill_after, int round)
{
    FILE *lines;
    char line[128];
    int status;
    uint32_t n = 0;
    pid_t pid = start_writer(fault, n_units, &lines);
    while (fgets(line, sizeof(line), lines)) {
        note_line(line, round);
        if (++n == kill_after) {
            struct timespec moment = {.tv_nsec = unit_random(&state) % 3000000};
            nanosleep(&moment, NULL);
            kill(pid, SIGKILL);
        }
    }
    fclose(lines);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return status;
}

static uint32_t count_visible(fx_t *fx, const unit_t *unit, uint32_t *total_p)
{
    uint32_t visible = 0, total = 0;
    for (uint32_t f = 0; f < 2; f++) {
        for (uint32_t b = unit->first; (unit->what & (1u << f)) && b < unit->n_blocks; b++) {
            vc_status_t status = fx_read(fx, unit->chain, b, f);
            cr_assert(status == VC_OK || status == VC_ERR_NOT_FOUND, "seed %llu chain %u block %u copy %u: %s", seed,
                      unit->chain, b, f, vc_status_name(status));
            visible += status == VC_OK;
            total++;
        }
    }
    *total_p = total;
    return visible;
}

static void check_unit(fx_t *fx, uint32_t id)
{
    uint32_t total, visible = count_visible(fx, &units[id], &total);
    switch (units[id].fate) {
    case COMMITTED:
        cr_assert(evicts || visible == total, "seed %llu: unit %u lost %u of %u", seed, id, total - visible, total);
        break;
    case TRIED:
        cr_assert(evicts || visible == 0 || visible == total, "seed %llu: unit %u has %u of %u", seed, id, visible,
                  total);
        units[id].fate = visible ? COMMITTED : VANISHED;
        break;
    default:
        cr_assert_eq(visible, 0, "seed %llu: unit %u was not committed and has %u of %u", seed, id, visible, total);
    }
}

/* Units of the last rounds and a sample of the older ones; everything when all is set. */
static void check_store(int round, bool all)
{
    fx_t fx;
    vc_err_t err = {0};
    cs_store_stats_t stats;
    unit_setup(&fx, dir, capacity);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_OK, "seed %llu: %s", seed, err.msg);
    for (uint32_t id = 0; id < next_id; id++) {
        bool is_recent = units[id].round + KEEP_ROUNDS > round || units[id].fate == TRIED;
        if (units[id].fate != UNSEEN && (all || is_recent || unit_random(&state) % 16 == 0))
            check_unit(&fx, id);
    }
    cs_store_get_stats(fx.store, &stats);
    cr_assert_eq(stats.corrupt_disk, 0, "seed %llu", seed);
    cr_assert_eq(stats.pinned_bytes, 0);
    cr_assert_leq(fx_du(&fx), capacity);
    fx_fini(&fx);
}

static void begin_test(uint64_t capacity_mib, bool may_evict)
{
    const char *text = getenv("VERICACHE_CRASH_SEED");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    seed = text ? strtoull(text, NULL, 10)
                : (unsigned long long)now.tv_sec * 1000 + (unsigned long long)now.tv_nsec / 1000000;
    state = seed;
    memset(units, 0, sizeof(units));
    next_id = 0;
    capacity = capacity_mib << 20;
    evicts = may_evict;
    snprintf(dir, sizeof(dir), "%s/vc-kill9-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    cr_assert_not_null(mkdtemp(dir));
    fprintf(stderr, "kill9: VERICACHE_CRASH_SEED=%llu\n", seed);
}

static void end_test(void) { nftw(dir, fx_remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static uint32_t count_fate(fate_t fate)
{
    uint32_t n = 0;
    for (uint32_t id = 0; id < next_id; id++)
        n += units[id].fate == fate;
    return n;
}

Test(kill9, committed_records_survive_fifty_kills_at_random_points)
{
    begin_test(400, false);
    for (int round = 1; round <= 50; round++) {
        int status = run_writer(NULL, 2000, 1 + unit_random(&state) % 60, round);
        cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "seed %llu: the writer ended by itself (%d)",
                  seed, status);
        check_store(round, round == 50);
    }
    cr_assert_gt(count_fate(COMMITTED), 100);
    fprintf(stderr, "kill9: committed=%u aborted=%u vanished=%u unfinished=%u\n", count_fate(COMMITTED),
            count_fate(ABORTED), count_fate(VANISHED), count_fate(PUT));
    end_test();
}

Test(kill9, under_eviction_no_kill_leaves_wrong_bytes_or_breaks_the_cap)
{
    begin_test(56, true);
    for (int round = 1; round <= 8; round++) {
        int status = run_writer(NULL, 2000, 100 + unit_random(&state) % 1200, round);
        cr_assert(WIFSIGNALED(status), "seed %llu: the writer ended by itself (%d)", seed, status);
        check_store(round, round == 8);
    }
    end_test();
}

#ifdef VC_FAULTS
static void kill_at(const char *point, uint32_t n_units, uint32_t last_count)
{
    for (uint32_t count = 1; count <= last_count; count = count * 2 + 1) {
        char fault[96];
        snprintf(fault, sizeof(fault), "%s:%u:kill", point, count);
        int status = run_writer(fault, n_units, 0, (int)count);
        cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "%s was never reached (%d)", fault, status);
        check_store((int)count, true);
    }
}

Test(kill9, committed_records_survive_a_kill_at_every_point_of_put_and_commit)
{
    static const char *const points[] = {"io.write",      "put.done",          "commit.sync", "commit.before_write",
                                         "catalog.write", "commit.after_write"};
    begin_test(200, false);
    kill_at("segment.create", 40, 1);
    for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++)
        kill_at(points[i], 40, 15);
    end_test();
}

Test(kill9, no_kill_during_eviction_leaves_wrong_bytes)
{
    static const char *const points[] = {"evict.before_write", "evict.after_write", "segment.header"};
    begin_test(56, true);
    for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++)
        kill_at(points[i], 1500, 3);
    end_test();
}
#endif
