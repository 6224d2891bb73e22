/*
 * Fetch: blocks of a lease as a stream of frames.
 *
 * The story. All wanted objects are pinned first, so that the lease may expire while the stream runs. Then batches go
 * through a short pipeline: while one is sent, the next are read. A batch is a view of one record (block-major), or one
 * pool buffer with as many parts of one layer as fit (layer-major). Frames borrow their bytes from it; gRPC lets go of
 * them after the socket took them, often when the handler is past that batch, so a batch is reference-counted and gives
 * back its view or buffer with the last frame.
 *
 * Layer-major first reads the header pages of all blocks, which say where the layers are; header and layer checksums
 * are the receiver's to check, block-major records are checked by the store. Parts of a record that is in memory are
 * copied from there: a view for each block of a long range would hold all of them for as long as the slowest client.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "service_int.h"
#include "vc/bytes.h"
#include "vc/kvrec.h"
#include "vc/mem.h"
#include "vc/recframe.h"

#define DEPTH 3 /* batches per stream: one sent, two read */
#define PACE_NAP_US 20000
#define MEMORY_POLL_MS 20

typedef struct {     /* a run of record bytes inside a batch */
    uint32_t index;  /* block in the request's range */
    uint64_t offset; /* of its first byte in the record */
    uint32_t length, buf_at;
} piece_t;

typedef struct {
    cs_service_t *s;
    cs_buf_t *buf;         /* NULL: a view */
    cs_view_t *view;       /* written before the latch opens */
    _Atomic uint32_t refs; /* the stream's and one per frame under way */
    cs_latch_t latch;
    piece_t *pieces;
    uint32_t n_pieces, used;
    bool submitted_all;
} batch_t;

typedef struct {
    cs_service_t *s;
    vc_rpc_call_t *call;
    vc_err_t *err;
    const Vericache__V1__FetchRequest *m;
    cs_token_t token;
    cs_pin_t *pins;
    vc_status_t *state; /* per block: OK, NOT_FOUND, CORRUPT */
    uint8_t **heads;    /* layer-major: copies of the header pages */
    vc_kvrec_head_t *decoded;
    uint32_t n, n_layer;
    uint32_t next_block, next_layer; /* what the next batch starts with */
    cs_pace_stream_t *pace;
    uint32_t frame_bytes;
    batch_t *queue[DEPTH];
    uint32_t n_queued;
    uint64_t start_us; /* 0: the first frame is out */
} fetch_t;

/* ---- batches ---- */

/* Release orders this thread's reads of the buffer before the free; acquire makes the last one see them all. */
static void batch_unref(void *arg)
{
    batch_t *b = arg;
    if (atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1)
        return;
    cs_service_t *s = b->s;
    cs_bufpool_put(s->o.pool, b->buf);
    cs_view_release(b->view);
    cs_latch_fini(&b->latch);
    vc_free(b->pieces);
    vc_free(b);
    pthread_mutex_lock(&s->lock);
    s->buffers_out--;
    pthread_cond_broadcast(&s->returned);
    pthread_mutex_unlock(&s->lock);
}

static batch_t *batch_create(cs_service_t *s, cs_buf_t *buf, uint32_t max_pieces)
{
    batch_t *b = vc_calloc(1, sizeof(*b));
    piece_t *pieces = vc_calloc(max_pieces, sizeof(*pieces));
    if (b == NULL || pieces == NULL) {
        vc_free(b);
        vc_free(pieces);
        cs_bufpool_put(s->o.pool, buf);
        return NULL;
    }
    b->s = s;
    b->buf = buf;
    b->pieces = pieces;
    atomic_init(&b->refs, 1);
    cs_latch_init(&b->latch);
    pthread_mutex_lock(&s->lock);
    s->buffers_out++;
    pthread_mutex_unlock(&s->lock);
    return b;
}

/* Waits for a buffer when the stream has none at all; a stream that has one goes on with it. */
static vc_status_t take_batch(fetch_t *f, uint32_t max_pieces, batch_t **batch_p)
{
    cs_bufpool_t *pool = f->s->o.pool;
    cs_buf_t *buf = f->n_queued == 0 ? cs_bufpool_wait(pool, f->s->o.idle_ms) : cs_bufpool_get(pool);
    *batch_p = NULL;
    if (buf == NULL)
        return f->n_queued == 0 ? vc_err_set(f->err, VC_ERR_BUSY, "no free buffer within %u ms", f->s->o.idle_ms)
                                : VC_ERR_AGAIN;
    *batch_p = batch_create(f->s, buf, max_pieces);
    return *batch_p != NULL ? VC_OK : vc_err_set(f->err, VC_ERR_NOMEM, "out of memory");
}

