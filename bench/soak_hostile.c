/* Those who behave badly. Each is at work while s->hostile is set, and lets go of everything when it is not. */
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "soak_parts.h"
#include "vc/mem.h"
#include "vc/rpc.h"
#include "vericache.pb-c.h"

#define KILL_EVERY_MS 2000u
#define GARBAGE_EVERY_MS 500u
#define NAP_MS 50u

static bool is_over(const soak_shared_t *s) { return atomic_load_explicit(&s->stop, memory_order_relaxed); }
static bool is_on(const soak_shared_t *s)
{
    return atomic_load_explicit(&s->hostile, memory_order_relaxed) && !is_over(s);
}

static void nap(uint32_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

/* Waits as long as the phase lasts, ms at most. */
static void stay(const soak_shared_t *s, uint32_t ms)
{
    for (uint32_t t = 0; t < ms && is_on(s); t += NAP_MS)
        nap(NAP_MS);
}

static void wait_for_turn(const soak_shared_t *s)
{
    while (!is_on(s) && !is_over(s))
        nap(NAP_MS);
}

/* ---- clients that die inside a transfer ---- */

static int die_on_record(void *arg, uint32_t block, const void *record, size_t bytes)
{
    (void)arg, (void)record, (void)bytes;
    if (block >= 2)
        raise(SIGKILL);
    return 0;
}

static int die_in_source(void *arg, uint32_t fid, uint32_t block, void *buf, size_t cap, size_t *len_p)
{
    if (block >= 3)
        raise(SIGKILL);
    return soak_record(arg, fid, block, buf, cap, len_p);
}

static void doomed(soak_shared_t *s, uint32_t turn)
{
    static soak_chain_t chain;
    vcache_client_t *c = soak_connect(s, turn % 2);
    vcache_lookup_info_t info = {0};
    vcache_lease_t *lease = NULL;
    size_t len;
    const uint8_t *enc = soak_keyspace(&len);
    if (!c)
        _exit(1);
    if (turn % 4 < 2) {
        for (uint32_t seed = 0; seed < 20; seed++) {
            soak_chain_make(&chain, seed);
            if (vcache_lookup(c, enc, len, chain.tokens, VC_ARRAY_LEN(chain.tokens), soak_fids, 1, &info, &lease,
                              NULL) == 0 &&
                info.n_blocks[0] > 3)
                (void)vcache_fetch(lease, 0, 0, info.n_blocks[0], die_on_record, NULL, NULL, NULL);
            vcache_lease_release(lease);
            lease = NULL;
        }
    } else {
        soak_chain_make(&chain, 100000 + turn); /* that nobody asks for */
        (void)vcache_register(c, enc, len, chain.tokens, 0, chain.n_blocks, soak_fids, 1, die_in_source, &chain, NULL,
                              NULL);
    }
    _exit(1);
}

void soak_killer(soak_shared_t *s)
{
    for (uint32_t turn = 0; !is_over(s); turn++) {
        wait_for_turn(s);
        if (is_over(s))
            return;
        pid_t pid = fork(); /* this process never started a library's thread */
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            doomed(s, turn);
        }
        int status = 0;
        if (pid > 0 && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status))
            atomic_fetch_add_explicit(&s->killed, 1, memory_order_relaxed);
        stay(s, KILL_EVERY_MS);
    }
}

/* ---- clients that never take what they asked for ---- */

typedef struct stuck {
    soak_shared_t *s;
} stuck_t;

static int never_return(void *arg, uint32_t block, const void *record, size_t bytes)
{
    stuck_t *stuck = arg;
    (void)block, (void)record, (void)bytes;
    while (is_on(stuck->s))
        nap(NAP_MS);
    return 1;
}

/* Over UCX: the record is there and its credit is never given back. */
static void be_stuck_ucx(soak_shared_t *s, vcache_client_t *c, const soak_chain_t *chain)
{
    vcache_lookup_info_t info = {0};
    vcache_lease_t *lease = NULL;
    stuck_t stuck = {s};
    size_t len;
    const uint8_t *enc = soak_keyspace(&len);
    if (vcache_lookup(c, enc, len, chain->tokens, VC_ARRAY_LEN(chain->tokens), soak_fids, 1, &info, &lease, NULL) ==
            0 &&
        info.n_blocks[0] > 0)
        (void)vcache_fetch(lease, 0, 0, info.n_blocks[0], never_return, &stuck, NULL, NULL);
    vcache_lease_release(lease);
}

