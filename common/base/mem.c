/* Allocation with overflow checks; thin on purpose so that sanitizers see every block. */
#include "vc/mem.h"

#include <stdlib.h>
#include <string.h>

void *vc_calloc(size_t n, size_t size)
{
    size_t bytes;
    if (!vc_size_mul(n, size, &bytes))
        return NULL;
    return calloc(1, bytes ? bytes : 1);
}

void *vc_alloc(size_t bytes) { return malloc(bytes ? bytes : 1); }

void *vc_realloc(void *ptr, size_t n, size_t size)
{
    size_t bytes;
    if (!vc_size_mul(n, size, &bytes))
        return NULL;
    return realloc(ptr, bytes ? bytes : 1);
}

void *vc_alloc_aligned(size_t align, size_t bytes)
{
    void *ptr = NULL;
    if (posix_memalign(&ptr, align, bytes ? bytes : 1) != 0)
        return NULL;
    return ptr;
}

char *vc_strdup(const char *s) { return vc_memdup(s, strlen(s) + 1); }

void *vc_memdup(const void *ptr, size_t bytes)
{
    void *copy = vc_alloc(bytes);
    if (copy != NULL && bytes != 0)
        memcpy(copy, ptr, bytes);
    return copy;
}

void vc_free(void *ptr) { free(ptr); }
