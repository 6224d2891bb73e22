/*
 * Calibration blobs: what some methods learn once per model from any text (KVQuant's codebooks, KVzap's surrogates,
 * ExpectedAttention's statistics, RotateKV's order of channels). One file per method and model, made by `vericache-node
 * calibrate`:
 *
 *   8   "VCCALIB1"            16  of the method's name, zero padded or cut
 *   4   version (1)           4   n_layer, 4 n_head, 4 n_kv_head, 4 head_dim, 4 d_model
 *   32  weights digest of the model (keyspace)
 *   8   payload bytes         then the payload, whose layout is the method's (compress/METHODS.md)
 *   32  BLAKE2b-256 of all bytes before it: the blob's digest
 *
 * Little-endian. A blob's digest is part of the spec id, so copies made with another blob are other copies, and records
 * cannot be read with the wrong one. Immutable after load; any thread.
 */
#ifndef NODE_CALIB_H
#define NODE_CALIB_H

#include "compress/codec.h"

struct node_calib {
    char method[16];
    vc_digest_t digest;
    uint8_t *payload; /* on 64 bytes */
    size_t bytes;
};

/* CORRUPT: damaged or cut; MISMATCH: of another method, model or version, the sentence says which. Checks the payload
 * with the method's calib_check. */
vc_status_t node_calib_load(const char *path, const node_codec_ops_t *ops, const node_model_info_t *model,
                            node_calib_t **calib_p, vc_err_t *err);
/* From bytes in memory: what load does with a file's contents. For tests and the fuzzer. */
vc_status_t node_calib_parse(const void *data, size_t bytes, const node_codec_ops_t *ops,
                             const node_model_info_t *model, node_calib_t **calib_p, vc_err_t *err);
/* Writes beside the target, syncs, renames. */
vc_status_t node_calib_save(const char *path, const char *method, const node_model_info_t *model, const void *payload,
                            size_t bytes, vc_err_t *err);
/* Whether save could write there now, before hours of work: the same error sentence as save's. Leaves no file. */
vc_status_t node_calib_can_save(const char *path, vc_err_t *err);
void node_calib_free(node_calib_t *calib);

/* "<dir>/<model file name without .gguf>.<method>.vcal"; dir NULL: the model file's own. */
vc_status_t node_calib_path(const char *dir, const char *model_path, const char *method, char *out, size_t cap,
                            vc_err_t *err);
/* The spec then is the method with this blob: sets calib (borrowed) and id. */
void node_spec_bind(node_spec_t *spec, const node_calib_t *calib);

#endif
