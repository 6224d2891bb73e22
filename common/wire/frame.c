/* Data-plane message headers: layout in vc/frame.h. Nothing is taken over before all of it is checked. */
#include "vc/frame.h"

#include <string.h>

#include "vc/bytes.h"
#include "vc/kvrec.h"
#include "vc/mem.h"

#define FLAG_STEPPED_DOWN 1u
#define FLAG_LAYERS 2u

static const uint8_t magic[4] = {'V', 'C', 'D', 'P'};

static const struct {
    const char *name;
    bool from_client;
} types[] = {
    [VC_FRAME_HELLO] = {"hello", true},          [VC_FRAME_WELCOME] = {"welcome", false},
    [VC_FRAME_FETCH] = {"fetch", true},          [VC_FRAME_FETCH_DATA] = {"fetch_data", false},
    [VC_FRAME_FETCH_END] = {"fetch_end", false}, [VC_FRAME_CREDIT] = {"credit", true},
    [VC_FRAME_CANCEL] = {"cancel", true},        [VC_FRAME_DAMAGED] = {"damaged", true},
    [VC_FRAME_PUT_DATA] = {"put_data", true},    [VC_FRAME_PUT_ACK] = {"put_ack", false},
    [VC_FRAME_ERROR] = {"error", false},         [VC_FRAME_PIECE] = {"piece", false},
};

bool vc_frame_is_from_client(vc_frame_type_t type)
{
    return (size_t)type < VC_ARRAY_LEN(types) && types[type].from_client;
}

const char *vc_frame_type_name(vc_frame_type_t type)
{
    if ((size_t)type >= VC_ARRAY_LEN(types) || types[type].name == NULL)
        return "unknown";
    return types[type].name;
}

static void write_text(vc_writer_t *w, const vc_frame_t *f)
{
    size_t len = strnlen(f->text, VC_FRAME_TEXT_MAX);
    vc_write_u32(w, (uint32_t)f->status);
    vc_write_u16(w, (uint16_t)len);
    vc_write_u16(w, 0);
    for (size_t i = 0; i < len; i++) { /* readers take one printable line only */
        uint8_t c = (uint8_t)f->text[i];
        vc_write_u8(w, c < 0x20 || c == 0x7f ? '?' : c);
    }
}

static void write_range(vc_writer_t *w, const vc_frame_t *f)
{
    vc_write_u64(w, f->boot_id);
    vc_write_u64(w, f->lease_id);
    vc_write_bytes(w, f->token, sizeof(f->token));
    vc_write_u16(w, (uint16_t)f->fid);
    bool layers = f->type == VC_FRAME_FETCH && f->n_layer != 0;
    vc_write_u16(w, (uint16_t)((f->type == VC_FRAME_FETCH && f->stepped_down ? FLAG_STEPPED_DOWN : 0) |
                               (layers ? FLAG_LAYERS : 0)));
    vc_write_u32(w, f->first);
    vc_write_u32(w, f->n);
    vc_write_u32(w, f->type == VC_FRAME_FETCH ? f->credits : 0);
    if (!layers)
        return;
    vc_write_u32(w, f->head_bytes);
    vc_write_u32(w, f->part_bytes);
    vc_write_u32(w, f->n_layer);
    vc_write_u32(w, 0);
}

static void write_body(vc_writer_t *w, const vc_frame_t *f)
{
    switch (f->type) {
    case VC_FRAME_HELLO:
        vc_write_u32(w, f->max_record_bytes);
        vc_write_u32(w, 0);
        break;
    case VC_FRAME_WELCOME:
        vc_write_u64(w, f->boot_id);
        vc_write_u32(w, f->max_record_bytes);
        vc_write_u32(w, f->put_window);
        break;
    case VC_FRAME_FETCH:
    case VC_FRAME_DAMAGED: write_range(w, f); break;
    case VC_FRAME_FETCH_DATA:
        vc_write_u32(w, f->block);
        vc_write_u32(w, (uint32_t)f->status);
        vc_write_u32(w, f->payload_bytes);
        vc_write_u32(w, 0);
        break;
    case VC_FRAME_FETCH_END:
        vc_write_u32(w, (uint32_t)f->status);
        vc_write_u32(w, f->n_sent);
        break;
    case VC_FRAME_CREDIT:
        vc_write_u32(w, f->credits);
        vc_write_u32(w, 0);
        break;
    case VC_FRAME_CANCEL: break;
    case VC_FRAME_PIECE:
        vc_write_u32(w, f->first);
        vc_write_u32(w, f->mask);
        vc_write_u32(w, f->slice);
        vc_write_u32(w, f->payload_bytes);
        break;
    case VC_FRAME_PUT_DATA:
        vc_write_u64(w, f->upload_id);
        vc_write_bytes(w, f->token, sizeof(f->token));
        vc_write_u32(w, f->payload_bytes);
        vc_write_u32(w, 0);
        break;
    case VC_FRAME_PUT_ACK:
    case VC_FRAME_ERROR: write_text(w, f); break;
    }
}

