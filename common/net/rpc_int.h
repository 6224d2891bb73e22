/* What the files of the rpc module share; nobody else includes it. */
#ifndef VC_RPC_INT_H
#define VC_RPC_INT_H

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <stdatomic.h>

#include "vc/rpc.h"

#define VC_RPC_METADATA_BYTES 16384
#define VC_RPC_MAX_MESSAGE (8u << 20)
#define VC_RPC_STREAMS 1024 /* calls in flight on one connection; HTTP/2 holds further ones back at the client */
/* A lookup of 256 blocks is a little more than HTTP/2's first window of 64 KiB: without this it costs a round trip
 * more. */
#define VC_RPC_LOOKAHEAD (256 << 10)

/* Milliseconds from now on gRPC's monotonic clock; 0 = for ever. */
gpr_timespec vc_rpc_deadline(uint32_t ms);

uint64_t vc_rpc_now_ms(void); /* monotonic, coarse; never 0 */

/* Head copied, body borrowed. On failure (NULL) the body has been released. */
grpc_byte_buffer *vc_rpc_buffer_make(const vc_rpc_msg_t *msg);
void vc_rpc_msg_release(const vc_rpc_msg_t *msg); /* for a message that never became a buffer */
/* Copies a received message out; the buffer stays the caller's. */
vc_status_t vc_rpc_buffer_read(grpc_byte_buffer *buffer, vc_bytes_t *out);

/* Status and sentence of a finished call, the name prefix taken off. OK leaves err alone. */
vc_status_t vc_rpc_status_take(grpc_status_code code, grpc_slice details, vc_err_t *err);
/* "name: sentence" where the code alone would not say which status it was. */
grpc_slice vc_rpc_details_make(vc_status_t status, const vc_err_t *err);

/* One batch: start, wait until `deadline`. False when it could not be started, failed, or is still pending. */
typedef enum { VC_RPC_BATCH_OK, VC_RPC_BATCH_FAILED, VC_RPC_BATCH_PENDING } vc_rpc_batch_t;
vc_rpc_batch_t vc_rpc_pluck(grpc_completion_queue *cq, void *tag, gpr_timespec deadline);
/* Shuts down, drains and destroys a queue for pluck. */
void vc_rpc_cq_destroy(grpc_completion_queue *cq);

/* Client: a connected channel (conn) and how to give it back; rpc_channel.c. */
typedef struct vc_rpc_conn vc_rpc_conn_t;
vc_status_t vc_rpc_channel_call(vc_rpc_channel_t *ch, const char *method, uint32_t deadline_ms,
                                grpc_completion_queue *cq, grpc_call **call_p, vc_err_t *err);
/* The bearer token as metadata; count 0 when there is none. The slices live as long as the channel. */
size_t vc_rpc_channel_metadata(vc_rpc_channel_t *ch, grpc_metadata *md);
size_t vc_rpc_channel_max_message(const vc_rpc_channel_t *ch);

/* Server side of one call. */
struct vc_rpc_call {
    grpc_call *call;
    grpc_completion_queue *cq;
    size_t max_message_bytes;
    uint32_t stall_ms;
    char *peer;                   /* lazily */
    struct vc_rpc_later *request; /* of a unary call */
    bool is_deferred;
    bool streaming, sent_initial, recv_pending;
    /* Streaming. Since when the handler waits for the peer, 0: it does not. Relaxed, like the flag: the slot that reads
     * them holds the server's lock and may be a moment late. */
    _Atomic uint64_t waits_since_ms;
    _Atomic bool is_reclaimed; /* ended to make room for another call */
    grpc_byte_buffer *recv_buf;
    pthread_mutex_t close_lock; /* guards close_done and the pluck of its tag: a reader and a writer may both ask */
    bool close_done;
    int cancelled;
    int tag_send, tag_recv, tag_close, tag_status; /* addresses only */
};
/* Starts the batch that learns of the end of the call. */
vc_status_t vc_rpc_call_begin(vc_rpc_call_t *c);
/* Sends the status, collects every pending batch, frees what the call owns. */
void vc_rpc_call_end(vc_rpc_call_t *c, vc_status_t status, const vc_err_t *err);

#endif
