/*
 * The in-memory index: object key to place. Answers every lookup; RocksDB (catalog.h) is its durable shadow.
 * Entries live in chunks and never move; their number (id) is stable until removal, and beyond it while somebody holds
 * the entry. An open-addressing table of ids, hashed with a secret key so that nobody can aim at one chain of slots,
 * finds them: at most 10.7 bytes an entry.
 *
 * Entries know their parent and their children in the same column and keyspace, so that the blocks which an eviction
 * orphans are found without a search. An entry whose parent is not there remembers eight bytes of its hash instead.
 *
 * Not thread-safe: the store's lock guards it.
 */
#ifndef CS_INDEX_H
#define CS_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vc/keyspace.h"
#include "vc/status.h"

typedef struct cs_index cs_index_t;

#define CS_INDEX_NONE UINT32_MAX
#define CS_INDEX_MAX_BLOCKS 65535u /* block_index has 16 bits */

typedef struct cs_entry {
    vc_digest_t hash;
    uint32_t header_crc;
    uint32_t prefix; /* registration it came with */
    uint32_t seg_next, seg_prev;
    uint32_t parent, child; /* linked parent; first of the linked children */
    uint32_t link[2];       /* linked: next and previous child of the same parent; else first 8 bytes of its hash */
    uint64_t segment : 20, page : 17 /* offset / 4096 */, block_index : 16, is_kept : 1 /* never evicted */;
    uint64_t pages : 17 /* record bytes / 4096; 0: unused, or removed and still held */, holds : 20, column : 12,
        keyspace : 12; /* column: (fidelity, spec); both numbered by the store */
} cs_entry_t;
_Static_assert(sizeof(cs_entry_t) == 80, "memory per object is a promise");
#define CS_INDEX_MAX_PAGES ((uint32_t)1 << 17) /* of a segment */
#define CS_INDEX_MAX_HOLDS (((uint32_t)1 << 20) - 1)

static inline void cs_entry_set_place(cs_entry_t *entry, uint32_t segment, uint32_t page, uint32_t pages)
{
    entry->segment = segment & 0xfffff;
    entry->page = page & (CS_INDEX_MAX_PAGES - 1);
    entry->pages = pages & (CS_INDEX_MAX_PAGES - 1);
}

static inline void cs_entry_set_names(cs_entry_t *entry, uint32_t column, uint32_t keyspace)
{
    entry->column = column & 0xfffu;
    entry->keyspace = keyspace & 0xfffu;
}

vc_status_t cs_index_create(cs_index_t **index_p);
void cs_index_destroy(cs_index_t *index);
/* CS_INDEX_NONE when absent. */
uint32_t cs_index_find(const cs_index_t *index, uint16_t column, const vc_digest_t *hash);
/* The entry of the parent, linking it when it came after its child. CS_INDEX_NONE for block 0, and when absent. */
uint32_t cs_index_parent(cs_index_t *index, uint32_t id);
/* First 8 bytes of the parent's hash. */
void cs_index_parent_fp(const cs_index_t *index, uint32_t id, void *fp8);
cs_entry_t *cs_index_entry(const cs_index_t *index, uint32_t id);
/* Room for n more, so that the next n inserts cannot fail. NOMEM changes nothing. */
vc_status_t cs_index_reserve(cs_index_t *index, uint32_t n);
/* The key must be absent and room reserved; link holds the parent's bytes. Returns the id. */
uint32_t cs_index_insert(cs_index_t *index, const cs_entry_t *entry);
/* A held entry keeps its id, with pages 0, until the last hold is gone. */
void cs_index_remove(cs_index_t *index, uint32_t id);
/* Leases, uploads and readers together stay far below CS_INDEX_MAX_HOLDS (their tables are bounded). */
void cs_index_hold(cs_index_t *index, uint32_t id);
void cs_index_unhold(cs_index_t *index, uint32_t id);
/* Removes everything, keeps the memory. */
void cs_index_clear(cs_index_t *index);
uint32_t cs_index_count(const cs_index_t *index);
uint32_t cs_index_limit(const cs_index_t *index); /* every id is below */
size_t cs_index_memory_bytes(const cs_index_t *index);

/* Lists of the entries of one segment, threaded through the entries; *head_p is the first id or CS_INDEX_NONE. */
void cs_index_link(cs_index_t *index, uint32_t id, uint32_t *head_p);
void cs_index_unlink(cs_index_t *index, uint32_t id, uint32_t *head_p);

#endif
