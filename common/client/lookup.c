/* Lookup and the life of a lease. The client computes the same hash chain as the server: a record is accepted later
 * only under the hash that was asked for. */
#include <stdio.h>
#include <string.h>

#include "client_int.h"
#include "vc/mem.h"

static void lease_free(vcache_lease_t *lease)
{
    vcache_addresses_free(&lease->at);
    vc_free(lease->hashes);
    vc_free(lease->tokens);
    pthread_mutex_destroy(&lease->lock);
    vc_free(lease);
}

static vc_status_t take_columns(vcache_client_t *c, const Vericache__V1__LookupReply *reply, uint32_t n_fid,
                                uint32_t most_blocks, vcache_lookup_info_t *info, vc_err_t *err)
{
    if (reply->n_columns != n_fid)
        return vcache_bad_reply(c, "Lookup", err);
    for (uint32_t i = 0; i < n_fid; i++) {
        const Vericache__V1__LookupReply__Column *col = reply->columns[i];
        if (col->blocks > most_blocks)
            return vcache_bad_reply(c, "Lookup", err);
        info->n_blocks[i] = col->blocks;
        info->n_bytes[i] = col->bytes;
        snprintf(info->miss_reason[i], sizeof(info->miss_reason[i]), "%s", col->miss_reason);
    }
    info->boot_id = reply->boot_id;
    info->generation = reply->generation;
    return VC_OK;
}

typedef struct {
    const vc_keyspace_t *ks;
    const uint32_t *tokens; /* NULL: by tip */
    const vc_object_key_t *keys;
    uint32_t n_fid;
} asked_t;

/* The hashes that the server named are those of the lease; whether they are a chain, the records will show. */
static bool take_hashes(vcache_lease_t *l, const Vericache__V1__LookupReply *reply, uint32_t longest)
{
    l->hashes = vc_memdup(reply->chain.data, longest * sizeof(*l->hashes));
    return l->hashes != NULL;
}

static vc_status_t make_lease(vcache_client_t *c, const Vericache__V1__LookupReply *reply, const asked_t *a,
                              const vcache_lookup_info_t *info, vcache_lease_t **lease_p, vc_err_t *err)
{
    const Vericache__V1__LeaseRef *ref = reply->lease;
    uint32_t longest = 0;
    if (ref == NULL || ref->lease_id == 0)
        return VC_OK;
    vcache_lease_t *l = vc_calloc(1, sizeof(*l));
    if (l == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    vc_status_t st = ref->token.len == sizeof(l->token) ? VC_OK : vcache_bad_reply(c, "Lookup", err);
    pthread_mutex_init(&l->lock, NULL);
    l->client = c;
    l->boot_id = ref->boot_id;
    l->lease_id = ref->lease_id;
    l->shape = a->ks->shape;
    l->n_fid = a->n_fid;
    for (uint32_t i = 0; i < a->n_fid; i++) {
        l->keys[i] = a->keys[i];
        l->n_blocks[i] = info->n_blocks[i];
        longest = VC_MAX(longest, info->n_blocks[i]);
    }
    bool have = vcache_addresses_set(&l->at, reply->shm_address, reply->data_address);
    if (a->tokens != NULL)
        l->tokens = vc_memdup(a->tokens, (size_t)longest * l->shape.block_tokens * sizeof(*l->tokens));
    if (st == VC_OK && (!have || (a->tokens != NULL ? l->tokens == NULL : !take_hashes(l, reply, longest))))
        st = vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    if (st == VC_OK)
        st = vc_keyspace_id(a->ks, &l->keyspace, err);
    if (st != VC_OK) {
        lease_free(l);
        return st;
    }
    memcpy(l->token, ref->token.data, sizeof(l->token));
    *lease_p = l;
    return VC_OK;
}

vc_status_t vcache_lease_hashes(vcache_lease_t *lease, vc_err_t *err)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < lease->n_fid; i++)
        longest = VC_MAX(longest, lease->n_blocks[i]);
    pthread_mutex_lock(&lease->lock);
    bool is_made = lease->hashes != NULL;
    if (!is_made) {
        uint32_t block_tokens = lease->shape.block_tokens;
        lease->hashes = vc_calloc(longest, sizeof(*lease->hashes));
        is_made = lease->hashes != NULL;
        if (is_made)
            vc_block_chain(&lease->keyspace, lease->tokens, longest * block_tokens, block_tokens, lease->hashes);
    }
    pthread_mutex_unlock(&lease->lock);
    return is_made ? VC_OK : vc_err_set(err, VC_ERR_NOMEM, "out of memory");
}

static vc_status_t lookup(vcache_client_t *c, const Vericache__V1__LookupRequest *req, const asked_t *a,
                          vcache_lookup_info_t *info, vcache_lease_t **lease_p, vc_err_t *err)
{
    vc_bytes_t bytes = {0};
    vc_status_t st = vcache_call(c, VCACHE_METHOD("Lookup"), &req->base, c->o.call_ms, &bytes, err);
    if (st != VC_OK)
        return st;
    Vericache__V1__LookupReply *reply = vericache__v1__lookup_reply__unpack(NULL, bytes.len, bytes.data);
    vc_bytes_free(&bytes);
    if (reply == NULL)
        return vcache_bad_reply(c, "Lookup", err);
    size_t most = a->tokens != NULL ? req->n_tokens / a->ks->shape.block_tokens : reply->chain.len / VC_DIGEST_BYTES;
    st = reply->chain.len % VC_DIGEST_BYTES != 0 || most > UINT32_MAX
             ? vcache_bad_reply(c, "Lookup", err)
             : take_columns(c, reply, a->n_fid, (uint32_t)most, info, err);
    if (st == VC_OK && lease_p != NULL)
        st = make_lease(c, reply, a, info, lease_p, err);
    vericache__v1__lookup_reply__free_unpacked(reply, NULL);
    return st;
}

