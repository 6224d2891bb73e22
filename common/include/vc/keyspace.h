/*
 * When two prefixes are the same: keyspace, block-hash chain, fidelity.
 *
 * A keyspace is everything that makes KV bytes interchangeable. Its encoding is a list of fields {u16 tag, u32 length,
 * bytes} in ascending tag order, little-endian; keyspace_id = BLAKE2b-256(encoding).
 * Chain: h[-1] = keyspace_id, h[i] = BLAKE2b-256(h[i-1] || u32 n_tokens || n_tokens x u32).
 */
#ifndef VC_KEYSPACE_H
#define VC_KEYSPACE_H

#include <stdbool.h>
#include <stdint.h>

#include "vc/status.h"

#define VC_DIGEST_BYTES 32
#define VC_SPEC_ID_BYTES 16
#define VC_SPEC_TEXT_MAX 128
#define VC_KEYSPACE_ENC_MAX 1024
#define VC_LAYOUT_VERSION 1

typedef struct vc_digest {
    uint8_t b[VC_DIGEST_BYTES];
} vc_digest_t;
typedef struct vc_spec_id {
    uint8_t b[VC_SPEC_ID_BYTES];
} vc_spec_id_t;

typedef enum { VC_DTYPE_F16 = 1, VC_DTYPE_BF16 = 2 } vc_dtype_t;

typedef struct vc_kv_shape {
    uint32_t n_layer;      /* 1..1024 */
    uint32_t n_kv_head;    /* 1..1024 */
    uint32_t head_dim;     /* 1..1024 */
    uint32_t block_tokens; /* 1..1024, default 64 */
    uint32_t dtype;        /* vc_dtype_t */
} vc_kv_shape_t;

typedef struct vc_keyspace {
    vc_digest_t model;     /* over the weights file */
    vc_digest_t tokenizer; /* over vocabulary, merges, types and pre-tokenizer name */
    vc_digest_t adapter;   /* used when has_adapter */
    bool has_adapter;
    vc_kv_shape_t shape;
    uint32_t layout_version;
    char rope[256]; /* canonical text of the RoPE kind with all its parameters, e.g. "neox theta=100000 dims=64" */
    char tenant_salt[64];
} vc_keyspace_t;

vc_status_t vc_kv_shape_check(const vc_kv_shape_t *shape, vc_err_t *err); /* bounds and products that cannot overflow */
/* Bytes of K and V of one layer of one full block, f16/bf16: 2 x n_kv_head x block_tokens x head_dim x 2. */
uint64_t vc_kv_layer_bytes(const vc_kv_shape_t *shape);

/* buf holds VC_KEYSPACE_ENC_MAX bytes; *len_p is the length used. */
vc_status_t vc_keyspace_encode(const vc_keyspace_t *ks, uint8_t *buf, size_t *len_p, vc_err_t *err);
/* Refuses unknown, repeated, missing or out-of-order tags and wrong lengths. */
vc_status_t vc_keyspace_decode(const uint8_t *buf, size_t len, vc_keyspace_t *ks, vc_err_t *err);
vc_status_t vc_keyspace_id(const vc_keyspace_t *ks, vc_digest_t *id_p, vc_err_t *err);
/* Name of the first field that differs ("model", "rope", ...), or NULL when equal. Static storage. */
const char *vc_keyspace_diff(const vc_keyspace_t *a, const vc_keyspace_t *b);
/* The name of the one field that differs; NULL when none does, several do, or it is the tenant salt, which is nobody
 * else's business. Static storage. */
const char *vc_keyspace_near(const vc_keyspace_t *a, const vc_keyspace_t *b);

/* One step of the chain. */
void vc_block_hash(const vc_digest_t *parent, const uint32_t *tokens, uint32_t n_tokens, vc_digest_t *hash_p);
/* hashes[0 .. n_tokens / block_tokens - 1]; a partial last block has no hash. Returns the number of hashes. */
uint32_t vc_block_chain(const vc_digest_t *keyspace_id, const uint32_t *tokens, uint32_t n_tokens,
                        uint32_t block_tokens, vc_digest_t *hashes);

/* Fidelity: the bits of full KV under numerics N, or one compressor's output. */
typedef enum { VC_FIDELITY_FULL = 1, VC_FIDELITY_COMPRESSED = 2 } vc_fidelity_t;

/* Object address: what an index looks up. Compared as bytes; no padding. */
typedef struct vc_object_key {
    uint8_t fidelity; /* vc_fidelity_t */
    vc_spec_id_t spec;
    vc_digest_t hash;
} vc_object_key_t;
_Static_assert(sizeof(vc_object_key_t) == 49, "object key is hashed and stored as bytes");

/* Canonical spec text of full KV: "full@<numerics>". Compressor specs are canonicalised by the compressor itself. */
void vc_spec_full_text(uint32_t numerics_id, char text[VC_SPEC_TEXT_MAX]);
/* First 16 bytes of BLAKE2b-256(u32 len || text || calibration digest or nothing). calib may be NULL. */
void vc_spec_id(const char *canonical_text, const vc_digest_t *calib, vc_spec_id_t *id_p);

void vc_blake2b(const void *data, size_t bytes, vc_digest_t *out);
/* Lower-case hex; hex has room for 2 * bytes + 1. */
void vc_hex(const void *data, size_t bytes, char *hex);
int vc_unhex(const char *hex, void *data, size_t bytes); /* 0, or -1 */

#endif
