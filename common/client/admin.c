/* What is done to stored prefixes (pin, unpin, delete), and what operators ask: drain, scrub, configuration, watching.
 */
#include <stdio.h>
#include <string.h>

#include "client_int.h"
#include "vc/mem.h"

/* ---- chains ---- */

static vc_status_t chain_call(vcache_client_t *c, const char *method, const char *name, const vcache_chain_t *chain,
                              vcache_chain_sum_t *sum_p, vc_err_t *err)
{
    Vericache__V1__ChainRequest req = VERICACHE__V1__CHAIN_REQUEST__INIT;
    Vericache__V1__Fidelity m[VCACHE_MAX_FIDELITIES], *list[VCACHE_MAX_FIDELITIES];
    vc_object_key_t keys[VCACHE_MAX_FIDELITIES];
    vc_bytes_t bytes = {0};
    vc_status_t st = VC_OK;
    if ((chain->tip != NULL) != (chain->keyspace_id != NULL))
        return vc_err_set(err, VC_ERR_INVALID, "a tip goes with the id of its keyspace");
    if (chain->tip != NULL) {
        req.tip = (ProtobufCBinaryData){VC_DIGEST_BYTES, (uint8_t *)(uintptr_t)chain->tip};
        req.keyspace_id = (ProtobufCBinaryData){VC_DIGEST_BYTES, (uint8_t *)(uintptr_t)chain->keyspace_id};
    }
    req.keyspace = (ProtobufCBinaryData){chain->keyspace_len, (uint8_t *)(uintptr_t)chain->keyspace};
    req.tokens = (uint32_t *)(uintptr_t)chain->tokens;
    req.n_tokens = chain->n_tokens;
    req.first_block = chain->first_block;
    if (chain->fidelity != NULL) {
        st = vcache_fidelities(chain->fidelity, 1, m, list, keys, err);
        req.fidelity = &m[0];
    }
    if (st == VC_OK) /* it waits for the disk, behind others */
        st = vcache_call(c, method, &req.base, VC_MAX(c->o.call_ms, c->o.stream_idle_ms), &bytes, err);
    if (st != VC_OK)
        return st;
    Vericache__V1__ChainReply *reply = vericache__v1__chain_reply__unpack(NULL, bytes.len, bytes.data);
    vc_bytes_free(&bytes);
    if (reply == NULL)
        return vcache_bad_reply(c, name, err);
    if (sum_p != NULL)
        *sum_p = (vcache_chain_sum_t){reply->objects, reply->bytes};
    vericache__v1__chain_reply__free_unpacked(reply, NULL);
    return VC_OK;
}

vcache_status_t vcache_pin(vcache_client_t *client, const vcache_chain_t *chain, vcache_chain_sum_t *sum_p,
                           vcache_error_t *err)
{
    vc_err_t e = {0};
    return vcache_give(chain_call(client, VCACHE_METHOD("Pin"), "Pin", chain, sum_p, &e), &e, err);
}

vcache_status_t vcache_unpin(vcache_client_t *client, const vcache_chain_t *chain, vcache_chain_sum_t *sum_p,
                             vcache_error_t *err)
{
    vc_err_t e = {0};
    return vcache_give(chain_call(client, VCACHE_METHOD("Unpin"), "Unpin", chain, sum_p, &e), &e, err);
}

vcache_status_t vcache_delete(vcache_client_t *client, const vcache_chain_t *chain, vcache_chain_sum_t *sum_p,
                              vcache_error_t *err)
{
    vc_err_t e = {0};
    return vcache_give(chain_call(client, VCACHE_METHOD("Delete"), "Delete", chain, sum_p, &e), &e, err);
}

/* ---- drain ---- */

