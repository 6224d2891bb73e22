/* Private to the GGUF reader: the parsed file, shared by the parser (gguf_parse.c) and the accessors (gguf.c). */
#ifndef NODE_GGUF_INT_H
#define NODE_GGUF_INT_H

#include <pthread.h>

#include "model/gguf.h"

typedef enum { /* numbers of the file format */
               GGUF_U8 = 0,
               GGUF_I8 = 1,
               GGUF_U16 = 2,
               GGUF_I16 = 3,
               GGUF_U32 = 4,
               GGUF_I32 = 5,
               GGUF_F32 = 6,
               GGUF_BOOL = 7,
               GGUF_STRING = 8,
               GGUF_ARRAY = 9,
               GGUF_U64 = 10,
               GGUF_I64 = 11,
               GGUF_F64 = 12
} gguf_type_t;

typedef struct gguf_kv {
    node_gguf_str_t key;
    uint32_t type; /* GGUF_ARRAY: n elements of elem_type */
    uint32_t elem_type;
    uint64_t n;
    const uint8_t *data;   /* scalar or first element, little-endian, unaligned */
    node_gguf_str_t str;   /* type GGUF_STRING */
    node_gguf_str_t *strs; /* array of strings: n entries, owned */
} gguf_kv_t;

/* Both tables are sorted by name (bytes, then length), so that a lookup is a binary search whose cost no file can
 * spoil, and duplicates are neighbours. */
struct node_gguf {
    const uint8_t *base;
    size_t bytes;
    bool mapped;
    gguf_kv_t *kvs;
    uint64_t n_kvs;
    node_gguf_tensor_t *tensors; /* file order */
    uint32_t *tensor_order;      /* indices into tensors, sorted by name */
    uint64_t n_tensors;
    uint64_t alignment;
    pthread_mutex_t digest_lock;
    bool has_digest;
    vc_digest_t digest;
};

/* Bytes of one element, 0 for strings, arrays and unknown types. */
size_t node_gguf_type_size(uint32_t type);
/* Fills the tables from base and bytes. On failure the tables may be half full; node_gguf_close frees them. */
vc_status_t node_gguf_parse(node_gguf_t *g, vc_err_t *err);
int node_gguf_name_compare(const char *a, size_t a_len, const char *b, size_t b_len);
const gguf_kv_t *node_gguf_find(const node_gguf_t *g, const char *key);

#endif
