/*
 * Peers over shared memory. They come to a unix socket (vc/ucx_meet.h), where the kernel shows that they are processes
 * of our own user on this machine, exchange worker addresses, and keep the socket: its end is the end of the peer,
 * since UCX notices nothing there. Each has a UCX worker of its own, and closing that is the only way to get back what
 * was sent to a peer that stopped. From HELLO on such a peer is like any other.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "dataplane_int.h"
#include "vc/log.h"
#include "vc/mem.h"

#define SHM_EVENTS 16

static bool watch(cs_dataplane_t *dp, int fd, void *ptr)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = ptr};
    return epoll_ctl(dp->meet_epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0;
}

vc_status_t dp_shm_open(cs_dataplane_t *dp, vc_err_t *err)
{
    vc_status_t st = vc_ucx_shm_open(VC_MIN(dp->opts.rndv_threshold, DP_SHM_RNDV_BYTES), &dp->shm, err);
    if (st == VC_OK)
        st = vc_meet_listen(dp->shm_address, &dp->meet_fd, err);
    if (st == VC_OK)
        dp->meet_epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN};
    if (st == VC_OK && (dp->meet_epoll_fd < 0 || !watch(dp, dp->meet_fd, NULL) ||
                        epoll_ctl(dp->epoll_fd, EPOLL_CTL_ADD, dp->meet_epoll_fd, &ev) != 0))
        st = vc_err_set(err, vc_status_from_errno(errno), "data plane: no event descriptors: %s", strerror(errno));
    if (st != VC_OK)
        dp_shm_close(dp);
    return st;
}

void dp_shm_stop(cs_dataplane_t *dp)
{
    if (dp->meet_fd >= 0)
        close(dp->meet_fd);
    dp->meet_fd = -1;
}

void dp_shm_close(cs_dataplane_t *dp)
{
    dp_shm_stop(dp);
    if (dp->meet_epoll_fd >= 0)
        close(dp->meet_epoll_fd);
    dp->meet_epoll_fd = -1;
    dp->shm_address[0] = '\0';
    vc_ucx_shm_close(dp->shm);
    dp->shm = NULL;
}

/* ---- peers ---- */

static void accept_all(cs_dataplane_t *dp)
{
    int fd;
    vc_status_t st;
    while (dp->meet_fd >= 0 && (st = vc_meet_accept(dp->meet_fd, &fd)) != VC_ERR_AGAIN) {
        dp_peer_t *peer = st == VC_OK && !dp->stopping ? dp_peer_create(dp) : NULL;
        if (peer == NULL || !watch(dp, fd, peer)) {
            DP_COUNT(dp, peers_refused, 1);
            if (peer != NULL)
                peer->doomed = peer->ep_closed = true;
            if (st == VC_OK)
                close(fd);
            continue;
        }
        peer->meet_fd = fd;
    }
}

static uint32_t count_shm(const cs_dataplane_t *dp)
{
    uint32_t n = 0;
    for (const dp_peer_t *p = dp->peers; p != NULL; p = p->next)
        n += p->own_ucx != NULL;
    return n;
}

static vc_status_t make_worker(dp_peer_t *peer, const vc_meet_msg_t *msg, vc_meet_msg_t *reply, vc_err_t *err)
{
    cs_dataplane_t *dp = peer->dp;
    if (count_shm(dp) >= dp->opts.max_shm_peers)
        return vc_err_set(err, VC_ERR_BUSY, "%u peers use shared memory already", dp->opts.max_shm_peers);
    struct epoll_event ev = {.events = EPOLLIN};
    vc_status_t st = vc_ucx_shm_worker(dp->shm, &peer->own_ucx, err);
    if (st == VC_OK && epoll_ctl(dp->epoll_fd, EPOLL_CTL_ADD, vc_ucx_fd(peer->own_ucx), &ev) != 0)
        st = vc_err_set(err, vc_status_from_errno(errno), "no event descriptor: %s", strerror(errno));
    if (st == VC_OK)
        st = vc_ucx_shm_address(peer->own_ucx, reply->address, &reply->address_bytes, err);
    if (st == VC_OK)
        st = vc_ucx_shm_attach(peer->own_ucx, msg->address, msg->address_bytes, peer, &peer->ep, err);
    return st;
}

