/*
 * Open addressing with linear probing and backward-shift deletion: no tombstones, so a table that sees inserts and
 * removals for years probes as short as a new one. Grows at 3/4 full.
 */
#include "index.h"

#include <assert.h>
#include <sodium.h>
#include <string.h>

#include "vc/mem.h"

#define CHUNK_ENTRIES 1024u
#define MIN_SLOTS 1024u

struct cs_index {
    cs_entry_t **chunks;
    uint32_t n_chunks, cap_chunks;
    uint32_t count, n_removed, limit; /* n_removed: and still held */
    uint32_t free_list;               /* through seg_next */
    uint32_t *slots;                  /* id + 1; 0 is empty */
    uint32_t n_slots;                 /* power of two */
    uint8_t secret[crypto_shorthash_KEYBYTES];
};

vc_status_t cs_index_create(cs_index_t **index_p)
{
    if (sodium_init() < 0)
        return VC_ERR_INTERNAL;
    cs_index_t *index = vc_calloc(1, sizeof(*index));
    if (!index)
        return VC_ERR_NOMEM;
    index->slots = vc_calloc(MIN_SLOTS, sizeof(uint32_t));
    if (!index->slots) {
        vc_free(index);
        return VC_ERR_NOMEM;
    }
    index->n_slots = MIN_SLOTS;
    index->free_list = CS_INDEX_NONE;
    crypto_shorthash_keygen(index->secret);
    *index_p = index;
    return VC_OK;
}

void cs_index_destroy(cs_index_t *index)
{
    if (!index)
        return;
    for (uint32_t i = 0; i < index->n_chunks; i++)
        vc_free(index->chunks[i]);
    vc_free(index->chunks);
    vc_free(index->slots);
    vc_free(index);
}

cs_entry_t *cs_index_entry(const cs_index_t *index, uint32_t id)
{
    return &index->chunks[id / CHUNK_ENTRIES][id % CHUNK_ENTRIES];
}

static uint32_t home(const cs_index_t *index, uint16_t column, const void *hash8)
{
    uint8_t key[10], sum[crypto_shorthash_BYTES];
    uint32_t h;
    memcpy(key, &column, 2);
    memcpy(key + 2, hash8, 8);
    crypto_shorthash(sum, key, sizeof(key), index->secret);
    memcpy(&h, sum, 4);
    return h & (index->n_slots - 1);
}

uint32_t cs_index_find(const cs_index_t *index, uint16_t column, const vc_digest_t *hash)
{
    for (uint32_t i = home(index, column, hash->b); index->slots[i]; i = (i + 1) & (index->n_slots - 1)) {
        uint32_t id = index->slots[i] - 1;
        const cs_entry_t *entry = cs_index_entry(index, id);
        if (entry->column == column && memcmp(&entry->hash, hash, sizeof(*hash)) == 0)
            return id;
    }
    return CS_INDEX_NONE;
}

static uint32_t find_parent(const cs_index_t *index, const cs_entry_t *child)
{
    for (uint32_t i = home(index, child->column, child->link); index->slots[i]; i = (i + 1) & (index->n_slots - 1)) {
        uint32_t id = index->slots[i] - 1;
        const cs_entry_t *entry = cs_index_entry(index, id);
        /* The position makes a loop of parents, which damaged rows could spell, impossible. */
        if (entry->column == child->column && entry->keyspace == child->keyspace &&
            entry->block_index + 1u == child->block_index && memcmp(entry->hash.b, child->link, 8) == 0)
            return id;
    }
    return CS_INDEX_NONE;
}

static void place(cs_index_t *index, uint32_t id)
{
    const cs_entry_t *entry = cs_index_entry(index, id);
    uint32_t i = home(index, entry->column, entry->hash.b);
    while (index->slots[i])
        i = (i + 1) & (index->n_slots - 1);
    index->slots[i] = id + 1;
}

