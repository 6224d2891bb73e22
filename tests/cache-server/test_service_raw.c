/* Proves that the service takes nothing on trust: raw messages that libvericache would never send, and the layer-major
 * order that it does not ask for. */
#include "service_fixture.h"
#include "vc/bytes.h"
#include "vc/recframe.h"
#include "vc/rpc.h"
#include "vericache.pb-c.h"

#define CACHE "/vericache.v1.Cache/"

static vc_rpc_channel_t *dial(const sx_t *sx)
{
    vc_rpc_channel_t *ch = NULL;
    vc_rpc_channel_opts_t o;
    vc_rpc_channel_opts_default(&o);
    o.target = sx->address;
    cr_assert_eq(vc_rpc_channel_create(&o, &ch, NULL), VC_OK);
    return ch;
}

static vc_status_t call(vc_rpc_channel_t *ch, const char *method, const ProtobufCMessage *m, vc_bytes_t *reply,
                        vc_err_t *err)
{
    uint8_t bytes[8192];
    cr_assert_leq(protobuf_c_message_get_packed_size(m), sizeof(bytes));
    return vc_rpc_unary(ch, method, bytes, protobuf_c_message_pack(m, bytes), 5000, reply, err);
}

/* One streaming call: sends the messages given, half-closes, drains; returns how it ended. */
static vc_status_t stream(vc_rpc_channel_t *ch, const char *method, const vc_bytes_t *messages, size_t n, vc_err_t *err)
{
    vc_rpc_stream_t *s = NULL;
    vc_bytes_t got = {0};
    vc_status_t st = vc_rpc_stream_open(ch, method, 20000, &s, err);
    cr_assert_eq(st, VC_OK, "%s", err->msg);
    for (size_t i = 0; st == VC_OK && i < n; i++) {
        vc_rpc_msg_t m = {.head = messages[i].data, .head_len = messages[i].len};
        st = vc_rpc_stream_send(s, &m, NULL);
    }
    vc_rpc_stream_half_close(s);
    while ((st = vc_rpc_stream_recv(s, 0, &got, err)) == VC_OK)
        vc_bytes_free(&got);
    vc_rpc_stream_destroy(s);
    return st == VC_ERR_NOT_FOUND && err->msg[0] == '\0' ? VC_OK : st;
}

static const char *const unary_methods[] = {CACHE "Lookup",   CACHE "BeginRegister", CACHE "Commit",
                                            CACHE "Abort",    CACHE "RenewLease",    CACHE "ReleaseLease",
                                            CACHE "GetStats", CACHE "ListPrefixes",  "/grpc.health.v1.Health/Check",
                                            CACHE "Pin",      CACHE "Unpin",         CACHE "Delete"};

Test(service_raw, garbage_is_refused_by_every_method_and_harms_nothing)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 3);
    vc_rpc_channel_t *ch = dial(&sx);
    uint64_t state = 42;
    uint8_t bytes[300];
    for (int round = 0; round < 60; round++) {
        for (size_t i = 0; i < sizeof(bytes); i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = (uint8_t)(state >> 56);
        }
        size_t len = 1 + state % sizeof(bytes);
        bytes[0] = round % 2 ? 0x0b : bytes[0]; /* a group: no message of ours parses */
        for (size_t k = 0; k < VC_ARRAY_LEN(unary_methods); k++) {
            vc_bytes_t reply = {0};
            vc_err_t err = {0};
            vc_status_t st = vc_rpc_unary(ch, unary_methods[k], bytes, len, 5000, &reply, &err);
            if (round % 2)
                cr_assert_eq(st, VC_ERR_INVALID, "%s: %s", unary_methods[k], vc_status_name(st));
            cr_assert_neq(st, VC_ERR_INTERNAL);
            vc_bytes_free(&reply);
        }
        vc_bytes_t m = {bytes, len};
        vc_err_t err = {0};
        cr_assert_neq(stream(ch, CACHE "Fetch", &m, 1, &err), VC_OK);
        cr_assert_neq(stream(ch, CACHE "PutRecord", &m, 1, &err), VC_OK);
    }
    vc_rpc_channel_destroy(ch);
    sx_register(&sx, 2, 3); /* still in order */
    cr_assert_eq(sx_stat(&sx, "objects_full"), 6);
    sx_end(&sx);
}

