/* The client handle, its connections, and what every call needs. No call writes to stderr or ends the process. */
#include <stdio.h>
#include <string.h>

#include "client_int.h"
#include "vc/mem.h"

void vcache_options_default(vcache_options_t *options)
{
    *options = (vcache_options_t){
        .server = "127.0.0.1:7070", .connect_ms = 2000, .call_ms = 5000, .stream_idle_ms = 10000, .use_data_plane = 1};
}

const char *vcache_status_name(vcache_status_t status) { return vc_status_name((vc_status_t)status); }

vcache_status_t vcache_give(vc_status_t status, const vc_err_t *from, vcache_error_t *to)
{
    if (to != NULL) {
        to->status = (int)status;
        bool has = from != NULL && from->msg[0] != '\0';
        snprintf(to->msg, sizeof(to->msg), "%s", status == VC_OK ? "" : has ? from->msg : vc_status_name(status));
    }
    return (vcache_status_t)status;
}

static vc_status_t client_open(vcache_client_t *c, const vcache_options_t *options, vc_err_t *err)
{
    c->o = *options;
    c->clock = vc_clock_system();
    c->server = options->server != NULL ? vc_strdup(options->server) : NULL;
    c->bearer = options->bearer != NULL ? vc_strdup(options->bearer) : NULL;
    if (options->server == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "no server address");
    if (c->server == NULL || (options->bearer != NULL && c->bearer == NULL))
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    c->o.server = c->server;
    c->o.bearer = c->bearer;
    c->o.call_ms = c->o.call_ms != 0 ? c->o.call_ms : 5000;
    c->o.stream_idle_ms = c->o.stream_idle_ms != 0 ? c->o.stream_idle_ms : 10000;
    vc_rpc_channel_opts_t o;
    vc_rpc_channel_opts_default(&o);
    o.target = c->server;
    o.bearer = c->bearer;
    o.connect_ms = options->connect_ms;
    return vc_rpc_channel_create(&o, &c->channel, err);
}

vcache_status_t vcache_connect(const vcache_options_t *options, vcache_client_t **client_p, vcache_error_t *err)
{
    vc_err_t e = {0};
    vcache_client_t *c = vc_calloc(1, sizeof(*c));
    if (c == NULL)
        return vcache_give(VC_ERR_NOMEM, NULL, err);
    pthread_mutex_init(&c->data_lock, NULL);
    vc_status_t st = client_open(c, options, &e);
    if (st != VC_OK)
        vcache_disconnect(c);
    else
        *client_p = c;
    return vcache_give(st, &e, err);
}

void vcache_disconnect(vcache_client_t *client)
{
    if (client == NULL)
        return;
    vcache_planes_close(client);
    vc_rpc_channel_destroy(client->channel);
    pthread_mutex_destroy(&client->data_lock);
    vc_free(client->server);
    vc_free(client->bearer);
    vc_free(client);
}

vc_status_t vcache_call(vcache_client_t *c, const char *method, const ProtobufCMessage *request, uint32_t deadline_ms,
                        vc_bytes_t *reply_p, vc_err_t *err)
{
    size_t len = protobuf_c_message_get_packed_size(request);
    uint8_t *bytes = vc_alloc(len);
    if (bytes == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    len = protobuf_c_message_pack(request, bytes);
    vc_status_t st = vc_rpc_unary(c->channel, method, bytes, len, deadline_ms, reply_p, err);
    vc_free(bytes);
    return st;
}

vc_status_t vcache_bad_reply(const vcache_client_t *c, const char *what, vc_err_t *err)
{
    return vc_err_set(err, VC_ERR_PROTOCOL, "%s: the answer to %s makes no sense", c->server, what);
}

vc_status_t vcache_fidelities(const vcache_fidelity_t *fids, uint32_t n_fid, Vericache__V1__Fidelity *m,
                              Vericache__V1__Fidelity **list, vc_object_key_t *keys, vc_err_t *err)
{
    if (n_fid == 0 || n_fid > VCACHE_MAX_FIDELITIES)
        return vc_err_set(err, VC_ERR_INVALID, "%u fidelities, not 1 to %d", n_fid, VCACHE_MAX_FIDELITIES);
    for (uint32_t i = 0; i < n_fid; i++) {
        const vcache_fidelity_t *f = &fids[i];
        size_t len = f->spec != NULL ? strlen(f->spec) : 0;
        if (len == 0 || len >= VC_SPEC_TEXT_MAX)
            return vc_err_set(err, VC_ERR_INVALID, "fidelity %u: spec has %zu bytes, not 1 to %d", i, len,
                              VC_SPEC_TEXT_MAX - 1);
        m[i] = (Vericache__V1__Fidelity)VERICACHE__V1__FIDELITY__INIT;
        m[i].compressed = f->compressed != 0;
        m[i].spec = (char *)(uintptr_t)f->spec;
        if (f->calib_digest != NULL)
            m[i].calib_digest = (ProtobufCBinaryData){VC_DIGEST_BYTES, (uint8_t *)(uintptr_t)f->calib_digest};
        list[i] = &m[i];
        memset(&keys[i], 0, sizeof(keys[i]));
        keys[i].fidelity = f->compressed ? VC_FIDELITY_COMPRESSED : VC_FIDELITY_FULL;
        vc_digest_t calib;
        if (f->calib_digest != NULL)
            memcpy(calib.b, f->calib_digest, sizeof(calib.b));
        vc_spec_id(f->spec, f->calib_digest != NULL ? &calib : NULL, &keys[i].spec);
    }
    return VC_OK;
}

/* A compressor may spend a little more than full KV on a hostile block (tables, exact rows), not a multiple of it. */
uint64_t vcache_record_limit(const vc_kv_shape_t *shape, bool compressed)
{
    uint64_t full = vc_kvrec_full_bytes(shape);
    return VC_MIN(compressed ? 2 * full + (1u << 20) : full, VC_KVREC_MAX_BYTES);
}
