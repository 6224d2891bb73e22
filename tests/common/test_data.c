/*
 * The client's side of the data plane against servers that break the protocol, fall silent or are not there: every call
 * ends within its time with a status that tells the caller whether to step down, and the next call starts afresh.
 * Honest servers are in tests/cache-server/test_dataplane.c.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "client/data.h"
#include "support/vc_test.h"
#include "vc/clock.h"
#include "vc/frame.h"
#include "vc/mem.h"
#include "vc/ucx.h"

typedef struct liar liar_t;
typedef void (*script_fn)(liar_t *l, const vc_frame_t *asked);

struct liar { /* a server of the test, on its own thread */
    vc_ucx_t *ucx;
    vc_ucx_ep_t *eps[8];
    int n_eps;
    script_fn script; /* what it says to each frame but HELLO */
    bool greets;
    _Atomic bool stop;
    pthread_t thread;
    char address[64];
    uint8_t *payload;
    struct {
        vc_ucx_op_t op;
        uint8_t header[VC_FRAME_MAX];
    } out[64];
    int n_out;
    vc_ucx_ep_t *from;
};

static void liar_sent(void *arg, vc_status_t status)
{
    (void)arg;
    (void)status;
}

static void say_raw(liar_t *l, const void *header, size_t header_bytes, size_t payload)
{
    int i = l->n_out++ % 64;
    memcpy(l->out[i].header, header, header_bytes);
    l->out[i].op = (vc_ucx_op_t){.done = liar_sent, .arg = l};
    vc_ucx_send(l->from, l->out[i].header, header_bytes, payload > 0 ? l->payload : NULL, payload, &l->out[i].op);
}

static void say(liar_t *l, const vc_frame_t *frame)
{
    uint8_t header[VC_FRAME_MAX];
    say_raw(l, header, vc_frame_encode(frame, header), frame->payload_bytes);
}

static bool liar_message(void *arg, const vc_ucx_msg_t *msg)
{
    liar_t *l = arg;
    vc_frame_t frame;
    l->from = msg->ep;
    if (l->from == NULL || vc_frame_decode(msg->header, msg->header_bytes, msg->bytes, &frame, NULL) != VC_OK)
        return false;
    if (frame.type != VC_FRAME_HELLO)
        l->script(l, &frame);
    else if (l->greets)
        say(l, &(vc_frame_t){.type = VC_FRAME_WELCOME, .boot_id = 1, .max_record_bytes = 8192, .put_window = 2});
    return false;
}

static void liar_lost(void *arg, vc_ucx_ep_t *ep, vc_status_t status)
{
    (void)arg;
    (void)ep;
    (void)status;
}

static void liar_request(void *arg, void *request)
{
    liar_t *l = arg;
    if (l->n_eps == 8 || vc_ucx_accept(l->ucx, request, liar_lost, l, &l->eps[l->n_eps++]) != VC_OK)
        vc_ucx_reject(l->ucx, request);
}

static void *liar_main(void *arg)
{
    liar_t *l = arg;
    while (!atomic_load(&l->stop))
        vc_ucx_wait(l->ucx, 10);
    return NULL;
}

static void liar_start(liar_t *l, script_fn script, bool greets)
{
    vc_err_t err = {0};
    memset(l, 0, sizeof(*l));
    l->script = script;
    l->greets = greets;
    l->payload = vc_calloc(1, 16384);
    vc_ucx_opts_t opts = {.address = "127.0.0.1:0", .listen = true, .rndv_threshold = 512 << 10};
    cr_assert(vc_ucx_open(&opts, &l->ucx, &err) == VC_OK, "%s", err.msg);
    vc_ucx_set_handler(l->ucx, liar_message, l);
    cr_assert(vc_ucx_listen(l->ucx, liar_request, l, &err) == VC_OK, "%s", err.msg);
    snprintf(l->address, sizeof(l->address), "%s", vc_ucx_listen_address(l->ucx));
    cr_assert(pthread_create(&l->thread, NULL, liar_main, l) == 0);
}

static void liar_end(liar_t *l)
{
    atomic_store(&l->stop, true);
    pthread_join(l->thread, NULL);
    vc_ucx_close(l->ucx);
    vc_free(l->payload);
}

