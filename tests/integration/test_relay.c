/*
 * The relay of the demo: bytes arrive whole and in order in both directions over several connections, half-closed
 * streams work, counters are right, and the link's arithmetic is exact. Peers are threads of this process on loopback.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "relay.h"
#include "relay_link.h"
#include "support/file.h"
#include "support/proc.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"

#define MAX_CLIENTS 8

static void send_all(int fd, const uint8_t *data, size_t n)
{
    while (n != 0) {
        const ssize_t k = send(fd, data, n, MSG_NOSIGNAL);
        if (k <= 0)
            return; /* the reader will notice */
        data += k;
        n -= (size_t)k;
    }
}

/* Until the end of the stream; -1 when it broke. */
static ssize_t recv_all(int fd, uint8_t *data, size_t cap)
{
    size_t n = 0;
    while (n < cap) {
        const ssize_t k = recv(fd, data + n, cap - n, 0);
        if (k < 0)
            return -1;
        if (k == 0)
            break;
        n += (size_t)k;
    }
    return (ssize_t)n;
}

/* A server that reads to the end of each stream, then answers with the bytes inverted: it can only answer over a stream
 * whose other half is closed. */
typedef struct {
    int fd;
    uint16_t port;
    int n_conns;
    pthread_t thread;
} server_t;

static void *serve_one(void *arg)
{
    const int fd = (int)(intptr_t)arg;
    const size_t cap = 8u << 20;
    uint8_t *data = malloc(cap);
    const ssize_t n = data != NULL ? recv_all(fd, data, cap) : -1;
    for (ssize_t i = 0; i < n; i++)
        data[i] = (uint8_t)~data[i];
    if (n > 0)
        send_all(fd, data, (size_t)n);
    close(fd);
    free(data);
    return NULL;
}

static void *serve(void *arg)
{
    server_t *s = arg;
    pthread_t threads[MAX_CLIENTS];
    for (int i = 0; i < s->n_conns; i++) {
        const int fd = accept(s->fd, NULL, NULL);
        pthread_create(&threads[i], NULL, serve_one, (void *)(intptr_t)fd);
    }
    for (int i = 0; i < s->n_conns; i++)
        pthread_join(threads[i], NULL);
    return NULL;
}

static int listen_any(uint16_t *port_p)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(addr);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&addr, len) == 0 && listen(fd, 64) == 0);
    cr_assert(getsockname(fd, (struct sockaddr *)&addr, &len) == 0);
    *port_p = ntohs(addr.sin_port);
    return fd;
}

static void start_server(server_t *s, int n_conns)
{
    s->fd = listen_any(&s->port);
    s->n_conns = n_conns;
    cr_assert_eq(pthread_create(&s->thread, NULL, serve, s), 0);
}

static int connect_to(uint16_t port)
{
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
    return fd;
}

typedef struct {
    relay_t *relay;
    pthread_t thread;
    char target[64];
} fixture_t;

static bool end_on_wake(void *arg)
{
    (void)arg;
    return false;
}
static void *run_relay(void *arg)
{
    vc_err_t err;
    return (void *)(intptr_t)relay_run(arg, end_on_wake, NULL, &err);
}

