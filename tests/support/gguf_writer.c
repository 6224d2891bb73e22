/* GGUF images for tests; see gguf_writer.h. */
#include "support/gguf_writer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 32u

typedef struct {
    uint8_t *p;
    size_t n, cap;
} buf_t;

struct gguf_writer {
    buf_t kvs, infos, data;
    uint64_t n_kvs, n_tensors;
};

static void *need(void *ptr)
{
    if (ptr == NULL)
        abort();
    return ptr;
}

static void put(buf_t *b, const void *src, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2 + 256;
        b->p = need(realloc(b->p, b->cap));
    }
    if (n != 0)
        memcpy(b->p + b->n, src, n);
    b->n += n;
}
static void put_u32(buf_t *b, uint32_t v) { put(b, &v, 4); }
static void put_u64(buf_t *b, uint64_t v) { put(b, &v, 8); }
static void put_str(buf_t *b, const char *s)
{
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}
static void pad(buf_t *b, size_t align)
{
    static const uint8_t zeros[64];
    put(b, zeros, (align - b->n % align) % align);
}

void gguf_image_free(gguf_image_t *image)
{
    free(image->data);
    *image = (gguf_image_t){0};
}

bool gguf_image_write(const gguf_image_t *image, const char *path)
{
    char aside[4096];
    int n = snprintf(aside, sizeof(aside), "%s.part", path);
    FILE *f = n > 0 && (size_t)n < sizeof(aside) ? fopen(aside, "wb") : NULL;
    bool good = f != NULL && fwrite(image->data, 1, image->bytes, f) == image->bytes;
    if (f != NULL && fclose(f) != 0)
        good = false;
    if (!good || rename(aside, path) != 0) {
        perror(path);
        return false;
    }
    return true;
}

gguf_writer_t *gguf_writer_create(void) { return need(calloc(1, sizeof(gguf_writer_t))); }

void gguf_writer_raw(gguf_writer_t *w, const char *key, uint32_t type, const void *payload, size_t bytes)
{
    put_str(&w->kvs, key);
    put_u32(&w->kvs, type);
    put(&w->kvs, payload, bytes);
    w->n_kvs++;
}
void gguf_writer_u32(gguf_writer_t *w, const char *key, uint32_t v) { gguf_writer_raw(w, key, 4, &v, 4); }
void gguf_writer_f32(gguf_writer_t *w, const char *key, float v) { gguf_writer_raw(w, key, 6, &v, 4); }
void gguf_writer_bool(gguf_writer_t *w, const char *key, bool v)
{
    uint8_t b = v;
    gguf_writer_raw(w, key, 7, &b, 1);
}
void gguf_writer_str(gguf_writer_t *w, const char *key, const char *v)
{
    gguf_writer_raw(w, key, 8, NULL, 0);
    put_str(&w->kvs, v);
}
void gguf_writer_strs(gguf_writer_t *w, const char *key, const char *const *v, size_t n)
{
    gguf_writer_raw(w, key, 9, NULL, 0);
    put_u32(&w->kvs, 8);
    put_u64(&w->kvs, n);
    for (size_t i = 0; i < n; i++)
        put_str(&w->kvs, v[i]);
}
void gguf_writer_i32s(gguf_writer_t *w, const char *key, const int32_t *v, size_t n)
{
    gguf_writer_raw(w, key, 9, NULL, 0);
    put_u32(&w->kvs, 5);
    put_u64(&w->kvs, n);
    put(&w->kvs, v, n * 4);
}

uint16_t gguf_writer_half(float f)
{
    uint32_t x;
    memcpy(&x, &f, 4);
    const uint16_t sign = (uint16_t)(x >> 16 & 0x8000u);
    x &= 0x7fffffffu;
    if (x >= 0x477ff000u) /* rounds past 65504 */
        return sign | 0x7bffu;
    if (x < 0x38800000u) { /* subnormal: a multiple of 2^-24 */
        float a;
        memcpy(&a, &x, 4);
        return (uint16_t)(sign | (uint16_t)lrintf(a * 0x1p24f));
    }
    x += 0xfffu + (x >> 13 & 1u);
    return (uint16_t)(sign | (uint16_t)((x - 0x38000000u) >> 13));
}

