/* Proves the rpc module over real sockets: every kind of call, every way it may end, and a clean stop. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/vc_test.h"
#include "vc/mem.h"
#include "vc/rpc.h"

#define M(name) "/test.v1.Test/" name

typedef struct {
    _Atomic int released; /* bodies that came back */
    _Atomic int sends;    /* sends that were started */
    _Atomic int ended;    /* streaming handlers that returned */
    vc_status_t fail_with;
} fixture_t;

static void count_release(void *arg) { atomic_fetch_add((_Atomic int *)arg, 1); }

static vc_status_t echo(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp, vc_err_t *err)
{
    (void)arg;
    (void)err;
    cr_assert_not_null(strstr(vc_rpc_call_peer(call), "127.0.0.1"));
    resp->data = vc_memdup(req, len);
    resp->len = len;
    return VC_OK;
}

static vc_status_t fail(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp, vc_err_t *err)
{
    (void)call;
    (void)resp;
    fixture_t *f = arg;
    int n;
    if (len == sizeof(n)) {
        memcpy(&n, req, sizeof(n));
        f->fail_with = (vc_status_t)n;
    }
    return vc_err_set(err, f->fail_with, "object 7 is lost");
}

/* Client stream: answers the number of bytes that came. */
static vc_status_t sum(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    (void)err;
    fixture_t *f = arg;
    uint64_t total = 0;
    vc_bytes_t m = {0};
    vc_status_t st;
    while ((st = vc_rpc_call_recv(call, 0, &m)) == VC_OK) {
        total += m.len;
        vc_bytes_free(&m);
    }
    atomic_fetch_add(&f->ended, 1);
    if (st != VC_ERR_NOT_FOUND)
        return st;
    vc_rpc_msg_t out = {.head = &total, .head_len = sizeof(total)};
    return vc_rpc_call_send(call, &out);
}

/* Server stream: {u32 count, u32 body bytes} -> count messages of {u32 i, body}. */
static uint8_t body_bytes[1 << 20];

static vc_status_t count_up(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    fixture_t *f = arg;
    vc_bytes_t m = {0};
    uint32_t want[2];
    vc_status_t st = vc_rpc_call_recv(call, 0, &m);
    if (st == VC_OK && m.len != sizeof(want))
        st = vc_err_set(err, VC_ERR_INVALID, "bad request");
    if (st == VC_OK)
        memcpy(want, m.data, sizeof(want));
    vc_bytes_free(&m);
    for (uint32_t i = 0; st == VC_OK && i < want[0]; i++) {
        vc_rpc_msg_t out = {.head = &i, .head_len = 4, .body = body_bytes, .body_len = want[1]};
        out.release = count_release;
        out.arg = &f->released;
        atomic_fetch_add(&f->sends, 1);
        st = vc_rpc_call_send(call, &out);
    }
    atomic_fetch_add(&f->ended, 1);
    return st;
}

/* Bidirectional: every message comes back, reversed in sign. */
static vc_status_t negate(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    (void)err;
    fixture_t *f = arg;
    vc_bytes_t m = {0};
    vc_status_t st;
    while ((st = vc_rpc_call_recv(call, 0, &m)) == VC_OK) {
        int v;
        memcpy(&v, m.data, sizeof(v));
        vc_bytes_free(&m);
        v = -v;
        vc_rpc_msg_t out = {.head = &v, .head_len = sizeof(v)};
        st = vc_rpc_call_send(call, &out);
        if (st != VC_OK)
            break;
    }
    atomic_fetch_add(&f->ended, 1);
    return st == VC_ERR_NOT_FOUND ? VC_OK : st;
}

/* Waits for the end of the call and nothing else. */
static vc_status_t hang(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    fixture_t *f = arg;
    vc_bytes_t m = {0};
    while (!vc_rpc_call_is_cancelled(call)) {
        if (vc_rpc_call_recv(call, 20, &m) == VC_ERR_CANCELLED)
            break;
        vc_bytes_free(&m);
    }
    atomic_fetch_add(&f->ended, 1);
    return vc_err_set(err, VC_ERR_CANCELLED, "gone");
}

static vc_status_t refuse(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    (void)call;
    atomic_fetch_add(&((fixture_t *)arg)->ended, 1);
    return vc_err_set(err, VC_ERR_STALE, "lease 5 has expired");
}

