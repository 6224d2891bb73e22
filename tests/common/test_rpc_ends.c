/* Proves that servers stop clean and that lost, killed, slow and far ones are told apart. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rpc_fixture.h"

Test(rpc_ends, stop_ends_with_a_client_that_never_reads)
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

Test(rpc_ends, stop_ends_with_a_silent_connection)
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

Test(rpc_ends, busy_port_is_an_error_that_names_it)
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

Test(rpc_ends, dead_server_is_unreachable_and_a_new_one_is_found)
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

Test(rpc_ends, server_killed_in_the_middle_of_a_stream_is_unreachable)
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

Test(rpc_ends, slow_connection_is_waited_for)
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
