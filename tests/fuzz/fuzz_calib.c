/*
 * Calibration blobs on hostile bytes. The first byte chooses the method (bits 0-1) and whether the rest is a whole file
 * (bit 7) or only a payload, around which a true head and digest are made: a fuzzer cannot guess those. What is
 * accepted has the payload's own bytes, and a file that is accepted names its digest.
 */
#include <sodium.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "compress/calib.h"
#include "vc/bytes.h"
#include "vc/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const methods[] = {"kvquant", "rotatekv", "kvzap", "expected_attention"};
enum { HEAD = 88, N_LAYER = 2, N_HEAD = 4, N_KV_HEAD = 2, DIM = 16, WIDTH = 64 };

static void must(int ok)
{
    if (!ok)
        abort();
}

static vc_status_t any_payload(const node_model_info_t *model, const uint8_t *payload, size_t bytes, vc_err_t *err)
{
    (void)model, (void)payload;
    return bytes ? VC_OK : vc_err_set(err, VC_ERR_CORRUPT, "nothing in it");
}

/* A method that the build has; else one that takes everything. */
static const node_codec_ops_t *method_of(uint8_t selector)
{
    static node_codec_ops_t any = {.name = "any", .calib_check = any_payload};
    uint32_t n;
    const node_codec_ops_t *const *list = node_codecs(&n);
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(list[i]->name, methods[selector & 3u]) == 0 && list[i]->calib_check != NULL)
            return list[i];
    return &any;
}

static void make_model(node_model_info_t *m)
{
    memset(m, 0, sizeof(*m));
    m->n_layer = N_LAYER;
    m->n_head = N_HEAD;
    m->n_kv_head = N_KV_HEAD;
    m->head_dim = DIM;
    m->d_model = WIDTH;
    m->keyspace.shape = (vc_kv_shape_t){N_LAYER, N_KV_HEAD, DIM, NODE_TILE, VC_DTYPE_F16};
}

static uint8_t *wrap(const char *method, const uint8_t *payload, size_t n)
{
    uint8_t *blob = vc_calloc(1, HEAD + n + VC_DIGEST_BYTES);
    must(blob != NULL);
    static const uint32_t numbers[] = {1, N_LAYER, N_HEAD, N_KV_HEAD, DIM, WIDTH};
    memcpy(blob, "VCCALIB1", 8);
    memcpy(blob + 8, method, strlen(method));
    for (uint32_t i = 0; i < VC_ARRAY_LEN(numbers); i++)
        vc_put_le32(blob + 24 + 4 * i, numbers[i]);
    vc_put_le64(blob + HEAD - 8, n);
    if (n)
        memcpy(blob + HEAD, payload, n);
    crypto_generichash(blob + HEAD + n, VC_DIGEST_BYTES, blob, HEAD + n, NULL, 0);
    return blob;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 1 << 20)
        return 0;
    node_model_info_t model;
    make_model(&model);
    const node_codec_ops_t *ops = method_of(data[0]);
    uint8_t *blob = data[0] & 0x80u ? vc_memdup(data + 1, size - 1) : wrap(ops->name, data + 1, size - 1);
    const size_t bytes = data[0] & 0x80u ? size - 1 : size - 1 + HEAD + VC_DIGEST_BYTES;
    node_calib_t *calib = NULL;
    vc_err_t err = {0};
    vc_status_t st = node_calib_parse(blob, bytes, ops, &model, &calib, &err);
    if (st != VC_OK) {
        must(err.status == st && err.msg[0] != '\0' && calib == NULL);
    } else {
        must(calib->bytes == bytes - HEAD - VC_DIGEST_BYTES && memcmp(calib->payload, blob + HEAD, calib->bytes) == 0);
        must(memcmp(&calib->digest, blob + bytes - VC_DIGEST_BYTES, VC_DIGEST_BYTES) == 0);
        node_calib_free(calib);
    }
    vc_free(blob);
    return 0;
}
