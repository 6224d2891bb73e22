/*
 * Builds GGUF images in memory for tests. Metadata and tensors may be added in any order; finish lays them out.
 * Ends the process when out of memory.
 */
#ifndef SUPPORT_GGUF_WRITER_H
#define SUPPORT_GGUF_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gguf_writer gguf_writer_t;

/* An image as node_gguf_open_memory wants it: 64-byte aligned. */
typedef struct gguf_image {
    void *data;
    size_t bytes;
} gguf_image_t;
void gguf_image_free(gguf_image_t *image);
/* Writes aside and renames. False with a line on stderr on failure. */
bool gguf_image_write(const gguf_image_t *image, const char *path);

gguf_writer_t *gguf_writer_create(void);
void gguf_writer_u32(gguf_writer_t *w, const char *key, uint32_t v);
void gguf_writer_f32(gguf_writer_t *w, const char *key, float v);
void gguf_writer_bool(gguf_writer_t *w, const char *key, bool v);
void gguf_writer_str(gguf_writer_t *w, const char *key, const char *v);
void gguf_writer_strs(gguf_writer_t *w, const char *key, const char *const *v, size_t n);
void gguf_writer_i32s(gguf_writer_t *w, const char *key, const int32_t *v, size_t n);
/* Any value as its raw bytes, for tests of the reader: type and payload go out as they are. */
void gguf_writer_raw(gguf_writer_t *w, const char *key, uint32_t type, const void *payload, size_t bytes);

typedef enum { GGUF_W_F32 = 0, GGUF_W_F16 = 1, GGUF_W_Q4_0 = 2, GGUF_W_Q4_1 = 3, GGUF_W_Q8_0 = 8 } gguf_writer_type_t;
/* values [ne1][ne0] row-major, quantised to type; ne1 == 0 makes a vector of ne0. ne0 is a multiple of 32 for Q types.
 */
void gguf_writer_tensor(gguf_writer_t *w, const char *name, gguf_writer_type_t type, size_t ne0, size_t ne1,
                        const float *values);
/* Frees the writer. */
gguf_image_t gguf_writer_finish(gguf_writer_t *w);

/* IEEE half, round to nearest even, saturating at +-65504. */
uint16_t gguf_writer_half(float f);

#endif
