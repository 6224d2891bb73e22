/*
 * The whole way over TCP loopback: vericache-server and libvericache (UCX over tcp) against redis-server with an append
 * only file synced always, and a pipelined client of ours. Two clients each, the same values, in turn round after
 * round.
 *
 *   put   durable when answered: SET 8 at a time; registrations of 16 records, each committed
 *   read  what was put, from memory on both sides: GET 8 at a time; lookup and fetch of 16 records, summed on arrival
 *
 * Part of bench_store.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <netinet/in.h>

#include "store_resp.h"
#include "store_target.h"
#include "vericache/vericache.h"

enum { CLIENTS = 2, PIPELINE = 8, CHAINS = 4 /* of BATCH records, per client and round */ };

typedef struct { /* one client of either server */
    target_t *names;
    resp_t resp;
    vcache_client_t *client;
    uint8_t *data[CHAINS * BATCH];
    uint32_t tokens[CHAINS][BATCH * 64];
    char keys[CHAINS * BATCH][40];
    uint32_t bytes, class_id, chain;
    size_t received;
    uint8_t *to;
    const uint8_t *keyspace;
    size_t keyspace_len;
} client_t;

/* ---- processes ---- */

static pid_t spawn(char *const argv[])
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (freopen("/dev/null", "w", stdout) == NULL || freopen("/dev/null", "w", stderr) == NULL)
        _exit(127);
    execvp(argv[0], argv);
    _exit(127);
}

static void end_process(pid_t pid)
{
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
}

static void nap(void)
{
    struct timespec pause = {.tv_nsec = 20000000};
    nanosleep(&pause, NULL);
}

static int free_port(void)
{
    struct sockaddr_in addr = {.sin_family = AF_INET};
    socklen_t len = sizeof(addr);
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 ||
        getsockname(fd, (struct sockaddr *)&addr, &len) != 0)
        bench_fail("no free port: %s", strerror(errno));
    close(fd);
    return ntohs(addr.sin_port);
}

static pid_t start_redis(client_t *clients)
{
    char dir[4200], port[16];
    int number = free_port();
    make_bench_dir("redis", dir, sizeof(dir));
    snprintf(port, sizeof(port), "%d", number);
    char *argv[] = {"redis-server",
                    "--port",
                    port,
                    "--bind",
                    "127.0.0.1",
                    "--dir",
                    dir,
                    "--save",
                    "",
                    "--appendonly",
                    "yes",
                    "--appendfsync",
                    "always",
                    "--auto-aof-rewrite-percentage",
                    "0",
                    NULL};
    pid_t pid = spawn(argv);
    for (int i = 0; i < CLIENTS; i++) {
        int tries = 0;
        while (!resp_connect(&clients[i].resp, number)) {
            if (++tries == 500)
                bench_fail("redis-server does not start");
            nap();
        }
        resp_command(&clients[i].resp, "PING");
        resp_expect_simple(&clients[i].resp);
    }
    return pid;
}

static pid_t start_server(client_t *clients)
{
    static char exe[4096], dir[4200], ports[4300], address[64];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 64);
    char *slash = n > 0 ? strrchr(exe, '/') : NULL;
    if (!slash)
        bench_fail("cannot find vericache-server");
    snprintf(slash, 64, "/../cache-server/vericache-server");
    make_bench_dir("server", dir, sizeof(dir));
    snprintf(ports, sizeof(ports), "%s/ports", bench_tmpdir());
    char *argv[] = {exe,     "--data-dir",  dir,   "--listen",      "127.0.0.1:0",  "--ram", "2GiB", "--capacity",
                    "12GiB", "--port-file", ports, "--no-data-shm", "--scrub-rate", "0",     NULL};
    pid_t pid = spawn(argv);
    FILE *f;
    int port = 0;
    for (int tries = 0; (f = fopen(ports, "re")) == NULL; tries++) {
        if (tries == 500)
            bench_fail("%s does not start", exe);
        nap();
    }
    if (fscanf(f, "%d", &port) != 1)
        bench_fail("no port in %s", ports);
    fclose(f);
    snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    for (int i = 0; i < CLIENTS; i++) {
        vcache_options_t o;
        vcache_error_t e = {0};
        vcache_options_default(&o);
        o.server = address;
        o.use_data_plane = 2;
        if (vcache_connect(&o, &clients[i].client, &e) != 0)
            bench_fail("cannot connect: %s", e.msg);
    }
    return pid;
}

/* ---- what is put ---- */

