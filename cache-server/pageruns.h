/*
 * Runs of pages: which pages of a memory area are taken and which are free. Knows no memory, only numbers.
 *
 * The area is cut into slabs; a run never crosses from one into the next. Neighbouring free runs are one run always.
 * Free runs are kept by size (eight bins to each power of two), so taking and freeing cost the same at any size of the
 * area. Owner: one thread at a time; the caller locks.
 */
#ifndef CS_PAGERUNS_H
#define CS_PAGERUNS_H

#include <stdbool.h>
#include <stdint.h>

#include "vc/status.h"

typedef struct cs_pageruns cs_pageruns_t;

typedef struct cs_run {
    uint32_t page, pages;       /* first page in the area; length */
    void *user;                 /* of a taken run; NULL: free */
    struct cs_run *prev, *next; /* neighbours by address in the slab; NULL at its ends */
    struct cs_run *bin_prev, *bin_next;
} cs_run_t;

/* The last slab may be shorter. NOMEM, or RANGE when one of the numbers is 0. */
vc_status_t cs_pageruns_create(uint32_t n_pages, uint32_t slab_pages, cs_pageruns_t **area_p);
void cs_pageruns_destroy(cs_pageruns_t *area);
/* user is not NULL. NULL: no free run is long enough (or no memory for its description). */
cs_run_t *cs_pageruns_take(cs_pageruns_t *area, uint32_t pages, void *user);
/* The free run it became a part of. */
cs_run_t *cs_pageruns_free(cs_pageruns_t *area, cs_run_t *run);
uint32_t cs_pageruns_taken(const cs_pageruns_t *area); /* pages */

#endif