static vc_status_t grow_slots(cs_index_t *index, uint64_t n_entries)
{
    uint64_t n_slots = index->n_slots;
    while (n_slots * 3 / 4 < n_entries)
        n_slots *= 2;
    if (n_slots == index->n_slots)
        return VC_OK;
    uint32_t *slots = n_slots <= UINT32_MAX / 2 ? vc_calloc(n_slots, sizeof(uint32_t)) : NULL;
    if (!slots)
        return VC_ERR_NOMEM;
    vc_free(index->slots);
    index->slots = slots;
    index->n_slots = (uint32_t)n_slots;
    for (uint32_t id = 0; id < index->limit; id++) {
        if (cs_index_entry(index, id)->pages)
            place(index, id);
    }
    return VC_OK;
}

static vc_status_t add_chunk(cs_index_t *index)
{
    if (index->n_chunks == index->cap_chunks) {
        uint32_t cap = index->cap_chunks ? index->cap_chunks * 2 : 16;
        cs_entry_t **chunks = vc_realloc(index->chunks, cap, sizeof(*chunks));
        if (!chunks)
            return VC_ERR_NOMEM;
        index->chunks = chunks;
        index->cap_chunks = cap;
    }
    cs_entry_t *chunk = vc_calloc(CHUNK_ENTRIES, sizeof(*chunk));
    if (!chunk)
        return VC_ERR_NOMEM;
    index->chunks[index->n_chunks++] = chunk;
    return VC_OK;
}

vc_status_t cs_index_reserve(cs_index_t *index, uint32_t n)
{
    uint64_t need = (uint64_t)index->count + index->n_removed + n;
    if (need >= UINT32_MAX / 2)
        return VC_ERR_NOMEM;
    while ((uint64_t)index->n_chunks * CHUNK_ENTRIES < need) {
        if (add_chunk(index) != VC_OK)
            return VC_ERR_NOMEM;
    }
    return grow_slots(index, (uint64_t)index->count + n);
}

/* ---- parents ---- */

static void link_parent(cs_index_t *index, uint32_t id, uint32_t parent)
{
    cs_entry_t *entry = cs_index_entry(index, id), *above = cs_index_entry(index, parent);
    entry->parent = parent;
    entry->link[0] = above->child;
    entry->link[1] = CS_INDEX_NONE;
    if (above->child != CS_INDEX_NONE)
        cs_index_entry(index, above->child)->link[1] = id;
    above->child = id;
}

/* Back to the bytes of the parent's hash. */
static void unlink_parent(cs_index_t *index, uint32_t id)
{
    cs_entry_t *entry = cs_index_entry(index, id);
    if (entry->parent == CS_INDEX_NONE)
        return;
    cs_entry_t *above = cs_index_entry(index, entry->parent);
    if (entry->link[0] != CS_INDEX_NONE)
        cs_index_entry(index, entry->link[0])->link[1] = entry->link[1];
    if (entry->link[1] != CS_INDEX_NONE)
        cs_index_entry(index, entry->link[1])->link[0] = entry->link[0];
    else
        above->child = entry->link[0];
    memcpy(entry->link, above->hash.b, sizeof(entry->link));
    entry->parent = CS_INDEX_NONE;
}

uint32_t cs_index_parent(cs_index_t *index, uint32_t id)
{
    cs_entry_t *entry = cs_index_entry(index, id);
    if (entry->parent == CS_INDEX_NONE && entry->block_index > 0) {
        uint32_t parent = find_parent(index, entry);
        if (parent != CS_INDEX_NONE)
            link_parent(index, id, parent);
    }
    return entry->parent;
}

void cs_index_parent_fp(const cs_index_t *index, uint32_t id, void *fp8)
{
    const cs_entry_t *entry = cs_index_entry(index, id);
    memcpy(fp8,
           entry->parent == CS_INDEX_NONE ? (const void *)entry->link : cs_index_entry(index, entry->parent)->hash.b,
           sizeof(entry->link));
}

/* ---- entries ---- */

uint32_t cs_index_insert(cs_index_t *index, const cs_entry_t *entry)
{
    uint32_t id = index->free_list;
    if (id != CS_INDEX_NONE)
        index->free_list = cs_index_entry(index, id)->seg_next;
    else
        id = index->limit++;
    cs_entry_t *slot = cs_index_entry(index, id);
    *slot = *entry;
    slot->seg_next = slot->seg_prev = slot->parent = slot->child = CS_INDEX_NONE;
    slot->holds = 0;
    index->count++;
    place(index, id);
    (void)cs_index_parent(index, id);
    return id;
}

