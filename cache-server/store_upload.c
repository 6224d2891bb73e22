/*
 * Registration: begin, put, abort, expiry. Commit is in store_commit.c.
 *
 * An upload's objects: MISSING -> WRITING (extent taken) -> WRITTEN -> visible by commit. PRESENT ones were there at
 * begin, or came by another upload meanwhile; they are held, so that a chain that was whole at commit stays whole until
 * then. Extents of an upload count as writers of their segment: such a segment is no victim.
 */
#include <sodium.h>
#include <string.h>

#include "fault.h"
#include "store_int.h"
#include "vc/bytes.h"
#include "vc/log.h"
#include "vc/mem.h"

cs_segment_t *cs_object_segment(cs_store_t *s, const cs_upload_object_t *object)
{
    return s->segments[object->segment];
}

static uint32_t span(const cs_upload_t *upload) { return upload->n_blocks - upload->first_block; }

static void object_clear(cs_store_t *s, const cs_upload_t *upload, cs_upload_object_t *object)
{
    if (object->state == CS_OBJECT_PRESENT) {
        cs_hold_release(s, &object->hold);
    } else if (object->state != CS_OBJECT_MISSING) {
        cs_tenant_count(s, upload->keyspace, 0, -(int64_t)object->pages * 4096);
        cs_segment_writer_gone(s, cs_object_segment(s, object));
    }
    object->state = CS_OBJECT_MISSING;
}

static void object_hold(cs_store_t *s, cs_upload_object_t *object, uint32_t id)
{
    object->hold = cs_hold_entry(s, id);
    object->state = CS_OBJECT_PRESENT;
}

void cs_upload_detach(cs_store_t *s, cs_upload_t *upload)
{
    for (uint32_t i = 0; i < upload->n_fid * span(upload); i++)
        object_clear(s, upload, &upload->objects[i]);
    s->keyspaces[upload->keyspace].uploads--;
    for (uint32_t f = 0; f < upload->n_fid; f++)
        s->columns[upload->columns[f]].uploads--;
    cs_table_remove(&s->uploads, upload->id);
    if (s->waiting)
        cs_room_wanted(s);
    vc_free(upload->hashes);
    vc_free(upload->objects);
    upload->hashes = NULL;
    upload->objects = NULL;
}

static void upload_free(cs_store_t *s, cs_upload_t *upload)
{
    cs_upload_detach(s, upload);
    vc_free(upload);
}

void cs_upload_end(cs_store_t *s, cs_upload_t *upload)
{
    upload->state = CS_UPLOAD_DEAD;
    if (upload->writing == 0)
        upload_free(s, upload);
}

void cs_uploads_expire(cs_store_t *s, uint64_t now_us)
{
    for (uint32_t i = 0; i < s->uploads.n; i++) {
        cs_upload_t *upload = s->uploads.slots[i];
        if (upload && upload->state == CS_UPLOAD_OPEN && now_us >= upload->deadline_us) {
            s->stats.uploads_expired++;
            cs_upload_end(s, upload);
        }
    }
}

/* ---- begin ---- */

static vc_status_t check_begin(cs_store_t *s, const vc_keyspace_t *ks, uint32_t first, uint32_t n_blocks,
                               const cs_fidelity_t *fids, uint32_t n_fid, vc_err_t *err)
{
    if (n_fid == 0 || n_fid > CS_MAX_FIDELITIES)
        return vc_err_set(err, VC_ERR_RANGE, "a registration names 1 to %u fidelities, not %u", CS_MAX_FIDELITIES,
                          n_fid);
    if (n_blocks == 0 || n_blocks > CS_INDEX_MAX_BLOCKS || first >= n_blocks)
        return vc_err_set(err, VC_ERR_RANGE, "blocks %u to %u are no part of a chain (at most %u blocks)", first,
                          n_blocks, CS_INDEX_MAX_BLOCKS);
    for (uint32_t f = 0; f < n_fid; f++) {
        if (fids[f].fidelity != VC_FIDELITY_FULL && fids[f].fidelity != VC_FIDELITY_COMPRESSED)
            return vc_err_set(err, VC_ERR_INVALID, "fidelity %u is not known", fids[f].fidelity);
        for (uint32_t g = 0; g < f; g++) {
            if (memcmp(&fids[f], &fids[g], sizeof(fids[f])) == 0)
                return vc_err_set(err, VC_ERR_INVALID, "fidelities %u and %u are the same", g, f);
        }
    }
    if (vc_kvrec_full_bytes(&ks->shape) > cs_bufpool_buf_bytes(s->opts.pool))
        return vc_err_set(err, VC_ERR_NOSPACE, "a record of %llu bytes is larger than a buffer of %zu bytes",
                          (unsigned long long)vc_kvrec_full_bytes(&ks->shape), cs_bufpool_buf_bytes(s->opts.pool));
    return VC_OK;
}