typedef struct { /* one of the two */
    const uint32_t *tokens;
    uint32_t n_tokens;
    const uint8_t *tip;
} chain_name_t;

static vcache_status_t lookup_chain(vcache_client_t *client, const uint8_t *keyspace, size_t keyspace_len,
                                    const chain_name_t *name, const vcache_fidelity_t *fids, uint32_t n_fid,
                                    vcache_lookup_info_t *info_p, vcache_lease_t **lease_p, vcache_error_t *err)
{
    vc_err_t e = {0};
    vc_keyspace_t ks;
    Vericache__V1__Fidelity m[VCACHE_MAX_FIDELITIES], *list[VCACHE_MAX_FIDELITIES];
    vc_object_key_t keys[VCACHE_MAX_FIDELITIES];
    vcache_lookup_info_t info = {0};
    vcache_lease_t *lease = NULL;
    vc_status_t st = vc_keyspace_decode(keyspace, keyspace_len, &ks, &e);
    if (st == VC_OK)
        st = vcache_fidelities(fids, n_fid, m, list, keys, &e);
    if (st == VC_OK) {
        Vericache__V1__LookupRequest req = VERICACHE__V1__LOOKUP_REQUEST__INIT;
        asked_t a = {&ks, name->tip != NULL ? NULL : name->tokens, keys, n_fid};
        req.keyspace = (ProtobufCBinaryData){keyspace_len, (uint8_t *)(uintptr_t)keyspace};
        req.tokens = (uint32_t *)(uintptr_t)name->tokens;
        req.n_tokens =
            name->n_tokens - name->n_tokens % ks.shape.block_tokens; /* a partial block is nobody's business */
        if (name->tip != NULL)
            req.tip = (ProtobufCBinaryData){VC_DIGEST_BYTES, (uint8_t *)(uintptr_t)name->tip};
        req.fidelities = list;
        req.n_fidelities = n_fid;
        req.want_lease = lease_p != NULL;
        st = lookup(client, &req, &a, &info, lease_p != NULL ? &lease : NULL, &e);
    }
    if (st == VC_OK) {
        if (info_p != NULL)
            *info_p = info;
        if (lease_p != NULL)
            *lease_p = lease;
    }
    return vcache_give(st, &e, err);
}

vcache_status_t vcache_lookup(vcache_client_t *client, const uint8_t *keyspace, size_t keyspace_len,
                              const uint32_t *tokens, uint32_t n_tokens, const vcache_fidelity_t *fids, uint32_t n_fid,
                              vcache_lookup_info_t *info_p, vcache_lease_t **lease_p, vcache_error_t *err)
{
    static const uint32_t none;
    const chain_name_t name = {tokens != NULL ? tokens : &none, n_tokens, NULL};
    return lookup_chain(client, keyspace, keyspace_len, &name, fids, n_fid, info_p, lease_p, err);
}

vcache_status_t vcache_lookup_tip(vcache_client_t *client, const uint8_t *keyspace, size_t keyspace_len,
                                  const uint8_t *tip, const vcache_fidelity_t *fids, uint32_t n_fid,
                                  vcache_lookup_info_t *info_p, vcache_lease_t **lease_p, vcache_error_t *err)
{
    const chain_name_t name = {.tip = tip};
    return lookup_chain(client, keyspace, keyspace_len, &name, fids, n_fid, info_p, lease_p, err);
}

void vcache_lease_ref(const vcache_lease_t *lease, Vericache__V1__LeaseRef *ref)
{
    *ref = (Vericache__V1__LeaseRef)VERICACHE__V1__LEASE_REF__INIT;
    ref->boot_id = lease->boot_id;
    ref->lease_id = lease->lease_id;
    ref->token = (ProtobufCBinaryData){sizeof(lease->token), (uint8_t *)(uintptr_t)lease->token};
}

vcache_status_t vcache_lease_renew(vcache_lease_t *lease, vcache_error_t *err)
{
    vc_err_t e = {0};
    vc_bytes_t reply = {0};
    Vericache__V1__LeaseRef ref;
    Vericache__V1__RenewLeaseRequest req = VERICACHE__V1__RENEW_LEASE_REQUEST__INIT;
    vcache_lease_ref(lease, &ref);
    req.lease = &ref;
    vcache_client_t *c = lease->client;
    vc_status_t st = vcache_call(c, VCACHE_METHOD("RenewLease"), &req.base, c->o.call_ms, &reply, &e);
    vc_bytes_free(&reply);
    return vcache_give(st, &e, err);
}

/* Whatever the answer: the server frees a lease by its deadline anyway. */
void vcache_lease_release(vcache_lease_t *lease)
{
    if (lease == NULL)
        return;
    vc_bytes_t reply = {0};
    Vericache__V1__LeaseRef ref;
    vcache_lease_ref(lease, &ref);
    vcache_call(lease->client, VCACHE_METHOD("ReleaseLease"), &ref.base, lease->client->o.call_ms, &reply, NULL);
    vc_bytes_free(&reply);
    lease_free(lease);
}
