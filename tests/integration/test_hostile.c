/*
 * Hostile bytes against the real server process: at the control port anything at all, from hundreds of connections at
 * once, and at the data port what UCX's connection set-up does not expect. Meanwhile a good client gets its records,
 * and afterwards the process has the descriptors and, within generous bounds, the memory that it had before.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/proc.h"
#include "support/small_space.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"
#include "vericache/vericache.h"

#define WAIT_MS 60000
#define N_BLOCKS 40u
#define SLACK 4 /* the store opens a table or a segment now and then */
#if defined(__SANITIZE_ADDRESS__)
#define GROWTH_MAX ((uint64_t)1 << 30) /* freed memory is kept for a while */
#else
#define GROWTH_MAX ((uint64_t)128 << 20)
#endif

static const vcache_fidelity_t full = {0, "full@1", NULL};

typedef struct scene {
    vt_tmpdir_t dir;
    vt_proc_t *server;
    char address[128];
    uint16_t control_port, data_port;
    small_space_t space;
    vcache_client_t *client;
} scene_t;

static void start_server(scene_t *s)
{
    const char *args[] = {
        "--data-dir", vt_tmpdir_path(&s->dir, "data"), "--listen", "127.0.0.1:0", "--capacity", "256MiB", NULL};
    char line[500] = "";
    s->server = vt_proc_start("vericache-server", args, NULL);
    cr_assert(vt_proc_wait_line(s->server, "ready listen=", WAIT_MS, line, sizeof(line)), "%s",
              vt_proc_output(s->server));
    const char *listen = strstr(line, "listen=") + 7, *data = strstr(line, "data=") + 5;
    snprintf(s->address, sizeof(s->address), "%.*s", (int)strcspn(listen, " "), listen);
    s->control_port = (uint16_t)atoi(strrchr(s->address, ':') + 1);
    s->data_port = (uint16_t)atoi(strchr(data, ':') + 1);
}

static void connect_client(scene_t *s, int use_data_plane)
{
    vcache_options_t o;
    vcache_options_default(&o);
    o.server = s->address;
    o.call_ms = WAIT_MS;
    o.use_data_plane = use_data_plane;
    cr_assert_eq(vcache_connect(&o, &s->client, NULL), 0);
}

static void scene_start(scene_t *s)
{
    vcache_error_t err = {0};
    memset(s, 0, sizeof(*s));
    small_space_init(&s->space);
    vt_tmpdir_create(&s->dir);
    start_server(s);
    connect_client(s, 0);
    cr_assert_eq(vcache_register(s->client, s->space.enc, s->space.enc_len, s->space.tokens, 0, N_BLOCKS, &full, 1,
                                 small_space_record, &s->space, NULL, &err),
                 0, "%s", err.msg);
}

static void scene_end(scene_t *s)
{
    vcache_disconnect(s->client);
    vt_proc_signal(s->server, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(s->server, WAIT_MS), 0, "%s", vt_proc_output(s->server));
    vt_proc_end(s->server);
    vt_tmpdir_remove(&s->dir);
}

/* All records, with the right bytes. */
static void fetch_all(scene_t *s)
{
    vcache_lookup_info_t info;
    vcache_lease_t *lease = NULL;
    vcache_error_t err = {0};
    small_sink_t sink = {.space = &s->space};
    vcache_status_t st = vcache_lookup(s->client, s->space.enc, s->space.enc_len, s->space.tokens,
                                       N_BLOCKS * SMALL_BLOCK_TOKENS, &full, 1, &info, &lease, &err);
    cr_assert_eq(st, 0, "%s", err.msg);
    cr_assert_eq(info.n_blocks[0], N_BLOCKS);
    st = vcache_fetch(lease, 0, 0, N_BLOCKS, small_sink_record, &sink, NULL, &err);
    cr_assert_eq(st, 0, "%s", err.msg);
    cr_assert_eq(sink.right, N_BLOCKS);
    cr_assert_eq(sink.wrong, 0);
    vcache_lease_release(lease);
}

/* ---- what the process holds ---- */

static uint64_t resident_bytes(const scene_t *s)
{
    char path[64], line[256];
    unsigned long long kib = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)vt_proc_pid(s->server));
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s", vt_proc_output(s->server));
    while (fgets(line, sizeof(line), f) && sscanf(line, "VmRSS: %llu kB", &kib) != 1)
        ;
    fclose(f);
    cr_assert_gt(kib, 0);
    return (uint64_t)kib << 10;
}

static int open_files(const scene_t *s)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)vt_proc_pid(s->server));
    DIR *list = opendir(path);
    cr_assert_not_null(list);
    while (readdir(list))
        n++;
    closedir(list);
    return n;
}

/* Connections end a moment after their peers: asks the server small things until the count is down. */
static void expect_files_return(scene_t *s, int before)
{
    int n = 0;
    for (int i = 0; i < 20000 && (n = open_files(s)) > before; i++)
        cr_assert_eq(vcache_health(s->client, NULL), 0);
    cr_assert_leq(n, before, "%d descriptors before, %d now", before, n);
}

