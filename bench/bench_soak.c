/*
 * Does anything grow, does anything go wrong, and do bad clients cost the good ones more than a tenth?
 *
 * A vericache-server process at full capacity, four good clients (two over gRPC, two over UCX) that look up, fetch,
 * check every byte, register what is missing, break off, pin and delete; and, in every other phase, clients that die by
 * SIGKILL inside a transfer, clients that never take what they asked for, idle connections and garbage. Resident
 * memory, descriptors, leases and queues are sampled all the time; what they are in the end is compared with what they
 * were after the first minute. Then everybody leaves, and what was held has to be given back; at last the directory is
 * verified offline.
 *   --seconds N (600), --phase S (10), --idle N (1000 connections, at most 1024), --dir DIR (about 400 MB)
 * Exit code 1: wrong bytes, growth beyond the tolerance, something not given back, a dead server, damage on disk.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"
#include "server_process.h"
#include "soak_parts.h"
#include "vc/mem.h"

#define N_GOOD 4
#define N_BAD 6
#define SAMPLE_S 1.0
#define GIVE_BACK_S 60.0
/* What may come on top of the first minute's value. */
#define RSS_GROWTH 1.10
#define RSS_SLACK_MIB 32.0
#define COUNT_GROWTH 2.0
#define COUNT_SLACK 16.0
#define JUDGED_S 180.0 /* shorter runs show growth, but are still warming up */

enum {
    RSS,
    FILES,
    LEASES,
    UPLOADS,
    PINNED,
    DATA_OPS,
    DATA_PINS,
    FETCH_STREAMS,
    PUT_STREAMS,
    COMMITS,
    SEGMENTS,
    N_GAUGES
};
static const char *const gauge_names[N_GAUGES] = {
    "resident MiB",     "open files",           "leases",          "uploads",
    "pinned MiB",       "data-plane transfers", "data-plane pins", "gRPC fetch streams",
    "gRPC put streams", "commits waiting",      "segments"};
static const char *const stat_names[N_GAUGES] = {NULL,
                                                 NULL,
                                                 "leases_open",
                                                 "uploads_open",
                                                 "pinned_bytes",
                                                 "data_ops_in_flight",
                                                 "data_pins_held",
                                                 "rpc_fetch_streams",
                                                 "rpc_put_streams",
                                                 "rpc_commits_waiting",
                                                 "segments"};

typedef struct sample {
    double at, gauge[N_GAUGES];
    uint64_t good_bytes;
    bool hostile;
} sample_t;

typedef struct run {
    soak_shared_t *shared;
    bench_server_t server;
    pid_t clients[N_GOOD + N_BAD];
    vcache_client_t *client;
    char data_dir[4200];
    double seconds, phase, start;
    sample_t *samples;
    size_t n_samples, cap_samples;
    bool has_failed;
} run_t;

