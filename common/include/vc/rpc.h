/*
 * gRPC C-core with bytes in and bytes out. Knows channels, calls and completion queues; knows no message.
 *
 * Client: blocking calls with a deadline. A stream may be written by one thread and read by another.
 * Server: one table of methods. Unary handlers run on the control threads and must not block; each streaming method has
 * a fixed number of slots, a slot is a thread with its own completion queue that takes one call at a time and runs a
 * blocking handler. Calls beyond the slots wait inside gRPC until their deadline: that is the back-pressure. Messages
 * are limited to max_message_bytes in both directions; keepalive finds dead peers.
 */
#ifndef VC_RPC_H
#define VC_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vc/status.h"

/* Reference-counted library start and stop. Every create below takes one by itself. */
void vc_rpc_init(void);
void vc_rpc_fini(void);

#define VC_RPC_NO_WAIT UINT32_MAX /* as timeout_ms of a recv: only what is there already */

typedef struct vc_bytes { /* owned; free with vc_bytes_free */
    uint8_t *data;
    size_t len;
} vc_bytes_t;
void vc_bytes_free(vc_bytes_t *bytes);

/* A message made of a small copied head and an optional borrowed body: `release(arg)` runs, on any gRPC thread, when
 * gRPC has let go of the body. It runs exactly once, whether or not the send worked. */
typedef struct vc_rpc_msg {
    const void *head;
    size_t head_len;
    const void *body;
    size_t body_len;
    void (*release)(void *arg);
    void *arg;
} vc_rpc_msg_t;

/* ---- client ---- */
typedef struct vc_rpc_channel vc_rpc_channel_t;
typedef struct vc_rpc_stream vc_rpc_stream_t;

typedef struct vc_rpc_channel_opts {
    const char *target;       /* HOST:PORT */
    const char *bearer;       /* token, or NULL */
    uint32_t connect_ms;      /* longest wait for a connection before a call fails with UNREACHABLE */
    size_t max_message_bytes; /* default 8 MiB */
} vc_rpc_channel_opts_t;
void vc_rpc_channel_opts_default(vc_rpc_channel_opts_t *opts);
vc_status_t vc_rpc_channel_create(const vc_rpc_channel_opts_t *opts, vc_rpc_channel_t **ch_p, vc_err_t *err);
void vc_rpc_channel_destroy(vc_rpc_channel_t *ch);

/* method: "/vericache.v1.Cache/Lookup". gRPC statuses come back mapped (vc_rpc_status_map) with the peer's sentence in
 * err. */
vc_status_t vc_rpc_unary(vc_rpc_channel_t *ch, const char *method, const void *req, size_t req_len,
                         uint32_t deadline_ms, vc_bytes_t *resp_p, vc_err_t *err);

/* deadline_ms 0: none. */
vc_status_t vc_rpc_stream_open(vc_rpc_channel_t *ch, const char *method, uint32_t deadline_ms, vc_rpc_stream_t **s_p,
                               vc_err_t *err);
vc_status_t vc_rpc_stream_send(vc_rpc_stream_t *s, const vc_rpc_msg_t *msg, vc_err_t *err); /* blocks until accepted */
vc_status_t vc_rpc_stream_half_close(vc_rpc_stream_t *s);
/* OK with a message; NOT_FOUND with an empty sentence at the end of a stream that ended well; AGAIN after timeout_ms
 * (0: wait for ever); otherwise the mapped status of the call, with its sentence. */
vc_status_t vc_rpc_stream_recv(vc_rpc_stream_t *s, uint32_t timeout_ms, vc_bytes_t *msg_p, vc_err_t *err);
void vc_rpc_stream_cancel(vc_rpc_stream_t *s);  /* any thread */
void vc_rpc_stream_destroy(vc_rpc_stream_t *s); /* cancels when still open; no other thread may be inside */

/* ---- server ---- */
typedef struct vc_rpc_server vc_rpc_server_t;
typedef struct vc_rpc_call vc_rpc_call_t; /* server side of one call */

/* Unary: reads req, fills *resp (owned, freed by the server). The status and err->msg go to the client. */
typedef vc_status_t (*vc_rpc_unary_fn)(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                                       vc_err_t *err);
/* Streaming of any kind: the handler receives and sends until it returns; its status ends the call. */
typedef vc_status_t (*vc_rpc_stream_fn)(void *arg, vc_rpc_call_t *call, vc_err_t *err);

typedef struct vc_rpc_method {
    const char *name; /* "/vericache.v1.Cache/Lookup" */
    vc_rpc_unary_fn unary;
    vc_rpc_stream_fn stream; /* exactly one of the two */
    uint32_t slots;          /* streaming: calls served at once */
} vc_rpc_method_t;