size_t vc_frame_encode(const vc_frame_t *frame, uint8_t buf[VC_FRAME_MAX])
{
    vc_writer_t w = vc_writer(buf, VC_FRAME_MAX);
    vc_write_bytes(&w, magic, sizeof(magic));
    vc_write_u8(&w, VC_FRAME_VERSION);
    vc_write_u8(&w, (uint8_t)frame->type);
    vc_write_u16(&w, 0);
    vc_write_u64(&w, frame->request);
    write_body(&w, frame);
    size_t bytes = (size_t)(w.p - buf);
    vc_put_le16(buf + 6, (uint16_t)bytes);
    return bytes;
}

/* A cursor that remembers the first thing that was wrong. */
typedef struct parse {
    vc_reader_t r;
    const char *wrong;
} parse_t;

static void need(parse_t *p, bool holds, const char *what)
{
    if (!holds && p->wrong == NULL)
        p->wrong = what;
}

static void need_zero(parse_t *p) { need(p, vc_read_u32(&p->r) == 0, "zero field"); }

static vc_status_t read_status(parse_t *p)
{
    vc_status_t status = (vc_status_t)(int32_t)vc_read_u32(&p->r);
    bool known = status <= VC_OK && status >= VC_ERR_INTERNAL && strcmp(vc_status_name(status), "unknown") != 0;
    need(p, known, "status");
    return known ? status : VC_ERR_PROTOCOL;
}

static void read_token(parse_t *p, vc_frame_t *f)
{
    const uint8_t *token = vc_read_bytes(&p->r, sizeof(f->token));
    if (token != NULL)
        memcpy(f->token, token, sizeof(f->token));
}

static void read_payload_bytes(parse_t *p, vc_frame_t *f)
{
    f->payload_bytes = vc_read_u32(&p->r);
    need(p, f->payload_bytes % VC_KVREC_ALIGN == 0 && f->payload_bytes <= VC_KVREC_MAX_BYTES, "payload length");
    need_zero(p);
}

static void read_text(parse_t *p, vc_frame_t *f)
{
    f->status = read_status(p);
    uint16_t len = vc_read_u16(&p->r);
    need(p, vc_read_u16(&p->r) == 0, "zero field");
    need(p, len <= VC_FRAME_TEXT_MAX, "text length");
    const uint8_t *text = len <= VC_FRAME_TEXT_MAX ? vc_read_bytes(&p->r, len) : NULL;
    for (uint16_t i = 0; text != NULL && i < len; i++) { /* goes to logs and to people: one printable line */
        need(p, text[i] >= 0x20 && text[i] != 0x7f, "text");
        f->text[i] = (char)text[i];
    }
}

/* Of a layer-major fetch; every slice is whole pages, and all of them one record. */
static void read_layout(parse_t *p, vc_frame_t *f)
{
    f->head_bytes = vc_read_u32(&p->r);
    f->part_bytes = vc_read_u32(&p->r);
    f->n_layer = vc_read_u32(&p->r);
    need_zero(p);
    need(p, f->n <= VC_FRAME_MAX_LAYERED, "block range");
    need(p,
         f->head_bytes > 0 && f->part_bytes > 0 && f->n_layer > 0 &&
             (f->head_bytes | f->part_bytes) % VC_KVREC_ALIGN == 0 &&
             f->head_bytes + (uint64_t)f->part_bytes * f->n_layer <= VC_KVREC_MAX_BYTES,
         "record layout");
}

static void read_range(parse_t *p, vc_frame_t *f)
{
    f->boot_id = vc_read_u64(&p->r);
    f->lease_id = vc_read_u64(&p->r);
    read_token(p, f);
    f->fid = vc_read_u16(&p->r);
    uint16_t flags = vc_read_u16(&p->r);
    f->first = vc_read_u32(&p->r);
    f->n = vc_read_u32(&p->r);
    f->credits = vc_read_u32(&p->r);
    need(p, f->fid < 8, "column");
    need(p, (flags & ~(f->type == VC_FRAME_FETCH ? FLAG_STEPPED_DOWN | FLAG_LAYERS : 0u)) == 0, "flag");
    f->stepped_down = (flags & FLAG_STEPPED_DOWN) != 0;
    need(p, f->n >= 1 && f->n <= VC_FRAME_MAX_BLOCKS && f->first <= UINT32_MAX - f->n, "block range");
    if (f->type == VC_FRAME_FETCH)
        need(p, f->credits >= 1 && f->credits <= VC_FRAME_MAX_CREDITS, "credits");
    else
        need(p, f->n == 1 && f->credits == 0, "block range");
    if ((flags & FLAG_LAYERS) != 0)
        read_layout(p, f);
}

