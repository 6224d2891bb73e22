/*
 * The data plane against peers that misbehave: raw UCX peers with malformed, repeated, oversized or unauthenticated
 * messages, peers that die or fall silent in the middle of a transfer, and bytes that are not UCX at all. Each of them
 * is counted and closed, an honest client beside it is served, and every buffer and pin comes back.
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

#include "dataplane_fixture.h"
#include "vc/bytes.h"
#include "vc/frame.h"
#include "vc/ucx.h"

/* ---- a peer that speaks UCX, but what it likes ---- */

typedef struct raw {
    vc_ucx_t *ucx;
    vc_ucx_ep_t *ep;
    int n_sent, n_lost, n_received, n_by_type[16];
    vc_frame_t last;
    bool hold; /* keep payloads unread */
    uint8_t *buf;
    vc_ucx_op_t ops[64];
    uint8_t headers[64][VC_FRAME_MAX + 8];
    int n_ops;
} raw_t;

static void raw_done(void *arg, vc_status_t status)
{
    (void)status;
    ((raw_t *)arg)->n_sent++;
}

static void raw_lost(void *arg, vc_ucx_ep_t *ep, vc_status_t status)
{
    (void)ep;
    (void)status;
    ((raw_t *)arg)->n_lost++;
}

static bool raw_message(void *arg, const vc_ucx_msg_t *msg)
{
    raw_t *r = arg;
    cr_assert(vc_frame_decode(msg->header, msg->header_bytes, msg->bytes, &r->last, NULL) == VC_OK);
    r->n_by_type[r->last.type]++;
    return r->hold && msg->desc != NULL;
}

static void raw_connect(raw_t *r, const char *address)
{
    vc_err_t err = {0};
    memset(r, 0, sizeof(*r));
    vc_ucx_opts_t opts = {.address = address, .rndv_threshold = 512u << 10};
    cr_assert(vc_ucx_open(&opts, &r->ucx, &err) == VC_OK, "%s", err.msg);
    vc_ucx_set_handler(r->ucx, raw_message, r);
    cr_assert(vc_ucx_connect(r->ucx, raw_lost, r, &r->ep, &err) == VC_OK, "%s", err.msg);
    r->buf = vc_alloc_aligned(4096, 4u << 20);
    memset(r->buf, 0x42, 4u << 20);
}

static void raw_close(raw_t *r)
{
    vc_ucx_close(r->ucx);
    vc_free(r->buf);
}

static void raw_until(raw_t *r, const int *counter, int want)
{
    uint64_t limit = vc_clock_now_us(vc_clock_system()) + WORLD_LIMIT_US;
    while (*counter < want && vc_clock_now_us(vc_clock_system()) < limit)
        vc_ucx_progress(r->ucx);
    cr_assert(*counter >= want, "%d of %d", *counter, want);
}

/* Header bytes as they are, with a payload of any length. */
static void raw_send(raw_t *r, const void *header, size_t header_bytes, size_t payload)
{
    int i = r->n_ops++ % 64;
    memcpy(r->headers[i], header, header_bytes);
    r->ops[i] = (vc_ucx_op_t){.done = raw_done, .arg = r};
    vc_ucx_send(r->ep, r->headers[i], header_bytes, payload > 0 ? r->buf : NULL, payload, &r->ops[i]);
}

static void raw_send_frame(raw_t *r, const vc_frame_t *frame)
{
    uint8_t header[VC_FRAME_MAX];
    raw_send(r, header, vc_frame_encode(frame, header), frame->payload_bytes);
}

static void raw_hello(raw_t *r)
{
    raw_send_frame(r, &(vc_frame_t){.type = VC_FRAME_HELLO, .max_record_bytes = 4u << 20});
    raw_until(r, &r->n_by_type[VC_FRAME_WELCOME], 1);
}

static vc_frame_t fetch_frame(const vc_data_lease_t *lease, uint32_t n)
{
    vc_frame_t f = {.type = VC_FRAME_FETCH,
                    .request = 1,
                    .boot_id = lease->boot_id,
                    .lease_id = lease->lease_id,
                    .n = n,
                    .credits = 4};
    memcpy(f.token, lease->token, sizeof(f.token));
    return f;
}

/* ---- the world: 16 records, an honest client that is served at the end ---- */

