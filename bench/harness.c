/* Shared by every bench: see harness.h. Errors end the program: a bench has nothing to save. */
#include "harness.h"

#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "results_file.h"

static struct {
    const char *name;
    bool quick;
    char **argv;
    int argc;
    char csv[4096]; /* the file of results; "": none */
    pid_t owner;    /* a forked child writes none */
    char commit[64], machine[256];
    char tmpdir[4096];
} bench;

void bench_fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "%s: ", bench.name != NULL ? bench.name : "bench");
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(1);
}

static void chomp(char *text) { text[strcspn(text, "\r\n")] = '\0'; }

/* Value of the first line "KEY ...: VALUE" of a /proc file. */
static void proc_field(const char *path, const char *key, char *out, size_t cap)
{
    char line[512];
    FILE *f = fopen(path, "r");
    snprintf(out, cap, "unknown");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || colon == NULL)
            continue;
        chomp(line);
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(out, cap, "%s", colon);
        break;
    }
    if (f != NULL)
        fclose(f);
}

static void describe_machine(void)
{
    char cpu[128], memory[64];
    struct utsname u;
    proc_field("/proc/cpuinfo", "model name", cpu, sizeof(cpu));
    proc_field("/proc/meminfo", "MemTotal", memory, sizeof(memory));
    if (uname(&u) != 0)
        snprintf(u.release, sizeof(u.release), "unknown");
    snprintf(bench.machine, sizeof(bench.machine), "%s, %d cpus, %.1f GiB, Linux %.60s", cpu, bench_n_cpus(),
             strtod(memory, NULL) / 1048576.0, u.release);
}

/* "-dirty": what is measured is not the commit; results and pages do not count. */
static void describe_commit(void)
{
    char *const commit[] = {"git", "rev-parse", "--short=12", "HEAD", NULL};
    char *const changes[] = {"git", "diff", "--quiet", "HEAD", "--", ".", ":(exclude)bench/results", ":(exclude)*.md",
                             NULL};
    char nothing[8];
    if (!bench_have("git") || bench_run(commit, bench.commit, sizeof(bench.commit) - 6) != 0)
        snprintf(bench.commit, sizeof(bench.commit), "unknown");
    chomp(bench.commit);
    if (strcmp(bench.commit, "unknown") != 0 && bench_run(changes, nothing, sizeof(nothing)) == 1)
        strcat(bench.commit, "-dirty");
}

/* At exit: the rows of a bench that failed say nothing. */
static void write_results(int status, void *unused)
{
    char about[3000], date[32];
    time_t now = time(NULL);
    struct tm utc;
    (void)unused;
    if (status != 0 || getpid() != bench.owner)
        return;
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    int n = snprintf(about, sizeof(about), "%s | %s | %s | bench %s%s", date, bench.commit, bench.machine, bench.name,
                     bench.quick ? " --quick" : "");
    for (int i = 1; i < bench.argc && n < (int)sizeof(about); i++)
        n += snprintf(about + n, sizeof(about) - (size_t)n, " %s", bench.argv[i]);
    about[strcspn(about, "\r\n")] = '\0';
    bench_results_write(bench.csv, bench.name, about);
}

/* path NULL: the usual place. */
static void open_results(const char *path, bool keep)
{
    const char *folder = keep ? "bench/results" : "build/results";
    if (path == NULL && bench.quick && !keep)
        return;
    if (path == NULL)
        (void)mkdir(folder, 0777);
    if (path == NULL && access(folder, W_OK) != 0) {
        bench_note("results are not kept: %s: %s", folder, strerror(errno));
        return;
    }
    if (path == NULL)
        snprintf(bench.csv, sizeof(bench.csv), "%s/%s.csv", folder, bench.name);
    else
        snprintf(bench.csv, sizeof(bench.csv), "%s", path);
    bench_results_check(bench.csv);
    bench.owner = getpid();
    on_exit(write_results, NULL);
}

static void answer_help(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            printf("usage: %s [--quick] [--csv FILE] [--keep] [options]; the comment at the top of bench/bench_%s.c "
                   "lists them\n",
                   argv[0], name);
            exit(0);
        }
}

