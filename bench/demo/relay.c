/*
 * The relay's loop: accepts, hands events to connections, and wakes for the parcel that arrives next. Times are
 * nanoseconds of the monotonic clock; a timerfd gives them better than epoll's milliseconds.
 */
#include "relay.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "relay_int.h"
#include "vc/log.h"
#include "vc/mem.h"

#define EVENTS 64

void relay_opts_default(relay_opts_t *opts)
{
    *opts = (relay_opts_t){.listen = "127.0.0.1:0", .target = "", .buffer_bytes = 4u << 20, .max_connections = 4096};
}

/* "HOST:PORT" or "[V6]:PORT" to the first address it has. */
static vc_status_t resolve(const char *text, bool passive, struct sockaddr_storage *addr, socklen_t *len, vc_err_t *err)
{
    char host[256];
    const char *colon = strrchr(text, ':');
    const size_t n = colon != NULL ? (size_t)(colon - text) : 0;
    if (n == 0 || n >= sizeof(host) || colon[1] == '\0')
        return vc_err_set(err, VC_ERR_INVALID, "'%.200s' is not HOST:PORT", text);
    const bool brackets = text[0] == '[' && n > 2 && text[n - 1] == ']';
    memcpy(host, text + brackets, n - 2 * brackets);
    host[n - 2 * brackets] = '\0';
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0)};
    struct addrinfo *list;
    const int rc = getaddrinfo(host, colon + 1, &hints, &list);
    if (rc != 0)
        return vc_err_set(err, VC_ERR_INVALID, "address '%.200s': %s", text, gai_strerror(rc));
    memcpy(addr, list->ai_addr, list->ai_addrlen);
    *len = list->ai_addrlen;
    freeaddrinfo(list);
    return VC_OK;
}

static vc_status_t listen_on(relay_t *r, vc_err_t *err)
{
    struct sockaddr_storage addr;
    socklen_t len;
    vc_status_t status = resolve(r->opts.listen, true, &addr, &len, err);
    if (status != VC_OK)
        return status;
    const int one = 1;
    r->listen_fd = socket(addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (r->listen_fd < 0 || setsockopt(r->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(r->listen_fd, (struct sockaddr *)&addr, len) != 0 || listen(r->listen_fd, 512) != 0 ||
        getsockname(r->listen_fd, (struct sockaddr *)&addr, &len) != 0)
        return vc_err_set(err, VC_ERR_UNREACHABLE, "cannot listen on %.200s: %s", r->opts.listen, strerror(errno));
    r->port = ntohs(addr.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&addr)->sin6_port
                                               : ((struct sockaddr_in *)&addr)->sin_port);
    return VC_OK;
}

/* The descriptors of the loop itself are told from connections by the address of their field. */
static bool watch(relay_t *r, int *fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = fd};
    return *fd >= 0 && epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, *fd, &ev) == 0;
}

static vc_status_t open_all(relay_t *r, vc_err_t *err)
{
    vc_status_t status = resolve(r->opts.target, false, &r->target, &r->target_len, err);
    if (status == VC_OK)
        status = listen_on(r, err);
    if (status != VC_OK)
        return status;
    r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    r->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    r->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (r->epoll_fd < 0 || !watch(r, &r->listen_fd) || !watch(r, &r->wake_fd) || !watch(r, &r->timer_fd))
        return vc_err_set(err, VC_ERR_IO, "cannot set up the event loop: %s", strerror(errno));
    return VC_OK;
}

