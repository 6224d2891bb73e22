/*
 * Fetch: whole, checked records of a lease. UCX first where it is wanted and offered; what it did not deliver comes
 * over gRPC; what arrived damaged there is asked for once more.
 *
 * Memory: one record over gRPC, a few over UCX. A record is handed out only when every checksum holds in this memory
 * and it is the block, the keyspace and the fidelity that were asked for.
 */
#include <string.h>

#include "client_int.h"
#include "vc/mem.h"
#include "vc/recframe.h"

typedef enum { BLOCK_WANTED = 0, BLOCK_GOT, BLOCK_DAMAGED, BLOCK_ABSENT } block_state_t;

typedef struct {
    vcache_lease_t *lease;
    vcache_client_t *c;
    uint32_t fid, first, n;
    vcache_record_fn on_record;
    void *arg;
    vcache_fetch_stats_t stats;
    uint8_t *state; /* block_state_t per block */
    bool stopped;   /* by the caller */
    vc_err_t *err;
    /* the record that is being put together, over gRPC */
    uint8_t *buf;
    uint64_t cap, record_bytes, filled;
    uint32_t block; /* absolute */
} fetch_t;

bool vcache_is_wanted(const vcache_lease_t *lease, uint32_t fid, uint32_t block, const vc_kvrec_head_t *head)
{
    vc_object_key_t key, want = lease->keys[fid];
    want.hash = lease->hashes[block];
    vc_kvrec_key(head, &key);
    return memcmp(&key, &want, sizeof(key)) == 0 && head->block_index == block &&
           memcmp(&head->keyspace, &lease->keyspace, sizeof(head->keyspace)) == 0;
}

/* True when these bytes are the record of `block` that was asked for, undamaged. summed: every layer's checksum has
 * been verified in this memory already. */
static bool record_is_good(const fetch_t *f, uint32_t block, const void *record, size_t bytes, bool summed)
{
    vc_kvrec_head_t head;
    vc_status_t st = summed ? vc_kvrec_decode(record, bytes, &head, NULL) : vc_kvrec_check(record, bytes, &head, NULL);
    return st == VC_OK && vc_kvrec_bytes(&head) == bytes && vcache_is_wanted(f->lease, f->fid, block, &head);
}

/* VC_OK, or CANCELLED when the caller has had enough. A damaged record only changes the block's state. */
static vc_status_t deliver(fetch_t *f, uint32_t block, const void *record, size_t bytes, bool summed)
{
    uint32_t i = block - f->first;
    if (!record_is_good(f, block, record, bytes, summed)) {
        f->state[i] = BLOCK_DAMAGED;
        f->stats.wire_corrupt++;
        return VC_OK;
    }
    f->state[i] = BLOCK_GOT;
    f->stats.bytes += bytes;
    if (f->on_record(f->arg, block, record, bytes) == 0)
        return VC_OK;
    f->stopped = true;
    return vc_err_set(f->err, VC_ERR_CANCELLED, "the receiver ended the fetch at block %u", block);
}

/* ---- UCX ---- */

static int data_record(void *arg, uint32_t block, vc_status_t status, const void *record, size_t bytes)
{
    fetch_t *f = arg;
    if (block < f->first || block - f->first >= f->n || f->state[block - f->first] == BLOCK_GOT)
        return 0; /* never asked for, or twice: not worth more than being ignored */
    if (status == VC_OK)
        return deliver(f, block, record, bytes, true) != VC_OK;
    f->state[block - f->first] = status == VC_ERR_CORRUPT ? BLOCK_DAMAGED : BLOCK_ABSENT;
    return 0;
}

/* Blocks [from, from + n) over the best way from *plane_p on. *down_p: it failed, and what it did not bring is still
 * wanted. UNREACHABLE: no way is left. */
static vc_status_t fetch_plane(fetch_t *f, unsigned *plane_p, uint32_t from, uint32_t n, bool *down_p)
{
    vc_data_t *data;
    vc_data_stats_t ds = {0};
    vc_data_lease_t lease = {.boot_id = f->lease->boot_id, .lease_id = f->lease->lease_id};
    memcpy(lease.token, f->lease->token, sizeof(lease.token));
    *down_p = false;
    if (vcache_data_begin(f->c, &f->lease->at, plane_p, &f->stats.steps_down, &data, f->err) != VC_OK)
        return VC_ERR_UNREACHABLE;
    if (f->stats.steps_down != 0)
        vc_data_note_step_down(data);
    vc_status_t st = vc_data_fetch(data, &lease, f->fid, from, n, data_record, f, f->c->o.stream_idle_ms, &ds, f->err);
    *down_p = !f->stopped && vcache_data_steps_down(st);
    vcache_data_end(f->c, *plane_p, *down_p);
    f->stats.wire_corrupt += ds.wire_corrupt;
    f->stats.steps_down += *down_p;
    if (ds.records != 0)
        f->stats.path = vcache_plane_path(*plane_p);
    if (f->stopped)
        return VC_ERR_CANCELLED;
    return *down_p || st == VC_ERR_CORRUPT || st == VC_ERR_NOT_FOUND ? VC_OK : st;
}

