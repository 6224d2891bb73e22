/* Proves that libvericache trusts no server: a false one answers lookups and fetches in every wrong way. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "support/small_space.h"
#include "support/vc_test.h"
#include "vc/recframe.h"
#include "vc/rpc.h"
#include "vericache.pb-c.h"
#include "vericache/vericache.h"

#define CACHE "/vericache.v1.Cache/"
#define BLOCKS 6u
#define RECORD (12u << 10)

typedef enum {
    GOOD,
    DAMAGED_ONCE,   /* block 3, until the client says so */
    DAMAGED_ALWAYS, /* block 3 */
    SWAPPED,        /* block 3 carries the record of block 2 */
    HUGE,
    UNALIGNED,
    HOLE,
    UNASKED,
    TWICE,
    EARLY_END,
    SILENT,
    ABSENT,
    NO_FRAME
} mode_t_;

typedef struct {
    small_space_t space;
    mode_t_ mode;
    const char *data_address;
    uint32_t blocks, columns; /* what Lookup claims */
    bool lookup_garbage;
    _Atomic uint32_t fetches, damaged_asks, step_downs;
    vc_rpc_server_t *rpc;
    vcache_client_t *client;
} fake_t;

static vc_status_t on_lookup(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                             vc_err_t *err)
{
    (void)call, (void)req, (void)len, (void)err;
    fake_t *f = arg;
    Vericache__V1__LookupReply reply = VERICACHE__V1__LOOKUP_REPLY__INIT;
    Vericache__V1__LookupReply__Column col = VERICACHE__V1__LOOKUP_REPLY__COLUMN__INIT, *cols[] = {&col, &col};
    Vericache__V1__LeaseRef lease = VERICACHE__V1__LEASE_REF__INIT;
    uint8_t token[16] = {7};
    col.blocks = f->blocks;
    reply.columns = cols;
    reply.n_columns = f->columns;
    lease.lease_id = 9;
    lease.token = (ProtobufCBinaryData){16, token};
    reply.lease = &lease;
    reply.data_address = (char *)(uintptr_t)(f->data_address ? f->data_address : "");
    resp->data = vc_alloc(4096);
    resp->len = f->lookup_garbage ? 100 : vericache__v1__lookup_reply__pack(&reply, resp->data);
    if (f->lookup_garbage)
        memset(resp->data, 0x0b, 100);
    return VC_OK;
}

static vc_status_t send(vc_rpc_call_t *call, uint32_t block, uint64_t offset, uint64_t record_bytes,
                        const uint8_t *data, size_t len, uint32_t status)
{
    uint8_t head[VC_RECFRAME_HEAD_MAX];
    vc_recframe_t f = {.block = block, .offset = offset, .record_bytes = record_bytes, .status = status};
    f.data_len = len;
    vc_rpc_msg_t m = {.head = head, .body = data, .body_len = len};
    m.head_len = vc_recframe_encode_head(&f, head);
    return vc_rpc_call_send(call, &m);
}

static vc_status_t send_block(fake_t *f, vc_rpc_call_t *call, uint32_t block, bool damaged_ask)
{
    static _Thread_local uint8_t r[RECORD];
    size_t n = 0;
    bool odd = block == 3;
    small_space_record(&f->space, 0, odd && f->mode == SWAPPED ? 2 : block, r, sizeof(r), &n);
    if (odd && (f->mode == DAMAGED_ALWAYS || (f->mode == DAMAGED_ONCE && !damaged_ask)))
        r[n - 100] ^= 4;
    if (odd && f->mode == HUGE)
        return send(call, block, 0, 200u << 20, r, 4096, 0);
    if (odd && f->mode == UNALIGNED)
        return send(call, block, 0, n + 8, r, 4096, 0);
    if (odd && f->mode == HOLE)
        return send(call, block, 4096, n, r, 4096, 0);
    if (odd && f->mode == UNASKED)
        return send(call, 77, 0, n, r, n, 0);
    if (odd && f->mode == ABSENT)
        return send(call, block, 0, 0, NULL, 0, VC_RECFRAME_NOT_FOUND);
    if (odd && f->mode == EARLY_END)
        return send(call, block, 0, n, r, 4096, 0);
    if (odd && f->mode == TWICE)
        send(call, block - 1, 0, n, r, n, 0);
    if (odd && f->mode == NO_FRAME) {
        vc_rpc_msg_t m = {.head = "\x0b\x0b", .head_len = 2};
        return vc_rpc_call_send(call, &m);
    }
    vc_status_t st = send(call, block, 0, n, r, 4096, 0); /* two frames */
    return st == VC_OK ? send(call, block, 4096, n, r + 4096, n - 4096, 0) : st;
}

