/* See huge.h. */
#include "kernels/huge.h"

#include <sys/mman.h>

#include "vc/mem.h"

enum { HUGE_PAGE = 2 << 20, LINE = 64 };
#ifdef __SANITIZE_ADDRESS__
enum { SLAB = LINE }; /* a block for every piece: reads beyond it are seen */
#else
enum { SLAB = 32 << 20 };
#endif

struct node_huge_slab {
    struct node_huge_slab *next;
    size_t used, cap;
};

void *node_alloc_huge(size_t bytes)
{
    if (bytes < HUGE_PAGE)
        return vc_alloc_aligned(LINE, bytes);
    /* the last page is filled where that takes little; else its rest is somebody else's, and it stays small pages */
    size_t rest = bytes % HUGE_PAGE, fill = rest != 0 ? HUGE_PAGE - rest : 0;
    if (fill <= bytes / 16 && fill <= SIZE_MAX - bytes)
        bytes += fill;
    void *data = vc_alloc_aligned(HUGE_PAGE, bytes);
    if (data != NULL)
        (void)madvise(data, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return data;
}

void *node_huge_pool_alloc(node_huge_pool_t *pool, size_t bytes)
{
    struct node_huge_slab *slab = pool->slabs;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = vc_align_up(bytes, LINE);
    if (slab == NULL || bytes > slab->cap - slab->used) {
        size_t cap = VC_MAX(bytes + LINE, (size_t)SLAB);
        slab = node_alloc_huge(cap);
        if (slab == NULL)
            return NULL;
        *slab = (struct node_huge_slab){.next = pool->slabs, .used = LINE, .cap = cap};
        pool->slabs = slab;
    }
    uint8_t *data = (uint8_t *)slab + slab->used;
    slab->used += bytes;
    return data;
}

void node_huge_pool_free(node_huge_pool_t *pool)
{
    for (struct node_huge_slab *slab = pool->slabs, *next; slab != NULL; slab = next) {
        next = slab->next;
        vc_free(slab);
    }
    pool->slabs = NULL;
}
