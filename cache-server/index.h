/*
 * The in-memory index: object key to place. Answers every lookup; RocksDB (catalog.h) is its durable shadow.
 * Entries live in chunks and never move; their number (id) is stable until removal. An open-addressing table of ids,
 * hashed with a secret key so that nobody can aim at one chain of slots, finds them. 80 bytes an entry and at most
 * 10.7 bytes of table: under 96 bytes an object.
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
    uint32_t parent_fp[2]; /* first 8 bytes of the parent's hash; a hint for the policy only */
    uint32_t segment;
    uint32_t page;  /* offset / 4096 */
    uint32_t pages; /* record bytes / 4096; 0: the entry is unused */
    uint32_t header_crc;
    uint32_t prefix; /* registration it came with */
    uint32_t seg_next, seg_prev;
    uint32_t used_s; /* last use, seconds of the store's clock */
    uint16_t freq;   /* evict.h */
    uint16_t column; /* (fidelity, spec), numbered by the store */
    uint16_t keyspace;
    uint16_t block_index;
} cs_entry_t;
_Static_assert(sizeof(cs_entry_t) == 80, "memory per object is a promise");

vc_status_t cs_index_create(cs_index_t **index_p);
void cs_index_destroy(cs_index_t *index);
/* CS_INDEX_NONE when absent. */
uint32_t cs_index_find(const cs_index_t *index, uint16_t column, const vc_digest_t *hash);
/* The entry of the parent in the same column and keyspace. */
uint32_t cs_index_find_parent(const cs_index_t *index, const cs_entry_t *entry);
cs_entry_t *cs_index_entry(const cs_index_t *index, uint32_t id);
/* Room for n more, so that the next n inserts cannot fail. NOMEM changes nothing. */
vc_status_t cs_index_reserve(cs_index_t *index, uint32_t n);
/* The key must be absent and room reserved. Returns the id. */
uint32_t cs_index_insert(cs_index_t *index, const cs_entry_t *entry);
void cs_index_remove(cs_index_t *index, uint32_t id);
/* Removes everything, keeps the memory. */
void cs_index_clear(cs_index_t *index);
uint32_t cs_index_count(const cs_index_t *index);
uint32_t cs_index_limit(const cs_index_t *index); /* every id is below */
size_t cs_index_memory_bytes(const cs_index_t *index);
/* orphan[id] = 1 for each entry whose chain of parents has a hole. orphan has cs_index_limit bytes. */
void cs_index_mark_orphans(const cs_index_t *index, uint8_t *orphan);

/* Lists of the entries of one segment, threaded through the entries; *head_p is the first id or CS_INDEX_NONE. */
void cs_index_link(cs_index_t *index, uint32_t id, uint32_t *head_p);
void cs_index_unlink(cs_index_t *index, uint32_t id, uint32_t *head_p);

#endif
