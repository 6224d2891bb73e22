/*
 * FETCH: as many records in flight as there are slots. The handler only starts receives; checking, the user's callback
 * and new credits happen in the loop of the call, so a slow user slows the sender down and nothing else.
 */
#include <string.h>

#include "data_int.h"
#include "vc/mem.h"

static void make_ready(data_slot_t *slot, vc_status_t status)
{
    vc_data_t *d = slot->data;
    slot->state = SLOT_READY;
    slot->status = status;
    slot->next = NULL;
    *d->ready_tail = slot;
    d->ready_tail = &slot->next;
}

static void on_received(void *arg, vc_status_t status)
{
    data_slot_t *slot = arg;
    slot->data->progress_us = data_now_us();
    if (status != VC_OK)
        data_break(slot->data, VC_ERR_UNREACHABLE, "a transfer broke off (%s)", vc_status_name(status));
    make_ready(slot, status == VC_OK ? VC_OK : VC_ERR_UNREACHABLE);
}

/* A block of the range, or a slice of it, that has not come yet. */
static bool expected(vc_data_t *d, uint32_t block, uint32_t slice)
{
    if (block < d->first || block - d->first >= d->n || slice > d->layout.n_layer)
        return false;
    size_t i = (size_t)slice * d->n + (block - d->first);
    if ((d->seen[i / 8] >> (i % 8) & 1) != 0)
        return false;
    d->seen[i / 8] = (uint8_t)(d->seen[i / 8] | 1u << (i % 8));
    return true;
}

/* Every block of a piece. Empty ones are counted too, or a server could go on with them for ever. */
static bool expected_piece(vc_data_t *d, const vc_frame_t *frame)
{
    if (d->n_arrived >= (uint64_t)d->n * (d->layout.n_layer + 1))
        return false;
    uint64_t each = frame->slice == 0 ? d->layout.head_bytes : d->layout.part_bytes; /* times 32 it passes 4 GiB */
    if (d->layout.n_layer == 0 || frame->slice > d->layout.n_layer || frame->first < d->first ||
        frame->payload_bytes != each * (uint32_t)__builtin_popcount(frame->mask))
        return false;
    for (uint32_t i = 0; i < VC_FRAME_GROUP; i++)
        if ((frame->mask >> i & 1) != 0 && !expected(d, frame->first + i, frame->slice))
            return false;
    return true;
}

bool data_fetch_message(vc_data_t *d, const vc_frame_t *frame, void *desc)
{
    if (d->fetch_request == 0 || frame->request != d->fetch_request)
        return false; /* of a fetch that was given up */
    if (frame->type == VC_FRAME_FETCH_END) {
        d->ended = true;
        d->end_status = frame->status;
        d->end_n_sent = frame->n_sent;
        return false;
    }
    data_slot_t *slot = data_take_slot(d);
    bool piece = frame->type == VC_FRAME_PIECE;
    uint32_t block = piece ? frame->first : frame->block;
    if (slot == NULL || frame->payload_bytes > d->slot_bytes ||
        !(piece ? expected_piece(d, frame) : d->layout.n_layer == 0 && expected(d, block, 0))) {
        data_break(d, VC_ERR_PROTOCOL, "block %u of %u bytes was not asked for", block, frame->payload_bytes);
        return false;
    }
    d->n_arrived++;
    slot->block = block;
    slot->bytes = frame->payload_bytes;
    slot->mask = frame->mask;
    slot->slice = frame->slice;
    if (frame->status != VC_OK || slot->bytes == 0) {
        make_ready(slot, frame->status);
        return false;
    }
    if (desc == NULL) { /* decode saw to it that a good record has bytes; no transport of ours drops them */
        data_break(d, VC_ERR_PROTOCOL, "block %u came without its bytes", frame->block);
        return false;
    }
    slot->state = SLOT_RECEIVING;
    slot->op = (vc_ucx_op_t){.done = on_received, .arg = slot};
    vc_status_t st = vc_ucx_recv(d->ucx, desc, slot->buf, slot->bytes, &slot->op);
    if (st != VC_OK)
        on_received(slot, st);
    return true;
}

typedef struct fetch { /* the call */
    vc_data_t *d;
    const vc_data_lease_t *lease;
    uint32_t fid, idle_ms;
    vc_data_record_fn on_record;
    vc_data_slice_fn on_slice; /* layer-major */
    void *arg;
    vc_data_stats_t stats;
    uint32_t n_handled, credits_owed, credits_given;
} fetch_t;

static void fill_range(const fetch_t *f, vc_frame_t *frame, uint32_t first, uint32_t n)
{
    frame->boot_id = f->lease->boot_id;
    frame->lease_id = f->lease->lease_id;
    memcpy(frame->token, f->lease->token, sizeof(frame->token));
    frame->fid = f->fid;
    frame->first = first;
    frame->n = n;
}

