/*
 * How much of the wire does a FETCH use? Records of SmolLM2-135M's size over UCX on tcp loopback, against
 * `ucx_perftest -t ucp_am_bw` with the same transport settings, message size and 8 messages outstanding, in rounds that
 * alternate. Server worker on one CPU, client on another, as the peer.
 *
 *   hot    one record that is in the server's memory, fetched again and again into one buffer, eight at a time: the
 * data plane by itself (frames, tokens, pins, credits), the bytes hot in the cache as the peer's are cycle  64 MiB of
 * different records by vc_data_fetch, read from disk and summed at both ends: what a node gets
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/data.h"
#include "dataplane.h"
#include "harness.h"
#include "vc/frame.h"
#include "vc/log.h"
#include "vc/mem.h"
#include "vc/ucx.h"

#define OUTSTANDING 8u
#define PAYLOAD_BYTES 1474560u /* the peer's message: the K and V of a block, without header and padding */
#define CYCLE_BYTES (64u << 20)
#define POOL_BUFS 24u
#define RAM_RECORDS 16u /* fewer than the cycle has, so that it reads from disk */

static const vc_kv_shape_t shape = {30, 3, 64, 64, VC_DTYPE_F16};

typedef struct server {
    cs_bufpool_t *pool;
    cs_ramtier_t *ram;
    cs_workers_t *workers;
    cs_store_t *store;
    cs_dataplane_t *dp;
    vc_keyspace_t ks;
    vc_digest_t ks_id, *hashes;
    vc_spec_id_t spec;
    uint32_t *tokens, n_blocks;
    size_t record_bytes;
    uint8_t *hot; /* the record of block 0 */
} server_t;

static void must(vc_status_t st, const vc_err_t *err, const char *what)
{
    if (st != VC_OK)
        bench_fail("%s: %s (%s)", what, err->msg, vc_status_name(st));
}

/* ---- the server in this process ---- */

static void make_chain(server_t *s)
{
    char text[VC_SPEC_TEXT_MAX];
    vc_err_t err = {0};
    s->record_bytes = (size_t)vc_kvrec_full_bytes(&shape);
    s->n_blocks = (uint32_t)(CYCLE_BYTES / s->record_bytes);
    s->ks = (vc_keyspace_t){.shape = shape, .layout_version = VC_LAYOUT_VERSION, .rope = "none"};
    must(vc_keyspace_id(&s->ks, &s->ks_id, &err), &err, "keyspace");
    s->tokens = vc_calloc((size_t)s->n_blocks * shape.block_tokens, sizeof(*s->tokens));
    s->hashes = vc_calloc(s->n_blocks, sizeof(*s->hashes));
    s->hot = vc_alloc_aligned(4096, s->record_bytes);
    if (s->tokens == NULL || s->hashes == NULL || s->hot == NULL)
        bench_fail("out of memory");
    for (uint32_t i = 0; i < s->n_blocks * shape.block_tokens; i++)
        s->tokens[i] = i;
    vc_block_chain(&s->ks_id, s->tokens, s->n_blocks * shape.block_tokens, shape.block_tokens, s->hashes);
    vc_spec_full_text(1, text);
    vc_spec_id(text, NULL, &s->spec);
}

static uint32_t make_record(const server_t *s, uint32_t block, uint8_t *buf, size_t cap)
{
    vc_kvrec_head_t head = {.fidelity = VC_FIDELITY_FULL,
                            .kind = VC_KVREC_FULL,
                            .shape = shape,
                            .block_index = block,
                            .numerics_id = 1,
                            .spec = s->spec,
                            .keyspace = s->ks_id,
                            .parent = block == 0 ? s->ks_id : s->hashes[block - 1]};
    vc_kvrec_writer_t w;
    vc_err_t err = {0};
    size_t bytes = 0;
    must(vc_kvrec_write_begin(&w, buf, cap, &head, s->tokens + (size_t)block * shape.block_tokens, &err), &err,
         "record");
    for (uint32_t l = 0; l < shape.n_layer; l++) {
        void *part;
        uint32_t len = (uint32_t)vc_kv_layer_bytes(&shape);
        must(vc_kvrec_write_layer(&w, len, &part, &err), &err, "record");
        for (uint32_t i = 0; i < len; i += 4) {
            uint32_t v = (i + l * 7919 + block * 104729) * 2654435761u;
            memcpy((uint8_t *)part + i, &v, 4);
        }
    }
    must(vc_kvrec_write_end(&w, &bytes, &err), &err, "record");
    return (uint32_t)bytes;
}

static void on_done(void *arg, vc_status_t status)
{
    _Atomic int *done = arg;
    *done = status == VC_OK ? 1 : -1;
}

