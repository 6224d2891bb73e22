/*
 * Full KV of newly registered blocks to compressed records. The method says how long each layer part is and writes it;
 * this file checks the input once for all methods and owns the record around the parts.
 */
#include <string.h>

#include "compress/dropper.h"
#include "vc/mem.h"

/* A compressor fed with infinities or NaN would produce scales and scores that mean nothing: say so, loudly. */
static vc_status_t check_page(const node_compress_in_t *in, uint32_t block, vc_err_t *err)
{
    const node_model_info_t *m = in->model;
    node_page_t *page = node_kv_page_at(in->kv, block);
    if (page == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "compression needs block %u, which is not in the full KV", block);
    for (uint32_t l = 0; l < m->n_layer; l++)
        for (uint32_t h = 0; h < m->n_kv_head; h++)
            if (!node_f16_finite(node_page_k(page, l, h), (size_t)m->head_dim * NODE_TILE) ||
                !node_f16_finite(node_page_v(page, l, h), (size_t)m->head_dim * NODE_TILE))
                return vc_err_set(err, VC_ERR_INVALID,
                                  "the KV of block %u, layer %u, head %u holds a number that is not finite", block, l,
                                  h);
    return VC_OK;
}

static vc_status_t check_input(const node_spec_t *spec, const node_compress_in_t *in, vc_err_t *err)
{
    const node_model_info_t *m = in->model;
    const vc_kv_shape_t *shape = &m->keyspace.shape;
    if (in->first_block >= in->n_blocks || in->n_blocks > UINT32_MAX / NODE_TILE)
        return vc_err_set(err, VC_ERR_INVALID, "no blocks to compress in [%u, %u)", in->first_block, in->n_blocks);
    if (shape->block_tokens != NODE_TILE || shape->dtype != VC_DTYPE_F16)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "compressors need blocks of %u tokens in f16", NODE_TILE);
    if (in->kv->body != NULL || in->kv->n_tokens < in->n_blocks * NODE_TILE || in->kv->dims.n_layer != m->n_layer ||
        in->kv->dims.n_kv_head != m->n_kv_head || in->kv->dims.head_dim != m->head_dim)
        return vc_err_set(err, VC_ERR_INVALID, "compression of %u blocks needs full KV of the model that covers them",
                          in->n_blocks);
    if ((spec->ops->needs(spec) & NODE_NEED_REPLAY) && (in->replay == NULL || in->replay->engine == NULL))
        return vc_err_set(err, VC_ERR_INVALID, "compressor %s needs the model to read the text again", spec->ops->name);
    node_dropper_rows_t rows;
    vc_status_t st = node_dropper_rows_init(&rows, spec, m->head_dim, false, err); /* no method need ask again */
    for (uint32_t b = in->first_block; st == VC_OK && b < in->n_blocks; b++)
        st = check_page(in, b, err);
    return st;
}

typedef struct emit {
    const node_spec_t *spec;
    const node_compress_in_t *in;
    const void *plan;
    const vc_digest_t *chain; /* [n_blocks] */
    uint8_t *buf;
    size_t cap;
} emit_t;

static vc_status_t record_room(emit_t *e, uint32_t block, vc_err_t *err)
{
    const node_model_info_t *m = e->in->model;
    size_t need = vc_kvrec_header_bytes(&m->keyspace.shape);
    for (uint32_t l = 0; l < m->n_layer; l++)
        need = vc_align_up(need, VC_KVREC_PART_ALIGN) + e->spec->ops->layer_bytes(e->plan, block, l);
    need = vc_align_up(need, VC_KVREC_ALIGN);
    if (need > VC_KVREC_MAX_BYTES)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "a %s record of this model takes %zu bytes, more than %u",
                          e->spec->ops->name, need, VC_KVREC_MAX_BYTES);
    if (need <= e->cap)
        return VC_OK;
    vc_free(e->buf);
    e->cap = 0;
    e->buf = vc_alloc_aligned(VC_KVREC_ALIGN, need);
    if (e->buf == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a record of %zu bytes", need);
    e->cap = need;
    return VC_OK;
}

/* Only a choice of rows depends on where the registration began and ended; other methods leave both zero, so that equal
 * KV is equal bytes however it was registered. */
static void fill_head(const emit_t *e, uint32_t block, vc_kvrec_head_t *head)
{
    const node_compress_in_t *in = e->in;
    bool chosen = e->spec->ops->chooses;
    memset(head, 0, sizeof(*head));
    head->fidelity = VC_FIDELITY_COMPRESSED;
    head->kind = e->spec->ops->kind;
    head->shape = in->model->keyspace.shape;
    head->block_index = block;
    head->numerics_id = NODE_NUMERICS_ID;
    head->horizon_tokens = chosen ? in->n_blocks * NODE_TILE : 0;
    head->horizon_first = chosen ? in->first_block * NODE_TILE : 0;
    head->spec = e->spec->id;
    head->keyspace = in->model->keyspace_id;
    head->parent = block ? e->chain[block - 1] : in->model->keyspace_id;
}

static vc_status_t write_record(emit_t *e, uint32_t block, size_t *bytes_p, vc_err_t *err)
{
    vc_status_t st = record_room(e, block, err);
    if (st != VC_OK)
        return st;
    vc_kvrec_head_t head;
    fill_head(e, block, &head);
    vc_kvrec_writer_t w;
    st = vc_kvrec_write_begin(&w, e->buf, e->cap, &head, e->in->tokens + (size_t)block * NODE_TILE, err);
    for (uint32_t l = 0; st == VC_OK && l < e->in->model->n_layer; l++) {
        void *part;
        st = vc_kvrec_write_layer(&w, e->spec->ops->layer_bytes(e->plan, block, l), &part, err);
        if (st == VC_OK)
            e->spec->ops->encode(e->plan, block, l, part);
    }
    return st == VC_OK ? vc_kvrec_write_end(&w, bytes_p, err) : st;
}

vc_status_t node_compress(const node_spec_t *spec, const node_compress_in_t *in, node_record_fn on_record, void *arg,
                          vc_err_t *err)
{
    vc_status_t st = check_input(spec, in, err);
    if (st != VC_OK)
        return st;
    vc_digest_t *chain = vc_calloc(in->n_blocks, sizeof(*chain));
    if (chain == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the hashes of %u blocks", in->n_blocks);
    vc_block_chain(&in->model->keyspace_id, in->tokens, in->n_blocks * NODE_TILE, NODE_TILE, chain);
    void *plan = NULL;
    st = spec->ops->plan(spec, in, &plan, err);
    if (st == VC_OK) {
        emit_t e = {.spec = spec, .in = in, .plan = plan, .chain = chain};
        for (uint32_t b = in->first_block; st == VC_OK && b < in->n_blocks; b++) {
            size_t bytes = 0;
            st = write_record(&e, b, &bytes, err);
            if (st == VC_OK && on_record(arg, b, e.buf, bytes) != 0)
                st = vc_err_set(err, VC_ERR_CANCELLED, "the receiver of compressed records stopped at block %u", b);
        }
        vc_free(e.buf);
        spec->ops->plan_free(plan);
    }
    vc_free(chain);
    return st;
}
