/* Shared by the reading and the writing half of the record format. */
#ifndef KVREC_INT_H
#define KVREC_INT_H

#include "vc/kvrec.h"

/* Offsets of the header fields; the table in vc/kvrec.h is the specification. */
enum {
    KVREC_VERSION_AT = 4,
    KVREC_HEADER_BYTES_AT = 8,
    KVREC_CRC_AT = 12,
    KVREC_FIDELITY_AT = 16,
    KVREC_DTYPE_AT = 17,
    KVREC_KIND_AT = 18,
    KVREC_ZERO1_AT = 19,
    KVREC_BLOCK_INDEX_AT = 20,
    KVREC_N_LAYER_AT = 24,
    KVREC_N_KV_HEAD_AT = 28,
    KVREC_HEAD_DIM_AT = 32,
    KVREC_BLOCK_TOKENS_AT = 36,
    KVREC_PAYLOAD_BYTES_AT = 40,
    KVREC_NUMERICS_AT = 48,
    KVREC_HORIZON_TOKENS_AT = 52,
    KVREC_HORIZON_FIRST_AT = 56,
    KVREC_ZERO2_AT = 60,
    KVREC_SPEC_AT = 64,
    KVREC_KEYSPACE_AT = 80,
    KVREC_HASH_AT = 112,
    KVREC_PARENT_AT = 144,
    KVREC_ZERO3_AT = 176,
    KVREC_TOKENS_AT = 192,
    KVREC_LAYER_ENTRY = 16
};
_Static_assert(KVREC_SPEC_AT + VC_SPEC_ID_BYTES == KVREC_KEYSPACE_AT, "layout");
_Static_assert(KVREC_KEYSPACE_AT + VC_DIGEST_BYTES == KVREC_HASH_AT, "layout");
_Static_assert(KVREC_HASH_AT + VC_DIGEST_BYTES == KVREC_PARENT_AT, "layout");
_Static_assert(KVREC_PARENT_AT + VC_DIGEST_BYTES == KVREC_ZERO3_AT, "layout");

#define KVREC_MAGIC "VCKV"

/* Boundary on which every layer part starts. */
uint32_t kvrec_part_align(vc_kvrec_kind_t kind);
/* Sum of the header with its own field taken as zero. */
uint32_t kvrec_header_crc(const uint8_t *header, uint32_t header_bytes);
/* Everything that the fields say about each other, apart from sizes and sums. CORRUPT with the sentence. */
vc_status_t kvrec_check_fields(const vc_kvrec_head_t *head, vc_err_t *err);

#endif
