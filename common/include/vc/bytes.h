/* Little-endian codec over bounded buffers: a reader or writer that went out of bounds stays failed. */
#ifndef VC_BYTES_H
#define VC_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t vc_le16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
static inline uint32_t vc_le32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
static inline uint64_t vc_le64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}
static inline void vc_put_le16(void *p, uint16_t v) { memcpy(p, &v, 2); }
static inline void vc_put_le32(void *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void vc_put_le64(void *p, uint64_t v) { memcpy(p, &v, 8); }
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the codec copies bytes as they are");

typedef struct vc_reader {
    const uint8_t *p, *end;
    bool failed; /* set by the first read past the end; every later read yields 0 */
} vc_reader_t;

static inline vc_reader_t vc_reader(const void *p, size_t n)
{
    /* Empty messages have no address, and NULL + 0 is not defined in C. */
    vc_reader_t r = {(const uint8_t *)p, n ? (const uint8_t *)p + n : (const uint8_t *)p, false};
    return r;
}
static inline size_t vc_reader_left(const vc_reader_t *r) { return (size_t)(r->end - r->p); }
/* NULL and failed when fewer than n bytes are left. */
static inline const uint8_t *vc_read_bytes(vc_reader_t *r, size_t n)
{
    if (r->failed || vc_reader_left(r) < n) {
        r->failed = true;
        return NULL;
    }
    const uint8_t *p = r->p;
    r->p += n;
    return p;
}
static inline uint8_t vc_read_u8(vc_reader_t *r)
{
    const uint8_t *p = vc_read_bytes(r, 1);
    return p ? *p : 0;
}
static inline uint16_t vc_read_u16(vc_reader_t *r)
{
    const uint8_t *p = vc_read_bytes(r, 2);
    return p ? vc_le16(p) : 0;
}
static inline uint32_t vc_read_u32(vc_reader_t *r)
{
    const uint8_t *p = vc_read_bytes(r, 4);
    return p ? vc_le32(p) : 0;
}
static inline uint64_t vc_read_u64(vc_reader_t *r)
{
    const uint8_t *p = vc_read_bytes(r, 8);
    return p ? vc_le64(p) : 0;
}

typedef struct vc_writer {
    uint8_t *p, *end;
    bool failed; /* set by the first write that does not fit; nothing is written after that */
} vc_writer_t;

static inline vc_writer_t vc_writer(void *p, size_t n)
{
    vc_writer_t w = {(uint8_t *)p, (uint8_t *)p + n, false};
    return w;
}
static inline void vc_write_bytes(vc_writer_t *w, const void *src, size_t n)
{
    if (w->failed || (size_t)(w->end - w->p) < n) {
        w->failed = true;
        return;
    }
    if (n)
        memcpy(w->p, src, n);
    w->p += n;
}
static inline void vc_write_u8(vc_writer_t *w, uint8_t v) { vc_write_bytes(w, &v, 1); }
static inline void vc_write_u16(vc_writer_t *w, uint16_t v) { vc_write_bytes(w, &v, 2); }
static inline void vc_write_u32(vc_writer_t *w, uint32_t v) { vc_write_bytes(w, &v, 4); }
static inline void vc_write_u64(vc_writer_t *w, uint64_t v) { vc_write_bytes(w, &v, 8); }

#endif