/* Everything that needs no lock: arrays and the chain of hashes. */
static cs_upload_t *upload_make(const vc_keyspace_t *ks, const vc_digest_t *id, const uint32_t *tokens, uint32_t first,
                                uint32_t n_blocks, uint32_t n_fid)
{
    cs_upload_t *upload = vc_calloc(1, sizeof(*upload));
    if (!upload)
        return NULL;
    upload->first_block = first;
    upload->n_blocks = n_blocks;
    upload->n_fid = (uint16_t)n_fid;
    upload->hashes = vc_calloc(n_blocks, sizeof(*upload->hashes));
    upload->objects = vc_calloc((size_t)n_fid * (n_blocks - first), sizeof(*upload->objects));
    if (!upload->hashes || !upload->objects) {
        vc_free(upload->hashes);
        vc_free(upload->objects);
        vc_free(upload);
        return NULL;
    }
    uint32_t n_tokens = n_blocks * ks->shape.block_tokens; /* below 2^26 */
    vc_block_chain(id, tokens, n_tokens, ks->shape.block_tokens, upload->hashes);
    upload->n_head_tokens = VC_MIN(n_tokens, CS_HEAD_TOKENS);
    memcpy(upload->head_tokens, tokens, upload->n_head_tokens * sizeof(uint32_t));
    return upload;
}

static vc_status_t name_columns(cs_store_t *s, cs_upload_t *upload, const vc_keyspace_t *ks, const vc_digest_t *id,
                                const cs_fidelity_t *fids)
{
    upload->keyspace = cs_keyspace_add(s, id, ks);
    if (upload->keyspace == CS_NO_NAME)
        return VC_ERR_BUSY;
    /* The count goes up with each name, so that the next one cannot reuse its slot. */
    s->keyspaces[upload->keyspace].uploads++;
    for (uint32_t f = 0; f < upload->n_fid; f++) {
        upload->columns[f] = cs_column_add(s, fids[f].fidelity, &fids[f].spec);
        if (upload->columns[f] == CS_NO_NAME) {
            while (f-- > 0)
                s->columns[upload->columns[f]].uploads--;
            s->keyspaces[upload->keyspace].uploads--;
            return VC_ERR_BUSY;
        }
        s->columns[upload->columns[f]].uploads++;
    }
    return VC_OK;
}

static uint32_t mark_missing(cs_store_t *s, cs_upload_t *upload, uint8_t *missing)
{
    uint32_t n = 0;
    for (uint32_t f = 0; f < upload->n_fid; f++) {
        for (uint32_t b = 0; b < span(upload); b++) {
            uint32_t i = f * span(upload) + b;
            uint32_t id = cs_index_find(s->index, upload->columns[f], &upload->hashes[upload->first_block + b]);
            missing[i] = id == CS_INDEX_NONE;
            n += missing[i];
            if (id != CS_INDEX_NONE)
                object_hold(s, &upload->objects[i], id);
        }
    }
    return n;
}

