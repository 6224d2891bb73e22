/*
 * Reads. The record is checked where it will be used, after the read: header sum against the one the catalog
 * remembers, key, every layer. A record that does not hold is dropped and counted; a read that the disk refuses is not.
 */
#include <string.h>
#include <unistd.h>

#include "record.h"
#include "store_int.h"
#include "vc/bytes.h"
#include "vc/log.h"
#include "vc/mem.h"

void cs_log_corrupt(const cs_pin_t *pin, const char *why)
{
    char hex[2 * VC_DIGEST_BYTES + 1];
    vc_hex(pin->key.hash.b, VC_DIGEST_BYTES, hex);
    vc_log_warn("store", "damaged record dropped block=%.16s segment=%u offset=%llu bytes=%u reason=\"%s\"", hex,
                pin->segment, (unsigned long long)pin->offset, pin->bytes, why);
}

bool cs_drop_corrupt(cs_store_t *s, const cs_pin_t *pin)
{
    cs_lock(s);
    uint16_t column = cs_column_find(s, pin->key.fidelity, &pin->key.spec);
    uint32_t id = column == CS_NO_NAME ? CS_INDEX_NONE : cs_index_find(s->index, column, &pin->key.hash);
    const cs_entry_t *entry = id == CS_INDEX_NONE ? NULL : cs_index_entry(s->index, id);
    /* Only the copy that was read: meanwhile a good one may have been committed elsewhere. */
    bool is_there = entry && entry->segment == pin->segment && (uint64_t)entry->page * 4096 == pin->offset;
    if (is_there) {
        cs_entry_drop(s, id, CS_MISS_CORRUPT);
        s->stats.corrupt_disk++;
        cs_queue_drop(s, &pin->key);
    }
    cs_unlock(s);
    return is_there;
}

static void finish(cs_op_t *op, vc_status_t status)
{
    cs_store_t *s = op->store;
    if (status == VC_OK) { /* counted before anybody knows of it */
        cs_lock(s);
        cs_fid_stats(s, op->pin.key.fidelity)->read_bytes += op->io.bytes;
        cs_unlock(s);
    }
    op->done(op->arg, status);
    if (op->is_ahead)
        cs_store_unpin(s, &op->pin);
    cs_lock(s);
    cs_op_put(s, op);
    cs_unlock(s);
}

static void whole_done(cs_io_t *io, vc_status_t status)
{
    cs_op_t *op = io->arg;
    vc_err_t why = {.msg = "the file ends before the record does"};
    if (status == VC_OK)
        status = cs_record_check(io->data, op->pin.bytes, &op->pin.key, op->pin.header_crc, &why);
    else if (status == VC_ERR_RANGE)
        status = VC_ERR_CORRUPT;
    else
        status = VC_ERR_IO;
    if (status == VC_ERR_CORRUPT) {
        cs_log_corrupt(&op->pin, why.msg);
        (void)cs_drop_corrupt(op->store, &op->pin);
    } else if (status != VC_OK) {
        vc_log_error("store", "read failed segment=%u offset=%llu bytes=%u", op->pin.segment,
                     (unsigned long long)op->pin.offset, op->pin.bytes);
    }
    finish(op, status);
}

static void part_done(cs_io_t *io, vc_status_t status)
{
    cs_op_t *op = io->arg;
    if (status == VC_ERR_RANGE)
        cs_store_report_corrupt(op->store, &op->pin);
    finish(op, status == VC_OK ? VC_OK : status == VC_ERR_RANGE ? VC_ERR_CORRUPT : VC_ERR_IO);
}