static void expect_bounded(scene_t *s, uint64_t before)
{
    uint64_t now = resident_bytes(s);
    cr_assert_leq(now, before + GROWTH_MAX, "%llu bytes resident before, %llu now", (unsigned long long)before,
                  (unsigned long long)now);
}

/* ---- sockets ---- */

static int dial(uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(fd, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0, "%s", strerror(errno));
    return fd;
}

/* As much as the server takes; it may have hung up, which is its right. What it answers is read away. */
static void say(int fd, const void *data, size_t n)
{
    const uint8_t *at = data;
    uint8_t answer[4096];
    while (n > 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN | POLLOUT};
        if (poll(&p, 1, 10000) <= 0)
            return;
        if ((p.revents & POLLIN) && recv(fd, answer, sizeof(answer), MSG_DONTWAIT) == 0)
            return;
        ssize_t k = p.revents & POLLOUT ? send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
        if (k < 0 && errno != EAGAIN)
            return;
        at += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
        if (p.revents & (POLLERR | POLLHUP))
            return;
    }
}

/* ---- HTTP/2 by hand ---- */

typedef struct text {
    uint8_t data[128 << 10];
    size_t n;
} text_t;

static void put(text_t *t, const void *data, size_t n)
{
    cr_assert_leq(n, sizeof(t->data) - t->n);
    memcpy(t->data + t->n, data, n);
    t->n += n;
}

static void put_byte(text_t *t, unsigned byte) { put(t, &(uint8_t){(uint8_t)byte}, 1); }