static void await(_Atomic int *done, const char *what)
{
    while (*done == 0)
        usleep(100);
    if (*done < 0)
        bench_fail("%s failed", what);
}

static void fill_store(server_t *s)
{
    vc_err_t err = {0};
    cs_fidelity_t fid = {VC_FIDELITY_FULL, s->spec};
    cs_upload_info_t up;
    uint8_t *missing = vc_calloc(s->n_blocks, 1);
    must(cs_store_begin(s->store, &s->ks, s->tokens, 0, s->n_blocks, &fid, 1, &up, missing, &err), &err, "begin");
    vc_free(missing);
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        _Atomic int done = 0;
        cs_buf_t *buf = cs_bufpool_wait(s->pool, 10000);
        if (buf == NULL)
            bench_fail("no buffer");
        uint32_t bytes = make_record(s, b, buf->data, buf->cap);
        if (b == 0)
            memcpy(s->hot, buf->data, bytes);
        must(cs_store_put(s->store, NULL, up.upload_id, &up.token, buf, bytes, on_done, (void *)&done, &err), &err,
             "put");
        await(&done, "put");
        cs_bufpool_put(s->pool, buf);
    }
    _Atomic int done = 0;
    must(cs_store_commit(s->store, up.upload_id, &up.token, on_done, (void *)&done, &err), &err, "commit");
    await(&done, "commit");
}

static void start_server(server_t *s)
{
    vc_err_t err = {0};
    make_chain(s);
    must(cs_bufpool_create(POOL_BUFS, s->record_bytes, &s->pool, &err), &err, "buffers");
    cs_ramtier_opts_t ro = {.bytes = RAM_RECORDS * s->record_bytes, .pool = s->pool};
    must(cs_ramtier_create(&ro, &s->ram, &err), &err, "memory tier");
    cs_workers_opts_t wo = {.n_workers = 1, .queue_depth = 64, .io_mode = CS_IO_AUTO, .pool = s->pool};
    bench_pin(0); /* the worker and UCX's threads inherit it */
    must(cs_workers_start(&wo, &s->workers, &err), &err, "workers");
    cs_store_opts_t so;
    cs_store_opts_default(&so);
    so.data_dir = bench_tmpdir();
    so.capacity_bytes = 1u << 30;
    so.workers = s->workers;
    so.pool = s->pool;
    so.ram = s->ram;
    must(cs_store_open(&so, &s->store, &err), &err, "store");
    fill_store(s);
    cs_dataplane_opts_t opts;
    cs_dataplane_opts_default(&opts);
    opts.store = s->store;
    opts.workers = s->workers;
    opts.pool = s->pool;
    opts.window = OUTSTANDING;
    opts.peer_timeout_ms = 60000;
    must(cs_dataplane_start(&opts, &s->dp, &err), &err, "data plane");
    bench_pin(1);
}

static void stop_server(server_t *s)
{
    cs_dataplane_stop(s->dp);
    cs_store_close(s->store);
    cs_workers_stop(s->workers);
    cs_ramtier_destroy(s->ram);
    cs_bufpool_destroy(s->pool);
    vc_free(s->tokens);
    vc_free(s->hashes);
    vc_free(s->hot);
}

static vc_data_lease_t take_lease(server_t *s)
{
    cs_lookup_result_t r;
    vc_err_t err = {0};
    cs_fidelity_t fid = {VC_FIDELITY_FULL, s->spec};
    must(cs_store_lookup(s->store, &s->ks_id, s->hashes, s->n_blocks, &fid, 1, true, &r, &err), &err, "lookup");
    if (r.n_blocks[0] != s->n_blocks)
        bench_fail("the store lost blocks");
    vc_data_lease_t lease = {.boot_id = cs_store_boot_id(s->store), .lease_id = r.lease_id};
    memcpy(lease.token, r.token.b, sizeof(lease.token));
    return lease;
}

static void drop_lease(const server_t *s, const vc_data_lease_t *lease)
{
    cs_token_t token;
    memcpy(token.b, lease->token, sizeof(token.b));
    cs_store_lease_release(s->store, lease->boot_id, lease->lease_id, &token);
}

/* ---- hot: eight fetches of one record, always ---- */

typedef struct hot {
    vc_ucx_t *ucx;
    vc_ucx_ep_t *ep;
    uint8_t *slot;
    bool welcome, failed;
    uint64_t n_sent, n_received, n_ended, n_wanted;
    vc_frame_t fetch;
    vc_ucx_op_t recv_op;
    struct {
        vc_ucx_op_t op;
        bool busy;
        size_t bytes;
        uint8_t header[VC_FRAME_MAX];
    } out[4 * OUTSTANDING];
} hot_t;

