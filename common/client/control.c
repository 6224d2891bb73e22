/* Statistics, prefixes, health. */
#include <stdio.h>
#include <string.h>

#include "client_int.h"
#include "health.pb-c.h"
#include "vc/mem.h"

void vcache_take_stat(const Vericache__V1__GetStatsReply__Stat *from, vcache_stat_t *to)
{
    snprintf(to->name, sizeof(to->name), "%s", from->name);
    to->value = from->value;
}

vcache_status_t vcache_stats(vcache_client_t *client, vcache_stat_t *stats, uint32_t cap, uint32_t *n_p,
                             vcache_error_t *err)
{
    vc_err_t e = {0};
    vc_bytes_t bytes = {0};
    Vericache__V1__GetStatsRequest req = VERICACHE__V1__GET_STATS_REQUEST__INIT;
    vc_status_t st = vcache_call(client, VCACHE_METHOD("GetStats"), &req.base, client->o.call_ms, &bytes, &e);
    if (st == VC_OK) {
        Vericache__V1__GetStatsReply *reply = vericache__v1__get_stats_reply__unpack(NULL, bytes.len, bytes.data);
        uint32_t n = reply != NULL ? (uint32_t)VC_MIN(reply->n_stats, cap) : 0;
        for (uint32_t i = 0; i < n; i++)
            vcache_take_stat(reply->stats[i], &stats[i]);
        if (reply == NULL)
            st = vcache_bad_reply(client, "GetStats", &e);
        else
            *n_p = n;
        vericache__v1__get_stats_reply__free_unpacked(reply, NULL);
    }
    vc_bytes_free(&bytes);
    return vcache_give(st, &e, err);
}

static bool take_prefix(const Vericache__V1__ListPrefixesReply__Prefix *from, vcache_prefix_t *to)
{
    *to = (vcache_prefix_t){0};
    if (from->tip.len != sizeof(to->tip) || from->keyspace.len != sizeof(to->keyspace))
        return false;
    memcpy(to->tip, from->tip.data, sizeof(to->tip));
    memcpy(to->keyspace, from->keyspace.data, sizeof(to->keyspace));
    to->n_blocks = from->blocks;
    to->hits = from->hits;
    to->bytes = from->bytes;
    to->n_head_tokens = (uint32_t)VC_MIN(from->n_head_tokens, VC_ARRAY_LEN(to->head_tokens));
    for (uint32_t i = 0; i < to->n_head_tokens; i++)
        to->head_tokens[i] = from->head_tokens[i];
    return true;
}

vcache_status_t vcache_prefixes(vcache_client_t *client, int by_bytes, uint32_t limit, vcache_prefix_t *out,
                                uint32_t *n_p, vcache_error_t *err)
{
    vc_err_t e = {0};
    vc_bytes_t bytes = {0};
    Vericache__V1__ListPrefixesRequest req = VERICACHE__V1__LIST_PREFIXES_REQUEST__INIT;
    req.by_bytes = by_bytes != 0;
    req.limit = limit;
    vc_status_t st = vcache_call(client, VCACHE_METHOD("ListPrefixes"), &req.base, client->o.call_ms, &bytes, &e);
    if (st == VC_OK) {
        Vericache__V1__ListPrefixesReply *reply =
            vericache__v1__list_prefixes_reply__unpack(NULL, bytes.len, bytes.data);
        bool good = reply != NULL && reply->n_prefixes <= limit;
        for (uint32_t i = 0; good && i < reply->n_prefixes; i++)
            good = take_prefix(reply->prefixes[i], &out[i]);
        if (good)
            *n_p = (uint32_t)reply->n_prefixes;
        else
            st = vcache_bad_reply(client, "ListPrefixes", &e);
        vericache__v1__list_prefixes_reply__free_unpacked(reply, NULL);
    }
    vc_bytes_free(&bytes);
    return vcache_give(st, &e, err);
}

vcache_status_t vcache_health(vcache_client_t *client, vcache_error_t *err)
{
    vc_err_t e = {0};
    vc_bytes_t bytes = {0};
    Grpc__Health__V1__HealthCheckRequest req = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    req.service = (char *)(uintptr_t) "vericache.v1.Cache";
    vc_status_t st = vcache_call(client, "/grpc.health.v1.Health/Check", &req.base, client->o.call_ms, &bytes, &e);
    if (st == VC_OK) {
        Grpc__Health__V1__HealthCheckResponse *reply =
            grpc__health__v1__health_check_response__unpack(NULL, bytes.len, bytes.data);
        if (reply == NULL)
            st = vcache_bad_reply(client, "Check", &e);
        else if (reply->status != GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING)
            st = vc_err_set(&e, VC_ERR_BUSY, "%s is not serving (draining)", client->server);
        grpc__health__v1__health_check_response__free_unpacked(reply, NULL);
    }
    vc_bytes_free(&bytes);
    return vcache_give(st, &e, err);
}
