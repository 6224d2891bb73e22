/*
 * What the files of this folder share: the option tables of spec.c, the body builder as decoders see it, and the
 * payload code that several methods use. Not for other folders.
 */
#ifndef NODE_CODEC_INT_H
#define NODE_CODEC_INT_H

#include <string.h>

#include "compress/codec.h"
#include "compress/prerope.h"

/* ---- spec.c: one table of parameters per method ---- */

typedef enum { NODE_PARAM_REAL, NODE_PARAM_UINT, NODE_PARAM_UINT64, NODE_PARAM_CHOICE } node_param_kind_t;

#define NODE_PARAM_FROM_ZERO (-0x1p-1074) /* lo of a REAL that may be 0 */

typedef struct node_param {
    const char *name;
    node_param_kind_t kind;
    size_t offset; /* of the field inside node_spec_t */
    double lo, hi; /* REAL: lo < value <= hi; UINT: both included */
    double preset; /* value when the text does not say */
    const char
        *list; /* CHOICE: "avg,max", the field gets the index; UINT: allowed values or NULL for the whole range */
} node_param_t;

/* Fills every field of the table, then writes the canonical text: method, then every parameter in table order. */
vc_status_t node_params_parse(node_spec_t *spec, const char *method, const char *params, const node_param_t *table,
                              uint32_t n_table, vc_err_t *err);

/* The bits slot of every dropper. */
double node_dropper_bits(const node_spec_t *spec, uint32_t head_dim);

/* Four f16 numbers at a time: an exponent of all ones, plus one, carries into the sign's place and no further. */
static inline bool node_f16_finite(const void *x, size_t n)
{
    const uint8_t *at = x;
    uint64_t bad = 0, w = 0;
    for (; n >= 4; n -= 4, at += 8) {
        memcpy(&w, at, 8);
        bad |= (w & 0x7c007c007c007c00ull) + 0x0400040004000400ull;
    }
    w = 0;
    memcpy(&w, at, 2 * n);
    bad |= (w & 0x7c007c007c007c00ull) + 0x0400040004000400ull;
    return (bad & 0x8000800080008000ull) == 0;
}

/* ---- dropper.c: kept bitmap, K rows, V rows ---- */

#define NODE_BITMAP_BYTES (NODE_TILE / 8u)

/* Bytes of one head with n_kept rows. */
static inline uint32_t node_dropper_head_bytes(uint32_t n_kept, uint32_t head_dim)
{
    return NODE_BITMAP_BYTES + n_kept * head_dim * 4u;
}
/* Writes one head; kept: bit i = row i of the page. Returns the first byte after it. */
uint8_t *node_dropper_encode_head(uint8_t *at, node_page_t *page, uint32_t layer, uint32_t head, uint32_t head_dim,
                                  uint64_t kept);
/* The decode slot of every dropper: checks the whole part against its length, then hands the rows to the builder. */
vc_status_t node_dropper_decode(const node_spec_t *spec, const vc_kvrec_head_t *head, uint32_t layer, const void *part,
                                uint32_t length, node_body_builder_t *builder, vc_err_t *err);

/* ---- body.c, for decoders ---- */

const node_model_info_t *node_body_model(const node_body_builder_t *b); /* RoPE of keys that were stored before it */
node_load_t node_body_load(const node_body_builder_t *b);

/* Rows of one head of one block: n_kept = popcount(kept) rows of head_dim f16 numbers, K then V, copied. */
vc_status_t node_body_put_rows(node_body_builder_t *b, uint32_t block, uint32_t layer, uint32_t head, uint64_t kept,
                               const uint8_t *k_rows, const uint8_t *v_rows, vc_err_t *err);
/* Quantised rows of one matrix of a head, as rot's payload has them: codes [n][dim] of form->bits bits, the first in
 * the low bits; scales and minima [n][dim / form->group] f16, finite, little-endian. */
typedef struct node_coded_rows {
    const uint8_t *codes, *scales, *mins;
} node_coded_rows_t;

/* Kept rows of one head of one block in the space of coded tiles (rotated), copied: n = popcount(kept) rows of K and of
 * V. They are packed as put_rows packs f16 rows, into coded tiles whose last one is partly filled. One form per spec
 * and model; a spec hands over all of its kept rows in f16, or all of them coded. */
vc_status_t node_body_put_coded_rows(node_body_builder_t *b, uint32_t block, uint32_t layer, uint32_t head,
                                     uint64_t kept, const node_coded_form_t *form, const node_coded_rows_t *k,
                                     const node_coded_rows_t *v, vc_err_t *err);
/* The page of a block that a quantiser decodes into: made on the first call, owned by the builder. */
vc_status_t node_body_own_page(node_body_builder_t *b, uint32_t block, node_page_t **page_p, vc_err_t *err);

/* The coded tile of one head of a block, form->bytes on 64 bytes, not zeroed, owned by the builder. NULL where an exact
 * page has taken the block's place. One form per spec and model. */
vc_status_t node_body_own_tile(node_body_builder_t *b, uint32_t block, uint32_t layer, uint32_t head,
                               const node_coded_form_t *form, uint8_t **tile_p, vc_err_t *err);

/* Angles of a block, for keys that are stored before RoPE; made once per block. NULL: out of memory. */
const node_prerope_t *node_body_prerope(node_body_builder_t *b, uint32_t block);

/* ---- load.c, for decoders of keys that are stored before RoPE ---- */

/* One head of one block, dequantised, keys after RoPE and exact rows in their places: k [head_dim][NODE_TILE], v
 * [NODE_TILE][head_dim] f16, all finite. Becomes what node_body_load says; nothing where an exact page has taken the
 * block's place. */
vc_status_t node_body_put_tile(node_body_builder_t *b, uint32_t block, uint32_t layer, uint32_t head, const uint16_t *k,
                               const uint16_t *v, vc_err_t *err);

/* ---- the methods ---- */
extern const node_codec_ops_t node_codec_none, node_codec_noise;
extern const node_codec_ops_t node_codec_snapkv, node_codec_expected_attention, node_codec_kvzip, node_codec_kvzap;
extern const node_codec_ops_t node_codec_kivi, node_codec_kvquant, node_codec_rotatekv, node_codec_rot;

static inline uint32_t node_codec_no_need(const node_spec_t *spec)
{
    (void)spec;
    return 0;
}

#endif
