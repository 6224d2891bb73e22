/* Proves that clients which never read hold a bounded number of records, and lose their streams to those who do. */
#include "service_fixture.h"
#include "vc/rpc.h"
#include "vericache.pb-c.h"

enum { LAYERS = 31, BLOCKS = 60, STALLED = 8, DEPTH = 3 };

static void short_patience(sx_t *sx)
{
    sx->opts.idle_ms = 700;
    sx->opts.max_fetch_streams = STALLED;
    sx->fx.opts.capacity_bytes = (uint64_t)160 << 20;
}

static Vericache__V1__LookupReply *lookup(sx_t *sx, vc_rpc_channel_t *ch)
{
    static uint32_t tokens[BLOCKS * FX_BLOCK_TOKENS];
    uint8_t bytes[4096];
    vc_bytes_t reply = {0};
    vc_err_t err = {0};
    Vericache__V1__LookupRequest req = VERICACHE__V1__LOOKUP_REQUEST__INIT;
    Vericache__V1__Fidelity full = VERICACHE__V1__FIDELITY__INIT, *fids[] = {&full};
    full.spec = (char *)"full@1";
    fx_tokens(1, BLOCKS, tokens);
    req.keyspace = (ProtobufCBinaryData){sx->keyspace_len, sx->keyspace};
    req.tokens = tokens;
    req.n_tokens = BLOCKS * FX_BLOCK_TOKENS;
    req.fidelities = fids;
    req.n_fidelities = 1;
    req.want_lease = 1;
    size_t len = vericache__v1__lookup_request__pack(&req, bytes);
    cr_assert_leq(len, sizeof(bytes));
    cr_assert_eq(vc_rpc_unary(ch, "/vericache.v1.Cache/Lookup", bytes, len, 5000, &reply, &err), VC_OK, "%s", err.msg);
    Vericache__V1__LookupReply *r = vericache__v1__lookup_reply__unpack(NULL, reply.len, reply.data);
    vc_bytes_free(&reply);
    cr_assert_not_null(r);
    cr_assert_eq(r->columns[0]->blocks, BLOCKS);
    return r;
}

static vc_rpc_stream_t *fetch_and_stall(vc_rpc_channel_t *ch, Vericache__V1__LeaseRef *lease)
{
    uint8_t bytes[256];
    vc_rpc_stream_t *s = NULL;
    Vericache__V1__FetchRequest req = VERICACHE__V1__FETCH_REQUEST__INIT;
    req.lease = lease;
    req.n_blocks = BLOCKS;
    vc_rpc_msg_t m = {.head = bytes, .head_len = vericache__v1__fetch_request__pack(&req, bytes)};
    cr_assert_eq(vc_rpc_stream_open(ch, "/vericache.v1.Cache/Fetch", 0, &s, NULL), VC_OK);
    cr_assert_eq(vc_rpc_stream_send(s, &m, NULL), VC_OK);
    vc_rpc_stream_half_close(s);
    return s;
}

Test(service_stall, clients_that_never_read_hold_little_and_make_room_for_others)
{
    vc_rpc_stream_t *s[STALLED];
    sx_t sx;
    vcache_error_t err = {0};
    vcache_lease_t *lease = NULL;
    sx_sink_t sink = {.fx = &sx.fx, .seed = 1};
    sx_start_with(&sx, LAYERS, short_patience);
    sx_register(&sx, 1, BLOCKS);
    vc_rpc_channel_t *ch = NULL;
    vc_rpc_channel_opts_t o;
    vc_rpc_channel_opts_default(&o);
    o.target = sx.address;
    cr_assert_eq(vc_rpc_channel_create(&o, &ch, NULL), VC_OK);
    Vericache__V1__LookupReply *reply = lookup(&sx, ch);
    for (uint32_t i = 0; i < STALLED; i++)
        s[i] = fetch_and_stall(ch, reply->lease);
    while (sx_stat(&sx, "rpc_fetches") < STALLED)
        ;
    cr_assert_leq(sx_stat(&sx, "read_views"), STALLED * DEPTH);
    cr_assert_leq(sx_stat(&sx, "rpc_fetch_streams"), STALLED);
    cr_assert_eq(sx_lookup(&sx, 1, BLOCKS, NULL, &lease, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(vcache_fetch(lease, 0, 0, BLOCKS, sx_sink_record, &sink, NULL, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(sink.right, BLOCKS);
    vcache_lease_release(lease);
    cr_assert(sx_wait_zero(&sx, "rpc_fetch_streams")); /* the rest ends by the idle limit */
    for (uint32_t i = 0; i < STALLED; i++)
        vc_rpc_stream_destroy(s[i]);
    cr_assert(sx_wait_zero(&sx, "read_views"));
    vericache__v1__lookup_reply__free_unpacked(reply, NULL);
    vc_rpc_channel_destroy(ch);
    sx_end(&sx);
}