/* Reads [from, from + length) of block i. A full worker queue empties by itself: wait for our own reads, then try
 * again.
 */
static vc_status_t batch_read(fetch_t *f, batch_t *b, uint32_t i, uint32_t from, uint32_t length)
{
    struct timespec nap = {0, 1000000};
    for (uint32_t tries = 0;; tries++) {
        cs_latch_add(&b->latch);
        vc_status_t st = cs_store_read_part(f->s->o.store, NULL, &f->pins[i], from, length, b->buf, b->used,
                                            cs_latch_done, &b->latch);
        if (st == VC_OK)
            return VC_OK;
        cs_latch_done(&b->latch, VC_OK);
        if (st != VC_ERR_BUSY || tries >= f->s->o.idle_ms)
            return vc_err_set(f->err, st, "cannot read block %u: %s", f->m->first_block + i, vc_status_name(st));
        st = cs_latch_wait(&b->latch);
        if (st != VC_OK)
            return st;
        nanosleep(&nap, NULL);
    }
}

static void got_view(void *arg, vc_status_t status, cs_view_t *view)
{
    batch_t *b = arg;
    b->view = view;
    cs_latch_done(&b->latch, status);
}

/* Without memory for it: AGAIN when the stream has something to send meanwhile, else waits for some to come back. */
static vc_status_t wait_for_memory(fetch_t *f, uint64_t *since_us_p)
{
    struct timespec nap = {0, 1000000};
    if (f->n_queued != 0)
        return VC_ERR_AGAIN;
    uint64_t now_us = vc_clock_now_us(vc_clock_system());
    if (*since_us_p == 0)
        *since_us_p = now_us;
    if (now_us - *since_us_p > (uint64_t)f->s->o.idle_ms * 1000)
        return vc_err_set(f->err, VC_ERR_BUSY, "no free buffer within %u ms", f->s->o.idle_ms);
    /* A buffer that comes back is the store's to take, unless another is faster; room in the memory tier tells nobody.
     */
    cs_bufpool_put(f->s->o.pool, cs_bufpool_wait(f->s->o.pool, MEMORY_POLL_MS));
    nanosleep(&nap, NULL);
    return VC_OK;
}

/* The whole record of block i, from memory or by a read that others may share. */
static vc_status_t batch_get(fetch_t *f, batch_t *b, uint32_t i)
{
    struct timespec nap = {0, 1000000};
    uint64_t since_us = 0;
    for (uint32_t tries = 0;; tries++) {
        cs_view_t *view = NULL;
        cs_latch_add(&b->latch);
        vc_status_t st = cs_store_get(f->s->o.store, NULL, &f->pins[i], &view, got_view, b);
        if (st == VC_OK && view == NULL)
            return VC_OK;
        b->view = view;
        cs_latch_done(&b->latch, VC_OK);
        if (st == VC_OK)
            return VC_OK;
        if (st == VC_ERR_AGAIN) {
            st = wait_for_memory(f, &since_us);
            if (st != VC_OK)
                return st;
        } else if (st != VC_ERR_BUSY || tries >= f->s->o.idle_ms) {
            return vc_err_set(f->err, st, "cannot read block %u: %s", f->m->first_block + i, vc_status_name(st));
        } else {
            nanosleep(&nap, NULL);
        }
    }
}

static vc_status_t batch_add_part(fetch_t *f, batch_t *b, uint32_t i, uint64_t offset, uint32_t length)
{
    uint64_t from = offset & ~(uint64_t)(VC_KVREC_ALIGN - 1);
    uint32_t read = (uint32_t)(vc_align_up(offset + length, VC_KVREC_ALIGN) - from);
    cs_view_t *view = cs_store_peek(f->s->o.store, &f->pins[i], offset > 0);
    vc_status_t st = VC_OK;
    if (view != NULL)
        memcpy(b->buf->data + b->used, view->data + from, read);
    else
        st = batch_read(f, b, i, (uint32_t)from, read);
    cs_view_release(view);
    if (st != VC_OK)
        return st;
    b->pieces[b->n_pieces++] = (piece_t){i, offset, length, b->used + (uint32_t)(offset - from)};
    b->used += read;
    return VC_OK;
}

