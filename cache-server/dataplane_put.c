/*
 * PUT: a record of the peer -> pool buffer -> store -> acknowledgement. The token is looked at first: who has no upload
 * gets no buffer. UCX keeps the payload (for a rendezvous: at the sender) until there is a buffer; the put window
 * bounds how many a peer may have waiting.
 */
#include <stdio.h>
#include <string.h>

#include "dataplane_int.h"
#include "vc/log.h"
#include "vc/mem.h"

static void acknowledge(dp_op_t *op, vc_status_t status, const char *text)
{
    cs_dataplane_t *dp = op->dp;
    dp_peer_t *peer = op->peer;
    dp_op_drop_buffer(op);
    cs_store_count_refusal(dp->opts.store, status);
    if (status == VC_ERR_CORRUPT) { /* it was whole when the peer made it, or the peer is at fault: count, go on */
        DP_COUNT(dp, wire_corrupt, 1);
        cs_store_count_wire_corrupt(dp->opts.store);
    }
    if (status == VC_ERR_STALE)
        DP_COUNT(dp, stale, 1);
    vc_frame_t frame = {.type = VC_FRAME_PUT_ACK, .request = op->request, .status = status};
    snprintf(frame.text, sizeof(frame.text), "%s", text);
    dp_peer_send(op, &frame, NULL, 0);
    if (status == VC_ERR_PERM) {
        DP_COUNT(dp, unauthenticated, 1);
        vc_log_info("dataplane", "wrong token peer=%llu upload", (unsigned long long)peer->id);
        dp_peer_condemn(peer);
    }
}

static void refuse(dp_op_t *op, vc_status_t st, const vc_err_t *err)
{
    char text[VC_FRAME_TEXT_MAX + 1];
    unsigned long long id = op->upload_id;
    if (st == VC_ERR_PERM)
        snprintf(text, sizeof(text), "upload %llu: the token is wrong", id);
    else if (err != NULL)
        snprintf(text, sizeof(text), "%.*s", (int)VC_FRAME_TEXT_MAX, err->msg);
    else if (st == VC_ERR_STALE)
        snprintf(text, sizeof(text), "upload %llu is over or its deadline passed", id);
    else
        snprintf(text, sizeof(text), "upload %llu: %s", id, vc_status_text(st));
    acknowledge(op, st, text);
}

static void on_received(void *arg, vc_status_t status) { dp_op_finished(arg, status); }

static void receive(dp_op_t *op)
{
    void *desc = op->desc;
    op->desc = NULL;
    op->stage = DP_RECEIVING;
    op->ucx = (vc_ucx_op_t){.done = on_received, .arg = op};
    dp_peer_note_start(op->peer);
    vc_status_t st = vc_ucx_recv(op->peer->ucx, desc, op->buf->data, op->bytes, &op->ucx);
    if (st != VC_OK)
        dp_op_finished(op, st);
}

static void wait_for_buffer(dp_op_t *op)
{
    cs_dataplane_t *dp = op->dp;
    op->stage = DP_WAITING;
    op->next = NULL;
    *dp->waiting_tail = op;
    dp->waiting_tail = &op->next;
}

bool dp_put_begin(dp_peer_t *peer, const vc_frame_t *frame, void *desc)
{
    if (desc == NULL)
        return false;
    dp_op_t *op = dp_op_get(peer, DP_PUT, frame->request);
    if (op == NULL) {
        dp_peer_error(peer, frame->request, VC_ERR_BUSY, "the server has no room for another operation");
        return false;
    }
    op->bytes = frame->payload_bytes;
    op->upload_id = frame->upload_id;
    memcpy(op->token.b, frame->token, sizeof(op->token.b));
    vc_status_t st = cs_store_upload_check(peer->dp->opts.store, op->upload_id, &op->token);
    if (st != VC_OK) {
        refuse(op, st, NULL);
        return false;
    }
    op->desc = desc;
    op->buf = peer->dp->waiting == NULL ? dp_take_buffer(peer->dp) : NULL; /* first come, first served */
    if (op->buf != NULL)
        receive(op);
    else
        wait_for_buffer(op);
    return true;
}

void dp_put_pump(cs_dataplane_t *dp)
{
    while (dp->waiting != NULL) {
        dp_op_t *op = dp->waiting;
        cs_buf_t *buf = dp_take_buffer(dp);
        if (buf == NULL)
            return;
        dp->waiting = op->next;
        if (dp->waiting == NULL)
            dp->waiting_tail = &dp->waiting;
        op->buf = buf;
        receive(op);
    }
}

void dp_put_drop_waiting(dp_peer_t *peer)
{
    cs_dataplane_t *dp = peer->dp;
    dp->waiting_tail = &dp->waiting;
    for (dp_op_t **at = &dp->waiting; *at != NULL;) {
        dp_op_t *op = *at;
        if (op->peer != peer) {
            at = &op->next;
            dp->waiting_tail = at;
            continue;
        }
        *at = op->next;
        vc_ucx_release(peer->ucx, op->desc);
        dp_op_free(op);
    }
}

static void store(dp_op_t *op)
{
    cs_dataplane_t *dp = op->dp;
    vc_err_t err = {0};
    DP_COUNT(dp, records_received, 1);
    DP_COUNT(dp, bytes_received, op->bytes);
    op->buf->len = op->bytes;
    op->stage = DP_STORING;
    vc_status_t st = cs_store_put(dp->opts.store, dp->worker, op->upload_id, &op->token, op->buf, op->bytes,
                                  dp_op_store_done, op, &err);
    if (st == VC_OK)
        return;
    refuse(op, st, &err);
}

void dp_put_advance(dp_op_t *op)
{
    switch (op->stage) {
    case DP_RECEIVING:
        if (op->status == VC_OK && !op->peer->doomed) {
            store(op);
            return;
        }
        op->peer->doomed = true; /* its transfer broke; nothing was taken over */
        dp_op_free(op);
        return;
    case DP_STORING:
        if (op->status == VC_OK || op->status == VC_ERR_EXISTS)
            DP_COUNT(op->dp, puts, 1);
        acknowledge(op, op->status, op->status == VC_OK ? "" : vc_status_text(op->status));
        return;
    default:
        if (op->status != VC_OK)
            op->peer->doomed = true;
        dp_op_free(op);
        return;
    }
}
