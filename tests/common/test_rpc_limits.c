/* Proves that a server answers late without blocking others, and that calls, answers, messages, metadata and idle
 * connections cost a bounded amount whatever the peer does. */
#include <arpa/inet.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc_fixture.h"

#if defined(__SANITIZE_ADDRESS__)
#define COUNTS_MEMORY 0 /* its allocator has no mallinfo */
#else
#define COUNTS_MEMORY 1
#endif

enum { MANY = 1000 };

typedef struct {
    pthread_mutex_t lock;
    vc_rpc_later_t *later[MANY];
    uint32_t n;
} parking_t;

static vc_status_t park(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp, vc_err_t *err)
{
    parking_t *p = arg;
    (void)req, (void)len, (void)resp, (void)err;
    vc_rpc_later_t *later = vc_rpc_call_defer(call);
    pthread_mutex_lock(&p->lock);
    bool has_room = p->n < MANY;
    if (has_room)
        p->later[p->n++] = later;
    pthread_mutex_unlock(&p->lock);
    if (!has_room) /* answered before the handler returns */
        vc_rpc_later_finish(later, VC_ERR_INTERNAL, NULL, NULL);
    return VC_OK;
}

static vc_status_t quick(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                         vc_err_t *err)
{
    (void)arg, (void)call, (void)err;
    resp->data = vc_memdup(req, len);
    resp->len = len;
    return VC_OK;
}

/* What a client that gives no window cannot take. */
static vc_status_t large(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                         vc_err_t *err)
{
    (void)arg, (void)call, (void)req, (void)len, (void)err;
    resp->data = vc_calloc(1, 1 << 20);
    resp->len = 1 << 20;
    return VC_OK;
}

static const vc_rpc_method_t limited[] = {
    {M("Park"), park, NULL, 0}, {M("Quick"), quick, NULL, 0}, {M("Large"), large, NULL, 0}};

static vc_rpc_server_t *serve(parking_t *p, uint32_t max_calls, uint32_t stall_ms)
{
    vc_rpc_server_t *server = NULL;
    vc_rpc_server_opts_t o;
    vc_err_t err = {0};
    pthread_mutex_init(&p->lock, NULL);
    vc_rpc_server_opts_default(&o);
    o.listen = "127.0.0.1:0";
    o.methods = limited;
    o.n_methods = VC_ARRAY_LEN(limited);
    o.arg = p;
    o.max_calls = max_calls;
    o.stall_ms = stall_ms;
    o.dead_peer_ms = 1000;
    cr_assert_eq(vc_rpc_server_start(&o, &server, &err), VC_OK, "%s", err.msg);
    return server;
}

/* A unary call that is not waited for. */
static vc_rpc_stream_t *ask(vc_rpc_channel_t *ch, const char *method)
{
    vc_rpc_msg_t m = {.head = "x", .head_len = 1};
    vc_rpc_stream_t *s = open_stream(ch, method, 0);
    cr_assert_eq(vc_rpc_stream_send(s, &m, NULL), VC_OK);
    vc_rpc_stream_half_close(s);
    return s;
}

static void wait_parked(parking_t *p, uint32_t n)
{
    for (uint32_t got = 0; got < n; usleep(200)) {
        pthread_mutex_lock(&p->lock);
        got = p->n;
        pthread_mutex_unlock(&p->lock);
    }
}

static uint32_t calls_of(vc_rpc_server_t *server)
{
    vc_rpc_server_stats_t stats;
    vc_rpc_server_get_stats(server, &stats);
    return stats.calls;
}

static void wait_calls(vc_rpc_server_t *server, uint32_t n)
{
    while (calls_of(server) != n)
        usleep(200);
}

