/* Two-level segregated fit over page runs, see pageruns.h. Descriptions of runs are nodes of chunks that are kept. */
#include "pageruns.h"

#include "vc/mem.h"

#define MINOR_BITS 3u /* eight bins to each power of two */
#define N_BINS ((32u - MINOR_BITS + 1) << MINOR_BITS)
#define CHUNK 128u
#define SEARCH 32u /* runs of the first bin that are looked at: they may be shorter than wanted */

typedef struct chunk {
    struct chunk *next;
    cs_run_t runs[CHUNK];
} chunk_t;

struct cs_pageruns {
    cs_run_t *bins[N_BINS];
    uint64_t filled[(N_BINS + 63) / 64]; /* bins that are not empty */
    cs_run_t *unused;                    /* nodes */
    chunk_t *chunks;
    uint32_t taken;
};

/* ---- nodes ---- */

static cs_run_t *node_get(cs_pageruns_t *area)
{
    if (!area->unused) {
        chunk_t *chunk = vc_calloc(1, sizeof(*chunk));
        if (!chunk)
            return NULL;
        chunk->next = area->chunks;
        area->chunks = chunk;
        for (uint32_t i = 0; i < CHUNK; i++) {
            chunk->runs[i].next = area->unused;
            area->unused = &chunk->runs[i];
        }
    }
    cs_run_t *run = area->unused;
    area->unused = run->next;
    return run;
}

static void node_put(cs_pageruns_t *area, cs_run_t *run)
{
    run->next = area->unused;
    area->unused = run;
}

/* ---- bins ---- */

/* Sizes below 8 have a bin each; above, a bin holds an eighth of a power of two. Bin i holds no smaller run than i-1.
 */
static uint32_t bin_of(uint32_t pages)
{
    if (pages < 1u << MINOR_BITS)
        return pages;
    uint32_t log = 31u - (uint32_t)__builtin_clz(pages);
    return ((log - MINOR_BITS + 1) << MINOR_BITS) + ((pages >> (log - MINOR_BITS)) & ((1u << MINOR_BITS) - 1));
}

static void bin_add(cs_pageruns_t *area, cs_run_t *run)
{
    uint32_t bin = bin_of(run->pages);
    run->user = NULL;
    run->bin_prev = NULL;
    run->bin_next = area->bins[bin];
    if (run->bin_next)
        run->bin_next->bin_prev = run;
    area->bins[bin] = run;
    area->filled[bin / 64] |= (uint64_t)1 << bin % 64;
}

static void bin_remove(cs_pageruns_t *area, cs_run_t *run)
{
    uint32_t bin = bin_of(run->pages);
    if (run->bin_prev)
        run->bin_prev->bin_next = run->bin_next;
    else
        area->bins[bin] = run->bin_next;
    if (run->bin_next)
        run->bin_next->bin_prev = run->bin_prev;
    if (!area->bins[bin])
        area->filled[bin / 64] &= ~((uint64_t)1 << bin % 64);
}

static cs_run_t *find_free(const cs_pageruns_t *area, uint32_t pages)
{
    uint32_t bin = bin_of(pages), n = 0;
    for (cs_run_t *run = area->bins[bin]; run && n < SEARCH; run = run->bin_next, n++) {
        if (run->pages >= pages)
            return run;
    }
    for (uint32_t b = bin + 1; b < N_BINS; b = (b / 64 + 1) * 64) {
        uint64_t word = area->filled[b / 64] >> b % 64;
        if (word)
            return area->bins[b + (uint32_t)__builtin_ctzll(word)];
    }
    return NULL;
}

/* ---- take and free ---- */

cs_run_t *cs_pageruns_take(cs_pageruns_t *area, uint32_t pages, void *user)
{
    cs_run_t *run = pages == 0 ? NULL : find_free(area, pages);
    if (!run)
        return NULL;
    if (run->pages > pages) {
        cs_run_t *rest = node_get(area);
        if (!rest)
            return NULL;
        bin_remove(area, run);
        *rest = (cs_run_t){.page = run->page + pages, .pages = run->pages - pages, .prev = run, .next = run->next};
        if (rest->next)
            rest->next->prev = rest;
        run->next = rest;
        run->pages = pages;
        bin_add(area, rest);
    } else {
        bin_remove(area, run);
    }
    run->user = user;
    area->taken += pages;
    return run;
}

/* b follows a; both lie in no bin. */
static void merge(cs_pageruns_t *area, cs_run_t *a, cs_run_t *b)
{
    a->pages += b->pages;
    a->next = b->next;
    if (a->next)
        a->next->prev = a;
    node_put(area, b);
}

cs_run_t *cs_pageruns_free(cs_pageruns_t *area, cs_run_t *run)
{
    area->taken -= run->pages;
    if (run->next && !run->next->user) {
        bin_remove(area, run->next);
        merge(area, run, run->next);
    }
    if (run->prev && !run->prev->user) {
        run = run->prev;
        bin_remove(area, run);
        merge(area, run, run->next);
    }
    bin_add(area, run);
    return run;
}

uint32_t cs_pageruns_taken(const cs_pageruns_t *area) { return area->taken; }

/* ---- life ---- */

vc_status_t cs_pageruns_create(uint32_t n_pages, uint32_t slab_pages, cs_pageruns_t **area_p)
{
    if (n_pages == 0 || slab_pages == 0)
        return VC_ERR_RANGE;
    cs_pageruns_t *area = vc_calloc(1, sizeof(*area));
    if (!area)
        return VC_ERR_NOMEM;
    uint32_t n_slabs = n_pages / slab_pages + (n_pages % slab_pages != 0);
    /* The last slab first: runs are taken from the front of a bin, so memory is touched from the start. */
    for (uint32_t i = n_slabs; i-- > 0;) {
        cs_run_t *run = node_get(area);
        if (!run) {
            cs_pageruns_destroy(area);
            return VC_ERR_NOMEM;
        }
        *run = (cs_run_t){.page = i * slab_pages, .pages = VC_MIN(slab_pages, n_pages - i * slab_pages)};
        bin_add(area, run);
    }
    *area_p = area;
    return VC_OK;
}

void cs_pageruns_destroy(cs_pageruns_t *area)
{
    if (!area)
        return;
    while (area->chunks) {
        chunk_t *chunk = area->chunks;
        area->chunks = chunk->next;
        vc_free(chunk);
    }
    vc_free(area);
}
