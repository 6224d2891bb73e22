/* Data plane: peers from connection to close, their messages, and what happens to those that misbehave. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "dataplane_int.h"
#include "vc/log.h"
#include "vc/mem.h"

/* ---- sending ---- */

void dp_peer_note_start(dp_peer_t *peer)
{
    if (peer->on_wire++ == 0)
        peer->progress_us = dp_now(peer->dp); /* a silence is counted from here */
}

static void on_ucx_done(void *arg, vc_status_t status) { dp_op_finished(arg, status); }

bool dp_peer_send(dp_op_t *op, const vc_frame_t *frame, const void *data, uint32_t bytes)
{
    dp_peer_t *peer = op->peer;
    if (peer->ep == NULL || peer->doomed) {
        dp_op_free(op);
        return false;
    }
    op->stage = DP_SENDING;
    op->header_bytes = vc_frame_encode(frame, op->header);
    op->ucx = (vc_ucx_op_t){.done = on_ucx_done, .arg = op};
    dp_peer_note_start(peer);
    vc_status_t st = vc_ucx_send(peer->ep, op->header, op->header_bytes, data, bytes, &op->ucx);
    if (st == VC_OK)
        return true;
    peer->on_wire--;
    peer->doomed = true;
    peer->dp->dirty = true;
    dp_op_free(op);
    return false;
}

void dp_peer_reply(dp_peer_t *peer, const vc_frame_t *frame)
{
    if (peer->doomed || peer->ep == NULL)
        return;
    dp_op_t *op = peer->n_control < DP_MAX_CONTROL ? dp_op_get(peer, DP_CONTROL, frame->request) : NULL;
    if (op == NULL) { /* it asks faster than it reads the answers */
        peer->doomed = peer->dp->dirty = true;
        DP_COUNT(peer->dp, bad_frames, 1);
        return;
    }
    dp_peer_send(op, frame, NULL, 0);
}

void dp_peer_error(dp_peer_t *peer, uint64_t request, vc_status_t status, const char *fmt, ...)
{
    vc_frame_t frame = {.type = VC_FRAME_ERROR, .request = request, .status = status};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(frame.text, sizeof(frame.text), fmt, ap);
    va_end(ap);
    dp_peer_reply(peer, &frame);
}

void dp_peer_condemn(dp_peer_t *peer)
{
    if (peer->condemned)
        return;
    peer->condemned = true;
    peer->condemned_us = dp_now(peer->dp);
    dp_fetch_stop_all(peer);
}

/* ---- messages ---- */

static void bad_frame(dp_peer_t *peer, uint64_t request, const char *what)
{
    DP_COUNT(peer->dp, bad_frames, 1);
    vc_log_info("dataplane", "peer refused id=%llu reason=\"%s\"", (unsigned long long)peer->id, what);
    dp_peer_error(peer, request, VC_ERR_PROTOCOL, "%s", what);
    dp_peer_condemn(peer);
}

static void greet(dp_peer_t *peer, const vc_frame_t *frame)
{
    const cs_dataplane_t *dp = peer->dp;
    if (peer->greeted) {
        bad_frame(peer, 0, "a second hello");
        return;
    }
    peer->greeted = true;
    peer->max_record_bytes = frame->max_record_bytes;
    size_t cap = cs_bufpool_buf_bytes(dp->opts.pool);
    vc_frame_t reply = {
        .type = VC_FRAME_WELCOME,
        .boot_id = cs_store_boot_id(dp->opts.store),
        .max_record_bytes = (uint32_t)VC_MIN(cap, (size_t)VC_KVREC_MAX_BYTES),
        .put_window = dp->opts.put_window,
    };
    dp_peer_reply(peer, &reply);
}

/* True when the payload was taken over. */
static bool dispatch(dp_peer_t *peer, const vc_frame_t *frame, void *desc)
{
    if (!vc_frame_is_from_client(frame->type) || (!peer->greeted && frame->type != VC_FRAME_HELLO)) {
        bad_frame(peer, frame->request, "a message that is out of place");
        return false;
    }
    switch (frame->type) {
    case VC_FRAME_HELLO: greet(peer, frame); return false;
    case VC_FRAME_FETCH:
        if (dp_fetch_find(peer, frame->request) != NULL)
            bad_frame(peer, frame->request, "a fetch under a request id in use");
        else
            dp_fetch_begin(peer, frame);
        return false;
    case VC_FRAME_CREDIT: {
        const dp_fetch_t *fetch = dp_fetch_find(peer, frame->request);
        if (fetch != NULL && fetch->credits + frame->credits > VC_FRAME_MAX_CREDITS)
            bad_frame(peer, frame->request, "more credits than a peer may give");
        else
            dp_fetch_credit(peer, frame);
        return false;
    }
    case VC_FRAME_CANCEL: dp_fetch_cancel(peer, frame); return false;
    case VC_FRAME_DAMAGED: dp_fetch_damaged(peer, frame); return false;
    case VC_FRAME_PUT_DATA:
        if (frame->payload_bytes > cs_bufpool_buf_bytes(peer->dp->opts.pool)) {
            bad_frame(peer, frame->request, "a record larger than the server's buffers");
            return false;
        }
        if (peer->n_puts >= peer->dp->opts.put_window) {
            bad_frame(peer, frame->request, "more records than the put window allows");
            return false;
        }
        return dp_put_begin(peer, frame, desc);
    default: return false;
    }
}

