/*
 * Buffer pool: one anonymous mapping cut into equal buffers, a stack of free ones behind a mutex.
 * The mutex is held for a few instructions; buffers are megabytes, so it is far from the cost of using one.
 * Waiters: threads sleep on the condition variable; workers leave a callback, served first in, first out.
 */
#include "bufpool.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "vc/mem.h"

typedef struct notice {
    void (*fn)(void *arg);
    void *arg;
    struct notice *next;
} notice_t;

#define HUGE_PAGE ((size_t)2 << 20)

struct cs_bufpool {
    uint8_t *map, *base; /* base: the first huge page boundary in the mapping */
    size_t map_bytes, buf_bytes;
    uint32_t n_bufs, n_free;
    cs_buf_t *bufs;
    uint32_t *free_stack;
    bool *is_free;
    pthread_mutex_t lock;
    pthread_cond_t freed;
    notice_t *notices, **notices_end;
    void *attached;
    size_t attached_bytes, slab_bytes;
    _Atomic size_t attached_used;
};

static void pool_free(cs_bufpool_t *pool)
{
    if (pool->map)
        munmap(pool->map, pool->map_bytes + HUGE_PAGE);
    vc_free(pool->bufs);
    vc_free(pool->free_stack);
    vc_free(pool->is_free);
    vc_free(pool);
}

/* Huge pages where the kernel has them: a record is then one or two segments of a disk request instead of hundreds,
 * which no longer fit into one. Registered memory is not for a child: without DONTFORK a fork would copy all of it. */
static void map_buffers(cs_bufpool_t *pool, size_t bytes)
{
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return;
    pool->map = map;
    pool->base = pool->map + (-(uintptr_t)map & (HUGE_PAGE - 1));
    (void)madvise(map, bytes, MADV_HUGEPAGE);
    (void)madvise(map, bytes, MADV_DONTFORK);
}

static vc_status_t pool_alloc(cs_bufpool_t *pool, vc_err_t *err)
{
    size_t with_margin;
    if (!vc_size_mul(pool->n_bufs, pool->buf_bytes, &pool->map_bytes))
        return vc_err_set(err, VC_ERR_RANGE, "buffer pool of %u buffers of %zu bytes overflows", pool->n_bufs,
                          pool->buf_bytes);
    pool->bufs = vc_calloc(pool->n_bufs, sizeof(*pool->bufs));
    pool->free_stack = vc_calloc(pool->n_bufs, sizeof(*pool->free_stack));
    pool->is_free = vc_calloc(pool->n_bufs, sizeof(*pool->is_free));
    if (!vc_size_add(pool->map_bytes, HUGE_PAGE, &with_margin))
        return vc_err_set(err, VC_ERR_RANGE, "buffer pool of %zu bytes overflows", pool->map_bytes);
    map_buffers(pool, with_margin);
    if (!pool->map || !pool->bufs || !pool->free_stack || !pool->is_free)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for %u buffers of %zu bytes", pool->n_bufs, pool->buf_bytes);
    return VC_OK;
}

vc_status_t cs_bufpool_create(uint32_t n_bufs, size_t buf_bytes, cs_bufpool_t **pool_p, vc_err_t *err)
{
    if (n_bufs == 0 || buf_bytes == 0 || buf_bytes % 4096 != 0 || buf_bytes > UINT32_MAX)
        return vc_err_set(err, VC_ERR_INVALID, "buffer pool of %u buffers of %zu bytes is not possible", n_bufs,
                          buf_bytes);
    cs_bufpool_t *pool = vc_calloc(1, sizeof(*pool));
    if (!pool)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the buffer pool");
    pool->n_bufs = n_bufs;
    pool->buf_bytes = buf_bytes;
    vc_status_t status = pool_alloc(pool, err);
    if (status != VC_OK) {
        pool_free(pool);
        return status;
    }
    for (uint32_t i = 0; i < n_bufs; i++) {
        pool->bufs[i] = (cs_buf_t){.data = pool->base + (size_t)i * buf_bytes, .cap = buf_bytes, .index = i};
        pool->free_stack[i] = n_bufs - 1 - i;
        pool->is_free[i] = true;
    }
    pool->n_free = n_bufs;
    pool->notices_end = &pool->notices;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->freed, &attr);
    pthread_condattr_destroy(&attr);
    *pool_p = pool;
    return VC_OK;
}