static vc_status_t report_damage(fetch_t *f, uint32_t block, vc_err_t *err)
{
    vc_frame_t frame = {.type = VC_FRAME_DAMAGED, .request = ++f->d->next_request};
    f->stats.wire_corrupt++;
    fill_range(f, &frame, block, 1);
    return data_send_control(f->d, &frame, f->idle_ms, err);
}

/* Hands one record over. CANCELLED when the user has had enough. */
static vc_status_t handle(fetch_t *f, data_slot_t *slot, vc_err_t *err)
{
    vc_kvrec_head_t head;
    vc_status_t st = slot->status, send = VC_OK;
    if (st == VC_OK && vc_kvrec_check(slot->buf, slot->bytes, &head, NULL) != VC_OK) {
        st = VC_ERR_CORRUPT;
        send = report_damage(f, slot->block, err);
    } else if (st != VC_OK) {
        f->stats.absent++;
    }
    if (st == VC_OK) {
        f->stats.records++;
        f->stats.bytes += slot->bytes;
    }
    int rc = f->on_record(f->arg, slot->block, st, st == VC_OK ? slot->buf : NULL, st == VC_OK ? slot->bytes : 0);
    f->d->progress_us = data_now_us(); /* time in the user's hands is not the server's silence */
    f->n_handled++;
    f->credits_owed++;
    slot->state = SLOT_FREE;
    if (rc != 0)
        return vc_err_set(err, VC_ERR_CANCELLED, "the fetch was ended by its receiver");
    return send;
}

/* Slices of the blocks of one piece, in order. */
static vc_status_t handle_piece(fetch_t *f, data_slot_t *slot, vc_err_t *err)
{
    const vc_data_t *d = f->d;
    uint32_t each = slot->slice == 0 ? d->layout.head_bytes : d->layout.part_bytes, at = 0;
    vc_status_t st = VC_OK;
    for (uint32_t i = 0; st == VC_OK && i < VC_FRAME_GROUP; i++) {
        if ((slot->mask >> i & 1) == 0)
            continue;
        st = f->on_slice(f->arg, slot->slice, slot->block + i, slot->buf + at);
        at += each;
        f->stats.bytes += each;
        if (st == VC_ERR_CORRUPT)
            st = report_damage(f, slot->block + i, err);
        else if (st != VC_OK)
            vc_err_set(err, st, "the fetch was ended by its receiver");
    }
    f->stats.records += slot->slice == 0 ? (uint32_t)__builtin_popcount(slot->mask) : 0;
    f->d->progress_us = data_now_us();
    f->n_handled++;
    f->credits_owed++;
    slot->state = SLOT_FREE;
    return st;
}

static vc_status_t handle_ready(fetch_t *f, vc_err_t *err)
{
    vc_data_t *d = f->d;
    vc_status_t st = VC_OK;
    while (st == VC_OK && d->ready != NULL && d->broken == VC_OK) {
        data_slot_t *slot = d->ready;
        d->ready = slot->next;
        if (d->ready == NULL)
            d->ready_tail = &d->ready;
        st = f->on_slice != NULL ? handle_piece(f, slot, err) : handle(f, slot, err);
        for (int i = 0; i < 4; i++) /* the wire goes on while records are looked at */
            vc_ucx_progress(d->ucx);
        bool enough = d->layout.n_layer == 0 && f->credits_given >= d->n;
        if (st != VC_OK || enough || f->credits_owed * 4 < d->opts.n_slots)
            continue;
        vc_frame_t frame = {.type = VC_FRAME_CREDIT, .request = d->fetch_request, .credits = f->credits_owed};
        f->credits_given += f->credits_owed;
        f->credits_owed = 0;
        st = data_send_control(d, &frame, f->idle_ms, err);
    }
    return st;
}

static vc_status_t run(fetch_t *f, vc_err_t *err)
{
    vc_data_t *d = f->d;
    vc_frame_t frame = {.type = VC_FRAME_FETCH,
                        .request = d->fetch_request,
                        .stepped_down = d->stepped_down,
                        .head_bytes = d->layout.head_bytes,
                        .part_bytes = d->layout.part_bytes,
                        .n_layer = d->layout.n_layer,
                        .credits = d->opts.n_slots};
    fill_range(f, &frame, d->first, d->n);
    d->stepped_down = false;
    f->credits_given = d->opts.n_slots;
    d->progress_us = data_now_us();
    vc_status_t st = data_send_control(d, &frame, f->idle_ms, err);
    while (st == VC_OK && !(d->ended && f->n_handled >= d->end_n_sent)) {
        if (d->ready == NULL || d->broken != VC_OK) /* broken: what is ready is not handed out any more */
            st = data_wait(d, f->idle_ms, err);
        if (st == VC_OK)
            st = handle_ready(f, err);
        if (st == VC_OK && d->refused != VC_OK) {
            if (err != NULL)
                *err = d->refusal;
            return d->refused;
        }
    }
    if (st != VC_OK)
        return st;
    if (d->end_status != VC_OK)
        return vc_err_set(err, d->end_status, "data plane %s: fetch of blocks %u..%u ended: %s", d->address, d->first,
                          d->first + d->n - 1, vc_status_name(d->end_status));
    if (d->layout.n_layer == 0 && f->n_handled != d->n)
        return vc_err_set(err, VC_ERR_PROTOCOL, "data plane %s: %u of %u blocks came", d->address, f->n_handled, d->n);
    return VC_OK;
}