/* Every run of wanted blocks, stepping down where a way fails. What is wanted after that is gRPC's. */
static vc_status_t fetch_planes(fetch_t *f)
{
    unsigned plane = 0;
    for (uint32_t i = 0, n; i < f->n && plane < VCACHE_N_PLANES; i += n) {
        bool down = false;
        n = 0;
        while (i + n < f->n && f->state[i + n] == BLOCK_WANTED)
            n++;
        if (n == 0) {
            n = 1;
            continue;
        }
        vc_status_t st = fetch_plane(f, &plane, f->first + i, n, &down);
        if (st == VC_ERR_UNREACHABLE && !f->stopped)
            return VC_OK;
        if (st != VC_OK)
            return st;
        plane += down;
        n = down ? 0 : n; /* what is left of this run is for the next way */
    }
    return VC_OK;
}

/* ---- gRPC ---- */

vc_status_t vcache_fetch_stream(vcache_lease_t *lease, Vericache__V1__FetchRequest *req, vc_rpc_stream_t **stream_p,
                                vc_err_t *err)
{
    Vericache__V1__LeaseRef ref = VERICACHE__V1__LEASE_REF__INIT;
    uint8_t bytes[256];
    vc_rpc_stream_t *s = NULL;
    vcache_lease_ref(lease, &ref);
    req->lease = &ref;
    if (vericache__v1__fetch_request__get_packed_size(req) > sizeof(bytes))
        return vc_err_set(err, VC_ERR_INTERNAL, "request does not fit");
    vc_status_t st = vc_rpc_stream_open(lease->client->channel, VCACHE_METHOD("Fetch"), 0, &s, err);
    if (st != VC_OK)
        return st;
    vc_rpc_msg_t msg = {.head = bytes, .head_len = vericache__v1__fetch_request__pack(req, bytes)};
    st = vc_rpc_stream_send(s, &msg, err);
    if (st == VC_OK)
        (void)vc_rpc_stream_half_close(s); /* refused: the call is over already; recv says why */
    if (st != VC_OK) {
        vc_err_t kept = *err;
        vc_rpc_stream_destroy(s);
        *err = kept;
        return st;
    }
    *stream_p = s;
    return VC_OK;
}

vc_status_t vcache_fetch_next(vcache_client_t *c, vc_rpc_stream_t *s, vc_bytes_t *message_p, vc_err_t *err)
{
    vc_status_t st = vc_rpc_stream_recv(s, c->o.stream_idle_ms, message_p, err);
    if (st == VC_ERR_AGAIN)
        return vc_err_set(err, VC_ERR_TIMEOUT, "%s: Fetch: nothing came for %u ms", c->server, c->o.stream_idle_ms);
    return st;
}

static vc_status_t broken(fetch_t *f, const char *how)
{
    return vc_err_set(f->err, VC_ERR_PROTOCOL, "%s: Fetch: %s", f->c->server, how);
}

static vc_status_t start_record(fetch_t *f, const vc_recframe_t *frame)
{
    uint64_t limit = vcache_record_limit(&f->lease->shape, f->lease->keys[f->fid].fidelity == VC_FIDELITY_COMPRESSED);
    if (frame->record_bytes == 0 || frame->record_bytes % VC_KVREC_ALIGN != 0 || frame->record_bytes > limit)
        return broken(f, "a record of impossible length");
    if (frame->record_bytes > f->cap) {
        vc_free(f->buf);
        f->cap = 0;
        f->buf = vc_alloc_aligned(VC_KVREC_ALIGN, (size_t)frame->record_bytes);
        if (f->buf == NULL)
            return vc_err_set(f->err, VC_ERR_NOMEM, "out of memory");
        f->cap = frame->record_bytes;
    }
    f->block = frame->block;
    f->record_bytes = frame->record_bytes;
    f->filled = 0;
    return VC_OK;
}

static vc_status_t take_frame(fetch_t *f, uint32_t from, uint32_t n, const vc_bytes_t *message)
{
    vc_recframe_t frame;
    if (vc_recframe_decode(message->data, message->len, &frame) != VC_OK)
        return broken(f, "a message that is no frame");
    if (frame.block < from || frame.block - from >= n || f->state[frame.block - f->first] == BLOCK_GOT)
        return broken(f, "a block that was not asked for");
    if (frame.status != VC_RECFRAME_OK) {
        f->state[frame.block - f->first] = frame.status == VC_RECFRAME_CORRUPT ? BLOCK_DAMAGED : BLOCK_ABSENT;
        return VC_OK;
    }
    if (f->record_bytes == 0) {
        vc_status_t st = start_record(f, &frame);
        if (st != VC_OK)
            return st;
    }
    if (frame.block != f->block || frame.record_bytes != f->record_bytes || frame.offset != f->filled ||
        frame.data_len == 0)
        return broken(f, "frames out of order");
    memcpy(f->buf + f->filled, frame.data, frame.data_len);
    f->filled += frame.data_len;
    if (f->filled < f->record_bytes)
        return VC_OK;
    size_t bytes = (size_t)f->record_bytes;
    f->record_bytes = 0;
    return deliver(f, f->block, f->buf, bytes, false);
}

