/*
 * The data plane against peers that fall silent or die in the middle of a transfer, and bytes that are not UCX at all.
 * Each is closed, an honest client beside it is served, and every buffer and pin comes back.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dataplane_raw.h"

/* ---- peers that stop ---- */

/* The peer reads nothing that comes; the test's clock is stepped past the timeout. */
static void check_stalled(bool by_credit)
{
    world_t w;
    raw_t r;
    vc_fake_clock_t clock;
    vc_fake_clock_init(&clock, 1000000);
    world_open(&w, &world_real_shape, 16);
    w.opts.clock = &clock.clock;
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w);
    raw_connect(&r, cs_dataplane_address(w.dp));
    raw_hello(&r);
    r.hold = true;
    vc_frame_t f = fetch_frame(&lease, 16);
    f.credits = by_credit ? 1 : 8;
    raw_send_frame(&r, &f);
    if (by_credit) { /* takes one record and gives no credit for more */
        r.hold = false;
        raw_until(&r, &r.n_by_type[VC_FRAME_FETCH_DATA], 1);
        WORLD_WAIT_EXACTLY(&w, ops_in_flight, 0);
    } else {
        raw_until(&r, &r.n_by_type[VC_FRAME_FETCH_DATA], 8);
        cr_assert(world_stats(&w).ops_in_flight == 8 && world_stats(&w).pins_held == 8);
    }
    cr_assert(world_stats(&w).peers_stalled == 0);
    vc_fake_clock_advance(&clock, (uint64_t)w.opts.peer_timeout_ms * 1000 + 1);
    WORLD_WAIT_EXACTLY(&w, peers_stalled, 1);
    WORLD_WAIT_EXACTLY(&w, peers_open, 0);
    world_assert_idle(&w);
    raw_close(&r);
    abuse_close(&w, &lease);
}

Test(dataplane_lost, a_peer_that_reads_nothing_is_closed_and_its_window_returns) { check_stalled(false); }
/* They get less and less of the buffers, so that somebody who reads is served while they are still open. */
Test(dataplane_lost, peers_that_read_nothing_leave_room_for_one_that_does)
{
    world_t w;
    raw_t greedy[3];
    catcher_t c;
    vc_err_t err = {0};
    vc_fake_clock_t clock; /* stands: nobody is closed */
    vc_fake_clock_init(&clock, 1000000);
    world_open(&w, &world_real_shape, 16);
    w.opts.clock = &clock.clock;
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w);
    for (size_t i = 0; i < VC_ARRAY_LEN(greedy); i++) {
        raw_connect(&greedy[i], cs_dataplane_address(w.dp));
        raw_hello(&greedy[i]);
        greedy[i].hold = true;
        vc_frame_t f = fetch_frame(&lease, 16);
        f.credits = 16;
        raw_send_frame(&greedy[i], &f);
        raw_until(&greedy[i], &greedy[i].n_by_type[VC_FRAME_FETCH_DATA], i == 0 ? 8 : 1);
    }
    vc_data_t *data = world_connect(&w);
    catcher_init(&c, &w);
    cr_assert(vc_data_fetch(data, &lease, 0, 0, 16, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cr_assert(c.n_good == 16 && world_stats(&w).peers_stalled == 0);
    cr_assert(world_stats(&w).ops_in_flight >= 10, "the greedy ones still have theirs");
    vc_data_close(data);
    vc_free(c.want);
    for (size_t i = 0; i < VC_ARRAY_LEN(greedy); i++)
        raw_close(&greedy[i]);
    WORLD_WAIT_EXACTLY(&w, peers_open, 0);
    abuse_close(&w, &lease);
}

Test(dataplane_lost, a_peer_that_gives_no_credit_is_closed) { check_stalled(true); }

/* Others hold every buffer: the fetch waits, and its peer is not blamed for the silence. */
Test(dataplane_lost, a_peer_whose_fetch_waits_for_a_buffer_is_not_taken_for_stalled)
{
    world_t w;
    raw_t r;
    vc_fake_clock_t clock;
    cs_buf_t *held[12];
    vc_fake_clock_init(&clock, 1000000);
    world_open(&w, &world_small_shape, 16);
    w.opts.clock = &clock.clock;
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w);
    for (size_t i = 0; i < VC_ARRAY_LEN(held); i++)
        cr_assert_not_null(held[i] = cs_bufpool_get(w.pool));
    raw_connect(&r, cs_dataplane_address(w.dp));
    raw_hello(&r);
    vc_frame_t f = fetch_frame(&lease, 4);
    f.credits = 4;
    raw_send_frame(&r, &f);
    WORLD_WAIT_EXACTLY(&w, fetches, 1);
    vc_fake_clock_advance(&clock, (uint64_t)w.opts.peer_timeout_ms * 1000 + 1);
    /* One that never says hello shows when the timeouts have been looked at: it comes later, and is closed. */
    raw_t other;
    raw_connect(&other, cs_dataplane_address(w.dp));
    uint64_t limit = vc_clock_now_us(vc_clock_system()) + WORLD_LIMIT_US;
    while (world_stats(&w).peers_total < 2 && vc_clock_now_us(vc_clock_system()) < limit)
        vc_ucx_progress(other.ucx);
    vc_fake_clock_advance(&clock, (uint64_t)w.opts.peer_timeout_ms * 1000 + 1);
    WORLD_WAIT_EXACTLY(&w, peers_stalled, 1);
    raw_until(&other, &other.n_lost, 1);
    cr_assert_eq(r.n_lost, 0);
    for (size_t i = 0; i < VC_ARRAY_LEN(held); i++)
        cs_bufpool_put(w.pool, held[i]);
    raw_until(&r, &r.n_by_type[VC_FRAME_FETCH_DATA], 4);
    raw_close(&other);
    raw_close(&r);
    abuse_close(&w, &lease);
}