static void nap(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static void fault(run_t *r, const char *what)
{
    bench_note("FAILED: %s", what);
    r->has_failed = true;
}

/* ---- the server ---- */

static void start_server(run_t *r)
{
    char data[4300];
    snprintf(r->data_dir, sizeof(r->data_dir), "%s/soak", bench_tmpdir());
    snprintf(data, sizeof(data), "--data-dir=%s", r->data_dir);
    bench_server_start(&r->server, (const char *[]){data, "--capacity=384MiB", "--ballast=16MiB", "--lease-ms=5000",
                                                    "--upload-ms=5000", "--idle-ms=5000", "--log-level=error", NULL});
    snprintf(r->shared->address, sizeof(r->shared->address), "%s", r->server.address);
    r->shared->control_port = (uint16_t)atoi(strrchr(r->server.address, ':') + 1);
}

/* ---- the clients ---- */

static void client_body(soak_shared_t *s, uint32_t i, uint32_t n_idle)
{
    if (i < N_GOOD) {
        soak_good_client(s, i, i % 2);
        return;
    }
    (void)!nice(19); /* elsewhere they would use processors of their own: only what they cost the server counts */
    if (i == N_GOOD)
        soak_killer(s);
    else if (i < N_GOOD + 5)
        soak_stuck_client(s, i % 2);
    else
        soak_idlers(s, n_idle);
}

static void start_clients(run_t *r)
{
    uint32_t n_idle = (uint32_t)atoi(bench_option("idle", "1000"));
    for (uint32_t i = 0; i < N_GOOD + N_BAD; i++) {
        r->clients[i] = fork(); /* before this process starts any thread */
        if (r->clients[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            client_body(r->shared, i, n_idle);
            _exit(0); /* what atexit registered is the parent's */
        }
    }
}

static void stop_clients(run_t *r)
{
    atomic_store_explicit(&r->shared->stop, true, memory_order_relaxed);
    double until = bench_now_s() + 60;
    for (uint32_t i = 0; i < N_GOOD + N_BAD; i++) {
        while (waitpid(r->clients[i], NULL, WNOHANG) == 0) {
            if (bench_now_s() > until)
                kill(r->clients[i], SIGKILL);
            nap(0.02);
        }
    }
}

/* ---- samples ---- */

static double resident_mib(pid_t pid)
{
    char path[64], line[256];
    unsigned long long kib = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof(line), f) && sscanf(line, "VmRSS: %llu kB", &kib) != 1)
        ;
    if (f)
        fclose(f);
    return (double)kib / 1024;
}

static double open_files(pid_t pid)
{
    char path[64];
    double n = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *list = opendir(path);
    while (list && readdir(list))
        n++;
    if (list)
        closedir(list);
    return n;
}

static double stat_value(const vcache_stat_t *stats, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(stats[i].name, name) == 0)
            return stats[i].value;
    }
    bench_fail("the server has no statistic named %s", name);
}

static bool take_sample(run_t *r, sample_t *out)
{
    static vcache_stat_t stats[512];
    vcache_error_t err = {0};
    uint32_t n = 0;
    *out = (sample_t){.at = bench_now_s() - r->start,
                      .good_bytes = atomic_load_explicit(&r->shared->good_bytes, memory_order_relaxed),
                      .hostile = atomic_load_explicit(&r->shared->hostile, memory_order_relaxed)};
    if (vcache_stats(r->client, stats, VC_ARRAY_LEN(stats), &n, &err) != 0) {
        bench_note("statistics: %s", err.msg);
        return false;
    }
    for (int g = LEASES; g < N_GAUGES; g++)
        out->gauge[g] = stat_value(stats, n, stat_names[g]);
    out->gauge[PINNED] /= 1048576;
    out->gauge[RSS] = resident_mib(r->server.pid);
    out->gauge[FILES] = open_files(r->server.pid);
    return true;
}

static void keep_sample(run_t *r, const sample_t *s)
{
    if (r->n_samples == r->cap_samples) {
        r->cap_samples = VC_MAX((size_t)256, 2 * r->cap_samples);
        r->samples = vc_realloc(r->samples, r->cap_samples, sizeof(*r->samples));
        if (!r->samples)
            bench_fail("out of memory");
    }
    r->samples[r->n_samples++] = *s;
}

static void print_sample(const sample_t *s, const soak_shared_t *sh)
{
    printf("%5.0f s  %-5s  %6.1f MiB resident  %4.0f files  %4.0f leases  %3.0f uploads  %6.1f MiB pinned  %8.0f MiB "
           "moved  %llu wrong\n",
           s->at, s->hostile ? "bad" : "good", s->gauge[RSS], s->gauge[FILES], s->gauge[LEASES], s->gauge[UPLOADS],
           s->gauge[PINNED], (double)s->good_bytes / 1048576,
           (unsigned long long)atomic_load_explicit(&sh->wrong, memory_order_relaxed));
    fflush(stdout);
}