static int ignore_record(void *arg, uint32_t block, vc_status_t status, const void *record, size_t bytes)
{
    (void)block;
    (void)record;
    (void)bytes;
    int *n_good = arg;
    *n_good += status == VC_OK;
    return 0;
}

static const vc_data_opts_t quick_opts = {
    .connect_ms = 3000, .idle_ms = 300, .n_slots = 4, .max_record_bytes = 1 << 20};
static const vc_data_lease_t lease = {.boot_id = 1, .lease_id = 2};

/* One fetch of four blocks from a server that follows the script ends with this status and without a good record. */
static void check_fetch(script_fn script, vc_status_t want, const char *words)
{
    liar_t l;
    vc_data_t *data = NULL;
    vc_err_t err = {0};
    int n_good = 0;
    liar_start(&l, script, true);
    cr_assert(vc_data_connect(l.address, &quick_opts, &data, &err) == VC_OK, "%s", err.msg);
    vc_status_t st = vc_data_fetch(data, &lease, 0, 10, 4, ignore_record, &n_good, 0, NULL, &err);
    cr_assert(st == want, "%s: %s", vc_status_name(st), err.msg);
    cr_assert(strstr(err.msg, words) != NULL, "%s", err.msg);
    cr_assert(strstr(err.msg, l.address) != NULL, "%s", err.msg);
    cr_assert(n_good == 0);
    /* The next call is a new try over a new connection, or over the one that is still good. */
    st = vc_data_fetch(data, &lease, 0, 10, 4, ignore_record, &n_good, 0, NULL, &err);
    cr_assert(st == want, "%s: %s", vc_status_name(st), err.msg);
    vc_data_close(data);
    liar_end(&l);
}

static void say_nothing(liar_t *l, const vc_frame_t *asked)
{
    (void)l;
    (void)asked;
}

static void say_garbage(liar_t *l, const vc_frame_t *asked)
{
    if (asked->type == VC_FRAME_FETCH)
        say_raw(l, "no frame", 8, 0);
}

static void say_other_block(liar_t *l, const vc_frame_t *asked)
{
    if (asked->type == VC_FRAME_FETCH)
        say(l,
            &(vc_frame_t){.type = VC_FRAME_FETCH_DATA, .request = asked->request, .block = 14, .payload_bytes = 8192});
}

static void say_block_twice(liar_t *l, const vc_frame_t *asked)
{
    vc_frame_t f = {.type = VC_FRAME_FETCH_DATA, .request = asked->request, .block = 11, .status = VC_ERR_NOT_FOUND};
    if (asked->type != VC_FRAME_FETCH)
        return;
    say(l, &f);
    say(l, &f);
}

static void say_too_large(liar_t *l, const vc_frame_t *asked)
{
    if (asked->type == VC_FRAME_FETCH) /* than it said in its welcome */
        say(l,
            &(vc_frame_t){.type = VC_FRAME_FETCH_DATA, .request = asked->request, .block = 10, .payload_bytes = 12288});
}

/* ---- layer-major: four blocks from 10 on, of a header page and two layers of a page ---- */

static vc_status_t ignore_slice(void *arg, uint32_t slice, uint32_t block, const uint8_t *data)
{
    cr_assert(slice <= 2 && block >= 10 && block < 14 && data != NULL);
    ++*(int *)arg;
    return VC_OK;
}

static void check_layers(script_fn script, vc_status_t want, int n_slices)
{
    static const vc_data_layout_t layout = {4096, 4096, 2};
    liar_t l;
    vc_data_t *data = NULL;
    vc_err_t err = {0};
    int n = 0;
    liar_start(&l, script, true);
    cr_assert(vc_data_connect(l.address, &quick_opts, &data, &err) == VC_OK, "%s", err.msg);
    for (int i = 1; i <= 2; i++) { /* the second over a new connection, or over the one that is still good */
        vc_status_t st = vc_data_fetch_layers(data, &lease, 0, 10, 4, &layout, ignore_slice, &n, 0, NULL, &err);
        cr_assert(st == want, "%s: %s", vc_status_name(st), err.msg);
        cr_assert(n <= i * n_slices, "%d slices", n);
    }
    vc_data_close(data);
    liar_end(&l);
}

