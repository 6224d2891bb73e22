/*
 * The catalog's rows as bytes (README.md has them field by field). Pure: whatever is decoded was checked, and any bytes
 * end in true or false. Decoders write *row_p only on success.
 */
#ifndef CS_CATALOG_ROWS_H
#define CS_CATALOG_ROWS_H

#include <stddef.h>

#include "catalog.h"

#define CS_ROW_OBJECT_KEY_BYTES 49u
#define CS_ROW_OBJECT_BYTES 80u
#define CS_ROW_SEGMENT_BYTES 16u
#define CS_ROW_PIN_BYTES 8u
#define CS_ROW_USES_HEAD_BYTES 8u
#define CS_ROW_USE_BYTES 6u
#define CS_ROW_PREFIX_MAX_BYTES (72u + 4 * CS_HEAD_TOKENS)

void cs_row_encode_object(const cs_object_row_t *row, uint8_t value[CS_ROW_OBJECT_BYTES]);
void cs_row_encode_segment(const cs_segment_row_t *row, uint8_t value[CS_ROW_SEGMENT_BYTES]);
/* Returns the length. */
size_t cs_row_encode_prefix(const cs_prefix_row_t *row, uint8_t value[CS_ROW_PREFIX_MAX_BYTES]);

void cs_row_encode_pin(uint32_t pinned_s, uint8_t value[CS_ROW_PIN_BYTES]);
/* value has CS_ROW_USES_HEAD_BYTES + n * CS_ROW_USE_BYTES. */
void cs_row_encode_uses(uint32_t version, const cs_use_t *uses, uint32_t n, uint8_t *value);

bool cs_row_decode_pin(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len, vc_object_key_t *key_p);
/* The row refers to value. Pages rise. */
bool cs_row_decode_uses(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len, cs_uses_row_t *row_p);
bool cs_row_decode_object(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len, cs_object_row_t *row_p);
bool cs_row_decode_segment(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len,
                           cs_segment_row_t *row_p);
bool cs_row_decode_prefix(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len, cs_prefix_row_t *row_p);
/* The id is the hash of the encoding: a row whose key says otherwise is refused. */
bool cs_row_decode_keyspace(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len, vc_digest_t *id_p,
                            vc_keyspace_t *ks_p);

#endif
