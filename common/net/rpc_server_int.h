/* What the files of the server side share: rpc_server.c (start, stop), rpc_unary.c, rpc_slots.c. */
#ifndef VC_RPC_SERVER_INT_H
#define VC_RPC_SERVER_INT_H

#include <stdatomic.h>

#include "rpc_int.h"

typedef struct {
    vc_rpc_method_t m;
    char *name;
    void *registered;
    uint32_t n_slots, n_serve; /* streaming: threads; calls served at once */
    uint32_t n_serving;        /* under the server's lock */
} vc_rpc_entry_t;

typedef struct {
    struct vc_rpc_server *server;
    vc_rpc_entry_t *method;
    grpc_completion_queue *cq;      /* of its calls */
    grpc_completion_queue *idle_cq; /* where it waits for one; polls no socket, so that it takes no work from others */
    pthread_t thread;
    bool running;
    vc_rpc_call_t *call; /* being served; under the server's lock */
} vc_rpc_slot_t;

typedef struct vc_rpc_later vc_rpc_request_t; /* one unary call; a handler that defers it holds it as vc_rpc_later_t */

struct vc_rpc_server {
    grpc_server *server;
    grpc_completion_queue *control_cq, *shutdown_cq;
    vc_rpc_entry_t *methods;
    uint32_t n_methods;
    vc_rpc_slot_t *slots;
    uint32_t n_slots;
    pthread_t *control;
    uint32_t n_control, n_control_running;
    void *arg;
    size_t max_message_bytes;
    uint32_t stall_ms, dead_peer_ms, reclaim_ms, max_calls;
    int port;
    /* Relaxed: a request posted after the flag was set fails by itself, since gRPC refuses it after shutdown. */
    _Atomic bool stopping;
    _Atomic uint32_t calls; /* unary calls taken and not over; relaxed, the limits may be passed by a few */
    _Atomic uint64_t total, refused, stalled, reclaimed; /* relaxed: statistics */
    pthread_mutex_t lock;                                /* guards the rest */
    pthread_cond_t undeferred, slot_freed;
    uint32_t n_deferred;
    vc_rpc_request_t *oldest, *newest; /* answers on their way, in the order of their start */
};

/* Posts the first requests. */
void vc_rpc_unary_start(vc_rpc_server_t *s);
/* The loop of a control thread; returns when the queue has been shut down and is empty. */
void vc_rpc_unary_serve(vc_rpc_server_t *s);
void *vc_rpc_slot_main(void *slot);
/* Until every deferred call has been answered. */
void vc_rpc_unary_settle(vc_rpc_server_t *s);

#endif
