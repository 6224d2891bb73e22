/*
 * FETCH: leased blocks -> pins -> views of the records -> the peer. A block costs one credit of the client and one
 * place in the peer's window; both are taken before the pin, so that a peer that gives no credits holds nothing.
 */
#include <string.h>

#include "dataplane_int.h"
#include "vc/log.h"
#include "vc/mem.h"

dp_fetch_t *dp_fetch_find(const dp_peer_t *peer, uint64_t request)
{
    for (dp_fetch_t *f = peer->fetches; f != NULL; f = f->next)
        if (f->request == request)
            return f;
    return NULL;
}

static void remove_fetch(dp_peer_t *peer, dp_fetch_t *fetch)
{
    for (dp_fetch_t **at = &peer->fetches; *at != NULL; at = &(*at)->next) {
        if (*at == fetch) {
            *at = fetch->next;
            break;
        }
    }
    peer->n_fetches--;
    vc_free(fetch);
}

void dp_fetch_begin(dp_peer_t *peer, const vc_frame_t *frame)
{
    if (peer->n_fetches >= DP_MAX_FETCHES) {
        dp_peer_error(peer, frame->request, VC_ERR_BUSY, "more than %u fetches at once", DP_MAX_FETCHES);
        return;
    }
    dp_fetch_t *fetch = vc_calloc(1, sizeof(*fetch));
    if (fetch == NULL) {
        dp_peer_error(peer, frame->request, VC_ERR_NOMEM, "the server is out of memory");
        return;
    }
    *fetch = (dp_fetch_t){
        .next = peer->fetches,
        .request = frame->request,
        .boot_id = frame->boot_id,
        .lease_id = frame->lease_id,
        .fid = frame->fid,
        .next_block = frame->first,
        .end = frame->first + frame->n,
        .credits = frame->credits,
    };
    memcpy(fetch->token.b, frame->token, sizeof(fetch->token.b));
    if (frame->n_layer != 0 && !dp_layers_begin(peer, fetch, frame)) {
        dp_peer_error(peer, frame->request, VC_ERR_RANGE, "a layer part of %u bytes is larger than a buffer",
                      VC_MAX(frame->part_bytes, frame->head_bytes));
        vc_free(fetch);
        return;
    }
    peer->fetches = fetch;
    peer->n_fetches++;
    DP_COUNT(peer->dp, fetches, 1);
    DP_COUNT(peer->dp, step_downs, frame->stepped_down);
}

void dp_fetch_credit(dp_peer_t *peer, const vc_frame_t *frame)
{
    dp_fetch_t *fetch = dp_fetch_find(peer, frame->request);
    if (fetch != NULL) /* else it ended while the message was on its way */
        fetch->credits += frame->credits;
}

void dp_fetch_cancel(dp_peer_t *peer, const vc_frame_t *frame)
{
    dp_fetch_t *fetch = dp_fetch_find(peer, frame->request);
    if (fetch == NULL || fetch->stopping)
        return;
    fetch->stopping = true;
    fetch->status = VC_ERR_CANCELLED;
}

/* The first block's pin proves the token, so there is one place that judges it. */
void dp_fetch_refused(dp_peer_t *peer, uint64_t request, uint64_t lease_id, vc_status_t status)
{
    cs_dataplane_t *dp = peer->dp;
    if (status == VC_ERR_STALE)
        DP_COUNT(dp, stale, 1);
    if (status != VC_ERR_PERM)
        return;
    DP_COUNT(dp, unauthenticated, 1);
    vc_log_info("dataplane", "wrong token peer=%llu lease=%llu", (unsigned long long)peer->id,
                (unsigned long long)lease_id);
    dp_peer_error(peer, request, VC_ERR_PERM, "lease %llu: the token is wrong", (unsigned long long)lease_id);
    dp_peer_condemn(peer);
}

