/*
 * The UCX layer on loopback: eager and rendezvous messages arrive whole, a declined or unread rendezvous lets its
 * sender go on, and neither a killed peer nor a silent one keeps a request for ever. Both sides run in this process
 * unless a peer has to die.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/vc_test.h"
#include "vc/clock.h"
#include "vc/ucx.h"

#define BIG (1u << 20)
#define THRESHOLD (512u << 10)
#define LIMIT_US 20000000u /* far beyond what any of this takes */

typedef enum { TAKE, DECLINE, HOLD } recv_mode_t;

typedef struct side {
    vc_ucx_t *ucx;
    vc_ucx_ep_t *ep;
    uint8_t *buf; /* registered */
    recv_mode_t mode;
    int n_msgs, n_done, n_errors, n_closed;
    vc_status_t done_status, error_status;
    size_t bytes;
    char header[64];
    void *held;
    vc_ucx_op_t op;
} side_t;

static void on_done(void *arg, vc_status_t status)
{
    side_t *s = arg;
    s->n_done++;
    s->done_status = status;
}

static void on_error(void *arg, vc_ucx_ep_t *ep, vc_status_t status)
{
    side_t *s = arg;
    cr_assert(vc_ucx_ep_arg(ep) == s);
    s->n_errors++;
    s->error_status = status;
}

static bool on_msg(void *arg, const vc_ucx_msg_t *msg)
{
    side_t *s = arg;
    s->n_msgs++;
    s->bytes = msg->bytes;
    cr_assert(msg->header_bytes < sizeof(s->header));
    memcpy(s->header, msg->header, msg->header_bytes);
    s->header[msg->header_bytes] = '\0';
    if (msg->desc == NULL || s->mode == DECLINE)
        return false;
    if (s->mode == HOLD) {
        s->held = msg->desc;
        return true;
    }
    cr_assert(msg->bytes <= BIG);
    s->op = (vc_ucx_op_t){.done = on_done, .arg = s};
    vc_status_t st = vc_ucx_recv(s->ucx, msg->desc, s->buf, msg->bytes, &s->op);
    cr_assert(st == VC_OK);
    return true;
}

static void on_request(void *arg, void *request)
{
    side_t *s = arg;
    cr_assert(vc_ucx_accept(s->ucx, request, on_error, s, &s->ep) == VC_OK);
}

static void open_side(side_t *s, const char *address, bool listen)
{
    vc_err_t err = {0};
    memset(s, 0, sizeof(*s));
    vc_ucx_opts_t opts = {.address = address, .listen = listen, .rndv_threshold = THRESHOLD};
    cr_assert(vc_ucx_open(&opts, &s->ucx, &err) == VC_OK, "%s", err.msg);
    s->buf = aligned_alloc(4096, BIG);
    cr_assert(s->buf != NULL);
    cr_assert(vc_ucx_register(s->ucx, s->buf, BIG, &err) == VC_OK, "%s", err.msg);
    vc_ucx_set_handler(s->ucx, on_msg, s);
    if (listen)
        cr_assert(vc_ucx_listen(s->ucx, on_request, s, &err) == VC_OK, "%s", err.msg);
    else
        cr_assert(vc_ucx_connect(s->ucx, on_error, s, &s->ep, &err) == VC_OK, "%s", err.msg);
}

static void close_side(side_t *s)
{
    vc_ucx_close(s->ucx);
    free(s->buf);
}

/* Progress of both sides until *counter reaches want. */
static void until(side_t *a, side_t *b, const int *counter, int want)
{
    uint64_t end = vc_clock_now_us(vc_clock_system()) + LIMIT_US;
    while (*counter < want && vc_clock_now_us(vc_clock_system()) < end) {
        vc_ucx_progress(a->ucx);
        if (b != NULL)
            vc_ucx_progress(b->ucx);
    }
    cr_assert(*counter >= want, "still waiting: %d of %d", *counter, want);
}

static void fill(uint8_t *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i * 31 + seed + (i >> 8));
}

