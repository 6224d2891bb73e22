/*
 * Lookup, leases and pins. A lease holds the entries of what it found: a held object is never evicted. It may move, and
 * the hold goes with it; it may still leave the index, when it turns out damaged or is deleted, and its entry stays a
 * while to say so. A pin holds the entry too, and the place: a segment is not used again while one is on it.
 */
#include <sodium.h>
#include <string.h>

#include "store_int.h"
#include "vc/mem.h"

/* ---- holds ---- */

cs_hold_t cs_hold_entry(cs_store_t *s, uint32_t id)
{
    cs_hold_t hold = {.entry = id, .pages = (uint32_t)cs_index_entry(s->index, id)->pages};
    cs_index_hold(s->index, id);
    s->pinned_bytes += (uint64_t)hold.pages * 4096;
    return hold;
}

void cs_hold_release(cs_store_t *s, const cs_hold_t *hold)
{
    s->pinned_bytes -= (uint64_t)hold->pages * 4096;
    cs_index_unhold(s->index, hold->entry);
}

void cs_lease_free(cs_store_t *s, cs_lease_t *lease)
{
    for (uint32_t i = 0; i < lease->n_holds; i++)
        cs_hold_release(s, &lease->holds[i]);
    cs_table_remove(&s->leases, lease->id);
    if (s->waiting)
        cs_room_wanted(s);
    vc_free(lease);
}

void cs_leases_expire(cs_store_t *s, uint64_t now_us)
{
    for (uint32_t i = 0; i < s->leases.n; i++) {
        cs_lease_t *lease = s->leases.slots[i];
        if (lease && now_us >= lease->expires_us) {
            cs_lease_free(s, lease);
            s->stats.leases_expired++;
        }
    }
}

/* ---- lookup ---- */

typedef struct found {
    uint16_t keyspace;
    uint16_t columns[CS_MAX_FIDELITIES];
    uint32_t total;
    uint32_t *ids;   /* of what was found, column after column; NULL: not wanted */
    bool is_counted; /* as a use, and as hit or miss */
} found_t;

static uint32_t match_chain(cs_store_t *s, const found_t *found, uint32_t f, const vc_digest_t *hashes, uint32_t n,
                            cs_lookup_result_t *r)
{
    uint32_t b, deepest = CS_INDEX_NONE, now_s = cs_now_s(s);
    for (b = 0; b < n; b++) {
        uint32_t id = cs_index_find(s->index, found->columns[f], &hashes[b]);
        cs_entry_t *entry = id == CS_INDEX_NONE ? NULL : cs_index_entry(s->index, id);
        if (!entry || entry->keyspace != found->keyspace)
            break;
        if (found->ids) {
            found->ids[found->total + b] = id;
            if (found->is_counted)
                cs_use(s, id, now_s);
        }
        r->n_bytes[f] += (uint64_t)entry->pages * 4096;
        (void)cs_index_parent(s->index, id); /* a parent that came back is linked where it is found useful */
        deepest = id;
    }
    r->n_blocks[f] = b;
    if (b < n)
        r->miss[f] = cs_ghost_find(s, found->columns[f], &hashes[b]);
    return deepest;
}

static void count_miss(cs_store_t *s, cs_miss_t why)
{
    s->stats.miss_absent += why == CS_MISS_ABSENT;
    s->stats.miss_evicted += why == CS_MISS_EVICTED;
    s->stats.miss_corrupt += why == CS_MISS_CORRUPT;
    s->stats.miss_keyspace += why == CS_MISS_KEYSPACE;
}

static void count_lookup(cs_store_t *s, const found_t *found, const cs_fidelity_t *fid, uint32_t f, uint32_t n,
                         const cs_lookup_result_t *r)
{
    /* Tokens of an unknown keyspace are counted by the default block size; nothing better is known of them. */
    uint64_t tokens = found->keyspace == CS_NO_NAME ? 64 : s->keyspaces[found->keyspace].ks.shape.block_tokens;
    cs_fid_stats_t *stats = cs_fid_stats(s, fid->fidelity);
    stats->lookups++;
    stats->lookup_blocks += n;
    stats->lookup_tokens += n * tokens;
    stats->lookup_hits += r->n_blocks[f] > 0;
    stats->hit_blocks += r->n_blocks[f];
    stats->hit_tokens += r->n_blocks[f] * tokens;
    stats->hit_bytes += r->n_bytes[f];
    count_miss(s, r->miss[f]);
}

