/* Checked allocation. Out of memory is a status, never an exit. All blocks are freed with vc_free. */
#ifndef VC_MEM_H
#define VC_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed memory, or NULL on overflow of n * size or when out of memory. A zero size yields a unique block. */
void *vc_calloc(size_t n, size_t size);
void *vc_alloc(size_t bytes);                       /* not zeroed */
void *vc_realloc(void *ptr, size_t n, size_t size); /* ptr stays valid on failure */
/* align is a power of two and at least sizeof(void *). Not zeroed. Freed with vc_free. */
void *vc_alloc_aligned(size_t align, size_t bytes);
char *vc_strdup(const char *s);
void *vc_memdup(const void *ptr, size_t bytes);
void vc_free(void *ptr);

/* True when it fits; *out is written only then. */
static inline bool vc_size_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool vc_size_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }

/* Rounds up to a multiple of align (power of two); the caller knows it cannot overflow. */
static inline size_t vc_align_up(size_t n, size_t align) { return (n + align - 1) & ~(align - 1); }

#define VC_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define VC_MIN(a, b) ((a) < (b) ? (a) : (b))
#define VC_MAX(a, b) ((a) > (b) ? (a) : (b))

#endif
