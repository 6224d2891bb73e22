/* Unix sockets under vc/ucx_meet.h. */
#include "vc/ucx_meet.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "vc/bytes.h"

#define MEET_VERSION 1u
#define MEET_HEAD 12u
#define MEET_BACKLOG 16

static const uint8_t magic[4] = {'V', 'C', 'S', 'M'};

/* Abstract: the name begins with a zero byte, is gone with its last descriptor, and is seen in no directory. */
static socklen_t fill_address(const char *name, struct sockaddr_un *sun)
{
    size_t len = strlen(name);
    *sun = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(sun->sun_path + 1, name, len);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
}

static int make_socket(void) { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

static bool same_user(int fd)
{
    struct ucred who = {.pid = 0};
    socklen_t len = sizeof(who);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && who.uid == geteuid() && who.pid > 0;
}

vc_status_t vc_meet_listen(char name[VC_MEET_NAME_MAX], int *fd_p, vc_err_t *err)
{
    uint64_t r[2];
    struct sockaddr_un sun;
    if (getrandom(r, sizeof(r), 0) != sizeof(r))
        return vc_err_set(err, VC_ERR_IO, "no random bytes for the name of the shared-memory socket");
    snprintf(name, VC_MEET_NAME_MAX, VC_MEET_PREFIX "vericache-%016llx%016llx", (unsigned long long)r[0],
             (unsigned long long)r[1]);
    socklen_t len = fill_address(name + strlen(VC_MEET_PREFIX), &sun);
    int fd = make_socket();
    if (fd >= 0 && bind(fd, (const struct sockaddr *)&sun, len) == 0 && listen(fd, MEET_BACKLOG) == 0) {
        *fd_p = fd;
        return VC_OK;
    }
    vc_status_t st = vc_status_from_errno(errno);
    vc_err_set(err, st, "no unix socket for shared-memory clients: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return st;
}

vc_status_t vc_meet_accept(int listen_fd, int *fd_p)
{
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return VC_ERR_AGAIN; /* also when descriptors ran out: the socket stays readable */
    if (!same_user(fd)) {
        close(fd);
        return VC_ERR_PERM;
    }
    *fd_p = fd;
    return VC_OK;
}

static vc_status_t dial(int fd, const char *name, vc_err_t *err)
{
    struct sockaddr_un sun;
    socklen_t len = fill_address(name, &sun);
    if (fd < 0)
        return vc_err_set(err, vc_status_from_errno(errno), "no unix socket: %s", strerror(errno));
    if (connect(fd, (const struct sockaddr *)&sun, len) != 0) {
        bool absent = errno == ECONNREFUSED || errno == ENOENT;
        return vc_err_set(err, absent ? VC_ERR_NOT_FOUND : VC_ERR_UNREACHABLE, "shared memory at %s: %s", name,
                          absent ? "nobody on this machine has that name" : strerror(errno));
    }
    if (!same_user(fd))
        return vc_err_set(err, VC_ERR_PERM, "shared memory at %s: the server runs as another user", name);
    return VC_OK;
}

vc_status_t vc_meet_dial(const char *name, int *fd_p, vc_err_t *err)
{
    size_t prefix = strlen(VC_MEET_PREFIX);
    if (strncmp(name, VC_MEET_PREFIX, prefix) != 0 || strlen(name) <= prefix || strlen(name) >= VC_MEET_NAME_MAX)
        return vc_err_set(err, VC_ERR_INVALID, "shared-memory address '%.64s' is not " VC_MEET_PREFIX "NAME", name);
    int fd = make_socket();
    vc_status_t st = dial(fd, name + prefix, err);
    if (st == VC_OK)
        *fd_p = fd;
    else if (fd >= 0)
        close(fd);
    return st;
}

vc_status_t vc_meet_send(int fd, const vc_meet_msg_t *msg)
{
    uint8_t buf[MEET_HEAD + VC_UCX_ADDRESS_MAX];
    vc_writer_t w = vc_writer(buf, sizeof(buf));
    vc_write_bytes(&w, magic, sizeof(magic));
    vc_write_u16(&w, MEET_VERSION);
    vc_write_u16(&w, (uint16_t)msg->address_bytes);
    vc_write_u32(&w, (uint32_t)msg->status);
    vc_write_bytes(&w, msg->address, msg->address_bytes);
    size_t len = (size_t)(w.p - buf);
    return send(fd, buf, len, MSG_NOSIGNAL) == (ssize_t)len ? VC_OK : VC_ERR_UNREACHABLE;
}

static vc_status_t decode(const uint8_t *buf, size_t len, vc_meet_msg_t *msg_p)
{
    vc_reader_t r = vc_reader(buf, len);
    const uint8_t *found = vc_read_bytes(&r, sizeof(magic));
    bool good = found != NULL && memcmp(found, magic, sizeof(magic)) == 0 && vc_read_u16(&r) == MEET_VERSION;
    size_t n = vc_read_u16(&r);
    vc_status_t status = (vc_status_t)(int32_t)vc_read_u32(&r);
    good = good && !r.failed && n <= VC_UCX_ADDRESS_MAX && n == vc_reader_left(&r) && status <= VC_OK &&
           status >= VC_ERR_INTERNAL && (n > 0) == (status == VC_OK);
    if (!good)
        return VC_ERR_PROTOCOL;
    msg_p->status = status;
    msg_p->address_bytes = n;
    memcpy(msg_p->address, buf + MEET_HEAD, n);
    return VC_OK;
}

vc_status_t vc_meet_recv(int fd, uint32_t timeout_ms, vc_meet_msg_t *msg_p)
{
    uint8_t buf[MEET_HEAD + VC_UCX_ADDRESS_MAX + 1]; /* one more, so that too long a message shows */
    struct pollfd pfd = {.fd = fd, .events = POLLIN};
    if (timeout_ms > 0 && poll(&pfd, 1, timeout_ms > 60000 ? 60000 : (int)timeout_ms) <= 0)
        return VC_ERR_AGAIN;
    ssize_t n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return VC_ERR_AGAIN;
    if (n <= 0)
        return VC_ERR_UNREACHABLE;
    return decode(buf, (size_t)n, msg_p);
}

bool vc_meet_is_over(int fd)
{
    uint8_t byte;
    return recv(fd, &byte, sizeof(byte), MSG_DONTWAIT | MSG_PEEK) >= 0 || (errno != EAGAIN && errno != EINTR);
}
