/*
 * RecordFrame of vericache.proto by hand: a head that is copied and a body that stays where it lies. protobuf-c would
 * pack and unpack megabytes through copies. The fields are those of the .proto; the encoder writes them in ascending
 * order, the decoder takes any order and skips fields it does not know.
 */
#ifndef VC_RECFRAME_H
#define VC_RECFRAME_H

#include <stddef.h>
#include <stdint.h>

#include "vc/status.h"

#define VC_RECFRAME_DATA_MAX (1u << 20)
#define VC_RECFRAME_HEAD_MAX 96

typedef enum { VC_RECFRAME_OK = 0, VC_RECFRAME_NOT_FOUND = 1, VC_RECFRAME_CORRUPT = 2 } vc_recframe_status_t;

typedef struct vc_recframe {
    uint32_t block;
    uint64_t offset, record_bytes;
    uint32_t status; /* vc_recframe_status_t */
    uint64_t upload_id;
    const uint8_t *token; /* 16 bytes, or NULL */
    const uint8_t *data;  /* the decoder points into the message */
    size_t data_len;
} vc_recframe_t;

/* Everything up to the first byte of data. Returns the length, at most VC_RECFRAME_HEAD_MAX. */
size_t vc_recframe_encode_head(const vc_recframe_t *frame, uint8_t head[VC_RECFRAME_HEAD_MAX]);
/* INVALID for a message that is not a RecordFrame or breaks its bounds (data, offset + data within record_bytes). */
vc_status_t vc_recframe_decode(const uint8_t *message, size_t len, vc_recframe_t *frame_p);

#endif