static void hot_received(void *arg, vc_status_t status)
{
    hot_t *h = arg;
    h->failed = h->failed || status != VC_OK;
    h->n_received++;
}

static void hot_sent(void *arg, vc_status_t status)
{
    (void)status; /* a lost peer shows in hot_lost */
    *(bool *)arg = false;
}

static void hot_lost(void *arg, vc_ucx_ep_t *ep, vc_status_t status)
{
    (void)ep;
    (void)status;
    ((hot_t *)arg)->failed = true;
}

static bool hot_message(void *arg, const vc_ucx_msg_t *msg)
{
    hot_t *h = arg;
    vc_frame_t frame;
    if (vc_frame_decode(msg->header, msg->header_bytes, msg->bytes, &frame, NULL) != VC_OK || frame.status != VC_OK) {
        h->failed = true;
        return false;
    }
    if (frame.type == VC_FRAME_WELCOME)
        h->welcome = true;
    if (frame.type == VC_FRAME_FETCH_END)
        h->n_ended++;
    if (frame.type != VC_FRAME_FETCH_DATA)
        return false;
    /* One slot for all, as the peer does it: only the time counts here, the bytes are equal anyway. */
    h->recv_op = (vc_ucx_op_t){.done = hot_received, .arg = h};
    if (vc_ucx_recv(h->ucx, msg->desc, h->slot, msg->bytes, &h->recv_op) != VC_OK)
        h->failed = true;
    return true;
}

static void hot_send(hot_t *h, const vc_frame_t *frame)
{
    size_t i = 0;
    while (i < VC_ARRAY_LEN(h->out) && h->out[i].busy)
        i++;
    if (i == VC_ARRAY_LEN(h->out))
        bench_fail("control messages pile up");
    h->out[i].busy = true;
    h->out[i].op = (vc_ucx_op_t){.done = hot_sent, .arg = &h->out[i].busy};
    h->out[i].bytes = vc_frame_encode(frame, h->out[i].header);
    if (vc_ucx_send(h->ep, h->out[i].header, h->out[i].bytes, NULL, 0, &h->out[i].op) != VC_OK)
        h->failed = true;
}

static void hot_open(hot_t *h, const server_t *s, const vc_data_lease_t *lease)
{
    vc_err_t err = {0};
    memset(h, 0, sizeof(*h));
    vc_ucx_opts_t opts = {.address = cs_dataplane_address(s->dp), .rndv_threshold = 512u << 10};
    must(vc_ucx_open(&opts, &h->ucx, &err), &err, "connect");
    h->slot = vc_alloc_aligned(4096, s->record_bytes);
    if (h->slot == NULL)
        bench_fail("out of memory");
    must(vc_ucx_register(h->ucx, h->slot, s->record_bytes, &err), &err, "register");
    vc_ucx_set_handler(h->ucx, hot_message, h);
    must(vc_ucx_connect(h->ucx, hot_lost, h, &h->ep, &err), &err, "connect");
    vc_frame_t hello = {.type = VC_FRAME_HELLO, .max_record_bytes = (uint32_t)s->record_bytes};
    hot_send(h, &hello);
    while (!h->welcome && !h->failed)
        vc_ucx_wait(h->ucx, 1000);
    h->fetch = (vc_frame_t){
        .type = VC_FRAME_FETCH, .boot_id = lease->boot_id, .lease_id = lease->lease_id, .n = 1, .credits = 1};
    memcpy(h->fetch.token, lease->token, sizeof(h->fetch.token));
}

static void hot_run(hot_t *h, uint64_t n)
{
    h->n_wanted = h->n_ended + n;
    uint64_t started = h->n_ended;
    while (h->n_ended < h->n_wanted) {
        while (started < h->n_wanted && started - h->n_ended < OUTSTANDING) {
            h->fetch.request++;
            started++;
            hot_send(h, &h->fetch);
        }
        vc_ucx_progress(h->ucx);
        if (h->failed)
            bench_fail("the hot fetch broke off");
    }
}

static double run_hot(server_t *s, uint64_t n)
{
    hot_t h;
    vc_data_lease_t lease = take_lease(s);
    hot_open(&h, s, &lease);
    hot_run(&h, n / 10 + OUTSTANDING); /* warm-up, and the record comes into memory */
    double t = bench_now_s();
    hot_run(&h, n);
    t = bench_now_s() - t;
    if (memcmp(h.slot, s->hot, s->record_bytes) != 0)
        bench_fail("the hot record arrived damaged");
    vc_ucx_close(h.ucx);
    vc_free(h.slot);
    drop_lease(s, &lease);
    return (double)n * (double)s->record_bytes / t / 1e6;
}