/* The peer's message: a worker of its own, and our address for it. */
static void introduce(dp_peer_t *peer)
{
    cs_dataplane_t *dp = peer->dp;
    vc_meet_msg_t msg, reply = {.status = VC_OK};
    vc_err_t err = {0};
    vc_status_t st = vc_meet_recv(peer->meet_fd, 0, &msg);
    if (st == VC_ERR_AGAIN)
        return;
    if (st == VC_OK && msg.status != VC_OK)
        st = VC_ERR_PROTOCOL; /* only a server has something to refuse */
    if (st == VC_OK)
        st = make_worker(peer, &msg, &reply, &err);
    else if (st == VC_ERR_PROTOCOL)
        DP_COUNT(dp, bad_frames, 1);
    peer->introduced = true;
    if (st == VC_OK) {
        vc_ucx_set_handler(peer->own_ucx, dp_peer_message, dp);
        peer->ucx = peer->own_ucx;
        DP_COUNT(dp, shm_peers, 1);
        DP_COUNT(dp, shm_peers_total, 1);
        if (vc_meet_send(peer->meet_fd, &reply) != VC_OK)
            peer->doomed = true;
        return;
    }
    if (err.msg[0] != '\0')
        vc_log_info("dataplane", "no shared memory for peer id=%llu reason=\"%s\"", (unsigned long long)peer->id,
                    err.msg);
    DP_COUNT(dp, shm_refused, st != VC_ERR_UNREACHABLE);
    reply = (vc_meet_msg_t){.status = st};
    (void)vc_meet_send(peer->meet_fd, &reply);
    peer->doomed = true;
}

void dp_shm_poll(cs_dataplane_t *dp)
{
    struct epoll_event events[SHM_EVENTS];
    if (dp->meet_epoll_fd < 0)
        return;
    int n = epoll_wait(dp->meet_epoll_fd, events, SHM_EVENTS, 0);
    for (int i = 0; i < n; i++) {
        dp_peer_t *peer = events[i].data.ptr; /* peers are freed later in this turn */
        dp->dirty = true;
        if (peer == NULL)
            accept_all(dp);
        else if (peer->doomed)
            continue;
        else if (!peer->introduced)
            introduce(peer);
        else
            dp_peer_lost(peer);
    }
}

unsigned dp_shm_progress(cs_dataplane_t *dp)
{
    unsigned n = 0;
    for (dp_peer_t *peer = dp->peers; dp->shm != NULL && peer != NULL; peer = peer->next)
        if (peer->own_ucx != NULL)
            n += vc_ucx_progress(peer->own_ucx);
    return n;
}

bool dp_shm_arm(cs_dataplane_t *dp)
{
    dp->look_at_meet = true; /* whatever wakes the worker may be a socket */
    for (dp_peer_t *peer = dp->peers; dp->shm != NULL && peer != NULL; peer = peer->next)
        if (peer->own_ucx != NULL && !vc_ucx_arm(peer->own_ucx))
            return false;
    return true;
}

/* Ends what runs: its operations are on dp->finished when this returns. */
void dp_shm_close_peer(dp_peer_t *peer)
{
    vc_ucx_close(peer->own_ucx);
    if (peer->ucx != NULL) /* else its introduction failed, and it was not counted */
        DP_COUNT(peer->dp, shm_peers, -1);
    peer->ucx = peer->own_ucx = NULL;
    peer->ep = NULL;
    peer->ep_closed = true;
    if (peer->meet_fd >= 0)
        close(peer->meet_fd);
    peer->meet_fd = -1;
}