static void say_piece(liar_t *l, const vc_frame_t *asked, uint32_t first, uint32_t mask, uint32_t slice, uint32_t bytes)
{
    if (asked->type == VC_FRAME_FETCH)
        say(l, &(vc_frame_t){.type = VC_FRAME_PIECE,
                             .request = asked->request,
                             .first = first,
                             .mask = mask,
                             .slice = slice,
                             .payload_bytes = bytes});
}

static void say_good_pieces(liar_t *l, const vc_frame_t *asked)
{
    for (uint32_t slice = 0; slice < 3; slice++)
        say_piece(l, asked, 10, 9, slice, 8192);
    if (asked->type == VC_FRAME_FETCH)
        say(l, &(vc_frame_t){.type = VC_FRAME_FETCH_END, .request = asked->request, .n_sent = 3});
}

static void say_piece_twice(liar_t *l, const vc_frame_t *asked)
{
    say_piece(l, asked, 10, 1, 1, 4096);
    say_piece(l, asked, 10, 1, 1, 4096);
}

static void say_empty_pieces(liar_t *l, const vc_frame_t *asked)
{
    for (int i = 0; i < 16; i++) /* again with every credit */
        say(l, &(vc_frame_t){.type = VC_FRAME_PIECE, .request = asked->request, .first = 10});
}

static void say_piece_below(liar_t *l, const vc_frame_t *asked) { say_piece(l, asked, 9, 1, 0, 4096); }
static void say_piece_above(liar_t *l, const vc_frame_t *asked) { say_piece(l, asked, 10, 16, 0, 4096); }
static void say_far_slice(liar_t *l, const vc_frame_t *asked) { say_piece(l, asked, 10, 1, 3, 4096); }
static void say_long_piece(liar_t *l, const vc_frame_t *asked) { say_piece(l, asked, 10, 1, 1, 8192); }
static void say_large_piece(liar_t *l, const vc_frame_t *asked) { say_piece(l, asked, 10, 15, 1, 16384); }

static void say_record(liar_t *l, const vc_frame_t *asked)
{
    if (asked->type == VC_FRAME_FETCH)
        say(l,
            &(vc_frame_t){.type = VC_FRAME_FETCH_DATA, .request = asked->request, .block = 10, .payload_bytes = 8192});
}

Test(data, pieces_are_taken_block_by_block) { check_layers(say_good_pieces, VC_OK, 6); }
Test(data, a_piece_that_comes_twice_is_refused) { check_layers(say_piece_twice, VC_ERR_PROTOCOL, 1); }
Test(data, a_piece_of_blocks_that_were_not_asked_for_is_refused)
{
    check_layers(say_piece_below, VC_ERR_PROTOCOL, 0);
    check_layers(say_piece_above, VC_ERR_PROTOCOL, 0);
}
Test(data, a_piece_of_no_layer_is_refused) { check_layers(say_far_slice, VC_ERR_PROTOCOL, 0); }
Test(data, a_piece_of_another_length_is_refused)
{
    check_layers(say_long_piece, VC_ERR_PROTOCOL, 0);
    check_layers(say_large_piece, VC_ERR_PROTOCOL, 0); /* larger than the server said in its welcome */
}
Test(data, empty_pieces_without_end_are_refused) { check_layers(say_empty_pieces, VC_ERR_PROTOCOL, 0); }
Test(data, a_record_for_a_layer_major_fetch_is_refused) { check_layers(say_record, VC_ERR_PROTOCOL, 0); }
Test(data, a_piece_for_a_block_major_fetch_is_refused)
{
    check_fetch(say_good_pieces, VC_ERR_PROTOCOL, "not asked for");
}

static void say_end_early(liar_t *l, const vc_frame_t *asked)
{
    if (asked->type == VC_FRAME_FETCH)
        say(l, &(vc_frame_t){.type = VC_FRAME_FETCH_END, .request = asked->request});
}

