/*
 * Names inside the store: keyspaces and (fidelity, spec) columns get small numbers so that an index entry stays small;
 * prefixes are registrations shown to people; ghosts remember why an object is gone. Entering and leaving the index is
 * here too, since it touches all of them. Everything runs under the store's lock.
 */
#include <string.h>

#include "store_int.h"
#include "vc/bytes.h"
#include "vc/mem.h"

uint16_t cs_keyspace_find(const cs_store_t *s, const vc_digest_t *id)
{
    for (uint32_t i = 0; i < s->n_keyspaces; i++) {
        if (s->keyspaces[i].is_used && memcmp(&s->keyspaces[i].id, id, sizeof(*id)) == 0)
            return (uint16_t)i;
    }
    return CS_NO_NAME;
}

/* A slot that names nothing and was never stored (its uploads were abandoned) is used again at once, so that the table
 * stays as short as what is registered; one whose objects are all gone only when the table is full. */
static uint32_t keyspace_slot(const cs_store_t *s)
{
    uint32_t emptied = CS_MAX_KEYSPACES;
    for (uint32_t i = 0; i < s->n_keyspaces; i++) {
        const cs_keyspace_slot_t *slot = &s->keyspaces[i];
        if (slot->objects || slot->uploads)
            continue;
        if (!slot->is_stored)
            return i;
        emptied = i;
    }
    return s->n_keyspaces < CS_MAX_KEYSPACES ? s->n_keyspaces : emptied;
}

uint16_t cs_keyspace_add(cs_store_t *s, const vc_digest_t *id, const vc_keyspace_t *ks)
{
    uint16_t found = cs_keyspace_find(s, id);
    if (found != CS_NO_NAME)
        return found;
    uint32_t i = keyspace_slot(s);
    if (i == CS_MAX_KEYSPACES)
        return CS_NO_NAME;
    s->n_keyspaces = VC_MAX(s->n_keyspaces, i + 1);
    cs_keyspace_slot_t *slot = &s->keyspaces[i];
    if (slot->is_used)
        cs_tenant_leave(s, slot->tenant);
    cs_keyspace_slot_t fresh = {
        .id = *id, .ks = *ks, .is_used = true, .has_old = slot->has_old, .old_id = slot->old_id};
    if (slot->is_stored) {
        fresh.has_old = true; /* its row goes when the new one is written */
        fresh.old_id = slot->id;
    }
    *slot = fresh;
    slot->tenant = cs_tenant_join(s, ks);
    return (uint16_t)i;
}

uint16_t cs_column_find(const cs_store_t *s, uint8_t fidelity, const vc_spec_id_t *spec)
{
    for (uint32_t i = 0; i < s->n_columns; i++) {
        const cs_column_slot_t *column = &s->columns[i];
        if (column->is_used && column->fid.fidelity == fidelity && memcmp(&column->fid.spec, spec, sizeof(*spec)) == 0)
            return (uint16_t)i;
    }
    return CS_NO_NAME;
}

/* Columns are in no row of their own: an unused slot is free at once. */
uint16_t cs_column_add(cs_store_t *s, uint8_t fidelity, const vc_spec_id_t *spec)
{
    uint16_t found = cs_column_find(s, fidelity, spec);
    uint32_t i = 0;
    if (found != CS_NO_NAME)
        return found;
    while (i < s->n_columns && (s->columns[i].objects || s->columns[i].uploads))
        i++;
    if (i == CS_MAX_COLUMNS)
        return CS_NO_NAME;
    s->n_columns = VC_MAX(s->n_columns, i + 1);
    s->columns[i] = (cs_column_slot_t){.fid = {fidelity, *spec}, .is_used = true};
    return (uint16_t)i;
}

/* ---- prefixes: an array, and a table of positions by id ---- */

static uint32_t prefix_slot(const cs_store_t *s, uint32_t id)
{
    uint32_t mask = s->n_prefix_slots - 1;
    uint32_t i = (id * 2654435761u) & mask; /* ids count up; the multiplication spreads them */
    while (s->prefix_slots[i] && s->prefixes[s->prefix_slots[i] - 1].id != id)
        i = (i + 1) & mask;
    return i;
}

cs_prefix_t *cs_prefix_find(const cs_store_t *s, uint32_t id)
{
    if (!s->n_prefix_slots || id == 0)
        return NULL;
    uint32_t position = s->prefix_slots[prefix_slot(s, id)];
    return position ? &s->prefixes[position - 1] : NULL;
}

