/*
 * The data plane against peers that misbehave: raw UCX peers with malformed, repeated, reordered, oversized or
 * unauthenticated messages. Each of them is counted and closed, an honest client beside it is served, and every buffer
 * and pin comes back. Peers that stop or die are in test_dataplane_lost.c.
 */
#include <stdio.h>

#include "dataplane_raw.h"

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

/* ---- layer-major ---- */

static vc_frame_t layers_frame(const vc_data_lease_t *lease, uint32_t n)
{
    vc_frame_t f = fetch_frame(lease, n);
    f.head_bytes = 4096;
    f.part_bytes = 49152;
    f.n_layer = 30;
    return f;
}

static void layers_with_an_impossible_layout(raw_t *r, const world_t *w, const vc_data_lease_t *lease)
{
    (void)w;
    vc_frame_t f = layers_frame(lease, 16);
    f.part_bytes = 49152 + 64; /* no page */
    raw_send_frame(r, &f);
}

static void layers_of_too_many_bytes(raw_t *r, const world_t *w, const vc_data_lease_t *lease)
{
    (void)w;
    vc_frame_t f = layers_frame(lease, 16);
    f.n_layer = UINT32_MAX;
    raw_send_frame(r, &f);
}

static void layers_twice(raw_t *r, const world_t *w, const vc_data_lease_t *lease)
{
    (void)w;
    vc_frame_t f = layers_frame(lease, 16);
    f.credits = 1;
    raw_send_frame(r, &f);
    raw_until(r, &r->n_by_type[VC_FRAME_PIECE], 1);
    raw_send_frame(r, &f);
}

static void a_piece_from_a_client(raw_t *r, const world_t *w, const vc_data_lease_t *lease)
{
    (void)w;
    (void)lease;
    raw_send_frame(r, &(vc_frame_t){.type = VC_FRAME_PIECE, .request = 1, .mask = 1, .payload_bytes = 4096});
}

Test(dataplane_abuse, a_layout_that_is_no_pages_is_refused) { check_misdeed(layers_with_an_impossible_layout, true); }
Test(dataplane_abuse, a_layout_of_more_bytes_than_a_record_is_refused)
{
    check_misdeed(layers_of_too_many_bytes, true);
}
Test(dataplane_abuse, a_repeated_layer_major_fetch_is_refused) { check_misdeed(layers_twice, true); }
Test(dataplane_abuse, a_piece_from_a_client_is_refused) { check_misdeed(a_piece_from_a_client, true); }

/* What the other side answers to a hostile order of messages is an answer, not an offence: nothing is held for it. */
Test(dataplane_abuse, credits_cancels_and_reports_for_nothing_are_passed_over)
{
    world_t w;
    vc_data_lease_t lease;
    raw_t r;
    abuse_open(&w, &world_real_shape, &lease);
    raw_connect(&r, cs_dataplane_address(w.dp));
    raw_hello(&r);
    for (uint64_t i = 1; i <= 200; i++) { /* reordered: before their fetch, and after it ended */
        raw_send_frame(&r, &(vc_frame_t){.type = VC_FRAME_CREDIT, .request = i, .credits = VC_FRAME_MAX_CREDITS});
        raw_send_frame(&r, &(vc_frame_t){.type = VC_FRAME_CANCEL, .request = i});
        raw_until(&r, &r.n_sent, (int)i);
    }
    vc_frame_t f = layers_frame(&lease, 16);
    f.request = 77;
    f.credits = 2;
    raw_send_frame(&r, &f);
    raw_send_frame(&r, &(vc_frame_t){.type = VC_FRAME_CANCEL, .request = 77});
    raw_send_frame(&r, &(vc_frame_t){.type = VC_FRAME_CANCEL, .request = 77});
    raw_until(&r, &r.n_by_type[VC_FRAME_FETCH_END], 1);
    cr_assert(r.n_lost == 0 && world_stats(&w).bad_frames == 0 && r.n_by_type[VC_FRAME_PIECE] <= 2);
    WORLD_WAIT_EXACTLY(&w, ops_in_flight, 0);
    WORLD_WAIT_EXACTLY(&w, pins_held, 0);
    raw_close(&r);
    abuse_close(&w, &lease);
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