static void put_frame(text_t *t, uint32_t length, unsigned type, unsigned flags, uint32_t stream)
{
    const uint8_t head[9] = {(uint8_t)(length >> 16), (uint8_t)(length >> 8), (uint8_t)length,
                             (uint8_t)type,           (uint8_t)flags,         (uint8_t)(stream >> 24),
                             (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
    put(t, head, sizeof(head));
}

static void put_preface(text_t *t)
{
    t->n = 0;
    put(t, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
    put_frame(t, 0, 4, 0, 0); /* SETTINGS */
}

static void put_header(text_t *t, const char *name, const char *value)
{
    put_byte(t, 0x00); /* a literal that nobody remembers */
    put_byte(t, (unsigned)strlen(name));
    put(t, name, strlen(name));
    put_byte(t, (unsigned)strlen(value));
    put(t, value, strlen(value));
}

/* HEADERS of a call, open for messages. */
static void put_call(text_t *t, uint32_t stream, const char *method)
{
    static text_t block;
    block.n = 0;
    put_byte(&block, 0x83); /* POST */
    put_byte(&block, 0x86); /* http */
    put_header(&block, ":path", method);
    put_header(&block, ":authority", "here");
    put_header(&block, "te", "trailers");
    put_header(&block, "content-type", "application/grpc");
    put_frame(t, (uint32_t)block.n, 1, 4, stream);
    put(t, block.data, block.n);
}

enum { DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6, WINDOW_UPDATE = 8, CONTINUATION = 9 };
#define LOOKUP "/vericache.v1.Cache/Lookup"
#define PUT_RECORD "/vericache.v1.Cache/PutRecord"

static uint64_t rnd(uint64_t *x) { return (*x = *x * 6364136223846793005u + 1442695040888963407u) >> 33; }

static void put_noise(text_t *t, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        put_byte(t, (unsigned)rnd(&seed));
}

static void noise(text_t *t)
{
    t->n = 0;
    put_noise(t, 65536, 1);
}
static void preface_and_noise(text_t *t)
{
    put_preface(t);
    put_noise(t, 65536, 2);
}
static void other_protocols(text_t *t)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                      hello[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    t->n = 0;
    put(t, http, sizeof(http) - 1);
    put(t, hello, sizeof(hello) - 1);
    put_noise(t, 500, 3);
}
static void oversized_frame(text_t *t)
{
    put_preface(t);
    put_call(t, 1, LOOKUP);
    put_frame(t, 0xffffff, DATA, 0, 1);
    put_noise(t, 60000, 4);
}
static void oversized_message(text_t *t)
{
    put_preface(t);
    put_call(t, 1, LOOKUP);
    put_frame(t, 5 + 16000, DATA, 0, 1);
    put(t, "\0\xff\xff\xff\xff", 5); /* 4 GiB are announced */
    put_noise(t, 16000, 5);
}
static void half_a_message(text_t *t)
{
    put_preface(t);
    put_call(t, 1, PUT_RECORD);
    put_frame(t, 5 + 1000, DATA, 0, 1);
    put(t, "\0\0\0\x80\0", 5);
    put_noise(t, 1000, 6);
}
static void half_a_frame(text_t *t)
{
    put_preface(t);
    put_call(t, 1, LOOKUP);
    put_frame(t, 16000, DATA, 0, 1);
    put_noise(t, 100, 7);
}
static void endless_headers(text_t *t)
{
    put_preface(t);
    put_frame(t, 1, HEADERS, 0, 1);
    put_byte(t, 0x83);
    for (int i = 0; i < 7; i++) {
        put_frame(t, 16000, CONTINUATION, 0, 1);
        for (int k = 0; k < 160; k++) {
            put_byte(t, 0x00);
            put_byte(t, 10);
            put(t, "x-filler-a", 10);
            put_byte(t, 87);
            put_noise(t, 87, 8);
        }
    }
}
static void broken_headers(text_t *t)
{
    put_preface(t);
    put_frame(t, 1000, HEADERS, 4, 1);
    put_noise(t, 1000, 9);
}
static void floods(text_t *t)
{
    put_preface(t);
    for (int i = 0; i < 1000; i++) {
        put_frame(t, 8, PING, 0, 0);
        put_noise(t, 8, 10);
    }
    for (int i = 0; i < 1000; i++)
        put_frame(t, 0, SETTINGS, 0, 0);
    put_frame(t, 4, WINDOW_UPDATE, 0, 0);
    put(t, "\x7f\xff\xff\xff", 4);
    put_frame(t, 4, WINDOW_UPDATE, 0, 0);
    put(t, "\x7f\xff\xff\xff", 4);
}
static void opened_and_reset(text_t *t)
{
    put_preface(t);
    for (uint32_t i = 0; i < 400; i++) {
        put_call(t, 2 * i + 1, LOOKUP);
        put_frame(t, 4, RST_STREAM, 0, 2 * i + 1);
        put(t, "\0\0\0\x08", 4);
    }
}
static void more_streams_than_allowed(text_t *t)
{
    put_preface(t);
    for (uint32_t i = 0; i < 600; i++)
        put_call(t, 2 * i + 1, PUT_RECORD);
}

static void (*const attacks[])(text_t *) = {
    noise,        preface_and_noise, other_protocols, oversized_frame, half_a_message,   oversized_message,
    half_a_frame, endless_headers,   broken_headers,  floods,          opened_and_reset, more_streams_than_allowed};

Test(hostile, whatever_is_sent_to_the_control_port_the_others_are_served)
{
    static scene_t s;
    static text_t text;
    scene_start(&s);
    fetch_all(&s);
    int files = open_files(&s);
    uint64_t resident = resident_bytes(&s);
    for (size_t i = 0; i < VC_ARRAY_LEN(attacks); i++) {
        int fds[8];
        attacks[i](&text);
        for (size_t k = 0; k < VC_ARRAY_LEN(fds); k++) {
            fds[k] = dial(s.control_port);
            say(fds[k], text.data, text.n);
        }
        fetch_all(&s); /* beside them: they are silent now, and still there */
        expect_bounded(&s, resident);
        for (size_t k = 0; k < VC_ARRAY_LEN(fds); k++)
            close(fds[k]);
    }
    expect_files_return(&s, files + SLACK);
    fetch_all(&s);
    scene_end(&s);
}

Test(hostile, connections_that_never_send_cost_little_and_hold_nobody_up)
{
    static scene_t s;
    scene_start(&s);
    fetch_all(&s);
    int files = open_files(&s), fds[200];
    uint64_t resident = resident_bytes(&s);
    for (size_t i = 0; i < VC_ARRAY_LEN(fds); i++)
        fds[i] = dial(s.control_port);
    fetch_all(&s);
    expect_bounded(&s, resident);
    cr_assert_leq(open_files(&s), files + (int)VC_ARRAY_LEN(fds) + 8);
    for (size_t i = 0; i < VC_ARRAY_LEN(fds); i++) /* half of them by a reset */
        if (i % 2) {
            struct linger now = {1, 0};
            setsockopt(fds[i], SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        }
    for (size_t i = 0; i < VC_ARRAY_LEN(fds); i++)
        close(fds[i]);
    expect_files_return(&s, files + SLACK);
    fetch_all(&s);
    scene_end(&s);
}

/* UCX's own set-up is not hardened: the process may end, as by a kill. Then nothing committed is lost. */
Test(hostile, stray_bytes_at_the_data_port_lose_nothing)
{
    static scene_t s;
    static text_t text;
    static const size_t lengths[] = {1, 48, 64, 700, 65536};
    scene_start(&s);
    for (size_t i = 0; i < VC_ARRAY_LEN(lengths); i++) {
        int fd = dial(s.data_port);
        text.n = 0;
        put_noise(&text, lengths[i], 20 + i);
        say(fd, text.data, text.n);
        close(fd);
        /* A call on the control plane tells whether it lives. */
        if (vcache_health(s.client, NULL) == 0 && vt_proc_wait_exit(s.server, 200) == -1) {
            fetch_all(&s);
            continue;
        }
        vcache_disconnect(s.client);
        vt_proc_end(s.server);
        char *out = NULL;
        int rc = vt_proc_run("vericache-server",
                             (const char *[]){"verify", "--data-dir", vt_tmpdir_path(&s.dir, "data"), NULL}, NULL,
                             WAIT_MS, &out);
        cr_assert_eq(rc, 0, "%s", out);
        vc_free(out);
        start_server(&s);
        connect_client(&s, 0);
        fetch_all(&s);
    }
    vcache_disconnect(s.client);
    connect_client(&s, 1);
    fetch_all(&s); /* over the data plane again */
    scene_end(&s);
}
