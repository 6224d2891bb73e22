/*
 * The scrubber: reads every committed record again, in the background, so that damage is found before a reader meets
 * it. A record that does not hold is dropped, counted (corrupt_disk) and logged, exactly as if a reader had found it.
 *
 * A pass visits the objects that are there when their turn comes; one that is committed or moved meanwhile is read by
 * this pass or the next. It reads by itself, into memory of its own, at most at its rate (the store's clock), one
 * record pinned at a time. While other transfers run it waits, for a second per record at most, so that a pass always
 * ends. It leaves no mark on what eviction goes by.
 *
 * All functions may be called from any thread.
 */
#ifndef CS_STORE_SCRUB_H
#define CS_STORE_SCRUB_H

#include "store.h"

typedef struct cs_scrub_info {
    bool running;
    uint64_t rate_bytes; /* per second, of the running pass; of the next automatic one otherwise. 0: off */
    /* The running pass, or the last one. A total grows and shrinks with the store. */
    uint64_t pass_objects, pass_objects_total, pass_bytes, pass_bytes_total;
    uint64_t pass_corrupt, pass_errors; /* records dropped; records that the disk refused to read, kept */
    /* Since start. */
    uint64_t passes; /* that came to their end */
    uint64_t bytes, corrupt, errors;
    uint64_t last_pass_s;  /* when the last one ended, unix time; 0: none yet */
    uint64_t last_pass_ms; /* how long it took */
} cs_scrub_info_t;
void cs_store_scrub_info(cs_store_t *store, cs_scrub_info_t *info_p);

/* Starts a pass now. rate_bytes 0: the configured rate, or CS_SCRUB_DEFAULT_BYTES where the automatic passes are off.
 * EXISTS when one is running already: it goes on, at the rate given where that is not 0. */
#define CS_SCRUB_DEFAULT_BYTES ((uint64_t)8 << 20)
vc_status_t cs_store_scrub_start(cs_store_t *store, uint64_t rate_bytes, vc_err_t *err);
/* Ends the running pass before its end; it does not count as one. NOT_FOUND when none runs. */
vc_status_t cs_store_scrub_stop(cs_store_t *store, vc_err_t *err);

#endif
