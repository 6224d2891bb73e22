/* Proves the rpc module over real sockets: every kind of call and every way it may end. */
#include <pthread.h>

#include "rpc_fixture.h"

Test(rpc, unary_call_returns_the_answer)
{
    WITH_SERVER;
    for (int i = 0; i < 50; i++) {
        vc_bytes_t resp = {0};
        cr_assert_eq(vc_rpc_unary(ch, M("Echo"), &i, sizeof(i), 5000, &resp, &err), VC_OK, "%s", err.msg);
        cr_assert_eq(resp.len, sizeof(i));
        cr_assert_eq(memcmp(resp.data, &i, sizeof(i)), 0);
        vc_bytes_free(&resp);
    }
    vc_bytes_t empty = {0};
    cr_assert_eq(vc_rpc_unary(ch, M("Echo"), NULL, 0, 5000, &empty, &err), VC_OK);
    cr_assert_eq(empty.len, 0);
    vc_bytes_free(&empty);
    END_SERVER;
}

static void *call_many(void *arg)
{
    for (int i = 0; i < 100; i++) {
        vc_bytes_t resp = {0};
        if (vc_rpc_unary(arg, M("Echo"), &i, sizeof(i), 10000, &resp, NULL) != VC_OK)
            return NULL;
        vc_bytes_free(&resp);
    }
    return arg;
}

Test(rpc, one_channel_serves_several_threads)
{
    WITH_SERVER;
    (void)err;
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&t[i], NULL, call_many, ch), 0);
    for (int i = 0; i < 4; i++) {
        void *good = NULL;
        pthread_join(t[i], &good);
        cr_assert_eq(good, (void *)ch);
    }
    END_SERVER;
}

Test(rpc, every_status_arrives_exactly_with_its_sentence)
{
    WITH_SERVER;
    static const vc_status_t all[] = {VC_ERR_INVALID, VC_ERR_UNSUPPORTED, VC_ERR_RANGE,     VC_ERR_AGAIN,
                                      VC_ERR_BUSY,    VC_ERR_TIMEOUT,     VC_ERR_CANCELLED, VC_ERR_NOT_FOUND,
                                      VC_ERR_EXISTS,  VC_ERR_STALE,       VC_ERR_CORRUPT,   VC_ERR_MISMATCH,
                                      VC_ERR_PERM,    VC_ERR_UNREACHABLE, VC_ERR_PROTOCOL,  VC_ERR_NOMEM,
                                      VC_ERR_NOSPACE, VC_ERR_READONLY,    VC_ERR_IO,        VC_ERR_INTERNAL};
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++) {
        vc_bytes_t resp = {0};
        int n = all[i];
        cr_assert_eq(vc_rpc_unary(ch, M("Fail"), &n, sizeof(n), 5000, &resp, &err), all[i], "status %d", n);
        cr_assert_eq(err.status, all[i]);
        cr_assert_str_eq(err.msg, "object 7 is lost");
        cr_assert_null(resp.data);
    }
    END_SERVER;
}

Test(rpc, foreign_statuses_map_by_code_alone)
{
    cr_assert_eq(vc_rpc_status_map(9, "stale: x"), VC_ERR_STALE);
    cr_assert_eq(vc_rpc_status_map(9, "read_only: x"), VC_ERR_READONLY);
    cr_assert_eq(vc_rpc_status_map(9, "corrupt: x"), VC_ERR_STALE); /* the name does not belong to the code */
    cr_assert_eq(vc_rpc_status_map(15, NULL), VC_ERR_CORRUPT);
    cr_assert_eq(vc_rpc_status_map(8, "Received message larger than max (9 vs. 4)"), VC_ERR_RANGE);
    cr_assert_eq(vc_rpc_status_map(16, "no token"), VC_ERR_PERM);
    cr_assert_eq(vc_rpc_status_map(77, "?"), VC_ERR_INTERNAL);
    cr_assert_eq(vc_rpc_status_map(0, ""), VC_OK);
}

Test(rpc, unknown_method_is_unsupported_at_once)
{
    WITH_SERVER;
    for (int i = 0; i < 3; i++) {
        vc_bytes_t resp = {0};
        cr_assert_eq(vc_rpc_unary(ch, M("Nope"), "x", 1, 5000, &resp, &err), VC_ERR_UNSUPPORTED);
        cr_assert_not_null(strstr(err.msg, M("Nope")));
    }
    vc_rpc_stream_t *s = open_stream(ch, M("NopeStream"), 5000);
    vc_bytes_t m = {0};
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_UNSUPPORTED);
    vc_rpc_stream_destroy(s);
    END_SERVER;
}

Test(rpc, client_stream_sums_and_releases_each_body_once)
{
    WITH_SERVER;
    _Atomic int released = 0;
    vc_rpc_stream_t *s = open_stream(ch, M("Sum"), 10000);
    for (int i = 0; i < 20; i++) {
        vc_rpc_msg_t m = {.head = "head", .head_len = 4, .body = body_bytes, .body_len = 1 << 20};
        m.release = count_release;
        m.arg = &released;
        cr_assert_eq(vc_rpc_stream_send(s, &m, &err), VC_OK, "%s", err.msg);
    }
    cr_assert_eq(vc_rpc_stream_half_close(s), VC_OK);
    vc_bytes_t m = {0};
    uint64_t total = 0;
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_OK, "%s", err.msg);
    memcpy(&total, m.data, sizeof(total));
    vc_bytes_free(&m);
    cr_assert_eq(total, 20u * (4 + (1 << 20)));
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_NOT_FOUND);
    cr_assert_str_eq(err.msg, "");
    vc_rpc_stream_destroy(s);
    END_SERVER;
    cr_assert_eq(atomic_load(&released), 20);
}