static vc_status_t begin_locked(cs_store_t *s, cs_upload_t *upload, const vc_keyspace_t *ks, const vc_digest_t *id,
                                const cs_fidelity_t *fids, cs_upload_info_t *info, uint8_t *missing, vc_err_t *err)
{
    vc_status_t status = s->closing ? VC_ERR_CANCELLED : cs_writable(s, err);
    if (status != VC_OK)
        return status;
    upload->id = cs_table_add(&s->uploads, upload);
    if (!upload->id)
        return vc_err_set(err, VC_ERR_BUSY, "all %u uploads are open", s->uploads.n);
    status = name_columns(s, upload, ks, id, fids);
    if (status != VC_OK) {
        cs_table_remove(&s->uploads, upload->id);
        return vc_err_set(err, status, "too many keyspaces or compressor specs are in use");
    }
    upload->deadline_us = cs_now_us(s) + (uint64_t)s->opts.upload_ms * 1000;
    randombytes_buf(&upload->token, sizeof(upload->token));
    info->upload_id = upload->id;
    info->token = upload->token;
    info->deadline_us = upload->deadline_us;
    info->n_missing = mark_missing(s, upload, missing);
    return VC_OK;
}

static uint64_t full_bytes_wanted(const cs_upload_t *upload, const vc_keyspace_t *ks, const cs_fidelity_t *fids,
                                  const uint8_t *missing)
{
    uint64_t n = 0;
    for (uint32_t f = 0; f < upload->n_fid; f++) {
        for (uint32_t b = 0; fids[f].fidelity == VC_FIDELITY_FULL && b < span(upload); b++)
            n += missing[f * span(upload) + b];
    }
    return n * vc_kvrec_full_bytes(&ks->shape);
}

static vc_status_t check_room(const cs_store_t *s, uint64_t wanted, vc_err_t *err)
{
    uint64_t budget = cs_segments_budget(s);
    if (wanted <= budget)
        return VC_OK;
    return vc_err_set(err, VC_ERR_NOSPACE, "a registration of %llu bytes does not fit into %llu",
                      (unsigned long long)wanted, (unsigned long long)budget);
}

vc_status_t cs_store_begin(cs_store_t *s, const vc_keyspace_t *ks, const uint32_t *tokens, uint32_t first_block,
                           uint32_t n_blocks, const cs_fidelity_t *fids, uint32_t n_fid, cs_upload_info_t *info_p,
                           uint8_t *missing, vc_err_t *err)
{
    vc_digest_t id;
    cs_upload_info_t info = {0};
    vc_status_t status = vc_keyspace_id(ks, &id, err); /* checks every field */
    if (status == VC_OK)
        status = check_begin(s, ks, first_block, n_blocks, fids, n_fid, err);
    if (status != VC_OK)
        return status;
    cs_upload_t *upload = upload_make(ks, &id, tokens, first_block, n_blocks, n_fid);
    if (!upload)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for an upload of %u blocks", n_blocks);
    cs_lock(s);
    status = begin_locked(s, upload, ks, &id, fids, &info, missing, err);
    if (status != VC_OK) {
        cs_unlock(s);
        vc_free(upload->hashes);
        vc_free(upload->objects);
        vc_free(upload);
        return status;
    }
    uint64_t wanted = full_bytes_wanted(upload, ks, fids, missing);
    status = cs_tenant_check(s, upload->keyspace, wanted, err);
    if (status == VC_OK)
        status = check_room(s, wanted, err);
    if (status != VC_OK) {
        upload_free(s, upload);
        s->stats.put_rejected++;
        cs_unlock(s);
        return status;
    }
    cs_unlock(s);
    *info_p = info;
    return VC_OK;
}

/* ---- put ---- */

static cs_upload_t *find_upload(cs_store_t *s, uint64_t upload_id, const cs_token_t *token, vc_status_t *status_p)
{
    cs_upload_t *upload = cs_table_get(&s->uploads, upload_id);
    *status_p = VC_ERR_STALE;
    if (!upload || upload->state == CS_UPLOAD_DEAD || cs_now_us(s) >= upload->deadline_us)
        return NULL;
    *status_p = VC_ERR_PERM;
    if (sodium_memcmp(&upload->token, token, sizeof(*token)) != 0)
        return NULL;
    *status_p = VC_ERR_BUSY;
    return upload->state == CS_UPLOAD_COMMITTING ? NULL : upload;
}

vc_status_t cs_store_upload_check(cs_store_t *s, uint64_t upload_id, const cs_token_t *token)
{
    vc_status_t status = VC_OK, why;
    cs_lock(s);
    if (find_upload(s, upload_id, token, &why) == NULL)
        status = why;
    cs_unlock(s);
    return status;
}

