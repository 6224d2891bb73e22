/* Full records: one page of exact KV to the stored format and back. The bits are those of the page, both ways. */
#include <string.h>

#include "compress/codec_int.h"
#include "vc/mem.h"

vc_status_t node_full_record(const node_model_info_t *model, const node_kv_t *kv, const uint32_t *tokens,
                             uint32_t block, void *buf, size_t cap, size_t *bytes_p, vc_err_t *err)
{
    const vc_kv_shape_t *shape = &model->keyspace.shape;
    if (shape->block_tokens != NODE_TILE || shape->dtype != VC_DTYPE_F16)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "full records need blocks of %u tokens in f16", NODE_TILE);
    node_page_t *page = node_kv_page_at(kv, block);
    if (page == NULL || (uint64_t)kv->n_tokens < ((uint64_t)block + 1) * NODE_TILE)
        return vc_err_set(err, VC_ERR_INVALID, "block %u is not whole in the full KV", block);
    vc_digest_t *chain = NULL;
    if (block > 0) {
        chain = vc_calloc(block, sizeof(*chain));
        if (chain == NULL)
            return vc_err_set(err, VC_ERR_NOMEM, "no memory for the hashes of %u blocks", block);
        vc_block_chain(&model->keyspace_id, tokens, block * NODE_TILE, NODE_TILE, chain);
    }
    vc_kvrec_head_t head;
    memset(&head, 0, sizeof(head));
    head.fidelity = VC_FIDELITY_FULL;
    head.kind = VC_KVREC_FULL;
    head.shape = *shape;
    head.block_index = block;
    head.numerics_id = NODE_NUMERICS_ID;
    head.keyspace = model->keyspace_id;
    head.parent = block ? chain[block - 1] : model->keyspace_id;
    vc_free(chain);
    char text[VC_SPEC_TEXT_MAX];
    vc_spec_full_text(NODE_NUMERICS_ID, text);
    vc_spec_id(text, NULL, &head.spec);

    vc_kvrec_writer_t w;
    vc_status_t st = vc_kvrec_write_begin(&w, buf, cap, &head, tokens + (size_t)block * NODE_TILE, err);
    for (uint32_t l = 0; st == VC_OK && l < model->n_layer; l++) {
        void *part;
        st = vc_kvrec_write_layer(&w, (uint32_t)vc_kv_layer_bytes(shape), &part, err);
        if (st == VC_OK)
            node_page_store_layer(page, l, part);
    }
    return st == VC_OK ? vc_kvrec_write_end(&w, bytes_p, err) : st;
}

static vc_status_t check_full(const node_model_info_t *model, const vc_kvrec_head_t *head, vc_err_t *err)
{
    const vc_kv_shape_t *a = &model->keyspace.shape, *b = &head->shape;
    if (head->fidelity != VC_FIDELITY_FULL || head->kind != VC_KVREC_FULL)
        return vc_err_set(err, VC_ERR_MISMATCH, "block %u is a compressed record where a full one was wanted",
                          head->block_index);
    if (a->n_layer != b->n_layer || a->n_kv_head != b->n_kv_head || a->head_dim != b->head_dim ||
        a->block_tokens != b->block_tokens || a->dtype != b->dtype || b->block_tokens != NODE_TILE)
        return vc_err_set(err, VC_ERR_MISMATCH, "block %u has the KV shape of another model", head->block_index);
    if (memcmp(&head->keyspace, &model->keyspace_id, sizeof(head->keyspace)) != 0)
        return vc_err_set(err, VC_ERR_MISMATCH, "block %u belongs to another keyspace", head->block_index);
    if (head->numerics_id != NODE_NUMERICS_ID)
        return vc_err_set(err, VC_ERR_MISMATCH, "block %u was computed under numerics %u, this node has %u",
                          head->block_index, head->numerics_id, NODE_NUMERICS_ID);
    return VC_OK;
}

vc_status_t node_page_from_record(const node_model_info_t *model, const void *record, size_t bytes,
                                  node_page_t **page_p, vc_err_t *err)
{
    vc_kvrec_head_t head;
    vc_status_t st = vc_kvrec_check(record, bytes, &head, err);
    if (st == VC_OK)
        st = check_full(model, &head, err);
    if (st != VC_OK)
        return st;
    const node_kv_dims_t dims = {head.shape.n_layer, head.shape.n_kv_head, head.shape.head_dim};
    node_page_t *page = node_page_create(&dims);
    if (page == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a page of KV");
    for (uint32_t l = 0; l < dims.n_layer; l++) {
        vc_kvrec_layer_t part;
        vc_kvrec_layer(&head, l, &part);
        const uint8_t *at = (const uint8_t *)record + part.offset; /* 4 KiB steps, but the record may start anywhere */
        if ((uintptr_t)at % sizeof(uint16_t) != 0) {
            node_page_put(page);
            return vc_err_set(err, VC_ERR_INVALID, "a record must start at an even address");
        }
        node_page_load_layer(page, l, (const uint16_t *)(const void *)at);
    }
    *page_p = page;
    return VC_OK;
}