static const vc_rpc_method_t methods[] = {
    {M("Echo"), echo, NULL, 0},      {M("Fail"), fail, NULL, 0},     {M("Sum"), NULL, sum, 1},
    {M("Count"), NULL, count_up, 2}, {M("Negate"), NULL, negate, 1}, {M("Hang"), NULL, hang, 1},
    {M("Refuse"), NULL, refuse, 1},
};

static vc_rpc_server_t *start(fixture_t *f, int port)
{
    char listen_addr[64];
    vc_err_t err = {0};
    vc_rpc_server_t *server = NULL;
    vc_rpc_server_opts_t o;
    vc_rpc_server_opts_default(&o);
    snprintf(listen_addr, sizeof(listen_addr), "127.0.0.1:%d", port);
    o.listen = listen_addr;
    o.methods = methods;
    o.n_methods = VC_ARRAY_LEN(methods);
    o.arg = f;
    o.n_unary_threads = 2;
    o.dead_peer_ms = 1000; /* bounds the stop with a stalled client */
    o.max_message_bytes = 2 << 20;
    cr_assert_eq(vc_rpc_server_start(&o, &server, &err), VC_OK, "%s", err.msg);
    return server;
}

static vc_rpc_channel_t *dial(int port)
{
    char target[64];
    vc_err_t err = {0};
    vc_rpc_channel_t *ch = NULL;
    vc_rpc_channel_opts_t o;
    vc_rpc_channel_opts_default(&o);
    snprintf(target, sizeof(target), "127.0.0.1:%d", port);
    o.target = target;
    o.bearer = "secret";
    o.max_message_bytes = 4 << 20;
    cr_assert_eq(vc_rpc_channel_create(&o, &ch, &err), VC_OK, "%s", err.msg);
    return ch;
}

#define WITH_SERVER                         \
    fixture_t f = {0};                      \
    vc_err_t err = {0};                     \
    vc_rpc_server_t *server = start(&f, 0); \
    vc_rpc_channel_t *ch = dial(vc_rpc_server_port(server))
#define END_SERVER              \
    vc_rpc_channel_destroy(ch); \
    vc_rpc_server_stop(server, 1000)

static vc_rpc_stream_t *open_stream(vc_rpc_channel_t *ch, const char *method, uint32_t deadline_ms)
{
    vc_err_t err = {0};
    vc_rpc_stream_t *s = NULL;
    cr_assert_eq(vc_rpc_stream_open(ch, method, deadline_ms, &s, &err), VC_OK, "%s", err.msg);
    return s;
}

static vc_status_t ask_count(vc_rpc_stream_t *s, uint32_t n, uint32_t bytes)
{
    uint32_t want[2] = {n, bytes};
    vc_rpc_msg_t m = {.head = want, .head_len = sizeof(want)};
    vc_status_t st = vc_rpc_stream_send(s, &m, NULL);
    return st == VC_OK ? vc_rpc_stream_half_close(s) : st;
}

Test(rpc, unary_call_returns_the_answer)
{
    WITH_SERVER;
    for (int i = 0; i < 50; i++) {
        vc_bytes_t resp = {0};
        cr_assert_eq(vc_rpc_unary(ch, M("Echo"), &i, sizeof(i), 5000, &resp, &err), VC_OK, "%s", err.msg);
        cr_assert_eq(resp.len, sizeof(i));
        cr_assert_eq(memcmp(resp.data, &i, sizeof(i)), 0);
        vc_bytes_free(&resp);
    }
    vc_bytes_t empty = {0};
    cr_assert_eq(vc_rpc_unary(ch, M("Echo"), NULL, 0, 5000, &empty, &err), VC_OK);
    cr_assert_eq(empty.len, 0);
    vc_bytes_free(&empty);
    END_SERVER;
}

static void *call_many(void *arg)
{
    for (int i = 0; i < 100; i++) {
        vc_bytes_t resp = {0};
        if (vc_rpc_unary(arg, M("Echo"), &i, sizeof(i), 10000, &resp, NULL) != VC_OK)
            return NULL;
        vc_bytes_free(&resp);
    }
    return arg;
}

Test(rpc, one_channel_serves_several_threads)
{
    WITH_SERVER;
    (void)err;
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&t[i], NULL, call_many, ch), 0);
    for (int i = 0; i < 4; i++) {
        void *good = NULL;
        pthread_join(t[i], &good);
        cr_assert_eq(good, (void *)ch);
    }
    END_SERVER;
}