static void make_values(client_t *c, uint32_t class_id, uint32_t seed)
{
    vc_digest_t parent = {0};
    c->class_id = class_id;
    for (uint32_t i = 0; i < CHAINS * BATCH; i++) {
        uint32_t *tokens = c->tokens[i / BATCH];
        vc_digest_t hash;
        if (i % BATCH == 0) {
            chain_tokens(c->names, seed + i / BATCH, BATCH, tokens);
            parent = c->names->ks_id;
        }
        c->bytes = make_record(c->names, class_id, tokens, i % BATCH, &parent, c->data[i],
                               (size_t)vc_kvrec_full_bytes(&c->names->ks.shape), &hash);
        parent = hash;
        snprintf(c->keys[i], sizeof(c->keys[i]), "record:%u:%u", seed, i);
    }
}

/* ---- the four jobs ---- */

static void *put_redis(void *arg)
{
    client_t *c = arg;
    for (uint32_t i = 0; i < CHAINS * BATCH + PIPELINE; i++) {
        if (i < CHAINS * BATCH)
            resp_set(&c->resp, c->keys[i], c->data[i], c->bytes);
        if (i >= PIPELINE)
            resp_expect_simple(&c->resp);
    }
    return NULL;
}

static void *get_redis(void *arg)
{
    client_t *c = arg;
    for (uint32_t i = 0; i < CHAINS * BATCH + PIPELINE; i++) {
        if (i < CHAINS * BATCH)
            resp_get(&c->resp, c->keys[i]);
        if (i >= PIPELINE)
            resp_expect_value(&c->resp, c->to, c->bytes);
    }
    if (memcmp(c->to, c->data[CHAINS * BATCH - 1], c->bytes) != 0)
        bench_fail("redis returned another value");
    return NULL;
}

static vcache_fidelity_t fidelity_of(const client_t *c)
{
    return c->class_id == FULL ? (vcache_fidelity_t){0, "full@1", NULL} : (vcache_fidelity_t){1, "kivi:bits=4", NULL};
}

static int source(void *arg, uint32_t fid, uint32_t block, void *buf, size_t cap, size_t *len_p)
{
    client_t *c = arg;
    (void)fid;
    if (cap < c->bytes)
        return 1;
    memcpy(buf, c->data[c->chain * BATCH + block], c->bytes);
    *len_p = c->bytes;
    return 0;
}

static void *put_ours(void *arg)
{
    client_t *c = arg;
    vcache_fidelity_t fid = fidelity_of(c);
    for (c->chain = 0; c->chain < CHAINS; c->chain++) {
        vcache_register_stats_t stats;
        vcache_error_t e = {0};
        if (vcache_register(c->client, c->keyspace, c->keyspace_len, c->tokens[c->chain], 0, BATCH, &fid, 1, source, c,
                            &stats, &e) != 0)
            bench_fail("put: %s", e.msg);
        if (stats.path != VCACHE_PATH_UCX || stats.n_stored != BATCH)
            bench_fail("put: %u records stored over path %d", stats.n_stored, (int)stats.path);
    }
    return NULL;
}

static int take(void *arg, uint32_t block, const void *record, size_t bytes)
{
    client_t *c = arg;
    (void)block;
    (void)record; /* it lies in this process's memory, summed */
    c->received += bytes;
    return 0;
}

static void *get_ours(void *arg)
{
    client_t *c = arg;
    vcache_fidelity_t fid = fidelity_of(c);
    c->received = 0;
    for (c->chain = 0; c->chain < CHAINS; c->chain++) {
        vcache_lookup_info_t info;
        vcache_lease_t *lease = NULL;
        vcache_fetch_stats_t stats = {0};
        vcache_error_t e = {0};
        if (vcache_lookup(c->client, c->keyspace, c->keyspace_len, c->tokens[c->chain], BATCH * 64, &fid, 1, &info,
                          &lease, &e) != 0 ||
            info.n_blocks[0] != BATCH)
            bench_fail("lookup: %s", e.msg);
        if (vcache_fetch(lease, 0, 0, BATCH, take, c, &stats, &e) != 0 || stats.path != VCACHE_PATH_UCX)
            bench_fail("fetch over path %d: %s", (int)stats.path, e.msg);
        vcache_lease_release(lease);
    }
    if (c->received != (size_t)c->bytes * CHAINS * BATCH)
        bench_fail("fetch: %zu bytes", c->received);
    return NULL;
}