static void say_stale(liar_t *l, const vc_frame_t *asked)
{
    if (asked->type == VC_FRAME_FETCH)
        say(l, &(vc_frame_t){.type = VC_FRAME_FETCH_END, .request = asked->request, .status = VC_ERR_STALE});
}

static void say_error(liar_t *l, const vc_frame_t *asked)
{
    if (asked->type == VC_FRAME_FETCH)
        say(l, &(vc_frame_t){
                   .type = VC_FRAME_ERROR, .request = asked->request, .status = VC_ERR_BUSY, .text = "too much"});
}

static void say_client_frame(liar_t *l, const vc_frame_t *asked)
{
    if (asked->type == VC_FRAME_FETCH)
        say(l, &(vc_frame_t){.type = VC_FRAME_CANCEL, .request = asked->request});
}

static void say_welcome_again(liar_t *l, const vc_frame_t *asked)
{
    (void)asked;
    say(l, &(vc_frame_t){.type = VC_FRAME_WELCOME, .max_record_bytes = 1 << 20, .put_window = 2});
}

Test(data, a_silent_server_times_out) { check_fetch(say_nothing, VC_ERR_TIMEOUT, "no progress"); }
Test(data, garbage_is_a_broken_protocol) { check_fetch(say_garbage, VC_ERR_PROTOCOL, "magic"); }
Test(data, a_block_that_was_not_asked_for_is_refused) { check_fetch(say_other_block, VC_ERR_PROTOCOL, "block 14"); }
Test(data, a_block_that_comes_twice_is_refused) { check_fetch(say_block_twice, VC_ERR_PROTOCOL, "block 11"); }
Test(data, a_record_larger_than_the_slots_is_refused) { check_fetch(say_too_large, VC_ERR_PROTOCOL, "12288"); }
Test(data, an_end_before_all_blocks_is_a_broken_protocol) { check_fetch(say_end_early, VC_ERR_PROTOCOL, "0 of 4"); }
Test(data, a_stale_lease_is_the_servers_answer) { check_fetch(say_stale, VC_ERR_STALE, "stale"); }
Test(data, an_error_message_is_passed_on) { check_fetch(say_error, VC_ERR_BUSY, "too much"); }
Test(data, a_message_that_only_clients_send_is_refused) { check_fetch(say_client_frame, VC_ERR_PROTOCOL, "cancel"); }
Test(data, a_second_welcome_is_refused) { check_fetch(say_welcome_again, VC_ERR_PROTOCOL, "second welcome"); }

/* Zeroes are no record: it arrives, is not used, and the server hears of it. */
static _Atomic int n_damage_reports;

static void say_zeroes(liar_t *l, const vc_frame_t *asked)
{
    if (asked->type == VC_FRAME_DAMAGED)
        n_damage_reports++;
    if (asked->type != VC_FRAME_FETCH)
        return;
    for (uint32_t b = 0; b < 4; b++)
        say(l, &(vc_frame_t){
                   .type = VC_FRAME_FETCH_DATA, .request = asked->request, .block = 10 + b, .payload_bytes = 8192});
    say(l, &(vc_frame_t){.type = VC_FRAME_FETCH_END, .request = asked->request, .n_sent = 4});
}

Test(data, damaged_records_are_not_used_and_reported)
{
    liar_t l;
    vc_data_t *data = NULL;
    vc_err_t err = {0};
    vc_data_stats_t stats;
    int n_good = 0;
    liar_start(&l, say_zeroes, true);
    cr_assert(vc_data_connect(l.address, &quick_opts, &data, &err) == VC_OK, "%s", err.msg);
    cr_assert(vc_data_fetch(data, &lease, 0, 10, 4, ignore_record, &n_good, 0, &stats, &err) == VC_OK, "%s", err.msg);
    cr_assert(n_good == 0 && stats.records == 0 && stats.bytes == 0 && stats.wire_corrupt == 4);
    uint64_t limit = vc_clock_now_us(vc_clock_system()) + 20000000;
    while (n_damage_reports < 4 && vc_clock_now_us(vc_clock_system()) < limit)
        sched_yield();
    cr_assert(n_damage_reports == 4);
    vc_data_close(data);
    liar_end(&l);
}