/* ---- sending ---- */

static vc_status_t pace_wait(fetch_t *f, uint32_t bytes)
{
    uint64_t wait_us = 0;
    cs_pace_request(f->pace, bytes);
    while (!cs_pace_poll(f->pace, vc_clock_now_us(f->s->o.clock), &wait_us)) {
        if (vc_rpc_call_is_cancelled(f->call))
            return VC_ERR_CANCELLED;
        wait_us = VC_MIN(wait_us, PACE_NAP_US);
        struct timespec nap = {0, (long)wait_us * 1000};
        nanosleep(&nap, NULL);
    }
    return VC_OK;
}

static vc_status_t send_frame(fetch_t *f, const vc_recframe_t *frame, void (*release)(void *arg), void *arg)
{
    uint8_t head[VC_RECFRAME_HEAD_MAX];
    vc_rpc_msg_t msg = {.head = head, .body = frame->data, .body_len = frame->data_len, .release = release, .arg = arg};
    msg.head_len = vc_recframe_encode_head(frame, head);
    vc_status_t st = pace_wait(f, (uint32_t)(msg.head_len + msg.body_len));
    if (st != VC_OK) {
        if (release != NULL)
            release(arg);
        return st;
    }
    st = vc_rpc_call_send(f->call, &msg);
    if (st == VC_OK && f->start_us != 0) {
        cs_hist_add(&f->s->fetch_time, vc_clock_now_us(f->s->o.clock) - f->start_us);
        f->start_us = 0;
    }
    if (st == VC_ERR_TIMEOUT)
        return vc_err_set(f->err, st, "the client took nothing for %u ms", f->s->o.idle_ms);
    if (st == VC_OK)
        cs_count(&f->s->n.fetch_bytes, frame->data_len);
    return st;
}

static vc_status_t send_status(fetch_t *f, uint32_t i)
{
    vc_recframe_t frame = {.block = f->m->first_block + i};
    frame.status = f->state[i] == VC_ERR_CORRUPT ? VC_RECFRAME_CORRUPT : VC_RECFRAME_NOT_FOUND;
    return send_frame(f, &frame, NULL, NULL);
}

static vc_status_t send_piece(fetch_t *f, batch_t *b, const piece_t *p)
{
    vc_status_t st = VC_OK;
    const uint8_t *data = b->view != NULL ? b->view->data : b->buf->data;
    for (uint32_t at = 0; st == VC_OK && at < p->length;) {
        uint32_t n = VC_MIN(p->length - at, f->frame_bytes);
        vc_recframe_t frame = {.block = f->m->first_block + p->index,
                               .offset = p->offset + at,
                               .record_bytes = f->pins[p->index].bytes,
                               .data = data + p->buf_at + at,
                               .data_len = n};
        /* Relaxed: the stream holds a reference, so the count cannot reach zero meanwhile. */
        atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
        st = send_frame(f, &frame, batch_unref, b);
        at += n;
    }
    return st;
}

/* A whole record that the store found damaged is told to the client; a part that cannot be read ends the stream. */
static vc_status_t batch_send(fetch_t *f, batch_t *b)
{
    vc_status_t st = cs_latch_wait(&b->latch);
    bool whole = f->m->order == VERICACHE__V1__FETCH_REQUEST__ORDER__BLOCK_MAJOR;
    if (whole && (st == VC_ERR_CORRUPT || st == VC_ERR_NOT_FOUND)) {
        f->state[b->pieces[0].index] = st;
        return send_status(f, b->pieces[0].index);
    }
    if (st != VC_OK)
        return vc_err_set(f->err, st, "cannot read block %u: %s", f->m->first_block + b->pieces[0].index,
                          vc_status_name(st));
    for (uint32_t i = 0; st == VC_OK && i < b->n_pieces; i++)
        st = send_piece(f, b, &b->pieces[i]);
    if (whole && st == VC_OK)
        cs_count(&f->s->n.fetch_records, 1);
    return st;
}

/* ---- what comes next ---- */

