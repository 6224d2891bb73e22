/* Verify-stream messages to and from protobuf-c. No state; every length from outside is checked before it is used. */
#include "role/verify_wire.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "node.pb-c.h"
#include "vc/mem.h"

typedef Vericache__Node__V1__VerifyRequest request_msg_t;
typedef Vericache__Node__V1__VerifyReply reply_msg_t;

static vc_status_t pack(const ProtobufCMessage *msg, vc_bytes_t *bytes_p)
{
    size_t len = protobuf_c_message_get_packed_size(msg);
    uint8_t *data = vc_alloc(len);
    if (data == NULL)
        return VC_ERR_NOMEM;
    *bytes_p = (vc_bytes_t){data, protobuf_c_message_pack(msg, data)};
    return VC_OK;
}

static vc_status_t pack_request(request_msg_t *request, vc_bytes_t *bytes_p) { return pack(&request->base, bytes_p); }
static vc_status_t pack_reply(reply_msg_t *reply, vc_bytes_t *bytes_p) { return pack(&reply->base, bytes_p); }

vc_status_t node_wire_pack_open(const node_wire_open_t *open, vc_bytes_t *bytes_p)
{
    Vericache__Node__V1__Sampling sampling = VERICACHE__NODE__V1__SAMPLING__INIT;
    sampling.temperature = open->sampling.temperature;
    sampling.top_p = open->sampling.top_p;
    sampling.top_k = open->sampling.top_k;
    sampling.min_p = open->sampling.min_p;
    sampling.repeat_penalty = open->sampling.repeat_penalty;
    sampling.presence_penalty = open->sampling.presence_penalty;
    sampling.frequency_penalty = open->sampling.frequency_penalty;
    sampling.seed = open->sampling.seed;
    ProtobufCBinaryData stops[NODE_STOPS_MAX];
    for (uint32_t i = 0; i < open->n_stops; i++)
        stops[i] = (ProtobufCBinaryData){strlen(open->stops[i]), (uint8_t *)open->stops[i]};
    vc_digest_t keyspace_id = open->keyspace_id;
    Vericache__Node__V1__Open msg = VERICACHE__NODE__V1__OPEN__INIT;
    msg.keyspace_id = (ProtobufCBinaryData){VC_DIGEST_BYTES, keyspace_id.b};
    msg.n_prompt = open->n_prompt;
    msg.prompt = open->prompt;
    msg.n_committed = open->n_committed;
    msg.committed = open->committed;
    msg.sampling = &sampling;
    msg.max_tokens = open->max_tokens;
    msg.n_stop = open->n_stops;
    msg.stop = stops;
    msg.ignore_end = open->ignore_end;
    msg.compressor = (char *)open->compressor;
    msg.drafter_numerics = open->drafter_numerics;
    msg.context = open->context;
    request_msg_t request = VERICACHE__NODE__V1__VERIFY_REQUEST__INIT;
    request.kind_case = VERICACHE__NODE__V1__VERIFY_REQUEST__KIND_OPEN;
    request.open = &msg;
    return pack_request(&request, bytes_p);
}

vc_status_t node_wire_pack_draft(const node_wire_draft_t *draft, vc_bytes_t *bytes_p)
{
    Vericache__Node__V1__Draft msg = VERICACHE__NODE__V1__DRAFT__INIT;
    msg.epoch = draft->epoch;
    msg.first = draft->first;
    msg.n_tokens = draft->n_tokens;
    msg.tokens = (uint32_t *)draft->tokens;
    request_msg_t request = VERICACHE__NODE__V1__VERIFY_REQUEST__INIT;
    request.kind_case = VERICACHE__NODE__V1__VERIFY_REQUEST__KIND_DRAFT;
    request.draft = &msg;
    return pack_request(&request, bytes_p);
}

vc_status_t node_wire_pack_tail(uint32_t first, vc_bytes_t *bytes_p)
{
    Vericache__Node__V1__Tail msg = VERICACHE__NODE__V1__TAIL__INIT;
    msg.first = first;
    request_msg_t request = VERICACHE__NODE__V1__VERIFY_REQUEST__INIT;
    request.kind_case = VERICACHE__NODE__V1__VERIFY_REQUEST__KIND_TAIL;
    request.tail = &msg;
    return pack_request(&request, bytes_p);
}

vc_status_t node_wire_pack_opened(const node_wire_opened_t *opened, vc_bytes_t *bytes_p)
{
    Vericache__Node__V1__Opened msg = VERICACHE__NODE__V1__OPENED__INIT;
    msg.blocks_fetched = opened->blocks_fetched;
    msg.tokens_computed = opened->tokens_computed;
    msg.bytes_fetched = opened->bytes_fetched;
    msg.path = opened->path;
    msg.fetch_us = opened->fetch_us;
    msg.prefill_us = opened->prefill_us;
    msg.cache_note = (char *)opened->note;
    reply_msg_t reply = VERICACHE__NODE__V1__VERIFY_REPLY__INIT;
    reply.kind_case = VERICACHE__NODE__V1__VERIFY_REPLY__KIND_OPENED;
    reply.opened = &msg;
    return pack_reply(&reply, bytes_p);
}