static const char *why_not(vc_status_t status)
{
    return status == VC_ERR_STALE  ? "the upload is over or its deadline passed"
           : status == VC_ERR_PERM ? "the token is not the upload's"
                                   : "the upload is being committed";
}

/* Which object of the upload the record is; the record is sound by itself already. */
static vc_status_t match_record(cs_store_t *s, const cs_upload_t *upload, const vc_kvrec_head_t *head,
                                uint32_t *object_p, vc_err_t *err)
{
    const cs_keyspace_slot_t *ks = &s->keyspaces[upload->keyspace];
    if (memcmp(&head->keyspace, &ks->id, sizeof(ks->id)) != 0 ||
        memcmp(&head->shape, &ks->ks.shape, sizeof(head->shape)) != 0)
        return vc_err_set(err, VC_ERR_MISMATCH, "the record is of another keyspace than the upload");
    uint32_t f, b = head->block_index;
    for (f = 0; f < upload->n_fid; f++) {
        const cs_fidelity_t *fid = &s->columns[upload->columns[f]].fid;
        if (fid->fidelity == head->fidelity && memcmp(&fid->spec, &head->spec, sizeof(fid->spec)) == 0)
            break;
    }
    if (f == upload->n_fid || b < upload->first_block || b >= upload->n_blocks)
        return vc_err_set(err, VC_ERR_MISMATCH, "block %u in this fidelity is no part of the upload", b);
    const vc_digest_t *parent = b > 0 ? &upload->hashes[b - 1] : &ks->id;
    if (memcmp(&head->hash, &upload->hashes[b], sizeof(head->hash)) != 0 ||
        memcmp(&head->parent, parent, sizeof(head->parent)) != 0)
        return vc_err_set(err, VC_ERR_MISMATCH, "block %u does not hold the tokens that were registered", b);
    *object_p = f * span(upload) + (b - upload->first_block);
    return VC_OK;
}

vc_status_t cs_put_allocate(cs_store_t *s, cs_op_t *op)
{
    uint64_t offset;
    cs_segment_t *segment = s->open[op->class_id];
    if (!segment || !cs_segment_append(segment, op->io.bytes, &offset)) {
        cs_segment_seal(s, op->class_id);
        if (!cs_segment_take(s, op->class_id))
            return VC_ERR_AGAIN;
        segment = s->open[op->class_id];
        if (!cs_segment_append(segment, op->io.bytes, &offset))
            return VC_ERR_AGAIN;
    }
    cs_upload_object_t *object = &op->upload->objects[op->object];
    object->segment = segment->number;
    object->page = (uint32_t)(offset / 4096);
    object->pages = op->io.bytes / 4096;
    object->header_crc = op->pin.header_crc;
    op->io.fd = segment->fd;
    op->io.offset = offset;
    return VC_OK;
}

/* An object waiting for room is WRITING without an extent: pages is 0 then. */
static void put_release(cs_store_t *s, cs_op_t *op, cs_object_state_t state)
{
    cs_upload_t *upload = op->upload;
    upload->objects[op->object].state = (uint8_t)state;
    upload->writing--;
    if (state == CS_OBJECT_MISSING)
        cs_tenant_count(s, upload->keyspace, 0, -(int64_t)op->io.bytes);
    if (upload->state == CS_UPLOAD_DEAD && upload->writing == 0)
        upload_free(s, upload);
}

void cs_put_undo(cs_store_t *s, cs_op_t *op)
{
    cs_upload_object_t *object = &op->upload->objects[op->object];
    if (object->pages) {
        cs_segment_unappend(cs_object_segment(s, object), (uint64_t)object->page * 4096, object->pages * 4096);
        cs_segment_rank(s, cs_object_segment(s, object));
    }
    put_release(s, op, CS_OBJECT_MISSING);
}

