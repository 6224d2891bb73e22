/*
 * How much of the wire, or of the disk, does a FETCH use? Records of SmolLM2-135M's size over UCX, on tcp loopback and
 * over shared memory, in rounds that alternate. Server on one CPU, client in a process of its own on another, as the
 * peer.
 *
 *   hot   one record that is in the server's memory, fetched again and again into one buffer, eight at a time: the data
 *         plane by itself (frames, tokens, pins, credits), against `ucx_perftest -t ucp_am_bw` with the same transport,
 *         message size and 8 messages outstanding; the bytes are hot in the cache as the peer's are
 *   cold  64 MiB of different records by vc_data_fetch, read from disk and summed at both ends: what a node gets.
 *         Against the smaller of the disk alone, read through the same workers, and the hot figure of the round
 *   hot beside hostile peers   the hot line over tcp while forty connections idle, one reads nothing of what it asked
 *         for, and one is thrown out for its messages and comes again all the time; against the hot line without them
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dataplane_parts.h"
#include "vc/log.h"
#include "vc/mem.h"

#define PAYLOAD_BYTES 1474560u /* the peer's message: the K and V of a block, without header and padding */

void must(vc_status_t st, const vc_err_t *err, const char *what)
{
    if (st != VC_OK)
        bench_fail("%s: %s (%s)", what, err != NULL ? err->msg : "", vc_status_name(st));
}

/* ---- the peer ---- */

#define PEER_ENV                                                                                 \
    "env", "UCX_TLS=tcp", "UCX_NET_DEVICES=lo", "UCX_RNDV_SCHEME=am", "UCX_TCP_TX_SEG_SIZE=64k", \
        "UCX_TCP_RX_SEG_SIZE=256k", "UCX_WARN_UNUSED_ENV_VARS=n"

#define SHM_ENV "env", "UCX_TLS=posix,cma", "UCX_RNDV_SCHEME=get_zcopy", "UCX_WARN_UNUSED_ENV_VARS=n"

static pid_t start_peer_server(bool shm, char *port)
{
    char *tcp[] = {PEER_ENV, "ucx_perftest", "-p", port, "-c", "0", NULL};
    char *mem[] = {SHM_ENV, "ucx_perftest", "-p", port, "-c", "0", NULL};
    char **argv = shm ? mem : tcp;
    fflush(stdout);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    if (freopen("/dev/null", "w", stdout) == NULL || freopen("/dev/null", "w", stderr) == NULL)
        _exit(127);
    execvp(argv[0], argv);
    _exit(127);
}

/* Bytes per second in MB; the last line is: iterations, three latencies, MiB/s average and overall, two rates. */
static double run_peer(bool shm, uint64_t n)
{
    static int next_port = 24100;
    char port[16], iterations[24], warmup[24], size[16], out[16384];
    snprintf(port, sizeof(port), "%d", next_port + (int)(getpid() % 1000));
    next_port += 1000;
    snprintf(iterations, sizeof(iterations), "%llu", (unsigned long long)n);
    snprintf(warmup, sizeof(warmup), "%llu", (unsigned long long)(n / 10 + OUTSTANDING));
    snprintf(size, sizeof(size), "%u", PAYLOAD_BYTES);
#define PEER_ARGS                                                                                                    \
    "ucx_perftest", "-p", port, "-t", "ucp_am_bw", "-s", size, "-n", iterations, "-w", warmup, "-O", "8", "-c", "1", \
        "-f", "127.0.0.1", NULL
    char *tcp[] = {PEER_ENV, PEER_ARGS}, *mem[] = {SHM_ENV, PEER_ARGS};
    char **argv = shm ? mem : tcp;
    pid_t server = start_peer_server(shm, port);
    double mib = 0;
    for (int try = 0; try < 50 && mib == 0; try++) { /* until the other side listens */
        const struct timespec pause = {.tv_nsec = 100000000};
        nanosleep(&pause, NULL);
        if (bench_run(argv, out, sizeof(out)) != 0)
            continue;
        char *last = NULL;
        for (char *line = strtok(out, "\n"); line != NULL; line = strtok(NULL, "\n"))
            last = line;
        if (last == NULL || sscanf(last, "%*f %*f %*f %*f %*f %lf", &mib) != 1)
            bench_fail("ucx_perftest says: %s", last != NULL ? last : "nothing");
    }
    kill(server, SIGTERM);
    waitpid(server, NULL, 0);
    if (mib == 0)
        bench_fail("ucx_perftest does not run (package ucx-utils)");
    return mib * 1.048576;
}