static vc_status_t next_record(fetch_t *f, batch_t **batch_p)
{
    *batch_p = NULL;
    while (f->next_block < f->n && f->state[f->next_block] != VC_OK) {
        if (f->n_queued != 0)
            return VC_ERR_AGAIN; /* keep the order: what is queued goes first */
        vc_status_t st = send_status(f, f->next_block++);
        if (st != VC_OK)
            return st;
    }
    if (f->next_block == f->n)
        return VC_OK;
    uint32_t i = f->next_block;
    batch_t *b = batch_create(f->s, NULL, 1);
    if (b == NULL)
        return vc_err_set(f->err, VC_ERR_NOMEM, "out of memory");
    b->pieces[b->n_pieces++] = (piece_t){i, 0, f->pins[i].bytes, 0};
    vc_status_t st = batch_get(f, b, i);
    if (st != VC_OK) {
        batch_unref(b);
        return st;
    }
    f->next_block++;
    *batch_p = b;
    return VC_OK;
}

/* Parts of layer next_layer from block next_block on, as many as fit into one buffer. */
static vc_status_t next_layer_parts(fetch_t *f, batch_t **batch_p)
{
    *batch_p = NULL;
    size_t cap = cs_bufpool_buf_bytes(f->s->o.pool);
    vc_status_t st = VC_OK;
    while (st == VC_OK && f->next_layer < f->n_layer) {
        for (; f->next_block < f->n; f->next_block++) {
            uint32_t i = f->next_block;
            vc_kvrec_layer_t part = {0};
            if (f->state[i] == VC_OK)
                vc_kvrec_layer(&f->decoded[i], f->next_layer, &part);
            if (part.length == 0) /* absent block, or a layer without rows */
                continue;
            size_t need = (size_t)part.length + 2 * VC_KVREC_ALIGN;
            if (*batch_p != NULL && (*batch_p)->used + need > cap)
                return VC_OK;
            if (*batch_p == NULL)
                st = need > cap ? vc_err_set(f->err, VC_ERR_RANGE, "layer part of %u bytes is larger than a buffer",
                                             part.length)
                                : take_batch(f, f->n, batch_p);
            if (st == VC_OK)
                st = batch_add_part(f, *batch_p, i, part.offset, part.length);
            if (st != VC_OK)
                return st;
        }
        f->next_layer++;
        f->next_block = 0;
        if (*batch_p != NULL)
            return VC_OK;
    }
    return st;
}

/* Keeps the pipeline full, sends the oldest batch, until nothing is left. */
static vc_status_t run(fetch_t *f)
{
    bool layers = f->m->order == VERICACHE__V1__FETCH_REQUEST__ORDER__LAYER_MAJOR, more = true;
    vc_status_t st = VC_OK;
    while (st == VC_OK && (more || f->n_queued != 0)) {
        while (st == VC_OK && more && f->n_queued < DEPTH) {
            batch_t *b = NULL;
            st = layers ? next_layer_parts(f, &b) : next_record(f, &b);
            if (b != NULL)
                f->queue[f->n_queued++] = b;
            if (st == VC_OK && b == NULL)
                more = false;
        }
        if (st == VC_ERR_AGAIN)
            st = VC_OK; /* no buffer now, but there is something to send */
        if (st == VC_OK && f->n_queued != 0) {
            batch_t *b = f->queue[0];
            st = batch_send(f, b);
            f->n_queued--;
            memmove(&f->queue[0], &f->queue[1], f->n_queued * sizeof(f->queue[0]));
            batch_unref(b);
        }
    }
    while (f->n_queued != 0) { /* after an error: reads into the buffer must have ended */
        batch_t *b = f->queue[--f->n_queued];
        cs_latch_wait(&b->latch);
        batch_unref(b);
    }
    return st;
}

/* ---- headers, for layer-major ---- */

static void block_damaged(fetch_t *f, uint32_t i)
{
    f->state[i] = VC_ERR_CORRUPT;
    cs_store_report_corrupt(f->s->o.store, &f->pins[i]);
}

/* Reads `bytes` from the start of block i into a copy. */
static vc_status_t read_head(fetch_t *f, uint32_t i, uint32_t bytes)
{
    batch_t *b = NULL;
    vc_status_t st = take_batch(f, 1, &b);
    if (st == VC_OK) {
        st = batch_add_part(f, b, i, 0, bytes);
        vc_status_t read = cs_latch_wait(&b->latch);
        st = st != VC_OK ? st : read;
        if (st == VC_OK) {
            vc_free(f->heads[i]);
            f->heads[i] = vc_memdup(b->buf->data, bytes);
            if (f->heads[i] == NULL)
                st = VC_ERR_NOMEM;
        }
        batch_unref(b);
    }
    return st == VC_OK ? st
                       : vc_err_set(f->err, st, "cannot read the header of block %u: %s", f->m->first_block + i,
                                    vc_status_name(st));
}