static float from_half(uint16_t h)
{
    const int e = h >> 10 & 31;
    const float m = (float)(h & 1023);
    const float a = e == 0 ? m * 0x1p-24f : ldexpf(1024.0f + m, e - 25);
    return h & 0x8000 ? -a : a;
}

static int code(float x, float d, float offset, int lo, int hi)
{
    long q = d != 0.0f ? lrintf((x - offset) / d) : 0;
    return (int)(q < lo ? lo : q > hi ? hi : q);
}

/* One block of 32 values. Scales are rounded to half first, codes are taken against the rounded scale. */
static void put_block(buf_t *b, gguf_writer_type_t type, const float *x)
{
    float lo = x[0], hi = x[0];
    for (int i = 1; i < 32; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
    }
    const float amax = fmaxf(fabsf(lo), fabsf(hi));
    const uint16_t scale = gguf_writer_half(type == GGUF_W_Q8_0   ? amax / 127.0f
                                            : type == GGUF_W_Q4_0 ? amax / 7.0f
                                                                  : (hi - lo) / 15.0f);
    const uint16_t min = gguf_writer_half(lo);
    const float d = from_half(scale);
    put(b, &scale, 2);
    if (type == GGUF_W_Q8_0) {
        for (int i = 0; i < 32; i++) {
            const int8_t q = (int8_t)code(x[i], d, 0.0f, -127, 127);
            put(b, &q, 1);
        }
        return;
    }
    if (type == GGUF_W_Q4_1)
        put(b, &min, 2);
    for (int i = 0; i < 16; i++) { /* low nibbles are values 0..15, high nibbles 16..31 */
        const bool q41 = type == GGUF_W_Q4_1;
        const int a = q41 ? code(x[i], d, from_half(min), 0, 15) : code(x[i], d, 0.0f, -8, 7) + 8;
        const int c = q41 ? code(x[i + 16], d, from_half(min), 0, 15) : code(x[i + 16], d, 0.0f, -8, 7) + 8;
        const uint8_t byte = (uint8_t)(a | c << 4);
        put(b, &byte, 1);
    }
}

void gguf_writer_tensor(gguf_writer_t *w, const char *name, gguf_writer_type_t type, size_t ne0, size_t ne1,
                        const float *values)
{
    const size_t n = ne0 * (ne1 != 0 ? ne1 : 1);
    pad(&w->data, ALIGN);
    put_str(&w->infos, name);
    put_u32(&w->infos, ne1 != 0 ? 2 : 1);
    put_u64(&w->infos, ne0);
    if (ne1 != 0)
        put_u64(&w->infos, ne1);
    put_u32(&w->infos, type);
    put_u64(&w->infos, w->data.n);
    w->n_tensors++;
    if (type == GGUF_W_F32) {
        put(&w->data, values, n * 4);
    } else if (type == GGUF_W_F16) {
        for (size_t i = 0; i < n; i++) {
            const uint16_t h = gguf_writer_half(values[i]);
            put(&w->data, &h, 2);
        }
    } else {
        for (size_t i = 0; i + 32 <= n; i += 32)
            put_block(&w->data, type, values + i);
    }
}

gguf_image_t gguf_writer_finish(gguf_writer_t *w)
{
    buf_t out = {0};
    put(&out, "GGUF", 4);
    put_u32(&out, 3);
    put_u64(&out, w->n_tensors);
    put_u64(&out, w->n_kvs);
    put(&out, w->kvs.p, w->kvs.n);
    put(&out, w->infos.p, w->infos.n);
    pad(&out, ALIGN);
    put(&out, w->data.p, w->data.n);
    void *aligned = NULL;
    if (posix_memalign(&aligned, 64, out.n) != 0)
        abort();
    memcpy(aligned, out.p, out.n);
    gguf_image_t image = {aligned, out.n};
    free(out.p);
    free(w->kvs.p);
    free(w->infos.p);
    free(w->data.p);
    free(w);
    return image;
}