/* ---- a round: everything once, in turn ---- */

typedef struct result {
    bench_samples_t peer, hot, ratio, cold, bound_ratio;
} result_t;

typedef struct results {
    result_t by[2]; /* tcp, shared memory */
    bench_samples_t disk, beside, beside_ratio;
} results_t;

static void run_round(server_t *s, results_t *r, uint64_t n, uint32_t cycles)
{
    for (int shm = 0; shm < 2; shm++) {
        result_t *x = &r->by[shm];
        double peer = run_peer(shm, n), hot = run_hot(s, shm, n), disk = run_disk(s, cycles);
        double cold = run_cold(s, shm, cycles);
        disk = (disk + run_disk(s, cycles)) / 2; /* before and after */
        bench_add(&x->peer, peer);
        bench_add(&x->hot, hot);
        bench_add(&x->ratio, hot / peer);
        bench_add(&x->cold, cold);
        bench_add(&x->bound_ratio, cold / VC_MIN(disk, hot));
        bench_add(&r->disk, disk);
    }
    vc_data_lease_t lease = take_lease(s);
    double alone = run_hot(s, false, n);
    pid_t hostile = hostile_start(s, &lease);
    double beside = run_hot(s, false, n);
    hostile_stop(hostile);
    drop_lease(s, &lease);
    alone = (alone + run_hot(s, false, n)) / 2; /* before and after */
    bench_add(&r->beside, beside);
    bench_add(&r->beside_ratio, beside / alone);
}

static void print_way(const char *name, const result_t *x)
{
    char row[96];
    snprintf(row, sizeof(row), "%s: ucx_perftest ucp_am_bw, 8 outstanding", name);
    bench_row(row, "MB/s", &x->peer);
    snprintf(row, sizeof(row), "%s: fetch, one record in memory", name);
    bench_row(row, "MB/s", &x->hot);
    snprintf(row, sizeof(row), "%s: fetch, 64 MiB from disk", name);
    bench_row(row, "MB/s", &x->cold);
    snprintf(row, sizeof(row), "%s: ratio of a round, in memory / peer", name);
    bench_row(row, "", &x->ratio);
    snprintf(row, sizeof(row), "%s: ratio of a round, from disk / min(disk, memory)", name);
    bench_row(row, "", &x->bound_ratio);
}

static void free_results(results_t *r)
{
    for (int shm = 0; shm < 2; shm++) {
        bench_samples_free(&r->by[shm].peer);
        bench_samples_free(&r->by[shm].hot);
        bench_samples_free(&r->by[shm].ratio);
        bench_samples_free(&r->by[shm].cold);
        bench_samples_free(&r->by[shm].bound_ratio);
    }
    bench_samples_free(&r->disk);
    bench_samples_free(&r->beside);
    bench_samples_free(&r->beside_ratio);
}

int main(int argc, char **argv)
{
    static server_t s;
    static results_t r;
    bench_init("dataplane", argc, argv);
    vc_log_set_level(VC_LOG_WARN);
    if (bench_option("hostile", NULL) != NULL)
        hostile_main();
    if (!bench_have("ucx_perftest"))
        bench_fail("ucx_perftest is missing (package ucx-utils)");
    int rounds = atoi(bench_option("rounds", bench_quick() ? "1" : "7"));
    client_start();
    start_server(&s);
    for (int i = 0; i < rounds; i++)
        run_round(&s, &r, bench_quick() ? 40 : 1000, bench_quick() ? 1 : 10);
    print_way("tcp", &r.by[0]);
    print_way("shm", &r.by[1]);
    bench_row("disk alone, 64 MiB, 16 outstanding, unchecked", "MB/s", &r.disk);
    bench_row("tcp: fetch, one record in memory, beside hostile peers", "MB/s", &r.beside);
    bench_row("tcp: ratio of a round, beside hostile peers / alone", "", &r.beside_ratio);
    bench_figure("fetch_vs_ucx_tcp", bench_median(&r.by[0].ratio));
    bench_figure("fetch_vs_ucx_shm", bench_median(&r.by[1].ratio));
    bench_figure("fetch_from_disk_vs_bound",
                 VC_MIN(bench_median(&r.by[0].bound_ratio), bench_median(&r.by[1].bound_ratio)));
    bench_figure("fetch_beside_hostile_vs_alone", bench_median(&r.beside_ratio));
    client_stop();
    stop_server(&s);
    free_results(&r);
    return 0;
}