void dp_fetch_damaged(dp_peer_t *peer, const vc_frame_t *frame)
{
    cs_dataplane_t *dp = peer->dp;
    cs_pin_t pin;
    cs_token_t token;
    memcpy(token.b, frame->token, sizeof(token.b));
    vc_status_t st =
        cs_store_pin_leased(dp->opts.store, frame->boot_id, frame->lease_id, &token, frame->fid, frame->first, &pin);
    if (st != VC_OK) {
        dp_fetch_refused(peer, frame->request, frame->lease_id, st);
        return;
    }
    DP_COUNT(dp, wire_corrupt, 1);
    cs_store_count_wire_corrupt(dp->opts.store);
    vc_log_warn("dataplane", "record damaged on the wire peer=%llu lease=%llu block=%u bytes=%u",
                (unsigned long long)peer->id, (unsigned long long)frame->lease_id, frame->first, pin.bytes);
    cs_store_report_corrupt(dp->opts.store, &pin);
    cs_store_unpin(dp->opts.store, &pin);
}

/* ---- one block ---- */

static void send_status(dp_op_t *op, vc_status_t status)
{
    dp_fetch_t *fetch = op->fetch;
    dp_op_drop_buffer(op);
    vc_frame_t frame = {.type = VC_FRAME_FETCH_DATA, .request = op->request, .block = op->block, .status = status};
    if (dp_peer_send(op, &frame, NULL, 0))
        fetch->n_sent++;
    else
        fetch->in_flight--;
}

/* A test damages what is sent, not what the others read. */
static const uint8_t *damaged_copy(dp_op_t *op)
{
    cs_dataplane_t *dp = op->dp;
    op->buf = dp_take_buffer(dp);
    if (op->buf == NULL)
        return op->view->data;
    memcpy(op->buf->data, op->view->data, op->bytes);
    dp->opts.fault(dp->opts.fault_arg, op->buf->data, op->bytes);
    return op->buf->data;
}

static void send_record(dp_op_t *op)
{
    dp_fetch_t *fetch = op->fetch;
    const uint8_t *data = op->dp->opts.fault != NULL ? damaged_copy(op) : op->view->data;
    vc_frame_t frame = {
        .type = VC_FRAME_FETCH_DATA, .request = op->request, .block = op->block, .payload_bytes = op->bytes};
    if (dp_peer_send(op, &frame, data, op->bytes))
        fetch->n_sent++;
    else
        fetch->in_flight--;
}

void dp_fetch_advance(dp_op_t *op)
{
    dp_fetch_t *fetch = op->fetch;
    dp_peer_t *peer = op->peer;
    if (op->stage == DP_READING && op->parts != NULL) {
        dp_layers_read(op);
        return;
    }
    if (op->stage == DP_READING && op->status == VC_OK && !fetch->stopping) {
        send_record(op);
        return;
    }
    if (op->stage == DP_READING && !fetch->stopping) {
        send_status(op, op->status);
        return;
    }
    if (op->stage == DP_SENDING && op->status == VC_OK && (op->view != NULL || op->buf != NULL)) {
        DP_COUNT(op->dp, records_sent, op->view != NULL);
        DP_COUNT(op->dp, pieces_sent, op->view == NULL);
        DP_COUNT(op->dp, bytes_sent, op->bytes);
    }
    if (op->stage == DP_SENDING && op->status != VC_OK && op->status != VC_ERR_CANCELLED)
        peer->doomed = true; /* cancelled: the peer declined this record, or its close by us is under way */
    fetch->in_flight--;
    dp_op_free(op);
    op->dp->dirty = true;
}

void dp_fetch_stop(dp_fetch_t *fetch, vc_status_t status)
{
    fetch->stopping = true;
    fetch->status = status;
}

/* A record in memory is sent at once. AGAIN: there is no memory for it now. */
static vc_status_t read_block(dp_op_t *op)
{
    cs_dataplane_t *dp = op->dp;
    cs_view_t *view;
    if (op->bytes > op->peer->max_record_bytes)
        return VC_ERR_RANGE;
    vc_status_t st = cs_store_get(dp->opts.store, dp->worker, &op->pin, &view, dp_op_got_view, op);
    if (st == VC_OK && view != NULL) {
        op->view = view;
        DP_COUNT(dp, ops_in_flight, 1);
        send_record(op);
    }
    return st;
}