static void start_relay(fixture_t *f, relay_opts_t opts, uint16_t target_port)
{
    vc_err_t err = {0};
    snprintf(f->target, sizeof(f->target), "127.0.0.1:%u", target_port);
    opts.target = f->target;
    cr_assert_eq(relay_create(&opts, &f->relay, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(pthread_create(&f->thread, NULL, run_relay, f->relay), 0);
}

static relay_stats_t stop_relay(fixture_t *f)
{
    void *status;
    relay_wake(f->relay);
    pthread_join(f->thread, &status);
    cr_assert_null(status);
    const relay_stats_t stats = relay_stats(f->relay);
    relay_destroy(f->relay);
    return stats;
}

typedef struct {
    uint16_t port;
    uint32_t seed;
    size_t bytes;
    bool good;
    pthread_t thread;
} client_t;

static void *run_client(void *arg)
{
    client_t *c = arg;
    uint8_t *sent = malloc(c->bytes + 1), *got = malloc(c->bytes + 1);
    uint64_t s = c->seed;
    for (size_t i = 0; i < c->bytes; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        sent[i] = (uint8_t)(s >> 56);
    }
    const int fd = connect_to(c->port);
    send_all(fd, sent, c->bytes);
    shutdown(fd, SHUT_WR);
    c->good = recv_all(fd, got, c->bytes + 1) == (ssize_t)c->bytes;
    for (size_t i = 0; c->good && i < c->bytes; i++)
        c->good = (got[i] ^ sent[i]) == 0xff;
    close(fd);
    free(sent);
    free(got);
    return NULL;
}

static relay_stats_t exchange(relay_opts_t opts, int n_clients, size_t bytes)
{
    server_t server;
    fixture_t f;
    client_t clients[MAX_CLIENTS];
    size_t total = 0;
    start_server(&server, n_clients);
    start_relay(&f, opts, server.port);
    for (int i = 0; i < n_clients; i++) {
        clients[i] =
            (client_t){.port = relay_port(f.relay), .seed = (uint32_t)i + 1, .bytes = bytes + (size_t)i * 1001};
        total += clients[i].bytes;
        cr_assert_eq(pthread_create(&clients[i].thread, NULL, run_client, &clients[i]), 0);
    }
    for (int i = 0; i < n_clients; i++) {
        pthread_join(clients[i].thread, NULL);
        cr_assert(clients[i].good, "client %d got other bytes", i);
    }
    pthread_join(server.thread, NULL);
    close(server.fd);
    const relay_stats_t stats = stop_relay(&f);
    cr_assert_eq(stats.bytes_to_target, (uint64_t)total);
    cr_assert_eq(stats.bytes_to_client, (uint64_t)total);
    cr_assert_eq(stats.connections, (uint64_t)n_clients);
    cr_assert_eq(stats.refused + stats.failed, 0u);
    return stats;
}

Test(relay, carries_bytes_both_ways_over_several_half_closed_connections)
{
    relay_opts_t opts;
    relay_opts_default(&opts);
    exchange(opts, 1, 0);
    exchange(opts, 1, 1);
    exchange(opts, MAX_CLIENTS, 3000000);
}

Test(relay, a_small_buffer_slows_and_loses_nothing)
{
    relay_opts_t opts;
    relay_opts_default(&opts);
    opts.buffer_bytes = 4096;
    exchange(opts, 3, 1000000);
}

Test(relay, a_rate_shared_by_connections_loses_nothing)
{
    relay_opts_t opts;
    relay_opts_default(&opts);
    opts.rate_bits_per_s = 400000000;
    opts.delay_us = 500;
    exchange(opts, 4, 1000000);
}

static uint64_t now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

Test(relay, an_answer_takes_two_delays_at_least)
{
    relay_opts_t opts;
    relay_opts_default(&opts);
    opts.delay_us = 8000;
    const uint64_t start = now_us();
    exchange(opts, 2, 1000);
    cr_assert_geq(now_us() - start, 16000u);
}

Test(relay, a_target_that_does_not_answer_ends_the_client)
{
    relay_opts_t opts;
    relay_opts_default(&opts);
    uint16_t port;
    const int unused = listen_any(&port); /* a port that nobody else takes meanwhile... */
    close(unused);                        /* ...and nobody listens on */
    fixture_t f;
    start_relay(&f, opts, port);
    const int fd = connect_to(relay_port(f.relay));
    uint8_t byte;
    cr_assert_leq(recv_all(fd, &byte, 1), 0);
    close(fd);
    const relay_stats_t stats = stop_relay(&f);
    cr_assert(stats.failed == 1 && stats.connections == 1);
}

Test(relay, more_connections_than_allowed_are_refused)
{
    relay_opts_t opts;
    relay_opts_default(&opts);
    opts.max_connections = 1;
    server_t server;
    fixture_t f;
    start_server(&server, 1);
    start_relay(&f, opts, server.port);
    const int first = connect_to(relay_port(f.relay)), second = connect_to(relay_port(f.relay));
    uint8_t byte = 7;
    cr_assert_leq(recv_all(second, &byte, 1), 0); /* accepted in order: the first one is in by now */
    send_all(first, &byte, 1);
    shutdown(first, SHUT_WR);
    cr_assert_eq(recv_all(first, &byte, 1), 1);
    cr_assert_eq(byte, (uint8_t)~7);
    close(first);
    close(second);
    pthread_join(server.thread, NULL);
    close(server.fd);
    cr_assert_eq(stop_relay(&f).refused, 1u);
}

Test(relay, a_broken_client_breaks_the_connection_to_the_target)
{
    relay_opts_t opts;
    relay_opts_default(&opts);
    uint16_t port;
    const int listener = listen_any(&port);
    fixture_t f;
    start_relay(&f, opts, port);
    const int client = connect_to(relay_port(f.relay));
    uint8_t byte = 1;
    send_all(client, &byte, 1);
    const int peer = accept(listener, NULL, NULL);
    cr_assert_eq(recv(peer, &byte, 1, 0), 1);
    const struct linger now = {1, 0};
    setsockopt(client, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(client); /* a reset */
    cr_assert_leq(recv(peer, &byte, 1, 0), 0);
    close(peer);
    close(listener);
    stop_relay(&f);
}

Test(relay, refuses_addresses_that_are_none_and_ports_that_are_taken)
{
    relay_opts_t opts;
    relay_t *relay;
    vc_err_t err = {0};
    relay_opts_default(&opts);
    static const char *const bad[] = {"", "nohost", "127.0.0.1:", ":80", "127.0.0.1:notaport"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        opts.target = bad[i];
        cr_assert_eq(relay_create(&opts, &relay, &err), VC_ERR_INVALID, "%s", bad[i]);
    }
    uint16_t port;
    char taken[64];
    const int fd = listen_any(&port);
    snprintf(taken, sizeof(taken), "127.0.0.1:%u", port);
    opts.target = "127.0.0.1:1";
    opts.listen = taken;
    cr_assert_eq(relay_create(&opts, &relay, &err), VC_ERR_UNREACHABLE);
    cr_assert_not_null(strstr(err.msg, taken));
    close(fd);
}

Test(relay, program_reports_its_port_and_writes_its_counters)
{
    vt_tmpdir_t dir;
    server_t server;
    char target[64], line[200];
    start_server(&server, 1);
    vt_tmpdir_create(&dir);
    snprintf(target, sizeof(target), "127.0.0.1:%u", server.port);
    const char *stats = vt_tmpdir_path(&dir, "stats.json");
    const char *args[] = {"--target", target, "--delay-ms", "1", "--stats-file", stats, NULL};
    vt_proc_t *proc = vt_proc_start("vericache-relay", args, NULL);
    cr_assert(vt_proc_wait_line(proc, "listening port=", 30000, line, sizeof(line)));
    client_t client = {.port = (uint16_t)strtoul(strchr(line, '=') + 1, NULL, 10), .seed = 1, .bytes = 1000};
    run_client(&client);
    cr_assert(client.good);
    vt_proc_signal(proc, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(proc, 30000), 0);
    vt_proc_end(proc);
    pthread_join(server.thread, NULL);
    close(server.fd);
    char *text = (char *)vt_file_read(stats, NULL);
    cr_assert_str_eq(text, "{\"connections\":1,\"refused\":0,\"failed\":0,\"bytes_to_target\":1000,"
                           "\"bytes_to_client\":1000}\n");
    vc_free(text);
    vt_tmpdir_remove(&dir);
}

Test(relay_link, parcels_wait_for_the_rate_and_then_for_the_delay)
{
    relay_link_t link;
    relay_parcel_t p;
    int a, b;
    relay_link_init(&link, 5000000, 1000000000); /* 1 Gbit/s: 1000 bytes take 8 us */
    cr_assert_eq(relay_link_next(&link), UINT64_MAX);
    cr_assert(relay_link_push(&link, &a, 1000, false, 100));
    cr_assert(relay_link_push(&link, &b, 2000, false, 100));
    cr_assert(relay_link_push(&link, &a, 0, true, 100));
    cr_assert_eq(relay_link_next(&link), 5008100u);
    cr_assert(!relay_link_pop(&link, 5008099, &p));
    cr_assert(relay_link_pop(&link, 5008100, &p) && p.owner == &a && p.bytes == 1000 && !p.end);
    cr_assert(!relay_link_pop(&link, 5024099, &p));
    cr_assert(relay_link_pop(&link, 5024100, &p) && p.owner == &b && p.bytes == 2000);
    cr_assert(relay_link_pop(&link, 5024100, &p) && p.owner == &a && p.bytes == 0 && p.end);
    cr_assert_eq(relay_link_next(&link), UINT64_MAX);
    relay_link_fini(&link);
}

Test(relay_link, a_backlog_closes_the_link_until_it_has_drained)
{
    relay_link_t link;
    int a;
    relay_link_init(&link, 0, 8000000); /* 1 byte per us */
    cr_assert_leq(relay_link_open(&link), 0u);
    cr_assert(relay_link_push(&link, &a, 15000, false, 0));
    cr_assert_eq(relay_link_open(&link), 15000000u - RELAY_BACKLOG_NS);
    relay_link_fini(&link);
}

Test(relay_link, keeps_order_and_every_byte_when_it_grows_and_merges)
{
    relay_link_t link;
    relay_parcel_t p;
    int owners[3];
    uint64_t in[3] = {0}, out[3] = {0}, last = 0;
    relay_link_init(&link, 1000000, 0);
    for (uint32_t i = 0; i < 5000; i++) {
        const uint32_t k = (i / 3) % 3; /* runs of three of one owner merge */
        cr_assert(relay_link_push(&link, &owners[k], 1 + i % 7, false, i * 1000u));
        in[k] += 1 + i % 7;
        if (i % 4 == 0 && relay_link_pop(&link, UINT64_MAX, &p)) {
            out[(int *)p.owner - owners] += p.bytes;
            cr_assert_geq(p.due_ns, last);
            last = p.due_ns;
        }
    }
    cr_assert_lt(link.count, 5000u - 1250u);
    while (relay_link_pop(&link, UINT64_MAX, &p)) {
        out[(int *)p.owner - owners] += p.bytes;
        cr_assert_geq(p.due_ns, last);
        last = p.due_ns;
    }
    for (int k = 0; k < 3; k++)
        cr_assert_eq(in[k], out[k]);
    relay_link_fini(&link);
}