static bool rebuild_prefix_slots(cs_store_t *s, uint32_t n_slots)
{
    uint32_t *slots = vc_calloc(n_slots, sizeof(*slots));
    if (!slots)
        return false;
    vc_free(s->prefix_slots);
    s->prefix_slots = slots;
    s->n_prefix_slots = n_slots;
    for (uint32_t i = 0; i < s->n_prefixes; i++)
        s->prefix_slots[prefix_slot(s, s->prefixes[i].id)] = i + 1;
    return true;
}

cs_prefix_t *cs_prefix_add(cs_store_t *s, uint32_t id)
{
    if (s->n_prefixes == s->cap_prefixes) {
        uint32_t cap = s->cap_prefixes ? s->cap_prefixes * 2 : 64;
        cs_prefix_t *prefixes = vc_realloc(s->prefixes, cap, sizeof(*prefixes));
        if (!prefixes)
            return NULL;
        s->prefixes = prefixes;
        s->cap_prefixes = cap;
    }
    if (s->n_prefix_slots < 2 * (s->n_prefixes + 1) &&
        !rebuild_prefix_slots(s, s->n_prefix_slots ? s->n_prefix_slots * 2 : 256))
        return NULL;
    cs_prefix_t *prefix = &s->prefixes[s->n_prefixes++];
    *prefix = (cs_prefix_t){.id = id};
    s->prefix_slots[prefix_slot(s, id)] = s->n_prefixes;
    if (id >= s->next_prefix_id)
        s->next_prefix_id = id + 1;
    return prefix;
}

static void remove_prefix_slot(cs_store_t *s, uint32_t hole)
{
    uint32_t mask = s->n_prefix_slots - 1;
    s->prefix_slots[hole] = 0;
    for (uint32_t i = (hole + 1) & mask; s->prefix_slots[i]; i = (i + 1) & mask) {
        uint32_t position = s->prefix_slots[i];
        s->prefix_slots[i] = 0; /* taken out and put back where its probe finds a gap first */
        s->prefix_slots[prefix_slot(s, s->prefixes[position - 1].id)] = position;
    }
}

void cs_prefix_release(cs_store_t *s, uint32_t id)
{
    cs_prefix_t *prefix = cs_prefix_find(s, id);
    if (!prefix || prefix->objects || prefix->uploads)
        return;
    if (s->n_dead_prefixes == s->cap_dead_prefixes) {
        uint32_t cap = s->cap_dead_prefixes ? s->cap_dead_prefixes * 2 : 64;
        uint32_t *dead = vc_realloc(s->dead_prefixes, cap, sizeof(*dead));
        if (dead) {
            s->dead_prefixes = dead;
            s->cap_dead_prefixes = cap;
        }
    }
    if (s->n_dead_prefixes < s->cap_dead_prefixes) /* else its row stays until the next start removes it */
        s->dead_prefixes[s->n_dead_prefixes++] = id;
    uint32_t position = (uint32_t)(prefix - s->prefixes);
    remove_prefix_slot(s, prefix_slot(s, id));
    uint32_t last = --s->n_prefixes;
    if (position != last) {
        uint32_t slot = prefix_slot(s, s->prefixes[last].id);
        s->prefixes[position] = s->prefixes[last];
        s->prefix_slots[slot] = position + 1;
    }
}

/* ---- ghosts: a direct-mapped table; an overwritten ghost turns "evicted" into "absent", no more ---- */

static uint64_t ghost_tag(uint16_t column, const vc_digest_t *hash)
{
    return (vc_le64(hash->b) ^ ((uint64_t)column << 48)) & ~(uint64_t)7;
}

void cs_ghost_add(cs_store_t *s, uint16_t column, const vc_digest_t *hash, cs_miss_t why)
{
    uint64_t tag = ghost_tag(column, hash);
    s->ghosts[(tag >> 3) & (CS_GHOSTS - 1)] = tag | (uint64_t)why;
}

cs_miss_t cs_ghost_find(const cs_store_t *s, uint16_t column, const vc_digest_t *hash)
{
    uint64_t tag = ghost_tag(column, hash);
    uint64_t ghost = s->ghosts[(tag >> 3) & (CS_GHOSTS - 1)];
    return ghost && (ghost & ~(uint64_t)7) == tag ? (cs_miss_t)(ghost & 7) : CS_MISS_ABSENT;
}

/* ---- entries ---- */

void cs_entry_key(const cs_store_t *s, const cs_entry_t *entry, vc_object_key_t *key_p)
{
    const cs_column_slot_t *column = &s->columns[entry->column];
    key_p->fidelity = column->fid.fidelity;
    key_p->spec = column->fid.spec;
    key_p->hash = entry->hash;
}