static void run_load(run_t *r)
{
    double next_print = 0;
    while (!r->has_failed) {
        sample_t s;
        double now = bench_now_s() - r->start;
        if (now >= r->seconds)
            return;
        atomic_store_explicit(&r->shared->hostile, (long)(now / r->phase) % 2 == 1, memory_order_relaxed);
        if (waitpid(r->server.pid, NULL, WNOHANG) != 0)
            fault(r, "the server died");
        else if (take_sample(r, &s))
            keep_sample(r, &s);
        if (r->n_samples > 0 && now >= next_print) {
            print_sample(&r->samples[r->n_samples - 1], r->shared);
            next_print += VC_MAX(10.0, r->seconds / 30);
        }
        nap(SAMPLE_S);
    }
}

/* ---- judgement ---- */

static double median_of(const run_t *r, int gauge, double from, double to)
{
    bench_samples_t v = {0};
    for (size_t i = 0; i < r->n_samples; i++) {
        if (r->samples[i].at >= from && r->samples[i].at < to)
            bench_add(&v, r->samples[i].gauge[gauge]);
    }
    double median = v.n ? bench_median(&v) : 0;
    bench_samples_free(&v);
    return median;
}

/* Whole pairs of phases, so that both windows hold the same mixture. */
static void judge_growth(run_t *r)
{
    double pair = 2 * r->phase, first = VC_MIN(60.0, r->seconds / 4);
    first = pair * (double)(long)(first / pair + 0.999);
    double last = pair * (double)(long)(r->seconds / pair) - pair;
    if (last < first + pair) {
        bench_note("too short to compare the end with the beginning");
        return;
    }
    printf("%-24s %12s %12s\n", "median", "after start", "at the end");
    for (int g = 0; g < N_GAUGES; g++) {
        double a = median_of(r, g, first, first + pair), b = median_of(r, g, last, last + pair);
        double most = g == RSS ? a * RSS_GROWTH + RSS_SLACK_MIB : a * COUNT_GROWTH + COUNT_SLACK;
        printf("%-24s %12.1f %12.1f\n", gauge_names[g], a, b);
        if (b > most && r->seconds >= JUDGED_S)
            fault(r, gauge_names[g]);
    }
    bench_figure("soak_rss_growth", median_of(r, RSS, last, last + pair) / median_of(r, RSS, first, first + pair));
}

/* Bytes a second of the good clients in the phase that begins at `from`; its first tenth is change-over. */
static double phase_rate(const run_t *r, double from)
{
    const sample_t *a = NULL, *b = NULL;
    for (size_t i = 0; i < r->n_samples; i++) {
        const sample_t *s = &r->samples[i];
        if (s->at < from + r->phase / 10 || s->at >= from + r->phase)
            continue;
        a = a ? a : s;
        b = s;
    }
    return a && b->at > a->at ? (double)(b->good_bytes - a->good_bytes) / (b->at - a->at) : 0;
}

static void judge_share(run_t *r)
{
    bench_samples_t share = {0}, good = {0}, bad = {0};
    double start = r->phase * 2 * (double)(long)(VC_MIN(60.0, r->seconds / 4) / (2 * r->phase) + 0.999);
    for (double at = start; at + 3 * r->phase <= r->seconds; at += 2 * r->phase) {
        /* The phase with the bad ones against the ones before and after it. */
        double alone = (phase_rate(r, at) + phase_rate(r, at + 2 * r->phase)) / 2, with = phase_rate(r, at + r->phase);
        if (alone <= 0)
            continue;
        printf("from %4.0f s: %7.1f MB/s alone, %7.1f with bad ones, %7.1f alone again\n", at, phase_rate(r, at) / 1e6,
               with / 1e6, phase_rate(r, at + 2 * r->phase) / 1e6);
        bench_add(&good, alone / 1e6);
        bench_add(&bad, with / 1e6);
        bench_add(&share, with / alone);
    }
    if (share.n == 0) {
        bench_note("too short to compare the phases");
        return;
    }
    bench_row("good clients alone", "MB/s", &good);
    bench_row("with bad ones present", "MB/s", &bad);
    bench_figure("soak_good_share", bench_median(&share));
    bench_samples_free(&share);
    bench_samples_free(&good);
    bench_samples_free(&bad);
}

