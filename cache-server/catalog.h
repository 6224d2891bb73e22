/*
 * The catalog: what exists, in RocksDB. One synced batch makes a commit visible or an eviction final. Read once, at
 * start; written by one thread at a time (the store's commit thread).
 *
 * Debian's RocksDB aborts the process when a WAL append fails. The caller checks that there is room before it writes.
 */
#ifndef CS_CATALOG_H
#define CS_CATALOG_H

#include <stdbool.h>
#include <stdint.h>

#include "vc/keyspace.h"
#include "vc/status.h"

typedef struct cs_catalog cs_catalog_t;

/* 2 added pins, uses, and the class in the rows of segments. 1 is read, and becomes 2 at the first start. */
#define CS_CATALOG_FORMAT 2u
#define CS_CATALOG_FORMAT_OLDEST 1u
/* What RocksDB may hold in unflushed WAL and memtables: the unit of every space reserve. */
#define CS_CATALOG_UNFLUSHED_BYTES ((uint64_t)8 << 20)
#define CS_HEAD_TOKENS 64u

typedef struct cs_object_row {
    vc_object_key_t key;
    vc_digest_t keyspace;
    uint32_t segment, version;
    uint64_t offset;
    uint32_t bytes, header_crc;
    uint32_t block_index, prefix;
    uint32_t stored_s; /* unix time of the commit or the last move, shown to people */
    uint8_t parent_fp[8];
} cs_object_row_t;

typedef struct cs_segment_row {
    uint32_t number, version;
    uint64_t bytes;
    bool is_survivors; /* of the class that cleaning fills */
} cs_segment_row_t;

/* What the policy remembers of the objects of one segment, written now and then. */
typedef struct cs_use {
    uint32_t page; /* of the record */
    uint16_t state;
} cs_use_t;

typedef struct cs_uses_row {
    uint32_t number, version; /* of the segment: another life's row says nothing */
    uint32_t n;
    const uint8_t *uses; /* encoded, by page; cs_uses_at */
} cs_uses_row_t;
cs_use_t cs_uses_at(const cs_uses_row_t *row, uint32_t i);

typedef struct cs_prefix_row {
    uint32_t id;
    vc_digest_t keyspace, tip;
    uint32_t n_blocks, n_head_tokens;
    uint32_t head_tokens[CS_HEAD_TOKENS];
} cs_prefix_row_t;

/* Opens data_dir/catalog; makes it where missing. readonly touches nothing and needs no space. UNSUPPORTED: written by
 * a newer format. NOT_FOUND: readonly and nothing there. */
vc_status_t cs_catalog_open(const char *data_dir, bool readonly, cs_catalog_t **catalog_p, vc_err_t *err);
/* Read-only without any trace: not even RocksDB's LOG is written. For checks of what is there. */
vc_status_t cs_catalog_open_offline(const char *data_dir, cs_catalog_t **catalog_p, vc_err_t *err);
/* UNSUPPORTED, with both versions in the sentence, when a newer program wrote the directory; nothing in it was touched.
 * OK in all other cases, a missing or damaged catalog included. */
vc_status_t cs_catalog_check_format(const char *data_dir, vc_err_t *err);
void cs_catalog_close(cs_catalog_t *catalog);
uint64_t cs_catalog_generation(const cs_catalog_t *catalog); /* as stored; 0 in a new one */
uint32_t cs_catalog_format(const cs_catalog_t *catalog);     /* likewise */
/* The names of the tables that the catalog reads, one call for each; a kill may leave others, half written. */
typedef void (*cs_catalog_table_fn)(void *arg, const char *name);
void cs_catalog_each_table(const cs_catalog_t *catalog, cs_catalog_table_fn fn, void *arg);

/* Every row of a kind. A row that cannot be decoded is handed to bad (may be NULL) with its raw key and skipped. */
typedef struct cs_catalog_visitor {
    void (*object)(void *arg, const cs_object_row_t *row);
    void (*segment)(void *arg, const cs_segment_row_t *row);
    void (*keyspace)(void *arg, const vc_digest_t *id, const vc_keyspace_t *ks);
    void (*prefix)(void *arg, const cs_prefix_row_t *row);
    void (*bad)(void *arg, const char *kind);
    void *arg;
    /* May be NULL. After the objects. */
    void (*pin)(void *arg, const vc_object_key_t *key);
    void (*uses)(void *arg, const cs_uses_row_t *row);
} cs_catalog_visitor_t;
vc_status_t cs_catalog_scan(cs_catalog_t *catalog, const cs_catalog_visitor_t *visitor, vc_err_t *err);

/* The batch being built. Later operations on a key win. */
void cs_catalog_put_object(cs_catalog_t *catalog, const cs_object_row_t *row);
void cs_catalog_delete_object(cs_catalog_t *catalog, const vc_object_key_t *key);
void cs_catalog_put_segment(cs_catalog_t *catalog, const cs_segment_row_t *row);
void cs_catalog_delete_segment(cs_catalog_t *catalog, uint32_t number);
vc_status_t cs_catalog_put_keyspace(cs_catalog_t *catalog, const vc_digest_t *id, const vc_keyspace_t *ks);
void cs_catalog_delete_keyspace(cs_catalog_t *catalog, const vc_digest_t *id);
void cs_catalog_put_prefix(cs_catalog_t *catalog, const cs_prefix_row_t *row);
void cs_catalog_delete_prefix(cs_catalog_t *catalog, uint32_t id);
void cs_catalog_put_pin(cs_catalog_t *catalog, const vc_object_key_t *key, uint32_t pinned_s);
void cs_catalog_delete_pin(cs_catalog_t *catalog, const vc_object_key_t *key);
/* uses: by page. Replaces the segment's row; NOMEM leaves it out. */
vc_status_t cs_catalog_put_uses(cs_catalog_t *catalog, uint32_t number, uint32_t version, const cs_use_t *uses,
                                uint32_t n);
void cs_catalog_put_generation(cs_catalog_t *catalog, uint64_t generation);
/* Writes and empties the batch. On an error nothing may be assumed: it can be there after a restart or not. */
vc_status_t cs_catalog_write(cs_catalog_t *catalog, bool sync, vc_err_t *err);
void cs_catalog_drop_batch(cs_catalog_t *catalog);
/* Memtables to files, so that the WAL can go. */
vc_status_t cs_catalog_flush(cs_catalog_t *catalog, vc_err_t *err);
/* Bytes on disk of data_dir/catalog, as du counts them. */
uint64_t cs_catalog_disk_bytes(const char *data_dir);

#endif
