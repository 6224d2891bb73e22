/*
 * Layer-major fetch: headers of all blocks, then layer after layer, over the best path there is; what is missing at the
 * end - damaged, lost, absent on one path - comes as whole records through vcache_fetch.
 *
 * Memory: the headers of all blocks (4 KiB each for most shapes), and one layer part over gRPC or a few pieces over
 * UCX. A path that fails is followed by the next from the start; layers that were handed out already are passed over.
 */
#include <string.h>

#include "client_int.h"
#include "vc/frame.h"
#include "vc/mem.h"
#include "vc/recframe.h"

typedef struct {
    vc_kvrec_head_t head; /* points into heads */
    bool has_head;
    uint32_t next_layer;
} block_t;

typedef struct {
    vcache_lease_t *lease;
    vcache_client_t *c;
    uint32_t fid, first, n;
    vcache_layer_fn on_layer;
    void *arg;
    vcache_fetch_stats_t stats;
    vc_err_t *err;
    bool stopped;
    vc_data_layout_t layout;
    block_t *blocks;
    uint8_t *heads;
    /* the slice that is being put together, over gRPC */
    uint8_t *part;
    uint32_t block, slice, filled, want;
} layers_t;

/* ---- slices ---- */

static vc_status_t take_head(layers_t *l, uint32_t block, const uint8_t *data)
{
    block_t *b = &l->blocks[block - l->first];
    if (b->has_head) /* by a path that failed later */
        return VC_OK;
    uint8_t *copy = l->heads + (size_t)(block - l->first) * l->layout.head_bytes;
    memcpy(copy, data, l->layout.head_bytes);
    vc_kvrec_head_t head;
    uint64_t bytes = l->layout.head_bytes + (uint64_t)l->layout.part_bytes * l->layout.n_layer;
    if (vc_kvrec_decode(copy, l->layout.head_bytes, &head, NULL) != VC_OK ||
        head.header_bytes != l->layout.head_bytes || vc_kvrec_bytes(&head) != bytes ||
        memcmp(&head.shape, &l->lease->shape, sizeof(head.shape)) != 0 ||
        !vcache_is_wanted(l->lease, l->fid, block, &head)) {
        l->stats.wire_corrupt++;
        return VC_ERR_CORRUPT;
    }
    b->head = head;
    b->has_head = true;
    return VC_OK;
}

/* A layer out of turn belongs to a block that lost one before: that block comes again, as a whole. */
static vc_status_t take_layer(layers_t *l, uint32_t block, uint32_t layer, const uint8_t *data)
{
    block_t *b = &l->blocks[block - l->first];
    vc_kvrec_layer_t at;
    if (!b->has_head || layer != b->next_layer)
        return VC_OK;
    if (vc_kvrec_check_layer(&b->head, layer, data, NULL) != VC_OK) {
        l->stats.wire_corrupt++;
        return VC_ERR_CORRUPT;
    }
    vc_kvrec_layer(&b->head, layer, &at);
    b->next_layer++;
    l->stats.bytes += at.length;
    if (l->on_layer(l->arg, layer, block, data, at.length) == 0)
        return VC_OK;
    l->stopped = true;
    return VC_ERR_CANCELLED;
}

static vc_status_t take_slice(void *arg, uint32_t slice, uint32_t block, const uint8_t *data)
{
    return slice == 0 ? take_head(arg, block, data) : take_layer(arg, block, slice - 1, data);
}

static bool is_complete(const layers_t *l, uint32_t i) { return l->blocks[i].next_layer == l->layout.n_layer; }

/* ---- UCX ---- */

/* *down_p: this way failed, the next one is to be tried. UNREACHABLE: none is left. */
static vc_status_t fetch_plane(layers_t *l, unsigned *plane_p, bool *down_p)
{
    vc_data_t *data;
    vc_data_stats_t ds = {0};
    vc_data_lease_t lease = {.boot_id = l->lease->boot_id, .lease_id = l->lease->lease_id};
    memcpy(lease.token, l->lease->token, sizeof(lease.token));
    *down_p = false;
    if (vcache_data_begin(l->c, &l->lease->at, plane_p, &l->stats.steps_down, &data, l->err) != VC_OK)
        return VC_ERR_UNREACHABLE;
    if (l->stats.steps_down != 0)
        vc_data_note_step_down(data);
    vc_status_t st = vc_data_fetch_layers(data, &lease, l->fid, l->first, l->n, &l->layout, take_slice, l,
                                          l->c->o.stream_idle_ms, &ds, l->err);
    *down_p = !l->stopped && vcache_data_steps_down(st);
    vcache_data_end(l->c, *plane_p, *down_p);
    l->stats.steps_down += *down_p;
    if (ds.bytes != 0)
        l->stats.path = vcache_plane_path(*plane_p);
    if (l->stopped)
        return VC_ERR_CANCELLED;
    return *down_p ? VC_OK : st;
}

