/*
 * How long does a lookup take?
 *
 * A server in a process of its own holds 100,000 objects in chains of 256 blocks of 64 tokens; clients of libvericache
 * in this process ask for whole chains (a request carries 64 KiB of token ids, the server hashes them) and get a lease,
 * which is given back outside the timed part. One client, then eight at once; hits, and chains that nobody knows. The
 * health call, which touches nothing, shows what of it is the transport.
 *   --dir DIR (about 1 GB), --objects N, --lookups N (per client)
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config.h"
#include "harness.h"
#include "server.h"
#include "vc/keyspace.h"
#include "vc/kvrec.h"
#include "vc/log.h"
#include "vc/mem.h"
#include "vericache/vericache.h"

enum { CHAIN = 256, BLOCK = 64, MAX_CLIENTS = 8 };

static vc_keyspace_t ks;
static vc_digest_t ks_id;
static uint8_t ks_enc[VC_KEYSPACE_ENC_MAX];
static size_t ks_len;
static char address[64];
static uint32_t n_chains, n_lookups;
static const vcache_fidelity_t full = {0, "full@1", NULL};

/* ---- the server ---- */

static void serve(const char *dir, int out)
{
    vc_err_t err = {0};
    cs_config_t config;
    cs_server_t *server = NULL;
    sigset_t set;
    int got;
    char data[600];
    snprintf(data, sizeof(data), "--data-dir=%s/control", dir);
    char *argv[] = {(char *)"bench", data, (char *)"--listen=127.0.0.1:0", (char *)"--capacity=3GiB",
                    (char *)"--data-listen=none"};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    vc_log_set_level(VC_LOG_ERROR);
    if (cs_config_load(&config, 5, argv, NULL, &err) != VC_OK || cs_server_start(&config, &server, &err) != VC_OK)
        bench_fail("cannot start the server: %s", err.msg);
    int port = cs_server_port(server);
    if (write(out, &port, sizeof(port)) != (ssize_t)sizeof(port))
        bench_fail("cannot tell the port");
    sigwait(&set, &got);
    cs_server_stop(server);
    cs_config_free(&config);
}

static pid_t start_server(void)
{
    int fds[2], port = 0;
    const char *dir = bench_tmpdir();
    fflush(stdout);
    if (pipe(fds) != 0)
        bench_fail("no pipe");
    pid_t pid = fork(); /* before this process starts any thread */
    if (pid == 0) {
        serve(dir, fds[1]);
        _exit(0); /* what atexit registered is the parent's */
    }
    close(fds[1]);
    if (pid < 0 || read(fds[0], &port, sizeof(port)) != (ssize_t)sizeof(port))
        bench_fail("the server did not start");
    close(fds[0]);
    snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    return pid;
}

/* ---- the data ---- */

static void make_keyspace(void)
{
    ks = (vc_keyspace_t){.shape = {1, 1, 8, BLOCK, VC_DTYPE_F16}, .layout_version = VC_LAYOUT_VERSION};
    memset(&ks.model, 0x61, sizeof(ks.model));
    snprintf(ks.rope, sizeof(ks.rope), "neox theta=100000 dims=8");
    if (vc_keyspace_id(&ks, &ks_id, NULL) != VC_OK || vc_keyspace_encode(&ks, ks_enc, &ks_len, NULL) != VC_OK)
        bench_fail("no keyspace");
}

static void chain_tokens(uint32_t seed, uint32_t *tokens)
{
    for (uint32_t i = 0; i < CHAIN * BLOCK; i++)
        tokens[i] = (seed * 2654435761u + i) % 49152;
    tokens[0] = seed; /* no two chains share a block */
}

typedef struct {
    uint32_t tokens[CHAIN * BLOCK];
    vc_digest_t hashes[CHAIN];
} chain_t;

static int make_record(void *arg, uint32_t fid, uint32_t b, void *buf, size_t cap, size_t *len_p)
{
    const chain_t *c = arg;
    (void)fid;
    vc_kvrec_head_t head = {.fidelity = VC_FIDELITY_FULL,
                            .kind = VC_KVREC_FULL,
                            .shape = ks.shape,
                            .block_index = b,
                            .numerics_id = 1,
                            .keyspace = ks_id,
                            .parent = b == 0 ? ks_id : c->hashes[b - 1]};
    vc_kvrec_writer_t w;
    void *part;
    uint32_t bytes = (uint32_t)vc_kv_layer_bytes(&ks.shape);
    vc_spec_id("full@1", NULL, &head.spec);
    if (vc_kvrec_write_begin(&w, buf, cap, &head, c->tokens + b * BLOCK, NULL) != VC_OK ||
        vc_kvrec_write_layer(&w, bytes, &part, NULL) != VC_OK)
        return 1;
    memset(part, (int)(b & 0xff), bytes);
    return vc_kvrec_write_end(&w, len_p, NULL) != VC_OK;
}

