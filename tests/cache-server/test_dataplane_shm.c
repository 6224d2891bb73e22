/* The data plane over shared memory: records go both ways, and whatever becomes of a client - killed or stopped inside
 * a transfer, one too many, without a sensible word at the socket - buffers, views and pins come back. */
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dataplane_fixture.h"
#include "vc/bytes.h"
#include "vc/frame.h"
#include "vc/ucx_meet.h"

static vc_data_t *connect_shm(const world_t *w, vc_status_t want)
{
    vc_data_t *data = NULL;
    vc_err_t err = {0};
    vc_status_t st = vc_data_connect(cs_dataplane_shm_address(w->dp), NULL, &data, &err);
    cr_assert(st == want, "%s: %s", vc_status_name(st), err.msg);
    return data;
}

static void check_round_trip(const vc_kv_shape_t *shape, uint32_t n)
{
    world_t w;
    catcher_t c;
    vc_err_t err = {0};
    world_open(&w, shape, n);
    world_start_server(&w);
    vc_data_t *data = connect_shm(&w, VC_OK);
    cr_assert(world_stats(&w).shm_peers == 1);
    cs_upload_info_t up = world_begin(&w);
    feeder_t f = {&w, 0, n};
    vc_status_t st = vc_data_put(data, up.upload_id, up.token.b, feed_record, &f, 0, NULL, &err);
    cr_assert(st == VC_OK, "%s", err.msg);
    cr_assert(world_commit(&w, &up) == VC_OK);
    vc_data_lease_t lease = world_lease(&w);
    catcher_init(&c, &w);
    for (uint32_t i = 1; i <= 2; i++) {
        st = vc_data_fetch(data, &lease, 0, 0, n, catch_record, &c, 0, NULL, &err);
        cr_assert(st == VC_OK, "%s", err.msg);
        cr_assert(c.n_good == i * n && c.n_bad == 0);
    }
    vc_data_close(data);
    WORLD_WAIT_EXACTLY(&w, peers_open, 0);
    cs_dataplane_stats_t s = world_stats(&w);
    cr_assert(s.shm_peers == 0 && s.shm_peers_total == 1 && s.peers_total == 1 && s.bad_frames == 0);
    cr_assert(s.peers_lost == 0, "a client that leaves between transfers is not lost");
    vc_free(c.want);
    world_close(&w);
}

Test(dataplane_shm, large_records_go_both_ways) { check_round_trip(&world_real_shape, 20); }
Test(dataplane_shm, small_records_go_both_ways) { check_round_trip(&world_small_shape, 300); }

Test(dataplane_shm, is_not_offered_when_switched_off)
{
    world_t w;
    vc_data_t *data = NULL;
    world_open(&w, &world_small_shape, 1);
    w.opts.shm = false;
    world_start_server(&w);
    cr_assert_str_eq(cs_dataplane_shm_address(w.dp), "");
    cr_assert(vc_data_connect("shm:vericache-0", NULL, &data, NULL) == VC_ERR_NOT_FOUND);
    cr_assert(vc_data_connect("shm:", NULL, &data, NULL) == VC_ERR_INVALID);
    world_close(&w);
}