Test(dataplane_lost, a_peer_that_never_says_hello_is_closed)
{
    world_t w;
    raw_t r;
    vc_fake_clock_t clock;
    vc_fake_clock_init(&clock, 1000000);
    world_open(&w, &world_small_shape, 16);
    w.opts.clock = &clock.clock;
    world_start_server(&w);
    raw_connect(&r, cs_dataplane_address(w.dp));
    uint64_t limit = vc_clock_now_us(vc_clock_system()) + WORLD_LIMIT_US;
    while (world_stats(&w).peers_open == 0 && vc_clock_now_us(vc_clock_system()) < limit)
        vc_ucx_progress(r.ucx);
    vc_fake_clock_advance(&clock, (uint64_t)w.opts.peer_timeout_ms * 1000 + 1);
    WORLD_WAIT_EXACTLY(&w, peers_stalled, 1);
    raw_close(&r);
    WORLD_WAIT_EXACTLY(&w, peers_open, 0);
    world_close(&w);
}

/* ---- peers that die: UCX does not survive a fork, so the child is made first and starts its own ---- */

typedef struct orders { /* what the child needs, through a pipe */
    char address[128];
    vc_data_lease_t lease;
    uint64_t upload_id;
    uint8_t token[16];
} orders_t;

static int die_at_third(void *arg, uint32_t block, vc_status_t status, const void *record, size_t bytes)
{
    (void)block;
    (void)status;
    (void)record;
    (void)bytes;
    int *n = arg;
    if (++*n == 3)
        raise(SIGKILL);
    return 0;
}

static void child_fetch(const orders_t *o)
{
    int n = 0;
    vc_data_t *data = NULL;
    if (vc_data_connect(o->address, NULL, &data, NULL) == VC_OK)
        vc_data_fetch(data, &o->lease, 0, 0, 16, die_at_third, &n, 0, NULL, NULL);
    _exit(1);
}

