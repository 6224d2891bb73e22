/* Inside of the offline check. */
#ifndef CS_VERIFY_INT_H
#define CS_VERIFY_INT_H

#include "catalog.h"
#include "segment.h"
#include "verify.h"

typedef struct verify_file { /* a segment file */
    uint32_t number;
    uint64_t bytes;
} verify_file_t;

typedef struct verify_keyspace {
    vc_digest_t id;
    vc_kv_shape_t shape;
} verify_keyspace_t;

typedef struct verify_list { /* grows; items of one size */
    void *items;
    size_t n, cap;
} verify_list_t;

typedef struct verify {
    const cs_verify_opts_t *opts;
    cs_verify_report_t *report;
    bool has_rows;          /* the catalog could be read */
    vc_status_t status;     /* of the check itself: NOMEM ends it */
    verify_list_t files;    /* verify_file_t, by number */
    verify_list_t segments; /* cs_segment_row_t, by number */
    verify_list_t keyspaces, prefixes /* cs_prefix_row_t, by id */, objects /* cs_object_row_t, by place */;
    verify_list_t pins; /* vc_object_key_t */
    uint64_t total_bytes, done_bytes;
} verify_t;

void cs_verify_found(verify_t *v, cs_verify_kind_t kind, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool cs_verify_add(verify_t *v, verify_list_t *list, const void *item, size_t bytes);

/* verify_files.c: the files of RocksDB, by what they say of themselves. catalog: NULL where it cannot be opened. */
void cs_verify_catalog_files(verify_t *v, const cs_catalog_t *catalog);
/* Pure, for one file in memory: NULL when it holds, else what is wrong (static storage); *at_p is the offset. */
const char *cs_verify_log_bytes(const uint8_t *data, size_t bytes, size_t *at_p);
const char *cs_verify_table_footer(const uint8_t *tail, size_t bytes);

/* verify_rows.c: what the catalog says. */
void cs_verify_rows(verify_t *v, cs_catalog_t *catalog);

/* verify_segments.c: what the segments hold. The lists are sorted. */
void cs_verify_segments(verify_t *v, cs_segdir_t *dir);

#endif
