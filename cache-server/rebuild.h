/*
 * A new catalog from the segment files, for one that cannot be opened or read. Works on a data directory that the
 * caller holds the lock of and that nobody has open.
 *
 * Every record says by itself what it is: its header carries key, parent, tokens and keyspace id, and every byte is
 * summed. So all whole records in all segment files become rows again, those of evicted or aborted objects included: a
 * record under its key is right whoever wrote it and when. What is lost: prefixes are made anew from the chains, times
 * are those of the rebuild, use counts begin anew, pins are kept where the old catalog can still be read, and records
 * of a keyspace that neither the keyspace file nor the old catalog knows are left out.
 *
 * DIR/rebuild/catalog is filled and synced, DIR/catalog becomes DIR/catalog.damaged-<n>, the new one takes its place.
 * A kill at any point leaves a directory from which the next start does the same again.
 */
#ifndef CS_REBUILD_H
#define CS_REBUILD_H

#include <stdbool.h>
#include <stdint.h>

#include "vc/status.h"

typedef struct cs_rebuild_report {
    uint32_t segments, objects; /* objects: rows written; of two copies of one object both count */
    uint32_t damaged;           /* places that look like a record and are none: torn, flipped or written over */
    uint32_t unknown;           /* sound records of keyspaces that nobody knows any more */
    uint32_t unreadable;        /* pages that the disk refuses to read */
    uint32_t keyspaces, prefixes, pins;
    uint64_t bytes; /* of the records found */
    bool old_read;  /* the old catalog gave what it could */
} cs_rebuild_report_t;

/* There are segments but no catalog: it was lost. */
bool cs_rebuild_is_needed(const char *data_dir);
/* NOSPACE, IO, NOMEM: the directory is as it was, apart from DIR/rebuild. */
vc_status_t cs_rebuild_catalog(const char *data_dir, cs_rebuild_report_t *report_p, vc_err_t *err);
/* Removes what a rebuild left: DIR/rebuild and DIR/catalog.damaged-*. After the catalog was opened. */
void cs_rebuild_clean(const char *data_dir);

#endif