vc_status_t relay_create(const relay_opts_t *opts, relay_t **relay_p, vc_err_t *err)
{
    if (opts->buffer_bytes < 4096 || opts->max_connections == 0)
        return vc_err_set(err, VC_ERR_INVALID, "the buffer must be 4096 bytes at least, and one connection allowed");
    relay_t *r = vc_calloc(1, sizeof(*r));
    if (r == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for a relay");
    r->opts = *opts;
    r->epoll_fd = r->listen_fd = r->wake_fd = r->timer_fd = -1;
    for (int dir = 0; dir < 2; dir++)
        relay_link_init(&r->link[dir], opts->delay_us * 1000, opts->rate_bits_per_s);
    vc_status_t status = open_all(r, err);
    if (status != VC_OK)
        relay_destroy(r);
    else
        *relay_p = r;
    return status;
}

void relay_destroy(relay_t *r)
{
    if (r == NULL)
        return;
    relay_conn_free_all(r);
    for (int dir = 0; dir < 2; dir++)
        relay_link_fini(&r->link[dir]);
    const int fds[] = {r->epoll_fd, r->listen_fd, r->wake_fd, r->timer_fd};
    for (size_t i = 0; i < VC_ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    vc_free(r);
}

uint16_t relay_port(const relay_t *r) { return r->port; }
relay_stats_t relay_stats(const relay_t *r) { return r->stats; }

void relay_wake(relay_t *r)
{
    const uint64_t one = 1;
    const int saved = errno; /* signal handlers must leave it alone */
    if (write(r->wake_fd, &one, sizeof(one)) < 0) {
        /* the counter is full: a wake is pending already */
    }
    errno = saved;
}

static void watch_listener(relay_t *r, bool on)
{
    struct epoll_event ev = {.events = on ? EPOLLIN : 0, .data.ptr = &r->listen_fd};
    epoll_ctl(r->epoll_fd, EPOLL_CTL_MOD, r->listen_fd, &ev);
    r->accept_held = !on;
}

static void accept_all(relay_t *r)
{
    for (;;) {
        const int fd = accept4(r->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            relay_conn_open(r, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE) {
            vc_log_warn("relay", "out of descriptors connections=%u", r->n_conns);
            watch_listener(r, false); /* resumed when a connection closes */
        }
        if (errno != ECONNABORTED && errno != EINTR)
            return;
    }
}

static void drain(int fd)
{
    uint64_t count;
    if (read(fd, &count, sizeof(count)) < 0) {
        /* nothing there: another event of this round took it */
    }
}

/* Delivers what has arrived, resumes what may be read, and sets the timer for the next of both. */
static void turn(relay_t *r)
{
    uint64_t next = UINT64_MAX;
    for (int dir = 0; dir < 2; dir++) {
        relay_link_t *link = &r->link[dir];
        relay_parcel_t parcel;
        const uint64_t now = relay_now_ns();
        while (relay_link_pop(link, now, &parcel))
            relay_conn_deliver(r, &parcel, dir);
        next = VC_MIN(next, relay_link_next(link));
        if (!relay_conn_is_held(r, dir))
            continue;
        if (relay_link_open(link) <= now)
            relay_conn_resume(r, dir);
        else
            next = VC_MIN(next, relay_link_open(link));
    }
    struct itimerspec at = {0}; /* all zero disarms */
    if (next != UINT64_MAX) {
        at.it_value.tv_sec = (time_t)(next / 1000000000u);
        at.it_value.tv_nsec = (long)(next % 1000000000u);
    }
    timerfd_settime(r->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
    relay_conn_free_dead(r);
    if (r->accept_held && r->n_conns < r->opts.max_connections)
        watch_listener(r, true);
}

vc_status_t relay_run(relay_t *r, bool (*on_wake)(void *arg), void *arg, vc_err_t *err)
{
    struct epoll_event events[EVENTS];
    for (;;) {
        const int n = epoll_wait(r->epoll_fd, events, EVENTS, -1);
        if (n < 0 && errno != EINTR)
            return vc_err_set(err, VC_ERR_IO, "the event loop failed: %s", strerror(errno));
        for (int i = 0; i < n; i++) {
            void *ptr = events[i].data.ptr;
            if (ptr == &r->listen_fd) {
                accept_all(r);
            } else if (ptr == &r->timer_fd) {
                drain(r->timer_fd);
            } else if (ptr == &r->wake_fd) {
                drain(r->wake_fd);
                if (!on_wake(arg))
                    return VC_OK;
            } else {
                relay_conn_event(r, ptr, events[i].events);
            }
        }
        turn(r);
    }
}