static vc_status_t load_head(fetch_t *f, uint32_t i)
{
    vc_object_key_t key;
    vc_status_t st = read_head(f, i, VC_KVREC_ALIGN);
    if (st != VC_OK)
        return st;
    uint32_t bytes = vc_le32(f->heads[i] + 8); /* header_bytes, to be trusted after the checksum only */
    if (bytes % VC_KVREC_ALIGN != 0 || bytes == 0 || bytes > f->pins[i].bytes ||
        bytes > cs_bufpool_buf_bytes(f->s->o.pool)) {
        block_damaged(f, i);
        return VC_OK;
    }
    if (bytes > VC_KVREC_ALIGN)
        st = read_head(f, i, bytes);
    if (st != VC_OK)
        return st;
    if (vc_kvrec_decode(f->heads[i], bytes, &f->decoded[i], NULL) != VC_OK ||
        vc_kvrec_bytes(&f->decoded[i]) != f->pins[i].bytes) {
        block_damaged(f, i);
        return VC_OK;
    }
    vc_kvrec_key(&f->decoded[i], &key);
    if (memcmp(&key, &f->pins[i].key, sizeof(key)) != 0)
        block_damaged(f, i);
    else
        f->n_layer = VC_MAX(f->n_layer, f->decoded[i].shape.n_layer);
    return VC_OK;
}

static vc_status_t send_head(fetch_t *f, uint32_t i)
{
    vc_status_t st = VC_OK;
    if (f->state[i] != VC_OK)
        return send_status(f, i);
    uint32_t bytes = f->decoded[i].header_bytes;
    for (uint32_t at = 0; st == VC_OK && at < bytes; at += f->frame_bytes) {
        vc_recframe_t frame = {.block = f->m->first_block + i, .offset = at, .record_bytes = f->pins[i].bytes};
        frame.data_len = VC_MIN(bytes - at, f->frame_bytes);
        uint8_t *copy = vc_memdup(f->heads[i] + at, frame.data_len);
        if (copy == NULL)
            return vc_err_set(f->err, VC_ERR_NOMEM, "out of memory");
        frame.data = copy;
        st = send_frame(f, &frame, vc_free, copy);
    }
    return st;
}

static vc_status_t run_layer_major(fetch_t *f)
{
    vc_status_t st = VC_OK;
    f->heads = vc_calloc(f->n, sizeof(*f->heads));
    f->decoded = vc_calloc(f->n, sizeof(*f->decoded));
    if (f->heads == NULL || f->decoded == NULL)
        return vc_err_set(f->err, VC_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; st == VC_OK && i < f->n; i++)
        if (f->state[i] == VC_OK)
            st = load_head(f, i);
    for (uint32_t i = 0; st == VC_OK && i < f->n; i++) {
        if (f->state[i] == VC_OK && f->decoded[i].shape.n_layer != f->n_layer)
            block_damaged(f, i); /* one keyspace has one shape */
        st = send_head(f, i);
    }
    if (st == VC_OK)
        st = run(f);
    for (uint32_t i = 0; st == VC_OK && i < f->n; i++)
        cs_count(&f->s->n.fetch_records, f->state[i] == VC_OK);
    return st;
}

/* ---- the call ---- */