/* *done_p: one of the ways came to its end, though perhaps not with every block. */
static vc_status_t fetch_planes(layers_t *l, bool *done_p)
{
    vc_status_t st = VC_OK;
    *done_p = false;
    for (unsigned plane = 0; !*done_p && plane < VCACHE_N_PLANES; plane++) {
        bool down;
        st = fetch_plane(l, &plane, &down);
        if (st == VC_ERR_UNREACHABLE && !l->stopped)
            return VC_OK;
        if (st != VC_OK)
            return st;
        *done_p = !down;
    }
    return st;
}

/* ---- gRPC ---- */

static vc_status_t broken(layers_t *l, const char *how)
{
    return vc_err_set(l->err, VC_ERR_PROTOCOL, "%s: Fetch: %s", l->c->server, how);
}

/* Which slice begins with this frame; it may not end inside one. */
static vc_status_t start_slice(layers_t *l, const vc_recframe_t *frame)
{
    const block_t *b = &l->blocks[frame->block - l->first];
    uint64_t whole = l->layout.head_bytes + (uint64_t)l->layout.part_bytes * l->layout.n_layer;
    uint64_t at = frame->offset - l->layout.head_bytes;
    if (frame->record_bytes != whole)
        return broken(l, "a record of impossible length");
    if (frame->offset == 0) {
        l->slice = 0;
        l->want = l->layout.head_bytes;
    } else if (frame->offset >= l->layout.head_bytes && at % l->layout.part_bytes == 0 &&
               at / l->layout.part_bytes < l->layout.n_layer && b->has_head) {
        vc_kvrec_layer_t layer;
        l->slice = 1 + (uint32_t)(at / l->layout.part_bytes);
        vc_kvrec_layer(&b->head, l->slice - 1, &layer);
        l->want = layer.length;
    } else {
        return broken(l, "bytes that begin no layer");
    }
    l->block = frame->block;
    l->filled = 0;
    return VC_OK;
}

static vc_status_t take_frame(layers_t *l, const vc_bytes_t *message)
{
    vc_recframe_t frame;
    if (vc_recframe_decode(message->data, message->len, &frame) != VC_OK)
        return broken(l, "a message that is no frame");
    if (frame.block < l->first || frame.block - l->first >= l->n)
        return broken(l, "a block that was not asked for");
    if (frame.status != VC_RECFRAME_OK)
        return VC_OK; /* it stays incomplete */
    if (!l->blocks[frame.block - l->first].has_head && frame.offset >= l->layout.head_bytes)
        return VC_OK; /* its header was damaged */
    vc_status_t st = l->want == 0 ? start_slice(l, &frame) : VC_OK;
    if (st != VC_OK)
        return st;
    uint64_t from = l->slice == 0 ? 0 : l->layout.head_bytes + (uint64_t)(l->slice - 1) * l->layout.part_bytes;
    if (frame.block != l->block || frame.offset != from + l->filled || frame.data_len == 0 ||
        frame.data_len > l->want - l->filled)
        return broken(l, "frames out of order");
    memcpy(l->part + l->filled, frame.data, frame.data_len);
    l->filled += (uint32_t)frame.data_len;
    if (l->filled < l->want)
        return VC_OK;
    l->want = 0;
    st = take_slice(l, l->slice, l->block, l->part);
    return st == VC_ERR_CORRUPT ? VC_OK : st;
}

static vc_status_t fetch_grpc(layers_t *l)
{
    vc_rpc_stream_t *s = NULL;
    Vericache__V1__FetchRequest req = VERICACHE__V1__FETCH_REQUEST__INIT;
    req.column = l->fid;
    req.first_block = l->first;
    req.n_blocks = l->n;
    req.order = VERICACHE__V1__FETCH_REQUEST__ORDER__LAYER_MAJOR;
    req.stepped_down = l->stats.steps_down != 0;
    l->want = 0;
    vc_status_t st = vcache_fetch_stream(l->lease, &req, &s, l->err);
    if (st != VC_OK)
        return st;
    l->stats.path = VCACHE_PATH_GRPC;
    while (st == VC_OK) {
        vc_bytes_t message = {0};
        st = vcache_fetch_next(l->c, s, &message, l->err);
        if (st == VC_OK)
            st = take_frame(l, &message);
        vc_bytes_free(&message);
    }
    vc_err_t kept = *l->err;
    vc_rpc_stream_destroy(s);
    *l->err = kept;
    if (st == VC_ERR_NOT_FOUND && l->err->msg[0] == '\0')
        st = l->want != 0 ? broken(l, "the stream ended inside a layer") : VC_OK;
    return st;
}

