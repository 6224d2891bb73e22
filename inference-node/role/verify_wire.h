/*
 * The messages of the Verify stream (proto/node.proto) as plain structs: the node's only user of the generated code.
 * Packing allocates, unpacking validates every count and length; what an unpacked struct points to is freed with its
 * _free function.
 */
#ifndef NODE_VERIFY_WIRE_H
#define NODE_VERIFY_WIRE_H

#include "speculate/accept.h"
#include "speculate/sample.h"
#include "speculate/text.h"
#include "vc/keyspace.h"
#include "vc/rpc.h"

#define NODE_VERIFY_METHOD "/vericache.node.v1.Verifier/Verify"
#define NODE_WIRE_TOKENS_MAX (1u << 20)
#define NODE_WIRE_DRAFTS_MAX 256u

typedef struct node_wire_open {
    vc_digest_t keyspace_id;
    uint32_t *prompt, n_prompt;
    uint32_t *committed, n_committed;
    node_sampling_t sampling;
    uint32_t max_tokens;
    char *stops[NODE_STOPS_MAX];
    uint32_t n_stops;
    bool ignore_end;
    char compressor[VC_SPEC_TEXT_MAX];
    uint32_t drafter_numerics;
    uint32_t context; /* 0: the model's */
} node_wire_open_t;

typedef struct node_wire_draft {
    uint32_t epoch, first, n_tokens;
    uint32_t tokens[NODE_WIRE_DRAFTS_MAX];
} node_wire_draft_t;

typedef struct node_wire_opened {
    uint32_t blocks_fetched, tokens_computed, path, fetch_us, prefill_us;
    uint64_t bytes_fetched;
    char note[512];
} node_wire_opened_t;

typedef struct node_wire_verdict {
    uint32_t first, n_tokens;
    uint32_t tokens[NODE_WIRE_DRAFTS_MAX + 1];
    uint32_t accepted, drafted, epoch;
    node_finish_t finish;
    vc_digest_t digest;
    uint32_t tail_first;
    const uint8_t *tail_rows; /* pack: the caller's; unpack: inside the struct's memory */
    size_t tail_bytes;
} node_wire_verdict_t;

typedef enum { NODE_WIRE_OPEN, NODE_WIRE_DRAFT, NODE_WIRE_TAIL, NODE_WIRE_OPENED, NODE_WIRE_VERDICT } node_wire_kind_t;

vc_status_t node_wire_pack_open(const node_wire_open_t *open, vc_bytes_t *bytes_p);
vc_status_t node_wire_pack_draft(const node_wire_draft_t *draft, vc_bytes_t *bytes_p);
vc_status_t node_wire_pack_tail(uint32_t first, vc_bytes_t *bytes_p);
vc_status_t node_wire_pack_opened(const node_wire_opened_t *opened, vc_bytes_t *bytes_p);
vc_status_t node_wire_pack_verdict(const node_wire_verdict_t *verdict, vc_bytes_t *bytes_p);

typedef struct node_wire_request {
    node_wire_kind_t kind; /* OPEN, DRAFT or TAIL */
    node_wire_open_t open;
    node_wire_draft_t draft;
    uint32_t tail_first;
} node_wire_request_t;
/* PROTOCOL names what is wrong. Free with node_wire_request_free, also after a failure. */
vc_status_t node_wire_unpack_request(const void *data, size_t bytes, node_wire_request_t *request_p, vc_err_t *err);
void node_wire_request_free(node_wire_request_t *request);

typedef struct node_wire_reply {
    node_wire_kind_t kind; /* OPENED or VERDICT */
    node_wire_opened_t opened;
    node_wire_verdict_t verdict;
    void *message; /* holds tail_rows */
} node_wire_reply_t;
vc_status_t node_wire_unpack_reply(const void *data, size_t bytes, node_wire_reply_t *reply_p, vc_err_t *err);
void node_wire_reply_free(node_wire_reply_t *reply);

#endif
