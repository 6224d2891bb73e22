/* Proves the operators' HTTP port of vericache-server: its pages, its refusals, and that it bears rude clients. */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/proc.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"
#include "vc/status.h"
#include "vericache/vericache.h"

#define WAIT_MS 60000

typedef struct {
    vt_tmpdir_t dir;
    vt_proc_t *server;
    char address[128], ops[128];
} world_t;

static void take(const char *line, const char *name, char *to, size_t cap)
{
    const char *at = strstr(line, name);
    cr_assert_not_null(at, "%s", line);
    at += strlen(name);
    snprintf(to, cap, "%.*s", (int)strcspn(at, " "), at);
}

static void begin(world_t *w)
{
    char line[500] = "";
    vt_tmpdir_create(&w->dir);
    const char *args[] = {"--data-dir",         vt_tmpdir_path(&w->dir, "data"),
                          "--listen",           "127.0.0.1:0",
                          "--capacity",         "256MiB",
                          "--data-listen=none", NULL};
    w->server = vt_proc_start("vericache-server", args, NULL);
    cr_assert(vt_proc_wait_line(w->server, "ready listen=", WAIT_MS, line, sizeof(line)), "%s",
              vt_proc_output(w->server));
    take(line, " listen=", w->address, sizeof(w->address));
    take(line, " ops=", w->ops, sizeof(w->ops));
}

static void end(world_t *w)
{
    vt_proc_signal(w->server, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(w->server, WAIT_MS), 0, "%s", vt_proc_output(w->server));
    vt_proc_end(w->server);
    vt_tmpdir_remove(&w->dir);
}

static int dial(const world_t *w)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    to.sin_port = (in_port_t)__builtin_bswap16((uint16_t)atoi(strrchr(w->ops, ':') + 1));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* Sends the request and returns the status; the whole answer is the caller's. */
static int ask(const world_t *w, const char *request, char **answer_p)
{
    size_t cap = 1 << 18, n = 0;
    char *answer = vc_calloc(1, cap);
    int fd = dial(w), status = 0;
    cr_assert_eq(write(fd, request, strlen(request)), (ssize_t)strlen(request));
    for (ssize_t got; n < cap - 1 && (got = recv(fd, answer + n, cap - 1 - n, 0)) > 0;)
        n += (size_t)got;
    close(fd);
    cr_assert_eq(sscanf(answer, "HTTP/1.%*d %d", &status), 1, "%s", answer);
    *answer_p = answer;
    return status;
}

static void page(const world_t *w, const char *path, int status, const char *text)
{
    char request[200], *answer;
    snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
    int got = ask(w, request, &answer);
    cr_assert_eq(got, status, "%s: %s", path, answer);
    cr_assert_not_null(strstr(answer, text), "%s: %s", path, answer);
    vc_free(answer);
}

static vcache_client_t *client(const world_t *w)
{
    vcache_options_t o;
    vcache_client_t *c = NULL;
    vcache_options_default(&o);
    o.server = w->address;
    o.use_data_plane = 0;
    cr_assert_eq(vcache_connect(&o, &c, NULL), VC_OK);
    return c;
}

Test(opshttp, pages_tell_of_life_readiness_and_every_statistic)
{
    static world_t w;
    static vcache_stat_t stats[512];
    uint32_t n = 0;
    begin(&w);
    page(&w, "/healthz", 200, "ok\n");
    page(&w, "/readyz", 200, "ready\n");
    vcache_client_t *c = client(&w);
    cr_assert_eq(vcache_stats(c, stats, 512, &n, NULL), VC_OK);
    char *answer;
    cr_assert_eq(ask(&w, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", &answer), 200);
    cr_assert_not_null(strstr(answer, "text/plain; version=0.0.4"));
    for (uint32_t i = 0; i < n; i++) {
        char line[200];
        snprintf(line, sizeof(line), "\nvericache_%s ", stats[i].name);
        cr_assert_not_null(strstr(answer, line), "no%s", line);
    }
    cr_assert_not_null(strstr(answer, "\nvericache_capacity_bytes 268435456\n"), "%s", answer);
    vc_free(answer);
    cr_assert_eq(vcache_drain(c, VCACHE_DRAIN_START, NULL, NULL), VC_OK);
    page(&w, "/readyz", 503, "draining\n");
    page(&w, "/healthz", 200, "ok\n"); /* alive all the same */
    cr_assert_eq(vcache_drain(c, VCACHE_DRAIN_RESUME, NULL, NULL), VC_OK);
    page(&w, "/readyz", 200, "ready\n");
    vcache_disconnect(c);
    end(&w);
}

Test(opshttp, other_paths_methods_and_garbage_are_refused)
{
    static world_t w;
    static char huge[40000];
    char *answer;
    begin(&w);
    page(&w, "/", 404, "/metrics");
    page(&w, "/metrics/../etc/passwd", 404, "/metrics");
    cr_assert_eq(
        ask(&w, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc", &answer),
        405);
    cr_assert_not_null(strstr(answer, "Allow: GET, HEAD"));
    vc_free(answer);
    cr_assert_eq(ask(&w, "HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", &answer), 200);
    vc_free(answer);
    int idle = dial(&w), fd = dial(&w);
    memset(huge, 'a', sizeof(huge) - 1);
    (void)!send(fd, huge, sizeof(huge), MSG_NOSIGNAL); /* no line ends it */
    while (recv(fd, huge, sizeof(huge), 0) > 0)
        ;
    close(fd);
    page(&w, "/healthz", 200, "ok\n");
    close(idle);
    end(&w);
}

Test(opshttp, address_is_checked_and_may_be_none)
{
    vt_tmpdir_t dir;
    char *out = NULL, line[500] = "";
    vt_tmpdir_create(&dir);
    const char *data = vt_tmpdir_path(&dir, "data");
    const char *open_args[] = {"--data-dir", data, "--listen", "127.0.0.1:0", "--ops-listen", "0.0.0.0:0", NULL};
    cr_assert_eq(vt_proc_run("vericache-server", open_args, NULL, WAIT_MS, &out), 64);
    cr_assert_not_null(strstr(out, "--ops-listen=0.0.0.0:0 is not a loopback address"), "%s", out);
    vc_free(out);
    const char *bad[] = {"--data-dir", data, "--listen", "127.0.0.1:0", "--ops-listen", "9090", NULL};
    cr_assert_eq(vt_proc_run("vericache-server", bad, NULL, WAIT_MS, &out), 64);
    cr_assert_not_null(strstr(out, "--ops-listen"), "%s", out);
    vc_free(out);
    const char *none[] = {"--data-dir", data,     "--listen",           "127.0.0.1:0",
                          "--capacity", "256MiB", "--data-listen=none", "--ops-listen=none",
                          NULL};
    vt_proc_t *p = vt_proc_start("vericache-server", none, NULL);
    cr_assert(vt_proc_wait_line(p, "ready listen=", WAIT_MS, line, sizeof(line)), "%s", vt_proc_output(p));
    cr_assert_not_null(strstr(line, " ops=none "), "%s", line);
    vt_proc_end(p);
    vt_tmpdir_remove(&dir);
}