/* Pins and reads the next block. False: nothing can be started now, or the fetch has ended. */
static bool start_block(dp_peer_t *peer, dp_fetch_t *fetch)
{
    cs_dataplane_t *dp = peer->dp;
    dp_op_t *op = dp_op_get(peer, DP_FETCH, fetch->request);
    if (op == NULL)
        return false;
    op->fetch = fetch;
    op->block = fetch->next_block;
    vc_status_t st = cs_store_pin_leased(dp->opts.store, fetch->boot_id, fetch->lease_id, &fetch->token, fetch->fid,
                                         op->block, &op->pin);
    if (st != VC_OK && st != VC_ERR_NOT_FOUND && st != VC_ERR_CORRUPT) {
        dp_fetch_stop(fetch, st);
        dp_op_free(op);
        dp_fetch_refused(peer, fetch->request, fetch->lease_id, st);
        return false;
    }
    fetch->in_flight++;
    if (st == VC_OK) {
        op->has_pin = true;
        DP_COUNT(dp, pins_held, 1);
        op->bytes = op->pin.bytes;
        op->stage = DP_READING;
        st = read_block(op);
        if (st == VC_ERR_AGAIN) {
            fetch->in_flight--;
            dp_op_free(op);
            dp_want_buffer(dp);
            return false;
        }
    }
    fetch->next_block++;
    fetch->credits--;
    if (st != VC_OK)
        send_status(op, st);
    return true;
}

static void finish_fetch(dp_peer_t *peer, dp_fetch_t *fetch)
{
    vc_frame_t frame = {
        .type = VC_FRAME_FETCH_END,
        .request = fetch->request,
        .status = fetch->status,
        .n_sent = fetch->n_sent,
    };
    bool told = fetch->status == VC_ERR_PERM; /* by the ERROR message */
    remove_fetch(peer, fetch);
    if (!told)
        dp_peer_reply(peer, &frame);
}

bool dp_fetch_has_more(const dp_fetch_t *f)
{
    return !f->stopping && (f->n_layer != 0 ? f->slice <= f->n_layer : f->next_block < f->end);
}

/* Peers that read nothing keep what they got until they are closed. So a peer has the whole window, and never more than
 * two thirds of the buffers' worth of records, only while it is alone or half of them are not out; then two, and of the
 * last quarter one: the others go on. */
static uint32_t window_of(const dp_peer_t *peer)
{
    const cs_dataplane_t *dp = peer->dp;
    uint32_t all = dp->n_records;
    if (all == peer->n_records || 2 * all < dp->n_bufs)
        return VC_MIN(dp->opts.window, VC_MAX(2 * dp->n_bufs / 3, 1));
    return 4 * all < 3 * dp->n_bufs ? VC_MIN(dp->opts.window, 2u) : 1;
}

void dp_fetch_pump(dp_peer_t *peer)
{
    for (dp_fetch_t *f = peer->fetches, *next; f != NULL; f = next) {
        next = f->next;
        while (!peer->doomed && dp_fetch_has_more(f) && f->credits > 0 && peer->n_records < window_of(peer)) {
            if (!(f->n_layer != 0 ? dp_layers_start(peer, f) : start_block(peer, f)))
                break;
        }
        if (f->in_flight == 0 && !dp_fetch_has_more(f))
            finish_fetch(peer, f);
    }
}

/* Callers may be inside a walk over the fetches, so this only marks them; the next pump removes them. */
void dp_fetch_stop_all(dp_peer_t *peer)
{
    for (dp_fetch_t *f = peer->fetches; f != NULL; f = f->next)
        dp_fetch_stop(f, VC_ERR_PERM);
}

void dp_fetch_free_all(dp_peer_t *peer)
{
    while (peer->fetches != NULL)
        remove_fetch(peer, peer->fetches);
}