static vc_status_t pin_all(fetch_t *f)
{
    const Vericache__V1__LeaseRef *lease = f->m->lease;
    for (uint32_t i = 0; i < f->n; i++) {
        vc_status_t st = cs_store_pin_leased(f->s->o.store, lease->boot_id, lease->lease_id, &f->token, f->m->column,
                                             f->m->first_block + i, &f->pins[i]);
        f->state[i] = st;
        if (st == VC_ERR_NOT_FOUND || st == VC_OK)
            continue;
        f->n = i; /* only these are pinned */
        unsigned long long id = (unsigned long long)lease->lease_id;
        if (st == VC_ERR_STALE)
            return vc_err_set(f->err, st, "lease %llu has expired or is from before a restart", id);
        if (st == VC_ERR_PERM)
            return vc_err_set(f->err, st, "wrong token for lease %llu", id);
        if (st == VC_ERR_RANGE)
            return vc_err_set(f->err, st, "lease %llu holds no block %u of column %u", id, f->m->first_block + i,
                              f->m->column);
        return vc_err_set(f->err, st, "lease %llu: %s", id, vc_status_name(st));
    }
    if (f->m->damaged)
        for (uint32_t i = 0; i < f->n; i++) {
            cs_count(&f->s->n.damaged_reports, 1);
            cs_store_count_wire_corrupt(f->s->o.store);
            if (f->state[i] == VC_OK)
                cs_store_report_corrupt(f->s->o.store, &f->pins[i]);
        }
    return VC_OK;
}

static vc_status_t fetch_check(fetch_t *f)
{
    vc_status_t st = cs_take_lease(f->m->lease, &f->token, f->err);
    if (st != VC_OK)
        return st;
    bool layers = f->m->order == VERICACHE__V1__FETCH_REQUEST__ORDER__LAYER_MAJOR;
    uint32_t most = layers ? CS_SERVICE_LAYERED : CS_SERVICE_BLOCKS;
    if (f->m->n_blocks == 0 || f->m->n_blocks > most || f->m->first_block > UINT32_MAX - f->m->n_blocks)
        return vc_err_set(f->err, VC_ERR_RANGE, "%u blocks from %u are not a range of 1 to %u", f->m->n_blocks,
                          f->m->first_block, most);
    if (!layers && f->m->order != VERICACHE__V1__FETCH_REQUEST__ORDER__BLOCK_MAJOR)
        return vc_err_set(f->err, VC_ERR_INVALID, "order %d is unknown", (int)f->m->order);
    f->n = f->m->n_blocks;
    f->pins = vc_calloc(f->n, sizeof(*f->pins));
    f->state = vc_calloc(f->n, sizeof(*f->state));
    if (f->pins == NULL || f->state == NULL || cs_pace_open(f->s->pace, &f->pace) != VC_OK) {
        f->n = 0;
        return vc_err_set(f->err, VC_ERR_NOMEM, "out of memory");
    }
    f->frame_bytes = VC_MIN(cs_pace_quantum(f->s->pace), VC_RECFRAME_DATA_MAX);
    return VC_OK;
}

static vc_status_t fetch_serve(fetch_t *f)
{
    vc_status_t st = fetch_check(f);
    if (st == VC_OK) {
        st = pin_all(f);
        if (st == VC_OK)
            st = f->m->order == VERICACHE__V1__FETCH_REQUEST__ORDER__LAYER_MAJOR ? run_layer_major(f) : run(f);
        for (uint32_t i = 0; i < f->n; i++) {
            if (f->pins[i].bytes != 0)
                cs_store_unpin(f->s->o.store, &f->pins[i]);
            if (f->heads != NULL)
                vc_free(f->heads[i]);
        }
    }
    cs_pace_close(f->pace);
    vc_free(f->pins);
    vc_free(f->state);
    vc_free(f->heads);
    vc_free(f->decoded);
    return st;
}

vc_status_t cs_service_fetch(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    cs_service_t *s = arg;
    vc_bytes_t req = {0};
    cs_count(&s->n.fetches, 1);
    vc_status_t st = vc_rpc_call_recv(call, s->o.idle_ms, &req);
    if (st != VC_OK)
        return vc_err_set(err, st == VC_ERR_AGAIN ? VC_ERR_TIMEOUT : VC_ERR_INVALID, "no FetchRequest came");
    Vericache__V1__FetchRequest *m = vericache__v1__fetch_request__unpack(NULL, req.len, req.data);
    vc_bytes_free(&req);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "request is not a FetchRequest");
    atomic_fetch_add_explicit(&s->n.fetch_streams, 1, memory_order_relaxed);
    cs_count(&s->n.step_downs, m->stepped_down);
    fetch_t f = {.s = s, .call = call, .err = err, .m = m, .start_us = vc_clock_now_us(s->o.clock)};
    st = fetch_serve(&f);
    vericache__v1__fetch_request__free_unpacked(m, NULL);
    atomic_fetch_sub_explicit(&s->n.fetch_streams, 1, memory_order_relaxed);
    return st;
}
