/* A server with one method of every kind, a channel to it, and the calls that the suites of the rpc module share. */
#ifndef RPC_FIXTURE_H
#define RPC_FIXTURE_H

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "support/vc_test.h"
#include "vc/mem.h"
#include "vc/rpc.h"

#define M(name) "/test.v1.Test/" name

typedef struct {
    _Atomic int released; /* bodies that came back */
    _Atomic int sends;    /* sends that were started */
    _Atomic int ended;    /* streaming handlers that returned */
    vc_status_t fail_with;
} fixture_t;

static void count_release(void *arg) { atomic_fetch_add((_Atomic int *)arg, 1); }

static vc_status_t echo(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp, vc_err_t *err)
{
    (void)arg;
    (void)err;
    cr_assert_not_null(strstr(vc_rpc_call_peer(call), "127.0.0.1"));
    resp->data = vc_memdup(req, len);
    resp->len = len;
    return VC_OK;
}

static vc_status_t fail(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp, vc_err_t *err)
{
    (void)call;
    (void)resp;
    fixture_t *f = arg;
    int n;
    if (len == sizeof(n)) {
        memcpy(&n, req, sizeof(n));
        f->fail_with = (vc_status_t)n;
    }
    return vc_err_set(err, f->fail_with, "object 7 is lost");
}

/* Client stream: answers the number of bytes that came. */
static vc_status_t sum(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    (void)err;
    fixture_t *f = arg;
    uint64_t total = 0;
    vc_bytes_t m = {0};
    vc_status_t st;
    while ((st = vc_rpc_call_recv(call, 0, &m)) == VC_OK) {
        total += m.len;
        vc_bytes_free(&m);
    }
    atomic_fetch_add(&f->ended, 1);
    if (st != VC_ERR_NOT_FOUND)
        return st;
    vc_rpc_msg_t out = {.head = &total, .head_len = sizeof(total)};
    return vc_rpc_call_send(call, &out);
}

/* Server stream: {u32 count, u32 body bytes} -> count messages of {u32 i, body}. */
static uint8_t body_bytes[1 << 20];

static vc_status_t count_up(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    fixture_t *f = arg;
    vc_bytes_t m = {0};
    uint32_t want[2];
    vc_status_t st = vc_rpc_call_recv(call, 0, &m);
    if (st == VC_OK && m.len != sizeof(want))
        st = vc_err_set(err, VC_ERR_INVALID, "bad request");
    if (st == VC_OK)
        memcpy(want, m.data, sizeof(want));
    vc_bytes_free(&m);
    for (uint32_t i = 0; st == VC_OK && i < want[0]; i++) {
        vc_rpc_msg_t out = {.head = &i, .head_len = 4, .body = body_bytes, .body_len = want[1]};
        out.release = count_release;
        out.arg = &f->released;
        atomic_fetch_add(&f->sends, 1);
        st = vc_rpc_call_send(call, &out);
    }
    atomic_fetch_add(&f->ended, 1);
    return st;
}

/* Bidirectional: every message comes back, reversed in sign. */
static vc_status_t negate(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    (void)err;
    fixture_t *f = arg;
    vc_bytes_t m = {0};
    vc_status_t st;
    while ((st = vc_rpc_call_recv(call, 0, &m)) == VC_OK) {
        int v;
        memcpy(&v, m.data, sizeof(v));
        vc_bytes_free(&m);
        v = -v;
        vc_rpc_msg_t out = {.head = &v, .head_len = sizeof(v)};
        st = vc_rpc_call_send(call, &out);
        if (st != VC_OK)
            break;
    }
    atomic_fetch_add(&f->ended, 1);
    return st == VC_ERR_NOT_FOUND ? VC_OK : st;
}

/* Waits for the end of the call and nothing else. */
static vc_status_t hang(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    fixture_t *f = arg;
    vc_bytes_t m = {0};
    while (!vc_rpc_call_is_cancelled(call)) {
        if (vc_rpc_call_recv(call, 20, &m) == VC_ERR_CANCELLED)
            break;
        vc_bytes_free(&m);
    }
    atomic_fetch_add(&f->ended, 1);
    return vc_err_set(err, VC_ERR_CANCELLED, "gone");
}

static vc_status_t refuse(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    (void)call;
    atomic_fetch_add(&((fixture_t *)arg)->ended, 1);
    return vc_err_set(err, VC_ERR_STALE, "lease 5 has expired");
}

static const vc_rpc_method_t methods[] = {
    {M("Echo"), echo, NULL, 0},      {M("Fail"), fail, NULL, 0},     {M("Sum"), NULL, sum, 1},
    {M("Count"), NULL, count_up, 2}, {M("Negate"), NULL, negate, 1}, {M("Hang"), NULL, hang, 1},
    {M("Refuse"), NULL, refuse, 1},
};

static inline vc_rpc_server_t *start(fixture_t *f, int port)
{
    char listen_addr[64];
    vc_err_t err = {0};
    vc_rpc_server_t *server = NULL;
    vc_rpc_server_opts_t o;
    vc_rpc_server_opts_default(&o);
    snprintf(listen_addr, sizeof(listen_addr), "127.0.0.1:%d", port);
    o.listen = listen_addr;
    o.methods = methods;
    o.n_methods = VC_ARRAY_LEN(methods);
    o.arg = f;
    o.n_unary_threads = 2;
    o.dead_peer_ms = 1000; /* bounds the stop with a stalled client */
    o.max_message_bytes = 2 << 20;
    cr_assert_eq(vc_rpc_server_start(&o, &server, &err), VC_OK, "%s", err.msg);
    return server;
}

static inline vc_rpc_channel_t *dial(int port)
{
    char target[64];
    vc_err_t err = {0};
    vc_rpc_channel_t *ch = NULL;
    vc_rpc_channel_opts_t o;
    vc_rpc_channel_opts_default(&o);
    snprintf(target, sizeof(target), "127.0.0.1:%d", port);
    o.target = target;
    o.bearer = "secret";
    o.max_message_bytes = 4 << 20;
    cr_assert_eq(vc_rpc_channel_create(&o, &ch, &err), VC_OK, "%s", err.msg);
    return ch;
}

#define WITH_SERVER                         \
    fixture_t f = {0};                      \
    vc_err_t err = {0};                     \
    vc_rpc_server_t *server = start(&f, 0); \
    vc_rpc_channel_t *ch = dial(vc_rpc_server_port(server))
#define END_SERVER              \
    vc_rpc_channel_destroy(ch); \
    vc_rpc_server_stop(server, 1000)

static inline vc_rpc_stream_t *open_stream(vc_rpc_channel_t *ch, const char *method, uint32_t deadline_ms)
{
    vc_err_t err = {0};
    vc_rpc_stream_t *s = NULL;
    cr_assert_eq(vc_rpc_stream_open(ch, method, deadline_ms, &s, &err), VC_OK, "%s", err.msg);
    return s;
}

static inline vc_status_t ask_count(vc_rpc_stream_t *s, uint32_t n, uint32_t bytes)
{
    uint32_t want[2] = {n, bytes};
    vc_rpc_msg_t m = {.head = want, .head_len = sizeof(want)};
    vc_status_t st = vc_rpc_stream_send(s, &m, NULL);
    return st == VC_OK ? vc_rpc_stream_half_close(s) : st;
}

#endif
