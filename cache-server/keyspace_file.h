/*
 * DIR/keyspaces: the encodings of the keyspaces that have objects, once more outside the catalog. Records name their
 * keyspace by its id alone, so a catalog that has to be made anew from the segments needs them from elsewhere. Written
 * as a whole, aside, synced, renamed. Records: "VCKS", u32 length, u32 CRC32C of the encoding, the encoding of
 * vc/keyspace.h; little-endian. A damaged record costs itself only.
 */
#ifndef CS_KEYSPACE_FILE_H
#define CS_KEYSPACE_FILE_H

#include <stdint.h>

#include "vc/keyspace.h"

#define CS_KEYSPACE_FILE_MAX ((size_t)256 << 10) /* inside the reserve for small files; about a thousand keyspaces */
#define CS_KEYSPACE_RECORD_MAX (12u + VC_KEYSPACE_ENC_MAX)

/* Length of the record; 0 when the keyspace cannot be encoded. out: CS_KEYSPACE_RECORD_MAX bytes. */
size_t cs_keyspace_file_encode(const vc_keyspace_t *ks, uint8_t *out);
/* Makes these records the file's content; nothing is written where they are that already. */
vc_status_t cs_keyspace_file_save(const char *data_dir, const uint8_t *records, size_t bytes, vc_err_t *err);
/* Calls fn for each sound record. A missing file has none. *n_damaged_p: places that hold no sound record. */
vc_status_t cs_keyspace_file_load(const char *data_dir,
                                  void (*fn)(void *arg, const vc_digest_t *id, const vc_keyspace_t *ks), void *arg,
                                  uint32_t *n_damaged_p, vc_err_t *err);
/* The parser behind load, for memory. */
uint32_t cs_keyspace_file_parse(const uint8_t *data, size_t bytes,
                                void (*fn)(void *arg, const vc_digest_t *id, const vc_keyspace_t *ks), void *arg);

#endif