static void quick_works(vc_rpc_channel_t *ch)
{
    vc_bytes_t m = {0};
    vc_err_t err = {0};
    cr_assert_eq(vc_rpc_unary(ch, M("Quick"), "hello", 5, 20000, &m, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(m.len, 5);
    vc_bytes_free(&m);
}

Test(rpc_limits, a_thousand_deferred_calls_hold_nobody_up)
{
    static parking_t p;
    static vc_rpc_stream_t *s[MANY];
    vc_rpc_server_t *server = serve(&p, 0, 0); /* one control thread */
    vc_rpc_channel_t *ch = dial(vc_rpc_server_port(server)), *other = dial(vc_rpc_server_port(server));
    for (uint32_t i = 0; i < MANY; i++)
        s[i] = ask(ch, M("Park"));
    wait_parked(&p, MANY);
    quick_works(other);
    quick_works(ch);
    wait_calls(server, MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        vc_err_t err = {.status = VC_ERR_STALE, .msg = "gone"};
        vc_bytes_t answer = {vc_memdup(&i, sizeof(i)), sizeof(i)};
        vc_rpc_later_finish(p.later[i], i % 2 ? VC_ERR_STALE : VC_OK, &answer, &err);
    }
    uint32_t n_good = 0, n_stale = 0;
    for (uint32_t i = 0; i < MANY; i++) {
        vc_bytes_t m = {0};
        vc_err_t err = {0};
        vc_status_t st = vc_rpc_stream_recv(s[i], 0, &m, &err);
        n_good += st == VC_OK && m.len == sizeof(uint32_t);
        n_stale += st == VC_ERR_STALE && strcmp(err.msg, "gone") == 0;
        vc_bytes_free(&m);
        vc_rpc_stream_destroy(s[i]);
    }
    cr_assert_eq(n_good, MANY / 2);
    cr_assert_eq(n_stale, MANY / 2);
    wait_calls(server, 0);
    vc_rpc_channel_destroy(ch);
    vc_rpc_channel_destroy(other);
    vc_rpc_server_stop(server, 1000);
}

static void *finish_all(void *arg)
{
    parking_t *p = arg;
    for (uint32_t i = 0; i < p->n; i++)
        vc_rpc_later_finish(p->later[i], VC_OK, NULL, NULL);
    return NULL;
}

Test(rpc_limits, stop_waits_for_deferred_calls_of_clients_that_are_gone)
{
    static parking_t p;
    pthread_t t;
    vc_rpc_server_t *server = serve(&p, 0, 0);
    vc_rpc_channel_t *ch = dial(vc_rpc_server_port(server));
    vc_rpc_stream_t *gone = ask(ch, M("Park")), *there = ask(ch, M("Park"));
    wait_parked(&p, 2);
    vc_rpc_stream_destroy(gone); /* cancelled while it is parked */
    cr_assert_eq(pthread_create(&t, NULL, finish_all, &p), 0);
    vc_rpc_server_stop(server, 1);
    pthread_join(t, NULL);
    vc_rpc_stream_destroy(there);
    vc_rpc_channel_destroy(ch);
}

Test(rpc_limits, calls_beyond_the_limit_are_refused_with_a_sentence)
{
    static parking_t p;
    static vc_rpc_stream_t *s[10];
    vc_err_t err = {0};
    vc_bytes_t m = {0};
    vc_rpc_server_t *server = serve(&p, 10, 0);
    vc_rpc_channel_t *ch = dial(vc_rpc_server_port(server));
    for (uint32_t i = 0; i < 10; i++)
        s[i] = ask(ch, M("Park"));
    wait_parked(&p, 10);
    for (uint32_t i = 0; i < 50; i++)
        cr_assert_eq(vc_rpc_unary(ch, M("Quick"), "x", 1, 5000, &m, &err), VC_ERR_BUSY);
    cr_assert_str_eq(err.msg, "10 calls are in flight already; try again");
    vc_rpc_server_stats_t stats;
    vc_rpc_server_get_stats(server, &stats);
    cr_assert_eq(stats.refused, 50);
    finish_all(&p);
    for (uint32_t i = 0; i < 10; i++)
        vc_rpc_stream_destroy(s[i]);
    wait_calls(server, 0);
    quick_works(ch);
    vc_rpc_channel_destroy(ch);
    vc_rpc_server_stop(server, 1000);
}

/* ---- connections by hand ---- */

static int connect_raw(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = (in_port_t)__builtin_bswap16((uint16_t)port)};
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(fd, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* The preface of HTTP/2 and empty settings; then the server's first frame comes. */
static int connect_http2(int port)
{
    static const char hello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
    uint8_t frame[9];
    int fd = connect_raw(port);
    cr_assert_eq(write(fd, hello, sizeof(hello)), (ssize_t)sizeof(hello));
    cr_assert_eq(recv(fd, frame, sizeof(frame), MSG_WAITALL), (ssize_t)sizeof(frame));
    cr_assert_eq(frame[3], 4); /* SETTINGS */
    return fd;
}

static size_t put_header(uint8_t *at, const char *name, const char *value)
{
    size_t n = strlen(name), v = strlen(value);
    at[0] = 0; /* literal, not indexed, new name; both shorter than 127 */
    at[1] = (uint8_t)n;
    memcpy(at + 2, name, n);
    at[2 + n] = (uint8_t)v;
    memcpy(at + 3 + n, value, v);
    return 3 + n + v;
}

static size_t put_frame(uint8_t *at, uint8_t type, uint8_t flags, uint32_t stream, const void *body, size_t len)
{
    const uint8_t head[9] = {0, (uint8_t)(len >> 8),    (uint8_t)len,   type, flags, 0,
                             0, (uint8_t)(stream >> 8), (uint8_t)stream};
    memcpy(at, head, sizeof(head));
    memcpy(at + sizeof(head), body, len);
    return sizeof(head) + len;
}

/* A unary call on an odd stream; settings said before that this client takes no data at all. */
static void call_raw(int fd, uint32_t stream, const char *method)
{
    uint8_t headers[512], out[1024];
    size_t n = put_header(headers, ":method", "POST");
    n += put_header(headers + n, ":scheme", "http");
    n += put_header(headers + n, ":path", method);
    n += put_header(headers + n, ":authority", "test");
    n += put_header(headers + n, "te", "trailers");
    n += put_header(headers + n, "content-type", "application/grpc");
    size_t len = put_frame(out, 1, 4, stream, headers, n);       /* HEADERS, END_HEADERS */
    len += put_frame(out + len, 0, 1, stream, "\0\0\0\0\1x", 6); /* DATA, END_STREAM: one message "x" */
    cr_assert_eq(write(fd, out, len), (ssize_t)len);
}

Test(rpc_limits, answers_to_a_client_without_a_window_are_taken_back)
{
    enum { CALLS = 40 };
    static parking_t p;
    static const uint8_t no_window[6] = {0, 4, 0, 0, 0, 0}; /* INITIAL_WINDOW_SIZE = 0 */
    uint8_t settings[32];
    vc_rpc_server_t *server = serve(&p, 0, 200);
    vc_rpc_channel_t *ch = dial(vc_rpc_server_port(server));
    int fd = connect_http2(vc_rpc_server_port(server));
    size_t n = put_frame(settings, 4, 0, 0, no_window, sizeof(no_window));
    cr_assert_eq(write(fd, settings, n), (ssize_t)n);
    for (uint32_t i = 0; i < CALLS; i++)
        call_raw(fd, 2 * i + 1, M("Large"));
    vc_rpc_server_stats_t stats = {0};
    while (stats.calls + stats.stalled < CALLS) /* each is taken, or was and is over */
        vc_rpc_server_get_stats(server, &stats);
    while (stats.stalled < CALLS) { /* also while others keep the server busy */
        quick_works(ch);
        vc_rpc_server_get_stats(server, &stats);
    }
    wait_calls(server, 0);
    vc_rpc_server_get_stats(server, &stats);
    cr_assert_eq(stats.stalled, CALLS);
    quick_works(ch);
    close(fd);
    vc_rpc_channel_destroy(ch);
    vc_rpc_server_stop(server, 1000);
}

static size_t allocated(void) { return COUNTS_MEMORY ? mallinfo2().uordblks + mallinfo2().hblkhd : 0; }

Test(rpc_limits, a_thousand_idle_connections_cost_little_and_give_it_back)
{
    static parking_t p;
    static int fds[MANY];
    struct rlimit rl = {0};
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &rl), 0);
    if (rl.rlim_cur < 2 * MANY + 100) {
        rl.rlim_cur = rl.rlim_max;
        setrlimit(RLIMIT_NOFILE, &rl);
    }
    if (rl.rlim_cur < 2 * MANY + 100)
        cr_skip("needs %d open files, the limit is %llu", 2 * MANY + 100, (unsigned long long)rl.rlim_max);
    vc_rpc_server_t *server = serve(&p, 0, 0);
    vc_rpc_channel_t *ch = dial(vc_rpc_server_port(server));
    quick_works(ch);
    size_t before = allocated();
    for (uint32_t i = 0; i < MANY; i++)
        fds[i] = connect_http2(vc_rpc_server_port(server));
    quick_works(ch);
    size_t each = (allocated() - before) / MANY;
    cr_assert(!COUNTS_MEMORY || each < 48 * 1024, "%zu bytes each", each);
    for (uint32_t i = 0; i < MANY; i++)
        close(fds[i]);
    for (size_t now = allocated(); COUNTS_MEMORY && now > before + 4 * 1024 * MANY; now = allocated())
        quick_works(ch); /* gRPC takes them down on its own threads */
    quick_works(ch);
    vc_rpc_channel_destroy(ch);
    vc_rpc_server_stop(server, 1000);
}

Test(rpc_limits, garbage_instead_of_http2_harms_nobody)
{
    static parking_t p;
    uint64_t state = 7;
    uint8_t bytes[4096];
    vc_rpc_server_t *server = serve(&p, 0, 0);
    vc_rpc_channel_t *ch = dial(vc_rpc_server_port(server));
    for (int round = 0; round < 60; round++) {
        int fd = round % 2 ? connect_http2(vc_rpc_server_port(server)) : connect_raw(vc_rpc_server_port(server));
        for (size_t i = 0; i < sizeof(bytes); i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = (uint8_t)(state >> 56);
        }
        (void)!send(fd, bytes, 1 + state % sizeof(bytes), MSG_NOSIGNAL);
        shutdown(fd, SHUT_WR);
        while (recv(fd, bytes, sizeof(bytes), 0) > 0) /* the server ends it */
            ;
        close(fd);
    }
    quick_works(ch);
    wait_calls(server, 0);
    vc_rpc_channel_destroy(ch);
    vc_rpc_server_stop(server, 1000);
}

Test(rpc_limits, metadata_beyond_the_limit_harms_no_other_connection)
{
    static parking_t p;
    static char token[3 * 4096];
    vc_err_t err = {0};
    vc_bytes_t m = {0};
    vc_rpc_server_t *server = serve(&p, 0, 0);
    vc_rpc_channel_t *ch = dial(vc_rpc_server_port(server)), *other = dial(vc_rpc_server_port(server));
    quick_works(ch);
    quick_works(other);
    static char method[40000] = M("");
    memset(method + strlen(method), 'a', sizeof(method) - strlen(method) - 1);
    cr_assert_neq(vc_rpc_unary(ch, method, "x", 1, 5000, &m, &err), VC_OK);
    cr_assert_neq(err.msg[0], '\0');
    quick_works(other);
    vc_rpc_channel_destroy(ch);
    vc_rpc_channel_destroy(other);
    /* a bearer token of that size is refused before it is sent */
    char target[64];
    vc_rpc_channel_opts_t o;
    vc_rpc_channel_opts_default(&o);
    snprintf(target, sizeof(target), "127.0.0.1:%d", vc_rpc_server_port(server));
    memset(token, 'b', sizeof(token) - 1);
    o.target = target;
    o.bearer = token;
    cr_assert_eq(vc_rpc_channel_create(&o, &ch, &err), VC_ERR_INVALID);
    vc_rpc_server_stop(server, 1000);
}

static vc_rpc_server_t *serve_streams(fixture_t *f, uint32_t reclaim_ms)
{
    vc_rpc_server_t *server = NULL;
    vc_rpc_server_opts_t o;
    vc_rpc_server_opts_default(&o);
    o.listen = "127.0.0.1:0";
    o.methods = methods;
    o.n_methods = VC_ARRAY_LEN(methods);
    o.arg = f;
    o.stall_ms = 60000;
    o.reclaim_ms = reclaim_ms;
    o.dead_peer_ms = 1000;
    cr_assert_eq(vc_rpc_server_start(&o, &server, NULL), VC_OK);
    return server;
}

Test(rpc_limits, streams_that_stall_give_their_slots_to_calls_that_wait)
{
    enum { STALLED = 2, OTHERS = 5 }; /* Count has two slots */
    fixture_t f = {0};
    vc_rpc_stream_t *s[STALLED];
    vc_err_t err = {0};
    vc_rpc_server_t *server = serve_streams(&f, 300);
    vc_rpc_channel_t *ch = dial(vc_rpc_server_port(server)), *other = dial(vc_rpc_server_port(server));
    for (int i = 0; i < STALLED; i++) {
        s[i] = open_stream(ch, M("Count"), 0);
        cr_assert_eq(ask_count(s[i], 100000, 1 << 20), VC_OK); /* and reads nothing */
    }
    for (int i = 0; i < OTHERS; i++) {
        vc_bytes_t m = {0};
        uint32_t n = 0;
        vc_rpc_stream_t *o = open_stream(other, M("Count"), 0);
        cr_assert_eq(ask_count(o, 3, 1000), VC_OK);
        vc_status_t st;
        while ((st = vc_rpc_stream_recv(o, 0, &m, &err)) == VC_OK) {
            n++;
            vc_bytes_free(&m);
        }
        cr_assert_eq(st, VC_ERR_NOT_FOUND);
        cr_assert_eq(n, 3);
        vc_rpc_stream_destroy(o);
    }
    vc_rpc_server_stats_t stats;
    vc_rpc_server_get_stats(server, &stats);
    cr_assert_geq(stats.reclaimed, 1);
    cr_assert_leq(stats.reclaimed, STALLED);
    for (int i = 0; i < STALLED; i++)
        vc_rpc_stream_destroy(s[i]);
    vc_rpc_channel_destroy(ch);
    vc_rpc_channel_destroy(other);
    vc_rpc_server_stop(server, 1000);
    cr_assert_eq(atomic_load(&f.released), atomic_load(&f.sends));
}

Test(rpc_limits, a_client_that_sends_nothing_loses_its_slot_to_one_that_does)
{
    fixture_t f = {0};
    vc_bytes_t m = {0};
    vc_err_t err = {0};
    uint64_t total = 0;
    vc_rpc_server_t *server = serve_streams(&f, 1000);
    vc_rpc_channel_t *ch = dial(vc_rpc_server_port(server));
    vc_rpc_stream_t *silent = open_stream(ch, M("Sum"), 0), *busy = open_stream(ch, M("Sum"), 0);
    vc_rpc_msg_t out = {.head = "four", .head_len = 4};
    cr_assert_eq(vc_rpc_stream_send(busy, &out, &err), VC_OK);
    cr_assert_eq(vc_rpc_stream_half_close(busy), VC_OK);
    vc_status_t st = vc_rpc_stream_recv(busy, 0, &m, &err);
    cr_assert_eq(st, VC_OK, "%s", err.msg);
    memcpy(&total, m.data, sizeof(total));
    cr_assert_eq(total, 4);
    vc_bytes_free(&m);
    vc_rpc_stream_destroy(silent);
    vc_rpc_stream_destroy(busy);
    vc_rpc_channel_destroy(ch);
    vc_rpc_server_stop(server, 1000);
}
