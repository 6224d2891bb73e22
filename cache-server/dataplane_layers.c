/*
 * Layer-major FETCH: one slice (the header, then each layer) of all blocks before the next slice. A piece is that slice
 * of a group of blocks, one beside the other in one pool buffer: read from disk where it lies, part by part, or copied
 * from a record in memory. The layout comes from the client, which knows the keyspace; a block of another size is left
 * out, like one that is gone or cannot be read. Blocks are found anew for every piece: between pieces nothing is
 * pinned, and the lease is renewed by the asking. Sums are the receiver's to check, layer by layer.
 */
#include <string.h>

#include "dataplane_int.h"
#include "vc/log.h"
#include "vc/mem.h"

struct dp_parts {
    uint32_t n_reading; /* reads that run, and one while they are being started */
    uint32_t mask, slice;
    vc_status_t status;
    uint32_t n_pins;
    cs_pin_t pins[VC_FRAME_GROUP]; /* of the parts that come from disk */
};

bool dp_layers_begin(dp_peer_t *peer, dp_fetch_t *fetch, const vc_frame_t *frame)
{
    uint32_t largest = VC_MAX(frame->head_bytes, frame->part_bytes);
    size_t cap = VC_MIN(cs_bufpool_buf_bytes(peer->dp->opts.pool), (size_t)peer->max_record_bytes);
    if (largest > cap)
        return false;
    size_t fits = VC_MIN(cap, (size_t)VC_MAX(DP_PIECE_BYTES, largest)) / largest;
    fetch->head_bytes = frame->head_bytes;
    fetch->part_bytes = frame->part_bytes;
    fetch->n_layer = frame->n_layer;
    fetch->first = frame->first;
    fetch->pieces_tail = &fetch->pieces;
    fetch->group = (uint32_t)VC_MIN(fits, (size_t)VC_FRAME_GROUP);
    return true;
}

void dp_layers_drop(dp_op_t *op)
{
    if (op->parts == NULL)
        return;
    for (uint32_t i = 0; i < op->parts->n_pins; i++)
        cs_store_unpin(op->dp->opts.store, &op->parts->pins[i]);
    DP_COUNT(op->dp, pins_held, -(uint64_t)op->parts->n_pins);
    vc_free(op->parts);
    op->parts = NULL;
}

/* Worker thread of the data plane; a read may also end inside the call that starts it. */
static void part_ended(dp_op_t *op, vc_status_t status)
{
    dp_parts_t *parts = op->parts;
    if (status != VC_OK)
        parts->status = status;
    if (--parts->n_reading == 0)
        dp_op_finished(op, parts->status);
}

static void on_part(void *arg, vc_status_t status) { part_ended(arg, status); }

static bool copy_from_memory(dp_op_t *op, const cs_pin_t *pin, uint32_t from, uint32_t length)
{
    cs_view_t *view = cs_store_peek(op->dp->opts.store, pin, from > 0); /* a use is counted with the header */
    if (view == NULL)
        return false;
    memcpy(op->buf->data + op->bytes, view->data + from, length);
    cs_view_release(view);
    return true;
}

/* The part of one block into the buffer. */
static void add_part(dp_op_t *op, const dp_fetch_t *f, const cs_pin_t *pin)
{
    cs_dataplane_t *dp = op->dp;
    dp_parts_t *parts = op->parts;
    uint32_t from = f->slice == 0 ? 0 : f->head_bytes + (f->slice - 1) * f->part_bytes;
    uint32_t length = f->slice == 0 ? f->head_bytes : f->part_bytes;
    if (copy_from_memory(op, pin, from, length)) {
        cs_store_unpin(dp->opts.store, pin);
    } else {
        parts->pins[parts->n_pins++] = *pin;
        DP_COUNT(dp, pins_held, 1);
        parts->n_reading++;
        vc_status_t st =
            cs_store_read_part(dp->opts.store, dp->worker, pin, from, length, op->buf, op->bytes, on_part, op);
        if (st != VC_OK)
            part_ended(op, st);
    }
    op->bytes += length;
}