/* Offers records by rendezvous, waits until the server takes the first, and dies with all of them open. */
static void child_put(const orders_t *o)
{
    raw_t r;
    raw_connect(&r, o->address);
    raw_hello(&r);
    vc_frame_t f = {.type = VC_FRAME_PUT_DATA, .upload_id = o->upload_id, .payload_bytes = 1478656};
    memcpy(f.token, o->token, sizeof(f.token));
    for (f.request = 1; f.request <= 4; f.request++)
        raw_send_frame(&r, &f);
    raw_until(&r, &r.n_sent, 1);
    raise(SIGKILL);
}

static pid_t fork_child(void (*play)(const orders_t *o), int *write_fd_p)
{
    int fd[2];
    cr_assert(pipe(fd) == 0);
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        orders_t o;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fd[1]);
        if (read(fd[0], &o, sizeof(o)) != sizeof(o))
            _exit(2);
        play(&o);
        _exit(3);
    }
    close(fd[0]);
    *write_fd_p = fd[1];
    return pid;
}

static void check_killed(void (*play)(const orders_t *o))
{
    world_t w;
    vc_data_lease_t lease;
    int fd, status;
    pid_t pid = fork_child(play, &fd);
    abuse_open(&w, &world_real_shape, &lease);
    cs_upload_info_t up = world_begin(&w);
    orders_t o = {.lease = lease, .upload_id = up.upload_id};
    snprintf(o.address, sizeof(o.address), "%s", cs_dataplane_address(w.dp));
    memcpy(o.token, up.token.b, sizeof(o.token));
    cr_assert(write(fd, &o, sizeof(o)) == sizeof(o));
    close(fd);
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "child ended with %x", status);
    WORLD_WAIT_EXACTLY(&w, peers_open, 0);
    cr_assert(world_stats(&w).peers_total == 1);
    world_assert_idle(&w);
    cs_store_abort(w.store, up.upload_id, &up.token);
    abuse_close(&w, &lease);
}

Test(dataplane_lost, a_client_killed_inside_a_fetch_leaves_nothing_behind) { check_killed(child_fetch); }
Test(dataplane_lost, a_client_killed_inside_a_put_leaves_nothing_behind) { check_killed(child_put); }

/* ---- bytes that are not UCX ---- */

static void send_garbage(const char *address, uint32_t seed)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    uint8_t noise[96];
    for (size_t i = 0; i < sizeof(noise); i++) {
        seed = seed * 1664525u + 1013904223u;
        noise[i] = (uint8_t)(seed >> 24);
    }
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 && send(fd, noise, sizeof(noise), MSG_NOSIGNAL) < 0)
        cr_log_info("garbage: %s", strerror(errno));
    close(fd);
}

/* The server of the child, on the parent's directory; it may be ended by what comes in. */
static void child_server(world_t *w, int report_fd)
{
    signal(SIGABRT, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    world_start_server(w);
    world_fill(w);
    const char *address = cs_dataplane_address(w->dp);
    if (write(report_fd, address, strlen(address) + 1) < 0)
        _exit(1);
    for (;;)
        pause();
}

Test(dataplane_lost, garbage_at_the_port_may_end_the_process_but_loses_nothing)
{
    world_t w;
    int fd[2], status;
    char address[128] = {0};
    world_open(&w, &world_small_shape, 16);
    cr_assert(pipe(fd) == 0);
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0)
        child_server(&w, fd[1]);
    close(fd[1]);
    cr_assert(read(fd[0], address, sizeof(address) - 1) > 0);
    close(fd[0]);
    for (uint32_t seed = 1; seed <= 8; seed++)
        send_garbage(address, seed);
    kill(pid, SIGKILL); /* whether UCX has ended it or not, this is the end */
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_assert(WIFSIGNALED(status));
    world_start_server(&w);
    vc_data_lease_t lease = world_lease(&w);
    abuse_close(&w, &lease);
}