static void put_done(cs_io_t *io, vc_status_t status)
{
    cs_op_t *op = io->arg;
    cs_store_t *s = op->store;
    cs_fault_t fault = cs_fault_hit("put.done");
    if (status == VC_OK && fault != CS_FAULT_NONE)
        status = cs_fault_status(fault);
    cs_lock(s);
    cs_upload_object_t *object = &op->upload->objects[op->object];
    if (status == VC_OK) {
        cs_fid_stats(s, op->pin.key.fidelity)->put_bytes += io->bytes;
        s->stats.segment_written += io->bytes;
        put_release(s, op, CS_OBJECT_WRITTEN);
    } else {
        cs_object_segment(s, object)->is_bad = true; /* sealed by the next append */
        s->stats.put_rejected++;
        cs_segment_writer_gone(s, cs_object_segment(s, object));
        put_release(s, op, CS_OBJECT_MISSING);
    }
    cs_unlock(s);
    if (status != VC_OK)
        vc_log_error("store", "write failed status=%s offset=%llu bytes=%u", vc_status_name(status),
                     (unsigned long long)io->offset, io->bytes);
    bool is_told = status == VC_OK || status == VC_ERR_NOSPACE || status == VC_ERR_READONLY;
    op->done(op->arg, is_told ? status : VC_ERR_IO);
    cs_lock(s);
    cs_op_put(s, op);
    cs_unlock(s);
}

static void wait_for_room(cs_store_t *s, cs_op_t *op)
{
    op->next = NULL;
    *s->waiting_end = op;
    s->waiting_end = &op->next;
    cs_room_wanted(s);
}

/* Locked. OK with *op_p NULL: the put waits for room. */
static vc_status_t put_locked(cs_store_t *s, cs_upload_t *upload, uint32_t i, const vc_kvrec_head_t *head, cs_op_t *op,
                              vc_err_t *err)
{
    cs_upload_object_t *object = &upload->objects[i];
    uint32_t id = cs_index_find(s->index, upload->columns[i / span(upload)], &head->hash);
    if (object->state == CS_OBJECT_MISSING && id != CS_INDEX_NONE)
        object_hold(s, object, id);
    if (object->state != CS_OBJECT_MISSING)
        return VC_ERR_EXISTS;
    vc_status_t status = cs_tenant_check(s, upload->keyspace, op->io.bytes, err);
    if (status != VC_OK)
        return status;
    op->upload = upload;
    op->object = i;
    op->class_id = head->fidelity == VC_FIDELITY_FULL ? CS_CLASS_FULL : CS_CLASS_COMPRESSED;
    vc_kvrec_key(head, &op->pin.key);
    op->pin.header_crc = vc_le32(op->io.data + 12);
    object->state = CS_OBJECT_WRITING;
    object->pages = 0;
    cs_tenant_count(s, upload->keyspace, 0, op->io.bytes);
    upload->writing++;
    /* In use, not abandoned: a registration over a slow link takes longer than the default life. */
    upload->deadline_us = VC_MAX(upload->deadline_us, cs_now_us(s) + (uint64_t)s->opts.upload_ms * 1000);
    /* First come, first served: behind puts that wait there is no room either. */
    if (s->waiting || cs_tenant_is_over(s, upload->keyspace) || cs_put_allocate(s, op) != VC_OK) {
        wait_for_room(s, op);
        return VC_ERR_AGAIN;
    }
    return VC_OK;
}

static vc_status_t put_start(cs_store_t *s, uint64_t upload_id, const cs_token_t *token, const vc_kvrec_head_t *head,
                             cs_op_t **op_p, const cs_op_t *want, vc_err_t *err)
{
    uint32_t object = 0;
    vc_status_t status = s->closing ? vc_err_set(err, VC_ERR_CANCELLED, "the store is closing") : cs_writable(s, err);
    if (status != VC_OK)
        return status;
    cs_upload_t *upload = find_upload(s, upload_id, token, &status);
    if (!upload)
        return vc_err_set(err, status, "%s", why_not(status));
    status = match_record(s, upload, head, &object, err);
    if (status != VC_OK)
        return status;
    cs_op_t *op = cs_op_get(s);
    if (!op)
        return vc_err_set(err, VC_ERR_BUSY, "too many operations are running");
    op->io = want->io;
    op->io.arg = op;
    op->worker = want->worker;
    op->done = want->done;
    op->arg = want->arg;
    status = put_locked(s, upload, object, head, op, err);
    if (status == VC_ERR_EXISTS) {
        cs_op_put(s, op);
        return vc_err_set(err, status, "block %u is already there", head->block_index);
    }
    if (status == VC_ERR_NOSPACE) {
        cs_op_put(s, op);
        return status;
    }
    *op_p = status == VC_OK ? op : NULL;
    return VC_OK;
}