Test(rpc, every_status_arrives_exactly_with_its_sentence)
{
    WITH_SERVER;
    static const vc_status_t all[] = {VC_ERR_INVALID, VC_ERR_UNSUPPORTED, VC_ERR_RANGE,     VC_ERR_AGAIN,
                                      VC_ERR_BUSY,    VC_ERR_TIMEOUT,     VC_ERR_CANCELLED, VC_ERR_NOT_FOUND,
                                      VC_ERR_EXISTS,  VC_ERR_STALE,       VC_ERR_CORRUPT,   VC_ERR_MISMATCH,
                                      VC_ERR_PERM,    VC_ERR_UNREACHABLE, VC_ERR_PROTOCOL,  VC_ERR_NOMEM,
                                      VC_ERR_NOSPACE, VC_ERR_READONLY,    VC_ERR_IO,        VC_ERR_INTERNAL};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++) {
        vc_bytes_t resp = {0};
        int n = all[i];
        cr_assert_eq(vc_rpc_unary(ch, M("Fail"), &n, sizeof(n), 5000, &resp, &err), all[i], "status %d", n);
        cr_assert_eq(err.status, all[i]);
        cr_assert_str_eq(err.msg, "object 7 is lost");
        cr_assert_null(resp.data);
    }
    END_SERVER;
}

Test(rpc, foreign_statuses_map_by_code_alone)
{
    cr_assert_eq(vc_rpc_status_map(9, "stale: x"), VC_ERR_STALE);
    cr_assert_eq(vc_rpc_status_map(9, "read_only: x"), VC_ERR_READONLY);
    cr_assert_eq(vc_rpc_status_map(9, "corrupt: x"), VC_ERR_STALE); /* the name does not belong to the code */
    cr_assert_eq(vc_rpc_status_map(15, NULL), VC_ERR_CORRUPT);
    cr_assert_eq(vc_rpc_status_map(8, "Received message larger than max (9 vs. 4)"), VC_ERR_RANGE);
    cr_assert_eq(vc_rpc_status_map(16, "no token"), VC_ERR_PERM);
    cr_assert_eq(vc_rpc_status_map(77, "?"), VC_ERR_INTERNAL);
    cr_assert_eq(vc_rpc_status_map(0, ""), VC_OK);
}

Test(rpc, unknown_method_is_unsupported_at_once)
{
    WITH_SERVER;
    for (int i = 0; i < 3; i++) {
        vc_bytes_t resp = {0};
        cr_assert_eq(vc_rpc_unary(ch, M("Nope"), "x", 1, 5000, &resp, &err), VC_ERR_UNSUPPORTED);
        cr_assert_not_null(strstr(err.msg, M("Nope")));
    }
    vc_rpc_stream_t *s = open_stream(ch, M("NopeStream"), 5000);
    vc_bytes_t m = {0};
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_UNSUPPORTED);
    vc_rpc_stream_destroy(s);
    END_SERVER;
}

Test(rpc, client_stream_sums_and_releases_each_body_once)
{
    WITH_SERVER;
    _Atomic int released = 0;
    vc_rpc_stream_t *s = open_stream(ch, M("Sum"), 10000);
    for (int i = 0; i < 20; i++) {
        vc_rpc_msg_t m = {.head = "head", .head_len = 4, .body = body_bytes, .body_len = 1 << 20};
        m.release = count_release;
        m.arg = &released;
        cr_assert_eq(vc_rpc_stream_send(s, &m, &err), VC_OK, "%s", err.msg);
    }
    cr_assert_eq(vc_rpc_stream_half_close(s), VC_OK);
    vc_bytes_t m = {0};
    uint64_t total = 0;
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_OK, "%s", err.msg);
    memcpy(&total, m.data, sizeof(total));
    vc_bytes_free(&m);
    cr_assert_eq(total, 20u * (4 + (1 << 20)));
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_NOT_FOUND);
    cr_assert_str_eq(err.msg, "");
    vc_rpc_stream_destroy(s);
    END_SERVER;
    cr_assert_eq(atomic_load(&released), 20);
}