/* All clients at once; MB/s together. */
static double run_all(client_t *clients, void *(*job)(void *arg))
{
    pthread_t threads[CLIENTS];
    double t0 = bench_now_s();
    for (int i = 0; i < CLIENTS; i++)
        if (pthread_create(&threads[i], NULL, job, &clients[i]) != 0)
            bench_fail("cannot start a client");
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
    return (double)CLIENTS * CHAINS * BATCH * clients[0].bytes / (bench_now_s() - t0) / 1e6;
}

/* ---- rounds ---- */

typedef struct {
    bench_samples_t put[2], read[2], first; /* ours, redis; ours from disk */
} samples_t;

static void run_round(client_t *clients, samples_t *s, uint32_t class_id, uint32_t round)
{
    for (int i = 0; i < CLIENTS; i++)
        make_values(&clients[i], class_id, 1 + ((class_id * sb.n_rounds + round) * CLIENTS + (uint32_t)i) * CHAINS);
    for (uint32_t turn = 0; turn < 2; turn++) {
        uint32_t peer = (turn + round) % 2;
        bench_add(&s->put[peer], run_all(clients, peer == 0 ? put_ours : put_redis));
    }
    bench_add(&s->first, run_all(clients, get_ours)); /* redis has them in memory since they were put */
    (void)run_all(clients, get_redis);
    for (uint32_t turn = 0; turn < 2; turn++) {
        uint32_t peer = (turn + round) % 2;
        bench_add(&s->read[peer], run_all(clients, peer == 0 ? get_ours : get_redis));
    }
    resp_command(&clients[0].resp, "FLUSHALL");
    resp_expect_simple(&clients[0].resp);
}

static void report(samples_t *s, uint32_t class_id, double *put_worst, double *read_worst)
{
    char name[96];
    bench_samples_t *rows[] = {&s->read[0], &s->first, &s->read[1], &s->put[0], &s->put[1]};
    static const char *const what[] = {"read over tcp, ours", "read over tcp, ours, first time, disk",
                                       "read over tcp, Redis", "put over tcp, ours", "put over tcp, Redis"};
    for (size_t i = 0; i < VC_ARRAY_LEN(rows); i++) {
        snprintf(name, sizeof(name), "%s, %s", what[i], class_names[class_id]);
        bench_row(name, "MB/s", rows[i]);
    }
    *put_worst = VC_MIN(*put_worst, bench_median(&s->put[0]) / bench_median(&s->put[1]));
    *read_worst = VC_MIN(*read_worst, bench_median(&s->read[0]) / bench_median(&s->read[1]));
    for (size_t i = 0; i < VC_ARRAY_LEN(rows); i++)
        bench_samples_free(rows[i]);
}

static void open_clients(client_t *clients, target_t *names, uint8_t *keyspace)
{
    size_t len = 0, cap = (size_t)vc_kvrec_full_bytes(&names->ks.shape);
    OK(vc_keyspace_encode(&names->ks, keyspace, &len, &err));
    for (int i = 0; i < CLIENTS; i++) {
        client_t *c = &clients[i];
        c->names = names;
        c->keyspace = keyspace;
        c->keyspace_len = len;
        c->to = vc_alloc_aligned(4096, cap);
        for (uint32_t k = 0; k < CHAINS * BATCH; k++)
            if (!(c->data[k] = vc_alloc_aligned(4096, cap)) || !c->to)
                bench_fail("no memory for the values");
    }
}

static void close_clients(client_t *clients)
{
    for (int i = 0; i < CLIENTS; i++) {
        resp_close(&clients[i].resp);
        vcache_disconnect(clients[i].client);
        vc_free(clients[i].to);
        for (uint32_t k = 0; k < CHAINS * BATCH; k++)
            vc_free(clients[i].data[k]);
    }
}

void measure_redis(void)
{
    static client_t clients[CLIENTS]; /* large */
    static uint8_t keyspace[VC_KEYSPACE_ENC_MAX];
    target_t names;
    samples_t samples = {0};
    double put_worst = 1e9, read_worst = 1e9;
    if (!bench_have("redis-server")) {
        bench_note("redis-server is not installed: store_read_vs_redis and store_put_vs_redis are left out");
        return;
    }
    make_model_names(&names);
    open_clients(clients, &names, keyspace);
    pid_t redis = start_redis(clients), server = start_server(clients);
    for (uint32_t class_id = 0; class_id < N_CLASSES; class_id++) {
        for (uint32_t round = 0; round < sb.n_rounds; round++)
            run_round(clients, &samples, class_id, round);
        report(&samples, class_id, &put_worst, &read_worst);
    }
    bench_figure("store_read_vs_redis", read_worst);
    bench_figure("store_put_vs_redis", put_worst);
    close_clients(clients);
    end_process(server);
    end_process(redis);
}