/* r->token is there already. */
static vc_status_t make_lease(cs_store_t *s, const found_t *found, uint32_t n_fid, cs_lookup_result_t *r)
{
    size_t bytes;
    if (!vc_size_mul(found->total, sizeof(cs_hold_t), &bytes) || !vc_size_add(bytes, sizeof(cs_lease_t), &bytes))
        return VC_ERR_RANGE;
    cs_lease_t *lease = vc_calloc(1, bytes);
    if (!lease)
        return VC_ERR_NOMEM;
    lease->id = cs_table_add(&s->leases, lease);
    if (!lease->id) {
        vc_free(lease);
        return VC_ERR_BUSY;
    }
    lease->token = r->token;
    lease->created_us = cs_now_us(s);
    lease->expires_us = lease->created_us + (uint64_t)s->opts.lease_ms * 1000;
    for (uint32_t f = 0; f < n_fid; f++) {
        lease->first[f] = lease->n_holds;
        lease->bytes += r->n_bytes[f];
        lease->n[f] = r->n_blocks[f];
        lease->columns[f] = found->columns[f];
        for (uint32_t b = 0; b < r->n_blocks[f]; b++, lease->n_holds++)
            lease->holds[lease->n_holds] = cs_hold_entry(s, found->ids[lease->n_holds]);
    }
    r->lease_id = lease->id;
    r->lease_expires_us = lease->expires_us;
    return VC_OK;
}

static vc_status_t lookup_locked(cs_store_t *s, const vc_digest_t *keyspace, const vc_digest_t *hashes, uint32_t n,
                                 const cs_fidelity_t *fids, uint32_t n_fid, uint32_t *ids, bool is_counted,
                                 cs_lookup_result_t *r)
{
    found_t found = {.keyspace = cs_keyspace_find(s, keyspace), .ids = ids, .is_counted = is_counted};
    bool is_known = found.keyspace != CS_NO_NAME && s->keyspaces[found.keyspace].objects > 0;
    uint32_t deepest = CS_INDEX_NONE;
    if (ids && is_known && s->leases.used == s->leases.n)
        return VC_ERR_BUSY;
    for (uint32_t f = 0; f < n_fid; f++) {
        found.columns[f] = cs_column_find(s, fids[f].fidelity, &fids[f].spec);
        if (!is_known) {
            r->miss[f] = n == 0                                               ? CS_MISS_NONE
                         : s->n_keyspaces > 0 && found.keyspace == CS_NO_NAME ? CS_MISS_KEYSPACE
                                                                              : CS_MISS_ABSENT;
            if (n > 0 && found.keyspace != CS_NO_NAME && found.columns[f] != CS_NO_NAME)
                r->miss[f] = cs_ghost_find(s, found.columns[f], &hashes[0]);
        } else if (found.columns[f] == CS_NO_NAME) {
            r->miss[f] = n == 0 ? CS_MISS_NONE : CS_MISS_ABSENT;
        } else {
            uint32_t id = match_chain(s, &found, f, hashes, n, r);
            deepest = deepest == CS_INDEX_NONE ? id : deepest;
        }
        found.total += r->n_blocks[f];
    }
    if (!ids) /* a probe, by who is about to store: no reader has missed or found anything */
        return VC_OK;
    if (found.total > 0) {
        vc_status_t status = make_lease(s, &found, n_fid, r);
        if (status != VC_OK)
            return status;
    }
    if (!is_counted)
        return VC_OK;
    for (uint32_t f = 0; f < n_fid; f++)
        count_lookup(s, &found, &fids[f], f, n, r);
    cs_prefix_t *prefix =
        deepest == CS_INDEX_NONE ? NULL : cs_prefix_find(s, cs_index_entry(s->index, deepest)->prefix);
    if (prefix)
        prefix->hits++;
    return VC_OK;
}

static vc_status_t lookup(cs_store_t *s, const vc_digest_t *keyspace, const vc_digest_t *hashes, uint32_t n_hashes,
                          const cs_fidelity_t *fids, uint32_t n_fid, bool want_lease, bool is_counted,
                          cs_lookup_result_t *result_p, vc_err_t *err)
{
    cs_lookup_result_t r = {0};
    if (n_fid == 0 || n_fid > CS_MAX_FIDELITIES)
        return vc_err_set(err, VC_ERR_RANGE, "a lookup names 1 to %u fidelities, not %u", CS_MAX_FIDELITIES, n_fid);
    if (n_hashes > CS_INDEX_MAX_BLOCKS)
        return vc_err_set(err, VC_ERR_RANGE, "a chain has at most %u blocks, not %u", CS_INDEX_MAX_BLOCKS, n_hashes);
    for (uint32_t f = 0; f < n_fid; f++) {
        if (fids[f].fidelity != VC_FIDELITY_FULL && fids[f].fidelity != VC_FIDELITY_COMPRESSED)
            return vc_err_set(err, VC_ERR_INVALID, "fidelity %u is not known", fids[f].fidelity);
    }
    /* Before the lock: memory for what may be found, and the token of its lease. */
    uint32_t *ids = want_lease ? vc_alloc(sizeof(*ids) * n_fid * (n_hashes + 1u)) : NULL;
    if (want_lease && !ids)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a lease");
    if (want_lease)
        randombytes_buf(&r.token, sizeof(r.token));
    cs_lock(s);
    vc_status_t status = lookup_locked(s, keyspace, hashes, n_hashes, fids, n_fid, ids, is_counted, &r);
    cs_unlock(s);
    vc_free(ids);
    if (status == VC_ERR_BUSY)
        return vc_err_set(err, status, "all %u leases are out", s->leases.n);
    if (status != VC_OK)
        return vc_err_set(err, status, "no memory for a lease");
    *result_p = r;
    return VC_OK;
}