Test(rpc, server_stream_delivers_in_order_and_releases_each_body_once)
{
    WITH_SERVER;
    vc_rpc_stream_t *s = open_stream(ch, M("Count"), 10000);
    cr_assert_eq(ask_count(s, 30, 1 << 20), VC_OK);
    for (uint32_t i = 0; i < 30; i++) {
        vc_bytes_t m = {0};
        uint32_t got;
        cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_OK, "%s", err.msg);
        cr_assert_eq(m.len, 4 + (1 << 20));
        memcpy(&got, m.data, 4);
        cr_assert_eq(got, i);
        vc_bytes_free(&m);
    }
    vc_bytes_t m = {0};
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_NOT_FOUND);
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_NOT_FOUND); /* stays so */
    vc_rpc_stream_destroy(s);
    END_SERVER;
    cr_assert_eq(atomic_load(&f.released), 30);
}

Test(rpc, bidirectional_stream_answers_each_message)
{
    WITH_SERVER;
    vc_rpc_stream_t *s = open_stream(ch, M("Negate"), 10000);
    for (int i = 1; i <= 40; i++) {
        vc_bytes_t m = {0};
        int got;
        vc_rpc_msg_t out = {.head = &i, .head_len = sizeof(i)};
        cr_assert_eq(vc_rpc_stream_recv(s, 1, &m, &err), VC_ERR_AGAIN); /* nothing was asked yet */
        cr_assert_eq(vc_rpc_stream_send(s, &out, &err), VC_OK);
        cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_OK);
        memcpy(&got, m.data, sizeof(got));
        cr_assert_eq(got, -i);
        vc_bytes_free(&m);
    }
    vc_bytes_t m = {0};
    cr_assert_eq(vc_rpc_stream_half_close(s), VC_OK);
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_NOT_FOUND);
    vc_rpc_stream_destroy(s);
    END_SERVER;
}

Test(rpc, refused_stream_reports_the_status)
{
    WITH_SERVER;
    vc_rpc_stream_t *s = open_stream(ch, M("Refuse"), 5000);
    vc_bytes_t m = {0};
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_STALE);
    cr_assert_str_eq(err.msg, "lease 5 has expired");
    vc_rpc_stream_destroy(s);
    END_SERVER;
}

Test(rpc, deadline_ends_unary_and_stream_with_timeout)
{
    WITH_SERVER;
    vc_rpc_stream_t *busy = open_stream(ch, M("Hang"), 0); /* takes the only slot */
    vc_rpc_stream_t *s = open_stream(ch, M("Hang"), 100);
    vc_bytes_t m = {0};
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_TIMEOUT);
    vc_rpc_stream_destroy(s);
    vc_rpc_stream_destroy(busy);
    END_SERVER;
}

Test(rpc, cancelled_stream_frees_the_slot_and_its_reader)
{
    WITH_SERVER;
    for (int i = 0; i < 3; i++) {
        vc_bytes_t m = {0};
        vc_rpc_stream_t *s = open_stream(ch, M("Hang"), 0);
        cr_assert_eq(vc_rpc_stream_recv(s, 5, &m, &err), VC_ERR_AGAIN);
        vc_rpc_stream_cancel(s);
        cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_CANCELLED);
        vc_rpc_stream_destroy(s);
    }
    vc_rpc_channel_destroy(ch);
    vc_rpc_server_stop(server, 5000);
    cr_assert_geq(atomic_load(&f.ended), 1); /* a call cancelled before a slot took it never reaches the handler */
}

Test(rpc, oversized_messages_are_range_errors_on_both_sides)
{
    WITH_SERVER;
    static uint8_t big[5 << 20];
    vc_bytes_t m = {0};
    cr_assert_eq(vc_rpc_unary(ch, M("Echo"), big, sizeof(big), 5000, &m, &err), VC_ERR_RANGE); /* own limit: 4 MiB */
    cr_assert_eq(vc_rpc_unary(ch, M("Echo"), big, 3 << 20, 5000, &m, &err), VC_ERR_RANGE);     /* server's: 2 MiB */
    _Atomic int released = 0;
    vc_rpc_stream_t *s = open_stream(ch, M("Sum"), 5000);
    vc_rpc_msg_t out = {.body = big, .body_len = sizeof(big), .release = count_release, .arg = &released};
    cr_assert_eq(vc_rpc_stream_send(s, &out, &err), VC_ERR_RANGE);
    cr_assert_eq(atomic_load(&released), 1);
    vc_rpc_stream_destroy(s);
    END_SERVER;
}