void cs_bufpool_destroy(cs_bufpool_t *pool)
{
    if (!pool)
        return;
    while (pool->notices) {
        notice_t *notice = pool->notices;
        pool->notices = notice->next;
        vc_free(notice);
    }
    pthread_cond_destroy(&pool->freed);
    pthread_mutex_destroy(&pool->lock);
    pool_free(pool);
}

static cs_buf_t *take_locked(cs_bufpool_t *pool)
{
    if (pool->n_free == 0)
        return NULL;
    uint32_t i = pool->free_stack[--pool->n_free];
    pool->is_free[i] = false;
    return &pool->bufs[i];
}

cs_buf_t *cs_bufpool_get(cs_bufpool_t *pool)
{
    pthread_mutex_lock(&pool->lock);
    cs_buf_t *buf = take_locked(pool);
    pthread_mutex_unlock(&pool->lock);
    return buf;
}

void cs_bufpool_put(cs_bufpool_t *pool, cs_buf_t *buf)
{
    if (!buf)
        return;
    pthread_mutex_lock(&pool->lock);
    if (pool->is_free[buf->index]) { /* a second put would hand one buffer to two owners: keep the first */
        pthread_mutex_unlock(&pool->lock);
        return;
    }
    buf->len = 0;
    buf->user = NULL;
    pool->is_free[buf->index] = true;
    pool->free_stack[pool->n_free++] = buf->index;
    notice_t *notice = pool->notices;
    if (notice) {
        pool->notices = notice->next;
        if (!pool->notices)
            pool->notices_end = &pool->notices;
    }
    pthread_cond_signal(&pool->freed);
    pthread_mutex_unlock(&pool->lock);
    if (notice) {
        notice->fn(notice->arg);
        vc_free(notice);
    }
}

cs_buf_t *cs_bufpool_wait(cs_bufpool_t *pool, uint32_t timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + (uint64_t)timeout_ms * 1000000u;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    pthread_mutex_lock(&pool->lock);
    cs_buf_t *buf;
    while (!(buf = take_locked(pool))) {
        if (pthread_cond_timedwait(&pool->freed, &pool->lock, &until) == ETIMEDOUT) {
            buf = take_locked(pool);
            break;
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return buf;
}

void cs_bufpool_notify(cs_bufpool_t *pool, void (*fn)(void *arg), void *arg)
{
    notice_t *notice = vc_calloc(1, sizeof(*notice));
    pthread_mutex_lock(&pool->lock);
    bool now = pool->n_free > 0 || !notice; /* one came back meanwhile; without memory the caller polls */
    if (!now) {
        notice->fn = fn;
        notice->arg = arg;
        *pool->notices_end = notice;
        pool->notices_end = &notice->next;
    }
    pthread_mutex_unlock(&pool->lock);
    if (now) {
        vc_free(notice);
        fn(arg);
    }
}

void *cs_bufpool_base(const cs_bufpool_t *pool, size_t *bytes_p)
{
    if (bytes_p)
        *bytes_p = pool->map_bytes;
    return pool->base;
}

uint32_t cs_bufpool_count(const cs_bufpool_t *pool) { return pool->n_bufs; }

size_t cs_bufpool_buf_bytes(const cs_bufpool_t *pool) { return pool->buf_bytes; }

cs_buf_t *cs_bufpool_at(cs_bufpool_t *pool, uint32_t index) { return index < pool->n_bufs ? &pool->bufs[index] : NULL; }

void cs_bufpool_attach(cs_bufpool_t *pool, void *base, size_t bytes, size_t slab_bytes)
{
    pool->attached = base;
    pool->attached_bytes = bytes;
    pool->slab_bytes = slab_bytes;
    atomic_store_explicit(&pool->attached_used, 0, memory_order_relaxed);
}

void *cs_bufpool_attached(const cs_bufpool_t *pool, size_t *bytes_p, size_t *slab_bytes_p)
{
    *bytes_p = pool->attached_bytes;
    *slab_bytes_p = pool->slab_bytes;
    return pool->attached;
}

/* Relaxed: a hint. Two that note at once may leave the smaller number, until the next one. */
void cs_bufpool_note_used(cs_bufpool_t *pool, size_t bytes)
{
    if (bytes > atomic_load_explicit(&pool->attached_used, memory_order_relaxed))
        atomic_store_explicit(&pool->attached_used, bytes, memory_order_relaxed);
}

size_t cs_bufpool_used(const cs_bufpool_t *pool)
{
    return atomic_load_explicit(&pool->attached_used, memory_order_relaxed);
}
