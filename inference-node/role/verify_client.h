/*
 * The draft node's end of a Verify stream. A reader thread takes replies off the stream as they come and queues them;
 * the owner takes them when it likes and sends drafts in between. One owner thread per client.
 */
#ifndef NODE_VERIFY_CLIENT_H
#define NODE_VERIFY_CLIENT_H

#include "role/verify_wire.h"

typedef struct node_verify_client node_verify_client_t;

typedef struct node_verify_client_opts {
    const char *target; /* HOST:PORT */
    const char *bearer; /* or NULL */
    uint32_t connect_ms;
    uint32_t idle_ms; /* a stream that says nothing for this long is lost */
} node_verify_client_opts_t;
void node_verify_client_opts_default(node_verify_client_opts_t *opts);

/* Connects and sends Open. UNREACHABLE within connect_ms. */
vc_status_t node_verify_client_open(const node_verify_client_opts_t *opts, const node_wire_open_t *open,
                                    node_verify_client_t **client_p, vc_err_t *err);
/* Ends the stream, joins the reader. */
void node_verify_client_close(node_verify_client_t *client);

vc_status_t node_verify_client_send(node_verify_client_t *client, const node_wire_draft_t *draft, vc_err_t *err);
/* Asks for the rows of verified tokens from position first on. */
vc_status_t node_verify_client_ask_rows(node_verify_client_t *client, uint32_t first, vc_err_t *err);
/* The next reply: OK (free it with node_wire_reply_free), AGAIN after timeout_ms (0: only what is there), or what ended
 * the stream, once every reply before it was taken. *bytes_p (may be NULL): size of the message on the wire. */
vc_status_t node_verify_client_next(node_verify_client_t *client, uint32_t timeout_ms, node_wire_reply_t *reply_p,
                                    size_t *bytes_p, vc_err_t *err);
/* Bytes of messages sent and received so far. */
uint64_t node_verify_client_bytes(node_verify_client_t *client);

#endif