Test(service_raw, empty_messages_are_answered_with_a_sentence)
{
    sx_t sx;
    sx_start(&sx, 2);
    vc_rpc_channel_t *ch = dial(&sx);
    for (size_t k = 0; k < VC_ARRAY_LEN(unary_methods); k++) {
        vc_bytes_t reply = {0};
        vc_err_t err = {0};
        vc_status_t st = vc_rpc_unary(ch, unary_methods[k], "", 0, 5000, &reply, &err);
        bool harmless = strstr(unary_methods[k], "GetStats") != NULL || strstr(unary_methods[k], "Check") != NULL;
        cr_assert_eq(st == VC_OK, harmless, "%s: %s", unary_methods[k], vc_status_name(st));
        cr_assert_eq(err.msg[0] == '\0', harmless);
        vc_bytes_free(&reply);
    }
    vc_err_t err = {0};
    vc_bytes_t nothing = {0};
    cr_assert_eq(stream(ch, CACHE "Fetch", &nothing, 1, &err), VC_ERR_INVALID);
    cr_assert_eq(stream(ch, CACHE "Fetch", NULL, 0, &err), VC_ERR_INVALID);
    cr_assert_eq(stream(ch, CACHE "PutRecord", NULL, 0, &err), VC_OK); /* no records: nothing to do */
    vc_rpc_channel_destroy(ch);
    sx_end(&sx);
}

/* A lease over `n` blocks of seed 1, by hand. */
static Vericache__V1__LookupReply *lookup(sx_t *sx, vc_rpc_channel_t *ch, uint32_t n)
{
    uint32_t tokens[64 * FX_BLOCK_TOKENS];
    Vericache__V1__LookupRequest req = VERICACHE__V1__LOOKUP_REQUEST__INIT;
    Vericache__V1__Fidelity full = VERICACHE__V1__FIDELITY__INIT, comp = VERICACHE__V1__FIDELITY__INIT;
    Vericache__V1__Fidelity *fids[] = {&full, &comp};
    full.spec = (char *)"full@1";
    comp.spec = (char *)"noise:eps=0.5";
    comp.compressed = 1;
    fx_tokens(1, n, tokens);
    req.keyspace = (ProtobufCBinaryData){sx->keyspace_len, sx->keyspace};
    req.tokens = tokens;
    req.n_tokens = n * FX_BLOCK_TOKENS;
    req.fidelities = fids;
    req.n_fidelities = 2;
    req.want_lease = 1;
    vc_bytes_t bytes = {0};
    vc_err_t err = {0};
    cr_assert_eq(call(ch, CACHE "Lookup", &req.base, &bytes, &err), VC_OK, "%s", err.msg);
    Vericache__V1__LookupReply *reply = vericache__v1__lookup_reply__unpack(NULL, bytes.len, bytes.data);
    vc_bytes_free(&bytes);
    cr_assert_not_null(reply);
    return reply;
}

static vc_status_t fetch(vc_rpc_channel_t *ch, const Vericache__V1__LeaseRef *lease, uint32_t column, uint32_t first,
                         uint32_t n, int order, vc_err_t *err)
{
    Vericache__V1__FetchRequest req = VERICACHE__V1__FETCH_REQUEST__INIT;
    uint8_t bytes[256];
    req.lease = (Vericache__V1__LeaseRef *)(uintptr_t)lease;
    req.column = column;
    req.first_block = first;
    req.n_blocks = n;
    req.order = (Vericache__V1__FetchRequest__Order)order;
    vc_bytes_t m = {bytes, vericache__v1__fetch_request__pack(&req, bytes)};
    return stream(ch, CACHE "Fetch", &m, 1, err);
}

