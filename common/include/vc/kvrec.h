/*
 * The KV record: one format on disk, on UCX and on gRPC. One record per (fidelity, block):
 * header (multiple of 4 KiB), payload, zero padding to 4 KiB. Little-endian.
 *
 *   offset  size  field
 *        0     4  magic "VCKV"
 *        4     4  version (1)
 *        8     4  header_bytes (multiple of 4096)
 *       12     4  CRC32C of the header's header_bytes with this field zero
 *       16     1  fidelity (vc_fidelity_t)
 *       17     1  dtype (vc_dtype_t)
 *       18     1  kind of payload (vc_kvrec_kind_t)
 *       19     1  zero
 *       20     4  block_index
 *       24     4  n_layer
 *       28     4  n_kv_head
 *       32     4  head_dim
 *       36     4  block_tokens
 *       40     8  payload_bytes: from the end of the header to the end of the last layer part
 *       48     4  numerics_id that computed the KV
 *       52     4  horizon_tokens: end of the registration whose tokens chose the rows (0 for full)
 *       56     4  horizon_first: first position of that registration (0 for full)
 *       60     4  zero
 *       64    16  spec_id
 *       80    32  keyspace_id
 *      112    32  block_hash
 *      144    32  parent_hash
 *      176    16  zero
 *      192   4*B  token ids (B = block_tokens)
 *    192+4B 16*L  per layer {u64 offset from the record's start, u32 length, u32 CRC32C of the part}
 *      ...        zero up to header_bytes
 *
 * Layer parts are in layer order; each starts at the first boundary after the one before it (4 KiB in a full record, 64
 * bytes in a compressed one), the first right after the header; the bytes between them are zero. Equal KV is equal
 * bytes: nothing that varies between two makers is stored, and there is one place only where a part can be.
 * Full records carry the spec id of "full@<numerics_id>". The parent of block 0 is the keyspace id. A horizon, where
 * there is one, spans the block. A later version keeps the first 16 bytes, so that it is told apart from damage.
 */
#ifndef VC_KVREC_H
#define VC_KVREC_H

#include "vc/keyspace.h"

#define VC_KVREC_VERSION 1
#define VC_KVREC_ALIGN 4096u
#define VC_KVREC_PART_ALIGN 64u /* layer parts of compressed records: one cache line */
#define VC_KVREC_MAX_BYTES (256u << 20)

typedef enum { VC_KVREC_FULL = 1, VC_KVREC_DROPPER = 2, VC_KVREC_QUANTISER = 3 } vc_kvrec_kind_t;

typedef struct vc_kvrec_layer {
    uint64_t offset; /* from the start of the record */
    uint32_t length;
    uint32_t crc;
} vc_kvrec_layer_t;

/* Decoded header. tokens and layers point into the caller's arrays (see decode). */
typedef struct vc_kvrec_head {
    uint32_t header_bytes;
    vc_fidelity_t fidelity;
    vc_kvrec_kind_t kind;
    vc_kv_shape_t shape;
    uint32_t block_index;
    uint64_t payload_bytes;
    uint32_t numerics_id;
    uint32_t horizon_tokens, horizon_first;
    vc_spec_id_t spec;
    vc_digest_t keyspace, hash, parent;
    const uint8_t *tokens_le; /* block_tokens x u32, inside the header bytes */
    const uint8_t *layers_le; /* n_layer x 16 bytes, inside the header bytes */
} vc_kvrec_head_t;

/* Header size for a shape, a multiple of 4096. */
uint32_t vc_kvrec_header_bytes(const vc_kv_shape_t *shape);
/* Whole record of full KV for a shape: header + layers padded to 4 KiB each. SmolLM2-135M: 4096 + 30 x 49152 =
 * 1,478,656. */
uint64_t vc_kvrec_full_bytes(const vc_kv_shape_t *shape);
/* Whole record of a decoded header: header + payload, rounded up to 4 KiB. */
uint64_t vc_kvrec_bytes(const vc_kvrec_head_t *head);

/*
 * Validates everything that a header can say by itself: magic, version, sizes, bounds, zero fields, header CRC, layer
 * table inside the payload, in order, without overlap; for full records the exact layer size and alignment; the hash
 * recomputed from parent and tokens. bytes: how many are at data (at least header_bytes, else INVALID). The decoded
 * head points into data. CORRUPT when a checksum or structure does not hold, UNSUPPORTED for a sound header of another
 * version. *head_p is written only on success.
 */
vc_status_t vc_kvrec_decode(const void *data, size_t bytes, vc_kvrec_head_t *head_p, vc_err_t *err);
void vc_kvrec_layer(const vc_kvrec_head_t *head, uint32_t layer, vc_kvrec_layer_t *layer_p);
uint32_t vc_kvrec_token(const vc_kvrec_head_t *head, uint32_t i);
/* part: the layer's bytes. OK or CORRUPT. */
vc_status_t vc_kvrec_check_layer(const vc_kvrec_head_t *head, uint32_t layer, const void *part, vc_err_t *err);
/* Header, every layer, and the zero bytes between and after them; the record must be exactly `bytes` long. */
vc_status_t vc_kvrec_check(const void *record, size_t bytes, vc_kvrec_head_t *head_p, vc_err_t *err);
/* Key under which the record is found. */
void vc_kvrec_key(const vc_kvrec_head_t *head, vc_object_key_t *key_p);

/*
 * Writing: begin, one add per layer in ascending order, end. The record grows in buf (cap bytes, 4 KiB aligned is not
 * required). head gives all fields but header_bytes, payload_bytes, tokens_le, layers_le; tokens are given here.
 * hash is computed from parent and tokens; it is written to head->hash. For block 0 parent must be the keyspace id.
 * Full records take spec = vc_spec_id("full@<numerics_id>"). INVALID for fields that decode would refuse and for a
 * call out of order, RANGE when the record outgrows cap or the limit.
 */
typedef struct vc_kvrec_writer {
    uint8_t *buf;
    size_t cap, used;
    uint32_t next_layer;
    vc_kvrec_head_t head;
} vc_kvrec_writer_t;
vc_status_t vc_kvrec_write_begin(vc_kvrec_writer_t *w, void *buf, size_t cap, vc_kvrec_head_t *head,
                                 const uint32_t *tokens, vc_err_t *err);
/* *part_p: where the caller writes `length` bytes of this layer before the next call. */
vc_status_t vc_kvrec_write_layer(vc_kvrec_writer_t *w, uint32_t length, void **part_p, vc_err_t *err);
/* Sums the parts, fills the header, zeroes the padding. *bytes_p: length of the record, a multiple of 4096. */
vc_status_t vc_kvrec_write_end(vc_kvrec_writer_t *w, size_t *bytes_p, vc_err_t *err);

#endif