vc_status_t cs_store_lookup(cs_store_t *s, const vc_digest_t *keyspace, const vc_digest_t *hashes, uint32_t n_hashes,
                            const cs_fidelity_t *fids, uint32_t n_fid, bool want_lease, cs_lookup_result_t *result_p,
                            vc_err_t *err)
{
    return lookup(s, keyspace, hashes, n_hashes, fids, n_fid, want_lease, true, result_p, err);
}

/* ---- by tip ---- */

/* From the tip to block 0 by parents. *n_p is 0 when the tip or one of them is not in the column. Locked. */
static vc_status_t walk_back(cs_store_t *s, const vc_digest_t *keyspace, uint16_t column, const vc_digest_t *tip,
                             uint32_t most, vc_digest_t **hashes_p, uint32_t *n_p)
{
    uint16_t ks = cs_keyspace_find(s, keyspace);
    uint32_t id = column == CS_NO_NAME ? CS_INDEX_NONE : cs_index_find(s->index, column, tip);
    *hashes_p = NULL;
    *n_p = 0;
    if (id == CS_INDEX_NONE || ks == CS_NO_NAME || cs_index_entry(s->index, id)->keyspace != ks)
        return VC_OK;
    uint32_t n = (uint32_t)cs_index_entry(s->index, id)->block_index + 1;
    if (n > most)
        return VC_ERR_RANGE;
    vc_digest_t *hashes = vc_calloc(n, sizeof(*hashes));
    if (!hashes)
        return VC_ERR_NOMEM;
    uint32_t b = n;
    for (; b > 0 && id != CS_INDEX_NONE && cs_index_entry(s->index, id)->block_index == b - 1; b--) {
        hashes[b - 1] = cs_index_entry(s->index, id)->hash;
        id = cs_index_parent(s->index, id);
    }
    if (b > 0) {
        vc_free(hashes);
        return VC_OK;
    }
    *hashes_p = hashes;
    *n_p = n;
    return VC_OK;
}

vc_status_t cs_store_lookup_tip(cs_store_t *s, const vc_digest_t *keyspace, const vc_digest_t *tip,
                                uint32_t most_blocks, const cs_fidelity_t *fids, uint32_t n_fid, bool want_lease,
                                vc_digest_t **hashes_p, uint32_t *n_hashes_p, cs_lookup_result_t *result_p,
                                vc_err_t *err)
{
    vc_digest_t *hashes;
    uint32_t n;
    if (n_fid == 0)
        return vc_err_set(err, VC_ERR_RANGE, "a lookup names 1 to %u fidelities, not 0", CS_MAX_FIDELITIES);
    cs_lock(s);
    vc_status_t status =
        walk_back(s, keyspace, cs_column_find(s, fids[0].fidelity, &fids[0].spec), tip, most_blocks, &hashes, &n);
    cs_unlock(s);
    if (status != VC_OK)
        return status == VC_ERR_RANGE ? vc_err_set(err, status, "the chain is longer than %u blocks", most_blocks)
                                      : vc_err_set(err, status, "no memory for the hashes of a chain");
    status = lookup(s, keyspace, hashes, n, fids, n_fid, want_lease, false, result_p, err);
    if (status != VC_OK) {
        vc_free(hashes);
        return status;
    }
    *hashes_p = hashes;
    *n_hashes_p = n;
    return VC_OK;
}

/* ---- near misses ---- */

const char *cs_store_near_miss(cs_store_t *s, const vc_keyspace_t *ks)
{
    const char *field = NULL;
    cs_lock(s);
    for (uint32_t i = 0; i < s->n_keyspaces && !field; i++) {
        const cs_keyspace_slot_t *slot = &s->keyspaces[i];
        if (slot->is_used && slot->objects)
            field = vc_keyspace_near(&slot->ks, ks);
    }
    cs_unlock(s);
    return field;
}

/* ---- leases ---- */