/* Blocks [from, from + n) over one stream. */
static vc_status_t fetch_grpc(fetch_t *f, uint32_t from, uint32_t n, bool damaged)
{
    vc_rpc_stream_t *s = NULL;
    Vericache__V1__FetchRequest req = VERICACHE__V1__FETCH_REQUEST__INIT;
    req.column = f->fid;
    req.first_block = from;
    req.n_blocks = n;
    req.stepped_down = f->stats.steps_down != 0;
    req.damaged = damaged;
    f->record_bytes = 0;
    vc_status_t st = vcache_fetch_stream(f->lease, &req, &s, f->err);
    if (st != VC_OK)
        return st;
    f->stats.path = VCACHE_PATH_GRPC;
    while (st == VC_OK) {
        vc_bytes_t message = {0};
        st = vcache_fetch_next(f->c, s, &message, f->err);
        if (st == VC_OK)
            st = take_frame(f, from, n, &message);
        vc_bytes_free(&message);
    }
    vc_rpc_stream_destroy(s);
    if (st == VC_ERR_NOT_FOUND && f->err->msg[0] == '\0')
        st = f->record_bytes != 0 ? broken(f, "the stream ended inside a record") : VC_OK;
    return st;
}

/* Every run of blocks in this state, one stream each. */
static vc_status_t fetch_runs(fetch_t *f, block_state_t wanted, bool damaged)
{
    vc_status_t st = VC_OK;
    for (uint32_t i = 0; st == VC_OK && i < f->n;) {
        uint32_t n = 0;
        while (i + n < f->n && f->state[i + n] == wanted)
            n++;
        if (n != 0)
            st = fetch_grpc(f, f->first + i, n, damaged);
        i += n + (n == 0);
    }
    return st;
}

static vc_status_t verdict(fetch_t *f)
{
    for (uint32_t i = 0; i < f->n; i++) {
        if (f->state[i] == BLOCK_ABSENT)
            return vc_err_set(f->err, VC_ERR_NOT_FOUND, "block %u is gone from %s", f->first + i, f->c->server);
        if (f->state[i] == BLOCK_DAMAGED)
            return vc_err_set(f->err, VC_ERR_CORRUPT, "block %u arrived damaged twice or is damaged at %s",
                              f->first + i, f->c->server);
        if (f->state[i] != BLOCK_GOT)
            return broken(f, "the stream ended early");
    }
    return VC_OK;
}

static vc_status_t fetch_all(fetch_t *f)
{
    vc_status_t st = fetch_planes(f);
    for (uint32_t i = 0; i < f->n; i++) /* NOT_FOUND over UCX is settled by the second path */
        if (f->state[i] == BLOCK_ABSENT)
            f->state[i] = BLOCK_WANTED;
    if (st == VC_OK)
        st = fetch_runs(f, BLOCK_WANTED, false);
    if (st == VC_OK)
        st = fetch_runs(f, BLOCK_DAMAGED, true);
    return st == VC_OK ? verdict(f) : st;
}

vcache_status_t vcache_fetch(vcache_lease_t *lease, uint32_t fid, uint32_t first, uint32_t n,
                             vcache_record_fn on_record, void *arg, vcache_fetch_stats_t *stats_p, vcache_error_t *err)
{
    vc_err_t e = {0};
    fetch_t f = {.lease = lease, .fid = fid, .first = first, .n = n, .on_record = on_record, .arg = arg, .err = &e};
    vc_status_t st = VC_OK;
    if (lease == NULL || fid >= lease->n_fid || n > lease->n_blocks[fid] || first > lease->n_blocks[fid] - n)
        st = vc_err_set(&e, VC_ERR_RANGE, "the lease does not hold blocks %u to %llu of column %u", first,
                        (unsigned long long)first + n, fid);
    if (st == VC_OK)
        st = vcache_lease_hashes(lease, &e);
    if (st == VC_OK && n != 0) {
        f.c = lease->client;
        f.state = vc_calloc(n, 1);
        st = f.state == NULL ? vc_err_set(&e, VC_ERR_NOMEM, "out of memory") : fetch_all(&f);
    }
    vc_free(f.state);
    vc_free(f.buf);
    if (stats_p != NULL)
        *stats_p = f.stats;
    return vcache_give(st, &e, err);
}