static int one_record(void *arg, void *buf, size_t cap, size_t *len_p)
{
    int *left = arg;
    memset(buf, 0, cap);
    *len_p = (*left)-- > 0 ? cap : 0;
    return 0;
}

static void check_put(script_fn script, vc_status_t want)
{
    liar_t l;
    vc_data_t *data = NULL;
    vc_err_t err = {0};
    vc_data_stats_t stats;
    const uint8_t token[16] = {0};
    int left = 5;
    liar_start(&l, script, true);
    cr_assert(vc_data_connect(l.address, &quick_opts, &data, &err) == VC_OK, "%s", err.msg);
    vc_status_t st = vc_data_put(data, 3, token, one_record, &left, 0, &stats, &err);
    cr_assert(st == want, "%s: %s", vc_status_name(st), err.msg);
    cr_assert(stats.records == 0);
    vc_data_close(data);
    liar_end(&l);
}

static void ack_nothing(liar_t *l, const vc_frame_t *asked)
{
    say(l, &(vc_frame_t){.type = VC_FRAME_PUT_ACK, .request = asked->request + 100});
}

static void ack_no_space(liar_t *l, const vc_frame_t *asked)
{
    say(l, &(vc_frame_t){.type = VC_FRAME_PUT_ACK, .request = asked->request, .status = VC_ERR_NOSPACE});
}

Test(data, a_put_that_is_never_acknowledged_times_out) { check_put(say_nothing, VC_ERR_TIMEOUT); }
Test(data, an_acknowledgement_for_nothing_is_refused) { check_put(ack_nothing, VC_ERR_PROTOCOL); }
Test(data, a_full_server_ends_the_put) { check_put(ack_no_space, VC_ERR_NOSPACE); }

/* ---- nobody there ---- */

static void check_unreachable(const char *address)
{
    vc_data_t *data = NULL;
    vc_err_t err = {0};
    vc_data_opts_t opts = quick_opts;
    opts.connect_ms = 300;
    vc_status_t st = vc_data_connect(address, &opts, &data, &err);
    cr_assert(st == VC_ERR_UNREACHABLE, "%s: %s", vc_status_name(st), err.msg);
    cr_assert(strstr(err.msg, address) != NULL, "%s", err.msg);
}

Test(data, a_server_without_a_welcome_is_unreachable)
{
    liar_t l;
    liar_start(&l, say_nothing, false);
    check_unreachable(l.address);
    liar_end(&l);
}

/* A port where nobody accepts, and one where somebody listens who does not speak UCX. */
Test(data, a_closed_port_and_a_mute_one_are_unreachable)
{
    char address[64];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0);
    cr_assert(getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(a.sin_port));
    check_unreachable(address);
    cr_assert(listen(fd, 4) == 0);
    check_unreachable(address);
    close(fd);
}

Test(data, impossible_options_and_ranges_are_refused)
{
    liar_t l;
    vc_data_t *data = NULL;
    vc_err_t err = {0};
    int n = 0;
    vc_data_opts_t opts = quick_opts;
    opts.n_slots = 0;
    cr_assert(vc_data_connect("127.0.0.1:1", &opts, &data, &err) == VC_ERR_RANGE);
    cr_assert(vc_data_connect(NULL, &quick_opts, &data, &err) == VC_ERR_INVALID);
    cr_assert(vc_data_connect("nonsense", &quick_opts, &data, &err) == VC_ERR_INVALID);
    liar_start(&l, say_nothing, true);
    cr_assert(vc_data_connect(l.address, &quick_opts, &data, &err) == VC_OK, "%s", err.msg);
    cr_assert(vc_data_fetch(data, &lease, 0, 0, 0, ignore_record, &n, 0, NULL, &err) == VC_ERR_RANGE);
    cr_assert(vc_data_fetch(data, &lease, 8, 0, 1, ignore_record, &n, 0, NULL, &err) == VC_ERR_RANGE);
    cr_assert(vc_data_fetch(data, &lease, 0, UINT32_MAX, 1, ignore_record, &n, 0, NULL, &err) == VC_ERR_RANGE);
    vc_data_close(data);
    liar_end(&l);
}