/* After a cancel the server may have records on the way; they are received and dropped until it says that it ended. */
static void drain(fetch_t *f)
{
    vc_data_t *d = f->d;
    vc_frame_t frame = {.type = VC_FRAME_CANCEL, .request = d->fetch_request};
    vc_status_t st = data_send_control(d, &frame, d->opts.connect_ms, NULL);
    while (st == VC_OK && !(d->ended && f->n_handled >= d->end_n_sent)) {
        if (d->ready == NULL)
            st = data_wait(d, d->opts.connect_ms, NULL);
        while (d->ready != NULL) {
            d->ready->state = SLOT_FREE;
            d->ready = d->ready->next;
            f->n_handled++;
        }
        d->ready_tail = &d->ready;
    }
    if (st != VC_OK)
        data_drop(d);
}

static vc_status_t begin(vc_data_t *d, uint32_t first, uint32_t n, const vc_data_layout_t *layout, vc_err_t *err)
{
    vc_status_t st = data_reconnect(d, err);
    if (st != VC_OK)
        return st;
    d->layout = layout != NULL ? *layout : (vc_data_layout_t){0};
    d->seen = vc_calloc(1, (size_t)n * (d->layout.n_layer + 1) / 8 + 1);
    if (d->seen == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for a fetch of %u blocks", n);
    d->first = first;
    d->n = n;
    d->n_arrived = 0;
    d->ended = false;
    d->refused = VC_OK;
    d->fetch_request = ++d->next_request;
    return VC_OK;
}

static void end(fetch_t *f, vc_status_t st)
{
    vc_data_t *d = f->d;
    bool clean = d->broken == VC_OK && d->ended && f->n_handled >= d->end_n_sent;
    if (st == VC_ERR_CANCELLED && !clean && d->broken == VC_OK)
        drain(f);
    else if (!clean) /* also after ERROR: the server closes, or transfers may still come */
        data_drop(d);
    d->fetch_request = 0;
    vc_free(d->seen);
    d->seen = NULL;
}

/* The whole call: f says what to do with what comes. */
static vc_status_t fetch(fetch_t *f, uint32_t first, uint32_t n, const vc_data_layout_t *layout,
                         vc_data_stats_t *stats_p, vc_err_t *err)
{
    vc_data_t *d = f->d;
    pthread_mutex_lock(&d->lock);
    f->idle_ms = f->idle_ms != 0 ? f->idle_ms : d->opts.idle_ms;
    vc_status_t st = begin(d, first, n, layout, err);
    if (st == VC_OK) {
        st = run(f, err);
        end(f, st);
    }
    pthread_mutex_unlock(&d->lock);
    if (stats_p != NULL)
        *stats_p = f->stats;
    return st;
}

vc_status_t vc_data_fetch(vc_data_t *d, const vc_data_lease_t *lease, uint32_t fid, uint32_t first, uint32_t n,
                          vc_data_record_fn on_record, void *arg, uint32_t idle_ms, vc_data_stats_t *stats_p,
                          vc_err_t *err)
{
    if (n == 0 || n > VC_FRAME_MAX_BLOCKS || first > UINT32_MAX - n || fid >= 8)
        return vc_err_set(err, VC_ERR_RANGE, "a fetch is of 1..%u blocks of columns 0..7", VC_FRAME_MAX_BLOCKS);
    fetch_t f = {.d = d, .lease = lease, .fid = fid, .idle_ms = idle_ms, .on_record = on_record, .arg = arg};
    return fetch(&f, first, n, NULL, stats_p, err);
}

vc_status_t vc_data_fetch_layers(vc_data_t *d, const vc_data_lease_t *lease, uint32_t fid, uint32_t first, uint32_t n,
                                 const vc_data_layout_t *layout, vc_data_slice_fn on_slice, void *arg, uint32_t idle_ms,
                                 vc_data_stats_t *stats_p, vc_err_t *err)
{
    if (n == 0 || n > VC_FRAME_MAX_LAYERED || first > UINT32_MAX - n || fid >= 8 || layout->n_layer == 0)
        return vc_err_set(err, VC_ERR_RANGE, "a layer-major fetch is of 1..%u blocks of columns 0..7",
                          VC_FRAME_MAX_LAYERED);
    fetch_t f = {.d = d, .lease = lease, .fid = fid, .idle_ms = idle_ms, .on_slice = on_slice, .arg = arg};
    return fetch(&f, first, n, layout, stats_p, err);
}