vc_status_t node_wire_pack_verdict(const node_wire_verdict_t *verdict, vc_bytes_t *bytes_p)
{
    vc_digest_t digest = verdict->digest;
    Vericache__Node__V1__Verdict msg = VERICACHE__NODE__V1__VERDICT__INIT;
    msg.first = verdict->first;
    msg.n_tokens = verdict->n_tokens;
    msg.tokens = (uint32_t *)verdict->tokens;
    msg.accepted = verdict->accepted;
    msg.drafted = verdict->drafted;
    msg.finish = (uint32_t)verdict->finish;
    msg.epoch = verdict->epoch;
    msg.logits_digest = (ProtobufCBinaryData){VC_DIGEST_BYTES, digest.b};
    msg.tail_first = verdict->tail_first;
    msg.tail_rows = (ProtobufCBinaryData){verdict->tail_bytes, (uint8_t *)verdict->tail_rows};
    reply_msg_t reply = VERICACHE__NODE__V1__VERIFY_REPLY__INIT;
    reply.kind_case = VERICACHE__NODE__V1__VERIFY_REPLY__KIND_VERDICT;
    reply.verdict = &msg;
    return pack_reply(&reply, bytes_p);
}

static vc_status_t bad(vc_err_t *err, const char *what)
{
    return vc_err_set(err, VC_ERR_PROTOCOL, "malformed verify message: %s", what);
}

static vc_status_t copy_tokens(const uint32_t *from, size_t n, uint32_t **to_p, uint32_t *n_p)
{
    *n_p = (uint32_t)n;
    *to_p = vc_memdup(from, n * sizeof(*from));
    return *to_p == NULL ? VC_ERR_NOMEM : VC_OK;
}

static void take_sampling(const Vericache__Node__V1__Sampling *from, node_sampling_t *to)
{
    node_sampling_default(to);
    if (from == NULL)
        return;
    to->temperature = from->temperature;
    to->top_k = from->top_k;
    to->top_p = from->top_p == 0 ? 1 : from->top_p; /* a field that was not set is off */
    to->min_p = from->min_p;
    to->repeat_penalty = from->repeat_penalty == 0 ? 1 : from->repeat_penalty;
    to->presence_penalty = from->presence_penalty;
    to->frequency_penalty = from->frequency_penalty;
    to->seed = from->seed;
}

static vc_status_t take_stops(const Vericache__Node__V1__Open *msg, node_wire_open_t *open, vc_err_t *err)
{
    if (msg->n_stop > NODE_STOPS_MAX)
        return bad(err, "too many stop strings");
    for (size_t i = 0; i < msg->n_stop; i++) {
        if (msg->stop[i].len == 0 || msg->stop[i].len > NODE_STOP_BYTES_MAX ||
            memchr(msg->stop[i].data, 0, msg->stop[i].len) != NULL)
            return bad(err, "stop string is empty, too long or has a zero byte");
        char *copy = vc_calloc(msg->stop[i].len + 1, 1);
        if (copy == NULL)
            return vc_err_set(err, VC_ERR_NOMEM, "no memory for a stop string");
        memcpy(copy, msg->stop[i].data, msg->stop[i].len);
        open->stops[open->n_stops++] = copy;
    }
    return VC_OK;
}

static vc_status_t take_open(const Vericache__Node__V1__Open *msg, node_wire_open_t *open, vc_err_t *err)
{
    if (msg->keyspace_id.len != VC_DIGEST_BYTES)
        return bad(err, "keyspace id is not 32 bytes");
    if (msg->n_prompt == 0 || msg->n_prompt > NODE_WIRE_TOKENS_MAX || msg->n_committed > NODE_WIRE_TOKENS_MAX)
        return bad(err, "number of prompt or committed tokens");
    if (msg->compressor == NULL || strlen(msg->compressor) >= sizeof(open->compressor))
        return bad(err, "compressor spec is too long");
    memcpy(open->keyspace_id.b, msg->keyspace_id.data, VC_DIGEST_BYTES);
    if (copy_tokens(msg->prompt, msg->n_prompt, &open->prompt, &open->n_prompt) != VC_OK ||
        copy_tokens(msg->committed, msg->n_committed, &open->committed, &open->n_committed) != VC_OK)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a prompt of %zu tokens", msg->n_prompt);
    take_sampling(msg->sampling, &open->sampling);
    open->max_tokens = msg->max_tokens;
    open->ignore_end = msg->ignore_end;
    open->drafter_numerics = msg->drafter_numerics;
    open->context = msg->context;
    snprintf(open->compressor, sizeof(open->compressor), "%s", msg->compressor);
    return take_stops(msg, open, err);
}

static vc_status_t take_draft(const Vericache__Node__V1__Draft *msg, node_wire_draft_t *draft, vc_err_t *err)
{
    if (msg->n_tokens == 0 || msg->n_tokens > NODE_WIRE_DRAFTS_MAX)
        return bad(err, "number of draft tokens");
    draft->epoch = msg->epoch;
    draft->first = msg->first;
    draft->n_tokens = (uint32_t)msg->n_tokens;
    memcpy(draft->tokens, msg->tokens, msg->n_tokens * sizeof(msg->tokens[0]));
    return VC_OK;
}