static void abuse_open(world_t *w, const vc_kv_shape_t *shape, vc_data_lease_t *lease)
{
    world_open(w, shape, 16);
    world_start_server(w);
    world_fill(w);
    *lease = world_lease(w);
}

static void abuse_close(world_t *w, const vc_data_lease_t *lease)
{
    catcher_t c;
    vc_err_t err = {0};
    vc_data_t *data = world_connect(w);
    catcher_init(&c, w);
    cr_assert(vc_data_fetch(data, lease, 0, 0, 16, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cr_assert(c.n_good == 16);
    vc_data_close(data);
    vc_free(c.want);
    WORLD_WAIT_EXACTLY(w, peers_open, 0);
    world_close(w);
}

typedef void (*misdeed_fn)(raw_t *r, const world_t *w, const vc_data_lease_t *lease);

/* One raw peer, greeted, commits the misdeed: it is counted, told, and closed. */
static void check_misdeed(misdeed_fn misdeed, bool greet)
{
    world_t w;
    vc_data_lease_t lease;
    raw_t r;
    abuse_open(&w, &world_real_shape, &lease);
    raw_connect(&r, cs_dataplane_address(w.dp));
    if (greet)
        raw_hello(&r);
    misdeed(&r, &w, &lease);
    raw_until(&r, &r.n_lost, 1);
    cr_assert(r.n_by_type[VC_FRAME_ERROR] == 1);
    cr_assert(r.last.type == VC_FRAME_ERROR && r.last.status == VC_ERR_PROTOCOL && r.last.text[0] != '\0');
    cr_assert(world_stats(&w).bad_frames >= 1);
    raw_close(&r);
    abuse_close(&w, &lease);
}

static void before_hello(raw_t *r, const world_t *w, const vc_data_lease_t *lease)
{
    (void)w;
    vc_frame_t f = fetch_frame(lease, 1);
    raw_send_frame(r, &f);
}

static void not_a_frame(raw_t *r, const world_t *w, const vc_data_lease_t *lease)
{
    (void)w;
    (void)lease;
    raw_send(r, "this is not a frame at all", 26, 0);
}

static void no_header(raw_t *r, const world_t *w, const vc_data_lease_t *lease)
{
    (void)w;
    (void)lease;
    raw_send(r, "", 0, 2u << 20);
}

static void truncated(raw_t *r, const world_t *w, const vc_data_lease_t *lease)
{
    (void)w;
    uint8_t header[VC_FRAME_MAX];
    vc_frame_t f = fetch_frame(lease, 1);
    size_t len = vc_frame_encode(&f, header) - 8;
    vc_put_le16(header + 6, (uint16_t)len);
    raw_send(r, header, len, 0);
}

static void payload_differs(raw_t *r, const world_t *w, const vc_data_lease_t *lease)
{
    (void)lease;
    uint8_t header[VC_FRAME_MAX];
    vc_frame_t f = {
        .type = VC_FRAME_PUT_DATA, .request = 5, .upload_id = 1, .payload_bytes = (uint32_t)w->record_bytes};
    raw_send(r, header, vc_frame_encode(&f, header), w->record_bytes + 4096);
}

static void too_large(raw_t *r, const world_t *w, const vc_data_lease_t *lease)
{
    (void)lease;
    raw_send_frame(r, &(vc_frame_t){.type = VC_FRAME_PUT_DATA,
                                    .request = 5,
                                    .upload_id = 1,
                                    .payload_bytes = (uint32_t)w->record_bytes + 4096});
}

static void hello_again(raw_t *r, const world_t *w, const vc_data_lease_t *lease)
{
    (void)w;
    (void)lease;
    raw_send_frame(r, &(vc_frame_t){.type = VC_FRAME_HELLO, .max_record_bytes = 4096});
}

static void fetch_twice(raw_t *r, const world_t *w, const vc_data_lease_t *lease)
{
    (void)w;
    vc_frame_t f = fetch_frame(lease, 16);
    f.credits = 1; /* so that the first is still running */
    raw_send_frame(r, &f);
    raw_until(r, &r->n_by_type[VC_FRAME_FETCH_DATA], 1);
    raw_send_frame(r, &f);
}

static void endless_credits(raw_t *r, const world_t *w, const vc_data_lease_t *lease)
{
    (void)w;
    vc_frame_t f = fetch_frame(lease, 16);
    f.credits = 1;
    raw_send_frame(r, &f);
    raw_until(r, &r->n_by_type[VC_FRAME_FETCH_DATA], 1);
    raw_send_frame(r, &(vc_frame_t){.type = VC_FRAME_CREDIT, .request = 1, .credits = VC_FRAME_MAX_CREDITS});
    raw_send_frame(r, &(vc_frame_t){.type = VC_FRAME_CREDIT, .request = 1, .credits = VC_FRAME_MAX_CREDITS});
}

static void servers_message(raw_t *r, const world_t *w, const vc_data_lease_t *lease)
{
    (void)w;
    (void)lease;
    raw_send_frame(r, &(vc_frame_t){.type = VC_FRAME_FETCH_DATA, .request = 1, .payload_bytes = 8192});
}

Test(dataplane_abuse, a_fetch_before_hello_is_refused) { check_misdeed(before_hello, false); }
Test(dataplane_abuse, a_header_that_is_no_frame_is_refused) { check_misdeed(not_a_frame, true); }
Test(dataplane_abuse, a_payload_without_header_is_refused) { check_misdeed(no_header, true); }
Test(dataplane_abuse, a_truncated_frame_is_refused) { check_misdeed(truncated, true); }
Test(dataplane_abuse, a_payload_longer_than_announced_is_refused) { check_misdeed(payload_differs, true); }
Test(dataplane_abuse, a_record_larger_than_the_buffers_is_refused) { check_misdeed(too_large, true); }
Test(dataplane_abuse, a_second_hello_is_refused) { check_misdeed(hello_again, true); }
Test(dataplane_abuse, a_repeated_fetch_is_refused) { check_misdeed(fetch_twice, true); }
Test(dataplane_abuse, endless_credits_are_refused) { check_misdeed(endless_credits, true); }
Test(dataplane_abuse, a_message_only_servers_send_is_refused) { check_misdeed(servers_message, true); }

static void hold_buffers(world_t *w, cs_buf_t *held[12])
{
    for (int i = 0; i < 12; i++)
        cr_assert_not_null(held[i] = cs_bufpool_get(w->pool));
}

static void release_buffers(world_t *w, cs_buf_t *held[12])
{
    for (int i = 0; i < 12; i++)
        cs_bufpool_put(w->pool, held[i]);
}

static vc_frame_t put_frame(const world_t *w, const cs_upload_info_t *up)
{
    vc_frame_t f = {.type = VC_FRAME_PUT_DATA, .upload_id = up->upload_id, .payload_bytes = (uint32_t)w->record_bytes};
    memcpy(f.token, up->token.b, sizeof(f.token));
    return f;
}

Test(dataplane_abuse, more_puts_than_the_window_are_refused)
{
    world_t w;
    vc_data_lease_t lease;
    raw_t r;
    cs_buf_t *held[12];
    abuse_open(&w, &world_real_shape, &lease);
    cs_upload_info_t up = world_begin(&w);
    hold_buffers(&w, held); /* so that no put can get on */
    raw_connect(&r, cs_dataplane_address(w.dp));
    raw_hello(&r);
    vc_frame_t f = put_frame(&w, &up);
    for (f.request = 1; f.request <= w.opts.put_window + 1; f.request++)
        raw_send_frame(&r, &f);
    raw_until(&r, &r.n_lost, 1);
    cr_assert(world_stats(&w).bad_frames == 1);
    release_buffers(&w, held);
    raw_close(&r);
    cs_store_abort(w.store, up.upload_id, &up.token);
    abuse_close(&w, &lease);
}

/* The token is looked at before anything is spent on the record: these are answered while no buffer is free. */
Test(dataplane_abuse, a_put_under_a_guessed_token_takes_no_buffer)
{
    world_t w;
    vc_data_lease_t lease;
    raw_t r;
    cs_buf_t *held[12];
    abuse_open(&w, &world_real_shape, &lease);
    cs_upload_info_t up = world_begin(&w);
    hold_buffers(&w, held);
    raw_connect(&r, cs_dataplane_address(w.dp));
    raw_hello(&r);
    vc_frame_t f = put_frame(&w, &up);
    f.upload_id += 1000; /* no such upload: an answer, not an offence */
    for (f.request = 1; f.request <= 50; f.request++) {
        raw_send_frame(&r, &f);
        raw_until(&r, &r.n_by_type[VC_FRAME_PUT_ACK], (int)f.request);
        cr_assert(r.last.status == VC_ERR_STALE && r.last.request == f.request);
    }
    cr_assert(r.n_lost == 0 && world_stats(&w).stale == 50 && world_stats(&w).ops_in_flight == 0);
    f = put_frame(&w, &up);
    f.request = 100;
    f.token[7] ^= 1;
    raw_send_frame(&r, &f);
    raw_until(&r, &r.n_lost, 1);
    cr_assert(r.last.type == VC_FRAME_PUT_ACK && r.last.status == VC_ERR_PERM);
    cs_dataplane_stats_t s = world_stats(&w);
    cr_assert(s.unauthenticated == 1 && s.records_received == 0 && s.bytes_received == 0 && s.ops_in_flight == 0);
    release_buffers(&w, held);
    raw_close(&r);
    cs_store_abort(w.store, up.upload_id, &up.token);
    abuse_close(&w, &lease);
}

Test(dataplane_abuse, a_guessed_lease_gets_an_error_and_no_bytes)
{
    world_t w;
    vc_data_lease_t lease;
    raw_t r;
    abuse_open(&w, &world_real_shape, &lease);
    raw_connect(&r, cs_dataplane_address(w.dp));
    raw_hello(&r);
    vc_frame_t f = fetch_frame(&lease, 16);
    memset(f.token, 0, sizeof(f.token));
    raw_send_frame(&r, &f);
    raw_until(&r, &r.n_lost, 1);
    cr_assert(r.n_by_type[VC_FRAME_ERROR] == 1 && r.n_by_type[VC_FRAME_FETCH_DATA] == 0);
    cr_assert(r.last.status == VC_ERR_PERM && r.last.request == 1);
    cs_dataplane_stats_t s = world_stats(&w);
    cr_assert(s.unauthenticated == 1 && s.records_sent == 0);
    raw_close(&r);
    abuse_close(&w, &lease);
}

/* A DAMAGED report needs the token too, else anybody could make the server re-read its disk. */
Test(dataplane_abuse, a_damage_report_with_a_wrong_token_is_not_counted)
{
    world_t w;
    vc_data_lease_t lease;
    raw_t r;
    abuse_open(&w, &world_small_shape, &lease);
    raw_connect(&r, cs_dataplane_address(w.dp));
    raw_hello(&r);
    vc_frame_t f = fetch_frame(&lease, 1);
    f.type = VC_FRAME_DAMAGED;
    f.token[3] ^= 1;
    raw_send_frame(&r, &f);
    raw_until(&r, &r.n_lost, 1);
    cr_assert(world_stats(&w).unauthenticated == 1 && world_stats(&w).wire_corrupt == 0);
    raw_close(&r);
    abuse_close(&w, &lease);
}

Test(dataplane_abuse, peers_beyond_the_limit_are_turned_away)
{
    world_t w;
    vc_err_t err = {0};
    vc_data_t *second = NULL;
    world_open(&w, &world_small_shape, 16);
    w.opts.max_peers = 1;
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w);
    vc_data_t *first = world_connect(&w);
    cr_assert(vc_data_connect(cs_dataplane_address(w.dp), NULL, &second, &err) == VC_ERR_UNREACHABLE);
    cr_assert(world_stats(&w).peers_refused >= 1);
    vc_data_close(first);
    WORLD_WAIT_EXACTLY(&w, peers_open, 0);
    abuse_close(&w, &lease);
}

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

Test(dataplane_abuse, a_peer_that_reads_nothing_is_closed_and_its_window_returns) { check_stalled(false); }
Test(dataplane_abuse, a_peer_that_gives_no_credit_is_closed) { check_stalled(true); }

/* Others hold every buffer: the fetch waits, and its peer is not blamed for the silence. */
Test(dataplane_abuse, a_peer_whose_fetch_waits_for_a_buffer_is_not_taken_for_stalled)
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

Test(dataplane_abuse, a_peer_that_never_says_hello_is_closed)
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

Test(dataplane_abuse, a_client_killed_inside_a_fetch_leaves_nothing_behind) { check_killed(child_fetch); }
Test(dataplane_abuse, a_client_killed_inside_a_put_leaves_nothing_behind) { check_killed(child_put); }

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

Test(dataplane_abuse, garbage_at_the_port_may_end_the_process_but_loses_nothing)
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