Test(dataplane_shm, one_client_more_than_workers_is_told_and_served_when_another_left)
{
    world_t w;
    vc_data_t *data[8];
    catcher_t c;
    vc_err_t err = {0};
    world_open(&w, &world_small_shape, 4);
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w);
    for (size_t i = 0; i < 8; i++)
        data[i] = connect_shm(&w, VC_OK);
    connect_shm(&w, VC_ERR_BUSY);
    WORLD_WAIT_EXACTLY(&w, peers_open, 8);
    cr_assert(world_stats(&w).shm_refused == 1);
    catcher_init(&c, &w);
    vc_data_t *net = world_connect(&w); /* the ninth goes on over the network */
    cr_assert(vc_data_fetch(net, &lease, 0, 0, 4, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    vc_data_close(net);
    for (size_t i = 0; i < 8; i++)
        cr_assert(vc_data_fetch(data[i], &lease, 0, 0, 4, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cr_assert(c.n_good == 36);
    vc_data_close(data[3]);
    WORLD_WAIT_EXACTLY(&w, shm_peers, 7);
    data[3] = connect_shm(&w, VC_OK);
    for (size_t i = 0; i < 8; i++)
        vc_data_close(data[i]);
    WORLD_WAIT_EXACTLY(&w, peers_open, 0);
    vc_free(c.want);
    world_close(&w);
}

Test(dataplane_shm, a_server_that_stops_is_noticed_and_its_name_is_gone)
{
    world_t w;
    catcher_t c;
    vc_err_t err = {0};
    world_open(&w, &world_small_shape, 4);
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w);
    vc_data_t *data = connect_shm(&w, VC_OK), *none = NULL;
    char old[VC_MEET_NAME_MAX];
    snprintf(old, sizeof(old), "%s", cs_dataplane_shm_address(w.dp));
    catcher_init(&c, &w);
    cr_assert(vc_data_fetch(data, &lease, 0, 0, 4, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    world_stop_server(&w);
    cr_assert(vc_data_fetch(data, &lease, 0, 0, 4, catch_record, &c, 0, NULL, &err) == VC_ERR_UNREACHABLE, "%s",
              err.msg);
    vc_data_close(data);
    world_start_server(&w); /* another name, so that the old one cannot be answered by anybody else's process */
    cr_assert_str_neq(old, cs_dataplane_shm_address(w.dp));
    cr_assert(vc_data_connect(old, NULL, &none, NULL) == VC_ERR_NOT_FOUND);
    data = connect_shm(&w, VC_OK);
    cr_assert(vc_data_fetch(data, &lease, 0, 0, 4, catch_record, &c, 0, NULL, &err) == VC_ERR_STALE, "%s", err.msg);
    lease = world_lease(&w);
    cr_assert(vc_data_fetch(data, &lease, 0, 0, 4, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    vc_data_close(data);
    vc_free(c.want);
    world_close(&w);
}

/* ---- words at the socket that are not ours ---- */

static void say(const world_t *w, const void *bytes, size_t len)
{
    int fd;
    cr_assert(vc_meet_dial(cs_dataplane_shm_address(w->dp), &fd, NULL) == VC_OK);
    cr_assert(send(fd, bytes, len, MSG_NOSIGNAL) == (ssize_t)len);
    vc_meet_msg_t answer;
    vc_status_t st = vc_meet_recv(fd, 30000, &answer);
    cr_assert(st == VC_OK && answer.status == VC_ERR_PROTOCOL, "%s", vc_status_name(st));
    st = vc_meet_recv(fd, 30000, &answer);
    cr_assert(st == VC_ERR_UNREACHABLE, "%s", vc_status_name(st));
    close(fd);
}

Test(dataplane_shm, nonsense_at_the_socket_is_refused_before_ucx_sees_any_of_it)
{
    world_t w;
    uint8_t buf[2048] = {'V', 'C', 'S', 'M', 1, 0, 0xff, 0xff};
    world_open(&w, &world_small_shape, 1);
    world_start_server(&w);
    say(&w, "hello", 5);
    say(&w, buf, 12);          /* an address longer than the message */
    say(&w, buf, sizeof(buf)); /* longer than any message */
    buf[6] = buf[7] = 0;
    say(&w, buf, 12); /* no address at all */
    buf[6] = 4;
    buf[4] = 2;
    say(&w, buf, 16); /* another version */
    buf[6] = 0;
    buf[4] = 1;
    memset(buf + 8, 0xff, 4);
    say(&w, buf, 12); /* a refusal, which is a server's to send */
    WORLD_WAIT_EXACTLY(&w, peers_open, 0);
    cr_assert(world_stats(&w).bad_frames == 6 && world_stats(&w).shm_peers_total == 0);
    world_close(&w);
}

/* Neither side goes on: the client sees whose server it is, the server whose client, before a word is said. */
Test(dataplane_shm, another_users_process_is_turned_away)
{
    world_t w;
    int fd, status;
    char byte;
    if (geteuid() != 0)
        cr_skip_test("only root can become another user");
    world_open(&w, &world_small_shape, 1);
    world_start_server(&w);
    pid_t pid = fork(); /* plain sockets only: the child does not touch UCX */
    if (pid == 0) {
        if (setgid(65534) != 0 || setuid(65534) != 0)
            _exit(1);
        if (vc_meet_dial(cs_dataplane_shm_address(w.dp), &fd, NULL) != VC_ERR_PERM)
            _exit(2);
        struct sockaddr_un sun = {.sun_family = AF_UNIX}; /* one that does not care whose server it is */
        const char *name = cs_dataplane_shm_address(w.dp) + strlen(VC_MEET_PREFIX);
        memcpy(sun.sun_path + 1, name, strlen(name));
        fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
        if (connect(fd, (struct sockaddr *)&sun, len) != 0)
            _exit(3);
        _exit(recv(fd, &byte, 1, 0) == 0 ? 0 : 4); /* closed without an answer */
    }
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child ended with %x", status);
    WORLD_WAIT_EXACTLY(&w, peers_refused, 2);
    cr_assert(world_stats(&w).peers_total == 0);
    world_close(&w);
}

Test(dataplane_shm, a_client_that_says_nothing_at_the_socket_is_closed)
{
    world_t w;
    int fd;
    vc_fake_clock_t clock;
    vc_fake_clock_init(&clock, 1000000);
    world_open(&w, &world_small_shape, 1);
    w.opts.clock = &clock.clock;
    world_start_server(&w);
    cr_assert(vc_meet_dial(cs_dataplane_shm_address(w.dp), &fd, NULL) == VC_OK);
    WORLD_WAIT_EXACTLY(&w, peers_open, 1);
    vc_fake_clock_advance(&clock, (uint64_t)w.opts.peer_timeout_ms * 1000 + 1);
    WORLD_WAIT_EXACTLY(&w, peers_stalled, 1);
    WORLD_WAIT_EXACTLY(&w, peers_open, 0);
    close(fd);
    world_close(&w);
}

/* ---- clients that die or stop; UCX does not survive a fork, so the child is made first and starts its own ---- */

typedef struct orders {
    char address[VC_MEET_NAME_MAX];
    vc_data_lease_t lease;
    uint64_t upload_id;
    uint8_t token[16];
} orders_t;

static vc_data_t *child_connect(const orders_t *o)
{
    vc_data_t *data = NULL;
    if (vc_data_connect(o->address, NULL, &data, NULL) != VC_OK)
        _exit(1);
    return data;
}

static int signal_at_third(void *arg, uint32_t block, vc_status_t status, const void *record, size_t bytes)
{
    (void)block, (void)status, (void)record, (void)bytes;
    static int n;
    if (++n == 3)
        raise(*(int *)arg);
    return 0;
}

static void child_fetch(const world_t *w, const orders_t *o, int sig)
{
    (void)w;
    vc_data_fetch(child_connect(o), &o->lease, 0, 0, 40, signal_at_third, &sig, 0, NULL, NULL);
}

typedef struct dying_feeder {
    feeder_t f;
    int sig;
} dying_feeder_t;

/* Three records are on their way when the fourth is asked for: the server reads them from this process's memory. */
static int feed_and_die(void *arg, void *buf, size_t cap, size_t *len_p)
{
    dying_feeder_t *d = arg;
    if (d->f.next == 3)
        raise(d->sig);
    return feed_record(&d->f, buf, cap, len_p);
}

static void child_put(const world_t *w, const orders_t *o, int sig)
{
    dying_feeder_t d = {{w, 0, 40}, sig};
    vc_data_put(child_connect(o), o->upload_id, o->token, feed_and_die, &d, 0, NULL, NULL);
}

static void check_child(void (*play)(const world_t *w, const orders_t *o, int sig), int sig)
{
    world_t w;
    int fd[2], status;
    vc_fake_clock_t clock;
    world_open(&w, &world_real_shape, 40); /* more than a client takes at once */
    cr_assert(pipe(fd) == 0);
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        orders_t o;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fd[1]);
        if (read(fd[0], &o, sizeof(o)) == sizeof(o))
            play(&w, &o, sig);
        _exit(3);
    }
    close(fd[0]);
    vc_fake_clock_init(&clock, 1000000);
    w.opts.clock = &clock.clock;
    world_start_server(&w);
    world_fill(&w);
    orders_t o = {.lease = world_lease(&w)};
    cs_upload_info_t up = world_begin(&w);
    o.upload_id = up.upload_id;
    snprintf(o.address, sizeof(o.address), "%s", cs_dataplane_shm_address(w.dp));
    memcpy(o.token, up.token.b, sizeof(o.token));
    cr_assert(write(fd[1], &o, sizeof(o)) == sizeof(o));
    cr_assert(waitpid(pid, &status, WUNTRACED) == pid);
    cr_assert(sig == SIGKILL ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : WIFSTOPPED(status),
              "child ended with %x", status);
    if (sig == SIGSTOP) { /* nothing shows that it stopped, until it owes us something for too long */
        uint64_t limit = vc_clock_now_us(vc_clock_system()) + WORLD_LIMIT_US;
        cr_assert(world_stats(&w).shm_peers == 1);
        while (world_stats(&w).peers_stalled == 0 && vc_clock_now_us(vc_clock_system()) < limit) {
            vc_fake_clock_advance(&clock, (uint64_t)w.opts.peer_timeout_ms * 1000 + 1); /* again: a late completion */
            sched_yield();                                                              /* starts the silence anew */
        }
        WORLD_WAIT_EXACTLY(&w, peers_stalled, 1);
    }
    WORLD_WAIT_EXACTLY(&w, peers_open, 0);
    cr_assert(world_stats(&w).shm_peers_total == 1 && world_stats(&w).shm_peers == 0);
    world_assert_idle(&w);
    kill(pid, SIGKILL);
    close(fd[1]);
    if (sig == SIGSTOP)
        cr_assert(waitpid(pid, &status, 0) == pid);
    cs_store_abort(w.store, up.upload_id, &up.token);
    catcher_t c; /* and the server goes on */
    catcher_init(&c, &w);
    vc_data_t *data = connect_shm(&w, VC_OK);
    vc_err_t err = {0};
    cr_assert(vc_data_fetch(data, &o.lease, 0, 0, 40, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cr_assert(c.n_good == 40 && c.n_bad == 0);
    vc_data_close(data);
    vc_free(c.want);
    WORLD_WAIT_EXACTLY(&w, peers_open, 0);
    world_close(&w);
}

Test(dataplane_shm, a_client_killed_inside_a_fetch_leaves_nothing_behind) { check_child(child_fetch, SIGKILL); }
Test(dataplane_shm, a_client_killed_inside_a_put_leaves_nothing_behind) { check_child(child_put, SIGKILL); }
Test(dataplane_shm, a_client_stopped_inside_a_fetch_is_closed_and_its_window_returns)
{
    check_child(child_fetch, SIGSTOP);
}