Test(rpc, server_stream_delivers_in_order_and_releases_each_body_once)
{
    WITH_SERVER;
    vc_rpc_stream_t *s = open_stream(ch, M("Count"), 10000);
    cr_assert_eq(ask_count(s, 30, 1 << 20), VC_OK);
    for (uint32_t i = 0; i < 30; i++) {
        vc_bytes_t m = {0};
        uint32_t got;
        cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_OK, "%s", err.msg);
        cr_assert_eq(m.len, 4 + (1 << 20));
        memcpy(&got, m.data, 4);
        cr_assert_eq(got, i);
        vc_bytes_free(&m);
    }
    vc_bytes_t m = {0};
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_NOT_FOUND);
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_NOT_FOUND); /* stays so */
    vc_rpc_stream_destroy(s);
    END_SERVER;
    cr_assert_eq(atomic_load(&f.released), 30);
}

Test(rpc, bidirectional_stream_answers_each_message)
{
    WITH_SERVER;
    vc_rpc_stream_t *s = open_stream(ch, M("Negate"), 10000);
    for (int i = 1; i <= 40; i++) {
        vc_bytes_t m = {0};
        int got;
        vc_rpc_msg_t out = {.head = &i, .head_len = sizeof(i)};
        cr_assert_eq(vc_rpc_stream_recv(s, 1, &m, &err), VC_ERR_AGAIN); /* nothing was asked yet */
        cr_assert_eq(vc_rpc_stream_send(s, &out, &err), VC_OK);
        cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_OK);
        memcpy(&got, m.data, sizeof(got));
        cr_assert_eq(got, -i);
        vc_bytes_free(&m);
    }
    vc_bytes_t m = {0};
    cr_assert_eq(vc_rpc_stream_half_close(s), VC_OK);
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_NOT_FOUND);
    vc_rpc_stream_destroy(s);
    END_SERVER;
}

Test(rpc, refused_stream_reports_the_status)
{
    WITH_SERVER;
    vc_rpc_stream_t *s = open_stream(ch, M("Refuse"), 5000);
    vc_bytes_t m = {0};
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_STALE);
    cr_assert_str_eq(err.msg, "lease 5 has expired");
    vc_rpc_stream_destroy(s);
    END_SERVER;
}

Test(rpc, deadline_ends_unary_and_stream_with_timeout)
{
    WITH_SERVER;
    vc_rpc_stream_t *busy = open_stream(ch, M("Hang"), 0); /* takes the only slot */
    vc_rpc_stream_t *s = open_stream(ch, M("Hang"), 100);
    vc_bytes_t m = {0};
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_TIMEOUT);
    vc_rpc_stream_destroy(s);
    vc_rpc_stream_destroy(busy);
    END_SERVER;
}

Test(rpc, cancelled_stream_frees_the_slot_and_its_reader)
{
    WITH_SERVER;
    for (int i = 0; i < 3; i++) {
        vc_bytes_t m = {0};
        vc_rpc_stream_t *s = open_stream(ch, M("Hang"), 0);
        cr_assert_eq(vc_rpc_stream_recv(s, 5, &m, &err), VC_ERR_AGAIN);
        vc_rpc_stream_cancel(s);
        cr_assert_eq(vc_rpc_stream_recv(s, 0, &m, &err), VC_ERR_CANCELLED);
        vc_rpc_stream_destroy(s);
    }
    vc_rpc_channel_destroy(ch);
    vc_rpc_server_stop(server, 5000);
    cr_assert_geq(atomic_load(&f.ended), 1); /* a call cancelled before a slot took it never reaches the handler */
}

Test(rpc, oversized_messages_are_range_errors_on_both_sides)
{
    WITH_SERVER;
    static uint8_t big[5 << 20];
    vc_bytes_t m = {0};
    cr_assert_eq(vc_rpc_unary(ch, M("Echo"), big, sizeof(big), 5000, &m, &err), VC_ERR_RANGE); /* own limit: 4 MiB */
    cr_assert_eq(vc_rpc_unary(ch, M("Echo"), big, 3 << 20, 5000, &m, &err), VC_ERR_RANGE);     /* server's: 2 MiB */
    _Atomic int released = 0;
    vc_rpc_stream_t *s = open_stream(ch, M("Sum"), 5000);
    vc_rpc_msg_t out = {.body = big, .body_len = sizeof(big), .release = count_release, .arg = &released};
    cr_assert_eq(vc_rpc_stream_send(s, &out, &err), VC_ERR_RANGE);
    cr_assert_eq(atomic_load(&released), 1);
    vc_rpc_stream_destroy(s);
    END_SERVER;
}

Test(rpc, bad_targets_and_tokens_are_refused)
{
    vc_err_t err = {0};
    vc_rpc_channel_t *ch = NULL;
    vc_rpc_channel_opts_t o;
    vc_rpc_channel_opts_default(&o);
    cr_assert_eq(vc_rpc_channel_create(&o, &ch, &err), VC_ERR_INVALID);
    o.target = "localhost";
    cr_assert_eq(vc_rpc_channel_create(&o, &ch, &err), VC_ERR_INVALID);
    o.target = "127.0.0.1:1";
    o.bearer = "two\nlines";
    cr_assert_eq(vc_rpc_channel_create(&o, &ch, &err), VC_ERR_INVALID);
    cr_assert_null(ch);
}