static void send_one(side_t *from, const char *header, const void *data, size_t bytes, vc_ucx_op_t *op)
{
    *op = (vc_ucx_op_t){.done = on_done, .arg = from};
    cr_assert(vc_ucx_send(from->ep, header, strlen(header), data, bytes, op) == VC_OK);
}

static void check_round_trip(size_t bytes)
{
    side_t server, client;
    open_side(&server, "127.0.0.1:0", true);
    open_side(&client, vc_ucx_listen_address(server.ucx), false);
    fill(client.buf, bytes, 7);
    vc_ucx_op_t op;
    send_one(&client, "ping", client.buf, bytes, &op);
    until(&server, &client, &server.n_done, 1);
    cr_assert(server.bytes == bytes && server.done_status == VC_OK);
    cr_assert_str_eq(server.header, "ping");
    cr_assert(memcmp(server.buf, client.buf, bytes) == 0);
    until(&server, &client, &client.n_done, 1);
    cr_assert(client.done_status == VC_OK);

    memset(client.buf, 0, bytes); /* and back */
    send_one(&server, "pong", server.buf, bytes, &op);
    until(&server, &client, &client.n_done, 2);
    cr_assert(client.bytes == bytes);
    cr_assert(memcmp(server.buf, client.buf, bytes) == 0);
    close_side(&client);
    close_side(&server);
}

Test(ucx, a_small_message_goes_both_ways) { check_round_trip(100); }
Test(ucx, a_message_below_the_threshold_goes_both_ways) { check_round_trip(THRESHOLD - 1); }
Test(ucx, a_rendezvous_lands_in_the_registered_buffer) { check_round_trip(BIG); }

Test(ucx, a_header_without_payload_arrives)
{
    side_t server, client;
    open_side(&server, "127.0.0.1:0", true);
    open_side(&client, vc_ucx_listen_address(server.ucx), false);
    vc_ucx_op_t op;
    send_one(&client, "alone", NULL, 0, &op);
    until(&server, &client, &server.n_msgs, 1);
    cr_assert(server.bytes == 0);
    cr_assert_str_eq(server.header, "alone");
    close_side(&client);
    close_side(&server);
}

static void check_declined(recv_mode_t mode, size_t bytes)
{
    side_t server, client;
    open_side(&server, "127.0.0.1:0", true);
    open_side(&client, vc_ucx_listen_address(server.ucx), false);
    server.mode = mode;
    fill(client.buf, bytes, 1);
    vc_ucx_op_t op;
    send_one(&client, "unwanted", client.buf, bytes, &op);
    until(&server, &client, &server.n_msgs, 1);
    if (mode == HOLD)
        vc_ucx_release(server.ucx, server.held);
    until(&server, &client, &client.n_done, 1);
    /* The connection lives on. */
    server.mode = TAKE;
    vc_ucx_op_t op2;
    send_one(&client, "wanted", client.buf, bytes, &op2);
    until(&server, &client, &server.n_done, 1);
    cr_assert(memcmp(server.buf, client.buf, bytes) == 0);
    close_side(&client);
    close_side(&server);
}

Test(ucx, a_declined_rendezvous_lets_its_sender_go_on) { check_declined(DECLINE, BIG); }
Test(ucx, a_rendezvous_released_later_lets_its_sender_go_on) { check_declined(HOLD, BIG); }
Test(ucx, declined_eager_data_is_dropped) { check_declined(DECLINE, 4096); }
Test(ucx, eager_data_released_later_is_dropped) { check_declined(HOLD, 4096); }

Test(ucx, closing_by_force_takes_back_sends_to_a_silent_peer)
{
    side_t server, client;
    open_side(&server, "127.0.0.1:0", true);
    open_side(&client, vc_ucx_listen_address(server.ucx), false);
    vc_ucx_op_t op, ops[8];
    send_one(&client, "hello", NULL, 0, &op);
    until(&server, &client, &server.n_msgs, 1);
    for (int i = 0; i < 8; i++) /* the client does not progress any more */
        send_one(&server, "data", server.buf, BIG, &ops[i]);
    for (int i = 0; i < 1000; i++)
        vc_ucx_progress(server.ucx);
    cr_assert(server.n_done == 0, "%d sends ended: %s", server.n_done, vc_status_name(server.done_status));
    vc_ucx_ep_close(server.ep, NULL, NULL);
    until(&server, NULL, &server.n_done, 8);
    cr_assert(server.done_status != VC_OK);
    close_side(&client);
    close_side(&server);
}