static void take_report(const Vericache__V1__DrainReply *reply, vcache_drain_report_t *r)
{
    *r = (vcache_drain_report_t){.draining = reply->draining != 0,
                                 .leases = reply->leases,
                                 .uploads = reply->uploads,
                                 .commits = reply->commits,
                                 .transfers = reply->transfers,
                                 .leased_bytes = reply->leased_bytes};
    r->n_ages = (uint32_t)VC_MIN(reply->n_ages, VC_ARRAY_LEN(r->ages));
    for (uint32_t i = 0; i < r->n_ages; i++) {
        r->ages[i].below_s = reply->ages[i]->below_s;
        r->ages[i].leases = reply->ages[i]->leases;
        r->ages[i].bytes = reply->ages[i]->bytes;
    }
}

vcache_status_t vcache_drain(vcache_client_t *client, vcache_drain_action_t action, vcache_drain_report_t *report_p,
                             vcache_error_t *err)
{
    vc_err_t e = {0};
    vc_bytes_t bytes = {0};
    Vericache__V1__DrainRequest req = VERICACHE__V1__DRAIN_REQUEST__INIT;
    req.resume = action == VCACHE_DRAIN_RESUME;
    req.query = action == VCACHE_DRAIN_QUERY;
    vc_status_t st = vcache_call(client, VCACHE_METHOD("Drain"), &req.base, client->o.call_ms, &bytes, &e);
    if (st == VC_OK) {
        Vericache__V1__DrainReply *reply = vericache__v1__drain_reply__unpack(NULL, bytes.len, bytes.data);
        if (reply == NULL)
            st = vcache_bad_reply(client, "Drain", &e);
        else if (report_p != NULL)
            take_report(reply, report_p);
        vericache__v1__drain_reply__free_unpacked(reply, NULL);
    }
    vc_bytes_free(&bytes);
    return vcache_give(st, &e, err);
}

/* ---- scrub ---- */

static void take_scrub(const Vericache__V1__ScrubReply *reply, vcache_scrub_info_t *i)
{
    *i = (vcache_scrub_info_t){.running = reply->running != 0,
                               .rate_bytes = reply->rate_bytes,
                               .pass_objects = reply->pass_objects,
                               .pass_objects_total = reply->pass_objects_total,
                               .pass_bytes = reply->pass_bytes,
                               .pass_bytes_total = reply->pass_bytes_total,
                               .pass_corrupt = reply->pass_corrupt,
                               .pass_errors = reply->pass_errors,
                               .passes = reply->passes,
                               .corrupt = reply->corrupt,
                               .errors = reply->errors,
                               .last_pass_s = reply->last_pass_s,
                               .last_pass_ms = reply->last_pass_ms};
}

vcache_status_t vcache_scrub(vcache_client_t *client, vcache_scrub_action_t action, uint64_t rate_bytes,
                             vcache_scrub_info_t *info_p, vcache_error_t *err)
{
    vc_err_t e = {0};
    vc_bytes_t bytes = {0};
    Vericache__V1__ScrubRequest req = VERICACHE__V1__SCRUB_REQUEST__INIT;
    req.action = (Vericache__V1__ScrubRequest__Action)action;
    req.rate_bytes = rate_bytes;
    vc_status_t st = vcache_call(client, VCACHE_METHOD("Scrub"), &req.base, client->o.call_ms, &bytes, &e);
    if (st == VC_OK) {
        Vericache__V1__ScrubReply *reply = vericache__v1__scrub_reply__unpack(NULL, bytes.len, bytes.data);
        if (reply == NULL)
            st = vcache_bad_reply(client, "Scrub", &e);
        else if (info_p != NULL)
            take_scrub(reply, info_p);
        vericache__v1__scrub_reply__free_unpacked(reply, NULL);
    }
    vc_bytes_free(&bytes);
    return vcache_give(st, &e, err);
}

/* ---- configuration ---- */