static uint32_t slot_of(const cs_index_t *index, uint32_t id)
{
    const cs_entry_t *entry = cs_index_entry(index, id);
    uint32_t i = home(index, entry->column, entry->hash.b);
    while (index->slots[i] != id + 1)
        i = (i + 1) & (index->n_slots - 1);
    return i;
}

/* Moves later entries of the run back into the hole, so that no probe meets a gap before its entry. */
static void close_hole(cs_index_t *index, uint32_t hole)
{
    uint32_t mask = index->n_slots - 1;
    for (uint32_t i = (hole + 1) & mask; index->slots[i]; i = (i + 1) & mask) {
        const cs_entry_t *entry = cs_index_entry(index, index->slots[i] - 1);
        uint32_t start = home(index, entry->column, entry->hash.b);
        if (((i - start) & mask) >= ((i - hole) & mask)) {
            index->slots[hole] = index->slots[i];
            hole = i;
        }
    }
    index->slots[hole] = 0;
}

static void free_id(cs_index_t *index, uint32_t id)
{
    cs_entry_t *entry = cs_index_entry(index, id);
    memset(entry, 0, sizeof(*entry));
    entry->seg_next = index->free_list;
    index->free_list = id;
}

void cs_index_remove(cs_index_t *index, uint32_t id)
{
    cs_entry_t *entry = cs_index_entry(index, id);
    close_hole(index, slot_of(index, id));
    unlink_parent(index, id);
    while (entry->child != CS_INDEX_NONE)
        unlink_parent(index, entry->child);
    index->count--;
    entry->pages = 0;
    if (entry->holds > 0)
        index->n_removed++;
    else
        free_id(index, id);
}

void cs_index_hold(cs_index_t *index, uint32_t id)
{
    cs_entry_t *entry = cs_index_entry(index, id);
    assert(entry->holds < CS_INDEX_MAX_HOLDS);
    entry->holds++;
}

void cs_index_unhold(cs_index_t *index, uint32_t id)
{
    cs_entry_t *entry = cs_index_entry(index, id);
    if (--entry->holds > 0 || entry->pages > 0)
        return;
    index->n_removed--;
    free_id(index, id);
}

void cs_index_clear(cs_index_t *index)
{
    memset(index->slots, 0, index->n_slots * sizeof(uint32_t));
    for (uint32_t i = 0; i < index->n_chunks; i++)
        memset(index->chunks[i], 0, CHUNK_ENTRIES * sizeof(cs_entry_t));
    index->count = index->n_removed = index->limit = 0;
    index->free_list = CS_INDEX_NONE;
}

uint32_t cs_index_count(const cs_index_t *index) { return index->count; }

uint32_t cs_index_limit(const cs_index_t *index) { return index->limit; }

size_t cs_index_memory_bytes(const cs_index_t *index)
{
    return sizeof(*index) + (size_t)index->n_chunks * CHUNK_ENTRIES * sizeof(cs_entry_t) +
           index->cap_chunks * sizeof(cs_entry_t *) + index->n_slots * sizeof(uint32_t);
}

void cs_index_link(cs_index_t *index, uint32_t id, uint32_t *head_p)
{
    cs_entry_t *entry = cs_index_entry(index, id);
    entry->seg_prev = CS_INDEX_NONE;
    entry->seg_next = *head_p;
    if (*head_p != CS_INDEX_NONE)
        cs_index_entry(index, *head_p)->seg_prev = id;
    *head_p = id;
}

void cs_index_unlink(cs_index_t *index, uint32_t id, uint32_t *head_p)
{
    cs_entry_t *entry = cs_index_entry(index, id);
    if (entry->seg_prev != CS_INDEX_NONE)
        cs_index_entry(index, entry->seg_prev)->seg_next = entry->seg_next;
    else
        *head_p = entry->seg_next;
    if (entry->seg_next != CS_INDEX_NONE)
        cs_index_entry(index, entry->seg_next)->seg_prev = entry->seg_prev;
    entry->seg_next = entry->seg_prev = CS_INDEX_NONE;
}