Test(service_raw, lease_token_boot_and_range_are_checked)
{
    sx_t sx;
    sx_start(&sx, 2);
    sx_register(&sx, 1, 4);
    vc_rpc_channel_t *ch = dial(&sx);
    Vericache__V1__LookupReply *reply = lookup(&sx, ch, 4);
    Vericache__V1__LeaseRef *l = reply->lease;
    vc_err_t err = {0};
    cr_assert_gt(reply->lease_ms, 20000);
    cr_assert_str_eq(reply->data_address, "");
    cr_assert_eq(fetch(ch, l, 0, 0, 4, 0, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(fetch(ch, l, 0, 3, 2, 0, &err), VC_ERR_RANGE);
    cr_assert_eq(fetch(ch, l, 2, 0, 1, 0, &err), VC_ERR_RANGE);
    cr_assert_eq(fetch(ch, l, 0, 0, 0, 0, &err), VC_ERR_RANGE);
    cr_assert_eq(fetch(ch, l, 0, 4294967295u, 2, 0, &err), VC_ERR_RANGE);
    cr_assert_eq(fetch(ch, l, 0, 0, 4294967295u, 0, &err), VC_ERR_RANGE);
    cr_assert_eq(fetch(ch, l, 0, 0, 4097, 1, &err), VC_ERR_RANGE);
    cr_assert_str_eq(err.msg, "4097 blocks from 0 are not a range of 1 to 4096");
    cr_assert_eq(fetch(ch, l, 0, 0, 1, 9, &err), VC_ERR_INVALID);
    l->token.data[0] ^= 1;
    cr_assert_eq(fetch(ch, l, 0, 0, 1, 0, &err), VC_ERR_PERM);
    cr_assert_not_null(strstr(err.msg, "token"), "%s", err.msg);
    vc_bytes_t none = {0};
    cr_assert_eq(call(ch, CACHE "ReleaseLease", &l->base, &none, &err), VC_ERR_PERM);
    l->token.data[0] ^= 1;
    l->token.len = 15;
    cr_assert_eq(fetch(ch, l, 0, 0, 1, 0, &err), VC_ERR_INVALID);
    l->token.len = 16;
    l->boot_id ^= 1;
    cr_assert_eq(fetch(ch, l, 0, 0, 1, 0, &err), VC_ERR_STALE);
    vericache__v1__lookup_reply__free_unpacked(reply, NULL);
    vc_rpc_channel_destroy(ch);
    sx_end(&sx);
}

enum { BLOCKS = 30, LAYERS = 5 };

/* Fetches all blocks but the first two of both columns, layer by layer. */
static void check_layer_major(sx_t *sx, vc_rpc_channel_t *ch, Vericache__V1__LookupReply *reply)
{
    for (uint32_t column = 0; column < 2; column++) {
        Vericache__V1__FetchRequest req = VERICACHE__V1__FETCH_REQUEST__INIT;
        uint8_t bytes[256];
        req.lease = reply->lease;
        req.column = column;
        req.first_block = 2;
        req.n_blocks = BLOCKS - 2;
        req.order = VERICACHE__V1__FETCH_REQUEST__ORDER__LAYER_MAJOR;
        vc_rpc_msg_t m = {.head = bytes, .head_len = vericache__v1__fetch_request__pack(&req, bytes)};
        vc_rpc_stream_t *s = NULL;
        vc_err_t err = {0};
        cr_assert_eq(vc_rpc_stream_open(ch, CACHE "Fetch", 20000, &s, &err), VC_OK);
        cr_assert_eq(vc_rpc_stream_send(s, &m, &err), VC_OK);
        vc_rpc_stream_half_close(s);
        size_t cap = (size_t)vc_kvrec_full_bytes(&sx->fx.ks.shape);
        uint8_t *records = vc_calloc(BLOCKS, cap), *want = vc_alloc_aligned(4096, cap);
        uint64_t last_offset = 0, lengths[BLOCKS] = {0};
        uint32_t last_block = 0;
        vc_bytes_t got = {0};
        vc_status_t st;
        while ((st = vc_rpc_stream_recv(s, 0, &got, &err)) == VC_OK) {
            vc_recframe_t f;
            cr_assert_eq(vc_recframe_decode(got.data, got.len, &f), VC_OK);
            cr_assert_geq(f.block, 2);
            cr_assert_lt(f.block, BLOCKS);
            cr_assert_leq(f.record_bytes, cap);
            /* one layer of every block before the next layer: offsets of the same block grow, blocks cycle */
            cr_assert(f.block > last_block || f.offset > last_offset || last_block == 0);
            last_block = f.block;
            last_offset = f.offset;
            lengths[f.block] = f.record_bytes;
            memcpy(records + f.block * cap + f.offset, f.data, f.data_len);
            vc_bytes_free(&got);
        }
        cr_assert_eq(st, VC_ERR_NOT_FOUND);
        cr_assert_str_eq(err.msg, "");
        for (uint32_t b = 2; b < BLOCKS; b++) {
            uint32_t n = fx_record(&sx->fx, 1, b, column, want, cap);
            cr_assert_eq(lengths[b], n);
            cr_assert_eq(memcmp(records + b * cap, want, n), 0, "column %u block %u", column, b);
        }
        vc_rpc_stream_destroy(s);
        vc_free(records);
        vc_free(want);
    }
}

Test(service_raw, layer_major_frames_come_in_order_and_make_the_same_records)
{
    sx_t sx;
    sx_start(&sx, LAYERS);
    sx_register(&sx, 1, BLOCKS);
    vc_rpc_channel_t *ch = dial(&sx);
    Vericache__V1__LookupReply *reply = lookup(&sx, ch, BLOCKS);
    check_layer_major(&sx, ch, reply);
    vericache__v1__lookup_reply__free_unpacked(reply, NULL);
    vc_rpc_channel_destroy(ch);
    sx_end(&sx);
}

static void with_memory_tier(sx_t *sx) { sx->fx.ram_bytes = 4 << 20; }

Test(service_raw, layer_major_of_records_in_memory_reads_nothing)
{
    sx_t sx;
    vc_err_t err = {0};
    cs_ramtier_stats_t ram;
    cs_store_stats_t before, after;
    sx_start_with(&sx, LAYERS, with_memory_tier);
    sx_register(&sx, 1, BLOCKS);
    vc_rpc_channel_t *ch = dial(&sx);
    Vericache__V1__LookupReply *reply = lookup(&sx, ch, BLOCKS);
    for (uint32_t column = 0; column < 2; column++)
        cr_assert_eq(fetch(ch, reply->lease, column, 0, BLOCKS, 0, &err), VC_OK, "%s", err.msg);
    cs_store_get_stats(sx.fx.store, &before);
    check_layer_major(&sx, ch, reply);
    cs_store_get_stats(sx.fx.store, &after);
    cr_assert_eq(after.full.read_bytes, before.full.read_bytes);
    cr_assert_eq(after.compressed.read_bytes, before.compressed.read_bytes);
    cs_ramtier_get_stats(sx.fx.ram, &ram);
    cr_assert_eq(ram.records, 2 * BLOCKS);
    vericache__v1__lookup_reply__free_unpacked(reply, NULL);
    vc_rpc_channel_destroy(ch);
    sx_end(&sx);
}

/* ---- uploads ---- */

static Vericache__V1__BeginRegisterReply *begin(sx_t *sx, vc_rpc_channel_t *ch, uint32_t n)
{
    uint32_t tokens[64 * FX_BLOCK_TOKENS];
    Vericache__V1__BeginRegisterRequest req = VERICACHE__V1__BEGIN_REGISTER_REQUEST__INIT;
    Vericache__V1__Fidelity full = VERICACHE__V1__FIDELITY__INIT, *fids[] = {&full};
    full.spec = (char *)"full@1";
    fx_tokens(1, n, tokens);
    req.keyspace = (ProtobufCBinaryData){sx->keyspace_len, sx->keyspace};
    req.tokens = tokens;
    req.n_tokens = n * FX_BLOCK_TOKENS;
    req.n_blocks = n;
    req.fidelities = fids;
    req.n_fidelities = 1;
    vc_bytes_t bytes = {0};
    vc_err_t err = {0};
    cr_assert_eq(call(ch, CACHE "BeginRegister", &req.base, &bytes, &err), VC_OK, "%s", err.msg);
    Vericache__V1__BeginRegisterReply *reply = vericache__v1__begin_register_reply__unpack(NULL, bytes.len, bytes.data);
    vc_bytes_free(&bytes);
    cr_assert_not_null(reply);
    cr_assert_eq(reply->n_missing, n);
    return reply;
}

typedef struct {
    uint64_t upload_id, offset, record_bytes;
    const uint8_t *token, *data;
    size_t len;
} frame_t;

static vc_status_t put(vc_rpc_channel_t *ch, const frame_t *frames, size_t n, vc_err_t *err)
{
    vc_bytes_t messages[4] = {{0}};
    for (size_t i = 0; i < n; i++) {
        vc_recframe_t f = {.upload_id = frames[i].upload_id,
                           .token = frames[i].token,
                           .offset = frames[i].offset,
                           .record_bytes = frames[i].record_bytes,
                           .data = frames[i].data,
                           .data_len = frames[i].len};
        messages[i].data = vc_calloc(1, VC_RECFRAME_HEAD_MAX + f.data_len);
        size_t head = vc_recframe_encode_head(&f, messages[i].data);
        memcpy(messages[i].data + head, f.data, f.data_len);
        messages[i].len = head + f.data_len;
    }
    *err = (vc_err_t){0};
    vc_status_t st = stream(ch, CACHE "PutRecord", messages, n, err);
    for (size_t i = 0; i < n; i++)
        vc_bytes_free(&messages[i]);
    return st;
}

Test(service_raw, frames_of_an_upload_are_checked)
{
    sx_t sx;
    sx_start(&sx, 2);
    vc_rpc_channel_t *ch = dial(&sx);
    Vericache__V1__BeginRegisterReply *u = begin(&sx, ch, 2);
    size_t cap = (size_t)u->max_record_bytes;
    uint8_t *r = vc_calloc(1, cap), wrong[16] = {0};
    uint32_t n = fx_record(&sx.fx, 1, 0, 0, r, cap);
    const uint8_t *t = u->token.data;
    uint64_t id = u->upload_id;
    vc_err_t err = {0};
    cr_assert_eq(put(ch, (frame_t[]){{0, 0, n, NULL, r, n}}, 1, &err), VC_ERR_PERM);
    cr_assert_eq(put(ch, (frame_t[]){{id, 0, n, wrong, r, n}}, 1, &err), VC_ERR_PERM);
    cr_assert_neq(put(ch, (frame_t[]){{id ^ 77, 0, n, t, r, n}}, 1, &err), VC_OK);
    cr_assert_eq(put(ch, (frame_t[]){{id, 0, cap + 4096, t, r, 4096}}, 1, &err), VC_ERR_RANGE); /* oversize */
    cr_assert_eq(put(ch, (frame_t[]){{id, 0, 1ull << 60, t, r, 4096}}, 1, &err), VC_ERR_RANGE);
    cr_assert_eq(put(ch, (frame_t[]){{id, 0, n - 1, t, r, n - 1}}, 1, &err), VC_ERR_RANGE);
    cr_assert_eq(put(ch, (frame_t[]){{id, 4096, n, t, r, 4096}}, 1, &err), VC_ERR_INVALID); /* a hole */
    cr_assert_eq(put(ch, (frame_t[]){{id, 0, n, t, r, 4096}}, 1, &err), VC_ERR_INVALID);    /* ends early */
    cr_assert_eq(put(ch, (frame_t[]){{id, 0, n, t, r, 4096}, {0, 0, n, NULL, r, n}}, 2, &err), VC_ERR_INVALID);
    cr_assert_eq(put(ch, (frame_t[]){{id, 0, 4096, t, r, 4096}}, 1, &err), VC_ERR_CORRUPT, "%s", err.msg);
    vc_bytes_t none = {0};
    Vericache__V1__UploadRef ref = VERICACHE__V1__UPLOAD_REF__INIT;
    ref.upload_id = id;
    ref.token = u->token;
    cr_assert_eq(call(ch, CACHE "Commit", &ref.base, &none, &err), VC_ERR_INVALID); /* objects are missing */
    /* and after all that, the upload still works */
    frame_t good[] = {{id, 0, n, t, r, 4096}, {0, 4096, n, NULL, r + 4096, n - 4096}};
    cr_assert_eq(put(ch, good, 2, &err), VC_OK, "%s", err.msg);
    n = fx_record(&sx.fx, 1, 1, 0, r, cap);
    cr_assert_eq(put(ch, (frame_t[]){{id, 0, n, t, r, n}}, 1, &err), VC_OK, "%s", err.msg);
    ref.token.data = wrong;
    cr_assert_eq(call(ch, CACHE "Commit", &ref.base, &none, &err), VC_ERR_PERM);
    cr_assert_eq(call(ch, CACHE "Abort", &ref.base, &none, &err), VC_ERR_PERM);
    ref.token = u->token;
    cr_assert_eq(call(ch, CACHE "Commit", &ref.base, &none, &err), VC_OK, "%s", err.msg);
    vc_bytes_free(&none);
    cr_assert_eq(fx_readable(&sx.fx, 1, 2, 0), 2);
    cr_assert_neq(call(ch, CACHE "Commit", &ref.base, &none, &err), VC_OK); /* it is over */
    vericache__v1__begin_register_reply__free_unpacked(u, NULL);
    vc_rpc_channel_destroy(ch);
    vc_free(r);
    sx_end(&sx);
}

Test(service_raw, aborted_upload_is_gone)
{
    sx_t sx;
    sx_start(&sx, 2);
    vc_rpc_channel_t *ch = dial(&sx);
    Vericache__V1__BeginRegisterReply *u = begin(&sx, ch, 2);
    Vericache__V1__UploadRef ref = VERICACHE__V1__UPLOAD_REF__INIT;
    vc_bytes_t none = {0};
    vc_err_t err = {0};
    ref.upload_id = u->upload_id;
    ref.token = u->token;
    cr_assert_eq(sx_stat(&sx, "uploads_open"), 1);
    cr_assert_eq(call(ch, CACHE "Abort", &ref.base, &none, &err), VC_OK, "%s", err.msg);
    vc_bytes_free(&none);
    cr_assert_eq(sx_stat(&sx, "uploads_open"), 0);
    cr_assert_neq(call(ch, CACHE "Commit", &ref.base, &none, &err), VC_OK);
    cr_assert_neq(err.msg[0], '\0');
    vericache__v1__begin_register_reply__free_unpacked(u, NULL);
    vc_rpc_channel_destroy(ch);
    sx_end(&sx);
}

Test(service_raw, stop_with_a_client_that_never_reads_its_fetch_returns_every_buffer)
{
    sx_t sx;
    sx_start(&sx, 30);
    for (uint32_t seed = 1; seed < 5; seed++)
        sx_register(&sx, seed, 40);
    vc_rpc_channel_t *ch = dial(&sx);
    Vericache__V1__LookupReply *reply = lookup(&sx, ch, 40);
    Vericache__V1__FetchRequest req = VERICACHE__V1__FETCH_REQUEST__INIT;
    uint8_t bytes[256];
    req.lease = reply->lease;
    req.n_blocks = 40;
    vc_rpc_msg_t m = {.head = bytes, .head_len = vericache__v1__fetch_request__pack(&req, bytes)};
    vc_rpc_stream_t *s = NULL;
    vc_err_t err = {0};
    vc_bytes_t got = {0};
    cr_assert_eq(vc_rpc_stream_open(ch, CACHE "Fetch", 0, &s, &err), VC_OK);
    cr_assert_eq(vc_rpc_stream_send(s, &m, &err), VC_OK);
    cr_assert_eq(vc_rpc_stream_recv(s, 0, &got, &err), VC_OK, "%s", err.msg); /* it runs */
    vc_bytes_free(&got);
    cs_service_stop(sx.service, 0); /* waits for the buffers */
    sx.service = NULL;
    vc_rpc_stream_destroy(s);
    vc_rpc_channel_destroy(ch);
    cs_store_stats_t stats;
    cs_store_get_stats(sx.fx.store, &stats);
    for (uint32_t i = 0; i < cs_bufpool_count(sx.fx.pool); i++)
        cr_assert_not_null(cs_bufpool_get(sx.fx.pool), "buffer %u is lost", i);
    for (uint32_t i = 0; i < cs_bufpool_count(sx.fx.pool); i++)
        cs_bufpool_put(sx.fx.pool, cs_bufpool_at(sx.fx.pool, i));
    vericache__v1__lookup_reply__free_unpacked(reply, NULL);
    sx_end(&sx);
}
