/* Create, destroy and count; the nodes of records and waiters, which are kept for reuse. See ramtier_int.h. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ramtier_int.h"
#include "vc/mem.h"

#define CHUNK 64u
#define HUGE_PAGE ((size_t)2 << 20)
#define SLAB_MIN ((size_t)32 << 20)
#define SLAB_MAX ((size_t)1 << 30) /* what one registered buffer of an io_uring may have */
#define SLABS_MAX 1024u
#define BUCKETS_MIN 256u
#define BUCKETS_MAX (1u << 20)
#define BUCKET_PAGES 16u /* 64 KiB: more than one small record to a bucket, less than one large */

/* ---- nodes ---- */

static void *new_chunk(cs_ramtier_t *ram, size_t node_bytes)
{
    void **chunks = vc_realloc(ram->chunks, ram->n_chunks + 1, sizeof(*chunks));
    if (!chunks)
        return NULL;
    ram->chunks = chunks;
    void *chunk = vc_calloc(CHUNK, node_bytes);
    if (chunk)
        ram->chunks[ram->n_chunks++] = chunk;
    return chunk;
}

rt_record_t *rt_record_get(cs_ramtier_t *ram)
{
    if (!ram->free_records) {
        rt_record_t *chunk = new_chunk(ram, sizeof(*chunk));
        for (uint32_t i = 0; chunk && i < CHUNK; i++) {
            chunk[i].chain = ram->free_records;
            ram->free_records = &chunk[i];
        }
    }
    rt_record_t *r = ram->free_records;
    if (!r)
        return NULL;
    ram->free_records = r->chain;
    *r = (rt_record_t){.ram = ram};
    r->waiters_end = &r->waiters;
    return r;
}

rt_waiter_t *rt_waiter_get(cs_ramtier_t *ram)
{
    if (!ram->free_waiters) {
        rt_waiter_t *chunk = new_chunk(ram, sizeof(*chunk));
        for (uint32_t i = 0; chunk && i < CHUNK; i++) {
            chunk[i].next = ram->free_waiters;
            ram->free_waiters = &chunk[i];
        }
    }
    rt_waiter_t *w = ram->free_waiters;
    if (w)
        ram->free_waiters = w->next;
    return w;
}

/* ---- create and destroy ---- */

/* A slab is pinned as a whole when a ring registers it: small enough for that to be quick, large enough for the records
 * that do not fit its end to be few. */
static size_t slab_bytes(const cs_ramtier_opts_t *opts)
{
    size_t want = opts->slab_bytes;
    if (want == 0) {
        want = VC_MAX(SLAB_MIN, 8 * cs_bufpool_buf_bytes(opts->pool));
        want = VC_MAX(want, (size_t)(opts->bytes / SLABS_MAX));
        want = VC_MIN(vc_align_up(want, HUGE_PAGE), SLAB_MAX);
    }
    return (size_t)VC_MIN((uint64_t)want, opts->bytes) & ~(size_t)(RT_PAGE - 1);
}

static vc_status_t map_slabs(cs_ramtier_t *ram, vc_err_t *err)
{
    uint64_t bytes = ram->opts.bytes;
    uint64_t physical = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (bytes > physical)
        return vc_err_set(err, VC_ERR_NOMEM, "a memory tier of %llu bytes (--ram) is more than this machine has: %llu",
                          (unsigned long long)bytes, (unsigned long long)physical);
    ram->map_bytes = (size_t)bytes + HUGE_PAGE;
    void *map = mmap(NULL, ram->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a memory tier of %llu bytes (--ram): %s",
                          (unsigned long long)bytes, strerror(errno));
    ram->map = map;
    ram->base = ram->map + (-(uintptr_t)map & (HUGE_PAGE - 1));
    /* As the pool's: large segments of a disk request, and no copies for a child. */
    (void)madvise(ram->base, (size_t)bytes, MADV_HUGEPAGE);
    (void)madvise(ram->base, (size_t)bytes, MADV_DONTFORK);
    return VC_OK;
}

static vc_status_t make_slabs(cs_ramtier_t *ram, vc_err_t *err)
{
    ram->n_pages = (uint32_t)(ram->opts.bytes / RT_PAGE);
    ram->slab_pages = (uint32_t)(slab_bytes(&ram->opts) / RT_PAGE);
    ram->stats.capacity_bytes = ram->opts.bytes;
    vc_status_t status = map_slabs(ram, err);
    if (status != VC_OK)
        return status;
    status = cs_pageruns_create(ram->n_pages, ram->slab_pages, &ram->area);
    ram->ghosts = vc_calloc((size_t)ram->n_buckets * 4, sizeof(*ram->ghosts));
    if (status != VC_OK || !ram->ghosts)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the memory tier");
    cs_bufpool_attach(ram->opts.pool, ram->base, (size_t)ram->opts.bytes, (size_t)ram->slab_pages * RT_PAGE);
    return VC_OK;
}

vc_status_t cs_ramtier_create(const cs_ramtier_opts_t *opts, cs_ramtier_t **ram_p, vc_err_t *err)
{
    uint64_t bytes = opts->bytes & ~(uint64_t)(RT_PAGE - 1);
    if (bytes / RT_PAGE > UINT32_MAX / 2 || bytes > SIZE_MAX / 2)
        return vc_err_set(err, VC_ERR_RANGE, "a memory tier of %llu bytes (--ram) is larger than 8 TiB",
                          (unsigned long long)bytes);
    cs_ramtier_t *ram = vc_calloc(1, sizeof(*ram));
    if (!ram)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the memory tier");
    ram->opts = *opts;
    ram->opts.bytes = bytes;
    pthread_mutex_init(&ram->lock, NULL);
    ram->n_buckets = BUCKETS_MIN;
    while (ram->n_buckets < BUCKETS_MAX && (uint64_t)ram->n_buckets * BUCKET_PAGES * RT_PAGE < bytes)
        ram->n_buckets *= 2;
    ram->buckets = vc_calloc(ram->n_buckets, sizeof(rt_record_t *));
    vc_status_t status = VC_OK;
    if (!ram->buckets)
        status = vc_err_set(err, VC_ERR_NOMEM, "no memory for the memory tier");
    else if (bytes > 0)
        status = make_slabs(ram, err);
    if (status != VC_OK) {
        cs_ramtier_destroy(ram);
        return status;
    }
    *ram_p = ram;
    return VC_OK;
}

void cs_ramtier_destroy(cs_ramtier_t *ram)
{
    if (!ram)
        return;
    for (uint32_t i = 0; i < ram->n_chunks; i++)
        vc_free(ram->chunks[i]);
    vc_free(ram->chunks);
    vc_free(ram->buckets);
    vc_free(ram->ghosts);
    if (ram->area)
        cs_bufpool_attach(ram->opts.pool, NULL, 0, 0);
    cs_pageruns_destroy(ram->area);
    if (ram->map)
        munmap(ram->map, ram->map_bytes);
    pthread_mutex_destroy(&ram->lock);
    vc_free(ram);
}

void cs_ramtier_get_stats(cs_ramtier_t *ram, cs_ramtier_stats_t *stats_p)
{
    pthread_mutex_lock(&ram->lock);
    *stats_p = ram->stats;
    stats_p->records = ram->queues[RT_PROBATION].n + ram->queues[RT_MAIN].n;
    stats_p->used_bytes = ram->area ? (uint64_t)cs_pageruns_taken(ram->area) * RT_PAGE : 0;
    pthread_mutex_unlock(&ram->lock);
}