static vc_status_t on_fetch(void *arg, vc_rpc_call_t *call, vc_err_t *err)
{
    (void)err;
    fake_t *f = arg;
    vc_bytes_t bytes = {0};
    vc_status_t st = vc_rpc_call_recv(call, 0, &bytes);
    if (st != VC_OK)
        return st;
    Vericache__V1__FetchRequest *m = vericache__v1__fetch_request__unpack(NULL, bytes.len, bytes.data);
    vc_bytes_free(&bytes);
    atomic_fetch_add(&f->fetches, 1);
    atomic_fetch_add(&f->damaged_asks, (uint32_t)m->damaged);
    atomic_fetch_add(&f->step_downs, (uint32_t)m->stepped_down);
    while (f->mode == SILENT && !vc_rpc_call_is_cancelled(call))
        vc_rpc_call_recv(call, 10, &bytes);
    for (uint32_t i = 0; st == VC_OK && i < m->n_blocks; i++) {
        st = send_block(f, call, m->first_block + i, m->damaged != 0);
        if (f->mode == EARLY_END && m->first_block + i == 3)
            break;
    }
    vericache__v1__fetch_request__free_unpacked(m, NULL);
    return st;
}

static vc_status_t on_release(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                              vc_err_t *err)
{
    (void)arg, (void)call, (void)req, (void)len, (void)err;
    resp->data = vc_alloc(1);
    return VC_OK;
}

static void fake_start(fake_t *f, int use_data_plane)
{
    const vc_rpc_method_t methods[] = {{CACHE "Lookup", on_lookup, NULL, 0},
                                       {CACHE "Fetch", NULL, on_fetch, 1},
                                       {CACHE "ReleaseLease", on_release, NULL, 0}};
    vc_rpc_server_opts_t o;
    vc_rpc_server_opts_default(&o);
    memset(f, 0, sizeof(*f));
    small_space_init(&f->space);
    f->blocks = BLOCKS;
    f->columns = 1;
    o.listen = "127.0.0.1:0";
    o.methods = methods;
    o.n_methods = VC_ARRAY_LEN(methods);
    o.arg = f;
    vc_err_t err = {0};
    cr_assert_eq(vc_rpc_server_start(&o, &f->rpc, &err), VC_OK, "%s", err.msg);
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%d", vc_rpc_server_port(f->rpc));
    vcache_options_t c;
    vcache_options_default(&c);
    c.server = address;
    c.stream_idle_ms = 200;
    c.use_data_plane = use_data_plane;
    cr_assert_eq(vcache_connect(&c, &f->client, NULL), VC_OK);
}

static void fake_end(fake_t *f)
{
    vcache_disconnect(f->client);
    vc_rpc_server_stop(f->rpc, 1000);
}

static vcache_status_t lookup(fake_t *f, vcache_lease_t **lease, vcache_error_t *err)
{
    const vcache_fidelity_t full = {0, "full@1", NULL};
    return vcache_lookup(f->client, f->space.enc, f->space.enc_len, f->space.tokens, BLOCKS * SMALL_BLOCK_TOKENS, &full,
                         1, NULL, lease, err);
}

