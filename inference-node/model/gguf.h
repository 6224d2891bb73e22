/*
 * GGUF reader (versions 2 and 3): maps the file, validates every count, length, offset and type before use, then
 * answers from memory. Immutable after open; any thread may read.
 */
#ifndef NODE_GGUF_H
#define NODE_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "vc/keyspace.h"
#include "vc/status.h"

typedef enum { /* numbers of the file format */
               NODE_GGML_F32 = 0,
               NODE_GGML_F16 = 1,
               NODE_GGML_Q4_0 = 2,
               NODE_GGML_Q4_1 = 3,
               NODE_GGML_Q8_0 = 8
} node_ggml_type_t;

typedef struct node_gguf node_gguf_t;

typedef struct node_gguf_tensor {
    const char *name; /* NUL-terminated, owned by the file */
    uint32_t type;    /* node_ggml_type_t; others are kept so that an error can name them */
    uint32_t n_dims;
    uint64_t ne[4];   /* ne[0] is the fastest (row length) */
    const void *data; /* at a multiple of general.alignment (8 to 64 Ki, 32 by default) from the start of the file */
    uint64_t bytes;   /* checked against type and ne; 0 when the type is unknown to us */
} node_gguf_tensor_t;

typedef struct node_gguf_str {
    const char *data;
    uint64_t len;
} node_gguf_str_t; /* not NUL-terminated */

vc_status_t node_gguf_open(const char *path, node_gguf_t **gguf_p, vc_err_t *err);
/* For tests and the fuzzer: data stays the caller's and must outlive the handle; 64-byte aligned. */
vc_status_t node_gguf_open_memory(const void *data, size_t bytes, node_gguf_t **gguf_p, vc_err_t *err);
void node_gguf_close(node_gguf_t *gguf);

uint64_t node_gguf_n_tensors(const node_gguf_t *gguf);
const node_gguf_tensor_t *node_gguf_tensor_at(const node_gguf_t *gguf, uint64_t i);
const node_gguf_tensor_t *node_gguf_tensor(const node_gguf_t *gguf, const char *name); /* NULL when absent */

/* Metadata by key. NOT_FOUND when absent, INVALID when of another type (integers convert when they fit). *_p is written
 * only on success; RANGE for an array index past the end. */
vc_status_t node_gguf_u64(const node_gguf_t *gguf, const char *key, uint64_t *v_p);
vc_status_t node_gguf_f64(const node_gguf_t *gguf, const char *key, double *v_p);
vc_status_t node_gguf_bool(const node_gguf_t *gguf, const char *key, bool *v_p);
vc_status_t node_gguf_str(const node_gguf_t *gguf, const char *key, node_gguf_str_t *v_p);
/* Arrays. */
vc_status_t node_gguf_arr_len(const node_gguf_t *gguf, const char *key, uint64_t *n_p);
vc_status_t node_gguf_arr_str(const node_gguf_t *gguf, const char *key, uint64_t i, node_gguf_str_t *v_p);
vc_status_t node_gguf_arr_i64(const node_gguf_t *gguf, const char *key, uint64_t i, int64_t *v_p);
vc_status_t node_gguf_arr_f64(const node_gguf_t *gguf, const char *key, uint64_t i, double *v_p);

/* BLAKE2b-256 over the whole file: the weights digest. Computed on first use, kept. */
void node_gguf_digest(node_gguf_t *gguf, vc_digest_t *digest_p);

#endif