Test(rpc, stop_ends_with_a_client_that_never_reads)
{
    WITH_SERVER;
    (void)err;
    vc_rpc_stream_t *s = open_stream(ch, M("Count"), 0);
    cr_assert_eq(ask_count(s, 1000, 1 << 20), VC_OK);
    while (atomic_load(&f.sends) == 0)
        usleep(100); /* the handler runs; it will block on flow control */
    vc_rpc_server_stop(server, 50);
    cr_assert_eq(atomic_load(&f.ended), 1);
    vc_rpc_stream_destroy(s);
    vc_rpc_channel_destroy(ch);
    cr_assert_eq(atomic_load(&f.released), atomic_load(&f.sends));
}

Test(rpc, stop_ends_with_a_silent_connection)
{
    WITH_SERVER;
    (void)err;
    struct sockaddr_in to = {.sin_family = AF_INET};
    to.sin_port = (in_port_t)__builtin_bswap16((uint16_t)vc_rpc_server_port(server));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    END_SERVER;
    close(fd);
}

Test(rpc, busy_port_is_an_error_that_names_it)
{
    WITH_SERVER;
    char listen_addr[64];
    vc_rpc_server_t *second = NULL;
    vc_rpc_server_opts_t o;
    vc_rpc_server_opts_default(&o);
    snprintf(listen_addr, sizeof(listen_addr), "127.0.0.1:%d", vc_rpc_server_port(server));
    o.listen = listen_addr;
    o.methods = methods;
    o.n_methods = VC_ARRAY_LEN(methods);
    cr_assert_eq(vc_rpc_server_start(&o, &second, &err), VC_ERR_UNREACHABLE);
    cr_assert_not_null(strstr(err.msg, listen_addr), "%s", err.msg);
    cr_assert_not_null(strstr(err.msg, "in use"), "%s", err.msg);
    o.listen = "nonsense";
    cr_assert_eq(vc_rpc_server_start(&o, &second, &err), VC_ERR_INVALID);
    o.listen = "no.such.host.invalid:1";
    cr_assert_eq(vc_rpc_server_start(&o, &second, &err), VC_ERR_INVALID);
    cr_assert_null(second);
    END_SERVER;
}

Test(rpc, dead_server_is_unreachable_and_a_new_one_is_found)
{
    fixture_t f = {0};
    vc_err_t err = {0};
    vc_bytes_t m = {0};
    vc_rpc_server_t *server = start(&f, 0);
    int port = vc_rpc_server_port(server);
    vc_rpc_channel_t *ch = dial(port);
    for (int round = 0; round < 3; round++) {
        cr_assert_eq(vc_rpc_unary(ch, M("Echo"), "hi", 2, 5000, &m, &err), VC_OK, "%s", err.msg);
        vc_bytes_free(&m);
        vc_rpc_server_stop(server, 100);
        cr_assert_eq(vc_rpc_unary(ch, M("Echo"), "hi", 2, 5000, &m, &err), VC_ERR_UNREACHABLE);
        cr_assert_eq(vc_rpc_unary(ch, M("Echo"), "hi", 2, 5000, &m, &err), VC_ERR_UNREACHABLE);
        vc_rpc_stream_t *s = NULL;
        cr_assert_eq(vc_rpc_stream_open(ch, M("Sum"), 5000, &s, &err), VC_ERR_UNREACHABLE);
        cr_assert_null(s);
        server = start(&f, port);
    }
    cr_assert_eq(vc_rpc_unary(ch, M("Echo"), "hi", 2, 5000, &m, &err), VC_OK, "%s", err.msg);
    vc_bytes_free(&m);
    vc_rpc_channel_destroy(ch);
    vc_rpc_server_stop(server, 100);
}

/* The server in a process of its own, so that it can be killed. */
static pid_t spawn_server(int *port_p)
{
    int fds[2];
    cr_assert_eq(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        static fixture_t f;
        vc_rpc_server_t *server = start(&f, 0);
        int port = vc_rpc_server_port(server);
        if (write(fds[1], &port, sizeof(port)) != sizeof(port))
            _exit(1);
        for (;;)
            pause();
    }
    cr_assert_gt(pid, 0);
    cr_assert_eq(read(fds[0], port_p, sizeof(*port_p)), (ssize_t)sizeof(*port_p));
    close(fds[0]);
    close(fds[1]);
    return pid;
}

