/*
 * What a server may answer to libvericache, without gRPC: this file takes the place of the rpc client, so that every
 * reply and every message of a stream is made of the input.
 *
 *   byte 0   the call: lookup and fetch, register, statistics, prefixes, health, a probe
 *   byte 1   bit 1: streams end with an error
 *   rest     {u16 length, message} again and again: the replies, then the messages of the streams
 *
 * Whatever comes, a call ends with a status and a sentence, and records that are handed out are whole and right.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "support/small_space.h"
#include "vc/rpc.h"
#include "vericache/vericache.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        abort();
}

/* ---- in place of the rpc client ---- */

static const uint8_t *at, *end;
static bool streams_fail;

struct vc_rpc_channel {
    int unused;
};
struct vc_rpc_stream {
    bool is_closed;
};

static vc_status_t next_message(vc_bytes_t *msg_p)
{
    if (end - at < 2)
        return VC_ERR_NOT_FOUND;
    size_t len = (size_t)(at[0] | at[1] << 8);
    at += 2;
    len = VC_MIN(len, (size_t)(end - at));
    msg_p->data = vc_alloc(len ? len : 1); /* its own block: a read behind its end is seen */
    must(msg_p->data != NULL);
    if (len)
        memcpy(msg_p->data, at, len);
    msg_p->len = len;
    at += len;
    return VC_OK;
}

void vc_rpc_channel_opts_default(vc_rpc_channel_opts_t *opts) { *opts = (vc_rpc_channel_opts_t){0}; }

vc_status_t vc_rpc_channel_create(const vc_rpc_channel_opts_t *opts, vc_rpc_channel_t **ch_p, vc_err_t *err)
{
    (void)opts, (void)err;
    *ch_p = vc_calloc(1, sizeof(**ch_p));
    return *ch_p ? VC_OK : VC_ERR_NOMEM;
}

void vc_rpc_channel_destroy(vc_rpc_channel_t *ch) { vc_free(ch); }

vc_status_t vc_rpc_unary(vc_rpc_channel_t *ch, const char *method, const void *req, size_t req_len,
                         uint32_t deadline_ms, vc_bytes_t *resp_p, vc_err_t *err)
{
    (void)ch, (void)deadline_ms;
    must(method[0] == '/' && (req_len == 0 || req != NULL));
    if (next_message(resp_p) == VC_OK)
        return VC_OK;
    return vc_err_set(err, VC_ERR_UNREACHABLE, "the input has no more replies");
}

vc_status_t vc_rpc_stream_open(vc_rpc_channel_t *ch, const char *method, uint32_t deadline_ms, vc_rpc_stream_t **s_p,
                               vc_err_t *err)
{
    (void)ch, (void)method, (void)deadline_ms, (void)err;
    *s_p = vc_calloc(1, sizeof(**s_p));
    return *s_p ? VC_OK : VC_ERR_NOMEM;
}

vc_status_t vc_rpc_stream_send(vc_rpc_stream_t *s, const vc_rpc_msg_t *msg, vc_err_t *err)
{
    (void)err;
    must(!s->is_closed);
    if (msg->release)
        msg->release(msg->arg);
    return VC_OK;
}

vc_status_t vc_rpc_stream_half_close(vc_rpc_stream_t *s)
{
    s->is_closed = true;
    return VC_OK;
}

vc_status_t vc_rpc_stream_recv(vc_rpc_stream_t *s, uint32_t timeout_ms, vc_bytes_t *msg_p, vc_err_t *err)
{
    (void)s, (void)timeout_ms;
    vc_status_t status = next_message(msg_p);
    if (status == VC_ERR_NOT_FOUND && streams_fail)
        return vc_err_set(err, VC_ERR_CORRUPT, "the stream broke");
    return status;
}

void vc_rpc_stream_cancel(vc_rpc_stream_t *s) { s->is_closed = true; }
void vc_rpc_stream_destroy(vc_rpc_stream_t *s) { vc_free(s); }

/* ---- calls ---- */

#define N_BLOCKS 5u

static small_space_t space;
static const vcache_fidelity_t fids[] = {{0, "full@1", NULL}, {1, "noise:eps=0.5", NULL}};

static void check(vcache_status_t status, const vcache_error_t *err)
{
    must(status == 0 || (err->status == status && err->msg[0] != '\0'));
}

/* A record that is handed out has been checked: it is the block's, and whole. */
static int on_record(void *arg, uint32_t block, const void *record, size_t bytes)
{
    vc_kvrec_head_t head;
    (void)arg;
    must(block < N_BLOCKS && vc_kvrec_check(record, bytes, &head, NULL) == VC_OK);
    must(memcmp(&head.hash, &space.hashes[block], sizeof(head.hash)) == 0);
    return 0;
}

static void lookup_and_fetch(vcache_client_t *c, bool probe)
{
    vcache_lookup_info_t info = {0};
    vcache_lease_t *lease = NULL;
    vcache_error_t err = {0};
    vcache_status_t st = vcache_lookup(c, space.enc, space.enc_len, space.tokens, N_BLOCKS * SMALL_BLOCK_TOKENS, fids,
                                       2, &info, probe ? NULL : &lease, &err);
    check(st, &err);
    for (uint32_t f = 0; st == 0 && f < 2; f++)
        must(info.n_blocks[f] <= N_BLOCKS && strlen(info.miss_reason[f]) < sizeof(info.miss_reason[f]));
    for (uint32_t f = 0; lease && f < 2; f++) {
        vcache_fetch_stats_t fs;
        err = (vcache_error_t){0};
        if (info.n_blocks[f] > 0)
            check(vcache_fetch(lease, f, 0, info.n_blocks[f], on_record, NULL, &fs, &err), &err);
    }
    if (lease)
        check(vcache_lease_renew(lease, &err), &err);
    vcache_lease_release(lease);
}

static void call(vcache_client_t *c, unsigned which)
{
    vcache_error_t err = {0};
    vcache_register_stats_t rs;
    vcache_stat_t stats[8];
    static vcache_prefix_t prefixes[4];
    uint32_t n = 0;
    switch (which) {
    case 0: lookup_and_fetch(c, false); break;
    case 1:
        check(vcache_register(c, space.enc, space.enc_len, space.tokens, 1, N_BLOCKS, fids, 1, small_space_record,
                              &space, &rs, &err),
              &err);
        break;
    case 2:
        check(vcache_stats(c, stats, VC_ARRAY_LEN(stats), &n, &err), &err);
        must(n <= VC_ARRAY_LEN(stats));
        break;
    case 3:
        check(vcache_prefixes(c, 1, VC_ARRAY_LEN(prefixes), prefixes, &n, &err), &err);
        must(n <= VC_ARRAY_LEN(prefixes));
        for (uint32_t i = 0; i < n; i++)
            must(prefixes[i].n_head_tokens <= VC_ARRAY_LEN(prefixes[i].head_tokens));
        break;
    case 4: check(vcache_health(c, &err), &err); break;
    default: lookup_and_fetch(c, true);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    vcache_options_t o;
    vcache_client_t *c = NULL;
    if (size < 2)
        return 0;
    if (space.enc_len == 0)
        small_space_init(&space);
    at = data + 2;
    end = data + size;
    streams_fail = data[1] & 2;
    vcache_options_default(&o);
    o.server = "127.0.0.1:1";
    o.use_data_plane = 0;
    must(vcache_connect(&o, &c, NULL) == 0);
    call(c, data[0] % 6);
    vcache_disconnect(c);
    return 0;
}