vc_status_t cs_entries_reserve(cs_store_t *s, uint32_t n)
{
    uint64_t limit = (uint64_t)cs_index_limit(s->index) + n;
    if (limit >= CS_POLICY_NONE || cs_policy_reserve(s->policy, (uint32_t)limit) != VC_OK)
        return VC_ERR_NOMEM;
    return cs_index_reserve(s->index, n);
}

/* The same after a restart, and mixed well: a hash of the key's hash and column. */
static uint64_t fingerprint(const cs_store_t *s, const cs_entry_t *entry)
{
    const cs_column_slot_t *column = &s->columns[entry->column];
    uint64_t x = vc_le64(entry->hash.b) ^ (vc_le64((const uint8_t *)&column->fid.spec) + column->fid.fidelity);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint32_t cs_entry_publish(cs_store_t *s, const cs_entry_t *entry)
{
    uint32_t id = cs_index_insert(s->index, entry);
    cs_segment_t *segment = s->segments[entry->segment];
    uint64_t bytes = (uint64_t)entry->pages * 4096;
    cs_index_link(s->index, id, &segment->first_entry);
    segment->live_bytes += bytes;
    segment->live_objects++;
    cs_segment_rank(s, segment);
    cs_policy_item_t item = {.fp = fingerprint(s, entry),
                             .bytes = (uint32_t)bytes,
                             .block_index = (uint32_t)entry->block_index,
                             .is_full_copy = s->columns[entry->column].fid.fidelity == VC_FIDELITY_FULL};
    cs_policy_insert(s->policy, id, &item, cs_now_s(s));
    cs_fid_stats_t *stats = cs_fid_stats(s, s->columns[entry->column].fid.fidelity);
    stats->objects++;
    stats->bytes += bytes;
    s->keyspaces[entry->keyspace].objects++;
    cs_tenant_count(s, (uint32_t)entry->keyspace, (int64_t)bytes, 0);
    s->columns[entry->column].objects++;
    cs_prefix_t *prefix = cs_prefix_find(s, entry->prefix);
    if (prefix) {
        prefix->objects++;
        prefix->bytes += bytes;
    }
    return id;
}

void cs_entry_drop(cs_store_t *s, uint32_t id, cs_miss_t why)
{
    const cs_entry_t entry = *cs_index_entry(s->index, id);
    cs_segment_t *segment = s->segments[entry.segment];
    uint64_t bytes = (uint64_t)entry.pages * 4096;
    vc_object_key_t key;
    cs_entry_key(s, &entry, &key);
    cs_ramtier_forget(s->opts.ram, &key); /* nobody finds it there any more */
    cs_policy_remove(s->policy, id, why == CS_MISS_EVICTED);
    if (entry.is_kept) {
        cs_pin_set(s, id, false);
        cs_pin_queue(s, &key, false);
    }
    for (uint32_t child = entry.child; child != CS_INDEX_NONE; child = cs_index_entry(s->index, child)->link[0])
        cs_policy_demote(s->policy, child); /* worth nothing without its parent; its own children follow when it goes */
    cs_index_unlink(s->index, id, &segment->first_entry);
    cs_index_remove(s->index, id);
    segment->live_bytes -= bytes;
    segment->live_objects--;
    cs_segment_rank(s, segment);
    cs_fid_stats_t *stats = cs_fid_stats(s, s->columns[entry.column].fid.fidelity);
    stats->objects--;
    stats->bytes -= bytes;
    s->keyspaces[entry.keyspace].objects--;
    cs_tenant_count(s, (uint32_t)entry.keyspace, -(int64_t)bytes, 0);
    s->columns[entry.column].objects--;
    cs_ghost_add(s, entry.column, &entry.hash, why);
    cs_prefix_t *prefix = cs_prefix_find(s, entry.prefix);
    if (prefix) {
        prefix->objects--;
        prefix->bytes -= bytes;
        cs_prefix_release(s, entry.prefix);
    }
}

void cs_queue_drop(cs_store_t *s, const vc_object_key_t *key)
{
    cs_drop_later(s, key);
    s->drops_due = true;
    pthread_cond_signal(&s->commit_work);
}

void cs_drop_later(cs_store_t *s, const vc_object_key_t *key)
{
    if (s->n_drops == s->cap_drops) {
        uint32_t cap = s->cap_drops ? s->cap_drops * 2 : 64;
        vc_object_key_t *drops = vc_realloc(s->drops, cap, sizeof(*drops));
        if (!drops)
            return; /* the row stays; the next start finds the record damaged again */
        s->drops = drops;
        s->cap_drops = cap;
    }
    s->drops[s->n_drops++] = *key;
}
