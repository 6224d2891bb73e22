/*
 * Tenants: what the keyspaces of one salt take together, and the quota on it. A put that would go over the quota waits
 * in the queue of those that need room; the space thread then evicts objects of the same tenant, found by a hand that
 * goes round the index in short steps, each time the one that the policy would give up first.
 */
#include <string.h>

#include "store_int.h"
#include "vc/mem.h"

#define STEP_ENTRIES 1024u /* looked at under one hold of the lock */

/* ---- names and sums (locked) ---- */

static vc_digest_t salt_of(const vc_keyspace_t *ks)
{
    vc_digest_t digest;
    vc_blake2b(ks->tenant_salt, strnlen(ks->tenant_salt, sizeof(ks->tenant_salt)), &digest);
    return digest;
}

uint16_t cs_tenant_join(cs_store_t *s, const vc_keyspace_t *ks)
{
    vc_digest_t salt = salt_of(ks);
    uint32_t slot = s->n_tenants;
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        const cs_tenant_t *tenant = &s->tenants[i];
        if (tenant->keyspaces > 0 && memcmp(&tenant->salt, &salt, sizeof(salt)) == 0) {
            slot = i;
            break;
        }
        slot = tenant->keyspaces == 0 ? VC_MIN(slot, i) : slot;
    }
    /* As many as keyspaces, and each has at least one: there is a slot. */
    if (slot == s->n_tenants)
        s->n_tenants++;
    if (s->tenants[slot].keyspaces++ == 0) {
        s->tenants[slot].salt = salt;
        s->tenants[slot].hand = 0;
    }
    return (uint16_t)slot;
}

void cs_tenant_leave(cs_store_t *s, uint16_t tenant) { s->tenants[tenant].keyspaces--; }

static cs_tenant_t *tenant_of(const cs_store_t *s, uint32_t keyspace)
{
    return &s->tenants[s->keyspaces[keyspace].tenant];
}

void cs_tenant_count(cs_store_t *s, uint32_t keyspace, int64_t stored, int64_t uploading)
{
    cs_tenant_t *tenant = tenant_of(s, keyspace);
    tenant->bytes += (uint64_t)stored;
    tenant->uploading += (uint64_t)uploading;
}

void cs_tenant_stats(const cs_store_t *s, cs_store_stats_t *stats)
{
    stats->tenant_quota_bytes = s->opts.tenant_quota_bytes;
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        const cs_tenant_t *tenant = &s->tenants[i];
        stats->tenants += tenant->keyspaces > 0 && tenant->bytes + tenant->uploading > 0;
        stats->tenant_largest_bytes = VC_MAX(stats->tenant_largest_bytes, tenant->bytes + tenant->uploading);
    }
}

/* ---- the quota (locked) ---- */

bool cs_tenant_is_over(const cs_store_t *s, uint32_t keyspace)
{
    const cs_tenant_t *tenant = tenant_of(s, keyspace);
    uint64_t quota = s->opts.tenant_quota_bytes;
    return quota > 0 && tenant->bytes + tenant->uploading > quota;
}

vc_status_t cs_tenant_check(cs_store_t *s, uint32_t keyspace, uint64_t bytes, vc_err_t *err)
{
    const cs_tenant_t *tenant = tenant_of(s, keyspace);
    uint64_t quota = s->opts.tenant_quota_bytes;
    if (quota == 0 || (bytes <= quota && tenant->uploading <= quota - bytes))
        return VC_OK;
    s->stats.quota_rejected++;
    return vc_err_set(err, VC_ERR_NOSPACE,
                      "%llu bytes more are over the tenant's quota of %llu, %llu are being uploaded",
                      (unsigned long long)bytes, (unsigned long long)quota, (unsigned long long)tenant->uploading);
}

/* ---- eviction of a tenant's own objects ---- */

static bool goes_before(const cs_store_t *s, uint32_t a, uint32_t b)
{
    uint32_t x = cs_policy_rank(s->policy, a), y = cs_policy_rank(s->policy, b);
    return x != y ? x < y : cs_index_entry(s->index, a)->block_index > cs_index_entry(s->index, b)->block_index;
}

/* One window of the index; CS_INDEX_NONE: nothing of the tenant that may go. Locked. */
static uint32_t look(cs_store_t *s, uint16_t number)
{
    cs_tenant_t *tenant = &s->tenants[number];
    uint32_t limit = cs_index_limit(s->index), found = CS_INDEX_NONE;
    for (uint32_t n = 0; n < VC_MIN(STEP_ENTRIES, limit); n++) {
        uint32_t id = tenant->hand = tenant->hand + 1 < limit ? tenant->hand + 1 : 0;
        const cs_entry_t *entry = cs_index_entry(s->index, id);
        bool can_go = entry->pages > 0 && s->keyspaces[entry->keyspace].tenant == number && !cs_entry_is_kept(entry);
        if (can_go && (found == CS_INDEX_NONE || goes_before(s, id, found)))
            found = id;
    }
    return found;
}

bool cs_tenant_evict(cs_store_t *s, uint32_t keyspace)
{
    uint64_t looked_at = 0;
    for (;;) {
        cs_lock(s);
        uint32_t id = cs_tenant_is_over(s, keyspace) ? look(s, s->keyspaces[keyspace].tenant) : CS_INDEX_NONE;
        bool is_over = cs_tenant_is_over(s, keyspace), is_round = looked_at > cs_index_limit(s->index);
        if (id != CS_INDEX_NONE) {
            cs_evict_entry(s, id);
            s->stats.quota_evicted++;
        }
        cs_unlock(s);
        if (!is_over || (id == CS_INDEX_NONE && is_round))
            return !is_over;
        looked_at = id == CS_INDEX_NONE ? looked_at + STEP_ENTRIES : 0;
    }
}