/* ---- what is still missing, as whole records ---- */

static int take_record(void *arg, uint32_t block, const void *record, size_t bytes)
{
    layers_t *l = arg;
    const uint8_t *data = record;
    block_t *b = &l->blocks[block - l->first];
    vc_status_t st = VC_OK;
    if (bytes != l->layout.head_bytes + (size_t)l->layout.part_bytes * l->layout.n_layer)
        return 1;
    b->has_head = false;
    st = take_head(l, block, data);
    for (uint32_t layer = b->next_layer; st == VC_OK && layer < l->layout.n_layer; layer++)
        st = take_layer(l, block, layer, data + l->layout.head_bytes + (size_t)layer * l->layout.part_bytes);
    return st != VC_OK;
}

static vc_status_t fetch_missing(layers_t *l)
{
    for (uint32_t i = 0, n; i < l->n; i += n) {
        n = 0;
        while (i + n < l->n && !is_complete(l, i + n))
            n++;
        if (n == 0) {
            n = 1;
            continue;
        }
        vcache_fetch_stats_t fs = {0};
        vcache_error_t err = {0};
        vc_status_t st = (vc_status_t)vcache_fetch(l->lease, l->fid, l->first + i, n, take_record, l, &fs, &err);
        l->stats.wire_corrupt += fs.wire_corrupt;
        l->stats.steps_down += fs.steps_down;
        if (st != VC_OK)
            return vc_err_set(l->err, st, "%s", err.msg);
    }
    return VC_OK;
}

/* ---- the whole ---- */

static vc_status_t fetch_all(layers_t *l)
{
    bool done;
    vc_status_t st = vcache_lease_hashes(l->lease, l->err);
    if (st == VC_OK)
        st = fetch_planes(l, &done);
    if (st == VC_OK && !done)
        st = fetch_grpc(l);
    if (st == VC_OK)
        st = fetch_missing(l);
    if (l->stopped)
        st = vc_err_set(l->err, VC_ERR_CANCELLED, "the receiver ended the fetch");
    return st;
}

static vc_status_t make_room(layers_t *l)
{
    const vc_kv_shape_t *shape = &l->lease->shape;
    l->layout.head_bytes = vc_kvrec_header_bytes(shape);
    l->layout.part_bytes = (uint32_t)vc_align_up((size_t)vc_kv_layer_bytes(shape), VC_KVREC_ALIGN);
    l->layout.n_layer = shape->n_layer;
    l->blocks = vc_calloc(l->n, sizeof(*l->blocks));
    l->heads = vc_calloc(l->n, l->layout.head_bytes);
    l->part = vc_alloc_aligned(VC_KVREC_ALIGN, VC_MAX(l->layout.head_bytes, l->layout.part_bytes));
    return l->blocks != NULL && l->heads != NULL && l->part != NULL
               ? VC_OK
               : vc_err_set(l->err, VC_ERR_NOMEM, "out of memory for the headers of %u blocks", l->n);
}

static vc_status_t check(const vcache_lease_t *lease, uint32_t fid, uint32_t first, uint32_t n, vc_err_t *err)
{
    if (lease == NULL || fid >= lease->n_fid || n > lease->n_blocks[fid] || first > lease->n_blocks[fid] - n)
        return vc_err_set(err, VC_ERR_RANGE, "the lease does not hold blocks %u to %llu of column %u", first,
                          (unsigned long long)first + n, fid);
    if (n > VC_FRAME_MAX_LAYERED)
        return vc_err_set(err, VC_ERR_RANGE, "%u blocks, not 1 to %u", n, VC_FRAME_MAX_LAYERED);
    if (lease->keys[fid].fidelity != VC_FIDELITY_FULL)
        return vc_err_set(err, VC_ERR_INVALID, "column %u is compressed; layer by layer there are full copies only",
                          fid);
    return VC_OK;
}

vcache_status_t vcache_fetch_layers(vcache_lease_t *lease, uint32_t fid, uint32_t first, uint32_t n,
                                    vcache_layer_fn on_layer, void *arg, vcache_fetch_stats_t *stats_p,
                                    vcache_error_t *err)
{
    vc_err_t e = {0};
    layers_t l = {.lease = lease, .fid = fid, .first = first, .n = n, .on_layer = on_layer, .arg = arg, .err = &e};
    vc_status_t st = check(lease, fid, first, n, &e);
    if (st == VC_OK && n != 0) {
        l.c = lease->client;
        st = make_room(&l);
        if (st == VC_OK)
            st = fetch_all(&l);
    }
    vc_free(l.blocks);
    vc_free(l.heads);
    vc_free(l.part);
    if (stats_p != NULL)
        *stats_p = l.stats;
    return vcache_give(st, &e, err);
}
