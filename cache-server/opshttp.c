/* Three pages on libmicrohttpd; its only user. */
#include "opshttp.h"

#include <errno.h>
#include <math.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vc/mem.h"

#define CONNECTIONS 32u
#define TIMEOUT_S 10u
#define MEMORY_BYTES ((size_t)16 << 10) /* of one connection: its request with all headers */
#define LINE_BYTES (CS_STAT_NAME_MAX + 128)

struct cs_opshttp {
    cs_opshttp_opts_t o;
    struct MHD_Daemon *daemon;
    int port;
};

/* ---- pages ---- */

static enum MHD_Result answer(struct MHD_Connection *c, unsigned code, const char *type, char *text, size_t len,
                              enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(len, text, mode);
    if (r == NULL) {
        if (mode == MHD_RESPMEM_MUST_FREE)
            vc_free(text);
        return MHD_NO;
    }
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    enum MHD_Result rc = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return rc;
}

static enum MHD_Result say(struct MHD_Connection *c, unsigned code, const char *text)
{
    char line[200];
    int n = snprintf(line, sizeof(line), "%s\n", text);
    return answer(c, code, "text/plain; charset=utf-8", line, VC_MIN((size_t)n, sizeof(line) - 1),
                  MHD_RESPMEM_MUST_COPY);
}

/* Statistics have names that Prometheus takes as they are; counters and gauges are not told apart. */
static size_t metric(char *at, size_t cap, const cs_stat_t *s)
{
    bool whole = s->value == floor(s->value) && fabs(s->value) < 9e15;
    int n = snprintf(at, cap, "# TYPE vericache_%s untyped\nvericache_%s %.*f\n", s->name, s->name, whole ? 0 : 9,
                     s->value);
    return n > 0 && (size_t)n < cap ? (size_t)n : 0;
}

static enum MHD_Result metrics(cs_opshttp_t *ops, struct MHD_Connection *c)
{
    cs_stat_t *stats = vc_calloc(CS_STATS_MAX, sizeof(*stats));
    size_t cap = (size_t)CS_STATS_MAX * 2 * LINE_BYTES, len = 0;
    char *text = vc_alloc(cap); /* vc_free is free, which libmicrohttpd calls */
    if (stats == NULL || text == NULL) {
        vc_free(stats);
        vc_free(text);
        return say(c, MHD_HTTP_SERVICE_UNAVAILABLE, "out of memory");
    }
    uint32_t n = ops->o.stats(ops->o.arg, stats, CS_STATS_MAX);
    for (uint32_t i = 0; i < n; i++)
        len += metric(text + len, cap - len, &stats[i]);
    vc_free(stats);
    return answer(c, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", text, len, MHD_RESPMEM_MUST_FREE);
}

static enum MHD_Result handle(void *arg, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_bytes, void **state)
{
    cs_opshttp_t *ops = arg;
    (void)version, (void)upload, (void)state;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
        *upload_bytes = 0;
        return say(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD");
    }
    if (strcmp(url, "/healthz") == 0)
        return say(c, MHD_HTTP_OK, "ok");
    if (strcmp(url, "/readyz") == 0) {
        const char *why = ops->o.why_not_ready(ops->o.arg);
        return say(c, why == NULL ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, why == NULL ? "ready" : why);
    }
    if (strcmp(url, "/metrics") == 0)
        return metrics(ops, c);
    return say(c, MHD_HTTP_NOT_FOUND, "there are /healthz, /readyz and /metrics");
}

/* ---- start and stop ---- */

/* A socket of our own, so that a failure has its reason and port 0 an answer. */
static vc_status_t bind_socket(const char *address, int *fd_p, vc_err_t *err)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    size_t n = (size_t)(colon - address);
    bool bracketed = n >= 2 && address[0] == '[' && address[n - 1] == ']';
    snprintf(host, sizeof(host), "%.*s", (int)(bracketed ? n - 2 : n), address + (bracketed ? 1 : 0));
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *info = NULL;
    int rc = getaddrinfo(host, colon + 1, &hints, &info), on = 1;
    if (rc != 0)
        return vc_err_set(err, VC_ERR_INVALID, "cannot listen on %s: %s", address, gai_strerror(rc));
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(fd, info->ai_addr, info->ai_addrlen) != 0 || listen(fd, (int)CONNECTIONS) != 0) {
        vc_err_set(err, VC_ERR_UNREACHABLE, "cannot listen on %s: %s", address,
                   errno == EADDRINUSE ? "the port is in use" : strerror(errno));
        if (fd >= 0)
            close(fd);
        freeaddrinfo(info);
        return VC_ERR_UNREACHABLE;
    }
    freeaddrinfo(info);
    *fd_p = fd;
    return VC_OK;
}

static int port_of(int fd)
{
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof(at);
    char port[16] = "0";
    if (getsockname(fd, (struct sockaddr *)&at, &len) == 0)
        getnameinfo((struct sockaddr *)&at, len, NULL, 0, port, sizeof(port), NI_NUMERICSERV);
    int n = 0;
    for (const char *p = port; *p >= '0' && *p <= '9'; p++)
        n = 10 * n + (*p - '0');
    return n;
}

/* libmicrohttpd's own remarks are about single connections; they are nobody's business. */
static void no_log(void *arg, const char *fmt, va_list args) { (void)arg, (void)fmt, (void)args; }

vc_status_t cs_opshttp_start(const cs_opshttp_opts_t *opts, cs_opshttp_t **ops_p, vc_err_t *err)
{
    int fd = -1;
    vc_status_t st = bind_socket(opts->listen, &fd, err);
    if (st != VC_OK)
        return st;
    cs_opshttp_t *ops = vc_calloc(1, sizeof(*ops));
    if (ops == NULL) {
        close(fd);
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    }
    ops->o = *opts;
    ops->port = port_of(fd);
    ops->daemon =
        MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO | MHD_USE_ERROR_LOG, 0, NULL, NULL, handle, ops,
                         MHD_OPTION_EXTERNAL_LOGGER, no_log, NULL, MHD_OPTION_LISTEN_SOCKET, (MHD_socket)fd,
                         MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, TIMEOUT_S,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, MEMORY_BYTES, MHD_OPTION_END);
    if (ops->daemon == NULL) {
        close(fd);
        vc_free(ops);
        return vc_err_set(err, VC_ERR_INTERNAL, "cannot start the ops port on %s", opts->listen);
    }
    *ops_p = ops;
    return VC_OK;
}

int cs_opshttp_port(const cs_opshttp_t *ops) { return ops->port; }

void cs_opshttp_stop(cs_opshttp_t *ops)
{
    if (ops == NULL)
        return;
    MHD_stop_daemon(ops->daemon);
    vc_free(ops);
}