typedef struct vc_rpc_server_opts {
    const char *listen; /* HOST:PORT; port 0 = any */
    const vc_rpc_method_t *methods;
    uint32_t n_methods;
    void *arg;                /* for the handlers */
    uint32_t n_unary_threads; /* default 1 */
    size_t max_message_bytes; /* default 8 MiB */
    uint32_t stall_ms;        /* a send or an answer not accepted for this long ends the call; default 30,000 */
    uint32_t reclaim_ms; /* while a streaming call waits for a slot, one whose peer takes or sends nothing for this long
                            is ended with TIMEOUT; 0: never, the default */
    uint32_t max_calls;  /* unary calls in flight over all connections; more are answered BUSY; default 4096 */
    size_t memory_bytes; /* what gRPC may hold for all connections together; default 512 MiB */
    uint32_t idle_connection_ms; /* a connection without a call for this long is closed; default one hour */
    uint32_t dead_peer_ms;       /* a connection that acknowledges nothing for this long is dead; default 10,000. Bounds
                                    vc_rpc_server_stop too: TCP data under way to a stalled peer cannot be taken back. */
} vc_rpc_server_opts_t;
void vc_rpc_server_opts_default(vc_rpc_server_opts_t *opts);
/* A busy port is UNREACHABLE with a sentence naming it. SO_REUSEPORT is off. */
vc_status_t vc_rpc_server_start(const vc_rpc_server_opts_t *opts, vc_rpc_server_t **server_p, vc_err_t *err);
int vc_rpc_server_port(const vc_rpc_server_t *server);
typedef struct vc_rpc_server_stats {
    uint32_t calls;     /* unary calls in flight, answers on their way included */
    uint64_t total;     /* unary calls taken since start */
    uint64_t refused;   /* answered BUSY because of max_calls */
    uint64_t reclaimed; /* streams that were ended because of reclaim_ms */
    uint64_t stalled;   /* answers that their clients did not accept within stall_ms */
} vc_rpc_server_stats_t;
void vc_rpc_server_get_stats(const vc_rpc_server_t *server, vc_rpc_server_stats_t *stats_p);
/* Stops taking calls, waits grace_ms for running ones, cancels the rest, joins every thread. Ends clean with a stalled
 * client. */
void vc_rpc_server_stop(vc_rpc_server_t *server, uint32_t grace_ms);

/* Inside a unary handler: its answer comes later, by vc_rpc_later_finish, exactly once and from any thread, which may
 * be before the handler returns. What the handler returns then is ignored, its resp must stay empty, and only the
 * handle may be used from there on. vc_rpc_server_stop waits for it. finish takes over the bytes of resp (NULL: none)
 * and does not block. */
typedef struct vc_rpc_later vc_rpc_later_t;
vc_rpc_later_t *vc_rpc_call_defer(vc_rpc_call_t *call);
void vc_rpc_later_finish(vc_rpc_later_t *later, vc_status_t status, vc_bytes_t *resp, const vc_err_t *err);

/* Inside a streaming handler; one thread may receive while another sends. recv: OK; NOT_FOUND when the client
 * half-closed; AGAIN after timeout_ms (0: wait for ever); CANCELLED when the call is gone (a cancellation at the very
 * moment of a half-close may show at the next send only). */
vc_status_t vc_rpc_call_recv(vc_rpc_call_t *call, uint32_t timeout_ms, vc_bytes_t *msg_p);
vc_status_t vc_rpc_call_send(vc_rpc_call_t *call,
                             const vc_rpc_msg_t *msg); /* blocks; CANCELLED: the call is gone; TIMEOUT: stall_ms */
bool vc_rpc_call_is_cancelled(vc_rpc_call_t *call);
const char *vc_rpc_call_peer(vc_rpc_call_t *call);

/* gRPC status code <-> ours: CANCELLED 1, INVALID 3, TIMEOUT 4, NOT_FOUND 5, EXISTS 6, PERM 7, BUSY/NOSPACE/NOMEM 8
 * (RESOURCE_EXHAUSTED), STALE/MISMATCH/READONLY 9 (FAILED_PRECONDITION), AGAIN 10, RANGE 11, UNSUPPORTED 12,
 * INTERNAL/PROTOCOL 13, UNREACHABLE 14, CORRUPT/IO 15 (DATA_LOSS). Codes that share a number travel by name in front of
 * the sentence ("stale: ..."), so the mapping is exact between our programs. */
int vc_rpc_status_code(vc_status_t status);
vc_status_t vc_rpc_status_map(int grpc_code, const char *message);

#endif