/* Fetches everything in this mode; the records that came are the right ones whatever else happens. */
static vcache_status_t fetch(fake_t *f, mode_t_ mode, uint32_t right, vcache_fetch_stats_t *fs)
{
    vcache_lease_t *lease = NULL;
    vcache_error_t err = {0};
    small_sink_t sink = {.space = &f->space};
    f->mode = mode;
    f->fetches = f->damaged_asks = f->step_downs = 0;
    cr_assert_eq(lookup(f, &lease, &err), VC_OK, "%s", err.msg);
    vcache_status_t st = vcache_fetch(lease, 0, 0, BLOCKS, small_sink_record, &sink, fs, &err);
    cr_assert_eq(sink.wrong, 0);
    cr_assert_eq(sink.right, right, "mode %d: %u records: %s", mode, sink.right, err.msg);
    cr_assert_eq(st == VC_OK, err.msg[0] == '\0');
    vcache_lease_release(lease);
    return st;
}

Test(client, damaged_record_is_asked_for_once_more)
{
    static fake_t f;
    vcache_fetch_stats_t fs;
    fake_start(&f, 0);
    cr_assert_eq(fetch(&f, GOOD, BLOCKS, &fs), VC_OK);
    cr_assert_eq(fs.wire_corrupt, 0);
    cr_assert_eq(fs.bytes, BLOCKS * RECORD);
    cr_assert_eq(fetch(&f, DAMAGED_ONCE, BLOCKS, &fs), VC_OK);
    cr_assert_eq(fs.wire_corrupt, 1);
    cr_assert_eq(f.fetches, 2);
    cr_assert_eq(f.damaged_asks, 1);
    cr_assert_eq(fetch(&f, DAMAGED_ALWAYS, BLOCKS - 1, &fs), VC_ERR_CORRUPT);
    cr_assert_eq(fs.wire_corrupt, 2);
    cr_assert_eq(f.fetches, 2);
    fake_end(&f);
}

Test(client, right_record_of_another_block_is_refused)
{
    static fake_t f;
    vcache_fetch_stats_t fs;
    fake_start(&f, 0);
    cr_assert_eq(fetch(&f, SWAPPED, BLOCKS - 1, &fs), VC_ERR_CORRUPT);
    cr_assert_eq(fs.wire_corrupt, 2);
    fake_end(&f);
}

Test(client, server_that_breaks_the_protocol_is_named_so)
{
    static fake_t f;
    const mode_t_ modes[] = {HUGE, UNALIGNED, HOLE, UNASKED, TWICE, EARLY_END, NO_FRAME};
    fake_start(&f, 0);
    for (size_t i = 0; i < VC_ARRAY_LEN(modes); i++)
        cr_assert_eq(fetch(&f, modes[i], 3, NULL), VC_ERR_PROTOCOL, "mode %d", modes[i]);
    fake_end(&f);
}

Test(client, silence_ends_by_the_idle_limit)
{
    static fake_t f;
    fake_start(&f, 0);
    cr_assert_eq(fetch(&f, SILENT, 0, NULL), VC_ERR_TIMEOUT);
    cr_assert_eq(fetch(&f, GOOD, BLOCKS, NULL), VC_OK);
    fake_end(&f);
}

Test(client, block_that_is_gone_is_not_found_and_the_others_come)
{
    static fake_t f;
    fake_start(&f, 0);
    cr_assert_eq(fetch(&f, ABSENT, BLOCKS - 1, NULL), VC_ERR_NOT_FOUND);
    fake_end(&f);
}

