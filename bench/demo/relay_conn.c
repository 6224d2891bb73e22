/*
 * One relayed connection. Bytes move: read from one side into its pipe, told to the link, and when the link says that
 * they have arrived, written to the other side. An end of stream travels the same way, so half-closed connections work.
 * A dead connection stays allocated until its last parcel has left the link.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "relay_int.h"
#include "vc/log.h"
#include "vc/mem.h"

#define READ_MAX (64u << 10)

uint64_t relay_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void list_remove(relay_conn_t **list, relay_conn_t *c)
{
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        *list = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    c->prev = c->next = NULL;
}
static void list_add(relay_conn_t **list, relay_conn_t *c)
{
    c->next = *list;
    if (c->next != NULL)
        c->next->prev = c;
    *list = c;
}

static void free_conn(relay_conn_t *c)
{
    vc_free(c->pipe[0].buf);
    vc_free(c->pipe[1].buf);
    vc_free(c);
}

/* reset: the peers see a broken connection rather than an orderly end. */
static void kill_conn(relay_t *r, relay_conn_t *c, bool reset)
{
    if (c->dead)
        return;
    for (int i = 0; i < 2; i++) {
        const struct linger now = {1, 0};
        if (c->side[i].fd < 0)
            continue;
        if (reset)
            setsockopt(c->side[i].fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        close(c->side[i].fd); /* leaves the epoll set by itself */
        c->side[i].fd = -1;
        c->side[i].events = 0;
    }
    c->dead = true;
    list_remove(&r->conns, c);
    list_add(&r->dead, c); /* events of this round may still name it */
    r->n_conns--;
}

void relay_conn_free_dead(relay_t *r)
{
    for (relay_conn_t *c = r->dead, *next; c != NULL; c = next) {
        next = c->next;
        if (c->under_way != 0)
            continue;
        list_remove(&r->dead, c);
        free_conn(c);
    }
}

void relay_conn_free_all(relay_t *r)
{
    while (r->conns != NULL)
        kill_conn(r, r->conns, true);
    for (relay_conn_t *c = r->dead, *next; c != NULL; c = next) {
        next = c->next;
        free_conn(c);
    }
    r->dead = NULL;
}

/* Tells epoll what this side waits for now; a side that waits for nothing is not registered, so that a hang-up that is
 * known already wakes nobody. */
static void update(relay_t *r, relay_side_t *s)
{
    const relay_pipe_t *in = &s->conn->pipe[s->index], *out = &s->conn->pipe[1 - s->index];
    struct epoll_event ev = {.data.ptr = s};
    if (s->conn->dead)
        return;
    if (s->connecting)
        ev.events = EPOLLOUT;
    else if (out->blocked)
        ev.events |= EPOLLOUT;
    if (!s->connecting && !in->source_ended && in->len < in->cap && !s->held)
        ev.events |= EPOLLIN;
    if (ev.events == s->events)
        return;
    const int op = ev.events == 0 ? EPOLL_CTL_DEL : s->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (epoll_ctl(r->epoll_fd, op, s->fd, &ev) != 0) {
        vc_log_warn("relay", "epoll refuses a connection error=%s", strerror(errno));
        kill_conn(r, s->conn, true);
        return;
    }
    s->events = ev.events;
}

static bool set_up_socket(int fd)
{
    const int one = 1;
    return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0;
}

static int connect_target(relay_t *r, bool *connecting_p)
{
    const int fd = socket(r->target.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    *connecting_p = false;
    if (set_up_socket(fd) && connect(fd, (const struct sockaddr *)&r->target, r->target_len) == 0)
        return fd;
    *connecting_p = errno == EINPROGRESS;
    if (*connecting_p)
        return fd;
    close(fd);
    return -1;
}

void relay_conn_open(relay_t *r, int client_fd)
{
    relay_conn_t *c = r->n_conns < r->opts.max_connections ? vc_calloc(1, sizeof(*c)) : NULL;
    if (c == NULL) {
        r->stats.refused++;
        close(client_fd);
        return;
    }
    r->n_conns++;
    r->stats.connections++;
    list_add(&r->conns, c);
    for (int i = 0; i < 2; i++) {
        c->side[i] = (relay_side_t){.conn = c, .index = i, .fd = i == 0 ? client_fd : -1};
        c->pipe[i].cap = r->opts.buffer_bytes;
        c->pipe[i].buf = vc_alloc(r->opts.buffer_bytes); /* pages are touched only as far as they are needed */
    }
    if (c->pipe[0].buf == NULL || c->pipe[1].buf == NULL || !set_up_socket(client_fd)) {
        r->stats.refused++;
        kill_conn(r, c, true);
        return;
    }
    c->side[1].fd = connect_target(r, &c->side[1].connecting);
    if (c->side[1].fd < 0) {
        r->stats.failed++;
        kill_conn(r, c, true);
        return;
    }
    update(r, &c->side[0]);
    update(r, &c->side[1]);
}

/* Ends the stream towards the side that pipe dir leads to, and the connection with the second of them. */
static void close_pipe(relay_t *r, relay_conn_t *c, int dir)
{
    c->pipe[dir].closed = true;
    if (c->pipe[1 - dir].closed)
        kill_conn(r, c, false);
    else
        shutdown(c->side[1 - dir].fd, SHUT_WR);
}

/* Writes what is due in pipe dir, as far as the socket takes it. */
static void write_out(relay_t *r, relay_conn_t *c, int dir)
{
    relay_pipe_t *p = &c->pipe[dir];
    relay_side_t *to = &c->side[1 - dir];
    uint64_t *count = dir == 0 ? &r->stats.bytes_to_target : &r->stats.bytes_to_client;
    if (c->dead || to->connecting || p->closed)
        return;
    p->blocked = false;
    while (p->ready != 0) {
        const size_t run = VC_MIN(p->ready, p->cap - p->head);
        const ssize_t n = send(to->fd, p->buf + p->head, run, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN) {
            kill_conn(r, c, true);
            return;
        }
        if (n < 0) {
            p->blocked = true;
            break;
        }
        p->head = (p->head + (size_t)n) % p->cap;
        p->len -= (size_t)n;
        p->ready -= (size_t)n;
        *count += (uint64_t)n;
    }
    if (p->ready == 0 && p->end_due)
        close_pipe(r, c, dir);
    update(r, &c->side[0]);
    update(r, &c->side[1]);
}

void relay_conn_deliver(relay_t *r, const relay_parcel_t *parcel, int dir)
{
    relay_conn_t *c = parcel->owner;
    c->under_way -= parcel->bytes + (parcel->end ? 1u : 0u);
    if (c->dead)
        return;
    c->pipe[dir].ready += parcel->bytes;
    c->pipe[dir].end_due |= parcel->end;
    write_out(r, c, dir);
}

static void read_in(relay_t *r, relay_side_t *s)
{
    relay_conn_t *c = s->conn;
    relay_pipe_t *p = &c->pipe[s->index];
    relay_link_t *link = &r->link[s->index];
    const uint64_t now = relay_now_ns();
    if (p->source_ended || p->len == p->cap)
        return;
    if (relay_link_open(link) > now) {
        s->held = true;
        return;
    }
    const size_t tail = (p->head + p->len) % p->cap;
    const size_t run = VC_MIN(VC_MIN(p->cap - p->len, p->cap - tail), (size_t)READ_MAX);
    const ssize_t n = recv(s->fd, p->buf + tail, run, 0);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            kill_conn(r, c, true);
        return;
    }
    if (!relay_link_push(link, c, (uint32_t)n, n == 0, now)) {
        kill_conn(r, c, true);
        return;
    }
    c->under_way += n == 0 ? 1u : (uint64_t)n;
    p->len += (size_t)n;
    p->source_ended = n == 0;
}

/* False: the connection is gone. */
static bool finish_connect(relay_t *r, relay_side_t *s)
{
    int error = 0;
    socklen_t len = sizeof(error);
    if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0 || error != 0) {
        r->stats.failed++;
        kill_conn(r, s->conn, true);
        return false;
    }
    s->connecting = false;
    return true;
}

void relay_conn_event(relay_t *r, relay_side_t *s, uint32_t events)
{
    relay_conn_t *c = s->conn;
    if (c->dead)
        return;
    if (s->connecting && !finish_connect(r, s))
        return;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) /* an error shows in recv */
        read_in(r, s);
    write_out(r, c, 1 - s->index);
    if (!c->dead)
        update(r, s);
}

void relay_conn_resume(relay_t *r, int dir)
{
    for (relay_conn_t *c = r->conns, *next; c != NULL; c = next) {
        next = c->next;
        if (c->side[dir].held) {
            c->side[dir].held = false;
            update(r, &c->side[dir]);
        }
    }
}

bool relay_conn_is_held(const relay_t *r, int dir)
{
    for (const relay_conn_t *c = r->conns; c != NULL; c = c->next)
        if (c->side[dir].held)
            return true;
    return false;
}