vc_status_t node_wire_unpack_request(const void *data, size_t bytes, node_wire_request_t *request_p, vc_err_t *err)
{
    *request_p = (node_wire_request_t){0};
    request_msg_t *msg = vericache__node__v1__verify_request__unpack(NULL, bytes, data);
    if (msg == NULL)
        return bad(err, "not a VerifyRequest");
    vc_status_t status;
    if (msg->kind_case == VERICACHE__NODE__V1__VERIFY_REQUEST__KIND_OPEN && msg->open != NULL) {
        request_p->kind = NODE_WIRE_OPEN;
        status = take_open(msg->open, &request_p->open, err);
    } else if (msg->kind_case == VERICACHE__NODE__V1__VERIFY_REQUEST__KIND_DRAFT && msg->draft != NULL) {
        request_p->kind = NODE_WIRE_DRAFT;
        status = take_draft(msg->draft, &request_p->draft, err);
    } else if (msg->kind_case == VERICACHE__NODE__V1__VERIFY_REQUEST__KIND_TAIL && msg->tail != NULL) {
        request_p->kind = NODE_WIRE_TAIL;
        request_p->tail_first = msg->tail->first;
        status = VC_OK;
    } else {
        status = bad(err, "neither Open nor Draft nor Tail");
    }
    vericache__node__v1__verify_request__free_unpacked(msg, NULL);
    return status;
}

void node_wire_request_free(node_wire_request_t *request)
{
    vc_free(request->open.prompt);
    vc_free(request->open.committed);
    for (uint32_t i = 0; i < request->open.n_stops; i++)
        vc_free(request->open.stops[i]);
    *request = (node_wire_request_t){0};
}

static void take_opened(const Vericache__Node__V1__Opened *msg, node_wire_opened_t *opened)
{
    opened->blocks_fetched = msg->blocks_fetched;
    opened->tokens_computed = msg->tokens_computed;
    opened->bytes_fetched = msg->bytes_fetched;
    opened->path = msg->path;
    opened->fetch_us = msg->fetch_us;
    opened->prefill_us = msg->prefill_us;
    snprintf(opened->note, sizeof(opened->note), "%.*s", (int)sizeof(opened->note) - 1,
             msg->cache_note != NULL ? msg->cache_note : "");
}

static vc_status_t take_verdict(const Vericache__Node__V1__Verdict *msg, node_wire_verdict_t *verdict, vc_err_t *err)
{
    if (msg->n_tokens > VC_ARRAY_LEN(verdict->tokens) || msg->accepted > msg->n_tokens || msg->accepted > msg->drafted)
        return bad(err, "number of committed tokens");
    if (msg->logits_digest.len != VC_DIGEST_BYTES)
        return bad(err, "digest is not 32 bytes");
    if (msg->finish > NODE_FINISH_CONTEXT)
        return bad(err, "unknown finish reason");
    verdict->first = msg->first;
    verdict->n_tokens = (uint32_t)msg->n_tokens;
    if (msg->n_tokens > 0)
        memcpy(verdict->tokens, msg->tokens, msg->n_tokens * sizeof(msg->tokens[0]));
    verdict->accepted = msg->accepted;
    verdict->drafted = msg->drafted;
    verdict->epoch = msg->epoch;
    verdict->finish = (node_finish_t)msg->finish;
    memcpy(verdict->digest.b, msg->logits_digest.data, VC_DIGEST_BYTES);
    verdict->tail_first = msg->tail_first;
    verdict->tail_rows = msg->tail_rows.data;
    verdict->tail_bytes = msg->tail_rows.len;
    return VC_OK;
}

vc_status_t node_wire_unpack_reply(const void *data, size_t bytes, node_wire_reply_t *reply_p, vc_err_t *err)
{
    *reply_p = (node_wire_reply_t){0};
    reply_msg_t *msg = vericache__node__v1__verify_reply__unpack(NULL, bytes, data);
    if (msg == NULL)
        return bad(err, "not a VerifyReply");
    reply_p->message = msg;
    if (msg->kind_case == VERICACHE__NODE__V1__VERIFY_REPLY__KIND_OPENED && msg->opened != NULL) {
        reply_p->kind = NODE_WIRE_OPENED;
        take_opened(msg->opened, &reply_p->opened);
        return VC_OK;
    }
    if (msg->kind_case == VERICACHE__NODE__V1__VERIFY_REPLY__KIND_VERDICT && msg->verdict != NULL) {
        reply_p->kind = NODE_WIRE_VERDICT;
        return take_verdict(msg->verdict, &reply_p->verdict, err);
    }
    return bad(err, "neither Opened nor Verdict");
}

void node_wire_reply_free(node_wire_reply_t *reply)
{
    if (reply->message != NULL)
        vericache__node__v1__verify_reply__free_unpacked(reply->message, NULL);
    *reply = (node_wire_reply_t){0};
}
