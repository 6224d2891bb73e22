/*
 * Memory that is streamed from one end to the other: on huge pages where the kernel has them, because a prefetcher
 * stops at the end of a page and every small one costs a walk. Advice only; without them it is ordinary memory.
 */
#ifndef NODE_HUGE_H
#define NODE_HUGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Not zeroed, starts on 64 bytes at least; freed with vc_free. NULL when out of memory. */
void *node_alloc_huge(size_t bytes);

/* Many pieces that live and die together. Zero-initialise. One thread. */
typedef struct node_huge_pool {
    struct node_huge_slab *slabs;
} node_huge_pool_t;

void *node_huge_pool_alloc(node_huge_pool_t *pool, size_t bytes); /* not zeroed, starts on 64 bytes; NULL: no memory */
void node_huge_pool_free(node_huge_pool_t *pool);                 /* all of it */

/* Has the line fetched; once: past the caches, for what nobody reads again soon. */
static inline void node_ask(const void *at, bool once)
{
    if (once) /* the builtin takes constants only */
        __builtin_prefetch(at, 0, 0);
    else
        __builtin_prefetch(at, 0, 2);
}

#endif