/* Finds the blocks of the piece and starts their reads. Not OK: the lease is no good, the fetch is over. */
static vc_status_t fill_piece(dp_op_t *op, const dp_fetch_t *f)
{
    uint64_t whole = f->head_bytes + (uint64_t)f->part_bytes * f->n_layer;
    for (uint32_t i = 0; i < f->group && op->block + i < f->end; i++) {
        cs_pin_t pin;
        vc_status_t st =
            cs_store_pin_leased(op->dp->opts.store, f->boot_id, f->lease_id, &f->token, f->fid, op->block + i, &pin);
        if (st == VC_ERR_NOT_FOUND || st == VC_ERR_CORRUPT)
            continue;
        if (st != VC_OK)
            return st;
        if (pin.bytes != whole) {
            cs_store_unpin(op->dp->opts.store, &pin);
            continue;
        }
        op->parts->mask |= 1u << i;
        add_part(op, f, &pin);
    }
    return VC_OK;
}

static dp_op_t *make_piece(dp_peer_t *peer, dp_fetch_t *fetch)
{
    cs_buf_t *buf = dp_take_buffer(peer->dp);
    dp_parts_t *parts = buf != NULL ? vc_calloc(1, sizeof(*parts)) : NULL;
    dp_op_t *op = parts != NULL ? dp_op_get(peer, DP_FETCH, fetch->request) : NULL;
    if (op == NULL) {
        vc_free(parts);
        if (buf != NULL) {
            cs_bufpool_put(peer->dp->opts.pool, buf);
            DP_COUNT(peer->dp, ops_in_flight, -1);
        }
        return NULL;
    }
    parts->n_reading = 1;
    parts->slice = fetch->slice;
    op->fetch = fetch;
    op->buf = buf;
    op->parts = parts;
    op->block = fetch->next_block;
    op->stage = DP_READING;
    *fetch->pieces_tail = op;
    fetch->pieces_tail = &op->after;
    return op;
}

bool dp_layers_start(dp_peer_t *peer, dp_fetch_t *fetch)
{
    dp_op_t *op = make_piece(peer, fetch);
    if (op == NULL)
        return false;
    fetch->in_flight++;
    fetch->credits--;
    vc_status_t st = fill_piece(op, fetch);
    if (st != VC_OK) { /* what has been started ends first; then the operation finds that its fetch has stopped */
        dp_fetch_stop(fetch, st);
        dp_fetch_refused(peer, fetch->request, fetch->lease_id, st);
    }
    fetch->next_block = fetch->end - fetch->next_block > fetch->group ? fetch->next_block + fetch->group : fetch->end;
    if (fetch->next_block == fetch->end) {
        fetch->next_block = fetch->first;
        fetch->slice++;
    }
    part_ended(op, VC_OK);
    return st == VC_OK;
}

/* A part that could not be read makes the whole piece absent: the client has other ways to these blocks. */
static void send_piece(dp_op_t *op)
{
    cs_dataplane_t *dp = op->dp;
    dp_fetch_t *fetch = op->fetch;
    vc_frame_t frame = {.type = VC_FRAME_PIECE, .request = op->request, .first = op->block, .slice = op->parts->slice};
    if (op->status == VC_OK) {
        frame.mask = op->parts->mask;
        frame.payload_bytes = op->bytes;
        if (dp->opts.fault != NULL && op->bytes > 0)
            dp->opts.fault(dp->opts.fault_arg, op->buf->data, op->bytes);
    }
    dp_layers_drop(op); /* the bytes are in the buffer */
    if (dp_peer_send(op, &frame, frame.payload_bytes > 0 ? op->buf->data : NULL, frame.payload_bytes))
        fetch->n_sent++;
    else
        fetch->in_flight--;
}

/* Reads end in any order; pieces are sent in the order of their slices, or not at all once the fetch has stopped. */
void dp_layers_read(dp_op_t *op)
{
    dp_fetch_t *fetch = op->fetch;
    op->stage = DP_READY;
    while ((op = fetch->pieces) != NULL && op->stage == DP_READY) {
        fetch->pieces = op->after;
        if (fetch->pieces == NULL)
            fetch->pieces_tail = &fetch->pieces;
        if (fetch->stopping) {
            fetch->in_flight--;
            op->dp->dirty = true;
            dp_op_free(op);
        } else {
            send_piece(op);
        }
    }
}