vc_status_t cs_read_start(cs_store_t *s, cs_worker_t *worker, const cs_pin_t *pin, const cs_transfer_t *what,
                          cs_io_done_fn done, void *arg)
{
    cs_lock(s);
    const cs_segment_t *segment = s->segments[pin->segment];
    cs_op_t *op = s->closing ? NULL : cs_op_get(s);
    if (!op) {
        cs_unlock(s);
        return VC_ERR_BUSY;
    }
    op->pin = *pin;
    op->worker = worker ? worker : cs_workers_any(s->opts.workers);
    op->done = done;
    op->arg = arg;
    op->is_ahead = what->is_ahead;
    op->io = (cs_io_t){.fd = segment->fd,
                       .ahead = what->is_ahead,
                       .buf_index = what->buf_index,
                       .bytes = what->bytes,
                       .data = what->data,
                       .offset = pin->offset + what->offset,
                       .done = what->bytes == pin->bytes ? whole_done : part_done,
                       .arg = op};
    cs_unlock(s);
    vc_status_t status = cs_op_start(op);
    if (status != VC_OK) {
        cs_lock(s);
        cs_op_put(s, op);
        cs_unlock(s);
    }
    return status;
}

vc_status_t cs_store_read(cs_store_t *s, cs_worker_t *worker, const cs_pin_t *pin, cs_buf_t *buf, cs_io_done_fn done,
                          void *arg)
{
    if (buf->cap < pin->bytes)
        return VC_ERR_RANGE;
    cs_transfer_t what = {.bytes = pin->bytes, .data = buf->data, .buf_index = buf->index};
    return cs_read_start(s, worker, pin, &what, done, arg);
}

vc_status_t cs_store_read_part(cs_store_t *s, cs_worker_t *worker, const cs_pin_t *pin, uint32_t offset,
                               uint32_t length, cs_buf_t *buf, uint32_t buf_offset, cs_io_done_fn done, void *arg)
{
    if ((offset | length | buf_offset) % 4096 != 0 || length == 0 || offset > pin->bytes ||
        length > pin->bytes - offset || buf_offset > buf->cap || length > buf->cap - buf_offset)
        return VC_ERR_RANGE;
    cs_transfer_t what = {offset, length, buf->data + buf_offset, buf->index, false};
    return cs_read_start(s, worker, pin, &what, done, arg);
}

/* ---- suspects: reported by readers, read again by the maintenance thread ---- */

void cs_store_report_corrupt(cs_store_t *s, const cs_pin_t *pin)
{
    cs_ramtier_forget(s->opts.ram, &pin->key); /* the copy in memory is as suspect as the one on disk */
    cs_lock(s);
    if (s->n_suspects < CS_MAX_SUSPECTS && !s->closing) { /* a full list loses the report; the reader reports again */
        s->segments[pin->segment]->pins++;
        cs_index_hold(s->index, (uint32_t)pin->cookie);
        s->pinned_bytes += pin->bytes;
        s->suspects[s->n_suspects++] = *pin;
        pthread_cond_signal(&s->tick_work);
    }
    cs_unlock(s);
}

void cs_store_count_wire_corrupt(cs_store_t *s)
{
    cs_lock(s);
    s->stats.corrupt_wire++;
    cs_unlock(s);
}

static void check_suspect(cs_store_t *s, const cs_pin_t *pin, int fd)
{
    vc_err_t why;
    uint8_t *data = vc_alloc_aligned(4096, pin->bytes);
    if (!data)
        return;
    vc_status_t status = cs_record_read(fd, pin->offset, pin->bytes, data, &why);
    if (status == VC_OK)
        status = cs_record_check(data, pin->bytes, &pin->key, pin->header_crc, &why);
    if (status == VC_ERR_CORRUPT) {
        cs_log_corrupt(pin, why.msg);
        (void)cs_drop_corrupt(s, pin);
    }
    vc_free(data);
}

void cs_check_suspects(cs_store_t *s)
{
    for (;;) {
        cs_lock(s);
        if (s->n_suspects == 0) {
            cs_unlock(s);
            return;
        }
        cs_pin_t pin = s->suspects[--s->n_suspects];
        int fd = s->segments[pin.segment]->fd;
        cs_unlock(s);
        check_suspect(s, &pin, fd);
        cs_store_unpin(s, &pin);
    }
}
