/*
 * Data-plane messages: the header of every active message between client and server. Little-endian, fixed layout:
 *
 *   offset  size  field
 *        0     4  magic "VCDP"
 *        4     1  version (1)
 *        5     1  type
 *        6     2  bytes of this header, all fields and text
 *        8     8  request id, chosen by the client: one per FETCH and one per PUT_DATA; 0 only for HELLO, WELCOME and
 *                 ERROR of the whole connection
 *       16   ...  by type (dir, then fields in order; z = zero)
 *   HELLO      >  u32 largest record taken, u32 z
 *   WELCOME    <  u64 boot id, u32 largest record, u32 put window
 *   FETCH      >  u64 boot id, u64 lease id, 16 token, u16 column, u16 flags, u32 first block, u32 number of blocks,
 *                 u32 credits; flag 1: the client's better path has failed; flag 2, layer-major: then u32 header
 *                 bytes, u32 bytes of a layer part, u32 layers, u32 z follow
 *   FETCH_DATA <  u32 block, i32 status, u32 payload bytes, u32 z; the record is the payload, none unless status is OK
 *   FETCH_END  <  i32 status, u32 FETCH_DATA messages sent before it, of which data may still be in flight
 *   CREDIT     >  u32 more FETCH_DATA messages the client takes, u32 z
 *   CANCEL     >  nothing; answered with FETCH_END unless that is on its way
 *   DAMAGED    >  as FETCH with one block, zero flags and credits: that record arrived with wrong bytes
 *   PUT_DATA   >  u64 upload id, 16 token, u32 payload bytes, u32 z; the record is the payload
 *   PUT_ACK    <  i32 status, u16 text bytes, u16 z, text
 *   ERROR      <  i32 status, u16 text bytes, u16 z, text; ends the request it names
 *   PIECE      <  u32 first block, u32 mask, u32 slice, u32 payload bytes; bit i of the mask: block first + i is in it
 *
 * A payload is one whole KV record, a multiple of 4096 bytes; or, in a PIECE, one slice of each block of its mask, in
 * ascending order. Slice 0 is the record's header, slice 1 + i its layer i; they follow each other in the record, all
 * of them multiples of 4096 bytes, and together are the whole record. A layer-major FETCH is answered with slice 0 of
 * all blocks in groups of up to 32, then slice 1 of all, and so on, then FETCH_END. A block that is in no PIECE of its
 * group is absent, damaged at the server, or of another size. Credits count PIECEs there.
 */
#ifndef VC_FRAME_H
#define VC_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vc/status.h"

#define VC_FRAME_VERSION 1
#define VC_FRAME_TEXT_MAX 160u
#define VC_FRAME_MAX (24u + VC_FRAME_TEXT_MAX)
#define VC_FRAME_MAX_BLOCKS 65536u
#define VC_FRAME_MAX_CREDITS 1024u
#define VC_FRAME_MAX_LAYERED 4096u /* blocks of a layer-major FETCH */
#define VC_FRAME_GROUP 32u         /* blocks of a PIECE */

typedef enum {
    VC_FRAME_HELLO = 1,
    VC_FRAME_WELCOME,
    VC_FRAME_FETCH,
    VC_FRAME_FETCH_DATA,
    VC_FRAME_FETCH_END,
    VC_FRAME_CREDIT,
    VC_FRAME_CANCEL,
    VC_FRAME_DAMAGED,
    VC_FRAME_PUT_DATA,
    VC_FRAME_PUT_ACK,
    VC_FRAME_ERROR,
    VC_FRAME_PIECE
} vc_frame_type_t;

typedef struct vc_frame { /* fields that the type does not have are ignored by encode and zero after decode */
    vc_frame_type_t type;
    uint64_t request;
    uint64_t boot_id;
    uint64_t lease_id;
    uint64_t upload_id;
    uint8_t token[16];
    uint32_t fid, first, n;                   /* FETCH, DAMAGED; PIECE: first */
    uint32_t head_bytes, part_bytes, n_layer; /* FETCH: not 0 where it is layer-major */
    uint32_t mask, slice;                     /* PIECE */
    bool stepped_down;                        /* FETCH */
    uint32_t credits;                         /* FETCH, CREDIT */
    uint32_t block;                           /* FETCH_DATA */
    uint32_t payload_bytes;                   /* FETCH_DATA, PUT_DATA, PIECE */
    uint32_t max_record_bytes;
    uint32_t put_window;
    uint32_t n_sent;
    vc_status_t status;
    char text[VC_FRAME_TEXT_MAX + 1];
} vc_frame_t;

/* buf holds VC_FRAME_MAX bytes; the length is returned. A text longer than the limit is cut,
 * control characters in it become "?". */
size_t vc_frame_encode(const vc_frame_t *frame, uint8_t buf[VC_FRAME_MAX]);
/* Validates every field, and that the message's payload is as long as the header says. INVALID with the field's name.
 */
vc_status_t vc_frame_decode(const void *data, size_t bytes, size_t payload_bytes, vc_frame_t *frame_p, vc_err_t *err);
/* Types that a client sends; all others come from the server. */
bool vc_frame_is_from_client(vc_frame_type_t type);
const char *vc_frame_type_name(vc_frame_type_t type);

#endif