static vc_status_t get_lease(cs_store_t *s, uint64_t boot_id, uint64_t lease_id, const cs_token_t *token,
                             cs_lease_t **lease_p)
{
    cs_lease_t *lease = boot_id == s->boot_id ? cs_table_get(&s->leases, lease_id) : NULL;
    if (!lease || cs_now_us(s) >= lease->expires_us) {
        s->stats.stale_leases++;
        return VC_ERR_STALE;
    }
    if (sodium_memcmp(&lease->token, token, sizeof(*token)) != 0)
        return VC_ERR_PERM;
    *lease_p = lease;
    return VC_OK;
}

vc_status_t cs_store_lease_renew(cs_store_t *s, uint64_t boot_id, uint64_t lease_id, const cs_token_t *token,
                                 uint32_t lease_ms, uint64_t *expires_us_p)
{
    cs_lease_t *lease;
    cs_lock(s);
    vc_status_t status = get_lease(s, boot_id, lease_id, token, &lease);
    if (status == VC_OK) {
        /* 0: the default. Bounded, so that a client cannot pin its objects for ever with one call. */
        uint64_t ms = lease_ms ? VC_MIN(lease_ms, 10 * 60 * 1000u) : s->opts.lease_ms;
        lease->expires_us = cs_now_us(s) + ms * 1000;
        if (expires_us_p)
            *expires_us_p = lease->expires_us;
    }
    cs_unlock(s);
    return status;
}

vc_status_t cs_store_lease_release(cs_store_t *s, uint64_t boot_id, uint64_t lease_id, const cs_token_t *token)
{
    cs_lease_t *lease;
    cs_lock(s);
    vc_status_t status = get_lease(s, boot_id, lease_id, token, &lease);
    if (status == VC_OK)
        cs_lease_free(s, lease);
    cs_unlock(s);
    return status;
}

/* ---- pins ---- */

void cs_pin_entry(cs_store_t *s, uint32_t id, cs_pin_t *pin_p)
{
    const cs_entry_t *entry = cs_index_entry(s->index, id);
    cs_segment_t *segment = s->segments[entry->segment];
    segment->pins++;
    (void)cs_hold_entry(s, id);
    *pin_p = (cs_pin_t){.segment = entry->segment,
                        .version = segment->version,
                        .offset = (uint64_t)entry->page * 4096,
                        .bytes = entry->pages * 4096,
                        .header_crc = entry->header_crc,
                        .cookie = id};
    cs_entry_key(s, entry, &pin_p->key);
}

static void pin_leased(cs_store_t *s, uint32_t id, uint64_t lease_id, uint32_t fid, uint32_t block, cs_pin_t *pin_p)
{
    cs_pin_entry(s, id, pin_p);
    pin_p->lease_id = lease_id;
    pin_p->fid = fid;
    pin_p->block = block;
}

vc_status_t cs_store_pin_leased(cs_store_t *s, uint64_t boot_id, uint64_t lease_id, const cs_token_t *token,
                                uint32_t fid, uint32_t block, cs_pin_t *pin_p)
{
    cs_lease_t *lease;
    cs_lock(s);
    vc_status_t status = get_lease(s, boot_id, lease_id, token, &lease);
    if (status == VC_OK && (fid >= CS_MAX_FIDELITIES || block >= lease->n[fid]))
        status = VC_ERR_RANGE;
    if (status == VC_OK) {
        uint32_t id = lease->holds[lease->first[fid] + block].entry;
        if (cs_index_entry(s->index, id)->pages > 0)
            pin_leased(s, id, lease->id, fid, block, pin_p);
        else
            status = VC_ERR_NOT_FOUND;
    }
    /* A lease in use lives on: a fetch over a slow link takes longer than the default life. */
    if (status == VC_OK)
        lease->expires_us = VC_MAX(lease->expires_us, cs_now_us(s) + (uint64_t)s->opts.lease_ms * 1000);
    cs_unlock(s);
    return status;
}

vc_status_t cs_store_pin_key(cs_store_t *s, const vc_object_key_t *key, cs_pin_t *pin_p)
{
    cs_lock(s);
    uint16_t column = cs_column_find(s, key->fidelity, &key->spec);
    uint32_t id = column == CS_NO_NAME ? CS_INDEX_NONE : cs_index_find(s->index, column, &key->hash);
    if (id != CS_INDEX_NONE)
        cs_pin_entry(s, id, pin_p);
    cs_unlock(s);
    return id == CS_INDEX_NONE ? VC_ERR_NOT_FOUND : VC_OK;
}

void cs_store_unpin(cs_store_t *s, const cs_pin_t *pin)
{
    cs_hold_t hold = {.entry = (uint32_t)pin->cookie, .pages = pin->bytes / 4096};
    cs_lock(s);
    cs_segment_t *segment = s->segments[pin->segment];
    if (--segment->pins == 0 && segment->state == CS_SEGMENT_RETIRED)
        cs_room_wanted(s);
    cs_hold_release(s, &hold);
    cs_unlock(s);
}
