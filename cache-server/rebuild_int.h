/* Inside of the rebuild: rebuild.c (the steps), rebuild_walk.c (segments to rows), rebuild_chain.c (rows to prefixes).
 */
#ifndef CS_REBUILD_INT_H
#define CS_REBUILD_INT_H

#include "catalog.h"
#include "rebuild.h"
#include "segment.h"

typedef struct rebuild_head { /* first tokens of a chain, of its block 0 */
    uint32_t n, tokens[CS_HEAD_TOKENS];
} rebuild_head_t;

typedef struct rebuild {
    cs_object_row_t *rows;
    vc_digest_t *parents; /* [n_rows] */
    uint32_t n_rows, cap_rows;
    cs_segment_row_t *segments;
    uint32_t n_segments, cap_segments;
    struct rebuild_ks {
        vc_digest_t id;
        vc_keyspace_t ks;
        uint32_t objects;
    } * keyspaces;
    uint32_t n_keyspaces, cap_keyspaces;
    cs_prefix_row_t *prefixes;
    uint32_t n_prefixes, cap_prefixes;
    rebuild_head_t *heads; /* of the rows of block 0, by row.prefix - 1 until the chains are made */
    uint32_t n_heads, cap_heads;
    vc_object_key_t *pins; /* of the old catalog */
    uint32_t n_pins, cap_pins;
    uint64_t generation;
    uint32_t stored_s;
    vc_status_t status; /* NOMEM: something did not fit */
    cs_rebuild_report_t report;
} rebuild_t;

/* Makes room for one more item; false: no memory. */
bool rebuild_grow(void **items, uint32_t *cap, uint32_t n, size_t item_bytes);
struct rebuild_ks *rebuild_find_keyspace(const rebuild_t *r, const vc_digest_t *id);
void rebuild_add_keyspace(rebuild_t *r, const vc_digest_t *id, const vc_keyspace_t *ks);
/* Rows of every whole record in the file. */
void rebuild_walk(rebuild_t *r, const cs_segment_t *segment, uint32_t version);
/* Sorts the rows by block index and puts every one into a prefix. */
vc_status_t rebuild_chains(rebuild_t *r);

#endif