vcache_status_t vcache_config(vcache_client_t *client, vcache_option_fn on_option, void *arg, vcache_error_t *err)
{
    vc_err_t e = {0};
    vc_bytes_t bytes = {0};
    Vericache__V1__GetConfigRequest req = VERICACHE__V1__GET_CONFIG_REQUEST__INIT;
    vc_status_t st = vcache_call(client, VCACHE_METHOD("GetConfig"), &req.base, client->o.call_ms, &bytes, &e);
    if (st == VC_OK) {
        Vericache__V1__GetConfigReply *reply = vericache__v1__get_config_reply__unpack(NULL, bytes.len, bytes.data);
        if (reply == NULL)
            st = vcache_bad_reply(client, "GetConfig", &e);
        for (size_t i = 0; reply != NULL && i < reply->n_options; i++)
            on_option(arg, reply->options[i]->name, reply->options[i]->value, reply->options[i]->source);
        vericache__v1__get_config_reply__free_unpacked(reply, NULL);
    }
    vc_bytes_free(&bytes);
    return vcache_give(st, &e, err);
}

/* ---- watching ---- */

/* *stop_p: the caller has seen enough. */
static vc_status_t watch_one(vcache_client_t *c, const vc_bytes_t *bytes, vcache_stats_fn on_stats, void *arg,
                             bool *stop_p, vc_err_t *err)
{
    Vericache__V1__GetStatsReply *reply = vericache__v1__get_stats_reply__unpack(NULL, bytes->len, bytes->data);
    if (reply == NULL)
        return vcache_bad_reply(c, "WatchStats", err);
    vcache_stat_t *stats = vc_calloc(reply->n_stats, sizeof(*stats));
    for (size_t i = 0; stats != NULL && i < reply->n_stats; i++)
        vcache_take_stat(reply->stats[i], &stats[i]);
    if (stats != NULL)
        *stop_p = on_stats(arg, stats, (uint32_t)reply->n_stats) != 0;
    vericache__v1__get_stats_reply__free_unpacked(reply, NULL);
    vc_status_t st = stats != NULL ? VC_OK : vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    vc_free(stats);
    return st;
}

static vc_status_t watch_all(vcache_client_t *c, vc_rpc_stream_t *s, uint32_t wait_ms, vcache_stats_fn on_stats,
                             void *arg, vc_err_t *err)
{
    bool stop = false;
    while (!stop) {
        vc_bytes_t bytes = {0};
        vc_status_t st = vc_rpc_stream_recv(s, wait_ms, &bytes, err);
        if (st == VC_ERR_AGAIN)
            return vc_err_set(err, VC_ERR_TIMEOUT, "%s: WatchStats: nothing came for %u ms", c->server, wait_ms);
        if (st == VC_ERR_NOT_FOUND && err->msg[0] == '\0')
            return vcache_bad_reply(c, "WatchStats", err);
        if (st == VC_OK)
            st = watch_one(c, &bytes, on_stats, arg, &stop, err);
        vc_bytes_free(&bytes);
        if (st != VC_OK)
            return st;
    }
    return VC_OK;
}

vcache_status_t vcache_watch_stats(vcache_client_t *client, uint32_t interval_ms, vcache_stats_fn on_stats, void *arg,
                                   vcache_error_t *err)
{
    vc_err_t e = {0};
    uint8_t bytes[16];
    vc_rpc_stream_t *s = NULL;
    Vericache__V1__WatchStatsRequest req = VERICACHE__V1__WATCH_STATS_REQUEST__INIT;
    req.interval_ms = interval_ms;
    vc_rpc_msg_t m = {.head = bytes, .head_len = vericache__v1__watch_stats_request__pack(&req, bytes)};
    vc_status_t st = vc_rpc_stream_open(client->channel, VCACHE_METHOD("WatchStats"), 0, &s, &e);
    if (st == VC_OK)
        st = vc_rpc_stream_send(s, &m, &e);
    if (st == VC_OK) {
        uint64_t wait_ms = (uint64_t)(interval_ms != 0 ? interval_ms : 1000) + client->o.stream_idle_ms;
        vc_rpc_stream_half_close(s); /* a failure shows in what comes back */
        st = watch_all(client, s, (uint32_t)VC_MIN(wait_ms, UINT32_MAX - 1), on_stats, arg, &e);
    }
    vc_rpc_stream_destroy(s);
    return vcache_give(st, &e, err);
}