static void run_peer(const char *address, void (*play)(side_t *client)) __attribute__((noreturn));
static void run_peer(const char *address, void (*play)(side_t *client))
{
    side_t client;
    open_side(&client, address, false);
    play(&client);
    _exit(0);
}

/* Offers a rendezvous, then goes silent with the connection open until it is killed. */
static void offer_then_freeze(side_t *client)
{
    vc_ucx_op_t op;
    send_one(client, "offer", client->buf, BIG, &op);
    while (client->n_msgs == 0)
        vc_ucx_progress(client->ucx);
    for (;;)
        pause();
}

/* The fork comes first and UCX starts after it on both sides: it does not survive a fork. */
static void with_dying_peer(void (*play)(side_t *client), bool close_instead)
{
    int pipe_fd[2];
    cr_assert(pipe(pipe_fd) == 0);
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        char address[64] = {0};
        close(pipe_fd[1]);
        if (read(pipe_fd[0], address, sizeof(address) - 1) <= 0)
            _exit(1);
        run_peer(address, play);
    }
    side_t server;
    open_side(&server, "127.0.0.1:0", true);
    server.mode = HOLD;
    const char *address = vc_ucx_listen_address(server.ucx);
    cr_assert(write(pipe_fd[1], address, strlen(address)) > 0);
    until(&server, NULL, &server.n_msgs, 1);
    vc_ucx_op_t op, recv_op = {.done = on_done, .arg = &server};
    send_one(&server, "go silent", NULL, 0, &op);
    until(&server, NULL, &server.n_done, 1);
    kill(pid, SIGSTOP); /* it no longer answers, so the receive stays open */
    cr_assert(vc_ucx_recv(server.ucx, server.held, server.buf, BIG, &recv_op) == VC_OK);
    for (int i = 0; i < 1000; i++)
        vc_ucx_progress(server.ucx);
    cr_assert(server.n_done == 1);
    if (close_instead) {
        vc_ucx_ep_close(server.ep, NULL, NULL);
        until(&server, NULL, &server.n_done, 2);
        kill(pid, SIGKILL);
    } else {
        kill(pid, SIGKILL);
        until(&server, NULL, &server.n_errors, 1);
        cr_assert(server.error_status == VC_ERR_UNREACHABLE);
        vc_ucx_ep_close(server.ep, NULL, NULL);
        until(&server, NULL, &server.n_done, 2);
    }
    cr_assert(server.done_status != VC_OK);
    waitpid(pid, NULL, 0);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
    close_side(&server);
}

Test(ucx, a_killed_peer_is_noticed_and_its_receive_ends) { with_dying_peer(offer_then_freeze, false); }
Test(ucx, closing_by_force_ends_a_receive_from_a_silent_peer) { with_dying_peer(offer_then_freeze, true); }

Test(ucx, nobody_listening_is_reported)
{
    side_t server, client;
    open_side(&server, "127.0.0.1:0", true);
    char address[64];
    snprintf(address, sizeof(address), "%s", vc_ucx_listen_address(server.ucx));
    close_side(&server);
    open_side(&client, address, false);
    until(&client, NULL, &client.n_errors, 1);
    cr_assert(client.error_status == VC_ERR_UNREACHABLE);
    close_side(&client);
}

