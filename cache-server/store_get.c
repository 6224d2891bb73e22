/*
 * Views of whole records, and reading ahead.
 *
 * A lease names chains of blocks, and whoever fetches one asks for its blocks in order. After the second one in order
 * the next ones are read into the memory tier before they are asked for: at most AHEAD_RECORDS or AHEAD_BYTES beyond
 * the block asked for, and never more than the tier grants (ramtier.h). A read ahead holds a pin of its own, waits in
 * the ring until no demand read does, and is checked like any other.
 */
#include "store_int.h"
#include "vc/mem.h"

#define AHEAD_RECORDS 8u
#define AHEAD_BYTES ((uint64_t)16 << 20)
#define AHEAD_AFTER 2u /* blocks in order */

static void get_done(void *arg, vc_status_t status) { cs_ramtier_filled(arg, status); }

static cs_ram_key_t key_of(const cs_pin_t *pin) { return (cs_ram_key_t){pin->key, pin->header_crc, pin->bytes}; }

/* ---- ahead ---- */

/* Pins the next blocks that are still there and were not read ahead before. Locked. */
static uint32_t pin_next(cs_store_t *s, cs_lease_t *lease, const cs_pin_t *asked, cs_pin_t *pins)
{
    cs_sequence_t *seq = &lease->sequence[asked->fid];
    uint32_t end = (uint32_t)VC_MIN((uint64_t)asked->block + 1 + AHEAD_RECORDS, (uint64_t)lease->n[asked->fid]), n = 0;
    uint64_t bytes = 0;
    for (uint32_t b = asked->block + 1; b < end; b++) {
        const cs_hold_t *hold = &lease->holds[lease->first[asked->fid] + b];
        bytes += (uint64_t)hold->pages * 4096;
        if (bytes > AHEAD_BYTES)
            break;
        if (b < seq->ahead)
            continue;
        seq->ahead = b + 1;
        if (cs_index_entry(s->index, hold->entry)->pages > 0)
            cs_pin_entry(s, hold->entry, &pins[n++]);
    }
    return n;
}

/* Which blocks to read ahead, now that this one was asked for. */
static uint32_t follow(cs_store_t *s, const cs_pin_t *asked, cs_pin_t *pins)
{
    cs_lock(s);
    cs_lease_t *lease = s->closing ? NULL : cs_table_get(&s->leases, asked->lease_id);
    uint32_t n = 0;
    if (lease && asked->fid < CS_MAX_FIDELITIES && asked->block < lease->n[asked->fid]) {
        cs_sequence_t *seq = &lease->sequence[asked->fid];
        if (seq->run == 0 || asked->block != seq->next) { /* a new place */
            seq->run = 0;
            seq->ahead = 0;
        }
        seq->next = asked->block + 1;
        if (++seq->run >= AHEAD_AFTER)
            n = pin_next(s, lease, asked, pins);
    }
    cs_unlock(s);
    return n;
}

static void read_ahead(cs_store_t *s, cs_worker_t *worker, const cs_pin_t *asked)
{
    cs_pin_t pins[AHEAD_RECORDS];
    uint32_t n = follow(s, asked, pins);
    for (uint32_t i = 0; i < n; i++) {
        cs_ram_key_t key = key_of(&pins[i]);
        cs_ram_fill_t fill;
        if (!cs_ramtier_ahead(s->opts.ram, &key, &fill)) {
            cs_store_unpin(s, &pins[i]);
            continue;
        }
        cs_transfer_t what = {0, pins[i].bytes, fill.data, fill.buf_index, true};
        vc_status_t status = cs_read_start(s, worker, &pins[i], &what, get_done, fill.view);
        if (status != VC_OK) {
            cs_ramtier_filled(fill.view, status);
            cs_store_unpin(s, &pins[i]);
        }
    }
}

/* ---- get ---- */

static vc_status_t get(cs_store_t *s, cs_worker_t *worker, const cs_pin_t *pin, cs_view_t **view_p, cs_get_done_fn done,
                       void *arg)
{
    cs_ram_key_t key = key_of(pin);
    cs_ram_fill_t fill;
    switch (cs_ramtier_get(s->opts.ram, &key, done, arg, view_p, &fill)) {
    case CS_RAM_HIT:
    case CS_RAM_JOINED: return VC_OK;
    case CS_RAM_NO_ROOM: return VC_ERR_AGAIN;
    case CS_RAM_FILL: break;
    }
    cs_transfer_t what = {0, pin->bytes, fill.data, fill.buf_index, false};
    vc_status_t status = cs_read_start(s, worker, pin, &what, get_done, fill.view);
    if (status != VC_OK)
        cs_ramtier_cancel(fill.view, status);
    return status;
}

vc_status_t cs_store_get(cs_store_t *s, cs_worker_t *worker, const cs_pin_t *pin, cs_view_t **view_p,
                         cs_get_done_fn done, void *arg)
{
    cs_pin_t asked = *pin; /* done may have run, and pin be gone, before the end of this */
    *view_p = NULL;
    if (asked.bytes > cs_bufpool_buf_bytes(s->opts.pool))
        return VC_ERR_RANGE;
    vc_status_t status = get(s, worker, &asked, view_p, done, arg);
    if (status == VC_OK && asked.lease_id != 0 && s->reads_ahead)
        read_ahead(s, worker, &asked);
    return status;
}

cs_view_t *cs_store_peek(cs_store_t *s, const cs_pin_t *pin, bool again)
{
    cs_ram_key_t key = key_of(pin);
    return cs_ramtier_peek(s->opts.ram, &key, !again);
}