static vc_status_t check_token(cs_store_t *s, uint64_t upload_id, const cs_token_t *token, vc_err_t *err)
{
    vc_status_t status;
    cs_lock(s);
    bool is_good = find_upload(s, upload_id, token, &status) != NULL;
    cs_unlock(s);
    return is_good ? VC_OK : vc_err_set(err, status, "%s", why_not(status));
}

vc_status_t cs_store_put(cs_store_t *s, cs_worker_t *worker, uint64_t upload_id, const cs_token_t *token, cs_buf_t *buf,
                         uint32_t bytes, cs_io_done_fn done, void *arg, vc_err_t *err)
{
    vc_kvrec_head_t head;
    cs_op_t *op = NULL;
    if (bytes == 0 || bytes % 4096 != 0 || bytes > buf->cap)
        return vc_err_set(err, VC_ERR_RANGE, "a record of %u bytes is not possible", bytes);
    vc_status_t status = check_token(s, upload_id, token, err); /* no token, no work */
    if (status == VC_OK)
        status = vc_kvrec_check(buf->data, bytes, &head, err);
    if (status != VC_OK)
        return status;
    cs_op_t want = {.io = {.write = true, .buf_index = buf->index, .bytes = bytes, .data = buf->data, .done = put_done},
                    .worker = worker ? worker : cs_workers_any(s->opts.workers),
                    .done = done,
                    .arg = arg};
    cs_lock(s);
    status = put_start(s, upload_id, token, &head, &op, &want, err);
    if (status == VC_ERR_NOSPACE || status == VC_ERR_READONLY)
        s->stats.put_rejected++;
    cs_unlock(s);
    if (status != VC_OK || !op)
        return status;
    status = cs_op_start(op);
    if (status != VC_OK) {
        cs_lock(s);
        cs_put_undo(s, op);
        cs_op_put(s, op);
        cs_unlock(s);
        return vc_err_set(err, status, "the data worker is busy");
    }
    return VC_OK;
}

/* ---- commit and abort ---- */

vc_status_t cs_store_commit(cs_store_t *s, uint64_t upload_id, const cs_token_t *token, cs_io_done_fn done, void *arg,
                            vc_err_t *err)
{
    uint32_t missing = 0;
    vc_status_t status;
    cs_lock(s);
    status = s->closing ? vc_err_set(err, VC_ERR_CANCELLED, "the store is closing") : cs_writable(s, err);
    cs_upload_t *upload = NULL;
    if (status == VC_OK && !(upload = find_upload(s, upload_id, token, &status)))
        vc_err_set(err, status, "%s", why_not(status));
    for (uint32_t i = 0; upload && i < upload->n_fid * span(upload); i++)
        missing += upload->objects[i].state != CS_OBJECT_WRITTEN && upload->objects[i].state != CS_OBJECT_PRESENT;
    if (missing > 0)
        status =
            vc_err_set(err, VC_ERR_INVALID, "%u of %u objects were not put", missing, upload->n_fid * span(upload));
    else if (upload) {
        status = VC_OK;
        upload->state = CS_UPLOAD_COMMITTING;
        upload->done = done;
        upload->done_arg = arg;
        upload->next = NULL;
        *s->commits_end = upload;
        s->commits_end = &upload->next;
        pthread_cond_signal(&s->commit_work);
    }
    cs_unlock(s);
    return status;
}

vc_status_t cs_store_abort(cs_store_t *s, uint64_t upload_id, const cs_token_t *token)
{
    vc_status_t status;
    cs_lock(s);
    cs_upload_t *upload = find_upload(s, upload_id, token, &status);
    if (upload) {
        status = VC_OK;
        s->stats.aborts++;
        cs_upload_end(s, upload);
    }
    cs_unlock(s);
    return status;
}