void bench_init(const char *name, int argc, char **argv)
{
    answer_help(name, argc, argv);
    bench.name = name;
    bench.argv = calloc((size_t)argc + 1, sizeof(*bench.argv));
    if (bench.argv == NULL)
        bench_fail("out of memory");
    const char *csv = NULL;
    bool keep = false;
    bench.argv[bench.argc++] = argv[0];
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            bench.quick = true;
        else if (strcmp(argv[i], "--csv") == 0 && i + 1 < argc)
            csv = argv[++i];
        else if (strcmp(argv[i], "--keep") == 0)
            keep = true;
        else
            bench.argv[bench.argc++] = argv[i];
    }
    describe_machine();
    describe_commit();
    printf("# command:");
    for (int i = 0; i < argc; i++)
        printf(" %s", argv[i]);
    printf("\n# commit: %s\n# machine: %s\n", bench.commit, bench.machine);
    if (bench.quick)
        printf("# quick: toy sizes, the figures mean nothing\n");
    open_results(csv, keep);
    fflush(stdout);
}

bool bench_quick(void) { return bench.quick; }
int bench_argc(void) { return bench.argc; }
const char *bench_argv(int i) { return i >= 0 && i < bench.argc ? bench.argv[i] : NULL; }

const char *bench_option(const char *name, const char *deflt)
{
    size_t len = strlen(name);
    for (int i = 1; i < bench.argc; i++) {
        const char *a = bench.argv[i];
        if (strncmp(a, "--", 2) != 0 || strncmp(a + 2, name, len) != 0)
            continue;
        if (a[2 + len] == '=')
            return a + 3 + len;
        if (a[2 + len] == '\0' && i + 1 < bench.argc)
            return bench.argv[i + 1];
    }
    return deflt;
}

static bool is_listed(const char *names, const char *name, size_t len)
{
    for (const char *at = names; *at; at += strcspn(at, " "), at += *at == ' ') {
        if (strcspn(at, " ") == len && strncmp(at, name, len) == 0)
            return true;
    }
    return false;
}

void bench_options(const char *names)
{
    for (int i = 1; i < bench.argc; i++) {
        const char *a = bench.argv[i];
        const char *trouble = NULL;
        size_t len = strncmp(a, "--", 2) == 0 ? strcspn(a + 2, "=") : 0;
        if (len == 0 || !is_listed(names, a + 2, len))
            trouble = "is no option of this bench";
        else if (a[2 + len] == '\0' && ++i == bench.argc)
            trouble = "needs a value";
        if (trouble != NULL) {
            fprintf(stderr, "%s: '%s' %s; it has --quick, --csv, --keep and: %s\n", bench.name, a, trouble, names);
            exit(64);
        }
    }
}

double bench_number(const char *name, const char *deflt, double least, double most)
{
    const char *text = bench_option(name, deflt);
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end != '\0' || !(v >= least && v <= most))
        bench_fail("--%s: '%s' is no number from %.10g to %.10g", name, text, least, most);
    return v;
}

const char *bench_model(void)
{
    const char *path = bench_option("model", getenv("VERICACHE_MODEL"));
    if (path == NULL || path[0] == '\0')
        bench_fail("no model: give --model FILE or set VERICACHE_MODEL");
    return path;
}