Test(ucx, a_busy_port_and_a_foreign_address_are_refused_with_a_sentence)
{
    side_t server;
    vc_err_t err = {0};
    vc_ucx_t *other = NULL;
    open_side(&server, "127.0.0.1:0", true);
    vc_ucx_opts_t opts = {.address = vc_ucx_listen_address(server.ucx), .listen = true, .rndv_threshold = THRESHOLD};
    cr_assert(vc_ucx_open(&opts, &other, &err) == VC_OK, "%s", err.msg);
    cr_assert(vc_ucx_listen(other, on_request, &server, &err) == VC_ERR_UNREACHABLE);
    cr_assert(strstr(err.msg, opts.address) != NULL);
    vc_ucx_close(other);
    close_side(&server);

    static const char *const bad[] = {"", "127.0.0.1", ":1", "127.0.0.1:", "127.0.0.1:99999", "::1:5", "a:b"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        opts.address = bad[i];
        cr_assert(vc_ucx_open(&opts, &other, &err) == VC_ERR_INVALID, "%s", bad[i]);
        cr_assert(strstr(err.msg, "HOST:PORT") != NULL);
    }
    opts.address = "203.0.113.9:1"; /* documentation range: never ours */
    cr_assert(vc_ucx_open(&opts, &other, &err) == VC_ERR_UNREACHABLE);
    cr_assert(strstr(err.msg, "203.0.113.9") != NULL);
}

/* Ports in LISTEN state of this machine's IPv4 sockets that lie in [low, high]. */
static int count_listening(unsigned low, unsigned high)
{
    FILE *f = fopen("/proc/net/tcp", "r");
    char line[512];
    int n = 0;
    cr_assert(f != NULL);
    while (fgets(line, sizeof(line), f) != NULL) {
        unsigned port, state;
        if (sscanf(line, " %*d: %*x:%x %*x:%*x %x", &port, &state) == 2 && state == 0x0a)
            n += port >= low && port <= high;
    }
    fclose(f);
    return n;
}

Test(ucx, the_port_range_holds_the_sockets_behind_the_listener)
{
    vc_err_t err = {0};
    vc_ucx_t *ucx = NULL;
    vc_ucx_opts_t opts = {.address = "127.0.0.1:0", .listen = true, .ports = "25300-25330", .rndv_threshold = 1 << 19};
    int before = count_listening(25300, 25330);
    cr_assert(vc_ucx_open(&opts, &ucx, &err) == VC_OK, "%s", err.msg);
    cr_assert(count_listening(25300, 25330) == before + 1);
    vc_ucx_close(ucx);
    static const char *const bad[] = {"", "nonsense", "5-4", "0-9", "-5", "5-", "1-70000", "1-2-3"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        opts.ports = bad[i];
        cr_assert(vc_ucx_open(&opts, &ucx, &err) == VC_ERR_INVALID, "%s", bad[i]);
        cr_assert(strstr(err.msg, "port range") != NULL);
    }
}

Test(ucx, a_port_can_be_taken_again_right_after_its_server_ended)
{
    side_t server, client;
    char address[64];
    open_side(&server, "127.0.0.1:0", true);
    snprintf(address, sizeof(address), "%s", vc_ucx_listen_address(server.ucx));
    open_side(&client, address, false);
    vc_ucx_op_t op;
    send_one(&client, "hello", NULL, 0, &op);
    until(&server, &client, &server.n_msgs, 1);
    close_side(&server); /* this side closes first, so its sockets stay in TIME_WAIT */
    open_side(&server, address, true);
    close_side(&client);
    close_side(&server);
}

Test(ucx, loopback_addresses_are_known)
{
    cr_assert(vc_ucx_address_is_loopback("127.0.0.1:1"));
    cr_assert(vc_ucx_address_is_loopback("127.9.9.9:0"));
    cr_assert(vc_ucx_address_is_loopback("[::1]:1"));
    cr_assert(vc_ucx_address_is_loopback("localhost:1"));
    cr_assert_not(vc_ucx_address_is_loopback("0.0.0.0:1"));
    cr_assert_not(vc_ucx_address_is_loopback("10.0.0.1:1"));
    cr_assert_not(vc_ucx_address_is_loopback("[::]:1"));
    cr_assert_not(vc_ucx_address_is_loopback("nonsense"));
}

Test(ucx, the_environment_does_not_choose_transports)
{
    setenv("UCX_TLS", "self", 1); /* would leave no way to the peer */
    setenv("UCX_NET_DEVICES", "nosuchdevice", 1);
    setenv("UCX_NO_SUCH_VARIABLE", "1", 1);
    check_round_trip(BIG);
}