/* ---- cycle: the client of the library ---- */

static int count_record(void *arg, uint32_t block, vc_status_t status, const void *record, size_t bytes)
{
    (void)block;
    (void)record;
    *(size_t *)arg += bytes;
    return status != VC_OK;
}

static double run_cycle(server_t *s, uint32_t n)
{
    vc_data_t *data = NULL;
    vc_err_t err = {0};
    size_t bytes = 0;
    vc_data_lease_t lease = take_lease(s);
    must(vc_data_connect(cs_dataplane_address(s->dp), NULL, &data, &err), &err, "connect");
    must(vc_data_fetch(data, &lease, 0, 0, OUTSTANDING, count_record, &bytes, 0, NULL, &err), &err, "fetch");
    bytes = 0;
    double t = bench_now_s();
    for (uint32_t i = 0; i < n; i++)
        must(vc_data_fetch(data, &lease, 0, 0, s->n_blocks, count_record, &bytes, 0, NULL, &err), &err, "fetch");
    t = bench_now_s() - t;
    vc_data_close(data);
    drop_lease(s, &lease);
    return (double)bytes / t / 1e6;
}

/* ---- the peer ---- */

#define PEER_ENV                                                                                 \
    "env", "UCX_TLS=tcp", "UCX_NET_DEVICES=lo", "UCX_RNDV_SCHEME=am", "UCX_TCP_TX_SEG_SIZE=64k", \
        "UCX_TCP_RX_SEG_SIZE=256k", "UCX_WARN_UNUSED_ENV_VARS=n"

static pid_t start_peer_server(char *port)
{
    char *argv[] = {PEER_ENV, "ucx_perftest", "-p", port, "-c", "0", NULL};
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
static double run_peer(uint64_t n)
{
    static int next_port = 24100;
    char port[16], iterations[24], warmup[24], size[16], out[16384];
    snprintf(port, sizeof(port), "%d", next_port + (int)(getpid() % 1000));
    next_port += 1000;
    snprintf(iterations, sizeof(iterations), "%llu", (unsigned long long)n);
    snprintf(warmup, sizeof(warmup), "%llu", (unsigned long long)(n / 10 + OUTSTANDING));
    snprintf(size, sizeof(size), "%u", PAYLOAD_BYTES);
    char *argv[] = {PEER_ENV, "ucx_perftest", "-p", port, "-t", "ucp_am_bw", "-s", size,        "-n", iterations,
                    "-w",     warmup,         "-O", "8",  "-c", "1",         "-f", "127.0.0.1", NULL};
    pid_t server = start_peer_server(port);
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

int main(int argc, char **argv)
{
    static server_t s;
    bench_samples_t peer = {0}, hot = {0}, cycle = {0}, hot_ratio = {0}, cycle_ratio = {0};
    bench_init("bench_dataplane", argc, argv);
    vc_log_set_level(VC_LOG_WARN);
    if (!bench_have("ucx_perftest"))
        bench_fail("ucx_perftest is missing (package ucx-utils)");
    int rounds = atoi(bench_option("rounds", bench_quick() ? "1" : "7"));
    uint64_t n = bench_quick() ? 40 : 1000;
    start_server(&s);
    for (int i = 0; i < rounds; i++) {
        bench_add(&peer, run_peer(n));
        bench_add(&hot, run_hot(&s, n));
        bench_add(&cycle, run_cycle(&s, bench_quick() ? 1 : 10));
        bench_add(&hot_ratio, hot.v[i] / peer.v[i]);
        bench_add(&cycle_ratio, cycle.v[i] / peer.v[i]);
    }
    bench_row("ucx_perftest ucp_am_bw, 8 outstanding", "MB/s", &peer);
    bench_row("fetch, hot record, in memory", "MB/s", &hot);
    bench_row("fetch, 64 MiB cycled, disk, summed twice", "MB/s", &cycle);
    bench_row("ratio of a round: hot / peer", "", &hot_ratio);
    bench_row("ratio of a round: cycle / peer", "", &cycle_ratio);
    bench_figure("fetch_vs_ucx_tcp", bench_median(&hot_ratio));
    bench_figure("fetch_cycle_vs_ucx_tcp", bench_median(&cycle_ratio));
    bench_note("fetch_vs_ucx_shm is not offered yet: the shared-memory context of the data plane is not there");
    stop_server(&s);
    bench_samples_free(&peer);
    bench_samples_free(&hot);
    bench_samples_free(&cycle);
    bench_samples_free(&hot_ratio);
    bench_samples_free(&cycle_ratio);
    return 0;
}