static Vericache__V1__LookupReply *raw_lookup(vc_rpc_channel_t *ch, const soak_chain_t *chain)
{
    Vericache__V1__LookupRequest req = VERICACHE__V1__LOOKUP_REQUEST__INIT;
    Vericache__V1__Fidelity fid = VERICACHE__V1__FIDELITY__INIT, *list[] = {&fid};
    static uint8_t bytes[8192];
    vc_bytes_t got = {0};
    size_t len;
    const uint8_t *enc = soak_keyspace(&len);
    fid.spec = (char *)(uintptr_t)soak_fids[0].spec;
    req.keyspace = (ProtobufCBinaryData){len, (uint8_t *)(uintptr_t)enc};
    req.tokens = (uint32_t *)(uintptr_t)chain->tokens;
    req.n_tokens = VC_ARRAY_LEN(chain->tokens);
    req.fidelities = list;
    req.n_fidelities = 1;
    req.want_lease = 1;
    if (vericache__v1__lookup_request__get_packed_size(&req) > sizeof(bytes) ||
        vc_rpc_unary(ch, "/vericache.v1.Cache/Lookup", bytes, vericache__v1__lookup_request__pack(&req, bytes), 30000,
                     &got, NULL) != VC_OK)
        return NULL;
    Vericache__V1__LookupReply *reply = vericache__v1__lookup_reply__unpack(NULL, got.len, got.data);
    vc_bytes_free(&got);
    return reply;
}

/* Over gRPC: the stream is open and nobody receives. */
static void be_stuck_grpc(soak_shared_t *s, vc_rpc_channel_t *ch, const soak_chain_t *chain)
{
    Vericache__V1__LookupReply *reply = raw_lookup(ch, chain);
    if (reply && reply->n_columns == 1 && reply->columns[0]->blocks > 0 && reply->lease) {
        Vericache__V1__FetchRequest req = VERICACHE__V1__FETCH_REQUEST__INIT;
        uint8_t bytes[256];
        vc_rpc_stream_t *stream = NULL;
        req.lease = reply->lease;
        req.n_blocks = reply->columns[0]->blocks;
        vc_rpc_msg_t m = {.head = bytes, .head_len = vericache__v1__fetch_request__pack(&req, bytes)};
        if (vc_rpc_stream_open(ch, "/vericache.v1.Cache/Fetch", 0, &stream, NULL) == VC_OK) {
            (void)vc_rpc_stream_send(stream, &m, NULL);
            stay(s, 60000);
            vc_rpc_stream_destroy(stream);
        }
    }
    if (reply)
        vericache__v1__lookup_reply__free_unpacked(reply, NULL);
}

static void stuck_turn(soak_shared_t *s, bool data_plane, uint32_t turn)
{
    static soak_chain_t chain;
    soak_chain_make(&chain, turn % 8);
    if (data_plane) {
        vcache_client_t *c = soak_connect(s, true);
        if (c)
            be_stuck_ucx(s, c, &chain);
        vcache_disconnect(c);
    } else {
        vc_rpc_channel_opts_t o;
        vc_rpc_channel_t *ch = NULL;
        vc_rpc_channel_opts_default(&o);
        o.target = s->address;
        if (vc_rpc_channel_create(&o, &ch, NULL) == VC_OK)
            be_stuck_grpc(s, ch, &chain);
        vc_rpc_channel_destroy(ch);
    }
}

void soak_stuck_client(soak_shared_t *s, bool data_plane)
{
    for (uint32_t turn = 0; !is_over(s); turn++) {
        wait_for_turn(s);
        if (is_over(s))
            return;
        stuck_turn(s, data_plane, turn);
        atomic_fetch_add_explicit(&s->stuck, 1, memory_order_relaxed);
        nap(200);
    }
}

/* ---- connections that never send, and noise ---- */

static int dial(uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static void send_garbage(soak_shared_t *s, uint64_t *random)
{
    uint8_t noise[4096];
    int fd = dial(s->control_port);
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (uint8_t)((*random = *random * 6364136223846793005u + 1442695040888963407u) >> 56);
    if (*random & 1)
        memcpy(noise, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
    if (fd >= 0) {
        (void)!send(fd, noise, sizeof(noise), MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
    }
    atomic_fetch_add_explicit(&s->garbage, 1, memory_order_relaxed);
}

void soak_idlers(soak_shared_t *s, uint32_t n)
{
    uint64_t random = 1;
    int fds[1024];
    n = VC_MIN(n, VC_ARRAY_LEN(fds));
    while (!is_over(s)) {
        wait_for_turn(s);
        for (uint32_t i = 0; i < n; i++)
            fds[i] = dial(s->control_port);
        atomic_store_explicit(&s->bad_present, n, memory_order_relaxed);
        while (is_on(s)) {
            send_garbage(s, &random);
            stay(s, GARBAGE_EVERY_MS);
        }
        for (uint32_t i = 0; i < n; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        atomic_store_explicit(&s->bad_present, 0, memory_order_relaxed);
    }
}
