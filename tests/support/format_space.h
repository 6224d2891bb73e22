/*
 * What the data directory of a released format holds (tests/vectors/datadir-format*): two keyspaces, in each one chain
 * of full and compressed blocks and a second chain that leaves it. mk_datadir registers it, the test of formats asks
 * for it. The payload is dull, so that the folders pack well; the expected bytes are kept as digests beside each
 * directory, not made anew.
 */
#ifndef SUPPORT_FORMAT_SPACE_H
#define SUPPORT_FORMAT_SPACE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vc/kvrec.h"
#include "vc/mem.h"
#include "vericache/vericache.h"

#define FORMAT_BLOCK_TOKENS 4u
#define FORMAT_BLOCKS 24u /* of a chain at most */
enum { FORMAT_KEYSPACES = 2, FORMAT_CHAINS = 2, FORMAT_FORK = 8 };

typedef struct format_chain {
    vc_keyspace_t ks;
    vc_digest_t id;
    uint8_t enc[VC_KEYSPACE_ENC_MAX];
    size_t enc_len;
    uint32_t tokens[FORMAT_BLOCKS * FORMAT_BLOCK_TOKENS];
    vc_digest_t hashes[FORMAT_BLOCKS];
} format_chain_t;

static const vcache_fidelity_t format_fids[2] = {{0, "full@1", NULL}, {1, "noise:eps=0.5", NULL}};

static inline void format_chain_init(format_chain_t *c, uint32_t keyspace, uint32_t chain)
{
    memset(c, 0, sizeof(*c));
    memset(&c->ks.model, 0x31 + (int)keyspace, sizeof(c->ks.model));
    memset(&c->ks.tokenizer, 0x41, sizeof(c->ks.tokenizer));
    c->ks.has_adapter = keyspace == 1;
    if (keyspace == 1)
        memset(&c->ks.adapter, 0x51, sizeof(c->ks.adapter));
    c->ks.shape = (vc_kv_shape_t){2 + keyspace, 2, 128, FORMAT_BLOCK_TOKENS, keyspace ? VC_DTYPE_BF16 : VC_DTYPE_F16};
    c->ks.layout_version = 1;
    snprintf(c->ks.rope, sizeof(c->ks.rope), "neox theta=10000 dims=128");
    if (vc_keyspace_id(&c->ks, &c->id, NULL) != VC_OK || vc_keyspace_encode(&c->ks, c->enc, &c->enc_len, NULL) != VC_OK)
        abort();
    for (uint32_t i = 0; i < VC_ARRAY_LEN(c->tokens); i++)
        c->tokens[i] = i * 11 + keyspace * 1000 + (i >= FORMAT_FORK * FORMAT_BLOCK_TOKENS ? chain * 100000 : 0);
    vc_block_chain(&c->id, c->tokens, VC_ARRAY_LEN(c->tokens), FORMAT_BLOCK_TOKENS, c->hashes);
}

/* vcache_source_fn over a format_chain_t. */
static inline int format_chain_record(void *arg, uint32_t fid, uint32_t block, void *buf, size_t cap, size_t *len_p)
{
    const format_chain_t *c = arg;
    vc_kvrec_writer_t w;
    vc_kvrec_head_t head = {.fidelity = fid == 0 ? VC_FIDELITY_FULL : VC_FIDELITY_COMPRESSED,
                            .kind = fid == 0 ? VC_KVREC_FULL : VC_KVREC_QUANTISER,
                            .shape = c->ks.shape,
                            .block_index = block,
                            .numerics_id = 1,
                            .horizon_tokens = fid == 0 ? 0 : (block + 1) * FORMAT_BLOCK_TOKENS,
                            .keyspace = c->id,
                            .parent = block > 0 ? c->hashes[block - 1] : c->id};
    vc_spec_id(format_fids[fid].spec, NULL, &head.spec);
    vc_status_t st = vc_kvrec_write_begin(&w, buf, cap, &head, c->tokens + (size_t)block * FORMAT_BLOCK_TOKENS, NULL);
    for (uint32_t l = 0; st == VC_OK && l < c->ks.shape.n_layer; l++) {
        void *part;
        uint32_t length = fid == 0 ? (uint32_t)vc_kv_layer_bytes(&c->ks.shape) : 900 + block;
        st = vc_kvrec_write_layer(&w, length, &part, NULL);
        for (uint32_t i = 0; st == VC_OK && i < length; i++)
            ((uint8_t *)part)[i] = (uint8_t)(block * 5 + l * 3 + fid + i / 256);
    }
    return st == VC_OK && vc_kvrec_write_end(&w, len_p, NULL) == VC_OK ? 0 : 1;
}

#endif