static void judge_counts(run_t *r)
{
    soak_shared_t *s = r->shared;
    bench_note("%llu fetches, %llu records, %llu registrations, %llu broken off, %llu pins, %llu deletes",
               (unsigned long long)s->fetches, (unsigned long long)s->records, (unsigned long long)s->registrations,
               (unsigned long long)s->aborts, (unsigned long long)s->pins, (unsigned long long)s->deletes);
    bench_note("%llu clients killed inside a transfer, %llu that never took theirs, %llu times garbage",
               (unsigned long long)s->killed, (unsigned long long)s->stuck, (unsigned long long)s->garbage);
    for (int i = 1; i < SOAK_STATUSES; i++) {
        if (s->refused[i])
            bench_note("good clients were answered \"%s\" %llu times", vcache_status_name(-i),
                       (unsigned long long)s->refused[i]);
    }
    bench_figure("soak_wrong_bytes", (double)s->wrong);
    if (s->wrong)
        fault(r, "wrong bytes were handed out");
    if (s->records == 0)
        fault(r, "nothing was fetched");
}

/* Everybody has left: what they held comes back. */
static void judge_release(run_t *r, double idle_files)
{
    sample_t s = {0};
    double until = bench_now_s() + GIVE_BACK_S;
    bool is_back = false;
    while (!is_back && bench_now_s() < until) {
        nap(0.5);
        if (!take_sample(r, &s))
            break;
        is_back = s.gauge[FILES] <= idle_files + s.gauge[SEGMENTS] + 2 * COUNT_SLACK; /* each segment is a file */
        for (int g = LEASES; g < SEGMENTS; g++)
            is_back = is_back && s.gauge[g] == 0;
    }
    for (int g = LEASES; g < SEGMENTS; g++) {
        if (s.gauge[g] != 0)
            bench_note("%s: %.1f are left after everybody has gone", gauge_names[g], s.gauge[g]);
    }
    bench_note("afterwards: %.1f MiB resident, %.0f open files (%.0f before anybody came)", s.gauge[RSS],
               s.gauge[FILES], idle_files);
    if (!is_back)
        fault(r, "something was not given back");
}

static void judge_directory(run_t *r)
{
    char out[8192] = "";
    if (bench_server_stop(&r->server) != 0)
        fault(r, "the server did not stop with exit code 0");
    char *const argv[] = {r->server.program,
                          (char *)(uintptr_t) "verify",
                          (char *)(uintptr_t) "--data-dir",
                          r->data_dir,
                          (char *)(uintptr_t) "--capacity=384MiB",
                          NULL};
    if (bench_run(argv, out, sizeof(out)) != 0) {
        printf("%s", out);
        fault(r, "the directory is damaged");
    }
}

/* For the idle connections, at both ends: server and clients inherit it. */
static void allow_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    static run_t r;
    bench_init("soak", argc, argv);
    r.seconds = atof(bench_option("seconds", bench_quick() ? "24" : "600"));
    r.phase = atof(bench_option("phase", bench_quick() ? "3" : "10"));
    if (r.seconds < 1 || r.phase < 1)
        bench_fail("--seconds and --phase are at least 1");
    r.shared = mmap(NULL, sizeof(*r.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r.shared == MAP_FAILED)
        bench_fail("no shared memory");
    allow_files();
    soak_space_init();
    start_server(&r);
    double idle_files = open_files(r.server.pid);
    start_clients(&r);
    r.client = soak_connect(r.shared, false);
    r.start = bench_now_s();
    if (!r.client)
        bench_fail("out of memory");
    run_load(&r);
    stop_clients(&r);
    judge_growth(&r);
    judge_share(&r);
    judge_counts(&r);
    if (!r.has_failed || waitpid(r.server.pid, NULL, WNOHANG) == 0)
        judge_release(&r, idle_files);
    vcache_disconnect(r.client);
    judge_directory(&r);
    vc_free(r.samples);
    bench_note("%s", r.has_failed ? "FAILED" : "all good");
    return r.has_failed;
}
