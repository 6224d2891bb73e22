/*
 * One small keyspace and one prompt of 256 blocks, with full records made from the block number: for tests that move
 * records and do not care what is in them.
 */
#ifndef SUPPORT_SMALL_SPACE_H
#define SUPPORT_SMALL_SPACE_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vc/kvrec.h"
#include "vc/mem.h"

#define SMALL_BLOCK_TOKENS 4u

typedef struct {
    vc_keyspace_t ks;
    vc_digest_t id;
    uint8_t enc[VC_KEYSPACE_ENC_MAX];
    size_t enc_len;
    uint32_t tokens[256 * SMALL_BLOCK_TOKENS];
    vc_digest_t hashes[256];
} small_space_t;

static inline void small_space_init(small_space_t *s)
{
    memset(s, 0, sizeof(*s));
    s->ks.shape = (vc_kv_shape_t){2, 2, 128, SMALL_BLOCK_TOKENS, VC_DTYPE_F16};
    s->ks.layout_version = VC_LAYOUT_VERSION;
    snprintf(s->ks.rope, sizeof(s->ks.rope), "neox theta=10000 dims=128");
    if (vc_keyspace_id(&s->ks, &s->id, NULL) != VC_OK || vc_keyspace_encode(&s->ks, s->enc, &s->enc_len, NULL) != VC_OK)
        abort();
    for (uint32_t i = 0; i < VC_ARRAY_LEN(s->tokens); i++)
        s->tokens[i] = i * 7 + 1;
    vc_block_chain(&s->id, s->tokens, VC_ARRAY_LEN(s->tokens), SMALL_BLOCK_TOKENS, s->hashes);
}

static inline int small_space_record(void *arg, uint32_t fid, uint32_t block, void *buf, size_t cap, size_t *len_p)
{
    const small_space_t *s = arg;
    vc_kvrec_writer_t w;
    vc_kvrec_head_t head = {.fidelity = VC_FIDELITY_FULL,
                            .kind = VC_KVREC_FULL,
                            .shape = s->ks.shape,
                            .block_index = block,
                            .numerics_id = 1,
                            .keyspace = s->id,
                            .parent = block > 0 ? s->hashes[block - 1] : s->id};
    (void)fid;
    vc_spec_id("full@1", NULL, &head.spec);
    vc_status_t st = vc_kvrec_write_begin(&w, buf, cap, &head, s->tokens + (size_t)block * SMALL_BLOCK_TOKENS, NULL);
    for (uint32_t l = 0; st == VC_OK && l < s->ks.shape.n_layer; l++) {
        void *part;
        uint32_t length = (uint32_t)vc_kv_layer_bytes(&s->ks.shape);
        st = vc_kvrec_write_layer(&w, length, &part, NULL);
        if (st == VC_OK)
            memset(part, (int)(block * 3 + l), length);
    }
    return st == VC_OK && vc_kvrec_write_end(&w, len_p, NULL) == VC_OK ? 0 : 1;
}

typedef struct {
    const small_space_t *space;
    uint32_t right, wrong;
} small_sink_t;

static inline int small_sink_record(void *arg, uint32_t block, const void *record, size_t bytes)
{
    small_sink_t *s = arg;
    uint8_t want[16 << 10];
    size_t n = 0;
    bool same = small_space_record((void *)(uintptr_t)s->space, 0, block, want, sizeof(want), &n) == 0 && n == bytes &&
                memcmp(want, record, n) == 0;
    s->right += same;
    s->wrong += !same;
    return 0;
}

#endif