bool dp_peer_message(void *arg, const vc_ucx_msg_t *msg)
{
    cs_dataplane_t *dp = arg;
    dp_peer_t *peer = msg->ep != NULL ? vc_ucx_ep_arg(msg->ep) : NULL;
    if (peer == NULL) {
        DP_COUNT(dp, bad_frames, 1);
        return false;
    }
    if (peer->doomed || peer->condemned)
        return false;
    if (peer->on_wire == 0)
        peer->progress_us = dp_now(dp);
    dp->dirty = true;
    vc_frame_t frame;
    vc_err_t err;
    if (vc_frame_decode(msg->header, msg->header_bytes, msg->bytes, &frame, &err) != VC_OK) {
        bad_frame(peer, 0, err.msg);
        return false;
    }
    return dispatch(peer, &frame, msg->desc);
}

/* ---- life and death ---- */

void dp_peer_lost(dp_peer_t *peer)
{
    if (peer->n_ops > peer->n_control || peer->n_fetches > 0) {
        DP_COUNT(peer->dp, peers_lost, 1);
        vc_log_info("dataplane", "peer lost id=%llu records_in_flight=%u", (unsigned long long)peer->id,
                    peer->n_records + peer->n_puts);
    }
    peer->doomed = peer->dp->dirty = true;
}

static void on_ep_lost(void *arg, vc_ucx_ep_t *ep, vc_status_t status)
{
    (void)ep;
    (void)status;
    dp_peer_lost(arg);
}

dp_peer_t *dp_peer_create(cs_dataplane_t *dp)
{
    dp_peer_t *peer = dp->n_peers < dp->opts.max_peers ? vc_calloc(1, sizeof(*peer)) : NULL;
    if (peer == NULL)
        return NULL;
    peer->dp = dp;
    peer->id = ++dp->next_peer_id;
    peer->meet_fd = -1;
    peer->progress_us = dp_now(dp);
    peer->next = dp->peers;
    dp->peers = peer;
    dp->n_peers++;
    DP_COUNT(dp, peers_total, 1);
    DP_COUNT(dp, peers_open, 1);
    return peer;
}

void dp_peer_request(void *arg, void *request)
{
    cs_dataplane_t *dp = arg;
    dp->dirty = true;
    dp_peer_t *peer = dp->stopping ? NULL : dp_peer_create(dp);
    if (peer == NULL) {
        DP_COUNT(dp, peers_refused, 1);
        vc_ucx_reject(dp->ucx, request);
        return;
    }
    peer->ucx = dp->ucx;
    if (vc_ucx_accept(dp->ucx, request, on_ep_lost, peer, &peer->ep) == VC_OK)
        return;
    DP_COUNT(dp, peers_refused, 1);
    peer->doomed = peer->ep_closed = true;
}

static void on_closed(void *arg, vc_status_t status)
{
    (void)status;
    dp_peer_t *peer = arg;
    peer->ep_closed = peer->dp->dirty = true;
}

static void begin_close(dp_peer_t *peer)
{
    dp_put_drop_waiting(peer);
    dp_fetch_stop_all(peer);
    if (peer->meet_fd >= 0) {
        dp_shm_close_peer(peer);
        return;
    }
    vc_ucx_ep_t *ep = peer->ep;
    peer->ep = NULL;
    vc_ucx_ep_close(ep, on_closed, peer);
}

void dp_peers_close_doomed(cs_dataplane_t *dp)
{
    for (dp_peer_t **at = &dp->peers; *at != NULL;) {
        dp_peer_t *peer = *at;
        if (peer->doomed && (peer->ep != NULL || peer->meet_fd >= 0))
            begin_close(peer);
        if (!peer->ep_closed || peer->n_ops > 0) {
            at = &peer->next;
            continue;
        }
        *at = peer->next; /* every callback that names it has run */
        dp_fetch_free_all(peer);
        dp->n_peers--;
        DP_COUNT(dp, peers_open, -1);
        vc_free(peer);
    }
}

/* A fetch that could go on if the peer gave credits. One that waits for a buffer of ours is not the peer's fault. */
static bool owes_credits(const dp_peer_t *peer)
{
    for (const dp_fetch_t *f = peer->fetches; f != NULL; f = f->next)
        if (f->credits == 0 && dp_fetch_has_more(f))
            return true;
    return false;
}

/* Silent while we wait for it: sends or receives that do not move, a fetch it gives no credits for, no hello. */
static bool is_stalled(const dp_peer_t *peer, uint64_t now)
{
    bool owes = peer->on_wire > 0 || !peer->greeted || (peer->n_records == 0 && owes_credits(peer));
    return owes && now - peer->progress_us > (uint64_t)peer->dp->opts.peer_timeout_ms * 1000;
}

void dp_peers_tick(cs_dataplane_t *dp)
{
    uint64_t now = dp_now(dp);
    for (dp_peer_t *peer = dp->peers; peer != NULL; peer = peer->next) {
        if (peer->doomed)
            continue;
        if (is_stalled(peer, now)) {
            peer->doomed = true;
            DP_COUNT(dp, peers_stalled, 1);
            vc_log_info("dataplane", "peer stalled id=%llu records_in_flight=%u", (unsigned long long)peer->id,
                        peer->n_records + peer->n_puts);
        } else if (peer->condemned && now - peer->condemned_us > DP_LAST_WORDS_US) {
            peer->doomed = true;
        }
        dp->dirty = dp->dirty || peer->doomed;
    }
}