static vcache_client_t *connect_client(void)
{
    vcache_options_t o;
    vcache_client_t *c = NULL;
    vcache_options_default(&o);
    o.server = address;
    o.use_data_plane = 0;
    if (vcache_connect(&o, &c, NULL) != VC_OK)
        bench_fail("cannot connect to %s", address);
    return c;
}

static void fill(void)
{
    static chain_t chain;
    vcache_error_t err = {0};
    vcache_client_t *c = connect_client();
    double start = bench_now_s();
    for (uint32_t seed = 1; seed <= n_chains; seed++) {
        chain_tokens(seed, chain.tokens);
        vc_block_chain(&ks_id, chain.tokens, CHAIN * BLOCK, BLOCK, chain.hashes);
        if (vcache_register(c, ks_enc, ks_len, chain.tokens, 0, CHAIN, &full, 1, make_record, &chain, NULL, &err) != 0)
            bench_fail("cannot register chain %u: %s", seed, err.msg);
    }
    bench_note("%u objects registered over gRPC in %.1f s", n_chains * CHAIN, bench_now_s() - start);
    vcache_disconnect(c);
}

/* ---- lookups ---- */

typedef enum { HIT, MISS, HEALTH } what_t;

typedef struct {
    what_t what;
    uint32_t number;
    bench_samples_t ms;
} asker_t;

static double ask(vcache_client_t *c, what_t what, const uint32_t *tokens)
{
    vcache_lookup_info_t info;
    vcache_lease_t *lease = NULL;
    vcache_error_t err = {0};
    double start = bench_now_s();
    vcache_status_t st = what == HEALTH
                             ? vcache_health(c, &err)
                             : vcache_lookup(c, ks_enc, ks_len, tokens, CHAIN * BLOCK, &full, 1, &info, &lease, &err);
    double ms = (bench_now_s() - start) * 1e3;
    if (st != VC_OK)
        bench_fail("lookup: %s", err.msg);
    if (what != HEALTH && info.n_blocks[0] != (what == HIT ? CHAIN : 0))
        bench_fail("%u blocks found", info.n_blocks[0]);
    vcache_lease_release(lease);
    return ms;
}

static void *ask_many(void *arg)
{
    asker_t *a = arg;
    uint32_t *tokens = vc_calloc(CHAIN * BLOCK, sizeof(*tokens));
    uint64_t state = 77 + a->number;
    vcache_client_t *c = connect_client();
    for (uint32_t i = 0; i < n_lookups + n_lookups / 10; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t seed = 1 + (uint32_t)(state >> 33) % n_chains;
        chain_tokens(a->what == MISS ? seed + 0x40000000u : seed, tokens);
        double ms = ask(c, a->what, tokens);
        if (i >= n_lookups / 10) /* the first tenth warms up */
            bench_add(&a->ms, ms);
    }
    vcache_disconnect(c);
    vc_free(tokens);
    return NULL;
}

static double measure(const char *name, what_t what, uint32_t n_clients)
{
    static asker_t askers[MAX_CLIENTS];
    pthread_t threads[MAX_CLIENTS];
    bench_samples_t all = {0};
    for (uint32_t i = 0; i < n_clients; i++) {
        askers[i] = (asker_t){.what = what, .number = i};
        if (pthread_create(&threads[i], NULL, ask_many, &askers[i]) != 0)
            bench_fail("no thread");
    }
    for (uint32_t i = 0; i < n_clients; i++) {
        pthread_join(threads[i], NULL);
        for (size_t k = 0; k < askers[i].ms.n; k++)
            bench_add(&all, askers[i].ms.v[k]);
        bench_samples_free(&askers[i].ms);
    }
    double p99 = bench_percentile(&all, 99);
    bench_row(name, "ms", &all);
    bench_samples_free(&all);
    return p99;
}

int main(int argc, char **argv)
{
    bench_init("control", argc, argv);
    uint32_t n_objects = (uint32_t)atoi(bench_option("objects", bench_quick() ? "2560" : "100000"));
    n_lookups = (uint32_t)atoi(bench_option("lookups", bench_quick() ? "100" : "2000"));
    n_chains = (n_objects + CHAIN - 1) / CHAIN;
    if (n_chains == 0 || n_chains > 4000 || n_lookups < 10)
        bench_fail("--objects or --lookups is out of range");
    make_keyspace();
    pid_t server = start_server();
    fill();
    measure("health, 1 client", HEALTH, 1);
    double p99 = measure("lookup hit, 1 client", HIT, 1);
    measure("lookup miss, 1 client", MISS, 1);
    double p99_8 = measure("lookup hit, 8 clients", HIT, MAX_CLIENTS);
    measure("lookup miss, 8 clients", MISS, MAX_CLIENTS);
    kill(server, SIGTERM);
    waitpid(server, NULL, 0);
    bench_figure("lookup_256_p99_ms", p99);
    bench_figure("lookup_256_p99_8_clients_ms", p99_8);
    return 0;
}