Test(client, data_plane_that_does_not_answer_is_stepped_down_from_and_counted)
{
    static fake_t f;
    vcache_fetch_stats_t fs;
    fake_start(&f, 1);
    f.data_address = "127.0.0.1:1"; /* nobody there */
    for (int i = 0; i < 2; i++) {   /* the second time at once, from memory */
        cr_assert_eq(fetch(&f, GOOD, BLOCKS, &fs), VC_OK);
        cr_assert_eq(fs.steps_down, 1);
        cr_assert_eq(fs.path, VCACHE_PATH_GRPC);
        cr_assert_eq(f.step_downs, 1);
    }
    f.data_address = "nonsense";
    cr_assert_eq(fetch(&f, GOOD, BLOCKS, &fs), VC_OK);
    cr_assert_eq(fs.steps_down, 1);
    fake_end(&f);
}

Test(client, senseless_lookup_answers_are_refused)
{
    static fake_t f;
    vcache_lease_t *lease = NULL;
    vcache_error_t err = {0};
    fake_start(&f, 0);
    f.blocks = BLOCKS + 1; /* more than was asked for */
    cr_assert_eq(lookup(&f, &lease, &err), VC_ERR_PROTOCOL);
    f.blocks = BLOCKS;
    f.columns = 2;
    cr_assert_eq(lookup(&f, &lease, &err), VC_ERR_PROTOCOL);
    f.columns = 1;
    f.lookup_garbage = true;
    cr_assert_eq(lookup(&f, &lease, &err), VC_ERR_PROTOCOL);
    cr_assert_null(lease);
    uint32_t n = 0;
    vcache_stat_t stat;
    cr_assert_eq(vcache_stats(f.client, &stat, 1, &n, &err), VC_ERR_UNSUPPORTED); /* an older server */
    fake_end(&f);
}

Test(client, wrong_arguments_are_refused_without_a_call)
{
    static small_space_t s;
    vcache_client_t *c = NULL;
    vcache_options_t o;
    vcache_error_t err = {0};
    vcache_lease_t *lease = NULL;
    const vcache_fidelity_t full = {0, "full@1", NULL}, empty = {0, "", NULL}, none = {0, NULL, NULL};
    small_space_init(&s);
    vcache_options_default(&o);
    o.server = "nowhere";
    cr_assert_eq(vcache_connect(&o, &c, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "nowhere"));
    o.server = NULL;
    cr_assert_eq(vcache_connect(&o, &c, &err), VC_ERR_INVALID);
    o.server = "127.0.0.1:1";
    cr_assert_eq(vcache_connect(&o, &c, &err), VC_OK); /* the first call would connect */
    cr_assert_neq(vcache_lookup(c, s.enc, s.enc_len - 1, s.tokens, 8, &full, 1, NULL, &lease, &err), VC_OK);
    cr_assert_eq(vcache_lookup(c, s.enc, s.enc_len, s.tokens, 8, &full, 0, NULL, &lease, &err), VC_ERR_INVALID);
    cr_assert_eq(vcache_lookup(c, s.enc, s.enc_len, s.tokens, 8, &full, 9, NULL, &lease, &err), VC_ERR_INVALID);
    cr_assert_eq(vcache_lookup(c, s.enc, s.enc_len, s.tokens, 8, &empty, 1, NULL, &lease, &err), VC_ERR_INVALID);
    cr_assert_eq(vcache_lookup(c, s.enc, s.enc_len, s.tokens, 8, &none, 1, NULL, &lease, &err), VC_ERR_INVALID);
    cr_assert_eq(vcache_register(c, s.enc, s.enc_len, s.tokens, 2, 2, &full, 1, small_space_record, &s, NULL, &err),
                 VC_ERR_RANGE);
    cr_assert_eq(vcache_lookup(c, s.enc, s.enc_len, s.tokens, 8, &full, 1, NULL, &lease, &err), VC_ERR_UNREACHABLE);
    cr_assert_eq(vcache_fetch(NULL, 0, 0, 1, small_sink_record, &s, NULL, &err), VC_ERR_RANGE);
    cr_assert_null(lease);
    vcache_lease_release(NULL);
    vcache_disconnect(c);
    vcache_disconnect(NULL);
}
