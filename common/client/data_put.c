/* PUT: records from the source into slots, from there to the server; a slot is free when it was sent and acknowledged.
 */
#include "data_int.h"

#include <string.h>

#include "vc/mem.h"

static void release_if_done(data_slot_t *slot)
{
    if (!slot->sent || !slot->acknowledged)
        return;
    slot->state = SLOT_FREE;
    slot->data->n_unfinished--;
}

static void on_sent(void *arg, vc_status_t status)
{
    data_slot_t *slot = arg;
    vc_data_t *d = slot->data;
    d->progress_us = data_now_us();
    if (status != VC_OK && status != VC_ERR_CANCELLED) /* cancelled: declined, the acknowledgement says why */
        data_break(d, VC_ERR_UNREACHABLE, "a record was not sent (%s)", vc_status_name(status));
    slot->sent = true;
    release_if_done(slot);
}

void data_put_message(vc_data_t *d, const vc_frame_t *frame)
{
    for (uint32_t i = 0; i < d->opts.n_slots; i++) {
        data_slot_t *slot = &d->slots[i];
        if (slot->state != SLOT_SENDING || slot->request != frame->request || slot->acknowledged)
            continue;
        bool good = frame->status == VC_OK || frame->status == VC_ERR_EXISTS;
        if (good) {
            d->n_acked++;
            d->bytes_acked += slot->bytes;
        } else if (d->refused == VC_OK) {
            d->refused = vc_err_set(&d->refusal, frame->status, "data plane %s: record refused: %s", d->address,
                                    frame->text[0] != '\0' ? frame->text : vc_status_text(frame->status));
        }
        slot->acknowledged = true;
        release_if_done(slot);
        return;
    }
    data_break(d, VC_ERR_PROTOCOL, "an acknowledgement for nothing");
}

static vc_status_t send_slot(vc_data_t *d, data_slot_t *slot, uint64_t upload_id, const uint8_t token[16],
                             vc_err_t *err)
{
    vc_frame_t frame = {
        .type = VC_FRAME_PUT_DATA, .request = ++d->next_request, .upload_id = upload_id, .payload_bytes = slot->bytes};
    memcpy(frame.token, token, sizeof(frame.token));
    d->put_last = frame.request;
    slot->request = frame.request;
    slot->sent = slot->acknowledged = false;
    slot->state = SLOT_SENDING;
    d->n_unfinished++;
    slot->header_bytes = vc_frame_encode(&frame, slot->header);
    slot->op = (vc_ucx_op_t){.done = on_sent, .arg = slot};
    vc_status_t st = vc_ucx_send(d->ep, slot->header, slot->header_bytes, slot->buf, slot->bytes, &slot->op);
    if (st == VC_OK)
        return VC_OK;
    data_break(d, VC_ERR_UNREACHABLE, "a record was not sent (%s)", vc_status_name(st));
    if (err != NULL)
        *err = d->why;
    return d->broken;
}

/* One record from the source into a free slot and on its way. *done_p: the source has no more. */
static vc_status_t feed(vc_data_t *d, uint64_t upload_id, const uint8_t token[16], vc_data_source_fn source, void *arg,
                        bool *done_p, vc_err_t *err)
{
    data_slot_t *slot = data_take_slot(d);
    size_t len = 0;
    if (slot == NULL)
        return VC_OK;
    if (source(arg, slot->buf, d->slot_bytes, &len) != 0)
        return vc_err_set(err, VC_ERR_CANCELLED, "the put was ended by its source");
    d->progress_us = data_now_us(); /* making a record takes time that is not the server's */
    if (len == 0) {
        *done_p = true;
        return VC_OK;
    }
    if (len > d->slot_bytes || len % VC_KVREC_ALIGN != 0)
        return vc_err_set(err, VC_ERR_INVALID, "a record of %zu bytes; the server takes multiples of 4096 up to %zu",
                          len, d->slot_bytes);
    slot->bytes = (uint32_t)len;
    return send_slot(d, slot, upload_id, token, err);
}

static vc_status_t run(vc_data_t *d, uint64_t upload_id, const uint8_t token[16], vc_data_source_fn source, void *arg,
                       uint32_t idle_ms, vc_err_t *err)
{
    uint32_t window = VC_MIN(d->put_window, d->opts.n_slots);
    bool done = false;
    vc_status_t stop = VC_OK; /* the source's or our own reason to end early */
    while (!done || d->n_unfinished > 0) {
        while (!done && d->n_unfinished < window && d->refused == VC_OK && d->broken == VC_OK) {
            stop = feed(d, upload_id, token, source, arg, &done, err);
            done = done || stop != VC_OK;
            vc_ucx_progress(d->ucx);
        }
        done = done || d->refused != VC_OK; /* what is out is waited for, so that the connection stays usable */
        if (!done || d->n_unfinished > 0) {
            vc_status_t st = data_wait(d, idle_ms, stop == VC_OK ? err : NULL);
            if (st != VC_OK && d->refused != VC_OK) /* the server said why before it closed */
                break;
            if (st != VC_OK)
                return stop != VC_OK ? stop : st;
        }
    }
    if (stop == VC_OK && d->refused != VC_OK) {
        if (err != NULL)
            *err = d->refusal;
        stop = d->refused;
    }
    return stop;
}

vc_status_t vc_data_put(vc_data_t *d, uint64_t upload_id, const uint8_t token[16], vc_data_source_fn source, void *arg,
                        uint32_t idle_ms, vc_data_stats_t *stats_p, vc_err_t *err)
{
    pthread_mutex_lock(&d->lock);
    d->n_acked = d->bytes_acked = 0;
    vc_status_t st = data_reconnect(d, err);
    if (st == VC_OK) {
        d->refused = VC_OK;
        d->put_first = d->next_request + 1;
        d->put_last = d->next_request;
        d->progress_us = data_now_us();
        st = run(d, upload_id, token, source, arg, idle_ms != 0 ? idle_ms : d->opts.idle_ms, err);
        d->put_first = 1;
        d->put_last = 0;
        if (d->broken != VC_OK || d->n_unfinished > 0 || st == VC_ERR_PERM)
            data_drop(d);
    }
    vc_data_stats_t stats = {.records = d->n_acked, .bytes = d->bytes_acked};
    pthread_mutex_unlock(&d->lock);
    if (stats_p != NULL)
        *stats_p = stats;
    return st;
}
