/*
 * The offline check of a whole data directory: `vericache-server verify`. It reads everything and changes nothing; no
 * server may hold the directory meanwhile. Below the store, beside it: what the store believes is what is checked here.
 *
 *   files of the catalog   every record of RocksDB's logs and manifest by its sum, CURRENT, the ends of its tables; the
 *                          file of keyspaces beside it
 *   rows                   all tables through RocksDB's own sums; each row decodes and names things that exist
 *   places                 inside the segment, of its version, no two of them overlapping
 *   segment files          there, of the size and version that the catalog has, header page sound
 *   records                header and every layer by CRC, padding zero, block hash from parent and tokens, key,
 *                          keyspace, shape and place in the chain as the row has them
 *   sizes                  every file counted against a capacity, where one is given
 *
 * One thread. Memory: about 150 bytes an object.
 */
#ifndef CS_VERIFY_H
#define CS_VERIFY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "vc/status.h"

typedef enum {
    /* damage */
    CS_VERIFY_CATALOG = 0,     /* the catalog cannot be opened or read */
    CS_VERIFY_CATALOG_FILE,    /* one of its files does not hold */
    CS_VERIFY_ROW,             /* a row does not decode */
    CS_VERIFY_REFERENCE,       /* a row names a keyspace, prefix or segment that is not there */
    CS_VERIFY_PLACE,           /* a row names bytes outside of its segment, of another version, or of another row */
    CS_VERIFY_SEGMENT_MISSING, /* the catalog has the segment, the directory does not */
    CS_VERIFY_SEGMENT_HEADER,  /* a segment with objects has a bad header page, or one of another version */
    CS_VERIFY_SEGMENT_SIZE,    /* a segment file is not as large as the catalog says */
    CS_VERIFY_RECORD,          /* a record does not hold */
    CS_VERIFY_MISMATCH,        /* a sound record that is not what its row says */
    CS_VERIFY_UNREADABLE,      /* the disk refuses a read */
    CS_VERIFY_CAPACITY,        /* more bytes on disk than the capacity given */
    CS_VERIFY_N_DAMAGE,
    /* worth knowing, not damage: a crash or a full disk leaves these, the next start puts them right */
    CS_VERIFY_SPARE_SEGMENT =
        CS_VERIFY_N_DAMAGE, /* a segment file without objects and without a row, or a stale header */
    CS_VERIFY_STALE_ROW,    /* a pin of an object that is gone */
    CS_VERIFY_STRAY_FILE,   /* a file that is none of ours */
    CS_VERIFY_NO_BALLAST,
    CS_VERIFY_N
} cs_verify_kind_t;
const char *cs_verify_kind_name(cs_verify_kind_t kind); /* "segment_header" */
const char *cs_verify_kind_text(cs_verify_kind_t kind); /* a few words for people */

typedef struct cs_verify_finding {
    cs_verify_kind_t kind;
    char text[320];
} cs_verify_finding_t;

typedef struct cs_verify_report {
    uint32_t format;
    uint64_t generation;
    uint64_t objects, object_bytes; /* rows of the catalog */
    uint64_t sound_objects, bytes_read;
    uint64_t segments, keyspaces, prefixes;
    uint64_t disk_bytes; /* every file, as du counts */
    uint64_t n[CS_VERIFY_N];
    cs_verify_finding_t *findings; /* the first of each kind, in the order found */
    uint32_t n_findings;
} cs_verify_report_t;

typedef struct cs_verify_opts {
    const char *data_dir;
    uint64_t capacity_bytes; /* 0: not checked */
    uint32_t max_findings;   /* kept of each kind; all are counted */
    /* May be NULL. Called now and then on the caller's thread. */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *arg;
} cs_verify_opts_t;

/* OK: it could be checked, and *report_p says what was found. Otherwise it could not be: NOT_FOUND (no such directory),
 * BUSY (held by a server), UNSUPPORTED (a newer format), PERM, NOMEM. */
vc_status_t cs_verify(const cs_verify_opts_t *opts, cs_verify_report_t **report_p, vc_err_t *err);
uint64_t cs_verify_n_damage(const cs_verify_report_t *report);
void cs_verify_free(cs_verify_report_t *report);

/* `vericache-server verify ...`: argv[0] is "verify". Returns the exit code: 0 nothing found, 65 damage, others as
 * vc_status_exit_code says. */
int cs_verify_main(int argc, char **argv, FILE *out, FILE *errors);

#endif