Test(rpc, server_killed_in_the_middle_of_a_stream_is_unreachable)
{
    int port = 0;
    vc_err_t err = {0};
    vc_bytes_t m = {0};
    pid_t pid = spawn_server(&port);
    vc_rpc_channel_t *ch = dial(port);
    vc_rpc_stream_t *s = open_stream(ch, M("Count"), 0);
    cr_assert_eq(ask_count(s, 1000000, 1 << 20), VC_OK);
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_OK);
    vc_bytes_free(&m);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    vc_status_t st;
    while ((st = vc_rpc_stream_recv(s, 0, &m, &err)) == VC_OK)
        vc_bytes_free(&m);
    cr_assert_eq(st, VC_ERR_UNREACHABLE, "%s: %s", vc_status_name(st), err.msg);
    vc_rpc_stream_destroy(s);
    cr_assert_eq(vc_rpc_unary(ch, M("Echo"), "hi", 2, 5000, &m, &err), VC_ERR_UNREACHABLE);
    vc_rpc_channel_destroy(ch);
}

/* Passes bytes on between two sockets until one side ends. */
static void pump(int a, int b)
{
    uint8_t buf[16384];
    struct pollfd p[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
    for (;;) {
        if (poll(p, 2, -1) < 0)
            return;
        for (int i = 0; i < 2; i++) {
            ssize_t n = (p[i].revents & (POLLIN | POLLHUP)) ? read(p[i].fd, buf, sizeof(buf)) : 1;
            if (n <= 0 || (p[i].revents != 0 && write(p[1 - i].fd, buf, (size_t)n) != n))
                return;
        }
    }
}

typedef struct {
    int listener, target_port;
} slow_relay_t;

/* A far server: the first byte passes 300 ms after the connection was made. */
static void *slow_relay(void *arg)
{
    slow_relay_t *r = arg;
    struct sockaddr_in to = {.sin_family = AF_INET};
    to.sin_port = (in_port_t)__builtin_bswap16((uint16_t)r->target_port);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int in = accept(r->listener, NULL, NULL), out = socket(AF_INET, SOCK_STREAM, 0);
    usleep(300000);
    if (connect(out, (struct sockaddr *)&to, sizeof(to)) == 0)
        pump(in, out);
    close(in);
    close(out);
    return NULL;
}

Test(rpc, slow_connection_is_waited_for)
{
    WITH_SERVER;
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof(at);
    slow_relay_t relay = {socket(AF_INET, SOCK_STREAM, 0), vc_rpc_server_port(server)};
    pthread_t thread;
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    cr_assert_eq(bind(relay.listener, (struct sockaddr *)&at, sizeof(at)), 0);
    cr_assert_eq(listen(relay.listener, 1), 0);
    cr_assert_eq(getsockname(relay.listener, (struct sockaddr *)&at, &len), 0);
    cr_assert_eq(pthread_create(&thread, NULL, slow_relay, &relay), 0);
    vc_rpc_channel_t *far = dial(__builtin_bswap16(at.sin_port));
    vc_bytes_t m = {0};
    cr_assert_eq(vc_rpc_unary(far, M("Echo"), "hi", 2, 5000, &m, &err), VC_OK, "%s", err.msg);
    vc_bytes_free(&m);
    vc_rpc_channel_destroy(far);
    pthread_join(thread, NULL);
    close(relay.listener);
    END_SERVER;
}

Test(rpc, bad_targets_and_tokens_are_refused)
{
    vc_err_t err = {0};
    vc_rpc_channel_t *ch = NULL;
    vc_rpc_channel_opts_t o;
    vc_rpc_channel_opts_default(&o);
    cr_assert_eq(vc_rpc_channel_create(&o, &ch, &err), VC_ERR_INVALID);
    o.target = "localhost";
    cr_assert_eq(vc_rpc_channel_create(&o, &ch, &err), VC_ERR_INVALID);
    o.target = "127.0.0.1:1";
    o.bearer = "two\nlines";
    cr_assert_eq(vc_rpc_channel_create(&o, &ch, &err), VC_ERR_INVALID);
    cr_assert_null(ch);
}