static void read_piece(parse_t *p, vc_frame_t *f)
{
    f->first = vc_read_u32(&p->r);
    f->mask = vc_read_u32(&p->r);
    f->slice = vc_read_u32(&p->r);
    f->payload_bytes = vc_read_u32(&p->r);
    uint32_t n = (uint32_t)__builtin_popcount(f->mask);
    need(p, f->first <= UINT32_MAX - VC_FRAME_GROUP, "block range");
    need(p,
         n == 0 ? f->payload_bytes == 0
                : f->payload_bytes > 0 && f->payload_bytes % (n * VC_KVREC_ALIGN) == 0 &&
                      f->payload_bytes <= VC_KVREC_MAX_BYTES,
         "payload length");
}

static void read_record_size(parse_t *p, vc_frame_t *f)
{
    f->max_record_bytes = vc_read_u32(&p->r);
    need(p, f->max_record_bytes >= VC_KVREC_ALIGN && f->max_record_bytes <= VC_KVREC_MAX_BYTES, "largest record");
}

static void read_credits(parse_t *p, uint32_t *credits_p, const char *what)
{
    *credits_p = vc_read_u32(&p->r);
    need(p, *credits_p >= 1 && *credits_p <= VC_FRAME_MAX_CREDITS, what);
}

static void read_body(parse_t *p, vc_frame_t *f)
{
    switch (f->type) {
    case VC_FRAME_HELLO:
        read_record_size(p, f);
        need_zero(p);
        break;
    case VC_FRAME_WELCOME:
        f->boot_id = vc_read_u64(&p->r);
        read_record_size(p, f);
        read_credits(p, &f->put_window, "put window");
        break;
    case VC_FRAME_FETCH:
    case VC_FRAME_DAMAGED: read_range(p, f); break;
    case VC_FRAME_FETCH_DATA:
        f->block = vc_read_u32(&p->r);
        f->status = read_status(p);
        read_payload_bytes(p, f);
        need(p, (f->payload_bytes > 0) == (f->status == VC_OK), "payload length");
        break;
    case VC_FRAME_FETCH_END:
        f->status = read_status(p);
        f->n_sent = vc_read_u32(&p->r);
        need(p, f->n_sent <= VC_FRAME_MAX_BLOCKS, "number of blocks");
        break;
    case VC_FRAME_CREDIT:
        read_credits(p, &f->credits, "credits");
        need_zero(p);
        break;
    case VC_FRAME_CANCEL: break;
    case VC_FRAME_PIECE: read_piece(p, f); break;
    case VC_FRAME_PUT_DATA:
        f->upload_id = vc_read_u64(&p->r);
        read_token(p, f);
        read_payload_bytes(p, f);
        need(p, f->payload_bytes > 0, "payload length");
        break;
    case VC_FRAME_PUT_ACK:
    case VC_FRAME_ERROR: read_text(p, f); break;
    default: need(p, false, "type");
    }
}

vc_status_t vc_frame_decode(const void *data, size_t bytes, size_t payload_bytes, vc_frame_t *frame_p, vc_err_t *err)
{
    parse_t p = {.r = vc_reader(data, bytes)};
    vc_frame_t f = {0};
    const uint8_t *found = vc_read_bytes(&p.r, sizeof(magic));
    need(&p, found != NULL && memcmp(found, magic, sizeof(magic)) == 0, "magic");
    need(&p, vc_read_u8(&p.r) == VC_FRAME_VERSION, "version");
    f.type = (vc_frame_type_t)vc_read_u8(&p.r);
    need(&p, vc_read_u16(&p.r) == bytes, "header length");
    f.request = vc_read_u64(&p.r);
    if (p.wrong == NULL && !p.r.failed)
        read_body(&p, &f);
    bool plain = f.type == VC_FRAME_HELLO || f.type == VC_FRAME_WELCOME || f.type == VC_FRAME_ERROR;
    need(&p, f.request != 0 || plain, "request id");
    need(&p, !p.r.failed && vc_reader_left(&p.r) == 0, "header length");
    need(&p, payload_bytes == f.payload_bytes, "payload length");
    if (p.wrong != NULL)
        return vc_err_set(err, VC_ERR_INVALID, "data-plane message of type %s has a wrong %s",
                          vc_frame_type_name(f.type), p.wrong);
    *frame_p = f;
    return VC_OK;
}