static double read_clock(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

double bench_now_s(void) { return read_clock(CLOCK_MONOTONIC); }
double bench_cpu_s(void) { return read_clock(CLOCK_PROCESS_CPUTIME_ID); }

void bench_add(bench_samples_t *s, double value)
{
    if (s->n == s->cap) {
        s->cap = s->cap == 0 ? 64 : s->cap * 2;
        s->v = realloc(s->v, s->cap * sizeof(*s->v));
        if (s->v == NULL)
            bench_fail("out of memory");
    }
    s->v[s->n++] = value;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double *sorted(const bench_samples_t *s)
{
    double *v = malloc((s->n + 1) * sizeof(*v));
    if (v == NULL)
        bench_fail("out of memory");
    memcpy(v, s->v, s->n * sizeof(*v));
    qsort(v, s->n, sizeof(*v), by_value);
    return v;
}

double bench_percentile(const bench_samples_t *s, double p)
{
    if (s->n == 0)
        return NAN;
    double *v = sorted(s);
    double rank = ceil(p / 100.0 * (double)s->n);
    size_t i = rank < 1 ? 0 : (size_t)rank - 1;
    double value = v[i < s->n ? i : s->n - 1];
    free(v);
    return value;
}

double bench_median(const bench_samples_t *s)
{
    if (s->n == 0)
        return NAN;
    double *v = sorted(s);
    double value = s->n % 2 == 1 ? v[s->n / 2] : (v[s->n / 2 - 1] + v[s->n / 2]) / 2;
    free(v);
    return value;
}

double bench_min(const bench_samples_t *s) { return bench_percentile(s, 0); }
double bench_max(const bench_samples_t *s) { return bench_percentile(s, 100); }

double bench_mean(const bench_samples_t *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += s->v[i];
    return s->n == 0 ? NAN : sum / (double)s->n;
}

void bench_samples_free(bench_samples_t *s)
{
    free(s->v);
    *s = (bench_samples_t){0};
}

void bench_row(const char *name, const char *unit, const bench_samples_t *s)
{
    static bool head_printed;
    double median = bench_median(s), p10 = bench_percentile(s, 10), p90 = bench_percentile(s, 90);
    double p99 = bench_percentile(s, 99);
    char rest[256];
    if (!head_printed)
        printf("%-44s %-8s %12s %12s %12s %12s %6s\n", "", "unit", "median", "p10", "p90", "p99", "n");
    head_printed = true;
    printf("%-44s %-8s %12.4g %12.4g %12.4g %12.4g %6zu\n", name, unit, median, p10, p90, p99, s->n);
    fflush(stdout);
    snprintf(rest, sizeof(rest), "%s,%.9g,%.9g,%.9g,%.9g,%zu", unit, median, p10, p90, p99, s->n);
    bench_results_add("row", name, rest);
}

void bench_figure(const char *name, double value)
{
    char rest[64];
    /* counts whole, however large */
    printf(value == rint(value) && fabs(value) < 1e15 ? "figure %s %.0f\n" : "figure %s %.4g\n", name, value);
    fflush(stdout);
    snprintf(rest, sizeof(rest), ",%.9g,,,,", value);
    bench_results_add("figure", name, rest);
}

void bench_note(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf("# ");
    vprintf(fmt, ap);
    putchar('\n');
    va_end(ap);
    fflush(stdout);
}

bool bench_pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    return sched_setaffinity(0, sizeof(set), &set) == 0;
}

int bench_n_cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    remove(path);
    return 0;
}

static pid_t tmpdir_owner; /* a forked child must not remove it */

static void remove_tmpdir(void)
{
    if (getpid() == tmpdir_owner)
        nftw(bench.tmpdir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *bench_tmpdir(void)
{
    if (bench.tmpdir[0] != '\0')
        return bench.tmpdir;
    const char *base = getenv("TMPDIR");
    base = bench_option("dir", base != NULL && base[0] != '\0' ? base : "/tmp");
    snprintf(bench.tmpdir, sizeof(bench.tmpdir), "%s/vericache-bench-XXXXXX", base);
    if (mkdtemp(bench.tmpdir) == NULL)
        bench_fail("cannot make a directory in %s: %s", base, strerror(errno));
    tmpdir_owner = getpid();
    atexit(remove_tmpdir);
    return bench.tmpdir;
}

int bench_run(char *const argv[], char *out, size_t cap)
{
    int fd[2];
    if (pipe(fd) != 0)
        return -1;
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) {
        close(fd[0]);
        close(fd[1]);
        return -1;
    }
    if (pid == 0) {
        dup2(fd[1], STDOUT_FILENO);
        close(fd[0]);
        close(fd[1]);
        execvp(argv[0], argv);
        _exit(127);
    }
    close(fd[1]);
    size_t len = 0;
    char chunk[1024];
    for (ssize_t n; (n = read(fd[0], chunk, sizeof(chunk))) > 0 || (n < 0 && errno == EINTR);) {
        size_t take = n < 0 ? 0 : (size_t)n;
        if (take > cap - 1 - len)
            take = cap - 1 - len; /* the rest is read and dropped, so that the child can end */
        memcpy(out + len, chunk, take);
        len += take;
    }
    out[len] = '\0';
    close(fd[0]);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool bench_have(const char *program)
{
    const char *path = getenv("PATH");
    while (path != NULL && *path != '\0') {
        char file[4096];
        size_t len = strcspn(path, ":");
        snprintf(file, sizeof(file), "%.*s/%s", (int)len, path, program);
        if (access(file, X_OK) == 0)
            return true;
        path += len + (path[len] == ':');
    }
    return false;
}
