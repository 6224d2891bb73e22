/* RecordFrame: protobuf's wire format for one message, without copies. Pure. */
#include "vc/recframe.h"

#include <stdbool.h>
#include <string.h>

#include "vc/bytes.h"

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };
enum { F_BLOCK = 1, F_OFFSET, F_RECORD_BYTES, F_STATUS, F_UPLOAD_ID, F_TOKEN, F_DATA };

static size_t put_varint(uint8_t *p, uint64_t v)
{
    size_t n = 0;
    while (v >= 0x80) {
        p[n++] = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    p[n++] = (uint8_t)v;
    return n;
}

static size_t put_field(uint8_t *p, unsigned field, uint64_t v)
{
    if (v == 0)
        return 0; /* proto3: the default is not sent */
    size_t n = put_varint(p, field << 3 | WIRE_VARINT);
    return n + put_varint(p + n, v);
}

size_t vc_recframe_encode_head(const vc_recframe_t *frame, uint8_t head[VC_RECFRAME_HEAD_MAX])
{
    size_t n = put_field(head, F_BLOCK, frame->block);
    n += put_field(head + n, F_OFFSET, frame->offset);
    n += put_field(head + n, F_RECORD_BYTES, frame->record_bytes);
    n += put_field(head + n, F_STATUS, frame->status);
    if (frame->upload_id != 0) {
        n += put_varint(head + n, F_UPLOAD_ID << 3 | WIRE_FIXED64);
        vc_put_le64(head + n, frame->upload_id);
        n += 8;
    }
    if (frame->token != NULL) {
        n += put_varint(head + n, F_TOKEN << 3 | WIRE_BYTES);
        n += put_varint(head + n, 16);
        memcpy(head + n, frame->token, 16);
        n += 16;
    }
    if (frame->data_len != 0) {
        n += put_varint(head + n, F_DATA << 3 | WIRE_BYTES);
        n += put_varint(head + n, frame->data_len);
    }
    return n;
}

static uint64_t read_varint(vc_reader_t *r)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t b = vc_read_u8(r);
        v |= (uint64_t)(b & 0x7f) << shift;
        if ((b & 0x80) == 0)
            return v;
    }
    r->failed = true; /* more than ten bytes */
    return 0;
}

static void take_varint(vc_reader_t *r, unsigned field, vc_recframe_t *f)
{
    uint64_t v = read_varint(r);
    bool narrow = field == F_BLOCK || field == F_STATUS;
    if (narrow && v > UINT32_MAX)
        r->failed = true;
    switch (field) {
    case F_BLOCK: f->block = (uint32_t)v; break;
    case F_OFFSET: f->offset = v; break;
    case F_RECORD_BYTES: f->record_bytes = v; break;
    case F_STATUS: f->status = (uint32_t)v; break;
    default: break;
    }
}

static void take_bytes(vc_reader_t *r, unsigned field, vc_recframe_t *f)
{
    uint64_t len = read_varint(r);
    const uint8_t *p = len > vc_reader_left(r) ? NULL : vc_read_bytes(r, (size_t)len);
    if (p == NULL || (field == F_TOKEN && len != 16)) {
        r->failed = true;
        return;
    }
    if (field == F_TOKEN)
        f->token = p;
    if (field == F_DATA) {
        f->data = p;
        f->data_len = (size_t)len;
    }
}

static bool known_with_other_type(unsigned field, unsigned type)
{
    if (field == F_UPLOAD_ID)
        return type != WIRE_FIXED64;
    if (field == F_TOKEN || field == F_DATA)
        return type != WIRE_BYTES;
    return field >= F_BLOCK && field <= F_STATUS && type != WIRE_VARINT;
}

vc_status_t vc_recframe_decode(const uint8_t *message, size_t len, vc_recframe_t *frame_p)
{
    vc_recframe_t f = {0};
    vc_reader_t r = vc_reader(message, len);
    while (!r.failed && vc_reader_left(&r) != 0) {
        uint64_t tag = read_varint(&r), field = tag >> 3;
        unsigned type = tag & 7;
        if (field == 0 || field > 536870911 || known_with_other_type((unsigned)field, type))
            return VC_ERR_INVALID;
        if (type == WIRE_VARINT) {
            take_varint(&r, (unsigned)field, &f);
        } else if (type == WIRE_BYTES) {
            take_bytes(&r, (unsigned)field, &f);
        } else if (type == WIRE_FIXED64) {
            uint64_t v = vc_read_u64(&r);
            if (field == F_UPLOAD_ID)
                f.upload_id = v;
        } else if (type == WIRE_FIXED32) {
            vc_read_u32(&r);
        } else {
            return VC_ERR_INVALID; /* groups */
        }
    }
    if (r.failed || f.data_len > VC_RECFRAME_DATA_MAX || f.offset > f.record_bytes ||
        f.data_len > f.record_bytes - f.offset)
        return VC_ERR_INVALID;
    *frame_p = f;
    return VC_OK;
}
